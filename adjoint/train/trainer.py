"""Trainer: the loop around forward, backward and update, with everything it needs to be left alone."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from adjoint.config import no_grad
from adjoint.core.tensor import Tensor, asarray
from adjoint.errors import ArgumentError, InputError
from adjoint.grads.accumulate import GradientAccumulator
from adjoint.nn.module import Module
from adjoint.random import Generator
from adjoint.train.callbacks import Callback, GradientFlow
from adjoint.train.checkpoint import Checkpoints
from adjoint.train.compose import ComposedLoss
from adjoint.train.progress import Progress

__all__ = ["Trainer"]

Loss = Callable[..., Tensor]


class Trainer:
    """Train a model: batches of (inputs, targets), a loss, an optimiser.

    ``accumulate=k`` cuts each batch into k micro-batches whose gradients add up to the whole batch's.
    ``clip`` limits the global norm of the gradients.  ``schedule`` gives the learning rate of each step.
    ``weight(batch)`` says how much a batch counts (its number of examples if not given; of tokens, say).
    ``compute(model, batch)`` replaces ``loss(model(inputs), targets)``.  With ``directory`` checkpoints are
    written there after each epoch, or every ``checkpoint_every`` steps, and ``fit(resume=True)`` goes on
    bitwise as if it had not stopped.  Ctrl-C stops after the present step, with a checkpoint.
    """

    def __init__(
        self,
        model: Module,
        loss: Loss | None = None,
        optimizer: Any = None,
        *,
        schedule: Callable[[int], float] | None = None,
        accumulate: int = 1,
        clip: float | None = None,
        callbacks: Sequence[Callback] = (),
        metrics: Mapping[str, Callable[[Any, Any], Any]] | None = None,
        weight: Callable[[Any], float] | None = None,
        compute: Callable[[Any, Any], Tensor] | None = None,
        directory: str | os.PathLike[str] | None = None,
        checkpoint_every: int | None = None,
        keep: int = 3,
        progress: bool | None = None,
    ) -> None:
        if loss is None and compute is None:
            raise InputError("Trainer: give a loss(prediction, target), or compute(model, batch).")
        if optimizer is None:
            raise InputError("Trainer: give an optimiser, such as ad.optim.Adam(model.parameters()).")
        self.model, self.loss, self.optimizer, self.schedule = model, loss, optimizer, schedule
        self.callbacks = list(callbacks)
        self.metrics = dict(metrics or {})
        self.weight, self.compute = weight, compute
        self.checkpoints = None if directory is None else Checkpoints(directory, keep)
        self.checkpoint_every = checkpoint_every
        self.progress = progress
        self.pieces = accumulate
        self.accumulator = GradientAccumulator(
            self._named_parameters(), accumulation_steps=accumulate, max_grad_norm=clip, nonfinite="allow"
        )
        self._norm = 0.0
        self.accumulator.on("update", self._updated)
        self.step = 0
        self.epoch = 0
        self.history: list[dict[str, float]] = []
        self.last_gradients: dict[str, Any] = {}
        self.stopped: str | None = None
        self._sums = {"loss": 0.0, "weight": 0.0, "seconds": 0.0}

    def _named_parameters(self) -> dict[str, Tensor]:
        named = {k: p for k, p in self.model.named_parameters() if p.requires_grad}
        if isinstance(self.loss, Module):
            named.update({f"loss.{k}": p for k, p in self.loss.named_parameters() if p.requires_grad})
        return named

    def _updated(self, event: Any) -> None:
        self._norm = math.nan if event.norm is None else float(event.norm)

    # Training --------------------------------------------------------------------------------

    def fit(
        self, loader: Any, epochs: int = 1, validate: Any = None, resume: bool = False
    ) -> list[dict[str, float]]:
        """Train until ``epochs`` epochs are done; return one dictionary of numbers per epoch."""
        if epochs < 0:
            raise ArgumentError(f"epochs must not be negative, but is {epochs}.")
        self.stopped = None
        if resume:
            self._resume(loader)
        total = len(loader) if hasattr(loader, "__len__") else None
        bar = Progress(total, self.progress)
        try:
            with self._stopping_on_interrupt():
                while self.epoch < epochs and self.stopped is None:
                    bar.epoch(self.epoch, epochs, getattr(loader, "position", 0))
                    self._epoch(loader, validate, bar)
        finally:
            bar.close()
            for callback in self.callbacks:
                callback.on_end(self)
        return self.history

    def stop(self, reason: str = "stopped") -> None:
        """End the training after the present step."""
        self.stopped = reason

    def _epoch(self, loader: Any, validate: Any, bar: Progress) -> None:
        self.model.train()
        for batch in loader:
            logs = self.train_step(batch)
            bar.step(logs)
            for callback in self.callbacks:
                callback.on_step(self, logs)
            every = self.checkpoint_every
            if self.stopped or (every and self.step % every == 0):
                self._checkpoint(loader)
            if self.stopped:
                return
        sums = self._sums
        logs = {"loss": sums["loss"] / sums["weight"] if sums["weight"] else math.nan}
        logs["seconds"] = sums["seconds"]
        self._sums = dict.fromkeys(sums, 0.0)
        if validate is not None:
            logs.update({f"val_{k}": v for k, v in self.evaluate(validate).items()})
        self.history.append(logs)
        self.epoch += 1
        for callback in self.callbacks:
            callback.on_epoch(self, logs)
        if self.checkpoints is not None and (self.stopped or not self.checkpoint_every):
            self._checkpoint(loader, logs.get("val_loss", logs["loss"]))

    def train_step(self, batch: Any) -> dict[str, float]:
        """Make one update from one batch; return its loss, learning rate and gradient norm."""
        start = time.perf_counter()
        if self.schedule is not None:
            self.optimizer.lr = self.schedule(self.step)
        if isinstance(self.loss, ComposedLoss):
            self.loss.step = self.step
        try:
            total, weight = self._accumulated(batch)
        except BaseException:
            self.accumulator.drop()  # no piece of this batch in the next one's gradients
            raise
        if not self.accumulator.should_update():
            self.accumulator.flush()
        if any(isinstance(c, GradientFlow) for c in self.callbacks):
            self.last_gradients = self.accumulator.gradients()
        self._norm = math.nan
        self.accumulator.apply(self.optimizer)
        self.step += 1
        for name, value in (("loss", total), ("weight", weight), ("seconds", time.perf_counter() - start)):
            self._sums[name] += value
        return {"loss": total / weight if weight else math.nan, "lr": self._rate(), "grad_norm": self._norm}

    def _accumulated(self, batch: Any) -> tuple[float, float]:
        """Add the gradients of all pieces of a batch; return their weighted loss, and the weight."""
        total = weight = 0.0
        for piece in self._pieces(batch):
            w = self._weight(piece)
            with self.accumulator.micro_batch(weight=w):
                loss = self._loss(piece)
                loss.backward()
            total, weight = total + float(loss.detach()) * w, weight + w
        return total, weight

    def _rate(self) -> float:
        return float(getattr(self.optimizer, "lr", math.nan))

    def _pieces(self, batch: Any) -> Iterable[Any]:
        if self.pieces == 1:
            return [batch]
        return self.accumulator.split(batch, -(-_count(batch) // self.pieces))

    def _weight(self, batch: Any) -> float:
        return float(_count(batch) if self.weight is None else self.weight(batch))

    def _loss(self, batch: Any) -> Tensor:
        if self.compute is not None:
            return self.compute(self.model, batch)
        prediction, target = self._predicted(batch)
        assert self.loss is not None
        if isinstance(self.loss, ComposedLoss):
            return self.loss(prediction, target, self.model)
        return self.loss(prediction, target)

    def _predicted(self, batch: Any) -> tuple[Any, Any]:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise InputError("Trainer: a batch is (inputs, targets); for others give compute(model, batch).")
        return self.model(asarray(batch[0])), asarray(batch[1])

    # Evaluating ------------------------------------------------------------------------------

    def evaluate(self, loader: Iterable[Any]) -> dict[str, float]:
        """Return the loss and the metrics over a loader, weighted by batch; nothing is trained."""
        sums: dict[str, float] = {}
        weight = 0.0
        with self._evaluating():
            for batch in loader:
                w = self._weight(batch)
                found = {"loss": self._loss(batch)}
                if self.metrics:
                    prediction, target = self._predicted(batch)
                    found.update({name: f(prediction, target) for name, f in self.metrics.items()})
                for name, value in found.items():
                    sums[name] = sums.get(name, 0.0) + float(value) * w
                weight += w
        return {name: total / weight for name, total in sums.items()} if weight else {}

    def predict(self, inputs: Any, batch_size: int = 256) -> np.ndarray[Any, Any]:
        """Return the model's outputs for an array of inputs, batch by batch."""
        array = np.asarray(inputs)
        with self._evaluating():
            outputs = [
                self.model(asarray(array[i : i + batch_size])).numpy()
                for i in range(0, max(len(array), 1), batch_size)  # no inputs are one empty batch
            ]
        return np.concatenate(outputs)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        modes = [(module, module.training) for _, module in self.model.named_modules()]
        self.model.eval()
        try:
            with no_grad():
                yield
        finally:
            for module, training in modes:  # each its own: some may be frozen
                module.training = training

    # Stopping and going on -------------------------------------------------------------------

    @contextmanager
    def _stopping_on_interrupt(self) -> Iterator[None]:
        """Turn the first Ctrl-C into a stop after the present step; the second interrupts at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)

        def handle(number: int, frame: Any) -> None:
            if self.stopped is not None:
                raise KeyboardInterrupt
            self.stop("interrupted")

        signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _checkpoint(self, loader: Any, score: float | None = None) -> Path | None:
        if self.checkpoints is None:
            return None
        if score is not None and not math.isfinite(score):
            score = None
        return self.checkpoints.write(self.step, self.model.state_dict(), self._state(loader), score)

    def _state(self, loader: Any) -> dict[str, Any]:
        return {
            "step": self.step,
            "epoch": self.epoch,
            "history": self.history,
            "sums": self._sums,
            "optimizer": self.optimizer.state_dict(),
            "accumulator": self.accumulator.state_dict(),
            "loss": self.loss.state_dict() if isinstance(self.loss, Module) else {},
            "schedule": _state_of(self.schedule),
            "loader": _state_of(loader),
            "callbacks": [c.state_dict() for c in self.callbacks],
            "generators": {path: rng.state for path, rng in self._generators()},
        }

    def _generators(self) -> Iterator[tuple[str, Generator]]:
        for path, module in self.model.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, Generator):
                    yield f"{path}.{name}", value

    def _resume(self, loader: Any) -> None:
        """Take over the newest checkpoint, if there is one."""
        if self.checkpoints is None:
            raise ArgumentError("fit(resume=True) needs a directory: Trainer(…, directory=path).")
        path = self.checkpoints.latest()
        if path is None:
            return
        model, state, _ = self.checkpoints.read(path)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(state["optimizer"])
        self.accumulator.load_state_dict(state["accumulator"])
        if isinstance(self.loss, Module):
            self.loss.load_state_dict(state["loss"])
        things: list[tuple[Any, Any]] = [(self.schedule, state["schedule"]), (loader, state["loader"])]
        for thing, saved in things:
            if saved and hasattr(thing, "load_state_dict"):
                thing.load_state_dict(saved)
        for callback, saved in zip(self.callbacks, state["callbacks"], strict=True):
            callback.load_state_dict(saved)
        for name, rng in self._generators():
            rng.state = state["generators"][name]
        self.step, self.epoch = int(state["step"]), int(state["epoch"])
        self.history, self._sums = [dict(h) for h in state["history"]], dict(state["sums"])


def _state_of(thing: Any) -> Any:
    return thing.state_dict() if hasattr(thing, "state_dict") else {}


def _count(batch: Any) -> int:
    """Return the number of examples of a batch: the length of its first array."""
    while isinstance(batch, (tuple, list)) and batch:
        batch = batch[0]
    if isinstance(batch, Mapping):
        batch = next(iter(batch.values()))
    return len(batch)
