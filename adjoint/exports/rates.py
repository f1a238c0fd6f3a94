"""Schedules of learning rates as tables, which the library reads by the number of finished steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from adjoint.errors import ArgumentError
from adjoint.exports.collect import Collected
from adjoint.exports.restore import Counter, Hyper
from adjoint.optim import Optimizer

__all__ = ["Rates"]

_MOST = 10_000_000


class Rates:
    """The rates of each group of optimisers for the steps from 0 on."""

    def __init__(self, schedules: Mapping[Any, Callable[[int], float]] | None, steps: int) -> None:
        if not isinstance(steps, int) or isinstance(steps, bool) or not 0 < steps <= _MOST:
            raise ArgumentError(f"export: steps must be an integer from 1 to {_MOST:,}, but is {steps!r}.")
        self.tables: dict[int, tuple[Any, list[float]]] = {}  # a group and its rates, by the id of the group
        self.optimizers: list[Any] = []
        for optimizer, schedule in (schedules or {}).items():
            if not isinstance(optimizer, Optimizer) or not callable(schedule):
                raise ArgumentError(
                    "export: schedules must map optimisers to functions of the step, such as "
                    f"{{optimizer: schedules.cosine(0.1, total=100)}}, but has {optimizer!r}: {schedule!r}."
                )
            self.optimizers.append(optimizer)
            with _kept(optimizer):
                for step in range(steps):
                    optimizer.lr = schedule(step)
                    for g in optimizer.groups:
                        self.tables.setdefault(id(g), (g, []))[1].append(float(g.hyper["lr"]))

    @contextmanager
    def nonzero(self) -> Iterator[None]:
        """Set rates that are not 0, because a rate of 0 is a constant of a traced program."""
        before = [(g, g.hyper["lr"]) for g, _ in self.tables.values()]
        try:
            for g, rates in self.tables.values():
                g.hyper["lr"] = next((r for r in rates if r), g.hyper["lr"])
            yield
        finally:
            for g, rate in before:
                g.hyper["lr"] = rate

    def enter(self, made: Collected) -> None:
        """Add the tables to a collected program."""
        for k, part in enumerate(made.parts):
            hyper = getattr(part.read, "__self__", None)
            if not isinstance(hyper, Hyper) or hyper.path != ("lr",) or id(hyper.group) not in self.tables:
                continue
            table = self.tables[id(hyper.group)][1]
            part.value = hyper.read()
            optimizer = next(o for o in self.optimizers if any(g is hyper.group for g in o.groups))
            for i, other in enumerate(made.parts):
                counter = getattr(other.read, "__self__", None)
                if isinstance(counter, Counter) and counter.optimizer is optimizer and counter.moves:
                    made.rates[k] = i, optimizer.step_count - int(counter.read()), _short(table)
                    break


def _short(table: list[float]) -> list[float]:
    """Return a table without equal rates at its end."""
    end = len(table)
    while end > 1 and table[end - 1] == table[end - 2]:
        end -= 1
    return table[:end]


@contextmanager
def _kept(optimizer: Any) -> Iterator[None]:
    """Restore the rates of an optimiser afterwards."""
    before = [(g, dict(g.hyper), dict(g.checked), g.ratio) for g in optimizer.groups]
    paused = optimizer._paused
    try:
        yield
    finally:
        for g, hyper, checked, ratio in before:
            g.hyper.update(hyper)
            g.checked, g.ratio = checked, ratio
        optimizer._paused = paused
