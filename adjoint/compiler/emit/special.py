"""Vector code for the error function, the cube root and hypot.

If ``lean`` is true, the result is rounded to float32 afterwards, so that shorter polynomials are enough.
"""

from __future__ import annotations

from adjoint.compiler.emit.coefficients import ERF32, ERF64, ERFCX32, ERFCX64
from adjoint.compiler.emit.explog import INF, _normal, _reduced, _scaled, _signed
from adjoint.compiler.emit.floats import (
    exponent_and_mantissa,
    float_of,
    nearest,
    polynomial,
    power_of_two,
    two_product,
    two_sum,
)
from adjoint.compiler.emit.text import Writer
from adjoint.compiler.emit.values import Value

__all__ = ["cbrt", "erf", "erfc", "hypot", "ndtr"]

TWO_OVER_ROOT_PI = (1.1283791670955126, 1.533545961316588e-17)
ROOT_HALF = (0.7071067811865476, -4.833646656726457e-17)
CENTRE = 4.0  # centre of the polynomial fit of erfc


def _small_erf(w: Writer, a: Value, lean: bool) -> Value:
    """Emit erf(a) for 0 <= a <= 1."""
    z = w.mul(a, a)
    first, rest = TWO_OVER_ROOT_PI
    tail = w.fma(z, polynomial(w, z, ERF32 if lean else ERF64), rest)
    p, error = two_product(w, a, w.like(a, first))
    return w.add(p, w.fma(a, tail, error))


def _large_erfc(w: Writer, a: Value, lean: bool, beside: Value | None = None) -> Value:
    """Emit erfc(a) = exp(−a²) g(t) / (1 + 2a) for a >= ½, with t = (a − 4)/(a + 4).

    ``beside`` is a small correction of a, which matters in the exponential.
    """
    top = 15.0 if lean else 28.0  # above this, erfc underflows to 0
    a = w.select(w.compare("ogt", a, top), w.like(a, top), a)
    t = w.div(w.sub(a, CENTRE), w.add(a, CENTRE))
    g = polynomial(w, t, ERFCX32 if lean else ERFCX64)
    square, error = two_product(w, a, a)
    if beside is not None:
        error = w.fma(w.add(a, a), beside, error)
    e = _reduced(w, w.neg(square), lean, None if lean else w.neg(error))
    product, product_rest = two_sum(w, g, w.mul(g, w.add(e.r, e.c)))
    d, d_rest = two_sum(w, w.add(a, a), w.like(a, 1.0))
    q = w.div(product, d)
    if not lean:  # correct the quotient for the rounding errors
        p, p_rest = two_product(w, q, d)
        left = w.sub(w.add(w.sub(w.sub(product, p), p_rest), product_rest), w.mul(q, d_rest))
        q = w.add(q, w.div(left, d))
    return _scaled(w, q, e, lean)


def erf(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for the error function."""
    a = w.abs(x)
    small = w.compare("olt", a, 1.0)
    low = _small_erf(w, w.select(small, a, w.like(a, 0.0)), lean)
    high = w.sub(1.0, _large_erfc(w, a, lean))
    y = _signed(w, x, w.select(small, low, high))
    tiny = w.fma(x, TWO_OVER_ROOT_PI[0], w.mul(x, TWO_OVER_ROOT_PI[1]))
    return w.select(w.compare("olt", a, 1e-290), tiny, y)


def erfc(w: Writer, x: Value, lean: bool = False, beside: Value | None = None) -> Value:
    """Emit code for 1 − erf(x), accurate also if the result is small; ``beside`` is a correction of |x|."""
    a = w.abs(x)
    small = w.compare("olt", a, 0.5)
    low = _signed(w, x, _small_erf(w, w.select(small, a, w.like(a, 0.0)), lean))
    high = _large_erfc(w, a, lean, beside)
    high = w.select(w.compare("olt", x, 0.0), w.sub(2.0, high), high)
    return w.select(small, w.sub(1.0, low), high)


def ndtr(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for the normal distribution function, ½ erfc(−x √½)."""
    if lean:
        return w.mul(erfc(w, w.mul(x, -ROOT_HALF[0]), True), 0.5)
    u, rest = two_product(w, x, w.like(x, -ROOT_HALF[0]))
    rest = w.fma(x, -ROOT_HALF[1], rest)
    rest = w.select(w.compare("olt", u, 0.0), w.neg(rest), rest)
    rest = w.select(w.compare("olt", w.abs(u), 30.0), rest, w.like(x, 0.0))
    return w.mul(erfc(w, u, False, rest), 0.5)


# A fit of the cube root between 1 and 8, to 0.4 %.
CUBE_ROOT = (
    -0.0002882199346276574,
    0.0069891694835587225,
    -0.06797280035500547,
    0.4121814779629245,
    0.6538962985569791,
)


def cbrt(w: Writer, x: Value, lean: bool = False) -> Value:
    """Emit code for the cube root: a polynomial fit between 1 and 8, then two steps of Halley's method."""
    scaled, shift = _normal(w, w.abs(x), lean)
    n, m = exponent_and_mantissa(w, scaled)
    # move m to the range 1 … 2, so that m times a power of two is in the range 1 … 8
    below = w.compare("olt", m, 1.0)
    m = w.select(below, w.add(m, m), m)
    n = w.select(below, w.sub(n, 1), n)
    k = float_of(w, n, x.element)
    if shift is not None:
        k = w.sub(k, shift)
    _, third = nearest(w, w.add(k, -1.0), 1 / 3)
    octave = nearest(w, w.sub(k, w.mul(float_of(w, third, x.element), 3.0)))[1]
    m = w.mul(m, power_of_two(w, octave, x.element))
    y = polynomial(w, m, CUBE_ROOT)
    for last in (False, not lean):
        square, rest = two_product(w, y, y) if last else (w.mul(y, y), w.like(y, 0.0))
        cube, error = two_product(w, square, y) if last else (w.mul(square, y), rest)
        gap = w.sub(cube, m)
        if last:  # the rounding errors of the cube
            gap = w.add(gap, w.fma(rest, y, error))
        y = w.fma(w.neg(y), w.div(gap, w.fma(cube, 2.0, m)), y)
    y = _signed(w, x, w.mul(y, power_of_two(w, third, x.element)))
    special = w.op("or", w.compare("oeq", x, 0.0), w.compare("ueq", w.abs(x), INF))
    return w.select(special, x, y)


def hypot(w: Writer, x: Value, y: Value, lean: bool = False) -> Value:
    """Emit code for √(x² + y²) without overflow."""
    a, b = w.abs(x), w.abs(y)
    if lean:
        length = w.sqrt(w.fma(a, a, w.mul(b, b)))
    else:
        length = _scaled_length(w, a, b)
    infinite = w.op("or", w.compare("oeq", a, INF), w.compare("oeq", b, INF))
    return w.select(infinite, w.like(x, INF), length)


def _scaled_length(w: Writer, a: Value, b: Value) -> Value:
    """Emit √(a² + b²), scaled so that the squares neither overflow nor underflow."""
    larger = w.select(w.compare("ogt", a, b), a, b)
    up, down = w.compare("olt", larger, 2.0**-400), w.compare("ogt", larger, 2.0**400)
    scale = w.select(up, w.like(a, 2.0**600), w.select(down, w.like(a, 2.0**-600), w.like(a, 1.0)))
    back = w.select(up, w.like(a, 2.0**-600), w.select(down, w.like(a, 2.0**600), w.like(a, 1.0)))
    a, b = w.mul(a, scale), w.mul(b, scale)
    high, low = w.select(w.compare("ogt", a, b), a, b), w.select(w.compare("ogt", a, b), b, a)
    p, p_rest = two_product(w, high, high)
    q, q_rest = two_product(w, low, low)
    s = w.add(p, q)
    lost = w.add(w.sub(q, w.sub(s, p)), w.add(p_rest, q_rest))
    root = w.sqrt(s)
    r, r_rest = two_product(w, root, root)
    left = w.add(w.sub(w.sub(s, r), r_rest), lost)
    better = w.add(root, w.div(left, w.add(root, root)))
    return w.mul(w.select(w.compare("ogt", root, 0.0), better, root), back)
