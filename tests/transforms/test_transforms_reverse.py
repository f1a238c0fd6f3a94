"""grad, value_and_grad and vjp: values, nesting, structures, messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint.errors import ArgumentError, DTypeError, InputError, ShapeError, TransformError


@dataclass
class Params:
    w: Any
    b: Any
    name: str = "layer"


def test_grad_of_trees() -> None:
    def loss(p: Params, x: Any, scale: float = 1.0) -> Any:
        return scale * ((p.w @ x + p.b["c"][0]) ** 2).sum()

    w, x = np.arange(6.0).reshape(2, 3), np.array([1.0, -1.0, 2.0])
    g = ad.grad(loss)(Params(w, {"c": [0.5]}), x, scale=3.0)
    r = 2 * 3.0 * (w @ x + 0.5)
    assert isinstance(g, Params)
    assert g.name == "layer"
    np.testing.assert_allclose(np.asarray(g.w), np.outer(r, x))
    np.testing.assert_allclose(np.asarray(g.b["c"][0]), r.sum())
    gp, gx = ad.grad(loss, argnums=(0, -1))(Params(w, {"c": [0.5]}), x)
    np.testing.assert_allclose(np.asarray(gx), w.T @ r / 3.0)
    assert isinstance(gp, Params)


def test_plain_numbers_and_dtypes() -> None:
    assert ad.grad(lambda x: x * x)(3.0).item() == 6.0
    assert ad.grad(lambda x: x * x)(np.float32(3)).dtype == np.float32
    assert ad.grad(lambda x: (x * x).real)(3 + 1j).dtype == np.complex128
    assert ad.grad(lambda x: x.sum() * 2)(np.ones((2, 0))).shape == (2, 0)
    g = ad.grad(lambda x: x.reshape(1, 1) ** 2)(np.array([3.0]))
    assert g.tolist() == [6.0]


def test_what_comes_back_has_no_history_unless_something_outside_requires_grad() -> None:
    x, w = ad.tensor(2.0), ad.tensor(3.0, requires_grad=True)
    value, g = ad.value_and_grad(lambda x: x * x)(x)
    assert not value.requires_grad
    assert not g.requires_grad
    value, g = ad.value_and_grad(lambda x: w * x * x)(x)
    assert value.requires_grad
    g.backward()  # d/dw (2 w x)
    assert w.grad is not None
    assert w.grad.item() == 4.0
    with ad.no_grad():
        value, g = ad.value_and_grad(lambda x: w * x * x)(x)
    assert not value.requires_grad
    assert not g.requires_grad
    assert g.item() == 12.0


def test_argument_that_requires_grad_stays_joined() -> None:
    x = ad.tensor(2.0, requires_grad=True)
    g = ad.grad(lambda x: x**3)(x)
    g.backward()
    assert x.grad is not None
    assert x.grad.item() == 12.0
    y = x * x
    (y2,) = ad.gradients(ad.grad(lambda y: y**3)(y), [x])  # 3 x⁴ -> 12 x³
    assert y2 is not None
    assert y2.item() == 96.0


def test_grads_nest() -> None:
    f = lambda x: ad.sin(x) * x**3
    x = 0.7
    d3 = ad.grad(ad.grad(ad.grad(f)))(x).item()
    s, c = np.sin(x), np.cos(x)
    np.testing.assert_allclose(d3, 6 * s + 18 * x * c - 9 * x**2 * s - x**3 * c)


def test_perturbations_are_not_confused_in_reverse_mode() -> None:
    # d/dx (x · d/dy (x + y)) = 1, and not 2
    assert ad.grad(lambda x: x * ad.grad(lambda y: x + y)(1.0))(1.0).item() == 1.0
    # d/dx (x · d/dy (x y)|_{y=2}) = 2x
    assert ad.grad(lambda x: x * ad.grad(lambda y: x * y)(2.0))(5.0).item() == 10.0
    # the inner variable is the outer one: d/dx x·f'(x)
    f = lambda x: x * ad.grad(lambda y: y**3)(x)  # 3x³
    assert ad.grad(f)(2.0).item() == 36.0


def test_unused_and_constant() -> None:
    g = ad.grad(lambda a, b: a * 2, argnums=(0, 1))(1.0, np.ones(3))
    assert g[1].tolist() == [0.0, 0.0, 0.0]
    assert ad.grad(lambda x: ad.tensor(4.0))(1.0).item() == 0.0
    assert ad.grad(ad.grad(lambda x: 3 * x))(1.0).item() == 0.0
    assert ad.grad(lambda x: x)(1.0).item() == 1.0


def test_a_tensor_given_twice_is_two_arguments() -> None:
    x = ad.tensor(3.0)
    assert [g.item() for g in ad.grad(lambda a, b: a * a * b, (0, 1))(x, x)] == [18.0, 9.0]


def test_aux() -> None:
    f = lambda x: (x * x, {"doubled": 2 * x, "note": "n", "n": 7})
    g, aux = ad.grad(f, has_aux=True)(3.0)
    assert g.item() == 6.0
    assert aux["doubled"].item() == 6.0
    assert type(aux["doubled"]) is np.float64
    assert aux["note"] == "n"
    assert aux["n"] == 7
    (value, aux), g = ad.value_and_grad(f, has_aux=True)(3.0)
    assert value.item() == 9.0
    w = ad.tensor(5.0, requires_grad=True)
    _, aux = ad.grad(lambda x: (x * x, ad.exp(x) * w), has_aux=True)(0.0)
    aux.backward()
    assert w.grad is not None
    assert w.grad.item() == 1.0


def test_grad_of_aux_keeps_the_outer_history() -> None:
    def outer(x: Any) -> Any:
        _, aux = ad.grad(lambda y: (y * y, y * x), has_aux=True)(x)
        return aux

    assert ad.grad(outer)(3.0).item() == 6.0


def test_vjp_is_reusable_and_takes_trees() -> None:
    y, pull = ad.vjp(lambda a, b: {"p": a * b, "s": (a + b).sum()}, np.array([1.0, 2.0]), 3.0)
    assert y["p"].tolist() == [3.0, 6.0]
    ga, gb = pull({"p": [1.0, 10.0], "s": 1.0})
    assert ga.tolist() == [4.0, 31.0]
    assert gb.item() == 23.0
    ga, gb = pull({"s": 0.0, "p": np.zeros(2)})
    assert ga.tolist() == [0.0, 0.0]


def test_vjp_is_linear_and_differentiable_in_the_cotangent() -> None:
    c = ad.tensor(2.0, requires_grad=True)
    _, pull = ad.vjp(lambda x: x**2, 3.0)
    (g,) = pull(c)
    g.backward()
    assert c.grad is not None
    assert c.grad.item() == 6.0


def test_vjp_aux() -> None:
    _, pull, aux = ad.vjp(lambda x: (x * 2, "aux"), 1.0, has_aux=True)
    assert aux == "aux"
    assert pull(1.0)[0].item() == 2.0


def test_hooks_of_outer_leaves_do_not_run() -> None:
    w = ad.tensor(2.0, requires_grad=True)
    w.register_hook(lambda g: pytest.fail("a hook of a tensor that is not differentiated ran"))
    with ad.no_grad():
        assert ad.grad(lambda x: w * x)(1.0).item() == 2.0
    assert ad.grad(lambda x: w * x)(1.0).item() == 2.0


def test_a_long_outer_graph_is_not_walked() -> None:
    x = ad.tensor(1.0, requires_grad=True)
    y = x
    for _ in range(50):
        y = y * 1.0
    assert ad.grad(lambda z: z * z)(y).item() == 2.0


def test_exception_restores_the_mode() -> None:
    def f(x: Any) -> Any:
        raise ZeroDivisionError

    with ad.no_grad():
        with pytest.raises(ZeroDivisionError):
            ad.grad(f)(1.0)
        assert not ad.is_grad_enabled()


def fail(f: Any, error: type[Exception]) -> str:
    with pytest.raises(error) as caught:
        f()
    return str(caught.value)


def loss(x: Any, n: Any = None) -> Any:
    return (x * x).sum()


def nothing(x: Any) -> Any:
    x * x


MISTAKES: list[tuple[Any, type[Exception], str]] = [
    (lambda: ad.grad(loss, 2)(1.0), ArgumentError,
     "grad: argnums=2 is out of range: the function was called with 1 positional argument.\n"
     "  Positions start at 0; keyword arguments cannot be differentiated."),
    (lambda: ad.grad(loss, (0, 0))(1.0), ArgumentError, "grad: argnums=(0, 0) names an argument twice."),
    (lambda: ad.grad(loss, ())(1.0), ArgumentError, "grad: argnums=() names no argument."),
    (lambda: ad.grad(loss, "x")(1.0), InputError,
     "grad: argnums must be an integer or a tuple of integers, not 'x'."),
    (lambda: ad.grad(loss)(3), DTypeError,
     "grad: x is int64, but only floats and complex numbers have derivatives.\n"
     "  Make it a float (x.astype(float), 3.0 for 3), or leave it out of argnums."),
    (lambda: ad.grad(loss, 1)(1.0, {"k": [1.0, np.array([True])]}), DTypeError,
     "grad: n['k'][1] is bool, but only floats and complex numbers have derivatives.\n"
     "  Make it a float (x.astype(float), 3.0 for 3), or leave it out of argnums."),
    (lambda: ad.grad(loss)({"w": object()}), TransformError,
     "grad: x['w'] is an object, not a tensor, an array or a number.\n"
     "  Convert it (ad.tensor(np.asarray(x))), or pass argnums= without this argument."),
    (lambda: ad.grad(loss)("text"), TransformError, "grad: x contains no tensors: 'text'."),
    (lambda: ad.grad(nothing)(1.0), TransformError,
     "grad: nothing returned None.\n  Return the tensor to differentiate."),
    (lambda: ad.grad(lambda x: x > 0)(1.0), DTypeError,
     "grad: the result of <lambda> is bool, but only floats and complex numbers have derivatives.\n"
     "  Return it as auxiliary data: pass has_aux=True, and return (result, aux)."),
    (lambda: ad.grad(lambda x: x * 2)(np.ones(3)), ShapeError,
     "grad: <lambda> returned shape (3,), but a gradient needs one number.\n"
     "  Reduce it (y.sum(), y.mean()), or use ad.jacobian for all derivatives, ad.vjp for their products."),
    (lambda: ad.grad(lambda x: (x, x))(1.0), ShapeError,
     "grad: <lambda> returned 2 tensors, (*, *), but a gradient needs one number.\n"
     "  Return one number; with has_aux=True, return (number, rest).  Use ad.jacobian for all derivatives."),
    (lambda: ad.grad(lambda x: x * 1j)(1.0), DTypeError,
     "grad: <lambda> returned a complex number, but a gradient needs a real number.\n"
     "  Return y.real, y.imag or abs(y); or use ad.vjp with a complex cotangent."),
    (lambda: ad.grad(loss, has_aux=True)(1.0), TransformError,
     "grad: with has_aux=True loss must return (result, aux), but returned a Tensor."),
    (lambda: ad.grad(3), InputError, "grad: expected a function, but got int."),
    (lambda: ad.vjp(loss), ArgumentError, "vjp: the arguments of the function are missing: ad.vjp(f, x, …)."),
    (lambda: ad.vjp(lambda x: x, np.ones(2))[1](1.0), ShapeError,
     "vjp: the cotangent has shape (), but (2,) is expected."),
    (lambda: ad.vjp(lambda x: {"a": x}, 1.0)[1]({"b": 1.0}), TransformError,
     "vjp: the cotangent is missing ['a'] and has unexpected ['b']; expected {'a': *}."),
    (lambda: ad.vjp(lambda x: x, 1.0)[1](np.complex128(1)), DTypeError,
     "vjp: the cotangent is complex128, but float64 is expected."),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), MISTAKES)
def test_mistakes_are_explained(call: Any, error: type[Exception], message: str) -> None:
    assert fail(call, error) == message
