"""Find names of parameters: from modules, arguments and the variables that a function or block uses."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import CO_VARARGS
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

from adjoint import tree
from adjoint.core.node import LEAF, Node
from adjoint.core.tensor import Tensor
from adjoint.nn.module import Module
from adjoint.nn.module_tree import unseen_parameters

__all__ = ["Names", "in_block", "listed", "of_function"]


class Names:
    """The parameters that should get gradients, with their names.

    ``wanted`` maps the id of a parameter to its name and the parameter.  ``results`` maps the names of
    variables to their values if these are results of ops, not leaves.  ``explicit`` is True if the user
    passed the parameters.
    """

    def __init__(self, given: Any, variables: dict[str, Any]) -> None:
        self.wanted: dict[int, tuple[str, Tensor]] = {}
        self.results: dict[str, Tensor] = {}
        self.explicit = given is not None
        self._tensors = {id(v): k for k, v in variables.items() if isinstance(v, Tensor)}
        self._modules: dict[int, tuple[str, Module]] = {}  # variables that are modules, by id
        self.modules: list[tuple[str, Module]] = []  # those whose parameters are wanted, with their names
        if given is not None:
            self._add_tree("", given)
        for name, value in variables.items():
            if isinstance(value, Module):
                self._modules.setdefault(id(value), (name, value))
            elif isinstance(value, Tensor):
                self._add_tensor(name, value)
            elif isinstance(value, (list, tuple, dict)) and len(value) <= 1000:
                self._add_tree(name, value)

    def _add_tree(self, name: str, value: Any) -> None:
        if isinstance(value, Module):
            self._add_module(name, value)
            return
        if not name and isinstance(value, dict) and all(isinstance(t, Tensor) for t in value.values()):
            for key, t in value.items():
                self._add_tensor(str(key), t)
            return
        for path, leaf in tree.paths(value, name):
            if isinstance(leaf, Tensor):
                self._add_tensor(path or "the parameter", leaf)

    def _add_tensor(self, name: str, t: Tensor) -> None:
        if t._node is LEAF or (self.explicit and t.is_leaf):
            self.wanted.setdefault(id(t), (name, t))
        elif isinstance(t._node, Node):
            self.results.setdefault(name, t)

    def _add_module(self, name: str, module: Module) -> None:
        self.modules.append((name, module))
        for path, p in module.named_parameters():
            self.wanted.setdefault(id(p), (f"{name}.{path}" if name else path, p))

    def add_modules(self, called: Iterable[Any], variables: Mapping[str, Any]) -> None:
        """Add the parameters of the modules that are variables and of the modules in ``called``.

        A module in ``called`` is named after the variable in ``variables`` that it is assigned to, or else
        after its class.  Nothing is added if the user passed the parameters.
        """
        if self.explicit:
            return
        names = {id(v): k for k, v in variables.items() if isinstance(v, Module) and not k.startswith("_")}
        known = dict(self._modules)
        for module in called:
            known.setdefault(id(module), (names.get(id(module), type(module).__name__), module))
        inner = {id(m) for _, module in known.values() for m in module.modules() if m is not module}
        outer = [each for k, each in known.items() if k not in inner]
        for name, module in outer:
            self._add_module(name if len(outer) > 1 else "", module)

    def unregistered(self) -> Iterator[tuple[str, str]]:
        """Yield each plain list or dictionary that hides parameters from a module: its name, a sentence."""
        for name, module in self.modules:
            for path in unseen_parameters(module):
                place = f"{name}.{path}" if name else f"self.{path} of {type(module).__name__}"
                yield (
                    f"{name}.{path}" if name else path,
                    f"{place} is a plain list, tuple or dictionary, so parameters() does not have the "
                    "parameters in it,\n  and optimisers, files and astype() leave them out.  Use "
                    "nn.ModuleList or nn.ModuleDict; for a parameter, an attribute of its own.",
                )

    def of(self, t: Tensor) -> str:
        """Return the name of a tensor, or "a tensor of shape (3,)" if it has no name."""
        found = self.wanted.get(id(t))
        if found is not None:
            return found[0]
        return self._tensors.get(id(t), f"a tensor of shape {t.shape}")


def of_function(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the variables that a function uses, by name: arguments, closure variables and globals.

    Public attributes of ``self`` are included as ``"self.name"``.
    """
    found: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        args, kwargs = (*function.args, *args), {**function.keywords, **kwargs}
        function = function.func
    function = getattr(function, "_f", function)  # the Python function of a compiled function
    if isinstance(function, Module):
        found["model"] = function
    if isinstance(function, MethodType):
        found["self"] = function.__self__
        function = function.__func__
        args = (found["self"], *args)
    if isinstance(function, FunctionType):
        code = function.__code__
        names = code.co_varnames[: code.co_argcount]
        found.update(zip(names, args, strict=False))
        if code.co_flags & CO_VARARGS:
            rest = code.co_varnames[code.co_argcount + code.co_kwonlyargcount]
            found.update({f"{rest}[{i}]": a for i, a in enumerate(args[len(names) :])})
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:
                found[name] = cell.cell_contents
            except ValueError:  # the variable has no value yet
                continue
        for name in _named(code):
            if name in function.__globals__:
                found.setdefault(name, function.__globals__[name])
    else:
        found.update({f"argument {i}": a for i, a in enumerate(args)})
    found.update(kwargs)
    owner = found.get("self")
    if owner is not None and not isinstance(owner, (Module, Tensor)):
        attributes = getattr(owner, "__dict__", {})
        held = {f"self.{k}": v for k, v in attributes.items() if not k.startswith("_")}
        found.update(held)
    return found


def in_block(frame: FrameType, line: int) -> dict[str, Any]:
    """Return the variables that are named in the ``with`` block at ``line``, with their values.

    The result is empty if the source code is not available.
    """
    lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
    try:
        parsed = ast.parse("".join(lines))
    except (SyntaxError, ValueError):  # a cell with magic commands, or no source
        return {}
    blocks = [
        node
        for node in ast.walk(parsed)
        if isinstance(node, (ast.With, ast.AsyncWith)) and node.lineno <= line <= node.body[0].lineno
    ]
    if not blocks:
        return {}
    block = max(blocks, key=lambda node: node.lineno)
    names = {node.id for part in block.body for node in ast.walk(part) if isinstance(node, ast.Name)}
    local = frame.f_locals
    found: dict[str, Any] = {}
    for name in sorted(names):
        if name in local:
            found[name] = local[name]
        elif name in frame.f_globals:
            found[name] = frame.f_globals[name]
    return found


def _named(code: CodeType) -> list[str]:
    """Return the global names in a code object and in the functions inside it."""
    found = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += _named(constant)
    return found


def listed(names: list[str], limit: int = 4) -> str:
    """Return names as text, such as "a, b and c"; for more than ``limit`` names, "a, b, c and 5 others"."""
    if len(names) > limit:
        return f"{', '.join(names[: limit - 1])} and {len(names) - limit + 1} others"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
