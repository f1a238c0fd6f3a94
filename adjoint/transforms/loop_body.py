"""The body of a loop: its function, the rows it reads, and the checks of its carry (the loop variable)."""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint import tree, words
from adjoint.config import get_default_dtype, no_grad, special
from adjoint.core.convert import asarray
from adjoint.core.lifted import Unknown, tracing
from adjoint.core.tensor import Tensor, note_reading
from adjoint.errors import ArgumentError, DTypeError, InputError, ShapeError
from adjoint.ops.complex_parts import astype
from adjoint.ops.join import concat, stack, unstack
from adjoint.transforms.inputs import name_of
from adjoint.transforms.recompute import checkpoint as checkpointed
from adjoint.typing import Tree

__all__ = ["Body", "check_results_match", "run_scan"]


def run_scan(body: Body, carry: Any, count: int, reverse: bool, checkpoint: bool | int) -> tuple[Any, Any]:
    """Run ``count`` steps of a loop body from ``carry``; return the last carry and the stacked results.

    The steps run in checkpointed segments if ``checkpoint`` is set.
    """
    if special.count and (trace := tracing.get()) is not None and not checkpoint:
        found = trace.scan(body, carry, count, reverse)
        if found is not None:
            return found[0], found[1]
    size = _segment(checkpoint, count)
    run = functools.partial(checkpointed, body.run) if checkpoint else body.run
    parts: list[Any] = []
    for first in _order(range(0, count, size), reverse):
        part = [r[first : first + size] for r in body.rows] if size < count else body.rows
        carry, ys = run(carry, part, first, builtins.min(size, count - first), reverse)
        parts.append(ys)
    if not count:
        return carry, body.nothing(carry)
    if len(parts) == 1:
        return carry, parts[0]
    return carry, tree.map(lambda *ys: concat(ys, axis=0), *_order(parts, reverse))


class Body:
    """The body of a loop, the rows that it reads, and the structure, shapes and dtypes of its carry.

    The carry is the value that each step receives from the step before.  ``lower`` is the first number of a
    ``fori_loop``; ``rows`` are the leaves of ``xs`` of a ``scan``.
    """

    def __init__(
        self,
        name: str,
        f: Callable[..., Any],
        rows: Sequence[Tensor] = (),
        structure: Any = None,
        lower: int | None = None,
    ) -> None:
        self.name = name
        self.f = f
        self.rows = list(rows)
        self.of_rows = structure
        self.lower = lower
        # Inside ad.compile, the remaining steps may be skipped:
        self.settles = False  # after a step that changes nothing, if the rows are all the same
        self.flagged = False  # once the first leaf of the carry is false, because then nothing changes
        self.weak: set[int] = set()  # leaves of the carry that were Python numbers, until the first step

    def start(self, init: Tree) -> Any:
        """Return ``init`` as the first carry, a tree of tensors."""
        leaves, self.structure = tree.flatten(init)
        floats = [r.dtype for r in self.rows if r.dtype.kind in "fc"]
        dtype = np.result_type(*floats) if floats else get_default_dtype()
        found = []
        for k, leaf in enumerate(leaves):
            if isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, np.generic):
                self.weak.add(k)
                kind = dtype if isinstance(leaf, float) else None
                leaf = asarray(leaf, dtype=kind) if isinstance(leaf, Unknown) else np.asarray(leaf, kind)
            found.append(_tensor(self.name, init, k, leaf))
        self.specs = [(t.shape, t.dtype) for t in found]
        return tree.unflatten(self.structure, found)

    def next(self, new: Any) -> Any:
        """Return ``new``, the carry after a step; raise if its structure, shapes or dtypes changed."""
        leaves, structure = tree.flatten(new)
        if structure != self.structure:
            raise InputError(
                f"{self.name}: the step received a carry with the structure {_shown(self.structure)}, "
                f"but returned one with the structure {_shown(structure)}.\n"
                f"  {self._where()} must return a carry with the same structure as the carry it receives."
            )
        found = [t if isinstance(t, Tensor) else asarray(t) for t in leaves]
        for k, (t, (shape, dtype)) in enumerate(zip(found, self.specs, strict=True)):
            if t.shape == shape and (t.dtype == dtype or k in self.weak):
                continue
            leaf = tree.paths(new, "carry")[k][0]
            if t.shape != shape:
                raise ShapeError(
                    f"{self.name}: {leaf} had shape {shape} before the step, and has {t.shape} after it.\n"
                    f"  {self._where()} must return the shapes that it gets."
                )
            raise DTypeError(
                f"{self.name}: {leaf} was {dtype} before the step, and is {t.dtype} after it.\n"
                f"  {self._where()} must return the dtypes that it gets: use .astype({dtype.name!r}), or "
                f"start from {t.dtype.name}."
            )
        return tree.unflatten(structure, found)

    def _where(self) -> str:
        code = getattr(self.f, "__code__", None)
        place = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
        return f"{name_of(self.f)}{place}"

    def step(self, carry: Any, x: Any) -> tuple[Any, Any]:
        """Run the body once, on a row ``x``; return the new carry and the result."""
        if self.lower is not None:
            found = self.f(x, carry), ()
        else:
            found = self.f(carry, x)
        if not isinstance(found, tuple) or len(found) != 2:
            what = "a tensor" if isinstance(found, Tensor) else words.a(type(found).__name__)
            raise InputError(f"scan: {self._where()} must return a pair (carry, y), but returned {what}.")
        new = self.next(found[0])
        if self.weak and not self._settle(new):
            return self.step(self.cast(carry), x)
        return new, found[1]

    def _settle(self, new: Any) -> bool:
        """Set the dtypes of Python numbers in the carry from ``new``, the carry after the first step.

        Return False if the step must be repeated with these dtypes.
        """
        before = self.specs
        self.specs = [(shape, t.dtype) for (shape, _), t in zip(before, tree.leaves(new), strict=True)]
        self.weak = set()
        return self.specs == before

    def cast(self, carry: Any) -> Any:
        """Return a carry cast to the dtypes that ``_settle`` found."""
        leaves = tree.leaves(carry)
        found = [
            t if t.dtype == dtype else astype(t, dtype)
            for t, (_, dtype) in zip(leaves, self.specs, strict=True)
        ]
        return tree.unflatten(self.structure, found)

    def run(self, carry: Any, rows: list[Tensor], first: int, count: int, reverse: bool) -> tuple[Any, Any]:
        """Run ``count`` steps from step ``first``; return the carry and the stacked results.

        Each step reads one row of each array in ``rows``, from the last row backwards if ``reverse``.
        """
        carry = self.cast(carry)
        each = [unstack(r) for r in rows]
        ys: list[Any] = []
        for n in _order(range(count), reverse):
            if self.lower is not None:
                x: Any = self.lower + first + n
            else:
                x = tree.unflatten(self.of_rows, [r[n] for r in each])
            carry, y = self.step(carry, x)
            ys.append(y)
        return carry, self.stacked(_order(ys, reverse)) if ys else None

    def stacked(self, ys: Sequence[Any]) -> Any:
        """Return the results ``ys`` of all steps as one tree; the first axis of each leaf is the step."""
        first, structure = tree.flatten(ys[0])
        columns: list[list[Any]] = [[] for _ in first]
        for n, y in enumerate(ys):
            leaves, own = tree.flatten(y)
            if own != structure:
                raise InputError(
                    f"{self.name}: {self._where()} returned y with the structure {_shown(structure)}, but "
                    f"with {_shown(own)} in step {n}."
                )
            for column, leaf in zip(columns, leaves, strict=True):
                column.append(leaf)
        return tree.unflatten(structure, [stack(c) for c in columns])

    def nothing(self, carry: Any) -> Any:
        """Return the stacked results of a loop without steps.

        Each leaf has length 0 along the first axis, and otherwise the shape that one step would return.
        """
        if self.lower is not None:
            return ()
        like = [asarray(np.zeros(r.shape[1:], r.dtype)) for r in self.rows]
        with no_grad():
            y = self.f(carry, tree.unflatten(self.of_rows, like))[1]
        return tree.map(lambda t: asarray(np.zeros((0, *asarray(t).shape), asarray(t).dtype)), y)


def _tensor(name: str, init: Any, k: int, leaf: Any) -> Tensor:
    try:
        t = leaf if isinstance(leaf, Tensor) else asarray(leaf)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name}: a carry must consist of tensors, arrays and numbers, but "
            f"{tree.paths(init, 'carry')[k][0]} "
            f"is {words.a(type(leaf).__name__)}."
        ) from error
    if special.count:
        note_reading(t)
    return t


def check_results_match(name: str, f: str, other: str, a: Any, b: Any) -> None:
    """Raise if ``b``, the result of ``f``, differs from ``a``, that of ``other``, in structure or shape.

    ``name`` is the name of the loop, for errors.
    """
    left, right = tree.structure(a), tree.structure(b)
    if left != right:
        raise InputError(
            f"{name}: {f} returns the structure {_shown(right)}, but {other} returns {_shown(left)}."
        )
    for path, (x, y) in zip(
        [p for p, _ in tree.paths(a)], zip(tree.leaves(a), tree.leaves(b), strict=True), strict=True
    ):
        x, y = asarray(x), asarray(y)
        if x.shape != y.shape:
            raise ShapeError(
                f"{name}: {path or 'the result'} of {f} has shape {y.shape}, but that of {other} has shape "
                f"{x.shape}."
            )


def _shown(structure: Any) -> str:
    return repr(structure).partition(": ")[2].rstrip(">") or repr(structure)


def _order(items: Any, reverse: bool) -> Any:
    return list(reversed(items)) if reverse else items


def _segment(checkpoint: bool | int, count: int) -> int:
    """Return the number of steps in each checkpointed segment of a loop with ``count`` steps.

    It is ``checkpoint``, or about √count if that is True, or ``count`` if that is False.
    """
    if isinstance(checkpoint, bool):
        return builtins.max(1, math.isqrt(count)) if checkpoint else builtins.max(1, count)
    if not isinstance(checkpoint, int) or checkpoint < 1:
        raise ArgumentError(
            f"scan: checkpoint must be True, False or a number of steps, but got {checkpoint!r}."
        )
    return checkpoint
