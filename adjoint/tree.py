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
import dataclasses
import enum
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint import words
from adjoint.errors import InputError, ShapeError, TransformError

if TYPE_CHECKING:
    from adjoint.typing import Tree

__all__ = [
    "Structure",
    "flatten",
    "flatten_like",
    "leaves",
    "map",
    "paths",
    "ravel",
    "register",
    "spread",
    "structure",
    "unflatten",
]


def __dir__() -> list[str]:
    return sorted(__all__)


# container types to (flatten, unflatten); subclasses use the entry of their base
_REGISTERED: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Sequence[Any]], Any]]] = {}


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
    _REGISTERED[cls] = (flatten, unflatten)
    _LEAF_TYPES.clear()


def is_registered(cls: type) -> bool:
    """Return whether a class, or a base of it, is registered as a container; modules are registered."""
    return any(base in _REGISTERED for base in cls.__mro__)


class Structure:
    """The structure of a tree, without its leaves.

    Parameters
    ----------
    kind : type or str
        The type of the container, or ``Structure.LEAF`` for a leaf, or ``Structure.STATIC`` for a
        constant.
    names : tuple of str, optional
        How each child is reached, such as ``".weight"``, ``"[0]"`` or ``"['key']"``.
    children : tuple of Structure, optional
        The structures of the children.
    rest : optional
        The data needed to rebuild the container, or the value of a constant.

    Examples
    --------
    >>> structure([1.0, (2.0, None)]).kind
    <class 'list'>
    >>> structure([1.0, (2.0, None)]).count
    2
    """

    __slots__ = ("children", "count", "kind", "names", "rest")

    LEAF = "leaf"
    STATIC = "static"

    def __init__(
        self, kind: Any, names: tuple[Any, ...] = (), children: tuple[Structure, ...] = (), rest: Any = None
    ) -> None:
        self.kind = kind
        self.names = names  # how each child is reached: ".weight", "[0]", "['key']"
        self.children = children
        self.rest = rest
        self.count: int = 1 if kind is Structure.LEAF else sum(c.count for c in children)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Structure) or self.kind != other.kind or self.count != other.count:
            return False
        if isinstance(self.kind, type) and issubclass(self.kind, dict):  # the order of keys does not matter
            return dict(zip(self.names, self.children, strict=True)) == dict(
                zip(other.names, other.children, strict=True)
            )
        return self.names == other.names and self.children == other.children and _same(self.rest, other.rest)

    def __hash__(self) -> int:
        return hash((str(self.kind), self.count))

    def __repr__(self) -> str:
        return f"<structure of {words.count(self.count, 'leaf', 'leaves')}: {self.describe()}>"

    def describe(self) -> str:
        """Return the structure as text, with ``*`` for each leaf.

        Returns
        -------
        str
            The text.

        Examples
        --------
        >>> structure({"w": [1.0, 2.0], "b": None}).describe()
        "{'w': [*, *], 'b': None}"
        """
        if self.kind is Structure.LEAF:
            return "*"
        if self.kind is Structure.STATIC:
            return repr(self.rest)
        parts = [c.describe() for c in self.children]
        if self.kind is list:
            return f"[{', '.join(parts)}]"
        if self.kind is tuple:
            return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
        if self.kind is dict:
            return "{" + ", ".join(f"{n[1:-1]}: {p}" for n, p in zip(self.names, parts, strict=True)) + "}"
        inner = ", ".join(f"{n.lstrip('.')}={p}" for n, p in zip(self.names, parts, strict=True))
        return f"{self.kind.__name__}({inner})"

    def paths(self, start: str = "") -> Iterator[str]:
        """Yield the path to each leaf.

        Parameters
        ----------
        start : str, optional
            The name of the tree, with which each path starts.

        Returns
        -------
        iterator of str
            The paths.

        Examples
        --------
        >>> list(structure({"w": [1.0, 2.0]}).paths("params"))
        ["params['w'][0]", "params['w'][1]"]
        """
        if self.kind is Structure.LEAF:
            yield start
        for name, child in zip(self.names, self.children, strict=True):
            yield from child.paths(start + name)


_LEAF = Structure(Structure.LEAF)
_NONE = Structure(Structure.STATIC)
_STATIC_TYPES = (str, bytes, type, enum.Enum)


def _same(a: Any, b: Any) -> bool:
    try:
        return a is b or (type(a) is type(b) and bool(a == b))  # "a" is not the member "a" of an enumeration
    except Exception:
        return False


def _parts(value: Any) -> tuple[Any, list[Any], list[str], Any] | None:
    """Return the type, the children, the names of the children and the other data of a container.

    Return None for a leaf.  The names are texts such as "[0]" or ".weight".
    """
    kind = type(value)
    if kind is list or kind is tuple:
        return kind, list(value), [f"[{i}]" for i in range(len(value))], None
    if kind is dict:
        return kind, list(value.values()), [f"[{k!r}]" for k in value], tuple(value)
    for base in kind.__mro__:
        found = _REGISTERED.get(base)
        if found is not None:
            named, rest = found[0](value)
            pairs = list(named)
            return kind, [v for _, v in pairs], [f".{n}" for n, _ in pairs], rest
    if isinstance(value, tuple):
        fields = getattr(kind, "_fields", None)
        names = [f"[{i}]" for i in range(len(value))] if fields is None else [f".{n}" for n in fields]
        return kind, list(value), names, None
    if isinstance(value, list):
        return kind, list(value), [f"[{i}]" for i in range(len(value))], None
    if isinstance(value, dict):
        factory = value.default_factory if isinstance(value, defaultdict) else None
        return kind, list(value.values()), [f"[{k!r}]" for k in value], (factory, tuple(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        moving, fixed = [], {}
        for f in dataclasses.fields(value):
            if not hasattr(value, f.name):
                continue
            if f.metadata.get("static"):
                fixed[f.name] = getattr(value, f.name)
            else:
                moving.append(f.name)
        return kind, [getattr(value, n) for n in moving], [f".{n}" for n in moving], fixed
    return None


_LEAF_TYPES: set[type] = set()  # cache of leaf types: saves two thirds of the time of small trees


def _flatten(value: Any, into: list[Any]) -> Structure:
    if value is None:
        return _NONE
    if type(value) in _LEAF_TYPES:
        into.append(value)
        return _LEAF
    parts = _parts(value)
    if parts is not None:
        kind, children, names, rest = parts
        return Structure(kind, tuple(names), tuple([_flatten(c, into) for c in children]), rest)
    if isinstance(value, _STATIC_TYPES) or callable(value):
        return Structure(Structure.STATIC, rest=value)
    # cache only types that exist as long as the process
    if type(value).__module__.partition(".")[0] in ("adjoint", "builtins", "numpy"):
        _LEAF_TYPES.add(type(value))
    into.append(value)
    return _LEAF


def flatten(tree: Tree) -> tuple[list[Any], Structure]:
    """Return the leaves of a tree, in order, and its structure.

    Parameters
    ----------
    tree : tree
        The tree.

    Returns
    -------
    tuple of list and Structure
        The leaves and the structure.

    Raises
    ------
    InputError
        If the tree is nested too deeply, or contains itself.

    Examples
    --------
    >>> leaves, structure = flatten({"a": 1.0, "b": (2.0, 3.0)})
    >>> leaves
    [1.0, 2.0, 3.0]
    """
    found: list[Any] = []
    try:
        return found, _flatten(tree, found)
    except RecursionError:
        raise InputError(
            "a container is nested deeper than Python's recursion limit allows, or contains itself.\n"
            "  Use a flat list or a dictionary."
        ) from None


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """Build a tree from its structure and leaves.

    Parameters
    ----------
    structure : Structure
        The structure.
    leaves : iterable
        The leaves, in order.

    Returns
    -------
    tree
        The tree.

    Raises
    ------
    InputError
        If the number of leaves is wrong.

    Examples
    --------
    >>> unflatten(structure([0, 0]), [1, 2])
    [1, 2]
    """
    given = list(leaves)
    if len(given) != structure.count:
        raise InputError(
            f"tree.unflatten: the structure has {words.count(structure.count, 'leaf', 'leaves')}, but got "
            f"{len(given)}."
        )
    return _build(structure, iter(given))


def _build(s: Structure, leaves: Iterator[Any]) -> Any:
    kind = s.kind
    if kind is Structure.LEAF:
        return next(leaves)
    if kind is Structure.STATIC:
        return s.rest
    children = [_build(c, leaves) for c in s.children]
    if kind is list:
        return children
    if kind is tuple:
        return tuple(children)
    if kind is dict:
        return dict(zip(s.rest, children, strict=True))
    for base in kind.__mro__:
        found = _REGISTERED.get(base)
        if found is not None:
            return found[1](s.rest, children)
    if issubclass(kind, tuple):
        return kind(*children) if hasattr(kind, "_fields") else kind(children)
    if issubclass(kind, list):
        return kind(children)
    if issubclass(kind, dict):
        factory, keys = s.rest
        items = zip(keys, children, strict=True)
        return kind(factory, items) if issubclass(kind, defaultdict) else kind(items)
    value = object.__new__(kind)  # a dataclass: __post_init__ has run for the original
    for name, child in zip(s.names, children, strict=True):
        object.__setattr__(value, name[1:], child)
    for name, fixed in s.rest.items():
        object.__setattr__(value, name, fixed)
    return value


def structure(tree: Tree) -> Structure:
    """Return the structure of a tree.

    Parameters
    ----------
    tree : tree
        The tree.

    Returns
    -------
    Structure
        The structure.

    Examples
    --------
    >>> structure([1.0, None])
    <structure of 1 leaf: [*, None]>
    """
    return flatten(tree)[1]


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
    parts = _parts(value)
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
    parts = _parts(prefix)
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
