"""Embeddings, one-hot vectors and bags of embeddings: functions and modules."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.core.convert import array_of, asarray
from adjoint.core.docstrings import shared_with
from adjoint.core.namespace import rec
from adjoint.core.shapes import canonical_axis, whole_number
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import ArgumentError, DTypeError, ShapeError
from adjoint.nn import init
from adjoint.nn.arguments import classes, sizes, unusual
from adjoint.nn.module import Module, Parameter
from adjoint.nn.shared_docs import layer_doc
from adjoint.ops.create import zeros
from adjoint.ops.selection import take
from adjoint.typing import ArrayLike, DTypeLike

__all__ = ["Embedding", "EmbeddingBag"]

_embedding_doc = layer_doc.extended("""
    Parameters
    ----------
    indices : array_like of int
        Row numbers.
    sparse : bool
        Whether the gradient of a leaf weight stores only the rows that were used.
    num_embeddings : int
        The number of rows.
    embedding_dim : int
        The length of a row.
    dtype : dtype_like
        The dtype of the weight.
    mode : {"mean", "sum", "max"}
        How the rows of a bag are combined.
    include_last_offset : bool
        Whether the last offset is the end of the last bag.
    """)


@_embedding_doc
def embedding(
    indices: ArrayLike, weight: ArrayLike, padding_idx: int | None = None, *, sparse: bool = False
) -> Tensor:
    """Return the rows of a table at the given indices.

    Parameters
    ----------
    weight : array_like
        The table, with one row per index.
    padding_idx : int, optional
        A row that gets no gradient.

    Returns
    -------
    Tensor
        The rows, with shape ``(*indices.shape, *weight.shape[1:])``.

    Raises
    ------
    IndexingError
        If an index is out of range.

    >>> ad.nn.functional.embedding([2, 0], ad.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]))
    tensor([[4., 5.],
            [0., 1.]], dtype=float64)
    """
    w = asarray(weight)
    if w.ndim < 1:
        raise ShapeError(
            "embedding: the weight must have at least one axis, with one row per index, but is 0-d."
        )
    indices, _ = classes("embedding", indices, w.shape[0], words=("index", "indices"))
    out = take(w, indices, axis=0, sparse_grad=sparse)
    if padding_idx is None:
        return out
    row = canonical_axis("embedding (padding_idx)", padding_idx, w.shape[0]) + w.shape[0]
    hidden = rec.reshape(rec.equal(indices, row), shape=indices.shape + (1,) * (w.ndim - 1))
    return rec.where(hidden, out.detach(), out)


@_embedding_doc
def one_hot(indices: ArrayLike, num_classes: int | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """Return vectors with a 1 at each index, along a new last axis.

    Parameters
    ----------
    indices : array_like of int
        The positions of the ones.
    num_classes : int, optional
        The length of the vectors.  The default is the largest index plus 1.
    dtype : dtype_like, optional
        The dtype of the result.  The default is int64.

    Returns
    -------
    Tensor
        The vectors, with shape ``(*indices.shape, num_classes)``.

    Raises
    ------
    IndexingError
        If an index is out of range.

    >>> ad.nn.functional.one_hot([0, 2], 3)
    tensor([[1, 0, 0],
            [0, 0, 1]], dtype=int64)
    """
    i = asarray(indices)
    if num_classes is None:
        if not i.size:
            raise ArgumentError(
                "one_hot: there are no indices, so the number of classes is unknown.  Pass num_classes=."
            )
        num_classes = int(array_of(i).max()) + 1
    i, _ = classes("one_hot", i, num_classes)
    hot = rec.equal(rec.reshape(i, shape=(*i.shape, 1)), wrap(np.arange(num_classes)))
    return rec.astype(hot, dtype=np.dtype(np.int64 if dtype is None else dtype))


def _table(
    layer: str, num_embeddings: int, embedding_dim: int, padding_idx: int | None, *, rng: init.Rng, dtype: Any
) -> Tensor:
    """Return random initial weights of shape (num_embeddings, embedding_dim); row ``padding_idx`` is 0.

    Raise if ``padding_idx`` is out of range.  ``layer`` is the name of the caller, for the message.
    """
    table = init.normal((num_embeddings, embedding_dim), rng=rng, dtype=dtype)
    if padding_idx is None:
        return table
    place = whole_number(layer, "padding_idx", padding_idx)
    if not -num_embeddings <= place < num_embeddings:
        raise ArgumentError(
            f"{layer}: padding_idx must be from 0 to {num_embeddings - 1}, but is {padding_idx}."
        )
    return table.at[padding_idx].set(0.0)


@_embedding_doc
class Embedding(Module):
    """Look up rows of a trained table by index.

    Parameters
    ----------
    padding_idx : int, optional
        A row that starts at 0 and gets no gradient.
    sparse : bool
        Whether the gradient stores only the rows that were used.

    >>> ad.nn.Embedding(10, 4)([[1, 2, 3]]).shape
    (1, 3, 4)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        sparse: bool = False,
        *,
        rng: init.Rng = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        sizes("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx, self.sparse = padding_idx, sparse
        self.weight = Parameter(
            _table("Embedding", num_embeddings, embedding_dim, padding_idx, rng=rng, dtype=dtype)
        )

    @shared_with(embedding)
    def forward(self, indices: ArrayLike) -> Tensor:
        """Return the rows at the given indices."""
        return embedding(indices, self.weight, self.padding_idx, sparse=self.sparse)

    def extra_repr(self) -> str:
        """Return the size of the table and the options that are not the defaults, for the module's repr."""
        rest = {"padding_idx": (self.padding_idx, None), "sparse": (self.sparse, False)}
        return f"{self.num_embeddings}, {self.embedding_dim}" + unusual(rest)


@_embedding_doc
def embedding_bag(
    indices: ArrayLike,
    weight: ArrayLike,
    offsets: ArrayLike | None = None,
    mode: str = "mean",
    *,
    per_sample_weights: ArrayLike | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
    sparse: bool = False,
) -> Tensor:
    """Return the sum, mean or maximum of the rows of a table for each bag of indices.

    Parameters
    ----------
    indices : array_like of int
        Row numbers: (bags, length) for bags of equal length, or (n,) with ``offsets``.
    weight : array_like
        The table, with shape (rows, features).
    offsets : array_like of int, optional
        The position in ``indices`` at which each bag begins.
    per_sample_weights : array_like, optional
        Factors of the rows, with the shape of ``indices``; for ``mode="sum"`` only.
    padding_idx : int, optional
        Indices with this value are left out.

    Returns
    -------
    Tensor
        The result, with shape (bags, features); 0 for an empty bag.

    Raises
    ------
    ArgumentError
        If the offsets do not start at 0, decrease, or exceed the number of indices.

    >>> ad.nn.functional.embedding_bag([0, 1, 2], ad.eye(3), [0, 2], mode="sum")
    tensor([[1., 1., 0.],
            [0., 0., 1.]], dtype=float64)
    """
    w = asarray(weight)
    if w.ndim != 2:
        raise ShapeError(
            f"embedding_bag: the weight must have shape (rows, features), but has shape {w.shape}."
        )
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(f"embedding_bag: mode must be 'sum', 'mean' or 'max', not {mode!r}.")
    indices, _ = classes("embedding_bag", indices, w.shape[0], words=("index", "indices"))
    factors = _row_factors(per_sample_weights, mode, indices.shape)
    bag, count = _bags(indices, offsets, include_last_offset)
    flat = indices.reshape(indices.size)
    if padding_idx is not None:
        row = canonical_axis("embedding_bag (padding_idx)", padding_idx, w.shape[0]) + w.shape[0]
        keep = np.flatnonzero(array_of(flat) != row)
        flat, bag, factors = flat[keep], bag[keep], None if factors is None else factors[keep]
    rows = take(w, flat, axis=0, sparse_grad=sparse)
    return _pooled(rows if factors is None else rows * factors[:, None], bag, count, mode, w.dtype)


def _row_factors(given: Any, mode: str, shape: tuple[int, ...]) -> Tensor | None:
    """Return the factors of the rows as a vector, or None; raise if mode or shape do not allow them."""
    if given is None:
        return None
    factors = asarray(given)
    if mode != "sum" or factors.shape != shape:
        raise ArgumentError(
            "embedding_bag: per_sample_weights requires mode='sum' and must have the shape of the indices, "
            f"{shape}, but the mode is {mode!r} and its shape is {factors.shape}."
        )
    return factors.reshape(factors.size)


def _pooled(rows: Tensor, bag: Any, count: int, mode: str, dtype: Any) -> Tensor:
    """Return the sum, mean or maximum of the rows of ``count`` bags; ``bag`` has the bag of each row."""
    shape = (count, rows.shape[1])
    each = np.bincount(bag, minlength=count)[:, None]
    if mode == "max":
        lowest = zeros(shape, dtype=dtype) - np.inf
        return rec.where(wrap(each > 0), lowest.at[bag].max(rows), 0.0)
    total = zeros(shape, dtype=dtype).at[bag].add(rows)
    return total if mode == "sum" else total / wrap(np.maximum(each, 1).astype(dtype))


def _bags(indices: Tensor, offsets: Any, include_last_offset: bool) -> tuple[Any, int]:
    """Return an array with the index of the bag that contains each element, and the number of bags.

    ``offsets`` are the positions at which bags start.  With ``include_last_offset`` the last offset is the
    end of the last bag.
    """
    if indices.ndim == 2 and offsets is None:
        return np.repeat(np.arange(indices.shape[0]), indices.shape[1]), indices.shape[0]
    if indices.ndim != 1 or offsets is None:
        raise ShapeError(
            "embedding_bag: indices must have shape (bags, length), or (n,) with offsets=, "
            f"but have shape {indices.shape} {'with' if offsets is not None else 'without'} offsets."
        )
    starts = array_of(asarray(offsets))
    if starts.dtype.kind not in "iu":
        raise DTypeError(f"embedding_bag: offsets must be integers, but have dtype {starts.dtype}.")
    ends = np.append(starts, indices.size) if not include_last_offset else starts
    if (
        starts.ndim != 1
        or not len(starts)
        or ends[0] != 0
        or ends[-1] != indices.size
        or (np.diff(ends) < 0).any()
    ):
        raise ArgumentError(
            f"embedding_bag: offsets must start at 0, must not decrease, and must be at most {indices.size}, "
            f"the number of indices, but are {starts.tolist()}."
        )
    each = np.diff(ends)
    return np.repeat(np.arange(len(each)), each), len(each)


@_embedding_doc
class EmbeddingBag(Module):
    """Return the sum, mean or maximum of rows of a trained table, for bags of indices.

    Parameters
    ----------
    sparse : bool
        Whether the gradient stores only the rows that were used.
    padding_idx : int, optional
        A row that starts at 0 and is left out of the bags.

    >>> ad.nn.EmbeddingBag(10, 4)([1, 2, 3], offsets=[0, 2]).shape
    (2, 4)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        rng: init.Rng = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        sizes("EmbeddingBag", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        if mode not in ("sum", "mean", "max"):
            raise ArgumentError(f"EmbeddingBag: mode must be 'sum', 'mean' or 'max', not {mode!r}.")
        self.num_embeddings, self.embedding_dim, self.mode = num_embeddings, embedding_dim, mode
        self.sparse, self.include_last_offset, self.padding_idx = sparse, include_last_offset, padding_idx
        self.weight = Parameter(
            _table("EmbeddingBag", num_embeddings, embedding_dim, padding_idx, rng=rng, dtype=dtype)
        )

    @shared_with(embedding_bag)
    def forward(
        self,
        indices: ArrayLike,
        offsets: ArrayLike | None = None,
        per_sample_weights: ArrayLike | None = None,
    ) -> Tensor:
        """Look the indices up and combine the rows of each bag."""
        return embedding_bag(
            indices,
            self.weight,
            offsets,
            self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
            sparse=self.sparse,
        )

    def extra_repr(self) -> str:
        """Return the size of the table, the mode and the options that are not the defaults, for the repr."""
        rest = {"padding_idx": (self.padding_idx, None), "sparse": (self.sparse, False)}
        return f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode}" + unusual(rest)
