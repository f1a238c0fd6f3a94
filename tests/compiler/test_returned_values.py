"""Values that a compiled function returns from before and after a write: results and errors of eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from random_returns import differences

import adjoint as ad
from adjoint.errors import AdjointError

RETURNS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "before": lambda loss, reg, w: [reg],
    "before and differentiated": lambda loss, reg, w: [reg, loss],
    "differentiated and before": lambda loss, reg, w: [loss, reg],
    "detached": lambda loss, reg, w: [loss.detach(), reg],
    "after": lambda loss, reg, w: [(w * w).sum()],
    "after and before": lambda loss, reg, w: [(w * w).sum(), reg],
    "all": lambda loss, reg, w: [loss, (w * w).sum(), reg, (w * 2).sum()],
}


def outcome(t: Any, w: Any) -> Any:
    try:
        return [g.tolist() for g in ad.gradients([t], [w], retain_graph=True)]
    except AdjointError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("backend", [None, "replay", "native"])
@pytest.mark.parametrize("name", RETURNS)
def test_a_step_returns_a_value_from_before_the_update(name: str, backend: str | None) -> None:
    if backend == "native":
        pytest.importorskip("llvmlite")

    def outcomes(compiling: bool) -> list[Any]:
        w = ad.tensor([1.0, 2.0, 3.0], requires_grad=True)
        o = ad.optim.SGD([w], lr=0.125)

        def step(x: Any) -> Any:
            reg = (w * w).sum()
            loss = ((w * x) ** 2).sum()
            o.zero_grad()
            loss.backward()
            o.step()
            return RETURNS[name](loss, reg, w)

        call = ad.compile(step, backend=backend or "auto") if compiling else step
        found = [call(np.ones(3)) for _ in range(3)][-1]
        return [(t.item(), t.requires_grad, outcome(t, w) if t.requires_grad else None) for t in found]

    assert outcomes(True) == outcomes(False)


def test_a_result_from_before_a_write_is_not_cut_off_in_silence() -> None:
    """Its node has the arguments and the captured tensors with a graph as parents."""
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    x = ad.tensor([3.0, 4.0], requires_grad=True)
    y = x * 2.0

    def f(a: Any) -> Any:
        r = (a * y * w).sum()
        with ad.no_grad():
            w.copy_(w * 0.5)
        return r

    a = ad.tensor([1.0, 1.0], requires_grad=True)
    for call in (f, ad.compile(f)):
        for _ in range(3):
            r = call(a)
            for t in (a, w, x, y):
                with pytest.raises(ad.errors.ModifiedError, match="'multiply' needs the values"):
                    ad.gradients([r], [t], allow_unused=True, retain_graph=True)


@pytest.mark.parametrize("backend", ["replay", "auto"])
@pytest.mark.parametrize("kind", ["SGD", "Adam", "RMSprop"])
def test_two_updates_by_one_optimiser_in_one_call(kind: str, backend: str) -> None:
    """The second update continues from the state and the step count of the first."""

    def weights(compiling: bool) -> list[Any]:
        w, v = (ad.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
        options = {"momentum": 0.5} if kind == "SGD" else {}
        o = getattr(ad.optim, kind)([w, v], lr=0.125, **options)

        def step(x: Any) -> Any:
            o.zero_grad()
            ((w * x) ** 2 + v).sum().backward()
            o.step()
            o.step()
            return x * 2.0

        call = ad.compile(step, backend=backend) if compiling else step
        for _ in range(2):
            call(np.ones(2))
        return [w.tolist(), v.tolist(), o.step_count]

    found, wanted = weights(True), weights(False)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-14)
    assert found[1:] == wanted[1:]


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_functions_that_return_values_from_before_writes(first: int) -> None:
    wrong = {seed: text for seed in range(first, first + 20) if (text := differences(seed, "replay"))}
    assert not wrong


def test_random_functions_in_native_code() -> None:
    pytest.importorskip("llvmlite")
    assert not {seed: text for seed in range(1000, 1012) if (text := differences(seed, "native"))}
