"""The description of a kernel: its LLVM text, the addresses that it reads, and how its loop is divided."""

from __future__ import annotations

from typing import Any, NamedTuple

from adjoint.compiler.simplify import Node

__all__ = ["Kernel", "Slot"]


class Slot(NamedTuple):
    """An address that a kernel reads from its table: an offset in bytes in a node's memory or the workspace.

    ``node`` is None for the workspace; when memory is assigned, the offset becomes an offset in the arena.
    """

    node: Node | None
    offset: int


class Kernel:
    """The text of a kernel, its slots, and the length of its outermost loop.

    The loop can be divided among threads at multiples of ``unit``.  ``chunks`` is the required number of
    chunks; 0 allows any number.  ``cost`` is the total work, in simple operations on one element.  ``tables``
    has the tables of a loop that runs other kernels (see ``emit.repeat``), else None.  ``workspace`` is the
    range of bytes of the arena that the kernel uses as its workspace.
    """

    __slots__ = ("chunks", "cost", "length", "slots", "tables", "text", "unit", "workspace")

    def __init__(
        self, text: str, slots: list[Slot], length: int, unit: int, cost: float, chunks: int = 0
    ) -> None:
        self.text = text
        self.slots = slots
        self.length = length
        self.unit = unit
        self.cost = cost
        self.chunks = chunks
        self.tables: Any = None
        self.workspace = 0, 0
