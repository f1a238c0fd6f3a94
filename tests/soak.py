"""The soak target: minutes of random graphs, nestings, failures and threads.  ``make soak``, outside CI.

    PYTHONPATH=.:tests/support:tests/engine python tests/soak.py --graphs 10000 --failures 2000 --seconds 120

Each part prints what it showed; anything else is a failure, and a hang ends with all stacks.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import random_calls
import random_compiled
import random_graphs
import random_halves
import random_keywords
from random_graphs import Graph
from random_nesting import Program
from random_trainings import check_training
from test_faults import check_failure, check_interrupt, helpers
from test_threads import _train, together
from watchdog import watched

import adjoint as ad

PART_SECONDS = 60.0  # no single graph takes longer than this


def equal_graphs(count: int, first: int) -> None:
    """Parallel equals serial: values, leaves, the hooks' order at each tensor."""
    for seed in range(first, first + count):
        with watched(PART_SECONDS):
            one = Graph(seed)
            one.root.backward()
            for workers in (2, 4):
                many = Graph(seed)
                many.root.backward(workers=workers)
                assert many.results() == one.results(), f"seed {seed}, {workers} workers: other bits"
                assert many.log == one.log, f"seed {seed}, {workers} workers: other hooks"
    assert helpers() == []


def failing_graphs(count: int, first: int) -> None:
    """A failure at a random point: there within a second, nothing changed, the next one right."""
    rng = np.random.default_rng(first)
    seeds = itertools.count(first)
    done = 0
    while done < count:
        with watched(PART_SECONDS):
            done += check_failure(next(seeds), (2, 4)[done % 2], rng, seconds=1.0)


def interrupted_graphs(count: int, first: int) -> None:
    """An interrupt after a moment, wherever the caller is: all or nothing, and no thread left."""
    rng = np.random.default_rng(first)
    for seed in range(first, first + count):
        with watched(PART_SECONDS):
            check_interrupt(seed, float(rng.uniform(1e-4, 5e-3)))


def sleepy_graphs(seconds: float, first: int) -> None:
    """Hooks and rules that sleep at random, so that workers overtake each other in every way."""
    end = time.monotonic() + seconds
    pause = lambda: time.sleep(random.choice((0, 0, 0, 1e-4, 1e-3)))
    random_graphs.faults[:] = [pause]
    for seed in itertools.count(first):
        if time.monotonic() > end:
            break
        with watched(PART_SECONDS):
            one, many = Graph(seed, nodes=40, fault=pause), Graph(seed, nodes=40, fault=pause)
            one.root.backward()
            many.root.backward(workers=random.randint(2, 8))
            assert many.results() == one.results() and many.log == one.log, f"seed {seed}"
    random_graphs.faults.clear()


def training_threads(steps: int) -> None:
    """Eight threads train eight models as one thread would."""
    alone = [_train(seed, steps, 1) for seed in range(8)]
    with watched(20 * PART_SECONDS):
        assert together(8, lambda seed: _train(seed, steps, 2 if seed % 2 else 1)) == alone


def shared_leaves(rounds: int) -> None:
    """Eight threads add to the same leaves; not one contribution is lost."""
    w = ad.zeros(100).requires_grad_()

    def work(i: int) -> None:
        for _ in range(rounds):
            (w * float(i + 1)).sum().backward(workers=1 + i % 2)

    with watched(20 * PART_SECONDS):
        together(8, work)
    assert w.grad is not None and w.grad.tolist() == [36.0 * rounds] * 100


def random_programs(count: int, first: int) -> None:
    """Checkpoints and custom rules equal plain calls, in every nesting of transforms."""
    for seed in range(first, first + count):
        with watched(PART_SECONDS):
            for mode in random_calls.MODES:
                random_calls.compare(seed, mode)
            random_calls.compare_written(seed)


def nested_programs(count: int, first: int) -> None:
    """Tapes, transforms, checkpoints, custom rules and scopes, nested at random, against plain Python."""
    for seed in range(first, first + count):
        with watched(PART_SECONDS):
            Program(seed).check()


def disturbed_trainings(count: int, first: int) -> None:
    """Callbacks, checkpoints, failures and interruptions do not change trainings, also compiled ones."""
    for seed in range(first, first + count):
        with watched(PART_SECONDS), tempfile.TemporaryDirectory() as directory:
            check_training(seed, Path(directory))


def compiled(module: Any, count: int, first: int) -> None:
    """Compiled functions return what plain ones return: values, derivatives, dtypes and bytes."""
    for seed in range(first, first + count):
        with watched(PART_SECONDS), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="ad.compile")  # of functions that are traced very often
            module.compare(seed, "replay")
            if seed % 10 == 0:
                module.compare(seed, "native")


def part(name: str, work: Callable[..., Any], *args: Any) -> None:
    start = time.monotonic()
    work(*args)
    print(f"{name}: right, {time.monotonic() - start:.0f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--graphs", type=int, default=10_000)
    parser.add_argument("--programs", type=int, default=5_000, help="of nested calls, in ten ways each")
    parser.add_argument("--compiled", type=int, default=30_000, help="programs that each of three draws")
    parser.add_argument("--failures", type=int, default=2_000)
    parser.add_argument("--nestings", type=int, default=50_000)
    parser.add_argument("--trainings", type=int, default=2_000, help="with callbacks, failures and resumes")
    parser.add_argument("--seconds", type=float, default=120.0, help="of graphs whose hooks sleep")
    parser.add_argument("--steps", type=int, default=1_000, help="of training in each of eight threads")
    parser.add_argument("--seed", type=int, default=10_000, help="the first seed")
    options = parser.parse_args()
    sys.setswitchinterval(1e-5)  # threads take turns 500 times as often as by default
    part(f"{options.graphs} graphs, 2 and 4 workers", equal_graphs, options.graphs, options.seed)
    part(f"{options.programs} programs of nested calls", random_programs, options.programs, options.seed)
    part(f"{options.nestings} nestings", nested_programs, options.nestings, options.seed)
    for module in (random_halves, random_compiled, random_keywords):
        name = f"{options.compiled} programs of {module.__name__}"
        part(name, compiled, module, options.compiled, options.seed)
    part(f"{options.failures} failures", failing_graphs, options.failures, options.seed)
    part(f"{options.failures} interrupts", interrupted_graphs, options.failures, options.seed)
    part(f"{options.trainings} trainings", disturbed_trainings, options.trainings, options.seed)
    part("graphs with sleeping hooks", sleepy_graphs, options.seconds, options.seed)
    part(f"eight threads, {options.steps} training steps each", training_threads, options.steps)
    part(f"eight threads, {options.steps} times into shared leaves", shared_leaves, options.steps)
    assert threading.active_count() == 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
