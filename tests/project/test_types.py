"""The types that mypy and pyright infer in a user's script."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import adjoint as ad
from adjoint.core import methods

ROOT = Path(ad.__file__).parents[1]
CHECKERS = ["mypy"] + ["pyright"] * (importlib.util.find_spec("pyright") is not None)

ARRAY = "ndarray[Any, dtype[Any]]"
# An expression per line, and its type; at the end those that are errors
EXPRESSIONS = {
    "x": "Tensor",
    "ad.sin(x)": "Tensor",
    "ad.sin(x).sum()": "Tensor",
    "ad.add(x, 1.0)": "Tensor",
    "ad.where(x > 0, x, 0.0)": "Tensor",
    "ad.sum(x, axis=0)": "Tensor",
    "ad.sum([1.0, 2.0])": "Tensor",
    "ad.concat([x, x])": "Tensor",
    "ad.zeros(3)": "Tensor",
    "ad.special.erf(x)": "Tensor",
    "ad.linalg.inv(x)": "Tensor",
    "ad.fft.fft(x)": "Tensor",
    "ad.random.default_rng(0).normal(size=3)": "Tensor",
    "2.0 * x": "Tensor",
    "x @ x": "Tensor",
    "x[0]": "Tensor",
    "x.T": "Tensor",
    "x.max(axis=0)": "Tensor",
    "x.reshape(1, 2)": "Tensor",
    "x.at[0].set(3.0)": "Tensor",
    "x.at[0, ...].add(x)": "Tensor",
    "x.grad": "Tensor | None",
    "F.relu(x)": "Tensor",
    "F.gelu(x)": "Tensor",
    "F.linear(x, x)": "Tensor",
    "F.mse_loss(x, x)": "Tensor",
    "nn.Identity()(x)": "Tensor",
    "nn.Linear(2, 3)(x)": "Tensor",
    "nn.ReLU()(x)": "Tensor",
    "nn.MSELoss()(x, x)": "Tensor",
    "nn.LSTM(2, 3)(x)": "tuple[Tensor, tuple[Tensor, Tensor]]",
    "nn.Sequential(nn.Linear(2, 3), nn.ReLU())(x)": "Tensor",
    "Net()": "Net",
    "Net()(x)": "Tensor",
    "Net().parameters()": "list[Tensor]",
    "apply(x, [0, 1])": "Tensor",
    "apply(np.ones(3), None)": "Tensor",
    "later": "int",  # the lines after nn.Identity() are reachable
}
# Transforms keep the parameters of a function and say what they return
EXPRESSIONS |= {
    "ad.grad(loss)(x, 2)": "Tensor",
    "ad.grad(loss)(x, n=2, scale=0.5)": "Tensor",
    "ad.grad(loss, (0, 1))(x, 2)": "tuple[Any, ...]",
    "ad.grad(loss, argnums=1)(x, 2)": "Any",
    "ad.grad(weighted)({'w': x}, ones)": "dict[str, Tensor]",
    "ad.grad(pair, has_aux=True)(x)": "tuple[Tensor, str]",
    "ad.grad(ad.grad(loss))(x, 2)": "Tensor",
    "ad.grad(apply)(ones, None)": "Any",
    "ad.elementwise_grad(loss)(x, 2)": "Tensor",
    "ad.value_and_grad(loss)(x, 2)": "tuple[Tensor, Tensor]",
    "ad.value_and_grad(loss, (0,))(x, 2)": "tuple[Tensor, tuple[Any, ...]]",
    "ad.value_and_grad(pair, has_aux=True)(x)": "tuple[tuple[Tensor, str], Tensor]",
    "ad.value_and_grad(weighted)({'w': x}, ones)": "tuple[Tensor, dict[str, Tensor]]",
    "ad.vjp(loss, x, 2)[0]": "Tensor",
    "ad.vjp(loss, x, 2)[1](1.0)": "tuple[Any, ...]",
    "ad.vjp(pair, x, has_aux=True)[2]": "str",
    "ad.jvp(loss, (x, 2), (x, 0))": "tuple[Tensor, Tensor]",
    "ad.jvp(pair, (x,), (x,), has_aux=True)": "tuple[Tensor, Tensor, str]",
    "ad.linearize(loss, x)[1](x)": "Tensor",
    "ad.jacobian(loss)(x, 2)": "Tensor",
    "ad.jacobian(arrays)(ones)": ARRAY,
    "ad.jacobian(weighted)({'w': x}, ones)": "Any",
    "ad.jacrev(loss, chunk_size=2)(x, 2)": "Tensor",
    "ad.jacfwd(loss)(x, n=2)": "Tensor",
    "ad.hessian(loss)(x, 2)": "Tensor",
    "ad.hessian(energy)(ones)": ARRAY,
    "ad.hvp(energy, ones, ones)": "ndarray[tuple[int], dtype[float64]]",
    "ad.vmap(loss)(x, 2)": "Tensor",
    "ad.vmap(loss, in_axes=(0, None))(x, n=2)": "Tensor",
    "ad.checkpoint(loss, x, 2)": "Tensor",
    "ad.checkpoint(loss, x, n=2, debug=True)": "Tensor",
    "ad.checkpoint(nn.Linear(2, 2), x)": "Tensor",
    "ad.stop_gradient({'w': x})": "dict[str, Tensor]",
    "ad.compile(loss)(x, 2)": "Tensor",
    "ad.compile(nn.Linear(2, 2))(x)": "Tensor",
    "ad.compile(limit=2)(loss)(x, n=2)": "Tensor",
    "ad.compile(ad.value_and_grad(loss))(x, 2)": "tuple[Tensor, Tensor]",
    "step(x)": "float",
    "step.stats()": "dict[str, Any]",
    "Stepper().step(x)": "float",
}
# The drop-in namespaces: arrays for arrays, tensors for tensors
EXPRESSIONS |= {
    "anp.sin(ones)": ARRAY,
    "anp.sin(x)": "Tensor",
    "anp.sin(1.0)": "Any",
    "anp.add(ones, 1.0)": ARRAY,
    "anp.add(1.0, x)": "Tensor",
    "anp.add(ones, x)": "Tensor",
    "anp.maximum.accumulate(x)": "Tensor",
    "anp.sum(ones)": "Any",  # a number or an array, as NumPy's
    "anp.sum(x, axis=0)": "Tensor",
    "anp.mean([x, x])": "Tensor",
    "anp.array([1.0, 2.0])": ARRAY,
    "anp.array([x[0], 1.0])": "Tensor",
    "anp.concatenate([ones, ones])": ARRAY,
    "anp.concatenate((x, ones))": "Tensor",
    "anp.stack({'w': x}.values())": "Tensor",
    "anp.where(x > 0, x, 0.0)": "Tensor",
    "anp.where(ones > 0, ones, 0.0)": ARRAY,
    "anp.einsum('ij,j', x, ones)": "Tensor",
    "anp.reshape(ones, (1, 2))": ARRAY,
    "anp.clip(x, 0.0, None)": "Tensor",
    "anp.zeros(3).shape": "tuple[int]",
    "anp.ndim(x)": "int",
    "anp.pi": "float",
    "anp.linalg.solve(ones, ones)": ARRAY,
    "anp.linalg.solve(ones, x)": "Tensor",
    "anp.linalg.svd(x).S": "Tensor",
    "anp.linalg.svd(ones).S": ARRAY,
    "anp.fft.fft(x)": "Tensor",
    "special.gammaln(ones)": ARRAY,
    "special.gammaln(x)": "Tensor",
    "special.logsumexp(x, axis=0)": "Tensor",
    "linalg.expm(ones)": ARRAY,
    "linalg.expm(x)": "Tensor",
    "stats.norm.logpdf(x, 0.0, 1.0)": "Tensor",
    "stats.norm.logpdf(ones, 0.0, 1.0)": ARRAY,
    "stats.norm.logpdf(ones, x)": "Tensor",
}
ERRORS = ["ad.exq", "ad.nn.Lineer", "F.rellu", "ad.interop.torch", "ad.sum(x, dim=1)", "Net()(x, 1)", "x.exq"]
ERRORS += [
    "ad.grad(loss)(x)",
    "ad.grad(loss)(x, 'a')",
    "ad.value_and_grad(loss)(x, 1, 2.0, 3)",
    "ad.vmap(loss)(x)",
]
ERRORS += [
    "ad.jacobian(loss)(x, 'a')",
    "ad.checkpoint(loss, x)",
    "ad.compile(loss)(x, 'a')",
    "step()",
    "step(3)",
]
ERRORS += ["Stepper().step(x, x)", "ad.grad(3)", "ad.grad(pair, has_aux=True)(ones)"]
ERRORS += ["anp.sinn(x)", "anp.sin()", "anp.linalg.solve(x)", "anp.reshape(x, (2,), oder='C')"]
ERRORS += ["x + None", "ad.sum(x, axis=1.5)", "ad.mean(object())", "x.at[0].set(None)", "x[1.5]"]

SCRIPT = """
import numpy as np
import adjoint as ad
import adjoint.nn.functional as F
import adjoint.numpy as anp
from adjoint import nn
from adjoint.scipy import linalg, special, stats
from adjoint.typing import Array, ArrayLike, Axis

def apply(x: ArrayLike, axis: Axis) -> ad.Tensor:
    return ad.sum(x, axis)

class Net(nn.Module):
    def __init__(self) -> None:
        self.layers = nn.ModuleList([nn.Linear(2, 2)])

    def forward(self, x: ad.Tensor) -> ad.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

def loss(x: ad.Tensor, n: int, scale: float = 1.0) -> ad.Tensor:
    return (x ** n).sum() * scale

def pair(x: ad.Tensor) -> tuple[ad.Tensor, str]:
    return x.sum(), "aux"

def weighted(p: dict[str, ad.Tensor], x: Array) -> ad.Tensor:
    return (p["w"] * x).sum()

def arrays(x: Array) -> Array:
    return 2 * x

def energy(x: Array) -> float:
    return float(np.sum(x ** 2))

@ad.compile
def step(x: ad.Tensor) -> float:
    return float(x.sum().item())

class Stepper:
    @ad.compile
    def step(self, x: ad.Tensor) -> float:
        return float(x.sum().item())

x = ad.tensor([1.0, 2.0], requires_grad=True)
ones = np.ones(2)
ad.grad(lambda p, x: p["w"] * x ** 2)({"w": 2.0}, 3.0)
ad.jacobian(lambda p: p["w"])({"w": ones})
ad.checkpoint(lambda x: x.sum(), x)
nn.Identity()
later = int()
"""


def run(checker: str, script: Path) -> str:
    command = {
        "mypy": [
            *("-m", "mypy", "--config-file=", "--strict", "--follow-imports=silent", "--no-error-summary"),
            f"--cache-dir={ROOT / '.mypy_cache' / 'user'}",
        ],
        "pyright": ["-m", "pyright", f"--pythonpath={sys.executable}"],
    }[checker]
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command, script.name],
        env=environment, cwd=script.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.parametrize("checker", CHECKERS)
def test_types_in_the_script_of_a_user(checker, tmp_path):
    script = tmp_path / "script.py"
    lines = SCRIPT.split("\n")
    start = len(lines)
    lines += [f"reveal_type({e})" for e in EXPRESSIONS] + ERRORS
    script.write_text("\n".join(lines) + "\n")
    settings = f'{{"extraPaths": ["{ROOT}"], "reportUnusedExpression": false}}'
    (tmp_path / "pyrightconfig.json").write_text(settings)
    shown = run(checker, script)
    revealed, wrong = {}, set()
    for line in shown.split("\n"):
        found = re.search(r"script\.py:(\d+)(?::\d+)?(?: -|:) (note|information|error): ?(.*)", line)
        if found and found[2] == "error":
            wrong.add(int(found[1]) - start - 1)
        elif found and (kind := re.search(r'(?:Revealed type is|Type of ".*" is) "(.*)"$', found[3])):
            revealed[int(found[1]) - start - 1] = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", kind[1])
    assert {e: revealed.get(i) for i, e in enumerate(EXPRESSIONS)} == EXPRESSIONS, shown
    every = [*EXPRESSIONS, *ERRORS]
    assert [every[i] if i >= 0 else f"line {start + i + 1}" for i in sorted(wrong)] == ERRORS, shown


def test_the_declared_updates_are_those_of_the_class():
    declared = {name for name in vars(methods.Updates) if not name.startswith("_")}
    assert declared == {name for name in dir(ad.ones(2).at) if not name.startswith("_")}


STUBS = {str(p.relative_to(ROOT)): p for p in ROOT.glob("adjoint/*py/**/*.pyi")}


@pytest.mark.parametrize("name", STUBS)
def test_stubs_define_the_names_of_their_modules(name):
    text = STUBS[name].read_text()
    module = importlib.import_module(name.removesuffix(".pyi").removesuffix("/__init__").replace("/", "."))
    body = ast.parse(text).body
    defined = {
        a.asname or a.name
        for node in body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for a in node.names
    }
    defined |= {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    defined |= {node.target.id for node in body if isinstance(node, ast.AnnAssign)}
    if text.startswith(f"# Written by tools/stubs/generate.py with NumPy {np.__version__[:3]}\n"):
        assert set(module.__all__) <= defined, "run tools/stubs/generate.py"


def test_every_module_of_the_drop_in_namespaces_has_a_stub():
    assert {"adjoint/numpy/__init__.pyi", "adjoint/numpy/linalg.pyi", "adjoint/scipy/special.pyi"} <= set(
        STUBS
    )
    assert len(STUBS) == 15
