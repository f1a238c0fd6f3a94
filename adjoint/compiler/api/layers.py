"""The parameters, buffers and layers of modules, which a traced function must not change."""

from __future__ import annotations

from collections.abc import Iterator
from operator import is_
from typing import Any

from adjoint import tree
from adjoint.compiler.guards.places import is_own_class
from adjoint.compiler.guards.values import CACHES, is_module
from adjoint.core.roles import ModuleRole, ShellRole

__all__ = ["Layers", "is_layer", "modules_in", "named_tensors"]


class Layers:
    """Saves the parameters, buffers and layers that modules have, before a trace."""

    def __init__(self) -> None:
        self.saved: dict[int, tuple[Any, dict[str, Any], dict[str, Any]]] = {}

    def add(self, value: Any) -> None:
        """Save the attributes of a module and of its submodules; nothing for other values."""
        if is_module(value) and not isinstance(value, type):
            for m in value.modules():
                if id(m) not in self.saved:
                    caches = {k: dict(vars(m)[k]) for k in CACHES if k in vars(m)}
                    self.saved[id(m)] = m, dict(vars(m)), caches

    def restore(self) -> str:
        """Restore the attributes of modules whose parameters, buffers or layers have changed.

        Return a text that names the changed attributes of the first such module; "" if nothing has changed.
        """
        text = ""
        for m, attributes, caches in self.saved.values():
            same = [*vars(m)] == [*attributes] and all(map(is_, vars(m).values(), attributes.values()))
            if same and all([attributes[k] == v for k, v in caches.items()]):  # noqa: C419  no generator
                continue
            before, now = _parts(attributes, caches), _parts(vars(m), vars(m))
            names = [k for k in {**before, **now} if before.get(k) is not now.get(k)]
            if names:
                for k, v in caches.items():
                    attributes[k].clear()
                    attributes[k].update(v)
                for k in vars(m).keys() - attributes.keys():
                    del vars(m)[k]
                vars(m).update(attributes)
                text = text or f"{', '.join(names)} of {type(m).__name__}"
        return text


def _parts(attributes: dict[str, Any], caches: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters, buffers and layers among the attributes of a module.

    ``caches`` has the names of parameters and buffers.
    """
    names = {name for k in CACHES for name in caches.get(k, ())}
    return {k: v for k, v in attributes.items() if k in names or is_module(v)}


def named_tensors(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object with their names; of a module also its tensors, by path."""
    yield from vars(owner).items()
    if is_module(owner):
        yield from owner.named_parameters()
        yield from owner.named_buffers()


def modules_in(structure: tree.Structure) -> Iterator[Any]:
    """Yield the modules in a tree of arguments, and their submodules."""
    if isinstance(structure.rest, ShellRole):
        yield from structure.rest.module.modules()
    for child in structure.children:
        yield from modules_in(child)


def is_layer(cls: type) -> bool:
    """Return whether code of the library reads the attributes of modules of this class: a layer."""
    layers = [c for c in cls.__mro__ if issubclass(c, ModuleRole) and not is_own_class(c)]
    return len(layers) > 2  # more than ``Module`` and its role
