"""Buffers that sum gradients: weighted, in float32 or wider, compensated if asked, sparse while they can be.

Small buffers share blocks of memory.  Their gradients are packed side by side by one NumPy call, and
checked and added by one each, not by some per parameter (benchmarks/cases/accumulate.py).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint.core.shapes import Shape
from adjoint.core.sparse import SparseRows
from adjoint.errors import ArgumentError, DTypeError, ShapeError
from adjoint.grads.foreign import gradient_array, is_gradient_dtype, sum_dtype
from adjoint.grads.norm import all_finite_unwarned, chunks, global_norm
from adjoint.grads.passes import add_all, add_if_finite, not_finite

__all__ = ["Block", "Buffers", "GradientBuffer", "checked_shape", "checked_sum_dtype"]

Array = ndarray[Any, Any]

SMALL = 1 << 13  # a buffer of at most so many elements shares a block
BLOCK = 1 << 17  # elements in a block: 1 MiB of float64, which stays in the cache


def checked_shape(what: str, shape: Any) -> Shape:
    """Return a shape as a tuple of whole numbers, or say what is wrong with it."""
    items = (shape,) if isinstance(shape, (int, np.integer)) else shape
    try:
        found = tuple(int(n.__index__()) for n in items)
    except (TypeError, AttributeError):
        raise ShapeError(f"{what}: a shape is a tuple of whole numbers, but got {shape!r}.") from None
    if any(n < 0 for n in found):
        raise ShapeError(f"{what}: the lengths of a shape are not negative, but got {found}.")
    return found


def checked_sum_dtype(what: str, dtype: Any) -> np.dtype[Any]:
    """Return a dtype that sums gradients, or say why it cannot."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        raise DTypeError(f"{what}: {dtype!r} is not a dtype.") from None
    if not is_gradient_dtype(found) or sum_dtype(found) != found:
        raise DTypeError(
            f"{what}: gradients are summed in float32, float64 or a complex dtype, but got {found}.\n"
            "  A sum in half precision loses small gradients; such gradients go into float32 sums."
        )
    return found


class _Tally:
    """How much was added; buffers that always take part together share one."""

    __slots__ = ("count", "weight")

    def __init__(self, count: int = 0, weight: float = 0.0) -> None:
        self.count = count
        self.weight = weight


class GradientBuffer:
    """The weighted sum of the gradients of one parameter.

    ``add(grad, weight)`` adds weight·grad; ``get(normalize=True)`` is the sum over the total
    weight.  ``count`` and ``weight`` tell how much was added.  With ``compensated=True`` the
    rounding errors are summed beside it (Neumaier), so that very long windows lose nothing.

    >>> buffer = GradientBuffer((2,))
    >>> buffer.add([2.0, 4.0]); buffer.add([6.0, 8.0])
    >>> buffer.get(normalize=True), buffer.get(normalize=False)
    (array([4., 6.]), array([ 8., 12.]))
    """

    __slots__ = (
        "_block",
        "_dtype",
        "_errors",
        "_rows",
        "_tally",
        "_total",
        "compensated",
        "name",
        "shape",
    )

    def __init__(
        self, shape: Any, dtype: Any = np.float64, *, compensated: bool = False, name: str = "GradientBuffer"
    ) -> None:
        self.name = name
        self.shape = checked_shape(name, shape)
        self.compensated = bool(compensated)
        self._tally = _Tally()
        # None inside an accumulator: that of the first gradient
        self._dtype = None if dtype is None else checked_sum_dtype(name, dtype)
        self._total: Array | None = None  # meaningless while count is 0: nothing is zeroed
        self._errors: Array | None = None
        self._rows: SparseRows | None = None  # what was sparse so far, if nothing was dense
        self._block: Block | None = None

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
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def is_sparse(self) -> bool:
        """Whether all that was added had rows and values only."""
        return self._rows is not None

    @property
    def sums_plainly(self) -> bool:
        """Whether a dense gradient is added by one addition."""
        return not self.compensated and self._rows is None

    def add(self, grad: Any, weight: float = 1.0) -> None:
        """Add weight·grad; a gradient of another shape or dtype is an error and adds nothing."""
        g = self.fitting(gradient_array(self.name, grad), weak=isinstance(grad, (list, tuple, int, float)))
        weight = checked_weight(weight)
        self.decide(g.dtype)
        with np.errstate(all="ignore"):
            self.sum_up(g, weight)
        self.tally(weight)

    def tally(self, weight: float) -> None:
        """Count one more gradient of this weight, here alone."""
        self._tally = _Tally(self.count + 1, self.weight + weight)

    def fitting(self, g: Array | SparseRows, weak: bool = False) -> Array | SparseRows:
        """Return a gradient that can be added here, or say why it cannot."""
        if g.shape != self.shape:
            raise ShapeError(
                f"{self.name}: expected a gradient of shape {self.shape}, but got {g.shape}"
                f"{_hint(g.shape, self.shape)}."
            )
        if self._dtype is not None and g.dtype is not self._dtype and not _fits(g.dtype, self._dtype):
            if weak and g.dtype.kind == self._dtype.kind:
                return g.astype(self._dtype)
            raise DTypeError(
                f"{self.name}: expected a gradient that fits into {self._dtype} sums without loss, but got "
                f"{g.dtype}.\n  Cast it first, or sum in a wider dtype (dtype=)."
            )
        return g

    def decide(self, dtype: np.dtype[Any]) -> None:
        """Settle the dtype of the sum by that of the first gradient."""
        if self._dtype is None:
            self._dtype = sum_dtype(dtype)

    def sum_up(self, g: Array | SparseRows, factor: float) -> None:
        """Add factor·g to the sum, without counting it."""
        if type(g) is SparseRows:
            self._sum_rows(g, factor)
            return
        assert type(g) is ndarray
        total = self._dense()
        fresh = self.count == 0
        if self.compensated:
            self._sum_compensated(total, g, factor, fresh)
        else:
            add_all([(total, g, fresh)], factor)

    def _sum_rows(self, g: SparseRows, factor: float) -> None:
        values = np.multiply(g.values, factor, dtype=self.dtype)
        scaled = g.mapped(values)
        if self.count == 0:
            self._rows = scaled.coalesced()
        elif self._rows is not None:
            # each row once: the work and the memory grow with the rows touched, not with the steps
            self._rows = self._rows.plus(scaled).coalesced()
        else:
            scaled.add_to(self._dense())

    def _dense(self) -> Array:
        """Return the dense sum, made of the sparse one if need be."""
        if self._total is None:
            self._total = np.empty(self.shape, self.dtype)
        if self._rows is not None:
            if self.count:
                self._total[...] = 0
                self._rows.add_to(self._total)
                if self._errors is not None:
                    self._errors[...] = 0
            self._rows = None
        return self._total

    def _sum_compensated(self, total: Array, g: Array, factor: float, fresh: bool) -> None:
        """Neumaier: what each addition rounds away is summed in ``_errors``."""
        if self._errors is None:
            self._errors = np.zeros(self.shape, self.dtype)
        if fresh:
            self._errors[...] = 0
            add_all([(total, g, True)], factor)
            return
        for s, e, piece in chunks(total, self._errors, g, written=2):
            x = np.multiply(piece, factor, dtype=total.dtype)
            t = s + x
            e += np.where(np.abs(s) >= np.abs(x), (s - t) + x, (x - t) + s)
            s[...] = t

    def totals(self) -> Array | SparseRows:
        """Return the sum as it is held, not to be written to; zeros if nothing was added."""
        if self.count == 0:
            return np.zeros(self.shape, self.dtype)
        if self._rows is not None:
            return self._rows
        assert self._total is not None
        if self._errors is None:
            return self._total
        # an infinite sum has errors of inf - inf, which are no correction
        with np.errstate(invalid="ignore"):
            return np.where(np.isfinite(self._total), self._total + self._errors, self._total)

    def get(self, normalize: bool = True) -> Array:
        """Return the sum as a new dense array, over the total weight if ``normalize``."""
        total = self.totals()
        dense = total.to_dense() if type(total) is SparseRows else np.asarray(total)
        if normalize and self.weight:
            return np.asarray(np.divide(dense, self.weight, dtype=self.dtype))
        return dense.copy() if dense is self._total else dense

    def l2_norm(self) -> float:
        """Return the 2-norm of the sum, not normalised; large values do not overflow."""
        return global_norm([self.totals()])

    def reset(self) -> None:
        """Forget the sum; the memory is kept for the next one."""
        self._tally = _Tally()
        self._rows = None

    def finish(self, divisor: float, factor: float) -> None:
        """Divide the sum where it is, and scale it by ``factor``."""
        if self._rows is not None:
            values = np.divide(self._rows.values, divisor, dtype=self.dtype)
            self._rows = self._rows.mapped(np.multiply(values, factor, dtype=self.dtype))
            return
        total = self._dense()
        if self._errors is not None:
            total[...] = self.totals()
            self._errors[...] = 0
        if divisor != 1.0:
            np.divide(total, divisor, out=total)
        if factor != 1.0:
            np.multiply(total, factor, out=total)

    def replace(self, g: Array | SparseRows) -> None:
        """Put another finished gradient in the place of this one."""
        if type(g) is SparseRows:
            self._rows = g
        else:
            self._rows = None
            np.copyto(self._dense(), np.asarray(g))

    def state_dict(self) -> dict[str, Any]:
        """Return what ``load_state_dict`` needs to go on from here, in arrays of its own."""
        state: dict[str, Any] = {
            "shape": list(self.shape),
            "dtype": None if self._dtype is None else self._dtype.name,
            "count": self.count,
            "weight": self.weight,
        }
        if self.count and self._rows is not None:
            state |= {"rows": self._rows.rows.copy(), "values": self._rows.values.copy()}
        elif self.count and self._total is not None:
            state["sum"] = self._total.copy()
            if self._errors is not None:
                state["errors"] = self._errors.copy()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; one that does not fit is an error and changes nothing."""
        loaded = GradientBuffer(self.shape, state["dtype"], compensated=self.compensated, name=self.name)
        if tuple(state["shape"]) != self.shape:
            raise ShapeError(
                f"{self.name}: saved with shape {tuple(state['shape'])}, but here it is {self.shape}."
            )
        if self._dtype is not None and loaded._dtype not in (None, self._dtype):
            raise DTypeError(
                f"{self.name}: saved with {loaded._dtype} sums, but here they are {self._dtype}."
            )
        total, errors, rows = state.get("sum"), state.get("errors"), None
        for part in (total, errors):
            if part is not None and (np.shape(part) != self.shape or np.asarray(part).dtype != loaded.dtype):
                raise ShapeError(
                    f"{self.name}: the saved sum has shape {np.shape(part)} and {np.asarray(part).dtype}, "
                    f"but {self.shape} and {loaded.dtype} are expected."
                )
        if "rows" in state:
            rows = SparseRows(
                np.array(state["rows"], np.intp), np.array(state["values"]), self.shape, unique=True
            )
        count, weight = int(state["count"]), float(state["weight"])
        self._dtype = loaded._dtype or self._dtype
        self._tally, self._rows = _Tally(count, weight), rows
        if total is not None:
            np.copyto(self._dense(), np.asarray(total))
            if self.compensated:
                self._errors = np.zeros(self.shape, self.dtype) if errors is None else np.array(errors)

    def __repr__(self) -> str:
        return f"GradientBuffer({self.shape}, {self.dtype}, count={self.count}, weight={self.weight:g})"


def checked_weight(weight: Any) -> float:
    """Return a weight as a float; it is finite and not negative."""
    try:
        if isinstance(weight, (str, bytes)):
            raise TypeError
        value = float(weight)
    except (TypeError, ValueError):
        raise ArgumentError(f"weight is a number, but got {weight!r}.") from None
    if not 0.0 <= value < float("inf"):
        raise ArgumentError(f"weight is a finite number from 0, but got {weight!r}.")
    return value


def _fits(dtype: np.dtype[Any], total: np.dtype[Any]) -> bool:
    return np.can_cast(np.dtype(np.float32) if dtype.name == "bfloat16" else dtype, total, "safe")


def _hint(got: Shape, expected: Shape) -> str:
    same = np.prod(got, dtype=np.int64) == np.prod(expected, dtype=np.int64)
    return ": as many elements, but in another shape" if same else ""


class Block:
    """Memory that several small buffers share, one after the other."""

    __slots__ = ("flat", "members")

    def __init__(self, members: Sequence[GradientBuffer]) -> None:
        self.members = list(members)
        self.flat = np.empty(sum(b.size for b in members), members[0].dtype)
        self._share(keep=True)

    def _share(self, keep: bool) -> None:
        start = 0
        for b in self.members:
            view = self.flat[start : start + b.size].reshape(b.shape)
            if keep and b.count and b._total is not None:
                view[...] = b._total
            b._total = view
            b._block = self
            start += b.size

    def renew(self) -> None:
        """Leave the memory to whoever still holds it, and take new."""
        self.flat = np.empty_like(self.flat)
        self._share(keep=False)


class Buffers:
    """The buffers of an accumulator by name, in the order of registration."""

    def __init__(self) -> None:
        self.by_name: dict[str, GradientBuffer] = {}
        self.all: list[GradientBuffer] = []
        self._groups: list[tuple[Block | None, int, int]] | None = None  # how a whole micro-batch is packed
        self._scratch: dict[np.dtype[Any], Array] = {}
        self._undecided = 0  # buffers that take their dtype from their first gradient
        self._even = True  # since all were empty, whole micro-batches alone were added
        self._tally: _Tally | None = _Tally()  # that all share as long as that is so

    def register(self, buffer: GradientBuffer) -> None:
        """Add a buffer under its name."""
        self.by_name[buffer.name] = buffer
        self.all.append(buffer)
        self._even = self._even and self.all[0].count == buffer.count
        if self._tally is not None and self._tally.count == buffer.count == 0:
            buffer._tally = self._tally
        else:
            self._tally = None  # each has its own, until all are empty again
        self._undecided += buffer._dtype is None
        self._groups = None

    def reset(self) -> None:
        """Forget all sums."""
        self._even, self._tally = True, _Tally()
        for b in self.all:
            b.reset()
            b._tally = self._tally

    def replace(self, buffers: list[GradientBuffer]) -> None:
        """Put other buffers in the place of all."""
        self.by_name, self.all, self._undecided, self._groups, self._even = {}, [], 0, None, True
        self._tally = _Tally()
        for b in buffers:
            self.register(b)

    def nonfinite_or_add(
        self,
        buffers: list[GradientBuffer],
        arrays: list[Any],
        factor: float,
        weight: float,
        *,
        check: bool,
        plain: bool,
    ) -> list[str]:
        """Add factor·gradient to each buffer, or add nothing and return the names that are not finite.

        Without ``check`` nothing is looked at.  ``plain`` promises arrays of NumPy's own dtypes.
        """
        new = [] if not self._undecided else [b for b in buffers if b._dtype is None]
        for b, g in zip(buffers, arrays, strict=True) if new else ():
            b.decide(g.dtype)
        groups = self._packing(buffers, arrays, plain)
        alone = [i for block, i, _ in groups if block is None]
        dense = [i for i in alone if type(arrays[i]) is ndarray and buffers[i].sums_plainly]
        others = [i for i in alone if i not in dense] if len(dense) < len(alone) else []
        with np.errstate(all="ignore"):
            bad, packed = self._unfit(groups, others, arrays, factor) if check else ([], None)
            if dense:
                bad += self._add_dense(buffers, arrays, dense, factor, check=check, only_check=bool(bad))
            if bad:
                self._forget(new)
                return [buffers[i].name for i in sorted(bad)]
            self._undecided -= len(new)
            for i in others:
                buffers[i].sum_up(arrays[i], factor)
            for block, i, j in groups:
                if block is None:
                    continue
                if packed is not block:
                    self._pack(block, arrays[i:j], factor, check=False)
                ready = self._scratch_of(block)
                if buffers[i].count:
                    np.add(block.flat, ready, out=block.flat)
                else:
                    np.copyto(block.flat, ready)
        if buffers is self.all and self._tally is not None:
            self._tally.count += 1
            self._tally.weight += weight
        else:
            self._tally = None
            for b in buffers:
                b.tally(weight)
        return []

    def _unfit(
        self,
        groups: list[tuple[Block | None, int, int]],
        others: list[int],
        arrays: list[Any],
        factor: float,
    ) -> tuple[list[int], Block | None]:
        """Return which gradients, packed or ``others``, are not finite; and the block in the scratch."""
        bad = [others[k] for k in not_finite([_stored(arrays[i]) for i in others])] if others else []
        packed: Block | None = None
        for block, i, j in groups:
            if block is None:
                continue
            if self._pack(block, arrays[i:j], factor, check=True):
                packed = block
            else:
                bad += [k for k in range(i, j) if not all_finite_unwarned(arrays[k])]
        return bad, packed

    @staticmethod
    def _add_dense(
        buffers: list[GradientBuffer],
        arrays: list[Any],
        dense: list[int],
        factor: float,
        *,
        check: bool,
        only_check: bool,
    ) -> list[int]:
        """Add gradients that go alone, or return which of them are not finite."""
        if only_check:
            return [dense[k] for k in not_finite([arrays[i] for i in dense])]
        sums = [(buffers[i]._dense(), arrays[i], buffers[i].count == 0) for i in dense]
        if check:
            return [dense[k] for k in add_if_finite(sums, factor)]
        add_all(sums, factor)
        return []

    def _forget(self, new: list[GradientBuffer]) -> None:
        """Undo what the first gradients decided."""
        for b in new:
            b._dtype = b._total = b._block = None
        self._groups = None if new else self._groups

    def _packing(
        self, buffers: list[GradientBuffer], arrays: list[Any], plain: bool
    ) -> list[tuple[Block | None, int, int]]:
        """Return runs of gradients that go into one block together, and those that go alone."""
        if buffers is not self.all:
            self._even = False
            return [(None, i, i + 1) for i in range(len(buffers))]
        if self._groups is None:
            self._groups = self._lay_out()
        found: list[tuple[Block | None, int, int]] = []
        for block, i, j in self._groups:
            if block is None or (
                (self._even or _in_step(buffers[i:j])) and (plain or _packable(buffers[i:j], arrays[i:j]))
            ):
                found.append((block, i, j))
            else:
                found += [(None, k, k + 1) for k in range(i, j)]
        return found

    def _lay_out(self) -> list[tuple[Block | None, int, int]]:
        groups: list[tuple[Block | None, int, int]] = []
        i = 0
        while i < len(self.all):
            j, size = i, 0
            while j < len(self.all) and self._shares(self.all[j], self.all[i].dtype, size):
                size += self.all[j].size
                j += 1
            if j > i + 1:
                groups.append((Block(self.all[i:j]), i, j))
            else:
                j = i + 1
                groups.append((None, i, j))
            i = j
        return groups

    @staticmethod
    def _shares(b: GradientBuffer, dtype: np.dtype[Any], before: int) -> bool:
        alone = b.compensated or b.is_sparse or b.size > SMALL
        return not alone and b.dtype == dtype and before + b.size <= BLOCK

    def _pack(self, block: Block, arrays: list[Array], factor: float, check: bool) -> bool:
        """Copy gradients into the scratch, times ``factor``; False if one is not finite."""
        scratch = self._scratch_of(block)
        np.concatenate(arrays, axis=None, out=scratch, casting="same_kind")
        if check and not all_finite_unwarned(scratch):
            return False
        if factor != 1.0:
            np.multiply(scratch, factor, out=scratch)
        return True

    def _scratch_of(self, block: Block) -> Array:
        flat = block.flat
        scratch = self._scratch.get(flat.dtype)
        if scratch is None or scratch.size < flat.size:
            scratch = self._scratch[flat.dtype] = np.empty(flat.size, flat.dtype)
        return scratch[: flat.size]


def _in_step(buffers: list[GradientBuffer]) -> bool:
    """Tell whether buffers are all new or all in use."""
    used = buffers[0].count > 0
    return all([(b.count > 0) is used for b in buffers])  # noqa: C419  a list is faster here


def _packable(buffers: list[GradientBuffer], arrays: list[Any]) -> bool:
    """Tell whether gradients can be packed: arrays all of them, of dtypes that NumPy knows."""
    if {type(g) for g in arrays} != {ndarray} or any(g.dtype.kind not in "fc" for g in arrays):
        return False
    return not any(b._rows is not None for b in buffers)


def _stored(g: Any) -> Array:
    return g.values if type(g) is SparseRows else g


def lend(buffer: GradientBuffer) -> Array:
    """Return a view of the finished gradient for others to hold; ``take_back`` sees whether they do."""
    total = buffer._dense()
    return total.view()


def owner(buffer: GradientBuffer) -> Array | None:
    """Return the array that owns the memory of a buffer."""
    return buffer._block.flat if buffer._block is not None else buffer._total


# Free-threaded interpreters and those without counts cannot tell who holds an array.
COUNTS = hasattr(sys, "getrefcount") and getattr(sys, "_is_gil_enabled", lambda: True)()


def held(buffer: GradientBuffer) -> int:
    """Count the references to the memory of a buffer; the same again after lending: nobody kept it."""
    if not COUNTS:
        return -1
    return sys.getrefcount(owner(buffer))


def take_back(buffer: GradientBuffer, before: int) -> None:
    """After lending, leave the memory to those who still hold it, or keep it for the next window."""
    if buffer._total is None or (COUNTS and held(buffer) == before):
        return
    if buffer._block is not None:
        buffer._block.renew()
    else:
        buffer._total = None
