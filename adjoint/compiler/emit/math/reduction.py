"""Reduction of large angles by multiples of π/2, with 192 bits of 2/π (Payne and Hanek).

The C library is not called: its results differ between systems, and exported programs have none.
"""

from __future__ import annotations

import math

from adjoint.compiler.emit.arithmetic import Arithmetic
from adjoint.compiler.emit.math.floats import parts, quick_sum, two_product, two_sum
from adjoint.compiler.emit.terms import Term
from adjoint.compiler.emit.values import Value

__all__ = ["reduce_lanes"]

# 64 zero bits, then the bits of 2/π = 0.1010001…
_TWO_OVER_PI = (
    0x0, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561, 0xB7246E3A424DD2E0,
    0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41, 0x3991D639835339F4,
    0x9C845F8BBDF9283B, 0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7, 0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB,
)  # fmt: skip
_HALF_PI = math.pi / 2, 6.123233995736766e-17  # as a sum


def reduce_lanes(x: Term) -> list[Value]:
    """Emit n, r and c of x = n π/2 + r + c for each lane, where c is a small correction of r.

    All lanes must be finite and at least 1 in size; n is only known modulo 4.
    """
    if x.element == "float":
        return x.w.each_lane("reduce_angle32", _reduce_single, x.value, ("i32", "float", "float"))
    return x.w.each_lane("reduce_angle", _reduce, x.value, ("i64", "double", "double"))


def _reduce(w: Arithmetic, x: Value) -> list[Value]:
    """Emit n, r and c of one angle."""
    bits = Term(w, x).bitcast("i64")
    # |x| = m · 2ˢ with an integer m; bits of 2/π whose products with m 2ˢ are multiples of 4 are not needed
    start = (bits >> 52 & 0x7FF) - (1075 - 62)
    m = (bits & (1 << 52) - 1) | 1 << 52
    words = [_word(w, start, k) for k in range(3)]
    # the lowest 192 bits of m times the words: |x| · 2/π modulo 4, times 2¹⁹⁰
    third = m * words[2]
    second = m * words[1]
    total = second + _high(m, words[2])
    carry = _integer(w, total.compare("ult", second))
    first = m * words[0] + _high(m, words[1]) + carry
    n = first >> 62
    high, low = (first << 2) | (total >> 62), (total << 2) | (third >> 62)
    # the fraction as a number from -1/2 to 1/2, in 128 bits
    negative = high < 0
    n = n + _integer(w, negative)
    flip = Term(w, w.select(negative.value, w.const(-1, "i64"), 0))
    low_part = (low ^ flip) - flip
    borrow = _integer(w, negative & low.equals(0))
    high_part = (high ^ flip) + borrow
    scale = 2.0**-64
    a = _double(w, high_part & ~0x3FF) * scale
    b = _double(w, high_part & 0x3FF) * scale
    c = _double(w, low_part >> 11) * (scale * 2.0**-53)
    a, b = two_sum(a, b)
    a, b = quick_sum(a, b + c)
    below = bits < 0
    turn = w.bits("xor", negative.value, below.value)
    quarters = _quarters(a, b)
    found = [w.select(turn, w.neg(part.value), part.value) for part in quarters]
    return [w.select(below.value, w.neg(n.value), n.value), *found]


def _quarters(a: Term, b: Term) -> tuple[Term, Term]:
    """Emit (a + b) π/2 as a number and a small correction."""
    high, low = parts(_HALF_PI, a.element)
    p, rest = two_product(a, a.like(high))
    rest = rest + a * low + b * high
    return quick_sum(p, rest)


def _reduce_single(w: Arithmetic, x: Value) -> list[Value]:
    """Emit n, r and c of one angle in float32; n and the fraction after it are found in 64 bits."""
    bits = Term(w, x).bitcast("i32")
    start = _wide(w, (bits >> 23 & 0xFF) - (150 - 62))
    m = _wide(w, (bits & (1 << 23) - 1) | 1 << 23)
    total = m * _word(w, start, 0) + (m * (_word(w, start, 1) >> 32) >> 32)
    fraction = total << 2
    n = (total >> 62) + _integer(w, fraction < 0)
    low = (1 << 40) - 1, (1 << 16) - 1
    pieces = fraction & ~low[0], fraction & (low[0] - low[1]), fraction & low[1]
    a, b, c = (Term(w, w.convert(piece.value, "float")) * 2.0**-64 for piece in pieces)
    a, b = two_sum(a, b)
    a, b = quick_sum(a, b + c)
    below = bits < 0
    turn = Term(w, w.convert(n.value, "i32"))
    found = [w.select(below.value, w.neg(part.value), part.value) for part in (turn, *_quarters(a, b))]
    return list(found)


def _wide(w: Arithmetic, n: Term) -> Term:
    return Term(w, w.convert(n.value, "i64"))


def _integer(w: Arithmetic, flag: Term) -> Term:
    return Term(w, w.convert(flag.value, "i64", signed=False))


def _double(w: Arithmetic, n: Term) -> Term:
    return Term(w, w.convert(n.value, "double"))


def _word(w: Arithmetic, start: Term, k: int) -> Term:
    """Emit the 64 bits of 2/π from bit ``start + 64 k`` on."""
    signed = [n - (1 << 64) if n >> 63 else n for n in _TWO_OVER_PI]
    at = (start >> 6) + k
    a, b = (Term(w, w.element(signed, place.value)) for place in (at, at + 1))
    shift = start & 63
    return a << shift | b >> 1 >> 63 - shift


def _high(a: Term, b: Term) -> Term:
    """Emit the upper 64 bits of the product of two unsigned integers."""
    mask = (1 << 32) - 1
    a0, a1, b0, b1 = a & mask, a >> 32, b & mask, b >> 32
    middle = (a0 * b0 >> 32) + a1 * b0
    other = (middle & mask) + a0 * b1
    return a1 * b1 + (middle >> 32) + (other >> 32)
