"""One micro-batch: the block that takes gradients from ``backward``, and the cutting of batches into them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from adjoint.core.sparse import SparseRows
from adjoint.core.tensor import Tensor
from adjoint.errors import AccumulationError, ArgumentError, InputError, NoGradientError, ShapeError
from adjoint.grads.buffers import checked_weight
from adjoint.grads.foreign import gradient_array, sum_dtype
from adjoint.grads.slots import commit, sink

if TYPE_CHECKING:
    from adjoint.grads.accumulate import GradientAccumulator

__all__ = [
    "MicroBatch",
    "computed_parameter",
    "named_params",
    "not_a_parameter",
    "noted_pieces",
    "split_batch",
]


class MicroBatch:
    """The block of one micro-batch: gradients are kept aside and added at its end, or not at all."""

    __slots__ = ("_accumulator", "_ended", "_lock", "_outer", "_pending", "_weight", "scaled")

    def __init__(self, accumulator: GradientAccumulator, weight: float | None) -> None:
        self._weight = weight  # None: nothing was said of it
        self.scaled = False  # by a ``GradScaler``, which must be at the update too
        self._ended = False
        self._accumulator = accumulator
        self._pending: dict[int, Any] = {}  # by id of the parameter
        self._lock = threading.RLock()  # several threads may have the context of the block
        self._outer: Any = None

    @property
    def weight(self) -> float:
        """How much the micro-batch counts: examples, or tokens; may be set until the block ends."""
        return 1.0 if self._weight is None else self._weight

    @weight.setter
    def weight(self, weight: float) -> None:
        if self._ended:
            raise AccumulationError(
                f"micro_batch(): this block has ended, and its weight was {self.weight:g}.\n"
                "  Set the weight inside the block, or give it: micro_batch(weight=n)."
            )
        self._weight = checked_weight(weight)

    def __enter__(self) -> MicroBatch:
        with self._accumulator._lock:  # another thread may be adding just now
            self._accumulator._refuse_if_closed()
        outer = sink.get()
        while isinstance(outer, MicroBatch):
            if outer._accumulator is self._accumulator:
                raise AccumulationError(
                    "micro_batch(): another micro-batch of this accumulator is open around this one, and "
                    "would lose its gradients to it.\n"
                    "  Close it first; several backward() in one block add up."
                )
            outer = outer._outer
        self._pending = {}
        self._ended = self.scaled = False
        self._outer = sink.get()
        try:  # no token: an interrupt right after the set() would lose it
            sink.set(self)
            return self
        except BaseException:
            sink.set(self._outer)
            raise

    def wants(self, leaf: Tensor) -> bool:
        """Tell whether a leaf is one of the parameters, here or in a block around this one."""
        return id(leaf) in self._accumulator._slots or (self._outer is not None and self._outer.wants(leaf))

    def take(self, gradients: dict[Tensor, Any]) -> None:
        """Keep the gradients of parameters, and pass on the others: all of them, or if that fails none."""
        slots = self._accumulator._slots
        own = {id(t): gradient_array("backward", gradients.pop(t)) for t in list(gradients) if id(t) in slots}
        with self._lock:
            if own and self._ended:
                raise AccumulationError(
                    "backward: the micro_batch() block that this was started in is over, so its gradients "
                    "would be lost.\n  Wait for it inside the block."
                )
            new = {key: _sum(self._pending.get(key), g) for key, g in own.items()}
            (commit if self._outer is None else self._outer.take)(gradients)
            self._pending.update(new)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            here, pending = self._end()
        except BaseException:  # an interrupt
            self._end()
            raise
        if not here:
            raise AccumulationError(
                "micro_batch(): this block began in another thread or asyncio task than it ends in, where it "
                "goes on to take gradients.\n  Enter and leave it in one of them; nothing was added."
            )
        if kind is not None:
            return
        acc = self._accumulator
        if self._weight is None and acc._short is not None:
            raise ArgumentError(
                "micro_batch(): this piece of split() has {} examples and the one before it had {}, but "
                "without a weight both count the same.\n"
                "  Give it, micro_batch(weight=len(xb)), or the number of tokens.".format(*acc._short)
            )
        if not pending:
            raise NoGradientError(
                "micro_batch(): no backward() inside the block gave a gradient to any of the parameters.\n"
                "  Call loss.backward() inside it; the accumulator is as it was."
            )
        with acc._lock:
            acc._refuse_if_closed()
            pairs = [(b, pending[key]) for key, b in acc._slots.items() if key in pending]
            pending.clear()
            whole = len(pairs) == len(acc._buffers.all)
            buffers = acc._buffers.all if whole else [b for b, _ in pairs]
            arrays = [b.fitting(g) for b, g in pairs]
            del pairs
            plain = all(type(g) is ndarray and g.dtype.kind in "fc" for g in arrays)
            acc._commit(buffers, arrays, self.weight, plain, scaled=self.scaled)

    def _end(self) -> tuple[bool, dict[int, Any]]:
        """Take no more gradients; return whether the block ends where it began, and what it has."""
        here = sink.get() is self
        if here:
            sink.set(self._outer)
        with self._lock:
            self._ended = True
            pending, self._pending = self._pending, {}
        return here, pending


def _sum(before: Any, g: Any) -> Any:
    if before is not None:
        g = np.add(before, g, dtype=sum_dtype(g.dtype))  # of 0-d arrays it is a number
    return g if type(g) is SparseRows else np.asarray(g)


def not_a_parameter(name: str, t: Any) -> InputError:
    """Say what stands in the place of a parameter, and where it goes."""
    of = type(t)
    what = of.__qualname__ if of.__module__ == "builtins" else f"{of.__module__}.{of.__qualname__}"
    return InputError(
        f"GradientAccumulator: {name!r} is a {what}, not an adjoint tensor.\n"
        "  Gradients of other libraries go by name: register(name, shape), then step({name: gradient})."
    )


def computed_parameter(name: str, t: Tensor) -> NoGradientError:
    """Say why a tensor that was computed cannot be a parameter, and what to do."""
    return NoGradientError(
        f"GradientAccumulator: parameter {name!r} of shape {t.shape} is not a leaf.\n"
        "  Give the leaf that it was computed from."
    )


def named_params(params: Any) -> Iterable[tuple[str, Any]]:
    """Return parameters with names: of a dictionary, a module, pairs, or a list (then "0", "1", …)."""
    if params is None:
        return []
    found = _named(params)
    if not found:
        raise InputError(
            "GradientAccumulator: there are no parameters: the list is empty, or its iterator was used up.\n"
            "  For gradients by name leave them out: GradientAccumulator(accumulation_steps=…)."
        )
    return found


def _named(params: Any) -> list[tuple[str, Any]]:
    if isinstance(params, Tensor):
        return [("0", params)]
    if hasattr(params, "named_parameters"):
        return list(params.named_parameters())
    if isinstance(params, Mapping):
        return list(params.items())
    try:
        items = list(params)
    except TypeError:
        raise InputError(
            "GradientAccumulator: parameters are a list or a dictionary of tensors, "
            f"not a {type(params).__name__}."
        ) from None
    return [p if isinstance(p, tuple) and len(p) == 2 else (str(i), p) for i, p in enumerate(items)]


def split_batch(batch: Any, size: int) -> Iterator[Any]:
    """Cut arrays of one length into pieces of ``size`` along the first axis; the last may be short."""
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
        raise ArgumentError(f"split: size is a whole number from 1, but got {size!r}.")
    length = _batch_length(batch)
    return (_cut(batch, i, min(i + size, length)) for i in range(0, length, int(size)))


def noted_pieces(accumulator: GradientAccumulator, pieces: Iterator[Any]) -> Iterator[Any]:
    """Hand out pieces of a batch; the accumulator knows while one is out that is shorter than the others."""
    before: int | None = None
    try:
        for piece in pieces:
            length = _batch_length(piece)
            accumulator._short = None if before in (None, length) else (length, before)
            before = length
            yield piece
    finally:
        accumulator._short = None


def _batch_length(batch: Any) -> int:
    items = list(batch.values()) if isinstance(batch, Mapping) else batch
    if isinstance(batch, (tuple, list, Mapping)):
        lengths = {_batch_length(item) for item in items}
        if len(lengths) != 1:
            raise ShapeError(
                f"split: the parts of a batch have one length, but got {sorted(lengths) or 'no parts'}."
            )
        return lengths.pop()
    if not getattr(batch, "shape", ()):
        raise InputError(
            f"split: a batch is made of arrays with a first axis, but got {type(batch).__name__}."
        )
    return int(batch.shape[0])


def _cut(batch: Any, start: int, stop: int) -> Any:
    if isinstance(batch, Mapping):
        return {name: _cut(part, start, stop) for name, part in batch.items()}
    if isinstance(batch, (tuple, list)):
        parts = [_cut(part, start, stop) for part in batch]
        if hasattr(batch, "_fields"):  # a named tuple
            return type(batch)(*parts)
        return parts if isinstance(batch, list) else tuple(parts)
    return batch[start:stop]
