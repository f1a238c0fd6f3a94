"""Loops under transforms inside ``ad.compile``, against the eager loop: random bodies, transforms and orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjoint as ad

COUNT = 9  # as many steps as make one instruction
XS = np.random.default_rng(0).normal(size=(COUNT, 3))
V = np.array([0.5, -1.0, 2.0])
FACTORS = np.array([0.5, 1.5])

Function = Callable[[Any], Any]


def twice(f: Any) -> Any:
    """Return a function whose derivative is, by its own rule, twice that of ``f``."""
    g = ad.custom_vjp(f)
    g.defvjp(lambda x: (f(x), x), lambda x, t: (2 * t * ad.cos(x),))
    return g


RULE = twice(ad.sin)


def closure(p: Any, reverse: bool) -> Any:
    return ad.scan(lambda c, x: (ad.tanh(c * p + x), c * x), np.ones(3), XS, reverse=reverse)


def in_carry(p: Any, reverse: bool) -> Any:
    def step(carry: Any, x: Any) -> Any:
        n, c, q = carry
        return (n + 1, ad.sin(c * q + x), q), c * n

    return ad.scan(step, (0, 0.3 * p, p), XS, reverse=reverse)


def in_rows(p: Any, reverse: bool) -> Any:
    return ad.scan(lambda c, x: (c + ad.sin(c * x), (x * x * c).sum()), V, p * XS, reverse=reverse)


def with_index(p: Any, reverse: bool) -> Any:
    return ad.fori_loop(0, COUNT, lambda i, c: ad.tanh(c * p + 0.1 * i), 0.2 * p)


def with_a_rule(p: Any, reverse: bool) -> Any:
    return ad.scan(lambda c, x: (RULE(c * p) + x, c), V, XS, reverse=reverse)


def in_a_loop(p: Any, reverse: bool) -> Any:
    def row(c: Any, x: Any) -> Any:
        return ad.scan(lambda a, y: (ad.sin(a * p + y), ()), c + x, XS)[0], c.sum()

    return ad.scan(row, 0.1 * p, XS, reverse=reverse)


def with_parts(p: Any, reverse: bool) -> Any:
    def step(c: Any, x: Any) -> Any:
        return ad.stack([c[1] * p[0], ad.sin(c[2]) + x[0], c[0] * c[0] * p[1]]), c[:2]

    return ad.scan(step, V, XS, reverse=reverse)


def with_a_map(p: Any, reverse: bool) -> Any:
    def step(c: Any, x: Any) -> Any:
        return ad.vmap(lambda a, b: ad.sin(a * b) + p.sum())(c, x), ad.grad(lambda c: (c * c * p).sum())(c)

    return ad.scan(step, V, XS, reverse=reverse)


def checkpointed(p: Any, reverse: bool) -> Any:
    """The checkpoint calls its function again for the derivative, which then reads p again."""
    return ad.scan(lambda c, x: (ad.checkpoint(lambda c: ad.tanh(c * p), c) + x, c), V, XS, reverse=reverse)


BODIES = [
    closure,
    in_carry,
    in_rows,
    with_index,
    with_a_rule,
    in_a_loop,
    with_parts,
    with_a_map,
    checkpointed,
]

TRANSFORMS: dict[str, Callable[[Function], Function]] = {
    "grad": lambda f: lambda p: (ad.grad(f)(p) * V).sum(),
    "jvp": lambda f: lambda p: ad.jvp(f, (p,), (V * p,))[1],
    "vmap": lambda f: lambda p: ad.vmap(f)(ad.stack([p, 0.5 * p])).sum(),
    "closed": lambda f: lambda p: ad.vmap(lambda k: f(p * k))(FACTORS).sum(),
    "hessian": lambda f: lambda p: (ad.hessian(f)(p) * np.outer(V, V)).sum(),
}


def total(body: Any, reverse: bool) -> Function:
    def f(p: Any) -> Any:
        leaves = ad.tree.leaves(body(p, reverse))
        return sum((ad.sin(t).sum() for t in leaves if t.dtype.kind == "f"), start=ad.tensor(0.0))

    return f


def nested(seed: int) -> tuple[Function, str]:
    """Return a random loop under one to three random transforms, and its name."""
    rng = np.random.default_rng(seed)
    body, names = BODIES[seed % len(BODIES)], list(TRANSFORMS)
    f = total(body, bool(rng.integers(2)))
    chosen = [names[k] for k in rng.integers(len(names), size=1 + seed % 3)]
    if body is in_a_loop:
        chosen = chosen[:1]
    elif "hessian" in chosen:
        chosen = chosen[:2] if chosen[0] != chosen[-1] else ["hessian"]
    for name in chosen:
        f = TRANSFORMS[name](f)
    return f, f"{body.__name__} {chosen}"


@pytest.mark.parametrize("seed", range(54))
def test_loops_under_transforms_are_those_of_eager_code(seed: int) -> None:
    f, name = nested(seed)
    p = np.random.default_rng(seed).normal(size=3)
    compiled = ad.compile(f, backend="replay" if seed % 6 else "auto")
    for _ in range(2):
        want = f(ad.tensor(p)).item()
        np.testing.assert_allclose(compiled(ad.tensor(p)).item(), want, rtol=1e-9, atol=1e-9, err_msg=name)
        p = p + 0.1


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_loop_under_a_transform_is_a_loop(name: str) -> None:
    lengths = []
    for count in (COUNT, 5 * COUNT):
        xs = np.ones((count, 3))
        loop = lambda p, xs=xs: ad.scan(lambda c, x: (ad.tanh(c * p + x), c), p, xs)[1].sum()
        compiled = ad.compile(TRANSFORMS[name](loop), backend="replay")
        compiled(ad.tensor(V))
        lengths.append(compiled.stats()["programs"][0]["instructions"])
    assert lengths[0] == lengths[1]


def test_derivatives_outside_of_a_compiled_function() -> None:
    f = ad.compile(ad.vmap(total(closure, False)))
    p = ad.tensor(np.stack([V, 2 * V]))
    g = lambda p: f(p).sum()
    np.testing.assert_allclose(ad.grad(g)(p).numpy(), ad.vmap(ad.grad(total(closure, False)))(p).numpy())
    w = ad.tensor(V, requires_grad=True)
    ad.compile(lambda: ad.jvp(lambda x: total(closure, True)(x * w), (V,), (V,))[1])().backward()
    want = ad.grad(lambda w: ad.jvp(lambda x: total(closure, True)(x * w), (V,), (V,))[1])(V)
    np.testing.assert_allclose(w.grad.numpy(), want)


def test_second_derivatives_of_a_loop_without_carry() -> None:
    x = np.linspace(0.5, 1.5, 8)
    f = lambda x: (ad.map(lambda r: r * r, x) * x).sum()
    np.testing.assert_allclose(ad.compile(ad.hessian(f))(x), np.diag(6 * x), rtol=1e-12)
    np.testing.assert_allclose(ad.compile(ad.jacrev(ad.jacrev(f)))(x), np.diag(6 * x), rtol=1e-12)
