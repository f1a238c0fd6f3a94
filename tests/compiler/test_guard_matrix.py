"""Values of all kinds that a compiled function reads in all ways: a changed value is used at the next call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from program_texts import run_text
from read_programs import HOLDERS, ROUTES, VALUES, Program, programs, sample

import adjoint as ad

X = np.array([1.0, 2.0, 3.0])
SAMPLE = sample()


def outcome(f: Any, x: Any, space: dict[str, Any]) -> Any:
    """Return the dtype and the numbers that ``f`` returns, or the type of its error."""
    try:
        found = f(x, *space["args"], **space["kwargs"])
    except Exception as error:
        return type(error)
    found = found.detach().numpy() if isinstance(found, ad.Tensor) else np.asarray(found)
    return found.dtype, found.tolist()


def close(found: Any, wanted: Any) -> bool:
    """Return whether two outcomes differ only by rounding."""
    if not (isinstance(found, tuple) and isinstance(wanted, tuple)):
        return False
    return found[0] == wanted[0] and np.allclose(found[1], wanted[1], rtol=1e-6, atol=1e-12)


def difference(program: Program, backend: str = "replay", calls: int = 1) -> Any:
    """Return what is wrong in a program; None if the compiled and the plain function return the same."""
    space = program.run()
    f = space["f"]
    compiled = ad.compile(f, backend=backend)
    for n, step in enumerate(program.steps()):
        run_text(step, space)
        found, wanted = outcome(compiled, X, space), outcome(f, ad.tensor(X), space)
        if found != wanted and not (backend == "auto" and close(found, wanted)):
            return program, n, step, found, wanted
        for _ in range(calls - 1 if isinstance(found, tuple) else 0):
            compiled(X, *space["args"], **space["kwargs"])
    return None


@pytest.mark.parametrize("name", VALUES)
def test_a_changed_value_is_used(name: str) -> None:
    chosen = [program for program in SAMPLE if program.value == name]
    assert [found for program in chosen if (found := difference(program))] == []


@pytest.mark.parametrize("backend", ["replay", "auto"])
@pytest.mark.parametrize("name", VALUES)
def test_native_code_that_checks_guards_notices_a_changed_value(name: str, backend: str) -> None:
    """Guards are checked by native code after 1000 calls."""
    chosen = [program for program in SAMPLE if program.value == name][: 3 if backend == "replay" else 2]
    assert [found for program in chosen if (found := difference(program, backend, 1200))] == []


@pytest.mark.soak
@pytest.mark.parametrize("name", VALUES)
def test_all_programs(name: str) -> None:
    chosen = [program for program in programs() if program.value == name]
    assert [found for program in chosen if (found := difference(program))] == []


def test_the_sample_has_all_keys() -> None:
    assert 600 <= len(SAMPLE) <= 1500
    assert {p.value for p in SAMPLE} == VALUES.keys()
    assert {p.holder for p in SAMPLE} == HOLDERS.keys()
    assert {p.route for p in SAMPLE} == ROUTES.keys()
    assert {p.change for p in SAMPLE} == {"assign", "mutate", "delete", "create"}
