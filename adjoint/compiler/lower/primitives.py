"""``Primitives``: the namespace ``xp`` of native forms; its functions add nodes to a graph and return views.

The native form of an op is in its record (``define(..., lower=…)``, see ``core/native.py``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint.compiler.lower.graph import DTYPES, Dataflow, View, is_stored
from adjoint.compiler.lower.lapack import address_of
from adjoint.compiler.lower.steps import Steps, repeat
from adjoint.core.native import NotNative, full_key
from adjoint.core.op import OPS
from adjoint.core.shapes import Shape

__all__ = ["ALWAYS_LAPACK", "Primitives", "by_lapack"]

Body = Callable[[Any, list[View], list[View], list[View]], tuple[Sequence[Any], Sequence[Any]]]

ALWAYS_LAPACK = ("eigh", "eigvalsh", "qr")  # of matrices of any size
LARGEST_MATRIX = 32  # rows: up to this size native code is faster than a call of LAPACK by NumPy

_BOOL = np.dtype(bool)
# The primitives that compute another primitive on bools and on integers.
_ON_BOOLS = {"add": "logical_or", "multiply": "logical_and", "maximum": "logical_or", "minimum":
"logical_and", "bitwise_and": "logical_and", "bitwise_or": "logical_or", "bitwise_xor": "logical_xor",
             "bitwise_invert": "logical_not", "not_equal": "logical_xor", "abs": "copy",
             "floor": "copy", "ceil": "copy", "trunc": "copy",
             "fmax": "logical_or", "fmin": "logical_and"}  # fmt: skip
_ON_INTEGERS = {
    "floor": "copy", "ceil": "copy", "trunc": "copy", "rint": "copy", "fmax": "maximum", "fmin": "minimum",
}  # fmt: skip


@functools.cache
def _resolved(name: str, ufunc: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the dtypes to which the primitive ``name`` casts its operands, then the dtype of its result.

    They are those of ``ufunc``.  ``kinds`` has the dtype of each operand, or its type if it is a Python
    number.  Raise NotNative if a dtype is not supported.
    """
    try:
        found = ufunc.resolve_dtypes((*kinds, None))
    except TypeError:
        raise NotNative(f"{name} does not accept {', '.join(map(str, kinds))}") from None
    if any(d not in DTYPES for d in found):
        raise NotNative(f"{name} of {', '.join(map(str, kinds))} has no native form")
    return tuple(found)


def by_lapack(routine: str, operands: Sequence[View]) -> bool:
    """Return whether LAPACK computes a routine of ``Primitives.matrix``."""
    n, columns = operands[0].shape[-1], operands[-1].shape[-1]
    return routine in ALWAYS_LAPACK or n > LARGEST_MATRIX or columns > 2 * LARGEST_MATRIX


class Primitives:
    """The namespace ``xp`` of lowering rules: its functions add primitives to a graph and return views."""

    def __init__(self, graph: Dataflow) -> None:
        self.graph = graph
        self.half: Any = None  # the half precision of an op whose operands are converted to float32
        graph.xp = self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in OPS:
            raise AttributeError(name)
        found: Callable[..., Any] = functools.partial(self.apply, OPS[name])
        self.__dict__[name] = found
        return found

    def apply(self, op: Any, /, *args: Any, **params: Any) -> Any:
        """Add an op to the graph; return its results.  Raise NotNative if it has no native form."""
        if op.lower is None:
            raise NotNative(f"{op.name} has no native form")
        return op.lower(self, *map(self.operand, args), **params)

    def operand(self, a: Any) -> Any:
        """Return ``a``, an operand of an op; an array is added to the graph as a constant."""
        return self.graph.constant(a) if isinstance(a, (np.ndarray, np.generic)) else a

    def view(self, a: Any, dtype: Any = None) -> View:
        """Return ``a`` as a view of the graph; an array or a number is added to the graph as a constant.

        ``dtype`` is the dtype of a constant that is made from a Python number.
        """
        if isinstance(a, View):
            return a
        if isinstance(a, (np.ndarray, np.generic)):
            return self.graph.constant(a)
        return self.graph.constant(np.asarray(a, dtype))

    def primitive(self, name: str, ufunc: Any, *args: Any) -> View:
        """Add an elementwise primitive, with the dtypes of NumPy's ``ufunc``; return its result."""
        args = tuple(map(self.operand, args))
        kinds = [_kind(a) for a in args]
        if all(isinstance(k, type) for k in kinds):  # all operands are Python numbers
            kinds = [np.result_type(k) if isinstance(k, type) else k for k in kinds]
        *types, dtype = _resolved(name, ufunc, tuple(kinds))
        views = [self.cast(self.view(a, t), t) for a, t in zip(args, types, strict=True)]
        if types[0] == _BOOL and name in _ON_BOOLS:
            name = _ON_BOOLS[name]
        elif types[0].kind in "iu":
            name = _ON_INTEGERS.get(name, name)
            if name == "power":
                raise NotNative("a power of integers has no native form")
        if name == "copy":
            return views[0]
        return self.graph.elementwise(name, dtype, *views)

    def alike(self, x: View, y: Any) -> tuple[View, View]:
        """Return two operands, cast to their common dtype; a Python number is cast to the dtype of ``x``."""
        number = not isinstance(y, View) or y.weak
        y = self.view(y, x.dtype)
        dtype = x.dtype if number else np.result_type(x.dtype, y.dtype)
        return self.cast(x, dtype), self.cast(y, dtype)

    def cast(self, x: View, dtype: Any) -> View:
        """Return a view cast to a dtype."""
        if x.dtype == dtype:
            return x
        if not is_stored(dtype):
            raise NotNative(f"{dtype} has no native form")
        return self.graph.elementwise("astype", dtype, x)

    def number(self, x: View) -> View:
        """Return the first element of ``x``, as a Python float."""
        found = x.strided((), ())
        found.weak = True
        return found

    def strong(self, x: View) -> View:
        """Return ``x`` as an array, if it is a Python float."""
        return x.strided(x.shape, x.strides)

    def flat(self, x: View) -> View:
        """Return a view reshaped to one axis."""
        return self.graph.reshape(x, (x.size,))

    def gather(self, x: View, positions: View) -> View:
        """Return the elements of a flattened view at ``positions``, which must be in range."""
        table = self.graph.copied(self.flat(x))
        return self.graph.node("gather", (positions, table), None, positions.shape, x.dtype)

    def scatter(self, mode: str, base: View, positions: View, values: View, width: int = 1) -> View:
        """Return a copy of the flat array ``base`` with rows added to it (mode "add") or assigned ("set").

        ``positions`` has the position of the first element of each row; ``values`` are the rows, of ``width``
        elements each.
        """
        values = self.graph.copied(self.cast(values, base.dtype))
        if base.scalar() is None:
            base = self.graph.copied(base)
        args = (base, self.graph.copied(positions), values)
        return self.graph.node("scatter", args, (mode, width), base.shape, base.dtype)

    def matrix(self, routine: str, operands: Sequence[View], shape: Shape, *options: Any) -> View:
        """Return the result of a routine of ``emit.matrix`` on stacks of matrices with the same batch axes.

        If an element of the result is not finite, a check makes NumPy run the program: it raises for singular
        matrices.
        """
        dtype = operands[0].dtype
        if dtype.kind != "f":
            raise NotNative("linear algebra on complex matrices has no native form")
        allowed = self.graph.sizes.lapack
        if by_lapack(routine, operands) and (not allowed or address_of("dpotrf") is None):
            if not allowed and routine in ALWAYS_LAPACK:
                raise NotNative(f"{routine} has no native form")
            missing = "SciPy" if allowed else "LAPACK"
            of = routine if routine in ALWAYS_LAPACK else "linear algebra on large matrices"
            raise NotNative(f"{of} has no native form without {missing}")
        if routine == "eigh" and dtype.itemsize < 8:
            raise NotNative(
                "eigenvectors in float32 have no native form: SciPy's LAPACK gives other signs than NumPy's"
            )
        if not all((*shape, *operands[-1].shape[-2:])):
            raise NotNative("an empty matrix has no native form")
        args = tuple([self.graph.copied(self.cast(a, dtype)) for a in operands])
        z = self.graph.node("matrix", args, (routine, *options), shape, dtype)
        finite = self.all(self.flat(self.abs(z)) < math.inf, axis=(0,), keepdims=False)
        self.graph.checks.append(self.logical_not(finite))
        return z

    def order(self, x: View) -> View:
        """Return the stable order of ``x`` along its last axis; NaN comes last."""
        return self.graph.node("order", (self.graph.copied(x),), None, x.shape, np.dtype(np.int64))

    def placed(self, shape: Shape, fill: Any, dtype: Any, pieces: Sequence[tuple[View, Any]]) -> View:
        """Return an array that is filled with ``fill`` and then overwritten by ``pieces``, in order.

        A piece is a pair (view, basic index).
        """
        target = self.graph.target(shape)
        found = []
        for value, key in pieces:
            spot = self.graph.slice(target, full_key(key, len(shape)))
            found.append((self.graph.broadcast(self.cast(value, dtype), spot.shape), spot.where))
        return self.graph.place(shape, dtype, fill, found)

    def full(self, shape: Shape, number: Any, dtype: Any) -> View:
        """Return an array that is filled with a number."""
        return self.graph.broadcast(self.graph.constant(np.asarray(number, dtype)), shape)

    def select(self, c: Any, x: Any, y: Any) -> View:
        """Return ``x`` where the condition ``c`` is true, otherwise ``y``, with the dtypes of NumPy."""
        kinds = [_kind(a) for a in (x, y)]
        strong = [k for k in kinds if not isinstance(k, type)]
        dtype = np.result_type(*strong, *(k() for k in kinds if isinstance(k, type)))
        c = self.view(c)
        c = c if c.dtype == _BOOL else c != 0
        x, y = (self.cast(self.view(a, dtype), dtype) for a in (x, y))
        return self.graph.elementwise("where", dtype, c, x, y)

    def axes(self, x: View, axis: Any) -> list[int]:
        """Return the positions, counted from the first axis, of an axis or several axes of ``x``."""
        return [a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis)] if x.ndim else []

    def reduced(self, op: str, x: View, axis: Any, keepdims: bool, dtype: Any) -> View:
        """Return the reduction ``op`` ("sum", "prod", "max" or "min") of ``x`` over axes."""
        axes = self.axes(x, axis)
        found = self.graph.reduce(op, x, axes, dtype)
        if not keepdims:
            return found
        return self.graph.reshape(found, tuple([1 if k in axes else n for k, n in enumerate(x.shape)]))

    def loop(
        self,
        body: Body,
        carry: Sequence[View],
        rows: Sequence[View],
        rest: Sequence[View] = (),
        backwards: bool = False,
    ) -> list[View]:
        """Add a loop over the first axis of ``rows``; return the last carried values and the stacked results.

        ``carry`` has the initial carried values: each iteration receives them from the iteration before.
        ``body(xp, carry, row, rest)`` returns the new carried values and the results of one iteration.  All
        iterations read the same ``rest``.  If ``backwards`` is true, the loop starts at the last row.
        """
        inner = Primitives(Dataflow(self.graph.sizes))
        shapes = [*(c.shape for c in carry), *(r.shape[1:] for r in rows), *(r.shape for r in rest)]
        operands = [*carry, *rows, *rest]
        given = [
            inner.graph.source(k, shape, a.dtype)
            for k, (shape, a) in enumerate(zip(shapes, operands, strict=True))
        ]
        end = len(carry) + len(rows)
        new, outs = body(inner, given[: len(carry)], given[len(carry) : end], given[end:])
        outputs = [inner.view(o) for o in (*new, *outs)]
        steps = Steps(inner.graph, outputs, rows[0].shape[0], len(carry), len(rows), backwards)
        return repeat(self.graph, steps, operands)


def _kind(a: Any) -> Any:
    """Return the dtype of a view, or the type of a Python number, as NumPy's promotion needs it."""
    if isinstance(a, View):
        return float if a.weak else a.dtype
    return _BOOL if type(a) is bool else type(a)  # NumPy promotes a Python bool like an array of bools
