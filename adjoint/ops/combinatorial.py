"""Ratios of gamma functions: ``rgamma``, ``poch``, ``binom``, ``comb``, ``factorial``; and the zeta function."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.define import define
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError
from adjoint.ops.half import in_float32
from adjoint.ops.reduce import floating
from adjoint.ops.scipy_forward import from_scipy, real_arrays, special_module
from adjoint.ops.shared_docs import argument_doc
from adjoint.typing import ArrayLike

__all__ = ["binom", "comb", "factorial", "gammasgn", "poch", "rgamma", "zeta"]

gammasgn = define("gammasgn", from_scipy("gammasgn"), None, reason="it is piecewise constant",
                  reference="scipy.special:gammasgn", doc="Return the sign of the gamma function.")  # fmt: skip
poch = define("poch", from_scipy("poch"),
              lambda xp, g, z, x, y: -g * (z * xp.polygamma_gap(x, y, n=0)),
              lambda xp, g, z, x, y: g * (z * xp.digamma(x + y)), saves="zxy", domain=((0.5, 3), (0.5, 3)),
              reference="scipy.special:poch", doc="Return the rising factorial Γ(x + y) / Γ(x).")  # fmt: skip
binom = define("binom", from_scipy("binom"),
               lambda xp, g, z, x, y: -g * (z * xp.polygamma_gap(x - y + 1, y, n=0)),
               lambda xp, g, z, x, y: g * (z * (xp.digamma(x - y + 1) - xp.digamma(y + 1))), saves="zxy", domain=((3, 6), (0.5, 2)),
               reference="scipy.special:binom", doc="Return the binomial coefficient of x over y, for real numbers.")  # fmt: skip

# B₂ₖ / (2k)!
_BERNOULLI = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600)


def _times(p: list[Any], q: list[Any]) -> list[Any]:
    """Return the product of two polynomials (lists of coefficients), truncated to their degree."""
    return [sum(p[i] * q[k - i] for i in range(k + 1)) for k in range(len(p))]


def _power(base: Any, s: Any, order: int) -> list[Any]:
    """Return the Taylor coefficients of base^(-s) as a function of s, at s, up to degree ``order``."""
    log = -np.log(base)
    size = base**-s
    return [size * log**i / math.factorial(i) for i in range(order + 1)]


def _zeta_derivative(s: Any, q: Any, order: int) -> Any:
    """Return the derivative of order ``order``, with respect to s, of the Hurwitz zeta function Σₖ (q + k)⁻ˢ.

    The first terms are summed one by one, the rest by the Euler-Maclaurin formula.
    """
    s, q = real_arrays(s, q)
    dtype = np.result_type(s, q)
    dtype = dtype if dtype.kind == "f" else np.dtype(np.float64)
    s, q = np.broadcast_arrays(s.astype(np.float64), q.astype(np.float64))
    with np.errstate(all="ignore"):
        steps = 14
        total = sum(_power(q + k, s, order)[order] for k in range(steps))
        far = q + steps
        front = _power(far, s, order)
        integral = [(-1.0) ** i / (s - 1) ** (i + 1) for i in range(order + 1)]
        total = total + far * _times(front, integral)[order] + front[order] / 2
        rising: list[Any] = [np.ones_like(s)] + [np.zeros_like(s)] * order
        for j, c in enumerate(_BERNOULLI):
            for r in range(max(2 * j - 1, 0), 2 * j + 1):  # the rising factorial s (s + 1) … (s + 2j)
                rising = _times(rising, [s + r, np.ones_like(s), *[np.zeros_like(s)] * order][: order + 1])
            total = total + c * _times(front, rising)[order] / far ** (2 * j + 1)
        value = total * math.factorial(order)
    return np.where((s > 1) & (q > 0), value, np.nan).astype(dtype)


def _hurwitz_zeta(x: Any, y: Any) -> Any:
    x, y = real_arrays(x, y)
    np.broadcast(x, y)  # raises NumPy's error, which adjoint explains; SciPy's error is a different one
    return special_module("zeta").zeta(x, y)


define("hurwitz_zeta", in_float32(_hurwitz_zeta),
       lambda xp, g, z, x, y: g * xp.zeta_derivative(x, y, order=1),
       lambda xp, g, z, x, y: -g * (x * xp.hurwitz_zeta(x + 1, y)), saves="xy", domain=((1.5, 4), (0.5, 3)),
       reference="scipy.special:zeta", doc="Hurwitz' zeta function.")  # fmt: skip
define("zeta_derivative", in_float32(_zeta_derivative),
       lambda xp, g, z, x, y, order: g * xp.zeta_derivative(x, y, order=order + 1),
       lambda xp, g, z, x, y, order: -g * (
           x * xp.zeta_derivative(x + 1, y, order=order)
           + order * (xp.zeta_derivative(x + 1, y, order=order - 1) if order > 1 else xp.hurwitz_zeta(x + 1, y))),
       saves="xy", params=("order",), reference="formula", doc="A derivative of Hurwitz' zeta function in its exponent.")  # fmt: skip


@argument_doc
def zeta(x: ArrayLike, q: ArrayLike | None = None) -> Tensor:
    """Return the Riemann zeta function, or the Hurwitz zeta function Σₖ (q + k)⁻ˣ.

    Gradients flow to both arguments, for ``x`` > 1 and ``q`` > 0.

    Parameters
    ----------
    x : array_like
        The exponent.
    q : array_like, optional
        The first term; by default 1.

    >>> round(ad.special.zeta(2.0).item(), 12)  # π²/6
    1.644934066848
    """
    return rec.hurwitz_zeta(asarray(x), asarray(1.0) if q is None else asarray(q))


@argument_doc
def rgamma(x: ArrayLike) -> Tensor:
    """Return 1 / Γ(x), which is 0 at 0 and at negative integers; its derivatives are finite there.

    >>> float(ad.grad(ad.special.rgamma)(-2.0))
    2.0
    """
    x = floating("rgamma", x)
    left = x < 0.5
    # 1 / Γ(x) = Γ(1 - x) sin(πx) / π (reflection), which is smooth at the poles of Γ
    safe = rec.where(left, x, 0.0)
    nearest = rec.rint(safe)
    sign = 1 - 2 * rec.remainder(nearest, 2.0)
    wave = rec.sin((safe - nearest) * math.pi) * sign
    return rec.where(left, rec.gamma(1 - safe) * wave * (1 / math.pi), 1 / rec.gamma(rec.where(left, 1.0, x)))


@argument_doc
def factorial(n: ArrayLike, exact: bool = False) -> Tensor:
    """Return the factorial n! = Γ(n + 1) of real numbers; 0 where ``n`` is negative.

    Parameters
    ----------
    n : array_like
        The argument.
    exact : bool, optional
        Must be False, because exact integers have no derivative.

    Raises
    ------
    InputError
        If ``exact`` is true.

    >>> ad.special.factorial(4.0)
    tensor(24., dtype=float64)
    """
    if exact:
        raise InputError(
            "factorial: exact=True is not supported, because exact integers have no derivative.  Use "
            "math.factorial."
        )
    x = floating("factorial", n)
    return rec.where(x < 0, 0.0, rec.gamma(rec.where(x < 0, 0.0, x) + 1))


@argument_doc
def comb(N: ArrayLike, k: ArrayLike, *, exact: bool = False, repetition: bool = False) -> Tensor:
    """Return the number of combinations of N things taken k at a time, for real numbers.

    Parameters
    ----------
    N : array_like
        The number of things.
    k : array_like
        The number of things that are taken.
    exact : bool, optional
        Must be False, because exact integers have no derivative.
    repetition : bool, optional
        Whether things may be taken several times.

    Returns
    -------
    Tensor
        The number; 0 where ``k`` is negative or greater than ``N``, or ``N`` negative.

    Raises
    ------
    InputError
        If ``exact`` is true.

    >>> ad.special.comb(5.0, 2.0)
    tensor(10., dtype=float64)
    """
    if exact:
        raise InputError(
            "comb: exact=True is not supported, because exact integers have no derivative.  Use math.comb."
        )
    n, k = floating("comb", N), floating("comb", k)
    if repetition:
        n = n + k - 1
    possible = rec.logical_and(rec.logical_and(k <= n, n >= 0), k >= 0)
    return rec.where(possible, rec.binom(rec.where(possible, n, 1.0), rec.where(possible, k, 1.0)), 0.0)
