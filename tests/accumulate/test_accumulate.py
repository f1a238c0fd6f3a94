"""Gradient accumulation: windows, weights, all or nothing, state."""

from __future__ import annotations

import numpy as np
import pytest
from accumulators import accumulator, frozen

import adjoint as ad
from adjoint.core.sparse import sparse_gradient
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
    with pytest.raises(NoGradientError, match="no gradient: 0 micro-batches were added"):
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
    with pytest.raises(ArgumentError, match="but this micro-batch has weight 3 and 'b' has weight 4"):
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
    with pytest.raises(ArgumentError, match="max_grad_norm must be a positive number"):
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
            "the window is full (1 of 1 micro-batches), so no more can be added.\n"
            "  To make the update, call apply(optimizer), or gradients() followed by reset().  To discard the "
            "gradients, call drop()."
        )
    assert frozen(acc) == before


def test_unknown_names_list_what_is_registered():
    acc = accumulator("weight", "bias")
    with pytest.raises(UnknownNameError) as caught:
        acc.step({"weigth": [1.0, 1.0]})
    assert str(caught.value) == (
        "no parameter is registered as 'weigth'.  Nothing was added.\n  Is it 'weight'?\n"
        "  Registered: 'weight', 'bias'."
    )
    assert isinstance(caught.value, KeyError)
    many = accumulator(*(f"layers.{i}.weight" for i in range(500)))
    with pytest.raises(UnknownNameError, match=r"Is it 'layers.417.weight'\?\n  Registered: .* and 488 more"):
        many.step({"layers.417.weigth": [1.0, 1.0]})


def test_same_length_but_another_shape_is_an_error():
    acc = accumulator("w", shape=(2, 3))
    with pytest.raises(ShapeError) as caught:
        acc.step({"w": np.zeros((3, 2))})
    assert str(caught.value) == (
        "w: expected a gradient of shape (2, 3), but got (3, 2), which has the same number of elements."
    )


def test_registering_again():
    acc = accumulator("w")
    acc.register("w", (2,))
    with pytest.raises(ArgumentError, match="register: 'w' is already registered with shape"):
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


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        (-1, ArgumentError, "weight must be finite and at least 0, but is -1"),
        (float("nan"), ArgumentError, "weight must be finite and at least 0, but is nan"),
        (float("inf"), ArgumentError, "weight must be finite and at least 0, but is inf"),
        ("many", InputError, "weight must be a number, but got 'many'"),
        (None, InputError, "weight must be a number, but got None"),
    ],
)
def test_bad_weights(weight, error, message):
    acc = accumulator("w")
    with pytest.raises(error, match=message):
        acc.step({"w": [1.0, 1.0]}, weight=weight)


def test_a_micro_batch_of_weight_zero_adds_nothing():
    acc = accumulator("w", accumulation_steps=2)
    acc.step({"w": [np.nan, np.nan]}, weight=0)  # the mean over no tokens
    acc.step({"w": [1.0, 2.0]}, weight=5)
    np.testing.assert_array_equal(acc.gradients()["w"], [1.0, 2.0])


def test_a_window_without_weight_has_no_gradient():
    acc = accumulator("w", accumulation_steps=1, reduction="sum")
    acc.step({"w": [0.0, 0.0]}, weight=0)
    with pytest.raises(NoGradientError, match=r"1 micro-batches were added, 0 of them .* the weight is 0"):
        acc.gradients()


def test_unused_parameters_are_missing_or_zero():
    acc = accumulator("a", "b", accumulation_steps=1)
    acc.step({"a": [1.0, 1.0]})
    assert list(acc.gradients()) == ["a"]
    np.testing.assert_array_equal(acc.gradients(zeros=True)["b"], [0.0, 0.0])


def test_a_weight_is_a_number_and_the_steps_have_a_name():
    acc = ad.GradientAccumulator(accumulation_steps=2)
    acc.register("w", (1,))
    with pytest.raises(ad.errors.InputError, match="weight must be a number, but got '3'"):
        acc.step({"w": [1.0]}, weight="3")
    with pytest.raises(ad.errors.InputError, match="accumulation_steps="):
        ad.GradientAccumulator([], 4)
    with pytest.raises(ad.errors.InputError, match=r"(?s)not 3.*accumulation_steps="):
        ad.GradientAccumulator(3)


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
    np.testing.assert_array_equal(state["buffers"]["w"]["sum"], [[[1.0, 2.0]]])


def test_a_state_that_does_not_fit_changes_nothing():
    acc = accumulator("a", "b", accumulation_steps=2)
    acc.step({"a": [1.0, 2.0]})
    good, before = acc.state_dict(), frozen(acc)
    other = accumulator("a", "z", accumulation_steps=2).state_dict()
    with pytest.raises(ArgumentError) as names:
        acc.load_state_dict(other)
    assert str(names.value) == (
        "load_state_dict: state['buffers'] is missing keys: 'b' and has unknown keys: 'z'.\n"
        "  Create the accumulator with the same parameters, and pass the value returned by state_dict()."
    )
    with pytest.raises(ArgumentError, match="different options: accumulation_steps=7 instead of 2"):
        acc.load_state_dict(accumulator("a", "b", accumulation_steps=7).state_dict())
    with pytest.raises(
        ArgumentError, match=r"state\['buffers'\]\['a'\]\['sum'\] is array.*shape=\(0, 1, 2\)"
    ):
        acc.load_state_dict(accumulator("a", "b", shape=(3,), accumulation_steps=2).state_dict())
    with pytest.raises(ArgumentError, match=r"is missing keys: .* and has unknown keys: 'step'."):
        acc.load_state_dict({"step": 3})
    for wrong in (np.zeros((1, 1, 5)), np.zeros((1, 2, 2)), np.zeros((1, 1, 2), np.float32), np.zeros(2), 3):
        broken = {**good, "buffers": {**good["buffers"], "a": {**good["buffers"]["a"], "sum": wrong}}}
        with pytest.raises(ArgumentError, match=r"state\['buffers'\]\['a'\]\['sum'\] is"):
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


# Small and large gradients side by side ----------------------------------------------------------


@pytest.mark.parametrize("nonfinite", ["raise", "skip", "skip_window", "allow"])
@pytest.mark.parametrize("weight", [1.0, 3.0])
@pytest.mark.parametrize(
    "sizes",
    [
        [3, 4, 20_000, 5, 12],  # two blocks, parted by a large one
        [7, 20_000, 20_001, 9, 8, 20_002, 6, 5],
        [8_000] * 40,  # more than fits one block
        [1, 8_193, 1, 1, 8_192, 1],
    ],
)
def test_blocks_of_small_gradients_do_not_mix(sizes, weight, nonfinite):
    rng = np.random.default_rng(len(sizes))
    acc = ad.GradientAccumulator(accumulation_steps=3, nonfinite=nonfinite)
    dtypes = [np.float64, np.float32]
    for i, n in enumerate(sizes):
        acc.register(f"p{i}", (n,), dtypes[i % 7 == 3])
    given = [
        {f"p{i}": rng.standard_normal(n).astype(dtypes[i % 7 == 3]) for i, n in enumerate(sizes)}
        for _ in "abc"
    ]
    for micro in given:
        acc.step(micro, weight=weight)
    for name, got in acc.gradients().items():
        expected = sum(micro[name].astype(np.float64) for micro in given) / 3
        np.testing.assert_allclose(got, expected, rtol=1e-12 if got.dtype == np.float64 else 2e-6, atol=1e-7)


@pytest.mark.parametrize(
    "order", ["sparse, dense", "dense, sparse", "sparse, dense, sparse", "sparse, dense, dense"]
)
def test_dense_and_sparse_gradients_of_one_parameter_add_up(order):
    acc = ad.GradientAccumulator(accumulation_steps=3, normalize=False)
    acc.register("w", (2,))
    acc.register("table", (3, 2))
    expected = np.zeros((3, 2))
    for kind in order.split(", "):
        dense = np.full((3, 2), 10.0)
        if kind == "sparse":
            dense = np.zeros((3, 2))
            dense[1] = 1.0
        grad = dense if kind == "dense" else sparse_gradient([1], np.ones((1, 2)), (3, 2))
        expected += dense
        acc.step({"w": np.ones(2), "table": grad})
    got = acc.gradients()
    np.testing.assert_array_equal(np.asarray(got["table"]), expected)
    np.testing.assert_array_equal(got["w"], [len(order.split(", "))] * 2)
