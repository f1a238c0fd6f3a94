"""Normal and exponential draws without Python, by the ziggurat method with the layers that NumPy uses.

The layers are read from NumPy: with chosen random words, a draw shows the width of a layer and the part of it
that needs no further test.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from adjoint.compiler.emit.code import Code, native
from adjoint.compiler.emit.math import emit as emit_math
from adjoint.compiler.emit.values import Value, element_of
from adjoint.exports.philox import next_half, next_word, uniform
from adjoint.exports.texts import constant

__all__ = ["KINDS", "ZIGGURATS"]

KINDS = ("standard_normal", "standard_exponential")


class _Layers(NamedTuple):
    """For each of 256 layers: the width of one step, the steps that lie under the curve, and the height."""

    width: np.ndarray[Any, Any]
    inside: np.ndarray[Any, Any]
    height: np.ndarray[Any, Any]
    end: float  # where the tail starts


class _Form(NamedTuple):
    """The bits of a random word: the position of the layer, of the steps, and the number of steps."""

    layer: int
    steps: int
    number: int


_FORMS = {
    ("standard_normal", "d"): _Form(0, 9, 52), ("standard_normal", "f"): _Form(0, 9, 23),
    ("standard_exponential", "d"): _Form(3, 11, 53), ("standard_exponential", "f"): _Form(1, 9, 23),
}  # fmt: skip


@functools.cache
def _layers(kind: str, char: str) -> _Layers:
    """Return the layers of a distribution in NumPy."""
    form, dtype = _FORMS[kind, char], np.dtype(char)
    bits = np.random.Philox(0)
    state: Any = bits.state
    draw: Any = getattr(np.random.Generator(bits), kind)

    def drawn(layer: int, step: int) -> tuple[Any, bool]:
        """Return the draw of a random word, and whether it needed no other word."""
        word = layer << form.layer | step << form.steps
        state.update(buffer=np.array([word, 0, 0, 0], np.uint64), buffer_pos=0, has_uint32=0)
        bits.state = state
        found: Any = draw(dtype=dtype)
        after: Any = bits.state
        same = bool((after["state"]["counter"] == state["state"]["counter"]).all())
        return found, same and after["buffer_pos"] == 1 and after["has_uint32"] == (char == "f")

    inside = []
    for layer in range(256):
        low, high = (
            -1,
            1 << form.number,
        )  # the draw of step ``low`` needs no other word, that of ``high`` does
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if drawn(layer, middle)[1] else (low, middle)
        inside.append(high)
    width = np.array([drawn(layer, 1)[0] for layer in range(256)], dtype)
    if char == "d":
        edge = width * 2.0**form.number
        height = np.exp(-0.5 * edge * edge if kind == "standard_normal" else -edge)
        height[0], end = 1.0, float(edge[255])
    else:
        whole = _layers(kind, "d")
        height, end = whole.height.astype(dtype), whole.end
    return _Layers(width, np.array(inside, np.int64), height, end)


def _ziggurat(w: Code, state: Value, kind: str, char: str) -> Value:
    """Emit a draw of a distribution."""
    layers, form, element = _layers(kind, char), _FORMS[kind, char], element_of(np.dtype(char))
    normal = kind == "standard_normal"

    def table(values: Any, k: Value) -> Value:
        kind = element_of(values.dtype)
        return w.load(w.at(constant(w, values), kind, k), kind)

    w.mark("again")
    word = next_word(w, state) if char == "d" else next_half(w, state)
    k = w.bits("and", w.bits("lshr", word, form.layer), 255)
    step = w.bits("and", w.bits("lshr", word, form.steps), (1 << form.number) - 1)
    x = w.mul(w.convert(step, element), table(layers.width, k))
    if normal:
        x = w.select(w.same(w.bits("and", w.bits("lshr", word, 8), 1), 0), x, w.neg(x))
    w.give_if(w.compare("slt", step, table(layers.inside, k)), x)
    with w.when(w.same(k, 0)):
        _tail(w, state, normal, step, layers.end, element)
    low, high = table(layers.height, k), table(layers.height, w.sub(k, 1))
    y = w.add(w.mul(w.sub(high, low), uniform(w, state, element)), low)
    wide = w.convert(x, "double")
    curve = emit_math(w, "exp", w.mul(w.mul(wide, -0.5), wide) if normal else w.neg(wide))
    w.give_if(w.compare("olt", w.convert(y, "double"), curve), x)
    w.goto("again")
    return x


def _tail(w: Code, state: Value, normal: bool, step: Value, end: float, element: str) -> None:
    """Emit a draw of the tail, which starts at ``end``."""

    def log() -> Value:
        return emit_math(w, "log1p", w.neg(uniform(w, state, element)))

    start = w.const(end, element)
    if not normal:
        w.give(w.sub(start, log()))
        return
    w.mark("tail")
    x, y = w.mul(w.const(-1.0 / end, element), log()), w.neg(log())
    with w.when(w.compare("ogt", w.add(y, y), w.mul(x, x))):
        found = w.add(start, x)
        w.give(w.select(w.same(w.bits("and", w.bits("lshr", step, 8), 1), 0), found, w.neg(found)))
    w.goto("tail")


@native("double")
def normal64(w: Code, state: Value) -> Value:
    """Return a float64 draw of the normal distribution."""
    return _ziggurat(w, state, "standard_normal", "d")


@native("float")
def normal32(w: Code, state: Value) -> Value:
    """Return a float32 draw of the normal distribution."""
    return _ziggurat(w, state, "standard_normal", "f")


@native("double")
def exponential64(w: Code, state: Value) -> Value:
    """Return a float64 draw of the exponential distribution."""
    return _ziggurat(w, state, "standard_exponential", "d")


@native("float")
def exponential32(w: Code, state: Value) -> Value:
    """Return a float32 draw of the exponential distribution."""
    return _ziggurat(w, state, "standard_exponential", "f")


ZIGGURATS = {
    ("standard_normal", "double"): normal64, ("standard_normal", "float"): normal32,
    ("standard_exponential", "double"): exponential64, ("standard_exponential", "float"): exponential32,
}  # fmt: skip
