"""Python expressions for the instructions of a program that runs on NumPy (see ``replay``).

An expression makes the same NumPy calls as the forward function of the op, so its result is equal bit for
bit.  It omits the checks of the forward function, because the number of axes, the dtypes and the presence of
a bias are known when the program is built.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.compiler.program import Instruction
from adjoint.compiler.symbolic import Symbolic
from adjoint.threads.spread import COSTLY_SIZE

__all__ = ["LARGE", "NAMES", "is_spread", "phrase"]

# Bytes.  Smaller results are always new arrays, because a search for a reusable array would take longer.
LARGE = 1 << 17
# Bytes.  Two threads add or multiply larger arrays faster than one.  At 8 MB they take 0.8 of the time if
# both processors are free, but 1.3 if another program uses one.
_SPREAD = 1 << 24
# globals of the generated code
NAMES: dict[str, Any] = {
    "add_into": np.add, "cosh": np.cosh, "divide": np.divide, "total": np.add.reduce,
}  # fmt: skip

_BLAS = "fdFD"
_INFIX = {operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/"}

Phrase = list[str] | None


def phrase(i: Instruction, args: list[str], target: str) -> Phrase:
    """Return Python expressions that compute an instruction; None if the op's forward must be called.

    The generated code assigns the expressions to the variable ``target`` one after the other.  ``args`` are
    the expressions of the operands.
    """
    sign = _INFIX.get(i.op.forward)
    if sign is not None and not is_spread(i):
        return [f"{args[0]} {sign} {args[1]}"]
    known = _PHRASES.get(i.op.name) if i.op.kind != "host" else None
    if known is None or not all(isinstance(a, Symbolic) and not a.weak for a in i.args):
        return None
    return known(i, target, *args)


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


def _simple(text: Callable[[Instruction], str]) -> Callable[..., Phrase]:
    """Return a function that makes the expression ``x.TEXT`` for an operand x; ``text(i)`` returns TEXT."""
    return lambda i, target, x: [f"{x}.{text(i)}"]


def _matmul(i: Instruction, target: str, x: str, y: str) -> Phrase:
    if i.args[0].dtype.char in _BLAS and i.args[0].ndim == i.args[1].ndim == 2:
        return [f"{x}.dot({y})"]
    return None


def _linear(i: Instruction, target: str, x: str, w: str, b: str) -> Phrase:
    dtypes = {a.dtype for a in i.args}
    if len(dtypes) != 1 or dtypes.pop().char not in _BLAS or i.args[0].ndim != 2 or i.args[1].ndim != 2:
        return None
    (out,) = i.outs
    bias = f"{b}.reshape({out.shape!r})" if out.size == i.args[2].size else b
    return [f"{x}.dot({w}.T)", f"add_into({target}, {bias}, {target})"]


def _sum(i: Instruction, target: str, x: str) -> Phrase:
    if i.args[0].dtype.itemsize == 2:
        return None
    return [f"total({x}, {i.params['axis']!r}, None, None, {i.params['keepdims']!r})"]


def _mse(i: Instruction, target: str, x: str, y: str) -> Phrase:
    a, b = i.args
    if a.dtype.char not in _BLAS or a.dtype != b.dtype or a.shape != b.shape or not a.size:
        return None
    return [f"{x} - {y}", f"total({target} * {target}, None) / {a.size}"]


def _sech_squared(i: Instruction, target: str, x: str, y: str) -> Phrase:
    a, b = i.args
    if b.dtype.char not in "fd" or a.dtype != b.dtype or a.shape != b.shape or not a.shape:
        return None
    if a.size >= COSTLY_SIZE:  # the forward function computes it in pieces
        return None
    end = f"{x} / {target} / {target}"
    if a.size * a.dtype.itemsize >= LARGE:
        end = f"divide({x} / {target}, {target}, {target}) if reusable({target}, {x}) else {end}"
    return [f"cosh({y})", end]


_PHRASES: dict[str, Callable[..., Phrase]] = {
    "linear": _linear,
    "matmul": _matmul,
    "matrix_transpose": _simple(lambda i: "T" if i.args[0].ndim == 2 else "mT"),
    "mse": _mse,
    "permute_dims": _simple(lambda i: f"transpose({i.params['axes']!r})"),
    "reshape": _simple(lambda i: f"reshape({i.params['shape']!r})"),
    "sech_squared": _sech_squared,
    "sum": _sum,
}
