"""Propagate a gradient through one recorded op, and add the results to the gradients of the parents.

To *pull* a gradient means to apply the derivative rules of a node to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint import words
from adjoint.context import in_rule, within
from adjoint.core.lifted import Lifted, Unknown
from adjoint.core.namespace import Namespace, Value, dyn, raw, rec
from adjoint.core.node import Node
from adjoint.core.op import Op
from adjoint.core.record import PICK, output_node
from adjoint.core.shapes import reduced_axes
from adjoint.core.sparse import SparseRows, added
from adjoint.core.tensor import Tensor, wrap
from adjoint.engine.anomaly import check_pulled
from adjoint.engine.rules import on_one_level, unpacked
from adjoint.engine.zeros import (
    Masked,
    Zeros,
    also_picked,
    arriving,
    cleaned,
    meet,
    picked,
    same,
    summed_zeros,
    through,
)
from adjoint.errors import GraphReleasedError, ModifiedError, RuleError

if TYPE_CHECKING:
    from adjoint.engine.run import Run

__all__ = [
    "add", "contribute", "joined", "narrowed_gradient", "no_array", "overwritten", "pull", "pull_checked",
    "release", "saved_values",
]  # fmt: skip


_F64, _F32 = np.dtype(np.float64), np.dtype(np.float32)
np_add = np.add


def _prepared(
    node: Node, g: Any, xp: Namespace, zeros: Any, direct: bool, values: Any, out: Any, needed: Any
) -> tuple[Any, Any, Any, bool, Any]:
    """Prepare the pull of an op that is not usual, or of a gradient with zeros or of a rare dtype.

    Return the gradient without its zeros, the gradient that the rules get, the zeros of the contributions of
    an elementwise op, whether contributions are added directly, and those of a joint rule.
    """
    op, stained = node.op, None
    if zeros is not None and op.pointwise:
        stained = zeros.stain() if direct else None
    elif zeros is not None and op.outputs == 1:
        g = cleaned(xp, g, zeros)
    given = _conj(xp, g) if _conjugates(op, node.dtype) else g
    direct = direct and given is g and (stained is not None or (zeros is None and not op.selects))
    joint = None if op.joint is None else pull_joint(node, given, xp, values, out, needed, zeros)
    return g, given, stained, direct, joint


def pull(run: Run, node: Node, g: Any, zeros: Any, needed: set[Any] | None, kept: list[Any] | None) -> None:
    """Pull the gradient ``g`` of a node through the node, and add a contribution to each parent.

    A parallel run adds the contributions itself, in the order of the plan: they are stored in ``kept``, which
    initially has None for each parent.  ``zeros`` are the zeros of ``g`` (see ``engine/zeros.py``), one per
    output if there are several. The values that the node saved are released, unless the run retains them.
    """
    op, xp, grads = node.op, run.xp, run.grads
    if needed is not None and run.captured and needed.isdisjoint(node.parents):
        return  # the gradient of this node itself was asked for
    out, params, dtype = node.out, node.params, node.dtype
    values = node.args  # after the output, because another thread that releases the node drops them first
    if values is None:
        raise released(node)
    if node.versions is not None:
        for t, version in node.versions:
            if t._version != version:
                raise modified(node, t)
    if node.extra is not None or xp is rec:
        values, out = _read(node, values, out, xp)
    given, joint, stained = g, None, None  # stained: the zeros of the contributions of an elementwise op
    direct = kept is None  # whether contributions are added here, without ``_give``
    if zeros is not None or not op.usual or (dtype is not _F64 and dtype is not _F32):
        if op.places and _placed(run, node, g, zeros, kept):
            return
        g, given, stained, direct, joint = _prepared(node, g, xp, zeros, direct, values, out, needed)
    rules, i = op.rules, -1  # counting by hand: zip and enumerate cost three times as much
    count = 0 if params or joint is not None else len(values)  # 0: called with *, which takes twice as long
    for parent in node.parents:
        i += 1
        if parent is None or (needed is not None and parent not in needed):
            continue
        if count == 2:
            gp = rules[i](xp, given, out, values[0], values[1])
        elif count == 1:
            gp = rules[i](xp, given, out, values[0])
        elif count == 3:
            gp = rules[i](xp, given, out, values[0], values[1], values[2])
        elif joint is None:
            gp = rules[i](xp, given, out, *values, **params)
        elif (gp := joint[i]) is None:
            continue
        like = parent if type(parent) is Node else parent._data
        try:
            fits = gp.shape == like.shape and gp.dtype is like.dtype
        except AttributeError:
            fits = False
        if not fits or not direct or (stained is not None and gp.shape != node.shape):
            _give(run, node, i, parent, g, gp, zeros, fits and given is g, kept)
        elif parent not in grads:
            grads[parent] = gp
            if stained is not None:
                run.zeros[parent] = zeros if gp is g else stained
        elif parent in run.owned and (run.zeros.get(parent) is stained if run.zeros else stained is None):
            total = grads[parent]
            np_add(total, gp, total)
        else:
            add(run, parent, gp, zeros if gp is g else stained)
    if not run.retain and op.saves_any:
        node.args = node.out = node.versions = None  # the versions refer to the tensors


def pull_checked(
    run: Run, node: Node, g: Any, zeros: Any, needed: set[Any] | None, kept: list[Any] | None
) -> None:
    """Pull the gradient as ``pull`` does, and raise if a contribution is not finite."""
    found: list[Any] = [None] * len(node.parents)
    # a rule may use infinities on the way to a finite result
    within(in_rule, not node.op.call, pull, run, node, g, zeros, needed, found)
    for i, gp in enumerate(found):
        if type(gp) is Masked:
            gp.g = cleaned(run.xp, gp.g, gp.zeros)
        if gp is None:
            continue
        if node.op is not PICK:
            check_pulled(node, i, gp.g if type(gp) in (Masked, Placed) else gp)
        if kept is None:
            contribute(run, node.parents[i], gp)
        else:
            kept[i] = gp


def _give(
    run: Run, node: Node, i: int, parent: Any, g: Any, gp: Any, zeros: Any, fits: bool, kept: list[Any] | None
) -> None:
    """Add ``gp``, the gradient of argument ``i`` by its rule, to the gradient of ``parent`` or to ``kept``.

    ``zeros`` are the zeros (``engine/zeros.py``) of ``g``, the gradient of the node.  With ``fits``, ``gp``
    already has the shape and dtype of the parent.
    """
    op, xp = node.op, run.xp
    own: Zeros | None = None
    if fits and op.pointwise:
        if zeros is not None and gp.shape == node.shape:
            own = zeros if gp is g else zeros.stain()
    elif type(gp) is Masked:  # from the op of a user's function, which found the zeros itself
        gp, own = gp.g, gp.zeros
    elif op.selects or (zeros is not None and not op.pointwise):
        own = through(node, i, g, zeros, parent.shape)
    elif zeros is not None and getattr(gp, "shape", None) == node.shape:  # elements are summed below
        own = zeros if gp is g else zeros.stain()
        gp, own = cleaned(xp, gp, own), summed_zeros((own,), parent.shape)
    if not fits:
        gp = _fitted(node, i, parent, gp, xp)
    if own is not None and not own.stained and type(parent) is not Node:
        own = None  # a leaf is the end of the run: zeros that are clean need not be kept
    if kept is not None:
        kept[i] = gp if own is None else Masked(gp, own)
    elif parent in run.grads:
        add(run, parent, gp, own)
    else:
        run.grads[parent] = gp
        if own is not None:
            run.zeros[parent] = own


def saved_values(node: Node, xp: Namespace) -> tuple[tuple[Any, ...], Any]:
    """Return the arguments and the output that a node saved, as values of the namespace ``xp``."""
    out = node.out  # before the arguments, see ``pull``
    values = node.args
    if values is None:
        raise released(node)
    _check_versions(node)
    return _read(node, values, out, xp)


def _read(node: Node, values: tuple[Any, ...], out: Any, xp: Namespace) -> tuple[tuple[Any, ...], Any]:
    if node.extra is not None and node.extra.packed:
        values, out = unpacked(values), unpacked(out)
    return _attached(node, values, out) if xp is rec else (values, out)


def _conjugates(op: Op, dtype: Any) -> bool:
    """Return whether the engine conjugates the gradient before and after it calls a rule of ``op``.

    ``dtype`` is the dtype of the output, or a tuple of dtypes for several outputs.
    """
    if not op.holomorphic:
        return False
    return any(d.kind == "c" for d in dtype) if type(dtype) is tuple else dtype.kind == "c"


def _conj(xp: Namespace, g: Value) -> Any:
    if type(g) is not list:
        return xp.conj(g)
    return tuple(None if each is None else xp.conj(each) for each in g)


def _fitted(node: Node, i: int, parent: Any, gp: Any, xp: Namespace) -> Any:
    """Return ``gp``, the result of the rule for argument ``i``, in the shape and dtype of the parent.

    Raise if it is not an array.
    """
    if not hasattr(gp, "dtype"):
        raise no_array(node, i, gp)
    return _fit(node, i, xp.conj(gp) if _conjugates(node.op, node.dtype) else gp, xp, parent)


def pull_joint(
    node: Node, g: Any, xp: Namespace, values: Any, out: Any, needed: set[Any] | None, zeros: Any = None
) -> list[Any]:
    """Return the gradients that the joint rule of a node returns; None for parents that need none.

    A joint rule computes the gradients of all arguments.  ``values`` and ``out`` are what the node saved,
    ``zeros`` are the zeros of ``g``, and ``needed`` the nodes and leaves that need a gradient.
    """
    op = node.op
    parents = node.parents
    wanted = tuple([p is not None and (needed is None or p in needed) for p in parents])
    assert op.joint is not None
    if xp is dyn and not op.call:
        g, out, values = on_one_level(g, out, values)
    if op.call:
        several = op.outputs > 1
        given = [*zip(g, zeros or [None] * len(g), strict=True)] if several else [(g, zeros)]
        before = arriving.get()
        try:  # as in ``context.within``
            arriving.set(given)
            grads = op.joint(xp, g, out, *values, wanted=wanted, **node.params)
        finally:
            arriving.set(before)
    else:
        grads = op.joint(xp, g, out, *values, wanted=wanted, **node.params)
    if not isinstance(grads, (tuple, list)) or len(grads) != len(parents):
        got = f"{len(grads)}" if isinstance(grads, (tuple, list)) else words.a(type(grads).__name__)
        raise RuleError(
            f"the rule of {op.name!r} must return one gradient per argument, {len(parents)} in all, but "
            f"returned {got}."
        )
    if all(wanted):
        return list(grads)
    return [gp if want else None for gp, want in zip(grads, wanted, strict=True)]


def _fit(node: Node, i: int, gp: Any, xp: Namespace, parent: Any) -> Any:
    """Return the contribution ``gp``, summed over broadcast axes to the shape of ``parent``, in its dtype."""
    shape = parent.shape
    had = gp.shape
    extra = len(had) - len(shape)
    if extra > 0 and had[extra:] == shape:  # a bias: only axes in front were broadcast
        gp = xp.sum(gp, axis=tuple(range(-len(had), extra - len(had))), keepdims=False)
    elif had != shape:
        axes = reduced_axes(had, shape)
        if axes is None:
            raise RuleError(
                f"the rule of {node.op.name!r} returned a gradient of shape {had} for argument "
                f"{node.op.arg_name(i)!r} of shape {shape}.\n"
                "  It must have the shape of the argument, or a shape to which the argument broadcasts."
            )
        gp = xp.reshape(xp.sum(gp, axis=axes, keepdims=True), shape=shape)
    if gp.dtype != parent.dtype:
        gp = xp.astype(gp, dtype=parent.dtype)
    return gp


def _attached(node: Node, values: tuple[Any, ...], out: Any) -> tuple[tuple[Any, ...], Any]:
    """Return the values saved by a node as tensors that are connected to the nodes that computed them.

    The derivative of a rule then includes everything that the rule reads, also the saved output.
    """
    found = tuple(map(joined, values, node.parents))
    if out is None:
        return found, None
    if node.op.outputs > 1:
        return found, tuple(joined(data, output_node(node, i)) for i, data in enumerate(out))
    return found, joined(out, node)


def joined(value: Any, parent: Any) -> Any:
    """Return a saved array as a tensor whose gradient flows to ``parent``; other values unchanged."""
    if not isinstance(value, (np.ndarray, Lifted)):
        return value  # a number, or a Spec
    if isinstance(parent, Tensor):
        return parent
    t = wrap(value)
    t._node = parent
    return t


def _check_versions(node: Node) -> None:
    """Raise if a saved value was overwritten after it was saved."""
    for t, version in node.versions or ():
        if t._version != version:
            raise modified(node, t)


def add(run: Run, parent: Any, gp: Any, zeros: Zeros | None = None) -> None:
    """Add the contribution ``gp``, with its ``zeros``, to the gradient of ``parent``, a node or leaf.

    The first contribution is stored without a copy, the second makes a new array (``owned``), and later ones
    are added in place to that array.  An array that the engine did not make is never written to.  Half
    precision is summed in float32 (``wide``) and rounded at the end.
    """
    grads = run.grads
    before = grads.get(parent)
    if before is None:
        grads[parent] = gp
        if zeros is not None:
            run.zeros[parent] = zeros
        return
    if zeros is not None or run.zeros:
        had = run.zeros.pop(parent, None)
        if same(had, zeros):
            zeros = had if had is None or had.stained else zeros
        else:
            gp = cleaned(run.xp, gp, zeros)
            before = grads[parent] = cleaned(run.xp, before, had)
            zeros = meet(had, zeros)
        if zeros is not None:
            run.zeros[parent] = zeros
    if parent in run.owned:
        np.add(before, gp, before)
    elif run.xp is not raw:
        if SparseRows in (type(before), type(gp)):
            grads[parent] = added(before, gp)
            return
        if parent.dtype.itemsize == 2 and parent not in run.wide:
            before = run.xp.astype(before, dtype=_F32)
            run.wide.add(parent)
        grads[parent] = run.xp.add(before, gp)
    elif parent.dtype.itemsize == 2:
        # converted first, as in programs: this decides the memory layout, and so how later sums round
        grads[parent] = np.add(before.astype(np.float32, copy=False), gp, dtype=np.float32)
        run.wide.add(parent)
    else:
        grads[parent] = total = np.add(before, gp)
        # 0-d arrays give a scalar, and sparse rows stay sparse: neither can be added to in place
        if type(total) is np.ndarray:
            run.owned.add(parent)


class Placed:
    """A contribution to a part of a gradient: to the elements at an index, or to one of several outputs."""

    __slots__ = ("g", "node", "zeros")

    def __init__(self, node: Node, g: Any, zeros: Zeros | None) -> None:
        self.node = node
        self.g = g
        self.zeros = zeros

    @property
    def nbytes(self) -> int:
        """The number of bytes of the contribution."""
        return int(self.g.nbytes)


_BASIC = {int, slice, type(Ellipsis), type(None)}


def _is_basic(key: tuple[Any, ...]) -> bool:
    # x[i] and x[a:b], the usual case, are looked at without a loop
    return (len(key) == 2 and key[1] is ... and type(key[0]) in _BASIC) or _BASIC.issuperset(map(type, key))


def _placed(run: Run, node: Node, g: Any, zeros: Any, kept: list[Any] | None) -> bool:
    """Add the gradient of an index op, or of one of several outputs, in place to the parent's gradient.

    Return False, and do nothing, if this is not possible; the rule must then be called.  In a parallel run
    the contribution is stored in ``kept``.
    """
    if node.op is PICK:
        g = cleaned(run.xp, g, zeros)
    elif (
        zeros is not None
        or (run.xp is not raw and not isinstance(g, Unknown))
        or node.dtype.itemsize == 2
        or not _is_basic(node.params["key"])
    ):
        return False
    if kept is not None:
        kept[0] = Placed(node, g, zeros)
    else:
        _place(run, node.parents[0], node, g, zeros)
    return True


def _place(run: Run, parent: Any, node: Node, g: Any, zeros: Zeros | None) -> None:
    """Add ``g`` in place to the gradient of ``parent``, at the index that the index op ``node`` reads.

    If ``node`` is one of several outputs, add it to the gradient of this output.  The cost depends only on
    the selected elements.  ``zeros`` are the marked zeros of ``g`` (``engine/zeros.py``).
    """
    if node.op is PICK:
        _add_output(run, parent, node.params["index"], g, zeros)
        return
    key = node.params["key"]
    total = run.grads.get(parent)
    if total is None:
        if run.xp is raw:
            total = run.grads[parent] = np.zeros(parent.shape, g.dtype)
            total[key] = g
            run.owned.add(parent)
        else:
            run.grads[parent] = run.xp.unindex(g, key=key, shape=parent.shape)
        if type(parent) is Node:
            run.zeros[parent] = picked(node, parent.shape)
        return
    if run.zeros and parent in run.zeros:
        had = run.zeros.pop(parent)
        total = run.grads[parent] = cleaned(run.xp, total, had)
        left = also_picked(had, node, parent.shape)
        if left is not None:
            run.zeros[parent] = left
    if run.xp is not raw:
        run.grads[parent] = g.add_into(total, key)
        return
    if parent not in run.owned:
        if type(total) is not np.ndarray:
            add(run, parent, run.xp.unindex(g, key=key, shape=parent.shape))
            return
        total = run.grads[parent] = total.copy()
        run.owned.add(parent)
    total[key] += g


def contribute(run: Run, parent: Any, gp: Any) -> None:
    """Add ``gp``, a contribution that a parallel run has stored, to the gradient of ``parent``."""
    if type(gp) is Masked:
        add(run, parent, gp.g, gp.zeros)
    elif type(gp) is Placed:
        _place(run, parent, gp.node, gp.g, gp.zeros)
    else:
        add(run, parent, gp)


def narrowed_gradient(xp: Namespace, g: Value, key: Value, wide: set[Any]) -> Any:
    """Return ``g``, a finished float32 sum, cast to the half precision of ``key``, a node or leaf.

    ``key`` is removed from ``wide``, the set of nodes and leaves with float32 sums.
    """
    wide.discard(key)
    return xp.astype(g, dtype=key.dtype)


def _add_output(run: Run, parent: Any, index: int, g: Any, zeros: Zeros | None) -> None:
    """Add ``g`` to the gradient of output ``index`` of ``parent``, a node with several outputs.

    The gradient must have no NaN at marked zeros (see ``engine/zeros.py``).
    """
    slots = run.grads.get(parent)
    if slots is None:
        slots = run.grads[parent] = [None] * parent.op.outputs
    first = slots[index] is None
    slots[index] = g if first else run.xp.add(slots[index], g)
    if zeros is not None and first:
        run.zeros.setdefault(parent, [None] * parent.op.outputs)[index] = zeros
    elif parent in run.zeros:
        run.zeros[parent][index] = meet(run.zeros[parent][index], zeros)


def release(node: Node) -> None:
    """Drop the values that a node saved.

    A node that saved nothing can still be differentiated again.
    """
    if node.op.saves_any:
        node.args = node.out = node.versions = None


# Errors ----------------------------------------------------------------------------------------


def _recorded(node: Node) -> str:
    where = node.extra.where if node.extra is not None else None
    return f"\n  It was recorded at {where}." if where else ""


def released(node: Node) -> GraphReleasedError:
    """Return the error for a second backward through a released node."""
    return GraphReleasedError(
        f"{node.op.name!r} (output shape {node.shape}) was already differentiated and its saved values "
        "are released.\n"
        "  Pass retain_graph=True to the first backward, or run the forward again." + _recorded(node)
    )


def modified(node: Node, t: Tensor) -> ModifiedError:
    """Return the error for ``t``, a tensor that ``node`` saved and that was overwritten afterwards."""
    return overwritten(node.op.name, t, _recorded(node))


def overwritten(name: str, t: Tensor, where: str = "") -> ModifiedError:
    """Return the error for a tensor ``t`` that was overwritten although the backward of op ``name`` needs it.

    ``where`` is the line that recorded the op, if known.
    """
    return ModifiedError(
        f"the backward of {name!r} needs the values that a tensor of shape {t.shape} and {t.dtype} had in "
        "the forward, but the tensor was written to since.\n"
        "  Run backward before the write, or pass x.clone() to the op." + where
    )


def no_array(node: Node, i: int, gp: Any) -> RuleError:
    """Return the error for ``gp``, the result of the rule for argument ``i``, which is not an array."""
    return RuleError(
        f"the rule of {node.op.name!r} for argument {node.op.arg_name(i)!r} returned "
        f"{type(gp).__name__}, not an array.\n"
        "  Return xp.zeros_like(g) for a zero gradient.  If no gradient flows to the argument, pass None to "
        "ad.define instead of a rule."
    )
