"""Where an interrupt may come: loops inside of blocks that must end.

Python looks for signals where a loop jumps back, and the exception table of a ``with`` or ``try`` need not
cover that jump: an interrupt there leaves the block without its end, and a lock locked.  In Python 3.11
that is so in few places, in 3.13 in many.
"""

from __future__ import annotations

import ast
import dis
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest

import adjoint
import adjoint as ad
from adjoint import config
from adjoint.core import lifted, record, tensor

ROOT = Path(adjoint.__file__).parent
LOOPS = (ast.For, ast.While)
BLOCKS = (ast.With, ast.Try)

# Where it does no harm: threads that no interrupt reaches, blocks that only hide an error, and the end of an
# asynchronous generator, which is closed by its loop as well.
HARMLESS = {
    "parallel.py:attend", "data.py:work", "auto.py:_any_large", "replace.py:_remove_left_over", "config.py:wrapper",
}  # fmt: skip


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def within(line: int, first: ast.stmt, last: ast.stmt) -> bool:
    return first.lineno <= line <= (last.end_lineno or 0)


def open_jumps(source: str, name: str) -> list[str]:
    """The lines from which a loop inside a block jumps back, uncovered by the end of the block."""
    tree = ast.parse(source)
    blocks = [n for n in ast.walk(tree) if isinstance(n, BLOCKS)]
    found = []
    for code in codes(compile(source, name, "exec")):
        if code.co_name.startswith("<") or f"{name}:{code.co_name}" in HARMLESS:
            continue
        table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
        for step in dis.get_instructions(code):
            line = step.positions.lineno if step.positions else None
            if not step.opname.startswith("JUMP_BACKWARD") or line is None:
                continue
            around = [
                b for b in blocks
                if within(line, b.body[0], b.body[-1]) and any(
                    isinstance(n, LOOPS) and within(line, n, n) for s in b.body for n in ast.walk(s)
                )
            ]  # fmt: skip
            if len(around) > sum(entry.start <= step.offset < entry.end for entry in table):
                found.append(f"{name}:{line} in {code.co_name}")
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_no_loop_stands_in_a_block_that_must_end(path):
    if "testing" not in path.parts:
        assert open_jumps(path.read_text(), path.name) == []


# An interrupt after any call ---------------------------------------------------------------------------

MODES: dict[str, tuple[ContextVar[Any], Any]] = {
    "enclosing": (lifted.enclosing, None),
    "grad_mode": (config.grad_mode, True),
    "tapes": (config.tapes, ()),
    "saved_hooks": (record.saved_hooks, None),
    "writes": (tensor.writes, None),
    "reading": (tensor.reading, None),
}

square = ad.custom_jvp(lambda x: x * x)
square.defjvp(lambda primals, tangents: (primals[0] * primals[0], 2 * primals[0] * tangents[0]))
sine = ad.custom_vjp(lambda x: ad.sin(x))
sine.defvjp(lambda x: (ad.sin(x), x), lambda x, g: (g * ad.cos(x),))
PAIR = np.array([0.5, 2.0])

PROGRAMS: dict[str, Callable[[], Any]] = {
    "vmap": lambda: ad.vmap(lambda x: ad.sin(x) * 2)(PAIR),
    "vmap of grad": lambda: ad.vmap(ad.grad(lambda x: ad.sin(x) * x))(PAIR),
    "jvp": lambda: ad.jvp(lambda x: ad.sin(x) * x, (1.0,), (1.0,)),
    "checkpoint": lambda: ad.grad(lambda x: ad.checkpoint(lambda a: ad.sin(a) * x, x))(1.0),
    "root": lambda: ad.grad(lambda x: ad.root(lambda u: u * u - x, 1.5))(2.25),
    "custom_jvp": lambda: ad.vmap(ad.grad(square))(PAIR),
    "custom_vjp": lambda: ad.vmap(ad.grad(sine))(PAIR),
}


def interrupted(program: Callable[[], Any], n: int) -> bool:
    """Run a program with an interrupt after its n-th call; tell whether it got so far.

    Python handles signals where a function starts and after each call of one in C; it calls a profiler there too.
    """
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        if event in ("call", "c_return"):
            count += 1
            if count == n:
                raise KeyboardInterrupt

    state = np.geterr()
    try:
        sys.setprofile(profile)
        program()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
        np.seterr(**state)  # an interrupt at the end of errstate.__enter__ leaves NumPy's error state set
    return count >= n


# An interrupt inside the end of a generator is only reported.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_interrupt_after_any_call_leaves_no_mode_set(name: str) -> None:
    program = PROGRAMS[name]
    program()
    n = 1
    while interrupted(program, n):
        left = [mode for mode, (variable, default) in MODES.items() if variable.get() is not default]
        for variable, default in MODES.values():
            variable.set(default)
        assert left == [], f"after call {n}"
        n += 1
    assert n > 100
