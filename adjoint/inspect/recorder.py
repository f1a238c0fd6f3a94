"""``Recorder``: collect the data of a report during a training run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint.core.node import Node
from adjoint.core.shapes import whole_number
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError
from adjoint.inspect.causes import Finding, findings_of
from adjoint.inspect.graph import Graph, graph_of
from adjoint.inspect.names import Names
from adjoint.inspect.profiling import cost_of_observing
from adjoint.inspect.recorded import epochs_of, load_state, state_of
from adjoint.inspect.watch import Event, Memory, Watch, norm_of
from adjoint.nn.module import Module
from adjoint.optim import Optimizer
from adjoint.train.callbacks import Callback
from adjoint.words import a

if TYPE_CHECKING:
    from adjoint.train.trainer import Trainer

__all__ = ["Captured", "Recorder", "span"]

QUANTILES = (5, 25, 50, 75, 95)
SAMPLE = 4_000  # about this many elements are used for quantiles
MOMENTS = 40  # the largest number of steps for which quantiles are stored
TIMED = 6  # the number of steps that are timed after a captured step


class Captured:
    """The data of one captured step: events, memory, graph and findings."""

    def __init__(self, watch: Watch, step: int, names: Names, optimizers: Sequence[Optimizer]) -> None:
        self.step = step
        self.timed = False  # whether the times are those of a step that was only timed
        self.memory: Memory | None = None
        self.take_times(watch)
        roots = [r for r in watch.roots if type(r) is Node]
        self.findings: list[Finding] = findings_of(watch, watch.roots, names, optimizers)
        labels = {k: name for k, (name, _) in names.wanted.items()}
        self.graph: Graph = graph_of(roots[:1], labels, watch)

    def take_times(self, watch: Watch) -> None:
        """Store the timed events of ``watch`` and its measurements of memory.

        The measurements of memory are left out if the watch kept all tensors alive, which makes them too
        high.
        """
        self.events = watch.events
        self.paths = [watch.module_path(s.index) for s in watch.scopes]
        self.kinds = [type(s.module).__name__ for s in watch.scopes]
        self.parents = [s.parent for s in watch.scopes]
        self.memory = None if watch.values else watch.memory
        self.timed = not watch.values

    def keep_times(self, other: Captured) -> None:
        """Store the times of an earlier step, until a step after this one is timed."""
        self.events, self.memory = other.events, other.memory
        self.paths, self.kinds, self.parents = other.paths, other.kinds, other.parents

    @property
    def compiled(self) -> bool:
        """Whether compiled functions ran; the arrays inside them are not known."""
        return any(e.phase == "compiled" for e in self.events)


class Recorder(Callback):
    """Record a training run for ``report``.

    As a callback of a ``Trainer`` it records every step, and checkpoints contain what it recorded.  In your
    own loop, call ``record`` between ``backward()`` and the update, and run one step inside
    ``with recorder.capture():``.  Long runs keep only some of the steps, so that memory is bounded.

    Parameters
    ----------
    every : int
        The interval in steps at which gradients and weights are measured.
    limit : int
        The largest number of recorded steps.  When it is exceeded, every second step is deleted.

    Examples
    --------
    >>> import adjoint as ad, numpy as np
    >>> from adjoint import nn, optim
    >>> model, recorder = nn.Linear(2, 1, rng=0), ad.inspect.Recorder()
    >>> optimizer = optim.SGD(model.parameters(), lr=0.1)
    >>> for _ in range(3):
    ...     optimizer.zero_grad()
    ...     loss = (model(ad.ones((4, 2), dtype=np.float32)) ** 2).mean()
    ...     loss.backward()
    ...     recorder.record(loss, model, optimizer)
    ...     optimizer.step()
    >>> recorder.steps
    [1, 2, 3]
    """

    def __init__(self, every: int = 1, limit: int = 1000) -> None:
        if whole_number("Recorder", "every", every) < 1 or whole_number("Recorder", "limit", limit) < 8:
            raise ArgumentError(
                f"Recorder: every must be at least 1 and limit at least 8, but got {every=}, {limit=}."
            )
        self.every = every
        self.limit = limit
        self.steps: list[int] = []
        self.numbers: dict[str, list[float | None]] = {}
        self.names: list[str] = []
        self.shapes: list[tuple[int, ...]] = []
        self.gradients: list[list[float]] = []  # norms by step and parameter
        self.ratios: list[list[float | None]] = []
        # step; quantiles of the weights and of the gradients of each parameter; those of all parameters
        self.spread: list[tuple[int, list[Any], list[Any], Any, Any]] = []
        self.epochs: list[tuple[int, dict[str, float]]] = []
        self.windows: list[tuple[int, int, float, float | None, bool, bool]] = []
        self.clip: float | None = None
        self.captured: Captured | None = None
        self.parameters = 0
        self._before: list[Any] = []
        self._moments = 1
        self._watch: Watch | None = None
        self._next = 2  # the number of the next step to capture
        self._timed = 0  # the number of following steps to time
        self._update: float | None = None
        self._skipped = 0
        self._handle: Any = None

    # In your own loop --------------------------------------------------------------------------

    def record(
        self,
        loss: Any,
        parameters: Any,
        optimizer: Any = None,
        *,
        step: int | None = None,
        clip: float | None = None,
        **numbers: float,
    ) -> None:
        """Record a step.  Call it after ``backward()`` and before the update.

        Parameters
        ----------
        loss : Tensor or float
            The loss.
        parameters : Module, mapping or sequence of Tensor
            The parameters, with their gradients.
        optimizer : Optimizer, optional
            The optimiser, whose learning rate is recorded.
        step : int, optional
            The number of the step.  The default is one more than the last.
        clip : float, optional
            The limit of the gradient norm, which is drawn as a line.
        **numbers : float
            Further metrics of the step, by name.
        """
        named = _named(parameters)
        at = (self.steps[-1] if self.steps else 0) + 1 if step is None else step
        self.clip = clip if clip is not None else self.clip
        self._measure_update(named)
        norms = [norm_of(p._extra.grad) if p._extra is not None else None for p in named.values()]
        total = math.sqrt(sum(n * n for n in norms if n is not None))
        value = float(loss.detach()) if isinstance(loss, Tensor) else float(loss)
        logs = {"loss": value, **numbers}
        logs.setdefault("grad_norm", total)
        if optimizer is not None:
            logs.setdefault("lr", float(getattr(optimizer, "lr", math.nan)))
        self._measure(at, named, logs, 1.0)

    @contextmanager
    def capture(self, parameters: Any = None, optimizer: Any = None) -> Iterator[None]:
        """Return a context manager that records one training step: graph, times and findings.

        Parameters
        ----------
        parameters : Module, mapping or sequence of Tensor, optional
            The parameters, for their names.
        optimizer : Optimizer, optional
            The optimiser that should update the parameters.

        Yields
        ------
        None
            Nothing.
        """
        watch = Watch(values=True)
        with watch:
            yield
        names = Names(_named(parameters) if parameters is not None else None, {})
        called = {id(s.module): s.module for s in watch.scopes if s.parent < 0}
        names.add_modules(called.values(), {})
        self._take(watch, names, [] if optimizer is None else [optimizer])

    def _take(self, watch: Watch, names: Names, optimizers: Sequence[Any]) -> None:
        step, before = self.steps[-1] if self.steps else 0, self.captured
        self.captured = Captured(watch, step, names, [o for o in optimizers if isinstance(o, Optimizer)])
        if before is not None and before.memory is not None:
            self.captured.keep_times(before)

    # As a callback -----------------------------------------------------------------------------

    def before_update(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Measure the gradients, and copy the weights, so that the update can be measured after the step."""
        began = perf_counter()
        self._note_gradients(trainer, logs)
        if self._watch is not None:
            self._watch.overhead += perf_counter() - began
            self._update = self._watch._now()

    def _note_gradients(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        if not self.steps and not self.epochs:  # the run began without this recorder
            self.epochs = epochs_of(trainer.history, trainer.step - trainer.epoch_steps)
        self.clip = trainer.clip if math.isfinite(trainer.clip) else None
        step, norm = trainer.step + 1, logs.get("grad_norm", math.nan)
        clipped = self.clip is not None and norm > self.clip
        if trainer.pieces > 1:
            self._note_window(trainer, step, norm, clipped)
        if step % self.every:
            return
        scale = norm / self.clip if clipped and self.clip else 1.0
        named = trainer.named_parameters()
        self._measure(step, named, logs, scale)

    def _note_window(self, trainer: Trainer, step: int, norm: float, clipped: bool) -> None:
        if self._handle is None:
            self._handle = trainer.accumulator.on("skip", self._note_skip)
        stats = trainer.accumulator.stats()
        entry = (step, stats.window_micro_batches, stats.window_weight, norm, clipped, self._skipped > 0)
        self.windows.append(entry)
        self._skipped = 0
        if len(self.windows) > 4 * self.limit:
            del self.windows[::2]

    def _note_skip(self, event: Any) -> None:
        self._skipped += 1

    def on_step(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Measure the update of the parameters, and start to watch the next step if it is to be captured."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.__exit__()
        if self._before:
            self._measure_update(trainer.named_parameters())
        if watch is not None:
            self._finish(trainer, watch)
        self._arm(trainer)

    def _arm(self, trainer: Trainer) -> None:
        """Start to watch the next step if it is to be captured or timed.

        A captured step keeps its tensors, so its times are not used.  The steps after it are only timed.
        """
        if self._timed:
            self._timed -= 1
            self._watch = Watch(cost=cost_of_observing())
        elif trainer.step + 1 >= self._next:
            self._watch = Watch(values=True)
        if self._watch is not None:
            self._watch.__enter__()

    def _finish(self, trainer: Trainer, watch: Watch) -> None:
        """Store the data of a step that was captured or timed; the update is added as its last event."""
        if self._update is not None:
            event = Event("update", "update", self._update, -1, ("", 0, ""))
            event.stop = watch.ended
            watch.events.append(event)
            self._update = None
        if not watch.values and self.captured is not None:
            if not self.captured.timed or span(watch.events) < span(self.captured.events):
                self.captured.take_times(watch)  # of the fastest step, because slower ones were disturbed
            return
        self._next = 2 * trainer.step
        self._timed = TIMED
        names = Names(trainer.named_parameters(frozen=True), {})
        names.explicit = False
        if trainer.compiled is not None:
            watch.events = []  # of the Python function, which the compiled one replaces
        self._take(watch, names, [trainer.optimizer])

    def _cancel(self) -> None:
        if self._watch is not None:
            self._watch.__exit__()
            self._watch = None

    def on_epoch(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Record the metrics of an epoch.  Discard a running watch, because it includes the validation."""
        if self._watch is not None and not self._watch.values:
            self._timed += 1
        self._cancel()
        self.epochs.append((trainer.step, dict(logs)))
        self._arm(trainer)

    def on_end(self, trainer: Trainer) -> None:
        """Stop watching, and remove the hook of the accumulator."""
        self._cancel()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def state_dict(self) -> dict[str, Any]:
        """Return what was recorded, so that the report of a resumed run shows the whole run."""
        return state_of(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state_dict``."""
        load_state(self, state)

    # Measuring ---------------------------------------------------------------------------------

    def _measure(
        self, step: int, named: Mapping[str, Tensor], logs: Mapping[str, float], scale: float
    ) -> None:
        if not self.names:
            self.names = list(named)
            self.shapes = [p.shape for p in named.values()]
            self.parameters = sum(p.size for p in named.values())
        chosen = [named.get(name) for name in self.names]
        self.steps.append(step)
        for name, value in logs.items():
            self.numbers.setdefault(name, [None] * (len(self.steps) - 1)).append(float(value))
        for values in self.numbers.values():
            values += [None] * (len(self.steps) - len(values))
        grads = [None if p is None or p._extra is None else p._extra.grad for p in chosen]
        self.gradients.append([scale * (norm_of(g) or 0.0) for g in grads])
        self.ratios.append([None] * len(self.names))
        self._before = [None if p is None else np.array(p._data) for p in chosen]
        if len(self.steps) % self._moments == 0:
            weights = [None if p is None else _quantiles([p._data]) for p in chosen]
            slopes = [None if g is None else _quantiles([g], scale) for g in grads]
            every = _quantiles([p for p in chosen if p is not None])
            self.spread.append((step, weights, slopes, every, _quantiles(grads, scale)))
            if len(self.spread) > MOMENTS:
                del self.spread[::2]
                self._moments *= 2
        if len(self.steps) > self.limit:
            self._thin()

    def _measure_update(self, named: Mapping[str, Tensor]) -> None:
        """Record the norm of the last update of each parameter, relative to the norm of the parameter.

        ``named`` has the parameters by name.
        """
        if not self._before or not self.ratios:
            return
        found: list[float | None] = []
        for name, before in zip(self.names, self._before, strict=True):
            p = named.get(name)
            if p is None or before is None or p.shape != before.shape:
                found.append(None)
                continue
            size, change = norm_of(before) or 0.0, norm_of(np.asarray(p._data - before)) or 0.0
            found.append(change / size if size else None)
        self.ratios[-1] = found
        self._before = []

    def _thin(self) -> None:
        """Delete every second recorded step, and double the interval between recorded steps."""
        self.every *= 2
        keep = [i for i, step in enumerate(self.steps) if step % self.every == 0] or [len(self.steps) - 1]
        self.steps = [self.steps[i] for i in keep]
        self.gradients = [self.gradients[i] for i in keep]
        self.ratios = [self.ratios[i] for i in keep]
        self.numbers = {name: [values[i] for i in keep] for name, values in self.numbers.items()}


def span(events: Sequence[Event]) -> float:
    """Return the seconds from the start of the first event of a step to the end of the last."""
    return max(e.stop for e in events) - min(e.start for e in events) if events else 0.0


def _named(parameters: Any) -> dict[str, Tensor]:
    """Return the parameters of a module, a mapping or a sequence, by name or by index as a string."""
    if isinstance(parameters, Module):
        return {k: p for k, p in parameters.named_parameters() if p.requires_grad}
    if isinstance(parameters, Mapping):
        return dict(parameters)
    if isinstance(parameters, Sequence):
        return {str(i): p for i, p in enumerate(parameters)}
    raise InputError(
        "Recorder: parameters must be a module, or a mapping or sequence of tensors, not "
        f"{a(type(parameters).__name__)}."
    )


def _quantiles(values: Sequence[Any], scale: float = 1.0) -> list[float] | None:
    """Return the ``QUANTILES`` of the absolute values in all arrays together, multiplied by ``scale``.

    Large arrays are sampled.  Return None if no value is finite.
    """
    arrays = []
    for value in values:
        data = value._data if isinstance(value, Tensor) else value
        data = getattr(data, "values", data)
        if isinstance(data, np.ndarray):
            arrays.append(data.reshape(-1))
    stride = max(1, sum(a.size for a in arrays) // SAMPLE)
    flat = np.concatenate([np.abs(a[::stride]).astype(np.float64) for a in arrays]) if arrays else np.zeros(0)
    flat = flat[np.isfinite(flat)]
    if not flat.size:
        return None
    ranks = [round((flat.size - 1) * q / 100) for q in QUANTILES]  # ten times as fast as np.percentile
    flat.partition(ranks)
    return [scale * float(flat[k]) for k in ranks]
