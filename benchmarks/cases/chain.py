"""Per-op overhead: chains of elementwise ops on small and large arrays, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import adjoint as ad
from benchmarks.engines import Kit, engines, lacking
from benchmarks.harness import Case, Step

LENGTH = 100  # times four ops


def chain(x: Any, w: Any, tanh: Callable[[Any], Any]) -> Any:
    """400 ops: a product and a sum with leaves, a function, a product with a number."""
    y = x
    for _ in range(LENGTH):
        y = tanh(y * w + x) * 0.9
    return y


def adjoint_step(size: int) -> Step:
    x0, w0 = np.linspace(0.1, 1.0, size), np.full(size, 0.5)

    def step() -> Any:
        x, w = ad.tensor(x0, requires_grad=True), ad.tensor(w0, requires_grad=True)
        chain(x, w, ad.tanh).sum().backward()
        return x.grad, w.grad

    return step


def torch_step(size: int) -> Step:
    import torch

    x0, w0 = (
        torch.linspace(0.1, 1.0, size, dtype=torch.float64),
        torch.full((size,), 0.5, dtype=torch.float64),
    )

    def step() -> Any:
        x, w = x0.clone().requires_grad_(), w0.clone().requires_grad_()
        chain(x, w, torch.tanh).sum().backward()
        return x.grad, w.grad

    return step


def chained(kit: Kit, size: int) -> tuple[Any, list[Any]]:
    tanh = kit.xp.tanh
    return (lambda x, w: chain(x, w, tanh)), [np.linspace(0.1, 1.0, size), np.full(size, 0.5)]


def gradients(kit: Kit, size: int) -> Step:
    """Both gradients, in the engines that differentiate functions of arrays."""
    f, arrays = chained(kit, size)
    return kit.gradient(lambda x, w: f(x, w).sum(), arrays)


UNENDING = {"tinygrad": lacking("its scheduler does not end within minutes on a chain of 400 fused ops")}


def forward_case(size: int) -> Case:
    return Case(
        f"chain of 400 ops, {size} elements, forward",
        engines(lambda kit: kit.value(*chained(kit, size))) | UNENDING,
    )


def both_case(size: int, targets: dict[str, float] | None = None) -> Case:
    found = engines(lambda kit: gradients(kit, size)) | UNENDING
    found |= {"adjoint": lambda: adjoint_step(size), "torch": lambda: torch_step(size)}
    return Case(
        f"chain of 400 ops, {size} elements, forward + backward", found, targets or {}, stateless=True
    )


CASES = [
    both_case(4, {"torch": 0.6, "autograd": 0.2}),
    forward_case(4),
    both_case(1_000),
    both_case(100_000),
]
