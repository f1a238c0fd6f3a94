"""Emit elementwise primitives and the operations of reductions.

Results equal those of NumPy, also for NaN, infinities, signed zeros and integer division by 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.compiler.emit.arithmetic import Arithmetic
from adjoint.compiler.emit.halves import narrowed, widened
from adjoint.compiler.emit.math import emit as emit_math
from adjoint.compiler.emit.values import HALVES, Value, element_of
from adjoint.compiler.lower.graph import Primitive

__all__ = ["apply", "combine", "neutral"]

_PLAIN: dict[str, Callable[..., Value]] = {
    "copy": lambda w, x: x, "where": lambda w, *x: w.select(*x), "add": Arithmetic.add,
    "subtract": Arithmetic.sub, "multiply": Arithmetic.mul,
}  # fmt: skip
_ORDER = {"less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge"}
_EXTREMES = ("maximum", "minimum", "fmax", "fmin")
_FLOATS: dict[str, Callable[..., Value]] = {
    "divide": Arithmetic.div, "negative": lambda w, x: w.neg(x), "abs": Arithmetic.abs,
    "copysign": lambda w, *x: w.intrinsic("copysign", *x), "fmod": lambda w, *x: w.op("frem", *x),
    "isnan": lambda w, x: w.compare("uno", x, x), "logical_not": lambda w, x: w.compare("oeq", x, 0),
    "signbit": lambda w, x: w.compare("slt", w.bitcast(x, _bits_of(x)), 0),
    "remainder": lambda w, *x: _divided(w, "remainder", *x),
    "floor_divide": lambda w, *x: _divided(w, "floor_divide", *x),
    "power": lambda w, *x: emit_math(w, "pow", *x),
}  # fmt: skip
_INTEGERS: dict[str, Callable[..., Value]] = {
    "negative": lambda w, x: w.neg(x), "bitwise_invert": lambda w, x: w.bits("xor", x, -1),
    "logical_not": lambda w, x: w.compare("eq", x, 0), "isnan": lambda w, x: w.compare("ne", x, x),
}  # fmt: skip


def apply(w: Arithmetic, op: str, given: Any, made: Any, *x: Value) -> Value:
    """Emit the primitive ``op`` of operands ``x`` of dtype ``given``; the result has the dtype ``made``.

    Operands of half precision are converted to float32, unless the result has half precision too.
    """
    if made.name not in HALVES and any(v.element in HALVES.values() for v in x):
        x = tuple([widened(w, v) for v in x])
        given = np.dtype(np.float32) if given.name in HALVES else given
    if op in _PLAIN:
        return _PLAIN[op](w, *x)
    if op == "astype":
        return cast(w, x[0], given, made)
    kind, _, logic = op.partition("_")
    if logic in ("and", "or", "xor"):
        return w.bits(logic, *(w.convert(v, "i1") if kind == "logical" else v for v in x))
    if op in _ORDER:
        return w.compare({"f": "o", "i": "s"}.get(given.kind, "u") + _ORDER[op], *x)
    if op in ("equal", "not_equal"):
        names = ("oeq", "une") if given.kind == "f" else ("eq", "ne")
        return w.compare(names[op == "not_equal"], *x)
    if op in _EXTREMES:
        return extreme(w, op, given, *x)
    if given.kind != "f":
        return _of_integers(w, op, given, *x)
    if op in ("floor", "ceil", "trunc", "rint"):
        return w.intrinsic(op, x[0])
    return _FLOATS[op](w, *x) if op in _FLOATS else emit_math(w, op, *x)


def cast(w: Arithmetic, x: Value, given: Any, made: Any) -> Value:
    """Emit a conversion between dtypes; a float out of range gives what x86 processors give."""
    element = element_of(made)
    if given.name in HALVES:
        return cast(w, widened(w, x), np.dtype(np.float32), made)
    if made.name in HALVES:
        if given.kind != "f":
            x = cast(w, x, given, np.dtype(np.float32))
        return narrowed(w, x, element)
    if given.kind == "f" and made.kind in "iu":
        wide = _to_int64(w, x)
        if made == np.dtype(np.uint64):  # for 2^63 and above: subtract 2^63, convert, and add it again
            high = w.compare("oge", x, 2.0**63)
            upper = w.bits("xor", _to_int64(w, w.sub(x, 2.0**63)), -(2**63))
            wide = w.select(high, upper, wide)
        return w.convert(wide, element)
    signed = (given if given.kind in "iu" else made).kind == "i"
    return w.convert(x, element, signed)


def _to_int64(w: Arithmetic, x: Value) -> Value:
    """Emit a conversion to int64; NaN and numbers out of range become the smallest int64, as on x86."""
    inside = w.bits("and", w.compare("oge", x, -(2.0**63)), w.compare("olt", x, 2.0**63))
    whole = w.convert(w.select(inside, x, 0), "i64")
    return w.select(inside, whole, -(2**63))


def extreme(w: Arithmetic, op: str, dtype: Any, a: Value, b: Value) -> Value:
    """Emit the larger or smaller of two values; ``op`` is "maximum", "minimum", "fmax" or "fmin".

    ``maximum`` is NaN if either operand is NaN, ``fmax`` only if both are.  If the operands are equal, the
    result is the second operand, as in NumPy.
    """
    more = op in ("maximum", "fmax")
    if dtype.kind != "f":
        name = ("sgt", "slt") if dtype.kind == "i" else ("ugt", "ult")
        return w.select(w.compare(name[not more], a, b), a, b)
    first = w.compare("ogt" if more else "olt", a, b)
    odd = w.compare("uno", a, a) if op in ("maximum", "minimum") else w.compare("uno", b, b)
    return w.select(w.bits("or", first, odd), a, b)


def _bits_of(x: Value) -> str:
    return "i32" if x.element == "float" else "i64"


def _divided(w: Arithmetic, op: str, a: Value, b: Value) -> Value:
    """Emit Python's ``a % b`` or ``a // b`` of floats; the remainder has the sign of the divisor."""
    rest = w.op("frem", a, b)
    nonzero = w.compare("une", rest, 0)
    across = w.compare("slt", w.bits("xor", w.bitcast(rest, _bits_of(a)), w.bitcast(b, _bits_of(b))), 0)
    turn = w.bits("and", nonzero, across)
    found = w.select(turn, w.add(rest, b), rest)
    if op == "remainder":
        return w.select(nonzero, found, w.intrinsic("copysign", w.like(a, 0.0), b))
    quotient = w.div(w.sub(a, rest), b)
    quotient = w.select(turn, w.sub(quotient, 1.0), quotient)
    whole = w.intrinsic("floor", quotient)
    whole = w.select(w.compare("ogt", w.sub(quotient, whole), 0.5), w.add(whole, 1.0), whole)
    zero = w.intrinsic("copysign", w.like(a, 0.0), w.div(a, b))
    whole = w.select(w.compare("oeq", quotient, 0), zero, whole)
    return w.select(w.compare("oeq", b, 0), w.div(a, b), whole)


def _of_integers(w: Arithmetic, op: str, dtype: Any, *x: Value) -> Value:
    """Emit the primitive ``op`` on integer operands of a dtype."""
    bits = dtype.itemsize * 8
    if op in _INTEGERS:
        return _INTEGERS[op](w, *x)
    if op in ("abs", "bitwise_count"):
        size = w.select(w.compare("slt", x[0], 0), w.neg(x[0]), x[0]) if dtype.kind == "i" else x[0]
        return size if op == "abs" else w.convert(w.intrinsic("ctpop", size), "i8", False)
    if op in ("bitwise_left_shift", "bitwise_right_shift"):
        left = op == "bitwise_left_shift"
        name = "shl" if left else "ashr" if dtype.kind == "i" else "lshr"
        fits = w.compare("ult", x[1], bits)
        found = w.bits(name, x[0], w.select(fits, x[1], 0))
        beyond = w.bits("ashr", x[0], bits - 1) if name == "ashr" else w.like(x[0], 0)
        return w.select(fits, found, beyond)
    if op in ("floor_divide", "remainder", "fmod"):
        return _divided_integers(w, op, dtype, *x)
    raise AssertionError(f"{op} of {dtype} is not an elementwise primitive")


def _divided_integers(w: Arithmetic, op: str, dtype: Any, a: Value, b: Value) -> Value:
    """Emit ``floor_divide``, ``remainder`` or ``fmod`` of integers; the result is 0 if the divisor is 0."""
    none = w.compare("eq", b, 0)
    if dtype.kind == "u":
        quotient = w.op("udiv", a, w.select(none, 1, b))
    else:
        minus = w.compare("eq", b, -1)
        quotient = w.op("sdiv", a, w.select(w.bits("or", none, minus), w.like(b, 1), b))
        quotient = w.select(minus, w.neg(a), quotient)
    rest = w.sub(a, w.mul(quotient, b))
    if dtype.kind == "i" and op != "fmod":
        turn = w.bits("and", w.compare("ne", rest, 0), w.compare("slt", w.bits("xor", rest, b), 0))
        quotient = w.select(turn, w.sub(quotient, 1), quotient)
        rest = w.select(turn, w.add(rest, b), rest)
    return w.select(none, w.like(a, 0), quotient if op == "floor_divide" else rest)


# Reductions ---------------------------------------------------------------------------------------

_COMBINED: dict[str, Callable[[Arithmetic, Any, Value, Value], Value]] = {
    "sum": lambda w, _, a, b: w.add(a, b),
    "prod": lambda w, _, a, b: w.mul(a, b),
    "max": lambda w, d, a, b: w.bits("or", a, b) if d.kind == "b" else extreme(w, "maximum", d, a, b),
    "min": lambda w, d, a, b: w.bits("and", a, b) if d.kind == "b" else extreme(w, "minimum", d, a, b),
}


def combine(w: Arithmetic, n: Primitive, a: Value, b: Value) -> Value:
    """Emit the combination of two values by the operation of the reduction ``n``: a + b for a sum."""
    return _COMBINED[n.params[0]](w, n.dtype, a, b)


def neutral(n: Primitive) -> Any:
    """Return the neutral element of a reduction, such as 1 for a product."""
    op, dtype = n.params[0], n.dtype
    if op == "sum":
        return -0.0 if dtype.kind == "f" else 0
    if op == "prod":
        return 1
    if dtype.kind == "b":
        return op == "min"
    if dtype.kind == "f":
        return -math.inf if op == "max" else math.inf
    return int(np.iinfo(dtype).min if op == "max" else np.iinfo(dtype).max)
