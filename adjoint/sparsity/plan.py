"""Plans: which products give all entries of a sparse derivative, and where each entry is found in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.core.tensor import Tensor
from adjoint.core.user_code import warn
from adjoint.ops.sparse_matrices import Pattern
from adjoint.sparsity.coloring import column_colours, split_colours, star_colours
from adjoint.sparsity.pattern import union
from adjoint.typing import Array

__all__ = ["MODES", "Block", "Plan", "hessian_plan", "jacobian_plan"]

MODES = ("columns", "rows", "both")
_MANY = 128  # colours
_REVERSE = 2.0  # how long a product of reverse mode takes, if one of forward mode takes 1


class Block:
    """The derivative of one output by one input: its pattern, and where its entries are in the products.

    ``pieces`` are products: ("columns", output) or ("rows", input).  ``places`` has the positions of the
    entries in these products, flattened and joined.
    """

    def __init__(self, pattern: Pattern, pieces: list[tuple[str, int]], places: Array) -> None:
        self.pattern, self.pieces, self.places = pattern, pieces, places


class Plan:
    """The products that give a derivative with a known pattern.

    Parameters
    ----------
    pattern : csr_array
        The pattern: the rows are all elements of the outputs, the columns those of the inputs.
    columns : array of int
        The colour of each column; -1 for a column that has no entry in a product with columns.
    rows : array of int
        The colour of each row; -1 for a row that is in no product with rows.
    symmetric : bool
        Whether an entry may be read at its transposed position.
    columns_first : bool
        Where an entry is read whose row and column both have a colour: in the product with columns if True.
    """

    def __init__(
        self,
        pattern: Any,
        columns: Array,
        rows: Array,
        symmetric: bool = False,
        columns_first: bool = False,
    ) -> None:
        self.pattern, self.columns, self.rows = pattern, columns, rows
        self.symmetric, self.columns_first = symmetric, columns_first
        self.forward = int(columns.max(initial=-1)) + 1
        self.backward = int(rows.max(initial=-1)) + 1

    @property
    def count(self) -> int:
        """The number of products."""
        return self.forward + self.backward

    @property
    def cost(self) -> float:
        """The time of the products, in units of one product with columns."""
        return self.forward + _REVERSE * self.backward

    def seeds(self, backward: bool, like: Sequence[Tensor]) -> list[Array]:
        """Return, for each input or output, one vector per colour: 1 at the elements of the colour."""
        colours, count = (self.rows, self.backward) if backward else (self.columns, self.forward)
        found, first = [], 0
        for x in like:
            own = colours[first : first + x.size]
            first += x.size
            seed = np.zeros((count, x.size), x.dtype)
            at = np.flatnonzero(own >= 0)
            seed[own[at], at] = 1
            found.append(seed.reshape(count, *x.shape))
        return found

    def blocks(self, outputs: Sequence[int], inputs: Sequence[int]) -> list[list[Block]]:
        """Return the blocks of the derivative; ``outputs`` and ``inputs`` are the numbers of elements."""
        p = self.pattern
        rows = np.repeat(np.arange(p.shape[0]), np.diff(p.indptr))
        cols = p.indices.astype(np.int64)
        swap = self._read_transposed(rows, cols)
        tops, lefts = np.cumsum([0, *outputs]), np.cumsum([0, *inputs])
        found = []
        for i, m in enumerate(outputs):
            of_row = slice(p.indptr[tops[i]], p.indptr[tops[i + 1]])
            line = []
            for j, n in enumerate(inputs):
                at = np.arange(of_row.start, of_row.stop)
                if len(inputs) > 1:
                    at = at[(cols[at] >= lefts[j]) & (cols[at] < lefts[j + 1])]
                r, c = rows[at] - tops[i], cols[at] - lefts[j]
                line.append(self._block(i, j, (m, n), r, c, rows[at], cols[at], swap[at]))
            found.append(line)
        return found

    def _read_transposed(self, rows: Array, cols: Array) -> Array:
        """Return which entries are read at the transposed position: their row has their colour twice."""
        if not self.symmetric:
            return np.zeros(len(rows), bool)
        key = rows * (self.forward + 1) + self.columns[cols]
        _, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
        return counts[inverse.reshape(-1)] > 1

    def _read_by_rows(self, rows: Array, cols: Array) -> Array:
        """Return which entries are read in a product with rows."""
        found: Array = self.rows[rows] >= 0
        return found & (self.columns[cols] < 0) if self.columns_first else found

    def products(self) -> Array:
        """Return the number of the product in which each entry is read: those with columns come first."""
        rows = np.repeat(np.arange(self.pattern.shape[0]), np.diff(self.pattern.indptr))
        cols = self.pattern.indices
        forward = self.columns[np.where(self._read_transposed(rows, cols), rows, cols)]
        return np.where(self._read_by_rows(rows, cols), self.forward + self.rows[rows], forward)

    def _block(
        self, i: int, j: int, shape: tuple[int, int], r: Array, c: Array, row: Array, col: Array, swap: Array
    ) -> Block:
        """Return the block of output ``i`` and input ``j``; its entry (r, c) is (row, col) in the whole."""
        m, n = shape
        pulled = self._read_by_rows(row, col)
        kinds = [
            (("columns", i), ~pulled & ~swap, self.columns, col, r, m, self.forward),
            (("columns", j), ~pulled & swap, self.columns, row, c, n, self.forward),
            (("rows", j), pulled, self.rows, row, c, n, self.backward),
        ]
        starts: dict[tuple[str, int], int] = {}
        places, end = np.zeros(len(r), np.int64), 0
        for name, where, colours, at, element, length, count in kinds:
            if where.any():
                if name not in starts:
                    starts[name] = end
                    end += count * length
                places[where] = colours[at[where]] * length + element[where] + starts[name]
        small = places.astype(np.int32) if end < 2**31 else places  # less to read in each call
        return Block(Pattern(r, c, (int(m), int(n))), list(starts), small)


def jacobian_plan(
    pattern: Any, mode: Any, outputs: Sequence[Sequence[int]], inputs: Sequence[Sequence[int]], name: str
) -> Plan:
    """Return the cheapest plan for a Jacobian.

    ``mode`` is True or one of ``MODES``; ``outputs`` and ``inputs`` are shapes, and ``name`` is that of the
    function.
    """
    turned = pattern.T.tocsr()
    turned.sort_indices()
    none = np.full(pattern.shape[0], -1), np.full(pattern.shape[1], -1)
    if mode == "columns":
        plan = Plan(pattern, column_colours(pattern, inputs), none[0])
    elif mode == "rows":
        plan = Plan(pattern, none[1], column_colours(turned, outputs))
    else:
        plan = _by_both(pattern, turned, inputs, outputs)
    if plan.count > _MANY and 2 * plan.count > min(pattern.shape):
        _warn(plan, mode, name)
    return plan


def _by_both(pattern: Any, turned: Any, inputs: Any, outputs: Any) -> Plan:
    """Return the cheapest plan: products with columns and some rows, or with rows and some columns."""
    prices = [_REVERSE, 1 / _REVERSE]
    bounds = [_bound(pattern, prices[0]), _REVERSE * _bound(turned, prices[1])]
    plans: list[Plan] = []
    for flipped in (False, True) if bounds[0] <= bounds[1] else (True, False):
        if plans and plans[0].cost <= bounds[flipped]:
            break
        one, shapes = (turned, outputs) if flipped else (pattern, inputs)
        dense, colours = split_colours(one, shapes, prices[flipped])
        apart = np.full(one.shape[0], -1)
        apart[dense] = np.arange(len(dense))
        columns, rows = (apart, colours) if flipped else (colours, apart)
        plans.append(Plan(pattern, columns, rows, columns_first=flipped))
    return min(plans, key=lambda plan: plan.cost)


def _bound(p: Any, price: float) -> float:
    """Return the least time of the products of ``split_colours``."""
    counts = np.append(np.sort(np.diff(p.indptr))[::-1], 0)
    return float((price * np.arange(len(counts)) + counts).min())


def hessian_plan(pattern: Any, shapes: Sequence[Sequence[int]]) -> Plan:
    """Return the plan with the fewest products for a symmetric matrix; all are products with columns."""
    turned = pattern.T.tocsr()
    both = union(pattern, turned)
    both.sort_indices()
    star = star_colours(both)
    none = np.full(both.shape[0], -1)
    if np.diff(both.indptr).max(initial=0) < int(star.max(initial=-1)) + 1:
        plain = column_colours(both, shapes)
        if plain.max(initial=-1) < star.max(initial=-1):
            return Plan(both, plain, none)
    return Plan(both, star, none, symmetric=True)


def _warn(plan: Plan, mode: Any, name: str) -> None:
    counts = np.diff(plan.pattern.indptr)
    row, col = int(counts.argmax()), int(np.bincount(plan.pattern.indices).argmax())
    other = "" if mode not in MODES[:2] else "Use sparse=True, which chooses rows, columns or both.  "
    warn(
        f"jacobian: the sparse Jacobian of {name}, of shape {plan.pattern.shape}, needs {plan.count} "
        f"products: element {row} of the result depends on {counts[row]} inputs, and input {col} influences "
        f"{int(np.bincount(plan.pattern.indices).max())} elements.\n"
        f"  {other}A matrix without zeros is faster with sparse=False."
    )
