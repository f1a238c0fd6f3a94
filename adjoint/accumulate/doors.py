"""The inputs and outputs of an accumulator: parameters, micro-batches, clip functions and optimisers.

An optimiser is an object with ``step()``, which reads the ``.grad`` of its parameters; an object with
``apply(gradients)``; or a function of a dictionary of gradients by name.  An optimiser that raises an
exception is assumed to have made no update and to have left its gradients unchanged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from adjoint import tree, words
from adjoint.accumulate.foreign import checked_weight, gradient_array, sum_dtype
from adjoint.core.convert import asarray
from adjoint.core.shapes import whole_from
from adjoint.core.sparse import SparseRows, as_gradient_tensor
from adjoint.core.tensor import Tensor, castable
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
from adjoint.grads.norm import all_finite, stored_values
from adjoint.grads.slots import commit, parameters_of, sink
from adjoint.grads.store import Gradients

if TYPE_CHECKING:
    from adjoint.accumulate.accumulator import GradientAccumulator
    from adjoint.accumulate.ranks import Ranks

__all__ = ["MicroBatch", "clipped_by", "hand_over", "named_params", "optimizers_of", "shown", "split_batch"]


def named_params(params: Any) -> list[tuple[str, Tensor]]:
    """Return parameters by name, from a dictionary, a module, pairs, or a list (names "0", "1", …)."""
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
    return found


class MicroBatch:
    """Context manager of one micro-batch: at its end all gradients are added, or none after an error.

    ``weight`` can be set until the block ends.
    """

    __slots__ = ("_accumulator", "_early", "_ended", "_lock", "_outer", "_pending", "_weight", "scaled")

    def __init__(self, accumulator: GradientAccumulator, weight: float | None) -> None:
        self._weight = None if weight is None else checked_weight(weight)
        self.scaled = False  # a GradScaler scaled the loss, so ``apply`` needs it
        self._ended = False
        self._early = False  # gradients were taken while backward ran
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
        if self._early:
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
        self._pending, self._ended, self._early, self.scaled = {}, False, False, False
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
        acc = self._accumulator
        if self._early:
            raise AccumulationError(
                "backward: the gradients of this window were already sent to the other ranks.\n  For several "
                "losses in one block, call loss.backward() for each, or add the losses."
            )
        ready = None if acc._ranks is None or self._pending else acc._ranks.early(acc, self)
        if ready is None:
            loss.backward(**options)
        else:
            self._early = True
            loss.backward(on_leaf_ready=ready, **options)

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
        acc = self._accumulator
        if acc._ranks is not None:
            self._end_for_all(acc._ranks, pending, error)
        elif kind is None:
            self._end(pending)

    def _end_for_all(self, ranks: Ranks, pending: dict[str, Any], error: BaseException | None) -> None:
        """End the block on this rank; an error in the block ends the window on all ranks."""
        if isinstance(error, Exception):
            ranks.fail(self._accumulator, error)
        if error is not None:
            return  # an interrupt
        try:
            if pending or (self._weight != 0.0 and not self._early):
                self._end(pending)
            else:  # all gradients were taken, or this rank has no examples
                self._accumulator._add_block(pending, self)
        except Exception as found:
            ranks.fail(self._accumulator, found)

    def _end(self, pending: dict[str, Any]) -> None:
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
    """Return an iterator over pieces of a batch; it sets ``accumulator._short`` at a shorter last piece."""
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


# From gradients to an update -------------------------------------------------------------------------


def shown(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return gradients as users see them: sparse rows as ``SparseGradient`` tensors."""
    if SparseRows not in set(map(type, found.values())):
        return dict(found)
    return {name: as_gradient_tensor(g) if type(g) is SparseRows else g for name, g in found.items()}


class NamedGradients(Gradients):
    """The store passed to clip functions: gradients are looked up by parameter or by name."""

    __slots__ = ("_names",)

    def __init__(self, names: Mapping[str, Tensor], found: Mapping[str, Any]) -> None:
        super().__init__()
        self._names = names
        self._items = {id(names[n]): (names[n], as_gradient_tensor(g)) for n, g in found.items()}

    def _tensor(self, key: Any) -> Any:
        if isinstance(key, str) and key not in self._names:
            known = words.quoted(self._names)
            raise UnknownNameError(f"no parameter is registered as {key!r}.\n  Registered: {known}.")
        return self._names[key] if isinstance(key, str) else key

    def __contains__(self, key: object) -> bool:
        return super().__contains__(self._names.get(key) if isinstance(key, str) else key)

    def _fitting(self, key: Tensor, grad: Any) -> Tensor:
        new = asarray(grad)  # in the dtype of the parameter, or a wider one
        known = isinstance(key, Tensor) and new.shape == key.shape
        wide = known and np.can_cast(key.dtype, new.dtype, "safe")
        return new if wide else super()._fitting(key, grad)


def clipped_by(
    clip: Callable[[Any], Any], found: dict[str, Any], params: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Return the gradients ``found`` after a clip function, which may write into them or replace them."""
    given: Any = NamedGradients(params, found) if params else shown(found)
    with lending(given):
        clip(given)
    missing = [name for name in found if name not in given]
    if missing:
        raise InputError(f"clip: the function removed {words.quoted(missing)}, but it may only change them.")
    clipped = {}
    for name, old in found.items():
        g = gradient_array(f"clip: {name!r}", given[name])
        if g.shape != old.shape:
            raise ShapeError(
                f"clip: the function changed the shape of {name!r} from {old.shape} to {g.shape}."
            )
        if not castable(g.dtype, old.dtype):
            raise DTypeError(
                f"clip: the function changed the dtype of {name!r} from {old.dtype} to {g.dtype}."
            )
        clipped[name] = g.astype(old.dtype, copy=False)
    return clipped


def optimizers_of(given: Any) -> list[Any]:
    """Return a list of one or several optimisers; raise for anything else."""
    found = list(given) if isinstance(given, (list, tuple)) else [given]
    for optimizer in found or [None]:
        known = hasattr(optimizer, "step") or hasattr(optimizer, "apply")
        if known and isinstance(optimizer, type):
            name = optimizer.__name__
            raise InputError(f"apply: {name} is a class.  Pass an instance: {name}(…).")
        if not known and not callable(optimizer):
            raise InputError(
                "apply: pass an optimiser (an object with step() or apply(gradients)), a function of the "
                f"gradients, or a list of at least one of these, not {given!r}."
            )
    return found


def hand_over(
    optimizers: list[Any],
    params: Mapping[str, Tensor],
    found: Mapping[str, Any],
    done: list[Any],
    before: Any,
    allow: bool,
) -> list[str]:
    """Call the optimisers that are not in ``done``, and append each one to ``done`` after its update.

    ``before`` is called after ``.grad`` was set; ``.grad`` is restored at the end.  Without ``allow``, if
    gradients are not finite in the dtype of their parameters, return their names and call no optimiser.
    """
    grads = found
    narrow: dict[str, Any] = {}
    if any(hasattr(optimizer, "step") for optimizer in optimizers):
        if not params:
            raise InputError(
                "apply: this optimiser reads .grad, but the accumulator was created without parameters.\n"
                "  Pass them, GradientAccumulator(params, …), or use the arrays that gradients() returns."
            )
        _refuse_to_lose([*optimizers, *done], params, grads)
        with np.errstate(over="ignore"):
            for name, t in params.items():
                if name in grads:
                    g = as_gradient_tensor(grads[name])
                    narrow[name] = g if g.dtype == t.dtype else g.astype(t.dtype)
        cast = [name for name, g in narrow.items() if g.dtype != grads[name].dtype]
        beyond = [name for name in cast if not all_finite(stored_values(narrow[name]))]
        if beyond and not allow:
            return beyond
    for optimizer in optimizers:
        if any(optimizer is other for other in done):
            continue
        if hasattr(optimizer, "step"):
            kept = [(t, t.grad) for t in params.values()]
            try:
                for name, t in params.items():
                    t.grad = narrow.get(name)
                if before is not None:
                    before()
                optimizer.step()
            finally:
                for t, old in kept:
                    t.grad = old
        else:
            (optimizer.apply if hasattr(optimizer, "apply") else optimizer)(shown(grads))
        done.append(optimizer)
    return []


def _refuse_to_lose(optimizers: list[Any], params: Mapping[str, Tensor], grads: Mapping[str, Any]) -> None:
    """Raise if the optimisers have known parameters and leave out a parameter with a gradient."""
    try:
        updated = {id(t) for optimizer in optimizers for t in parameters_of(optimizer)}
    except (InputError, TypeError, KeyError):  # the parameters of one are not known
        return
    lost = [name for name, t in params.items() if name in grads and id(t) not in updated]
    if updated and lost:
        raise InputError(
            f"apply: no optimiser updates {words.quoted(lost)}, so these gradients would be lost.\n"
            "  Create optimisers and accumulator from the same parameters, and pass all optimisers at once: "
            "apply([one, other])."
        )
