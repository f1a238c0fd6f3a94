"""From a window to an update: checks, events, several optimisers, a scaler, saved states that are none."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from accumulators import accumulator, frozen

import adjoint as ad
from adjoint.errors import (
    AccumulationError,
    ArgumentError,
    InputError,
    NonFiniteError,
)


def one(*grads, weight=1.0, dtype=np.float64, **options):
    """An accumulator of one parameter and a full window of these gradients."""
    acc = accumulator("w", shape=np.shape(grads[0]), accumulation_steps=len(grads), **options)
    for g in grads:
        acc.step({"w": np.array(g, dtype)}, weight=weight)
    return acc


def nothing(grads):
    pass


# Checks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("get", [lambda acc: acc.gradients(), lambda acc: acc.apply(nothing)])
def test_an_overflow_of_the_sum_is_noticed_by_gradients_and_by_apply(get):
    acc = one([3e38], [3e38], weight=10, dtype=np.float32)
    with pytest.raises(NonFiniteError) as caught:
        get(acc)
    assert str(caught.value) == (
        "the norm of the summed gradients is inf.\n"
        "  Use smaller losses or weights, or sum float32 gradients in float64 (dtype=np.float64).  Call "
        "drop() to discard the window."
    )
    with pytest.raises(NonFiniteError):
        get(one([1e308], [1e308], weight=10))
    allowed = one([3e38], [3e38], weight=10, dtype=np.float32, nonfinite="allow")
    assert allowed.gradients()["w"].tolist() == [math.inf]


@pytest.mark.parametrize("policy", ["skip", "skip_window"])
def test_where_apply_would_skip_there_is_no_gradient(policy):
    acc = one([3e38], [3e38], weight=10, dtype=np.float32, nonfinite=policy)
    with pytest.raises(NonFiniteError):
        acc.gradients()
    assert not acc.apply(nothing)


def test_finite_gradients_with_a_norm_beyond_float64_are_clipped_and_handed_over():
    for bound, expected in ((1.0, 0.5), (math.inf, 1e308)):
        acc = one([1e308] * 4, max_grad_norm=bound)
        np.testing.assert_allclose(acc.gradients()["w"], expected)
        seen = {}
        assert acc.apply(seen.update)
        np.testing.assert_allclose(seen["w"], expected)
        assert acc.last_norm == math.inf
    halved = one(
        [4e307] * 16, [4e307] * 16, max_grad_norm=math.inf
    )  # the norm of the sum is beyond, that of the mean is not
    assert halved.apply(nothing)
    assert halved.last_norm == pytest.approx(1.6e308)


def test_numbers_beyond_float64_are_refused():
    acc = accumulator("w", accumulation_steps=2)
    with pytest.raises(InputError, match="weight must be a number, but got 1000"):
        acc.step({"w": [0.0, 0.0]}, weight=10**400)
    for bad in ({"max_grad_norm": 10**400}, {"norm_type": 10**400}):
        with pytest.raises(ArgumentError, match="but is a number beyond the range of float64"):
            accumulator("w", **bad)


def test_registering_again_with_another_dtype_is_refused():
    acc = accumulator("w")
    with pytest.raises(ArgumentError) as caught:
        acc.register("w", (2,), np.float64)
    assert str(caught.value) == (
        "register: 'w' is already registered with shape (2,) and dtype None, not with (2,) and float64.\n"
        "  Choose another name, or create a new accumulator."
    )
    acc.step({"w": np.ones(2, np.float32)})
    acc.register("w", (2,))
    acc.register("w", (2,), np.float32)
    with pytest.raises(
        ArgumentError, match=r"with shape \(2,\) and dtype float32, not with \(2,\) and float64"
    ):
        acc.register("w", (2,), np.float64)


# Events ----------------------------------------------------------------------------------------


def heard(acc):
    events = []
    for kind in ("full", "clip", "skip", "update"):
        acc.on(kind, lambda e: events.append((e.kind, e.norm, e.clipped_norm)))
    return events


def test_the_way_by_name_tells_of_clips_and_updates_as_apply_does():
    by_apply, by_name = (accumulator("w", accumulation_steps=1, max_grad_norm=5.0) for _ in range(2))
    told = [heard(acc) for acc in (by_apply, by_name)]
    for _ in range(2):
        by_apply.step({"w": [30.0, 40.0]})
        by_apply.apply(nothing)
        by_name.step({"w": [30.0, 40.0]})
        by_name.gradients()
        by_name.gradients()  # told once
        by_name.reset()
    assert told[0] == told[1] == [("full", None, None), ("clip", 50.0, 5.0), ("update", 50.0, 5.0)] * 2
    assert by_apply.stats() == by_name.stats()
    assert by_name.stats().clipped_windows == 2
    assert by_name.last_norm == 50.0


def test_gradients_before_apply_tell_once():
    acc = one([30.0, 40.0], max_grad_norm=5.0, clip=lambda g: ad.clip_grad_norm(g, 1.0))
    events = heard(acc)
    acc.gradients()
    acc.apply(nothing)
    assert events == [("clip", 50.0, pytest.approx(1.0)), ("update", 50.0, pytest.approx(1.0))]
    assert acc.stats().clipped_windows == 1


def test_a_look_into_an_open_window_tells_nothing():
    acc = accumulator("w", accumulation_steps=2, max_grad_norm=5.0)
    events = heard(acc)
    acc.step({"w": [30.0, 40.0]})
    acc.gradients()
    assert (events, acc.stats().clipped_windows, acc.last_norm) == ([], 0, None)
    assert acc.flush()  # who calls it knows: no "full"
    acc.gradients()
    acc.reset()
    assert events == [("clip", 50.0, 5.0), ("update", 50.0, 5.0)]


def clip_in_place(grads):
    grads["w"][...] = grads["w"] / 10.0


@pytest.mark.parametrize("clip", [lambda g: ad.clip_grad_norm(g, 5.0), clip_in_place])
def test_a_clip_function_tells_of_its_clips(clip):
    acc = one([30.0, 40.0], clip=clip)
    events = heard(acc)
    acc.apply(nothing)
    assert [e[0] for e in events] == ["clip", "update"]
    assert events[0][1:] == events[1][1:] == (50.0, pytest.approx(5.0))
    assert acc.stats().clipped_windows == 1


def test_a_clip_function_that_changes_nothing_tells_nothing():
    acc = one([3.0, 4.0], clip=lambda g: ad.clip_grad_norm(g, 5.0), nonfinite="allow")
    events = heard(acc)
    acc.apply(nothing)
    assert events == [("update", 5.0, None)]
    assert acc.stats().clipped_windows == 0


def test_a_clip_function_that_takes_gradients_away_is_refused():
    with pytest.raises(InputError, match=r"clip: the function removed 'w'\.  It may only change gradients"):
        one([1.0], clip=lambda g: g.pop("w")).apply(nothing)


def test_an_error_in_a_callback_comes_after_what_its_event_says():
    acc = accumulator("w", accumulation_steps=1, nonfinite="skip", max_grad_norm=1.0)
    for kind in ("full", "clip", "skip", "update"):
        acc.on(kind, lambda e: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        acc.step({"w": [3.0, 4.0]})
    for updates in (0, 1):  # "clip": no update yet; "update": it was made
        assert acc.should_update()
        with pytest.raises(ZeroDivisionError):
            acc.apply(nothing)
        assert acc.stats().total_updates == updates
    assert not acc.should_update()
    with pytest.raises(ZeroDivisionError):
        acc.step({"w": [math.nan, 4.0]})
    assert acc.stats().skipped_micro_batches == 1


def test_resetting_a_window_that_has_no_gradient_counts_as_skipped():
    acc = one([math.nan], nonfinite="skip_window")
    acc.reset()
    stats = acc.stats()
    assert (stats.total_updates, stats.skipped_windows) == (0, 1)


# Optimisers ------------------------------------------------------------------------------------


def two_parameters():
    w, v = (ad.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    acc = ad.GradientAccumulator({"w": w, "v": v}, accumulation_steps=1)
    with acc.micro_batch():
        (w * w + v * v).sum().backward()
    return acc, w, v


def test_an_optimiser_of_some_parameters_would_lose_the_gradients_of_the_others():
    acc, w, v = two_parameters()
    with pytest.raises(InputError) as caught:
        acc.apply(ad.optim.SGD([w], lr=0.5))
    assert str(caught.value) == (
        "apply: no optimiser updates 'v', so these gradients would be lost.\n"
        "  Create optimisers and accumulator from the same parameters, and pass all optimisers at once: "
        "apply([one, other])."
    )
    assert acc.apply([ad.optim.SGD([w], lr=0.5), ad.optim.SGD([v], lr=0.25)])
    assert (w.tolist(), v.tolist()) == ([0.0, 0.0], [0.5, 1.0])


def test_a_parameter_without_gradient_needs_no_optimiser():
    w, v = (ad.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    acc = ad.GradientAccumulator({"w": w, "v": v}, accumulation_steps=1)
    with acc.micro_batch():
        (w * w).sum().backward()
    assert acc.apply(ad.optim.SGD([w], lr=0.5))


def test_if_the_second_of_two_optimisers_raises_the_first_is_not_called_again():
    acc, w, v = two_parameters()
    good, bad = ad.optim.SGD([w], lr=0.5), ad.optim.SGD([v], lr=0.5)
    broken = SimpleNamespace(step=lambda: 1 / 0, params=[v])
    with pytest.raises(ZeroDivisionError):
        acc.apply([good, broken])
    assert w.tolist() == [0.0, 0.0]
    assert acc.apply([good, bad])
    assert (w.tolist(), v.tolist()) == ([0.0, 0.0], [0.0, 0.0])
    with acc.micro_batch():  # the next window begins anew
        ((w - 1.0) * v).sum().backward()
    assert acc.apply([good, bad])
    assert v.tolist() == [0.5, 0.5]


def test_what_is_no_optimiser_is_refused_before_anything():
    acc, w, v = two_parameters()
    for bad, message in ((3, "at least one of these, not 3"), ([], r"at least one of these, not \[\]"),
                         ([ad.optim.SGD([w, v], lr=0.5), None], r"at least one of these, not \[SGD.*None\]")):  # fmt: skip
        with pytest.raises(InputError, match=message):
            acc.apply(bad)
    assert w.tolist() == [1.0, 2.0]


def half_precision(**options):
    """A float16 parameter whose gradients add up to 120,000, which float16 does not hold."""
    w = ad.tensor(np.ones(2, np.float16), requires_grad=True)
    acc = ad.GradientAccumulator([w], accumulation_steps=2, normalize=False, **options)
    for _ in range(2):
        with acc.micro_batch():
            ad.sum(w * ad.tensor(np.full(2, 60_000, np.float16)), dtype=np.float32).backward()
    return acc, w


def test_a_sum_that_the_dtype_of_the_parameter_does_not_hold_is_no_infinity():
    acc, w = half_precision()
    with pytest.raises(NonFiniteError) as caught:
        acc.apply(ad.optim.SGD([w], lr=1.0))
    assert str(caught.value) == (
        "apply: these gradients overflow the dtype of their parameters: '0'.\n"
        "  Clip the gradients (max_grad_norm=), or use a wider dtype for the parameters."
    )
    assert w.tolist() == [1.0, 1.0]
    acc, w = half_precision(nonfinite="allow")
    seen = []
    assert acc.apply(SimpleNamespace(step=lambda: seen.append(w.grad.tolist())))
    assert seen == [[math.inf, math.inf]]
    acc, w = half_precision(nonfinite="skip_window")
    assert not acc.apply(ad.optim.SGD([w], lr=1.0))
    acc, w = half_precision()
    scaler = ad.GradScaler(init_scale=1.0)
    assert not acc.apply(ad.optim.SGD([w], lr=1.0), scaler=scaler)
    assert scaler.get_scale() == 0.5


@pytest.mark.parametrize("options", [{"max_grad_norm": 1.0}, {"clip": lambda g: ad.clip_grad_norm(g, 1.0)}])
def test_clipping_comes_before_the_dtype_of_the_parameter(options):
    acc, w = half_precision(**options)
    assert acc.apply(ad.optim.SGD([w], lr=1.0))
    np.testing.assert_allclose(w.numpy().astype(float), 1 - math.sqrt(0.5), rtol=2e-3)


def test_a_function_may_keep_the_dictionary_it_is_given():
    kept = []
    acc = one([3.0, 4.0])
    acc.apply(kept.append)
    acc.step({"w": [1.0, 1.0]})
    assert kept[0]["w"].tolist() == [3.0, 4.0]


def test_a_micro_batch_inside_one_of_the_same_accumulator_collects_its_own_gradients():
    w = ad.tensor([1.0], requires_grad=True)
    acc = ad.GradientAccumulator([w], accumulation_steps=2)
    with acc.micro_batch(weight=3):
        (w * 2.0).sum().backward()
        with acc.micro_batch(weight=1):
            (w * 6.0).sum().backward()
    assert acc.stats().total_micro_batches == 2
    assert acc.gradients()["0"].tolist() == [3.0]


# Scalers ---------------------------------------------------------------------------------------


def scaled_pair(scaler, steps):
    w = ad.tensor([1.0], requires_grad=True)
    acc = ad.GradientAccumulator([w], accumulation_steps=steps, nonfinite="skip_window")

    def add(factor=1.0):
        with acc.micro_batch():
            scaler.scale((w * factor).sum()).backward()

    return acc, ad.optim.SGD([w], lr=1.0), add, w


def test_accumulators_that_share_a_scaler_divide_by_the_scale_their_losses_had():
    scaler = ad.GradScaler(init_scale=8.0, growth_interval=1)
    first, second = scaled_pair(scaler, 1), scaled_pair(scaler, 1)
    for _, _, add, _ in (first, second):
        add()
    for acc, optimizer, _, w in (first, second):
        assert acc.apply(optimizer, scaler=scaler)  # the first one makes the scale 16
        assert w.tolist() == [0.0]
    assert scaler.get_scale() == 32.0


def test_a_scale_that_changes_in_mid_window_is_an_error():
    scaler = ad.GradScaler(init_scale=8.0)
    acc, optimizer, add, w = scaled_pair(scaler, 2)
    add()
    scaler.update(16.0)
    add()
    with pytest.raises(AccumulationError) as caught:
        acc.apply(optimizer, scaler=scaler)
    assert str(caught.value) == (
        "apply: the scale of the GradScaler changed between the micro-batches of this update, from 8 to "
        "16, so the sums are wrong.\n  Call drop() on the accumulator.  Accumulators that share a scaler must start "
        "and apply their updates together."
    )
    assert w.tolist() == [1.0]
    acc.drop()
    for _ in range(100):  # more changes than a scaler remembers
        scaler.update(8.0)
        scaler.update(16.0)
    add()
    add()
    assert acc.apply(optimizer, scaler=scaler)
    assert w.tolist() == [0.0]
    add()
    add()
    for _ in range(100):
        scaler.update(8.0)
        scaler.update(16.0)
    with pytest.raises(AccumulationError, match="from a scale no longer stored"):
        acc.apply(optimizer, scaler=scaler)


def test_an_overflow_of_a_scaled_loss_names_the_policy_for_scalers():
    w = ad.tensor([1.0], requires_grad=True)
    acc = ad.GradientAccumulator([w], accumulation_steps=1)
    with np.errstate(all="ignore"), pytest.raises(NonFiniteError) as caught, acc.micro_batch():
        ad.GradScaler(init_scale=8.0).scale((w * 1e308).sum()).backward()
    assert str(caught.value) == (
        "this micro-batch has gradients that are not finite: '0'.  Nothing was added.\n"
        "  ad.detect_anomaly() finds the op that produced them.  To leave out such micro-batches pass "
        'nonfinite="skip", or "skip_window" with a GradScaler.'
    )


def test_a_scaled_window_is_not_applied_without_its_scaler():
    """It was, and the update was as many times too large as the scale."""
    scaler = ad.GradScaler(init_scale=8.0)
    acc, optimizer, add, w = scaled_pair(scaler, 1)
    add()
    resumed, resumed_optimizer, _, v = scaled_pair(scaler, 1)
    resumed.load_state_dict(acc.state_dict())
    for window, its in ((acc, optimizer), (resumed, resumed_optimizer)):
        with pytest.raises(AccumulationError) as caught:
            window.apply(its)
        assert str(caught.value) == (
            "apply: a GradScaler scaled the losses of this window, so the gradients are scaled "
            "too.\n"
            "  Pass the scaler to divide the gradients by the scale: apply(optimizer, "
            "scaler=scaler)."
        )
        assert window.apply(its, scaler=scaler)
    assert w.tolist() == v.tolist() == [0.0]
    with acc.micro_batch():  # the next window is its own
        ad.GradScaler(enabled=False).scale((w * 2.0).sum()).backward()
    assert acc.apply(optimizer)
    assert w.tolist() == [-2.0]


def test_a_loaded_window_takes_the_scale_of_its_scaler():
    scaler, resumed = ad.GradScaler(init_scale=8.0), ad.GradScaler()
    acc, _, add, _ = scaled_pair(scaler, 2)
    add()
    other, optimizer, more, w = scaled_pair(resumed, 2)
    other.load_state_dict(acc.state_dict())
    resumed.load_state_dict(scaler.state_dict())
    more()
    assert other.apply(optimizer, scaler=resumed)
    assert w.tolist() == [0.0]


def test_a_window_without_weight_leaves_the_scale_alone():
    scaler = ad.GradScaler(init_scale=8.0)
    acc = one([1.0], weight=0.0)
    assert not acc.apply(nothing, scaler=scaler)
    assert (scaler.get_scale(), acc.stats().skipped_windows) == (8.0, 1)


def test_a_micro_batch_that_was_left_out_backs_the_scale_off():
    scaler = ad.GradScaler(init_scale=8.0)
    acc = one([8.0], [math.inf], nonfinite="skip")
    seen = {}
    assert acc.apply(seen.update, scaler=scaler)  # the others make their update
    assert (seen["w"].tolist(), scaler.get_scale()) == ([1.0], 4.0)
    assert not one([math.inf], nonfinite="skip").apply(nothing, scaler=scaler)
    assert scaler.get_scale() == 2.0


def test_scalers_check_their_arguments():
    with pytest.raises(ArgumentError, match="enabled must be True or False, not 'no'"):
        ad.GradScaler(enabled="no")
    scaler = ad.GradScaler(init_scale=8.0)
    with pytest.raises(ArgumentError, match="good_updates must be an integer of at least 0, but got -1"):
        scaler.load_state_dict(ad.GradScaler().state_dict() | {"good_updates": -1})
    assert scaler.get_scale() == 8.0


def test_an_overflow_that_the_scaler_makes_is_no_warning():
    loss = ad.tensor(np.float16(2.0), requires_grad=True)
    assert ad.GradScaler(init_scale=60000.0).scale(loss).item() == math.inf


# Saved states ----------------------------------------------------------------------------------


def saved():
    acc = accumulator("a", "b", accumulation_steps=4)
    acc.step({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    acc.accumulate("a", [1.0, 2.0])
    return acc, acc.state_dict()


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("format",), 4),
        (("window", "weight"), -3.0),
        (("window", "weight"), math.nan),
        (("window", "weight"), "abc"),
        (("window", "micro_batches"), -1),
        (("window", "micro_batches"), 1.5),
        (("window", "micro_batches"), True),
        (("window", "closed"), 1),
        (("window", "changing"), True),
        (("window", "open"), "a"),
        (("window", "open_weight"), -1.0),
        (("window", "nonsense"), 1),
        (("window", "first"), 1),
        (("window",), {}),
        (("window",), 3),
        (("counts", "total_updates"), -1),
        (("counts", "total_updates"), 1.5),
        (("unit",), -1.0),
        (("unit",), "1"),
        (("buffers", "a", "sum"), None),
        (("buffers", "a", "sum"), np.zeros(3)),
        (("buffers", "a", "sum"), np.zeros((1, 1, 3))),
        (("buffers", "a", "sum"), np.zeros((1, 2, 2))),
        (("buffers", "a", "sum"), np.zeros((1, 1, 2), np.float32)),
        (("buffers", "a", "rows"), np.zeros(1)),
        (("buffers", "a", "values"), np.zeros((1, 2))),
        (("buffers", "a"), 3),
        (("buffers", "a"), {}),
        (("buffers",), {}),
        (("buffers",), 3),
        (("config",), {}),
    ],
)
def test_a_state_with_a_value_that_is_none_is_refused_whole(where, value):
    acc, state = saved()
    before = frozen(acc)
    inner = state
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    with pytest.raises(ArgumentError, match="load_state_dict: state"):
        acc.load_state_dict(state)
    assert frozen(acc) == before


def test_what_a_state_lacks_is_named():
    acc, state = saved()
    del state["unit"]
    with pytest.raises(ArgumentError) as caught:
        acc.load_state_dict(state)
    assert str(caught.value) == (
        "load_state_dict: state is missing keys: 'unit'.\n"
        "  Create the accumulator with the same parameters, and pass the value returned by state_dict()."
    )
    again = saved()[1]
    acc.load_state_dict(again)
    acc.accumulate("b", [1.0, 2.0])  # joins the saved micro-batch, and leaves the state alone
    assert acc.stats().window_micro_batches == 2
    assert again["window"]["open"] == ["a"]
