"""An index means the same in every integer dtype: values and gradients are those of int64, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn

F = nn.functional
Call = Callable[[Any, Any, Any], Any]
DTYPES = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
LENGTHS = (1, 5, 300, 70_000)  # more than int8, uint8, int16 and uint16 count to

# Functions of a tensor with two axes, an index of its first axis, and values that broadcast.
CALLS: dict[str, Call] = {
    "take": lambda x, i, v: ad.take(x, i, axis=0),
    "take of a later axis": lambda x, i, v: ad.take(x.mT, i, axis=1),
    "take of all elements": lambda x, i, v: ad.take(x, i),
    "take with sparse gradient": lambda x, i, v: ad.take(x, i, axis=0, sparse_grad=True),
    "take_along_axis": lambda x, i, v: ad.take_along_axis(x, i.reshape(-1, 1), axis=0),
    "take_along_axis of a later axis": lambda x, i, v: ad.take_along_axis(x.mT, i.reshape(1, -1), axis=1),
    "take_along_axis of all elements": lambda x, i, v: ad.take_along_axis(x, i.reshape(-1), axis=None),
    "put_along_axis": lambda x, i, v: ad.put_along_axis(
        x, ad.broadcast_to(i.reshape(-1, 1), (i.size, x.shape[1])), v, axis=0
    ),
    "x[i]": lambda x, i, v: x[i],
    "x[i, j]": lambda x, i, v: x[i, -1],
    "x.at[i].get": lambda x, i, v: x.at[i].get(),
    "x.at[i].set": lambda x, i, v: x.at[i].set(v),
    "x.at[i].add": lambda x, i, v: x.at[i].add(v),
}
# Not for an index inside a transform.
CALLS_OUTSIDE: dict[str, Call] = {
    "x[:, i]": lambda x, i, v: x.mT[:, i],
    "x.at[i].mul": lambda x, i, v: x.at[i].mul(v),
    "x.at[i].max": lambda x, i, v: x.at[i].max(v),
    "x.at[:, i].add": lambda x, i, v: x.mT.at[:, i].add(v),
}
# Of an index that is not negative.
CALLS_COUNTED: dict[str, Call] = {
    "F.embedding": lambda x, i, v: F.embedding(i, x),
    "F.embedding with padding_idx": lambda x, i, v: F.embedding(i, x, padding_idx=0),
    "F.embedding with sparse gradient": lambda x, i, v: F.embedding(i, x, sparse=True),
    "nll_loss": lambda x, i, v: F.nll_loss(_scores(x, i), i.reshape(-1)),
    "nll_loss with ignored class": lambda x, i, v: F.nll_loss(
        _scores(x, i), i.reshape(-1), ignore_index=0, reduction="sum"
    ),
    "nll_loss with weights": lambda x, i, v: F.nll_loss(
        _scores(x, i), i.reshape(-1), weight=abs(x[:, 0]) + 1
    ),
    "cross_entropy": lambda x, i, v: F.cross_entropy(_scores(x, i), i.reshape(-1), reduction="none"),
    "one_hot": lambda x, i, v: (F.one_hot(i, x.shape[0], x.dtype) * v).sum(axis=-1),
}


def _scores(x: Any, i: Any) -> Any:
    """One row of scores per index, a score for each row of x."""
    return ad.broadcast_to(x[:, 0], (i.size, x.shape[0])) * np.arange(1, i.size + 1, dtype=x.dtype)[:, None]


def drawn(rng: Any, dtype: Any, length: int, shape: tuple[int, ...], negative: bool) -> Any:
    """Indices that fit the dtype: the ends of its range, repeats, negative ones where there are any."""
    info = np.iinfo(dtype)
    low, high = max(-length, int(info.min)) if negative else 0, min(length - 1, int(info.max))
    i = rng.integers(low, high, shape, endpoint=True)
    if i.size > 1:
        i.flat[0], i.flat[-1] = low, high
    return i.astype(dtype)


def outcome(call: Call, x: Any, i: Any, v: Any, create_graph: bool = False) -> list[Any]:
    """The result and the gradients of x and v, as bytes."""
    leaves = [ad.tensor(x, requires_grad=True), ad.tensor(v, requires_grad=True)]
    y = call(leaves[0], i, leaves[1])
    seed = np.random.default_rng(1).normal(size=y.shape).astype(y.dtype)
    found = ad.gradients(y, leaves, seed, create_graph=create_graph, allow_unused=True)
    return [t if t is None else (t.shape, np.asarray(t.detach()).tobytes()) for t in (y, *found)]


def arguments(name: str, length: int) -> list[tuple[Any, Any, Any]]:
    """A tensor, an index and a value for every integer dtype and several shapes."""
    rng = np.random.default_rng([length, *name.encode()])
    found = []
    for dtype in DTYPES:
        for shape in ((4,), (2, 3), (0,), (300,)):
            scored = "nll" in name or "entropy" in name or "one_hot" in name
            if scored and (shape == (0,) or shape[0] * length > 1_000_000):
                continue  # a mean of nothing; scores that are too many
            i = drawn(rng, dtype, length, shape, name not in CALLS_COUNTED)
            x = rng.normal(size=(length, 2)).astype(np.float32)
            found.append((x, i, rng.uniform(0.9, 1.1, 1).astype(np.float32)))
    return found


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", [*CALLS, *CALLS_OUTSIDE, *CALLS_COUNTED])
def test_values_and_gradients_are_those_of_int64(name: str, length: int) -> None:
    call = {**CALLS, **CALLS_OUTSIDE, **CALLS_COUNTED}[name]
    for x, i, v in arguments(name, length):
        for create_graph in (False, True):
            expected = outcome(call, x, i.astype(np.int64), v, create_graph)
            assert outcome(call, x, i, v, create_graph) == expected, (i.dtype, i.shape)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", [*CALLS, *CALLS_COUNTED])
def test_values_and_gradients_inside_vmap_are_those_of_int64(name: str, length: int) -> None:
    call = {**CALLS, **CALLS_COUNTED}[name]
    for x, i, v in arguments(name, length):
        if i.size > 100:
            continue
        batch = np.stack([i, i[::-1]])
        for axes, xs in (((None, 0, None), x), ((0, 0, None), np.stack([x, -x]))):
            mapped = ad.vmap(call, in_axes=axes)
            expected = outcome(mapped, xs, batch.astype(np.int64), v)
            assert outcome(mapped, xs, batch, v) == expected, (i.dtype, i.shape, axes)


@pytest.mark.parametrize("mode", ["wrap", "clip"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_indices_out_of_range_wrap_and_clip(dtype: Any, mode: str) -> None:
    info = np.iinfo(dtype)
    top = min(info.max, 2**63 - 1)
    i = np.array([info.min, -1 if info.min else 1, 0, 100, top // 2, top], dtype)
    x = np.arange(301.0)
    y = ad.take(x, i, mode=mode)
    wide = i.astype(object)  # Python's whole numbers have no end
    np.testing.assert_array_equal(
        y.numpy(), x[(wide % 301 if mode == "wrap" else wide.clip(0, 300)).astype(int)]
    )


@pytest.mark.parametrize("call", [ad.take, lambda x, i: x[i], lambda x, i: x.at[i].get(), ad.take_along_axis])
def test_an_index_beyond_int64_is_out_of_range(call: Any) -> None:
    for value in (2**64 - 1, 2**63):
        with pytest.raises(ad.errors.IndexingError, match="out of range"):
            call(ad.arange(3.0), np.array([value], np.uint64))


def test_the_gradient_of_an_embedding_is_in_the_rows_that_were_used() -> None:
    i = np.array([7, 50, 99, 7, 3], np.uint8)
    w = ad.ones((100, 3)).requires_grad_()
    (F.embedding(i, w) * ad.ones(3)).sum().backward()
    assert w.grad is not None
    np.testing.assert_array_equal(w.grad.numpy()[:, 0], np.bincount(i, minlength=100))
    layer = nn.Embedding(300, 2, rng=0)
    layer(i).sum().backward()
    assert layer.weight.grad is not None
    np.testing.assert_array_equal(np.asarray(layer.weight.grad)[:, 1], np.bincount(i, minlength=300))


def test_positions_past_the_range_of_int32_are_not_computed_in_it() -> None:
    from adjoint.ops.scatter import along_positions, from_start, row_positions

    i = np.array([0, 2**20, -1], np.int32)
    rows = row_positions(from_start(i, 2**30), 1, 2**30, 2**12)[:: 2**12]
    assert rows.tolist() == [0, 2**32, (2**30 - 1) * 2**12]
    assert along_positions(i[:, None], 2**33, -2).tolist() == [0, 2**20, 2**33 - 1]


def test_numpy_functions_with_narrow_indices() -> None:
    x = ad.tensor(np.arange(300.0))
    i = np.array([0, 255, 3, 255], np.uint8)
    assert np.choose(np.array([-1, 5], np.int8), [x[0] + k for k in range(200)], mode="wrap").tolist() == [
        199,
        5,
    ]
    assert np.bincount(i, ad.ones(4))[255].item() == 2
    assert ad.repeat(ad.tensor([1.0, 2.0]), np.array([1, 200], np.uint8)).shape == (201,)
