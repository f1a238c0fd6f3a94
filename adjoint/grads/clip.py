"""Clipping of gradients.

The gradients are in the ``.grad`` of parameters, in a ``Gradients`` store, or in a dictionary of arrays. They
are replaced there, and the norm before clipping is returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint import words
from adjoint.config import special, transform
from adjoint.context import lent as _lent
from adjoint.core.conversion import check_conversion
from adjoint.core.convert import refuse_masked
from adjoint.core.lifted import tracing
from adjoint.core.sparse import SparseGradient, SparseRows, stored_in, with_stored
from adjoint.core.tensor import Tensor, check_running, differentiable, wrap
from adjoint.errors import ArgumentError, DTypeError, InputError, NonFiniteError
from adjoint.grads.native_clip import native_clip_norm, native_clip_values
from adjoint.grads.native_rows import with_first_sums
from adjoint.grads.norm import all_finite, check_max_norm, check_norm_order, norm_parts, stored_values

__all__ = ["clip_grad_adaptive", "clip_grad_norm", "clip_grad_norm_by_group", "clip_grad_value", "scaled"]

Array = ndarray[Any, Any]


class _Place:
    """A gradient, its parameter if known, and a function that replaces the gradient."""

    __slots__ = ("grad", "label", "param", "put")

    def __init__(self, label: str, grad: Any, param: Tensor | None, put: Callable[[Any], None]) -> None:
        if transform.get() is not None and isinstance(grad, Tensor):
            # the factor of the clipping is a constant
            check_conversion(
                grad,
                "a clipped gradient",
                "Use differentiable ops, such as ad.linalg.vector_norm and ad.clip.",
            )
        self.label = label
        self.grad = grad
        self.param = param
        self.put = put


def _places(what: str, target: Any) -> list[_Place]:
    """Return a ``_Place`` for each gradient in ``target``: parameters, a store or a dictionary.

    Gradients that are None are left out.

    A parameter that occurs twice, such as one that layers share, counts once.  ``what`` is the name of the
    caller, for errors.
    """
    if isinstance(target, Tensor):
        target = [target]
    if isinstance(target, Mapping):
        return _mapping_places(what, target)
    if hasattr(target, "items") and hasattr(target, "set"):  # a Gradients store
        return [_gradient_place(f"[{i}]", g, t, partial(target.set, t))
                for i, (t, g) in enumerate(target.items())]  # fmt: skip
    if hasattr(target, "parameters"):
        target = target.parameters()
    found: list[_Place | None] = []
    seen: set[int] = set()
    try:
        items = list(target)
    except TypeError:
        items = [target]
    for i, t in enumerate(items):
        if not isinstance(t, Tensor):
            raise InputError(
                f"{what} takes parameters (tensors with .grad), a Gradients store or a dictionary of "
                f"gradients, but item {i} is {words.a(type(t).__name__)}."
            )
        if id(t) not in seen:
            seen.add(id(t))
            found.append(_param_place(what, f"[{i}]", t))
    return [place for place in found if place is not None]


def _mapping_places(what: str, target: Mapping[Any, Any]) -> list[_Place]:
    found: list[_Place | None] = []
    seen: set[int] = set()
    for name, g in target.items():
        if g is None or id(g) in seen:
            continue
        if isinstance(g, Tensor) and g.requires_grad:
            seen.add(id(g))
            found.append(_param_place(what, str(name), g))
        elif isinstance(g, (Tensor, ndarray)) and isinstance(target, MutableMapping):
            refuse_masked(g)
            if not differentiable(g.dtype):
                raise DTypeError(
                    f"{what}: gradients must be floats or complex numbers, but {name!r} is {g.dtype}."
                )
            found.append(_gradient_place(str(name), g, None, partial(target.__setitem__, name)))
        else:
            raise InputError(
                f"{what}: {name!r} is {words.a(type(g).__name__)}, but a dictionary must contain "
                f"parameters, or "
                "gradients that are arrays or tensors."
            )
    return [place for place in found if place is not None]


@contextmanager
def lending(gradients: Any) -> Iterator[None]:
    """Context manager in which clip functions read and change ``gradients`` instead of ``.grad``.

    An accumulator enters it while it calls the clip function of the user.
    """
    token = _lent.set(gradients)
    try:
        yield
    finally:
        _lent.reset(token)


def _param_place(what: str, label: str, t: Tensor) -> _Place | None:
    """Return the ``_Place`` of the gradient of a parameter, or None if it has no gradient.

    The gradient is ``.grad``, or inside the clip function of an accumulator the accumulator's gradient.
    """
    lent = _lent.get()
    if lent is not None and not t.requires_grad:  # ``t`` is itself a gradient
        return _gradient_place(label, t, None, partial(_write, t))
    if isinstance(lent, Mapping):
        raise InputError(
            f"{what}: this accumulator has no parameters.  Group the gradients by name: g[name]."
        )
    if lent is not None and t in lent:
        return _Place(label, lent.get(t), t, partial(lent.set, t))
    return None if t.grad is None else _Place(label, t.grad, t, partial(setattr, t, "grad"))


def _gradient_place(label: str, g: Any, param: Tensor | None, put: Callable[[Any], None]) -> _Place:
    """Return the ``_Place`` of the gradient ``g``, which ``put`` replaces in its container.

    ``label`` names it in messages, and ``param`` is its parameter, if known.  Inside the clip function of an
    accumulator, the gradient is written in place instead.
    """
    lent = _lent.get()
    if lent is None:
        return _Place(label, g, param, put)
    if param is None and not isinstance(lent, Mapping):
        param = next((t for t, own in lent.items() if own is g), None)
    return _Place(label, g, param, partial(_write, g))


def _memory(g: Any) -> Array:
    if type(g) is SparseGradient:
        return g._rows.values
    return g._data if isinstance(g, Tensor) else g


def _write(g: Any, new: Any) -> None:
    if type(g) is SparseGradient:
        g._rows = new._rows
    else:
        np.copyto(_memory(g), _memory(new))


def scaled(g: Any, factor: Any) -> Any:
    """Return ``g * factor`` with the type and dtype of the gradient ``g``; ``factor`` may be an array."""
    if type(g) is SparseGradient:
        return SparseGradient.of(g._rows.mapped(_times(g._rows.values, factor)))
    if isinstance(g, Tensor):
        if g._node is not None:
            return (g * factor).astype(g.dtype, copy=False)
        return wrap(_times(g._data, factor))
    return _times(g, factor)


def _times(a: Array, factor: Any) -> Array:
    # half precision would round the factor below 6e-5, and underflow below 3e-8
    if a.dtype.itemsize == 2:
        return np.multiply(a.astype(np.float32), factor, dtype=np.float32).astype(a.dtype)
    return np.asarray(np.multiply(a, factor, dtype=a.dtype))


def _refuse_nonfinite(what: str, places: list[_Place], norm: float, allow: bool = True) -> None:
    bad = [place.label for place in places if not all_finite(stored_values(place.grad))]
    raise NonFiniteError(
        f"{what}: the norm of the gradients is {norm}.  Gradients that are not finite: {', '.join(bad[:8])}"
        f"{' …' if len(bad) > 8 else ''}.\n"
        "  ad.detect_anomaly() finds the op that made them"
        + ('; nonfinite="allow" leaves the gradients unchanged.' if allow else ".")
    )


def clip_grad_norm(target: Any, max_norm: float, p: float = 2.0, *, nonfinite: str = "raise") -> float:
    """Scale gradients so that their joint p-norm is at most ``max_norm``.

    Parameters
    ----------
    target : Module, iterable of Tensor, Gradients or dict
        Parameters, whose ``.grad`` is replaced; or a store or a dictionary of gradients.
    max_norm : float
        The limit of the norm.
    p : float
        The order of the norm, above 0 or ``math.inf``.
    nonfinite : {"raise", "allow"}
        With ``"allow"``, a norm that is NaN or infinite is returned and nothing is scaled.

    Returns
    -------
    float
        The norm before clipping.  It is inf if the norm of finite gradients exceeds float64; they are scaled.

    Raises
    ------
    NonFiniteError
        If the norm is NaN or infinite, unless ``nonfinite="allow"``.  Nothing has changed then.

    Examples
    --------
    >>> grads = {"w": np.array([30.0, 40.0])}
    >>> clip_grad_norm(grads, 5.0)
    50.0
    >>> grads["w"]
    array([3., 4.])
    """
    bound = check_max_norm(max_norm)
    _check_policy(nonfinite)
    places = _places("clip_grad_norm", target)
    clip = partial(_clip_norm, "clip_grad_norm", bound=bound, p=p, nonfinite=nonfinite)
    if _trace() is None:
        return float(clip(places))
    return _clip_traced(clip, places, nonfinite == "raise", native=_native_norm(places, bound, p, nonfinite))


def _native_norm(places: list[_Place], bound: float, p: float, nonfinite: str) -> Callable[..., Any]:
    """Return the native form of ``_clip_norm`` for these gradients."""
    count, raises = len(places), nonfinite == "raise"
    return partial(native_clip_norm, count=count, p=check_norm_order(p), bound=bound, raises=raises)


def _clip_norm(what: str, places: list[_Place], bound: float, p: float, nonfinite: str) -> float:
    """Clip the joint p-norm of gradients to ``bound``; return the norm before clipping.

    If the norm is not finite, raise if ``nonfinite`` is "raise", otherwise change nothing.  ``what`` is the
    name of the caller, for errors.
    """
    norm, scale = norm_parts((place.grad for place in places), p)
    if not math.isfinite(norm):
        if nonfinite == "raise":
            _refuse_nonfinite(what, places, norm)
        return norm
    _clip_places(places, norm, scale, bound)
    return norm * scale


def _trace() -> Any:
    """Return the trace that ``ad.compile`` is recording in this thread, or None."""
    return tracing.get() if special.count else None


def _clip_traced(
    clip: Callable[[list[_Place]], Any],
    places: list[_Place],
    raises: bool,
    kind: Any = np.float64,
    native: Callable[..., Any] | None = None,
) -> Any:
    """Make the compiled function call ``clip`` on the gradients at each call; return its symbolic result.

    ``places`` are the gradients, ``kind`` is the type of the result, ``raises`` says whether ``clip`` may
    raise an error, and ``native`` is its native form.
    """
    trace, labels = _trace(), [place.label for place in places]
    params = [place.param for place in places if place.param is not None]
    several = len(params) == len(places)
    sparse = {i: place.grad._rows for i, place in enumerate(places) if type(place.grad) is SparseGradient}

    def run(*arrays: Any) -> tuple[Any, ...]:
        grads: list[Any] = [wrap(a) for a in arrays[: len(labels)]]
        rows = dict(zip(sparse, arrays[len(labels) :], strict=False))
        for i, index in rows.items():
            grads[i] = SparseGradient.of(SparseRows(index, arrays[i], sparse[i].shape))
        weights = [wrap(a) for a in arrays[len(labels) + len(rows) :]] if several else [None] * len(labels)
        found = [
            _Place(label, g, w, partial(grads.__setitem__, i))
            for i, (label, g, w) in enumerate(zip(labels, grads, weights, strict=True))
        ]
        number = clip(found)
        found_values = [_values_at(rows[i], g) if i in rows else g._data for i, g in enumerate(grads)]
        return (np.asarray(0 if number is None else number, kind), *found_values)

    given = [stored_in(place.grad) for place in places]
    specs = [((), np.dtype(kind)), *((g.shape, g.dtype) for g in given)]
    operands = [*given, *(rows.rows for rows in sparse.values()), *(params if several else ())]
    if native is not None and sparse:
        native = with_first_sums(native, [*sparse], len(given))
    number, *clipped = trace.call("clip", run, operands, specs, not raises, native)
    for place, value in zip(places, clipped, strict=True):
        place.put(with_stored(place.grad, value))
    return number.as_number()


def _values_at(rows: Array, g: SparseGradient) -> Array:
    """Return the values of a clipped sparse gradient as values of the rows before, 0 for repeated rows."""
    if g._rows.rows is rows:
        return g._rows.values
    found = np.zeros((rows.size, *g.shape[1:]), g.dtype)
    found[np.unique(rows, return_index=True)[1]] = g._rows.values
    return found


def _clip_places(places: list[_Place], norm: float, scale: float, bound: float) -> None:
    """Scale gradients down to the norm ``bound``.

    Their norm is ``norm * scale``, which may exceed the range of float64.
    """
    if norm * scale > bound:
        for place in places:
            place.put(scaled(place.grad, bound / norm / scale))


def _bounds(what: str, max_norm: Any, grouped: Collection[Any]) -> dict[Any, float]:
    """Return the limit of each group, from one number for all or a dictionary."""
    names = ", ".join(map(repr, grouped)) or "none"
    if isinstance(max_norm, Mapping):
        if set(max_norm) != set(grouped):
            limits = ", ".join(map(repr, max_norm)) or "no groups"
            raise ArgumentError(f"{what}: max_norm has limits for {limits}, but the groups are {names}.")
        return {name: check_max_norm(max_norm[name], f"max_norm[{name!r}]") for name in grouped}
    if isinstance(max_norm, (list, tuple)):
        raise ArgumentError(
            f"{what}: max_norm must be one number for all groups or a dictionary by group, not a "
            f"{type(max_norm).__name__}.\n  The groups are {names}."
        )
    return dict.fromkeys(grouped, check_max_norm(max_norm))


def clip_grad_norm_by_group(
    groups: Mapping[Any, Any] | Iterable[Any],
    max_norm: float | Mapping[Any, float],
    p: float = 2.0,
    *,
    nonfinite: str = "raise",
) -> dict[Any, float]:
    """Clip each group of gradients by its own norm.

    Parameters
    ----------
    groups : dict or list
        The groups, each a target of ``clip_grad_norm``; for example ``optimizer.groups``.  Groups of a list
        are named 0, 1, ….
    max_norm : float or dict of float
        One limit for all groups, or one per group.
    p : float
        The order of the norm.
    nonfinite : {"raise", "allow"}
        With ``"allow"``, a group whose norm is NaN or infinite is not scaled.

    Returns
    -------
    dict of float
        The norms before clipping, by group.

    Raises
    ------
    NonFiniteError
        If a norm is NaN or infinite, unless ``nonfinite="allow"``.  Nothing has changed then.
    InputError
        If a parameter is in two groups.

    Examples
    --------
    >>> head, body = {"w": np.array([3.0, 4.0])}, {"w": np.array([0.5])}
    >>> clip_grad_norm_by_group({"head": head, "body": body}, 1.0)
    {'head': 5.0, 'body': 0.5}
    """
    what = "clip_grad_norm_by_group"
    grouped = _grouped(what, groups)
    bounds = _bounds(what, max_norm, grouped)
    _check_policy(nonfinite)
    found = {name: _places(f"{what}: group {name!r}", group) for name, group in grouped.items()}
    _refuse_shared(what, found)
    if _trace() is not None:
        clips = {
            name: partial(_clip_norm, f"{what}: group {name!r}", bound=bounds[name], p=p, nonfinite=nonfinite)
            for name in found
        }
        raises = nonfinite == "raise"
        native = {name: _native_norm(places, bounds[name], p, nonfinite) for name, places in found.items()}
        return {
            name: _clip_traced(clips[name], places, raises, native=native[name])
            for name, places in found.items()
        }
    norms = {name: norm_parts((place.grad for place in places), p) for name, places in found.items()}
    for name, (norm, _) in norms.items():
        if not math.isfinite(norm) and nonfinite == "raise":
            _refuse_nonfinite(f"{what}: group {name!r}", found[name], norm)
    for name, (norm, scale) in norms.items():
        if math.isfinite(norm):
            _clip_places(found[name], norm, scale, bounds[name])
    return {name: norm * scale for name, (norm, scale) in norms.items()}


def _refuse_shared(what: str, found: dict[Any, list[_Place]]) -> None:
    """Raise if a parameter is in two groups, because only the limit of the last group would apply.

    ``found`` maps the names of the groups to their gradients.  ``what`` is the caller's name, for errors.
    """
    groups: dict[int, Any] = {}
    for name, places in found.items():
        for place in places:
            if place.param is not None and groups.setdefault(id(place.param), name) != name:
                raise InputError(
                    f"{what}: group {name!r}: parameter {place.label} is in group "
                    f"{groups[id(place.param)]!r} too.\n  Remove it from one of them."
                )


def _grouped(what: str, groups: Any) -> dict[Any, Any]:
    """Return ``groups``, a dictionary or a list, as a dictionary; the keys of a list are 0, 1, …."""
    if not isinstance(groups, Mapping):
        if not isinstance(groups, (list, tuple)):
            raise InputError(
                f"{what}: groups must be a dictionary, {{name: parameters or gradients}}, or a list of "
                f"groups, but got {type(groups).__name__}."
            )
        groups = dict(enumerate(groups))
    found = {}
    for name, group in groups.items():
        if isinstance(group, ndarray):
            raise InputError(
                f"{what}: group {name!r} is an array, which cannot be replaced.  Pass "
                f"a dictionary of gradients, {{{name!r}: {{{str(name)!r}: array}}}}."
            )
        # a parameter group of an optimiser, as an object or as a dictionary
        of = group.get("params") if isinstance(group, Mapping) else getattr(group, "params", None)
        found[name] = of if isinstance(of, (list, tuple)) else group
    return found


def clip_grad_value(target: Any, max_value: float) -> None:
    """Limit every element of the gradients to the range from ``-max_value`` to ``max_value``.

    Complex elements are limited by magnitude.  Infinities are limited too; NaN stays NaN.

    Parameters
    ----------
    target : Module, iterable of Tensor, Gradients or dict
        Parameters, whose ``.grad`` is replaced; or a store or a dictionary of gradients.
    max_value : float
        The limit.

    Examples
    --------
    >>> grads = {"w": np.array([-3.0, 0.5, np.inf])}
    >>> clip_grad_value(grads, 1.0); grads["w"]
    array([-1. ,  0.5,  1. ])
    """
    bound = check_max_norm(max_value, "max_value")
    places = _places("clip_grad_value", target)
    if _trace() is None:
        _clip_values(places, bound)
    else:
        native = partial(native_clip_values, count=len(places), bound=bound)
        _clip_traced(partial(_clip_values, bound=bound), places, raises=False, native=native)


def _clip_values(places: list[_Place], bound: float) -> None:
    for place in places:
        g = place.grad
        if type(g) is SparseGradient:
            rows = g._rows.coalesced()
            place.put(SparseGradient.of(rows.mapped(_limited(rows.values, bound))))
        else:
            limited = _limited(stored_values(g), bound)
            place.put(wrap(limited) if isinstance(g, Tensor) else limited)


def _limited(a: Array, bound: float) -> Array:
    if a.dtype.kind != "c":
        return np.asarray(np.clip(a, -bound, bound)).astype(a.dtype, copy=False)  # of bfloat16 it is float32
    size = np.abs(a)
    factor = np.minimum(1.0, bound / np.where(size > 0, size, bound))
    return np.asarray(np.multiply(a, factor, dtype=a.dtype))


def clip_grad_adaptive(params: Any, clipping: float = 0.01, *, eps: float = 1e-3, axis: int = 0) -> int:
    """Scale down gradients that are large relative to their parameters.

    A unit is one index of ``axis`` of a parameter (the weights of one output), or a whole parameter with
    fewer than two axes.  The gradient g of a unit with weights w is limited to ‖g‖ ≤ clipping · max(‖w‖,
    eps): adaptive gradient clipping, Brock et al. 2021.

    Parameters
    ----------
    params : Module, iterable of Tensor or Gradients
        The parameters, or a store of gradients.
    clipping : float
        The limit of the ratio of the norms.
    eps : float
        Lower limit of the norm of the weights.
    axis : int
        The axis of the units.

    Returns
    -------
    int
        The number of units that were scaled.

    Raises
    ------
    NonFiniteError
        If a gradient is not finite.  Nothing has changed then.

    Examples
    --------
    >>> import adjoint as ad
    >>> w = ad.tensor([3.0, 4.0], requires_grad=True)
    >>> w.grad = ad.tensor([30.0, 40.0])
    >>> clip_grad_adaptive([w], 0.1), w.grad
    (1, tensor([0.3, 0.4], dtype=float64))
    """
    factor, floor = check_max_norm(clipping, "clipping"), check_max_norm(eps, "eps")
    places = _places("clip_grad_adaptive", params)
    for place in places:
        if place.param is None:
            raise InputError(
                "clip_grad_adaptive compares gradients with their parameters.  Pass the parameters, or a "
                "Gradients store, not a dictionary of gradients."
            )
    clip = partial(_clip_units, factor=factor, floor=floor, axis=axis)
    return int(clip(places)) if _trace() is None else _clip_traced(clip, places, True, np.int64)


def _clip_units(places: list[_Place], factor: float, floor: float, axis: int) -> int:
    count = 0
    if special.count:
        check_running([place.param for place in places])
    norms = [_unit_norms(stored_values(place.grad), _unit_axis(place, axis)) for place in places]
    for norm in norms:
        if not np.isfinite(norm).all():
            _refuse_nonfinite("clip_grad_adaptive", places, float(norm.max()), allow=False)
    for place, norm in zip(places, norms, strict=True):
        assert place.param is not None
        g, weights = place.grad, place.param._data
        if type(g) is SparseGradient:
            g = g.coalesce()
            weights = weights[g._rows.rows]
        bound = factor * np.maximum(_unit_norms(weights, _unit_axis(place, axis)), floor)
        over = norm > bound
        if over.any():
            count += int(over.sum())
            place.put(scaled(g, np.where(over, bound / np.where(over, norm, 1.0), 1.0)))
    return count


def _unit_axis(place: _Place, axis: int) -> int | None:
    """Return the axis that numbers the units of a parameter, which are clipped separately.

    A unit is one slice of the gradient, such as the weights of one output.  Return None if the whole
    parameter, such as a bias, is one unit.
    """
    if type(place.grad) is SparseGradient:
        return 0
    ndim = place.grad.ndim
    if ndim < 2:
        return None
    if not -ndim <= axis < ndim:
        raise ArgumentError(f"clip_grad_adaptive: axis {axis} is out of range for shape {place.grad.shape}.")
    return axis % ndim


def _unit_norms(a: Array, axis: int | None) -> Array:
    """Return the 2-norm of each slice of ``a`` along ``axis``, in a shape that broadcasts against ``a``.

    If ``axis`` is None, return the norm of the whole array.
    """
    axes = tuple(i for i in range(a.ndim) if i != axis)
    if axis is not None and a.ndim == 1:
        axes = ()
    size = np.abs(a.astype(np.float64) if a.dtype.itemsize < 8 and a.dtype.kind != "c" else a)
    top = size.max(axis=axes, keepdims=True, initial=0.0)
    scale = np.where((top > 0) & np.isfinite(top), top, 1.0)
    return np.asarray(scale * np.sqrt(np.sum((size / scale) ** 2, axis=axes, keepdims=True)))


def _check_policy(nonfinite: str) -> None:
    if nonfinite not in ("raise", "allow"):
        raise ArgumentError(f"nonfinite must be 'raise' or 'allow', not {nonfinite!r}.")
