"""The text of ``step.explain()``: the kernels of a native program, and what NumPy runs and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adjoint.compiler.fuse import Group

if TYPE_CHECKING:
    from adjoint.compiler.emit.loop import Kernel
    from adjoint.compiler.native import Native

__all__ = ["explain"]

_KINDS = {"loop": "loop", "matmul": "product", "place": "pieces", "scatter": "scatter", "repeat": "steps"}


def explain(program: Native) -> str:
    """Return a line for each kernel and each call of NumPy, in the order in which they run."""
    lines: list[str] = []
    total = 0
    calls = 0
    by_group: dict[int, list[Kernel]] = {}
    for g, kernel in program.kernels:
        by_group.setdefault(id(g), []).append(kernel)
    for g in program.groups:
        if g.kind == "call":
            calls += 1
            node = g.nodes[0]
            reason = program.lowered.reasons.get(node.id, "")
            lines.append(f"NumPy    {node.value.op.name}: {reason}")
            continue
        for kernel in by_group.get(id(g), []):
            moved = _bytes(kernel)
            total += moved
            what = f"{_KINDS[g.kind]:8} {list(g.domain)!s:16} {_ops(g)}"
            lines.append(f"{what}  ({_size(moved)}, about {_time(program, kernel)})")
    threads = f" in up to {program.threads} threads" if program.estimate > 250_000 else ""
    head = (
        f"{len(program.kernels)} kernels, {calls} calls of NumPy, {_size(total)} read and written{threads}; "
        f"{_size(program.memory.size)} of memory"
    )
    return "\n".join([head, *lines])


def _ops(g: Group) -> str:
    """Return the ops of the user that a group computes, in order."""
    names = [n.origin or n.op for n in g.nodes]
    return ", ".join(dict.fromkeys(names))


def _bytes(kernel: Kernel) -> int:
    nodes: dict[int, Any] = {s.node.id: s.node for s in kernel.slots if s.node is not None}
    return sum(n.size * n.dtype.itemsize for n in nodes.values())


def _size(count: int) -> str:
    if count < 10_000:
        return f"{count} B"
    return f"{count / 1e3:.0f} KB" if count < 10_000_000 else f"{count / 1e6:.0f} MB"


def _time(program: Native, kernel: Kernel) -> str:
    nanoseconds = kernel.cost * program.scale
    return f"{nanoseconds / 1e3:.1f} µs" if nanoseconds < 1e6 else f"{nanoseconds / 1e6:.1f} ms"
