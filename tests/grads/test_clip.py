"""Norms and clipping."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import adjoint as ad
from adjoint.errors import ArgumentError, InputError, NonFiniteError


def param(data, grad):
    t = ad.tensor(np.asarray(data, float), requires_grad=True)
    t.grad = None if grad is None else ad.tensor(np.asarray(grad, float))
    return t


# Norms -----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    a=hnp.arrays(np.float64, hnp.array_shapes(max_dims=3, max_side=5), elements=st.floats(-1e3, 1e3)),
    p=st.sampled_from([0.5, 1, 2, 3, math.inf]),
)
def test_global_norm_is_numpys(a, p):
    expected = np.linalg.norm(a.reshape(-1), p)
    halves = [a.reshape(-1)[: a.size // 2], a.reshape(-1)[a.size // 2 :]]
    assert ad.global_norm([a], p) == pytest.approx(expected, rel=1e-12)
    assert ad.global_norm(halves, p) == pytest.approx(expected, rel=1e-12)
    assert ad.global_norm([a.T], p) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("p", [1, 2, 3.5, math.inf])
@pytest.mark.parametrize("scale", [1e200, 1e-200, 1e307, 5e-324])
def test_neither_large_nor_small_is_lost(scale, p):
    norm = ad.global_norm([np.array([scale]), np.array([[0.0, -scale]])], p)
    assert norm == pytest.approx(scale * 2 ** (1 / p), rel=1e-12, abs=5e-324)


def test_norms_of_other_dtypes():
    assert ad.global_norm([np.full(4, 60000, np.float16)]) == 120000.0
    assert ad.global_norm([np.full(4, 3e38, np.float32)]) == pytest.approx(6e38, rel=1e-6)
    assert ad.global_norm([np.array([3 + 4j, 0])]) == 5.0
    assert ad.global_norm([np.array([3 + 4j, 0], np.complex64)], math.inf) == 5.0
    assert ad.global_norm([np.full(1_000_000, 0.1, np.float32)]) == pytest.approx(100.0, rel=1e-7)


def test_norms_at_the_edge():
    assert ad.global_norm([]) == 0.0
    assert ad.global_norm([np.zeros((0, 3)), np.zeros(2)]) == 0.0
    assert ad.global_norm([np.array(-2.0)]) == 2.0
    assert math.isnan(ad.global_norm([np.array([np.nan, np.inf])]))
    assert ad.global_norm([np.array([1.0, -np.inf])]) == math.inf
    assert math.isnan(ad.global_norm([np.array([1.0]), np.array([np.nan])], 1))


@pytest.mark.parametrize("p", [0, -1, math.nan, "2", None, True])
def test_orders_that_are_none(p):
    with pytest.raises(ArgumentError, match="the order of a norm"):
        ad.global_norm([np.ones(2)], p)


# Clipping --------------------------------------------------------------------------------------


def test_clip_parameters():
    a, b, c = param([0, 0], [3, 0]), param([0], [4]), param([1], None)
    assert ad.clip_grad_norm([a, b, c], 1.0) == 5.0
    np.testing.assert_allclose(a.grad.numpy(), [0.6, 0])
    np.testing.assert_allclose(b.grad.numpy(), [0.8])
    assert c.grad is None


def test_below_the_bound_nothing_is_touched():
    a = param([0, 0], [3, 4])
    before = a.grad
    assert ad.clip_grad_norm([a], 5.0) == 5.0
    assert a.grad is before


@pytest.mark.parametrize(("p", "norm"), [(1, 7.0), (2, 5.0), (math.inf, 4.0)])
def test_clip_by_every_norm(p, norm):
    grads = {"w": np.array([3.0, -4.0])}
    assert ad.clip_grad_norm(grads, 1.0, p) == norm
    np.testing.assert_allclose(ad.global_norm([grads["w"]], p), 1.0)


def test_clip_a_store():
    x = ad.tensor([1.0, 2.0], requires_grad=True)
    grads = ad.backward((x * x).sum())
    ad.clip_grad_norm(grads, 1.0)
    assert grads.norm() == pytest.approx(1.0)
    assert x.grad is None


def test_dtype_and_kind_stay():
    grads = {"a": np.full(2, 3.0, np.float32), "b": ad.tensor(np.full(2, 4.0, np.float16)), "c": None}
    ad.clip_grad_norm(grads, 1.0)
    assert grads["a"].dtype == np.float32
    assert isinstance(grads["b"], ad.Tensor)
    assert grads["b"].dtype == np.float16
    assert grads["c"] is None


def test_huge_gradients_become_small_ones():
    grads = {"w": np.array([3e200, 4e200])}
    ad.clip_grad_norm(grads, 5.0)
    np.testing.assert_allclose(grads["w"], [3.0, 4.0])


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, None, "1", True])
def test_max_norm_is_above_zero(bad):
    with pytest.raises(ArgumentError, match="max_norm must be a positive number"):
        ad.clip_grad_norm({"w": np.ones(2)}, bad)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nonfinite_gradients(bad):
    grads = {"v": np.array([3.0, 4.0]), "w": np.array([bad, 1.0])}
    with pytest.raises(
        NonFiniteError, match=f"the norm of the gradients is {bad}.  Gradients that are not finite: w"
    ):
        ad.clip_grad_norm(grads, 1.0)
    norm = ad.clip_grad_norm(grads, 1.0, nonfinite="allow")
    assert not math.isfinite(norm)
    np.testing.assert_array_equal(grads["v"], [3.0, 4.0])
    with pytest.raises(ArgumentError, match="nonfinite"):
        ad.clip_grad_norm(grads, 1.0, nonfinite="skip")


def test_what_cannot_be_clipped():
    with pytest.raises(InputError, match="takes parameters"):
        ad.clip_grad_norm([np.ones(2)], 1.0)
    with pytest.raises(InputError, match="'w' is a list"):
        ad.clip_grad_norm({"w": [1.0]}, 1.0)


def test_by_group():
    a, b = param([0, 0], [3, 4]), param([0], [0.5])
    assert ad.clip_grad_norm_by_group({"a": [a], "b": [b]}, 1.0) == {"a": 5.0, "b": 0.5}
    np.testing.assert_allclose(a.grad.numpy(), [0.6, 0.8])
    np.testing.assert_allclose(b.grad.numpy(), [0.5])
    ad.clip_grad_norm_by_group({"a": [a], "b": [b]}, {"a": 2.0, "b": 0.1})
    np.testing.assert_allclose(b.grad.numpy(), [0.1])
    with pytest.raises(ArgumentError, match="the groups are"):
        ad.clip_grad_norm_by_group({"a": [a]}, {"b": 1.0})


def test_one_bad_group_changes_none():
    a, b = param([0, 0], [3, 4]), param([0], [np.nan])
    with pytest.raises(NonFiniteError, match="group 'b'"):
        ad.clip_grad_norm_by_group({"a": [a], "b": [b]}, 1.0)
    np.testing.assert_array_equal(a.grad.numpy(), [3.0, 4.0])


@pytest.mark.parametrize("twice", [lambda a, b: [a, b, a], lambda a, b: {"a": a, "b": b, "tied": a}])
def test_a_shared_parameter_counts_once(twice):
    """It counted twice in the norm, and all gradients were clipped too far."""
    a, b = (ad.tensor([0.0], requires_grad=True) for _ in range(2))
    a.grad, b.grad = ad.tensor([30.0]), ad.tensor([40.0])
    assert ad.clip_grad_norm(twice(a, b), 5.0) == 50.0
    assert (a.grad.item(), b.grad.item()) == (3.0, 4.0)


def test_a_parameter_in_two_groups_is_refused():
    """Only the bound of the last group held."""
    a, b = (ad.tensor([0.0], requires_grad=True) for _ in range(2))
    a.grad, b.grad = ad.tensor([30.0]), ad.tensor([40.0])
    with pytest.raises(InputError) as info:
        ad.clip_grad_norm_by_group({"body": [a], "head": [b, a]}, {"body": 1.0, "head": 100.0})
    assert str(info.value) == (
        "clip_grad_norm_by_group: group 'head': parameter [1] is in group 'body' too.\n"
        "  Remove it from one of them."
    )
    with pytest.raises(ArgumentError) as bounds:
        ad.clip_grad_norm_by_group([[a], [b]], [1.0, 2.0])
    assert str(bounds.value) == (
        "clip_grad_norm_by_group: max_norm must be one number for all groups or a dictionary by group, not a "
        "list.\n  The groups are 0, 1."
    )
    assert (a.grad.item(), b.grad.item()) == (30.0, 40.0)


def test_adaptive_names_no_option_that_it_lacks():
    a = ad.tensor([1.0], requires_grad=True)
    a.grad = ad.tensor([np.nan])
    with pytest.raises(NonFiniteError) as info:
        ad.clip_grad_adaptive([a])
    assert str(info.value) == (
        "clip_grad_adaptive: the norm of the gradients is nan.  Gradients that are not finite: [0].\n"
        "  ad.detect_anomaly() finds the op that made them."
    )


def test_clip_value_keeps_bfloat16():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    w = ad.tensor(np.ones(2, bfloat16), requires_grad=True)
    w.grad = ad.tensor(np.array([-3.0, 0.5], bfloat16))
    ad.clip_grad_value([w], 1.0)
    assert w.grad.dtype == bfloat16
    assert w.grad.tolist() == [-1.0, 0.5]


def test_clip_value():
    a = param([0, 0, 0], [-3, 0.5, np.inf])
    ad.clip_grad_value([a], 1.0)
    np.testing.assert_array_equal(a.grad.numpy(), [-1.0, 0.5, 1.0])
    grads = {"c": np.array([3 + 4j, 0.1j, 0])}
    ad.clip_grad_value(grads, 1.0)
    np.testing.assert_allclose(grads["c"], [0.6 + 0.8j, 0.1j, 0])
    with pytest.raises(ArgumentError, match="max_value"):
        ad.clip_grad_value([a], -1)


def test_adaptive_by_unit():
    w = param([[3.0, 4.0], [0.0, 0.0]], [[30.0, 40.0], [0.0, 1e-6]])
    assert ad.clip_grad_adaptive([w], 0.1) == 1
    np.testing.assert_allclose(w.grad.numpy(), [[0.3, 0.4], [0.0, 1e-6]])
    column = param([[3.0, 0.0], [4.0, 0.0]], [[30.0, 0.0], [40.0, 1.0]])
    assert ad.clip_grad_adaptive([column], 0.1, eps=1.0, axis=1) == 2
    np.testing.assert_allclose(column.grad.numpy(), [[0.3, 0.0], [0.4, 0.1]])
    with pytest.raises(ArgumentError, match="axis 2"):
        ad.clip_grad_adaptive([w], axis=2)
    with pytest.raises(InputError, match="compares gradients with their parameters"):
        ad.clip_grad_adaptive({"w": np.ones(2)})
    bad = param([1.0], [np.nan])
    with pytest.raises(NonFiniteError):
        ad.clip_grad_adaptive([w, bad])


def test_adaptive_of_vectors_and_numbers():
    b, s = param([3.0, 4.0], [30.0, 40.0]), param(2.0, 7.0)
    assert ad.clip_grad_adaptive([b, s], 0.1) == 2
    np.testing.assert_allclose(b.grad.numpy(), [0.3, 0.4])
    np.testing.assert_allclose(s.grad.numpy(), 0.2)


# Inside an accumulator -------------------------------------------------------------------------


def by_name(clip):
    acc = ad.GradientAccumulator(accumulation_steps=1, clip=clip)
    for name in ("w", "v"):
        acc.register(name, (2,))
    acc.step({"w": [30.0, 40.0], "v": [0.3, 0.4]})
    return acc


def with_params(clip):
    params = {name: ad.tensor([1.0, 1.0], requires_grad=True) for name in ("w", "v")}
    acc = ad.GradientAccumulator(params, accumulation_steps=1, clip=lambda g: clip(g, params))
    with acc.micro_batch():
        (params["w"] * np.array([30.0, 40.0]) + params["v"] * np.array([0.3, 0.4])).sum().backward()
    return acc, params


def assert_clipped(acc):
    got = acc.gradients()
    np.testing.assert_allclose(got["w"], [0.6, 0.8])
    np.testing.assert_allclose(got["v"], [0.3, 0.4])
    seen = {}
    params = acc._params
    if params:
        acc.apply(SimpleNamespace(step=lambda: seen.update({n: t.grad.numpy() for n, t in params.items()})))
    else:
        acc.apply(seen.update)
    np.testing.assert_allclose(seen["w"], [0.6, 0.8])
    np.testing.assert_allclose(seen["v"], [0.3, 0.4])


def test_groups_by_name_are_clipped_inside_an_accumulator():
    def clip(g):
        norms = ad.clip_grad_norm_by_group({"a": {"w": g["w"]}, "b": {"v": g["v"]}}, 1.0)
        assert norms == {"a": 50.0, "b": 0.5}

    assert_clipped(by_name(clip))
    assert_clipped(with_params(lambda g, params: clip(g))[0])


@pytest.mark.parametrize(
    "groups",
    [
        lambda g, p: {"a": [p["w"]], "b": [p["v"]]},
        lambda g, p: [[p["w"]], [p["v"]]],
        lambda g, p: {"a": {"w": p["w"]}, "b": p["v"]},
        lambda g, p: {"a": [g["w"]], "b": [g[p["v"]]]},
        lambda g, p: {"a": {"w": g[p["w"]]}, "b": {"v": g[p["v"]]}},
        lambda g, p: ad.optim.SGD([{"params": [p["w"]]}, {"params": [p["v"]]}], lr=1.0).groups,
        lambda g, p: [{"params": [p["w"]], "lr": 1.0}, {"params": [p["v"]]}],
    ],
)
def test_groups_of_parameters_are_clipped_inside_an_accumulator(groups):
    acc, params = with_params(lambda g, p: ad.clip_grad_norm_by_group(groups(g, p), 1.0))
    params["w"].grad = ad.tensor([7.0, 7.0])  # somebody else's
    assert_clipped(acc)
    assert params["w"].grad.tolist() == [7.0, 7.0]


def test_clip_functions_in_turn_see_what_the_ones_before_left():
    def clip(g):
        w = g["w"]
        mine = {"w": w}
        ad.clip_grad_value(mine, 30.0)
        ad.clip_grad_norm({"w": w}, math.hypot(30.0, 30.0) / 2)
        np.testing.assert_allclose(g["w"], [15.0, 15.0])

    np.testing.assert_allclose(by_name(clip).gradients()["w"], [15.0, 15.0])
    np.testing.assert_allclose(with_params(lambda g, p: clip(g))[0].gradients()["w"], [15.0, 15.0])


def test_adaptive_clipping_takes_parameters_and_their_gradients_inside_an_accumulator():
    for target in (lambda g, p: p, lambda g, p: {"w": g["w"]}, lambda g, p: g):
        acc, _ = with_params(lambda g, p, t=target: ad.clip_grad_adaptive(t(g, p), 1.0))
        np.testing.assert_allclose(acc.gradients()["w"], np.sqrt(2) * np.array([0.6, 0.8]))


def test_a_part_of_a_gradient_is_clipped_inside_an_accumulator():
    acc = by_name(lambda g: ad.clip_grad_norm({"w": g["w"][:1]}, 1.0))
    np.testing.assert_allclose(acc.gradients()["w"], [1.0, 40.0])


def test_what_would_not_reach_the_gradient_is_refused_inside_an_accumulator():
    t = param([1.0], None)
    with pytest.raises(InputError, match="this accumulator has no parameters"):
        by_name(lambda g: ad.clip_grad_norm([t], 1.0)).gradients()
    with pytest.raises(ad.errors.UnknownNameError, match="no parameter is registered as 'x'"):
        with_params(lambda g, p: g["x"])[0].gradients()


def test_a_clip_function_finds_gradients_by_name_in_both_modes():
    def clip(g):
        assert ("w" in g) and ("x" not in g)
        assert g.get("w") is g["w"]

    by_name(clip).gradients()

    def store(g, p):
        clip(g)
        g.set("w", ad.zeros(2))
        g.add("w", ad.ones(2))
        g.set("v", g.pop("v") * 2)

    got = with_params(store)[0].gradients()
    assert got["w"].tolist() == [1.0, 1.0]
    np.testing.assert_allclose(got["v"], [0.6, 0.8])


# Edges -----------------------------------------------------------------------------------------


def test_a_norm_beyond_float64_clips():
    grads = {"w": np.full(4, 1e308)}
    assert ad.clip_grad_norm(grads, 1.0) == math.inf
    np.testing.assert_allclose(grads["w"], 0.5)
    groups = {"a": {"w": np.full(4, 1e308)}}
    assert ad.clip_grad_norm_by_group(groups, 1.0) == {"a": math.inf}
    np.testing.assert_allclose(groups["a"]["w"], 0.5)
    assert ad.global_norm([np.ones(10_000)], 0.01) == math.inf


def test_clipping_half_precision_is_as_exact_as_its_dtype():
    grads = {"w": np.full(40_000, 60_000, np.float16)}
    assert ad.clip_grad_norm(grads, 100.0) == 12e6
    np.testing.assert_allclose(grads["w"].astype(float), 0.5, rtol=1e-3)
    assert grads["w"].dtype == np.float16


def test_groups_that_are_none_are_refused():
    p = param([1.0], [3.0])
    with pytest.raises(InputError) as caught:
        ad.clip_grad_norm_by_group(p, 1.0)
    assert str(caught.value) == (
        "clip_grad_norm_by_group: groups must be a dictionary, {name: parameters or gradients}, or a list of "
        "groups, but got Tensor."
    )
    with pytest.raises(InputError, match="group 'a' is an array, which cannot be replaced"):
        ad.clip_grad_norm_by_group({"a": np.ones(2)}, 1.0)
    with pytest.raises(ArgumentError, match="max_norm has limits for 'b', but the groups are 0"):
        ad.clip_grad_norm_by_group([[p]], {"b": 1.0})
    with pytest.raises(InputError, match="item 0 is a float"):
        ad.clip_grad_norm(3.0, 1.0)
    assert ad.clip_grad_norm_by_group([[p]], 1.0) == {0: 3.0}
    assert p.grad.tolist() == [1.0]


def test_whole_numbers_are_no_gradients_to_clip():
    with pytest.raises(ad.errors.DTypeError) as caught:
        ad.clip_grad_norm({"a": np.array([3, 4])}, 1.0)
    assert str(caught.value) == (
        "clip_grad_norm: gradients must be floats or complex numbers, but 'a' is int64."
    )


def test_masked_gradients_are_not_clipped_as_if_whole():
    with pytest.raises(InputError, match="some elements of this masked array are masked"):
        ad.clip_grad_norm({"a": np.ma.array([1.0, 1e9], mask=[False, True])}, 1.0)


@pytest.mark.parametrize("p", [101.0, 2000.0, 1e6])
def test_norms_of_high_orders_neither_overflow_nor_vanish(p):
    assert ad.global_norm([np.array([3.0, 1.0])], p) == pytest.approx(3.0)
    assert ad.global_norm([np.full(3, 1.9e300)], p) == pytest.approx(1.9e300 * 3 ** (1 / p))
    grads = {"w": np.array([3.0, 1.5])}
    assert ad.clip_grad_norm(grads, 1.0, p) == pytest.approx(3.0)
    np.testing.assert_allclose(grads["w"], [1.0, 0.5])
