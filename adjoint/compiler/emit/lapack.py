"""Kernels of linear algebra that call BLAS and LAPACK: large matrices, eigenvalues and QR.

LAPACK stores matrices column by column, so it reads a row-major matrix as its transpose.  A matrix for which
LAPACK reports an error gives NaN; a check in the graph then makes NumPy run the program, and raise the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.compiler.emit.machine import Machine
from adjoint.compiler.emit.repeat import copy_bytes
from adjoint.compiler.emit.values import Value, element_of
from adjoint.compiler.emit.writer import Writer
from adjoint.compiler.lower.graph import Primitive
from adjoint.compiler.lower.lapack import address_of
from adjoint.compiler.lower.primitives import ALWAYS_LAPACK
from adjoint.compiler.schedule.kernel import Address, Kernel

__all__ = ["lapack_kernel"]

_BLOCK = 64  # columns: LAPACK works on blocks of at most as many

# The functions that each routine calls, without the letter of the type.
_CALLED = {
    "cholesky": ("potrf",), "triangular": ("trsm", "trsv"), "solve": ("getrf", "trsm"), "pivots": ("getrf",),
    "eigh": ("syevd",), "eigvalsh": ("syevd",), "qr": ("geqrf", "orgqr"),
}  # fmt: skip


def lapack_kernel(machine: Machine, node: Primitive) -> tuple[Kernel, int]:
    """Return the kernel of a "matrix" node, as ``matrix_kernel``, and its bytes of workspace."""
    routine, *options = node.params
    made = _Calls(machine, node)
    w, batch = made.w, math.prod(node.args[0].shape[:-2])
    write: Callable[..., None] = getattr(made, f"_{routine}")
    given = [w.slot(k) for k in range(len(node.args) + 1)]
    sizes = [math.prod(a.shape[-2:]) for a in node.args] + [node.size // batch]

    def one(i: Value, _: list[Value]) -> None:
        write(*[w.at(p, made.element, w.times(i, s)) for p, s in zip(given, sizes, strict=True)], *options)

    w.loop(w.low, w.high, 1, one)
    slots = [Address(x, 0) for x in (*(a.node for a in node.args), node)]
    slots += [Address(made.addresses, 0), Address(None, 0)]
    # BLAS has threads of its own
    return Kernel(w.kernel(), slots, batch, batch, 0.5 * batch * made.rows * made.n * made.width), made.space


class _Calls:
    """Generates the kernel of one node."""

    def __init__(self, machine: Machine, node: Primitive) -> None:
        self.w = Writer(machine)
        self.element, self.size = element_of(node.dtype), node.dtype.itemsize
        self.rows, self.n = node.args[0].shape[-2:]
        self.columns = node.shape[-1]
        routine = node.params[0]
        self.width = self.n + (self.columns if len(node.args) > 1 else 0)
        self.width *= 8 if routine in ALWAYS_LAPACK else 1
        self.letter = "d" if self.size == 8 else "s"
        self.names = _CALLED[routine]
        self.addresses = Primitive("constant", (), None, (len(self.names),), np.dtype(np.int64))
        self.addresses.value = np.array([address_of(self.letter + name) for name in self.names], np.int64)
        self.table = self.w.slot(len(node.args) + 1)
        self.work, integers = self._work(routine)
        first = -(-self.work * self.size // 64) * 64
        self.space = first + 4 * integers
        own = self.w.slot(len(node.args) + 2)
        self.lu, self.exchanged = own, self.w.at(own, "i8", first)

    def _work(self, routine: str) -> tuple[int, int]:
        """Return how many numbers and 32-bit integers of workspace a routine needs."""
        n, k = self.n, max(self.rows, self.n)
        if routine in ("solve", "pivots"):
            return n * n, n
        if routine == "eigvalsh":
            return n * n + (2 + _BLOCK) * n + 1, 1
        if routine == "eigh":
            return max(1 + 6 * n + 2 * n * n, (2 + _BLOCK) * n), 3 + 5 * n
        return ((1 + _BLOCK) * k, 0) if routine == "qr" else (0, 0)

    # Calls --------------------------------------------------------------------------------------------

    def call(self, name: str, *args: Any) -> None:
        """Emit a call; a str is passed as a character, an int as a C int, a float as a number."""
        w = self.w
        function = w.load(w.at(self.table, "i64", self.names.index(name)), "ptr")
        given = []
        for a in args:
            if not isinstance(a, Value):
                kind = {str: "i8", int: "i32", float: self.element}[type(a)]
                spot = w.scratch(kind, 1)
                w.store(w.const(ord(a) if isinstance(a, str) else a, kind), spot)
                a = spot
            given.append(f"ptr {a.text}")
        w.line(f"call void {function.text}({', '.join(given)})")

    def spot(self, base: Value, row: Any, column: Any) -> Value:
        """Emit the address of an element of a square row-major matrix."""
        return self.w.at(base, self.element, self.w.plus(self.w.times(row, self.n), column))

    def each(self, low: Any, high: Any, body: Callable[[Value], None]) -> None:
        """Emit ``body(i)`` for all i from ``low`` to ``high``."""
        self.w.loop(low, high, 1, lambda i, _: body(i))

    def _refuse(self, failed: Value, out: Value) -> None:
        """Emit: if LAPACK has reported an error, the result is NaN."""
        w = self.w
        with w.when(w.compare("ne", w.load(failed, "i32"), 0)):
            w.store(w.const(math.nan, self.element), out)

    def _factor(self, a: Value) -> Value:
        """Emit the factors of the transpose of ``a`` by rows exchanges; return the address of the error."""
        w, n = self.w, self.n
        failed = w.scratch("i32", 1)
        copy_bytes(w, self.lu, a, n * n * self.size)
        self.call("getrf", n, n, self.lu, n, self.exchanged, failed)
        return failed

    def _exchange_of(self, k: Value) -> Value:
        """Emit the row with which row ``k`` was exchanged."""
        w = self.w
        return w.convert(w.sub(w.load(w.at(self.exchanged, "i32", k), "i32"), 1), "i64")

    # Routines -----------------------------------------------------------------------------------------

    def _cholesky(self, a: Value, out: Value, upper: bool) -> None:
        w, n, failed = self.w, self.n, self.w.scratch("i32", 1)
        copy_bytes(w, out, a, n * n * self.size)
        self.call("potrf", "L" if upper else "U", n, out, n, failed)
        zero = w.const(0, self.element)

        def clear(r: Value) -> None:
            low, high = (0, r) if upper else (w.plus(r, 1), n)
            self.each(low, high, lambda c: w.store(zero, self.spot(out, r, c)))

        self.each(0, n, clear)
        self._refuse(failed, out)

    def _triangular(self, a: Value, y: Value, z: Value, lower: bool, unit: bool) -> None:
        n, m = self.n, self.columns
        copy_bytes(self.w, z, y, n * m * self.size)
        side, diagonal = "U" if lower else "L", "U" if unit else "N"
        if m == 1:
            self.call("trsv", side, "T", diagonal, n, a, n, z, 1)
        else:
            self.call("trsm", "R", side, "N", diagonal, m, n, 1.0, a, n, z, m)

    def _solve(self, a: Value, y: Value, z: Value) -> None:
        # aᵀ = p l u column by column, so zᵀ = yᵀ u⁻¹ l⁻¹ pᵀ: the exchanges come last, in reverse order
        w, n, m = self.w, self.n, self.columns
        failed = self._factor(a)
        copy_bytes(w, z, y, n * m * self.size)
        self.call("trsm", "R", "U", "N", "N", m, n, 1.0, self.lu, n, z, m)
        self.call("trsm", "R", "L", "N", "U", m, n, 1.0, self.lu, n, z, m)

        def exchange(i: Value) -> None:
            k = w.sub(n - 1, i)
            rows = [w.at(z, self.element, w.times(r, m)) for r in (k, self._exchange_of(k))]

            def swap(c: Value) -> None:
                places = [w.at(r, self.element, c) for r in rows]
                first, second = (w.load(p, self.element) for p in places)
                w.store(second, places[0])
                w.store(first, places[1])

            self.each(0, m, swap)

        self.each(0, n, exchange)
        self._refuse(failed, z)

    def _pivots(self, a: Value, out: Value) -> None:
        w, n = self.w, self.n
        self._factor(a)

        def write(k: Value, sign: list[Value]) -> list[Value]:
            w.store(w.load(self.spot(self.lu, k, k), self.element), w.at(out, self.element, k))
            return [w.select(w.compare("eq", self._exchange_of(k), k), sign[0], w.neg(sign[0]))]

        (sign,) = w.loop(0, n, 1, write, [w.const(1.0, self.element)])
        w.store(w.mul(w.load(out, self.element), sign), out)

    def _transposed(self, a: Value, to: Value) -> None:
        """Emit a copy of ``a``, column by column, at ``to``."""
        w, m, n = self.w, self.rows, self.n

        def move(c: Value, r: Value) -> None:
            x = w.load(w.at(a, self.element, w.plus(w.times(r, n), c)), self.element)
            w.store(x, w.at(to, self.element, w.plus(w.times(c, m), r)))

        self.each(0, n, lambda c: self.each(0, m, lambda r: move(c, r)))

    def _eigenvalues(
        self, a: Value, out: Value, matrix: Value, work: Value, count: int, job: str, lower: bool
    ) -> None:
        """Emit the eigenvalues of ``a`` at ``out`` and, with the job "V", the eigenvectors at ``matrix``."""
        n, failed, side = self.n, self.w.scratch("i32", 1), "L" if lower else "U"
        self._transposed(a, matrix)
        integers = 3 + 5 * n if job == "V" else 1
        self.call("syevd", job, side, n, matrix, n, out, work, count, self.exchanged, integers, failed)
        self._refuse(failed, out)

    def _eigh(self, a: Value, out: Value, lower: bool) -> None:
        # the rows of the result: the eigenvalues, and then the eigenvectors
        vectors = self.w.at(out, self.element, self.n)
        self._eigenvalues(a, out, vectors, self.lu, self.work, "V", lower)

    def _eigvalsh(self, a: Value, out: Value, lower: bool) -> None:
        used = self.n * self.n
        work = self.w.at(self.lu, self.element, used)
        self._eigenvalues(a, out, self.lu, work, self.work - used, "N", lower)

    def _qr(self, a: Value, out: Value, columns: int) -> None:
        # the rows of the result: the columns of q, and then those of r, with zeros below
        w, m, n, k = self.w, self.rows, self.n, min(self.rows, self.n)
        failed, r = w.scratch("i32", 1), w.at(out, self.element, columns * m)
        work, count = w.at(self.lu, self.element, k), self.work - k
        self._transposed(a, r)
        self.call("geqrf", m, n, r, m, self.lu, work, count, failed)
        copy_bytes(w, out, r, k * m * self.size)
        self.call("orgqr", m, columns, k, out, m, self.lu, work, count, failed)
        zero = w.const(0, self.element)

        def clear(c: Value) -> None:
            column = w.at(r, self.element, w.times(c, m))
            self.each(w.plus(c, 1), m, lambda i: w.store(zero, w.at(column, self.element, i)))

        self.each(0, k, clear)
