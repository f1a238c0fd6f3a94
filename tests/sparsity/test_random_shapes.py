"""Random programs of arrays with any number of axes, all of the same length: no entry of a pattern is missing.

Where lengths are equal, an axis that is taken for another one raises nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjoint as ad

N = 3
Function = Callable[[Any], Any]


def index(rng: np.random.Generator, x: Any, shape: tuple[int, ...]) -> Function:
    """An index of this shape as a function of ``x``: an array, a tensor, or computed from elements."""
    chosen = rng.integers(0, N, shape)
    places = rng.integers(0, x.size, shape)
    held = ad.tensor(chosen)
    computed = lambda x: ad.floor(ad.abs(3.7 * x.reshape(-1)[places])).astype(int) % N
    forms: list[Function] = [lambda x: chosen, lambda x: held, computed, computed]
    return forms[rng.integers(0, 4)]


def step(rng: np.random.Generator, x: Any) -> Function:
    """A random function of ``x``."""
    axis = int(rng.integers(0, x.ndim)) - x.ndim * int(rng.integers(0, 2))
    cube = lambda least: np.where(rng.random((N,) * 5) < 0.4, 0.0, rng.normal(size=(N,) * 5))[
        (0,) * int(rng.integers(0, 6 - least))
    ]
    c, square = cube(1), 4 * np.eye(N) + 0.2 * cube(2)
    shape = (N,) * int(rng.integers(0, 3))
    taken, along = index(rng, x, shape), index(rng, x, x.shape)
    one, two = ("".join(rng.permutation(list("ijkl" * 2))[: a.ndim]) for a in (x, c))
    labels = rng.permutation(sorted({*one, *two}))
    kept = "".join(labels[: rng.integers(0, len(labels) + 1)])
    reduced = [ad.sum, ad.max, ad.prod, ad.median, ad.logsumexp, ad.mean][rng.integers(0, 6)]
    keepdims = bool(rng.integers(0, 2))
    matrix = lambda x: x if x.ndim > 1 else x[:, None]
    steps: list[Function] = [
        lambda x: ad.take(x, taken(x), axis=axis),
        lambda x: ad.take(x, taken(x), axis=axis) ** 2,
        lambda x: ad.take_along_axis(x, along(x), axis=axis),
        lambda x: ad.put_along_axis(x, along(x), ad.sin(x), axis=axis),
        lambda x: x[taken(x)] * 2,
        lambda x: ad.zeros(x.shape).at[taken(x)].add(ad.exp(x[0])),
        lambda x: ad.cross(x, c),
        lambda x: ad.cross(c, ad.sin(x)),
        lambda x: ad.linalg.solve(square, matrix(x)),
        lambda x: ad.linalg.solve(4 * np.eye(N) + ad.tanh(x), matrix(c)),
        lambda x: ad.einsum(f"{one},{two}->{kept}", x, c),
        lambda x: ad.einsum(f"{two},{one}->{kept}", c, x),
        lambda x: c @ x,
        lambda x: x @ c,
        lambda x: reduced(x, axis=axis, keepdims=keepdims),
        lambda x: ad.sort(x, axis=axis),
        lambda x: ad.cumsum(x, axis=axis) * x,
        lambda x: ad.softmax(x, axis=axis),
        lambda x: ad.fft.fft(x, axis=axis).real,
        lambda x: ad.stack([x, x * x], axis=axis)[(0,) * (x.ndim > 2)],
        lambda x: ad.where(x > 0, x, ad.swapaxes(x, 0, axis)),
        lambda x: ad.scan(lambda v, r: (v * r, v), x[0], x)[1],
        lambda x: ad.pad(x, 1, mode="wrap")[(slice(1, 4),) * x.ndim] * c,
    ]
    return steps[rng.integers(0, len(steps))]


def program(rng: np.random.Generator, x: Any) -> tuple[Function, Any]:
    """A random function of ``x`` that has some steps, and its value."""
    steps: list[Function] = []
    while len(steps) < rng.integers(1, 4):
        each = step(rng, x)
        try:
            y = each(x)
        except (ad.errors.AdjointError, np.linalg.LinAlgError):  # this step takes other shapes
            continue
        if 0 < y.ndim < 5 and y.size <= 81 and np.isfinite(y.numpy()).all():
            steps.append(each)
            x = y

    def f(x: Any) -> Any:
        for each in steps:
            x = each(x)
        return x

    return f, x


@pytest.mark.parametrize("seed", range(60))
def test_no_entry_is_missing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = [rng.normal(size=(N,) * (seed % 3 + 1)) for _ in range(2)]
    f, y = program(rng, ad.tensor(points[0]))
    g = rng.normal(size=y.shape)
    of_cotangent = lambda x: ad.vjp(f, points[0])[1](g * ad.broadcast_to(x.reshape(-1)[:1], y.shape))
    second = lambda x: ad.grad(lambda x: (f(x) * g + f(x) ** 2).sum())(x)
    whole = lambda g: ad.vjp(f, ad.sin(g.reshape(-1)[: points[0].size].reshape(points[0].shape)))[1](g)
    cases = [(f, points), (of_cotangent, points), (second, points)]
    if g.size >= points[0].size:
        cases.append((whole, [g, rng.normal(size=g.shape)]))
    for function, xs in cases:
        pattern = ad.tree.leaves(ad.sparsity.jacobian(function, xs[0]))[0].toarray()
        for x in xs:
            (dense,) = ad.tree.leaves(ad.jacfwd(function)(x))
            dense = dense.reshape(pattern.shape)
            if np.isfinite(dense).all():
                assert (np.abs(dense[~pattern]) <= 1e-12 * max(1, np.abs(dense).max())).all()
