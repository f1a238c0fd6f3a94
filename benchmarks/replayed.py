"""Replayed steps beside eager ones: the same NumPy calls, so replay must not be slower in any case."""

from __future__ import annotations

from collections.abc import Sequence

from adjoint.compiler.api.compile import Compiled
from benchmarks.harness import Numbers, Result, quartiles, set_threads
from benchmarks.report import duration, outcome, table

OURS = "adjoint-replay"
TARGETS = {"MLP 1×8-16-16-1, SGD step": 0.5, "MLP 32×64-128-128-10, SGD step": 0.8}
TARGET = 1.0  # of all other cases
SUFFIX = ", replayed"


def numbers_of(result: Result) -> Numbers:
    """The time of a replayed step, and its ratio to the eager step; empty if there is none."""
    if OURS not in result.seconds:
        return {}
    return {
        "eager": quartiles(result.seconds["adjoint"]),
        "replayed": quartiles(result.seconds[OURS]),
        "ratio": quartiles(result.ratios("adjoint", OURS)),
        "target": TARGETS.get(result.case.name, TARGET),
    }


def limits(found: dict[str, Numbers]) -> list[Numbers]:
    """Return the rows of the table of targets; ``low`` is the lower quartile of the ratio."""
    return [
        {
            "name": name + SUFFIX,
            "of": name + SUFFIX,
            "beside": "adjoint, eager",
            "value": case["ratio"][1],
            "low": case["ratio"][0],
            "target": case["target"],
        }
        for name, case in found.items()
    ]


def text(found: dict[str, Numbers]) -> str:
    """Return the table of the page: the largest ratio is first."""
    rows = []
    for row in sorted(limits(found), key=lambda row: -row["value"]):
        name = row["name"].removesuffix(SUFFIX)
        case = found[name]
        low, middle, high = case["ratio"]
        times = duration(case["eager"][1]), duration(case["replayed"][1])
        rows.append(
            [name, *times, f"{middle:.3g} ({low:.3g}–{high:.3g})", f"≤ {row['target']:g} {outcome(row)}"]
        )
    return table(rows, ["case", "eager", "replayed", "replayed / eager", "target"])


def take_apart(of: str, _: Sequence[Numbers], found: dict[str, Numbers]) -> Numbers:
    """Return the number of instructions of the program of a replayed step."""
    from benchmarks.__main__ import all_cases

    set_threads()
    name = of.removesuffix(SUFFIX)
    case = next(case for group in all_cases()[1].values() for case in group if case.name == name)
    step = case.engines[OURS]()
    if not isinstance(step, Compiled):
        return {"failed": "the compiled function is a part of the step"}
    for _ in range(3):
        step()
    return {
        "instructions": sum(p["instructions"] for p in step.stats()["programs"]),
        "traces": step.stats()["traces"],
        "eager": found[name]["eager"][1],
        "replayed": found[name]["replayed"][1],
    }


def why(taken: Numbers, _: Sequence[Numbers], __: dict[str, Numbers]) -> str:
    """Return the text of the page."""
    n, more = taken["instructions"], taken["replayed"] - taken["eager"]
    return (
        f"The program has {n} instructions, each of which is a NumPy call that the eager step makes too, and "
        f"it was traced {taken['traces']} times in three calls. A replayed step takes "
        f"{duration(taken['replayed'])}, {_signed(more)} than the eager step, or {_signed(more / max(n, 1))} "
        "for each instruction."
    )


def _signed(seconds: float) -> str:
    return f"{duration(abs(seconds))} {'more' if seconds > 0 else 'less'}"
