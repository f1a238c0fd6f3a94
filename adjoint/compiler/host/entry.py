"""The native entry of a program: a built-in function that reads arrays, runs kernels and returns new arrays.

The function reads the structs of CPython and NumPy directly; see ``structs``.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from adjoint.compiler.build import units
from adjoint.compiler.emit.code import Library, NativeFunction, Tables, Words
from adjoint.compiler.host import pool
from adjoint.compiler.host.entry_text import call
from adjoint.compiler.host.objects import Objects, addresses
from adjoint.compiler.host.structs import layout, words_at
from adjoint.compiler.host.words import Head, Input, Kind, Output
from adjoint.core.tensor import Tensor

__all__ = ["Entry", "Given", "Made", "Record", "layout"]


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


RELEASING = 20_000  # nanoseconds: programs that take longer release the GIL


# Index of PyArray_NewFromDescr in NumPy's table of C functions; these indices never change.
_NEW_FROM_DESCR = 94


def _numpy_functions() -> list[int]:
    """Return the addresses in NumPy's C API table, up to that of PyArray_NewFromDescr."""
    capsule = np._core._multiarray_umath._ARRAY_API  # type: ignore[attr-defined]  # not in the stubs
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return words_at(get(capsule, None), _NEW_FROM_DESCR + 1)


class _BoundMethod(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_FASTCALL = 0x80
# Kept alive because built-in functions point to them.  A cache is not enough: if two threads make a method at
# the same time, it keeps only one of them.
_METHODS: list[Any] = []


def method(text: str, name: str, imports: dict[str, int]) -> _BoundMethod:
    """Compile LLVM IR that defines the function ``name``; return a PyMethodDef for it, which is never freed.

    ``imports`` has the addresses of external symbols by name.  CPython reads the address of the function from
    the PyMethodDef at each call.  So when the optimised code is ready, all built-in functions made from this
    PyMethodDef run it.
    """
    found = _BoundMethod(name.encode(), None, _FASTCALL, None)
    _METHODS.append(found)

    def use(addresses: dict[str, int]) -> None:
        found.function = addresses[name]

    units.library(text, (name,), imports, use)
    return found


def built_in(native: _BoundMethod, owner: Any) -> Any:
    """Return a built-in function that runs native code; ``owner`` is its ``self``, which it keeps alive."""
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    return make(ctypes.addressof(native), owner, None)


class PythonFunction:
    """A native function that Python calls, with its library, which is compiled once.

    ``imports()`` returns the addresses of external symbols that are not functions of CPython, by name.
    """

    def __init__(self, function: NativeFunction, imports: Callable[[], dict[str, int]] = dict) -> None:
        self.name, self.imports = function.name, imports
        self.library = functools.cache(lambda: Library(function, writer=Objects))
        self.method = functools.cache(self._method)
        units.expect(self.text)

    def text(self) -> str | None:
        """Return the LLVM IR of the library; None if CPython's structs are not known."""
        return None if layout() is None else self.library().text

    def _method(self) -> _BoundMethod:
        library = self.library()
        return method(library.text, self.name, addresses(library) | self.imports())

    def bound(self, owner: Any) -> Any:
        """Return a built-in function that runs the native code on ``owner``."""
        return built_in(self.method(), owner)


_call = PythonFunction(
    call, lambda: {"new_array": _numpy_functions()[_NEW_FROM_DESCR], "run": pool.addresses()["run"]}
)


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
        Pairs of a dictionary and a key (a string).  The value is an int, or a list of equal ints.  A call
        adds 1 to the int, or to all items of the list.
    checked : int
        If the entry always writes, the number of records that the checks depend on.  They run first, while
        the GIL is held, and write no outputs that have the memory of inputs.
    parts : list of tuple
        If the program calls Python: the first record, the end of the records, and the node of the call after
        them or None, for each part of the program.
    calls : callable
        Returns a ``HostCalls``, which makes the functions of these nodes, given the tables of the entry.
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
        parts: Sequence[tuple[int, int, Any]] = (),
        calls: Callable[..., Any] | None = None,
    ) -> None:
        tables, places = _tables(records)
        memory = _Memory(places)
        self.numbers = np.zeros(len(given) + 1)
        rows = memory.input_rows(given, self.numbers)
        outs = memory.output_rows(made, rows)
        for t, k in grads if always_writes else ():
            outs[k, Output.GRADED] = id(t)
        rec = pool.records(
            [(r.function, t.ctypes.data, list(r.cuts)) for r, t in zip(records, tables, strict=True)], runs
        )
        first = checked if always_writes and checks else 0
        python: Any = None if calls is None else calls(rows, self.numbers, places)
        functions = [None if n is None else python.function(n) for *_, n in parts]
        start, size = rec.ctypes.data, 8 * pool.RECORD
        listed = [
            (high - low, start + size * low, 0 if f is None else id(f))
            for (low, high, _), f in zip(parts, functions, strict=True)
        ]
        release = nanoseconds > RELEASING
        words = np.zeros(Head.SIZE, np.int64).view(Words)
        words[Head.ARGUMENTS], words[Head.RELEASES] = arguments, release
        words[Head.HELPERS] = helpers if release else 0
        words[Head.ALWAYS] = always_writes
        for head, table in (
            (Head.INPUTS, (len(given), rows.ctypes.data)),
            (Head.OUTPUTS, (len(made), outs.ctypes.data)),
            (Head.FIRST, (first, rec.ctypes.data)),
            (Head.RECORDS, (len(records) - first, rec.ctypes.data + 8 * pool.RECORD * first)),
            (Head.CHECKS, memory.table([(address,) for address in checks])),
            (Head.ARRAYS, memory.table([(id(t), k, 0) for t, k in writes])),
            (Head.GRADS, memory.table([(id(t), k, 0) for t, k in grads])),
            (Head.COUNTERS, memory.table([(id(d), id(key), 0) for d, key in counters])),
            (Head.PARTS, memory.table(listed)),
        ):
            words[head : head + 2] = table
        code = [r.function for r in records]  # keeps the code of the kernels loaded
        owners = list(given), list(writes), list(grads), list(counters)
        words.held = tables, memory.kept, self.numbers, rows, outs, rec, owners, code, functions, held
        self.words = words
        self.call = _call.bound(words)


class _Memory(Tables):
    """Makes the tables of an entry; ``places`` has the slots of each input and output, see ``_tables``."""

    def __init__(self, places: dict[tuple[str, int], list[int]]) -> None:
        super().__init__()
        self.places = places

    def _slots(self, kind: str, k: int) -> tuple[int, int]:
        """Return the table of the slots of an input or output."""
        slots = self.places.get((kind, k), [])
        return len(slots) // 2, self.listed(slots)

    def input_rows(self, given: Sequence[Given], numbers: Any) -> Any:
        """Return the table of the inputs; Python numbers are stored in the array ``numbers``."""
        rows = np.zeros((len(given) + 1, Input.SIZE), np.int64)
        for k, g in enumerate(given):
            owner = g.owner if isinstance(g.owner, int) else id(g.owner)
            if g.shape is None:
                number = numbers.ctypes.data + 8 * k
                for slot in self.places.get(("given", k), [])[::2]:
                    ctypes.c_int64.from_address(slot).value = number
                rows[k, Input.KIND], rows[k, Input.OWNER] = Kind.NUMBER, owner
                rows[k, Input.NUMBER] = number
                continue
            kind = Kind.ARGUMENT if isinstance(g.owner, int) else Kind.FIXED
            if isinstance(g.owner, Cell):
                kind, owner = Kind.CELL, self.listed((g.owner.position, id(g.owner.key)))
            rows[k] = kind, owner, *self.spec(g.dtype, g.shape), *self._slots("given", k), 0
        return rows

    def output_rows(self, made: Sequence[Made], rows: Any) -> Any:
        """Return the table of the outputs; ``rows`` is the table of the inputs."""
        outs = np.zeros((len(made) + 1, Output.SIZE), np.int64)
        for k, m in enumerate(made):
            outs[k, : Output.INPUT] = *self.spec(m.dtype, m.shape), *self._slots("made", k)
            if m.reuses is not None:
                outs[k, Output.INPUT] = rows[m.reuses].ctypes.data
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
