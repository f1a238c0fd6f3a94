"""``vmap``: run a function of one element on a whole batch at once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from adjoint import tree, words
from adjoint.config import grad_mode, special
from adjoint.context import within
from adjoint.core.batched import _NOTHING, Batched
from adjoint.core.convert import tensor
from adjoint.core.lifted import enclosing, next_level
from adjoint.core.namespace import rec
from adjoint.core.record import tracked
from adjoint.core.shapes import canonical_axis
from adjoint.core.tensor import Tensor, note_reading, wrap
from adjoint.errors import ArgumentError, InPlaceError, ShapeError, TransformError
from adjoint.tracebacks import door
from adjoint.transforms.arrays import given_arrays, outermost, returned
from adjoint.transforms.inputs import Place, as_function, name_of
from adjoint.typing import Tree

__all__ = ["over_units", "vmap"]

P = ParamSpec("P")
R = TypeVar("R")


def vmap(
    f: Callable[P, R], in_axes: Tree = 0, out_axes: Tree = 0, chunk_size: int | None = None
) -> Callable[P, R]:
    """Return a function that applies ``f`` to all elements of a batch at once.

    Every op runs once on the whole batch.  An op without a batch rule raises an error; ``vmap`` never falls
    back to a loop.  A condition on the values of a batch raises too: use ``ad.where``.

    Parameters
    ----------
    f : callable
        A function of one element.
    in_axes : int, None or tuple
        The batch axis of the positional arguments: one for all, or a tuple with an int, None (not batched)
        or a pytree of them per argument.  Keyword arguments are not batched.
    out_axes : int, None or pytree
        The position of the batch axis in the results; None for a result that is the same for all elements.
    chunk_size : int, optional
        The number of elements that are computed at once, to limit memory.  The default is all.

    Returns
    -------
    callable
        It takes batches and returns batches of results.

    Raises
    ------
    ShapeError
        When called, if the batch axes differ in length.

    Examples
    --------
    >>> import adjoint as ad, numpy as np
    >>> ad.vmap(lambda a, b: a @ b, in_axes=(0, None))(np.eye(3), np.array([1.0, 2.0, 3.0]))
    array([1., 2., 3.])
    """
    as_function("vmap", f)
    if chunk_size is not None and (not isinstance(chunk_size, int) or chunk_size < 1):
        raise ArgumentError(f"vmap: chunk_size must be a positive integer or None, not {chunk_size!r}.")
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)

    @door
    @functools.wraps(f, assigned=("__module__", "__name__", "__qualname__"))
    def mapped(*args: P.args, **kwargs: P.kwargs) -> Any:
        leaves, structure = tree.flatten(args)
        axes = tree.spread(in_axes, structure, "vmap: in_axes")
        where = [Place(s, k, (f, i)) for i, s in enumerate(structure.children) for k in range(s.count)]
        tensors, size = _fronted(where, leaves, axes)
        batch = _Batch(f, structure, tensors, axes, size, kwargs)
        if outermost() and given_arrays(*leaves, *kwargs.values()):
            return returned(_in_chunks(batch, out_axes, chunk_size))
        return _in_chunks(batch, out_axes, chunk_size)

    return mapped


def _fronted(where: list[Place], leaves: list[Any], axes: list[Any]) -> tuple[list[Any], int]:
    """Return the leaves with their batch axes, which ``axes`` names, in front, and the length of the batch.

    ``where`` has the position of each leaf in the arguments, for errors.
    """
    found: list[Any] = []
    sizes: dict[Place, int] = {}
    for place, leaf, axis in zip(where, leaves, axes, strict=True):
        if axis is None:
            found.append(leaf)
            continue
        if not isinstance(leaf, (Tensor, np.ndarray, np.generic, int, float, complex)):
            raise TransformError(
                f"vmap: {place} is {words.a(type(leaf).__name__)}, which has no axes.  Set its entry of "
                f"in_axes "
                "to None."
            )
        t = leaf if isinstance(leaf, Tensor) else tensor(leaf)
        if special.count:
            note_reading(t)
        if not t.ndim:
            raise ShapeError(
                f"vmap: {place} is 0-d and has no axis {axis}.\n"
                "  Set its entry of in_axes to None if it is the same for all elements."
            )
        if not -t.ndim <= axis < t.ndim:
            canonical_axis(f"vmap: in_axes of {place}", axis, t.ndim)  # raises
        source = axis if axis < 0 else axis - t.ndim
        sizes[place] = t.shape[source]
        found.append(_moved(t, source, -t.ndim))
    if not sizes:
        raise ArgumentError(
            "vmap: in_axes is None for every argument, so there is no batch.  Set it to 0 for one argument."
        )
    if len(set(sizes.values())) > 1:
        said = ", ".join(f"{place} has {n}" for place, n in sizes.items())
        raise ShapeError(f"vmap: the batch axes differ in length: {said}.")
    return found, next(iter(sizes.values()))


def _moved(t: Any, source: int, destination: int) -> Any:
    return t if source == destination else rec.moveaxis(t, source=source, destination=destination)


def over_units(
    f: Callable[[Tensor], Any], like: Tensor, out_axes: int = 0, chunk_size: int | None = None
) -> Any:
    """Apply ``f`` under ``vmap`` to all unit vectors, and return the stacked results.

    A unit vector has the shape of ``like``, one element 1 and the others 0.  ``chunk_size`` limits how many
    vectors are processed at once.  Ops that can avoid a product with the identity matrix do so.
    """
    n = like.size
    units = wrap(np.eye(n, dtype=like.dtype).reshape(n, *like.shape))
    if chunk_size is not None and chunk_size < n:
        return vmap(f, out_axes=out_axes, chunk_size=chunk_size)(units)
    structure = tree.structure((units,))
    return _run(_Batch(f, structure, [units], [0], n, {}), out_axes, unit=like.ndim == 1)


class _Batch(NamedTuple):
    """A call of a function on a batch: a tree of arguments whose leaves have their batch axes in front."""

    f: Callable[..., Any]
    structure: tree.Structure
    leaves: list[Any]
    axes: list[Any]  # None for a leaf without a batch axis
    size: int
    kwargs: dict[str, Any]


def _run(batch: _Batch, out_axes: Any, unit: bool = False) -> Any:
    results, shape = _call(batch, unit)
    wanted = tree.spread(out_axes, shape, "vmap: out_axes")
    placed = [_placed(r, a, batch.size) for r, a in zip(results, wanted, strict=True)]
    return tree.unflatten(shape, placed)


def _call(batch: _Batch, unit: bool) -> tuple[list[tuple[Any, bool]], tree.Structure]:
    """Run the function in a new ``vmap``; return the results and their structure.

    Each result is a pair: a value, and whether it has a batch axis.  ``unit`` says that the batch consists of
    all unit vectors.
    """
    f, structure, leaves, axes, size, kwargs = batch
    level = next_level()
    mode = grad_mode.get()
    inputs = [
        leaf if axis is None
        else wrap(Batched(level, size, leaf if mode and tracked(leaf) else leaf._data, True))
        for leaf, axis in zip(leaves, axes, strict=True)
    ]  # fmt: skip
    if unit:
        inputs[0]._data.unit = True
    top = Batched(level, size, _NOTHING, False).marker()
    try:
        result = within(enclosing, top, functools.partial(f, **kwargs), *tree.unflatten(structure, inputs))
        outputs, shape = tree.flatten(result)
        held = [out._data if isinstance(out, Tensor) else None for out in outputs]
    finally:
        changed = top.release()
    if any(all(t is not out for out in outputs) for t in changed):
        raise InPlaceError(
            f"vmap: {name_of(f)} wrote values that differ between the elements into an outside tensor.\n"
            "  Return the values instead, or make the tensor inside the function."
        )
    if not outputs:
        raise TransformError(
            f"vmap: {name_of(f)} returned {'None' if result is None else 'no tensors'}.  Return a tensor."
        )
    found = []
    for i, (out, data) in enumerate(zip(outputs, held, strict=True)):
        if not isinstance(out, (Tensor, np.ndarray, np.generic, int, float, complex)):
            place = Place(shape, i, f"the result of {name_of(f)}")
            raise TransformError(f"vmap: {place} is {words.a(type(out).__name__)}, not a tensor.")
        if isinstance(data, Batched) and data.level == level:
            found.append((data.value, data.batched))
        else:
            found.append((out if isinstance(out, Tensor) else tensor(out), False))
    return found, shape


def _placed(result: tuple[Any, bool], axis: Any, size: int) -> Tensor:
    """Return a result with its batch axis at position ``axis``.

    ``result`` is a tensor and whether it has a batch axis; a tensor without one is repeated ``size`` times.
    """
    value, batched = result
    t = value
    if not isinstance(value, Tensor):
        t = tensor(value) if isinstance(value, np.generic) else wrap(value)
    if axis is None:
        if batched:
            raise TransformError(
                "vmap: out_axes is None for a result that differs between the elements of the batch.\n"
                "  Set out_axes to the position of the batch axis."
            )
        return t
    if not batched:
        t = rec.broadcast_to(t, shape=(size, *t.shape))
    return _moved(t, -t.ndim, canonical_axis("vmap: out_axes", axis, t.ndim))


def _in_chunks(batch: _Batch, out_axes: Any, chunk_size: int | None) -> Any:
    if chunk_size is None or batch.size <= chunk_size:
        return _run(batch, out_axes)
    parts = []
    for start in range(0, batch.size, chunk_size):
        stop = min(start + chunk_size, batch.size)
        some = [x if a is None else x[start:stop] for x, a in zip(batch.leaves, batch.axes, strict=True)]
        parts.append(tree.flatten(_run(batch._replace(leaves=some, size=stop - start), out_axes)))
    shape = parts[0][1]
    joined = []
    for axis, *pieces in zip(
        tree.spread(out_axes, shape, "vmap: out_axes"), *(p for p, _ in parts), strict=True
    ):
        if axis is None:
            joined.append(pieces[0])
        else:
            joined.append(rec.concat(*pieces, axis=canonical_axis("vmap: out_axes", axis, pieces[0].ndim)))
    return tree.unflatten(shape, joined)
