"""``Batched``: the values inside ``vmap``, arrays with a hidden leading batch axis."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from adjoint.core.lifted import Lifted, enclosing
from adjoint.core.namespace import Namespace
from adjoint.core.op import OPS, Op
from adjoint.core.record import compute
from adjoint.core.tensor import Tensor, Traced, wrap
from adjoint.errors import TransformError

__all__ = ["Batched", "HeldOps", "held", "settled"]

_NOTHING = np.zeros(0)
_NONE: list[Any] = []  # shared and never changed, because only the marker of a running vmap adopts tensors


class Batched(Lifted):
    """A value inside ``vmap``: one array for all elements of the batch.

    ``value`` is an array, a value of an outer transform, or an outer tensor that is part of a graph.  If
    ``batched`` is true, the first axis of ``value`` is the batch axis; otherwise every element is ``value``.
    """

    __slots__ = ("adopted", "batched", "shape", "size_", "unit", "value")
    transform = "ad.vmap"

    def __init__(self, level: int, size: int, value: Any, batched: bool) -> None:
        self.level = level
        self.size_ = size  # the length of the batch
        self.value = value
        self.batched = batched
        self.unit = False  # whether the batch elements are the rows of the identity matrix
        self.adopted: list[tuple[weakref.ref[Any], Any]] = _NONE
        self.shape: tuple[int, ...] = value.shape[1:] if batched else value.shape

    @property
    def dtype(self) -> Any:
        """The dtype of the elements."""
        return self.value.dtype

    def lift(self, value: Any) -> Batched:
        """Return ``value`` as a constant of this ``vmap``: it is the same for all elements of the batch."""
        return Batched(self.level, self.size_, value, False)

    def container(self) -> Callable[[Any], Batched]:
        """Return a function that makes a value of this ``vmap``, as this one, with other contents."""
        return partial(Batched, self.level, self.size_, batched=self.batched)

    def marker(self) -> Batched:
        """Return the marker of this ``vmap``: the value of ``context.enclosing`` while it runs."""
        found = self.lift(_NOTHING)
        found.adopted = []
        found.outer = enclosing.get()
        return found

    def detached(self) -> Batched:
        """Return the same values, disconnected from the graphs of tensors outside this ``vmap``."""
        value = self.value
        if isinstance(value, Tensor):
            value = value.detach()._data
        elif isinstance(value, Lifted):
            value = value.detached()
        return Batched(self.level, self.size_, value, self.batched)

    def adopt(self, leaf: Any) -> None:
        """Replace the data of ``leaf``, a tensor from outside, by a constant, until this ``vmap`` ends."""
        data = leaf._data
        if isinstance(data, Lifted) and data.level >= self.level:
            return
        leaf._data = self.lift(data)
        leaf.__class__ = Traced
        self.adopted.append((weakref.ref(leaf), data))

    def release(self) -> list[Any]:
        """Restore the data of the tensors that were passed to ``adopt``.

        Return those into which the function wrote values that differ between the elements of the batch.
        """
        changed = []
        for reference, data in self.adopted:
            leaf = reference()
            if leaf is None or not (isinstance(leaf._data, Batched) and leaf._data.level == self.level):
                continue
            if leaf._data.batched:
                changed.append(leaf)
            else:
                data = leaf._data.value
            leaf._data = data
            leaf.__class__ = type(wrap(data))
        return changed

    def has_history(self) -> bool:
        """Return whether this value contains a tensor outside the ``vmap`` that is part of a graph."""
        value = self.value
        return value.has_history() if isinstance(value, Lifted) else isinstance(value, Tensor)

    def numbers(self) -> Any:
        """Return the array of values if they are the same for all elements, else None."""
        if self.batched:
            return None
        value = self.value._data if isinstance(self.value, Tensor) else self.value
        return value.numbers() if isinstance(value, Lifted) else value

    def evaluate(self, op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        """Evaluate ``op`` on the whole batch by its batch rule; return the result."""
        own: list[Any] = []
        level, batched = self.level, False
        for a in args:
            if type(a) is not Batched or a.level != level:
                if isinstance(a, (int, float, complex)):
                    own.append(a)
                    continue
                a = self.lift(a)
            own.append(a)
            batched = batched or a.batched
        if batched:
            if op.batch is None:
                raise TransformError(
                    f"vmap: {op.name!r} has no batching rule, so it cannot run inside ad.vmap.\n"
                    "  Call it outside, or loop over the elements in Python.  If the op is your own, pass a "
                    'rule to ad.define, for example batch="leading".'
                )
            out = op.batch(op, self.size_, *own, **params)
        else:
            out = compute(op, tuple([a.value if type(a) is Batched else a for a in own]), params)
        if op.outputs > 1:
            return tuple(self._result(o, batched) for o in out)
        return self._result(out, batched)

    def _result(self, out: Any, batched: bool) -> Batched:
        if type(out) is np.ndarray:
            return Batched(self.level, self.size_, out, batched)
        if type(out) is Batched and out.level == self.level:
            return out  # a fused op, evaluated step by step
        return Batched(self.level, self.size_, settled(out), batched)

    def __repr__(self) -> str:
        what = f"a batch of {self.size_}" if self.batched else "the same for all"
        return f"<{what}, shape {self.shape}, {self.dtype}>"


def settled(value: Any) -> Any:
    """Return ``value`` in the form that ``Batched`` stores: a tensor if it is in a graph, else an array."""
    if isinstance(value, Tensor):
        return value if value._node is not None else value._data
    return np.asarray(value) if isinstance(value, (np.generic, int, float, complex)) else value


class HeldOps(Namespace):
    """The namespace of ops on what ``Batched`` values contain: arrays, or values and tensors from outside."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        op = OPS.get(name)
        if op is None:
            raise AttributeError(f"no op {name!r}")

        def call(*args: Any, **params: Any) -> Any:
            return compute(op, args, params)

        setattr(self, name, call)
        return call


held = HeldOps("held")
