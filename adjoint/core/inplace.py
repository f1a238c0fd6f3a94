"""Writing into tensors: memory that may be written to, versions, and augmented assignment (``x += y``)."""

from __future__ import annotations

import dis
import operator
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Never

import numpy as np
from numpy import ndarray

from adjoint.config import grad_mode, is_watched, logs, special
from adjoint.core.explain import explained
from adjoint.core.lifted import Unknown, refusal, running, tracing
from adjoint.core.namespace import rec
from adjoint.core.node import LEAF, Node
from adjoint.core.op import OPS
from adjoint.core.record import F32, F64, weak_number
from adjoint.core.references import OF_TENSOR
from adjoint.core.tensor import Tensor, Traced, castable, clock, concrete, writes
from adjoint.core.user_code import REPORTED, USUAL, modes, reported_modes, set_modes
from adjoint.errors import DTypeError, InPlaceError, ShapeError
from adjoint.tracebacks import hide

__all__ = [
    "AUGMENTED", "augmented", "is_view", "log_write", "move_version", "refuse_leaf", "refuse_view",
    "refuse_write", "writable",
]  # fmt: skip


def is_view(t: Tensor) -> bool:
    """Return whether ``t`` is a view of a tensor that still exists."""
    chain = getattr(t, "_source", None)
    while chain is not None:
        source, chain = chain
        if source() is not None:
            return True
    if type(t._node) is Node and type(t._data) is ndarray:
        # A recorded view has no reference to its source.  The source or the graph holds its base array.
        base = t._data.base
        return type(base) is ndarray and sys.getrefcount(base) > OF_TENSOR
    return False


def refuse_view(t: Tensor) -> None:
    """Raise if ``t`` is a view, because a write into it would not change the tensor that it is a view of."""
    if is_view(t):
        raise InPlaceError(
            f"this tensor of shape {t.shape} is a view of another tensor, which the write would not change.\n"
            "  Write into the other tensor (x[0, 1] = 5, not x[0][1] = 5), make a new tensor (y = y + 1), "
            "or copy first (y = y.copy())."
        )


def refuse_leaf() -> Never:
    """Raise InPlaceError, for a write into a leaf that requires grad."""
    raise InPlaceError(
        "this leaf requires grad, and writing into it is not differentiable.\n"
        "  To update its value, write under ad.no_grad(); for a differentiable result make a new tensor: "
        "y = x + 1, or y = x.at[i].set(v)."
    )


def refuse_write(t: Tensor) -> None:
    """Raise if a tensor is part of a graph, because a write would change recorded values."""
    node = t._node
    if special.count and (trace := tracing.get()) is not None:
        node = trace.node_before(t)
    if node is None:
        if is_watched(t) and grad_mode.get():
            refuse_leaf()
    elif node is not LEAF or grad_mode.get():
        if node is LEAF:
            refuse_leaf()
        raise InPlaceError(
            f"this tensor is the result of {node.name!r} and part of a graph: it cannot be written to.\n"
            "  Use y = x.at[i].set(v), which is differentiable, or write into x.detach().clone()."
        )


def writable(t: Tensor) -> ndarray[Any, Any]:
    """Return the array of ``t`` for writing.

    The version of ``t`` is incremented, so that a backward that needs the old values raises.  If anything
    else (a saved value, a returned array) refers to the memory, it is copied first.
    """
    refuse_write(t)
    data = concrete(t, "writing in place")
    log_write(t)  # the log holds the memory, so the write goes to a copy
    if data.base is not None or not data.flags.writeable or sys.getrefcount(data) > OF_TENSOR:
        refuse_view(t)
        data = t._data = data.copy()
    move_version(t)
    return data


def log_write(t: Tensor) -> None:
    """Save the state of a tensor before a write, if the running function may have to be run again."""
    log = writes.get()
    if log is not None:
        log.setdefault(id(t), (t, t._data, t._node, t._version))


def move_version(t: Tensor) -> None:
    """Increment the version of a tensor."""
    if t._node is None:
        clock.now = t._version = clock.now + 1
    else:
        t._version += 1


# Augmented assignment --------------------------------------------------------------------------


class Augmented:
    """One augmented assignment operator: its sign such as "+=", its op, and ``on_arrays(x, y, out)``.

    ``on_arrays`` is the ufunc, except for ``**=`` and ``@=``, for which NumPy's operators do more than the
    ufuncs.
    """

    __slots__ = ("on_arrays", "op", "sign")

    def __init__(self, sign: str, op: str, on_arrays: Callable[[Any, Any, Any], Any]) -> None:
        self.sign, self.op, self.on_arrays = sign, op, on_arrays


def _by_operator(on_two: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    return lambda x, y, _: on_two(x, y)


AUGMENTED = {
    "__iadd__": Augmented("+=", "add", np.add),
    "__isub__": Augmented("-=", "subtract", np.subtract),
    "__imul__": Augmented("*=", "multiply", np.multiply),
    "__itruediv__": Augmented("/=", "divide", np.divide),
    "__ifloordiv__": Augmented("//=", "floor_divide", np.floor_divide),
    "__imod__": Augmented("%=", "remainder", np.remainder),
    "__ipow__": Augmented("**=", "pow", _by_operator(operator.ipow)),
    "__imatmul__": Augmented("@=", "matmul", _by_operator(operator.imatmul)),
    "__iand__": Augmented("&=", "bitwise_and", np.bitwise_and),
    "__ior__": Augmented("|=", "bitwise_or", np.bitwise_or),
    "__ixor__": Augmented("^=", "bitwise_xor", np.bitwise_xor),
    "__ilshift__": Augmented("<<=", "bitwise_left_shift", np.left_shift),
    "__irshift__": Augmented(">>=", "bitwise_right_shift", np.right_shift),
}

_recording, _log = grad_mode.get, writes.get


def augmented(method: str) -> Callable[[Tensor, Any], Tensor]:
    """Return the tensor method ``method`` (for example "__iadd__"), an augmented assignment."""
    assignment = AUGMENTED[method]
    op = OPS[assignment.op]
    on_arrays, exclusive, references = assignment.on_arrays, OF_TENSOR, sys.getrefcount

    def assign(t: Tensor, y: Any, /) -> Tensor:
        try:
            kind = type(y)
            if (
                type(t) is Tensor
                and (kind is Tensor or kind is float or kind is int)
                and not special.count
                and ((t._node is None and (kind is not Tensor or y._node is None)) or not _recording())
            ):
                data = t._data
                dtype = data.dtype
                # the usual case of ``writable``: only this tensor holds the memory.  NumPy does not know the
                # kind of bfloat16, V, and would cast complex numbers to it.
                if (
                    references(data) <= exclusive
                    and data.base is None
                    and (dtype is F32 or dtype is F64 or dtype.kind != "V")
                    and (not logs.count or _log() is None)
                ):
                    if t._node is None:
                        clock.now = t._version = clock.now + 1
                    else:
                        t._version += 1
                    before = modes()
                    try:
                        set_modes(REPORTED if before is USUAL else reported_modes(before))
                        on_arrays(data, y._data if kind is Tensor else weak_number(op, y, dtype), data)
                    except Exception as failure:
                        _explain(assignment, t, y, failure)
                    finally:
                        set_modes(before)
                    return t
            # In x[0] += y the view x[0] is a temporary, and Python writes the result into x.
            if sys.getrefcount(t) <= _TEMPORARY and is_view(t) and _stores_item(sys._getframe(1)):
                return op.eager(t, y)
            return _replace(assignment, t, y)
        except Exception as error:
            hide(error)
            raise

    assign.__name__ = assign.__qualname__ = method
    return assign


def _stores_item(frame: FrameType) -> bool:
    """Return whether the frame is executing ``container[key] += value``, for any augmented operator."""
    code, i = frame.f_code.co_code, frame.f_lasti + 2
    while dis.opname[code[i]] in ("CACHE", "SWAP", "NOP"):
        i += 2
    return dis.opname[code[i]] in ("STORE_SUBSCR", "STORE_SLICE")


class _Probe:
    """Measures the reference count of an object while ``container[key] += value`` runs on it."""

    count = 0

    def __getitem__(self, key: int) -> _Probe:
        return _Probe()

    def __setitem__(self, key: int, value: _Probe) -> None: ...

    def __iadd__(self, other: int) -> _Probe:
        _Probe.count = sys.getrefcount(self)
        return self


def _count_temporary() -> int:
    probe = _Probe()
    probe[0] += 1
    return _Probe.count


_TEMPORARY = _count_temporary()


def _replace(assignment: Augmented, t: Tensor, y: Any) -> Tensor:
    """Replace the value of ``t`` by ``t + y`` (or another operation), and record the operation if needed."""
    recording = _recording()
    if recording and (t._node is LEAF or is_watched(t)):
        refuse_leaf()
    refuse_view(t)
    if type(y) is Traced and (type(t) is not Traced or t._data.level < y._data.level):
        _lift(assignment, t, y)
    result = OPS[assignment.op].eager(t, y)
    _check_fits(assignment, t, result)
    if result.dtype != t.dtype:
        result = rec.astype(result, dtype=t.dtype)
    log_write(t)
    move_version(t)
    t._data = result._data
    if recording:
        before, t._node = t._node, result._node
        if type(before) is Node and type(t._node) is Node:
            _move_retained(t, before)
    return t


def _move_retained(t: Tensor, before: Node) -> None:
    """Call ``retain_grad`` for the new value of ``t`` if it was called for the old value.

    ``before`` is the node of the old value.
    """
    extra = before.extra
    if extra is not None and extra.retain is not None and extra.retain() is t:
        extra.retain = None
        t.retain_grad()


def _lift(assignment: Augmented, t: Tensor, y: Tensor) -> None:
    """Make the data of ``t`` a value of the transform that ``y`` belongs to.

    Raise if ``t`` is part of a graph; leaves are allowed inside ``ad.compile``.
    """
    if type(t._node) is Node or (t._node is LEAF and not isinstance(y._data, Unknown)):
        raise refusal(
            InPlaceError(
                f"x {assignment.sign} y: x is part of a graph outside {y._data.transform}, so it cannot "
                f"change.\n  Make a new tensor: x = x {assignment.sign[:-1]} y."
            ),
            isinstance(y._data, Unknown),
        )
    running(y._data.level).adopt(t)


def _explain(assignment: Augmented, t: Tensor, y: Any, error: Exception) -> Never:
    """Raise an error that says why NumPy's augmented assignment failed with ``error``."""
    op = OPS[assignment.op]
    _check_fits(assignment, t, op.eager(t.detach(), y))
    raise explained(op, (t, y), {}, error) from None


def _check_fits(assignment: Augmented, t: Tensor, found: Tensor) -> None:
    """Raise if ``found``, the result of ``t + y``, has a shape or a dtype that ``t`` cannot store."""
    if found.shape != t.shape:
        raise ShapeError(
            f"x {assignment.sign} y: the result has shape {found.shape}, but x has shape {t.shape}.\n"
            f"  Make a new tensor: x = x {assignment.sign[:-1]} y."
        )
    if not castable(found.dtype, t.dtype):
        raise DTypeError(
            f"x {assignment.sign} y: the result is {found.dtype}, but x is {t.dtype}.\n"
            f"  Make a new tensor: x = x {assignment.sign[:-1]} y."
        )
