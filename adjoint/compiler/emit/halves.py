"""Conversions of half precision: float16 and bfloat16 to float32, and back with rounding to the nearest.

Ties are rounded to even, as in NumPy and ml_dtypes.  Both formats are bits in an ``i16``.
"""

from __future__ import annotations

from typing import Any

from adjoint.compiler.emit.terms import Term, where
from adjoint.compiler.emit.values import HALVES, Value

__all__ = ["narrowed", "widened"]

_SIGN, _INFINITE = 0x80000000, 0x7F800000  # bits of a float32
_REBIASED = 112 << 23  # float32 has a larger bias of the exponent than float16, by 112


def widened(w: Any, x: Value) -> Value:
    """Emit the float32 that equals a float16 or bfloat16; return other values unchanged."""
    if x.element not in HALVES.values():
        return x
    if x.element == "bf16":
        return _float(Term(w, w.convert(_bits(x), "i32", signed=False)) << 16).value
    if w.machine.halves:
        kind = "half" if x.lanes == 1 else f"<{x.lanes} x half>"
        half = w.emit(f"bitcast {x.typed} to {kind}", "half", x.lanes)
        return w.emit(f"fpext {kind} {half.text} to {Value('', 'float', x.lanes).type}", "float", x.lanes)
    bits = Term(w, w.convert(_bits(x), "i32", signed=False))
    size = bits & 0x7FFF
    normal = (size << 13) + _REBIASED
    special = (size << 13) | _INFINITE
    small = Term(w, w.convert(size.value, "float")) * 2.0**-24
    found = where(size > 0x7BFF, special, where(size < 0x400, small.bitcast("i32"), normal))
    return _float(found | (bits & 0x8000) << 16).value


def narrowed(w: Any, x: Value, element: str) -> Value:
    """Emit a float rounded to float16 ("f16") or bfloat16 ("bf16")."""
    if x.element == "double":
        x = _to_odd(w, x) if element == "f16" else w.convert(x, "float")
    if element == "bf16":
        bits = Term(w, w.bitcast(x, "i32"))
        rounded = bits + 0x7FFF + (bits >> 16 & 1)
        quiet = (bits & _SIGN) | 0x7FC00000
        return _half(where(Term(w, w.compare("uno", x, x)), quiet, rounded) >> 16, element)
    if w.machine.halves:
        kind = "half" if x.lanes == 1 else f"<{x.lanes} x half>"
        half = w.emit(f"fptrunc {x.typed} to {kind}", "half", x.lanes)
        return w.emit(f"bitcast {kind} {half.text} to {Value('', 'f16', x.lanes).type}", "f16", x.lanes)
    bits = Term(w, w.bitcast(x, "i32"))
    size = bits & 0x7FFFFFFF
    normal = size + 0xFFF + (size >> 13 & 1) - _REBIASED >> 13
    # below 2⁻¹⁴: the addition of ½ rounds to a multiple of 2⁻²⁴
    small = (size.bitcast("float") + 0.5).bitcast("i32") - 0x3F000000
    large = where(size > _INFINITE, 0x7E00, where(size.like(0x47800000) > size, normal, 0x7C00))
    found = where(size < 0x38800000, small, large)
    return _half(found | (bits & _SIGN) >> 16, element)


def _to_odd(w: Any, x: Value) -> Value:
    """Emit a float64 as a float32 whose last bit is 1 if it is not exact, so that it is rounded only once."""
    near = Term(w, w.convert(x, "float"))
    back = Term(w, w.convert(near.value, "double"))
    inexact = Term(w, w.compare("one", back.value, x))
    away = abs(back) > abs(Term(w, x))
    bits = near.bitcast("i32")
    return where(inexact, where(away, bits - 1, bits) | 1, bits).bitcast("float").value


def _bits(x: Value) -> Value:
    return Value(x.text, "i16", x.lanes)


def _half(bits: Term, element: str) -> Value:
    """Emit the lower 16 bits of integers as half precision."""
    x = bits.w.convert(bits.value, "i16")
    return Value(x.text, element, x.lanes)


def _float(bits: Term) -> Term:
    return bits.bitcast("float")
