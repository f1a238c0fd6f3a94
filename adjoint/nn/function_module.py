"""Base class of the modules that call one function: activations and losses."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from adjoint.core.docstrings import shared_with
from adjoint.core.tensor import Tensor
from adjoint.nn.module import Module

__all__ = ["FunctionModule"]


class FunctionModule(Module):
    """A module that calls ``function`` with the inputs and with ``options`` as keyword arguments.

    A subclass sets ``function``, whose docstring describes its options.  A subclass with options defines
    ``__init__``, which sets ``options``.
    """

    function: ClassVar[Callable[..., Tensor]]
    options: dict[str, Any]

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "function" in vars(cls):
            shared_with(cls.function)(cls)

    def __init__(self) -> None:
        self.options = {}

    def extra_repr(self) -> str:
        """Return the options that are not the defaults as keyword arguments, for the module's repr."""
        parameters = inspect.signature(self.function).parameters
        changed = {k: v for k, v in self.options.items() if repr(v) != repr(parameters[k].default)}
        return ", ".join(f"{name}={value}" for name, value in changed.items())
