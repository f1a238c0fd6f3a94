"""The tensors that a trace has captured: their symbols, their state before the trace, and their ``.grad``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from adjoint import words
from adjoint.compiler.capture.sources import Held, Sources
from adjoint.compiler.program.inputs import ArgumentGradSource, GradSource, OuterSource, TensorSource
from adjoint.compiler.program.symbols import Number, Symbolic, ended_error, refused
from adjoint.core.lifted import Lifted, level_of, located, next_level
from adjoint.core.node import LEAF, Node
from adjoint.core.sparse import SparseGradient, SparseRows
from adjoint.core.tensor import Tensor, Traced, wrap

if TYPE_CHECKING:
    from adjoint.compiler.capture.trace import Trace

__all__ = ["ASSIGNED", "CapturedTensors"]

ASSIGNED = (
    "ad.compile: the function sets .grad to a tensor that has a graph, which compiled functions do not "
    "support.\n  Assign g.detach(), or compute g inside `with ad.no_grad():`."
)
_CREATED = (
    "ad.compile: backward(create_graph=True) stores a .grad that has a graph, which compiled functions do "
    "not support.\n  Call ad.gradients(loss, params, create_graph=True) instead, or set .grad to None before "
    "the function returns."
)


class CapturedTensors(Sources):
    """The inputs of a trace, and the tensors whose arrays are symbols until it ends."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        super().__init__(arguments)
        self.level = next_level()
        self.parent: Trace | None = None  # the trace around a loop, if this is the trace of its body
        self.deferred: dict[int, Callable[[], None]] = {}  # how to compute values that nothing has read yet
        self.graphs: dict[int, str] = {}  # errors for a .grad with a graph, by the id of the tensor
        self.ended = False

    def touch(self, tensors: Iterable[Any]) -> None:
        """Capture each value that is a tensor: replace its array by a symbol."""
        for t in tensors:
            if isinstance(t, Tensor) and (
                type(t) is not Traced or (self.parent is not None and level_of(t._data) <= self.level)
            ):
                self.capture(t)

    def capture(self, t: Tensor) -> Symbolic:
        """Replace the array of ``t`` by a symbol until the trace ends; return the symbol."""
        data = t._data
        if isinstance(data, Symbolic):
            if data.trace is self:
                return data
            if self.parent is None or data.trace.ended:
                raise ended_error(data)
            if data.weak:  # a tensor that this op made from a Python number
                t._data = self._from_parent(data)
                return t._data
        elif type(data) is not ndarray and not self._is_around(data):
            raise refused(
                "ad.compile: the function uses a tensor that is not an argument and that is sparse, or is "
                "being differentiated or batched by another transform.\n"
                "  Pass the tensor as an argument of the compiled function."
            )
        symbol = self.source(TensorSource, data.shape, data.dtype, t)
        self.held[id(t)] = Held(t, symbol)
        t._data = symbol
        t.__class__ = Traced
        if type(t._node) is Node or (isinstance(data, Lifted) and data.has_history()):
            t._node = LEAF  # its graph ends here: the call of the compiled function becomes part of it
        return symbol

    def _is_around(self, data: Any) -> bool:
        """Return whether ``data`` is a value of a ``vmap`` that encloses the loop whose body is traced."""
        return self.parent is not None and isinstance(data, Lifted) and data.level < self.level

    def lend(self, inner: Trace, t: Tensor) -> Symbolic:
        """Capture a tensor that ``inner``, the trace of a loop body, uses; return its symbol here."""
        held, symbol = inner.held[id(t)], t._data
        t._data, t.__class__ = held.data, held.kind
        held.data, held.kind = self.capture(t), Traced
        t._data, t.__class__ = symbol, Traced
        return held.data

    def value(self, a: Any) -> Symbolic:
        """Return the symbol of a tensor, an array or a value of this trace."""
        if isinstance(a, Tensor):
            a = self.capture(a)
        elif type(a) is SparseRows:
            a = a.to_dense()
        if isinstance(a, Symbolic):
            if a.trace is not self:
                return self._from_parent(a)
            return self._settle(a) if self.deferred else a
        if self._is_around(a) and not a.has_history():
            return self._from_parent(a)
        if type(a) is ndarray:  # made by a derivative rule; arrays of the user are passed to ``array`` first
            found = self.arrays.get(id(a))
            if found is None:
                found = self.arrays[id(a)] = a, self.constant(a)
            return found[1]
        if isinstance(a, SparseGradient) or not isinstance(a, np.generic):
            raise refused(
                f"ad.compile: {words.a(type(a).__name__)} cannot be used inside a compiled function.\n"
                "  Use tensors, arrays and Python numbers."
            )
        return self.constant(np.asarray(a))

    def _from_parent(self, value: Any) -> Symbolic:
        """Return the symbol, in the trace of a loop body, of a value from the trace or ``vmap`` around it."""
        if self.parent is None or (isinstance(value, Symbolic) and value.trace.ended):
            raise ended_error(value)
        found = self.arrays.get(id(value))
        if found is None and isinstance(value, Number):
            number = self._from_parent(value.as_tensor(value.dtype)._data).as_number(value.kind)
            found = self.arrays[id(value)] = value, number
        elif found is None:
            symbol = self.source(OuterSource, value.shape, value.dtype, value)
            found = self.arrays[id(value)] = value, symbol
        return found[1]

    def _settle(self, value: Symbolic) -> Symbolic:
        """Return ``value``; if ``defer`` has postponed its computation, add this to the program first."""
        settle = self.deferred.get(value.id)
        if settle is not None:
            settle()
        return value

    def replace(self, t: Tensor, value: Symbolic) -> None:
        """Replace the value of a tensor and increment its version."""
        self.capture(t)
        t._data = value
        t._version += 1

    def untouched(self, t: Tensor) -> bool:
        """Return whether a tensor was captured but not assigned in this trace."""
        held = self.held.get(id(t))
        return held is not None and t._data is held.symbol

    def owns(self, t: Any) -> bool:
        """Return whether ``t`` was made by this trace, so that it has no elements after the trace."""
        held = self.held.get(id(t))
        return type(t) is Traced and (held is None or held.argument is not None)

    def data_before(self, t: Tensor) -> Any:
        """Return the array that a captured tensor had before the trace."""
        return self.held[id(t)].data

    def node_before(self, t: Tensor) -> Any:
        """Return the graph node that a tensor had before the trace, in which it is a leaf."""
        held = self.held.get(id(t))
        if held is None:
            return t._node if self.parent is None else self.parent.node_before(t)
        return held.node if held.argument is None else self.arguments[held.argument]._node

    def refuse_freezing(self, t: Tensor, value: bool) -> None:
        """Raise if ``value`` changes ``t.requires_grad`` of a tensor made outside of the function.

        Compiled calls would not repeat the change.
        """
        if (type(t) is not Traced or id(t) in self.held) and (t._node is not None) != value:
            raise refused(
                "ad.compile: the function changes requires_grad of a tensor that was created outside of it.\n"
                "  Call requires_grad_() before the compiled function, which is then traced again."
            )

    def grad_of(self, t: Tensor) -> Any:
        """Return ``t.grad``; a gradient from before the trace is replaced by a symbol."""
        self.capture(t)
        held = self.held.get(id(t))
        if held is not None and not held.grad_known:
            held.grad_known = True
            self.grad_guards().append(held)
            if held.grad is not None:
                sparse = isinstance(held.grad, SparseGradient)
                if sparse or type(held.grad) is Traced or held.grad._node is not None:
                    raise refused(
                        "ad.compile: the function reads a .grad that is sparse or was made by "
                        "backward(create_graph=True).\n"
                        "  Set .grad to None, or detach it, before the call."
                    )
                captured = held.argument is None
                kind, owner = (GradSource, t) if captured else (ArgumentGradSource, held.argument)
                held.entry = self.source(kind, t.shape, t.dtype, owner)
                t._need_extra().grad = wrap(held.entry)
        return None if t._extra is None else t._extra.grad

    def grad_guards(self) -> list[Held]:
        """Return the tensors whose ``.grad`` was read before it was set."""
        found: list[Held] = self.__dict__.setdefault("_grad_guards", [])
        return found

    def grad_set(self, t: Tensor, value: Tensor | None = None) -> None:
        """Record that the function assigns ``value`` to ``t.grad`` before it reads the old value.

        The program then need not check or read the old value.
        """
        self.capture(t)
        if value is not None and type(value._node) is Node:
            self.graphs[id(t)] = located(ASSIGNED)
        held = self.held.get(id(t))
        if held is not None:
            held.grad_known = True

    def drop_grads(self, tensors: Iterable[Tensor]) -> None:
        """Make the program set the ``.grad`` of tensors to None."""
        for t in tensors:
            self.grad_set(t)
            if t._extra is not None:
                t._extra.grad = None

    def commit(self, gradients: dict[Tensor, Any]) -> None:
        """Make the program add gradients to the ``.grad`` of their tensors."""
        for t, g in gradients.items():
            if t._node is None:
                continue
            held = self.held.get(id(t))
            if held is not None and type(held.node) is Node:
                raise refused(
                    "ad.compile: backward() inside the function reaches a tensor that was computed outside.\n"
                    "  Return the loss and call backward() outside, or detach() the tensor."
                )
            before = self.grad_of(t)
            sparse = type(g) is SparseRows
            new = g if isinstance(g, Tensor) else SparseGradient.of(g) if sparse else wrap(self.value(g))
            if type(new._node) is Node:
                self.graphs[id(t)] = located(_CREATED)
            t._need_extra().grad = new if before is None else before + new
        gradients.clear()
