"""``adjoint.autograd``: autograd's names, submodules and habits."""

from __future__ import annotations

import inspect
import subprocess
import sys

import numpy
import pytest

import adjoint as ad
import adjoint.autograd as autograd
import adjoint.autograd.numpy as np
import adjoint.autograd.scipy as scipy
import adjoint.numpy as anp
from adjoint.autograd.builtins import isinstance as aginstance
from adjoint.autograd.extend import (
    Box,
    VJPNode,
    VSpace,
    def_linear,
    defjvp,
    defjvp_argnums,
    defvjp,
    defvjp_argnum,
    defvjp_argnums,
    notrace_primitive,
    primitive,
    vspace,
)
from adjoint.autograd.misc.fixed_points import fixed_point
from adjoint.autograd.misc.flatten import flatten, flatten_func
from adjoint.autograd.misc.optimizers import adam, rmsprop, sgd
from adjoint.autograd.numpy.numpy_boxes import ArrayBox
from adjoint.autograd.numpy.numpy_vjps import unbroadcast_f
from adjoint.autograd.numpy.numpy_vspaces import ArrayVSpace
from adjoint.autograd.test_util import check_grads, check_vjp, combo_check
from adjoint.autograd.tracer import getval, new_box, trace, trace_stack
from adjoint.autograd.util import func, quick_grad_check, subval, subvals
from adjoint.autograd.wrap_util import get_name, wraps
from adjoint.errors import InputError

MODULES = """
    numpy numpy.linalg numpy.fft numpy.random numpy.numpy_boxes numpy.numpy_vspaces numpy.numpy_vjps scipy scipy.special
    scipy.linalg scipy.integrate scipy.signal scipy.stats scipy.stats.norm scipy.stats.multivariate_normal extend core
    tracer builtins differential_operators test_util misc misc.flatten misc.optimizers misc.fixed_points wrap_util util
""".split()


def test_a_library_that_imports_autograd_runs_on_adjoint():
    lines = ["import sys, adjoint.autograd", "sys.modules['autograd'] = adjoint.autograd"]
    lines += [f"import autograd.{name}" for name in MODULES]
    lines += [
        "import autograd.numpy as np, autograd.scipy.stats.norm as norm",
        "from autograd import grad, isinstance",
        "from autograd.extend import primitive",
        "from adjoint.autograd.extend import primitive as same",
        "assert primitive is same",
        "assert abs(grad(lambda x: norm.logpdf(x) * np.sum(x))(1) - (norm.logpdf(1.0) - 1)) < 1e-12",
        "assert type(np.zeros(2)) is type(np.array([1.0])) is np.ndarray and np.pi > 3 and np.polynomial",
    ]
    subprocess.run([sys.executable, "-W", "error", "-c", "\n".join(lines)], check=True)


def test_operators_take_integers_and_return_arrays():
    assert autograd.grad(lambda x: x**2)(3) == 6.0
    x = numpy.arange(3)
    found = autograd.grad(lambda v: np.sum(v**2))(x)
    assert type(found) is numpy.ndarray and found.tolist() == [0.0, 2.0, 4.0]
    assert autograd.hessian(lambda v: v**3)(numpy.ones(2)).shape == (2, 2, 2)
    assert autograd.jacobian(lambda v: [v[0], v[0] * v[1]])(numpy.array([2.0, 3.0])).tolist() == [
        [1, 0],
        [3, 2],
    ]
    assert autograd.elementwise_grad(np.sin)(numpy.zeros(2)).tolist() == [1.0, 1.0]
    assert autograd.deriv(np.exp)(0) == 1.0
    assert autograd.value_and_grad(lambda v: v * 2)(1) == (2.0, 2.0)
    assert autograd.grad_and_aux(lambda v: (v**2, v + 1))(2.0) == (4.0, 3.0)
    assert autograd.grad_named(lambda a, b: a * b**2, "b")(2.0, 3.0) == 12.0
    assert autograd.multigrad_dict(lambda a, b=3.0: a * b)(2.0) == {"a": 3.0, "b": 2.0}
    assert autograd.grad(lambda a, b: a * b, (0, 1))(2.0, 3) == (3.0, 2.0)
    f = lambda v: np.sum(v**3)
    v = numpy.array([1.0, 2.0])
    assert autograd.hessian_vector_product(f)(v, v).tolist() == [6.0, 24.0]
    assert autograd.make_hvp(f)(v)[0](v).tolist() == [6.0, 24.0]
    assert autograd.make_ggnvp(lambda u: 2 * u)(v)(v).tolist() == [4.0, 8.0]
    assert autograd.tensor_jacobian_product(lambda u: u**2)(v, v).tolist() == [2.0, 8.0]
    assert autograd.grad(lambda u: np.sum(autograd.grad(f)(u)))(v).tolist() == [6.0, 12.0]
    assert autograd.grad.__name__ == "grad"
    for name, error in (("grad", "Grad only applies to real scalar"), ("elementwise_grad", "real-output")):
        with pytest.raises(TypeError, match=error):
            getattr(autograd, name)(lambda u: u * 1j)(v)


def test_complex_gradients_are_those_of_autograd():
    assert autograd.holomorphic_grad(lambda z: z**2)(1 + 2j) == 2 + 4j
    assert autograd.grad(lambda z: np.real(z * (1 + 2j)))(1 + 0j) == 1 + 2j
    with pytest.warns(UserWarning, match="not complex"):
        autograd.holomorphic_grad(lambda z: z**2)(1.0)


def test_tangents_and_gradients_of_another_dtype_are_converted():
    y, t = autograd.make_jvp(lambda v: v * 2)(numpy.ones(2))(numpy.ones(2, numpy.float32))
    assert y.dtype == t.dtype == numpy.float64
    pull, _ = autograd.make_vjp(lambda v: v * 2)(numpy.ones(2))
    assert pull(numpy.ones(2, int)).tolist() == [2.0, 2.0]


def test_primitives_get_arrays_that_they_may_write_into():
    seen = []

    @primitive
    def doubled(x, scale):
        x *= 2
        seen.append(type(x))
        return x * scale

    def rule(ans, x, scale):
        seen.append((type(ans), type(x)))
        return lambda g: seen.append(type(g)) or 2 * g * scale

    defvjp(doubled, rule)  # the second argument is no tensor and needs no rule
    x = numpy.ones(2)
    assert autograd.grad(lambda x: np.sum(doubled(x, 3.0)))(x).tolist() == [6.0, 6.0] and x.tolist() == [
        1.0,
        1.0,
    ]
    assert seen == [numpy.ndarray, (numpy.ndarray, numpy.ndarray), numpy.ndarray]
    assert autograd.grad(autograd.grad(lambda x: np.sum(doubled(x, 3.0) * x)))(1.0) == 12.0


def test_booleans_and_integers_that_depend_on_a_tensor_need_no_rule():
    @primitive
    def cleared(x, where, i):
        x[where] = 0.0
        return x[i]

    defvjp(cleared, lambda ans, x, where, i: lambda g: g * numpy.eye(3)[i] * ~where)
    f = lambda x: cleared(x, x < 2.0, np.asarray(x).argmax()) ** 2
    assert autograd.grad(f)(numpy.array([1.0, 3.0, 2.0])).tolist() == [0.0, 6.0, 0.0]


def test_rules_of_forward_mode():
    @primitive
    def product(x, y):
        return x * y

    defjvp(product, lambda g, ans, x, y: g * y, "same")
    assert autograd.make_jvp(product, 1)(3.0, 2.0)(1.0) == (6.0, 3.0)

    @primitive
    def square(x):
        return x**2

    defjvp(square, lambda g, ans, x: 2 * g * x)
    assert autograd.grad(square)(3.0) == 6.0  # the transpose

    both = []

    @primitive
    def tripled(x):
        return numpy.asarray(x) * 3

    defvjp(tripled, lambda ans, x: lambda g: both.append("rev") or g * 3)
    defjvp(tripled, lambda g, ans, x: both.append("fwd") or g * 3)
    assert autograd.make_jvp(tripled)(1.0)(2.0) == (3.0, 6.0) and both == ["fwd"]
    assert autograd.grad(tripled)(1.0) == 3.0 and both == ["fwd", "rev"]

    @primitive
    def pair(x, y):
        return x * y, numpy.array([7])

    defjvp(pair, lambda g, ans, x, y: (g * y, g), lambda g, ans, x, y: (x * g, g))
    assert ad.jvp(lambda x, y: pair(x, y)[0], (2.0, 3.0), (1.0, 1.0)) == (
        6.0,
        5.0,
    )  # integers have no tangent

    @primitive
    def linear(x):
        return 3 * x

    def_linear(linear)
    assert autograd.make_jvp(linear)(1.0)(2.0) == (3.0, 6.0)
    with pytest.raises(NotImplementedError, match="linear: its rule of forward mode is the function itself"):
        autograd.grad(linear)(1.0)

    @primitive
    def several(*args):
        return sum(args)

    defvjp_argnum(several, lambda i, ans, args, kwargs: lambda g: g * (i + 1))
    assert autograd.grad(several, 2)(1.0, 1.0, 1.0) == 3.0
    defvjp_argnums(several, lambda argnums, ans, args, kwargs: lambda g: [g * (i + 2) for i in argnums])
    assert autograd.grad(several, 2)(1.0, 1.0, 1.0) == 4.0
    defjvp_argnums(several, lambda argnums, gs, ans, args, kwargs: sum(g * 5 for g in gs))
    assert autograd.make_jvp(several, 1)(1.0, 1.0)(1.0) == (2.0, 5.0)
    assert notrace_primitive(lambda x: type(x))(ad.tensor([1.0], requires_grad=True)) is numpy.ndarray
    with pytest.raises(ad.errors.ArgumentError, match="decorated with @primitive"):
        ad.extend.defjvp(numpy.sin, None)
    for define in (defvjp, defjvp):  # as in autograd, rules of other functions have no effect
        define(np.sin, lambda *args: 1 / 0)
    assert autograd.grad(np.sin)(0.0) == 1.0


def test_rules_of_functions_without_a_derivative():
    solve = scipy.linalg.solveh_banded
    assert solve is autograd.scipy.linalg.solveh_banded
    bands = numpy.array([[0.0, 1.0, 1.0], [4.0, 4.0, 4.0]])
    f = lambda b: solve(bands, b)
    try:
        with pytest.raises(ad.errors.LostHistoryError, match=r"scipy\.linalg\.solveh_banded"):
            autograd.jacobian(f)(numpy.ones(3))
        defvjp(solve, None, lambda ans, ab, b: lambda g: solve(ab, g))
        whole = numpy.diag(bands[1]) + numpy.diag(bands[0, 1:], 1) + numpy.diag(bands[0, 1:], -1)
        assert numpy.allclose(autograd.jacobian(f)(numpy.ones(3)), numpy.linalg.inv(whole))
        assert type(f(numpy.ones(3))) is numpy.ndarray
    finally:
        solve.ours.primitive = None


def test_rules_that_use_the_values_of_tensors():
    @primitive
    def square(x):
        return x**2

    defvjp(square, lambda ans, x: lambda g: getval(g) * 2 * getval(x))  # not with vmap, and a constant
    x = numpy.array([1.0, 3.0])
    assert autograd.jacobian(square)(x).tolist() == [[2.0, 0.0], [0.0, 6.0]]
    assert autograd.hessian(lambda v: np.sum(square(v) + v**3))(x).tolist() == [[6.0, 0.0], [0.0, 18.0]]
    assert autograd.jacobian(lambda z: np.abs(z) ** 2)(numpy.array([1 + 2j])).tolist() == [[2 - 4j]]
    several = lambda p: np.array([p["a"] * 2, p["a"] * p["b"]])
    found = autograd.jacobian(several)({"a": 3.0, "b": 5.0})
    assert found["a"].tolist() == [2.0, 5.0] and found["b"].tolist() == [0.0, 3.0]
    with pytest.raises(ZeroDivisionError):
        autograd.jacobian(lambda v: 1 / 0)(x)
    many = numpy.linspace(0.0, 1.0, 300)  # rows in chunks
    assert numpy.array_equal(autograd.jacobian(lambda v: v**3)(many), numpy.diag(3 * many**2))


def test_functions_that_autograd_does_not_trace_return_arrays():
    def f(x):
        n = int(np.max((0, np.floor(x[0]))))
        out = np.zeros_like(x)
        out[0] = n
        assert type(np.argmax(x)) is numpy.int64 and type(np.greater(x, 1.0)) is numpy.ndarray
        assert [type(part) for part in np.nonzero(x)] == [numpy.ndarray] and np.sign(x).flags.writeable
        return np.sum(x * out) + x[np.argmax(x)] + np.sum(np.sign(x) * x)

    x = numpy.array([2.5, 3.0])
    assert autograd.grad(f)(x).tolist() == [3.0, 2.0]
    assert autograd.grad(lambda v: np.sum(np.floor(v)))(x).tolist() == [0.0, 0.0]
    assert autograd.jacobian(lambda v: np.floor(v) * v)(x).tolist() == [[2.0, 0.0], [0.0, 3.0]]
    assert np.logical_and.reduce([True, False]) == numpy.False_ and np.floor(x).tolist() == [2.0, 3.0]


def test_the_value_of_a_recorded_tensor():
    kept = []
    assert autograd.grad(lambda x: kept.append((x**2)._value) or x**2)(3.0) == 6.0
    assert kept == [9.0] and type(kept[0]) is numpy.float64
    assert ad.tensor([1.0], requires_grad=True)._value.flags.writeable


def test_helpers():
    assert subvals((1, 2), [(1, 5)]) == (1, 5) and subval([1, 2], 0, 7) == (7, 2) and func(len) is len

    @wraps(len, "{op}_of_{fun}", "{doc}", op="sum")
    def f():
        pass

    assert (f.__name__, f.__doc__, get_name(3)) == ("sum_of_len", len.__doc__, "[unknown name]")
    assert type(wraps(len)((1,))) is tuple  # an object without a name
    d = np.make_diagonal(ad.tensor([1.0, 2.0]), axis1=-1, axis2=-2)
    assert d.tolist() == [[1.0, 0.0], [0.0, 2.0]]
    with pytest.raises(NotImplementedError, match="axis1=-1"):
        np.make_diagonal(numpy.ones(2))
    assert unbroadcast_f(numpy.ones((1, 2)), lambda g: g)(numpy.ones((3, 4, 2))).tolist() == [[12.0, 12.0]]
    assert np.where(True, 1, 2) == 1 and np.where(condition=[True], x=[1], y=[2]).tolist() == [1]
    assert vspace({"a": 1.0, "b": numpy.ones(2, complex)}).size == 5
    assert len(list(vspace(numpy.ones((2, 2))).standard_basis())) == 4
    assert [sum(v) for v in vspace(numpy.ones(2, complex)).standard_basis()] == [1, 1j, 1, 1j]
    assert aginstance(ad.tensor(1.0), numpy.ndarray) and autograd.tuple((1,)) == (1,)
    flat, back = flatten({"a": 1.0, "b": numpy.ones(2)})
    assert type(flat) is numpy.ndarray and type(back(flat)["b"]) is numpy.ndarray
    f, _, x = flatten_func(lambda p: {"c": p["a"] * 2}, {"a": numpy.ones(2)})
    assert f(x).tolist() == [2.0, 2.0]
    for minimise in (sgd, rmsprop, adam):
        found = minimise(lambda p, i: {"a": 2 * p["a"]}, {"a": numpy.ones(2)}, num_iters=20, step_size=0.1)
        assert (abs(found["a"]) < 1).all()
    root = lambda a: fixed_point(lambda a: lambda x: (x + a / x) / 2, a, 1.0, lambda x, y: abs(x - y), 1e-12)
    assert autograd.grad(root)(4.0) == pytest.approx(0.25)


def test_checks():
    check_grads(lambda x, y: np.sin(x) * y, (0, 1))(numpy.ones(2), 3.0)
    check_vjp(np.exp, 1)
    combo_check(np.sum, 0)([numpy.ones((2, 2))], axis=[None, 0])
    quick_grad_check(lambda x, k: k * x**2, 1.0, (3.0,))

    @primitive
    def wrong(x):
        return x**2

    defvjp(wrong, lambda ans, x: lambda g: g)
    with pytest.raises(AssertionError, match=r"Derivative \(VJP\) check of wrong failed"):
        check_grads(wrong, modes=["rev"], order=1)(3.0)


def test_checkpoint_returns_a_function():
    calls = []

    def f(x, power=2):
        calls.append(x)
        return x**power

    saved = autograd.checkpoint(f)
    assert saved.__name__ == "f" and saved(3.0) == 9.0
    assert autograd.grad(lambda x: np.sin(saved(x, power=3)))(1.0) == pytest.approx(3 * numpy.cos(1.0))
    assert len(calls) == 3  # the second run is in the backward


def test_the_signature_of_an_operator_has_argnum():
    for operator in (autograd.grad, autograd.jacobian, autograd.make_vjp, autograd.value_and_grad):
        assert list(inspect.signature(operator).parameters)[:2] == ["fun", "argnum"]


def test_a_rule_may_return_an_array_for_a_list():
    @primitive
    def weighted(groups, scale):
        return scale * sum(sum(group) * (i + 1) for i, group in enumerate(groups))

    defvjp(weighted, lambda ans, groups, scale: lambda g: (g * scale * numpy.ones(2), [2 * g * scale]))
    f = lambda x: weighted(([x[0], x[1] ** 2], (x[2],)), 3.0)
    assert autograd.grad(f)(numpy.array([1.0, 2.0, 3.0])).tolist() == [3.0, 12.0, 6.0]


def test_types_that_libraries_register():
    """PennyLane enters its subclass of arrays, and copies the functions of ``autograd.numpy``."""

    class Marked(numpy.ndarray):
        pass

    Box.type_mappings[Marked] = ArrayBox
    VSpace.mappings[Marked] = ArrayVSpace
    try:
        x = numpy.array([1.0, 2.0]).view(Marked)
        assert autograd.grad(lambda v: np.sum(v**2))(x).tolist() == [2.0, 4.0]
    finally:
        del Box.type_mappings[Marked], VSpace.mappings[Marked]
    assert isinstance(ad.tensor(1.0), Box) and not isinstance(1.0, Box)
    assert "__getattr__" not in vars(np) and np.testing.assert_allclose is numpy.testing.assert_allclose
    with pytest.raises(AttributeError):
        _ = np.no_such_name


def test_nodes_of_autograd_are_errors_that_name_the_way():
    message = (
        "adjoint.autograd has no nodes or traces: adjoint records a graph of its own.\n"
        "  make_vjp(f)(x) and make_jvp(f)(x) differentiate; ad.inspect.explain(y, x) shows how y depends on x."
    )
    calls = [
        VJPNode.new_root,
        trace_stack.new_trace,
        lambda: new_box(1.0, 0, None),
        lambda: trace(None, abs, 1),
    ]
    for call in calls:
        with pytest.raises(NotImplementedError) as raised:
            call()
        assert str(raised.value) == message


def test_a_number_is_a_scalar_and_has_a_gradient():
    seen = []

    def f(x):
        seen.extend([np.isscalar(x[0]), np.isscalar(x), anp.isscalar(x[0])])
        return np.sum(x)

    assert autograd.grad(f)(numpy.ones(2)).tolist() == [1.0, 1.0]
    assert seen == [True, False, False] and np.isscalar(1.0) and not np.isscalar(numpy.ones(()))


def test_a_tensor_in_place_of_a_function_is_an_error():
    x = ad.ones(3, requires_grad=True)
    with pytest.raises(InputError) as raised:
        ad.autograd.grad((x * x).sum(), [x])  # PyTorch's torch.autograd.grad
    assert str(raised.value) == (
        "autograd.grad: expected a function, but got Tensor.\n  For the gradients of a tensor use "
        "ad.gradients(loss, [w])."
    )


def test_functions_that_libraries_register_for_types_check_the_arguments():
    class Constant(numpy.ndarray):
        """An array that must not be differentiated."""

    def check(value, *args):
        if value.size == 2:
            raise TypeError("this array is constant")
        return ArrayBox(value, *args)

    Box.type_mappings[Constant] = check
    try:
        allowed, constant = numpy.ones(3).view(Constant), numpy.ones(2).view(Constant)
        for operator in (autograd.grad, lambda f: lambda x: autograd.make_jvp(f)(x)(numpy.ones(3))):
            operator(anp.sum)(allowed)
            with pytest.raises(TypeError, match="this array is constant"):
                operator(anp.sum)(constant)
        with pytest.raises(TypeError, match="this array is constant"):
            autograd.grad(lambda parts: anp.sum(parts[0]))([constant])
    finally:
        del Box.type_mappings[Constant]
