"""Multivariate distributions: ``logpdf`` and ``pdf``, or ``logpmf`` and ``pmf``."""

from __future__ import annotations

import math
from typing import Any

from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError, ShapeError
from adjoint.ops.create import eye, zeros
from adjoint.ops.decompositions import cholesky
from adjoint.ops.join import concat
from adjoint.ops.linalg import diagonal, trace
from adjoint.ops.reduce import floating, sum
from adjoint.ops.shape import moveaxis
from adjoint.ops.solvers import solve, solve_triangular
from adjoint.ops.special import multigammaln
from adjoint.scipy.fallback import drop_in_methods, scipy_method
from adjoint.scipy.stats.base import Frozen, quiet

__all__ = ["dirichlet", "multinomial", "multivariate_normal", "multivariate_t", "wishart"]


class Multivariate:
    """A distribution of vectors or matrices; parameters that SciPy has no default for come first.

    Parameters
    ----------
    name : str
        SciPy's name.
    """

    def __init_subclass__(cls) -> None:
        drop_in_methods(cls)

    def __init__(self, name: str) -> None:
        self.name = self.__name__ = name
        self.__module__ = "scipy.stats"
        self.__doc__ = f"The distribution ``scipy.stats.{name}`` on tensors."

    def __call__(self, *args: Any, **kwargs: Any) -> Frozen:
        """Return this distribution with the given parameters, for methods without them."""
        return Frozen(self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return SciPy's own method, which raises an error for a tensor that requires grad."""
        if name.startswith("_") or "name" not in vars(self):
            raise AttributeError(name)
        return scipy_method(self.name, name)

    def __repr__(self) -> str:
        return f"<distribution {self.name!r}>"


class _Density(Multivariate):
    def logpdf(self, x: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the logarithm of the probability density at ``x``."""
        raise NotImplementedError

    def pdf(self, x: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the probability density at ``x``."""
        return rec.exp(self.logpdf(x, *args, **kwargs))


def _located(op: str, x: Any, loc: Any, shape: Any) -> tuple[Tensor, Tensor, tuple[int, ...], int]:
    """Return the deviations x - loc as columns, a Cholesky factor, the result's shape, and the dimension.

    The Cholesky factor is that of ``shape``, the covariance or scale matrix.
    """
    matrix = floating(op, 1.0 if shape is None else shape)
    centre = None if loc is None else floating(op, loc)
    dim = matrix.shape[0] if matrix.ndim else 1 if centre is None or not centre.ndim else centre.shape[0]
    if matrix.ndim == 0 or matrix.ndim == 1:
        matrix = matrix * eye(dim, dtype=matrix.dtype)
    if matrix.shape != (dim, dim) or (centre is not None and centre.ndim and centre.shape != (dim,)):
        where = () if centre is None else centre.shape
        raise ShapeError(
            f"{op}: the matrix must have shape (n, n) and the location (n,), but they have shapes "
            f"{matrix.shape} and {where}."
        )
    x = floating(op, x)
    if x.ndim == 0 or (x.ndim == 1 and dim == 1):
        x = rec.reshape(x, shape=(*x.shape, 1))
    if x.shape[-1] != dim:
        raise ShapeError(f"{op}: the last axis of x must have length {dim}, but x has shape {x.shape}.")
    away = x if centre is None else x - centre
    lead = away.shape[:-1]
    columns = rec.matrix_transpose(rec.reshape(away, shape=(math.prod(lead), dim)))
    return columns, cholesky(matrix), lead, dim


def _distance(columns: Tensor, factor: Tensor, lead: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the squared Mahalanobis distances of ``columns``, and the logarithm of the determinant.

    The determinant is that of the matrix with the Cholesky factor ``factor``.  ``lead`` is the shape of the
    distances.
    """
    z = solve_triangular(factor, columns, lower=True)
    squares = rec.reshape(sum(z * z, axis=0), shape=lead)
    return squares, 2 * sum(rec.log(diagonal(factor)))


class _Normal(_Density):
    def logpdf(self, x: Any, mean: Any = None, cov: Any = 1, allow_singular: bool = False) -> Tensor:
        """Return the logarithm of the density at ``x``; the covariance ``cov`` must be positive definite."""
        if allow_singular:
            raise InputError(
                "multivariate_normal: allow_singular=True is not supported for tensors, because the density "
                "of a singular covariance has no derivative."
            )
        columns, factor, lead, dim = _located("multivariate_normal", x, mean, cov)
        squares, log_det = _distance(columns, factor, lead)
        return -0.5 * (squares + log_det + dim * math.log(2 * math.pi))

    def entropy(self, mean: Any = None, cov: Any = 1) -> Tensor:
        """Return the differential entropy; the covariance must be positive definite."""
        centre = 0.0 if mean is None else mean
        _, factor, _, dim = _located("multivariate_normal", centre, mean, cov)
        return sum(rec.log(diagonal(factor))) + 0.5 * dim * (1 + math.log(2 * math.pi))


class _Student(_Density):
    def logpdf(self, x: Any, loc: Any = None, shape: Any = 1, df: Any = 1) -> Tensor:
        """Return the logarithm of the density; the matrix ``shape`` must be positive definite."""
        columns, factor, lead, dim = _located("multivariate_t", x, loc, shape)
        squares, log_det = _distance(columns, factor, lead)
        df = floating("multivariate_t", df)
        size = rec.gammaln(0.5 * (df + dim)) - rec.gammaln(0.5 * df) - 0.5 * dim * rec.log(df * math.pi)
        return size - 0.5 * log_det - 0.5 * (df + dim) * rec.log1p(squares / df)


class _Dirichlet(_Density):
    @quiet
    def logpdf(self, x: Any, alpha: Any) -> Tensor:
        """Return the logarithm of the density at ``x``, whose components are along the first axis."""
        x, alpha = floating("dirichlet", x), floating("dirichlet", alpha)
        if x.shape[0] == alpha.shape[0] - 1:
            x = concat([x, 1 - sum(x, axis=0, keepdims=True)])
        if x.shape[0] != alpha.shape[0]:
            raise ShapeError(
                f"dirichlet: the first axis of x must have length {alpha.shape[0]} or {alpha.shape[0] - 1}, "
                f"but x has shape {x.shape}."
            )
        powers = rec.reshape(alpha - 1, shape=(-1, *(1,) * (x.ndim - 1)))
        size = rec.gammaln(sum(alpha)) - sum(rec.gammaln(alpha))
        return size + sum(rec.xlogy(powers, x), axis=0)


class _Multinomial(Multivariate):
    @quiet
    def logpmf(self, x: Any, n: Any, p: Any) -> Tensor:
        """Return the logarithm of the probability.

        The last element of ``p`` is not used: it is computed as 1 minus the sum of the others.
        """
        x, n, p = (floating("multinomial", v) for v in (x, n, p))
        p = concat([p[..., :-1], 1 - sum(p[..., :-1], axis=-1, keepdims=True)], axis=-1)
        value = rec.gammaln(n + 1) + sum(rec.xlogy(x, p) - rec.gammaln(x + 1), axis=-1)
        outside = (sum(x, axis=-1) != n) | rec.any(x < 0, axis=(-1,), keepdims=False)
        return rec.where(outside, -math.inf, value)

    def pmf(self, x: Any, n: Any, p: Any) -> Tensor:
        """Return the probability of each outcome."""
        return rec.exp(self.logpmf(x, n, p))


class _Wishart(_Density):
    def logpdf(self, x: Any, df: Any, scale: Any) -> Tensor:
        """Return the logarithm of the density; batch axes of ``x`` follow the two axes of the matrices."""
        x, scale = floating("wishart", x), floating("wishart", scale)
        if scale.ndim == 0:
            scale = rec.reshape(scale, shape=(1, 1))
        elif scale.ndim == 1:
            scale = scale * eye(scale.shape[0], dtype=scale.dtype)
        p = scale.shape[0]
        if x.ndim == 0:
            x = rec.reshape(x, shape=(1, 1))
        if x.shape[:2] != (p, p):
            raise ShapeError(
                f"wishart: the first two axes of x must have length {p}, but x has shape {x.shape}."
            )
        matrices = moveaxis(moveaxis(x, 0, -1), 0, -1) if x.ndim > 2 else x
        df = floating("wishart", df)
        logs = [2 * sum(rec.log(diagonal(cholesky(m))), axis=-1) for m in (matrices, scale)]
        ratio = trace(solve(scale + zeros(matrices.shape, dtype=scale.dtype), matrices))
        return (
            0.5 * (df - p - 1) * logs[0]
            - 0.5 * ratio
            - 0.5 * df * (p * math.log(2) + logs[1])
            - multigammaln(0.5 * df, p)
        )


multivariate_normal = _Normal("multivariate_normal")
multivariate_t = _Student("multivariate_t")
dirichlet = _Dirichlet("dirichlet")
multinomial = _Multinomial("multinomial")
wishart = _Wishart("wishart")
