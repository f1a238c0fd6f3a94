"""Vector code for exponentials, logarithms and hyperbolic functions.

If ``lean`` is true, the result of a float64 computation is rounded to float32 afterwards, so that shorter
polynomials without correction terms suffice.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

from adjoint.compiler.emit.math.coefficients import EXP, LOG, LOG1P, LOG_LATER, TANH
from adjoint.compiler.emit.math.floats import (
    FORMATS,
    exponent_and_mantissa,
    float_of,
    halve,
    nearest,
    parts,
    polynomial,
    power_of_two,
    quick_sum,
    two_product,
    two_sum,
)
from adjoint.compiler.emit.terms import Term, fma, where
from adjoint.compiler.emit.values import size_of

__all__ = [
    "acosh", "asinh", "atanh", "cosh", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "logaddexp",
    "logaddexp2", "pow", "sinh", "tanh", "tanh_from_gap", "tanh_gap",
]  # fmt: skip

INF, NAN = math.inf, math.nan
LN2 = {  # as a sum of two parts; the first ends in zero bits, so its product with a small integer is exact
    "float": (0.693145751953125, 1.4286067653301873e-06),
    "double": (0.6931471803691238, 1.9082149292705877e-10),
}
_LN2_REST = {"float": -1.9046542e-09, "double": 2.3190468138462996e-17}  # ln 2 − ln 2 rounded to the type
_INVERSE_LN2 = (1.4426950408889634, 2.0355273740931033e-17)  # 1 / ln 2, as a sum
TINY = {"float": 1e-30, "double": 1e-290}


def clamp(x: Term, low: float, high: float) -> Term:
    """Emit x limited to the range from ``low`` to ``high``; NaN is unchanged."""
    top, bottom = x.like(high), x.like(low)
    x = where(top < x, top, x)  # LLVM turns this form into one x86 instruction
    return where(bottom > x, bottom, x)


def unless_tiny(x: Term, y: Term) -> Term:
    """Emit x where |x| is tiny or 0, which keeps signed zeros and subnormal numbers; elsewhere y."""
    return where(abs(x) < TINY[x.element], x, y)


# Exponentials ------------------------------------------------------------------------------------


class Exponential(NamedTuple):
    """exp(x) as the parts of 2ⁿ (1 + r + c), where c is small compared to r."""

    k: Term  # n as a float
    n: Term
    r: Term
    c: Term

    def scale(self, y: Term, lean: bool) -> Term:
        """Emit y · 2ⁿ, rounded once, even if the result is subnormal."""
        w, v, element = y.w, y.value, y.element
        if w.machine.level == "avx512" and v.lanes * size_of(element) == 64:
            kind, mask = ("ps", "i16") if element == "float" else ("pd", "i8")
            name = f"llvm.x86.avx512.mask.scalef.{kind}.512"
            w.declare(f"{v.type} @{name}({v.type}, {v.type}, {v.type}, {mask}, i32)")
            args = f"{v.typed}, {self.k.value.typed}, {v.type} zeroinitializer, {mask} -1, i32 4"
            return Term(w, w.emit(f"call {v.type} @{name}({args})", element, v.lanes))
        if lean:
            return y * power_of_two(self.n, element)
        half = halve(self.n)
        return y * power_of_two(half, element) * power_of_two(self.n - half, element)

    def total(self, lean: bool) -> Term:
        """Emit the sum of the parts."""
        return self.scale(self.r + self.c + 1.0, lean)


def exponential(x: Term, lean: bool, beside: Term | None = None) -> Exponential:
    """Emit exp(x + beside) as the parts of 2ⁿ (1 + r + c); ``beside`` is a small correction of x."""
    high, low = LN2[x.element]
    k, n = nearest(x, math.log2(math.e))
    if lean:
        r = fma(k, -math.log(2.0), x)
        return Exponential(k, n, r, r * r * polynomial(r, EXP[1]))
    a, b = fma(k, -high, x), k * low
    r = (a - b).fixed()
    rest = a - r - b
    p = polynomial(r, EXP[x.element == "float"])
    if beside is None:
        return Exponential(k, n, r, fma(r * r, p, rest))
    rest, c = rest + beside, r * r * p
    # exp(r + rest) = exp(r) (1 + rest)
    return Exponential(k, n, r, c + fma(rest, r + c, rest))


def _limits(x: Term, lean: bool) -> tuple[float, float]:
    """Return the bound below which exp(x) is 0, and the bound above which exp(x) is infinite."""
    if lean:
        return -400.0, 400.0
    return (-105.0, 90.0) if x.element == "float" else (-750.0, 711.0)


def exp(x: Term, lean: bool = False, beside: Term | None = None) -> Term:
    """Emit code for exp(x + beside), where ``beside`` is a small correction of x."""
    return exponential(clamp(x, *_limits(x, lean)), lean, beside).total(lean)


def exp2(x: Term, lean: bool = False) -> Term:
    """Emit code for 2ˣ."""
    x = clamp(x, *((-160.0, 140.0) if x.element == "float" or lean else (-1100.0, 1030.0)))
    k, n = nearest(x)
    d = x - k  # exact
    r = d * math.log(2.0)
    rest = d * _LN2_REST[x.element]
    p = polynomial(r, EXP[x.element == "float"])
    return Exponential(k, n, r, fma(r * r, p, rest)).total(lean)


def _half_expm1(x: Term, lean: bool) -> tuple[Term, Term]:
    """Emit (exp(x) − 1) / 2 as a sum of two numbers; x is from −50 to the overflow of exp, not tiny."""
    e = exponential(x, lean)
    s = power_of_two(e.n - 1, x.element)
    high, error = two_sum(s * e.r, s - 0.5)
    return high, fma(s, e.c, error)


def expm1(x: Term, lean: bool = False) -> Term:
    """Emit code for exp(x) − 1."""
    high, low = _half_expm1(clamp(x, -50.0, 88.9 if x.element == "float" else 709.9), lean)
    y = high + low
    return unless_tiny(x, y + y)


def tanh_gap(x: Term, lean: bool = False) -> Term:
    """Emit 1 − |tanh x| = 2q / (1 + q) with q = exp(−2|x|); 2q is rounded once where q is subnormal."""
    a = -abs(x)
    a = a + a
    if x.element == "double":
        e = exponential(clamp(a, *_limits(x, lean)), lean)
        twice = e.scale((e.r + e.c + 1.0) * 2.0, lean)
    else:
        low = x.like(-120.0)  # q is 0 there
        a = where(low > a, low, a)
        k, n = nearest(a, math.log2(math.e))
        first, second = LN2["float"]
        r = fma(k, -second, fma(k, -first, a))
        p = polynomial(r, EXP[1])
        c = fma(p, r * r, r)
        twice = Exponential(k, n, r, c).scale(fma(c, 2.0, 2.0), False)
    return twice / fma(twice, 0.5, 1.0)


def tanh_from_gap(x: Term, gap: Term) -> Term:
    """Emit tanh(x) of float32 from ``gap``, which is ``tanh_gap(x)``; for small x, by a polynomial."""
    a = abs(x)
    z = a * a
    small = fma(z * polynomial(z, TANH), a, a)
    return x.signed(where(a < 0.625, small, 1.0 - gap))


def tanh(x: Term, lean: bool = False) -> Term:
    """Emit code for tanh(x) = t / (t + 2) with t = exp(2|x|) − 1; in float32, from ``tanh_gap(x)``."""
    if x.element == "float":
        return tanh_from_gap(x, tanh_gap(x))
    a = abs(x)
    a = where(a > 20.0, 20.0, a)
    high, low = _half_expm1(a + a, lean)
    t = high + low
    d, d_rest = two_sum(t, 1.0)
    q = t / d
    # correct for the rounding errors of t and d; 1 / d = 1 − q
    t_rest, inverse = low - (t - high), 1.0 - q
    q = fma(t_rest * inverse - q * d_rest, inverse, q)
    return unless_tiny(x, x.signed(q))


def _half_exp(a: Term, lean: bool) -> Term:
    """Emit exp(a) / 2 for a >= 0, which is finite wherever cosh(a) is."""
    e = exponential(clamp(a, 0.0, 400.0 if lean else 91.0 if a.element == "float" else 712.0), lean)
    return e._replace(k=e.k - 1.0, n=e.n - 1).total(lean)


def cosh(x: Term, lean: bool = False) -> Term:
    """Emit code for cosh(x)."""
    e = _half_exp(abs(x), lean)
    return e + 0.25 / e


def sinh(x: Term, lean: bool = False) -> Term:
    """Emit code for sinh(x): by its Taylor series for |x| < 1, otherwise from exp(|x|)."""
    a = abs(x)
    z = a * a
    series = [1 / math.factorial(n) for n in range(9 if lean or x.element == "float" else 17, 1, -2)]
    small = fma(a * z, polynomial(z, series), a)
    e = _half_exp(a, lean)
    large = e - 0.25 / e
    return unless_tiny(x, x.signed(where(a < 1.0, small, large)))


# Logarithms --------------------------------------------------------------------------------------


class Logarithm(NamedTuple):
    """log(x) = k ln 2 + log(1 + f) in parts: ``half_square`` is f²/2, ``rest`` is log(1 + f) − f + f²/2."""

    k: Term
    f: Term
    half_square: Term
    rest: Term

    def total(self, beside: Term | None = None) -> Term:
        """Emit the sum k ln 2 + f − (f²/2 − rest), plus ``beside``."""
        high, low = LN2[self.f.element]
        small = fma(self.k, low, self.rest)
        if beside is not None:
            small = small + beside
        return fma(self.k, high, self.f - (self.half_square - small))


def normal(x: Term, lean: bool) -> tuple[Term, Term | None]:
    """Emit x, multiplied by a power of two if it is subnormal; return it and the exponent of that power.

    The caller subtracts the exponent from that of the result.  With ``lean``, x is never subnormal, and the
    exponent is None.
    """
    if lean:
        return x, None
    smallest, scale = (2.0**-126, 25.0) if x.element == "float" else (2.0**-1022, 54.0)
    low = x < smallest
    return where(low, x * 2.0**scale, x), where(low, x.like(scale), 0.0)


def _exponent(x: Term, lean: bool) -> tuple[Term, Term]:
    """Emit k and f of x = 2ᵏ (1 + f) for a positive x."""
    x, shift = normal(x, lean)
    n, m = exponent_and_mantissa(x)
    k = float_of(n, x.element)
    if shift is not None:
        k = k - shift
    return k, m - 1.0


def _logarithm(k: Term, f: Term, lean: bool) -> Logarithm:
    """Emit k ln 2 + log(1 + f) as the parts of ``Logarithm``."""
    half = f * 0.5 * f
    if f.element == "float":
        cube = f * f * f
        return Logarithm(k, f, half, cube * polynomial(f, LOG1P))
    s = f / (f + 2.0)
    z = s * s
    tail = z * polynomial(z, LOG[lean])
    return Logarithm(k, f, half, s * (half + tail))


def _at_the_ends(x: Term, y: Term, zero: float = 0.0) -> Term:
    """Emit y ≈ log(x), corrected: -∞ at x = ``zero``, NaN below it and for NaN, and ∞ at ∞."""
    y = where(x.compare("ueq", INF), x, y)
    y = where(x < zero, NAN, y)
    return where(x.equals(zero), -INF, y)


def log(x: Term, lean: bool = False) -> Term:
    """Emit code for log(x)."""
    return _at_the_ends(x, _logarithm(*_exponent(x, lean), lean).total())


def log1p(x: Term, lean: bool = False, beside: Term | None = None) -> Term:
    """Emit code for log(1 + x + beside), where ``beside`` is a small correction of x."""
    u = (x + 1.0).fixed()
    n, m = exponent_and_mantissa(u)
    near = n.equals(0)
    k = float_of(n, x.element)
    # the rounding error of 1 + x, divided by u
    lost = where(x > 1.0, 1.0 - (u - x), x - (u - 1.0))
    lost = where(near, 0.0, lost / u)
    if beside is not None:
        lost = lost + beside / u
    f = where(near, x, m - 1.0)
    return unless_tiny(x, _at_the_ends(x, _logarithm(k, f, lean).total(lost), -1.0))


def _in_base(
    x: Term, lean: bool = False, *, inverse: tuple[float, float], k_part: tuple[float, float]
) -> Term:
    """Emit log(x) · ``inverse``, with log(2) · inverse in ``k_part``: both are sums of two numbers."""
    if x.element == "float":
        high, low = _long_log(*_exponent(x, False))
        factor, factor_rest = parts((inverse[0], inverse[1]), "float")
        product, error = two_product(high, x.like(factor))
        return _at_the_ends(x, product + (error + fma(high, factor_rest, low * factor)))
    part = _logarithm(*_exponent(x, lean), lean)
    # log(1 + f) = high + low, where high has zeros in its lower half
    high = part.f - part.half_square
    high = (high.bitcast("i64") & -(1 << 32)).bitcast("double")
    low = part.f - high - part.half_square + part.rest
    first = high * inverse[0]
    both = low + high
    second = fma(both, inverse[1], low * inverse[0])
    if k_part[1]:
        second = fma(part.k, k_part[1], second)
    total, error = two_sum(part.k * k_part[0], first)
    return _at_the_ends(x, total + (second + error))


log2 = partial(_in_base, inverse=(1.4426950407214463, 1.6751713164886512e-10), k_part=(1.0, 0.0))
log10 = partial(
    _in_base,
    inverse=(0.4342944818781689, 2.5082946711645275e-11),
    k_part=(0.30102999566361177, 3.694239077158931e-13),
)


# Logarithms of sums ------------------------------------------------------------------------------


def logaddexp(x: Term, y: Term, lean: bool = False, binary: bool = False) -> Term:
    """Emit code for log(eˣ + eʸ), or log2(2ˣ + 2ʸ) if ``binary``.

    It is top + log(1 + q), where top is the larger operand and q = exp(−|x − y|), or 2 to this power.  The
    two terms may cancel, so log(1 + q) is computed with a few more bits than the result has.
    """
    first = x > y
    top, bottom = where(first, x, y), where(first, y, x)
    d, d_rest = two_sum(bottom, -top)
    d_rest = where(d > -1100.0, d_rest, 0.0)  # below this q is 0
    same = x.equals(y)
    d = where(same, 0.0, d)  # also of two equal infinities
    if lean:
        high, low = log1p(exp2(d) if binary else exp(d)), x.like(0.0)
    else:
        high, low = _log1p_of_exponential(_below_one(d, d_rest, binary))
    if binary:
        inverse, inverse_rest = parts(_INVERSE_LN2, x.element)
        high, rest = two_product(high, x.like(inverse))
        low = fma(low, inverse, fma(high, inverse_rest / inverse, rest))
        high, low = where(same, 1.0, high), where(same, 0.0, low)
    total, error = two_sum(top, high)
    finite = abs(total) < INF
    total = where(finite, total + (error + low), total)
    return where(x.compare("uno", y), x + y, total)


logaddexp2 = partial(logaddexp, binary=True)


def _below_one(d: Term, rest: Term, binary: bool) -> Exponential:
    """Emit exp(d + rest), or 2 to this power if ``binary``, as parts; d <= 0, and ``rest`` corrects d."""
    single = d.element == "float"
    if not binary:
        return exponential(clamp(d, -110.0 if single else -750.0, 0.0), False, rest)
    d = clamp(d, -160.0 if single else -1100.0, 0.0)
    k, n = nearest(d)
    part = d - k  # exact
    r, r_rest = two_product(part, d.like(math.log(2.0)))
    rest = fma(rest, math.log(2.0), fma(part, _LN2_REST[d.element], r_rest))
    c = r * r * polynomial(r, EXP[single])
    return Exponential(k, n, r, c + fma(rest, r + c, rest))


def _log1p_of_exponential(e: Exponential) -> tuple[Term, Term]:
    """Emit log(1 + q) as a sum of two numbers, for q = 2ⁿ (1 + r + c) <= 1, given by its parts ``e``."""
    one = e.r.like(1.0)
    s, s_rest = quick_sum(one, e.r)
    s, c_rest = quick_sum(s, e.c)
    q, q_rest = e.scale(s, False), e.scale(s_rest + c_rest, False)
    u, u_rest = quick_sum(one, q)
    u_rest = u_rest + q_rest
    n, m = exponent_and_mantissa(u)
    high, low = _long_log(float_of(n, u.element), m - 1.0)
    return high, low + u_rest / u


# Inverse hyperbolic functions --------------------------------------------------------------------


def _sum(a: Term, b: Term) -> tuple[Term, Term | None]:
    """Emit a + b, and for float32 its rounding error."""
    return two_sum(a, b) if a.element == "float" else (a + b, None)


def asinh(x: Term, lean: bool = False) -> Term:
    """Emit code for asinh(x) = log(1 + (a + a²/(1 + √(1 + a²)))), a = |x|; log(2a) for large a."""
    a = abs(x)
    large = a > 2.0**28
    b = where(large, 1.0, a)
    square = b * b
    t, rest = _sum(b, square / ((square + 1.0).sqrt() + 1.0))
    y = where(large, log(a, lean) + math.log(2.0), log1p(t, lean, rest))
    return unless_tiny(x, x.signed(y))


def acosh(x: Term, lean: bool = False) -> Term:
    """Emit code for acosh(x) = log(1 + (t + √(2t + t²))), t = x − 1; log(2x) for large x."""
    large = x > 2.0**28
    t = where(large, 2.0, x) - 1.0
    total, rest = _sum(t, fma(t, t, t + t).sqrt())
    y = log1p(total, lean, rest)
    y = where(large, log(x, lean) + math.log(2.0), y)
    return where(x < 1.0, NAN, y)


def atanh(x: Term, lean: bool = False) -> Term:
    """Emit code for atanh(x) = log(1 + 2a/(1 − a)) / 2, a = |x|."""
    a = abs(x)
    twice = a + a
    small, rest = _sum(twice, twice * a / (1.0 - a))
    t = where(a < 0.5, small, twice / (1.0 - a))
    rest = None if rest is None else where(a < 0.5, rest, 0.0)
    y = log1p(t, lean, rest) * 0.5
    return unless_tiny(x, x.signed(where(a > 1.0, NAN, y)))


# Powers ------------------------------------------------------------------------------------------


def pow(x: Term, y: Term, lean: bool = False) -> Term:
    """Emit code for xʸ with all the special values of C's ``pow``."""
    a = abs(x)
    return _special_powers(x, y, exp(log(a, True) * y, True) if lean else _power(a, y))


def _power(a: Term, y: Term) -> Term:
    """Emit aʸ for a > 0, computed from a logarithm with about twice the usual precision."""
    high, low = _long_log(*_exponent(a, False))
    # beyond these bounds the power is 0, 1 or infinite
    most, limit = (1e12, 150.0) if y.element == "float" else (1e25, 800.0)
    y = clamp(y, -most, most)
    product, error = two_product(high, y)
    error = fma(low, y, error)
    return exp(product, False, where(abs(product) < limit, error, 0.0))


def _long_log(k: Term, f: Term) -> tuple[Term, Term]:
    """Emit k ln 2 + log(1 + f) as a sum of two numbers, with a relative error of about 2⁻⁶⁸."""
    # s = f / (2 + f) = s1 + s2
    d = (f + 2.0).fixed()
    d2 = f - (d - 2.0)
    s1 = f / d
    p, p2 = two_product(s1, d)
    s2 = (f - p - p2 - s1 * d2) / d
    # z = s² = z1 + z2
    z1, z2 = two_product(s1, s1)
    z2 = fma(s1 + s1, s2, z2)
    # q = 2/3 + z · later = q1 + q2
    later = z1 * polynomial(z1, LOG_LATER)
    two_thirds, rest = parts((2 / 3, 3.700743415417188e-17), f.element)
    q1, q2 = quick_sum(f.like(two_thirds), later)
    q2 = q2 + rest
    # t = s · z · q, and log(1 + f) = 2 s + t
    u1, u2 = two_product(z1, q1)
    u2 = u2 + fma(z1, q2, z2 * q1)
    t1, t2 = two_product(s1, u1)
    t2 = t2 + fma(s1, u2, s2 * u1)
    h1, h2 = quick_sum(s1 + s1, t1)
    h2 = h2 + (s2 + s2 + t2)
    high, low = LN2[f.element]
    g1, g2 = two_sum(k * high, h1)
    return quick_sum(g1, fma(k, low, g2 + h2))


def _special_powers(x: Term, y: Term, size: Term) -> Term:
    """Emit xʸ from ``size`` = |x|ʸ: set the sign, and the values for zeros, infinities and NaN."""
    a, b = abs(x), abs(y)
    zero_y = y.equals(0.0)
    # |x| is 0 or ∞, or |y| is ∞
    grows = (a > 1.0) ^ (y < 0.0)  # xʸ is large
    extreme = a.equals(0.0) | (a.equals(INF) | b.equals(INF))
    size = where(extreme, where(grows, x.like(INF), 0.0), size)
    size = where(a.equals(1.0), 1.0, size)
    negative = x.bitcast(FORMATS[x.element].integer) < 0
    whole, odd = _parity(y)
    size = where(negative & odd, -size, size)
    bad = (x < 0.0) & (~whole & (a > 0.0)) & a.compare("one", INF)
    size = where(bad, NAN, size)
    size = where(x.compare("uno", y), x + y, size)
    return where(zero_y | x.equals(1.0), 1.0, size)


def _parity(y: Term) -> tuple[Term, Term]:
    """Emit two masks: whether y is an integer, and whether y is an odd integer."""
    f = FORMATS[y.element]
    b, large = abs(y), 2.0**f.mantissa
    huge = b >= 2.0 * large
    c = where(huge, 0.0, b)
    # adding 2⁵² rounds to an integer, whose lowest bit is then that of the sum; above 2⁵² it rounds to even
    above = c >= large
    moved = (where(above, 0.0, c) + large).fixed()
    whole = (moved - large).equals(where(above, 0.0, c))
    low = where(above, c, moved).bitcast(f.integer) & 1
    return whole, whole & (low.equals(1) & ~huge)
