"""Training steps in half precision: float16, bfloat16, bfloat16 beside float32 weights, a gradient scaler."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np

import adjoint as ad
from benchmarks.harness import Step
from benchmarks.realistic.program import Framework, linear_of_jax, program, weights
from benchmarks.realistic.steps import SMALL, TINY, data, perceptron, shapes

LARGE = (128, 784, 256, 10)


def dtype_of(framework: Framework, name: str) -> Any:
    """The dtype object of a library."""
    if framework.ours:
        return np.dtype(getattr(ml_dtypes, name, None) or name)
    return getattr(framework.lib, name)


def whole(framework: Framework, sizes: tuple[int, ...], name: str) -> Step:
    """Parameters, data and updates in half precision."""
    dtype, model = dtype_of(framework, name), perceptron(framework, sizes)
    model = model.astype(dtype) if framework.ours else model.to(dtype)
    x, y = framework.tensors(*data(sizes))
    x, y = (a.astype(dtype) if framework.ours else a.to(dtype) for a in (x, y))
    optimizer = framework.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    @framework.compile
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = framework.F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return lambda: float(step(x, y))


def beside(framework: Framework, sizes: tuple[int, ...]) -> Step:
    """Parameters and updates in float32, layers in bfloat16."""
    model, (x, y) = perceptron(framework, sizes), framework.tensors(*data(sizes))
    optimizer = framework.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    @framework.compile
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        if framework.ours:
            low = {name: p.astype(ml_dtypes.bfloat16) for name, p in model.named_parameters()}
            out = ad.nn.functional_call(model, low, x.astype(ml_dtypes.bfloat16)).astype(np.float32)
        else:
            with framework.lib.autocast("cpu", dtype=framework.lib.bfloat16):
                out = model(x).float()
        loss = framework.F.mse_loss(out, y)
        loss.backward()
        optimizer.step()
        return loss

    return lambda: float(step(x, y))


def scaled(framework: Framework, sizes: tuple[int, ...], dtype: str) -> Step:
    """A gradient scaler around the update."""
    low, model = dtype_of(framework, dtype), perceptron(framework, sizes)
    model = model.astype(low) if framework.ours else model.to(low)
    x, y = framework.tensors(*data(sizes))
    x, y = (a.astype(low) if framework.ours else a.to(low) for a in (x, y))
    optimizer = framework.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    scaler = ad.GradScaler(1024.0) if framework.ours else framework.lib.amp.GradScaler("cpu", 1024.0)

    @framework.compile
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = framework.F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return lambda: float(step(x, y))


def in_jax(jax: Any, sizes: tuple[int, ...], stored: str, computed: str) -> Step:
    """Momentum on parameters of the dtype ``stored``; the layers compute with ``computed``."""
    jnp = jax.numpy
    cast = lambda tree, name: jax.tree.map(lambda a: jnp.asarray(a, name), tree)
    params, (x, y) = cast(weights(*shapes(sizes)), stored), cast(data(sizes), stored)
    state = params, jax.tree.map(jnp.zeros_like, params)

    def loss(p: Any, x: Any, y: Any) -> Any:
        p, x = cast(p, computed), x.astype(computed)
        for i in range(0, len(p) - 2, 2):
            x = jnp.tanh(linear_of_jax(x, p[i], p[i + 1]))
        return jnp.mean((linear_of_jax(x, p[-2], p[-1]).astype(stored) - y) ** 2)

    @functools.partial(jax.jit, donate_argnums=0)
    def update(state: Any, x: Any, y: Any) -> Any:
        p, m = state
        value, grads = jax.value_and_grad(loss)(p, x, y)
        m = jax.tree.map(lambda a, g: (0.9 * a + g).astype(a.dtype), m, grads)
        return (jax.tree.map(lambda a, b: (a - 1e-2 * b).astype(a.dtype), p, m), m), value

    def step() -> float:
        nonlocal state
        state, value = update(state, x, y)
        return float(value)

    return step


CASES = [
    *(
        program(
            f"{name} {label}",
            functools.partial(whole, sizes=sizes, name=name),
            functools.partial(in_jax, sizes=sizes, stored=name, computed=name),
            tolerance=0.1,
            network=True,
        )
        for name in ("float16", "bfloat16")
        for label, sizes in (("tiny", TINY), ("small", SMALL), ("large", LARGE))
    ),
    *(
        program(
            f"bfloat16 beside float32 {label}",
            functools.partial(beside, sizes=sizes),
            functools.partial(in_jax, sizes=sizes, stored="float32", computed="bfloat16"),
            tolerance=0.1,
        )
        for label, sizes in (("small", SMALL), ("large", LARGE))
    ),
    *(
        program(f"scaler {name} {label}", functools.partial(scaled, sizes=sizes, dtype=name), tolerance=0.1)
        for name in ("float32", "float16")
        for label, sizes in (("tiny", TINY), ("small", SMALL))
    ),
]
