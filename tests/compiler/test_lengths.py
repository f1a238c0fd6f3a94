"""Lengths of axes that vary: programs for all of them, and lengths that occur once."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn, optim
from adjoint.compiler.api import programs
from adjoint.compiler.build import units

F = nn.functional


def sequence(n: int) -> Any:
    return ad.tensor(np.random.default_rng(n).normal(size=(2, n, 3)))


def attention(x: Any) -> Any:
    return (ad.softmax(x @ ad.swapaxes(x, -1, -2), -1) @ x).sum(1)


def test_all_lengths_keep_their_programs() -> None:
    compiled, lengths = ad.compile(attention), range(2, 14)
    for _ in range(4):
        for n in lengths:
            np.testing.assert_allclose(
                compiled(sequence(n)).numpy(), attention(sequence(n)).numpy(), rtol=1e-12
            )
    stats = compiled.stats()
    assert stats["traces"] == len(stats["programs"]) == len(lengths)
    for _ in range(2 * len(lengths)):  # one build at a time
        units.wait()
        for n in lengths:
            np.testing.assert_allclose(
                compiled(sequence(n)).numpy(), attention(sequence(n)).numpy(), rtol=1e-12
            )
    assert compiled.stats()["traces"] == len(lengths)
    if pytest.importorskip("llvmlite"):
        assert all(v.native is not None for v in compiled._variants)


@pytest.mark.parametrize("backend", ["auto", "replay"])
def test_lengths_that_occur_once_are_not_traced(backend: str) -> None:
    compiled = ad.compile(attention, backend=backend)
    for n in range(2, 102):
        np.testing.assert_array_equal(compiled(sequence(n)).numpy(), attention(sequence(n)).numpy())
    assert compiled.stats()["traces"] == 3
    assert sum(v.native is not None for v in compiled._variants) == 0
    assert compiled(np.ones((2, 200, 3))).__class__ is np.ndarray  # as with a program
    assert compiled.stats()["traces"] == 4  # arrays are no tensors


def test_a_limit_traces_each_length() -> None:
    compiled = ad.compile(attention, backend="replay", limit=20)
    for n in range(2, 12):
        compiled(sequence(n))
    assert compiled.stats()["traces"] == 10


def test_programs_are_deleted_when_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_room", lambda: 9 << 20)
    compiled = ad.compile(attention, backend="replay")
    for _ in range(2):
        for n in range(2, 11):
            compiled(sequence(n))
    compiled(sequence(30))
    with pytest.warns(UserWarning, match="traced 10 times, but there is no memory to keep more programs"):
        compiled(sequence(30))
    assert len(compiled._variants) == 9


class Training:
    """A step with an integer argument, a dictionary of numbers, and batches of several forms and lengths."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.model = nn.Sequential(nn.Linear(3, 4, rng=0), nn.Tanh(), nn.Linear(4, 3, rng=1)).astype(
            np.float64
        )
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.002, momentum=0.5)
        self.state: dict[str, Any] = {"n": rng.randrange(3), "scale": 1.0}
        self.seen = 0
        self.period, self.form = rng.choice((0, 3)), rng.choice(("plain", "dict", "pair"))
        self.lengths = [rng.randrange(1, 6 if seed % 2 else 30) for _ in range(12)]
        self.integers = [rng.choice((1, 2, rng.randrange(1, 50), -3)) for _ in self.lengths]

    def step(self, batch: Any, k: int) -> Any:
        x = batch["x"] if isinstance(batch, dict) else batch[0] if isinstance(batch, tuple) else batch
        self.state["n"] += 1
        self.state["scale"] *= 0.99
        self.seen += x.shape[1] * k
        self.optimizer.zero_grad()
        loss = (
            F.mse_loss(attention(self.model(x)), x.mean(1)) * self.state["scale"] / (abs(k) + self.state["n"])
        )
        if self.period and self.state["n"] % self.period == 0:
            loss = loss * 2
        loss.backward()
        self.optimizer.step()
        return loss, k * 2, self.state["n"]

    def run(self, step: Any) -> list[Any]:
        """Call a step with all batches; return the results and the numbers after each."""
        found = []
        for n, k in zip(self.lengths * 2, self.integers * 2, strict=True):
            x = sequence(n)
            batch = {"plain": x, "dict": {"x": x, "name": "a"}, "pair": (x, True)}[self.form]
            loss, *numbers = step(batch, k)
            found.append((loss.numpy(), numbers, dict(self.state), self.seen))
            units.wait()
        return [*found, *(p.numpy() for p in self.model.parameters())]


@pytest.mark.parametrize("seed", range(12))
def test_random_steps_with_integers_dictionaries_and_lengths(seed: int) -> None:
    eager = Training(seed)
    wanted = eager.run(eager.step)
    for backend in ("replay", "auto"):
        made = Training(seed)
        compiled = ad.compile(made.step, backend=backend)
        close: Any = np.testing.assert_array_equal if backend == "replay" else np.testing.assert_allclose
        for found, expected in zip(made.run(compiled), wanted, strict=True):
            if isinstance(expected, tuple):
                assert found[1:] == expected[1:]
                found, expected = found[0], expected[0]
            close(found, expected)
        traces, shapes = compiled.stats()["traces"], len(set(made.lengths))
        # two programs per length for the period; the first ones are constant in one of the numbers
        assert traces <= (2 if made.period else 1) * shapes + 4
