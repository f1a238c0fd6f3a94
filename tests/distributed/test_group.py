"""Groups of ranks: collectives, fixed order, failures; ranks are threads here, processes in test_mpi."""

from __future__ import annotations

import itertools
import math
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import adjoint as ad
from adjoint import distributed
from adjoint.distributed.order import PieceSum, share, tree_sum
from adjoint.errors import ArgumentError, InputError, RankError


def pairwise(values: list[float]) -> float:
    """The same order, by recursion on powers of two."""
    if len(values) == 1:
        return values[0]
    half = 1 << (len(values) - 1).bit_length() - 1
    return pairwise(values[:half]) + pairwise(values[half:])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_sums_have_one_order(values: list[float]) -> None:
    arrays = [np.array([v]) for v in values]
    assert tree_sum([a.copy() for a in arrays])[0] == pairwise(values)
    running = PieceSum()
    for a in arrays:
        running.add(a.copy())
    total = running.total()
    assert total is not None and total[0] == pairwise(values)
    assert running.total() is None


@given(st.integers(0, 1000), st.integers(1, 64))
def test_shares_are_a_partition(count: int, size: int) -> None:
    parts = [share(count, size, rank) for rank in range(size)]
    assert parts[0][0] == 0 and parts[-1][1] == count
    assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))
    lengths = {b - a for a, b in parts}
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_collectives(size: int) -> None:
    rng = np.random.default_rng(0)
    given_ = rng.standard_normal((size, 3, 5))

    def work(group: distributed.Group) -> Any:
        total = group.sum(given_[group.rank])
        started = np.array([float(group.rank)])
        group.broadcast(started, root=size - 1)
        group.barrier()
        group.agree("facts", {"a": 1})
        return total, started[0], group.gather((group.rank, "x" * 5000 * group.rank)), repr(group)

    found = distributed.simulate(size, work)
    expected = tree_sum([a.copy() for a in given_])
    for total, started, gathered, shown in found:
        assert total.tobytes() == expected.tobytes()
        assert started == size - 1
        assert gathered == [(r, "x" * 5000 * r) for r in range(size)]
        assert f"size={size}" in shown


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (2, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128, np.int64])
def test_sums_of_any_shape_and_dtype(shape: tuple[int, ...], dtype: Any) -> None:
    a = np.ones(shape, dtype)
    for total in distributed.simulate(3, lambda group: group.sum(a)):
        assert total.shape == shape and total.dtype == dtype and (total == 3).all()


def test_an_error_of_one_rank_is_raised_and_told_to_all() -> None:
    heard: dict[int, str] = {}

    def work(group: distributed.Group) -> None:
        if group.rank == 1:
            raise ValueError("rows are missing")
        try:
            group.sum(np.ones(3))
        except RankError as error:
            heard[group.rank] = str(error)
            with pytest.raises(RankError, match="rank 1 raised"):
                group.gather(None)  # the group stays broken
            raise

    with pytest.raises(ValueError, match="rows are missing"):
        distributed.simulate(3, work)
    assert heard.keys() == {0, 2}
    assert all(
        "rank 1 raised ValueError: rows are missing" in text and "in work" in text for text in heard.values()
    )


def test_a_rank_that_ends_early_is_named() -> None:
    def work(group: distributed.Group) -> None:
        if group.rank:
            group.gather(None)

    with pytest.raises(RankError, match="rank 0 has left the program"):
        distributed.simulate(2, work)


def test_ranks_that_differ() -> None:
    def work(group: distributed.Group) -> None:
        group.agree(
            "the model",
            {"0.bias": (256 - group.rank,), "0.weight": (3,), **({"extra": 1} if group.rank else {})},
        )

    with pytest.raises(InputError) as info:
        distributed.simulate(2, work)
    assert str(info.value) == (
        "the model: ranks 0 and 1 differ.\n"
        "  0.bias: (256,) on rank 0, (255,) on rank 1\n"
        "  extra: absent on rank 0, 1 on rank 1"
    )


def test_ranks_that_make_different_calls() -> None:
    def work(group: distributed.Group) -> None:
        group.sum(np.ones(2), "gradients") if group.rank else group.gather(1, "losses")

    with pytest.raises(RankError, match="different calls: 'losses' on rank 0, 'gradients' on rank 1"):
        distributed.simulate(2, work)
    with pytest.raises(InputError, match=r"shape: \(2,\) on rank 0, \(3,\) on rank 1"):
        distributed.simulate(2, lambda group: group.sum(np.ones(2 + group.rank)))


def test_long_lists_of_differences_are_cut() -> None:
    with pytest.raises(InputError, match="and 4 more"):
        distributed.simulate(2, lambda g: g.agree("a", {str(i): g.rank for i in range(12)}))


def test_sums_go_on_while_the_caller_computes() -> None:
    def work(group: distributed.Group) -> float:
        flats = [np.full(group.padded(4), float(group.rank + i)) for i in range(3)]
        jobs = [group.start_sum(flat, f"bucket {i}") for i, flat in enumerate(flats)]
        for job in jobs:
            group.wait(job)
        return float(sum(flat[0] for flat in flats))

    assert distributed.simulate(2, work) == [sum(2 * i + 1 for i in range(3))] * 2


def test_mistakes() -> None:
    with pytest.raises(ArgumentError, match="simulate: size must be a positive integer, but is 0"):
        distributed.simulate(0, lambda group: None)
    with pytest.raises(InputError, match="broadcast: the array must be contiguous"):
        distributed.simulate(2, lambda group: group.broadcast(np.ones((4, 4)).T[1:]))
    group = distributed.Group()
    for wrong in ([1.0], {"a": 1}, ad.ones(2)):
        with pytest.raises(InputError) as caught:
            group.broadcast(wrong)  # type: ignore[arg-type]
        assert str(caught.value) == (
            "broadcast: the array must be a NumPy array, which is overwritten, but is "
            f"{type(wrong).__name__}.\n"
            "  Pass x.numpy(copy=True) of a tensor; for other objects, use group.broadcast_object(value)."
        )
    with pytest.raises(InputError, match="array is overwritten, but it is read-only"):
        group.broadcast(ad.ones(2).numpy())
    for call in (group.broadcast, group.broadcast_object):
        for root in (5, -1, "0"):
            with pytest.raises(InputError, match=f"root must be a rank from 0 to 0, but is {root!r}"):
                call(np.ones(2), root=root)  # type: ignore[operator]


def test_a_program_alone_is_a_group_of_one() -> None:
    group = distributed.world()
    assert (group.rank, group.size) == (0, 1)
    assert group.gather(3) == [3] and group.sum([1.0, math.pi]).tolist() == [1.0, math.pi]
    group.fail("does nothing alone")
    group.barrier()


def test_no_thread_stays_behind() -> None:
    distributed.simulate(4, lambda group: group.sum(np.ones(2)))
    names = [t.name for t in threading.enumerate() if t.name.startswith("adjoint-rank")]
    assert names == []


def test_modes_of_the_caller_hold_in_every_rank() -> None:
    with ad.no_grad():
        assert distributed.simulate(2, lambda group: ad.is_grad_enabled()) == [False, False]
