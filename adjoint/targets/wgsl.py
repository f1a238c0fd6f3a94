"""WGSL, the language of WebGPU: its arithmetic, and how kernels load and store values.

All values are in one buffer of 32-bit words, the heap; a second buffer has the positions of a kernel's slots.
There are no types of 64 bits and no memory below 32 bits: an int64 is two words, and booleans and small
integers have a word of their own.  Compilers may reorder additions and ignore NaN and signed zeros.  ``Z``, a
zero that they do not know, prevents this where results depend on it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from adjoint.compiler.emit.values import Value
from adjoint.targets.dialect import ORDERS, SIZES, OpenCL
from adjoint.targets.wgsl_functions import needed
from adjoint.targets.writer import CWriter, bits32

__all__ = ["MOST", "Wgsl", "grid"]

MOST = 65535  # work-groups along an axis
_TYPES = {
    "float": "f32", "i1": "bool", "i8": "i32", "i16": "i32", "i32": "i32", "i64": "vec2<u32>",
}  # fmt: skip
_BITS = {"i8": 8, "i16": 16, "i32": 32}  # signed integers are in registers of 32 bits
_SIGNS = {
    "fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/", "add": "+", "sub": "-", "mul": "*", "sdiv": "/",
    "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
_ON_BOOLS = {"and": "&&", "or": "||", "xor": "!="}
_COMPARES = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_FLOATS = {
    "fabs": "abs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "round",
    "fma": "fma",
}  # fmt: skip
_SLOT = re.compile(r"b\d+$")


def grid(groups: Sequence[int]) -> tuple[int, int, int]:
    """Return the numbers of work-groups along the axes of a launch."""
    x, y, z = [*groups, 1, 1][:3]
    if max(x, y, z) <= MOST:
        return x, y, z
    return MOST, -(-math.prod(groups) // MOST), 1


class WgslWriter(CWriter):
    """The text of one kernel in WGSL, while it is generated."""

    machine = CWriter.machine._replace(fma=False)  # WGSL may round a fused product twice

    def __init__(self, float64: bool = True) -> None:
        super().__init__(float64)
        self.firsts: dict[str, str] = {}  # by an expression: the first constant with it
        self.forms: dict[str, str] = {}  # by the name of a constant: the first one with its expression

    def let(self, text: str, element: str) -> Value:
        """Add a line that assigns the expression ``text`` to a new constant; return the constant."""
        name = self.fresh("v")
        self.line(f"let {name}: {_TYPES[element]} = {text};")
        key = re.sub(r"\w+", lambda word: self.forms.get(word[0], word[0]), text)
        self.forms[name] = "load" if key.startswith("bitcast<f32>(H[") else self.firsts.setdefault(key, name)
        return Value(name, element)

    def variable(self, name: str, value: Value) -> Value:
        """Add a line that declares a variable with an initial value; return the variable."""
        self.line(f"var {name}: {_TYPES[value.element]} = {value.text};")
        return Value(name, value.element)

    def const(self, number: Any, element: str, lanes: int = 1) -> Value:
        """Return a number as a literal; compilers must not know zeros, infinities and NaN."""
        if element == "float":
            bits = bits32(number)
            known = bits & 0x7FFFFFFF and math.isfinite(float(number)) and bits & 0x7FFFFFFF < 0x7F800000
            return Value(f"bitcast<f32>(0x{bits:08x}u{'' if known else ' | Z'})", element)
        if element == "i1":
            return Value("true" if number else "false", element)
        if element == "i64":
            low, high = int(number) % (1 << 32), (int(number) >> 32) % (1 << 32)
            return Value(f"vec2<u32>(0x{low:x}u, 0x{high:x}u)", element)
        half = 1 << _BITS[element] - 1
        signed = (int(number) + half) % (2 * half) - half
        return Value(f"bitcast<i32>(0x{signed % (1 << 32):x}u)", element)

    def fixed(self, value: Value) -> Value:
        """Emit the value in a form that compilers cannot combine with what follows."""
        return self.let(f"bitcast<f32>(bitcast<u32>({value.text}) ^ Z)", "float")

    def _wrapped(self, text: str, element: str) -> Value:
        """Emit an integer of a small type: its low bits, with the sign extended."""
        rest = 32 - _BITS[element]
        return self.let(f"(({text}) << {rest}u) >> {rest}u" if rest else text, element)

    def _unsigned(self, a: Value) -> str:
        mask = {"i8": " & 0xffu", "i16": " & 0xffffu"}.get(a.element, "")
        return f"(bitcast<u32>({a.text}){mask})"

    def op(self, name: str, a: Value, b: Value) -> Value:
        """Emit the operation with the LLVM name ``name``; integers wrap around."""
        kind = a.element
        if name == "frem":
            return self.let(f"fmod32({a.text}, {b.text})", kind)
        if a.floating:
            return self.let(f"{a.text} {_SIGNS[name]} {self._apart(name, a, b).text}", kind)
        if kind == "i1":
            return self.let(f"{a.text} {_ON_BOOLS[name]} {b.text}", kind)
        if name in ("and", "or", "xor"):
            return self.let(f"{a.text} {_SIGNS[name]} {b.text}", kind)
        if kind == "i64":
            return self.let(f"{name}64({a.text}, {b.text})", kind)
        if name in ("shl", "ashr"):
            return self._wrapped(f"{a.text} {'<<' if name == 'shl' else '>>'} u32({b.text})", kind)
        if name in ("lshr", "udiv"):
            other = self._unsigned(b) if name == "udiv" else f"u32({b.text})"
            sign = "/" if name == "udiv" else ">>"
            return self._wrapped(f"bitcast<i32>({self._unsigned(a)} {sign} {other})", kind)
        return self._wrapped(f"{a.text} {_SIGNS[name]} {b.text}", kind)

    def _apart(self, name: str, a: Value, b: Value) -> Value:
        """Return the operand ``b``; compilers must not know whether it is ``a``: x - x is NaN for infinities.

        They find different constants with one expression, and loads of one element.
        """
        first, second = (self.forms.get(x.text, x.text) for x in (a, b))
        if name == "fadd":  # x + -x, where a negation is named after its operand
            cancels = first == f"-({second})" or second == f"-({first})"
        else:
            cancels = name in ("fsub", "fdiv") and first == second
        return self.fixed(b) if cancels else b

    def neg(self, a: Value) -> Value:
        """Emit ``-a``."""
        if not a.floating:
            return self.sub(0, a)
        found = self.let(f"-({a.text})", a.element)
        self.forms[found.text] = f"-({self.forms.get(a.text, a.text)})"
        return found

    def intrinsic(self, name: str, *args: Value) -> Value:
        """Emit a call of the function that is LLVM's intrinsic ``name``."""
        a = args[0]
        if name == "copysign":
            size, sign = (
                f"(bitcast<u32>({x.text}) & 0x{m}u)"
                for x, m in zip(args, ("7fffffff", "80000000"), strict=True)
            )
            return self.let(f"bitcast<f32>({size} | {sign})", "float")
        if name == "ctpop":
            if a.element == "i64":
                return self.let(f"vec2<u32>(countOneBits({a.text}.x) + countOneBits({a.text}.y), 0u)", "i64")
            return self.let(f"bitcast<i32>(countOneBits{self._unsigned(a)})", a.element)
        found = self.let(f"{_FLOATS[name]}({', '.join(x.text for x in args)})", a.element)
        return self.fixed(found) if name == "sqrt" else found  # its square is not its operand if that is < 0

    def compare(self, predicate: str, a: Any, b: Any) -> Value:
        """Emit a comparison by an LLVM predicate."""
        x, y = self._pair(a, b)
        if x.floating:
            x = self.fixed(x) if predicate[1:] in ("lt", "le", "gt", "ge") else x  # not min or max: NaN
            return self.let(_compared(predicate, x.text, y.text), "i1")
        order = predicate[-2:]
        if x.element == "i1":
            texts = {
                "lt": f"!{x.text} && {y.text}", "gt": f"{x.text} && !{y.text}",
                "le": f"!{x.text} || {y.text}", "ge": f"{x.text} || !{y.text}",
            }  # fmt: skip
            return self.let(texts.get(order) or f"{x.text} {_COMPARES[order]} {y.text}", "i1")
        if x.element == "i64":
            if order in ("eq", "ne"):
                return self.let(
                    f"{'all' if order == 'eq' else 'any'}({x.text} {_COMPARES[order]} {y.text})", "i1"
                )
            first, second = (x, y) if order in ("lt", "ge") else (y, x)
            text = f"{predicate[0]}lt64({first.text}, {second.text})"
            return self.let(text if order in ("lt", "gt") else f"!{text}", "i1")
        if predicate[0] == "u":
            return self.let(f"{self._unsigned(x)} {_COMPARES[order]} {self._unsigned(y)}", "i1")
        return self.let(f"{x.text} {_COMPARES[order]} {y.text}", "i1")

    def select(self, mask: Value, a: Any, b: Any) -> Value:
        """Emit ``a`` if the mask is true, else ``b``."""
        x, y = self._pair(a, b)
        return self.let(f"select({y.text}, {x.text}, {mask.text})", x.element)

    def convert(self, a: Value, element: str, signed: bool = True) -> Value:
        """Emit a conversion to another element type; ``signed`` is about the integer."""
        if a.element == element:
            return a
        if element == "i1":
            return self.compare("une" if a.floating else "ne", a, 0)
        if a.element == "i64":
            if element == "float":
                return self.let(f"f32_{'i' if signed else 'u'}64({a.text})", element)
            return self._wrapped(f"bitcast<i32>({a.text}.x)", element)
        if element == "i64":
            if a.floating:
                return self.let(f"i64_f32({a.text})", element)
            if a.element == "i1" or not signed:
                low = f"u32({a.text})" if a.element == "i1" else self._unsigned(a)
                return self.let(f"vec2<u32>({low}, 0u)", element)
            return self.let(f"vec2<u32>(bitcast<u32>({a.text}), bitcast<u32>({a.text} >> 31u))", element)
        if element == "float":
            return self.let(f"f32({a.text if signed or a.element == 'i1' else self._unsigned(a)})", element)
        if a.floating or a.element == "i1":
            return self._wrapped(f"i32({a.text})", element)
        return self._wrapped(a.text if signed else f"bitcast<i32>({self._unsigned(a)})", element)

    def bitcast(self, a: Value, element: str) -> Value:
        """Emit a reinterpretation of the bits as another type of the same size."""
        return self.let(f"bitcast<{_TYPES[element]}>({a.text})", element)

    def element(self, numbers: Sequence[int], index: Value) -> Value:
        """Emit the number at an index of a constant list of 64-bit integers."""
        listed = ", ".join(self.const(n, "i64").text for n in numbers)
        count, name = len(numbers), f"table{len(self.tables)}"
        for known, text in self.tables.items():
            name = known if listed in text else name
        kind = f"array<vec2<u32>, {count}>"
        self.tables[name] = f"var<private> {name}: {kind} = {kind}({listed});"
        return self.let(f"{name}[{index.text}{'.x' if index.element == 'i64' else ''}]", "i64")


def _compared(predicate: str, x: str, y: str) -> str:
    """Return a comparison of floats; compilers may replace the negation of one by its opposite."""
    odd = " || ".join(f"(bitcast<u32>({v}) & 0x7fffffffu) > 0x7f800000u" for v in dict.fromkeys((x, y)))
    if predicate in ("uno", "ord"):
        return odd if predicate == "uno" else f"!({odd})"
    plain = f"{x} {_COMPARES[predicate[1:]]} {y}"
    if predicate == "one":
        return f"!({odd}) && {plain}"
    return plain if predicate[0] == "o" else f"{odd} || {plain}"


class Wgsl(OpenCL):
    """WGSL: a kernel reads the positions of its slots in the heap."""

    name = "webgpu"
    sizes = SIZES._replace(name="webgpu", least=4)
    local = 1 << 13
    head = ""
    barrier = "workgroupBarrier(); storageBarrier();"
    stored = _TYPES

    def __init__(self, order: str = "plain", barriers: bool = True) -> None:
        super().__init__(order, barriers, False)
        self.head, self.order = "", list(ORDERS).index(order)

    def writer(self) -> WgslWriter:
        """Return a writer for a new kernel."""
        return WgslWriter(False)

    def index(self, name: str, text: str) -> str:
        """Return the definition of an index."""
        return f"let {name}: i32 = {text};"

    def each(self, name: str, start: object, stop: object, step: int = 1) -> str:
        """Return the head of a loop."""
        return f"for (var {name}: i32 = {start}; {name} < {stop}; {name} += {step}) {{"

    def load(self, slot: str, element: str, at: str) -> str:
        """Return the expression of an element in memory."""
        if not _SLOT.match(slot):
            return f"{slot}[{at}]"
        if element == "i64":
            return f"load64({slot} + 2u * u32({at}))"
        word = f"H[{slot} + u32({at})]"
        return f"({word} != 0u)" if element == "i1" else f"bitcast<{_TYPES[element]}>({word})"

    def store(self, slot: str, element: str, at: str, text: str) -> str:
        """Return the statement that stores an element."""
        if not _SLOT.match(slot):
            return f"{slot}[{at}] = {text};"
        if element == "i64":
            return f"store64({slot} + 2u * u32({at}), {text});"
        word = f"select(0u, 1u, {text})" if element == "i1" else f"bitcast<u32>({text})"
        return f"H[{slot} + u32({at})] = {word};"

    def value(self, name: str, element: str, text: str) -> str:
        """Return the definition of a value that does not change."""
        return f"let {name}: {_TYPES[element]} = {text};"

    def variable(self, name: str, element: str, text: str) -> str:
        """Return the declaration of a variable with its initial value."""
        return f"var {name}: {_TYPES[element]} = {text};"

    def private_memory(self, name: str, element: str, count: int) -> str:
        """Return the declaration of an array of one thread."""
        return f"var {name}: array<{_TYPES[element]}, {count}>;"

    def local_memory(self, name: str, element: str, count: int) -> str:
        """Return the declaration of memory that a work-group shares."""
        return f"var<workgroup> {name}: array<{_TYPES[element]}, {count}>;"

    def to_index(self, value: Value) -> str:
        """Return an integer as an index."""
        return f"bitcast<i32>({value.text}.x)" if value.element == "i64" else value.text

    def pointer(self, name: str, element: str, address: str) -> str:
        """Return the definition of the position of the elements of a slot, in words."""
        return f"let {name}: u32 = {address};"

    def start(self, k: int) -> str:
        """Return the expression of the position of a slot."""
        return f"P[{k + 1}]"

    def moved(self, address: str, offset: int, row: str, stride: int) -> str:
        """Return a position, moved by an offset and by some rows, in bytes."""
        rows = f" + u32({row}) * {stride // 4}u" if stride else ""
        return f"{address} + {offset // 4}u{rows}"

    def pick(self, condition: str, yes: str, no: str) -> str:
        """Return the expression of one of two values."""
        return f"select({no}, {yes}, {condition})"

    def text(
        self,
        tables: dict[str, str],
        slots: int,
        lines: Sequence[str],
        groups: Sequence[int],
        sizes: Sequence[int],
    ) -> str:
        """Return the text of a kernel, given its statements; memory of a work-group is declared outside."""
        body = re.sub(r"\b(LID|WID|GID)\((\d)\)", r"\1\2", "\n".join(lines))
        size = ", ".join(map(str, [*sizes, 1, 1][:3]))
        shared = re.findall(r"^ *(var<workgroup>.*)", body, re.M)
        body = re.sub(r"^ *var<workgroup>.*\n", "", body, flags=re.M)
        return "\n".join(
            [
                "@group(0) @binding(0) var<storage, read_write> H: array<u32>;",
                "@group(0) @binding(1) var<storage, read> P: array<u32>;",
                *needed(body),
                *tables.values(),
                *shared,
                f"@compute @workgroup_size({size})",
                "fn main(@builtin(local_invocation_id) lid: vec3<u32>,",
                "        @builtin(workgroup_id) wid: vec3<u32>) {",
                "  let Z: u32 = P[0];",
                *self._ids(groups, sizes),
                body,
                "}\n",
            ]
        )

    def _ids(self, groups: Sequence[int], sizes: Sequence[int]) -> list[str]:
        """Return the definitions of the numbers of a thread and of its work-group."""
        lines, counts, lengths = [], [*groups, 1, 1][:3], [*sizes, 1, 1][:3]
        if max(counts) <= MOST:
            numbers = [f"i32(wid.{axis})" for axis in "xyz"]
        else:
            lines.append(f"  let group: i32 = i32(wid.x + wid.y * {MOST}u);")
            lines.append(f"  if (group >= {math.prod(counts)}) {{ return; }}")
            x, y, _ = counts
            numbers = [f"group % {x}", f"group / {x} % {y}", f"group / {x * y}"]
        for k, (number, count, length) in enumerate(zip(numbers, counts, lengths, strict=True)):
            local = f"i32(lid.{'xyz'[k]})"
            forms = (local, f"{length - 1} - {local}", f"{local} ^ {length >> 1}")
            lines.append(f"  let LID{k}: i32 = {forms[self.order]};")
            lines.append(f"  let WID{k}: i32 = {f'{count - 1} - {number}' if self.order else number};")
        return [*lines, f"  let GID0: i32 = WID0 * {lengths[0]} + LID0;"]
