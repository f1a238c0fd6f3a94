"""Random functions that write into state: outputs that may or may not take the memory of what they replace."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from random_programs import CLOSE, drawn_dtype, strided

import adjoint as ad

SIZES = (1, 2, 3, 5, 8, 16, 33, 70)
UNARY = [
    ad.tanh, lambda a: a * 0.5, lambda a: -a, lambda a: ad.exp(-a * a), ad.sigmoid, lambda a: a + 1.0, ad.relu,
    lambda a: ad.sqrt(ad.abs(a) + 0.1),
]  # fmt: skip
BINARY = [
    ad.add, ad.subtract, lambda a, b: a * ad.tanh(b), ad.maximum, lambda a, b: a / (1 + b * b),
    lambda a, b: ad.where(a > b, a, b * 0.5),
]  # fmt: skip


class Updates:
    """A random function of an array and of a few tensors, which it overwrites in between."""

    def __init__(self, seed: int) -> None:
        r = np.random.default_rng(seed)
        self.seed, self.dtype = seed, drawn_dtype(seed, ("f4", "f8")[r.integers(2)])
        n = int(r.choice(SIZES))
        m = n if r.random() < 0.5 else int(r.choice((1, 4, 7, 17, 40)))
        others = [(n, m), (n, m), (n, m), (n,), (m,), (m, n), (n * m,), ()]
        self.shapes = [(n, m), *(others[r.integers(len(others))] for _ in range(r.integers(0, 4)))]
        self.choices = r.integers(0, 1 << 30, (int(r.integers(3, 16)), 6)).tolist()
        count = int(r.integers(1, len(self.shapes) + 2))
        self.writes = [
            (int(r.integers(0, len(self.choices) + 1)), int(r.integers(len(self.shapes))), r.integers(0, 1 << 30, 3))
            for _ in range(count)
        ]  # fmt: skip
        self.results = r.integers(0, 1 << 30, 2).tolist()

    def state(self) -> list[Any]:
        """Return new tensors."""
        r = np.random.default_rng(self.seed + 1)
        return [ad.tensor(r.normal(size=s).astype(self.dtype)) for s in self.shapes]

    def data(self, call: int) -> Any:
        """Return the argument of a call."""
        r = np.random.default_rng((self.seed, call))
        return ad.asarray(strided(r, r.normal(size=self.shapes[0]).astype(self.dtype)))

    def run(self, state: list[Any], x: Any) -> list[Any]:
        """Call the function."""
        values = [x]

        def pick(i: int) -> Any:
            i %= 2 * len(state) + len(values)
            return state[i // 2] if i < 2 * len(state) else values[i - 2 * len(state)]

        for place in range(len(self.choices) + 1):
            for at, k, picks in self.writes:
                if at == place:
                    fits = (_fitted(pick(int(i)), state[k].shape) for i in picks)
                    value = next((v for v in fits if v is not None), state[k] * 0.9)
                    state[k].copy_(value * 0.7 if value is state[k] else value)
            if place < len(self.choices):
                kind, i, j, *rest = self.choices[place]
                made = _applied(kind % 14, pick(i), pick(j), *rest)
                if made is not None and made.size <= 5000:
                    values.append(made)
        return [values[i % len(values)] * 1.0 for i in self.results]


def _fitted(v: Any, shape: tuple[int, ...]) -> Any:
    """Return a value with the elements of another, or sums of them, in a shape; None if there is none."""
    if v.shape == shape:
        return v
    if v.size == int(np.prod(shape)):
        return v.reshape(shape)
    if v.ndim == 2 and shape == (v.shape[0],):
        return v.sum(1) * 0.1
    if v.ndim == 2 and shape == (v.shape[1],):
        return v.mean(0)
    if shape == ():
        return v.mean()
    try:
        return ad.broadcast_to(v, shape) * 1.0
    except (ValueError, ad.errors.AdjointError):
        return None


def _applied(kind: int, a: Any, b: Any, c: int, d: int, e: int) -> Any:
    """Apply one op; None if it does not fit."""
    if 3 <= kind < 7:
        try:
            np.broadcast_shapes(a.shape, b.shape)
        except ValueError:
            return None
        return BINARY[c % len(BINARY)](a, b)
    if kind == 7 and a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0]:
        return (a @ b) * float(a.shape[1] ** -0.5)
    if kind == 8 and a.ndim == 2:
        return a.T
    if kind < 9 or not a.ndim:
        return UNARY[c % len(UNARY)](a)
    n, keep, axis = a.shape[0], bool(e % 2), d % a.ndim
    if kind == 9:
        return a[::-1]
    if kind == 10:
        sums = ad.sum if c % 3 == 0 else ad.max
        return ad.softmax(a, axis=axis) if c % 3 == 1 else sums(a, axis, keepdims=keep) * 0.2
    if kind == 13:
        return a[np.resize([d % n, 0, -1], n)]
    if n == 1:
        return a * 2.0
    q = 1 if kind == 11 else 1 + d % (n - 1)
    if keep:
        return ad.concat([a[:q] * 2.0, a[q:] + 1.0])
    return ad.concat([a[q:], a[:q]]) if kind == 11 else ad.concat([a[n - q :] - 1.0, a[: n - q] * 0.5])


def check(seed: int) -> None:
    """Compare the function itself, compiled code that owns its state, and code whose state somebody holds."""
    updates = Updates(seed)
    eager, free, held = (updates.state() for _ in range(3))
    compiled = [ad.compile(functools.partial(updates.run, s), backend="native") for s in (free, held)]
    tolerance = (1 if updates.dtype.itemsize == 2 else 10) * CLOSE[updates.dtype]
    for k in range(4):
        for e, f, h in zip(eager, free, held, strict=True):
            f.copy_(e)
            h.copy_(e)
        kept = [h._data for h in held]
        before = [a.copy() for a in kept]
        x = updates.data(k)
        wanted, a, b = updates.run(eager, x), compiled[0](x), compiled[1](x)
        for old, then in zip(kept, before, strict=True):
            assert old.tobytes() == then.tobytes(), "memory that somebody holds was written to"
        for w, u, v in zip([*wanted, *eager], [*a, *free], [*b, *held], strict=True):
            w, u, v = w.numpy(), u.numpy(), v.numpy()
            assert u.tobytes() == v.tobytes(), "reused memory changes the result"
            u, w = u.astype(float), w.astype(float)
            scale = np.abs(w[np.isfinite(w)]).max(initial=1.0)
            np.testing.assert_allclose(u, w, rtol=tolerance, atol=tolerance * scale)
