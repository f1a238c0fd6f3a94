"""Libraries of native functions that work on addresses and on tables of 64-bit words.

A function of a library is a Python function that emits its body:

    @native("i1")
    def is_empty(w: Code, table: Value) -> Value:
        return w.same(w.word(table, 0), 0)

``is_empty(w, table)`` emits a call of it, and adds its definition to the unit if it is not there yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from adjoint.compiler.emit.machine import Machine
from adjoint.compiler.emit.values import Index, Value
from adjoint.compiler.emit.writer import UnitText, Writer

__all__ = ["NULL", "Code", "External", "Library", "NativeFunction", "Tables", "Words", "native"]

NULL = Value("null", "ptr")
_PLAIN = Machine("none", 0, 16, False, False, "", "", 1)  # this code has no vectors


class Code(Writer):
    """The text of a function of a library, while it is generated.

    Arguments that are Python numbers become 64-bit integers, and None is the null address.
    """

    def __init__(self, machine: Machine = _PLAIN, unit: UnitText | None = None) -> None:
        super().__init__(machine, unit)
        self._ended = False  # whether the current block has ended, so that nothing can follow

    # Control flow -------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Add an instruction, unless the current block has ended."""
        if not self._ended:
            super().line(text)

    def label(self, name: str) -> None:
        """Start a basic block."""
        super().label(name)
        self._ended = False

    def _end(self, text: str) -> None:
        self.line(text)
        self._ended = True

    def mark(self, name: str) -> None:
        """Start a basic block that also follows the current one."""
        self.line(f"br label %{name}")
        self.label(name)

    def goto(self, name: str) -> None:
        """Continue at the block ``name``."""
        self._end(f"br label %{name}")

    def give(self, value: Any = NULL) -> None:
        """Return ``value`` from the function."""
        self._end(f"ret {self.value(value).typed}")

    def give_nothing(self) -> None:
        """Return from a function without a result."""
        self._end("ret void")

    def give_if(self, condition: Value, value: Any = NULL) -> None:
        """Return ``value`` from the function if a condition is true."""
        with self.when(condition):
            self.give(value)

    def give_unless(self, condition: Value, value: Any = NULL) -> None:
        """Return ``value`` from the function if a condition is false."""
        self.give_if(self.invert(condition), value)

    @contextmanager
    def unless(self, condition: Value) -> Iterator[None]:
        """Return a context manager: code emitted inside it runs only if ``condition`` is false."""
        with self.when(self.invert(condition)):
            yield

    @contextmanager
    def count(self, count: Any, first: int = 0) -> Iterator[Value]:
        """Return a context manager: code emitted inside it runs for each integer from ``first`` to ``count``.

        The integer is the value of the context; ``count`` is not included.
        """
        at = self.scratch("i64", 1)
        head = self._fresh("loop")
        self.store(self.value(first), at)
        self.mark(head)
        k = self.load(at, "i64")
        with self.when(self.compare("slt", k, self.value(count))):
            yield k
            self.store(self.add(k, 1), at)
            self.goto(head)

    @contextmanager
    def rows(self, words: Value, first: Index, width: int) -> Iterator[tuple[Value, Value]]:
        """Return a context manager: code emitted inside it runs for each row of a table.

        The word ``first`` of ``words`` has the number of rows, and the next word their address; a row has
        ``width`` words.  The index and the address of the row are the value of the context.
        """
        rows = self.word(words, self.plus(first, 1), "ptr")
        with self.count(self.word(words, first)) as k:
            yield k, self.at(rows, "i64", self.times(k, width))

    # Values -------------------------------------------------------------------------------------

    def value(self, x: Any) -> Value:
        """Return an int as a 64-bit integer, True or False as a flag, and None as the null address."""
        if isinstance(x, Value):
            return x
        if x is None:
            return NULL
        return self.const(x, "i1" if isinstance(x, bool) else "i64")

    def same(self, a: Value, b: Any) -> Value:
        """Emit a flag: whether two addresses or integers are equal."""
        return self.compare("eq", a, b)

    def differ(self, a: Value, b: Any) -> Value:
        """Emit a flag: whether two addresses or integers are not equal."""
        return self.compare("ne", a, b)

    def is_null(self, a: Value) -> Value:
        """Emit a flag: whether an address is null."""
        return self.same(a, NULL)

    def all(self, first: Value, *others: Value) -> Value:
        """Emit a flag: whether all flags are true."""
        for other in others:
            first = self.bits("and", first, other)
        return first

    def either(self, first: Value, *others: Value) -> Value:
        """Emit a flag: whether one of the flags is true."""
        for other in others:
            first = self.bits("or", first, other)
        return first

    # Memory -------------------------------------------------------------------------------------

    def field(self, address: Value, offset: int, element: str = "ptr") -> Value:
        """Emit the member of a struct that is ``offset`` bytes after an address."""
        return self.load(self.at(address, "i8", offset), element)

    def set_field(self, address: Value, offset: int, value: Any) -> None:
        """Emit an assignment of the member that is ``offset`` bytes after an address."""
        self.store(self.value(value), self.at(address, "i8", offset))

    def word(self, table: Value, k: Index, element: str = "i64") -> Value:
        """Emit the word ``k`` of a table of 64-bit words, as an integer or as an address."""
        return self.load(self.at(table, "i64", k), element)

    def set_word(self, table: Value, k: Index, value: Any) -> None:
        """Emit an assignment of the word ``k`` of a table."""
        self.store(self.value(value), self.at(table, "i64", k))

    def atomic(self, address: Value, order: str) -> Value:
        """Emit an atomic load of a 64-bit integer; ``order`` is the memory order."""
        return self.emit(f"load atomic i64, {address.typed} {order}, align 8", "i64")

    def set_atomic(self, address: Value, value: Any, order: str) -> None:
        """Emit an atomic store of a 64-bit integer."""
        self.line(f"store atomic {self.value(value).typed}, {address.typed} {order}, align 8")

    def add_atomic(self, address: Value, number: int, order: str) -> Value:
        """Emit an atomic addition to a 64-bit integer; the value is the integer before it."""
        return self.emit(f"atomicrmw add {address.typed}, i64 {number} {order}", "i64")

    def swap_if(self, address: Value, old: Any, new: Any, orders: str) -> Value:
        """Emit an atomic exchange of ``old`` for ``new``; the value is whether the integer was ``old``."""
        words = f"{self.value(old).typed}, {self.value(new).typed}"
        both = self.emit(f"cmpxchg {address.typed}, {words} {orders}", "{ i64, i1 }")
        return self.emit(f"extractvalue {both.typed}, 1", "i1")

    def variable(self, name: str, words: int = 1, start: int = 0) -> Value:
        """Return the address of a variable of the unit: 64-bit words in cache lines of their own."""
        size = -(-words // 8) * 8
        value = "zeroinitializer" if start == 0 else f"[{', '.join([f'i64 {start}'] * size)}]"
        self.unit.definitions[name] = f"@{name} = internal global [{size} x i64] {value}, align 64"
        return Value(f"@{name}", "ptr")

    def imported(self, name: str) -> Value:
        """Return the address of an object that is imported by its name."""
        self.unit.definitions[name] = f"@{name} = external global i8"
        return Value(f"@{name}", "ptr")


class External:
    """A C function that native functions call; a call of this object emits a call of it."""

    def __init__(self, result: str, name: str, *parameters: str) -> None:
        self.result, self.name, self.parameters = result, name, parameters

    def __call__(self, w: Code, *args: Any) -> Value:
        """Emit a call."""
        w.declare(f"{self.result} @{self.name}({', '.join(self.parameters)})")
        kinds = f" ({', '.join(self.parameters)})" if "..." in self.parameters else ""
        given = ", ".join([w.value(a).typed for a in args])
        text = f"call {self.result}{kinds} @{self.name}({given})"
        if self.result != "void":
            return w.emit(text, self.result)
        w.line(text)
        return NULL


class NativeFunction:
    """A native function of a library; a call of this object emits a call of it."""

    def __init__(
        self, emit: Callable[..., Value | None], result: str, kinds: dict[str, str], export: bool
    ) -> None:
        code = emit.__code__
        self.emit, self.result, self.name = emit, result, emit.__name__
        self.linkage = "" if export else "internal "
        names = code.co_varnames[1 : code.co_argcount]
        self.parameters = [(kinds.get(name, "ptr"), name) for name in names]

    def define(self, w: Code) -> None:
        """Add the definition to the unit, unless it is there."""

        def body(inner: Code, values: list[Value]) -> Value | None:
            return self.emit(inner, *values)

        w.define(self.name, self.parameters, body, self.result, attributes="", linkage=self.linkage)

    def __call__(self, w: Code, *args: Any) -> Value:
        """Emit a call."""
        self.define(w)
        given = [w.value(a) for a in args]
        if self.result != "void":
            return w.call(self.name, self.result, 1, *given)
        w.run(self.name, *given)
        return NULL


def native(
    result: str = "void", export: bool = False, **kinds: str
) -> Callable[[Callable[..., Value | None]], NativeFunction]:
    """Return a decorator that makes a native function of a Python function which emits its body.

    ``result`` is the type of its result.  ``kinds`` has the types of parameters that are not addresses.
    Functions can be called from outside of the library if ``export`` is true.
    """
    return lambda emit: NativeFunction(emit, result, kinds, export)


class Library:
    """The LLVM text of a library, and the names that it imports."""

    def __init__(self, *exported: NativeFunction, writer: type[Code] = Code) -> None:
        w = writer()
        for function in exported:
            function.define(w)
        self.text = "\n".join([*w.unit.parts(), ""])
        self.functions = [d.partition("@")[2].partition("(")[0] for d in w.unit.declarations]
        self.objects = [n for n, d in w.unit.definitions.items() if " external global " in d]


class Words(np.ndarray[Any, np.dtype[np.int64]]):
    """The words that native code reads; ``held`` keeps alive the objects that they point to."""

    held: Any


class Tables:
    """Makes tables of 64-bit words; keeps them alive, and the objects ``kept`` that their words point to."""

    def __init__(self, *kept: Any) -> None:
        self.kept: list[Any] = list(kept)

    def listed(self, values: Sequence[int]) -> int:
        """Copy ``values`` and a final 0 to a new array; return its address."""
        self.kept.append(np.array([*values, 0], np.int64))
        return int(self.kept[-1].ctypes.data)

    def table(self, rows: Collection[Sequence[int]]) -> tuple[int, int]:
        """Make a table of rows; return their number and their address."""
        return len(rows), self.listed([x for row in rows for x in row])

    def spec(self, dtype: Any, shape: Sequence[int]) -> tuple[int, int, int]:
        """Return the words that describe an array: its dtype, number of axes, address of their lengths."""
        self.kept.append(np.dtype(dtype))
        return id(self.kept[-1]), len(shape), self.listed(shape)
