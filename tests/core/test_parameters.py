"""Numbers as parameters: a tensor that requires grad gets its gradient, or an error, never silence."""

from __future__ import annotations

import numpy as np
import pytest

import adjoint as ad
from adjoint.errors import InputError, NoGradientError, ShapeError

F = ad.nn.functional
X = ad.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -3.0]])
T = ad.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
ONES = ad.ones(3)

CALLS = {
    "leaky_relu negative_slope": lambda s: F.leaky_relu(X, s),
    "elu alpha": lambda s: F.elu(X, s),
    "hardtanh min_val": lambda s: F.hardtanh(X, s, 5.0),
    "hardtanh max_val": lambda s: F.hardtanh(X, -5.0, s),
    "dropout p": lambda s: F.dropout(X, s, rng=np.random.default_rng(0)),
    "layer_norm eps": lambda s: F.layer_norm(X, 3, eps=s),
    "rms_norm eps": lambda s: F.rms_norm(X, 3, eps=s),
    "group_norm eps": lambda s: F.group_norm(X, 1, eps=s),
    "batch_norm eps": lambda s: F.batch_norm(X, ONES, ONES, eps=s),
    "batch_norm eps ": lambda s: F.batch_norm(X, training=True, eps=s),
    "normalize p": lambda s: F.normalize(X, s),
    "huber_loss delta": lambda s: F.huber_loss(X, T, delta=s),
    "smooth_l1_loss beta": lambda s: F.smooth_l1_loss(X, T, beta=s),
    "cross_entropy label_smoothing": lambda s: F.cross_entropy(X, [0, 1], label_smoothing=s),
    "nan_to_num nan": lambda s: ad.nan_to_num(X, nan=s),
    "nan_to_num posinf": lambda s: ad.nan_to_num(X, posinf=s),
    "nan_to_num neginf": lambda s: ad.nan_to_num(X, neginf=s),
    "quantile q": lambda s: ad.quantile(X, s),
    "percentile q": lambda s: ad.percentile(X, s),
    "pinv rtol": lambda s: ad.linalg.pinv(X, s),
    "lstsq rtol": lambda s: ad.linalg.lstsq(X.T, ONES, s).solution,
    "fftfreq d": lambda s: ad.fft.fftfreq(3, s),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_parameter_that_requires_grad_is_refused_where_no_gradient_flows(call):
    op, name = call.split()
    s = ad.tensor(0.5, requires_grad=True)
    with pytest.raises(NoGradientError) as caught:
        CALLS[call](s)
    assert str(caught.value) == (
        f"{op}: no gradient flows to {name}, but it is a tensor that requires grad.\n"
        f"  Use {name}.detach() if that is meant."
    )


@pytest.mark.parametrize("call", CALLS)
def test_a_parameter_may_be_a_tensor_without_gradient(call):
    s = ad.tensor(0.5, requires_grad=True)
    expected = CALLS[call](0.5).numpy()
    np.testing.assert_array_equal(CALLS[call](s.detach()).numpy(), expected)
    with ad.no_grad():  # nobody asks for gradients here
        np.testing.assert_array_equal(CALLS[call](s).numpy(), expected)


NUMBERS = [c for c in CALLS if not c.startswith(("pad", "quantile", "percentile", "pinv", "lstsq"))]


@pytest.mark.parametrize("call", NUMBERS)
@pytest.mark.parametrize("value", ["0.5", [0.5, 0.5], np.array([0.5, 0.5]), 10**400], ids=repr)
def test_a_parameter_that_is_no_number_is_named(call, value):
    op, name = call.split()
    with pytest.raises(InputError) as caught:
        CALLS[call](value)
    assert str(caught.value) == f"{op}: {name} must be a number, but got {value!r}."


def test_the_scale_of_attention_gets_its_gradient():
    rng = np.random.default_rng(3)
    q, k, v = (ad.tensor(rng.normal(size=(2, 3, 4))) for _ in range(3))

    def loss(s):
        return F.scaled_dot_product_attention(q, k, v, scale=s).sin().sum()

    s = ad.tensor(0.7, requires_grad=True)
    ad.testing.gradcheck(loss, (s,))
    assert loss(s).item() == loss(0.7).item()
    per_head = ad.tensor(rng.normal(size=(2, 1, 1)), requires_grad=True)
    ad.testing.gradcheck(loss, (per_head,))
    with pytest.raises(
        ShapeError,
        match=r"a scale of shape \(5, 1, 1, 1\) cannot be broadcast to the query's shape \(2, 3, 4\)",
    ):
        loss(ad.ones((5, 1, 1, 1)))
    with pytest.raises(InputError, match="scaled_dot_product_attention: scale must be a number, but got 'x'"):
        loss("x")


def test_the_beta_of_softplus_gets_its_gradient_at_one_too():
    # d/dβ log(1 + exp(βx)) / β = x sigmoid(βx) / β - log(1 + exp(βx)) / β²
    beta = ad.tensor(1.0, requires_grad=True)
    F.softplus(X, beta).sum().backward()
    x = X.numpy()
    np.testing.assert_allclose(beta.grad, (x / (1 + np.exp(-x)) - np.log1p(np.exp(x))).sum())
