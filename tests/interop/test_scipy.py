"""SciPy's optimisers with adjoint's derivatives: exact, counted, and with the structure restored."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.optimize

import adjoint as ad
from adjoint.errors import DTypeError, InputError, MissingExtraError, ShapeError, TransformError
from adjoint.interop.scipy import least_squares, minimize, root


def rosen(x: Any) -> Any:
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def test_rosenbrock_against_scipys_own_derivatives() -> None:
    rng = np.random.default_rng(0)
    for n in (2, 5, 20):
        x, p = rng.standard_normal(n), rng.standard_normal(n)
        np.testing.assert_allclose(rosen(ad.tensor(x)).item(), scipy.optimize.rosen(x))
        np.testing.assert_allclose(np.asarray(ad.grad(rosen)(x)), scipy.optimize.rosen_der(x), rtol=1e-10)
        np.testing.assert_allclose(np.asarray(ad.hessian(rosen)(x)), scipy.optimize.rosen_hess(x), rtol=1e-10)
        product = scipy.optimize.rosen_hess_prod(x, p)
        np.testing.assert_allclose(np.asarray(ad.hvp(rosen, x, p)), product, rtol=1e-9, atol=1e-9)


METHODS = [
    None, "CG", "BFGS", "Newton-CG", "L-BFGS-B", "TNC", "SLSQP", "dogleg", "trust-ncg", "trust-krylov",
    "trust-exact", "trust-constr",
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore:delta_grad == 0.0:UserWarning")
def test_every_method_with_gradients(method: str | None) -> None:
    start = np.array([-0.5, 1.5]) if method != "dogleg" else np.array([0.9, 0.8])
    result = minimize(rosen, start, method=method)
    assert isinstance(result, scipy.optimize.OptimizeResult)
    assert isinstance(result.x, ad.Tensor)
    np.testing.assert_allclose(result.x.numpy(), [1.0, 1.0], atol=2e-3)
    np.testing.assert_array_equal(result.x_flat, result.x.numpy())


@pytest.mark.parametrize("method", ["Nelder-Mead", "Powell", "COBYLA"])
def test_methods_without_gradients_warn_of_none(method: str) -> None:
    result = minimize(lambda x: ((x - 1) ** 2).sum(), np.zeros(2), method=method)
    np.testing.assert_allclose(result.x.numpy(), [1.0, 1.0], atol=1e-3)


def test_newton_cg_needs_no_finite_difference() -> None:
    calls = 0

    def counted(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return rosen(x)

    x0 = np.full(10, 1.3)
    result = minimize(counted, x0, method="Newton-CG", options={"xtol": 1e-8})
    np.testing.assert_allclose(result.x.numpy(), np.ones(10), atol=1e-6)
    assert result.nhev > 0 and calls == result.nfev + result.nhev  # one run each, no more
    exact = scipy.optimize.minimize(
        scipy.optimize.rosen, x0, jac=scipy.optimize.rosen_der, hessp=scipy.optimize.rosen_hess_prod,
        method="Newton-CG", options={"xtol": 1e-8},
    )  # fmt: skip
    assert (result.nit, result.nfev) == (exact.nit, exact.nfev)


def test_structures_and_dtypes_are_restored() -> None:
    x0 = {"w": np.zeros((2, 2), np.float32), "b": [1.0, np.zeros(3)], "name": "net"}

    def loss(p: Any, scale: float) -> Any:
        return scale * (((p["w"] - 1) ** 2).sum() + (p["b"][0] - 2) ** 2 + ((p["b"][1] - 3) ** 2).sum())

    for method in ("BFGS", "Newton-CG", "trust-exact"):
        result = minimize(loss, x0, args=(2.0,), method=method)
        assert result.x["name"] == "net" and result.x["w"].dtype == np.float32
        np.testing.assert_allclose(result.x["w"].numpy(), np.ones((2, 2)), rtol=1e-4)
        np.testing.assert_allclose(result.x["b"][0].item(), 2.0, rtol=1e-4)
        np.testing.assert_allclose(result.x_flat, [2] + [3] * 3 + [1] * 4, rtol=1e-4)


def test_scipy_gets_float64_that_it_may_write_to() -> None:
    from adjoint.interop.scipy import _Vectors

    given = _Vectors("minimize", rosen, np.ones(4, np.float32), ())
    x = np.linspace(0, 1, 4)
    value, gradient = given.value_and_gradient(x)
    assert type(value) is float
    for a in (gradient, given.hessian_product(x, x), given.hessian(x), given.start):
        assert type(a) is np.ndarray and a.dtype == np.float64
        assert a.flags.c_contiguous and a.flags.writeable and a.flags.owndata
        a[...] = 0


def test_nothing_is_recorded_for_captured_parameters() -> None:
    w = ad.tensor(2.0, requires_grad=True)
    result = minimize(lambda x: (x - w) ** 2, 0.0, method="Newton-CG")
    np.testing.assert_allclose(result.x.item(), 2.0)
    assert not result.x.requires_grad and w.grad is None


@pytest.mark.filterwarnings("ignore:delta_grad == 0.0:UserWarning")  # SciPy's, of a linear constraint
def test_constraints_bounds_and_callbacks() -> None:
    seen: list[Any] = []
    for method, accuracy in (("SLSQP", 1e-6), ("trust-constr", 1e-3)):  # the latter stays off the bounds
        result = minimize(
            lambda p: (p["a"] - 2) ** 2 + (p["b"] - 2) ** 2,
            {"a": 0.5, "b": 0.5},
            method=method,
            constraints={"type": "eq", "fun": lambda p, total: p["a"] + p["b"] - total, "args": (1.0,)},
            bounds=[(0, 0.25), (None, None)],
            callback=lambda p, *_: seen.append(p["a"].item()) and None,
        )
        np.testing.assert_allclose(result.x_flat, [0.25, 0.75], atol=accuracy)
    assert seen and all(isinstance(a, float) for a in seen)
    states: list[Any] = []
    minimize(
        rosen,
        np.zeros(2),
        method="BFGS",
        callback=lambda intermediate_result: states.append(intermediate_result.fun),
    )
    assert states


def test_root_and_least_squares() -> None:
    def equations(p: Any) -> Any:
        return {"u": p["x"] ** 2 + p["y"] ** 2 - 4.0, "v": p["x"] * p["y"] - 1.0}

    for method in ("hybr", "lm", "krylov"):
        result = root(equations, {"x": 2.0, "y": 0.3}, method=method)
        x, y = result.x["x"].item(), result.x["y"].item()
        np.testing.assert_allclose([x * x + y * y, x * y], [4.0, 1.0], atol=1e-5)
    exact = root(equations, {"x": 2.0, "y": 0.3})
    assert exact.njev > 0

    t = np.linspace(0, 2, 30)
    data = 2.5 * np.exp(-1.3 * t) + 0.5

    def residuals(p: Any, t: Any) -> Any:
        return p["a"] * ad.exp(-p["k"] * t) + p["c"] - data

    start = {"a": 1.0, "k": 1.0, "c": 0.0}
    for method in ("trf", "dogbox", "lm"):
        fit = least_squares(residuals, start, args=(t,), method=method)
        np.testing.assert_allclose(fit.x_flat, [2.5, 0.5, 1.3], rtol=1e-6)
        assert fit.jac.shape == (30, 3) and fit.x["k"].shape == ()
    reference = scipy.optimize.least_squares(
        lambda p: p[0] * np.exp(-p[2] * t) + p[1] - data, [1.0, 0.0, 1.0], jac="3-point"
    )
    np.testing.assert_allclose(least_squares(residuals, start, (t,)).jac, reference.jac, atol=1e-6)


def test_importing_loads_no_scipy_and_its_absence_is_explained() -> None:
    program = (
        "import sys; sys.modules['scipy'] = None; import adjoint as ad\n"
        "for f in ('minimize', 'root', 'least_squares'):\n"
        "    try: getattr(ad.interop.scipy, f)(lambda x: x, 1.0)\n"
        "    except ad.errors.MissingExtraError as e: print(e)\n"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[0] == (
        "ad.interop.scipy.minimize needs SciPy.  Install it with: pip install '.[scipy]' in a clone of adjoint, or pip install 'adjoint-ad[scipy]' once it is published."
    )
    assert len(out.splitlines()) == 3 and issubclass(MissingExtraError, ImportError)


MISTAKES: dict[str, tuple[type[Exception], Callable[[], Any], str]] = {
    "not a function": (InputError, lambda: minimize(3, 1.0), "minimize: expected a function"),  # type: ignore[arg-type]
    "several numbers": (ShapeError, lambda: minimize(lambda x: x * 2, np.ones(2)), r"returned shape \(2,\)"),
    "several numbers, no gradient": (
        ShapeError,
        lambda: minimize(lambda x: x * 2, np.ones(2), method="Powell"),
        r"minimize: <lambda> must return one number, but returned shape \(2,\)",
    ),
    "integers": (DTypeError, lambda: minimize(rosen, np.arange(3)), "minimize: x0 is int64"),
    "complex": (DTypeError, lambda: minimize(rosen, {"a": 1j}), r"minimize: x0\['a'\] is complex128"),
    "nothing": (TransformError, lambda: minimize(rosen, None), "minimize: x0 contains no tensors"),
    "jac": (InputError, lambda: minimize(rosen, 1.0, jac=True), "minimize: do not pass jac="),
    "args": (InputError, lambda: root(rosen, 1.0, args=3), "root: args must be a tuple"),  # type: ignore[arg-type]
    "residuals": (TransformError, lambda: least_squares(lambda x: 3.0, 1.0), "is a float, not a tensor"),
    "no residuals": (TransformError, lambda: least_squares(lambda x: None, 1.0), "returned no tensors"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name: str) -> None:
    error, mistake, match = MISTAKES[name]
    with pytest.raises(error, match=match):
        mistake()


def test_flat_arrays_have_the_order_of_ravel() -> None:
    target = {"w": np.array([1.0, 2.0]), "b": np.array(3.0)}
    wide = {"w": np.array([10.0, 20.0]), "b": np.array(30.0)}
    bounds = [(-v, v) for v in ad.tree.ravel(wide)[0]]

    def f(p: Any) -> Any:
        return ((p["w"] - target["w"] * 100) ** 2).sum() + (p["b"] - target["b"] * 100) ** 2

    start = {"w": np.zeros(2), "b": np.array(0.0)}
    result = minimize(f, start, method="L-BFGS-B", bounds=bounds)
    assert result.x["w"].tolist() == [10, 20] and result.x["b"].item() == 30
    assert result.x_flat.tolist() == ad.tree.ravel(result.x)[0].tolist() == [30, 10, 20]
    scale = {"w": np.array([2.0, 3.0]), "b": np.array(5.0)}
    for method in ("hybr", "broyden1", "diagbroyden", "df-sane"):
        g = lambda p: {k: scale[k] * (p[k] - target[k]) for k in p}
        found = root(g, start, method=method)
        np.testing.assert_allclose(found.x_flat, [3, 1, 2], rtol=1e-5)
        np.testing.assert_allclose(found.fun, np.zeros(3), atol=1e-4)
    jac = least_squares(lambda p: {k: scale[k] * (p[k] - target[k]) for k in p}, start).jac
    np.testing.assert_allclose(jac, np.diag([5.0, 2.0, 3.0]))
