"""Vector code for trigonometric functions and their inverses; ``lean`` as in ``explog``."""

from __future__ import annotations

import math
from typing import NamedTuple

from adjoint.compiler.emit.math.coefficients import ASIN, ATAN, COS, SIN
from adjoint.compiler.emit.math.explog import INF, unless_tiny
from adjoint.compiler.emit.math.floats import (
    FORMATS,
    nearest,
    parts,
    polynomial,
    quick_sum,
    two_product,
    two_sum,
)
from adjoint.compiler.emit.math.reduction import reduce_lanes
from adjoint.compiler.emit.terms import Term, fma, where

__all__ = ["acos", "asin", "atan", "atan2", "cos", "sin", "tan"]

# π/2 in three parts of 33, 33 and 53 bits: products of the first two with integers below 2²⁰ are exact.
HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)
# In float32 in four parts of 12, 12, 12 and 24 bits: products with integers below 2¹² are exact.
HALF_PI32 = (1.5703125, 0.0004837512969970703, 7.549533620476723e-08, 2.5633440682570896e-12)
REDUCIBLE = {"double": 2.0**19, "float": 2.0**11}  # larger arguments are reduced by ``reduce_lanes``
PI, PI_REST = math.pi, 1.2246467991473532e-16


class SinCos(NamedTuple):
    """The sine and the cosine of x − n π/2, each as a number and a small correction."""

    n: Term
    odd: Term  # whether n is odd
    sin: Term
    sin_rest: Term
    cos: Term
    cos_rest: Term


def _reduced(x: Term, lean: bool) -> tuple[Term, Term, Term | None]:
    """Emit the parts n, r and c of x = n π/2 + r + c, where c is a small correction of r."""
    limit = REDUCIBLE[x.element]
    w, large = x.w, (abs(x) >= limit) & (abs(x) < INF)
    small = [part.value for part in _reduced_small(x, lean) if part is not None]

    n, r, *rest = w.where_any(large.value, lambda: reduce_lanes(where(large, x, limit)), small)
    return Term(w, n), Term(w, r), Term(w, rest[0]) if rest else None


def _reduced_small(x: Term, lean: bool) -> tuple[Term, Term, Term | None]:
    """Emit the parts of ``_reduced`` for |x| < ``REDUCIBLE``."""
    k, n = nearest(x, 2 / math.pi)
    if x.element == "float":
        return n, *_reduced_single(x, k)
    first, second, third = HALF_PI
    a = fma(k, -first, x)
    if lean:
        return n, fma(k, -second, a), None
    b = k * second
    r = a - b
    rest = k * third - (a - r - b)
    y = r - rest
    return n, y, r - y - rest


def _reduced_single(x: Term, k: Term) -> tuple[Term, Term]:
    """Emit x − k π/2 of float32 as a number and a small correction, for k below 2¹¹."""
    first, second, third, fourth = HALF_PI32
    r, lost = two_sum(x - k * first, k * -second)
    r, more = two_sum(r, k * -third)
    return quick_sum(r, lost + more - k * fourth)


def _sin_cos(x: Term, lean: bool) -> SinCos:
    """Emit the parts of the sine and the cosine of x."""
    n, r, c = _reduced(x, lean)
    short = lean or x.element == "float"
    z = r * r
    half = z * 0.5
    s = z * r * polynomial(z, SIN[short])
    q = z * z * polynomial(z, COS[short])
    cos = (1.0 - half).fixed()
    q = 1.0 - cos - half + q
    if c is not None:
        s = s + (c - half * c)
        q = q - r * c
    return SinCos(n, (n & 1).compare("ne", 0), r, s, cos, q)


def _with_sign(y: Term, n: Term) -> Term:
    """Emit y, with the opposite sign if the second bit of n is set: after two quarter turns."""
    f = FORMATS[y.element]
    return (y.bitcast(f.integer) ^ ((n & 2) >> 1 << f.sign)).bitcast(y.element)


def sin(x: Term, lean: bool = False) -> Term:
    """Emit code for sin(x)."""
    p = _sin_cos(x, lean)
    y = where(p.odd, p.cos + p.cos_rest, p.sin + p.sin_rest)
    return unless_tiny(x, _with_sign(y, p.n))


def cos(x: Term, lean: bool = False) -> Term:
    """Emit code for cos(x)."""
    p = _sin_cos(x, lean)
    y = where(p.odd, p.sin + p.sin_rest, p.cos + p.cos_rest)
    return _with_sign(y, p.n + 1)


def tan(x: Term, lean: bool = False) -> Term:
    """Emit code for tan(x) = sin/cos, or −cos/sin after an odd number of quarter turns."""
    p = _sin_cos(x, lean)
    top, top_rest = where(p.odd, -p.cos, p.sin), where(p.odd, -p.cos_rest, p.sin_rest)
    low, low_rest = where(p.odd, p.sin, p.cos), where(p.odd, p.sin_rest, p.cos_rest)
    t, d = (top + top_rest).fixed(), (low + low_rest).fixed()
    q = t / d
    if not lean:
        q = corrected(q, t, top_rest - (t - top), d, low_rest - (d - low))
    return unless_tiny(x, q)


def corrected(q: Term, t: Term, t_rest: Term, d: Term, d_rest: Term) -> Term:
    """Emit the quotient q = t / d, corrected for its rounding error and for those of t and d."""
    p, p_rest = two_product(q, d)
    return q + (t - p - p_rest + t_rest - q * d_rest) / d


# Inverse functions -------------------------------------------------------------------------------


def _atan_of_ratio(top: Term, low: Term, lean: bool) -> Term:
    """Emit atan(top / low) of non-negative numbers that are neither huge nor subnormal."""
    # above tan(π/8): π/4 + atan((t − l) / (t + l)); above tan(3π/8): π/2 − atan(l / t)
    middle = top > low * math.tan(math.pi / 8)
    high = top > low * math.tan(3 * math.pi / 8)
    p = where(high, -low, where(middle, top - low, top))
    q = where(high, top, where(middle, top + low, low))
    t = p / q
    z = t * t
    tail = t * z * polynomial(z, ATAN[lean or t.element == "float"])
    pi, pi_rest = parts((PI, PI_REST), t.element)
    base = where(high, pi / 2, where(middle, t.like(pi / 4), 0.0))
    rest = where(high, pi_rest / 2, where(middle, t.like(pi_rest / 4), 0.0))
    return base + (t + (tail + rest))


def atan(x: Term, lean: bool = False) -> Term:
    """Emit code for atan(x)."""
    a = abs(x)
    a = where(a > 1e20, 1e20, a)
    return unless_tiny(x, x.signed(_atan_of_ratio(a, a.like(1.0), lean)))


def atan2(y: Term, x: Term, lean: bool = False) -> Term:
    """Emit code for the angle of the point (x, y)."""
    a, b = abs(y), abs(x)
    if not lean:
        a, b = _moderate(a, b)
    infinite = b.equals(INF)
    both = a.equals(INF) & infinite
    top, low = where(both, 1.0, a), where(both, 1.0, b)
    # if one of them is ∞, the ratio becomes 1 / 0 or 0 / 1
    tall, wide = top.equals(INF), low.equals(INF)
    wide_top = where(wide, 0.0, top)
    top = where(tall, 1.0, wide_top)
    wide_low = where(wide, 1.0, low)
    low = where(tall, 0.0, wide_low)
    low = where(a.equals(0.0) & b.equals(0.0), 1.0, low)
    size = _atan_of_ratio(top, low, lean)
    pi, pi_rest = parts((PI, PI_REST), x.element)
    left = x.bitcast(FORMATS[x.element].integer) < 0
    size = where(left, pi - (size - pi_rest), size)
    return where(x.compare("uno", y), x + y, y.signed(size))


def _moderate(a: Term, b: Term) -> tuple[Term, Term]:
    """Emit a and b, scaled so that sums and quotients neither overflow nor lose subnormal bits."""
    larger = where(a > b, a, b)
    high, low, down, up = (
        (1e30, 1e-20, 2.0**-30, 2.0**60) if a.element == "float" else (1e290, 1e-200, 2.0**-100, 2.0**300)
    )
    scale = where(larger > high, a.like(down), 1.0)
    scale = where(larger < low, up, scale)
    return a * scale, b * scale


class Arcsine(NamedTuple):
    """The parts of asin(|x|), computed from asin(s) = s + ``tail`` with a small s.

    For |x| up to ½, s is |x|.  Above, s + ``rest`` is √((1 − |x|)/2).
    """

    large: Term
    s: Term
    rest: Term
    tail: Term


def _arcsine(x: Term, lean: bool) -> Arcsine:
    """Emit asin(|x|) as the parts of ``Arcsine``."""
    a = abs(x)
    large = a > 0.5
    half = (1.0 - a) * 0.5
    z = where(large, half, a * a)
    root = half.sqrt()
    s = where(large, root, a)
    tail = s * z * polynomial(z, ASIN[lean or x.element == "float"])
    if lean:
        return Arcsine(large, s, s.like(0.0), tail)
    square, error = two_product(root, root)
    rest = (half - square - error) / (root + root)
    usable = large & (root > 0.0)
    return Arcsine(large, s, where(usable, rest, 0.0), tail)


def asin(x: Term, lean: bool = False) -> Term:
    """Emit code for asin(x); above ½ it is π/2 − 2 asin(√((1 − x)/2))."""
    part = _arcsine(x, lean)
    twice = part.s + part.s
    small_terms = part.tail + part.rest
    pi, pi_rest = parts((PI, PI_REST), x.element)
    above = pi / 2 - (twice + (small_terms + small_terms) - pi_rest / 2)
    y = where(part.large, above, part.s + part.tail)
    return unless_tiny(x, x.signed(y))


def acos(x: Term, lean: bool = False) -> Term:
    """Emit code for acos(x): 2 asin(√((1 − |x|)/2)) or π minus it for |x| > ½, else π/2 − asin(x)."""
    part = _arcsine(x, lean)
    negative = x < 0.0
    small_terms = part.tail + part.rest
    outer = part.s + part.s + (small_terms + small_terms)
    pi, pi_rest = parts((PI, PI_REST), x.element)
    outer = where(negative, pi - (outer - pi_rest), outer)
    tail = where(negative, -part.tail, part.tail)
    inner = pi / 2 - (x + (tail - pi_rest / 2))
    return where(part.large, outer, inner)
