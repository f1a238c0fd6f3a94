"""Interrupts at every line, and failing backwards and optimisers: nothing is added or applied twice."""

from __future__ import annotations

import itertools
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint.config import grad_mode
from adjoint.errors import AccumulationError
from adjoint.grads import slots

ROOT = Path(ad.__file__).parent
# whose lines are interrupted; modes, and the engine itself, are tested elsewhere
FILES = {
    str(path) for room in ("grads", "accumulate", "optim") for path in (ROOT / room).glob("*.py")
    if path.name not in ("backward.py", "slots.py", "tape.py")
}  # fmt: skip


class FailedError(Exception):
    pass


def interrupted(line: int, action: Callable[[], object]) -> bool:
    """Raise KeyboardInterrupt at the n-th line of these files that ``action`` runs; False if it has fewer."""
    lines = itertools.count()

    def at_line(frame: Any, event: str, _: Any) -> Any:
        # no signal is handled between the last line of a block and the release of its lock
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        between = text.startswith("with ") or (text == "try:" and frame.f_code.co_name == "__exit__")
        if event == "line" and not between and next(lines) == line:
            raise KeyboardInterrupt
        return at_line

    def at_call(frame: Any, event: str, _: Any) -> Any:
        return at_line if frame.f_code.co_filename in FILES else None

    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
        grad_mode.set(True)
    return False


def every_line(check: Callable[[int], bool], most: int = 5000) -> int:
    """Call ``check`` with 0, 1, … until it says that there was no such line; return the number of lines."""
    for line in range(most):
        if not check(line):
            return line
    raise AssertionError("the action has too many lines")


class Adam:
    """An optimiser that counts its updates in the parameters and has state of its own."""

    def __init__(self, params: list[Any]) -> None:
        self.params = params
        self.steps = 0

    def step(self) -> None:
        with ad.no_grad():
            for p in self.params:
                p.copy_(p + p.grad)
        self.steps += 1


def parameters() -> list[Any]:
    return [ad.tensor(np.zeros(n), requires_grad=True) for n in (2, 1, 10_000)]


def fill(acc: Any, params: list[Any]) -> None:
    with acc.micro_batch(weight=2):
        sum((p * (i + 1.0)).sum() for i, p in enumerate(params)).backward()


def updates(params: list[Any]) -> list[float]:
    """How often each element of each parameter was updated: by 1, 2 and 3."""
    return [n for i, p in enumerate(params) for n in np.unique(np.abs(p.numpy() / (i + 1.0)))]


# Interrupts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["own", "sgd", "function", "two"])
def test_an_interrupt_inside_apply_repeats_no_update(kind: str) -> None:
    def check(line: int) -> bool:
        params = parameters()
        if kind == "function":
            acc = ad.GradientAccumulator(accumulation_steps=1)
            for i, p in enumerate(params):
                acc.register(str(i), p.shape)
            optimizer: Any = lambda grads: [p.copy_(p.detach() + grads[n]) for n, p in named.items()]
            named = {str(i): ad.zeros(p.shape) for i, p in enumerate(params)}
            params = list(named.values())
            acc.step({str(i): np.full(p.shape, i + 1.0) for i, p in enumerate(params)})
        else:
            acc = ad.GradientAccumulator(params, accumulation_steps=1)
            own = [Adam(params[:1]), Adam(params[1:])] if kind == "two" else Adam(params)
            optimizer = ad.optim.SGD(params, lr=1.0) if kind == "sgd" else own
            fill(acc, params)
            params[1].grad = ad.tensor([7.0])
        grads = [p.grad for p in params]
        stopped = interrupted(line, lambda: acc.apply(optimizer))
        if not stopped:
            assert all(p.grad is g for p, g in zip(params, grads, strict=True))
            assert updates(params) == [1.0, 1.0, 1.0]
            return False
        seen = updates(params)
        assert max(seen) <= 1.0
        try:
            assert acc.apply(optimizer)
        except AccumulationError as error:
            refused = "incomplete" in str(error)
            assert updates(params) == seen
            assert refused or seen == [1.0, 1.0, 1.0]  # or the interrupt came after the end of the window
        else:
            assert updates(params) == [1.0, 1.0, 1.0]
        acc.drop()
        if kind != "function":
            fill(acc, params)
            for i, g in enumerate(acc.gradients().values()):
                np.testing.assert_array_equal(g, i + 1.0)
        return True

    assert every_line(check) > 20


def test_an_interrupt_inside_a_micro_batch_adds_all_or_nothing() -> None:
    def check(line: int) -> bool:
        params = parameters()
        acc = ad.GradientAccumulator(params, accumulation_steps=3)
        fill(acc, params)
        stopped = interrupted(line, lambda: fill(acc, params))
        slots.sink.set(None)  # an interrupt at the first line of the block leaves it open
        assert all(p.grad is None for p in params)
        try:
            found = acc.gradients()
        except AccumulationError:
            assert stopped
            acc.drop()
        else:
            count = acc.stats().window_micro_batches
            assert acc.stats().window_weight == 2.0 * count
            assert count == 2 or (stopped and count == 1)
            for i, g in enumerate(found.values()):
                np.testing.assert_array_equal(g, i + 1.0)
        fill(acc, params)
        for i, g in enumerate(acc.gradients().values()):
            np.testing.assert_array_equal(g, i + 1.0)
        return stopped

    assert every_line(check) > 20


def test_an_interrupt_of_a_step_by_name_adds_all_or_nothing() -> None:
    def check(line: int) -> bool:
        acc = ad.GradientAccumulator(accumulation_steps=3)
        gradients = {"a": np.ones(2), "b": np.ones((2, 2)), "c": np.ones(10_000)}
        for name, g in gradients.items():
            acc.register(name, g.shape)
        acc.step(gradients, weight=2)
        stopped = interrupted(line, lambda: acc.step({n: 5 * g for n, g in gradients.items()}, weight=6))
        try:
            found = acc.gradients()
        except AccumulationError:
            assert stopped
            acc.drop()
            acc.step(gradients)
            found = acc.gradients()
        expected = {2.0: 1.0, 8.0: 4.0, 1.0: 1.0}[acc.stats().window_weight]
        for g in found.values():
            np.testing.assert_array_equal(g, expected)
        return stopped

    assert every_line(check) > 20


def test_an_interrupt_while_kept_memory_is_replaced_leaves_nothing_half_shared() -> None:
    gradients = {"a": np.array([1.0, 2.0]), "b": np.array([3.0]), "c": np.arange(10_000.0)}

    def check(line: int) -> bool:
        acc, kept = ad.GradientAccumulator(accumulation_steps=1), []
        for name, g in gradients.items():
            acc.register(name, g.shape)
        acc.step(gradients)
        acc.apply(kept.append)
        stopped = interrupted(line, lambda: acc.step({n: -g for n, g in gradients.items()}))
        acc.drop()
        for factor in (2.0, 3.0):
            acc.step({name: factor * g for name, g in gradients.items()})
            seen: dict[str, Any] = {}
            acc.apply(lambda grads: seen.update({n: np.array(g) for n, g in grads.items()}))  # noqa: B023
            for name, g in gradients.items():
                np.testing.assert_array_equal(seen[name], factor * g)
                np.testing.assert_array_equal(kept[0][name], g)
        return stopped

    assert every_line(check) > 20


# Failing backwards and optimisers --------------------------------------------------------------


def test_a_backward_that_fails_while_it_commits_adds_nothing() -> None:
    w, other = (ad.tensor([1.0], requires_grad=True) for _ in range(2))
    acc = ad.GradientAccumulator([w], accumulation_steps=1)
    other.grad = ad.tensor([1e308])
    with acc.micro_batch():
        with np.errstate(over="raise"), pytest.raises(FloatingPointError):
            (5.0 * w + 1.7e308 * other).sum().backward()
        w.sum().backward()
    np.testing.assert_array_equal(acc.gradients()["0"], [1.0])
    np.testing.assert_array_equal(other.grad, [1e308])


def test_named_inputs_of_a_backward_go_into_the_micro_batch() -> None:
    w, v = (ad.tensor([1.0], requires_grad=True) for _ in range(2))
    acc = ad.GradientAccumulator([w, v], accumulation_steps=1)
    with acc.micro_batch():
        (2.0 * w + 3.0 * v).sum().backward(inputs=[w])
    assert list(acc.gradients()) == ["0"]
    assert w.grad is None


def test_a_window_that_one_of_two_optimisers_has_used_is_not_saved() -> None:
    w, v = (ad.tensor([0.0], requires_grad=True) for _ in range(2))
    acc = ad.GradientAccumulator([w, v], accumulation_steps=1)

    class Failing(Adam):
        fail = True

        def step(self) -> None:
            if self.fail:
                raise FailedError
            super().step()

    one, other = Adam([w]), Failing([v])
    with acc.micro_batch():
        (w + v).sum().backward()
    with pytest.raises(FailedError):
        acc.apply([one, other])
    with pytest.raises(AccumulationError, match="1 of the optimisers made an update"):
        acc.state_dict()
    other.fail = False
    assert acc.apply([one, other])
    assert (one.steps, other.steps) == (1, 1)
    acc.state_dict()


def test_apply_keeps_its_memory() -> None:
    seen = []

    class Look(Adam):
        def step(self) -> None:
            seen.append([p.grad._data.__array_interface__["data"][0] for p in self.params])

    params = parameters()
    acc = ad.GradientAccumulator(params, accumulation_steps=1)
    others = []
    for _ in range(3):
        fill(acc, params)
        acc.apply(Look(params))
        others.append([np.empty(n) for p in params for n in (p.size, 2 * p.size)])  # in what was given back
    assert seen[0] == seen[1] == seen[2]
