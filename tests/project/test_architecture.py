"""The layout of DESIGN.md: imports go down only, nothing hidden, the core needs NumPy alone."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import adjoint
from adjoint.core.op import OPS

ROOT = Path(adjoint.__file__).parent

# What each room may import from; a room may always import from itself.
ALLOWED = {
    "errors": set(),
    "context": {"errors"},
    "config": {"context", "errors", "forks", "thread_counts"},
    "thread_counts": {"errors"},
    "tree": {"errors", "typing"},
    "foreign_names": set(),
    "hints": {"errors", "foreign_names"},
    "typing": {"core"},  # core and tree import it for type checkers alone
    "core": {"errors", "config", "hints", "tree", "typing"},
    "ops": {"errors", "config", "tree", "hints", "core", "typing"},
    "engine": {"errors", "config", "tree", "core"},
    "grads": {"errors", "config", "hints", "tree", "core", "ops", "engine", "typing"},
    "transforms": {"errors", "config", "tree", "core", "ops", "engine", "grads", "typing"},
    "distributed": {"errors", "hints"},
    "accumulate": {"errors", "config", "tree", "core", "ops", "engine", "grads", "distributed"},
}
ALLOWED["compiler"] = {*ALLOWED["transforms"], "hints", "transforms"}
UPPER = (
    "nn",
    "optim",
    "train",
    "inspect",
    "interop",
    "storage",
    "testing",
    "random",
    "extend",
    "autograd",
    "numpy",
    "scipy",
    "sklearn",
    "sparsity",
    "exports",
    "targets",
)
for _room in UPPER:
    ALLOWED[_room] = {
        *ALLOWED["transforms"], "hints", "transforms", "accumulate", "compiler", "distributed", *UPPER,
    }  # fmt: skip
ALLOWED["cli"] = {*ALLOWED["nn"], "nn", "cli", "__init__"}
ALLOWED["__init__"] = set(ALLOWED)
ALLOWED["__main__"] = {"cli"}

# Imports inside functions, with the reason: optional libraries and nothing else.
HIDDEN_ALLOWED = set(
    "scipy hypothesis safetensors rich matplotlib threadpoolctl ml_dtypes torch sklearn mpi4py llvmlite tensorboard mlflow wandb pyopencl wgpu".split()
)

for _below in ALLOWED.values():
    _below |= {"context", "tracebacks", "words"}
ALLOWED["words"] = set()
ALLOWED["tracebacks"] = {"errors"}
for _user in set(ALLOWED) - {"errors", "context", "config", "tree", "hints", "foreign_names", "__main__"}:
    ALLOWED[_user].add("threads")
ALLOWED["threads"] = {"context", "errors", "config"}
ALLOWED["forks"] = set()

MODULES = sorted(ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(node: ast.stmt) -> list[str]:
    """The rooms of adjoint, or third-party packages, that a statement imports."""
    if isinstance(node, ast.Import):
        return [a.name for a in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        if node.module == "adjoint":
            return [f"adjoint.{a.name}" for a in node.names]
        return [node.module]
    return []


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down(path: Path) -> None:
    tree = ast.parse(path.read_text())
    room = room_of(path)
    for node in ast.walk(tree):
        for name in imported(node) if isinstance(node, ast.stmt) else ():
            parts = name.split(".")
            if parts[0] == "adjoint":
                target = parts[1] if len(parts) > 1 else "__init__"
                assert target == room or target in ALLOWED[room], f"{path.name} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_hidden_imports(path: Path) -> None:
    tree = ast.parse(path.read_text())
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for node in ast.walk(function):
                for name in imported(node) if isinstance(node, ast.stmt) else ():
                    assert name.split(".")[0] in HIDDEN_ALLOWED, f"{path.name} hides an import of {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_are_short(path: Path) -> None:
    """At most 600 lines in a file, and 60 in a function, without its docstring."""
    text = path.read_text()
    assert len(text.splitlines()) <= 600
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            documented = ast.get_docstring(node, clean=False) is not None
            lines = (node.end_lineno or 0) - node.lineno + 1
            if documented:
                lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
            assert lines <= 60, f"{node.name} has {lines} lines"


def test_nodes_are_made_where_tapes_and_modes_see_them() -> None:
    """One text makes nodes: the fast paths inline it while no such mode is on, ``core.record`` calls it."""
    using = {
        what: {str(path.relative_to(ROOT)) for path in MODULES if re.search(rf"\b{what}", path.read_text())}
        for what in (r"Node\(\)", r"FILL\b", r"new_node\b")
    }
    assert list(using.values()) == [
        {"core/node.py"},
        {"core/node.py", "core/eager.py"},
        {"core/node.py", "core/record.py"},
    ]


def test_context_variables_are_declared_in_one_module() -> None:
    declaring = [str(p.relative_to(ROOT)) for p in MODULES if "= ContextVar(" in p.read_text()]
    assert declaring == ["context.py"]


def test_importing_adjoint_loads_numpy_and_nothing_else() -> None:
    program = (
        "import sys, numpy; before = set(sys.modules); import adjoint; "
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    loaded = {name for name in ast.literal_eval(out) if name not in sys.stdlib_module_names}
    assert loaded - {"numpy"} == {"adjoint"}  # numpy.typing


def test_what_few_programs_use_is_loaded_when_it_is_first_used() -> None:
    program = (
        "import sys, numpy as np, adjoint as ad; first = ad.Tensor.__array_function__\n"
        "parts = ('adjoint.interop.numpy', 'adjoint.interop.notebook', 'numpy.fft')\n"
        "print([name in sys.modules for name in parts])\n"
        "x = ad.tensor([3.0, 1.0], requires_grad=True); np.sort(x)[0].backward()\n"
        "print(x.grad.tolist(), ad.Tensor.__array_function__ is not first, '<' in x._repr_html_())\n"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["[False, False, False]", "[0.0, 1.0] True True"]


def test_exports_exist_and_are_sorted_out() -> None:
    assert len(set(adjoint.__all__)) == len(adjoint.__all__)
    for name in adjoint.__all__:
        assert hasattr(adjoint, name), name


COMPILER = [p for p in MODULES if room_of(p) == "compiler"]
STAGES = "program replay guards loops capture lower schedule emit build host api".split()


@pytest.mark.parametrize("path", COMPILER, ids=lambda p: str(p.relative_to(ROOT)))
def test_stages_of_the_compiler_import_earlier_stages(path: Path) -> None:
    """Except for type checkers: what a program holds is annotated with classes of later stages."""
    stage, *rest = path.relative_to(ROOT / "compiler").parts
    if not rest:
        assert stage == "__init__.py"
        return
    for node in ast.parse(path.read_text()).body:
        for name in imported(node):
            if name.startswith("adjoint.compiler."):
                target = name.split(".")[2]
                assert STAGES.index(target) <= STAGES.index(stage), f"{path.name} imports {name}"


def test_classes_of_the_compiler_have_different_names() -> None:
    nodes = [node for path in COMPILER for node in ast.parse(path.read_text()).body]
    names = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_says_what_it_may_import(stage: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / "compiler" / stage / "__init__.py").read_text())) or ""
    used = {
        name.split(".")[2]
        for path in (ROOT / "compiler" / stage).rglob("*.py")
        for node in ast.parse(path.read_text()).body
        for name in imported(node)
        if name.startswith("adjoint.compiler.")
    } - {stage}
    assert "imports all" in text.replace("\n", " ") or used == {
        name for name in STAGES if f"``{name}``" in text.partition("imports")[2]
    }


# What the compiler asks an op by its name, each in one place: a branch that is not taken (``where``), and sums of
# gradients that are written in place.
ASKED = {"where", "untake", "unindex"}


def _is_op_name(node: ast.expr) -> bool:
    """Whether an expression is ``op.name`` or ends with ``.op.name``."""
    if not isinstance(node, ast.Attribute) or node.attr != "name":
        return False
    owner = node.value
    return (owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")) == "op"


def _lookups(tree: ast.Module) -> list[str]:
    """The places where the name of an op is looked up: in a container, or among other names."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(map(_is_op_name, (node.left, *node.comparators))):
            named = {c.value for c in (node.left, *node.comparators) if isinstance(c, ast.Constant)}
            found += [] if named and named <= ASKED else [ast.unparse(node)]
        elif isinstance(node, ast.Subscript) and _is_op_name(node.slice):
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("get", "pop", "setdefault"):
            found += [ast.unparse(node)] if any(map(_is_op_name, node.args)) else []
        elif isinstance(node, ast.Assign) and _is_op_name(
            node.value
        ):  # under another name, it would not be seen
            target = node.targets[0]
            found += [] if getattr(target, "attr", "") == "current" else [ast.unparse(node)]
    return found


@pytest.mark.parametrize("path", COMPILER, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_compiler_has_no_table_by_the_names_of_ops(path: Path) -> None:
    """All that the compiler knows about an op is in the op's record: ``lower``, ``phrase``, ``memory``."""
    assert _lookups(ast.parse(path.read_text())) == []


def test_lookups_by_the_names_of_ops_are_found() -> None:
    text = "T[op.name]\nT.get(i.op.name)\ni.op.name in T\nname = i.op.name\ni.op.name == 'where'\nop.name == 'sin'"
    assert len(_lookups(ast.parse(text))) == 5


def test_every_native_form_is_declared_beside_its_op() -> None:
    for op in OPS.values():
        if op.lower is None or op.lower.__module__ == "adjoint.core.native":  # a primitive
            continue
        path = ROOT.parent.joinpath(*op.lower.__module__.split(".")).with_suffix(".py")
        assert room_of(path) == "ops" and f'"{op.name}"' in path.read_text(), f"where is {op.name} lowered?"
