"""From the sums of a window to an update: division, clipping and optimisers.

An optimiser is an object with ``step()``, which reads the ``.grad`` of its parameters; an object with
``apply(gradients)``; or a function of a dictionary of gradients by name.  An optimiser that raises an
exception is assumed to have made no update and to have left its gradients unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint import words
from adjoint.accumulate.blocks import gradient_array
from adjoint.core.convert import asarray
from adjoint.core.sparse import SparseRows, as_gradient_tensor
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError, NonFiniteError, UnknownNameError
from adjoint.grads.clip import lending
from adjoint.grads.norm import Measure, all_finite, global_norm, measured, stored_values
from adjoint.grads.scaler import GradScaler
from adjoint.grads.slots import parameters_of
from adjoint.grads.store import Gradients

if TYPE_CHECKING:
    from adjoint.accumulate.accumulator import GradientAccumulator

__all__ = ["gradient_of", "optimizers_in", "shown", "update"]


def optimizers_in(given: Any) -> list[Any]:
    """Return an optimiser, or several, as a list; raise if one is not an optimiser."""
    optimizers = list(given) if isinstance(given, (list, tuple)) else [given]
    known = [o for o in optimizers if callable(o) or hasattr(o, "step") or hasattr(o, "apply")]
    if not optimizers or len(known) < len(optimizers):
        raise InputError(
            "apply: pass an optimiser (an object with step() or apply(gradients)), a function of the "
            f"gradients, or a list of at least one of these, not {given!r}."
        )
    return optimizers


def gradient_of(acc: GradientAccumulator, scaler: GradScaler | None = None, *, update: bool = False) -> Any:
    """Return the normalised and clipped gradients of a window, or None if they are not finite.

    Gradients that are not finite are an error, unless ``update`` is True and the options allow skipping the
    update.  With ``update`` the gradients may use the memory of the sums.  Events are sent if the window is
    full.
    """
    config, window, sums = acc.config, acc._window, acc._sums
    measure = _measured(acc, scaler)
    if not measure.finite and (scaler is not None or config.nonfinite != "allow"):
        if update and (scaler is not None or config.nonfinite != "raise"):
            return None
        raise NonFiniteError(
            f"the norm of the summed gradients is {measure.norm}.\n  Use smaller losses or weights, or sum "
            "float32 gradients in float64 (dtype=np.float64).  Call drop() to discard the window."
        )
    # a clip function that raises leaves the sums as they were
    in_place = update and acc._clip is None and not sums.rows and not config.compensated
    norm, clipped = measure.norm, config.max_grad_norm if measure.clipped else None
    window.changing = in_place  # also after an exception
    found = sums.finish(measure.divisor, measure.factor, in_place)
    if in_place:
        window.gradient, window.finished = found, True
    window.changing = False
    if acc._clip is not None:
        before = global_norm(found.values(), config.norm_type)
        found = _clipped(acc, acc._clip, found)
        after = global_norm(found.values(), config.norm_type)
        norm = norm or before
        clipped = clipped if after == before or math.isnan(before) else after
    if window.is_ready() and window.norm is None:
        acc.last_norm, window.norm, window.clipped_norm = norm, norm, clipped
        if clipped is not None:
            acc._counts["clipped_windows"] += 1
            acc._send("clip", window, norm=norm, clipped_norm=clipped)
    return found


def _measured(acc: GradientAccumulator, scaler: GradScaler | None) -> Measure:
    """Return the norm of a window's gradient, the numbers that scale and clip it, and whether it is finite.

    ``scaler`` is the ``GradScaler`` of the losses, or None.
    """
    config, window, sums = acc.config, acc._window, acc._sums
    divisor = acc.divisor() / sums.unit
    if scaler is not None:
        divisor *= scaler.scale_during(window.first, window.last)
    if config.max_grad_norm is None:
        allowed = config.nonfinite == "allow" and scaler is None
        # a divisor of at least 1 does not increase any value
        if allowed or (divisor >= 1.0 and all(map(all_finite, sums.values()))):
            return Measure(None, divisor)
    return measured(list(sums.totals().values()), config.norm_type, divisor, config.max_grad_norm)


def shown(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return gradients by name in the form for users: sparse rows become ``SparseGradient`` tensors."""
    if SparseRows not in set(map(type, found.values())):
        return dict(found)
    return {name: as_gradient_tensor(g) if type(g) is SparseRows else g for name, g in found.items()}


class NamedGradients(Gradients):
    """The store passed to clip functions: gradients are looked up by parameter or by name."""

    __slots__ = ("_names",)

    def __init__(self, names: Mapping[str, Tensor], found: Mapping[str, Any]) -> None:
        super().__init__()
        self._names = names
        self._items = {id(names[n]): (names[n], as_gradient_tensor(g)) for n, g in found.items()}

    def _tensor(self, key: Any) -> Any:
        if isinstance(key, str) and key not in self._names:
            raise UnknownNameError(
                f"no parameter is registered as {key!r}.  Registered: {words.quoted(self._names)}."
            )
        return self._names[key] if isinstance(key, str) else key

    def __contains__(self, key: object) -> bool:
        return super().__contains__(self._names.get(key) if isinstance(key, str) else key)

    def _fitting(self, key: Tensor, grad: Any) -> Tensor:
        new = asarray(grad)  # in the dtype of the parameter, or a wider one
        known = isinstance(key, Tensor) and new.shape == key.shape
        wide = known and np.can_cast(key.dtype, new.dtype, "safe")
        return new if wide else super()._fitting(key, grad)


def _clipped(
    acc: GradientAccumulator, clip: Callable[[Any], object], found: dict[str, Any]
) -> dict[str, Any]:
    """Call ``clip`` with the gradients ``found``; return them after it has changed or replaced them."""
    given: Any = NamedGradients(acc._params, found) if acc._params else shown(found)
    with lending(given):
        clip(given)
    if missing := [name for name in found if name not in given]:
        raise InputError(
            f"clip: the function removed {words.quoted(missing)}.  It may only change gradients."
        )
    clipped = {}
    for name, old in found.items():
        g = gradient_array(f"clip: {name!r}", given[name])
        clipped[name] = acc._sums.slots[name].fitting(g, True, "clip: ").astype(old.dtype, copy=False)
    return clipped


def update(
    acc: GradientAccumulator,
    optimizers: list[Any],
    scaler: GradScaler | None,
    before: Callable[[], object] | None,
) -> bool:
    """Pass the gradient to the optimisers; return False if it is not finite and the update is skipped.

    Optimisers in ``window.done`` have made their update before and are left out.
    """
    window, policy = acc._window, acc.config.nonfinite
    if window.gradient is None:
        window.gradient = gradient_of(acc, scaler, update=True)
        if window.gradient is None:
            return False
    tensors: dict[str, Tensor] = {}
    if any(hasattr(optimizer, "step") for optimizer in optimizers):
        _refuse_to_lose([*optimizers, *window.done], acc._params, window.gradient)
        tensors, beyond = _narrowed(acc._params, window.gradient)
        if beyond and scaler is None and policy == "raise":
            raise NonFiniteError(
                f"apply: these gradients overflow the dtype of their parameters: {words.quoted(beyond)}.\n"
                "  Clip the gradients (max_grad_norm=), or use a wider dtype for the parameters."
            )
        if beyond and (scaler is not None or policy != "allow"):
            return False
    with window:  # an optimiser that raises has made no update
        for optimizer in optimizers:
            if any(optimizer is other for other in window.done):
                continue
            if hasattr(optimizer, "step"):
                _step(optimizer, acc._params, tensors, before)
            else:
                getattr(optimizer, "apply", optimizer)(shown(window.gradient))
            window.done.append(optimizer)
    return True


def _narrowed(params: Mapping[str, Tensor], grads: Mapping[str, Any]) -> tuple[dict[str, Tensor], list[str]]:
    """Cast gradients to the dtypes of their parameters; return them, and the names of those that overflow."""
    found, beyond = {}, []
    with np.errstate(over="ignore"):
        for name in [name for name in params if name in grads]:
            g = found[name] = as_gradient_tensor(grads[name])
            if g.dtype != params[name].dtype:
                g = found[name] = g.astype(params[name].dtype)
                beyond += [] if all_finite(stored_values(g)) else [name]
    return found, beyond


def _step(optimizer: Any, params: Mapping[str, Tensor], grads: Mapping[str, Tensor], before: Any) -> None:
    """Call ``before()`` and ``optimizer.step()`` while the ``.grad`` of each parameter is its gradient.

    ``grads`` has the gradients of the window by name.  The old values of ``.grad`` are restored afterwards.
    """
    kept = [(t, t.grad) for t in params.values()]
    try:
        for name, t in params.items():
            t.grad = grads.get(name)
        if before is not None:
            before()
        optimizer.step()
    finally:
        for t, old in kept:
            t.grad = old


def _refuse_to_lose(optimizers: list[Any], params: Mapping[str, Tensor], grads: Mapping[str, Any]) -> None:
    """Raise if a parameter has a gradient, but no optimiser updates it, so that the gradient would be lost.

    Nothing is checked if the parameters of an optimiser are not known.  Also raise if the accumulator was
    created without parameters.
    """
    if not params:
        raise InputError(
            "apply: this optimiser reads .grad, but the accumulator was created without parameters.\n"
            "  Create it as GradientAccumulator(params, …), or use the arrays that gradients() returns."
        )
    try:
        updated = {id(t) for optimizer in optimizers for t in parameters_of(optimizer)}
    except (InputError, TypeError, KeyError):  # the parameters of an optimiser are not known
        return
    lost = [name for name, t in params.items() if name in grads and id(t) not in updated]
    if updated and lost:
        raise InputError(
            f"apply: no optimiser updates {words.quoted(lost)}, so these gradients would be lost.\n"
            "  Create optimisers and accumulator from the same parameters, and pass all optimisers at once: "
            "apply([one, other])."
        )
