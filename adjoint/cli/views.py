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
    """Return the graph of one call of a function as text; or write it to ``path``, and say so.

    ``target`` is the function, as ``file.py:name`` or ``module:name``, and ``arguments`` the texts of its
    arguments.  The file may end in .txt, .dot, .svg or .html.
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
    """Return a table of the times of a function's ops and of the backward of its result, as text or JSON.

    ``repeat`` calls are measured, after one that is not.  ``trace`` is a file for a trace for Perfetto.
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
    """Run ``target``, a function that returns a ``Trainer`` or ``Recorder``; write a report to ``path``."""
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
