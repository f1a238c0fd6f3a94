"""Generate LLVM IR as text: typed values with new names, arithmetic, memory access, loops and functions.

A kernel is the function ``@kernel(ptr %args, i64 %lo, i64 %hi, i64 %chunk, i64 %thread)``.  ``%args`` points
to a table of addresses (slots) of buffers.  The kernel runs the iterations ``lo <= i < hi`` of its outermost
loop.  A *unit* is a text that is compiled on its own; a *lane* is one element of a vector.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from adjoint.compiler.emit.arithmetic import Arithmetic
from adjoint.compiler.emit.machine import Machine
from adjoint.compiler.emit.mode import flushing
from adjoint.compiler.emit.values import (
    FLOATING,
    Index,
    Value,
    literal,
    llvm_type,
    parameter,
    size_of,
    stored_as,
)

__all__ = ["Piece", "UnitText", "Writer"]

PARAMETERS = (("ptr", "args"), ("i64", "lo"), ("i64", "hi"), ("i64", "chunk"), ("i64", "thread"))


class Piece(NamedTuple):
    """A vector that covers part of a row: its start, its lanes, and a mask or None if all lanes are used."""

    offset: int
    lanes: int
    mask: Value | None


class Writer(Arithmetic):
    """The text of one LLVM function, while it is generated.

    To *emit* a value means to append the instructions that compute it and to return the ``Value``.  The
    functions of one unit share their declarations and definitions.
    """

    low = Value("%lo", "i64")  # the first iteration of the outermost loop that this call of the kernel runs
    high = Value("%hi", "i64")  # the end of these iterations
    chunk = Value("%chunk", "i64")  # the index of the chunk of the loop; there are partial results for each
    thread = Value("%thread", "i64")  # the index of the thread; each has its own scratch memory

    def __init__(self, machine: Machine, unit: UnitText | None = None) -> None:
        self.machine = machine
        self.unit = unit or UnitText()
        self._lines: list[str] = []
        self._entry: list[str] = []
        self._slots: dict[int, Value] = {}
        self._count = 0
        self._block = "entry"

    # Lines and names ----------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Add an instruction to the text of the function."""
        self._lines.append(f"  {text}")

    def emit(self, text: str, element: str, lanes: int = 1) -> Value:
        """Add a line that assigns the expression ``text`` to a new LLVM variable; return the variable."""
        name = self._fresh("%v")
        self.line(f"{name} = {text}")
        return Value(name, element, lanes)

    def _fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def label(self, name: str) -> None:
        """Start a basic block, the target of branches, with this name."""
        self._lines.append(f"{name}:")
        self._block = name

    def declare(self, text: str) -> None:
        """Declare an external function; ``text`` is its signature.  Repeated declarations are ignored."""
        self.unit.declarations.add(f"declare {text}")

    def call(self, name: str, element: str, lanes: int, *args: Value) -> Value:
        """Emit a call of a function; ``name`` has no ``@``."""
        made = Value("", element, lanes)
        return self.emit(f"call {made.type} @{name}({', '.join(a.typed for a in args)})", element, lanes)

    def run(self, name: str, *args: Value) -> None:
        """Emit a call of a function that returns nothing."""
        self.line(f"call void @{name}({', '.join(a.typed for a in args)})")

    def intrinsic(self, name: str, *args: Value) -> Value:
        """Emit a call of an LLVM intrinsic that is overloaded on the type of its first argument."""
        a = args[0]
        full = f"llvm.{name}.{a.mangled}"
        self.declare(f"{a.type} @{full}({', '.join(x.type for x in args)})")
        return self.call(full, a.element, a.lanes, *args)

    # Constants ----------------------------------------------------------------------------------

    def const(self, number: Any, element: str, lanes: int = 1) -> Value:
        """Return a number as a literal; with several ``lanes``, as a vector with the number in all lanes."""
        text = literal(number, element)
        listed = f"<{', '.join([f'{llvm_type(element)} {text}'] * lanes)}>"
        return Value(text if lanes == 1 else listed, element, lanes)

    def constants(self, numbers: Sequence[Any], element: str) -> Value:
        """Return a vector literal with the given numbers as its lanes."""
        listed = ", ".join(f"{llvm_type(element)} {literal(x, element)}" for x in numbers)
        return Value(f"<{listed}>", element, len(numbers))

    def index_value(self, i: Index) -> Value:
        """Return an index, which may be a Python int, as an LLVM value."""
        return self.const(i, "i64") if isinstance(i, int) else i

    # Arithmetic ---------------------------------------------------------------------------------

    def op(self, name: str, a: Value, b: Value) -> Value:
        """Emit the LLVM instruction ``name`` on two values of the same type."""
        return self.emit(f"{name} {a.typed}, {b.text}", a.element, a.lanes)

    def neg(self, a: Value) -> Value:
        """Emit ``-a``."""
        return self.emit(f"fneg {a.typed}", a.element, a.lanes) if a.floating else self.sub(0, a)

    def compare(self, predicate: str, a: Any, b: Any) -> Value:
        """Emit a comparison by an LLVM predicate."""
        x, y = self._pair(a, b)
        return self.emit(f"{'fcmp' if x.floating else 'icmp'} {predicate} {x.typed}, {y.text}", "i1", x.lanes)

    def select(self, mask: Value, a: Any, b: Any) -> Value:
        """Emit ``a`` in lanes where the mask is true, else ``b``."""
        x, y = self._pair(a, b)
        return self.emit(f"select {mask.typed}, {x.typed}, {y.typed}", x.element, x.lanes)

    # Types and lanes ----------------------------------------------------------------------------

    def convert(self, a: Value, element: str, signed: bool = True) -> Value:
        """Emit a conversion to another element type.

        ``signed`` says whether the integer is signed.  A boolean becomes 0 or 1; a number becomes true unless
        it is 0.  A float that is out of range of the integer type gives an undefined result.
        """
        if a.element == element:
            return a
        if element == "i1":
            return self.compare("une" if a.floating else "ne", a, 0)
        signed = signed and a.element != "i1"
        if a.floating and element in FLOATING:
            name = "fpext" if element == "double" else "fptrunc"
        elif a.floating:
            name = "fptosi" if signed else "fptoui"
        elif element in FLOATING:
            name = "sitofp" if signed else "uitofp"
        elif size_of(element) < size_of(a.element):
            name = "trunc"
        elif a.element != "i1" and size_of(element) == size_of(a.element):
            return Value(a.text, element, a.lanes)
        else:
            name = "sext" if signed else "zext"
        return self.emit(f"{name} {a.typed} to {Value('', element, a.lanes).type}", element, a.lanes)

    def bitcast(self, a: Value, element: str) -> Value:
        """Emit a reinterpretation of the bits as another type of the same size."""
        return self.emit(f"bitcast {a.typed} to {Value('', element, a.lanes).type}", element, a.lanes)

    def splat(self, a: Value, lanes: int) -> Value:
        """Emit a vector of ``lanes`` lanes that are all ``a``."""
        if lanes == 1:
            return a
        kind = Value("", a.element, lanes).type
        one = self.emit(f"insertelement {kind} poison, {a.typed}, i32 0", a.element, lanes)
        mask = f"<{lanes} x i32> zeroinitializer"
        return self.emit(f"shufflevector {one.typed}, {one.typed}, {mask}", a.element, lanes)

    def shuffle(self, a: Value, b: Value, places: Sequence[int]) -> Value:
        """Emit the lanes ``places`` of ``a`` and ``b``; those of ``b`` are counted after those of ``a``."""
        mask = self.constants(places, "i32")
        return self.emit(f"shufflevector {a.typed}, {b.typed}, {mask.typed}", a.element, len(places))

    def extract(self, a: Value, lane: int) -> Value:
        """Emit one lane of a vector."""
        return a if a.lanes == 1 else self.emit(f"extractelement {a.typed}, i32 {lane}", a.element)

    def insert(self, a: Value, x: Value, lane: int) -> Value:
        """Emit a vector with one lane replaced."""
        text = f"insertelement {a.typed}, {x.typed}, i32 {lane}"
        return x if a.lanes == 1 else self.emit(text, a.element, a.lanes)

    def halves(self, a: Value) -> tuple[Value, Value]:
        """Emit the lower and the upper half of a vector."""
        half = a.lanes // 2
        if half == 1:
            return self.extract(a, 0), self.extract(a, 1)
        return self.shuffle(a, a, range(half)), self.shuffle(a, a, range(half, a.lanes))

    def fold(self, a: Value, combine: Callable[[Value, Value], Value]) -> Value:
        """Emit the combination of all lanes to one number by repeated halving, which is a fixed order."""
        while a.lanes > 1:
            a = combine(*self.halves(a))
        return a

    def any(self, mask: Value) -> Value:
        """Emit a flag: whether any lane of a mask is true."""
        if mask.lanes == 1:
            return mask
        whole = Value("", f"i{mask.lanes}")
        return self.compare("ne", self.emit(f"bitcast {mask.typed} to {whole.type}", whole.element), 0)

    # Memory -------------------------------------------------------------------------------------

    def slot(self, k: int) -> Value:
        """Emit the address in slot ``k`` of the kernel's table; it is loaded once, at the start."""
        if k not in self._slots:
            name = f"%slot{k}"
            self._entry.append(f"  {name}.at = getelementptr ptr, ptr %args, i64 {k}")
            self._entry.append(f"  {name} = load ptr, ptr {name}.at")
            self._slots[k] = Value(name, "ptr")
        return self._slots[k]

    def table(self, numbers: Sequence[int]) -> Value:
        """Add a constant array of 64-bit integers to the unit; return its address."""
        listed = ", ".join(f"i64 {n}" for n in numbers)
        name = f"table_{hashlib.sha256(listed.encode()).hexdigest()[:16]}"
        self.unit.definitions[name] = f"@{name} = internal constant [{len(numbers)} x i64] [{listed}]"
        return Value(f"@{name}", "ptr")

    def scratch(self, element: str, count: int) -> Value:
        """Reserve memory for ``count`` elements on the stack, aligned to 64 bytes; return its address."""
        name = self._fresh("%stack")
        self._entry.append(f"  {name} = alloca [{count} x {stored_as(element)}], align 64")
        return Value(name, "ptr")

    def at(self, pointer: Value, element: str, offset: Index) -> Value:
        """Emit the address ``offset`` elements after ``pointer``."""
        if isinstance(offset, int) and offset == 0:
            return pointer
        text = f"getelementptr {stored_as(element)}, {pointer.typed}, {self.index_value(offset).typed}"
        return self.emit(text, "ptr")

    def load(self, pointer: Value, element: str, lanes: int = 1, mask: Value | None = None) -> Value:
        """Emit a load at an address; lanes that the mask excludes are 0, and their memory is not read."""
        if element == "i1":
            return self.compare("ne", self.load(pointer, "i8", lanes, mask), 0)
        made = Value("", element, lanes)
        if mask is None:
            return self.emit(f"load {made.type}, {pointer.typed}, align {size_of(element)}", element, lanes)
        full = f"llvm.masked.load.{made.mangled}.p0"
        self.declare(f"{made.type} @{full}(ptr, i32, {mask.type}, {made.type})")
        args = f"{pointer.typed}, i32 {size_of(element)}, {mask.typed}, {made.type} zeroinitializer"
        return self.emit(f"call {made.type} @{full}({args})", element, lanes)

    def store(self, value: Value, pointer: Value, mask: Value | None = None) -> None:
        """Emit a store at an address; the memory of lanes that the mask excludes is not written."""
        if value.element == "i1":
            value = self.convert(value, "i8", signed=False)
        size = size_of(value.element)
        if mask is None:
            self.line(f"store {value.typed}, {pointer.typed}, align {size}")
            return
        full = f"llvm.masked.store.{value.mangled}.p0"
        self.declare(f"void @{full}({value.type}, ptr, i32, {mask.type})")
        self.line(f"call void @{full}({value.typed}, {pointer.typed}, i32 {size}, {mask.typed})")

    def pieces(self, count: int, lanes: int) -> list[Piece]:
        """Divide a row into vectors, the last ones masked or narrower: 7 with 4 lanes is 4 + 2 + 1."""
        found = [Piece(k, lanes, None) for k in range(0, count - lanes + 1, lanes)]
        offset = len(found) * lanes
        while rest := count - offset:
            wide = 1 << (rest - 1).bit_length()
            if wide == rest:
                found.append(Piece(offset, wide, None))
            elif self.machine.masks and wide > 2:
                found.append(Piece(offset, wide, self.constants([int(k < rest) for k in range(wide)], "i1")))
            else:
                wide //= 2
                found.append(Piece(offset, wide, None))
            offset = min(count, offset + wide)
        return found

    # Indices ------------------------------------------------------------------------------------

    def plus(self, a: Index, b: Index) -> Index:
        """Emit the sum of two indices; constants are folded."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if a == 0 or b == 0:
            return b if a == 0 else a
        return self.emit(f"add nsw {self.index_value(a).typed}, {self.index_value(b).text}", "i64")

    def times(self, a: Index, b: Index) -> Index:
        """Emit the product of two indices; constants are folded."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if a == 0 or b == 0:
            return 0
        if a == 1 or b == 1:
            return b if a == 1 else a
        return self.emit(f"mul nsw {self.index_value(a).typed}, {self.index_value(b).text}", "i64")

    def divide(self, a: Index, by: int) -> tuple[Index, Index]:
        """Emit the quotient and the remainder of a non-negative index."""
        if isinstance(a, int):
            return divmod(a, by)
        if by == 1:
            return a, 0
        quotient = self.emit(f"udiv {a.typed}, {by}", "i64")
        return quotient, self.sub(a, self.mul(quotient, by))

    def least(self, a: Index, b: Index) -> Index:
        """Emit the smaller one of two indices; constants are folded."""
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        x, y = self.index_value(a), self.index_value(b)
        return self.select(self.compare("slt", x, y), x, y)

    def unravel(self, i: Index, shape: Sequence[int]) -> list[Index]:
        """Emit the indices of element ``i`` of a row-major array, as ``np.unravel_index``."""
        found: list[Index] = []
        for n in reversed(shape[1:]):
            i, place = self.divide(i, n)
            found.append(place)
        return [*([i] if shape else []), *reversed(found)]

    # Control flow -------------------------------------------------------------------------------

    def parts(self, count: int, size: int, body: Callable[[Index, int], None]) -> None:
        """Emit ``body(index, size)`` for ``count`` iterations in parts; the last may be smaller."""
        full, rest = divmod(count, size)
        if full == 1:
            body(0, size)
        else:
            self.loop(0, full, 1, lambda i, _: body(i, size))
        if rest:
            body(full, rest)

    def vectors(
        self, count: int, lanes: int, most: int, body: Callable[[Index, int, Value | None], None]
    ) -> None:
        """Emit ``body(offset, lanes, mask)`` for a row; in a loop if it has more than ``most`` vectors."""
        whole = count // lanes * lanes if count > most * lanes else 0
        self.loop(0, whole, lanes, lambda i, _: body(i, lanes, None))
        for p in self.pieces(count - whole, lanes):
            body(whole + p.offset, p.lanes, p.mask)

    def loop(
        self,
        low: Index,
        high: Index,
        step: int,
        body: Callable[[Value, list[Value]], Sequence[Value] | None],
        carried: Sequence[Value] = (),
    ) -> list[Value]:
        """Emit ``for i in range(low, high, step)``; ``body(i, carried)`` returns the new carried values."""
        fixed = isinstance(low, int) and isinstance(high, int)
        if isinstance(low, int) and isinstance(high, int) and low >= high:
            return list(carried)
        first, last = self.index_value(low), self.index_value(high)
        before, head, end = self._block, self._fresh("loop"), self._fresh("end")
        if fixed:
            self.line(f"br label %{head}")
        else:
            starts = self.compare("slt", first, last)
            self.line(f"br {starts.typed}, label %{head}, label %{end}")
        self.label(head)
        i = Value(f"%i.{head}", "i64")
        inside = [Value(f"%c{k}.{head}", v.element, v.lanes) for k, v in enumerate(carried)]
        place = len(self._lines)
        made = list(body(i, inside) or ())
        after = self.emit(f"add nsw {i.typed}, {step}", "i64")
        again = self.compare("slt", after, last)
        phis = [(i, first, after), *zip(inside, carried, made, strict=True)]
        self._lines[place:place] = [
            f"  {p.text} = phi {p.type} [ {a.text}, %{before} ], [ {b.text}, %{self._block} ]"
            for p, a, b in phis
        ]
        latch = self._block
        self.line(f"br {again.typed}, label %{head}, label %{end}")
        self.label(end)
        if fixed:
            return made
        return [self._phi(a, before, b, latch) for a, b in zip(carried, made, strict=True)]

    @contextmanager
    def early(self) -> Iterator[None]:
        """Return a context manager: code emitted inside it, without branches, starts the function."""
        lines, self._lines = self._lines, []
        yield
        self._entry += self._lines
        self._lines = lines

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Return a context manager: code emitted inside it runs only if ``condition`` is true."""
        inside, end = self._fresh("then"), self._fresh("end")
        self.line(f"br {condition.typed}, label %{inside}, label %{end}")
        self.label(inside)
        yield
        self.line(f"br label %{end}")
        self.label(end)

    def choose(
        self, condition: Value, then: Callable[[], Sequence[Value]], otherwise: Callable[[], Sequence[Value]]
    ) -> list[Value]:
        """Emit an if-else; ``then()`` and ``otherwise()`` emit the branches.  Return the resulting values."""
        yes, no, end = self._fresh("then"), self._fresh("else"), self._fresh("end")
        self.line(f"br {condition.typed}, label %{yes}, label %{no}")
        made, blocks = [], []
        for name, body in ((yes, then), (no, otherwise)):
            self.label(name)
            made.append(list(body()))
            blocks.append(self._block)
            self.line(f"br label %{end}")
        self.label(end)
        return [self._phi(a, blocks[0], b, blocks[1]) for a, b in zip(*made, strict=True)]

    def _phi(self, a: Value, before: str, b: Value, after: str) -> Value:
        """Emit ``a`` if the block ``before`` ran last, ``b`` if the block ``after`` did."""
        text = f"phi {a.type} [ {a.text}, %{before} ], [ {b.text}, %{after} ]"
        return self.emit(text, a.element, a.lanes)

    # Functions ----------------------------------------------------------------------------------

    def where_any(
        self, mask: Value, make: Callable[[], Sequence[Value]], values: Sequence[Value]
    ) -> list[Value]:
        """Emit ``values``; in lanes where the mask is true, the values that ``make()`` emits."""

        def made() -> list[Value]:
            return [self.select(mask, a, b) for a, b in zip(make(), values, strict=False)]

        return self.choose(self.any(mask), made, lambda: values)

    def each_lane(
        self, name: str, function: Callable[[Any, Value], Sequence[Value]], x: Value, kinds: Sequence[str]
    ) -> list[Value]:
        """Emit a loop over the lanes of ``x`` that calls a function; return its results as vectors.

        ``function(writer, number)`` emits its body, and ``kinds`` are the element types of its results, which
        have the same size.
        """
        lanes, unit = x.lanes, f"i{8 * size_of(kinds[0])}"

        def body(inner: Writer, args: list[Value]) -> None:
            for k, value in enumerate(function(inner, args[1])):
                inner.store(value, inner.at(args[0], unit, k * lanes))

        self.define(f"{name}_{lanes}", [("ptr", "to"), (x.element, "x")], body)
        given, found = self.scratch(x.element, lanes), self.scratch(unit, len(kinds) * lanes)
        self.store(x, given)

        def one(i: Value, _: list[Value]) -> None:
            value = self.load(self.at(given, x.element, i), x.element)
            self.run(f"{name}_{lanes}", self.at(found, unit, i), value)

        self.loop(0, lanes, 1, one)
        return [self.load(self.at(found, unit, k * lanes), kind, lanes) for k, kind in enumerate(kinds)]

    def element(self, numbers: Sequence[int], index: Value) -> Value:
        """Emit the number at an index of a constant list of 64-bit integers."""
        return self.load(self.at(self.table(numbers), "i64", index), "i64")

    def define(
        self,
        name: str,
        parameters: Sequence[tuple[str, str]],
        body: Callable[[Any, list[Value]], Value | None],
        element: str = "void",
        lanes: int = 1,
        attributes: str = "noinline",
        linkage: str = "internal ",
    ) -> None:
        """Define a function of this unit, unless it is defined; ``body(writer, parameters)`` emits it.

        With ``linkage=""``, the function can be called from outside of the unit.
        """
        if name in self.unit.definitions:
            return
        self.unit.definitions[name] = ""  # first, because a function may call itself
        inner = type(self)(self.machine, self.unit)
        result = body(inner, [parameter(t, n) for t, n in parameters])
        inner.line("ret void" if result is None else f"ret {result.typed}")
        given = ", ".join(f"{t} %{n}" for t, n in parameters)
        made = Value("", element, lanes).type
        self.unit.definitions[name] = inner.body(f"{linkage}{made} @{name}({given}) {attributes}")

    def body(self, head: str) -> str:
        """Return the text of a definition with the signature ``head`` and the lines emitted so far."""
        return "\n".join([f"define {head} {{", "entry:", *self._entry, *self._lines, "}"])

    def calls_only(self) -> bool:
        """Return whether the kernel itself uses no vectors: it only calls functions that do."""
        return not any(" x " in line for line in self._lines)

    def kernel(self, plain: bool = False) -> str:
        """Finish the kernel; return the text of its unit.  A ``plain`` one, of calls, is not optimised."""
        given = [f"{t} %{n}" for t, n in PARAMETERS]
        if self.machine.flush and (around := flushing(PARAMETERS)) is not None:
            return self._whole(f"internal void @body({', '.join(given)}) noinline", around, "")
        return self.shared(given, " noinline optnone" if plain else "")

    def shared(self, parameters: Sequence[str], attributes: str = "") -> str:
        """Finish a function that kernels call by ``use``; return the LLVM text of its unit."""
        return self._whole(f"void @kernel({', '.join(parameters)}){attributes}", "")

    def _whole(self, head: str, *rest: str) -> str:
        """Return the text of the unit: declarations, other functions, this function, and ``rest``."""
        self.line("ret void")
        return "\n".join([*self.unit.parts(), self.body(head), *rest])

    def use(self, text: str, *args: Value) -> None:
        """Emit a call of the function in ``text``, a separate unit that is compiled once for all kernels."""
        name = share(text)
        self.declare(f"void @{name}({', '.join(a.type for a in args)})")
        self.run(name, *args)


class UnitText:
    """The declarations and definitions that the functions of one unit (LLVM text) share."""

    def __init__(self) -> None:
        self.declarations: set[str] = set()
        self.definitions: dict[str, str] = {}

    def parts(self) -> list[str]:
        """Return the texts of all declarations and definitions, sorted by name."""
        return [*sorted(self.declarations), *(d for _, d in sorted(self.definitions.items()))]


# Units that kernels call, by name; ``units.functions`` compiles them with the kernels that call them.
SHARED: dict[str, str] = {}


def unit_name(text: str) -> str:
    """Return the name by which kernels call the function of a unit: a hash of the unit's text."""
    return f"unit_{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def share(text: str) -> str:
    """Register the text of a unit that kernels call; return the name of its function."""
    name = unit_name(text)
    SHARED[name] = text
    return name
