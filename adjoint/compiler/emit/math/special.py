"""Vector code for the error function, the cube root and hypot; ``lean`` as in ``explog``."""

from __future__ import annotations

from adjoint.compiler.emit.math.coefficients import ERF, ERFCX
from adjoint.compiler.emit.math.explog import INF, TINY, exponential, normal
from adjoint.compiler.emit.math.floats import (
    exponent_and_mantissa,
    float_of,
    nearest,
    parts,
    polynomial,
    power_of_two,
    two_product,
    two_sum,
)
from adjoint.compiler.emit.math.trig import corrected
from adjoint.compiler.emit.terms import Term, fma, where

__all__ = ["cbrt", "erf", "erfc", "hypot", "ndtr"]

TWO_OVER_ROOT_PI = (1.1283791670955126, 1.533545961316588e-17)
ROOT_HALF = (0.7071067811865476, -4.833646656726457e-17)
CENTRE = 4.0  # centre of the polynomial fit of erfc
# A fit of the cube root between 1 and 8, to 0.4 %.
CUBE_ROOT = (
    -0.0002882199346276574, 0.0069891694835587225, -0.06797280035500547, 0.4121814779629245,
    0.6538962985569791,
)  # fmt: skip


def _small_erf(a: Term, lean: bool) -> Term:
    """Emit erf(a) for 0 <= a <= 1."""
    z = a * a
    first, rest = parts(TWO_OVER_ROOT_PI, a.element)
    tail = fma(z, polynomial(z, ERF[lean or a.element == "float"]), rest)
    p, error = two_product(a, a.like(first))
    return p + fma(a, tail, error)


def _large_erfc(a: Term, lean: bool, beside: Term | None = None) -> Term:
    """Emit erfc(a + beside) = exp(−a²) g(t) / (1 + 2a) for a >= ½, with t = (a − 4)/(a + 4)."""
    single = a.element == "float"
    top = 15.0 if lean else 10.5 if single else 28.0  # above this, erfc underflows to 0
    a = where(a > top, top, a)
    t = (a - CENTRE) / (a + CENTRE)
    coefficients = ERFCX[lean or single]
    g, g_rest = polynomial(t, coefficients), None
    if single:
        first, rest = parts((coefficients[-1], 0.0), "float")
        g, g_rest = two_sum(t.like(first), t * polynomial(t, coefficients[:-1]))
        g_rest = g_rest + rest
    square, error = two_product(a, a)
    if beside is not None:
        error = fma(a + a, beside, error)
    minus = -square
    e = exponential(minus, lean, None if lean else -error)
    product, product_rest = two_sum(g, g * (e.r + e.c))
    d, d_rest = two_sum(a + a, 1.0)
    if g_rest is not None:
        product_rest = product_rest + g_rest
        d_rest = d_rest if beside is None else d_rest + (beside + beside)
    q = product / d
    return e.scale(q if lean else corrected(q, product, product_rest, d, d_rest), lean)


def erf(x: Term, lean: bool = False) -> Term:
    """Emit code for the error function."""
    a = abs(x)
    small = a < 1.0
    low = _small_erf(where(small, a, 0.0), lean)
    high = 1.0 - _large_erfc(a, lean)
    y = x.signed(where(small, low, high))
    first, rest = parts(TWO_OVER_ROOT_PI, x.element)
    tiny = x.signed(fma(a, first, a * rest))
    return where(a < TINY[x.element], tiny, y)


def erfc(x: Term, lean: bool = False, beside: Term | None = None) -> Term:
    """Emit code for 1 − erf(x), accurate also if the result is small; ``beside`` is a correction of |x|."""
    a = abs(x)
    small = a < 0.5
    low = x.signed(_small_erf(where(small, a, 0.0), lean))
    high = _large_erfc(a, lean, beside)
    high = where(x < 0.0, 2.0 - high, high)
    return where(small, 1.0 - low, high)


def ndtr(x: Term, lean: bool = False) -> Term:
    """Emit code for the normal distribution function, ½ erfc(−x √½)."""
    if lean:
        return erfc(x * -ROOT_HALF[0], True) * 0.5
    factor, factor_rest = parts(ROOT_HALF, x.element)
    u, rest = two_product(x, x.like(-factor))
    rest = fma(x, -factor_rest, rest)
    rest = where(u < 0.0, -rest, rest)
    rest = where(abs(u) < (10.0 if x.element == "float" else 30.0), rest, 0.0)
    return erfc(u, False, rest) * 0.5


def cbrt(x: Term, lean: bool = False) -> Term:
    """Emit code for the cube root: a polynomial fit between 1 and 8, then two steps of Halley's method."""
    scaled, shift = normal(abs(x), lean)
    n, m = exponent_and_mantissa(scaled)
    # move m to the range 1 … 2, so that m times a power of two is in the range 1 … 8
    below = m < 1.0
    m = where(below, m + m, m)
    n = where(below, n - 1, n)
    k = float_of(n, x.element)
    if shift is not None:
        k = k - shift
    _, third = nearest(k + -1.0, 1 / 3)
    _, octave = nearest(k - float_of(third, x.element) * 3.0)
    m = m * power_of_two(octave, x.element)
    y = polynomial(m, CUBE_ROOT)
    for last in (False, not lean):
        square, rest = two_product(y, y) if last else (y * y, y)
        cube, error = two_product(square, y) if last else (square * y, y)
        gap = cube - m
        if last:  # the rounding errors of the cube
            gap = gap + fma(rest, y, error)
        minus = -y
        y = fma(minus, gap / fma(cube, 2.0, m), y)
    y = x.signed(y * power_of_two(third, x.element))
    return where(x.equals(0.0) | abs(x).compare("ueq", INF), x, y)


def hypot(x: Term, y: Term, lean: bool = False) -> Term:
    """Emit code for √(x² + y²) without overflow."""
    a, b = abs(x), abs(y)
    length = fma(a, a, b * b).sqrt() if lean else _scaled_length(a, b)
    return where(a.equals(INF) | b.equals(INF), INF, length)


def _scaled_length(a: Term, b: Term) -> Term:
    """Emit √(a² + b²), scaled so that the squares neither overflow nor underflow."""
    larger, single = where(a > b, a, b), a.element == "float"
    limit, step = (2.0**40, 2.0**70) if single else (2.0**400, 2.0**600)
    up, down = larger < 1 / limit, larger > limit
    scale = where(up, step, where(down, a.like(1 / step), 1.0))
    back = where(up, 1 / step, where(down, a.like(step), 1.0))
    a, b = a * scale, b * scale
    high, low = where(a > b, a, b), where(a > b, b, a)
    p, p_rest = two_product(high, high)
    q, q_rest = two_product(low, low)
    s = (p + q).fixed()
    lost = q - (s - p) + (p_rest + q_rest)
    root = s.sqrt()
    r, r_rest = two_product(root, root)
    left = s - r - r_rest + lost
    better = root + left / (root + root)
    return where(root > 0.0, better, root) * back
