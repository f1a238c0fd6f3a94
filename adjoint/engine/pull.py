"""Pull a gradient through one recorded op: the only place where rules are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.core.lifted import Lifted
from adjoint.core.namespace import Namespace, dyn, raw, rec
from adjoint.core.node import Node, Packed
from adjoint.core.record import innermost, output_node
from adjoint.core.shapes import reduced_axes
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import GraphReleasedError, HookError, ModifiedError, RuleError

__all__ = [
    "Invalid",
    "add",
    "add_output",
    "check_versions",
    "fit",
    "fitted",
    "joined",
    "modified",
    "narrowed",
    "on_one_level",
    "overwritten",
    "pull",
    "pull_joint",
    "release",
    "released",
    "saved_values",
]


_F32 = np.dtype(np.float32)


class Invalid:
    """Told by NumPy when an operation makes a NaN out of numbers (0/0, 0·inf, …).

    The floating-point unit sees this for free.  A zero gradient times an infinite derivative is
    such a NaN: there, and only there, ``pull`` looks for it and keeps the zero.  It does not see a
    zero times a NaN that was there before, as in ``where(x > 0, sqrt(x), 0)``; so behind an op that
    selects (``watch``) ``pull`` looks itself.
    """

    __slots__ = ("hit", "watch")

    def __init__(self) -> None:
        self.hit = False
        self.watch = False

    def __call__(self, *_: Any) -> None:
        """Take note; NumPy calls this."""
        self.hit = True

    def state(self) -> np.errstate:
        """The error state of a backward run."""
        return np.errstate(all="ignore", invalid="call", call=self)


def pull(node: Node, g: Any, xp: Namespace, invalid: Invalid, needed: set[Any] | None) -> Any:
    """Return the contribution to each parent of ``node``, None where none is wanted.

    Contributions have the shape and dtype of their parents.
    """
    if needed is not None and needed.isdisjoint(node.parents):
        return [None] * len(node.parents)  # the gradient of this node itself was asked for
    op = node.op
    values, out = saved_values(node, xp)
    if op.outputs > 1:
        conjugate = op.holomorphic and any(dtype.kind == "c" for dtype in node.dtype)
        if conjugate:
            g = tuple(None if each is None else xp.conj(each) for each in g)
    else:
        conjugate = node.dtype.kind == "c" and op.holomorphic
        if conjugate:
            g = xp.conj(g)
    if op.joint is not None:
        return pull_joint(node, g, xp, values, out, needed, invalid, conjugate)
    params, rules = node.params, op.rules
    pulled: list[Any] = []
    for i, parent in enumerate(node.parents):
        if parent is None or (needed is not None and parent not in needed):
            pulled.append(None)
            continue
        gp = rules[i](xp, g, out, *values, **params)
        if xp is rec and op.kind == "elementwise" and (invalid.hit or invalid.watch) and _has_nan(gp):
            gp = _pull_aside(node, i, g, gp, values, out)
        pulled.append(fitted(node, i, parent, g, gp, xp, invalid, conjugate))
    return pulled


def saved_values(node: Node, xp: Namespace) -> tuple[tuple[Any, ...], Any]:
    """Return the arguments and the output as the rules of a node read them in ``xp``."""
    out = node.out  # before the arguments, which ``release`` drops first, maybe in another thread
    values = node.args
    if values is None:
        raise released(node)
    if node.versions is not None:
        check_versions(node)
    if node.extra is not None and node.extra.packed:
        values = tuple(map(_unpacked, values))
        out = tuple(map(_unpacked, out)) if type(out) is tuple else _unpacked(out)
    return _attached(node, values, out) if xp is rec else (values, out)


def fitted(
    node: Node, i: int, parent: Any, g: Any, gp: Any, xp: Namespace, invalid: Invalid, conjugate: bool = False
) -> Any:
    """Make what a rule returned for argument ``i`` fit the parent, or say why it does not."""
    if not hasattr(gp, "dtype"):
        raise _no_array(node, i, gp)
    if invalid.hit or (invalid.watch and _may_have_nan(gp)):
        gp = _keep_zeros(node.op.kind, xp, g, gp)
    gp = fit(node, i, xp.conj(gp) if conjugate else gp, xp, parent)
    invalid.hit = False  # whatever happened here says nothing about the next rule
    return gp


def pull_joint(
    node: Node,
    g: Any,
    xp: Namespace,
    values: Any,
    out: Any,
    needed: set[Any] | None,
    invalid: Invalid,
    conjugate: bool = False,
) -> list[Any]:
    """Return what the joint rule of a node gives its parents, None where nothing is wanted or flows."""
    op = node.op
    parents = node.parents
    wanted = tuple(p is not None and (needed is None or p in needed) for p in parents)
    assert op.joint is not None
    if xp is dyn and not op.call:
        g, out, values = on_one_level(g, out, values)
    grads = op.joint(xp, g, out, *values, wanted=wanted, **node.params)
    if not isinstance(grads, (tuple, list)) or len(grads) != len(parents):
        got = f"{len(grads)}" if isinstance(grads, (tuple, list)) else f"a {type(grads).__name__}"
        raise RuleError(
            f"the rule of {op.name!r} returns one gradient per argument, {len(parents)} in all, but "
            f"returned {got}."
        )
    pulled: list[Any] = []
    for i, (gp, want) in enumerate(zip(grads, wanted, strict=True)):
        if not want or gp is None:
            pulled.append(None)
            continue
        if not hasattr(gp, "dtype"):
            raise _no_array(node, i, gp)
        if op.kind == "elementwise" and (invalid.hit or (invalid.watch and _may_have_nan(gp))):
            gp = _keep_zeros(op.kind, xp, _one_of(g, xp), gp)
        gp = xp.conj(gp) if conjugate else gp
        pulled.append(fit(node, i, gp, xp, parents[i]))
    return pulled


def on_one_level(g: Any, out: Any, values: Sequence[Any]) -> tuple[Any, Any, Sequence[Any]]:
    """Return what a joint rule reads in ``dyn``, all at the innermost of their levels.

    Such a rule may write into what it makes, and an array cannot take the values of a transform.
    """
    parts = [g, out, *values]
    top = innermost([each for p in parts for each in (p if type(p) in (tuple, list) else (p,))])
    return (g, out, values) if top is None else (_lifted(g, top), _lifted(out, top), _lifted(values, top))


def _lifted(value: Any, top: Lifted) -> Any:
    if type(value) in (tuple, list):
        return tuple([_lifted(v, top) for v in value])
    outer = type(value) is np.ndarray or (isinstance(value, Lifted) and value.level != top.level)
    return top.lift(value) if outer else value


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


def _keep_zeros(kind: str, xp: Namespace, g: Any, gp: Any) -> Any:
    """Where the incoming gradient is zero, an infinite derivative does not make it NaN."""
    if kind != "elementwise" or getattr(gp, "shape", None) != g.shape:
        return gp
    return xp.where(xp.logical_and(xp.equal(g, 0), xp.isnan(gp)), 0, gp)


def _one_of(g: Any, xp: Namespace) -> Any:
    """Return one gradient that is zero only where those of all outputs are."""
    if type(g) not in (tuple, list):
        return g
    given = [each for each in g if each is not None]
    total = given[0]
    for each in given[1:]:
        total = xp.add(xp.abs(total), xp.abs(each))
    return total


def _has_nan(gp: Any) -> bool:
    return isinstance(gp, Tensor) and type(gp._data) is np.ndarray and bool(np.isnan(gp._data).any())


def _pull_aside(node: Node, i: int, g: Tensor, gp: Tensor, values: tuple[Any, ...], out: Any) -> Any:
    """Where the gradient is zero and its result NaN, apply the rule inside the op's domain instead.

    The result there is zero, and so are its own derivatives: what is recorded has no NaN that
    would come back at the next order (the "double where").
    """
    op = node.op
    if gp.shape != g.shape:
        return gp
    hidden = wrap(np.logical_and(g._data == 0, np.isnan(gp._data)))
    inside = op.inside()
    safe = tuple(
        rec.where(hidden, middle, v) if isinstance(v, Tensor) and middle is not None else v
        for v, middle in zip(values, inside, strict=True)
    )
    if out is not None and None not in inside:
        out = rec.where(hidden, float(op.forward(*map(np.asarray, inside), **node.params)), out)
    return op.rules[i](rec, g, out, *safe, **node.params)


def _may_have_nan(gp: Any) -> bool:
    """Look for a NaN, at the price of a dot product: squares do not cancel, so it has one too."""
    data = gp._data if isinstance(gp, Tensor) else gp
    if not isinstance(data, np.ndarray) or data.dtype.kind not in "fc":
        return True  # not known: a value of a transform, a half precision that NumPy does not know
    return bool(np.isnan(np.vdot(data, data)))


def _unpacked(value: Any) -> Any:
    """Return a saved value that may have gone through ``saved_tensors_hooks``."""
    if type(value) is not Packed:
        return value
    t = value.unpack(value.value)
    if not isinstance(t, Tensor):
        raise HookError(f"saved_tensors_hooks: unpack returns a tensor, but got {type(t).__name__}.")
    if t.shape != value.shape or t.dtype != value.dtype:
        raise HookError(
            f"saved_tensors_hooks: unpack returned shape {t.shape} and {t.dtype}, but what was packed had "
            f"shape {value.shape} and {value.dtype}."
        )
    return t._data


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


def check_versions(node: Node) -> None:
    """Raise if a saved value was written to since."""
    for t, version in node.versions or ():
        if t._version != version:
            raise modified(node, t)


def add(xp: Namespace, grads: dict[Any, Any], owned: set[Any], wide: set[Any], parent: Any, gp: Any) -> None:
    """Add a contribution to the gradient of ``parent``.

    The first is kept by reference, the second makes a new array (``owned``), later ones add
    into that one: an array that the engine did not make is never written.  Half precision is
    summed in float32 (``wide``) and narrowed at the end.
    """
    before = grads.get(parent)
    if before is None:
        grads[parent] = gp
    elif parent in owned:
        np.add(before, gp, before)
    elif xp is not raw:
        if parent.dtype.itemsize == 2 and parent not in wide:
            before = xp.astype(before, dtype=_F32)
            wide.add(parent)
        grads[parent] = xp.add(before, gp)
    elif parent.dtype.itemsize == 2:
        grads[parent] = np.add(before, gp, dtype=np.float32)
        wide.add(parent)
    else:
        grads[parent] = total = np.add(before, gp)
        # a sum of 0-d arrays is a scalar, one of sparse rows is sparse: nothing adds into those
        if type(total) is np.ndarray:
            owned.add(parent)


def narrowed(xp: Namespace, g: Any, key: Any, wide: set[Any]) -> Any:
    """Return a finished float32 sum in the half precision of its tensor."""
    wide.discard(key)
    return xp.astype(g, dtype=key.dtype)


def add_output(xp: Namespace, grads: dict[Any, Any], node: Node, g: Any) -> None:
    """Hand the gradient of one output to the node of all outputs."""
    parent = node.parents[0]
    slots = grads.get(parent)
    if slots is None:
        slots = grads[parent] = [None] * parent.op.outputs
    index = node.params["index"]
    slots[index] = g if slots[index] is None else xp.add(slots[index], g)


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
