"""Reductions, shapes, indexing and order against PyTorch: values, gradients, double backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjoint as ad

torch = pytest.importorskip("torch")

from oracle import Row, agree, complex_, exactly, real  # noqa: E402  after importorskip

_TIES = [[2.0, 5.0, 5.0], [1.0, 1.0, 1.0]]
_ZEROS = [[2.0, 0.0, -1.5], [0.0, 0.0, 3.0], [1.0, 2.0, 3.0]]
_INDEX = np.array([[0, 2, 2], [1, 1, 0]])


def t(index: Any) -> Any:
    return torch.from_numpy(np.asarray(index))


REDUCE = [
    *(Row(n, lambda x, n=n: getattr(ad, n)(x), lambda x, n=n: getattr(torch, n)(x), real((2, 3)), "all")
      for n in ("sum", "mean", "prod")),
    *(Row(n, lambda x, n=n: getattr(ad, n)(x, axis=1), lambda x, n=n: getattr(torch, n)(x, 1), make(shape), str(shape))
      for n in ("sum", "mean", "prod", "cumsum", "cumprod") for make in (real, complex_)
      for shape in ((2, 3), (3, 1, 2)) if n != "prod" or (make, shape) == (real, (2, 3))),
    *(Row(f"{n} {k}", lambda x, n=n, k=k: getattr(ad, n)(x, axis=(0, -1), keepdims=k),
          lambda x, n=n, k=k: getattr(torch, n)(x, (0, -1), keepdim=k), real((2, 3, 4)))
      for n in ("sum", "mean", "logsumexp") for k in (True, False)),
    *(Row(n, lambda x, n=n: getattr(ad, n)(x, axis=1), lambda x, n=n: getattr(torch, f"a{n}")(x, 1), make, note)
      for n in ("max", "min") for make, note in ((real((3, 4)), "smooth"), (exactly(_TIES), "ties"))),
    Row("max", ad.max, torch.max, exactly(_TIES), "all ties"),
    *(Row(f"{n} {c}", lambda x, n=n, c=c: getattr(ad, n)(x, axis=(0, 2), correction=c),
          lambda x, n=n, c=c: getattr(torch, n)(x, (0, 2), correction=c), make((2, 3, 4)))
      for n in ("var", "std") for c in (0, 1) for make in (real, complex_)),
    *(Row(n, lambda x, n=n: getattr(ad, n)(x, axis=1), lambda x, n=n: getattr(torch, n)(x, 1), exactly(_ZEROS), "zeros")
      for n in ("prod", "cumprod")),
    Row("std", ad.std, lambda x: torch.std(x, correction=0), exactly([2.0, 2.0]), "at zero", order=0),
    Row("logsumexp", lambda x: ad.logsumexp(x, axis=1), lambda x: torch.logsumexp(x, 1),
        exactly([[1e3, -1e3], [-np.inf, 2.0]]), "extreme", order=1),
    Row("median", lambda x: ad.median(x, axis=1), lambda x: torch.median(x, 1).values, real((3, 5)), "odd"),
    Row("quantile", lambda x: ad.quantile(x, 0.3, axis=1), lambda x: torch.quantile(x, 0.3, 1), real((3, 5))),
    Row("quantile", lambda x: ad.quantile(x, [0.1, 0.5, 0.9], axis=0),
        lambda x: torch.quantile(x, t([0.1, 0.5, 0.9]), 0), real((4, 3)), "several"),
    Row("nansum", lambda x: ad.nansum(x, axis=1), lambda x: torch.nansum(x, 1), exactly([[1.0, np.nan], [2.0, 3.0]])),
    Row("nanmean", lambda x: ad.nanmean(x, axis=1), lambda x: torch.nanmean(x, 1), exactly([[1.0, np.nan], [2.0, 3.0]])),
    Row("diff", lambda x: ad.diff(x, 2, axis=1), lambda x: torch.diff(x, 2, 1), real((2, 5))),
    Row("cumulative_sum", lambda x: ad.cumulative_sum(x, axis=0), lambda x: torch.cumsum(x, 0), real((3, 2))),
    Row("ptp", lambda x: ad.ptp(x, axis=1), lambda x: torch.amax(x, 1) - torch.amin(x, 1), real((2, 4))),
    *(Row(n, getattr(ad, n), getattr(torch, n), real((2, 3)), order=0) for n in ("argmax", "argmin", "count_nonzero")),
]  # fmt: skip

SHAPE = [
    Row("reshape", lambda x: ad.reshape(x, (3, -1)), lambda x: torch.reshape(x, (3, -1)), complex_((2, 3))),
    Row("permute_dims", lambda x: ad.permute_dims(x, (2, 0, 1)), lambda x: torch.permute(x, (2, 0, 1)), real((2, 3, 4))),
    Row("moveaxis", lambda x: ad.moveaxis(x, (0, 1), (-1, 0)), lambda x: torch.moveaxis(x, (0, 1), (-1, 0)), real((2, 3, 4))),
    Row("swapaxes", lambda x: ad.swapaxes(x, 0, 2), lambda x: torch.swapaxes(x, 0, 2), real((2, 3, 4))),
    Row("broadcast_to", lambda x: ad.broadcast_to(x, (2, 3, 4)), lambda x: torch.broadcast_to(x, (2, 3, 4)), real((3, 1))),
    Row("concat", lambda *xs: ad.concat(xs, axis=1), lambda *xs: torch.concat(xs, 1), real((2, 3), (2, 1))),
    Row("stack", lambda *xs: ad.stack(xs, axis=1), lambda *xs: torch.stack(xs, 1), real((2, 3), (2, 3))),
    *(Row(n, lambda *xs, n=n: getattr(ad, n)(xs), lambda *xs, n=n: getattr(torch, n)(xs), real((2, 2), (2, 2)))
      for n in ("hstack", "vstack", "dstack", "column_stack")),
    Row("unstack", lambda x: ad.unstack(x, axis=1), lambda x: torch.unbind(x, 1), real((2, 3))),
    Row("array_split", lambda x: ad.array_split(x, 3), lambda x: torch.tensor_split(x, 3), real((7, 2))),
    Row("flip", lambda x: ad.flip(x, (0, 1)), lambda x: torch.flip(x, (0, 1)), real((2, 3))),
    Row("roll", lambda x: ad.roll(x, (1, -2), (0, 1)), lambda x: torch.roll(x, (1, -2), (0, 1)), real((2, 3))),
    Row("rot90", lambda x: ad.rot90(x, 3, (0, 2)), lambda x: torch.rot90(x, 3, (0, 2)), real((2, 3, 4))),
    Row("repeat", lambda x: ad.repeat(x, 3, axis=0), lambda x: torch.repeat_interleave(x, 3, 0), real((2, 3))),
    Row("repeat", lambda x: ad.repeat(x, [2, 0, 1], axis=1),
        lambda x: torch.repeat_interleave(x, t([2, 0, 1]), 1), real((2, 3)), "each"),
    Row("tile", lambda x: ad.tile(x, (2, 1, 2)), lambda x: torch.tile(x, (2, 1, 2)), real((2, 3))),
    Row("diagonal", lambda x: ad.diagonal(x, 1, 0, 2), lambda x: torch.diagonal(x, 1, 0, 2), real((3, 2, 4))),
    Row("diag", lambda x: ad.diag(x, -1), lambda x: torch.diag(x, -1), complex_((3,))),
    Row("diag", lambda x: ad.diag(x, 1), lambda x: torch.diag(x, 1), real((3, 4)), "of a matrix"),
    *(Row(n, lambda x, n=n, k=k: getattr(ad, n)(x, k), lambda x, n=n, k=k: getattr(torch, n)(x, k), real((2, 3, 4)), str(k))
      for n in ("tril", "triu") for k in (-1, 0, 2)),
    Row("kron", ad.kron, torch.kron, real((2, 3), (3, 2))),
    Row("kron", ad.kron, torch.kron, complex_((2,), (3, 2)), "complex"),
    Row("meshgrid", lambda *xs: ad.meshgrid(*xs, indexing="ij"), lambda *xs: torch.meshgrid(*xs, indexing="ij"), real((2,), (3,))),
    Row("sliding_window_view", lambda x: ad.sliding_window_view(x, 3, axis=1), lambda x: x.unfold(1, 3, 1), real((2, 6))),
    Row("pad", lambda x: ad.pad(x, ((0, 0), (0, 0), (2, 1)), mode="reflect"),
        lambda x: torch.nn.functional.pad(x, (2, 1), mode="reflect"), real((1, 2, 4))),
]  # fmt: skip

INDEX = [
    Row("index", lambda x: x[[0, 2, 2]], lambda x: x[[0, 2, 2]], complex_((3, 2)), "repeats"),
    Row("index", lambda x: x[:, [1, 1], None], lambda x: x[:, [1, 1], None], real((2, 3, 2)), "mixed"),
    Row("index", lambda x: x[1, ..., ::2], lambda x: x[1, ..., ::2], real((2, 3, 5)), "basic"),
    Row("index", lambda x: x[x.detach() > 0], lambda x: x[x.detach() > 0], real((2, 3)), "mask"),
    Row("take", lambda x: ad.take(x, _INDEX), lambda x: torch.take(x, t(_INDEX)), real((2, 3))),
    Row("take", lambda x: ad.take(x, [2, 0, 2], axis=1), lambda x: torch.index_select(x, 1, t([2, 0, 2])), real((2, 3, 2)), "axis"),
    Row("embedding", lambda x: ad.nn.functional.embedding(_INDEX, x), lambda x: torch.nn.functional.embedding(t(_INDEX), x), real((4, 3))),
    Row("take_along_axis", lambda x: ad.take_along_axis(x, _INDEX, axis=1), lambda x: torch.gather(x, 1, t(_INDEX)), real((2, 3))),
    Row("take_along_axis", lambda x: ad.take_along_axis(x, _INDEX, axis=0),
        lambda x: torch.take_along_dim(x, t(_INDEX), 0), real((3, 1)), "broadcast"),
    Row("put_along_axis", lambda x, v: ad.put_along_axis(x, [[0, 2], [1, 0]], v, axis=1),
        lambda x, v: torch.scatter(x, 1, t([[0, 2], [1, 0]]), v), real((2, 3), (2, 2))),
    Row("at add", lambda x, v: x.at[[0, 2, 2]].add(v), lambda x, v: torch.index_add(x, 0, t([0, 2, 2]), v), real((3, 2), (3, 2))),
    Row("at set", lambda x, v: x.at[[2, 0]].set(v), lambda x, v: torch.index_copy(x, 0, t([2, 0]), v), real((3, 2), (2, 2))),
    Row("where", lambda c, x, y: ad.where(c, x, y), torch.where, lambda rng: (rng.random((2, 3)) > 0.5, *real((2, 3), (3,))(rng))),
    Row("sort", lambda x: ad.sort(x, axis=0), lambda x: torch.sort(x, 0).values, real((5, 2))),
    Row("sort", lambda x: ad.sort(x, descending=True), lambda x: torch.sort(x, descending=True, stable=True).values,
        exactly(_TIES), "ties"),
    Row("argsort", lambda x: ad.argsort(x, descending=True), lambda x: torch.argsort(x, descending=True, stable=True),
        exactly(_TIES), order=0),
    Row("topk", lambda x: ad.topk(x, 3, axis=0), lambda x: tuple(torch.topk(x, 3, 0)), real((6, 2))),
    Row("topk", lambda x: ad.topk(x, 2, largest=False), lambda x: tuple(torch.topk(x, 2, largest=False)), real((2, 20)), "smallest"),
    Row("searchsorted", lambda v: ad.searchsorted([0.0, 0.5, 1.0], v), lambda v: torch.searchsorted(t([0.0, 0.5, 1.0]), v),
        real((2, 3)), order=0),
    Row("unique", lambda x: ad.unique(x, return_inverse=True, return_counts=True),
        lambda x: torch.unique(x, return_inverse=True, return_counts=True), exactly([3.0, 1.0, 3.0]), order=0),
]  # fmt: skip


@pytest.mark.oracle
@pytest.mark.parametrize("row", [*REDUCE, *SHAPE, *INDEX], ids=str)
def test_agrees_with_torch(row: Row) -> None:
    agree(row)


@pytest.mark.oracle
def test_the_gradient_of_an_extreme_that_is_nan_goes_where_torchs_does() -> None:
    a = np.array([1.0, np.nan, 3.0, np.nan])
    ours, theirs = ad.tensor(a, requires_grad=True), torch.tensor(a, requires_grad=True)
    ours.max().backward()
    theirs.max().backward()
    assert ours.grad.tolist() == theirs.grad.tolist()
