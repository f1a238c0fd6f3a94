"""The examples and the demo run, and reach what they say."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adjoint import nn, optim, train
from adjoint.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"

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


CASES = [
    ("least_squares", 60, 0.0, 3.0),  # in standard errors
    ("logistic", 6, -0.2322, -0.2321),  # the known estimate
    ("gaussian_process", 40, 0.15, 0.25),
    ("predator_prey", 4, 0.2, 0.25),
    ("kalman", 400, 0.4, 0.8),
    ("deconvolution", 64, 0.0, 0.4),
    ("trajectory", 60, 0.0, 0.1),
    ("swing_up", 40, 0.0, 1e-8),
    ("soap_film", 24, 0.0, 1e-10),
    ("hanging_chain", 5, 0.0, 1e-4),
    ("ensemble", 64, 2.0, 100.0),
    ("digits", 12, 0.97, 1.0),
    ("characters", 3, 0.0, 1.0),
    ("physics", 200, 0.0, 1e-2),
    ("policy", 30, 60.0, 200.0),
    ("hamiltonian", 240, 0.0, 1.0),
]


@pytest.mark.parametrize(("name", "size", "low", "high"), CASES)
def test_example(
    name: str, size: int, low: float, high: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert low <= run(name, monkeypatch, tmp_path, size) <= high


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_examples_are_short_and_say_how_to_run_them(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < 100 and text.startswith('"""')


def test_the_gallery_shows_examples_that_run() -> None:
    page = (EXAMPLES.parent / "docs" / "gallery.md").read_text()
    names = re.findall(r"\(gallery/(\w+)\.png\)", page)
    assert len(names) >= 12 and names == re.findall(r"\(\.\./examples/(\w+)\.py\)", page)
    assert set(names) == {case[0] for case in CASES} | {
        "digits_in_browser"
    }  # tests/inspect/test_browser_export.py
    pictures = {p.stem: p.stat().st_size for p in (EXAMPLES.parent / "docs" / "gallery").glob("*.png")}
    assert set(pictures) == set(names) and max(pictures.values()) < 60_000


def test_demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    report = capsys.readouterr().out
    assert "test accuracy" in report and "curve.png" in report and (tmp_path / "curve.png").exists()
    assert "report.html" in report and (tmp_path / "report.html").stat().st_size < 500_000
    assert main(["demo", "--json", "--epochs", "12"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["test_accuracy"] >= 0.97 and facts["gradient_check"] < 1e-6


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0 and "the gradients agree" in capsys.readouterr().out
    assert main(["ops", "tanh"]) == 0 and "tanh" in capsys.readouterr().out
    assert main(["ops", "--markdown", "tanh"]) == 0 and capsys.readouterr().out.startswith("| op |")
    out = subprocess.run([sys.executable, "-m", "adjoint"], capture_output=True, text=True, check=True).stdout
    assert "finite difference" in out


def test_mistakes_on_the_command_line_are_told_before_any_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for epochs in ("0", "-1", "many"):
        with pytest.raises(SystemExit) as done:
            main(["demo", "--epochs", epochs])
        assert done.value.code == 2
        assert capsys.readouterr().err.endswith(
            f"argument --epochs: must be a positive integer, not {epochs!r}.\n"
        )
    assert main(["ops", "foo", "tanh"]) == 2
    assert capsys.readouterr().err == "adjoint ops: no op has 'foo' in its name.  Similar names are floor.\n"
    assert main(["ops", "no such op"]) == 2
    assert (
        capsys.readouterr().err
        == "adjoint ops: no op has 'no such op' in its name.  adjoint ops lists all.\n"
    )
    pytest.importorskip("matplotlib")
    (tmp_path / "directory").mkdir()
    for path, text in (
        (
            "nowhere/curve.png",
            "the picture cannot be written to 'nowhere/curve.png': No such file or directory.",
        ),
        ("directory", "the picture cannot be written to 'directory': Is a directory."),
        ("curve.doc", "the file of --picture must end in one of "),
    ):
        assert main(["demo", "--picture", path]) == 1
        out, err = capsys.readouterr()
        assert not out and err.startswith(f"adjoint: demo: {text}")
    assert [p.name for p in tmp_path.iterdir()] == ["directory"]


def test_the_demo_prints_a_line_per_epoch_into_a_pipe_and_draws_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    figures = pytest.importorskip("matplotlib.figure")
    drawn: list[Any] = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda self, path, **_: drawn.append(self))
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--epochs", "3", "--picture", str(tmp_path / "curve.svg")]) == 0
    out, err = capsys.readouterr()
    lines, epochs = out.splitlines(), err.splitlines()
    assert [line.split()[:2] for line in epochs] == [["epoch", f"{i}/3"] for i in (1, 2, 3)]
    (figure,) = drawn
    accuracy = next(line for line in lines if line.startswith("test accuracy")).split()[-1]
    assert figure.get_suptitle() == f"Digits: test accuracy {accuracy} after epoch 3"
    curves = {
        (axes.get_ylabel(), line.get_label()): line for axes in figure.axes for line in axes.get_lines()
    }
    names = {
        "loss": ("loss", "training"), "val_loss": ("loss", "test"), "accuracy": ("accuracy", "training"),
        "val_accuracy": ("accuracy", "test"), "grad_norm": ("gradient norm", "training"),
    }  # fmt: skip
    assert set(curves) == set(names.values())
    for i, line in enumerate(epochs):
        words = line.split()
        for name, key in names.items():
            assert words[words.index(name) + 1] == f"{curves[key].get_ydata()[i]:.4g}"
            assert list(curves[key].get_xdata()) == [1, 2, 3]
    for axes in figure.axes:
        assert all(float(tick).is_integer() for tick in axes.get_xticks())


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
