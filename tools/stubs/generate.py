"""``python tools/stubs/generate.py``: write the stubs of ``adjoint.numpy`` and ``adjoint.scipy``.

A function of these namespaces has three overloads: plain values in, NumPy's or SciPy's result out; a tensor
among the operands, tensors out; anything else, Any out.  Which parameters are operands, and what is returned,
is observed in the calls of tests/support/public_functions.py.  Results of NumPy's functions for arrays are
those of its own stubs, read by mypy.  Functions without operands keep NumPy's types.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import public_functions  # noqa: E402

import adjoint as ad  # noqa: E402
from adjoint.numpy.build import Ufunc  # noqa: E402

NUMPY = ["numpy", "numpy.linalg", "numpy.fft", "numpy.random"]
SCIPY = [
    f"scipy.{part}"
    for part in """
        special linalg integrate optimize signal interpolate ndimage spatial.distance sparse sparse.linalg
        stats
        """.split()
]
JOINS = set("concatenate concat stack vstack hstack dstack column_stack block".split())
# Parameters that may be tensors, although they have defaults
OPTIONAL = set("a_min a_max min max weights initial prepend append fill_value loc scale b s".split())
# The types of other parameters; those that are not here are Any
TYPES = {"dtype": "DTypeLike | None", "order": "str | None", "copy": "bool | None", "indexing": "str"}
_BOOL = """
    rowvar return_index return_inverse return_counts equal_nan increasing hermitian full_matrices compute_uv
    endpoint retstep sparse lower check_finite overwrite_a overwrite_b
    """
TYPES |= dict.fromkeys(_BOOL.split(), "bool")
# Calls of functions for which the first accepted template is not the usual call
V, W, M = (np.array([0.3, 0.5, 0.8]), np.array([0.2, 0.4, 0.6]), np.array([[2.0, 0.3], [0.3, 1.5]]))
CALLS = {
    "numpy.where": (V > 0.4, V, W), "numpy.concat": ([V, W],), "numpy.einsum": ("i,i->i", V, W),
    "numpy.block": ([V, W],), "numpy.select": ([V > 0.4], [V]), "numpy.array": ([V, W],),
}  # fmt: skip
CONDITIONS = {"numpy.where"}  # the first argument is an operand, although it is Boolean here
HEAD = '''# Written by tools/stubs/generate.py with NumPy {version}
"""{doc}"""

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import Any, NamedTuple, overload

import numpy as np
{numpy}from adjoint.core.tensor import Tensor
from adjoint.typing import Array, DTypeLike, Mixed, Plain

# mypy: disable-error-code="overload-overlap, explicit-override"

'''
UFUNCS = """
class _Ufunc:
    __name__: str
    nin: int
    nout: int
    nargs: int
    ntypes: int
    types: list[str]
    identity: Any
    signature: str | None
    def at(self, a: Any, indices: Any, b: Any = ..., /) -> None: ...
{methods}
"""


def parameters(f: Any) -> list[inspect.Parameter]:
    """Return the parameters of a function, or none if they are unknown."""
    try:
        return list(inspect.signature(f).parameters.values())
    except ValueError:
        return []


class Facts:
    """What is known about a function: its operands, and its results for plain values and for a tensor."""

    def __init__(self) -> None:
        self.operands: set[int] = set()
        self.template: Any = None
        self.plain = self.tensor = "Any"


tuples: dict[str, str] = {}  # classes of named tuples by name


def named(found: Any) -> str:
    """Return the name of a class of named tuples like ``found``, which is written into the stub."""
    kinds = [kind(v) for v in found]
    name = f"_{type(found).__name__}" + "OfTensors" * ("Tensor" in kinds)
    fields = "".join(f"    {field}: {k}\n" for field, k in zip(found._fields, kinds, strict=True))
    tuples[name] = f"class {name}(NamedTuple):\n{fields}"
    return name


def kind(found: Any) -> str:
    """Return the type of a result."""
    if hasattr(found, "_fields"):
        return named(found)
    if isinstance(found, ad.Tensor):
        return "Tensor"
    if type(found) is np.ndarray:
        return "Array"
    if type(found) in (bool, int, str):
        return type(found).__name__
    if type(found) is tuple and found:
        return f"tuple[{', '.join(map(kind, found))}]"
    if type(found) is list and found and len(set(map(kind, found))) == 1:
        return f"list[{kind(found[0])}]"
    return "Any"


def is_operand(a: Any) -> bool:
    """Return whether an argument is an array of floats or a list of them."""
    if isinstance(a, np.ndarray):
        return a.dtype.kind == "f"
    return isinstance(a, list) and bool(a) and all(map(is_operand, a))


def with_tensor(a: Any) -> Any:
    """Return an operand with its first array as a tensor."""
    return [with_tensor(a[0]), *a[1:]] if isinstance(a, list) else ad.tensor(a)


MORE = {
    "numpy.dsplit": (M.reshape(1, 2, 2), 2),
    "numpy.broadcast_to": (V, (2, 3)),
    "numpy.astype": (V, np.float32),
}


def samples() -> Iterator[tuple[str, Any]]:
    """Yield the names of functions with arguments; a function that has several names occurs under each."""
    done: set[str] = set()
    for name, theirs, template in public_functions.accepted(done):
        done.add(name)
        module = name.rpartition(".")[0]
        for alias, value in [*vars(importlib.import_module(module)).items()]:
            if value is theirs:
                yield f"{module}.{alias}", CALLS.get(name, template)
    yield from MORE.items()


def observed() -> dict[str, Facts]:
    """Return the facts of all functions of NumPy and SciPy that are also in adjoint's namespaces."""
    found: dict[str, Facts] = {}
    for name, template in samples():
        module, _, function = name.rpartition(".")
        try:
            ours = getattr(importlib.import_module(f"adjoint.{module}"), function)
        except (ImportError, AttributeError):
            continue
        facts = found.setdefault(name, Facts())
        if name in CONDITIONS:
            facts.operands.add(0)
        for i, a in enumerate(template):
            if not is_operand(a):
                continue
            given = (*copy.deepcopy(template[:i]), with_tensor(a), *copy.deepcopy(template[i + 1 :]))
            try:
                result = ours(*given)
            except Exception:
                continue
            facts.operands.add(i)
            if facts.template is None:
                facts.template, facts.tensor = template, kind(result)
                facts.plain = kind(ours(*copy.deepcopy(template)))
    return found


def shown(a: Any) -> str:
    """Return an argument as Python code, with A for each array."""
    if isinstance(a, np.ndarray):
        return "A"
    if isinstance(a, (list, tuple)):
        inside = ", ".join(map(shown, a))
        return f"[{inside}]" if isinstance(a, list) else f"({inside},)"
    return "np.sin" if callable(a) else repr(a)


def numpy_results(facts: dict[str, Facts]) -> None:
    """Set the results for arrays to those that NumPy's stubs declare."""
    names = [n for n in facts if n.startswith("numpy") and facts[n].template is not None]
    names = [n for n in names if not facts[n].plain.startswith("_")]
    lines = ["import numpy as np", "from typing import Any", "A: np.ndarray[Any, np.dtype[np.float64]]"]
    for n in names:
        lines.append(f"reveal_type(np{n[5:]}({', '.join(map(shown, facts[n].template))}))")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "calls.py")
        script.write_text("\n".join(lines))
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--config-file=", script.name],
            cwd=folder,
            capture_output=True,
            text=True,
        )
    for found in re.finditer(r'calls\.py:(\d+): note: Revealed type is "(.*)"', done.stdout):
        facts[names[int(found[1]) - 4]].plain = declared(found[2])


def declared(text: str) -> str:
    """Return the type that a stub uses for one that mypy has revealed."""
    text = text.rstrip("?")
    if re.match(r"(numpy\.)?ndarray\[", text):
        return "Array"
    if found := re.fullmatch(r"builtins\.(int|bool|str)", text):
        return found[1]
    if found := re.match(r"(?:builtins\.)?(tuple|list)\[(.*?)(?:, fallback=.*)?\]$", text):
        parts = top_level(found[2])
        if parts[-1:] == ["..."]:
            return f"tuple[{declared(parts[0])}, ...]"
        return f"{found[1]}[{', '.join(map(declared, parts))}]"
    return "Any"


def top_level(text: str) -> list[str]:
    """Divide a text at the commas that are not inside brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c == "[") - (c == "]")
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts]


def signature(ps: list[inspect.Parameter], operands: set[int], operand: str) -> str:
    """Return the parameters of an overload, in which operands have the type ``operand``."""
    written: list[str] = []
    before: Any = None
    optional = False
    any_number = [
        i for i, p in enumerate(ps) if p.kind is p.VAR_POSITIONAL and max(operands, default=-1) >= i
    ]
    for i, p in enumerate(ps):
        chosen = i in (any_number or operands)
        # an operand is required, except after other parameters with defaults
        optional = p.default is not p.empty and (optional or not chosen or operand == "Any")
        type_ = f"{operand} | None" if p.name in OPTIONAL else TYPES.get(p.name, "Any")
        if chosen:
            type_ = operand
        if operand == "Any":
            type_ = "Any"
        elif any_number and chosen:
            type_ += " | str"  # the first argument of einsum
        if before is p.POSITIONAL_ONLY and p.kind is not p.POSITIONAL_ONLY:
            written.append("/")
        if p.kind is p.KEYWORD_ONLY and before not in (p.KEYWORD_ONLY, p.VAR_POSITIONAL):
            written.append("*")
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        written.append(f"{star}{p.name}: {type_}" + (" = ..." * optional))
        before = p.kind
    if before is inspect.Parameter.POSITIONAL_ONLY:
        written.append("/")
    return ", ".join(written)


def overloads(head: str, cases: list[tuple[str, str]], indent: str = "") -> list[str]:
    """Return the overloads ``head(parameters) -> result`` for pairs of parameters and results."""
    lines = []
    for given, result in cases:
        lines += [f"{indent}@overload", f"{indent}def {head}({given}) -> {result}: ..."]
    return lines


def function(name: str, theirs: Any, ours: Any, facts: Facts) -> list[str]:
    """Return the overloads of a function."""
    ps, mine = parameters(theirs), parameters(ours)
    if not facts.operands:
        return [f"def {name}({signature(ps, set(), 'Any')}) -> {facts.tensor}: ..."]
    many = " | ValuesView[{0}] | KeysView[{0}] | ItemsView[Any, {0}] | Iterator[{0}]" if name in JOINS else ""
    plain, mixed = ("Plain" + many.format("Plain"), "Mixed" + many.format("Mixed"))
    cases = [(ps, plain, facts.plain), (mine, mixed, facts.tensor), (ps, "Any", "Any")]
    return overloads(name, [(signature(p, facts.operands, operand), result) for p, operand, result in cases])


KINDS = [("complex | np.generic", "Any"), ("Plain", "Array"), ("Mixed", "Tensor"), ("Any", "Any")]
REST = """
    out: Any = ..., *, where: Any = ..., casting: Any = ..., order: Any = ..., dtype: Any = ..., **kwargs: Any
    """.strip()


def ufunc_class(nin: int, nout: int) -> list[str]:
    """Return the class of ufuncs with ``nin`` operands and ``nout`` results."""
    cases = []
    for operand, result in KINDS:
        given = "".join(f"x{i}: {operand}, " for i in range(1, nin + 1))
        returned = result if nout == 1 else f"tuple[{', '.join([result] * nout)}]"
        cases.append((f"self, {given}/, {REST}", returned))
    return [f"class _Ufunc{nin}{nout}(_Ufunc):", *overloads("__call__", cases, "    ")]


def ufunc_methods() -> str:
    """Return the methods of all ufuncs."""
    lines = []
    for name in ("reduce", "accumulate", "reduceat", "outer"):
        cases = []
        for operand, result in KINDS[1:]:
            second = {"reduceat": "indices: Any, ", "outer": f"x2: {operand}, "}.get(name, "")
            returned = "Any" if name == "reduce" and operand == "Plain" else result
            cases.append((f"self, array: {operand}, {second}/, *args: Any, **kwargs: Any", returned))
        lines += overloads(name, cases, "    ")
    return "\n".join(lines)


def numpy_stub(module: str, facts: dict[str, Facts]) -> str:
    """Return the stub of a module of ``adjoint.numpy``."""
    theirs, ours = importlib.import_module(module), importlib.import_module(f"adjoint.{module}")
    lines: list[str] = []
    own = "c_ r_ mgrid ogrid".split()
    submodules = {m.rpartition(".")[2] for m in NUMPY if m.startswith(f"{module}.")}
    if module == "numpy":
        lines += [UFUNCS.format(methods=ufunc_methods())]
        kinds = {(f.nin, f.nout) for n in ours.__all__ if isinstance(f := getattr(theirs, n), np.ufunc)}
        lines += [line for k in sorted(kinds) for line in ufunc_class(*k)]
    same, defined = [], []
    for name in ours.__all__:
        value = getattr(theirs, name)
        known = facts.get(f"{module}.{name}")
        if isinstance(value, np.ufunc) and isinstance(getattr(ours, name), Ufunc):
            defined.append(f"{name}: _Ufunc{value.nin}{value.nout}")
        elif name in submodules:
            defined.append(f"from adjoint.numpy import {name} as {name}")
        elif name in own or (isinstance(value, ModuleType) and name in ("core", "f2py")):
            defined.append(f"{name}: Any")
        elif name == "vectorize":
            defined.append("from adjoint.numpy.mapping import vectorize as vectorize")
        elif callable(value) and not isinstance(value, type) and known is not None and known.operands:
            defined += function(name, value, value, known)
        else:
            same.append(name)
    imports = "".join(f"from {module} import {n} as {n}\n" for n in same)
    return text_of(module, ours, [*lines, *defined], imports)


def text_of(module: str, ours: ModuleType, body: list[str], imports: str = "") -> str:
    """Return the text of a stub, with the classes of named tuples that occur in it."""
    known = "\n".join(body)
    classes = [text for name, text in tuples.items() if re.search(rf"\b{name}\b", known)]
    head = HEAD.format(version=np.__version__[:3], doc=f"The types of ``adjoint.{module}``.", numpy=imports)
    listed = ", ".join(f'"{n}"' for n in ours.__all__)
    return "\n".join([head + f"__all__ = [{listed}]", *classes, known]) + "\n"


def annotated(f: Any) -> Facts:
    """Return what the annotations of a function of adjoint say."""
    facts = Facts()
    for i, p in enumerate(parameters(f)):
        if "ArrayLike" in str(p.annotation):
            facts.operands.add(i)
    declared = str(inspect.signature(f).return_annotation).replace("_Tensor", "Tensor")
    facts.tensor = "Tensor" if declared in ("Tensor", "<class 'adjoint.core.tensor.Tensor'>") else "Any"
    return facts


def class_of(value: Any, name: str) -> list[str]:
    """Return the class of a distribution."""
    lines = [
        f"class _{name}:",
        "    name: str",
        "    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...",
    ]
    for method in sorted({m for c in type(value).__mro__[:-1] for m in vars(c)}):
        if method[0] == "_" or method == "arguments" or not callable(getattr(value, method)):
            continue
        given = "self, x: {0}, *args: {0}, **kwargs: {0}"
        vectors = "multivariate" in type(value).__module__  # their results are numbers for one point
        cases = [(given.format(t), "Any" if vectors and r == "Array" else r) for t, r in KINDS]
        lines += overloads(method, cases, "    ")
    return [*lines, "    def __getattr__(self, name: str) -> Any: ..."]


def scipy_stub(module: str, facts: dict[str, Facts]) -> str:
    """Return the stub of a module of ``adjoint.scipy``."""
    ours, theirs = importlib.import_module(f"adjoint.{module}"), importlib.import_module(module)
    lines: list[str] = []
    classes: dict[str, list[str]] = {}
    for name in ours.__all__:
        value = getattr(ours, name)
        if isinstance(value, type):
            lines.append(f"from {value.__module__} import {name} as {name}")
        elif isinstance(value, ModuleType):
            lines.append(f"from adjoint.{module} import {name} as {name}")
        elif isinstance(value, FunctionType):
            known = facts.get(f"{module}.{name}")
            if known is None or not known.operands:
                known = annotated(value)
            original = getattr(theirs, name, value)
            lines += function(name, original if parameters(original) else value, value, known)
        else:
            kind_ = type(value).__name__.strip("_")
            classes.setdefault(kind_, class_of(value, kind_))
            lines.append(f"{name}: _{kind_}")
    body = [*(line for c in classes.values() for line in c), *lines, "def __getattr__(name: str) -> Any: ..."]
    return text_of(module, ours, body)


def path_of(module: str) -> Path:
    """Return the path of the stub of a module."""
    return Path(str(importlib.import_module(f"adjoint.{module}").__file__)).with_suffix(".pyi")


def stubs() -> dict[Path, str]:
    """Return the texts of all stubs by path."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        facts = observed()
        numpy_results(facts)
        found = {path_of(m): numpy_stub(m, facts) for m in NUMPY}
        return found | {path_of(m): scipy_stub(m, facts) for m in SCIPY}


if __name__ == "__main__":
    written = stubs()
    for path, text in written.items():
        path.write_text(text)
    subprocess.run(
        [sys.executable, "-m", "ruff", "check", "-q", "--fix", "--select", "F,I", *map(str, written)]
    )
