"""The gradients of a window in the hands of a clip function, which may group and replace them as it likes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.sparse import SparseGradient, SparseRows, as_gradient_tensor
from adjoint.core.tensor import Tensor
from adjoint.errors import DTypeError, InputError, ShapeError, UnknownNameError
from adjoint.grads.foreign import gradient_array
from adjoint.grads.norm import global_norm
from adjoint.grads.store import Gradients

__all__ = ["Lent", "NamedGradients", "clipped_by", "lending", "lent_now"]


class NamedGradients(Gradients):
    """A store of gradients that finds them by name too: what a clip function of an accumulator is given."""

    __slots__ = ("_names",)

    def __init__(self, names: dict[str, Tensor]) -> None:
        super().__init__()
        self._names = names

    def _tensor(self, key: Any) -> Any:
        if not isinstance(key, str):
            return key
        if key not in self._names:
            known = ", ".join(map(repr, self._names))
            raise UnknownNameError(f"no parameter is registered as {key!r}.\n  Registered: {known}.")
        return self._names[key]

    def get(self, key: Tensor | int | str, default: Any = None) -> Any:
        """Return the gradient of a parameter, given by itself or its name, or ``default``."""
        return super().get(self._tensor(key), default)

    def __getitem__(self, key: Tensor | int | str) -> Tensor:
        return super().__getitem__(self._tensor(key))

    def __contains__(self, key: object) -> bool:
        return super().__contains__(self._names.get(key) if isinstance(key, str) else key)

    def set(self, key: Tensor | str, grad: Any) -> None:
        """Store a gradient, in the dtype of the parameter or a wider one; one that was there is replaced."""
        t = self._tensor(key)
        if isinstance(t, Tensor):
            new = asarray(grad)
            if new.shape == t.shape and np.can_cast(t.dtype, new.dtype, "safe"):
                self._items[id(t)] = (t, new)
                return
        super().set(t, grad)

    def add(self, key: Tensor | str, grad: Any) -> None:
        """Add to the gradient of a parameter."""
        before = self.get(key)
        self.set(key, grad if before is None else before + asarray(grad))

    def pop(self, key: Tensor | int | str, *default: Any) -> Any:
        """Remove a gradient and return it."""
        return super().pop(self._tensor(key), *default)


class Lent:
    """The gradients that a clip function was given; what replaces one elsewhere replaces it here too.

    So groups of them, ``{"head": {"w": g["w"]}}``, and groups of parameters are clipped where they rest.
    """

    __slots__ = ("_known", "_params", "store")

    def __init__(self, store: dict[str, Any] | NamedGradients) -> None:
        self.store: Any = store
        # by id, those that were replaced too; they are kept, so that no id is another's
        self._known: dict[int, tuple[Any, Any]] = {id(g): (g, key) for key, g in store.items()}
        names = store._names.values() if isinstance(store, NamedGradients) else ()
        self._params = set(map(id, names))

    @property
    def by_name(self) -> bool:
        """Whether the accumulator has no parameters."""
        return not self._params

    def key_of(self, g: Any) -> Any:
        """Return the key under which a gradient was lent, None if it was not; a part of one is refused."""
        found = self._known.get(id(g))
        if found is not None:
            return found[1]
        data = _memory(g)
        if any(np.may_share_memory(data, _memory(whole)) for whole, _ in self._known.values()):
            raise InputError(
                "clip: this is a part or a view of a gradient of the accumulator, and clipping it would not "
                "reach the whole.\n  Group whole gradients, as g[name] gives them."
            )
        return None

    def has_param(self, t: Tensor) -> bool:
        """Tell whether a tensor is one of the accumulator's parameters."""
        return id(t) in self._params

    def replace(self, key: Any, also: Callable[[Any], None] | None, g: Any) -> None:
        """Put another gradient in the place of one that was lent, and tell ``also``."""
        if isinstance(self.store, Gradients):
            self.store.set(key, g)
            g = self.store[key]
        else:
            self.store[key] = g
        self._known[id(g)] = (g, key)
        if also is not None:
            also(g)


def _memory(g: Any) -> Any:
    if type(g) is SparseGradient:
        return g._rows.values
    return g._data if isinstance(g, Tensor) else g


def _fitting(name: str, g: Any, before: Any) -> Any:
    """Return what a function put in the place of a gradient, in its dtype; another shape is refused."""
    if g.shape != before.shape:
        raise ShapeError(
            f"clip: the function put a gradient of shape {g.shape} in the place of {name!r}, which has "
            f"{before.shape}."
        )
    if g.dtype == before.dtype:
        return g
    if not np.can_cast(g.dtype, before.dtype, "same_kind"):
        raise DTypeError(
            f"clip: the function put a {g.dtype} gradient in the place of {name!r}, which is {before.dtype}."
        )
    with np.errstate(all="ignore"):
        return g.astype(before.dtype)


_lent: ContextVar[Lent | None] = ContextVar("adjoint_lent", default=None)
lent_now = _lent.get


@contextmanager
def lending(store: dict[str, Any] | NamedGradients) -> Iterator[None]:
    """Lend gradients to the clip functions that are called inside the block."""
    token = _lent.set(Lent(store))
    try:
        yield
    finally:
        _lent.reset(token)


def clipped_by(
    clip: Callable[[Any], Any], found: dict[str, Any], params: dict[str, Tensor], p: float
) -> tuple[dict[str, Any], float, float]:
    """Let a function clip gradients, by name or with ``params`` in a store; return them and both norms."""
    given: Any
    if params:
        given = NamedGradients(params)
        for name, g in found.items():
            given.set(name, as_gradient_tensor(g))
    else:
        given = {name: as_gradient_tensor(g) if type(g) is SparseRows else g for name, g in found.items()}
    before = global_norm(given.values(), p)
    with lending(given):
        clip(given)
    missing = [name for name in found if name not in given]
    if missing:
        names = ", ".join(map(repr, missing))
        raise InputError(f"clip: the function took {names} away; it may only replace gradients.")
    clipped = {name: _fitting(name, gradient_array(f"clip: {name!r}", given[name]), g)
               for name, g in found.items()}  # fmt: skip
    return clipped, before, global_norm(clipped.values(), p)
