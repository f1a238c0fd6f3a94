"""Losses: stable at extreme logits, exact gradients in the tails, edges, and what messages say."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from messages import message_of

import adjoint as ad
from adjoint.errors import ArgumentError, DTypeError, IndexingError, ShapeError
from adjoint.testing import gradcheck

F = ad.nn.functional


def gradient(f, *args):
    """The value of f and its gradient in the first argument."""
    x = ad.tensor(args[0], requires_grad=True)
    y = f(x, *args[1:])
    y.backward()
    return y.item(), x.grad.numpy()


# Stability -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [80.0, 1e4, 1e30])
def test_cross_entropy_at_extreme_logits(dtype, size):
    x = np.array([[size, -size, 0.0]], dtype)
    value, grad = gradient(F.cross_entropy, x, np.array([0]))
    assert value == 0
    assert np.isfinite(grad).all()
    value, grad = gradient(F.cross_entropy, x, np.array([1]))
    assert value == np.float64(dtype(size)) * 2
    np.testing.assert_allclose(grad, [[1, -1, 0]], atol=1e-30)


def test_cross_entropy_keeps_its_digits_where_logits_share_a_large_part():
    x = np.array([[10000.0, 10001.0, 9999.0]], np.float32)
    value, grad = gradient(F.cross_entropy, x, np.array([2]))
    exact, exact_grad = gradient(F.cross_entropy, x.astype(np.float64) - 10000, np.array([2]))
    np.testing.assert_allclose(value, exact, rtol=1e-6)
    np.testing.assert_allclose(grad, exact_grad, rtol=1e-6)


def test_cross_entropy_gradient_in_the_tail_is_exact():
    # 1 - softmax would be 0 here; the gradient of the other classes keeps every digit
    _, grad = gradient(F.cross_entropy, np.array([[0.0, -60.0]]), np.array([0]))
    p = float(mpmath.exp(-60) / (1 + mpmath.exp(-60)))
    np.testing.assert_allclose(grad[0, 1], p, rtol=1e-14)


@pytest.mark.parametrize("x", [-1e4, -700.0, -80.0, -1.0, 0.0, 1.0, 80.0, 700.0, 1e4])
@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
def test_bce_with_logits_is_exact_everywhere(x, t):
    value, grad = gradient(F.binary_cross_entropy_with_logits, np.array([x]), np.array([t]))
    with mpmath.workdps(50):
        softplus = lambda v: mpmath.log1p(mpmath.exp(v))
        exact = t * softplus(-mpmath.mpf(x)) + (1 - mpmath.mpf(t)) * softplus(mpmath.mpf(x))
        slope = (1 - mpmath.mpf(t)) / (1 + mpmath.exp(-x)) - t / (1 + mpmath.exp(x))
        np.testing.assert_allclose(value, float(exact), rtol=1e-14, atol=1e-320)
        np.testing.assert_allclose(grad[0], float(slope), rtol=1e-14, atol=1e-320)


@pytest.mark.parametrize("x", [-80.0, 80.0])
def test_bce_with_logits_in_float32(x):
    value, grad = gradient(
        F.binary_cross_entropy_with_logits, np.array([x], np.float32), np.array([1.0], np.float32)
    )
    exact = float(mpmath.log1p(mpmath.exp(-x)))
    np.testing.assert_allclose(value, exact, rtol=1e-5)
    np.testing.assert_allclose(grad, -1 / (1 + np.exp(x)), rtol=1e-5)


def test_bce_at_certain_predictions():
    p, t = np.array([0.0, 1.0, 0.0, 1.0]), np.array([0.0, 1.0, 1.0, 0.0])
    loss = F.binary_cross_entropy(p, t, reduction="none")
    np.testing.assert_array_equal(loss.numpy(), [0, 0, 100, 100])
    _, grad = gradient(lambda p: F.binary_cross_entropy(p, t, reduction="sum"), p)
    np.testing.assert_allclose(grad, [1, -1, -1e12, 1e12])


def test_kl_div_with_zero_probability_is_zero():
    t = ad.tensor([0.0, 1.0], requires_grad=True)
    loss = F.kl_div(np.log([0.5, 0.5]), t, reduction="none")
    np.testing.assert_allclose(loss.numpy(), [0, np.log(2)])
    loss.sum().backward()
    assert np.isfinite(t.grad.numpy()).all()


# Meaning ---------------------------------------------------------------------------------------


def test_ignored_rows_get_no_gradient():
    x = np.random.default_rng(0).standard_normal((3, 4))
    _, grad = gradient(lambda x: F.cross_entropy(x, np.array([1, -100, 2])), x)
    np.testing.assert_array_equal(grad[1], 0)
    value, _ = gradient(lambda x: F.cross_entropy(x, np.array([1, 2])), x[[0, 2]])
    assert value == F.cross_entropy(x, np.array([1, -100, 2])).item()


def test_the_mean_of_no_rows_is_nan():
    assert np.isnan(F.cross_entropy(np.ones((2, 3)), np.array([-100, -100])).item())
    assert F.cross_entropy(np.ones((2, 3)), np.array([-100, -100]), reduction="sum").item() == 0


def test_smoothed_indices_are_smoothed_probabilities():
    x = np.random.default_rng(0).standard_normal((3, 4))
    t = np.array([0, 3, 1])
    soft = np.eye(4)[t] * 0.8 + 0.2 / 4
    a = F.cross_entropy(x, t, label_smoothing=0.2)
    np.testing.assert_allclose(a.item(), F.cross_entropy(x, soft).item(), rtol=1e-14)


def test_probability_targets_get_their_gradient():
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal((3, 4)), rng.uniform(0.1, 1, (3, 4))
    assert gradcheck(F.cross_entropy, (x, t))
    assert gradcheck(F.binary_cross_entropy_with_logits, (x, t))
    assert gradcheck(F.binary_cross_entropy, (t * 0.9, t))


def test_huber_and_smooth_l1_meet_their_limits():
    d = np.array([-3.0, -0.5, 0.0, 0.5, 3.0])
    zero = np.zeros(5)
    np.testing.assert_allclose(F.huber_loss(d, zero, "none", delta=2.0).numpy(), [4, 0.125, 0, 0.125, 4])
    np.testing.assert_allclose(F.smooth_l1_loss(d, zero, "none", beta=0.0).numpy(), np.abs(d))
    np.testing.assert_allclose(
        F.smooth_l1_loss(d, zero, "none", beta=1.0).numpy(), [2.5, 0.125, 0, 0.125, 2.5]
    )


def test_hinge():
    x = ad.tensor([0.5, -2.0, 3.0, 1.0], requires_grad=True)
    loss = F.hinge_loss(x, np.array([1.0, 1.0, 1.0, 1.0]), reduction="sum")
    assert loss.item() == 3.5
    loss.backward()
    np.testing.assert_array_equal(x.grad.numpy(), [-1, -1, 0, 0])


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss", "hinge_loss"])
def test_losses_of_nothing(name):
    assert getattr(F, name)(np.zeros((0, 3)), np.zeros((0, 3)), reduction="sum").item() == 0
    assert getattr(F, name)(np.zeros((0, 3)), np.zeros((0, 3)), reduction="none").shape == (0, 3)


def test_cross_entropy_of_an_empty_batch():
    assert F.cross_entropy(np.zeros((0, 3)), np.zeros(0, int), reduction="sum").item() == 0
    assert F.cross_entropy(np.zeros((0, 3)), np.zeros(0, int), reduction="none").shape == (0,)


def test_one_class():
    value, grad = gradient(F.cross_entropy, np.array([[3.0]]), np.array([0]))
    assert value == 0
    np.testing.assert_array_equal(grad, [[0]])


def test_float32_stays_float32():
    x, t = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)
    w = np.ones(3, np.float32)
    for loss in (
        F.cross_entropy(x, np.array([0, 1])),
        F.cross_entropy(x, np.array([0, 1]), w, label_smoothing=0.1),
        F.cross_entropy(x, t),
        F.nll_loss(x, np.array([0, 1]), w),
        F.mse_loss(x, t),
        F.huber_loss(x, t),
        F.binary_cross_entropy(x, t),
        F.binary_cross_entropy_with_logits(x, t, pos_weight=w),
        F.kl_div(x, t),
    ):
        assert loss.dtype == np.float32


# Messages --------------------------------------------------------------------------------------

X = np.ones((4, 3))


@pytest.mark.parametrize(
    ("call", "error", "parts"),
    [
        (lambda: F.mse_loss(np.ones((4, 1)), np.ones(4)), ShapeError, ("(4, 1)", "(4,)", "Reshape")),
        (lambda: F.mse_loss(X, X, "average"), ArgumentError, ("'mean', 'sum' or 'none'", "'average'")),
        (lambda: F.mse_loss(X + 1j, X), DTypeError, ("mse_loss", "complex128")),
        (lambda: F.huber_loss(X, X, delta=0), ArgumentError, ("delta", "positive")),
        (lambda: F.smooth_l1_loss(X, X, beta=-1), ArgumentError, ("beta", "negative")),
        (lambda: F.cross_entropy(X, np.array([0, 1, 2, 3])), IndexingError, ("class 3", "0 … 2")),
        (lambda: F.cross_entropy(X, np.array([0, 1, 2, -1])), IndexingError, ("class -1", "0 … 2")),
        (lambda: F.cross_entropy(X, np.array([0, 1])), ShapeError, ("(4, 3)", "(4,)", "(2,)", "axis 1")),
        (lambda: F.cross_entropy(X, np.ones(4)), ShapeError, ("(4, 3)", "(4,)", "astype(int)")),
        (lambda: F.cross_entropy(X, np.zeros(4, int), np.ones(2)), ShapeError, ("weight", "3", "(2,)")),
        (lambda: F.cross_entropy(X, np.zeros(4, int), label_smoothing=2), ArgumentError, ("label_smoothing", "2")),
        (lambda: F.cross_entropy(np.ones((2, 0)), np.zeros(2, int)), ShapeError, ("(2, 0)",)),
        (lambda: F.cross_entropy(np.array(1.0), np.array(0)), ShapeError, ("()",)),
        (lambda: F.nll_loss(X, np.ones(4)), DTypeError, ("integers", "float64")),
        (lambda: F.binary_cross_entropy(X * 2, X), ArgumentError, ("between 0 and 1", "with_logits")),
        (lambda: F.binary_cross_entropy_with_logits(X, X, np.ones(2)), ShapeError, ("(2,)", "(4, 3)")),
    ],
)  # fmt: skip
def test_messages_say_what_to_do(call, error, parts):
    message = message_of(error, call)
    for part in parts:
        assert part in message


def test_scores_with_the_classes_last_are_told_how_to_come():
    scores, target = ad.zeros((2, 5, 3)), np.zeros((2, 5), int)
    with pytest.raises(ad.errors.ShapeError) as info:
        F.cross_entropy(scores, target)
    assert str(info.value) == (
        "cross_entropy: for a prediction of shape (2, 5, 3) the class indices must have shape (2, 3), but have "
        "shape (2, 5).\n"
        "  The classes must be on axis 1.  A target of probabilities must be float and have the prediction's "
        "shape.\n"
        "  Move the classes if they are on the last axis: prediction.moveaxis(-1, 1)."
    )
    assert F.cross_entropy(scores.moveaxis(-1, 1), target).item() == pytest.approx(np.log(3))
