"""Base classes by which a trace recognises modules, optimisers and their parts, and sparse matrices.

The classes themselves are defined in packages that a trace cannot import.
"""

from typing import Any

__all__ = [
    "CountRole", "GeneratorRole", "GroupRole", "MatrixRole", "ModuleRole", "NumbersRole", "OptimizerRole",
    "ShellRole", "SlotsRole", "UpdateRole",
]  # fmt: skip


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


class GeneratorRole:
    """Base class of ``random.Generator``."""

    __slots__ = ()


class UpdateRole:
    """Base class of actions that can be undone, such as updates of optimisers: ``take_back(count())``."""

    __slots__ = ()
    optimizer: Any = None
    count: Any
    take_back: Any


class CountRole(UpdateRole):
    """Base class of actions that only count; native code can count the ``counters``."""

    __slots__ = ()
    counters: Any


class NumbersRole:
    """Base class of the hyper-parameters of one update; some do not depend on the step count."""

    __slots__ = ()


class SlotsRole:
    """Base class of the arrays that an optimiser keeps for its parameters."""

    __slots__ = ()
    held_by: tuple[Any, str]
