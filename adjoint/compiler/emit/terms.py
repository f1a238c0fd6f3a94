"""Values and addresses in Python's notation: an operator emits an instruction and returns its result.

The vector functions are written with terms.  A comparison gives a mask; it is ordered (false for NaN) on
floats and signed on integers.  A Python number becomes a literal with the type of the other operand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Union

from adjoint.compiler.emit.arithmetic import Arithmetic
from adjoint.compiler.emit.values import Index, Value
from adjoint.compiler.emit.writer import Writer

__all__ = ["Operand", "Pointer", "Term", "fma", "where"]


def _binary(name: str, *given: str) -> Callable[[Term, Operand], Term]:
    """Return the method of an operator that calls the method ``name`` of ``Arithmetic``."""
    call = getattr(Arithmetic, name)
    return lambda self, other: Term(self.w, call(self.w, *given, self.value, _plain(other)))


def _reflected(name: str) -> Callable[[Term, float], Term]:
    call = getattr(Arithmetic, name)
    return lambda self, other: Term(self.w, call(self.w, other, self.value))


def _ordered(name: str) -> Callable[[Term, Operand], Term]:
    return lambda self, other: self.compare(("o" if self.value.floating else "s") + name, other)


class Term:
    """A value, and the writer to which its operators add instructions."""

    __slots__ = ("value", "w")

    def __init__(self, w: Any, value: Value) -> None:
        self.w = w  # an ``Arithmetic``
        self.value = value

    __add__, __sub__, __mul__, __truediv__ = map(_binary, ("add", "sub", "mul", "div"))
    __radd__, __rsub__, __rmul__, __rtruediv__ = map(_reflected, ("add", "sub", "mul", "div"))
    __and__, __or__, __xor__ = (_binary("bits", name) for name in ("and", "or", "xor"))
    __lshift__, __rshift__ = (_binary("bits", name) for name in ("shl", "lshr"))
    __lt__, __le__, __gt__, __ge__ = map(_ordered, ("lt", "le", "gt", "ge"))

    def __neg__(self) -> Term:
        return Term(self.w, self.w.neg(self.value))

    def __invert__(self) -> Term:
        return Term(self.w, self.w.invert(self.value))

    def __abs__(self) -> Term:
        return Term(self.w, self.w.abs(self.value))

    @property
    def element(self) -> str:
        """The element type, such as "double"."""
        return self.value.element

    def compare(self, predicate: str, other: Operand) -> Term:
        """Emit a comparison by an LLVM predicate, as ``Arithmetic.compare``."""
        return Term(self.w, self.w.compare(predicate, self.value, _plain(other)))

    def equals(self, other: Operand) -> Term:
        """Emit the comparison ``==``; NaN is not equal to itself."""
        return self.compare("oeq" if self.value.floating else "eq", other)

    def like(self, number: float) -> Term:
        """Return a literal with the type of this term."""
        return Term(self.w, self.w.like(self.value, number))

    def bitcast(self, element: str) -> Term:
        """Emit a reinterpretation of the bits as another type of the same size."""
        return Term(self.w, self.w.bitcast(self.value, element))

    def signed(self, size: Term) -> Term:
        """Emit ``size`` with the sign of this term."""
        return Term(self.w, self.w.intrinsic("copysign", size.value, self.value))

    def fixed(self) -> Term:
        """Emit the float so that its sum with others is not reordered; see ``Arithmetic.fixed``."""
        return Term(self.w, self.w.fixed(self.value))

    def sqrt(self) -> Term:
        """Emit the square root."""
        return Term(self.w, self.w.sqrt(self.value))


Operand = Union[Term, float]  # noqa: UP007  evaluated at run time


def _plain(x: Any) -> Any:
    return x.value if type(x) is Term else x


def where(mask: Term, a: Operand, b: Operand) -> Term:
    """Emit ``a`` in lanes where the mask is true, else ``b``; at least one of them is a term."""
    return Term(mask.w, mask.w.select(mask.value, _plain(a), _plain(b)))


def fma(a: Term, b: Operand, c: Operand) -> Term:
    """Emit ``a * b + c``; rounded once if the processor has an instruction for it."""
    return Term(a.w, a.w.fma(a.value, _plain(b), _plain(c)))


class Pointer:
    """The address of elements of one type; ``p[i]`` is the address ``i`` elements later."""

    __slots__ = ("element", "value", "w")

    def __init__(self, w: Writer, value: Value, element: str) -> None:
        self.w = w
        self.value = value
        self.element = element

    @property
    def typed(self) -> str:
        """The type and the text of the address as LLVM writes them."""
        return self.value.typed

    def __getitem__(self, offset: Index) -> Pointer:
        return Pointer(self.w, self.w.at(self.value, self.element, offset), self.element)

    def at(self, *indices: tuple[Index, Index]) -> Pointer:
        """Emit the address at a sum of products: pairs of an index and a stride."""
        offset: Index = 0
        for index, stride in indices:
            offset = self.w.plus(offset, self.w.times(index, stride))
        return self[offset]

    def load(self, lanes: int = 1, mask: Value | None = None) -> Value:
        """Emit a load of ``lanes`` elements, as ``Writer.load``."""
        return self.w.load(self.value, self.element, lanes, mask)

    def store(self, value: Value, mask: Value | None = None) -> None:
        """Emit a store, as ``Writer.store``."""
        self.w.store(value, self.value, mask)
