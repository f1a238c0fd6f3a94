"""``adjoint check``: compare the derivatives of a user's function with finite differences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint import words
from adjoint.cli.target import arguments_of, check_count, function_of, run_user_code
from adjoint.core.convert import asarray
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, GradcheckError
from adjoint.nn.module import Module
from adjoint.testing.gradcheck import gradcheck

__all__ = ["check"]


def check(
    target: str, arguments: Sequence[str], *, order: int = 2, seed: int = 0, as_json: bool = False
) -> tuple[str, bool]:
    """Compare the derivatives of ``target`` up to ``order`` with finite differences.

    Return the result as text or JSON, and whether the derivatives agree.  ``arguments`` are the texts of the
    function's arguments: shapes, for which ``seed`` gives random numbers, numbers, or arrays in JSON.
    """
    function = function_of(target)
    given = arguments_of(arguments, seed)
    check_count(target, function, given)
    if not any(isinstance(a, np.ndarray) and a.dtype.kind == "f" for a in given):
        raise ArgumentError(
            "no argument is a float or an array of floats, so there is no derivative to check.\n"
            "  Pass a shape (3x4, or 5x for a vector), or a number (2.0) or an array ([1.0, 2.0]) with a "
            "decimal point."
        )
    if isinstance(function, Module):
        function = function.astype(np.float64)  # finite differences need double precision
    inputs = [asarray(a) if isinstance(a, np.ndarray) else a for a in given]
    value = run_user_code(lambda: function(*inputs))
    problem = None
    for n in range(1, order + 1):
        try:
            _check_order(function, given, n)
        except GradcheckError as error:
            problem = (n, str(error))
            break
    facts: dict[str, Any] = {
        "function": target,
        "value": _said(value),
        "orders": order if problem is None else problem[0] - 1,
        "agree": problem is None,
    }
    if problem is not None:
        facts["problem"] = problem[1]
    if as_json:
        return json.dumps(facts), problem is None
    lines = [f"{target} = {facts['value']}"]
    if problem is None:
        lines.append(
            f"derivatives of order {'1' if order == 1 else f'1 to {order}'} agree with finite differences."
        )
    else:
        lines.append(f"the derivative of order {problem[0]} differs from finite differences:\n{problem[1]}")
    return "\n".join(lines), problem is None


def _check_order(function: Any, given: list[Any], order: int) -> None:
    """Raise ``GradcheckError`` if derivatives up to ``order`` at ``given`` differ from finite differences.

    If the function itself raises an exception, raise ``UserError``, which shows the lines of the function.
    """
    found: list[GradcheckError] = []

    def run() -> None:
        try:
            gradcheck(function, given, order=order)
        except GradcheckError as error:
            found.append(error)

    run_user_code(run)
    if found:
        raise found[0]


def _said(value: Any) -> Any:
    """Return a result of the user's function for display: a number, or a short description.

    A tensor with one element is shown as its number, others as "a tensor of shape (3,)" or "2 results".
    """
    if isinstance(value, Tensor):
        return value.item() if value.size == 1 else f"a tensor of shape {value.shape}"
    if isinstance(value, (list, tuple)):
        return words.count(len(value), "result")
    return words.a(type(value).__name__)
