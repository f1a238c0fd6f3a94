"""A library before it is written: its plan, its LLVM text, and the object code for a target."""

from __future__ import annotations

from adjoint.compiler.build.units import USED
from adjoint.compiler.emit.code import Code
from adjoint.compiler.emit.writer import SHARED
from adjoint.compiler.lower.lower import Lowered
from adjoint.compiler.lower.target import CPU
from adjoint.compiler.program.program import Instruction
from adjoint.compiler.schedule.groups import replacements
from adjoint.exports.calling import Calling
from adjoint.exports.collect import Collected, raise_problems
from adjoint.exports.interface import DTYPES, SavedForm, check_text, define_interface, error_texts
from adjoint.exports.plan import LibraryPlan
from adjoint.exports.runtime import runtime_text
from adjoint.exports.targets import Target, object_code

__all__ = ["FUNCTIONS", "Library"]

FUNCTIONS = ("", "_state_size", "_saved_size", "_init", "_get", "_error", "_save", "_load")  # after the name


class Library:
    """A collected program with its plan for a level of vector instructions, and what its C functions are.

    ``name`` is that of the calling function, with which the names of all others start.
    """

    def __init__(self, name: str, collected: Collected, level: str) -> None:
        self.name, self.collected, self.level = name, collected, level
        program = collected.program
        lowered = Lowered(program, CPU._replace(lapack=False))
        nodes = {n.id: n for n in lowered.graph.nodes}
        items = [*collected.arguments, *collected.results, *(p.item for p in collected.parts)]
        problems = [
            *collected.problems,
            *(_problem(nodes[k].value, why) for k, why in lowered.reasons.items()),
            *(f"{i.name}: {i.dtype.name} has no native form" for i in items if i.dtype.name not in DTYPES),
        ]
        if problems:
            raise_problems(collected.name, problems)
        outputs = lowered.outputs
        plan = LibraryPlan(level, lowered.graph, outputs, replacing=list(replacements(program)))
        self.calling = Calling(name, collected, plan)
        self.saved = SavedForm(self.calling)
        self.errors = error_texts(name, [check_text(i) for i in lowered.checked])

    @property
    def exported(self) -> list[str]:
        """The names of the functions of the library."""
        return [f"{self.name}{suffix}" for suffix in FUNCTIONS]

    def object_code(self, target: Target) -> bytes:
        """Return the object code for a target."""
        root = Code()
        self.calling.define(root)
        size = "i32" if target.name == "wasm32" else "i64"
        define_interface(root, self.calling, self.saved, self.errors, size)
        kernels = {name: text for text, name in self.calling.kernels.names.items()}
        main = "\n".join([*root.unit.parts(), ""])
        runtime = runtime_text([main, *kernels.values(), *_shared(kernels)])
        return object_code(target, self.level, "\n".join(_merged(main, runtime)), kernels)


def _merged(*texts: str) -> list[str]:
    """Return the lines of LLVM texts without repeated declarations and definitions of one line."""
    found: dict[str, None] = {}
    lines: list[str] = []
    inside = skipped = False
    for text in texts:
        for line in text.splitlines():
            if line.startswith("define "):
                head = line.partition("(")[0]
                inside, skipped = True, head in found
                found[head] = None
            elif not inside and line in found:
                continue
            if not inside:
                found[line] = None
            if not skipped:
                lines.append(line)
            if line == "}":
                inside = skipped = False
    return lines


def _shared(kernels: dict[str, str]) -> list[str]:
    return [SHARED[name] for text in kernels.values() for name in USED.findall(text)]


def _problem(i: Instruction, why: str) -> str:
    return f"{i.line or 'the function'}: {i.op.name}: {why}"
