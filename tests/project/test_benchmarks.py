"""The benchmarks say why a target is missed and who is left out; ``adjoint bench`` runs them."""

from __future__ import annotations

import functools
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

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    from benchmarks import harness, profile

    for module in (harness, profile):  # which imports PyTorch
        monkeypatch.setattr(module, "set_threads", lambda: None)


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
        "Compared with PyTorch (0.5, target 0.4): NumPy kernels alone take 0.15 of its whole time; "
        "the rest must shrink from 0.35 to 0.25 of it.",
        "Compared with JAX, jit (5, target 1): NumPy kernels alone take 1.5 of its whole time, so no "
        "engine that uses these kernels can meet the target.",
        "The most expensive kernels: `matmul` backward 15 µs (2 calls), `tanh` forward 5 µs.",
    ):
        assert line in shown.splitlines()


def test_a_profile_of_another_speed_draws_no_conclusion() -> None:
    from benchmarks.profile import text

    missed = [("torch", 20.0, 0.8)]
    assert "NumPy kernels alone take 6 of its" in text(a_profile(), missed, measured=110e-6)
    shown = text(a_profile(), missed, measured=2e-3)
    assert "NumPy kernels alone" not in shown
    assert "The step took 2 ms when its ratio was measured and 100 µs here: the machine was busy" in shown


def test_a_case_without_ops_is_shown_by_function() -> None:
    from benchmarks.profile import text

    shown = text(a_profile() | {"functions": [["buffers.add", 0.52]]}, [("numpy", 2.0, 1.1)])
    assert shown.splitlines()[-1] == "| `buffers.add` | 52% |"


def test_a_peer_in_the_rounds_of_the_profile_is_what_conclusions_are_drawn_from() -> None:
    from benchmarks.profile import text

    found = a_profile() | {"peers": {"torch": 125e-6, "adjoint, function alone": 25e-6}}
    found["peers"]["adjoint, function alone: kernels"] = 5e-6
    missed = [("torch", 0.5, 0.4), ("torch", 0.9, 0.85), ("adjoint, function alone", 4.5, 3.0)]
    shown = text(found, missed, measured=2e-3).splitlines()
    for line in (
        "Compared with PyTorch (0.5 in the table, 0.8 by best times here, target 0.4): NumPy kernels alone take "
        "0.24 of its whole time; the rest must shrink from 0.56 to 0.16 of it.",
        "Compared with PyTorch (0.9 in the table, 0.8 by best times here, target 0.85): NumPy kernels alone take "
        "0.24 of its whole time; in these rounds the target is met.",
        "Compared with adjoint, function alone (4.5 in the table, 4 by best times here, target 3): NumPy kernels "
        "alone take 1.2 of its whole time (its own kernels 0.2); the rest must shrink from 2.8 to 1.8 of it.",
    ):
        assert line in shown
    assert not any("the machine was busy" in line for line in shown)


def test_a_case_is_profiled_beside_its_peers() -> None:
    from benchmarks.harness import Case
    from benchmarks.profile import profile, text

    def step() -> Any:
        x = ad.tensor([1.0, 2.0], requires_grad=True)
        ad.tanh(x).sum().backward()
        return x.grad

    case = Case("a case", {"adjoint": lambda: step, "adjoint, again": lambda: step, "numpy": lambda: step})
    found = profile(case, ["adjoint, again", "numpy"], rounds=1)
    assert set(found["peers"]) == {"adjoint, again", "adjoint, again: kernels", "numpy"}
    assert "Compared with NumPy (2 in the table, " in text(found, [("numpy", 2.0, 1.0)])


def test_eight_threads_add_to_one_leaf_exactly_or_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    from adjoint.grads import slots
    from benchmarks import eight, parallel

    assert parallel.take_apart(f"{parallel.SHARED} of 50 elements", [], []) == {"shared": True}
    monkeypatch.setattr(eight, "SIZE", 50)
    assert [len(taken) for taken in eight.shared_rounds(3, times=1).values()] == [1, 1, 1]
    monkeypatch.setattr(slots, "_sum", lambda before, new: before)
    with pytest.raises(RuntimeError, match="of 8 contributions to a shared leaf, some are lost"):
        eight.shared_rounds(1, times=1)


def missing_everything() -> dict[str, Any]:
    """Fake numbers of a run in which every target is missed."""
    from benchmarks import eight, parallel

    def taken(seconds: float) -> list[Any]:
        return [parallel.Taken(seconds, 1.5 * seconds)] * 3

    bare = {parallel.BARE_ONE: taken(1.0), parallel.BARE_TWO: taken(0.6)}
    wide = {parallel.SERIAL: taken(1.0), parallel.WORKERS: taken(0.9), **bare}
    small = {parallel.SERIAL: taken(1.0), parallel.AUTO: taken(2.0)}
    crowd = {eight.IDEAL: taken(1.0), eight.TOGETHER: taken(2.0), eight.BARE: taken(1.05)}
    rows = [parallel.row(name, wide, parallel.SERIAL, {parallel.WORKERS: 0.588}) for name in parallel.WIDE]
    rows.append(parallel.row("chain of 10 nodes", small, parallel.SERIAL, {parallel.AUTO: 1.05}))
    rows.append(parallel.row("eight models", crowd, eight.IDEAL, {eight.TOGETHER: eight.TARGET}))
    rows.append(parallel.row(parallel.SHARED, crowd, eight.IDEAL, {eight.TOGETHER: eight.TARGET}))
    points = [[10_000, 0.01, 10**6], [100_000, 0.1, 10**7], [1_000_000, 9.0, 10**9]]
    return {
        "machine": {"Python": "3.11.7"},
        "threads": 2,
        "groups": {"chain": "Chains"},
        "cases": {"a case": a_case(0.5, 0.4)},
        "parallel": rows,
        "memory": [{"name": "a step", "adjoint": 3_000_000, "torch": 2_000_000}],
        "scale": {"import": {"median": 0.5, "best": 0.4}, "series": {"nodes": points}},
    }


def profiles_of_everything() -> dict[str, Any]:
    from benchmarks import parallel

    balance = {"one": 0.1, "busiest": 0.06, "both": 0.11}
    modules = {"count": 2, "seconds": 0.03, "largest": [["adjoint.ops", 0.02]]}
    timed = {
        "seconds": 0.1, "in the system": 0.01, "page faults": 1234.0, "without the garbage collector": 0.05,
    }  # fmt: skip
    traced = {"kept": [["ops/softmax.py:12", 1_500_000]], "held": 1_600_000, "peak": 2_500_000}
    return {
        "a case": a_profile(),
        **{name: {"balance": balance} for name in parallel.WIDE},
        "chain of 10 nodes": {
            "auto": {
                "seconds": {parallel.SERIAL: 50e-6, parallel.AUTO: 60e-6}, "deciding": 1e-6, "nodes": 11,
            }
        },
        "eight models": {
            "crowd": {
                "steps": 50,
                "wall": {"threads": [1.2, 1.3, 1.4], "processes": [1.1, 1.2, 1.3]},
                "processor": {"threads": [1.0, 1.04, 1.1], "processes": [1.0, 1.05, 1.1]},
            }
        },
        parallel.SHARED: {"shared": True},
        "peak memory, a step": traced,
        "import": {"numpy": 0.09, "adjoint": modules, "others": modules | {"largest": [["queue", 0.01]]}},
        "time against nodes": {"time": {"100000": timed, "1000000": timed}},
        "memory against nodes": {"memory": {"100000": traced, "1000000": traced}},
    }  # fmt: skip


def test_only_missed_targets_are_explained() -> None:
    from benchmarks.missed import missed, section

    cases = {"fast": a_case(0.5, 0.6), "slow": a_case(0.5, 0.4)}
    assert list(missed({"cases": cases})) == ["slow"]
    shown = section({"cases": cases, "profiles": {"fast": a_profile(), "slow": a_profile()}})
    assert shown.startswith("### slow\n\n| part | time | share |") and "fast" not in shown
    assert "no profile was made" in section({"cases": cases})
    assert section({"cases": {"fast": cases["fast"]}}) == ""


def test_every_kind_of_target_that_is_missed_is_explained() -> None:
    from benchmarks.missed import limits, missed
    from benchmarks.report import targets_page

    numbers = missing_everything()
    assert all(row["value"] > row["target"] for row in limits(numbers))
    assert set(missed(numbers)) == set(profiles_of_everything())
    text = targets_page(numbers | {"profiles": profiles_of_everything()})
    shown = text[text.index("## Why a target is missed") :]
    for heading in missed(numbers):
        assert f"### {heading}\n" in shown
    for said in (
        "| bare kernels, two threads | 600 ms | 0.6 | 1.50 |",
        "took 0.6 of one thread's time in two, more than the target of 0.588.",
        "the busiest of two workers 60 ms (0.6 of it: ratio with two free processors)",
        "Deciding that one thread is enough, from the shapes of 11 nodes, takes 1 µs when done alone, 2.0%",
        '50 µs in one thread and 60 µs with `workers="auto"`: 1.2 of it.',
        "Bare NumPy calls in eight threads took 1.05 of the ideal",
        "1.3 of the ideal in eight threads and 1.2 in eight processes, which share no lock; more than the target",
        "with only the sum behind a lock, took 1.05 of the ideal in the same rounds. No contribution was lost.",
        "Processor time for the same work, beside one thread alone: 1.04 in threads, 1.05 in processes",
        "may take 2.1 MB and takes 3.0 MB. Traced by Python, 1.6 MB are held when backward starts, and 2.5 MB",
        "| `ops/softmax.py:12` | 1.5 MB |",
        "| NumPy and what it imports | 90 ms |",
        "| `adjoint.ops` | 20 ms |",
        "| 1,000,000 nodes | 9 s | 9 µs | 1.95 |",
        "It is steepest from 100,000 to 1,000,000 nodes.",
        "| size, run again | seconds | in the system | page faults | without the garbage collector |",
        "| 1,000,000 nodes | 100 ms | 10 ms | 1,234 | 50 ms |",
        "| 1,000,000 nodes | 1000.0 MB | 1000 B | 2.00 |",
        "| `ops/softmax.py:12` | 15 | 1.5 |",
    ):
        assert said in shown


def test_what_is_missed_is_taken_apart_and_a_failure_there_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from benchmarks import memory, missed, parallel, profile, scale

    asked: list[tuple[str, list[str]]] = []

    def taken(of: str, rows: Any, found: Any) -> Any:
        asked.append((of, [row["name"] for row in rows]))
        return profiles_of_everything()[of]

    def fails(of: str, rows: Any, found: Any) -> Any:
        raise OSError("no such file")

    for part in (profile, parallel, memory):
        monkeypatch.setattr(part, "take_apart", taken)
    monkeypatch.setattr(scale, "take_apart", fails)
    numbers = missing_everything()
    numbers["cases"]["a fast one"] = a_case(0.5, 0.6)
    numbers["profiles"] = missed.measure(numbers)
    assert [of for of, _ in asked] == [of for of in profiles_of_everything() if of not in SCALE]
    assert "### import\n\nIt could not be taken apart: OSError: no such file." in missed.section(numbers)


SCALE = ("import", "time against nodes", "memory against nodes")


def test_a_small_graph_a_wide_one_and_a_step_can_be_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import memory, parallel

    found = parallel.deciding(parallel.chain(5), rounds=1)
    assert found["nodes"] > 10 and set(found["seconds"]) == {parallel.SERIAL, parallel.AUTO}
    found = parallel.balance(parallel.wide(parallel.mixed, 2, 1000), 1)
    assert 0 < found["busiest"] <= found["both"] and found["one"] > 0
    x = ad.tensor(np.ones(1000), requires_grad=True)
    found = memory.traced(lambda: ad.backward(ad.exp(x).sum()))
    assert found["peak"] >= found["held"] >= 8000
    assert max(size for _, size in found["kept"]) >= 8000


def test_eight_threads_stand_beside_one_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import eight

    ran: list[Any] = []
    monkeypatch.setattr(eight, "processors", lambda: 2)
    monkeypatch.setattr(eight, "alone", lambda n, *_: ran.append(n) or eight.Taken(1.0 * len(ran), 1.0))
    monkeypatch.setattr(eight, "eight", lambda work, count: ran.append(work) or eight.Taken(5.0, 4.0))
    taken, ideal = eight.around(lambda: eight.eight(eight.steps, 10), 10)
    assert ran == [4, eight.steps, 4]
    assert ideal == (2.0, 1.0) and taken == (5.0, 4.0)  # (1 + 3) / 2 seconds


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_threads_that_fail_are_no_fast_threads() -> None:
    from benchmarks import eight

    def fails(count: int, size: int) -> None:
        raise ValueError

    with pytest.raises(RuntimeError, match="8 of eight threads failed"):
        eight.eight(fails, 1)
    assert eight.eight(lambda count, size: None, 1).wall > 0


def test_import_times_are_read() -> None:
    from benchmarks.scale import import_lines

    printed = (
        "import time: self [us] | cumulative | imported package\n"
        "import time:       120 |        250 |   adjoint.core\na warning\n"
    )
    assert list(import_lines(printed)) == [("adjoint.core", 120 * 1e-6, 250 * 1e-6)]


def test_kernels_are_noted_and_everything_is_put_back() -> None:
    from benchmarks.profile import BACKWARD, FORWARD, kernel_calls, replay

    x = ad.tensor(np.linspace(0.1, 1.0, 4), requires_grad=True)
    optimizer = ad.optim.SGD([x], lr=0.1)
    before = {name: (op.forward, op.rules, op.joint) for name, op in OPS.items()}
    patched = ad.Tensor.backward, ad.backward, ad.gradients, ad.optim.SGD.step

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
    assert patched == (ad.Tensor.backward, ad.backward, ad.gradients, ad.optim.SGD.step)
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
    from benchmarks.harness import Case, Lacking, measure

    with pytest.raises(Lacking, match="not yet"):
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


def test_a_peer_that_fails_later_or_computes_something_else_does_not_lose_the_run() -> None:
    from benchmarks.harness import Case, measure

    def late() -> Any:
        calls = iter([1.0])
        return lambda: next(calls)

    case = Case(
        "a case",
        {
            "adjoint": lambda: lambda: 1.0,
            "torch": lambda: lambda: 1.0,
            "jax": lambda: lambda: 1.5,
            "mlx": late,
        },
    )
    found = measure(case, rounds=1, warmup=0).summary()
    assert found["left out"] == {
        "jax": "its results differ by 0.5 where the largest number is 1",
        "mlx": "StopIteration: ",
    }
    assert list(found["ratios"]) == ["torch"]


def test_a_peer_that_was_left_out_is_a_dash_with_its_reason() -> None:
    from benchmarks.report import absences, ratios

    cases = {
        "one": a_case(1, 2),
        "two": a_case(1, 2) | {"ratios": {}, "targets": {}, "left out": {"torch": "why"}},
    }
    assert ratios(cases).splitlines()[-1] == "| two | 100 µs | – |"
    assert absences(cases).endswith("- PyTorch, two: why")


def test_a_slow_peer_is_in_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import harness

    monkeypatch.setattr(harness, "pace", lambda case, name, step: (1, name == "mlx"))
    case = harness.Case("a case", {name: lambda: lambda: 1.0 for name in ("adjoint", "torch", "mlx")})
    found = harness.measure(case, rounds=5, warmup=1)
    assert {name: len(taken) for name, taken in found.seconds.items()} == {"adjoint": 5, "torch": 5, "mlx": 3}
    assert len(found.ratios("mlx")) == 3


def test_every_case_names_every_peer() -> None:
    """Each is measured in all peers, or says why one is not; adjoint's own yardsticks stand alone."""
    from benchmarks.__main__ import all_cases
    from benchmarks.engines import PEERS

    for group, members in all_cases()[1].items():
        for case in members:
            others = {name for name in case.engines if not name.startswith("adjoint") and name != "numpy"}
            assert others >= set(PEERS.split()) or (group, others) in OWN, case.name


OWN = [("accumulate", set()), ("cost", set()), ("transforms", set())]


def test_updates_show_in_what_is_compared() -> None:
    """The losses of training cases move by far more than engines may differ."""
    from benchmarks.__main__ import all_cases
    from benchmarks.harness import results

    compared = [case for group in all_cases()[1].values() for case in group if case.compared > 2]
    assert {"training", "graphs"} <= {
        g for g, cases in all_cases()[1].items() if any(c in cases for c in compared)
    }
    for case in compared:
        if "512×784" not in case.name:  # the same, and slow
            losses = results(case.engines["adjoint"](), case.compared)
            assert losses[0] - losses[-1] > 100 * case.tolerance * losses[0], case.name


# Threads ------------------------------------------------------------------------------------------


def test_ratios_of_threads_stand_beside_what_the_machine_gives() -> None:
    from benchmarks.parallel import BARE_ONE, BARE_TWO, SERIAL, WORKERS, Taken, limits, row, text

    times = {SERIAL: 0.1, WORKERS: 0.06, BARE_ONE: 0.08, BARE_TWO: 0.044}
    found = row("a wide graph", {v: [Taken(t, t)] * 4 for v, t in times.items()}, SERIAL, {WORKERS: 0.588})
    name = "a wide graph"
    assert limits([found]) == [
        {"name": f"{name}: workers=2", "of": name, "beside": "serial", "value": 0.6, "target": 0.588}
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


def test_bench_says_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import __main__ as bench

    monkeypatch.setattr(
        bench.importlib.util, "find_spec", lambda name: None if name in ("jax", "mlx") else name
    )
    monkeypatch.setattr(bench.shutil, "which", lambda tool: None if tool == "clang" else tool)
    assert bench.not_installed() == (
        "not installed: jax, mlx: pip install -e . --group bench --group oracle\nnot installed: clang (for tinygrad)"
    )
    monkeypatch.undo()


def test_every_case_of_memory_runs_in_its_small_size() -> None:
    from benchmarks import memory

    for kind, _, tiny in memory.STEPS.values():
        memory._case(kind, tiny).engines["adjoint"]()()


def test_named_cases_replace_their_numbers_and_keep_the_others() -> None:
    from benchmarks.__main__ import merged

    before = {"cases": {"a": 1, "b": 2}, "compiled": {"a": 3}, "memory": 4, "machine": 5}
    after = {"cases": {"b": 6, "c": 7}, "compiled": {"b": 8}, "machine": 9}
    whole = {"cases": {"a": 1, "b": 6, "c": 7}, "compiled": {"a": 3, "b": 8}, "memory": 4, "machine": 9}
    assert merged(before, after, ["b"]) == whole
    assert merged(before, after, []) == after | {"memory": 4}


def test_a_trial_does_not_write_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import __main__ as bench

    monkeypatch.setattr(sys, "argv", ["benchmarks", "--write", "--quick"])
    with pytest.raises(SystemExit):
        bench.main()
    assert "--quick is for trials: give --to another folder" in capsys.readouterr().err
    asked: list[Any] = []
    monkeypatch.setattr(bench, "run", lambda *options: asked.append(options) or missing_everything())
    monkeypatch.setattr(
        bench, "add_parts", lambda numbers, names, quick: iter([asked.append((*names, quick))])
    )
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--write", "--quick", "--to", str(tmp_path)])
    assert bench.main() == 0
    assert asked == [
        ([], 7, 0.0, [], False),
        ("replay", "builds", "tracing", "parallel", "memory", "scale", "profiles", True),
    ]
    assert (tmp_path / "performance.md").read_text().startswith("# Performance")


def test_bench_outside_of_a_clone_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    installed = types.SimpleNamespace(__file__=str(tmp_path / "site-packages/adjoint/__init__.py"))
    monkeypatch.setattr(cli, "adjoint", installed)
    assert cli.main(["bench"]) == 2
    assert capsys.readouterr().err == (
        "adjoint bench: the benchmarks are not part of the installed package.\n"
        "  Clone the repository.  In the clone, run pip install -e . --group bench --group oracle, then adjoint "
        "bench.\n"
    )


def test_the_model_of_ranks_hides_sums_behind_backward() -> None:
    from benchmarks.ranks import BYTES, NETS, modelled

    for net in NETS.values():
        for ranks in (2, 8, 64, 4096):
            early, late = (modelled(BYTES, 0.035, ranks, net, early=flag) for flag in (True, False))
            sent = 2 * (ranks - 1) / ranks * BYTES / net[1]
            assert 0.035 < early < late and late > 0.035 + sent
            assert early > max(0.035, sent)


# Replay and traces --------------------------------------------------------------------------------


def replays() -> dict[str, Any]:
    def case(ratio: list[float], target: float = 1.0) -> dict[str, Any]:
        return {"eager": [1e-6] * 3, "replayed": [2e-6] * 3, "ratio": ratio, "target": target}

    return {
        "fast": case([0.4, 0.45, 0.5], 0.5),
        "equal": case([0.99, 1.01, 1.05]),
        "slow": case([1.1, 1.2, 1.3]),
    }


def test_a_replayed_step_is_missed_only_if_its_lower_quartile_is_above_the_target() -> None:
    from benchmarks import missed, replayed
    from benchmarks.report import _targets_table

    found = {"replay": replays()}
    assert list(missed.missed(found)) == ["slow, replayed"]
    assert replayed.text(found["replay"]).splitlines()[2:] == [
        "| slow | 1 µs | 2 µs | 1.2 (1.1–1.3) | ≤ 1 **missed** |",
        "| equal | 1 µs | 2 µs | 1.01 (0.99–1.05) | ≤ 1 equal within the spread |",
        "| fast | 1 µs | 2 µs | 0.45 (0.4–0.5) | ≤ 0.5 met |",
    ]
    first, *rows = _targets_table(found).splitlines()
    assert first == "1 of 3 are met; 1 more are equal within the spread."
    assert "| equal, replayed | adjoint, eager | ≤ 1 | 1.01 | equal within the spread |" in rows
    taken = {"instructions": 4, "traces": 1, "eager": 1e-6, "replayed": 2e-6}
    assert replayed.why(taken, [], found["replay"]).endswith(
        "A replayed step takes 2 µs, 1 µs more than the eager step, or 250 ns more for each instruction."
    )


def test_replayed_steps_have_targets() -> None:
    from benchmarks import replayed
    from benchmarks.__main__ import all_cases
    from benchmarks.harness import Case, Result

    names = {case.name for group in all_cases()[1].values() for case in group}
    assert replayed.TARGETS.keys() < names
    assert replayed.numbers_of(Result(Case("a", {}), {"adjoint": [1.0]})) == {}
    for name, target in {"a": 1.0, "MLP 1×8-16-16-1, SGD step": 0.5}.items():
        seconds = {"adjoint": [2.0, 2.0, 2.0], "adjoint-replay": [1.0, 2.0, 1.0]}
        found = replayed.numbers_of(Result(Case(name, {}), seconds))
        assert (found["ratio"], found["target"]) == ([0.5, 0.5, 1.0], target)


def test_compiled_steps_without_state_use_the_arrays_of_the_eager_step() -> None:
    from benchmarks.__main__ import all_cases

    groups = all_cases()[1]
    case = next(case for case in groups["overhead"] if case.name == "add, 4 elements, forward")
    step = case.engines["adjoint"]()
    assert case.engines["adjoint"]() is step
    assert case.engines["adjoint-replay"]()._f is step
    del step
    assert case.engines["adjoint"].made() is None  # nothing is kept that nothing uses
    training = next(case for case in groups["training"] if case.name == "MLP 1×8-16-16-1, SGD step")
    assert training.engines["adjoint"]() is not training.engines["adjoint"]()


def test_traces_are_compared_with_their_targets() -> None:
    from benchmarks import tracing

    numbers = {
        "warm": {"net": {"seconds": [1e-3, 2e-3, 3e-3], "instructions": 50}},
        "cold": {"large": {"seconds": [0.01, 0.03, 0.04], "instructions": 20}},
    }
    assert [(r["name"], round(r["value"]), r["target"]) for r in tracing.limits(numbers)] == [
        ("trace of net: µs per instruction", 40, 30.0),
        ("trace of large: the first, ms", 30, 20.0),
    ]
    assert tracing.text(numbers).splitlines()[2:] == [
        "| net | warm | 50 | 2 ms (1 ms–3 ms) | 40 µs (≤ 30 **missed**) |",
        "| large | first | 20 | 30 ms (10 ms–40 ms) (≤ 20 **missed**) | 1.5e+03 µs |",
    ]
    name = next(iter(tracing.STEPS))
    taken = tracing.take_apart(tracing.HEADING + name, [], numbers)
    assert len(taken["functions"]) == tracing.SHOWN
    assert tracing.why(taken, [], numbers).startswith("The functions with most time of their own")


def test_traces_are_measured_in_a_process_of_their_own() -> None:
    from benchmarks import tracing

    name = next(iter(tracing.STEPS))
    warm, cold = tracing.child("warm", name, 1), tracing.child("cold", name)
    assert warm["instructions"] == cold["instructions"] > 10
    assert 0 < warm["seconds"][0] <= warm["seconds"][2] and cold["seconds"] > 0


# Builds -------------------------------------------------------------------------------------------


def test_builds_are_compared_with_their_targets() -> None:
    from benchmarks import builds

    n = {"cold": 0.1, "call": 0.1, "llvm": 0.05, "disk": 0.04, "jax": 0.4, "native": 3e6, "replay": 2e6}
    numbers = {
        "cases": {"MLP 1": n, "tanh": n | {"jax": 0.1}},
        "depths": {"20": {"cold": 0.1}, "40": {"cold": 0.2}, "80": {"cold": 0.5, "llvm": 0.3}},
    }
    missed = [r for r in builds.limits(numbers) if r["value"] > r["target"]]
    assert [(r["name"], r["value"]) for r in missed] == [
        ("builds of MLP 1: from disk, seconds", 0.04),
        ("builds of MLP 1: peak memory", 1.5),
        ("builds of tanh: from disk, seconds", 0.04),
        ("builds of tanh: cold", 1.0),
        ("builds of tanh: peak memory", 1.5),
        ("builds of 80 layers, Adam: cold, seconds", 0.5),
        ("builds of 80 layers, Adam: beside 40 layers", 2.5),
    ]
    assert len(builds.limits(numbers)) == 9
    line, deepest = [x for x in builds.text(numbers).splitlines() if x.startswith(("| tanh", "| 80"))]
    assert line == (
        "| tanh | 100 ms | 1.00 (≤ 0.5 **missed**) | 40 ms (≤ 0.03 **missed**) | 100 ms "
        "| 3.00 MB, 1.50 (≤ 1 **missed**) |"
    )
    assert deepest == "| 80 layers | 500 ms |"
    taken = builds.take_apart(missed[-1]["of"], missed[-1:], numbers)
    assert builds.why(taken, missed[-1:], numbers).startswith(
        "Of 500 ms of a cold build, LLVM compiles kernels for 300 ms;"
    )


def test_a_build_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("llvmlite")
    from benchmarks import builds

    found = builds.child("build", "1", str(tmp_path))
    assert set(found) == {"first", "build", "call", "llvm"} and found["llvm"] > 0.0
    assert builds.child("native", "1", str(tmp_path))["peak"] > 0
    assert builds.child("build", "1", str(tmp_path))["llvm"] == 0.0
    assert builds.child("replay", "1", str(tmp_path))["peak"] > 0


# Programs as users write them -----------------------------------------------------------------------


def test_realistic_programs_have_names_and_engines() -> None:
    from benchmarks.realistic.__main__ import families

    headings, found = families()
    cases = [case for family in found.values() for case in family]
    assert set(headings) == set(found) and all(headings.values())
    assert len({case.name for case in cases}) == len(cases) > 40
    assert all({"adjoint", "adjoint-compile", "torch"} <= set(case.engines) for case in cases)


def test_a_realistic_program_computes_the_same_compiled() -> None:
    from benchmarks.harness import results
    from benchmarks.realistic.steps import CASES

    case = next(case for case in CASES if case.name == "tiny AdamW, clip_grad_norm")
    eager, compiled = (results(case.engines[e](), 4) for e in ("adjoint", "adjoint-compile"))
    np.testing.assert_allclose(compiled, eager, rtol=1e-5)
    assert eager[-1] < eager[0]


@pytest.mark.parametrize("family", ["agents", "functions", "halves", "steps"])
def test_realistic_programs_compute_the_same_by_replay(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    from benchmarks.harness import results

    monkeypatch.setattr(ad, "compile", functools.partial(ad.compile, backend="replay"))
    for case in importlib.import_module(f"benchmarks.realistic.{family}").CASES:
        eager, compiled = (results(case.engines[e](), 3) for e in ("adjoint", "adjoint-compile"))
        np.testing.assert_array_equal(compiled, eager, err_msg=case.name)


def test_the_summary_names_the_programs_above_one() -> None:
    from benchmarks.realistic.page import page, summary

    pair = "adjoint-compile/torch"
    rows = {
        name: {"family": "steps", "seconds": {}, "ratios": {pair: [0.5, value, 3.0]}, "network": False}
        for name, value in (("fast", 0.5), ("slow", 2.0))
    }
    assert summary(rows, pair) == (1.25, 2, {"slow": 2.0})
    text = page({"rows": rows, "families": {"steps": "Steps"}, "machine": {"NumPy": "2"}, "threads": 2})
    assert "| compiled / PyTorch | 1.25 | 2 | slow (2.00) |" in text
    assert "| fast | – | – | – | – | – | 0.50 | – | – |" in text
