"""Hints for names and keywords of other libraries: messages, signatures, coverage."""

from __future__ import annotations

import abc
import importlib
import inspect
import pydoc
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import scipy.fft
import scipy.integrate
import scipy.interpolate
import scipy.linalg
import scipy.optimize
import scipy.special
import scipy.stats

import adjoint as ad
from adjoint import hints

PUBLIC = ("", ".nn", ".nn.functional", ".nn.init", ".nn.utils.parametrizations", ".optim", ".optim.schedules")
PUBLIC = (*PUBLIC, ".linalg", ".fft", ".special", ".train", ".random")


def public_functions() -> dict[str, Any]:
    """Every public function, constructor and method, by its path."""
    found: dict[str, Any] = {}
    for part in PUBLIC:
        module: Any = ad
        for name in part.split(".")[1:]:
            module = getattr(module, name)
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, FunctionType):
                found[f"ad{part}.{name}"] = value
            elif isinstance(value, type) and value.__module__.startswith("adjoint."):
                methods = {n: m for n, m in vars(value).items() if isinstance(m, FunctionType)}
                found |= {
                    f"ad{part}.{name}.{n}": m for n, m in methods.items() if n == "__init__" or n[0] != "_"
                }
    return found


FUNCTIONS = public_functions()


@pytest.mark.parametrize("path", FUNCTIONS)
def test_keywords_of_other_libraries_are_explained(path):
    """For every parameter with another name elsewhere, that name gets a hint."""
    function = FUNCTIONS[path]
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return  # forwards its keywords
    usual = [p for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    first = [None] * sum(p.kind is p.POSITIONAL_ONLY for p in parameters.values())
    if usual and usual[0].name == "self":
        first = [object.__new__(object)]
    for theirs, ours in hints.KEYWORDS.items():
        if ours in [p.name for p in usual] and theirs not in parameters:
            with pytest.raises(
                ad.errors.InputError, match=f"{theirs}= is called {ours}= in adjoint"
            ) as caught:
                function(*first, **{theirs: 1})
            assert str(caught.value).startswith((f"{function.__name__}: ", "object: "))  # of a class its name


def test_signatures_are_clean():
    """No signature takes keywords only to explain them, and functions without renamed ones are not wrapped."""
    for path, function in FUNCTIONS.items():
        for p in inspect.signature(function).parameters.values():
            assert p.annotation != "Never", path
    assert not hasattr(ad.exp, "__wrapped__") and not hasattr(ad.reshape, "__wrapped__")
    assert str(inspect.signature(ad.Tensor.ptp)).startswith("(x: ")
    assert FUNCTIONS["ad.sum"] is importlib.import_module("adjoint.ops.reduce").sum  # pickle finds it


def test_errors_of_the_function_itself_are_not_changed():
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'x'"):
        ad.softmax(axis=0)
    with pytest.raises(ad.errors.InputError, match=r"softmax has no argument dims2=\.  It accepts x, axis"):
        ad.softmax(ad.ones(2), dims2=0)


class Plain(ad.nn.Module):
    """Layers in a plain list, which the module does not find."""

    def __init__(self) -> None:
        self.layers = [ad.nn.Linear(2, 2)]


W = ad.tensor([1.0, 2.0], requires_grad=True)
ADAM = ad.optim.Adam([ad.tensor([1.0], requires_grad=True)]).state_dict()
MESSAGES = {
    "JAX's keys": (
        lambda: ad.random.PRNGKey(0),
        "module 'adjoint.random' has no attribute 'PRNGKey'.  Use rng = ad.random.default_rng(seed), and pass "
        "it on: there is no global generator.",
    ),
    "NumPy's generator": (
        lambda: ad.random.normal(3),
        "module 'adjoint.random' has no attribute 'normal'.  Use ad.random.default_rng(seed).normal: there is "
        "no global generator.",
    ),
    "JAX's updates": (
        lambda: W.at[0].multiply(2.0),
        "x.at[key] has no 'multiply'.  Use x.at[key].mul(value).",
    ),
    "PyTorch's grad": (
        lambda: ad.grad((W * W).sum(), W),
        "grad: expected a function, but got Tensor.\n"
        "  For the gradients of a tensor use ad.gradients(loss, [w]).",
    ),
    "PyTorch's names in grad": (
        lambda: ad.grad(outputs=(W * W).sum(), inputs=W),
        "grad has no argument outputs=: for gradients of tensors, call ad.gradients(loss, [w]).",
    ),
    "JAX's loops": (
        lambda: ad.scan(lambda c, x: (c, x), 0.0, np.ones(3), unroll=2),
        "scan has no argument unroll=: ad.compile compiles the steps to one loop, and eager code runs each step.",
    ),
    "the batches of JAX's map": (
        lambda: ad.map(lambda x: x, np.ones(3), batch_size=2),
        "map has no argument batch_size=.  It accepts f, xs, checkpoint.",
    ),
    "the operand of JAX's cond": (
        lambda: ad.cond(True, lambda x: x, lambda x: -x, operand=2.0),
        "cond has no argument operand=: pass the operands after the two functions, without a keyword.",
    ),
    "JAX's static arguments": (
        lambda: ad.compile(lambda x: x, static_argnums=1),
        "compile: static_argnums= is called static= in adjoint.",
    ),
    "PyTorch's dynamic shapes": (
        lambda: ad.compile(lambda x: x, dynamic=True),
        "compile has no argument dynamic=: leave it out, because lengths may vary: each has an exact program, which a thread "
        "builds while the function itself runs.",
    ),
    "PyTorch's name of the largest norm": (
        lambda: ad.clip_grad_norm([W], max=1.0),
        "clip_grad_norm: max= is called max_norm= in adjoint.",
    ),
    "PyTorch's mean of a normal distribution": (
        lambda: ad.random.default_rng(0).normal(mean=1.0),
        "normal: mean= is called loc= in adjoint.",
    ),
    "PyTorch's devices": (
        lambda: ad.tensor([1.0], device="cuda"),
        "tensor: tensors are made on \"cpu\", but got 'cuda'.\n"
        "  Compile the function that uses the tensor: ad.compile(step, device=), with a name of ad.devices().",
    ),
    "a collective operation of MPI": (
        lambda: ad.distributed.Group().all_reduce,
        "Group has no 'all_reduce'.  Use group.sum(array), which returns the sum.",
    ),
    "jax.lax": (
        lambda: ad.lax,
        "module 'adjoint' has no attribute 'lax'.  Use ad.scan, ad.fori_loop, ad.while_loop, ad.cond and ad.map.",
    ),
    "np.save": (
        lambda: np.save("never.npy", W.detach()),
        "np.save writes arrays, not tensors.\n  Pass x.numpy(), or use ad.save(path, tensors).",
    ),
    "a plain list of layers": (
        lambda: ad.optim.Adam(Plain()),
        "Adam: pass parameters, not a Plain: Adam(model.parameters()).\n"
        "  The module has no parameters: use nn.ModuleList for lists of layers.",
    ),
    "the parameters of a plain list of layers": (
        lambda: ad.optim.Adam(Plain().parameters()),
        "Adam: there are no parameters to optimise.\n"
        "  Modules and parameters in plain lists or dictionaries are not found: use nn.ModuleList, "
        "nn.ModuleDict or nn.ParameterList.",
    ),
    "the state of another optimiser": (
        lambda: ad.optim.SGD([ad.tensor([1.0], requires_grad=True)]).load_state_dict(ADAM),
        "SGD: this is the state of a different optimiser, Adam.\n"
        "  Create Adam to continue, or load only the model's state and use a new SGD.",
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_messages(case):
    act, message = MESSAGES[case]
    with pytest.raises(ad.errors.AdjointError) as caught:
        act()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("function", "ours"),
    [
        (scipy.special.logsumexp, "ad.logsumexp"),
        (scipy.special.softmax, "ad.softmax"),
        (scipy.special.log_softmax, "ad.log_softmax"),
        (scipy.linalg.inv, "ad.linalg.inv"),
        (scipy.fft.fft, "ad.fft.fft"),
    ],
)
def test_functions_of_scipy_that_convert_are_named(function, ours):
    with pytest.raises(ad.errors.LostHistoryError) as caught:
        function(ad.ones((2, 2), dtype=float).requires_grad_())
    assert str(caught.value).split("\n")[1] == f"  Use {ours}, which takes tensors."


A = ad.tensor(2.0, requires_grad=True)


@pytest.mark.parametrize(
    ("call", "ours"),
    [
        (lambda: scipy.optimize.minimize(lambda x: (x * x - A).sum(), [1.0]), "optimize.minimize"),
        (lambda: scipy.integrate.quad(lambda x: x * A, 0.0, 1.0), "integrate.quad"),
        (lambda: scipy.integrate.solve_ivp(lambda t, y: -y * A, (0.0, 1.0), [1.0]), "integrate.solve_ivp"),
        (lambda: scipy.interpolate.CubicSpline(np.arange(4.0), A * np.ones(4)), "interpolate.CubicSpline"),
    ],
)
def test_solvers_of_scipy_are_named(call, ours):
    """C code that calls a function may raise SystemError, whose cause is the error of the function."""
    with pytest.raises((ad.errors.LostHistoryError, SystemError)) as caught:
        call()
    error = caught.value.__cause__ if isinstance(caught.value, SystemError) else caught.value
    assert str(error).split("\n")[1] == f"  Use adjoint.scipy.{ours}, which takes tensors."


def test_brentq_of_scipy_does_not_accept_tensors():
    """SciPy's C code does not look whether the conversion of a result failed.

    Python then raises SystemError at the next call of the function, or SciPy itself a ValueError, because each
    failed conversion gives -1.
    """
    with pytest.raises((ad.errors.LostHistoryError, SystemError, ValueError)) as caught:
        scipy.optimize.brentq(lambda x: x * x - A, 0.0, 3.0)
    error = caught.value.__cause__ if isinstance(caught.value, SystemError) else caught.value
    found = str(error)
    assert "adjoint.scipy.optimize.brentq, which takes tensors." in found or "different signs" in found


PAIR = np.arange(2.0)


@pytest.mark.parametrize(
    ("call", "ours"),
    [
        (lambda x: scipy.stats.norm.logpdf(x), "stats.norm"),
        (lambda x: scipy.stats.gamma(x).cdf(1.0), "stats.gamma"),
        (lambda x: scipy.stats.poisson.logpmf(2, x), "stats.poisson"),
        (lambda x: scipy.stats.multivariate_normal.logpdf(PAIR, mean=x), "stats.multivariate_normal"),
        (lambda x: scipy.linalg.expm(ad.stack([x, x])), "linalg.expm"),
        (lambda x: scipy.integrate.solve_ivp(lambda t, y: -y * x, (0.0, 1.0), PAIR), "integrate.solve_ivp"),
        (lambda x: scipy.optimize.least_squares(lambda z: z - x, PAIR), "optimize.least_squares"),
    ],
)
def test_functions_of_scipy_are_named_inside_every_transform(call, ours):
    x = np.array([1.0, 2.0])
    for run in (ad.compile(call), lambda x: ad.vmap(call)(x[None]), lambda x: ad.grad(call)(x)):
        with pytest.raises((ad.errors.InputError, ad.errors.LostHistoryError)) as caught:
            run(x)
        assert str(caught.value).split("\n")[1] == f"  Use adjoint.scipy.{ours}, which takes tensors."


def test_the_generators_of_numpy_are_replaced_by_ad_random():
    for run in (ad.grad, ad.vmap, ad.compile):
        with pytest.raises((ad.errors.InputError, ad.errors.LostHistoryError), match=r"ad\.random"):
            run(lambda x: np.random.default_rng(0).normal(x))(np.ones(2))


@pytest.mark.parametrize(
    ("statement", "kind", "message"),
    [
        ("from adjoint.train import TensorDataset", ImportError, "cannot import name 'TensorDataset' from 'adjoint.train'.  Use ad.train.DataLoader((X, Y), batch_size)."),
        ("from adjoint import Variable", ImportError, "cannot import name 'Variable' from 'adjoint'.  Use ad.tensor(values, requires_grad=True)."),
        ("from adjoint.nn.functional import norm", ImportError, "cannot import name 'norm' from 'adjoint.nn.functional'.  Use ad.linalg.norm."),
        ("ad.train.TensorDataset", AttributeError, "module 'adjoint.train' has no attribute 'TensorDataset'.  Use ad.train.DataLoader((X, Y), batch_size)."),
        ("ad.zeros(3, 4)", TypeError, "zeros: the shape is one argument.  Write ad.zeros((3, 4))."),
        ("ad.ones(3, 4, dtype='float32')", TypeError, "ones: the shape is one argument.  Write ad.ones((3, 4))."),
        ("ad.full(3, 4, 0.5)", TypeError, "full: the shape is one argument.  Write ad.full((3, 4), 0.5)."),
        ("ad.load('x', weights_only=True)", TypeError, "load has no argument weights_only=: loading executes no code, so every file is safe to read."),
        ("ad.load('x', map_location='cpu')", TypeError, "load has no argument map_location=: all tensors are in CPU memory."),
        ("ad.optim.Adamax", AttributeError, "module 'adjoint.optim' has no attribute 'Adamax'.  Use ad.optim.Adam(params), or write a subclass of ad.optim.Optimizer."),
        ("ad.nn.Swish", AttributeError, "module 'adjoint.nn' has no attribute 'Swish'.  Use ad.nn.SiLU()."),
        ("ad.distributed.Group().all_reduce", AttributeError, "Group has no 'all_reduce'.  Use group.sum(array), which returns the sum."),
    ],
)  # fmt: skip
def test_hints_of_common_names(statement, kind, message):
    with pytest.raises(kind) as caught:
        exec(statement, {"ad": ad})
    assert str(caught.value) == message
    assert isinstance(caught.value, ad.errors.AdjointError)


def test_other_missing_names_are_ordinary_errors():
    with pytest.raises(ImportError, match="cannot import name 'quux'"):
        exec("from adjoint.nn import quux")
    assert not hasattr(ad.train, "TensorDataset") and getattr(ad.train, "Dataset", None) is None


def test_help_is_headed_by_the_name_of_the_method():
    x = ad.ones(3)
    assert pydoc.plain(pydoc.render_doc(x.reshape)).splitlines()[2].startswith("reshape(")
    assert pydoc.plain(pydoc.render_doc(x.backward)).splitlines()[2].startswith("backward(")


CLASSES = {
    "Tensor": ad.Tensor,
    "Module": ad.nn.Linear,
    "Optimizer": ad.optim.Adam,
    "GradScaler": ad.GradScaler,
}
CLASSES |= {"At": type(ad.ones(2).at), "Generator": ad.random.Generator, "Group": ad.distributed.Group}


@pytest.mark.parametrize("name", hints.ATTRIBUTES)
def test_help_and_dir_do_not_list_absent_names(name):
    cls = CLASSES[name]
    listed = pydoc.plain(pydoc.render_doc(cls)).splitlines()
    absent = {n for n in hints.ATTRIBUTES[name] if isinstance(inspect.getattr_static(cls, n), hints._Absent)}
    assert absent and absent.isdisjoint(dir(cls))
    assert not [line for line in listed if line.strip(" |") in absent]


def test_modules_may_also_inherit_from_abstract_classes():
    class Net(ad.nn.Module, abc.ABC):
        @abc.abstractmethod
        def forward(self, x): ...

    with pytest.raises(TypeError, match="abstract"):
        Net()
    with pytest.raises(ad.errors.AbsentNameError, match=r"Linear has no 'cuda'\.  Use ad.compile\(step"):
        ad.nn.Linear(1, 1).cuda()
