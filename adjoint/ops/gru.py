"""GRU over whole sequences; see ``recurrent.py`` for the notation.

The parts of a step are the gates r and z, the new value n = tanh(… + r m), and m.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.core.define import define
from adjoint.core.namespace import Namespace, Value
from adjoint.core.native import Primitives, View
from adjoint.ops.activations import real_only
from adjoint.ops.recurrent import (
    _before,
    _bias,
    _blocks,
    _columns,
    _earlier,
    _given,
    _linear_shape,
    _narrowed,
    _native_inputs,
    _native_pull,
    _native_sigmoid,
    _native_weights,
    _of_linear_recurrence,
    _over_steps,
    _part,
    _parts,
    _plus,
    _recurrent_batch,
    _sequence_shape,
    _sigmoid_inputs,
    _steps,
    _steps_or_none,
    _times,
    _widened,
)
from adjoint.typing import Array

__all__: list[str] = []


def _gru_sequence(p: Any, w: Any, b: Any, h: Any) -> Any:
    (p, w, b, h), dtype, given = _widened(real_only(p), w, b, h)
    lead, (length, batch), n = p.shape[:-3], p.shape[-3:-1], w.shape[-1]
    gates = np.empty((*lead, length, 4, batch, n), dtype)
    hs = np.empty((*lead, length, batch, n), dtype)
    _sigmoid_inputs(p, b, 3, (0, 1), gates)
    _part(gates, 2)[...] = p[..., 2 * n :]
    bias = _bias(b, 2, n, dtype)
    if type(b) is not int:
        bias = bias[..., 0, :, :]
    two = gates[..., :2, :, :]
    blocks = _blocks(w, (0, 1, 2), 2)
    product = np.empty((*lead, 3, batch, n), dtype)
    product_two, product_m = product[..., :2, :, :], _part(product, 2)
    new, one = np.empty((*lead, batch, n), dtype), np.ones((), dtype)
    add, multiply, subtract = np.add, np.multiply, np.subtract
    all_steps = zip(
        _steps(two, -4), *(_steps(_part(gates, j)) for j in range(4)),
        _steps(hs), _steps(hs[..., None, :, :], -4), strict=True,
    )  # fmt: skip
    h_wide = h[..., None, :, :]
    with np.errstate(over="ignore"):
        for rz, r, z, u, m, h_new, h_next in all_steps:
            np.matmul(h_wide, blocks, product)
            add(rz, product_two, rz)
            np.exp(rz, rz)
            add(rz, one, rz)
            np.divide(one, rz, rz)
            add(product_m, bias, m)
            multiply(r, m, new)
            add(u, new, u)
            np.tanh(u, u)
            subtract(h, u, new)
            multiply(z, new, new)
            add(u, new, h_new)
            h, h_wide = h_new, h_next
    return _narrowed(given, hs, gates)


def _gru_sequence_rule(
    xp: Namespace, g: Value, out: Value, p: Value, w: Value, b: Value, h: Value, wanted: Sequence[bool]
) -> list[Any]:
    gh, ga = _given((g[0], None))
    hs, gates = out
    before = _before(xp, h, hs)
    r, z, u, m = (_part(gates, j) for j in range(4))
    two = gates[..., :2, :, :]
    bend = two * (1 - two)
    flat = 1 - u * u
    fresh = (1 - z) * flat  # the derivative of h in the argument of tanh
    by_r = m * _part(bend, 0)
    k = xp.stack(by_r * fresh, (before - u) * _part(bend, 1), r * fresh, z, axis=-3)
    gu: Any = 0
    if g[1] is not None:  # beyond first order: the parts themselves were used
        gu = _part(g[1], 2) * flat
        ga = xp.concat(
            gu * by_r + _part(g[1], 0) * _part(bend, 0),
            _part(g[1], 1) * _part(bend, 1),
            gu * r + _part(g[1], 3),
            axis=-1,
        )
    d, e = xp.gru_pull(gh, ga, k, w)
    some = p.shape[-3] > 0
    dp = xp.concat(d[..., : 2 * w.shape[-1]], _plus(fresh * e, gu), axis=-1) if wanted[0] else None
    dh = None
    if wanted[3]:
        dh = xp.matmul(_part(d, 0), w) + _part(e, 0) * _part(z, 0) if some else xp.zeros_like(h)
    return [
        dp,
        _over_steps(xp, d, before) if wanted[1] else None,
        xp.sum(d, axis=(-3, -2), keepdims=False) if wanted[2] else None,
        dh,
    ]


# The push of a GRU, with the coefficients k = (kᵣ, k_z, kₘ, z) of a step and the inputs x and y, is
#     a = x + h⁻wᵀ,   h = y + z h⁻ + kᵣ aᵣ + k_z a_z + kₘ aₘ


def _gru_push(x: Array, y: Array, k: Array, w: Array) -> Any:
    (x, y, k, w), dtype, given = _widened(x, y, k, w)
    lead, (length, _, batch, n) = k.shape[:-4], k.shape[-4:]
    a = np.empty((*lead, length, batch, 3 * n), dtype)
    h = np.empty((*lead, length, batch, n), dtype)
    times, weight = _times(lead), w.swapaxes(-1, -2)
    h_old: Any = None
    for x_t, y_t, k_t, a_t, parts, h_t in zip(
        _steps_or_none(x, length), _steps_or_none(y, length), _steps(k, -4), _steps(a),
        _steps(_parts(a, 3), -4), _steps(h), strict=True,
    ):  # fmt: skip
        if h_old is None:
            a_t[...] = 0
            h_t[...] = 0
        else:
            times(h_old, weight, a_t)
            np.multiply(_part(k_t, 3), h_old, h_t)
        if x_t is not None:
            a_t += x_t
        if y_t is not None:
            h_t += y_t
        h_t += (k_t[..., :3, :, :] * parts).sum(-3)
        h_old = h_t
    return _narrowed(given, h, a)


def _gru_pull(gh: Array, ga: Array, k: Array, w: Array) -> Any:
    """Propagate gradients backwards in time through a GRU; return those of the gates (d) and states (e).

    ``gh`` and ``ga`` are the gradients of the hidden states and the gates.  The formulas are
    e = gh + z⁺e⁺ + d⁺w and d = ga + (kᵣ e, k_z e, kₘ e).
    """
    (gh, ga, k, w), dtype, given = _widened(gh, ga, k, w)
    lead, (length, _, batch, n) = k.shape[:-4], k.shape[-4:]
    d = np.empty((*lead, length, batch, 3 * n), dtype)
    e = np.empty((*lead, length, batch, n), dtype)
    e[...] = gh
    product, carried = np.empty((*lead, batch, n), dtype), np.empty((*lead, batch, n), dtype)
    all_steps = zip(
        _steps_or_none(ga, length),
        _steps(k[..., :3, :, :], -4), _steps(_part(k, 3)),
        _steps(d), _steps(_parts(d, 3), -4), _steps(e), _steps(e[..., None, :, :], -4), strict=True,
    )  # fmt: skip
    add, multiply, times = np.add, np.multiply, _times(lead)
    d_next: Any = None
    for ga_t, k_three, z, d_t, three, e_t, e_wide in reversed(list(all_steps)):
        if d_next is not None:
            times(d_next, w, product)
            add(e_t, product, e_t)
            add(e_t, carried, e_t)
        multiply(k_three, e_wide, three)
        if ga_t is not None:
            add(d_t, ga_t, d_t)
        multiply(z, e_t, carried)
        d_next = d_t
    return _narrowed(given, d, e)


def _gru_coefficients(xp: Namespace, e: Value, h: Value, a: Value) -> Any:
    """Return the gradient of the coefficients k of ``gru_push`` or ``gru_pull``.

    It consists of elementwise products of the values of the push (h, a) and of the pull (e).
    """
    n = e.shape[-1]
    r, z, m = (_columns(a, j, n) for j in range(3))
    return xp.stack(r * e, z * e, m * e, _earlier(xp, h) * e, axis=-3)


def _gru_push_rule(
    xp: Namespace, g: Value, out: Value, x: Value, y: Value, k: Value, w: Value, wanted: Sequence[bool]
) -> list[Any]:
    h, a = out
    d, e = xp.gru_pull(*_given(g), k, w)
    return _of_linear_recurrence(xp, wanted, (d, e), lambda: _gru_coefficients(xp, e, h, a), d, h)


def _gru_pull_rule(
    xp: Namespace, g: Value, out: Value, gh: Value, ga: Value, k: Value, w: Value, wanted: Sequence[bool]
) -> list[Any]:
    d, e = out
    h, a = xp.gru_push(*_given(g), k, w)
    return _of_linear_recurrence(xp, wanted, (h, a), lambda: _gru_coefficients(xp, e, h, a), d, h)


def _native_gru_sequence(xp: Primitives, p: View, w: View, b: View, h: View) -> tuple[View, View]:
    n, rest = w.shape[-1], []
    if not isinstance(b, (int, float)):  # the bias of the candidate is multiplied by the reset gate r
        wide = xp.graph.reshape(b, (*b.shape[:-1], 1, 1, b.shape[-1]))
        keep = np.concatenate([np.ones(2 * n), np.zeros(n)]).astype(b.dtype)
        p = p + wide * keep
        rest = [xp.graph.reshape(_columns(b, 2, n), (*b.shape[:-1], 1, n))]

    def body(xp: Primitives, carry: list[View], row: list[View], rest: list[View]) -> Any:
        (h,), (p,) = carry, row
        product = xp.matmul(h, rest[0])
        r, z = (_native_sigmoid(xp, _columns(p, j, n) + _columns(product, j, n)) for j in (0, 1))
        m = _columns(product, 2, n)
        m = m + rest[1] if len(rest) > 1 else m
        u = xp.tanh(_columns(p, 2, n) + r * m)
        new = u + z * (h - u)
        return [new], [new, xp.stack(r, z, u, m, axis=-3)]

    _, hs, parts = xp.loop(body, [h], [_native_inputs(xp, p)], [_native_weights(xp, w), *rest])
    return xp.moveaxis(hs, source=0, destination=-3), xp.moveaxis(parts, source=0, destination=-4)


def _native_gru_pull(xp: Primitives, gh: View, ga: View, k: View, w: View) -> tuple[View, View]:
    def body(xp: Primitives, w: View, carry: list[View], gradients: list[View], k: View) -> Any:
        (d, carried), (gh, ga) = carry, gradients
        e = gh + xp.matmul(d, w) + carried
        return ga + xp.concat(*[_part(k, j) * e for j in range(3)], axis=-1), e, _part(k, 3) * e

    return _native_pull(xp, body, 3, (gh, ga), k, w)


define("gru_sequence", _gru_sequence, joint=_gru_sequence_rule, arity=4, outputs=2, saves=("w", "h", "out"),
       kind="general", batch=_recurrent_batch,
       shape=_sequence_shape(3, 4), reference="formula", lower=_native_gru_sequence, kernel="forward", doc="A GRU over a whole sequence: the hidden states of all steps, and the gates.")  # fmt: skip
define("gru_push", _gru_push, joint=_gru_push_rule, arity=4, outputs=2, saves=("k", "w", "out"), kind="general",
       batch=_recurrent_batch, shape=_linear_shape(3, 4, (3, 1), (1, 3)), reference="formula", doc="The tangents of a GRU's states, propagated forwards in time.")  # fmt: skip
define("gru_pull", _gru_pull, joint=_gru_pull_rule, arity=4, outputs=2, saves=("k", "w", "out"), kind="general",
       batch=_recurrent_batch, shape=_linear_shape(3, 4, (1, 3), (3, 1)), reference="formula", lower=_native_gru_pull, kernel="forward", doc="The gradients of a GRU's gates and states, propagated backwards in time.")  # fmt: skip
