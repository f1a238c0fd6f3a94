"""Gradient accumulation: windows, weights, policies, all or nothing, state."""

from __future__ import annotations

import array
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adjoint as ad
from adjoint.errors import (
    AccumulationError,
    ArgumentError,
    DTypeError,
    InputError,
    NoGradientError,
    NonFiniteError,
    ShapeError,
    UnknownNameError,
)
from adjoint.grads import buffers, norm, passes


def accumulator(*names: str, shape: tuple[int, ...] = (2,), **options):
    acc = ad.GradientAccumulator(**options)
    for name in names:
        acc.register(name, shape)
    return acc


def frozen(acc: ad.GradientAccumulator) -> object:
    """Everything an accumulator holds, comparable bit by bit."""
    return _bits(acc.state_dict())


def _bits(value):
    if isinstance(value, dict):
        return {k: _bits(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    return value


# The reference file's scenarios ----------------------------------------------------------------


def test_config_defaults():
    config = ad.AccumulationConfig()
    assert (config.accumulation_steps, config.normalize, config.max_grad_norm) == (4, True, None)


def test_config_effective_batch_size():
    assert ad.AccumulationConfig(accumulation_steps=4).effective_batch_size(32) == 128


def test_a_new_buffer_is_zero():
    buffer = ad.GradientBuffer((3, 4))
    assert buffer.shape == (3, 4)
    assert buffer.count == 0
    np.testing.assert_array_equal(buffer.get(False), np.zeros((3, 4)))


def test_buffer_sums_and_counts():
    buffer = ad.GradientBuffer((3,))
    for n in (1, 2):
        buffer.add([1.0, 2.0, 3.0])
        assert buffer.count == n
        np.testing.assert_array_equal(buffer.get(False), n * np.array([1.0, 2.0, 3.0]))


def test_buffer_refuses_another_shape():
    buffer = ad.GradientBuffer((3,), name="w")
    with pytest.raises(ShapeError, match=r"w: expected a gradient of shape \(3,\), but got \(2,\)"):
        buffer.add([1.0, 2.0])
    assert buffer.count == 0


def test_buffer_normalised_and_raw():
    buffer = ad.GradientBuffer((2,))
    buffer.add([2.0, 4.0])
    buffer.add([6.0, 8.0])
    np.testing.assert_array_equal(buffer.get(True), [4.0, 6.0])
    np.testing.assert_array_equal(buffer.get(False), [8.0, 12.0])


def test_buffer_norm_and_reset():
    buffer = ad.GradientBuffer((2,))
    buffer.add([3.0, 4.0])
    assert buffer.l2_norm() == 5.0
    buffer.reset()
    assert buffer.count == 0
    assert buffer.l2_norm() == 0.0
    np.testing.assert_array_equal(buffer.get(), [0.0, 0.0])


def test_register_and_accumulate():
    acc = accumulator("w", accumulation_steps=2)
    assert acc.names == ["w"]
    assert not acc.should_update()
    acc.accumulate("w", [2.0, 4.0])
    assert not acc.should_update()
    acc.accumulate("w", [6.0, 8.0])
    assert acc.should_update()
    np.testing.assert_array_equal(acc.gradients()["w"], [4.0, 6.0])


def test_clip_after_normalising():
    acc = accumulator("w", accumulation_steps=1, normalize=False, max_grad_norm=5.0)
    acc.accumulate("w", [30.0, 40.0])
    np.testing.assert_allclose(acc.gradients()["w"], [3.0, 4.0], rtol=1e-15)


def test_reset_counts_an_update():
    acc = accumulator("w", accumulation_steps=2)
    acc.accumulate("w", [1.0, 2.0])
    acc.reset()
    assert acc.stats().total_updates == 1
    assert acc.stats().window_micro_batches == 0
    with pytest.raises(NoGradientError):
        acc.gradients()


def test_step_false_then_true():
    acc = accumulator("w", accumulation_steps=2)
    assert acc.step({"w": [1.0, 1.0]}) is False
    assert acc.step({"w": [1.0, 1.0]}) is True


def test_stats():
    acc = ad.GradientAccumulator(ad.AccumulationConfig(accumulation_steps=3))
    acc.register("a", (2, 3))
    acc.register("b", (4,))
    stats = acc.stats()
    assert (stats.total_micro_batches, stats.total_updates, stats.accumulation_steps) == (0, 0, 3)
    assert (stats.registered_params, stats.total_param_elements) == (2, 10)
    assert stats.effective_batch_multiplier() == 3


def test_empty_accumulator_has_no_gradients():
    with pytest.raises(NoGradientError, match="no gradient was added: the window is empty"):
        ad.GradientAccumulator().gradients()


# Its defects, each as the right behaviour -----------------------------------------------------


def test_the_window_owns_the_divisor():
    acc = accumulator("used", "rare", accumulation_steps=4)
    acc.step({"used": [1.0, 1.0], "rare": [8.0, 4.0]})
    for _ in range(3):
        acc.step({"used": [1.0, 1.0]})
    grads = acc.gradients()
    np.testing.assert_array_equal(grads["rare"], [2.0, 1.0])
    np.testing.assert_array_equal(grads["used"], [1.0, 1.0])


def test_weights():
    acc = accumulator("w", accumulation_steps=2)
    acc.step({"w": np.array([1.0, 2.0])}, weight=1)
    acc.step({"w": np.array([4.0, 8.0])}, weight=3)
    np.testing.assert_array_equal(acc.gradients()["w"], [3.25, 6.5])


def test_losses_that_are_sums():
    acc = accumulator("w", accumulation_steps=2, reduction="sum")
    acc.step({"w": np.array([1.0, 2.0])}, weight=1)
    acc.step({"w": np.array([12.0, 24.0])}, weight=3)
    np.testing.assert_array_equal(acc.gradients()["w"], [3.25, 6.5])


def test_should_update_counts_micro_batches_not_buffers():
    acc = accumulator("a", "b", accumulation_steps=2)
    acc.accumulate("a", [1.0, 1.0])
    acc.accumulate("b", [1.0, 1.0])
    assert not acc.should_update()
    assert acc.stats().total_micro_batches == 1
    acc.accumulate("a", [1.0, 1.0])
    acc.accumulate("b", [3.0, 3.0])
    assert acc.should_update()
    np.testing.assert_array_equal(acc.gradients()["b"], [2.0, 2.0])


def test_accumulate_divides_by_the_window_too():
    acc = accumulator("a", "b", accumulation_steps=4)
    for i in range(4):
        acc.accumulate("a", [1.0, 1.0])
        if i == 2:
            acc.accumulate("b", [8.0, 8.0])
    np.testing.assert_array_equal(acc.gradients()["b"], [2.0, 2.0])


def test_the_gradients_of_a_micro_batch_share_a_weight():
    acc = accumulator("a", "b")
    acc.accumulate("a", [1.0, 1.0], weight=3)
    with pytest.raises(ArgumentError, match="share its weight, 3, but 'b' came with 4"):
        acc.accumulate("b", [1.0, 1.0], weight=4)
    with pytest.raises(UnknownNameError, match="no parameter is registered as 'c'"):  # whatever its weight
        acc.accumulate("c", [1.0, 1.0], weight=4)


@pytest.mark.parametrize("wrong", ["name", "shape", "dtype", "nan"])
def test_a_failing_step_changes_nothing(wrong):
    names = [f"p{i}" for i in range(10)]
    acc = accumulator(*names, accumulation_steps=4)
    rng = np.random.default_rng(0)
    good = {n: rng.standard_normal(2).astype(np.float32) for n in names}
    acc.step(good, weight=3)
    before = frozen(acc)
    bad = dict(good)
    third = {
        "name": (UnknownNameError, "p2x", good["p2"]),
        "shape": (ShapeError, "p2", np.zeros((2, 1), np.float32)),
        "dtype": (DTypeError, "p2", np.zeros(2)),
        "nan": (NonFiniteError, "p2", np.array([1, np.nan], np.float32)),
    }[wrong]
    error, name, value = third
    del bad["p2"]
    items = list(bad.items())
    bad = dict([*items[:2], (name, value), *items[2:]])
    with pytest.raises(error, match="p2"):
        acc.step(bad, weight=2)
    assert frozen(acc) == before
    acc.step(good, weight=1)
    np.testing.assert_allclose(acc.gradients()["p2"], good["p2"], rtol=1e-6)


def test_a_failing_first_step_decides_no_dtype():
    acc = accumulator("a", "b")
    before = frozen(acc)
    with pytest.raises(NonFiniteError):
        acc.step({"a": np.zeros(2, np.float32), "b": np.full(2, np.inf, np.float32)})
    assert frozen(acc) == before
    acc.step({"a": np.zeros(2), "b": np.ones(2)})
    assert acc.gradients()["b"].dtype == np.float64


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_is_refused_by_default(value):
    acc = accumulator("w")
    with pytest.raises(NonFiniteError, match="not finite: 'w'"):
        acc.step({"w": [value, 1.0]})
    assert acc.stats().total_micro_batches == 0


def test_huge_gradients_are_clipped_not_zeroed():
    acc = accumulator("w", accumulation_steps=1, max_grad_norm=1.0)
    acc.step({"w": [3e200, 4e200]})
    np.testing.assert_allclose(acc.gradients()["w"], [0.6, 0.8], rtol=1e-15)


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), "1", True])
def test_max_grad_norm_is_above_zero(bad):
    with pytest.raises(ArgumentError, match="max_grad_norm is a number above 0"):
        ad.AccumulationConfig(max_grad_norm=bad)


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("accumulation_steps", 0),
        ("accumulation_steps", -3),
        ("accumulation_steps", 2.5),
        ("accumulation_steps", True),
        ("nonfinite", "ignore"),
        ("reduction", "average"),
        ("normalize", 1),
        ("compensated", "yes"),
        ("norm_type", 0),
        ("norm_type", float("nan")),
    ],
)
def test_a_bad_field_is_named(field, bad):
    with pytest.raises(ArgumentError, match=field):
        ad.AccumulationConfig(**{field: bad})


@pytest.mark.parametrize("bad", [np.float16, np.int64, "text"])
def test_sums_are_at_least_float32(bad):
    with pytest.raises(DTypeError, match="dtype"):
        ad.AccumulationConfig(dtype=bad)


def test_config_is_frozen():
    with pytest.raises(AttributeError):
        ad.AccumulationConfig().accumulation_steps = 0


def test_the_norm_does_not_depend_on_the_order_of_names():
    rng = np.random.default_rng(1)
    parts = {f"p{i}": rng.standard_normal(7) * 10.0**i for i in range(-8, 9)}
    norms = set()
    for _ in range(5):
        order = rng.permutation(list(parts))
        norms.add(ad.global_norm(parts[n] for n in order))
    assert len(norms) == 1


# Windows --------------------------------------------------------------------------------------


def test_a_short_window_is_flushed_with_its_true_weight():
    acc = accumulator("w", accumulation_steps=4)
    acc.step({"w": [2.0, 4.0]}, weight=2)
    acc.step({"w": [5.0, 1.0]}, weight=1)
    assert not acc.should_update()
    assert acc.flush() is True
    assert acc.should_update()
    np.testing.assert_array_equal(acc.gradients()["w"], [3.0, 3.0])
    with pytest.raises(AccumulationError, match="was flushed"):
        acc.step({"w": [1.0, 1.0]})


def test_flush_of_an_empty_window_is_false():
    acc = accumulator("w")
    assert acc.flush() is False
    assert acc.step({"w": [1.0, 1.0]}) is False


def test_drop_discards():
    acc = accumulator("w", accumulation_steps=2)
    acc.step({"w": [100.0, 100.0]})
    acc.drop()
    assert acc.stats().dropped_windows == 1
    assert acc.stats().total_updates == 0
    acc.step({"w": [1.0, 3.0]})
    acc.step({"w": [3.0, 5.0]})
    np.testing.assert_array_equal(acc.gradients()["w"], [2.0, 4.0])


def test_otherwise_it_is_carried_over():
    acc = accumulator("w", accumulation_steps=3)
    epochs = [[1.0, 2.0], [3.0, 4.0]]
    updates = []
    for epoch in epochs:
        for g in epoch:
            if acc.step({"w": [g, g]}):
                updates.append(acc.gradients()["w"][0])
                acc.reset()
    assert updates == [2.0]
    assert acc.stats().window_micro_batches == 1


def test_a_full_accumulator_refuses_more():
    acc = accumulator("w", accumulation_steps=1)
    acc.step({"w": [1.0, 1.0]})
    before = frozen(acc)
    for add in (lambda: acc.step({"w": [1.0, 1.0]}), lambda: acc.accumulate("w", [1.0, 1.0])):
        with pytest.raises(AccumulationError) as caught:
            add()
        assert str(caught.value) == (
            "the window is full (1 of 1 micro-batches) and takes no more.\n"
            "  apply(optimizer), or gradients() and then reset(), makes the update; drop() discards it."
        )
    assert frozen(acc) == before


def test_unknown_names_list_what_is_registered():
    acc = accumulator("weight", "bias")
    with pytest.raises(UnknownNameError) as caught:
        acc.step({"weigth": [1.0, 1.0]})
    assert str(caught.value) == (
        "no parameter is registered as 'weigth'.  Nothing was added.\n  Registered: 'weight', 'bias'."
    )
    assert isinstance(caught.value, KeyError)


def test_same_length_but_another_shape_is_an_error():
    acc = accumulator("w", shape=(2, 3))
    with pytest.raises(ShapeError) as caught:
        acc.step({"w": np.zeros((3, 2))})
    assert str(caught.value) == (
        "w: expected a gradient of shape (2, 3), but got (3, 2): as many elements, but in another shape."
    )


def test_registering_again():
    acc = accumulator("w")
    acc.register("w", (2,))
    with pytest.raises(ShapeError, match="register: 'w' has shape"):
        acc.register("w", (3,))
    assert acc.stats().registered_params == 1


def test_registering_in_mid_window_keeps_the_sums():
    acc = accumulator("a", "b", accumulation_steps=3)
    acc.step({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    acc.register("c", (2,))
    acc.step({"a": [1.0, 2.0], "b": [3.0, 4.0], "c": [3.0, 3.0]})
    acc.step({"a": [1.0, 2.0], "b": [3.0, 4.0], "c": [0.0, 3.0]})
    grads = acc.gradients()
    np.testing.assert_allclose(grads["a"], [1.0, 2.0])
    np.testing.assert_allclose(grads["c"], [1.0, 2.0])


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), "many", None])
def test_bad_weights(weight):
    acc = accumulator("w")
    with pytest.raises(ArgumentError, match="weight is a"):
        acc.step({"w": [1.0, 1.0]}, weight=weight)


def test_a_micro_batch_of_weight_zero_adds_nothing():
    acc = accumulator("w", accumulation_steps=2)
    acc.step({"w": [np.nan, np.nan]}, weight=0)  # the mean over no tokens
    acc.step({"w": [1.0, 2.0]}, weight=5)
    np.testing.assert_array_equal(acc.gradients()["w"], [1.0, 2.0])


def test_a_window_without_weight_has_no_gradient():
    acc = accumulator("w", accumulation_steps=1, reduction="sum")
    acc.step({"w": [0.0, 0.0]}, weight=0)
    with pytest.raises(NoGradientError, match="nothing to divide by"):
        acc.gradients()


def test_unused_parameters_are_missing_or_zero():
    acc = accumulator("a", "b", accumulation_steps=1)
    acc.step({"a": [1.0, 1.0]})
    assert list(acc.gradients()) == ["a"]
    np.testing.assert_array_equal(acc.gradients(zeros=True)["b"], [0.0, 0.0])


# Policies and events --------------------------------------------------------------------------


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
    with pytest.raises(NoGradientError, match="was skipped"):
        acc.gradients()
    events = []
    acc.on("skip", events.append)
    calls = []
    assert acc.apply(calls.append) is False
    assert calls == []
    assert events[0].window
    acc.step({"w": [1.0, 1.0]})
    acc.step({"w": [np.inf, 1.0]})
    with pytest.raises(NonFiniteError, match="drop"):
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
    with pytest.raises(NonFiniteError, match="Sum in float64"):
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
    with pytest.raises(ArgumentError, match="events are 'full', 'clip', 'skip', 'update'"):
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


# Gradients from anywhere ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "grad",
    [
        np.array([1.0, 2.0]),
        np.array([0.0, 1.0, 9.0, 2.0])[1::2],
        np.array([1.0, 2.0], ">f8"),
        ad.tensor([1.0, 2.0]),
        ad.tensor([1.0, 2.0], requires_grad=True),
        array.array("d", [1.0, 2.0]),
        memoryview(array.array("d", [1.0, 2.0])),
        [1, 2],
        (1.0, 2.0),
    ],
    ids=lambda grad: type(grad).__name__,
)
def test_arrays_of_every_kind(grad):
    acc = accumulator("w", accumulation_steps=2)
    for _ in range(2):
        acc.step({"w": grad}, weight=3)
    np.testing.assert_array_equal(acc.gradients()["w"], [1.0, 2.0])


class OnlyDLPack:
    def __init__(self, data):
        self._data = data

    def __dlpack__(self, **options):
        return self._data.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._data.__dlpack_device__()


def test_dlpack():
    acc = accumulator("w", accumulation_steps=1)
    acc.step({"w": OnlyDLPack(np.array([1.0, 2.0], np.float32))})
    assert acc.gradients()["w"].dtype == np.float32


@pytest.mark.parametrize("bad", [None, "12", object(), {"a": 1}])
def test_what_is_no_gradient(bad):
    with pytest.raises((InputError, DTypeError), match="'w'"):
        accumulator("w").step({"w": bad})


@pytest.mark.parametrize("bad", [np.array([1, 2]), np.array([True, False])])
def test_whole_numbers_are_no_gradients(bad):
    with pytest.raises(DTypeError, match="gradients are floats or complex"):
        accumulator("w").step({"w": bad})


def test_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    acc = accumulator("v", "w", accumulation_steps=2)
    g = np.array([1.0, 2.0], ml_dtypes.bfloat16)
    acc.step({"v": g, "w": g}, weight=2)
    acc.step({"v": g, "w": g}, weight=3)
    assert acc.gradients()["w"].dtype == np.float32
    np.testing.assert_array_equal(acc.gradients()["w"], [1.0, 2.0])


def test_complex_gradients():
    acc = accumulator("w", accumulation_steps=2, max_grad_norm=1.0)
    acc.step({"w": np.array([3 + 4j, 0j])})
    acc.step({"w": np.array([3 + 4j, 0j])})
    np.testing.assert_allclose(acc.gradients()["w"], [0.6 + 0.8j, 0])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 4)])
def test_shapes_at_the_edge(shape):
    acc = accumulator("a", "b", shape=shape, accumulation_steps=2)
    g = np.ones(shape)
    for weight in (1, 3):
        acc.step({"a": g, "b": g}, weight=weight)
    np.testing.assert_array_equal(acc.gradients()["a"], g)


def test_large_and_strided_gradients():
    rng = np.random.default_rng(0)
    base = rng.standard_normal((300, 400))
    acc = accumulator("w", shape=(400, 300), accumulation_steps=3)
    for weight in (2, 3, 4):
        acc.step({"w": base.T}, weight=weight)
    np.testing.assert_allclose(acc.gradients()["w"], base.T, rtol=1e-15)


def test_a_million_half_precision_gradients():
    g = np.full(1_000_000, 1e-3, np.float16)
    exact = float(g[0])
    acc = accumulator("w", shape=(1_000_000,), accumulation_steps=1000, nonfinite="allow", normalize=False)
    for _ in range(1000):
        acc.step({"w": g})
    total = acc.gradients()["w"].astype(np.float64)
    assert np.abs(total / (1000 * exact) - 1).max() < 1e-6
    half = np.float16(0)
    for _ in range(1000):
        half = np.float16(half + g[0])
    assert abs(float(half) / (1000 * exact) - 1) > 1e-3


def test_compensated_sums_lose_nothing():
    values = np.random.default_rng(0).standard_normal((3000, 5)).astype(np.float32)
    values[0] = 1e6
    exact = values.astype(np.float64).sum(0)
    errors = {}
    for compensated in (False, True):
        acc = accumulator("w", shape=(5,), accumulation_steps=3000, normalize=False, compensated=compensated)
        for g in values:
            acc.step({"w": g})
        errors[compensated] = np.abs(acc.gradients()["w"] / exact - 1).max()
    assert errors[True] < 6e-8 < errors[False]


def test_compensated_with_infinities_stays_infinite():
    acc = accumulator("w", accumulation_steps=2, nonfinite="allow", compensated=True)
    acc.step({"w": [np.inf, 1.0]})
    acc.step({"w": [1.0, 1.0]})
    np.testing.assert_array_equal(acc.gradients()["w"], [np.inf, 1.0])


# With adjoint ----------------------------------------------------------------------------------


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
    with pytest.raises(AccumulationError, match="needs parameters"):
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
    with pytest.raises(AccumulationError, match="has 1 of 2 micro-batches"):
        acc.apply(lambda grads: None)
    acc.flush()
    with pytest.raises(InputError, match="is no optimiser"):
        acc.apply(3)
    with pytest.raises(InputError, match=r"reads the \.grad"):
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
    with pytest.raises(NoGradientError, match="does not require grad"):
        ad.GradientAccumulator([ad.tensor(1.0)])
    with pytest.raises(NoGradientError, match="not a leaf"):
        ad.GradientAccumulator([w * 2])
    with pytest.raises(InputError, match="not a tensor"):
        ad.GradientAccumulator([1.0])
    with pytest.raises(InputError, match="a list or a dictionary"):
        ad.GradientAccumulator(3)


def test_options_are_checked():
    with pytest.raises(ArgumentError, match="no option 'steps'"):
        ad.GradientAccumulator(steps=3)
    with pytest.raises(ArgumentError, match="not both"):
        ad.GradientAccumulator(ad.AccumulationConfig(), normalize=False)


def test_split():
    acc = ad.GradientAccumulator()
    x, y = np.arange(10).reshape(5, 2), ad.tensor(np.arange(5.0))
    pieces = list(acc.split((x, {"y": y}), 2))
    assert [len(p[0]) for p in pieces] == [2, 2, 1]
    assert pieces[2][1]["y"].tolist() == [4.0]
    with pytest.raises(ShapeError, match="one length"):
        acc.split((x, y[:4]), 2)
    with pytest.raises(ArgumentError, match="size"):
        acc.split(x, 0)
    with pytest.raises(InputError, match="first axis"):
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


def test_an_interrupt_while_adding_is_noticed(monkeypatch):
    acc = accumulator("a", "b", accumulation_steps=3)
    acc.step({"a": [1.0, 1.0]})

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(buffers, "add_if_finite", interrupt)
        with pytest.raises(KeyboardInterrupt):
            acc.step({"a": [1.0, 1.0]})
    for use in (lambda: acc.step({"a": [1.0, 1.0]}), acc.gradients, lambda: acc.apply(print)):
        with pytest.raises(AccumulationError, match="an interrupt came while gradients were being added"):
            use()
    acc.drop()
    assert acc.step({"a": [1.0, 1.0]}) is False


# State -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("compensated", [False, True])
def test_state_in_mid_window(compensated):
    def fresh():
        return accumulator("a", "b", "c", accumulation_steps=3, compensated=compensated)

    rng = np.random.default_rng(0)
    batches = [{n: rng.standard_normal(2).astype(np.float32) for n in "ab"} for _ in range(3)]
    straight, resumed = fresh(), fresh()
    for i, batch in enumerate(batches):
        straight.step(batch, weight=i + 1)
        resumed.step(batch, weight=i + 1)
        state = resumed.state_dict()
        resumed = fresh()
        resumed.load_state_dict(state)
        assert frozen(resumed) == frozen(straight)
    for name, g in straight.gradients().items():
        assert resumed.gradients()[name].tobytes() == g.tobytes()
    assert resumed.should_update()


def test_state_is_a_copy():
    acc = accumulator("w")
    acc.step({"w": [1.0, 2.0]})
    state = acc.state_dict()
    acc.step({"w": [1.0, 2.0]})
    np.testing.assert_array_equal(state["buffers"]["w"]["sum"], [1.0, 2.0])


def test_a_state_that_does_not_fit_changes_nothing():
    acc = accumulator("a", "b", accumulation_steps=2)
    acc.step({"a": [1.0, 2.0]})
    good, before = acc.state_dict(), frozen(acc)
    other = accumulator("a", "z", accumulation_steps=2).state_dict()
    with pytest.raises(UnknownNameError, match="it lacks 'b' and it has 'z' too"):
        acc.load_state_dict(other)
    with pytest.raises(ArgumentError, match="accumulation_steps=7"):
        acc.load_state_dict(accumulator("a", "b", accumulation_steps=7).state_dict())
    with pytest.raises(ShapeError, match="saved with shape"):
        acc.load_state_dict(accumulator("a", "b", shape=(3,), accumulation_steps=2).state_dict())
    with pytest.raises(ArgumentError, match="not a state"):
        acc.load_state_dict({"step": 3})
    broken = {**good, "buffers": {**good["buffers"], "a": {**good["buffers"]["a"], "sum": np.zeros(5)}}}
    with pytest.raises(ShapeError, match="the saved sum"):
        acc.load_state_dict(broken)
    assert frozen(acc) == before


def test_parameters_go_on_after_loading():
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    acc = ad.GradientAccumulator([w], accumulation_steps=2)
    with acc.micro_batch():
        (w * 2).sum().backward()
    acc.load_state_dict(acc.state_dict())
    with acc.micro_batch():
        (w * 4).sum().backward()
    np.testing.assert_array_equal(acc.gradients()["0"], [3.0, 3.0])


# Memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [1.0, 3.0])
@pytest.mark.parametrize("count", [1, 100])
def test_peak_memory_is_one_copy_of_the_gradients(weight, count):
    shape = (4_000_000 // count,)
    grads = {f"p{i}": np.ones(shape, np.float32) for i in range(count)}
    one_copy = sum(g.nbytes for g in grads.values())
    tracemalloc.start()
    try:
        acc = accumulator(*grads, shape=shape, accumulation_steps=3)
        for _ in range(3):
            acc.step(grads, weight=weight)
        acc.apply(lambda grads: None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.1 * one_copy + 1_000_000


# Large gradients, in pieces and threads --------------------------------------------------------


@pytest.fixture
def small_pieces(monkeypatch):
    """Everything is large: pieces of a few elements, threads for two."""
    for name, value in {"LEAST": 2, "LINE": 7, "ALONE": 64, "SHARED": 64}.items():
        monkeypatch.setattr(passes, name, value)
    with ad.config.threads(3):
        yield


@pytest.mark.parametrize("weight", [1.0, 3.0])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64])
def test_threads_add_the_bits_of_one_pass(small_pieces, dtype, weight):
    rng = np.random.default_rng(0)
    given = [
        {
            name: (rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 4, shape)).astype(dtype)
            for name, shape in {"a": (9001,), "b": (97, 103), "c": (3,), "none": (0, 4)}.items()
        }
        for _ in range(3)
    ]
    for micro in given:
        micro["b"] = micro["b"].T.copy().T  # not contiguous
    acc = ad.GradientAccumulator(accumulation_steps=3, normalize=False)
    for name, g in given[0].items():
        acc.register(name, g.shape)
    for micro in given:
        acc.step(micro, weight=weight)
    total = np.result_type(dtype, np.float32)
    for name, got in acc.gradients().items():
        expected = np.multiply(given[0][name], weight, dtype=total)
        for micro in given[1:]:
            expected += np.multiply(micro[name], weight, dtype=total)
        assert got.dtype == total
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("where", [0, 4999, 9000])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_threads_find_what_is_not_finite_before_anything_is_added(small_pieces, value, where):
    acc = ad.GradientAccumulator(accumulation_steps=3)
    for name in ("a", "b", "c"):
        acc.register(name, (9001,), np.float32)
    good = {name: np.ones(9001, np.float32) for name in ("a", "b", "c")}
    acc.step(good)
    before = {name: g.tobytes() for name, g in acc.gradients().items()}
    bad = {name: g.copy() for name, g in good.items()}
    bad["b"][where] = value
    with pytest.raises(ad.errors.NonFiniteError, match="'b'"):
        acc.step(bad)
    assert {name: g.tobytes() for name, g in acc.gradients().items()} == before


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64])
@pytest.mark.parametrize("size", [4 * norm.ROW, 4 * norm.ROW + 1, 7 * norm.ROW - 1])
def test_finite_by_products_is_exact(monkeypatch, dtype, size):
    monkeypatch.setattr(norm, "MASKED", 0)
    a = np.zeros(size, dtype)
    assert norm.all_finite(a)
    largest = np.finfo(dtype).max
    a[:] = largest  # each product, and each sum of them, overflows
    assert norm.all_finite(a)
    a[::2] = -largest  # inf - inf
    assert norm.all_finite(a)
    a[:] = (
        largest / 2 if np.dtype(dtype).kind == "c" else np.sqrt(largest) / 64
    )  # the sum of the sums overflows
    assert norm.all_finite(a)
    for i in (0, size // 2 - 1, size // 2, size - 1):
        for value in (np.nan, np.inf, -np.inf):
            for rest in (0.0, 1.0, largest):
                a[:] = rest
                a[i] = value
                assert not norm.all_finite(a)


def test_an_optimiser_of_other_parameters_is_refused_and_the_window_stays():
    w, other = (ad.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    acc = ad.GradientAccumulator([w], accumulation_steps=1)
    with acc.micro_batch():
        (w * w).sum().backward()
    with pytest.raises(ad.errors.InputError, match="updates none of the accumulator's parameters"):
        acc.apply(ad.optim.SGD([other], lr=0.5))
    assert acc.apply(ad.optim.SGD([other, w], lr=0.5))  # some is enough, in any order
    assert (w.tolist(), other.tolist()) == ([0.0, 0.0], [1.0, 2.0])


def test_a_weight_is_a_number_and_the_steps_have_a_name():
    acc = ad.GradientAccumulator(accumulation_steps=2)
    acc.register("w", (1,))
    with pytest.raises(ad.errors.ArgumentError, match="weight is a number, but got '3'"):
        acc.step({"w": [1.0]}, weight="3")
    with pytest.raises(ad.errors.InputError, match="accumulation_steps="):
        ad.GradientAccumulator([], 4)
