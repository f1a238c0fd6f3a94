"""Compiled steps beside the peers that they have targets for, and their kernels where a target is missed."""

from __future__ import annotations

from collections.abc import Sequence

from adjoint.compiler.api.compile import Compiled
from benchmarks.harness import Numbers, Result, quartiles, set_threads
from benchmarks.report import duration, table, title, verdict

OURS = "adjoint-compile"


def numbers_of(result: Result) -> Numbers:
    """The ratios of a compiled step; empty if it has no targets."""
    case = result.case
    targets = {k: v for k, v in case.compiled.items() if k in result.seconds}
    if not targets or OURS not in result.seconds:
        return {}
    return {
        "seconds": quartiles(result.seconds[OURS]),
        "ratios": {k: quartiles(result.ratios(k, OURS)) for k in targets},
        "targets": targets,
    }


def text(found: dict[str, Numbers]) -> str:
    """Return the table of the page."""
    peers = list(dict.fromkeys(p for case in found.values() for p in case["ratios"]))
    rows = []
    for name, case in found.items():
        cells = [_cell(case, p) for p in peers]
        rows.append([name, duration(case["seconds"][1]), *cells])
    return table(rows, ["case", "adjoint, compiled", *map(title, peers)])


def _cell(case: Numbers, peer: str) -> str:
    if peer not in case["ratios"]:
        return "–"
    low, middle, high = case["ratios"][peer]
    return f"{middle:.3g} ({low:.3g}–{high:.3g}; {verdict(middle, case['targets'][peer])})"


def limits(found: dict[str, Numbers]) -> list[Numbers]:
    """Return the rows of the table of targets."""
    return [
        {
            "name": f"{name}, compiled",
            "of": f"{name}, compiled",
            "beside": peer,
            "value": case["ratios"][peer][1],
            "target": target,
        }
        for name, case in found.items()
        for peer, target in case["targets"].items()
    ]


def take_apart(of: str, _: Sequence[Numbers], __: dict[str, Numbers]) -> Numbers:
    """Return the kernels of a compiled step with their times."""
    from benchmarks.__main__ import all_cases

    set_threads()
    name = of.removesuffix(", compiled")
    case = next(case for group in all_cases()[1].values() for case in group if case.name == name)
    step = case.engines[OURS]()
    if not isinstance(step, Compiled):
        return {"failed": "the compiled function is a part of the step"}
    for _ in range(3):
        step()
    return {"kernels": step.explain()}


def why(taken: Numbers, _: Sequence[Numbers], __: dict[str, Numbers]) -> str:
    """Return the text of the page."""
    return f"```\n{taken['kernels']}\n```"
