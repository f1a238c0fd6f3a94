"""``adjoint launch``: start a program on several ranks with mpiexec, and divide the processors among them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from adjoint.errors import InputError, MissingExtraError

__all__ = ["launch"]

# The environment variables that set the number of threads of BLAS libraries and OpenMP.
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def launch(ranks: int, program: str, arguments: Sequence[str]) -> int:
    """Run a Python program on several ranks of this machine, and return the exit status of mpiexec.

    Each rank gets an equal share of the processors for its BLAS threads, unless environment variables set
    the number of threads.  Ctrl-C reaches all ranks.
    """
    if not os.path.isfile(program):
        raise InputError(f"cannot find the file {program!r}.  Check the path.")
    mpiexec, is_open_mpi = _mpiexec()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    flags = []
    if is_open_mpi:
        flags += ["--oversubscribe"] if ranks > cores else []
        flags += ["--allow-run-as-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    threads = {name: str(max(1, cores // ranks)) for name in BLAS_THREADS}
    command = [mpiexec, *flags, "-n", str(ranks), sys.executable, program, *arguments]
    # mpiexec runs in a new session, so that Ctrl-C in the terminal interrupts only this process.
    with subprocess.Popen(command, env={**threads, **os.environ}, start_new_session=True) as process:
        forwarded = _forwarded(is_open_mpi, os.name)
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                if forwarded is not None:
                    process.send_signal(forwarded)
                forwarded = signal.SIGTERM  # the second Ctrl-C ends the ranks


def _forwarded(is_open_mpi: bool, system: str) -> signal.Signals | None:
    """Return the signal that tells mpiexec of Ctrl-C, or None if it needs none.

    Open MPI's mpiexec kills the ranks soon after an interrupt, but forwards SIGUSR1.  On Windows ("nt") there
    are no sessions and no such signals: Ctrl-C reaches mpiexec itself.
    """
    if system == "nt":
        return None
    return signal.SIGUSR1 if is_open_mpi else signal.SIGINT


def _mpiexec() -> tuple[str, bool]:
    """Return the path of mpiexec, and whether it belongs to Open MPI.

    The mpiexec next to the running Python is preferred.
    """
    beside = str(Path(sys.executable).parent)
    found = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")
    if found is None:
        raise MissingExtraError("adjoint launch", "mpiexec", "distributed")
    told = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    return found, "Open MPI" in told or "OpenRTE" in told or "PRRTE" in told
