"""Ctrl-C in a compiled training step: everything is as before or after the step, or the error says that it is not."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn, optim
from adjoint.config import special

NOTE = "this error interrupted the update.  Some parameters are updated, others are not."
X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


class Own(optim.SGD):
    """An optimiser with a rule of its own, whose updates are copied first, because it may fail."""

    def apply_one(self, xp: Any, p: Any, g: Any, state: Any, hyper: Any) -> Any:
        return p - hyper["lr"] * g, state


def optimizers_of(kind: str, params: list[Any]) -> list[Any]:
    if kind == "one block":
        return [optim.Adam(params, lr=0.01)]
    if kind == "groups":
        return [optim.Adam([{"params": params[:2]}, {"params": params[2:], "lr": 0.1}], lr=0.01)]
    if kind == "two":
        return [optim.Adam(params[:2], lr=0.01), optim.SGD(params[2:], lr=0.1, momentum=0.9)]
    return [Own(params, lr=0.01)]


class Step:
    """A compiled training step with statistics, dropout and one or two optimisers."""

    def __init__(self, kind: str, backend: str) -> None:
        self.dropout = nn.Dropout(0.3, rng=5)
        self.model = nn.Sequential(
            nn.Linear(4, 3, rng=0), nn.BatchNorm1d(3), self.dropout, nn.Linear(3, 1, rng=1)
        )
        self.optimizers = optimizers_of(kind, self.model.parameters())
        self.run = ad.compile(self.step, backend=backend)
        for _ in range(3):  # later calls find everything prepared
            self.run(X)
        self.saved = (
            self.model.state_dict(),
            [o.state_dict() for o in self.optimizers],
            self.dropout.rng.state,
        )

    def step(self, x: Any) -> Any:
        for o in self.optimizers:
            o.zero_grad()
        loss = (self.model(x) ** 2).mean()
        loss.backward()
        for o in self.optimizers:
            o.step()
        return loss

    def reset(self) -> None:
        self.model.load_state_dict(self.saved[0])
        for o, state in zip(self.optimizers, self.saved[1], strict=True):
            o.load_state_dict(state)
        self.dropout.rng.state = self.saved[2]
        self.model.zero_grad()

    def state(self) -> str:
        values = [t.tobytes() for t in self.model.state_dict().values()]
        grads = [None if p.grad is None else p.grad.numpy().tobytes() for p in self.model.parameters()]
        return repr((values, grads, [o.state_dict() for o in self.optimizers], self.dropout.rng.state))


def interrupted(program: Callable[[], Any], chosen: Callable[[Any], bool], n: int) -> tuple[int, Any]:
    """Run a program with an interrupt after the n-th call that is chosen; return the number of them, and the error.

    Python handles signals where a function starts and after each call of one in C; it calls a profiler there too.
    """
    count, state = 0, np.geterr()

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        if event in ("call", "c_return") and chosen(frame.f_code.co_filename):
            count += 1
            if count == n:
                raise KeyboardInterrupt

    before, error = sys.getprofile(), None
    try:
        sys.setprofile(profile)
        program()
    except KeyboardInterrupt as caught:
        error = caught
    finally:
        sys.setprofile(before)
        np.seterr(**state)  # an interrupt at the end of errstate.__enter__ leaves NumPy's error state set
    return count, error


def outcomes(step: Step, chosen: Callable[[Any], bool], every: int = 1) -> Counter[str]:
    """Interrupt a step at each place, and count what state that leaves."""
    found: Counter[str] = Counter()
    step.reset()
    before = step.state()
    total, _ = interrupted(lambda: step.run(X), chosen, -1)
    after = step.state()
    for n in range(1, total, every):
        step.reset()
        assert step.state() == before
        _, error = interrupted(lambda: step.run(X), chosen, n)
        state = step.state()
        says = any(NOTE in text for text in getattr(error, "__notes__", ()))
        found[
            "before" if state == before else "after" if state == after else "said" if says else "silent"
        ] += 1
        assert ad.is_grad_enabled(), n
        special.count = 0  # an interrupt may leave it too large, which makes ops slower
    assert step.run.stats()["traces"] == 1
    return found


# An interrupt inside a callback of a weak reference is only reported.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("kind", "backend"),
    [("one block", "replay"), ("groups", "replay"), ("two", "replay"), ("own", "replay"), ("two", "native")],
)
def test_an_interrupt_changes_nothing_or_says_so(kind: str, backend: str) -> None:
    step = Step(kind, backend)
    inside = ("optim", "spread.py", "host.py", "<ad.compile>")
    close = outcomes(step, lambda file: any(part in file for part in inside))
    assert close["silent"] == 0, close
    assert close["before"] > 3, close
    assert (close["said"] > 0) is (backend == "replay" and kind != "own"), close
    anywhere = outcomes(step, lambda file: True, every=41)
    assert anywhere["silent"] == 0, anywhere


def test_an_interrupt_of_a_trace_does_not_leave_a_mode_set() -> None:
    """The end of a ``with`` block of a mode is Python code, which an interrupt can leave too early."""

    def f(x: Any) -> Any:
        with ad.no_grad():
            y = x * 2
        return y + x

    for n in range(1, 100_000):
        total, error = interrupted(
            lambda: ad.compile(f, backend="replay")(X), lambda file: "config.py" in file, n
        )
        assert ad.is_grad_enabled(), n
        special.count = 0
        if error is None and total < n:
            break
    assert n > 3
