"""What an accumulator does with gradients that are not finite, whom it tells, how it clips."""

from __future__ import annotations

import numpy as np
import pytest
from accumulators import accumulator, frozen

import adjoint as ad
from adjoint.errors import (
    ArgumentError,
    NoGradientError,
    NonFiniteError,
)


def test_skip_leaves_the_micro_batch_and_its_weight_out():
    acc = accumulator("w", accumulation_steps=3, nonfinite="skip")
    seen = []
    acc.on("skip", seen.append)
    acc.step({"w": [1.0, 2.0]}, weight=1)
    assert acc.step({"w": [np.nan, 2.0]}, weight=100) is False
    assert acc.step({"w": [3.0, 4.0]}, weight=1) is True
    np.testing.assert_array_equal(acc.gradients()["w"], [2.0, 3.0])
    assert acc.stats().skipped_micro_batches == 1
    assert [(e.kind, e.names, e.window) for e in seen] == [("skip", ("w",), False)]


def test_a_window_of_skips_is_no_update():
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    acc = ad.GradientAccumulator([w], accumulation_steps=1, nonfinite="skip")
    acc.step({"0": np.array([np.inf, 0.0])})
    calls = []
    assert acc.apply(calls.append) is False
    assert calls == []
    assert acc.stats().skipped_windows == 1
    assert not acc.should_update()


def test_one_gradient_cannot_be_skipped_without_its_micro_batch():
    acc = accumulator("a", "b", nonfinite="skip")
    acc.accumulate("a", [1.0, 1.0])
    before = frozen(acc)
    with pytest.raises(NonFiniteError, match="'b'"):
        acc.accumulate("b", [np.nan, 1.0])
    assert frozen(acc) == before


def test_nonfinite_from_backward_changes_nothing():
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    acc = ad.GradientAccumulator([w])
    with pytest.raises(NonFiniteError), acc.micro_batch():
        (w * np.inf).sum().backward()
    assert acc.stats().total_micro_batches == 0
    with acc.micro_batch():
        w.sum().backward()


def test_skip_window():
    acc = accumulator("w", accumulation_steps=2, nonfinite="skip_window")
    acc.step({"w": [np.nan, 2.0]})
    acc.step({"w": [3.0, 4.0]})
    with pytest.raises(NoGradientError, match="1 of them were skipped"):
        acc.gradients()
    events = []
    acc.on("skip", events.append)
    calls = []
    assert acc.apply(calls.append) is False
    assert calls == []
    assert events[0].window
    acc.step({"w": [1.0, 1.0]})
    acc.step({"w": [np.inf, 1.0]})
    with pytest.raises(NoGradientError, match="1 of them were skipped"):
        acc.gradients()


def test_allow_lets_it_in_and_clipping_leaves_it():
    acc = accumulator("v", "w", accumulation_steps=1, nonfinite="allow", max_grad_norm=1.0)
    acc.step({"v": [3.0, 4.0], "w": [np.inf, 1.0]})
    grads = acc.gradients()
    np.testing.assert_array_equal(grads["w"], [np.inf, 1.0])
    np.testing.assert_array_equal(grads["v"], [3.0, 4.0])


def test_a_sum_that_overflows():
    acc = accumulator("w", accumulation_steps=2)
    for _ in range(2):
        acc.step({"w": np.array([3e38, 0.0], np.float32)})
    with pytest.raises(NonFiniteError, match="sum float32 gradients in float64"):
        acc.apply(lambda grads: None)


def test_events_of_a_window():
    acc = accumulator("w", accumulation_steps=2, max_grad_norm=5.0)
    events = []
    for kind in ("full", "clip", "update"):
        acc.on(kind, events.append)
    acc.step({"w": [60.0, 80.0]}, weight=2)
    acc.step({"w": [0.0, 0.0]}, weight=2)
    acc.apply(lambda grads: None)
    assert [(e.kind, e.micro_batches, e.weight) for e in events] == [
        ("full", 2, 4.0),
        ("clip", 2, 4.0),
        ("update", 2, 4.0),
    ]
    assert (events[1].norm, events[1].clipped_norm) == (50.0, 5.0)
    assert acc.stats().clipped_windows == 1


def test_a_listener_can_be_taken_off():
    acc = accumulator("w", accumulation_steps=1)
    events = []
    with acc.on("full", events.append):
        acc.step({"w": [1.0, 1.0]})
        acc.reset()
    acc.step({"w": [1.0, 1.0]})
    assert len(events) == 1
    with pytest.raises(ArgumentError, match="one of 'full', 'clip', 'skip', 'update'"):
        acc.on("often", events.append)


@pytest.mark.parametrize("clip", [ad.clip_grad_norm, ad.clip_grad_value])
def test_clip_functions_inside(clip):
    w = ad.tensor([0.0, 0.0], requires_grad=True)
    acc = ad.GradientAccumulator([w], accumulation_steps=1, clip=lambda grads: clip(grads, 1.0))
    acc.step({"0": np.array([30.0, 0.0])})
    np.testing.assert_array_equal(acc.gradients()["0"], [1.0, 0.0])
    got = []
    acc.apply(lambda grads: got.append(grads["0"].copy()))
    np.testing.assert_array_equal(got[0], [1.0, 0.0])


def test_a_clip_function_that_fails_can_be_tried_again():
    calls = []

    def clip(grads):
        calls.append(grads["w"].copy())
        if len(calls) == 1:
            raise ZeroDivisionError
        ad.clip_grad_value(grads, 1.0)

    acc = accumulator("w", accumulation_steps=2, clip=clip)
    for _ in range(2):
        acc.step({"w": [4.0, 0.5]}, weight=3)
    with pytest.raises(ZeroDivisionError):
        acc.apply(lambda grads: None)
    got = []
    assert acc.apply(lambda grads: got.append(grads["w"].copy()))
    np.testing.assert_array_equal(calls, [[4.0, 0.5], [4.0, 0.5]])
    np.testing.assert_array_equal(got[0], [1.0, 0.5])
