"""Loops in a graph of primitives: the graph of one iteration, and the node that repeats it.

A *carry* is a value that each iteration receives from the previous iteration and replaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adjoint.compiler.lower.graph import Dataflow, Primitive, View, row_major

__all__ = ["Steps", "repeat"]

_BOOL = np.dtype(bool)


@dataclass(slots=True, eq=False)
class Steps:
    """The body of a loop as a graph, which runs ``count`` times; the fields are those of ``Repeat``.

    The sources of the graph are the carried values, then one row of each of ``rows`` arrays (iteration ``k``
    reads row ``k``), then the values that all iterations read.  If ``settles`` is true, an iteration is
    skipped when the previous iteration read the same values and changed no carried value.
    """

    graph: Dataflow
    outputs: list[View]  # the new carried values, then the results that are stacked over the iterations
    count: int
    carries: int
    rows: int
    backwards: bool = False
    settles: bool = False


def repeat(graph: Dataflow, steps: Steps, args: Sequence[View]) -> list[View]:
    """Add a loop to a graph; return its final carried values, then its stacked results.

    ``args`` are the operands, in the order of the sources of ``steps``.  The new "repeat" node itself is a
    flag: True if a check inside an iteration failed.
    """
    end = steps.carries + steps.rows
    laid = [_laid(a, 1 if steps.carries <= k < end else 0) for k, a in enumerate(args)]
    _turn_factors(graph, steps.graph, laid, end)
    node = graph.add(Primitive("repeat", tuple(laid), None, (), _BOOL))
    node.value = steps
    if steps.graph.checks:
        graph.checks.append(graph.view(node))
    outs = []
    for k, v in enumerate(steps.outputs):
        shape = v.shape if k < steps.carries else (steps.count, *v.shape)
        outs.append(graph.view(graph.add(Primitive("out", (graph.view(node),), k, shape, v.dtype))))
    return outs


def _turn_factors(graph: Dataflow, body: Dataflow, given: list[View], first: int) -> None:
    """Copy transposed right operands of matrix products to row-major order once, before the loop.

    Only operands that all iterations read are copied: ``given[first:]``.  The copies are appended to
    ``given``, and ``body`` is changed to read them.
    """
    known: dict[Any, View] = {}
    for n in list(body.nodes):
        b = n.args[1] if n.op == "matmul" else None
        if b is None or b.node.op != "source" or b.node.params < first or b.ndim != 2:
            continue
        if b.strides == row_major(b.shape):
            continue
        if b.key not in known:
            a = given[b.node.params]
            turned = graph.copied(View(graph, a.node, b.shape, b.strides, a.offset + b.offset))
            known[b.key] = body.source(len(given), b.shape, b.dtype)
            given.append(turned)
        n.args = (n.args[0], known[b.key])


def _laid(x: View, first: int) -> View:
    """Return ``x``, or a copy, so that the axes after the first ``first`` axes are row-major in memory."""
    return x if x.strides[first:] == row_major(x.shape[first:]) else x.graph.copied(x)
