"""OpenCL C: how kernels declare, load and store values, write loops and wait at barriers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from adjoint.compiler.emit.values import Value
from adjoint.compiler.lower.target import Target
from adjoint.targets.writer import TYPES, CWriter

__all__ = ["ORDERS", "OpenCL"]

# Sizes of work-groups instead of caches.  The order of sums depends on them, so all devices have the same.
SIZES = Target("opencl", 1 << 12, 1 << 13, 1 << 12, 1 << 9, 8, 256, 1 << 16)

# The numbers of a thread in its work-group, and of the work-group.  Results do not depend on their order: a
# test uses all of them.
ORDERS = {
    "plain": ("get_local_id(k)", "get_group_id(k)"),
    "reversed": ("get_local_size(k) - 1 - get_local_id(k)", "get_num_groups(k) - 1 - get_group_id(k)"),
    "swapped": ("get_local_id(k) ^ (get_local_size(k) >> 1)", "get_num_groups(k) - 1 - get_group_id(k)"),
}


class OpenCL:
    """OpenCL C: for each slot, a kernel gets a buffer and the byte at which the values start."""

    name = "opencl"
    sizes = SIZES
    group = 256  # threads of a work-group that sums a row
    flat = 64  # threads of a work-group without sums
    busy = 1 << 14  # threads: sums of columns use as many if possible
    short = 16  # rows of at most this length are summed by one thread
    tile = 16  # rows and columns of a product that a work-group computes with one element per thread
    local = 1 << 14  # bytes of local memory that a kernel may use for saved rows
    stored: ClassVar[dict[str, str]] = {
        "float": "float", "double": "double", "i1": "uchar", "i8": "char", "i16": "short", "i32": "int",
        "i64": "long",
    }  # fmt: skip
    joins = True  # whether a kernel may have the texts of others
    barrier = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"

    def __init__(self, order: str = "plain", barriers: bool = True, float64: bool = True) -> None:
        local, group = ORDERS[order]
        self.float64 = float64
        if not float64:
            self.sizes = self.sizes._replace(wide=np.dtype(np.float32))
        self.head = (
            f"#pragma OPENCL EXTENSION cl_khr_fp64: {'enable' if float64 else 'disable'}\n"
            "#pragma OPENCL FP_CONTRACT OFF\n"
            f"#define LID(k) ((int)({local}))\n#define WID(k) ((int)({group}))\n"
            "#define GID(k) (WID(k) * (int)get_local_size(k) + LID(k))\n"
        )
        if not barriers:  # wrong on purpose, for a test
            self.barrier = ";"

    def writer(self) -> CWriter:
        """Return a writer for a new kernel."""
        return CWriter(self.float64)

    def index(self, name: str, text: str) -> str:
        """Return the definition of an index."""
        return f"const int {name} = {text};"

    def each(self, name: str, start: object, stop: object, step: int = 1) -> str:
        """Return the head of a loop."""
        return f"for (int {name} = {start}; {name} < {stop}; {name} += {step}) {{"

    def load(self, slot: str, element: str, at: str) -> str:
        """Return the expression of an element in memory."""
        return f"({slot}[{at}] != 0)" if element == "i1" else f"{slot}[{at}]"

    def store(self, slot: str, element: str, at: str, text: str) -> str:
        """Return the statement that stores an element."""
        return f"{slot}[{at}] = {text};"

    def value(self, name: str, element: str, text: str) -> str:
        """Return the definition of a value that does not change."""
        return f"const {TYPES[element]} {name} = {text};"

    def variable(self, name: str, element: str, text: str) -> str:
        """Return the declaration of a variable with its initial value."""
        return f"{TYPES[element]} {name} = {text};"

    def private_memory(self, name: str, element: str, count: int) -> str:
        """Return the declaration of an array of one thread."""
        return f"{self.stored[element]} {name}[{count}];"

    def local_memory(self, name: str, element: str, count: int) -> str:
        """Return the declaration of memory that a work-group shares."""
        return f"__local {self.stored[element]} {name}[{count}];"

    def to_index(self, value: Value) -> str:
        """Return an integer as an index."""
        return f"(int){value.text}"

    def function(
        self,
        w: CWriter,
        elements: Sequence[str],
        shared: Sequence[tuple[str, str, int]],
        groups: Sequence[int],
        sizes: Sequence[int],
    ) -> str:
        """Return the text of a kernel, with NAME for its name; ``elements`` has the type of each slot."""
        head = [self.pointer(f"b{k}", e, self.start(k)) for k, e in enumerate(elements)]
        local = [self.local_memory(*each) for each in shared]
        return self.text(w.tables, len(elements), [*local, *head, *w.lines], groups, sizes)

    def pointer(self, name: str, element: str, address: str) -> str:
        """Return the definition of the pointer to the elements of a slot."""
        return f"__global {self.stored[element]}* {name} = (__global {self.stored[element]}*)({address});"

    def start(self, k: int) -> str:
        """Return the expression of the address of a slot."""
        return f"(s{k} + o{k})"

    def moved(self, address: str, offset: int, row: str, stride: int) -> str:
        """Return an address, moved by an offset and by some rows, in bytes."""
        return f"{address} + {offset}" + (f" + (long){row} * {stride}" if stride else "")

    def pick(self, condition: str, yes: str, no: str) -> str:
        """Return the expression of one of two values."""
        return f"({condition} ? {yes} : {no})"

    def text(
        self,
        tables: dict[str, str],
        slots: int,
        lines: Sequence[str],
        groups: Sequence[int],
        sizes: Sequence[int],
    ) -> str:
        """Return the text of a kernel with a number of slots, given its statements."""
        given = ", ".join(f"__global uchar* s{k}, ulong o{k}" for k in range(slots))
        body = "\n".join(f"  {line.lstrip()}" for line in lines)
        return "".join(f"{t}\n" for t in tables.values()) + f"{self.entry(sizes)}({given}) {{\n{body}\n}}\n"

    def entry(self, sizes: Sequence[int]) -> str:
        """Return what comes before the parameters of a kernel, for work-groups of a size."""
        size = ", ".join(map(str, [*sizes, 1, 1][:3]))
        return f"__kernel __attribute__((reqd_work_group_size({size})))\nvoid NAME"
