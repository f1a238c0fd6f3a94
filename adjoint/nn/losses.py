"""Losses: functions of predictions and targets that end in one number, or one per row or element.

``reduction`` is ``"mean"``, ``"sum"`` or ``"none"`` everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.shapes import broadcast_shapes, number
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, ShapeError
from adjoint.nn.arguments import classes, floats
from adjoint.ops.half import widened
from adjoint.ops.reduce import narrowed

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "hinge_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
]


Reductions = list[tuple[Tensor, float | None]]

_reductions: ContextVar[Reductions | None] = ContextVar("adjoint_reductions", default=None)


@contextmanager
def noting_reductions(found: Reductions | None) -> Iterator[None]:
    """Append to ``found`` what the loss functions called in this block return, and what it is a mean over.

    That is the total weight of the rows divided by their number: 1, unless rows are ignored or weighted;
    None for a sum.  Losses of a block with ``found=None`` are not noted.
    """
    before = _reductions.get()
    _reductions.set(found)
    try:
        yield
    finally:
        _reductions.set(before)


def _noted(loss: Tensor, share: float | None = 1.0) -> Tensor:
    found = _reductions.get()
    if found is not None:
        found.append((loss, share))
    return loss


def _sum(loss: Tensor) -> Tensor:
    return rec.sum(loss, axis=tuple(range(-loss.ndim, 0)), keepdims=False)


def _reduced(op: str, loss: Tensor, reduction: str) -> Tensor:
    """Reduce a loss: to its mean over all elements, to its sum, or not at all."""
    if reduction == "none":
        return loss
    if reduction == "mean":
        return _noted(rec.mean(loss, axis=tuple(range(-loss.ndim, 0)), keepdims=False))
    if reduction != "sum":
        raise ArgumentError(f"{op}: reduction is 'mean', 'sum' or 'none', not {reduction!r}.")
    return _noted(_sum(loss), None)


def _mean_over(loss: Tensor, divisor: Any) -> Tensor:
    """Return the sum of a loss over ``divisor``; half precision sums in float32."""
    return narrowed(_sum(widened(rec, loss)) / divisor, loss.dtype)


def _pair(op: str, prediction: Any, target: Any) -> tuple[Tensor, Tensor]:
    """Return both as floats; of one shape, because a loss that broadcasts is nearly always a mistake."""
    x, t = floats(op, prediction), floats(op, target)
    if x._data.shape != t._data.shape:
        raise ShapeError(
            f"{op}: the prediction has shape {x.shape} and the target {t.shape}; they must be equal.\n"
            "  Reshape one of them: broadcasting would compare every element with many."
        )
    return x, t


# Distances -------------------------------------------------------------------------------------


def mse_loss(prediction: Any, target: Any, reduction: str = "mean") -> Tensor:
    """Return the squared differences.

    >>> import adjoint as ad
    >>> ad.nn.functional.mse_loss(ad.tensor([1.0, 3.0]), ad.tensor([0.0, 0.0]))
    tensor(5., dtype=float64)
    """
    x, t = _pair("mse_loss", prediction, target)
    if reduction == "mean":
        return _noted(rec.mse(x, t))
    return _reduced("mse_loss", rec.square(x - t), reduction)


def l1_loss(prediction: Any, target: Any, reduction: str = "mean") -> Tensor:
    """Return the absolute differences; where they are 0 the gradient is 0."""
    x, t = _pair("l1_loss", prediction, target)
    return _reduced("l1_loss", rec.abs(x - t), reduction)


def huber_loss(prediction: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """Return ½d² of the differences up to ``delta``, from there on ``delta · (|d| - ½ delta)``."""
    delta = number("huber_loss", "delta", delta)
    if not delta > 0:
        raise ArgumentError(f"huber_loss: delta must be positive, but is {delta}.")
    x, t = _pair("huber_loss", prediction, target)
    return _reduced("huber_loss", rec.huber(x - t, delta=delta), reduction)


def smooth_l1_loss(prediction: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """Return the Huber loss divided by ``beta``; with ``beta=0`` the absolute differences."""
    beta = number("smooth_l1_loss", "beta", beta)
    if not beta >= 0:
        raise ArgumentError(f"smooth_l1_loss: beta must not be negative, but is {beta}.")
    x, t = _pair("smooth_l1_loss", prediction, target)
    loss = rec.huber(x - t, delta=beta) / beta if beta else rec.abs(x - t)
    return _reduced("smooth_l1_loss", loss, reduction)


def hinge_loss(prediction: Any, target: Any, reduction: str = "mean") -> Tensor:
    """Return ``max(0, 1 - target · prediction)`` for targets -1 and 1."""
    x, t = _pair("hinge_loss", prediction, target)
    return _reduced("hinge_loss", rec.relu(1 - t * x), reduction)


# Classes ---------------------------------------------------------------------------------------


def _classes_last(op: str, x: Tensor, target_shape: tuple[int, ...]) -> Tensor:
    """Move the axis of the classes, axis 1 of (N, C, …) or the one of (C,), to the end."""
    if not x.ndim or not x.shape[min(1, x.ndim - 1)]:
        raise ShapeError(
            f"{op}: the prediction has one score per class, (C,) or (N, C, …), but its shape is {x.shape}."
        )
    rows = x.shape[:1] + x.shape[2:] if x.ndim > 1 else ()
    if target_shape != rows:
        raise ShapeError(
            f"{op}: the prediction {x.shape} wants one class per row, a target of shape {rows}, but "
            f"got {target_shape}.\n"
            "  Classes are along axis 1; a float target, of the prediction's shape, has probabilities."
            + (
                "\n  Scores with the classes last: prediction.moveaxis(-1, 1)."
                if target_shape == x.shape[:-1]
                else ""
            )
        )
    return rec.moveaxis(x, source=1 - x.ndim, destination=-1) if x.ndim > 2 else x


def _weights(op: str, weight: Any, count: int, dtype: Any) -> Tensor | None:
    if weight is None:
        return None
    w = floats(op, weight)
    if w.shape != (count,):
        raise ShapeError(f"{op}: the weight has one number per class, {count}, but shape {w.shape}.")
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
    """Weigh the rows by their classes, leave the ignored out, and average over the weights that are left."""
    row = (
        None if w is None else rec.index(w, key=(t._data, Ellipsis)) if type(t._data) is np.ndarray else w[t]
    )
    loss = loss if row is None else loss * row
    loss = loss if smooth is None else loss + smooth
    if keep is not None:
        loss = rec.where(keep, loss, 0.0)
        row = rec.astype(keep, dtype=loss.dtype) if row is None else rec.where(keep, row, 0.0)
    if reduction != "mean" or row is None:
        return _reduced(op, loss, reduction)
    divisor = _sum(widened(rec, row))
    if type(divisor._data) is not np.ndarray:  # batched
        return _mean_over(loss, divisor)
    total = float(divisor._data)
    mean = _mean_over(loss, divisor) if total else _sum(loss) * math.nan  # the mean of no rows
    return _noted(mean, total / row.size if row.size else 1.0)


def cross_entropy(
    prediction: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return ``-log softmax(prediction)`` at the target's classes.

    The prediction has the shape (C,) or (N, C, …), unnormalised.  The target has whole numbers of the
    same shape without the axis C, or floats of the same shape: probabilities.  Rows of the class
    ``ignore_index`` count neither in the sum nor in the mean, which is over the weights of the classes if
    ``weight`` is given.  The mean of no rows is NaN.

    >>> import adjoint as ad
    >>> ad.nn.functional.cross_entropy(ad.tensor([[0.0, 0.0]]), ad.tensor([1]))
    tensor(0.69314718, dtype=float64)
    """
    op = "cross_entropy"
    label_smoothing = number(op, "label_smoothing", label_smoothing)
    if not 0 <= label_smoothing <= 1:
        raise ArgumentError(f"{op}: label_smoothing is between 0 and 1, but is {label_smoothing}.")
    x, t = floats(op, prediction), asarray(target)
    if t.dtype.kind == "f" or t.dtype.name == "bfloat16":
        return _soft_cross_entropy(op, x, t, weight, reduction, label_smoothing)
    x = _classes_last(op, x, t.shape)
    count = x.shape[-1]
    t, keep = classes(op, t, count, ignore_index)
    w = _weights(op, weight, count, x.dtype)
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
    """The cross entropy with probabilities: -Σ t log softmax(x); its mean is over the rows."""
    if x.shape != t.shape or not x.ndim:
        raise ShapeError(
            f"{op}: probabilities have the shape of the prediction, {x.shape}, not the target's {t.shape}.\n"
            "  Class indices are whole numbers: target.astype(int)."
        )
    axis = -1 if x.ndim == 1 else 1 - x.ndim
    count = x.shape[axis]
    w = _weights(op, weight, count, x.dtype)
    if smoothing:
        t = t * (1 - smoothing) + smoothing / count
    if w is not None:
        t = t * rec.reshape(w, shape=(count,) + (1,) * (-axis - 1))
    loss = -rec.sum(rec.log_softmax(x, axis=axis) * t, axis=(axis,), keepdims=False)
    return _reduced(op, loss, reduction)


def nll_loss(
    log_probabilities: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """Return the negated log probabilities at the target's classes; for the shapes see ``cross_entropy``."""
    op = "nll_loss"
    x, t = floats(op, log_probabilities), asarray(target)
    x = _classes_last(op, x, t.shape)
    t, keep = classes(op, t, x.shape[-1], ignore_index)
    w = _weights(op, weight, x.shape[-1], x.dtype)
    picked = rec.take_along_axis(x, rec.reshape(t, shape=(*t.shape, 1)), axis=-1)
    return _weighted(op, -rec.reshape(picked, shape=t.shape), None, t, keep, w, reduction)


# Probabilities ---------------------------------------------------------------------------------


def _element_weight(op: str, loss: Tensor, weight: Any) -> Tensor:
    if weight is None:
        return loss
    w = floats(op, weight)
    if broadcast_shapes(f"{op} (weight)", w.shape, loss.shape) != loss.shape:
        raise ShapeError(f"{op}: a weight of shape {w.shape} does not broadcast to the losses, {loss.shape}.")
    return loss * w


def binary_cross_entropy(
    probabilities: Any, target: Any, weight: Any = None, reduction: str = "mean"
) -> Tensor:
    """Return ``-(t log p + (1-t) log(1-p))``; logarithms are at least -100, as in PyTorch.

    ``binary_cross_entropy_with_logits`` is exact where the probabilities round to 0 or 1.
    """
    op = "binary_cross_entropy"
    p, t = _pair(op, probabilities, target)
    if type(p._data) is np.ndarray and p.size and not (p._data.min() >= 0 and p._data.max() <= 1):
        raise ArgumentError(
            f"{op}: probabilities are between 0 and 1, but these go from {p._data.min():g} to "
            f"{p._data.max():g}.\n  For scores before the sigmoid use binary_cross_entropy_with_logits."
        )
    return _reduced(op, _element_weight(op, rec.bce(p, t), weight), reduction)


def binary_cross_entropy_with_logits(
    prediction: Any, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> Tensor:
    """Return the cross entropy of ``sigmoid(prediction)`` and probabilities, exact in both tails.

    ``pos_weight`` weighs the part of the positive class.
    """
    op = "binary_cross_entropy_with_logits"
    x, t = _pair(op, prediction, target)
    if pos_weight is None:
        loss = rec.bce_logits(x, t)
    else:
        loss = _element_weight(op, t * rec.softplus(-x), pos_weight) + (1 - t) * rec.softplus(x)
    return _reduced(op, _element_weight(op, loss, weight), reduction)


def kl_div(log_probabilities: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """Return ``t (log t - log p)``, 0 where t is 0; ``reduction="batchmean"`` divides the sum by the rows.

    The prediction has log probabilities; the target has probabilities, or their logs with ``log_target``.
    """
    op = "kl_div"
    x, t = _pair(op, log_probabilities, target)
    if log_target:
        loss = rec.exp(t) * (t - x)
    else:
        loss = t * rec.log(rec.where(t > 0, t, 1.0)) - t * x
    if reduction == "batchmean":
        return _noted(_mean_over(loss, x.shape[0] if x.ndim else 1))
    return _reduced(op, loss, reduction)
