"""Pull a gradient through one recorded op, and add what comes out to the gradients of its parents."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint.config import within
from adjoint.core.lifted import Lifted, Unknown
from adjoint.core.namespace import Namespace, dyn, raw, rec
from adjoint.core.node import Node
from adjoint.core.record import output_node
from adjoint.core.shapes import reduced_axes
from adjoint.core.tensor import Tensor, wrap
from adjoint.engine.rules import on_one_level, unpacked
from adjoint.engine.zeros import (
    Masked,
    Zeros,
    also_picked,
    arriving,
    cleaned,
    meet,
    picked,
    reduced,
    same,
    through,
)
from adjoint.errors import GraphReleasedError, ModifiedError, RuleError

if TYPE_CHECKING:
    from adjoint.engine.run import Run

__all__ = [
    "Placed",
    "add",
    "add_output",
    "contribute",
    "fit",
    "fitted",
    "joined",
    "masked",
    "modified",
    "narrowed",
    "overwritten",
    "placed",
    "pull",
    "pull_joint",
    "release",
    "released",
    "saved_values",
]


_F32 = np.dtype(np.float32)


def pull(node: Node, g: Any, xp: Namespace, needed: set[Any] | None, zeros: Any = None) -> list[Any]:
    """Return the contribution to each parent of ``node``, None where none is wanted.

    Contributions have the shape and dtype of their parents.  ``zeros`` are those of ``g``, by output where
    there are several; a contribution that has some is a ``Masked``.
    """
    if needed is not None and needed.isdisjoint(node.parents):
        return [None] * len(node.parents)  # the gradient of this node itself was asked for
    op = node.op
    if op.places and zeros is None and placeable(node) and (xp is raw or isinstance(g, Unknown)):
        return [Placed(node, g)]
    values, out = saved_values(node, xp)
    if op.outputs > 1:
        conjugate = op.holomorphic and any(dtype.kind == "c" for dtype in node.dtype)
        given = tuple(None if each is None else xp.conj(each) for each in g) if conjugate else g
    else:
        if zeros is not None and not op.pointwise:
            g = cleaned(xp, g, zeros)
        conjugate = node.dtype.kind == "c" and op.holomorphic
        given = xp.conj(g) if conjugate else g
    parents = node.parents
    wanted = [p is not None and (needed is None or p in needed) for p in parents]
    if op.joint is not None:
        found = pull_joint(node, given, xp, values, out, needed, zeros)
        wanted = [gp is not None for gp in found]  # a joint rule returns None where nothing flows
    else:
        found = [rule(xp, given, out, *values, **node.params) if w else None
                 for rule, w in zip(op.rules, wanted, strict=True)]  # fmt: skip
    if zeros is None and not op.selects:
        return [
            fitted(node, i, parents[i], gp, xp, conjugate) if w else None
            for i, (gp, w) in enumerate(zip(found, wanted, strict=True))
        ]
    return [
        masked(node, i, parents[i], g, gp, xp, zeros, conjugate) if w else None
        for i, (gp, w) in enumerate(zip(found, wanted, strict=True))
    ]


def masked(
    node: Node, i: int, parent: Any, g: Any, gp: Any, xp: Namespace, zeros: Any, conjugate: bool = False
) -> Any:
    """Make what a rule returned for argument ``i`` fit the parent, and attach its zeros."""
    own: Zeros | None
    if type(gp) is Masked:  # of a call, which found the zeros itself
        return fitted(node, i, parent, gp, xp, conjugate)
    if node.op.pointwise:
        own = zeros if gp is g else zeros.stain()
        if getattr(gp, "shape", None) == node.shape != parent.shape:  # elements are summed below
            gp, own = cleaned(xp, gp, own), reduced((own,), parent.shape)
        elif getattr(gp, "shape", None) != node.shape:
            own = None
    else:
        own = through(node, i, g, zeros, parent.shape)
    gp = fitted(node, i, parent, gp, xp, conjugate)
    # a leaf is the end of the run: zeros that are clean need not be kept
    return gp if own is None or (type(parent) is not Node and not own.stained) else Masked(gp, own)


def saved_values(node: Node, xp: Namespace) -> tuple[tuple[Any, ...], Any]:
    """Return the arguments and the output as the rules of a node read them in ``xp``."""
    out = node.out  # before the arguments, which ``release`` drops first, maybe in another thread
    values = node.args
    if values is None:
        raise released(node)
    if node.versions is not None:
        _check_versions(node)
    if node.extra is not None and node.extra.packed:
        values, out = unpacked(values), unpacked(out)
    return _attached(node, values, out) if xp is rec else (values, out)


def fitted(node: Node, i: int, parent: Any, gp: Any, xp: Namespace, conjugate: bool = False) -> Any:
    """Make what a rule returned for argument ``i`` fit the parent, or say why it does not."""
    if type(gp) is Masked:
        return Masked(fitted(node, i, parent, gp.g, xp, conjugate), gp.zeros)
    if not hasattr(gp, "dtype"):
        raise _no_array(node, i, gp)
    return fit(node, i, xp.conj(gp) if conjugate else gp, xp, parent)


def pull_joint(
    node: Node, g: Any, xp: Namespace, values: Any, out: Any, needed: set[Any] | None, zeros: Any = None
) -> list[Any]:
    """Return what the joint rule of a node gives its parents, None where nothing is wanted or flows."""
    op = node.op
    parents = node.parents
    wanted = tuple([p is not None and (needed is None or p in needed) for p in parents])
    assert op.joint is not None
    if xp is dyn and not op.call:
        g, out, values = on_one_level(g, out, values)
    if op.call:
        given = zip(g, zeros or [None] * len(g), strict=True) if op.outputs > 1 else [(g, zeros)]
        rule = partial(op.joint, wanted=wanted, **node.params)
        grads = within(arriving, list(given), rule, xp, g, out, *values)
    else:
        grads = op.joint(xp, g, out, *values, wanted=wanted, **node.params)
    if not isinstance(grads, (tuple, list)) or len(grads) != len(parents):
        got = f"{len(grads)}" if isinstance(grads, (tuple, list)) else f"a {type(grads).__name__}"
        raise RuleError(
            f"the rule of {op.name!r} returns one gradient per argument, {len(parents)} in all, but "
            f"returned {got}."
        )
    return [gp if want else None for gp, want in zip(grads, wanted, strict=True)]


def fit(node: Node, i: int, gp: Any, xp: Namespace, parent: Any) -> Any:
    """Un-broadcast a contribution to the shape of its parent and cast it to its dtype."""
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
                "  A gradient has the shape of its argument, or one that broadcasts from it."
            )
        gp = xp.reshape(xp.sum(gp, axis=axes, keepdims=True), shape=shape)
    if gp.dtype != parent.dtype:
        gp = xp.astype(gp, dtype=parent.dtype)
    return gp


def _attached(node: Node, values: tuple[Any, ...], out: Any) -> tuple[tuple[Any, ...], Any]:
    """Return what was saved as tensors that are joined to their nodes.

    So the derivative of a rule goes through everything it reads, the saved output too.
    """
    found = tuple(map(joined, values, node.parents))
    if out is None:
        return found, None
    if node.op.outputs > 1:
        return found, tuple(joined(data, output_node(node, i)) for i, data in enumerate(out))
    return found, joined(out, node)


def joined(value: Any, parent: Any) -> Any:
    """Return a saved value as a tensor with its place in the graph."""
    if not isinstance(value, (np.ndarray, Lifted)):
        return value  # a number, or a Spec
    if isinstance(parent, Tensor):
        return parent
    t = wrap(value)
    t._node = parent
    return t


def _check_versions(node: Node) -> None:
    """Raise if a saved value was written to since."""
    for t, version in node.versions or ():
        if t._version != version:
            raise modified(node, t)


def add(run: Run, parent: Any, gp: Any, zeros: Zeros | None = None) -> None:
    """Add a contribution to the gradient of ``parent``.

    The first is kept by reference, the second makes a new array (``owned``), later ones add
    into that one: an array that the engine did not make is never written.  Half precision is
    summed in float32 (``wide``) and narrowed at the end.
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
        if parent.dtype.itemsize == 2 and parent not in run.wide:
            before = run.xp.astype(before, dtype=_F32)
            run.wide.add(parent)
        grads[parent] = run.xp.add(before, gp)
    elif parent.dtype.itemsize == 2:
        grads[parent] = np.add(before, gp, dtype=np.float32)
        run.wide.add(parent)
    else:
        grads[parent] = total = np.add(before, gp)
        # a sum of 0-d arrays is a scalar, one of sparse rows is sparse: nothing adds into those
        if type(total) is np.ndarray:
            run.owned.add(parent)


class Placed:
    """A contribution that is ``g`` at an index without repeats, and zero elsewhere."""

    __slots__ = ("g", "node")

    def __init__(self, node: Node, g: Any) -> None:
        self.node = node
        self.g = g

    @property
    def nbytes(self) -> int:
        """The bytes of the contribution."""
        return int(self.g.nbytes)


_BASIC = {int, slice, type(Ellipsis), type(None)}


def placeable(node: Node) -> bool:
    """Tell whether the gradient of an index can be added in its place, without zeros around it."""
    return node.dtype.itemsize != 2 and _BASIC.issuperset(map(type, node.params["key"]))


def placed(run: Run, node: Node, g: Any) -> bool:
    """Add the gradient of an index in its place, if that can be done; tell whether it was."""
    if (run.zeros and node in run.zeros) or not placeable(node):
        return False
    place(run, node.parents[0], node, g)
    return True


def place(run: Run, parent: Any, node: Node, g: Any) -> None:
    """Add the gradient of an index in its place: many indices cost as much as what they pick."""
    key = node.params["key"]
    total = run.grads.get(parent)
    if total is None:
        run.grads[parent] = run.xp.unindex(g, key=key, shape=parent.shape)
        if run.xp is raw:
            run.owned.add(parent)
        if type(parent) is Node:
            run.zeros[parent] = picked(node, parent.shape)
        return
    if run.zeros and parent in run.zeros:
        had = run.zeros.pop(parent)
        total = run.grads[parent] = cleaned(run.xp, total, had)
        left = also_picked(had, node, parent.shape)
        if left is not None:
            run.zeros[parent] = left
    if isinstance(g, Unknown):
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
    """Add a contribution of any sort to the gradient of ``parent``."""
    if type(gp) is Masked:
        add(run, parent, gp.g, gp.zeros)
    elif type(gp) is Placed:
        place(run, parent, gp.node, gp.g)
    else:
        add(run, parent, gp)


def narrowed(xp: Namespace, g: Any, key: Any, wide: set[Any]) -> Any:
    """Return a finished float32 sum in the half precision of its tensor."""
    wide.discard(key)
    return xp.astype(g, dtype=key.dtype)


def add_output(run: Run, node: Node, g: Any, zeros: Zeros | None) -> None:
    """Add the gradient of one output, which is clean, to the node of all outputs."""
    parent = node.parents[0]
    slots = run.grads.get(parent)
    if slots is None:
        slots = run.grads[parent] = [None] * parent.op.outputs
    index = node.params["index"]
    first = slots[index] is None
    slots[index] = g if first else run.xp.add(slots[index], g)
    if zeros is not None and first:
        run.zeros.setdefault(parent, [None] * parent.op.outputs)[index] = zeros
    elif parent in run.zeros:
        run.zeros[parent][index] = meet(run.zeros[parent][index], zeros)


def release(node: Node) -> None:
    """Drop what a node saved, arguments first.  A node that saved nothing stays usable."""
    if node.op.saves_any:
        node.args = None
        node.out = None
        node.versions = None  # they hold the tensors


# What went wrong -----------------------------------------------------------------------------


def _recorded(node: Node) -> str:
    where = node.extra.where if node.extra is not None else None
    return f"\n  It was recorded at {where}." if where else ""


def released(node: Node) -> GraphReleasedError:
    """The error of a second backward."""
    return GraphReleasedError(
        f"{node.op.name!r} (output shape {node.shape}) was already differentiated and its saved values "
        "are released.\n"
        "  Pass retain_graph=True to the first backward, or run the forward again." + _recorded(node)
    )


def modified(node: Node, t: Tensor) -> ModifiedError:
    """The error of a saved value that was overwritten."""
    return overwritten(node.op.name, t, _recorded(node))


def overwritten(name: str, t: Tensor, where: str = "") -> ModifiedError:
    """The error of a value that was overwritten, although the backward of an op needs it."""
    return ModifiedError(
        f"{name!r} needs a tensor of shape {t.shape} and {t.dtype} as it was, but it was written "
        "to after the forward.\n"
        "  Run backward before the write, or give the op x.clone()." + where
    )


def _no_array(node: Node, i: int, gp: Any) -> RuleError:
    return RuleError(
        f"the rule of {node.op.name!r} for argument {node.op.arg_name(i)!r} returned "
        f"{type(gp).__name__}, not an array.\n"
        "  Return xp.zeros_like(g) for a zero gradient; use None in place of a rule where none flows."
    )
