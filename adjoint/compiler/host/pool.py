"""Run the kernel calls of a program; native helper threads share the longer ones.

A record describes a kernel call: its function, its arguments, and the bounds of the chunks of its outermost
loop.  The calling thread takes chunks from the front and helper threads take them from the back.  The caller
waits only for chunks that a helper has already taken, so a helper that wakes up late costs nothing.  The
result is the same bit for bit, whichever thread runs a chunk.

Consecutive records that do not depend on each other can form a *run*: threads take chunks of all of them, and
the caller waits only once, at the end of the run.

When other programs use the processors, the system may stop a helper in the middle of a chunk for some
milliseconds, or run it on the processor of the caller.  After either event the caller works alone for a
while.  Linux often wakes a thread on the processor of the thread that wakes it, even if another processor is
idle; the helper then waits there for milliseconds.  To avoid this, the caller first removes its own processor
from the processors that helpers may use.

Helpers are POSIX threads that never call Python.  They spin for a while after their last chunk, then sleep on
a futex.  They exist on Linux only; on other systems the caller runs all chunks.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.compiler.build import units
from adjoint.compiler.emit.code import Library
from adjoint.compiler.emit.machine import binding
from adjoint.compiler.host import pool_text
from adjoint.compiler.host.pool_text import EXPORTS, RECORD
from adjoint.config import held_across_fork, locked

__all__ = ["MAX_CHUNKS", "RECORD", "addresses", "chunks_helped", "helpers", "records", "start", "trust"]

MAX_CHUNKS = 4096

_lock = held_across_fork(threading.RLock())
_found: dict[str, int] = {}
_helpers = 0


def _text() -> str:
    """Return the LLVM IR of the pool for this system."""
    return Library(*EXPORTS).text


units.expect(_text)


def addresses() -> dict[str, int]:
    """Return the addresses of the native functions of the pool, by name."""
    with _lock:
        if not _found:
            binding()
            exports = tuple([function.name for function in EXPORTS])
            # not optimised: most of this code waits or runs once, and its variables must not exist twice
            _found.update(units.library(_text(), exports, {}))
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=_forget)
        return _found


def _forget() -> None:
    """Reset the pool in a forked child, where the helper threads do not exist."""
    global _helpers
    _helpers = 0
    _call("forget")


def _call(name: str, *args: int) -> int:
    """Call the native function ``name`` of the pool; return its result."""
    function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(args))(addresses()[name])
    return int(function(*args))


def start(threads: int) -> int:
    """Start helpers until ``threads`` threads can run chunks; return the number of helpers."""
    return locked(_lock, _start, min(threads, 64) - 1)


def _start(wanted: int) -> int:
    global _helpers
    addresses()
    while _helpers < wanted and pool_text.has_threads():
        if _call("start", _helpers + 1) & 0xFFFFFFFF:
            break  # the system cannot create more threads
        _helpers += 1
    return max(0, min(wanted, _helpers))


def helpers() -> int:
    """Return the number of helpers that have been started."""
    return _helpers


def chunks_helped() -> int:
    """Return the number of chunks that helpers have run in this process."""
    return _call("chunks_helped")


def trust() -> None:
    """Let helper threads take chunks again immediately.

    Otherwise helpers get no chunks for a while after one of them was late.
    """
    _call("trust")


def records(
    rows: Sequence[tuple[int, int, list[int]]], runs: Sequence[int] | None = None
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Pack kernel calls into one array of 64-bit words: all records, then the chunk bounds of each record.

    Each of ``rows`` is (address of the function, address of its arguments, chunk bounds).  ``runs`` has the
    number of records of each run, in order; by default each record is a run of its own.
    """
    words = np.zeros(RECORD * len(rows) + sum(len(cuts) for _, _, cuts in rows), np.int64)
    place = RECORD * len(rows)
    for i, (function, args, cuts) in enumerate(rows):
        words[RECORD * i : RECORD * i + 4] = function, args, len(cuts) - 1, words.ctypes.data + 8 * place
        words[place : place + len(cuts)] = cuts
        place += len(cuts)
    first = 0
    for length in [1] * len(rows) if runs is None else runs:
        chunks = sum(len(cuts) - 1 for _, _, cuts in rows[first : first + length])
        words[RECORD * first + 4 : RECORD * first + 6] = length, chunks
        first += length
    return words
