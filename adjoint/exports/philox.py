"""NumPy's generator Philox without Python: random words and uniform numbers.

The state of a generator is 13 words; see ``restore.GENERATOR``.
"""

from __future__ import annotations

from adjoint.compiler.emit.code import Code, native
from adjoint.compiler.emit.values import Value

__all__ = ["next_half", "next_word", "uniform"]

_COUNTER, _KEY, _BUFFER, _PLACE, _HAS, _HALF = 0, 4, 6, 10, 11, 12
_FACTORS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_STEPS = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_ROUNDS = 10


def _signed(n: int) -> int:
    return n - (1 << 64) if n >> 63 else n


@native("i64", a="i64", b="i64")
def high_product(w: Code, a: Value, b: Value) -> Value:
    """Return the upper 64 bits of the product of two unsigned integers."""
    mask = (1 << 32) - 1
    a0, a1 = w.bits("and", a, mask), w.bits("lshr", a, 32)
    b0, b1 = w.bits("and", b, mask), w.bits("lshr", b, 32)
    middle = w.add(w.bits("lshr", w.mul(a0, b0), 32), w.mul(a1, b0))
    other = w.add(w.bits("and", middle, mask), w.mul(a0, b1))
    return w.add(w.mul(a1, b1), w.add(w.bits("lshr", middle, 32), w.bits("lshr", other, 32)))


@native()
def next_block(w: Code, state: Value) -> None:
    """Increment the counter, and fill the buffer with four random words."""
    w.set_word(state, _COUNTER, w.add(w.word(state, _COUNTER), 1))
    carry = w.same(w.word(state, _COUNTER), 0)
    for k in range(1, 4):
        word = w.add(w.word(state, _COUNTER + k), w.convert(carry, "i64", signed=False))
        w.set_word(state, _COUNTER + k, word)
        carry = w.all(carry, w.same(word, 0))
    x = [w.word(state, _COUNTER + k) for k in range(4)]
    key = [w.word(state, _KEY + k) for k in range(2)]
    for k in range(_ROUNDS):
        if k:
            key = [w.add(a, _signed(step)) for a, step in zip(key, _STEPS, strict=True)]
        factors = [w.value(_signed(f)) for f in _FACTORS]
        high = [high_product(w, f, x[2 * i]) for i, f in enumerate(factors)]
        low = [w.mul(f, x[2 * i]) for i, f in enumerate(factors)]
        first = w.bits("xor", w.bits("xor", high[1], x[1]), key[0])
        third = w.bits("xor", w.bits("xor", high[0], x[3]), key[1])
        x = [first, low[1], third, low[0]]
    for k in range(4):
        w.set_word(state, _BUFFER + k, x[k])


@native("i64")
def next_word(w: Code, state: Value) -> Value:
    """Return the next 64 random bits."""
    place = w.word(state, _PLACE)
    with w.when(w.compare("ult", place, 4)):  # also if the state is damaged, nothing else is read
        w.set_word(state, _PLACE, w.add(place, 1))
        w.give(w.word(state, w.add(place, _BUFFER)))
    next_block(w, state)
    w.set_word(state, _PLACE, 1)
    return w.word(state, _BUFFER)


@native("i64")
def next_half(w: Code, state: Value) -> Value:
    """Return the next 32 random bits."""
    with w.unless(w.same(w.word(state, _HAS), 0)):
        w.set_word(state, _HAS, 0)
        w.give(w.word(state, _HALF))
    both = next_word(w, state)
    w.set_word(state, _HAS, 1)
    w.set_word(state, _HALF, w.bits("lshr", both, 32))
    return w.bits("and", both, (1 << 32) - 1)


def uniform(w: Code, state: Value, element: str) -> Value:
    """Emit the next uniform number of a floating type."""
    if element == "double":
        return w.mul(w.convert(w.bits("lshr", next_word(w, state), 11), "double"), 2.0**-53)
    return w.mul(w.convert(w.bits("lshr", next_half(w, state), 8), "float"), 2.0**-24)
