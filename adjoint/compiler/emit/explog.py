"""Vector code for exponentials, logarithms and hyperbolic functions.

If ``lean`` is true, the result of a float64 computation is rounded to float32 afterwards, so that shorter
polynomials without correction terms suffice.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from adjoint.compiler.emit.coefficients import EXP32, EXP64, LOG1P32, LOG32, LOG64, LOG_LATER64, TANH32
from adjoint.compiler.emit.floats import (
    exponent_and_mantissa,
    float_of,
    halve,
    nearest,
    polynomial,
    power_of_two,
    quick_sum,
    two_product,
    two_sum,
)
from adjoint.compiler.emit.text import Writer
from adjoint.compiler.emit.values import Value, size_of

__all__ = [
    "acosh", "asinh", "atanh", "cosh", "exp", "exp2", "expm1",
    "log", "log1p", "log2", "log10", "logaddexp", "logaddexp2", "pow", "sinh",
    "tanh", "tanh_from_gap", "tanh_gap",
]  # fmt: skip

INF, NAN = math.inf, math.nan
LN2 = {  # as a sum of two parts; the first ends in zero bits, so its product with a small integer is exact
    "float": (0.693145751953125, 1.4286067653301873e-06),
    "double": (0.6931471803691238, 1.9082149292705877e-10),
}
_LN2_REST = 2.3190468138462996e-17  # ln 2 − float64(ln 2)
TINY = {"float": 1e-30, "double": 1e-290}


class Exponential(NamedTuple):
    """exp(x) as the parts of 2ⁿ (1 + r + c), where c is small compared to r."""

    k: Value  # n as a float
    n: Value
    r: Value
    c: Value


def _clamp(w: Writer, x: Value, low: float, high: float) -> Value:
    """Emit x limited to the range from ``low`` to ``high``; NaN is unchanged."""
    top, bottom = w.like(x, high), w.like(x, low)
    x = w.select(w.compare("olt", top, x), top, x)  # LLVM turns this form into one x86 instruction
    return w.select(w.compare("ogt", bottom, x), bottom, x)


def _reduced(w: Writer, x: Value, lean: bool, beside: Value | None = None) -> Exponential:
    """Emit exp(x + beside) as the parts of 2ⁿ (1 + r + c); ``beside`` is a small correction of x."""
    high, low = LN2[x.element]
    k, n = nearest(w, x, math.log2(math.e))
    if lean:
        r = w.fma(k, -math.log(2.0), x)
        return Exponential(k, n, r, w.mul(w.mul(r, r), polynomial(w, r, EXP32)))
    a, b = w.fma(k, -high, x), w.mul(k, low)
    r = w.sub(a, b)
    rest = w.sub(w.sub(a, r), b)
    p = polynomial(w, r, EXP32 if x.element == "float" else EXP64)
    if beside is None:
        return Exponential(k, n, r, w.fma(w.mul(r, r), p, rest))
    rest, c = w.add(rest, beside), w.mul(w.mul(r, r), p)
    # exp(r + rest) = exp(r) (1 + rest)
    return Exponential(k, n, r, w.add(c, w.fma(rest, w.add(r, c), rest)))


def _scaled(w: Writer, y: Value, e: Exponential, lean: bool) -> Value:
    """Emit y · 2ⁿ with the n of ``e``, rounded once, even if the result is subnormal."""
    if w.machine.level == "avx512" and y.lanes * size_of(y.element) == 64:
        return _scaled_by_instruction(w, y, e.k)
    if lean:
        return w.mul(y, power_of_two(w, e.n, y.element))
    half = halve(w, e.n)
    return w.mul(w.mul(y, power_of_two(w, half, y.element)), power_of_two(w, w.sub(e.n, half), y.element))


def _scaled_by_instruction(w: Writer, y: Value, k: Value) -> Value:
    """Emit y · 2ᵏ as the AVX-512 instruction ``scalef``."""
    kind, mask = ("ps", "i16 -1") if y.element == "float" else ("pd", "i8 -1")
    name = f"llvm.x86.avx512.mask.scalef.{kind}.512"
    w.declare(f"{y.type} @{name}({y.type}, {y.type}, {y.type}, {mask.split()[0]}, i32)")
    args = f"{y.typed}, {k.typed}, {y.type} zeroinitializer, {mask}, i32 4"
    return w.emit(f"call {y.type} @{name}({args})", y.element, y.lanes)


def _limits(x: Value, lean: bool) -> tuple[float, float]:
    """Return the bound below which exp(x) is 0, and the bound above which exp(x) is infinite."""
    if lean:
        return -400.0, 400.0
    return (-105.0, 90.0) if x.element == "float" else (-750.0, 711.0)


def exp(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for exp(x)."""
    e = _reduced(w, _clamp(w, x, *_limits(x, lean)), lean)
    return _scaled(w, w.add(w.add(e.r, e.c), 1.0), e, lean)


def exp_sum(w: Writer, x: Value, beside: Value) -> Value:
    """Emit code for exp(x + beside), where ``beside`` is a small correction of x."""
    e = _reduced(w, _clamp(w, x, *_limits(x, False)), False, beside)
    return _scaled(w, w.add(w.add(e.r, e.c), 1.0), e, False)


def exp2(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for 2ˣ."""
    low, high = (-160.0, 140.0) if x.element == "float" or lean else (-1100.0, 1030.0)
    x = _clamp(w, x, low, high)
    k, n = nearest(w, x)
    d = w.sub(x, k)  # exact
    r = w.mul(d, math.log(2.0))
    if x.element == "float":
        rest = w.mul(d, -1.9046542e-09)  # ln 2 − float32(ln 2)
        p = polynomial(w, r, EXP32)
    else:
        rest = w.mul(d, _LN2_REST)
        p = polynomial(w, r, EXP64)
    e = Exponential(k, n, r, w.fma(w.mul(r, r), p, rest))
    return _scaled(w, w.add(w.add(e.r, e.c), 1.0), e, lean)


def _half_expm1(w: Writer, x: Value, lean: bool) -> Value:
    """Emit (exp(x) − 1) / 2, for x from about −45 up to the overflow of exp; x must not be tiny."""
    high, low = _half_expm1_parts(w, x, lean)
    return w.add(high, low)


def _half_expm1_parts(w: Writer, x: Value, lean: bool) -> tuple[Value, Value]:
    """Emit two numbers whose sum is (exp(x) − 1) / 2; the second is a small correction."""
    e = _reduced(w, x, lean)
    s = power_of_two(w, w.sub(e.n, 1), x.element)
    high, error = two_sum(w, w.mul(s, e.r), w.sub(s, 0.5))
    return high, w.fma(s, e.c, error)


def _unless_tiny(w: Writer, x: Value, y: Value) -> Value:
    """Emit x where |x| is tiny or 0, which keeps signed zeros and subnormal numbers; elsewhere y."""
    return w.select(w.compare("olt", w.abs(x), TINY[x.element]), x, y)


def _signed(w: Writer, x: Value, size: Value) -> Value:
    """Emit ``size`` with the sign of x."""
    return w.intrinsic("copysign", size, x)


def expm1(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for exp(x) − 1."""
    high = 88.9 if x.element == "float" else 709.9
    y = _half_expm1(w, _clamp(w, x, -50.0, high), lean)
    return _unless_tiny(w, x, w.add(y, y))


def tanh_gap(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit 1 − |tanh x| = 2q / (1 + q) with q = exp(−2|x|); 2q is rounded once where q is subnormal."""
    a = w.neg(w.abs(x))
    a = w.add(a, a)
    if x.element == "double":
        e = _reduced(w, _clamp(w, a, *_limits(x, lean)), lean)
        twice = _scaled(w, w.mul(w.add(w.add(e.r, e.c), 1.0), 2.0), e, lean)
    else:
        low = w.like(x, -120.0)  # q is 0 there
        a = w.select(w.compare("ogt", low, a), low, a)
        k, n = nearest(w, a, math.log2(math.e))
        first, second = LN2["float"]
        r = w.fma(k, -second, w.fma(k, -first, a))
        c = w.fma(polynomial(w, r, EXP32), w.mul(r, r), r)
        twice = _scaled(w, w.fma(c, 2.0, 2.0), Exponential(k, n, r, c), False)
    return w.div(twice, w.fma(twice, 0.5, 1.0))


def tanh_from_gap(w: Writer, x: Value, gap: Value) -> Value:
    """Emit tanh(x) of float32 from ``gap``, which is ``tanh_gap(x)``.

    A polynomial is used for small x, where 1 − gap would lose precision.
    """
    a = w.abs(x)
    z = w.mul(a, a)
    small = w.fma(w.mul(z, polynomial(w, z, TANH32)), a, a)
    return _signed(w, x, w.select(w.compare("olt", a, 0.625), small, w.sub(1.0, gap)))


def tanh(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for tanh(x) = t / (t + 2) with t = exp(2|x|) − 1; in float32, from ``tanh_gap(x)``."""
    if x.element == "float":
        return tanh_from_gap(w, x, tanh_gap(w, x))
    a = w.abs(x)
    a = w.select(w.compare("ogt", a, 20.0), w.like(x, 20.0), a)
    high, low = _half_expm1_parts(w, w.add(a, a), lean)
    t = w.add(high, low)
    d, d_rest = two_sum(w, t, w.like(t, 1.0))
    q = w.div(t, d)
    # correct for the rounding errors of t and d; 1 / d = 1 − q
    t_rest, inverse = w.sub(low, w.sub(t, high)), w.sub(1.0, q)
    q = w.fma(w.sub(w.mul(t_rest, inverse), w.mul(q, d_rest)), inverse, q)
    return _unless_tiny(w, x, _signed(w, x, q))


def _half_exp(w: Writer, a: Value, lean: bool) -> Value:
    """Emit exp(a) / 2 for a >= 0, which is finite wherever cosh(a) is."""
    e = _reduced(w, _clamp(w, a, 0.0, 400.0 if lean else 712.0), lean)
    half = e._replace(k=w.sub(e.k, 1.0), n=w.sub(e.n, 1))
    return _scaled(w, w.add(w.add(e.r, e.c), 1.0), half, lean)


def cosh(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for cosh(x)."""
    e = _half_exp(w, w.abs(x), lean)
    return w.add(e, w.div(w.like(x, 0.25), e))


def sinh(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for sinh(x): by its Taylor series for |x| < 1, otherwise from exp(|x|)."""
    a = w.abs(x)
    z = w.mul(a, a)
    series = [1 / math.factorial(n) for n in range(9 if lean else 17, 1, -2)]
    small = w.fma(w.mul(a, z), polynomial(w, z, series), a)
    e = _half_exp(w, a, lean)
    large = w.sub(e, w.div(w.like(x, 0.25), e))
    return _unless_tiny(w, x, _signed(w, x, w.select(w.compare("olt", a, 1.0), small, large)))


# Logarithms --------------------------------------------------------------------------------------


class Logarithm(NamedTuple):
    """log(x) = k ln 2 + log(1 + f) in parts: ``half_square`` is f²/2, ``rest`` is log(1 + f) − f + f²/2."""

    k: Value
    f: Value
    half_square: Value
    rest: Value


def _normal(w: Writer, x: Value, lean: bool) -> tuple[Value, Value | None]:
    """Emit x, multiplied by a power of two if it is subnormal; return it and the exponent of that power.

    The caller subtracts the exponent from that of the result.  With ``lean``, x is never subnormal, and the
    exponent is None.
    """
    if lean:
        return x, None
    smallest, scale = (2.0**-126, 25.0) if x.element == "float" else (2.0**-1022, 54.0)
    low = w.compare("olt", x, smallest)
    return w.select(low, w.mul(x, 2.0**scale), x), w.select(low, w.like(x, scale), w.like(x, 0.0))


def _logarithm(w: Writer, x: Value, lean: bool) -> Logarithm:
    """Emit log(x) as the parts of ``Logarithm``."""
    x, shift = _normal(w, x, lean)
    n, m = exponent_and_mantissa(w, x)
    k = float_of(w, n, x.element)
    if shift is not None:
        k = w.sub(k, shift)
    return _of_mantissa(w, k, w.sub(m, 1.0), lean)


def _of_mantissa(w: Writer, k: Value, f: Value, lean: bool) -> Logarithm:
    half = w.mul(w.mul(f, 0.5), f)
    if f.element == "float":
        cube = w.mul(w.mul(f, f), f)
        return Logarithm(k, f, half, w.mul(cube, polynomial(w, f, LOG1P32)))
    s = w.div(f, w.add(f, 2.0))
    z = w.mul(s, s)
    tail = w.mul(z, polynomial(w, z, LOG32 if lean else LOG64))
    return Logarithm(k, f, half, w.mul(s, w.add(half, tail)))


def _at_the_ends(w: Writer, x: Value, y: Value, zero: float = 0.0) -> Value:
    """Emit y, an approximation of log(x), corrected at special x.

    The result is -∞ at x = ``zero``, NaN below it and for NaN, and ∞ at ∞.
    """
    y = w.select(w.compare("ueq", x, INF), x, y)
    y = w.select(w.compare("olt", x, zero), w.like(x, NAN), y)
    return w.select(w.compare("oeq", x, zero), w.like(x, -INF), y)


def _together(w: Writer, part: Logarithm, beside: Value | None = None) -> Value:
    """Emit the sum k ln 2 + f − (f²/2 − rest) of ``part``, the parts of a logarithm, plus ``beside``."""
    high, low = LN2[part.f.element]
    small = w.fma(part.k, low, part.rest)
    if beside is not None:
        small = w.add(small, beside)
    return w.fma(part.k, high, w.sub(part.f, w.sub(part.half_square, small)))


def log(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for log(x)."""
    return _at_the_ends(w, x, _together(w, _logarithm(w, x, lean)))


def log1p(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for log(1 + x)."""
    u = w.add(x, 1.0)
    n, m = exponent_and_mantissa(w, u)
    near = w.compare("eq", n, 0)
    k = float_of(w, n, x.element)
    # the rounding error of 1 + x, divided by u
    lost = w.select(w.compare("ogt", x, 1.0), w.sub(1.0, w.sub(u, x)), w.sub(x, w.sub(u, 1.0)))
    lost = w.select(near, w.like(x, 0.0), w.div(lost, u))
    f = w.select(near, x, w.sub(m, 1.0))
    y = _together(w, _of_mantissa(w, k, f, lean), lost)
    return _unless_tiny(w, x, _at_the_ends(w, x, y, -1.0))


def _in_base(
    w: Writer, x: Value, lean: bool, inverse: tuple[float, float], k_part: tuple[float, float]
) -> Value:
    """Emit code for log(x) / log(base).

    ``inverse`` is 1 / log(base) and ``k_part`` is log(2) / log(base), each as a sum of two numbers.
    """
    part = _logarithm(w, x, lean)
    # log(1 + f) = high + low, where high has zeros in its lower half
    high = w.sub(part.f, part.half_square)
    high = w.bitcast(w.bits("and", w.bitcast(high, "i64"), -(1 << 32)), "double")
    low = w.add(w.sub(w.sub(part.f, high), part.half_square), part.rest)
    first = w.mul(high, inverse[0])
    second = w.fma(w.add(low, high), inverse[1], w.mul(low, inverse[0]))
    if k_part[1]:
        second = w.fma(part.k, k_part[1], second)
    sum_, error = two_sum(w, w.mul(part.k, k_part[0]), first)
    return _at_the_ends(w, x, w.add(sum_, w.add(second, error)))


def log2(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for the logarithm to base 2."""
    return _in_base(w, x, lean, (1.4426950407214463, 1.6751713164886512e-10), (1.0, 0.0))


def log10(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for the logarithm to base 10."""
    return _in_base(
        w, x, lean, (0.4342944818781689, 2.5082946711645275e-11), (0.30102999566361177, 3.694239077158931e-13)
    )


# Logarithms of sums ------------------------------------------------------------------------------


def logaddexp(w: Writer, x: Value, y: Value, lean: bool = False) -> Value:
    """Emit code for log(eˣ + eʸ)."""
    return _log_of_sum(w, x, y, lean, binary=False)


def logaddexp2(w: Writer, x: Value, y: Value, lean: bool = False) -> Value:
    """Emit code for log2(2ˣ + 2ʸ)."""
    return _log_of_sum(w, x, y, lean, binary=True)


def _log_of_sum(w: Writer, x: Value, y: Value, lean: bool, binary: bool) -> Value:
    """Emit top + log(1 + q), where top is the larger operand and q = exp(−|x − y|), in base e or 2.

    The two terms may cancel, so log(1 + q) is computed with a few more bits than the result has.
    """
    first = w.compare("ogt", x, y)
    top, bottom = w.select(first, x, y), w.select(first, y, x)
    d, d_rest = two_sum(w, bottom, w.neg(top))
    zero = w.like(x, 0.0)
    d_rest = w.select(w.compare("ogt", d, -1100.0), d_rest, zero)  # below this q is 0
    same = w.compare("oeq", x, y)
    d = w.select(same, zero, d)  # also of two equal infinities
    if lean:
        high, low = log1p(w, exp2(w, d) if binary else exp(w, d)), zero
    else:
        high, low = _log1p_of_exponential(w, _exponential(w, d, d_rest, binary))
    if binary:
        high, rest = two_product(w, high, w.like(x, _INVERSE_LN2[0]))
        low = w.fma(low, _INVERSE_LN2[0], w.fma(high, _INVERSE_LN2[1] / _INVERSE_LN2[0], rest))
        high, low = w.select(same, w.like(x, 1.0), high), w.select(same, zero, low)
    total, error = two_sum(w, top, high)
    total = w.select(w.compare("olt", w.abs(total), INF), w.add(total, w.add(error, low)), total)
    return w.select(w.compare("uno", x, y), w.add(x, y), total)


_INVERSE_LN2 = (1.4426950408889634, 2.0355273740931033e-17)  # 1 / ln 2, as a sum


def _exponential(w: Writer, d: Value, rest: Value, binary: bool) -> Exponential:
    """Emit exp(d + rest), or 2 to this power if ``binary``, as parts; d <= 0, and ``rest`` corrects d."""
    if not binary:
        return _reduced(w, _clamp(w, d, -750.0, 0.0), False, rest)
    d = _clamp(w, d, -1100.0, 0.0)
    k, n = nearest(w, d)
    part = w.sub(d, k)  # exact
    r, r_rest = two_product(w, part, w.like(d, math.log(2.0)))
    rest = w.fma(rest, math.log(2.0), w.fma(part, _LN2_REST, r_rest))
    c = w.mul(w.mul(r, r), polynomial(w, r, EXP64))
    return Exponential(k, n, r, w.add(c, w.fma(rest, w.add(r, c), rest)))


def _log1p_of_exponential(w: Writer, e: Exponential) -> tuple[Value, Value]:
    """Emit log(1 + q) as a sum of two numbers, for q = 2ⁿ (1 + r + c) <= 1, given by its parts ``e``."""
    one = w.like(e.r, 1.0)
    s, s_rest = quick_sum(w, one, e.r)
    s, c_rest = quick_sum(w, s, e.c)
    q, q_rest = _scaled(w, s, e, False), _scaled(w, w.add(s_rest, c_rest), e, False)
    u, u_rest = quick_sum(w, one, q)
    u_rest = w.add(u_rest, q_rest)
    n, m = exponent_and_mantissa(w, u)
    high, low = _long_log(w, float_of(w, n, u.element), w.sub(m, 1.0))
    return high, w.add(low, w.div(u_rest, u))


# Inverse hyperbolic functions --------------------------------------------------------------------


def asinh(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for asinh(x) = log(1 + (a + a²/(1 + √(1 + a²)))), a = |x|; log(2a) for large a."""
    a = w.abs(x)
    large = w.compare("ogt", a, 2.0**28)
    b = w.select(large, w.like(a, 1.0), a)
    square = w.mul(b, b)
    t = w.add(b, w.div(square, w.add(w.sqrt(w.add(square, 1.0)), 1.0)))
    y = w.select(large, w.add(log(w, a, lean), math.log(2.0)), log1p(w, t, lean))
    return _unless_tiny(w, x, _signed(w, x, y))


def acosh(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for acosh(x) = log(1 + (t + √(2t + t²))), t = x − 1; log(2x) for large x."""
    large = w.compare("ogt", x, 2.0**28)
    t = w.sub(w.select(large, w.like(x, 2.0), x), 1.0)
    y = log1p(w, w.add(t, w.sqrt(w.fma(t, t, w.add(t, t)))), lean)
    y = w.select(large, w.add(log(w, x, lean), math.log(2.0)), y)
    return w.select(w.compare("olt", x, 1.0), w.like(x, NAN), y)


def atanh(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for atanh(x) = log(1 + 2a/(1 − a)) / 2, a = |x|."""
    a = w.abs(x)
    twice = w.add(a, a)
    small = w.add(twice, w.div(w.mul(twice, a), w.sub(1.0, a)))
    t = w.select(w.compare("olt", a, 0.5), small, w.div(twice, w.sub(1.0, a)))
    y = w.mul(log1p(w, t, lean), 0.5)
    y = w.select(w.compare("ogt", a, 1.0), w.like(x, NAN), y)
    return _unless_tiny(w, x, _signed(w, x, y))


# Powers ------------------------------------------------------------------------------------------


def pow(w: Writer, x: Value, y: Value, lean: bool = False) -> Value:
    """Emit code for xʸ with all the special values of C's ``pow``."""
    a = w.abs(x)
    if lean:
        part = _logarithm(w, a, True)
        size = exp(w, w.mul(_at_the_ends(w, a, _together(w, part)), y), True)
    else:
        size = _power(w, a, y)
    return _special_powers(w, x, y, size)


def _power(w: Writer, a: Value, y: Value) -> Value:
    """Emit aʸ for a > 0, computed from a logarithm with about twice the usual precision."""
    scaled, shift = _normal(w, a, False)
    n, m = exponent_and_mantissa(w, scaled)
    k = float_of(w, n, a.element)
    if shift is not None:
        k = w.sub(k, shift)
    high, low = _long_log(w, k, w.sub(m, 1.0))
    y = _clamp(w, y, -1e25, 1e25)  # beyond this the power is 0, 1 or infinite
    product, error = two_product(w, high, y)
    error = w.fma(low, y, error)
    error = w.select(w.compare("olt", w.abs(product), 800.0), error, w.like(error, 0.0))
    return exp_sum(w, product, error)


def _long_log(w: Writer, k: Value, f: Value) -> tuple[Value, Value]:
    """Emit k ln 2 + log(1 + f) as a sum of two numbers, with a relative error of about 2⁻⁶⁸."""
    # s = f / (2 + f) = s1 + s2
    d = w.add(f, 2.0)
    d2 = w.sub(f, w.sub(d, 2.0))
    s1 = w.div(f, d)
    p, p2 = two_product(w, s1, d)
    s2 = w.div(w.sub(w.sub(w.sub(f, p), p2), w.mul(s1, d2)), d)
    # z = s² = z1 + z2
    z1, z2 = two_product(w, s1, s1)
    z2 = w.fma(w.add(s1, s1), s2, z2)
    # q = 2/3 + z · later = q1 + q2
    later = w.mul(z1, polynomial(w, z1, LOG_LATER64))
    q1, q2 = quick_sum(w, w.like(f, 2 / 3), later)
    q2 = w.add(q2, 3.700743415417188e-17)  # 2/3 − float64(2/3)
    # t = s · z · q, and log(1 + f) = 2 s + t
    u1, u2 = two_product(w, z1, q1)
    u2 = w.add(u2, w.fma(z1, q2, w.mul(z2, q1)))
    t1, t2 = two_product(w, s1, u1)
    t2 = w.add(t2, w.fma(s1, u2, w.mul(s2, u1)))
    h1, h2 = quick_sum(w, w.add(s1, s1), t1)
    h2 = w.add(h2, w.add(w.add(s2, s2), t2))
    high, low = LN2["double"]
    g1, g2 = two_sum(w, w.mul(k, high), h1)
    return quick_sum(w, g1, w.fma(k, low, w.add(g2, h2)))


def _special_powers(w: Writer, x: Value, y: Value, size: Value) -> Value:
    """Emit xʸ from ``size`` = |x|ʸ: set the sign, and the values for zeros, infinities and NaN."""
    a, b = w.abs(x), w.abs(y)
    zero_y, one = w.compare("oeq", y, 0.0), w.like(x, 1.0)
    # |x| is 0 or ∞, or |y| is ∞
    grows = w.op("xor", w.compare("ogt", a, 1.0), w.compare("olt", y, 0.0))  # xʸ is large
    extreme = w.op(
        "or", w.compare("oeq", a, 0.0), w.op("or", w.compare("oeq", a, INF), w.compare("oeq", b, INF))
    )
    size = w.select(extreme, w.select(grows, w.like(x, INF), w.like(x, 0.0)), size)
    size = w.select(w.compare("oeq", a, 1.0), one, size)
    negative = w.compare("slt", w.bitcast(x, "i64"), 0)
    whole, odd = _parity(w, y)
    size = w.select(w.op("and", negative, odd), w.neg(size), size)
    bad = w.op("and", w.compare("olt", x, 0.0), w.op("and", w.invert(whole), w.compare("ogt", a, 0.0)))
    bad = w.op("and", bad, w.compare("one", a, INF))
    size = w.select(bad, w.like(x, NAN), size)
    size = w.select(w.compare("uno", x, y), w.add(x, y), size)
    return w.select(w.op("or", zero_y, w.compare("oeq", x, 1.0)), one, size)


def _parity(w: Writer, y: Value) -> tuple[Value, Value]:
    """Emit two masks: whether y is an integer, and whether y is an odd integer."""
    b = w.abs(y)
    huge = w.compare("oge", b, 2.0**53)
    c = w.select(huge, w.like(b, 0.0), b)
    # adding 2⁵² rounds to an integer, whose lowest bit is then that of the sum; above 2⁵² it rounds to even
    above = w.compare("oge", c, 2.0**52)
    moved = w.add(w.select(above, w.like(c, 0.0), c), 2.0**52)
    whole = w.compare("oeq", w.sub(moved, 2.0**52), w.select(above, w.like(c, 0.0), c))
    low = w.bits("and", w.bitcast(w.select(above, c, moved), "i64"), 1)
    odd = w.op("and", whole, w.op("and", w.compare("eq", low, 1), w.invert(huge)))
    return whole, odd
