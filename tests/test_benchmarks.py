"""The benchmarks say why a target is missed and who is left out; ``adjoint bench`` runs them."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint.cli import main as cli
from adjoint.core.namespace import raw
from adjoint.core.op import OPS

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])


# Why a target is missed ---------------------------------------------------------------------------


def a_profile() -> dict[str, Any]:
    return {
        "whole": 100e-6,
        "phases": {"forward": 40e-6, "backward": 50e-6, "optimiser": 10e-6},
        "kernels": {"forward": 10e-6, "backward": 20e-6, "optimiser": 0.0},
        "dearest": [["matmul", "backward", 2, 15e-6], ["tanh", "forward", 1, 5e-6]],
    }


def a_case(ratio: float, target: float) -> dict[str, Any]:
    return {
        "group": "chain",
        "seconds": {"adjoint": [1e-4, 1e-4, 1e-4], "torch": [2e-4, 2e-4, 2e-4]},
        "ratios": {"torch": [ratio, ratio, ratio]},
        "targets": {"torch": target},
    }


def test_the_parts_of_a_step_add_up() -> None:
    from benchmarks.profile import kernel_share, parts

    found = a_profile()
    assert [round(seconds * 1e6) for _, seconds in parts(found)] == [10, 30, 20, 30, 10]
    assert kernel_share(found) == pytest.approx(0.3)
    found["kernels"]["backward"] = 60e-6  # noise: the kernels alone took longer than the whole phase
    assert [round(seconds * 1e6) for _, seconds in parts(found)] == [10, 30, 50, 0, 10]
    assert kernel_share(found) == pytest.approx(0.6)


def test_a_profile_says_what_the_kernels_alone_would_take() -> None:
    from benchmarks.profile import text

    shown = text(a_profile(), [("torch", 0.5, 0.4), ("jax-jit", 5.0, 1.0)])
    for line in (
        "| forward: NumPy kernels | 10 µs | 10% |",
        "| forward: recording, and the program itself | 30 µs | 30% |",
        "| backward: NumPy kernels of the rules | 20 µs | 20% |",
        "| backward: the engine | 30 µs | 30% |",
        "| optimiser | 10 µs | 10% |",
        "Beside PyTorch (0.5, target 0.4): bare NumPy kernels alone take 0.15 of its whole time; "
        "the rest must shrink from 0.35 to 0.25 of it.",
        "Beside JAX, jit (5, target 1): bare NumPy kernels alone take 1.5 of its whole time, so that no "
        "engine around these kernels meets the target.",
        "The dearest kernels: `matmul` backward 15 µs (2 calls), `tanh` forward 5 µs.",
    ):
        assert line in shown.splitlines()


def test_a_profile_of_another_speed_draws_no_conclusion() -> None:
    from benchmarks.profile import text

    missed = [("torch", 20.0, 0.8)]
    assert "bare NumPy kernels alone take 6 of its" in text(a_profile(), missed, measured=110e-6)
    shown = text(a_profile(), missed, measured=2e-3)
    assert "bare NumPy kernels alone" not in shown
    assert "The step took 2 ms when its ratio was measured and 100 µs here: the machine was busy" in shown


def test_a_case_without_ops_is_shown_by_function() -> None:
    from benchmarks.profile import text

    shown = text(a_profile() | {"functions": [["buffers.add", 0.52]]}, [("numpy", 2.0, 1.1)])
    assert shown.splitlines()[-1] == "| `buffers.add` | 52% |"


def test_only_missed_targets_are_explained() -> None:
    from benchmarks.profile import missed_targets, section

    cases = {"fast": a_case(0.5, 0.6), "slow": a_case(0.5, 0.4)}
    assert missed_targets(cases) == {"slow": [("torch", 0.5, 0.4)]}
    shown = section({"cases": cases, "profiles": {"fast": a_profile(), "slow": a_profile()}})
    assert shown.startswith("### slow\n\n| part | time | share |") and "fast" not in shown
    assert section({"cases": cases}) == ""


def test_memory_beyond_its_target_is_explained_by_what_is_kept() -> None:
    from benchmarks.profile import section

    rows = [
        {"name": "a step", "adjoint": 3_000_000, "torch": 2_000_000},
        {"name": "another", "adjoint": 1, "torch": 2},
    ]
    profiles = {"peak memory, a step": {"kept": [["ops/softmax.py:12", 1_500_000]]}}
    shown = section({"cases": {}, "memory": rows, "profiles": profiles})
    assert shown.startswith("### peak memory, a step\n") and "another" not in shown
    assert shown.endswith("| `ops/softmax.py:12` | 1.5 MB |")


def test_kernels_are_noted_and_everything_is_put_back() -> None:
    from benchmarks.profile import BACKWARD, FORWARD, kernel_calls, replay

    x = ad.tensor(np.linspace(0.1, 1.0, 4), requires_grad=True)
    optimizer = ad.optim.SGD([x], lr=0.1)
    before = {name: (op.forward, op.rules, op.joint) for name, op in OPS.items()}
    doors = ad.Tensor.backward, ad.backward, ad.gradients, ad.optim.SGD.step

    def step() -> None:
        optimizer.zero_grad()
        ad.tanh(x * 2.0).sum().backward()
        optimizer.step()

    calls = kernel_calls(step)
    noted = [(c.op, c.phase) for c in calls]
    for op in ("multiply", "tanh"):
        assert (op, FORWARD) in noted and (op, BACKWARD) in noted
    assert next(c for c in calls if (c.op, c.phase) == ("tanh", FORWARD)).run().shape == (4,)
    replay(calls)
    assert before == {name: (op.forward, op.rules, op.joint) for name, op in OPS.items()}
    assert raw.tanh is OPS["tanh"].forward
    assert doors == (ad.Tensor.backward, ad.backward, ad.gradients, ad.optim.SGD.step)
    x.grad = None
    ad.tanh(x).sum().backward()
    assert len(calls) == len(noted)


def test_phases_are_counted_without_those_inside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import profile

    clock = iter(range(100))
    monkeypatch.setattr(profile.time, "perf_counter", lambda: float(next(clock)))
    watch = profile.Watch()
    inner = watch.phase("backward", lambda: None)
    outer = watch.phase("optimiser", inner)
    assert watch.time(outer, 1) == {"forward": 2.0, "optimiser": 2.0, "backward": 1.0}
    assert watch.stack == ["forward"]


def test_backward_and_the_optimiser_are_phases_of_a_step() -> None:
    from benchmarks.profile import BACKWARD, FORWARD, OPTIMISER, Watch, phases

    x = ad.tensor([1.0, 2.0], requires_grad=True)
    optimizer = ad.optim.Adam([x], lr=0.1)

    def step() -> None:
        (x**2).sum().backward()
        optimizer.step()

    watch = Watch()
    with phases(watch):
        found = watch.time(step, 2)
    assert set(found) == {FORWARD, BACKWARD, OPTIMISER} and min(found.values()) > 0


# Who is left out ----------------------------------------------------------------------------------


def test_a_peer_that_fails_is_left_out_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.engines import lacking
    from benchmarks.harness import Case, measure

    def broken() -> Any:
        raise ValueError("no such shape\nand more")

    case = Case("a case", {"adjoint": lambda: lambda: 1.0, "mlx": lacking("no vmap"), "jax": broken})
    found = measure(case, rounds=1, warmup=0).summary()
    assert found["left out"] == {"mlx": "no vmap", "jax": "ValueError: no such shape"}
    assert list(found["seconds"]) == ["adjoint"]
    assert "a case: mlx is left out: no vmap" in capsys.readouterr().err


def test_a_failure_of_adjoint_stops_the_run() -> None:
    from benchmarks.engines import lacking
    from benchmarks.harness import Case, measure

    with pytest.raises(NotImplementedError, match="not yet"):
        measure(Case("a case", {"adjoint": lacking("not yet")}), rounds=1)


def test_the_page_names_who_is_left_out() -> None:
    from benchmarks.report import absences

    cases = {f"case {i}": a_case(1, 2) | {"left out": {"mlx": "No module named 'mlx'"}} for i in range(5)}
    assert absences(cases) == "Left out:\n\n- MLX, all of these: No module named 'mlx'"
    cases["case 5"] = a_case(1, 2) | {"left out": {"tinygrad": "no vmap"}}
    assert absences(cases).splitlines()[2:] == [
        "- MLX, 5 of these: No module named 'mlx'",
        "- tinygrad, case 5: no vmap",
    ]
    assert absences({"case": a_case(1, 2)}) == ""


# Threads ------------------------------------------------------------------------------------------


def test_ratios_of_threads_stand_beside_what_the_machine_gives() -> None:
    from benchmarks.parallel import BARE_ONE, BARE_TWO, SERIAL, WORKERS, limits, row, text

    seconds = {SERIAL: [0.1] * 4, WORKERS: [0.06] * 4, BARE_ONE: [0.08] * 4, BARE_TWO: [0.044] * 4}
    found = row("a wide graph", seconds, SERIAL, {WORKERS: 0.588})
    assert limits([found]) == [
        {"name": "a wide graph: workers=2", "beside": "serial", "value": 0.6, "target": 0.588}
    ]
    assert text([found]).splitlines()[-4:] == [
        "| a wide graph | serial | 100 ms | 1 |",
        "|  | workers=2 | 60 ms | 0.60 (0.60–0.60; ≤ 0.588 **missed**) |",
        "|  | bare kernels, one thread | 80 ms | 1 |",
        "|  | bare kernels, two threads | 44 ms | 0.55 (0.55–0.55) |",
    ]
    assert text([]) == "" and limits([]) == []


# adjoint bench ------------------------------------------------------------------------------------


def test_bench_passes_its_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(sys, "argv", ["adjoint"])
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(cli.runpy, "run_module", lambda name, **_: ran.append((name, sys.argv[1:])))
    assert cli.main(["bench", "--rounds", "2", "LSTM"]) == 0
    assert ran == [("benchmarks", ["--rounds", "2", "LSTM"])]
    assert Path(sys.path[0]) == ROOT


def test_bench_outside_of_a_clone_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    installed = types.SimpleNamespace(__file__=str(tmp_path / "site-packages/adjoint/__init__.py"))
    monkeypatch.setattr(cli, "adjoint", installed)
    assert cli.main(["bench"]) == 1
    assert capsys.readouterr().err == (
        "adjoint: bench: the benchmarks are not part of the installed package.\n"
        "  Clone the repository, pip install -e '.[bench,oracle]', and run this there.\n"
    )
