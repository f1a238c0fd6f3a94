"""Groups of processes over MPI: collectives, and failures that end all ranks soon."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launcher import MPIEXEC, start

import adjoint as ad
from adjoint import distributed
from adjoint.errors import MissingExtraError

pytest.importorskip("mpi4py")
needs_mpi = pytest.mark.skipif(MPIEXEC is None, reason="needs mpiexec")
pytestmark = pytest.mark.mpi


@needs_mpi
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_collectives(size: int) -> None:
    done, _ = start("ranks.py", size, "collectives")
    assert done.returncode == 0, done.stdout
    for rank in range(size):
        assert f"rank {rank} of {size} is done" in done.stdout


@needs_mpi
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("raise", "rank 1 raised ValueError: rows are missing"),
        ("exit", "rank 1 has left the program"),
        (
            "other calls",
            "the ranks make different calls: 'the sum of a step' on rank 0, 'a gather of rank 1' on rank 1",
        ),
    ],
)
def test_a_rank_that_fails_ends_all_with_its_error(what: str, message: str) -> None:
    done, seconds = start("ranks.py", 3, what)
    assert done.returncode != 0
    assert seconds < 20  # of seconds that a busy machine takes; alone it is below two
    for rank in (0, 2):
        assert f"rank {rank} raises RankError: {message}" in done.stdout, done.stdout


@needs_mpi
def test_a_rank_that_is_killed_ends_all() -> None:
    done, seconds = start("ranks.py", 3, "kill")
    assert done.returncode != 0 and seconds < 20


@needs_mpi
def test_a_rank_that_does_not_come_ends_all_after_the_timeout() -> None:
    done, seconds = start("ranks.py", 3, "stop")
    assert done.returncode != 0 and seconds < 30
    assert "waited 6 s in 'the sum of a step'.\n" in done.stdout, done.stdout
    assert "  rank 0 waits in 'the sum of a step'\n" in done.stdout
    assert "  rank 1 is in no call: it computes, hangs or was stopped\n" in done.stdout
    assert "  rank 2 waits in 'the sum of a step'\n" in done.stdout
    assert "All ranks are stopped." in done.stdout


@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_several_processes_without_mpi4py_are_an_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "4")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MissingExtraError, match="a program on 4 ranks needs mpi4py"):
        distributed.world()


@needs_mpi
def test_a_launcher_of_another_mpi_is_an_error() -> None:
    program = "from adjoint import distributed; distributed.world()"
    environment = {**os.environ, "OMPI_COMM_WORLD_SIZE": "4", "PYTHONPATH": str(Path(ad.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert "the launcher started 4 processes, but mpi4py sees only one" in done.stderr


@needs_mpi
def test_launch_starts_ranks_and_shares_the_processors(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\n"
        "from adjoint import distributed\n"
        "group = distributed.world()\n"
        "print(group.gather((group.rank, sys.argv[1:], 'OPENBLAS_NUM_THREADS' in os.environ)), flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(ad.__file__).parents[1])}
    environment.pop("OPENBLAS_NUM_THREADS", None)

    def launch(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "adjoint", "launch", *arguments],
            env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    done = launch("-n", "2", str(program), "--lr", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[(0, ['--lr', '3'], True), (1, ['--lr', '3'], True)]") == 2
    assert (
        launch("-n", "2", "nothing.py").stderr
        == "adjoint launch: cannot find the file 'nothing.py'.  Check the path.\n"
    )
    assert "argument -n: must be a positive integer, not '0'." in launch("-n", "0", str(program)).stderr
    program.write_text("import sys; sys.exit(3)")
    assert launch("-n", "2", str(program)).returncode == 3
