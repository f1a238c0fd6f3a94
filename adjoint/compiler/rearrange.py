"""Lowering rules (from ops to primitives) of ops that move elements: views, joins, indexing and einsum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.compiler.decompose import RULES, rule
from adjoint.compiler.simplify import NotNative, View
from adjoint.core.shapes import Shape

__all__ = ["full_key", "placed"]

_INT64 = np.dtype(np.int64)


def _below(x: View, k: int) -> Any:
    """Return a boolean matrix with the size of the last two axes of ``x``: True up to diagonal ``k``."""
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


def full_key(key: Sequence[Any], ndim: int) -> list[Any]:
    """Return a basic index with one entry per axis: expand the ellipsis and add missing slices."""
    used = sum(k is not None and k is not Ellipsis for k in key)
    found: list[Any] = []
    for k in key:
        found += [slice(None)] * (ndim - used) if k is Ellipsis else [k]
    missing = ndim - sum(k is not None for k in found)
    return found + [slice(None)] * missing


def placed(xp: Any, shape: Shape, fill: Any, dtype: Any, pieces: Sequence[tuple[View, Sequence[Any]]]) -> Any:
    """Return an array that is filled with ``fill`` and then overwritten by ``pieces``, in order.

    A piece is a pair (view, basic index).
    """
    target = xp.graph.target(shape)
    found = []
    for value, key in pieces:
        spot = xp.graph.slice(target, full_key(key, len(shape)))
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
    return placed(xp, tuple(shape), None, dtype, pieces)


@rule("stack")
def _stack(xp: Any, *xs: Any, axis: int) -> Any:
    views = [xp.view(x) for x in xs]
    at = axis % (views[0].ndim + 1)
    return _concat(xp, *[xp.graph.reshape(v, (*v.shape[:at], 1, *v.shape[at:])) for v in views], axis=at)


@rule("unstack")
def _unstack(xp: Any, x: Any, axis: int) -> Any:
    at = axis % x.ndim
    lead = (slice(None),) * at
    return tuple([xp.graph.slice(x, full_key((*lead, k), x.ndim)) for k in range(x.shape[at])])


@rule("split")
def _split(xp: Any, x: Any, cuts: Any, axis: int) -> Any:
    lead = (slice(None),) * (axis % x.ndim)
    return tuple([xp.graph.slice(x, full_key((*lead, slice(a, b)), x.ndim)) for a, b in cuts])


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
    return placed(xp, shape, _fill(value, x.dtype), x.dtype, [(x, key)])


def _fill(value: Any, dtype: Any) -> Any:
    """Return the number ``value`` cast to ``dtype``, as a Python number."""
    return np.asarray(value).astype(dtype).item()


@rule("undiagonal")
def _undiagonal(xp: Any, x: Any, offset: int, shape: Shape) -> Any:
    full = (*x.shape[:-1], *shape)
    spot = _diagonal(xp, xp.graph.target(full), offset)
    return xp.graph.place(full, x.dtype, 0, [(x, spot.where)])


# Indices ---------------------------------------------------------------------------------------------


def _basic(key: Sequence[Any]) -> bool:
    """Return whether an index is basic, as NumPy defines it: no arrays and no booleans."""
    return not any(isinstance(k, (np.ndarray, bool, np.bool_)) for k in key)


def _positions(shape: Shape, key: Any) -> Any:
    """Return the positions, in the flattened array, of the elements that an index selects."""
    return np.arange(math.prod(shape)).reshape(shape)[key]


@rule("index")
def _index(xp: Any, x: Any, key: Any) -> Any:
    x = xp.view(x)
    if _basic(key):
        return xp.graph.slice(x, full_key(key, x.ndim))
    return xp.gather(x, xp.view(_positions(x.shape, key)))


@rule("unindex")
def _unindex(xp: Any, g: Any, key: Any, shape: Shape) -> Any:
    if _basic(key):
        return placed(xp, shape, 0, g.dtype, [(g, key)])
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
    """Return a copy of ``x`` with ``v`` assigned at the basic index ``key``.

    If ``x`` is itself assembled from pieces (a "place" node), ``v`` becomes its last piece.
    """
    pieces: list[tuple[View, Any]] = [(x, xp.graph.target(x.shape).where)]
    fill = None
    if x.node.op == "place" and x.is_whole() and x.shape == x.node.shape:
        fill, where = x.node.params
        pieces = list(zip(x.node.args, where, strict=True))
    spot = xp.graph.slice(xp.graph.target(x.shape), full_key(key, x.ndim))
    pieces.append((xp.graph.broadcast(v, spot.shape), spot.where))
    return xp.graph.place(x.shape, x.dtype, fill, pieces)


@rule("add_into")
def _add_into(xp: Any, total: Any, g: Any, key: Any) -> Any:
    key = key if isinstance(key, tuple) else (key,)
    if not _basic(key):
        raise NotNative("adding at positions that index arrays give has no native form")
    return _index_set(xp, total, xp.cast(total[key] + g, total.dtype), key)


def _from_start(xp: Any, i: View, length: int) -> View:
    """Return the indices ``i`` as int64, with negative indices replaced by positions from the start.

    A check that all indices are in range is added to the graph.
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
    """Return the flat positions of the elements ``x[:, i]``, for an x of shape (before, length, after).

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
    before, width = math.prod(lead), math.prod(tail)
    rows = _rows(xp, i, before, length, 1) * width
    zeros = xp.zeros((before * length * width,), g.dtype)
    flat = xp.scatter("add", zeros, xp.flat(xp.graph.copied(rows)), xp.flat(g), width)
    return xp.graph.reshape(flat, (*lead, length, *tail))


def _along(xp: Any, i: View, length: int, axis: int) -> View:
    """Return the flat positions of the elements that ``take_along_axis`` selects with the indices ``i``.

    ``length`` is the length of the array along ``axis``.
    """
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
        raise NotNative("an index array into an empty axis, or one that is broadcast, has no native form")
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


# Einstein sums ---------------------------------------------------------------------------------------


def _distinct(xp: Any, x: View, labels: str, kept: str) -> tuple[View, str]:
    """Return ``x`` with repeated and unneeded axes removed, and the labels of the axes that are left.

    A label is a letter that names an axis, as in einsum.  A repeated label selects the diagonal.  Axes whose
    labels are not in ``kept`` are summed.
    """
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
    """Return ``z`` with the axes that ``output`` names, in this order; ``labels`` names its present axes.

    ``z`` is broadcast along labels that it does not have; ``size`` has the length of each label.  If
    ``output`` repeats a label, the values are written to the diagonal of an array of zeros.
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
