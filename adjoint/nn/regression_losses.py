"""Losses of predicted numbers: functions and modules."""

from __future__ import annotations

from adjoint.core.namespace import rec
from adjoint.core.shapes import number
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError
from adjoint.nn.loss_reduction import LossModule, noted, reduced, same_shape
from adjoint.nn.shared_docs import matched_loss_doc
from adjoint.typing import ArrayLike

__all__ = ["HuberLoss", "L1Loss", "MSELoss", "SmoothL1Loss"]

_regression_doc = matched_loss_doc.extended("""
    Parameters
    ----------
    delta : float
        The smallest difference for which the loss is linear.
    """)


# Functions -------------------------------------------------------------------------------------


@_regression_doc
def mse_loss(prediction: ArrayLike, target: ArrayLike, reduction: str = "mean") -> Tensor:
    """Return the squared differences.

    >>> ad.nn.functional.mse_loss(ad.tensor([1.0, 3.0]), ad.tensor([0.0, 0.0]))
    tensor(5., dtype=float64)
    """
    x, t = same_shape("mse_loss", prediction, target)
    if reduction == "mean":
        return noted(rec.mse(x, t))
    return reduced("mse_loss", rec.square(x - t), reduction)


@_regression_doc
def l1_loss(prediction: ArrayLike, target: ArrayLike, reduction: str = "mean") -> Tensor:
    """Return the absolute differences; the gradient is 0 where the difference is 0.

    >>> ad.nn.functional.l1_loss(ad.tensor([1.0, -3.0]), ad.tensor([0.0, 0.0]))
    tensor(2., dtype=float64)
    """
    x, t = same_shape("l1_loss", prediction, target)
    return reduced("l1_loss", rec.abs(x - t), reduction)


@_regression_doc
def huber_loss(
    prediction: ArrayLike, target: ArrayLike, reduction: str = "mean", delta: float = 1.0
) -> Tensor:
    """Return d² / 2 for differences d up to ``delta``, and ``delta * (|d| - delta / 2)`` beyond.

    >>> ad.nn.functional.huber_loss(ad.tensor([1.0, 3.0]), ad.tensor([0.0, 0.0]), "none")
    tensor([0.5, 2.5], dtype=float64)
    """
    delta = number("huber_loss", "delta", delta)
    if not delta > 0:
        raise ArgumentError(f"huber_loss: delta must be positive, but is {delta}.")
    x, t = same_shape("huber_loss", prediction, target)
    return reduced("huber_loss", rec.huber(x - t, delta=delta), reduction)


@_regression_doc
def smooth_l1_loss(
    prediction: ArrayLike, target: ArrayLike, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """Return the Huber loss divided by ``beta``.

    Parameters
    ----------
    beta : float
        The smallest difference for which the loss is linear.  With 0 the loss is the absolute difference.

    >>> ad.nn.functional.smooth_l1_loss(ad.tensor([1.0, 4.0]), ad.tensor([0.0, 0.0]), "none", beta=2.0)
    tensor([0.25, 3.  ], dtype=float64)
    """
    beta = number("smooth_l1_loss", "beta", beta)
    if not beta >= 0:
        raise ArgumentError(f"smooth_l1_loss: beta must not be negative, but is {beta}.")
    x, t = same_shape("smooth_l1_loss", prediction, target)
    loss = rec.huber(x - t, delta=beta) / beta if beta else rec.abs(x - t)
    return reduced("smooth_l1_loss", loss, reduction)


# Modules ---------------------------------------------------------------------------------------


class MSELoss(LossModule):
    """Module form of ``nn.functional.mse_loss``: squared differences.

    >>> ad.nn.MSELoss()(ad.tensor([1.0, 3.0]), ad.tensor([0.0, 0.0]))
    tensor(5., dtype=float64)
    """

    function = staticmethod(mse_loss)

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)


class L1Loss(LossModule):
    """Module form of ``nn.functional.l1_loss``: absolute differences.

    >>> ad.nn.L1Loss("sum")(ad.tensor([1.0, -3.0]), ad.tensor([0.0, 0.0]))
    tensor(4., dtype=float64)
    """

    function = staticmethod(l1_loss)

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)


class HuberLoss(LossModule):
    """Module form of ``nn.functional.huber_loss``: quadratic near 0, linear beyond.

    >>> ad.nn.HuberLoss("sum")(ad.tensor([1.0, 3.0]), ad.tensor([0.0, 0.0]))
    tensor(3., dtype=float64)
    """

    function = staticmethod(huber_loss)

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction, delta=delta)


class SmoothL1Loss(LossModule):
    """Module form of ``nn.functional.smooth_l1_loss``: the Huber loss divided by ``beta``.

    >>> ad.nn.SmoothL1Loss(beta=2.0)(ad.tensor([4.0]), ad.tensor([0.0]))
    tensor(3., dtype=float64)
    """

    function = staticmethod(smooth_l1_loss)

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction, beta=beta)
