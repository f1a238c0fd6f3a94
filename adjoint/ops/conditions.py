"""Elements chosen by conditions, and the positions of elements that are not zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint import words
from adjoint.core.convert import array_of, asarray
from adjoint.core.lifted import Unknown, located, refusal
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor, Traced
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.ops.selection import take
from adjoint.ops.shared_docs import argument_doc, flattened_doc
from adjoint.typing import ArrayLike

__all__ = ["argwhere", "compress", "extract", "flatnonzero", "nonzero", "select"]


@argument_doc
def select(condlist: Any, choicelist: Any, default: Any = 0) -> Tensor:
    """Return, for each element, the first choice whose condition is true.

    Parameters
    ----------
    condlist : sequence of array_like of bool
        The conditions.
    choicelist : sequence of array_like
        The choices, one for each condition.
    default : array_like, optional
        The value where no condition is true.

    Raises
    ------
    ArgumentError
        If the numbers of conditions and choices differ.

    >>> x = ad.tensor([-2.0, 0.5, 3.0])
    >>> ad.select([x < 0, x < 1], [-x, x * 10], default=9.0)
    tensor([2., 5., 9.], dtype=float64)
    """
    for given in (condlist, choicelist):
        if not isinstance(given, (list, tuple, Tensor, np.ndarray)):
            raise InputError(
                f"select: conditions and choices must be lists of tensors, but got {type(given).__name__}."
            )
    conditions, choices = list(condlist), list(choicelist)
    if len(conditions) != len(choices) or not choices:
        raise ArgumentError(
            "select: there must be one choice per condition, and at least one, but there are "
            f"{words.count(len(conditions), 'condition')} and {len(choices)} choices."
        )
    out = default
    for condition, choice in zip(reversed(conditions), reversed(choices), strict=True):
        chosen = asarray(condition)
        if chosen.dtype != bool:
            raise InputError(
                f"select: conditions must be boolean, but one has dtype {chosen.dtype}.  Pass x != 0 instead "
                "of x."
            )
        out = rec.where(chosen, choice, out)
    return out


def plain_values(op: str, x: Any) -> Any:
    x = asarray(x)
    if type(x) is Traced:
        traced = isinstance(x._data, Unknown)
        text = (
            f"{op}: the shape of the result depends on the values of x, which are unknown inside "
            f"{x._data.transform}.\n"
            "  Use ad.where(condition, x, y), or multiply by a mask."
        )
        raise refusal(InputError(located(text, traced)), traced)
    return array_of(x)


_places_doc = argument_doc.extended("""
    Raises
    ------
    InputError
        If ``x`` is inside a transform, where the shape of the result is unknown.
    """)


@flattened_doc
def nonzero(x: ArrayLike) -> tuple[Tensor, ...]:
    """Return the indices of the elements that are not zero.

    Returns
    -------
    tuple of Tensor
        The indices along each axis, which have no gradient.

    Raises
    ------
    ShapeError
        If ``x`` is 0-d.
    InputError
        If ``x`` is inside a transform, where the shape of the result is unknown.

    >>> ad.nonzero([0.0, 2.0, 3.0])
    (tensor([1, 2], dtype=int64),)
    """
    values = plain_values("nonzero", x)
    if values.ndim == 0:
        raise ShapeError("nonzero: a 0-d tensor has no positions.  Use ad.atleast_1d(x) first.")
    return tuple(asarray(i) for i in values.nonzero())


@_places_doc
def argwhere(x: ArrayLike) -> Tensor:
    """Return the positions of the elements that are not zero.

    Returns
    -------
    Tensor
        The positions, one in each row, which have no gradient.

    >>> ad.argwhere([[0, 1], [2, 0]])
    tensor([[0, 1],
            [1, 0]], dtype=int64)
    """
    return asarray(np.argwhere(plain_values("argwhere", x)))


@_places_doc
def flatnonzero(x: ArrayLike) -> Tensor:
    """Return the indices of the elements that are not zero in the flattened tensor.

    Returns
    -------
    Tensor
        The indices, which have no gradient.

    >>> ad.flatnonzero([[0, 1], [2, 0]])
    tensor([1, 2], dtype=int64)
    """
    return asarray(np.flatnonzero(plain_values("flatnonzero", x)))


@flattened_doc
def compress(condition: ArrayLike, x: ArrayLike, axis: int | None = None) -> Tensor:
    """Return the rows along an axis at which a condition is true.

    Parameters
    ----------
    condition : array_like of bool
        The condition, a vector.

    Raises
    ------
    ShapeError
        If the condition is not a vector.

    >>> ad.compress([True, False], ad.tensor([[1, 2], [3, 4]]), axis=0)
    tensor([[1, 2]], dtype=int64)
    """
    x, chosen = asarray(x), plain_values("compress", condition)
    if chosen.ndim != 1:
        raise ShapeError(f"compress: the condition must be a vector, but has shape {chosen.shape}.")
    return take(x, np.flatnonzero(chosen), axis)


@argument_doc
def extract(condition: ArrayLike, x: ArrayLike) -> Tensor:
    """Return the elements at which a condition is true, as a vector.

    Parameters
    ----------
    condition : array_like of bool
        The condition, with as many elements as ``x``.

    Raises
    ------
    ShapeError
        If the numbers of elements differ.

    >>> ad.extract([[True, False], [False, True]], ad.tensor([[1, 2], [3, 4]]))
    tensor([1, 4], dtype=int64)
    """
    x, chosen = asarray(x), plain_values("extract", condition)
    if chosen.size != x.size:
        raise ShapeError(
            f"extract: the condition must have as many elements as x, but the shapes are {chosen.shape} and "
            f"{x.shape}."
        )
    return take(x, np.flatnonzero(chosen))
