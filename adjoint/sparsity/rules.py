"""How the pattern of an op's result follows from the patterns of its arguments.

The record of an op names its rule (``sparsity=`` of ``define``).  Elementwise ops need none.  An op without a
rule is dense: each element of its results depends on all elements of its arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint.core.namespace import raw
from adjoint.ops.windows import inner_part, padded, spots, whole
from adjoint.sparsity.pattern import (
    check_count,
    dense_row,
    grouped,
    made,
    numbered,
    placed,
    selected,
    stacked,
    union,
)
from adjoint.typing import Array

__all__ = ["Applied", "rule_for"]


class Applied:
    """One application of an op: its arguments, their patterns, and its results.

    ``patterns`` has the pattern of each argument, or None if it depends on no input.  ``constants`` are the
    constants of the program (``walk.Constants``).
    """

    def __init__(
        self,
        op: Any,
        args: Sequence[Any],
        params: dict[str, Any],
        outs: Sequence[Any],
        patterns: list[Any],
        constants: Any,
    ) -> None:
        self.op, self.args, self.params, self.outs, self.patterns = op, args, params, outs, patterns
        self._constants = constants

    @property
    def active(self) -> list[int]:
        """The positions of the arguments that depend on inputs."""
        return [k for k, p in enumerate(self.patterns) if p is not None]

    def shape(self, k: int) -> tuple[int, ...]:
        """Return the shape of argument ``k``."""
        return tuple(getattr(self.args[k], "shape", ()))

    def known(self, k: int) -> Array | None:
        """Return the elements of argument ``k`` if they are constant, otherwise None."""
        found: Array | None = self._constants(self.args[k])
        return found

    def known_zeros(self, k: int) -> Array | None:
        """Return the elements of argument ``k`` if they are constant and some are 0, otherwise None.

        Without zeros the pattern does not depend on them.
        """
        found: Array | None = self._constants.elements(self.args[k])
        return None if found is None or np.all(found) else self.known(k)

    def is_index(self, k: int) -> bool:
        """Return whether argument ``k`` chooses elements: no gradient flows to it."""
        return not self.op.smooth(k)


def _spread(p: Any, shape: Sequence[int], out: Sequence[int]) -> Any:
    """Return the pattern of a value of shape ``shape`` after it is broadcast to the shape ``out``."""
    if tuple(shape) == tuple(out):
        return p
    return selected(p, np.broadcast_to(numbered(shape), out))


def _every(a: Applied, p: Any) -> list[Any]:
    """Return for each result the pattern whose rows all equal the only row of ``p``."""
    return [selected(p, np.ones(math.prod(out.shape), np.intp)) for out in a.outs]


def _dense(a: Applied) -> list[Any]:
    """Each element of the results depends on all that the arguments depend on."""
    return _every(a, dense_row(stacked([a.patterns[k] for k in a.active])))


def _elementwise(a: Applied) -> list[Any]:
    """Each element depends on the elements at the same position, after broadcasting.

    Elements that a known zero multiplies, or that a known condition does not choose, are left out.
    """
    found = None
    for k in a.active:
        found = union(found, _spread(a.patterns[k], a.shape(k), a.outs[0].shape))
    return [found] * len(a.outs)


def _product(a: Applied) -> list[Any]:
    """An elementwise product: elements that a known zero multiplies are left out."""
    (found,) = _elementwise(a)
    for k in (0, 1):
        factor = a.known_zeros(k) if a.patterns[k] is None and a.shape(k) else None
        if factor is not None:
            kept = np.broadcast_to(factor != 0, a.outs[0].shape)
            found = selected(found, np.where(kept, numbered(a.outs[0].shape), 0))
    return [found]


def _choice(a: Applied) -> list[Any]:
    """``where``: of a known condition, only the chosen elements count."""
    return _elementwise(a) if a.known(0) is None else _move(a)


def _move(a: Applied) -> list[Any]:
    """Each element of a result is one element of the arguments, or constant.

    The forward moves numbers of elements in place of the elements.
    """
    values: list[Any] = []
    first = 1
    for k in range(len(a.args)):
        if a.patterns[k] is not None:
            values.append(numbered(a.shape(k), first))
            first += values[-1].size
        elif a.is_index(k):
            index = a.known(k)
            if index is None:
                return _along(a)
            values.append(index)
        else:
            values.append(np.zeros(a.shape(k), np.int64))
    params = {k: 0 if k == "value" else v for k, v in a.params.items()}
    moved = a.op.forward(*values, **params)
    rows = stacked([a.patterns[k] for k in a.active])
    return [selected(rows, np.asarray(m)) for m in (moved if isinstance(moved, tuple) else (moved,))]


def _scatter(a: Applied) -> list[Any]:
    """Each element of the first argument is added to one element of the result, which its rule finds."""
    values: list[Any] = [np.broadcast_to(np.int64(0), a.shape(0))]
    for k in range(1, len(a.args)):
        index = a.known(k)
        if index is None:
            return _along(a)
        values.append(index)
    out = a.outs[0]
    blank = np.broadcast_to(np.int64(0), out.shape)
    places = a.op.rules[0](raw, numbered(out.shape), blank, *values, **a.params)
    places = np.broadcast_to(places, a.shape(0))
    return [grouped(a.patterns[0], places, math.prod(out.shape))]


def _axes(a: Applied, k: int, out: int) -> tuple[list[int], list[int]] | None:
    """Return the axes of argument ``k`` that are not mixed, and those of the result to which they become.

    ``out`` is the number of axes of the result.  None if they are unknown.
    """
    named = a.op.sparsity if isinstance(a.op.sparsity, tuple) else a.params.get("axis", a.params.get("axes"))
    rank = len(a.shape(k))
    if named is None:
        return [], []
    if any(map(a.is_index, range(len(a.args)))):
        return _around(a, k, rank, out, named)
    axes = named if isinstance(named, (tuple, list)) else (named,)
    if any(not -rank <= n < rank for n in axes):
        return None
    kept = [n for n in range(rank) if n - rank not in axes and n not in axes]
    if out < rank:
        return (kept, list(range(out))) if out == len(kept) else None
    if out > rank and any(n >= 0 for n in axes):
        return None
    return kept, [n - rank + out for n in kept]  # arguments that broadcast are aligned at their last axes


def _around(a: Applied, k: int, rank: int, out: int, axis: Any) -> tuple[list[int], list[int]] | None:
    """Return the axes before and after the axis of an op with an index, whose axes may take its place.

    The axis is one of the result if the op scatters, otherwise one of the first argument.
    """
    whole = out if a.op.sparsity == "scatter" else len(a.shape(0))
    if not isinstance(axis, int) or not -whole <= axis < whole or (k > 0 and rank != whole):
        return None
    before = axis % whole
    after = whole - 1 - before
    if before + after > min(rank, out):
        return None
    ends = [[*range(before), *range(n - after, n)] for n in (rank, out)]
    return ends[0], ends[1]


def _along(a: Applied) -> list[Any]:
    """Elements are mixed along the axes that the parameter ``axis`` names, or the record of the op."""
    found: list[Any] = [None] * len(a.outs)
    for k in a.active:
        shape, p = a.shape(k), a.patterns[k]
        for n, out in enumerate(a.outs):
            pair = _axes(a, k, len(out.shape))
            if pair is None:
                return _dense(a)
            mine, theirs = pair
            lengths = [shape[i] for i in mine]
            groups = numbered(lengths)
            if any(shape[i] not in (1, out.shape[j]) for i, j in zip(mine, theirs, strict=True)):
                return _dense(a)
            mixed = [i for i in range(len(shape)) if i not in mine]
            own = np.broadcast_to(np.expand_dims(groups, mixed), shape)
            wide = [out.shape[j] for j in theirs]
            others = [j for j in range(len(out.shape)) if j not in theirs]
            target = np.broadcast_to(np.expand_dims(np.broadcast_to(groups, wide), others), out.shape)
            found[n] = union(found[n], selected(grouped(p, own, groups.size), target))
    return found


def _running(a: Applied) -> list[Any]:
    """A running sum: each element depends on itself and the elements before it along ``axis``."""
    shape, size = a.shape(0), math.prod(a.shape(0))
    axis = a.params["axis"] % len(shape)
    step = math.prod(shape[axis + 1 :])
    check_count(size * (shape[axis] + 1) // 2)
    elements = numbered(shape, 0).reshape(-1)
    counts = elements // step % shape[axis] + 1
    ends = np.concatenate([[0], np.cumsum(counts)])
    first = elements - (counts - 1) * step
    before = np.repeat(first - step * ends[:-1], counts) + step * np.arange(ends[-1])
    return [made(before, ends, size) @ a.patterns[0]]


def _labels(a: Applied) -> tuple[list[str], str, dict[str, int]]:
    """Return the labels of the axes of each argument and of the result, and the length of each label."""
    p = a.params
    out = a.outs[0]
    if "left" in p:
        inputs, output = [p["left"], p["right"]], p["output"]
    elif "labels" in p:
        inputs, output = [p["labels"]], p["output"]
    else:
        inputs, output = _matrix_labels(len(a.shape(0)), len(a.shape(1)), transposed=len(a.args) == 3)
        inputs += [output[-1:]] if len(a.args) == 3 else []
    sizes = dict(zip(output, out.shape, strict=True))
    for k, labels in enumerate(inputs):
        for label, n in zip(labels, a.shape(k), strict=False):
            sizes[label] = max(sizes.get(label, n), n) if n != 0 else 0
    return inputs, output, sizes


def _matrix_labels(x: int, y: int, transposed: bool) -> tuple[list[str], str]:
    """Return the labels of the matrix product of arguments with ``x`` and ``y`` axes."""
    lead = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefgh"
    batch = lead[: max(x, y, 2) - 2]
    left = batch[len(batch) - max(x - 2, 0) :] + ("m" if x > 1 else "") + "k"
    right = batch[len(batch) - max(y - 2, 0) :] + ("nk" if transposed else "kn" if y > 1 else "k")
    return [left, right], batch + ("m" if x > 1 else "") + ("n" if y > 1 else "")


def _flat(labels: str, sizes: dict[str, int], own: Sequence[int], over: str) -> Array:
    """Return the number, from 0, of the element of an array with axes ``labels`` for each index of ``over``.

    ``own`` are the lengths of the array, which may be 1 where ``sizes`` has more.
    """
    grid = np.zeros([sizes[c] for c in over], np.int64)
    step = 1
    for label, n in zip(reversed(labels), reversed(list(own)), strict=True):
        if n != 1:
            index = np.arange(sizes[label]) * step
            grid += index.reshape([-1 if c == label else 1 for c in over])
        step *= n
    return grid


def _contract(a: Applied) -> list[Any]:
    """Sums of products: an element depends on all with the same labels; known zeros are left out."""
    inputs, output, sizes = _labels(a)
    found = None
    for k in a.active:
        other = 1 - k if k < 2 and len(inputs) > 1 else None
        factor = a.known_zeros(other) if other is not None and a.patterns[other] is None else None
        if factor is not None:
            mine = _sparse_factor(a, k, factor, inputs, output, sizes)
        else:
            mine = _summed(a, k, inputs[k], output, sizes)
        found = union(found, mine)
    return [found]


def _summed(a: Applied, k: int, labels: str, output: str, sizes: dict[str, int]) -> Any:
    """Return the pattern of a contraction: sums over the labels that the output has not, then repetitions."""
    shape = a.shape(k)
    kept = "".join(c for c in dict.fromkeys(output) if c in labels and shape[labels.index(c)] != 1)
    count = math.prod(sizes[c] for c in kept)
    at = "".join(dict.fromkeys(labels))
    lengths = {c: shape[labels.index(c)] for c in at}
    element = _flat(labels, lengths, shape, at)
    group = np.broadcast_to(_flat(kept, sizes | lengths, [sizes[c] for c in kept], at), element.shape)
    groups = np.zeros(math.prod(shape), np.int64)
    groups[element.reshape(-1)] = group.reshape(-1) + 1  # elements off a diagonal stay 0
    names = "".join(dict.fromkeys(output))
    target = np.zeros(math.prod(a.outs[0].shape), np.int64)  # elements off a diagonal stay 0
    target[_flat(output, sizes, a.outs[0].shape, names)] = (
        _flat(kept, sizes, [sizes[c] for c in kept], names) + 1
    )
    return selected(grouped(a.patterns[k], groups, count), target)


def _sparse_factor(
    a: Applied, k: int, factor: Array, inputs: list[str], output: str, sizes: dict[str, int]
) -> Any:
    """Return the pattern of a contraction with a known factor, by the factor's nonzero elements."""
    mine, other = inputs[k], inputs[1 - k]
    wide = [sizes[c] for c in dict.fromkeys(other)]
    free = "".join(c for c in dict.fromkeys(mine + output) if c not in other)
    names = "".join(dict.fromkeys(other))
    if len(names) != len(other) or len(set(mine)) < len(mine):
        return _summed(a, k, mine, output, sizes)
    at = dict(zip(names, np.nonzero(np.broadcast_to(factor, wide)), strict=True))
    count = len(at[names[0]]) if names else 1
    rest = math.prod(sizes[c] for c in free)
    grids = np.indices([sizes[c] for c in free]).reshape(len(free), rest) if free else np.zeros((0, 1), int)
    where = {c: v[:, None] for c, v in at.items()} | {c: v[None] for c, v in zip(free, grids, strict=True)}

    def place(labels: str, shape: Sequence[int]) -> Array:
        spot, step = np.zeros((count, rest), np.int64), 1
        for c, n in zip(reversed(labels), reversed(list(shape)), strict=True):
            spot += where[c] * step if n != 1 else 0
            step *= n
        return spot.reshape(-1)

    out = a.outs[0].shape
    local = placed(place(output, out), place(mine, a.shape(k)), (math.prod(out), math.prod(a.shape(k))))
    return _times(local, a.patterns[k])


def _times(local: Any, p: Any) -> Any:
    """Return the pattern of a value that depends, by ``local``, on a value with the pattern ``p``."""
    found = local @ p
    found.sum_duplicates()
    return made(found.indices, found.indptr, found.shape[1])


def _sliding(a: Applied) -> list[Any]:
    """Windows on an image: sums (pooling), and convolutions, which join the channels of a group."""
    p, x, out = a.params, a.shape(0), a.outs[0].shape
    sums = "kernel" in p
    if min(map(min, p["padding"]), default=0) < 0 or (
        not sums and a.patterns[0] is not None and a.patterns[1] is not None
    ):
        return _dense(a)
    if sums:
        nd = len(p["kernel"])
        return [
            _windowed(a.patterns[0], numbered(x), p["kernel"], p, out[len(out) - nd :], lambda image: image)
        ]
    groups, w = p["groups"], a.shape(1)
    inner, outer = x[1] // groups, out[1] // groups
    if a.patterns[0] is None:
        return [_of_kernel(a, w, groups, out)]
    channels = numbered((x[0], groups, 1, *x[2:]))
    joined = grouped(a.patterns[0], np.broadcast_to(channels, (x[0], groups, inner, *x[2:])), channels.size)
    wide = lambda image: np.broadcast_to(image[:, :, None], (x[0], groups, outer, *image.shape[2:]))
    return [_windowed(joined, channels[:, :, 0], w[2:], p, out[2:], wide)]


def _windowed(
    p: Any,
    image: Array,
    kernel: tuple[int, ...],
    at: dict[str, Any],
    out: tuple[int, ...],
    wide: Callable[[Array], Array],
) -> Any:
    """Return the union, over the positions in a kernel, of the elements at this position of each window.

    ``image`` has the numbers of the rows of ``p``; its elements are spread to windows if ``at`` has a "size".
    ``wide`` repeats the result for the channels of the output, whose other axes have the lengths ``out``.
    """
    lead = [(0, 0)] * (image.ndim - len(kernel))
    spread = "size" in at
    found = None
    for spot in spots(kernel, at["stride"], at["dilation"], image.shape[len(lead) :] if spread else out):
        if spread:
            moved = np.zeros((*image.shape[: len(lead)], *whole(at["size"], at["padding"])), np.int64)
            moved[spot] = image
            moved = moved[inner_part(at["size"], at["padding"])]
        else:
            moved = padded(image, (*lead, *at["padding"]))[spot]
        found = union(found, selected(p, wide(moved)))
    return found


def _of_kernel(a: Applied, w: tuple[int, ...], groups: int, out: tuple[int, ...]) -> Any:
    """Return the pattern of a convolution with an active kernel: all of it for an output channel."""
    spread = "size" in a.params
    lengths = (groups, w[0] // groups, *w[1:])
    numbers = numbered((groups, lengths[2] if spread else lengths[1]))
    group = np.expand_dims(numbers, (1, *range(3, len(lengths))) if spread else tuple(range(2, len(lengths))))
    joined = grouped(a.patterns[1], np.broadcast_to(group, lengths), numbers.size)
    channels = numbers.reshape(1, -1, *(1,) * (len(out) - 2))
    return selected(joined, np.broadcast_to(channels, out))


def _operator(a: Applied) -> list[Any]:
    """The product of a constant sparse matrix of SciPy with columns; any other operator is dense."""
    held = a.params["operator"].held
    if not hasattr(held, "tocoo"):
        return _dense(a)
    coo = held.tocoo()
    rows, cols = coo.row.astype(np.int64), coo.col.astype(np.int64)
    x, out = a.shape(0), a.outs[0].shape
    mine = np.moveaxis(numbered(x, 0), -2, 0).reshape(x[-2], -1)[cols]
    theirs = np.moveaxis(numbered(out, 0), -2, 0).reshape(out[-2], -1)[rows]
    local = placed(theirs.reshape(-1), mine.reshape(-1), (math.prod(out), math.prod(x)))
    return [_times(local, a.patterns[0])]


RULES: dict[Any, Callable[[Applied], list[Any]]] = {
    "elementwise": _elementwise, "product": _product, "choice": _choice, "move": _move, "scatter": _scatter,
    "axis": _along, "running": _running, "contract": _contract, "sliding": _sliding, "operator": _operator,
    "dense": _dense,
}  # fmt: skip


def rule_for(op: Any) -> Callable[[Applied], list[Any]]:
    """Return the rule of an op, which its record names; without one, that of its kind."""
    named = getattr(op, "sparsity", "")
    if isinstance(named, tuple):
        return _along
    return RULES[named or ("elementwise" if op.kind == "elementwise" else "dense")]
