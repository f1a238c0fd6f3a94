"""``Gradients``: a store that maps tensors to their gradients, which may themselves be differentiable."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any, NoReturn

import numpy as np

from adjoint import words
from adjoint.core.convert import asarray
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import DTypeError, InputError, MissingGradientError, ShapeError
from adjoint.grads.norm import global_norm

__all__ = ["Gradients"]


class Gradients:
    """Gradients by tensor, as ``ad.backward`` returns them.

    Look a gradient up by its tensor or by ``id(tensor)``.  Gradients made with ``create_graph=True`` are part
    of a graph and can be differentiated again; ``detach()`` returns a store of constants.

    Examples
    --------
    >>> import adjoint as ad
    >>> x = ad.tensor(3.0, requires_grad=True)
    >>> grads = ad.backward(x * x)
    >>> grads[x]
    tensor(6., dtype=float64)
    """

    __slots__ = ("_items", "_owned")

    def __init__(self) -> None:
        self._items: dict[int, tuple[Tensor, Tensor]] = {}
        # Ids of tensors whose gradient was allocated here and not returned yet: it may be added to in place.
        self._owned: set[int] = set()

    def get(self, key: Tensor | int, default: Any = None) -> Any:
        """Return the gradient of a tensor, or a default.

        Parameters
        ----------
        key : Tensor or int
            The tensor, or its id.
        default : object
            The result if there is no gradient.

        Returns
        -------
        Tensor or object
            The gradient or ``default``.
        """
        key = _id(self._tensor(key))
        found = self._items.get(key)
        self._owned.discard(key)
        return default if found is None else found[1]

    def __getitem__(self, key: Tensor | int) -> Tensor:
        key = self._tensor(key)
        found = self._items.get(_id(key))
        if found is None:
            raise MissingGradientError(_missing(key, len(self._items)))
        self._owned.discard(_id(key))
        return found[1]

    def __setitem__(self, key: Any, grad: Any) -> NoReturn:
        raise InputError(
            "store[x] = g is not supported.\n"
            "  Use store.set(x, g) to replace the gradient, or store.add(x, g) to add to it."
        )

    def __contains__(self, key: object) -> bool:
        return isinstance(key, (Tensor, int)) and _id(key) in self._items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Tensor]:
        return (t for t, _ in self._items.values())

    def keys(self) -> list[Tensor]:
        """Return the tensors, in the order in which their gradients were first stored."""
        return [t for t, _ in self._items.values()]

    def values(self) -> list[Tensor]:
        """Return the gradients, in the order of ``keys()``."""
        self._owned.clear()
        return [g for _, g in self._items.values()]

    def items(self) -> list[tuple[Tensor, Tensor]]:
        """Return pairs of a tensor and its gradient."""
        self._owned.clear()
        return list(self._items.values())

    def set(self, key: Tensor, grad: Any) -> None:
        """Store a gradient; an existing one is replaced.

        Parameters
        ----------
        key : Tensor
            The tensor.
        grad : array_like
            The gradient.  It must have the shape and dtype of the tensor.
        """
        key = self._tensor(key)
        self._items[_id(key)] = (key, self._fitting(key, grad))
        self._owned.discard(_id(key))

    def add(self, key: Tensor, grad: Any) -> None:
        """Add to the gradient of a tensor; on an error nothing changes.

        Parameters
        ----------
        key : Tensor
            The tensor.
        grad : array_like
            The gradient to add.  It must have the shape and dtype of the tensor.
        """
        key = self._tensor(key)
        new = self._fitting(key, grad)
        found = self._items.get(_id(key))
        if found is None:
            self._items[_id(key)] = (key, new)
            return
        before = found[1]
        # An overflow gives inf under any error state.  An exception during an addition in place would
        # leave half a sum behind.
        with np.errstate(all="ignore"):
            if before.requires_grad or new.requires_grad or not (type(before) is type(new) is Tensor):
                self._items[_id(key)] = (key, before + new)
            elif _id(key) in self._owned:
                np.add(before._data, new._data, out=before._data)
            else:
                self._items[_id(key)] = (key, wrap(np.asarray(before._data + new._data)))
                if key.shape:
                    self._owned.add(_id(key))

    def pop(self, key: Tensor | int, *default: Any) -> Any:
        """Remove a gradient and return it.

        Parameters
        ----------
        key : Tensor or int
            The tensor, or its id.
        *default : object
            The result if there is no gradient.

        Returns
        -------
        Tensor or object
            The gradient or the default.

        Raises
        ------
        MissingGradientError
            If there is neither a gradient nor a default.
        """
        key = self._tensor(key)
        found = self._items.pop(_id(key), None)
        self._owned.discard(_id(key))
        if found is not None:
            return found[1]
        if default:
            return default[0]
        raise MissingGradientError(_missing(key, len(self._items)))

    def _tensor(self, key: Any) -> Any:
        """Return the tensor whose gradient is looked up by ``key``: here ``key`` itself.

        Subclasses whose keys are not tensors override this method.
        """
        return key

    def _fitting(self, key: Tensor, grad: Any) -> Tensor:
        """Return ``grad`` as a tensor; raise if its shape or dtype is not that of the tensor ``key``."""
        if not isinstance(key, Tensor):
            raise InputError(f"the key of a gradient must be a tensor, not {type(key).__name__}.")
        new = asarray(grad)
        if new.shape != key.shape:
            raise ShapeError(
                f"the gradient of a tensor of shape {key.shape} must have that shape, not {new.shape}."
            )
        if new.dtype != key.dtype:
            raise DTypeError(f"the gradient of a {key.dtype} tensor must be {key.dtype}, not {new.dtype}.")
        return new

    def clear(self) -> None:
        """Remove all gradients."""
        self._items.clear()
        self._owned.clear()

    def detach(self) -> Gradients:
        """Return a store of the same gradients, disconnected from the graph."""
        return self._mapped(lambda g: g.detach())

    def scale(self, factor: Any) -> Gradients:
        """Return a store with every gradient multiplied by a factor; the dtypes stay the same.

        Parameters
        ----------
        factor : float or Tensor
            The factor.

        Returns
        -------
        Gradients
            The new store.
        """
        return self._mapped(lambda g: (g * factor).astype(g.dtype, copy=False))

    def merge(self, other: Gradients) -> Gradients:
        """Return a store with the gradients of both stores; gradients of the same tensor are added.

        Parameters
        ----------
        other : Gradients
            The other store.

        Returns
        -------
        Gradients
            The new store.
        """
        if not isinstance(other, Gradients):
            raise InputError(f"merge: the other store must be an ad.Gradients, not {type(other).__name__}.")
        merged = copy(self)
        # not _items: the stores now share arrays, so none may be added to in place
        for t, g in other.items():
            merged.add(t, g)
        return merged

    def norm(self, p: float = 2.0) -> float:
        """Return the p-norm of all gradients together, without overflow.

        Parameters
        ----------
        p : float
            The order of the norm.

        Returns
        -------
        float
            The norm.
        """
        return global_norm((g for _, g in self._items.values()), p)

    def __copy__(self) -> Gradients:
        return self._mapped(lambda g: g)

    def __reduce__(self) -> Any:
        return _rebuilt, (self.items(),)

    def _mapped(self, function: Any) -> Gradients:
        made = Gradients()
        self._owned.clear()  # the new store may hold the same arrays
        made._items = {k: (t, function(g)) for k, (t, g) in self._items.items()}
        return made

    def __repr__(self) -> str:
        shapes = ", ".join(str(t.shape) for t in self)
        return f"Gradients({words.count(len(self), 'tensor')}: {shapes})" if len(self) else "Gradients(empty)"


def _rebuilt(pairs: list[tuple[Tensor, Tensor]]) -> Gradients:
    """Return a store from copied or unpickled pairs, whose tensors have new ids."""
    made = Gradients()
    made._items = {id(t): (t, g) for t, g in pairs}
    return made


def _id(key: object) -> int:
    if isinstance(key, Tensor):
        return id(key)
    if isinstance(key, int):
        return key
    raise InputError(f"a gradient is looked up by its tensor or id(tensor), not by {type(key).__name__}.")


def _missing(key: object, count: int) -> str:
    what = f"tensor of shape {key.shape}" if isinstance(key, Tensor) else f"id {key}"
    return (
        f"no gradient for this {what} among the {count} stored.\n"
        "  The tensor must require grad before the computation and take part in it.  get(x) returns None "
        "instead of raising this error."
    )
