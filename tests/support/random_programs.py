"""Random programs over arrays of all shape classes and dtypes, for compilers to agree on."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import adjoint as ad

SHAPES = [
    (),
    (1,),
    (3,),
    (16,),
    (33,),
    (4, 1),
    (7, 5),
    (1, 8),
    (0, 3),
    (2, 3, 17),
    (5, 1, 4),
    (3, 40),
    (64, 9),
    (2, 15),
    (17, 8),
    (9, 31),
    (65, 1),
]
FLOATS = ("f4", "f8")
HALVES = [np.dtype("f2")]
with contextlib.suppress(ImportError):
    import ml_dtypes

    HALVES.append(np.dtype(ml_dtypes.bfloat16))
# differences of native code from eager mode; in half precision, one of many results may be rounded to a neighbour
CLOSE = {
    np.dtype("f4"): 1e-5,
    np.dtype("f8"): 1e-12,
    HALVES[0]: 0.01,
    HALVES[-1]: 0.08 if len(HALVES) > 1 else 0.01,
}

UNARY: list[Callable[[Any], Any]] = [
    ad.tanh, ad.exp, ad.sin, ad.abs, ad.relu, ad.sqrt, ad.square, ad.sigmoid, ad.floor, ad.sign,
    lambda x: -x, lambda x: ad.log(ad.abs(x) + 0.5), lambda x: 1 / (1 + x * x), lambda x: ad.where(x > 0, x, 0.25 * x),
    lambda x: ad.isnan(x), lambda x: x * 2 - 1,
]  # fmt: skip
BINARY: list[Callable[[Any, Any], Any]] = [
    ad.add, ad.subtract, ad.multiply, ad.maximum, ad.minimum, lambda a, b: a / (1 + b * b), lambda a, b: a < b,
    lambda a, b: ad.where(a > b, a, b), ad.hypot, ad.copysign,
]  # fmt: skip
REDUCED = [ad.sum, ad.mean, ad.max, ad.min, ad.logsumexp, ad.var]


def drawn_dtype(seed: int, usual: str) -> Any:
    """Return the dtype of a program: ``usual`` or, for some seeds, half precision."""
    r = np.random.default_rng((seed, 79))
    return HALVES[r.integers(len(HALVES))] if r.random() < 0.4 else np.dtype(usual)


def number(x: Any) -> Any:
    """Return floats; integers and booleans become float64."""
    return x if x.dtype.kind == "f" else x.astype(np.float64)


def arrays(rng: Any, count: int) -> list[Any]:
    """Return arrays of random shapes, dtypes and memory orders, some with special values."""
    found = []
    for _ in range(count):
        shape = SHAPES[rng.integers(len(SHAPES))]
        kind = ("f4", "f4", "f8", "i8", "i4", "?")[rng.integers(6)]
        a = rng.normal(size=shape) * 2
        a = (a > 0) if kind == "?" else a.astype(kind)
        if kind in FLOATS and a.size and rng.random() < 0.2:
            a = np.array(a)
            a.reshape(-1)[rng.integers(a.size)] = (np.nan, np.inf, -np.inf, -0.0)[rng.integers(4)]
        found.append(strided(rng, a) if rng.random() < 0.5 else a)
    return found


def strided(rng: Any, a: Any) -> Any:
    """Return an array of the same shape and dtype, often with other strides, and often with other values."""
    kind = rng.integers(8)
    if kind == 0:
        return np.asfortranarray(a)
    if kind == 1 and a.ndim:
        return np.repeat(a, 2, axis=-1)[..., ::2]
    if kind == 2 and a.ndim:
        return a[::-1]
    if kind == 3 and a.ndim and a.shape[0]:
        return np.broadcast_to(a[:1], a.shape)
    if kind == 4:
        return np.concatenate([np.zeros(3, a.dtype), a.reshape(-1)])[3:].reshape(a.shape)
    if kind == 5:
        a = a.copy()
        a.setflags(write=False)
    return a


def program(rng: Any, length: int) -> Callable[..., list[Any]]:
    """Return a function of tensors that applies random ops; the choices are fixed by the generator.

    It returns the value of each op.  Its attribute ``each`` is ``ops_of`` for these choices.
    """
    choices = rng.integers(0, 1 << 30, size=(length, 6))

    def run(*given: Any) -> list[Any]:
        return [made for _, _, made in ops_of(choices, given)] or [given[0] * 1]

    run.each = functools.partial(ops_of, choices)  # type: ignore[attr-defined]
    return run


def ops_of(choices: Any, given: Sequence[Any], found: Sequence[Any] | None = None) -> Iterator[Any]:
    """Yield (kind, operands, result) of each op of a program.

    With ``found``, the results of the program elsewhere, each op is applied to these results.
    """
    values = list(given)
    for kind, i, j, k, m, n in choices:
        a, b = values[i % len(values)], values[j % len(values)]
        made = step(int(kind) % 10, a, b, int(k), int(m), int(n))
        if made is not None and made.size < 4000:
            yield int(kind) % 10, (a, b, int(k), int(m)), made
            values.append(made if found is None else found[len(values) - len(given)])


def step(kind: int, a: Any, b: Any, k: int, m: int, n: int) -> Any:
    """Apply one op, or none if it does not fit."""
    if kind < 3:
        f = UNARY[k % len(UNARY)]
        return f(number(a))
    if kind < 6:
        try:
            np.broadcast_shapes(a.shape, b.shape)
        except ValueError:
            return None
        return BINARY[k % len(BINARY)](number(a), number(b))
    if kind == 6 and a.ndim and a.size:
        axis = None if m % 4 == 0 else m % a.ndim
        return REDUCED[k % len(REDUCED)](number(a), axis=axis, keepdims=bool(n % 2))
    if kind == 7:
        return moved(a, b, k, m, n)
    if kind == 8 and a.ndim >= 2 and b.ndim >= 2 and a.size and b.size:
        return ad.matmul(number(a), ad.swapaxes(number(b), -1, -2)) if fits(a, b) else None
    if kind == 9 and a.ndim and a.size:
        return ad.take(a, np.array([m % a.shape[0], 0, -1]), axis=0)
    return None


def fits(a: Any, b: Any) -> bool:
    try:
        np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        return False
    return bool(a.shape[-1] == b.shape[-1])


def moved(a: Any, b: Any, k: int, m: int, n: int) -> Any:
    """Rearrange the elements."""
    if k % 6 == 0:
        return ad.reshape(a, (a.size,))
    if not a.ndim:
        return None
    if k % 6 == 1:
        return ad.moveaxis(a, m % a.ndim, n % a.ndim)
    if k % 6 == 2:
        return a[(slice(None),) * (m % a.ndim) + (slice(None, None, -1),)]
    if k % 6 == 3:
        return a[..., n % 2 :: 2]
    if k % 6 == 4:
        return ad.concat([a, a * 1 if a.dtype != bool else a], axis=m % a.ndim)
    return a[(..., None)] if a.ndim < 3 else a[0] if a.shape[0] else None
