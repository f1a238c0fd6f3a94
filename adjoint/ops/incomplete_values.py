"""Derivatives of the incomplete gamma and beta functions with respect to their parameters, by integration.

The integrals start at the argument x and go away from the mean of the density, so that they do not cancel and
the far tails are accurate.  The variable t is substituted: by s = log(t/x) for gamma, and by the log-odds of
t for beta.  The integrands are then analytic and log-concave.  They are integrated by Gauss-Legendre rules up
to the point where they have fallen by a factor of exp(-45).  The results are accurate to about 1e-13.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.ops.scipy_forward import special_module

__all__ = ["bell", "betainc_derivative", "gammainc_derivative"]

_FALL = 45.0  # integrate until the integrand has fallen by exp(-45) = 3e-20
_CHUNK = 2048  # elements at a time: a few megabytes of nodes


@functools.cache
def _legendre(n: int) -> tuple[Any, Any]:
    """Return the Gauss-Legendre nodes and weights on [0, 1]."""
    y, w = np.polynomial.legendre.leggauss(n)
    return (y + 1) / 2, w / 2


@functools.cache
def _laguerre(n: int) -> tuple[Any, Any]:
    """Return the Gauss-Laguerre nodes y on [0, ∞), and the weights multiplied by exp(y)."""
    y, w = np.polynomial.laguerre.laggauss(n)
    return y, w * np.exp(y)


def bell(cumulant: Callable[[int, int], Any], m: int, n: int = 0) -> Any:
    """Return the quotient of a derivative of exp(φ) and exp(φ), which is a Bell polynomial.

    φ has two variables.  The derivative has order m with respect to the first and n with respect to the
    second; ``cumulant(i, j)`` returns the derivative of φ of orders i and j.
    """
    found: dict[tuple[int, int], Any] = {(0, 0): 1.0}

    def order(m: int, n: int) -> Any:
        if (m, n) not in found:
            # differentiate once, in the first variable if m > 0, and apply Leibniz' rule to the rest
            a, b = (1, 0) if m else (0, 1)
            total: Any = 0.0
            for i in range(m - a + 1):
                for j in range(n - b + 1):
                    factor = math.comb(m - a, i) * math.comb(n - b, j)
                    total = total + factor * cumulant(i + a, j + b) * order(m - a - i, n - b - j)
            found[m, n] = total
        return found[m, n]

    return order(m, n)


def _log1p_less(d: Any, ratio: Any) -> Any:
    """Return log(1 + d) - d without cancellation; ``ratio`` is 1 + d."""
    near = np.abs(d) < 0.5
    e = np.where(near, d, 0.0)
    r = e / (2 + e)
    y = r * r
    total = np.zeros_like(r)
    for k in range(19, 0, -1):  # Σ y^(k-1) / (2k + 1)
        total = total * y + 1 / (2 * k + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(near, 2 * r * y * total - r * e, np.log(ratio) - d)


_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)


def _stirling(a: Any) -> Any:
    """Return log Γ(a) - (a - 1/2) log(a) + a - log(2π)/2."""
    large = np.maximum(a, 10.0)
    w = 1 / (large * large)
    series = np.zeros_like(large)
    for c in reversed(_STIRLING):
        series = series * w + c
    small = np.minimum(a, 10.0)
    direct = (
        special_module("gammainc").gammaln(small)
        - (small - 0.5) * np.log(small)
        + small
        - math.log(2 * math.pi) / 2
    )
    return np.where(a >= 10.0, series / large, direct)


def _log_less_digamma(a: Any) -> Any:
    """Return log(a) - ψ(a)."""
    large = np.maximum(a, 20.0)
    w = 1 / (large * large)
    series = 1 / (2 * large) + w * (1 / 12 - w * (1 / 120 - w * (1 / 252 - w * (1 / 240 - w / 132))))
    small = np.minimum(a, 20.0)
    return np.where(a >= 20.0, series, np.log(small) - special_module("gammainc").digamma(small))


def _polygamma(n: int, a: Any) -> Any:
    return (-1.0) ** (n + 1) * math.factorial(n) * special_module("gammainc").zeta(n + 1, a)


def _by_chunks(function: Callable[..., Any], *arrays: Any) -> Any:
    """Return ``function(*arrays)``, where ``function`` accepts vectors and ``arrays`` have any shapes.

    It is called with chunks of elements, to limit the memory.
    """
    arrays = np.broadcast_arrays(*arrays)
    dtype = np.result_type(*arrays)
    dtype = dtype if dtype.kind == "f" else np.dtype(np.float64)
    flat = [np.ascontiguousarray(x, np.float64).reshape(-1) for x in arrays]
    out = np.empty(flat[0].size)
    with np.errstate(all="ignore"):
        for i in range(0, out.size, _CHUNK):
            out[i : i + _CHUNK] = function(*(x[i : i + _CHUNK] for x in flat))
    return out.reshape(arrays[0].shape).astype(dtype)


def _falls(h: Callable[[Any], Any], slope: Callable[[Any], Any], start: Any, steps: int = 16) -> Any:
    """Return a point to the right of ``start`` at which the concave function ``h`` is about -45.

    ``slope`` is the derivative of ``h``.  The point is found by ``steps`` steps of Newton's method.
    """
    s = start
    for _ in range(steps):
        below = h(s) + _FALL
        s = np.where(below < 0, s - below / slope(s), s)
    return s


# The incomplete gamma function -----------------------------------------------------------------


def gammainc_derivative(a: Any, x: Any, order: int) -> Any:
    """Return the derivative of order ``order`` ≥ 1 with respect to a of P(a, x).

    P(a, x) = ∫₀ˣ t^(a-1) exp(-t) dt / Γ(a) is the incomplete gamma function.
    """
    return _by_chunks(lambda a, x: _gammainc_vector(a, x, order), a, x)


def _gammainc_vector(a: Any, x: Any, order: int) -> Any:
    inside = (a > 0) & (x > 0) & np.isfinite(a) & np.isfinite(x)
    edge = (a > 0) & ((x == 0) | np.isposinf(x)) & np.isfinite(a)
    out = np.where(edge, 0.0, np.nan)
    for part, function in (
        (inside & (x <= 1), _gamma_series),
        (inside & (x > 1) & (x < a), functools.partial(_gamma_integral, upper=False)),
        (inside & (x > 1) & (x >= a), functools.partial(_gamma_integral, upper=True)),
    ):
        if part.any():
            out[part] = function(a[part], x[part], order)
    return out


def _gamma_series(a: Any, x: Any, order: int) -> Any:
    """Return the derivative of P(a, x) of order ``order`` with respect to a, for x ≤ 1.

    The series Σₙ x^(a+n) exp(-x) / Γ(a + n + 1) is differentiated term by term.
    """
    log_x = np.log(x)
    special = special_module("gammainc")
    total = np.zeros_like(x)
    for n in range(24):
        shifted = a + n + 1

        def cumulant(i: int, _: int, shifted: Any = shifted) -> Any:
            return log_x - special.digamma(shifted) if i == 1 else -_polygamma(i - 1, shifted)

        size = np.exp((a + n) * log_x - x - special.gammaln(shifted))
        total += size * bell(cumulant, order)
    return total


def _gamma_integral(a: Any, x: Any, order: int, upper: bool) -> Any:
    """Return the derivative of P(a, x) of order ``order`` with respect to a, for x > 1.

    It is computed as an integral over s = ±log(t/x), from t = x to ∞ if ``upper``, otherwise from x to 0.
    """
    sign = 1.0 if upper else -1.0
    h = lambda s: sign * a * s - x * np.expm1(sign * s)
    slope = lambda s: sign * (a - x * np.exp(sign * s))
    if upper:
        start = np.minimum(np.sqrt(2 * _FALL / x), 4.2)
    else:
        start = np.minimum(np.where(x > 3 * _FALL, np.sqrt(3 * _FALL / x), 2.8 * _FALL / x), (_FALL + x) / a)
    width = _falls(h, slope, start)
    y, w = _legendre(90)
    s = width[:, None] * y
    f = np.exp(sign * a[:, None] * s - x[:, None] * np.expm1(sign * s))
    d = (x - a) / a
    mean = (np.where(np.abs(d) < 0.5, np.log1p(d), np.log(x) - np.log(a)) + _log_less_digamma(a))[:, None]

    def cumulant(i: int, _: int) -> Any:
        return mean + sign * s if i == 1 else -_polygamma(i - 1, a)[:, None]

    log_size = a * _log1p_less(d, x / a) + 0.5 * np.log(a / (2 * math.pi)) - _stirling(a)
    return -sign * np.exp(log_size) * width * ((f * bell(cumulant, order)) @ w)


# The incomplete beta function ------------------------------------------------------------------


def betainc_derivative(a: Any, b: Any, x: Any, m: int, n: int) -> Any:
    """Return the derivative of I(a, b, x): m times with respect to a, and n times with respect to b.

    I is the regularized incomplete beta function, and m + n must be at least 1.
    """
    return _by_chunks(lambda a, b, x: _betainc_vector(a, b, x, m, n), a, b, x)


def _betainc_vector(a: Any, b: Any, x: Any, m: int, n: int) -> Any:
    valid = (a > 0) & (b > 0) & np.isfinite(a) & np.isfinite(b)
    inside = valid & (x > 0) & (x < 1)
    out = np.where(valid & ((x == 0) | (x == 1)), 0.0, np.nan)
    lower = x <= a / (a + b)
    part = inside & lower
    if part.any():
        out[part] = _beta_part(a[part], b[part], x[part], 1 - x[part], m, n)
    part = inside & ~lower
    if part.any():
        out[part] = -_beta_part(b[part], a[part], 1 - x[part], x[part], n, m)
    return out


def _beta_part(a: Any, b: Any, x: Any, rest: Any, m: int, n: int) -> Any:
    """Return the result of ``betainc_derivative`` for x below the mean of the beta distribution.

    First derivatives are computed by a series where it converges fast; all others by an integral.
    ``rest`` is 1 - x.
    """
    if m + n > 1:
        return _beta_integral(a, b, x, rest, m, n)
    log_gamma = special_module("betainc").gammaln
    last = _TERMS * np.log(x) + log_gamma(a + b + _TERMS) - log_gamma(a + b)
    fast = last + log_gamma(a + 1) - log_gamma(a + 1 + _TERMS) < -_FALL
    out = np.empty_like(x)
    for part, function in ((fast, _beta_series), (~fast, _beta_integral)):
        if part.any():
            out[part] = function(a[part], b[part], x[part], rest[part], m, n)
    return out


_TERMS = 60


def _beta_series(a: Any, b: Any, x: Any, rest: Any, m: int, n: int) -> Any:
    """Return the result of ``betainc_derivative`` by a series, for (m, n) = (1, 0) or (0, 1).

    ``rest`` is 1 - x.  The series is xᵃ (1 - x)ᵇ / (a B(a, b)) · Σₖ xᵏ (a + b)ₖ / (a + 1)ₖ.  Its terms are
    positive, and the derivatives of their logarithms have one sign for all k, so that the sum does not
    cancel.
    """
    if m:
        slope = np.where(x < 0.5, np.log(x), np.log1p(-rest)) - _gap(a + 1, b - 1)
    else:
        slope = np.where(rest < 0.5, np.log(rest), np.log1p(-x)) - _gap(b, a)
    term, total = np.ones_like(x), slope.copy()
    for k in range(_TERMS):
        term *= x * (a + b + k) / (a + 1 + k)
        slope += (1 - b) / ((a + b + k) * (a + 1 + k)) if m else 1 / (a + b + k)
        total += term * slope
        if k % 8 == 7 and (term * np.abs(slope) < 1e-18 * np.abs(total)).all():
            break
    return np.exp(_log_beta_size(a, b, x, rest)) / a * total


def _beta_integral(a: Any, b: Any, x: Any, rest: Any, m: int, n: int) -> Any:
    """Return the result of ``betainc_derivative``, for x below the mean, by an integral from t = x to t = 0.

    The variable of integration, s, is the difference of the log-odds of x and of t.  ``rest`` is 1 - x.
    """
    log_x = np.where(x < 0.5, np.log(x), np.log1p(-rest))
    log_rest = np.where(rest < 0.5, np.log(rest), np.log1p(-x))

    def grown(s: Any, x: Any, rest: Any) -> Any:
        """Return log(x + rest · exp(s)), where t = x / (x + rest · exp(s)) is the original variable."""
        near = np.log1p(rest * np.expm1(np.minimum(s, 600.0)))
        return near if s.max(initial=0.0) < 600 else np.where(s < 600, near, s + np.log(rest))

    total = a + b
    h = lambda s: b * s - total * grown(s, x, rest)
    slope = lambda s: b - total * rest / (rest + x * np.exp(-s))
    end = _falls(h, slope, (_FALL - total * log_rest) / a)
    # the integrand changes most where the log-odds of t are near 0; far below, it is exp(-a s) times a
    # polynomial
    first = np.maximum(log_x - log_rest, 0.0) + 5
    second = first + 35 + np.log1p(b)
    nodes = []
    for start, length in ((0 * x, np.minimum(end, first)), (first, np.minimum(end, second) - first)):
        length = np.maximum(length, 0.0)[:, None]
        y, w = _legendre(40 if length.max() < 8 else 90)
        nodes.append((start[:, None] + length * y, length * w))
    z, v = _laguerre(12)
    nodes.append((second[:, None] + z / a[:, None], (end > second)[:, None] * v / a[:, None]))
    gap_a, gap_b = _gap(a, b)[:, None], _gap(b, a)[:, None]
    sums = np.zeros_like(x)
    for s, weights in nodes:
        if not weights.any():
            continue
        log_growth = grown(s, x[:, None], rest[:, None])

        def cumulant(i: int, j: int, s: Any = s, log_growth: Any = log_growth) -> Any:
            if (i, j) == (1, 0):
                return log_x[:, None] - log_growth - gap_a
            if (i, j) == (0, 1):
                return log_rest[:, None] + s - log_growth - gap_b
            value = _polygamma(i + j - 1, a + b)
            if j == 0:
                value = value - _polygamma(i - 1, a)
            elif i == 0:
                value = value - _polygamma(j - 1, b)
            return value[:, None]

        f = np.exp(b[:, None] * s - total[:, None] * log_growth)
        sums += np.where(weights > 0, f * bell(cumulant, m, n) * weights, 0.0).sum(-1)
    return np.exp(_log_beta_size(a, b, x, rest)) * sums


def _gap(a: Any, b: Any) -> Any:
    """Return ψ(a) - ψ(a + b)."""
    large = np.minimum(a, a + b) > 20
    exact = np.log1p(-b / (a + b)) - _log_less_digamma(a) + _log_less_digamma(a + b)
    special = special_module("betainc")
    return np.where(large, exact, special.digamma(a) - special.digamma(a + b))


def _log_beta_size(a: Any, b: Any, x: Any, rest: Any) -> Any:
    """Return log(xᵃ (1 - x)ᵇ / B(a, b)), computed from the distance of x to the mean; ``rest`` is 1 - x."""
    n = a + b
    shift = (x * b - rest * a) / n  # x - a/n
    fall = a * _log1p_less(shift * n / a, x * n / a) + b * _log1p_less(-shift * n / b, rest * n / b)
    return fall + 0.5 * np.log(a / n * b / (2 * math.pi)) + _stirling(n) - _stirling(a) - _stirling(b)
