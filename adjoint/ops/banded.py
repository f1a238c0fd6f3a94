"""Equations with banded matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.core.define import define
from adjoint.core.infer import Result, broadcast
from adjoint.core.namespace import Namespace, Value
from adjoint.ops.half import wide
from adjoint.ops.matrices import flat_lead, float_dtype
from adjoint.ops.scipy_forward import scipy_function
from adjoint.typing import Array

__all__: list[str] = []

# The rows of x are the diagonals of the matrix: x[upper + i - j, j] is the matrix element (i, j) ----------


def _solve_banded(x: Array, y: Array, lower: int, upper: int) -> Any:
    if x.shape[-2] != lower + upper + 1 or x.shape[-1] != y.shape[-2]:
        raise ValueError(
            f"the first argument must have {lower + upper + 1} diagonals of length {y.shape[-2]}"
        )
    solve = scipy_function("linalg", "solve_banded")
    lead, (bands, sides) = flat_lead((wide(x), 2), (wide(y), 2))
    out = np.empty(sides.shape, float_dtype(x, y))
    kind = np.result_type(out.dtype, np.float32)  # SciPy does not convert integers
    bands, sides = bands.astype(kind, copy=False), sides.astype(kind, copy=False)
    for k in range(len(out) if out.size else 0):
        out[k] = solve((lower, upper), bands[k], sides[k], check_finite=False)
    return out.reshape(*lead, *y.shape[-2:])


def _transposed(xp: Namespace, x: Any, lower: int, upper: int) -> Any:
    """Return the transposed matrix; both matrices are in the layout of ``scipy.linalg.solve_banded``.

    In this layout, each row is a diagonal.  ``x`` has ``lower`` diagonals below and ``upper`` above the main
    diagonal.  Elements of the result that are outside of the matrix are arbitrary.
    """
    rows = [
        xp.roll(x[..., lower + upper - r, :], shift=(lower - r,), axis=(-1,))
        for r in range(lower + upper + 1)
    ]
    return xp.stack(*rows, axis=-2)


def _solve_banded_rule(
    xp: Namespace, g: Value, z: Value, x: Value, y: Value, *, wanted: Sequence[bool], lower: int, upper: int
) -> list[Any]:
    dy = xp.solve_banded(_transposed(xp, x, lower, upper), g, lower=upper, upper=lower)
    if not wanted[0]:
        return [None, dy]
    n, rows = z.shape[-2], []
    for r in range(lower + upper + 1):
        shift = r - upper  # the row of each element minus its column
        rest = max(n - abs(shift), 0)
        left = dy[..., shift:, :] if shift >= 0 else dy[..., :rest, :]
        right = z[..., :rest, :] if shift >= 0 else z[..., n - rest :, :]
        part = -xp.sum(left * right, axis=(-1,), keepdims=False)
        before, after = (0, n - rest) if shift >= 0 else (n - rest, 0)
        none = ((0, 0),) * (len(part.shape) - 1)
        rows.append(xp.pad(part, widths=(*none, (before, after)), value=0))
    return [xp.stack(*rows, axis=-2), dy]


def _full(x: Any, lower: int, upper: int) -> Any:
    n = x.shape[-1]
    i, j = np.indices((n, n))
    inside = (i - j <= lower) & (j - i <= upper)
    return np.where(inside, x[..., np.clip(upper + i - j, 0, lower + upper), j], 0)


def _solve_banded_shape(x: Any, y: Any, lower: int, upper: int) -> Result | None:
    if len(x.shape) < 2 or len(y.shape) < 2 or x.shape[-2:] != (lower + upper + 1, y.shape[-2]):
        return None
    lead = broadcast(x.shape[:-2], y.shape[:-2])
    return None if lead is None else (((*lead, *y.shape[-2:]), float_dtype(x, y)),)


define("solve_banded", _solve_banded, joint=_solve_banded_rule, arity=2, saves="zx", kind="general",
       params=("lower", "upper"), batch="elementwise", shape=_solve_banded_shape,
       reference=lambda x, y, lower, upper: np.linalg.solve(_full(x, lower, upper), y),
       sparsity=(-2, -1), doc="The solution of equations with a banded matrix, whose diagonals are the rows of x.")  # fmt: skip
