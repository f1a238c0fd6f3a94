"""Run an op on any tensors, in any mode, and record it.

Plain tensors and Python numbers take the fast paths in ``core/eager.py``.  All other cases
(arrays, lists, values of transforms, tapes, anomaly mode) go to ``careful``.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import ref

import numpy as np
from numpy import ndarray

from adjoint.config import grad_mode, special, tapes
from adjoint.context import Hook, in_rule, observer
from adjoint.context import anomaly as anomaly
from adjoint.context import saved_hooks as saved_hooks
from adjoint.core.conversion import check_polynomial
from adjoint.core.convert import array_of, asarray
from adjoint.core.explain import check_finite, describe, explained
from adjoint.core.lifted import Lifted, Unknown, tracing
from adjoint.core.node import LEAF, Node, Packed, Spec, new_node
from adjoint.core.op import OPS, Op
from adjoint.core.tensor import Tensor, Traced, differentiable, note_reading, note_view, wrap
from adjoint.core.user_code import reported, user_line
from adjoint.core.values import tracked
from adjoint.errors import AdjointError, ArgumentError, DTypeError, InputError, RuleError
from adjoint.threads.spread import COSTLY_SIZE, function_in_pieces

__all__ = [
    "F32", "F64", "NUMBERS32", "NUMBERS64", "STRONG_NUMBERS", "anomaly", "as_result", "at_level", "careful",
    "compute", "evaluate", "innermost", "joined_copy", "make_node", "node_of", "node_of_smooth",
    "output_node", "pick", "record_results", "saved_hooks", "tracked", "weak_number", "weak_numbers",
]  # fmt: skip

_recording = grad_mode.get
F64, F32 = np.dtype(np.float64), np.dtype(np.float32)
# Caches of Python numbers as 0-d arrays.  A program combines few different numbers with tensors, and making
# an array costs as much as an op.  The keys of zeros are "0" and "-0".
NUMBERS64: dict[float | str, ndarray[Any, Any]] = {}
NUMBERS32: dict[float | str, ndarray[Any, Any]] = {}


def as_result(op: Op, data: Any) -> ndarray[Any, Any]:
    """Return the result of a forward as an array, because NumPy returns scalars for 0-d results.

    Raise RuleError if it is not an array of numbers.
    """
    array = np.asarray(data)
    if array.dtype.kind not in "fcbiu" and array.dtype.name != "bfloat16":
        raise RuleError(
            f"the forward of {op.name!r} returned {type(data).__name__}, not an array of numbers."
        )
    return array


# The types of the numbers with which NumPy converts bfloat16 arrays to float32.
STRONG_NUMBERS = (float,) if np.lib.NumpyVersion(np.__version__) >= "2.2.0" else (float, int)


def weak_number(op: Op, value: Any, dtype: Any) -> Any:
    """Return a Python number as a 0-d array of ``dtype`` if that is float or complex; else unchanged.

    Ops that read numbers (``literals``) get them unchanged, except ``STRONG_NUMBERS`` with bfloat16 arrays.
    """
    if op.literals:
        return np.array(value, dtype) if dtype.kind == "V" and type(value) in STRONG_NUMBERS else value
    known = NUMBERS64 if dtype is F64 else NUMBERS32 if dtype is F32 else None
    if known is None and dtype.kind not in "fcV":  # V is bfloat16
        return value
    key = value or ("-0" if math.copysign(1.0, value) < 0 else "0")  # 0.0 and -0.0 are equal
    array = None if known is None else known.get(key)
    if array is None:
        try:
            array = np.array(value, dtype)
        except OverflowError as error:
            raise ArgumentError(f"{op.name}: a number is out of range for {dtype}: {error}") from None
        array.flags.writeable = False
        if known is not None and value == value and len(known) < 1000:  # a NaN is never found again
            known[key] = array
    return array


def float_dtype(values: Sequence[Any]) -> Any:
    """Return the dtype of the float and complex arrays among the arguments of an op, or None."""
    dtype: Any = None
    for v in values:
        own = getattr(v, "dtype", None)
        if own is not None and own is not dtype and own.kind in "fcV":
            dtype = own if dtype is None else np.result_type(dtype, own)
    return dtype


def weak_numbers(op: Op, values: Sequence[Any], arrays: Sequence[Any] | None = None) -> list[Any]:
    """Convert the Python numbers among the arguments of an elementwise op to the dtype of its float arrays.

    A forward may call several NumPy functions; a function that gets only the number would convert it to
    float64.  ``arrays`` are the values that determine the dtype, by default all of ``values``.
    """
    numbers = any(type(v) is float or type(v) is int for v in values)
    dtype = float_dtype(values if arrays is None else arrays) if numbers else None
    if dtype is None:
        return list(values)
    return [weak_number(op, v, dtype) if type(v) is float or type(v) is int else v for v in values]


def _typed_numbers(op: Op, values: Sequence[Any], dtype: Any) -> list[Any]:
    """Return the arguments of an op with traced numbers converted as ``weak_numbers`` converts numbers."""
    numbers = STRONG_NUMBERS if op.literals else (float, int)
    kinds = () if dtype is None or (op.literals and dtype.kind != "V") else numbers
    return [
        v.as_tensor(dtype)._data if isinstance(v, Unknown) and v.weak and v.kind in kinds else v
        for v in values
    ]


def parents_of(op: Op, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return, for each argument, the node or leaf that its gradient flows to; None if no gradient flows."""
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
    """Record one operation and return its node; pass the node to tapes, anomaly mode and saved-tensor hooks.

    Bit i of ``wanted`` is set if argument i has a parent.  ``values`` are the arguments with arrays in place
    of tensors.  ``data`` is the output array, or a tuple of output arrays.  The fast paths create nodes
    inline, from the same source as ``new_node``, because they run only if no tape or mode needs the nodes.
    """
    kept, dropped, keeps_out = op.split(wanted, len(args))
    if dropped:
        values = list(values)
        spec = op.unsaved
        shaped = op.kind != "elementwise"
        for i in dropped:
            if isinstance(args[i], Tensor):
                if shaped:
                    data_i = values[i]
                    shape, dtype = data_i.shape, data_i.dtype
                    if spec.shape != shape or spec.dtype is not dtype:
                        # arguments of stack and concat mostly have one shape: share the Spec
                        spec = Spec(op.name, shape, dtype)
                values[i] = spec
    versions: tuple[Any, ...] | None = None
    for i in kept:
        a = args[i]
        if isinstance(a, Tensor) and type(a._node) is not Node:
            versions = ((a, a._version),) if versions is None else (*versions, (a, a._version))
    out = data if keeps_out else None
    if op.outputs == 1:
        shape, dtype = data.shape, data.dtype
    else:
        shape = tuple(d.shape for d in data)
        dtype = tuple(d.dtype for d in data)
        if keeps_out and op.unread:
            out = tuple(Spec(op.name, d.shape, d.dtype) if i in op.unread else d for i, d in enumerate(data))
    node = new_node(op, tuple(parents), tuple(values), versions, out, params, shape, dtype)
    if special.count:
        _show(node, args)
    return node


def node_of(
    op: Op,
    args: Sequence[Any],
    params: dict[str, Any],
    parents: Sequence[Any],
    data: Any,
    values: Sequence[Any] | None = None,
) -> Node:
    """Record one operation and return its node.

    ``parents`` are the nodes and leaves that the gradients of the arguments flow to, and ``data`` is the
    output.  ``values`` are the arguments of the forward, if numbers among ``args`` were converted.
    """
    wanted = sum([1 << i for i, p in enumerate(parents) if p is not None])
    return make_node(op, wanted, args, values_of(args) if values is None else values, params, parents, data)


def node_of_smooth(
    op: Op, args: tuple[Any, ...], params: dict[str, Any], data: Any, values: Sequence[Any] | None = None
) -> Node | None:
    """Record one operation and return its node; None if no gradient can flow to its arguments.

    A gradient flows to an argument that is part of a graph and has a derivative rule.  ``data`` is the
    output, and ``values`` are as in ``node_of``.
    """
    parents = parents_of(op, args)
    return None if parents is None else node_of(op, args, params, parents, data, values)


def joined_copy(t: Tensor, parent: Any) -> Tensor:
    """Return a copy of ``t`` with its own node, whose gradient flows to ``parent``, or nowhere if None."""
    fresh = wrap(t._data)
    fresh._node = node_of(OPS["copy"], (t,), {}, (parent,), t._data)
    return fresh


def values_of(args: Sequence[Any]) -> list[Any]:
    """Return the arguments of an op with arrays in place of tensors."""
    return [a._data if isinstance(a, Tensor) else a for a in args]


# The careful path ----------------------------------------------------------------------------


# Functions of an op's name and two arguments that no array can be made of: they return the result or
# NotImplemented
OTHERS: list[Callable[[str, Any, Any], Any]] = []


def careful(op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Run an op with any arguments and in any mode, record it if needed, and return its results."""
    if len(args) == 2 and "numpy.polynomial" in sys.modules:
        check_polynomial(sys._getframe(2), args)
    try:
        operands = tuple([coerce(op, a) for a in args])
    except DTypeError:
        for other in OTHERS if len(args) == 2 else ():
            if (found := other(op.name, *args)) is not NotImplemented:
                return found
        raise
    if special.count:
        operands = tuple([wrap(a._data) if hasattr(a, "_rows") else a for a in operands])  # sparse gradients
        note_reading(*operands)
        if (watcher := observer.get()) is not None:
            watcher.begin(op)
    if op.arity is not None and len(operands) != op.arity:
        raise InputError(f"{op.name} takes {op.arity} tensors, but got {len(operands)}.")
    top: Lifted | None = None
    for a in operands:
        if type(a) is Traced and (top is None or a._data.level > top.level):
            top = a._data
    if top is not None:
        operands = tuple([at_level(a, top) for a in operands])
    arrays = saved = tuple(values_of(operands))
    if op.kind == "elementwise" and len(arrays) > 1:
        strong = None if top is None else [a for a in arrays if not getattr(a, "weak", False)]
        arrays = saved = tuple(weak_numbers(op, arrays, strong))
        if strong is not None and len(strong) < len(arrays):
            saved = tuple(_typed_numbers(op, arrays, float_dtype(strong)))
    try:
        if top is not None:
            data = reported(top.evaluate, op, arrays, params)
        elif op.costly and isinstance(arrays[0], ndarray) and arrays[0].size >= COSTLY_SIZE:
            data = reported(function_in_pieces, op.forward, arrays[0])
        else:
            data = reported(op.forward, *arrays, **params)
    except AdjointError:
        raise
    except Exception as error:
        raise explained(op, operands, params, error) from None
    if not special.count and op.outputs == 1:
        out = wrap(data if isinstance(data, (ndarray, Lifted)) else as_result(op, data))
        if op.differentiable and _recording() and differentiable(out.dtype):
            out._node = node_of_smooth(op, operands, params, out._data, saved)
        if op.kind == "linear" and (out._node is None or top is not None):
            note_view(out, operands[0])
        return out
    return record_results(op, operands, params, data, saved)


def record_results(
    op: Op, operands: tuple[Any, ...], params: dict[str, Any], data: Any, values: Sequence[Any] | None = None
) -> Any:
    """Return the results ``data`` of an op as tensors; record the op if a gradient may be needed.

    This is the general case: several outputs, or an active tape or mode.  ``values`` are as in ``node_of``.
    """
    several = op.outputs > 1
    outputs = data if several else (data,)
    outputs = tuple([d if isinstance(d, (ndarray, Lifted)) else as_result(op, d) for d in outputs])
    if special.count:
        if (watcher := observer.get()) is not None:
            watcher.computed(op)
        if anomaly.get() and not in_rule.get():
            check_finite(op, operands, outputs, "forward")
    results = tuple(map(wrap, outputs))
    wants = op.differentiable and _recording() and True in [differentiable(d.dtype) for d in outputs]
    parents = parents_of(op, operands) if wants else None
    if wants and special.count:
        parents = _watched_parents(op, operands, parents)
    if parents is not None:
        node = node_of(op, operands, params, parents, outputs if several else outputs[0], values)
        if several:
            for i, t in enumerate(results):
                if differentiable(t.dtype):
                    t._node = pick(node, i)
            if node.out is not None:
                node.need_extra().picks = [None if t._node is None else ref(t._node) for t in results]
        else:
            results[0]._node = node
    if op.kind == "linear":
        for t in results:
            if t._node is None or type(t) is Traced:
                note_view(t, operands[0])
    if special.count and (watcher := observer.get()) is not None:
        watcher.end(op, operands, params, results)
    return results if several else results[0]


def _show(node: Node, operands: Sequence[Any]) -> None:
    """Tell the active tapes, anomaly mode and saved-tensor hooks about a new node."""
    for tape in tapes.get():
        tape.add(node)
    if anomaly.get():
        extra = node.need_extra()
        extra.where = user_line()
        extra.inputs = describe(node.op, tuple(operands))
    hooks = saved_hooks.get()
    if hooks is not None and node.op.saves_any:
        node.need_extra().packed = True
        numbers = {i for i, operand in enumerate(operands) if not isinstance(operand, Tensor)}
        node.args = tuple(
            _packed(a, *hooks)
            if i not in numbers and isinstance(a, (ndarray, Lifted)) and not _is_leaf_data(a, node)
            else a
            for i, a in enumerate(node.args or ())
        )
        if node.op.outputs > 1 and node.out is not None:
            node.out = tuple([_packed(a, *hooks) for a in node.out])
        elif node.out is not None:
            node.out = _packed(node.out, *hooks)


def _packed(value: Any, pack: Hook, unpack: Hook) -> Any:
    """Return a saved value with its array packed by ``pack``, a saved-tensor hook.

    A value inside ``vmap`` contains an array, or a tensor outside that is part of a graph.  ``pack`` gets
    only the array, so that it cannot lose the graph.
    """
    around: list[Callable[[Any], Any]] = []
    array = value
    while not isinstance(array, (ndarray, Unknown)):
        if type(array) is Spec or (isinstance(array, Tensor) and type(array._node) is not Node):
            return value  # a leaf stays in memory anyway
        around.append(partial(_with_node, array._node) if isinstance(array, Tensor) else array.container())
        array = array._data if isinstance(array, Tensor) else array.value
    return Packed(pack(wrap(array)), unpack, array.shape, array.dtype, around)


def _with_node(node: Node, data: Any) -> Tensor:
    t = wrap(data)
    t._node = node
    return t


def _is_leaf_data(a: Any, node: Node) -> bool:
    """Return whether a saved array is the data of a leaf, which the graph keeps alive anyway."""
    return any(isinstance(p, Tensor) and p._data is a for p in node.parents)


def coerce(op: Op, a: Any) -> Any:
    """Return an argument of an op as a tensor, or as the Python number that it is."""
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
    if isinstance(a, (list, tuple)):
        return asarray(a)
    if special.count and type(a) is ndarray and (trace := tracing.get()) is not None:
        return wrap(trace.array(a))
    array = array_of(a)
    # copy the user's array if backward reads it or the output may share its memory
    keeps = op.kind != "elementwise" or any(op.saves_args)
    return wrap(array.copy() if keeps else array)


def repeat_or_multiply(op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Repeat a list, tuple or text as Python does if the other factor is an integer tensor without axes.

    This is the careful path of the operator ``*``, but not of ``ad.multiply``.
    """
    for a, n in (args, args[::-1]):
        whole = isinstance(n, Tensor) and n.dtype.kind in "iu" and not n.ndim
        if whole and isinstance(a, (list, tuple, str, bytes)):
            return a * operator.index(n)
    return careful(op, args, params)


def constant(array: ndarray[Any, Any], copies: bool, args: tuple[Any, Any]) -> Tensor:
    """Return a float array, an argument of a fast path, as a tensor; copy the array if ``copies``.

    ``args`` are both arguments of the op.
    """
    if "numpy.polynomial" in sys.modules:
        check_polynomial(sys._getframe(2), args)
    return wrap(array.copy() if copies else array)


def innermost(values: Any) -> Lifted | None:
    """Return the value that belongs to the innermost transform; None if no value belongs to a transform."""
    top: Lifted | None = None
    for v in values:
        if isinstance(v, Lifted) and (top is None or v.level > top.level):
            top = v
    return top


def at_level(a: Any, top: Lifted) -> Any:
    """Return an argument of an op as a value of the innermost transform, to which ``top`` belongs.

    A tensor from outside the transform becomes a constant inside it, but stays part of its graph.
    """
    if not isinstance(a, Tensor):
        return a
    data = a._data
    if isinstance(data, Lifted) and data.level == top.level:
        return a
    return wrap(top.lift(a if tracked(a) else data))


def evaluate(op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Evaluate an op on arrays and values of transforms, without recording it at the innermost level."""
    top = innermost(args)
    if top is None:
        return op.forward(*args, **params)
    return top.evaluate(op, args, params)


def compute(op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Evaluate an op on what a transform's values contain: arrays, or values and tensors from outside."""
    plain = True
    for a in args:
        if type(a) is ndarray:
            continue
        if isinstance(a, Tensor):
            # no other code refers to these arrays, so wrap them without a copy
            return op.eager(*(wrap(a) if isinstance(a, (ndarray, Lifted)) else a for a in args), **params)
        plain = plain and not isinstance(a, Lifted)
    return op.forward(*args, **params) if plain else evaluate(op, args, params)


def _watched_parents(
    op: Op, operands: tuple[Any, ...], parents: tuple[Any, ...] | None
) -> tuple[Any, ...] | None:
    """Return ``parents`` plus the operands that a tape watches; None if there are none of either."""
    found = list(parents or (None,) * len(operands))
    for i, a in enumerate(operands):
        if found[i] is None and isinstance(a, Tensor) and op.smooth(i) and tracked(a):
            found[i] = a
    return tuple(found) if any(p is not None for p in found) else None


def output_node(node: Node, index: int) -> Node | None:
    """Return the node of output ``index`` of an op with several outputs; None if the output is not float.

    If the output tensor exists, this is the tensor's node, otherwise a new node.
    """
    extra = node.extra
    if extra is not None and extra.picks is not None:
        known = extra.picks[index]
        if known is None:
            return None  # an output of integers
        found = known()
        if found is not None:
            return found
    return pick(node, index)


def pick(node: Node, index: int) -> Node:
    """Make and return the graph node of output ``index`` of an op with several outputs.

    ``node`` is the node of the op.
    """
    child = new_node(PICK, (node,), (), None, None, {"index": index}, node.shape[index], node.dtype[index])
    if special.count:
        _show(child, ())
    return child


PICK = Op(
    name="output", forward=lambda *outs, index: outs[index], rules=(None,), joint=None, kind="linear",
    arity=1, arg_names=("x",), out_name="y", params=("index",), places=True,
    saves_args=(False,), saves_out=False, reads=((frozenset(), False),),
    doc="One output of an op that has several; the engine passes its gradient on by index.",
)  # fmt: skip
