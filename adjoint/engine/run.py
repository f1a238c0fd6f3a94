"""The state of one backward, the function that starts it, and the loop that runs its plan in one thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint.config import grad_mode, special
from adjoint.context import observer
from adjoint.core.lifted import Lifted, refusal, tracing
from adjoint.core.namespace import Namespace, dyn, raw, rec
from adjoint.core.node import LEAF, Node
from adjoint.core.record import at_level
from adjoint.core.tensor import Tensor, Traced
from adjoint.core.user_code import user_line
from adjoint.engine import anomaly
from adjoint.engine.hooks import run_hooks, run_node_extra
from adjoint.engine.plan import Plan, make_plan
from adjoint.engine.pull import add, narrowed_gradient, pull, pull_checked
from adjoint.engine.zeros import cleaned, of_seed
from adjoint.errors import TransformError

__all__ = ["Run", "differentiate", "key_of", "run_serial", "seed_at_level"]

OnReady = Callable[[Tensor, Any], Any]


def key_of(t: Tensor) -> Any:
    """Return the key of a tensor in a graph: its node, or the tensor itself if it is a leaf."""
    return t if t._node is None or t._node is LEAF else t._node


class Run:
    """The state of one backward.

    ``grads`` maps nodes and leaves to the sums of their contributions so far; at the end only leaves
    remain.  ``captured`` maps intermediate nodes whose gradients were requested to these gradients.
    ``retained`` are the gradients of tensors with ``retain_grad``.  ``on_ready(leaf, g)`` is called when the
    gradient of a leaf is complete; it returns the gradient, or None if the gradient must not be stored.
    """

    __slots__ = (
        "captured", "grads", "on_ready", "owned", "retain", "retained", "step", "wide", "xp", "zeros",
    )  # fmt: skip

    def __init__(self, xp: Namespace, retain: bool, on_ready: OnReady | None) -> None:
        self.xp = xp
        self.retain = retain
        self.step = _special_step() if special.count else pull
        self.on_ready = on_ready
        self.grads: dict[Any, Any] = {}
        self.owned: set[Any] = set()  # keys whose array the engine made and may add into
        self.wide: set[Any] = set()  # keys whose half-precision gradient is summed in float32
        self.zeros: dict[Any, Any] = {}  # the ``Zeros`` of gradients that have some
        self.captured: dict[Any, Any] = {}
        self.retained: list[tuple[Tensor, Any]] = []

    def arrive(self, node: Node, g: Any, zeros: Any) -> tuple[Any, Any]:
        """Run the hooks of a node on its total gradient ``g``, and store the gradient if it was requested.

        Return the gradient and its zeros; each is a sequence if the op has several outputs.
        """
        if node in self.wide:
            g = narrowed_gradient(self.xp, g, node, self.wide)
        captured = node in self.captured
        if node.extra is not None or captured:
            if zeros is not None and type(g) is not list:
                g = cleaned(self.xp, g, zeros)
            if node.extra is not None:
                before, g = g, run_node_extra(node, g, self.xp, self.retained)
                zeros = zeros if g is before else None
            if captured:
                self.captured[node] = g
        return g, zeros

    def total(self, leaf: Tensor, g: Any) -> Any:
        """Return the final gradient of a leaf: in its dtype, without NaN at marked zeros, after its hooks."""
        if self.zeros:
            g = cleaned(self.xp, g, self.zeros.pop(leaf, None))
        if leaf in self.wide:
            g = narrowed_gradient(self.xp, g, leaf, self.wide)
        extra = leaf._extra
        if extra is not None and extra.hooks is not None:
            g = run_hooks(extra.hooks, g, self.xp, f"a leaf of shape {leaf.shape}")
        return g

    def finish_leaf(self, leaf: Tensor) -> None:
        """Finish a leaf whose gradient is complete: run its hooks and call ``on_ready``."""
        grads, on_ready = self.grads, self.on_ready
        before = g = grads.get(leaf)
        if g is None:
            return
        extra = leaf._extra
        if self.zeros or self.wide or (extra is not None and extra.hooks is not None):
            g = self.total(leaf, g)
        if on_ready is not None:
            g = on_ready(leaf, g)
        if g is None:
            del grads[leaf]
        elif g is not before:
            grads[leaf] = g

    def finish(self, events: bool) -> list[tuple[Tensor, Any]]:
        """Return pairs of a leaf and its gradient, in the order in which the leaves were reached.

        Without ``events``, the hooks of the leaves run here.
        """
        grads, noted = self.grads, self.wide or self.zeros
        for leaf in () if events else list(grads):
            if noted or (leaf._extra is not None and leaf._extra.hooks is not None):
                grads[leaf] = self.total(leaf, grads[leaf])
        done = list(grads.items())
        grads.clear()
        return done


def _special_step() -> Callable[..., None]:
    """Return the function that pulls a gradient through a node, in the current mode.

    It is ``pull``; in anomaly mode ``pull_checked``; and if an observer is active, the function that this
    returns.
    """
    step = pull_checked if anomaly.is_on() else pull
    watcher = observer.get()
    return step if watcher is None else watcher.pulling(step)


def differentiate(
    roots: Sequence[Tensor],
    seeds: Sequence[Tensor],
    *,
    targets: Sequence[Tensor] | None = None,
    retain: bool,
    create_graph: bool,
    on_ready: OnReady | None = None,
    events: bool = False,
    only: set[int] | None = None,
    watched: Sequence[Tensor] = (),
    since: int = 0,
    chosen: bool = True,
    runner: Callable[[Plan, Run], None],
) -> tuple[Run, list[tuple[Tensor, Any]]]:
    """Run a backward from ``roots``; ``seeds`` are their gradients, tensors of the same shapes and dtypes.

    Return the run and a list of the leaves with their gradients.  No ``.grad`` is changed.  ``targets`` and,
    without targets, ``watched`` may contain intermediate results; the gradients of these are in
    ``run.captured``.  With ``chosen`` the caller chose the seeds, so their zeros count as zeros by selection
    (``engine/zeros.py``).  ``events``, ``only`` and ``since`` are as in ``make_plan``, ``retain`` and
    ``on_ready`` as in ``Run``, and ``runner`` runs the plan.
    """
    if special.count and tracing.get() is not None:
        _refuse_outside(roots)
    xp = rec if create_graph else dyn if Traced in map(type, (*roots, *seeds)) else raw
    run = Run(xp, retain, on_ready)
    keys = None if targets is None else [key_of(t) for t in targets]
    noted = [key_of(t) for t in watched] if keys is None and watched else keys or ()
    starts = [t._node if type(t._node) is Node else t for t in roots]
    plan = make_plan(starts, keys, events=events, only=only, watched=noted, since=since)
    for k in noted:
        if not isinstance(k, Tensor):
            run.captured[k] = None
    # in dyn this level records nothing, but operations on outer tensors inside lifted values are recorded
    before = grad_mode.get()
    # No token: an interrupt right after set() would lose it.  No loop in ``try``: see ``parallel._Crew``.
    try:
        grad_mode.set(create_graph or (xp is dyn and before))
        _start(run, starts, roots, seeds, create_graph, chosen)
        runner(plan, run)
        _end(run, plan, roots)
        return run, run.finish(plan.events)
    finally:
        grad_mode.set(before)


@np.errstate(all="ignore")  # as a decorator: ``with`` makes a new object at each call
def run_serial(plan: Plan, run: Run) -> None:
    """Run ``plan`` in one thread.

    At the start ``run.grads`` contains the seeds, at the end the gradients of the leaves.
    """
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


def _refuse_outside(roots: Sequence[Tensor]) -> None:
    """Raise if one of ``roots``, where a backward starts, was recorded before the running trace began."""
    if any(type(t) is Tensor and type(t._node) is Node for t in roots):
        raise refusal(
            TransformError(
                f"{user_line()} calls backward() inside ad.compile on a tensor that was computed outside.\n"
                "  Compute the tensor inside the compiled function, or call backward() outside."
            )
        )


def seed_at_level(t: Tensor, seed: Tensor) -> Tensor:
    """Return ``seed``, the gradient or tangent of ``t``, as a value of the transform that ``t`` belongs to.

    It is returned unchanged if ``t`` belongs to no transform, or ``seed`` to the same or an inner one.  Rules
    that write in place need this, because an array cannot contain the values of a transform.
    """
    top, data = t._data, seed._data
    if not isinstance(top, Lifted) or (isinstance(data, Lifted) and data.level >= top.level):
        return seed
    lifted: Tensor = at_level(seed, top)
    return lifted


def _start(
    run: Run,
    starts: Sequence[Any],
    roots: Sequence[Tensor],
    seeds: Sequence[Tensor],
    create_graph: bool,
    chosen: bool,
) -> None:
    for start, root, seed in zip(starts, roots, seeds, strict=True):
        g: Any = seed if type(root) is not Traced else seed_at_level(root, seed)
        add(run, start, g if create_graph else g._data, of_seed(g) if chosen else None)


def _end(run: Run, plan: Plan, roots: Sequence[Tensor]) -> None:
    if plan.needed is not None:
        for key in list(run.grads):
            if key not in plan.needed:
                del run.grads[key]
            elif type(key) is Node:  # a target that is not in the order of the plan: no rule runs for it
                run.arrive(key, run.grads.pop(key), run.zeros.pop(key, None))
    if plan.events:
        for root in dict.fromkeys(roots):
            if root in plan.pending:  # a leaf that is itself a root is complete at the end
                run.finish_leaf(root)
