"""The sizes that lowering and scheduling depend on: of caches on a CPU, of work-groups on another device."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["CPU", "Target"]


class Target(NamedTuple):
    """Sizes of the hardware that a program is compiled for.

    The order of sums depends on them, so they must not depend on the number of cores.
    """

    name: str
    # elements: longer axes are reduced in blocks (more accurate, and threads can share the blocks)
    long: int
    # bytes: larger values that two loops of a kernel need are not kept in its own memory
    stack: int
    # column sums that the kernel of the rows makes: the smallest array in elements, the elements and the
    # smallest number of rows per chunk, the largest number of chunks, and the bytes of all sums of a row
    large: int
    chunk: int
    rows: int
    chunks: int
    sums: int
    lapack: bool = False  # whether kernels may call LAPACK
    least: int = 1  # bytes: elements of smaller types have this size in memory
    wide: Any = np.dtype(np.float64)  # in which norms are computed


CPU = Target("cpu", 1 << 14, 1 << 15, 1 << 12, 1 << 15, 8, 64, 1 << 16, True)
