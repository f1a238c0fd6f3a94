"""The continuous distributions in their standard forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.namespace import rec
from adjoint.scipy.stats.base import INF, NAN, Continuous, log1mexp

__all__ = [
    "beta", "cauchy", "chi2", "expon", "f", "gamma", "gumbel_r", "halfcauchy", "halfnorm", "invgamma",
    "laplace", "logistic", "lognorm", "norm", "pareto", "t", "truncnorm", "uniform", "vonmises",
    "weibull_min",
]  # fmt: skip

LOG_2, LOG_PI, LOG_2PI = math.log(2), math.log(math.pi), math.log(2 * math.pi)


norm = Continuous(
    "norm",
    logpdf=lambda y: -0.5 * y * y - 0.5 * LOG_2PI,
    cdf=lambda y: rec.ndtr(y),
    sf=lambda y: rec.ndtr(-y),
    logcdf=lambda y: rec.log_ndtr(y),
    logsf=lambda y: rec.log_ndtr(-y),
    ppf=lambda q: rec.ndtri(q),
    isf=lambda q: -rec.ndtri(q),
)  # fmt: skip
expon = Continuous(
    "expon", (), 0.0, inside=1.0,
    logpdf=lambda y: -y,
    cdf=lambda y: -rec.expm1(-y),
    sf=lambda y: rec.exp(-y),
    logcdf=lambda y: log1mexp(y),
    logsf=lambda y: -y,
    ppf=lambda q: -rec.log1p(-q),
    isf=lambda q: -rec.log(q),
)  # fmt: skip
gamma = Continuous(
    "gamma", ("a",), 0.0, inside=1.0,
    logpdf=lambda y, a: rec.xlogy(a - 1, y) - y - rec.gammaln(a),
    cdf=lambda y, a: rec.gammainc(a, y),
    sf=lambda y, a: rec.gammaincc(a, y),
    ppf=lambda q, a: rec.gammaincinv(a, q),
    isf=lambda q, a: rec.gammainccinv(a, q),
)  # fmt: skip
chi2 = Continuous(
    "chi2", ("df",), 0.0, inside=1.0,
    logpdf=lambda y, df: gamma._logpdf(0.5 * y, 0.5 * df) - LOG_2,
    cdf=lambda y, df: gamma._cdf(0.5 * y, 0.5 * df),
    sf=lambda y, df: gamma._sf(0.5 * y, 0.5 * df),
    ppf=lambda q, df: 2 * gamma._ppf(q, 0.5 * df),
    isf=lambda q, df: 2 * gamma._isf(q, 0.5 * df),
)  # fmt: skip
invgamma = Continuous(
    "invgamma", ("a",), 0.0, inside=1.0,
    logpdf=lambda y, a: -(a + 1) * rec.log(y) - rec.gammaln(a) - 1 / y,
    cdf=lambda y, a: rec.gammaincc(a, 1 / y),
    sf=lambda y, a: rec.gammainc(a, 1 / y),
    ppf=lambda q, a: 1 / rec.gammainccinv(a, q),
    isf=lambda q, a: 1 / rec.gammaincinv(a, q),
)  # fmt: skip
beta = Continuous(
    "beta", ("a", "b"), 0.0, 1.0, inside=0.5,
    logpdf=lambda y, a, b: rec.xlogy(a - 1, y) + rec.xlog1py(b - 1, -y) - rec.betaln(a, b),
    cdf=lambda y, a, b: rec.betainc(a, b, y),
    sf=lambda y, a, b: rec.betaincc(a, b, y),
    ppf=lambda q, a, b: rec.betaincinv(a, b, q),
    isf=lambda q, a, b: rec.betainccinv(a, b, q),
)  # fmt: skip


def _f_logpdf(y: Any, n: Any, m: Any) -> Any:
    size = rec.xlogy(0.5 * n - 1, y) + 0.5 * n * rec.log(n / m) - rec.betaln(0.5 * n, 0.5 * m)
    return size - 0.5 * (n + m) * rec.log1p(n * y / m)


def _f_ppf(q: Any, n: Any, m: Any) -> Any:
    # compute the smaller one of x and 1 - x, each by an inverse function of its own
    x, rest = rec.betaincinv(0.5 * n, 0.5 * m, q), rec.betainccinv(0.5 * m, 0.5 * n, q)
    return rec.where(x < 0.5, x / (1 - x), (1 - rest) / rest) * (m / n)


f = Continuous(
    "f", ("dfn", "dfd"), 0.0, inside=1.0,
    logpdf=_f_logpdf,
    cdf=lambda y, n, m: rec.betainc(0.5 * n, 0.5 * m, n * y / (m + n * y)),
    sf=lambda y, n, m: rec.betainc(0.5 * m, 0.5 * n, m / (m + n * y)),
    ppf=_f_ppf,
)  # fmt: skip


def _t_logpdf(y: Any, df: Any) -> Any:
    return -rec.betaln(0.5 * df, 0.5) - 0.5 * rec.log(df) - 0.5 * (df + 1) * rec.log1p(y * y / df)


t = Continuous(
    "t", ("df",),
    logpdf=_t_logpdf,
    cdf=lambda y, df: rec.stdtr(df, y),
    sf=lambda y, df: rec.stdtr(df, -y),
    ppf=lambda q, df: rec.stdtrit(df, q),
    isf=lambda q, df: -rec.stdtrit(df, q),
)  # fmt: skip


def _laplace_cdf(y: Any) -> Any:
    tail = 0.5 * rec.exp(-rec.abs(y))
    return rec.where(y < 0, tail, 1 - tail)


def _laplace_ppf(q: Any) -> Any:
    left = q < 0.5
    return rec.where(left, rec.log(2 * rec.where(left, q, 0.5)), -rec.log(2 - 2 * rec.where(left, 0.5, q)))


laplace: Continuous = Continuous(
    "laplace",
    logpdf=lambda y: -rec.abs(y) - LOG_2,
    cdf=_laplace_cdf,
    sf=lambda y: laplace._cdf(-y),
    logcdf=lambda y: rec.where(y < 0, y - LOG_2, rec.log1p(-0.5 * rec.exp(-rec.abs(y)))),
    logsf=lambda y: laplace._logcdf(-y),
    ppf=_laplace_ppf,
    isf=lambda q: -laplace._ppf(q),
)  # fmt: skip
logistic = Continuous(
    "logistic",
    logpdf=lambda y: rec.log_expit(y) + rec.log_expit(-y),
    cdf=lambda y: rec.sigmoid(y),
    sf=lambda y: rec.sigmoid(-y),
    logcdf=lambda y: rec.log_expit(y),
    logsf=lambda y: rec.log_expit(-y),
    ppf=lambda q: rec.logit(q),
    isf=lambda q: -rec.logit(q),
)  # fmt: skip


def _lognorm_logpdf(y: Any, s: Any) -> Any:
    u = rec.log(y) / s
    return rec.where(y == 0, -INF, -0.5 * u * u - rec.log(s * y) - 0.5 * LOG_2PI)


lognorm = Continuous(
    "lognorm", ("s",), 0.0, inside=1.0,
    logpdf=_lognorm_logpdf,
    cdf=lambda y, s: rec.ndtr(rec.log(y) / s),
    sf=lambda y, s: rec.ndtr(-rec.log(y) / s),
    logcdf=lambda y, s: rec.log_ndtr(rec.log(y) / s),
    logsf=lambda y, s: rec.log_ndtr(-rec.log(y) / s),
    ppf=lambda q, s: rec.exp(s * rec.ndtri(q)),
    isf=lambda q, s: rec.exp(-s * rec.ndtri(q)),
)  # fmt: skip
uniform = Continuous(
    "uniform", (), 0.0, 1.0, inside=0.5,
    logpdf=lambda y: 0 * y,
    cdf=lambda y: y,
    ppf=lambda q: q,
)  # fmt: skip


def _cauchy_ppf(q: Any) -> Any:
    # near 0 and 1, use the cotangent of the distance from there; in the middle, tan(π (q - 1/2))
    left, right = q < 0.25, q > 0.75
    tail = rec.where(left, q, rec.where(right, 1 - q, 0.25))
    middle = rec.where(rec.logical_or(left, right), 0.5, q)
    far = rec.where(left, -1.0, 1.0) / rec.tan(math.pi * tail)
    return rec.where(rec.logical_or(left, right), far, rec.tan(math.pi * (middle - 0.5)))


cauchy: Continuous = Continuous(
    "cauchy",
    logpdf=lambda y: -LOG_PI - 2 * rec.log(rec.hypot(y, 1.0)),
    cdf=lambda y: rec.atan2(1.0, -y) * (1 / math.pi),
    sf=lambda y: rec.atan2(1.0, y) * (1 / math.pi),
    ppf=_cauchy_ppf,
    isf=lambda q: -cauchy._ppf(q),
)  # fmt: skip
halfnorm = Continuous(
    "halfnorm", (), 0.0, inside=1.0,
    logpdf=lambda y: 0.5 * (LOG_2 - LOG_PI) - 0.5 * y * y,
    cdf=lambda y: rec.erf(y * math.sqrt(0.5)),
    sf=lambda y: 2 * rec.ndtr(-y),
    logsf=lambda y: LOG_2 + rec.log_ndtr(-y),
    ppf=lambda q: rec.erfinv(q) * math.sqrt(2),
    isf=lambda q: -rec.ndtri(0.5 * q),
)  # fmt: skip
halfcauchy = Continuous(
    "halfcauchy", (), 0.0, inside=1.0,
    logpdf=lambda y: LOG_2 - LOG_PI - 2 * rec.log(rec.hypot(y, 1.0)),
    cdf=lambda y: rec.atan(y) * (2 / math.pi),
    sf=lambda y: rec.atan2(1.0, y) * (2 / math.pi),
    ppf=lambda q: rec.tan(q * (math.pi / 2)),
    isf=lambda q: 1 / rec.tan(q * (math.pi / 2)),
)  # fmt: skip
pareto = Continuous(
    "pareto", ("b",), 1.0, inside=2.0,
    logpdf=lambda y, b: rec.log(b) - (b + 1) * rec.log(y),
    cdf=lambda y, b: -rec.expm1(-b * rec.log(y)),
    sf=lambda y, b: rec.exp(-b * rec.log(y)),
    logcdf=lambda y, b: log1mexp(b * rec.log(y)),
    logsf=lambda y, b: -b * rec.log(y),
    ppf=lambda q, b: rec.exp(-rec.log1p(-q) / b),
    isf=lambda q, b: rec.exp(-rec.log(q) / b),
)  # fmt: skip
weibull_min = Continuous(
    "weibull_min", ("c",), 0.0, inside=1.0,
    logpdf=lambda y, c: rec.log(c) + rec.xlogy(c - 1, y) - rec.pow(y, c),
    cdf=lambda y, c: -rec.expm1(-rec.pow(y, c)),
    sf=lambda y, c: rec.exp(-rec.pow(y, c)),
    logcdf=lambda y, c: log1mexp(rec.pow(y, c)),
    logsf=lambda y, c: -rec.pow(y, c),
    ppf=lambda q, c: rec.pow(-rec.log1p(-q), 1 / c),
    isf=lambda q, c: rec.pow(-rec.log(q), 1 / c),
)  # fmt: skip


def _gumbel_r_logsf(y: Any) -> Any:
    # for y > 37, 1 - exp(-exp(-y)) equals exp(-y) to all digits
    far = y > 37
    return rec.where(far, -y, log1mexp(rec.exp(-rec.where(far, 0.0, y))))


gumbel_r = Continuous(
    "gumbel_r",
    logpdf=lambda y: -y - rec.exp(-y),
    cdf=lambda y: rec.exp(-rec.exp(-y)),
    sf=lambda y: -rec.expm1(-rec.exp(-y)),
    logcdf=lambda y: -rec.exp(-y),
    logsf=_gumbel_r_logsf,
    ppf=lambda q: -rec.log(-rec.log(q)),
    isf=lambda q: -rec.log(-rec.log1p(-q)),
)  # fmt: skip


class _TruncNorm(Continuous):
    """The normal distribution truncated to [a, b].

    If [a, b] is in the right tail, its probability is computed by symmetry in the left tail, so that it does
    not cancel.
    """

    def _valid(self, a: Any, b: Any) -> list[Any]:
        ordered = a < b
        return [rec.where(ordered, a, NAN), rec.where(ordered, b, NAN)]

    def _support(self, a: Any, b: Any) -> tuple[Any, Any]:
        return a, b

    def _point(self, low: Any, high: Any) -> Any:
        finite_low, finite_high = rec.maximum(low, -1e300), rec.minimum(high, 1e300)
        return 0.5 * finite_low + 0.5 * finite_high

    def _logpdf(self, y: Any, a: Any, b: Any) -> Any:
        return -0.5 * y * y - 0.5 * LOG_2PI - _log_mass(a, b)

    def _logcdf(self, y: Any, a: Any, b: Any) -> Any:
        return _log_mass(a, y) - _log_mass(a, b)

    def _logsf(self, y: Any, a: Any, b: Any) -> Any:
        return _log_mass(y, b) - _log_mass(a, b)

    def _cdf(self, y: Any, a: Any, b: Any) -> Any:
        return rec.exp(self._logcdf(y, a, b))

    def _sf(self, y: Any, a: Any, b: Any) -> Any:
        return rec.exp(self._logsf(y, a, b))

    def _ppf(self, q: Any, a: Any, b: Any) -> Any:
        mass = _log_mass(a, b)
        left = rec.ndtri_exp(rec.logaddexp(rec.log_ndtr(a), rec.log(q) + mass))
        right = -rec.ndtri_exp(rec.logaddexp(rec.log_ndtr(-b), rec.log1p(-q) + mass))
        return rec.where(a < 0, left, right)

    def _isf(self, q: Any, a: Any, b: Any) -> Any:
        return -self._ppf(q, -b, -a)


def _log_mass(a: Any, b: Any) -> Any:
    """Return log(Φ(b) - Φ(a)), where Φ is the normal distribution function."""
    right = a > 0
    low, high = rec.where(right, -b, a), rec.where(right, -a, b)  # an interval in the right tail is mirrored
    one_side = high <= 0
    c, d = rec.where(one_side, low, -2.0), rec.where(one_side, high, -1.0)
    p, q = rec.log_ndtr(d), rec.log_ndtr(c)
    tail = p + log1mexp(rec.where(p > q, p - q, NAN))
    e, h = rec.where(one_side, -1.0, low), rec.where(one_side, 1.0, high)
    return rec.where(one_side, tail, rec.log1p(-rec.ndtr(e) - rec.ndtr(-h)))


class _VonMises(Continuous):
    def _logpdf(self, y: Any, kappa: Any) -> Any:
        return -2 * kappa * rec.square(rec.sin(0.5 * y)) - LOG_2PI - rec.log(rec.ive(kappa, n=0))

    def _cdf(self, y: Any, kappa: Any) -> Any:
        turns = rec.rint(y * (1 / (2 * math.pi)))
        y = y - turns * (2 * math.pi)
        size = rec.abs(y)
        tail = self._tail(size, kappa)  # the probability beyond size, on one side
        return turns + rec.where(y < 0, tail, 1 - tail)

    def _sf(self, y: Any, kappa: Any) -> Any:
        return self._cdf(-y, kappa)

    def _tail(self, x: Any, kappa: Any) -> Any:
        """Return the integral of the density from x to π, or to the point where it has fallen by exp(-40)."""
        fall = 20 / rec.maximum(kappa.detach(), 1e-3) + rec.square(rec.sin(0.5 * x.detach()))
        end = 2 * rec.asin(rec.sqrt(rec.minimum(fall, 1.0)))
        nodes, weights = np.polynomial.legendre.leggauss(60)
        length = end - x
        t = x[..., None] + length[..., None] * (0.5 * (nodes + 1)).astype(x.dtype)
        density = rec.exp(self._logpdf(t, kappa[..., None]))
        return length * rec.sum(density * (0.5 * weights).astype(x.dtype), axis=(-1,), keepdims=False)

    def _ppf(self, q: Any, kappa: Any) -> Any:
        below = q < 0.5
        p, kappa = rec.where(below, q, 1 - q) + 0 * kappa, kappa + 0 * q
        p_value, k_value = p.detach(), kappa.detach()
        low, high = 0 * p_value, 0 * p_value + math.pi
        for _ in range(52):
            middle = 0.5 * (low + high)
            far = self._tail(middle, k_value) > p_value
            low, high = rec.where(far, middle, low), rec.where(far, high, middle)
        size = 0.5 * (low + high)
        for _ in range(3):  # n correct derivatives become 2n + 1 by each step of Newton's method
            size = size + (self._tail(size, kappa) - p) / rec.exp(self._logpdf(size, kappa))
        return rec.where(below, -size, size)


truncnorm = _TruncNorm("truncnorm", ("a", "b"))
vonmises = _VonMises("vonmises", ("kappa",))
