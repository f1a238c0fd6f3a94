"""``primitive`` and ``defvjp``: functions of arrays with hand-written derivatives."""

from __future__ import annotations

import autograd_rules
import numpy as np
import pytest

import adjoint as ad
import adjoint.numpy as anp
from adjoint.errors import ArgumentError, NoGradientError
from adjoint.extend import defvjp, primitive
from adjoint.testing import gradcheck


@primitive
def scaled(x, factor, power=1):
    assert type(x) is np.ndarray or np.isscalar(x)
    return factor * x**power


defvjp(
    scaled,
    lambda ans, x, factor, power=1: lambda g: g * factor * power * x ** (power - 1),
    lambda ans, x, factor, power=1: lambda g: (g * x**power).sum(),
)


def test_values_of_arrays_are_those_of_the_function():
    assert scaled(2.0, 3.0) == 6
    assert type(scaled(np.ones(2), 3.0)) is np.ndarray
    assert scaled.__name__ == "scaled"


def test_every_order_of_every_argument():
    x, factor = np.array([0.5, 2.0]), np.array(3.0)
    assert gradcheck(lambda x, f: scaled(x, f, power=3), [x, factor], order=2)
    third = ad.grad(ad.grad(ad.grad(lambda v: scaled(v, 2.0, power=3))))(1.5)
    assert third == 12


def test_a_constant_argument_has_no_gradient():
    x = ad.tensor([1.0, 2.0], requires_grad=True)
    scaled(x, 3.0).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3, 3]


def test_a_library_that_takes_arrays_alone():
    @primitive
    def rounded_up(x):
        return np.vectorize(lambda v: float(v) + 1)(x)

    defvjp(rounded_up, lambda ans, x: lambda g: g)
    assert ad.grad(lambda x: rounded_up(x).sum())(np.ones(3)).tolist() == [1, 1, 1]


def test_rules_for_some_arguments():
    f = primitive(lambda x, y: x * y)
    defvjp(f, lambda ans, x, y: lambda g: g * x, argnums=[1])
    assert ad.grad(f, 1)(2.0, 3.0) == 2
    with pytest.raises(NoGradientError, match=r"argument 0 has no rule\.  Pass one to defvjp"):
        ad.grad(f)(2.0, 3.0)
    defvjp(f, None)
    assert ad.grad(f)(2.0, 3.0) == 0


def test_a_plain_function_is_refused():
    with pytest.raises(ArgumentError, match="must be a function decorated with @primitive"):
        defvjp(np.sin, lambda ans, x: lambda g: g)  # type: ignore[arg-type]


def test_a_gradient_of_the_wrong_shape_names_the_primitive():
    @primitive
    def twice(x):
        return 2 * x

    defvjp(twice, lambda ans, x: lambda g: np.ones(3))
    with pytest.raises(
        ad.errors.RuleError, match=r"^the backward of twice returned a gradient of shape \(3,\) for"
    ):
        ad.grad(lambda x: twice(x).sum())(np.ones(2))


def test_complex_rules_have_the_convention_of_autograd():
    """The rule of c·x is c·g; adjoint's own gradients are conjugate."""
    c = 1 + 2j
    m = primitive(lambda x: c * x)
    defvjp(m, lambda ans, x: lambda g: c * g)
    loss = lambda x: anp.abs(m(x + 0j) + 1) ** 2  # |1 + c x|²
    assert ad.grad(loss)(3.0) == pytest.approx(32)
    assert ad.grad(ad.grad(loss))(3.0) == pytest.approx(10)
    assert ad.jvp(loss, (3.0,), (1.0,))[1] == pytest.approx(32)
    assert ad.grad(lambda x: anp.abs(m(x) + 1) ** 2)(3.0) == pytest.approx(32)  # the argument is real
    assert ad.grad(lambda z: anp.real(m(z)))(1j) == np.conj(c)  # PyTorch's convention


MADE = autograd_rules.primitives(anp, primitive, defvjp)


@pytest.mark.parametrize("name", MADE)
def test_complex_rules(name):
    """Values and second derivatives by finite differences, each complex number as two real ones."""
    x, z = autograd_rules.point(7)
    f = MADE[name]
    if name in autograd_rules.UNARY:
        assert gradcheck(f, [z], order=2)
        assert gradcheck(lambda x: anp.abs(f(x + 0j)) ** 2, [x], order=2)
    else:
        assert gradcheck(f, [z, z[::-1] * 0.5], order=2)
        assert gradcheck(lambda x, z: anp.abs(f(x, z)) ** 2, [x, z], order=2)


def test_complex_rules_of_several_results():
    both = primitive(lambda x: (x * 2j, {"conj": np.conj(x)}))
    defvjp(both, lambda ans, x: lambda g: 2j * g[0] + anp.conj(g[1]["conj"]))

    def f(x):
        y, more = both(x)
        return anp.sin(y) * more["conj"]

    assert gradcheck(f, [np.array([0.3 + 0.4j, -1.0 + 0.2j])], order=2)


@pytest.mark.parametrize("name", ["scale", "matrix", "conj", "abs2"])
def test_complex_rules_in_transforms(name):
    f = MADE[name] if name != "matrix" else lambda x: anp.stack([MADE["scale"](x[i]) for i in range(3)])
    loss = lambda z: anp.sum(anp.abs(anp.sin(f(z))) ** 2)
    z = autograd_rules.point(3)[1]
    wanted = ad.grad(loss)(z)
    rows = ad.vmap(ad.grad(loss))(np.stack([z, 2 * z]))
    np.testing.assert_allclose(rows[0], wanted)
    tangent = np.array([1.0, 2j, 0.5 - 1j])
    np.testing.assert_allclose(ad.jvp(loss, (z,), (tangent,))[1], np.sum(np.real(np.conj(wanted) * tangent)))
