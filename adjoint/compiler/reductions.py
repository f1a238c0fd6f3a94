"""Lowering rules (from ops to primitives) of reductions: sums, means, extreme values, norms and others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.compiler.decompose import RULES, floats, rule
from adjoint.compiler.simplify import NotNative, View

__all__: list[str] = []

_INT64, _BOOL = np.dtype(np.int64), np.dtype(bool)


def _axes(x: View, axis: Any) -> list[int]:
    return [a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis)] if x.ndim else []


def _reduced(xp: Any, op: str, x: View, axis: Any, keepdims: bool, dtype: Any) -> View:
    axes = _axes(x, axis)
    found = xp.graph.reduce(op, x, axes, dtype)
    if not keepdims:
        return found
    return xp.graph.reshape(found, tuple([1 if k in axes else n for k, n in enumerate(x.shape)]))


def _wide(dtype: Any) -> Any:
    """Return the dtype in which values of ``dtype`` are summed."""
    if dtype.kind == "f":
        return dtype
    return np.dtype(np.uint64) if dtype.kind == "u" else _INT64


@rule("sum")
def _sum(xp: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    x = xp.view(x)
    wide = _wide(x.dtype)
    return _reduced(xp, "sum", xp.cast(x, wide), axis, keepdims, wide)


@rule("prod")
def _prod(xp: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    wide = _wide(x.dtype)
    return _reduced(xp, "prod", xp.cast(x, wide), axis, keepdims, wide)


def _count(x: View, axis: Any) -> int:
    """Return the number of elements that a reduction over ``axis`` combines."""
    return math.prod(x.shape[a] for a in _axes(x, axis))


@rule("mean")
def _mean(xp: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    n = _count(x, axis)
    if not n:
        raise NotNative("the mean over an empty axis has no native form")
    return _sum(xp, x, axis, keepdims) / n


RULES["max"] = lambda xp, x, axis, keepdims: _reduced(xp, "max", _some(x, axis), axis, keepdims, x.dtype)
RULES["min"] = lambda xp, x, axis, keepdims: _reduced(xp, "min", _some(x, axis), axis, keepdims, x.dtype)


def _some(x: View, axis: Any) -> View:
    """Return ``x`` if no reduced axis is empty; otherwise raise ``NotNative``."""
    if not _count(x, axis):
        raise NotNative("the maximum or minimum over an empty axis has no native form")
    return x


@rule("any")
def _any(xp: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    return _reduced(xp, "max", x if x.dtype == _BOOL else x != 0, axis, keepdims, _BOOL)


@rule("all")
def _all(xp: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    return _reduced(xp, "min", x if x.dtype == _BOOL else x != 0, axis, keepdims, _BOOL)


@rule("argmax")
def _argmax(xp: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    return _place_of(xp, "argmax", x, axis, keepdims)


@rule("argmin")
def _argmin(xp: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    return _place_of(xp, "argmin", x, axis, keepdims)


def _place_of(xp: Any, op: str, x: View, axis: Any, keepdims: bool) -> View:
    """Return the index of the first maximum (``op`` "argmax") or minimum ("argmin") along ``axis``.

    If there is a NaN, return the index of the first NaN.
    """
    axes = list(range(x.ndim)) if axis is None else _axes(x, axis)
    if len(axes) != 1:
        x = xp.flat(x) if len(axes) == x.ndim else x
        if x.ndim != 1 or keepdims:
            raise NotNative(f"{op} over several axes has no native form")
        axes = [0]
    at = axes[0]
    n = _some(x, at).shape[at]
    top = _reduced(xp, op[3:], x, at, True, x.dtype)
    hit = x == top
    if x.dtype.kind == "f":
        hit = xp.logical_or(hit, x != x)
    places = np.arange(n).reshape([-1 if k == at else 1 for k in range(x.ndim)])
    return _reduced(xp, "min", xp.where(hit, places, n), at, keepdims, _INT64)


@rule("var")
def _var(xp: Any, x: Any, axis: Any, correction: Any, keepdims: bool) -> Any:
    n = _count(x, axis)
    if not n or n <= correction:
        raise NotNative("the variance of too few numbers has no native form")
    away = x - _mean(xp, x, axis, True)
    return _sum(xp, away * away, axis, keepdims) / (n - correction)


@rule("std")
def _std(xp: Any, x: Any, axis: Any, correction: Any, keepdims: bool) -> Any:
    return xp.sqrt(_var(xp, x, axis, correction, keepdims))


@rule("vector_norm")
def _vector_norm(xp: Any, x: Any, ord: float, axis: Any, keepdims: bool) -> Any:
    """Return the 2-norm; elements are scaled by the largest one where squares overflow or underflow."""
    if ord != 2 or floats(x).dtype.kind != "f" or not _count(x, axis):
        raise NotNative(f"a norm of order {ord} has no native form")
    found = xp.sqrt(_sum(xp, x * x, axis, keepdims))
    top = 1e15
    extreme = xp.logical_not(xp.logical_and(found > 1 / top, found < top))
    scale = _reduced(xp, "max", xp.abs(x), axis, True, x.dtype)
    scale = xp.where(xp.logical_and(scale > 0, scale < math.inf), scale, 1)
    scaled = x / scale
    again = xp.sqrt(_sum(xp, scaled * scaled, axis, True)) * scale
    return xp.where(extreme, xp.graph.reshape(again, found.shape), found)
