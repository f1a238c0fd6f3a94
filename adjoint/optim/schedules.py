"""Learning-rate schedules: pure functions of the step, so a resumed run needs only the step.

A schedule is called with the number of finished steps and returns the learning rate of the next step.
``Plateau`` is the exception: it depends on a metric.  ``warmup`` and ``sequence`` pass the metric to it.

>>> schedule = warmup(cosine(0.1, total=100), steps=10)
>>> [round(schedule(s), 3) for s in (0, 5, 10, 60, 110)]
[0.0, 0.05, 0.1, 0.05, 0.0]
"""

from __future__ import annotations

import bisect
import itertools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adjoint.core.docstrings import SharedDoc
from adjoint.core.shapes import number, whole_number
from adjoint.errors import ArgumentError, InputError, MissingExtraError
from adjoint.optim.plateau import Plateau

__all__ = [
    "Plateau", "Schedule", "constant", "cosine", "cosine_restarts", "draw", "exponential", "inverse_sqrt",
    "linear", "one_cycle", "polynomial", "sequence", "steps", "warmup",
]  # fmt: skip
__dir__ = sorted(__all__).copy

Schedule = Callable[[int], float]


def _positive(name: str, value: float) -> None:
    if not isinstance(value, numbers.Real) or not value > 0:
        raise ArgumentError(f"{name} must be positive, but is {value!r}.")


def _numbers(name: str, **given: Any) -> list[float]:
    return [number(name, option, value) for option, value in given.items()]


def _power(base: float, exponent: float) -> float:
    try:
        return base**exponent
    except OverflowError:
        return math.inf  # the optimiser raises an error for an infinite rate


def _callable(name: str, schedule: Any) -> None:
    if not callable(schedule):
        constant = isinstance(schedule, numbers.Real)
        raise InputError(
            f"{name}: a schedule must be a function of the step, not {schedule!r}."
            + (f"\n  Use schedules.constant({schedule!r})." if constant else "")
        )


_schedule_doc = SharedDoc("""
    Parameters
    ----------
    rate : float
        The initial rate.
    factor : float
        The factor.
    start : float
        The initial factor.

    Returns
    -------
    callable
        The schedule.
    """)


@_schedule_doc
def constant(rate: float) -> Schedule:
    """Return a constant schedule.

    Parameters
    ----------
    rate : float
        The learning rate.

    >>> constant(0.1)(1000)
    0.1
    """
    rate = number("constant", "rate", rate)
    return lambda step: rate


@_schedule_doc
def steps(rate: float, every: int, factor: float = 0.1) -> Schedule:
    """Multiply the rate by a factor at regular intervals.

    Parameters
    ----------
    every : int
        The number of steps between changes.

    >>> schedule = steps(1.0, every=10, factor=0.5)
    >>> schedule(9), schedule(10), schedule(20)
    (1.0, 0.5, 0.25)
    """
    rate, factor = _numbers("steps", rate=rate, factor=factor)
    _positive("steps: every", every)
    return lambda step: rate * _power(factor, step // every)


@_schedule_doc
def exponential(rate: float, factor: float) -> Schedule:
    """Multiply the rate by a factor after each step.

    >>> exponential(1.0, 0.5)(3)
    0.125
    """
    rate, factor = _numbers("exponential", rate=rate, factor=factor)
    return lambda step: rate * _power(factor, step)


@_schedule_doc
def linear(rate: float, total: int, start: float = 1.0, end: float = 0.0) -> Schedule:
    """Change the rate linearly from ``rate * start`` to ``rate * end``.

    Parameters
    ----------
    rate : float
        The rate.
    total : int
        The number of steps until the end.  The rate is then constant.
    end : float
        The final factor.

    >>> linear(1.0, total=10)(5)
    0.5
    """
    rate, start, end = _numbers("linear", rate=rate, start=start, end=end)
    _positive("linear: total", total)
    return lambda step: rate * (start + (end - start) * min(step / total, 1.0))


@_schedule_doc
def polynomial(rate: float, total: int, power: float = 1.0) -> Schedule:
    """Reduce the rate to zero as ``(1 - step / total) ** power``.

    Parameters
    ----------
    total : int
        The number of steps until zero.
    power : float
        The exponent.

    >>> polynomial(1.0, total=10, power=2.0)(5)
    0.25
    """
    rate, power = _numbers("polynomial", rate=rate, power=power)
    if not power >= 0:
        raise ArgumentError(f"polynomial: power must not be negative, but is {power!r}.")
    _positive("polynomial: total", total)
    return lambda step: rate * (1.0 - min(step / total, 1.0)) ** power


@_schedule_doc
def cosine(rate: float, total: int, minimum: float = 0.0) -> Schedule:
    """Reduce the rate along half a cosine, then keep it constant.

    Parameters
    ----------
    total : int
        The number of steps until the end.
    minimum : float
        The final rate.

    >>> round(cosine(1.0, total=10)(5), 6)
    0.5
    """
    rate, minimum = _numbers("cosine", rate=rate, minimum=minimum)
    _positive("cosine: total", total)
    return lambda step: minimum + (rate - minimum) * (1 + math.cos(math.pi * min(step / total, 1.0))) / 2


@_schedule_doc
def cosine_restarts(rate: float, first: int, multiple: int = 1, minimum: float = 0.0) -> Schedule:
    """Repeat the cosine schedule, with cycles of equal or growing length.

    Parameters
    ----------
    rate : float
        The rate at the start of each cycle.
    first : int
        The number of steps of the first cycle.
    multiple : int
        The factor by which each cycle is longer than the previous one.
    minimum : float
        The rate at the end of each cycle.

    >>> schedule = cosine_restarts(1.0, first=10, multiple=2)
    >>> schedule(0), schedule(10), round(schedule(20), 6)
    (1.0, 1.0, 0.5)
    """
    rate, minimum = _numbers("cosine_restarts", rate=rate, minimum=minimum)
    _positive("cosine_restarts: first", first)
    if whole_number("cosine_restarts", "multiple", multiple) < 1:
        raise ArgumentError(f"cosine_restarts: multiple must be at least 1, but is {multiple!r}.")

    def schedule(step: int) -> float:
        if multiple == 1:
            done, length = step % first, first
        else:
            # cycles take first · (1 + m + m² + …): n of them end at first · (mⁿ - 1) / (m - 1)
            n = int(math.log(step / first * (multiple - 1) + 1, multiple) + 1e-12)
            done = step - first * (multiple**n - 1) // (multiple - 1)
            length = first * multiple**n
        return minimum + (rate - minimum) * (1 + math.cos(math.pi * done / length)) / 2

    return schedule


@_schedule_doc
def inverse_sqrt(rate: float, warm: int) -> Schedule:
    """Increase the rate linearly, then reduce it as one over the square root of the step.

    Parameters
    ----------
    rate : float
        The largest rate.
    warm : int
        The number of steps during which the rate increases.

    >>> schedule = inverse_sqrt(1.0, warm=4)
    >>> schedule(1), schedule(3), schedule(15)
    (0.5, 1.0, 0.5)
    """
    rate = number("inverse_sqrt", "rate", rate)
    _positive("inverse_sqrt: warm", warm)
    return lambda step: rate * min((step + 1) / warm, math.sqrt(warm / (step + 1)))


@_schedule_doc
def one_cycle(
    peak: float,
    total: int,
    rise: float = 0.3,
    start_divisor: float = 25.0,
    end_divisor: float = 1e4,
    shape: str = "cos",
) -> Schedule:
    """Increase the rate to a peak, then reduce it far below the start: Smith's one-cycle policy.

    Parameters
    ----------
    peak : float
        The largest rate.
    total : int
        The number of steps.
    rise : float
        The fraction of the steps before the peak, from 0 to 1.
    start_divisor : float
        The initial rate is ``peak / start_divisor``.
    end_divisor : float
        The final rate is the initial rate divided by this.
    shape : {"cos", "linear"}
        The shape of both parts.

    >>> schedule = one_cycle(1.0, total=100)
    >>> round(schedule(0), 6), schedule(29)
    (0.04, 1.0)
    """
    peak, rise, start_divisor, end_divisor = _numbers(
        "one_cycle", peak=peak, rise=rise, start_divisor=start_divisor, end_divisor=end_divisor
    )
    for name, value in (("total", total), ("start_divisor", start_divisor), ("end_divisor", end_divisor)):
        _positive(f"one_cycle: {name}", value)
    if not 0 <= rise <= 1:
        raise ArgumentError(f"one_cycle: rise must be from 0 to 1, but is {rise!r}.")
    if shape not in ("cos", "linear"):
        raise ArgumentError(f"one_cycle: shape must be 'cos' or 'linear', not {shape!r}.")
    low = peak / start_divisor
    end = low / end_divisor
    turn = float(rise * total) - 1

    def between(a: float, b: float, part: float) -> float:
        if shape == "linear":
            return a + (b - a) * part
        return b + (a - b) / 2.0 * (1 + math.cos(math.pi * part))

    def schedule(step: int) -> float:
        step = min(step, total - 1)
        if step <= turn:
            return between(low, peak, step / turn if turn else 1.0)
        return between(peak, end, (step - turn) / (total - 1 - turn))

    return schedule


@_schedule_doc
def warmup(schedule: Schedule, steps: int, start: float = 0.0) -> Schedule:
    """Increase the rate linearly to the start of a schedule, then follow that schedule.

    Parameters
    ----------
    schedule : callable
        The schedule after the warm-up.
    steps : int
        The number of steps of the warm-up.

    >>> schedule = warmup(constant(1.0), steps=10)
    >>> schedule(0), schedule(5), schedule(50)
    (0.0, 0.5, 1.0)
    """
    start = number("warmup", "start", start)
    _positive("warmup: steps", steps)
    _callable("warmup", schedule)
    return _Chain(
        [(lambda step: schedule(0) * (start + (1 - start) * step / steps), steps), (schedule, None)]
    )


@_schedule_doc
def sequence(*parts: tuple[Schedule, int] | Schedule) -> Schedule:
    """Follow several schedules, one after the other.

    Parameters
    ----------
    *parts : tuple of (callable, int) or callable
        Schedules with their numbers of steps.  The last one may have no number; it then continues.

    Raises
    ------
    ArgumentError
        If a part other than the last has no number of steps.

    >>> schedule = sequence((constant(1.0), 10), constant(0.1))
    >>> schedule(9), schedule(10)
    (1.0, 0.1)
    """
    if any(isinstance(part, list) for part in parts):
        raise InputError(
            "sequence: pass the pairs as separate arguments, not in a list: sequence((schedule, steps), …)."
        )
    pairs = [part if isinstance(part, tuple) else (part, None) for part in parts]
    if not parts or any(len(pair) != 2 for pair in pairs) or any(steps is None for _, steps in pairs[:-1]):
        raise ArgumentError(
            "sequence: each part must be a pair (schedule, steps); only the last may omit the steps."
        )
    for schedule, steps in pairs:
        _callable("sequence", schedule)
        if steps is not None and not (isinstance(steps, numbers.Integral) and steps >= 0):
            raise ArgumentError(
                f"sequence: the number of steps must be a non-negative integer, not {steps!r}."
            )
    return _Chain(pairs)


class _Chain:
    """A schedule that follows several schedules, one after the other.

    Each of them is called with the number of steps since its own start.  Metrics are passed to the current
    schedule.  The state is that of all schedules.
    """

    def __init__(self, parts: Sequence[tuple[Schedule, int | None]]) -> None:
        self._parts: list[Any] = [schedule for schedule, _ in parts]
        self._starts = [0, *itertools.accumulate(steps for _, steps in parts[:-1] if steps is not None)]

    def _followed(self, step: int) -> int:
        return bisect.bisect_right(self._starts, max(step, 0)) - 1

    def __call__(self, step: int) -> float:
        """Return the learning rate of a step."""
        i = self._followed(step)
        return self._parts[i](step - self._starts[i])

    def report(self, metric: float, step: int | None = None) -> float:
        """Pass a metric to the schedule that is followed at this step; return the learning rate after it."""
        if step is None:
            raise ArgumentError("report: a sequence of schedules needs the step: report(metric, step).")
        i = self._followed(step)
        if hasattr(self._parts[i], "report"):
            self._parts[i].report(metric, step - self._starts[i])
        return self(step)

    def report_from(self, logs: Mapping[str, float], step: int) -> float:
        """Pass the metrics of an epoch to the schedule that is followed at this step; return the new rate.

        ``logs`` maps the names of the metrics to their values.
        """
        i = self._followed(step)
        if hasattr(self._parts[i], "report_from"):
            self._parts[i].report_from(logs, step - self._starts[i])
        return self(step)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the schedules that have one, by the index of the schedule as a string."""
        return {str(i): p.state_dict() for i, p in enumerate(self._parts) if hasattr(p, "state_dict")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state_dict``."""
        ours = {str(i): p for i, p in enumerate(self._parts) if hasattr(p, "load_state_dict")}
        if set(ours) != set(state):
            raise ArgumentError(
                f"load_state_dict: the state is that of the schedules with indices {sorted(state)}, but in "
                f"this sequence the schedules with a state have the indices {sorted(ours)}."
            )
        for i, part in ours.items():
            part.load_state_dict(state[i])


def draw(schedule: Schedule, total: int, path: str | None = None, width: int = 60) -> str:
    """Draw a schedule as a picture or as a line of text.

    Parameters
    ----------
    schedule : callable
        The schedule.
    total : int
        The number of steps.
    path : str, optional
        The file of the picture.  Without it, text is returned.
    width : int
        The number of characters of the text.

    Returns
    -------
    str
        The text or the path.

    Examples
    --------
    >>> draw(linear(1.0, 8), 9, width=9)
    '█▇▆▅▄▃▂▁▁'
    """
    _positive("draw: total", total)
    _positive("draw: width", width)
    rates = [schedule(step) for step in range(total)]
    if not all(math.isfinite(r) for r in rates):
        raise ArgumentError(
            f"draw: the rate of step {[math.isfinite(r) for r in rates].index(False)} is not finite."
        )
    if path is None:
        low = min(0.0, *rates)
        span = (max(rates) - low) or 1.0
        columns: Sequence[float] = [rates[i * total // width] for i in range(width)]
        return "".join("▁▂▃▄▅▆▇█"[int((r - low) / span * 7.999)] for r in columns)
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("drawing plots", "matplotlib", "plot") from None
    figure = Figure(figsize=(6, 2.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(rates)
    axes.set(xlabel="step", ylabel="learning rate")
    figure.savefig(path)
    return path
