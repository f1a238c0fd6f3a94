"""Functions for ``test_tails.py`` that mpmath does not have, or not for very large and very small numbers."""

from __future__ import annotations

from typing import Any

import mpmath as mp


def normal(x: Any) -> Any:
    """The normal distribution function."""
    return mp.erfc(-x / mp.sqrt(2)) / 2 if abs(x) < 1e4 else mp.mpf(x > 0)


def mills(x: Any, order: int = 0) -> Any:
    """φ(x)/Φ(x) and its derivative; far on the left by the asymptotic series."""
    if x < -1e3:
        terms = (-x, -1 / x, 2 / x**3, -10 / x**5, 74 / x**7)
        slopes = (-1, 1 / x**2, -6 / x**4, 50 / x**6, -518 / x**8)
        return sum(slopes) if order else sum(terms)
    with mp.workdps(120):
        r = mp.npdf(x) / normal(x)
        return -r * (x + r) if order else r


def log_normal(x: Any) -> Any:
    if x <= -1e4:
        return -x * x / 2 - mp.log(-x * mp.sqrt(2 * mp.pi)) + mp.log(1 - 1 / x**2 + 3 / x**4)
    return mp.log1p(-normal(-x)) if x > 0 else mp.log(normal(x))


def erfcx(x: Any, order: int = 0) -> Any:
    """exp(x²) erfc(x) and two derivatives."""
    if x < -1e4:
        return mp.inf * (-1) ** order
    if x > 1e6:
        terms = (
            (1 / x, -1 / (2 * x**3), 3 / (4 * x**5)),
            (-1 / x**2, 3 / (2 * x**4), -15 / (4 * x**6)),
            (2 / x**3, -6 / x**5, 45 / (2 * x**7)),
        )
        return sum(terms[order]) / mp.sqrt(mp.pi)
    value = mp.exp(x * x) * mp.erfc(x)
    if order == 0:
        return value
    first = 2 * x * value - 2 / mp.sqrt(mp.pi)
    return first if order == 1 else 2 * value + 2 * x * first


def erfcinv(p: Any) -> Any:
    """The inverse of erfc, by Newton's method in its tails."""
    q = min(p, 2 - p)
    if q > 0.1:
        return mp.erfinv(1 - p) if p != 1 else mp.mpf(0)
    with mp.workdps(40):
        y = mp.sqrt(-mp.log(q * mp.sqrt(mp.pi) * mp.sqrt(mp.mpf(0.5) - mp.log(q))))
        for _ in range(60):
            step = (mp.erfc(y) - q) * mp.sqrt(mp.pi) / 2 * mp.exp(y * y)
            y += step
            if abs(step) < mp.mpf(10) ** -35:
                break
    return y if p < 1 else -y


def erfinv(x: Any) -> Any:
    if abs(x) > 0.5:
        return mp.sign(x) * erfcinv(1 - abs(x))
    return mp.erfinv(x) if x else x


def _besseli(n: int, x: Any) -> Any:
    n, half = abs(n), x / 2
    term = half**n / mp.factorial(n)
    total = mp.mpf(0)
    k = 0
    while abs(term) > abs(total) * mp.mpf(10) ** -40:
        total += term
        k += 1
        term *= half * half / (k * (n + k))
    return total


def ive(n: int, x: Any, order: int = 0) -> Any:
    """A derivative of exp(-|x|) Iₙ(x): central differences in n, or the asymptotic series."""
    size = abs(x)
    value = mp.mpf(0)
    if size < 200:
        with mp.workdps(40):
            for j in range(2 * order + 1):
                value += (-1) ** j * mp.binomial(2 * order, j) * _besseli(n + order - j, size)
            value *= mp.exp(-size) / 2**order
    else:
        a = 1 / mp.sqrt(2 * mp.pi)
        for k in range(25):
            value += a * mp.ff(-k - mp.mpf(1) / 2, order) * mp.power(size, -k - mp.mpf(1) / 2 - order)
            a *= -mp.mpf(4 * n * n - (2 * k + 1) ** 2) / (8 * (k + 1))
    return -value if x < 0 and (n + order) % 2 else value


def jv(n: int, x: Any, order: int = 0) -> Any:
    """A derivative of the Bessel function."""
    return (jv(n - 1, x, order - 1) - jv(n + 1, x, order - 1)) / 2 if order else mp.besselj(n, x)


def gamma_gap(n: int, x: Any, y: Any) -> Any:
    """ψₙ(x) - ψₙ(x + y)."""
    return mp.polygamma(n, x) - mp.polygamma(n, x + y)


def log_beta(x: Any, y: Any) -> Any:
    return mp.loggamma(x) + mp.loggamma(y) - mp.loggamma(x + y)
