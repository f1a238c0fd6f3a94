"""Run the chunks of native kernels in any order, as helper threads may."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from adjoint.compiler.emit import machine
from adjoint.compiler.host import native, pool

_KERNEL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)
_kept: list[Any] = []  # programs refer to these functions by their addresses


def reorder(patch: Any, order: Callable[[list[Any]], None]) -> list[int]:
    """Make programs that are built from now on run the chunks of each run as ``order`` sorts their list.

    One thread runs them, with the numbers of two threads in turn.  Returns a list that gets the number of
    chunks of each run.
    """
    records, counts = pool.records, []

    def reordered(rows: Sequence[Any], runs: Any = None) -> Any:
        made: list[Any] = []
        for n in [1] * len(rows) if runs is None else runs:
            run = rows[len(made) : len(made) + n]
            counts.append(sum(len(cuts) - 1 for _, _, cuts in run))
            function = _all_at_once(run, counts[-1], order)
            made += [(function, args, cuts) for _, args, cuts in run]
        return records(made, runs)

    patch.setattr(pool, "records", reordered)
    patch.setattr(native.Native, "helpers", lambda self: 0)
    return counts


def _all_at_once(rows: Sequence[Any], total: int, order: Callable[[list[Any]], None]) -> int:
    """Return a kernel that stands for those of a run: its first call runs all chunks, the others nothing."""
    threads = min(2, machine.machine().cores)
    jobs = [
        (_KERNEL(function), args, cuts[k], cuts[k + 1], k)
        for function, args, cuts in rows
        for k in range(len(cuts) - 1)
    ]
    calls = 0

    def kernel(*_: int) -> None:
        nonlocal calls
        calls = (calls + 1) % total
        if calls == 1 % total:
            now = list(jobs)
            order(now)
            for n, (function, *given) in enumerate(now):
                function(*given, n % threads)

    _kept.append(_KERNEL(kernel))
    return int(ctypes.cast(_kept[-1], ctypes.c_void_p).value or 0)
