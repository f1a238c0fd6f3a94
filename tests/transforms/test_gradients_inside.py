"""Functions that take gradients themselves, behind calls that run them again or elsewhere.

Whether such a gradient is recorded depends on whether a transform runs.  So a checkpoint, a compiled function
and its second derivative must call the function as it was called first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjoint as ad

X = np.array([0.3, 0.4])


def by_tape(x: Any) -> Any:
    with ad.Tape() as tape:
        z = x * 1.0
        tape.watch(z)
        y = (ad.sin(z) * x.sum()).sum()
    return (tape.gradients(y)[z] * x).sum()


def by_gradients(x: Any) -> Any:
    z = x * 1.0
    (g,) = ad.gradients([(ad.sin(z) * z).sum()], [z])
    return (g * x).sum()


def by_backward(x: Any) -> Any:
    z = x * 1.0
    return (ad.backward((ad.sin(z) * x.sum()).sum(), inputs=[z])[z] * x).sum()


def recorded(x: Any) -> Any:
    z = x * 1.0
    (g,) = ad.gradients([(ad.sin(z) * z).sum()], [z], create_graph=True)
    return (g * x).sum()


FUNCTIONS = [by_tape, by_gradients, by_backward, recorded]
CALLS: dict[str, Callable[[Any], Any]] = {
    "checkpoint": lambda f: lambda x: ad.checkpoint(f, x),
    "two checkpoints": lambda f: lambda x: ad.checkpoint(lambda z: ad.checkpoint(f, z), x),
    "compile": lambda f: ad.compile(f, backend="replay"),
    "compile of a result": lambda f: _of_result(ad.compile(f, backend="replay")),
    "two compiled": lambda f: _of_result(ad.compile(lambda x: ad.compile(f)(x), backend="replay")),
    "a checkpoint in a compiled": lambda f: ad.compile(lambda x: ad.checkpoint(f, x), backend="replay"),
    "a compiled in a checkpoint": lambda f: lambda x: ad.checkpoint(ad.compile(f, backend="replay"), x),
}


def _of_result(f: Any) -> Any:
    """The argument has the same key inside a transform and outside: it is part of a graph."""
    return lambda x: f(x * 1.0)


def first(f: Any, create: bool = False) -> Any:
    x = ad.tensor(X, requires_grad=True)
    return ad.gradients([f(x)], [x], create_graph=create)[0].detach()


def second(f: Any) -> Any:
    x = ad.tensor(X, requires_grad=True)
    (g,) = ad.gradients([f(x)], [x], create_graph=True)
    return ad.gradients([(g * g).sum() + (x * x).sum()], [x])[0]


MODES: dict[str, Callable[[Any], Any]] = {
    "first": first,
    "first, recorded": lambda f: first(f, True),
    "second": second,
    "grad": lambda f: ad.grad(f)(X),
    "second of grad": lambda f: ad.grad(lambda x: (ad.grad(f)(x) ** 2).sum())(X),
    "vjp": lambda f: ad.vjp(f, X)[1](1.0)[0],
    "batch": lambda f: ad.vmap(ad.grad(f))(np.stack([X, X])),
    "hessian": lambda f: ad.hessian(f)(X),
}


@pytest.mark.parametrize("order", [list(MODES), list(MODES)[::-1]], ids=["forward", "backward"])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("f", FUNCTIONS)
def test_a_call_that_is_repeated_records_the_same_gradients(f: Any, name: str, order: list[str]) -> None:
    call = CALLS[name](f)
    for mode in order:
        np.testing.assert_allclose(MODES[mode](call), MODES[mode](f), rtol=1e-10, err_msg=mode)


def test_a_gradient_is_constant_outside_of_transforms_alone() -> None:
    """The two values between which the calls above must not choose wrongly."""
    assert not np.allclose(first(by_gradients).numpy(), ad.grad(by_gradients)(X))
    np.testing.assert_allclose(first(recorded), ad.grad(by_gradients)(X))
