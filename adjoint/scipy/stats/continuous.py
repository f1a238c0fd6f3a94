"""The continuous distributions in their standard forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.namespace import rec
from adjoint.scipy.stats.base import INF, NAN, Continuous, log1mexp

__all__ = [
    "beta",
    "cauchy",
    "chi2",
    "expon",
    "f",
    "gamma",
    "gumbel_r",
    "halfcauchy",
    "halfnorm",
    "invgamma",
    "laplace",
    "logistic",
    "lognorm",
    "norm",
    "pareto",
    "t",
    "truncnorm",
    "uniform",
    "vonmises",
    "weibull_min",
]

LOG_2, LOG_PI, LOG_2PI = math.log(2), math.log(math.pi), math.log(2 * math.pi)


class _Norm(Continuous):
    def _logpdf(self, y: Any) -> Any:
        return -0.5 * y * y - 0.5 * LOG_2PI

    def _cdf(self, y: Any) -> Any:
        return rec.ndtr(y)

    def _sf(self, y: Any) -> Any:
        return rec.ndtr(-y)

    def _logcdf(self, y: Any) -> Any:
        return rec.log_ndtr(y)

    def _logsf(self, y: Any) -> Any:
        return rec.log_ndtr(-y)

    def _ppf(self, q: Any) -> Any:
        return rec.ndtri(q)

    def _isf(self, q: Any) -> Any:
        return -rec.ndtri(q)


class _Expon(Continuous):
    def _logpdf(self, y: Any) -> Any:
        return -y

    def _cdf(self, y: Any) -> Any:
        return -rec.expm1(-y)

    def _sf(self, y: Any) -> Any:
        return rec.exp(-y)

    def _logcdf(self, y: Any) -> Any:
        return log1mexp(y)

    def _logsf(self, y: Any) -> Any:
        return -y

    def _ppf(self, q: Any) -> Any:
        return -rec.log1p(-q)

    def _isf(self, q: Any) -> Any:
        return -rec.log(q)


class _Gamma(Continuous):
    def _logpdf(self, y: Any, a: Any) -> Any:
        return rec.xlogy(a - 1, y) - y - rec.gammaln(a)

    def _cdf(self, y: Any, a: Any) -> Any:
        return rec.gammainc(a, y)

    def _sf(self, y: Any, a: Any) -> Any:
        return rec.gammaincc(a, y)

    def _ppf(self, q: Any, a: Any) -> Any:
        return rec.gammaincinv(a, q)

    def _isf(self, q: Any, a: Any) -> Any:
        return rec.gammainccinv(a, q)


class _Chi2(_Gamma):
    def _logpdf(self, y: Any, df: Any) -> Any:
        return super()._logpdf(0.5 * y, 0.5 * df) - LOG_2

    def _cdf(self, y: Any, df: Any) -> Any:
        return super()._cdf(0.5 * y, 0.5 * df)

    def _sf(self, y: Any, df: Any) -> Any:
        return super()._sf(0.5 * y, 0.5 * df)

    def _ppf(self, q: Any, df: Any) -> Any:
        return 2 * super()._ppf(q, 0.5 * df)

    def _isf(self, q: Any, df: Any) -> Any:
        return 2 * super()._isf(q, 0.5 * df)


class _InvGamma(Continuous):
    def _logpdf(self, y: Any, a: Any) -> Any:
        return -(a + 1) * rec.log(y) - rec.gammaln(a) - 1 / y

    def _cdf(self, y: Any, a: Any) -> Any:
        return rec.gammaincc(a, 1 / y)

    def _sf(self, y: Any, a: Any) -> Any:
        return rec.gammainc(a, 1 / y)

    def _ppf(self, q: Any, a: Any) -> Any:
        return 1 / rec.gammainccinv(a, q)

    def _isf(self, q: Any, a: Any) -> Any:
        return 1 / rec.gammaincinv(a, q)


class _Beta(Continuous):
    def _logpdf(self, y: Any, a: Any, b: Any) -> Any:
        return rec.xlogy(a - 1, y) + rec.xlog1py(b - 1, -y) - rec.betaln(a, b)

    def _cdf(self, y: Any, a: Any, b: Any) -> Any:
        return rec.betainc(a, b, y)

    def _sf(self, y: Any, a: Any, b: Any) -> Any:
        return rec.betaincc(a, b, y)

    def _ppf(self, q: Any, a: Any, b: Any) -> Any:
        return rec.betaincinv(a, b, q)

    def _isf(self, q: Any, a: Any, b: Any) -> Any:
        return rec.betainccinv(a, b, q)


class _F(Continuous):
    def _logpdf(self, y: Any, n: Any, m: Any) -> Any:
        size = rec.xlogy(0.5 * n - 1, y) + 0.5 * n * rec.log(n / m) - rec.betaln(0.5 * n, 0.5 * m)
        return size - 0.5 * (n + m) * rec.log1p(n * y / m)

    def _cdf(self, y: Any, n: Any, m: Any) -> Any:
        return rec.betainc(0.5 * n, 0.5 * m, n * y / (m + n * y))

    def _sf(self, y: Any, n: Any, m: Any) -> Any:
        return rec.betainc(0.5 * m, 0.5 * n, m / (m + n * y))

    def _ppf(self, q: Any, n: Any, m: Any) -> Any:
        # compute the smaller one of x and 1 - x, each by an inverse function of its own
        x, rest = rec.betaincinv(0.5 * n, 0.5 * m, q), rec.betainccinv(0.5 * m, 0.5 * n, q)
        return rec.where(x < 0.5, x / (1 - x), (1 - rest) / rest) * (m / n)


class _Student(Continuous):
    def _logpdf(self, y: Any, df: Any) -> Any:
        return -rec.betaln(0.5 * df, 0.5) - 0.5 * rec.log(df) - 0.5 * (df + 1) * rec.log1p(y * y / df)

    def _cdf(self, y: Any, df: Any) -> Any:
        return rec.stdtr(df, y)

    def _sf(self, y: Any, df: Any) -> Any:
        return rec.stdtr(df, -y)

    def _ppf(self, q: Any, df: Any) -> Any:
        return rec.stdtrit(df, q)

    def _isf(self, q: Any, df: Any) -> Any:
        return -rec.stdtrit(df, q)


class _Laplace(Continuous):
    def _logpdf(self, y: Any) -> Any:
        return -rec.abs(y) - LOG_2

    def _cdf(self, y: Any) -> Any:
        tail = 0.5 * rec.exp(-rec.abs(y))
        return rec.where(y < 0, tail, 1 - tail)

    def _sf(self, y: Any) -> Any:
        return self._cdf(-y)

    def _logcdf(self, y: Any) -> Any:
        return rec.where(y < 0, y - LOG_2, rec.log1p(-0.5 * rec.exp(-rec.abs(y))))

    def _logsf(self, y: Any) -> Any:
        return self._logcdf(-y)

    def _ppf(self, q: Any) -> Any:
        left = q < 0.5
        return rec.where(
            left, rec.log(2 * rec.where(left, q, 0.5)), -rec.log(2 - 2 * rec.where(left, 0.5, q))
        )

    def _isf(self, q: Any) -> Any:
        return -self._ppf(q)


class _Logistic(Continuous):
    def _logpdf(self, y: Any) -> Any:
        return rec.log_expit(y) + rec.log_expit(-y)

    def _cdf(self, y: Any) -> Any:
        return rec.sigmoid(y)

    def _sf(self, y: Any) -> Any:
        return rec.sigmoid(-y)

    def _logcdf(self, y: Any) -> Any:
        return rec.log_expit(y)

    def _logsf(self, y: Any) -> Any:
        return rec.log_expit(-y)

    def _ppf(self, q: Any) -> Any:
        return rec.logit(q)

    def _isf(self, q: Any) -> Any:
        return -rec.logit(q)


class _LogNorm(Continuous):
    def _logpdf(self, y: Any, s: Any) -> Any:
        u = rec.log(y) / s
        return rec.where(y == 0, -INF, -0.5 * u * u - rec.log(s * y) - 0.5 * LOG_2PI)

    def _cdf(self, y: Any, s: Any) -> Any:
        return rec.ndtr(rec.log(y) / s)

    def _sf(self, y: Any, s: Any) -> Any:
        return rec.ndtr(-rec.log(y) / s)

    def _logcdf(self, y: Any, s: Any) -> Any:
        return rec.log_ndtr(rec.log(y) / s)

    def _logsf(self, y: Any, s: Any) -> Any:
        return rec.log_ndtr(-rec.log(y) / s)

    def _ppf(self, q: Any, s: Any) -> Any:
        return rec.exp(s * rec.ndtri(q))

    def _isf(self, q: Any, s: Any) -> Any:
        return rec.exp(-s * rec.ndtri(q))


class _Uniform(Continuous):
    def _logpdf(self, y: Any) -> Any:
        return 0 * y

    def _cdf(self, y: Any) -> Any:
        return y

    def _ppf(self, q: Any) -> Any:
        return q


class _Cauchy(Continuous):
    def _logpdf(self, y: Any) -> Any:
        return -LOG_PI - 2 * rec.log(rec.hypot(y, 1.0))

    def _cdf(self, y: Any) -> Any:
        return rec.atan2(1.0, -y) * (1 / math.pi)

    def _sf(self, y: Any) -> Any:
        return rec.atan2(1.0, y) * (1 / math.pi)

    def _ppf(self, q: Any) -> Any:
        # near 0 and 1, use the cotangent of the distance from there; in the middle, tan(π (q - 1/2))
        left, right = q < 0.25, q > 0.75
        tail = rec.where(left, q, rec.where(right, 1 - q, 0.25))
        middle = rec.where(rec.logical_or(left, right), 0.5, q)
        far = rec.where(left, -1.0, 1.0) / rec.tan(math.pi * tail)
        return rec.where(rec.logical_or(left, right), far, rec.tan(math.pi * (middle - 0.5)))

    def _isf(self, q: Any) -> Any:
        return -self._ppf(q)


class _HalfNorm(Continuous):
    def _logpdf(self, y: Any) -> Any:
        return 0.5 * (LOG_2 - LOG_PI) - 0.5 * y * y

    def _cdf(self, y: Any) -> Any:
        return rec.erf(y * math.sqrt(0.5))

    def _sf(self, y: Any) -> Any:
        return 2 * rec.ndtr(-y)

    def _logsf(self, y: Any) -> Any:
        return LOG_2 + rec.log_ndtr(-y)

    def _ppf(self, q: Any) -> Any:
        return rec.erfinv(q) * math.sqrt(2)

    def _isf(self, q: Any) -> Any:
        return -rec.ndtri(0.5 * q)


class _HalfCauchy(Continuous):
    def _logpdf(self, y: Any) -> Any:
        return LOG_2 - LOG_PI - 2 * rec.log(rec.hypot(y, 1.0))

    def _cdf(self, y: Any) -> Any:
        return rec.atan(y) * (2 / math.pi)

    def _sf(self, y: Any) -> Any:
        return rec.atan2(1.0, y) * (2 / math.pi)

    def _ppf(self, q: Any) -> Any:
        return rec.tan(q * (math.pi / 2))

    def _isf(self, q: Any) -> Any:
        return 1 / rec.tan(q * (math.pi / 2))


class _Pareto(Continuous):
    def _logpdf(self, y: Any, b: Any) -> Any:
        return rec.log(b) - (b + 1) * rec.log(y)

    def _cdf(self, y: Any, b: Any) -> Any:
        return -rec.expm1(-b * rec.log(y))

    def _sf(self, y: Any, b: Any) -> Any:
        return rec.exp(-b * rec.log(y))

    def _logcdf(self, y: Any, b: Any) -> Any:
        return log1mexp(b * rec.log(y))

    def _logsf(self, y: Any, b: Any) -> Any:
        return -b * rec.log(y)

    def _ppf(self, q: Any, b: Any) -> Any:
        return rec.exp(-rec.log1p(-q) / b)

    def _isf(self, q: Any, b: Any) -> Any:
        return rec.exp(-rec.log(q) / b)


class _Weibull(Continuous):
    def _logpdf(self, y: Any, c: Any) -> Any:
        return rec.log(c) + rec.xlogy(c - 1, y) - rec.pow(y, c)

    def _cdf(self, y: Any, c: Any) -> Any:
        return -rec.expm1(-rec.pow(y, c))

    def _sf(self, y: Any, c: Any) -> Any:
        return rec.exp(-rec.pow(y, c))

    def _logcdf(self, y: Any, c: Any) -> Any:
        return log1mexp(rec.pow(y, c))

    def _logsf(self, y: Any, c: Any) -> Any:
        return -rec.pow(y, c)

    def _ppf(self, q: Any, c: Any) -> Any:
        return rec.pow(-rec.log1p(-q), 1 / c)

    def _isf(self, q: Any, c: Any) -> Any:
        return rec.pow(-rec.log(q), 1 / c)


class _Gumbel(Continuous):
    def _logpdf(self, y: Any) -> Any:
        return -y - rec.exp(-y)

    def _cdf(self, y: Any) -> Any:
        return rec.exp(-rec.exp(-y))

    def _sf(self, y: Any) -> Any:
        return -rec.expm1(-rec.exp(-y))

    def _logcdf(self, y: Any) -> Any:
        return -rec.exp(-y)

    def _logsf(self, y: Any) -> Any:
        # for y > 37, 1 - exp(-exp(-y)) equals exp(-y) to all digits
        far = y > 37
        return rec.where(far, -y, log1mexp(rec.exp(-rec.where(far, 0.0, y))))

    def _ppf(self, q: Any) -> Any:
        return -rec.log(-rec.log(q))

    def _isf(self, q: Any) -> Any:
        return -rec.log(-rec.log1p(-q))


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


norm = _Norm("norm")
expon = _Expon("expon", (), 0.0, inside=1.0)
gamma = _Gamma("gamma", ("a",), 0.0, inside=1.0)
chi2 = _Chi2("chi2", ("df",), 0.0, inside=1.0)
invgamma = _InvGamma("invgamma", ("a",), 0.0, inside=1.0)
beta = _Beta("beta", ("a", "b"), 0.0, 1.0, inside=0.5)
f = _F("f", ("dfn", "dfd"), 0.0, inside=1.0)
t = _Student("t", ("df",))
laplace = _Laplace("laplace")
logistic = _Logistic("logistic")
lognorm = _LogNorm("lognorm", ("s",), 0.0, inside=1.0)
uniform = _Uniform("uniform", (), 0.0, 1.0, inside=0.5)
cauchy = _Cauchy("cauchy")
halfnorm = _HalfNorm("halfnorm", (), 0.0, inside=1.0)
halfcauchy = _HalfCauchy("halfcauchy", (), 0.0, inside=1.0)
pareto = _Pareto("pareto", ("b",), 1.0, inside=2.0)
weibull_min = _Weibull("weibull_min", ("c",), 0.0, inside=1.0)
gumbel_r = _Gumbel("gumbel_r")
truncnorm = _TruncNorm("truncnorm", ("a", "b"))
vonmises = _VonMises("vonmises", ("kappa",))
