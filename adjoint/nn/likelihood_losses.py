"""Negative log-likelihoods of Gaussians, counts and label sequences: functions and modules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.convert import array_of, asarray
from adjoint.core.docstrings import SharedDoc, shared_with
from adjoint.core.namespace import rec
from adjoint.core.shapes import number
from adjoint.core.tensor import Tensor, wrap
from adjoint.core.values import decide
from adjoint.errors import ArgumentError, DTypeError, IndexingError, ShapeError
from adjoint.nn.arguments import floats
from adjoint.nn.loss_reduction import LossModule, check_reduction, reduced, same_shape
from adjoint.nn.norms import like_input, widened_half
from adjoint.nn.shared_docs import loss_doc
from adjoint.ops.scatter import as_index
from adjoint.typing import Array, ArrayLike

__all__ = ["CTCLoss", "GaussianNLLLoss", "PoissonNLLLoss"]

_ctc_doc = SharedDoc("""
    Parameters
    ----------
    input_lengths : array_like of int
        The number of steps of each sequence.
    target_lengths : array_like of int
        The number of labels of each sequence.
    blank : int
        The class that means "no label".
    zero_infinity : bool
        Whether sequences whose labels do not fit into their steps have the loss 0 instead of inf.
    """)

_likelihood_doc = loss_doc.extended("""
    Parameters
    ----------
    full : bool
        Whether to add the constant ``log(2π) / 2``.
    log_input : bool
        Whether the prediction is the logarithm of the rate.
    eps : float
        Added to rates in the logarithm.
    """)


# Functions -------------------------------------------------------------------------------------


@_likelihood_doc
def gaussian_nll_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    var: ArrayLike,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Return the negative logarithm of the normal density of the target.

    Parameters
    ----------
    prediction : array_like
        The means.
    target : array_like
        The observed values, with the shape of the prediction.
    var : array_like
        The variances: with the shape of the prediction, one per row, or a number.
    eps : float
        The smallest variance.  The gradient ignores this limit, as in PyTorch.

    Raises
    ------
    ArgumentError
        If a variance is negative.

    >>> ad.nn.functional.gaussian_nll_loss([1.0], [3.0], [1.0])
    tensor(2., dtype=float64)
    """
    op = "gaussian_nll_loss"
    x, t = same_shape(op, prediction, target)
    v = floats(op, var)
    if v.shape != x.shape and v.shape == x.shape[:-1]:
        v = rec.reshape(v, shape=(*v.shape, 1))
    elif v.shape not in (x.shape, (*x.shape[:-1], 1), ()):
        raise ShapeError(
            f"{op}: the variances must be one number or have the shape {x.shape}, {(*x.shape[:-1], 1)} or "
            f"{x.shape[:-1]}, for a prediction of shape {x.shape}, but have shape {v.shape}."
        )
    least = number(op, "eps", eps)
    if decide(lambda a: bool((a < 0).any()), v):
        raise ArgumentError(f"{op}: variances must not be negative.")
    v = v + rec.relu(least - v.detach())  # at least eps, with the gradient of v
    loss = 0.5 * (rec.log(v) + rec.square(x - t) / v)
    return reduced(op, loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


@_likelihood_doc
def poisson_nll_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """Return the negative logarithm of the Poisson probability of the target, up to a constant.

    Parameters
    ----------
    prediction : array_like
        The rates, or their logarithms.
    target : array_like
        The observed counts, with the shape of the prediction.
    full : bool
        Whether to add Stirling's approximation of ``log(target!)`` for targets above 1.

    Raises
    ------
    ShapeError
        If the shapes differ.

    >>> ad.nn.functional.poisson_nll_loss([0.0], [3.0])
    tensor(1., dtype=float64)
    """
    op = "poisson_nll_loss"
    x, t = same_shape(op, prediction, target)
    loss = rec.exp(x) - t * x if log_input else x - t * rec.log(x + number(op, "eps", eps))
    if full:
        many = rec.where(t > 1, t, 1.0)
        stirling = many * rec.log(many) - many + 0.5 * rec.log(2 * math.pi * many)
        loss = loss + rec.where(t > 1, stirling, 0.0)
    return reduced(op, loss, reduction)


_NEVER = -1e30  # stands for log(0) = -inf, so that sums and their gradients stay finite


@_ctc_doc
def ctc_loss(
    log_probs: ArrayLike,
    targets: ArrayLike,
    input_lengths: ArrayLike,
    target_lengths: ArrayLike,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Return the connectionist temporal classification loss of label sequences.

    The loss is the negative logarithm of the probability of all alignments of the labels with the steps.

    Parameters
    ----------
    log_probs : array_like
        Logarithms of probabilities, ``(T, N, C)`` or ``(T, C)``, such as those of ``log_softmax``.
    targets : array_like of int
        The labels, ``(N, S)``; or those of all sequences joined in one vector.
    reduction : {"mean", "sum", "none"}
        How the losses of the sequences are combined.  "mean" divides each by its number of labels first.

    Returns
    -------
    Tensor
        The loss; one per sequence with ``reduction="none"``.

    Raises
    ------
    ShapeError
        If the shapes or the lengths do not match.
    IndexingError
        If a label is out of range.

    >>> steps = ad.log_softmax(ad.zeros((2, 1, 3)), axis=-1)  # 3 of 9 paths give the label 1
    >>> ad.nn.functional.ctc_loss(steps, [[1]], [2], [1]).numpy().round(6)
    np.float64(1.098612)
    """
    op = "ctc_loss"
    check_reduction(op, reduction)
    given = floats(op, log_probs)
    alone = given.ndim == 2
    x = widened_half(given)[:, None] if alone else widened_half(given)
    if x.ndim != 3 or not x.shape[0]:
        raise ShapeError(f"{op}: log_probs must have shape (T, N, C) or (T, C), but has shape {given.shape}.")
    steps, size, count = x.shape
    if not 0 <= blank < count:
        raise IndexingError(f"{op}: blank must be a class from 0 to {count - 1}, but is {blank}.")
    times, lengths = (_lengths(op, a, size) for a in (input_lengths, target_lengths))
    labels = _checked_labels(op, _label_rows(op, targets, lengths, size), times, lengths, steps, count, blank)
    loss = -_log_likelihood(x, labels, times, lengths, blank)
    loss = rec.where(loss > -_NEVER / 2, 0.0 if zero_infinity else math.inf, loss)
    if reduction == "mean":
        loss = loss / rec.astype(rec.maximum(lengths, 1), dtype=loss.dtype)
    loss = reduced(op, rec.reshape(loss, shape=()) if alone else loss, reduction)
    return like_input(loss, given)


def _checked_labels(
    op: str, labels: Tensor, times: Tensor, lengths: Tensor, steps: int, count: int, blank: int
) -> Tensor:
    """Return the labels, with ``blank`` behind the end of each row; raise if labels or lengths are wrong."""
    width = labels.shape[1]
    present = _before(width, lengths)
    decide(lambda a: _check_labels(op, a, count), rec.where(present, labels, 0))
    decide(lambda a: _check_lengths(op, "input_lengths", a, steps), times)
    decide(lambda a: _check_lengths(op, "target_lengths", a, width), lengths)
    return rec.where(present, labels, blank)


def _lengths(op: str, given: Any, size: int) -> Tensor:
    a = asarray(given)
    if a.size != size:
        raise ShapeError(
            f"{op}: there must be one length per sequence, but there are {size} sequences and {a.size} "
            "lengths."
        )
    if a.dtype.kind not in "iu":
        raise DTypeError(f"{op}: lengths must be integers, but have dtype {a.dtype}.")
    return rec.reshape(as_index(rec, a), shape=(size,))


def _label_rows(op: str, targets: Any, lengths: Tensor, size: int) -> Tensor:
    """Return the labels as a matrix with one row for each of the ``size`` sequences.

    ``targets`` is such a matrix, or a vector of the labels of all sequences, which is split by ``lengths``.
    """
    t = asarray(targets)
    if t.dtype.kind not in "iu" and t.size:
        raise DTypeError(f"{op}: labels must be integers, but have dtype {t.dtype}.")
    t = as_index(rec, t) if t.size else t.astype(np.intp)
    if t.ndim == 2 and t.shape[0] == size:
        return t
    if t.ndim != 1:
        raise ShapeError(
            f"{op}: for {size} sequences the targets must have shape ({size}, length) or be joined in one "
            f"vector, but have shape {t.shape}."
        )
    if size == 1:
        return rec.reshape(t, shape=(1, t.size))
    counts = array_of(lengths)
    if counts.sum() != t.size:
        raise ShapeError(
            f"{op}: target_lengths must add up to {t.size}, the number of labels, but add up to "
            f"{counts.sum()}."
        )
    rows = np.zeros((size, max(int(counts.max()), 1)), np.intp)
    rows[np.arange(rows.shape[1]) < counts[:, None]] = np.arange(t.size)
    return rec.take(t, rows, axis=-1) if t.size else wrap(rows)


def _before(count: int, lengths: Tensor) -> Tensor:
    """Return a mask of shape (sequences, count) that is True where column < length of the sequence."""
    return rec.less(wrap(np.arange(count)), rec.reshape(lengths, shape=(lengths.size, 1)))


def _check_labels(op: str, labels: Array, count: int) -> None:
    bad = labels[(labels < 0) | (labels >= count)]
    if bad.size:
        raise IndexingError(f"{op}: label {bad[0]} is out of range 0 … {count - 1}.")


def _check_lengths(op: str, name: str, lengths: Array, most: int) -> None:
    if lengths.size and not 0 <= lengths.min() <= lengths.max() <= most:
        raise ShapeError(f"{op}: {name} must be between 0 and {most}, but are {lengths.tolist()}.")


def _log_likelihood(x: Tensor, labels: Tensor, times: Tensor, lengths: Tensor, blank: int) -> Tensor:
    """Return log p(labels) for each sequence: the sum over all CTC alignments, by the forward recursion.

    ``x`` has log-probabilities (time, sequence, class); ``times`` and ``lengths`` are the numbers of time
    steps and of labels of each sequence.  The states are the labels with blanks between and around them.  In
    each step an alignment stays in its state, moves to the next state, or skips a blank between two different
    labels.
    """
    steps, size, _ = x.shape
    between = wrap(np.full((size, labels.shape[1]), blank))
    states = rec.reshape(rec.stack(between, labels, axis=-1), shape=(size, 2 * labels.shape[1]))
    states = rec.concat(states, wrap(np.full((size, 1), blank)), axis=-1)
    count = states.shape[1]
    seen = rec.take_along_axis(
        x, rec.broadcast_to(rec.reshape(states, shape=(1, size, count)), shape=(steps, size, count)), axis=-1
    )
    skips = rec.logical_and(rec.not_equal(states[:, 2:], blank), rec.not_equal(states[:, 2:], states[:, :-2]))
    ends = rec.reshape(2 * lengths, shape=(size, 1))
    place = wrap(np.arange(count))
    alpha = rec.where(rec.logical_and(place < 2, place <= ends), seen[0], _NEVER)
    for t in range(1, steps):
        moved = rec.pad(alpha[:, :-1], widths=((0, 0), (1, 0)), value=_NEVER)
        jumped = rec.pad(rec.where(skips, alpha[:, :-2], _NEVER), widths=((0, 0), (2, 0)), value=_NEVER)
        ways = rec.stack(alpha, moved, jumped[:, :count], axis=-1)
        ahead = rec.logsumexp(ways, axis=(-1,), keepdims=False) + seen[t]
        alpha = rec.where(rec.reshape(times > t, shape=(size, 1)), ahead, alpha)
    last = rec.logical_and(place <= ends, place >= ends - 1)
    total = rec.logsumexp(rec.where(last, alpha, _NEVER), axis=(-1,), keepdims=False)
    # without time steps the probability is 1 if there are no labels, otherwise 0
    nothing = rec.where(lengths == 0, wrap(np.zeros((), x.dtype)), _NEVER)
    return rec.where(times > 0, total, nothing)


# Modules ---------------------------------------------------------------------------------------


class GaussianNLLLoss(LossModule):
    """Module form of ``nn.functional.gaussian_nll_loss``.

    >>> ad.nn.GaussianNLLLoss()([1.0], [3.0], [1.0])
    tensor(2., dtype=float64)
    """

    function = staticmethod(gaussian_nll_loss)

    def __init__(self, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction, full=full, eps=eps)

    @shared_with(gaussian_nll_loss)
    def forward(self, prediction: ArrayLike, target: ArrayLike, var: ArrayLike) -> Tensor:  # type: ignore[override]  # one more
        """Return the loss of a prediction."""
        return self.function(prediction, target, var, **self.options)


class PoissonNLLLoss(LossModule):
    """Module form of ``nn.functional.poisson_nll_loss``.

    >>> ad.nn.PoissonNLLLoss()([0.0], [3.0])
    tensor(1., dtype=float64)
    """

    function = staticmethod(poisson_nll_loss)

    def __init__(
        self, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction, log_input=log_input, full=full, eps=eps)


class CTCLoss(LossModule):
    """Module form of ``nn.functional.ctc_loss``.

    >>> steps = ad.log_softmax(ad.zeros((2, 1, 3)), axis=-1)
    >>> ad.nn.CTCLoss()(steps, [[1]], [2], [1]).numpy().round(6)
    np.float64(1.098612)
    """

    function = staticmethod(ctc_loss)

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__(reduction, blank=blank, zero_infinity=zero_infinity)

    @shared_with(ctc_loss)
    def forward(  # type: ignore[override]  # two more
        self, log_probs: ArrayLike, targets: ArrayLike, input_lengths: ArrayLike, target_lengths: ArrayLike
    ) -> Tensor:
        """Return the loss of label sequences."""
        return self.function(log_probs, targets, input_lengths, target_lengths, **self.options)
