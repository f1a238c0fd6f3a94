"""Reductions of losses, and the base class of loss modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from adjoint.context import reductions as _reductions
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, ShapeError
from adjoint.nn.arguments import floats
from adjoint.nn.function_module import FunctionModule
from adjoint.ops.half import widened
from adjoint.ops.reduce import narrowed
from adjoint.typing import ArrayLike

__all__ = [
    "LossModule", "check_reduction", "is_noting", "mean_over", "noted", "noting_reductions", "reduced",
    "same_shape", "sum_all",
]  # fmt: skip


Reductions = list[tuple[Tensor, float | None]]


@contextmanager
def noting_reductions(found: Reductions | None) -> Iterator[None]:
    """Return a context manager that records the loss functions called inside its block in ``found``.

    A pair (result, share) is appended for each call.  The share of a mean is the total weight of its rows
    divided by the number of rows: it is 1 unless rows are ignored or weighted.  The share of a sum is None.
    With ``found=None`` nothing is recorded.
    """
    before = _reductions.get()
    _reductions.set(found)
    try:
        yield
    finally:
        _reductions.set(before)


def is_noting() -> bool:
    """Return whether loss functions are being recorded by ``noting_reductions``."""
    return _reductions.get() is not None


def noted(loss: Tensor, share: float | None = 1.0) -> Tensor:
    """Record a loss and its share if ``noting_reductions`` is active; return the loss."""
    found = _reductions.get()
    if found is not None:
        found.append((loss, share))
    return loss


def sum_all(loss: Tensor) -> Tensor:
    """Return the sum of all elements of ``loss``."""
    return rec.sum(loss, axis=tuple(range(-loss.ndim, 0)), keepdims=False)


def reduced(op: str, loss: Tensor, reduction: str) -> Tensor:
    """Return the mean or the sum of all elements of a loss; with "none", return the loss unchanged.

    Raise for an unknown reduction.  ``op`` is the name of the caller, for the message.
    """
    if reduction == "none":
        return loss
    if reduction == "mean":
        return noted(rec.mean(loss, axis=tuple(range(-loss.ndim, 0)), keepdims=False))
    check_reduction(op, reduction)
    return noted(sum_all(loss), None)


def check_reduction(op: str, reduction: Any) -> None:
    """Raise if ``reduction`` is not 'mean', 'sum' or 'none'."""
    if reduction not in ("mean", "sum", "none"):
        raise ArgumentError(f"{op}: reduction must be 'mean', 'sum' or 'none', not {reduction!r}.")


def mean_over(loss: Tensor, divisor: Any) -> Tensor:
    """Return the sum of all elements of ``loss`` divided by ``divisor``; half precision uses float32."""
    return narrowed(sum_all(widened(rec, loss)) / divisor, loss.dtype)


def same_shape(op: str, prediction: ArrayLike, target: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return the prediction and the target as float tensors; raise if their shapes differ."""
    x, t = floats(op, prediction), floats(op, target)
    if x._data.shape != t._data.shape:
        raise ShapeError(
            f"{op}: the prediction and the target must have the same shape, but have {x.shape} and "
            f"{t.shape}.\n"
            "  Reshape one of them: broadcasting would compare each element with many others."
        )
    return x, t


class LossModule(FunctionModule):
    """Base class of losses of a prediction and a target."""

    reductions: tuple[str, ...] = ("mean", "sum", "none")

    def __init__(self, reduction: str = "mean", **options: Any) -> None:
        if not isinstance(reduction, str) or reduction not in self.reductions:
            *others, last = map(repr, self.reductions)
            raise ArgumentError(
                f"{type(self).__name__}: reduction must be {', '.join(others)} or {last}, not {reduction!r}."
            )
        self.options = {**options, "reduction": reduction}

    def forward(self, prediction: ArrayLike, target: ArrayLike) -> Tensor:
        """Return the loss of a prediction.

        Parameters
        ----------
        prediction : array_like
            The output of a model.
        target : array_like
            The expected values.

        Returns
        -------
        Tensor
            The loss.
        """
        return self.function(prediction, target, **self.options)
