"""Draw the charts of docs/performance.md as SVG, one per question, from the numbers of a run.

A row is a case, a mark is a peer: how many times as long as adjoint it takes, or how much more memory.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from benchmarks.harness import Numbers
from benchmarks.report import title

EAGER = (
    "MLP 1×8-16-16-1, Adam step", "MLP 32×64-128-128-10, SGD step", "MLP 64×784-256-256-10, Adam step",
    "MLP 512×784-1024-1024-10, Adam step", "LeNet, batch 32, forward + backward",
    "transformer block, 8×32×64, forward + backward", "LSTM, 50 steps, 16×16-32, forward + backward",
    "embedding, 512 of 50,000 rows of 64, dense gradient, SGD step",
    "chain of 5,000 ops, 16 elements: gradient", "solve_ivp of Lotka-Volterra, RK45: gradient",
    "GMM, 1,000 points, 10 dimensions, 25 components: gradient",
    "k-means, 1,000 points, 25 centres: gradient and Hessian",
    "logistic regression, 2,000×50, 20 steps of L-BFGS", "jacobian of a 100-100-100-100 net",
    "hvp of a 64-64-64-1 net, 256 rows",
)  # fmt: skip
COMPILED = (
    "MLP 1×8-16-16-1, Adam step", "MLP 32×64-128-128-10, Adam step", "MLP 64×784-256-256-10, Adam step",
    "MLP 512×784-1024-1024-10, Adam step", "LeNet, batch 32, forward + backward",
    "transformer block, 8×32×64, forward + backward", "LSTM, 50 steps, 16×16-32, forward + backward",
    "layer norm with gradients, 512×768", "attention step, 8×32×64, SGD",
    "tanh(x·x+x)·x with gradient, 10^6 numbers", "hvp of a 64-128-128-10 net, 32 rows, float32",
    "softmax regression, 10,000×100, 20 steps of SciPy's L-BFGS-B",
    "200 Runge-Kutta steps by components, value and gradient",
    "an epoch of digits in one call, 57 batches, Adam", "an update of 100 nets 8-16-16-1, Adam",
)  # fmt: skip
README = (
    "MLP 32×64-128-128-10, Adam step", "MLP 512×784-1024-1024-10, Adam step",
    "LeNet, batch 32, forward + backward", "transformer block, 8×32×64, forward + backward",
    "LSTM, 50 steps, 16×16-32, forward + backward", "layer norm with gradients, 512×768",
    "softmax regression, 10,000×100, 20 steps of SciPy's L-BFGS-B",
    "an epoch of digits in one call, 57 batches, Adam",
)  # fmt: skip
SHORT = {  # of names that are too long for a label
    "embedding, 512 of 50,000 rows of 64, dense gradient, SGD step": "embedding, 50,000×64, SGD step",
    "GMM, 1,000 points, 10 dimensions, 25 components: gradient": "GMM, 1,000 points: gradient",
    "k-means, 1,000 points, 25 centres: gradient and Hessian": "k-means, 1,000 points: Hessian",
    "logistic regression, 2,000×50, 20 steps of L-BFGS": "logistic regression, 2,000×50, L-BFGS",
    "softmax regression, 10,000×100, 20 steps of SciPy's L-BFGS-B": "softmax regression, 10,000×100, L-BFGS",
    "200 Runge-Kutta steps by components, value and gradient": "200 Runge-Kutta steps: gradient",
    "an epoch of digits in one call, 57 batches, Adam": "epoch of digits, 57 batches, Adam",
    "an update of 100 nets 8-16-16-1, Adam": "100 nets 8-16-16-1, Adam step",
    "tanh(x·x+x)·x with gradient, 10^6 numbers": "tanh(x·x+x)·x: gradient, 10⁶ numbers",
    "solve_ivp of Lotka-Volterra, RK45: gradient": "solve_ivp, Lotka-Volterra: gradient",
}
COLOURS = {  # of each peer: on light and on dark ground
    "torch": ("#c2410c", "#ff9a5c"),
    "jax": ("#0f766e", "#4fd1c5"),
    "jax-jit": ("#0a62c9", "#6cb0ff"),
    "torch-compile": ("#a21caf", "#f08cff"),
    "autograd": ("#4d7c0f", "#a3d65c"),
}
ROW, TOP, FOOT, PLOT, VALUE = 25, 62, 50, 300, 82  # pixels
LETTER = 7.6  # the width of a letter of a label, in pixels

Quartiles = tuple[float, float, float]
Scale = Callable[[float], float]  # from a factor to pixels


@dataclass
class Row:
    """A case and, for each peer, how many times adjoint's time the peer needs: quartiles and median."""

    name: str
    times: dict[str, Quartiles]


@dataclass
class Chart:
    """A question, the rows that answer it, and what a mark to the right of 1 means."""

    question: str
    better: str
    rows: list[Row]
    sentence: str

    def __post_init__(self) -> None:
        first = self.peers[0] if self.rows else ""
        self.rows.sort(key=lambda row: -row.times[first][1] if first in row.times else 0.0)

    @property
    def peers(self) -> list[str]:
        return [p for p in COLOURS if any(p in row.times for row in self.rows)]


def charts(numbers: Numbers) -> dict[str, Chart]:
    """Return the charts for which there are numbers, by the name of their file."""
    compiled = numbers.get("compiled", {})
    found = {
        "performance_eager": _eager_chart(numbers["cases"]),
        "performance_compiled": _compiled_chart(compiled, COMPILED),
        "performance_memory": _memory_chart(numbers["memory"]),
        "performance_builds": _builds_chart(numbers.get("builds", {}).get("cases", {})),
        "performance_readme": _compiled_chart(compiled, README),
    }
    return {name: chart for name, chart in found.items() if chart.rows}


def _eager_chart(cases: Numbers) -> Chart:
    peers, parts = ("torch", "jax", "autograd"), []
    for peer in peers:
        own = [
            c["ratios"][peer][1] for c in cases.values() if peer in c["ratios"] and c["group"] != "overhead"
        ]
        if own:
            parts.append(f"{title(peer)}'s in {sum(r < 1 for r in own)} of {_cases(len(own))}")
    counts = ", below ".join(parts)
    sentence = f"Without compilation, the median time is below {counts}; single ops are not counted."
    return Chart("Eager steps beside eager steps", "adjoint is faster", _rows(cases, EAGER, peers), sentence)


def _memory_chart(memory: list[Numbers]) -> Chart:
    factors = {m["name"]: m["torch"] / m["adjoint"] for m in memory if "torch" in m}
    sentence = _counted("The peak memory of a step is at most PyTorch's", list(factors.values()))
    rows = [Row(name, {"torch": (f, f, f)}) for name, f in factors.items()]
    return Chart("Peak memory of a training step", "adjoint needs less", rows, sentence)


def _builds_chart(builds: Numbers) -> Chart:
    factors = {name: b["jax"] / b["call"] for name, b in builds.items() if "jax" in b}
    sentence = _counted("A first compilation takes less time than with `jax.jit`", list(factors.values()))
    rows = [Row(n, {"jax-jit": (factors[n],) * 3}) for n in COMPILED if n in factors]
    return Chart("Time to compile a step, without a cache", "adjoint is faster", rows, sentence)


def _compiled_chart(compiled: Numbers, names: Sequence[str]) -> Chart:
    every = [1 / c["ratios"]["jax-jit"][1] for c in compiled.values() if "jax-jit" in c["ratios"]]
    sentence = _counted("A step compiled by `ad.compile` is faster than with `jax.jit`", every)
    rows = _rows(compiled, names, ("jax-jit", "torch-compile"))
    return Chart("Compiled steps beside compiled steps", "adjoint is faster", rows, sentence)


def _rows(cases: Numbers, names: Iterable[str], peers: Iterable[str]) -> list[Row]:
    found = []
    for name in names:
        ratios = cases[name]["ratios"] if name in cases else {}
        times = {p: _inverse(ratios[p]) for p in peers if p in ratios}
        if times:
            found.append(Row(name, times))
    return found


def _inverse(quartiles: Sequence[float]) -> Quartiles:
    """Turn quartiles of adjoint's time over the peer's into those of the peer's over adjoint's."""
    low, middle, high = quartiles
    return 1 / high, 1 / middle, 1 / low


def _counted(claim: str, times: Sequence[float]) -> str:
    if not times:
        return ""
    won, middle = sum(t >= 1 for t in times), statistics.median(times)
    return f"{claim} in {won} of {_cases(len(times))}; the median factor is {factor(middle)}."


def _cases(count: int) -> str:
    return "1 case" if count == 1 else f"{count} cases"


def factor(value: float) -> str:
    """Write a factor with two or three digits.

    >>> factor(0.8123), factor(2.345), factor(43.21), factor(1234.0)
    ('0.81', '2.3', '43', '1,234')
    """
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def draw(chart: Chart) -> str:
    """Return the chart as SVG, with colours for light and dark ground."""
    labels = [SHORT.get(r.name, r.name.replace(", forward + backward", "")) for r in chart.rows]
    left = round(LETTER * max(map(len, labels))) + 26
    peers = chart.peers
    width, bottom = left + PLOT + 16 + VALUE * len(peers), TOP + ROW * len(chart.rows)
    low, high = _limits(chart.rows)

    def x(value: float) -> float:
        return left + PLOT * math.log(value / low) / math.log(high / low)

    parts = [*_frame(chart, peers, left, width, bottom), *_axis(chart, low, high, bottom, x)]
    for i, (row, label) in enumerate(zip(chart.rows, labels, strict=True)):
        y = TOP + ROW * i + ROW / 2
        parts.append(f'<text class="label" x="{left - 10}" y="{y + 4:g}">{escape(label)}</text>')
        for k, peer in enumerate(peers):
            if peer in row.times:
                at = left + PLOT + 16 + VALUE * k + VALUE / 2
                parts += _mark(peer, row.times[peer], y, x, at)
    return "\n".join([*parts, "</svg>", ""])


def _limits(rows: Iterable[Row]) -> tuple[float, float]:
    """Return the ends of the axis: the marks with their whiskers and a margin, and 1."""
    every = [v for row in rows for quartiles in row.times.values() for v in quartiles]
    low, high = min(0.8, *every), max(1.25, *every)
    return low / (high / low) ** 0.04, high * (high / low) ** 0.04


def _mark(peer: str, times: Quartiles, y: float, x: Scale, at: float) -> list[str]:
    low, middle, high = times
    whisker = f'<line class="{peer} range" x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{y:g}" y2="{y:g}"/>'
    value = f'<text class="{peer} value" x="{at:g}" y="{y + 4:g}">{factor(middle)}×</text>'
    shape = f'<circle class="{peer}" cx="{x(middle):.1f}" cy="{y:g}" r="5"/>'
    return [whisker, shape, value]


STYLE = """
text { font: 13px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; fill: #1f2328 }
.ground { fill: #ffffff; stroke: #d5dbe1 } .band { fill: #f2f5f8 }
.grid { stroke: #e1e6eb } .one { stroke: #59636e; stroke-width: 1.5 }
.title { font-weight: 600; font-size: 15px } .soft { fill: #59636e; font-size: 12px }
.label { text-anchor: end } .middle, .value, .head { text-anchor: middle }
.head { font-weight: 600; font-size: 12px }
text.value, text.head { stroke: none } .range { stroke-width: 2; stroke-opacity: .45 }
"""
DARK = """
text { fill: #e8edf2 } .ground { fill: #0f1318; stroke: #303945 } .band { fill: #161c24 }
.grid { stroke: #29313b } .one { stroke: #9aa6b2 } .soft { fill: #9aa6b2 }
"""


def _frame(chart: Chart, peers: Sequence[str], left: int, width: int, bottom: int) -> list[str]:
    size = f'viewBox="0 0 {width} {bottom + FOOT}" width="{width}" height="{bottom + FOOT}"'
    light, dark = (
        "\n".join(f".{p} {{ fill: {COLOURS[p][k]}; stroke: {COLOURS[p][k]} }}" for p in peers) for k in (0, 1)
    )
    found = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(chart.question)}">',
        f"<style>{STYLE}{light}\n@media (prefers-color-scheme: dark) {{{DARK}{dark} }}</style>",
        f'<rect class="ground" x=".5" y=".5" width="{width - 1}" height="{bottom + FOOT - 1}" rx="8"/>',
        f'<text class="title" x="14" y="27">{escape(chart.question)}</text>',
    ]
    for k, peer in enumerate(peers):
        at = left + PLOT + 16 + VALUE * k + VALUE / 2
        words = title(peer).split(", ")
        for i, word in enumerate(words):
            y = TOP - 10 - 15 * (len(words) - 1 - i)
            found.append(f'<text class="{peer} head" x="{at:g}" y="{y}">{word}</text>')
    for i in range(0, len(chart.rows), 2):
        found.append(f'<rect class="band" x="1" y="{TOP + ROW * i}" width="{width - 2}" height="{ROW}"/>')
    return found


def _axis(chart: Chart, low: float, high: float, bottom: int, x: Scale) -> list[str]:
    every = [m * 10.0**e for e in range(-2, 5) for m in (1, 2, 5)]
    inside = [v for v in every if low <= v <= high]
    if len(inside) > 7:
        inside = [v for v in inside if math.isclose(math.log10(v) % 1, 0, abs_tol=1e-9)]
    elif len(inside) < 3:
        inside = sorted({*inside, *(v for v in (0.8, 1.2, 1.5, 1.8, 2.2) if low <= v <= high)})
    found = []
    for v in inside:
        kind = "one" if v == 1 else "grid"
        found.append(f'<line class="{kind}" x1="{x(v):.1f}" x2="{x(v):.1f}" y1="{TOP}" y2="{bottom}"/>')
        found.append(f'<text class="soft middle" x="{x(v):.1f}" y="{bottom + 18}">{v:g}×</text>')
    meaning = f"right of 1×: {chart.better}"
    return [
        *found,
        f'<text class="soft middle" x="{x(math.sqrt(low * high)):.1f}" y="{bottom + 37}">{meaning}</text>',
    ]


def write(numbers: Numbers, folder: Path) -> None:
    """Write each chart into a file."""
    for name, chart in charts(numbers).items():
        (folder / f"{name}.svg").write_text(draw(chart), encoding="utf-8")
