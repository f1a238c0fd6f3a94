"""Programs that read values in all ways that Python has, with changes between calls, from a text file.

A program is a block ``### name``; the lines ``--- statement`` up to ``...`` are one change.  A compiled function
returns what the function returns, and is traced at most once for each change, and twice for values that it changes itself.
"""

from __future__ import annotations

import os
import pathlib
import sys
import types
import warnings
from typing import Any

import numpy as np
import pytest
from program_texts import run_text

import adjoint as ad

FILE = pathlib.Path(__file__).parent.parent / "support" / "observed_programs.txt"
START = "import numpy as np, adjoint as ad\n"
X = np.array([1.0, -2.0, 3.0])


def programs() -> dict[str, tuple[str, list[str]]]:
    """Return the text and the changes of each program, by name."""
    found = {}
    for block in FILE.read_text().split("### ")[1:]:
        name, _, rest = block.partition("\n")
        lines = rest.splitlines()
        text = [line for line in lines if not line.startswith("--- ") and line != "..."]
        changes = "\n".join(
            line[4:] if line != "..." else line for line in lines if line.startswith(("--- ", "..."))
        )
        found[name] = "\n".join(text), [c for c in changes.split("\n...") if c.strip()]
    return found


PROGRAMS = programs()


def value(result: Any) -> Any:
    if isinstance(result, (list, tuple)):
        return [value(r) for r in result]
    return np.asarray(result.numpy() if isinstance(result, ad.Tensor) else result).tolist()


def run(f: Any) -> Any:
    try:
        return value(f(X))
    except Exception as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_compiled_function_returns_what_the_function_returns(name: str) -> None:
    text, changes = PROGRAMS[name]
    plain, copy = (types.ModuleType(f"program_{k}") for k in range(2))
    before = dict(os.environ)
    try:
        for module in (plain, copy):
            sys.modules[module.__name__] = module
            run_text(START + text, vars(module))
        compiled = ad.compile(copy.f, backend="replay")
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # changes are made by ``exec``, so functions in them have no source
            for change in ("", *changes):
                for module in (plain, copy):
                    exec(change, vars(module))
                for _ in range(2):
                    assert str(run(compiled)) == str(run(plain.f)), change
    finally:
        os.environ.clear()
        os.environ.update(before)
        for key, module in list(sys.modules.items()):
            if (
                type(module) is types.ModuleType and module.__spec__ is None and key != "__main__"
            ):  # of a program
                del sys.modules[key]
    stats = compiled.stats()
    own = sum("the function changes" in r for r in stats["reasons"])
    assert own <= 2  # a state that the function sets and restores
    assert stats["traces"] <= 1 + len(changes) + own
