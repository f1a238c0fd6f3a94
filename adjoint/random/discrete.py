"""Draws of integers, classes, orders and elements, which are not continuous in their parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.config import get_default_dtype
from adjoint.core.convert import array_of, asarray
from adjoint.core.lifted import made_by_host
from adjoint.core.namespace import rec
from adjoint.core.shapes import canonical_axis
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import ArgumentError, ShapeError
from adjoint.ops.extremes import argmax
from adjoint.ops.half import widened
from adjoint.random.continuous import Continuous
from adjoint.random.noise import broadcast_size, check_values, checked_size, draws_doc, elements_at
from adjoint.typing import ArrayLike, DTypeLike, Lengths

__all__ = ["Discrete"]


def _is_probability(op: str, p: Any) -> None:
    check_values(op, p, lambda a: (a >= 0) & (a <= 1), "probabilities are between 0 and 1")


class Discrete(Continuous):
    """Base class of ``Generator``: the distributions whose draws have no gradients to their parameters."""

    __slots__ = ()

    @draws_doc
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
            The lower bound.  If ``high`` is not passed, this is the upper bound, and the lower bound is 0.
        high : array_like of int, optional
            The upper bound, which is not included.
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
            If ``low`` is not below ``high``, or a bound is out of the range of the dtype.

        >>> x = ad.random.default_rng(0).integers(0, 10, size=5)
        >>> bool(((x >= 0) & (x < 10)).all())
        True
        """
        lower, upper = (None if b is None else array_of(b) for b in (low, high))
        shape = None if size is None else checked_size("integers", size)

        def draw() -> Any:
            integers: Any = self._numpy.integers
            try:
                return np.asarray(integers(lower, upper, shape, dtype, endpoint))
            except (ValueError, TypeError) as error:
                raise ArgumentError(f"integers: {error}.") from None

        if shape is None:
            shape = np.broadcast_shapes(*(np.shape(b) for b in (lower, upper) if b is not None))
        return wrap(made_by_host(draw, shape, dtype))

    @draws_doc
    def bernoulli(self, p: ArrayLike, size: Lengths | None = None, dtype: DTypeLike | None = None) -> Tensor:
        """Draw 1 with probability ``p``, and 0 otherwise.

        The draws have no gradient.  ``gumbel_softmax`` is a smooth alternative; ``ad.random.score_function``
        gives a gradient to functions of them.

        Parameters
        ----------
        p : array_like
            The probabilities.
        dtype : dtype, optional
            The dtype of the result; by default that of ``p``.

        Raises
        ------
        ArgumentError
            If a probability is not between 0 and 1.

        >>> ad.random.default_rng(0).bernoulli([0.0, 1.0])
        tensor([0., 1.], dtype=float64)
        """
        target, u, p = self._noise("bernoulli", "random", size, None, p, check=_is_probability)
        return rec.astype(rec.less(u, p), dtype=np.dtype(dtype or target))

    @draws_doc
    def poisson(self, lam: ArrayLike = 1.0, size: Lengths | None = None) -> Tensor:
        """Draw from the Poisson distribution.

        The draws have no gradient; ``ad.random.score_function`` gives one to functions of them.

        Parameters
        ----------
        lam : array_like, optional
            The mean, not negative.

        Returns
        -------
        Tensor
            The draws, as integers.

        Raises
        ------
        ArgumentError
            If ``lam`` is negative.

        >>> ad.random.default_rng(0).poisson([0.0, 5.0], size=(3, 2)).shape
        (3, 2)
        """
        check_values("poisson", lam, lambda a: a >= 0, "the mean must not be negative")
        _, u, lam = self._noise("poisson", "random", size, np.float64, lam)
        return rec.astype(rec.poisson_quantile(u, lam), dtype=np.dtype(np.int64))

    @draws_doc
    def categorical(
        self,
        logits: ArrayLike | None = None,
        size: Lengths | None = None,
        *,
        probs: ArrayLike | None = None,
        axis: int = -1,
    ) -> Tensor:
        """Draw classes, given their logits or probabilities.

        The draws have no gradient.  ``gumbel_softmax`` is a smooth alternative; ``ad.random.score_function``
        gives a gradient to functions of them.

        Parameters
        ----------
        logits : array_like, optional
            The logarithms of the probabilities, up to a constant.
        size : int or tuple of int, optional
            The shape of the result; by default the shape of the argument without ``axis``, which must
            broadcast to it.
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

        >>> ad.random.default_rng(0).categorical(probs=[0.0, 1.0], size=4)
        tensor([1, 1, 1, 1], dtype=int64)
        """
        given = probs if logits is None else logits
        if given is None or (logits is not None and probs is not None):
            raise ArgumentError("categorical: pass exactly one of logits and probs=.")
        weights = asarray(given)
        if weights.dtype.kind in "iub":
            weights = rec.astype(weights, dtype=get_default_dtype())
        weights = widened(rec, weights)
        where = canonical_axis("categorical", axis, weights.ndim) if weights.ndim else 0
        if not weights.ndim or not weights.shape[where]:
            raise ShapeError(
                f"categorical: there must be at least one class, but the shape is {weights.shape}."
            )
        if probs is not None:
            weights = _logarithms(weights)
        weights = rec.moveaxis(weights, source=where, destination=-1)
        shape = weights.shape[:-1]
        if size is not None:
            shape = broadcast_size("categorical", shape, checked_size("categorical", size))
        return argmax(weights + self.gumbel(size=(*shape, weights.shape[-1]), dtype=weights.dtype), axis=-1)

    @draws_doc
    def permutation(self, x: Any, axis: int = 0) -> Tensor:
        """Return a shuffled copy of a tensor, or the integers below a number in random order.

        Gradients flow to the shuffled elements.

        Parameters
        ----------
        x : int or array_like
            The elements, or an integer n, which stands for the integers from 0 to n - 1.
        axis : int, optional
            The axis to shuffle along.

        Returns
        -------
        Tensor
            The shuffled elements.

        >>> sorted(ad.random.default_rng(0).permutation(4).tolist())
        [0, 1, 2, 3]
        """
        whole = isinstance(x, (int, np.integer))
        x = x if whole else asarray(x)
        where = 0 if whole else canonical_axis("permutation", axis, x.ndim)
        count = int(x) if whole else x.shape[where]
        order = made_by_host(lambda: self._numpy.permutation(count), (count,), np.int64)
        return wrap(order) if whole else elements_at(x, order, where)

    @draws_doc
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
            The elements, or an integer n, which stands for the integers from 0 to n - 1.
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
            If ``size`` or ``p`` does not match the number of elements.

        >>> ad.random.default_rng(0).choice([5.0, 5.0], size=3)
        tensor([5., 5., 5.], dtype=float64)
        """
        whole = isinstance(x, (int, np.integer))
        x = x if whole else asarray(x)
        where = 0 if whole else canonical_axis("choice", axis, x.ndim)
        count = int(x) if whole else x.shape[where]
        weights = None if p is None else array_of(p)
        shape = checked_size("choice", size)

        def draw() -> Any:
            try:
                return np.asarray(self._numpy.choice(count, shape, replace, weights))
            except ValueError as error:
                raise ArgumentError(f"choice: {error}.") from None

        drawn = made_by_host(draw, shape, np.int64)
        return wrap(drawn) if whole else elements_at(x, drawn, where)


def _logarithms(weights: Tensor) -> Tensor:
    check_values("categorical", weights, lambda a: a >= 0, "weights must not be negative")
    with np.errstate(divide="ignore"):
        return rec.log(weights)
