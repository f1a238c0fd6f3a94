"""Functions of each element: arithmetic, powers, exponentials, trigonometry, rounding, choice.

In a rule, ``x, y`` are the arguments and the next letter is the output (``y`` for one argument,
``z`` for two).  The engine un-broadcasts, casts and conjugates; a rule is the real formula.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from adjoint.core.define import UFUNCS, define
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor, asarray
from adjoint.errors import DTypeError

__all__ = [
    "abs",
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "astype",
    "atan",
    "atan2",
    "atanh",
    "ceil",
    "clip",
    "conj",
    "copy",
    "cos",
    "cosh",
    "divide",
    "exp",
    "expm1",
    "floor",
    "floor_divide",
    "imag",
    "log",
    "log1p",
    "log2",
    "log10",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "positive",
    "pow",
    "real",
    "reciprocal",
    "relu",
    "remainder",
    "rint",
    "round",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "subtract",
    "tan",
    "tanh",
    "trunc",
    "where",
]


def _zero(xp: Any, g: Any, *_: Any) -> Any:
    return xp.zeros_like(g)


define("zeros_like", np.zeros_like, None, reason="constant")

# Arithmetic ------------------------------------------------------------------------------------

add = define("add", operator.add,
             lambda xp, g, z, x, y: g,
             lambda xp, g, z, x, y: g, ufunc=np.add)  # fmt: skip
subtract = define("subtract", operator.sub,
                  lambda xp, g, z, x, y: g,
                  lambda xp, g, z, x, y: -g, ufunc=np.subtract)  # fmt: skip
multiply = define("multiply", operator.mul,
                  lambda xp, g, z, x, y: g * y,
                  lambda xp, g, z, x, y: g * x, saves="xy", ufunc=np.multiply)  # fmt: skip
# d(x/y)/dy = -x/y² = -z/y: reuse the output, x need not be saved
divide = define("divide", operator.truediv,
                lambda xp, g, z, x, y: g / y,
                lambda xp, g, z, x, y: -g * z / y, saves="zy", ufunc=np.divide,
                domain=((-2, 2), (0.5, 2)))  # fmt: skip
negative = define("negative", operator.neg, lambda xp, g, y, x: -g, ufunc=np.negative)
positive = define("positive", operator.pos, lambda xp, g, y, x: g, ufunc=np.positive)
reciprocal = define("reciprocal", np.reciprocal, lambda xp, g, y, x: -g * y * y, saves="y",
                    domain=(0.5, 2))  # fmt: skip
square = define("square", np.square, lambda xp, g, y, x: g * (2 * x), saves="x")
copy = define("copy", np.array, lambda xp, g, y, x: g,
              doc="Return a copy with its own memory.")  # fmt: skip
floor_divide = define("floor_divide", operator.floordiv, _zero, _zero, ufunc=np.floor_divide,
                      domain=((0.6, 0.9), (1.1, 1.9)))  # fmt: skip
remainder = define("remainder", operator.mod,
                   lambda xp, g, z, x, y: g,
                   lambda xp, g, z, x, y: -g * xp.floor_divide(x, y), saves="xy",
                   ufunc=np.remainder, domain=((2.1, 2.9), (1.1, 1.4)))  # fmt: skip

# Powers and roots ------------------------------------------------------------------------------


def _pow_dx(xp: Any, g: Any, z: Any, x: Any, y: Any) -> Any:
    if isinstance(y, (int, float)):  # a literal exponent is known without looking at values
        if y == 0:
            return xp.zeros_like(g)
        return g * (2 * x) if y == 2 else g * (y * x ** (y - 1))
    # at y = 0 the derivative is 0, also where 0 ** -1 is infinite
    return xp.where(y == 0, 0, g * y * x ** xp.where(y == 0, 1, y - 1))


def _pow_dy(xp: Any, g: Any, z: Any, x: Any, y: Any) -> Any:
    # d(x^y)/dy = x^y log x; at x = 0 it is 0 for y > 0, which 0 · -inf would miss
    at_zero = x == 0
    return g * z * xp.log(xp.where(at_zero, 1, x))


pow = define("pow", operator.pow, _pow_dx, _pow_dy, saves="zxy", ufunc=np.power, literals=True,
             domain=((0.5, 2), (-2, 2)))  # fmt: skip
sqrt = define("sqrt", np.sqrt, lambda xp, g, y, x: g * 0.5 / y, saves="y", domain=(0.5, 3))

# Exponentials and logarithms -------------------------------------------------------------------

exp = define("exp", np.exp, lambda xp, g, y, x: g * y, saves="y")
expm1 = define("expm1", np.expm1, lambda xp, g, y, x: g * (y + 1), saves="y")
log = define("log", np.log, lambda xp, g, y, x: g / x, saves="x", domain=(0.5, 3))
log1p = define("log1p", np.log1p, lambda xp, g, y, x: g / (x + 1), saves="x", domain=(-0.5, 3))
LN2, LN10 = float(np.log(2.0)), float(np.log(10.0))
log2 = define("log2", np.log2, lambda xp, g, y, x: g / (x * LN2), saves="x", domain=(0.5, 3))
log10 = define("log10", np.log10, lambda xp, g, y, x: g / (x * LN10), saves="x", domain=(0.5, 3))


def _sigmoid(xp: Any, x: Any) -> Any:
    """1 / (1 + exp(-x)), without overflow and exact in both tails."""
    if x.dtype.kind == "c":
        right = xp.real(x) >= 0
        e = xp.exp(xp.where(right, -x, x))
    else:
        right, e = x >= 0, xp.exp(-xp.abs(x))
    return xp.where(right, 1, e) / (1 + e)


sigmoid = define("sigmoid", _sigmoid, lambda xp, g, y, x: g * y * (1 - y), saves="y", fused=True,
                 doc="The logistic function 1 / (1 + exp(-x)), stable in both tails.")  # fmt: skip

# Trigonometric and hyperbolic ------------------------------------------------------------------

sin = define("sin", np.sin, lambda xp, g, y, x: g * xp.cos(x), saves="x")
cos = define("cos", np.cos, lambda xp, g, y, x: -g * xp.sin(x), saves="x")
tan = define("tan", np.tan, lambda xp, g, y, x: g * (1 + y * y), saves="y", domain=(-1.2, 1.2))
asin = define("asin", np.arcsin, lambda xp, g, y, x: g / xp.sqrt(1 - x * x), saves="x",
              domain=(-0.8, 0.8))  # fmt: skip
acos = define("acos", np.arccos, lambda xp, g, y, x: -g / xp.sqrt(1 - x * x), saves="x",
              domain=(-0.8, 0.8))  # fmt: skip
atan = define("atan", np.arctan, lambda xp, g, y, x: g / (1 + x * x), saves="x")
atan2 = define("atan2", np.arctan2,
               lambda xp, g, z, x, y: g * y / (x * x + y * y),
               lambda xp, g, z, x, y: -g * x / (x * x + y * y), saves="xy",
               domain=((0.3, 2), (0.3, 2)))  # fmt: skip
sinh = define("sinh", np.sinh, lambda xp, g, y, x: g * xp.cosh(x), saves="x")
cosh = define("cosh", np.cosh, lambda xp, g, y, x: g * xp.sinh(x), saves="x")
tanh = define("tanh", np.tanh, lambda xp, g, y, x: g - g * y * y, saves="y", domain=(-3, 3))
asinh = define("asinh", np.arcsinh, lambda xp, g, y, x: g / xp.sqrt(x * x + 1), saves="x")
acosh = define("acosh", np.arccosh, lambda xp, g, y, x: g / xp.sqrt(x * x - 1), saves="x",
               domain=(1.5, 3))  # fmt: skip
atanh = define("atanh", np.arctanh, lambda xp, g, y, x: g / (1 - x * x), saves="x",
               domain=(-0.8, 0.8))  # fmt: skip

# Sign, rounding: the derivative is zero wherever there is one ----------------------------------


def _abs_rule(xp: Any, g: Any, y: Any, x: Any) -> Any:
    if x.dtype.kind != "c":
        return g * xp.sign(x)
    return g * (x / xp.where(x == 0, 1, xp.abs(x)))  # the direction of steepest ascent


def _sign(x: Any) -> Any:
    if x.dtype.kind == "c":  # not piecewise constant there: the function sign composes it
        raise TypeError("use ad.sign")
    return np.sign(x)


abs = define("abs", np.abs, _abs_rule, saves="x", ufunc=np.absolute,
             holomorphic=False, domain=(0.3, 2))  # fmt: skip
define("sign", _sign, _zero, domain=(0.3, 2))
floor = define("floor", np.floor, _zero, domain=(0.1, 0.9))
ceil = define("ceil", np.ceil, _zero, domain=(0.1, 0.9))
trunc = define("trunc", np.trunc, _zero, domain=(0.1, 0.9))
rint = define("rint", np.rint, _zero, domain=(0.1, 0.4))

# Choice: where arguments are equal, they share the gradient ------------------------------------

define("where", np.where,
       None,
       lambda xp, g, out, c, x, y: xp.where(c, g, 0),
       lambda xp, g, out, c, x, y: xp.where(c, 0, g), saves="c",
       domain=("bool", (-2, 2), (-2, 2)))  # fmt: skip
maximum = define("maximum", np.maximum,
                 lambda xp, g, z, x, y: xp.where(x > y, g, xp.where(x == y, 0.5 * g, 0)),
                 lambda xp, g, z, x, y: xp.where(y > x, g, xp.where(x == y, 0.5 * g, 0)),
                 saves="xy", domain=((-2, -0.1), (0.1, 2)))  # fmt: skip
minimum = define("minimum", np.minimum,
                 lambda xp, g, z, x, y: xp.where(x < y, g, xp.where(x == y, 0.5 * g, 0)),
                 lambda xp, g, z, x, y: xp.where(y < x, g, xp.where(x == y, 0.5 * g, 0)),
                 saves="xy", domain=((-2, -0.1), (0.1, 2)))  # fmt: skip
relu = define("relu", lambda x: np.maximum(x, 0), lambda xp, g, y, x: xp.where(y > 0, g, 0),
              saves="y", doc="max(x, 0); the gradient at 0 is 0.", domain=(0.1, 2))  # fmt: skip
# inside and on the bounds the gradient is x's, outside it is the bound's
define("clip", np.clip,
                 lambda xp, g, out, x, lo, hi: xp.where((x >= lo) & (x <= hi), g, 0),
                 lambda xp, g, out, x, lo, hi: xp.where((x < lo) & (lo <= hi), g, 0),
                 lambda xp, g, out, x, lo, hi: xp.where((x > hi) | (lo > hi), g, 0),
                 saves=("x", "lo", "hi"), domain=((-0.9, 0.9), (-2, -1), (1, 2)))  # fmt: skip

# Complex parts: not holomorphic, so each carries its own formula -------------------------------

conj = define("conj", np.conjugate, lambda xp, g, y, x: xp.conj(g), holomorphic=False)
real = define("real", lambda x: np.real(x), lambda xp, g, y, x: g, holomorphic=False,
              doc="The real part.")  # fmt: skip
imag = define("imag", lambda x: np.imag(x), lambda xp, g, y, x: g * 1j, holomorphic=False,
              doc="The imaginary part.")  # fmt: skip


def _astype(x: Any, dtype: Any) -> Any:
    x = np.asarray(x)
    if x.dtype.kind == "c" and dtype.kind != "c":
        x = x.real  # the cast of a complex gradient to its real tensor; astype checks for users
    return x.astype(dtype)


# the engine casts each gradient to its tensor's dtype: the rule has nothing to do
define("astype", _astype, lambda xp, g, y, x, dtype: g, params=("dtype",),
                   doc="Return the values as another dtype.")  # fmt: skip


# Functions that sort their arguments first -----------------------------------------------------


def sign(x: Any) -> Tensor:
    """Return -1, 0 or 1 by the sign of each element; of a complex number x / |x|."""
    x = asarray(x)
    if x.dtype.kind == "c":
        return x / rec.where(x == 0, 1, rec.abs(x))
    return rec.sign(x)


UFUNCS[np.sign] = sign


def where(condition: Any, x: Any = None, y: Any = None) -> Tensor:
    """Choose, per element, from ``x`` where ``condition`` holds and from ``y`` elsewhere.

    A zero gradient stays zero in the branch that was not taken, even where that branch is
    not finite.

    >>> import adjoint as ad
    >>> x = ad.tensor([0.0, 4.0], requires_grad=True)
    >>> ad.where(x > 0, ad.sqrt(x), 0.0).sum().backward()
    >>> x.grad
    tensor([0.  , 0.25], dtype=float64)
    """
    if x is None or y is None:
        from_condition = asarray(condition).nonzero()
        return from_condition  # type: ignore[return-value]
    return rec.where(condition, x, y)


def clip(x: Any, min: Any = None, max: Any = None) -> Tensor:
    """Limit the elements to ``min`` … ``max``, which may be numbers, tensors or None.

    On the bounds themselves the gradient is that of ``x``.
    """
    x = asarray(x)
    if min is None and max is None:
        return x
    if x.dtype.kind in "fc":
        low = -np.inf if min is None else min
        high = np.inf if max is None else max
        return rec.clip(x, low, high)
    if min is not None:
        x = maximum(x, min)
    return x if max is None else minimum(x, max)


def astype(x: Any, dtype: Any, *, copy: bool = True) -> Tensor:
    """Return the values as ``dtype``; gradients come back in the dtype of ``x``."""
    x = asarray(x)
    target = np.dtype(dtype)
    if target == x.dtype and not copy:
        return x
    if x.dtype.kind == "c" and target.kind != "c":
        raise DTypeError(
            f"astype: {x.dtype} to {target} would drop the imaginary part.  Use x.real if that is meant."
        )
    return rec.astype(x, dtype=target)


def round(x: Any, decimals: int = 0) -> Tensor:
    """Round to ``decimals`` digits; halves go to the even neighbour; the gradient is zero."""
    x = asarray(x)
    if decimals == 0 or x.dtype.kind in "iub":
        return rint(x) if x.dtype.kind in "fc" else x
    scale = 10.0**decimals
    return rint(x * scale) / scale
