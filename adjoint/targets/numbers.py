"""Numbers that the host computes in float64, for devices that compute in float32.

In float32, 1 - 0.999 has an error of 1e-5 of itself.  So whatever depends on Python numbers alone is
computed by NumPy before each call, and kernels read the result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np

from adjoint.compiler.lower.graph import FOLDED, Dataflow, Primitive, View
from adjoint.compiler.lower.steps import Steps

__all__ = ["compute_on_host", "reachable", "written"]

_UFUNCS: dict[str, Callable[..., Any]] = {
    **FOLDED,
    "power": np.power,
    "where": np.where,
    "log1p": np.log1p,
    "expm1": np.expm1,
}
_Read = Callable[[int], Any]  # returns the present value of an input
_Found = Callable[[_Read], Any]


def compute_on_host(
    graph: Dataflow, outputs: Sequence[View], numbers: Collection[int], first: int
) -> tuple[list[View], dict[int, tuple[View, _Found]]]:
    """Change a graph so that it does not compute numbers in float64.

    ``numbers`` are the indices of inputs that are Python numbers.  Return the outputs, and by the index of
    each new input, from ``first`` on, a view of it and a function that computes it, given one that reads
    other inputs.
    """
    known: dict[int, _Found] = {}
    for n in graph.nodes:
        if n.op in ("source", "number") and n.params in numbers:
            known[n.id] = partial(_given, n)
    found = _Numbers(graph, known, set())
    outputs = found.run(outputs)
    for k, (view, _, _) in enumerate(found.inputs):
        view.node.params = first + k
    return outputs, {first + k: (v, f) for k, (v, _, f) in enumerate(found.inputs)}


def reachable(outputs: Sequence[View]) -> list[Primitive]:
    """Return the nodes that views depend on, also inside loops."""
    found: dict[Primitive, None] = {}
    waiting = [v.node for v in outputs]
    while waiting:
        n = waiting.pop()
        if n not in found:
            found[n] = None
            waiting += [a.node for a in n.args]
            if n.op == "repeat":
                waiting += [v.node for v in (*n.value.outputs, *n.value.graph.checks)]
    return list(found)


class _Numbers:
    """Finds the numbers of one graph; ``known`` has those that are given, by the id of their node.

    A function of ``known`` returns an array whose last axis has the elements of the node.  In the body of a
    loop it may have another axis: the number differs between iterations.  ``moving`` are the ids of such
    nodes.
    """

    def __init__(self, graph: Dataflow, known: dict[int, _Found], moving: set[int]) -> None:
        self.graph, self.known, self.moving = graph, known, moving
        self.wide = {n.id for n in graph.nodes if n.id in known and n.dtype == np.float64}
        self.made: dict[tuple[int, int], View] = {}
        self.inputs: list[tuple[View, bool, _Found]] = []  # of new inputs: whether it moves, its function

    def run(self, outputs: Sequence[View]) -> list[View]:
        """Replace the numbers that other nodes need by new inputs; return the outputs."""
        for n in self.graph.nodes:
            before = {a.node.id for a in n.args}
            if n.op == "constant" and n.size == 1:
                self.known[n.id] = partial(_constant, n)
            elif n.op in _UFUNCS and n.size == 1 and before and before <= self.known.keys():
                self.known[n.id] = partial(_computed, n, [self.known[a.node.id] for a in n.args])
                if before & self.moving:
                    self.moving.add(n.id)
                if n.dtype == np.float64 or before & self.wide:
                    self.wide.add(n.id)
        for n in list(self.graph.nodes):
            if n.op == "repeat":
                self._loop(n, n.value)
            if n.id not in self.known:
                n.args = tuple(map(self._replaced, n.args))
        self.graph.checks[:] = map(self._replaced, self.graph.checks)
        return [v if v.node.op == "number" else self._replaced(v, True) for v in outputs]

    def _replaced(self, v: View, result: bool = False) -> View:
        """Return a view of a new input instead of a number in float64, or one that depends on such."""
        if v.node.id not in self.wide or v.node.op == "constant" or any(v.strides):
            return v
        key = v.node.id, v.offset
        if key not in self.made:
            self.made[key] = self.graph.source(-1, (), v.dtype)
            found, at = self.known[v.node.id], v.offset
            self.inputs.append((self.made[key], v.node.id in self.moving, partial(_elements, found, at)))
        node = self.made[key].node
        if result and v.dtype == np.float64:  # the host returns it
            node.op = "number"
            return View(self.graph, node, v.shape, v.strides, 0, weak=True)
        return View(self.graph, node, v.shape, (0,) * len(v.shape))

    def _loop(self, node: Primitive, steps: Steps) -> None:
        """Find the numbers of the body of a loop; they become operands of the loop."""
        end = steps.carries + steps.rows
        sources = {n.params: n for n in steps.graph.nodes if n.op == "source"}
        inside: dict[int, _Found] = {}
        moving = set()
        for k, n in sources.items():
            a = node.args[k]
            if k < steps.carries or n.dtype != np.float64 or a.node.id not in self.known:
                continue
            places = np.ravel(_positions(a)).reshape((steps.count, -1) if k < end else (-1,))
            if k < end and a.node.id in self.moving:
                continue
            inside[n.id] = partial(_elements, self.known[a.node.id], places)
            if k < end or a.node.id in self.moving:
                moving.add(n.id)
        body = _Numbers(steps.graph, dict(inside), moving)
        steps.outputs = body.run(steps.outputs)
        rows = [(v, f, (steps.count,)) for v, moves, f in body.inputs if moves]
        fixed: list[Any] = [(v, f, ()) for v, moves, f in body.inputs if not moves]
        left = {n.params for n in reachable([*steps.outputs, *steps.graph.checks]) if n.op == "source"}
        unused = self.graph.constant(np.float32(0)).strided((steps.count,), (0,))
        dead = {k for k, n in sources.items() if n.id in inside and k not in left}
        args = [unused if k in dead else a for k, a in enumerate(node.args)]
        for k, n in sources.items():
            n.params = k + len(rows) if k >= end else k
        made = []
        for view, found, shape in (*rows, *fixed):
            made.append(self.graph.source(-1, shape, view.dtype))
            self.inputs.append((made[-1], False, found))
            view.node.params = end + len(made) - 1 + (len(args) - end if len(made) > len(rows) else 0)
        node.args = (*args[:end], *made[: len(rows)], *args[end:], *made[len(rows) :])
        steps.rows += len(rows)


def _positions(v: View) -> Any:
    """Return the positions of the elements of a view in its node."""
    found = np.asarray(v.offset)
    for n, s in zip(v.shape, v.strides, strict=True):
        found = found[..., None] + np.arange(n) * s
    return found


def _constant(n: Primitive, read: _Read) -> Any:
    return np.ravel(n.value)


def _elements(found: _Found, at: Any, read: _Read) -> Any:
    return found(read)[..., at]


def _given(n: Primitive, read: _Read) -> Any:
    return np.ravel(np.asarray(read(n.params), n.dtype))


def _computed(n: Primitive, args: Sequence[_Found], read: _Read) -> Any:
    """Return a node of one element, by NumPy."""
    with np.errstate(all="ignore"):
        given = [f(read)[..., a.offset] for f, a in zip(args, n.args, strict=True)]
        return np.asarray(_UFUNCS[n.op](*given)).astype(n.dtype)[..., None]


def written(found: Any, write: Callable[..., Any]) -> Any:
    """Return an array of what ``write`` returns for each element, instead of numbers.

    ``write(node, index)`` is called for an element of a constant or an input, ``write(node, None, *args)``
    for a node that is computed.
    """
    function, (n, *rest) = found.func, found.args
    if function is _elements:
        return written(n, write)[..., rest[0]]
    made: Any
    if function is _computed:
        given = [written(f, write)[..., a.offset] for f, a in zip(rest[0], n.args, strict=True)]
        made = np.frompyfunc(partial(write, n, None), len(given), 1)(*given)
        return np.asarray(made, object)[..., None]
    made = np.empty(n.size, object)
    made[:] = [write(n, k) for k in range(n.size)]
    return made
