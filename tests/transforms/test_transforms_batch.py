"""vmap: over the op table, axes, nesting, and the messages."""

from __future__ import annotations

import copy
import gc
from typing import Any

import numpy as np
import pytest
from messages import message_of
from table import CASES, OP_NAMES

import adjoint as ad
from adjoint import nn
from adjoint.core.op import OPS
from adjoint.core.tensor import wrap
from adjoint.errors import ArgumentError, InputError, ShapeError, TransformError
from adjoint.testing import Case

SIZE = 3
ALL = [case for name in OP_NAMES for case in CASES.get(name, [])]


def varied(a: Any, axis: int, seed: int) -> Any:
    """A batch of arrays like ``a``: itself, and others from the same range, along ``axis``."""
    if a.dtype.kind in "fc":  # scaled a little: inside the domain where ``a`` is
        scales = np.linspace(1.0, 0.9, SIZE)
        rows = [(a * s).astype(a.dtype) for s in scales]
    else:
        rows = [np.roll(a.ravel(), k).reshape(a.shape) for k in range(SIZE)]
    return np.stack(rows, axis=axis)


def outputs(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


def arrays_of(case: Case) -> list[int]:
    return [i for i, a in enumerate(case.args) if isinstance(a, np.ndarray)]


def patterns(case: Case) -> list[dict[int, int]]:
    """Which arguments are batched, and along which axis."""
    places = arrays_of(case)
    found = [dict.fromkeys(places, 0), dict.fromkeys(places, -1)]
    if len(places) > 1:
        found += [{i: 0} for i in places]
    return found


@pytest.mark.parametrize("case", ALL, ids=str)
def test_vmap_equals_a_loop(case: Case) -> None:
    op = OPS[case.op].eager
    if not OPS[case.op].pure or not arrays_of(case):
        pytest.skip("nothing to batch")
    for pattern in patterns(case):
        args = [varied(a, pattern[i], i) if i in pattern else a for i, a in enumerate(case.args)]
        axes = tuple(pattern.get(i) for i in range(len(args)))
        rows = [
            outputs(op(*(np.take(a, k, axis=axes[i]) if axes[i] is not None else a for i, a in enumerate(args)),
                       **case.params))
            for k in range(SIZE)
        ]  # fmt: skip
        found = outputs(ad.vmap(lambda *xs: op(*xs, **case.params), in_axes=axes)(*args))
        for j, out in enumerate(found):
            expected = np.stack([r[j].numpy() for r in rows])
            assert out.dtype == expected.dtype
            np.testing.assert_allclose(np.asarray(out), expected, rtol=1e-12, atol=1e-12)


SMOOTH = [
    case
    for case in ALL
    if OPS[case.op].differentiable and any(np.asarray(a).dtype.kind == "f" for a in case.args)
]


def weighted_loss(case: Case) -> Any:
    """The op as a real function of its float arguments, with fixed weights on its outputs."""

    def f(*xs: Any) -> Any:
        args = list(case.args)
        moving = [i for i, a in enumerate(args) if isinstance(a, np.ndarray) and a.dtype.kind == "f"]
        for i, x in zip(moving, xs, strict=True):
            args[i] = x
        total = 0.0
        for out in outputs(OPS[case.op].eager(*args, **case.params)):
            if out.dtype.kind in "fc":
                weights = np.random.default_rng(3).uniform(0.5, 1.5, out.shape)
                total = total + (ad.abs(out) ** 2 * weights if out.dtype.kind == "c" else out * weights).sum()
        return total

    return f


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_vmap_of_grad_and_of_jvp_equal_a_loop(case: Case) -> None:
    f = weighted_loss(case)
    primals = [a for a in case.args if isinstance(a, np.ndarray) and a.dtype.kind == "f"]
    batch = [varied(a, 0, i) for i, a in enumerate(primals)]
    numbers = tuple(range(len(primals)))
    found = ad.vmap(ad.grad(f, numbers))(*batch)
    pushed = ad.vmap(lambda *xs: ad.jvp(f, xs, xs)[1])(*batch)
    outer = ad.grad(lambda *xs: (ad.vmap(f)(*xs)).sum(), numbers)(*batch)
    for k in range(SIZE):
        row = [b[k] for b in batch]
        expected = ad.grad(f, numbers)(*row)
        for g, o, e in zip(found, outer, expected, strict=True):
            np.testing.assert_allclose(np.asarray(g)[k], np.asarray(e), rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(np.asarray(o)[k], np.asarray(e), rtol=1e-10, atol=1e-12)
        along = ad.jvp(f, row, row)[1]
        np.testing.assert_allclose(np.asarray(pushed)[k], np.asarray(along), rtol=1e-9, atol=1e-12)


def none_of(a: Any, axis: int) -> Any:
    """An empty batch of arrays like ``a``."""
    return np.stack([a], axis=axis).take([], axis=axis)


@pytest.mark.parametrize("case", ALL, ids=str)
def test_an_empty_batch_has_the_shapes_and_dtypes_of_any_other(case: Case) -> None:
    op = OPS[case.op].eager
    if not arrays_of(case):
        pytest.skip("nothing to batch")
    single = outputs(op(*case.args, **case.params))
    for pattern in patterns(case):
        args = [none_of(a, pattern[i]) if i in pattern else a for i, a in enumerate(case.args)]
        axes = tuple(pattern.get(i) for i in range(len(args)))
        found = outputs(ad.vmap(lambda *xs: op(*xs, **case.params), in_axes=axes)(*args))
        assert [(y.shape, y.dtype) for y in found] == [((0, *y.shape), y.dtype) for y in single]


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_an_empty_batch_has_empty_derivatives(case: Case) -> None:
    f = weighted_loss(case)
    primals = [a for a in case.args if isinstance(a, np.ndarray) and a.dtype.kind == "f"]
    batch = [none_of(a, 0) for a in primals]
    numbers = tuple(range(len(primals)))
    squares = lambda *xs: sum((g * g).sum() for g in ad.grad(f, numbers)(*xs))
    for gradients in (
        ad.vmap(ad.grad(f, numbers))(*batch),
        ad.vmap(ad.grad(squares, numbers))(*batch),
        ad.grad(lambda *xs: ad.vmap(f)(*xs).sum(), numbers)(*batch),
    ):
        assert [(g.shape, g.dtype) for g in gradients] == [(b.shape, b.dtype) for b in batch]
    assert ad.vmap(lambda *xs: ad.jvp(f, xs, xs)[1])(*batch).shape == (0,)
    if len(primals) > 1:  # one at a time: the others are the same for all
        for i, b in enumerate(batch):
            alone = lambda x, i=i: f(*(x if j == i else wrap(a) for j, a in enumerate(primals))) + 0 * x.sum()
            assert ad.vmap(ad.grad(alone))(b).shape == b.shape
            fixed = [wrap(a).requires_grad_() for a in primals]
            loss = lambda x, i=i, fixed=fixed: f(*(x if j == i else a for j, a in enumerate(fixed)))
            total = ad.vmap(loss)(wrap(b)).sum()
            others = [a for j, a in enumerate(fixed) if j != i]
            found = ad.gradients(total, others, allow_unused=True) if total.requires_grad else ()
            for a, g in zip(others, found, strict=False):
                assert g is None or (g.shape == a.shape and not np.any(g.numpy())), case


# Rules that serve several arguments at once compute in place, so whatever they read must be at one level.
JOINT = [case for case in SMOOTH if OPS[case.op].joint is not None]


def ones_like(t: Any) -> Any:
    return np.ones(t.shape, t.dtype)


def leaves_of(xs: Any) -> Any:
    return [x.detach().requires_grad_() for x in xs]


def by_backward(f: Any, xs: Any) -> Any:
    leaves = leaves_of(xs)
    y = f(*leaves)
    y.backward(gradient=ones_like(y))
    return [x.grad for x in leaves]


def by_tape(f: Any, xs: Any) -> Any:
    leaves = leaves_of(xs)
    with ad.Tape() as tape:
        y = f(*leaves)
    grads = tape.gradients(y, gradient=ones_like(y))
    found = dict(grads.items())
    return [found.get(x) for x in leaves]


def by_gradients(f: Any, xs: Any) -> Any:
    leaves = leaves_of(xs)
    y = f(*leaves)
    return ad.gradients(y, leaves, ones_like(y), allow_unused=True)


def by_vjp(f: Any, xs: Any) -> Any:
    y, pull = ad.vjp(f, *xs)
    return pull(ones_like(y))


def second(f: Any, xs: Any) -> Any:
    every = tuple(range(len(xs)))
    slope = lambda *xs: sum(g.sum() for g in ad.grad(lambda *xs: f(*xs).sum(), every)(*xs))
    return ad.grad(slope, every)(*xs)


WAYS: dict[str, Any] = {
    "grad": lambda f, xs: ad.grad(lambda *xs: f(*xs).sum(), tuple(range(len(xs))))(*xs),
    "vjp": by_vjp,
    "backward": by_backward,
    "tape": by_tape,
    "gradients": by_gradients,
    "jvp": lambda f, xs: [ad.jvp(f, tuple(xs), tuple(map(ones_like, xs)))[1]],
    "jacrev": lambda f, xs: ad.jacrev(f, tuple(range(len(xs))))(*xs),
    "hvp": lambda f, xs: ad.hvp(lambda *xs: f(*xs).sum(), tuple(xs), tuple(map(ones_like, xs))),
    "second": second,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", JOINT, ids=str)
def test_seeds_and_saved_values_of_different_levels(case: Case, way: str) -> None:
    moving = [i for i, a in enumerate(case.args) if isinstance(a, np.ndarray) and a.dtype.kind == "f"]

    def f(*xs: Any) -> Any:
        args = list(case.args)
        for i, x in zip(moving, xs, strict=True):
            args[i] = x
        return outputs(OPS[case.op].eager(*args, **case.params))[0]

    def found(*xs: Any) -> Any:
        return tuple(ad.zeros(1) if g is None else g for g in WAYS[way](f, xs))

    for pattern in [dict.fromkeys(moving, 0), *({i: 0} for i in moving)]:
        rows = [ad.tensor(varied(case.args[i], 0, i) if i in pattern else case.args[i]) for i in moving]
        batched = ad.vmap(found, tuple(pattern.get(i) for i in moving))(*rows)
        for k in range(SIZE):
            row = [x[k] if i in pattern else x for i, x in zip(moving, rows, strict=True)]
            for b, e in zip(batched, found(*row), strict=True):
                np.testing.assert_allclose(b.numpy()[k], e.numpy(), rtol=1e-9, atol=1e-11)


def test_a_jacobian_of_layer_norm_with_a_weight() -> None:
    x, w = np.array([0.5, 1.0, 2.0, -1.0]), ad.tensor(np.array([1.0, 2.0, 0.5, -1.0]))
    f = lambda x: nn.functional.layer_norm(x, (4,), w)
    np.testing.assert_allclose(
        np.asarray(ad.jacrev(f)(x)), np.asarray(ad.jacfwd(f)(x)), rtol=1e-12, atol=1e-13
    )
    total = lambda y: nn.functional.layer_norm(y, (4,)).sum()
    np.testing.assert_allclose(np.asarray(ad.vmap(ad.grad(total))(np.stack([x, 2 * x]))), 0.0, atol=1e-14)


def test_axes_in_and_out() -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 4, 3)), np.arange(3.0)
    out = ad.vmap(lambda a, b: a.T * b, in_axes=(-1, 0), out_axes=1)(x, y)
    np.testing.assert_allclose(np.asarray(out), np.stack([x[..., k].T * y[k] for k in range(3)], 1))
    out = ad.vmap(lambda a: {"p": a.sum(0), "q": a}, in_axes=1, out_axes={"p": 0, "q": -1})(x)
    np.testing.assert_allclose(np.asarray(out["p"]), x.sum(0))
    np.testing.assert_allclose(np.asarray(out["q"]), np.moveaxis(x, 1, -1))


def test_trees_of_axes_and_what_is_the_same_for_all() -> None:
    def f(p: Any, x: Any, *, scale: float) -> Any:
        return (p["w"] * x + p["b"]) * scale, p["b"] * 2, 7.0

    w, b, x = np.arange(3.0), np.array([1.0, 2.0]), np.ones((3, 2))
    axes = ({"w": 0, "b": None}, 0)
    out, same, number = ad.vmap(f, in_axes=axes, out_axes=(0, None, None))({"w": w, "b": b}, x, scale=2.0)
    np.testing.assert_allclose(np.asarray(out), 2 * (w[:, None] * x + b))
    assert same.tolist() == [2.0, 4.0]
    assert number.item() == 7.0
    out, same, number = ad.vmap(f, in_axes=axes)({"w": w, "b": b}, x, scale=2.0)
    assert same.shape == (3, 2)
    assert number.shape == (3,)


def test_chunks_give_the_same() -> None:
    x = np.random.default_rng(1).standard_normal((7, 4))
    f = lambda r: (ad.sin(r).sum(), r[::-1])
    whole = ad.vmap(f, out_axes=(0, 1))(x)
    for n in (1, 2, 7, 100):
        for a, b in zip(whole, ad.vmap(f, out_axes=(0, 1), chunk_size=n)(x), strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_empty_batch() -> None:
    assert ad.vmap(lambda r: ad.exp(r).sum())(np.ones((0, 4))).shape == (0,)


def test_nested_vmap_is_an_outer_product() -> None:
    x, y = np.arange(3.0), np.arange(4.0)
    f = ad.vmap(ad.vmap(lambda a, b: a * b + a, in_axes=(None, 0)), in_axes=(0, None))
    np.testing.assert_allclose(np.asarray(f(x, y)), np.multiply.outer(x, y) + x[:, None])


def test_per_sample_gradients() -> None:
    random = np.random.default_rng(0)
    params = {
        "w": [random.standard_normal((4, 8)), random.standard_normal((8, 3))],
        "b": random.standard_normal(3),
    }
    X, Y = random.standard_normal((6, 4)), random.standard_normal((6, 3))

    def loss(p: Any, x: Any, y: Any) -> Any:
        return ((ad.tanh(x @ p["w"][0]) @ p["w"][1] + p["b"] - y) ** 2).mean()

    found = ad.vmap(ad.grad(loss), in_axes=(None, 0, 0))(params, X, Y)
    for k in range(6):
        one = ad.grad(loss)(params, X[k], Y[k])
        for a, b in zip(ad.tree.leaves(found), ad.tree.leaves(one), strict=True):
            np.testing.assert_allclose(np.asarray(a)[k], np.asarray(b), rtol=1e-12, atol=1e-14)


def test_gradients_reach_captured_tensors_and_arguments() -> None:
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    x = ad.tensor(np.arange(6.0).reshape(3, 2), requires_grad=True)
    ad.vmap(lambda r: (r * w) @ w)(x).sum().backward()
    assert w.grad is not None
    assert x.grad is not None
    np.testing.assert_allclose(w.grad.numpy(), 2 * w.numpy() * x.numpy().sum(0))
    np.testing.assert_allclose(x.grad.numpy(), np.broadcast_to(w.numpy() ** 2, (3, 2)))


def test_grad_of_vmap_of_grad_with_captured_leaf() -> None:
    # Σ_k d/dx (w x³)|_{x_k} = 3 w Σ x_k²; its derivatives in w and x
    x = np.array([1.0, 2.0, 3.0])

    def total(w: Any, x: Any) -> Any:
        return ad.vmap(ad.grad(lambda t: w * t**3))(x).sum()

    gw, gx = ad.grad(total, (0, 1))(2.0, x)
    np.testing.assert_allclose(gw.item(), 3 * (x**2).sum())
    np.testing.assert_allclose(np.asarray(gx), 6 * 2.0 * x)
    d2 = ad.grad(lambda w: ad.vmap(lambda t: ad.grad(lambda u: (u * w) ** 3)(t) * w)(ad.tensor(x)).sum())
    np.testing.assert_allclose(d2(2.0).item(), 3 * 4 * 2.0**3 * (x**2).sum())


def test_leaf_made_inside() -> None:
    def f(x: Any) -> Any:
        w = ad.tensor(2.0, requires_grad=True)
        (g,) = ad.gradients((w * x) ** 2, [w])
        return g

    np.testing.assert_allclose(np.asarray(ad.vmap(f)(np.array([1.0, 3.0]))), [4.0, 36.0])


def test_constant_leaf_of_inner_grad() -> None:
    w = ad.tensor([1.0, 2.0])
    found = ad.vmap(lambda b: ad.grad(lambda w: (w * b).sum() ** 2)(w))(np.array([1.0, 2.0]))
    np.testing.assert_allclose(np.asarray(found), [[6.0, 6.0], [24.0, 24.0]])


def test_advanced_indices() -> None:
    x = np.random.default_rng(2).standard_normal((3, 4, 5, 6))
    i, j = np.array([0, 2, 1]), np.array([3, 0, 1])
    for key in [(i,), (slice(None), j), (i, slice(None), j), (0, slice(None), j), (i, j), (i[:, None], j),
                (Ellipsis, j), (i, None, j), (1, Ellipsis, -1), (x[0, :, :, 0] > 0,)]:  # fmt: skip
        expected = np.stack([x[k][key] for k in range(3)])
        np.testing.assert_array_equal(np.asarray(ad.vmap(lambda r: r[key])(x)), expected)  # noqa: B023
        batched = ad.vmap(ad.grad(lambda r: (r[key] ** 3).sum()))(x)  # noqa: B023
        rows = [np.asarray(ad.grad(lambda r: (r[key] ** 3).sum())(x[k])) for k in range(3)]  # noqa: B023
        np.testing.assert_allclose(np.asarray(batched), np.stack(rows))
        value = np.random.default_rng(3).standard_normal(expected.shape)
        for v, axis in ((value, 0), (value[0], None)):
            found = ad.vmap(lambda r, v: r.at[key].set(v), in_axes=(0, axis))(x, v)  # noqa: B023
            rows = [np.asarray(ad.tensor(x[k]).at[key].set(v[k] if axis == 0 else v)) for k in range(3)]
            np.testing.assert_array_equal(np.asarray(found), np.stack(rows))


@pytest.mark.parametrize("xb", [False, True])
@pytest.mark.parametrize("yb", [False, True])
@pytest.mark.parametrize(
    ("xs", "ys"),
    [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((2, 3), (3, 1)), ((5, 2, 3), (3, 4)),
     ((2, 3), (5, 3, 4)), ((3,), (5, 3, 4)), ((5, 2, 3), (3,)), ((4, 1, 2, 3), (5, 3, 4))],
)  # fmt: skip
def test_matmul(xs: Any, ys: Any, xb: bool, yb: bool) -> None:
    if not xb and not yb:
        return
    random = np.random.default_rng(4)
    x = random.standard_normal((6, *xs) if xb else xs)
    y = random.standard_normal((6, *ys) if yb else ys)
    found = ad.vmap(ad.matmul, in_axes=(0 if xb else None, 0 if yb else None))(x, y)
    rows = [np.matmul(x[k] if xb else x, y[k] if yb else y) for k in range(6)]
    np.testing.assert_allclose(np.asarray(found), np.stack(rows), rtol=1e-12, atol=1e-13)


def test_constants_are_numbers_inside() -> None:
    w = ad.tensor([1.0, -2.0], requires_grad=True)

    def f(x: Any) -> Any:
        y = w * 2
        lifted = y + 0 * x  # differs
        assert y[0].item() == 2.0
        return lifted.sum() if y[1].item() < 0 else x

    assert ad.vmap(f)(np.zeros(3)).shape == (3,)


_CONVERSION = (
    "conversion to a NumPy array needs the values of a tensor, which are not available inside ad.vmap.\n"
    "  To index an array X by a tensor, write ad.tensor(X)[rows].  To join tensors, use ad.stack instead of "
    "np.array.  To draw random numbers, use ad.random."
)
MISTAKES: list[tuple[Any, type[Exception], str]] = [
    (lambda: ad.vmap(3), InputError, "vmap: expected a function, but got int."),
    (lambda: ad.vmap(lambda x: x, chunk_size=0), ArgumentError,
     "vmap: chunk_size must be a positive integer or None, not 0."),
    (lambda: ad.vmap(lambda x: x)(1.0), ShapeError,
     "vmap: x is 0-d and has no axis 0.\n  Set its entry of in_axes to None if it is the same for all elements."),
    (lambda: ad.vmap(lambda x, y: x)(np.ones(3), np.ones(4)), ShapeError,
     "vmap: the batch axes differ in length: x has 3, y has 4."),
    (lambda: ad.vmap(lambda x: x, in_axes=None)(np.ones(3)), ArgumentError,
     "vmap: in_axes is None for every argument, so there is no batch.  Set it to 0 for one argument."),
    (lambda: ad.vmap(lambda x: x, in_axes=2)(np.ones(3)), ShapeError,
     "vmap: in_axes of x: axis 2 is out of range: a 1-d tensor has axes -1 to 0."),
    (lambda: ad.vmap(lambda x, y: x, in_axes=(0,))(np.ones(3), 1.0), TransformError,
     "vmap: in_axes is (0,), which does not match the structure (*, *)."),
    (lambda: ad.vmap(lambda x: x, out_axes=None)(np.ones(3)), TransformError,
     "vmap: out_axes is None for a result that differs between the elements of the batch.\n"
     "  Set out_axes to the position of the batch axis."),
    (lambda: ad.vmap(lambda x: None)(np.ones(3)), TransformError,
     "vmap: <lambda> returned None.  Return a tensor."),
    (lambda: ad.vmap(lambda x: x if x > 0 else -x)(np.ones(3)), InputError,
     "a Python condition needs the values of a tensor, which are not available inside ad.vmap.\n"
     "  Compute with ad functions there, or make an op with ad.define; ad.where replaces a condition on values."),
    (lambda: ad.vmap(lambda i: np.ones(4)[i])(np.array([[0], [1]])), InputError, _CONVERSION),
    (lambda: ad.vmap(lambda x: np.array([x[0], x[1]]))(np.ones((3, 2))), InputError, _CONVERSION),
    (lambda: ad.vmap(lambda i: [1, 2][i])(np.array([0, 1])), InputError,
     "an index needs the values of a tensor, which are not available inside ad.vmap.\n"
     "  Index a tensor, ad.tensor(values)[i] or ad.stack(tensors)[i].  For range(n), use ad.fori_loop."),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), MISTAKES)
def test_mistakes_are_explained(call: Any, error: type[Exception], message: str) -> None:
    assert message_of(error, call) == message


def test_op_without_rule_is_refused_by_name() -> None:
    name = "no_batching_rule_example"
    op = OPS.get(name)
    odd = op.eager if op else ad.define(name, lambda x: np.sort(x, axis=None), None, kind="general")
    with pytest.raises(TransformError, match="vmap: 'no_batching_rule_example' has no batching rule"):
        ad.vmap(odd)(np.ones((2, 3)))


def test_detach_inside_cuts_the_outer_history_too() -> None:
    x = np.array([1.0, 2.0])
    g = ad.grad(lambda w: ad.vmap(lambda t: (w * t).detach() * w)(x).sum())(3.0)
    assert g.item() == 9.0  # Σ w t, and not its double
    nested = ad.vmap(lambda w: ad.grad(lambda w: ad.vmap(lambda t: (w * t).detach() * w)(x).sum())(w))
    np.testing.assert_allclose(np.asarray(nested(np.array([3.0, 4.0]))), [9.0, 12.0])


def test_outer_tensor_made_a_leaf_inside_is_itself_afterwards() -> None:
    w = ad.tensor([1.0, 2.0])

    def f(x: Any) -> Any:
        w.requires_grad_()
        (g,) = ad.gradients((w * x).sum(), [w])
        return g

    np.testing.assert_allclose(np.asarray(ad.vmap(f)(np.array([1.0, 2.0]))), [[1.0, 1.0], [2.0, 2.0]])
    assert type(w) is ad.Tensor
    assert w.requires_grad
    (w * 2).sum().backward()
    assert w.grad is not None


def test_captured_leaf_asked_again_stays_outside() -> None:
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    ad.vmap(lambda x: (w.requires_grad_() * x).sum())(np.array([1.0, 2.0])).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [3.0, 3.0]


def test_copies_inside() -> None:
    x = np.array([1.0, 2.0])
    assert ad.vmap(lambda t: copy.copy(t) + ad.tensor(t, dtype=np.float32))(x).tolist() == [2.0, 4.0]


LABELS = np.array([0, 2, 1, 1, 0])
ROWS = np.random.default_rng(5).standard_normal((5, 4))
TABLE = np.random.default_rng(6).standard_normal((4, 3))

USER_LEVEL: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "index by a batched number": (lambda x, i: x[i], (ROWS, LABELS)),
    "take": (lambda x, i: ad.take(x, i), (ROWS, LABELS)),
    "rows of one table": (lambda i: ad.tensor(TABLE)[i], (LABELS,)),
    "take_along_axis": (lambda x, i: ad.take_along_axis(x, ad.stack([i, i + 1]), axis=0), (ROWS, LABELS)),
    "sort and flip": (lambda x: ad.flip(ad.sort(x)), (ROWS,)),
    "median and std": (lambda x: ad.median(x) + ad.std(x), (ROWS,)),
    "norm": (lambda x: ad.linalg.norm(x), (ROWS,)),
    "solve": (lambda x: ad.linalg.solve(np.eye(4) + ad.outer(x, x), x), (ROWS,)),
    "a loop over elements": (lambda x: sum(v * v for v in x), (ROWS,)),
    "stack with a constant": (lambda x: ad.stack([x[0], x[1] * 2, ad.tensor(3.0)]), (ROWS,)),
    "numpy functions": (lambda x: np.sin(x) + np.sum(x), (ROWS,)),
    "clip and cast": (lambda x: ad.clip(x, -1, 1).astype(np.float32), (ROWS,)),
    "at": (lambda x, i: x.at[1].add(x[i]), (ROWS, LABELS)),
    "einsum": (lambda x: ad.einsum("i,ij,j->", x, ad.tensor(TABLE), ad.tensor(TABLE[0])), (ROWS,)),
    "linspace": (lambda x: ad.linspace(x[0], 2.0, 5) * ad.linspace(0.0, x[1], 5, endpoint=False), (ROWS,)),
    "linspace of vectors": (lambda x: np.linspace(x, 2 * x, 3), (ROWS,)),
    "interp": (lambda x: np.interp(x, np.array([-1.0, 0.0, 0.5]), ad.sin(x[:3])), (ROWS,)),
    "interp at batched places": (lambda x: np.interp(np.array([-9.0, 0.1, 9.0]), ad.sort(x), x), (ROWS,)),
    "cross entropy": (lambda x, i: -ad.log_softmax(x)[i], (ROWS, LABELS)),
}


@pytest.mark.parametrize("name", USER_LEVEL)
def test_what_users_write_equals_a_loop(name: str) -> None:
    function, args = USER_LEVEL[name]
    whole = np.asarray(ad.vmap(function)(*args))
    rows = [np.asarray(function(*(ad.tensor(a[k]) for a in args))) for k in range(5)]
    np.testing.assert_allclose(whole, np.stack(rows), rtol=1e-6 if whole.dtype == np.float32 else 1e-12)
    if args[0].dtype.kind == "f" and whole.dtype == np.float64:
        grads = np.asarray(ad.vmap(ad.grad(lambda *xs: (function(*xs) ** 2).sum()))(*args))
        for k in range(5):
            one = ad.grad(lambda *xs: (function(*xs) ** 2).sum())(*(ad.tensor(a[k]) for a in args))
            np.testing.assert_allclose(grads[k], np.asarray(one), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", USER_LEVEL)
def test_what_users_write_takes_an_empty_batch(name: str) -> None:
    function, args = USER_LEVEL[name]
    whole, none = (np.asarray(ad.vmap(function)(*(a[:n] for a in args))) for n in (1, 0))
    assert (none.shape, none.dtype) == ((0, *whole.shape[1:]), whole.dtype)


def test_index_batched_at_two_levels() -> None:
    x, i = np.random.default_rng(7).standard_normal((2, 5)), np.array([[0, 4, 2], [1, 1, 3]])
    found = ad.vmap(lambda row, ks: ad.vmap(lambda k: row[k])(ks))(x, i)
    np.testing.assert_array_equal(np.asarray(found), np.take_along_axis(x, i, 1))
    found = ad.vmap(lambda k: ad.vmap(lambda row: row[k])(ad.tensor(x)))(np.array([0, 3]))
    np.testing.assert_array_equal(np.asarray(found), x[:, [0, 3]].T)


def test_ops_of_users_get_rules() -> None:
    def defined(name: str, *args: Any, **facts: Any) -> Any:
        return OPS[name].eager if name in OPS else ad.define(name, *args, **facts)

    total = defined("batch_example_total", lambda x: x.sum(-1), lambda xp, g, y, x: g[..., None] * xp.ones_like(x),
                    kind="linear", saves="x", batch="leading")  # fmt: skip
    first = defined("batch_example_first", lambda x: x[0], None, kind="general",
                    batch=lambda op, size, x: x.value[:, 0])  # fmt: skip
    np.testing.assert_allclose(np.asarray(ad.vmap(total)(ROWS)), ROWS.sum(1))
    np.testing.assert_allclose(np.asarray(ad.vmap(ad.grad(lambda r: total(r * r)))(ROWS)), 2 * ROWS)
    np.testing.assert_array_equal(np.asarray(ad.vmap(first)(ROWS)), ROWS[:, 0])


def test_nothing_is_left_behind() -> None:
    def run() -> None:
        ad.grad(lambda x: ad.grad(lambda y: (y**3).sum())(x).sum())(ROWS)
        ad.hessian(lambda x: (x**3).sum())(ROWS[0])
        ad.vmap(ad.grad(lambda x: (x**2).sum()))(ROWS)
        ad.jvp(ad.sin, (ROWS,), (ROWS,))

    run()
    gc.collect()
    gc.disable()
    try:
        run()
        assert gc.collect() == 0  # no reference cycles: everything went at once
    finally:
        gc.enable()


@pytest.mark.parametrize("order", [1, 2])
def test_the_seed_of_a_fused_op_has_the_level_of_its_root(order: int) -> None:
    def f(x: Any) -> Any:
        return nn.functional.layer_norm(x, (4,)).sum()

    def g(x: Any) -> Any:
        return f(x) if order == 1 else (ad.grad(f)(x) ** 2).sum()

    rows = np.random.default_rng(0).normal(size=(3, 4))
    found = ad.vmap(ad.grad(g))(rows)
    np.testing.assert_allclose(found, [ad.grad(g)(row) for row in rows], atol=1e-12)
