"""Elements of products at constant places, computed without storing the products.

Products with the vectors of all colours are made by elementwise ops and moves of elements.  These are applied
to the entries alone; their operands that have no axis of colours are gathered.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from adjoint.compiler.program.program import Host, Instruction, Program
from adjoint.compiler.program.symbols import Symbolic
from adjoint.core.namespace import raw
from adjoint.core.op import OPS
from adjoint.core.tensor import Tensor, wrap
from adjoint.sparsity.pattern import numbered
from adjoint.typing import Array

__all__ = ["entries", "needed_for"]

_MOST = 24  # operands that are gathered: with more of them, reading stored products takes less time
# ops whose result is zero where any of the operands is, and where all are
_ZEROS = {"multiply": "any", "negative": "all", "add": "all", "subtract": "all"}
_DEEP = 50  # ops between a product and what is gathered


def entries(trace: Any, products: Tensor, places: Array) -> Tensor:
    """Return ``products[places]`` for a tensor with one axis, in the ``trace.folding`` of its constants."""
    value = trace.value(products)
    reader = _Reader(trace, places.dtype)
    made = reader.visit(value, places)
    return wrap(reader.emitted(made) if reader.is_worth() else reader.gathered(value, places))


def needed_for(body: Sequence[Instruction], values: Iterable[Any]) -> list[Instruction]:
    """Return the instructions that compute values, in order."""
    return Program((), body, values).live()


class _Reader:
    """Finds how to compute elements of values: nested tuples, whose first item says what to do.

    Equal ones are one object, so that their elements are computed once.
    """

    def __init__(self, trace: Any, index: Any) -> None:
        self.trace, self.index = trace, index
        self.makers = {i.outs[0].id: i for i in trace.program.body if len(i.outs) == 1}
        self.known: dict[Any, Any] = {}
        self.places: dict[bytes, Array] = {}  # equal ones are one array
        self.values: dict[int, Any] = {}  # of the tuples, by id
        self.zeros: dict[int, Any] = {}  # which of their elements are zero, by id
        self.choices: dict[bytes, Any] = {}  # booleans, by their elements
        self.gathers = self.work = self.depth = 0
        self.stored: dict[int, int] = {}  # the sizes of values that need not be stored, by id

    def is_worth(self) -> bool:
        """Return whether computing the elements takes less time than storing the values."""
        return self.gathers <= _MOST and 0 < self.work <= 2 * sum(self.stored.values())

    def visit(self, value: Any, places: Array) -> Any:
        """Return how to compute the elements of ``value`` at ``places`` of its flattened form."""
        places = self.places.setdefault(places.tobytes(), places)
        key = value.id, id(places)
        if key not in self.known:
            self.depth += 1
            self.known[key] = self._made(value, places)
            self.depth -= 1
        return self.known[key]

    def _made(self, value: Any, places: Array) -> Any:
        i = None if value.id in self.trace.folded else self.makers.get(value.id)
        end = i is None or isinstance(i.op, Host) or self.depth > _DEEP or self.gathers > _MOST
        found = None if end else self._computed(i, value, places)
        if found is None:
            self.gathers += 1
            return "gather", value, places
        return found

    def _computed(self, i: Any, value: Any, places: Array) -> Any:
        """Return the elements of the result of an op; None if they are to be gathered."""
        if any(a.size == 0 for a in i.args if isinstance(a, Symbolic)):
            return None
        if i.op.sparsity == "move" and sum(isinstance(a, Symbolic) for a in i.args) == 1:
            return self._moved(i, places)
        if 2 * value.size <= places.size:
            return None
        if i.op.name == "concat":
            return self._joined(i, places)
        if i.op.name == "unindex":
            return self._placed(i, places)
        if i.op.kind != "elementwise":
            return None
        self.work += places.size
        self.stored[value.id] = value.size
        operands = [self._operand(a, value.shape, places) for a in i.args]
        single = [a[0] == "whole" or (a[0] == "gather" and a[1].size == 1) for a in operands]
        if not all(single):  # otherwise the result would have one element, too
            operands = [("whole", a[1]) if one else a for a, one in zip(operands, single, strict=True)]
        return "op", i, operands

    def _operand(self, a: Any, shape: tuple[int, ...], places: Array) -> Any:
        """Return an operand of an elementwise op whose result has this shape."""
        if math.prod(np.shape(a)) == 1:
            return "whole", a
        if tuple(a.shape) != tuple(shape):
            places = np.broadcast_to(numbered(a.shape, 0), shape).reshape(-1)[places].astype(self.index)
        return self.visit(a, places) if isinstance(a, Symbolic) else ("whole", np.reshape(a, -1)[places])

    def _moved(self, i: Any, places: Array) -> Any:
        """Return the elements of a view, or of a copy of elements, of one operand."""
        k = next(n for n, a in enumerate(i.args) if isinstance(a, Symbolic))
        if not i.op.smooth(k) or i.params.get("value"):
            return None
        given = [numbered(a.shape) if n == k else a for n, a in enumerate(i.args)]
        numbers = np.asarray(i.op.forward(*given, **i.params)).reshape(-1)[places]
        return self._some(i.args[k], numbers)

    def _placed(self, i: Any, places: Array) -> Any:
        """Return the elements of zeros to which others are added; None if these are more than are stored."""
        (source,) = i.args
        out = i.outs[0].shape
        numbers = np.zeros(math.prod(out), np.int64)
        where = raw.index(numbered(out, 0), key=i.params["key"]).reshape(-1)
        numbers[where] = np.arange(1, len(where) + 1)
        if np.count_nonzero(numbers) == len(where):
            return self._some(source, numbers[places])
        order = np.argsort(where, kind="stable")
        first = np.searchsorted(where[order], np.arange(len(numbers) + 1))
        counts = np.diff(first)[places]
        ends = np.concatenate([[0], np.cumsum(counts)])
        if ends[-1] > len(where):
            return None
        terms = order[np.repeat(first[places] - ends[:-1], counts) + np.arange(ends[-1])].astype(self.index)
        entry = np.repeat(np.arange(len(places)), counts).astype(self.index)
        before = self.gathers, self.work
        zeros = self._zeros(self.visit(source, terms))
        if zeros is not None and zeros.any() and not zeros.all():
            self.gathers, self.work = before
            terms, entry = terms[~zeros], entry[~zeros]
        return "sums", entry, len(places), self.visit(source, terms)

    def _zeros(self, made: Any) -> Any:
        """Return which elements are zero for any arguments, as far as it is known; None for none."""
        if id(made) not in self.zeros:
            self.zeros[id(made)] = self._found_zeros(made)
        return self.zeros[id(made)]

    def _found_zeros(self, made: Any) -> Any:
        kind, first, *rest = made
        if kind == "gather":
            array = self.trace.folded.get(first.id)
            return None if array is None else array.reshape(-1)[rest[0]] == 0
        if kind == "masked":
            inside = self._zeros(rest[0])
            return ~first if inside is None else ~first | inside
        if kind != "op" or first.op.name not in _ZEROS:
            return None
        parts = [self._zeros(a) for a in rest[0]]
        if _ZEROS[first.op.name] == "any":
            known = [z for z in parts if z is not None]
            return functools.reduce(np.logical_or, known) if known else None
        return None if any(z is None for z in parts) else functools.reduce(np.logical_and, parts)

    def _joined(self, i: Any, places: Array) -> Any:
        """Return the elements of a concatenation; None if they are not in the order of the operands."""
        if not all(isinstance(a, Symbolic) for a in i.args):
            return None
        parts = [np.full(a.shape, k) for k, a in enumerate(i.args)]
        owner = i.op.forward(*parts, **i.params).reshape(-1)[places]
        if (np.diff(owner) < 0).any():
            return None
        local = i.op.forward(*[numbered(a.shape, 0) for a in i.args], **i.params).reshape(-1)[places]
        ends = np.searchsorted(owner, np.arange(len(i.args) + 1))
        pieces = [
            self.visit(a, local[m:n].astype(self.index))
            for a, m, n in zip(i.args, ends[:-1], ends[1:], strict=True)
            if n > m
        ]
        return pieces[0] if len(pieces) == 1 else ("joined", pieces)

    def _some(self, value: Any, numbers: Array) -> Any:
        """Return the elements with these numbers, from 1; for the number 0 a zero."""
        found = self.visit(value, np.maximum(numbers - 1, 0).astype(self.index))
        return found if numbers.all() else ("masked", numbers > 0, found)

    def emitted(self, made: Any) -> Any:
        """Add the instructions of ``made`` to the trace; return their value."""
        if id(made) not in self.values:
            self.values[id(made)] = self._emit(*made)
        return self.values[id(made)]

    def _emit(self, kind: str, first: Any, *rest: Any) -> Any:
        emit = self.trace.emit
        if kind == "whole":
            array = isinstance(first, Symbolic) and first.size == 1 and not first.weak
            return emit(OPS["reshape"], (first,), {"shape": (1,)}) if array else first
        if kind == "gather":
            return self.gathered(first, rest[0])
        if kind == "masked":
            value = self.emitted(rest[0])
            zero = np.zeros((), value.dtype)
            if value.id in self.trace.folded:  # a constant
                return emit(OPS["where"], (first, value, zero), {})
            return self._choice(first, value, zero)
        if kind == "sums":
            count, terms = rest[0], self.emitted(rest[1])
            return emit(OPS["unindex"], (terms,), {"key": (first,), "shape": (count,)})
        if kind == "joined":
            return emit(OPS["concat"], tuple([self.emitted(a) for a in first]), {"axis": 0})
        given = tuple([self.emitted(a) for a in rest[0]])
        with np.errstate(invalid="ignore" if first.quiet else None):  # the trace notes it
            return emit(first.op, given, first.params)

    def gathered(self, value: Any, places: Array) -> Any:
        """Return the elements of a value at places of its flattened form."""
        emit = self.trace.emit
        flat = value if value.ndim == 1 else emit(OPS["reshape"], (value,), {"shape": (value.size,)})
        found = emit(OPS["index"], (flat,), {"key": (places, ...)})
        return self._narrow(found)

    def _narrow(self, value: Any) -> Any:
        """Return a constant with two different elements as a choice by booleans, which are read faster."""
        array = self.trace.folded.get(value.id)
        if array is None or array.dtype.kind != "f" or array.size < 2:
            return value
        bits = array.view(f"u{array.itemsize}")
        first = bits == bits[0]
        others = bits[~first]
        if (others != others[:1]).any():
            return value
        one, other = (np.asarray(array[np.argmax(chosen)]) for chosen in (first, ~first))
        return self._choice(first, one, other)

    def _choice(self, mask: Array, one: Any, other: Any) -> Any:
        """Return ``one`` where the mask is true, else ``other``; equal or opposite masks are one array."""
        if not mask[0]:
            mask, one, other = ~mask, other, one
        key = mask.tobytes()
        if key not in self.choices:
            self.choices[key] = self.trace.constant(mask)
        return self.trace.emit(OPS["where"], (self.choices[key], one, other), {})
