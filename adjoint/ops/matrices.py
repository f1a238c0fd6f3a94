"""What the ops on matrices share: checks before, the adjoint of a matrix, and who failed in a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.errors import DTypeError, LinAlgError, ShapeError

__all__ = ["adjoint_of", "blame", "floats", "matrices", "square"]


def floats(op: str, x: Any) -> Tensor:
    """Return a tensor of floats; integers become float64, half precision is refused as LAPACK has none."""
    x = asarray(x)
    if x.dtype.kind in "biu":
        return rec.astype(x, dtype=np.dtype(np.float64))
    if x.dtype.itemsize == 2:
        raise DTypeError(f"{op}: LAPACK has no {x.dtype}.  Use x.astype(np.float32).")
    return x


def matrices(op: str, x: Any) -> Tensor:
    """Return a tensor of floats with two axes or more."""
    x = floats(op, x)
    if x.ndim < 2:
        raise ShapeError(f"{op}: takes matrices, in the last two axes, but the shape is {x.shape}.")
    return x


def square(op: str, x: Any) -> Tensor:
    """Return a tensor of floats whose last two axes are equal."""
    x = matrices(op, x)
    if x.shape[-1] != x.shape[-2]:
        raise ShapeError(
            f"{op}: takes square matrices, but the last two axes of shape {x.shape} are {x.shape[-2]} and "
            f"{x.shape[-1]}."
        )
    return x


def adjoint_of(xp: Any, x: Any) -> Any:
    """The conjugate transpose."""
    t = xp.matrix_transpose(x)
    return xp.conj(t) if x.dtype.kind == "c" else t


def blame(op: str, x: Any, fails: Callable[[Any], Any], what: str, cure: str) -> LinAlgError:
    """Make the error that names the first matrix of a batch for which ``fails`` raises."""
    for index in np.ndindex(x.shape[:-2]):
        try:
            fails(x[index])
        except np.linalg.LinAlgError:
            which = f"matrix {index[0] if len(index) == 1 else index} of the batch" if index else "the matrix"
            break
    else:
        which = "a matrix"
    broken = "" if np.isfinite(x).all() else "  It has NaN or inf among its elements."
    return LinAlgError(f"{op}: {which} {what} (shape {x.shape}).{broken}\n  {cure}")
