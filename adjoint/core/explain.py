"""Error messages of ops, with the op's name, the shapes, the user's line and a remedy."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint.core.lifted import Lifted
from adjoint.core.op import Op
from adjoint.core.shapes import broadcast_shapes
from adjoint.core.tensor import Tensor, differentiable
from adjoint.core.user_code import user_line
from adjoint.errors import AdjointError, AnomalyError, ArgumentError, DTypeError, IndexingError, ShapeError

__all__ = ["check_finite", "describe", "explained"]


def describe(op: Op, args: tuple[Any, ...]) -> str:
    """Return a description of an op's arguments: shape, dtype and the fraction of finite elements."""
    lines = []
    for i, a in enumerate(args):
        if type(a) is Tensor and type(a._data) is ndarray:
            data = a._data
            finite = f"{np.isfinite(data).mean():.1%} finite" if data.size else "empty"
            lines.append(f"    {op.arg_name(i)}: shape {a.shape}, {a.dtype}, {finite}")
        else:
            lines.append(f"    {op.arg_name(i)}: {a!r}")
    return "\n".join(lines)


def check_finite(op: Op, args: tuple[Any, ...], outputs: tuple[Any, ...], phase: str) -> None:
    """Raise, under ``detect_anomaly``, if an output of an op has a NaN or an infinity.

    ``phase`` is "forward" or "backward", for the message.
    """
    for data in outputs:
        if type(data) is ndarray and differentiable(data.dtype) and not np.isfinite(data).all():
            what = "NaN" if np.isnan(data).any() else "inf"
            raise AnomalyError(
                f"{op.name!r} produced {what} in its {phase} pass: {data.size - np.isfinite(data).sum()} of "
                f"{data.size} elements of shape {data.shape} are not finite.\n"
                f"  Its inputs:\n{describe(op, args)}\n  Recorded at {user_line()}"
            )


_OURS = tuple(os.path.join(os.path.dirname(m.__file__ or ""), "") for m in (np, sys.modules["adjoint"]))


def _raised_by_user(error: Exception) -> bool:
    """Return whether an error was raised by user code: the forward of a user's op, not NumPy or adjoint."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and not trace.tb_frame.f_code.co_filename.startswith(_OURS)


def explained(op: Op, args: tuple[Any, ...], params: dict[str, Any], error: Exception) -> Exception:
    """Return an adjoint error to raise instead of NumPy's ``error``, with the op, the shapes and a remedy."""
    if isinstance(error, AdjointError) or not isinstance(
        error, (ValueError, TypeError, IndexError, OverflowError)
    ):
        return error  # MemoryError, KeyboardInterrupt, FloatingPointError, …
    if _raised_by_user(error):
        error.add_note(f"This happened in the forward of the op {op.name!r}.")
        return error
    for a in args:
        if isinstance(a, Tensor) and isinstance(
            a._data, Lifted
        ):  # of a trace in another thread, or one that ended
            a._data.check_running()
    shapes = [a.shape if isinstance(a, Tensor) else () for a in args]
    dtypes = ", ".join(str(a.dtype) if isinstance(a, Tensor) else type(a).__name__ for a in args)
    if op.kind == "elementwise":
        try:
            broadcast_shapes(op.name, *shapes)
        except ShapeError as better:
            return better
    listed = " and ".join(map(str, shapes))
    if isinstance(error, IndexError) and not isinstance(error, ValueError):  # an AxisError is both
        return IndexingError(f"{op.name}: {error}")
    if isinstance(error, TypeError):
        return DTypeError(f"{op.name}: not defined for {dtypes} (shapes {listed}): {error}")
    if isinstance(error, OverflowError):
        return ArgumentError(f"{op.name}: a number is out of range for {dtypes}: {error}")
    if op.kind == "elementwise":  # the shapes do match
        return ArgumentError(
            f"{op.name}: {error}\n  The arguments are {dtypes}.  Convert one to float first: x.astype(float)."
        )
    return ShapeError(f"{op.name}: shapes {listed} do not match: {error}")
