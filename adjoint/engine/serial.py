"""Run a plan in one thread."""

from __future__ import annotations

import numpy as np

from adjoint.engine.plan import Plan
from adjoint.engine.run import Run

__all__ = ["run_serial"]


@np.errstate(all="ignore")  # as a decorator: ``with`` makes a new object at each call
def run_serial(plan: Plan, run: Run) -> None:
    """Run ``plan`` from the seeds in ``run.grads``, which contains the totals of the leaves at the end."""
    needed, pending = plan.needed, plan.pending
    grads, zeros, wide, captured = run.grads, run.zeros, run.wide, run.captured
    pop, step, finish_leaf = grads.pop, run.step, run.finish_leaf
    for node in plan.order:
        g = pop(node, None)
        if g is not None and (needed is None or node in needed):
            mask = zeros.pop(node, None) if zeros else None
            if node.extra is not None or wide or captured:
                g, mask = run.arrive(node, g, mask)
            step(run, node, g, mask, needed, None)
        if pending:
            for leaf in node.parents:
                if leaf in pending:
                    if pending[leaf] == 1:
                        finish_leaf(leaf)
                    else:
                        pending[leaf] -= 1
