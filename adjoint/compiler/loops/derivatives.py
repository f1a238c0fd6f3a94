"""Derivatives of a loop that are loops themselves, and can be differentiated again.

Forward mode is a loop whose steps compute their results and tangents.  A backward that is recorded, or that
runs inside a ``vmap`` that is differentiated from outside, runs the steps again: one loop computes the carry
before each step, and a second loop goes from the last step to the first and computes the gradients of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint import tree
from adjoint.compiler.loops.repeat import UnrollError
from adjoint.config import enable_grad, grad_mode
from adjoint.context import within
from adjoint.core.batched import Batched
from adjoint.core.convert import asarray
from adjoint.core.lifted import Lifted, refusal
from adjoint.core.node import next_seq
from adjoint.core.record import joined_copy
from adjoint.core.sparse import as_gradient_tensor
from adjoint.core.tensor import Tensor, differentiable, note_reading, wrap
from adjoint.core.values import tracked
from adjoint.engine.push import push_forward
from adjoint.engine.run import key_of
from adjoint.grads.backward import gradients
from adjoint.transforms.loop_body import Body, run_scan
from adjoint.transforms.rerun import with_stand_ins

if TYPE_CHECKING:
    from adjoint.compiler.loops.loop import Loop

__all__ = ["has_outer_history", "pulled", "pushed"]


def has_outer_history(t: Tensor) -> bool:
    """Return whether ``t`` is a ``vmap`` value that depends on tensors outside which require grad."""
    return isinstance(t._data, Lifted) and t._data.has_history()


def pushed(loop: Loop, operands: list[Tensor], tangents: list[Tensor]) -> list[Tensor]:
    """Return the tangents of a loop's results, given the operands and their tangents."""
    return _at_this_level((*operands, *tangents), _pushed, loop, operands, tangents)


def _at_this_level(given: Sequence[Tensor], function: Callable[..., list[Any]], *args: Any) -> list[Any]:
    """Return ``function(*args)``; detach the results unless one of the tensors ``given`` is in a graph.

    Values of ``vmap`` stay part of the graphs outside of the ``vmap``.
    """
    here = any(t._node is not None for t in given)
    records = grad_mode.get() and (here or any(map(has_outer_history, given)))
    found = within(grad_mode, records, function, *args)
    return found if here else [t if t is None else wrap(t._data) for t in found]


def _pushed(loop: Loop, operands: list[Tensor], tangents: list[Tensor]) -> list[Tensor]:
    steps = _Steps(loop, operands)
    n, records = loop.carries, grad_mode.get()
    moving = [None if _is_zero(t) else t for t in tangents]
    in_carry = [k for k in range(n) if differentiable(operands[k].dtype)]
    in_rows = [k for k in range(n, loop.end) if moving[k] is not None]
    outside = [k for k in range(loop.end, len(operands)) if moving[k] is not None]

    def body(state: Any, row: Any) -> Any:
        (carry, of_carry), (x, of_x) = state, row
        given = [*of_carry, *of_x, *(moving[k] for k in outside)]
        note_reading(*given)
        since = next_seq()
        inputs, outs = steps.run([*carry, *x])
        roots = [o for o in outs if o._node is not None]
        ends = [inputs[k] for k in (*in_carry, *in_rows, *outside)]
        found = iter(push_forward(roots, ends, given, create_graph=records, since=since))
        flows = [next(found) if o._node is not None else None for o in outs]
        new = [_zeros(o) if g is None else as_gradient_tensor(g) for o, g in zip(outs, flows, strict=True)]
        kept = outs[:n] if records else [wrap(o._data) for o in outs[:n]]
        return (kept, [new[k] for k in in_carry]), new[n:]

    first = [_zeros(operands[k]) if (t := moving[k]) is None else t for k in in_carry]
    rows = operands[n : loop.end], [moving[k] for k in in_rows]
    (_, last), ys = _scan(loop, body, (operands[:n], first), rows, loop.reverse, loop.body.flagged)
    found = dict(zip(in_carry, last, strict=True))
    return [found[k] if k in found else _zeros(operands[k]) for k in range(n)] + ys


def pulled(
    loop: Loop, operands: list[Tensor], grads: Sequence[Tensor | None], wanted: Sequence[bool]
) -> list[Any]:
    """Return the gradients of the operands of a loop; None for a gradient that is zero."""
    given = [*operands, *(g for g in grads if g is not None)]
    return _at_this_level(given, _pulled, loop, operands, grads, wanted)


def _pulled(
    loop: Loop, operands: list[Tensor], grads: Sequence[Tensor | None], wanted: Sequence[bool]
) -> list[Any]:
    steps = _Steps(loop, operands)
    n, records = loop.carries, grad_mode.get()
    init, rows = operands[:n], operands[n : loop.end]
    in_carry = [k for k in range(n) if differentiable(operands[k].dtype)]
    in_rows = [k for k in range(n, loop.end) if wanted[k]]
    outside = [k for k in range(loop.end, len(operands)) if wanted[k]]
    seeded = [k for k in range(n, len(grads)) if grads[k] is not None]
    places = [*in_carry, *in_rows, *outside]
    reached = set(in_carry)

    def body(state: Any, row: Any) -> Any:
        (of_carry, totals), (carry, x, of_ys) = state, row
        inputs, outs = steps.run([*carry, *x])
        seeds = dict(zip((*in_carry, *seeded), (*of_carry, *of_ys), strict=True))
        pairs = [(o, seeds[k]) for k, o in enumerate(outs) if k in seeds and o._node is not None]
        found: Sequence[Any] = [None] * len(places)
        if pairs:
            roots, given = zip(*pairs, strict=True)
            targets = [inputs[k] for k in places]
            found = gradients(roots, targets, given, create_graph=records, allow_unused=True)
        of = dict(zip(places, found, strict=True))
        reached.update(k for k, g in of.items() if g is not None)
        new = [_zeros(operands[k]) if (g := of[k]) is None else g for k in in_carry]
        sums = [s if (g := of[k]) is None else s + g for s, k in zip(totals, outside, strict=True)]
        return (new, sums), [_zeros(inputs[k]) if (g := of[k]) is None else g for k in in_rows]

    note = lambda c, x: (steps.plain([*c, *x])[:n], c)
    carries = _scan(loop, note, init, rows, loop.reverse, loop.body.flagged)[1] if n else []
    start = [_zeros(operands[k]) if (g := grads[k]) is None else g for k in in_carry]
    totals = [_zeros(operands[k]) for k in outside]
    back = carries, rows, [grads[k] for k in seeded]
    (last, sums), ys = _scan(loop, body, (start, totals), back, not loop.reverse)
    found = dict(zip(places, (*last, *ys, *sums), strict=True))
    return [found[k] if w and k in reached else None for k, w in enumerate(wanted)]


def _scan(loop: Loop, body: Any, init: Any, xs: Any, reverse: bool, flagged: bool = False) -> tuple[Any, Any]:
    rows, structure = tree.flatten(xs)
    steps = Body("scan", body, rows, structure)
    steps.settles, steps.flagged = loop.body.settles, flagged
    return run_scan(steps, steps.start(init), loop.count, reverse, False)


class _Steps:
    """Runs the body of a loop on a carry and a row, and ``operands`` for the other tensors it reads."""

    def __init__(self, loop: Loop, operands: list[Tensor]) -> None:
        self.loop = loop
        self.given = operands[loop.end :]
        values = [s.owner for s in loop.sub.program.sources[loop.end :]]
        if loop.end > len(loop.inputs) or any(isinstance(v, Batched) for v in values):
            # the body draws random numbers, or reads ``vmap`` values that are not tensors
            raise refusal(UnrollError())

    def plain(self, leaves: list[Tensor], given: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Run the body; return the leaves of its results."""
        body, n = self.loop.body, self.loop.carries
        x = leaves[n] if body.lower is not None else tree.unflatten(body.of_rows, leaves[n:])
        if given is None:
            note_reading(*self.given)
            given = [_joined(t) if tracked(t) else t for t in self.given]
        carry = tree.unflatten(body.structure, leaves[:n])
        new, y = with_stand_ins(self.loop.captured, given, body.step, carry, x)
        return [t if isinstance(t, Tensor) else asarray(t) for t in (*tree.leaves(new), *tree.leaves(y))]

    def run(self, leaves: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Run and record the body; return its inputs and its results."""
        note_reading(*self.given)
        inputs = [_joined(t) for t in (*leaves, *self.given)]
        with enable_grad():
            return inputs, self.plain(inputs[: len(leaves)], inputs[len(leaves) :])


def _joined(t: Tensor) -> Tensor:
    """Return a copy of a tensor with its own graph node, so that a gradient can be computed for the copy."""
    return joined_copy(t, key_of(t) if tracked(t) else None) if differentiable(t.dtype) else t


def _zeros(like: Tensor) -> Tensor:
    return wrap(np.zeros(like.shape, like.dtype))


def _is_zero(t: Tensor) -> bool:
    return t._node is None and type(t._data) is np.ndarray and not t._data.any()
