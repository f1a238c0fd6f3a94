"""What a program knows of a kernel: its text, the addresses that it reads, and how its loop is divided."""

from __future__ import annotations

from typing import Any, NamedTuple

from adjoint.compiler.simplify import Node

__all__ = ["Kernel", "Slot"]


class Slot(NamedTuple):
    """An address that a kernel reads from its table: an offset in bytes in a node's memory or the workspace.

    ``node`` is None for the workspace.
    """

    node: Node | None
    offset: int


class Kernel:
    """The text of a kernel, its slots, and the length of its outermost loop.

    The loop can be divided at multiples of ``unit``; ``chunks`` is the number of its chunks, 0 for any.
    ``cost`` is the total work, in simple operations on one element.  ``tables`` are those of a loop that runs
    records.  ``workspace`` is the range of bytes of the workspace that the kernel uses.
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
