"""Run an op on tensors and record it: the one door through which every op goes.

``unary`` and ``binary`` make the fast paths for ops without parameters, ``general`` the path for
all others.  They handle plain tensors and Python numbers; whatever else comes (arrays, lists,
values of transforms, tapes, anomaly mode) goes to ``careful``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint.config import grad_mode, special
from adjoint.core.lifted import Lifted
from adjoint.core.node import LEAF, Node, Packed, Spec, next_seq
from adjoint.core.op import Op
from adjoint.core.shapes import broadcast_shapes
from adjoint.core.tensor import Tensor, Traced, array_of, differentiable, wrap
from adjoint.errors import (
    AdjointError,
    AnomalyError,
    ArgumentError,
    DTypeError,
    IndexingError,
    InputError,
    RuleError,
    ShapeError,
)

__all__ = [
    "anomaly",
    "at_level",
    "binary",
    "compute",
    "evaluate",
    "general",
    "innermost",
    "node_of",
    "parametric",
    "record_results",
    "saved_hooks",
    "tapes",
    "unary",
    "user_line",
]

Eager = Callable[..., Any]
NO_PARAMS: dict[str, Any] = {}

anomaly: ContextVar[bool] = ContextVar("adjoint_anomaly", default=False)
tapes: ContextVar[tuple[Any, ...]] = ContextVar("adjoint_tapes", default=())
saved_hooks: ContextVar[tuple[Callable[[Any], Any], Callable[[Any], Any]] | None] = ContextVar(
    "adjoint_saved_hooks", default=None
)

_recording = grad_mode.get
_array = np.array
_asarray = np.asarray
_F64, _F32 = np.dtype(np.float64), np.dtype(np.float32)
# the numbers that a program combines with tensors are few; making an array costs as much as an op
_NUMBERS64: dict[float, ndarray[Any, Any]] = {}
_NUMBERS32: dict[float, ndarray[Any, Any]] = {}
_new = object.__new__


def unary(op: Op) -> Eager:
    """Make the eager function of an op of one array and no parameters."""
    forward = op.forward
    keeps, keeps_out = op.keeps((True,))
    smooth = op.differentiable
    blank = op.blank
    shapes = op.kind != "elementwise"  # such rules look at the shapes of what was not saved

    def eager(x: Any, /) -> Tensor:
        if type(x) is not Tensor or special.count:
            return careful(op, (x,), NO_PARAMS)
        try:
            data = forward(x._data)
        except Exception as error:
            raise explained(op, (x,), NO_PARAMS, error) from None
        if type(data) is not ndarray:
            data = _result(op, data)
        out = _new(Tensor)
        out._data = data
        out._version = 0
        out._extra = None
        parent = x._node
        if parent is None or not smooth or not _recording():
            out._node = None
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

    def eager(x: Any, /, **params: Any) -> Tensor:
        if type(x) is not Tensor or special.count:
            return careful(op, (x,), params)
        try:
            data = forward(x._data, **params)
        except Exception as error:
            raise explained(op, (x,), params, error) from None
        if type(data) is not ndarray:
            data = _result(op, data)
        out = _new(Tensor)
        out._data = data
        out._version = 0
        out._extra = None
        parent = x._node
        if parent is None or not smooth or not _recording() or not differentiable(data.dtype):
            out._node = None
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
    arrays = not op.literals
    shapes = op.kind != "elementwise"
    # what the rules read depends on which gradients are wanted: x * 2 keeps no x
    for_x, for_y, for_both = (op.keeps(w) for w in ((True, False), (False, True), (True, True)))
    keeps_none = not any(for_both)

    def eager(x: Any, y: Any, /) -> Tensor:
        if type(x) is Tensor:
            parent_x = x._node
            data_x = x._data
            if type(y) is Tensor:
                parent_y = y._node
                data_y = y._data
            elif type(y) is float or type(y) is int:
                parent_y = None
                # a 0-d array: NumPy takes twice as long to look at a Python number, here and in
                # the rules; where that changes the dtype the number stays
                data_y = _number(op, y, data_x.dtype) if arrays else y
            else:
                return careful(op, (x, y), NO_PARAMS)
        elif type(y) is Tensor and (type(x) is float or type(x) is int):
            parent_x = None
            parent_y = y._node
            data_y = y._data
            data_x = _number(op, x, data_y.dtype) if arrays else x
        else:
            return careful(op, (x, y), NO_PARAMS)
        if special.count or (rough_x and parent_x is not None) or (rough_y and parent_y is not None):
            return careful(op, (x, y), NO_PARAMS)
        try:
            data = forward(data_x, data_y)
        except Exception as error:
            raise explained(op, (x, y), NO_PARAMS, error) from None
        if type(data) is not ndarray:
            data = _result(op, data)
        out = _new(Tensor)
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


def _number(op: Op, value: Any, dtype: Any) -> Any:
    """Return a Python number as a 0-d array of a float dtype; for others it stays."""
    if dtype is _F64:
        known = _NUMBERS64
    elif dtype is _F32:
        known = _NUMBERS32
    else:
        return value
    array = known.get(value)
    if array is None:
        try:
            array = _array(value, dtype)
        except OverflowError as error:
            raise explained(op, (value,), NO_PARAMS, error) from None
        array.flags.writeable = False
        if value and len(known) < 1000:  # 0 equals -0
            known[value] = array
    return array


def _result(op: Op, data: Any) -> ndarray[Any, Any]:
    """Return as an array what a forward gave instead of one: a NumPy scalar, for 0-d results."""
    array = _asarray(data)
    if array.dtype.kind not in "fcbiu" and array.dtype.name != "bfloat16":
        raise RuleError(
            f"the forward of {op.name!r} returned {type(data).__name__}, not an array of numbers."
        )
    return array


def general(op: Op) -> Eager:
    """Make the eager function of any op: several arrays, parameters, several outputs."""
    forward = op.forward
    several = op.outputs > 1
    smooth = op.differentiable
    rough = [i for i in range(op.arity or 0) if not op.smooth(i)]

    def eager(*args: Any, **params: Any) -> Any:
        if several or special.count:
            return careful(op, args, params)
        wanted, bit = 0, 1
        arrays = []
        parents: list[Any] = []
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
            else:
                return careful(op, args, params)
            bit += bit
        try:
            data = forward(*arrays, **params)
        except Exception as error:
            raise explained(op, args, params, error) from None
        if type(data) is not ndarray:
            data = _result(op, data)
        out = _new(Tensor)
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


def parents_of(op: Op, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return where the gradients of the arguments go; None if nowhere."""
    found = False
    parents = []
    for i, a in enumerate(args):
        parent = getattr(a, "_node", None)
        if parent is not None and not op.smooth(i):
            parent = None
        found = found or parent is not None
        parents.append(a if parent is LEAF else parent)
    return tuple(parents) if found else None


def make_node(
    op: Op,
    wanted: int,
    args: Sequence[Any],
    values: Sequence[Any],
    params: dict[str, Any],
    parents: Sequence[Any],
    data: Any,
) -> Node:
    """Record one operation.

    ``wanted`` has the bit of each argument that has a parent, ``values`` are the arguments without
    their tensors, ``data`` is its output array, or a tuple of them.
    """
    kept, dropped, keeps_out = op.split(wanted, len(args))
    node = Node()
    node.op = op
    node.seq = next_seq()
    node.parents = tuple(parents)
    if dropped:
        values = list(values)
        for i in dropped:
            if isinstance(args[i], Tensor):
                data_i = values[i]
                values[i] = (
                    op.unsaved if op.kind == "elementwise" else Spec(op.name, data_i.shape, data_i.dtype)
                )
    node.args = tuple(values)
    loose: tuple[Any, ...] | None = None
    for i in kept:
        a = args[i]
        if isinstance(a, Tensor) and type(a._node) is not Node:
            loose = ((a, a._version),) if loose is None else (*loose, (a, a._version))
    node.versions = loose
    node.out = data if keeps_out else None
    node.params = params
    if op.outputs > 1:
        node.shape = tuple(d.shape for d in data)
        node.dtype = tuple(d.dtype for d in data)
        if keeps_out and op.unread:
            node.out = tuple(
                Spec(op.name, d.shape, d.dtype) if i in op.unread else d for i, d in enumerate(data)
            )
    else:
        node.shape = data.shape
        node.dtype = data.dtype
    node.extra = None
    return node


def node_of(op: Op, args: Sequence[Any], params: dict[str, Any], parents: Sequence[Any], data: Any) -> Node:
    """Record one operation, off the fast paths."""
    wanted = sum(1 << i for i, p in enumerate(parents) if p is not None)
    return make_node(op, wanted, args, values_of(args), params, parents, data)


def values_of(args: Sequence[Any]) -> list[Any]:
    """Return the arguments of an op without their tensors."""
    return [a._data if isinstance(a, Tensor) else a for a in args]


# The careful path ----------------------------------------------------------------------------


def careful(op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Run and record an op whatever its arguments are and whichever modes are on."""
    operands = tuple([coerce(op, a) for a in args])
    if op.arity is not None and len(operands) != op.arity:
        raise InputError(f"{op.name}: takes {op.arity} tensors, but got {len(operands)}.")
    top: Lifted | None = None
    for a in operands:
        if type(a) is Traced and (top is None or a._data.level > top.level):
            top = a._data
    if top is not None:
        operands = tuple([at_level(a, top) for a in operands])
    arrays = tuple(values_of(operands))
    try:
        data = op.forward(*arrays, **params) if top is None else top.evaluate(op, arrays, params)
    except AdjointError:
        raise
    except Exception as error:
        raise explained(op, operands, params, error) from None
    if not special.count and op.outputs == 1:
        out = wrap(data if isinstance(data, (ndarray, Lifted)) else _result(op, data))
        if op.differentiable and _recording() and differentiable(out.dtype):
            parents = parents_of(op, operands)
            if parents is not None:
                out._node = node_of(op, operands, params, parents, out._data)
        return out
    return record_results(op, operands, params, data)


def record_results(op: Op, operands: tuple[Any, ...], params: dict[str, Any], data: Any) -> Any:
    """Wrap and record the results of an op that has several, or while tapes and the like look on."""
    active = tapes.get() if special.count else ()
    several = op.outputs > 1
    outputs = data if several else (data,)
    outputs = tuple(d if isinstance(d, (ndarray, Lifted)) else _asarray(d) for d in outputs)
    checks = special.count and anomaly.get()
    if checks:
        check_finite(op, operands, outputs, "forward")
    results = tuple(map(wrap, outputs))
    wants = op.differentiable and _recording() and any(differentiable(d.dtype) for d in outputs)
    parents = parents_of(op, operands) if wants else None
    if wants and active:
        parents = _watched_parents(op, operands, parents, active)
    if parents is not None:
        node = node_of(op, operands, params, parents, outputs if several else outputs[0])
        _dress(node, operands, active, checks)
        if several:
            for i, t in enumerate(results):
                if differentiable(t.dtype):
                    t._node = pick(node, i)
                    for tape in active:
                        tape.add(t._node)
        else:
            results[0]._node = node
    return results if several else results[0]


def _dress(node: Node, operands: tuple[Any, ...], active: tuple[Any, ...], checks: Any) -> None:
    """Do what tapes, anomaly mode and saved-tensor hooks ask for at a new node."""
    for tape in active:
        tape.add(node)
    if checks:
        extra = node.need_extra()
        extra.where = user_line()
        extra.inputs = describe(node.op, operands)
    hooks = saved_hooks.get() if special.count else None
    if hooks is not None and node.op.saves_any:
        pack, unpack = hooks

        def packed(a: Any) -> Any:
            return a if type(a) is Spec else Packed(pack(wrap(a)), unpack, a.shape, a.dtype)

        node.need_extra().packed = True
        node.args = tuple(
            packed(a) if isinstance(a, (ndarray, Lifted)) and not _is_leaf_data(a, node) else a
            for a in node.args or ()
        )
        if node.out is not None:
            node.out = tuple(map(packed, node.out)) if node.op.outputs > 1 else packed(node.out)


def _is_leaf_data(a: Any, node: Node) -> bool:
    """Tell whether a saved array is a leaf's, which the graph keeps anyway."""
    return any(isinstance(p, Tensor) and p._data is a for p in node.parents)


def coerce(op: Op, a: Any) -> Any:
    """Return an argument as a tensor or a Python number."""
    if isinstance(a, Tensor) or type(a) in (float, int, bool, complex):
        return a
    if isinstance(a, Lifted):
        return wrap(a)
    if a is None or isinstance(a, (str, bytes)):
        raise InputError(
            f"{op.name}: expected a tensor, an array or a number, but got {a!r}."
            if a is None
            else f"{op.name}: expected a tensor, an array or a number, but got the text {a!r}."
        )
    array = array_of(a)
    # memory from outside is copied where backward reads it or the output could share it
    keeps = op.kind != "elementwise" or any(op.saves_args)
    return wrap(array.copy() if keeps else array)


def innermost(values: Any) -> Lifted | None:
    """Return the lifted value with the innermost level, if there is any."""
    top: Lifted | None = None
    for v in values:
        if isinstance(v, Lifted) and (top is None or v.level > top.level):
            top = v
    return top


def at_level(a: Any, top: Lifted) -> Any:
    """Lift a tensor of an outer level, with its history if it has one, to that of ``top``."""
    if not isinstance(a, Tensor):
        return a
    data = a._data
    if isinstance(data, Lifted) and data.level == top.level:
        return a
    return wrap(top.lift(a if a._node is not None else data))


def evaluate(op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Evaluate an op on arrays and lifted values, without recording at this level."""
    top = innermost(args)
    if top is None:
        return op.forward(*args, **params)
    return top.evaluate(op, args, params)


def compute(op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Evaluate an op on what a lifted value holds: arrays, outer lifted values, outer tensors."""
    plain = True
    for a in args:
        if type(a) is ndarray:
            continue
        if isinstance(a, Tensor):
            # nobody outside has these arrays: wrapped, so that no copy is made
            return op.eager(*(wrap(a) if isinstance(a, (ndarray, Lifted)) else a for a in args), **params)
        plain = plain and not isinstance(a, Lifted)
    return op.forward(*args, **params) if plain else evaluate(op, args, params)


def _watched_parents(
    op: Op, operands: tuple[Any, ...], parents: tuple[Any, ...] | None, active: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """Add the tensors that a tape watches, although they do not require grad."""
    found = list(parents or (None,) * len(operands))
    for i, a in enumerate(operands):
        if found[i] is None and isinstance(a, Tensor) and op.smooth(i) and _any_watches(active, a):
            found[i] = a
    return tuple(found) if any(p is not None for p in found) else None


def _any_watches(active: tuple[Any, ...], a: Tensor) -> bool:
    return any(tape.watches(a) for tape in active)


def pick(node: Node, index: int) -> Node:
    """Make the node of one output of an op that has several."""
    child = Node()
    child.op = PICK
    child.seq = next_seq()
    child.parents = (node,)
    child.args = ()
    child.versions = None
    child.out = None
    child.params = {"index": index}
    child.shape = node.shape[index]
    child.dtype = node.dtype[index]
    child.extra = None
    return child


PICK = Op(
    name="output",
    forward=lambda *outs, index: outs[index],
    rules=(None,),
    joint=None,
    kind="linear",
    arity=1,
    arg_names=("x",),
    out_name="y",
    saves_args=(False,),
    saves_out=False,
    reads=((frozenset(), False),),
    params=("index",),
    outputs=1,
    jvp=None,
    batch=None,
    fused=None,
    holomorphic=True,
    domain=None,
    doc="One output of an op that has several; the engine passes its gradient on by index.",
    reason="",
)


# What went wrong -----------------------------------------------------------------------------


def user_line() -> str:
    """Return "file:line" of the innermost frame outside adjoint."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("adjoint."):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def describe(op: Op, args: tuple[Any, ...]) -> str:
    """Describe the arguments of an op: shape, dtype and the fraction that is finite."""
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
    """Raise, under detect_anomaly, if an output has a NaN or an infinity."""
    for data in outputs:
        if type(data) is ndarray and differentiable(data.dtype) and not np.isfinite(data).all():
            what = "NaN" if np.isnan(data).any() else "inf"
            raise AnomalyError(
                f"{op.name!r} produced {what} in its {phase} pass: {data.size - np.isfinite(data).sum()} of "
                f"{data.size} elements of shape {data.shape} are not finite.\n"
                f"  Its inputs:\n{describe(op, args)}\n  Recorded at {user_line()}"
            )


_OURS = tuple(os.path.dirname(m.__file__ or "") for m in (np, sys.modules["adjoint"]))


def _raised_by_user(error: Exception) -> bool:
    """Tell whether an error arose in a file of neither NumPy nor adjoint: in an op's own forward."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and not trace.tb_frame.f_code.co_filename.startswith(_OURS)


def explained(op: Op, args: tuple[Any, ...], params: dict[str, Any], error: Exception) -> Exception:
    """Turn an error of NumPy into one that names the op, the shapes and the cure."""
    if isinstance(error, AdjointError) or not isinstance(
        error, (ValueError, TypeError, IndexError, OverflowError)
    ):
        return error  # not ours to explain: MemoryError, KeyboardInterrupt, FloatingPointError …
    if _raised_by_user(error):
        error.add_note(f"This happened in the forward of the op {op.name!r}.")
        return error
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
        return ArgumentError(f"{op.name}: a number does not fit the dtype {dtypes}: {error}")
    if op.kind == "elementwise":  # the shapes do fit
        return ArgumentError(
            f"{op.name}: {error}\n  Its arguments are {dtypes}: make one of them a float, x.astype(float)."
        )
    return ShapeError(f"{op.name}: shapes {listed} do not fit: {error}")
