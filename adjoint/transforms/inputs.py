"""Shared parts of transforms: check arguments and results, and record one run of a function.

A transform does not differentiate with respect to the user's tensors.  It runs the function on stand-ins: new
leaves, or aliases that are connected to the original tensors if those are part of a graph.  Derivatives are
taken with respect to these nodes, so that nested derivatives cannot be confused with each other.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from adjoint import tree, words
from adjoint.config import grad_mode, special
from adjoint.config import transform as transform_name
from adjoint.core.convert import asarray, tensor
from adjoint.core.lifted import Lifted, enclosing
from adjoint.core.node import Node, next_seq
from adjoint.core.record import joined_copy, tracked
from adjoint.core.tensor import Tensor, differentiable, note_reading, wrap
from adjoint.engine.run import key_of
from adjoint.errors import ArgumentError, DTypeError, InputError, LostHistoryError, ShapeError, TransformError
from adjoint.transforms.arrays import given_arrays

__all__ = [
    "Place", "Recorded", "as_function", "as_input", "check_argnums", "direction", "name_of", "record_call",
    "released_value", "stand_in",
]  # fmt: skip

_seq = operator.attrgetter("seq")
_NUMBERS = (float, complex, int, np.ndarray, np.generic)


def as_function(transform: str, f: Any) -> Callable[..., Any]:
    """Return ``f`` if it can be called; raise otherwise."""
    if not callable(f):
        form = "\n  For the gradients of a tensor use ad.gradients(loss, [w])."
        raise InputError(
            f"{transform}: expected a function, but got {type(f).__name__}."
            + (form if isinstance(f, Tensor) else "")
        )
    return f


def kind_of(value: Any) -> str:
    """Return the name of a value's type for messages, with the library if it is not adjoint."""
    kind = type(value)
    home = kind.__module__.partition(".")[0]
    return kind.__name__ if home in ("builtins", "adjoint", "__main__") else f"{home}.{kind.__name__}"


def name_of(f: Any) -> str:
    """Return the name of a function for messages."""
    return getattr(f, "__name__", None) or type(f).__name__


def one_of_argnums(transform: str, argnums: Any, argnum: Any) -> Any:
    """Return the positions given as ``argnum`` or ``argnums``; raise if both are given.

    ``transform`` is the name of the caller, for errors.
    """
    if argnum is None:
        return argnums
    if argnums != 0:
        raise ArgumentError(
            f"{transform}: argnum= and argnums= have the same meaning.  Pass only one of them."
        )
    return argnum


def check_argnums(transform: str, argnums: Any, count: int) -> tuple[int, ...]:
    """Return the positions that ``argnums`` names as a tuple of indices from 0.

    ``transform`` is the name of the caller, for errors, and ``count`` the number of positional arguments.
    """
    several = argnums if isinstance(argnums, (tuple, list)) else (argnums,)
    found = []
    for n in several:
        try:
            index = operator.index(n)
        except TypeError:
            index = None
        if index is None or isinstance(n, bool):
            raise InputError(
                f"{transform}: argnums must be an integer or a tuple of integers, not {argnums!r}."
            )
        if not -count <= index < count:
            raise ArgumentError(
                f"{transform}: argnums={argnums!r} is out of range: the function was called with {count} "
                f"positional argument{'s' * (count != 1)}.\n"
                "  Positions start at 0; keyword arguments cannot be differentiated."
            )
        found.append(index % count)
    if not found or len(set(found)) != len(found):
        what = "names no argument" if not found else "names an argument twice"
        raise ArgumentError(f"{transform}: argnums={argnums!r} {what}.")
    return tuple(found)


def argument_name(f: Any, position: int) -> str:
    """Return the name of the parameter of ``f`` at ``position``, or "argument 2" if it is not known."""
    try:
        names = [
            p.name
            for p in inspect.signature(f).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        names = []
    return names[position] if position < len(names) else f"argument {position}"


class Place:
    """The position of a leaf in a tree, formatted on demand for messages.

    ``start`` is the name of the tree, or the function and the position of the argument.
    """

    __slots__ = ("index", "start", "structure")

    def __init__(self, structure: tree.Structure, index: int, start: str | tuple[Any, int]) -> None:
        self.structure = structure
        self.index = index
        self.start = start

    def __str__(self) -> str:
        start = self.start if isinstance(self.start, str) else argument_name(*self.start)
        return list(self.structure.paths(start))[self.index]


def as_input(
    transform: str, leaf: Any, structure: tree.Structure, index: int, start: str | tuple[Any, int]
) -> Tensor:
    """Return a leaf of an argument as a tensor that can be differentiated; raise otherwise.

    ``transform`` is the name of the caller.  The last three arguments are those of ``Place``, which names the
    leaf in messages.
    """
    if isinstance(leaf, Tensor):
        found = leaf
    elif isinstance(leaf, _NUMBERS):
        found = tensor(leaf)
    else:
        raise TransformError(
            f"{transform}: {Place(structure, index, start)} is {words.a(kind_of(leaf))}, "
            "not a tensor, an array or a number.\n"
            "  Convert it (ad.tensor(np.asarray(x))), or pass argnums= without this argument."
        )
    if not differentiable(found.dtype):
        raise DTypeError(
            f"{transform}: {Place(structure, index, start)} is {found.dtype}, "
            "but only floats and complex numbers have derivatives.\n"
            "  Make it a float (x.astype(float), 3.0 for 3), or leave it out of argnums."
        )
    return found


def stand_in(x: Tensor) -> Tensor:
    """Return a new tensor with the values of ``x``, with respect to which a transform differentiates.

    It stays connected to the graph of ``x``.  Inside another transform, it is a value of that transform, so
    that it is not mistaken for a tensor from outside.
    """
    if special.count:
        note_reading(x)
    top = enclosing.get()
    data = x._data
    if top is not None and not (isinstance(data, Lifted) and data.level >= top.level):
        return joined_copy(wrap(top.lift(x if tracked(x) else data)), None)
    return joined_copy(x, key_of(x) if tracked(x) else None)


def _alias(x: Tensor) -> Tensor:
    """Return a new tensor with the data and the node of ``x``.

    An augmented assignment to the new tensor, such as ``+=``, does not change ``x``.
    """
    alias = wrap(x._data)
    alias._node = x._node
    return alias


class Recorded:
    """One run of a function on stand-ins, the tensors that replace its arguments.

    ``mixed`` is True if an output also depends on outside tensors that require grad.  ``outer`` is True if
    derivatives are themselves recorded, because the run is mixed and ``no_grad`` is off.  ``plain`` is True
    if results are converted to arrays, because no argument is a tensor, the run is not ``outer``, and no
    other transform surrounds it.
    """

    __slots__ = (
        "aux", "foreign", "inputs", "mixed", "mode", "outer", "outputs", "plain", "since", "structure",
    )  # fmt: skip

    inputs: list[Tensor]  # the stand-ins
    outputs: list[Tensor]
    structure: tree.Structure  # of the outputs
    aux: Any
    since: int  # the number of the first node of this run
    mode: bool  # the grad mode outside
    mixed: bool
    outer: bool
    plain: bool
    foreign: dict[Any, bool]  # nodes and leaves of the run: whether they depend on more than the stand-ins

    def reaches_outside(self, roots: Iterable[Tensor]) -> bool:
        """Return whether any of these tensors depends on anything other than the stand-ins of this run.

        Each node is visited at most once per run, even if this is called several times.
        """
        foreign, since = self.foreign, self.since
        wanted = [key_of(r) for r in roots if r._node is not None]
        fresh: list[Node] = []
        stack = wanted.copy()
        while stack:
            key = stack.pop()
            if key in foreign:
                continue
            if type(key) is Node and key.seq >= since:
                fresh.append(key)
                foreign[key] = False
                for parent in key.parents:
                    if parent is not None:
                        stack.append(parent)
            else:
                foreign[key] = True
        fresh.sort(key=_seq)
        for node in fresh:
            for parent in node.parents:
                if parent is not None and foreign[parent]:
                    foreign[node] = True
                    break
        return True in [foreign[key] for key in wanted]

    def results(self) -> Any:
        """Return the outputs of the function as a tree of tensors that are not part of this run's graph."""
        if self.mixed or not self.mode:
            values = [self.value(t) for t in self.outputs]
        else:  # no output depends on anything outside
            values = [t if t._node is None else wrap(t._data) for t in self.outputs]
        return tree.unflatten(self.structure, values)

    def value(self, t: Any) -> Any:
        """Return the tensor ``t``, a result of this run, disconnected from the graph of the run."""
        if not isinstance(t, Tensor):
            return t
        if not self.mode:
            return t.detach()  # from all graphs, including those of outer levels
        return t if t._node is None or self.reaches_outside([t]) else wrap(t._data)


def released_value(run: Recorded, result: Any) -> Any:
    """Return a tree of results, disconnected from the graph of the run."""
    return tree.map(run.value, result)


def _pair(transform: str, f: Callable[..., Any], result: Any) -> tuple[Any, Any]:
    """Return the result of a function with auxiliary data; raise if it is not a pair."""
    if isinstance(result, tuple) and len(result) == 2:
        return result
    pair = isinstance(result, tuple)
    got = words.count(len(result), "value") if pair else words.a(type(result).__name__)
    raise TransformError(
        f"{transform}: with has_aux=True {name_of(f)} must return (result, aux), but returned {got}."
    )


def record_call(
    transform: str,
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    positions: Sequence[int],
    has_aux: bool,
) -> tuple[Recorded, list[tree.Structure]]:
    """Run ``f`` with stand-ins for the arguments at ``positions``.

    Return the recorded call and the structures of these arguments.  With ``has_aux``, ``f`` returns a pair: a
    result and auxiliary data.
    """
    run = Recorded()
    run.mode = grad_mode.get()
    replaced = list(args)
    found: list[list[Tensor]] = []
    structures = []
    plain = transform_name.get() is None and enclosing.get() is None
    for i in positions:
        leaves, structure = tree.flatten(args[i])
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                plain = False
        if not leaves:
            name = argument_name(f, i)
            raise TransformError(f"{transform}: {name} contains no tensors: {structure.describe()}.")
        found.append([as_input(transform, v, structure, k, (f, i)) for k, v in enumerate(leaves)])
        structures.append(structure)
    if plain and (kwargs or len(structures) < len(args)):
        plain = given_arrays(*kwargs.values(), *[a for i, a in enumerate(args) if i not in positions])
    run.since = next_seq()
    run.inputs = []
    outer = transform_name.get()
    try:
        grad_mode.set(True)
        transform_name.set(f"ad.{transform}")
        for i, tensors, structure in zip(positions, found, structures, strict=True):
            inputs = [stand_in(t if run.mode else t.detach()) for t in tensors]
            run.inputs.extend(inputs)
            replaced[i] = tree.unflatten(structure, map(_alias, inputs))
        run.foreign = {}
        result = f(*replaced, **kwargs)
    except ValueError as error:
        cause = error.__cause__
        if type(cause) is not LostHistoryError:
            raise
        # in array[i] = x NumPy raises its own error; the error of the tensor is its cause
        raise cause.with_traceback(error.__traceback__) from None
    finally:
        transform_name.set(outer)
        grad_mode.set(run.mode)
    result, run.aux = _pair(transform, f, result) if has_aux else (result, None)
    _take_outputs(transform, f, run, result)
    run.mixed = run.reaches_outside(run.outputs)
    run.outer = run.mode and run.mixed
    run.plain = plain and not run.outer
    return run, structures


def _take_outputs(transform: str, f: Any, run: Recorded, result: Any) -> None:
    leaves, run.structure = tree.flatten(result)
    if not leaves:
        raise TransformError(
            f"{transform}: {name_of(f)} returned {'None' if result is None else 'no tensors'}.\n"
            "  Return the tensor to differentiate."
        )
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and differentiable(leaf._data.dtype):
            continue
        place = Place(run.structure, i, f"the result of {name_of(f)}")
        if not isinstance(leaf, Tensor):
            if not isinstance(leaf, _NUMBERS) or isinstance(leaf, bool):
                raise TransformError(
                    f"{transform}: {place} is {words.a(kind_of(leaf))}, not a tensor, an array or a number.\n"
                    "  Return it as auxiliary data: pass has_aux=True, and return (result, aux)."
                )
            # conversions to numbers never drop a graph silently, so a number is a constant
            leaf = leaves[i] = tensor(float(leaf) if isinstance(leaf, int) else leaf)
        if not differentiable(leaf.dtype):
            raise DTypeError(
                f"{transform}: {place} is {leaf.dtype}, "
                "but only floats and complex numbers have derivatives.\n"
                "  Return it as auxiliary data: pass has_aux=True, and return (result, aux)."
            )
    run.outputs = leaves


def direction(transform: str, place: Place, like: Any, given: Any) -> Tensor:
    """Return ``given``, a tangent or cotangent, as a tensor of the dtype of ``like``; it must have its shape.

    ``place`` names it in messages.
    """
    if isinstance(given, Tensor):
        found = given
    elif isinstance(given, (np.ndarray, np.generic)):
        found = tensor(given)
    elif isinstance(given, (int, float, complex, list, tuple)) and not isinstance(given, bool):
        found = tensor(given, dtype=like.dtype)
    else:
        raise TransformError(
            f"{transform}: {place} is {words.a(kind_of(given))}, not a tensor, an array or a number."
        )
    if found.shape != like.shape:
        raise ShapeError(f"{transform}: {place} has shape {found.shape}, but {like.shape} is expected.")
    if found.dtype == like.dtype:
        return found
    if found.dtype.kind == "c" and like.dtype.kind != "c":
        raise DTypeError(f"{transform}: {place} is {found.dtype}, but {like.dtype} is expected.")
    return asarray(found, dtype=like.dtype)
