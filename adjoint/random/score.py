"""Gradients of expectations over draws that are not differentiable."""

from __future__ import annotations

from typing import Any

from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.transforms.custom import stop_gradient
from adjoint.typing import ArrayLike

__all__ = ["score_function"]


def score_function(log_prob: ArrayLike, value: ArrayLike, baseline: ArrayLike | None = None) -> Tensor:
    """Return ``value``, with the gradient of its expectation over the draws that it depends on.

    The gradient is ``(value - baseline) * ∂log_prob + ∂value``, the score function estimator (REINFORCE).
    Derivatives of every order are unbiased.

    Parameters
    ----------
    log_prob : array_like
        The logarithm of the probability of each draw, a function of the parameters.
    value : array_like
        A function of each draw.
    baseline : array_like, optional
        A number that does not depend on the draws, for example the mean of the values of earlier draws.  It
        reduces the variance of the gradient.

    Returns
    -------
    Tensor
        The values.

    Examples
    --------
    >>> import adjoint as ad
    >>> from adjoint.scipy.stats import poisson
    >>> rate = ad.tensor(3.0, requires_grad=True)
    >>> k = ad.random.default_rng(0).poisson(rate, size=20_000)
    >>> loss = ad.random.score_function(poisson.logpmf(k, rate), k * k, baseline=12.0).mean()
    >>> loss.backward()  # E[k²] = rate² + rate
    >>> abs(rate.grad.item() - 7) < 0.3
    True
    """
    log_prob, value = asarray(log_prob), asarray(value)
    one = rec.exp(log_prob - stop_gradient(log_prob))  # 1, with the gradient of log_prob
    y: Any = value * one
    return y if baseline is None else y + (1 - one) * stop_gradient(asarray(baseline))
