"""The graph of primitives of a native program; equal nodes are shared and constants are folded.

A node is a primitive with a row-major result.  Its operands are views of other nodes: a shape, strides and an
offset, in elements.  Reshaping, transposing, slicing and broadcasting make views, not nodes.  A reshape that
strides cannot express makes a copy.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint.core.shapes import Shape

__all__ = ["DTYPES", "Graph", "Node", "NotNative", "View", "row_major"]

DTYPES = frozenset(map(np.dtype, "? b B h H i I l L q Q f d".split()))  # dtypes that kernels can compute
_BOOL = np.dtype(bool)


class NotNative(Exception):  # noqa: N818  not an error: NumPy runs the op
    """Raised when no kernel can compute an op, or an op with these arguments; NumPy then runs the op."""


class Node:
    """A primitive, its operands and parameters, and the shape and dtype of its row-major result.

    ``op`` is "source" (an array given at each call), "number" (a Python float given at each call),
    "constant", "reduce", "matmul", "conv", "conv_input", "conv_weight", "place" (an array assembled from
    pieces), "gather", "scatter", "call" (a call of NumPy), "part" (one result of a call), "repeat" (a loop),
    "out" (one result of a loop) or the name of an elementwise primitive.
    """

    __slots__ = ("args", "dtype", "id", "op", "origin", "params", "shape", "size", "value")

    def __init__(self, op: str, args: tuple[View, ...], params: Any, shape: Shape, dtype: Any) -> None:
        self.op = op
        self.args = args
        self.params = params
        self.shape = shape
        self.dtype = dtype
        self.size = math.prod(shape)
        self.id = -1
        self.origin = ""  # the name of the op in the program that it was lowered from
        # the array of a constant; the instruction of a call; the ``Steps`` of a "repeat"; the positions of
        # the pieces of a "place"
        self.value: Any = None

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


class View:
    """Some or all elements of a node: a shape, strides and an offset, counted in elements.

    ``weak`` marks a Python float that is given at each call.
    """

    __slots__ = ("graph", "node", "offset", "shape", "strides", "weak")
    __array_ufunc__ = None

    def __init__(
        self, graph: Graph, node: Node, shape: Shape, strides: tuple[int, ...], offset: int = 0
    ) -> None:
        self.graph = graph
        self.node = node
        self.shape = shape
        self.strides = strides
        self.offset = offset
        self.weak = False

    if TYPE_CHECKING:  # the methods are installed below

        def __add__(self, other: Any) -> View: ...

        def __radd__(self, other: Any) -> View: ...

        def __sub__(self, other: Any) -> View: ...

        def __rsub__(self, other: Any) -> View: ...

        def __mul__(self, other: Any) -> View: ...

        def __rmul__(self, other: Any) -> View: ...

        def __truediv__(self, other: Any) -> View: ...

        def __rtruediv__(self, other: Any) -> View: ...

        def __pow__(self, other: Any) -> View: ...

        def __rpow__(self, other: Any) -> View: ...

        def __and__(self, other: Any) -> View: ...

        def __or__(self, other: Any) -> View: ...

        def __xor__(self, other: Any) -> View: ...

        def __lt__(self, other: Any) -> View: ...

        def __le__(self, other: Any) -> View: ...

        def __gt__(self, other: Any) -> View: ...

        def __ge__(self, other: Any) -> View: ...

        def __eq__(self, other: object) -> Any: ...
        def __ne__(self, other: object) -> Any: ...
        def __neg__(self) -> View: ...
        def __abs__(self) -> View: ...

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
    def where(self) -> Any:
        """The shape, strides and offset."""
        return self.shape, self.strides, self.offset

    @property
    def key(self) -> tuple[Any, ...]:
        """A tuple that is equal for views of the same elements of the same node."""
        return self.node.id, self.shape, self.strides, self.offset

    def is_whole(self) -> bool:
        """Return whether the view contains all elements of the node, in their order in memory."""
        return self.offset == 0 and self.strides == row_major(self.shape) and self.size == self.node.size

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


def _binary(name: str, reflected: bool = False) -> Callable[[View, Any], Any]:
    def call(self: View, other: Any) -> Any:
        f = getattr(self.graph.xp, name)
        return f(other, self) if reflected else f(self, other)

    return call


for _method, _name in {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "pow", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "matmul": "matmul",
}.items():  # fmt: skip
    setattr(View, f"__{_method}__", _binary(_name))
    setattr(View, f"__r{_method}__", _binary(_name, True))
for _method, _name in {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal",
}.items():  # fmt: skip
    setattr(View, f"__{_method}__", _binary(_name))
for _method, _name in {"neg": "negative", "abs": "abs", "invert": "bitwise_invert"}.items():
    setattr(View, f"__{_method}__", lambda self, _name=_name: getattr(self.graph.xp, _name)(self))


class Graph:
    """A list of nodes; its methods add nodes and return views of them.

    ``xp`` is the namespace of primitives that rules are written in (see ``decompose``).
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.known: dict[Any, Node] = {}
        self.checks: list[View] = []  # flags that are True after a call if an argument was out of range
        self.xp: Any = None
        self.current = ""  # the name of the op that is being lowered

    # Nodes -------------------------------------------------------------------------------------------

    def node(
        self, op: str, args: tuple[View, ...], params: Any, shape: Shape, dtype: Any, kind: str = ""
    ) -> View:
        """Return a view of a node with these properties; use an equal node of the graph if there is one."""
        key = op, params, kind, shape, dtype, tuple([a.key for a in args])
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.add(Node(op, args, params, shape, dtype))
        return self.view(found)

    def add(self, node: Node) -> Node:
        """Append a node to the list of nodes and set its id; return the node."""
        node.id = len(self.nodes)
        node.origin = self.current
        self.nodes.append(node)
        return node

    def view(self, node: Node) -> View:
        """Return a view of a whole node."""
        return View(self, node, node.shape, row_major(node.shape))

    def source(self, k: int, shape: Shape, dtype: Any) -> View:
        """Add a node for the array that is argument ``k`` of the program; return a view of the node."""
        return self.view(self.add(Node("source", (), k, shape, dtype)))

    def number(self, k: int) -> View:
        """Add a node for the Python float that is argument ``k`` of the program; return a view of it."""
        found = self.view(self.add(Node("number", (), k, (), np.dtype(np.float64))))
        found.weak = True
        return found

    def constant(self, value: Any, dtype: Any = None) -> View:
        """Add a node for a known array or number; return a view of the node."""
        array = np.asarray(value, dtype)
        if array.dtype not in DTYPES:
            raise NotNative(f"a constant of {array.dtype} has no native form")
        small = array.size <= 64
        key = "constant", array.shape, array.dtype, array.tobytes() if small else id(value)
        node = self.known.get(key)
        if node is None:
            node = self.known[key] = self.add(Node("constant", (), None, array.shape, array.dtype))
            node.value = np.ascontiguousarray(array).reshape(array.shape)
            node.params = value  # keeps the object alive, so that no other object gets its id
        return self.view(node)

    def call(self, instruction: Any, args: tuple[Any, ...], specs: Sequence[Any]) -> list[View]:
        """Add an instruction that NumPy runs on ``args``; return one view per result.

        ``specs`` has, for each result, the shape, the dtype and whether it is a Python float.
        """
        views = tuple([a for a in args if isinstance(a, View)])
        node = self.add(Node("call", views, args, (), _BOOL))
        node.value = instruction
        outs = []
        for k, (shape, dtype, weak) in enumerate(specs):
            out = self.view(self.add(Node("part", (self.view(node),), k, shape, dtype)))
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
        if args and op in _FOLDED and all(n is not None for n in numbers):
            with np.errstate(all="ignore"):
                value = _FOLDED[op](*numbers, dtype=dtype)
            return self.broadcast(self.constant(np.asarray(value, dtype)), shape)
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
        rows = op in ("sum", "max", "min") and last == x.ndim - 1 and 32 <= x.shape[last] <= _LONG
        while first - 1 in axes and not rows:
            first -= 1
        if (
            reshaped(
                x.shape[first : last + 1],
                x.strides[first : last + 1],
                (math.prod(x.shape[first : last + 1]),),
            )
            is None
        ):
            first = last  # strides cannot merge these axes
        head, middle, tail = x.shape[:first], math.prod(x.shape[first : last + 1]), x.shape[last + 1 :]
        flat = self.reshape(x, (*head, middle, *tail))
        block = _block(middle, flat, first) if op in ("sum", "max", "min") else 1
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
        if len(long) < x.ndim:  # drop axes of length 1, so that more nodes share a domain
            x = View(
                self, x.node, tuple([x.shape[k] for k in long]), tuple([x.strides[k] for k in long]), x.offset
            )
            axis = long.index(axis)
        order = [k for k in range(x.ndim) if k != axis]
        arg = self.permute(x, [*order, axis])
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
        out = self.node("place", views, (fill, where), shape, dtype, repr(fill))  # 0.0 equals -0.0
        if out.node.value is None and fill is None and where:
            out.node.value = _spans(where)
        return out

    def target(self, shape: Shape) -> View:
        """Return a view of a placeholder array; slices of it give the positions of pieces for ``place``."""
        return View(self, Node("target", (), None, shape, _BOOL), shape, row_major(shape))


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
    """Return ``x``, a view of a "place" node, as a view of the piece that contains all its elements.

    Return ``x`` itself if no single piece does.
    """
    spans = x.node.value
    if spans is None or not x.size:
        return x
    first, last = _ends(x.shape, x.strides, x.offset)
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


def _ends(shape: Shape, strides: tuple[int, ...], offset: int) -> tuple[int, int]:
    """Return the lowest and the highest position in memory of a view's elements, in elements."""
    low = high = offset
    for n, s in zip(shape, strides, strict=True):
        if s > 0:
            high += (n - 1) * s
        else:
            low += (n - 1) * s
    return low, high


def _narrowed(x: View, shape: Shape) -> View:
    """Return ``x`` reduced to its first element along each axis that has length 1 in ``shape``."""
    strides = tuple([0 if n == 1 else s for n, s in zip(shape, x.strides, strict=True)])
    return View(x.graph, x.node, shape, strides, x.offset)


_LONG = 1 << 14  # elements: longer axes are reduced in blocks


def _block(count: int, x: View, axis: int) -> int:
    """Return the length of the blocks in which an axis of ``count`` elements is reduced.

    Blocks are more accurate, and threads can share them.  Return 1 if the axis is too short for blocks, or if
    no block length divides ``count``.
    """
    if count < _LONG:
        return 1
    for step in (64, 16, 1):  # if possible, whole vectors
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
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    found: list[int] = []
    k = 0
    i = 0
    while i < len(wanted):
        if wanted[i] == 1:
            found.append(0)
            i += 1
            continue
        # take the fewest old and new axes that have the same number of elements
        a = old[k][0]
        run = [old[k]]
        b = wanted[i]
        news = [wanted[i]]
        while a != b:
            if a < b:
                k += 1
                run.append(old[k])
                a *= old[k][0]
            else:
                i += 1
                news.append(wanted[i])
                b *= wanted[i]
        for (_, s0), (n1, s1) in pairwise(run):
            if s0 != n1 * s1:
                return None
        step = run[-1][1]
        part = []
        for n in reversed(news):
            part.append(step if n != 1 else 0)
            step *= n
        found += part[::-1]
        k += 1
        i += 1
    return tuple(found)


def _algebra(op: str, dtype: Any, args: tuple[View, ...]) -> View | None:
    """Return an operand that equals the result of ``op`` bit for bit, such as x for x · 1; else None."""
    if op == "astype":
        return args[0] if args[0].dtype == dtype else None
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
        return inner if inner.shape == args[0].shape else None
    return None


def _fold(ufunc: Any) -> Callable[..., Any]:
    """Return a function that applies ``ufunc`` to constants and casts the result to a given dtype."""
    return lambda *numbers, dtype: np.asarray(ufunc(*numbers)).astype(dtype)


_FOLDED: dict[str, Callable[..., Any]] = {
    "add": _fold(np.add), "subtract": _fold(np.subtract), "multiply": _fold(np.multiply),
    "divide": _fold(np.divide), "negative": _fold(np.negative), "sqrt": _fold(np.sqrt),
    "abs": _fold(np.absolute),
    "exp": _fold(np.exp), "log": _fold(np.log), "tanh": _fold(np.tanh), "pow": _fold(np.power),
    "astype": lambda x, dtype: np.asarray(x).astype(dtype), "copy": lambda x, dtype: np.asarray(x, dtype),
    "equal": _fold(np.equal), "not_equal": _fold(np.not_equal), "less": _fold(np.less),
    "greater": _fold(np.greater), "maximum": _fold(np.maximum), "minimum": _fold(np.minimum),
}  # fmt: skip
