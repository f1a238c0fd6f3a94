"""Turn the numbers of a run into tables and pages."""

from __future__ import annotations

from benchmarks.harness import Numbers

PEERS = {
    "adjoint-compile": "adjoint, compiled",
    "adjoint-replay": "adjoint, replayed",
    "torch": "PyTorch",
    "torch-func": "PyTorch, func",
    "torch-compile": "PyTorch, compiled",
    "jax": "JAX",
    "jax-jit": "JAX, jit",
    "autograd": "autograd",
    "mlx": "MLX",
    "tinygrad": "tinygrad",
    "numpy": "NumPy",
    "scipy": "SciPy",
}


def title(peer: str) -> str:
    return PEERS.get(peer, peer)


def table(rows: list[list[str]], head: list[str]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def ratios(cases: dict[str, Numbers]) -> str:
    """Return the table of ratios, with quartiles, and targets where there are any."""
    seen = {peer for case in cases.values() for peer in case["ratios"]}
    peers = [p for p in PEERS if p in seen] + sorted(seen - set(PEERS))
    rows = []
    for name, case in cases.items():
        cells = [_ratio(case, peer) for peer in peers]
        rows.append([name, duration(case["seconds"]["adjoint"][1]), *cells])
    return table(rows, ["case", "adjoint", *map(title, peers)])


def _ratio(case: Numbers, peer: str) -> str:
    if peer not in case["ratios"]:
        return "–"
    return with_quartiles(case, peer)


def with_quartiles(case: Numbers, peer: str) -> str:
    """Return a ratio with its quartiles, and its target if there is one."""
    low, middle, high = case["ratios"][peer]
    target = case["targets"].get(peer)
    goal = "" if target is None else f"; {verdict(middle, target)}"
    return f"{middle:.2f} ({low:.2f}–{high:.2f}{goal})"


def absences(cases: dict[str, Numbers]) -> str:
    """Say which peers are left out of which cases, and why; empty if none is."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, case in cases.items():
        for peer, why in case.get("left out", {}).items():
            found.setdefault((peer, why), []).append(name)
    lines = []
    for (peer, why), names in found.items():
        if len(names) == len(cases) > 1:
            where = "all of these"
        elif len(names) > 3:
            where = f"{len(names)} of these"
        else:
            where = "; ".join(names)
        lines.append(f"- {title(peer)}, {where}: {why}")
    return "Left out:\n\n" + "\n".join(lines) if lines else ""


def verdict(value: float, target: float) -> str:
    return f"≤ {target:g} {'met' if value <= target else '**missed**'}"


def duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _targets_table(numbers: Numbers) -> str:
    from benchmarks import missed  # its parts use this module

    found = missed.limits(numbers)
    rows = [
        [r["name"], title(r["beside"]), f"≤ {r['target']:g}", f"{r['value']:.3g}", outcome(r)] for r in found
    ]
    outcomes = [outcome(r) for r in found]
    equal = f"; {n} more are equal within the spread" if (n := outcomes.count(EQUAL)) else ""
    head = ["case", "beside", "target", "measured", ""]
    return f"{outcomes.count(MET)} of {len(found)} are met{equal}.\n\n" + table(rows, head)


MET, EQUAL, MISSED = "met", "equal within the spread", "**missed**"


def outcome(row: Numbers) -> str:
    """Say whether a target is met; ``low``, if it is given, is the lower quartile of what was measured."""
    if row["value"] <= row["target"]:
        return MET
    return EQUAL if row.get("low", row["value"]) <= row["target"] else MISSED


PAGE = """# Performance

<!-- Generated from docs/performance.json by `python -m benchmarks --write`: change that, not this. -->

A mark shows how many times as long as adjoint a peer takes, or how many times as much memory: **right of 1,
adjoint is better**. Lines are quartiles. All ran on one machine: {machine}.

{charts}
The charts show a part of the cases. The tables below have all of them, and
[performance targets](performance_targets.md) compares them with what was aimed at.

## How it is measured

Each case, with all its peers, comes from one run of `python -m benchmarks --write`, and so does each later
section. A ratio is adjoint's time divided by the peer's: **below 1, adjoint is faster**. In each round every
engine does the same work once, in turn, with the same number of threads ({threads}), after its results
have been compared with adjoint's. The time of JAX includes waiting for its results. The tables show the
median of the ratio over the rounds, with its quartiles. Work that uses BLAS is followed by a short rest,
because threads of BLAS and of compiled kernels spin for a while and would slow the next engine; short
work is then done once without timing, to warm the caches. Compilation is not counted. *adjoint, compiled*
is the same step as one `ad.compile`d function: above 1, it is faster than the eager step.

{compiled}{replay}{builds}{tracing}{groups}
{parallel}## Peak memory of training steps

{memory}

## Time and memory against size

{scale}

## Reproducing these numbers

In a clone, with the extras `bench` and `oracle` installed:

```
python -m benchmarks                   # everything, as tables
python -m benchmarks LSTM GMM          # only cases whose names contain one of these
python -m benchmarks --json out.json   # and the numbers
python -m benchmarks --write           # docs/performance*; the first time much is compiled
python -m benchmarks --write LSTM      # these cases anew; the others stay
python -m benchmarks --part memory     # one section; see --help
```

A peer that is not installed, or that cannot run a case, is left out, and the reason is printed;
`--without torch-compile` leaves one out. `python -m benchmarks.memory`, `python -m benchmarks.scale` and
`python -m benchmarks.parallel` run those parts alone, and so do `python -m benchmarks.builds` and
`python -m benchmarks.tracing`; `python -m benchmarks.realistic` compares programs as users write them;
`python -m benchmarks.instructions` counts instructions, which do not depend on what else the machine does:
the tests of every change compare them with
`benchmarks/instructions.json`.
"""


TARGETS = """# Performance targets

<!-- Generated from docs/performance.json by `python -m benchmarks --write`: change that, not this. -->

The targets of [performance](performance.md), in adjoint's time (or memory) divided by the peer's: below 1,
adjoint is better. A target is equal within the spread if the median is above it, but the lower quartile is
not.

## Targets

{targets}
{profiles}"""


PROFILES = """\
This section analyses the cases that miss a target, in the same run. For a case it shows where adjoint's
time is spent. *Kernels* are the ops' own NumPy code: the same calls on the same arrays, repeated without
recording and without the engine; the rest of a phase is adjoint's own work. For threads it shows the same
kernels in plain threads, and how many processors were in use. For memory, import and slopes it shows the
largest parts, and where a curve is steepest. `python -m benchmarks.profile LSTM` analyses any case."""


COMPILED = """\
The time of `ad.compile`d steps divided by the peer's. A step is called as a user calls it: guards, and
reading and writing tensors, are part of its time."""


REPLAY = """\
A replayed step (`backend="replay"`, or without llvmlite) makes the same NumPy calls as the eager step. The
ratio is its time divided by the eager step's in the same round; below 1, replay is faster. If the median is
above the target, but the lower quartile is not, the two are equal within the spread. Steps without state use
the same arrays in both."""


BUILDS = """\
Each build runs in a new process: *cold*, with an empty cache of kernels, and *from disk*. These times are
those of `stats()`, without the call of the program. The ratio to `jax.jit` compares whole calls: what the
call that builds takes beyond a later one, for both, so it contains the first use of memory. Imports are not
counted. *Peak* is the most bytes that arrays have at a time during a call of a built program, beyond its
parameters and data: gradients, the state of the optimiser, results, intermediate results and workspace, also
what is kept between calls. An allocator for NumPy's arrays counts them exactly, for native code and for
replay. Code, tables of addresses and the scratch memory of BLAS, which replay uses, are not counted."""


TRACING = """\
The time of a trace is that of `stats()`: the call of the function on symbols and the search for what is
guarded, without the build and the run of the program. *Warm* traces are made one after another in one
process; *first* is the first trace of a new process, of several processes. The tables show medians and
quartiles."""


def targets_page(numbers: Numbers) -> str:
    """Return docs/performance_targets.md."""
    from benchmarks import missed  # its parts use this module

    why = missed.section(numbers)
    profiles = f"\n## Why a target is missed\n\n{PROFILES}\n\n{why}\n" if why else ""
    return TARGETS.format(targets=_targets_table(numbers), profiles=profiles)


def page(numbers: Numbers) -> str:
    """Return docs/performance.md."""
    # they use this module
    from benchmarks import builds, charts, memory, native, parallel, replayed, scale, tracing

    groups: list[str] = []
    for group, heading in numbers["groups"].items():
        cases = {name: c for name, c in numbers["cases"].items() if c["group"] == group}
        if cases:
            missing = absences(cases)
            groups.append(f"## {heading}\n\n{ratios(cases)}\n" + (f"\n{missing}\n" if missing else ""))
    threads = parallel.text(numbers.get("parallel", []))
    steps = numbers.get("compiled")
    compiled = f"## Compiled steps\n\n{COMPILED}\n\n{native.text(steps)}\n\n" if steps else ""
    built, replays, traces = (numbers.get(kind) for kind in ("builds", "replay", "tracing"))
    drawn = charts.charts(numbers)
    return PAGE.format(
        charts="\n".join(
            f"{chart.sentence}\n\n![{chart.question}]({name}.svg)\n"
            for name, chart in drawn.items()
            if name != "performance_readme"
        ),
        compiled=compiled,
        replay=f"## Replay beside eager\n\n{REPLAY}\n\n{replayed.text(replays)}\n\n" if replays else "",
        tracing=f"## Tracing\n\n{TRACING}\n\n{tracing.text(traces)}\n\n" if traces else "",
        builds=f"## Builds of compiled steps\n\n{BUILDS}\n\n{builds.text(built)}\n\n" if built else "",
        machine=", ".join(f"{k} {v}" for k, v in numbers["machine"].items()),
        threads=numbers["threads"],
        groups="\n".join(groups),
        parallel=f"## Backward in several threads\n\n{threads}\n\n" if threads else "",
        memory=memory.text(numbers["memory"]),
        scale=scale.text(numbers["scale"]),
    )
