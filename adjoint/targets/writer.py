"""Writes the arithmetic of kernels in OpenCL C, one assignment per value."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from adjoint.compiler.emit.arithmetic import Arithmetic
from adjoint.compiler.emit.machine import Machine
from adjoint.compiler.emit.values import FLOATING, Value

__all__ = ["TYPES", "CWriter"]

TYPES = {
    "float": "float", "double": "double", "i1": "bool", "i8": "char", "i16": "short", "i32": "int",
    "i64": "long",
}  # fmt: skip
_UNSIGNED = {"i8": "uchar", "i16": "ushort", "i32": "uint", "i64": "ulong"}
_SIGNS = {
    "fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/", "add": "+", "sub": "-", "mul": "*", "and": "&",
    "or": "|", "xor": "^", "sdiv": "/",
}  # fmt: skip
_ON_BOOLS = {"&": "&&", "|": "||", "^": "!="}
_INTRINSICS = {
    "fabs": "fabs", "sqrt": "sqrt", "copysign": "copysign", "floor": "floor", "ceil": "ceil",
    "trunc": "trunc", "rint": "rint", "fma": "fma", "ctpop": "popcount",
}  # fmt: skip
_COMPARES = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
# The functions are those of a machine without vectors.
_SCALAR = Machine("none", 0, 16, True, False, "", "", 1)


class CWriter(Arithmetic):
    """The text of one kernel in C, while it is generated; a value has one lane: a thread computes it."""

    machine = _SCALAR

    def __init__(self, float64: bool = True) -> None:
        self.float64 = float64
        self.lines: list[str] = []
        self.tables: dict[str, str] = {}  # constant lists, by name
        self._count = 0

    def line(self, text: str) -> None:
        """Add a statement to the text."""
        self.lines.append(f"  {text}")

    def fresh(self, prefix: str) -> str:
        """Return a new name."""
        self._count += 1
        return f"{prefix}{self._count}"

    def let(self, text: str, element: str) -> Value:
        """Add a line that assigns the expression ``text`` to a new constant; return the constant."""
        name = self.fresh("v")
        self.line(f"const {TYPES[element]} {name} = {text};")
        return Value(name, element)

    def variable(self, name: str, value: Value) -> Value:
        """Add a line that declares a variable with an initial value; return the variable."""
        self.line(f"{TYPES[value.element]} {name} = {value.text};")
        return Value(name, value.element)

    # The operations of ``Arithmetic`` ------------------------------------------------------------------

    def const(self, number: Any, element: str, lanes: int = 1) -> Value:
        """Return a number as a literal; floats are written as their bits."""
        if element == "float":
            return Value(f"as_float(0x{bits32(number):08x}u)", element)
        if element == "double":
            (bits,) = struct.unpack("<Q", struct.pack("<d", float(number)))
            return Value(f"as_double(0x{bits:016x}ul)", element)
        if element == "i1":
            return Value("true" if number else "false", element)
        size = int(element[1:])
        bits = f"0x{int(number) % (1 << size):x}{'ul' if size == 64 else 'u'}"
        return Value(f"(({TYPES[element]}){bits})", element)

    def op(self, name: str, a: Value, b: Value) -> Value:
        """Emit the operation with the LLVM name ``name``; integers wrap around."""
        kind, made = a.element, TYPES[a.element]
        if name == "frem":
            return self.let(f"fmod({a.text}, {b.text})", kind)
        if name == "ashr":
            return self.let(f"({made})({a.text} >> {b.text})", kind)
        if name in ("shl", "lshr", "udiv"):
            unsigned, sign = _UNSIGNED[kind], {"shl": "<<", "lshr": ">>", "udiv": "/"}[name]
            return self.let(f"({made})(({unsigned}){a.text} {sign} ({unsigned}){b.text})", kind)
        sign = _SIGNS[name]
        if kind == "i1":
            return self.let(f"{a.text} {_ON_BOOLS[sign]} {b.text}", kind)
        if name in ("add", "sub", "mul"):  # signed overflow is undefined in C
            unsigned = _UNSIGNED[kind]
            return self.let(f"({made})(({unsigned}){a.text} {sign} ({unsigned}){b.text})", kind)
        text = f"{a.text} {sign} {b.text}"
        return self.let(text if a.floating else f"({made})({text})", kind)

    def neg(self, a: Value) -> Value:
        """Emit ``-a``."""
        return self.let(f"-{a.text}", a.element) if a.floating else self.sub(0, a)

    def intrinsic(self, name: str, *args: Value) -> Value:
        """Emit a call of the C function that is LLVM's intrinsic ``name``."""
        return self.let(f"{_INTRINSICS[name]}({', '.join(x.text for x in args)})", args[0].element)

    def compare(self, predicate: str, a: Any, b: Any) -> Value:
        """Emit a comparison by an LLVM predicate."""
        x, y = self._pair(a, b)
        if predicate in ("uno", "ord"):
            sign, joined = ("!=", "||") if predicate == "uno" else ("==", "&&")
            return self.let(f"({x.text} {sign} {x.text}) {joined} ({y.text} {sign} {y.text})", "i1")
        if predicate in ("eq", "ne"):
            return self.let(f"{x.text} {_COMPARES[predicate]} {y.text}", "i1")
        sign = _COMPARES[predicate[1:]]
        if x.element == "i1":
            return self.let(f"{x.text} {sign} {y.text}", "i1")
        if not x.floating and predicate[0] == "u":
            unsigned = _UNSIGNED[x.element]
            return self.let(f"({unsigned}){x.text} {sign} ({unsigned}){y.text}", "i1")
        if predicate in ("one", "ueq"):  # NaN != y is true in C: these are not the opposites of == and !=
            text = f"({x.text} < {y.text} || {x.text} > {y.text})"
            return self.let(text if predicate == "one" else f"!{text}", "i1")
        if x.floating and predicate[0] == "u" and predicate != "une":
            return self.let(f"!({x.text} {_OPPOSITE[sign]} {y.text})", "i1")
        return self.let(f"{x.text} {sign} {y.text}", "i1")

    def select(self, mask: Value, a: Any, b: Any) -> Value:
        """Emit ``a`` if the mask is true, else ``b``."""
        x, y = self._pair(a, b)
        return self.let(f"{mask.text} ? {x.text} : {y.text}", x.element)

    def convert(self, a: Value, element: str, signed: bool = True) -> Value:
        """Emit a conversion to another element type; ``signed`` is about the integer."""
        if a.element == element:
            return a
        if element == "i1":
            return self.compare("une" if a.floating else "ne", a, 0)
        if not signed and a.floating and element not in FLOATING:
            return self.let(f"({TYPES[element]})(({_UNSIGNED[element]}){a.text})", element)
        plain = signed or a.floating or a.element == "i1"
        text = a.text if plain else f"(({_UNSIGNED[a.element]}){a.text})"
        return self.let(f"({TYPES[element]}){text}", element)

    def bitcast(self, a: Value, element: str) -> Value:
        """Emit a reinterpretation of the bits as another type of the same size."""
        return self.let(f"as_{TYPES[element]}({a.text})", element)

    def where_any(
        self, mask: Value, make: Callable[[], Sequence[Value]], values: Sequence[Value]
    ) -> list[Value]:
        """Emit ``values``; if the mask is true, the values that ``make()`` emits."""
        names = [self.variable(self.fresh("w"), v) for v in values]
        self.line(f"if ({mask.text}) {{")
        for name, value in zip(names, make(), strict=False):
            self.line(f"{name.text} = {value.text};")
        self.line("}")
        return names

    def each_lane(
        self, name: str, function: Callable[[Any, Value], Sequence[Value]], x: Value, kinds: Sequence[str]
    ) -> list[Value]:
        """Emit the function inline: there is one lane."""
        return list(function(self, x))

    def element(self, numbers: Sequence[int], index: Value) -> Value:
        """Emit the number at an index of a constant list of 64-bit integers."""
        listed = ", ".join(f"(long)0x{n % (1 << 64):x}ul" for n in numbers)
        name = f"table{len(numbers)}_{abs(hash(tuple(numbers))) % (1 << 32):08x}"
        # several kernels of one program may have the same table
        text = f"__constant long {name}[{len(numbers)}] = {{{listed}}};"
        self.tables[name] = f"#ifndef HAS_{name}\n#define HAS_{name}\n{text}\n#endif"
        return self.let(f"{name}[{index.text}]", "i64")


def bits32(number: Any) -> int:
    """Return the bits of a number as a float32; numbers that are too large become infinite."""
    try:
        return int(struct.unpack("<I", struct.pack("<f", float(number)))[0])
    except OverflowError:
        return 0x7F800000 if number > 0 else 0xFF800000
