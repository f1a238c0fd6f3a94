"""Vector code for trigonometric functions and their inverses; ``lean`` as in ``explog``."""

from __future__ import annotations

import math
from typing import NamedTuple

from adjoint.compiler.emit.coefficients import ASIN32, ASIN64, ATAN32, ATAN64, COS32, COS64, SIN32, SIN64
from adjoint.compiler.emit.explog import INF, _signed, _unless_tiny
from adjoint.compiler.emit.floats import nearest, polynomial, sign_bit_of, two_product
from adjoint.compiler.emit.text import Writer
from adjoint.compiler.emit.values import Value

__all__ = ["acos", "asin", "atan", "atan2", "cos", "sin", "tan"]

# π/2 in three parts of 33, 33 and 53 bits: products of the first two with integers below 2²⁰ are exact.
HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)
REDUCIBLE = 2.0**19  # for larger arguments the C library is called
PI, PI_REST = math.pi, 1.2246467991473532e-16


class Angle(NamedTuple):
    """The parts of x = n π/2 + r + c, where c is a small correction of r."""

    n: Value
    r: Value
    c: Value | None


def _reduced(w: Writer, x: Value, lean: bool) -> Angle:
    """Emit x as a multiple of π/2 and the remainder (see ``Angle``)."""
    k, n = nearest(w, x, 2 / math.pi)
    first, second, third = HALF_PI
    a = w.fma(k, -first, x)
    if lean:
        return Angle(n, w.fma(k, -second, a), None)
    b = w.mul(k, second)
    r = w.sub(a, b)
    rest = w.sub(w.mul(k, third), w.sub(w.sub(a, r), b))
    y = w.sub(r, rest)
    return Angle(n, y, w.sub(w.sub(r, y), rest))


class SinCos(NamedTuple):
    """The sine and the cosine of a reduced angle, each as a number and a small correction."""

    sin: Value
    sin_rest: Value
    cos: Value
    cos_rest: Value


def _sin_cos(w: Writer, angle: Angle, lean: bool) -> SinCos:
    """Emit the sine and the cosine of the remainder r + c of an angle."""
    r, c = angle.r, angle.c
    z = w.mul(r, r)
    half = w.mul(z, 0.5)
    s = w.mul(w.mul(z, r), polynomial(w, z, SIN32 if lean else SIN64))
    q = w.mul(w.mul(z, z), polynomial(w, z, COS32 if lean else COS64))
    cos = w.sub(1.0, half)
    q = w.add(w.sub(w.sub(1.0, cos), half), q)
    if c is not None:
        s = w.add(s, w.sub(c, w.mul(half, c)))
        q = w.sub(q, w.mul(r, c))
    return SinCos(r, s, cos, q)


def _with_sign(w: Writer, y: Value, n: Value) -> Value:
    """Emit y, with the opposite sign if the second bit of n is set: after two quarter turns."""
    return w.bitcast(
        w.bits("xor", w.bitcast(y, "i64"), sign_bit_of(w, w.bits("and", n, 2), 1, y.element)), "double"
    )


def _or_by_library(w: Writer, name: str, x: Value, y: Value) -> Value:
    """Emit y; in lanes where x is too large for the reduction, the result of the C function ``name``."""
    large = w.op("and", w.compare("oge", w.abs(x), REDUCIBLE), w.compare("olt", w.abs(x), INF))
    slow = f"large_{name}_{x.lanes}"

    def body(inner: Writer, args: list[Value]) -> Value:
        inner.declare(f"double @{name}(double)")
        memory = inner.scratch("double", x.lanes)
        inner.store(args[0], memory)

        def one(i: Value, _: list[Value]) -> None:
            place = inner.at(memory, "double", i)
            inner.store(inner.call(name, "double", 1, inner.load(place, "double")), place)

        inner.loop(0, x.lanes, 1, one)
        return inner.load(memory, "double", x.lanes)

    w.define(slow, [(x.type, "x")], body, "double", x.lanes)
    (found,) = w.choose(
        w.any(large), lambda: [w.select(large, w.call(slow, "double", x.lanes, x), y)], lambda: [y]
    )
    return found


def sin(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for sin(x)."""
    angle = _reduced(w, x, lean)
    both = _sin_cos(w, angle, lean)
    odd = w.compare("ne", w.bits("and", angle.n, 1), 0)
    y = w.select(odd, w.add(both.cos, both.cos_rest), w.add(both.sin, both.sin_rest))
    return _or_by_library(w, "sin", x, _unless_tiny(w, x, _with_sign(w, y, angle.n)))


def cos(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for cos(x)."""
    angle = _reduced(w, x, lean)
    both = _sin_cos(w, angle, lean)
    odd = w.compare("ne", w.bits("and", angle.n, 1), 0)
    y = w.select(odd, w.add(both.sin, both.sin_rest), w.add(both.cos, both.cos_rest))
    return _or_by_library(w, "cos", x, _with_sign(w, y, w.add(angle.n, 1)))


def tan(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for tan(x) = sin/cos, or −cos/sin after an odd number of quarter turns."""
    angle = _reduced(w, x, lean)
    both = _sin_cos(w, angle, lean)
    odd = w.compare("ne", w.bits("and", angle.n, 1), 0)
    top, top_rest = (
        w.select(odd, w.neg(both.cos), both.sin),
        w.select(odd, w.neg(both.cos_rest), both.sin_rest),
    )
    low, low_rest = w.select(odd, both.sin, both.cos), w.select(odd, both.sin_rest, both.cos_rest)
    t, d = w.add(top, top_rest), w.add(low, low_rest)
    q = w.div(t, d)
    if not lean:  # correct the quotient for the rounding errors of t, d and q
        t_rest, d_rest = w.sub(top_rest, w.sub(t, top)), w.sub(low_rest, w.sub(d, low))
        p, p_rest = two_product(w, q, d)
        left = w.sub(w.add(w.sub(w.sub(t, p), p_rest), t_rest), w.mul(q, d_rest))
        q = w.add(q, w.div(left, d))
    return _or_by_library(w, "tan", x, _unless_tiny(w, x, q))


# Inverse functions -------------------------------------------------------------------------------


def _atan_of_ratio(w: Writer, top: Value, low: Value, lean: bool) -> Value:
    """Emit atan(top / low) of non-negative numbers that are neither huge nor subnormal."""
    # above tan(π/8): π/4 + atan((t − l) / (t + l)); above tan(3π/8): π/2 − atan(l / t)
    middle = w.compare("ogt", top, w.mul(low, math.tan(math.pi / 8)))
    high = w.compare("ogt", top, w.mul(low, math.tan(3 * math.pi / 8)))
    p = w.select(high, w.neg(low), w.select(middle, w.sub(top, low), top))
    q = w.select(high, top, w.select(middle, w.add(top, low), low))
    t = w.div(p, q)
    z = w.mul(t, t)
    tail = w.mul(w.mul(t, z), polynomial(w, z, ATAN32 if lean else ATAN64))
    base = w.select(high, w.like(t, PI / 2), w.select(middle, w.like(t, PI / 4), w.like(t, 0.0)))
    rest = w.select(high, w.like(t, PI_REST / 2), w.select(middle, w.like(t, PI_REST / 4), w.like(t, 0.0)))
    return w.add(base, w.add(t, w.add(tail, rest)))


def atan(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for atan(x)."""
    a = w.abs(x)
    a = w.select(w.compare("ogt", a, 1e20), w.like(a, 1e20), a)
    return _unless_tiny(w, x, _signed(w, x, _atan_of_ratio(w, a, w.like(a, 1.0), lean)))


def atan2(w: Writer, y: Value, x: Value, lean: bool = False) -> Value:
    """Emit code for the angle of the point (x, y)."""
    a, b = w.abs(y), w.abs(x)
    if not lean:
        a, b = _moderate(w, a, b)
    infinite = w.compare("oeq", b, INF)
    both = w.op("and", w.compare("oeq", a, INF), infinite)
    top = w.select(both, w.like(a, 1.0), a)
    low = w.select(both, w.like(b, 1.0), b)
    # if one of them is ∞, the ratio becomes 1 / 0 or 0 / 1
    tall = w.compare("oeq", top, INF)
    wide = w.compare("oeq", low, INF)
    one, zero = w.like(a, 1.0), w.like(a, 0.0)
    top, low = w.select(tall, one, w.select(wide, zero, top)), w.select(tall, zero, w.select(wide, one, low))
    nothing = w.op("and", w.compare("oeq", a, 0.0), w.compare("oeq", b, 0.0))
    low = w.select(nothing, one, low)
    size = _atan_of_ratio(w, top, low, lean)
    left = w.compare("slt", w.bitcast(x, "i64"), 0)
    turned = w.sub(w.like(x, PI), w.sub(size, PI_REST))
    size = w.select(left, turned, size)
    return w.select(w.compare("uno", x, y), w.add(x, y), _signed(w, y, size))


def _moderate(w: Writer, a: Value, b: Value) -> tuple[Value, Value]:
    """Emit a and b, scaled so that sums and quotients neither overflow nor lose subnormal bits."""
    larger = w.select(w.compare("ogt", a, b), a, b)
    scale = w.select(w.compare("ogt", larger, 1e290), w.like(a, 2.0**-100), w.like(a, 1.0))
    scale = w.select(w.compare("olt", larger, 1e-200), w.like(a, 2.0**300), scale)
    return w.mul(a, scale), w.mul(b, scale)


class Arcsine(NamedTuple):
    """The parts of asin(|x|), computed from asin(s) = s + ``tail`` with a small s.

    For |x| up to ½, s is |x|.  Above, s + ``rest`` is √((1 − |x|)/2).
    """

    large: Value
    s: Value
    rest: Value
    tail: Value


def _arcsine(w: Writer, x: Value, lean: bool) -> Arcsine:
    """Emit asin(|x|) as the parts of ``Arcsine``."""
    a = w.abs(x)
    large = w.compare("ogt", a, 0.5)
    half = w.mul(w.sub(1.0, a), 0.5)
    z = w.select(large, half, w.mul(a, a))
    root = w.sqrt(half)
    s = w.select(large, root, a)
    tail = w.mul(w.mul(s, z), polynomial(w, z, ASIN32 if lean else ASIN64))
    if lean:
        return Arcsine(large, s, w.like(s, 0.0), tail)
    square, error = two_product(w, root, root)
    rest = w.div(w.sub(w.sub(half, square), error), w.add(root, root))
    usable = w.op("and", large, w.compare("ogt", root, 0.0))
    return Arcsine(large, s, w.select(usable, rest, w.like(s, 0.0)), tail)


def asin(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for asin(x); above ½ it is π/2 − 2 asin(√((1 − x)/2))."""
    part = _arcsine(w, x, lean)
    twice = w.add(part.s, part.s)
    small_terms = w.add(part.tail, part.rest)
    above = w.sub(w.like(x, PI / 2), w.sub(w.add(twice, w.add(small_terms, small_terms)), PI_REST / 2))
    y = w.select(part.large, above, w.add(part.s, part.tail))
    return _unless_tiny(w, x, _signed(w, x, y))


def acos(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for acos(x).

    It is 2 asin(√((1 − x)/2)) for x > ½, π − acos(−x) for x < −½, and π/2 − asin(x) between.
    """
    part = _arcsine(w, x, lean)
    negative = w.compare("olt", x, 0.0)
    small_terms = w.add(part.tail, part.rest)
    outer = w.add(w.add(part.s, part.s), w.add(small_terms, small_terms))
    outer = w.select(negative, w.sub(w.like(x, PI), w.sub(outer, PI_REST)), outer)
    tail = w.select(negative, w.neg(part.tail), part.tail)
    inner = w.sub(w.like(x, PI / 2), w.add(x, w.sub(tail, PI_REST / 2)))
    return w.select(part.large, outer, inner)
