"""Derivatives of the user's own: every transform uses them, higher orders are right, mistakes are named."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from two_arguments import TRANSFORMS, X, Y

import adjoint as ad
from adjoint.errors import (
    ArgumentError,
    GraphReleasedError,
    InputError,
    RuleError,
    ShapeError,
    TransformError,
)


def plain(x: Any, y: Any) -> Any:
    return ad.sin(x) * y


@ad.custom_vjp
def by_vjp(x: Any, y: Any) -> Any:
    return ad.sin(x) * y


# cos(x) is computed in the forward: neither an argument nor an output
by_vjp.defvjp(
    lambda x, y: (ad.sin(x) * y, {"cos": ad.cos(x), "args": (x, y)}),
    lambda r, g: (g * r["cos"] * r["args"][1], g * ad.sin(r["args"][0])),
)


@ad.custom_jvp
def by_jvp(x: Any, y: Any) -> Any:
    return ad.sin(x) * y


@by_jvp.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x, y), (tx, ty) = primals, tangents
    return by_jvp(x, y), tx * ad.cos(x) * y + ty * ad.sin(x)


class SinTimes(ad.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x, y)
        ctx.cos = ad.cos(x)
        return ad.sin(x) * y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, y = ctx.saved_tensors
        return g * ctx.cos * y, g * ad.sin(x)


FORMS = {"vjp": by_vjp, "jvp": by_jvp, "function": lambda x, y: SinTimes.apply(x, y)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_all_transforms_equal_direct_computation(form: str, transform: str) -> None:
    apply = TRANSFORMS[transform]
    found, expected = ad.tree.leaves(apply(FORMS[form])(X, Y)), ad.tree.leaves(apply(plain)(X, Y))
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-14)


# A derivative that is not the true one, so that it shows where it is used
@ad.custom_vjp
def seven(x: Any) -> Any:
    return ad.sin(x)


seven.defvjp(lambda x: (ad.sin(x), None), lambda _, g: (7 * g,))


@ad.custom_jvp
def eight(x: Any) -> Any:
    return ad.sin(x)


eight.defjvp(lambda p, t: (ad.sin(p[0]), 8 * t[0]))


@pytest.mark.parametrize(("f", "slope"), [(seven, 7.0), (eight, 8.0)])
def test_the_given_derivative_is_used_at_every_level(f: Any, slope: float) -> None:
    assert ad.grad(f)(1.0).item() == slope
    assert ad.jvp(f, (1.0,), (1.0,))[1].item() == slope
    assert ad.vmap(ad.grad(f))(X).tolist() == [slope] * 2
    assert ad.grad(lambda x: ad.vmap(f)(x).sum())(X).tolist() == [slope] * 2
    assert ad.grad(lambda x: ad.vmap(ad.vmap(f))(x).sum())(X.reshape(1, 2)).tolist() == [[slope] * 2]
    assert ad.jacrev(lambda x: ad.vmap(f)(x))(X).tolist() == [[slope, 0.0], [0.0, slope]]
    assert ad.jacfwd(lambda x: ad.vmap(f)(x))(X).tolist() == [[slope, 0.0], [0.0, slope]]
    for value in (lambda x: ad.vjp(f, x)[0], lambda x: ad.jvp(f, (x,), (x,))[0], lambda x: f(x)):
        both = lambda x: ad.vmap(value)(x).sum() + ad.vmap(lambda k: value(x[0] * k))(np.ones(2)).sum()  # noqa: B023
        assert ad.grad(both)(X).tolist() == ad.jacfwd(both)(X).tolist() == [3 * slope, slope]
    x = ad.tensor(X, requires_grad=True)
    f(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [slope] * 2


def test_a_result_that_is_the_same_for_the_whole_batch_has_the_given_derivative() -> None:
    zero = ad.custom_vjp(lambda x: ad.tensor(0.0))
    zero.defvjp(lambda x: (ad.tensor(0.0), x), lambda x, g: (g * ad.sin(x),))
    k = np.array([1.0, 2.0])
    for f in (
        zero,
        lambda x: zero(x) + 3 * zero(2 * x),
        lambda x: ad.vmap(lambda s: zero(x * s) * x + zero(x) * s)(k).sum(),
        lambda x: ad.fixed_point(lambda y, x: zero(x), 0.0, x),
    ):
        for transform in (ad.grad, ad.jacfwd, lambda f: ad.grad(ad.grad(f)), lambda f: ad.jacfwd(ad.grad(f))):
            one_by_one = np.stack([transform(f)(x) for x in X])
            np.testing.assert_allclose(ad.vmap(transform(f))(X), one_by_one, rtol=1e-12)


def test_a_saved_output_has_the_given_derivative_inside_vmap() -> None:
    def forward(x: Any) -> Any:
        y = ad.sin(x)
        return y, (x, y)

    f = ad.custom_vjp(ad.sin)
    f.defvjp(forward, lambda kept, g: (g * kept[0] * kept[1],))
    second = lambda f: ad.grad(lambda x: ad.grad(f)(x))
    expected = np.sin(X) + X * X * np.sin(X)
    np.testing.assert_allclose(ad.vmap(second(f))(X), expected, rtol=1e-12)
    mapped = ad.grad(lambda x: ad.grad(lambda x: ad.vmap(f)(x).sum())(x).sum())(X)
    np.testing.assert_allclose(mapped, expected, rtol=1e-12)


def test_a_forward_inside_vmap_runs_once() -> None:
    """So that a random mask is the same in the value and in the gradient of an outer level."""
    rng = ad.random.default_rng(0)
    calls = []

    def forward(x: Any) -> Any:
        calls.append(x)
        mask = rng.bernoulli(0.5, size=x.shape)
        return x * mask, mask

    drop = ad.custom_vjp(lambda x: x)
    drop.defvjp(forward, lambda mask, g: (g * mask,))
    x = ad.tensor(np.arange(1.0, 9.0), requires_grad=True)
    value = ad.vmap(lambda k: ad.vjp(drop, x * k)[0])(np.array([2.0]))
    value.sum().backward()
    kept = value.numpy()[0] != 0
    assert len(calls) == 1 and kept.any() and not kept.all()
    assert x.grad is not None and x.grad.tolist() == (2.0 * kept).tolist()


def test_values_that_a_vmap_batches_must_be_arguments() -> None:
    def value(k: Any, x: Any) -> Any:
        f = ad.custom_vjp(lambda x: ad.sin(x) * k)
        f.defvjp(lambda x: (ad.sin(x) * k, x), lambda x, g: (g * k * ad.cos(x),))
        return ad.vjp(f, x)[0]

    for x in (lambda k, y: y, lambda k, y: y * k):
        with pytest.raises(TransformError, match=r"that an enclosing ad\.vmap batches"):
            ad.grad(lambda y: ad.vmap(lambda k: value(k, x(k, y)))(X).sum())(0.3)  # noqa: B023


def slope(x: Any) -> Any:
    return ad.jacfwd(lambda u: ad.sin(u) * u)(x)


class Slope(ad.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return slope(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ad.jacfwd(slope)(ctx.saved_tensors[0])


slope_vjp = ad.custom_vjp(slope)
slope_vjp.defvjp(lambda x: (slope(x), x), lambda x, g: (g * ad.jacfwd(slope)(x),))
slope_jvp = ad.custom_jvp(slope)
slope_jvp.defjvp(lambda p, t: (slope(p[0]), t[0] * ad.jacfwd(slope)(p[0])))


@pytest.mark.parametrize("f", [slope_vjp, slope_jvp, Slope.apply])
def test_rules_that_use_transforms_run_at_the_level_of_their_arguments(f: Any) -> None:
    """Called inside vmap with a tensor from outside, and pulled inside one."""
    k, x = np.array([1.0, 2.0]), ad.tensor(0.3, requires_grad=True)
    expected = ad.grad(slope)(0.3).item()
    np.testing.assert_allclose(
        np.asarray(ad.vmap(lambda k: f(x.detach()) * k)(k)), np.asarray(slope(0.3)) * k
    )
    (g,) = ad.gradients(ad.vmap(lambda k: f(x) * k)(k).sum(), [x])
    np.testing.assert_allclose(np.asarray(g), 3 * expected)
    y = f(x) + 2 * f(x)
    for create_graph in (False, True):
        times = lambda k: k * ad.gradients(y, [x], retain_graph=True, create_graph=create_graph)[0]  # noqa: B023
        np.testing.assert_allclose(ad.asarray(ad.vmap(times)(k)).numpy(), 3 * expected * k)
    _, along = ad.linearize(lambda x: f(x) + 2 * f(x), ad.tensor(0.3))
    np.testing.assert_allclose(np.asarray(ad.vmap(lambda k: k * along(ad.tensor(1.0)))(k)), 3 * expected * k)


def test_an_output_that_ignores_the_argument_has_no_gradient_inside_vmap() -> None:
    second = ad.custom_jvp(lambda x, y: 2.0 * y)
    second.defjvp(lambda p, t: (2.0 * p[1], 2.0 * t[1]))
    x = ad.tensor(0.3, requires_grad=True)
    y = ad.vmap(lambda k: second(x, k))(np.array([1.0, 2.0])).sum()
    assert ad.gradients(y + x, [x])[0].item() == 1.0


def test_values_without_gradients_come_from_the_function_itself() -> None:
    calls: list[str] = []

    @ad.custom_vjp
    def f(x: Any) -> Any:
        calls.append("f")
        return x * 2

    def fwd(x: Any) -> Any:
        calls.append("fwd")
        return x * 2, None

    f.defvjp(fwd, lambda _, g: (2 * g,))
    assert f(3.0).item() == 6.0 and f(ad.tensor(3.0)).item() == 6.0
    with ad.no_grad():
        f(ad.tensor(3.0, requires_grad=True))
    assert calls == ["f"] * 3
    f(ad.tensor(3.0, requires_grad=True)).backward()
    assert calls == ["f"] * 3 + ["fwd"]


def test_trees_numbers_and_fixed_arguments() -> None:
    seen: list[Any] = []

    @ad.custom_vjp
    def f(p: Any, k: Any) -> Any:
        return {"a": p["w"] * k, "b": p["b"]}

    g = ad.custom_vjp(lambda name, p, n: {"a": p["w"] * n, "b": p["b"]}, nondiff_argnums=(0,))
    g.defvjp(
        lambda name, p, n: (g.f(name, p, n), (p["w"], n)),
        lambda name, r, c: seen.append((name, type(r[1]))) or ({"w": c["a"] * r[1], "b": None}, None),  # type: ignore[func-returns-value]
    )
    params = {"w": ad.tensor(X, requires_grad=True), "b": ad.tensor(Y, requires_grad=True), "name": "text"}
    out = g("net", params, 3)
    (out["a"].sum() + out["b"].sum()).backward()
    assert params["w"].grad.tolist() == [3.0, 3.0] and params["b"].grad is None
    assert seen == [("net", int)]
    with pytest.raises(TransformError, match="f has no derivative yet"):
        f(params, 3)


def test_outputs_that_were_not_used_have_zero_gradients() -> None:
    @ad.custom_vjp
    def both(x: Any) -> Any:
        return x * 2, x * 3

    both.defvjp(lambda x: ((x * 2, x * 3), None), lambda _, g: (2 * g[0] + 3 * g[1],))
    assert ad.grad(lambda x: both(x)[1])(1.0).item() == 3.0
    assert ad.grad(lambda x: both(x)[0] * both(x)[1])(1.0).item() == 12.0
    assert ad.hessian(lambda x: both(x)[0] * both(x)[1])(1.0).item() == 12.0


def test_keywords_are_positions() -> None:
    assert by_vjp(X, y=Y).tolist() == plain(X, Y).tolist()
    x = ad.tensor(X, requires_grad=True)
    by_vjp(y=Y, x=x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.cos(X) * Y)  # type: ignore[union-attr]


def test_methods_can_be_custom() -> None:
    class Net:
        @ad.custom_vjp
        def scaled(self, x: Any) -> Any:
            return x * 2

        scaled.defvjp(lambda self, x: (x * 2, None), lambda _, g: (None, 5 * g))

    assert ad.grad(lambda x: Net().scaled(x))(1.0).item() == 5.0


def test_complex_gradients_follow_the_convention() -> None:
    @ad.custom_vjp
    def square(z: Any) -> Any:
        return z * z

    square.defvjp(lambda z: (z * z, z), lambda z, g: (g * ad.conj(2 * z),))
    z = np.array([1 + 2j, -0.5j])
    for f in (square, lambda z: z * z):
        found = ad.grad(lambda z: ad.real(f(z) * (1 - 3j)).sum())(z)  # noqa: B023
        np.testing.assert_allclose(np.asarray(found), np.conj((1 - 3j) * 2 * z))


def test_half_and_single_precision() -> None:
    for dtype in (np.float32, np.float16):
        x = ad.tensor(X.astype(dtype), requires_grad=True)
        seven(x).sum().backward()
        assert x.grad is not None and x.grad.dtype == dtype


# Function --------------------------------------------------------------------------------------------


def test_function_context() -> None:
    needs: list[Any] = []

    class Scale(ad.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, factor: float, y: Any) -> Any:
            ctx.factor = factor
            needs.append(ctx.needs_input_grad)
            return x * factor, y * factor, x > 0

        @staticmethod
        def backward(ctx: Any, gx: Any, gy: Any, _: Any) -> Any:
            needs.append(ctx.needs_input_grad)
            return gx * ctx.factor, None, None

    x = ad.tensor(X, requires_grad=True)
    a, b, c = Scale.apply(x, 3.0, Y)
    assert not c.requires_grad and b.tolist() == (Y * 3).tolist()
    a.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.0, 3.0]
    assert needs == [(True, False, False)] * 2


def test_function_marks_and_leaves_gradients_out() -> None:
    class Two(ad.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            kept, fixed = x * 2, x * 3
            ctx.mark_non_differentiable(fixed)
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(None, x)
            return kept, fixed

        @staticmethod
        def backward(ctx: Any, g: Any, none: Any) -> Any:
            assert none is None and ctx.saved_tensors[0] is None
            return 2 * g

    x = ad.tensor(X, requires_grad=True)
    kept, fixed = Two.apply(x)
    assert kept.requires_grad and not fixed.requires_grad
    kept.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 2.0]


def test_random_masks_are_kept_in_second_derivatives() -> None:
    rng = ad.random.default_rng(0)

    class Drop(ad.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            mask = rng.bernoulli(0.5, size=x.shape)
            ctx.save_for_backward(mask, x)
            ctx.other = x * x  # so that the forward runs again
            return x**3 * mask

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            mask, _ = ctx.saved_tensors
            return 3 * ctx.other * mask * g

    x = ad.tensor(np.arange(1.0, 9.0), requires_grad=True)
    y = Drop.apply(x)
    kept = y.numpy() != 0
    (g,) = ad.gradients(y.sum(), [x], create_graph=True)
    (h,) = ad.gradients(g.sum(), [x])
    assert kept.any() and not kept.all()
    np.testing.assert_array_equal(h.numpy(), 6 * x.numpy() * kept)


def test_a_second_backward_is_an_error_unless_retained() -> None:
    x = ad.tensor(X, requires_grad=True)
    y = SinTimes.apply(x, ad.tensor(Y)).sum()
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(GraphReleasedError, match="SinTimes"):
        y.backward()


def test_modes_see_custom_calls() -> None:
    x = ad.tensor(X)
    with ad.Tape() as tape:
        tape.watch(x)
        y = seven(x).sum()
    assert tape.gradients(y)[x].tolist() == [7.0, 7.0]
    x.requires_grad_()
    spoiled = ad.custom_vjp(lambda x: x)
    spoiled.defvjp(lambda x: (x, None), lambda _, g: (ad.log(g * 0) * 0,))
    with ad.detect_anomaly():
        y = spoiled(x).sum()
        with np.errstate(all="ignore"), pytest.raises(ad.errors.AnomalyError, match="'log' produced inf"):
            y.backward()


# Where gradients stop --------------------------------------------------------------------------------


def test_stop_gradient() -> None:
    assert ad.grad(lambda x: x * ad.stop_gradient(x))(3.0).item() == 3.0
    assert ad.jvp(lambda x: x * ad.stop_gradient(x), (3.0,), (1.0,))[1].item() == 3.0
    tree = ad.stop_gradient({"w": ad.tensor(X, requires_grad=True), "n": 3, "s": "text"})
    assert not tree["w"].requires_grad and tree["n"] == 3 and tree["s"] == "text"
    total = ad.grad(lambda x: ad.vmap(lambda a: a * ad.stop_gradient(a))(x).sum())(X)
    assert total.tolist() == X.tolist()


def test_straight_through_has_the_exact_value_and_the_gradient_of_the_identity() -> None:
    x = np.array([0.1, 2.6, -1.5])
    f = lambda x: ad.straight_through(ad.round, x)
    assert f(x).tolist() == np.round(x).tolist()
    assert ad.grad(lambda x: (f(x) ** 2).sum())(x).tolist() == (2 * np.round(x)).tolist()
    assert ad.jvp(f, (x,), (x,))[1].tolist() == x.tolist()
    assert ad.grad(lambda x: (ad.vmap(f)(x) ** 2).sum())(x).tolist() == (2 * np.round(x)).tolist()
    by_numpy = ad.grad(lambda x: ad.straight_through(lambda a: np.sign(a.numpy()), x).sum())
    assert by_numpy(x).tolist() == [1.0] * 3
    scale = ad.tensor(0.5, requires_grad=True)  # a constant inside
    assert (
        ad.grad(lambda x: ad.straight_through(lambda a: ad.round(a / scale) * scale, x).sum())(x).tolist()
        == [1.0] * 3
    )
    with pytest.raises(ShapeError, match="must keep the shape of x, \\(3,\\), but returned \\(\\)"):
        ad.straight_through(ad.sum, x)


# Mistakes --------------------------------------------------------------------------------------------


def wrong(bwd: Callable[..., Any], x: Any = X) -> Callable[[], Any]:
    @ad.custom_vjp
    def f(weights: Any) -> Any:
        return weights * 2

    f.defvjp(lambda weights: (weights * 2, weights), bwd)
    return lambda: ad.grad(lambda w: f(w).sum())(x)


class Bad(ad.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, n: Any) -> Any:
        return x if n else "text"

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


def lost() -> Any:
    w = ad.tensor(2.0, requires_grad=True)
    f = ad.custom_vjp(lambda x: x * w)
    f.defvjp(lambda x: (x * w, None), lambda _, g: (g,))
    return f(ad.tensor(1.0, requires_grad=True))


MISTAKES: dict[str, tuple[type[Exception], Callable[[], Any], str]] = {
    "no tuple": (RuleError, wrong(lambda r, g: g), r"backward of f, .*one gradient per argument, 1 in all"),
    "too many": (RuleError, wrong(lambda r, g: (g, g)), "1 in all, but returned 2"),
    "shape": (
        RuleError,
        wrong(lambda r, g: (g.sum(),)),
        r"backward of f returned a gradient of shape \(\) for 'weights', which has shape \(2,\)",
    ),
    "dtype": (
        RuleError,
        wrong(lambda r, g: (g.astype(np.float32),)),
        "float32 for 'weights', which is float64",
    ),
    "kind": (RuleError, wrong(lambda r, g: ("text",)), "returned a str as the gradient of 'weights'"),
    "structure": (
        TransformError,
        lambda: (
            lambda f: (
                f.defvjp(lambda p: (p["a"] * p["b"], p), lambda p, g: ({"a": g},)),
                ad.grad(lambda p: f(p).sum())({"a": X, "b": Y}),
            )
        )(ad.custom_vjp(lambda p: p["a"] * p["b"])),
        r"the gradient of argument 0 is missing \['b'\]; expected \{'a': \*, 'b': \*\}",
    ),
    "forward": (
        RuleError,
        lambda: (lambda f: (f.defvjp(lambda x: x, lambda r, g: (g,)), ad.grad(f)(1.0)))(ad.custom_vjp(lambda x: x)),
        r"must return \(result, residuals\), but returned a Tensor",
    ),
    "a captured tensor": (TransformError, lost, "uses a tensor that requires grad and is not among its arguments"),
    "numpy in the backward, twice": (
        RuleError,
        lambda: ad.hessian(
            lambda x: (_numpy_backward(x) ** 2).sum()
        )(X),
        "is not part of a graph, so it cannot be differentiated again",
    ),
    "numpy in the backward, forward mode": (
        RuleError,
        lambda: ad.jvp(_numpy_backward, (X,), (X,)),
        "is not part of a graph",
    ),
    "a tangent that does not depend": (
        RuleError,
        lambda: (lambda f: (f.defjvp(lambda p, t: (p[0], ad.ones(2))), ad.grad(lambda x: f(x).sum())(X)))(
            ad.custom_jvp(lambda x: x)
        ),
        "does not depend on the tangents",
    ),
    "a tangent of another shape": (
        RuleError,
        lambda: (lambda f: (f.defjvp(lambda p, t: (p[0], t[0].sum())), ad.jvp(f, (X,), (X,))))(
            ad.custom_jvp(lambda x: x)
        ),
        r"the tangent of .* has shape \(\) and dtype float64, but must have shape \(2,\)",
    ),
    "no jvp": (TransformError, lambda: ad.custom_jvp(plain)(X, Y), "plain has no derivative yet"),
    "not a function": (InputError, lambda: ad.custom_vjp(3), "custom_vjp: expected a function, but got int"),  # type: ignore[arg-type]
    "fwd": (InputError, lambda: ad.custom_vjp(plain).defvjp(3, plain), "defvjp: fwd"),  # type: ignore[arg-type]
    "nondiff_argnums": (ArgumentError, lambda: ad.custom_vjp(plain, (-1,)), "nondiff_argnums"),
    "nothing": (
        TransformError,
        lambda: (lambda f: (f.defvjp(plain, plain), f(1.0)))(ad.custom_vjp(lambda x: None)),
        "returned None",
    ),
    "Function outputs": (RuleError, lambda: Bad.apply(ad.tensor(X), 0), "Bad.forward must return a tensor"),
    "Function arity": (
        RuleError,
        lambda: Bad.apply(ad.tensor(X, requires_grad=True), 1).sum().backward(),
        "Bad.backward must return one gradient per argument of forward, 2 in all, but returned 1",
    ),
    "saving an array": (
        InputError,
        lambda: ad.Function.forward.__globals__["Context"](()).save_for_backward(3),
        "save_for_backward accepts tensors, not int",
    ),
}  # fmt: skip


@ad.custom_vjp
def _numpy_backward(x: Any) -> Any:
    return ad.sin(x)


_numpy_backward.defvjp(lambda x: (ad.sin(x), x), lambda x, g: (ad.tensor(np.cos(x.numpy()) * g.numpy()),))


def test_numpy_in_the_backward_serves_first_order() -> None:
    np.testing.assert_allclose(np.asarray(ad.grad(lambda x: _numpy_backward(x).sum())(X)), np.cos(X))


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name: str) -> None:
    error, mistake, match = MISTAKES[name]
    with pytest.raises(error, match=match):
        mistake()


def test_an_argument_that_nobody_saved_is_freed():
    class Plus(ad.Function):
        @staticmethod
        def forward(ctx, x):
            return ad.asarray(x.numpy() + 1)

        @staticmethod
        def backward(ctx, g):
            return g

    @ad.custom_vjp
    def plus(x):
        return x + 1

    plus.defvjp(lambda x: (x + 1, None), lambda _, g: (g,))
    x = ad.tensor([1.0, 2.0], requires_grad=True)
    for f in (Plus.apply, plus):
        y = x * 2
        freed = weakref.ref(y)
        z = f(y)
        del y
        gc.collect()
        assert freed() is None
        z.sum().backward()
