"""The namespace ``ad.special``: error functions, gamma functions, entropies, and functions of other modules.

Values come from SciPy (the extra ``scipy``), which is imported at the first call; ``erf``,
``expit``, ``log_expit``, ``logit``, ``xlogy``, ``xlog1py`` and ``entr`` need only NumPy.  If the derivative
of a function is another special function, that function is an op, too, so that derivatives of every order are
exact: ``gammaln`` → ``digamma`` → ``polygamma``, ``log_ndtr`` → ``erfcx`` → its derivatives.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.define import define
from adjoint.core.namespace import Namespace, Value, rec
from adjoint.core.native import floats, primitive
from adjoint.core.tensor import Tensor
from adjoint.ops import bessel, combinatorial, divergences, incomplete, integrals
from adjoint.ops.bessel import *
from adjoint.ops.combinatorial import *
from adjoint.ops.divergences import *
from adjoint.ops.elementwise import sigmoid, sinc
from adjoint.ops.erf import erf as _erf
from adjoint.ops.half import in_float32, keeping_half
from adjoint.ops.incomplete import *
from adjoint.ops.integrals import *
from adjoint.ops.scipy_forward import from_scipy, real_arrays, special_module
from adjoint.ops.shared_docs import argument_doc
from adjoint.ops.special_order import of_each_order, whole_order
from adjoint.typing import Array, ArrayLike

__all__ = [
    "beta", "betaln", "digamma", "entr", "erf", "erfc", "erfcinv", "erfcx", "erfinv", "expit", "gamma",
    "gammaln", "log_expit", "log_ndtr", "logit", "multigammaln", "ndtr", "ndtri", "ndtri_exp", "polygamma",
    "psi", "sinc", "xlog1py", "xlogy", *bessel.__all__, *combinatorial.__all__, *divergences.__all__,
    *incomplete.__all__, *integrals.__all__,
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)


# The error function and the normal distribution ------------------------------------------------

ROOT2, ROOT_PI, ROOT_2PI = math.sqrt(2.0), math.sqrt(math.pi), math.sqrt(2 * math.pi)


def _erf_of_any(x: Any) -> Any:
    return special_module("erf").erf(x) if np.asarray(x).dtype.kind == "c" else _erf(x)


def _erfc(x: Any) -> Any:
    return special_module("erfc").erfc(x)


erf = define("erf", in_float32(_erf_of_any), lambda xp, g, y, x: g * (xp.exp(-x * x) * (2 / ROOT_PI)), saves="x",
             reference="scipy.special:erf", lower=primitive("erf", np.exp), doc="Return the error function 2/√π ∫₀ˣ exp(-t²) dt, to about one unit in the last place.")  # fmt: skip
erfc = define("erfc", in_float32(_erfc), lambda xp, g, y, x: g * (xp.exp(-x * x) * (-2 / ROOT_PI)), saves="x",
              reference="scipy.special:erfc", lower=primitive("erfc", np.exp), doc="Return 1 - erf(x), accurate where erf is near 1.")  # fmt: skip
erfinv = define("erfinv", from_scipy("erfinv"), lambda xp, g, y, x: g * (xp.exp(xp.square(y)) * (ROOT_PI / 2)), saves="y",
                domain=(-0.8, 0.8), reference="scipy.special:erfinv", doc="Return the inverse of erf.")  # fmt: skip
erfcinv = define("erfcinv", from_scipy("erfcinv"), lambda xp, g, y, x: g * (xp.exp(xp.square(y)) * (-ROOT_PI / 2)), saves="y",
                 domain=(0.3, 1.7), reference="scipy.special:erfcinv", doc="Return the inverse of erfc.")  # fmt: skip
ndtr = define("ndtr", from_scipy("ndtr"), lambda xp, g, y, x: g * (xp.exp(-0.5 * x * x) / ROOT_2PI), saves="x",
              reference="scipy.special:ndtr", lower=primitive("ndtr", np.exp), doc="Return the normal distribution function.")  # fmt: skip
ndtri = define("ndtri", from_scipy("ndtri"), lambda xp, g, y, x: g * (xp.exp(0.5 * xp.square(y)) * ROOT_2PI), saves="y",
               domain=(0.1, 0.9), reference="scipy.special:ndtri", doc="Return the inverse of the normal distribution function.")  # fmt: skip


def _mills(xp: Namespace, x: Value) -> Any:
    """Return φ(x)/Φ(x), the density of the normal distribution divided by its distribution function.

    For x < 0 the formula is √(2/π) / erfcx(-x/√2), and for very negative x it is -x - 1/x + 2/x³.  Each
    formula is used where the others, or their derivatives, underflow or overflow.
    """
    right, far = x > 0, x < -1e5
    usual = ROOT2 / ROOT_PI / xp.erfcx(xp.where(xp.logical_or(right, far), 0, x) * (-1 / ROOT2))
    positive = xp.where(right, xp.minimum(x, 40.0), 0)  # above 40 the result and its derivatives are 0
    usual = xp.where(right, xp.exp(-0.5 * positive * positive) / (ROOT_2PI * xp.ndtr(positive)), usual)
    large = xp.where(far, x, -1)
    w = 1 / large
    return xp.where(far, -large - w * (1 - 2 * w * w), usual)


log_ndtr = define("log_ndtr", from_scipy("log_ndtr"), lambda xp, g, y, x: g * _mills(xp, x), saves="x",
                  reference="scipy.special:log_ndtr", doc="Return the logarithm of the normal distribution function, accurate in the far tail.")  # fmt: skip
ndtri_exp = define("ndtri_exp", from_scipy("ndtri_exp"), lambda xp, g, y, x: g / _mills(xp, y), saves="y", domain=(-3, -0.1),
                   reference="scipy.special:ndtri_exp", doc="Return the t with log_ndtr(t) = x.")  # fmt: skip
erfcx = define("erfcx", from_scipy("erfcx"), lambda xp, g, y, x: g * xp.erfcx_derivative(x, order=1), saves="x",
               reference="scipy.special:erfcx", doc="Return exp(x²) erfc(x), which decays like 1/x.")  # fmt: skip


def _erfcx_derivative(x: Array, order: int) -> Any:
    """Return the derivative of order n = ``order`` of erfcx.

    It is (-2)ⁿ n! yₙ(x) with yₙ = exp(x²) iⁿerfc(x), where iⁿerfc is the repeated integral of erfc.  The
    recurrence 2n yₙ = yₙ₋₂ - 2x yₙ₋₁ starts from y₋₁ = 2/√π and y₀ = erfcx.  For large x it cancels (2x erfcx
    - 2/√π loses all digits at 1e8).  There it is computed from a large n downwards, and the result is scaled
    so that y₋₁ is correct (Miller's algorithm).
    """
    (x,) = real_arrays(x)
    dtype = x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)
    x = x.astype(np.float64)
    scale = (-2.0) ** order * math.factorial(order)
    edge = 2.0
    near = np.minimum(x, edge)
    below, value = 2 / ROOT_PI, special_module("erfcx").erfcx(near)
    for n in range(1, order + 1):
        below, value = value, (below - 2 * near * value) / (2 * n)
    far = x > edge
    if far.any():
        large = np.minimum(x[far], 1e150)  # for larger x, the derivative is a multiple of x^(-n-1)
        # with 37 = log(1e16), the arbitrary first values cause no error (Gautschi 1961, for x ≥ edge)
        start = math.ceil((math.sqrt(order) + 37 / (2 * ROOT2 * edge)) ** 2) + 2
        # each step divides by 2x + 2, the factor by which the numbers grow, so that they stay finite
        unit = 2 * large + 2
        above, here, kept = np.zeros_like(large), np.ones_like(large), np.zeros_like(large)
        for n in range(start, -1, -1):  # yₙ₋₁ from yₙ and yₙ₊₁
            if n == order:
                kept = here
            above, here = here / unit, (2 * (n + 1) * above + 2 * large * here) / unit
            kept = kept / unit if n <= order else kept
        value = np.asarray(value)
        value[far] = kept / here * (2 / ROOT_PI) * (large / x[far]) ** (order + 1)
    return (value * scale).astype(dtype)


define("erfcx_derivative", in_float32(_erfcx_derivative),
       lambda xp, g, y, x, order: g * xp.erfcx_derivative(x, order=order + 1), saves="x", params=("order",),
       reference="formula", doc="A derivative of exp(x²) erfc(x).")  # fmt: skip

# Gamma functions -------------------------------------------------------------------------------

gamma = define("gamma", from_scipy("gamma"), lambda xp, g, y, x: g * (y * xp.digamma(x)), saves="yx",
               domain=(0.5, 3), reference="scipy.special:gamma", doc="Return the gamma function.")  # fmt: skip
gammaln = define("gammaln", from_scipy("gammaln"), lambda xp, g, y, x: g * xp.digamma(x), saves="x",
                 domain=(0.5, 3), reference="scipy.special:gammaln", doc="Return the logarithm of |Γ(x)|.")  # fmt: skip
digamma = define("digamma", in_float32(lambda x: _polygamma(x, 0)), lambda xp, g, y, x: g * xp.polygamma(x, n=1), saves="x",
                 domain=(0.5, 3), reference="scipy.special:digamma", doc="Return the derivative of log Γ(x).")  # fmt: skip
define("polygamma", in_float32(lambda x, n: _polygamma(x, n)), lambda xp, g, y, x, n: g * xp.polygamma(x, n=n + 1),
       saves="x", params=("n",), reference="scipy.special:polygamma", doc="The n-th derivative of digamma.")  # fmt: skip
betaln = define("betaln", from_scipy("betaln"),
                lambda xp, g, z, x, y: g * _gap(xp, x, y),
                lambda xp, g, z, x, y: g * _gap(xp, y, x), saves="xy",
                domain=((0.5, 3), (0.5, 3)), reference="scipy.special:betaln", doc="Return the logarithm of |B(x, y)|.")  # fmt: skip
beta = define("beta", from_scipy("beta"),
              lambda xp, g, z, x, y: g * (z * _gap(xp, x, y)),
              lambda xp, g, z, x, y: g * (z * _gap(xp, y, x)), saves="zxy",
              domain=((0.5, 3), (0.5, 3)), reference="scipy.special:beta", doc="Return the beta function Γ(x) Γ(y) / Γ(x + y).")  # fmt: skip


define("polygamma_gap", in_float32(lambda x, y, n: _polygamma_gap(x, y, n)),
       lambda xp, g, z, x, y, n: g * xp.polygamma_gap(x, y, n=n + 1),
       lambda xp, g, z, x, y, n: -g * xp.polygamma(x + y, n=n + 1), saves="xy", params=("n",),
       reference="formula", doc="ψₙ(x) - ψₙ(x + y), where ψₙ is the n-th derivative of digamma.")  # fmt: skip


def _gap(xp: Namespace, x: Value, y: Value) -> Any:
    return xp.polygamma_gap(x, y, n=0)


def _polygamma(x: Array, n: int) -> Any:
    """Return ψₙ(x) = (-1)ⁿ⁺¹ n! ζ(n + 1, x), the n-th derivative of digamma.

    For x < 0 the reflection formula is used: ψₙ(x) = (-1)ⁿ ψₙ(1 - x) - π dⁿcot(πx)/dxⁿ.
    """
    (x,) = real_arrays(x)
    dtype = x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)
    x = x.astype(np.float64)
    special = special_module("polygamma" if n else "digamma")
    left = x < (0.0 if n else -0.6)  # above -0.6, SciPy's digamma is accurate
    right = np.where(left, 1 - x, x)
    value = (
        (-1.0) ** (n + 1) * math.factorial(n) * special.zeta(n + 1, right) if n else special.digamma(right)
    )
    if left.any():
        value = np.where(
            left, (-1.0) ** n * value - math.pi * _cot_derivative(np.where(left, x, 0.5), n), value
        )
    return value.astype(dtype)


def _cot_derivative(x: Array, n: int) -> Any:
    """Return dⁿcot(πx)/dxⁿ, or NaN at integers.

    It is a polynomial in c = cot(πx), because dc/dx = -π (1 + c²).
    """
    polynomial = np.polynomial.Polynomial([0.0, 1.0])
    for _ in range(n):
        polynomial = polynomial.deriv() * np.polynomial.Polynomial([-math.pi, 0.0, -math.pi])
    part = x - np.rint(x)
    size = np.abs(part)
    with np.errstate(divide="ignore", over="ignore"):
        c = np.where(size > 0.25, np.tan(math.pi * (0.5 - size)), 1 / np.tan(math.pi * size)) * np.sign(part)
        value = np.full_like(c, polynomial.coef[-1])
        for coefficient in polynomial.coef[-2::-1]:
            value = value * c + coefficient
    return np.where(part == 0, np.nan, value)


# B₂ₖ / (2k)!, and the smallest argument for which the Euler-Maclaurin series is exact
_BERNOULLI = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600)
_ASYMPTOTIC = 14


def _polygamma_gap(x: Array, y: Array, n: int) -> Any:
    """Return ψₙ(x) - ψₙ(x + y), without cancellation.

    It is (-1)ⁿ⁺¹ n! Σₖ d(x + k) with d(x) = x⁻ˢ - (x + y)⁻ˢ and s = n + 1.  The first terms are summed one by
    one; the rest is an integral and corrections (Euler-Maclaurin).
    """
    x, y = real_arrays(x, y)
    dtype = np.result_type(x, y)
    dtype = dtype if dtype.kind == "f" else np.dtype(np.float64)
    x, y = np.broadcast_arrays(x.astype(np.float64), y.astype(np.float64))
    inside = (x > 0) & (x + y > 0)
    a, b = np.where(inside, x, 1), np.where(inside, y, 1)
    s = n + 1
    steps = _ASYMPTOTIC + n

    def gap(power: Any, x: Any) -> Any:
        """Return x⁻ᵖ - (x + b)⁻ᵖ."""
        return -np.expm1(-power * np.log1p(b / x)) * x**-power

    def in_front(values: Any) -> Any:
        """Return the vector ``values`` with one axis of length 1 appended for each axis of x.

        It then broadcasts against x, and sums over the first axis are sums over the vector.
        """
        return np.asarray(values, np.float64).reshape(-1, *(1,) * a.ndim)

    with np.errstate(over="ignore", under="ignore"):
        total = gap(s, a + in_front(range(steps))).sum(0)
        far = a + steps
        total += (gap(n, far) / n if n else np.log1p(b / far)) + gap(s, far) / 2
        factors = [c * math.prod(range(s, s + 2 * j + 1)) for j, c in enumerate(_BERNOULLI)]
        total += (in_front(factors) * gap(in_front(range(s + 1, s + 2 * len(factors), 2)), far)).sum(0)
    value = (-1.0) ** (n + 1) * math.factorial(n) * total
    if not inside.all():
        with np.errstate(invalid="ignore"):
            value = np.where(inside, value, _polygamma(x, n) - _polygamma(x + y, n))
    return value.astype(dtype)


# Logarithms and entropies ----------------------------------------------------------------------


def _xlogy(x: Array, y: Array) -> Any:
    zero = np.logical_and(np.equal(x, 0), np.logical_not(np.isnan(y)))
    return np.where(zero, 0, x * np.log(np.where(zero, 1, y)))


def _xlog1py(x: Array, y: Array) -> Any:
    zero = np.logical_and(np.equal(x, 0), np.logical_not(np.isnan(y)))
    return np.where(zero, 0, x * np.log1p(np.where(zero, 0, y)))


def _entr(x: Array) -> Any:
    x = np.asarray(x)
    inside = x > 0
    return np.where(inside, -x * np.log(np.where(inside, x, 1)), np.where(x < 0, -np.inf, x * 0))


def _logit(x: Array) -> Any:
    x = np.asarray(x)
    middle = np.abs(x - 0.5) < 0.25  # near 1/2, log(x / (1 - x)) is inaccurate
    safe = np.where(middle, x, 0.5)
    return np.where(middle, 2 * np.arctanh(2 * safe - 1), np.log(x) - np.log1p(-x))


def _share(xp: Namespace, x: Value, y: Value) -> Any:
    """Return x / y, but 0 instead of NaN where both are 0."""
    return x / xp.where(xp.logical_and(x == 0, y == 0), 1, y)


def _log_unless(xp: Namespace, x: Value, y: Value) -> Any:
    """Return log(y), but 0 where x is 0 and y is not positive: there x log(y) is defined as 0."""
    flat = xp.logical_and(x == 0, y <= 0)
    return xp.where(flat, 0, xp.log(xp.where(flat, 1, y)))


xlogy = define("xlogy", in_float32(_xlogy),
               lambda xp, g, z, x, y: g * _log_unless(xp, x, y),
               lambda xp, g, z, x, y: g * _share(xp, x, y), saves="xy", domain=((-2, 2), (0.5, 3)),
               reference="scipy.special:xlogy", lower=lambda xp, x, y: xp.where(xp.logical_and(x == 0, y == y), 0.0, x * xp.log(y)), doc="Return x log(y), and 0 where x is 0.")  # fmt: skip
xlog1py = define("xlog1py", in_float32(_xlog1py),
                 lambda xp, g, z, x, y: g * xp.where(xp.logical_and(x == 0, y <= -1), 0, xp.log1p(y)),
                 lambda xp, g, z, x, y: g * _share(xp, x, y + 1), saves="xy", domain=((-2, 2), (-0.5, 3)),
                 reference="scipy.special:xlog1py", lower=lambda xp, x, y: xp.where(xp.logical_and(x == 0, y == y), 0.0, x * xp.log1p(y)), doc="Return x log(1 + y), and 0 where x is 0.")  # fmt: skip
entr = define("entr", in_float32(_entr), lambda xp, g, y, x: -g * (xp.log(x) + 1), saves="x", domain=(0.5, 3),
              reference="scipy.special:entr", lower=lambda xp, x: xp.where(floats(x) == 0, x, xp.where(x < 0, -math.inf, -x * xp.log(xp.where(x < 0, 1, x)))), doc="Return -x log(x), 0 at 0, and -inf for negative numbers.")  # fmt: skip
logit = define("logit", in_float32(_logit), lambda xp, g, y, x: g / xp.gap_product(x, low=0.0, high=1.0), saves="x", domain=(0.2, 0.8),
               reference="scipy.special:logit", lower=lambda xp, x: xp.where(floats(x) < 0.25, xp.log(x / (1 - x)), xp.log1p((2 * x - 1) / (1 - x))), doc="Return log(x / (1 - x)), the inverse of expit.")  # fmt: skip
log_expit = define("log_expit", keeping_half(lambda x: -np.logaddexp(0, -np.asarray(x))), lambda xp, g, y, x: g * xp.sigmoid(-x),
                   saves="x", reference="scipy.special:log_expit", lower=lambda xp, x: -(xp.maximum(-floats(x), 0) + xp.log1p(xp.exp(-xp.abs(x)))), doc="Return the logarithm of expit, accurate in both tails.")  # fmt: skip
expit = sigmoid

# Public functions ------------------------------------------------------------------------------


@argument_doc
def polygamma(n: int, x: ArrayLike) -> Tensor:
    """Return the n-th derivative of the digamma function.

    Parameters
    ----------
    n : int
        The order, to which no gradient flows.

    Raises
    ------
    ArgumentError
        If ``n`` is negative.

    >>> round(ad.special.polygamma(1, 1.0).item(), 12)  # π²/6
    1.644934066848
    """
    return of_each_order(rec.polygamma, n, x, lambda n: whole_order("polygamma", n, 0))


@argument_doc
def multigammaln(a: ArrayLike, d: int) -> Tensor:
    """Return the logarithm of the multivariate gamma function.

    Parameters
    ----------
    a : array_like
        The argument.
    d : int
        The dimension.

    Raises
    ------
    ArgumentError
        If ``d`` is less than 1.

    >>> round(ad.special.multigammaln(3.0, 2).item(), 12)
    1.550194993958
    """
    d = whole_order("multigammaln", d, 1)
    x = asarray(a)
    total: Any = d * (d - 1) / 4 * math.log(math.pi)
    for j in range(d):
        total = total + gammaln(x - j / 2)
    return total


psi = digamma
