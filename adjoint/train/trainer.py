"""``Trainer``: the training loop with accumulation, clipping, logging, callbacks and checkpoints."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint.accumulate.accumulator import GradientAccumulator
from adjoint.config import grad_mode, no_grad
from adjoint.context import within
from adjoint.core.convert import asarray
from adjoint.core.shapes import whole_number
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError
from adjoint.grads.norm import check_max_norm
from adjoint.interop.notebook import module_html, optimizer_html
from adjoint.nn.module import Module
from adjoint.optim import Optimizer
from adjoint.train import state as states
from adjoint.train.callbacks import BestCheckpoint, Callback
from adjoint.train.checkpoint import Checkpoints
from adjoint.train.checks import (
    check_arguments,
    check_batches,
    check_monitors,
    check_names,
    check_parameters,
    check_ranks,
    checked_metrics,
    input_array,
    output_array,
    warn_not_finite,
)
from adjoint.train.compiled import CompiledLoss
from adjoint.train.compose import ComposedLoss, TermNorms
from adjoint.train.data import DataLoader
from adjoint.train.history import History
from adjoint.train.progress import Progress, Show, length_of
from adjoint.train.ranks import RankLoop, size_and_rank
from adjoint.train.signals import stopping_on_interrupt
from adjoint.train.snapshot import undone_on_error
from adjoint.train.steps import made_step
from adjoint.train.weighing import Averages, loss_of, unit_of
from adjoint.words import count

if TYPE_CHECKING:
    from adjoint.distributed.group import Group

__all__ = ["Trainer"]

Loss = Callable[..., Tensor]

INTERRUPTED = "interrupted"
NO_BATCHES = (
    "Trainer: there are no batches to evaluate: the loader is empty, or is an iterator that was used before."
)


class Trainer:
    """Train a model on batches of (inputs, targets) with a loss and an optimiser.

    Ctrl-C stops after the current step, and writes a checkpoint.

    Parameters
    ----------
    model : Module
        The model.
    loss : callable, optional
        ``loss(prediction, target)``.  The terms of a composed loss are logged by name.
    optimizer : Optimizer
        The optimiser of the model's parameters.
    schedule : callable, optional
        A function of the step that returns the learning rate.
    accumulate : int, optional
        The number of micro-batches into which each batch is split; their gradients sum to that of the batch.
        The default is 1, or the number of ranks.
    clip : float, optional
        The largest global norm of the gradients; larger gradients are scaled down.
    callbacks : Callback or sequence of Callback
        The callbacks.
    metrics : mapping of str to callable, optional
        Functions of (prediction, target) that are logged in training and validation.
    weight : callable, optional
        A function that returns the weight of a batch, the divisor of its mean loss.  The default is the sum
        of the lengths for padded targets (the last part of the batch), else the number of examples, without
        targets that a classification loss ignores.
    unit : str, optional
        The name of the unit of weights, such as "tokens".
    compute : callable, optional
        ``compute(model, batch)`` replaces ``loss(model(inputs), targets)``.  It returns the loss, or the loss
        and a dictionary of metrics to log.
    term_norms : int, optional
        The interval, in steps from the start of an epoch, at which the gradient norms of the terms of a
        composed loss are logged as ``grad_norm_<term>``.  Each norm costs a backward.  None: never.
    directory : path, optional
        The directory for checkpoints, which are written after each epoch.  A run that ``fit(resume=True)``
        continues has the same results, to the last bit, as a run that was not stopped.
    checkpoint_every : int, optional
        The number of steps between additional checkpoints.
    keep : int
        The number of newest checkpoints to keep.
    progress : bool or "auto"
        True shows a progress bar, False nothing.  "auto" shows the bar on a terminal and in a notebook, and
        prints a line for each epoch to other output.
    group : Group, optional
        The ranks that share each batch, from ``distributed.world()``.  All ranks must make the same calls.
        Rank 0 shows the bar, and writes logs and checkpoints.
    compile : bool
        Whether to compile loss and backward, see ``ad.compile``.  Only batches of the first size are native.

    Raises
    ------
    InputError
        If arguments have the wrong type, or the optimiser does not have the model's parameters.

    Examples
    --------
    >>> import adjoint as ad, numpy as np
    >>> from adjoint import nn, optim, train
    >>> x = np.linspace(-1, 1, 32, dtype=np.float32)[:, None]
    >>> model = nn.Linear(1, 1, rng=0)
    >>> trainer = train.Trainer(model, nn.functional.mse_loss, optim.SGD(model.parameters(), lr=0.1))
    >>> history = trainer.fit(train.DataLoader((x, 2 * x), batch_size=8), epochs=20)
    >>> history[-1]["loss"] < history[0]["loss"]
    True
    """

    def __init__(
        self,
        model: Module,
        loss: Loss | None = None,
        optimizer: Any = None,
        *,
        schedule: Callable[[int], float] | None = None,
        accumulate: int | None = None,
        clip: float | None = None,
        callbacks: Callback | Sequence[Callback] | None = (),
        metrics: Mapping[str, Callable[[Any, Any], Any]] | None = None,
        weight: Callable[[Any], float] | None = None,
        unit: str | None = None,
        compute: Callable[[Any, Any], Any] | None = None,
        term_norms: int | None = 50,
        directory: str | os.PathLike[str] | None = None,
        checkpoint_every: int | None = None,
        keep: int = 3,
        progress: Show = "auto",
        group: Group | None = None,
        compile: bool = False,
    ) -> None:
        self.model, self.loss, self.optimizer, self.schedule = model, loss, optimizer, schedule
        self.callbacks = (
            [] if callbacks is None else list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
        )
        self.metrics = checked_metrics(metrics)
        self.weight, self.unit, self.compute = weight, unit, compute
        self.checkpoints = None if directory is None else Checkpoints(directory, keep)
        self.checkpoint_every, self.term_norms = checkpoint_every, term_norms
        size, rank = (1, 0) if group is None else size_and_rank(group)
        self.progress: Show = False if rank else progress
        self.pieces = size if accumulate is None else accumulate
        check_arguments(self)
        check_ranks(self.pieces, size)
        check_names(self)
        check_parameters(self)
        self.trained_first = sorted(self.named_parameters())  # not frozen at the start
        self.options_first = states.options_of(optimizer)
        self.clip = math.inf if clip is None else check_max_norm(clip, "clip")  # inf: compute the norm only
        named = self.named_parameters(frozen=True)
        known = set(map(id, optimizer.params if isinstance(optimizer, Optimizer) else named.values()))
        self._left_alone = [p for p in named.values() if id(p) not in known]  # not updated by the optimiser
        self.accumulator = GradientAccumulator(
            {name: p for name, p in named.items() if id(p) in known},
            accumulation_steps=self.pieces, max_grad_norm=self.clip, nonfinite="allow", group=group,
        )  # fmt: skip
        self._ranks = None if group is None else RankLoop(self, group)
        self.compiled = CompiledLoss(self) if compile else None
        self.step = self.epoch = 0
        self.history = History()
        self.stopped: str | None = None
        self.averages = Averages()  # of the current epoch
        self.epoch_seconds, self.epoch_steps = 0.0, 0
        self.trained = False  # whether all steps of the current epoch are done, but not its validation
        self._last_weight = 0.0
        self._warned = False
        self._compared = False  # whether the loss of a batch was compared with those of its parts
        self._loader: Any = None
        self._began: tuple[Any, int] = ({}, 0)  # the loader's state and the step at the start of the epoch

    def __repr__(self) -> str:
        done = f"{count(self.epoch, 'epoch')}, {count(self.step, 'step')}"
        return f"Trainer({type(self.model).__name__}, {self.optimizer!r}; {done})"

    def _repr_html_(self) -> str:
        parts = (
            f"<div><b>Trainer</b> after {count(self.epoch, 'epoch')}, {count(self.step, 'step')}</div>",
            module_html(self.model),
        )
        shown = optimizer_html(self.optimizer) if isinstance(self.optimizer, Optimizer) else ""
        return "".join((*parts, shown, self.history._repr_html_()))

    def named_parameters(self, *, frozen: bool = False) -> dict[str, Tensor]:
        """Return the parameters of the model, and those of the loss as ``loss.<name>``.

        Parameters
        ----------
        frozen : bool
            Whether parameters that do not require grad are included.

        Returns
        -------
        dict of str to Tensor
            The parameters by name.
        """
        named = dict(self.model.named_parameters())
        if isinstance(self.loss, Module):
            named.update({f"loss.{k}": p for k, p in self.loss.named_parameters()})
        return named if frozen else {k: p for k, p in named.items() if p.requires_grad}

    def _term_names(self) -> list[str]:
        """Return the names that a composed loss logs: its terms, and the gradient norms of its terms."""
        terms = list(self.loss.terms) if isinstance(self.loss, ComposedLoss) else []
        return [*terms, *(f"grad_norm_{name}" for name in terms)]

    def _all_checkpoints(self) -> list[Checkpoints]:
        best = [c.checkpoints for c in self.callbacks if isinstance(c, BestCheckpoint)]
        return best if self.checkpoints is None else [self.checkpoints, *best]

    # Training --------------------------------------------------------------------------------

    def fit(self, loader: Any, epochs: int = 1, validate: Any = None, resume: bool = False) -> History:
        """Train until ``epochs`` epochs are finished, including those of earlier calls.

        Parameters
        ----------
        loader : DataLoader or iterable
            The batches.
        epochs : int
            The total number of epochs, including those of a resumed run.
        validate : DataLoader or iterable, optional
            The batches for the validation after each epoch.
        resume : bool
            Whether to continue from the newest checkpoint in ``directory``.

        Returns
        -------
        History
            The metrics of each epoch: a list of dictionaries.

        Raises
        ------
        FileError
            If the directory has checkpoints of a different run and ``resume`` is False.
        """
        check_batches("fit", loader, self.compute is None)
        if whole_number("fit", "epochs", epochs) < 0:
            raise ArgumentError(f"fit: epochs must not be negative, but is {epochs}.")
        if not isinstance(resume, (bool, np.bool_)):
            raise InputError(
                f"fit: resume must be True or False, not {resume!r}.\n  Pass the path of the checkpoints "
                "to the trainer: Trainer(…, directory=path).  fit(resume=True) reads the newest one."
            )
        if validate is not None:
            check_batches("fit(validate=…)", validate, self.compute is None)
        elif all(type(c).__module__ == Callback.__module__ for c in self.callbacks):  # users' may validate
            means = ("loss", *self.metrics, *self._term_names())
            check_monitors((*self.callbacks, self.schedule), [f"val_{name}" for name in means])
        self.stopped = None
        same, self._loader = self._loader is loader, loader
        if not same:
            self._began = {}, 0
        with ExitStack() as ending:  # at the end all are called, the last first, even if some raise
            if self._ranks is not None:
                ending.enter_context(self._ranks.fitting())
            if resume:
                resume = states.resume(self)
            elif self._rank == 0:
                for checkpoints in self._all_checkpoints():
                    checkpoints.refuse_later(self.step)
            for callback in reversed(self.callbacks):
                ending.callback(callback.on_end, self)
            bar = Progress(length_of(loader), epochs, self.progress)
            ending.callback(bar.close)
            ending.enter_context(stopping_on_interrupt(self._stop_on_interrupt, self._ranks is not None))
            # set to itself: an interrupt at the end of a ``no_grad`` block inside would leave the mode off
            within(grad_mode, grad_mode.get(), self._epochs, loader, epochs, validate, bar, same, resume)
            if self.stopped is not None:
                saved = self.stopped == INTERRUPTED and self.checkpoints is not None
                bar.stopped(self.step, self.stopped, saved)
        return self.history

    def _epochs(
        self, loader: Any, epochs: int, validate: Any, bar: Progress, same: bool, resume: bool
    ) -> None:
        if self._ranks is not None:
            self._ranks.agree_to_stop("the start of a training")
        while self.epoch < epochs and self.stopped is None:
            bar.epoch(self.epoch, self.epoch_steps)
            self._epoch(self._batches(loader, same, resume), validate, bar)
            same, resume = True, False

    def stop(self, reason: str = "stopped") -> None:
        """End the training after the current step; with a group, after the next step of all ranks.

        Parameters
        ----------
        reason : str
            The reason, which is shown and stored in ``stopped``.
        """
        if self._ranks is None:
            self.stopped = reason
        else:
            self._ranks.asked = reason

    def _batches(self, loader: Any, same: bool, resumed: bool) -> Iterable[Any]:
        """Return an iterable of the batches of the current epoch that were not used yet.

        ``same`` is True if the last call of ``fit`` used the same loader, ``resumed`` is True if a checkpoint
        was loaded.
        """
        if self.trained:
            return ()
        loaded = resumed and hasattr(loader, "load_state_dict")  # the loader's position was restored
        skip = 0 if loaded else self.epoch_steps
        state, steps = self._began
        if same and not resumed:  # return to the start of the epoch: a batch may have failed
            skip -= steps
            if state:
                loader.load_state_dict(state)
        if isinstance(loader, DataLoader):
            place = loader.next_place()
            if skip:
                loader.load_state_dict({**place, "position": place["position"] + skip})
            self._began = loader.next_place(), self.epoch_steps
            return loader
        self._began = states.state_of(loader), self.epoch_steps - skip
        left = isinstance(loader, Iterator) and not resumed  # an iterator has only the remaining batches
        return loader if left or not skip else itertools.islice(loader, skip, None)

    def place(self) -> Any:
        """Return the state of the data loader after the last completed step."""
        if not isinstance(self._loader, DataLoader):
            return states.state_of(self._loader)
        state, steps = self._began
        if not self.epoch_steps or self.trained or not state:
            return self._loader.next_place()
        return {**state, "position": state["position"] + self.epoch_steps - steps}

    def _epoch(self, batches: Iterable[Any], validate: Any, bar: Progress) -> None:
        if not self.model.training:  # otherwise an inner module in evaluation mode was frozen on purpose
            self.model.train()
        for batch in batches if self._ranks is None else self._ranks.batches(batches):
            logs = self.train_step(batch)
            bar.step(logs, self._last_weight, unit_of(self, batch))
            for callback in self.callbacks:
                callback.on_step(self, logs)
            every = self.checkpoint_every
            if self.stopped or (every and self.step % every == 0):
                self.write_checkpoint()
            if self.stopped:
                return
        if not self.epoch_steps:
            empty = length_of(self._loader) == 0
            raise InputError(
                f"Trainer: epoch {self.epoch + 1} has no batches.\n"
                + (
                    "  The data are empty, or fewer than batch_size with drop_last=True."
                    if empty
                    else "  An iterator can be used for only one epoch.  Use a DataLoader over a sequence."
                )
            )
        self.trained = True
        with undone_on_error(self) as before:
            found = {} if validate is None else self._evaluated(validate, until_stopped=True)
        if found is None:
            before.restore()  # the resumed run validates again
            self.write_checkpoint()
            return
        logs = {**self.averages.means(), "lr": self._rate(), "seconds": self.epoch_seconds}
        logs.update({f"val_{k}": v for k, v in found.items()})
        self.averages, self.epoch_seconds, self.epoch_steps, self._began = Averages(), 0.0, 0, ({}, 0)
        self.trained = False
        self.history.append(logs)
        self.epoch += 1
        bar.result(self.epoch, logs)
        self._end_epoch(logs)

    def _end_epoch(self, logs: dict[str, float]) -> None:
        monitor = "val_loss" if "val_loss" in logs else "loss"
        weights = self.loss.weights.values() if isinstance(self.loss, ComposedLoss) else ()
        schedules = {id(each): each for each in (self.schedule, *weights)}  # report once to each object
        for schedule in schedules.values():
            if hasattr(schedule, "report_from"):  # a Plateau, or a schedule that may contain one
                schedule.report_from(logs, self.step)
        for callback in self.callbacks:
            callback.on_epoch(self, logs)
        if self._ranks is not None:
            self._ranks.agree_to_stop("the end of an epoch")
        for callback in self.callbacks:
            callback.save(self, logs)
        self.write_checkpoint(score=logs[monitor], monitor=monitor)

    def train_step(self, batch: Any) -> dict[str, float]:
        """Make one update from one batch.

        Parameters
        ----------
        batch : object
            The batch, (inputs, targets) unless ``compute`` is given.  With a group, the same on all ranks.

        Returns
        -------
        dict of str to float
            Loss, metrics, terms, learning rate and gradient norm.
        """
        start = time.perf_counter()
        if self.schedule is not None:
            self.optimizer.lr = self.schedule(self.step)
        if isinstance(self.loss, ComposedLoss):
            self.loss.step = self.step
        logs, norms, weight = made_step(self, batch)
        self.step += 1
        self.epoch_steps += 1
        self._last_weight = weight
        self.averages.add(logs, weight)
        self.averages.add(norms, 1.0 if weight else 0.0)
        if weight and not (self._warned or self._rank or math.isfinite(logs["loss"])):
            self._warned = True
            warn_not_finite(logs["loss"], self.step, self.epoch + 1)
        self.epoch_seconds += time.perf_counter() - start
        return {**logs, "lr": self._rate(), **norms}

    def _before_update(self, logs: dict[str, float]) -> None:
        for callback in self.callbacks:
            callback.before_update(self, logs)

    def _term_norms(self) -> TermNorms | None:
        """Return a ``TermNorms`` if this step logs the gradient norms of the loss's terms, else None."""
        every = self.term_norms
        if not every or self.epoch_steps % every or not isinstance(self.loss, ComposedLoss):
            return None
        return TermNorms(self.loss, list(self.named_parameters().values()))

    def _release(self) -> None:
        if isinstance(self.loss, ComposedLoss):
            self.loss.release()

    def _rate(self) -> float:
        return float(getattr(self.optimizer, "lr", math.nan))

    @property
    def _rank(self) -> int:
        return 0 if self._ranks is None else self._ranks.group.rank

    # Evaluating ------------------------------------------------------------------------------

    def evaluate(self, loader: Iterable[Any]) -> dict[str, float]:
        """Return the mean loss and metrics over a loader.  With a group, all ranks must call this.

        Parameters
        ----------
        loader : DataLoader or iterable
            The batches.

        Returns
        -------
        dict of str to float
            The means of loss, metrics and terms, weighted by the weights of the batches.
        """
        check_batches("evaluate", loader, self.compute is None)
        found = self._evaluated(loader)
        assert found is not None
        return found

    def _evaluated(self, loader: Iterable[Any], until_stopped: bool = False) -> dict[str, float] | None:
        """Return the mean of each metric over the batches of a loader, as a dictionary.

        Return None if ``until_stopped`` is True and training was stopped meanwhile.
        """
        averages = Averages()
        enough = False
        if self._ranks is not None:
            found = self._ranks.evaluated(loader, until_stopped)
            if found == {}:
                raise InputError(NO_BATCHES)
            return found
        with self._evaluating():
            for batch in loader.whole() if isinstance(loader, DataLoader) else loader:
                if enough:
                    return None
                loss, numbers, weight = loss_of(self, batch)
                averages.add({"loss": float(loss), **numbers}, weight)
                enough = until_stopped and self.stopped is not None  # no effect after the last batch
        found = averages.means()
        if not found:
            raise InputError(NO_BATCHES)
        return found

    def predict(self, inputs: Any, batch_size: int = 256) -> np.ndarray[Any, Any]:
        """Return the outputs of the model for an array of inputs.

        Parameters
        ----------
        inputs : array_like
            The inputs, one per row.
        batch_size : int
            The number of rows per call of the model.

        Returns
        -------
        ndarray
            The outputs, one per row.
        """
        if whole_number("predict", "batch_size", batch_size) < 1:
            raise ArgumentError(f"predict: batch_size must be at least 1, but is {batch_size!r}.")
        array = input_array(inputs)
        with self._evaluating():
            outputs = [
                output_array(self.model(asarray(array[i : i + batch_size])))
                for i in range(0, max(len(array), 1), batch_size)  # without inputs: one empty batch
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
            for module, training in modes:  # each module, because some may have been in evaluation mode
                module.training = training

    # Stopping and going on -------------------------------------------------------------------

    def _stop_on_interrupt(self) -> None:
        if self.stopped is None:  # a callback may have stopped the training already
            self.stop(INTERRUPTED)

    def write_checkpoint(
        self, to: Checkpoints | None = None, score: float | None = None, monitor: str | None = None
    ) -> Path | None:
        """Write the complete state to a directory of checkpoints.  With a group, all ranks must call this.

        Parameters
        ----------
        to : Checkpoints, optional
            The checkpoints.  The default is those of the trainer.
        score : float, optional
            The value of the metric by which the best checkpoint is chosen.
        monitor : str, optional
            The name of that metric.

        Returns
        -------
        Path or None
            The path of the checkpoint; None if the trainer has no directory.
        """
        checkpoints = self.checkpoints if to is None else to
        if checkpoints is None:
            return None
        if score is not None and not math.isfinite(score):
            score = None
        if self._ranks is None:
            return checkpoints.write(self.step, self.model.state_dict(), states.of(self), score, monitor)
        self._ranks.average_buffers()
        path = None
        if self._rank == 0:
            path = checkpoints.write(self.step, self.model.state_dict(), states.of(self), score, monitor)
        elif getattr(self.optimizer, "shard", None) is not None:
            self.optimizer.state_dict()  # all ranks must send their slices of the state
        return self._ranks.written(path)
