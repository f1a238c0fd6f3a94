"""Functions of ``nn.functional`` as modules: what activations and losses share."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from adjoint.nn.module import Module

__all__ = ["FunctionModule", "as_module"]

M = TypeVar("M", bound="FunctionModule")


class FunctionModule(Module):
    """A function of ``nn.functional`` with its options."""

    name: ClassVar[str]
    options: dict[str, Any]

    def extra_repr(self) -> str:
        """The options."""
        return ", ".join(f"{k}={v}" for k, v in self.options.items())


def as_module(base: type[M], name: str, function: str, options: str) -> type[M]:
    """Make the class ``name`` of a function; ``options`` says in its documentation what it takes."""
    doc = f"``nn.functional.{function}`` as a module; options are its {options}."
    return type(name, (base,), {"name": function, "__doc__": doc, "__module__": base.__module__})
