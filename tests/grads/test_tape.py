"""Tapes."""

from __future__ import annotations

import asyncio
import copy
import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from random_nesting import FORMULAS, V

import adjoint as ad
from adjoint import errors, nn
from adjoint.core.node import Node


def test_a_tape_watches_what_does_not_require_grad() -> None:
    x, c = ad.tensor(3.0), ad.tensor(2.0)
    with ad.Tape() as tape:
        tape.watch(x)
        y = c * x * x
    grads = tape.gradients(y)
    assert grads[x].item() == 12.0 and c not in grads and not x.requires_grad and x.grad is None
    assert not (x * x).requires_grad


def test_gradients_may_be_taken_inside_the_block() -> None:
    x = ad.tensor(3.0, requires_grad=True)
    with ad.Tape() as tape:
        y = x * x
        assert tape.gradients(y)[x].item() == 6.0


def test_only_what_runs_inside_takes_part() -> None:
    x = ad.tensor(3.0, requires_grad=True)
    before = x * x
    with ad.Tape(persistent=True) as tape:
        y = before * x
    assert tape.gradients(y)[x].item() == 9.0
    y.backward()
    assert x.grad is not None and x.grad.item() == 27.0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_result_from_before_the_block_is_a_boundary(workers: int) -> None:
    x = ad.tensor([3.0, 5.0], requires_grad=True)
    h, k = ad.split(x * x, 2)
    seen: list[float] = []
    h.register_hook(lambda g: seen.append(g.item()))
    x.register_hook(lambda g: seen.append(-1.0))
    with ad.Tape(persistent=True) as tape, ad.config.workers(workers):
        y = (h * 3.0 + k * h * x[0]).sum()
        for inputs in ([h], (t for t in [h, k]), h):
            assert tape.gradients(y, inputs)[h].tolist() == [78.0]  # 3 + k x
        assert tape.gradients(y, [k])[k].tolist() == [27.0] and seen == [78.0] * 3
        both = tape.gradients(y, [x, h])
        assert both[x].tolist() == [225.0, 0.0] and both[h].tolist() == [78.0]
        assert tape.gradients(y).keys() == [x]
    y.backward()  # nothing from before the block was released
    assert x.grad is not None and x.grad.tolist() == [78.0 * 6.0 + 225.0, 270.0]


def test_watched_results_are_in_the_store() -> None:
    x = ad.tensor(3.0, requires_grad=True)
    h = x * x
    with ad.Tape(persistent=True) as tape:
        tape.watch(h)
        inner = h * 3.0
        tape.watch(inner)
        y = inner * inner * x
    grads = tape.gradients(y)
    assert [grads[t].item() for t in (x, h, inner)] == [729.0, 486.0, 162.0] and len(grads) == 3
    assert tape.gradients(y, [x]).keys() == [x]
    kept = weakref.ref(inner)
    del inner, grads
    assert kept() is None and len(tape.gradients(y)) == 2
    with ad.Tape() as outer:
        outer.watch(h)
        with ad.Tape() as nested:
            nested.watch(h)
            z = h**3
        g = nested.gradients(z)[h]
    assert g.item() == 243.0 and outer.gradients(g)[h].item() == 54.0


def test_a_consumed_tape_says_so_and_a_persistent_one_goes_on() -> None:
    x = ad.tensor(3.0)
    with ad.Tape() as once:
        once.watch(x)
        y = x * x
    once.gradients(y)
    with pytest.raises(errors.TapeError, match=r"consumed.*\n.*persistent=True"):
        once.gradients(y)
    with ad.Tape(persistent=True) as often:
        often.watch(x)
        y, z = x * x, x * 2.0
    assert [often.gradients(t)[x].item() for t in (y, y, z)] == [6.0, 6.0, 2.0]


def test_nested_tapes_give_higher_derivatives() -> None:
    x = ad.tensor(2.0)
    with ad.Tape() as outer:
        outer.watch(x)
        with ad.Tape() as inner:
            inner.watch(x)
            y = x**4
        g = inner.gradients(y)[x]
    assert g.item() == 32.0 and outer.gradients(g)[x].item() == 48.0


def test_tapes_of_threads_and_tasks_never_see_each_other() -> None:
    x = ad.tensor(3.0)
    seen: list[bool] = []
    with ad.Tape() as tape:
        tape.watch(x)
        thread = threading.Thread(target=lambda: seen.append((x * x).requires_grad))
        thread.start()
        thread.join()
    assert seen == [False]

    async def task(watch: bool) -> bool:
        if not watch:
            await asyncio.sleep(0)
            return (x * x).requires_grad
        with ad.Tape() as own:
            own.watch(x)
            await asyncio.sleep(0)
            return own.gradients(x * x)[x].item() == 6.0

    async def both() -> list[bool]:
        return list(await asyncio.gather(task(True), task(False), task(True)))

    assert asyncio.run(both()) == [True, False, True]


def test_leaving_without_a_backward_frees_everything() -> None:
    x = ad.zeros(10)
    gc.disable()
    try:
        with ad.Tape() as tape:
            tape.watch(x)
            y = ad.exp(x)
        node = weakref.ref(y._node)
        watched = weakref.ref(x)
        del x, y
        assert node() is None and watched() is None
        assert "recorded" in repr(tape)
    finally:
        gc.enable()


def test_errors_of_a_tape() -> None:
    x = ad.tensor(3.0, requires_grad=True)
    tape = ad.Tape()
    with pytest.raises(errors.TapeError, match="recorded nothing"):
        tape.gradients(x * x)
    with pytest.raises(errors.TapeError, match="only inside `with tape:`"):
        tape.watch(x)
    with tape:
        with pytest.raises(errors.DTypeError, match="int64"):
            tape.watch(ad.tensor(1))
        with pytest.raises(errors.InputError, match="not float"):
            tape.watch(1.0)  # type: ignore[arg-type]
        y = x * x
    with pytest.raises(errors.TapeError, match="one block"), tape:
        pass
    with pytest.raises(errors.TapeError, match="not computed inside"):
        tape.gradients(x * 2.0)
    other = ad.tensor(1.0, requires_grad=True)
    with pytest.raises(errors.NoGradientError, match="does not depend on an input"):
        tape.gradients(y, (t for t in [other]))


def cube(v: Any) -> Any:
    return v**3


# Functions of x = 2 with their derivatives there.
THROUGH: dict[str, tuple[Any, float]] = {
    "grad": (lambda x: x + ad.grad(cube)(x), 13.0),
    "grad of a captured tensor": (lambda x: ad.grad(lambda v: v * cube(x))(3.0), 12.0),
    "vjp": (lambda x: x + ad.vjp(cube, x)[1](1.0)[0], 13.0),
    "vjp, value": (lambda x: x + ad.vjp(cube, x)[0], 13.0),
    "vjp, cotangent": (lambda x: x + ad.vjp(cube, 3.0)[1](x)[0], 28.0),
    "jvp": (lambda x: x + ad.jvp(cube, (x,), (1.0,))[1], 13.0),
    "jvp, tangent": (lambda x: x + ad.jvp(cube, (3.0,), (x,))[1], 28.0),
    "linearize": (lambda x: x + ad.linearize(cube, x)[1](1.0), 13.0),
    "linearize, tangent": (lambda x: ad.linearize(cube, 3.0)[1](x), 27.0),
    "jacobian": (lambda x: x + ad.jacobian(cube)(x), 13.0),
    "jacfwd": (lambda x: x + ad.jacfwd(lambda v: ad.stack([v, cube(v)]))(x)[1], 13.0),
    "jacrev": (lambda x: x + ad.jacrev(lambda v: cube(v).sum())(ad.stack([x, x])).sum(), 25.0),
    "hessian": (lambda x: x + ad.hessian(cube)(x), 7.0),
    "hvp": (lambda x: x + ad.hvp(cube, x, 1.0), 7.0),
    "vmap": (lambda x: ad.vmap(lambda s: s * s)(x.reshape(1)).sum(), 4.0),
    "vmap of a captured tensor": (lambda x: ad.vmap(lambda s: s * cube(x))(np.array([1.0, 2.0])).sum(), 36.0),
    "grad inside vmap": (
        lambda x: ad.vmap(lambda s: ad.grad(lambda v: cube(v) * s)(x))(np.ones(2)).sum(),
        24.0,
    ),
    "capture inside vmap": (
        lambda x: ad.vmap(lambda s: ad.grad(lambda v: cube(v) * x)(s))(np.ones(2)).sum(),
        6.0,
    ),
    "checkpoint": (lambda x: x + ad.checkpoint(cube, x), 13.0),
    "checkpoint, captured": (lambda x: x + ad.checkpoint(lambda: cube(x)), 13.0),
    "checkpoint of grad": (lambda x: x + ad.checkpoint(ad.grad(cube), x), 13.0),
    "grad of checkpoint": (lambda x: x + ad.grad(lambda v: ad.checkpoint(cube, v))(x), 13.0),
    "fixed_point": (lambda x: ad.fixed_point(lambda y: (y + x / y) / 2, 1.0), 0.125**0.5),
    "root": (lambda x: ad.root(lambda y, a: y * y - a, 1.0, x), 0.125**0.5),
    "custom_vjp": (lambda x: ad.grad(lambda v: doubled(v) * x)(x), 2.0),
}

doubled = ad.custom_vjp(lambda x: x * 2.0)
doubled.defvjp(lambda x: (x * 2.0, x), lambda x, g: (g * x / x * 2.0,))


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("name", THROUGH)
def test_a_tape_records_what_goes_through_a_transform(name: str, watched: bool) -> None:
    f, expected = THROUGH[name]
    x = ad.tensor(2.0, requires_grad=not watched)
    with ad.Tape() as tape:
        if watched:
            tape.watch(x)
        y = f(x)
    grads = tape.gradients(y)
    np.testing.assert_allclose(grads[x].item(), expected, rtol=1e-12)
    assert grads.keys() == [x]  # and no tensor that a transform made


M = np.array([[2.0, 0.3, 0.1], [0.3, -1.0, 0.4], [0.2, 0.5, 0.7]])
QKV = np.linspace(-1.0, 1.0, 9).reshape(1, 3, 3)
SEVERAL: dict[str, Any] = {
    "tanh-GELU": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "layer_norm": lambda x: nn.functional.layer_norm(x, (3,)) ** 2 * x,
    "rms_norm": lambda x: nn.functional.rms_norm(x, (3,)) ** 2,
    "eigh": lambda x: ad.abs(ad.linalg.eigh(x @ x.T)[1]) * x,
    "svd": lambda x: ad.abs(ad.linalg.svd(x)[0]) * x,
    "qr": lambda x: ad.linalg.qr(x)[1] ** 3,
    "slogdet": lambda x: ad.linalg.slogdet(x)[1] ** 2,
    "attention": lambda x: nn.functional.scaled_dot_product_attention(QKV * x, QKV, x * QKV),
    "checkpoint": lambda x: ad.checkpoint(ad.sin, x),
    "checkpoint with two results": lambda x: ad.stack(ad.checkpoint(lambda v: (ad.sin(v), ad.exp(v)), x)),
    "split": lambda x: ad.split(ad.sin(x), 3)[1] ** 2,
    "LSTM": lambda x: nn.LSTM(3, 2, rng=0, dtype=np.float64)(x.reshape(3, 1, 3))[0],
    "GRU": lambda x: nn.GRU(3, 2, rng=0, dtype=np.float64)(x.reshape(3, 1, 3))[0],
    "lstm_cell": lambda x: nn.functional.lstm_cell(ad.concat([x, x, x, x], axis=1), x)[0],
}


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("name", SEVERAL)
def test_nested_tapes_give_all_of_the_second_derivative(name: str, watched: bool) -> None:
    f = lambda x: (SEVERAL[name](x)).sum()
    x = ad.tensor(M, requires_grad=not watched)
    with ad.Tape() as outer:
        with ad.Tape() as inner:
            if watched:
                outer.watch(x)
                inner.watch(x)
            y = f(x)
        g = inner.gradients(y)[x]
        z = (g * V).sum()
    expected = ad.hvp(f, M, np.broadcast_to(V, M.shape).copy())
    np.testing.assert_allclose(
        outer.gradients(z)[x].numpy(), ad.asarray(expected).numpy(), rtol=1e-9, atol=1e-11
    )


def nodes_behind(t: ad.Tensor) -> set[Node]:
    found: set[Node] = set()
    stack: list[Any] = [t._node]
    while stack:
        node = stack.pop()
        if isinstance(node, Node) and node not in found:
            found.add(node)
            stack.extend(node.parents)
    return found


@pytest.mark.parametrize("name", FORMULAS)
def test_no_node_is_made_beside_a_tape(name: str) -> None:
    f, _ = FORMULAS[name]
    x, w = ad.tensor([0.4, 0.9, -0.6], requires_grad=True), ad.tensor(0.8, requires_grad=True)
    with ad.Tape() as tape:
        y = ad.hessian(f)(x, w).sum() + ad.jvp(f, (x, w), (V, 1.0))[1]
        y = (
            y
            + ad.vmap(ad.grad(f), (0, None))(x.reshape(1, 3), w).sum()
            + ad.checkpoint(ad.grad(f), x, w).sum()
        )
        (g,) = ad.gradients(y, [x], create_graph=True)
    assert g is not None
    assert all(node.seq in tape._recorded for node in nodes_behind(g))


def test_outputs_of_an_op_have_one_node_each_in_every_order() -> None:
    """The recorded backward of eigh reads its outputs: gradients and hooks of these see that."""
    a = ad.tensor(np.array([[2.0, 0.3], [0.3, 1.0]]), requires_grad=True)
    values, vectors = ad.linalg.eigh(a)
    seen: list[Any] = []
    vectors.register_hook(lambda g: seen.append(g.numpy().copy()))
    (ga,) = ad.gradients((values**2).sum(), [a], create_graph=True)
    assert ga is not None
    (gv,) = ad.gradients(ga[0, 0], [vectors], retain_graph=True)
    assert gv is not None and np.abs(gv.numpy()).max() > 0.1 and len(seen) == 1
    np.testing.assert_array_equal(seen[0], gv.numpy())
    del vectors  # then its node is made again where a rule reads the output
    assert len(ad.gradients(ga[0, 0], [a])) == 1


def test_watching_a_constant_inside_vmap() -> None:
    c = ad.tensor(2.0)

    def f(s: Any) -> Any:
        with ad.Tape() as tape:
            tape.watch(c)
            y = c**3 * s
        return tape.gradients(y)[c]

    np.testing.assert_allclose(np.asarray(ad.vmap(f)(np.array([1.0, 2.0]))), [12.0, 24.0])
    assert type(c) is ad.Tensor and c.item() == 2.0


def test_a_checkpoint_runs_again_on_the_tapes_of_the_moment() -> None:
    x = ad.tensor(2.0, requires_grad=True)
    y = ad.checkpoint(cube, x)
    with ad.Tape() as tape:
        (g,) = ad.gradients(y, [x], create_graph=True)
    assert g is not None and tape.gradients(g)[x].item() == 12.0


def test_a_tape_inside_a_checkpoint() -> None:
    def slope(v: Any) -> Any:
        with ad.Tape() as inner:
            inner.watch(v)
            y = cube(v)
        return inner.gradients(y, [v])[v]

    x = ad.tensor(2.0, requires_grad=True)
    with ad.Tape() as tape:
        y = ad.checkpoint(slope, x)
    assert tape.gradients(y)[x].item() == 12.0


def test_no_grad_around_the_gradients_of_an_inner_tape() -> None:
    x = ad.tensor(2.0)
    with ad.Tape() as outer:
        outer.watch(x)
        with ad.Tape(persistent=True) as inner:
            inner.watch(x)
            y = cube(x)
        with ad.no_grad():
            g = inner.gradients(y)[x]
        z = g * x
        assert inner.gradients(y, create_graph=True)[x].requires_grad
    assert not g.requires_grad and outer.gradients(z)[x].item() == 12.0


A = np.array([1.0, np.nan, -3.0])
VALUES_AS_ARGUMENTS: dict[str, Any] = {
    "full": lambda t: ad.full((2,), t),
    "full_like": lambda t: ad.full_like(ad.ones(3), t),
    "np.full_like": lambda t: np.full_like(ad.ones(3), t),
    "linspace": lambda t: ad.linspace(t, 5.0, 3),
    "linspace, stop": lambda t: ad.linspace(0.0, t, 3),
    "pad": lambda t: ad.pad(ad.ones(3), 1, constant_values=t),
    "np.pad": lambda t: np.pad(ad.ones(3), 1, constant_values=t),
    "np.nan_to_num": lambda t: np.nan_to_num(ad.tensor(A), nan=t),
    "np.sum": lambda t: np.sum(ad.ones(3), initial=t),
    "np.select": lambda t: np.select([A > 0], [ad.tensor(A)], default=t),
    "at": lambda t: ad.zeros(3).at[0].set(t),
    "list": lambda t: ad.sin([t, 1.0]),
    "copy": lambda t: copy.copy(t),
    "deepcopy": lambda t: copy.deepcopy([t])[0],
}


@pytest.mark.parametrize("name", VALUES_AS_ARGUMENTS)
def test_watched_values_as_arguments_keep_their_gradient(name: str) -> None:
    """A constant that a tape watches counts like a tensor that requires grad, wherever it is an argument."""

    def f(t: Any) -> Any:
        return (VALUES_AS_ARGUMENTS[name](t) ** 2).sum()

    t = ad.tensor(2.5)
    with ad.Tape() as tape:
        tape.watch(t)
        y = f(t)
    assert tape.gradients(y)[t].item() == pytest.approx(ad.grad(f)(2.5).item())
    assert ad.vmap(f)(np.array([2.5, 1.0]))[0].item() == pytest.approx(y.item())


def test_a_watched_tensor_added_to_a_sparse_gradient() -> None:
    layer = nn.Embedding(4, 1, sparse=True)
    layer(np.array([1, 3])).sum().backward()
    t = ad.ones((4, 1))
    with ad.Tape() as tape:
        tape.watch(t)
        y = ((layer.weight.grad + t) ** 2).sum()
    assert tape.gradients(y)[t].ravel().tolist() == [2.0, 4.0, 2.0, 4.0]


def write_item(x: Any, t: Any) -> None:
    x[0] = t


def write_list(x: Any, t: Any) -> None:
    x[:] = [t, t, t]


REFUSED: dict[str, Any] = {
    "item": write_item,
    "list": write_list,
    "copy_": lambda x, t: x.copy_(t),
    "watched item": lambda x, t: t.copy_(1.0),
    "tensor": lambda x, t: ad.tensor([t, t]),
    "arange": lambda x, t: ad.arange(t),
    "elu": lambda x, t: ad.nn.functional.elu(x, alpha=t),
    "nan_to_num": lambda x, t: ad.nan_to_num(x, nan=t),
    "layer_norm": lambda x, t: ad.nn.functional.layer_norm(x, (3,), eps=t),
}


@pytest.mark.parametrize("name", REFUSED)
def test_watched_values_that_would_lose_their_gradient_are_refused(name: str) -> None:
    t = ad.tensor(2.5)
    with ad.Tape() as tape:
        tape.watch(t)
        with pytest.raises((errors.InPlaceError, errors.LostHistoryError, errors.NoGradientError)):
            REFUSED[name](ad.zeros(3), t)
        with ad.no_grad():
            REFUSED[name](ad.zeros(3), t.clone())


def test_a_filled_tensor_can_be_written_to() -> None:
    w = ad.tensor(2.0, requires_grad=True)
    y = ad.full((3,), w)
    y += 1
    y.sum().backward()
    assert w.grad is not None and w.grad.item() == 3.0
    with ad.no_grad():
        z = ad.full((3,), w)
        z[0] = 5.0
    assert z.tolist() == [5.0, 2.0, 2.0]
