"""Random tensors from explicit generators; gradients flow to the parameters of a distribution.

``default_rng(seed)`` returns a ``Generator`` on NumPy's counter-based Philox.  There is no global
generator.  A draw from a continuous distribution is a smooth function of its parameters and of noise that
does not depend on them (``normal``: loc + scale · z), so gradients flow to ``loc``, ``scale`` and
``logits``.  Draws of integers and classes have no gradient; ``NoGradientError`` is raised if a gradient is
requested through them alone.

Examples
--------
>>> import adjoint as ad
>>> rng = ad.random.default_rng(0)
>>> scale = ad.tensor(2.0, requires_grad=True)
>>> x = rng.normal(0.0, scale, size=1000)
>>> (x * x).mean().backward()  # E[x²] = scale², so its derivative is about 2 · scale
>>> abs(scale.grad.item() - 4) < 0.5
True
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.config import get_default_dtype
from adjoint.core.convert import array_of, asarray, checked_dtype
from adjoint.core.lifted import Lifted, made_by_host
from adjoint.core.namespace import rec
from adjoint.core.shapes import Shape, broadcast_shapes, canonical_axis, canonical_shape, reduced_axes
from adjoint.core.tensor import Tensor, check, differentiable, wrap
from adjoint.errors import ArgumentError, DTypeError, InputError, ShapeError
from adjoint.hints import explain
from adjoint.ops.half import widened
from adjoint.ops.reduce import argmax, narrowed
from adjoint.ops.selection import take
from adjoint.typing import ArrayLike, DTypeLike, Lengths

__all__ = ["Generator", "default_rng"]

KEYED = 2**32 - 1  # begins the seeds of keys, which are therefore not those of ``spawn``


def __dir__() -> list[str]:
    return sorted(__all__)


def default_rng(seed: Any = None) -> Generator:
    """Create a generator; the same seed gives the same draws.

    Parameters
    ----------
    seed : int, sequence of int, SeedSequence or Generator, optional
        The seed; by default one from the system. A Generator is returned unchanged.

    Returns
    -------
    Generator
        The generator.

    Raises
    ------
    InputError
        If the seed is not valid.

    Examples
    --------
    >>> a, b = default_rng(7), default_rng(7)
    >>> bool((a.normal(size=3) == b.normal(size=3)).all())
    True
    """
    if isinstance(seed, Generator):
        return seed
    if isinstance(seed, np.random.SeedSequence):
        return Generator(seed)
    try:
        return Generator(np.random.SeedSequence(seed))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"default_rng: a seed must be a non-negative integer, several of them, or None, "
            f"but got {seed!r} ({error})."
        ) from None


class Generator:
    """Generator of random tensors; create one with ``default_rng``.

    Each draw changes the state, so a generator must not be used by several threads at the same time;
    ``spawn`` creates independent generators for them.  ``state`` can be read and set, for checkpoints.

    Parameters
    ----------
    seeds : np.random.SeedSequence
        The seeds of the generator.

    Examples
    --------
    >>> rng = default_rng(0)
    >>> rng.normal(size=(2, 3)).shape
    (2, 3)
    """

    __slots__ = ("_numpy", "_seeds")

    def __init__(self, seeds: np.random.SeedSequence) -> None:
        self._seeds = seeds
        self._numpy = np.random.Generator(np.random.Philox(seeds))

    # The state -----------------------------------------------------------------------------

    @property
    def state(self) -> dict[str, Any]:
        """The complete state of the generator, as a dictionary of numbers and lists that JSON can store."""
        philox: Any = self._numpy.bit_generator.state
        entropy: Any = self._seeds.entropy
        return {
            "bit_generator": "Philox",
            "counter": philox["state"]["counter"].tolist(),
            "key": philox["state"]["key"].tolist(),
            "buffer": philox["buffer"].tolist(),
            "buffer_pos": int(philox["buffer_pos"]),
            "has_uint32": int(philox["has_uint32"]),
            "uinteger": int(philox["uinteger"]),
            "entropy": int(entropy) if np.ndim(entropy) == 0 else [int(e) for e in entropy],
            "spawn_key": [int(k) for k in self._seeds.spawn_key],
            "spawned": int(self._seeds.n_children_spawned),
        }

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or state.get("bit_generator") != "Philox":
            raise InputError("Generator.state: expected a dictionary that Generator.state returned.")
        try:
            seeds = np.random.SeedSequence(
                state["entropy"],
                spawn_key=tuple(state["spawn_key"]),
                n_children_spawned=state["spawned"],
            )
            bits = np.random.Philox(seeds)
            words = {name: np.array(state[name], np.uint64) for name in ("counter", "key", "buffer")}
            numbers = {name: int(state[name]) for name in ("buffer_pos", "has_uint32", "uinteger")}
            philox: Any = {
                "bit_generator": "Philox",
                "state": {"counter": words["counter"], "key": words["key"]},
                "buffer": words["buffer"],
                **numbers,
            }
            bits.state = philox
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ArgumentError(f"Generator.state: the state is incomplete or damaged: {error!r}.") from None
        self._seeds, self._numpy = seeds, np.random.Generator(bits)

    def __getstate__(self) -> dict[str, Any]:
        return self.state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.state = state

    def __reduce__(self) -> Any:
        return default_rng, (0,), self.state

    def spawn(self, count: int) -> list[Generator]:
        """Create generators whose draws are independent of each other and of this one.

        Parameters
        ----------
        count : int
            How many generators.

        Returns
        -------
        list of Generator
            The generators.

        Examples
        --------
        >>> a, b = default_rng(0).spawn(2)
        >>> a.random().item() == b.random().item()
        False
        """
        return [Generator(seeds) for seeds in self._seeds.spawn(operator.index(count))]

    def at(self, *key: int) -> Generator:
        """Create the generator of a key: the same key gives the same draws, whatever was drawn before.

        Parameters
        ----------
        *key : int
            Numbers from 0, for example of a step and a batch.

        Returns
        -------
        Generator
            A generator that is independent of this one and of those of other keys.

        Examples
        --------
        >>> rng = default_rng(0)
        >>> before = rng.at(3, 1).random().item()
        >>> _ = rng.random(5)
        >>> rng.at(3, 1).random().item() == before, rng.at(3, 2).random().item() == before
        (True, False)
        """
        found = (*self._seeds.spawn_key, KEYED, *map(operator.index, key))
        return Generator(np.random.SeedSequence(self._seeds.entropy, spawn_key=found))

    def __repr__(self) -> str:
        return f"Generator(seed={self._seeds.entropy})"

    # Draws that differentiate through their parameters ---------------------------------------

    def random(self, size: Lengths | None = None, dtype: DTypeLike | None = None) -> Tensor:
        """Draw from the uniform distribution on [0, 1).

        Parameters
        ----------
        size : int or tuple of int, optional
            The shape of the result; by default one number.
        dtype : dtype, optional
            A float dtype; by default ``get_default_dtype()``.

        Returns
        -------
        Tensor
            The draws.

        Examples
        --------
        >>> default_rng(0).random(2).shape
        (2,)
        """
        target, u = self._noise("random", "random", size, dtype)
        return u if u.dtype == target else _below(rec.astype(u, dtype=target), 0.0, 1.0)

    def standard_normal(self, size: Lengths | None = None, dtype: DTypeLike | None = None) -> Tensor:
        """Draw from the normal distribution with mean 0 and standard deviation 1.

        Parameters
        ----------
        size : int or tuple of int, optional
            The shape of the result; by default one number.
        dtype : dtype, optional
            A float dtype; by default ``get_default_dtype()``.

        Returns
        -------
        Tensor
            The draws.

        Examples
        --------
        >>> default_rng(0).standard_normal((2, 3)).shape
        (2, 3)
        """
        target, z = self._noise("standard_normal", "standard_normal", size, dtype)
        return narrowed(z, target)

    def normal(
        self,
        loc: ArrayLike = 0.0,
        scale: ArrayLike = 1.0,
        size: Lengths | None = None,
        dtype: DTypeLike | None = None,
    ) -> Tensor:
        """Draw from the normal distribution, as loc + scale · z; gradients flow to ``loc`` and ``scale``.

        Parameters
        ----------
        loc : array_like, optional
            The mean.
        scale : array_like, optional
            The standard deviation, not negative.
        size : int or tuple of int, optional
            The shape of the result; by default the common shape of the parameters.
        dtype : dtype, optional
            A float dtype; by default that of the parameters.

        Returns
        -------
        Tensor
            The draws.

        Raises
        ------
        ArgumentError
            If ``scale`` is negative.

        Examples
        --------
        >>> default_rng(0).normal([0.0, 10.0], 0.1).shape
        (2,)
        """
        target, z, loc, scale = self._noise("normal", "standard_normal", size, dtype, loc, scale)
        return narrowed(loc + _not_negative("normal", scale) * z, target)

    def lognormal(
        self,
        mean: ArrayLike = 0.0,
        sigma: ArrayLike = 1.0,
        size: Lengths | None = None,
        dtype: DTypeLike | None = None,
    ) -> Tensor:
        """Draw exp of a normal draw; gradients flow to ``mean`` and ``sigma``.

        Parameters
        ----------
        mean : array_like, optional
            The mean of the logarithm.
        sigma : array_like, optional
            The standard deviation of the logarithm, not negative.
        size : int or tuple of int, optional
            The shape of the result; by default the common shape of the parameters.
        dtype : dtype, optional
            A float dtype; by default that of the parameters.

        Returns
        -------
        Tensor
            The draws.

        Raises
        ------
        ArgumentError
            If ``sigma`` is negative.

        Examples
        --------
        >>> bool((default_rng(0).lognormal(size=3) > 0).all())
        True
        """
        target, z, mean, sigma = self._noise("lognormal", "standard_normal", size, dtype, mean, sigma)
        return narrowed(rec.exp(mean + _not_negative("lognormal", sigma) * z), target)

    def uniform(
        self,
        low: ArrayLike = 0.0,
        high: ArrayLike = 1.0,
        size: Lengths | None = None,
        dtype: DTypeLike | None = None,
    ) -> Tensor:
        """Draw from the uniform distribution on [low, high); gradients flow to both bounds.

        Parameters
        ----------
        low : array_like, optional
            The lower bound.
        high : array_like, optional
            The upper bound.
        size : int or tuple of int, optional
            The shape of the result; by default the common shape of the parameters.
        dtype : dtype, optional
            A float dtype; by default that of the parameters.

        Returns
        -------
        Tensor
            The draws.

        Examples
        --------
        >>> x = default_rng(0).uniform(-1.0, 1.0, size=3)
        >>> bool((abs(x) <= 1).all())
        True
        """
        target, u, least, most = self._noise("uniform", "random", size, dtype, low, high)
        y = least + (most - least) * u
        return y if y.dtype == target else _below(rec.astype(y, dtype=target), least, most)

    def exponential(
        self, scale: ArrayLike = 1.0, size: Lengths | None = None, dtype: DTypeLike | None = None
    ) -> Tensor:
        """Draw from the exponential distribution; gradients flow to ``scale``.

        Parameters
        ----------
        scale : array_like, optional
            The mean, not negative.
        size : int or tuple of int, optional
            The shape of the result; by default the common shape of the parameters.
        dtype : dtype, optional
            A float dtype; by default that of the parameters.

        Returns
        -------
        Tensor
            The draws.

        Raises
        ------
        ArgumentError
            If ``scale`` is negative.

        Examples
        --------
        >>> bool((default_rng(0).exponential(2.0, size=3) >= 0).all())
        True
        """
        target, e, scale = self._noise("exponential", "standard_exponential", size, dtype, scale)
        return narrowed(_not_negative("exponential", scale) * e, target)

    def laplace(
        self,
        loc: ArrayLike = 0.0,
        scale: ArrayLike = 1.0,
        size: Lengths | None = None,
        dtype: DTypeLike | None = None,
    ) -> Tensor:
        """Draw from the Laplace distribution; gradients flow to ``loc`` and ``scale``.

        Parameters
        ----------
        loc : array_like, optional
            The mean.
        scale : array_like, optional
            The scale, not negative.
        size : int or tuple of int, optional
            The shape of the result; by default the common shape of the parameters.
        dtype : dtype, optional
            A float dtype; by default that of the parameters.

        Returns
        -------
        Tensor
            The draws.

        Raises
        ------
        ArgumentError
            If ``scale`` is negative.

        Examples
        --------
        >>> default_rng(0).laplace([0.0, 1.0], 0.5).shape
        (2,)
        """
        target, e, loc, scale = self._noise("laplace", "standard_exponential", size, dtype, loc, scale)
        shape = e.shape
        signs = made_by_host(lambda: self._numpy.integers(0, 2, shape, np.int8) * 2 - 1, shape, np.int8)
        return narrowed(loc + _not_negative("laplace", scale) * (e * signs), target)

    def logistic(
        self,
        loc: ArrayLike = 0.0,
        scale: ArrayLike = 1.0,
        size: Lengths | None = None,
        dtype: DTypeLike | None = None,
    ) -> Tensor:
        """Draw from the logistic distribution; gradients flow to ``loc`` and ``scale``.

        Parameters
        ----------
        loc : array_like, optional
            The mean.
        scale : array_like, optional
            The scale, not negative.
        size : int or tuple of int, optional
            The shape of the result; by default the common shape of the parameters.
        dtype : dtype, optional
            A float dtype; by default that of the parameters.

        Returns
        -------
        Tensor
            The draws.

        Raises
        ------
        ArgumentError
            If ``scale`` is negative.

        Examples
        --------
        >>> default_rng(0).logistic([0.0, 1.0], 0.5).shape
        (2,)
        """
        target, e, loc, scale = self._noise("logistic", "standard_exponential", size, dtype, loc, scale)
        return narrowed(loc + _not_negative("logistic", scale) * rec.log(rec.expm1(e)), target)

    def gumbel(
        self,
        loc: ArrayLike = 0.0,
        scale: ArrayLike = 1.0,
        size: Lengths | None = None,
        dtype: DTypeLike | None = None,
    ) -> Tensor:
        """Draw from the Gumbel distribution; gradients flow to ``loc`` and ``scale``.

        Parameters
        ----------
        loc : array_like, optional
            The mode.
        scale : array_like, optional
            The scale, not negative.
        size : int or tuple of int, optional
            The shape of the result; by default the common shape of the parameters.
        dtype : dtype, optional
            A float dtype; by default that of the parameters.

        Returns
        -------
        Tensor
            The draws.

        Raises
        ------
        ArgumentError
            If ``scale`` is negative.

        Examples
        --------
        >>> default_rng(0).gumbel(size=(2, 3)).shape
        (2, 3)
        """
        target, e, loc, scale = self._noise("gumbel", "standard_exponential", size, dtype, loc, scale)
        return narrowed(loc - _not_negative("gumbel", scale) * rec.log(e), target)

    def gumbel_softmax(
        self, logits: ArrayLike, tau: ArrayLike = 1.0, *, hard: bool = False, axis: int = -1
    ) -> Tensor:
        """Draw relaxed one-hot vectors with probabilities softmax(logits).

        They are softmax((logits + Gumbel noise) / tau).  Gradients flow to ``logits`` and ``tau``.

        Parameters
        ----------
        logits : array_like
            The logarithms of the probabilities, up to a constant.
        tau : array_like, optional
            The temperature; smaller values give vectors nearer to one-hot.
        hard : bool, optional
            Whether to return exact one-hot vectors with the gradient of the relaxed ones.
        axis : int, optional
            The axis of the classes.

        Returns
        -------
        Tensor
            The vectors, with the shape of ``logits``.

        Examples
        --------
        >>> rng = default_rng(0)
        >>> rng.gumbel_softmax(asarray([0.0, 5.0, 0.0]), hard=True)
        tensor([0., 1., 0.], dtype=float64)
        """
        logits = _as_float("gumbel_softmax", asarray(logits))
        target, wide = logits.dtype, widened(rec, logits)
        where = canonical_axis("gumbel_softmax", axis, wide.ndim)
        scores = (wide + self.gumbel(size=wide.shape, dtype=wide.dtype)) / tau
        soft = rec.softmax(scores, axis=where)
        if not hard:
            return narrowed(soft, target)
        best = argmax(soft, axis=where, keepdims=True)
        places = np.arange(wide.shape[where]).reshape((-1,) + (1,) * (-where - 1))
        one_hot = rec.astype(rec.equal(best, places), dtype=soft.dtype)
        return narrowed(soft + (one_hot - soft).detach(), target)

    # Draws without a gradient --------------------------------------------------------------

    def integers(
        self,
        low: ArrayLike,
        high: ArrayLike | None = None,
        size: Lengths | None = None,
        dtype: DTypeLike = np.int64,
        *,
        endpoint: bool = False,
    ) -> Tensor:
        """Draw integers from [low, high).

        Parameters
        ----------
        low : array_like of int
            The lower bound; with one bound it is ``high``, and the lower bound is 0.
        high : array_like of int, optional
            The upper bound, which is not included.
        size : int or tuple of int, optional
            The shape of the result; by default the common shape of the parameters.
        dtype : dtype, optional
            An integer dtype.
        endpoint : bool, optional
            Whether to include ``high``.

        Returns
        -------
        Tensor
            The draws, which have no gradient.

        Raises
        ------
        ArgumentError
            If the bounds do not fit.

        Examples
        --------
        >>> x = default_rng(0).integers(0, 10, size=5)
        >>> bool(((x >= 0) & (x < 10)).all())
        True
        """
        lower, upper = (None if b is None else array_of(b) for b in (low, high))
        shape = None if size is None else _size("integers", size)

        def draw() -> Any:
            integers: Any = self._numpy.integers
            try:
                return np.asarray(integers(lower, upper, shape, dtype, endpoint))
            except (ValueError, TypeError) as error:
                raise ArgumentError(f"integers: {error}.") from None

        if shape is None:
            shape = np.broadcast_shapes(*(np.shape(b) for b in (lower, upper) if b is not None))
        return wrap(made_by_host(draw, shape, dtype))

    def bernoulli(self, p: ArrayLike, size: Lengths | None = None, dtype: DTypeLike | None = None) -> Tensor:
        """Draw 1 with probability ``p``, and 0 otherwise.

        The draws have no gradient; ``gumbel_softmax`` is a smooth alternative.

        Parameters
        ----------
        p : array_like
            The probabilities.
        size : int or tuple of int, optional
            The shape of the result; by default the common shape of the parameters.
        dtype : dtype, optional
            The dtype of the result; by default that of ``p``.

        Returns
        -------
        Tensor
            The draws.

        Raises
        ------
        ArgumentError
            If a probability is not between 0 and 1.

        Examples
        --------
        >>> default_rng(0).bernoulli([0.0, 1.0])
        tensor([0., 1.], dtype=float64)
        """
        target, u, p = self._noise("bernoulli", "random", size, None, p)
        _check("bernoulli", p, lambda a: (a >= 0) & (a <= 1), "probabilities are between 0 and 1")
        return rec.astype(rec.less(u, p), dtype=np.dtype(dtype or target))

    def categorical(
        self,
        logits: ArrayLike | None = None,
        size: Lengths | None = None,
        *,
        probs: ArrayLike | None = None,
        axis: int = -1,
    ) -> Tensor:
        """Draw classes, given their logits or probabilities.

        The draws have no gradient; ``gumbel_softmax`` is a smooth alternative.

        Parameters
        ----------
        logits : array_like, optional
            The logarithms of the probabilities, up to a constant.
        size : int or tuple of int, optional
            The shape of the result, to which the other axes broadcast.
        probs : array_like, optional
            The probabilities, in place of ``logits``; they need not sum to 1.
        axis : int, optional
            The axis of the classes.

        Returns
        -------
        Tensor
            The classes, as integers.

        Raises
        ------
        ArgumentError
            If both or none of ``logits`` and ``probs`` are given, or a probability is negative.

        Examples
        --------
        >>> default_rng(0).categorical(probs=[0.0, 1.0], size=4)
        tensor([1, 1, 1, 1], dtype=int64)
        """
        given = probs if logits is None else logits
        if given is None or (logits is not None and probs is not None):
            raise ArgumentError("categorical: give either logits or probs=.")
        weights = asarray(given)
        if weights.dtype.kind in "iub":
            weights = rec.astype(weights, dtype=get_default_dtype())
        weights = widened(rec, weights)
        if not weights.ndim or not weights.shape[canonical_axis("categorical", axis, weights.ndim)]:
            raise ShapeError(f"categorical: needs at least one class, but the shape is {weights.shape}.")
        if probs is not None:
            _check("categorical", weights, lambda a: a >= 0, "weights must not be negative")
            with np.errstate(divide="ignore"):
                weights = rec.log(weights)
        weights = rec.moveaxis(
            weights, source=canonical_axis("categorical", axis, weights.ndim), destination=-1
        )
        shape = weights.shape[:-1]
        if size is not None:
            shape = _fitting("categorical", shape, _size("categorical", size))
        noise = self.gumbel(size=(*shape, weights.shape[-1]), dtype=weights.dtype)
        return argmax(weights + noise, axis=-1)

    def permutation(self, x: Any, axis: int = 0) -> Tensor:
        """Return a shuffled copy, or a shuffled range.

        Gradients flow to the shuffled elements.

        Parameters
        ----------
        x : int or array_like
            The elements, or their number: the integers below it are shuffled.
        axis : int, optional
            The axis to shuffle along.

        Returns
        -------
        Tensor
            The shuffled elements.

        Examples
        --------
        >>> sorted(default_rng(0).permutation(4).tolist())
        [0, 1, 2, 3]
        """
        whole = isinstance(x, (int, np.integer))
        x = x if whole else asarray(x)
        where = 0 if whole else canonical_axis("permutation", axis, x.ndim)
        count = int(x) if whole else x.shape[where]
        order = made_by_host(lambda: self._numpy.permutation(count), (count,), np.int64)
        return wrap(order) if whole else _picked(x, order, where)

    def choice(
        self,
        x: Any,
        size: Lengths | None = None,
        *,
        replace: bool = True,
        p: ArrayLike | None = None,
        axis: int = 0,
    ) -> Tensor:
        """Draw elements of a tensor, or integers below a number.

        Gradients flow to the drawn elements.

        Parameters
        ----------
        x : int or array_like
            The elements, or their number.
        size : int or tuple of int, optional
            The shape of the result; by default one element.
        replace : bool, optional
            Whether an element may be drawn repeatedly.
        p : array_like, optional
            The probabilities of the elements; equal by default.
        axis : int, optional
            The axis of the elements.

        Returns
        -------
        Tensor
            The drawn elements.

        Raises
        ------
        ArgumentError
            If ``size`` and ``p`` do not fit the number of elements.

        Examples
        --------
        >>> default_rng(0).choice([5.0, 5.0], size=3)
        tensor([5., 5., 5.], dtype=float64)
        """
        whole = isinstance(x, (int, np.integer))
        x = x if whole else asarray(x)
        where = 0 if whole else canonical_axis("choice", axis, x.ndim)
        count = int(x) if whole else x.shape[where]
        weights = None if p is None else array_of(p)
        shape = _size("choice", size)

        def draw() -> Any:
            try:
                return np.asarray(self._numpy.choice(count, shape, replace, weights))
            except ValueError as error:
                raise ArgumentError(f"choice: {error}.") from None

        drawn = made_by_host(draw, shape, np.int64)
        return wrap(drawn) if whole else _picked(x, drawn, where)

    # Implementation -------------------------------------------------------------------------

    def _noise(self, op: str, kind: str, size: Any, dtype: Any, *params: Any) -> tuple[Any, ...]:
        """Draw noise with the common shape and dtype of the parameters; return the dtype, the noise and them.

        Half precision is computed in float32, and rounded once at the end.
        """
        values = [p if isinstance(p, (int, float)) else _as_float(op, asarray(p)) for p in params]
        tensors = [t for t in values if isinstance(t, Tensor)]
        shape = broadcast_shapes(op, *(t.shape for t in tensors))
        if size is not None:
            shape = _fitting(op, shape, _size(op, size))
        if dtype is None and tensors:
            dtype = np.result_type(*(t.dtype for t in tensors))
        target = _float(op, dtype)
        drawn: Any = np.float64 if target.itemsize > 4 else np.float32

        def draw() -> Any:
            noise = np.asarray(getattr(self._numpy, kind)(shape, drawn))
            # an exponential draw can be 0, where the logarithm is infinite
            return np.maximum(noise, np.finfo(drawn).tiny) if kind == "standard_exponential" else noise

        return (
            target,
            wrap(made_by_host(draw, shape, drawn)),
            *(
                rec.astype(t, dtype=np.dtype(drawn)) if isinstance(t, Tensor) and t.dtype != drawn else t
                for t in values
            ),
        )


def _picked(x: Tensor, drawn: Any, axis: int) -> Tensor:
    """Return the elements at drawn positions along an axis, which is counted from the end."""
    if isinstance(drawn, Lifted):
        return take(x, wrap(drawn), axis=axis)
    return x[(Ellipsis, drawn, *(slice(None),) * (-axis - 1))]


def _below(y: Tensor, low: Any, high: Any) -> Tensor:
    """Return a uniform draw in half precision; numbers that were rounded up to ``high`` become smaller."""
    low, high = (rec.astype(asarray(bound), dtype=y.dtype).detach() for bound in (low, high))
    last = rec.nextafter(high, low)
    hit = rec.logical_and(rec.equal(y, high), rec.not_equal(low, high))
    return y + rec.where(hit, last - y.detach(), 0)


def _size(op: str, size: Any) -> Shape:
    """Check a size; None means one number."""
    shape = () if size is None else canonical_shape(op, size)
    if any(n < 0 for n in shape):
        raise ArgumentError(f"{op}: lengths must not be negative, but size is {shape}.")
    return shape


def _fitting(op: str, shape: Shape, size: Shape) -> Shape:
    if reduced_axes(size, shape) is None:
        raise ShapeError(f"{op}: the parameters have shape {shape}, which does not broadcast to size {size}.")
    return size


def _float(op: str, dtype: Any) -> Any:
    kind = get_default_dtype() if dtype is None else checked_dtype(dtype)
    if not differentiable(kind) or kind.kind == "c":
        raise DTypeError(f"{op}: dtype must be a real float dtype, but is {kind}.")
    return kind


def _as_float(op: str, t: Tensor) -> Tensor:
    """Convert integer parameters to floats."""
    if t.dtype.kind == "c":
        raise DTypeError(f"{op}: parameters must be real numbers, but got {t.dtype}.")
    return t if differentiable(t.dtype) else rec.astype(t, dtype=get_default_dtype())


def _check(op: str, value: Any, holds: Callable[[Any], Any], what: str) -> None:
    """Raise if the values of a parameter are out of range; inside a transform they are not known."""

    def look(data: np.ndarray[Any, Any]) -> None:
        bad = data[~holds(data)]
        if bad.size:
            raise ArgumentError(f"{op}: {what}, but there is {bad.ravel()[0]}.")

    if isinstance(value, Tensor):
        check(look, value)
    else:
        look(np.asarray(value))


def _not_negative(op: str, scale: Any) -> Any:
    _check(op, scale, lambda a: ~(a < 0), "scale must not be negative")
    return scale


explain(__name__)
