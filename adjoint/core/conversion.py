"""Checks for conversions of a tensor to plain numbers, which would lose its gradient."""

from __future__ import annotations

import dis
from types import FrameType
from typing import Any

import numpy as np

from adjoint.config import grad_mode, is_watched
from adjoint.core.lifted import Lifted, Unknown, refusal
from adjoint.core.node import LEAF, Node
from adjoint.core.user_code import library_of, same_in_adjoint, user_call
from adjoint.errors import InputError, LostHistoryError

__all__ = ["asked_by_numpy", "check_conversion", "check_polynomial"]


def asked_by_numpy(frame: FrameType) -> bool:
    """Return whether NumPy, SciPy or scikit-learn, or ``array[i] = x``, in ``frame`` converts a tensor."""
    frame = _caller(frame)
    if library_of(frame) in ("numpy", "scipy", "sklearn"):
        return not in_assertion(frame)
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] == "STORE_SUBSCR"


def in_assertion(frame: FrameType) -> bool:
    """Return whether NumPy's or pytest's code for assertions is running in ``frame``: no numbers leave it."""
    return str(_caller(frame).f_globals.get("__name__")).startswith(("numpy.testing.", "_pytest."))


def in_product(frame: FrameType) -> bool:
    """Return whether SciPy's code for ``matrix @ x``, where the matrix is sparse, is running in ``frame``."""
    frame = _caller(frame)
    if frame.f_code.co_name != "_matmul_dispatch" or library_of(frame) != "scipy":
        return False
    return frame.f_back is not None and frame.f_back.f_code.co_name == "__matmul__"


def _caller(frame: FrameType) -> FrameType:
    """Return the frame that called a method, whose wrapper may be running in ``frame``."""
    back = frame.f_back
    return back if back is not None and frame.f_globals["__name__"] == "adjoint.hints" else frame


def check_conversion(t: Any, target: str, instead: str) -> None:
    """Raise if operations on ``t`` are recorded, because a conversion would lose its gradient.

    In the message, ``target`` names the result of the conversion and ``instead`` is the remedy.
    """
    if not grad_mode.get():
        return
    traced = isinstance(t._data, Unknown)
    if traced:
        t._data.check_running()
    if type(t._node) is Node:
        # a node without parents: the argument of a function that a transform calls
        argument = t._node.parents == (None,)
        what = (
            f"an argument of shape {t.shape}"
            if argument
            else f"the result of {t._node.name!r}, of shape {t.shape},"
        )
    elif t._node is LEAF:
        what = f"a leaf of shape {t.shape} that requires grad"
    elif is_watched(t):
        what = f"a tensor of shape {t.shape} that a tape watches"
    elif isinstance(t._data, Lifted) and t._data.has_history():
        what = f"a value of shape {t.shape} that depends on a graph outside of {t._data.transform}"
    else:
        return
    cure = (
        f"Inside {t._data.transform} a tensor has no values to read: return it, and read it outside."
        if traced
        else "If no gradient is needed, use x.detach(), x.numpy() or x.item()."
    )
    raise refusal(
        LostHistoryError(
            f"{what} would become {target} {user_call()}, and its gradient would be lost.\n"
            f"  {same_in_adjoint() or instead}\n"
            f"  {cure}"
        ),
        traced,
    )


_BETWEEN = frozenset(("adjoint.interop.protocols", "adjoint.core.node"))  # eager paths are made in core.node


def check_polynomial(frame: FrameType, args: tuple[Any, ...]) -> None:
    """Raise if ``numpy.polynomial`` evaluates an array of several polynomials at a tensor.

    Such functions add axes to the coefficients only if ``isinstance(x, np.ndarray)``.  A tensor is not an
    ndarray, so each of its elements would be combined with one polynomial instead of all.  ``frame`` is the
    frame that calls the op, directly or through a ufunc.
    """
    while frame.f_globals.get("__name__") in _BETWEEN and frame.f_back is not None:
        frame = frame.f_back
    module = str(frame.f_globals.get("__name__"))
    if not module.startswith("numpy.polynomial.") or not frame.f_locals.get("tensor", True):
        return
    several = getattr(frame.f_locals.get("x"), "ndim", 1) != 0
    if several and any(isinstance(a, np.ndarray) for a in args) and all(getattr(a, "ndim", 1) for a in args):
        raise InputError(
            f"{module}.{frame.f_code.co_name} treats a tensor as one number, so its result would be wrong.\n"
            "  Evaluate one polynomial at a time with np.polyval(coefficients, x).  For roots use "
            "ad.prod(x[..., None] - roots, axis=-1)."
        )
