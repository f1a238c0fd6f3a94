"""The inputs of an accumulator: parameters by name, micro-batches, and the pieces of a batch."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from adjoint import tree, words
from adjoint.accumulate.foreign import gradient_array, sum_dtype
from adjoint.accumulate.window import checked_weight
from adjoint.core.shapes import whole_from
from adjoint.core.sparse import SparseRows
from adjoint.core.tensor import Tensor
from adjoint.errors import AccumulationError, ArgumentError, InputError, NoGradientError, ShapeError
from adjoint.grads.slots import commit, sink

if TYPE_CHECKING:
    from adjoint.accumulate.accumulator import GradientAccumulator

__all__ = ["MicroBatch", "named_params", "split_batch"]


def named_params(params: Any) -> dict[str, Tensor]:
    """Return parameters by name, from a dictionary, a module, pairs, or a list (names "0", "1", …).

    A parameter that several layers share occurs once, under its first name.
    """
    if isinstance(params, Tensor):
        params = [params]
    if hasattr(params, "named_parameters"):
        found = list(params.named_parameters())
    elif isinstance(params, Mapping):
        found = list(params.items())
    elif isinstance(params, Iterable):
        found = [p if isinstance(p, tuple) and len(p) == 2 else (str(i), p) for i, p in enumerate(params)]
    else:
        raise InputError(
            "GradientAccumulator: parameters must be a list or a dictionary of tensors, "
            f"not {words.a(type(params).__name__)}."
        )
    if not found:
        raise InputError(
            "GradientAccumulator: there are no parameters: the list is empty, or its iterator is exhausted.\n"
            "  To add gradients by name, leave out params: GradientAccumulator(accumulation_steps=…)."
        )
    for name, t in found:
        if not isinstance(t, Tensor):
            what = f"{type(t).__module__}.{type(t).__qualname__}".removeprefix("builtins.")
            raise InputError(
                f"GradientAccumulator: {name!r} is {words.a(what)}, not an adjoint tensor.\n"
                "  For gradients of other libraries, leave out params.  Call register(name, shape) and "
                "step({name: gradient})."
            )
        if not t.is_leaf:
            raise NoGradientError(
                f"GradientAccumulator: parameter {name!r} of shape {t.shape} is not a leaf tensor.\n"
                "  Pass the leaf tensors from which it was computed."
            )
    if not any(t.requires_grad for _, t in found):
        raise NoGradientError(
            "GradientAccumulator: none of the parameters requires grad, so they have no gradients.\n"
            "  Unfreeze a module or a tensor with requires_grad_(True)."
        )
    named: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, t in found:
        if id(t) not in seen:
            if name in named:
                raise ArgumentError(f"GradientAccumulator: two parameters have the same name, {name!r}.")
            named[name] = t
            seen.add(id(t))
    return named


class MicroBatch:
    """Context manager of one micro-batch: at its end all gradients are added, or none after an error.

    ``weight`` can be set until the block ends.
    """

    __slots__ = ("_accumulator", "_ended", "_lock", "_outer", "_pending", "_sent", "_weight", "scaled")

    def __init__(self, accumulator: GradientAccumulator, weight: float | None) -> None:
        self._weight = None if weight is None else checked_weight(weight)
        self.scaled = False  # a GradScaler scaled the loss, so ``apply`` needs it
        self._ended = False
        self._sent = False  # gradients were sent to other ranks while backward ran
        self._accumulator = accumulator
        self._pending: dict[str, Any] = {}  # gradients by name
        self._lock = threading.Lock()  # several threads may have the context of the block
        self._outer: Any = None

    @property
    def weight(self) -> float:
        """The weight of the micro-batch: its number of examples or tokens."""
        return 1.0 if self._weight is None else self._weight

    @weight.setter
    def weight(self, weight: float) -> None:
        if self._sent:
            raise AccumulationError("micro_batch: set the weight before calling backward() of the block.")
        if self._ended:
            raise AccumulationError(
                f"micro_batch: the weight was set after the block had ended with weight {self.weight:g}.\n"
                "  Set the weight inside the block, or pass it: micro_batch(weight=n)."
            )
        self._weight = checked_weight(weight)

    def __enter__(self) -> MicroBatch:
        self._accumulator._check_open()
        self._outer = outer = sink.get()
        while isinstance(outer, MicroBatch):
            if outer._accumulator is self._accumulator:
                raise AccumulationError(
                    "micro_batch: blocks of one accumulator cannot be nested, but another block is active.\n"
                    "  Leave that block first, or call backward() several times in one block."
                )
            outer = outer._outer
        self._pending, self._ended, self._sent, self.scaled = {}, False, False, False
        sink.set(self)
        return self

    def backward(self, loss: Tensor, **options: Any) -> None:
        """Differentiate a loss as ``loss.backward()`` does.

        With ``group=``, in the last micro-batch of a window, gradients are sent to the other ranks while
        backward still runs.  Set the weight of the micro-batch before this call.

        Parameters
        ----------
        loss : Tensor
            The loss.
        **options : Any
            Options of ``Tensor.backward``.
        """
        loss.backward(**options)

    def wants(self, leaf: Tensor) -> bool:
        """Return whether a leaf is a parameter of this block or of an enclosing block."""
        return id(leaf) in self._accumulator._names or (self._outer is not None and self._outer.wants(leaf))

    def take(self, gradients: dict[Tensor, Any]) -> None:
        """Keep the gradients of the parameters and pass on the rest; on an error, keep none."""
        names = self._accumulator._names
        own = {names[id(t)]: gradients.pop(t) for t in list(gradients) if id(t) in names}
        with self._lock:
            if own and self._ended:
                raise AccumulationError(
                    "backward: the micro_batch() block in which this backward started has ended, so the "
                    "gradients would be lost.\n  Wait for backward to finish before leaving the block."
                )
            new = _added(self._pending, own)  # no loop here: an interrupt in it may leave the lock held
            (commit if self._outer is None else self._outer.take)(gradients)
            self._pending.update(new)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        here = sink.get() is self
        if here:
            sink.set(self._outer)
        with self._lock:
            self._ended = True
            pending, self._pending = self._pending, {}
        if not here:
            raise AccumulationError(
                "micro_batch: this block was entered in a different thread or asyncio task, where it is "
                "still active.\n  Enter and leave the block in the same thread or task.  Nothing was added."
            )
        self._end(pending, error)

    def _end(self, pending: dict[str, Any], error: BaseException | None) -> None:
        """Add the gradients ``pending`` of the block, unless ``error`` was raised in it."""
        if error is not None:
            return
        acc = self._accumulator
        if self._weight is None and acc._short is not None:
            raise ArgumentError(
                "micro_batch: this piece of split() has {} examples and the previous one had {}, but without "
                "weight= every piece has weight 1.\n"
                "  Pass the number of examples or tokens: micro_batch(weight=len(xb)).".format(*acc._short)
            )
        if not pending:
            raise NoGradientError(
                "micro_batch: no backward() inside the block computed a gradient of any of the parameters.\n"
                "  Call loss.backward() inside the block.  Nothing was added."
            )
        acc._add_block(pending, self)


def _added(pending: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gradients ``own`` of a backward as arrays, plus ``pending``, those of earlier backwards."""
    return {name: _sum(pending.get(name), g, name) for name, g in own.items()}


def _sum(before: Any, g: Any, name: str) -> Any:
    if type(g) is not ndarray or g.dtype.kind not in "fc":  # bfloat16
        g = gradient_array(name, g)
    if before is None:
        return g
    total = np.add(before, g, dtype=sum_dtype(g.dtype))  # a number if both are 0-d arrays
    return total if type(total) is SparseRows else np.asarray(total)


def split_batch(accumulator: GradientAccumulator, batch: Any, size: int) -> Iterator[Any]:
    """Return an iterator over pieces of a batch; a shorter last piece sets ``accumulator._short``."""
    size = whole_from(1, "split: size", size)
    arrays, structure = tree.flatten(batch)
    for a in arrays:
        if not getattr(a, "shape", ()):
            raise InputError(
                "split: a batch must consist of arrays with at least one axis, but this one contains a "
                f"{type(a).__name__}."
            )
    lengths = sorted({int(a.shape[0]) for a in arrays})
    if len(lengths) != 1:
        raise ShapeError(
            f"split: all arrays of a batch must have equal lengths, but the lengths are {lengths or 'none'}."
        )

    def made() -> Iterator[Any]:
        try:
            for start in range(0, lengths[0], size):
                here = min(size, lengths[0] - start)
                accumulator._short = None if here == size or not start else (here, size)
                yield tree.unflatten(structure, [a[start : start + size] for a in arrays])
        finally:
            accumulator._short = None

    return made()
