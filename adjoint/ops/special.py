"""Special functions, ``ad.special``: error functions, gamma functions, entropies, Bessel functions.

Values come from SciPy (``pip install 'adjoint-ad[scipy]'``), which is imported at the first call; ``erf``,
``expit``, ``log_expit``, ``logit``, ``xlogy``, ``xlog1py`` and ``entr`` need NumPy alone.  Where the derivative
of a function is another special function, that one is an op, too, so that every order is exact:
``gammaln`` → ``digamma`` → ``polygamma``, ``log_ndtr`` → ``erfcx`` → its derivatives.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.define import define
from adjoint.core.namespace import Namespace, Value, rec
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError, MissingExtraError
from adjoint.ops.elementwise import sigmoid, sinc
from adjoint.ops.erf import erf as _erf
from adjoint.ops.half import in_float32
from adjoint.typing import Array, ArrayLike

__all__ = [
    "beta",
    "betaln",
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfcinv",
    "erfcx",
    "erfinv",
    "expit",
    "gamma",
    "gammaln",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "iv",
    "ive",
    "jv",
    "log_expit",
    "log_ndtr",
    "logit",
    "multigammaln",
    "ndtr",
    "ndtri",
    "polygamma",
    "psi",
    "sinc",
    "xlog1py",
    "xlogy",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def _scipy(name: str) -> Callable[..., Any]:
    """Return a forward function that calls SciPy's function; SciPy is imported at the first call."""
    found: list[Callable[..., Any]] = []

    def forward(*args: Any) -> Any:
        if not found:
            found.append(getattr(_load(name), name))
        return found[0](*_real(*args))

    return in_float32(forward)


def _real(*args: Any) -> Any:
    """Return arguments as arrays; raise for complex ones, as the derivatives are those of real functions."""
    arrays = tuple(map(np.asarray, args))
    if any(a.dtype.kind == "c" for a in arrays):
        raise TypeError("it is for real numbers")
    return arrays


def _load(name: str) -> Any:
    try:
        import scipy.special
    except ImportError:
        raise MissingExtraError(f"ad.special.{name}", "SciPy", "scipy") from None
    return scipy.special


# The error function and the normal distribution ------------------------------------------------

ROOT2, ROOT_PI, ROOT_2PI = math.sqrt(2.0), math.sqrt(math.pi), math.sqrt(2 * math.pi)

erf = define("erf", in_float32(_erf), lambda xp, g, y, x: g * (xp.exp(-x * x) * (2 / ROOT_PI)), saves="x",
             reference="scipy.special:erf", doc="Return the error function 2/√π ∫₀ˣ exp(-t²) dt, to about one unit in the last place.")  # fmt: skip
erfc = define("erfc", _scipy("erfc"), lambda xp, g, y, x: g * (xp.exp(-x * x) * (-2 / ROOT_PI)), saves="x",
              reference="scipy.special:erfc", doc="Return 1 - erf(x), accurate where erf is near 1.")  # fmt: skip
erfinv = define("erfinv", _scipy("erfinv"), lambda xp, g, y, x: g * (xp.exp(xp.square(y)) * (ROOT_PI / 2)), saves="y",
                domain=(-0.8, 0.8), reference="scipy.special:erfinv", doc="Return the inverse of erf.")  # fmt: skip
erfcinv = define("erfcinv", _scipy("erfcinv"), lambda xp, g, y, x: g * (xp.exp(xp.square(y)) * (-ROOT_PI / 2)), saves="y",
                 domain=(0.3, 1.7), reference="scipy.special:erfcinv", doc="Return the inverse of erfc.")  # fmt: skip
ndtr = define("ndtr", _scipy("ndtr"), lambda xp, g, y, x: g * (xp.exp(-0.5 * x * x) / ROOT_2PI), saves="x",
              reference="scipy.special:ndtr", doc="Return the normal distribution function.")  # fmt: skip
ndtri = define("ndtri", _scipy("ndtri"), lambda xp, g, y, x: g * (xp.exp(0.5 * xp.square(y)) * ROOT_2PI), saves="y",
               domain=(0.1, 0.9), reference="scipy.special:ndtri", doc="Return the inverse of the normal distribution function.")  # fmt: skip


def _mills(xp: Namespace, x: Value) -> Any:
    """φ(x)/Φ(x): √(2/π) / erfcx(-x/√2) left of 0, and far there -x - 1/x + 2/x³.

    Each form is right where the others, or their derivatives, under- or overflow.
    """
    right, far = x > 0, x < -1e5
    usual = ROOT2 / ROOT_PI / xp.erfcx(xp.where(xp.logical_or(right, far), 0, x) * (-1 / ROOT2))
    positive = xp.where(right, xp.minimum(x, 40.0), 0)  # beyond it is 0, with all its derivatives
    usual = xp.where(right, xp.exp(-0.5 * positive * positive) / (ROOT_2PI * xp.ndtr(positive)), usual)
    large = xp.where(far, x, -1)
    w = 1 / large
    return xp.where(far, -large - w * (1 - 2 * w * w), usual)


log_ndtr = define("log_ndtr", _scipy("log_ndtr"), lambda xp, g, y, x: g * _mills(xp, x), saves="x",
                  reference="scipy.special:log_ndtr", doc="Return the logarithm of the normal distribution function, accurate in the far tail.")  # fmt: skip
erfcx = define("erfcx", _scipy("erfcx"), lambda xp, g, y, x: g * xp.erfcx_derivative(x, order=1), saves="x",
               reference="scipy.special:erfcx", doc="Return exp(x²) erfc(x), which decays like 1/x.")  # fmt: skip


def _erfcx_derivative(x: Array, order: int) -> Any:
    """The derivative of erfcx: (-2)ⁿ n! yₙ(x) with yₙ = exp(x²) iⁿerfc(x).

    2n yₙ = yₙ₋₂ - 2x yₙ₋₁ from y₋₁ = 2/√π, y₀ = erfcx.  Upwards it cancels for large x (2x erfcx - 2/√π
    loses all digits at 1e8), so there it is run downwards from far above and scaled to y₋₁ (Miller).
    """
    (x,) = _real(x)
    dtype = x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)
    x = x.astype(np.float64)
    scale = (-2.0) ** order * math.factorial(order)
    edge = 2.0
    near = np.minimum(x, edge)
    below, value = 2 / ROOT_PI, _load("erfcx").erfcx(near)
    for n in range(1, order + 1):
        below, value = value, (below - 2 * near * value) / (2 * n)
    far = x > edge
    if far.any():
        large = np.minimum(x[far], 1e150)  # beyond, the derivative is a multiple of x^(-n-1)
        # 37 = log(1e16): from there the error of the start is negligible (Gautschi 1961, for x ≥ edge)
        start = math.ceil((math.sqrt(order) + 37 / (2 * ROOT2 * edge)) ** 2) + 2
        # each step divides by its growth factor, 2x + 2, so that the numbers stay finite
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

gamma = define("gamma", _scipy("gamma"), lambda xp, g, y, x: g * (y * xp.digamma(x)), saves="yx",
               domain=(0.5, 3), reference="scipy.special:gamma", doc="Return the gamma function.")  # fmt: skip
gammaln = define("gammaln", _scipy("gammaln"), lambda xp, g, y, x: g * xp.digamma(x), saves="x",
                 domain=(0.5, 3), reference="scipy.special:gammaln", doc="Return the logarithm of |Γ(x)|.")  # fmt: skip
digamma = define("digamma", in_float32(lambda x: _polygamma(x, 0)), lambda xp, g, y, x: g * xp.polygamma(x, n=1), saves="x",
                 domain=(0.5, 3), reference="scipy.special:digamma", doc="Return the derivative of log Γ(x).")  # fmt: skip
define("polygamma", in_float32(lambda x, n: _polygamma(x, n)), lambda xp, g, y, x, n: g * xp.polygamma(x, n=n + 1),
       saves="x", params=("n",), reference="scipy.special:polygamma", doc="The n-th derivative of digamma.")  # fmt: skip
betaln = define("betaln", _scipy("betaln"),
                lambda xp, g, z, x, y: g * _gap(xp, x, y),
                lambda xp, g, z, x, y: g * _gap(xp, y, x), saves="xy",
                domain=((0.5, 3), (0.5, 3)), reference="scipy.special:betaln", doc="Return the logarithm of |B(x, y)|.")  # fmt: skip
beta = define("beta", _scipy("beta"),
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
    """(-1)ⁿ⁺¹ n! ζ(n + 1, x); left of 0 by reflection, (-1)ⁿ ψₙ(1 - x) - π dⁿcot(πx)/dxⁿ."""
    (x,) = _real(x)
    dtype = x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)
    x = x.astype(np.float64)
    special = _load("polygamma" if n else "digamma")
    left = x < (0.0 if n else -0.6)  # SciPy's digamma is accurate at its root, -0.504
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
    """Return dⁿcot(πx)/dxⁿ, a polynomial in c = cot(πx), as dc/dx = -π (1 + c²); NaN at integers."""
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


# B₂ₖ / (2k)!, and the argument from which the series of Euler and Maclaurin is exact
_BERNOULLI = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600)
_ASYMPTOTIC = 14


def _polygamma_gap(x: Array, y: Array, n: int) -> Any:
    """Return ψₙ(x) - ψₙ(x + y), without cancellation.

    It is (-1)ⁿ⁺¹ n! Σₖ d(x + k) with d(x) = x⁻ˢ - (x + y)⁻ˢ and s = n + 1: some terms, then their integral.
    """
    x, y = _real(x, y)
    dtype = np.result_type(x, y)
    dtype = dtype if dtype.kind == "f" else np.dtype(np.float64)
    x, y = np.broadcast_arrays(x.astype(np.float64), y.astype(np.float64))
    inside = (x > 0) & (x + y > 0)
    a, b = np.where(inside, x, 1), np.where(inside, y, 1)
    s = n + 1
    steps = _ASYMPTOTIC + n

    def gap(power: Any, x: Any) -> Any:
        """x⁻ᵖ - (x + b)⁻ᵖ."""
        return -np.expm1(-power * np.log1p(b / x)) * x**-power

    def in_front(values: Any) -> Any:
        """An axis in front of those of x, for the terms."""
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
    middle = np.abs(x - 0.5) < 0.25  # log(x / (1 - x)) would lose the digits of x - 1/2
    safe = np.where(middle, x, 0.5)
    return np.where(middle, 2 * np.arctanh(2 * safe - 1), np.log(x) - np.log1p(-x))


def _share(xp: Namespace, x: Value, y: Value) -> Any:
    """x / y, and 0 where both are 0."""
    return x / xp.where(xp.logical_and(x == 0, y == 0), 1, y)


def _log_unless(xp: Namespace, x: Value, y: Value) -> Any:
    """Return log(y), and 0 where x is 0 and y not positive: x log(y) is 0 for every y near it."""
    flat = xp.logical_and(x == 0, y <= 0)
    return xp.where(flat, 0, xp.log(xp.where(flat, 1, y)))


xlogy = define("xlogy", _xlogy,
               lambda xp, g, z, x, y: g * _log_unless(xp, x, y),
               lambda xp, g, z, x, y: g * _share(xp, x, y), saves="xy", domain=((-2, 2), (0.5, 3)),
               reference="scipy.special:xlogy", doc="Return x log(y), and 0 where x is 0.")  # fmt: skip
xlog1py = define("xlog1py", _xlog1py,
                 lambda xp, g, z, x, y: g * xp.where(xp.logical_and(x == 0, y <= -1), 0, xp.log1p(y)),
                 lambda xp, g, z, x, y: g * _share(xp, x, y + 1), saves="xy", domain=((-2, 2), (-0.5, 3)),
                 reference="scipy.special:xlog1py", doc="Return x log(1 + y), and 0 where x is 0.")  # fmt: skip
entr = define("entr", in_float32(_entr), lambda xp, g, y, x: -g * (xp.log(x) + 1), saves="x", domain=(0.5, 3),
              reference="scipy.special:entr", doc="Return -x log(x), 0 at 0, and -inf for negative numbers.")  # fmt: skip
logit = define("logit", in_float32(_logit), lambda xp, g, y, x: g / xp.gap_product(x, low=0.0, high=1.0), saves="x", domain=(0.2, 0.8),
               reference="scipy.special:logit", doc="Return log(x / (1 - x)), the inverse of expit.")  # fmt: skip
log_expit = define("log_expit", lambda x: -np.logaddexp(0, -np.asarray(x)), lambda xp, g, y, x: g * xp.logistic(-x),
                   saves="x", reference="scipy.special:log_expit", doc="Return the logarithm of expit, accurate in both tails.")  # fmt: skip
expit = sigmoid

# Bessel functions of whole order: the derivatives stay within the family ------------------------

define("iv", in_float32(lambda x, n: _bessel("iv", n, x)), lambda xp, g, y, x, n: g * (0.5 * (xp.iv(x, n=n - 1) + xp.iv(x, n=n + 1))),
       saves="x", params=("n",), reference="scipy.special:iv", doc="The modified Bessel function of the first kind.")  # fmt: skip
define("ive", in_float32(lambda x, n: _bessel("ive", n, x)),
       lambda xp, g, y, x, n: g * xp.ive_derivative(x, n=n, order=1), saves="x", params=("n",),
       reference="scipy.special:ive", doc="The modified Bessel function times exp(-|x|).")  # fmt: skip
define("ive_derivative", in_float32(lambda x, n, order: _ive_derivative(x, n, order)),
       lambda xp, g, y, x, n, order: g * xp.ive_derivative(x, n=n, order=order + 1), saves="x", params=("n", "order"),
       reference="formula", doc="A derivative of the modified Bessel function times exp(-|x|).")  # fmt: skip
define("jv", in_float32(lambda x, n: _bessel("jv", n, x)), lambda xp, g, y, x, n: g * (0.5 * (xp.jv(x, n=n - 1) - xp.jv(x, n=n + 1))),
       saves="x", params=("n",), reference="scipy.special:jv", doc="The Bessel function of the first kind.")  # fmt: skip


_FASTER = {"iv0": "i0", "iv1": "i1", "ive0": "i0e", "ive1": "i1e"}  # real, and several times as fast


def _bessel(name: str, n: int, x: Array) -> Any:
    (x,) = _real(x)
    value = _ive_derivative(x, n, 0) if name == "ive" and abs(n) > 1 else _from_zero(name, n, x)
    return value.astype(x.dtype) if x.dtype.kind == "f" else value


def _from_zero(name: str, n: int, x: Array) -> Any:
    """Return SciPy's Bessel function, and near 0, where that loses digits, two terms of the series."""
    special = _load(name)
    faster = _FASTER.get(f"{name}{abs(n)}")  # I₋ₙ = Iₙ
    if faster:
        return getattr(special, faster)(x)
    x = x.astype(np.float64)
    near = np.abs(x) < 1e-5
    half = np.where(near, x, 0) / 2
    order = abs(n)
    sign = (-1) ** order if name == "jv" and n < 0 else 1
    square = half * half * (-1 if name == "jv" else 1)
    series = sign * half**order / math.factorial(order) * (1 + square / (order + 1))
    if name == "ive":
        series = series * np.exp(-2 * np.abs(half))
    return np.where(near, series, getattr(special, name)(n, np.where(near, 1, x)))


def _ive_derivative(x: Array, n: int, order: int) -> Any:
    """Return a derivative of exp(-|x|) Iₙ(x); at 0 the mean of both sides.

    (D - 1)ᵐ Iₙ with 2 D Iₙ = Iₙ₋₁ + Iₙ₊₁ is 2⁻ᵐ times a central difference of order 2m in n, which cancels for
    large x: there the asymptotic series is differentiated, exp(-x) Iₙ(x) = Σₖ aₖ x^(-k-1/2) / √(2π).
    """
    (x,) = _real(x)
    dtype = x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)
    size = np.abs(x.astype(np.float64))
    edge = max(25.0, float(n * n))
    near = np.minimum(size, edge)
    parts = (
        (-1.0) ** j * math.comb(2 * order, j) * _from_zero("ive", n + order - j, near)
        for j in range(2 * order + 1)
    )
    value = sum(parts)
    value = np.asarray(value * 0.5**order)
    if (size > edge).any():
        far = np.maximum(size, edge)
        total, a = np.zeros_like(far), 1 / ROOT_2PI
        for k in range(30):
            # the derivative of x^(-k-1/2)
            total += a * math.prod(-k - 0.5 - m for m in range(order)) * far**-k
            a *= -(4 * n * n - (2 * k + 1) ** 2) / (8 * (k + 1))
        value = np.where(size > edge, total / np.sqrt(far) / far**order, value)
    if (n + order) % 2:
        value = value * np.sign(x)
    return value.astype(dtype)


# Public functions ------------------------------------------------------------------------------


def polygamma(n: int, x: ArrayLike) -> Tensor:
    """Return the n-th derivative of the digamma function.

    Parameters
    ----------
    n : int
        The order, to which no gradient flows.
    x : array_like
        The argument.

    Returns
    -------
    Tensor
        The derivative at ``x``.

    Raises
    ------
    ArgumentError
        If ``n`` is negative.

    Examples
    --------
    >>> import adjoint as ad
    >>> round(ad.special.polygamma(1, 1.0).item(), 12)  # π²/6
    1.644934066848
    """
    return rec.polygamma(asarray(x), n=_order("polygamma", n, 0))


def multigammaln(x: ArrayLike, d: int) -> Tensor:
    """Return the logarithm of the multivariate gamma function.

    Parameters
    ----------
    x : array_like
        The argument.
    d : int
        The dimension.

    Returns
    -------
    Tensor
        The logarithm.

    Raises
    ------
    ArgumentError
        If ``d`` is less than 1.

    Examples
    --------
    >>> import adjoint as ad
    >>> round(ad.special.multigammaln(3.0, 2).item(), 12)
    1.550194993958
    """
    d = _order("multigammaln", d, 1)
    x = asarray(x)
    total: Any = d * (d - 1) / 4 * math.log(math.pi)
    for j in range(d):
        total = total + gammaln(x - j / 2)
    return total


def iv(n: int, x: ArrayLike) -> Tensor:
    """Return the modified Bessel function of the first kind of integer order.

    Parameters
    ----------
    n : int
        The order, to which no gradient flows.
    x : array_like
        The argument.

    Returns
    -------
    Tensor
        The function at ``x``.

    Examples
    --------
    >>> import adjoint as ad
    >>> round(ad.special.iv(2, 1.0).item(), 12)
    0.135747669767
    """
    return rec.iv(asarray(x), n=_order("iv", n))


def ive(n: int, x: ArrayLike) -> Tensor:
    """Return the modified Bessel function of the first kind of integer order, times ``exp(-|x|)``.

    Parameters
    ----------
    n : int
        The order, to which no gradient flows.
    x : array_like
        The argument.

    Returns
    -------
    Tensor
        The function at ``x``.

    Examples
    --------
    >>> import adjoint as ad
    >>> round(ad.special.ive(2, 1.0).item(), 12)
    0.049938776894
    """
    return rec.ive(asarray(x), n=_order("ive", n))


def jv(n: int, x: ArrayLike) -> Tensor:
    """Return the Bessel function of the first kind of integer order.

    Parameters
    ----------
    n : int
        The order, to which no gradient flows.
    x : array_like
        The argument.

    Returns
    -------
    Tensor
        The function at ``x``.

    Examples
    --------
    >>> import adjoint as ad
    >>> round(ad.special.jv(0, 1.0).item(), 12)
    0.765197686558
    """
    return rec.jv(asarray(x), n=_order("jv", n))


def i0(x: ArrayLike) -> Tensor:
    """Return the modified Bessel function of order 0.

    Parameters
    ----------
    x : array_like
        The argument.

    Returns
    -------
    Tensor
        The function at ``x``.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.special.i0(0.0)
    tensor(1., dtype=float64)
    """
    return rec.iv(asarray(x), n=0)


def i1(x: ArrayLike) -> Tensor:
    """Return the modified Bessel function of order 1.

    Parameters
    ----------
    x : array_like
        The argument.

    Returns
    -------
    Tensor
        The function at ``x``.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.special.i1(0.0)
    tensor(0., dtype=float64)
    """
    return rec.iv(asarray(x), n=1)


def i0e(x: ArrayLike) -> Tensor:
    """Return the modified Bessel function of order 0, times ``exp(-|x|)``.

    Parameters
    ----------
    x : array_like
        The argument.

    Returns
    -------
    Tensor
        The function at ``x``.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.special.i0e(0.0)
    tensor(1., dtype=float64)
    """
    return rec.ive(asarray(x), n=0)


def i1e(x: ArrayLike) -> Tensor:
    """Return the modified Bessel function of order 1, times ``exp(-|x|)``.

    Parameters
    ----------
    x : array_like
        The argument.

    Returns
    -------
    Tensor
        The function at ``x``.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.special.i1e(0.0)
    tensor(0., dtype=float64)
    """
    return rec.ive(asarray(x), n=1)


def _order(op: str, n: Any, least: int | None = None) -> int:
    try:
        order = operator.index(n)
    except TypeError:
        raise InputError(f"{op}: the order must be an integer, but got {n!r}.") from None
    if least is not None and order < least:
        raise ArgumentError(f"{op}: the order must be at least {least}, but got {order}.")
    return order


psi = digamma
