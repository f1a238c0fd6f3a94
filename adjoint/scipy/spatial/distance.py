"""``scipy.spatial.distance`` on tensors; the gradient at distance 0 is 0.

Names that are not in ``__all__`` are SciPy's own functions, which raise ``LostHistoryError`` for a tensor
that requires grad.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.ops.distances import power_sum, rows
from adjoint.ops.join import stack
from adjoint.ops.reduce import floating, mean, sum
from adjoint.scipy.fallback import drop_ins, scipy_only
from adjoint.typing import ArrayLike

__all__ = ["cdist", "pdist", "squareform"]
__dir__ = sorted(__all__).copy


def _euclidean(x: Tensor, y: Tensor, w: Any = None) -> Tensor:
    if w is None:
        return rec.distances(x, y)
    root = rec.sqrt(floating("cdist", w))
    return rec.distances(x * root, y * root)


def _sqeuclidean(x: Tensor, y: Tensor, w: Any = None) -> Tensor:
    away = x[..., :, None, :] - y[..., None, :, :]
    return sum(away * away if w is None else away * away * asarray(w), axis=-1)


def _cityblock(x: Tensor, y: Tensor, w: Any = None) -> Tensor:
    return _minkowski(x, y, 1, w)


def _minkowski(x: Tensor, y: Tensor, p: float = 2, w: Any = None) -> Tensor:
    if not p > 0:
        raise ArgumentError(f"minkowski: p must be positive, but is {p!r}.")
    away = x[..., :, None, :] - y[..., None, :, :]
    if w is not None and p != np.inf:
        away = away * floating("cdist", w) ** (1 / p)
    return power_sum(away, p)


def _chebyshev(x: Tensor, y: Tensor, w: Any = None) -> Tensor:
    away = x[..., :, None, :] - y[..., None, :, :]
    return power_sum(away if w is None else away * asarray(w), np.inf)


def _cosine(x: Tensor, y: Tensor, w: Any = None) -> Tensor:
    if w is not None:
        root = rec.sqrt(floating("cdist", w))
        x, y = x * root, y * root
    x, y = (t / rec.vector_norm(t, ord=2.0, axis=(-1,), keepdims=True) for t in (x, y))
    return 1 - rec.matmul(x, rec.matrix_transpose(y))


def _correlation(x: Tensor, y: Tensor, w: Any = None) -> Tensor:
    if w is None:
        x, y = (t - mean(t, axis=-1, keepdims=True) for t in (x, y))
    else:
        shares = floating("cdist", w)
        shares = shares / sum(shares)
        x, y = (t - sum(t * shares, axis=-1, keepdims=True) for t in (x, y))
    return _cosine(x, y, w)


_METRICS: dict[str, Callable[..., Tensor]] = {
    "euclidean": _euclidean,
    "sqeuclidean": _sqeuclidean,
    "cityblock": _cityblock,
    "chebyshev": _chebyshev,
    "minkowski": _minkowski,
    "cosine": _cosine,
    "correlation": _correlation,
}
_ALIASES = {
    "euclid": "euclidean", "eu": "euclidean", "e": "euclidean", "sqe": "sqeuclidean",
    "sqeuclid": "sqeuclidean", "manhattan": "cityblock", "cblock": "cityblock", "cb": "cityblock",
    "c": "cityblock", "cheby": "chebyshev", "chebychev": "chebyshev", "ch": "chebyshev",
    "mi": "minkowski", "m": "minkowski", "pnorm": "minkowski", "cos": "cosine", "co": "correlation",
}  # fmt: skip


def _between(op: str, x: Tensor, y: Tensor, metric: Any, options: dict[str, Any]) -> Tensor:
    if callable(metric):
        pairs = [[metric(a, b, **options) for b in _rows_of(y)] for a in _rows_of(x)]
        return stack([stack(list(map(asarray, row))) for row in pairs])
    name = str(metric).lower()
    function = _METRICS.get(_ALIASES.get(name, name))
    if function is None:
        raise InputError(
            f"{op}: metric must be a function or one of {', '.join(_METRICS)}, not {metric!r}.\n"
            "  The other metrics of SciPy have no gradients in adjoint."
        )
    return function(x, y, **options)


def _rows_of(x: Tensor) -> list[Tensor]:
    return [x[i] for i in range(x.shape[0])]


def cdist(XA: ArrayLike, XB: ArrayLike, metric: Any = "euclidean", **kwargs: Any) -> Tensor:
    """Return the distance between each row of one matrix and each row of another.

    Parameters
    ----------
    XA : array_like
        Points, the rows of a matrix.
    XB : array_like
        Other points.
    metric : str or callable, optional
        "euclidean", "sqeuclidean", "cityblock", "chebyshev", "minkowski", "cosine", "correlation", or a
        function of two vectors.
    **kwargs : optional
        ``p`` of "minkowski", weights ``w``, or arguments of the function.

    Returns
    -------
    Tensor
        The distances.

    Raises
    ------
    InputError
        If the metric is unknown.
    ShapeError
        If the points have different numbers of coordinates.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.scipy.spatial.distance.cdist([[0.0, 0.0]], [[3.0, 4.0]], "cityblock")
    array([[7.]])
    """
    x, y = rows("cdist", XA), rows("cdist", XB)
    if x.shape[-1] != y.shape[-1]:
        raise ShapeError(
            f"cdist: all points must have the same number of coordinates, not {x.shape[-1]} and "
            f"{y.shape[-1]}."
        )
    return _between("cdist", x, y, metric, kwargs)


def pdist(X: ArrayLike, metric: Any = "euclidean", **kwargs: Any) -> Tensor:
    """Return the distance between each pair of rows of a matrix, as a vector.

    Parameters
    ----------
    X : array_like
        Points, the rows of a matrix.
    metric : str or callable, optional
        As in ``cdist``.
    **kwargs : optional
        As in ``cdist``.

    Returns
    -------
    Tensor
        The distances of rows 0 and 1, 0 and 2, …, 1 and 2, …  ``squareform`` converts them to a matrix.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.scipy.spatial.distance.pdist([[0.0, 0.0], [3.0, 4.0], [3.0, 0.0]])
    array([5., 3., 4.])
    """
    x = rows("pdist", X)
    i, j = np.triu_indices(x.shape[-2], 1)
    return _between("pdist", x, x, metric, kwargs)[..., i, j]


def squareform(X: ArrayLike, force: str = "no", checks: bool = True) -> Tensor:
    """Convert a vector of distances to a matrix, or a matrix to a vector.

    Parameters
    ----------
    X : array_like
        The distances of ``pdist``, or a symmetric matrix.
    force : str, optional
        "tovector" or "tomatrix" to raise for anything else.
    checks : bool, optional
        Whether to raise for a matrix that is not square.

    Returns
    -------
    Tensor
        The matrix or the vector.

    Raises
    ------
    ShapeError
        If the argument is neither a vector of distances nor a square matrix.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.scipy.spatial.distance.squareform([5.0])
    array([[0., 5.],
           [5., 0.]])
    """
    x = asarray(X)
    if x.ndim == 1 and force.lower() != "tovector":
        n = int(np.ceil(np.sqrt(2 * x.size))) if x.size else 1
        if n * (n - 1) != 2 * x.size:
            raise ShapeError(
                "squareform: a vector must have n * (n - 1) / 2 elements, one per pair of n points, but has "
                f"{x.size}."
            )
        i, j = np.triu_indices(n, 1)
        place = np.full((n, n), x.size)
        place[i, j] = place[j, i] = np.arange(x.size)
        return rec.concat(x, rec.astype(np.zeros(1), dtype=x.dtype), axis=-1)[place]
    if x.ndim == 2 and force.lower() != "tomatrix" and (not checks or x.shape[0] == x.shape[1]):
        return x[np.triu_indices(x.shape[0], 1)]
    raise ShapeError(
        f"squareform: the argument must be a vector or a square matrix, but has shape {x.shape}."
    )


globals().update(drop_ins("spatial.distance", {name: globals()[name] for name in __all__}))


def __getattr__(name: str) -> Any:
    """Return SciPy's own function, which raises an error for a tensor that requires grad."""
    return scipy_only("spatial.distance", name)
