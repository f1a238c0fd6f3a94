"""The fast paths: run an op on plain tensors and Python numbers, and record it.

One path per number of arguments, written out: a call, a tuple or a comprehension more costs as much
as what it does.  Whatever they do not handle goes to ``careful`` in ``core/record.py``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from numpy import ndarray

from adjoint.config import grad_mode, special
from adjoint.core.explain import explained
from adjoint.core.node import LEAF, Node, Spec, next_seq
from adjoint.core.op import Op
from adjoint.core.record import (
    F32,
    F64,
    NUMBERS32,
    NUMBERS64,
    as_result,
    careful,
    make_node,
    weak_number,
    weak_numbers,
)
from adjoint.core.spread import COSTLY_SIZE, function_in_pieces
from adjoint.core.tensor import Tensor, differentiable, note_view

__all__ = ["eager_of"]

Eager = Callable[..., Any]
NO_PARAMS: dict[str, Any] = {}

_recording = grad_mode.get
_new: Callable[[], Tensor] = functools.partial(object.__new__, Tensor)


def eager_of(op: Op) -> Eager:
    """Make the eager function of an op, by the path that suits its arguments."""
    if op.outputs == 1:
        if op.arity == 1:
            return parametric(op) if op.params else unary(op)
        if op.arity == 2 and not op.params:
            return binary(op)
        if op.arity == 3 and not op.params:
            return ternary(op)
    return general(op)


def unary(op: Op) -> Eager:
    """Make the eager function of an op of one array and no parameters."""
    forward = op.forward
    keeps, keeps_out = op.keeps((True,))
    smooth = op.differentiable
    blank = op.blank
    shapes = op.kind != "elementwise"  # such rules look at the shapes of what was not saved
    large = COSTLY_SIZE if op.costly else sys.maxsize
    views = op.kind == "linear"

    def eager(x: Any, /) -> Tensor:
        if type(x) is not Tensor or special.count:
            return careful(op, (x,), NO_PARAMS)
        data = x._data
        try:
            data = forward(data) if data.size < large else function_in_pieces(forward, data)
        except Exception as error:
            raise explained(op, (x,), NO_PARAMS, error) from None
        if type(data) is not ndarray:
            data = as_result(op, data)
        out = _new()
        out._data = data
        out._version = 0
        out._extra = None
        parent = x._node
        if parent is None or not smooth or not _recording():
            out._node = None
            if views and data.base is not None:
                note_view(out, x)
            return out
        node = Node()
        node.op = op
        node.seq = next_seq()
        if parent is LEAF:
            node.parents = (x,)
            node.versions = ((x, x._version),) if keeps else None
        else:
            node.parents = (parent,)
            node.versions = None
        node.args = (x._data,) if keeps else (Spec(op.name, x.shape, x.dtype),) if shapes else blank
        node.out = data if keeps_out else None
        node.params = NO_PARAMS
        node.shape = data.shape
        node.dtype = data.dtype
        node.extra = None
        out._node = node
        return out

    return eager


def parametric(op: Op) -> Eager:
    """Make the eager function of an op of one array with parameters: reductions, shapes, indexing."""
    forward = op.forward
    keeps, keeps_out = op.keeps((True,))
    smooth = op.differentiable
    blank = op.blank
    shapes = op.kind != "elementwise"
    views = op.kind == "linear"

    def eager(x: Any, /, **params: Any) -> Tensor:
        if type(x) is not Tensor or special.count:
            return careful(op, (x,), params)
        try:
            data = forward(x._data, **params)
        except Exception as error:
            raise explained(op, (x,), params, error) from None
        if type(data) is not ndarray:
            data = as_result(op, data)
        out = _new()
        out._data = data
        out._version = 0
        out._extra = None
        parent = x._node
        if parent is None or not smooth or not _recording() or not differentiable(data.dtype):
            out._node = None
            if views and data.base is not None:
                note_view(out, x)
            return out
        node = Node()
        node.op = op
        node.seq = next_seq()
        if parent is LEAF:
            node.parents = (x,)
            node.versions = ((x, x._version),) if keeps else None
        else:
            node.parents = (parent,)
            node.versions = None
        node.args = (x._data,) if keeps else (Spec(op.name, x.shape, x.dtype),) if shapes else blank
        node.out = data if keeps_out else None
        node.params = params
        node.shape = data.shape
        node.dtype = data.dtype
        node.extra = None
        out._node = node
        return out

    return eager


def binary(op: Op) -> Eager:
    """Make the eager function of an op of two arrays and no parameters."""
    forward = op.forward
    smooth = op.differentiable
    # where no gradient flows to an argument, one that has a history takes the careful path
    rough_x, rough_y = (op.differentiable and not op.smooth(i) for i in (0, 1))
    blank, unsaved = op.blank, op.unsaved
    known64, known32 = ({}, {}) if op.literals else (NUMBERS64, NUMBERS32)
    shapes = op.kind != "elementwise"
    # what the rules read depends on which gradients are wanted: x * 2 keeps no x
    for_x, for_y, for_both = (op.keeps(w) for w in ((True, False), (False, True), (True, True)))
    keeps_none = not any(for_both)

    def eager(x: Any, y: Any, /) -> Tensor:
        if type(x) is Tensor:
            parent_x = x._node
            data_x = x._data
            kind = type(y)
            if kind is Tensor:
                parent_y = y._node
                data_y = y._data
            elif kind is float or kind is int:
                parent_y = None
                # a 0-d array: NumPy takes twice as long to look at a Python number
                dtype = data_x.dtype
                data_y = known64.get(y) if dtype is F64 else known32.get(y) if dtype is F32 else None
                if data_y is None:
                    data_y = weak_number(op, y, dtype)
            else:
                return careful(op, (x, y), NO_PARAMS)
        elif type(y) is Tensor and (type(x) is float or type(x) is int):
            parent_x = None
            parent_y = y._node
            data_y = y._data
            dtype = data_y.dtype
            data_x = known64.get(x) if dtype is F64 else known32.get(x) if dtype is F32 else None
            if data_x is None:
                data_x = weak_number(op, x, dtype)
        else:
            return careful(op, (x, y), NO_PARAMS)
        if special.count or (rough_x and parent_x is not None) or (rough_y and parent_y is not None):
            return careful(op, (x, y), NO_PARAMS)
        try:
            data = forward(data_x, data_y)
        except Exception as error:
            raise explained(op, (x, y), NO_PARAMS, error) from None
        if type(data) is not ndarray:
            data = as_result(op, data)
        out = _new()
        out._data = data
        out._version = 0
        out._extra = None
        if (parent_x is None and parent_y is None) or not smooth or not _recording():
            out._node = None
            return out
        node = Node()
        node.op = op
        node.seq = next_seq()
        if keeps_none:
            node.args = blank
            node.out = None
            node.versions = None
        else:
            if parent_y is None:
                keeps_x, keeps_y, keeps_out = for_x
            elif parent_x is None:
                keeps_x, keeps_y, keeps_out = for_y
            else:
                keeps_x, keeps_y, keeps_out = for_both
            node.args = (
                data_x if keeps_x or type(x) is not Tensor
                else Spec(op.name, x.shape, x.dtype) if shapes else unsaved,
                data_y if keeps_y or type(y) is not Tensor
                else Spec(op.name, y.shape, y.dtype) if shapes else unsaved,
            )  # fmt: skip
            loose_x = keeps_x and type(x) is Tensor and type(x._node) is not Node
            if keeps_y and type(y) is Tensor and type(y._node) is not Node:
                loose_y = (y, y._version)
                node.versions = ((x, x._version), loose_y) if loose_x else (loose_y,)
            else:
                node.versions = ((x, x._version),) if loose_x else None
            node.out = data if keeps_out else None
        node.parents = (
            x if parent_x is LEAF else parent_x,
            y if parent_y is LEAF else parent_y,
        )
        node.params = NO_PARAMS
        node.shape = data.shape
        node.dtype = data.dtype
        node.extra = None
        out._node = node
        return out

    return eager


def ternary(op: Op) -> Eager:
    """Make the eager function of an op of three arrays and no parameters: a layer, a choice."""
    forward = op.forward
    shapes = op.kind != "elementwise"
    unsaved, name = op.unsaved, op.name
    slow = general(op)
    # by which gradients are wanted, x: 1, y: 2, z: 4; None where one of them has no rule
    cases = [
        None if any(w >> i & 1 and not op.smooth(i) for i in range(3))
        else op.keeps((bool(w & 1), bool(w & 2), bool(w & 4)))
        for w in range(8)
    ]  # fmt: skip

    def eager(x: Any, y: Any, z: Any, /) -> Any:
        if type(x) is not Tensor or type(y) is not Tensor or type(z) is not Tensor or special.count:
            return slow(x, y, z)
        parent_x, parent_y, parent_z = x._node, y._node, z._node
        keeps = cases[(parent_x is not None) + 2 * (parent_y is not None) + 4 * (parent_z is not None)]
        if keeps is None:
            return slow(x, y, z)
        data_x, data_y, data_z = x._data, y._data, z._data
        try:
            data = forward(data_x, data_y, data_z)
        except Exception as error:
            raise explained(op, (x, y, z), NO_PARAMS, error) from None
        if type(data) is not ndarray:
            data = as_result(op, data)
        out = _new()
        out._data = data
        out._version = 0
        out._extra = None
        if (
            (parent_x is None and parent_y is None and parent_z is None)
            or not _recording()
            or not differentiable(data.dtype)
        ):
            out._node = None
            return out
        keeps_x, keeps_y, keeps_z, keeps_out = keeps
        node = Node()
        node.op = op
        node.seq = next_seq()
        node.parents = (
            x if parent_x is LEAF else parent_x,
            y if parent_y is LEAF else parent_y,
            z if parent_z is LEAF else parent_z,
        )
        loose: tuple[Any, ...] | None = None
        if keeps_x:
            if type(parent_x) is not Node:
                loose = ((x, x._version),)
        else:
            data_x = Spec(name, data_x.shape, data_x.dtype) if shapes else unsaved
        if keeps_y:
            if type(parent_y) is not Node:
                loose = (*loose, (y, y._version)) if loose else ((y, y._version),)
        else:
            data_y = Spec(name, data_y.shape, data_y.dtype) if shapes else unsaved
        if keeps_z:
            if type(parent_z) is not Node:
                loose = (*loose, (z, z._version)) if loose else ((z, z._version),)
        else:
            data_z = Spec(name, data_z.shape, data_z.dtype) if shapes else unsaved
        node.args = (data_x, data_y, data_z)
        node.versions = loose
        node.out = data if keeps_out else None
        node.params = NO_PARAMS
        node.shape = data.shape
        node.dtype = data.dtype
        node.extra = None
        out._node = node
        return out

    return eager


def general(op: Op) -> Eager:
    """Make the eager function of any op: several arrays, parameters, several outputs."""
    forward = op.forward
    several = op.outputs > 1
    smooth = op.differentiable
    rough = [i for i in range(op.arity or 0) if not op.smooth(i)]
    elementwise = op.kind == "elementwise"
    shift = int(op.arity is not None)  # of any number of arguments one bit tells: a bit each is quadratic

    def eager(*args: Any, **params: Any) -> Any:
        if several or special.count:
            return careful(op, args, params)
        wanted, bit = 0, 1
        arrays: list[Any] = []
        parents: list[Any] = []
        numbers = False
        for a in args:
            if type(a) is Tensor:
                arrays.append(a._data)
                parent = a._node
                if parent is None:
                    parents.append(None)
                else:
                    wanted |= bit
                    parents.append(a if parent is LEAF else parent)
            elif type(a) is float or type(a) is int:
                arrays.append(a)
                parents.append(None)
                numbers = elementwise
            else:
                return careful(op, args, params)
            bit <<= shift
        if numbers:
            arrays = weak_numbers(op, arrays)
        try:
            data = forward(*arrays, **params)
        except Exception as error:
            raise explained(op, args, params, error) from None
        if type(data) is not ndarray:
            data = as_result(op, data)
        out = _new()
        out._data = data
        out._version = 0
        out._extra = None
        out._node = None
        if wanted and smooth and _recording() and differentiable(data.dtype):
            for i in rough:
                parents[i] = None
                wanted &= ~(1 << i)
            if wanted:
                out._node = make_node(op, wanted, args, arrays, params, parents, data)
        return out

    return eager
