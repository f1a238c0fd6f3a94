"""Save and restore the complete state of a training run, as plain data and arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint.core.user_code import warn
from adjoint.errors import ArgumentError
from adjoint.optim import Optimizer
from adjoint.random import Generator
from adjoint.train.callbacks import BestCheckpoint, Callback, Log
from adjoint.train.compose import ComposedLoss
from adjoint.train.history import History
from adjoint.train.snapshot import generator_state, modules_of, set_generator

if TYPE_CHECKING:
    from adjoint.train.trainer import Trainer

__all__ = ["matched", "of", "options_of", "restore", "resume", "state_of"]


def of(trainer: Trainer) -> dict[str, Any]:
    """Return the state of a training run as a dictionary, without the model's values.

    The model's values are stored in a separate file of the checkpoint.
    """
    return {
        "step": trainer.step,
        "epoch": trainer.epoch,
        "epoch_steps": trainer.epoch_steps,
        "epoch_seconds": trainer.epoch_seconds,
        "trained": trainer.trained,
        "history": [dict(h) for h in trainer.history],
        "averages": trainer.averages.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "accumulator": trainer.accumulator.state_dict(),
        "trained_first": trainer.trained_first,
        "options_first": trainer.options_first,
        "trained_now": sorted(trainer.named_parameters()),
        "loss": state_of(trainer.loss),
        "schedule": state_of(trainer.schedule),
        "weights": {name: state_of(weight) for name, weight in _weights(trainer).items()},
        "loader": trainer.place(),
        "loader_kind": _kind(trainer._loader),
        "loader_keeps_place": hasattr(trainer._loader, "load_state_dict"),
        "callbacks": [{**_names(trainer, c), "state": c.state_dict()} for c in trainer.callbacks],
        "generators": {path: generator_state(rng) for path, rng in _generators(trainer)},
        "native_rows": None if trainer.compiled is None else trainer.compiled.rows,
    }


def resume(trainer: Trainer) -> bool:
    """Load the newest checkpoint into the trainer; return False if there is no checkpoint.

    An error leaves the trainer unchanged.
    """
    if trainer.checkpoints is None:
        raise ArgumentError(
            "fit(resume=True) needs a directory to read checkpoints from: Trainer(…, directory=path)."
        )
    found = _newest(trainer)
    if found is None:
        for callback in trainer.callbacks if not trainer.step else ():
            callback.on_restart(trainer)
        return False
    model, state = found
    known = [callback for callback, _ in matched(trainer, state["callbacks"])]
    for callback in trainer.callbacks:
        if isinstance(callback, BestCheckpoint) and callback not in known and not trainer._rank:
            callback.checkpoints.refuse_later(int(state["step"]))
    before, replaced = (trainer.model.state_dict(), of(trainer)), _replaced(trainer, state)
    try:
        restore(trainer, trainer._loader, model, state)
    except BaseException:
        restore(trainer, trainer._loader, *before)
        raise
    if state["loader"] and hasattr(trainer._loader, "load_state_dict"):
        trainer._began = state["loader"], trainer.epoch_steps
    for callback in known:
        callback.on_resume(trainer)
    if replaced and not trainer._rank:
        warn(
            f"fit(resume=True) continues with the options of the checkpoint: {'; '.join(replaced)}.\n"
            "  To change options, call fit(loader, 0, resume=True), which only loads the checkpoint, set "
            "them (trainer.optimizer.lr = …), and call fit without resume."
        )
    return True


def options_of(optimizer: Any) -> list[dict[str, Any]]:
    """Return the hyper-parameters of each parameter group of an optimiser; [] if it has no groups."""
    return [dict(g.hyper) for g in optimizer.groups] if isinstance(optimizer, Optimizer) else []


def _replaced(trainer: Trainer, state: Mapping[str, Any]) -> list[str]:
    """Describe the options of the optimiser that the user has changed since the checkpoint was saved.

    In a new trainer these are options that differ from those at the start of the saved run, too.
    """
    if trainer.step not in (0, state["step"]) or "options_first" not in state:
        return []
    now, saved = options_of(trainer.optimizer), state["optimizer"].get("groups", [])
    first = saved if trainer.step else state["options_first"]

    def plain(value: Any) -> Any:
        return list(value) if isinstance(value, tuple) else value

    found = {
        f"{name} = {old[name]}, not {value}": None
        for new, old, started in zip(now, saved, first, strict=False)
        for name, value in new.items()
        if plain(value) not in (plain(old.get(name, value)), plain(started.get(name, value)))
        and not (name == "lr" and trainer.schedule is not None)
    }
    return list(found)


def _newest(trainer: Trainer) -> tuple[Any, Any] | None:
    """Return the model's values and the other state from the newest checkpoint, or None if there is none.

    With several ranks, rank 0 reads the checkpoint and sends it to the others.
    """
    assert trainer.checkpoints is not None
    found = None
    if trainer._rank == 0 and (path := trainer.checkpoints.latest()) is not None:
        found = trainer.checkpoints.read(path)[:2]
    return found if trainer._ranks is None else trainer._ranks.group.broadcast_object(found)


def restore(trainer: Trainer, loader: Any, model: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Restore a training run from ``model``, the values of the model, and ``state``, the result of ``of``.

    ``loader`` is the data loader of the resumed run.  Callbacks without a saved state are not changed.
    """
    _refuse_other_loader(loader, state)
    trainer.model.load_state_dict(model)
    _refuse_other_freezing(trainer, state)
    trainer.optimizer.load_state_dict(state["optimizer"])
    if "trained_now" in state:
        for name, p in trainer.named_parameters(frozen=True).items():
            if p.requires_grad is not (name in state["trained_now"]):  # a callback froze or unfroze it
                p.requires_grad_(not p.requires_grad)
    trainer.accumulator.load_state_dict(state["accumulator"])
    things = [(trainer.loss, state["loss"]), (trainer.schedule, state["schedule"]), (loader, state["loader"])]
    things += [(w, state.get("weights", {}).get(name)) for name, w in _weights(trainer).items()]
    for thing, saved in things:
        if saved and hasattr(thing, "load_state_dict"):
            thing.load_state_dict(saved)
    generators = dict(_generators(trainer))
    if set(generators) != set(state["generators"]):
        raise ArgumentError(
            f"the checkpoint has random generators for {sorted(state['generators'])}, but the model has "
            f"them in {sorted(generators)}.\n  Nothing was loaded.  Create the model as in the saved run."
        )
    for path, rng in generators.items():
        set_generator(rng, state["generators"][path])
    if trainer.compiled is not None:
        trainer.compiled.rows = state.get("native_rows")
    trainer.step, trainer.epoch = int(state["step"]), int(state["epoch"])
    if isinstance(trainer.loss, ComposedLoss):
        trainer.loss.step = max(trainer.step - 1, 0)  # a validation uses the weights of the last update
    trainer.epoch_steps, trainer.epoch_seconds = int(state["epoch_steps"]), float(state["epoch_seconds"])
    trainer.trained = bool(state.get("trained"))
    trainer.history = History(dict(h) for h in state["history"])
    trainer.averages.load_state_dict(state["averages"])
    found = matched(trainer, state["callbacks"])
    for callback, saved in sorted(
        found, key=lambda each: isinstance(each[0], Log)
    ):  # logs last, because they truncate their files
        callback.load_state_dict(saved)


def _kind(loader: Any) -> str | None:
    return None if loader is None else type(loader).__name__


def _refuse_other_loader(loader: Any, state: Mapping[str, Any]) -> None:
    """Raise if the saved position in the data cannot be restored in ``loader``.

    It can be restored if both the saved loader and this one keep their position, or if neither does.
    """
    kind = state.get("loader_kind")  # None: the checkpoint was not written by fit, so there is no loader
    if kind is None or loader is None or state["loader_keeps_place"] == hasattr(loader, "load_state_dict"):
        return
    raise ArgumentError(
        f"the checkpoint has the position in a {kind}, which cannot be restored in a {_kind(loader)}, "
        "because the batches may differ.\n  Nothing was loaded.  Resume with the same kind of loader."
    )


def _refuse_other_freezing(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """Raise if other parameters are frozen now than at the start of the saved run."""
    before, now = set(state.get("trained_first", trainer.trained_first)), set(trainer.trained_first)
    if before == now:
        return
    frozen, thawed = ", ".join(sorted(before - now)), ", ".join(sorted(now - before))
    raise ArgumentError(
        "the frozen parameters differ from those at the start of the saved run"
        + (f"; frozen now but not then: {frozen}" if frozen else "")
        + (f"; frozen then but not now: {thawed}" if thawed else "")
        + ".\n  Nothing was loaded.  Freeze the same parameters before creating the Trainer.  To freeze or "
        "unfreeze parameters later in the run, use a callback.\n"
        "  To train other parameters, start a new run with the saved weights: "
        "model.load_state_dict(ad.load(checkpoint / 'model.safetensors'))."
    )


def _names(trainer: Trainer, callback: Callback) -> dict[str, Any]:
    """Return a dictionary that identifies a callback in a checkpoint.

    Its keys are "kind", the name of the class; "identity", the result of ``callback.identity()``; and
    "beside", the identity with its path relative to the directory of the checkpoints, or None without a path.
    """
    identity = callback.identity()
    if trainer.checkpoints is None or "path" not in identity:
        beside = None
    else:
        start = os.path.realpath(trainer.checkpoints.directory)
        try:
            beside = {**identity, "path": os.path.relpath(identity["path"], start)}
        except ValueError:  # another drive of Windows
            beside = None
    return {"kind": type(callback).__name__, "identity": identity, "beside": beside}


def matched(trainer: Trainer, saved: Any) -> list[tuple[Callback, Any]]:
    """Return a pair (callback, saved state) for each callback of the trainer that is found in ``saved``.

    Callbacks are compared by identity, then with relative paths, in case the run's directory was moved.
    """
    left, found = list(saved), []
    waiting = [(callback, _names(trainer, callback)) for callback in trainer.callbacks]
    for name in ("identity", "beside"):
        for callback, names in list(waiting):
            same = [s for s in left if s["kind"] == names["kind"] and s.get(name) == names[name]]
            if same and names[name] is not None:
                left = [s for s in left if s is not same[0]]
                waiting.remove((callback, names))
                found.append((callback, same[0]["state"]))
    return found


def _weights(trainer: Trainer) -> dict[str, Any]:
    """Return the weights of a composed loss by the name of the term; for other losses, return {}."""
    return trainer.loss.weights if isinstance(trainer.loss, ComposedLoss) else {}


def _generators(trainer: Trainer) -> Iterator[tuple[str, Any]]:
    """Yield the path and the object of each random generator that a module of the model or loss stores."""
    for path, module in modules_of(trainer):
        for name, value in vars(module).items():
            if isinstance(value, (Generator, np.random.Generator)):
                yield f"{path}.{name}", value


def state_of(thing: Any) -> Any:
    """Return the ``state_dict()`` of an object that has one, else an empty dictionary."""
    return thing.state_dict() if hasattr(thing, "state_dict") else {}
