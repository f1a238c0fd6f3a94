"""Instructions of half precision: their operands become float32, and each result is rounded once.

This is how NumPy computes them; a kernel of several instructions rounds between them, as NumPy does.
Ops that only move elements (reshapes, slices, concatenations) are lowered without conversions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.compiler.lower.graph import View, is_half, row_major
from adjoint.compiler.program.program import Instruction
from adjoint.core.record import float_dtype
from adjoint.ops.half import computes_in_float32

__all__ = ["narrow", "widen"]

_FLOAT32 = np.dtype(np.float32)


def widen(i: Instruction, args: Sequence[Any]) -> list[Any]:
    """Return the operands of an instruction with half precision converted to float32.

    Python numbers are first rounded to the half precision of the other operands, where NumPy does that.
    """
    common = float_dtype([a for a in args if isinstance(a, View) and not a.weak])
    if common is None or not is_half(common) or i.op.kind == "host":
        return [_wide(a) for a in args]
    found = []
    for given, a in zip(i.args, args, strict=True):
        weak = isinstance(a, View) and a.weak
        kind = getattr(given, "kind", float) if weak else type(a)
        if not weak and kind not in (float, int):
            found.append(_wide(a))
        elif not _rounds(i, common, weak and i.op.kind == "elementwise", kind):
            found.append(a)
        elif weak:
            found.append(_wide(a.graph.elementwise("astype", common, a.graph.xp.strong(a))))
        else:
            with np.errstate(over="ignore"):
                rounded = float(np.asarray(a, common))
            found.append(a if rounded == a else rounded)
    return found


def _rounds(i: Instruction, common: Any, typed: bool, kind: type) -> bool:
    """Return whether a number is rounded to the dtype ``common``.

    ``typed`` says whether eager mode makes an array of it, see ``core.record.weak_numbers``.
    """
    bfloat16 = common.kind == "V"
    if typed and not i.op.literals:
        return True
    if computes_in_float32(i.op.forward) and not (typed and bfloat16):
        return False
    return kind is int or not bfloat16 or typed  # NumPy computes bfloat16 with a float in float32


def _wide(a: Any) -> Any:
    """Return a view as float32 if it is half precision; other operands unchanged.

    Arrays are converted as a whole, so that transposed and broadcast ones, and large parts, stay views.
    """
    if isinstance(a, (np.ndarray, np.generic)):
        return np.asarray(a, _FLOAT32) if is_half(a.dtype) else a
    if not isinstance(a, View) or not is_half(a.dtype):
        return a
    node = a.node
    if a.size < node.size // 4:
        return a.graph.elementwise("astype", _FLOAT32, a)
    whole = View(a.graph, node, node.shape, row_major(node.shape))
    found = a.graph.elementwise("astype", _FLOAT32, whole)
    return View(a.graph, found.node, a.shape, a.strides, found.offset + a.offset)


def narrow(found: View, wanted: Any) -> View:
    """Return a result as half precision, if that is its dtype ``wanted`` in the program."""
    if is_half(wanted) and found.dtype == _FLOAT32:
        return found.graph.elementwise("astype", wanted, found)
    return found
