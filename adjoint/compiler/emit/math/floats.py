"""Building blocks of the vector functions: polynomials, rounding, powers of two, and rounding errors."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from adjoint.compiler.emit.terms import Operand, Term, fma

__all__ = [
    "FORMATS", "exponent_and_mantissa", "float_of", "halve", "nearest", "parts", "polynomial",
    "power_of_two", "quick_sum", "two_product", "two_sum",
]  # fmt: skip


class _Format(NamedTuple):
    """The bits of a floating-point type."""

    integer: str  # the integer type of the same size
    mantissa: int  # bits
    bias: int
    rounder: float  # 1.5 · 2^mantissa: adding it rounds to an integer, which is then in the low bits
    rounder_bits: int
    root_bits: int  # of √½
    splitter: float  # 2^⌈mantissa / 2⌉ + 1
    sign: int  # the number of the sign bit


FORMATS = {
    "float": _Format("i32", 23, 127, 12582912.0, 0x4B400000, 0x3F3504F3, 4097.0, 31),
    "double": _Format(
        "i64", 52, 1023, 6755399441055744.0, 0x4338000000000000, 0x3FE6A09E667F3BCD, 134217729.0, 63
    ),
}


def parts(number: tuple[float, float], element: str) -> tuple[float, float]:
    """Return a sum of two float64 numbers as a sum of two numbers of the type ``element``."""
    if element == "double":
        return number
    (high,) = struct.unpack("<f", struct.pack("<f", number[0]))
    return high, number[0] - high + number[1]


def polynomial(x: Term, coefficients: Sequence[float]) -> Term:
    """Emit a polynomial in x by Horner's rule; the coefficient of the highest power comes first."""
    y = x.like(coefficients[0])
    for c in coefficients[1:]:
        y = fma(y, x, c)
    return y


def nearest(x: Term, scale: float = 1.0) -> tuple[Term, Term]:
    """Emit the integer nearest to ``x * scale``, below 2²² or 2⁵¹, as a float and as an integer."""
    f = FORMATS[x.element]
    moved = (fma(x, scale, f.rounder) if scale != 1.0 else x + f.rounder).fixed()
    return moved - f.rounder, moved.bitcast(f.integer) - f.rounder_bits


def float_of(n: Term, element: str) -> Term:
    """Emit the conversion of a small integer to a float."""
    if element == "float":
        return Term(n.w, n.w.convert(n.value, "float"))
    f = FORMATS[element]
    return (n + f.rounder_bits).bitcast(element) - f.rounder


def halve(n: Term) -> Term:
    """Emit ``n // 2`` of a small integer, by a logical shift: AVX2 has no arithmetic one of 64 bits."""
    return (n + 8192 >> 1) - 4096


def power_of_two(n: Term, element: str) -> Term:
    """Emit 2ⁿ, which must be a normal number."""
    f = FORMATS[element]
    return (n + f.bias << f.mantissa).bitcast(element)


def exponent_and_mantissa(x: Term) -> tuple[Term, Term]:
    """Emit ``k`` and ``m`` of ``x = m · 2ᵏ`` with √½ <= m < √2; x must be normal and positive."""
    f = FORMATS[x.element]
    bits = x.bitcast(f.integer)
    if x.element == "float":
        moved = bits - f.root_bits
        k = Term(x.w, x.w.bits("ashr", moved.value, f.mantissa))
    else:  # use a logical shift: AVX2 has no arithmetic one for 64-bit integers
        k = (bits + ((1024 << f.mantissa) - f.root_bits) >> f.mantissa) - 1024
    return k, (bits - (k << f.mantissa)).bitcast(x.element)


def two_sum(a: Term, b: Operand) -> tuple[Term, Term]:
    """Emit ``a + b`` and the rounding error of the sum."""
    s = (a + b).fixed()
    v = (s - a).fixed()
    return s, (a - (s - v)) + (b - v)


def quick_sum(a: Term, b: Term) -> tuple[Term, Term]:
    """Emit ``a + b`` and the rounding error of the sum; requires ``|a| >= |b|``."""
    s = (a + b).fixed()
    return s, b - (s - a).fixed()


def two_product(a: Term, b: Term) -> tuple[Term, Term]:
    """Emit ``a * b`` and the rounding error of the product."""
    p = (a * b).fixed()
    if a.w.machine.fma:
        return p, fma(a, b, -p)
    (ah, al), (bh, bl) = _split(a), _split(b)
    return p, ((ah * bh - p) + (ah * bl + al * bh)) + al * bl


def _split(a: Term) -> tuple[Term, Term]:
    """Emit two numbers with half as many mantissa bits whose sum is ``a``."""
    moved = (a * FORMATS[a.element].splitter).fixed()
    high = (moved - (moved - a).fixed()).fixed()
    return high, a - high
