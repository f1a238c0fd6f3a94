"""The buffers of an accumulator together: small ones in blocks, a whole micro-batch added or nothing.

Small buffers share blocks of memory.  Their gradients are packed side by side by one NumPy call, and
checked and added by one each, not by some per parameter (benchmarks/cases/accumulate.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint.core.sparse import SparseRows, as_gradient_tensor
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError, NoGradientError, UnknownNameError
from adjoint.grads.buffers import GradientBuffer, Tally
from adjoint.grads.foreign import gradient_array
from adjoint.grads.norm import all_finite_unwarned
from adjoint.grads.optimizer import hand_to_optimizers
from adjoint.grads.passes import add_all, add_if_finite, not_finite
from adjoint.grads.windows import Window, unknown_names

__all__ = ["Block", "Buffers", "lend_to"]

Array = ndarray[Any, Any]

SMALL = 1 << 13  # a buffer of at most so many elements shares a block
BLOCK = 1 << 17  # elements in a block: 1 MiB of float64, which stays in the cache

_shape, _dtype = attrgetter("shape"), attrgetter("dtype")


class Block:
    """Memory that several small buffers share, one after the other."""

    __slots__ = ("flat", "members")

    def __init__(self, members: Sequence[GradientBuffer]) -> None:
        self.members = list(members)
        self.flat = np.empty(sum(b.size for b in members), members[0].dtype)
        self._share(True)

    def _share(self, keep: bool) -> None:
        start = 0
        for b in self.members:
            view = self.flat[start : start + b.size].reshape(b.shape)
            if keep and b.count and b._total is not None:
                view[...] = b._total
            b._total = view
            b._block = self
            start += b.size

    def renew(self, *, keep: bool) -> None:
        """Leave the memory to whoever still holds it, and take new, with the sums if ``keep``."""
        self.flat = np.empty_like(self.flat)
        self._share(keep)


class Buffers:
    """The buffers of an accumulator by name, in the order of registration."""

    def __init__(self, buffers: Iterable[GradientBuffer] = ()) -> None:
        self.by_name: dict[str, GradientBuffer] = {}
        self.all: list[GradientBuffer] = []
        self._groups: list[tuple[Block | None, int, int]] | None = None  # how a whole micro-batch is packed
        self._scratch: dict[np.dtype[Any], Array] = {}
        self._undecided = 0  # buffers that take their dtype from their first gradient
        self._even = True  # since all were empty, whole micro-batches of dense gradients alone were added
        self._tally: Tally | None = Tally()  # that all share as long as that is so
        # names, dtypes and shapes of the last whole, plain micro-batch: the next one is likely alike
        self._seen: tuple[list[str], list[Any], list[Any]] | None = None
        for b in buffers:
            self.register(b)

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
        self._groups = self._seen = None

    def reset(self, *, torn: bool = False) -> None:
        """Forget all sums; if they are ``torn``, their memory too: how it is shared may be half done."""
        if torn:
            self._groups = None
            self._undecided = sum(b._dtype is None for b in self.all)
            for b in self.all:
                b._total = b._errors = b._block = None
        self._even, self._tally = True, Tally()
        for b in self.all:
            b.reset()
            b._tally = self._tally

    def matched(self, gradients: Mapping[str, Any]) -> tuple[list[GradientBuffer], list[Any], bool]:
        """Check a micro-batch against what is registered; return buffers and arrays, in registered order."""
        if type(gradients) is not dict and not isinstance(gradients, Mapping):
            raise InputError(
                f"step takes a dictionary of gradients by name, but got {type(gradients).__name__}."
            )
        seen = self._seen
        if seen is not None and len(gradients) == len(seen[0]) and list(gradients) == seen[0]:
            arrays = list(gradients.values())
            if (
                set(map(type, arrays)) == {ndarray}
                and list(map(_dtype, arrays)) == seen[1]
                and list(map(_shape, arrays)) == seen[2]
            ):
                return self.all, arrays, True
        known = self.by_name
        unknown = [name for name in gradients if name not in known]
        if unknown:
            raise UnknownNameError(unknown_names(unknown, list(known)))
        if not gradients:
            raise NoGradientError("a micro-batch without any gradient: was backward run?")
        whole = len(gradients) == len(known)
        buffers = self.all if whole else [b for n, b in known.items() if n in gradients]
        arrays = []
        for b in buffers:
            value = gradients[b.name]
            g = gradient_array(repr(b.name), value)
            arrays.append(b.fitting(g, weak=isinstance(value, (int, float, list, tuple))))
        plain = all(type(g) is ndarray and g.dtype.kind in "fc" for g in arrays)
        # while a dtype is undecided, another micro-batch may decide it otherwise
        if whole and plain and not self._undecided and list(gradients) == list(known):
            self._seen = list(known), list(map(_dtype, arrays)), list(map(_shape, arrays))
        return buffers, arrays, plain

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
        others = sorted(set(alone) - set(dense)) if len(dense) < len(alone) else []
        with np.errstate(all="ignore"):
            bad, packed = self._unfit(groups, others, arrays, factor) if check else ([], None)
            if dense:
                bad += self._add_dense(buffers, arrays, dense, factor, check=check, only_check=bool(bad))
            if bad:
                self._forget(new)
                return [buffers[i].name for i in sorted(bad)]
            self._undecided -= len(new)
            for i in others:
                self._even = False
                buffers[i].sum_up(arrays[i], factor)
            # blocks share one scratch: what is in it goes first, the others are packed once more
            blocks = [run for run in groups if run[0] is not None]
            if len(blocks) > 1:
                blocks.sort(key=lambda run: run[0] is not packed)
            for block, i, j in blocks:
                assert block is not None
                if block is not packed:
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
                (self._even or _in_step(buffers[i:j])) and (plain or _packable(arrays[i:j]))
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
    """Tell whether buffers are all new or all in use, and none of them holds rows."""
    used = buffers[0].count > 0
    return all([(b.count > 0) is used and not b.is_sparse for b in buffers])  # noqa: C419  a list is faster


def _packable(arrays: list[Any]) -> bool:
    """Tell whether gradients can be packed: arrays all of them, of dtypes that NumPy knows."""
    return {type(g) for g in arrays} == {ndarray} and all(g.dtype.kind in "fc" for g in arrays)


def _stored(g: Any) -> Array:
    return g.values if type(g) is SparseRows else g


def lend_to(
    optimizers: list[Any], params: Mapping[str, Tensor], buffers: list[GradientBuffer], window: Window
) -> None:
    """Give the finished gradients of a window to optimisers, in the memory of the buffers."""
    used = [b for b in buffers if b.count]
    dense = [b for b in used if not b.is_sparse]
    counts = [held(b) for b in dense]
    # views, so that it can be seen whether somebody keeps them
    lent = {b.name: as_gradient_tensor(b.totals()) if b.is_sparse else b._dense().view() for b in used}
    window.torn = True  # until all updates are made: an interrupt may leave some of the parameters updated
    try:
        hand_to_optimizers(optimizers, params, lent, window.done)
    except Exception:  # whoever raised has made no update: the sums stay for another try
        lent.clear()
        _take_back_all(dense, counts, keep=True)
        window.torn = False
        raise
    lent.clear()
    _take_back_all(dense, counts, keep=False)
    window.torn = False


def _take_back_all(dense: list[GradientBuffer], counts: list[int], *, keep: bool) -> None:
    for b, before in zip(dense, counts, strict=True):
        take_back(b, before, keep=keep)


def owner(buffer: GradientBuffer) -> Array | None:
    """Return the array that owns the memory of a buffer."""
    return buffer._block.flat if buffer._block is not None else buffer._total


COUNTS = hasattr(sys, "getrefcount")  # other interpreters cannot tell who holds an array


def held(buffer: GradientBuffer) -> int:
    """Count the references to the memory of a buffer; the same again after lending: nobody kept it."""
    if not COUNTS:
        return -1
    return sys.getrefcount(owner(buffer))


def take_back(buffer: GradientBuffer, before: int, *, keep: bool) -> None:
    """After lending, leave the memory to those who still hold it, or have it for oneself again.

    ``keep``: the sum is needed once more.
    """
    if buffer._total is None or (COUNTS and held(buffer) == before):
        return
    if buffer._block is not None:
        buffer._block.renew(keep=keep)
    else:
        buffer._total = buffer._total.copy() if keep else None
