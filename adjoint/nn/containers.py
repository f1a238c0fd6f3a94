"""Modules and parameters in sequences and dictionaries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from adjoint.core.tensor import Tensor
from adjoint.errors import AdjointError, ArgumentError, IndexingError, InputError
from adjoint.nn.module import Module, Parameter

__all__ = [
    "ModuleDict",
    "ModuleList",
    "ParameterDict",
    "ParameterList",
    "Sequential",
]


def _item(owner: Any, index: Any) -> Any:
    """Return an item by its number, or several by a slice as a module of the same kind."""
    layers = list(owner)
    what = "parameters" if isinstance(owner, ParameterList) else "layers"
    if isinstance(index, slice):
        return owner._of(layers[index])
    if not isinstance(index, (int, np.integer)) or not -len(layers) <= index < len(layers):
        raise IndexingError(
            f"{type(owner).__name__}: {what} are numbered 0 … {len(layers) - 1}, but the index is {index!r}."
            if layers
            else f"{type(owner).__name__} has no {what}."
        )
    return layers[index]


def _called(layer: Any) -> str:
    """What a layer, a module or a function, is called in a message."""
    return type(layer).__name__ if isinstance(layer, Module) else getattr(layer, "__name__", repr(layer))


class Sequential(Module):
    """Modules, or plain functions, one after the other; ``layers[1:]`` shares them."""

    def __init__(self, *layers: Any) -> None:
        for i, layer in enumerate(layers):
            if not callable(layer):
                raise InputError(f"Sequential: a layer is callable, but layer {i} is {layer!r}.")
            setattr(self, str(i), layer)
        self.length = len(layers)

    def forward(self, x: Any) -> Any:
        """Pass the input through all layers."""
        layers = iter(self)
        try:
            for layer in layers:
                x = layer(x)
        except AdjointError as error:
            i = self.length - 1 - sum(1 for _ in layers)
            if i and isinstance(x, tuple):
                raise InputError(
                    f"Sequential: layer {i - 1}, {_called(self[i - 1])}, returned a tuple of {len(x)}, which "
                    f"layer {i}, {_called(self[i])}, does not take.\n"
                    "  RNN, LSTM and GRU return (outputs, state): put lambda pair: pair[0] behind them."
                ) from error
            raise
        return x

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return _item(self, index)

    def _of(self, layers: list[Any]) -> Sequential:
        return Sequential(*layers)

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, str(i)) for i in range(self.length))


class ModuleList(Module):
    """A list of modules whose parameters are seen."""

    def __init__(self, modules: Sequence[Module] = ()) -> None:
        self.length = 0
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> None:
        """Add a module at the end."""
        if not isinstance(module, Module):
            raise InputError(f"ModuleList holds modules, not {type(module).__name__}.")
        setattr(self, str(self.length), module)
        self.length += 1

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return _item(self, index)

    def _of(self, layers: list[Any]) -> ModuleList:
        return ModuleList(layers)

    def __iter__(self) -> Iterator[Module]:
        return (getattr(self, str(i)) for i in range(self.length))


class ModuleDict(Module):
    """A dictionary of modules whose parameters are seen; a key is a part of their paths.

    >>> import adjoint as ad
    >>> heads = ad.nn.ModuleDict({"mean": ad.nn.Linear(4, 1), "scale": ad.nn.Linear(4, 1)})
    >>> list(heads.state_dict())
    ['mean.weight', 'mean.bias', 'scale.weight', 'scale.bias']
    """

    def __init__(self, modules: Any = None) -> None:
        self.update(modules or {})

    def update(self, modules: Any) -> None:
        """Add modules from a dictionary or from pairs; those whose keys are known are replaced."""
        for key, module in modules.items() if isinstance(modules, (Mapping, ModuleDict)) else modules:
            self[key] = module

    def __setitem__(self, key: str, module: Module) -> None:
        if not isinstance(module, Module):
            raise InputError(f"ModuleDict holds modules, not {type(module).__name__}.")
        setattr(self, _key(self, key, self.keys()), module)

    def __getitem__(self, key: str) -> Any:
        return getattr(self, _known(self, key, self.keys()))

    def __delitem__(self, key: str) -> None:
        delattr(self, _known(self, key, self.keys()))

    def pop(self, key: str) -> Any:
        """Remove a module and return it."""
        module = self[key]
        del self[key]
        return module

    def __len__(self) -> int:
        return len(self.keys())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, key: object) -> bool:
        return key in self.keys()

    def keys(self) -> list[str]:
        """Return the keys."""
        return [name for name, _ in self.named_children()]

    def values(self) -> list[Module]:
        """Return the modules."""
        return list(self.children())

    def items(self) -> list[tuple[str, Module]]:
        """Return pairs of a key and its module."""
        return list(self.named_children())


def _key(owner: Module, key: Any, known: list[str]) -> str:
    """Return a key under which something can be kept; it is a part of a path and a name of an attribute."""
    kind = type(owner).__name__
    if not isinstance(key, str) or not key or "." in key:
        raise ArgumentError(f"{kind}: a key is a string without dots, but is {key!r}.")
    if key not in known and hasattr(owner, key):
        raise ArgumentError(f"{kind}: the key {key!r} is the name of one of its attributes.  Use another.")
    return key


def _known(owner: Module, key: Any, known: list[str]) -> str:
    if key not in known:
        there = f"it has {', '.join(known)}" if known else "it is empty"
        raise IndexingError(f"{type(owner).__name__} has no {key!r}; {there}.")
    return str(key)


def _as_parameter(value: Any) -> Any:
    """Return a parameter as it is, and anything else as a new one."""
    return value if isinstance(value, Tensor) and value.is_leaf and value.requires_grad else Parameter(value)


class ParameterList(Module):
    """A list of parameters; values that are none become parameters."""

    def __init__(self, values: Any = ()) -> None:
        self.length = 0
        self.extend(values)

    def append(self, value: Any) -> None:
        """Add a parameter at the end."""
        setattr(self, str(self.length), _as_parameter(value))
        self.length += 1

    def extend(self, values: Any) -> None:
        """Add parameters at the end."""
        for value in values:
            self.append(value)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return _item(self, index)

    def _of(self, values: list[Any]) -> ParameterList:
        return ParameterList(values)

    def __iter__(self) -> Iterator[Tensor]:
        return (getattr(self, str(i)) for i in range(self.length))


class ParameterDict(Module):
    """A dictionary of parameters; values that are none become parameters."""

    def __init__(self, values: Any = None) -> None:
        self.update(values or {})

    def update(self, values: Any) -> None:
        """Add parameters from a dictionary or from pairs; those whose keys are known are replaced."""
        for key, value in values.items() if isinstance(values, (Mapping, ParameterDict)) else values:
            self[key] = value

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self, _key(self, key, self.keys()), _as_parameter(value))

    def __getitem__(self, key: str) -> Any:
        return getattr(self, _known(self, key, self.keys()))

    def __delitem__(self, key: str) -> None:
        delattr(self, _known(self, key, self.keys()))

    def __len__(self) -> int:
        return len(self.keys())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, key: object) -> bool:
        return key in self.keys()

    def keys(self) -> list[str]:
        """Return the keys."""
        return list(self._names("_parameters"))

    def values(self) -> list[Any]:
        """Return the parameters."""
        return [getattr(self, key) for key in self.keys()]

    def items(self) -> list[tuple[str, Any]]:
        """Return pairs of a key and its parameter."""
        return [(key, getattr(self, key)) for key in self.keys()]
