"""Checks of the arguments of a trainer, before training starts."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from adjoint.core.tensor import Tensor
from adjoint.core.user_code import warn
from adjoint.errors import ArgumentError, InputError
from adjoint.train.callbacks import Callback

__all__ = [
    "check_batches",
    "check_hooks",
    "check_monitors",
    "input_array",
    "output_array",
    "refuse_class",
    "refuse_several_inputs",
    "warn_not_finite",
]

# Hooks of other libraries, and their names here
_HOOKS = {
    "on_epoch_end": "on_epoch",
    "on_train_epoch_end": "on_epoch",
    "on_validation_end": "on_epoch",
    "on_validation_epoch_end": "on_epoch",
    "on_batch_end": "on_step",
    "on_train_batch_end": "on_step",
    "on_step_end": "on_step",
    "on_train_end": "on_end",
    "on_fit_end": "on_end",
    "on_before_optimizer_step": "before_update",
    "on_save_checkpoint": "state_dict",
    "on_load_checkpoint": "load_state_dict",
}
_BEGINNINGS = ("fit", "train", "epoch", "train_epoch", "batch", "train_batch", "step", "validation")
_NOT_CALLED = {f"on_{what}_{how}" for what in _BEGINNINGS for how in ("begin", "start")}


def refuse_class(name: str, value: Any, base: type, arguments: str = "…") -> None:
    """Raise if a class was given instead of an instance."""
    if isinstance(value, type) and issubclass(value, base):
        raise InputError(
            f"Trainer: {name} is the class {value.__name__}.  Pass an instance: "
            f"{value.__name__}({arguments})."
        )


def check_hooks(callback: Callback) -> None:
    """Raise for methods that look like hooks but are never called."""
    ours = [name for name in dir(Callback) if not name.startswith("_")]
    kind = type(callback).__name__
    for name in dir(type(callback)):
        if name in ours or not name.startswith(("on_", "before_", "after_")):
            continue
        if name in _NOT_CALLED:
            raise InputError(
                f"Trainer: {kind}.{name} is never called: there are no hooks at the start of steps or "
                "epochs.\n"
                f"  A callback has {', '.join(n for n in ours if 'state' not in n)}."
            )
        near = [_HOOKS[name]] if name in _HOOKS else difflib.get_close_matches(name, ours, 1, 0.9)
        if near:
            raise InputError(f"Trainer: {kind}.{name} is never called: the hook is named {near[0]}.")


def check_monitors(followers: Iterable[Any], numbers: Collection[str]) -> None:
    """Raise if a monitored number is one of a validation that does not take place."""
    for follower in followers:
        name = getattr(follower, "monitor", None)
        if name in numbers:
            raise ArgumentError(
                f"{type(follower).__name__} monitors {name!r}, but there is no validation: pass "
                f"fit(…, validate=loader), or monitor={str(name).removeprefix('val_')!r}."
            )


def check_batches(where: str, loader: Any, pairs: bool) -> None:
    """Raise for a loader that has no batches, and for arrays in place of pairs."""
    if not isinstance(loader, Iterable):
        raise InputError(f"{where}: a loader must be iterable, not a {type(loader).__name__}.")
    parts = loader if isinstance(loader, (tuple, list)) else [loader]
    if pairs and any(isinstance(part, (np.ndarray, Tensor)) for part in parts):
        raise InputError(
            f"{where}: a batch must be (inputs, targets), but the loader contains arrays.\n"
            "  Use DataLoader((X, Y), batch_size), or [(X, Y)] for a single batch.  For other batches pass "
            "compute(model, batch)."
        )


def refuse_several_inputs(inputs: Any, targets: Any) -> None:
    """Raise for a tuple of several input arrays with a row per target each; a tuple of rows is accepted."""
    if not isinstance(inputs, (tuple, list)) or not hasattr(targets, "__len__") or not inputs:
        return
    arrays = all(isinstance(each, (np.ndarray, Tensor)) and each.ndim for each in inputs)
    if arrays and len(inputs) != len(targets) and all(len(each) == len(targets) for each in inputs):
        raise InputError(
            f"Trainer: a model takes one array of inputs, but the batch has {len(inputs)}.\n"
            "  For several inputs pass compute(model, batch): lambda model, batch: loss(model(*batch[0]), "
            "batch[1])."
        )


def input_array(inputs: Any) -> np.ndarray[Any, Any]:
    """Return the inputs of a prediction as an array with one row per input."""
    try:
        array = np.asarray(inputs)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if not array.ndim or array.dtype.kind in "OUS":
        raise InputError(
            f"predict: the inputs must be one array with a row per input, not a {type(inputs).__name__}.\n"
            "  For inputs of another kind call the model itself, after model.eval(), under ad.no_grad()."
        )
    return array


def output_array(found: Any) -> np.ndarray[Any, Any]:
    """Return the outputs of a model as an array with one row per input."""
    if not isinstance(found, Tensor) or not found.ndim:
        kind = "one number" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise InputError(
            f"predict: the model must return a tensor with a row per input, but returned {kind}.\n"
            "  Call the model itself, after model.eval(), under ad.no_grad()."
        )
    return found.numpy()


def warn_not_finite(loss: float, step: int, epoch: int) -> None:
    """Warn that an update used a loss that is not finite."""
    warn(
        f"the loss is {loss} at step {step}, epoch {epoch}, and its gradients went into the weights.\n"
        "  Lower the learning rate, clip gradients by clip=1.0, or find the op with ad.detect_anomaly().\n"
        "  Trainer(callbacks=[train.NonFiniteGuard()]) stops before such an update.",
    )
