"""Comparisons, logic, bit operations and integer functions.

They are piecewise constant: their results do not require grad.  If a gradient is requested through them
alone, ``NoGradientError`` is raised.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.define import define
from adjoint.core.docstrings import shared_with
from adjoint.core.namespace import rec
from adjoint.core.native import NotNative, Primitives, View, floats
from adjoint.core.tensor import Tensor
from adjoint.ops.shared_docs import truth_doc
from adjoint.typing import ArrayLike

__all__ = [
    "allclose", "array_equal", "bitwise_and", "bitwise_count", "bitwise_invert", "bitwise_left_shift",
    "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "equal", "gcd", "greater",
    "greater_equal", "invert", "isclose", "iscomplex", "isfinite", "isinf", "isnan", "isneginf", "isposinf",
    "isreal", "lcm", "left_shift", "less", "less_equal", "logical_and", "logical_not", "logical_or",
    "logical_xor", "not_equal", "right_shift", "signbit",
]  # fmt: skip

_comparison_doc = truth_doc.extended("""
    Parameters
    ----------
    x : array_like
        The numbers.
    y : array_like
        The numbers to compare with.
    rtol : float, optional
        The relative tolerance.
    atol : float, optional
        The absolute tolerance.
    equal_nan : bool, optional
        Whether NaNs are equal.
    """)


def _steps(name: str, forward: Callable[..., Any], arity: int, **facts: Any) -> Callable[..., Any]:
    """Define the op ``name`` with ``arity`` arguments and no derivative; return its eager function.

    The result of the op does not require grad.  ``facts`` are further arguments of ``define``; by default, the
    op is a primitive of native code.
    """
    return define(
        name, forward, *(None,) * arity, **{"lower": True, **facts}, reason="it is piecewise constant"
    )


equal = _steps("equal", np.equal, 2, method="__eq__", doc="Return whether x and y are equal.")
not_equal = _steps("not_equal", np.not_equal, 2, method="__ne__", doc="Return whether x and y differ.")
less = _steps("less", np.less, 2, method="__lt__", doc="Return whether x < y.")
less_equal = _steps("less_equal", np.less_equal, 2, method="__le__", doc="Return whether x ≤ y.")
greater = _steps("greater", np.greater, 2, method="__gt__", doc="Return whether x > y.")
greater_equal = _steps("greater_equal", np.greater_equal, 2, method="__ge__", doc="Return whether x ≥ y.")

logical_and = _steps("logical_and", np.logical_and, 2, doc="Return whether x and y are both true.")
logical_or = _steps("logical_or", np.logical_or, 2, doc="Return whether x or y is true.")
logical_xor = _steps("logical_xor", np.logical_xor, 2, doc="Return whether exactly one of x and y is true.")
logical_not = _steps("logical_not", np.logical_not, 1, doc="Return whether x is false.")

bitwise_and = _steps("bitwise_and", operator.and_, 2, ufunc=np.bitwise_and, domain="int",
                     method=("__and__", "__rand__"), doc="Return the bits that x and y both have.")  # fmt: skip
bitwise_or = _steps("bitwise_or", operator.or_, 2, ufunc=np.bitwise_or, domain="int",
                    method=("__or__", "__ror__"), doc="Return the bits that x or y has.")  # fmt: skip
bitwise_xor = _steps("bitwise_xor", operator.xor, 2, ufunc=np.bitwise_xor, domain="int",
                     method=("__xor__", "__rxor__"), doc="Return the bits that exactly one of x and y has.")  # fmt: skip
bitwise_invert = _steps("bitwise_invert", operator.invert, 1, ufunc=np.invert, domain="int",
                        method="__invert__", doc="Return x with all bits inverted.")  # fmt: skip
bitwise_left_shift = _steps("bitwise_left_shift", operator.lshift, 2, ufunc=np.left_shift, domain="int",
                            method=("__lshift__", "__rlshift__"), doc="Shift the bits of x to the left by y.")  # fmt: skip
bitwise_right_shift = _steps("bitwise_right_shift", operator.rshift, 2, ufunc=np.right_shift, domain="int",
                             method=("__rshift__", "__rrshift__"), doc="Shift the bits of x to the right by y.")  # fmt: skip
bitwise_count = _steps("bitwise_count", np.bitwise_count, 1, domain="int",
                       doc="Count the bits of |x| that are 1.")  # fmt: skip
gcd = _steps("gcd", np.gcd, 2, domain="int", lower=False,
             doc="Return the greatest common divisor of |x| and |y|.")  # fmt: skip
lcm = _steps("lcm", np.lcm, 2, domain="int", lower=False,
             doc="Return the least common multiple of |x| and |y|.")  # fmt: skip

isnan = _steps("isnan", np.isnan, 1, method=True, doc="Return whether x is NaN.")
isinf = _steps("isinf", np.isinf, 1, method=True, lower=lambda xp, x: xp.abs(floats(x)) == math.inf,
               doc="Return whether x is infinite.")  # fmt: skip
isfinite = _steps("isfinite", np.isfinite, 1, method=True, lower=lambda xp, x: xp.abs(floats(x)) < math.inf,
                  doc="Return whether x is neither NaN nor infinite.")  # fmt: skip
signbit = _steps("signbit", np.signbit, 1, doc="Return whether the sign bit of x is set.")


def _native_isclose(xp: Primitives, x: View, y: View, rtol: float, atol: float, equal_nan: bool) -> View:
    x, y = xp.view(x, np.float64), xp.view(y, np.float64)
    if x.dtype.kind != "f" or y.dtype.kind != "f":
        raise NotNative("isclose of integers has no native form")
    near = xp.logical_and(xp.abs(x - y) <= atol + rtol * xp.abs(y), xp.isfinite(y))
    found = xp.logical_or(near, x == y)
    return xp.logical_or(found, xp.logical_and(x != x, y != y)) if equal_nan else found


_steps("isclose", lambda x, y, rtol, atol, equal_nan: np.isclose(x, y, rtol, atol, equal_nan), 2,
       params=("rtol", "atol", "equal_nan"), lower=_native_isclose, doc="Whether numbers are equal within a tolerance.")  # fmt: skip


# Public functions, and NumPy's names -----------------------------------------------------------


@_comparison_doc
def isclose(
    x: ArrayLike, y: ArrayLike, rtol: ArrayLike = 1e-5, atol: ArrayLike = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Return, for each element, whether ``|x - y| ≤ atol + rtol · |y|``.

    >>> ad.isclose(ad.tensor([1.0, 2.0]), [1.0 + 1e-9, 2.1])
    tensor([ True, False], dtype=bool)
    """
    rtol, atol = (t.numpy() if isinstance(t, Tensor) else t for t in (rtol, atol))
    return rec.isclose(x, y, rtol=rtol, atol=atol, equal_nan=bool(equal_nan))


@shared_with(isclose)
def allclose(
    x: ArrayLike, y: ArrayLike, rtol: ArrayLike = 1e-5, atol: ArrayLike = 1e-8, equal_nan: bool = False
) -> bool:
    """Return whether all elements are equal within a tolerance.

    Returns
    -------
    bool
        Whether ``isclose`` is true everywhere.

    >>> ad.allclose(ad.tensor([1.0, 2.0]), [1.0, 2.0 + 1e-9])
    True
    """
    return bool(isclose(x, y, rtol, atol, equal_nan).all())


@shared_with(isclose)
def array_equal(x: ArrayLike, y: ArrayLike, equal_nan: bool = False) -> bool:
    """Return whether shapes and all elements are equal.

    Returns
    -------
    bool
        Whether both are equal.

    >>> ad.array_equal(ad.tensor([1.0, 2.0]), [1.0, 2.0])
    True
    """
    x, y = asarray(x), asarray(y)
    if x.shape != y.shape:
        return False
    same = equal(x, y)
    return bool((same | (isnan(x) & isnan(y)) if equal_nan else same).all())


@_comparison_doc
def isposinf(x: ArrayLike) -> Tensor:
    """Return, for each element, whether it is positive infinity.

    >>> ad.isposinf([float("inf"), float("-inf"), 1.0])
    tensor([ True, False, False], dtype=bool)
    """
    return equal(asarray(x), np.inf)


@_comparison_doc
def isneginf(x: ArrayLike) -> Tensor:
    """Return, for each element, whether it is negative infinity.

    >>> ad.isneginf([float("inf"), float("-inf"), 1.0])
    tensor([False,  True, False], dtype=bool)
    """
    return equal(asarray(x), -np.inf)


@_comparison_doc
def isreal(x: ArrayLike) -> Tensor:
    """Return, for each element, whether its imaginary part is zero.

    >>> ad.isreal([1j, 1 + 0j])
    tensor([False,  True], dtype=bool)
    """
    return equal(rec.imag(asarray(x)), 0)


@_comparison_doc
def iscomplex(x: ArrayLike) -> Tensor:
    """Return, for each element, whether its imaginary part is not zero.

    >>> ad.iscomplex([1j, 1 + 0j])
    tensor([ True, False], dtype=bool)
    """
    return not_equal(rec.imag(asarray(x)), 0)


bitwise_not = invert = bitwise_invert
left_shift, right_shift = bitwise_left_shift, bitwise_right_shift
