"""Arrays in, arrays out: what the transforms return, and SciPy's solvers that take their functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize

import adjoint as ad

X = np.array([1.0, 2.0, 3.0])
V = np.array([1.0, 0.5, -1.0])


def cubes(x: Any) -> Any:
    return (x**3).sum()


def pulled(f: Any, x: Any, v: Any) -> Any:
    y, pull = ad.vjp(lambda x: f(x) * x, x)
    return y, pull(v)


def pushed(f: Any, x: Any, v: Any) -> Any:
    y, along = ad.linearize(lambda x: f(x) * x, x)
    return y, along(v)


# Each of a function of a vector that returns a number, at x, along v.
CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "grad": lambda f, x, v: ad.grad(f)(x),
    "value_and_grad": lambda f, x, v: ad.value_and_grad(f)(x),
    "vjp": pulled,
    "jvp": lambda f, x, v: ad.jvp(f, (x,), (v,)),
    "linearize": pushed,
    "jacobian": lambda f, x, v: ad.jacobian(lambda x: f(x) * x)(x),
    "jacrev": lambda f, x, v: ad.jacrev(lambda x: f(x) * x)(x),
    "jacfwd": lambda f, x, v: ad.jacfwd(lambda x: f(x) * x)(x),
    "hessian": lambda f, x, v: ad.hessian(f)(x),
    "hvp": lambda f, x, v: ad.hvp(f, x, v),
    "vmap": lambda f, x, v: ad.vmap(lambda e: f(e * v))(x),
}


def leaves(result: Any) -> list[Any]:
    return ad.tree.leaves(result)


def is_numpy(a: Any) -> bool:
    return type(a) is np.ndarray and a.ndim > 0 if np.ndim(a) else isinstance(a, np.generic)


@pytest.mark.parametrize("name", CALLS)
def test_arrays_give_arrays_of_the_values_that_tensors_give(name: str) -> None:
    found = leaves(CALLS[name](cubes, X, V))
    expected = leaves(CALLS[name](cubes, ad.tensor(X), ad.tensor(V)))
    assert all(map(is_numpy, found))
    assert all(type(t) is ad.Tensor for t in expected)
    for a, t in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, t)
        assert a.dtype == t.dtype and a.shape == t.shape


compiled = ad.compile(cubes)
custom = ad.custom_vjp(cubes)
custom.defvjp(lambda x: (cubes(x), x), lambda x, g: (3 * g * x * x,))
CALLED: dict[str, Callable[[Any], Any]] = {
    f"{how} of a {what} function": lambda x, outer=outer, f=f: outer(f, x)
    for what, f in {"plain": cubes, "compiled": compiled, "custom": custom}.items()
    for how, outer in {
        "a call": lambda f, x: f(x),
        "a checkpoint": ad.checkpoint,
        "a value": lambda f, x: ad.value_and_grad(f)(x)[0],
        "a pull": lambda f, x: ad.vjp(f, x)[1](1.0)[0].sum(),
        "a push": lambda f, x: ad.linearize(f, x)[1](V),
        "a root": lambda f, x: ad.root(lambda y: y - f(x), 0.0),
    }.items()
}


@pytest.mark.parametrize("kind", CALLED)
def test_results_of_nested_calls_have_no_history(kind: str) -> None:
    for name, call in CALLS.items():
        assert all(map(is_numpy, leaves(call(CALLED[kind], X, V)))), name
        assert not any(t.requires_grad for t in leaves(call(CALLED[kind], ad.tensor(X), ad.tensor(V)))), name


@pytest.mark.parametrize("name", [n for n in CALLS if n != "vmap"])
def test_numbers_give_numpy_scalars(name: str) -> None:
    found = leaves(CALLS[name](lambda x: x**3, 2.0, 1.0))
    assert all(type(a) is np.float64 for a in found)
    found = leaves(CALLS[name](lambda x: x**3, np.float32(2.0), np.float32(1.0)))
    assert all(type(a) is np.float32 for a in found)


@pytest.mark.parametrize("name", ["vjp", "jvp", "linearize", "hvp"])
def test_a_tensor_as_direction_gives_tensors(name: str) -> None:
    assert type(leaves(CALLS[name](cubes, X, ad.tensor(V)))[-1]) is ad.Tensor


@pytest.mark.parametrize("name", CALLS)
def test_captured_tensors_that_require_grad_give_tensors(name: str) -> None:
    w = ad.tensor(2.0, requires_grad=True)
    scaled = lambda x: cubes(x) * w
    found = leaves(CALLS[name](scaled, X, V))
    assert all(type(t) is ad.Tensor and t.requires_grad for t in found)
    frozen = leaves(CALLS[name](lambda x: cubes(x) * w.detach(), X, V))
    assert all(map(is_numpy, frozen))
    with ad.no_grad():
        assert all(map(is_numpy, leaves(CALLS[name](scaled, X, V))))


def test_the_type_does_not_depend_on_whether_a_derivative_is_constant() -> None:
    w = ad.tensor(X, requires_grad=True)
    assert type(ad.grad(lambda x: (w + x).sum())(X)) is ad.Tensor
    assert type(ad.jacobian(lambda x: w + x)(X)) is ad.Tensor


@pytest.mark.parametrize("outer", ["grad", "jvp", "vmap"])
@pytest.mark.parametrize("name", CALLS)
def test_inside_another_transform_results_are_tensors(name: str, outer: str) -> None:
    seen = []

    def f(x: Any) -> Any:
        seen.extend(leaves(CALLS[name](cubes, X, V)))
        seen.extend(leaves(CALLS[name](cubes, X * x, V)))
        return x * x

    {"grad": ad.grad(f), "jvp": lambda x: ad.jvp(f, (x,), (1.0,)), "vmap": lambda x: ad.vmap(f)(X)}[outer](
        2.0
    )
    assert seen and all(isinstance(t, ad.Tensor) for t in seen)


def test_a_tape_that_watches_a_captured_constant_gives_tensors() -> None:
    c = ad.tensor(2.0)
    with ad.Tape() as tape:
        tape.watch(c)
        g = ad.grad(lambda x: x * x * c)(3.0)
    assert tape.gradients(g)[c].item() == 6.0
    with ad.Tape():
        assert type(ad.grad(lambda x: x * x)(3.0)) is np.float64


@dataclasses.dataclass
class Line:
    slope: Any
    offset: Any


def test_trees() -> None:
    g = ad.grad(lambda p, x: (p["w"] * x).sum() + p["b"][0])({"w": X, "b": [1.0]}, V)
    assert type(g["w"]) is np.ndarray and type(g["b"][0]) is np.float64
    line = ad.grad(lambda p: (p.slope * X + p.offset).sum())(Line(2.0, X))
    assert type(line) is Line and type(line.slope) is np.float64 and type(line.offset) is np.ndarray
    for given in ({"w": ad.tensor(X), "b": 1.0}, {"w": X, "b": ad.tensor(1.0)}):
        mixed = ad.grad(lambda p: (p["w"] * p["b"]).sum())(given)
        assert all(type(t) is ad.Tensor for t in leaves(mixed))


def test_arguments_that_are_not_differentiated_count() -> None:
    f = lambda x, y=1.0: (x * y).sum()
    assert type(ad.grad(f)(X, ad.tensor(2.0))) is ad.Tensor
    assert type(ad.grad(f)(X, y=ad.tensor(2.0))) is ad.Tensor
    assert type(ad.grad(f)(X, y=2.0)) is np.ndarray
    assert type(ad.vmap(f)(X, y=ad.tensor(2.0))) is ad.Tensor


def test_modules_give_tensors() -> None:
    net = ad.nn.Linear(3, 1)
    g = ad.grad(lambda m, x: m(x).sum())(net, X.astype(np.float32))
    assert all(type(t) is ad.Tensor for t in leaves(g))


def test_aux() -> None:
    w = ad.tensor(2.0, requires_grad=True)
    f = lambda x: (cubes(x), {"twice": 2 * x, "note": "n", "data": V})
    g, aux = ad.grad(f, has_aux=True)(X)
    assert type(g) is type(aux["twice"]) is np.ndarray and aux["note"] == "n" and aux["data"] is V
    (value, aux), g = ad.value_and_grad(f, has_aux=True)(X)
    assert type(value) is np.float64 and type(aux["twice"]) is np.ndarray
    y, _, aux = ad.vjp(f, X, has_aux=True)
    assert type(y) is np.float64 and type(aux["twice"]) is np.ndarray
    g, aux = ad.grad(lambda x: (cubes(x), w * x), has_aux=True)(X)
    assert type(g) is type(aux) is ad.Tensor and aux.requires_grad


def test_gradients_of_sparse_lookups() -> None:
    f = lambda p: (ad.nn.functional.embedding([1, 3], p[0], sparse=True) * p[1]).sum()
    table, factor = ad.grad(f)((np.ones((5, 2)), 2.0))
    assert type(table) is np.ndarray and type(factor) is np.float64
    np.testing.assert_array_equal(table[:, 0], [0, 2, 0, 2, 0])


def test_implicit_functions_take_arrays_as_results() -> None:
    assert ad.fixed_point(lambda x: ad.grad(lambda t: t * t)(2.0), 1.0).item() == 4.0


# Memory --------------------------------------------------------------------------------------------

c = ad.tensor(X)
SHARING: dict[str, Callable[[Any, Any], Any]] = {
    "two gradients that are one": lambda x, v: ad.grad(lambda a, b: ((a + b) * V).sum(), (0, 1))(x, v),
    "a gradient that is captured": lambda x, v: ad.vjp(lambda x: x * c, x)[1](v),
    "pulled through the identity": lambda x, v: ad.vjp(lambda x: (x, x), x)[1]((v, v)),
    "pushed through the identity": lambda x, v: ad.jvp(lambda x: (x, x), (x,), (v,)),
    "linear in the identity": lambda x, v: [*(line := ad.linearize(lambda x: x, x))[:1], line[1](v)],
    "a result that is captured": lambda x, v: ad.vjp(lambda x: (x, c), x)[0],
    "aux": lambda x, v: ad.grad(lambda x: ((x * x).sum(), [x, x, c, c]), has_aux=True)(x),
    "views": lambda x, v: ad.grad(lambda x: ((x * x).sum(), [x[::-1], x[1:], x.T]), has_aux=True)(x),
    "mapped": lambda x, v: ad.vmap(lambda a, b: (a, b, c, 1.0), (0, None), (0, None, None, 0))(x, v),
    "broadcast": lambda x, v: ad.vmap(lambda a: (c, c), out_axes=(0, 1))(x),
    "chunks": lambda x, v: ad.vmap(lambda a: (a, c), out_axes=(0, None), chunk_size=2)(x),
    "jacobian of the identity": lambda x, v: ad.jacobian(lambda a, b: (a + b, a - b), (0, 1))(x, v),
}


@pytest.mark.parametrize("name", SHARING)
def test_results_share_no_memory_and_can_be_written(name: str) -> None:
    x, v = X.copy(), V.copy()
    found = [a for a in leaves(SHARING[name](x, v)) if np.ndim(a)]
    assert found
    for i, a in enumerate(found):
        assert type(a) is np.ndarray
        for other in (x, v, V, c.numpy(), *found[:i]):
            assert not np.shares_memory(a, other)
        a[...] = 7.0  # raises where it is read-only


def test_a_write_into_a_result_does_not_change_later_derivatives() -> None:
    y, pull = ad.vjp(ad.exp, X)
    y[:] = 0.0
    np.testing.assert_array_equal(pull(V)[0], np.exp(X) * V)
    y, along = ad.linearize(ad.exp, X)
    y[:] = 0.0
    first = along(V)
    first[:] = 0.0
    np.testing.assert_array_equal(along(V), np.exp(X) * V)


def test_vmap_copies_an_array_that_the_function_returns() -> None:
    data = X.copy()
    t = ad.vmap(lambda a: (a, data), out_axes=(0, None))(ad.tensor(X))[1]
    data[:] = 0.0
    np.testing.assert_array_equal(t, X)


# SciPy ---------------------------------------------------------------------------------------------

START = np.array([-1.2, 1.0, 0.5])
POINTS = np.linspace(0.0, 4.0, 20)
WRITTEN_ON = {"numpy": np, "adjoint": ad}


def rosenbrock(xp: Any) -> Callable[[Any], Any]:
    return lambda x: xp.sum(100 * xp.square(x[1:] - x[:-1] ** 2) + xp.square(1 - x[:-1]))


def residuals(xp: Any) -> Callable[[Any], Any]:
    return lambda x: xp.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]])


def oscillator(xp: Any) -> Callable[[Any, Any], Any]:
    return lambda t, y: xp.stack([y[1], (1 - y[0] ** 2) * y[1] - y[0]])


@pytest.mark.parametrize("xp", WRITTEN_ON.values(), ids=WRITTEN_ON)
def test_scipy_minimize(xp: Any) -> None:
    f = rosenbrock(xp)
    found = scipy.optimize.minimize(ad.value_and_grad(f), START, jac=True, method="L-BFGS-B")
    assert found.success
    np.testing.assert_allclose(found.x, 1.0, atol=1e-4)
    near = np.array([0.5, 1.0, 1.5])
    on_plane = {"type": "eq", "fun": lambda x: x.sum() - 3, "jac": ad.grad(lambda x: x.sum())}
    found = scipy.optimize.minimize(
        ad.value_and_grad(f), near, jac=True, method="SLSQP", constraints=[on_plane], options={"ftol": 1e-12}
    )
    assert found.success
    np.testing.assert_allclose(found.x, 1.0, atol=1e-4)
    found = scipy.optimize.minimize(
        ad.value_and_grad(f), START, jac=True, method="Newton-CG", hessp=lambda x, p: ad.hvp(f, x, p)
    )
    assert found.success
    np.testing.assert_allclose(found.x, 1.0, atol=1e-4)


@pytest.mark.parametrize("xp", WRITTEN_ON.values(), ids=WRITTEN_ON)
def test_scipy_least_squares_and_root(xp: Any) -> None:
    f = residuals(xp)
    found = scipy.optimize.least_squares(f, START[:2], jac=ad.jacobian(f))
    np.testing.assert_allclose(found.x, 1.0, atol=1e-8)
    found = scipy.optimize.root(f, START[:2], jac=ad.jacobian(f))
    assert found.success
    np.testing.assert_allclose(found.x, 1.0, atol=1e-8)


@pytest.mark.parametrize("xp", WRITTEN_ON.values(), ids=WRITTEN_ON)
def test_scipy_solve_ivp(xp: Any) -> None:
    f = oscillator(xp)
    how = {"method": "Radau", "rtol": 1e-8, "atol": 1e-8}
    found = scipy.integrate.solve_ivp(f, (0, 2), np.array([2.0, 0.0]), jac=ad.jacobian(f, argnums=1), **how)
    expected = scipy.integrate.solve_ivp(oscillator(np), (0, 2), np.array([2.0, 0.0]), **how)
    assert found.success
    np.testing.assert_allclose(found.y[:, -1], expected.y[:, -1], rtol=1e-6)


@pytest.mark.parametrize("xp", WRITTEN_ON.values(), ids=WRITTEN_ON)
def test_scipy_curve_fit(xp: Any) -> None:
    model = lambda x, a, b: a * xp.exp(-b * x)

    def jac(x: Any, a: Any, b: Any) -> Any:
        return np.stack(ad.jacobian(model, argnums=(1, 2))(x, a, b), axis=1)

    found, _ = scipy.optimize.curve_fit(model, POINTS, 2.5 * np.exp(-1.3 * POINTS), p0=[1.0, 1.0], jac=jac)
    np.testing.assert_allclose(found, [2.5, 1.3], rtol=1e-6)
