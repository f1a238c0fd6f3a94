"""Reductions, scans, quantiles: NumPy's values by every way of calling, and derivatives at the traps."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from messages import message_of
from numpy_calls import Call, call, check_gradients, check_values, distinct

import adjoint as ad
from adjoint.errors import ArgumentError, DTypeError, InputError, NoGradientError, ShapeError
from adjoint.testing import gradcheck

nan, inf = np.nan, np.inf

# Every axis of several shapes ------------------------------------------------------------------

REDUCTIONS = "sum mean prod max min var std any all ptp median count_nonzero average".split()
SHAPES_AND_AXES: list[tuple[tuple[int, ...], Any]] = [
    ((), None), ((), ()), ((4,), None), ((4,), 0), ((4,), -1), ((1,), 0), ((2, 3), None), ((2, 3), 0),
    ((2, 3), -1), ((2, 3), (0, 1)), ((2, 3), (-1,)), ((2, 3), ()), ((2, 3, 4), (0, 2)), ((2, 3, 4), (-1, 0)),
    ((2, 3, 4), 1), ((0,), None), ((0, 3), 0), ((0, 3), 1), ((2, 0, 3), (0, 1)), ((2, 0, 3), 0),
    ((4,), 1), ((4,), -2), ((2, 3), (0, 0)), ((2, 3), (1, -1)), ((2, 3), 5),
]  # fmt: skip


def reduction_calls() -> list[Call]:
    found = []
    for name, (shape, axis), keep in itertools.product(REDUCTIONS, SHAPES_AND_AXES, (False, True)):
        if name in ("median", "average") and (axis == () or 0 in shape):
            continue  # NumPy's median of none warns and its average divides; ours raise
        if name == "ptp" and axis == ():
            continue
        kwargs = {"axis": axis, **({"keepdims": True} if keep else {})}
        found.append(Call(name, shape, (), kwargs))
    return found


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:Degrees of freedom")
@pytest.mark.parametrize("name", REDUCTIONS)
def test_every_axis_is_as_in_numpy(name: str) -> None:
    for c in (c for c in reduction_calls() if c.name == name):
        for dtype in (np.float64, np.float32, np.int32, bool):
            if name == "ptp" and dtype is bool:
                continue
            a = distinct(c.shape) * 3
            check_values(
                c, (a > 0) if dtype is bool else a.astype(dtype), 1e-5 if dtype is np.float32 else 1e-12
            )


CALLS = [
    call("sum", (2, 3), 0), call("sum", (2, 3), 0, np.float32), call("sum", (2, 3), dtype=complex),
    call("mean", (2, 3), 1, np.float32), call("prod", (2, 3), -1, np.float32),
    call("var", (2, 3), 0, ddof=1), call("std", (5,), correction=1), call("var", (5,), ddof=0.5),
    call("std", (2, 3), axis=(0, 1), ddof=2, keepdims=True),
    call("argmax", (2, 3)), call("argmax", (2, 3), 0), call("argmin", (2, 3), axis=-1, keepdims=True),
    call("argmin", (2, 3), keepdims=True), call("argmax", ()), call("argmax", (0,)), call("argmax", (2, 0), 1),
    call("argmax", (3, 0), 0), call("argmin", (2, 3), 2),
    call("cumsum", (2, 3)), call("cumsum", (2, 3), 1), call("cumsum", (2, 3), 0, np.float32), call("cumsum", (0,)),
    call("cumprod", (2, 3)), call("cumprod", (2, 3), -2), call("cumsum", (2, 3), 2),
    call("cumulative_sum", (4,)), call("cumulative_sum", (4,), include_initial=True),
    call("cumulative_sum", (2, 3), axis=0, include_initial=True),
    call("cumulative_sum", (2, 3, 2), axis=1, include_initial=True),
    call("cumulative_sum", (2, 3), axis=-1), call("cumulative_sum", (2, 3)),
    call("cumulative_prod", (2, 3), axis=-1, include_initial=True), call("cumulative_prod", (4,), dtype=np.float32),
    call("diff", (5,)), call("diff", (2, 5), 2), call("diff", (2, 5), axis=0), call("diff", (5,), 0),
    call("diff", (5,), prepend=1.0), call("diff", (2, 3), axis=0, append=np.ones((1, 3))), call("diff", (1,)),
    call("diff", (5,), -1), call("diff", (2, 3), append=np.ones((1, 3))),
    call("average", (2, 3), weights=np.arange(6.0).reshape(2, 3)),
    call("average", (2, 3), 0, np.array([1.0, 3.0])), call("average", (2, 3), 1, np.array([1.0, 2.0, 3.0]), True),
    call("average", (2, 3), None, None, True), call("average", (2, 3), weights=np.ones(2)),
    call("average", (2, 3), axis=0, weights=np.array([1.0, 3.0]), keepdims=True),
    call("quantile", (5,), 0.3), call("quantile", (2, 5), [0.0, 0.25, 1.0], 1),
    call("quantile", (2, 3, 4), [[0.1, 0.5], [0.7, 0.9]], (0, 2), keepdims=True),
    call("quantile", (4,), 0.5), call("quantile", (), 0.5), call("quantile", (2, 3), 0.2, keepdims=True),
    call("quantile", (4,), 1.5), call("percentile", (2, 5), 30, axis=-1), call("percentile", (5,), [10, 90]),
    *(call("quantile", (7,), [0.0, 0.13, 0.5, 0.77, 1.0], method=m)
      for m in ("linear", "hazen", "weibull", "median_unbiased", "normal_unbiased", "interpolated_inverted_cdf",
                "lower", "higher", "midpoint", "nearest")),
    call("nansum", (2, 3), 0), call("nanmean", (2, 3), 1), call("nanmax", (2, 3)), call("nanmin", (2, 3), 0),
    call("nanprod", (2, 3), 1),
]  # fmt: skip


@pytest.mark.parametrize("c", CALLS, ids=str)
def test_calls_are_as_in_numpy(c: Call) -> None:
    check_values(c, distinct(c.shape))


@pytest.mark.parametrize("dtype", [np.int64, np.int8, bool, np.uint8])
@pytest.mark.parametrize("name", "sum prod mean max min var cumsum median argmax nansum nanmean".split())
def test_whole_numbers_are_as_in_numpy(name: str, dtype: Any) -> None:
    check_values(call(name, (2, 3), axis=1), (distinct((2, 3)) * 4).astype(dtype))


SMOOTH_CALLS = [c for c in CALLS if c.name[:3] not in ("arg",) and 0 not in c.shape]


@pytest.mark.parametrize("c", SMOOTH_CALLS, ids=str)
def test_derivatives_to_second_order(c: Call) -> None:
    a = distinct(c.shape)
    try:
        getattr(ad, c.name)(ad.tensor(a), *c.args, **c.kwargs)
    except (ValueError, TypeError):
        return  # a call that raises, tested above
    if not any(v is np.float32 for v in (*c.args, *c.kwargs.values())):
        check_gradients(c, a)


def test_average_differentiates_in_its_weights_too() -> None:
    assert gradcheck(
        lambda x, w: ad.average(x, axis=1, weights=w), [distinct((2, 3)), np.array([1.0, 2.0, 0.5])], order=2
    )


@given(
    npst.arrays(np.float64, npst.array_shapes(max_dims=3, max_side=4), elements=st.floats(-5, 5)), st.data()
)
def test_logsumexp_is_the_logarithm_of_the_sum(a: Any, data: Any) -> None:
    axis = data.draw(st.sampled_from([None, *range(-a.ndim, a.ndim)]))
    keep = data.draw(st.booleans())
    expected = np.log(np.sum(np.exp(a), axis=axis, keepdims=keep))
    y = ad.logsumexp(a, axis, keepdims=keep)
    assert y.shape == expected.shape
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-12, atol=1e-12)


# Traps -----------------------------------------------------------------------------------------


def gradient(f: Any, a: Any) -> list[float]:
    x = ad.tensor(a, requires_grad=True)
    f(x).sum().backward()
    assert x.grad is not None
    return x.grad.tolist()  # type: ignore[return-value]


@pytest.mark.parametrize("zeros", [(), (1,), (1, 3), (0, 1, 4), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("f", [ad.prod, ad.cumprod], ids=["prod", "cumprod"])
def test_products_with_zeros_are_right_to_third_order(f: Any, zeros: tuple[int, ...]) -> None:
    a = np.array([1.5, -2.0, 0.7, 3.0, -1.1])
    a[list(zeros)] = 0.0
    assert gradcheck(f, [a], order=3)


def test_prod_over_several_axes_with_zeros() -> None:
    a = np.array([[[1.0, 0.0], [2.0, 3.0]], [[0.0, 0.0], [-1.0, 0.5]]])
    assert gradcheck(lambda x: ad.prod(x, axis=(0, 2)), [a], order=2)
    assert gradcheck(lambda x: ad.prod(x, axis=(0, 2), keepdims=True), [a], order=1)


def test_elements_that_tie_share_the_gradient() -> None:
    assert gradient(ad.max, [2.0, 5.0, 5.0, 1.0]) == [0, 0.5, 0.5, 0]
    assert gradient(ad.min, [[1.0, 1.0], [3.0, 2.0]]) == [[0.5, 0.5], [0, 0]]
    assert gradient(lambda x: ad.max(x, axis=1), [[7.0, 7.0], [3.0, 2.0]]) == [[0.5, 0.5], [1, 0]]
    assert gradient(ad.max, [inf, 1.0, inf]) == [0.5, 0, 0.5]


def test_the_extreme_is_nan_where_a_nan_is_and_the_gradient_goes_there() -> None:
    assert np.isnan(ad.max([1.0, nan, 3.0]).item())
    assert gradient(ad.max, [1.0, nan, 3.0]) == [0, 1, 0]
    assert gradient(lambda x: ad.min(x, axis=0), [[1.0, nan], [2.0, 3.0]]) == [[1, 1], [0, 0]]


def test_std_has_gradient_zero_where_it_is_zero_to_second_order() -> None:
    assert gradient(ad.std, [3.0, 3.0, 3.0]) == [0, 0, 0]
    x = ad.tensor([3.0, 3.0], requires_grad=True)
    (g,) = ad.gradients(ad.std(x), [x], create_graph=True)
    (h,) = ad.gradients((g * ad.tensor([1.0, 2.0])).sum(), [x])
    assert h.tolist() == [0, 0]


@pytest.mark.parametrize("f", [ad.var, ad.std], ids=["var", "std"])
def test_moments_of_too_few_elements_are_nan_without_a_warning(f: Any) -> None:
    assert np.isnan(f([1.0], correction=1).item())
    assert np.isnan(f(np.zeros(0)).item())
    assert np.isnan(f(np.zeros((0, 2)), axis=0).numpy()).all()
    assert np.isnan(gradient(lambda x: f(x, correction=1), [1.0])).all()


def test_the_mean_of_none_is_nan_without_a_warning() -> None:
    assert np.isnan(ad.mean(np.zeros(0)).item())
    assert ad.mean(np.zeros((0, 3)), axis=1).shape == (0,)
    assert gradient(ad.mean, np.zeros(0)) == []


def test_float32_stays_float32() -> None:
    x = ad.tensor(distinct((3, 4)), dtype=np.float32, requires_grad=True)
    for f in (ad.mean, ad.var, ad.std, ad.logsumexp, ad.median, ad.prod, ad.max, ad.ptp):
        assert f(x).dtype == np.float32, f
        assert f(x, axis=1).dtype == np.float32, f
    assert ad.var(x, correction=np.float64(1)).dtype == np.float32
    assert ad.var(x[:1, :1], correction=1).dtype == np.float32
    assert ad.quantile(x, [0.1, 0.9]).dtype == np.float32


def test_half_precision_is_summed_in_float32() -> None:
    x = ad.ones(4096, dtype=np.float16)
    assert (x * 0.1).sum().item() == pytest.approx(409.5, abs=0.5)
    assert ad.mean(x * 0.1).dtype == np.float16
    assert ad.var(ad.arange(2000).astype(np.float16) % 2).item() == pytest.approx(0.25, abs=1e-3)


def test_logsumexp_at_extreme_values() -> None:
    assert ad.logsumexp([1e4, 1e4]).item() == pytest.approx(1e4 + np.log(2))
    assert ad.logsumexp([-1e4, -1e4]).item() == pytest.approx(-1e4 + np.log(2))
    assert ad.logsumexp([-inf, -inf]).item() == -inf
    assert ad.logsumexp([-inf, 0.0]).item() == 0.0
    assert ad.logsumexp([inf, 0.0]).item() == inf
    assert ad.logsumexp([inf, -inf]).item() == inf
    assert np.isnan(ad.logsumexp([nan, 0.0]).item())
    assert ad.logsumexp(np.zeros((0,))).item() == -inf
    assert ad.logsumexp(np.zeros((2, 0)), axis=1).tolist() == [-inf, -inf]
    assert ad.logsumexp(np.zeros((2, 0)), axis=1, keepdims=True).shape == (2, 1)


def test_gradient_of_logsumexp_at_extreme_values() -> None:
    assert gradient(ad.logsumexp, [-inf, -inf]) == [0, 0]
    assert gradient(ad.logsumexp, [-inf, 0.0]) == [0, 1]
    assert gradient(ad.logsumexp, [inf, 1.0, inf]) == [0.5, 0, 0.5]
    assert gradient(lambda x: ad.logsumexp(x, axis=1), [[-inf, -inf], [0.0, 0.0]]) == [[0, 0], [0.5, 0.5]]
    assert gradient(ad.logsumexp, [1e4, 0.0]) == [1, 0]
    x = ad.tensor([[-inf, -inf], [inf, 0.0], [1.0, -inf]], requires_grad=True)
    (g,) = ad.gradients(ad.logsumexp(x, axis=1), [x], ad.ones(3), create_graph=True)
    (h,) = ad.gradients((g * ad.tensor([[1.0, 2.0]])).sum(), [x])
    assert np.isfinite(h.numpy()).all()


def test_medians_and_quantiles_share_the_gradient_as_the_value() -> None:
    assert gradient(ad.median, [4.0, 1.0, 3.0, 9.0]) == [0.5, 0, 0.5, 0]
    assert gradient(ad.median, [4.0, 1.0, 3.0]) == [0, 0, 1]
    assert gradient(lambda x: ad.quantile(x, 0.25), [0.0, 8.0, 4.0]) == [0.5, 0, 0.5]
    assert gradient(lambda x: ad.quantile(x, [0.0, 1.0]), [0.0, 8.0, 4.0]) == [1, 1, 0]


def test_a_row_with_nan_has_the_median_nan() -> None:
    got = ad.median([[1.0, nan, 3.0], [1.0, 2.0, 3.0]], axis=1).tolist()
    assert np.isnan(got[0])
    assert got[1] == 2.0
    assert ad.median([inf, inf, 1.0, inf]).item() == inf  # no inf - inf on the way
    assert ad.quantile([inf, 1.0, inf], 1.0).item() == inf


def test_nan_forms_give_nans_the_gradient_zero() -> None:
    a = [[1.0, nan], [nan, nan]]
    assert gradient(ad.nansum, a) == [[1, 0], [0, 0]]
    assert gradient(ad.nanprod, a) == [[1, 0], [0, 0]]
    assert gradient(ad.nanmax, a) == [[1, 0], [0, 0]]
    assert gradient(ad.nanmean, a) == [[1, 0], [0, 0]]
    got = ad.nanmean(a, axis=1).tolist()
    assert got[0] == 1.0
    assert np.isnan(got[1])
    assert np.isnan(ad.nanmin(a, axis=1).tolist()[1])


def test_complex_numbers() -> None:
    z = distinct((2, 3)) + 1j * distinct((3, 2)).T
    for name in ("sum", "mean", "prod", "var", "std", "cumsum", "cumprod", "diff"):
        check_values(call(name, (2, 3), axis=1), z)
        check_gradients(call(name, (2, 3), axis=1), z)
    with pytest.raises(DTypeError, match="complex numbers have no order"):
        ad.median(z)
    with pytest.raises(DTypeError, match="x must be real"):
        ad.logsumexp(z)


def test_no_gradient_flows_where_the_answer_is_a_position_or_a_count() -> None:
    x = ad.tensor([1.0, 0.0, 3.0], requires_grad=True)
    for y in (x.argmax(), x.argmin(), x.count_nonzero(), x.any(), x.all()):
        assert not y.requires_grad


def test_non_contiguous_input() -> None:
    a = distinct((4, 6))[::2, ::-2].T
    for name in ("sum", "mean", "var", "prod", "max", "cumsum", "cumprod", "median"):
        check_values(call(name, a.shape, axis=0), a)
        check_gradients(call(name, a.shape, axis=0), np.ascontiguousarray(a), order=1)


# Mistakes --------------------------------------------------------------------------------------

MISTAKES = [
    (ShapeError, lambda: ad.sum(np.ones((2, 3)), axis=2),
     "sum: axis 2 is out of range: a 2-d tensor has axes -2 to 1."),
    (ShapeError, lambda: ad.sum(np.ones((2, 3)), axis=(0, -2)), "sum: axis (0, -2) names the same axis twice."),
    (ShapeError, lambda: ad.cumsum(1.0, axis=1), "cumsum: axis 1 is out of range: a 0-d tensor has no axes."),
    (InputError, lambda: ad.mean([1.0], axis=0.5), "mean: an axis must be an integer, but got 0.5."),
    (DTypeError, lambda: ad.ones(2).sum(0, 1.5), "1.5 is not a dtype.  Use a NumPy dtype, for example np.float32."),
    (InputError, lambda: ad.ones(2).sum(0, True),
     "sum: dtype must be a dtype, but is True.  If you mean keepdims, pass keepdims=True."),
    (ShapeError, lambda: ad.max(np.zeros((2, 0)), axis=1),
     "max: there are no elements to choose from along axis 1 of shape (2, 0).\n"
     "  Check x.size first, or reduce over an axis that is not empty."),
    (ShapeError, lambda: ad.argmin(np.zeros(0)),
     "argmin: there are no elements to choose from of shape (0,).\n"
     "  Check x.size first, or reduce over an axis that is not empty."),
    (InputError, lambda: ad.var([1.0], correction="one"), "var: correction must be a number, but got 'one'."),
    (ShapeError, lambda: ad.cumulative_sum(np.ones((2, 2))),
     "cumulative_sum: axis= is required for a tensor with 2 axes (shape (2, 2)).  Pass one of the axes."),
    (ShapeError, lambda: ad.average(np.ones((2, 3)), axis=0, weights=np.ones(3)),
     "average: the weights must have the shape of x, (2, 3), or that of its axis 0, but have shape (3,).\n"
     "  Pass one weight per element, or one per element along axis=."),
    (ArgumentError, lambda: ad.quantile([1.0], 2), "quantile: each value of q must be from 0 to 1, but one is 2."),
    (ArgumentError, lambda: ad.percentile([1.0], 101), "percentile: each value of q must be from 0 to 100, but one is 101."),
    (ArgumentError, lambda: ad.quantile([1.0], 0.5, method="best"),
     "quantile: method must be one of linear, hazen, weibull, median_unbiased, normal_unbiased, "
     "interpolated_inverted_cdf, lower, higher, midpoint, nearest, not 'best'."),
    (NoGradientError, lambda: ad.quantile([1.0], ad.tensor(0.5, requires_grad=True)),
     "quantile: no gradient flows to q, but it is a tensor that requires grad.\n  Use q.detach() if that is meant."),
    (ShapeError, lambda: ad.median(np.zeros(0)), "median: there must be at least one element to choose from, but x has shape (0,)."),
    (ArgumentError, lambda: ad.diff([1.0], n=-1), "diff: n must not be negative, but is -1."),
    (ShapeError, lambda: ad.diff(np.ones((2, 3)), append=np.ones((1, 3))),
     "diff: prepend and append must have the shape of x, (2, 3), except along axis -1, but one has shape (1, "
     "3)."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "mistake", "expected"), MISTAKES, ids=[m[2].split(".")[0] for m in MISTAKES]
)
def test_message(error: type[Exception], mistake: Any, expected: str) -> None:
    assert message_of(error, mistake) == expected
