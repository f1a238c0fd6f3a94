"""Distinct values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.shapes import canonical_axis
from adjoint.core.tensor import Tensor
from adjoint.ops.conditions import plain_values
from adjoint.ops.half import wide
from adjoint.ops.shared_docs import argument_doc
from adjoint.typing import ArrayLike

__all__ = ["unique", "unique_all", "unique_counts", "unique_inverse", "unique_values"]


class UniqueAll(NamedTuple):
    """Result of ``unique_all``: values, first indices, index of the value of each element, counts."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """Result of ``unique_counts``: values and counts."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """Result of ``unique_inverse``: values and the index of the value of each element."""

    values: Tensor
    inverse_indices: Tensor


@argument_doc
def unique_all(x: ArrayLike) -> UniqueAll:
    """Return the unique values, their first indices, the inverse indices and the counts.

    Gradients of the values go to their first positions.  Every NaN is a value of its own.

    Returns
    -------
    UniqueAll
        A named tuple with ``values``, ``indices``, ``inverse_indices`` and ``counts``.

    >>> ad.unique_all([2, 1, 2]).indices
    tensor([1, 0], dtype=int64)
    """
    x = asarray(x)
    found = np.unique(
        wide(plain_values("unique", x)),
        return_index=True,
        return_inverse=True,
        return_counts=True,
        equal_nan=False,
    )
    values = rec.take(rec.reshape(x, shape=(x.size,)), asarray(found[1]), axis=-1)
    return UniqueAll(values, asarray(found[1]), asarray(found[2].reshape(x.shape)), asarray(found[3]))


@argument_doc
def unique_counts(x: ArrayLike) -> UniqueCounts:
    """Return the unique values and how often each occurs.

    Returns
    -------
    UniqueCounts
        A named tuple with ``values`` and ``counts``.

    >>> ad.unique_counts([2, 1, 2]).counts
    tensor([1, 2], dtype=int64)
    """
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


@argument_doc
def unique_inverse(x: ArrayLike) -> UniqueInverse:
    """Return the unique values and, for each element, the index of its value.

    Returns
    -------
    UniqueInverse
        A named tuple with ``values`` and ``inverse_indices``.

    >>> ad.unique_inverse([2, 1, 2]).inverse_indices
    tensor([1, 0, 1], dtype=int64)
    """
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


@argument_doc
def unique_values(x: ArrayLike) -> Tensor:
    """Return the unique values, sorted; every NaN is a value of its own.

    >>> ad.unique_values([2, 1, 2])
    tensor([1, 2], dtype=int64)
    """
    return unique_all(x).values


@argument_doc
def unique(
    x: ArrayLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
) -> Any:
    """Return the unique values, or unique rows along an axis, sorted.

    Gradients of the values go to their first positions.

    Parameters
    ----------
    return_index : bool, optional
        Whether to return the first index of each value, too.
    return_inverse : bool, optional
        Whether to return the index of the value of each element, too.
    return_counts : bool, optional
        Whether to return how often each value occurs, too.
    axis : int, optional
        The axis along which rows are compared; by default the elements are compared.
    equal_nan : bool, optional
        Whether all NaNs are one value.

    Returns
    -------
    Tensor or tuple of Tensor
        The values, followed by the requested index tensors.

    >>> ad.unique(ad.tensor([2.0, 1.0, 2.0]))
    tensor([1., 2.], dtype=float64)
    """
    x = asarray(x)
    if axis is not None:
        axis = canonical_axis("unique", axis, x.ndim)
    found = np.unique(
        wide(plain_values("unique", x)),
        return_index=True,
        return_inverse=True,
        return_counts=True,
        axis=axis,
        equal_nan=equal_nan,
    )
    flat = x if axis is not None else rec.reshape(x, shape=(x.size,))
    values = rec.take(flat, asarray(found[1]), axis=-1 if axis is None else axis)
    chosen = [
        asarray(f)
        for f, want in zip(found[1:], (return_index, return_inverse, return_counts), strict=True)
        if want
    ]
    return (values, *chosen) if chosen else values
