"""Settings of the C library's memory allocator."""

from __future__ import annotations

import sys
from contextlib import suppress

import numpy as np

__all__ = ["keep_freed_memory"]

# The largest block from which glibc still learns (DEFAULT_MMAP_THRESHOLD_MAX), less its own header.
_LARGEST_LESSON = 32 * 2**20 - 2**13


def keep_freed_memory() -> None:
    """Let malloc keep up to 64 MB of freed memory instead of giving it back to the system at once.

    A training step frees what it allocates, step after step. At first glibc maps every block above
    128 kB anew and returns it when it is freed, so each temporary is paid for again in page faults:
    up to a quarter of the time of a backward over large arrays, and more in two threads, which share
    the page tables. glibc raises that threshold by itself to the size of the largest mapped block it
    has seen freed, up to 32 MB, and keeps twice as much: so it is shown one such block, untouched.
    This takes 10 µs and no memory. Whoever sets ``MALLOC_TRIM_THRESHOLD_`` or ``MALLOC_MMAP_THRESHOLD_``
    has decided otherwise, and glibc then learns nothing from it (docs/adr/0010).
    """
    if sys.platform == "linux":
        with suppress(MemoryError):  # a limit on address space
            np.empty(_LARGEST_LESSON, np.uint8)
