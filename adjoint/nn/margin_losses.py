"""Losses of scores, distances and margins: functions and modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adjoint.context import user_code
from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.shapes import broadcast_shapes, number
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, ShapeError
from adjoint.nn.arguments import floats
from adjoint.nn.loss_reduction import LossModule, reduced, same_shape
from adjoint.nn.shared_docs import loss_doc, matched_loss_doc
from adjoint.nn.similarity import cosine_similarity, pairwise_distance
from adjoint.ops.shared_docs import mismatch_doc
from adjoint.typing import ArrayLike

__all__ = [
    "CosineEmbeddingLoss", "HingeEmbeddingLoss", "MarginRankingLoss", "SoftMarginLoss", "TripletMarginLoss",
    "TripletMarginWithDistanceLoss",
]  # fmt: skip

_triplet_doc = loss_doc.extended("""
    Parameters
    ----------
    positive : array_like
        Vectors that should be near the anchor.
    negative : array_like
        Vectors that should be farther away.
    margin : float
        The loss is 0 if the negative is farther from the anchor than the positive by this margin.
    p : float
        The order of the norm.
    swap : bool
        Whether to use the distance from positive to negative where it is smaller than that from anchor to
        negative.
    distance_function : callable, optional
        A function of two tensors; by default ``pairwise_distance``.
    """)


# Functions -------------------------------------------------------------------------------------


@loss_doc
def margin_ranking_loss(
    input1: ArrayLike, input2: ArrayLike, target: ArrayLike, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Return ``max(0, margin - target * (input1 - input2))``.

    Parameters
    ----------
    input1 : array_like
        Scores.
    input2 : array_like
        Scores to compare with.
    target : array_like
        1 where ``input1`` should be larger, -1 where ``input2`` should.
    margin : float
        The smallest difference of the scores for which the loss is 0.

    >>> ad.nn.functional.margin_ranking_loss([1.0, 2.0], [2.0, 0.0], [1, 1], reduction="none")
    tensor([1., 0.], dtype=float64)
    """
    op = "margin_ranking_loss"
    a, b, t = floats(op, input1), floats(op, input2), floats(op, target)
    broadcast_shapes(op, a.shape, b.shape, t.shape)
    return reduced(op, rec.relu(number(op, "margin", margin) - t * (a - b)), reduction)


@matched_loss_doc
def hinge_embedding_loss(
    prediction: ArrayLike, target: ArrayLike, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """Return the distance where the target is 1, and ``max(0, margin - distance)`` where it is -1.

    Parameters
    ----------
    prediction : array_like
        Distances.
    target : array_like
        1 or -1, with the shape of the prediction.
    margin : float
        The smallest distance for which the loss of a target -1 is 0.

    >>> ad.nn.functional.hinge_embedding_loss([0.5, 0.25], [1, -1], reduction="none")
    tensor([0.5 , 0.75], dtype=float64)
    """
    op = "hinge_embedding_loss"
    x, t = same_shape(op, prediction, target)
    apart = rec.relu(number(op, "margin", margin) - x)
    return reduced(op, rec.where(t == -1, 0.0, x) + rec.where(t == 1, 0.0, apart), reduction)


@matched_loss_doc
def soft_margin_loss(prediction: ArrayLike, target: ArrayLike, reduction: str = "mean") -> Tensor:
    """Return ``log(1 + exp(-target * prediction))``.

    Parameters
    ----------
    prediction : array_like
        Scores.
    target : array_like
        The classes, -1 or 1, with the shape of the prediction.

    >>> ad.nn.functional.soft_margin_loss([1000.0, -1000.0], [1, 1], "none")
    tensor([   0., 1000.], dtype=float64)
    """
    x, t = same_shape("soft_margin_loss", prediction, target)
    return reduced("soft_margin_loss", rec.softplus(-(t * x)), reduction)


@matched_loss_doc
@mismatch_doc
def cosine_embedding_loss(
    input1: ArrayLike, input2: ArrayLike, target: ArrayLike, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Return ``1 - cos`` where the target is 1, and ``max(0, cos - margin)`` where it is -1.

    Parameters
    ----------
    input1 : array_like
        Vectors, ``(N, D)`` or ``(D,)``.
    input2 : array_like
        Vectors to compare with.
    target : array_like
        1 for pairs that should be similar, -1 for others, with the shape ``(N,)`` or ``()``.
    margin : float
        The largest cosine for which the loss of a target -1 is 0.

    Returns
    -------
    Tensor
        The loss; one per pair with ``reduction="none"``.

    >>> ad.nn.functional.cosine_embedding_loss([[1.0, 0.0]], [[0.0, 2.0]], [1])
    tensor(1., dtype=float64)
    """
    op = "cosine_embedding_loss"
    a, b = same_shape(op, input1, input2)
    t = asarray(target)
    if a.ndim not in (1, 2) or t.shape != a.shape[:-1]:
        raise ShapeError(
            f"{op}: the inputs must be one vector or a matrix of vectors, and the target must have shape "
            f"{a.shape[:-1]}; the shapes are {a.shape} and {t.shape}."
        )
    cos = cosine_similarity(a, b, axis=-1)
    near = rec.where(t == 1, 1 - cos, 0.0)
    far = rec.where(t == -1, rec.relu(cos - number(op, "margin", margin)), 0.0)
    return reduced(op, near + far, reduction)


@_triplet_doc
def triplet_margin_loss(
    anchor: ArrayLike,
    positive: ArrayLike,
    negative: ArrayLike,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Return ``max(0, |anchor - positive| - |anchor - negative| + margin)``.

    Parameters
    ----------
    anchor : array_like
        Vectors, ``(N, D)`` or ``(D,)``.
    eps : float
        Added to the differences, so that the gradient exists where vectors are equal.

    Returns
    -------
    Tensor
        The loss; one per triple with ``reduction="none"``.

    Raises
    ------
    ArgumentError
        If the margin is not positive.

    >>> ad.nn.functional.triplet_margin_loss([[0.0]], [[1.0]], [[3.0]], margin=4.0, eps=0.0)
    tensor(2., dtype=float64)
    """

    def distance(a: Tensor, b: Tensor) -> Tensor:
        return pairwise_distance(a, b, p, eps)

    return _triplet("triplet_margin_loss", distance, anchor, positive, negative, margin, swap, reduction)


@_triplet_doc
def triplet_margin_with_distance_loss(
    anchor: ArrayLike,
    positive: ArrayLike,
    negative: ArrayLike,
    *,
    distance_function: Callable[..., Any] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Return the triplet loss for any distance of two tensors.

    Parameters
    ----------
    anchor : array_like
        Vectors.

    Returns
    -------
    Tensor
        The loss; one per triple with ``reduction="none"``.

    Raises
    ------
    ArgumentError
        If the margin is not positive.

    >>> far = lambda a, b: abs(a - b).max(-1)
    >>> ad.nn.functional.triplet_margin_with_distance_loss([[0.0]], [[1.0]], [[1.5]], distance_function=far)
    tensor(0.5, dtype=float64)
    """
    op = "triplet_margin_with_distance_loss"
    distance = pairwise_distance if distance_function is None else user_code(distance_function)
    return _triplet(op, distance, anchor, positive, negative, margin, swap, reduction)


def _triplet(
    op: str,
    distance: Callable[..., Tensor],
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: Any,
    swap: bool,
    reduction: str,
) -> Tensor:
    a, near, far = floats(op, anchor), floats(op, positive), floats(op, negative)
    width = number(op, "margin", margin)
    if not width > 0:
        raise ArgumentError(f"{op}: margin must be positive, but is {margin}.")
    there = distance(a, far)
    if swap:
        there = rec.minimum(there, distance(near, far))
    return reduced(op, rec.relu(distance(a, near) - there + width), reduction)


# Modules ---------------------------------------------------------------------------------------


class _Triple(LossModule):
    """Base class of loss modules that are called with three tensors, such as ``TripletMarginLoss``."""

    def forward(self, first: ArrayLike, second: ArrayLike, third: ArrayLike) -> Tensor:  # type: ignore[override]  # one more
        """Return the loss.

        Parameters
        ----------
        first : array_like
            The first argument of the function.
        second : array_like
            The second one.
        third : array_like
            The third one.

        Returns
        -------
        Tensor
            The loss.
        """
        return self.function(first, second, third, **self.options)


class MarginRankingLoss(_Triple):
    """Module form of ``nn.functional.margin_ranking_loss``.

    >>> ad.nn.MarginRankingLoss()([1.0, 2.0], [2.0, 0.0], [1, 1])
    tensor(0.5, dtype=float64)
    """

    function = staticmethod(margin_ranking_loss)

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction, margin=margin)


class HingeEmbeddingLoss(LossModule):
    """Module form of ``nn.functional.hinge_embedding_loss``.

    >>> ad.nn.HingeEmbeddingLoss()([0.5, 0.25], [1, -1])
    tensor(0.625, dtype=float64)
    """

    function = staticmethod(hinge_embedding_loss)

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction, margin=margin)


class SoftMarginLoss(LossModule):
    """Module form of ``nn.functional.soft_margin_loss``.

    >>> ad.nn.SoftMarginLoss()([1000.0, -1000.0], [1, 1])
    tensor(500., dtype=float64)
    """

    function = staticmethod(soft_margin_loss)

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)


class CosineEmbeddingLoss(_Triple):
    """Module form of ``nn.functional.cosine_embedding_loss``.

    >>> ad.nn.CosineEmbeddingLoss()([[1.0, 0.0]], [[0.0, 2.0]], [1])
    tensor(1., dtype=float64)
    """

    function = staticmethod(cosine_embedding_loss)

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction, margin=margin)


class TripletMarginLoss(_Triple):
    """Module form of ``nn.functional.triplet_margin_loss``.

    >>> ad.nn.TripletMarginLoss(4.0, eps=0.0)([[0.0]], [[1.0]], [[3.0]])
    tensor(2., dtype=float64)
    """

    function = staticmethod(triplet_margin_loss)

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction, margin=margin, p=p, eps=eps, swap=swap)


class TripletMarginWithDistanceLoss(_Triple):
    """Module form of ``nn.functional.triplet_margin_with_distance_loss``.

    >>> ad.nn.TripletMarginWithDistanceLoss(margin=4.0)([[0.0]], [[1.0]], [[3.0]]).numpy().round(4)
    np.float64(2.0)
    """

    function = staticmethod(triplet_margin_with_distance_loss)

    def __init__(
        self,
        distance_function: Callable[..., Any] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction, distance_function=distance_function, margin=margin, swap=swap)
