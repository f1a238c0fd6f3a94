"""Adding micro-batches, beside bare NumPy additions into buffers that are there already."""

from __future__ import annotations

from typing import Any

import numpy as np

import adjoint as ad
from benchmarks.harness import Buffered, Case

AROUND = "an accumulator is called around a compiled function"
ENDLESS = 10**9  # micro-batches in a window, so that every step is an addition


def gradients(count: int, size: int, dtype: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {f"p{i}": rng.standard_normal(size).astype(dtype) for i in range(count)}


def ours(count: int, size: int, dtype: Any, **options: Any) -> Buffered:
    grads = gradients(count, size, dtype)
    weight = options.pop("weight", 1.0)
    acc = ad.GradientAccumulator(accumulation_steps=ENDLESS, **options)
    for name, g in grads.items():
        acc.register(name, g.shape)
    acc.step(grads, weight=weight)

    def step() -> None:
        acc.step(grads, weight=weight)

    return Buffered(step, acc.gradients)  # the mean: the gradients themselves


def numpys(count: int, size: int, dtype: Any) -> Buffered:
    grads = gradients(count, size, dtype)
    sums = {name: g.copy() for name, g in grads.items()}

    def step() -> None:
        for name, g in grads.items():
            np.add(sums[name], g, out=sums[name])

    return Buffered(step, lambda: {name: s / 2 for name, s in sums.items()})


def our_windows(count: int, size: int, steps: int, dtype: Any, **options: Any) -> Buffered:
    """Whole windows: micro-batches, then ``apply`` with an optimiser that only looks."""
    grads = gradients(count, size, dtype)
    acc = ad.GradientAccumulator(accumulation_steps=steps, **options)
    for name, g in grads.items():
        acc.register(name, g.shape, dtype)

    def step(look: Any = len) -> None:
        for _ in range(steps):
            acc.step(grads)
        acc.apply(look)

    def result() -> dict[str, Any]:
        found: dict[str, Any] = {}
        step(lambda grads: found.update({name: np.array(g) for name, g in grads.items()}))
        return found

    return Buffered(step, result)


def numpy_windows(count: int, size: int, steps: int, dtype: Any) -> Buffered:
    """The same by hand: sums in buffers that are there already, divided where they are."""
    grads = gradients(count, size, dtype)
    sums = {name: np.empty_like(g) for name, g in grads.items()}

    def step() -> None:
        for i in range(steps):
            for name, g in grads.items():
                if i:
                    np.add(sums[name], g, out=sums[name])
                else:
                    np.copyto(sums[name], g)
        for s in sums.values():
            np.divide(s, steps, out=s)

    return Buffered(step, lambda: sums)


def case(name: str, target: float, count: int, size: int, dtype: Any, **options: Any) -> Case:
    return Case(
        name=f"accumulate {name}",
        engines={
            "adjoint": lambda: ours(count, size, dtype, **options),
            "numpy": lambda: numpys(count, size, dtype),
        },
        targets={"numpy": target},
        not_compiled=AROUND,
    )


def windows(name: str, target: float, **options: Any) -> Case:
    return Case(
        name=f"accumulate {name}",
        engines={
            "adjoint": lambda: our_windows(50, 500, 4, np.float32, **options),
            "numpy": lambda: numpy_windows(50, 500, 4, np.float32),
        },
        targets={"numpy": target},
        not_compiled=AROUND,
    )


CASES = [
    case("100 × 1,000 float64", 1.5, 100, 1_000, np.float64, nonfinite="allow"),
    case("100 × 1,000 float32", 1.5, 100, 1_000, np.float32, nonfinite="allow"),
    # bare additions look for no NaN; the default does
    case("100 × 1,000 float64, checked", 1.5, 100, 1_000, np.float64),
    case("100 × 1,000 float32, checked", 1.5, 100, 1_000, np.float32),
    case("100 × 1,000 float32, checked and weighted", 1.5, 100, 1_000, np.float32, weight=3.0),
    # memory-bound: the check is a second pass that reads the gradients
    case("8,000,000 float32", 1.1, 1, 8_000_000, np.float32, nonfinite="allow"),
    case("8,000,000 float32, checked", 1.1, 1, 8_000_000, np.float32),
    case("8,000,000 float32, weighted", 1.1, 1, 8_000_000, np.float32, nonfinite="allow", weight=3.0),
    windows("4 of 50 × 500 float32 and apply", 1.15, nonfinite="allow"),
    windows("4 of 50 × 500 float32 and apply, checked", 1.5),
]
