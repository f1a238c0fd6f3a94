"""Sequences and dictionaries of modules and parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from adjoint import words
from adjoint.core.tensor import Tensor
from adjoint.errors import AdjointError, ArgumentError, IndexingError, InputError
from adjoint.nn.module import Module, Parameter
from adjoint.nn.shared_docs import layer_doc
from adjoint.typing import ArrayLike

__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]


class _Numbered(Module):
    """Base class of lists of modules or parameters; the items are attributes named "0", "1", …"""

    items_are: ClassVar[str] = "layers"  # the noun for the items in error messages

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self.length = 0
        self.extend(items)

    def _checked(self, item: Any) -> Any:
        """Return ``item`` as it is stored; subclasses raise if it has the wrong type, or convert it."""
        return item

    def append(self, item: Any) -> None:
        """Add an item at the end.

        Parameters
        ----------
        item : object
            The item.

        Raises
        ------
        InputError
            If the item has the wrong type.
        """
        setattr(self, str(self.length), self._checked(item))
        self.length += 1

    def extend(self, items: Iterable[Any]) -> None:
        """Add items at the end.

        Parameters
        ----------
        items : iterable
            The items.
        """
        for item in items:
            self.append(item)

    def _slice(self, items: list[Any]) -> Module:
        """Return a container of the same class with the given items, which are a slice of this one."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, str(i)) for i in range(self.length))

    def __getitem__(self, index: Any) -> Any:
        items, kind = list(self), type(self).__name__
        if isinstance(index, slice):
            return self._slice(items[index])
        if not isinstance(index, (int, np.integer)) or not -len(items) <= index < len(items):
            raise IndexingError(
                f"{kind}: the {self.items_are} have the indices 0 … {len(items) - 1}, but the index is "
                f"{index!r}."
                if items
                else f"{kind} has no {self.items_are}."
            )
        return items[index]


class _Keyed(Module):
    """Base class of dictionaries: the items are attributes, and the keys are the names of the attributes."""

    def __init__(self, items: Any = None) -> None:
        self.update(items or {})

    def _checked(self, item: Any) -> Any:
        """Return ``item`` as it is stored; raise if it has the wrong type.  Subclasses define this method."""
        raise NotImplementedError

    def keys(self) -> list[str]:
        """Return the keys.

        Returns
        -------
        list of str
            The keys, in the order of assignment.
        """
        raise NotImplementedError

    def update(self, items: Any) -> None:
        """Add items; an item with a known key is replaced.

        Parameters
        ----------
        items : mapping or iterable of pairs
            The items by key.
        """
        for key, item in items.items() if isinstance(items, (Mapping, _Keyed)) else items:
            self[key] = item

    def pop(self, key: str) -> Any:
        """Remove an item and return it.

        Parameters
        ----------
        key : str
            The key.

        Returns
        -------
        Module or Tensor
            The item.

        Raises
        ------
        IndexingError
            If there is no such key.
        """
        item = self[key]
        del self[key]
        return item

    def values(self) -> list[Any]:
        """Return the items.

        Returns
        -------
        list
            The items, in the order of ``keys()``.
        """
        return [getattr(self, key) for key in self.keys()]

    def items(self) -> list[tuple[str, Any]]:
        """Return pairs of a key and its item.

        Returns
        -------
        list of tuple
            The pairs, in the order of ``keys()``.
        """
        return [(key, getattr(self, key)) for key in self.keys()]

    def __setitem__(self, key: str, item: Any) -> None:
        kind = type(self).__name__
        if not isinstance(key, str) or not key or "." in key:
            raise ArgumentError(f"{kind}: a key must be a non-empty string without dots, but is {key!r}.")
        if key not in self.keys() and hasattr(self, key):
            raise ArgumentError(
                f"{kind}: the key {key!r} is already the name of an attribute of {kind}.  Use a different "
                "key."
            )
        setattr(self, key, self._checked(item))

    def __getitem__(self, key: str) -> Any:
        return getattr(self, self._known(key))

    def __delitem__(self, key: str) -> None:
        delattr(self, self._known(key))

    def _known(self, key: Any) -> str:
        known = self.keys()
        if key not in known:
            there = f"The keys are {', '.join(known)}" if known else "It has no keys"
            raise IndexingError(f"{type(self).__name__} has no key {key!r}.  {there}.")
        return str(key)

    def __len__(self) -> int:
        return len(self.keys())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, key: object) -> bool:
        return key in self.keys()


def _module(owner: Module, item: Any) -> Module:
    if not isinstance(item, Module):
        raise InputError(
            f"{type(owner).__name__}: each item must be a module, but one is {words.a(type(item).__name__)}."
        )
    return item


def _parameter(item: Any) -> Tensor:
    """Return ``item`` if it is a parameter, otherwise a new parameter with this value."""
    return item if isinstance(item, Tensor) and item.is_leaf and item.requires_grad else Parameter(item)


def _called(layer: Any) -> str:
    """Return the name of a layer for a message: the class name of a module, or the name of a function."""
    return type(layer).__name__ if isinstance(layer, Module) else getattr(layer, "__name__", repr(layer))


@layer_doc
class Sequential(_Numbered):
    """Call modules or plain functions one after the other.

    ``layers[i]`` returns a layer; ``layers[1:]`` returns a ``Sequential`` that shares the layers.

    Parameters
    ----------
    *layers : callable
        The layers.  Each one gets the output of the one before.

    Raises
    ------
    InputError
        If a layer is not callable.

    >>> model = ad.nn.Sequential(ad.nn.Linear(4, 8), ad.tanh, ad.nn.Linear(8, 1))
    >>> model(ad.ones((2, 4), dtype="float32")).shape
    (2, 1)
    """

    def __init__(self, *layers: Any) -> None:
        super().__init__(layers)

    def _checked(self, item: Any) -> Any:
        if not callable(item):
            raise InputError(f"Sequential: a layer must be callable, but layer {self.length} is {item!r}.")
        return item

    def _slice(self, items: list[Any]) -> Sequential:
        return Sequential(*items)

    def forward(self, x: Any) -> Tensor:
        """Pass the input through all layers.

        Parameters
        ----------
        x : object
            The input of the first layer.

        Returns
        -------
        object
            The output of the last layer.
        """
        layers = iter(self)
        try:
            for layer in layers:
                x = layer(x)
        except AdjointError as error:
            i = self.length - 1 - sum(1 for _ in layers)
            if i and isinstance(x, tuple):
                raise InputError(
                    f"Sequential: layer {i - 1}, {_called(self[i - 1])}, returned a tuple of "
                    f"{words.count(len(x), 'item')}, "
                    f"but layer {i}, {_called(self[i])}, does not accept a tuple.\n"
                    "  RNN, LSTM and GRU return (outputs, state): add `lambda pair: pair[0]` as the next "
                    "layer."
                ) from error
            raise
        return x


@layer_doc
class ModuleList(_Numbered):
    """A list of modules.  Their parameters are parameters of the list.

    Parameters
    ----------
    modules : iterable of Module
        The modules.

    >>> layers = ad.nn.ModuleList([ad.nn.Linear(4, 4), ad.nn.Linear(4, 1, bias=False)])
    >>> list(layers.state_dict())
    ['0.weight', '0.bias', '1.weight']
    """

    def __init__(self, modules: Sequence[Module] = ()) -> None:
        super().__init__(modules)

    def _checked(self, item: Any) -> Module:
        return _module(self, item)

    def _slice(self, items: list[Any]) -> ModuleList:
        return ModuleList(items)


@layer_doc
class ParameterList(_Numbered):
    """A list of parameters.  Other values become parameters.

    Parameters
    ----------
    values : iterable of array_like
        The parameters.

    >>> weights = ad.nn.ParameterList([[1.0, 2.0], [3.0]])
    >>> [p.shape for p in weights]
    [(2,), (1,)]
    """

    items_are = "parameters"

    def __init__(self, values: Iterable[ArrayLike] = ()) -> None:
        super().__init__(values)

    def _checked(self, item: Any) -> Tensor:
        return _parameter(item)

    def _slice(self, items: list[Any]) -> ParameterList:
        return ParameterList(items)


@layer_doc
class ModuleDict(_Keyed):
    """A dictionary of modules.  Their parameters are parameters of the dictionary.

    Parameters
    ----------
    modules : mapping or iterable of pairs, optional
        The modules by key.  A key must not contain dots: it is a part of the paths of parameters.

    >>> heads = ad.nn.ModuleDict({"mean": ad.nn.Linear(4, 1), "scale": ad.nn.Linear(4, 1)})
    >>> list(heads.state_dict())
    ['mean.weight', 'mean.bias', 'scale.weight', 'scale.bias']
    """

    def __init__(self, modules: Any = None) -> None:
        super().__init__(modules)

    def _checked(self, item: Any) -> Module:
        return _module(self, item)

    def keys(self) -> list[str]:
        """Return the keys, in the order of assignment."""
        return [name for name, _ in self.named_children()]


@layer_doc
class ParameterDict(_Keyed):
    """A dictionary of parameters.  Other values become parameters.

    Parameters
    ----------
    values : mapping or iterable of pairs, optional
        The parameters by key.  A key must not contain dots.

    >>> weights = ad.nn.ParameterDict({"scale": [1.0], "shift": [0.0]})
    >>> list(weights.state_dict())
    ['scale', 'shift']
    """

    def __init__(self, values: ArrayLike | None = None) -> None:
        super().__init__(values)

    def _checked(self, item: Any) -> Tensor:
        return _parameter(item)

    def keys(self) -> list[str]:
        """Return the keys, in the order of assignment."""
        return list(self._names("_parameters"))
