"""``adjoint check`` and ``adjoint doctor``: what they print, and their exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import adjoint as ad
from adjoint.cli.main import main

PROGRAM = """\
import adjoint as ad


def good(x, w, scale):
    return scale * (ad.tanh(x @ w) ** 2).sum()


@ad.custom_vjp
def wrong_rule(x):
    return ad.sin(x)


wrong_rule.defvjp(lambda x: (ad.sin(x), x), lambda x, g: (g * ad.sin(x),))


def wrong(x):
    return wrong_rule(x).sum()


def fails(x):
    return x @ ad.ones((7, 2))


number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "program_to_check.py"
    path.write_text(PROGRAM)
    return str(path)


def test_a_right_function(file, capsys):
    assert main(["check", f"{file}:good", "3x4", "4x2", "2.5"]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith("derivatives of order 1 to 2 agree with finite differences.\n")
    assert (
        main(["check", f"{file}:good", "[[1.0, 2.0]]", "[[0.5], [1.5]]", "1.0", "--order", "1", "--json"])
        == 0
    )
    facts = json.loads(capsys.readouterr().out)
    assert facts["agree"] and facts["orders"] == 1
    assert facts["value"] == pytest.approx(float(ad.tanh(3.5)) ** 2)


def test_numbers_with_a_point_are_tensors_and_integers_are_not(tmp_path, capsys):
    path = tmp_path / "numbers_to_check.py"
    path.write_text("def f(x, n): return x.tanh() ** n\n")
    assert main(["check", f"{path}:f", "-2.5", "2"]) == 0
    assert main(["graph", f"{path}:f", "-2.5", "2"]) == 0
    assert "tanh(x ())" in capsys.readouterr().out


def test_a_module_is_checked_in_double_precision(tmp_path, capsys):
    path = tmp_path / "module_to_check.py"
    path.write_text("from adjoint import nn\nnet = nn.Linear(3, 2, rng=0)\n")
    assert main(["check", f"{path}:net", "4x3"]) == 0
    assert main(["graph", f"{path}:net", "4x3"]) == 0
    assert main(["profile", f"{path}:net", "4x3", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert rows[0]["name"] == "linear" and rows[0]["backward"] > 0


def test_a_wrong_rule(file, capsys):
    assert main(["check", f"{file}:wrong", "5x", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert not facts["agree"] and facts["orders"] == 0
    assert facts["problem"].startswith("the derivative of output 0 with respect to inputs[0] disagrees")


def test_a_mistake_in_the_file_shows_its_line(file, capsys):
    assert main(["check", f"{file}:fails", "3x4"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(
        f'adjoint: your program raised an exception:\n  File "{file}", line 21, in fails\n'
    )
    assert "adjoint/core" not in shown and "ShapeError" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "'nope' does not name a function.\n  Write file.py:function"),
        (["gone.py:f"], "cannot find the file 'gone.py'.  Check the path."),
        (["no_such_module:f"], "cannot find module 'no_such_module'"),
        (
            ["FILE:missing"],
            "has no function 'missing'.\n  The available functions are: fails, good, wrong, wrong_rule.",
        ),
        (["FILE:number"], "is not a function; its type is int."),
        (["FILE:wrong"], "takes the arguments (x): missing a required argument: 'x'."),
        (["FILE:wrong", "5x", "5x"], "takes the arguments (x): too many positional arguments."),
        (
            ["FILE:wrong", "[1, 2]"],
            "no argument is a float or an array of floats, so there is no derivative to check.\n",
        ),
        (
            ["FILE:wrong", "2"],
            "no argument is a float or an array of floats, so there is no derivative to check.\n",
        ),
        (
            ["FILE:wrong", "abc"],
            "the argument 'abc' is not understood.\n  Write a shape (3x4, or 5x for a vector)",
        ),
    ],
)
def test_mistakes_of_the_command_line(file, capsys, arguments, message):
    assert main(["check", *[a.replace("FILE", file) for a in arguments]]) == 2
    assert message in capsys.readouterr().err


def test_doctor(capsys):
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["adjoint"] == ad.__version__
    assert facts["gradients"] == "work" and facts["compiler"].startswith("works")
    assert "safetensors" in facts["extras"]["files"]
    assert main(["doctor"]) == 0
    assert "numpy" in capsys.readouterr().out
