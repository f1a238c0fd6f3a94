"""Jacobians, Hessians and their products: values, structures, nesting, and the messages."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from messages import message_of
from scipy import optimize
from table import CASES, OP_NAMES, checked

import adjoint as ad
from adjoint.core.op import OPS
from adjoint.errors import ArgumentError, DTypeError, ShapeError, TransformError
from adjoint.testing import Case


def rosen(x: Any) -> Any:
    return (100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


RANDOM = np.random.default_rng(0)
POINT = RANDOM.standard_normal(7)


def test_rosenbrock_against_scipy() -> None:
    p = RANDOM.standard_normal(7)
    np.testing.assert_allclose(rosen(ad.tensor(POINT)).item(), optimize.rosen(POINT), rtol=1e-13)
    np.testing.assert_allclose(np.asarray(ad.grad(rosen)(POINT)), optimize.rosen_der(POINT), rtol=1e-12)
    np.testing.assert_allclose(np.asarray(ad.hessian(rosen)(POINT)), optimize.rosen_hess(POINT), rtol=1e-12)
    product = optimize.rosen_hess_prod(POINT, p)
    np.testing.assert_allclose(np.asarray(ad.hvp(rosen, POINT, p)), product, rtol=1e-11)
    np.testing.assert_allclose(np.asarray(ad.hvp(rosen, (POINT,), (p,))[0]), product, rtol=1e-11)


def f(x: Any) -> Any:
    return ad.stack([(x**2).sum(), ad.sin(x[0]) * x[1], x[2] ** 3])


@pytest.mark.parametrize("jac", [ad.jacrev, ad.jacfwd, ad.jacobian])
@pytest.mark.parametrize("chunk", [None, 1, 2, 10])
def test_jacobian_of_a_vector(jac: Any, chunk: Any) -> None:
    x = np.array([0.3, 2.0, -1.0])
    expected = [[0.6, 4.0, -2.0], [np.cos(0.3) * 2.0, np.sin(0.3), 0], [0, 0, 3.0]]
    np.testing.assert_allclose(np.asarray(jac(f, chunk_size=chunk)(x)), expected, atol=1e-15)


@pytest.mark.parametrize("jac", [ad.jacrev, ad.jacfwd, ad.jacobian])
def test_shapes_and_trees(jac: Any) -> None:
    def g(p: Any, x: Any) -> Any:
        return {"y": p["w"] @ x, "s": (x * x).sum()}, "aux"

    w, x = RANDOM.standard_normal((2, 3)), RANDOM.standard_normal((3, 4))
    matrix, aux = jac(g, argnums=(0, 1), has_aux=True)({"w": w}, x)
    assert aux == "aux"
    assert matrix["y"][0]["w"].shape == (2, 4, 2, 3)
    assert matrix["y"][1].shape == (2, 4, 3, 4)
    assert matrix["s"][0]["w"].tolist() == np.zeros((2, 3)).tolist()
    np.testing.assert_allclose(np.asarray(matrix["s"][1]), 2 * x)
    np.testing.assert_allclose(np.asarray(matrix["y"][0]["w"]), np.einsum("ac,dj->ajcd", np.eye(2), x))
    np.testing.assert_allclose(np.asarray(matrix["y"][1]), np.einsum("ac,jd->ajcd", w, np.eye(4)))


@pytest.mark.parametrize("jac", [ad.jacrev, ad.jacfwd, ad.jacobian])
def test_edges_of_shape(jac: Any) -> None:
    assert jac(lambda x: x * x)(3.0).item() == 6.0
    assert jac(lambda x: x * x)(np.ones((1, 1))).shape == (1, 1, 1, 1)
    assert jac(lambda x: x * x)(np.ones((0,))).shape == (0, 0)
    assert jac(lambda x: x.reshape(-1)[:0])(np.ones((2, 2))).shape == (0, 2, 2)
    assert jac(lambda x: ad.tensor([1.0, 2.0]))(np.ones(3)).tolist() == [[0.0] * 3] * 2
    assert jac(lambda x: x)(np.ones(2, np.float32)).dtype == np.float32


def test_complex() -> None:
    z = np.array([1 + 2j, 0.5j])
    expected = np.diag(2 * z)
    for jac in (ad.jacrev, ad.jacfwd, ad.jacobian):
        np.testing.assert_allclose(np.asarray(jac(lambda z: z * z, holomorphic=True)(z)), expected)
        with pytest.raises(DTypeError, match="Pass holomorphic=True if the function is"):
            jac(lambda z: z * z)(z)
    x = np.array([1.0, 2.0])
    np.testing.assert_allclose(np.asarray(ad.jacobian(lambda x: x * 1j)(x)), 1j * np.eye(2))
    with pytest.raises(DTypeError, match="complex values for real arguments"):
        ad.jacrev(lambda x: x * 1j)(x)


def test_hessian_of_trees_and_several_arguments() -> None:
    def loss(p: Any, x: Any) -> Any:
        return (p["a"] ** 2 * p["b"]).sum() * x

    h = ad.hessian(loss, argnums=(0, 1))({"a": np.array([1.0, 2.0]), "b": 3.0}, 5.0)
    np.testing.assert_allclose(np.asarray(h[0]["a"][0]["a"]), np.diag([30.0, 30.0]))
    np.testing.assert_allclose(np.asarray(h[0]["a"][0]["b"]), [10.0, 20.0])
    np.testing.assert_allclose(np.asarray(h[0]["b"][0]["a"]), [10.0, 20.0])
    np.testing.assert_allclose(np.asarray(h[0]["b"][1]), 5.0)
    np.testing.assert_allclose(np.asarray(h[1][1]), 0.0)
    h, aux = ad.hessian(lambda x: (x**3, "aux"), has_aux=True)(2.0)
    assert (h.item(), aux) == (12.0, "aux")


SMOOTH = [case for name in OP_NAMES for case in CASES.get(name, [])[-1:] if checked(case)]


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_hvp_equals_the_product_with_the_hessian(case: Case) -> None:
    moving = checked(case)
    if any(case.args[i].dtype.kind == "c" for i in moving):
        pytest.skip("a Hessian is real")

    def loss(*xs: Any) -> Any:
        args = list(case.args)
        for i, x in zip(moving, xs, strict=True):
            args[i] = x
        outs = OPS[case.op].eager(*args, **case.params)
        total = 0.0
        for out in outs if isinstance(outs, tuple) else (outs,):
            if out.dtype.kind in "fc":
                total = total + (ad.real(out * ad.conj(out)) if out.dtype.kind == "c" else out**2).sum()
        return total

    primals = tuple(case.args[i] for i in moving)
    tangents = tuple(np.random.default_rng(i).standard_normal(p.shape) for i, p in enumerate(primals))
    numbers = tuple(range(len(primals)))
    products = ad.hvp(loss, primals, tangents)
    matrix = ad.hessian(loss, numbers)(*primals)
    for i, product in enumerate(products):
        parts = (
            np.tensordot(np.asarray(matrix[i][j]), t, axes=t.ndim) if t.ndim else np.asarray(matrix[i][j]) * t
            for j, t in enumerate(tangents)
        )
        np.testing.assert_allclose(np.asarray(product), sum(parts), rtol=1e-9, atol=1e-9)
    reverse = ad.jacrev(ad.grad(loss, numbers), numbers)(*primals)
    for i, j in itertools.product(numbers, repeat=2):
        np.testing.assert_allclose(np.asarray(matrix[i][j]), np.asarray(reverse[i][j]), rtol=1e-9, atol=1e-9)


def energy(x: Any) -> Any:
    return ad.exp(-(x**2).sum()) * ad.sin(x[0] * x[1]) + x[2] ** 4


def test_vmap_of_hessian_and_hessian_of_vmap() -> None:
    xs = RANDOM.standard_normal((4, 3))
    rows = np.stack([np.asarray(ad.hessian(energy)(x)) for x in xs])
    np.testing.assert_allclose(np.asarray(ad.vmap(ad.hessian(energy))(xs)), rows, rtol=1e-11, atol=1e-13)
    whole = np.asarray(ad.hessian(lambda xs: ad.vmap(energy)(xs).sum())(xs))
    for i, j in itertools.product(range(4), repeat=2):
        expected = rows[i] if i == j else np.zeros((3, 3))
        np.testing.assert_allclose(whole[i, :, j], expected, rtol=1e-11, atol=1e-13)


def test_jacobians_nest_with_everything() -> None:
    x = np.array([0.3, -0.5, 0.8])
    h = np.asarray(ad.hessian(energy)(x))
    combos = {
        "jacrev jacrev": ad.jacrev(ad.jacrev(energy)),
        "jacfwd jacfwd": ad.jacfwd(ad.jacfwd(energy)),
        "jacrev jacfwd": ad.jacrev(ad.jacfwd(energy)),
        "jacfwd jacrev": ad.jacfwd(ad.jacrev(energy)),
        "vmap hvp": lambda x: ad.vmap(lambda v: ad.hvp(energy, x, v))(np.eye(3)),
        "vmap jvp grad": lambda x: ad.vmap(lambda v: ad.jvp(ad.grad(energy), (x,), (v,))[1])(np.eye(3)),
        "vmap grad jvp": lambda x: ad.vmap(lambda v: ad.grad(lambda x: ad.jvp(energy, (x,), (v,))[1])(x))(
            np.eye(3)
        ),
        "vmap vjp grad": lambda x: ad.vmap(lambda v: ad.vjp(ad.grad(energy), x)[1](v)[0])(np.eye(3)),
        "linearize grad": lambda x: ad.vmap(ad.linearize(ad.grad(energy), x)[1])(np.eye(3)),
    }
    for name, function in combos.items():
        np.testing.assert_allclose(np.asarray(function(x)), h, rtol=1e-11, atol=1e-13, err_msg=name)
    # third order: grad of the trace of the Hessian, and the Jacobian of the Hessian
    third = np.asarray(ad.jacfwd(ad.hessian(energy))(x))
    trace = np.asarray(ad.grad(lambda x: (ad.hessian(energy)(x) * np.eye(3)).sum())(x))
    np.testing.assert_allclose(trace, np.einsum("iik->k", third), rtol=1e-11)
    np.testing.assert_allclose(third, third.transpose(0, 2, 1), rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(np.asarray(ad.jacrev(ad.hessian(energy))(x)), third, rtol=1e-10, atol=1e-12)


def test_jacobian_of_vmap_of_grad_of_jvp() -> None:
    xs = RANDOM.standard_normal((2, 3))

    def inner(x: Any) -> Any:
        return ad.grad(lambda y: ad.jvp(energy, (y,), (y,))[1])(x)

    batched = np.asarray(ad.jacobian(ad.vmap(inner))(xs))
    for k in range(2):
        np.testing.assert_allclose(
            batched[k, :, k], np.asarray(ad.jacobian(inner)(xs[k])), rtol=1e-10, atol=1e-12
        )
    np.testing.assert_allclose(batched[0, :, 1], 0, atol=1e-15)


def test_gradients_flow_through_a_jacobian_to_captured_tensors() -> None:
    w = ad.tensor([1.0, 2.0, 3.0], requires_grad=True)
    x = ad.tensor([0.5, -1.0, 2.0])
    ad.jacobian(lambda x: ad.sin(w * x))(x).sum().backward()  # Σ w cos(w x)
    assert w.grad is not None
    wx = w.numpy() * x.numpy()
    np.testing.assert_allclose(w.grad.numpy(), np.cos(wx) - wx * np.sin(wx))


def test_perturbations_are_not_confused_with_matrices() -> None:
    # ∂/∂x [x · J_y(x + y)] = I, and not 2
    outer = ad.jacfwd(lambda x: x * ad.jacfwd(lambda y: x + y)(x).sum(0))(np.ones(2))
    np.testing.assert_allclose(np.asarray(outer), np.eye(2))
    outer = ad.jacrev(lambda x: x * ad.jacfwd(lambda y: x * y)(ad.ones(2)).sum(0))(np.array([2.0, 3.0]))
    np.testing.assert_allclose(np.asarray(outer), np.diag([4.0, 6.0]))


MISTAKES: list[tuple[Any, type[Exception], str]] = [
    (lambda: ad.jacobian(f, 1)(POINT), ArgumentError,
     "jacobian: argnums=1 is out of range: the function was called with 1 positional argument.\n"
     "  Positions start at 0; keyword arguments cannot be differentiated."),
    (lambda: ad.jacrev(f, chunk_size=0), ArgumentError,
     "jacrev: chunk_size must be a positive integer or None, not 0."),
    (lambda: ad.jacfwd(lambda x: None)(POINT), TransformError,
     "jacfwd: <lambda> returned None.\n  Return the tensor to differentiate."),
    (lambda: ad.jacobian(lambda x: x)([1, 2]), DTypeError,
     "jacobian: x[0] is int64, but only floats and complex numbers have derivatives.\n"
     "  Make it a float (x.astype(float), 3.0 for 3), or leave it out of argnums."),
    (lambda: ad.hessian(lambda x: x)(POINT), ShapeError,
     "hessian: <lambda> returned shape (7,), but a gradient needs one number.\n"
     "  Reduce it (y.sum(), y.mean()), or use ad.jacobian for all derivatives, ad.vjp for their products."),
    (lambda: ad.hvp(rosen, (POINT,), POINT), ArgumentError,
     "hvp: for a tuple of 1 primals, tangents must be a tuple of 1, but got ndarray."),
    (lambda: ad.hvp(rosen, POINT, POINT[1:]), ShapeError,
     "hvp: tangents[0] has shape (6,), but (7,) is expected."),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), MISTAKES)
def test_mistakes_are_explained(call: Any, error: type[Exception], message: str) -> None:
    assert message_of(error, call) == message
