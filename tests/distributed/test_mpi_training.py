"""Training on processes: the same bits on any number of them, and the table of faults of docs/distributed.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from launcher import MPIEXEC, start

pytest.importorskip("mpi4py")
pytestmark = [pytest.mark.mpi, pytest.mark.skipif(MPIEXEC is None, reason="needs mpiexec")]

SOON = 20.0  # seconds on a busy machine; alone it is below one, or the timeout


def run(what: str, directory: Path, size: int = 3, **options: Any) -> tuple[int, str, float]:
    done, seconds = start("rank_training.py", size, what, str(directory), **options)
    return done.returncode, done.stdout, seconds


def ends(output: str) -> list[str]:
    """What each rank says at its end, without its number."""
    return [line.partition(" ends at ")[2] for line in output.splitlines() if " ends at " in line]


def test_any_number_of_ranks_gives_the_same_bits_and_resumes_the_run_of_another(tmp_path: Path) -> None:
    found = {}
    for size in (1, 2, 4):
        code, output, _ = run("nothing", tmp_path / str(size), size)
        assert code == 0, output
        assert len(ends(output)) == size and len(set(ends(output))) == 1
        found[size] = ends(output)[0], (tmp_path / str(size) / "log.jsonl").read_bytes()
    assert found[1] == found[2] == found[4]
    assert found[1][0].startswith("step 18 (None)")
    # killed on 4 ranks, resumed on 2, killed, resumed on 1
    for size, what in ((4, "kill at 5"), (2, "kill at 11")):
        code, output, seconds = run(what, tmp_path / "parts", size)
        assert code != 0 and seconds < SOON, output
    code, output, _ = run("nothing", tmp_path / "parts", 1)
    assert code == 0, output
    assert (ends(output)[0], (tmp_path / "parts" / "log.jsonl").read_bytes()) == found[1]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("loss", "rank 1 raised ValueError: a bad row"),
        ("hook", "rank 1 raised FloatingPointError: in the middle"),
    ],
)
def test_an_error_in_a_step_is_raised_on_all_ranks_and_they_go_on(
    tmp_path: Path, what: str, message: str
) -> None:
    code, output, _ = run(what, tmp_path)
    assert code == 0, output
    for rank in range(3):
        assert f"rank {rank} at step 5: {message}" in output, output
    assert len(ends(output)) == 3 and len(set(ends(output))) == 1


@pytest.mark.parametrize(
    ("what", "message", "count"),
    [
        ("callback", "RankError: rank 1 raised OSError: disk full", 2),
        ("exit", "RankError: rank 1 raised SystemExit: 0", 2),
        ("leave", "RankError: rank 1 has left the program", 2),
        ("shape", "2.bias: '(32,) float32' on rank 0, '(33,) float32' on rank 1", 3),
        ("nan", "NonFiniteError: loss is nan at step 6", 3),
        ("drift", "RankError: the parameters of rank 1 differ from those of rank 0", 3),
        ("stopped", "  rank 1 is in no call: it computes, hangs or was stopped", 1),
    ],
)
def test_a_fault_ends_all_ranks(tmp_path: Path, what: str, message: str, count: int) -> None:
    code, output, seconds = run(what, tmp_path)
    assert code != 0 and seconds < SOON, output
    assert output.count(message) >= count, output
    assert not ends(output)


@pytest.mark.parametrize("what", ["few rows", "stop", "interrupt"])
def test_all_ranks_end_at_the_same_step(tmp_path: Path, what: str) -> None:
    code, output, seconds = run(what, tmp_path, interrupt=what == "interrupt")
    assert code == 0 and seconds < SOON, output
    assert len(ends(output)) == 3 and len(set(ends(output))) == 1, output
    reason = {"few rows": "None", "stop": "enough", "interrupt": "interrupted"}[what]
    assert f"({reason})" in ends(output)[0]
    if what != "few rows":
        step = int(ends(output)[0].split()[1])
        assert list((tmp_path / "checkpoints").glob(f"step-{step:09d}*"))  # written again: step-….1
