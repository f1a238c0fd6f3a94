"""docs/performance.md says what docs/performance.json holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])


NUMBERS = ROOT / "docs/performance.json"


@pytest.mark.usefixtures("benchmarks")
@pytest.mark.skipif(not NUMBERS.exists(), reason="python -m benchmarks --write has not been run yet")
def test_the_page_is_generated_from_the_numbers() -> None:
    from benchmarks.report import page

    found = page(json.loads(NUMBERS.read_text()))
    assert NUMBERS.with_suffix(".md").read_text() == found, "run python -m benchmarks --page"


@pytest.mark.usefixtures("benchmarks")
def test_a_page_shows_machine_targets_memory_and_slopes() -> None:
    from benchmarks.report import page

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
    text = page(
        {
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
    )
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
