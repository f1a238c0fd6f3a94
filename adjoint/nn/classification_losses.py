"""Losses of predicted classes and probabilities: functions and modules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.lifted import tracing
from adjoint.core.namespace import rec
from adjoint.core.shapes import broadcast_shapes, number
from adjoint.core.tensor import Tensor
from adjoint.core.values import decide, verify
from adjoint.errors import ArgumentError, ShapeError
from adjoint.nn.arguments import classes, floats
from adjoint.nn.loss_reduction import LossModule, is_noting, mean_over, noted, reduced, same_shape, sum_all
from adjoint.nn.shared_docs import loss_doc, matched_loss_doc
from adjoint.ops.half import widened
from adjoint.typing import ArrayLike

__all__ = ["BCELoss", "BCEWithLogitsLoss", "CrossEntropyLoss", "HingeLoss", "KLDivLoss", "NLLLoss"]

_class_doc = loss_doc.extended("""
    Parameters
    ----------
    weight : array_like, optional
        One weight per class.  The mean is then the weighted mean.
    ignore_index : int
        Rows with this class index are left out of the sum and of the mean.
    pos_weight : array_like, optional
        Factor of the term of the positive class.
    """)
_rows_doc = _class_doc.extended("""
    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        How the losses of the rows are combined.
    label_smoothing : float
        From 0 to 1.  This fraction of each target is spread evenly over all classes.

    Returns
    -------
    Tensor
        The loss; one per row with ``reduction="none"``.  The mean of no rows is NaN.

    Raises
    ------
    ShapeError
        If the shapes do not match.
    IndexingError
        If a class index is out of range.
    """)


# Classes ---------------------------------------------------------------------------------------


@_class_doc
def hinge_loss(prediction: ArrayLike, target: ArrayLike, reduction: str = "mean") -> Tensor:
    """Return ``max(0, 1 - target * prediction)``.

    Parameters
    ----------
    prediction : array_like
        Scores.
    target : array_like
        The classes, -1 or 1, with the shape of the prediction.

    Raises
    ------
    ShapeError
        If the shapes differ.

    >>> ad.nn.functional.hinge_loss(ad.tensor([0.5, 2.0]), ad.tensor([1.0, -1.0]), "none")
    tensor([0.5, 3. ], dtype=float64)
    """
    x, t = same_shape("hinge_loss", prediction, target)
    return reduced("hinge_loss", rec.relu(1 - t * x), reduction)


def _classes_last(op: str, x: Tensor, target_shape: tuple[int, ...]) -> Tensor:
    """Return the scores ``x`` with the class axis moved to the end.

    The class axis is axis 1 of (N, C, …), or the only axis of (C,).

    Raise if the class indices, of shape ``target_shape``, do not match the other axes.
    """
    if not x.ndim or not x.shape[min(1, x.ndim - 1)]:
        raise ShapeError(
            f"{op}: the prediction must have shape (C,) or (N, C, …), with one score for each of C classes, "
            f"but has shape {x.shape}."
        )
    rows = x.shape[:1] + x.shape[2:] if x.ndim > 1 else ()
    if target_shape != rows:
        raise ShapeError(
            f"{op}: for a prediction of shape {x.shape} the class indices must have shape {rows}, but have "
            f"shape {target_shape}.\n"
            "  The classes must be on axis 1.  A target of probabilities must be float and have the "
            "prediction's shape."
            + (
                "\n  Move the classes if they are on the last axis: prediction.moveaxis(-1, 1)."
                if target_shape == x.shape[:-1]
                else ""
            )
        )
    return rec.moveaxis(x, source=1 - x.ndim, destination=-1) if x.ndim > 2 else x


def _class_weights(op: str, weight: Any, count: int, dtype: Any) -> Tensor | None:
    if weight is None:
        return None
    w = floats(op, weight)
    if w.shape != (count,):
        raise ShapeError(
            f"{op}: the weight must have shape ({count},), one value per class, but has shape {w.shape}."
        )
    return rec.astype(w, dtype=dtype) if w.dtype != dtype else w


def _weighted(
    op: str,
    loss: Tensor,
    smooth: Tensor | None,
    t: Tensor,
    keep: Tensor | None,
    w: Tensor | None,
    reduction: str,
) -> Tensor:
    """Return the reduced loss, with each row weighted by its class and ignored rows left out.

    ``loss`` has the loss of each row, ``t`` the class of each row.  ``keep`` is a mask of the rows that are
    not ignored, or None.  ``w`` has the weight of each class.  ``smooth`` is the label-smoothing term of each
    row.  The mean is the sum divided by the total weight of the kept rows.
    """
    row = (
        None if w is None else rec.index(w, key=(t._data, Ellipsis)) if type(t._data) is np.ndarray else w[t]
    )
    loss = loss if row is None else loss * row
    loss = loss if smooth is None else loss + smooth
    if keep is not None:
        loss = rec.where(keep, loss, 0.0)
        row = rec.astype(keep, dtype=loss.dtype) if row is None else rec.where(keep, row, 0.0)
    if reduction != "mean" or row is None:
        return reduced(op, loss, reduction)
    divisor = sum_all(widened(rec, row))
    # whether the total weight is above 0; its value is needed only if the reduction is recorded
    traced = tracing.get() is not None
    total = decide(float if is_noting() and not traced else bool, divisor, lambda x: None)
    if total is None:  # inside vmap there is no single value, and programs without Python have no branches
        return mean_over(loss, divisor)
    mean = mean_over(loss, divisor) if total else sum_all(loss) * math.nan  # the mean of no rows
    whole: Any = divisor.detach() if traced and total else total
    return noted(mean, whole / row.size if row.size else 1.0)


@_rows_doc
def cross_entropy(
    prediction: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return ``-log softmax(prediction)`` at the target classes.

    Parameters
    ----------
    prediction : array_like
        Unnormalised scores, with shape (C,) or (N, C, …).
    target : array_like
        Class indices, with the prediction's shape without the axis C; or probabilities (floats) of the same
        shape.

    >>> ad.nn.functional.cross_entropy(ad.tensor([[0.0, 0.0]]), ad.tensor([1]))
    tensor(0.69314718, dtype=float64)
    """
    op = "cross_entropy"
    label_smoothing = number(op, "label_smoothing", label_smoothing)
    if not 0 <= label_smoothing <= 1:
        raise ArgumentError(f"{op}: label_smoothing must be between 0 and 1, but is {label_smoothing}.")
    x, t = floats(op, prediction), asarray(target)
    if t.dtype.kind == "f" or t.dtype.name == "bfloat16":
        return _soft_cross_entropy(op, x, t, weight, reduction, label_smoothing)
    x = _classes_last(op, x, t.shape)
    count = x.shape[-1]
    t, keep = classes(op, t, count, ignore_index)
    w = _class_weights(op, weight, count, x.dtype)
    smooth = None
    if label_smoothing:
        logs = rec.log_softmax(x, axis=-1)
        smooth = rec.mean(logs if w is None else logs * w, axis=(-1,), keepdims=False) * -label_smoothing
    loss = rec.softmax_nll(x, t)
    loss = loss * (1 - label_smoothing) if label_smoothing else loss
    return _weighted(op, loss, smooth, t, keep, w, reduction)


def _soft_cross_entropy(
    op: str, x: Tensor, t: Tensor, weight: Any, reduction: str, smoothing: float
) -> Tensor:
    """Return the reduced loss -Σ t log softmax(x), the cross entropy with target probabilities t.

    ``weight`` has the weight of each class, or is None.  ``smoothing`` is the label smoothing.  The mean is
    the sum divided by the number of rows.
    """
    if x.shape != t.shape or not x.ndim:
        raise ShapeError(
            f"{op}: a float target is read as probabilities and must have the prediction's shape {x.shape}, "
            f"but has shape {t.shape}.\n"
            "  If the target contains class indices, pass integers: target.astype(int)."
        )
    axis = -1 if x.ndim == 1 else 1 - x.ndim
    count = x.shape[axis]
    w = _class_weights(op, weight, count, x.dtype)
    if smoothing:
        t = t * (1 - smoothing) + smoothing / count
    if w is not None:
        t = t * rec.reshape(w, shape=(count,) + (1,) * (-axis - 1))
    loss = -rec.sum(rec.log_softmax(x, axis=axis) * t, axis=(axis,), keepdims=False)
    return reduced(op, loss, reduction)


@_rows_doc
def nll_loss(
    log_probabilities: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Return the negative log probabilities of the target classes.

    Parameters
    ----------
    log_probabilities : array_like
        Logarithms of probabilities, with shape (C,) or (N, C, …).
    target : array_like
        Class indices, with the same shape without the axis C.

    >>> ad.nn.functional.nll_loss(ad.tensor([[-0.5, -1.0], [-2.0, -0.25]]), ad.tensor([0, 1]))
    tensor(0.375, dtype=float64)
    """
    op = "nll_loss"
    x, t = floats(op, log_probabilities), asarray(target)
    x = _classes_last(op, x, t.shape)
    t, keep = classes(op, t, x.shape[-1], ignore_index)
    w = _class_weights(op, weight, x.shape[-1], x.dtype)
    picked = rec.take_along_axis(x, rec.reshape(t, shape=(*t.shape, 1)), axis=-1)
    return _weighted(op, -rec.reshape(picked, shape=t.shape), None, t, keep, w, reduction)


# Probabilities ---------------------------------------------------------------------------------


def _element_weight(op: str, loss: Tensor, weight: Any) -> Tensor:
    if weight is None:
        return loss
    w = floats(op, weight)
    if broadcast_shapes(f"{op} (weight)", w.shape, loss.shape) != loss.shape:
        raise ShapeError(
            f"{op}: a weight of shape {w.shape} cannot be broadcast to the losses' shape {loss.shape}."
        )
    return loss * w


def _check_probabilities(p: np.ndarray[Any, Any]) -> None:
    if p.size and not (p.min() >= 0 and p.max() <= 1):
        raise ArgumentError(
            "binary_cross_entropy: the prediction must be probabilities between 0 and 1, but ranges from "
            f"{p.min():g} to {p.max():g}.\n"
            "  Use binary_cross_entropy_with_logits for scores before the sigmoid."
        )


@_class_doc
def binary_cross_entropy(
    probabilities: ArrayLike, target: ArrayLike, weight: ArrayLike | None = None, reduction: str = "mean"
) -> Tensor:
    """Return ``-(t log p + (1 - t) log(1 - p))``.

    Logarithms are limited to -100, as in PyTorch.  ``binary_cross_entropy_with_logits`` is more accurate
    where the probabilities round to 0 or 1.

    Parameters
    ----------
    probabilities : array_like
        The predicted probabilities p, from 0 to 1.
    target : array_like
        The probabilities t, with the same shape.
    weight : array_like, optional
        Weights of the elements, broadcast to their shape.

    Raises
    ------
    ArgumentError
        If a predicted probability is outside the range from 0 to 1.

    >>> ad.nn.functional.binary_cross_entropy(ad.tensor([0.5, 0.5]), ad.tensor([0.0, 1.0]))
    tensor(0.69314718, dtype=float64)
    """
    op = "binary_cross_entropy"
    p, t = same_shape(op, probabilities, target)
    verify(_check_probabilities, p, lambda xp, p: xp.logical_not(xp.logical_and(p >= 0, p <= 1)))
    return reduced(op, _element_weight(op, rec.bce(p, t), weight), reduction)


@_class_doc
def binary_cross_entropy_with_logits(
    prediction: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    reduction: str = "mean",
    pos_weight: ArrayLike | None = None,
) -> Tensor:
    """Return the binary cross entropy of ``sigmoid(prediction)``, accurate for scores of any size.

    Parameters
    ----------
    prediction : array_like
        Scores before the sigmoid.
    target : array_like
        Probabilities, with the same shape.
    weight : array_like, optional
        Weights of the elements, broadcast to their shape.

    Raises
    ------
    ShapeError
        If the shapes differ.

    >>> ad.nn.functional.binary_cross_entropy_with_logits(ad.tensor([1000.0]), ad.tensor([0.0]))
    tensor(1000., dtype=float64)
    """
    op = "binary_cross_entropy_with_logits"
    x, t = same_shape(op, prediction, target)
    if pos_weight is None:
        loss = rec.bce_logits(x, t)
    else:
        loss = _element_weight(op, t * rec.softplus(-x), pos_weight) + (1 - t) * rec.softplus(x)
    return reduced(op, _element_weight(op, loss, weight), reduction)


@matched_loss_doc
def kl_div(
    log_probabilities: ArrayLike, target: ArrayLike, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """Return the terms ``t (log t - log p)`` of the Kullback-Leibler divergence; 0 where t is 0.

    Parameters
    ----------
    log_probabilities : array_like
        The logarithms of the predicted probabilities p.
    target : array_like
        The probabilities t, with the same shape.
    reduction : {"mean", "sum", "none", "batchmean"}
        How the terms are combined.  ``"batchmean"`` divides the sum by the number of rows.
    log_target : bool
        Whether the target holds logarithms of probabilities.

    Returns
    -------
    Tensor
        The divergence; one term per element with ``reduction="none"``.

    >>> p = ad.tensor([[0.5, 0.5]])
    >>> ad.nn.functional.kl_div(p.log(), ad.tensor([[1.0, 0.0]]), "batchmean")
    tensor(0.69314718, dtype=float64)
    """
    op = "kl_div"
    x, t = same_shape(op, log_probabilities, target)
    if log_target:
        loss = rec.exp(t) * (t - x)
    else:
        loss = t * rec.log(rec.where(t > 0, t, 1.0)) - t * x
    if reduction == "batchmean":
        return noted(mean_over(loss, x.shape[0] if x.ndim else 1))
    return reduced(op, loss, reduction)


# Modules ---------------------------------------------------------------------------------------


class HingeLoss(LossModule):
    """Module form of ``nn.functional.hinge_loss``.

    >>> ad.nn.HingeLoss()(ad.tensor([0.5]), ad.tensor([1.0]))
    tensor(0.5, dtype=float64)
    """

    function = staticmethod(hinge_loss)

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)


class CrossEntropyLoss(LossModule):
    """Module form of ``nn.functional.cross_entropy``.

    >>> ad.nn.CrossEntropyLoss()(ad.tensor([[0.0, 0.0]]), ad.tensor([1]))
    tensor(0.69314718, dtype=float64)
    """

    function = staticmethod(cross_entropy)

    def __init__(
        self,
        weight: ArrayLike | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction, weight=weight, ignore_index=ignore_index, label_smoothing=label_smoothing)


class NLLLoss(LossModule):
    """Module form of ``nn.functional.nll_loss``.

    >>> ad.nn.NLLLoss()(ad.tensor([[-0.5, -1.0]]), ad.tensor([0]))
    tensor(0.5, dtype=float64)
    """

    function = staticmethod(nll_loss)

    def __init__(
        self, weight: ArrayLike | None = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction, weight=weight, ignore_index=ignore_index)


class BCELoss(LossModule):
    """Module form of ``nn.functional.binary_cross_entropy``.

    >>> ad.nn.BCELoss()(ad.tensor([0.5]), ad.tensor([1.0]))
    tensor(0.69314718, dtype=float64)
    """

    function = staticmethod(binary_cross_entropy)

    def __init__(self, weight: ArrayLike | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction, weight=weight)


class BCEWithLogitsLoss(LossModule):
    """Module form of ``nn.functional.binary_cross_entropy_with_logits``.

    >>> ad.nn.BCEWithLogitsLoss()(ad.tensor([0.0]), ad.tensor([1.0]))
    tensor(0.69314718, dtype=float64)
    """

    function = staticmethod(binary_cross_entropy_with_logits)

    def __init__(
        self, weight: ArrayLike | None = None, reduction: str = "mean", pos_weight: ArrayLike | None = None
    ) -> None:
        super().__init__(reduction, weight=weight, pos_weight=pos_weight)


class KLDivLoss(LossModule):
    """Module form of ``nn.functional.kl_div``.

    >>> p = ad.tensor([[0.5, 0.5]])
    >>> ad.nn.KLDivLoss("batchmean")(p.log(), ad.tensor([[1.0, 0.0]]))
    tensor(0.69314718, dtype=float64)
    """

    function = staticmethod(kl_div)
    reductions = (*LossModule.reductions, "batchmean")

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction, log_target=log_target)
