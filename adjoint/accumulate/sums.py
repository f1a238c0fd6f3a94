"""Weighted sums of gradients, in float32 or wider.

Small parameters of one dtype share a flat array, so that a few NumPy calls copy, check and add a whole
micro-batch.  A large parameter has its own array, to which several threads add.  Sparse gradients are summed
by rows, separately from the dense sums.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint import words
from adjoint.accumulate.foreign import checked_sum_dtype, gradient_array, sum_dtype
from adjoint.accumulate.window import check_like, checked_weight
from adjoint.core.shapes import checked_shape
from adjoint.core.sparse import SparseRows, sparse_gradient
from adjoint.core.tensor import Tensor
from adjoint.errors import DTypeError, InputError, NoGradientError, ShapeError, UnknownNameError
from adjoint.grads.norm import all_finite_unwarned, global_norm
from adjoint.threads.spread import SHARED, pieces, scratch, spread, threads_for

__all__ = ["GradientBuffer", "Sums", "normalised"]

Array = ndarray[Any, Any]
Rows = tuple[Array, Array]  # ascending row numbers, and their sums in an array like the memory of a block

SMALL = 1 << 13  # a parameter of at most so many elements shares an array with others
BLOCK = 1 << 17  # elements of such an array: 1 MiB of float64, which stays in the cache
LEAST = 1 << 20  # elements that a thread must have: fewer are added before a helper is awake
LINE = 1 << 10  # parts begin at whole multiples, so that no two threads write to one cache line
CHUNK = 1 << 15  # elements that are added with compensation at a time: temporary arrays stay in the cache
WIDE = 2.0**64  # weights that differ by less are counted in one unit

_shape, _dtype = attrgetter("shape"), attrgetter("dtype")


def _facts(names: Iterable[str], arrays: Sequence[Array]) -> tuple[list[str], list[Any], list[Any]]:
    return list(names), list(map(_dtype, arrays)), list(map(_shape, arrays))


def _references(arrays: list[Array]) -> list[int]:
    return list(map(sys.getrefcount, arrays)) if hasattr(sys, "getrefcount") else []


_ALONE = _references([np.empty(0)])  # of an array that is in one list only


def normalised(total: Any, divisor: float, factor: float, out: Array | None = None) -> Any:
    """Return ``total``, a dense or sparse sum, divided by ``divisor`` and multiplied by ``factor``."""
    if type(total) is SparseRows:
        return total.mapped(normalised(total.values, divisor, factor))
    out = np.empty_like(total) if out is None else out
    # float32 does not hold every divisor
    wide = total.dtype if 1e-30 < divisor < 1e30 else np.result_type(total, np.float64)
    np.divide(total, divisor, out=out, dtype=wide, casting="same_kind")
    return out if factor == 1.0 else np.multiply(out, factor, out=out, dtype=total.dtype)


class Slot:
    """A registered parameter: its name, its shape, and the dtype and the position of its sum."""

    def __init__(self, name: str, shape: Any, dtype: Any, param: Tensor | None = None) -> None:
        self.index = 0  # in the order of registration
        self.name = name
        self.shape = checked_shape(name, shape)
        self.size = math.prod(self.shape)
        self.dtype = None if dtype is None else checked_sum_dtype(name, dtype)  # None: as the first gradient
        self.param = param  # None: gradients are given by name
        self.place = 0  # among the slots of its block
        self.part = slice(0, 0)  # of its memory

    def read(self, value: Any) -> Array | SparseRows:
        """Return a gradient of any library as an array or sparse rows; raise if it does not match."""
        weak = isinstance(value, (int, float, list, tuple))
        return self.fitting(gradient_array(repr(self.name), value), weak)

    def fitting(self, g: Array | SparseRows, weak: bool = False, what: str = "") -> Array | SparseRows:
        """Return a gradient to add to this sum; raise if its shape or dtype is wrong.

        A ``weak`` gradient may be rounded.  ``what`` is the start of the message.
        """
        if g.shape != self.shape:
            same = math.prod(g.shape) == self.size
            raise ShapeError(
                f"{what}{self.name}: expected a gradient of shape {self.shape}, but got {g.shape}"
                f"{', which has the same number of elements' if same else ''}."
            )
        if self.dtype is None or g.dtype == self.dtype or np.can_cast(g.dtype, self.dtype, "safe"):
            return g
        if weak and g.dtype.kind == self.dtype.kind:
            return g.astype(self.dtype)
        raise DTypeError(
            f"{what}{self.name}: a {g.dtype} gradient cannot be added to a {self.dtype} sum without "
            "rounding.\n"
            "  Cast the gradient, or pass a wider dtype= to the accumulator."
        )


class Buffer:
    """A flat array with the sums of several small parameters, or of one large parameter."""

    def __init__(self, slots: list[Slot], depth: int) -> None:
        self.slots = slots
        self.names = [slot.name for slot in slots]
        self.depth = depth  # 2: the second row of the memory is what the additions rounded away
        self.fresh = True  # nothing was added: the memory is undefined
        self.arrays: list[Array] = []  # the memory, and a view of its first row for each parameter
        self.stage: Array | None = None
        self.pick: Any = itemgetter(*[slot.index for slot in slots])
        self.size = 0
        for i, slot in enumerate(slots):
            slot.place, slot.part = i, slice(self.size, self.size + slot.size)
            self.size += slot.size

    def is_shared(self) -> bool:
        """Return whether there is no memory, or other code still holds an array in it."""
        views = len(self.slots)
        return not _ALONE or _references(self.arrays) != [_ALONE[0] + views, *_ALONE * views]

    def open(self) -> None:
        """Allocate memory if there is none, or if other code still holds an array in it."""
        if self.is_shared():
            memory = np.empty((self.depth, self.size), self.slots[0].dtype)
            self.arrays = [memory, *(memory[0, slot.part].reshape(slot.shape) for slot in self.slots)]
        self.arrays[0][1:] = 0

    def staged(self, arrays: Sequence[Any], plain: bool) -> Array | None:
        """Return the gradients of this buffer in one flat array, or None if all are missing or sparse.

        Missing and sparse gradients become zeros.  ``plain`` is True if no gradient is missing or sparse.
        """
        parts = self.pick(arrays) if len(self.slots) > 1 else (arrays[self.slots[0].index],)
        if not plain and ndarray not in set(map(type, parts)):
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
        # the first micro-batch is staged where it is added
        out = self.arrays[0][0] if self.fresh else self.stage
        return np.concatenate(parts, axis=None, out=out, casting="same_kind")

    def add(self, g: Array, factor: float, part: slice) -> None:
        """Add factor·g to the sums in the slice ``part``; sums and g are flat."""
        total = self.arrays[0][0, part]
        staged, g = g is self.stage, g[part]
        if self.fresh:
            if factor != 1.0 or len(self.slots) == 1:  # otherwise it was staged here
                np.multiply(g, factor, out=total, dtype=total.dtype)
            return
        for s in pieces(g.size, CHUNK if self.depth == 2 else 2 * SHARED // total.itemsize):
            x, t = g[s], total[s]
            if factor != 1.0:  # the product is added before it leaves the cache
                x = np.multiply(x, factor, out=x if staged else scratch(x.size, t.dtype), dtype=t.dtype)
            if self.depth == 2:
                t[...] = _compensated(t, self.arrays[0][1, part][s], x)
            else:
                np.add(t, x, out=t)


def _compensated(s: Array, errors: Array, x: Array) -> Array:
    """Return s + x, and add the rounding error of this addition to ``errors`` (Neumaier)."""
    t = s + x
    errors += np.where(np.abs(s) >= np.abs(x), (s - t) + x, (x - t) + s)
    return np.asarray(t)


def _corrected(sums: Array) -> Array:
    """Return the sums plus their rounding errors; an infinite sum is not corrected."""
    if len(sums) == 1:
        return np.asarray(sums[0])
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(sums[0]), sums[0] + sums[1], sums[0])


def _with_rows(before: Rows, part: SparseRows) -> Rows:
    """Return the sum of two sets of rows; no row occurs twice in ``part``."""
    rows = np.union1d(before[0], part.rows)
    sums = np.zeros((len(before[1]), rows.size, *part.shape[1:]), part.dtype)
    sums[:, np.searchsorted(rows, before[0])] = before[1]
    at = np.searchsorted(rows, part.rows)
    if len(sums) == 1:
        sums[0, at] += part.values
    else:
        errors = sums[1, at]
        sums[0, at] = _compensated(sums[0, at], errors, part.values)
        sums[1, at] = errors
    return rows, sums


class Sums:
    """The sums of all parameters of an accumulator, by name, in the order of registration."""

    def __init__(self, compensated: bool = False) -> None:
        self.depth = 2 if compensated else 1
        self.slots: dict[str, Slot] = {}
        self.dense: set[str] = set()  # names with dense gradients in this window
        self.rows: dict[str, Rows] = {}  # the sums of sparse gradients
        # weights are counted in this power of two, so that tiny ones do not vanish in float32
        self.unit = 1.0
        self._blocks: list[Buffer] = []
        self._block_of: dict[str, Any] = {}
        self._pending: list[Slot] = []  # slots without a block: no gradient has come yet
        # names, dtypes and shapes of the last whole, dense micro-batch, which the next one is likely to have
        self._seen: tuple[list[str], list[Any], list[Any]] | None = None

    def register(self, slot: Slot) -> None:
        """Add a parameter without gradients."""
        slot.index = len(self.slots)
        self.slots[slot.name] = slot
        self._pending.append(slot)
        self._seen = None

    def reset(self) -> None:
        """Clear all sums; keep the memory."""
        for block in self._blocks:
            block.fresh = True
        self.dense.clear()
        self.rows.clear()
        self.unit = 1.0

    def checked(self, gradients: Mapping[str, Any]) -> Sequence[Any]:
        """Return the gradients of a micro-batch in the order of the slots, None for missing ones.

        The result is a tuple only if all are dense arrays.
        """
        if not isinstance(gradients, Mapping):
            raise InputError(
                f"step: pass a dictionary of gradients by name, not {words.a(type(gradients).__name__)}."
            )
        arrays = tuple(gradients.values())
        if set(map(type, arrays)) == {ndarray} and self._seen == _facts(gradients, arrays):
            return arrays
        known = self.slots
        if unknown := [name for name in gradients if name not in known]:
            near = [match for name in unknown[:3] for match in get_close_matches(str(name), list(known), 1)]
            meant = f"\n  Is it {words.quoted(near)}?" if near else ""
            raise UnknownNameError(
                f"no parameter is registered as {words.quoted(unknown)}.  Nothing was added.{meant}\n"
                f"  Registered: {words.quoted(known) if known else 'none; call register(name, shape) first'}."
            )
        if not gradients:
            raise NoGradientError("step: the dictionary of gradients is empty.  Call backward first.")
        return [slot.read(gradients[name]) if name in gradients else None for name, slot in known.items()]

    def add(self, arrays: Sequence[Any], weight: float | None, before: float, *, check: bool) -> list[str]:
        """Add weight·gradient to each sum.  If some are not finite, add nothing and return their names.

        ``arrays`` are in the order of the slots.  ``before`` is the weight of all earlier micro-batches.
        With ``weight=None`` the gradients are added as they are.
        """
        with np.errstate(all="ignore"):
            if self._pending and (new := [s for s in self._pending if arrays[s.index] is not None]):
                if check and (bad := self._not_finite(arrays)):  # before they decide a dtype
                    return bad
                self._lay_out([(slot, arrays[slot.index].dtype) for slot in new])
            plain = type(arrays) is tuple or set(map(type, arrays)) == {ndarray}
            dense = [(block, g) for block in self._blocks if (g := block.staged(arrays, plain)) is not None]
            pairs = () if plain else zip(self.slots.values(), arrays, strict=True)
            sparse: list[tuple[Slot, Any]] = [(slot, g) for slot, g in pairs if type(g) is SparseRows]
            size = sum([g.size for _, g in dense])
            threads = threads_for(size, LEAST)
            if check and not _finite([g for _, g in dense] + [g.values for _, g in sparse], size, threads):
                return self._not_finite(arrays)
            factor = 1.0
            if weight is not None:
                self._choose_unit(weight, before)
                factor = weight / self.unit
            if threads == 1:
                for block, g in dense:
                    block.add(g, factor, slice(None))
            else:
                jobs = [(block, g, part) for block, g in dense for part in _parts(g, size, threads, 8)]
                spread(lambda job: job[0].add(job[1], factor, job[2]), jobs, threads)
            for slot, rows in sparse:
                part = rows.mapped(np.multiply(rows.values, factor, dtype=slot.dtype)).coalesced()
                none = np.zeros(0, np.intp), np.zeros((self.depth, 0, *slot.shape[1:]), slot.dtype)
                self.rows[slot.name] = _with_rows(self.rows.get(slot.name, none), part)
        for block, _ in dense:
            block.fresh = False
        if plain:
            if len(self.dense) < len(arrays):
                self.dense.update(self.slots)
            self._seen = self._seen or _facts(self.slots, arrays)
        else:
            self.dense.update([n for n, g in zip(self.slots, arrays, strict=True) if type(g) is ndarray])
        return []

    def _not_finite(self, arrays: Sequence[Any]) -> list[str]:
        pairs = [(n, getattr(g, "values", g)) for n, g in zip(self.slots, arrays, strict=True)]
        return [name for name, g in pairs if g is not None and not all_finite_unwarned(g)]

    def _lay_out(self, new: list[Any]) -> None:
        """Make the buffers of new slots, given with the dtypes of their first gradients."""
        groups: dict[Any, list[Slot]] = {}
        room: dict[Any, int] = {}
        for slot, dtype in new:
            slot.dtype = slot.dtype or sum_dtype(dtype)
            start = room.get(slot.dtype, 0)
            small = slot.size <= SMALL
            room[slot.dtype] = start + slot.size * small
            groups.setdefault((slot.dtype, start // BLOCK) if small else slot, []).append(slot)
        self._add_blocks([Buffer(slots, self.depth) for slots in groups.values()])

    def _add_blocks(self, blocks: Sequence[Buffer]) -> None:
        self._blocks += blocks
        self._block_of.update((slot.name, block) for block in blocks for slot in block.slots)
        self._pending = [slot for slot in self._pending if slot.name not in self._block_of]

    def _choose_unit(self, weight: float, before: float) -> None:
        """Change the unit of weights if a weight is WIDE times larger, or the first WIDE times smaller."""
        ratio = weight / self.unit
        if weight and (ratio > WIDE or (not before and ratio * WIDE < 1.0)):
            unit = 2.0 ** (math.frexp(weight)[1] - 1)
            if before:
                for a in self.values():
                    a *= self.unit / unit
            self.unit = unit

    def total(self, name: str) -> Array | SparseRows:
        """Return the sum of a parameter, for reading only; zeros if nothing was added."""
        slot = self.slots[name]
        found: Any = None
        if name in self.rows:
            rows, sums = self.rows[name]
            found = SparseRows(rows, _corrected(sums), slot.shape, unique=True)
        if name in self.dense:
            arrays = self._block_of[name].arrays
            dense = arrays[slot.place + 1]
            if self.depth == 2:
                dense = _corrected(arrays[0][:, slot.part]).reshape(slot.shape)
            found = dense if found is None else np.add(dense, found)
        return np.zeros(slot.shape, slot.dtype or np.float64) if found is None else found

    def totals(self) -> dict[str, Any]:
        """Return the sums of all parameters that have one, by name."""
        if self.rows or self.depth == 2:
            return {n: self.total(n) for n in self.slots if n in self.dense or n in self.rows}
        found: dict[str, Any] = {}
        for block in self._blocks:
            found.update(zip(block.names, block.arrays[1:], strict=False))  # no arrays: nothing was added
        if len(self._blocks) == 1 and len(found) == len(self.dense):
            return found
        return {name: found[name] for name in self.slots if name in self.dense}

    def values(self) -> list[Array]:
        """Return all sums in as few arrays as possible, for the check whether they are finite."""
        return [b.arrays[0] for b in self._blocks if not b.fresh] + [sums for _, sums in self.rows.values()]

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
        """End a micro-batch that was added with ``weight``; ``full`` says whether it was the last one."""

    def flush(self, some: bool) -> bool:
        """Return whether the window has micro-batches; ``some`` says whether this process has added one."""
        return some

    def reduce(self, window: Any, counts: dict[str, int]) -> None:
        """Sum a window and the counts of an accumulator over the ranks."""

    # State -----------------------------------------------------------------------------------

    def state_of(self, name: str) -> dict[str, Any]:
        """Return the state of a parameter's sum for ``loaded``, in new arrays.

        "sum" and "rows" are lists of the dense and the sparse sum and, with compensation, of its errors.
        """
        slot = self.slots[name]
        dense = self._block_of[name].arrays[0][:, slot.part] if name in self.dense else ()
        rows, values = self.rows.get(name, ((), ()))
        return {
            "shape": list(slot.shape),
            "dtype": str(slot.dtype),  # "None" before the first gradient
            "sum": [np.array(a).reshape(slot.shape) for a in dense],
            "rows": [sparse_gradient(rows, a, slot.shape) for a in values],
        }

    def loaded(self, states: Mapping[str, Any], unit: Any = 1.0) -> Sums:
        """Return sums of the same parameters with saved values; raise if the saved values do not match.

        ``states`` are the saved sums by name, and ``unit`` is the saved unit of the weights.
        """
        new = Sums(self.depth == 2)
        new.unit = float(unit) or 1.0
        for name, old in self.slots.items():
            state = states[name]
            check_like(state, {"shape": [], "dtype": "", "sum": [], "rows": []}, f"buffers[{name!r}]")
            dtype = None if state["dtype"] == "None" else state["dtype"]
            slot = Slot(name, old.shape, old.dtype or dtype, old.param)
            new.register(slot)
            other = state["shape"] != list(slot.shape)
            if other or dtype not in (None, str(slot.dtype)):
                raise (ShapeError if other else DTypeError)(
                    f"{name}: the saved sum has shape {state['shape']} and dtype {state['dtype']}, but "
                    f"{list(slot.shape)} and {slot.dtype} are expected."
                )
            if not {len(state["sum"]), len(state["rows"])} <= {0, self.depth}:
                raise ShapeError(
                    f"{name}: the saved sum must consist of {words.count(self.depth, 'array')}; "
                    "a compensated sum has 2."
                )
        for key in ("sum", "rows"):  # read like gradients
            parts = {name: states[name][key] for name in new.slots if states[name][key]}
            for row in range(self.depth if parts else 0):
                new._load_row(row, new.checked({name: part[row] for name, part in parts.items()}))
        return new

    def _load_row(self, row: int, arrays: Sequence[Any]) -> None:
        """Store saved sums, or with row 1 their rounding errors."""
        if row == 0:
            self.add(arrays, None, 0.0, check=False)
            return
        for slot, g in zip(self.slots.values(), arrays, strict=True):
            if type(g) is SparseRows:
                rows, sums = self.rows[slot.name]
                if not np.array_equal(g.rows, rows):
                    raise ShapeError(
                        f"{slot.name}: the saved rounding errors and the saved sum have different rows."
                    )
                sums[row] = g.values
            elif g is not None:
                self._block_of[slot.name].arrays[0][row, slot.part] = g.reshape(-1)


def _parts(a: Array, size: int, threads: int, each: int = 1) -> list[slice]:
    """Split an array into parts, ``each`` per thread; ``size`` is the total size of all arrays."""
    if threads == 1:
        return [slice(None)]
    return pieces(a.size, max(size // (threads * each) // LINE * LINE, LINE))


def _finite(arrays: list[Array], size: int, threads: int) -> bool:
    """Return whether all arrays are finite; large ones, with ``size`` elements in all, in several threads."""
    # long parts: NumPy lets other threads run only in long dot products
    parts = [a.reshape(-1)[part] for a in arrays for part in _parts(a, size, threads)]
    bad: list[Any] = []
    spread(lambda a: None if all_finite_unwarned(a) else bad.append(a), parts, threads)
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
        self.name = name
        self._sums = Sums(bool(compensated))
        self._slot = Slot(name, shape, dtype)
        self._sums.register(self._slot)
        self.count = 0
        self.weight = 0.0

    def reset(self) -> None:
        """Clear the sum; keep its memory for the next sum."""
        self._sums.reset()
        self.count, self.weight = 0, 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the parameter."""
        return self._slot.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the sum."""
        return self._slot.dtype or np.dtype(np.float64)

    @property
    def is_sparse(self) -> bool:
        """Whether all gradients that were added are sparse."""
        return self.name in self._sums.rows and self.name not in self._sums.dense

    def add(self, grad: Any, weight: float = 1.0) -> None:
        """Add weight·grad.

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
        self._sums.add(self._sums.checked({self.name: grad}), weight, self.weight, check=False)
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
        total = self._sums.total(self.name)
        dense = total.to_dense() if type(total) is SparseRows else total
        with np.errstate(all="ignore"):
            return normalised(
                dense, (self.weight if normalize and self.weight else 1.0) / self._sums.unit, 1.0
            )

    def l2_norm(self) -> float:
        """Return the 2-norm of the sum, not divided by the weight; large values do not overflow."""
        return global_norm([self._sums.total(self.name)]) * self._sums.unit

    def state_dict(self) -> dict[str, Any]:
        """Return the state for ``load_state_dict``, in new arrays."""
        state = {"count": self.count, "weight": self.weight, "unit": self._sums.unit}
        return {**state, "buffer": self._sums.state_of(self.name)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Parameters
        ----------
        state : dict
            The result of ``state_dict``.

        Raises
        ------
        ArgumentError, ShapeError, DTypeError
            The state has missing keys, or a different shape or dtype.  Nothing was changed.
        """
        check_like(state, {"count": 0, "weight": 0.0, "unit": 1.0, "buffer": {}}, "state")
        new = self._sums.loaded({self.name: state["buffer"]}, state["unit"])
        self._sums, self._slot = new, new.slots[self.name]
        self.count, self.weight = int(state["count"]), float(state["weight"])

    def __repr__(self) -> str:
        return f"GradientBuffer({self.shape}, {self.dtype}, count={self.count}, weight={self.weight:g})"
