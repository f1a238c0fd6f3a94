"""The fast paths: run an op on plain tensors and Python numbers, and record it.

There is one path per number of arguments.  The paths are compiled from text, as ``dataclasses`` compiles
methods: shared parts are written once and inlined, because another function call would double the cost.
``general`` is the path of all other ops.  Calls that these paths do not handle go to ``careful`` in
``core/record.py``.
"""

from __future__ import annotations

import functools
import operator
import textwrap
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint.config import grad_mode, special
from adjoint.core.explain import explained
from adjoint.core.node import FILL, LEAF, Node, Spec, compiled, inlined, next_seq
from adjoint.core.op import Op
from adjoint.core.record import (
    F32,
    F64,
    NUMBERS32,
    NUMBERS64,
    as_result,
    careful,
    constant,
    make_node,
    node_of_smooth,
    weak_number,
    weak_numbers,
)
from adjoint.core.tensor import Tensor, differentiable, note_view
from adjoint.core.user_code import BAD_REGISTRY, REPORTED, USUAL, modes, reported, reported_modes, set_modes
from adjoint.threads.spread import COSTLY_SIZE, function_in_pieces
from adjoint.tracebacks import hide

__all__ = ["UFUNCS", "eager_of", "with_careful_path"]

Eager = Callable[..., Any]
NO_PARAMS: dict[str, Any] = {}

recording = grad_mode.get
new_tensor: Callable[[], Tensor] = functools.partial(object.__new__, Tensor)

# Ops use the ufunc instead of the operator, because an operator first searches both arguments for methods.
UFUNCS: dict[Any, Callable[..., Any]] = {
    operator.add: np.add, operator.sub: np.subtract, operator.mul: np.multiply, operator.truediv: np.divide,
}  # fmt: skip

# The global names of the source texts below.
_NAMES = {
    "F32": F32, "F64": F64, "LEAF": LEAF, "NO_PARAMS": NO_PARAMS, "Node": Node, "Spec": Spec,
    "REPORTED": REPORTED, "Tensor": Tensor, "USUAL": USUAL, "as_result": as_result, "asarray": np.asarray,
    "careful": careful,
    "constant": constant, "differentiable": differentiable, "explained": explained, "float64": np.float64,
    "function_in_pieces": function_in_pieces, "hide": hide, "large": COSTLY_SIZE,
    "ndarray": ndarray, "new_tensor": new_tensor, "next_seq": next_seq, "node_of_smooth": node_of_smooth,
    "note_view": note_view, "recording": recording, "special": special, "weak_number": weak_number,
    "weak_numbers": weak_numbers, "modes": modes, "reported": reported, "reported_modes": reported_modes,
    "set_modes": set_modes, **BAD_REGISTRY,
}  # fmt: skip

# Compute the output with a forward in Python, or with a function in C such as a ufunc.  Floating-point
# warnings name the user's line: see ``reported`` and ``BAD_REGISTRY``.
PYTHON = """
before = modes()
try:
    set_modes(REPORTED if before is USUAL else reported_modes(before))
    data = {call}
except Exception as error:
    raise explained(op, ({arguments},), {params}, error) from None
finally:
    set_modes(before)
"""

C = """
try:
    data = {call}
except Exception as error:
    try:
        if type(error) is not TypeError or error.__traceback__.tb_next is not None:
            raise
        data = reported(forward, {values}, **{params})
    except Exception as error:
        raise explained(op, ({arguments},), {params}, error) from None
"""

# Wrap the output.
WRAP = """
if type(data) is not ndarray:
    data = asarray(data) if type(data) is float64 else as_result(op, data)
out = new_tensor()
out._data = data
out._version = 0
out._extra = None
"""

# Choose what is saved, which depends on the gradients that are wanted: x * 2 does not save x.
CHOOSE = """
saves = saved[{wanted}]
if saves is None:  # only an argument without a rule is part of a graph
    out._node = node_of_smooth(op, ({arguments},), NO_PARAMS, data)
    return out
"""

# Save one argument.  A tensor with a node of its own cannot be written to, so its version is not needed.
SAVE = """
if saves_{x}:
    if type(parent_{x}) is not Node and type({x}) is Tensor:
        # (*versions, …) would make a list first
        versions = (({x}, {x}._version),) if versions is None else versions + (({x}, {x}._version),)
elif type({x}) is Tensor:
    data_{x} = unsaved if elementwise else Spec(name, data_{x}.shape, data_{x}.dtype)
"""

ONE = """
def make(op, forward, saved, numbers64, numbers32):
    name, blank, smooth = op.name, op.blank, op.differentiable
    elementwise, linear = op.kind == "elementwise", op.kind == "linear"
    saves_x, saves_out = saved[1] or (False, False)

    def eager(x, /{more}):
        if type(x) is not Tensor or special.count:
            return careful(op, (x,), {params})
        data_x = x._data
        {wrap}
        parent = x._node
        if parent is None or not smooth or not recording(){integers}:
            out._node = None
            if linear and data.base is not None:
                note_view(out, x)
            return out
        if parent is LEAF:
            parents = (x,)
            versions = ((x, x._version),) if saves_x else None
        else:
            parents = (parent,)
            versions = None
        args = (data_x,) if saves_x else blank if elementwise else (Spec(name, data_x.shape, data_x.dtype),)
        kept = data if saves_out else None
        {fill}
        out._node = node
        return out

    return eager
"""

TWO = """
def make(op, forward, saved, numbers64, numbers32):
    name, unsaved, blank, smooth = op.name, op.unsaved, op.blank, op.differentiable
    elementwise = op.kind == "elementwise"
    saves_none = elementwise and not op.saves_any
    copies = not elementwise or any(op.saves_args)

    known64, known32 = numbers64.get, numbers32.get

    def eager(x, y, /):
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
                data_y = known64(y) if dtype is F64 else known32(y) if dtype is F32 else None
                if data_y is None:
                    data_y = weak_number(op, y, dtype)
            elif kind is float64:
                parent_y = None
                data_y = asarray(y)
            elif kind is ndarray and (y.dtype is F64 or y.dtype is F32) and not special.count:
                parent_y = None
                y = constant(y, copies, (x, y))
                data_y = y._data
            else:
                return careful(op, (x, y), NO_PARAMS)
        elif type(y) is Tensor and type(x) is float64:
            parent_x = None
            data_x = asarray(x)
            parent_y = y._node
            data_y = y._data
        elif type(y) is Tensor and (type(x) is float or type(x) is int):
            parent_x = None
            parent_y = y._node
            data_y = y._data
            dtype = data_y.dtype
            data_x = known64(x) if dtype is F64 else known32(x) if dtype is F32 else None
            if data_x is None:
                data_x = weak_number(op, x, dtype)
        elif (
            type(y) is Tensor and type(x) is ndarray
            and (x.dtype is F64 or x.dtype is F32) and not special.count
        ):
            parent_x = None
            x = constant(x, copies, (x, y))
            data_x = x._data
            parent_y = y._node
            data_y = y._data
        else:
            return careful(op, (x, y), NO_PARAMS)
        if special.count:
            return careful(op, (x, y), NO_PARAMS)
        {wrap}
        if (parent_x is None and parent_y is None) or not smooth or not recording():
            out._node = None
            return out
        if saves_none:
            args = blank
            versions = kept = None
        else:
            {choose}
            saves_x, saves_y, saves_out = saves
            versions = None
            {save_x}
            {save_y}
            args = (data_x, data_y)
            kept = data if saves_out else None
        parents = (x if parent_x is LEAF else parent_x, y if parent_y is LEAF else parent_y)
        {fill}
        out._node = node
        return out

    return eager
"""

THREE = """
def make(op, forward, saved, numbers64, numbers32):
    name, unsaved, smooth = op.name, op.unsaved, op.differentiable
    elementwise = op.kind == "elementwise"
    converts = elementwise and not op.literals

    def eager(x, y, z, /):
        if special.count:
            return careful(op, (x, y, z), NO_PARAMS)
        numbers = False
        {unwrap_x}
        {unwrap_y}
        {unwrap_z}
        if numbers:
            data_x, data_y, data_z = weak_numbers(op, (data_x, data_y, data_z))
        {wrap}
        if (
            (parent_x is None and parent_y is None and parent_z is None)
            or not smooth
            or not recording()
            or not differentiable(data.dtype)
        ):
            out._node = None
            return out
        {choose}
        saves_x, saves_y, saves_z, saves_out = saves
        versions = None
        {save_x}
        {save_y}
        {save_z}
        args = (data_x, data_y, data_z)
        kept = data if saves_out else None
        parents = (
            x if parent_x is LEAF else parent_x,
            y if parent_y is LEAF else parent_y,
            z if parent_z is LEAF else parent_z,
        )
        {fill}
        out._node = node
        return out

    return eager
"""

UNWRAP = """
if type({x}) is Tensor:
    parent_{x} = {x}._node
    data_{x} = {x}._data
elif type({x}) is float or type({x}) is int:
    parent_{x} = None
    data_{x} = {x}
    numbers = converts
else:
    return careful(op, (x, y, z), NO_PARAMS)
"""


@functools.cache
def _path(arity: int, has_params: bool, spread: bool, python: bool) -> Callable[..., Eager]:
    """Compile the fast path for ops of ``arity`` arrays (one to three); return a factory ``make(op, …)``.

    If ``spread`` is true, large arrays are divided into pieces that threads compute.  ``python`` means that
    the forward is a Python function of adjoint.
    """
    names = "xyz"[:arity]
    arguments = ", ".join(names)
    params = "params" if has_params else "NO_PARAMS"
    values = ", ".join(f"data_{x}" for x in names)
    call = f"forward({values}{', **params' if has_params else ''})"
    if spread:
        call += " if data_x.size < large else reported(function_in_pieces, forward, data_x)"
    wanted = (
        "1 if parent_y is None else 2 if parent_x is None else 3" if arity == 2
        else "(parent_x is not None) + 2 * (parent_y is not None) + 4 * (parent_z is not None)"
    )  # fmt: skip
    parts = {
        "wrap": (PYTHON if python else C).format(call=call, arguments=arguments, params=params, values=values)
        + WRAP,
        "choose": CHOOSE.format(wanted=wanted, arguments=arguments),
        "fill": FILL.format(params=params, shape="data.shape", dtype="data.dtype"),
        "params": params,
        "more": ", **params" if has_params else "",
        # the other ops of one or two arrays have a rule only where the result is float or complex
        "integers": " or not (data.dtype is F64 or differentiable(data.dtype))" if has_params else "",
    }
    for x in names:
        parts[f"save_{x}"] = SAVE.format(x=x)
        parts[f"unwrap_{x}"] = UNWRAP.format(x=x)
    text = _hiding(inlined((ONE, TWO, THREE)[arity - 1], parts))
    make: Callable[..., Eager] = compiled(text, f"eager {arity}{params}{spread}{python}", _NAMES)["make"]
    return make


def _hiding(text: str) -> str:
    """Put the body of the function ``eager`` into a ``try`` statement that passes errors to ``hide``."""
    head, start, rest = text.partition("\n    def eager(")
    first, _, rest = rest.partition("\n")
    body, end, tail = rest.partition("\n    return eager")
    ending = "\n        except Exception as error:\n            hide(error)\n            raise\n"
    return f"{head}{start}{first}\n        try:\n{textwrap.indent(body, '    ')}{ending}{end}{tail}"


# By the number of arguments and the bits of the wanted gradients: their indices, and a flag per argument.
_WANTED = {
    arity: [
        ([i for i in range(arity) if w >> i & 1], tuple(bool(w >> i & 1) for i in range(arity)))
        for w in range(2**arity)
    ]
    for arity in (1, 2, 3)
}


def eager_of(op: Op) -> Eager:
    """Return the eager function of an op: a fast path for one to three arrays, otherwise ``general(op)``."""
    arity = op.arity
    if op.outputs > 1 or arity not in (1, 2, 3) or (op.params and arity != 1):
        return general(op)
    # For each set of wanted gradients (as bits): which values are saved.  None if an argument has no rule.
    rough = {i for i in range(arity) if not op.smooth(i)}
    saved = [None if rough and rough & set(bits) else op.keeps(wanted) for bits, wanted in _WANTED[arity]]
    numbers: tuple[Any, Any] = ({}, {}) if op.literals else (NUMBERS64, NUMBERS32)
    forward = UFUNCS.get(op.forward, op.forward)
    python = (getattr(forward, "__module__", None) or "").startswith("adjoint.")
    return _path(arity, bool(op.params), op.costly, python)(op, forward, saved, *numbers)


def with_careful_path(eager: Any, path: Callable[..., Any]) -> Any:
    """Return an eager function of a fast path whose calls of ``careful`` go to ``path``."""
    names = {**eager.__globals__, "careful": path}
    return FunctionType(eager.__code__, names, eager.__name__, eager.__defaults__, eager.__closure__)


def general(op: Op) -> Eager:
    """Return the eager function of an op with any number of arrays, parameters and outputs."""
    forward = op.forward
    several = op.outputs > 1
    smooth = op.differentiable
    rough = [i for i in range(op.arity or 0) if not op.smooth(i)]
    elementwise = op.kind == "elementwise"
    shift = int(op.arity is not None)  # any number of arguments share one bit: one bit each is quadratic

    def eager(*args: Any, **params: Any) -> Any:
        try:
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
                data = reported(forward, *arrays, **params)
            except Exception as error:
                raise explained(op, args, params, error) from None
            if type(data) is not ndarray:
                data = as_result(op, data)
            out = new_tensor()
            out._data = data
            out._version = 0
            out._extra = None
            out._node = None
            if wanted and smooth and recording() and differentiable(data.dtype):
                for i in rough:
                    parents[i] = None
                    wanted &= ~(1 << i)
                if wanted:
                    out._node = make_node(op, wanted, args, arrays, params, parents, data)
            return out
        except Exception as error:
            hide(error)
            raise

    return eager
