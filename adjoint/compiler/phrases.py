"""Python expressions for the instructions of a program that runs on NumPy (see ``replay``).

An expression makes the same NumPy calls as the forward function of the op, so its results are equal bit for
bit.  It omits the checks of the forward function: the number of axes, the dtypes and the presence of a bias
are known when the program is built.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.compiler.program import Instruction
from adjoint.compiler.symbolic import Symbolic

__all__ = ["NAMES", "bias_of", "phrase"]

NAMES: dict[str, Any] = {"total": np.add.reduce}  # globals of the generated code

_BLAS = "fdFD"
_INFIX = {operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/"}


def phrase(i: Instruction, args: list[str]) -> str | None:
    """Return a Python expression for an instruction; None if the op's forward must be called."""
    sign = _INFIX.get(i.op.forward)
    if sign is not None:
        return f"{args[0]} {sign} {args[1]}"
    known = _PHRASES.get(i.op.name) if i.op.kind != "host" else None
    if known is None or not all(isinstance(a, Symbolic) and not a.weak for a in i.args):
        return None
    return known(i, *args)


def _matmul(i: Instruction, x: str, y: str) -> str | None:
    if i.args[0].dtype.char in _BLAS and i.args[0].ndim == i.args[1].ndim == 2:
        return f"{x}.dot({y})"
    return None


def _linear(i: Instruction, x: str, w: str, b: str) -> str | None:
    dtypes = {a.dtype for a in i.args}
    if len(dtypes) != 1 or dtypes.pop().char not in _BLAS or i.args[0].ndim != 2 or i.args[1].ndim != 2:
        return None
    return f"{x}.dot({w}.T)"


def bias_of(i: Instruction, args: list[str]) -> str | None:
    """Return an expression for what is added to the value of ``phrase``, in place; None if nothing is."""
    if i.op.name != "linear":
        return None
    (out,) = i.outs
    return f"{args[2]}.reshape({out.shape!r})" if out.size == i.args[2].size else args[2]


def _sum(i: Instruction, x: str) -> str | None:
    if i.args[0].dtype.itemsize == 2:
        return None
    return f"total({x}, {i.params['axis']!r}, None, None, {i.params['keepdims']!r})"


def _transpose(i: Instruction, x: str) -> str:
    return f"{x}.T" if i.args[0].ndim == 2 else f"{x}.mT"


_PHRASES: dict[str, Callable[..., str | None]] = {
    "linear": _linear,
    "matmul": _matmul,
    "matrix_transpose": _transpose,
    "permute_dims": lambda i, x: f"{x}.transpose({i.params['axes']!r})",
    "reshape": lambda i, x: f"{x}.reshape({i.params['shape']!r})",
    "sum": _sum,
}
