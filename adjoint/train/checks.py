"""Checks of the arguments of a trainer, before training starts."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint import words
from adjoint.core.shapes import whole_number
from adjoint.core.tensor import Tensor
from adjoint.core.user_code import warn
from adjoint.errors import ArgumentError, InputError
from adjoint.nn.module import Module
from adjoint.nn.module_tree import unseen_parameters
from adjoint.optim import LBFGS, Optimizer
from adjoint.train.callbacks import Callback
from adjoint.train.weighing import RESERVED

if TYPE_CHECKING:
    from adjoint.train.trainer import Trainer

__all__ = [
    "check_arguments", "check_batches", "check_monitors", "check_names", "check_parameters", "check_ranks",
    "checked_metrics", "input_array", "output_array", "warn_not_finite",
]  # fmt: skip

# Names of hooks in other libraries, and the hooks of Callback with the same purpose
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


def check_arguments(trainer: Trainer) -> None:
    """Raise if an argument of the trainer has a wrong type or value."""
    if not isinstance(trainer.model, Module):
        raise InputError(f"Trainer: the model must be a Module, not {words.a(type(trainer.model).__name__)}.")
    functions = {
        "loss": trainer.loss,
        "schedule": trainer.schedule,
        "weight": trainer.weight,
        "compute": trainer.compute,
    }
    for name, function in {**functions, **trainer.metrics}.items():
        if function is not None and not callable(function):
            raise InputError(f"Trainer: {name} must be a function, not {function!r}.")
        _refuse_class(name, function, Module)
    _refuse_class("the optimiser", trainer.optimizer, object, "model.parameters(), …")
    for callback in trainer.callbacks:
        _refuse_class("a callback", callback, Callback)
        if not isinstance(callback, Callback):
            raise InputError(f"Trainer: callbacks must be instances of Callback, not {callback!r}.")
        _check_hooks(callback)
    if not isinstance(trainer.progress, (bool, np.bool_)) and trainer.progress != "auto":
        raise ArgumentError(f'Trainer: progress must be True, False or "auto", not {trainer.progress!r}.')
    if trainer.loss is None and trainer.compute is None:
        raise InputError(
            "Trainer: neither loss nor compute was given.\n"
            "  Pass loss=f with f(prediction, target), or compute=f with f(model, batch) that returns a loss."
        )
    if trainer.optimizer is None:
        raise InputError("Trainer: pass an optimiser: optimizer=ad.optim.Adam(model.parameters()).")
    if type(trainer.optimizer).__module__.partition(".")[0] == "torch":
        raise InputError(
            "Trainer: an optimiser of PyTorch cannot update parameters of adjoint.\n"
            f"  Use ad.optim.{type(trainer.optimizer).__name__}(model.parameters(), …)."
        )
    if isinstance(trainer.optimizer, LBFGS) or not callable(getattr(trainer.optimizer, "step", None)):
        raise InputError(
            f"Trainer: the optimiser must have a method step() without arguments, but a "
            f"{type(trainer.optimizer).__name__} does not.\n"
            "  LBFGS does not work with batches: call optimizer.step(closure), where closure returns "
            "the loss on all data."
        )
    if trainer.metrics and trainer.compute is not None:
        raise ArgumentError(
            "Trainer: metrics= cannot be used with compute=, because metrics need the prediction.\n"
            "  Return the metrics from compute instead: return loss, {'accuracy': value}."
        )
    for name, value in (
        ("accumulate", trainer.pieces),
        ("checkpoint_every", trainer.checkpoint_every),
        ("term_norms", trainer.term_norms),
    ):
        if value is not None and whole_number("Trainer", name, value) < 1:
            raise ArgumentError(f"Trainer: {name} must be at least 1, but is {value!r}.")
    directories = [c.directory.resolve() for c in trainer._all_checkpoints()]
    if len(set(directories)) < len(directories):
        raise ArgumentError("Trainer: the trainer and each BestCheckpoint must use different directories.")


def check_parameters(trainer: Trainer) -> None:
    """Raise if the model has unregistered parameters, or if the optimiser has different parameters."""
    unseen = unseen_parameters(trainer.model)
    if unseen:
        raise InputError(
            f"Trainer: parameters in plain lists or dictionaries are not trained: {', '.join(unseen)}.\n"
            "  Put the modules into an nn.ModuleList, assign each to its own attribute, or freeze the "
            "parameters with requires_grad_(False)."
        )
    if not trainer.named_parameters():
        raise InputError(
            "Trainer: the model has no parameters that require grad, so nothing can be trained.\n"
            "  Unfreeze them with model.requires_grad_(True)."
        )
    if not isinstance(trainer.optimizer, Optimizer):
        return
    updated = {id(p) for p in trainer.optimizer.params}
    learned = dict(trainer.loss.named_parameters()) if isinstance(trainer.loss, Module) else {}
    lost = [f"loss.{k}" for k, p in learned.items() if p.requires_grad and id(p) not in updated]
    if lost:
        raise InputError(
            f"Trainer: the loss has parameters that the optimiser does not update: {', '.join(lost)}.\n"
            "  Pass them to the optimiser: optim.Adam([*model.parameters(), *loss.parameters()])."
        )
    strange = len(updated - {id(p) for p in (*trainer.model.parameters(), *learned.values())})
    if strange:
        raise InputError(
            f"Trainer: {strange} parameters of the optimiser do not belong to the model.\n"
            "  Create the optimiser from model.parameters(), after model.astype(…) and similar changes."
        )


def checked_metrics(metrics: Any) -> dict[str, Any]:
    """Return metrics as a dictionary of functions by name."""
    if metrics is not None and not isinstance(metrics, Mapping):
        raise InputError(
            f"Trainer: metrics must be a dictionary of functions by name, not "
            f"{words.a(type(metrics).__name__)}."
        )
    return dict(metrics or {})


def check_ranks(pieces: int, size: int) -> None:
    """Raise if a batch has fewer pieces than there are ranks."""
    if pieces < size:
        raise ArgumentError(
            "Trainer: accumulate= is the number of pieces of a batch on all ranks together, so it "
            f"must be at least the number of ranks, {size}, but is {pieces}."
        )


def _refuse_class(name: str, value: Any, base: type, arguments: str = "…") -> None:
    """Raise if ``value`` is a subclass of ``base`` instead of an instance.

    The message calls the argument ``name``, and shows a call of the class with ``arguments``.
    """
    if isinstance(value, type) and issubclass(value, base):
        raise InputError(
            f"Trainer: {name} is the class {value.__name__}.  Pass an instance: "
            f"{value.__name__}({arguments})."
        )


def _check_hooks(callback: Callback) -> None:
    """Raise if a callback has a method that looks like a hook but is never called."""
    ours = [n for n in dir(Callback) if not n.startswith("_") and callable(getattr(Callback, n))]
    kind = type(callback).__name__
    for name in dir(type(callback)):
        if name in ours or not name.startswith(("on_", "before_", "after_")):
            continue
        if name in _NOT_CALLED:
            raise InputError(
                f"Trainer: {kind}.{name} is never called, because there are no hooks at the start of "
                "steps or epochs.\n"
                f"  The hooks are {', '.join(n for n in ours if 'state' not in n)}."
            )
        near = [_HOOKS[name]] if name in _HOOKS else difflib.get_close_matches(name, ours, 1, 0.9)
        if near:
            raise InputError(f"Trainer: {kind}.{name} is never called.  The hook is named {near[0]}.")


def check_monitors(followers: Iterable[Any], numbers: Collection[str]) -> None:
    """Raise if a callback or schedule monitors a validation metric, but there is no validation.

    ``followers`` are the callbacks and schedules, ``numbers`` the names of the validation metrics.
    """
    for follower in followers:
        name = getattr(follower, "monitor", None)
        if name in numbers:
            raise ArgumentError(
                f"{type(follower).__name__} monitors {name!r}, but there is no validation.  Pass "
                f"fit(…, validate=loader), or use monitor={str(name).removeprefix('val_')!r}."
            )


def check_batches(where: str, loader: Any, pairs: bool) -> None:
    """Raise if a loader is not iterable, or if it yields arrays although batches must be pairs.

    ``where`` names the call in the message.  ``pairs`` is True if batches must be pairs (inputs, targets).
    """
    if not isinstance(loader, Iterable):
        raise InputError(f"{where}: a loader must be iterable, not {words.a(type(loader).__name__)}.")
    parts = loader if isinstance(loader, (tuple, list)) else [loader]
    if pairs and any(isinstance(part, (np.ndarray, Tensor)) for part in parts):
        raise InputError(
            f"{where}: a batch must be a pair (inputs, targets), but the loader contains arrays.\n"
            "  Use DataLoader((X, Y), batch_size), or [(X, Y)] for a single batch.  For other batches pass "
            "Trainer(…, compute=function), where the function takes (model, batch)."
        )


def input_array(inputs: Any) -> np.ndarray[Any, Any]:
    """Return the inputs of a prediction as one array with a row per input; raise if that is not possible."""
    try:
        array = np.asarray(inputs)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if not array.ndim or array.dtype.kind in "OUS":
        raise InputError(
            f"predict: the inputs must be one array with a row per input, not "
            f"{words.a(type(inputs).__name__)}.\n"
            "  For other inputs, call model.eval(), then call the model inside `with ad.no_grad():`."
        )
    return array


def check_names(trainer: Trainer) -> None:
    """Raise if two metrics would be logged under one name."""
    own = [*trainer.metrics, *trainer._term_names()]
    names = [*RESERVED, *own, *(f"val_{name}" for name in ("loss", *own))]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ArgumentError(
            f"Trainer: several metrics have the same name: {', '.join(map(repr, twice))}.\n"
            "  Rename the metrics or the terms of the loss."
        )


def output_array(found: Any) -> np.ndarray[Any, Any]:
    """Return the outputs of a model as an array; raise if they are not a tensor with a row per input."""
    if not isinstance(found, Tensor) or not found.ndim:
        kind = "one number" if isinstance(found, Tensor) else f"{words.a(type(found).__name__)}"
        raise InputError(
            f"predict: the model must return a tensor with a row per input, but returned {kind}.\n"
            "  For such a model, call model.eval(), then call the model inside `with ad.no_grad():`."
        )
    return found.numpy()


def warn_not_finite(loss: float, step: int, epoch: int) -> None:
    """Warn that the weights were updated from a loss that is not finite."""
    warn(
        f"the loss is {loss} at step {step}, epoch {epoch}, and the weights were updated from it.\n"
        "  Lower the learning rate, clip gradients with clip=1.0, or find the op with ad.detect_anomaly().\n"
        "  Pass Trainer(…, callbacks=[train.NonFiniteGuard()]) to stop before such an update."
    )
