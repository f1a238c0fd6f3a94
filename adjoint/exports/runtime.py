"""What LLVM expects of the C library, as native functions: libraries without Python have none."""

from __future__ import annotations

import re

from adjoint.compiler.emit.code import Code, NativeFunction, native
from adjoint.compiler.emit.values import Value

__all__ = ["RUNTIME", "copy", "fill", "runtime_text"]

_MANTISSA = (1 << 52) - 1


@native(size="i64")
def copy(w: Code, to: Value, source: Value, size: Value) -> None:
    """Copy bytes."""
    whole = w.bits("and", size, -16)
    w.loop(0, whole, 16, lambda i, _: w.store(w.load(w.at(source, "i8", i), "i8", 16), w.at(to, "i8", i)))
    w.loop(whole, size, 1, lambda i, _: w.store(w.load(w.at(source, "i8", i), "i8"), w.at(to, "i8", i)))


@native(size="i64")
def fill(w: Code, to: Value, size: Value) -> None:
    """Set 64-bit words to 0."""
    w.loop(0, w.bits("lshr", size, 3), 1, lambda i, _: w.set_word(to, i, 0))


@native("ptr", size="i64")
def memcpy(w: Code, to: Value, source: Value, size: Value) -> Value:
    """Copy bytes, as the C library does."""
    copy(w, to, source, size)
    return to


@native("i32", size="i64")
def memcmp(w: Code, a: Value, b: Value, size: Value) -> Value:
    """Return 0 if two pieces of memory are equal, else 1."""
    with w.count(size) as i:
        w.give_if(w.differ(w.load(w.at(a, "i8", i), "i8"), w.load(w.at(b, "i8", i), "i8")), w.const(1, "i32"))
    return w.const(0, "i32")


def _rounded(w: Code, x: Value) -> Value:
    """Emit x rounded to the nearest integer, ties to even; the sign of zeros is kept."""
    big = w.intrinsic("copysign", w.like(x, 2.0**52), x)
    near = w.intrinsic("copysign", w.sub(w.add(x, big), big), x)
    return w.select(w.compare("olt", w.abs(x), 2.0**52), near, x)


@native("double", x="double")
def rint(w: Code, x: Value) -> Value:
    """Return the nearest integer."""
    return _rounded(w, x)


@native("double", x="double")
def floor(w: Code, x: Value) -> Value:
    """Return the largest integer that is not above x."""
    near = _rounded(w, x)
    return w.select(w.compare("ogt", near, x), w.sub(near, 1.0), near)


@native("double", x="double")
def ceil(w: Code, x: Value) -> Value:
    """Return the smallest integer that is not below x."""
    return w.neg(floor(w, w.neg(x)))


@native("double", x="double")
def trunc(w: Code, x: Value) -> Value:
    """Return x without its fraction."""
    return w.intrinsic("copysign", floor(w, w.abs(x)), x)


def _leading(w: Code, n: Value) -> Value:
    """Emit by how many bits the mantissa ``n`` must be shifted to the left."""
    w.declare("i64 @llvm.ctlz.i64(i64, i1)")
    return w.sub(w.emit(f"call i64 @llvm.ctlz.i64({n.typed}, i1 false)", "i64"), 11)


def _parts(w: Code, bits: Value) -> tuple[Value, Value]:
    """Emit the exponent and the mantissa of a positive number that is not 0; subnormal ones are shifted."""
    exponent, mantissa = w.bits("lshr", bits, 52), w.bits("and", bits, _MANTISSA)
    small = w.same(exponent, 0)
    by = w.select(small, _leading(w, mantissa), 0)
    exponent = w.select(small, w.sub(1, by), exponent)
    return exponent, w.select(small, w.bits("shl", mantissa, by), w.bits("or", mantissa, 1 << 52))


@native("double", x="double", y="double")
def fmod(w: Code, x: Value, y: Value) -> Value:
    """Return the remainder of x / y with the sign of x, which is exact."""
    a, b = w.bitcast(w.abs(x), "i64"), w.bitcast(w.abs(y), "i64")
    odd = w.either(w.same(b, 0), w.compare("uno", x, y), w.compare("oeq", w.abs(x), float("inf")))
    product = w.mul(x, y)
    w.give_if(odd, w.div(product, product))
    w.give_if(w.compare("ult", a, b), x)
    zero = w.mul(x, 0.0)
    (top, first), (low, divisor) = _parts(w, a), _parts(w, b)
    rest, left = w.scratch("i64", 1), w.sub(top, low)
    w.store(first, rest)
    with w.count(w.add(left, 1)) as k:
        less = w.sub(w.load(rest, "i64"), divisor)
        w.give_if(w.same(less, 0), zero)
        now = w.select(w.compare("sgt", less, 0), less, w.load(rest, "i64"))
        w.store(w.select(w.same(k, left), now, w.bits("shl", now, 1)), rest)
    found = w.load(rest, "i64")
    by = _leading(w, found)
    exponent = w.sub(low, by)
    found = w.bits("shl", found, by)
    normal = w.bits("or", w.bits("and", found, _MANTISSA), w.bits("shl", exponent, 52))
    positive = w.compare("sgt", exponent, 0)
    down = w.bits("lshr", found, w.select(positive, 0, w.sub(1, exponent)))
    size = w.bitcast(w.select(positive, normal, down), "double")
    return w.intrinsic("copysign", size, x)


def _single(function: NativeFunction, arguments: int) -> NativeFunction:
    """Return the float32 form of a function, whose float64 form is exact."""

    def emit(w: Code, x: Value, y: Value) -> Value:
        given = [w.convert(v, "double") for v in (x, y)[:arguments]]
        return w.convert(function(w, *given), "float")

    names = ("x", "y")[:arguments]
    body = emit if arguments == 2 else lambda w, x: emit(w, x, x)
    made = NativeFunction(body, "float", dict.fromkeys(names, "float"), False)
    made.name = f"{function.name}f"
    made.parameters = [("float", name) for name in names]
    return made


_LIBRARY = [memcpy, memcmp, rint, floor, ceil, trunc, fmod]
_LIBRARY += [_single(f, 1) for f in (rint, floor, ceil, trunc)] + [_single(fmod, 2)]
RUNTIME = [f.name for f in _LIBRARY]
# what in a text makes LLVM call these functions
_MARKS = {
    "memcpy": r"@llvm\.memcpy\.", "memcmp": r"@memcmp\(",
    "fmod": r" frem .*\bdouble\b", "fmodf": r" frem .*\bfloat\b",
    **{n: rf"@llvm\.{n}\.[v0-9]*f64\(" for n in ("rint", "floor", "ceil", "trunc")},
    **{f"{n}f": rf"@llvm\.{n}\.[v0-9]*f32\(" for n in ("rint", "floor", "ceil", "trunc")},
}  # fmt: skip


def runtime_text(texts: list[str]) -> str:
    """Return definitions of the functions of the C library that the LLVM texts need."""
    w = Code()
    whole = "\n".join(texts)
    for function in _LIBRARY:
        if re.search(_MARKS[function.name], whole):
            function.define(w)
    return "\n".join(w.unit.parts())
