"""Random training steps: the same numbers compiled and eager, in reused memory, and in any order of chunks."""

from __future__ import annotations

import functools
import random

import pytest
from random_steps import Plan, assert_close, run, run_beside, same

import adjoint as ad

pytest.importorskip("llvmlite")

import random_updates
from chunk_order import reorder

from adjoint.compiler.emit import machine
from adjoint.compiler.host import native
from adjoint.compiler.lower.lower import Lowered
from adjoint.compiler.lower.target import CPU
from adjoint.compiler.replay import tables
from adjoint.compiler.schedule import memory

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
LEVELS = machine.levels()
NATIVE = functools.partial(ad.compile, backend="native")
REPLAY = functools.partial(ad.compile, backend="replay")


@pytest.fixture(autouse=True)
def partial_sums(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write into gradients of tables of any size; for odd seeds, sum columns in the kernels of rows, too.

    The sums are made where arrays are small, in several chunks.  Values of any size can have the memory of an
    output that is computed later.
    """
    monkeypatch.setattr(memory, "_LENT", 1)
    monkeypatch.setattr(tables, "LARGE", 1)
    monkeypatch.setattr(tables, "_FEW", 0)
    if request.node.callspec.params["seed"] % 2:
        monkeypatch.setattr(Lowered.__init__, "__defaults__", (CPU._replace(large=1, rows=1, chunk=1),))


def check_numbers(seed: int, calls: int = 3) -> None:
    """Compare a step by replay and native code, at one level of vectors, with the eager one."""
    plan = Plan(seed)
    for found, wanted in run_beside(plan, REPLAY, calls):
        assert same(found, wanted)
    assert all(map(same, run(plan, REPLAY, 5), run(plan, lambda step: step, 5)))
    with machine.using(LEVELS[seed % len(LEVELS)]):
        for found, wanted in run_beside(plan, NATIVE, calls):
            assert_close(found, wanted, plan.tolerance)
        free, held = run(plan, NATIVE, calls), run(plan, NATIVE, calls, hold=True)
    assert all(map(same, free, held)), "reused memory changes the result"


def check_order(seed: int) -> None:
    """Compare a step with the same step whose chunks run in two other orders."""
    plan = Plan(seed, large=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "CHUNK", 50.0)
        wanted = run(plan, NATIVE, 2)
        for order in (list.reverse, random.Random(seed).shuffle):
            with pytest.MonkeyPatch.context() as inner:
                counts = reorder(inner, order)
                assert all(map(same, run(plan, NATIVE, 2), wanted))
            assert max(counts) > 1 or machine.machine().cores == 1


def check_helpers(seed: int) -> None:
    """Compare a step whose chunks helper threads share with the same step in one thread."""
    plan = Plan(seed, large=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "CHUNK", 50.0)
        patch.setattr(native, "HELPED", 0.0)
        helped = run(plan, NATIVE, 3)
        patch.setattr(native.Native, "helpers", lambda self: 0)
        assert all(map(same, run(plan, NATIVE, 3), helped))


@pytest.mark.parametrize("seed", range(10))
def test_numbers_of_steps(seed: int) -> None:
    check_numbers(seed)


@pytest.mark.parametrize("seed", range(6))
def test_chunks_in_any_order(seed: int) -> None:
    check_order(seed)


@pytest.mark.parametrize("seed", range(3))
def test_chunks_in_helper_threads(seed: int) -> None:
    check_helpers(seed)


@pytest.mark.parametrize("seed", range(40))
def test_updates_in_reused_memory(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 4 == 3:
        monkeypatch.setattr(native, "CHUNK", 20.0)
        reorder(monkeypatch, random.Random(seed).shuffle)
    with machine.using(LEVELS[seed % len(LEVELS)]):
        random_updates.check(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1_000, 2_000, 25))
def test_many_steps(seed: int) -> None:
    for each in range(seed, seed + 25):
        check_numbers(each, 5)
        check_order(each)
        check_helpers(each)
        random_updates.check(each)
