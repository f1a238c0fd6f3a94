"""Functions of ``nn.functional`` as modules: what activations and losses share."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, TypeVar

from adjoint.errors import InputError
from adjoint.hints import KEYWORDS, check_keywords
from adjoint.nn import functional as F  # noqa: N812  the name that people's hands know
from adjoint.nn.module import Module

__all__ = ["FunctionModule", "as_module"]

M = TypeVar("M", bound="FunctionModule")


class FunctionModule(Module):
    """A function of ``nn.functional`` with its options, those after its ``inputs`` first arguments."""

    name: ClassVar[str]
    inputs: ClassVar[int] = 1
    options: dict[str, Any]

    def __init__(self, *values: Any, **options: Any) -> None:
        parameters = inspect.signature(getattr(F, self.name)).parameters.values()
        known = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD][self.inputs :]
        unknown = [k for k in options if k not in known or k in known[: len(values)]]
        if unknown or len(values) > len(known):
            if unknown and KEYWORDS.get(unknown[0]) in known:
                check_keywords(getattr(F, self.name), options, type(self).__name__)
            given = ", ".join([*map(repr, values), *(f"{k}={v!r}" for k, v in options.items())])
            raise InputError(
                f"{type(self).__name__} takes {', '.join(known) or 'no options'}, but was given {given}."
            )
        self.options = dict(zip(known, values, strict=False)) | options

    def extra_repr(self) -> str:
        """The options."""
        return ", ".join(f"{k}={v}" for k, v in self.options.items())


def as_module(base: type[M], name: str, function: str, options: str) -> type[M]:
    """Make the class ``name`` of a function; ``options`` says in its documentation what it takes."""
    doc = f"``nn.functional.{function}`` as a module; options are its {options}."
    return type(name, (base,), {"name": function, "__doc__": doc, "__module__": base.__module__})
