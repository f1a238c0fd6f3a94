"""Random tensors from an explicit generator: draws that differentiate through their parameters.

``default_rng(seed)`` returns a ``Generator`` on NumPy's counter-based Philox.  There is no global
generator.  A draw from a continuous distribution is a smooth function of its parameters and of
noise that does not depend on them (``normal``: loc + scale · z), so gradients flow to ``loc``,
``scale``, ``logits``.  A draw of whole numbers or classes jumps; no gradient flows through it, and
asking for one only through it is a ``NoGradientError``.

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
from typing import Any, NoReturn

import numpy as np

from adjoint.config import get_default_dtype
from adjoint.core.convert import array_of, asarray, checked_dtype
from adjoint.core.namespace import rec
from adjoint.core.shapes import Shape, broadcast_shapes, canonical_axis, canonical_shape, reduced_axes
from adjoint.core.tensor import Tensor, differentiable, wrap
from adjoint.errors import ArgumentError, DTypeError, InputError, ShapeError
from adjoint.hints import explain
from adjoint.ops.half import widened
from adjoint.ops.reduce import argmax, narrowed

__all__ = ["Generator", "default_rng"]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> NoReturn:
    """Explain what people look for here: NumPy's global draws."""
    draw = not name.startswith("_") and hasattr(Generator, name)
    cure = (
        f".  There is no global generator: ad.random.default_rng(seed).{name} is one's own." if draw else ""
    )
    raise AttributeError(f"module 'adjoint.random' has no attribute {name!r}{cure}")


def default_rng(seed: Any = None) -> Generator:
    """Make a generator: the same seed gives the same draws; None takes one from the system.

    ``seed`` is a whole number, several of them, a ``np.random.SeedSequence``, or a Generator, which
    is returned as it is.

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
            f"default_rng: a seed is a whole number that is not negative, several of them, or None, "
            f"but got {seed!r} ({error})."
        ) from None


class Generator:
    """Draws random tensors; made by ``default_rng``.

    Not shared between threads without care: each draw moves the state.  ``spawn`` makes independent
    generators for threads and workers.  ``state`` can be read and set, for checkpoints.
    """

    __slots__ = ("_numpy", "_seeds")

    def __init__(self, seeds: np.random.SeedSequence) -> None:
        self._seeds = seeds
        self._numpy = np.random.Generator(np.random.Philox(seeds))

    # The state -----------------------------------------------------------------------------

    @property
    def state(self) -> dict[str, Any]:
        """All that decides the coming draws and spawns: plain numbers and lists, fit for JSON."""
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
            raise InputError("Generator.state is set to what Generator.state returned before.")
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
            raise ArgumentError(f"Generator.state: this is not a whole state: {error!r}.") from None
        self._seeds, self._numpy = seeds, np.random.Generator(bits)

    def __getstate__(self) -> dict[str, Any]:
        return self.state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.state = state

    def __reduce__(self) -> Any:
        return default_rng, (0,), self.state

    def spawn(self, count: int) -> list[Generator]:
        """Make ``count`` generators whose draws are independent of this one's and each other's."""
        return [Generator(seeds) for seeds in self._seeds.spawn(operator.index(count))]

    def __repr__(self) -> str:
        return f"Generator(seed={self._seeds.entropy})"

    # Draws that differentiate through their parameters ---------------------------------------

    def random(self, size: Any = None, dtype: Any = None) -> Tensor:
        """Draw numbers evenly from [0, 1)."""
        target, u = self._noise("random", "random", size, dtype)
        return u if u.dtype == target else _below(rec.astype(u, dtype=target), 0.0, 1.0)

    def standard_normal(self, size: Any = None, dtype: Any = None) -> Tensor:
        """Draw from the normal distribution with mean 0 and deviation 1."""
        target, z = self._noise("standard_normal", "standard_normal", size, dtype)
        return narrowed(z, target)

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None, dtype: Any = None) -> Tensor:
        """Draw loc + scale · z with z standard normal; gradients flow to ``loc`` and ``scale``."""
        target, z, loc, scale = self._noise("normal", "standard_normal", size, dtype, loc, scale)
        return narrowed(loc + _not_negative("normal", scale) * z, target)

    def lognormal(self, mean: Any = 0.0, sigma: Any = 1.0, size: Any = None, dtype: Any = None) -> Tensor:
        """Draw exp of a normal draw; gradients flow to ``mean`` and ``sigma``."""
        target, z, mean, sigma = self._noise("lognormal", "standard_normal", size, dtype, mean, sigma)
        return narrowed(rec.exp(mean + _not_negative("lognormal", sigma) * z), target)

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None, dtype: Any = None) -> Tensor:
        """Draw low + (high - low) · u with u from [0, 1); gradients flow to both bounds."""
        target, u, low, high = self._noise("uniform", "random", size, dtype, low, high)
        y = low + (high - low) * u
        return y if y.dtype == target else _below(rec.astype(y, dtype=target), low, high)

    def exponential(self, scale: Any = 1.0, size: Any = None, dtype: Any = None) -> Tensor:
        """Draw from the exponential distribution of mean ``scale``, to which gradients flow."""
        target, e, scale = self._noise("exponential", "standard_exponential", size, dtype, scale)
        return narrowed(_not_negative("exponential", scale) * e, target)

    def laplace(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None, dtype: Any = None) -> Tensor:
        """Draw from the double exponential distribution; gradients flow to ``loc`` and ``scale``."""
        target, e, loc, scale = self._noise("laplace", "standard_exponential", size, dtype, loc, scale)
        signs = self._numpy.integers(0, 2, e.shape, np.int8) * 2 - 1
        return narrowed(loc + _not_negative("laplace", scale) * (e * signs), target)

    def logistic(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None, dtype: Any = None) -> Tensor:
        """Draw from the logistic distribution; gradients flow to ``loc`` and ``scale``."""
        target, e, loc, scale = self._noise("logistic", "standard_exponential", size, dtype, loc, scale)
        return narrowed(loc + _not_negative("logistic", scale) * rec.log(rec.expm1(e)), target)

    def gumbel(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None, dtype: Any = None) -> Tensor:
        """Draw loc - scale · log(e) with e exponential; gradients flow to ``loc`` and ``scale``."""
        target, e, loc, scale = self._noise("gumbel", "standard_exponential", size, dtype, loc, scale)
        return narrowed(loc - _not_negative("gumbel", scale) * rec.log(e), target)

    def gumbel_softmax(self, logits: Any, tau: Any = 1.0, *, hard: bool = False, axis: int = -1) -> Tensor:
        """Draw softened one-hot vectors along ``axis`` with probabilities softmax(logits).

        They are softmax((logits + Gumbel noise) / tau): the smaller ``tau``, the nearer to
        one-hot.  ``hard=True`` gives exact one-hot vectors with the gradient of the soft ones
        (straight through).  Gradients flow to ``logits`` and ``tau``.

        >>> rng = default_rng(0)
        >>> rng.gumbel_softmax(asarray([0.0, 5.0, 0.0]), hard=True)
        tensor([0., 1., 0.], dtype=float64)
        """
        logits = _as_float("gumbel_softmax", asarray(logits))
        target, logits = logits.dtype, widened(rec, logits)
        where = canonical_axis("gumbel_softmax", axis, logits.ndim)
        scores = (logits + self.gumbel(size=logits.shape, dtype=logits.dtype)) / tau
        soft = rec.softmax(scores, axis=where)
        if not hard:
            return narrowed(soft, target)
        best = argmax(soft, axis=where, keepdims=True)
        places = np.arange(logits.shape[where]).reshape((-1,) + (1,) * (-where - 1))
        one_hot = rec.astype(rec.equal(best, places), dtype=soft.dtype)
        return narrowed(soft + (one_hot - soft).detach(), target)

    # Draws without a gradient --------------------------------------------------------------

    def integers(
        self, low: Any, high: Any = None, size: Any = None, dtype: Any = np.int64, *, endpoint: bool = False
    ) -> Tensor:
        """Draw whole numbers from [low, high), or [0, low) for one bound; no gradient."""
        lower, upper = (None if b is None else array_of(b) for b in (low, high))
        shape = None if size is None else _size("integers", size)
        draw: Any = self._numpy.integers
        try:
            drawn = draw(lower, upper, shape, dtype, endpoint)
        except (ValueError, TypeError) as error:
            raise ArgumentError(f"integers: {error}.") from None
        return wrap(np.asarray(drawn))

    def bernoulli(self, p: Any, size: Any = None, dtype: Any = None) -> Tensor:
        """Draw 1 with probability ``p`` and else 0, in the dtype of ``p``; no gradient.

        The result jumps with ``p``, so none can flow.  ``gumbel_softmax`` is its smooth relative.
        """
        target, u, p = self._noise("bernoulli", "random", size, None, p)
        _check("bernoulli", p, lambda a: (a >= 0) & (a <= 1), "probabilities are between 0 and 1")
        return rec.astype(rec.less(u, p), dtype=np.dtype(dtype or target))

    def categorical(
        self, logits: Any = None, size: Any = None, *, probs: Any = None, axis: int = -1
    ) -> Tensor:
        """Draw classes along ``axis``, given their logits (log-probabilities up to a constant); no gradient.

        Or give ``probs=``, weights that need not sum to 1.  ``size`` is the shape of the result, to
        which the other axes of ``logits`` broadcast.  ``gumbel_softmax`` is its smooth relative.

        >>> default_rng(0).categorical(probs=[0.0, 1.0], size=4)
        tensor([1, 1, 1, 1], dtype=int64)
        """
        if (logits is None) == (probs is None):
            raise ArgumentError("categorical: give either logits or probs=.")
        weights = asarray(probs if logits is None else logits)
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
        """Shuffle ``x`` along ``axis``, or the numbers below ``x`` if it is a whole number.

        No gradient flows to the order; the values of a shuffled tensor keep theirs.
        """
        if isinstance(x, (int, np.integer)):
            return wrap(self._numpy.permutation(int(x)))
        x = asarray(x)
        where = canonical_axis("permutation", axis, x.ndim)
        order = self._numpy.permutation(x.shape[where])
        return x[(Ellipsis, order, *(slice(None),) * (-where - 1))]

    def choice(
        self, x: Any, size: Any = None, *, replace: bool = True, p: Any = None, axis: int = 0
    ) -> Tensor:
        """Draw elements of ``x`` along ``axis``, or numbers below ``x`` if it is a whole number.

        ``p`` are the probabilities of the elements.  No gradient flows to the choice; the values
        of a tensor keep theirs.
        """
        whole = isinstance(x, (int, np.integer))
        x = x if whole else asarray(x)
        where = 0 if whole else canonical_axis("choice", axis, x.ndim)
        count = int(x) if whole else x.shape[where]
        weights = None if p is None else array_of(p)
        try:
            drawn = self._numpy.choice(count, _size("choice", size), replace, weights)
        except ValueError as error:
            raise ArgumentError(f"choice: {error}.") from None
        if whole:
            return wrap(np.asarray(drawn))
        return x[(Ellipsis, drawn, *(slice(None),) * (-where - 1))]

    # How ------------------------------------------------------------------------------------

    def _noise(self, op: str, kind: str, size: Any, dtype: Any, *params: Any) -> tuple[Any, ...]:
        """Draw noise of the common shape and dtype of the parameters; return the dtype, the noise and them.

        For half precision all are float32: what is made of them is rounded once, at the end.
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
        noise = np.asarray(getattr(self._numpy, kind)(shape, drawn))
        if kind == "standard_exponential":  # it can be 0, the pole of its logarithm
            noise = np.maximum(noise, np.finfo(drawn).tiny)
        return (
            target,
            wrap(noise),
            *(
                rec.astype(t, dtype=noise.dtype) if isinstance(t, Tensor) and t.dtype != drawn else t
                for t in values
            ),
        )


def _below(y: Tensor, low: Any, high: Any) -> Tensor:
    """Return a uniform draw in half precision; numbers that were rounded up to ``high`` move below it."""
    low, high = (rec.astype(asarray(bound), dtype=y.dtype).detach() for bound in (low, high))
    last = rec.nextafter(high, low)
    hit = rec.logical_and(rec.equal(y, high), rec.not_equal(low, high))
    return y + rec.where(hit, last - y.detach(), 0)


def _size(op: str, size: Any) -> Shape:
    """Check a size; None is one number."""
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
        raise DTypeError(f"{op}: draws are float numbers, but dtype is {kind}.")
    return kind


def _as_float(op: str, t: Tensor) -> Tensor:
    """Make whole numbers, as parameters, floats."""
    if t.dtype.kind == "c":
        raise DTypeError(f"{op}: parameters are real numbers, but got {t.dtype}.")
    return t if differentiable(t.dtype) else rec.astype(t, dtype=get_default_dtype())


def _check(op: str, value: Any, holds: Callable[[Any], Any], what: str) -> None:
    """Raise if the values of a parameter are out of range; inside a transform they are not seen."""
    data = value._data if isinstance(value, Tensor) else np.asarray(value)
    if isinstance(data, np.ndarray):
        bad = data[~holds(data)]
        if bad.size:
            raise ArgumentError(f"{op}: {what}, but there is {bad.ravel()[0]}.")


def _not_negative(op: str, scale: Any) -> Any:
    _check(op, scale, lambda a: ~(a < 0), "scale must not be negative")
    return scale


explain(__name__)
