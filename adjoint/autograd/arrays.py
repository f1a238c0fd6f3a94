"""Functions of ``autograd.numpy`` that NumPy does not have, or that autograd extends."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import adjoint.numpy as anp
from adjoint.core.tensor import Tensor
from adjoint.numpy.build import Ufunc

__all__ = ["CONSTANTS", "constant", "isscalar", "make_diagonal", "plain", "where"]


def make_diagonal(D: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Return matrices with the last axis of ``D`` on their diagonals, the only placement of autograd."""
    if not (offset == 0 and axis1 == -1 and axis2 == -2):
        raise NotImplementedError("make_diagonal: only offset=0, axis1=-1 and axis2=-2 are supported.")
    return D[..., None] * np.eye(D.shape[-1])


def where(condition: Any, *values: Any, **named: Any) -> Any:
    """Return ``np.where``; a Python bool chooses a number without making an array."""
    values = (*values, *(named[name] for name in ("x", "y")[len(values) :] if name in named))
    if isinstance(condition, bool) and len(values) == 2 and not isinstance(values[0], (np.ndarray, Tensor)):
        return values[0] if condition else values[1]
    return anp.where(condition, *values)


def isscalar(element: Any) -> bool:
    """Return whether a value is a number, as traced values without axes are in autograd."""
    return element.ndim == 0 if isinstance(element, Tensor) else bool(np.isscalar(element))


def plain(found: Any) -> Any:
    """Return the arrays of tensors in a result, which functions may write into, and other values unchanged.

    Tensors that a transform traces have no arrays, and are returned as they are.
    """
    if type(found) in (tuple, list):
        return type(found)(map(plain, found))
    known = isinstance(found, Tensor) and type(found._data) is np.ndarray
    return found.detach().numpy(copy=True)[()] if known else found


def constant(f: Any) -> Any:
    """Return a function without derivative, or whose derivative is zero, with arrays for its results."""
    if isinstance(f, Ufunc):
        return _ConstantUfunc(f._ufunc, f._eager)

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        return plain(f(*args, **kwargs))

    return call


class _ConstantUfunc(Ufunc):
    def _on_tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return plain(super()._on_tensors(args, kwargs))


# autograd does not trace these functions.
CONSTANTS = {
    name: constant(getattr(anp, name))
    for name in """
    floor ceil round rint around fix trunc sign floor_divide all any argmax argmin argpartition
    argsort argwhere nonzero flatnonzero count_nonzero searchsorted logical_and logical_or
    logical_not logical_xor isfinite isinf isnan isneginf isposinf allclose isclose array_equal
    array_equiv greater greater_equal less less_equal equal not_equal iscomplex isreal zeros_like
    ones_like empty_like full_like
    """.split()
}
