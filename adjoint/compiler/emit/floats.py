"""Building blocks of the vector functions: polynomials, rounding, powers of two, and rounding errors."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from adjoint.compiler.emit.text import Writer
from adjoint.compiler.emit.values import Value

__all__ = [
    "exponent_and_mantissa",
    "float_of",
    "halve",
    "integer_of",
    "nearest",
    "polynomial",
    "power_of_two",
    "sign_bit_of",
    "two_product",
    "two_sum",
]

# Adding 1.5 · 2^(bits of the mantissa) rounds to the nearest integer, which is then in the low bits.
ROUNDER = {"float": 12582912.0, "double": 6755399441055744.0}
INTEGER = {"float": "i32", "double": "i64"}
MANTISSA = {"float": 23, "double": 52}
BIAS = {"float": 127, "double": 1023}
SQRT_HALF_BITS = {"float": 0x3F3504F3, "double": 0x3FE6A09E667F3BCD}


def bits_of(number: float, element: str) -> int:
    """Return the bit pattern of a number, stored as the LLVM type ``element``, as an integer."""
    if element == "float":
        return int(struct.unpack("<i", struct.pack("<f", number))[0])
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


def polynomial(w: Writer, x: Value, coefficients: Sequence[float]) -> Value:
    """Emit a polynomial in x by Horner's rule; the coefficient of the highest power comes first."""
    y = w.like(x, coefficients[0])
    for c in coefficients[1:]:
        y = w.fma(y, x, c)
    return y


def nearest(w: Writer, x: Value, scale: float = 1.0) -> tuple[Value, Value]:
    """Emit the integer nearest to ``x * scale``; return it as a float and as an integer.

    The absolute value of the integer must be below 2²² in float32, 2⁵¹ in float64.
    """
    rounder = ROUNDER[x.element]
    moved = w.fma(x, scale, rounder) if scale != 1.0 else w.add(x, rounder)
    return w.sub(moved, rounder), w.sub(w.bitcast(moved, INTEGER[x.element]), bits_of(rounder, x.element))


def float_of(w: Writer, n: Value, element: str) -> Value:
    """Emit the conversion of a small integer to a float.

    64-bit integers are converted by additions, because AVX2 has no instruction for them.
    """
    if element == "float":
        return w.convert(n, "float")
    rounder = ROUNDER[element]
    return w.sub(w.bitcast(w.add(n, bits_of(rounder, element)), element), rounder)


def integer_of(w: Writer, x: Value) -> Value:
    """Emit a reinterpretation of the bits of a float as an integer."""
    return w.bitcast(x, INTEGER[x.element])


def halve(w: Writer, n: Value) -> Value:
    """Emit ``n // 2`` of a small integer.

    A logical shift is used, because AVX2 has no arithmetic shift of 64-bit integers.
    """
    return w.sub(w.bits("lshr", w.add(n, 8192), 1), 4096)


def power_of_two(w: Writer, n: Value, element: str) -> Value:
    """Emit 2ⁿ, which must be a normal number."""
    return w.bitcast(w.bits("shl", w.add(n, BIAS[element]), MANTISSA[element]), element)


def exponent_and_mantissa(w: Writer, x: Value) -> tuple[Value, Value]:
    """Emit ``k`` and ``m`` of ``x = m · 2ᵏ`` with √½ <= m < √2; x must be normal and positive."""
    bits, mantissa = integer_of(w, x), MANTISSA[x.element]
    if mantissa == 23:
        k = w.bits("ashr", w.sub(bits, SQRT_HALF_BITS["float"]), mantissa)
    else:  # use a logical shift: AVX2 has no arithmetic one for 64-bit integers
        moved = w.add(bits, (1024 << mantissa) - SQRT_HALF_BITS["double"])
        k = w.sub(w.bits("lshr", moved, mantissa), 1024)
    return k, w.bitcast(w.sub(bits, w.bits("shl", k, mantissa)), x.element)


def sign_bit_of(w: Writer, n: Value, bit: int, element: str) -> Value:
    """Emit an integer whose sign bit is bit ``bit`` of ``n``."""
    return w.bits("shl", w.bits("lshr", n, bit), 31 if element == "float" else 63)


def two_sum(w: Writer, a: Value, b: Value) -> tuple[Value, Value]:
    """Emit ``a + b`` and the rounding error of the sum."""
    s = w.add(a, b)
    v = w.sub(s, a)
    return s, w.add(w.sub(a, w.sub(s, v)), w.sub(b, v))


def quick_sum(w: Writer, a: Value, b: Value) -> tuple[Value, Value]:
    """Emit ``a + b`` and the rounding error of the sum; requires ``|a| >= |b|``."""
    s = w.add(a, b)
    return s, w.sub(b, w.sub(s, a))


def two_product(w: Writer, a: Value, b: Value) -> tuple[Value, Value]:
    """Emit ``a * b`` and the rounding error of the product.

    Without an FMA instruction, the numbers are split by Dekker's method.
    """
    p = w.mul(a, b)
    if w.machine.fma:
        return p, w.fma(a, b, w.neg(p))
    (ah, al), (bh, bl) = _split(w, a), _split(w, b)
    error = w.add(w.add(w.sub(w.mul(ah, bh), p), w.add(w.mul(ah, bl), w.mul(al, bh))), w.mul(al, bl))
    return p, error


def _split(w: Writer, a: Value) -> tuple[Value, Value]:
    """Emit two numbers with half as many mantissa bits whose sum is ``a``."""
    moved = w.mul(a, 4097.0 if a.element == "float" else 134217729.0)
    high = w.sub(moved, w.sub(moved, a))
    return high, w.sub(a, high)
