"""Sums of gradients: weighted, in float32 or wider, compensated if asked, sparse as long as they can be.

``GradientBuffer`` sums the gradients of one parameter.  ``Sums`` holds the buffers of an accumulator: small
ones share flat arrays, so that a micro-batch is packed, checked and added by a few NumPy calls, and not by
some per parameter (benchmarks/cases/accumulate.py); large ones are added where they are, by several threads.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint.accumulate.arrays import (
    checked_sum_dtype,
    checked_weight,
    gradient_array,
    is_plain,
    sum_dtype,
)
from adjoint.core.shapes import checked_shape
from adjoint.core.sparse import SparseRows, as_gradient_tensor
from adjoint.core.spread import SHARED, pieces, scratch, spread_in_turn, threads_for
from adjoint.errors import ArgumentError, DTypeError, ShapeError
from adjoint.grads.norm import all_finite_unwarned, chunks, global_norm
from adjoint.grads.scaler import checked_count

__all__ = ["GradientBuffer", "Sums", "normalised", "unit_for"]

Array = ndarray[Any, Any]

SMALL = 1 << 13  # a buffer of at most so many elements shares an array with others
BLOCK = 1 << 17  # elements of such an array: 1 MiB of float64, which stays in the cache
LEAST = 1 << 20  # elements that a thread must have: fewer are added before a helper is awake
LINE = 1 << 10  # shares begin at whole multiples, so that no two threads write to one cache line
WIDE = 2.0**64  # weights that differ by less are counted in one unit

_shape, _dtype = attrgetter("shape"), attrgetter("dtype")
# Other interpreters cannot tell who holds an array: then nothing is used twice.
_references: Callable[[Any], int] = getattr(sys, "getrefcount", lambda _: 1 << 30)


def unit_for(weight: float, unit: float, before: float) -> float:
    """Return the unit in which weights are counted: 1, or a power of two that float32 sums can be in.

    It changes only where a weight is WIDE times as large, or the first is as small.
    """
    ratio = weight / unit
    if not weight or (ratio <= WIDE and (before or ratio * WIDE >= 1.0)):
        return unit
    return 2.0 ** (math.frexp(weight)[1] - 1)


def divided(a: Array, divisor: float, out: Array | None = None) -> Array:
    """Return an array over a number, in its own dtype, even where that does not hold the number."""
    if 1e-30 < divisor < 1e30 or a.dtype.char not in "fF":
        return np.asarray(np.divide(a, divisor, out=out, dtype=a.dtype))
    quotient = np.divide(a, divisor, dtype=np.result_type(a.dtype, np.float64)).astype(a.dtype)
    if out is None:
        return np.asarray(quotient)
    np.copyto(out, quotient)
    return out


class Tally:
    """How much was added; buffers that always take part together share one."""

    __slots__ = ("count", "weight")

    def __init__(self, count: int = 0, weight: float = 0.0) -> None:
        self.count = count
        self.weight = weight

    def add(self, weight: float) -> None:
        """Count one more gradient."""
        self.count += 1
        self.weight += weight


class GradientBuffer:
    """The weighted sum of the gradients of one parameter.

    Parameters
    ----------
    shape
        Shape of the parameter and of its gradients.
    dtype
        Dtype of the sum: float32, float64 or a complex dtype.
    compensated
        Sum the rounding errors as well (Neumaier), for very long windows.
    name
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
        self.shape = checked_shape(name, shape)
        self.size = int(np.prod(self.shape, dtype=np.int64))
        self.compensated = bool(compensated)
        # None in an accumulator: the first gradient decides
        self._dtype = None if dtype is None else checked_sum_dtype(name, dtype)
        # The sum, and what its additions rounded away if ``compensated``: of all elements, or of some rows as
        # long as nothing dense was added.  Undefined while count is 0: nothing is set to zero.
        self._total: Array | None = None
        self._errors: Array | None = None
        self._shared = False  # whether ``_total`` is a view of an array of ``Sums``
        self.reset()

    def reset(self) -> None:
        """Forget the sum; its memory is kept for the next one."""
        self._tally = Tally()
        self._unit = 1.0  # weights are counted in units, so that tiny ones do not vanish in float32
        if getattr(self, "_rows", None) is not None:
            self._total = self._errors = None
        self._rows: Array | None = None

    @property
    def count(self) -> int:
        """How many gradients were added."""
        return self._tally.count

    @property
    def weight(self) -> float:
        """The sum of their weights."""
        return self._tally.weight

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the sum; float64 where no gradient has decided it yet."""
        return np.dtype(np.float64) if self._dtype is None else self._dtype

    @property
    def is_sparse(self) -> bool:
        """Whether all that was added had rows and values only."""
        return self._rows is not None

    def add(self, grad: Any, weight: float = 1.0) -> None:
        """Add weight·grad; a gradient of another shape or dtype is an error and adds nothing."""
        g = self.fitting(gradient_array(self.name, grad), weak=isinstance(grad, (list, tuple, int, float)))
        weight = checked_weight(weight, before=self.weight)
        self.decide(g.dtype)
        self.count_in(unit_for(weight, self._unit, self.weight))
        with np.errstate(all="ignore"):
            self.sum_up(g, weight / self._unit)
        self._tally.add(weight)

    def fitting(self, g: Array | SparseRows, weak: bool = False) -> Array | SparseRows:
        """Return a gradient that can be added here, or say why it cannot."""
        if g.shape != self.shape:
            same = math.prod(g.shape) == self.size
            raise ShapeError(
                f"{self.name}: expected a gradient of shape {self.shape}, but got {g.shape}"
                f"{': as many elements, but in another shape' if same else ''}."
            )
        if self._dtype is None or g.dtype is self._dtype:
            return g
        if not np.can_cast(np.float32 if g.dtype.name == "bfloat16" else g.dtype, self._dtype, "safe"):
            if weak and g.dtype.kind == self._dtype.kind:
                return g.astype(self._dtype)
            raise DTypeError(
                f"{self.name}: expected a gradient that fits into {self._dtype} sums without loss, but got "
                f"{g.dtype}.\n  Cast it first, or sum in a wider dtype (dtype=)."
            )
        return g

    def decide(self, dtype: np.dtype[Any]) -> None:
        """Take the dtype of the sum from the first gradient."""
        if self._dtype is None:
            self._dtype = sum_dtype(dtype)

    def count_in(self, unit: float) -> None:
        """Count weights in another unit from here on."""
        for a in (self._total, self._errors) if unit != self._unit and self.weight else ():
            if a is not None:
                np.multiply(a, self._unit / unit, out=a)
        self._unit = unit

    def sum_up(self, g: Any, factor: float) -> None:
        """Add factor·g to the sum, without counting it; NumPy's warnings are off."""
        sparse = type(g) is SparseRows
        if sparse and not self.count:
            part = g.mapped(np.multiply(g.values, factor, dtype=self.dtype)).coalesced()
            self._rows, self._total, self._shared = part.rows, part.values, False
            self._errors = np.zeros_like(part.values) if self.compensated else None
        elif sparse:
            part = g.mapped(np.multiply(g.values, factor, dtype=self.dtype)).coalesced()
            at = (
                part.rows if self._rows is None else self._cover(np.union1d(self._rows, part.rows), part.rows)
            )
            assert self._total is not None
            s = self._total[at]
            if self._errors is None:
                self._total[at] = s + part.values
            else:
                e = self._errors[at]
                self._total[at] = _add_compensated(s, e, part.values)
                self._errors[at] = e
        elif not self.compensated or not self.count:
            _add(self.dense(), g, factor, not self.count)
        else:
            total, errors = self.dense(), self._errors
            assert errors is not None
            for s, e, piece in chunks(total, errors, _wide(g), written=2):
                s[...] = _add_compensated(s, e, np.multiply(piece, factor, dtype=self.dtype))

    def _cover(self, rows: Array, wanted: Array) -> Array:
        """Hold the sum of these rows, those that there were among them; return where ``wanted`` are."""
        assert self._rows is not None
        old = np.searchsorted(rows, self._rows)
        for name in ("_total", "_errors"):
            a = getattr(self, name)
            if a is not None:
                new = np.zeros((rows.size, *self.shape[1:]), a.dtype)
                new[old] = a
                setattr(self, name, new)
        self._rows = rows
        return np.searchsorted(rows, wanted)

    def dense(self) -> Array:
        """Return the dense sum to write into; an empty one is not in memory that somebody still holds."""
        if self._rows is not None:
            self._cover(every := np.arange(self.shape[0]), every)
            self._rows = None
        held = self._total is not None and not self._shared and _references(self._total) > 2
        if self._total is None or (held and not self.count):
            self._total = np.empty(self.shape, self.dtype)
        if self.compensated and (self._errors is None or not self.count):
            self._errors = np.zeros(self.shape, self.dtype)
        return self._total

    def totals(self) -> Array | SparseRows:
        """Return the sum as it is held, not to be written to; zeros if nothing was added."""
        if not self.count or self._total is None:
            return np.zeros(self.shape, self.dtype)
        total = self._total
        if self._errors is not None:  # those of an infinite sum are inf - inf, which are no correction
            with np.errstate(invalid="ignore"):
                total = np.where(np.isfinite(total), total + self._errors, total)
        return total if self._rows is None else SparseRows(self._rows, total, self.shape, unique=True)

    def get(self, normalize: bool = True) -> Array:
        """Return the sum as a new dense array, over the total weight if ``normalize``."""
        total = self.totals()
        dense = total.to_dense() if type(total) is SparseRows else total
        assert type(dense) is ndarray
        with np.errstate(all="ignore"):
            return divided(dense, (self.weight if normalize and self.weight else 1.0) / self._unit)

    def l2_norm(self) -> float:
        """Return the 2-norm of the sum, not normalised; large values do not overflow."""
        return global_norm([self.totals()]) * self._unit

    def replace(self, g: Array | SparseRows) -> None:
        """Put a finished gradient in the place of the sum."""
        if type(g) is SparseRows:
            g = g.coalesced()
            self._rows, self._total, self._shared = g.rows, g.values, False
        else:
            np.copyto(self.dense(), np.asarray(g))
        if self._errors is not None and self._total is not None:
            self._errors = np.zeros_like(self._total)

    # State -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what ``load_state_dict`` needs to go on from here, in arrays of its own."""
        state: dict[str, Any] = {
            "shape": list(self.shape),
            "dtype": None if self._dtype is None else self._dtype.name,
            "count": self.count,
            "weight": self.weight,
        }
        names = ("sum", "errors") if self._rows is None else ("values", "row_errors")
        arrays = dict(zip(names, (self._total, self._errors), strict=True)) | {"rows": self._rows}
        state |= {name: a.copy() for name, a in arrays.items() if a is not None and self.count}
        return state if self._unit == 1.0 else {**state, "unit": self._unit}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; one that does not fit is an error and changes nothing."""
        missing = [k for k in ("shape", "dtype", "count", "weight") if k not in state]
        if missing:
            raise ArgumentError(f"{self.name}: the state is missing keys: {', '.join(map(repr, missing))}.")
        count = checked_count(f"{self.name}: count", state["count"])
        weight = checked_weight(state["weight"], f"{self.name}: weight")
        unit = checked_weight(state.get("unit", 1.0), f"{self.name}: unit")
        new = GradientBuffer(self.shape, state["dtype"], compensated=self.compensated, name=self.name)
        shape = checked_shape(self.name, state["shape"])
        if shape != self.shape:
            raise ShapeError(f"{self.name}: saved with shape {shape}, but here it is {self.shape}.")
        if self._dtype is not None and new._dtype is not None and new._dtype != self._dtype:
            raise DTypeError(f"{self.name}: saved with {new._dtype} sums, but here they are {self._dtype}.")
        total, errors = state.get("sum"), state.get("errors")
        for part in (total, errors):
            if part is not None and (np.shape(part) != self.shape or np.asarray(part).dtype != new.dtype):
                raise ShapeError(
                    f"{self.name}: the saved sum has shape {np.shape(part)} and {np.asarray(part).dtype}, "
                    f"but {self.shape} and {new.dtype} are expected."
                )
        for lacks, absent in (("sum", total is None and "rows" not in state), ("dtype", new._dtype is None)):
            if count and absent:
                error = DTypeError if lacks == "dtype" else ArgumentError
                raise error(f"{self.name}: {count} gradients were added, but the saved state has no {lacks}.")
        if "rows" in state:
            found = self._checked_rows(state["rows"], state.get("values"), new.dtype)
            new._rows, new._total, errors = found.rows, found.values, state.get("row_errors")
            if errors is not None:
                errors = self._checked_rows(state["rows"], errors, new.dtype).values
        elif total is not None:
            new._total = np.array(total)
        if self.compensated and new._total is not None:
            new._errors = np.zeros_like(new._total) if errors is None else np.array(errors)
        new._dtype, new._tally, new._unit = new._dtype or self._dtype, Tally(count, weight), unit or 1.0
        vars(self).update(vars(new))

    def _checked_rows(self, rows: Any, values: Any, dtype: np.dtype[Any]) -> SparseRows:
        """Return saved rows and values, or say why they are none of this shape."""
        index, found = np.array(rows), np.array(values)
        fits = (
            bool(self.shape)
            and index.ndim == 1
            and (index.dtype.kind in "iu" or not index.size)
            and found.shape == (index.size, *self.shape[1:])
            and found.dtype == dtype
            and bool(np.all((index >= 0) & (index < self.shape[0])))
            and bool(np.all(np.diff(index) > 0))
        )
        if not fits:
            raise ShapeError(
                f"{self.name}: the saved rows and values are not those of a {dtype} table of shape "
                f"{self.shape}, each row once."
            )
        return SparseRows(index.astype(np.intp), found, self.shape, unique=True)

    def __repr__(self) -> str:
        return f"GradientBuffer({self.shape}, {self.dtype}, count={self.count}, weight={self.weight:g})"


class _Block:
    """A flat array that small buffers of one dtype share, and another in which a micro-batch is staged."""

    def __init__(self, members: list[GradientBuffer], positions: list[int]) -> None:
        self.members, self.positions = members, positions
        self.stage = np.empty(sum(b.size for b in members), members[0].dtype)
        self.renew(keep=True)

    def renew(self, *, keep: bool) -> None:
        """Take new memory, because somebody holds the old or there is none; ``keep`` the sums."""
        self.flat = np.empty_like(self.stage)
        start = 0
        for b in self.members:
            view = self.flat[start : start + b.size].reshape(b.shape)
            if keep and b.count and b._total is not None:
                view[...] = b._total
            b._total, b._shared = view, True
            start += b.size

    def takes(self, arrays: list[Any]) -> bool:
        """Tell whether gradients, at its positions among all, can be staged: they and the sums are dense."""
        return all([is_plain(arrays[i]) for i in self.positions] + [b._shared for b in self.members])

    @property
    def held(self) -> bool:
        """Whether somebody holds the memory: gradients that ``apply`` gave to an optimiser."""
        free = [_references(b._total) == 2 for b in self.members]
        return not all(free) or _references(self.flat) > len(free) + 2


class Sums:
    """The buffers of an accumulator by name, in the order of registration."""

    def __init__(self, buffers: Iterable[GradientBuffer] = ()) -> None:
        self.by_name = {b.name: b for b in buffers}
        self.all = list(self.by_name.values())
        self.unit = self.all[0]._unit if self.all else 1.0  # in which all count weights
        self._blocks: list[_Block] | None = None
        self._alone: list[int] = []  # positions of those in no block
        # What all share as long as they take part together; None: each has its own.
        self._tally: Tally | None = None
        self._sparse = True  # whether some may not be in their block: they have, or had, rows
        # names, dtypes and shapes of the last whole, plain micro-batch: the next one is likely alike
        self._seen: tuple[list[str], list[Any], list[Any]] | None = None
        if not self.used:
            self.reset()

    def register(self, buffer: GradientBuffer) -> None:
        """Add a buffer under its name."""
        buffer._unit = self.unit
        self._tally = None if self.used else self._tally
        buffer._tally = self._tally or buffer._tally
        self.by_name[buffer.name] = buffer
        self.all.append(buffer)
        self._blocks = self._seen = None

    @property
    def used(self) -> list[GradientBuffer]:
        """The buffers that something was added to."""
        if self._tally is not None:
            return self.all if self._tally.count else []
        return [b for b in self.all if b.count]

    def reset(self, *, torn: bool = False) -> None:
        """Forget all sums; after an interrupt also how memory is shared, which may be half done."""
        self._blocks = None if torn else self._blocks
        if self._tally is None or self._sparse or self.unit != 1.0:
            for b in self.all:
                b.reset()
        self.unit, self._sparse, self._tally = 1.0, False, Tally()
        for b in self.all:
            b._tally = self._tally

    def matched(self, gradients: Mapping[str, Any]) -> list[Any] | None:
        """Return the arrays of a micro-batch with names, dtypes and shapes of the last; None of another."""
        seen, arrays = self._seen, list(gradients.values())
        if (
            seen is not None
            and list(gradients) == seen[0]
            and set(map(type, arrays)) == {ndarray}
            and list(map(_dtype, arrays)) == seen[1]
            and list(map(_shape, arrays)) == seen[2]
        ):
            return arrays
        return None

    def remember(self, names: list[str], arrays: list[Any]) -> None:
        """Remember a micro-batch that was checked, if it is whole and plain and nothing is undecided."""
        if names == list(self.by_name) and all(map(is_plain, arrays)) and all(b._dtype for b in self.all):
            self._seen = names, list(map(_dtype, arrays)), list(map(_shape, arrays))

    def count_in(self, unit: float) -> None:
        """Count weights in another unit from here on."""
        self.unit = unit
        for b in self.all:
            b.count_in(unit)

    def count(self, buffers: list[GradientBuffer], weight: float) -> None:
        """Count one more gradient of each of these buffers."""
        if buffers is self.all and self._tally is not None:
            self._tally.add(weight)
            return
        self._tally = None
        for b in buffers:
            b._tally = Tally(b.count + 1, b.weight + weight)

    def add(
        self, buffers: list[GradientBuffer], arrays: list[Any], factor: float, *, check: bool, plain: bool
    ) -> list[str]:
        """Add factor·gradient to each buffer; or return the names that are not finite, and add nothing.

        Without ``check`` nothing is looked at.  ``buffers`` is ``all`` for a whole micro-batch; ``plain``:
        all gradients are dense arrays of NumPy's own dtypes.
        """
        new = [] if self._seen else [b for b in buffers if b._dtype is None]
        for b, g in zip(buffers, arrays, strict=True) if new else ():
            b.decide(g.dtype)
        plain = plain or all(map(is_plain, arrays))
        blocks = self._lay_out()
        packed: list[_Block] = []
        if buffers is self.all:
            packed = blocks if plain and not self._sparse else [k for k in blocks if k.takes(arrays)]
            alone = [*self._alone, *(i for k in blocks if k not in packed for i in k.positions)]
            pairs = [(buffers[i], arrays[i]) for i in alone]
        else:
            pairs = list(zip(buffers, arrays, strict=True))
        bad: list[GradientBuffer] = []
        with np.errstate(all="ignore"):
            for block in packed:
                every = len(block.positions) == len(arrays)
                parts = arrays if every else [arrays[i] for i in block.positions]
                np.concatenate(parts, axis=None, out=block.stage, casting="same_kind")
                if check and not all_finite_unwarned(block.stage):
                    bad += [buffers[i] for i in block.positions if not all_finite_unwarned(arrays[i])]
            if pairs:
                bad += _add_alone(pairs, factor, check=check, only_check=bool(bad))
            if bad:
                for b in new:
                    b._dtype = b._total = None
                self._blocks = None if new else blocks
                return [b.name for b in buffers if b in bad]
            for block in packed:
                self._add_staged(block, factor)
        self._sparse = self._sparse or not plain
        return []

    def _add_staged(self, block: _Block, factor: float) -> None:
        if factor != 1.0:
            np.multiply(block.stage, factor, out=block.stage)
        used = [b.count > 0 for b in block.members] if self._tally is None else [self._tally.count > 0]
        if not any(used):
            np.copyto(block.flat, block.stage)
            return
        if not all(used):
            for b in block.members:
                if not b.count and b._total is not None:
                    b._total[...] = 0
        np.add(block.flat, block.stage, out=block.flat)

    def _lay_out(self) -> list[_Block]:
        """Return the shared arrays; an empty one is not in memory that somebody holds."""
        if self._blocks is not None:
            if not self.used:
                for block in self._blocks:
                    if block.held:
                        block.renew(keep=False)
            return self._blocks
        runs: dict[Any, list[int]] = {}
        room: dict[np.dtype[Any], int] = {}
        self._alone = []
        for i, b in enumerate(self.all):
            b._shared = False
            if b.compensated or b.size > SMALL or b._dtype is None or b._rows is not None:
                self._alone.append(i)
                continue
            start = room.get(b._dtype, 0)
            runs.setdefault((b._dtype, start // BLOCK), []).append(i)
            room[b._dtype] = start + b.size
        self._alone += [run[0] for run in runs.values() if len(run) == 1]
        shared = [run for run in runs.values() if len(run) > 1]
        self._blocks = [_Block([self.all[i] for i in run], run) for run in shared]
        return self._blocks

    def parts(self) -> tuple[list[Array], list[GradientBuffer]]:
        """Return the plain sums as few arrays that can be written to, and the buffers of all other sums."""
        blocks, rest = self._blocks or [], self.used
        if self._sparse or self._tally is None:
            blocks = [k for k in blocks if all(b._shared and b.count for b in k.members)]
        if blocks:
            packed = {id(b) for k in blocks for b in k.members}
            rest = [b for b in rest if id(b) not in packed]
        others = [b for b in rest if b._rows is not None or b._errors is not None]
        return [k.flat for k in blocks] + [b.dense() for b in rest if b not in others], others

    def replace(self, found: Mapping[str, Any]) -> None:
        """Put finished gradients in the place of the sums."""
        self._sparse = True
        for b in self.used:
            b.replace(found[b.name])

    def settle(self) -> None:
        """Count in units of 1 again, when the sums are divided."""
        if self.unit != 1.0:
            self.unit = 1.0
            for b in self.all:
                b._unit = 1.0

    def finish(self, divisor: float, factor: float) -> None:
        """Divide all sums where they are, and multiply them by ``factor``."""
        arrays, others = self.parts()
        with np.errstate(all="ignore"):
            for a in arrays:
                if divisor != 1.0:
                    divided(a, divisor, out=a)
                if factor != 1.0:
                    np.multiply(a, factor, out=a)
            for b in others:
                b.replace(normalised(b.totals(), divisor, factor))

    def views(self) -> dict[str, Any]:
        """Return the sums by name, in their own memory."""
        found = {b.name: b.totals() for b in self.used}
        return {name: as_gradient_tensor(g) if type(g) is SparseRows else g for name, g in found.items()}


def normalised(total: Any, divisor: float, factor: float) -> Any:
    """Return a sum, dense or sparse, over a divisor and times a factor, in new arrays."""
    values = divided(total.values if type(total) is SparseRows else total, divisor)
    if factor != 1.0:
        values = np.asarray(np.multiply(values, factor, dtype=values.dtype))
    return total.mapped(values) if type(total) is SparseRows else values


def _add_alone(
    pairs: list[tuple[GradientBuffer, Any]], factor: float, *, check: bool, only_check: bool
) -> list[GradientBuffer]:
    """Add gradients to their buffers, large ones by several threads; or return which are not finite."""
    if not pairs:
        return []
    values = [g.values if type(g) is SparseRows else g for _, g in pairs]
    plain = [type(g) is ndarray and not b.compensated and b._rows is None for b, g in pairs]
    totals = [
        b.dense() if dense and not only_check else None for (b, _), dense in zip(pairs, plain, strict=True)
    ]
    size = sum([a.size for a in values])
    threads = threads_for(size, LEAST)
    bad: set[int] = set()

    def look(share: tuple[int, slice | None]) -> None:
        i, part = share
        if i not in bad and not all_finite_unwarned(_part(values[i], part)):
            bad.add(i)

    def add(share: tuple[int, slice | None]) -> None:
        (i, part), total = share, totals[share[0]]
        if total is None:
            pairs[i][0].sum_up(pairs[i][1], factor)
        else:
            _add(_part(total, part), _part(values[i], part), factor, not pairs[i][0].count)

    # long shares to look at: NumPy lets other threads run only in long dot products
    first = (look, _shares(values, values, size // threads, threads) if check else [])
    # backwards: what was looked at last is still in the cache
    second = (add, [] if only_check else _shares(values, totals, size // (threads * 8), threads)[::-1])
    spread_in_turn(first, second, threads, unless=lambda: bad)
    return [pairs[i][0] for i in sorted(bad)]


def _shares(
    values: list[Array], totals: Sequence[Array | None], length: int, threads: int
) -> list[tuple[int, slice | None]]:
    """Cut large contiguous arrays into shares for several threads; None is the whole."""
    length = max(length // LINE * LINE, LINE)
    shares: list[tuple[int, slice | None]] = []
    for i, (a, total) in enumerate(zip(values, totals, strict=True)):
        cut = threads > 1 and a.size > length and a.flags.c_contiguous and total is not None
        shares += [(i, s) for s in pieces(a.size, length)] if cut else [(i, None)]
    return shares


def _part(a: Array, of: slice | None) -> Array:
    return a if of is None else a.reshape(-1)[of]


def _wide(g: Array) -> Array:
    """Return bfloat16, with which NumPy's loops do not mix, as float32."""
    return g if g.dtype.kind in "fc" else g.astype(np.float32)


def _add(total: Array, g: Array, factor: float, fresh: bool) -> None:
    """Add factor·g to a sum in place; a ``fresh`` sum is overwritten."""
    g = _wide(g)
    if fresh and factor == 1.0:
        np.copyto(total, g, casting="same_kind")
    elif fresh:
        np.multiply(g, factor, out=total, dtype=total.dtype)
    elif factor == 1.0:
        np.add(total, g, out=total)
    else:  # in pieces, so that the product is added before it leaves the cache
        for t, piece in chunks(total, g, written=1, size=2 * SHARED // total.itemsize):
            product = np.multiply(piece, factor, out=scratch(t.size, t.dtype), dtype=t.dtype)
            np.add(t, product, out=t)


def _add_compensated(s: Array, errors: Array, x: Array) -> Array:
    """Return s + x, and add to ``errors`` what that rounds away."""
    t = s + x
    errors += np.where(np.abs(s) >= np.abs(x), (s - t) + x, (x - t) + s)
    return np.asarray(t)
