"""Compiled functions in 16 threads under the debug allocator: a short form of a part of ``make soak``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llvmlite")

SCRIPT = Path(__file__).parents[1] / "support" / "compiled_threads.py"


def run(part: str, calls: int, seconds: int) -> str:
    """Run a part of the stress test in a process of its own; return what it prints, with the stacks of a crash."""
    command = [sys.executable, "-W", "ignore", str(SCRIPT), "--parts", part, "--calls", str(calls)]
    environment = {
        **os.environ,
        "PYTHONMALLOC": "debug",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(
        [*command, "--seconds", str(seconds)], capture_output=True, text=True, env=environment,
        timeout=2 * seconds,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.parametrize("part", ["forced turns", "watched arrays", "many threads"])
def test_compiled_functions_are_right_in_many_threads(part: str) -> None:
    assert run(part, 10, 100) == f"{part}: right\n"


@pytest.mark.soak
@pytest.mark.parametrize("part", ["forced turns", "watched arrays", "many threads"])
def test_compiled_functions_stay_right_in_many_threads(part: str) -> None:
    assert run(part, 4_000, 1_800) == f"{part}: right\n"
