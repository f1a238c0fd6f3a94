"""What goes in and out of an accumulator: parameters, micro-batches, clip functions, optimisers.

An optimiser is, the first that it has: ``step()``, which reads the ``.grad`` of its parameters, with
``param_groups`` (a list of dictionaries with "params"), ``params`` or ``parameters`` where it tells which
tensors it updates; ``apply(gradients)``; or a function of a dictionary of gradients by name.  One that raises
an exception has made no update and has left its gradients as they were.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint import tree
from adjoint.accumulate.arrays import checked_weight, gradient_array, sum_dtype
from adjoint.config import special
from adjoint.core.convert import asarray
from adjoint.core.lifted import refuse_tracing
from adjoint.core.sparse import SparseRows, as_gradient_tensor
from adjoint.core.tensor import Tensor
from adjoint.errors import (
    AccumulationError,
    ArgumentError,
    DTypeError,
    InputError,
    NoGradientError,
    ShapeError,
    UnknownNameError,
)
from adjoint.grads.clip import lending
from adjoint.grads.norm import all_finite, global_norm, stored_values
from adjoint.grads.scaler import parameters_of
from adjoint.grads.slots import commit, sink
from adjoint.grads.store import Gradients

if TYPE_CHECKING:
    from adjoint.accumulate.accumulator import GradientAccumulator

__all__ = [
    "MicroBatch",
    "beyond_parameters",
    "clipped_by",
    "hand_over",
    "named_params",
    "optimizers_of",
    "split",
]

Clip = Callable[[Any], Any]


# Parameters and micro-batches ------------------------------------------------------------------


def named_params(params: Any) -> list[tuple[str, Any]]:
    """Return parameters with names: of a dictionary, a module, pairs, or a list (then "0", "1", …)."""
    if params is None:
        return []
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
            "GradientAccumulator: parameters are a list or a dictionary of tensors, "
            f"not a {type(params).__name__}."
        )
    if not found:
        raise InputError(
            "GradientAccumulator: there are no parameters: the list is empty, or its iterator was used up.\n"
            "  For gradients by name leave them out: GradientAccumulator(accumulation_steps=…)."
        )
    for name, t in found:
        if not isinstance(t, Tensor):
            of = type(t)
            what = of.__qualname__ if of.__module__ == "builtins" else f"{of.__module__}.{of.__qualname__}"
            raise InputError(
                f"GradientAccumulator: {name!r} is a {what}, not an adjoint tensor.\n  Gradients of other "
                "libraries go by name: register(name, shape), then step({name: gradient})."
            )
        if not t.is_leaf:
            raise NoGradientError(
                f"GradientAccumulator: parameter {name!r} of shape {t.shape} is not a leaf.\n"
                "  Give the leaf that it was computed from."
            )
    return found


class MicroBatch:
    """The block of one micro-batch: gradients are staged, and added at its end together or not at all."""

    __slots__ = ("_accumulator", "_ended", "_lock", "_outer", "_pending", "_weight", "scaled")

    def __init__(self, accumulator: GradientAccumulator, weight: float | None) -> None:
        self._weight = None if weight is None else checked_weight(weight)
        self.scaled = False  # by a ``GradScaler``, which ``apply`` then needs
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
        if special.count:
            refuse_tracing("micro_batch()", "Put it around the compiled function.")
        with self._accumulator._lock:  # another thread may be adding just now
            self._accumulator._refuse_more()
        outer = sink.get()
        while isinstance(outer, MicroBatch):
            if outer._accumulator is self._accumulator:
                raise AccumulationError(
                    "micro_batch(): another micro-batch of this accumulator is open around this one, and "
                    "would lose its gradients to it.\n"
                    "  Close it first; several backward() in one block add up."
                )
            outer = outer._outer
        self._pending, self._ended, self.scaled, self._outer = {}, False, False, sink.get()
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
        acc._add_micro_batch({acc._slots[key].name: g for key, g in pending.items()}, self)

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


def split(accumulator: GradientAccumulator, batch: Any, size: int) -> Iterator[Any]:
    """Yield pieces of a batch; the accumulator knows while a piece is out that is shorter than the others."""
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
        raise ArgumentError(f"split: size is a whole number from 1, but got {size!r}.")
    arrays, structure = tree.flatten(batch)
    for a in arrays:
        if not getattr(a, "shape", ()):
            raise InputError(
                f"split: a batch is made of arrays with a first axis, but got {type(a).__name__}."
            )
    lengths = sorted({int(a.shape[0]) for a in arrays})
    if len(lengths) != 1:
        raise ShapeError(f"split: the parts of a batch have one length, but got {lengths or 'no parts'}.")
    return _pieces(accumulator, arrays, structure, int(size))


def _pieces(accumulator: GradientAccumulator, arrays: list[Any], structure: Any, size: int) -> Iterator[Any]:
    try:
        length = int(arrays[0].shape[0])
        for start in range(0, length, size):
            here = min(size, length - start)
            accumulator._short = None if here == size or not start else (here, size)
            yield tree.unflatten(structure, [a[start : start + size] for a in arrays])
    finally:
        accumulator._short = None


# Optimisers ------------------------------------------------------------------------------------


def optimizers_of(given: Any) -> list[Any]:
    """Return one optimiser, or several in a list, as a list; what is none is refused."""
    found = list(given) if isinstance(given, (list, tuple)) else [given]
    if not found:
        raise InputError("apply: the list of optimisers is empty.")
    for optimizer in found:
        if isinstance(optimizer, type) and hasattr(optimizer, "step"):
            raise InputError(
                f"apply: {optimizer.__name__} is a class.  "
                f"Make an optimiser of it first: {optimizer.__name__}(params, lr=…)."
            )
        if not (hasattr(optimizer, "step") or hasattr(optimizer, "apply") or callable(optimizer)):
            raise InputError(
                f"apply: a {type(optimizer).__name__} is no optimiser: it has no step() and no "
                "apply(gradients)."
            )
    return found


def hand_over(
    optimizers: list[Any], params: Mapping[str, Tensor], grads: dict[str, Any], done: list[Any], before: Any
) -> None:
    """Let optimisers make their updates; the ``.grad`` of parameters is afterwards as it was before.

    Those in ``done`` have made theirs, before another raised; who makes one is added there.  ``before`` is
    called when the gradients are in place.
    """
    if any(hasattr(optimizer, "step") for optimizer in optimizers):
        if not params:
            raise InputError(
                "apply: this optimiser reads the .grad of its parameters, but the accumulator has none.\n"
                "  Make it with the parameters, GradientAccumulator(params); or take gradients() by name."
            )
        _refuse_to_lose([*optimizers, *done], params, grads)
    for optimizer in optimizers:
        if any(optimizer is other for other in done):
            continue
        if hasattr(optimizer, "step"):
            _step(optimizer, params, grads, before)
        else:
            (optimizer.apply if hasattr(optimizer, "apply") else optimizer)(dict(grads))
        done.append(optimizer)


def _step(optimizer: Any, params: Mapping[str, Tensor], grads: Mapping[str, Any], before: Any) -> None:
    kept = [(t, t.grad) for t in params.values()]
    try:
        try:
            _put((t, _in_dtype_of(t, grads.get(name))) for name, t in params.items())
            if before is not None:
                before()
            optimizer.step()
        finally:
            _put(kept)
    except BaseException:  # an interrupt may have come while they were put back
        _put(kept)
        raise


def _put(pairs: Iterable[tuple[Tensor, Tensor | None]]) -> None:
    for t, g in pairs:
        t.grad = g


def _in_dtype_of(t: Tensor, g: Any) -> Tensor | None:
    """Return a gradient in the dtype of its parameter, which may be narrower than that of the sum."""
    if g is None or g.dtype == t.dtype:
        return None if g is None else as_gradient_tensor(g)
    with np.errstate(over="ignore"):
        return as_gradient_tensor(g).astype(t.dtype)


def beyond_parameters(params: Mapping[str, Tensor], sums: Mapping[str, Any]) -> list[str]:
    """Return whose gradients, finite as sums, are not in the dtype of their parameter."""
    narrow = [(n, params[n], g) for n, g in sums.items() if n in params and g.dtype != params[n].dtype]
    return [n for n, t, g in narrow if not all_finite(stored_values(_in_dtype_of(t, g)))]


def _refuse_to_lose(optimizers: list[Any], params: Mapping[str, Tensor], grads: Mapping[str, Any]) -> None:
    """Raise if optimisers that tell their parameters leave out some of these that have a gradient."""
    try:
        updated = {id(t) for optimizer in optimizers for t in parameters_of(optimizer)}
    except (InputError, TypeError, KeyError):  # one does not tell, or not in a form known here
        return
    lost = [name for name, t in params.items() if name in grads and id(t) not in updated]
    if updated and len(lost) == len(grads):
        raise InputError(
            "apply: the optimiser updates none of the accumulator's parameters, so their gradients would "
            "be lost.\n  Make both from the same tensors: params = list(model.parameters())."
        )
    if updated and lost:
        raise InputError(
            f"apply: no optimiser updates {', '.join(map(repr, lost[:12]))}{' …' if len(lost) > 12 else ''}, "
            "so these gradients would be lost.\n"
            "  Give all optimisers at once, apply([one, other]); or leave these parameters out of the "
            "accumulator."
        )


# Clip functions --------------------------------------------------------------------------------


class NamedGradients(Gradients):
    """A store of gradients that finds them by name too: what a clip function of an accumulator is given."""

    __slots__ = ("_names",)

    def __init__(self, names: dict[str, Tensor], found: Mapping[str, Any]) -> None:
        super().__init__()
        self._names = names
        for name, g in found.items():
            self.set(name, as_gradient_tensor(g))

    def _tensor(self, key: Any) -> Any:
        if isinstance(key, str) and key not in self._names:
            known = ", ".join(map(repr, self._names))
            raise UnknownNameError(f"no parameter is registered as {key!r}.\n  Registered: {known}.")
        return self._names[key] if isinstance(key, str) else key

    def get(self, key: Tensor | int | str, default: Any = None) -> Any:
        """Return the gradient of a parameter, given by itself or its name, or ``default``."""
        return super().get(self._tensor(key), default)

    def __getitem__(self, key: Tensor | int | str) -> Tensor:
        return super().__getitem__(self._tensor(key))

    def __contains__(self, key: object) -> bool:
        return super().__contains__(self._names.get(key) if isinstance(key, str) else key)

    def set(self, key: Tensor | str, grad: Any) -> None:
        """Store a gradient, in the dtype of the parameter or a wider one; one that was there is replaced."""
        t, new = self._tensor(key), asarray(grad)
        if isinstance(t, Tensor) and new.shape == t.shape and np.can_cast(t.dtype, new.dtype, "safe"):
            self._items[id(t)] = (t, new)
        else:
            super().set(t, grad)

    def add(self, key: Tensor | str, grad: Any) -> None:
        """Add to the gradient of a parameter."""
        before = self.get(key)
        self.set(key, grad if before is None else before + asarray(grad))

    def pop(self, key: Tensor | int | str, *default: Any) -> Any:
        """Remove a gradient and return it."""
        return super().pop(self._tensor(key), *default)


def clipped_by(
    clip: Clip, found: dict[str, Any], params: dict[str, Tensor], p: float
) -> tuple[dict[str, Any], float, float]:
    """Let a function clip gradients, which are its own; return them and the norms before and after.

    It is given a dictionary by name, or with ``params`` a store.
    """
    before = global_norm(found.values(), p)
    given: Any = {n: as_gradient_tensor(g) if type(g) is SparseRows else g for n, g in found.items()}
    given = NamedGradients(params, found) if params else given
    with lending(given):
        clip(given)
    missing = [name for name in found if name not in given]
    if missing:
        names = ", ".join(map(repr, missing))
        raise InputError(f"clip: the function took {names} away; it may only replace gradients.")
    clipped = {name: _fitting(name, given[name], g) for name, g in found.items()}
    return clipped, before, global_norm(clipped.values(), p)


def _fitting(name: str, value: Any, before: Any) -> Any:
    """Return what a function put in the place of a gradient, in its dtype; another shape is refused."""
    g = gradient_array(f"clip: {name!r}", value)
    if g.shape != before.shape:
        raise ShapeError(
            f"clip: the function put a gradient of shape {g.shape} in the place of {name!r}, which has "
            f"{before.shape}."
        )
    if g.dtype != before.dtype and not np.can_cast(g.dtype, before.dtype, "same_kind"):
        raise DTypeError(
            f"clip: the function put a {g.dtype} gradient in the place of {name!r}, which is {before.dtype}."
        )
    with np.errstate(all="ignore"):
        return g.astype(before.dtype, copy=False)
