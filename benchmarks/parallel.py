"""``python -m benchmarks.parallel``: backward in several threads, as ratios in one run.

Wide graphs of large arrays against one thread and PyTorch's backward of the same graph (its
backward on the CPU is one thread per device; its own loops are held to one thread too); small
graphs with ``workers="auto"`` against one thread; matrix products with and without BLAS's own
threads; eight threads that train or add to one leaf (benchmarks.eight); the memory of contributions
that wait.

Everything is interleaved: a round runs each variant once, and a ratio is the median over
rounds, with its quartiles; the ratio of the best times sees the quiet moments.  Two processors of a
virtual machine are not always two: so the same rounds also run the kernels of that backward, bare, in one
and in two plain threads, which is what the machine gave at that moment.  On a machine that
others use, two threads do not get two processors and the ratios of time are too low.  So the part
"balance" also counts processor time, which nobody else uses up: that of one thread over that of
the busiest worker is what two free processors would give, but for the waiting between them.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any
from unittest import mock

import numpy as np

import adjoint as ad
from adjoint.engine import auto, parallel
from benchmarks import eight
from benchmarks.harness import Clock, Numbers, Rounds, Taken, quartiles, set_threads, time_of, used_of
from benchmarks.profile import kernel_calls, replay
from benchmarks.report import duration, table, with_quartiles

SERIAL, WORKERS, AUTO, TORCH = "serial", "workers=2", 'workers="auto"', "PyTorch, one thread"
BARE_ONE, BARE_TWO = "bare kernels, one thread", "bare kernels, two threads"
WIDE_TARGET = round(1 / 1.7, 3)  # 1.7 times as fast as one thread
AUTO_TARGET = 1.05
SHARED = "eight threads add to one leaf"


Backward = Callable[[], Taken]  # builds a graph, and returns what its backward took


def rounds_of(variants: dict[str, Backward], rounds: int) -> Rounds:
    """Time every variant once per round, in an order that turns from round to round."""
    names = list(variants)
    seconds: Rounds = {name: [] for name in names}
    for i in range(rounds + 2):
        for k in range(len(names)):
            name = names[(i + k) % len(names)]
            taken = variants[name]()
            if i >= 2:
                seconds[name].append(taken)
    return seconds


def report(title: str, rounds: Rounds, base: str) -> None:
    """Print each variant's time and how many times as fast as ``base`` it was."""
    print(f"\n{title}")
    seconds = {name: [t.wall for t in taken] for name, taken in rounds.items()}
    for name, taken in seconds.items():
        low, middle, high = quartiles([b / t for b, t in zip(seconds[base], taken, strict=True)])
        print(
            f"  {name:28s} {statistics.median(taken) * 1e3:9.3f} ms   {base} / this: "
            f"{middle:.2f} ({low:.2f} … {high:.2f})   best times: {min(seconds[base]) / min(taken):.2f}   "
            f"processors: {used_of(rounds[name]):.2f}"
        )


def timed(build: Callable[[], Any], **options: Any) -> Backward:
    def run() -> Taken:
        loss = build()
        with Clock() as clock:
            kept = ad.backward(loss, **options)
        del kept
        return clock.taken

    return run


# Wide graphs -----------------------------------------------------------------------------------


def curved(xp: Any, w: Any) -> Any:
    """A branch whose rules compute: each evaluates a sine or cosine."""
    return xp.sin(xp.cos(xp.sin(xp.cos(w)))).sum()


def mixed(xp: Any, w: Any) -> Any:
    """A branch whose rules mostly move memory."""
    return (xp.tanh(xp.sin(w) * w) + xp.exp(-w * w)).sum()


def wide(branch: Callable[[Any, Any], Any], branches: int, size: int) -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    ws = [ad.tensor(rng.normal(size=size), requires_grad=True) for _ in range(branches)]
    return lambda: sum((branch(ad, w) for w in ws), ad.tensor(0.0))


def wide_torch(branch: Callable[[Any, Any], Any], branches: int, size: int) -> Backward:
    import torch

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    ws = [torch.tensor(rng.normal(size=size), requires_grad=True) for _ in range(branches)]

    def run() -> Taken:
        loss = sum((branch(torch, w) for w in ws), torch.tensor(0.0))
        with Clock() as clock:
            grads = torch.autograd.grad(loss, ws)
        del grads
        return clock.taken

    return run


def bare(build: Callable[[], Any]) -> dict[str, Backward]:
    """The kernels of a backward, called again with no engine: in one thread, and halves in two.

    Branches come one after another, so that half of the calls are half of the branches.
    """
    loss = build()
    calls = kernel_calls(lambda: ad.backward(loss))
    first, second = calls[: len(calls) // 2], calls[len(calls) // 2 :]

    def one() -> Taken:
        with Clock() as clock:
            replay(calls)
        return clock.taken

    def two() -> Taken:
        with Clock() as clock:
            other = threading.Thread(target=replay, args=(second,))
            other.start()
            replay(first)
            other.join()
        return clock.taken

    return {BARE_ONE: one, BARE_TWO: two}


def wide_variants(branch: Callable[[Any, Any], Any], size: int) -> dict[str, Backward]:
    build = wide(branch, 8, size)
    variants = {
        SERIAL: timed(build),
        WORKERS: timed(build, workers=2),
        AUTO: timed(build, workers="auto"),
        **bare(build),
    }
    with suppress(ImportError):
        variants[TORCH] = wide_torch(branch, 8, size)
    return variants


WIDE = {
    "8 branches of 400,000 elements, sines and cosines": (curved, 400_000),
    "8 branches of 400,000 elements, mostly memory": (mixed, 400_000),
}


def bench_wide(rounds: int) -> None:
    for branch in (curved, mixed):
        for size in (10_000, 100_000, 400_000):
            seconds = rounds_of(wide_variants(branch, size), rounds)
            report(f"8 branches, {branch.__name__}, {size} elements", seconds, SERIAL)


@contextmanager
def worker_times() -> Iterator[list[float]]:
    """Note the processor time of every worker inside."""
    work = parallel._Crew.work
    used: list[float] = []

    def counted(crew: Any, me: int) -> None:
        start = time.thread_time()
        work(crew, me)
        used.append(time.thread_time() - start)

    with mock.patch.object(parallel._Crew, "work", counted):
        yield used


def balance(build: Callable[[], Any], rounds: int) -> Numbers:
    """Processor time of one thread, of the busiest of two workers, and of both together: medians."""
    found: dict[str, list[float]] = {"one": [], "busiest": [], "both": []}
    for _ in range(rounds):
        loss = build()
        start = time.thread_time()
        kept = ad.backward(loss)
        found["one"].append(time.thread_time() - start)
        del loss, kept
        loss = build()
        with worker_times() as used:
            kept = ad.backward(loss, workers=2)
        found["busiest"].append(max(used))
        found["both"].append(sum(used))
        del loss, kept
    return {name: float(f"{statistics.median(taken):.4g}") for name, taken in found.items()}


def bench_balance(rounds: int) -> None:
    """Processor time of one thread over that of the busiest of two workers."""
    print("\nprocessor time of one thread / of the busiest of two workers / of both together")
    for branch in (curved, mixed):
        for size in (10_000, 100_000, 400_000):
            found = balance(wide(branch, 8, size), rounds)
            print(
                f"  {branch.__name__}, {size} elements: " + " / ".join(map(duration, found.values())) + ": "
                f"{found['one'] / found['busiest']:.2f} times as fast on two free processors"
            )


# Small graphs ----------------------------------------------------------------------------------


def mlp() -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    shapes = ((64, 128), (128,), (128, 128), (128,), (128, 10), (10,))
    w = [ad.tensor(0.1 * rng.normal(size=s), requires_grad=True) for s in shapes]
    x = ad.tensor(rng.normal(size=(32, 64)))

    def build() -> Any:
        h = ad.tanh(ad.tanh(x @ w[0] + w[1]) @ w[2] + w[3])
        return ((h @ w[4] + w[5]) ** 2).sum()

    return build


def chain(length: int) -> Callable[[], Any]:
    x = ad.tensor(np.ones(4), requires_grad=True)

    def build() -> Any:
        y = x
        for _ in range(length):
            y = ad.sin(y) * 0.9
        return y.sum()

    return build


def small_graphs() -> dict[str, Callable[[], Any]]:
    return {
        "32×64-128-128-10 net": mlp(),
        "chain of 400 nodes": chain(200),
        "chain of 10 nodes": chain(5),
        "8 branches of 1,000": wide(mixed, 8, 1000),
    }


def small_variants(build: Callable[[], Any]) -> dict[str, Backward]:
    return {SERIAL: timed(build), AUTO: timed(build, workers="auto")}


def deciding(build: Callable[[], Any], rounds: int = 100) -> Numbers:
    """The best seconds of both variants, and of the decision of "auto" alone, for as many nodes."""
    decide, seen = auto._any_large, []

    def noted(order: Any) -> bool:
        seen.append(order)
        return decide(order)

    auto._any_large = noted
    try:
        ad.backward(build(), workers="auto")
    finally:
        auto._any_large = decide
    found = rounds_of(small_variants(build), rounds)
    taken = {name: _best(t.wall for t in some) for name, some in found.items()}
    alone = _best(time_of(lambda: decide(seen[0]), 100) for _ in range(rounds))
    return {"seconds": taken, "deciding": alone, "nodes": len(seen[0])}


def _best(seconds: Iterable[float]) -> float:
    return float(f"{min(seconds):.4g}")


def bench_small(rounds: int) -> None:
    for name, build in small_graphs().items():
        seconds = rounds_of(small_variants(build), 20 * rounds)
        report(f"{name} (auto at least 0.95)", seconds, SERIAL)


# Matrix products and BLAS's threads ------------------------------------------------------------


def products(size: int) -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    ws = [ad.tensor(rng.normal(size=(size, size)), requires_grad=True) for _ in range(8)]
    x = ad.tensor(rng.normal(size=(size, size)), requires_grad=True)
    return lambda: sum((((x @ w) @ w).sum() for w in ws), ad.tensor(0.0))


def bench_blas(rounds: int) -> None:
    try:
        from threadpoolctl import ThreadpoolController

        controller: Any = ThreadpoolController()
    except ImportError:
        print("\nthreadpoolctl is not installed: no comparison of BLAS threads")
        return

    def limited(run: Backward, threads: int | None) -> Backward:
        def inside() -> Taken:
            with nullcontext() if threads is None else controller.limit(limits=threads):
                time.sleep(0.15)  # OpenBLAS's threads spin for a while after a product
                return run()

        return inside

    for size in (64, 256, 512):
        build = products(size)
        variants = {
            "serial": limited(timed(build), None),
            "workers=2": limited(timed(build, workers=2), None),
            "serial, BLAS 1": limited(timed(build), 1),
            "workers=2, BLAS 1": limited(timed(build, workers=2), 1),
        }
        report(f"16 products of {size}×{size}", rounds_of(variants, max(5, rounds // 2)), "serial")


# Many threads ----------------------------------------------------------------------------------


def bench_threads(count: int) -> None:
    report(f"eight threads, {count} steps each (at least 0.91)", eight.rounds(count), eight.IDEAL)
    name = f"eight threads, {count} times into a shared leaf (at least 0.91)"
    report(name, eight.shared_rounds(count), eight.IDEAL)


# Memory ----------------------------------------------------------------------------------------


def bench_waiting() -> None:
    """The most that waits, when all branches go to one leaf."""
    size, branches = 200_000, 32
    w = ad.tensor(np.linspace(0, 1, size), requires_grad=True)
    finish, usual = parallel._Crew.finish, parallel.WAITING_BYTES
    peak = 0

    def measured(crew: Any, me: int, index: int, complete: Any) -> int:
        nonlocal peak
        peak = max(peak, crew.waiting_bytes)
        return finish(crew, me, index, complete)

    one = 8 * size
    print(f"\n{branches} branches into one leaf, contributions of {one / 1e6:.1f} MB: the most that waits")
    for limit, workers in itertools.product((usual, 4 * one, 0), (2, 4)):
        peak = 0
        taken = []
        with (
            mock.patch.object(parallel._Crew, "finish", measured),
            mock.patch.object(parallel, "WAITING_BYTES", limit),
        ):
            for _ in range(5):
                loss = sum((ad.sin(w * (0.1 + i)).sum() for i in range(branches)), ad.tensor(0.0))
                start = time.perf_counter()
                ad.backward(loss, workers=workers)
                taken.append(time.perf_counter() - start)
        print(
            f"  limit {limit / 1e6:5.1f} MB, {workers} workers: {peak / 1e6:5.1f} MB "
            f"(bound {(limit + workers * one) / 1e6:.1f}), {statistics.median(taken) * 1e3:.0f} ms"
        )


# The page ----------------------------------------------------------------------------------------


def row(name: str, rounds: Rounds, base: str, targets: dict[str, float]) -> Numbers:
    """The times of variants and their ratios to ``base``; bare kernels in two threads to those in one."""
    seconds = {v: [t.wall for t in taken] for v, taken in rounds.items()}
    bases = {v: BARE_ONE if v == BARE_TWO else base for v in seconds if v not in (base, BARE_ONE)}
    ratios = {
        v: quartiles([a / b for a, b in zip(seconds[v], seconds[of], strict=True)]) for v, of in bases.items()
    }
    return {
        "name": name,
        "base": base,
        "seconds": {v: quartiles(taken) for v, taken in seconds.items()},
        "ratios": ratios,
        "targets": targets,
        "processors": {v: used_of(taken) for v, taken in rounds.items()},
    }


def measure(rounds: int = 11, count: int = eight.STEPS) -> list[Numbers]:
    """Measure what has a target: wide graphs, small graphs with "auto", eight threads of ``count`` steps."""
    set_threads()
    rows = [
        row(name, rounds_of(wide_variants(*work), rounds), SERIAL, {WORKERS: WIDE_TARGET})
        for name, work in WIDE.items()
    ]
    for name, build in small_graphs().items():
        rows.append(row(name, rounds_of(small_variants(build), 20 * rounds), SERIAL, {AUTO: AUTO_TARGET}))
    name = f"eight models of {eight.SIZE:,} elements train, {count:,} steps each"
    rows.append(row(name, eight.rounds(count), eight.IDEAL, {eight.TOGETHER: eight.TARGET}))
    name = f"{SHARED} of {eight.SIZE:,} elements, {count:,} times each"
    rows.append(row(name, eight.shared_rounds(count), eight.IDEAL, {eight.TOGETHER: eight.TARGET}))
    set_threads()
    return rows


def limits(rows: list[Numbers]) -> list[Numbers]:
    """Return the rows of the table of targets."""
    return [
        {
            "name": f"{r['name']}: {variant}",
            "of": r["name"],
            "beside": r["base"],
            "value": r["ratios"][variant][1],
            "target": target,
        }
        for r in rows
        for variant, target in r["targets"].items()
    ]


def take_apart(of: str, missed: Sequence[Numbers], rows: list[Numbers]) -> Numbers:
    """Measure what threads share: processor time, the decision, processes instead of threads."""
    if of.startswith(SHARED):
        return {"shared": True}  # the rounds have the bare kernels, and processes share no leaf
    set_threads()
    if of in WIDE:
        branch, size = WIDE[of]
        return {"balance": balance(wide(branch, 8, size), 7)}
    if of in small_graphs():
        return {"auto": deciding(small_graphs()[of])}
    return {"crowd": eight.beside_processes(count=50, times=3)}


def why(taken: Numbers, missed: Sequence[Numbers], rows: list[Numbers]) -> str:
    """Say what the machine gives without the engine, and what the engine adds."""
    r = next(r for r in rows if r["name"] == missed[0]["of"])
    if "auto" in taken:
        return _why_auto(taken["auto"])
    cells = [
        [
            v,
            duration(t[1]),
            f"{r['ratios'][v][1]:.3g}" if v in r["ratios"] else "1",
            f"{r['processors'][v]:.2f}",
        ]
        for v, t in r["seconds"].items()
    ]
    shown = table(cells, ["in the rounds of the table", "time", "ratio", "processors at work"])
    target = missed[0]["target"]
    if "balance" in taken:
        return f"{shown}\n\n{_why_wide(taken['balance'], r['ratios'][BARE_TWO][1], target)}"
    if "shared" in taken:
        return (
            f"{shown}\n\nBare NumPy calls in eight threads, with only the sum behind a lock, took "
            f"{r['ratios'][eight.BARE][1]:.3g} of the ideal in the same rounds. No contribution was lost."
        )
    return f"{shown}\n\n{eight.why(taken['crowd'], r['ratios'][eight.BARE][1], target)}"


def _why_wide(found: Numbers, bare: float, target: float) -> str:
    given = f"{'more' if bare > target else 'less'} than the target of {target:g}"
    return (
        f"The NumPy calls of this backward with no engine around them took {bare:.3g} of one thread's time "
        f"in two, {given}. In processor time, which excludes waiting and other programs, one thread "
        f"needs {duration(found['one'])}, the busiest of two workers {duration(found['busiest'])} "
        f"({found['busiest'] / found['one']:.3g} of it: ratio with two free processors), both together "
        f"{duration(found['both'])} ({found['both'] / found['one']:.3g}: the excess over 1 is the engine, "
        "and kernels that compete for memory)."
    )


def _why_auto(found: Numbers) -> str:
    serial, ours = found["seconds"][SERIAL], found["seconds"][AUTO]
    return (
        f"Deciding that one thread is enough, from the shapes of {found['nodes']:,} nodes, takes "
        f"{duration(found['deciding'])} when done alone, {found['deciding'] / serial:.1%} of the whole. "
        f"By the best of 100 rounds the backward takes {duration(serial)} in one thread and {duration(ours)} "
        f'with `workers="auto"`: {ours / serial:.3g} of it.'
    )


def text(rows: list[Numbers]) -> str:
    """Return the table of ratios to one thread, with what was measured; empty without numbers."""
    if not rows:
        return ""
    cells = []
    for r in rows:
        cells.append([r["name"], r["base"], duration(r["seconds"][r["base"]][1]), "1"])
        cells += [
            ["", variant, duration(taken[1]), _ratio(r, variant)]
            for variant, taken in r["seconds"].items()
            if variant != r["base"]
        ]
    explained = (
        "Backward alone, in interleaved rounds. A ratio is to the first row of its block; that of bare\n"
        "kernels in two threads is to the same kernels in one: the NumPy calls of that backward with no\n"
        "engine around them, which shows what two processors gave at that moment. PyTorch's backward on the\n"
        "processor is one thread. The ideal of eight threads is the time of their work in one, over the\n"
        "number of processors; bare kernels are the same NumPy calls in eight threads.\n\n"
    )
    return explained + table(cells, ["graph", "variant", "time", "ratio"])


def _ratio(r: Numbers, variant: str) -> str:
    if variant not in r["ratios"]:
        return "1"
    return with_quartiles(r, variant)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parallel")
    parser.add_argument("parts", nargs="*", help="of: wide balance small blas threads waiting; all if none")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--steps", type=int, default=100, help="of each of eight threads (100; the page 1,000)"
    )
    options = parser.parse_args()
    parts: dict[str, Callable[[], None]] = {
        "wide": lambda: bench_wide(options.rounds),
        "balance": lambda: bench_balance(options.rounds),
        "small": lambda: bench_small(options.rounds),
        "blas": lambda: bench_blas(options.rounds),
        "threads": lambda: bench_threads(options.steps),
        "waiting": bench_waiting,
    }
    for name in options.parts or parts:
        parts[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
