"""Push tangents forward through the recorded graph: forward mode.

A tangent needs the same saved values as the rules of a node, so ops have no separate forward-mode rules:

    elementwise   Σᵢ ruleᵢ(tᵢ): the rule multiplies by the derivative, in both modes
    linear        the op itself, of the tangents
    bilinear      for each argument, the op with that argument replaced by its tangent
    general       ``jvp=`` of the op; else the transpose of its rules, which are linear in g:
                  <vjp(g), t> differentiated with respect to g
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.config import grad_mode
from adjoint.context import within
from adjoint.core.lifted import Lifted, enclosing
from adjoint.core.namespace import Namespace, Value, dyn, raw, rec
from adjoint.core.node import Node, Spec, next_seq
from adjoint.core.op import Op
from adjoint.core.record import PICK, evaluate, joined_copy
from adjoint.core.tensor import Tensor, Traced, wrap
from adjoint.core.values import unknown
from adjoint.engine.plan import make_plan
from adjoint.engine.pull import no_array, saved_values
from adjoint.engine.rules import call_rule, unpacked
from adjoint.engine.run import differentiate, key_of, run_serial, seed_at_level
from adjoint.engine.zeros import (
    Zeros,
    arriving,
    each_output,
    fit_live,
    is_nonzero,
    may_have_nan,
    meet,
    of_seed,
    positive,
    unmasked,
)
from adjoint.errors import NotSavedError

__all__ = ["push", "push_forward"]


def push_forward(
    roots: Sequence[Tensor],
    inputs: Sequence[Tensor],
    tangents: Sequence[Tensor | None],
    *,
    create_graph: bool,
    since: int = 0,
    keep: bool = True,
) -> list[Any]:
    """Return the tangents of ``roots``, given those of ``inputs``; None where they are zero.

    With ``create_graph`` the tangents are recorded.  Nodes with a number below ``since`` are constants.  With
    ``keep=False`` zeros become NaN where a derivative is infinite; the caller must then look for NaN.
    """
    moving = [(x, seed_at_level(x, t)) for x, t in zip(inputs, tangents, strict=True) if t is not None]
    lifted = any(type(t) is Traced for t in (*roots, *tangents))
    xp = rec if create_graph else dyn if lifted else raw
    plan = make_plan([key_of(r) for r in roots], [key_of(x) for x, _ in moving], since=since)
    assert plan.needed is not None
    given: dict[Any, Any] = {key_of(x): t if create_graph else t._data for x, t in moving}
    order = [n for n in reversed(plan.order) if n in plan.needed and n not in given]
    ends = [key_of(r) for r in roots]
    before = grad_mode.get()
    try:
        grad_mode.set(create_graph or (xp is dyn and before))
        with np.errstate(all="ignore"):  # no loop in it, see ``_Crew`` in adjoint.engine.parallel
            pushed = _push_all(order, given, ends, xp, {})
            zeros = {k: of_seed(t) for k, t in given.items()}
            if keep and _any_nan(pushed) and (any(zeros.values()) or any(node.op.selects for node in order)):
                # push again, this time keeping the zeros of the given tangents and of ops that select
                pushed = _unless_nan(xp, pushed, _push_all(order, given, ends, xp, zeros))
    finally:
        grad_mode.set(before)
    return pushed


def _push_all(
    order: list[Node], given: dict[Any, Any], ends: list[Any], xp: Namespace, zeros: dict[Any, Zeros | None]
) -> list[Any]:
    """Return the tangents of the nodes ``ends``; ``given`` has the tangents that are known at the start.

    ``zeros`` has the zeros of the tangents ``given`` (see ``engine/zeros.py``); if it is empty, zeros are not
    tracked.
    """
    flows = dict(given)
    uses: dict[Any, int] = dict.fromkeys(ends, len(order) + 1)  # so large that their tangents are kept
    for node in order:
        for parent in node.parents:
            uses[parent] = uses.get(parent, 0) + 1
    for node in order:
        tangents = [flows.get(p) if p is not None else None for p in node.parents]
        if zeros:
            flows[node], zeros[node] = _push_keeping(node, tangents, xp, zeros)
        else:
            flows[node] = push(node, tangents, xp)
        for parent in node.parents:
            uses[parent] -= 1
            if not uses[parent]:
                flows.pop(parent, None)
    return [flows.get(k) for k in ends]


def _unless_nan(xp: Namespace, tangents: list[Any], kept: list[Any]) -> list[Any]:
    """Return ``kept``, the corrected form of ``tangents``, which contain a NaN.

    Inside ``ad.compile`` it is not known whether they do; the result then equals ``tangents`` in calls where
    they have no NaN.
    """
    known = [u for t in tangents if (u := unknown(t)) is not None]
    if not known:
        return kept
    nan = known[0].any_nan(known)
    return [t if t is None or k is None else xp.where(wrap(nan) if xp is rec else nan, k, t)
            for t, k in zip(tangents, kept, strict=True)]  # fmt: skip


def _any_nan(tangents: list[Any]) -> bool:
    return any(t is not None and may_have_nan(t) for t in tangents)


# Zeros in the given tangents, such as rows of the identity, and those of elements that an op did not select
# stay zero where a derivative is infinite (see ``adjoint.engine.zeros``).  Forward mode releases nothing, so
# if a result has a NaN, it runs again this way.


def _push_keeping(node: Node, tangents: list[Any], xp: Namespace, zeros: dict[Any, Any]) -> tuple[Any, Any]:
    """Return the tangent of a node's output and its zeros (see ``engine/zeros.py``).

    Both are tuples if there are several outputs.  ``zeros`` has the zeros of the tangents by node or leaf.
    """
    op = node.op
    own = [None if t is None else zeros.get(p) for p, t in zip(node.parents, tangents, strict=True)]
    if op is PICK:
        (z,) = own
        return push(node, tangents, xp), z[node.params["index"]] if type(z) is tuple else None
    if all(z is None for z in own) and not op.selects:
        return push(node, tangents, xp, own), None
    if op.pointwise and op.jvp is None:
        total: Any = None
        left: Any = None
        for i, (t, z) in enumerate(zip(tangents, own, strict=True)):
            if t is None:
                continue
            alone = [t if j == i else None for j in range(len(own))]
            if op.selects:
                z = _zeros_of(node, alone, own)
            elif z is not None:
                z = Zeros((), fit_live(z.live(), node.shape))
            term = _kept(xp, push(node, alone, xp), z)
            total, left = (term, z) if total is None else (xp.add(total, term), meet(left, z))
        return total, left
    moved = push(node, tangents, xp, own)
    left = _zeros_of(node, tangents, own) if op.selects or op.kind == "linear" else None
    if op.outputs > 1:
        left = left or (None,) * op.outputs
        return tuple(None if t is None else _kept(xp, t, z) for t, z in zip(moved, left, strict=True)), left
    return _kept(xp, moved, left), left


def _kept(xp: Namespace, t: Value, zeros: Zeros | None) -> Any:
    live = None if zeros is None else zeros.live()
    return t if live is None else xp.where(live, t, 0)


def _zeros_of(node: Node, tangents: list[Any], own: list[Zeros | None]) -> Any:
    """Return the zeros of a node's tangent, found by pushing positive numbers through the node.

    ``own`` has the zeros of the arguments' tangents; there 0 is pushed instead.  The zeros of the result are
    the elements that are 0.
    """
    seeds = [
        None if t is None else positive(t.shape, t.dtype, None if z is None else z.live())
        for t, z in zip(tangents, own, strict=True)
    ]
    saved = (*unpacked(node.args or ()), *each_output(unpacked(node.out)))
    lifted = any(isinstance(v, Lifted) for v in (*seeds, *saved))
    found = within(grad_mode, False, push, node, seeds, dyn if lifted else raw)
    if node.op.outputs > 1:
        return tuple(None if t is None else Zeros((), is_nonzero(t)) for t in found)
    return None if found is None else Zeros((), is_nonzero(found))


def push(node: Node, tangents: list[Any], xp: Namespace, zeros: Sequence[Any] = ()) -> Any:
    """Return the tangent of a node's output, or a tuple of tangents for several outputs.

    ``tangents`` are those of the arguments, and ``zeros`` mark their zeros (``engine/zeros.py``).
    """
    op = node.op
    if op is PICK:
        return None if tangents[0] is None else tangents[0][node.params["index"]]
    for t in tangents:
        if t is not None:
            break
    else:
        return (None,) * op.outputs if op.outputs > 1 else None
    values, out = saved_values(node, xp)
    try:
        if op.kind == "elementwise" and op.jvp is None:
            t = _elementwise(node, tangents, xp, values, out)
        elif op.call:
            t = _call(node, tangents, xp, values, out, zeros)
        else:
            t = _by_kind(node, tangents, xp, values, out)
    except NotSavedError:
        t = NotImplemented  # the op needs a value that its rules do not need, so it was not saved
    if t is NotImplemented:
        t = _transposed(node, tangents, xp, values, out)
    if op.outputs > 1:
        return tuple(map(_fit, t, node.shape, node.dtype, (xp,) * op.outputs))
    return _fit(t, node.shape, node.dtype, xp)


def _call(
    node: Node, tangents: list[Any], xp: Namespace, values: tuple[Any, ...], out: Any, zeros: Sequence[Any]
) -> Any:
    given = list(zip(tangents, zeros or [None] * len(tangents), strict=True))
    return within(arriving, given, _by_kind, node, tangents, xp, values, out)


def _by_kind(node: Node, tangents: list[Any], xp: Namespace, values: tuple[Any, ...], out: Any) -> Any:
    op, params = node.op, node.params
    if op.jvp is not None:
        return op.jvp(xp, tangents[0] if op.arity == 1 else tuple(tangents), out, *values, **params)
    if op.outputs > 1:
        return NotImplemented
    if op.kind == "linear":
        parts = [_moved(op, i, t, v) for i, (t, v) in enumerate(zip(tangents, values, strict=True))]
        return _apply(op, xp, parts, params)
    if op.kind == "bilinear":
        total = None
        for i, t in enumerate(tangents):
            if t is None:
                continue
            parts = [t if j == i else v for j, v in enumerate(values)]
            if any(type(v) is Spec for v in parts):
                return NotImplemented
            term = _apply(op, xp, parts, params)
            if total is None:
                total = term
            elif xp is raw and type(total) is np.ndarray and total.flags.owndata:
                total = np.add(total, term, out=total)  # made above; a new array would cost as much again
            else:
                total = xp.add(total, term)
        return total
    return NotImplemented


def _moved(op: Op, i: int, tangent: Any, value: Any) -> Any:
    """Return the tangent of argument ``i`` of a linear op; if it is None, zeros like ``value``.

    If no gradient flows to the argument, return ``value`` itself.
    """
    if tangent is not None:
        return tangent
    if not op.smooth(i):
        if type(value) is Spec:
            raise NotSavedError("an argument without gradient is not saved")
        return value  # indices and the like stay as they are
    if isinstance(value, (int, float, complex)):
        return type(value)(0)
    return np.zeros(value.shape, value.dtype)


def _elementwise(node: Node, tangents: list[Any], xp: Namespace, values: tuple[Any, ...], out: Any) -> Any:
    op = node.op
    if op.outputs > 1:
        return NotImplemented
    own_formula = not op.holomorphic and (
        node.dtype.kind == "c" or any(t is not None and t.dtype.kind == "c" for t in tangents)
    )
    total = None
    for i, t in enumerate(tangents):
        if t is None:
            continue
        if own_formula:
            term = _real_linear(node, i, t, xp, values, out)
        else:
            term = call_rule(op, i, xp, t, out, values, node.params)
        total = term if total is None else xp.add(total, term)
    return total


def _real_linear(node: Node, i: int, t: Any, xp: Namespace, values: Any, out: Any) -> Any:
    """Return the tangent of an elementwise op that is not holomorphic.

    ``t`` is the tangent of argument ``i``; ``values`` and ``out`` are the arguments and the output of the op.
    The derivative is linear over the real numbers only; with <u, v> = Re(ū v) the part of the tangent along a
    unit u of the output is <vjp(u), t>.
    """
    one = np.ones(node.shape, node.dtype)
    term = xp.real(xp.conj(call_rule(node.op, i, xp, one, out, values, node.params)) * t)
    if node.dtype.kind != "c":
        return term
    turned = call_rule(node.op, i, xp, 1j * one, out, values, node.params)
    return term + 1j * xp.real(xp.conj(turned) * t)


def _apply(op: Op, xp: Namespace, args: Sequence[Any], params: dict[str, Any]) -> Any:
    if xp is raw:
        return op.forward(*args, **params)
    return op.eager(*args, **params) if xp is rec else evaluate(op, tuple(args), params)


def _transposed(node: Node, tangents: list[Any], xp: Namespace, values: tuple[Any, ...], out: Any) -> Any:
    """Return the tangent computed from the rules, which are linear in g: J t = d/dg <vjp(g), t>.

    ``values`` and ``out`` are the arguments and the output of the node's op.
    """
    op = node.op
    several = op.outputs > 1
    values = tuple(map(_tensor, values))
    out = tuple(map(_tensor, out)) if several and out is not None else _tensor(out)
    since = next_seq()
    shapes = node.shape if several else (node.shape,)
    dtypes = node.dtype if several else (node.dtype,)
    leaves = [_leaf(s, d, xp) for s, d in zip(shapes, dtypes, strict=True)]
    before = grad_mode.get()
    try:
        grad_mode.set(True)
        roots, seeds = _rules_of_leaf(node, tangents, leaves, values, out)
        if not roots:
            return (None,) * op.outputs if several else None
        run, _ = differentiate(
            roots,
            seeds,
            targets=leaves,
            retain=xp is rec,
            create_graph=xp is rec,
            since=since,
            chosen=False,
            runner=run_serial,
        )
    finally:
        grad_mode.set(before)
    result = tuple(run.captured[key_of(leaf)] for leaf in leaves)
    if not before:  # inside vmap, ``differentiate`` recorded operations on outer tensors
        result = tuple(r.detached() if isinstance(r, Lifted) else r for r in result)
    return result if several else result[0]


def _rules_of_leaf(
    node: Node, tangents: list[Any], leaves: list[Tensor], values: tuple[Any, ...], out: Any
) -> tuple[list[Tensor], list[Tensor]]:
    """Evaluate the derivative rules of a node with ``leaves`` as the gradients of its outputs; record this.

    ``values`` and ``out`` are the arguments and the output of the op.  Return the results that depend on the
    leaves, and the tangents of the same arguments.
    """
    op = node.op
    # conj(rule(conj(g))) is the gradient of a holomorphic op; rules of several outputs do it themselves
    flip = op.outputs == 1 and op.holomorphic and leaves[0].dtype.kind == "c"
    g = tuple(leaves) if op.outputs > 1 else rec.conj(leaves[0]) if flip else leaves[0]
    wanted = tuple(t is not None for t in tangents)
    if op.joint is not None:
        pulled = op.joint(rec, g, out, *values, wanted=wanted, **node.params)
    else:
        pulled = [
            op.rules[i](rec, g, out, *values, **node.params) if w else None for i, w in enumerate(wanted)
        ]
    roots, seeds = [], []
    for i, (r, t) in enumerate(zip(pulled, tangents, strict=True)):
        r = _tensor(unmasked(r))
        if t is None or r is None:
            continue
        if not isinstance(r, Tensor):
            raise no_array(node, i, r)
        if r._node is None:
            continue
        r = rec.conj(r) if flip else r
        t = _tensor(t)
        r = rec.astype(r, dtype=t.dtype) if r.dtype != t.dtype else r
        roots.append(r)
        seeds.append(rec.broadcast_to(t, shape=r.shape) if t.shape != r.shape else t)
    return roots, seeds


def _leaf(shape: tuple[int, ...], dtype: Any, xp: Namespace) -> Tensor:
    # ones: a rule is linear in the gradient, so any values do, but zeros would hide a rule that loses it
    ones = np.ones(shape, dtype)
    top = None if xp is raw else enclosing.get()
    return joined_copy(wrap(ones if top is None else top.lift(ones)), None)


def _tensor(value: Any) -> Any:
    return wrap(value) if isinstance(value, (np.ndarray, np.generic, Lifted)) else value


def _fit(t: Any, shape: tuple[int, ...], dtype: Any, xp: Namespace) -> Any:
    """Return a tangent broadcast and cast to ``shape`` and ``dtype``, those of the output."""
    if t is None:
        return None
    if t.shape != shape:
        t = xp.broadcast_to(t, shape=shape)
    return xp.astype(t, dtype=dtype) if t.dtype != dtype else t
