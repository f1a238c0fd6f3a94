"""Graphs that are deep or wide: what the engine costs apart from the arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

import adjoint as ad
from benchmarks.engines import (
    Kit,
    compiled_by_torch,
    engines,
    lacking,
    mlx_core,
    tinygrad_cpu,
    trained_by_tinygrad,
)
from benchmarks.harness import Case, Step, jax_x64


def deep(kit: Kit, length: int = 5_000) -> Step:
    """A chain of single ops: what a long recurrence costs; a compiler would fold a linear one."""
    sin = kit.xp.sin

    def last(x: Any) -> Any:
        return kit.scan(lambda x: (sin(x), None), x, length)[0].sum()

    return kit.gradient(last, [np.linspace(0.1, 1.0, 16)])


def wide(kit: Kit, width: int = 1_000) -> Step:
    """One value read by a thousand branches, whose gradients are added up in it."""
    sin = kit.xp.sin

    def total(x: Any) -> Any:
        sum_ = x
        for i in range(width):
            sum_ = sum_ + sin(x * (1 + i / width))
        return sum_.sum()

    return kit.gradient(total, [np.linspace(0.1, 1.0, 64)])


def layered(kit: Kit, depth: int = 30, width: int = 30) -> Step:
    """Layers in which every value reads three of the layer before: many edges per node."""
    tanh = kit.xp.tanh

    def total(x: Any) -> Any:
        row = [x * (1 + 0.1 * i) for i in range(width)]
        for _ in range(depth):
            row = [tanh(row[i] + row[i - 1] * row[i - 2]) for i in range(width)]
        return sum(row[1:], row[0]).sum()

    return kit.gradient(total, [0.1 * np.linspace(0.1, 1.0, 16)])


# Embeddings: only the rows that were read get a gradient ------------------------------------------

ROWS, WIDTH, READ = 50_000, 64, 512
RATE, UPDATES = 100.0, 5  # of a mean over 32,768 numbers; updates that are compared, by their losses


def _embedding_data() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    table = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    return table, rng.integers(0, ROWS, READ), rng.standard_normal((READ, WIDTH)).astype(np.float32)


def adjoint_embedding(sparse: bool) -> Step:
    table, rows, target = _embedding_data()
    w, t = ad.tensor(table, requires_grad=True), ad.tensor(target)
    optimizer = ad.optim.SGD([w], lr=RATE)

    def step() -> Any:
        optimizer.zero_grad()
        loss = ((ad.take(w, rows, axis=0, sparse_grad=sparse) - t) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def torch_embedding(sparse: bool, compiled: bool = False) -> Step:
    import torch

    table, rows, target = _embedding_data()
    w, i, t = torch.tensor(table, requires_grad=True), torch.tensor(rows), torch.tensor(target)
    optimizer = torch.optim.SGD([w], lr=RATE)

    def forward() -> Any:
        return ((torch.nn.functional.embedding(i, w, sparse=sparse) - t) ** 2).mean()

    if compiled:
        forward = compiled_by_torch(forward)

    def step() -> Any:
        optimizer.zero_grad()
        loss = forward()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def jax_embedding(compiled: bool) -> Step:
    jax = jax_x64()
    w, rows, target = map(jax.numpy.asarray, _embedding_data())

    def update(w: Any, rows: Any, target: Any) -> Any:
        loss, g = jax.value_and_grad(lambda w: ((w[rows] - target) ** 2).mean())(w)
        return w - RATE * g, loss

    run = jax.jit(update, donate_argnums=0) if compiled else update
    state = {"w": w}

    def step() -> Any:
        state["w"], loss = run(state["w"], rows, target)
        return float(loss)

    return step


def autograd_embedding() -> Step:
    import autograd
    import autograd.numpy as anp

    w, rows, target = _embedding_data()
    both = autograd.value_and_grad(lambda w: anp.mean((w[rows] - target) ** 2))
    state = {"w": w}

    def step() -> Any:
        loss, g = both(state["w"])
        state["w"] = state["w"] - np.float32(RATE) * g
        return float(loss)

    return step


def mlx_embedding() -> Step:
    mx = mlx_core()
    table, rows, target = map(mx.array, _embedding_data())
    both = mx.value_and_grad(lambda w: ((w[rows] - target) ** 2).mean())
    state = {"w": table}

    def step() -> Any:
        loss, g = both(state["w"])
        state["w"] = state["w"] - RATE * g
        mx.eval(state["w"])
        return loss.item()

    return step


def tinygrad_embedding() -> Step:
    tinygrad = tinygrad_cpu()
    w, rows, target = (tinygrad.Tensor(a).realize() for a in _embedding_data())
    optimizer = tinygrad.nn.optim.SGD([w], lr=RATE)

    def update() -> Any:
        optimizer.zero_grad()
        loss = ((w[rows] - target) ** 2).mean().backward()
        return [loss, *optimizer.schedule_step()]

    return trained_by_tinygrad(update)


def embedding(sparse: bool) -> Case:
    kind = "sparse" if sparse else "dense"
    none = lacking("no sparse gradients")
    return Case(
        f"embedding, 512 of 50,000 rows of 64, {kind} gradient, SGD step",
        {
            "adjoint": lambda: adjoint_embedding(sparse),
            "torch": lambda: torch_embedding(sparse),
            "torch-compile": lambda: torch_embedding(sparse, compiled=True),
            "jax": none if sparse else lambda: jax_embedding(compiled=False),
            "jax-jit": none if sparse else lambda: jax_embedding(compiled=True),
            "autograd": none if sparse else autograd_embedding,
            "mlx": none if sparse else mlx_embedding,
            "tinygrad": none if sparse else tinygrad_embedding,
        },
        compared=UPDATES,
        tolerance=1e-4,
        not_compiled="sparse gradients are not compiled" if sparse else "",
    )


# thousands of ops: compiling them took longer than 150 s
UNENDING = {
    "torch-compile": lacking("it does not compile within 150 s"),
    "tinygrad": lacking("its scheduler does not end within 150 s"),
}

CASES = [
    Case("chain of 5,000 ops, 16 elements: gradient", engines(deep) | UNENDING, stateless=True),
    Case("1,000 branches from one value: gradient", engines(wide) | UNENDING, stateless=True),
    Case(
        "30 layers of 30 values: gradient",
        engines(layered) | UNENDING | {"jax-jit": UNENDING["torch-compile"]},
    ),
    embedding(sparse=True),
    embedding(sparse=False),
]
