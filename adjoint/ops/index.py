"""Indexing: reading by any NumPy index, and writing in place."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from adjoint.config import grad_mode, special
from adjoint.core.batching import Batched, full_batch, held, to_axis
from adjoint.core.convert import array_of, asarray, weak_array, weak_tensor
from adjoint.core.define import define
from adjoint.core.inplace import refuse_view, refuse_write, writable
from adjoint.core.lifted import Unknown, located, refusal, tracing
from adjoint.core.namespace import raw, rec
from adjoint.core.native import Primitives, View, full_key
from adjoint.core.op import Op
from adjoint.core.shapes import Shape, broadcast_shapes
from adjoint.core.tensor import Tensor, Traced, castable, note_reading, note_view, wrap
from adjoint.core.values import tracked, unknown
from adjoint.errors import DTypeError, IndexingError, InPlaceError, ShapeError
from adjoint.ops.scatter import add_few, add_flat, as_index, from_start, row_positions
from adjoint.tracebacks import hide
from adjoint.typing import Array, ArrayLike, Key

__all__: list[str] = []

CanonicalKey = tuple[Any, ...]


def canonical_key(shape: Shape, key: Any, check: bool = True) -> CanonicalKey:
    """Return an index as a tuple of slices, ints, arrays, None and one Ellipsis; raise if it is not valid.

    A valid index matches ``shape``.  Boolean masks become the positions of their true elements.  With
    ``check=False``, it is not checked whether integers are in range, because NumPy does so later.  This saves
    a third of the time.
    """
    plain = _plain_key(shape, key if type(key) is tuple else (key,))
    if plain is not None:
        return plain
    items = [_key_item(k) for k in (key if isinstance(key, tuple) else (key,))]
    if sum(k is Ellipsis for k in items) > 1:
        raise IndexingError("an index can have only one ellipsis (...), but this index has more.")
    used = sum(map(_consumes, items))
    if used > len(shape):
        raise IndexingError(
            f"too many indices: the index is for {used} axes, but the tensor of shape {shape} has "
            f"{len(shape)}."
        )
    checked: list[Any] = []
    axis = 0
    for k in items:
        if isinstance(k, np.ndarray) and k.dtype == bool:
            # the Array API and NumPy accept a mask axis of length 0 for any length
            if any(n not in (0, m) for n, m in zip(k.shape, shape[axis:], strict=False)):
                raise IndexingError(
                    f"a mask must have the lengths of the axes that it selects from, but has shape {k.shape} "
                    f"for axes {axis} to {axis + k.ndim - 1} of shape {shape}."
                )
            checked.extend(np.nonzero(k))
        else:
            if check and _consumes(k):
                _check_item(shape, axis, k)
            checked.append(k)
        axis += len(shape) - used if k is Ellipsis else _consumes(k)
    if not any(k is Ellipsis for k in checked):
        checked.append(Ellipsis)
    return tuple(checked)


def _plain_key(shape: Shape, key: tuple[Any, ...]) -> CanonicalKey | None:
    """Return the result of ``canonical_key``, faster, for an index of ints, slices, None and Ellipsis.

    Return None for any other index, and for one that is not valid.
    """
    axis, gap = 0, len(key)
    for i, k in enumerate(key):
        kind = type(k)
        if kind is slice:
            for bound in (k.start, k.stop, k.step):
                if bound is not None and type(bound) is not int:
                    return None
            if k.step == 0:
                return None
            axis += 1
        elif kind is int:
            axis += 1
        elif k is Ellipsis:
            if gap != len(key):
                return None
            gap = i
        elif k is not None:
            return None
    rest = len(shape) - axis
    if rest < 0:
        return None
    axis = 0
    for i, k in enumerate(key):
        if type(k) is int:
            n = shape[axis]
            if not -n <= k < n:
                return None  # canonical_key then raises the error
        if i == gap:
            axis += rest
        elif k is not None:
            axis += 1
    return key if gap != len(key) else (*key, Ellipsis)


def _consumes(k: Any) -> int:
    """Return how many axes of the tensor ``k``, one item of an index tuple, selects from."""
    if k is None or k is Ellipsis or type(k) is bool:
        return 0
    return k.ndim if isinstance(k, np.ndarray) and k.dtype == bool else 1


def _key_item(k: Any) -> Any:
    if k is None or k is Ellipsis or type(k) is int or type(k) is bool:
        return k
    if isinstance(k, slice):
        whole = slice(*(None if s is None else _whole(s) for s in (k.start, k.stop, k.step)))
        if whole.step == 0:
            raise IndexingError(f"the step of a slice must not be 0, but the slice is {whole}.")
        return whole
    if isinstance(k, (str, bytes)):
        raise IndexingError(f"an index must consist of integers, slices and masks, but contains {k!r}.")
    array = array_of(k)
    if array.dtype == bool:
        return array if array.ndim else bool(array)
    if array.dtype.kind not in "iu" and array.size:
        raise IndexingError(
            f"an index must consist of integers, slices and masks, but contains {array.dtype} values.\n"
            "  To use the values as integers, cast them: i.astype(int)."
        )
    return int(array) if array.ndim == 0 else np.array(as_index(raw, array))


def _whole(value: Any) -> int:
    try:
        return value.__index__()
    except (AttributeError, TypeError):
        if type(value) is Traced and value._data.numbers() is None:
            text = (
                "the bounds and step of a slice must be integers or None, but one is a tensor whose value is "
                "not known inside ad.compile and ad.vmap; the shape of the result would depend on it.\n"
                "  Pass the bound as a Python int, or select with ad.where(ad.arange(len(x)) < n, x, 0).  "
                "For a slice of fixed length, use indices: x[start + ad.arange(3)]."
            )
            raise refusal(IndexingError(located(text, isinstance(value._data, Unknown)))) from None
        raise IndexingError(
            f"the bounds and step of a slice must be integers or None, but one is {value!r}.\n"
            "  Convert it: int(n)."
        ) from None


def _check_item(shape: Shape, axis: int, k: Any) -> None:
    n = shape[axis]
    if type(k) is int:
        if not -n <= k < n:
            raise IndexingError(f"index {k} is out of range for axis {axis} of length {n}.")
    elif isinstance(k, np.ndarray) and k.size:
        low, high = int(k.min()), int(k.max())
        if low < -n or high >= n:
            bad = high if high >= n else low
            raise IndexingError(f"index {bad} is out of range for axis {axis} of length {n}.")


def is_basic(key: CanonicalKey) -> bool:
    """Return whether a key contains no arrays, so that it selects each element at most once."""
    return not any(isinstance(k, (np.ndarray, bool)) for k in key)


def flat_positions(key: CanonicalKey, shape: Shape) -> Any:
    """Return the positions, in the flattened tensor, of the elements that a key with arrays selects."""
    arrays = 0
    while arrays < len(key) and isinstance(key[arrays], np.ndarray):
        arrays += 1
    size = math.prod(shape)
    if key[arrays:] in ((), (Ellipsis,)):  # x[i], x[i, j], x[mask]: rows
        rows, after = 0, size
        for k, n in zip(key[:arrays], shape, strict=False):
            rows = rows * n + from_start(k, n)
        for n in shape[:arrays]:
            after //= n or 1
        return row_positions(np.asarray(rows), 1, 0, after)
    return np.arange(size).reshape(shape)[key].reshape(-1)


def _unindex(g: Array, key: CanonicalKey, shape: Shape) -> Any:
    """Return zeros of ``shape`` with ``g`` added at ``key``; values at repeated positions are summed."""
    if not is_basic(key):
        few = add_few(g, key, shape)
        return add_flat(g, flat_positions(key, shape), shape) if few is None else few
    out = np.zeros(shape, g.dtype)
    out[key] = g
    return out


def _index_set(x: Array, v: Array, key: CanonicalKey) -> Any:
    out = np.array(x, dtype=np.result_type(x, v) if hasattr(v, "dtype") else None)
    out[key] = v
    return out


def _front(key: tuple[Any, ...]) -> int:
    """Return the position of the batch axis in ``x[(:, *key)]``, where it is the first axis of x.

    It is 0, unless ``key`` has index arrays that are not adjacent: NumPy puts their axes before it.
    """
    spread = [isinstance(k, (np.ndarray, bool, np.bool_)) for k in key]
    if not any(spread):
        return 0
    spread = [s or isinstance(k, (int, np.integer)) for s, k in zip(spread, key, strict=True)]
    first, last = spread.index(True), len(spread) - 1 - spread[::-1].index(True)
    if all(spread[first : last + 1]):
        return 0
    arrays = (np.asarray(k) for k, s in zip(key, spread, strict=True) if s)
    return len(np.broadcast_shapes(*(k.shape for k in arrays)))


def _index_batch(op: Op, size: int, /, x: Batched, key: tuple[Any, ...]) -> Any:
    return to_axis(held.index(x.value, key=(slice(None), *key)), _front(key), 0)


def _unindex_batch(op: Op, size: int, /, x: Batched, key: tuple[Any, ...], shape: tuple[int, ...]) -> Any:
    value = to_axis(x.value, 0, _front(key))
    return held.unindex(value, key=(slice(None), *key), shape=(size, *shape))


def _index_set_batch(op: Op, size: int, /, x: Array, v: Array, key: tuple[Any, ...]) -> Any:
    base = full_batch(x, size)
    if isinstance(v, Batched):
        spot = np.broadcast_to(np.int8(0), x.shape)[key].ndim
        lengths = (*(1,) * (spot - v.ndim), *v.shape)
        v = held.reshape(v.value, shape=(size if v.batched else 1, *lengths))
        v = to_axis(v, 0, _front(key))
    return held.index_set(base, v, key=(slice(None), *key))


def _positions(shape: Shape, key: Any) -> Any:
    """Return the positions, in the flattened array, of the elements that an index selects."""
    return np.arange(math.prod(shape)).reshape(shape)[key]


def _native_index(xp: Primitives, x: View, key: Any) -> View:
    x = xp.view(x)
    if is_basic(key):
        return xp.graph.slice(x, full_key(key, x.ndim))
    return xp.gather(x, xp.view(_positions(x.shape, key)))


def _native_unindex(xp: Primitives, g: View, key: Any, shape: Shape) -> View:
    if is_basic(key):
        return xp.placed(shape, 0, g.dtype, [(g, key)])
    at = _positions(shape, key)
    zeros = xp.full((math.prod(shape),), 0, g.dtype)
    return xp.graph.reshape(xp.scatter("add", zeros, xp.view(at.reshape(-1)), xp.flat(g)), shape)


def _native_index_set(xp: Primitives, x: View, v: View, key: Any) -> View:
    x, v = xp.alike(xp.view(x), v)
    if is_basic(key):
        return _native_set_basic(xp, x, v, key)
    at = _positions(x.shape, key)
    v = xp.graph.broadcast(v, at.shape)
    return xp.graph.reshape(xp.scatter("set", xp.flat(x), xp.view(at.reshape(-1)), xp.flat(v)), x.shape)


def _native_set_basic(xp: Primitives, x: View, v: View, key: Any) -> View:
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


define("index", lambda x, key: x[key], lambda xp, g, y, x, key: xp.unindex(g, key=key, shape=x.shape),
       kind="linear", params=("key",), selects=True, places=True, batch=_index_batch, reference="numpy", lower=_native_index, memory="view", sparsity="move", doc="The elements at an index.")  # fmt: skip
define("unindex", _unindex, lambda xp, g, y, x, key, shape: xp.index(g, key=key),
       kind="linear", params=("key", "shape"), batch=_unindex_batch, reference="formula", lower=_native_unindex, sparsity="scatter", doc="Zeros with elements added at an index.")  # fmt: skip
define("index_set", _index_set,
       lambda xp, g, z, x, y, key: xp.index_set(g, 0, key=key),
       lambda xp, g, z, x, y, key: xp.index(g, key=key),
       kind="linear", params=("key",), selects=True, batch=_index_set_batch, reference="formula", lower=_native_index_set, sparsity="move", doc="A copy of x with values written at an index that selects no element twice.")  # fmt: skip


def getitem(x: Tensor, key: Key) -> Tensor:
    """Return ``x[key]`` for any index that NumPy accepts; gradients of repeated elements are summed.

    Parameters
    ----------
    x : Tensor
        The tensor.
    key : index
        Integers, slices, masks and index arrays.

    Returns
    -------
    Tensor
        The elements; a view where NumPy returns one.

    Raises
    ------
    IndexingError
        If the index does not match the shape.
    """
    if type(key) is int and type(x) is Tensor:  # the usual case in code that works element by element
        shape = x._data.shape
        if shape and -shape[0] <= key < shape[0]:
            if special.count or (x._node is not None and grad_mode.get()):
                return rec.index(x, key=(key, ...))
            out = wrap(x._data[key, ...])  # 1.0 µs instead of 1.4 by the op
            note_view(out, x)
            return out
    elif (
        type(key) is slice
        and type(x) is Tensor
        and x._data.shape
        and key.step is None
        and (key.start is None or type(key.start) is int)
        and (key.stop is None or type(key.stop) is int)
    ):
        return rec.index(x, key=(key, ...))
    try:
        if has_traced(key):
            return _index_traced(x, key)
        found = canonical_key(x.shape, key, type(x) is not Tensor)
        try:
            return rec.index(x, key=found)
        except (ShapeError, IndexingError) as error:
            problem = str(error)
        canonical_key(x.shape, key)  # raises a precise error in most cases
        raise IndexingError(f"cannot index shape {x.shape}: {problem}")
    except Exception as error:
        hide(error)
        raise


def setitem(x: Tensor, key: Key, value: ArrayLike) -> None:
    """Write into the elements ``x[key]`` in place; no gradient flows to the value.

    Parameters
    ----------
    x : Tensor
        The tensor.
    key : index
        Integers, slices, masks and index arrays.
    value : array_like
        The value, which broadcasts.

    Raises
    ------
    InPlaceError
        If the value requires grad, or ``x`` must not be written to.
    """
    if isinstance(value, Tensor) and tracked(value) and grad_mode.get():
        raise InPlaceError(
            "x[key] = value: the value requires grad, but no gradient flows through an assignment in place.\n"
            "  Use x = x.at[key].set(value), or x = x.at[key].add(v) instead of x[key] += v.  "
            "If no gradient is needed, assign value.detach(), or use ad.no_grad()."
        )
    if special.count and (trace := tracing.get()) is not None:
        trace.touch((x, value))
        if unknown(x) is x._data:  # a traced tensor: the assignment becomes an op of the trace
            _set_traced(x, key, value)
            return
    for t in (x, value):
        if type(t) is Traced and t._data.numbers() is None:
            t._data.check_running()
            raise InPlaceError(
                f"x[key] = value: elements of a tensor cannot be assigned inside {t._data.transform}.\n"
                "  Use x = x.at[key].set(value), or x += value for the whole tensor."
            )
    key = canonical_key(x.shape, key)
    value = weak_array(value, x.dtype) if type(value) in (bool, int, float) else array_of(value)
    _check_fits(x, key, value)
    writable(x)[key] = value


def _check_fits(x: Tensor, key: CanonicalKey, value: Any) -> None:
    spot = np.broadcast_to(np.int8(0), x.shape)[key].shape  # the shape of x[key], without reading x
    if broadcast_shapes("x[key] = value", spot, value.shape) != spot:
        raise ShapeError(
            f"x[key] = value: x[key] has shape {spot}, to which a value of shape {value.shape} cannot be "
            "broadcast."
        )
    if not castable(value.dtype, x.dtype):
        raise DTypeError(
            f"x[key] = value: {value.dtype} values cannot be written into a {x.dtype} tensor.  Cast one of "
            "them."
        )


def _set_traced(x: Tensor, key: Any, value: Any) -> None:
    """Assign ``x[key] = value`` inside a trace.

    The traced array of ``x`` is replaced by a copy with the elements assigned; nothing is written in place.
    """
    refuse_write(x)
    refuse_view(x)
    if has_traced(key):
        raise refusal(
            InPlaceError(
                located(
                    "x[key] = value: inside ad.compile the key must not be a tensor that depends on the "
                    "function's arguments.\n"
                    "  Use x = x.at[key].set(value), or x = ad.where(mask, value, x) for a mask."
                )
            )
        )
    key = canonical_key(x.shape, key)
    new = weak_tensor(value, x.dtype).detach()
    _check_fits(x, key, new)
    if new.dtype != x.dtype:
        new = rec.astype(new, dtype=x.dtype)
    x._data = rec.index_set(x.detach(), new, key=key)._data
    x._version += 1


def has_traced(key: Any) -> bool:
    """Return whether an index contains tensors whose values are not known, because a transform traces them.

    Inside ``ad.compile``, this includes tensors that were created outside of the function.
    """
    if special.count and tracing.get() is not None:
        note_reading(*(key if type(key) is tuple else (key,)))
    if type(key) is tuple:
        return any([type(k) is Traced and k._data.numbers() is None for k in key])  # noqa: C419  a generator costs more
    return type(key) is Traced and key._data.numbers() is None


def _index_traced(x: Tensor, key: Any) -> Tensor:
    """Return ``x[key]`` for a key in which some integers are traced tensors; masks are not supported."""
    items = list(key) if type(key) is tuple else [key]
    given = sum(k is not None and k is not Ellipsis for k in items)
    gaps = [n for n, k in enumerate(items) if k is Ellipsis]
    if given > x.ndim or len(gaps) > 1:
        raise IndexingError(
            f"an index with {given} items cannot be used for shape {x.shape}: it has too many items or more "
            "than one ellipsis (...)."
        )
    gap = gaps[0] if gaps else len(items)
    items[gap : gap + 1] = [slice(None)] * (x.ndim - given)
    chosen = [n for n, k in enumerate(items) if isinstance(k, (int, np.ndarray, np.generic, Tensor))]
    whole = [slice(None) if n in chosen else k for n, k in enumerate(items)]
    if any(k != slice(None) for k in whole):
        x = rec.index(x, key=canonical_key(x.shape, tuple(whole)))
    first = chosen[0]
    if chosen[-1] - first >= len(chosen):  # not adjacent: NumPy then puts their axes before all others
        rest = [n for n in range(x.ndim) if n not in chosen]
        x, first = rec.permute_dims(x, axes=tuple([n - x.ndim for n in (*chosen, *rest)])), 0
    rows, i = _merged_rows(x, [items[n] for n in chosen], first)
    return rec.take(rows, i, axis=first - rows.ndim)


def traced_rows(x: Tensor, key: Any) -> tuple[Tensor, Tensor]:
    """Return a reshaped ``x``, called rows, and an index i such that rows[i] is ``x[key]``.

    ``key`` has integers for the first axes, some of them traced; these axes are merged in the result.
    """
    items = list(key) if type(key) is tuple else [key]
    items = items[:-1] if items[-1] is Ellipsis else items
    if len(items) > x.ndim or not all(isinstance(k, (int, np.ndarray, Tensor)) for k in items):
        traced = any(isinstance(k, Tensor) and isinstance(k._data, Unknown) for k in items)
        text = (
            "inside a transform, an index with tensors that depend on the function's arguments can consist "
            "only of integers for the first axes.\n"
            "  Use ad.take or ad.take_along_axis for other axes, and ad.where instead of a mask."
        )
        raise refusal(IndexingError(located(text, traced)), traced)
    return _merged_rows(x, items, 0)


def _no_index(dtype: Any, traced: bool) -> str:
    """Return the text of the error for a tensor of this dtype as an index inside a transform.

    ``traced`` says whether ``ad.compile`` traces the tensor.
    """
    if dtype.kind != "b":
        return (
            f"inside a transform, indices must be integers, but have dtype {dtype}.\n"
            "  To use the values as integers, cast them: i.astype(int)."
        )
    if not traced:
        return (
            "inside a transform, indices must be integers, but have dtype bool.\n"
            "  Use ad.where instead of a mask."
        )
    return (
        "a mask cannot be an index inside ad.compile, because the shape of the result would depend on values.\n"
        "  Use ad.where(mask, a, b)."
    )


def _merged_rows(x: Tensor, items: list[Any], first: int) -> tuple[Tensor, Tensor]:
    """Return ``x`` with the axes that ``items`` index merged into the axis ``first``, and the merged index.

    ``items`` are integers or tensors of integers, one for each of these axes.  An index that is out of range
    for its own axis becomes out of range for the merged axis, so that the op that uses it raises.
    """
    lengths = x.shape[first : first + len(items)]
    count = math.prod(lengths)
    position: Any = 0
    inside: Any = True
    for axis, (k, n) in enumerate(zip(items, lengths, strict=True), first):
        i = asarray(k)
        if isinstance(i._data, Unknown):
            i._data.explain(functools.partial(_check_item, x.shape, axis))
        if i.dtype.kind not in "iu":
            traced = isinstance(i._data, Unknown)
            raise refusal(IndexingError(located(_no_index(i.dtype, traced), traced)), traced)
        i = as_index(rec, i)
        i = rec.where(rec.less(i, 0), rec.add(i, n), i)
        position = rec.add(rec.multiply(position, n), i)
        inside = rec.logical_and(inside, rec.logical_and(rec.less(-1, i), rec.less(i, n)))
    rows = rec.reshape(x, shape=(*x.shape[:first], count, *x.shape[first + len(items) :]))
    return rows, rec.where(inside, position, count)
