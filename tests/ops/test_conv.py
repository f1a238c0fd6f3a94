"""Convolution and pooling: values at the edges, ties, layouts, dtypes, and what messages say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from messages import message_of

import adjoint as ad
from adjoint.errors import ArgumentError, DTypeError, InputError, ShapeError
from adjoint.testing import gradcheck, gradgradcheck

F = ad.nn.functional


def by_definition(x, w, stride, padding, dilation, groups):
    """The sum that defines a 2-d convolution, element by element."""
    x = np.pad(x, [(0, 0), (0, 0), *[(p, p) for p in padding]])
    n, _, *size = x.shape
    o, per_group, *kernel = w.shape
    count = [
        (m - d * (k - 1) - 1) // s + 1 for m, k, s, d in zip(size, kernel, stride, dilation, strict=True)
    ]
    y = np.zeros((n, o, *count))
    for a, b, i, j in itertools.product(range(n), range(o), *map(range, count)):
        first = b // (o // groups) * per_group
        for ch, k, m in itertools.product(range(per_group), *map(range, kernel)):
            y[a, b, i, j] += (
                w[b, ch, k, m]
                * x[a, first + ch, i * stride[0] + k * dilation[0], j * stride[1] + m * dilation[1]]
            )
    return y


@pytest.mark.parametrize(
    ("shape", "kernels", "stride", "padding", "dilation", "groups"),
    [
        ((2, 2, 4, 5), (3, 2, 2, 3), (1, 1), (0, 0), (1, 1), 1),
        ((1, 4, 5, 5), (4, 2, 2, 2), (2, 1), (1, 2), (1, 2), 2),
        ((2, 3, 4, 4), (6, 1, 3, 1), (1, 3), (2, 0), (2, 1), 3),
    ],
)
def test_conv2d_is_the_sum_that_defines_it(shape, kernels, stride, padding, dilation, groups):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(shape), rng.standard_normal(kernels)
    y = F.conv2d(x, w, stride=stride, padding=padding, dilation=dilation, groups=groups)
    np.testing.assert_allclose(y.numpy(), by_definition(x, w, stride, padding, dilation, groups), atol=1e-12)


def test_transposed_convolution_is_the_adjoint_of_convolution():
    rng = np.random.default_rng(1)
    at = {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}
    x, w = rng.standard_normal((2, 4, 9, 9)), rng.standard_normal((6, 2, 3, 3))
    y = F.conv2d(x, w, **at)
    g = rng.standard_normal(y.shape)
    back = F.conv_transpose2d(g, w, **at)
    assert back.shape == x.shape
    np.testing.assert_allclose((y * g).sum().item(), (back * x).sum().item(), rtol=1e-12)


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dilation", [1, 2])
def test_same_padding_keeps_the_size(kernel, dilation):
    y = F.conv2d(np.ones((1, 1, 6, 7)), np.ones((1, 1, kernel, kernel)), padding="same", dilation=dilation)
    assert y.shape == (1, 1, 6, 7)


def test_an_even_kernel_pads_one_more_behind():
    y = F.conv1d(np.array([[[1.0, 2.0, 3.0]]]), np.ones((1, 1, 2)), padding="same")
    np.testing.assert_array_equal(y.numpy(), [[[3.0, 5.0, 3.0]]])


@pytest.mark.parametrize("order", ["C", "F"])
def test_any_memory_order_gives_the_same_values_and_gradients(order):
    rng = np.random.default_rng(2)
    plain = rng.standard_normal((2, 3, 8, 8))
    results = []
    for array in (plain, np.asarray(plain, order=order), np.repeat(plain, 2, axis=-1)[..., ::2]):
        x = ad.tensor(array, requires_grad=True)
        w = ad.tensor(np.asarray(np.random.default_rng(5).standard_normal((4, 3, 3, 3)), order=order))
        y = F.max_pool2d(F.conv2d(x, w, padding=1), 3, 2, 1)
        (y * y).sum().backward()
        results.append((y.numpy(), x.grad.numpy()))
    for values, grads in results[1:]:
        np.testing.assert_allclose(values, results[0][0], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(grads, results[0][1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "at", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": (2, 1), "groups": 2}]
)
def test_large_images_go_in_blocks_with_the_same_result(at, monkeypatch):
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((2, 4, 9, 7)), rng.standard_normal((4, 4 // at.get("groups", 1), 3, 2))

    def results():
        a, b = ad.tensor(x, requires_grad=True), ad.tensor(w, requires_grad=True)
        y = F.conv2d(a, b, **at)
        (y * y).sum().backward()
        return y.numpy(), a.grad.numpy(), b.grad.numpy()

    whole = results()
    for size in (1, 10_000):
        monkeypatch.setattr("adjoint.ops.conv._BLOCK", size)
        for ours, expected in zip(results(), whole, strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-12)


def test_a_pointwise_kernel_that_is_shifted():
    # padding 1 in front and -1 behind keeps the size, but not the place
    y = F.conv_transpose1d(
        np.array([[[1.0, 2.0, 3.0]]]), np.ones((1, 1, 1)), padding=1, output_padding=2, dilation=3
    )
    np.testing.assert_array_equal(y.numpy(), [[[2.0, 3.0, 0.0]]])


def test_an_empty_batch_has_an_empty_result_and_zero_gradients():
    x = ad.zeros((0, 2, 5, 5), requires_grad=True)
    w = ad.ones((3, 2, 3, 3), requires_grad=True)
    y = F.max_pool2d(F.conv2d(x, w, padding=1), 2)
    assert y.shape == (0, 3, 2, 2)
    y.sum().backward()
    assert x.grad.shape == x.shape
    np.testing.assert_array_equal(w.grad.numpy(), 0)
    assert F.avg_pool2d(x, 2).shape == (0, 2, 2, 2)
    assert F.adaptive_avg_pool2d(x, 2).shape == (0, 2, 2, 2)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64, np.complex128, np.int64])
def test_the_dtype_stays(dtype):
    x, w = np.ones((1, 2, 4, 4), dtype), np.ones((2, 2, 3, 3), dtype)
    assert F.conv2d(x, w).dtype == dtype
    assert F.conv_transpose2d(x, w).dtype == dtype
    if np.dtype(dtype).kind == "f":
        assert F.max_pool2d(x, 2).dtype == dtype
        assert F.avg_pool2d(x, 2, padding=1).dtype == dtype
        assert F.adaptive_avg_pool2d(x, 3).dtype == dtype


def test_half_precision_is_summed_in_float32():
    x, w = np.full((1, 4096, 1, 1), 1.0, np.float16), np.full((1, 4096, 1, 1), 1.0, np.float16)
    assert F.conv2d(x, w).item() == 4096


def test_complex_convolution_differentiates():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((1, 2, 4)) + 1j * rng.standard_normal((1, 2, 4))
    w = rng.standard_normal((2, 2, 3)) + 1j * rng.standard_normal((2, 2, 3))
    assert gradcheck(lambda x, w: F.conv1d(x, w, padding=1), (x, w))


def test_third_derivatives_of_a_convolution():
    x = ad.tensor(np.random.default_rng(4).standard_normal((1, 1, 4)), requires_grad=True)
    w = ad.tensor([[[0.5, -1.0]]], requires_grad=True)
    assert gradgradcheck(lambda x, w: ad.tanh(F.conv1d(x, w)) * F.conv1d(x, w), (x, w))
    y = (F.conv1d(x, w) ** 3).sum()
    for _ in range(3):
        (g,) = ad.gradients([y], [x], create_graph=True)
        y = g.sum()
    # y = Σ_p (w·x_p)³: the third derivative along ones is 6 (w0 + w1)³ per window
    np.testing.assert_allclose(y.item(), 3 * 6 * (0.5 - 1.0) ** 3, rtol=1e-10)


# Pooling ---------------------------------------------------------------------------------------


def test_elements_that_tie_for_a_maximum_share_the_gradient():
    x = ad.tensor([[[1.0, 1.0, 0.0, 2.0]]], requires_grad=True)
    F.max_pool1d(x, 2).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [[[0.5, 0.5, 0.0, 1.0]]])


def test_ties_share_in_overlapping_windows_too():
    x = ad.tensor([[[3.0, 3.0, 3.0]]], requires_grad=True)
    F.max_pool1d(x, 2, 1).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [[[0.5, 1.0, 0.5]]])


def test_large_windows_count_their_ties():
    x = ad.ones((1, 1, 200), requires_grad=True)
    F.max_pool1d(x, 200).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 1 / 200)


def test_padding_is_below_every_number():
    x = np.full((1, 1, 2, 2), -np.inf)
    np.testing.assert_array_equal(F.max_pool2d(x, 2, padding=1).numpy(), np.full((1, 1, 2, 2), -np.inf))
    assert F.max_pool1d(np.array([[[-5, -6]]]), 2, 1, 1).tolist() == [[[-5, -5, -6]]]


def test_nan_stays_in_its_window():
    x = ad.tensor([[[np.nan, 1.0, 2.0, 3.0]]], requires_grad=True)
    y = F.max_pool1d(x, 2)
    np.testing.assert_array_equal(y.numpy(), [[[np.nan, 3.0]]])
    y.sum().backward()  # the NaN is the maximum of its window, as in ad.max
    np.testing.assert_array_equal(x.grad.numpy(), [[[1.0, 0, 0, 1.0]]])


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_gradient_that_is_not_finite_reaches_the_maximum_alone(stride, bad):
    x = ad.tensor([[[1.0, 2.0, 4.0, 3.0]]], requires_grad=True)
    y = F.max_pool1d(x, 2, stride)
    g = np.zeros(y.shape)
    g[..., 0] = bad
    y.backward(ad.tensor(g))
    np.testing.assert_array_equal(x.grad.numpy(), [[[0, bad, 0, 0]]])


def test_average_of_integers_is_float():
    y = F.avg_pool1d(np.array([[[1, 2, 3, 4]]]), 2)
    assert y.dtype == np.float64
    assert y.tolist() == [[[1.5, 3.5]]]


# Messages --------------------------------------------------------------------------------------

IMAGES, KERNELS = np.ones((2, 3, 5, 5)), np.ones((4, 3, 3, 3))


@pytest.mark.parametrize(
    ("call", "error", "parts"),
    [
        (lambda: F.conv2d(IMAGES, np.ones((4, 2, 3, 3))), ShapeError, ("(2, 3, 5, 5)", "(4, 2, 3, 3)", "3 channels")),
        (lambda: F.conv2d(IMAGES, np.ones((4, 3, 3))), ShapeError, ("(2, 3, 5, 5)", "(4, 3, 3)", "4 axes")),
        (lambda: F.conv2d(np.ones((5, 5)), KERNELS), ShapeError, ("(5, 5)", "(batch, channels, height, width)")),
        (lambda: F.conv2d(IMAGES, np.ones((4, 3, 7, 3))), ShapeError, ("(7, 3)", "(2, 3, 5, 5)", "more padding")),
        (lambda: F.conv2d(IMAGES, KERNELS, np.ones(3)), ShapeError, ("bias", "4", "(3,)")),
        (lambda: F.conv2d(IMAGES, KERNELS, groups=2), ShapeError, ("groups=2", "(4, 3, 3, 3)")),
        (lambda: F.conv2d(IMAGES, KERNELS, groups=0), ArgumentError, ("groups", "at least 1")),
        (lambda: F.conv2d(IMAGES, KERNELS, groups=1.5), InputError, ("groups", "1.5")),
        (lambda: F.conv2d(IMAGES, KERNELS, stride=0), ArgumentError, ("stride", "at least 1")),
        (lambda: F.conv2d(IMAGES, KERNELS, stride=(1, 2, 3)), ArgumentError, ("stride", "(1, 2, 3)")),
        (lambda: F.conv2d(IMAGES, KERNELS, stride=1.5), InputError, ("stride", "1.5")),
        (lambda: F.conv2d(IMAGES, KERNELS, padding=-1), ArgumentError, ("padding", "at least 0")),
        (lambda: F.conv2d(IMAGES, KERNELS, padding="full"), ArgumentError, ("'same'", "'full'")),
        (lambda: F.conv2d(IMAGES, KERNELS, padding="same", stride=2), ArgumentError, ("same", "stride 1")),
        (lambda: F.conv2d(IMAGES > 0, KERNELS), DTypeError, ("bool",)),
        (lambda: F.conv2d(IMAGES, np.ones((4, 3, 0, 3))), ShapeError, ("empty", "(4, 3, 0, 3)")),
        (lambda: F.conv_transpose2d(IMAGES, KERNELS), ShapeError, ("(2, 3, 5, 5)", "(4, 3, 3, 3)")),
        (lambda: F.conv_transpose1d(np.ones((1, 1, 2)), np.ones((1, 1, 2)), output_padding=1), ArgumentError,
         ("output_padding", "smaller")),
        (lambda: F.conv_transpose1d(np.ones((1, 1, 1)), np.ones((1, 1, 2)), padding=1), ShapeError, ("less padding",)),
        (lambda: F.max_pool2d(IMAGES, 6), ShapeError, ("(6, 6)", "(2, 3, 5, 5)")),
        (lambda: F.max_pool2d(IMAGES, 2, padding=2), ArgumentError, ("half",)),
        (lambda: F.max_pool2d(IMAGES + 1j, 2), DTypeError, ("complex128", "maximum")),
        (lambda: F.avg_pool2d(np.ones(3), 2), ShapeError, ("(3,)",)),
        (lambda: F.adaptive_avg_pool2d(IMAGES, 0), ArgumentError, ("output_size", "at least 1")),
        (lambda: F.adaptive_avg_pool2d(IMAGES, (2, 2, 2)), ArgumentError, ("output_size", "(2, 2, 2)")),
        (lambda: F.adaptive_avg_pool2d(np.ones((1, 1, 0, 3)), 2), ShapeError, ("(1, 1, 0, 3)",)),
    ],
)  # fmt: skip
def test_messages_name_the_shapes_and_the_cure(call, error, parts):
    message = message_of(error, call)
    for part in parts:
        assert part in message
