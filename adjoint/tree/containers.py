"""The structure of trees: how containers are taken apart to leaves and built again."""

from __future__ import annotations

import dataclasses
import enum
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from adjoint import words
from adjoint.errors import InputError
from adjoint.tracebacks import hide

if TYPE_CHECKING:
    from adjoint.typing import Tree

__all__ = ["LEAF_TYPES", "REGISTERED", "Structure", "flatten", "parts_of", "structure", "unflatten"]

# container types to (flatten, unflatten); subclasses use the entry of their base
REGISTERED: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Sequence[Any]], Any]]] = {}


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


def parts_of(value: Any) -> tuple[Any, list[Any], list[str], Any] | None:
    """Return the type, the children, the names of the children and the other data of a container.

    Return None for a leaf.  The names are texts such as "[0]" or ".weight".
    """
    kind = type(value)
    if kind is list or kind is tuple:
        return kind, list(value), [f"[{i}]" for i in range(len(value))], None
    if kind is dict:
        return kind, list(value.values()), [f"[{k!r}]" for k in value], tuple(value)
    for base in kind.__mro__:
        found = REGISTERED.get(base)
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


LEAF_TYPES: set[type] = set()  # cache of leaf types: saves two thirds of the time of small trees


def _flatten(value: Any, into: list[Any]) -> Structure:
    if value is None:
        return _NONE
    if type(value) in LEAF_TYPES:
        into.append(value)
        return _LEAF
    parts = parts_of(value)
    if parts is not None:
        kind, children, names, rest = parts
        return Structure(kind, tuple(names), tuple([_flatten(c, into) for c in children]), rest)
    if isinstance(value, _STATIC_TYPES) or callable(value):
        return Structure(Structure.STATIC, rest=value)
    # cache only types that exist as long as the process
    if type(value).__module__.partition(".")[0] in ("adjoint", "builtins", "numpy"):
        LEAF_TYPES.add(type(value))
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
        try:
            return found, _flatten(tree, found)
        except RecursionError:
            raise InputError(
                "a container is nested deeper than Python's recursion limit allows, or contains itself.\n"
                "  Use a flat list or a dictionary."
            ) from None
    except Exception as error:
        hide(error)
        raise


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
    try:
        given = list(leaves)
        if len(given) != structure.count:
            raise InputError(
                f"tree.unflatten: the structure has {words.count(structure.count, 'leaf', 'leaves')}, but "
                f"got {len(given)}."
            )
        return _build(structure, iter(given))
    except Exception as error:
        hide(error)
        raise


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
        found = REGISTERED.get(base)
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
