"""Incomplete gamma and beta functions, their complements and inverses, differentiable in all arguments."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.core.define import define
from adjoint.core.namespace import raw
from adjoint.ops.half import in_float32
from adjoint.ops.incomplete_values import bell, betainc_derivative, gammainc_derivative
from adjoint.ops.scipy_forward import from_scipy, real_arrays, special_module

__all__ = [
    "betainc", "betaincc", "betainccinv", "betaincinv", "gammainc", "gammaincc", "gammainccinv",
    "gammaincinv", "stdtr", "stdtrit",
]  # fmt: skip


def _gamma_density(xp: Any, a: Any, x: Any) -> Any:
    """Return x^(a-1) exp(-x) / Γ(a)."""
    far = x == np.inf  # there the exponent below would be inf - inf
    x = xp.where(far, 1, x)
    return xp.where(far, 0, xp.exp(xp.xlogy(a - 1, x) - x - xp.gammaln(a)))


def _gamma_change(xp: Any, a: Any, x: Any, order: int) -> Any:
    """Return the derivative of order ``order`` of the gamma density at x with respect to its shape a."""
    log_x = xp.log(xp.where(xp.logical_or(x == 0, x == np.inf), 1, x))  # at 0 and inf, log(x) is 0 · inf
    cumulant = lambda i, _: log_x - xp.digamma(a) if i == 1 else -xp.polygamma(a, n=i - 1)
    return _gamma_density(xp, a, x) * bell(cumulant, order)


def _beta_density(xp: Any, a: Any, b: Any, x: Any) -> Any:
    """Return x^(a-1) (1 - x)^(b-1) / B(a, b)."""
    return xp.exp(xp.xlogy(a - 1, x) + xp.xlog1py(b - 1, -x) - xp.betaln(a, b))


def _beta_change(xp: Any, a: Any, b: Any, x: Any, m: int, n: int) -> Any:
    """Return the derivative of the beta density at x: m times with respect to a, and n times to b."""
    inside = xp.where(xp.logical_or(x == 0, x == 1), 0.5, x)
    log_x, log_rest = xp.log(inside), xp.log1p(-inside)

    def cumulant(i: int, j: int) -> Any:
        if (i, j) == (1, 0):
            return log_x - xp.polygamma_gap(a, b, n=0)
        if (i, j) == (0, 1):
            return log_rest - xp.polygamma_gap(b, a, n=0)
        if j == 0:
            return -xp.polygamma_gap(a, b, n=i - 1)
        if i == 0:
            return -xp.polygamma_gap(b, a, n=j - 1)
        return xp.polygamma(a + b, n=i + j - 1)

    return _beta_density(xp, a, b, x) * bell(cumulant, m, n)


def _gammainc_derivative(a: Any, x: Any, order: int) -> Any:
    a, x = real_arrays(a, x)
    return gammainc_derivative(a, x, order)


def _betainc_derivative(a: Any, b: Any, x: Any, m: int, n: int) -> Any:
    a, b, x = real_arrays(a, b, x)
    return betainc_derivative(a, b, x, m, n)


gammainc = define("gammainc", from_scipy("gammainc"),
                  lambda xp, g, y, a, x: g * xp.gammainc_derivative(a, x, order=1),
                  lambda xp, g, y, a, x: g * _gamma_density(xp, a, x), saves="ax", domain=((0.5, 3), (0.5, 3)),
                  reference="scipy.special:gammainc", doc="Return the regularized lower incomplete gamma function ∫ t^(x-1) exp(-t) dt / Γ(x) from 0 to y.")  # fmt: skip
gammaincc = define("gammaincc", from_scipy("gammaincc"),
                   lambda xp, g, y, a, x: -g * xp.gammainc_derivative(a, x, order=1),
                   lambda xp, g, y, a, x: -g * _gamma_density(xp, a, x), saves="ax", domain=((0.5, 3), (0.5, 3)),
                   reference="scipy.special:gammaincc", doc="Return the regularized upper incomplete gamma function, 1 - gammainc(x, y).")  # fmt: skip
define("gammainc_derivative", in_float32(_gammainc_derivative),
       lambda xp, g, y, a, x, order: g * xp.gammainc_derivative(a, x, order=order + 1),
       lambda xp, g, y, a, x, order: g * _gamma_change(xp, a, x, order), saves="ax", params=("order",),
       reference="formula", doc="A derivative of the incomplete gamma function in its parameter.")  # fmt: skip
betainc = define("betainc", from_scipy("betainc"),
                 lambda xp, g, y, a, b, x: g * xp.betainc_derivative(a, b, x, m=1, n=0),
                 lambda xp, g, y, a, b, x: g * xp.betainc_derivative(a, b, x, m=0, n=1),
                 lambda xp, g, y, a, b, x: g * _beta_density(xp, a, b, x), saves="abx", domain=((0.5, 3), (0.5, 3), (0.1, 0.9)),
                 reference="scipy.special:betainc", doc="Return the regularized incomplete beta function ∫ t^(x-1) (1 - t)^(y-1) dt / B(x, y) from 0 to z.")  # fmt: skip
betaincc = define("betaincc", from_scipy("betaincc"),
                  lambda xp, g, y, a, b, x: -g * xp.betainc_derivative(a, b, x, m=1, n=0),
                  lambda xp, g, y, a, b, x: -g * xp.betainc_derivative(a, b, x, m=0, n=1),
                  lambda xp, g, y, a, b, x: -g * _beta_density(xp, a, b, x), saves="abx", domain=((0.5, 3), (0.5, 3), (0.1, 0.9)),
                  reference="scipy.special:betaincc", doc="Return the complement of the incomplete beta function, 1 - betainc(x, y, z).")  # fmt: skip
define("betainc_derivative", in_float32(_betainc_derivative),
       lambda xp, g, y, a, b, x, m, n: g * xp.betainc_derivative(a, b, x, m=m + 1, n=n),
       lambda xp, g, y, a, b, x, m, n: g * xp.betainc_derivative(a, b, x, m=m, n=n + 1),
       lambda xp, g, y, a, b, x, m, n: g * _beta_change(xp, a, b, x, m, n), saves="abx", params=("m", "n"),
       reference="formula", doc="A derivative of the incomplete beta function in its parameters.")  # fmt: skip

# The inverses, by the implicit function theorem ------------------------------------------------

gammaincinv = define("gammaincinv", from_scipy("gammaincinv"),
                     lambda xp, g, x, a, p: -g * (xp.gammainc_derivative(a, x, order=1) / _gamma_density(xp, a, x)),
                     lambda xp, g, x, a, p: g / _gamma_density(xp, a, x), saves="xa", domain=((0.5, 3), (0.1, 0.9)),
                     reference="scipy.special:gammaincinv", doc="Return the t with gammainc(x, t) = y.")  # fmt: skip
gammainccinv = define("gammainccinv", from_scipy("gammainccinv"),
                      lambda xp, g, x, a, p: -g * (xp.gammainc_derivative(a, x, order=1) / _gamma_density(xp, a, x)),
                      lambda xp, g, x, a, p: -g / _gamma_density(xp, a, x), saves="xa", domain=((0.5, 3), (0.1, 0.9)),
                      reference="scipy.special:gammainccinv", doc="Return the t with gammaincc(x, t) = y.")  # fmt: skip
betaincinv = define("betaincinv", from_scipy("betaincinv"),
                    lambda xp, g, x, a, b, p: -g * (xp.betainc_derivative(a, b, x, m=1, n=0) / _beta_density(xp, a, b, x)),
                    lambda xp, g, x, a, b, p: -g * (xp.betainc_derivative(a, b, x, m=0, n=1) / _beta_density(xp, a, b, x)),
                    lambda xp, g, x, a, b, p: g / _beta_density(xp, a, b, x), saves="xab", domain=((0.5, 3), (0.5, 3), (0.1, 0.9)),
                    reference="scipy.special:betaincinv", doc="Return the t with betainc(x, y, t) = z.")  # fmt: skip
betainccinv = define("betainccinv", from_scipy("betainccinv"),
                     lambda xp, g, x, a, b, p: -g * (xp.betainc_derivative(a, b, x, m=1, n=0) / _beta_density(xp, a, b, x)),
                     lambda xp, g, x, a, b, p: -g * (xp.betainc_derivative(a, b, x, m=0, n=1) / _beta_density(xp, a, b, x)),
                     lambda xp, g, x, a, b, p: -g / _beta_density(xp, a, b, x), saves="xab", domain=((0.5, 3), (0.5, 3), (0.1, 0.9)),
                     reference="scipy.special:betainccinv", doc="Return the t with betaincc(x, y, t) = z.")  # fmt: skip

# Student's distribution --------------------------------------------------------------------------


def _student_density(xp: Any, df: Any, t: Any) -> Any:
    return xp.exp(-0.5 * (df + 1) * xp.log1p(t * t / df) - xp.betaln(0.5 * df, 0.5)) / xp.sqrt(df)


def _student_beta(xp: Any, df: Any, t: Any) -> Any:
    """Return z = df / (df + t²), but at most the largest number below 1.

    Student's distribution function is computed from the incomplete beta function at z.
    """
    return xp.minimum(df / (df + t * t), 1 - 1e-16)


def _student_slope(xp: Any, g: Any, y: Any, df: Any, t: Any) -> Any:
    """Return -g times the second derivative of Student's distribution function at t with respect to df."""
    z = _student_beta(xp, df, t)
    change = xp.square(t / (df + t * t)) * _beta_change(xp, 0.5 * df, 0.5, z, 1, 0)
    tail = 0.5 * xp.betainc_derivative(0.5 * df, 0.5, z, m=2, n=0) + change
    density = _student_density(xp, df, t) * (_student_log_slope(xp, df, t) - 1 / df)
    return -g * (0.25 * xp.sign(t) * tail + t * density / (2 * df))


def _student_log_slope(xp: Any, df: Any, t: Any) -> Any:
    """Return the derivative of the logarithm of Student's density at t with respect to df.

    df is the number of degrees of freedom.
    """
    square = t * t / df
    gap = -0.5 * xp.polygamma_gap(0.5 * df, 0.5, n=0) - 0.5 / df
    return gap - 0.5 * xp.log1p(square) + 0.5 * (1 + 1 / df) * square / (1 + square)


def _stdtr_derivative(df: Any, t: Any) -> Any:
    """Return the derivative of Student's distribution function at t with respect to df.

    df is the number of degrees of freedom.  The result is the sum of two terms, because df occurs in a
    parameter of the incomplete beta function and in its argument z = df / (df + t²).
    """
    dtype = np.result_type(df, t, 1.0)
    df, t = np.broadcast_arrays(*real_arrays(df, t))
    df, t = df.astype(np.float64), t.astype(np.float64)
    rest = t * t / (df + t * t)  # 1 - z
    near = rest < 0.5
    tail = np.where(
        near,
        -betainc_derivative(0.5, 0.5 * df, np.where(near, rest, 0.5), 0, 1),
        betainc_derivative(0.5 * df, 0.5, np.where(near, 0.5, df / (df + t * t)), 1, 0),
    )
    return (-0.25 * np.sign(t) * tail - t * _student_density(raw, df, t) / (2 * df)).astype(dtype)


define("stdtr_derivative", in_float32(_stdtr_derivative), _student_slope,
       lambda xp, g, y, df, t: g * (_student_density(xp, df, t) * _student_log_slope(xp, df, t)), saves=("df", "t"), domain=((0.5, 5), (0.2, 3)),
       reference="formula", doc="The derivative of Student's distribution function in the degrees of freedom.")  # fmt: skip
stdtr = define("stdtr", from_scipy("stdtr"),
               lambda xp, g, y, df, t: g * xp.stdtr_derivative(df, t),
               lambda xp, g, y, df, t: g * _student_density(xp, df, t), saves=("df", "t"), domain=((0.5, 5), (0.2, 3)),
               reference="scipy.special:stdtr", doc="Return the distribution function of Student's t with x degrees of freedom at y.")  # fmt: skip
stdtrit = define("stdtrit", from_scipy("stdtrit"),
                 lambda xp, g, t, df, p: -g * (xp.stdtr_derivative(df, t) / _student_density(xp, df, t)),
                 lambda xp, g, t, df, p: g / _student_density(xp, df, t), saves=("t", "df"), domain=((0.5, 5), (0.6, 0.9)),
                 reference="scipy.special:stdtrit", doc="Return the t with stdtr(x, t) = y.")  # fmt: skip


def _poisson_quantile(u: Any, lam: Any) -> Any:
    """Return the smallest k at which the Poisson distribution function with mean ``lam`` is at least u."""
    u, lam = real_arrays(u, lam)
    special = special_module("pdtrik")
    with np.errstate(all="ignore"):
        k = np.ceil(special.pdtrik(u, lam))
        before = np.maximum(k - 1, 0)
        k = np.where(special.pdtr(before, lam) >= u, before, k)  # correct k where pdtrik was rounded up
    return np.where((lam == 0) | (special.pdtr(0, lam) >= u), 0.0, k)


poisson_quantile = define("poisson_quantile", in_float32(_poisson_quantile), None, None, domain=((0.01, 0.99), (0.5, 30)),
                          reason="it is piecewise constant", reference="formula", doc="Return the number of events that the fraction x of Poisson draws of mean y do not exceed.")  # fmt: skip
