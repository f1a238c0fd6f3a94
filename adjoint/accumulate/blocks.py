"""The inputs of an accumulator: parameters, weights, gradients, micro-batches, and the pieces of a batch."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from adjoint import tree, words
from adjoint.core.convert import array_of, checked_dtype, foreign_array, resolved
from adjoint.core.shapes import number, number_between, whole_from
from adjoint.core.sparse import SparseGradient, SparseRows
from adjoint.core.tensor import Tensor, differentiable
from adjoint.errors import (
    AccumulationError,
    AdjointError,
    ArgumentError,
    DTypeError,
    InputError,
    NoGradientError,
)
from adjoint.grads.slots import commit, sink

if TYPE_CHECKING:
    from adjoint.accumulate.accumulator import GradientAccumulator

__all__ = ["MicroBatch", "checked_sum_dtype", "checked_weight", "gradient_array", "named_params",
           "split_batch", "sum_dtype"]  # fmt: skip

Array = ndarray[Any, Any]


def named_params(params: Any) -> dict[str, Tensor]:
    """Return parameters by name, from a dictionary, a module, (name, tensor) pairs or a list ("0", "1", …).

    A parameter that several layers share occurs once, under its first name.
    """
    if hasattr(params, "named_parameters"):
        pairs = list(params.named_parameters())
    elif isinstance(params, Mapping):
        pairs = list(params.items())
    elif not isinstance(params, Iterable):
        raise InputError(
            f"GradientAccumulator: params must be a module or a list of tensors, not {params!r}.\n"
            "  Pass the number of micro-batches as accumulation_steps=…."
        )
    else:
        found = enumerate([params] if isinstance(params, Tensor) else params)
        pairs = [p if isinstance(p, tuple) and len(p) == 2 else (str(i), p) for i, p in found]
    named: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, t in pairs:
        if not isinstance(t, Tensor):
            what = f"{type(t).__module__}.{type(t).__qualname__}".removeprefix("builtins.")
            raise InputError(
                f"GradientAccumulator: {name!r} is {words.a(what)}, not an adjoint tensor.\n"
                "  Gradients of other libraries are added by name, with register() and step()."
            )
        if not t.is_leaf or (name in named and t is not named[name]):
            what = "two parameters have that name" if t.is_leaf else "it is not a leaf tensor"
            raise ArgumentError(f"GradientAccumulator: {name!r} cannot be used as a parameter: {what}.")
        if id(t) not in seen:
            named[name] = t
            seen.add(id(t))
    if not any(t.requires_grad for t in named.values()):
        raise NoGradientError(
            f"GradientAccumulator: none of the {len(named)} parameters requires grad.\n"
            "  Unfreeze some with requires_grad_(True), or leave out params to add gradients by name."
        )
    return named


def checked_weight(weight: Any) -> float:
    """Return a weight as a float; raise unless it is finite and not negative."""
    return number_between("weight", number("GradientAccumulator", "weight", weight), 0.0)


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of sums of gradients of ``dtype``: at least float32."""
    return np.result_type(np.float16 if dtype.name == "bfloat16" else dtype, np.float32)


def checked_sum_dtype(what: str, dtype: Any) -> np.dtype[Any]:
    """Return ``dtype`` as a NumPy dtype; raise if gradients cannot be summed in it."""
    found = checked_dtype(dtype)
    if not differentiable(found) or sum_dtype(found) != found:
        raise DTypeError(
            f"{what}: gradients must be summed in float32, float64 or a complex dtype, not in {found}.\n"
            "  Half precision would lose small gradients in the sum.  Use float32."
        )
    return found


def gradient_array(what: str, value: Any) -> Array | SparseRows:
    """Return a gradient of any library as an array or as sparse rows, without a copy where possible.

    ``what`` names the gradient in messages.  bfloat16 becomes float32, because NumPy does not combine it with
    other dtypes.
    """
    if isinstance(value, (SparseGradient, SparseRows)):
        return value._rows if isinstance(value, SparseGradient) else value
    own = isinstance(value, Tensor)
    if (own and value.requires_grad and value.is_leaf) or type(value).__name__ == "Parameter":  # PyTorch's
        raise InputError(
            f"{what}: this is a parameter, not its gradient.\n"
            "  Pass its .grad: {name: p.grad for name, p in model.named_parameters() if p.grad is not None}."
        )
    if value is None or isinstance(value, dict):
        raise InputError(
            f"{what}: a gradient must be an array, not {'None' if value is None else 'a dictionary'}.\n"
            "  Leave out parameters without a gradient.  Register each array of nested dictionaries under a "
            "name of its own, such as 'layer.weight'."
        )
    if getattr(value, "is_sparse", False):
        return _foreign_rows(what, value)
    numpy = own or isinstance(value, (ndarray, np.generic, int, float, complex, list, tuple))
    try:
        data = array_of(value) if numpy else foreign_array("", value)
    except AdjointError as error:  # for example strings, or rows of different lengths
        raise type(error)(f"{what}: {error}") from None
    if isinstance(value, (int, list, tuple)) and data.dtype.kind in "iu":
        data = data.astype(np.float64)  # literals such as [1, 2]
    if not differentiable(data.dtype):
        raise DTypeError(f"{what}: a gradient must have a float or complex dtype, not {data.dtype}.")
    if data.dtype.kind not in "fc":
        return data.astype(np.float32)
    return data if data.dtype.isnative else data.astype(data.dtype.newbyteorder("="))


def _foreign_rows(what: str, value: Any) -> SparseRows:
    """Convert a sparse PyTorch tensor, such as the gradient of an embedding, to ``SparseRows``.

    Raise if the tensor has more than one sparse axis.  ``what`` names the gradient in the message.
    """
    value = resolved(value).coalesce()
    indices, values = np.asarray(value.indices()), gradient_array(what, value.values())
    if indices.shape[0] != 1 or type(values) is not ndarray:
        raise InputError(
            f"{what}: a sparse gradient must have one sparse axis, but this one has {indices.shape[0]}.\n"
            "  Convert it to a dense array first."
        )
    return SparseRows(indices[0].astype(np.intp), values, tuple(value.shape), unique=True)


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
        if self._sent or self._ended:
            when = "the block had ended" if self._ended else "backward() had begun to send gradients"
            raise AccumulationError(
                f"micro_batch: the weight was set after {when} with weight {self.weight:g}.\n"
                "  Set the weight inside the block, or pass it: micro_batch(weight=n)."
            )
        self._weight = checked_weight(weight)

    def __enter__(self) -> MicroBatch:
        self._accumulator._check_open()
        self._outer = sink.get()
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
        """Return whether ``leaf`` is a parameter of this block's accumulator or of an enclosing block's."""
        return id(leaf) in self._accumulator._names or (self._outer is not None and self._outer.wants(leaf))

    def take(self, gradients: dict[Tensor, Any]) -> None:
        """Keep the gradients of the parameters, and pass the rest to the outer block or to ``.grad``.

        On an error none are kept.
        """
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

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if sink.get() is self:  # not if the block was entered in another thread or task
            sink.set(self._outer)
        with self._lock:
            self._ended = True
            pending, self._pending = self._pending, {}
        self._end(pending, error)

    def _end(self, pending: dict[str, Any], error: BaseException | None) -> None:
        """Add the gradients ``pending`` of the block, unless ``error`` was raised in it."""
        if error is not None:
            return
        short = self._accumulator._short
        if self._weight is None and short is not None:
            raise ArgumentError(
                f"micro_batch: this piece of split() has {short[0]} examples and the previous one had "
                f"{short[1]}, but without weight= every piece has weight 1.\n"
                "  Pass the number of examples or tokens: micro_batch(weight=len(xb))."
            )
        if not pending:
            raise NoGradientError(
                "micro_batch: no backward() inside the block computed a gradient of any of the parameters.\n"
                "  Call loss.backward() inside the block.  Nothing was added."
            )
        self._accumulator._add_block(pending, self)


def _added(pending: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return, for each name in ``own``, the sum of its gradients in ``own`` and in ``pending``, as an array.

    ``own`` has the gradients of one backward, ``pending`` those of earlier backwards in the block.
    """
    return {name: _sum(pending.get(name), g, name) for name, g in own.items()}


def _sum(before: Any, g: Any, name: str) -> Any:
    if type(g) is not ndarray or g.dtype.kind not in "fc":  # bfloat16
        g = gradient_array(name, g)
    if before is None:
        return g
    total = np.add(before, g, dtype=sum_dtype(g.dtype))  # a number if both are 0-d arrays
    return total if type(total) is SparseRows else np.asarray(total)


def split_batch(accumulator: GradientAccumulator, batch: Any, size: int) -> Iterator[Any]:
    """Return an iterator over pieces of a batch, each with ``size`` rows; the last piece may be shorter.

    While a shorter piece is used, ``accumulator._short`` is (its length, ``size``), otherwise None.
    """
    size = whole_from(1, "split: size", size)
    arrays, structure = tree.flatten(batch)
    lengths = {tuple(getattr(a, "shape", ()))[:1] for a in arrays}
    if len(lengths) != 1 or () in lengths:
        raise ArgumentError(
            "split: a batch must consist of arrays with at least one axis and equal lengths, but the shapes "
            f"are {', '.join(str(getattr(a, 'shape', None)) for a in arrays) or 'missing'}."
        )
    length = lengths.pop()[0]

    def made() -> Iterator[Any]:
        try:
            for start in range(0, length, size):
                here = min(size, length - start)
                accumulator._short = None if here == size or not start else (here, size)
                yield tree.unflatten(structure, [a[start : start + size] for a in arrays])
        finally:
            accumulator._short = None

    return made()
