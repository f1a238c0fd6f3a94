"""Run a plan in one thread."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adjoint.core.namespace import raw
from adjoint.core.node import Node
from adjoint.core.record import PICK
from adjoint.core.tensor import Tensor
from adjoint.engine import anomaly
from adjoint.engine.plan import Plan
from adjoint.engine.pull import (
    add,
    add_output,
    contribute,
    fitted,
    masked,
    modified,
    placed,
    pull_joint,
    released,
)
from adjoint.engine.run import Run
from adjoint.engine.zeros import cleaned

__all__ = ["run_serial"]

_F64, _F32 = np.dtype(np.float64), np.dtype(np.float32)


def run_serial(plan: Plan, run: Run) -> None:
    """Run ``plan`` from the seeds in ``run.grads``, which in the end holds the leaves' totals."""
    with np.errstate(all="ignore"):  # no loop in it, see ``_Crew`` in adjoint.engine.parallel
        _run(plan, run)


def _run(plan: Plan, run: Run) -> None:
    xp = run.xp
    # Plain first-order backward of plain ops is what ``pull`` does, written out: a call and a
    # tuple per node would cost a third more.
    plain = xp is raw and not anomaly.is_on()
    needed, captured, ready = plan.needed, run.captured, plan.ready
    grads, owned, wide, retain = run.grads, run.owned, run.wide, run.retain
    zeros = run.zeros
    accumulate, pop = np.add, grads.pop
    for node in plan.order:
        g = pop(node, None)
        op = node.op
        if not plain or g is None or not op.plain or node.extra is not None or (wide and node in wide):
            values = out = gp = pulled = like = None  # what the node before saved is not held meanwhile
            _step(plan, run, node, g)
            continue
        if needed is not None and (node in captured or node not in needed):
            _step(plan, run, node, g)
            continue
        dtype = node.dtype
        if dtype is not _F64 and dtype is not _F32 and dtype.kind == "c":
            _step(plan, run, node, g)
            continue
        mask = stained = None
        if op.places and placed(run, node, g):
            if ready and node in ready:
                values = out = gp = pulled = like = None
                _finish_leaves(run, ready[node])
            continue
        if zeros and node in zeros:
            mask = zeros.pop(node)
            if op.pointwise:
                stained = mask.stain()
            else:
                g = cleaned(xp, g, mask)
        masking = op.selects or mask is not None
        # the output first: another thread that releases the node drops the arguments first,
        # so arguments that are still there mean that the output was
        out, params, rules = node.out, node.params, op.rules
        values = node.args
        if values is None:
            raise released(node)
        if node.versions is not None:
            for t, version in node.versions:
                if t._version != version:
                    raise modified(node, t)
        pulled = None if op.joint is None else pull_joint(node, g, xp, values, out, needed)
        count = 0 if params else len(values)  # a call with * costs as much as the rest of the call
        i = 0  # counting by hand: zip and enumerate cost three times as much
        for parent in node.parents:
            if parent is not None and (needed is None or parent in needed):
                if pulled is not None:
                    gp = pulled[i]
                    if gp is None:
                        i += 1
                        continue
                elif count == 2:
                    gp = rules[i](xp, g, out, values[0], values[1])
                elif count == 1:
                    gp = rules[i](xp, g, out, values[0])
                elif count == 3:
                    gp = rules[i](xp, g, out, values[0], values[1], values[2])
                else:
                    gp = rules[i](xp, g, out, *values, **params)
                like = parent if type(parent) is Node else parent._data
                try:
                    fits = gp.shape == like.shape and gp.dtype is like.dtype
                except AttributeError:
                    fits = False
                if masking and (stained is None or not fits or node.shape != gp.shape):
                    contribute(run, parent, masked(node, i, parent, g, gp, xp, mask))
                    i += 1
                    continue
                if not fits:
                    gp = fitted(node, i, parent, gp, xp)
                if parent not in grads:
                    grads[parent] = gp
                    if masking:
                        zeros[parent] = mask if gp is g else stained
                elif parent in owned and (not zeros or zeros.get(parent) is stained):
                    total = grads[parent]
                    accumulate(total, gp, total)
                else:
                    add(run, parent, gp, stained)
            i += 1
        if not retain and op.saves_any:
            node.args = None
            node.out = None
            node.versions = None
        if ready and node in ready:
            values = out = gp = pulled = like = None  # a hook that writes to a leaf would copy what is held
            _finish_leaves(run, ready[node])


def _finish_leaves(run: Run, leaves: Sequence[Tensor]) -> None:
    for leaf in leaves:
        if leaf in run.grads:
            run.leaf_ready(leaf)


def _step(plan: Plan, run: Run, node: Node, g: object) -> None:
    """Take one node, with everything that can be attached to it."""
    if g is not None and (plan.needed is None or node in plan.needed):
        g, zeros = run.arrive(node, g)
        if node.op is PICK:
            add_output(run, node, cleaned(run.xp, g, zeros), zeros)
        else:
            for parent, gp in zip(node.parents, run.pass_through(node, g, zeros, plan.needed), strict=True):
                if gp is not None:
                    contribute(run, parent, gp)
    if plan.ready:
        _finish_leaves(run, plan.ready.get(node, ()))
