"""Micro-batches of a model, and optimisers that are given their gradients."""

from __future__ import annotations

import threading
from contextvars import copy_context
from functools import partial

import numpy as np
import pytest
from accumulators import accumulator, frozen
from hypothesis import given, settings
from hypothesis import strategies as st

import adjoint as ad
from adjoint.accumulate.sums import Buffer, Sums
from adjoint.errors import (
    AccumulationError,
    ArgumentError,
    InputError,
    NoGradientError,
)


def model(seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    params = {
        "w1": ad.tensor(rng.standard_normal((3, 5)).astype(dtype), requires_grad=True),
        "b1": ad.tensor(rng.standard_normal(5).astype(dtype), requires_grad=True),
        "w2": ad.tensor(rng.standard_normal((5, 1)).astype(dtype), requires_grad=True),
    }

    def errors(x):
        h = ad.tanh(ad.asarray(x) @ params["w1"] + params["b1"])
        return ((h @ params["w2"])[:, 0] - 0.3) ** 2

    return params, errors


def full_batch(dtype, x):
    params, errors = model(dtype=dtype)
    errors(x).mean().backward()
    return {name: p.grad.numpy() for name, p in params.items()}


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=8),
    steps=st.integers(1, 8),
    reduction=st.sampled_from(["mean", "sum"]),
    compensated=st.booleans(),
    float32=st.booleans(),
    seed=st.integers(0, 99),
)
def test_micro_batches_equal_the_full_batch(sizes, steps, reduction, compensated, float32, seed):
    dtype, tolerance = (np.float32, 3e-5) if float32 else (np.float64, 1e-12)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((sum(sizes), 3)).astype(dtype)
    pieces = np.split(x, np.cumsum(sizes)[:-1])
    pieces = [pieces[i] for i in rng.permutation(len(pieces))]
    params, errors = model(dtype=dtype)
    acc = ad.GradientAccumulator(
        params, accumulation_steps=steps, reduction=reduction, compensated=compensated
    )
    for start in range(0, len(pieces), steps):
        window = pieces[start : start + steps]
        for piece in window:
            loss = errors(piece)
            with acc.micro_batch(weight=len(piece)):
                (loss.mean() if reduction == "mean" else loss.sum()).backward()
        if len(window) < steps:
            assert not acc.should_update()
            acc.flush()
        grads = acc.gradients()
        expected = full_batch(dtype, np.concatenate(window))
        for name, g in expected.items():
            scale = max(1.0, np.abs(g).max())
            np.testing.assert_allclose(grads[name], g, rtol=tolerance, atol=tolerance * scale)
            assert params[name].grad is None
        acc.reset()


def test_an_exception_in_a_micro_batch_changes_nothing():
    params, errors = model()
    acc = ad.GradientAccumulator(params, accumulation_steps=4)
    x = np.ones((2, 3))
    with acc.micro_batch(weight=2):
        errors(x).mean().backward()
    before = frozen(acc)
    with pytest.raises(ZeroDivisionError), acc.micro_batch(weight=3):  # noqa: PT012
        errors(x).mean().backward()
        1 / 0  # noqa: B018
    assert frozen(acc) == before
    with acc.micro_batch(weight=2):
        errors(x).mean().backward()
    np.testing.assert_array_equal(acc.gradients()["w1"], full_batch(np.float64, x)["w1"])


def test_a_failing_backward_in_a_micro_batch_gives_nothing():
    params, errors = model()
    acc = ad.GradientAccumulator(params, accumulation_steps=4)
    fired = []
    params["w2"].register_post_accumulate_grad_hook(lambda leaf: fired.append(leaf.grad))

    def fail(g):
        raise ZeroDivisionError

    handle = params["w1"].register_hook(fail)
    with acc.micro_batch():
        with pytest.raises(ZeroDivisionError):
            errors(np.ones((2, 3))).mean().backward()
        handle.remove()
        errors(np.ones((2, 3))).mean().backward()
    assert fired == [None, None]
    np.testing.assert_array_equal(acc.gradients()["w2"], full_batch(np.float64, np.ones((2, 3)))["w2"])


def test_a_short_piece_without_a_weight_is_refused():
    """It counted as much as the long ones: the mean of means, of which the guide says that it is wrong."""
    w = ad.tensor(0.0, requires_grad=True)
    x = np.array([1.0, 2.0, 3.0, 10.0])
    acc = ad.GradientAccumulator([w], accumulation_steps=2)
    with pytest.raises(ArgumentError) as info:  # noqa: PT012
        for xb in acc.split(x, 3):
            with acc.micro_batch():
                (w * xb).mean().backward()
    assert str(info.value) == (
        "micro_batch: this piece of split() has 1 examples and the previous one had 3, but "
        "without weight= every piece has weight 1.\n"
        "  Pass the number of examples or tokens: micro_batch(weight=len(xb))."
    )
    assert acc.stats().window_micro_batches == 1
    del info  # its traceback holds the pieces
    with acc.micro_batch():  # none of them is out any more
        (w * x).mean().backward()
    for weights in ((3, 1), (1, 1), (1.0, 1.0)):
        acc.drop()
        for xb, weight in zip(acc.split(x, 3), weights, strict=True):
            with acc.micro_batch() as mb:
                (w * xb).mean().backward()
                mb.weight = weight
        assert acc.gradients()["0"] == (4.0 if weights == (3, 1) else 6.0)
    for even in (2, 4, 9):
        acc.drop()
        for xb in acc.split(x, even):
            with acc.micro_batch():
                (w * xb).mean().backward()
        assert acc.gradients()["0"] == 4.0


def test_a_weight_that_would_not_count_is_refused():
    """Misspelt, or set after the block, it left the micro-batch with weight 1."""
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    acc = ad.GradientAccumulator([w], accumulation_steps=2)
    with pytest.raises(AttributeError, match="wieght"), acc.micro_batch() as mb:  # noqa: PT012
        (w * 3).sum().backward()
        mb.wieght = 5
    bad = pytest.raises(ArgumentError, match="weight must be finite and at least 0, but is -5")
    with bad, acc.micro_batch() as mb:
        mb.weight = -5
    assert acc.stats().window_micro_batches == 0
    with acc.micro_batch(weight=2) as mb:
        (w * 3).sum().backward()
    with pytest.raises(AccumulationError) as info:
        mb.weight = 5
    assert str(info.value) == (
        "micro_batch: the weight was set after the block had ended with weight 2.\n"
        "  Set the weight inside the block, or pass it: micro_batch(weight=n)."
    )
    assert acc.stats().window_weight == mb.weight == 2


def test_a_micro_batch_holds_for_its_context():
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    acc = ad.GradientAccumulator([w], accumulation_steps=1)

    def in_a_thread(work):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    with acc.micro_batch():
        in_a_thread((w * 3).sum().backward)  # a thread of its own: to .grad
        in_a_thread(partial(copy_context().run, (w * 4).sum().backward))
    np.testing.assert_array_equal(acc.gradients()["0"], [4.0, 4.0])
    np.testing.assert_array_equal(w.grad.numpy(), [3.0, 3.0])


def test_a_micro_batch_may_end_in_another_context():
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    acc = ad.GradientAccumulator([w], accumulation_steps=1)
    block, context = acc.micro_batch(), copy_context()
    context.run(block.__enter__)
    context.run((w * 3).sum().backward)
    block.__exit__(None, None, None)
    np.testing.assert_array_equal(acc.gradients()["0"], [3.0, 3.0])
    (w * 5).sum().backward()  # the block is not active here
    np.testing.assert_array_equal(w.grad.numpy(), [5.0, 5.0])
    with pytest.raises(AccumulationError, match="has ended"):
        context.run((w * 3).sum().backward)


def test_several_backwards_in_a_micro_batch_add_up():
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    acc = ad.GradientAccumulator([w], accumulation_steps=1)
    with acc.micro_batch() as mb:
        (w * 3).sum().backward()
        (w * 4).sum().backward()
        mb.weight = 5
    assert acc.stats().window_weight == 5
    np.testing.assert_array_equal(acc.gradients()["0"], [7.0, 7.0])


def test_other_leaves_keep_their_grad():
    w, v = ad.tensor(1.0, requires_grad=True), ad.tensor(2.0, requires_grad=True)
    acc = ad.GradientAccumulator([w], accumulation_steps=1)
    with acc.micro_batch():
        (w * v).backward()
    assert w.grad is None
    assert v.grad.item() == 1.0


def test_nested_blocks_of_one_accumulator_are_two_micro_batches():
    w = ad.tensor([1.0, 1.0], requires_grad=True)

    def nested(acc):
        with acc.micro_batch():
            (w * 3.0).sum().backward()
            with acc.micro_batch():
                (w * 5.0).sum().backward()

    acc = ad.GradientAccumulator([w], accumulation_steps=2)
    nested(acc)
    np.testing.assert_array_equal(acc.gradients()["0"], [4.0, 4.0])
    acc = ad.GradientAccumulator([w], accumulation_steps=1)
    with pytest.raises(AccumulationError, match="the window is full"):
        nested(acc)
    np.testing.assert_array_equal(acc.gradients()["0"], [5.0, 5.0])


def test_nested_blocks_of_two_accumulators():
    w, v = ad.tensor(3.0, requires_grad=True), ad.tensor(2.0, requires_grad=True)
    outer = ad.GradientAccumulator([w], accumulation_steps=1)
    inner = ad.GradientAccumulator([v], accumulation_steps=1)
    with outer.micro_batch(), inner.micro_batch():
        (w * v).backward()
    assert outer.gradients()["0"] == 2.0
    assert inner.gradients()["0"] == 3.0


def test_a_micro_batch_without_backward_is_an_error():
    w = ad.tensor(1.0, requires_grad=True)
    acc = ad.GradientAccumulator([w])
    with pytest.raises(NoGradientError, match="no backward"), acc.micro_batch():
        pass
    assert acc.stats().total_micro_batches == 0
    w2 = ad.tensor(1.0, requires_grad=True)
    (w2 * 2).backward()  # the sink is gone
    assert w2.grad.item() == 2.0


def test_micro_batch_needs_parameters():
    with pytest.raises(AccumulationError, match="created without parameters"):
        accumulator("w").micro_batch()


def test_a_full_window_refuses_a_micro_batch_before_it_runs():
    w = ad.tensor(1.0, requires_grad=True)
    acc = ad.GradientAccumulator([w], accumulation_steps=1)
    with acc.micro_batch():
        (w * 2).backward()
    with pytest.raises(AccumulationError, match="is full"), acc.micro_batch():
        raise AssertionError("not reached")


def test_create_graph_inside_is_detached():
    w = ad.tensor(3.0, requires_grad=True)
    acc = ad.GradientAccumulator([w], accumulation_steps=1)
    with acc.micro_batch():
        (w * w).backward(create_graph=True)
    assert acc.gradients()["0"] == 6.0


def test_half_precision_parameters_are_summed_in_float32():
    w = ad.tensor(np.ones(3, np.float16), requires_grad=True)
    acc = ad.GradientAccumulator([w], accumulation_steps=2)
    for _ in range(2):
        with acc.micro_batch():
            (w * np.float16(0.1)).sum().backward()
    assert acc.gradients()["0"].dtype == np.float32
    sgd = SGD([w])
    acc.apply(sgd)
    assert sgd.seen[0].dtype == np.float16


class SGD:
    def __init__(self, params, lr=0.1):
        self.params, self.lr, self.seen, self.fail = list(params), lr, [], False

    def step(self):
        if self.fail:
            raise ZeroDivisionError
        for p in self.params:
            if p.grad is not None:
                self.seen.append(p.grad)
                with ad.no_grad():
                    p[...] = p - self.lr * p.grad


def test_apply_gives_grad_to_step_and_takes_it_back():
    params, errors = model()
    before = {n: p.numpy(copy=True) for n, p in params.items()}
    acc = ad.GradientAccumulator(params, accumulation_steps=2)
    sgd = SGD(params.values())
    x = np.random.default_rng(0).standard_normal((5, 3))
    for xb in acc.split(x, 3):
        with acc.micro_batch(weight=len(xb)):
            errors(xb).mean().backward()
    assert acc.apply(sgd) is True
    for name, g in full_batch(np.float64, x).items():
        np.testing.assert_allclose(params[name].numpy(), before[name] - 0.1 * g, rtol=1e-12)
        assert params[name].grad is None
    assert acc.stats().total_updates == 1
    assert not acc.should_update()


def test_gradients_that_an_optimiser_keeps_are_its_own():
    w = ad.tensor(np.zeros(20_000), requires_grad=True)
    v = ad.tensor(np.zeros(3), requires_grad=True)
    u = ad.tensor(np.zeros(3), requires_grad=True)
    acc = ad.GradientAccumulator([w, v, u], accumulation_steps=1)
    sgd = SGD([w, v, u], lr=0.0)
    for i in range(3):
        with acc.micro_batch():
            (w.sum() * i + v.sum() * i + u.sum() * i).backward()
        acc.apply(sgd)
    assert [float(g.numpy()[0]) for g in sgd.seen] == [0.0] * 3 + [1.0] * 3 + [2.0] * 3


def test_memory_that_nobody_keeps_is_used_again():
    w = ad.tensor(np.zeros(200_000), requires_grad=True)
    acc = ad.GradientAccumulator([w], accumulation_steps=1)
    places = set()

    class Optimizer:
        def step(self):
            places.add(w.grad.numpy().__array_interface__["data"][0])

    for _ in range(3):
        with acc.micro_batch():
            (w * 2.0).sum().backward()
        acc.apply(Optimizer())
    assert len(places) == 1


def test_an_optimiser_that_fails_can_be_tried_again():
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    acc = ad.GradientAccumulator([w], accumulation_steps=2, max_grad_norm=1.0)
    for _ in range(2):
        with acc.micro_batch(weight=3):
            (w * 10).sum().backward()
    expected = acc.gradients()["0"]
    sgd = SGD([w])
    sgd.fail = True
    with pytest.raises(ZeroDivisionError):
        acc.apply(sgd)
    assert w.grad is None
    np.testing.assert_array_equal(acc.gradients()["0"], expected)
    with pytest.raises(AccumulationError):
        acc.step({"0": [1.0, 1.0]})
    sgd.fail = False
    assert acc.apply(sgd) is True
    np.testing.assert_array_equal(sgd.seen[0].numpy(), expected)


def test_apply_by_name():
    acc = accumulator("w", accumulation_steps=1)
    got = {}

    class Optimizer:
        def apply(self, gradients):
            got.update({n: g.copy() for n, g in gradients.items()})

    acc.step({"w": [1.0, 2.0]})
    acc.apply(Optimizer())
    np.testing.assert_array_equal(got["w"], [1.0, 2.0])


def test_apply_says_what_it_needs():
    acc = accumulator("w", accumulation_steps=2)
    acc.step({"w": [1.0, 2.0]})
    with pytest.raises(AccumulationError, match="has only 1 of 2 micro-batches"):
        acc.apply(lambda grads: None)
    acc.flush()
    with pytest.raises(InputError, match="pass an optimiser"):
        acc.apply(3)
    with pytest.raises(InputError, match=r"reads \.grad"):
        acc.apply(SGD([]))


def test_parameters_in_every_form():
    w, v = ad.tensor(1.0, requires_grad=True), ad.tensor(2.0, requires_grad=True)

    class Module:
        def named_parameters(self):
            yield "w", w
            yield "frozen", ad.tensor(1.0)
            yield "v", v

    assert ad.GradientAccumulator([w, v]).names == ["0", "1"]
    assert ad.GradientAccumulator({"w": w, "v": v}).names == ["w", "v"]
    assert ad.GradientAccumulator(Module()).names == ["w", "v"]
    assert ad.GradientAccumulator([("w", w), ("w again", w)]).names == ["w"]
    assert ad.GradientAccumulator(w).names == ["0"]
    with pytest.raises(NoGradientError) as frozen_one:
        ad.GradientAccumulator([ad.tensor(1.0)])
    assert str(frozen_one.value) == (
        "GradientAccumulator: none of the 1 parameters requires grad.\n"
        "  Unfreeze some with requires_grad_(True), or leave out params to add gradients by name."
    )
    with pytest.raises(ArgumentError, match="'0' cannot be used as a parameter: it is not a leaf tensor"):
        ad.GradientAccumulator([w * 2])
    with pytest.raises(InputError, match=r"'0' is a float, not an adjoint tensor.\n.* register\(\) and step"):
        ad.GradientAccumulator([1.0])
    used_up = iter([w])
    next(used_up)
    for none in ([], {}, used_up):  # before: an accumulator without parameters, as for gradients by name
        with pytest.raises(NoGradientError, match="none of the 0 parameters requires grad"):
            ad.GradientAccumulator(none)
    with pytest.raises(InputError, match="must be a module or a list of tensors, not 3"):
        ad.GradientAccumulator(3)


def test_options_are_checked():
    with pytest.raises(TypeError, match="steps"):
        ad.GradientAccumulator(steps=3)
    config = ad.AccumulationConfig(accumulation_steps=3)
    assert ad.GradientAccumulator(config, normalize=False).config == ad.AccumulationConfig(3, False)


def test_split():
    acc = ad.GradientAccumulator()
    x, y = np.arange(10).reshape(5, 2), ad.tensor(np.arange(5.0))
    pieces = list(acc.split((x, {"y": y}), 2))
    assert [len(p[0]) for p in pieces] == [2, 2, 1]
    assert pieces[2][1]["y"].tolist() == [4.0]
    with pytest.raises(ArgumentError, match="equal lengths"):
        acc.split((x, y[:4]), 2)
    with pytest.raises(ArgumentError, match="size"):
        acc.split(x, 0)
    with pytest.raises(ArgumentError, match="at least one axis"):
        acc.split(3.0, 1)


def test_threads_lose_nothing():
    acc = accumulator("w", accumulation_steps=400)
    w = ad.tensor([1.0, 1.0], requires_grad=True)
    direct = ad.GradientAccumulator([w], accumulation_steps=400)

    def work():
        for _ in range(100):
            acc.step({"w": np.ones(2)}, weight=2)
            with direct.micro_batch(weight=2):
                (w * 3).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert acc.should_update()
    np.testing.assert_array_equal(acc.gradients()["w"], [1.0, 1.0])
    np.testing.assert_array_equal(direct.gradients()["0"], [3.0, 3.0])


def assert_torn(acc):
    uses = (
        lambda: acc.step({"a": [1.0, 1.0]}),
        lambda: acc.accumulate("a", [1.0, 1.0]),
        lambda: acc.accumulate("b", [1.0, 1.0]),
        acc.gradients,
        acc.state_dict,
        lambda: acc.apply(print),
    )
    for use in uses:
        with pytest.raises(AccumulationError, match="The window is incomplete"):
            use()
    acc.drop()
    assert acc.step({"a": [1.0, 1.0]}) is False


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_an_interrupt_while_adding_is_noticed(monkeypatch):
    acc = accumulator("a", "b", accumulation_steps=3)
    acc.step({"a": [1.0, 1.0]})
    with monkeypatch.context() as patch:
        patch.setattr(Buffer, "add", interrupt)
        with pytest.raises(KeyboardInterrupt):
            acc.step({"a": [1.0, 1.0]})
    assert_torn(acc)


def test_an_interrupt_while_dividing_is_noticed(monkeypatch):
    acc = accumulator("a", "b", accumulation_steps=2)
    for _ in range(2):
        acc.step({"a": [1.0, 1.0], "b": [1.0, 1.0]})
    with monkeypatch.context() as patch:
        patch.setattr(Sums, "finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            acc.apply(lambda grads: None)
    assert_torn(acc)


def test_a_net_with_small_layers_between_large_ones_equals_its_full_batch():
    rng = np.random.default_rng(0)
    init = ad.random.default_rng(0)
    layers = [ad.nn.Linear(100, 120, rng=init), ad.nn.LayerNorm(120), ad.nn.Linear(120, 120, rng=init),
              ad.nn.LayerNorm(120), ad.nn.Linear(120, 1, rng=init)]  # fmt: skip
    net = ad.nn.Sequential(*layers)
    x = rng.standard_normal((12, 100)).astype(np.float32)
    params = dict(net.named_parameters())
    acc = ad.GradientAccumulator(params, accumulation_steps=3)
    for rows in (slice(0, 2), slice(2, 7), slice(7, 12)):
        with acc.micro_batch(weight=rows.stop - rows.start):
            (net(ad.tensor(x[rows])) ** 2).mean().backward()
    (net(ad.tensor(x)) ** 2).mean().backward()
    for name, got in acc.gradients().items():
        expected = params[name].grad.numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max(), err_msg=name)


def test_an_optimiser_of_other_parameters_is_refused_and_the_window_stays():
    w, other = (ad.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    acc = ad.GradientAccumulator([w], accumulation_steps=1)
    with acc.micro_batch():
        (w * w).sum().backward()
    with pytest.raises(
        ad.errors.InputError, match="no optimiser updates '0', so these gradients would be lost"
    ):
        acc.apply(ad.optim.SGD([other], lr=0.5))
    assert acc.apply(ad.optim.SGD([other, w], lr=0.5))  # some is enough, in any order
    assert (w.tolist(), other.tolist()) == ([0.0, 0.0], [1.0, 2.0])
