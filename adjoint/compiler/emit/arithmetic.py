"""The arithmetic that primitives and vector functions are written with, in any language.

``Writer`` writes it as LLVM IR.  A device has a writer for its own language, so the same functions write the
text of its kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from adjoint.compiler.emit.values import Value

if TYPE_CHECKING:
    from abc import abstractmethod

    from adjoint.compiler.emit.machine import Machine

__all__ = ["Arithmetic"]


def _arithmetic(name: str) -> Callable[[Arithmetic, Any, Any], Value]:
    def method(self: Arithmetic, a: Any, b: Any) -> Value:
        x, y = self._pair(a, b)
        return self.op(f"f{name}" if x.floating else name, x, y)

    return method


class Arithmetic:
    """Base class of writers: the operations that follow from those of a language.

    To *emit* a value means to add the text that computes it and to return the ``Value``.
    """

    machine: Machine
    float64 = True  # whether the language has float64

    if TYPE_CHECKING:  # methods of each language; abc would slow down isinstance

        @abstractmethod
        def const(self, number: Any, element: str, lanes: int = 1) -> Value:
            """Return a number as a literal; with several ``lanes``, as a vector with it in all lanes."""

        @abstractmethod
        def op(self, name: str, a: Value, b: Value) -> Value:
            """Emit the operation with the LLVM name ``name`` on two values of the same type."""

        @abstractmethod
        def neg(self, a: Value) -> Value:
            """Emit ``-a``."""

        @abstractmethod
        def intrinsic(self, name: str, *args: Value) -> Value:
            """Emit a call of the function with the LLVM name ``name``, such as "floor"."""

        @abstractmethod
        def compare(self, predicate: str, a: Any, b: Any) -> Value:
            """Emit a comparison by an LLVM predicate."""

        @abstractmethod
        def select(self, mask: Value, a: Any, b: Any) -> Value:
            """Emit ``a`` in lanes where the mask is true, else ``b``."""

        @abstractmethod
        def convert(self, a: Value, element: str, signed: bool = True) -> Value:
            """Emit a conversion to another element type."""

        @abstractmethod
        def bitcast(self, a: Value, element: str) -> Value:
            """Emit a reinterpretation of the bits as another type of the same size."""

        @abstractmethod
        def where_any(
            self, mask: Value, make: Callable[[], Sequence[Value]], values: Sequence[Value]
        ) -> list[Value]:
            """Emit ``values``; in lanes where the mask is true, the values that ``make()`` emits."""

        @abstractmethod
        def each_lane(
            self, name: str, function: Callable[[Any, Value], Sequence[Value]], x: Value, kinds: Sequence[str]
        ) -> list[Value]:
            """Emit a call of a function for each lane of ``x``; ``kinds`` are the types of its results."""

        @abstractmethod
        def element(self, numbers: Sequence[int], index: Value) -> Value:
            """Emit the number at an index of a constant list of 64-bit integers."""

    def fixed(self, value: Value) -> Value:
        """Emit a float in a form that compilers which reorder additions cannot combine with what follows."""
        return value

    def like(self, value: Value, number: Any) -> Value:
        """Return a literal with the type of a value."""
        return self.const(number, value.element, value.lanes)

    def _pair(self, a: Any, b: Any) -> tuple[Value, Value]:
        """Return both operands as values; a Python number becomes a literal of the other operand's type."""
        if not isinstance(a, Value):
            a = self.like(b, a)
        if not isinstance(b, Value):
            b = self.like(a, b)
        return a, b

    add, sub, mul = map(_arithmetic, ("add", "sub", "mul"))  # of values or Python numbers

    def div(self, a: Any, b: Any) -> Value:
        """Emit ``a / b`` of floats."""
        return self.op("fdiv", *self._pair(a, b))

    def fma(self, a: Any, b: Any, c: Any) -> Value:
        """Emit ``a * b + c``; rounded once if the processor has an instruction for it."""
        like = next(x for x in (a, b, c) if isinstance(x, Value))
        x, y, z = (v if isinstance(v, Value) else self.like(like, v) for v in (a, b, c))
        if self.machine.fma:
            return self.intrinsic("fma", x, y, z)
        return self.add(self.mul(x, y), z)

    def abs(self, a: Value) -> Value:
        """Emit the absolute value of a float."""
        return self.intrinsic("fabs", a)

    def sqrt(self, a: Value) -> Value:
        """Emit the square root."""
        return self.intrinsic("sqrt", a)

    def bits(self, name: str, a: Any, b: Any) -> Value:
        """Emit an operation on bits: ``and``, ``or``, ``xor``, ``shl``, ``lshr`` or ``ashr``."""
        return self.op(name, *self._pair(a, b))

    def invert(self, mask: Value) -> Value:
        """Emit the negation of a mask."""
        return self.op("xor", mask, self.like(mask, 1))
