"""Libraries that take foreign arrays by the Array API: SciPy, scikit-learn, array_api_compat, einops, autoray."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import adjoint as ad

SUPPORT = Path(__file__).parents[1] / "support" / "array_api_calls.py"
X = np.array([[1.0, 2.0], [3.0, 5.0]])


def test_scipy_and_scikit_learn_give_the_same_numbers_and_gradients_or_raise():
    environment = os.environ | {"SCIPY_ARRAY_API": "1", "PYTHONPATH": str(Path(ad.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, SUPPORT], env=environment, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    wrong = {
        name: what for name, what in found.items() if {"WRONG", "SILENT", "DIFFERENT"} & set(what.split())
    }
    assert wrong == {}
    counts = Counter(what.split()[-1] for what in found.values())
    assert counts["right"] > 45, counts
    assert sum(what.startswith("refused") for what in found.values()) < 15, found


def test_array_api_compat_finds_the_namespace():
    compat = pytest.importorskip("array_api_compat")
    assert compat.array_namespace(ad.tensor(X), ad.ones(2)) is ad and compat.is_array_api_obj(ad.tensor(X))
    assert compat.size(ad.tensor(X)) == 4 and compat.device(ad.tensor(X)) == "cpu"


@pytest.mark.parametrize("compiled", [False, True])
def test_einops_by_its_array_api(compiled):
    einops = pytest.importorskip("einops.array_api")

    def f(x):
        y = einops.rearrange(x**2, "a b -> (b a)")
        return einops.reduce(y, "(b a) -> b", "max", a=2).sum() + einops.repeat(x, "a b -> a b c", c=2).sum()

    slope = ad.grad(f)
    np.testing.assert_allclose((ad.compile(slope) if compiled else slope)(X), [[2.0, 2.0], [8.0, 12.0]])


@pytest.mark.parametrize(
    "wrap", [ad.grad, lambda f: ad.compile(ad.grad(f)), lambda f: ad.grad(lambda x: ad.checkpoint(f, x))]
)
def test_einops_takes_tensors_after_an_import(wrap):
    einops = pytest.importorskip("einops")
    importlib.import_module("adjoint.interop.einops")

    def f(x):
        y = einops.rearrange([x**2, x], "c a b -> (b c) a")
        packed, shapes = einops.pack([y, y * 2], "* a")
        parts = einops.unpack(packed, shapes, "* a")
        total = sum(einops.reduce(p, "b a -> a", "max").sum() for p in parts)
        product = einops.einsum(x, einops.repeat(x, "a b -> (2 a) b"), "a b, c b -> a c")
        return total + einops.reduce(product, "a c -> ", "sum")

    def plain(x):
        y = np.stack([x**2, x]).transpose(2, 0, 1).reshape(4, 2)
        return 3 * y.max(0).sum() + 2 * (x.sum(0) ** 2).sum()

    assert f(ad.tensor(X)).item() == f(X) == plain(X)
    np.testing.assert_allclose(wrap(f)(X), ad.grad(plain)(X))
    assert ad.vmap(lambda x: einops.rearrange(x, "a b -> b a"))(np.ones((4, 2, 3))).shape == (4, 3, 2)
    assert isinstance(einops.rearrange(X, "a b -> b a"), np.ndarray)


def test_autoray_and_opt_einsum_by_their_names():
    autoray = pytest.importorskip("autoray")
    x = ad.tensor(X, requires_grad=True)
    assert autoray.infer_backend(x) == "adjoint"
    assert autoray.do("linalg.svd", x)[1].requires_grad and autoray.do("stack", [x, x]).shape == (2, 2, 2)
    assert np.array_equal(autoray.to_numpy(x.detach()), X)


def test_pytest_approx_and_signatures():
    x = ad.tensor(X, requires_grad=True)
    assert x == pytest.approx(X) and pytest.approx(X) == x and x[0, 0] == pytest.approx(1.0)
    assert x != pytest.approx(X + 1)

    def f(a, b=2, *c, d=3):
        return a

    assert inspect.getfullargspec(ad.compile(f)) == inspect.getfullargspec(f)
    for transformed in (ad.grad(f), ad.vmap(f), ad.jacobian(f)):
        assert inspect.signature(transformed) == inspect.signature(f)


def test_copy_takes_the_orders_of_numpy():
    x = ad.tensor(X, requires_grad=True)
    for order in "CFAK":
        assert x.copy(order).requires_grad and x.copy(order=order).numpy().flags.c_contiguous
    with pytest.raises(
        ad.errors.ArgumentError, match=r"^copy: order must be 'C', 'F', 'A' or 'K', not 'B'\.$"
    ):
        x.copy("B")
