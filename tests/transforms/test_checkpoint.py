"""Checkpoints: the same gradients from less memory, one more forward, and hooks on what is saved."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from two_arguments import TRANSFORMS, X, Y

import adjoint as ad
from adjoint.errors import (
    ArgumentError,
    GraphReleasedError,
    HookError,
    InputError,
    ModifiedError,
    TransformError,
)


def plain(x: Any, y: Any) -> Any:
    return ad.tanh(ad.sin(x) * y) * x


def checkpointed(x: Any, y: Any) -> Any:
    return ad.checkpoint(plain, x, y)


WITH_CAPTURED = TRANSFORMS | {
    "grad of vmap that uses what is around": lambda f: ad.grad(
        lambda x, y: ad.vmap(lambda a, b: f(x, b).sum() * a)(x, y).sum(), (0, 1)
    ),
}


@pytest.mark.parametrize("name", WITH_CAPTURED)
def test_all_transforms_equal_direct_computation(name: str) -> None:
    transform = WITH_CAPTURED[name]
    found = ad.tree.leaves(transform(checkpointed)(X, Y))
    expected = ad.tree.leaves(transform(plain)(X, Y))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-13, atol=1e-14)


def captured(check: bool) -> list[Any]:
    """Leaves and results that the function uses besides its arguments, each in several ways."""
    w, x = ad.tensor(X, requires_grad=True), ad.tensor(Y, requires_grad=True)
    h = w * x  # not a leaf
    k = h + w
    body = lambda x: (ad.sin(x * h) + k * w + h).sum()
    y = ad.checkpoint(body, x) if check else body(x)
    (y * h.sum()).backward()
    return [w.grad, x.grad]


def test_captured_tensors_get_their_gradients() -> None:
    for a, b in zip(captured(True), captured(False), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-14)


def test_captured_alone_is_enough() -> None:
    w = ad.tensor(X, requires_grad=True)
    ad.checkpoint(lambda: (w * w).sum()).backward()
    assert w.grad is not None and w.grad.tolist() == (2 * X).tolist()


def test_hooks_fire_once_on_the_total() -> None:
    w = ad.tensor(X, requires_grad=True)
    seen: list[Any] = []
    w.register_hook(lambda g: seen.append(g.tolist()))
    h = w * 1
    h.register_hook(lambda g: seen.append(g.tolist()))
    (ad.checkpoint(lambda: (h * w).sum()) + w.sum()).backward()
    np.testing.assert_allclose(seen, [X, 2 * X + 1])


def test_modules_and_trees() -> None:
    net = ad.nn.Sequential(ad.nn.Linear(3, 4, rng=0), ad.nn.Tanh(), ad.nn.Linear(4, 2, rng=1))
    batch = {"x": np.ones((5, 3), np.float32), "scale": 2.0, "name": "text"}

    def body(b: Any) -> Any:
        return {"y": net(b["x"]) * b["scale"], "n": 3, "name": b["name"]}

    grads = []
    for run in (body, lambda b: ad.checkpoint(body, b)):
        net.zero_grad()
        out = run(batch)
        assert out["n"] == 3 and out["name"] == "text"
        (out["y"] ** 2).sum().backward()
        grads.append([p.grad.numpy().copy() for p in net.parameters()])
    for a, b in zip(*grads, strict=True):
        np.testing.assert_array_equal(a, b)


class Counted:
    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, x: Any) -> Any:
        self.runs += 1
        return ad.tanh(x)


def test_a_residual_stack_runs_every_block_twice() -> None:
    blocks = [Counted() for _ in range(12)]
    x = h = ad.tensor(X, requires_grad=True)
    for block in blocks:
        h = h + ad.checkpoint(block, h)
    h.sum().backward()
    assert [b.runs for b in blocks] == [2] * 12
    assert x.grad is not None


def test_nested_checkpoints_cost_one_forward_per_level() -> None:
    inner = Counted()

    def nested(x: Any, depth: int) -> Any:
        return ad.checkpoint(lambda x: nested(x, depth - 1), x) if depth else inner(x)

    x = ad.tensor(X, requires_grad=True)
    nested(x, 6).sum().backward()
    assert inner.runs == 7  # not 2⁶
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), 1 - np.tanh(X) ** 2)


def test_parts_that_are_not_asked_for_are_not_computed() -> None:
    x, w = ad.tensor(X, requires_grad=True), ad.tensor(Y, requires_grad=True)
    y = ad.checkpoint(lambda x: (x * w).sum(), x)
    y.backward(inputs=[x])
    assert x.grad is not None and w.grad is None
    _, b = ad.checkpoint(lambda x: (x * 2, x * 3), x)
    assert ad.gradients(b.sum(), [x])[0].tolist() == [3.0, 3.0]


def test_a_second_backward_is_an_error_and_writes_are_seen() -> None:
    x, w = ad.tensor(X, requires_grad=True), ad.tensor(Y, requires_grad=True)
    f = lambda x: (x * w).sum()
    y = ad.checkpoint(f, x)
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(GraphReleasedError, match=r"checkpoint\(<lambda>\)"):
        y.backward()
    y = ad.checkpoint(f, x)
    with ad.no_grad():
        w[...] = 0.0
    with pytest.raises(ModifiedError, match="checkpoint"):
        y.backward()


def test_without_gradients_nothing_is_recorded() -> None:
    with ad.no_grad():
        assert not checkpointed(ad.tensor(X, requires_grad=True), Y).requires_grad
    assert not checkpointed(X, Y).requires_grad
    assert ad.checkpoint(lambda n: n + 1, 3) == 4


def test_tapes_see_through() -> None:
    x, w = ad.tensor(X), ad.tensor(Y)
    with ad.Tape() as tape:
        tape.watch(x, w)
        y = ad.checkpoint(lambda x: (x * w).sum(), x)
        grads = tape.gradients(y)
    assert grads[x].tolist() == Y.tolist() and grads[w].tolist() == X.tolist()


def test_modes_are_restored() -> None:
    x = ad.tensor(X.astype(np.float32), requires_grad=True)
    before = ad.get_default_dtype()
    try:
        ad.set_default_dtype(np.float32)
        y = ad.checkpoint(lambda x: x * ad.tensor([2.0, 3.0]), x, debug=True)
    finally:
        ad.set_default_dtype(before)
    assert y.dtype == np.float32
    y.sum().backward()
    assert ad.get_default_dtype() == before and x.grad is not None


@pytest.mark.parametrize("workers", [1, 2])
def test_threads(workers: int) -> None:
    rng = ad.random.default_rng(0)
    x = ad.tensor(np.ones(50), requires_grad=True)
    parts = [ad.checkpoint(lambda x: x * rng.normal(size=50), x) for _ in range(8)]
    values = [p.numpy().copy() for p in parts]
    ad.stack(parts).sum().backward(workers=workers)
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), sum(values))


# What is returned, captured and written ------------------------------------------------------------


def test_a_returned_argument_is_the_argument() -> None:
    x, v = ad.tensor(2.0, requires_grad=True), ad.tensor(3.0, requires_grad=True)
    assert ad.checkpoint(lambda a, b: b, x, v) is v
    (g,) = ad.gradients((ad.checkpoint(lambda a, b: b, x, v) * v).sum(), [v], create_graph=True)
    assert g.item() == 6.0
    a, b, c = ad.checkpoint(lambda a, b: (a, a * b, b), x, v)
    grads = ad.gradients(a * b * c, [x, v], create_graph=True)  # x² v²
    assert [g.item() for g in grads] == [36.0, 24.0]
    assert [g.item() for g in ad.gradients(grads[0], [x, v])] == [18.0, 24.0]


def test_a_returned_captured_result_keeps_its_gradient() -> None:
    w, x = ad.tensor(2.0, requires_grad=True), ad.tensor(3.0, requires_grad=True)
    h = w * x
    y, z = ad.checkpoint(lambda a: (h, a * h), x)
    assert y is h
    assert [g.item() for g in ad.gradients(y * z, [w, x])] == [108.0, 108.0]


def test_an_argument_given_twice_gets_its_gradient_once() -> None:
    x = ad.tensor(3.0, requires_grad=True)
    assert ad.gradients(ad.checkpoint(lambda a, b: a * b, x, x), [x])[0].item() == 6.0
    assert ad.jvp(lambda x: ad.checkpoint(lambda a, b: a * b, x, x), (3.0,), (1.0,))[1].item() == 6.0


K = np.array([1.0, 2.0])
INSIDE_VMAP: dict[str, Callable[[Any], Any]] = {
    "captured": lambda call: ad.grad(
        lambda x: ad.vmap(lambda k: ad.vmap(lambda t: call(lambda t: ad.sin(t) * k, t))(x))(K).sum()
    )(np.array([0.3])),
    "captured by an inner grad": lambda call: ad.vmap(
        lambda k: ad.vmap(lambda t: call(lambda t: ad.grad(lambda u: ad.sin(u) * k)(t), t))(X)
    )(K),
    "captured by a root": lambda call: ad.grad(
        lambda x: ad.vmap(
            lambda k: ad.vmap(lambda t: call(lambda t: ad.root(lambda u: u**3 - t * k, 1.0), t))(x)
        )(K).sum()
    )(np.array([0.3, 0.7])),
    "an argument from outside": lambda call: ad.hessian(
        lambda x: ad.vmap(lambda k: call(lambda t: ad.sin(t * k).sum() * k, x))(K).sum()
    )(X),
    "histories at two levels": lambda call: ad.grad(
        lambda x: ad.vmap(lambda k: ad.grad(lambda t: call(lambda t: ad.sin(t * x) * k, t))(k * x))(K).sum()
    )(0.3),
    "a returned argument": lambda call: ad.grad(
        lambda x: ad.vmap(lambda k: sum(call(lambda t, u: (u, t * k, k), x, x * k)))(K).sum()
    )(0.3),
}  # fmt: skip


@pytest.mark.parametrize("name", INSIDE_VMAP)
def test_inside_vmap_it_runs_where_it_was_called(name: str) -> None:
    run = INSIDE_VMAP[name]
    np.testing.assert_allclose(
        np.asarray(run(ad.checkpoint)), np.asarray(run(lambda f, *args: f(*args))), rtol=1e-12
    )


def test_inside_vmap_memory_is_saved() -> None:
    """The record of the function is dropped, also where its history is outside of a vmap."""
    seen: list[Any] = []
    x = ad.tensor(X, requires_grad=True)
    with ad.saved_tensors_hooks(lambda t: seen.append(t.shape) or t, lambda t: t):  # type: ignore[func-returns-value]
        y = ad.vmap(lambda t: ad.checkpoint(lambda t: ad.sin(ad.exp(ad.tanh(t))), t))(x * 2)
    assert seen == [X.shape]
    y.sum().backward()


READS: dict[str, Callable[[Any, Any], Any]] = {
    "a saved constant": lambda a, c: a * c[0],
    "one that is not saved": lambda a, c: ad.exp(a + c[0]),
    "a result of constants": lambda a, c: a * (c * 2 + 1).sum(),
    "item": lambda a, c: a * c[0].item(),
    "numpy": lambda a, c: a * c.numpy()[0],
    "an array of it": lambda a, c: a * np.asarray(c)[0],
    "a condition": lambda a, c: a * 2 if c[0] > 1 else a * 3,
    "an index": lambda a, c: a[c.astype(np.int64)],
    "where": lambda a, c: ad.where(c[0] > 1, a, 2 * a),
    "iteration": lambda a, c: sum(a * q for q in c),
    "detach": lambda a, c: a * c.detach()[0],
    "an argument of grad": lambda a, c: a * ad.grad(lambda u: (u * u).sum())(c)[0],
    "an argument of vmap": lambda a, c: a * ad.vmap(lambda u: u * u)(c).sum(),
    "an argument of a custom rule": lambda a, c: a * ad.straight_through(lambda u: u * u, c)[0],
}


@pytest.mark.parametrize("name", READS)
def test_a_captured_constant_that_was_written_to_is_an_error(name: str) -> None:
    f = READS[name]
    x, c = ad.tensor(X, requires_grad=True), ad.tensor([0.0, 1.0])
    y = ad.checkpoint(lambda a: f(a, c), x).sum()
    unread = ad.tensor(1.0)
    unread.copy_(2.0)  # another tensor is no matter
    expected = ad.gradients(f(x, c).sum(), [x])[0].tolist()
    assert ad.gradients(y, [x], retain_graph=True)[0].tolist() == expected
    c.copy_(1.0)
    with pytest.raises(
        ModifiedError, match=r"'checkpoint\(<lambda>\)' needs the values that a tensor of shape"
    ):
        y.backward()


def _add(t: Any) -> None:
    t += 1.0


def _add_tensor(t: Any) -> None:
    t += ad.ones(t.shape, dtype=t.dtype)


def _set(t: Any) -> None:
    t[...] = t + 1


WRITES: dict[str, Callable[[Any], Any]] = {
    "copy_": lambda t: t.copy_(t + 1),
    "x[...] = v": _set,
    "x += 1": _add,
    "x += y": _add_tensor,
}


@pytest.mark.parametrize("name", WRITES)
def test_every_kind_of_write_is_noticed(name: str) -> None:
    x, c = ad.tensor(X, requires_grad=True), ad.tensor([2.0, 3.0])
    y = ad.checkpoint(lambda a: (a - X) * c, x).sum()  # the values do not depend on c
    WRITES[name](c)
    with pytest.raises(
        ModifiedError, match=r"'checkpoint\(<lambda>\)' needs the values that a tensor of shape"
    ):
        y.backward()


@pytest.mark.parametrize("name", WRITES)
def test_every_kind_of_write_is_undone_for_the_second_run(name: str) -> None:
    x, state = ad.tensor(X, requires_grad=True), ad.tensor(1.0)

    def f(a: Any) -> Any:
        y = a * state
        WRITES[name](state)
        return y

    (ad.checkpoint(f, x) + 10 * ad.checkpoint(f, x)).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [21.0, 21.0]
    assert state.item() == 3.0


def test_a_result_from_outside_that_f_adds_to_changes_once() -> None:
    x = ad.tensor(X, requires_grad=True)
    h = x * 2

    def f(a: Any) -> Any:
        nonlocal h
        h += a
        return h * a

    y = ad.checkpoint(f, x)
    before = h.tolist()
    (y + h).sum().backward()  # 3x² + 3x
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), 6 * X + 3)
    assert h.tolist() == before == (3 * X).tolist()


def test_arguments_keep_the_values_of_the_call() -> None:
    x, c, array = ad.tensor(3.0, requires_grad=True), ad.tensor(2.0), np.array(5.0)
    y = ad.checkpoint(lambda a, c, array: a * c * array, x, c, array)
    c.copy_(100.0)
    array[...] = 100.0
    y.backward()
    assert x.grad is not None and x.grad.item() == 10.0


def test_temporaries_may_be_written_to() -> None:
    def f(a: Any) -> Any:
        mask = ad.zeros(2)
        mask[0] = 3.0
        return a * mask

    x = ad.tensor(X, requires_grad=True)
    ad.checkpoint(f, x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.0, 0.0]


def test_running_statistics_move_once() -> None:
    found = []
    for call in (
        lambda f, x: f(x),
        ad.checkpoint,
        lambda f, x: ad.checkpoint(lambda x: ad.checkpoint(f, x), x),
    ):
        norm = ad.nn.BatchNorm1d(3, dtype=np.float64)
        x = ad.tensor(np.random.default_rng(0).normal(size=(5, 3)), requires_grad=True)
        for scale in (1.0, 2.0):
            (call(norm, x * scale) ** 3).sum().backward()
        assert x.grad is not None
        buffers = norm.running_mean, norm.running_var, norm.num_batches_tracked
        found.append([*(b.tolist() for b in buffers), x.grad.tolist()])
    assert found[1] == found[0] and found[2] == found[0]


def test_state_is_set_back_for_the_second_run() -> None:
    x, state = ad.tensor(X, requires_grad=True), ad.tensor(1.0)

    def f(a: Any) -> Any:
        y = a * state
        state.copy_(state * 2)
        return y

    (ad.checkpoint(f, x) + 10 * ad.checkpoint(f, x)).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [21.0, 21.0]
    assert state.item() == 4.0


def test_a_tape_that_has_ended_still_sees_what_it_watched() -> None:
    x, w = ad.tensor(2.0), ad.tensor(3.0)
    with ad.Tape() as tape:
        tape.watch(x, w)
        y = ad.checkpoint(lambda x: x * w * w, x)
    grads = tape.gradients(y)
    assert grads[x].item() == 9.0 and grads[w].item() == 12.0


# Random numbers --------------------------------------------------------------------------------------

GLOBAL = ad.random.default_rng(5)


def draws_globally(x: Any) -> Any:
    return x * GLOBAL.normal(size=2)


class Noisy:
    def __init__(self) -> None:
        self.parts = [{"rng": np.random.default_rng(1)}]

    def run(self, x: Any) -> Any:
        return x * self.parts[0]["rng"].normal(size=2)


def closes_over(rng: Any) -> Callable[[Any], Any]:
    return lambda x: x * rng.normal(size=2)


def with_legacy(x: Any) -> Any:
    return x * np.random.normal(size=2)


DRAWS: dict[str, Callable[[], Callable[..., Any]]] = {
    "a closure": lambda: closes_over(ad.random.default_rng(0)),
    "NumPy's": lambda: closes_over(np.random.default_rng(0)),
    "an old one": lambda: closes_over(np.random.RandomState(0)),
    "a global": lambda: draws_globally,
    "a method": lambda: Noisy().run,
    "NumPy's global": lambda: with_legacy,
    "a module": lambda: ad.nn.Sequential(ad.nn.Linear(2, 2, rng=0, dtype=np.float64), ad.nn.Dropout(0.5, rng=3)),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_are_drawn_again_and_the_stream_goes_on(name: str) -> None:
    f = DRAWS[name]()
    x = ad.tensor(np.ones(2), requires_grad=True)
    first = ad.checkpoint(f, x, debug=True)
    second = ad.checkpoint(f, x, debug=True)
    (first + second).sum().backward()
    assert x.grad is not None
    if name != "a module":
        np.testing.assert_allclose(x.grad.numpy(), first.numpy() + second.numpy())
        assert first.tolist() != second.tolist()
        third = f(x).tolist()
        assert third != first.tolist() and third != second.tolist()


def test_generators_among_the_arguments() -> None:
    x = ad.tensor(np.ones(2), requires_grad=True)
    rng = ad.random.default_rng(0)
    y = ad.checkpoint(lambda x, rng: x * rng.normal(size=2), x, rng=rng, debug=True)
    state = rng.state
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == y.tolist()
    assert rng.state == state


def test_debug_compares_and_shapes_are_always_checked() -> None:
    x = ad.tensor(X, requires_grad=True)
    calls: list[int] = []

    def drifts(x: Any) -> Any:
        calls.append(1)
        return x * len(calls)

    for debug in (True, False):  # every bit, or a sample
        calls.clear()
        with pytest.raises(
            TransformError, match=r"drifts returned different values \(result 0 differs by up to 1.2"
        ):
            ad.checkpoint(drifts, x, debug=debug).sum().backward()

    def grows(x: Any) -> Any:
        calls.append(1)
        return ad.concat([x] * len(calls))

    calls.clear()
    with pytest.raises(TransformError, match=r"grows returned shape \(4,\) and float64 instead of \(2,\)"):
        ad.checkpoint(grows, x).sum().backward()

    others = [ad.tensor(Y, requires_grad=True) for _ in range(2)]
    with pytest.raises(ad.errors.RuleError, match="used different tensors when it ran again"):
        ad.checkpoint(lambda x: x * others.pop(), x).sum().backward()


# Segments --------------------------------------------------------------------------------------------


def layers(count: int, width: int, dtype: Any = np.float64) -> list[Callable[[Any], Any]]:
    rng = np.random.default_rng(0)
    weights = [
        ad.tensor((rng.standard_normal((width, width)) / np.sqrt(width)).astype(dtype), requires_grad=True)
        for _ in range(count)
    ]
    return [lambda x, w=w: ad.tanh(x @ w) for w in weights]  # type: ignore[misc]


@pytest.mark.parametrize("segments", [None, 1, 2, 7, 9])
def test_segments_equal_the_plain_chain(segments: int | None) -> None:
    chain = layers(9, 4)
    x = ad.tensor(np.ones((3, 4)), requires_grad=True)
    expected = x
    for layer in chain:
        expected = layer(expected)
    a = ad.backward((expected**2).sum())
    found = ad.checkpoint_sequential(chain, x, segments)
    b = ad.backward((found**2).sum())
    assert len(a) == len(b) == 10
    for t in a:
        np.testing.assert_array_equal(a[t].numpy(), b[t].numpy())


def test_segments_of_a_module() -> None:
    net = ad.nn.Sequential(*(m for i in range(4) for m in (ad.nn.Linear(3, 3, rng=i), ad.nn.Tanh())))
    x = np.ones((2, 3), np.float32)
    ad.checkpoint_sequential(net, x).sum().backward()
    found = [p.grad.numpy().copy() for p in net.parameters()]
    net.zero_grad()
    net(x).sum().backward()
    for a, p in zip(found, net.parameters(), strict=True):
        np.testing.assert_array_equal(a, p.grad.numpy())


def peak(run: Callable[[], Any]) -> int:
    run()
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def deep_net() -> tuple[list[Any], ad.Tensor]:
    """The net whose time ``benchmarks/cases/transforms.py`` measures."""
    rng = ad.random.default_rng(0)
    chain = [ad.nn.Sequential(ad.nn.Linear(64, 64, rng=rng), ad.nn.ReLU()) for _ in range(50)]
    return chain, rng.normal(size=(4096, 64), dtype=np.float32)


@pytest.mark.parametrize(
    "net", [lambda: (layers(50, 16), ad.tensor(np.ones((1000, 16)))), deep_net], ids=["tanh", "layers"]
)
def test_fifty_layers_keep_a_third_of_the_memory(net: Callable[[], tuple[list[Any], ad.Tensor]]) -> None:
    chain, x = net()

    def run(forward: Callable[[Any], Any]) -> Callable[[], Any]:
        return lambda: ad.backward((forward(x) ** 2).mean())

    def direct(x: Any) -> Any:
        for layer in chain:
            x = layer(x)
        return x

    assert peak(run(lambda x: ad.checkpoint_sequential(chain, x))) <= 0.35 * peak(run(direct))


# Hooks on what is saved --------------------------------------------------------------------------------


def test_saved_tensors_can_go_to_disk(tmp_path: Path) -> None:
    files: list[Path] = []

    def pack(t: Any) -> Path:
        files.append(tmp_path / f"{len(files)}.npy")
        np.save(files[-1], t.numpy())
        return files[-1]

    def unpack(path: Path) -> Any:
        return ad.tensor(np.load(path))

    x = ad.tensor(X, requires_grad=True)
    with ad.saved_tensors_hooks(pack, unpack):
        y = (ad.exp(x * x) * ad.sin(x)).sum()
    (g,) = ad.gradients(y, [x], create_graph=True)
    assert files
    expected = np.exp(X**2) * (2 * X * np.sin(X) + np.cos(X))
    np.testing.assert_allclose(g.numpy(), expected)
    (h,) = ad.gradients(g.sum(), [x])
    direct = ad.grad(lambda x: ad.grad(lambda x: (ad.exp(x * x) * ad.sin(x)).sum())(x).sum())(X)
    np.testing.assert_allclose(h.numpy(), np.asarray(direct))


def test_ops_with_several_outputs_are_packed_too() -> None:
    seen: list[Any] = []
    A = np.array([[2.0, 0.3], [0.3, 1.0]])

    def value(a: Any) -> Any:
        values, vectors = ad.linalg.eigh(a)
        return (values * vectors[0] ** 2).sum() + values[0] ** 2

    a = ad.tensor(A, requires_grad=True)
    with ad.saved_tensors_hooks(lambda t: seen.append(t.shape) or t.numpy(copy=True), ad.tensor):  # type: ignore[func-returns-value]
        y = value(a)
    (g,) = ad.gradients(y, [a])
    assert (2, 2) in seen
    np.testing.assert_allclose(g.numpy(), ad.grad(value)(A))


def test_checkpoints_pack_their_arguments_alone() -> None:
    seen: list[Any] = []
    x = ad.tensor(X, requires_grad=True)
    with ad.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        y = ad.checkpoint(lambda h: ad.sin(ad.exp(h)).sum(), x * 2)
    assert len(seen) == 1
    y.backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), np.cos(np.exp(2 * X)) * np.exp(2 * X) * 2)


def _unpacking(unpack: Any) -> None:
    x = ad.tensor(X, requires_grad=True)
    with ad.saved_tensors_hooks(lambda t: t, unpack):
        y = ad.exp(x).sum()
    y.backward()


MISTAKES: dict[str, tuple[type[Exception], Callable[[], Any], str]] = {
    "not a function": (InputError, lambda: ad.checkpoint(3, X), "checkpoint: expected a function"),  # type: ignore[arg-type]
    "no layers": (InputError, lambda: ad.checkpoint_sequential([], X), "layers is empty"),
    "not layers": (InputError, lambda: ad.checkpoint_sequential([3], X), "layers contains an object that is not callable"),  # type: ignore[list-item]
    "one layer": (InputError, lambda: ad.checkpoint_sequential(ad.sin, X), "layers is a function"),  # type: ignore[arg-type]
    "another order": (ArgumentError, lambda: ad.checkpoint_sequential([ad.sin], 1, X), r"(layers, x, segments)"),
    "no segments": (ArgumentError, lambda: ad.checkpoint_sequential([ad.sin], X, 0), "segments must be an integer from 1 to"),
    "too many": (ArgumentError, lambda: ad.checkpoint_sequential([ad.sin], X, 2), "from 1 to 1 \\(the number of layers\\), but got 2"),
    "pack": (InputError, lambda: ad.saved_tensors_hooks(3, ad.sin).__enter__(), "saved_tensors_hooks: pack"),  # type: ignore[arg-type]
    "unpack gives no tensor": (HookError, lambda: _unpacking(lambda t: 3), "unpack must return a tensor, not int"),
    "unpack gives another shape": (
        HookError,
        lambda: _unpacking(lambda t: t.sum()),
        r"unpack returned shape \(\) and float64, but the packed tensor had shape \(2,\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name: str) -> None:
    error, mistake, match = MISTAKES[name]
    with pytest.raises(error, match=match):
        mistake()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("shape", [(), (3,), (40, 50)])
def test_a_second_run_that_draws_other_numbers_is_an_error(shape: tuple[int, ...], dtype: Any) -> None:
    """Wherever the generator is: it may be out of reach."""
    hidden = iter(np.random.default_rng(0).random, None)
    x = ad.tensor(np.ones(shape, dtype), requires_grad=True)
    y = ad.checkpoint(lambda x: x * float(next(hidden)), x)
    with pytest.raises(TransformError, match="returned different values"):
        y.sum().backward()


def test_generators_of_functions_that_the_function_calls_are_not_searched() -> None:
    """They are not looked for, so the second run is an error, and the message says what to do."""
    x = ad.tensor(np.ones(2), requires_grad=True)
    y = ad.checkpoint(lambda x: draws_globally(x), x)
    with pytest.raises(
        TransformError, match=r"returned different values(.*)\n.*Pass random generators as arguments"
    ):
        y.sum().backward()


def test_a_generator_that_an_earlier_segment_makes_is_found_by_later_ones() -> None:
    shared: dict[str, Any] = {}

    def first(x: ad.Tensor) -> ad.Tensor:
        shared.setdefault("rng", np.random.default_rng(0))
        return x * 2.0

    def noisy(x: ad.Tensor) -> ad.Tensor:
        return x * float(shared["rng"].random())

    x = ad.tensor(3.0, requires_grad=True)
    y = ad.checkpoint_sequential([first, noisy, noisy, lambda x: x], x, segments=4, debug=True)
    y.backward()
    a, b = np.random.default_rng(0).random(2)
    assert x.grad is not None and x.grad.item() == pytest.approx(2.0 * a * b, rel=1e-12)


def test_a_tape_inside_sees_the_tape_around_in_the_second_run_too() -> None:
    """With a tape around, the gradients of the inner one are recorded."""

    def slope(v: Any) -> Any:
        with ad.Tape() as inner:
            y = v * v * v
        return inner.gradients(y, [v])[v]

    x = ad.tensor(2.0, requires_grad=True)
    with ad.Tape() as tape:
        y = ad.checkpoint(slope, x)
    assert tape.gradients(y)[x].item() == 12.0


def test_a_captured_tensor_that_is_another_one_in_the_second_run() -> None:
    x, c = ad.tensor([1.5, 2.0], requires_grad=True), ad.tensor([3.0, 4.0], requires_grad=True)
    captured = x * 2.0
    y = ad.checkpoint(lambda a: a * captured, c)
    captured = c  # the argument itself: the second run rests on nothing that the first did not
    with pytest.raises(ad.errors.RuleError, match="used different tensors when it ran again"):
        y.sum().backward()


def test_what_nothing_flows_to_is_no_other_tensor() -> None:
    """Arguments that are not used, and captured tensors that only unused results depend on."""
    x, c = ad.tensor([1.0, 2.0], requires_grad=True), ad.tensor([3.0, 4.0], requires_grad=True)
    captured = x * 2.0
    first, _ = ad.checkpoint(lambda a, b: (a * 2.0, a * captured), c, x)
    first.sum().backward()
    assert c.grad.tolist() == [2.0, 2.0]
    y = ad.checkpoint(lambda a: ad.floor(captured) + a, c)
    y.sum().backward()
    assert c.grad.tolist() == [3.0, 3.0]
