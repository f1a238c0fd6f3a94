"""Python expressions for the instructions of a program that runs on NumPy (see ``replay``).

An expression makes the same NumPy calls as the forward function of the op, so its result is equal bit for
bit.  It omits the checks of the forward function, because the number of axes, the dtypes and the presence of
a bias are known when the program is built.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from adjoint.compiler.program.program import Instruction
from adjoint.compiler.program.symbols import Symbolic
from adjoint.threads.spread import COSTLY_SIZE

__all__ = ["NAMES", "is_spread", "phrase"]

# Bytes.  Two threads add or multiply larger arrays faster than one.  At 8 MB they take 0.8 of the time if
# both processors are free, but 1.3 if another program uses one.
_SPREAD = 1 << 24
# globals of the generated code
NAMES: dict[str, Any] = {
    "add_into": np.add, "cosh": np.cosh, "divide": np.divide, "total": np.add.reduce,
}  # fmt: skip

_INFIX = {operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/"}


def phrase(i: Instruction, args: list[str], target: str) -> list[str] | None:
    """Return Python expressions that compute an instruction; None if the op's forward must be called.

    The generated code assigns the expressions to the variable ``target`` one after the other.  ``args`` are
    the expressions of the operands.
    """
    sign = _INFIX.get(i.op.forward)
    if sign is not None and not is_spread(i):
        return [f"{args[0]} {sign} {args[1]}"]
    if i.op.phrase is None or not all(isinstance(a, Symbolic) and not a.weak for a in i.args):
        return None
    found: list[str] | None = i.op.phrase(i, target, *args)
    return found


def is_spread(i: Instruction) -> bool:
    """Return whether threads compute an instruction: it is elementwise, and its arrays are large."""
    if i.op.kind != "elementwise" or i.params or len(i.outs) != 1:
        return False
    (out,) = i.outs
    if i.op.costly:
        return out.size >= COSTLY_SIZE
    if i.op.forward not in _INFIX or not out.shape or out.size * out.dtype.itemsize < _SPREAD:
        return False
    return all(a.dtype == out.dtype for a in i.args if isinstance(a, Symbolic) and a.shape)
