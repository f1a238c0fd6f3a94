"""What makes a compiled function slow: calls of NumPy, their lines, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from adjoint.compiler.loops.repeat import Repeat
from adjoint.compiler.lower.lower import Lowered
from adjoint.context import hints
from adjoint.core.user_code import warn
from adjoint.words import count

if TYPE_CHECKING:
    from adjoint.compiler.host.native import Native
    from adjoint.compiler.program.program import Instruction

__all__ = ["WARNED", "advice", "hint", "hint_of_entry", "hint_of_loops"]

WARNED = 64  # iterations: a hint names longer loops that call NumPy

OFF = "ad.config.hints(False) turns hints off."


class Cause(NamedTuple):
    """A call of NumPy in a native program: its instruction, why it is not native, and the loop around it."""

    instruction: Instruction
    reason: str
    loop: Instruction | None

    @property
    def what(self) -> str:
        """The op and its line."""
        line = self.instruction.line
        return f"{self.instruction.op.name!r}{f' at {line}' if line else ''}"

    @property
    def cure(self) -> str:
        """What to write instead."""
        if self.loop is not None:
            return (
                "Compute it before or after the loop, for all iterations at once, or write it with ops that "
                "have a native form."
            )
        if "complex" in self.reason:
            return "Write it with the real and the imaginary part as two real arrays."
        if self.instruction.op.kind == "host":
            return "Return the value and use it after the call, or write the function with ops of adjoint."
        return "If its arguments do not change, compute it once outside of the function and pass the result."


def causes(program: Native) -> Iterator[Cause]:
    """Yield the NumPy calls of a program; those in a loop instead of the loop."""
    for node in program.lowered.graph.nodes:
        reason = program.lowered.reasons.get(node.id)
        if reason is None:
            continue
        if not isinstance(node.value.op.forward, Repeat):
            yield Cause(node.value, reason, None)
            continue
        body = Lowered(node.value.op.forward.program)
        inner = [n for n in body.graph.nodes if n.id in body.reasons]
        for n in inner:
            yield Cause(n.value, body.reasons[n.id], node.value)
        if not inner:
            yield Cause(node.value, reason, None)


def advice(program: Native, reasons: list[str]) -> list[str]:
    """Return the lines of ``explain`` about what makes the program slow; none if nothing does.

    ``reasons`` are those of all traces of the function.
    """
    lines = []
    if len(reasons) > 2:
        lines.append(f"traced {len(reasons)} times, the last time because {reasons[-1]}: {_KEEP}")
    found: dict[tuple[str, str], int] = {}
    for cause in causes(program):
        where = "" if cause.loop is None else f" in each of {_iterations(cause.loop)} iterations"
        text = f"{cause.what} calls NumPy{where}: {cause.reason}.  {cause.cure}"
        found[text, cause.what] = found.get((text, cause.what), 0) + 1
    lines += [text if n == 1 else f"{n} times: {text}" for (text, _), n in found.items()]
    return ["What to change:", *(f"  {line}" for line in lines)] if lines else []


_KEEP = "pass the value as a tensor, or keep it the same."


def _iterations(loop: Any) -> int:
    return int(loop.op.forward.count)


def hint(text: str) -> None:
    """Warn about a slow program, if hints are on."""
    if hints.get():
        warn(f"{text}  {OFF}")


def hint_of_loops(name: str, program: Native) -> None:
    """Name the first NumPy call in a long loop of a new program; ``name`` is that of the function."""
    for cause in causes(program) if hints.get() else ():
        if cause.loop is not None and _iterations(cause.loop) >= WARNED:
            hint(
                f"ad.compile: {name} runs a loop of {_iterations(cause.loop)} iterations by Python, because "
                f"{cause.what} calls NumPy: {cause.reason}.\n  {cause.cure}"
            )
            return


def hint_of_entry(name: str, program: Native) -> None:
    """Say why each call of a program that is called often goes through Python."""
    found = list(causes(program))
    if found:
        hint(
            f"ad.compile: {name} calls NumPy {count(len(found), 'time')} in each call, so Python runs its "
            f"kernels one by one; the first is {found[0].what}: {found[0].reason}.\n"
            f"  {found[0].cure}  explain() lists all."
        )
