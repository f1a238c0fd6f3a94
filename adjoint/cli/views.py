"""``adjoint graph``, ``adjoint profile`` and ``adjoint report``: look at functions of a user's file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from adjoint import inspect
from adjoint.cli.target import arguments_of, function_of, run_user_code
from adjoint.core.convert import tensor
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError
from adjoint.train.trainer import Trainer

__all__ = ["graph", "profile", "report"]


def graph(target: str, arguments: Sequence[str], path: str | None = None) -> str:
    """Draw the graph of one call of a function.

    Parameters
    ----------
    target : str
        The function, as ``file.py:name`` or ``module:name``.
    arguments : sequence of str
        Its arguments: shapes, numbers or arrays in JSON.
    path : str, optional
        A file to write: .txt, .dot, .svg or .html.

    Returns
    -------
    str
        The graph as text, or the name of the file.
    """
    function, given = function_of(target), _leaves(arguments)
    drawing = run_user_code(lambda: inspect.draw(function, *given, path=path))
    return f"wrote {path}" if path is not None else str(drawing)


def profile(
    target: str,
    arguments: Sequence[str],
    *,
    repeat: int = 10,
    trace: str | None = None,
    as_json: bool = False,
) -> str:
    """Measure the ops of calls of a function, and of the backward of its result.

    Parameters
    ----------
    target : str
        The function.
    arguments : sequence of str
        Its arguments.
    repeat : int, optional
        The number of calls that are measured, after one that is not.
    trace : str, optional
        A file for a trace that Perfetto and Chrome show.
    as_json : bool, optional
        Whether to return JSON.

    Returns
    -------
    str
        The table.
    """
    function, given = function_of(target), _leaves(arguments)

    def steps(count: int) -> None:
        for _ in range(count):
            found = function(*given)
            if isinstance(found, Tensor) and found.requires_grad and found.size == 1:
                found.backward()

    run_user_code(lambda: steps(1))
    with inspect.profile() as measured:
        run_user_code(lambda: steps(repeat))
    if trace is not None:
        measured.chrome_trace(trace)
    if as_json:
        return json.dumps([asdict(row) for row in measured.rows()], default=str)
    return str(measured)


def report(target: str, path: str) -> str:
    """Run a function that trains, and write the report of its run.

    Parameters
    ----------
    target : str
        A function without arguments that returns a ``Trainer`` or a ``Recorder``.
    path : str
        The HTML file to write.

    Returns
    -------
    str
        The name of the file.
    """
    found: Any = run_user_code(function_of(target))
    if not isinstance(found, (Trainer, inspect.Recorder)):
        raise InputError(
            f"{target} must return its Trainer or Recorder, but returned a {type(found).__name__}.\n"
            "  Give the trainer a Recorder: Trainer(…, callbacks=ad.inspect.Recorder())."
        )
    return f"wrote {inspect.report(found, path)}"


def _leaves(arguments: Sequence[str]) -> list[Any]:
    """Return the arguments; arrays of floats as tensors that require grad."""
    return [
        tensor(a, requires_grad=a.dtype.kind == "f") if isinstance(a, np.ndarray) else a
        for a in arguments_of(arguments)
    ]
