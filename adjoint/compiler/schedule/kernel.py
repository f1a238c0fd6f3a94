"""The description of a kernel: its LLVM text, the addresses that it reads, and how its loop is divided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from adjoint.compiler.lower.graph import Primitive

__all__ = ["Address", "Kernel"]


class Address(NamedTuple):
    """An address that a kernel reads from its table: an offset in bytes in a node's memory or the workspace.

    ``node`` is None for the workspace; when memory is assigned, the offset becomes an offset in the arena.
    """

    node: Primitive | None
    offset: int


@dataclass(slots=True, eq=False)
class Kernel:
    """The text of a kernel, its slots, and the length of its outermost loop."""

    text: str
    slots: list[Address]
    length: int
    unit: int  # the loop can be divided among threads at multiples of it
    cost: float  # in simple operations on one element
    chunks: int = 0  # the required number of chunks of the loop; 0 allows any number
    tables: Any = None  # of a loop that runs other kernels (see ``emit.repeat``)
    workspace: tuple[int, int] = (0, 0)  # the range of bytes of the arena that the kernel uses
