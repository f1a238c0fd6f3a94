"""LSTM over whole sequences: one op for all steps.  ``gru.py`` has the GRU.

Inputs and hidden states have the shape (…, steps, batch, features).  At each step, a cell computes several
arrays (batch, n) that its derivative rule needs, such as its gates.  They are called the *parts* of the step,
and are saved in one array (…, steps, parts, batch, n), so that each part is contiguous.  ``p`` is the
contribution of the inputs to the gates of all steps; the hidden state adds ``h wᵀ`` at each step.

The derivative of a recurrence is a linear recurrence.  Its coefficients ``k`` are known after the forward
pass.  They are computed for all steps in a few NumPy calls, and so are the gradients of the weights.  The
loop over the steps has only one small product and a few multiplications.  The linear recurrence has two
directions: a *push* propagates tangents forwards in time, and a *pull* propagates gradients backwards.  Each
is the derivative rule of the other, so derivatives of every order exist.

A superscript ⁻ or ⁺ marks the value of the previous or the next step.  The number 0 means that an argument or
a gradient is absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint.core.batching import Batched, empty_batch, folded, full_batch, leading, unfolded
from adjoint.core.define import define
from adjoint.core.infer import Result, like_first
from adjoint.core.namespace import Namespace, Value
from adjoint.core.native import NotNative, Primitives, View
from adjoint.core.op import Op
from adjoint.core.record import compute
from adjoint.ops.activations import real_only
from adjoint.ops.half import wide
from adjoint.typing import Array

__all__: list[str] = []

# Helpers for both LSTM and GRU -----------------------------------------------------------------


def _widened(*arrays: Any) -> tuple[tuple[Any, ...], Any, Any]:
    """Return the arrays cast to the dtype of the computation, this dtype, and the dtype of the results.

    The dtype of the results is the common dtype of the arrays.  The computation has the same dtype, but
    float32 for half precision.  An int is an absent array and stays unchanged.
    """
    given = np.result_type(*(a for a in arrays if type(a) is not int))
    arrays = tuple(a if type(a) is int else wide(a) for a in arrays)
    dtype = np.result_type(*(a for a in arrays if type(a) is not int))
    return tuple(a if type(a) is int else a.astype(dtype, copy=False) for a in arrays), dtype, given


def _narrowed(dtype: Any, *arrays: Array) -> tuple[Any, ...]:
    return tuple(a.astype(dtype, copy=False) for a in arrays)


def _steps(a: Any, axis: int = -3) -> list[Any]:
    """Return a list of views of ``a``, one for each index along ``axis``.

    A loop over this list is faster than a loop that indexes the array.
    """
    return list(np.moveaxis(a, axis, 0) if a.ndim + axis else a)


def _steps_or_none(a: Any, length: int) -> list[Any]:
    """Return a list with a view of each of the ``length`` steps of ``a``.

    If ``a`` is the number 0 (absent), the items of the list are None.
    """
    return [None] * length if type(a) is int else _steps(a)


def _times(lead: tuple[int, ...]) -> Any:
    return np.matmul if lead else np.dot  # np.dot takes two thirds of the time for the sizes of typical cells


def _blocks(w: Array, order: Sequence[int], negative: int) -> Any:
    """Split the weights (k·n, n) into k matrices (n, n), transposed, so that a gate is ``h @ block``.

    Return them stacked in the order ``order``; the first ``negative`` of them are negated.
    """
    n = w.shape[-1]
    blocks = w.reshape(*w.shape[:-2], len(order), n, n)[..., order, :, :].swapaxes(-1, -2)
    blocks = np.ascontiguousarray(blocks)
    np.negative(blocks[..., :negative, :, :], out=blocks[..., :negative, :, :])
    return blocks


def _sigmoid_inputs(p: Any, b: Any, count: int, order: Sequence[int], parts: Any) -> None:
    """Write -(p + b), the negative arguments of the sigmoid gates, to the first arrays of ``parts``.

    The columns of ``p`` are ``count`` blocks, one for each gate; array i of ``parts`` is block ``order[i]``.
    The sum is computed for all columns and then copied, which takes two thirds of the time of a sum for each
    block.
    """
    negated = np.negative(p) if type(b) is int else np.subtract(-b[..., None, None, :], p)
    blocks = _parts(negated, count)
    for slot, block in enumerate(order):
        _part(parts, slot)[...] = _part(blocks, block)


def _bias(b: Any, block: int, n: int, dtype: Any) -> Any:
    """Return the n elements of the bias for gate ``block`` (an index), or a 0-d zero if there is no bias."""
    return np.zeros((), dtype) if type(b) is int else b[..., None, None, block * n : (block + 1) * n]


def _parts(p: Array, count: int) -> Any:
    """Split the columns of (…, batch, count·n) into blocks; return a view of shape (…, count, batch, n)."""
    return p.reshape(*p.shape[:-1], count, p.shape[-1] // count).swapaxes(-2, -3)


def _part(a: Array, j: int) -> Any:
    return a[..., j, :, :]


def _wide_rows(xp: Namespace, a: Value) -> Any:
    """Reshape an array of shape (…, steps, batch, m) to (…, steps·batch, m)."""
    return xp.reshape(a, shape=(*a.shape[:-3], math.prod(a.shape[-3:-1]), a.shape[-1]))


def _over_steps(xp: Namespace, d: Value, h: Value) -> Any:
    """Return the sum of dᵀ h over all steps and batch elements, as one matrix product."""
    return xp.matmul(xp.matrix_transpose(_wide_rows(xp, d)), _wide_rows(xp, h))


def _before(xp: Namespace, first: Value, a: Value) -> Any:
    """Return the state before each step, given the state ``a`` after each step and the ``first`` state."""
    return xp.concat(first[..., None, :, :], a, axis=-3)[..., : a.shape[-3], :, :]


def _after(xp: Namespace, a: Value) -> Any:
    """Return, for each step, the value of ``a`` at the next step, or zeros for the last step."""
    return xp.concat(a, xp.zeros_like(a[..., :1, :, :]), axis=-3)[..., 1:, :, :]


def _earlier(xp: Namespace, a: Value) -> Any:
    """Return, for each step, the value of ``a`` at the previous step, or zeros for the first step."""
    return xp.concat(xp.zeros_like(a[..., :1, :, :]), a, axis=-3)[..., : a.shape[-3], :, :]


def _over(w: Array) -> Any:
    """Return a stack of matrices with an axis of length 1 before the matrices, to broadcast over the steps.

    A single matrix is returned unchanged.
    """
    return w[..., None, :, :] if w.ndim > 2 else w


def _columns(a: Array, j: int, n: int) -> Any:
    return a[..., j * n : (j + 1) * n]


def _plus(a: Any, b: Any) -> Any:
    """Return the sum of two gradients, each of which may be the number 0 (absent)."""
    return b if type(a) is int else a if type(b) is int else a + b


def _of_linear_recurrence(
    xp: Namespace,
    wanted: Sequence[bool],
    linear: Sequence[Any],
    coefficients: Callable[[], Any],
    d: Value,
    h: Value,
) -> list[Any]:
    """Return the gradients of all arguments of an op ``*_push`` or ``*_pull``; those not ``wanted`` are None.

    The arguments are those in which the op is linear, then the coefficients k and the weight w.  ``linear``
    are the gradients of the former, and ``coefficients()`` returns that of k.  The gradient of w is the sum,
    over all steps, of dᵀ times h of the previous step, both for a push and for a pull.
    """
    return [
        *(each if wants else None for each, wants in zip(linear, wanted, strict=False)),
        coefficients() if wanted[-2] else None,
        _over_steps(xp, d, _earlier(xp, h)) if wanted[-1] else None,
    ]


def _given(g: Any) -> list[Any]:
    return [0 if each is None else each for each in g]


# Shapes ----------------------------------------------------------------------------------------


def _floats(*args: Any) -> Any:
    """Return the common dtype of the arguments of a recurrent op, or None if they are not all real floats."""
    dtypes = [a.dtype for a in args if type(a) is not int]
    return None if any(d.kind in "biuc" for d in dtypes) else np.result_type(*dtypes)


def _sequence_shape(gates: int, parts: int) -> Callable[..., Result | None]:
    """Return the shape rule of ``lstm_sequence`` or ``gru_sequence``.

    ``gates`` is the number of gates, which are blocks of columns of the input.  ``parts`` is the number of
    arrays that the op saves for its derivative at each step.
    """

    def rule(p: Any, w: Any, b: Any, *states: Any) -> Result | None:
        dtype = _floats(p, w, b, *states)
        if dtype is None or len(p.shape) < 3:
            return None
        *lead, length, batch, width = p.shape
        n = w.shape[-1]
        state, bias = (*lead, batch, n), (*lead, width)
        fits = width == gates * n and w.shape == (*lead, width, n) and (type(b) is int or b.shape == bias)
        if not fits or any(s.shape != state for s in states):
            return None
        hidden = ((*lead, length, batch, n), dtype)
        kept = ((*lead, length, parts, batch, n), dtype)
        return (hidden, *((state, dtype) for _ in states[1:]), kept)

    return rule


def _linear_shape(
    gates: int, parts: int, inputs: Sequence[int], outputs: Sequence[int]
) -> Callable[..., Result | None]:
    """Return the shape rule of an op ``*_push`` or ``*_pull``.

    Arrays consist of blocks of n columns or rows, where n is the number of features.  The weights have
    ``gates`` blocks, and the coefficients k have ``parts``.  ``inputs`` and ``outputs`` list the number of
    blocks of each input and output.
    """

    def rule(*args: Any) -> Result | None:
        *given, k, w = args
        dtype = _floats(*args)
        if dtype is None or len(k.shape) < 4:
            return None
        *lead, length, found, batch, n = k.shape
        shapes = [(*lead, length, batch, i * n) for i in inputs]
        fits = all(type(a) is int or a.shape == shape for a, shape in zip(given, shapes, strict=True))
        if not fits or found != parts or w.shape != (*lead, gates * n, n):
            return None
        return tuple([((*lead, length, batch, i * n), dtype) for i in outputs])

    return rule


def _recurrent_batch(op: Op, size: int, /, *args: Any, **params: Any) -> Any:
    """Apply a recurrent op inside ``vmap``: the batching rule of all ops of this module.

    The batch axis of ``vmap`` is merged with the batch axis of the sequences.  If the weights have a batch
    axis, too, the op is called with a stack of weights instead.
    """
    if not size:
        return empty_batch(op, args, params)
    named = list(zip(op.arg_names, args, strict=True))
    if any(name in "wb" and isinstance(a, Batched) and a.batched for name, a in named):
        return leading(op, size, *args, **params)
    joined = []
    for name, a in named:
        if name in "wb" or not isinstance(a, Batched):
            joined.append(a.value if isinstance(a, Batched) else a)
        else:
            joined.append(folded(full_batch(a, size), a.ndim - 2))
    outs = compute(op, tuple(joined), params)
    return tuple(unfolded(out, len(out.shape) - 2, size) for out in outs)


# Native code ------------------------------------------------------------------------------------


def _native_sigmoid(xp: Primitives, x: View) -> View:
    return 1 / (1 + xp.exp(-x))


def _native_inputs(xp: Primitives, p: View, b: View = 0) -> View:
    """Return ``p`` + ``b``, the inputs of the gates plus the bias, with the step axis first."""
    if not p.size:
        raise NotNative("a sequence of no steps has no native form")
    if not isinstance(b, (int, float)):
        p = p + xp.graph.reshape(b, (*b.shape[:-1], 1, 1, b.shape[-1]))
    return xp.moveaxis(p, source=-3, destination=0)


def _native_weights(xp: Primitives, w: View) -> View:
    """Return a row-major copy of the transposed weights, so that products in the loop need no packing."""
    return xp.graph.copied(xp.matrix_transpose(w))


def _native_pull(
    xp: Primitives, body: Callable[..., Any], gates: int, gradients: Sequence[View], k: View, w: View
) -> tuple[View, View]:
    """Add the loop of a pull over all steps, from the last to the first; return its two results.

    ``body(xp, w, carry, gradients, k)`` returns the two results of a step, and the second carried value; the
    first one is the first result.  ``gradients`` are the gradients of the op's results, for all steps or for
    one; a gradient that is the Python number 0 has no steps.  ``k`` are the coefficients of the recurrence.
    """
    if not k.size:
        raise NotNative("a sequence of no steps has no native form")
    given = [g for g in gradients if not isinstance(g, (int, float))]

    def step(xp: Primitives, carry: list[View], row: list[View], rest: list[View]) -> Any:
        now = iter(row)
        found = [g if isinstance(g, (int, float)) else next(now) for g in gradients]
        d, e, carried = body(xp, rest[0], carry, found, row[-1])
        return [d, carried], [d, e]

    state = k.shape[:-4] + k.shape[-2:]
    start = [xp.full((*state[:-1], gates * w.shape[-1]), 0, k.dtype), xp.full(state, 0, k.dtype)]
    rows = [
        *(xp.moveaxis(g, source=-3, destination=0) for g in given),
        xp.moveaxis(k, source=-4, destination=0),
    ]
    _, _, d, e = xp.loop(step, start, rows, [xp.graph.copied(w)], backwards=True)
    return xp.moveaxis(d, source=0, destination=-3), xp.moveaxis(e, source=0, destination=-3)


# LSTM: the parts of a step are o, i, f, u = tanh(…), the cell c⁻ before the step, and t = tanh(c) --------
#
# In this order the three sigmoid gates are adjacent.  So are (i, f) and (u, c⁻), whose products give c = i u
# + f c⁻.


def _lstm_sequence(p: Array, w: Array, b: Array, h: Array, c: Array) -> Any:
    (p, w, b, h, c), dtype, given = _widened(real_only(p), w, b, h, c)
    lead, (length, batch), n = p.shape[:-3], p.shape[-3:-1], w.shape[-1]
    parts = np.empty((*lead, length, 6, batch, n), dtype)
    hs, last = np.empty((*lead, length, batch, n), dtype), c.copy()
    _sigmoid_inputs(p, b, 4, (3, 0, 1), parts)
    np.add(p[..., 2 * n : 3 * n], _bias(b, 2, n, dtype), _part(parts, 3))
    blocks = _blocks(w, (3, 0, 1, 2), 3)
    product, pair = np.empty((*lead, 4, batch, n), dtype), np.empty((*lead, 2, batch, n), dtype)
    one_half, other_half = _part(pair, 0), _part(pair, 1)
    one = np.ones((), dtype)
    matmul, add, multiply, divide, exp, tanh = np.matmul, np.add, np.multiply, np.divide, np.exp, np.tanh
    if length:
        parts[..., 0, 4, :, :] = c
    all_steps = zip(
        *(_steps(parts[..., i:j, :, :], -4) for i, j in ((0, 4), (0, 3), (1, 3), (3, 5))),
        *(_steps(_part(parts, j)) for j in (0, 3, 5)),
        [*_steps(_part(parts, 4))[1:], last][:length],
        _steps(hs), _steps(hs[..., None, :, :], -4), strict=True,
    )  # fmt: skip
    h = h[..., None, :, :]
    with np.errstate(over="ignore"):  # σ(x) = 1 / (1 + exp(-x)), which is 0 where exp(-x) is inf
        for four, three, if_, uc, o, u, t, c_new, h_new, h_next in all_steps:
            matmul(h, blocks, product)
            add(four, product, four)
            exp(three, three)
            add(three, one, three)
            divide(one, three, three)
            tanh(u, u)
            multiply(if_, uc, pair)
            add(one_half, other_half, c_new)
            tanh(c_new, t)
            multiply(o, t, h_new)
            h = h_next
    return _narrowed(given, hs, last, parts)


def _lstm_sequence_rule(
    xp: Namespace,
    g: Value,
    out: Value,
    p: Value,
    w: Value,
    b: Value,
    h: Value,
    c: Value,
    wanted: Sequence[bool],
) -> list[Any]:
    hs, _, parts = out
    gh, glast, gparts = g
    gc, ga, gfirst = 0, 0, 0
    if gparts is not None:  # beyond first order: the parts themselves were used
        o, i, f, u, _, t = (_part(parts, j) for j in range(6))
        go, gi, gf, gu, gbefore, gt = (_part(gparts, j) for j in range(6))
        ga = xp.concat(gi * i * (1 - i), gf * f * (1 - f), gu * (1 - u * u), go * o * (1 - o), axis=-1)
        gc = gt * (1 - t * t)
    if gparts is not None or glast is not None:
        # the gradients of the cells before each step, and of the last cell
        line = xp.concat(
            gbefore if gparts is not None else xp.zeros_like(hs),
            xp.zeros_like(h[..., None, :, :]) if glast is None else glast[..., None, :, :],
            axis=-3,
        )
        gfirst, gc = _part(line, 0), _plus(gc, line[..., 1:, :, :])
    d, gcells = xp.lstm_pull(0 if gh is None else gh, gc, ga, xp.lstm_slopes(parts), w)
    some = p.shape[-3] > 0
    if wanted[4] and some:
        gfirst = _plus(_part(gcells, 0) * parts[..., 0, 2, :, :], gfirst)
    return [
        d if wanted[0] else None,
        _over_steps(xp, d, _before(xp, h, hs)) if wanted[1] else None,
        xp.sum(d, axis=(-3, -2), keepdims=False) if wanted[2] else None,
        (xp.matmul(_part(d, 0), w) if some else xp.zeros_like(h)) if wanted[3] else None,
        (xp.zeros_like(h) if type(gfirst) is int else gfirst) if wanted[4] else None,
    ]


# The push of an LSTM, with the coefficients k = (kₒ, kᵢ, k_f, kᵤ, r, f⁺) of a step and the inputs x and y, is
#     a = x + h⁻wᵀ,   c = y + f c⁻ + kᵢ aᵢ + k_f a_f + kᵤ aᵤ,   h = kₒ aₒ + r c
# f⁺ is the f of the next step.  In the pull, r and f⁺ multiply the gradients that reach c from h and from the
# next c.


def _lstm_slopes(parts: Array) -> Any:
    (parts,), dtype, given = _widened(parts)
    k = np.empty(parts.shape, dtype)
    o, i, _, u, _, t = (_part(parts, j) for j in range(6))
    one, gates, bend = np.ones((), dtype), parts[..., :3, :, :], k[..., :3, :, :]
    np.subtract(one, gates, bend)
    np.multiply(bend, gates, bend)
    np.multiply(k[..., 1:3, :, :], parts[..., 3:5, :, :], k[..., 1:3, :, :])  # i (1-i) u and f (1-f) c⁻
    np.multiply(_part(k, 0), t, _part(k, 0))  # o (1-o) t
    for slot, gate, value in ((3, i, u), (4, o, t)):  # i (1-u²) and o (1-t²)
        square = np.multiply(value, value, _part(k, slot))
        np.subtract(one, square, square)
        np.multiply(square, gate, square)
    k[..., :-1, 5, :, :] = parts[..., 1:, 2, :, :]
    k[..., -1:, 5, :, :] = 0
    return k.astype(given, copy=False)


def _lstm_slopes_rule(xp: Namespace, g: Value, k: Value, parts: Value) -> Any:
    o, i, f, u, c, t = (_part(parts, j) for j in range(6))
    go, gi, gf, gu, gr, gnext = (_part(g, j) for j in range(6))
    return xp.stack(
        go * t * (1 - 2 * o) + gr * (1 - t * t),
        gi * u * (1 - 2 * i) + gu * (1 - u * u),
        gf * c * (1 - 2 * f) + _earlier(xp, gnext),
        gi * i * (1 - i) - 2 * gu * u * i,
        gf * f * (1 - f),
        go * o * (1 - o) - 2 * gr * t * o,
        axis=-3,
    )


def _lstm_push(x: Array, y: Array, k: Array, w: Array) -> Any:
    (x, y, k, w), dtype, given = _widened(x, y, k, w)
    lead, (length, _, batch, n) = k.shape[:-4], k.shape[-4:]
    a = np.empty((*lead, length, batch, 4 * n), dtype)
    h, c = (np.empty((*lead, length, batch, n), dtype) for _ in range(2))
    times, weight = _times(lead), w.swapaxes(-1, -2)
    old: Any = None
    for x_t, y_t, k_t, a_t, parts, h_t, c_t in zip(
        _steps_or_none(x, length), _steps_or_none(y, length), _steps(k, -4), _steps(a),
        _steps(_parts(a, 4), -4), _steps(h), _steps(c), strict=True,
    ):  # fmt: skip
        if old is None:
            a_t[...] = 0
            c_t[...] = 0
        else:
            k_old, h_old, c_old = old
            times(h_old, weight, a_t)
            np.multiply(_part(k_old, 5), c_old, c_t)
        if x_t is not None:
            a_t += x_t
        if y_t is not None:
            c_t += y_t
        c_t += (k_t[..., 1:4, :, :] * parts[..., :3, :, :]).sum(-3)
        np.multiply(_part(k_t, 0), _part(parts, 3), h_t)
        h_t += _part(k_t, 4) * c_t
        old = k_t, h_t, c_t
    return _narrowed(given, h, c, a)


def _lstm_pull(gh: Array, gc: Array, ga: Array, k: Array, w: Array) -> Any:
    """Propagate gradients backwards in time through an LSTM; return those of the gates (d) and cells (b).

    ``gh``, ``gc`` and ``ga`` are the gradients of the hidden states, the cells and the gates.
    With the total gradient e of h, the formulas are e = gh + d⁺w,  b = gc + r e + f⁺b⁺,  d = ga + (kᵢ b, k_f
    b, kᵤ b, kₒ e).
    """
    (gh, gc, ga, k, w), dtype, given = _widened(gh, gc, ga, k, w)
    lead, (length, _, batch, n) = k.shape[:-4], k.shape[-4:]
    d = np.empty((*lead, length, batch, 4 * n), dtype)
    back = np.empty((*lead, length + 1, 2, batch, n), dtype)  # e and b⁺
    back[..., 1:, 0, :, :] = gh
    back[..., -1, 1, :, :] = 0
    b, pair = back[..., :-1, 1, :, :], np.empty((*lead, 2, batch, n), dtype)
    product = np.empty((*lead, batch, n), dtype)
    one_half, other_half = _part(pair, 0), _part(pair, 1)
    d_parts = _parts(d, 4)
    all_steps = zip(
        _steps_or_none(gc, length), _steps_or_none(ga, length),
        _steps(k[..., 1:4, :, :], -4), _steps(_part(k, 0)), _steps(k[..., 4:, :, :], -4),
        _steps(back[..., 1:, :, :, :], -4), _steps(back[..., 1:, 0, :, :]),
        _steps(b), _steps(b[..., None, :, :], -4),
        _steps(d), _steps(d_parts[..., :3, :, :], -4), _steps(_part(d_parts, 3)), strict=True,
    )  # fmt: skip
    add, multiply, times = np.add, np.multiply, _times(lead)
    d_next: Any = None
    for gc_t, ga_t, k_three, k_o, rf, eb, e, b_t, b_wide, d_t, three, o in reversed(list(all_steps)):
        if d_next is not None:
            times(d_next, w, product)
            add(e, product, e)
        multiply(rf, eb, pair)
        add(one_half, other_half, b_t)
        if gc_t is not None:
            add(b_t, gc_t, b_t)
        multiply(k_three, b_wide, three)
        multiply(k_o, e, o)
        if ga_t is not None:
            add(d_t, ga_t, d_t)
        d_next = d_t
    return _narrowed(given, d, b)


def _lstm_coefficients(
    xp: Namespace, gh: Value, d: Value, b: Value, h: Value, c: Value, a: Value, w: Value
) -> Any:
    """Return the gradient of the coefficients k of ``lstm_push`` or ``lstm_pull``.

    It consists of elementwise products of the values of the push (h, c, a) and of the pull (gh, d, b).
    """
    n = w.shape[-1]
    e = _plus(gh, xp.matmul(_after(xp, d), _over(w)))
    i, f, u, o = (_columns(a, j, n) for j in range(4))
    return xp.stack(o * e, i * b, f * b, u * b, c * e, c * _after(xp, b), axis=-3)


def _lstm_push_rule(
    xp: Namespace, g: Value, out: Value, x: Value, y: Value, k: Value, w: Value, wanted: Sequence[bool]
) -> list[Any]:
    gh, gc, ga = _given(g)
    h, c, a = out
    d, b = xp.lstm_pull(gh, gc, ga, k, w)
    coefficients = lambda: _lstm_coefficients(xp, gh, d, b, h, c, a, w)
    return _of_linear_recurrence(xp, wanted, (d, b), coefficients, d, h)


def _lstm_pull_rule(
    xp: Namespace,
    g: Value,
    out: Value,
    gh: Value,
    gc: Value,
    ga: Value,
    k: Value,
    w: Value,
    wanted: Sequence[bool],
) -> list[Any]:
    d, b = out
    h, c, a = xp.lstm_push(*_given(g), k, w)
    coefficients = lambda: _lstm_coefficients(xp, gh, d, b, h, c, a, w)
    return _of_linear_recurrence(xp, wanted, (h, c, a), coefficients, d, h)


def _native_lstm_sequence(xp: Primitives, p: View, w: View, b: View, h: View, c: View) -> tuple[View, ...]:
    n = w.shape[-1]

    def body(xp: Primitives, carry: list[View], row: list[View], rest: list[View]) -> Any:
        (h, c), gates = carry, row[0] + xp.matmul(carry[0], rest[0])
        i, f, o = (_native_sigmoid(xp, _columns(gates, j, n)) for j in (0, 1, 3))
        u = xp.tanh(_columns(gates, 2, n))
        new = i * u + f * c
        t = xp.tanh(new)
        h = o * t
        return [h, new], [h, xp.stack(o, i, f, u, c, t, axis=-3)]

    _, last, hs, parts = xp.loop(body, [h, c], [_native_inputs(xp, p, b)], [_native_weights(xp, w)])
    hs = xp.moveaxis(hs, source=0, destination=-3)
    return hs, last, xp.moveaxis(parts, source=0, destination=-4)


def _native_lstm_slopes(xp: Primitives, parts: View) -> View:
    o, i, f, u, c, t = (parts[..., j : j + 1, :, :] for j in range(6))
    rest = (slice(None),) * 3
    later, last = f[(..., slice(1, None), *rest)], xp.zeros_like(f[(..., slice(0, 1), *rest)])
    moved = xp.concat(later, last, axis=-4)
    slopes = o * (1 - o) * t, i * (1 - i) * u, f * (1 - f) * c, i * (1 - u * u), o * (1 - t * t)
    return xp.concat(*slopes, moved, axis=-3)


def _native_lstm_pull(xp: Primitives, gh: View, gc: View, ga: View, k: View, w: View) -> tuple[View, View]:
    def body(xp: Primitives, w: View, carry: list[View], gradients: list[View], k: View) -> Any:
        (d, b), (gh, gc, ga) = carry, gradients
        e = gh + xp.matmul(d, w)
        b = gc + _part(k, 4) * e + _part(k, 5) * b
        parts = [_part(k, j) * b for j in (1, 2, 3)] + [_part(k, 0) * e]
        return ga + xp.concat(*parts, axis=-1), b, b

    return _native_pull(xp, body, 4, (gh, gc, ga), k, w)


define("lstm_sequence", _lstm_sequence, joint=_lstm_sequence_rule, arity=5, outputs=3, saves=("w", "h", "out"),
       kind="general", batch=_recurrent_batch,
       shape=_sequence_shape(4, 6), reference="formula", lower=_native_lstm_sequence, kernel="forward", doc="An LSTM over a whole sequence: the hidden states of all steps, the last cell, and the values that the derivative needs.")  # fmt: skip
define("lstm_slopes", _lstm_slopes, _lstm_slopes_rule, saves=("parts",), kind="general", batch="leading",
       shape=like_first, reference="formula", lower=_native_lstm_slopes, kernel="forward", doc="The derivatives of each step of an LSTM, from its saved values.")  # fmt: skip
define("lstm_push", _lstm_push, joint=_lstm_push_rule, arity=4, outputs=3, saves=("k", "w", "out"), kind="general",
       batch=_recurrent_batch, shape=_linear_shape(4, 6, (4, 1), (1, 1, 4)), reference="formula", doc="The tangents of an LSTM's states, propagated forwards in time.")  # fmt: skip
define("lstm_pull", _lstm_pull, joint=_lstm_pull_rule, arity=5, outputs=2, saves=("gh", "k", "w", "out"),
       kind="general", batch=_recurrent_batch, shape=_linear_shape(4, 6, (1, 1, 4), (4, 1)), reference="formula", lower=_native_lstm_pull, kernel="forward", doc="The gradients of an LSTM's gates and cells, propagated backwards in time.")  # fmt: skip
