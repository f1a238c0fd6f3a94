"""Kernels of linear algebra on small matrices: elimination, Cholesky factors and triangular equations.

Each works on whole rows, so that vectors cover several columns, and copies its matrices to the stack first.
A matrix for which LAPACK may raise an error gives NaN: one with a pivot that is 0, or so small that it may be
a rounding error.  A check in the graph then makes NumPy run the program, and raise the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.compiler.emit.machine import Machine
from adjoint.compiler.emit.values import Index, Value, element_of
from adjoint.compiler.emit.writer import Writer
from adjoint.compiler.lower.graph import Primitive
from adjoint.compiler.schedule.kernel import Address, Kernel

__all__ = ["matrix_kernel"]

_UNROLLED = 8  # vectors: longer rows are loops


def matrix_kernel(machine: Machine, node: Primitive) -> Kernel:
    """Return the kernel of a "matrix" node: its ``params`` are the routine and the routine's options."""
    routine, *options = node.params
    n, columns = node.args[0].shape[-1], node.shape[-1]
    work = _Rows(machine, node, n, {"solve": n + columns, "triangular": columns}.get(routine, n))
    w, batch = work.w, math.prod(node.shape[: -1 if routine == "pivots" else -2])
    write: Callable[..., None] = getattr(work, f"_{routine}")
    given = [w.slot(k) for k in range(len(node.args) + 1)]
    sizes = [math.prod(a.shape[-2:]) for a in node.args] + [node.size // batch]

    def one(i: Value, _: list[Value]) -> None:
        places = [w.at(p, work.element, w.times(i, s)) for p, s in zip(given, sizes, strict=True)]
        write(*places, *options)

    w.loop(w.low, w.high, 1, one)
    slots = [Address(x, 0) for x in (*(a.node for a in node.args), node)]
    return Kernel(w.kernel(), slots, batch, 1, 2.0 * batch * n * n * work.width)


class _Rows:
    """``count`` rows of ``width`` numbers on the stack, and what is done to them."""

    def __init__(self, machine: Machine, node: Primitive, count: int, width: int) -> None:
        self.w = Writer(machine)
        self.element = element_of(node.dtype)
        self.lanes = machine.lanes(node.dtype)
        self.count, self.width = count, width
        self.columns = node.shape[-1]
        self.memory = self.w.scratch(self.element, count * width)
        self.nan = self.w.const(math.nan, self.element)
        # a pivot below this multiple of the numbers that it was computed from may be a rounding error
        self.doubtful = self.w.const(16.0 * count * float(np.finfo(node.dtype).eps), self.element)

    # Numbers and rows -----------------------------------------------------------------------------

    def spot(self, row: Index, column: Index) -> Value:
        """Emit the address of an element of the rows."""
        return self.w.at(self.memory, self.element, self.w.plus(self.w.times(row, self.width), column))

    def get(self, row: Index, column: Index) -> Value:
        """Emit the load of an element of the rows."""
        return self.w.load(self.spot(row, column), self.element)

    def vectors(self, count: int, body: Callable[[Index, int, Any], None]) -> None:
        """Emit ``body(offset, lanes, mask)`` for ``count`` elements of a row."""
        self.w.vectors(count, self.lanes, _UNROLLED, body)

    def copy(self, source: Value, target: Value, count: int) -> None:
        """Emit a copy of ``count`` elements."""
        w = self.w

        def move(at: Index, lanes: int, mask: Any) -> None:
            x = w.load(w.at(source, self.element, at), self.element, lanes, mask)
            w.store(x, w.at(target, self.element, at), mask)

        self.vectors(count, move)

    def subtract(self, row: Index, factor: Value, other: Index, first: int, count: int) -> None:
        """Emit ``row -= factor * other`` for ``count`` columns from ``first``."""
        w, minus = self.w, self.w.neg(factor)
        to, source = self.spot(row, first), self.spot(other, first)

        def step(at: Index, lanes: int, mask: Any) -> None:
            x, y = (w.load(w.at(p, self.element, at), self.element, lanes, mask) for p in (source, to))
            w.store(w.fma(w.splat(minus, lanes), x, y), w.at(to, self.element, at), mask)

        self.vectors(count, step)

    def divide(self, row: Index, by: Value, first: int, count: int) -> None:
        """Emit ``row /= by`` for ``count`` columns from ``first``; NaN if ``by`` is 0."""
        w, to = self.w, self.spot(row, first)
        by = w.select(w.compare("oeq", by, 0.0), self.nan, by)

        def step(at: Index, lanes: int, mask: Any) -> None:
            x = w.load(w.at(to, self.element, at), self.element, lanes, mask)
            w.store(w.div(x, w.splat(by, lanes)), w.at(to, self.element, at), mask)

        self.vectors(count, step)

    def each(self, low: Index, high: Index, body: Callable[[Value], None]) -> None:
        """Emit ``body(i)`` for all i from ``low`` to ``high``."""
        self.w.loop(low, high, 1, lambda i, _: body(i))

    def backwards(self, body: Callable[[Value], None]) -> None:
        """Emit ``body(row)`` for all rows, the last one first."""
        self.each(0, self.count, lambda i: body(self.w.sub(self.count - 1, i)))

    # Routines ---------------------------------------------------------------------------------------

    def _solve(self, a: Value, y: Value, z: Value) -> None:
        """Emit the solution z of a z = y by elimination with row exchanges."""
        w, n, m = self.w, self.count, self.columns

        def read(r: Value) -> None:
            self.copy(w.at(a, self.element, w.times(r, n)), self.spot(r, 0), n)
            self.copy(w.at(y, self.element, w.times(r, m)), self.spot(r, n), m)

        self.each(0, n, read)
        self._eliminate()

        def substitute(k: Value) -> None:
            self.divide(k, self._pivot(k), n, m)
            self.each(0, k, lambda i: self.subtract(i, self.get(i, k), k, n, m))
            self.copy(self.spot(k, n), w.at(z, self.element, w.times(k, m)), m)

        self.backwards(substitute)

    def _pivots(self, a: Value, out: Value) -> None:
        """Emit the diagonal after elimination; its product is the determinant."""
        w, n = self.w, self.count
        self.copy(a, self.memory, n * n)
        sign = self._eliminate()

        def write(k: Value) -> None:
            x = self._pivot(k)
            first = w.compare("eq", k, 0)
            w.store(w.select(first, w.mul(x, sign), x), w.at(out, self.element, k))

        self.each(0, n, write)

    def _eliminate(self) -> Value:
        """Make the matrix in the first columns upper triangular; return 1, or -1 for odd permutations."""
        w, n = self.w, self.count

        def step(k: Value, carried: list[Value]) -> list[Value]:
            def search(i: Value, best: list[Value]) -> list[Value]:
                size = w.abs(self.get(i, k))
                larger = w.compare("ogt", size, best[0])
                return [w.select(larger, size, best[0]), w.select(larger, i, best[1])]

            start = [w.const(-1.0, self.element), k]
            _, place = w.loop(k, n, 1, search, start)
            other = w.compare("ne", place, k)
            with w.when(other):
                self._exchange(k, place)
            pivot = self.get(k, k)
            safe = w.select(w.compare("oeq", pivot, 0.0), w.const(math.inf, self.element), pivot)
            self.each(
                w.plus(k, 1), n, lambda i: self.subtract(i, w.div(self.get(i, k), safe), k, 0, self.width)
            )
            return [w.select(other, w.neg(carried[0]), carried[0])]

        return w.loop(0, n, 1, step, [w.const(1.0, self.element)])[0]

    def _pivot(self, k: Value) -> Value:
        """Emit a pivot after elimination; NaN if it is tiny compared with the numbers above it."""
        w = self.w

        def larger(i: Value, best: list[Value]) -> list[Value]:
            size = w.abs(self.get(i, k))
            return [w.select(w.compare("ogt", size, best[0]), size, best[0])]

        top = w.loop(0, k, 1, larger, [w.const(0.0, self.element)])[0]
        pivot = self.get(k, k)
        tiny = w.compare("olt", w.abs(pivot), w.mul(top, self.doubtful))
        return w.select(tiny, self.nan, pivot)

    def _exchange(self, row: Value, other: Value) -> None:
        """Emit the exchange of two rows."""
        w, a, b = self.w, self.spot(row, 0), self.spot(other, 0)

        def swap(at: Index, lanes: int, mask: Any) -> None:
            places = [w.at(p, self.element, at) for p in (a, b)]
            x, y = (w.load(p, self.element, lanes, mask) for p in places)
            w.store(y, places[0], mask)
            w.store(x, places[1], mask)

        self.vectors(self.width, swap)

    def _cholesky(self, a: Value, out: Value, upper: bool) -> None:
        """Emit the factor u with uᵀ u = a, or its transpose; only that triangle of ``a`` is read."""
        w, n = self.w, self.count

        def moved(put: Callable[[Index, Index], None]) -> None:
            self.each(0, n, lambda r: self.each(0, n, lambda c: put(r, c)))

        def place(p: Value, r: Index, c: Index) -> Value:
            r, c = (r, c) if upper else (c, r)
            return w.at(p, self.element, w.plus(w.times(r, n), c))

        moved(lambda r, c: w.store(w.load(place(a, r, c), self.element), self.spot(r, c)))

        def step(k: Value) -> None:
            pivot, before = self.get(k, k), w.load(place(a, k, k), self.element)
            root = w.select(w.compare("ogt", pivot, w.mul(before, self.doubtful)), w.sqrt(pivot), self.nan)
            self.divide(k, root, 0, n)
            w.store(root, self.spot(k, k))
            self.each(w.plus(k, 1), n, lambda i: self.subtract(i, self.get(k, i), k, 0, n))

        self.each(0, n, step)
        zero = w.const(0.0, self.element)
        moved(lambda r, c: w.store(w.select(w.compare("sle", r, c), self.get(r, c), zero), place(out, r, c)))

    def _triangular(self, a: Value, y: Value, z: Value, lower: bool, unit: bool) -> None:
        """Emit the solution z of a z = y, where only one triangle of a is read."""
        w, n, m = self.w, self.count, self.columns
        self.copy(y, self.memory, n * m)

        def element(i: Index, k: Index) -> Value:
            return w.load(w.at(a, self.element, w.plus(w.times(i, n), k)), self.element)

        def step(k: Value) -> None:
            if not unit:
                self.divide(k, element(k, k), 0, m)
            low, high = (w.plus(k, 1), n) if lower else (0, k)
            self.each(low, high, lambda i: self.subtract(i, element(i, k), k, 0, m))

        if lower:
            self.each(0, n, step)
        else:
            self.backwards(step)
        self.copy(self.memory, z, n * m)
