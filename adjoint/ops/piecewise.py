"""Elementwise functions with corners and steps: sign, rounding, remainders, choice.

Where an op is constant, its gradient is zero; it is not an error to request it.  At corners: the gradients of
``abs`` and ``relu`` at 0 are 0, equal arguments of ``maximum`` and similar ops share the gradient, and on its
bounds ``clip`` passes the gradient to ``x``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, overload

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.define import UFUNCS, define
from adjoint.core.namespace import Namespace, Value, rec
from adjoint.core.native import NotNative, Primitives, View
from adjoint.core.shapes import number
from adjoint.core.tensor import Tensor
from adjoint.errors import DTypeError, InputError, ShapeError
from adjoint.ops.complex_parts import imag, real
from adjoint.ops.half import in_float32, keeping_half, wide
from adjoint.ops.shared_docs import argument_doc
from adjoint.tracebacks import hide
from adjoint.typing import Array, ArrayLike

__all__ = [
    "abs", "absolute", "around", "ceil", "clip", "copysign", "divmod", "fabs", "fix", "floor", "floor_divide",
    "fmax", "fmin", "fmod", "frexp", "heaviside", "maximum", "minimum", "mod", "modf", "nan_to_num",
    "nextafter", "relu", "remainder", "rint", "round", "sign", "spacing", "trunc", "where",
]  # fmt: skip


def _nan_to_num(x: Array, nan: float, posinf: float | None, neginf: float | None) -> Any:
    if x.dtype.kind != "V":
        return np.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf)
    largest = _largest(x.dtype)
    high, low = largest if posinf is None else posinf, -largest if neginf is None else neginf
    return np.nan_to_num(wide(x), nan=nan, posinf=high, neginf=low).astype(x.dtype)


def _largest(dtype: Any) -> float:
    """Return the largest finite number of a dtype; ``np.finfo`` does not know bfloat16."""
    return float(np.nextafter(dtype.type(np.inf), dtype.type(0)))


def _native_nan_to_num(
    xp: Primitives, x: View, nan: float, posinf: float | None, neginf: float | None
) -> View:
    if x.dtype.kind != "f":
        return x
    top = _largest(xp.half or x.dtype)
    high, low = top if posinf is None else posinf, -top if neginf is None else neginf
    inner = xp.where(x == math.inf, high, xp.where(x == -math.inf, low, x))
    return xp.where(x != x, nan, inner)


def zero_rule(xp: Namespace, g: Value, *_: Value, **__: Value) -> Any:
    """Return zeros like ``g``: the derivative rule of an op whose derivative is zero everywhere."""
    return xp.zeros_like(g)


# Sign and size ---------------------------------------------------------------------------------


def _direction(xp: Namespace, x: Value) -> Any:
    """Return x / |x|, and 0 at 0: the gradient of |x| for real and complex numbers."""
    return x / xp.where(x == 0, math.inf, xp.abs(x)) if x.dtype.kind == "c" else xp.sign(x)


def _abs_jvp(xp: Namespace, t: Value, y: Value, x: Value) -> Any:
    along = t * xp.conj(_direction(xp, x))
    return xp.real(along) if x.dtype.kind == "c" else along


def _real_sign(x: Array) -> Any:
    if np.asarray(x).dtype.kind == "c":  # the sign would be x / |x|, which is not piecewise constant
        raise TypeError("only real numbers are supported; ad.sign supports complex numbers too")
    return np.sign(x)


abs = define("abs", np.abs, lambda xp, g, y, x: g * _direction(xp, x), jvp=_abs_jvp, saves="x",
             ufunc=np.absolute, holomorphic=False, domain=(0.3, 2),
             method=("abs", "__abs__"), lower=True, doc="Return the absolute value; its gradient at 0 is 0.")  # fmt: skip
define("sign", _real_sign, zero_rule, selects=True, domain=(0.3, 2),
       method=True, lower=lambda xp, x: xp.where(x > 0, 1, xp.where(x < 0, -1, xp.where(x == 0, 0, x))), doc="The sign of real numbers: -1, 0 or 1.")  # fmt: skip
copysign = define("copysign", np.copysign,
                  lambda xp, g, z, x, y: g * xp.sign(x) * xp.copysign(1, y),
                  zero_rule, saves="xy", selects=True, domain=((0.3, 2), (0.3, 2)),
                  lower=True, doc="Return |x| with the sign of y; the gradient of y is 0.")  # fmt: skip
nextafter = define("nextafter", np.nextafter, lambda xp, g, z, x, y: g, zero_rule, domain=((0.3, 1), (1.5, 2)),
                   doc="Return the next floating-point number after x towards y; the gradient of y is 0.")  # fmt: skip
spacing = define("spacing", np.spacing, None, reason="it is piecewise constant",
                 doc="Return the distance between x and the next floating-point number.")  # fmt: skip
define("binary_exponent", lambda x: np.frexp(x)[1], None, reason="it is piecewise constant",
       reference="numpy", doc="The exponent n with |x| = m · 2**n and 0.5 ≤ m < 1.")  # fmt: skip
define("fraction", lambda x: np.modf(x)[0], lambda xp, g, y, x: g, domain=(0.1, 0.9),
       reference="numpy", lower=lambda xp, x: xp.where(xp.isinf(x), xp.copysign(0.0, x), xp.copysign(x - xp.trunc(x), x)), doc="The fractional part, with the sign of x.")  # fmt: skip

# Rounding and division with remainder ----------------------------------------------------------


def _native_round(xp: Primitives, x: View, decimals: int) -> View:
    if x.dtype.kind != "f":
        if decimals >= 0 and x.dtype.kind in "iu":
            return x
        raise NotNative("round of integers has no native form")
    if decimals == 0:
        return xp.rint(x)
    power = 10.0 ** max(decimals, -decimals)
    return xp.rint(x * power) / power if decimals > 0 else xp.rint(x / power) * power


floor = define("floor", np.floor, zero_rule, selects=True, domain=(0.1, 0.9),
               method=True, lower=True, doc="Round down; the gradient is 0.")  # fmt: skip
ceil = define("ceil", np.ceil, zero_rule, selects=True, domain=(0.1, 0.9),
              method=True, lower=True, doc="Round up; the gradient is 0.")  # fmt: skip
trunc = define("trunc", np.trunc, zero_rule, selects=True, domain=(0.1, 0.9),
               method=True, lower=True, doc="Round towards 0; the gradient is 0.")  # fmt: skip
rint = define("rint", np.rint, zero_rule, selects=True, domain=(0.1, 0.4),
              lower=True, doc="Round to the nearest integer, halves to even; the gradient is 0.")  # fmt: skip
define("round", in_float32(lambda x, decimals: np.round(x, decimals)), zero_rule, params=("decimals",), selects=True,
       method=True, lower=_native_round, doc="The values rounded to a number of decimals.")  # fmt: skip
floor_divide = define("floor_divide", operator.floordiv, zero_rule, zero_rule, ufunc=np.floor_divide, selects=True,
                      domain=((0.6, 0.9), (1.1, 1.9)), method=("__floordiv__", "__rfloordiv__"), lower=True, doc="Return x / y, rounded down; the gradient is 0.")  # fmt: skip
# x - floor(x/y) y
remainder = define("remainder", operator.mod,
                   lambda xp, g, z, x, y: g,
                   lambda xp, g, z, x, y: -g * xp.floor_divide(x, y), saves="xy",
                   ufunc=np.remainder, domain=((2.1, 2.9), (1.1, 1.4)),
                   method=("__mod__", "__rmod__"), lower=True, doc="Return the remainder of x / y with the sign of y.")  # fmt: skip
# z = x - trunc(x/y) y.  The rule computes the quotient as (x - z)/y, because x/y may be rounded up to an
# integer
fmod = define("fmod", np.fmod,
              lambda xp, g, z, x, y: g,
              lambda xp, g, z, x, y: -g * xp.rint((x - xp.fmod(x, y)) / y), saves="xy",
              domain=((2.1, 2.9), (1.1, 1.4)), lower=True, doc="Return the remainder of x / y with the sign of x.")  # fmt: skip

# Choice ----------------------------------------------------------------------------------------


def _winner(xp: Namespace, g: Value, loses: Value, ties: Value) -> Any:
    """Return the gradient of one of the two arguments of ``maximum``, ``minimum`` and similar ops.

    It is 0 where the other argument is selected (``loses``), half of g where the arguments are equal
    (``ties``), and g elsewhere.
    """
    return xp.where(ties, 0.5 * g, xp.where(loses, 0, g))


_BITS = {np.dtype(np.float32): np.int32, np.dtype(np.float64): np.int64}


def _where(c: Any, x: Any, y: Any) -> Any:
    """Return ``np.where(c, x, y)``.

    Large float arrays are combined by bit operations, which are 4 to 8 times as fast.
    """
    if type(c) is np.ndarray and c.size > 500 and c.dtype == bool:
        dtype = x.dtype if type(x) is np.ndarray else getattr(y, "dtype", None)
        bits = _BITS.get(dtype)
        if bits is not None and all(
            v.dtype == dtype if type(v) is np.ndarray else type(v) in (int, float) for v in (x, y)
        ):
            mask = np.negative(c.view(np.int8), dtype=bits)  # all bits are 1 where c is true, otherwise 0
            if type(y) is int and y == 0:
                return (x.view(bits) & mask).view(dtype)
            if type(x) is int and x == 0:
                return (y.view(bits) & ~mask).view(dtype)
            first, second = (np.asarray(v, dtype).view(bits) for v in (x, y))
            return (((first ^ second) & mask) ^ second).view(dtype)
    if type(y) is float:
        y = _beside(y, x)
    elif type(x) is float:
        x = _beside(x, y)
    return np.where(c, x, y)


def _beside(number: float, other: Array) -> Any:
    """Return a Python number to combine with the array ``other``: as bfloat16 if ``other`` is bfloat16.

    NumPy returns float64 for arithmetic of a Python number with a bfloat16 array.
    """
    is_bfloat16 = isinstance(other, (np.ndarray, np.generic)) and other.dtype.kind == "V"
    return np.asarray(number, other.dtype) if is_bfloat16 else number


define("where", _where,
       None,
       lambda xp, g, out, c, x, y: xp.where(c, g, 0),
       lambda xp, g, out, c, x, y: xp.where(c, 0, g), saves="c", selects=True, literals=True,
       domain=("bool", (-2, 2), (-2, 2)), lower=lambda xp, c, x, y: xp.select(c, x, y), sparsity="choice", doc="x where a condition is true, otherwise y.")  # fmt: skip
maximum = define("maximum", np.maximum,
                 lambda xp, g, z, x, y: _winner(xp, g, x < y, x == y),
                 lambda xp, g, z, x, y: _winner(xp, g, y < x, x == y),
                 saves="xy", selects=True, domain=((-2, -0.1), (0.1, 2)),
                 method=True, lower=True, doc="Return the larger one of x and y, NaN if one is NaN; equal arguments share the gradient.")  # fmt: skip
minimum = define("minimum", np.minimum,
                 lambda xp, g, z, x, y: _winner(xp, g, x > y, x == y),
                 lambda xp, g, z, x, y: _winner(xp, g, y > x, x == y),
                 saves="xy", selects=True, domain=((-2, -0.1), (0.1, 2)),
                 method=True, lower=True, doc="Return the smaller one of x and y, NaN if one is NaN; equal arguments share the gradient.")  # fmt: skip
# fmax and fmin return the other argument if one is NaN, so the gradient of the NaN is 0
fmax = define("fmax", np.fmax,
              lambda xp, g, z, x, y: _winner(xp, g, (x < y) | (xp.isnan(x) & ~xp.isnan(y)), x == y),
              lambda xp, g, z, x, y: _winner(xp, g, (y < x) | (xp.isnan(y) & ~xp.isnan(x)), x == y),
              saves="xy", selects=True, domain=((-2, -0.1), (0.1, 2)),
              lower=True, doc="Return the larger one of x and y, ignoring NaN; equal arguments share the gradient.")  # fmt: skip
fmin = define("fmin", np.fmin,
              lambda xp, g, z, x, y: _winner(xp, g, (x > y) | (xp.isnan(x) & ~xp.isnan(y)), x == y),
              lambda xp, g, z, x, y: _winner(xp, g, (y > x) | (xp.isnan(y) & ~xp.isnan(x)), x == y),
              saves="xy", selects=True, domain=((-2, -0.1), (0.1, 2)),
              lower=True, doc="Return the smaller one of x and y, ignoring NaN; equal arguments share the gradient.")  # fmt: skip
relu = define("relu", keeping_half(lambda x: np.maximum(x, 0)), lambda xp, g, y, x: xp.where(y > 0, g, 0),
              saves="y", selects=True, method=True, reference="formula", lower=lambda xp, x: xp.maximum(x, 0), doc="Return max(x, 0); its gradient at 0 is 0.", domain=(0.1, 2))  # fmt: skip
heaviside = define("heaviside", np.heaviside,
                   zero_rule,
                   lambda xp, g, z, x, y: xp.where(x == 0, g, 0), saves="x", selects=True, domain=((0.3, 2), (-2, 2)),
                   lower=lambda xp, x, y: xp.where(x != x, x, xp.where(x == 0, y, xp.where(x < 0, 0.0, 1.0))), doc="Return 0 where x < 0, y where x = 0, and 1 where x > 0.")  # fmt: skip


def _native_clip(xp: Primitives, x: View, lo: View, hi: View) -> View:
    """Return x limited to the range lo … hi.

    If both bounds are numbers, a zero that equals a bound keeps its sign.
    """
    if all(getattr(b, "size", 1) == 1 for b in (lo, hi)):
        return xp.minimum(hi, xp.maximum(lo, x))  # if operands are equal, the result is the second
    return xp.minimum(xp.maximum(x, lo), hi)


# the gradient goes to x inside of the bounds and on them, and to the nearer bound outside
define("clip", in_float32(np.clip),
       lambda xp, g, out, x, lo, hi: xp.where((x >= lo) & (x <= hi), g, 0),
       lambda xp, g, out, x, lo, hi: xp.where((x < lo) & (lo <= hi), g, 0),
       lambda xp, g, out, x, lo, hi: xp.where((x > hi) | (lo > hi), g, 0),
       saves=("x", "lo", "hi"), selects=True, domain=((-0.9, 0.9), (-2, -1), (1, 2)),
       method=True, lower=_native_clip, doc="x limited to the interval from lo to hi; on the bounds the gradient goes to x.")  # fmt: skip
define("nan_to_num", _nan_to_num,
       lambda xp, g, y, x, nan, posinf, neginf: xp.where(xp.isfinite(x), g, 0),
       saves="x", params=("nan", "posinf", "neginf"), selects=True, lower=_native_nan_to_num, doc="x with NaN and infinities replaced by numbers.")  # fmt: skip


# Public functions ------------------------------------------------------------------------------


@argument_doc
def sign(x: ArrayLike) -> Tensor:
    """Return the sign of each element: -1, 0 or 1, and ``x / |x|`` for complex numbers.

    The gradient is zero for real numbers.

    >>> ad.sign(ad.tensor([-2.0, 0.0, 3.0]))
    tensor([-1.,  0.,  1.], dtype=float64)
    """
    x = asarray(x)
    return _direction(rec, x)


@overload
def where(condition: ArrayLike) -> tuple[Tensor, ...]: ...
@overload
def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike) -> Tensor: ...
@argument_doc
def where(
    condition: ArrayLike, x: ArrayLike | None = None, y: ArrayLike | None = None
) -> Tensor | tuple[Tensor, ...]:
    """Return elements of ``x`` where a condition is true, and of ``y`` elsewhere.

    The gradient of the branch that was not selected is 0, even where that branch is not finite.

    Parameters
    ----------
    condition : array_like of bool
        The condition.
    x : array_like, optional
        The values where the condition is true.
    y : array_like, optional
        The values elsewhere.

    Returns
    -------
    Tensor or tuple of Tensor
        The selected elements; without ``x`` and ``y`` the indices, as ``nonzero`` returns them.

    Raises
    ------
    InputError
        If only one of ``x`` and ``y`` is given.

    >>> x = ad.tensor([0.0, 4.0], requires_grad=True)
    >>> ad.where(x > 0, ad.sqrt(x), 0.0).sum().backward()
    >>> x.grad
    tensor([0.  , 0.25], dtype=float64)
    """
    try:
        if x is None and y is None:
            return asarray(condition).nonzero()
        if x is None or y is None:
            raise InputError(
                "where: pass both x and y to choose between them, or neither to get the positions."
            )
        return rec.where(condition, x, y)
    except Exception as error:
        hide(error)
        raise


@argument_doc
def clip(x: ArrayLike, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Tensor:
    """Limit the elements to an interval.

    Inside of the interval and on its bounds, the gradient goes to ``x``; outside, it goes to the bound.

    Parameters
    ----------
    min : array_like, optional
        The lower bound; none by default.
    max : array_like, optional
        The upper bound; none by default.

    Raises
    ------
    DTypeError
        If ``x`` is complex.

    >>> x, top = (ad.tensor(v, requires_grad=True) for v in ([1.0, 5.0], 3.0))
    >>> ad.clip(x, 0, top).sum().backward()
    >>> x.grad, top.grad
    (tensor([1., 0.], dtype=float64), tensor(1., dtype=float64))
    """
    x = asarray(x)
    if x.dtype.kind == "c":
        raise DTypeError("clip: x must be real, but is complex.  Clip x.real and x.imag, or abs(x).")
    if min is None and max is None:
        return x
    if x.dtype.kind == "f":
        low = -np.inf if min is None else min
        high = np.inf if max is None else max
        return rec.clip(x, low, high)
    if min is not None:
        x = maximum(x, min)
    return x if max is None else minimum(x, max)


@argument_doc
def round(x: ArrayLike, decimals: int = 0) -> Tensor:
    """Round to a number of decimals; halves are rounded to even.

    The gradient is zero.

    Parameters
    ----------
    decimals : int, optional
        The number of decimals.

    >>> ad.round(ad.tensor([0.5, 1.5, 1.26]), 0)
    tensor([0., 2., 1.], dtype=float64)
    """
    x = asarray(x)
    try:
        digits = operator.index(decimals)
    except TypeError:
        raise InputError(f"round: decimals must be an integer, but got {decimals!r}.") from None
    if digits == 0:
        return x if x.dtype.kind in "biu" else rint(x)
    return rec.round(x, decimals=digits)


@argument_doc
def divmod(x: ArrayLike, y: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return the quotient, rounded down, and the remainder: ``x = quotient * y + remainder``.

    Parameters
    ----------
    x : array_like
        The dividend.
    y : array_like
        The divisor.

    Returns
    -------
    tuple of Tensor
        The quotient and the remainder.

    >>> ad.divmod(ad.tensor(7.0), 2)
    (tensor(3., dtype=float64), tensor(1., dtype=float64))
    """
    return floor_divide(x, y), remainder(x, y)


def reflected_divmod(y: Any, x: Any) -> tuple[Tensor, Tensor]:
    """Return ``divmod(x, y)`` for a tensor ``y``: the method ``__rdivmod__``."""
    return divmod(x, y)


def whole_part(name: str) -> Callable[[Tensor], int]:
    """Return the method of tensors that ``math.floor``, ``math.ceil`` or ``math.trunc`` (``name``) calls.

    The method returns an int, and raises unless the tensor has one element.
    """

    def convert(x: Tensor) -> int:
        if x.size != 1:
            raise ShapeError(
                f"math.{name}: the tensor must have one element, but has shape {x.shape}.\n"
                f"  Use ad.{name}(x) for all elements."
            )
        return getattr(math, name)(float(x))

    return convert


@argument_doc
def modf(x: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return the fractional and the integral part of each element.

    Returns
    -------
    tuple of Tensor
        The fraction, to which the gradient flows, and the integral part.

    >>> ad.modf(ad.tensor(2.5))
    (tensor(0.5, dtype=float64), tensor(2., dtype=float64))
    """
    x = asarray(x)
    return rec.fraction(x), trunc(x)


@argument_doc
def frexp(x: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return m and n with ``x = m * 2**n`` and ``0.5 <= |m| < 1``.

    Returns
    -------
    tuple of Tensor
        The mantissa m, to which the gradient flows, and the exponent n.

    >>> ad.frexp(ad.tensor(6.0))
    (tensor(0.75, dtype=float64), tensor(3, dtype=int32))
    """
    x = asarray(x)
    n = rec.binary_exponent(x)
    return rec.ldexp(x, -n), n


@argument_doc
def nan_to_num(
    x: ArrayLike, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Replace NaN and infinities by numbers.

    The gradient is zero at the replaced elements.

    Parameters
    ----------
    nan : float, optional
        The replacement of NaN.
    posinf : float, optional
        The replacement of infinity; by default the largest finite number of the dtype.
    neginf : float, optional
        The replacement of -infinity; by default the most negative finite number of the dtype.

    >>> ad.nan_to_num(ad.tensor([float("nan"), 1.0]))
    tensor([0., 1.], dtype=float64)
    """
    x = asarray(x)
    if x.dtype.kind == "c":
        parts = (nan_to_num(part(x), nan, posinf, neginf) for part in (real, imag))
        return next(parts) + 1j * next(parts)
    given = (("nan", nan), ("posinf", posinf), ("neginf", neginf))
    numbers = {name: None if v is None else number("nan_to_num", name, v) for name, v in given}
    return rec.nan_to_num(x, **numbers)


absolute, fabs, fix, mod, around = abs, abs, trunc, remainder, round

UFUNCS[np.sign] = sign
UFUNCS[np.fabs] = abs
UFUNCS[np.divmod] = divmod
UFUNCS[np.modf] = modf
UFUNCS[np.frexp] = frexp
