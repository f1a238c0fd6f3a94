"""Start programs on several ranks with mpiexec, with a limit of time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import adjoint as ad

HERE = Path(__file__).parent
MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")


def is_open_mpi() -> bool:
    """Tell whether mpiexec belongs to Open MPI."""
    assert MPIEXEC is not None
    version = subprocess.run([MPIEXEC, "--version"], capture_output=True, text=True, check=False).stdout
    return "Open MPI" in version or "OpenRTE" in version


def start(
    program: str, size: int, *arguments: str, interrupt: bool = False, limit: float = 120.0
) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a program of this directory on several ranks; return it, and the seconds since it printed "now".

    With ``interrupt``, a Ctrl-C is sent at "now", as ``adjoint launch`` sends it.
    """
    assert MPIEXEC is not None
    other = is_open_mpi()
    flags = ["--allow-run-as-root", "--oversubscribe"] if other else []
    environment = {**os.environ, "PYTHONPATH": str(Path(ad.__file__).parents[1]), "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        [MPIEXEC, *flags, "-n", str(size), sys.executable, str(HERE / program), *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
    ) as process:  # fmt: skip
        timer = threading.Timer(limit, process.kill)
        timer.start()
        lines, since = [], time.monotonic()
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.strip() == "now":
                since = time.monotonic()
                if interrupt:
                    process.send_signal(signal.SIGUSR1 if other else signal.SIGINT)
        code = process.wait()
        timer.cancel()
    return subprocess.CompletedProcess([], code, "".join(lines)), time.monotonic() - since
