"""The cost of a gradient beside the function's own: at most four to five times in theory."""

from __future__ import annotations

from typing import Any

import adjoint as ad
from benchmarks.cases.training import arrays, net
from benchmarks.harness import Case, Step


def loss_of(batch: int, sizes: tuple[int, ...]) -> tuple[Any, list[ad.Tensor]]:
    F = ad.nn.functional
    start, x0, t0 = arrays(batch, sizes)
    params = [ad.tensor(a, requires_grad=True) for a in start]
    x, t = ad.tensor(x0), ad.tensor(t0)
    return (lambda: F.mse_loss(net(params, x, F.linear, ad.tanh), t)), params


def both(batch: int, sizes: tuple[int, ...]) -> Step:
    loss, params = loss_of(batch, sizes)

    def step() -> Any:
        for p in params:
            p.grad = None
        value = loss()
        value.backward()
        return value

    return step


def alone(batch: int, sizes: tuple[int, ...]) -> Step:
    loss, _ = loss_of(batch, sizes)

    def step() -> Any:
        with ad.no_grad():
            return loss()

    return step


def case(batch: int, *sizes: int) -> Case:
    return Case(
        f"MLP {batch}×{'-'.join(map(str, sizes))}: function and gradient beside the function",
        {"adjoint": lambda: both(batch, sizes), "adjoint, function alone": lambda: alone(batch, sizes)},
        {"adjoint, function alone": 3.0},
        blas=True,
        tolerance=1e-4,
    )


def backward_alone(batch: int, sizes: tuple[int, ...], events: bool) -> Step:
    loss, params = loss_of(batch, sizes)
    value = loss()
    options: dict[str, Any] = {"on_leaf_ready": lambda leaf, g: None} if events else {}

    def step() -> Any:
        for p in params:
            p.grad = None
        value.backward(retain_graph=True, **options)
        return value

    return step


def events_case(batch: int, *sizes: int) -> Case:
    return Case(
        f"MLP {batch}×{'-'.join(map(str, sizes))}: backward with events beside backward",
        {
            "adjoint": lambda: backward_alone(batch, sizes, True),
            "adjoint, no events": lambda: backward_alone(batch, sizes, False),
        },
        {"adjoint, no events": 1.1},
        not_compiled="its backward starts from a graph that was recorded before",
        blas=True,
        tolerance=1e-4,
    )


def update(batch: int, sizes: tuple[int, ...], by_hand: bool, whole: bool) -> Step:
    """Make a step of SGD: the update alone, or forward, backward and update."""
    loss, params = loss_of(batch, sizes)
    optimizer = ad.optim.SGD(params, lr=1e-3)
    value = loss()
    value.backward()

    def step() -> Any:
        if whole:
            for p in params:
                p.grad = None
            loss().backward()
        if by_hand:
            with ad.no_grad():
                for p in params:
                    p -= 1e-3 * p.grad
        else:
            optimizer.step()
        return value

    return step


def update_case(batch: int, *sizes: int, whole: bool) -> Case:
    what = "a step of training" if whole else "an update"
    return Case(
        f"MLP {batch}×{'-'.join(map(str, sizes))}: {what} by hand, p -= lr * p.grad, beside optim.SGD",
        {
            "adjoint": lambda: update(batch, sizes, True, whole),
            "adjoint, optim.SGD": lambda: update(batch, sizes, False, whole),
        },
        {"adjoint, optim.SGD": 1.1},
        blas=True,
        tolerance=1e-4,
    )


CASES = [
    update_case(1, 8, 16, 16, 1, whole=False),
    update_case(1, 8, 16, 16, 1, whole=True),
    events_case(32, 64, 128, 128, 10),
    case(1, 8, 16, 16, 1),
    case(32, 64, 128, 128, 10),
    case(64, 784, 256, 256, 10),
    case(512, 784, 1024, 1024, 10),
]
