"""What differs between systems, as far as it can be tested on one of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from adjoint.cli import launch
from adjoint.inspect import causes
from adjoint.train import state

ROOT = Path(__file__).parents[2]


def test_ctrl_c_is_forwarded_to_mpiexec_where_it_needs_that():
    assert launch._forwarded(True, "posix") == signal.SIGUSR1
    assert launch._forwarded(False, "posix") == signal.SIGINT
    assert launch._forwarded(True, "nt") is None


def test_a_file_on_another_drive_is_shown_whole(monkeypatch, tmp_path):
    file = tmp_path / "here.py"
    file.write_text("")
    monkeypatch.chdir(tmp_path)
    causes.shown_place.cache_clear()
    assert causes.shown_place((str(file), 3, "f")) == "here.py:3"
    causes.shown_place.cache_clear()
    monkeypatch.setattr(os.path, "splitdrive", lambda p: ("C:" if p == str(file) else "D:", p))
    assert causes.shown_place((str(file), 3, "f")) == f"{file}:3"
    causes.shown_place.cache_clear()


def test_a_log_on_another_drive_than_the_checkpoints_has_no_relative_path(monkeypatch, tmp_path):
    def other_drive(path, start):
        raise ValueError("path is on mount 'C:', start on mount 'D:'")

    monkeypatch.setattr(os.path, "relpath", other_drive)
    callback = SimpleNamespace(identity=lambda: {"path": "log.csv"})
    trainer = SimpleNamespace(checkpoints=SimpleNamespace(directory=tmp_path))
    assert state._names(trainer, callback)["beside"] is None


def test_commands_print_into_a_pipe_of_any_encoding():
    environment = os.environ | {"PYTHONIOENCODING": "ascii:strict", "PYTHONPATH": str(ROOT)}
    for arguments in (["ops"], ["look"], ["--help"]):
        command = [sys.executable, "-m", "adjoint", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and not done.stderr


def test_the_workflow_runs_the_commands_of_the_readme():
    """It has not run yet, and says so."""
    workflow = (ROOT / ".github" / "workflows" / "systems.yml").read_text()
    assert "NOT YET RUN" in workflow and all(
        f"{name}-latest" in workflow for name in ("ubuntu", "macos", "windows")
    )
    readme = (ROOT / "README.md").read_text()
    for pattern in (r"^    (python3 -m venv .*pytest.*)$", r"^    (py -m venv .*pytest.*)$"):
        assert len(re.findall(pattern, readme, re.M)) == 1
        assert pattern.replace("\\", "") in workflow.replace("\\", "")
