"""The data of a ``Recorder``: the curves of the whole run, and plain values and arrays for checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from adjoint.inspect.recorder import Recorder

__all__ = ["curves", "epochs_of", "load_state", "state_of"]

PLAIN = ("every", "clip", "parameters", "_moments")  # attributes that are saved as they are
QUANTILE_COUNT = 5


def state_of(recorder: Recorder) -> dict[str, Any]:
    """Return what a recorder has recorded, without the captured step, which is recorded again."""
    count = len(recorder.names)
    spread = [[*w, *g, each, total] for _, w, g, each, total in recorder.spread]
    return {
        **{name: getattr(recorder, name) for name in PLAIN},
        "names": list(recorder.names),
        "shapes": [list(shape) for shape in recorder.shapes],
        "steps": list(recorder.steps),
        "numbers": [[name, list(values)] for name, values in recorder.numbers.items()],
        "gradients": _table(recorder.gradients, count),
        "ratios": _table(recorder.ratios, count),
        "spread_steps": [row[0] for row in recorder.spread],
        "spread": np.array([[_quantiles(q) for q in row] for row in spread]),
        "epochs": [[step, dict(logs)] for step, logs in recorder.epochs],
        "windows": np.array(recorder.windows, np.float64).reshape(-1, 6),
    }


def load_state(recorder: Recorder, state: Mapping[str, Any]) -> None:
    """Replace what a recorder has recorded by a result of ``state_of``."""
    for name in PLAIN:
        setattr(recorder, name, state[name])
    count = len(state["names"])
    recorder.names = list(state["names"])
    recorder.shapes = [tuple(shape) for shape in state["shapes"]]
    recorder.steps = list(state["steps"])
    recorder.numbers = {name: list(values) for name, values in state["numbers"]}
    recorder.gradients = np.asarray(state["gradients"]).tolist()
    recorder.ratios = [
        [None if math.isnan(r) else r for r in row] for row in np.asarray(state["ratios"]).tolist()
    ]
    recorder.spread = []
    for step, row in zip(state["spread_steps"], np.asarray(state["spread"]).tolist(), strict=True):
        found = [None if math.isnan(q[0]) else q for q in row]
        recorder.spread.append((step, found[:count], found[count : 2 * count], found[-2], found[-1]))
    recorder.epochs = [(step, dict(logs)) for step, logs in state["epochs"]]
    recorder.windows = [
        (int(step), int(pieces), weight, norm, bool(clipped), bool(skipped))
        for step, pieces, weight, norm, clipped, skipped in np.asarray(state["windows"]).tolist()
    ]


def _table(rows: Sequence[Sequence[float | None]], width: int) -> np.ndarray[Any, Any]:
    return np.array(rows, np.float64).reshape(len(rows), width)  # None is NaN


def _quantiles(values: Sequence[float] | None) -> Sequence[float]:
    return [math.nan] * QUANTILE_COUNT if values is None else values


def curves(recorder: Recorder) -> tuple[list[int], dict[str, list[float | None]]]:
    """Return the steps of a run and its loss, gradient norm and learning rate at these steps.

    Epochs before the first recorded step, which another run or no recorder has seen, are one step each.
    """
    first = recorder.steps[0] if recorder.steps else math.inf
    early = [(step, logs) for step, logs in recorder.epochs if step < first]
    missing: list[float | None] = [None] * len(recorder.steps)
    numbers = {
        name: [logs.get(name) for _, logs in early] + recorder.numbers.get(name, missing)
        for name in ("loss", "grad_norm", "lr")
    }
    return [step for step, _ in early] + recorder.steps, numbers


def epochs_of(history: Sequence[Mapping[str, float]], steps: int) -> list[tuple[int, dict[str, float]]]:
    """Return the metrics of each epoch with the number of its last step, if all took equally many steps.

    ``steps`` is the number of steps of all epochs.
    """
    return [(round((i + 1) * steps / len(history)), dict(logs)) for i, logs in enumerate(history)]
