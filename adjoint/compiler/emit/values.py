"""Values of LLVM IR: typed names and literals, and the types of NumPy's dtypes."""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

import numpy as np

__all__ = ["FLOATING", "Index", "Value", "element_of", "literal", "parameter", "size_of", "stored_as"]

_NAMED = {"float32": "float", "float64": "double", "bool": "i1"}
_NAMED |= {f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_BY_DTYPE = {np.dtype(name): element for name, element in _NAMED.items()}
_SIZES = {"float": 4, "double": 8, "i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "ptr": 8}
_SUFFIX = {"float": "f32", "double": "f64"}
FLOATING = ("float", "double")


def element_of(dtype: Any) -> str:
    """Return the LLVM type of a NumPy dtype in registers; a boolean is ``i1``."""
    return _BY_DTYPE[np.dtype(dtype)]


def size_of(element: str) -> int:
    """Return the size of an element in memory, in bytes."""
    return _SIZES[element]


class Value(NamedTuple):
    """A variable or a literal of LLVM IR, with its element type and number of lanes."""

    text: str
    element: str
    lanes: int = 1

    @property
    def type(self) -> str:
        """The type as LLVM writes it."""
        return self.element if self.lanes == 1 else f"<{self.lanes} x {self.element}>"

    @property
    def typed(self) -> str:
        """The type and the text of the value as LLVM writes them, such as "double %x"."""
        return f"{self.type} {self.text}"

    @property
    def mangled(self) -> str:
        """The type in the form that the names of LLVM's intrinsics contain, such as "v4f64"."""
        kind = _SUFFIX.get(self.element, self.element)
        return kind if self.lanes == 1 else f"v{self.lanes}{kind}"

    @property
    def floating(self) -> bool:
        """Whether the element type is float or double."""
        return self.element in FLOATING


Index = int | Value


def stored_as(element: str) -> str:
    """Return the LLVM type in memory of an element type in registers: ``i8`` for a boolean."""
    return "i8" if element == "i1" else element


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
            try:
                number = struct.unpack("<f", struct.pack("<f", number))[0]
            except OverflowError:
                number = math.copysign(math.inf, number)
        return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
    if element == "i1":
        return "true" if number else "false"
    bits = int(element[1:])
    wrapped = (int(number) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
    return str(wrapped)
