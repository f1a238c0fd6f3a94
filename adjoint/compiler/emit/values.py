"""Values of LLVM IR: typed names and literals, and the types of NumPy's dtypes.

The elements "f16" (float16) and "bf16" (bfloat16) are bits in an ``i16``: kernels move them, and compute with
the float32 that ``emit.halves`` makes of them.
"""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "FLOATING", "HALVES", "Index", "Value", "element_of", "literal", "llvm_type", "parameter", "size_of",
    "stored_as",
]  # fmt: skip

HALVES = {"float16": "f16", "bfloat16": "bf16"}
_NAMED = {"float32": "float", "float64": "double", "bool": "i1"}
_NAMED |= {f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_BY_DTYPE = {np.dtype(name): element for name, element in _NAMED.items()}
_SIZES = {"float": 4, "double": 8, "i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "ptr": 8}
_SUFFIX = {"float": "f32", "double": "f64"}
FLOATING = ("float", "double")


def element_of(dtype: Any) -> str:
    """Return the element of a NumPy dtype in registers; a boolean is ``i1``."""
    dtype = np.dtype(dtype)
    return _BY_DTYPE.get(dtype) or HALVES[dtype.name]


def llvm_type(element: str) -> str:
    """Return the LLVM type of an element in registers."""
    return "i16" if element in ("f16", "bf16") else element


def size_of(element: str) -> int:
    """Return the size of an element in memory, in bytes."""
    return _SIZES[llvm_type(element)]


class Value(NamedTuple):
    """A variable or a literal of LLVM IR, with its element type and number of lanes."""

    text: str
    element: str
    lanes: int = 1

    @property
    def type(self) -> str:
        """The type as LLVM writes it."""
        kind = llvm_type(self.element)
        return kind if self.lanes == 1 else f"<{self.lanes} x {kind}>"

    @property
    def typed(self) -> str:
        """The type and the text of the value as LLVM writes them, such as "double %x"."""
        return f"{self.type} {self.text}"

    @property
    def mangled(self) -> str:
        """The type in the form that the names of LLVM's intrinsics contain, such as "v4f64"."""
        kind = _SUFFIX.get(self.element) or llvm_type(self.element)
        return kind if self.lanes == 1 else f"v{self.lanes}{kind}"

    @property
    def floating(self) -> bool:
        """Whether the element type is float or double."""
        return self.element in FLOATING


Index = int | Value


def stored_as(element: str) -> str:
    """Return the LLVM type in memory of an element in registers: ``i8`` for a boolean."""
    return "i8" if element == "i1" else llvm_type(element)


def parameter(type_text: str, name: str) -> Value:
    """Return a function's parameter as a value; ``type_text`` is its type, which attributes may follow."""
    if type_text.startswith("<"):
        count, element = type_text[1:-1].split(" x ")
        return Value(f"%{name}", element, int(count))
    return Value(f"%{name}", type_text.split()[0])


def literal(number: Any, element: str) -> str:
    """Return a number in the syntax of LLVM; floats are written as their bits."""
    if element in FLOATING:
        number = float(number)
        if element == "float":  # LLVM writes a float32 as the float64 with the same value
            number = _rounded(number, "f")
        return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
    if element == "f16":
        return str(struct.unpack("<h", struct.pack("<e", _rounded(float(number), "e")))[0])
    if element == "bf16":
        (bits,) = struct.unpack("<I", struct.pack("<f", _rounded(float(number), "f")))
        bits = bits | 0x400000 if math.isnan(number) else bits + 0x7FFF + (bits >> 16 & 1)
        return str(literal(bits >> 16, "i16"))
    if element == "i1":
        return "true" if number else "false"
    bits = int(element[1:])
    wrapped = (int(number) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
    return str(wrapped)


def _rounded(number: float, kind: str) -> float:
    """Return a number rounded to the format ``kind`` of ``struct``: "f" for float32, "e" for float16."""
    try:
        found: float = struct.unpack(f"<{kind}", struct.pack(f"<{kind}", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return found
