"""Messages of errors inside modules: the path of a module, and the names and values of a state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from adjoint.core.tensor import Tensor
from adjoint.errors import AdjointError
from adjoint.storage.fitting import fitting

__all__ = ["add_path", "matched", "name_in_errors", "other_prefix"]


def add_path(error: AdjointError, module: Any) -> None:
    """Append to the message of an error the class of ``module`` and the path of the submodule that failed."""
    inner: tuple[Any, str] | None = getattr(error, "_module", None)
    path = ""
    if inner is not None:
        name = next((n for n, m in module.named_modules() if m is inner[0]), "")
        path = ".".join(part for part in (name, inner[1]) if part)
    plain = getattr(error, "_plain", error.args[0] if error.args else "")
    head = f"the module {type(module).__name__}" + (f", at {path!r}" if path else "")
    error._module, error._plain = (module, path), plain
    error.args = (f"{plain}\n  In {head}.", *error.args[1:])


def name_in_errors(module: Any, trace: Any, indices: int, decisions: int) -> None:
    """Make the checks of a compiled program name ``module`` in their errors, as eager calls do.

    These are the checks that ``trace`` has after the first ``indices`` and ``decisions``.
    """
    for checks, first in ((trace.indices, indices), (trace.decisions, decisions)):
        for k in range(first, len(checks)):
            function, *rest = checks[k]
            if not isinstance(function, type):  # bool and float raise no errors of adjoint
                checks[k] = (partial(_called_in, module, function), *rest)


def _called_in(module: Any, function: Callable[[Any], Any], array: Any) -> Any:
    try:
        return function(array)
    except AdjointError as error:
        add_path(error, module)
        raise


def other_prefix(missing: Collection[str], extra: Collection[str]) -> str:
    """Return advice for an error message if missing and extra names differ only by a prefix, else ""."""
    for wanted, found in ((missing, extra), (extra, missing)):
        name = str(next(iter(found), ""))
        for prefix in (name[: i + 1] for i, c in enumerate(name) if c == "."):
            fitting = sum(str(k).startswith(prefix) and str(k)[len(prefix) :] in wanted for k in found)
            if 2 * fitting > len(extra) and found is extra:
                return (
                    f"\n  The names in the state begin with {prefix!r}: load "
                    f"{{k.removeprefix({prefix!r}): v for k, v in state.items()}}."
                )
            if 2 * fitting > len(extra):
                return f"\n  The names are those of the submodule {prefix[:-1]!r}: load the state there."
    return ""


def matched(
    state: Mapping[str, Any], ours: Mapping[str, Tensor]
) -> tuple[dict[int, tuple[str, Any]], list[str]]:
    """Return the values of a ``state`` for the tensors of a module, and a list of the problems.

    ``ours`` has the tensors of the module by path.  The values are by the tensor's id: its path in the state,
    and the value.
    """
    taken: dict[int, tuple[str, Any]] = {}
    problems = []
    for k in (k for k in ours if k in state):
        found = fitting(state[k], ours[k])
        first, value = taken.setdefault(id(ours[k]), (k, found))
        if isinstance(found, str):
            problems.append(f"  {k}: {found}")
        elif not isinstance(value, str) and value is not found and value.tobytes() != found.tobytes():
            problems.append(
                f"  {k}: is the same tensor as {first} in this module, but has different values in the state"
            )
    return taken, problems
