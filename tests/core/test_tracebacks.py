"""Tracebacks of errors that the user caused show the user's lines, and no frames of adjoint."""

from __future__ import annotations

import functools
import inspect
import os
import subprocess
import sys
import traceback
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest

import adjoint as ad
import adjoint.numpy as anp
from adjoint import hints, nn, optim, sklearn, tracebacks, train
from adjoint.interop import onnx
from adjoint.interop import scipy as interop
from adjoint.scipy import integrate, interpolate, linalg, optimize, sparse, stats
from adjoint.transforms import reverse

X = ad.ones((2, 3), requires_grad=True)


def wrong(x):
    return x @ ad.ones((9, 9))


def divides(x):
    return x.sum() * (1 / 0)


def trains():
    model = nn.Linear(3, 4)
    trainer = train.Trainer(model, nn.functional.mse_loss, optim.Adam(model.parameters()), progress=False)
    trainer.fit(train.DataLoader((np.ones((4, 2), "f4"), np.ones((4, 1), "f4")), 2), epochs=1)


def twice():
    step = ad.compile(lambda x: x @ ad.ones((3, 3)), backend="replay")
    step(ad.ones(3))
    step(ad.ones(3))
    step(ad.ones(4))  # the generated function does not fit, and the function is traced again


def anomaly():
    with ad.detect_anomaly():
        ad.log(X - 2.0)


def assigns():
    X[0] = 1.0


def adds():
    x = ad.ones(3)
    x += ad.ones(4)


def solution():
    return integrate.solve_ivp(lambda t, y: -y, (0, 1), X[0], dense_output=True)


def in_python():
    loss = (X * X).sum()
    loss.backward()
    loss.backward()


# What a user calls, and the functions of the user that follow in the traceback
CALLS = {
    "operator": (lambda: X + ad.ones((4, 5)), []),
    "matmul": (lambda: X @ X, []),
    "lists": (lambda: ad.add([1.0, 2.0], [1.0, 2.0, 3.0]), []),
    "three arguments": (lambda: ad.where(X > 0, X, ad.ones(7)), []),
    "parameters": (lambda: ad.softmax(X, axis=5), []),
    "anomaly": (anomaly, []),
    "einsum": (lambda: ad.einsum("ij,jk->ik", X, X), []),
    "linalg": (lambda: ad.linalg.solve(X, X), []),
    "loss": (lambda: nn.functional.cross_entropy(X, ad.tensor([1, 2, 3])), []),
    "method": (lambda: X.reshape(4, 5), []),
    "function": (lambda: ad.reshape(X, (4, 5)), []),
    "index": (lambda: X[5], []),
    "reduction": (lambda: ad.sum(X, axis=7), []),
    "keyword": (lambda: ad.sum(X, dim=1), []),
    "attribute": (lambda: X.cuda(), []),
    "name": (lambda: ad.Variable, []),
    "unknown name": (lambda: (ad.quux, nn.quux), []),
    "unknown name of a module": (lambda: nn.quux, []),
    "backward": (lambda: X.backward(), []),
    "released": (in_python, []),
    "gradients": (lambda: ad.gradients(X.sum(), [ad.ones(2)]), []),
    "store": (lambda: ad.backward(X), []),
    "module": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 2))(ad.ones((2, 3), dtype="f4")), []),
    "grad": (lambda: ad.grad(lambda x: x * 2)(np.ones(3)), []),
    "user's error": (lambda: ad.grad(divides)(np.ones(3)), ["divides"]),
    "value_and_grad": (lambda: ad.value_and_grad(wrong)(np.ones(3)), ["wrong"]),
    "vmap": (lambda: ad.vmap(wrong)(np.ones((3, 2))), ["wrong"]),
    "nested": (lambda: ad.vmap(ad.grad(wrong))(np.ones((3, 2))), ["wrong"]),
    "jvp": (lambda: ad.jvp(wrong, (np.ones(3),), (np.ones(3),)), ["wrong"]),
    "vjp": (lambda: ad.vjp(ad.sin, np.ones(3))[1](np.ones(4)), []),
    "linearize": (lambda: ad.linearize(ad.sin, np.ones(3))[1](np.ones(4)), []),
    "jacobian": (lambda: ad.jacobian(wrong)(np.ones(3)), ["wrong"]),
    "checkpoint": (lambda: ad.checkpoint(wrong, X), ["wrong"]),
    "scan": (lambda: ad.scan(lambda c, x: (wrong(c), x), ad.ones(3), ad.ones(4)), ["<lambda>", "wrong"]),
    "custom": (lambda: ad.custom_vjp(wrong)(X), []),
    "compile": (lambda: ad.compile(wrong)(np.ones(3)), ["wrong"]),
    "compiled": (twice, ["<lambda>"]),
    "fit": (trains, []),
    "short function": (lambda: ad.swapaxes(X, 0, 7), []),
    "short method": (lambda: X.moveaxis(0, 7), []),
    "missing argument": (lambda: ad.clip(), []),
    "reflected operator": (lambda: [1.0, 2.0] - X, []),
    "assignment": (assigns, []),
    "augmented assignment": (adds, []),
    "condition": (lambda: bool(X), []),
    "number": (lambda: float(X), []),
    "length": (lambda: len(X.sum()), []),
    "array": (lambda: np.asarray(X), []),
    "new tensor": (lambda: ad.tensor("a"), []),
    "tree": (lambda: ad.tree.map(abs, [1], [1, 2]), []),
    "file": (lambda: ad.load("missing.safetensors"), []),
    "draw": (lambda: ad.random.default_rng(0).normal(size=-1), []),
    "NumPy's function": (lambda: np.sum(X, axis=7), []),
    "NumPy's ufunc": (lambda: np.add(X, np.ones(9)), []),
    "drop-in function": (lambda: anp.sum(X, axis=7), []),
    "drop-in ufunc": (lambda: anp.add(X, np.ones(9)), []),
    "drop-in of arrays": (lambda: anp.add(np.ones(3), np.ones(9)), []),
    "distribution": (lambda: stats.norm.pdf(X, ad.ones(7)), []),
    "warning": (lambda: nn.Linear(3, 1)(np.ones(3)), []),
    "NumPy's warning": (lambda: ad.log(ad.tensor(-1.0)), []),
    "SciPy's function": (lambda: linalg.solve(X, X), []),
    "SciPy's own error": (lambda: optimize.minimize(lambda x: x @ x, X[0], method="quux"), []),
    "frozen distribution": (lambda: stats.norm(X, 1.0).pdf(ad.ones(7)), []),
    "interpolation": (lambda: interpolate.CubicSpline(np.arange(5.0), ad.ones(7)), []),
    "dense solution": (lambda: solution().sol(ad.ones((2, 2))), []),
    "sparse array": (lambda: ad.jacobian(ad.sin, sparse=True)(X[0]).quux, []),
    "sparse derivative": (lambda: ad.jacobian(wrong, sparse=True)(np.ones(3)), ["wrong"]),
    "compiled sparse derivative": (lambda: ad.compile(ad.jacobian(wrong, sparse=True))(X), ["wrong"]),
    "pattern": (lambda: ad.sparsity.jacobian(wrong, np.ones(3)), ["wrong"]),
    "autograd": (lambda: ad.autograd.grad(wrong)(np.ones(3)), ["wrong"]),
    "estimator": (
        lambda: sklearn.Classifier(lambda *_: nn.Linear(3, 2)).fit(np.ones((4, 5)), [0, 1, 0, 1]),
        [],
    ),
    "export": (lambda: ad.export(wrong, np.ones(3), path="."), ["wrong"]),
    "parameter": (lambda: setattr(nn.Linear(3, 4), "weight", 3), []),
}
MODULES = [ad, ad.linalg, ad.special, ad.fft, ad.random, ad.tree, ad.inspect, ad.testing, ad.extend]
MODULES += [interop, onnx, ad.distributed, nn, nn.functional, nn.init, optim, train]
MODULES += [ad.sparsity, sklearn, sparse, interpolate, stats]


def hides(function: object) -> bool:
    if not isinstance(function, FunctionType) or not inspect.signature(function).parameters:
        return True
    if not function.__module__.startswith("adjoint."):  # a method of scikit-learn's estimators
        return True
    if function.__module__ in hints.OBSERVED:  # not wrapped, because ad.compile observes their code
        return True
    return "hide" in function.__code__.co_names


def test_all_public_functions_and_methods_hide_frames():
    shown = []
    for module in MODULES:
        public = [(f"{module.__name__}.{name}", getattr(module, name)) for name in module.__all__]
        shown += [path for path, value in public if not hides(value)]
        for path, cls in public:
            if (
                isinstance(cls, type)
                and cls.__module__.startswith("adjoint.")
                and not issubclass(cls, Exception)
            ):
                names = [name for name in dir(cls) if name[0] != "_" or name == "__call__"]
                members = {name: inspect.getattr_static(cls, name) for name in names}
                members.pop("forward", None)  # modules call it in __call__
                shown += [f"{path}.{name}" for name, member in members.items() if not hides(member)]
    assert shown == []


def names_of(error: BaseException) -> list[tuple[str, str]]:
    return [(f.f_globals["__name__"], f.f_code.co_name) for f, _ in traceback.walk_tb(error.__traceback__)]


@pytest.mark.parametrize("name", CALLS)
def test_only_lines_of_the_user_are_shown(name):
    call, expected = CALLS[name]
    with pytest.raises(Exception, match=r".") as caught:
        call()
    here = [function for module, function in names_of(caught.value) if module == __name__]
    assert not [module for module, _ in names_of(caught.value) if module.startswith("adjoint")]
    assert here[1:] == [call.__name__, *expected]
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def none():
    return 0.0


class Net(nn.Module):
    """Takes one argument."""

    def __init__(self):
        self.layer = nn.Linear(3, 1, rng=0)

    def forward(self, x):
        return self.layer(x)


class Called:
    """An object with a call, and a method, without arguments."""

    def __call__(self):
        return 0.0

    method = __call__


def fits(loss=nn.functional.mse_loss, **options):
    model, data = Net(), (np.ones((4, 3), "f4"), np.ones((4, 1), "f4"))
    collate = options.pop("collate", None)
    trainer = train.Trainer(model, loss, optim.SGD(model.parameters(), lr=0.1), progress=False, **options)
    trainer.fit(train.DataLoader(data, 2, collate=collate), epochs=1)


def hooks():
    y = X * 2
    y.register_hook(none)
    y.sum().backward()


ONE = np.ones(3)
# Calls of functions of the user with arguments that they do not take
MISFITS = {
    "grad": lambda: ad.grad(none)(ONE),
    "lambda": lambda: ad.grad(lambda x, y: x)(ONE),
    "object": lambda: ad.grad(Called())(ONE),
    "method": lambda: ad.grad(Called().method)(ONE),
    "partial": lambda: ad.grad(functools.partial(none))(ONE),
    "value_and_grad": lambda: ad.value_and_grad(none)(ONE),
    "vjp": lambda: ad.vjp(none, ONE),
    "jvp": lambda: ad.jvp(none, (ONE,), (ONE,)),
    "jacobian": lambda: ad.jacobian(none)(ONE),
    "hessian": lambda: ad.hessian(none)(ONE),
    "vmap": lambda: ad.vmap(none)(ONE),
    "compile": lambda: ad.compile(none)(ONE),
    "checkpoint": lambda: ad.checkpoint(none, X),
    "scan": lambda: ad.scan(none, 0.0, ONE),
    "fori_loop": lambda: ad.fori_loop(0, 3, none, 0.0),
    "root": lambda: ad.root(none, ONE, ONE),
    "tree": lambda: ad.tree.map(none, {"a": ONE}),
    "hook": hooks,
    "gradcheck": lambda: ad.testing.gradcheck(none, [ONE]),
    "module": lambda: Net()(ONE, ONE),
    "a layer": lambda: nn.Linear(3, 1)(ONE, ONE),
    "sequential": lambda: nn.Sequential(Net(), none)(np.ones(3, "f4")),
    "closure": lambda: optim.LBFGS(Net().parameters()).step(lambda x: x),
    "loss": lambda: fits(none),
    "compiled loss": lambda: fits(none, compile=True),
    "metric": lambda: fits(metrics={"none": none}),
    "schedule": lambda: fits(schedule=none),
    "collate": lambda: fits(collate=none),
    "solver": lambda: integrate.solve_ivp(none, (0.0, 1.0), ONE),
    "minimize": lambda: interop.minimize(none, ONE),
    "vectorize": lambda: anp.vectorize(none)(X),
}


@pytest.mark.parametrize("name", MISFITS)
def test_functions_that_do_not_take_their_arguments_are_the_users(name):
    with pytest.raises(TypeError, match=r"\(\) (takes|missing) ") as caught:
        MISFITS[name]()
    assert not [module for module, _ in names_of(caught.value) if module.startswith("adjoint")]


def test_a_function_of_adjoint_that_does_not_take_its_arguments_keeps_its_frames(monkeypatch):
    monkeypatch.setattr(reverse, "record_call", type(none)(none.__code__, {"__name__": "adjoint.broken"}))
    with pytest.raises(TypeError, match="takes 0 positional arguments") as caught:
        ad.grad(ad.sin)(1.0)
    assert names_of(caught.value)[-1] == ("adjoint.transforms.reverse", "_value_and_grad")


def test_an_error_in_adjoint_itself_keeps_its_frames(monkeypatch):
    def broken(*_):
        return {}["key"]

    broken_in_adjoint = type(broken)(broken.__code__, {"__name__": "adjoint.broken"})
    monkeypatch.setattr(reverse, "record_call", broken_in_adjoint)
    with pytest.raises(KeyError) as caught:
        ad.grad(ad.sin)(1.0)
    assert names_of(caught.value)[-2:] == [
        ("adjoint.transforms.reverse", "_value_and_grad"),
        ("adjoint.broken", "broken"),
    ]


def test_all_frames_can_be_shown(monkeypatch):
    monkeypatch.setattr(tracebacks, "_SHOWN", True)
    with pytest.raises(ad.errors.ShapeError) as caught:
        ad.vmap(wrong)(np.ones((3, 2)))
    assert ("adjoint.transforms.batch", "_call") in names_of(caught.value)


PROGRAM = """
import numpy as np
import adjoint as ad

def loss(w, x):
    return (w @ x).sum()

def test_training():
    ad.value_and_grad(loss)(np.ones((2, 3)), np.ones(4))
"""
LAST = "adjoint.errors.ShapeError: matmul: shapes (2, 3) and (4,) do not match"


def output(path: Path, *command: str, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "ADJOINT_TRACEBACK"} | variables
    environment |= {"PYTHONPATH": str(Path(ad.__file__).parents[1]), "IPYTHONDIR": str(path), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=path, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_a_program_shows_its_own_lines_and_the_last_line(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM + "test_training()\n")
    shown = output(tmp_path, "program.py")
    assert shown.count('  File "') == 3 and shown.count("program.py") == 3 and LAST in shown
    assert "_value_and_grad" in output(tmp_path, "program.py", ADJOINT_TRACEBACK="full")


def test_pytest_shows_the_lines_of_the_user(tmp_path):
    (tmp_path / "test_program.py").write_text(PROGRAM)
    shown = output(
        tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "test_program.py"
    )
    assert "return (w @ x).sum()" in shown and LAST in shown and "record_call" not in shown


def test_ipython_shows_the_lines_of_the_user(tmp_path):
    pytest.importorskip("IPython")
    (tmp_path / "program.py").write_text(PROGRAM + "test_training()\n")
    shown = output(tmp_path, "-m", "IPython", "--colors=NoColor", "--no-banner", "program.py")
    assert "return (w @ x).sum()" in shown and LAST.partition(".")[2].partition(".")[2] in shown
    assert "record_call" not in shown


def test_nothing_of_the_interpreter_changes():
    program = "import sys; hooks = sys.excepthook, sys.unraisablehook; import adjoint as ad, adjoint.nn\ntry: ad.ones(2) @ ad.ones(3)\nexcept ad.errors.ShapeError: print((sys.excepthook, sys.unraisablehook) == hooks)"
    assert output(Path.cwd(), "-c", program) == "True\n"
