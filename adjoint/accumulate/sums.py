"""Weighted sums of gradients, in float32 or wider.

Small parameters of one dtype share a flat array, so that a few NumPy calls copy, check and add a whole
micro-batch.  A large parameter has its own array, to which several threads add.  Sparse gradients are summed
by rows, separately from the dense sums.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint import words
from adjoint.accumulate.blocks import checked_sum_dtype, checked_weight, gradient_array, sum_dtype
from adjoint.core.references import IN_LIST
from adjoint.core.shapes import checked_shape
from adjoint.core.sparse import SparseRows
from adjoint.core.tensor import Tensor
from adjoint.errors import DTypeError, InputError, ShapeError, UnknownNameError
from adjoint.grads.norm import all_finite_unwarned, global_norm
from adjoint.threads.spread import SHARED, pieces, run_parts, scratch, threads_for

__all__ = ["WIDE", "Buffer", "GradientBuffer", "Slot", "Staged", "Sums", "normalised"]

Array = ndarray[Any, Any]
Rows = tuple[Array, Array]  # ascending row numbers, and their sums in an array like the memory of a buffer
# the names of gradients that are not finite, and if there are none, a function that adds the micro-batch
Staged = tuple[list[str], Callable[[], None] | None]

SMALL = 1 << 13  # a parameter of at most this many elements shares an array with others
BLOCK = 1 << 17  # elements of such an array: 1 MiB of float64, which stays in the cache
LEAST = 1 << 20  # the fewest elements per thread: fewer are added before a helper thread wakes up
LINE = 1 << 10  # parts begin at multiples of this, so that no two threads write to one cache line
CHUNK = 1 << 15  # elements that are added with compensation at a time: temporary arrays stay in the cache
WIDE = 2.0**64  # weights whose ratio is smaller than this are counted in the same unit

_shape, _dtype = attrgetter("shape"), attrgetter("dtype")


def _facts(names: Iterable[str], arrays: Sequence[Array]) -> tuple[list[str], list[Any], list[Any]]:
    return list(names), list(map(_dtype, arrays)), list(map(_shape, arrays))


def normalised(total: Any, divisor: float, factor: float, out: Array | None = None) -> Any:
    """Return ``total``, a dense or sparse sum, divided by ``divisor`` and multiplied by ``factor``."""
    if type(total) is SparseRows:
        return total.mapped(normalised(total.values, divisor, factor))
    out = np.empty_like(total) if out is None else out
    # float32 cannot represent every divisor
    wide = total.dtype if 1e-30 < divisor < 1e30 else np.result_type(total, np.float64)
    np.divide(total, divisor, out=out, dtype=wide, casting="same_kind")
    return out if factor == 1.0 else np.multiply(out, factor, out=out, dtype=total.dtype)


def _shift(old: float, new: float) -> int:
    """Return the exponent of ``old / new``; both are powers of 2.  The quotient itself may underflow."""
    return math.frexp(old)[1] - math.frexp(new)[1]


def _shifted(a: Array, shift: int) -> Array:
    """Multiply the contiguous array ``a`` by 2**shift in place; float32 cannot represent every 2**shift."""
    parts = a.view(a.real.dtype)
    np.ldexp(parts, shift, out=parts)
    return a


def _weighted(g: Array, weight: float, unit: float, dtype: Any, out: Array | None = None) -> Array:
    """Return weight / unit · g, also if the quotient is too small or too large for ``dtype``."""
    mantissa, exponent = math.frexp(weight)
    found = np.multiply(g, mantissa, out=out, dtype=dtype)
    return _shifted(found, exponent + 1 - math.frexp(unit)[1])


class Slot:
    """A registered parameter: its name, its shape, and the dtype and location of its sum."""

    def __init__(self, name: str, shape: Any, dtype: Any, param: Tensor | None = None) -> None:
        self.index = 0  # in the order of registration
        self.name = name
        self.shape = checked_shape(name, shape)
        self.size = math.prod(self.shape)
        self.dtype = None if dtype is None else checked_sum_dtype(name, dtype)  # None: of the first gradient
        self.param = param  # None: gradients are given by name
        self.part = slice(0, 0)  # the part of the buffer's memory that has the sum

    def fitting(self, g: Any, weak: bool = False, what: str = "") -> Any:
        """Return an array or sparse rows to add to this sum; raise if the shape or the dtype is wrong.

        If ``weak`` is True, the gradient may be rounded to the dtype of the sum; otherwise that is an error.
        ``what`` is the start of the message.
        """
        if g.shape != self.shape:
            same = ", which has the same number of elements" if math.prod(g.shape) == self.size else ""
            raise ShapeError(
                f"{what}{self.name}: expected a gradient of shape {self.shape}, but got {g.shape}{same}."
            )
        if self.dtype is None or g.dtype == self.dtype or np.can_cast(g.dtype, self.dtype, "safe"):
            return g
        if weak and g.dtype.kind == self.dtype.kind:
            return g.astype(self.dtype)
        raise DTypeError(
            f"{what}{self.name}: a {g.dtype} gradient cannot be added to a {self.dtype} sum without "
            "rounding.\n  Cast the gradient, or pass a wider dtype= to the accumulator."
        )


class Buffer:
    """The sums of several small parameters, or of one large parameter, in a flat array."""

    def __init__(self, slots: list[Slot], depth: int) -> None:
        self.slots = slots
        self.names = [slot.name for slot in slots]
        indices = [slot.index for slot in slots]
        span = slice(indices[0], indices[0] + len(slots))
        # the gradients of these slots: a slice of all items of a tuple makes no copy
        self.pick = itemgetter(*([span] if indices == [*range(span.start, span.stop)] else indices))
        self.depth = depth  # 2: the memory has a second row, the rounding errors of the additions
        self.fresh = True  # nothing was added: the memory is undefined
        self.arrays: list[Array] = []  # the memory, and a view of its first row for each parameter
        self.stage: Array | None = None  # the gradients of one micro-batch
        self.size = 0
        for slot in slots:
            slot.part = slice(self.size, self.size + slot.size)
            self.size += slot.size

    def is_shared(self) -> bool:
        """Return whether there is no memory, or other code still refers to an array in it."""
        views = len(self.slots)
        return list(map(sys.getrefcount, self.arrays)) != [IN_LIST + views, *[IN_LIST] * views]

    def open(self) -> None:
        """Allocate memory if there is none, or if other code still refers to an array in it."""
        if self.is_shared():
            self.use(np.empty((self.depth, self.size), self.slots[0].dtype))
        self.arrays[0][1:] = 0

    def use(self, memory: Array) -> None:
        """Set the memory of this buffer, and make the views of the parameters' sums."""
        self.arrays = [memory, *(memory[0, slot.part].reshape(slot.shape) for slot in self.slots)]

    def staged(self, arrays: Sequence[Any], plain: bool) -> Array | None:
        """Return the gradients of this buffer in one flat array, or None if all are missing or sparse.

        Missing and sparse gradients become zeros.  ``plain`` is True if no gradient is missing or sparse.
        """
        parts: Any = self.pick(arrays)
        if not plain and ndarray not in map(type, parts):
            return None
        if self.fresh:
            self.open()
        if len(parts) == 1:
            return np.asarray(parts[0]).reshape(-1)
        if not plain:
            pairs = zip(parts, self.slots, strict=True)
            parts = [g if type(g) is ndarray else np.zeros(s.size, s.dtype) for g, s in pairs]
        if not self.fresh and self.stage is None:
            self.stage = np.empty_like(self.arrays[0][0])
        # the first micro-batch is staged directly in the sums
        out = self.arrays[0][0] if self.fresh else self.stage
        return np.concatenate(parts, axis=None, out=out, casting="same_kind")

    def sums_staged(self) -> Array | None:
        """Return the sums if the gradients of the first micro-batch were staged in them, else None."""
        return self.arrays[0][0] if self.fresh and len(self.slots) > 1 else None

    def add(self, g: Array, factor: float, part: slice) -> None:
        """Add factor·g to the sums in the slice ``part``; g is flat."""
        memory, staged = self.arrays[0], g is self.stage
        if self.fresh:
            if factor != 1.0 or len(self.slots) == 1:  # otherwise the gradients were staged in the sums
                np.multiply(g[part], factor, out=memory[0, part], dtype=memory.dtype)
            return
        length = CHUNK if self.depth == 2 else 2 * SHARED // memory.itemsize
        for s in pieces(part.stop, length, part.start):
            x = g[s]
            if factor != 1.0:  # the product is added before it leaves the cache
                out = x if staged else scratch(x.size, memory.dtype)
                x = np.multiply(x, factor, out=out, dtype=memory.dtype)
            _add_to(memory[:, s], x)


def _add_to(sums: Array, x: Array) -> None:
    """Add x to ``sums[0]``, and the rounding errors to ``sums[1]`` if there is such a row (Neumaier)."""
    s = sums[0]
    if len(sums) == 1:
        np.add(s, x, out=s)
        return
    t = s + x
    sums[1] += np.where(np.abs(s) >= np.abs(x), (s - t) + x, (x - t) + s)
    s[...] = t


def _corrected(sums: Array) -> Array:
    """Return the sums plus their rounding errors; an infinite sum is not corrected."""
    if len(sums) == 1:
        return np.asarray(sums[0])
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(sums[0]), sums[0] + sums[1], sums[0])


class Sums:
    """The sums of all parameters of an accumulator, by name, in the order of registration."""

    def __init__(self, compensated: bool = False) -> None:
        self.depth = 2 if compensated else 1
        self.slots: dict[str, Slot] = {}
        self.buffers: list[Any] = []
        self.buffer_of: dict[str, Any] = {}  # by the name of a parameter
        self.pending: list[Slot] = []  # slots without a buffer: no gradient was added yet
        self.dense: set[str] = set()  # names with dense gradients in this window
        self.rows: dict[str, Rows] = {}  # the sums of sparse gradients
        # weights are counted in this power of two, so that tiny ones do not vanish in float32
        self.unit = 1.0
        # names, dtypes and shapes of the last whole, dense micro-batch, which the next one is likely to have
        self._seen: tuple[list[str], list[Any], list[Any]] | None = None

    def register(self, slot: Slot) -> None:
        """Register a parameter that has no gradient yet."""
        slot.index = len(self.slots)
        self.slots[slot.name] = slot
        self.pending.append(slot)
        self._seen = None

    def reset(self) -> None:
        """Clear all sums; keep the memory."""
        for buffer in self.buffers:
            buffer.fresh = True
        self.dense.clear()
        self.rows.clear()
        self.unit = 1.0

    def checked(self, gradients: Mapping[str, Any]) -> Sequence[Any]:
        """Return the gradients of a micro-batch in the order of the parameters, None for missing ones.

        The result is a tuple only if all are dense arrays.
        """
        if not isinstance(gradients, (dict, Mapping)) or not gradients:
            raise InputError(f"step: pass a dictionary of gradients by name, not {gradients!r}.")
        arrays = tuple(gradients.values())
        if set(map(type, arrays)) == {ndarray} and self._seen == _facts(gradients, arrays):
            return arrays
        if unknown := [name for name in gradients if name not in self.slots]:
            near = [m for name in unknown[:3] for m in get_close_matches(str(name), list(self.slots), 1)]
            meant = f"\n  Is it {words.quoted(near)}?" if near else ""
            known = words.quoted(self.slots) or "none; call register(name, shape) first"
            raise UnknownNameError(
                f"no parameter is registered as {words.quoted(unknown)}.  Nothing was added.{meant}\n"
                f"  Registered: {known}."
            )
        found: list[Any] = [None] * len(self.slots)
        for name, value in gradients.items():
            slot, weak = self.slots[name], isinstance(value, (int, float, list, tuple))
            found[slot.index] = slot.fitting(gradient_array(repr(name), value), weak)
        return found

    @np.errstate(all="ignore")  # as a decorator: ``with`` makes a new object at each call
    def staged(self, arrays: Sequence[Any], weight: float | None, before: float, *, check: bool) -> Staged:
        """Return the names of gradients that are not finite, or a function that adds weight·gradient.

        No sum is changed before that function is called; an error in the function may leave a part added.
        ``arrays`` are in the order of the parameters.  ``before`` is the weight of all earlier micro-batches.
        With ``weight=None`` the gradients are added as they are.
        """
        if self.pending and any(arrays[slot.index] is not None for slot in self.pending):
            if check and (bad := self._not_finite(arrays)):  # before they decide a dtype
                return bad, None
            self.lay_out(arrays)
        plain = type(arrays) is tuple or set(map(type, arrays)) == {ndarray}
        dense = [(b, g) for b in self.buffers if (g := b.staged(arrays, plain)) is not None]
        sparse = [] if plain else [(n, g) for n, g in zip(self.slots, arrays, strict=True)
                                   if type(g) is SparseRows]  # fmt: skip
        size = sum([g.size for _, g in dense])
        threads = threads_for(size, LEAST)
        if check and not _finite([g for _, g in dense] + [g.values for _, g in sparse], size, threads):
            return self._not_finite(arrays), None
        unit = self.unit if weight is None else self._unit_for(weight, before)
        factor = 1.0 if weight is None else weight / unit
        if weight and not 1e-30 < factor < 1e30:
            dense = [(b, _weighted(g, weight, unit, b.slots[0].dtype, b.sums_staged())) for b, g in dense]
            sparse = [
                (n, g.mapped(_weighted(g.values, weight, unit, self.slots[n].dtype))) for n, g in sparse
            ]
            factor = 1.0
        change = _shift(self.unit, unit) if before else 0  # the exponent by which earlier sums are multiplied
        rows = {name: self._with_rows(self.slots[name], g, factor, change) for name, g in sparse}

        def add() -> None:
            with np.errstate(all="ignore"):
                for a in self.values() if change else ():
                    _shifted(a, change)
                if threads == 1:
                    for buffer, g in dense:
                        buffer.add(g, factor, slice(0, g.size))
                else:
                    jobs = [(b, g, factor, part) for b, g in dense for part in _parts(g, size, threads, 8)]
                    run_parts(lambda job: job[0].add(*job[1:]), jobs, threads)
            self.unit = unit
            self.rows.update(rows)
            for buffer, _ in dense:
                buffer.fresh = False
            if len(self.dense) < len(arrays):
                self.dense.update([n for n, g in zip(self.slots, arrays, strict=True) if type(g) is ndarray])
            if plain:
                self._seen = self._seen or _facts(self.slots, arrays)

        return [], add

    def _with_rows(self, slot: Slot, g: SparseRows, factor: float, change: int) -> Rows:
        """Return 2**change·s + factor·g as new (rows, sums); s is the sparse sum of a parameter so far."""
        part = g.mapped(np.multiply(g.values, factor, dtype=slot.dtype)).coalesced()
        none = np.zeros(0, np.intp), np.zeros((self.depth, 0, *slot.shape[1:]), slot.dtype)
        before, earlier = self.rows.get(slot.name, none)
        rows = np.union1d(before, part.rows)
        sums = np.zeros((self.depth, rows.size, *slot.shape[1:]), slot.dtype)
        sums[:, np.searchsorted(rows, before)] = _shifted(earlier.copy(), change) if change else earlier
        at = np.searchsorted(rows, part.rows)
        found = sums[:, at]
        _add_to(found, part.values)
        sums[:, at] = found
        return rows, sums

    def _not_finite(self, arrays: Sequence[Any]) -> list[str]:
        pairs = [(n, getattr(g, "values", g)) for n, g in zip(self.slots, arrays, strict=True)]
        return [name for name, g in pairs if g is not None and not all_finite_unwarned(g)]

    def lay_out(self, arrays: Sequence[Any]) -> None:
        """Make the buffers of the parameters that get their first gradient now.

        ``arrays`` has the gradient of each parameter, or None.
        """
        groups: dict[Any, list[Slot]] = {}
        used: dict[Any, int] = {}  # elements of small parameters, by dtype
        for slot in [s for s in self.pending if arrays[s.index] is not None]:
            slot.dtype = slot.dtype or sum_dtype(arrays[slot.index].dtype)
            key: Any = slot
            if slot.size <= SMALL:
                start = used.get(slot.dtype, 0)
                key, used[slot.dtype] = (slot.dtype, start // BLOCK), start + slot.size
            groups.setdefault(key, []).append(slot)
        self.add_buffers([Buffer(slots, self.depth) for slots in groups.values()])

    def add_buffers(self, buffers: Sequence[Buffer]) -> None:
        """Register new buffers; their parameters are no longer pending."""
        self.buffers += buffers
        self.buffer_of.update((slot.name, buffer) for buffer in buffers for slot in buffer.slots)
        self.pending = [slot for slot in self.pending if slot.name not in self.buffer_of]

    def _unit_for(self, weight: float, before: float) -> float:
        """Return the unit by which all weights are divided, so that sums neither overflow nor underflow.

        It is a new power of 2 close to ``weight`` if that is the first weight (``before`` is 0), or if it is
        more than WIDE times the old unit; otherwise it is the old unit.
        """
        if weight and (not before or weight / self.unit > WIDE):
            return 2.0 ** (math.frexp(weight)[1] - 1)
        return self.unit

    def total(self, name: str) -> Array | SparseRows:
        """Return the sum of a parameter, for reading only, or zeros if nothing was added."""
        slot, found = self.slots[name], None
        if name in self.rows:
            rows, sums = self.rows[name]
            found = SparseRows(rows, _corrected(sums), slot.shape, unique=True)
        if name in self.dense:
            dense = _corrected(self.buffer_of[name].arrays[0][:, slot.part]).reshape(slot.shape)
            return dense if found is None else np.add(dense, found)
        return np.zeros(slot.shape, slot.dtype or np.float64) if found is None else found

    def totals(self) -> dict[str, Any]:
        """Return the sums of all parameters that have one, by name."""
        if self.rows or self.depth == 2:
            return {name: self.total(name) for name in self.slots if name in self.dense or name in self.rows}
        found: dict[str, Any] = {}
        for buffer in self.buffers:
            found.update(zip(buffer.names, buffer.arrays[1:], strict=False))  # no arrays: nothing was added
        if len(self.buffers) == 1 and len(found) == len(self.dense):
            return found
        return {name: found[name] for name in self.slots if name in self.dense}

    def values(self) -> list[Array]:
        """Return as few arrays as possible that together contain all sums."""
        return [b.arrays[0] for b in self.buffers if not b.fresh] + [sums for _, sums in self.rows.values()]

    def finish(self, divisor: float, factor: float, in_place: bool) -> dict[str, Any]:
        """Return the sums divided by ``divisor`` and multiplied by ``factor``, in place if possible."""
        with np.errstate(all="ignore"):
            if not in_place:
                return {name: normalised(g, divisor, factor) for name, g in self.totals().items()}
            for a in self.values():
                normalised(a, divisor, factor, out=a)
            self.unit = 1.0
            return self.totals()

    # Sums over ranks override these

    def end_piece(self, weight: float, full: bool) -> None:
        """Do nothing.  ``RankSums`` starts the sums over the ranks here, after the last micro-batch."""

    def flush(self, some: bool) -> bool:
        """Return ``some``, whether this process has micro-batches in the window (``RankSums``: any rank)."""
        return some

    def gather(self, acc: Any) -> None:
        """Do nothing, because there is one process.  ``RankSums`` sums the window over the ranks here."""

    def check_undivided(self, window: Any) -> None:
        """Do nothing, because there is one process.  ``RankSums`` raises if ranks share the window."""

    # State -----------------------------------------------------------------------------------

    def state_of(self, name: str) -> dict[str, Array]:
        """Return the state of a parameter's sum, in new arrays, by the keys "sum", "rows" and "values".

        "sum" has length 1, or 0 without a dense gradient.  The second axes of "sum" and "values" are the sum
        and, with compensation, its rounding errors.
        """
        slot, state = self.slots[name], self.empty_state(name, np.float32)
        if name in self.dense:
            memory = self.buffer_of[name].arrays[0][:, slot.part]
            state["sum"] = memory.reshape(1, self.depth, *slot.shape).copy()
        if name in self.rows:
            rows, values = self.rows[name]
            state |= {"rows": rows.copy(), "values": values.swapaxes(0, 1).copy()}
        return state

    def empty_state(self, name: str, undecided: Any = object) -> dict[str, Array]:
        """Return the state of a sum to which nothing was added, in the form of ``state_of``.

        ``undecided`` is the dtype of the arrays if the dtype of the sum is not known yet.
        """
        slot = self.slots[name]
        shapes = {"sum": (0, self.depth, *slot.shape), "values": (0, self.depth, *slot.shape[1:])}
        state = {key: np.zeros(shape, slot.dtype or undecided) for key, shape in shapes.items()}
        return {**state, "rows": np.zeros(0, np.intp)}

    def load(self, states: Mapping[str, Mapping[str, Any]], unit: float) -> None:
        """Replace the sums by saved sums, which must have the same parameters, shapes and dtypes.

        ``states`` has a result of ``state_of`` for each parameter, and ``unit`` is the saved unit of weights.
        """
        self.reset()
        self.unit = unit
        arrays = [states[name]["sum"] if len(states[name]["sum"]) else None for name in self.slots]
        self.lay_out(arrays)
        for (name, slot), sums in zip(self.slots.items(), arrays, strict=True):
            if sums is not None:
                buffer = self.buffer_of[name]
                if buffer.fresh:
                    buffer.open()
                    buffer.arrays[0].fill(0)
                    buffer.fresh = False
                buffer.arrays[0][:, slot.part] = sums.reshape(self.depth, slot.size)
                self.dense.add(name)
            if len(states[name]["rows"]):
                values = states[name]["values"].swapaxes(0, 1).copy()
                slot.dtype, self.rows[name] = values.dtype, (states[name]["rows"].copy(), values)


def _parts(a: Array, size: int, threads: int, each: int = 1) -> list[slice]:
    """Return slices that divide a flat array among threads, about ``each`` slices per thread.

    ``size`` is the total number of elements of all arrays that are processed together.
    """
    return pieces(a.size, max(size // (threads * each) // LINE * LINE, LINE))


def _finite(arrays: list[Array], size: int, threads: int) -> bool:
    """Return whether all arrays are finite; use several threads if ``threads`` is more than 1.

    ``size`` is the total number of elements of all arrays.
    """
    if threads == 1:
        return all(map(all_finite_unwarned, arrays))
    # long parts: NumPy lets other threads run only in long dot products
    parts = [a.reshape(-1)[part] for a in arrays for part in _parts(a, size, threads)]
    bad: list[Any] = []
    run_parts(lambda a: None if all_finite_unwarned(a) else bad.append(a), parts, threads)
    return not bad


class GradientBuffer:
    """The weighted sum of the gradients of one parameter.

    Parameters
    ----------
    shape : int or tuple of int
        Shape of the parameter and of its gradients.
    dtype : dtype
        Dtype of the sum: float32, float64 or a complex dtype.
    compensated : bool
        Whether to sum the rounding errors as well (Neumaier), for very long sums.
    name : str
        Name for messages.

    Examples
    --------
    >>> buffer = GradientBuffer((2,))
    >>> buffer.add([2.0, 4.0]); buffer.add([6.0, 8.0])
    >>> buffer.get(normalize=True), buffer.get(normalize=False)
    (array([4., 6.]), array([ 8., 12.]))
    """

    def __init__(
        self, shape: Any, dtype: Any = np.float64, *, compensated: bool = False, name: str = "GradientBuffer"
    ) -> None:
        slot = Slot(name, shape, dtype)
        self.name, self.shape, self.dtype = name, slot.shape, slot.dtype
        self._sums = Sums(compensated)
        self._sums.register(slot)
        self.count = 0
        self.weight = 0.0

    def reset(self) -> None:
        """Clear the sum; keep its memory for the next sum."""
        self._sums.reset()
        self.count, self.weight = 0, 0.0

    def add(self, grad: Any, weight: float = 1.0) -> None:
        """Add ``weight * grad`` to the sum.

        An interrupt, or an error such as ``MemoryError``, may leave a part added; call ``reset`` then.

        Parameters
        ----------
        grad : array_like
            Gradient, with the shape of the buffer.
        weight : float
            Weight of the gradient.

        Raises
        ------
        ShapeError, DTypeError
            The gradient has a wrong shape or dtype.  Nothing was added.
        """
        weight = checked_weight(weight)
        _, add = self._sums.staged(self._sums.checked({self.name: grad}), weight, self.weight, check=False)
        assert add is not None  # because check=False
        add()
        self.count += 1
        self.weight += weight

    def get(self, normalize: bool = True) -> Array:
        """Return the sum as a new dense array.

        Parameters
        ----------
        normalize : bool
            Whether to divide the sum by the total weight.

        Returns
        -------
        ndarray
            The sum; zeros if nothing was added.
        """
        divisor = self.weight if normalize and self.weight else 1.0
        with np.errstate(all="ignore"):
            return normalised(np.asarray(self._sums.total(self.name)), divisor / self._sums.unit, 1.0)

    def l2_norm(self) -> float:
        """Return the 2-norm of the sum itself, not of the mean; large values do not overflow."""
        return global_norm([self._sums.total(self.name)]) * self._sums.unit

    def __repr__(self) -> str:
        return f"GradientBuffer({self.shape}, {self.dtype}, count={self.count}, weight={self.weight:g})"
