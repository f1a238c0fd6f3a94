"""Random programs of the compiler's tests, updates of tensors and training steps as libraries in C and in WebAssembly."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import random_programs
import random_steps
import random_updates
from exported import Case, Runs, run_c, run_wasm

from adjoint.errors import ExportError

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
LEAST = 200  # programs
SPECIAL = (17, 24)  # seeds of steps with uneven updates, and with a sparse gradient that does not stay
TOGETHER = 10  # programs in one library, because a library of its own for each takes longer


def programs(seeds: range) -> Iterator[Case]:
    """Random programs over arrays of all shapes and dtypes, with special values."""
    for first in seeds[::TOGETHER]:
        rngs = [np.random.default_rng(seed) for seed in range(first, first + TOGETHER)]
        given = [random_programs.arrays(rng, 3) for rng in rngs]
        parts = [random_programs.program(rng, 4) for rng in rngs]
        f = lambda given, parts=parts: [part(*arrays) for part, arrays in zip(parts, given, strict=True)]
        yield Case(f"program{first}", f, [(given,), (given,)], count=TOGETHER)


def updates(seeds: range) -> Iterator[Case]:
    """Random functions that write into tensors."""
    for first in seeds[::TOGETHER]:
        made = [random_updates.Updates(seed) for seed in range(first, first + TOGETHER)]
        states = [m.state() for m in made]
        f = lambda given, made=made, states=states: [
            m.run(state, x) for m, state, x in zip(made, states, given, strict=True)
        ]
        yield Case(f"updates{first}", f, [([m.data(k) for m in made],) for k in range(2)], count=TOGETHER)


def trainings(seeds: Iterable[int]) -> Iterator[Case]:
    """Random training steps, after one eager step, so that gradients that stay from call to call are there."""
    for seed in seeds:
        plan = random_steps.Plan(seed)
        plan.lengths = plan.lengths[:1]  # a library takes arrays of one shape
        plan.infinite = -1  # a library raises where a program runs the function itself
        plan.counts = plan.scales = False  # these need Python at each call
        training = random_steps.Training(plan)
        training.step(*plan.data(0))
        yield Case(f"training{seed}", training.step, [tuple(plan.data(k)) for k in range(1, 4)])


@pytest.fixture(scope="module")
def made() -> list[tuple[Case, Runs]]:
    """The cases that can be exported, and what ``ad.compile`` computes."""
    found = []
    for case in (*programs(range(130)), *updates(range(60)), *trainings([*range(14), *SPECIAL])):
        try:
            case.prepare()
        except ExportError:  # NAdam, clips without a native form, updates that are uneven from now on
            continue
        found.append((case, case.wanted()))
    assert sum(case.count for case, _ in found) >= LEAST
    return found


def test_c(made: Any, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    for found, (case, wanted) in zip(run_c([c for c, _ in made], tmp_path), made, strict=True):
        case.assert_same(found, wanted)


def test_wasm(made: Any, tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("needs node")
    for found, (case, wanted) in zip(run_wasm([c for c, _ in made], tmp_path), made, strict=True):
        case.assert_same(found, wanted)
