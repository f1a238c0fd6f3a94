"""Reference implementations of special functions: integrals, and SciPy's functions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["SCIPY", "SPECIAL"]


_nodes = functools.cache(np.polynomial.legendre.leggauss)


def _integral(f: Callable[[Any], Any], low: float, high: float, nodes: int) -> Any:
    """Return the integral of ``f`` from ``low`` to ``high``, by a rule with ``nodes`` points.

    ``f`` is called with a vector of points, and returns an array with the points along the last axis.
    """
    t, w = _nodes(nodes)
    half = (high - low) / 2
    return (f(half * t + (high + low) / 2) * w * half).sum(-1)


def _sinc_derivative(x: Any, order: int) -> Any:
    # sin(πx) / (πx) = ∫₀¹ cos(πxt) dt
    x = np.asarray(x)[..., None]
    return _integral(lambda t: (np.pi * t) ** order * np.cos(np.pi * x * t + order * np.pi / 2), 0, 1, 60)


def _polygamma_gap(x: Any, y: Any, n: int) -> Any:
    # Σₖ of (x + k)⁻ⁿ⁻¹ - (x + y + k)⁻ⁿ⁻¹: four terms, then ∫ tⁿ exp(-xt) (1 - exp(-yt)) / (1 - exp(-t)) dt
    x, y = np.asarray(x)[..., None], np.asarray(y)[..., None]
    k = np.arange(4)
    first = ((x + k) ** (-n - 1.0) - (x + y + k) ** (-n - 1.0)).sum(-1) * math.factorial(n)
    rest = _integral(lambda t: t**n * np.exp(-(x + 4) * t) * np.expm1(-y * t) / np.expm1(-t), 0, 30, 400)
    return (-1) ** (n + 1) * (first + rest)


def _ive_derivative(x: Any, n: int, order: int) -> Any:
    # π Iₙ(x) = ∫₀^π exp(x cos t) cos(nt) dt
    x = np.asarray(x)[..., None]
    sign = np.sign(x)
    f: Callable[..., Any] = lambda t: (
        (np.cos(t) - sign) ** order * np.exp(x * np.cos(t) - abs(x)) * np.cos(n * t) / np.pi
    )
    return _integral(f, 0, np.pi, 400)


def _erfcx_derivative(x: Any, order: int) -> Any:
    # exp(x²) erfc(x) = 2/√π ∫₀^∞ exp(-t² - 2xt) dt
    x = np.asarray(x)[..., None]
    f: Callable[..., Any] = lambda t: (-2 * t) ** order * np.exp(-t * t - 2 * x * t) * 2 / np.sqrt(np.pi)
    return _integral(f, 0, 30, 400)


def _dawsn_derivative(x: Any, order: int) -> Any:
    # Dawson's integral is ∫₀^∞ exp(-t²/4) sin(xt) / 2 dt
    x = np.asarray(x)[..., None]
    f: Callable[..., Any] = lambda t: t**order * np.exp(-t * t / 4) * np.sin(x * t + order * np.pi / 2) / 2
    return _integral(f, 0, 20, 400)


def _kve_derivative(x: Any, n: float, order: int) -> Any:
    # exp(x) Kₙ(x) = ∫₀^∞ exp(-x (cosh t - 1)) cosh(nt) dt
    x = np.asarray(x)[..., None]
    rise: Callable[..., Any] = lambda t: 2 * np.sinh(t / 2) ** 2
    return _integral(lambda t: (-rise(t)) ** order * np.exp(-x * rise(t)) * np.cosh(n * t), 0, 8, 400)


def _zeta_derivative(x: Any, y: Any, order: int) -> Any:
    base = np.asarray(y)[..., None] + np.arange(20000)
    return ((-np.log(base)) ** order * base ** -np.asarray(x)[..., None]).sum(-1)


def _gammainc_derivative(a: Any, x: Any, order: int) -> Any:
    # the density of the logarithm u of t has the mean ψ(a) and the variance ψ'(a)
    a, x = np.asarray(a)[..., None], np.asarray(x)[..., None]
    density: Callable[..., Any] = lambda u: np.exp(a * u - np.exp(u))
    moment: Callable[..., Any] = lambda f: _integral(f, -60, 5, 800)[..., None]
    size = moment(density)
    mean = moment(lambda u: density(u) * u) / size
    variance = moment(lambda u: density(u) * (u - mean) ** 2) / size
    factor: Callable[..., Any] = (lambda d: d) if order == 1 else lambda d: d * d - variance
    end = np.log(x)
    part: Callable[..., Any] = lambda v: density(end - v) * factor(end - v - mean)
    return _integral(part, 0, 60, 800) / size[..., 0]


def _betainc_derivative(a: Any, b: Any, x: Any, m: int, n: int) -> Any:
    # moments of log(t) and log(1 - t) under the density of the logit
    a, b, x = (np.asarray(v)[..., None] for v in (a, b, x))
    logs: Callable[..., Any] = lambda u: (-np.logaddexp(0, -u), -np.logaddexp(0, u))
    density: Callable[..., Any] = lambda u: np.exp(a * logs(u)[0] + b * logs(u)[1])
    moment: Callable[..., Any] = lambda f: _integral(lambda u: density(u) * f(*logs(u)), -60, 60, 1200)[
        ..., None
    ]
    size = moment(lambda p, q: 1.0)
    means = [moment(lambda p, q: p) / size, moment(lambda p, q: q) / size]
    first, second = ([0, 1] if (m, n) == (1, 1) else [0] * m + [1] * n + [0])[:2]
    spread = moment(lambda *logs: (logs[first] - means[first]) * (logs[second] - means[second])) / size
    end = np.log(x) - np.log1p(-x)

    def part(v: Any) -> Any:
        d = [log - mean for log, mean in zip(logs(end - v), means, strict=True)]
        return density(end - v) * (d[first] if m + n == 1 else d[first] * d[second] - spread)

    return _integral(part, 0, 60, 1200) / size[..., 0]


def _stdtr_derivative(x: Any, y: Any) -> Any:
    # log(1 + t²/n) under the density of t has the mean ψ((n+1)/2) - ψ(n/2); t = √n sinh(u)
    n, y = np.asarray(x)[..., None], np.asarray(y)[..., None]
    density: Callable[..., Any] = lambda u: np.exp(-n * np.log(np.cosh(u)))
    log: Callable[..., Any] = lambda u: 2 * np.log(np.cosh(u))
    whole: Callable[..., Any] = lambda f: 2 * _integral(lambda u: density(u) * f(u), 0, 80, 2000)[..., None]
    size = whole(lambda u: 1.0)
    mean = whole(log) / size
    end = np.arcsinh(y / np.sqrt(n))
    part = _integral(lambda v: end * density(v * end) * 0.5 * (mean - log(v * end)), 0, 1, 100) / size[..., 0]
    return part - (y * density(end) / np.cosh(end) / np.sqrt(n) / size)[..., 0] / (2 * n[..., 0])


def _poisson_quantile(u: Any, lam: Any) -> Any:
    u, lam = np.broadcast_arrays(u, lam)
    k, term = np.zeros(u.shape), np.exp(-lam)
    total = np.zeros(u.shape)
    for i in range(200):
        total = total + term
        k = k + (total < u)
        term = term * lam / (i + 1)
    return k


SPECIAL: dict[str, Callable[..., Any]] = {
    f.__name__[1:]: f
    for f in (
        _poisson_quantile, _sinc_derivative, _polygamma_gap, _ive_derivative, _erfcx_derivative,
        _dawsn_derivative, _kve_derivative, _zeta_derivative, _gammainc_derivative, _betainc_derivative,
        _stdtr_derivative,
    )
}  # fmt: skip


def _scipy() -> Any:
    import scipy.special

    return scipy.special


# SciPy's functions whose parameters differ from those of the op
SCIPY: dict[str, Callable[..., Any]] = {
    "sine_integral": lambda x: _scipy().sici(x)[0],
    "cosine_integral": lambda x: _scipy().sici(x)[1],
    "fresnel_sine": lambda x: _scipy().fresnel(x)[0],
    "fresnel_cosine": lambda x: _scipy().fresnel(x)[1],
    "hyp2f1": lambda x, a, b, c: _scipy().hyp2f1(a, b, c, x),
    "hyp1f1": lambda x, a, b: _scipy().hyp1f1(a, b, x),
    "lambertw": lambda x, k: _scipy().lambertw(x, k),
}
