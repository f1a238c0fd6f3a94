"""Where an interrupt may come: loops inside of blocks that must end.

Python looks for signals where a loop jumps back, and the exception table of a ``with`` or ``try`` need not
cover that jump: an interrupt there leaves the block without its end, and a lock locked.  In Python 3.11
that is so in few places, in 3.13 in many.
"""

from __future__ import annotations

import ast
import dis
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

import adjoint

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
