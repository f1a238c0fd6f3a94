"""Base classes by which a trace recognises modules, their shells, optimisers, groups and sparse matrices.

The classes themselves are defined in packages that a trace cannot import.
"""

from typing import Any

__all__ = ["GroupRole", "MatrixRole", "ModuleRole", "OptimizerRole", "ShellRole"]


class ModuleRole:
    """Base class of ``nn.Module``."""

    __slots__ = ()


class OptimizerRole:
    """Base class of ``optim.Optimizer``."""

    __slots__ = ()


class GroupRole:
    """Base class of the parameter groups of optimisers."""

    __slots__ = ()
    hyper: dict[str, Any]


class MatrixRole:
    """Base class of ``SparseArray``."""

    __slots__ = ()


class ShellRole:
    """Base class of what the structure of a tree keeps of a module: the module without its parameters."""

    __slots__ = ("module",)
    module: Any

    def parameters_of(self, other: Any) -> tuple[Any, ...] | None:
        """Return the parameters of a module that differs only in them; None for another object."""
        raise NotImplementedError
