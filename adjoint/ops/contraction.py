"""Einstein summation by matrix products: subscripts are parsed once and split into products of two operands.

There are two ops.  ``einsum`` contracts two arrays.  ``relabel`` rearranges one array (transpose, sum,
diagonal).  Labels are strings with one character for each axis.  Unlike in NumPy, an output may repeat a
label: then the values are written to a diagonal, with zeros elsewhere.  An output may also have labels that
no input has: then the values are repeated along these axes, and ``extra`` has their lengths.  With these two
extensions, the derivative of each op is again one of the two ops.

A *step* is a function of arrays that was planned once for given labels, and is then called for each array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from adjoint.core.batching import Batched, held
from adjoint.core.convert import asarray
from adjoint.core.define import define
from adjoint.core.dots import dot
from adjoint.core.infer import Result
from adjoint.core.namespace import Namespace, Value, rec
from adjoint.core.native import Primitives, View
from adjoint.core.op import Op
from adjoint.core.shapes import Shape
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError
from adjoint.ops.half import is_half, wide
from adjoint.ops.shared_docs import argument_doc
from adjoint.ops.subscripts import LETTERS, label_lengths, parsed, separated
from adjoint.typing import DTypeLike

__all__ = ["einsum", "einsum_path"]

Extra = tuple[tuple[str, int], ...]  # the lengths of labels that only the output has
Array = Any
Step = Callable[[Array], Array]


# One plain array --------------------------------------------------------------------------------


def _unique(labels: str) -> str:
    return "".join(dict.fromkeys(labels))


def _diagonal(x: Array, labels: str) -> Array:
    """Return the diagonal, as a view: for each label that repeats, its axes become one axis."""
    lengths, strides = {}, dict.fromkeys(labels, 0)
    for label, n, stride in zip(labels, x.shape, x.strides, strict=True):
        lengths[label] = n
        strides[label] += stride
    return as_strided(x, tuple(lengths.values()), tuple(strides.values()))


def _gather(labels: str, keep: str) -> tuple[Step | None, str]:
    """Return a function of an array whose axes have the labels ``labels``, and the labels of its result.

    The function takes the diagonal for repeated labels and sums over the labels that are not in ``keep``.
    The first result is None instead of a function if there is nothing to do.
    """
    unique = _unique(labels)
    kept = "".join(label for label in unique if label in keep)
    axes = tuple(i for i, label in enumerate(unique) if label not in keep)
    if unique == kept == labels:
        return None, labels

    def step(x: Array) -> Array:
        if unique != labels:
            x = _diagonal(x, labels)
        return np.add.reduce(x, axis=axes, dtype=x.dtype) if axes else x

    return step, kept


def _scatter(labels: str, output: str, sizes: dict[str, int]) -> Step | None:
    """Return a function that converts an array with the labels ``labels`` to the labels ``output``.

    The function transposes, repeats the array along labels that are only in ``output``, and writes it to a
    diagonal where ``output`` repeats a label.  It is None if there is nothing to do.  ``sizes`` has the
    length of each label.
    """
    unique = _unique(output)
    if labels == unique == output:
        return None
    axes = tuple(labels.index(label) for label in unique if label in labels)
    ordered = axes == tuple(range(len(labels)))
    shape = tuple(sizes[label] for label in unique)
    thin = tuple(sizes[label] if label in labels else 1 for label in unique)
    full = tuple(sizes[label] for label in output)

    def step(x: Array) -> Array:
        if not ordered:
            x = x.transpose(axes)
        if thin != x.shape:
            x = x.reshape(thin)
        if thin != shape:
            x = np.broadcast_to(x, shape)
        if unique != output:
            out = np.zeros(full, x.dtype)
            _diagonal(out, output)[...] = x
            return out
        return x

    return step


@lru_cache(maxsize=4096)
def _relabel_plan(labels: str, output: str, extra: Extra, shape: Shape) -> tuple[Step | None, Step | None]:
    gather, rest = _gather(labels, output)
    sizes = dict(zip(labels, shape, strict=True)) | dict(extra)
    return gather, _scatter(rest, output, sizes)


def _relabel(x: Array, labels: str, output: str, extra: Extra) -> Array:
    dtype = x.dtype
    if is_half(x):
        x = x.astype(np.float32)
    gather, scatter = _relabel_plan(labels, output, extra, x.shape)
    x = gather(x) if gather else x
    x = scatter(x) if scatter else x
    return x if x.dtype == dtype else x.astype(dtype)


# Two plain arrays -------------------------------------------------------------------------------


def _arranged(labels: str, groups: Sequence[Sequence[str]], sizes: dict[str, int]) -> Step:
    """Return a function that transposes an array to ``groups`` of labels and merges each group but the first.

    A merged group is one axis.  ``labels`` are the labels of the array, and ``sizes`` has their lengths.
    """
    order = [label for group in groups for label in group]
    axes = tuple(labels.index(label) for label in order)
    ordered = axes == tuple(range(len(labels)))
    lead = tuple(sizes[label] for label in groups[0])
    shape = lead + tuple(int(np.prod([sizes[label] for label in group])) for group in groups[1:])

    def step(x: Array) -> Array:
        if not ordered:
            x = x.transpose(axes)
        return x if x.shape == shape else x.reshape(shape)

    return step


def _blas_ready(x: Array) -> Array:
    """Return ``x``, a stack of matrices, or a copy if BLAS cannot multiply matrices with its strides."""
    size = x.itemsize
    return x if size in x.strides[-2:] else np.ascontiguousarray(x)


def _contraction(a: str, b: str, output: str, sizes: dict[str, int]) -> tuple[Callable[..., Any], str]:
    """Return a function that multiplies two arrays with labels ``a`` and ``b``, and the labels of its result.

    The function sums over common labels that are not in ``output``, by matrix products.  No label may occur
    twice in ``a`` or in ``b``.  ``sizes`` has the length of each label.
    """
    batch = [label for label in output if label in a and label in b]
    summed = [label for label in a if label in b and label not in output]
    if not summed:
        return _outer(a, b, output)
    free_a = [label for label in a if label not in b]
    free_b = [label for label in b if label not in a]
    if not free_a and not free_b:
        first, second = (_arranged(labels, (batch, summed), sizes) for labels in (a, b))
        return (lambda x, y: _dots(first(x), second(y))), "".join(batch)
    if free_a and free_b and output.index(free_b[0]) < output.index(free_a[0]):
        multiply, labels = _contraction(b, a, output, sizes)
        return (lambda x, y: multiply(y, x)), labels
    if np.prod([sizes[label] for label in b]) > np.prod([sizes[label] for label in a]):
        summed = [label for label in b if label in summed]  # the order of the larger operand
    left = _matrix(a, batch, free_a, summed, sizes)
    right = _matrix(b, batch, summed, free_b, sizes)
    shape = tuple(sizes[label] for label in (*batch, *free_a, *free_b))

    def product(x: Array, y: Array) -> Array:
        z = np.matmul(_blas_ready(left(x)), _blas_ready(right(y)))
        return z if z.shape == shape else z.reshape(shape)

    return product, "".join((*batch, *free_a, *free_b))


def _matrix(
    labels: str, batch: list[str], rows: list[str], columns: list[str], sizes: dict[str, int]
) -> Step:
    """Return a function that reshapes an array with labels ``labels`` to a stack of matrices.

    The axes of the result are those of ``batch``, the merged ``rows`` and the merged ``columns``.  ``sizes``
    has the length of each label.  If the columns precede the rows in ``labels``, the matrices are transposed
    views.
    """
    if rows and columns and labels.index(columns[0]) < labels.index(rows[0]):
        step = _arranged(labels, (batch, columns, rows), sizes)
        return lambda x: step(x).swapaxes(-1, -2)
    return _arranged(labels, (batch, rows, columns), sizes)


def _dots(x: Array, y: Array) -> Array:
    if x.ndim == 1:
        return dot(x, y) if x.dtype == y.dtype and x.dtype.kind in "fc" else np.dot(x, y)
    if x.dtype.kind == "f" and x.dtype == y.dtype:
        return np.vecdot(x, y)  # faster than matmul for one dot product per row
    return np.matmul(x[..., None, :], y[..., None])[..., 0, 0]


def _outer(a: str, b: str, output: str) -> tuple[Callable[..., Any], str]:
    """Return a function that multiplies two arrays with labels ``a`` and ``b``, and the labels of its result.

    The function sums over no axis; axes with the same label are multiplied elementwise.  ``output``
    determines the order of the labels of the result.
    """
    labels = "".join(label for label in _unique(output) if label in a or label in b)
    keys, orders = [], []
    for own in (a, b):
        orders.append(tuple(own.index(label) for label in labels if label in own))
        keys.append(tuple(slice(None) if label in own else None for label in labels))

    def product(x: Array, y: Array) -> Array:
        return x.transpose(orders[0])[keys[0]] * y.transpose(orders[1])[keys[1]]

    return product, labels


@lru_cache(maxsize=4096)
def _einsum_plan(
    left: str, right: str, output: str, extra: Extra, x_shape: Shape, y_shape: Shape
) -> tuple[Step | None, Step | None, Callable[..., Any], Step | None]:
    sizes = dict(extra) | dict(zip(left, x_shape, strict=True)) | dict(zip(right, y_shape, strict=True))
    gather_x, a = _gather(left, output + right)
    gather_y, b = _gather(right, output + left)
    product, labels = _contraction(a, b, _unique(output), sizes)
    return gather_x, gather_y, product, _scatter(labels, output, sizes)


def _einsum(x: Array, y: Array, left: str, right: str, output: str, extra: Extra) -> Array:
    dtype = None
    if is_half(x) or is_half(y):
        dtype = np.result_type(x, y)
        x, y = wide(x), wide(y)
    gather_x, gather_y, product, scatter = _einsum_plan(left, right, output, extra, x.shape, y.shape)
    z = product(gather_x(x) if gather_x else x, gather_y(y) if gather_y else y)
    z = scatter(z) if scatter else z
    return z if dtype is None else z.astype(dtype)


# The ops ----------------------------------------------------------------------------------------


def _missing(labels: str, shape: Shape, *others: str) -> Extra:
    """Return pairs (label, length) for the labels of an operand that are in none of ``others``.

    ``others`` are the labels of the other operand and of the output.  The forward function sums over such
    axes, so the gradient is repeated along them.
    """
    known = "".join(others)
    return tuple({a: n for a, n in zip(labels, shape, strict=True) if a not in known}.items())


def _einsum_dx(
    xp: Namespace, g: Value, z: Value, x: Value, y: Value, left: str, right: str, output: str, extra: Extra
) -> Any:
    need = _missing(left, x.shape, output, right)
    return xp.einsum(g, y, left=output, right=right, output=left, extra=need)


def _einsum_dy(
    xp: Namespace, g: Value, z: Value, x: Value, y: Value, left: str, right: str, output: str, extra: Extra
) -> Any:
    need = _missing(right, y.shape, output, left)
    return xp.einsum(g, x, left=output, right=left, output=right, extra=need)


def _relabel_rule(xp: Namespace, g: Value, y: Value, x: Value, labels: str, output: str, extra: Extra) -> Any:
    return xp.relabel(g, labels=output, output=labels, extra=_missing(labels, x.shape, output))


def _labelled(labels: str, shape: Shape, output: str, extra: Extra) -> dict[str, int] | None:
    """Return the length of each label as a dictionary, or None if two lengths of a label differ.

    ``labels`` and ``shape`` are those of the operands, and ``extra`` has the lengths of further labels of
    ``output``.
    """
    if len(labels) != len(shape):
        return None
    sizes = dict(zip(labels, shape, strict=True))
    if any(sizes[a] != n for a, n in zip(labels, shape, strict=True)):
        return None
    sizes |= dict(extra)
    return sizes if sizes.keys() >= set(output) else None


def _einsum_shape(x: Array, y: Array, left: str, right: str, output: str, extra: Extra) -> Result | None:
    sizes = _labelled(left + right, x.shape + y.shape, output, extra)
    if sizes is None or len(left) != len(x.shape):
        return None
    return ((tuple([sizes[a] for a in output]), np.result_type(x.dtype, y.dtype)),)


def _relabel_shape(x: Array, labels: str, output: str, extra: Extra) -> Result | None:
    sizes = _labelled(labels, x.shape, output, extra)
    return None if sizes is None else ((tuple([sizes[a] for a in output]), x.dtype),)


def _new_label(*used: str) -> str:
    """Return a character that is not among the labels ``used``."""
    known = set("".join(used))
    return next(c for c in map(chr, range(0x3B1, 0x10000)) if c not in known)


def _einsum_batch(
    op: Op, size: int, /, x: Batched, y: Batched, left: str, right: str, output: str, extra: Extra
) -> Any:
    b = _new_label(left, right, output)
    labels = {"left": b * x.batched + left, "right": b * y.batched + right, "output": b + output}
    return held.einsum(x.value, y.value, extra=extra, **labels)


def _relabel_batch(op: Op, size: int, /, x: Batched, labels: str, output: str, extra: Array) -> Any:
    b = _new_label(labels, output)
    return held.relabel(x.value, labels=b + labels, output=b + output, extra=extra)


def _native_gather(xp: Primitives, x: View, labels: str, kept: str) -> tuple[View, str]:
    """Return ``x`` with repeated and unneeded axes removed, and the labels of the axes that are left.

    A repeated label selects the diagonal.  Axes whose labels are not in ``kept`` are summed.
    """
    unique = _unique(labels)
    if unique != labels:
        size = dict(zip(labels, x.shape, strict=True))
        strides = tuple([sum(s for c, s in zip(labels, x.strides, strict=True) if c == u) for u in unique])
        x = x.strided(tuple([size[u] for u in unique]), strides)
    gone = [k for k, c in enumerate(unique) if c not in kept]
    if gone:
        x = xp.sum(x, axis=tuple([k - x.ndim for k in gone]), keepdims=False)
    return x, "".join(c for c in unique if c in kept)


def _native_scatter(xp: Primitives, z: View, labels: str, output: str, size: dict[str, int]) -> View:
    """Return ``z`` with the axes that ``output`` names, in this order; ``labels`` names its present axes.

    ``z`` is broadcast along labels that it does not have; ``size`` has the length of each label.  If
    ``output`` repeats a label, the values are written to the diagonal of an array of zeros.
    """
    unique = _unique(output)
    z = xp.graph.permute(z, [labels.index(c) for c in unique if c in labels])
    z = xp.graph.reshape(z, tuple([size[c] if c in labels else 1 for c in unique]))
    z = xp.graph.broadcast(z, tuple([size[c] for c in unique]))
    if unique == output:
        return z
    shape = tuple([size[c] for c in output])
    spot, _ = _native_gather(xp, xp.graph.target(shape), output, output)
    return xp.graph.place(shape, z.dtype, 0, [(z, spot.where)])


def _native_relabel(xp: Primitives, x: View, labels: str, output: str, extra: Extra) -> View:
    x, labels = _native_gather(xp, x, labels, output)
    size = {**dict(extra), **dict(zip(labels, x.shape, strict=True))}
    return _native_scatter(xp, x, labels, output, size)


def _native_einsum(
    xp: Primitives, x: View, y: View, left: str, right: str, output: str, extra: Extra
) -> View:
    x, left = _native_gather(xp, xp.view(x), left, output + right)
    y, right = _native_gather(xp, xp.view(y), right, output + left)
    size = {**dict(extra), **dict(zip(left, x.shape, strict=True)), **dict(zip(right, y.shape, strict=True))}
    both = [c for c in left if c in right and c in output]
    within = [c for c in left if c in right and c not in output]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]

    def count(labels: Sequence[str]) -> int:
        return math.prod(size[c] for c in labels)

    a = xp.graph.permute(x, [left.index(c) for c in (*both, *rows, *within)])
    b = xp.graph.permute(y, [right.index(c) for c in (*both, *within, *columns)])
    if not within:  # an outer product
        a = xp.graph.reshape(a, (*a.shape[: len(both)], count(rows), 1))
        b = xp.graph.reshape(b, (*b.shape[: len(both)], 1, count(columns)))
        z = a * b
    else:
        a = xp.graph.reshape(a, (count(both), count(rows), count(within)))
        b = xp.graph.reshape(b, (count(both), count(within), count(columns)))
        z = xp.matmul(a, b)
    labels = [*both, *rows, *columns]
    z = xp.graph.reshape(z, tuple([size[c] for c in labels]))
    return _native_scatter(xp, z, "".join(labels), output, size)


define("einsum", _einsum, _einsum_dx, _einsum_dy, saves="xy", reads=("y", "x"), kind="bilinear",
       params=("left", "right", "output", "extra"), shape=_einsum_shape, batch=_einsum_batch, reference="formula", lower=_native_einsum, sparsity="contract", doc="The Einstein sum of two arrays.")  # fmt: skip
define("relabel", _relabel, _relabel_rule, kind="linear", params=("labels", "output", "extra"),
       shape=_relabel_shape, batch=_relabel_batch, reference="formula", lower=_native_relabel, sparsity="contract", doc="The Einstein sum of one array: a transpose, a sum over axes, a diagonal.")  # fmt: skip


# Public functions -------------------------------------------------------------------------------


@argument_doc
def einsum(*operands: Any, optimize: Any = True, dtype: DTypeLike | None = None) -> Tensor:
    """Sum products of tensors over repeated labels, as ``np.einsum`` does.

    Both forms of NumPy are supported: ``einsum("bij,bjk->bik", x, y)`` and ``einsum(x, [0, 1], y, [1, 2],
    [0, 2])``, with ``...`` for axes that broadcast, repeated labels for diagonals, and implicit outputs.
    Three or more operands are contracted in pairs; backward uses the same order.

    Parameters
    ----------
    *operands : str and array_like
        The subscripts and the operands, or operands and lists of labels.
    optimize : bool, str or sequence, optional
        How to find the order of contractions, as in ``np.einsum``.

    Raises
    ------
    ArgumentError
        If the subscripts are not valid.
    ShapeError
        If the shapes do not match the subscripts.

    >>> x = ad.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> ad.einsum("ii->", x).backward()
    >>> x.grad
    tensor([[1., 0.],
            [0., 1.]], dtype=float64)
    """
    subscripts, values = separated(operands)
    tensors = [asarray(x, dtype=dtype) for x in values]
    if not isinstance(optimize, (bool, list, tuple)) and optimize not in ("greedy", "optimal"):
        raise ArgumentError(
            f"einsum: optimize must be True, False, 'greedy', 'optimal' or a path, not {optimize!r}."
        )
    if isinstance(optimize, (list, tuple)):
        optimize = tuple(tuple(p) if isinstance(p, (tuple, list)) else p for p in optimize)
    shapes = tuple(x.shape for x in tensors)
    reshapes, steps = _program(subscripts, shapes, optimize)
    for i, shape in reshapes:
        tensors[i] = rec.reshape(tensors[i], shape=shape)
    for chosen, params in steps:
        picked = [tensors[i] for i in chosen]
        tensors = [x for i, x in enumerate(tensors) if i not in chosen]
        if not params:
            tensors.append(rec.matmul(*picked))
        else:
            tensors.append((rec.einsum if len(picked) == 2 else rec.relabel)(*picked, **params))
    return tensors[0]


@argument_doc
def einsum_path(*operands: Any, optimize: Any = "greedy", einsum_call: bool = False) -> Any:
    """Return the order in which operands are contracted, and NumPy's report on it.

    Parameters
    ----------
    *operands : str and array_like
        The subscripts and the operands, of which only the shapes are used.
    optimize : bool, str or sequence, optional
        How to find the order, as in ``np.einsum_path``.
    einsum_call : bool, optional
        Accepted for compatibility and not used.

    Returns
    -------
    tuple of list and str
        The path and the report.

    Raises
    ------
    ArgumentError
        If the subscripts are not valid.

    >>> ad.einsum_path("ij,jk->ik", ad.ones((2, 3)), ad.ones((3, 4)))[0]
    ['einsum_path', (0, 1)]
    """
    subscripts, values = separated(operands)
    dummies = [np.broadcast_to(np.float64(0), asarray(x).shape) for x in values]
    try:
        return np.einsum_path(subscripts, *dummies, optimize=optimize)
    except (ValueError, TypeError, KeyError) as error:
        raise ArgumentError(f"einsum_path {subscripts!r}: {error}") from None


# From text to a program -------------------------------------------------------------------------

Program = tuple[tuple[tuple[int, Shape], ...], tuple[tuple[tuple[int, ...], dict[str, Any]], ...]]


@lru_cache(maxsize=1024)
def _program(subscripts: str, shapes: tuple[Shape, ...], optimize: Array) -> Program:
    """Return the plan of an Einstein sum: the operands that are reshaped first, then the list of steps.

    A step contains the indices of the operands that it contracts, their labels and the labels of the result.
    ``subscripts`` and ``optimize`` are the arguments of einsum, and ``shapes`` are those of the operands.
    """
    inputs, output = parsed(subscripts, shapes)
    sizes = label_lengths(subscripts, inputs, shapes)
    reshapes = []
    for i, (labels, shape) in enumerate(zip(inputs, shapes, strict=True)):
        # an axis of length 1 broadcasts along its label; the product is the same without this axis
        thin = [n == 1 and sizes[label] != 1 for label, n in zip(labels, shape, strict=True)]
        if any(thin):
            reshapes.append((i, tuple(n for n, t in zip(shape, thin, strict=True) if not t)))
            inputs[i] = "".join(label for label, t in zip(labels, thin, strict=True) if not t)
    steps: list[tuple[tuple[int, ...], dict[str, Any]]] = []
    left = list(inputs)
    for chosen in _path(inputs, output, sizes, optimize):
        rest = [labels for i, labels in enumerate(left) if i not in chosen]
        if len(chosen) == 1:
            made = output
            params = {"labels": left[chosen[0]], "output": output, "extra": ()}
        else:
            a, b = (left[i] for i in chosen)
            needed = output + "".join(rest)
            made = "".join(label for label in _unique(a + b) if label in needed) if rest else output
            params = {} if _is_matmul(a, b, made) else {"left": a, "right": b, "output": made, "extra": ()}
        steps.append((tuple(chosen), params))
        left = [*rest, made]
    return tuple(reshapes), tuple(steps)


def _is_matmul(a: str, b: str, output: str) -> bool:
    """Return whether contracting arrays with labels ``a`` and ``b`` to ``output`` is a matrix product.

    If so, ``matmul`` is called instead of ``einsum``, because it takes less time to record.
    """
    if not len(a) == len(b) == len(output) > 1 or len({*a, *b}) != len(a) + 1:
        return False
    return a[:-2] == b[:-2] == output[:-2] and a[-1] == b[-2] and output[-2:] == a[-2] + b[-1]


def _path(
    inputs: list[str], output: str, sizes: dict[str, int], optimize: Array
) -> Sequence[tuple[int, ...]]:
    """Return the operands to contract in each step, as tuples of one or two indices.

    The indices are those of ``np.einsum_path``.  ``inputs`` and ``output`` are labels, ``sizes`` has their
    lengths, and ``optimize`` is the argument of einsum.
    """
    if len(inputs) < 3:
        return [tuple(range(len(inputs)))]
    labels = _unique("".join(inputs))
    if len(labels) > len(LETTERS) or optimize is False:
        return [(0, 1)] + [(0, len(inputs) - 1 - i) for i in range(1, len(inputs) - 1)]
    named = str.maketrans(dict(zip(labels, LETTERS, strict=False)))
    dummies = [np.broadcast_to(np.int8(0), tuple(sizes[c] for c in term)) for term in inputs]
    text = (",".join(inputs) + "->" + output).translate(named)
    try:
        path, _ = np.einsum_path(
            text, *dummies, optimize=list(optimize) if isinstance(optimize, tuple) else optimize
        )
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ArgumentError(f"einsum: optimize={optimize!r}: {error}") from None
    return _in_pairs(path[1:], len(inputs))


def _in_pairs(path: Sequence[tuple[int, ...]], count: int) -> Sequence[tuple[int, ...]]:
    """Return a path in which each step with three or more operands is split into steps with two.

    A step is a tuple of indices of operands.  As in ``np.einsum_path``, these operands are removed, and the
    result is appended as the last operand.  ``count`` is the number of operands at the start.
    """
    pairs: list[tuple[int, ...]] = []
    for step in path:
        chosen = sorted(step)
        while len(chosen) > 1:
            a, b = chosen[0], chosen[1]
            pairs.append((a, b))
            count -= 1
            chosen = [c - 2 for c in chosen[2:]] + [count - 1] if len(chosen) > 2 else []
            # the pair was removed, so the indices of the operands behind it are smaller by 2
    return pairs
