"""A warning for float64 inputs of a network with float32 parameters."""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any

import numpy as np

from adjoint.core.tensor import Tensor
from adjoint.core.user_code import warn
from adjoint.nn.module import Module

__all__ = ["warn_if_wider"]

_CALL = Module.__call__.__code__


def warn_if_wider(weight: Tensor, y: Tensor) -> None:
    """Warn if a layer has a float32 weight but a float64 result ``y``.

    The warning names the outermost module being called and its float64 inputs.  It is attributed to the line
    that calls this module, so Python shows it once per line.
    """
    if weight.dtype != np.float32 or y.dtype != np.float64:
        return
    outer: FrameType | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL:
            outer = frame
        frame = frame.f_back
    if outer is None:  # forward() was called directly
        return
    module, kind = outer.f_locals["self"], type(outer.f_locals["self"]).__name__
    wide = _wide_inputs(module, outer.f_locals["args"], outer.f_locals["kwargs"])
    what = (
        " and ".join(f"the input {name!r} is {dtype}" for name, dtype in wide)
        or "an array used inside the module is float64"
    )
    name = wide[0][0] if wide else "x"
    warn(
        f"{kind}: {what}, but the parameters are float32, so the network computes in float64, which takes "
        "more than twice as long.\n"
        f"  Pass {name}.astype(np.float32), or make the parameters float64: model.astype(np.float64).",
        frame=outer,
    )


def _wide_inputs(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the names and dtypes of the inputs that NumPy promotes to float64 if combined with float32."""
    try:
        given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    except TypeError:
        return []
    named = [
        (name, np.asarray(v).dtype if isinstance(v, list) else getattr(v, "dtype", None))
        for name, v in given.items()
    ]
    return [
        (name, d)
        for name, d in named
        if d is not None and d.kind in "fiu" and np.result_type(d, np.float32) == np.float64
    ]
