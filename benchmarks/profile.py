"""``python -m benchmarks.profile name …``: where adjoint's time goes in a case, and what its target needs.

A step is taken apart without slowing it down. Its *phases* are timed by a stopwatch around the
backward and the optimiser, a few calls in a whole step. Its *kernels* are the ops' own NumPy code,
forwards and rules: in one step that is not timed, every call of a kernel on plain arrays is noted with its
arguments; then the same calls are made again, one after another, with no recording and no engine around
them, and that is timed. What a phase takes beyond its kernels is adjoint's own: recording in the forward;
planning, walking and adding up in backward. All are timed in the same interleaved rounds, with the peers
that a target was missed beside, and the best times are shown: every part is the same work each time, and
what else the machine does only adds to it.

A case that runs no ops (the accumulator) is shown by function instead, as cProfile sees it.
"""

from __future__ import annotations

import argparse
import cProfile
import functools
import pstats
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adjoint import config
from adjoint.core.eager import UFUNCS
from adjoint.core.lifted import Lifted
from adjoint.core.namespace import raw
from adjoint.core.op import OPS
from adjoint.core.tensor import Tensor
from adjoint.optim.optimizer import Optimizer
from benchmarks.harness import Case, Numbers, Step, repeats_of, rest, set_threads, set_up, time_of
from benchmarks.report import duration, table, title

FORWARD, BACKWARD, OPTIMISER = "forward", "backward", "optimiser"
STARTS = ("backward", "gradients", "differentiate", "backward_into_leaves")  # functions that start a backward
DRIFT = 1.3  # by which a step may take longer or shorter in its profile than in the table
SHOWN = 6  # kernels, the dearest first


class Call(NamedTuple):
    """A kernel with the arguments of one call."""

    op: str
    phase: str
    run: Callable[[], Any]


class Watch:
    """A stopwatch for phases, each without those inside it; and, if asked, a list of the kernels' calls."""

    def __init__(self) -> None:
        self.stack = [FORWARD]
        self.seconds: dict[str, float] = defaultdict(float)
        self.since = 0.0
        self.calls: list[Call] = []
        self.inside = False

    def _switch(self) -> None:
        now = time.perf_counter()
        self.seconds[self.stack[-1]] += now - self.since
        self.since = now

    def phase(self, name: str, f: Callable[..., Any]) -> Callable[..., Any]:
        """Count what ``f`` takes as a phase."""

        @functools.wraps(f)
        def timed(*args: Any, **options: Any) -> Any:
            self._switch()
            self.stack.append(name)
            try:
                return f(*args, **options)
            finally:
                self._switch()
                self.stack.pop()

        return timed

    def kernel(self, op: str, f: Callable[..., Any]) -> Callable[..., Any]:
        """Note the calls of ``f`` on plain arrays, but not those that other kernels make."""

        def noted(*args: Any, **options: Any) -> Any:
            if self.inside or not _plain(args):
                return f(*args, **options)
            self.inside = True
            try:
                return f(*args, **options)
            finally:
                self.inside = False
                self.calls.append(Call(op, self.stack[-1], functools.partial(f, *args, **options)))

        return noted

    def time(self, step: Step, repeats: int) -> dict[str, float]:
        """Return the seconds per step of each phase."""
        self.seconds.clear()
        self.since = time.perf_counter()
        for _ in range(repeats):
            step()
        self._switch()
        return {name: taken / repeats for name, taken in self.seconds.items()}


def _plain(args: Sequence[Any]) -> bool:
    """Tell whether a kernel gets arrays and numbers alone; a rule gets its namespace first."""
    for a in args:
        if isinstance(a, Tensor | Lifted) or (type(a) is type(raw) and a is not raw):
            return False
        if isinstance(a, tuple | list) and not _plain(a):
            return False
    return True


@contextmanager
def phases(watch: Watch) -> Iterator[None]:
    """Return a context manager that times backward and the methods of optimisers by the stopwatch."""
    undo: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, phase: str) -> None:
        undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, watch.phase(phase, getattr(owner, name)))

    put(Tensor, "backward", BACKWARD)
    for kind in (Optimizer, *_subclasses(Optimizer)):
        for name in ("step", "zero_grad"):
            if name in vars(kind):
                put(kind, name, OPTIMISER)
    for module in [m for name, m in sys.modules.items() if name.split(".")[0] == "adjoint"]:
        for name in STARTS:
            if callable(vars(module).get(name)) and not isinstance(vars(module)[name], type(sys)):
                put(module, name, BACKWARD)
    try:
        yield
    finally:
        for owner, name, was in reversed(undo):
            setattr(owner, name, was)


def _subclasses(kind: type) -> list[type]:
    return [s for direct in kind.__subclasses__() for s in (direct, *_subclasses(direct))]


@contextmanager
def noted_kernels(watch: Watch) -> Iterator[None]:
    """Note every call of a forward or a rule; the functions of ops hold their forwards in closures."""
    undo: list[Callable[[], None]] = []
    for op in OPS.values():
        forward = op.forward
        noted = watch.kernel(op.name, forward)
        held = UFUNCS.get(forward, forward)
        for cell in op.eager.__closure__ or ():
            if cell.cell_contents is held:
                undo.append(functools.partial(setattr, cell, "cell_contents", held))
                cell.cell_contents = noted
        for owner, name, new in (
            (op, "forward", noted),
            (raw, op.name, noted),
            (op, "rules", tuple(r and watch.kernel(op.name, r) for r in op.rules)),
            (op, "joint", op.joint and watch.kernel(op.name, op.joint)),
        ):
            undo.append(functools.partial(setattr, owner, name, getattr(owner, name)))
            setattr(owner, name, new)
    try:
        yield
    finally:
        for restore in undo:
            restore()


def kernel_calls(step: Step) -> list[Call]:
    """Return the kernels' calls of one step, in their order; in one thread, so that none is in pieces."""
    watch = Watch()
    with phases(watch), noted_kernels(watch), config.threads(1):
        step()
    return watch.calls


def replay(calls: list[Call]) -> None:
    """Make the calls again; what a forward gives is kept to the end, as a graph keeps it."""
    kept: list[Any] = []
    for call in calls:
        found = call.run()
        if call.phase == FORWARD:
            kept.append(found)


def dearest(calls: list[Call], rounds: int) -> list[list[Any]]:
    """Return (op, phase, calls, seconds per step) of the kernels that take longest."""
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for call in calls:
        counts[call.op, call.phase] += 1
    for _ in range(rounds):
        once: dict[tuple[str, str], float] = defaultdict(float)
        for call in calls:
            start = time.perf_counter()
            call.run()
            once[call.op, call.phase] += time.perf_counter() - start
        for key, seconds in once.items():
            taken[key].append(seconds)
    found = [[*key, counts[key], _best(t)] for key, t in taken.items()]
    return sorted(found, key=lambda row: -row[3])[:SHOWN]


def functions(step: Step, repeats: int) -> list[list[Any]]:
    """Return the functions with the largest own time and their shares, as cProfile counts them."""
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(repeats):
        step()
    profiler.disable()
    stats: dict[Any, Any] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    total = sum(own for _, _, own, _, _ in stats.values())
    found = [[_function(key), _rounded(own / total)] for key, (_, _, own, _, _) in stats.items()]
    return sorted(found, key=lambda row: -row[1])[:SHOWN]


def _function(key: tuple[str, int, str]) -> str:
    """Name a function as cProfile knows it: a built-in has no file."""
    file, _, name = key
    return name.strip("<>") if file == "~" else f"{Path(file).stem}.{name}"


def profile(case: Case, peers: Sequence[str] = (), rounds: int = 9) -> Numbers:
    """Take one step of adjoint in a case apart, and time it beside some peers in the same rounds."""
    set_threads()
    step = case.engines["adjoint"]()
    for _ in range(3):
        step()
    calls = kernel_calls(step)
    parts = {phase: [c for c in calls if c.phase == phase] for phase in (FORWARD, BACKWARD, OPTIMISER)}
    runs: dict[str, Step] = {"whole": step}
    runs |= {phase: functools.partial(replay, some) for phase, some in parts.items() if some}
    beside = {f"beside {peer}": run for peer, run in peer_steps(case, peers).items()}
    runs |= beside
    watch = Watch()
    repeats = {name: repeats_of(step if name in parts else run) for name, run in runs.items()}
    taken: dict[str, list[float]] = defaultdict(list)
    with np.errstate(all="ignore"):  # a kernel that writes into its argument does so again and again
        for i in range(rounds + 2):
            once = {}
            for name, run in runs.items():
                if repeats[name] > 1:
                    run()  # caches and threads are cold after the rest
                once[name] = time_of(run, repeats[name])
                rest(case, name.removeprefix("beside "))
            with phases(watch):
                once |= {f"{name} phase": t for name, t in watch.time(step, repeats["whole"]).items()}
            rest(case, "adjoint")
            for name, t in once.items() if i >= 2 else ():
                taken[name].append(t)
        found: Numbers = {"whole": _best(taken["whole"]), "phases": {}, "kernels": {}}
        for phase in parts:
            found["phases"][phase] = _best(taken.get(f"{phase} phase", [0.0]))
            found["kernels"][phase] = _best(taken.get(phase, [0.0]))
        found["peers"] = {
            name.removeprefix("beside "): _best(t) for name, t in taken.items() if name in beside
        }
        if calls:
            found["dearest"] = dearest(calls, rounds)
        else:
            found["functions"] = functions(step, repeats["whole"])
    return found


def peer_steps(case: Case, peers: Sequence[str]) -> dict[str, Step]:
    """Set the peers up again; of adjoint's own yardsticks the kernels too."""
    steps, _, _ = set_up(replace(case, engines={name: case.engines[name] for name in peers}))
    for peer, step in list(steps.items()):
        if peer.startswith("adjoint"):
            steps[f"{peer}: kernels"] = functools.partial(replay, kernel_calls(step))
    return steps


def _best(values: Sequence[float]) -> float:
    return _rounded(min(values))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


# What the page says ---------------------------------------------------------------------------------


def text(found: Numbers, missed: Sequence[tuple[str, float, float]], measured: float | None = None) -> str:
    """Return the table of parts, and a sentence for each missed target: (peer, measured ratio, target).

    ``measured`` is what the step took when its ratios were measured. Where a peer was not timed again
    beside the parts, and the profile's own step took something else, its shares do not belong to those
    ratios, and no conclusion is drawn.
    """
    peers = found.get("peers", {})
    if "functions" in found:
        rows = [[f"`{name}`", f"{share:.0%}"] for name, share in found["functions"]]
        said = "No op runs here; these functions take the time, as cProfile sees it (what NumPy does for an "
        shown = (
            f"{said}operator or a ufunc counts for its caller):\n\n{table(rows, ['function', 'own time'])}"
        )
        again = [again_beside(p, r, t, found["whole"] / peers[p]) for p, r, t in missed if p in peers]
        return "\n\n".join([*(f"{start}." for start in again), shown])
    whole = sum(found["phases"].values())
    rows = [
        [part, duration(seconds), f"{seconds / whole:.0%}"] for part, seconds in parts(found) if seconds > 0
    ]
    share = kernel_share(found)
    drifted = measured is not None and not 1 / DRIFT < measured / whole < DRIFT
    sentences = [
        sentence(peer, ratio, target, share, peers.get(peer), found["whole"], peers.get(f"{peer}: kernels"))
        for peer, ratio, target in missed
        if peer in peers or not drifted
    ]
    if drifted and len(sentences) < len(missed):
        took = f"The step took {duration(measured or 0.0)} when its ratio was measured"
        said = "the machine was busy, and what the kernels alone would reach is not known."
        sentences.append(f"{took} and {duration(whole)} here: {said}")
    dear = ", ".join(
        f"`{op}` {phase} {duration(seconds)}" + (f" ({count} calls)" if count > 1 else "")
        for op, phase, count, seconds in found["dearest"]
    )
    return "\n\n".join(
        [table(rows, ["part", "time", "share"]), *sentences, f"The most expensive kernels: {dear}."]
    )


def parts(found: Numbers) -> list[tuple[str, float]]:
    """Split a step's time; its rows add up to the step."""
    phases, kernels = found["phases"], found["kernels"]
    own = {phase: max(0.0, phases[phase] - kernels[phase]) for phase in phases}
    within = {phase: min(phases[phase], kernels[phase]) for phase in phases}
    return [
        ("forward: NumPy kernels", within[FORWARD]),
        ("forward: recording, and the program itself", own[FORWARD]),
        ("backward: NumPy kernels of the rules", within[BACKWARD]),
        ("backward: the engine", own[BACKWARD]),
        ("optimiser", phases[OPTIMISER]),
    ]


def kernel_share(found: Numbers) -> float:
    """The part of a step that its kernels take, which no engine could save."""
    phases, kernels = found["phases"], found["kernels"]
    return sum(min(kernels[p], phases[p]) for p in phases) / sum(phases.values())


def sentence(
    peer: str,
    ratio: float,
    target: float,
    share: float,
    seconds: float | None = None,
    whole: float = 0.0,
    own: float | None = None,
) -> str:
    """Say what the kernels alone would be beside a peer's whole time.

    ``seconds`` is what the peer took in the rounds in which the step took ``whole``, ``own`` its own
    kernels if it is a yardstick of adjoint's.
    """
    start = f"Compared with {title(peer)} ({ratio:.3g}, target {target:g})"
    if seconds is not None:
        start, ratio = again_beside(peer, ratio, target, whole / seconds), whole / seconds
    alone = share * ratio
    start = f"{start}: NumPy kernels alone take {alone:.2g} of its whole time"
    if own is not None:
        start += f" (its own kernels {own / (seconds or own):.2g})"
    if alone > target:
        return f"{start}, so no engine that uses these kernels can meet the target."
    if ratio <= target:
        return f"{start}; in these rounds the target is met."
    return f"{start}; the rest must shrink from {ratio - alone:.3g} to {target - alone:.3g} of it."


def again_beside(peer: str, ratio: float, target: float, here: float) -> str:
    return (
        f"Compared with {title(peer)} ({ratio:.3g} in the table, {here:.3g} by best times here, "
        f"target {target:g})"
    )


# Parts of a run, as benchmarks.missed wants them -----------------------------------------------------


def limits(cases: dict[str, Numbers]) -> list[Numbers]:
    """Return the rows of the table of targets."""
    return [
        {"name": name, "of": name, "beside": peer, "value": case["ratios"][peer][1], "target": target}
        for name, case in cases.items()
        for peer, target in case["targets"].items()
    ]


def take_apart(of: str, missed: Sequence[Numbers], _: dict[str, Numbers]) -> Numbers:
    """Profile a case beside the peers that it missed a target beside."""
    from benchmarks.__main__ import all_cases

    case = next(case for group in all_cases()[1].values() for case in group if case.name == of)
    return profile(case, [row["beside"] for row in missed])


def why(taken: Numbers, missed: Sequence[Numbers], cases: dict[str, Numbers]) -> str:
    """Say where the time of a case goes and what its target needs."""
    beside = [(row["beside"], row["value"], row["target"]) for row in missed]
    return text(taken, beside, cases[missed[0]["of"]]["seconds"]["adjoint"][1])


def main() -> int:
    from benchmarks.__main__ import all_cases

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.profile", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("names", nargs="+", help="cases whose names contain one of these")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    for members in all_cases()[1].values():
        for case in members:
            if any(n in case.name for n in options.names):
                print(f"{case.name}\n\n{text(profile(case, rounds=options.rounds), [])}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
