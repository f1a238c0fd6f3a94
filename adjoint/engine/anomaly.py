"""``detect_anomaly``: find the first op that produces a NaN or an infinity, forward or backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

import numpy as np

from adjoint.config import special
from adjoint.context import ContextMode
from adjoint.core import record
from adjoint.core.node import Node
from adjoint.core.sparse import SparseRows
from adjoint.core.tensor import Tensor
from adjoint.core.user_code import modes, set_modes
from adjoint.errors import AnomalyError

__all__ = ["check_pulled", "detect_anomaly", "is_on"]


F = TypeVar("F", bound=Callable[..., Any])


class _AnomalyMode(ContextMode[bool]):
    """The context manager of ``detect_anomaly``: each op checks its result, and NumPy's warnings are off."""

    _variable = record.anomaly

    def _present(self) -> tuple[bool, Any]:
        return super()._present(), modes()

    def _apply(self) -> None:
        super()._apply()
        np.seterr(all="ignore")

    def _restore(self, before: tuple[bool, Any]) -> None:
        super()._restore(before[0])
        set_modes(before[1])

    def __enter__(self) -> None:
        special.enter()
        super().__enter__()

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        special.leave()


@overload
def detect_anomaly(mode: bool = True) -> ContextMode[bool]: ...
@overload
def detect_anomaly(mode: F) -> F: ...
def detect_anomaly(mode: Any = True) -> Any:
    """Raise at the first op that produces a NaN or an infinity, forward or backward.

    It is a context manager and a decorator, also for generators and coroutines.  The error names the op,
    the shape, dtype and finite fraction of its inputs, and the line of the program that recorded it.  The
    checks make each op slower.

    Parameters
    ----------
    mode : bool or callable, optional
        Whether to check; a function, if it is used as a decorator without parentheses.

    Returns
    -------
    ContextMode or callable
        The context manager, or the wrapped function.

    Examples
    --------
    >>> import adjoint as ad
    >>> with ad.detect_anomaly():
    ...     ad.log(ad.tensor([1.0, 0.0]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    adjoint.errors.AnomalyError: 'log' produced inf in its forward pass: 1 of 2 elements...
    """
    return _AnomalyMode(True)(mode) if callable(mode) else _AnomalyMode(bool(mode))


def is_on() -> bool:
    """Return whether anomalies are checked in this context."""
    return bool(special.count) and record.anomaly.get()


def check_pulled(node: Node, i: int, gp: Any) -> None:
    """Raise if ``gp``, the gradient of argument ``i`` of an op, is not finite."""
    data = gp._data if isinstance(gp, Tensor) else gp
    data = data.values if type(data) is SparseRows else data
    if not isinstance(data, (np.ndarray, np.generic)) or np.isfinite(data).all():
        return
    what = "NaN" if np.isnan(data).any() else "inf"
    extra = node.extra
    where = extra.where if extra is not None and extra.where else "a line outside detect_anomaly"
    inputs = f"\n  Its inputs:\n{extra.inputs}" if extra is not None and extra.inputs else ""
    raise AnomalyError(
        f"{node.op.name!r} produced {what} in its backward pass, in the gradient of its argument "
        f"{node.op.arg_name(i)!r} of shape {data.shape}: "
        f"{data.size - np.isfinite(data).sum()} of {data.size} elements are not finite.{inputs}"
        f"\n  Recorded at {where}"
    )
