"""jvp and linearize: over the op table, nested, and the messages."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from messages import message_of
from table import CASES, OP_NAMES, checked

import adjoint as ad
from adjoint.core.op import OPS
from adjoint.errors import ArgumentError, DTypeError, InputError, ShapeError, TransformError
from adjoint.testing import Case

ALL = [case for name in OP_NAMES for case in CASES.get(name, []) if checked(case)]


def function(case: Case) -> tuple[Any, list[Any]]:
    """The op of a case as a function of the arguments that have gradients."""
    moving = checked(case)

    def f(*values: Any) -> Any:
        args = list(case.args)
        for i, v in zip(moving, values, strict=True):
            args[i] = v
        fixed = [ad.tensor(a) if isinstance(a, np.ndarray) else a for a in args]
        out = OPS[case.op].eager(*fixed, **case.params)
        outs = out if isinstance(out, tuple) else (out,)
        return tuple(o for o in outs if o.dtype.kind in "fc")

    return f, [case.args[i] for i in moving]


def draw(like: Any, seed: int) -> Any:
    random = np.random.default_rng(seed)
    real = random.standard_normal(np.shape(like))
    if np.asarray(like).dtype.kind == "c":
        real = real + 1j * random.standard_normal(np.shape(like))
    return np.asarray(real, dtype=like.dtype)


def inner(a: Any, b: Any) -> float:
    """<a, b> = Re(ā b), summed over a list."""
    return sum(float(np.real(np.vdot(x, y))) for x, y in zip(a, b, strict=True))


def arrays(ts: Any) -> list[Any]:
    return [np.asarray(t) for t in ts]


@pytest.mark.parametrize("case", ALL, ids=str)
def test_jvp_is_the_adjoint_of_vjp(case: Case) -> None:
    f, primals = function(case)
    tangents = tuple(draw(p, i) for i, p in enumerate(primals))
    out, moved = ad.jvp(f, tuple(primals), tangents)
    out2, pull = ad.vjp(f, *primals)
    cotangents = tuple(ad.tensor(draw(np.asarray(o), 10 + i)) for i, o in enumerate(out))
    np.testing.assert_array_equal(arrays(out)[0], arrays(out2)[0])
    left = inner(arrays(cotangents), arrays(moved))
    right = inner(arrays(pull(cotangents)), tangents)
    np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-11)
    for o, t in zip(out, moved, strict=True):
        assert (o.shape, o.dtype) == (t.shape, t.dtype)


@pytest.mark.parametrize("case", [c for c in ALL if len(checked(c)) > 1], ids=str)
def test_jvp_along_one_argument_needs_no_more_than_its_rule_saved(case: Case) -> None:
    f, primals = function(case)
    for k, p in enumerate(primals):
        t = draw(p, k)
        alone = lambda x, k=k: f(*(x if j == k else q for j, q in enumerate(primals)))
        _, moved = ad.jvp(alone, (p,), (t,))
        tangents = tuple(t if j == k else np.zeros_like(q) for j, q in enumerate(primals))
        _, expected = ad.jvp(f, tuple(primals), tangents)
        for a, b in zip(moved, expected, strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("case", ALL, ids=str)
def test_jvp_equals_finite_differences(case: Case) -> None:
    f, primals = function(case)
    if any(p.dtype.kind == "c" for p in primals):
        pytest.skip("the adjoint test has it")
    tangents = tuple(draw(p, i) for i, p in enumerate(primals))
    _, moved = ad.jvp(f, tuple(primals), tangents)
    h = 1e-6
    plus = f(*(p + h * t for p, t in zip(primals, tangents, strict=True)))
    minus = f(*(p - h * t for p, t in zip(primals, tangents, strict=True)))
    for a, b, t in zip(plus, minus, moved, strict=True):
        np.testing.assert_allclose(
            (np.asarray(a) - np.asarray(b)) / (2 * h), np.asarray(t), rtol=2e-5, atol=2e-6
        )


@pytest.mark.parametrize("case", [c for c in ALL if c is CASES[c.op][-1]], ids=str)
def test_jvp_of_jvp_equals_reverse_over_reverse(case: Case) -> None:
    f, primals = function(case)
    u = tuple(draw(p, i) for i, p in enumerate(primals))
    v = tuple(draw(p, 5 + i) for i, p in enumerate(primals))
    w = [draw(o.numpy(), 9) for o in f(*primals)]

    def weighted(*xs: Any) -> Any:
        total = sum((ad.tensor(c).conj() * o).real.sum() for c, o in zip(w, f(*xs), strict=True))
        return total

    def first(*xs: Any) -> Any:
        return ad.jvp(weighted, xs, u)[1]

    _, forward2 = ad.jvp(first, primals, v)
    reverse = ad.grad(first, tuple(range(len(primals))))(*primals)
    hvp = ad.jvp(ad.grad(weighted, tuple(range(len(primals)))), primals, v)[1]
    np.testing.assert_allclose(forward2.item(), inner(arrays(reverse), v), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(forward2.item(), inner(arrays(hvp), u), rtol=1e-8, atol=1e-9)


def test_perturbations_are_not_confused_in_forward_mode() -> None:
    def d(f: Any) -> Any:
        return lambda x: ad.jvp(f, (x,), (ad.ones_like(x) if isinstance(x, ad.Tensor) else 1.0,))[1]

    # d/dx (x · d/dy (x + y)) = 1, and not 2
    assert d(lambda x: x * d(lambda y: x + y)(1.0))(1.0).item() == 1.0
    assert d(lambda x: x * d(lambda y: x * y)(2.0))(5.0).item() == 10.0
    # mixed modes
    assert d(lambda x: x * ad.grad(lambda y: x + y)(1.0))(1.0).item() == 1.0
    assert ad.grad(lambda x: x * d(lambda y: x + y)(1.0))(1.0).item() == 1.0
    assert ad.grad(lambda x: x * d(lambda y: x * y)(2.0))(5.0).item() == 10.0
    assert d(lambda x: x * ad.grad(lambda y: x * y)(2.0))(5.0).item() == 10.0
    # a tangent that is itself the outer variable: d/dx [x² · x] = 3x²
    assert ad.grad(lambda x: ad.jvp(lambda y: y * x, (x,), (x,))[1])(2.0).item() == 4.0


def test_complex_tangents() -> None:
    z, t = np.array([1 + 2j, -0.5 + 1j]), np.array([0.3 - 1j, 2 + 0.5j])
    h = 1e-6
    for f, g in [
        (lambda z: ad.exp(z) * z, lambda z: np.exp(z) * z),
        (ad.abs, np.abs),
        (ad.conj, np.conj),
        (ad.real, np.real),
        (ad.imag, np.imag),
        (lambda z: ad.conj(z) * z + z.real, lambda z: np.conj(z) * z + z.real),
    ]:
        _, moved = ad.jvp(f, (z,), (t,))
        np.testing.assert_allclose(np.asarray(moved), (g(z + h * t) - g(z - h * t)) / (2 * h), atol=1e-8)


def test_zero_tangent_stays_zero_where_the_derivative_is_infinite() -> None:
    _, t = ad.jvp(ad.sqrt, (np.array([0.0, 4.0]),), (np.array([0.0, 1.0]),))
    assert t.tolist() == [0.0, 0.25]
    _, t = ad.jvp(lambda x: ad.where(x > 0, ad.sqrt(x), 0.0), (np.array([0.0, 4.0]),), (np.ones(2),))
    assert t.tolist() == [0.0, 0.25]


def test_conditions_on_values_work() -> None:
    def f(x: Any) -> Any:
        return x * x if x > 1 else x * x.item()

    assert ad.jvp(f, (3.0,), (1.0,))[1].item() == 6.0
    assert ad.jvp(f, (0.5,), (1.0,))[1].item() == 0.5


def test_trees_and_aux() -> None:
    def f(p: Any, x: Any) -> Any:
        return {"y": p["w"] * x, "c": ad.tensor(1.0)}, "aux"

    out, moved, aux = ad.jvp(f, ({"w": 2.0}, np.ones(2)), ({"w": 1.0}, np.zeros(2)), has_aux=True)
    assert out["y"].tolist() == [2.0, 2.0]
    assert moved["y"].tolist() == [1.0, 1.0]
    assert moved["c"].item() == 0.0
    assert aux == "aux"


def test_linearize_runs_the_function_once() -> None:
    calls = []

    def f(x: Any, y: Any) -> Any:
        calls.append(1)
        return ad.sin(x) * y

    out, along = ad.linearize(f, 0.5, 2.0)
    np.testing.assert_allclose(out.item(), 2 * np.sin(0.5))
    np.testing.assert_allclose(along(1.0, 0.0).item(), 2 * np.cos(0.5))
    np.testing.assert_allclose(along(0.0, 1.0).item(), np.sin(0.5))
    assert len(calls) == 1
    t = ad.tensor(1.0, requires_grad=True)
    along(t, 0.0).backward()
    assert t.grad is not None
    np.testing.assert_allclose(t.grad.item(), 2 * np.cos(0.5))


def test_what_comes_back_has_no_history() -> None:
    out, moved = ad.jvp(lambda x: x * x, (ad.tensor(2.0),), (1.0,))
    assert not out.requires_grad
    assert not moved.requires_grad
    x = ad.tensor(2.0, requires_grad=True)
    assert ad.jvp(lambda x: x * x, (x,), (1.0,))[1].requires_grad
    with ad.no_grad():
        assert not ad.jvp(lambda x: x * x, (x,), (1.0,))[1].requires_grad


def test_fourth_derivative_of_a_composition_by_every_mix_of_modes() -> None:
    mpmath = pytest.importorskip("mpmath")
    mpmath.mp.dps = 40
    exact = mpmath.diff(
        lambda x: mpmath.tanh(mpmath.exp(mpmath.sin(x)) * x) / (1 + x**2), mpmath.mpf("0.3"), 4
    )

    def f(x: Any) -> Any:
        return ad.tanh(ad.exp(ad.sin(x)) * x) / (1 + x**2)

    def forward(f: Any) -> Any:
        return lambda x: ad.jvp(f, (x,), (1.0,))[1]

    for modes in itertools.product((forward, ad.grad), repeat=4):
        g = f
        for mode in modes:
            g = mode(g)
        np.testing.assert_allclose(g(0.3).item(), float(exact), rtol=1e-11)


MISTAKES: list[tuple[Any, type[Exception], str]] = [
    (lambda: ad.jvp(lambda x: x, 1.0, (1.0,)), InputError,
     "jvp: primals must be a tuple with one entry per argument, not float.\n  For one argument write (x,)."),
    (lambda: ad.jvp(lambda x: x, (1.0,), (1.0, 2.0)), ArgumentError,
     "jvp: there must be one tangent per argument, but got 1 primal and 2 tangents."),
    (lambda: ad.jvp(lambda x: x, (np.ones(2),), (np.ones(3),)), ShapeError,
     "jvp: tangents[0] has shape (3,), but (2,) is expected."),
    (lambda: ad.jvp(lambda x: x["a"], ({"a": 1.0},), ({"b": 1.0},)), TransformError,
     "jvp: tangents[0] is missing ['a'] and has unexpected ['b']; expected {'a': *}."),
    (lambda: ad.jvp(lambda x: x, (1.0,), (np.complex128(1),)), DTypeError,
     "jvp: tangents[0] is complex128, but float64 is expected."),
    (lambda: ad.jvp(lambda x: x, (1,), (1.0,)), DTypeError,
     "jvp: x is int64, but only floats and complex numbers have derivatives.\n"
     "  Make it a float (x.astype(float), 3.0 for 3), or leave it out of argnums."),
    (lambda: ad.jvp(lambda x: None, (1.0,), (1.0,)), TransformError,
     "jvp: <lambda> returned None.\n  Return the tensor to differentiate."),
    (lambda: ad.linearize(lambda x: x, 1.0)[1](1.0, 2.0), ArgumentError,
     "linearize: there must be one tangent per argument, 1 in all, but got 2."),
    (lambda: ad.linearize(lambda x: x), ArgumentError,
     "linearize: the arguments of the function are missing: ad.linearize(f, x, …)."),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), MISTAKES)
def test_mistakes_are_explained(call: Any, error: type[Exception], message: str) -> None:
    assert message_of(error, call) == message


def test_tangents_and_cotangents_of_another_dtype_are_converted():
    x = np.ones(2)
    y, t = ad.jvp(lambda v: v * 2, (x,), (np.ones(2, np.float32),))
    assert y.dtype == t.dtype == np.float64 and t.tolist() == [2.0, 2.0]
    assert ad.jvp(lambda v: v * 2, (x,), (np.ones(2, int),))[1].dtype == np.float64
    assert ad.hvp(lambda v: (v**2).sum(), (x,), (np.ones(2, np.float32),))[0].tolist() == [2.0, 2.0]
    found = ad.vjp(lambda v: v * 1j, x.astype(complex))[1](np.ones(2))[0]
    assert found.dtype == complex and found.tolist() == [-1j, -1j]
    assert ad.vjp(lambda v: v * 2, x)[1](np.ones(2, np.float32))[0].dtype == np.float64
