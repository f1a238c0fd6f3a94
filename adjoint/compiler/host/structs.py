"""The structs of CPython and NumPy: the offsets of the members that native code reads.

``layout`` finds the offsets by inspecting objects whose contents are known.  If a member is not found,
``layout`` returns None, and programs are run by Python code instead.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
import weakref
from typing import Any, NamedTuple

import numpy as np

from adjoint.config import special
from adjoint.core.tensor import Tensor, _Extra, clock, committing, wrap

__all__ = ["Offsets", "layout", "place_of", "slot_offset", "words_at"]


class Offsets(NamedTuple):
    """The offsets in bytes of the struct members that the entry reads."""

    references: int  # the reference count of an object
    kind: int  # the type of an object
    data: int  # of an ndarray: address of the elements, number of axes, shape, dtype, flags
    ndim: int
    shape: int
    dtype: int
    flags: int
    weak: int  # of an ndarray: the list of its weak references
    tensor: int  # of a tensor: its array, node, version, and the object with its gradient
    node: int
    version: int
    extra: int
    grad: int  # of that object: the gradient, and the hooks
    hooks: int
    post_hooks: int
    items: int  # the first item of a tuple
    length: int  # of a list: its length, and the address of its items
    elements: int
    now: int  # the counter from which tensors without a graph get their version
    active: int  # the counter of ``special``
    holder: int  # the thread that holds a lock, 0 if none does


@functools.cache
def layout() -> Offsets | None:
    """Return the offsets of struct members; None if CPython's or NumPy's structs are not as expected."""
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    try:
        return _probed()
    except (ValueError, AssertionError):
        return None


def words_at(address: int, count: int) -> list[int]:
    """Return the ``count`` 64-bit words in memory at an address."""
    return list((ctypes.c_int64 * count).from_address(address))


def place_of(object_: Any, size: int, value: int) -> int:
    """Return the offset in bytes of the 64-bit word of an object that equals ``value``.

    The first ``size`` bytes are searched.  Raise AssertionError unless exactly one word is equal.
    """
    words = words_at(id(object_), size // 8)
    assert words.count(value) == 1
    return 8 * words.index(value)


def _probed() -> Offsets:
    """Return the offsets of struct members, found by searching objects for known values.

    Raise AssertionError if the objects do not agree.
    """
    arrays: list[Any] = [np.zeros((3, 5, 7), np.float32), np.ones((2, 4)), np.zeros((2, 3), order="F")]
    found: set[tuple[int, int, int, int, int, int, int]] = set()
    for a in arrays:
        size = np.ndarray.__basicsize__
        kind = place_of(a, size, id(np.ndarray))
        data, dtype = place_of(a, size, a.ctypes.data), place_of(a, size, id(a.dtype))
        ndim = data + 8
        assert ctypes.c_int32.from_address(id(a) + ndim).value == a.ndim
        shape = ndim + 8
        assert tuple(words_at(words_at(id(a) + shape, 1)[0], a.ndim)) == a.shape
        assert tuple(words_at(words_at(id(a) + shape + 8, 1)[0], a.ndim)) == a.strides
        flags = dtype + 8
        assert ctypes.c_int32.from_address(id(a) + flags).value == a.flags.num
        assert bool(a.flags.num & 1) == a.flags.c_contiguous
        assert bool(a.flags.num & 256) == a.flags.aligned
        weak = np.ndarray.__weakrefoffset__
        assert words_at(id(a) + weak, 1) == [0]
        watching = weakref.ref(a)
        assert words_at(id(a) + weak, 1) == [id(watching)]
        found.add((kind, data, ndim, shape, dtype, flags, weak))
    assert len(found) == 1
    tensors = [wrap(a) for a in arrays]
    places = {place_of(t, Tensor.__basicsize__, id(a)) for t, a in zip(tensors, arrays, strict=True)}
    assert len(places) == 1
    node, version, extra = (slot_offset(Tensor, name) for name in ("_node", "_version", "_extra"))
    grad, hooks, post_hooks = (slot_offset(_Extra, name) for name in ("grad", "hooks", "post_hooks"))
    now, active = slot_offset(type(clock), "now"), slot_offset(type(special), "count")
    marks = object(), object()
    items = place_of(marks, tuple.__basicsize__ + 16, id(marks[0]))
    assert words_at(id(marks) + items + 8, 1)[0] == id(marks[1])
    return Offsets(
        _references(), *found.pop(), places.pop(), node, version, extra, grad, hooks, post_hooks, items,
        *_list(), now, active, _holder(),
    )  # fmt: skip


def _list() -> tuple[int, int]:
    """Return the offsets, in a list object, of its length and of the address of its items."""
    mark = object()
    listed = [mark, None, mark, None, None]
    listed.append(mark)  # allocates spare room, so that only one word equals the length
    elements = next(
        8 * k
        for k, word in enumerate(words_at(id(listed), list.__basicsize__ // 8))
        if k > 2 and word > 4096 and words_at(word, 3) == [id(mark), id(None), id(mark)]
    )
    return place_of(listed, list.__basicsize__, 6), elements


def _references() -> int:
    """Return the offset of the reference count in an object."""
    listed = [object()]
    assert ctypes.c_int32.from_address(id(listed[0])).value == 1
    listed *= 5
    assert ctypes.c_int32.from_address(id(listed[0])).value == 5
    return 0


def _holder() -> int:
    """Return the offset, in a lock object, of the ident of the thread that holds the lock."""
    lock: Any = threading.RLock()
    size = type(lock).__basicsize__
    with lock:
        found = place_of(lock, size, threading.get_ident())
    assert words_at(id(lock), size // 8)[found // 8] == 0
    assert type(committing) is type(lock)
    return found


def slot_offset(kind: type, name: str) -> int:
    """Return the offset of the ``__slots__`` attribute ``name`` in instances of a class.

    It is found by setting the attribute of a new instance and searching the instance's memory.
    """
    instance: Any = object.__new__(kind)
    mark = object()
    setattr(instance, name, mark)
    return place_of(instance, kind.__basicsize__, id(mark))
