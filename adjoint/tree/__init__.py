"""Trees: nested lists, tuples, named tuples, dicts, dataclasses and modules.

A *leaf* is a value that is not a container: a tensor, an array, a number.  None, strings, functions, types
and enum members are part of the structure and stay unchanged.  Transforms take trees as arguments and
results; ``register`` adds another container type.

Examples
--------
>>> from adjoint import tree
>>> leaves, structure = tree.flatten({"w": [1.0, 2.0], "name": "layer", "b": None})
>>> leaves
[1.0, 2.0]
>>> tree.unflatten(structure, [3.0, 4.0])
{'w': [3.0, 4.0], 'name': 'layer', 'b': None}
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint import words
from adjoint.errors import InputError, ShapeError, TransformError
from adjoint.tree.containers import LEAF_TYPES, REGISTERED, Structure, flatten, parts_of, structure, unflatten

if TYPE_CHECKING:
    from adjoint.typing import Tree

__all__ = [
    "Structure", "flatten", "flatten_like", "leaves", "map", "paths", "ravel", "register", "spread",
    "structure", "unflatten",
]  # fmt: skip
__dir__ = sorted(__all__).copy


def register(
    cls: type,
    flatten: Callable[[Any], tuple[Iterable[tuple[str, Any]], Any]],
    unflatten: Callable[[Any, Sequence[Any]], Any],
) -> None:
    """Register a class, and its subclasses, as a container.

    Parameters
    ----------
    cls : type
        The class.
    flatten : callable
        A function of an instance; it returns pairs of names and children, and any data needed to
        rebuild it.
    unflatten : callable
        A function of this data and the children; it returns an instance.

    Examples
    --------
    >>> class Pair:
    ...     def __init__(self, a, b):
    ...         self.a, self.b = a, b
    >>> register(Pair, lambda p: ([("a", p.a), ("b", p.b)], None), lambda _, ab: Pair(*ab))
    >>> map(lambda x: x + 1, Pair(1, 2)).b
    3
    """
    if not isinstance(cls, type):
        raise InputError(f"tree.register: expected a class, but got {cls!r}.")
    REGISTERED[cls] = (flatten, unflatten)
    LEAF_TYPES.clear()


def is_registered(cls: type) -> bool:
    """Return whether a class, or a base of it, is registered as a container; modules are registered."""
    return any(base in REGISTERED for base in cls.__mro__)


def ravel(tree: Tree) -> tuple[Any, Callable[[Any], Any]]:
    """Join the leaves of a tree to one vector; return it, and a function that rebuilds the tree.

    Gradients flow through both.  The keys of dictionaries are sorted, as by ``ravel_pytree`` of JAX and
    ``flatten`` of autograd; keys that cannot be compared, and those of an ``OrderedDict``, keep their order.

    Parameters
    ----------
    tree : tree
        The tree; its leaves are tensors, arrays or numbers.

    Returns
    -------
    vector : Tensor or numpy.ndarray
        The elements of all leaves, in this order, with their common dtype.
    unravel : callable
        It takes a vector of this length and returns the tree, with the shapes and dtypes of the leaves.

    Raises
    ------
    ShapeError
        When ``unravel`` is called with a vector of a different length.

    Examples
    --------
    >>> import numpy as np
    >>> vector, unravel = ravel({"w": np.ones((2, 2)), "b": 3.0})
    >>> vector
    array([3., 1., 1., 1., 1.])
    >>> unravel(2 * vector)["w"]
    array([[2., 2.],
           [2., 2.]])
    """
    found, structure = flatten(tree)
    order = ravel_order(structure)
    parts = [leaf if hasattr(leaf, "reshape") else np.asarray(leaf) for leaf in (found[i] for i in order)]
    facts = [(tuple(p.shape), p.dtype) for p in parts]
    ends = np.cumsum([0, *(p.size for p in parts)]).tolist()
    vector: Any = np.concatenate([p.reshape(-1) for p in parts]) if parts else np.zeros(0)

    def unravel(vector: Any) -> Any:
        if tuple(vector.shape) != (ends[-1],):
            raise ShapeError(
                f"unravel: expected a vector of length {ends[-1]}, but got shape {vector.shape}."
            )
        pieces = [vector[a:b].reshape(shape) for a, b, (shape, _) in zip(ends, ends[1:], facts, strict=False)]
        pieces = [p if p.dtype == d else p.astype(d) for p, (_, d) in zip(pieces, facts, strict=True)]
        placed = dict(zip(order, pieces, strict=True))
        return unflatten(structure, [placed[i] for i in range(len(order))])

    return vector, unravel


def ravel_order(structure: Structure, start: int = 0) -> list[int]:
    """Return the positions of the leaves, counted from ``start``, in the order of ``ravel``."""
    if structure.kind is Structure.LEAF:
        return [start]
    parts = []
    for child in structure.children:
        parts.append(ravel_order(child, start))
        start += child.count
    if structure.kind is dict or structure.kind is defaultdict:
        keys = structure.rest if structure.kind is dict else structure.rest[1]
        with contextlib.suppress(TypeError):  # the keys cannot be compared
            parts = [parts[i] for i in sorted(range(len(keys)), key=keys.__getitem__)]
    return [i for part in parts for i in part]


def leaves(tree: Tree) -> list[Any]:
    """Return the leaves of a tree, in order.

    Parameters
    ----------
    tree : tree
        The tree.

    Returns
    -------
    list
        The leaves.

    Examples
    --------
    >>> leaves({"a": 1.0, "b": (2.0, 3.0)})
    [1.0, 2.0, 3.0]
    """
    return flatten(tree)[0]


def paths(tree: Tree, start: str = "") -> list[tuple[str, Any]]:
    """Return each leaf of a tree with its path.

    Parameters
    ----------
    tree : tree
        The tree.
    start : str, optional
        The name of the tree, with which each path starts.

    Returns
    -------
    list of tuple of str and leaf
        The paths and leaves.

    Examples
    --------
    >>> paths({"w": [1.0], "b": 2.0}, "p")
    [("p['w'][0]", 1.0), ("p['b']", 2.0)]
    """
    found, s = flatten(tree)
    return list(zip(s.paths(start), found, strict=True))


def map(function: Callable[..., Any], tree: Tree, *others: Any) -> Any:
    """Apply a function to each leaf of a tree.

    Parameters
    ----------
    function : callable
        A function of one leaf, or of one leaf of each tree.
    tree : tree
        The tree.
    *others : tree
        Other trees of the same structure, whose leaves are further arguments.

    Returns
    -------
    tree
        The tree of results.

    Raises
    ------
    TransformError
        If the structures differ.

    Examples
    --------
    >>> map(lambda x, y: x + y, {"a": 1, "b": (2, 3)}, {"a": 10, "b": (20, 30)})
    {'a': 11, 'b': (22, 33)}
    """
    first, s = flatten(tree)
    columns = [flatten_like(s, o, f"tree.map: argument {i}") for i, o in enumerate(others, 1)]
    return unflatten(s, [function(*row) for row in zip(first, *columns, strict=True)])


def flatten_like(structure: Structure, tree: Tree, name: str, *, holes: bool = False) -> list[Any]:
    """Return the values of a tree at the leaves of a structure.

    Parameters
    ----------
    structure : Structure
        The structure that the tree must have.
    tree : tree
        The tree; at the leaves it may have any value.
    name : str
        The name of the tree in error messages.
    holes : bool, optional
        Whether None may replace a subtree; None is then returned for each leaf of the subtree.

    Returns
    -------
    list
        The values.

    Raises
    ------
    TransformError
        If the structure of the tree differs.

    Examples
    --------
    >>> flatten_like(structure([0, (0, 0)]), [1, None], "axes", holes=True)
    [1, None, None]
    """
    found: list[Any] = []
    _match(structure, tree, name, found, holes)
    return found


def _match(s: Structure, value: Any, name: str, into: list[Any], holes: bool) -> None:
    if holes and value is None:
        into.extend([None] * s.count)
        return
    if s.kind is Structure.LEAF:
        if value is None:
            raise TransformError(f"{name} is None, but a tensor is expected there.")
        into.append(value)
        return
    if s.kind is Structure.STATIC:
        if s.rest is None and value is not None:
            raise TransformError(f"{name} is {words.a(type(value).__name__)}, but None is expected there.")
        return
    parts = parts_of(value)
    if parts is None or parts[0] is not s.kind:
        raise TransformError(
            f"{name} is {words.a(type(value).__name__)}, but {words.a(s.kind.__name__)} is expected: "
            f"{s.describe()}."
        )
    given = dict(zip(parts[2], parts[1], strict=True))
    if holes:  # children without leaves may be missing
        given = {n: None for n, child in zip(s.names, s.children, strict=True) if not child.count} | given
    if set(given) != set(s.names):
        missing = sorted(set(s.names) - set(given))
        extra = sorted(set(given) - set(s.names))
        said = [f"is missing {', '.join(missing)}"] if missing else []
        said += [f"has unexpected {', '.join(extra)}"] if extra else []
        raise TransformError(f"{name} {' and '.join(said)}; expected {s.describe()}.")
    for child, part in zip(s.names, s.children, strict=True):
        _match(part, given[child], name + child, into, holes)


def spread(prefix: Any, structure: Structure, name: str) -> list[Any]:
    """Return one entry for each leaf, from a tree such as ``in_axes`` with one entry for a whole subtree.

    A number or None applies to all leaves below its position.

    Parameters
    ----------
    prefix : tree
        The tree of numbers and None.
    structure : Structure
        The structure with the leaves.
    name : str
        The name of the tree in error messages.

    Returns
    -------
    list
        The entries.

    Raises
    ------
    TransformError
        If ``prefix`` does not match the structure.

    Examples
    --------
    >>> spread((0, None), globals()["structure"](([1.0, 2.0], {"a": 3.0})), "in_axes")
    [0, 0, None]
    """
    if prefix is None or isinstance(prefix, int):
        return [prefix] * structure.count
    parts = parts_of(prefix)
    if structure.kind is Structure.LEAF or parts is None:
        raise TransformError(f"{name} has {prefix!r} where an integer or None is expected.")
    given = dict(zip(parts[2], parts[1], strict=True))
    same = parts[0] is structure.kind or {parts[0], structure.kind} == {list, tuple}
    if not same or set(given) != set(structure.names):
        raise TransformError(
            f"{name} is {prefix!r}, which does not match the structure {structure.describe()}."
        )
    return [
        entry
        for child, part in zip(structure.names, structure.children, strict=True)
        for entry in spread(given[child], part, name + child)
    ]
