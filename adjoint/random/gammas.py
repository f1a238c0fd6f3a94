"""Draws of the gamma distribution and its relatives, with gradients to their parameters.

A draw is the quantile of a uniform number.  The derivative of a quantile x with respect to a parameter a is
-∂F/∂a / p(x), where F is the distribution function and p the density (implicit reparameterisation).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.shapes import canonical_axis
from adjoint.core.tensor import Tensor
from adjoint.errors import ShapeError
from adjoint.ops.fused import softmax
from adjoint.ops.reduce import narrowed
from adjoint.ops.special import betaincinv, gammaincinv
from adjoint.random.noise import (
    Noise,
    as_float,
    broadcast_size,
    check_values,
    checked_size,
    positive_draws_doc,
)  # fmt: skip
from adjoint.typing import ArrayLike, DTypeLike, Lengths

__all__ = ["Gammas"]


class Gammas(Noise):
    """Base class of ``Generator``: draws that are computed as quantiles of uniform numbers, with SciPy."""

    __slots__ = ()

    @positive_draws_doc
    def gamma(
        self,
        shape: ArrayLike,
        scale: ArrayLike = 1.0,
        size: Lengths | None = None,
        dtype: DTypeLike | None = None,
    ) -> Tensor:
        """Draw from the gamma distribution; gradients flow to ``shape`` and ``scale``.

        Parameters
        ----------
        shape : array_like
            The shape, positive.
        scale : array_like, optional
            The scale, positive.

        >>> shape = ad.tensor(2.0, requires_grad=True)
        >>> x = ad.random.default_rng(0).gamma(shape, 3.0, size=5000)
        >>> x.mean().backward()  # the mean is shape · scale
        >>> abs(shape.grad.item() - 3) < 0.1
        True
        """
        target, u, a, factor = self._quantiles("gamma", size, dtype, shape, scale)
        return _inside(factor * gammaincinv(a, u), target)

    @positive_draws_doc
    def chisquare(self, df: ArrayLike, size: Lengths | None = None, dtype: DTypeLike | None = None) -> Tensor:
        """Draw from the chi-square distribution; gradients flow to ``df``.

        >>> bool((ad.random.default_rng(0).chisquare(3.0, size=4) > 0).all())
        True
        """
        target, u, n = self._quantiles("chisquare", size, dtype, df)
        return _inside(2 * gammaincinv(n / 2, u), target)

    @positive_draws_doc
    def beta(
        self, a: ArrayLike, b: ArrayLike, size: Lengths | None = None, dtype: DTypeLike | None = None
    ) -> Tensor:
        """Draw from the beta distribution; gradients flow to ``a`` and ``b``.

        Parameters
        ----------
        a : array_like
            The first parameter, positive.
        b : array_like
            The second parameter, positive.

        Returns
        -------
        Tensor
            The draws, between 0 and 1.  They are never rounded to 0 or 1.

        >>> a = ad.tensor(2.0, requires_grad=True)
        >>> ad.random.default_rng(0).beta(a, 3.0, size=5000).mean().backward()
        >>> abs(a.grad.item() - 3 / 25) < 0.01  # the mean is a / (a + b)
        True
        """
        target, u, p, q = self._quantiles("beta", size, dtype, a, b)
        return _inside(betaincinv(p, q, u), target, 1.0)

    @positive_draws_doc
    def dirichlet(
        self, alpha: ArrayLike, size: Lengths | None = None, dtype: DTypeLike | None = None
    ) -> Tensor:
        """Draw from the Dirichlet distribution; gradients flow to ``alpha``.

        Parameters
        ----------
        alpha : array_like
            The parameters, positive, along the last axis.
        size : int or tuple of int, optional
            The shape of the result without its last axis; by default that of ``alpha``.

        Returns
        -------
        Tensor
            The draws; they are positive and add up to 1 along the last axis.

        >>> ad.random.default_rng(0).dirichlet([1.0, 2.0, 3.0], size=4).sum(-1).numpy().round(6)
        array([1., 1., 1., 1.])
        """
        alpha = as_float("dirichlet", asarray(alpha))
        if not alpha.ndim or not alpha.shape[canonical_axis("dirichlet", -1, alpha.ndim)]:
            raise ShapeError(
                f"dirichlet: the last axis of alpha must not be empty, but alpha has shape {alpha.shape}."
            )
        shape = alpha.shape
        if size is not None:
            shape = (*broadcast_size("dirichlet", shape[:-1], checked_size("dirichlet", size)), shape[-1])
        # A gamma draw with shape a is a draw with shape a + 1 times u^(1/a), where u is uniform.  Logarithms
        # are used, because the draw itself underflows for small a.
        target, u, a = self._quantiles("dirichlet", shape, dtype, alpha)
        _, v, _ = self._quantiles("dirichlet", shape, dtype, alpha)
        return _inside(softmax(rec.log(gammaincinv(a + 1, u)) + rec.log(v) / a, axis=-1), target, 1.0)

    @positive_draws_doc
    def standard_t(
        self, df: ArrayLike, size: Lengths | None = None, dtype: DTypeLike | None = None
    ) -> Tensor:
        """Draw from Student's t distribution; gradients flow to ``df``.

        >>> ad.random.default_rng(0).standard_t(5.0, size=3).shape
        (3,)
        """
        target, u, n = self._quantiles("standard_t", size, dtype, df)
        _, z = self._noise("standard_t", "standard_normal", u.shape, np.float64)
        return narrowed(z * rec.sqrt(n / 2 / gammaincinv(n / 2, u)), target)

    def _quantiles(self, op: str, size: Any, dtype: Any, *params: Any) -> tuple[Any, ...]:
        """Return the dtype of the draws, an array of uniform numbers in (0, 1), and float64 parameters.

        Raise if a parameter is not positive.  ``op`` is the name of the caller, for errors.
        """
        for value in params:
            check_values(op, value, lambda a: a > 0, "parameters must be positive")
        given = [p if isinstance(p, (int, float)) else as_float(op, asarray(p)) for p in params]
        dtypes = [p.dtype for p in given if isinstance(p, Tensor)]
        target = self._target(op, dtype, dtypes)
        _, u, *values = self._noise(op, "random", size, np.float64, *given)
        return target, rec.maximum(u, 2.0**-54), *values


def _inside(x: Tensor, target: Any, high: float | None = None) -> Tensor:
    """Round the draws ``x`` to the dtype ``target``, but never to 0 or ``high``.

    Draws that rounding would make 0 or ``high`` get the nearest number of the dtype in between.
    """
    y = narrowed(x, target)
    least = np.finfo(target if target.kind == "f" else np.float32).tiny
    y = y + rec.where(y <= 0, least - y.detach(), 0)
    if high is not None:
        last = 1 - np.finfo(target).epsneg if target.kind == "f" else 1 - 2.0**-8
        y = y + rec.where(y >= high, last - y.detach(), 0)
    return y
