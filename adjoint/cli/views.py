"""``adjoint graph``, ``adjoint profile`` and ``adjoint report``: inspect functions in a user's file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from adjoint import inspect, words
from adjoint.cli.target import arguments_of, check_count, check_writable, function_of, run_user_code
from adjoint.core.convert import tensor
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError
from adjoint.nn.module import Module
from adjoint.train.trainer import Trainer

__all__ = ["graph_text", "profile_text", "report_text"]


def graph_text(target: str, arguments: Sequence[str], path: str | None = None) -> str:
    """Draw the graph of one call of a function.

    Parameters
    ----------
    target : str
        The function, as ``file.py:name`` or ``module:name``.
    arguments : sequence of str
        The arguments of the function: shapes, numbers or arrays in JSON.
    path : str, optional
        A file to write: .txt, .dot, .svg or .html.

    Returns
    -------
    str
        The graph as text, or the name of the file.
    """
    function, given = _call(target, arguments)
    if path is not None:
        check_writable(path, "graph: the drawing", "Give another path: -o PATH.")
    drawing = run_user_code(lambda: inspect.draw(function, *given, path=path))
    return f"wrote {path}" if path is not None else str(drawing)


def profile_text(
    target: str,
    arguments: Sequence[str],
    *,
    repeat: int = 10,
    trace: str | None = None,
    as_json: bool = False,
) -> str:
    """Measure the ops of a function and of the backward of its result.

    Parameters
    ----------
    target : str
        The function.
    arguments : sequence of str
        The arguments of the function.
    repeat : int, optional
        The number of measured calls, after one call that is not measured.
    trace : str, optional
        A file for a trace that Perfetto and Chrome show.
    as_json : bool, optional
        Whether to return JSON.

    Returns
    -------
    str
        The table.
    """
    function, given = _call(target, arguments)
    if trace is not None:
        check_writable(trace, "profile: the trace", "Give another path: --trace PATH.")

    def steps(count: int) -> None:
        for _ in range(count):
            found = function(*given)
            if isinstance(found, Tensor) and found.requires_grad:
                found.backward(None if found.size == 1 else np.ones(found.shape, found.dtype))

    run_user_code(lambda: steps(1))
    with inspect.profile() as measured:
        run_user_code(lambda: steps(repeat))
    if trace is not None:
        measured.chrome_trace(trace)
    if as_json:
        return json.dumps([asdict(row) for row in measured.rows()], default=str)
    return str(measured)


def report_text(target: str, path: str) -> str:
    """Run a function that trains a model, and write a report of the training.

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
    function = function_of(target)
    check_count(target, function, ())
    check_writable(path, "report: the page", "Give another path: -o PATH.")
    found: Any = run_user_code(function)
    if not isinstance(found, (Trainer, inspect.Recorder)):
        raise InputError(
            f"{target} must return a Trainer or a Recorder, but returned {words.a(type(found).__name__)}.\n"
            "  Create the trainer with a Recorder and return it: Trainer(…, callbacks=ad.inspect.Recorder())."
        )
    return f"wrote {inspect.report(found, path)}"


def _call(target: str, arguments: Sequence[str]) -> tuple[Any, list[Any]]:
    """Import the function ``target`` and parse the texts of its arguments; return both.

    Float arguments become tensors that require grad.
    """
    function, given = function_of(target), arguments_of(arguments)
    check_count(target, function, given)
    dtype = None
    if isinstance(function, Module):
        dtype = next((p.dtype for p in function.parameters()), None)
    return function, [
        tensor(a, dtype=dtype, requires_grad=True) if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a
        for a in given
    ]
