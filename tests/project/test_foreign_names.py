"""Names of JAX, PyTorch, autograd and NumPy that adjoint lacks: each error names what to use instead."""

from __future__ import annotations

import importlib
import re

import numpy as np
import pytest

import adjoint as ad
from adjoint import foreign_names

TABLES = {"functions": foreign_names.FUNCTIONS, **foreign_names.PARTS, **foreign_names.ATTRIBUTES}
TABLES["keywords"] = foreign_names.ABSENT_KEYWORDS


@pytest.mark.parametrize("table", TABLES)
def test_names_in_hints_exist(table):
    """A hint leads to a name that adjoint or NumPy has."""
    for name, instead in TABLES[table].items():
        for path in re.findall(r"\b(?:ad|np|adjoint)\.[A-Za-z_.0-9]*\w", instead):
            found = {"ad": ad, "np": np, "adjoint": ad}[path.split(".")[0]]
            for part in path.split(".")[1:]:
                found = getattr(found, part)
        for method in re.findall(r"\brng\.(\w+)|default_rng\(seed\)\.(\w+)", instead):
            owner = np.random.default_rng() if "np.random" in instead else ad.random.default_rng(0)
            assert hasattr(owner, "".join(method)), (name, instead)


SPACES = {
    "ad": "switch associative_scan dynamic_slice dynamic_update_slice dot_general psum reduce_max top_k select_n conv "
    "conv2d layer_norm det inverse svd digamma lgamma igamma eq neg lerp addcmul masked_fill scatter_add clone t "
    "kthvalue hann_window view_as_real complex sparse_coo_tensor histogram ix_ ndarray dtype typecodes nanargmax "
    "hessian_vector_product make_vjp make_jvp primitive grad_and_aux Array make_jaxpr device_get pure_callback",
    "ad.nn.functional": "softsign hardswish softmin gumbel_softmax pdist sin swish identity upsample_nearest",
    "ad.linalg": "lu_factor lu_solve vander expm",
    "ad.special": "log_softmax exp2 expm1 log1p softmax",
    "ad.scipy": "fft cluster io constants",
    "ad.nn": "Swish Hardswish Softsign Threshold LogSigmoid ZeroPad2d CosineSimilarity DataParallel",
    "ad.optim": "Adamax RAdam Adadelta Muon lr_scheduler",
    "ad.extend": "vspace def_linear notrace_primitive",
    "ad.distributed": "init_process_group get_rank all_reduce DistributedDataParallel",
    "ad.random": "multivariate_normal binomial shuffle normal weibull standard_gamma",
}


@pytest.mark.parametrize("space", SPACES)
def test_absent_names_have_hints(space):
    module = ad
    for part in space.split(".")[1:]:
        module = getattr(module, part)
    for name in SPACES[space].split():
        with pytest.raises(ad.errors.AbsentNameError) as caught:
            getattr(module, name)
        expected = rf"module '{space.replace('ad', 'adjoint', 1)}' has no attribute '{name}'\.  Use .+\."
        assert re.fullmatch(expected, str(caught.value)), str(caught.value)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("numpy", "adjoint"),
        ("numpy.linalg", "adjoint.numpy.linalg"),
        ("jax", "adjoint"),
        ("jax.numpy", "adjoint.numpy"),
        ("jax.lax", "adjoint"),
        ("jax.nn", "adjoint.nn.functional"),
        ("jax.random", "adjoint.random"),
        ("torch", "adjoint"),
        ("torch.nn.functional", "adjoint.nn.functional"),
        ("autograd", "adjoint"),
        ("autograd.numpy", "adjoint.numpy"),
        *(
            (f"scipy.{part}", f"adjoint.scipy.{part}")
            for part in "special stats linalg integrate signal interpolate ndimage optimize sparse.linalg "
            "spatial.distance".split()
        ),
    ],
)
def test_every_public_name_is_there_or_absent_in_words(theirs, ours):
    module, found = pytest.importorskip(theirs), importlib.import_module(ours)
    missing = object()
    for name in dir(module):
        if not name.startswith("_") and getattr(found, name, missing) is missing:
            with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
                getattr(found, name)


def test_methods_of_generators():
    """Every method of NumPy's generator works or has a hint, and the hints that are expressions run."""
    rng = ad.random.default_rng(0)
    for name in dir(np.random.Generator):
        if not name.startswith("_") and not hasattr(rng, name):
            with pytest.raises(ad.errors.AbsentNameError, match=rf"Generator has no '{name}'\.  Use .+\."):
                getattr(rng, name)
    given = {
        "rng": rng, "ad": ad, "np": np, "n": 3, "m": 4, "p": 0.4, "a": 2.5, "shape": 2.0, "scale": 1.5, "x": ad.ones(4),
        "low": 0, "high": 5, "size": (20,), "mean": np.zeros(2), "cov": np.eye(2), "seed": 0, "length": 4,
    }  # fmt: skip
    for name, instead in foreign_names.ATTRIBUTES["Generator"].items():
        if ":" not in instead and "," not in instead.split("(")[0] and " or " not in instead:
            expression = instead.removesuffix(", a new tensor")
            values = {**given, "p": np.array([0.2, 0.8])} if name == "multinomial" else given
            assert eval(expression, {}, values) is not None, name


MEANINGS = {
    "addcdiv": lambda t, F, x, y: t.addcdiv(x, y, y + 2, value=0.5),
    "cartesian_prod": lambda t, F, x, y: t.cartesian_prod(x[0, 0, 0], y[0, 0, 0]),
    "celu": lambda t, F, x, y: t.celu(x, 0.5),
    "dist": lambda t, F, x, y: t.dist(x, y),
    "frac": lambda t, F, x, y: t.frac(x),
    "hann_window": lambda t, F, x, y: t.hann_window(6, dtype=t.float64),
    "hardshrink": lambda t, F, x, y: F.hardshrink(x, 0.25),
    "hardswish": lambda t, F, x, y: F.hardswish(x),
    "kthvalue": lambda t, F, x, y: t.kthvalue(x, 2)[0],
    "lerp": lambda t, F, x, y: t.lerp(x, y, 0.25),
    "lp_pool1d": lambda t, F, x, y: F.lp_pool1d(abs(x).reshape(-1, 6, 6), 3.0, 2),
    "lp_pool2d": lambda t, F, x, y: F.lp_pool2d(abs(x), 3.0, 2),
    "range": lambda t, F, x, y: t.arange(1.0, 6.5, 2.0),
    "softmin": lambda t, F, x, y: F.softmin(x, 1),
    "softshrink": lambda t, F, x, y: F.softshrink(x, 0.25),
    "std_mean": lambda t, F, x, y: t.std_mean(x),
    "tanhshrink": lambda t, F, x, y: F.tanhshrink(x),
    "threshold": lambda t, F, x, y: F.threshold(x, 0.25, 0.5),
    "var_mean": lambda t, F, x, y: t.var_mean(x),
}


@pytest.mark.parametrize("name", MEANINGS)
def test_hints_mean_what_pytorch_computes(name):
    torch = pytest.importorskip("torch")
    x, y = np.random.default_rng(0).normal(size=(2, 2, 3, 6, 6))
    expected = MEANINGS[name](torch, torch.nn.functional, torch.tensor(x), torch.tensor(y))
    instead = {**foreign_names.FUNCTIONS, **foreign_names.PARTS["adjoint.nn.functional"]}[name]
    if "pool" in name:
        x = abs(x)
    if name == "lp_pool1d":
        x = x.reshape(-1, 6, 6)
    elif name == "cartesian_prod":
        x, y = x[0, 0, 0], y[0, 0, 0]
    given = {
        "ad": ad, "x": ad.tensor(x), "y": ad.tensor(y), "z": ad.tensor(y) + 2, "alpha": 0.5, "n": 6, "limit": 0.25, "value": 0.5,
        "k": 2, "axis": -1 if name == "kthvalue" else 1, "weight": 0.25, "p": 3.0, "size": 2, "start": 1.0, "stop": 6.0, "step": 2.0,
    }  # fmt: skip
    pairs = zip(instead.split(" and "), expected if isinstance(expected, tuple) else [expected], strict=True)
    for expression, value in pairs:
        np.testing.assert_allclose(np.asarray(eval(expression, {}, given)), value.numpy(), rtol=1e-9)
