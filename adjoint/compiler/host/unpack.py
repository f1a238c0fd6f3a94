"""Write the lines that unpack the arguments of a call: dictionaries, tuples, lists, dataclasses, modules."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from adjoint import tree
from adjoint.compiler.capture.arguments import HeldObject
from adjoint.compiler.guards.values import exact
from adjoint.compiler.program.lines import Lines
from adjoint.core.roles import ShellRole

__all__ = ["add_unpacking", "can_unpack"]

_CONTAINERS = (list, tuple, dict)
_COMPARED = (int, bool)  # types of leaves that a program is traced for, and that ``==`` compares exactly
_ABSENT = object()  # in place of a field that was deleted
_CONSTANTS = (str, bytes, type(None))


def can_unpack(structure: tree.Structure, leaves: Sequence[Any], moves: Sequence[int]) -> bool:
    """Return whether generated lines can compare arguments of this structure with those of a call.

    Lists, tuples and dictionaries can be unpacked, not their subclasses, and dataclasses.  ``moves`` has the
    indices of the traced leaves.
    """
    fixed = set(range(len(leaves))) - set(moves)
    return _is_unpacked(structure) and all(
        type(leaves[k]) in _COMPARED or type(leaves[k]) is HeldObject or _is_identical(leaves[k])
        for k in fixed
    )


def _is_identical(value: Any) -> bool:
    """Return whether a value that is not traced equals only itself, such as an optimiser."""
    compares: Any = type(value).__eq__
    return compares is object.__eq__ and exact(value) is value


def _has_fields(s: tree.Structure) -> bool:
    """Return whether this is the structure of a dataclass without static or missing fields."""
    kind: Any = s.kind
    known = dataclasses.is_dataclass(kind)
    if not known or issubclass(kind, _CONTAINERS) or tree.is_registered(kind):
        return False
    return s.rest == {} and s.names == tuple([f".{f.name}" for f in dataclasses.fields(kind)])


def _is_named_tuple(s: tree.Structure) -> bool:
    """Return whether this is the structure of a named tuple, whose elements are read by their places."""
    kind: Any = s.kind
    if not isinstance(kind, type) or kind.__mro__[1:] != (tuple, object) or tree.is_registered(kind):
        return False
    own = {"__iter__", "__getitem__", "__len__"} & {*vars(kind)}
    return hasattr(kind, "_fields") and not own


def _is_unpacked(s: tree.Structure) -> bool:
    if s.kind is tree.Structure.LEAF or isinstance(s.rest, ShellRole):
        return True
    if s.kind is tree.Structure.STATIC:
        return type(s.rest) in _CONSTANTS
    if s.kind is dict and not all(type(key) is str for key in s.rest):
        return False
    known = s.kind in _CONTAINERS or _has_fields(s) or _is_named_tuple(s)
    return known and all(map(_is_unpacked, s.children))


def add_unpacking(
    w: Lines, structure: tree.Structure, leaves: Sequence[Any], moves: Sequence[int], miss: str
) -> None:
    """Add lines that set ``x0``, … to the traced leaves of ``args`` and ``kwargs``.

    ``miss`` is the statement that runs if the arguments have another structure, or other values that are not
    traced.
    """
    _Unpacking(w, leaves, moves, miss).run(structure)


class _Unpacking:
    """Adds the lines for the arguments of one program."""

    def __init__(self, w: Lines, leaves: Sequence[Any], moves: Sequence[int], miss: str) -> None:
        self.w, self.leaves, self.miss = w, leaves, miss
        self.names = {leaf: f"x{k}" for k, leaf in enumerate(moves)}
        self.next = 0  # the index of the next leaf
        self.containers = 0

    def run(self, structure: tree.Structure) -> None:
        """Add the lines for ``args`` and ``kwargs``."""
        for text, s in zip(("args", "kwargs"), structure.children, strict=True):
            self._children(text, s)

    def _unpack(self, text: str, s: tree.Structure) -> None:
        """Add the lines for the value of the expression ``text``."""
        if s.kind is tree.Structure.STATIC:
            self._constant(text, s.rest)
        elif s.kind is tree.Structure.LEAF:
            leaf, name = self.leaves[self.next], self.names.get(self.next)
            self.next += 1
            if name is None:
                self._constant(text, leaf)
            else:
                self.w.add(f"{name} = {text}")
        else:
            name = f"c{self.containers}"
            self.containers += 1
            kind = s.kind.__name__ if s.kind in _CONTAINERS else self.w.name(s.kind)
            if isinstance(s.rest, ShellRole):
                self._module(name, text, s)
                return
            self.w.add(f"{name} = {text}", f"if type({name}) is not {kind}: {self.miss}")
            self._children(name, s)

    def _module(self, name: str, text: str, s: tree.Structure) -> None:
        """Add the lines for a module: the one that was traced, or one that differs in its parameters only.

        The guards of the program compare the parameters and attributes of the one that was traced.
        """
        w, shell = self.w, s.rest
        traced = "".join(f"{w.name(p, 'p')}, " for p in shell.module.parameters())
        names = "".join(f"{self.names[self.next + k]}, " for k in range(s.count))
        self.next += s.count
        w.add(f"{name} = {text}", f"same = {name} is {w.name(shell.module)}")
        w.add(f"{name} = ({traced}) if same else {w.name(shell.parameters_of)}({name})")
        w.add(f"if {name} is None: {self.miss}", *([f"{names}= {name}"] if names else []))

    def _constant(self, text: str, value: Any) -> None:
        """Add the lines that compare a value that is not traced."""
        if type(value) is HeldObject or _is_identical(value):
            self.w.add(f"if {text} is not {self.w.name(HeldObject.open(value))}: {self.miss}")
        elif value is None or type(value) is bool:
            self.w.add(f"if {text} is not {value}: {self.miss}")
        else:
            kind = type(value).__name__
            self.w.add(f"a = {text}", f"if type(a) is not {kind} or a != {self.w.name(value)}: {self.miss}")

    def _children(self, text: str, s: tree.Structure) -> None:
        """Add the lines for the elements of the container in the variable ``text``."""
        if s.kind not in _CONTAINERS and not _is_named_tuple(s):
            absent = self.w.name(_ABSENT)
            for name, child in zip(s.names, s.children, strict=True):
                self._unpack(f"getattr({text}, {name[1:]!r}, {absent})", child)
            return
        if s.kind is dict:
            differs = f"[*{text}] != {list(s.rest)!r}" if s.rest else text
            places = [f"{text}[{key!r}]" for key in s.rest]
        else:
            differs = f"len({text}) != {len(s.children)}"
            places = [f"{text}[{k}]" for k in range(len(s.children))]
        self.w.add(f"if {differs}: {self.miss}")
        for place, child in zip(places, s.children, strict=True):
            self._unpack(place, child)
