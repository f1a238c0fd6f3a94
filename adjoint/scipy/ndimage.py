"""``scipy.ndimage`` on tensors: filters along axes, and interpolation of images.

Names that are not in ``__all__`` are SciPy's own functions, which raise ``LostHistoryError`` for a tensor
that requires grad.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from adjoint import words
from adjoint.core.convert import asarray
from adjoint.core.docstrings import SharedDoc
from adjoint.core.lifted import Unknown, refusal
from adjoint.core.namespace import rec
from adjoint.core.shapes import canonical_axis
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, DTypeError, InputError, ShapeError
from adjoint.ops.arrange import pad
from adjoint.ops.reduce import floating
from adjoint.ops.reduce import sum as _sum
from adjoint.ops.shape import moveaxis
from adjoint.scipy.fallback import drop_ins, scipy_module, scipy_only
from adjoint.scipy.values import plain_values
from adjoint.typing import ArrayLike, Axis

__all__ = [
    "convolve1d", "correlate1d", "gaussian_filter", "gaussian_filter1d", "map_coordinates", "spline_filter",
    "spline_filter1d",
]  # fmt: skip
__dir__ = sorted(__all__).copy


# Filters along an axis -----------------------------------------------------------------------------

# SciPy's names of the border modes, and the modes of np.pad
_BORDERS: dict[str, Any] = {
    "reflect": "symmetric", "grid-mirror": "symmetric", "mirror": "reflect", "nearest": "edge",
    "wrap": "wrap", "grid-wrap": "wrap", "constant": "constant", "grid-constant": "constant",
}  # fmt: skip


def _image(op: str, x: Any, output: Any) -> Tensor:
    x = floating(op, x)
    if output is None:
        return x
    if not isinstance(output, (np.dtype, type, str)):
        raise InputError(f"{op}: output must be a dtype, not an array: the result is a new tensor.")
    dtype = np.dtype(output)
    if dtype.kind not in "fc":
        raise DTypeError(f"{op}: output must be a float dtype, not {dtype}.")
    return x if x.dtype == dtype else rec.astype(x, dtype=dtype)


def _bordered(op: str, x: Tensor, before: int, after: int, mode: str, cval: float) -> Tensor:
    """Return ``x`` with ``before`` and ``after`` elements added at the ends of its last axis.

    ``mode`` says which values are added; ``cval`` is the value for constant borders.
    """
    if mode not in _BORDERS:
        raise ArgumentError(f"{op}: mode must be one of {', '.join(_BORDERS)}, not {mode!r}.")
    if _BORDERS[mode] == "constant":
        return pad(x, ((0, 0),) * (x.ndim - 1) + ((before, after),), constant_values=cval)
    index = np.pad(np.arange(x.shape[-1]), (before, after), mode=_BORDERS[mode])
    return x[..., index]


_filter_doc = SharedDoc("""
    Parameters
    ----------
    input : array_like
        The image.
    weights : array_like
        The weights, a vector.
    axis : int, optional
        The axis.
    output : dtype, optional
        The dtype of the result.
    cval : float, optional
        The value outside of the image in mode "constant".
    origin : int, optional
        The number of elements by which the weights are shifted.
    mode : str, optional
        The border mode, as in ``correlate1d``.
    truncate : float, optional
        The number of standard deviations at which the Gaussian is truncated.
    order : int, optional
        The degree of the spline, up to 5.
    coordinates : array_like
        The coordinates; the first axis has one entry for each axis of the image.  Gradients flow to them.
    prefilter : bool, optional
        Whether the image has to be filtered by ``spline_filter`` first.

    Returns
    -------
    Tensor
        The filtered image.
    """)


@_filter_doc
def correlate1d(
    input: ArrayLike,
    weights: ArrayLike,
    axis: int = -1,
    output: Any = None,
    mode: str = "reflect",
    cval: float = 0.0,
    origin: int = 0,
) -> Tensor:
    """Correlate an image with weights along an axis.

    Parameters
    ----------
    mode : str, optional
        SciPy's border mode: "reflect", "mirror", "nearest", "wrap" or "constant".

    Raises
    ------
    ArgumentError
        If the mode is unknown, or the origin is outside of the weights.

    >>> ad.scipy.ndimage.correlate1d([1.0, 2.0, 4.0], [-1.0, 0.0, 1.0])
    array([1., 3., 2.])
    """
    return _correlated("correlate1d", _image("correlate1d", input, output), weights, axis, mode, cval, origin)


def _correlated(op: str, x: Tensor, weights: Any, axis: int, mode: str, cval: float, origin: int) -> Tensor:
    w = floating(op, weights)
    if w.ndim != 1 or not w.shape[0]:
        raise ShapeError(f"{op}: the weights must be a vector that is not empty, but have shape {w.shape}.")
    size = w.shape[0]
    before = size // 2 + origin
    if not 0 <= before < size:
        raise ArgumentError(
            f"{op}: the origin must be from {-(size // 2)} to {(size - 1) // 2} for {size} weights, but is "
            f"{origin}."
        )
    if not x.size:
        return x
    where = canonical_axis(op, axis, x.ndim)
    x = moveaxis(x, where, -1)
    wide = _bordered(op, x, before, size - 1 - before, mode, cval)
    lead = wide.shape[:-1]
    rows = rec.reshape(wide, shape=(math.prod(lead), 1, wide.shape[-1]))
    kernel = rec.reshape(w if w.dtype == x.dtype else rec.astype(w, dtype=x.dtype), shape=(1, 1, size))
    y = rec.conv(rows, kernel, stride=(1,), padding=((0, 0),), dilation=(1,), groups=1)
    return moveaxis(rec.reshape(y, shape=x.shape), -1, where)


@_filter_doc
def convolve1d(
    input: ArrayLike,
    weights: ArrayLike,
    axis: int = -1,
    output: Any = None,
    mode: str = "reflect",
    cval: float = 0.0,
    origin: int = 0,
) -> Tensor:
    """Convolve an image with weights along an axis.

    >>> ad.scipy.ndimage.convolve1d([1.0, 2.0, 4.0], [-1.0, 0.0, 1.0])
    array([-1., -3., -2.])
    """
    w = floating("convolve1d", weights)
    origin = -origin - (1 if w.ndim and w.shape[0] % 2 == 0 else 0)
    x = _image("convolve1d", input, output)
    return _correlated("convolve1d", x, rec.flip(w, axis=(-1,)), axis, mode, cval, origin)


def _gaussian(sigma: Tensor, order: int, radius: int) -> Tensor:
    """Return the weights of a filter: a Gaussian, or its derivative of order ``order``, at -radius … radius.

    Gradients flow to ``sigma``.
    """
    x = np.arange(-radius, radius + 1.0).astype(sigma.dtype)
    square = sigma * sigma
    phi = rec.exp(-0.5 / square * x**2)
    phi = phi / _sum(phi)
    # the derivative of a polynomial q(x) times the Gaussian φ(x) is (q' - x q / σ²) φ
    q: list[Any] = [1.0]
    for _ in range(order):
        slope = [(k + 1) * q[k + 1] for k in range(len(q) - 1)] + [0.0, 0.0]
        other = [0.0, *(-c / square for c in q)]
        q = [a + b for a, b in zip(slope, other, strict=True)]
    factor: Any = 0.0
    for k, c in enumerate(q):
        factor = factor + c * x**k
    return phi * factor if order else phi


def _number(sigma: Any) -> float | None:
    """Return ``sigma`` as a float, or None inside a transform, where its value is not known."""
    value = plain_values(sigma) if isinstance(sigma, Tensor) else sigma
    return None if value is None else float(value)


def _radius(op: str, sigma: Any, truncate: float, radius: int | None) -> int:
    if radius is not None:
        return int(radius)
    value = _number(sigma)
    if value is None:
        raise refusal(
            InputError(
                f"{op}: inside ad.vmap or ad.compile, radius= (the size of the window) is required if sigma "
                "depends on the function's arguments."
            ),
            isinstance(sigma._data, Unknown),
        )
    return int(truncate * value + 0.5)


@_filter_doc
def gaussian_filter1d(
    input: ArrayLike,
    sigma: ArrayLike,
    axis: int = -1,
    order: int = 0,
    output: Any = None,
    mode: str = "reflect",
    cval: float = 0.0,
    truncate: float = 4.0,
    *,
    radius: int | None = None,
) -> Tensor:
    """Filter an image with a Gaussian, or a derivative of it, along an axis.

    Parameters
    ----------
    sigma : array_like
        The standard deviation of the Gaussian; gradients flow to it.
    order : int, optional
        The order of the derivative.
    radius : int, optional
        The radius of the window in elements, instead of ``truncate``.

    Raises
    ------
    InputError
        If ``sigma`` is batched or traced by a transform, and ``radius`` is not passed.

    >>> ad.scipy.ndimage.gaussian_filter1d([0.0, 0.0, 1.0, 0.0, 0.0], 1.0).round(3)
    array([0.058, 0.242, 0.399, 0.242, 0.058])
    """
    if order < 0:
        raise ArgumentError(f"gaussian_filter1d: order must be at least 0, but is {order}.")
    x, s = _image("gaussian_filter1d", input, output), floating("gaussian_filter1d", sigma)
    weights = _gaussian(s, order, _radius("gaussian_filter1d", sigma, truncate, radius))
    flipped = rec.flip(weights, axis=(-1,))
    return _correlated("gaussian_filter1d", x, flipped, axis, mode, cval, 0)


@_filter_doc
def gaussian_filter(
    input: ArrayLike,
    sigma: Any,
    order: Any = 0,
    output: Any = None,
    mode: Any = "reflect",
    cval: float = 0.0,
    truncate: float = 4.0,
    *,
    radius: Any = None,
    axes: Axis = None,
) -> Tensor:
    """Filter an image with a Gaussian, or derivatives of it.

    Parameters
    ----------
    sigma : array_like or sequence of array_like
        The standard deviation, for all axes or for each; gradients flow to it.
    order : int or sequence of int, optional
        The orders of the derivatives.
    mode : str or sequence of str, optional
        The border mode, as in ``correlate1d``.
    radius : int or sequence of int, optional
        The radius of the window in elements, instead of ``truncate``.
    axes : int or tuple of int, optional
        The axes to filter, by default all.

    Raises
    ------
    ArgumentError
        If a parameter does not have one value for each axis.

    >>> import adjoint as ad, numpy as np
    >>> ad.scipy.ndimage.gaussian_filter(np.eye(3), 1.0).round(3)
    array([[0.502, 0.329, 0.168],
           [0.329, 0.342, 0.329],
           [0.168, 0.329, 0.502]])
    """
    x = _image("gaussian_filter", input, output)
    given = range(x.ndim) if axes is None else axes if isinstance(axes, (tuple, list)) else (axes,)
    chosen = [canonical_axis("gaussian_filter", a, x.ndim) for a in given]
    each = {"sigma": sigma, "order": order, "mode": mode, "radius": radius}
    lists = {k: _each(k, v, len(chosen)) for k, v in each.items()}
    for a, s, k, m, r in zip(chosen, *lists.values(), strict=True):
        value = _number(s)
        if value is None or value > 1e-15:
            x = gaussian_filter1d(x, s, a, k, None, m, cval, truncate, radius=r)
    return x


def _each(name: str, value: Any, count: int) -> list[Any]:
    """Return ``value``, the parameter ``name``, as a list with one item for each of ``count`` axes."""
    if isinstance(value, (Tensor, np.ndarray)) and value.ndim:
        items = [value[i] for i in range(value.shape[0])]
    elif isinstance(value, (list, tuple)):
        items = list(value)
    else:
        return [value] * count
    if len(items) != count:
        raise ArgumentError(
            f"gaussian_filter: {name} must be one number, or {words.count(count, 'value')}, one per axis, "
            f"but has "
            f"{words.count(len(items), 'value')}."
        )
    return items


# Splines ---------------------------------------------------------------------------------------------


@_filter_doc
def spline_filter1d(
    input: ArrayLike, order: int = 3, axis: int = -1, output: Any = None, mode: str = "mirror"
) -> Tensor:
    """Return the spline coefficients of the values along an axis.

    Parameters
    ----------
    input : array_like
        The values.
    mode : str, optional
        SciPy's border mode: "mirror", "reflect", "grid-wrap" or another one.

    Returns
    -------
    Tensor
        The coefficients.

    >>> ad.scipy.ndimage.spline_filter1d([1.0, 1.0, 1.0]).round(12)
    array([1., 1., 1.])
    """
    x = _image("spline_filter1d", input, output)
    if order in (0, 1) or not x.size:
        return x
    where = canonical_axis("spline_filter1d", axis, x.ndim)
    # the filter is linear, so its matrix is found by filtering unit vectors
    n = x.shape[where]
    matrix = scipy_module("ndimage").spline_filter1d(np.eye(n), order, 0, np.float64, mode)
    rows = rec.matmul(moveaxis(x, where, -1), asarray(matrix.T.astype(x.real.dtype)))
    return moveaxis(rows, -1, where)


@_filter_doc
def spline_filter(input: ArrayLike, order: int = 3, output: Any = None, mode: str = "mirror") -> Tensor:
    """Return the spline coefficients of an image, for ``map_coordinates(…, prefilter=False)``.

    Parameters
    ----------
    mode : str, optional
        The border mode, as in ``spline_filter1d``.

    Returns
    -------
    Tensor
        The coefficients.

    >>> import adjoint as ad, numpy as np
    >>> ad.scipy.ndimage.spline_filter(np.ones((2, 2))).round(12)
    array([[1., 1.],
           [1., 1.]])
    """
    x = _image("spline_filter", input, output)
    for axis in range(x.ndim):
        x = spline_filter1d(x, order, axis, mode=mode)
    return x


@_filter_doc
def map_coordinates(
    input: ArrayLike,
    coordinates: ArrayLike,
    output: Any = None,
    order: int = 3,
    mode: str = "constant",
    cval: float = 0.0,
    prefilter: bool = True,
) -> Tensor:
    """Return the values of an image at coordinates, interpolated by splines.

    Parameters
    ----------
    order : int, optional
        The degree of the splines: 0 takes the nearest element, 1 is linear, 3 cubic; up to 5.
    mode : str, optional
        SciPy's border mode: "constant", "nearest", "mirror", "reflect", "grid-wrap" or "grid-constant".
    cval : float, optional
        The value outside of the image in the constant modes.

    Returns
    -------
    Tensor
        The values.

    Raises
    ------
    ShapeError
        If the coordinates do not have as many rows as the image has axes.
    ArgumentError
        If the order or the mode is not supported.

    >>> ad.scipy.ndimage.map_coordinates([[0.0, 1.0], [2.0, 3.0]], [[0.5], [0.5]], order=1)
    array([1.5])
    """
    x, at = _image("map_coordinates", input, output), floating("map_coordinates", coordinates)
    if not x.ndim or not at.ndim or at.shape[0] != x.ndim:
        raise ShapeError(
            f"map_coordinates: the first axis of the coordinates must have length {x.ndim}, one coordinate "
            f"per axis of the image (shape {x.shape}), but they have shape {at.shape}."
        )
    if order not in range(6):
        raise ArgumentError(f"map_coordinates: order must be an integer from 0 to 5, but is {order!r}.")
    if mode not in _BORDERS or mode == "wrap":
        names = ", ".join(m for m in _BORDERS if m != "wrap")
        raise ArgumentError(f"map_coordinates: mode must be one of {names}, not {mode!r}.")
    border = 0
    if order > 1 and prefilter and mode in ("nearest", "grid-constant"):
        border = 12  # as in SciPy, which has no exact spline filter for these modes
        for axis in range(x.ndim):
            moved = moveaxis(x, axis, -1)
            x = moveaxis(_bordered("map_coordinates", moved, border, border, mode, cval), -1, axis)
    if order > 1 and prefilter:
        x = spline_filter(x, order, mode=mode)
    return _gathered(x, at, order, mode, cval, border)


def _gathered(x: Tensor, at: Tensor, order: int, mode: str, cval: float, border: int) -> Tensor:
    """Return the values at the points ``at`` of the spline of degree ``order`` with the coefficients ``x``.

    ``mode`` and ``cval`` determine the values outside of the image.  ``border`` is the width of the border
    that was added to the image on each side.
    """
    outside: Any = None
    places, weights = [], []
    for k in range(x.ndim):
        t, n = at[k], x.shape[k] - 2 * border
        if mode == "constant":
            beyond = rec.logical_or(t < 0, t > n - 1)
            outside = beyond if outside is None else rec.logical_or(outside, beyond)
            t = rec.where(beyond, 0.0, t)
        elif mode in ("nearest", "grid-constant"):
            # all points far outside have the same value
            t = rec.minimum(rec.maximum(t, -float(border + 2)), n + 1.0 + border) if border else t
        t = t + border
        first = rec.floor(t.detach() + (0.5 if order % 2 == 0 else 0.0)) - order // 2
        first = rec.astype(first, dtype=np.dtype(np.int64))
        places.append([first + j for j in range(order + 1)])
        weights.append([_basis(t - (first + j), order) for j in range(order + 1)])
    shape = x.shape
    flat_image = rec.reshape(x, shape=(x.size,))
    total: Any = 0.0
    for taps in itertools.product(range(order + 1), repeat=x.ndim):
        flat: Any = 0
        weight: Any = 1.0
        inside: Any = None
        for k, j in enumerate(taps):
            index, good = _folded(places[k][j], shape[k], mode)
            flat = flat * shape[k] + index
            weight = weight * weights[k][j]
            if good is not None:
                inside = good if inside is None else rec.logical_and(inside, good)
        value = rec.take(flat_image, flat, axis=-1)
        if inside is not None:
            value = rec.where(inside, value, cval)
        total = total + weight * value
    return total if outside is None else rec.where(outside, cval, total)


def _folded(index: Tensor, n: int, mode: str) -> tuple[Tensor, Any]:
    """Return ``index`` with indices outside an axis of length ``n`` mapped to the inside by ``mode``.

    The second result is a mask of the indices that were inside if ``mode`` is "grid-constant", otherwise
    None.
    """
    if mode == "grid-constant":
        good = rec.logical_and(index >= 0, index < n)
        return rec.minimum(rec.maximum(index, 0), n - 1), good
    if mode == "nearest":
        return rec.minimum(rec.maximum(index, 0), n - 1), None
    if mode == "grid-wrap":
        return rec.remainder(index, n), None
    if mode in ("reflect", "grid-mirror"):
        around = rec.remainder(index, 2 * n)
        return rec.minimum(around, 2 * n - 1 - around), None
    if n == 1:
        return index * 0, None
    around = rec.remainder(index, 2 * n - 2)
    return rec.minimum(around, 2 * n - 2 - around), None


def _basis(t: Tensor, order: int) -> Any:
    """Return the values of the B-spline of degree ``order`` at distances ``t`` from its centre.

    They are 0 for distances above (order + 1) / 2.
    """
    if order == 0:
        return 1.0
    # Σ (-1)^k C(n+1, k) max(t + (n+1)/2 - k, 0)ⁿ / n!, computed from the nearer end, where few terms are not
    # 0
    half = (order + 1) / 2
    size = rec.abs(t)
    total: Any = 0.0
    for k in range(order // 2 + 1):
        near = rec.maximum(half - k - size, 0.0)
        total = total + (-1) ** k * math.comb(order + 1, k) * near**order
    return total / math.factorial(order)


globals().update(drop_ins("ndimage", {name: globals()[name] for name in __all__}))


def __getattr__(name: str) -> Any:
    """Return SciPy's own function, which raises an error for a tensor that requires grad."""
    return scipy_only("ndimage", name)
