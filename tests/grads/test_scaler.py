"""Dynamic loss scaling."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import adjoint as ad
from adjoint.errors import AccumulationError, ArgumentError, InputError


class Optimizer:
    def __init__(self, *params):
        self.params, self.grads = list(params), []

    def step(self):
        self.grads.append([p.grad.numpy(copy=True) for p in self.params if p.grad is not None])


def leaf(dtype=np.float64):
    return ad.tensor(np.ones(2, dtype), requires_grad=True)


def test_small_half_precision_gradients_survive():
    w = leaf(np.float16)
    scaler = ad.GradScaler(init_scale=2.0**12)
    tiny = np.float16(2.0**-20)

    def loss():
        return (w * tiny).sum().astype(np.float32) * np.float32(2.0**-6)

    loss().backward()
    assert w.grad.numpy().max() == 0.0  # 2^-26 is below float16
    w.grad = None
    scaler.scale(loss()).backward()
    assert w.grad.numpy().max() > 0


def test_step_unscales_and_skips():
    w = leaf()
    optimizer, scaler = Optimizer(w), ad.GradScaler(init_scale=8.0, growth_interval=2)
    scaler.scale((w * 3.0).sum()).backward()
    assert scaler.step(optimizer) is True
    scaler.update()
    np.testing.assert_array_equal(optimizer.grads[0][0], [3.0, 3.0])
    assert scaler.get_scale() == 8.0
    w.grad = ad.tensor([np.inf, 1.0])
    assert scaler.step(optimizer) is False
    scaler.update()
    assert len(optimizer.grads) == 1
    assert scaler.get_scale() == 4.0
    for _ in range(2):
        w.grad = ad.tensor([4.0, 4.0])
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 8.0


def test_state_is_per_optimiser():
    a, b = leaf(), leaf()
    first, second = Optimizer(a), Optimizer(b)
    scaler = ad.GradScaler(init_scale=2.0)
    a.grad, b.grad = ad.tensor([2.0, 2.0]), ad.tensor([np.nan, 2.0])
    assert scaler.unscale(first) is True
    np.testing.assert_array_equal(a.grad.numpy(), [1.0, 1.0])
    with pytest.raises(AccumulationError, match="unscaled since"):
        scaler.unscale(first)
    assert scaler.step(first) is True
    assert scaler.step(second) is False
    with pytest.raises(AccumulationError, match="stepped since"):
        scaler.step(first)
    np.testing.assert_array_equal(first.grads[0][0], [1.0, 1.0])
    assert second.grads == []
    scaler.update()
    assert scaler.get_scale() == 1.0
    with pytest.raises(AccumulationError, match="no optimiser"):
        scaler.update()


def test_the_scale_stays_a_number():
    scaler = ad.GradScaler(init_scale=1e308, growth_interval=1)
    scaler.record(finite=True)
    assert scaler.get_scale() == 1e308
    for _ in range(2000):
        scaler.record(finite=False)
    assert scaler.get_scale() > 0


def test_disabled():
    w = leaf()
    optimizer, scaler = Optimizer(w), ad.GradScaler(enabled=False)
    scaler.scale((w * 3.0).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    np.testing.assert_array_equal(optimizer.grads[0][0], [3.0, 3.0])
    assert scaler.get_scale() == 1.0


def test_scale_of_many_losses():
    scaler = ad.GradScaler(init_scale=2.0)
    x = ad.tensor(3.0)
    scaled = scaler.scale({"a": x, "b": [x, (x,)]})
    assert scaled["a"].item() == scaled["b"][0].item() == scaled["b"][1][0].item() == 6.0
    with pytest.raises(InputError, match="a loss must be a tensor"):
        scaler.scale(3.0)


@pytest.mark.parametrize(
    "bad", [{"init_scale": 0}, {"growth_factor": 1.0}, {"backoff_factor": 1.5}, {"growth_interval": 0}]
)
def test_bad_settings(bad):
    with pytest.raises(ArgumentError, match=next(iter(bad))):
        ad.GradScaler(**bad)


def test_state_dict():
    scaler = ad.GradScaler(init_scale=32.0, growth_interval=3)
    scaler.record(finite=True)
    twin = ad.GradScaler()
    twin.load_state_dict(scaler.state_dict())
    assert twin.state_dict() == scaler.state_dict()
    with pytest.raises(ArgumentError, match="scale, "):
        twin.load_state_dict({})


def test_pickled_and_copied():
    scaler = ad.GradScaler(init_scale=32.0, growth_interval=3, enabled=False)
    scaler.unscale(Optimizer(leaf()))
    for twin in (pickle.loads(pickle.dumps(scaler)), copy.deepcopy(scaler), copy.copy(scaler)):
        assert twin.state_dict() == scaler.state_dict() and not twin.enabled
        assert twin.unscale(Optimizer(leaf()))


def test_with_an_accumulator():
    w = leaf(np.float32)
    scaler = ad.GradScaler(init_scale=4.0, growth_interval=100)
    acc = ad.GradientAccumulator([w], accumulation_steps=2, nonfinite="skip_window", max_grad_norm=100.0)
    optimizer = Optimizer(w)
    for weight in (1, 3):
        with acc.micro_batch(weight=weight):
            scaler.scale((w * np.float32(weight)).sum()).backward()
    assert acc.apply(optimizer, scaler=scaler) is True
    np.testing.assert_allclose(optimizer.grads[0][0], [2.5, 2.5])
    for factor in (1.0, np.inf):
        with acc.micro_batch(), np.errstate(all="ignore"):
            scaler.scale((w * np.float32(factor)).sum()).backward()
    assert acc.apply(optimizer, scaler=scaler) is False
    assert len(optimizer.grads) == 1
    assert scaler.get_scale() == 2.0
    assert acc.stats().skipped_windows == 1


def test_the_library_of_optimisers():
    w = leaf()
    scaler = ad.GradScaler(init_scale=4.0)
    optimizer = ad.optim.SGD([w], lr=0.5)
    scaler.scale((w * 1.0).sum()).backward()
    assert scaler.step(optimizer)
    np.testing.assert_array_equal(w.numpy(), [0.5, 0.5])
    w.grad = ad.tensor([np.nan, 0.0])
    scaler.update()
    assert not scaler.step(optimizer)
    assert optimizer.step_count == 1


def test_a_parameter_that_an_optimiser_has_twice_is_divided_once():
    w = ad.tensor([1.0, 2.0], requires_grad=True)

    class Optimizer:
        params = (w, w)

        def step(self):
            self.seen = w.grad.numpy(copy=True)

    scaler = ad.GradScaler(init_scale=8.0)
    optimizer = Optimizer()
    scaler.scale((w * w).sum()).backward()
    assert scaler.step(optimizer)
    np.testing.assert_array_equal(optimizer.seen, [2.0, 4.0])
