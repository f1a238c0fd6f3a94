"""The native entry of a program: a built-in function that reads arrays, runs kernels and returns new arrays.

The function reads the structs of CPython and NumPy directly.  ``layout`` finds the offsets of their members
by inspecting objects whose contents are known.  If a member is not found, ``layout`` returns None, and
programs are run by Python code instead.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from adjoint.compiler import pool, units
from adjoint.compiler.entry_text import TEXT
from adjoint.core.tensor import Tensor, _Extra, clock, committing, wrap

__all__ = ["Entry", "Given", "Layout", "Made", "Record", "layout"]


class Layout(NamedTuple):
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
    grad: int  # of that object: the gradient
    items: int  # the first item of a tuple
    length: int  # of a list: its length, and the address of its items
    elements: int
    now: int  # the counter from which tensors without a graph get their version
    holder: int  # the thread that holds a lock, 0 if none does


class Record(NamedTuple):
    """A kernel call: the address of the function, its slots, and the bounds of its loop's chunks.

    A slot is an address that the kernel receives.  It is an int, or ``("given", k)`` or ``("made", k)`` for
    the address of input or output ``k``, with an offset in bytes as an optional third item.
    """

    function: int
    slots: Sequence[int | tuple[Any, ...]]
    cuts: Sequence[int]


class Cell(NamedTuple):
    """The location of an array in a dictionary: the position of the dictionary argument, and the key."""

    position: int
    key: str


class Given(NamedTuple):
    """An input of the entry: where it is read at each call, and the dtype and shape that it must have.

    ``owner`` is a tensor, an array, the position of an argument that is a tensor or an array, or a cell.  For
    a Python number the shape is None; the number is stored as float64, and its slot has the address of that
    float64.
    """

    owner: int | Tensor | np.ndarray[Any, Any] | Cell
    dtype: Any
    shape: tuple[int, ...] | None


class Made(NamedTuple):
    """The dtype and shape of an output, for which the entry allocates an array at each call.

    If ``reuses`` is the index of an input, the output is written into the array of that input instead.  If
    anything else refers to that array, the output is a new array after all; if the input is a cell, the call
    then returns NotImplemented.
    """

    dtype: Any
    shape: tuple[int, ...]
    reuses: int | None = None


# Number of 64-bit words in the header, in the row of an input, and in the row of an output; see ``Entry``.
_HEADER, _GIVEN, _MADE = 23, 8, 8
_SPARE = 5  # word in the row of an output: the address of an array that the next call reuses
# words in the row of an output: the address of the row of the input whose memory it reuses, and the address
# of the tensor whose gradient it replaces
_INPUT, _GRADED = 6, 7
_DONE = 18  # word in the header that is 1 after a call that has written
RELEASING = 20_000  # nanoseconds: programs that take longer release the GIL
RECYCLED = 1 << 16  # bytes: programs whose outputs are not larger in total reuse the arrays they replaced


@functools.cache
def layout() -> Layout | None:
    """Return the offsets of struct members; None if CPython's or NumPy's structs are not as expected."""
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    try:
        return _probed()
    except (ValueError, AssertionError):
        return None


def _words(address: int, count: int) -> list[int]:
    """Return the ``count`` 64-bit words in memory at an address."""
    return list((ctypes.c_int64 * count).from_address(address))


def _place(object_: Any, size: int, value: int) -> int:
    """Return the offset in bytes of the 64-bit word of an object that equals ``value``.

    The first ``size`` bytes are searched.  Raise AssertionError unless exactly one word is equal.
    """
    words = _words(id(object_), size // 8)
    assert words.count(value) == 1
    return 8 * words.index(value)


def _probed() -> Layout:
    """Return the offsets of struct members, found by searching objects for known values.

    Raise AssertionError if the objects do not agree.
    """
    arrays: list[Any] = [np.zeros((3, 5, 7), np.float32), np.ones((2, 4)), np.zeros((2, 3), order="F")]
    found: set[tuple[int, int, int, int, int, int, int]] = set()
    for a in arrays:
        size = np.ndarray.__basicsize__
        kind = _place(a, size, id(np.ndarray))
        data, dtype = _place(a, size, a.ctypes.data), _place(a, size, id(a.dtype))
        ndim = data + 8
        assert ctypes.c_int32.from_address(id(a) + ndim).value == a.ndim
        shape = ndim + 8
        assert tuple(_words(_words(id(a) + shape, 1)[0], a.ndim)) == a.shape
        assert tuple(_words(_words(id(a) + shape + 8, 1)[0], a.ndim)) == a.strides
        flags = dtype + 8
        assert ctypes.c_int32.from_address(id(a) + flags).value == a.flags.num
        assert bool(a.flags.num & 1) == a.flags.c_contiguous
        assert bool(a.flags.num & 256) == a.flags.aligned
        weak = np.ndarray.__weakrefoffset__
        assert _words(id(a) + weak, 1) == [0]
        watching = weakref.ref(a)
        assert _words(id(a) + weak, 1) == [id(watching)]
        found.add((kind, data, ndim, shape, dtype, flags, weak))
    assert len(found) == 1
    tensors = [wrap(a) for a in arrays]
    places = {_place(t, Tensor.__basicsize__, id(a)) for t, a in zip(tensors, arrays, strict=True)}
    assert len(places) == 1
    node, version, extra = (_offset(Tensor, name) for name in ("_node", "_version", "_extra"))
    grad, now = _offset(_Extra, "grad"), _offset(type(clock), "now")
    marks = object(), object()
    items = _place(marks, tuple.__basicsize__ + 16, id(marks[0]))
    assert _words(id(marks) + items + 8, 1)[0] == id(marks[1])
    return Layout(
        _references(), *found.pop(), places.pop(), node, version, extra, grad, items, *_list(), now, _holder()
    )


def _list() -> tuple[int, int]:
    """Return the offsets, in a list object, of its length and of the address of its items."""
    mark = object()
    listed = [mark, None, mark, None, None]
    listed.append(mark)  # allocates spare room, so that only one word equals the length
    elements = next(
        8 * k
        for k, word in enumerate(_words(id(listed), list.__basicsize__ // 8))
        if k > 2 and word > 4096 and _words(word, 3) == [id(mark), id(None), id(mark)]
    )
    return _place(listed, list.__basicsize__, 6), elements


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
        found = _place(lock, size, threading.get_ident())
    assert _words(id(lock), size // 8)[found // 8] == 0
    assert type(committing) is type(lock)
    return found


def _offset(kind: type, name: str) -> int:
    """Return the offset of the ``__slots__`` attribute ``name`` in instances of a class.

    It is found by setting the attribute of a new instance and searching the instance's memory.
    """
    instance: Any = object.__new__(kind)
    mark = object()
    setattr(instance, name, mark)
    return _place(instance, kind.__basicsize__, id(mark))


# Index of PyArray_NewFromDescr in NumPy's table of C functions; these indices never change.
_NEW_FROM_DESCR = 94


def with_offsets(text: str, where: Layout | None) -> str | None:
    """Return LLVM IR with the upper-case names of struct members replaced by the offsets ``where``.

    None if ``where`` is None.
    """
    if where is None:
        return None
    for name, value in where._asdict().items():
        text = text.replace(name.upper(), str(value))
    return text


@units.expect
def _text() -> str | None:
    return with_offsets(TEXT, layout())


@functools.cache
def _method() -> _Method:
    """Compile the native code that all entries share, once; return its PyMethodDef."""
    text = _text()
    assert text is not None
    names = (
        "Py_IncRef", "Py_DecRef", "PyTuple_New", "PyObject_GC_UnTrack", "PyFloat_AsDouble", "PyErr_Occurred",
        "PyErr_Clear", "PyEval_SaveThread", "PyEval_RestoreThread", "PyLong_AsLongLong",
        "PyLong_FromLongLong", "PyType_GenericAlloc", "PyDict_GetItemWithError",
        "PyDict_SetItem",
    )  # fmt: skip
    imports = {n: _address(getattr(ctypes.pythonapi, n)) for n in names}
    imports |= {"ndarray": id(np.ndarray), "tensor": id(Tensor), "miss": id(NotImplemented)}
    imports |= {"none": id(None), "zero": id(0), "clock": id(clock), "committing": id(committing)}
    imports |= {"float": id(float), "int": id(int), "float64": id(np.float64), "dict": id(dict)}
    imports |= {"list": id(list)}
    imports |= {"new_array": _numpy_functions()[_NEW_FROM_DESCR], "run": pool.addresses()["run"]}
    return method(text, "call", imports)


def _address(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def _numpy_functions() -> list[int]:
    """Return the addresses in NumPy's C API table, up to that of PyArray_NewFromDescr."""
    capsule = np._core._multiarray_umath._ARRAY_API  # type: ignore[attr-defined]  # not in the stubs
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return _words(get(capsule, None), _NEW_FROM_DESCR + 1)


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_FASTCALL = 0x80
# Kept alive because built-in functions point to them.  The cache of ``_method`` is not enough: if two threads
# make a method at the same time, it keeps only one of them.
_METHODS: list[Any] = []


def method(text: str, name: str, imports: dict[str, int]) -> _Method:
    """Compile LLVM IR that defines the function ``name``; return a PyMethodDef for it, which is never freed.

    ``imports`` has the addresses of external symbols by name.  CPython reads the address of the function from
    the PyMethodDef at each call.  So when the optimised code is ready, all built-in functions made from this
    PyMethodDef run it.
    """
    found = _Method(name.encode(), None, _FASTCALL, None)
    _METHODS.append(found)

    def use(addresses: dict[str, int]) -> None:
        found.function = addresses[name]

    units.library(text, (name,), imports, use)
    return found


def built_in(native: _Method, owner: Any) -> Any:
    """Return a built-in function that runs native code; ``owner`` is its ``self``, which it keeps alive."""
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    return make(ctypes.addressof(native), owner, None)


class _Words(np.ndarray[Any, np.dtype[np.int64]]):
    """The header of an entry, as 64-bit words; ``held`` keeps alive the objects that they point to."""

    held: Any
    spare: Any = ()  # addresses of arrays that are kept for the next call; 0: none

    def __del__(self) -> None:
        for address in self.spare:
            if address:
                ctypes.pythonapi.Py_DecRef(ctypes.c_void_p(int(address)))


class Entry:
    """A program as one built-in function, ``entry.call``.

    ``entry.call(*arguments)`` returns a tuple of new arrays.  It returns NotImplemented if an argument has
    the wrong type, shape or dtype, if the program is already running (in another thread, or a finalizer calls
    it), or if one of the bytes at the addresses ``checks`` is not 0 afterwards.

    Parameters
    ----------
    records : list of Record
        The kernel calls, in order.
    runs : list of int
        The number of records in each run (a sequence of records that do not depend on each other); None if
        each record is a run.
    given : list of Given
        The inputs.
    made : list of Made
        The outputs.
    arguments : int
        The number of arguments of ``call``.
    nanoseconds : float
        The estimated time of all kernels.  If it is above ``RELEASING``, the GIL is released while they run.
    helpers : int
        The number of helper threads that may run chunks.
    checks : list of int
        Addresses of bytes that are not 0 if a check failed.
    held : object
        Keeps alive the memory that the addresses in slots point to.
    writes : list of tuple
        Pairs of a tensor and the index of an output.  The tensor gets this output as its array, and the
        returned tuple has the old array of the tensor in its place.
    grads : list of tuple
        Pairs of a tensor and the index of an output.  The gradient of the tensor becomes a new tensor with
        this output as its array, and the returned tuple has the old gradient in its place.
    always_writes : bool
        Whether a call always writes once its kernels have started, because everything that can fail is done
        before.  Outputs may then be written into the memory of inputs and of old gradients.
    counters : list of tuple
        Pairs of a dictionary and a key (a string), if the entry always writes.  The value is an int, or a
        list of equal ints.  A call adds 1 to the int, or to all items of the list.
    checked : int
        If the entry always writes, the number of records that the checks depend on.  They run first, while
        the GIL is held, and write no outputs that have the memory of inputs.
    """

    def __init__(
        self,
        records: Sequence[Record],
        given: Sequence[Given],
        made: Sequence[Made],
        arguments: int,
        nanoseconds: float = 0.0,
        helpers: int = 0,
        checks: Sequence[int] = (),
        held: Any = None,
        writes: Sequence[tuple[Tensor, int]] = (),
        grads: Sequence[tuple[Tensor, int]] = (),
        runs: Sequence[int] | None = None,
        always_writes: bool = False,
        checked: int = 0,
        counters: Sequence[tuple[dict[str, Any], str]] = (),
    ) -> None:
        tables, places = _tables(records)
        lists: list[Any] = []
        listed = functools.partial(_listed, lists)
        self.numbers = np.zeros(len(given) + 1)
        rows = np.zeros((len(given) + 1, _GIVEN), np.int64)
        for k, g in enumerate(given):
            slots = places.get(("given", k), [])
            owner = g.owner if isinstance(g.owner, int) else id(g.owner)
            if g.shape is None:
                number = self.numbers.ctypes.data + 8 * k
                for slot in slots[::2]:
                    ctypes.c_int64.from_address(slot).value = number
                rows[k] = 2, owner, 0, 0, 0, 0, number, 0
            else:
                kind = 0 if isinstance(g.owner, int) else 1
                if isinstance(g.owner, Cell):
                    kind, owner = 3, listed((g.owner.position, id(g.owner.key)))
                dtype = np.dtype(g.dtype)
                lists.append(dtype)
                shape = len(g.shape), listed(g.shape)
                rows[k] = kind, owner, id(dtype), *shape, len(slots) // 2, listed(slots), 0
        outs = _made_rows(made, places, rows, lists)
        for t, k in grads if always_writes else ():
            outs[k, _GRADED] = id(t)
        words = np.zeros(_HEADER, np.int64).view(_Words)
        rec = pool.records(
            [(r.function, t.ctypes.data, list(r.cuts)) for r, t in zip(records, tables, strict=True)], runs
        )
        first = checked if always_writes and checks else 0
        rest = rec.ctypes.data + 8 * pool.RECORD * first
        release = nanoseconds > RELEASING
        written, graded = (listed([x for t, k in each for x in (id(t), k, 0)]) for each in (writes, grads))
        size = sum(math.prod(m.shape) * np.dtype(m.dtype).itemsize for m in made)
        words[:] = (
            0, arguments, len(given), rows.ctypes.data, len(made), outs.ctypes.data,
            len(records) - first, rest, helpers if release else 0, release, len(checks), listed(checks),
            len(writes), written, len(grads), graded,
            size <= RECYCLED, always_writes, 0, first, rec.ctypes.data,
            len(counters), listed([x for space, key in counters for x in (id(space), id(key), 0)]),
        )  # fmt: skip
        words.held = (
            tables,
            lists,
            self.numbers,
            rows,
            outs,
            rec,
            list(given),
            list(writes),
            list(grads),
            list(counters),
            [r.function for r in records],  # keeps the code of the kernels loaded
            held,
        )
        words.spare = outs[:, _SPARE]
        self.words = words
        self.call = built_in(_method(), words)

    def is_done(self) -> bool:
        """Return whether the last call has stored its outputs in the tensors."""
        return bool(self.words[_DONE])


def _listed(lists: list[Any], values: Sequence[int]) -> int:
    """Copy ``values`` and a final 0 to a new array, which ``lists`` keeps alive; return its address."""
    lists.append(np.array([*values, 0], np.int64))
    return int(lists[-1].ctypes.data)


def _made_rows(
    made: Sequence[Made], places: dict[tuple[str, int], list[int]], rows: Any, lists: list[Any]
) -> Any:
    """Return the table of the outputs ``made``, with one row of ``_MADE`` words for each output.

    ``places`` has the slots of each output (see ``_tables``), and ``rows`` is the table of inputs.  Objects
    that the table points to are appended to ``lists``, which keeps them alive.
    """
    outs = np.zeros((len(made) + 1, _MADE), np.int64)
    for k, m in enumerate(made):
        slots = places.get(("made", k), [])
        dtype = np.dtype(m.dtype)
        lists.append(dtype)
        shape = len(m.shape), _listed(lists, m.shape)
        outs[k, :_SPARE] = id(dtype), *shape, len(slots) // 2, _listed(lists, slots)
        if m.reuses is not None:
            outs[k, _INPUT] = rows[m.reuses].ctypes.data
    return outs


def _tables(records: Sequence[Record]) -> tuple[list[Any], dict[tuple[str, int], list[int]]]:
    """Return the argument table of each record (kernel call), and the slots that are filled at each call.

    The second result maps ``("given", k)`` and ``("made", k)`` to a flat list with two items per slot: the
    address of the slot, and an offset in bytes that is added to the address of the input or output.
    """
    tables = []
    places: dict[tuple[str, int], list[int]] = {}
    for r in records:
        table = np.zeros(len(r.slots) + 1, np.int64)
        for k, slot in enumerate(r.slots):
            if isinstance(slot, tuple):
                found = places.setdefault(slot[:2], [])
                found += [int(table.ctypes.data + 8 * k), slot[2] if len(slot) > 2 else 0]
            else:
                table[k] = slot
        tables.append(table)
    return tables, places
