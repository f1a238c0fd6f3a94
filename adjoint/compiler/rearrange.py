"""Lowering rules of ops that move elements: views, joins, indexing, windows, convolutions and einsum.

The windows of an image are a view with overlapping strides.  Their adjoint adds windows where they overlap:
it writes the windows into an array of zeros and sums a skewed view of this array.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.compiler.decompose import RULES, rule
from adjoint.compiler.simplify import NotNative, View
from adjoint.core.shapes import Shape
from adjoint.ops.windows import Pairs, counts, inner, spots, whole

__all__: list[str] = []

_INT64 = np.dtype(np.int64)


def _below(x: View, k: int) -> Any:
    """Return the mask of the elements on and below diagonal ``k``."""
    return np.tri(x.shape[-2], x.shape[-1], k, dtype=bool)


# Views -----------------------------------------------------------------------------------------------

RULES.update(
    reshape=lambda xp, x, shape: xp.graph.reshape(xp.view(x), tuple(shape)),
    broadcast_to=lambda xp, x, shape: xp.graph.broadcast(xp.view(x), tuple(shape)),
    permute_dims=lambda xp, x, axes: xp.graph.permute(x, [a % x.ndim for a in axes]),
    tril=lambda xp, x, k: xp.where(_below(x, k), x, np.zeros((), x.dtype)),
    triu=lambda xp, x, k: xp.where(_below(x, k - 1), np.zeros((), x.dtype), x),
)


@rule("moveaxis")
def _moveaxis(xp: Any, x: Any, source: int, destination: int) -> Any:
    axes = list(range(x.ndim))
    axes.insert(destination % x.ndim, axes.pop(source % x.ndim))
    return xp.graph.permute(x, axes)


@rule("matrix_transpose")
def _matrix_transpose(xp: Any, x: Any) -> Any:
    n = x.ndim
    return xp.graph.permute(x, (*range(n - 2), n - 1, n - 2))


@rule("flip")
def _flip(xp: Any, x: Any, axis: Any) -> Any:
    wanted = {a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis)}
    return xp.graph.slice(x, [slice(None, None, -1 if k in wanted else 1) for k in range(x.ndim)])


@rule("diagonal")
def _diagonal(xp: Any, x: Any, offset: int) -> Any:
    rows, columns = x.shape[-2:]
    down, right = max(-offset, 0), max(offset, 0)
    n = max(min(rows - down, columns - right), 0)
    at = x.offset + (down * x.strides[-2] + right * x.strides[-1] if n else 0)
    step = x.strides[-2] + x.strides[-1] if n > 1 else 0
    return View(xp.graph, x.node, (*x.shape[:-2], n), (*x.strides[:-2], step), at)


@rule("windows")
def _windows(xp: Any, x: Any, size: int, axis: int) -> Any:
    shape, step = list(x.shape), x.strides[axis]
    shape[axis] -= size - 1
    strides = tuple([0 if n == 1 else s for n, s in zip(shape, x.strides, strict=True)])
    return View(xp.graph, x.node, (*shape, size), (*strides, step if size > 1 else 0), x.offset)


# Joining and cutting ---------------------------------------------------------------------------------


def _full_key(key: Sequence[Any], ndim: int) -> list[Any]:
    """Return a basic index with one entry per axis."""
    used = sum(k is not None and k is not Ellipsis for k in key)
    found: list[Any] = []
    for k in key:
        found += [slice(None)] * (ndim - used) if k is Ellipsis else [k]
    missing = ndim - sum(k is not None for k in found)
    return found + [slice(None)] * missing


def _placed(
    xp: Any, shape: Shape, fill: Any, dtype: Any, pieces: Sequence[tuple[View, Sequence[Any]]]
) -> Any:
    """Return an array that is filled with ``fill`` and has pieces assigned at basic indices."""
    target = xp.graph.target(shape)
    found = []
    for value, key in pieces:
        spot = xp.graph.slice(target, _full_key(key, len(shape)))
        found.append((xp.graph.broadcast(xp.cast(value, dtype), spot.shape), spot.where))
    return xp.graph.place(shape, dtype, fill, found)


@rule("concat")
def _concat(xp: Any, *xs: Any, axis: int) -> Any:
    views = [xp.view(x) for x in xs]
    dtype = np.result_type(*[v.dtype for v in views])
    shape = list(views[0].shape)
    at = axis % len(shape)
    shape[at] = sum(v.shape[at] for v in views)
    pieces, start = [], 0
    for v in views:
        pieces.append((v, (*(slice(None),) * at, slice(start, start + v.shape[at]))))
        start += v.shape[at]
    return _placed(xp, tuple(shape), None, dtype, pieces)


@rule("stack")
def _stack(xp: Any, *xs: Any, axis: int) -> Any:
    views = [xp.view(x) for x in xs]
    at = axis % (views[0].ndim + 1)
    return _concat(xp, *[xp.graph.reshape(v, (*v.shape[:at], 1, *v.shape[at:])) for v in views], axis=at)


@rule("unstack")
def _unstack(xp: Any, x: Any, axis: int) -> Any:
    at = axis % x.ndim
    lead = (slice(None),) * at
    return tuple([xp.graph.slice(x, _full_key((*lead, k), x.ndim)) for k in range(x.shape[at])])


@rule("split")
def _split(xp: Any, x: Any, cuts: Any, axis: int) -> Any:
    lead = (slice(None),) * (axis % x.ndim)
    return tuple([xp.graph.slice(x, _full_key((*lead, slice(a, b)), x.ndim)) for a, b in cuts])


@rule("roll")
def _roll(xp: Any, x: Any, shift: Any, axis: Any) -> Any:
    shifts, axes = (shift, axis) if isinstance(axis, tuple) else ((shift,), (axis,))
    for s, a in zip(shifts, axes, strict=True):
        n = x.shape[a]
        if n and s % n:
            lead, k = (slice(None),) * (a % x.ndim), n - s % n
            x = _concat(xp, x[(*lead, slice(k, None))], x[(*lead, slice(None, k))], axis=a)
    return x


@rule("pad")
def _pad(xp: Any, x: Any, widths: Any, value: Any) -> Any:
    if not isinstance(value, (int, float)):
        raise NotNative("the padding value is not a Python number")
    shape = tuple([lo + n + hi for n, (lo, hi) in zip(x.shape, widths, strict=True)])
    key = [slice(lo, lo + n) for n, (lo, _) in zip(x.shape, widths, strict=True)]
    return _placed(xp, shape, _fill(value, x.dtype), x.dtype, [(x, key)])


def _fill(value: Any, dtype: Any) -> Any:
    """Return a Python number that is ``value`` cast to a dtype."""
    return np.asarray(value).astype(dtype).item()


@rule("undiagonal")
def _undiagonal(xp: Any, x: Any, offset: int, shape: Shape) -> Any:
    full = (*x.shape[:-1], *shape)
    spot = _diagonal(xp, xp.graph.target(full), offset)
    return xp.graph.place(full, x.dtype, 0, [(x, spot.where)])


# Indices ---------------------------------------------------------------------------------------------


def _basic(key: Sequence[Any]) -> bool:
    """Return whether an index has no arrays and no booleans."""
    return not any(isinstance(k, (np.ndarray, bool, np.bool_)) for k in key)


def _positions(shape: Shape, key: Any) -> Any:
    """Return the flat positions of the elements that an index selects."""
    return np.arange(math.prod(shape)).reshape(shape)[key]


@rule("index")
def _index(xp: Any, x: Any, key: Any) -> Any:
    x = xp.view(x)
    if _basic(key):
        return xp.graph.slice(x, _full_key(key, x.ndim))
    return xp.gather(x, xp.view(_positions(x.shape, key)))


@rule("unindex")
def _unindex(xp: Any, g: Any, key: Any, shape: Shape) -> Any:
    if _basic(key):
        return _placed(xp, shape, 0, g.dtype, [(g, key)])
    at = _positions(shape, key)
    flat = xp.scatter("add", xp.zeros((math.prod(shape),), g.dtype), xp.view(at.reshape(-1)), xp.flat(g))
    return xp.graph.reshape(flat, shape)


@rule("index_set")
def _index_set(xp: Any, x: Any, v: Any, key: Any) -> Any:
    x = xp.view(x)
    strong = isinstance(v, (View, np.ndarray, np.generic)) and not getattr(v, "weak", False)
    v = xp.view(v, x.dtype)
    dtype = np.result_type(x.dtype, v.dtype) if strong else x.dtype
    x, v = xp.cast(x, dtype), xp.cast(v, dtype)
    if _basic(key):
        return _set_basic(xp, x, v, key)
    at = _positions(x.shape, key)
    v = xp.graph.broadcast(v, at.shape)
    flat = xp.scatter("set", xp.flat(x), xp.view(at.reshape(-1)), xp.flat(v))
    return xp.graph.reshape(flat, x.shape)


def _set_basic(xp: Any, x: View, v: View, key: Any) -> Any:
    """Return an array with a piece assigned.

    If the array is itself assembled from pieces, the piece is appended to them.
    """
    pieces: list[tuple[View, Any]] = [(x, xp.graph.target(x.shape).where)]
    fill = None
    if x.node.op == "place" and x.is_whole() and x.shape == x.node.shape:
        fill, where = x.node.params
        pieces = list(zip(x.node.args, where, strict=True))
    spot = xp.graph.slice(xp.graph.target(x.shape), _full_key(key, x.ndim))
    pieces.append((xp.graph.broadcast(v, spot.shape), spot.where))
    return xp.graph.place(x.shape, x.dtype, fill, pieces)


@rule("add_into")
def _add_into(xp: Any, total: Any, g: Any, key: Any) -> Any:
    key = key if isinstance(key, tuple) else (key,)
    if not _basic(key):
        raise NotNative("addition at index arrays has no native form")
    return _index_set(xp, total, xp.cast(total[key] + g, total.dtype), key)


def _from_start(xp: Any, i: View, length: int) -> View:
    """Return an index array with negative indices replaced by positions from the start.

    The program gets a check that all indices are in range.
    """
    if i.dtype.kind not in "iu":
        raise NotNative(f"an index of {i.dtype} has no native form")
    if i.dtype == np.dtype(np.uint64):
        i = xp.minimum(i, np.uint64(2**63 - 1))
    i = xp.cast(i, _INT64)
    wrong = xp.logical_or(i < -length, i >= length)
    xp.graph.checks.append(xp.any(xp.flat(xp.graph.copied(wrong)), axis=(0,), keepdims=False))
    i = xp.where(i < 0, i + length, i)
    return xp.where(wrong, 0, i)


def _rows(xp: Any, i: View, before: int, length: int, after: int) -> View:
    """Return the flat positions of rows ``i`` of an array (before, length, after).

    The shape of the result is (before, size of ``i``, after).
    """
    places = xp.graph.reshape(xp.graph.copied(_from_start(xp, i, length)), (1, i.size, 1)) * after
    return places + (np.arange(before).reshape(-1, 1, 1) * (length * after) + np.arange(after))


@rule("take")
def _take(xp: Any, x: Any, i: Any, axis: int, sparse_grad: bool = False) -> Any:
    x, i = xp.view(x), xp.view(i)
    at = axis % x.ndim
    if not x.shape[at]:
        raise NotNative("an index into an empty axis has no native form")
    places = _rows(xp, i, math.prod(x.shape[:at]), x.shape[at], math.prod(x.shape[at + 1 :]))
    return xp.graph.reshape(xp.gather(x, places), (*x.shape[:at], *i.shape, *x.shape[at + 1 :]))


@rule("untake")
def _untake(xp: Any, g: Any, i: Any, axis: int, length: int) -> Any:
    i = xp.view(i)
    at = g.ndim - i.ndim + axis + 1
    lead, tail = g.shape[:at], g.shape[at + i.ndim :]
    places = _rows(xp, i, math.prod(lead), length, math.prod(tail))
    zeros = xp.zeros((math.prod(lead) * length * math.prod(tail),), g.dtype)
    flat = xp.scatter("add", zeros, xp.flat(xp.graph.copied(places)), xp.flat(g))
    return xp.graph.reshape(flat, (*lead, length, *tail))


def _along(xp: Any, i: View, length: int, axis: int) -> View:
    """Return the flat positions of the elements that ``take_along_axis`` selects."""
    at = i.ndim + axis
    before, after = math.prod(i.shape[:at]), math.prod(i.shape[at + 1 :])
    rows = xp.graph.reshape(xp.graph.copied(_from_start(xp, i, length)), (before, i.shape[at], after))
    start = np.arange(before).reshape(-1, 1, 1) * (length * after) + np.arange(after)
    return xp.graph.reshape(xp.graph.copied(rows * after + start), (i.size,))


@rule("take_along_axis")
def _take_along_axis(xp: Any, x: Any, i: Any, axis: int) -> Any:
    x, i = xp.view(x), xp.view(i)
    if not x.shape[axis] or any(
        n != m for k, (n, m) in enumerate(zip(x.shape, i.shape, strict=True), -x.ndim) if k != axis
    ):
        raise NotNative("an index into an empty axis has no native form")
    return xp.graph.reshape(xp.gather(x, _along(xp, i, x.shape[axis], axis)), i.shape)


@rule("untake_along_axis")
def _untake_along_axis(xp: Any, g: Any, i: Any, axis: int, length: int) -> Any:
    i = xp.view(i)
    shape = list(g.shape)
    shape[axis] = length
    zeros = xp.zeros((math.prod(shape),), g.dtype)
    return xp.graph.reshape(xp.scatter("add", zeros, _along(xp, i, length, axis), xp.flat(g)), tuple(shape))


@rule("put_along_axis")
def _put_along_axis(xp: Any, x: Any, i: Any, v: Any, axis: int) -> Any:
    x, i = xp.view(x), xp.view(i)
    strong = isinstance(v, (View, np.ndarray, np.generic))
    v = xp.view(v, x.dtype)
    dtype = np.result_type(x.dtype, v.dtype) if strong else x.dtype
    x, v = xp.cast(x, dtype), xp.graph.broadcast(xp.cast(v, dtype), i.shape)
    flat = xp.scatter("set", xp.flat(x), _along(xp, i, x.shape[axis], axis), xp.flat(v))
    return xp.graph.reshape(flat, x.shape)


# Windows ---------------------------------------------------------------------------------------------


def _image(xp: Any, x: View, padding: Pairs, value: Any = 0) -> View:
    """Return a view with padding around its last axes."""
    if all(lo <= 0 and hi <= 0 for lo, hi in padding):
        return x
    lead, size = x.shape[: -len(padding)], x.shape[-len(padding) :]
    return _placed(xp, (*lead, *whole(size, padding)), value, x.dtype, [(x, inner(size, padding))])


def _windowed(xp: Any, image: View, kernel: Shape, stride: Shape, dilation: Shape, count: Shape) -> View:
    """Return all windows of the last axes as one view of shape (…, *count, *kernel)."""
    nd = len(kernel)
    steps = image.strides[-nd:]
    outer = [s * step if n > 1 else 0 for s, step, n in zip(stride, steps, count, strict=True)]
    within = [d * step if k > 1 else 0 for d, step, k in zip(dilation, steps, kernel, strict=True)]
    shape = (*image.shape[:-nd], *count, *kernel)
    return View(xp.graph, image.node, shape, (*image.strides[:-nd], *outer, *within), image.offset)


def _added(
    xp: Any, parts: View, size: Shape, kernel: Shape, stride: Shape, padding: Pairs, dilation: Shape
) -> View:
    """Add windows (…, *count, *kernel) where they overlap; the adjoint of taking windows of an image."""
    nd = len(kernel)
    lead, count = parts.shape[: -2 * nd], parts.shape[-2 * nd : -nd]
    full = whole(size, padding)
    g = xp.graph
    if all(s > d * (k - 1) for k, s, d in zip(kernel, stride, dilation, strict=True)):
        spot = _windowed(xp, g.target((*lead, *full)), kernel, stride, dilation, count)
        return g.slice(
            g.place((*lead, *full), parts.dtype, 0, [(parts, spot.where)]),
            _full_key(inner(size, padding), len(lead) + nd),
        )
    # zeros[k] has the elements at offset k of all windows, with a margin of zeros: element i of the image is
    # the sum over k of zeros[k, i - dilation · k]
    margin = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    long = [m + n for m, n in zip(margin, full, strict=True)]
    order = [*range(len(lead)), *range(len(lead) + nd, len(lead) + 2 * nd), *range(len(lead), len(lead) + nd)]
    shape = (*lead, *kernel, *long)
    key = [slice(m, m + (n - 1) * s + 1, s) for m, n, s in zip(margin, count, stride, strict=True)]
    zeros = _placed(xp, shape, 0, parts.dtype, [(g.permute(parts, order), (..., *key))])
    steps = zeros.strides[-nd:]
    skewed = [z - d * s for z, d, s in zip(zeros.strides[-2 * nd : -nd], dilation, steps, strict=True)]
    skewed = [s if k > 1 else 0 for s, k in zip(skewed, kernel, strict=True)]
    offset = sum(m * s for m, s in zip(margin, steps, strict=True))
    view = View(
        g, zeros.node, (*lead, *full, *kernel), (*zeros.strides[: len(lead)], *steps, *skewed), offset
    )
    view = g.slice(view, _full_key((*inner(size, padding), *(slice(None),) * nd), len(view.shape)))
    return g.reduce("sum", view, range(len(lead) + nd, len(lead) + 2 * nd), parts.dtype)


@rule("overlap_add")
def _overlap_add(xp: Any, x: Any, axis: int, length: int) -> Any:
    last = xp.moveaxis(x, source=axis - 1, destination=-2)
    size = x.shape[-1]
    found = _added(xp, last, (length,), (size,), (1,), ((0, 0),), (1,))
    return xp.moveaxis(found, source=-1, destination=axis)


_NARROW = 8  # rows with fewer windows leave vectors too empty
_LARGE = 1 << 17  # more weights need too much memory for the sums of their gradient


def _is_direct(
    x: View, w: View, kernel: Shape, padding: Pairs, groups: int, wide: int, weights: int = 0
) -> bool:
    """Return whether a convolution has its own kernels; others become matrix products of copied windows.

    ``wide`` is the length of the rows that the kernels compute or read.
    """
    return (
        len(kernel) == 2 and kernel != (1, 1) and groups == 1 and wide >= _NARROW and weights <= _LARGE
        and x.dtype == w.dtype and x.dtype.kind == "f" and min(x.size, w.size) > 0
        and all(lo >= 0 and hi >= 0 for lo, hi in padding)
    )  # fmt: skip


def _direct(xp: Any, op: str, a: View, b: View, spec: tuple[Any, ...], shape: Shape) -> View:
    """Add a convolution node; ``spec`` has the fields of ``emit.conv.Conv`` after the dtype."""
    return xp.graph.node(op, (xp.graph.copied(a), xp.graph.copied(b)), spec, shape, a.dtype)


@rule("conv")
def _conv(xp: Any, x: Any, w: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    n, o, kernel = x.shape[0], w.shape[0], w.shape[2:]
    count = counts(x.shape[2:], kernel, stride, padding, dilation)
    if 0 not in count and _is_direct(x, w, kernel, padding, groups, count[-1]):
        spec = (n, x.shape[1], o, x.shape[2:], kernel, stride, padding, dilation)
        y = _direct(xp, "conv", x, w, spec, (n, o, math.prod(count)))
        return xp.graph.reshape(y, (n, o, *count))
    cols = _columns(xp, x, kernel, stride, padding, dilation, groups, count)
    y = xp.matmul(xp.graph.reshape(w, (1, groups, o // groups, cols.shape[-2])), cols)
    return xp.graph.reshape(y, (n, o, *count))


def _columns(
    xp: Any, x: View, kernel: Shape, stride: Shape, padding: Pairs, dilation: Shape, groups: int, count: Shape
) -> View:
    """Return all windows as columns, of shape (batch, groups, channels · kernel, windows)."""
    if 0 in count or 0 in x.shape or x.dtype.kind != "f":
        raise NotNative("an empty convolution has no native form")
    nd = len(kernel)
    view = _windowed(xp, _image(xp, x, padding), kernel, stride, dilation, count)
    order = [0, 1, *range(2 + nd, 2 + 2 * nd), *range(2, 2 + nd)]
    k = x.shape[1] // groups * math.prod(kernel)
    cols = xp.graph.copied(xp.graph.permute(view, order))
    return xp.graph.reshape(cols, (x.shape[0], groups, k, math.prod(count)))


@rule("conv_weight")
def _conv_weight(
    xp: Any, x: Any, g: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    n, o, count = g.shape[0], g.shape[1], g.shape[2:]
    weights = o * x.shape[1] * math.prod(kernel)
    if 0 not in count and _is_direct(x, g, kernel, padding, groups, count[-1], weights):
        spec = (n, x.shape[1], o, x.shape[2:], kernel, stride, padding, dilation)
        return _direct(xp, "conv_weight", x, g, spec, (o, x.shape[1], *kernel))
    cols = _columns(xp, x, kernel, stride, padding, dilation, groups, count)
    gm = xp.graph.reshape(g, (n, groups, o // groups, math.prod(count)))
    y = xp.sum(xp.matmul(gm, xp.matrix_transpose(cols)), axis=(0,), keepdims=False)
    return xp.graph.reshape(y, (o, x.shape[1] // groups, *kernel))


@rule("conv_input")
def _conv_input(
    xp: Any, g: Any, w: Any, size: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    n, count, kernel = g.shape[0], g.shape[2:], w.shape[2:]
    if 0 in count or not n or g.dtype.kind != "f" or any(hi < 0 or lo < 0 for lo, hi in padding):
        raise NotNative("an empty convolution has no native form")
    if 0 not in size and _is_direct(g, w, kernel, padding, groups, size[-1]):
        spec = (n, w.shape[1], w.shape[0], tuple(size), kernel, stride, padding, dilation)
        y = _direct(xp, "conv_input", g, w, spec, (n, w.shape[1], math.prod(size)))
        return xp.graph.reshape(y, (n, w.shape[1], *size))
    nd, o, c, k = len(kernel), w.shape[0], w.shape[1] * groups, w.shape[1] * math.prod(kernel)
    wt = xp.matrix_transpose(xp.graph.reshape(w, (1, groups, o // groups, k)))
    cols = xp.matmul(wt, xp.graph.reshape(g, (n, groups, o // groups, math.prod(count))))
    cols = xp.graph.reshape(cols, (n, c, *kernel, *count))
    order = [0, 1, *range(2 + nd, 2 + 2 * nd), *range(2, 2 + nd)]
    return _added(xp, xp.graph.permute(cols, order), size, kernel, stride, padding, dilation)


_MANY = 64  # larger windows are not unrolled


def _slices(
    xp: Any, x: View, kernel: Shape, stride: Shape, padding: Pairs, dilation: Shape, value: Any
) -> list[View]:
    """Return, for each offset in the kernel, the view of the elements at this offset of all windows."""
    count = counts(x.shape[-len(kernel) :], kernel, stride, padding, dilation)
    if 0 in count or math.prod(kernel) > _MANY:
        raise NotNative("an empty or very large window has no native form")
    image = _image(xp, x, padding, value)
    return [
        xp.graph.slice(image, _full_key(spot, image.ndim)) for spot in spots(kernel, stride, dilation, count)
    ]


def _lowest(dtype: Any) -> Any:
    """Return the lowest value of a dtype."""
    return -math.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


@rule("window_sum")
def _window_sum(xp: Any, x: Any, **at: Any) -> Any:
    parts = _slices(xp, x, value=0, **at)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


@rule("window_spread")
def _window_spread(xp: Any, g: Any, size: Any, kernel: Any, **at: Any) -> Any:
    if not g.size:
        raise NotNative("windows of an empty array have no native form")
    full = xp.graph.broadcast(xp.graph.reshape(g, (*g.shape, *(1,) * len(kernel))), (*g.shape, *kernel))
    return _added(xp, full, size, kernel, **at)


@rule("max_pool")
def _max_pool(xp: Any, x: Any, **at: Any) -> Any:
    parts = _slices(xp, x, value=_lowest(x.dtype), **at)
    top = parts[0]
    for part in parts[1:]:
        top = xp.maximum(top, part)
    return top


def _hits(xp: Any, x: View, y: View, at: dict[str, Any]) -> tuple[list[View], View]:
    """Return, for each offset, where it has the maximum of its window, and the number of equal maxima."""
    parts = _slices(xp, x, value=_lowest(x.dtype), **at)
    hits = [xp.logical_or(part == y, part != part) for part in parts]
    shared = xp.astype(hits[0], dtype=y.dtype)
    for hit in hits[1:]:
        shared = shared + xp.astype(hit, dtype=y.dtype)
    return hits, xp.maximum(shared, 1)


@rule("max_spread")
def _max_spread(xp: Any, g: Any, x: Any, y: Any, **at: Any) -> Any:
    kernel = at["kernel"]
    hits, shared = _hits(xp, x, y, at)
    share = xp.cast(g / shared, g.dtype)
    parts = [xp.where(hit, share, np.zeros((), g.dtype)) for hit in hits]
    stacked = _stack(xp, *parts, axis=-1)
    windows = xp.graph.reshape(stacked, (*y.shape, *kernel))
    return _added(xp, windows, x.shape[-len(kernel) :], **at)


@rule("max_gather")
def _max_gather(xp: Any, h: Any, x: Any, y: Any, **at: Any) -> Any:
    hits, shared = _hits(xp, x, y, at)
    total = None
    for hit, part in zip(hits, _slices(xp, h, value=0, **at), strict=True):
        found = xp.where(hit, part, np.zeros((), h.dtype))
        total = found if total is None else total + found
    return total / xp.cast(shared, h.dtype)


# Einstein sums ---------------------------------------------------------------------------------------


def _distinct(xp: Any, x: View, labels: str, kept: str) -> tuple[View, str]:
    """Take the diagonal of repeated labels, and sum over labels that are not in ``kept``."""
    unique = "".join(dict.fromkeys(labels))
    if unique != labels:
        size = dict(zip(labels, x.shape, strict=True))
        strides = tuple([sum(s for c, s in zip(labels, x.strides, strict=True) if c == u) for u in unique])
        x = View(xp.graph, x.node, tuple([size[u] for u in unique]), strides, x.offset)
    gone = [k for k, c in enumerate(unique) if c not in kept]
    if gone:
        x = xp.sum(x, axis=tuple([k - x.ndim for k in gone]), keepdims=False)
    return x, "".join(c for c in unique if c in kept)


def _spread_labels(xp: Any, z: View, labels: str, output: str, size: dict[str, int]) -> View:
    """Permute the axes into the order of ``output``, and broadcast along new labels.

    For a label that ``output`` repeats, write the values to the diagonal.
    """
    unique = "".join(dict.fromkeys(output))
    z = xp.graph.permute(z, [labels.index(c) for c in unique if c in labels])
    z = xp.graph.reshape(z, tuple([size[c] if c in labels else 1 for c in unique]))
    z = xp.graph.broadcast(z, tuple([size[c] for c in unique]))
    if unique == output:
        return z
    shape = tuple([size[c] for c in output])
    spot, _ = _distinct(xp, xp.graph.target(shape), output, output)
    return xp.graph.place(shape, z.dtype, 0, [(z, spot.where)])


@rule("relabel")
def _relabel(xp: Any, x: Any, labels: str, output: str, extra: Any) -> Any:
    x, labels = _distinct(xp, x, labels, output)
    size = {**dict(extra), **dict(zip(labels, x.shape, strict=True))}
    return _spread_labels(xp, x, labels, output, size)


@rule("einsum")
def _einsum(xp: Any, x: Any, y: Any, left: str, right: str, output: str, extra: Any) -> Any:
    x, left = _distinct(xp, xp.view(x), left, output + right)
    y, right = _distinct(xp, xp.view(y), right, output + left)
    size = {**dict(extra), **dict(zip(left, x.shape, strict=True)), **dict(zip(right, y.shape, strict=True))}
    both = [c for c in left if c in right and c in output]
    within = [c for c in left if c in right and c not in output]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]

    def count(labels: Sequence[str]) -> int:
        return math.prod(size[c] for c in labels)

    a = xp.graph.permute(x, [left.index(c) for c in (*both, *rows, *within)])
    b = xp.graph.permute(y, [right.index(c) for c in (*both, *within, *columns)])
    if not within:  # an outer product
        a = xp.graph.reshape(a, (*a.shape[: len(both)], count(rows), 1))
        b = xp.graph.reshape(b, (*b.shape[: len(both)], 1, count(columns)))
        z = a * b
    else:
        a = xp.graph.reshape(a, (count(both), count(rows), count(within)))
        b = xp.graph.reshape(b, (count(both), count(within), count(columns)))
        z = xp.matmul(a, b)
    labels = [*both, *rows, *columns]
    z = xp.graph.reshape(z, tuple([size[c] for c in labels]))
    return _spread_labels(xp, z, "".join(labels), output, size)


@rule("lstm_slopes")
def _lstm_slopes(xp: Any, parts: Any) -> Any:
    def at(j: int) -> View:
        return parts[..., slice(j, j + 1), slice(None), slice(None)]

    o, i, f, u, c, t = (at(j) for j in range(6))
    rest = (slice(None),) * 3
    later = f[(..., slice(1, None), *rest)]
    last = xp.zeros_like(f[(..., slice(0, 1), *rest)])
    moved = _concat(xp, later, last, axis=-4)
    return _concat(
        xp,
        o * (1 - o) * t,
        i * (1 - i) * u,
        f * (1 - f) * c,
        i * (1 - u * u),
        o * (1 - t * t),
        moved,
        axis=-3,
    )
