"""Kernels of linear algebra on large matrices: they call BLAS and LAPACK.

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
from adjoint.compiler.schedule.kernel import Address, Kernel

__all__ = ["lapack_kernel"]

# The functions that each routine calls, without the letter of the type.
_CALLED = {
    "cholesky": ("potrf",), "triangular": ("trsm", "trsv"), "solve": ("getrf", "trsm"), "pivots": ("getrf",),
}  # fmt: skip


def lapack_kernel(machine: Machine, node: Primitive) -> tuple[Kernel, int]:
    """Return the kernel of a "matrix" node, as ``matrix_kernel``, and its bytes of workspace."""
    routine, *options = node.params
    made = _Calls(machine, node)
    w, batch = made.w, math.prod(node.shape[: -1 if routine == "pivots" else -2])
    write: Callable[..., None] = getattr(made, f"_{routine}")
    given = [w.slot(k) for k in range(len(node.args) + 1)]
    sizes = [math.prod(a.shape[-2:]) for a in node.args] + [node.size // batch]

    def one(i: Value, _: list[Value]) -> None:
        write(*[w.at(p, made.element, w.times(i, s)) for p, s in zip(given, sizes, strict=True)], *options)

    w.loop(w.low, w.high, 1, one)
    slots = [Address(x, 0) for x in (*(a.node for a in node.args), node)]
    slots += [Address(made.addresses, 0), Address(None, 0)]
    # BLAS has threads of its own
    return Kernel(w.kernel(), slots, batch, batch, 0.5 * batch * made.n**2 * made.width), made.space


class _Calls:
    """Generates the kernel of one node."""

    def __init__(self, machine: Machine, node: Primitive) -> None:
        self.w = Writer(machine)
        self.element, self.size = element_of(node.dtype), node.dtype.itemsize
        self.n = node.args[0].shape[-1]
        self.columns = node.shape[-1]
        self.width = self.n + (self.columns if len(node.args) > 1 else 0)
        self.letter = "d" if self.size == 8 else "s"
        self.names = _CALLED[node.params[0]]
        self.addresses = Primitive("constant", (), None, (len(self.names),), np.dtype(np.int64))
        self.addresses.value = np.array([address_of(self.letter + name) for name in self.names], np.int64)
        self.table = self.w.slot(len(node.args) + 1)
        factors = node.params[0] in ("solve", "pivots")
        self.space = -(-self.n * self.n * self.size // 64) * 64 + 4 * self.n + 64 if factors else 0
        own = self.w.slot(len(node.args) + 2)
        self.lu, self.exchanged = own, self.w.at(own, "i8", -(-self.n * self.n * self.size // 64) * 64)

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
