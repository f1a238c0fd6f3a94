"""Margin losses of several classes or labels: functions and modules."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.shapes import broadcast_shapes, number
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import ArgumentError, ShapeError
from adjoint.nn.arguments import classes, floats
from adjoint.nn.loss_reduction import LossModule, reduced, same_shape
from adjoint.nn.shared_docs import loss_doc
from adjoint.ops.shared_docs import mismatch_doc
from adjoint.typing import ArrayLike

__all__ = ["MultiLabelMarginLoss", "MultiLabelSoftMarginLoss", "MultiMarginLoss"]

_multi_margin_doc = loss_doc.extended("""
    Parameters
    ----------
    prediction : array_like
        Scores, ``(N, C)`` or ``(C,)``.
    p : {1, 2}
        The power.
    margin : float
        The smallest difference of the scores for which the loss is 0.
    weight : array_like, optional
        One weight per class.
    """)
_row_loss_doc = _multi_margin_doc.extended("""
    Returns
    -------
    Tensor
        The loss; one per row with ``reduction="none"``.

    Raises
    ------
    ShapeError
        If the shapes differ.
    """)


# Functions -------------------------------------------------------------------------------------


@_row_loss_doc
@mismatch_doc
def multi_margin_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    p: int = 1,
    margin: float = 1.0,
    weight: ArrayLike | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the mean over the other classes of ``max(0, margin - score of the target + score) ** p``.

    Parameters
    ----------
    target : array_like of int
        The classes, ``(N,)`` or ``()``.

    >>> ad.nn.functional.multi_margin_loss([[0.0, 1.0, 0.5, 0.5]], [1])
    tensor(0.25, dtype=float64)
    """
    op = "multi_margin_loss"
    x, t = _rows(op, prediction), asarray(target)
    if t.shape != x.shape[:-1]:
        raise ShapeError(
            f"{op}: for a prediction of shape {x.shape} the target must have shape {x.shape[:-1]}, but has "
            f"shape {t.shape}."
        )
    if p not in (1, 2):
        raise ArgumentError(f"{op}: p must be 1 or 2, not {p!r}.")
    i, _ = classes(op, t, x.shape[-1])
    at = rec.reshape(i, shape=(*i.shape, 1))
    terms = rec.relu(number(op, "margin", margin) - rec.take_along_axis(x, at, axis=-1) + x)
    terms = terms * terms if p == 2 else terms
    if weight is not None:
        w = floats(op, weight)
        if w.shape != x.shape[-1:]:
            raise ShapeError(
                f"{op}: the weight must have shape ({x.shape[-1]},), one value per class, but has shape "
                f"{w.shape}."
            )
        terms = terms * rec.take(w, at, axis=-1)
    terms = rec.where(wrap(np.arange(x.shape[-1])) == at, 0.0, terms)
    return reduced(op, rec.sum(terms, axis=(-1,), keepdims=False) / x.shape[-1], reduction)


def _rows(op: str, prediction: Any) -> Tensor:
    x = floats(op, prediction)
    if x.ndim not in (1, 2) or not x.shape[-1]:
        raise ShapeError(f"{op}: the prediction must have shape (N, C) or (C,), but has shape {x.shape}.")
    return x


@_row_loss_doc
def multilabel_margin_loss(prediction: ArrayLike, target: ArrayLike, reduction: str = "mean") -> Tensor:
    """Return the mean of ``max(0, 1 - score of a target + score of another class)`` over all such pairs.

    Parameters
    ----------
    target : array_like of int
        The classes of each row, with the shape of the prediction; -1 ends the list.

    >>> ad.nn.functional.multilabel_margin_loss([[0.1, 0.2, 0.4, 0.8]], [[3, 0, -1, 1]])
    tensor(0.85, dtype=float64)
    """
    op = "multilabel_margin_loss"
    x, t = _rows(op, prediction), asarray(target)
    if t.shape != x.shape:
        raise ShapeError(
            f"{op}: the prediction and the target must have the same shape, but have {x.shape} and {t.shape}."
        )
    count = x.shape[-1]
    listed = rec.cumsum(rec.astype(t < 0, dtype=np.dtype(int)), axis=-1) == 0
    i, _ = classes(op, rec.where(listed, t, 0), count)
    chosen = rec.untake_along_axis(rec.astype(listed, dtype=np.dtype(int)), i, axis=-1, length=count) > 0
    scores = rec.reshape(rec.take_along_axis(x, i, axis=-1), shape=(*x.shape, 1))
    terms = rec.relu(1 - scores + rec.reshape(x, shape=(*x.shape[:-1], 1, count)))
    pair = rec.logical_and(
        rec.reshape(listed, shape=(*x.shape, 1)),
        rec.logical_not(rec.reshape(chosen, shape=(*x.shape[:-1], 1, count))),
    )
    return reduced(op, rec.sum(rec.where(pair, terms, 0.0), axis=(-2, -1), keepdims=False) / count, reduction)


@_row_loss_doc
def multilabel_soft_margin_loss(
    prediction: ArrayLike, target: ArrayLike, weight: ArrayLike | None = None, reduction: str = "mean"
) -> Tensor:
    """Return the mean over classes of the binary cross entropy of scores.

    Parameters
    ----------
    target : array_like
        0 or 1 for each class.

    >>> ad.nn.functional.multilabel_soft_margin_loss([[1000.0, -1000.0]], [[0, 0]])
    tensor(500., dtype=float64)
    """
    op = "multilabel_soft_margin_loss"
    x, t = same_shape(op, prediction, target)
    loss = rec.bce_logits(x, t)
    if weight is not None:
        w = floats(op, weight)
        broadcast_shapes(op, x.shape, w.shape)
        loss = loss * w
    return reduced(op, rec.mean(loss, axis=(-1,), keepdims=False), reduction)


# Modules ---------------------------------------------------------------------------------------


class MultiMarginLoss(LossModule):
    """Module form of ``nn.functional.multi_margin_loss``.

    >>> ad.nn.MultiMarginLoss()([[0.0, 1.0, 0.5, 0.5]], [1])
    tensor(0.25, dtype=float64)
    """

    function = staticmethod(multi_margin_loss)

    def __init__(
        self, p: int = 1, margin: float = 1.0, weight: ArrayLike | None = None, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction, p=p, margin=margin, weight=weight)


class MultiLabelMarginLoss(LossModule):
    """Module form of ``nn.functional.multilabel_margin_loss``.

    >>> ad.nn.MultiLabelMarginLoss()([[0.1, 0.2, 0.4, 0.8]], [[3, 0, -1, 1]])
    tensor(0.85, dtype=float64)
    """

    function = staticmethod(multilabel_margin_loss)

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)


class MultiLabelSoftMarginLoss(LossModule):
    """Module form of ``nn.functional.multilabel_soft_margin_loss``.

    >>> ad.nn.MultiLabelSoftMarginLoss()([[1000.0, -1000.0]], [[0, 0]])
    tensor(500., dtype=float64)
    """

    function = staticmethod(multilabel_soft_margin_loss)

    def __init__(self, weight: ArrayLike | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction, weight=weight)
