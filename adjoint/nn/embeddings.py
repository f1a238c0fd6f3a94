"""Rows of a table by index: functions and modules."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.core.convert import array_of, asarray
from adjoint.core.namespace import rec
from adjoint.core.shapes import canonical_axis, whole_number
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import ArgumentError, DTypeError, ShapeError
from adjoint.nn import init
from adjoint.nn.arguments import classes, sizes, unusual
from adjoint.nn.module import Module, Parameter
from adjoint.ops.create import zeros
from adjoint.ops.selection import take

__all__ = [
    "Embedding",
    "EmbeddingBag",
]


def embedding(indices: Any, weight: Any, padding_idx: int | None = None, *, sparse: bool = False) -> Tensor:
    """Return the rows of ``weight`` at whole-number ``indices``; the row ``padding_idx`` gets no gradient.

    With ``sparse=True`` the gradient of a weight that is a leaf has only the rows that were used.
    """
    w = asarray(weight)
    if w.ndim < 1:
        raise ShapeError("embedding: the weight has one row per index, but it is 0-d.")
    indices, _ = classes("embedding", indices, w.shape[0], words=("index", "indices"))
    out = take(w, indices, axis=0, sparse_grad=sparse)
    if padding_idx is None:
        return out
    row = canonical_axis("embedding (padding_idx)", padding_idx, w.shape[0]) + w.shape[0]
    hidden = rec.reshape(rec.equal(indices, row), shape=indices.shape + (1,) * (w.ndim - 1))
    return rec.where(hidden, out.detach(), out)


def one_hot(indices: Any, num_classes: int | None = None, dtype: Any = None) -> Tensor:
    """Return rows with a 1 at each index, in a new last axis; int64 unless ``dtype`` says otherwise.

    >>> import adjoint as ad
    >>> ad.nn.functional.one_hot([0, 2], 3)
    tensor([[1, 0, 0],
            [0, 0, 1]], dtype=int64)
    """
    i = asarray(indices)
    if num_classes is None:
        if not i.size:
            raise ArgumentError(
                "one_hot: without indices the number of classes is unknown; give num_classes=."
            )
        num_classes = int(array_of(i).max()) + 1
    i, _ = classes("one_hot", i, num_classes)
    hot = rec.equal(rec.reshape(i, shape=(*i.shape, 1)), wrap(np.arange(num_classes)))
    return rec.astype(hot, dtype=np.dtype(np.int64 if dtype is None else dtype))


def _table(
    layer: str, num_embeddings: int, embedding_dim: int, padding_idx: int | None, *, rng: Any, dtype: Any
) -> Tensor:
    """The initial rows; that of padding is 0."""
    table = init.normal((num_embeddings, embedding_dim), rng=rng, dtype=dtype)
    if padding_idx is None:
        return table
    place = whole_number(layer, "padding_idx", padding_idx)
    if not -num_embeddings <= place < num_embeddings:
        raise ArgumentError(f"{layer}: padding_idx is one of 0 … {num_embeddings - 1}, but is {padding_idx}.")
    return table.at[padding_idx].set(0.0)


class Embedding(Module):
    """Rows of a table by index; with ``sparse=True`` its gradient is the rows that were touched."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        sparse: bool = False,
        *,
        rng: Any = None,
        dtype: Any = np.float32,
    ) -> None:
        sizes("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx, self.sparse = padding_idx, sparse
        self.weight = Parameter(
            _table("Embedding", num_embeddings, embedding_dim, padding_idx, rng=rng, dtype=dtype)
        )

    def forward(self, indices: Any) -> Tensor:
        """Look the indices up."""
        return embedding(indices, self.weight, self.padding_idx, sparse=self.sparse)

    def extra_repr(self) -> str:
        """The size of the table, the row of padding, and whether gradients are sparse."""
        rest = {"padding_idx": (self.padding_idx, None), "sparse": (self.sparse, False)}
        return f"{self.num_embeddings}, {self.embedding_dim}" + unusual(rest)


def embedding_bag(
    indices: Any,
    weight: Any,
    offsets: Any = None,
    mode: str = "mean",
    *,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
    sparse: bool = False,
) -> Tensor:
    """Return the sum, mean or maximum of the rows of ``weight`` in each bag of ``indices``; 0 for no rows.

    Indices (bags, length) are bags of one length.  Indices (n,) come with ``offsets``: where each bag
    begins, and with ``include_last_offset=True`` where the last one ends.  Those that are ``padding_idx``
    do not count.  ``per_sample_weights`` are factors of the rows of a sum.

    >>> import adjoint as ad
    >>> ad.nn.functional.embedding_bag([0, 1, 2], ad.eye(3), [0, 2], mode="sum")
    tensor([[1., 1., 0.],
            [0., 0., 1.]], dtype=float64)
    """
    w = asarray(weight)
    if w.ndim != 2:
        raise ShapeError(f"embedding_bag: the weight is (rows, features), but has shape {w.shape}.")
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(f"embedding_bag: mode is 'sum', 'mean' or 'max', not {mode!r}.")
    indices, _ = classes("embedding_bag", indices, w.shape[0], words=("index", "indices"))
    factors = None if per_sample_weights is None else asarray(per_sample_weights)
    if factors is not None and (mode != "sum" or factors.shape != indices.shape):
        raise ArgumentError(
            "embedding_bag: per_sample_weights are for mode='sum', and have the shape of the indices, "
            f"{indices.shape}; here are mode={mode!r} and the shape {factors.shape}."
        )
    bag, count = _bags(indices, offsets, include_last_offset)
    flat = indices.reshape(indices.size)
    factors = None if factors is None else factors.reshape(indices.size)
    if padding_idx is not None:
        row = canonical_axis("embedding_bag (padding_idx)", padding_idx, w.shape[0]) + w.shape[0]
        keep = np.flatnonzero(array_of(flat) != row)
        flat, bag, factors = flat[keep], bag[keep], None if factors is None else factors[keep]
    rows = take(w, flat, axis=0, sparse_grad=sparse)
    if factors is not None:
        rows = rows * factors[:, None]
    each = np.bincount(bag, minlength=count)[:, None]
    if mode == "max":
        lowest = zeros((count, w.shape[1]), dtype=w.dtype) - np.inf
        return rec.where(wrap(each > 0), lowest.at[bag].max(rows), 0.0)
    total = zeros((count, w.shape[1]), dtype=w.dtype).at[bag].add(rows)
    return total if mode == "sum" else total / wrap(np.maximum(each, 1).astype(w.dtype))


def _bags(indices: Tensor, offsets: Any, include_last_offset: bool) -> tuple[Any, int]:
    """The bag of each index, and how many bags there are."""
    if indices.ndim == 2 and offsets is None:
        return np.repeat(np.arange(indices.shape[0]), indices.shape[1]), indices.shape[0]
    if indices.ndim != 1 or offsets is None:
        raise ShapeError(
            "embedding_bag: indices are (bags, length), or (n,) with offsets=, "
            f"but have shape {indices.shape} and offsets {'are' if offsets is not None else 'are not'} given."
        )
    starts = array_of(asarray(offsets))
    if starts.dtype.kind not in "iu":
        raise DTypeError(f"embedding_bag: offsets are whole numbers, but got {starts.dtype}.")
    ends = np.append(starts, indices.size) if not include_last_offset else starts
    if (
        starts.ndim != 1
        or not len(starts)
        or ends[0] != 0
        or ends[-1] != indices.size
        or (np.diff(ends) < 0).any()
    ):
        raise ArgumentError(
            f"embedding_bag: offsets begin at 0 and grow to at most {indices.size}, the number of indices, "
            f"but are {starts.tolist()}."
        )
    each = np.diff(ends)
    return np.repeat(np.arange(len(each)), each), len(each)


class EmbeddingBag(Module):
    """The sum, mean or maximum of rows of a table, for bags of indices."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        rng: Any = None,
        dtype: Any = np.float32,
    ) -> None:
        sizes("EmbeddingBag", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        if mode not in ("sum", "mean", "max"):
            raise ArgumentError(f"EmbeddingBag: mode is 'sum', 'mean' or 'max', not {mode!r}.")
        self.num_embeddings, self.embedding_dim, self.mode = num_embeddings, embedding_dim, mode
        self.sparse, self.include_last_offset, self.padding_idx = sparse, include_last_offset, padding_idx
        self.weight = Parameter(
            _table("EmbeddingBag", num_embeddings, embedding_dim, padding_idx, rng=rng, dtype=dtype)
        )

    def forward(self, indices: Any, offsets: Any = None, per_sample_weights: Any = None) -> Tensor:
        """Look the indices up and reduce each bag; see ``nn.functional.embedding_bag``."""
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
        """The size of the table, the mode, and what is not as usual."""
        rest = {"padding_idx": (self.padding_idx, None), "sparse": (self.sparse, False)}
        return f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode}" + unusual(rest)
