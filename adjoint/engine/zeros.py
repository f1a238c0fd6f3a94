"""Zeros of a gradient at elements that do not influence the output.

``where``, an index, ``maximum`` and other ops that select give a zero gradient to the elements that they did
not select.  Such a zero stays zero when it is multiplied by an infinite derivative.  Any other zero is an
ordinary number: its product with infinity is NaN.

A ``Zeros`` object marks the zeros of the first kind in one gradient.  An op that selects creates it, and
elementwise ops pass it on by reference.  They do not correct the gradient, so marked elements may be NaN
(``stained``).  Before elements are combined (in a sum, a reduction, a product, a hook or a leaf), NaNs at
marked elements are replaced by 0.  docs/adr/0014-zeros-by-selection.md gives the reasons.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.config import grad_mode
from adjoint.context import arriving, within
from adjoint.core.dots import PIECE, pieces
from adjoint.core.lifted import Lifted, Unknown
from adjoint.core.namespace import Namespace, Value, dyn, raw, rec
from adjoint.core.node import Node
from adjoint.core.sparse import SparseRows
from adjoint.core.tensor import Tensor, held, wrap
from adjoint.core.values import has_history, unknown
from adjoint.engine.rules import call_rule, unpacked

__all__ = [
    "Masked", "Zeros", "also_picked", "arriving", "cleaned", "each_output", "fit_live", "is_nonzero",
    "may_have_nan", "meet", "of_seed", "picked", "positive", "same", "summed_zeros", "through", "unmasked",
]  # fmt: skip

Live = Any  # a boolean array, true at elements that may have a gradient; None if all elements may have one


class Zeros:
    """The elements of a gradient that are zero because an op, such as ``where``, did not select them.

    ``live()`` is false at these elements.  ``stained`` means that rules were applied to the gradient, so that
    these elements may be NaN.
    """

    __slots__ = ("_known", "_live", "_sources", "origin", "stained")

    def __init__(self, sources: tuple[Zeros, ...], live: Live = None, stained: bool = False) -> None:
        self._sources = sources  # ``live`` is computed from these on demand
        self._live = live
        self._known = not sources
        self.origin: Zeros | None = None  # the same zeros before they were stained
        self.stained = stained

    def stain(self) -> Zeros:
        """Return the same zeros, with ``stained`` set: a rule was applied to the gradient."""
        if self.stained:
            return self
        found = Zeros((self,), None, True)
        found.origin = self
        return found

    def live(self) -> Live:
        """Return a mask of the elements at which a gradient may flow.

        It is computed without recursion, because ``Zeros`` refer to each other in long chains.
        """
        todo = [self]
        while todo:
            z = todo[-1]
            unknown = [s for s in z._sources if not s._known]
            if unknown:
                todo += unknown
                continue
            todo.pop()
            if not z._known:
                z._live = z._find([s._live for s in z._sources])
                z._known = True
                z._sources = ()
        return self._live

    def _find(self, lives: list[Live]) -> Live:
        """Return a mask of the elements that are live (not zero by selection) in any of ``lives``."""
        found = lives[0]
        for live in lives[1:]:
            if found is None or live is None:
                return None
            lifted = isinstance(found, Lifted) or isinstance(live, Lifted)
            found = (dyn if lifted else np).logical_or(found, live)
        return found


class _Reduced(Zeros):
    """The marked zeros of a gradient that was broadcast, or summed, to a different shape."""

    __slots__ = ("shape",)
    shape: tuple[int, ...]

    def _find(self, lives: list[Live]) -> Live:
        live = super()._find(lives)
        return None if live is None else fit_live(live, self.shape)


class _Pulled(Zeros):
    """The marked zeros of a rule's result, for an op that selects or is linear.

    They are found by calling the rule with positive numbers.  The rule is linear in the gradient, so the
    result is nonzero where a gradient flows.
    """

    __slots__ = ("args", "i", "node", "out", "shape", "zeros")

    def __init__(self, node: Node, i: int, zeros: Any, shape: tuple[int, ...]) -> None:
        self._live = self.origin = None
        self._known = self.stained = False
        self.node = node
        self.args, self.out = node.args, node.out  # kept here, because the backward releases those of node
        self.i = i
        self.zeros = zeros  # one per output if there are several; False for an output that was not used
        self.shape = shape
        if zeros is None:
            self._sources = ()
        else:
            self._sources = (zeros,) if isinstance(zeros, Zeros) else tuple(z for z in zeros if z)

    def _find(self, lives: list[Live]) -> Live:
        node = self.node
        op, rest = node.op, iter(lives)
        g: Any
        if op.outputs > 1:
            g = tuple(
                None if z is False else positive(shape, dtype, next(rest) if z else None)
                for z, shape, dtype in zip(self.zeros, node.shape, node.dtype, strict=True)
            )
        else:
            g = positive(node.shape, node.dtype, next(rest, None))
        values, out = unpacked(self.args or ()), unpacked(self.out)
        self.args = self.out = None
        lifted = any(isinstance(v, Lifted) for v in (*values, *each_output(out), *each_output(g)))
        xp = dyn if lifted else raw
        found = within(grad_mode, False, call_rule, op, self.i, xp, g, out, values, node.params)
        return None if type(found) is SparseRows else fit_live(is_nonzero(found), self.shape)


class _Picked(Zeros):
    """The marked zeros of the gradient of an index op that indexes one axis.

    ``bits`` is a bit mask of the positions on this axis that were selected, which are not zero.
    """

    __slots__ = ("axis", "bits", "shape")

    def __init__(self, axis: int, bits: int, shape: tuple[int, ...]) -> None:
        self._live = self.origin = None
        self._known = self.stained = False
        self._sources = ()
        self.axis = axis
        self.bits = bits
        self.shape = shape

    def _find(self, lives: list[Live]) -> Live:
        n = self.shape[self.axis]
        packed = np.frombuffer(self.bits.to_bytes(-(-n // 8), "little"), np.uint8)
        places = np.unpackbits(packed, count=n, bitorder="little").view(bool)
        return np.broadcast_to(places.reshape((n,) + (1,) * (len(self.shape) - self.axis - 1)), self.shape)


_MANY = 10_000  # the longest axis for which a bit mask is made


def _bits(places: range) -> int:
    """Return the bit mask of positions: 1 + r + r² + … = (rⁿ − 1) / (r − 1) with r = 2 ** step, shifted."""
    if not places:
        return 0
    step, first = abs(places.step), min(places[0], places[-1])
    return ((1 << step * len(places)) - 1) // ((1 << step) - 1) << first


def _along_one_axis(key: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the axis that ``key`` indexes, and a bit mask of the selected positions.

    None if it does not index exactly one axis.
    """
    if type(key[0]) is int and len(key) == 2 and key[1] is Ellipsis:  # x[i], the usual one
        return (0, 1 << key[0] % shape[0]) if shape[0] <= _MANY else None
    axis, found = 0, None
    for k in key:
        if k is Ellipsis:
            axis += len(shape) - len(key) + 1
            continue
        if k is None:
            return None
        if type(k) is int or k != slice(None):
            if found is not None or shape[axis] > _MANY:
                return None
            n = shape[axis]
            found = axis, 1 << k % n if type(k) is int else _bits(range(*k.indices(n)))
        axis += 1
    return found


def picked(node: Node, shape: tuple[int, ...]) -> Zeros:
    """Return a ``Zeros`` that marks the elements that the index op ``node`` did not select."""
    found = _along_one_axis(node.params["key"], shape)
    return _Pulled(node, 0, None, shape) if found is None else _Picked(*found, shape)


def also_picked(had: Zeros, node: Node, shape: tuple[int, ...]) -> Zeros | None:
    """Return the zeros that a gradient still has after the gradient of the index op ``node`` is added.

    ``had`` marks the zeros before.  The gradient has the shape ``shape``; the op changes only the positions
    that it selects.  The result is None if no zero is left.
    """
    if type(had) is _Picked:
        found = _along_one_axis(node.params["key"], shape)
        if found is not None and found[0] == had.axis:
            had.bits |= found[1]  # no other object refers to ``had`` yet
            return None if had.bits + 1 == 1 << shape[had.axis] else had
    return meet(had, picked(node, shape))


def each_output(value: Any) -> tuple[Any, ...]:
    """Return the outputs of an op as a tuple."""
    return value if type(value) is tuple else (value,)


class Masked:
    """One term of the sum that forms a gradient, and the ``Zeros`` that mark its zeros."""

    __slots__ = ("g", "zeros")

    def __init__(self, g: Any, zeros: Zeros) -> None:
        self.g = g
        self.zeros = zeros

    @property
    def nbytes(self) -> int:
        """The number of bytes of the term."""
        return int(self.g.nbytes)


def unmasked(g: Any) -> Any:
    """Return the gradient in a ``Masked``; other values unchanged."""
    return g.g if type(g) is Masked else g


# Where zeros come from -----------------------------------------------------------------------------


def of_seed(seed: Any) -> Zeros | None:
    """Return the marked zeros of ``seed``, the gradient that a backward starts from; None if there are none.

    If the backward runs inside a rule, the seed has the zeros of the gradient that the rule received.
    Otherwise its zeros are the elements that are 0.  A seed that is part of a graph has none: gradients are
    linear in the seed, so their derivatives with respect to it do not depend on its values.
    """
    around = arriving.get()
    data = seed._data if isinstance(seed, Tensor) else seed
    if around is None:
        if has_history(seed if isinstance(seed, Tensor) else wrap(seed)):
            return None
        heart = unknown(data)
        found = held(data) if heart is None else heart.numbers()
        if heart is not None and found is None:
            return Zeros((), is_nonzero(data))
        full = not isinstance(found, np.ndarray) or (found.size and found.all())
        return None if full else Zeros((), is_nonzero(data))
    for g, zeros in around:
        if (g._data if isinstance(g, Tensor) else g) is data:
            return zeros
    return None


def through(node: Node, i: int, g: Any, zeros: Any, shape: tuple[int, ...]) -> Zeros | None:
    """Return the marked zeros of the result of the rule for argument ``i``; None if they are not known.

    ``zeros`` are those of ``g``, the gradient of the node.  Both are lists if the op has several outputs.
    """
    op = node.op
    if op.outputs > 1:
        zeros = [z if p is not None else False for z, p in zip(zeros or [None] * len(g), g, strict=True)]
    if op.selects or op.kind == "linear":
        return _Pulled(node, i, zeros, shape)
    if op.kind == "elementwise":
        used = tuple(z for z in zeros if z is not False)
        return None if None in used else summed_zeros(used, shape, True)
    # an op that mixes all elements: the zeros of a 0-d gradient apply to the whole result or not at all
    return None if op.outputs > 1 or node.shape else summed_zeros((zeros,), shape, True)


def summed_zeros(zeros: tuple[Zeros, ...], shape: tuple[int, ...], stained: bool = False) -> Zeros:
    """Return the marked zeros of a gradient that was summed or broadcast to ``shape``.

    It was computed from gradients with ``zeros``.  ``stained`` is as in ``Zeros``.
    """
    found = _Reduced(zeros, None, stained)
    found.shape = shape
    return found


def meet(a: Zeros | None, b: Zeros | None) -> Zeros | None:
    """Return the marked zeros of the sum of two gradients: the zeros that both have.

    Neither gradient may be stained (have NaNs at its zeros).
    """
    return None if a is None or b is None else Zeros((a, b))


def same(a: Zeros | None, b: Zeros | None) -> bool:
    """Return whether two gradients have the same marked zeros.

    NaNs at these elements then need to be replaced only in the sum of the two.
    """
    return a is b or (a is not None and b is not None and (a.origin or a) is (b.origin or b))


# Where they are needed -----------------------------------------------------------------------------


def cleaned(xp: Namespace, g: Value, zeros: Zeros | None) -> Any:
    """Return the gradient ``g``, with NaN replaced by 0 at the elements that ``zeros`` marks.

    A recorded gradient is always cleaned, because its derivative may be infinite where the gradient is not.
    """
    if zeros is None or not zeros.stained or type(g) is SparseRows:
        return g
    if xp is raw:
        if not may_have_nan(g):
            return g
        live = zeros.live()
        return g if live is None else raw.where(live, g, 0)
    return _cleaned_later(xp, g, zeros)


def _cleaned_later(xp: Namespace, g: Value, zeros: Zeros) -> Any:
    """Return what ``cleaned`` returns, for a gradient that is recorded or is a value of a transform."""
    always = xp is rec or (grad_mode.get() and not isinstance(g, Unknown))
    heart = None if always else unknown(g)
    if not always and heart is None and not may_have_nan(g):
        return g
    live = zeros.live()
    if live is None or (isinstance(live, np.ndarray) and live.all()):
        return g
    if heart is None:
        return xp.where(live, g, 0)
    # the numbers are not known while the function is traced: the compiled program searches them for NaN
    return g.keep_zeros(live) if heart is g else xp.where(heart.any_nan([heart]), xp.where(live, g, 0), g)


def may_have_nan(g: Any) -> bool:
    """Return whether an array may contain NaN.

    The dot product of the array with itself is computed, which is NaN if an element is NaN.
    """
    data = held(g)
    if not isinstance(data, (np.ndarray, np.generic)):
        return True
    array = np.asarray(data, np.float32) if data.dtype.kind == "V" else np.asarray(data)  # V: bfloat16
    if array.size <= PIECE:
        return bool(np.isnan(np.vdot(array, array)))
    return any(bool(np.isnan(np.vdot(p, p))) for p in pieces(array.reshape(-1)))


# Masks -----------------------------------------------------------------------------------------------


def is_nonzero(value: Any) -> Any:
    """Return a boolean array that is true where a value is not zero."""
    return (dyn if isinstance(value, Lifted) else np).not_equal(value, 0)


def positive(shape: Any, dtype: Any, live: Live) -> Any:
    """Return an array of irregular numbers from 1 to 2, with 0 where ``live`` is false.

    The numbers are irregular so that their sums and differences are not 0.
    """
    size = int(np.prod(shape, dtype=np.int64))
    numbers = (1 + np.arange(1, size + 1) * 0.6180339887498949 % 1).reshape(shape).astype(dtype)
    return numbers if live is None else (dyn if isinstance(live, Lifted) else np).where(live, numbers, 0)


def fit_live(live: Any, shape: tuple[int, ...]) -> Live:
    """Return the mask ``live`` reduced or broadcast to ``shape``; None if that is not possible."""
    had = live.shape
    if had == shape:
        return live
    extra = len(had) - len(shape)
    xp = dyn if isinstance(live, Lifted) else raw
    if extra < 0 or (extra == 0 and all(n in (1, m) for n, m in zip(had, shape, strict=True))):
        return xp.broadcast_to(live, shape=shape)
    axes = tuple(k - len(had) for k, n in enumerate(had) if k < extra or n != shape[k - extra])
    return xp.reshape(xp.any(live, axis=axes, keepdims=True), shape=shape)
