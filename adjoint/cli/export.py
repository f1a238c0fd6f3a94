"""The command ``adjoint export``: write a function as a library without Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.cli.target import arguments_of, check_count, function_of, run_user_code
from adjoint.errors import ArgumentError
from adjoint.exports.api import export

__all__ = ["export_function"]


def export_function(place: str, texts: Sequence[str], path: str, dtype: str | None, **options: Any) -> str:
    """Export the function ``place`` (``file.py:name``); return a text about what was written.

    ``texts`` are the example arguments, as in ``arguments_of``; arrays of floats get the dtype ``dtype``.
    """
    function = function_of(place)
    given = arguments_of(texts)
    if dtype is not None:
        try:
            kind = np.dtype(dtype)
        except TypeError:
            raise ArgumentError(
                f"export: --dtype must be a dtype such as float32, but is {dtype!r}."
            ) from None
        given = [a.astype(kind) if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a for a in given]
    check_count(place, function, given)
    made = run_user_code(lambda: export(function, *given, path=path, **options))
    rows = [f"{file}  {file.stat().st_size:,} bytes" for file in made.files.values()]
    sides = [("arguments", made.arguments), ("results", made.results)]
    rows += [f"{side}: {_listed(items)}" for side, items in sides]
    rows.append(f"state: {made.state_size:,} bytes, {len(made.parts)} parts")
    return "\n".join(rows)


def _listed(items: dict[str, tuple[str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{name} {dtype}{list(shape)}" for name, (dtype, shape) in items.items()) or "none"
