"""The text of ``Compiled.explain``: the kernels and NumPy calls of a native program, with their times."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint.compiler.schedule.fuse import Fusion
from adjoint.words import count

if TYPE_CHECKING:
    from adjoint.compiler.host.native import Native
    from adjoint.compiler.schedule.kernel import Kernel

__all__ = ["explain"]

_KINDS = {
    "loop": "loop", "matmul": "product", "conv": "conv", "conv_input": "conv", "conv_weight": "conv",
    "place": "pieces", "scatter": "scatter", "matrix": "matrix", "order": "order",
    "repeat": "steps",
}  # fmt: skip
_SECONDS, _ROUNDS = 0.05, 20  # limits of the measurement of times


def explain(program: Native) -> str:
    """Describe a native program: a summary line, then one line per kernel and per NumPy call, in order."""
    taken = _times(program)
    rows: list[tuple[str, str, str]] = []
    total = calls = 0
    by_group: dict[int, list[tuple[int, Kernel]]] = {}
    for k, (g, kernel) in enumerate(program.kernels):
        by_group.setdefault(id(g), []).append((k, kernel))
    for g in program.groups:
        if g.kind == "call":
            node = g.nodes[0]
            reason = program.lowered.reasons.get(node.id, "")
            rows.append((_time(taken[node]), "", f"NumPy    {node.value.op.name}: {reason}"))
            calls += 1
            continue
        for k, kernel in by_group.get(id(g), []):
            rows.append(_row(g, kernel, taken[k]))
            total += _bytes(kernel)
            if kernel.tables is not None:
                body = kernel.tables.body.kernels
                rows += [_row(inner, one, taken[k, j], "  ") for j, (inner, one) in enumerate(body)]
    threads = f" in up to {program.threads} threads" if program.helped else ""
    times = [seconds for what, seconds in taken.items() if not isinstance(what, tuple)]
    known = [seconds for seconds in times if seconds is not None]
    whole = sum(known) if len(known) == len(times) else None
    head = (
        f"{count(len(program.kernels), 'kernel')}, {count(calls, 'call')} of NumPy, {_size(total)} read and "
        f"written, {_time(whole)}{threads}; {_size(program.memory.size)} of memory"
    )
    return "\n".join([head, *(f"{when:>8} {size:>8}  {what}" for when, size, what in rows)])


def _row(g: Fusion, kernel: Kernel, seconds: float | None, indent: str = "") -> tuple[str, str, str]:
    """Return the texts of a row for one kernel: its time, its bytes, and its kind, loops and ops.

    The loops are given by their shape, or by the number of steps.  The last text starts with ``indent``.
    """
    domain = list(g.domain) if g.kind != "repeat" else [kernel.length]
    what = f"{indent}{_KINDS[g.kind]:8} {domain!s:16} {_ops(g)}"
    return _time(seconds), _size(_bytes(kernel)), what


def _times(program: Native) -> dict[Any, float | None]:
    """Return the shortest measured time of each kernel and NumPy call, in seconds.

    The key of a kernel is its index, and the key of a NumPy call is its node.  A kernel in a loop body has
    the key (index of the loop's kernel, index in the body).  The program runs on random inputs; integer
    inputs are 0.  A time is None if the program fails on these inputs before that kernel.
    """
    found: dict[Any, float | None] = dict.fromkeys(range(len(program.kernels)))
    for k, (_, kernel) in enumerate(program.kernels):
        if kernel.tables is not None:
            found |= dict.fromkeys((k, j) for j in range(len(kernel.tables.body.kernels)))
    kernels = list(found)
    found |= dict.fromkeys(step for step in program.steps if not isinstance(step, tuple))
    found[None] = None  # the time of a measurement without a kernel, which is subtracted from the others
    rng = np.random.default_rng(0)
    given = [_stand_in(rng, s.value) for s in program.program.sources]
    end = time.perf_counter() + _SECONDS
    with np.errstate(all="ignore"), contextlib.suppress(Exception), program.lock:
        program.running = True
        try:
            for _ in range(_ROUNDS):
                for what, seconds in program.timed(given):
                    before = found[what]
                    found[what] = seconds if before is None else min(before, seconds)
                if time.perf_counter() > end:
                    break
        finally:
            program.running = False
    nothing = found.pop(None) or 0.0
    for k in kernels:
        shortest = found[k]
        found[k] = None if shortest is None else max(shortest - nothing, 0.0)
    return found


def _stand_in(rng: np.random.Generator, value: Any) -> Any:
    """Return an input like ``value``: random floats, zeros of other dtypes, or 0.5 for a Python float."""
    if value.weak:
        return 0.5
    if value.dtype.kind in "fc":
        return (0.1 * rng.standard_normal(value.shape)).astype(value.dtype)
    return np.zeros(value.shape, value.dtype)


def _ops(g: Fusion) -> str:
    """Return the names of the ops that a group computes, in order, separated by commas."""
    names = [n.origin or n.op for n in g.nodes]
    return ", ".join(dict.fromkeys(names))


def _bytes(kernel: Kernel) -> int:
    """Return the number of bytes of all buffers that a kernel reads or writes."""
    nodes: dict[int, Any] = {s.node.id: s.node for s in kernel.slots if s.node is not None}
    return sum(n.size * n.dtype.itemsize for n in nodes.values())


def _size(n: int) -> str:
    if n < 10_000:
        return f"{n} B"
    return f"{n / 1e3:.0f} KB" if n < 10_000_000 else f"{n / 1e6:.0f} MB"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"
