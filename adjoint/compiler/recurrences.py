"""Lowering rules of ops that loop over steps: LSTM, GRU, cumulative sums and cumulative products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint.compiler.decompose import Primitives, rule
from adjoint.compiler.simplify import Graph, NotNative, View
from adjoint.compiler.steps import Steps, repeat

__all__: list[str] = []

_FEW = 64  # elements: steps with more elements must be contiguous in memory

Body = Callable[[Any, list[View], list[View], list[View]], tuple[Sequence[Any], Sequence[Any]]]


def _loop(
    xp: Any,
    body: Body,
    carry: Sequence[View],
    rows: Sequence[View],
    rest: Sequence[View] = (),
    backwards: bool = False,
) -> list[View]:
    """Add a loop over the first axis of ``rows``; return the final carried values, then the stacked results.

    ``carry`` has the initial carried values: each iteration receives them from the iteration before.
    ``body(xp, carry, row, rest)`` returns the new carried values and the results of one iteration.  All
    iterations read the same ``rest``.  If ``backwards`` is true, the loop starts at the last row.
    """
    inner = Primitives(Graph())
    shapes = [*(c.shape for c in carry), *(r.shape[1:] for r in rows), *(r.shape for r in rest)]
    operands = [*carry, *rows, *rest]
    given = [
        inner.graph.source(k, shape, a.dtype)
        for k, (shape, a) in enumerate(zip(shapes, operands, strict=True))
    ]
    end = len(carry) + len(rows)
    new, outs = body(inner, given[: len(carry)], given[len(carry) : end], given[end:])
    outputs = [inner.view(o) for o in (*new, *outs)]
    steps = Steps(inner.graph, outputs, rows[0].shape[0], len(carry), len(rows), backwards)
    return repeat(xp.graph, steps, operands)


def _moved(xp: Any, x: View, source: int, destination: int) -> View:
    """Return ``x`` with the axis ``source`` moved to ``destination``, as ``np.moveaxis`` does."""
    source, destination = source % x.ndim, destination % x.ndim
    order = [k for k in range(x.ndim) if k != source]
    order.insert(destination, source)
    found: View = xp.graph.permute(x, order)
    return found


# Running sums and products -----------------------------------------------------------------------------


def _running(xp: Any, x: Any, axis: int, op: str, start: float) -> View:
    """Return the cumulative sum or product of ``x`` along ``axis``; ``start`` is the neutral element.

    ``op`` is the primitive that combines two elements.
    """
    x = xp.view(x)
    dtype = (np.cumsum if op == "add" else np.cumprod)(np.zeros(1, x.dtype)).dtype
    rows = _moved(xp, xp.cast(x, dtype), axis, 0)
    size = math.prod(rows.shape[1:])
    if not rows.size or (size > _FEW and axis % x.ndim):
        raise NotNative("a cumulative op of an empty array, or not along the first axis, has no native form")
    start = start if dtype.kind == "f" else abs(start)
    first = xp.graph.broadcast(xp.graph.constant(np.asarray(start, dtype)), rows.shape[1:])

    def body(xp: Any, carry: list[View], row: list[View], _: list[View]) -> Any:
        new = getattr(xp, "add" if op == "add" else "multiply")(carry[0], row[0])
        return [new], [new]

    return _moved(xp, _loop(xp, body, [first], [rows])[1], 0, axis)


@rule("cumsum")
def _cumsum(xp: Any, x: Any, axis: int) -> View:
    return _running(xp, x, axis, "add", -0.0)  # adding -0.0 changes no number, not even the sign of a zero


@rule("cumprod")
def _cumprod(xp: Any, x: Any, axis: int) -> View:
    return _running(xp, x, axis, "multiply", 1.0)


# LSTM and GRU: see ``ops/recurrent.py`` for the names --------------------------------------------------


def _columns(x: View, j: int, n: int) -> View:
    """Return the columns of ``x`` that belong to gate ``j``: ``j * n`` to ``(j + 1) * n``."""
    return x[..., slice(j * n, (j + 1) * n)]


def _part(x: View, j: int) -> View:
    """Return the array with index ``j`` among those that ``_stacked`` has stacked in ``x``."""
    return x[..., j, slice(None), slice(None)]


def _sigmoid(xp: Any, x: View) -> Any:
    return 1 / (1 + xp.exp(-x))


def _stacked(xp: Any, *parts: Any) -> Any:
    """Return ``parts`` stacked along a new axis before the last two axes."""
    wide = [xp.graph.reshape(p, (*p.shape[:-2], 1, *p.shape[-2:])) for p in map(xp.view, parts)]
    return xp.apply("concat", *wide, axis=-3)


def _weights(xp: Any, w: View) -> View:
    """Return a row-major copy of the transposed weights, so that products in the loop need no packing."""
    found: View = xp.graph.copied(xp.graph.permute(w, [*range(w.ndim - 2), w.ndim - 1, w.ndim - 2]))
    return found


def _inputs(xp: Any, p: Any, b: Any) -> View:
    """Return ``p`` + ``b``, the inputs of the gates plus the bias, with the step axis first."""
    if not p.shape[-3] or not p.size:
        raise NotNative("a sequence of no steps has no native form")
    if not isinstance(b, (int, float)):
        b = xp.view(b)
        p = p + xp.graph.reshape(b, (*b.shape[:-1], 1, 1, b.shape[-1]))
    return _moved(xp, p, -3, 0)


@rule("lstm_sequence")
def _lstm_sequence(xp: Any, p: Any, w: Any, b: Any, h: Any, c: Any) -> Any:
    n = w.shape[-1]

    def body(xp: Any, carry: list[View], row: list[View], rest: list[View]) -> Any:
        (h, c), gates = carry, row[0] + xp.matmul(carry[0], rest[0])
        i, f, o = (_sigmoid(xp, _columns(gates, j, n)) for j in (0, 1, 3))
        u = xp.tanh(_columns(gates, 2, n))
        new = i * u + f * c
        t = xp.tanh(new)
        h = o * t
        return [h, new], [h, _stacked(xp, o, i, f, u, c, t)]

    _, last, hs, parts = _loop(xp, body, [h, c], [_inputs(xp, p, b)], [_weights(xp, w)])
    return _moved(xp, hs, 0, -3), last, _moved(xp, parts, 0, -4)


@rule("lstm_pull")
def _lstm_pull(xp: Any, gh: Any, gc: Any, ga: Any, k: Any, w: Any) -> Any:
    n = w.shape[-1]
    given, rows = _given(xp, (gh, gc, ga), k)
    state = k.shape[:-4] + k.shape[-2:]

    def body(xp: Any, carry: list[View], row: list[View], rest: list[View]) -> Any:
        (d, b), (gh, gc, ga), k = carry, given(row), row[-1]
        e = gh + xp.matmul(d, rest[0])
        b = gc + _part(k, 4) * e + _part(k, 5) * b
        parts = [_part(k, j) * b for j in (1, 2, 3)] + [_part(k, 0) * e]
        d = ga + xp.apply("concat", *parts, axis=-1)
        return [d, b], [d, b]

    start = [xp.zeros((*state[:-1], 4 * n), k.dtype), xp.zeros(state, k.dtype)]
    _, _, d, b = _loop(xp, body, start, rows, [xp.graph.copied(w)], backwards=True)
    return _moved(xp, d, 0, -3), _moved(xp, b, 0, -3)


def _given(
    xp: Any, gradients: Sequence[Any], k: View
) -> tuple[Callable[[list[View]], list[Any]], list[View]]:
    """Return a function from the rows of one step to the gradients of this step, and the stacked rows.

    ``gradients`` are the gradients of the op's results; a gradient that is the Python number 0 gets no row.
    ``k`` are the coefficients of the backward recurrence.  In the rows the step axis comes first.
    """
    if not k.size:
        raise NotNative("a sequence of no steps has no native form")
    fixed = [isinstance(g, (int, float)) for g in gradients]
    rows = [_moved(xp, xp.view(g), -3, 0) for g, number in zip(gradients, fixed, strict=True) if not number]

    def given(row: list[View]) -> list[Any]:
        found = iter(row)
        return [g if number else next(found) for g, number in zip(gradients, fixed, strict=True)]

    return given, [*rows, _moved(xp, k, -4, 0)]


@rule("gru_sequence")
def _gru_sequence(xp: Any, p: Any, w: Any, b: Any, h: Any) -> Any:
    n = w.shape[-1]
    bias = 0 if isinstance(b, (int, float)) else xp.view(b)
    if not isinstance(bias, int):  # the bias of the candidate is multiplied by the reset gate r
        wide = xp.graph.reshape(bias, (*bias.shape[:-1], 1, 1, bias.shape[-1]))
        keep = np.concatenate([np.ones(2 * n), np.zeros(n)]).astype(bias.dtype)
        p, bias = p + wide * keep, xp.graph.reshape(_columns(bias, 2, n), (*bias.shape[:-1], 1, n))

    def body(xp: Any, carry: list[View], row: list[View], rest: list[View]) -> Any:
        (h,), (p,) = carry, row
        product = xp.matmul(h, rest[0])
        r, z = (_sigmoid(xp, _columns(p, j, n) + _columns(product, j, n)) for j in (0, 1))
        m = _columns(product, 2, n)
        m = m + rest[1] if len(rest) > 1 else m
        u = xp.tanh(_columns(p, 2, n) + r * m)
        new = u + z * (h - u)
        return [new], [new, _stacked(xp, r, z, u, m)]

    rest = [_weights(xp, w)] if isinstance(bias, int) else [_weights(xp, w), bias]
    _, hs, parts = _loop(xp, body, [h], [_inputs(xp, p, 0)], rest)
    return _moved(xp, hs, 0, -3), _moved(xp, parts, 0, -4)


@rule("gru_pull")
def _gru_pull(xp: Any, gh: Any, ga: Any, k: Any, w: Any) -> Any:
    n = w.shape[-1]
    given, rows = _given(xp, (gh, ga), k)
    state = k.shape[:-4] + k.shape[-2:]

    def body(xp: Any, carry: list[View], row: list[View], rest: list[View]) -> Any:
        (d, carried), (gh, ga), k = carry, given(row), row[-1]
        e = gh + xp.matmul(d, rest[0]) + carried
        d = ga + xp.apply("concat", *[_part(k, j) * e for j in range(3)], axis=-1)
        return [d, _part(k, 3) * e], [d, e]

    start = [xp.zeros((*state[:-1], 3 * n), k.dtype), xp.zeros(state, k.dtype)]
    _, _, d, e = _loop(xp, body, start, rows, [xp.graph.copied(w)], backwards=True)
    return _moved(xp, d, 0, -3), _moved(xp, e, 0, -3)
