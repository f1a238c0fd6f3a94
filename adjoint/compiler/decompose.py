"""Lower ops to primitives: the namespace ``xp``, whose functions add nodes to a graph and return views.

An op is either a primitive, or has a formula in its op record (``fused``), or has a rule in ``RULES``: a
function ``rule(xp, *args, **params)`` that returns the results of the op.  NumPy runs all other ops.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint.compiler.simplify import DTYPES, Graph, NotNative, View
from adjoint.core.op import OPS
from adjoint.core.shapes import Shape

__all__ = ["RULES", "UFUNCS", "Primitives", "floats", "rule"]

# The elementwise primitives, each with a NumPy ufunc whose rules for dtypes it follows.
UFUNCS: dict[str, Any] = {
    name: getattr(np, name)
    for name in """add subtract multiply divide negative sqrt maximum minimum fmax fmin copysign floor ceil
    trunc rint
    equal not_equal less less_equal greater greater_equal isnan signbit logical_and logical_or logical_xor
    logical_not bitwise_and bitwise_or bitwise_xor bitwise_invert bitwise_left_shift bitwise_right_shift
    bitwise_count floor_divide remainder fmod exp log tanh sin cos tan sinh cosh expm1 log1p exp2 log2 log10
    cbrt hypot logaddexp logaddexp2
    """.split()
} | {
    "abs": np.absolute, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "erf": np.exp, "erfc": np.exp,
    "ndtr": np.exp, "power": np.power, "tanh_gap": np.tanh,
}  # fmt: skip
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_INT64, _BOOL = np.dtype(np.int64), np.dtype(bool)
_ON_BOOLS = {"add": "logical_or", "multiply": "logical_and", "maximum": "logical_or", "minimum":
"logical_and", "bitwise_and": "logical_and", "bitwise_or": "logical_or", "bitwise_xor": "logical_xor",
             "bitwise_invert": "logical_not", "not_equal": "logical_xor", "abs": "copy",
             "fmax": "logical_or", "fmin": "logical_and"}  # fmt: skip
_ON_INTEGERS = {
    "floor": "copy",
    "ceil": "copy",
    "trunc": "copy",
    "rint": "copy",
    "fmax": "maximum",
    "fmin": "minimum",
}

RULES: dict[str, Callable[..., Any]] = {}


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that registers a function as the lowering rule of the named ops."""

    def enter(f: Callable[..., Any]) -> Callable[..., Any]:
        RULES.update((n, f) for n in names)
        return f

    return enter


@functools.cache
def _resolved(name: str, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the dtypes to which the primitive ``name`` casts its operands, then the dtype of its result.

    ``kinds`` has the dtype of each operand, or its type if it is a Python number.  Raise NotNative if a dtype
    is not supported.
    """
    try:
        found = UFUNCS[name].resolve_dtypes((*kinds, None))
    except TypeError:
        raise NotNative(f"{name} does not accept {', '.join(map(str, kinds))}") from None
    if any(d not in DTYPES for d in found):
        raise NotNative(f"{name} of {', '.join(map(str, kinds))} has no native form")
    return tuple(found)


class Primitives:
    """The namespace ``xp`` of lowering rules: its functions add primitives to a graph and return views."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        graph.xp = self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in UFUNCS and name not in RULES and name not in OPS:
            raise AttributeError(name)
        found: Callable[..., Any] = functools.partial(self.apply, name)
        self.__dict__[name] = found
        return found

    def apply(self, name: str, *args: Any, **params: Any) -> Any:
        """Add the op ``name`` to the graph; return its result.  Raise NotNative if it has no native form."""
        if name in RULES:
            return RULES[name](self, *args, **params)
        if name in UFUNCS:
            return self.ufunc(name, *args)
        fused = OPS[name].fused
        if fused is None:
            raise NotNative(f"{name} has no native form")
        return fused(self, *map(self.operand, args), **params)

    def operand(self, a: Any) -> Any:
        """Return ``a``, an operand of an op; an array is added to the graph as a constant."""
        return self.graph.constant(a) if isinstance(a, (np.ndarray, np.generic)) else a

    def view(self, a: Any, dtype: Any = None) -> View:
        """Return ``a`` as a view of the graph; an array or a number is added to the graph as a constant.

        ``dtype`` is the dtype of a constant that is made from a Python number.
        """
        if isinstance(a, View):
            return a
        if isinstance(a, (np.ndarray, np.generic)):
            return self.graph.constant(a)
        return self.graph.constant(np.asarray(a, dtype))

    def ufunc(self, name: str, *args: Any) -> View:
        """Add an elementwise primitive, with the dtypes that NumPy would use, and return its result."""
        args = tuple(map(self.operand, args))
        kinds = [_kind(a) for a in args]
        if all(isinstance(k, type) for k in kinds):  # all operands are Python numbers
            kinds = [np.result_type(k) if isinstance(k, type) else k for k in kinds]
        *types, dtype = _resolved(name, tuple(kinds))
        views = [self.cast(self.view(a, t), t) for a, t in zip(args, types, strict=True)]
        if types[0] == _BOOL and name in _ON_BOOLS:
            name = _ON_BOOLS[name]
        elif types[0].kind in "iu" and name in _ON_INTEGERS:
            name = _ON_INTEGERS[name]
        if name == "copy":
            return views[0]
        return self.graph.elementwise(name, dtype, *views)

    def cast(self, x: View, dtype: Any) -> View:
        """Return a view cast to a dtype."""
        if x.dtype == dtype:
            return x
        if dtype not in DTYPES:
            raise NotNative(f"{dtype} has no native form")
        return self.graph.elementwise("astype", dtype, x)

    # Movement ----------------------------------------------------------------------------------------

    def flat(self, x: View) -> View:
        """Return a view reshaped to one axis."""
        return self.graph.reshape(x, (x.size,))

    def gather(self, x: View, positions: View) -> View:
        """Return the elements of a flattened view at ``positions``, which must be in range."""
        table = self.graph.copied(self.flat(x))
        return self.graph.node("gather", (positions, table), None, positions.shape, x.dtype)

    def scatter(self, mode: str, base: View, positions: View, values: View, width: int = 1) -> View:
        """Return a copy of the flat array ``base`` with rows added to it (mode "add") or assigned ("set").

        ``positions`` has the position of the first element of each row; ``values`` are the rows, of ``width``
        elements each.
        """
        values = self.graph.copied(self.cast(values, base.dtype))
        if base.scalar() is None:
            base = self.graph.copied(base)
        args = (base, self.graph.copied(positions), values)
        return self.graph.node("scatter", args, (mode, width), base.shape, base.dtype)

    def zeros(self, shape: Shape, dtype: Any) -> View:
        """Return an array of zeros."""
        return self.graph.broadcast(self.graph.constant(np.zeros((), dtype)), shape)


def _kind(a: Any) -> Any:
    """Return the dtype of a view, or the type of a Python number, as NumPy's promotion needs it."""
    if isinstance(a, View):
        return float if a.weak else a.dtype
    return _BOOL if type(a) is bool else type(a)  # NumPy promotes a Python bool like an array of bools


# Elementwise -----------------------------------------------------------------------------------------


def _filled(number: float) -> Callable[[Any, View], View]:
    """Return a lowering rule that makes an array like its operand, filled with ``number``."""
    return lambda xp, x: xp.graph.broadcast(xp.graph.constant(np.asarray(number, x.dtype)), x.shape)


def floats(x: View) -> View:
    """Return ``x`` unchanged if it has a floating-point dtype; otherwise raise ``NotNative``."""
    if x.dtype.kind != "f":
        raise NotNative(f"a function of {x.dtype} has no native form")
    return x


def _bell(xp: Any, y: Any) -> Any:
    """Return q / (1 + q)² with q = exp(y), for y <= 0.  This is sech²(y/2) / 4.

    In float32 this takes a fifth of the time of cosh.
    """
    q = xp.exp(y)
    d = 1 + q
    return q / (d * d)


RULES.update(
    positive=lambda xp, x: x,
    copy=lambda xp, x: x,
    conj=lambda xp, x: x,
    real=lambda xp, x: x,
    zeros_like=_filled(0),
    imag=_filled(0),
    ones_like=_filled(1),
    reciprocal=lambda xp, x: 1 / floats(x),
    square=lambda xp, x: x * x,
    isinf=lambda xp, x: xp.abs(floats(x)) == math.inf,
    isfinite=lambda xp, x: xp.abs(floats(x)) < math.inf,
    deg2rad=lambda xp, x: floats(x) * (math.pi / 180),
    rad2deg=lambda xp, x: floats(x) * (180 / math.pi),
    gap_product=lambda xp, x, low, high: (high - x) * (x - low),
    atan_slope=lambda xp, x: 1 / (1 + x * x),
    logistic_slope=lambda xp, x, y: x * _bell(xp, -xp.abs(y)),
    normal_gate=lambda xp, x: xp.ndtr(x),
    relu=lambda xp, x: xp.maximum(x, 0),
    leaky_relu=lambda xp, x, slope: (xp.maximum if slope <= 1 else xp.minimum)(x, slope * x),
    hardtanh=lambda xp, x, low, high: xp.clip(x, low, high),
    sign=lambda xp, x: xp.where(x > 0, 1, xp.where(x < 0, -1, xp.where(x == 0, 0, x))),
    heaviside=lambda xp, x, y: xp.where(x != x, x, xp.where(x == 0, y, xp.where(x < 0, 0.0, 1.0))),
    fraction=lambda xp, x: xp.where(xp.isinf(x), xp.copysign(0.0, x), xp.copysign(x - xp.trunc(x), x)),
    xlogy=lambda xp, x, y: xp.where(xp.logical_and(x == 0, y == y), 0.0, x * xp.log(y)),
    xlog1py=lambda xp, x, y: xp.where(xp.logical_and(x == 0, y == y), 0.0, x * xp.log1p(y)),
    entr=lambda xp, x: xp.where(
        floats(x) == 0, x, xp.where(x < 0, -math.inf, -x * xp.log(xp.where(x < 0, 1, x)))
    ),
    # log1p keeps the digits of x - 1/2
    logit=lambda xp, x: xp.where(
        floats(x) < 0.25, xp.log(x / (1 - x)), xp.log1p((2 * x - 1) / (1 - x))
    ),
    log_expit=lambda xp, x: -(xp.maximum(-floats(x), 0) + xp.log1p(xp.exp(-xp.abs(x)))),
    keep_zeros=lambda xp, g, live: xp.where(xp.logical_or(live, g == g), g, 0),
)  # fmt: skip


@rule("clip")
def _clip(xp: Any, x: Any, lo: Any, hi: Any) -> Any:
    """Return x limited to the range lo … hi.

    If both bounds are numbers, a zero that equals a bound keeps its sign.
    """
    if all(np.size(b) == 1 if not isinstance(b, View) else b.size == 1 for b in (lo, hi)):
        return xp.minimum(hi, xp.maximum(lo, x))  # if operands are equal, the result is the second
    return xp.minimum(xp.maximum(x, lo), hi)


@rule("tanh")
def _tanh(xp: Any, x: Any) -> Any:
    """Return tanh(x); in float32 it is computed from ``tanh_gap``, which ``sech_squared`` uses too."""
    y = xp.ufunc("tanh", x)
    if y.dtype != _FLOAT32 or y.node.op != "tanh":  # in float64, tanh needs more digits than the gap has
        return y
    (x,) = y.node.args
    return xp.graph.elementwise("tanh_from_gap", _FLOAT32, x, xp.tanh_gap(x))


@rule("sech_squared")
def _sech_squared(xp: Any, x: Any, y: Any) -> Any:
    """Return x / cosh(y)², computed as x d (2 − d) with d = 1 − |tanh y|, which is accurate for large |y|."""
    d = xp.tanh_gap(y)
    return x * (d * (2 - d))


@rule("astype")
def _astype(xp: Any, x: Any, dtype: Any) -> Any:
    return xp.cast(xp.view(x), np.dtype(dtype))


@rule("where")
def _where(xp: Any, c: Any, x: Any, y: Any) -> Any:
    c, x, y = map(xp.operand, (c, x, y))
    kinds = [_kind(a) for a in (x, y)]
    strong = [k for k in kinds if not isinstance(k, type)]
    dtype = np.result_type(*strong, *(k() for k in kinds if isinstance(k, type)))
    c = xp.view(c)
    c = c if c.dtype == _BOOL else c != 0
    return xp.graph.elementwise(
        "where", dtype, c, xp.cast(xp.view(x, dtype), dtype), xp.cast(xp.view(y, dtype), dtype)
    )


@rule("pow")
def _pow(xp: Any, x: Any, y: Any) -> Any:
    x, y = xp.operand(x), xp.operand(y)
    exponent = y if isinstance(y, (int, float)) else None
    if isinstance(x, View) and x.dtype.kind == "f" and exponent is not None:
        if exponent in (0, 1, 2, 3, -1, 0.5):
            if exponent == 0:
                return xp.ones_like(x)
            powers = {1: lambda: x, 2: lambda: x * x, 3: lambda: x * x * x, -1: lambda: 1 / x}
            return xp.sqrt(x) if exponent == 0.5 else powers[int(exponent)]()
    elif isinstance(x, View) and x.dtype.kind in "iu":
        if type(exponent) is not int or not 0 < exponent < 64:
            raise NotNative("a power of integers has no native form")
        return _whole_power(x, exponent)
    return xp.power(x, y)


def _whole_power(x: View, n: int) -> View:
    """Return ``x`` to the integer power ``n``, computed by repeated squaring."""
    found = None
    while n:
        if n & 1:
            found = x if found is None else found * x
        n >>= 1
        x = x * x if n else x
    assert found is not None
    return found


@rule("ldexp")
def _ldexp(xp: Any, x: Any, n: Any) -> Any:
    """Return x · 2ⁿ as several products, because 2ⁿ may overflow where x · 2ⁿ does not."""
    x, n = xp.view(x, _FLOAT64), xp.view(n, _INT64)
    if x.dtype.kind != "f":
        raise NotNative("ldexp of integers has no native form")
    n = xp.maximum(xp.minimum(n, 2200), -2200)
    for _ in range(3):
        part = xp.maximum(xp.minimum(n, 100), -100) if x.dtype.itemsize == 4 else n
        step = xp.maximum(xp.minimum(part, 900), -900)
        x = x * xp.exp2(xp.cast(step, x.dtype))
        n = n - step
    return x


@rule("round")
def _round(xp: Any, x: Any, decimals: int) -> Any:
    if x.dtype.kind != "f":
        if decimals >= 0 and x.dtype.kind in "iu":
            return x
        raise NotNative("round of integers has no native form")
    if decimals == 0:
        return xp.rint(x)
    power = 10.0 ** abs(decimals)
    return xp.rint(x * power) / power if decimals > 0 else xp.rint(x / power) * power


@rule("isclose")
def _isclose(xp: Any, x: Any, y: Any, rtol: float, atol: float, equal_nan: bool) -> Any:
    x, y = xp.view(x, _FLOAT64), xp.view(y, _FLOAT64)
    if x.dtype.kind != "f" or y.dtype.kind != "f":
        raise NotNative("isclose of integers has no native form")
    near = xp.logical_and(xp.abs(x - y) <= atol + rtol * xp.abs(y), xp.isfinite(y))
    found = xp.logical_or(near, x == y)
    return xp.logical_or(found, xp.logical_and(x != x, y != y)) if equal_nan else found


@rule("nan_to_num")
def _nan_to_num(xp: Any, x: Any, nan: Any, posinf: Any, neginf: Any) -> Any:
    if x.dtype.kind != "f":
        return x
    top = np.finfo(x.dtype).max
    high, low = (float(top) if posinf is None else posinf), (-float(top) if neginf is None else neginf)
    inner = xp.where(x == math.inf, high, xp.where(x == -math.inf, low, x))
    return xp.where(x != x, nan, inner)


@rule("cosine")
def _cosine(xp: Any, x: Any, y: Any) -> Any:
    """Return x / hypot(x, y): 0 at the origin, and the limit where x or y is infinite."""
    r = xp.hypot(x, y)
    far, grows = r == math.inf, xp.abs(x) == math.inf
    x = xp.where(far, xp.where(grows, xp.copysign(1.0, x), 0.0), x)
    diagonal = xp.logical_and(grows, xp.abs(y) == math.inf)
    ends = xp.where(diagonal, math.sqrt(2), 1.0)
    return x / xp.where(far, ends, xp.where(r == 0, math.inf, r))


@rule("sinc")
def _sinc(xp: Any, x: Any) -> Any:
    """Return sin(πx) / (πx)."""
    t = xp.where(floats(x) == 0, 1.0e-20, x) * math.pi
    return xp.sin(t) / t


_GELU = 2 * math.sqrt(2 / math.pi)
_GELU_CUBE = 0.044715 * _GELU


@rule("tanh_gelu")
def _tanh_gelu(xp: Any, x: Any) -> Any:
    gate = 1 / (1 + xp.exp(x * (x * x * -_GELU_CUBE - _GELU)))
    return x * gate, gate


@rule("tanh_gelu_slope")
def _tanh_gelu_slope(xp: Any, x: Any, y: Any, gate: Any) -> Any:
    bend = (1 - gate) * gate * y
    return (bend * y * y * (3 * _GELU_CUBE) + bend * _GELU + gate) * x


# Products --------------------------------------------------------------------------------------------


@rule("matmul")
def _matmul(xp: Any, a: Any, b: Any) -> Any:
    """Return the matrix product of ``a`` and ``b``.

    A product with one row or one column becomes a sum of elementwise products, which can be fused.
    """
    a, b = xp.view(a), xp.view(b)
    dtype = np.result_type(a.dtype, b.dtype)
    if dtype.kind != "f" or not a.ndim or not b.ndim:
        raise NotNative(f"a matrix product of {dtype} has no native form")
    a, b = xp.cast(a, dtype), xp.cast(b, dtype)
    g = xp.graph
    row, column = a.ndim == 1, b.ndim == 1
    a = g.reshape(a, (1, *a.shape)) if row else a
    b = g.reshape(b, (*b.shape, 1)) if column else b
    if a.shape[-1] == 0:
        raise NotNative("an empty product has no native form")
    if a.shape[-1] == 1:
        y = a * b
    elif b.shape[-1] == 1:
        y = xp.sum(a * xp.matrix_transpose(b), axis=(-1,), keepdims=True)
    elif a.shape[-2] == 1 and a.shape[-1] <= 64:
        y = xp.sum(xp.matrix_transpose(a) * b, axis=(-2,), keepdims=True)
    else:
        y = g.matmul(a, b)
    shape = list(y.shape)
    if column:
        del shape[-1]
    if row:
        del shape[-1 if column else -2]
    return g.reshape(y, tuple(shape))


@rule("cross")
def _cross(xp: Any, x: Any, y: Any, axis: int) -> Any:
    def part(a: View, i: int) -> View:
        return a[(..., slice(i, i + 1), *(slice(None),) * (-axis - 1))]

    x0, x1, x2 = (part(x, i) for i in range(3))
    y0, y1, y2 = (part(y, i) for i in range(3))
    return xp.concat(x1 * y2 - x2 * y1, x2 * y0 - x0 * y2, x0 * y1 - x1 * y0, axis=axis)


@rule("attention_weights")
def _attention_weights(xp: Any, q: Any, k: Any, m: Any, scale: float, causal: bool) -> Any:
    e, total, _, _ = _exponentials(xp, q, k, m, scale, causal)
    return e / total


@rule("attention")
def _attention(xp: Any, q: Any, k: Any, v: Any, m: Any, scale: float, causal: bool) -> Any:
    e, total, top, dead = _exponentials(xp, q, k, m, scale, causal)
    log_total = top + xp.log(total)
    if dead is not None:
        log_total = xp.where(dead, math.inf, log_total)
    return xp.matmul(e, v) / total, log_total


def _exponentials(xp: Any, q: Any, k: Any, m: Any, scale: float, causal: bool) -> Sequence[Any]:
    """Return the parts of a softmax of attention scores s: exp(s - max s), its row sums, max s, and a mask.

    The scores are s = q kᵀ · scale, masked by ``m`` and ``causal``.  The mask is true for rows that are
    masked completely; it is None if there is no ``m``.
    """
    s = xp.matmul(q * scale, xp.matrix_transpose(k))
    if type(m) is not int:
        s = xp.where(m, s, -math.inf) if m.dtype == _BOOL else s + m
    if causal:
        s = xp.where(np.tri(s.shape[-2], s.shape[-1], dtype=bool), s, -math.inf)
    top = xp.max(s, axis=(-1,), keepdims=True)
    dead = None
    if type(m) is not int:
        dead = top == -math.inf
        top = xp.where(dead, 0, top)
    e = xp.exp(s - top)
    total = xp.sum(e, axis=(-1,), keepdims=True)
    return e, total if dead is None else xp.where(dead, 1, total), top, dead
