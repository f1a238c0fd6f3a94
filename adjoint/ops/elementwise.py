"""Smooth elementwise functions: arithmetic, powers, exponentials, logarithms, trigonometry.

In a derivative rule, ``x`` and ``y`` are the arguments and the next letter is the output: ``y`` for one
argument, ``z`` for two.  The engine sums the result over broadcast axes, casts it, and conjugates for complex
numbers, so a rule is the formula for real numbers of one shape.  The formulas are accurate where the textbook
formula cancels or overflows.  Where a derivative is infinite and the incoming gradient is 0, the engine
returns 0.
"""

from __future__ import annotations

import cmath
import math
import operator
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.define import UFUNCS, define
from adjoint.core.namespace import Namespace, Value, raw, rec
from adjoint.core.native import LARGE, NotNative, Primitives, View, floats
from adjoint.core.record import F32, F64
from adjoint.core.tensor import Tensor
from adjoint.ops.half import in_float32
from adjoint.ops.shared_docs import argument_doc
from adjoint.threads.spread import COSTLY_SIZE, pairs_in_pieces
from adjoint.typing import Array, ArrayLike

__all__ = [
    "acos", "acosh", "add", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "asin",
    "asinh", "atan", "atan2", "atanh", "cbrt", "copy", "cos", "cosh", "deg2rad", "degrees", "divide", "exp",
    "exp2", "expm1", "float_power", "hypot", "ldexp", "log", "log1p", "log2", "log10", "logaddexp",
    "logaddexp2", "multiply", "negative", "positive", "pow", "power", "rad2deg", "radians", "reciprocal",
    "sigmoid", "sin", "sinc", "sinh", "sqrt", "square", "subtract", "tan", "tanh", "true_divide",
]  # fmt: skip


define("zeros_like", np.zeros_like, None, reason="it is constant",
       lower=lambda xp, x: xp.full(x.shape, 0, x.dtype), doc="Return zeros of the same shape and dtype.")  # fmt: skip

# Arithmetic ------------------------------------------------------------------------------------

add = define("add", operator.add,
             lambda xp, g, z, x, y: g,
             lambda xp, g, z, x, y: g, ufunc=np.add, method=("__add__", "__radd__"), lower=True, doc="Return x + y.")  # fmt: skip
subtract = define("subtract", operator.sub,
                  lambda xp, g, z, x, y: g,
                  lambda xp, g, z, x, y: -g, ufunc=np.subtract, method=("__sub__", "__rsub__"), lower=True, doc="Return x - y.")  # fmt: skip
multiply = define("multiply", operator.mul,
                  lambda xp, g, z, x, y: g * y,
                  lambda xp, g, z, x, y: g * x, saves="xy", ufunc=np.multiply, method=("__mul__", "__rmul__"), lower=True, sparsity="product", doc="Return x · y.")  # fmt: skip
# d(x/y)/dy = -x/y² = -z/y: reuse the output, x need not be saved
divide = define("divide", operator.truediv,
                lambda xp, g, z, x, y: g / y,
                lambda xp, g, z, x, y: -(g / y) * z, saves="zy", ufunc=np.divide,
                domain=((-2, 2), (0.5, 2)), method=("__truediv__", "__rtruediv__"), lower=True, doc="Return x / y.")  # fmt: skip
negative = define("negative", operator.neg, lambda xp, g, y, x: -g, ufunc=np.negative,
                  method="__neg__", lower=True, doc="Return -x.")  # fmt: skip
positive = define("positive", operator.pos, lambda xp, g, y, x: g, ufunc=np.positive,
                  method="__pos__", lower=lambda xp, x: x, doc="Return +x.")  # fmt: skip
reciprocal = define("reciprocal", np.reciprocal, lambda xp, g, y, x: -(g * y) * y, saves="y",
                    domain=(0.5, 2), method=True, lower=lambda xp, x: 1 / floats(x), doc="Return 1 / x.")  # fmt: skip
square = define("square", np.square, lambda xp, g, y, x: g * (2 * x), saves="x",
                method=True, lower=lambda xp, x: x * x, doc="Return x².")  # fmt: skip
copy = define("copy", np.array, lambda xp, g, y, x: g,
              lower=lambda xp, x: x, doc="Return a copy with its own memory.")  # fmt: skip
deg2rad = define("deg2rad", np.deg2rad, lambda xp, g, y, x: g * (math.pi / 180),
                 lower=lambda xp, x: floats(x) * (math.pi / 180), doc="Convert degrees to radians.")  # fmt: skip
rad2deg = define("rad2deg", np.rad2deg, lambda xp, g, y, x: g * (180 / math.pi),
                 lower=lambda xp, x: floats(x) * (180 / math.pi), doc="Convert radians to degrees.")  # fmt: skip


def _native_ldexp(xp: Primitives, x: View, n: View) -> View:
    """Return x · 2ⁿ as several products, because 2ⁿ may overflow where x · 2ⁿ does not."""
    x, n = xp.view(x, np.float64), xp.view(n, np.int64)
    if x.dtype.kind != "f":
        raise NotNative("ldexp of integers has no native form")
    n = xp.maximum(xp.minimum(n, 2200), -2200)
    for _ in range(3):
        part = xp.maximum(xp.minimum(n, 100), -100) if x.dtype.itemsize == 4 else n
        step = xp.maximum(xp.minimum(part, 900), -900)
        x = x * xp.exp2(xp.cast(step, x.dtype))
        n = n - step
    return x


ldexp = define("ldexp", in_float32(np.ldexp), lambda xp, g, z, x, y: xp.ldexp(g, y), None, saves="y", literals=True, ufunc=np.ldexp,
               domain=((-2, 2), "int"), lower=_native_ldexp, doc="Return x · 2**y for integers y, to which no gradient flows.")  # fmt: skip

# Powers and roots ------------------------------------------------------------------------------

_NUMBERS = (int, float, complex)


def _pow_dx(xp: Namespace, g: Value, z: Value, x: Value, y: Value) -> Any:
    """Return g y x^(y-1), the gradient of x for z = x^y.

    Where y is 0 it is 0, even if x is 0, infinite or NaN.
    """
    if isinstance(y, _NUMBERS):  # the value of a literal exponent is known
        if y == 0:
            return xp.zeros_like(g)
        if y == 1:
            return g
        return g * (2 * x) if y == 2 else g * (y * x ** (y - 1))
    # replaced only where 0 · x^-1 is not 0: elsewhere this term has the correct derivative in y, which is 1/x
    flat = xp.logical_and(y == 0, xp.logical_not(xp.abs(x) > 0))
    return xp.where(flat, 0, g * y * xp.where(flat, 1, x) ** (y - 1))


def _pow_dy(xp: Namespace, g: Value, z: Value, x: Value, y: Value) -> Any:
    """Return g x^y log x, the gradient of y for z = x^y.

    Where x = 0 and y ≥ 0 it is 0, because 0 · log 0 would be NaN.
    """
    complex_result = z.dtype.kind == "c"
    if isinstance(x, _NUMBERS) and x != 0:
        logarithm = cmath.log(x)
        return g * z * (logarithm if complex_result else logarithm.real if logarithm.imag == 0 else math.nan)
    flat = xp.logical_and(x == 0, (xp.real(y) if y.dtype.kind == "c" else y) >= 0)
    base = xp.where(flat, 1, x)
    if complex_result and base.dtype.kind != "c":
        base = xp.astype(base, dtype=z.dtype)
    return xp.where(flat, 0, g * z * xp.log(base))


def _native_pow(xp: Primitives, x: View, y: View) -> View:
    exponent = y if isinstance(y, (int, float)) else None
    kind = "" if isinstance(x, _NUMBERS) else x.dtype.kind
    if kind == "f" and exponent in (0, 1, 2, 3, -1, 0.5):
        if exponent == 0:
            return xp.ones_like(x)
        if exponent in (-1, 0.5):
            return 1 / x if exponent == -1 else xp.sqrt(x)
        return x if exponent == 1 else x * x if exponent == 2 else x * x * x
    if kind and kind in "iu" and type(exponent) is int and 0 < exponent < 64:
        return _whole_power(x, exponent)
    return xp.primitive("power", np.power, x, y)


def _whole_power(x: View, n: int) -> View:
    """Return ``x`` to the integer power ``n``, which is positive, computed by repeated squaring."""
    found = None
    while n:
        if n & 1:
            found = x if found is None else found * x
        n >>= 1
        x = x * x if n else x
    return found


pow = define("pow", operator.pow, _pow_dx, _pow_dy, saves="zxy", ufunc=np.power, literals=True,
             domain=((0.5, 2), (-2, 2)), method=("__pow__", "__rpow__"), lower=_native_pow, doc="Return x ** y; the derivative in y of a negative base is NaN.")  # fmt: skip
# sqrt(x) is computed again instead of using y.  For a negative x, the rule then makes the NaN itself, so the
# engine can keep a gradient of 0.
sqrt = define("sqrt", np.sqrt, lambda xp, g, y, x: g * 0.5 / xp.sqrt(x), saves="x", domain=(0.5, 3),
              method=True, lower=True, doc="Return the square root.")  # fmt: skip
cbrt = define("cbrt", np.cbrt, lambda xp, g, y, x: g / (3 * y * y), saves="y", domain=(0.5, 3),
              costly=True, lower=True, doc="Return the cube root.")  # fmt: skip


def _cosine(x: Array, y: Array) -> Any:
    """Return x / hypot(x, y): 0 at the origin, and the limit (0, ±1, ±√½) where x or y is infinite."""
    z = np.hypot(x, y)
    if z.size and z.min() > 0 and z.max() < math.inf:  # the usual case, in a third of the time
        return x / z
    far, grows = np.isinf(z), np.isinf(x)
    x = np.where(far & ~grows, 0, np.where(grows, np.sign(x), x))
    length = np.where(far, np.where(grows & np.isinf(y), math.sqrt(2), 1), np.where(z == 0, math.inf, z))
    return (x / length).astype(z.dtype, copy=False)


def _native_cosine(xp: Primitives, x: View, y: View) -> View:
    r = xp.hypot(x, y)
    far, grows = r == math.inf, xp.abs(x) == math.inf
    x = xp.where(far, xp.where(grows, xp.copysign(1.0, x), 0.0), x)
    diagonal = xp.logical_and(grows, xp.abs(y) == math.inf)
    ends = xp.where(diagonal, math.sqrt(2), 1.0)
    return x / xp.where(far, ends, xp.where(r == 0, math.inf, r))


def _radius(xp: Namespace, x: Value, y: Value) -> Any:
    """Return r = hypot(x, y), but infinity at the origin: there x / r and its derivatives are then 0."""
    r = xp.hypot(x, y)
    return xp.where(r == 0, math.inf, r)


hypot = define("hypot", np.hypot,
               lambda xp, g, z, x, y: g * xp.cosine(x, y),
               lambda xp, g, z, x, y: g * xp.cosine(y, x), saves="xy",
               domain=((0.3, 2), (0.3, 2)),
               lower=True, doc="Return √(x² + y²), without overflow; its gradient at the origin is 0.")  # fmt: skip
# x / r is an op, because the quotient rule cancels: it would give the derivative in x as 1/r - x²/r³, not as
# y²/r³
define("cosine", in_float32(_cosine),
       lambda xp, g, z, x, y: g * (xp.cosine(y, x) / _radius(xp, x, y) * xp.cosine(y, x)),
       lambda xp, g, z, x, y: -g * (z * (xp.cosine(y, x) / _radius(xp, x, y))), saves="zxy",
       domain=((0.3, 2), (0.3, 2)), reference="formula", lower=_native_cosine, doc="x / hypot(x, y), and 0 at the origin.")  # fmt: skip

# Exponentials and logarithms -------------------------------------------------------------------

LN2, LN10 = math.log(2.0), math.log(10.0)

exp = define("exp", np.exp, lambda xp, g, y, x: g * y, saves="y",
             method=True, costly=True, lower=True, doc="Return e ** x.")  # fmt: skip
exp2 = define(
    "exp2", np.exp2, lambda xp, g, y, x: g * y * LN2, saves="y", costly=True, lower=True, doc="Return 2 ** x."
)
# exp(x), not y + 1, which is 0 for x < -37
expm1 = define("expm1", np.expm1, lambda xp, g, y, x: g * xp.exp(x), saves="x",
               method=True, costly=True, lower=True, doc="Return exp(x) - 1, accurate near 0.")  # fmt: skip
log = define("log", np.log, lambda xp, g, y, x: g / x, saves="x", domain=(0.5, 3),
             method=True, costly=True, lower=True, doc="Return the natural logarithm.")  # fmt: skip
log1p = define("log1p", np.log1p, lambda xp, g, y, x: g / (x + 1), saves="x", domain=(-0.5, 3),
               method=True, costly=True, lower=True, doc="Return log(1 + x), accurate near 0.")  # fmt: skip
log2 = define("log2", np.log2, lambda xp, g, y, x: g / (x * LN2), saves="x", domain=(0.5, 3),
              method=True, costly=True, lower=True, doc="Return the logarithm to base 2.")  # fmt: skip
log10 = define("log10", np.log10, lambda xp, g, y, x: g / (x * LN10), saves="x", domain=(0.5, 3),
               method=True, costly=True, lower=True, doc="Return the logarithm to base 10.")  # fmt: skip


def _gap(xp: Namespace, x: Value, y: Value) -> Any:
    """Return x - y, but 0 instead of NaN where x and y are the same infinity."""
    same = xp.logical_and(x == y, xp.isinf(x))
    return xp.where(same, 0, x) - xp.where(same, 0, y)


# the derivative in x is 1 / (1 + exp(y - x)); the equal formula exp(x - z) loses digits where x and z are
# close
logaddexp = define("logaddexp", np.logaddexp,
                   lambda xp, g, z, x, y: g * xp.sigmoid(_gap(xp, x, y)),
                   lambda xp, g, z, x, y: g * xp.sigmoid(_gap(xp, y, x)), saves="xy",
                   lower=True, doc="Return log(exp(x) + exp(y)), without overflow.")  # fmt: skip
logaddexp2 = define("logaddexp2", np.logaddexp2,
                    lambda xp, g, z, x, y: g * xp.sigmoid(_gap(xp, x, y) * LN2),
                    lambda xp, g, z, x, y: g * xp.sigmoid(_gap(xp, y, x) * LN2), saves="xy",
                    lower=True, doc="Return the logarithm to base 2 of 2**x + 2**y, without overflow.")  # fmt: skip


def logistic_function(xp: Namespace, x: Value) -> Any:
    """Return 1 / (1 + exp(-x)), without overflow and accurate in both tails."""
    if x.dtype.kind == "c":
        right = xp.real(x) >= 0
        e = xp.exp(xp.where(right, -x, x))
        return xp.where(right, 1, e) / (1 + e)
    e = xp.exp(-xp.abs(x))
    return xp.maximum(e, x >= 0) / (1 + e)  # the numerator is 1 for x ≥ 0, and e for x < 0


# Trigonometric and hyperbolic ------------------------------------------------------------------
# (1-x)(1+x) is accurate near 1, where 1 - x² cancels.  It is an op with the derivative -2x, because the
# product rule cancels near 0.  For complex numbers, products of square roots are on the same branch as
# NumPy's functions.

define("gap_product", in_float32(lambda x, low, high: (high - x) * (x - low)),
       lambda xp, g, y, x, low, high: g * ((low + high) - 2 * x), saves="x", params=("low", "high"),
       reference="formula", lower=lambda xp, x, low, high: (high - x) * (x - low), doc="(high - x) (x - low).")  # fmt: skip


def _one_minus_square(xp: Namespace, x: Value) -> Any:
    return xp.gap_product(x, low=-1.0, high=1.0)


def _root_of_square_plus_one(xp: Namespace, x: Value) -> Any:
    return (
        xp.sqrt(_one_minus_square(xp, 1j * x)) if x.dtype.kind == "c" else xp.hypot(x, 1.0)
    )  # the square of x would overflow


def _atan_rule(xp: Namespace, g: Value, y: Value, x: Value) -> Any:
    return g / _one_minus_square(xp, 1j * x) if x.dtype.kind == "c" else g * xp.atan_slope(x)


# -2 (x y) y, not -2 x y², because y² underflows before the result does
define("atan_slope", in_float32(lambda x: 1 / (1 + x * x)), lambda xp, g, y, x: -2 * g * (x * y * y), saves="yx",
       reference="formula", lower=lambda xp, x: 1 / (1 + x * x), doc="1 / (1 + x²).")  # fmt: skip


def _tan_slope(xp: Namespace, g: Value, x: Value) -> Any:
    return xp.sech_squared(g, 1j * x) if x.dtype.kind == "c" else g / xp.square(xp.cos(x))


def _atan2_part(xp: Namespace, g: Value, part: Value, x: Value, y: Value) -> Any:
    """Return g · part / (x² + y²) without overflow, where ``part`` is x or y.

    It is 0 at the origin, where the angle is not continuous, and at infinity.
    """
    r = xp.hypot(x, y)
    part = xp.where(xp.isinf(r), 0, part)
    r = xp.where(r == 0, math.inf, r)  # so that derivatives of every order are 0 at the origin
    return g * (part / r / r)


sin = define("sin", np.sin, lambda xp, g, y, x: g * xp.cos(x), saves="x",
             method=True, costly=True, lower=True, doc="Return the sine.")  # fmt: skip
cos = define("cos", np.cos, lambda xp, g, y, x: -g * xp.sin(x), saves="x",
             method=True, costly=True, lower=True, doc="Return the cosine.")  # fmt: skip
tan = define("tan", np.tan, lambda xp, g, y, x: _tan_slope(xp, g, x), saves="x", domain=(-1.2, 1.2),
             method=True, costly=True, lower=True, doc="Return the tangent.")  # fmt: skip
asin = define("asin", np.arcsin, lambda xp, g, y, x: g / xp.sqrt(_one_minus_square(xp, x)), saves="x",
              domain=(-0.8, 0.8), costly=True, lower=True, doc="Return the inverse sine.")  # fmt: skip
acos = define("acos", np.arccos, lambda xp, g, y, x: -g / xp.sqrt(_one_minus_square(xp, x)), saves="x",
              domain=(-0.8, 0.8), costly=True, lower=True, doc="Return the inverse cosine.")  # fmt: skip
atan = define(
    "atan", np.arctan, _atan_rule, saves="x", costly=True, lower=True, doc="Return the inverse tangent."
)
atan2 = define("atan2", np.arctan2,
               lambda xp, g, z, x, y: _atan2_part(xp, g, y, x, y),
               lambda xp, g, z, x, y: _atan2_part(xp, -g, x, x, y), saves="xy",
               domain=((0.3, 2), (0.3, 2)),
               lower=True, doc="Return the angle of the point with abscissa y and ordinate x; its gradient at the origin is 0.")  # fmt: skip
sinh = define("sinh", np.sinh, lambda xp, g, y, x: g * xp.cosh(x), saves="x",
              method=True, costly=True, lower=True, doc="Return the hyperbolic sine.")  # fmt: skip
cosh = define("cosh", np.cosh, lambda xp, g, y, x: g * xp.sinh(x), saves="x",
              method=True, costly=True, lower=True, doc="Return the hyperbolic cosine.")  # fmt: skip


_FAR = 20.0
_HALF64, _HALF32 = np.array(0.5), np.array(0.5, np.float32)  # arrays are faster operands than Python numbers


def _sech_squared(x: Array, y: Array) -> Any:
    if y.dtype is not F64 and y.dtype is not F32 and y.dtype not in (F64, F32):  # as objects, then by value
        return _other_sech_squared(x, y)
    if y.size >= COSTLY_SIZE and (found := pairs_in_pieces(_sech_squared, x, y)) is not None:
        return found
    c = np.cosh(y)
    z = x / c  # not x / c²: the square overflows where the result is still a subnormal number
    z /= c
    return z


@in_float32
def _other_sech_squared(x: Array, y: Array) -> Any:
    """Return x / cosh(y)² without overflow, for the dtypes that ``_sech_squared`` has no fast path for.

    Where cosh overflows for complex y, the formula is 4 x q / (1 + q)² with q = exp(±2y).
    """
    if y.dtype.kind != "c":
        return x / np.square(np.cosh(y))
    far = np.abs(y.real) > _FAR
    q = np.exp(np.where(far, y * (-2 * np.sign(y.real)), 0))
    return x * np.where(far, 4 * q / np.square(1 + q), 1 / np.square(np.cosh(np.where(far, 0, y))))


@in_float32
def _other_logistic_slope(x: Array, y: Array) -> Any:
    return _other_sech_squared(0.25 * x, 0.5 * y)


def _logistic_slope(x: Array, y: Array) -> Any:
    if y.dtype is not F64 and y.dtype is not F32 and y.dtype not in (F64, F32):  # as objects, then by value
        return _other_logistic_slope(x, y)
    if y.size >= COSTLY_SIZE and (found := pairs_in_pieces(_logistic_slope, x, y)) is not None:
        return found
    c = np.cosh(y * (_HALF64 if y.dtype is F64 else _HALF32))
    c += c
    z = x / c
    z /= c
    return z


def _sech_squared_phrase(i: Any, target: str, x: str, y: str) -> list[str] | None:
    a, b = i.args
    if b.dtype.char not in "fd" or a.dtype != b.dtype or a.shape != b.shape or not a.shape:
        return None
    if a.size >= COSTLY_SIZE:  # the forward function computes it in pieces
        return None
    end = f"{x} / {target} / {target}"
    if a.size * a.dtype.itemsize >= LARGE:
        end = f"divide({x} / {target}, {target}, {target}) if reusable({target}, {x}) else {end}"
    return [f"cosh({y})", end]


def _native_tanh(xp: Primitives, x: View) -> View:
    """Return tanh(x); in float32 it is computed from ``tanh_gap``, which ``sech_squared`` uses too."""
    y = xp.primitive("tanh", np.tanh, x)
    if y.dtype != F32 or y.node.op != "tanh":  # in float64, tanh needs more digits than the gap has
        return y
    x = xp.cast(x, F32)
    return xp.graph.elementwise("tanh_from_gap", F32, x, xp.primitive("tanh_gap", np.tanh, x))


def _native_sech_squared(xp: Primitives, x: View, y: View) -> View:
    """Return x / cosh(y)², computed as x d (2 − d) with d = 1 − |tanh y|, which is accurate for large |y|."""
    d = xp.primitive("tanh_gap", np.tanh, y)
    return x * (d * (2 - d))


def _native_logistic_slope(xp: Primitives, x: View, y: View) -> View:
    """Return x q / (1 + q)² with q = exp(-|y|); in float32 this takes a fifth of the time of cosh."""
    q = xp.exp(-xp.abs(y))
    d = 1 + q
    return x * (q / (d * d))


# These are accurate in the tails, in derivatives of every order.  1 - tanh(y)² and σ(y) (1 - σ(y)) are not.
define("sech_squared", _sech_squared,
       lambda xp, g, z, x, y: xp.sech_squared(g, y),
       lambda xp, g, z, x, y: -2 * g * (z * xp.tanh(y)), saves="zy",
       reference="formula", lower=_native_sech_squared, phrase=_sech_squared_phrase, doc="x times the derivative of tanh at y: x / cosh(y)².")  # fmt: skip
define("logistic_slope", _logistic_slope,
       lambda xp, g, z, x, y: xp.logistic_slope(g, y),
       lambda xp, g, z, x, y: -g * (z * xp.tanh(0.5 * y)), saves="zy",
       reference="formula", lower=_native_logistic_slope, doc="x times the derivative of sigmoid at y: x / (2 cosh(y/2))².")  # fmt: skip

tanh = define("tanh", np.tanh, lambda xp, g, y, x: xp.sech_squared(g, x), saves="x", domain=(-3, 3),
              method=True, costly=True, lower=_native_tanh, doc="Return the hyperbolic tangent.")  # fmt: skip
sigmoid = define("sigmoid", in_float32(logistic_function, raw), lambda xp, g, y, x: xp.logistic_slope(g, x), saves="x",
                 fused=logistic_function, method=True, reference="scipy.special:expit",
                 doc="Return the logistic function 1 / (1 + exp(-x)), stable in both tails.")  # fmt: skip
asinh = define("asinh", np.arcsinh, lambda xp, g, y, x: g / _root_of_square_plus_one(xp, x), saves="x",
               costly=True, lower=True, doc="Return the inverse hyperbolic sine.")  # fmt: skip
acosh = define("acosh", np.arccosh, lambda xp, g, y, x: g / (xp.sqrt(x - 1) * xp.sqrt(x + 1)), saves="x",
               domain=(1.5, 3), costly=True, lower=True, doc="Return the inverse hyperbolic cosine.")  # fmt: skip
atanh = define("atanh", np.arctanh, lambda xp, g, y, x: g / _one_minus_square(xp, x), saves="x",
               domain=(-0.8, 0.8), costly=True, lower=True, doc="Return the inverse hyperbolic tangent.")  # fmt: skip

# sin(πx)/(πx): its derivatives are an op with the parameter ``order``, because the quotient rule cancels near
# 0 -----


def _sinc_derivative(x: Array, order: int) -> Any:
    """Return the derivative of order n = ``order`` of sinc(x) = sin(πx) / (πx).

    It is πⁿ f⁽ⁿ⁾(πx) with f(t) = sin(t)/t = ∫₀¹ cos(ut) du.  For small t, the power series is used: f⁽ⁿ⁾(t) =
    Σₖ (-1)ᵏ t²ᵏ⁻ⁿ / ((2k+1) (2k-n)!).  For t > n, the recurrence t f⁽ⁿ⁾ = sin⁽ⁿ⁾(t) - n f⁽ⁿ⁻¹⁾ is stable.
    """
    x = np.asarray(x)
    t = x * math.pi
    limit = max(2.0, float(order))
    near = np.abs(t) <= limit
    small = np.where(near, t, 0)
    term = small ** (order % 2)  # t^(2k-n) / (2k-n)! at the first k with 2k ≥ n
    first = (order + 1) // 2
    series = term * 0
    for k in range(first, first + 12 + 2 * int(limit)):
        series = series + (-1) ** k / (2 * k + 1) * term
        m = 2 * k - order
        term = term * small * small / ((m + 1) * (m + 2))
    large = np.where(near, 1, t)
    # sin(πx) = ± sin(π (x - n)) for integers n: x - n is exact, but πx loses digits for large x
    whole = np.rint(x.real)
    sign = 1 - 2 * np.abs(np.fmod(whole, 2))
    turn = np.where(near, 0, x - whole) * math.pi
    sine, cosine = np.sin(turn) * sign, np.cos(turn) * sign
    waves = sine, cosine, -sine, -cosine
    value = waves[0] / large
    for n in range(1, order + 1):
        value = (waves[n % 4] - n * value) / large
    return np.where(near, series, value) * math.pi**order


def _native_sinc(xp: Primitives, x: View) -> View:
    t = xp.where(floats(x) == 0, 1.0e-20, x) * math.pi
    return xp.sin(t) / t


define("sinc", in_float32(np.sinc), lambda xp, g, y, x: g * xp.sinc_derivative(x, order=1), saves="x",
       lower=_native_sinc, doc="Return sin(πx) / (πx), and 1 at 0.")  # fmt: skip
define("sinc_derivative", in_float32(_sinc_derivative),
       lambda xp, g, y, x, order: g * xp.sinc_derivative(x, order=order + 1),
       saves="x", params=("order",), reference="formula", doc="A derivative of sin(πx) / (πx).")  # fmt: skip
sinc = rec.sinc


# Public functions, and NumPy's names -----------------------------------------------------------


@argument_doc
def float_power(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Return ``x ** y``, computed in float64 or complex128.

    Integers can therefore have negative exponents.

    Parameters
    ----------
    x : array_like
        The base.
    y : array_like
        The exponent.

    >>> ad.float_power(ad.tensor([2, 4]), -1)
    tensor([0.5 , 0.25], dtype=float64)
    """
    x = asarray(x)
    exponent = y if isinstance(y, _NUMBERS) else asarray(y)
    wide = np.result_type(x.dtype, np.float64, complex if isinstance(y, complex) else np.float64)
    return pow(rec.astype(x, dtype=wide), exponent)


power, true_divide, degrees, radians = pow, divide, rad2deg, deg2rad
arccos, arcsin, arctan, arctan2 = acos, asin, atan, atan2
arccosh, arcsinh, arctanh = acosh, asinh, atanh

UFUNCS[np.degrees] = rad2deg
UFUNCS[np.radians] = deg2rad
UFUNCS[np.float_power] = float_power
