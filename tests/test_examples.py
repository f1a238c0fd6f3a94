"""The examples and the demo run, and reach what they say."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adjoint import nn, optim, train
from adjoint.cli.main import main

EXAMPLES = Path(__file__).parents[1] / "examples"

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")


def run(name: str, monkeypatch: pytest.MonkeyPatch, directory: Path, *args: int) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(directory)
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result = module.main(*args)
    assert (directory / f"{name}.png").stat().st_size > 1000
    return result


@pytest.mark.parametrize(
    ("name", "size", "low", "high"),
    [
        ("digits", 12, 0.97, 1.0),
        ("characters", 3, 0.0, 1.0),
        ("physics", 200, 0.0, 1e-2),
        ("policy", 30, 60.0, 200.0),
        ("hamiltonian", 240, 0.0, 1.0),
    ],
)
def test_example(
    name: str, size: int, low: float, high: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert low <= run(name, monkeypatch, tmp_path, size) <= high


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_examples_are_short_and_say_how_to_run_them(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < 100 and text.startswith('"""')


def test_demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    report = capsys.readouterr().out
    assert "test accuracy" in report and "curve.png" in report and (tmp_path / "curve.png").exists()
    assert main(["demo", "--json", "--epochs", "12"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["test_accuracy"] >= 0.97 and facts["gradient_check"] < 1e-6


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0 and "the gradients agree" in capsys.readouterr().out
    assert main(["ops", "tanh"]) == 0 and "tanh" in capsys.readouterr().out
    assert main(["ops", "--markdown", "tanh"]) == 0 and capsys.readouterr().out.startswith("| op |")
    out = subprocess.run([sys.executable, "-m", "adjoint"], capture_output=True, text=True, check=True).stdout
    assert "finite difference" in out


def test_the_command_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["--version"])
    assert done.value.code == 0 and capsys.readouterr().out.startswith("adjoint ")


def test_digits_learn_the_same_with_any_accumulation() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    data = datasets.load_digits()
    x, y = (data.data[:320] / 16).astype(np.float32), data.target[:320]
    curves = []
    for pieces in (1, 2, 4, 8):
        model = nn.Sequential(nn.Linear(64, 32, rng=0), nn.ReLU(), nn.Linear(32, 10, rng=1))
        seen: list[float] = []
        trainer = train.Trainer(
            model, nn.CrossEntropyLoss(), optim.Adam(model.parameters(), lr=3e-3), accumulate=pieces, clip=1.0
        )
        for _ in range(3):
            for batch in train.DataLoader((x, y), 50, shuffle=True):  # the last of 20: pieces of 3 and fewer
                seen.append(trainer.train_step(batch)["loss"])
        curves.append(seen)
    for curve in curves[1:]:
        np.testing.assert_allclose(curve, curves[0], rtol=2e-5)
