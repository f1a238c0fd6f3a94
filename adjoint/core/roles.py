"""Base classes by which a trace recognises modules, optimisers, parameter groups and sparse matrices.

The classes themselves are defined in packages that a trace cannot import.
"""

from typing import Any

__all__ = ["GroupRole", "MatrixRole", "ModuleRole", "OptimizerRole"]


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
