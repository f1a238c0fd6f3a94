"""Exponential, sine, cosine and Fresnel integrals, Dawson's integral, elliptic integrals, Lambert's W, hypergeometric functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.define import define
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError
from adjoint.ops.half import in_float32, wide
from adjoint.ops.scipy_forward import from_scipy, of_order, real_arrays, special_module
from adjoint.ops.shared_docs import argument_doc
from adjoint.ops.special_order import of_each_order, whole_order
from adjoint.typing import ArrayLike

__all__ = [
    "dawsn", "ellipe", "ellipk", "exp1", "expi", "expn", "fresnel", "hyp1f1", "hyp2f1", "lambertw", "sici",
]  # fmt: skip

exp1 = define("exp1", from_scipy("exp1"), lambda xp, g, y, x: -g * (xp.exp(-x) / x), saves="x", domain=(0.2, 3),
              reference="scipy.special:exp1", doc="Return the exponential integral ∫ₓ^∞ exp(-t)/t dt.")  # fmt: skip
expi = define("expi", from_scipy("expi"), lambda xp, g, y, x: g * (xp.exp(x) / x), saves="x", domain=(0.2, 3),
              reference="scipy.special:expi", doc="Return the exponential integral, the principal value of ∫ exp(t)/t dt from -∞ to x.")  # fmt: skip
define("expn", of_order("expn"),
       lambda xp, g, y, x, n: -g * (xp.expn(x, n=n - 1) if n else y * (1 + 1 / x)), saves="yx", params=("n",),
       reference="scipy.special:expn", doc="The generalized exponential integral ∫₁^∞ exp(-xt)/tⁿ dt.")  # fmt: skip
define("sine_integral", in_float32(lambda x: special_module("sici").sici(*real_arrays(x))[0]),
       lambda xp, g, y, x: g * xp.sinc(x * (1 / math.pi)), saves="x",
       reference="scipy", doc="∫₀ˣ sin(t)/t dt.")  # fmt: skip
define("cosine_integral", in_float32(lambda x: special_module("sici").sici(*real_arrays(x))[1]),
       lambda xp, g, y, x: g * (xp.cos(x) / x), saves="x", domain=(0.5, 3),
       reference="scipy", doc="-∫ₓ^∞ cos(t)/t dt.")  # fmt: skip
define("fresnel_sine", in_float32(lambda x: special_module("fresnel").fresnel(*real_arrays(x))[0]),
       lambda xp, g, y, x: g * xp.sin((math.pi / 2) * x * x), saves="x",
       reference="scipy", doc="∫₀ˣ sin(πt²/2) dt.")  # fmt: skip
define("fresnel_cosine", in_float32(lambda x: special_module("fresnel").fresnel(*real_arrays(x))[1]),
       lambda xp, g, y, x: g * xp.cos((math.pi / 2) * x * x), saves="x",
       reference="scipy", doc="∫₀ˣ cos(πt²/2) dt.")  # fmt: skip
dawsn = define("dawsn", from_scipy("dawsn"), lambda xp, g, y, x: g * xp.dawsn_derivative(x, order=1), saves="x",
               reference="scipy.special:dawsn", doc="Return Dawson's integral exp(-x²) ∫₀ˣ exp(t²) dt.")  # fmt: skip


def _dawsn_derivative(x: Any, order: int) -> Any:
    """Return the derivative of order ``order`` of Dawson's integral D(x).

    It is computed by the recurrence D⁽ⁿ⁺¹⁾ = -2 (x D⁽ⁿ⁾ + n D⁽ⁿ⁻¹⁾).  For large x, where the recurrence
    cancels, the asymptotic series is differentiated.
    """
    (x,) = real_arrays(x)
    dtype = x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)
    x = x.astype(np.float64)
    near = np.clip(x, -7, 7)
    below, value = special_module("dawsn").dawsn(near), np.ones_like(near)
    value = 1 - 2 * near * below
    for n in range(1, order):
        below, value = value, -2 * (near * value + n * below)
    far = np.abs(x) > 7
    if far.any():
        # Σₖ (2k - 1)!! / (2ᵏ⁺¹ x²ᵏ⁺¹)
        large = np.where(far, x, 7.0)
        total, factor = np.zeros_like(large), 0.5
        for k in range(26):
            total += factor * math.prod(-2.0 * k - 1 - i for i in range(order)) * large ** (-2.0 * k)
            factor *= (2 * k + 1) / 2
        value = np.where(far, total / large ** (order + 1.0), value)
    return value.astype(dtype)


define("dawsn_derivative", in_float32(_dawsn_derivative),
       lambda xp, g, y, x, order: g * xp.dawsn_derivative(x, order=order + 1), saves="x", params=("order",),
       reference="formula", doc="A derivative of Dawson's integral.")  # fmt: skip

# Hypergeometric functions: the derivative of each one is the same function with other parameters --

define("hyp2f1", of_order("hyp2f1"),
       lambda xp, g, y, x, a, b, c: g * (xp.hyp2f1(x, a=a + 1, b=b + 1, c=c + 1) * (a * b / c)), saves="x", params=("a", "b", "c"),
       reference="scipy", doc="Gauss' hypergeometric function.")  # fmt: skip
define("hyp1f1", of_order("hyp1f1"),
       lambda xp, g, y, x, a, b: g * (xp.hyp1f1(x, a=a + 1, b=b + 1) * (a / b)), saves="x", params=("a", "b"),
       reference="scipy", doc="Kummer's hypergeometric function.")  # fmt: skip
ellipk = define("ellipk", from_scipy("ellipk"), lambda xp, g, y, x: g * (xp.hyp2f1(x, a=1.5, b=1.5, c=2.0) * (math.pi / 8)), saves="x",
                domain=(-2, 0.8), reference="scipy.special:ellipk", doc="Return the complete elliptic integral of the first kind, ∫ (1 - x sin²t)^(-1/2) dt.")  # fmt: skip
ellipe = define("ellipe", from_scipy("ellipe"), lambda xp, g, y, x: g * (xp.hyp2f1(x, a=0.5, b=1.5, c=2.0) * (-math.pi / 8)), saves="x",
                domain=(-2, 0.8), reference="scipy.special:ellipe", doc="Return the complete elliptic integral of the second kind, ∫ (1 - x sin²t)^(1/2) dt.")  # fmt: skip


def _lambertw(x: Any, k: int) -> Any:
    x = np.asarray(x)
    w = special_module("lambertw").lambertw(wide(x), k)
    single = x.dtype.itemsize <= 4 if x.dtype.kind not in "biuc" else x.dtype == np.complex64
    return w.astype(np.complex64) if single else w


define("lambertw", _lambertw, lambda xp, g, y, x, k: g * (xp.exp(-y) / (1 + y)), saves="y", params=("k",),
       reference="scipy", doc="Lambert's function: the w with w exp(w) = x.")  # fmt: skip


# Public functions ------------------------------------------------------------------------------


@argument_doc
def expn(n: int, x: ArrayLike) -> Tensor:
    """Return the generalized exponential integral ∫₁^∞ exp(-xt)/tⁿ dt.

    Parameters
    ----------
    n : int
        The order, to which no gradient flows.

    Raises
    ------
    ArgumentError
        If ``n`` is negative.

    >>> round(ad.special.expn(2, 1.0).item(), 12)
    0.148495506776
    """
    return of_each_order(rec.expn, n, x, lambda n: whole_order("expn", n, 0))


@argument_doc
def sici(x: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return the sine and cosine integrals.

    Returns
    -------
    tuple of Tensor
        ∫₀ˣ sin(t)/t dt and -∫ₓ^∞ cos(t)/t dt.

    >>> [round(y.item(), 12) for y in ad.special.sici(1.0)]
    [0.946083070367, 0.337403922901]
    """
    x = asarray(x)
    return rec.sine_integral(x), rec.cosine_integral(x)


@argument_doc
def fresnel(x: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return the Fresnel integrals.

    Returns
    -------
    tuple of Tensor
        The integrals from 0 to ``x`` of sin(πt²/2) and of cos(πt²/2).

    >>> [round(y.item(), 12) for y in ad.special.fresnel(1.0)]
    [0.43825914739, 0.779893400377]
    """
    x = asarray(x)
    return rec.fresnel_sine(x), rec.fresnel_cosine(x)


def _number(op: str, name: str, value: Any) -> float:
    if isinstance(value, Tensor) or np.ndim(value):
        raise InputError(
            f"{op}: {name} must be a number, not a tensor or an array: adjoint has no derivative with "
            f"respect to {name}."
        )
    return float(value)


@argument_doc
def hyp2f1(a: float, b: float, c: float, z: ArrayLike) -> Tensor:
    """Return Gauss' hypergeometric function ₂F₁(a, b; c; z).

    Parameters
    ----------
    a : float
        The first parameter, to which no gradient flows.
    b : float
        The second parameter, to which no gradient flows.
    c : float
        The third parameter, to which no gradient flows.
    z : array_like
        The argument.

    Raises
    ------
    InputError
        If a parameter is not a number.

    >>> round(ad.special.hyp2f1(1, 1, 2, 0.5).item(), 12)  # -log(1 - z) / z
    1.38629436112
    """
    a, b, c = (_number("hyp2f1", n, v) for n, v in zip("abc", (a, b, c), strict=True))
    return rec.hyp2f1(asarray(z), a=a, b=b, c=c)


@argument_doc
def hyp1f1(a: float, b: float, x: ArrayLike) -> Tensor:
    """Return Kummer's hypergeometric function ₁F₁(a; b; x).

    Parameters
    ----------
    a : float
        The first parameter, to which no gradient flows.
    b : float
        The second parameter, to which no gradient flows.

    Raises
    ------
    InputError
        If a parameter is not a number.

    >>> round(ad.special.hyp1f1(2, 2, 1.0).item(), 12)  # exp(x)
    2.718281828459
    """
    return rec.hyp1f1(asarray(x), a=_number("hyp1f1", "a", a), b=_number("hyp1f1", "b", b))


@argument_doc
def lambertw(z: ArrayLike, k: int = 0) -> Tensor:
    """Return Lambert's W function: the solution w of w · exp(w) = z.

    Parameters
    ----------
    z : array_like
        The argument.
    k : int, optional
        The branch.

    Returns
    -------
    Tensor
        The complex values.  They are real for real arguments of at least -1/e and the branches 0 and -1.

    >>> round(ad.special.lambertw(1.0).real.item(), 12)
    0.56714329041
    """
    return rec.lambertw(asarray(z), k=whole_order("lambertw", k))
