"""Random programs with state, writes and gradients: compiled and eager give the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from by_replay import by_replay as by_replay
from hostile import trial
from hypothesis import example, given, settings
from hypothesis import strategies as st
from steps import bits

import adjoint as ad

UNARY = [ad.tanh, ad.sin, ad.exp, ad.abs, ad.relu, lambda a: a * a, lambda a: -a, lambda a: a.detach()]
BINARY = [
    ad.add, ad.subtract, ad.multiply, ad.maximum, lambda a, b: ad.where(a > b, a, b * 0.5), lambda a, b: a @ b,
]  # fmt: skip
WRITES = ["copy", "item", "row", "add", "grad", "zero", "none"]

Plan = list[tuple[int, int, int, int]]


def run(plan: Plan, state: list[Any], parameters: list[Any], rng: Any, size: int) -> Any:
    """Make a step from a plan: each entry is an operation on earlier values."""

    def step(x: Any, factor: float) -> Any:
        values = [x, *state, *parameters]
        loss: Any = 0.0
        for kind, i, j, n in plan:
            a, b = values[i % len(values)], values[j % len(values)]
            if kind == 0:
                values.append(UNARY[n % len(UNARY)](a) * 0.5)
            elif kind == 1:
                values.append(BINARY[n % len(BINARY)](a, b) * 0.25)
            elif kind == 2:
                values.append(a * factor + rng.normal(size=(size, size)))
            elif kind == 3:
                values.append(a[n % size] + b[:, n % size])
                values[-1] = values[-1] * np.ones((size, size))
            else:
                _write(
                    WRITES[n % len(WRITES)], state[i % len(state)], a, parameters[j % len(parameters)], factor
                )
            loss = loss + values[-1].sum()
        if isinstance(loss, ad.Tensor) and loss.requires_grad:
            loss.backward()
        return loss, values[-1].detach()

    return step


def _write(kind: str, t: Any, value: Any, p: Any, factor: float) -> None:
    if kind == "copy":
        t.copy_(t * 0.5 + value.detach() * 0.1)
    elif kind == "item":
        t[-1, 0] = 0.25
    elif kind == "row":
        t[0] = value.detach()[-1]
    elif kind == "add":
        t += value.detach() * factor
    elif kind == "grad" and p.grad is not None:
        p.grad = p.grad * 0.5
    elif kind == "zero":
        p.grad = None


entries = st.tuples(st.integers(0, 4), st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))


@given(st.lists(entries, min_size=1, max_size=12), st.integers(0, 1000), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_random_steps(plan: Plan, seed: int, size: int) -> None:
    r = np.random.default_rng(seed)
    arrays = [r.uniform(-1, 1, (size, size)) for _ in range(4)]
    sides = []
    for _ in range(2):
        state = [ad.tensor(a) for a in arrays[:2]]
        parameters = [ad.tensor(a, requires_grad=True) for a in arrays[2:]]
        rng = ad.random.default_rng(seed)
        sides.append((run(plan, state, parameters, rng, size), state, parameters, rng))
    compiled = ad.compile(sides[1][0])
    with np.errstate(all="ignore"):
        for k in range(4):
            x, factor = r.uniform(-1, 1, (size, size)), float(r.uniform())
            wanted = sides[0][0](ad.tensor(x), factor)
            found = compiled(ad.tensor(x), factor)
            assert bits(found) == bits(wanted), k
            for a, b in zip(sides[0][1] + sides[0][2], sides[1][1] + sides[1][2], strict=True):
                assert bits(a) == bits(b)
                assert bits(a.grad) == bits(b.grad)
            assert sides[0][3].state == sides[1][3].state
    assert compiled.stats()["traces"] <= 3


@given(st.integers(0, 2**31 - 1))
@example(1182)  # a hook, and a recorded backward
@example(6342)  # a product of arrays in Fortran order
@settings(max_examples=40, deadline=None)
def test_random_worlds(seed: int) -> None:
    """Hooks, freezing, aliases, dtypes, loops, tapes and transforms; see ``hostile``."""
    assert trial(seed, "replay") == ""


@given(st.integers(0, 2**31 - 1))
@example(31)  # a float16 argument is kept for the backward
@example(150)  # a sum over a number that kernels compute themselves
@settings(max_examples=4, deadline=None)
def test_random_worlds_as_native_code(seed: int) -> None:
    assert trial(seed, "native") == ""
