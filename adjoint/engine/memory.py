"""Memory that the C library keeps between backward passes."""

from __future__ import annotations

import functools
import sys
from contextlib import suppress

import numpy as np

__all__ = ["keep_freed_memory"]

# The largest block that still raises glibc's threshold (DEFAULT_MMAP_THRESHOLD_MAX), less glibc's header.
_LARGEST_LESSON = 32 * 2**20 - 2**13


@functools.cache
def keep_freed_memory() -> None:
    """Make malloc keep up to 64 MB of freed memory; called before the first backward pass.

    By default glibc maps each block above 128 kB from the system and unmaps it when it is freed.  A training
    step allocates the same blocks again and again, so each temporary costs page faults: three quarters of
    the time of a backward over large arrays.  When a mapped block of at most 32 MB is freed, glibc raises the
    threshold to its size and keeps twice as much free memory.  This function therefore allocates and frees
    one block of 32 MB without touching it, which takes 10 µs and no memory.  It changes no setting, and has
    no effect if ``MALLOC_TRIM_THRESHOLD_`` or ``MALLOC_MMAP_THRESHOLD_`` is set (docs/adr/0010).
    """
    if sys.platform == "linux":
        with suppress(MemoryError):  # the address space may be limited
            np.empty(_LARGEST_LESSON, np.uint8)
