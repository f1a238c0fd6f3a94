"""The pages and charts of docs/performance* say what docs/performance.json holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])


NUMBERS = ROOT / "docs/performance.json"


@pytest.mark.usefixtures("benchmarks")
@pytest.mark.skipif(not NUMBERS.exists(), reason="python -m benchmarks --write has not been run yet")
def test_the_page_is_generated_from_the_numbers() -> None:
    from benchmarks.charts import charts, draw
    from benchmarks.report import page, targets_page

    numbers = json.loads(NUMBERS.read_text())
    found = {"performance.md": page(numbers), "performance_targets.md": targets_page(numbers)}
    found |= {f"{name}.svg": draw(chart) for name, chart in charts(numbers).items()}
    assert len(found) == 7
    for name, text in found.items():
        assert (NUMBERS.parent / name).read_text() == text, "run python -m benchmarks --page"
    assert {p.name for p in NUMBERS.parent.glob("performance*")} == {*found, NUMBERS.name}


@pytest.mark.usefixtures("benchmarks")
@pytest.mark.skipif(not NUMBERS.exists(), reason="python -m benchmarks --write has not been run yet")
def test_charts_have_few_sorted_rows_and_the_numbers_of_the_run() -> None:
    from benchmarks.charts import charts, draw

    numbers = json.loads(NUMBERS.read_text())
    found = charts(numbers)
    assert [len(found[f"performance_{n}"].rows) for n in ("eager", "compiled", "readme")] == [15, 15, 8]
    for name, chart in found.items():
        assert len(chart.rows) <= 15
        order = [row.times[chart.peers[0]][1] for row in chart.rows]
        assert order == sorted(order, reverse=True)
        text = draw(chart)
        assert "prefers-color-scheme: dark" in text
        marks = [e for e in ElementTree.fromstring(text).iter() if e.tag.endswith("circle")]
        assert len(marks) == sum(len(row.times) for row in chart.rows)
        table = numbers["cases"] if name == "performance_eager" else numbers["compiled"]
        if name in ("performance_eager", "performance_compiled", "performance_readme"):
            for row in chart.rows:
                for peer, (low, middle, high) in row.times.items():
                    assert [1 / high, 1 / middle, 1 / low] == pytest.approx(table[row.name]["ratios"][peer])


@pytest.mark.usefixtures("benchmarks")
def test_charts_of_losses_and_of_few_rows_are_drawn() -> None:
    from benchmarks.charts import Chart, Row, charts, draw

    chart = Chart("A <question>", "better", [Row("a & b", {"torch": (0.001, 0.01, 0.02)})], "")
    root = ElementTree.fromstring(draw(chart))
    texts = ["".join(e.itertext()) for e in root.iter() if e.tag.endswith("text")]
    assert "A <question>" in texts and "a & b" in texts and "0.01×" in texts
    (mark,) = [e for e in root.iter() if e.tag.endswith("circle")]
    (one,) = [e for e in root.iter() if e.get("class") == "one"]
    assert float(mark.get("cx", "")) < float(one.get("x1", ""))
    assert charts({"cases": {}, "memory": []}) == {}


@pytest.mark.usefixtures("benchmarks")
def test_a_page_shows_machine_targets_memory_and_slopes() -> None:
    from benchmarks.report import page, targets_page

    case = {
        "group": "chain",
        "seconds": {"adjoint": [1e-3, 2e-3, 3e-3], "torch": [1e-3, 1e-3, 1e-3]},
        "ratios": {"torch": [1.5, 2.0, 2.5]},
        "targets": {"torch": 2.0},
    }
    compiled = {
        "seconds": [1e-6] * 3, "ratios": {"jax-jit": [0.1, 0.2, 0.3]}, "targets": {"jax-jit": 0.1},
    }  # fmt: skip
    replay = {"eager": [1e-6] * 3, "replayed": [5e-7] * 3, "ratio": [0.4, 0.5, 0.6], "target": 0.5}
    trace = {"seconds": [1e-3] * 3, "instructions": 50}
    sizes = [[10_000, 0.01, 10**6], [1_000_000, 2.0, 10**8]]
    numbers = {
        "machine": {"Python": "3.11.7"},
        "threads": 2,
        "groups": {"chain": "Chains", "none": "Nothing"},
        "cases": {"a case": case},
        "compiled": {"a case": compiled},
        "replay": {"a case": replay},
        "tracing": {"warm": {"a case": trace}, "cold": {"a case": trace}},
        "memory": [{"name": "a step", "adjoint": 3_000_000, "torch": 2_000_000}],
        "scale": {"import": {"median": 0.05, "best": 0.04}, "series": {"nodes": sizes}},
    }
    text = page(numbers) + targets_page(numbers)
    for line in (
        "on one machine: Python 3.11.7.",
        "7 of 10 are met.",
        "| a case, compiled | JAX, jit | ≤ 0.1 | 0.2 | **missed** |",
        "| a case | 1 µs | 0.2 (0.1–0.3; ≤ 0.1 **missed**) |",
        "| a case | PyTorch | ≤ 2 | 2 | met |",
        "| a case, replayed | adjoint, eager | ≤ 0.5 | 0.5 | met |",
        "## Replay beside eager",
        "| a case | 1 µs | 500 ns | 0.5 (0.4–0.6) | ≤ 0.5 met |",
        "| trace of a case: µs per instruction |  | ≤ 30 | 20 | met |",
        "## Tracing",
        "| a case | warm | 50 | 1 ms (1 ms–1 ms) | 20 µs (≤ 30 met) |",
        "| peak memory, a step | PyTorch | ≤ 1.05 | 1.5 | **missed** |",
        "| time per node, 10⁶ nodes | 10⁴ nodes | ≤ 1.5 | 2 | **missed** |",
        "## Chains",
        "| a step | 3.0 MB | 2.0 MB | 1.50 |",
        "| 1,000,000 nodes | 2 s | 2 µs | 100.0 MB | 1.15, 1.00 |",
    ):
        assert line in text
    assert "Nothing" not in text


@pytest.mark.usefixtures("benchmarks")
def test_a_missed_target_is_shown_as_missed() -> None:
    from benchmarks.report import ratios

    case = {
        "seconds": {"adjoint": [1e-3, 2e-3, 3e-3], "torch": [1e-3, 1e-3, 1e-3]},
        "ratios": {"torch": [1.5, 2.0, 2.5]},
        "targets": {"torch": 1.9},
    }
    assert (
        ratios({"a case": case}).splitlines()[-1] == "| a case | 2 ms | 2.00 (1.50–2.50; ≤ 1.9 **missed**) |"
    )


@pytest.mark.usefixtures("benchmarks")
def test_work_that_differs_is_not_timed() -> None:
    from benchmarks.harness import Case, compare

    with pytest.raises(
        AssertionError, match="a case: torch: its results differ by 1 where the largest number is 2"
    ):
        compare(Case("a case", {}), {"adjoint": [1.0, 2.0], "torch": [1.0, 3.0]})
    with pytest.raises(AssertionError, match="differ by nan"):
        compare(Case("a case", {}), {"adjoint": [1.0, float("nan")], "torch": [1.0, 3.0]})
    with pytest.raises(AssertionError, match="adjoint, again: its results differ by 1"):
        compare(Case("a case", {}), {"adjoint": 1.0, "torch": 1.0, "jax": 1.0, "adjoint, again": 2.0})
    assert not compare(Case("a case", {}), {"adjoint": [1.0, 2.0], "torch": [1.0, 2.000001], "numpy": None})
