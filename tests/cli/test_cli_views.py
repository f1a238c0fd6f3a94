"""``adjoint graph``, ``profile`` and ``report`` on functions of a user's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adjoint.cli.main import main

PROGRAM = """\
import numpy as np
import adjoint as ad
from adjoint import nn, optim, train


def loss(x, w):
    return (ad.tanh(x @ w) ** 2).sum()


def run():
    x = np.linspace(-1, 1, 16, dtype=np.float32)[:, None]
    model = nn.Linear(1, 1, rng=0)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    trainer = train.Trainer(model, nn.functional.mse_loss, optimizer, callbacks=ad.inspect.Recorder())
    trainer.fit(train.DataLoader((x, 2 * x), 8), 2)
    return trainer
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "program_to_view.py"
    path.write_text(PROGRAM)
    return str(path)


def test_graph(file, capsys, tmp_path):
    assert main(["graph", f"{file}:loss", "3x4", "4x2"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("%1 matmul(") and "%4 sum(%3)" in shown
    assert main(["graph", f"{file}:loss", "3x4", "4x2", "-o", str(tmp_path / "g.svg")]) == 0
    assert (tmp_path / "g.svg").read_text().lstrip().startswith("<svg")
    assert main(["graph", f"{file}:loss", "3x4", "4x2", "-o", str(tmp_path / "g.xyz")]) == 2


def test_profile(file, capsys, tmp_path):
    trace = tmp_path / "trace.json"
    assert (
        main(["profile", f"{file}:loss", "3x4", "4x2", "--json", "--repeat", "3", "--trace", str(trace)]) == 0
    )
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["matmul"]["calls"] == 3 and rows["matmul"]["backward"] > 0
    json.loads(trace.read_text())
    assert main(["profile", f"{file}:loss", "3x4", "4x2"]) == 0
    assert "kept for backward" in capsys.readouterr().out


def test_report(file, capsys, tmp_path):
    page = tmp_path / "report.html"
    assert main(["report", f"{file}:run", "-o", str(page)]) == 0
    assert "<html" in page.read_text()[:500]
    assert main(["report", f"{file}:loss", "-o", str(page)]) == 2  # it needs arguments
    file_of_none = tmp_path / "returns_none.py"
    file_of_none.write_text("def run(): return None\n")
    assert main(["report", f"{file_of_none}:run"]) == 2
    assert "must return a Trainer or a Recorder, but returned a NoneType" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["graph", "FILE:loss", "3x4", "4x2", "-o", "nowhere/g.svg"], "graph: the drawing"),
        (["profile", "FILE:loss", "3x4", "4x2", "--trace", "nowhere/t.json"], "profile: the trace"),
        (["report", "FILE:run", "-o", "nowhere/r.html"], "report: the page"),
    ],
)
def test_a_file_that_cannot_be_written(file, capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main([a.replace("FILE", file) for a in arguments]) == 1
    shown = capsys.readouterr().err
    assert f"{message} cannot be written to 'nowhere/" in shown and "No such file or directory" in shown
