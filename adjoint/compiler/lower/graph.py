"""The graph of primitives of a native program; equal nodes are shared and constants are folded.

A node is a primitive with a row-major result.  Its operands are views of other nodes: a shape, strides and an
offset, in elements.  Reshaping, transposing, slicing and broadcasting make views, not nodes.  A reshape that
strides cannot express makes a copy.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from adjoint.compiler.lower.target import CPU, Target
from adjoint.core.native import NotNative
from adjoint.core.shapes import Shape

__all__ = ["DTYPES", "FOLDED", "Dataflow", "Primitive", "View", "is_half", "is_stored", "row_major"]

DTYPES = frozenset(map(np.dtype, "? b B h H i I l L q Q f d".split()))  # dtypes that kernels can compute
_MOVES = frozenset(("copy", "astype", "where", "place", "gather"))  # primitives of half precision
# They read memory as it is; others convert operands of half precision to float32 when they read them.
_WHOLE = frozenset("copy place gather scatter matmul conv conv_input conv_weight matrix order".split())
_BOOL = np.dtype(bool)


@functools.cache
def is_half(dtype: Any) -> bool:
    """Return whether a dtype is float16 or bfloat16: kernels move it, and compute with float32."""
    return dtype.itemsize == 2 and dtype.name in ("float16", "bfloat16")


def is_stored(dtype: Any) -> bool:
    """Return whether kernels read and write arrays of a dtype."""
    return dtype in DTYPES or is_half(dtype)


@dataclass(slots=True, eq=False, repr=False)
class Primitive:
    """A primitive, its operands and parameters, and the shape and dtype of its row-major result.

    ``op`` is "source" (an array given at each call), "number" (a Python float given at each call),
    "constant", "reduce", "matmul", "conv", "conv_input", "conv_weight", "place" (an array assembled from
    pieces), "gather", "scatter", "matrix" (linear algebra on small matrices), "order" (argsort), "call"
    (a call of NumPy), "part" (one result of a call), "repeat" (a loop), "out" (one result of a loop) or the
    name of an elementwise primitive.
    """

    op: str
    args: tuple[View, ...]
    params: Any
    shape: Shape
    dtype: Any
    id: int = -1
    origin: str = ""  # the name of the op in the program that it was lowered from
    # the array of a constant; the instruction of a call; the ``Steps`` of a "repeat"; the positions of the
    # pieces of a "place"
    value: Any = None
    size: int = field(init=False)
    width: int = field(init=False)  # bytes of an element in memory

    def __post_init__(self) -> None:
        self.size = math.prod(self.shape)
        self.width = self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The size of the result in bytes."""
        return self.size * self.width

    @property
    def tiled(self) -> bool:
        """Whether this is a "place" node whose pieces cover it without overlaps."""
        spans = self.value if self.op == "place" else None
        return spans is not None and sum(end - start for start, end, _ in spans) == self.size

    def __repr__(self) -> str:
        return f"%{self.id} = {self.op}{list(self.shape)}"


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a row-major array, in elements; 0 along axes of length 1.

    >>> row_major((2, 1, 3))
    (3, 0, 1)
    """
    found, step = [], 1
    for n in reversed(shape):
        found.append(step if n != 1 else 0)
        step *= n
    return tuple(found[::-1])


def _binary(name: str) -> Callable[[View, Any], Any]:
    return lambda self, other: getattr(self.graph.xp, name)(self, other)


def _reflected(name: str) -> Callable[[View, Any], Any]:
    return lambda self, other: getattr(self.graph.xp, name)(other, self)


def _unary(name: str) -> Callable[[View], Any]:
    return lambda self: getattr(self.graph.xp, name)(self)


_ARITHMETIC = ("add", "subtract", "multiply", "divide", "floor_divide", "remainder", "pow", "matmul")
_BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor")


@dataclass(slots=True, eq=False, repr=False)
class View:
    """Some or all elements of a node, counted in elements; ``weak`` marks a Python float of a call."""

    __array_ufunc__: ClassVar[None] = None

    graph: Dataflow
    node: Primitive
    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0
    weak: bool = False

    __add__, __sub__, __mul__, __truediv__, __floordiv__, __mod__, __pow__, __matmul__ = map(
        _binary, _ARITHMETIC
    )
    __radd__, __rsub__, __rmul__, __rtruediv__, __rfloordiv__, __rmod__, __rpow__, __rmatmul__ = map(
        _reflected, _ARITHMETIC
    )
    __and__, __or__, __xor__ = map(_binary, _BITWISE)
    __rand__, __ror__, __rxor__ = map(_reflected, _BITWISE)
    __lt__, __le__, __gt__, __ge__ = map(_binary, ("less", "less_equal", "greater", "greater_equal"))
    __eq__, __ne__ = map(_binary, ("equal", "not_equal"))
    __neg__, __abs__, __invert__ = map(_unary, ("negative", "abs", "bitwise_invert"))

    @property
    def dtype(self) -> Any:
        """The dtype of the node."""
        return self.node.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of all elements in bytes."""
        return self.size * self.node.width

    @property
    def where(self) -> Any:
        """The shape, strides and offset."""
        return self.shape, self.strides, self.offset

    @property
    def key(self) -> tuple[Any, ...]:
        """A tuple that is equal for views of the same elements of the same node."""
        return self.node.id, self.shape, self.strides, self.offset

    def strided(self, shape: Shape, strides: tuple[int, ...], offset: int | None = None) -> View:
        """Return a view of the same node with another shape and strides, and optionally another offset."""
        return View(self.graph, self.node, shape, strides, self.offset if offset is None else offset)

    def is_whole(self) -> bool:
        """Return whether the view contains all elements of the node, in their order in memory."""
        return self.offset == 0 and self.strides == row_major(self.shape) and self.size == self.node.size

    def extent(self) -> tuple[int, int]:
        """Return the lowest and the highest position of the elements in the memory of the node."""
        spans = [s * (n - 1) for s, n in zip(self.strides, self.shape, strict=True)]
        return self.offset + sum(min(0, s) for s in spans), self.offset + sum(max(0, s) for s in spans)

    def scalar(self) -> Any:
        """Return the number if the view is one known constant, repeated in all elements; otherwise None."""
        node = self.node
        if node.op != "constant" or any(self.strides) or node.size == 0:
            return None
        return node.value.reshape(-1)[self.offset]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> View:
        return self.graph.xp.index(self, key=key if isinstance(key, tuple) else (key,))

    def __bool__(self) -> bool:
        raise NotNative("its Python definition has a branch that depends on values")

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"%{self.node.id}{list(self.shape)}"


class Dataflow:
    """A list of nodes; its methods return views.  ``xp`` is the namespace of primitives for rules."""

    def __init__(self, sizes: Target = CPU) -> None:
        self.sizes = sizes
        self.nodes: list[Primitive] = []
        self.known: dict[Any, Primitive] = {}
        self.checks: list[View] = []  # flags that are True after a call if an argument was out of range
        self.xp: Any = None
        self.current = ""  # the name of the op that is being lowered
        self.moves = False  # whether operands of half precision may only be moved

    # Nodes -------------------------------------------------------------------------------------------

    def node(
        self, op: str, args: tuple[View, ...], params: Any, shape: Shape, dtype: Any, kind: str = ""
    ) -> View:
        """Return a view of a node with these properties; use an equal node of the graph if there is one.

        Raise NotNative for arithmetic of half precision, which ``lower.halves`` writes as float32.
        """
        if op not in _MOVES and (is_half(dtype) or (self.moves and any(is_half(a.dtype) for a in args))):
            raise NotNative(f"{op} of {dtype} has no native form")
        if op not in _WHOLE:
            args = tuple(map(_narrow_operand, args))
        key = op, params, kind, shape, dtype, tuple([a.key for a in args])
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.add(Primitive(op, args, params, shape, dtype))
        return self.view(found)

    def add(self, node: Primitive) -> Primitive:
        """Append a node to the list of nodes and set its id; return the node."""
        node.id = len(self.nodes)
        node.origin = self.current
        node.width = max(node.width, self.sizes.least)
        self.nodes.append(node)
        return node

    def view(self, node: Primitive) -> View:
        """Return a view of a whole node."""
        return View(self, node, node.shape, row_major(node.shape))

    def source(self, k: int, shape: Shape, dtype: Any) -> View:
        """Add a node for the array that is argument ``k`` of the program; return a view of the node."""
        return self.view(self.add(Primitive("source", (), k, shape, dtype)))

    def number(self, k: int) -> View:
        """Add a node for the Python float that is argument ``k`` of the program; return a view of it."""
        found = self.view(self.add(Primitive("number", (), k, (), np.dtype(np.float64))))
        found.weak = True
        return found

    def constant(self, value: Any, dtype: Any = None) -> View:
        """Add a node for a known array or number; return a view of the node."""
        array = np.asarray(value, dtype)
        if not is_stored(array.dtype):
            raise NotNative(f"a constant of {array.dtype} has no native form")
        small = array.size <= 64
        key = "constant", array.shape, array.dtype, array.tobytes() if small else id(value)
        node = self.known.get(key)
        if node is None:
            node = self.known[key] = self.add(Primitive("constant", (), None, array.shape, array.dtype))
            node.value = np.ascontiguousarray(array).reshape(array.shape)
            node.params = value  # keeps the object alive, so that no other object gets its id
        return self.view(node)

    def call(self, instruction: Any, args: tuple[Any, ...], specs: Sequence[Any]) -> list[View]:
        """Add an instruction that NumPy runs on ``args``; return one view per result."""
        views = tuple([a for a in args if isinstance(a, View)])
        node = self.add(Primitive("call", views, args, (), _BOOL))
        node.value = instruction
        outs = []
        for k, (shape, dtype, weak) in enumerate(specs):
            out = self.view(self.add(Primitive("part", (self.view(node),), k, shape, dtype)))
            out.weak = weak
            outs.append(out)
        return outs

    # Views -------------------------------------------------------------------------------------------

    def reshape(self, x: View, shape: Shape) -> View:
        """Return ``x`` in another shape; the elements are copied if strides cannot express the shape."""
        if x.shape == shape:
            return x
        strides = reshaped(x.shape, x.strides, shape)
        if strides is None:
            return self.reshape(self.copied(x), shape)
        return View(self, x.node, shape, strides, x.offset)

    def copied(self, x: View) -> View:
        """Return ``x`` if it is all of a node in row-major order, otherwise a view of a row-major copy."""
        if x.is_whole():
            return x
        return self.node("copy", (x,), None, x.shape, x.dtype)

    def permute(self, x: View, axes: Sequence[int]) -> View:
        """Return ``x`` with its axes in the order ``axes``."""
        shape, strides = (tuple([s[a] for a in axes]) for s in (x.shape, x.strides))
        return View(self, x.node, shape, strides, x.offset)

    def broadcast(self, x: View, shape: Shape) -> View:
        """Return ``x`` broadcast to ``shape``."""
        if x.shape == shape:
            return x
        extra = len(shape) - len(x.shape)
        if extra < 0:
            raise NotNative("a broadcast to fewer axes has no native form")
        strides = (0,) * extra + tuple(
            [s if n == m else 0 for s, n, m in zip(x.strides, x.shape, shape[extra:], strict=True)]
        )
        return View(self, x.node, shape, strides, x.offset)

    def slice(self, x: View, key: Sequence[Any]) -> View:
        """Return the part of ``x`` at a basic index, which has one entry per axis, and None for new axes."""
        shape, strides, offset = [], [], x.offset
        axis = 0
        for k in key:
            if k is None:
                shape.append(1)
                strides.append(0)
                continue
            n, s = x.shape[axis], x.strides[axis]
            axis += 1
            if isinstance(k, slice):
                start, stop, step = k.indices(n)
                count = len(range(start, stop, step))
                offset += start * s if count else 0
                shape.append(count)
                strides.append(s * step if count > 1 else 0)
            else:
                offset += (int(k) % n) * s
        found = View(self, x.node, tuple(shape), tuple(strides), offset)
        return _piece(found) if x.node.op == "place" else found

    # Primitives --------------------------------------------------------------------------------------

    def elementwise(self, op: str, dtype: Any, *args: View, params: Any = None) -> View:
        """Add an elementwise primitive; its arguments are broadcast against each other."""
        shape = args[0].shape
        if any(a.shape != shape for a in args):
            shape = np.broadcast_shapes(*[a.shape for a in args])
            args = tuple([self.broadcast(a, shape) for a in args])
        # along an axis on which no argument depends, one element is computed and broadcast
        small = tuple(
            [1 if n > 1 and not any(a.strides[k] for a in args) else n for k, n in enumerate(shape)]
        )
        if small != shape:
            kept = tuple([_narrowed(a, small) for a in args])
            return self.broadcast(self._elementwise(op, dtype, kept, small, params), shape)
        return self._elementwise(op, dtype, args, shape, params)

    def _elementwise(self, op: str, dtype: Any, args: tuple[View, ...], shape: Shape, params: Any) -> View:
        if op == "copy" and all(a.is_whole() and a.shape == a.node.shape for a in args):
            return args[0]
        found = _algebra(op, dtype, args)
        if found is not None:
            return found
        numbers = [a.scalar() for a in args]
        if args and op in FOLDED and all(n is not None for n in numbers):
            with np.errstate(all="ignore"):
                value = np.asarray(FOLDED[op](*numbers)).astype(dtype)
            return self.broadcast(self.constant(value), shape)
        return self.node(op, args, params, shape, dtype)

    def reduce(self, op: str, x: View, axes: Sequence[int], dtype: Any) -> View:
        """Add a reduction that removes the axes ``axes``; adjacent axes are merged first."""
        axes = sorted(axes)
        if not axes or all(x.shape[a] == 1 for a in axes):
            kept = tuple([n for k, n in enumerate(x.shape) if k not in axes])
            return self.reshape(x, kept)
        last = axes[-1]
        first = last
        # long rows are reduced first, so that the kernel can also compute other values of the rows
        rows = op in ("sum", "max", "min") and last == x.ndim - 1 and 32 <= x.shape[last] <= self.sizes.long
        while first - 1 in axes and not rows:
            first -= 1
        merged = x.shape[first : last + 1]
        if reshaped(merged, x.strides[first : last + 1], (math.prod(merged),)) is None:
            first = last  # strides cannot merge these axes
        head, middle, tail = x.shape[:first], math.prod(x.shape[first : last + 1]), x.shape[last + 1 :]
        flat = self.reshape(x, (*head, middle, *tail))
        block = _block(middle, self.sizes.long) if op in ("sum", "max", "min") else 1
        if block > 1:  # reduce blocks first: this is more accurate, and threads can share the blocks
            part = self.reshape(flat, (*head, middle // block, block, *tail))
            part = self._reduce(op, part, first + 1, dtype)
            out = self._reduce(op, part, first, dtype)
        else:
            out = self._reduce(op, flat, first, dtype)
        rest = [a for a in axes if a < first]
        return self.reduce(op, out, rest, dtype) if rest else out

    def _reduce(self, op: str, x: View, axis: int, dtype: Any) -> View:
        """Add a node that reduces ``x`` over one axis; the operand of the node has this axis last."""
        shape = x.shape[:axis] + x.shape[axis + 1 :]
        long = [k for k, n in enumerate(x.shape) if n != 1 or k == axis]
        # drop axes of length 1, so that more nodes share a domain
        arg, axis = self.permute(x, [*(k for k in long if k != axis), axis]), long.index(axis)
        found = self.node("reduce", (arg,), (op, axis), arg.shape[:-1], dtype)
        return self.reshape(found, shape)

    def matmul(self, a: View, b: View) -> View:
        """Add a matrix product over the last two axes; the other axes are broadcast."""
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        m, n = a.shape[-2], b.shape[-1]
        a = self.broadcast(a, (*batch, *a.shape[-2:]))
        b = self.broadcast(b, (*batch, *b.shape[-2:]))
        return self.node("matmul", (a, b), None, (*batch, m, n), a.dtype)

    def place(self, shape: Shape, dtype: Any, fill: Any, pieces: Sequence[tuple[View, Any]]) -> View:
        """Add an array that is filled with ``fill``, then overwritten by pieces in order.

        ``pieces`` has pairs of a view and its position in the array: a shape, strides and an offset.  If
        ``fill`` is None, the pieces must cover the array.
        """
        kept = [(v, w) for v, w in pieces if v.size]
        where = tuple([w for _, w in kept])
        views = tuple([v for v, _ in kept])
        spans = _spans(where) if where else None
        if spans is not None:
            covered = math.prod(where[0][0]), sum(end - start for start, end, _ in spans)
            fill = None if math.prod(shape) in covered else fill
        out = self.node("place", views, (fill, where), shape, dtype, repr(fill))  # 0.0 equals -0.0
        out.node.value = spans if fill is None else None
        return out

    def target(self, shape: Shape) -> View:
        """Return a view of a placeholder array; slices of it give the positions of pieces for ``place``."""
        return View(self, Primitive("target", (), None, shape, _BOOL), shape, row_major(shape))


def _spans(where: Sequence[Any]) -> list[tuple[int, int, int]] | None:
    """Return (start, end, index) of each piece of an array, in memory order.

    ``where`` has the shape, strides and offset of each piece.  If the first piece covers the whole array and
    the other pieces overwrite parts of it, it is left out.  The result is None if two pieces overlap or one
    is not contiguous.
    """
    spans = [
        (offset, offset + math.prod(shape), k)
        for k, (shape, strides, offset) in enumerate(where)
        if strides == row_major(shape)
    ]
    if len(spans) < len(where):
        return None
    below = spans[0][:2] == (0, max(s[1] for s in spans)) and len(spans) > 1
    spans = sorted(spans[1:] if below else spans)
    return None if any(a[1] > b[0] for a, b in pairwise(spans)) else spans


def _piece(x: View) -> View:
    """Return a view of a "place" node as a view of the piece that contains it; ``x`` if none does."""
    spans = x.node.value
    if spans is None or not x.size:
        return x
    first, last = x.extent()
    at = bisect_right(spans, first, key=lambda s: s[0]) - 1
    if at >= 0 and first < spans[at][1]:
        start, end, k = spans[at]
    elif at + 1 < len(spans) and last >= spans[at + 1][0]:
        return x
    elif len(spans) < len(x.node.args):  # the first piece, which covers the whole array
        start, end, k = 0, x.node.size, 0
    else:
        return x
    arg = x.node.args[k]
    if last >= end or arg.strides != row_major(arg.shape):
        return x
    found = View(x.graph, arg.node, x.shape, x.strides, x.offset - start + arg.offset)
    return _piece(found) if arg.node.op == "place" else found


def _narrowed(x: View, shape: Shape) -> View:
    """Return ``x`` reduced to its first element along each axis that has length 1 in ``shape``."""
    strides = tuple([0 if n == 1 else s for n, s in zip(shape, x.strides, strict=True)])
    return View(x.graph, x.node, shape, strides, x.offset)


def _block(count: int, long: int) -> int:
    """Return the length of blocks that divide ``count`` (more accurate, shared by threads); 1 for none."""
    for step in (64, 16, 1) if count >= long else ():  # if possible, whole vectors
        found = [n for n in range(step, 4097, step) if count % n == 0 and n > 255]
        if found:
            return found[-1]
    return 1


def reshaped(shape: Shape, strides: tuple[int, ...], wanted: Shape) -> tuple[int, ...] | None:
    """Return the strides of a view in the shape ``wanted``; None if the elements must be copied.

    >>> reshaped((2, 3, 4), (12, 4, 1), (6, 4)), reshaped((2, 3), (1, 2), (6,))
    ((4, 1), None)
    """
    if 0 in shape:
        return row_major(wanted)
    runs: list[tuple[int, int]] = []  # axes that are merged where the strides allow it: length, stride
    for n, step in zip(shape, strides, strict=True):
        if runs and runs[-1][1] == n * step:
            runs[-1] = runs[-1][0] * n, step
        elif n != 1:
            runs.append((n, step))
    found = []
    for n in reversed(wanted):
        if n == 1:
            found.append(0)
            continue
        length, step = runs.pop()
        if length % n:
            return None
        found.append(step)
        if length > n:
            runs.append((length // n, step * n))
    return tuple(found[::-1])


def _algebra(op: str, dtype: Any, args: tuple[View, ...]) -> View | None:
    """Return an operand that equals the result of ``op`` bit for bit, such as x for x · 1; else None."""
    if op == "astype":
        return _unwidened(args[0], dtype) if is_half(dtype) else args[0] if args[0].dtype == dtype else None
    if op == "where":
        same = args[1].key == args[2].key
        flag = args[0].scalar()
        if same or flag is not None:
            return args[1] if same or flag else args[2]
        return None
    if op in ("multiply", "divide"):
        if args[1].scalar() == 1:
            return args[0]
        return args[1] if op == "multiply" and args[0].scalar() == 1 else None
    if op == "subtract":
        zero = args[1].scalar()
        return args[0] if zero is not None and zero == 0 and not np.signbit(zero) else None
    if op == "add" and dtype.kind in "iu":
        for a, b in (args, args[::-1]):
            if a.scalar() == 0:
                return b
    if op == "negative" and args[0].node.op == "negative" and args[0].is_whole():
        inner = args[0].node.args[0]
        return inner if inner.shape == args[0].shape and inner.dtype == dtype else None
    return None


def _unwidened(x: View, dtype: Any) -> View | None:
    """Return ``x`` in half precision without a conversion: it has this dtype, or had it before; else None."""
    if x.dtype == dtype:
        return x
    if x.node.op != "astype" or not x.is_whole():
        return None
    inner = x.node.args[0]
    return inner if inner.dtype == dtype and inner.shape == x.shape else None


def _narrow_operand(x: View) -> View:
    """Return the view of half precision of which ``x`` is a conversion to float32; ``x`` if there is none."""
    if x.node.op != "astype" or not is_half(x.node.args[0].dtype) or x.dtype != np.float32:
        return x
    inner = x.node.args[0]
    if inner.is_whole():
        return View(x.graph, inner.node, x.shape, x.strides, x.offset)
    return inner if x.is_whole() and x.shape == inner.shape else x


# Elementwise primitives of constants, by the functions of NumPy.
FOLDED: dict[str, Callable[..., Any]] = {
    "abs": np.absolute, "add": np.add, "astype": np.asarray, "copy": np.asarray, "divide": np.divide,
    "equal": np.equal, "exp": np.exp, "greater": np.greater, "less": np.less, "log": np.log,
    "maximum": np.maximum, "minimum": np.minimum, "multiply": np.multiply, "negative": np.negative,
    "not_equal": np.not_equal, "pow": np.power, "sqrt": np.sqrt, "subtract": np.subtract, "tanh": np.tanh,
}  # fmt: skip
