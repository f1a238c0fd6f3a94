"""Write the lines that unpack the arguments of a call: dictionaries, tuples and lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adjoint import tree
from adjoint.compiler.program.lines import Lines

__all__ = ["add_unpacking", "can_unpack"]

_CONTAINERS = (list, tuple, dict)
_COMPARED = (int, bool)  # types of leaves that a program is traced for, and that ``==`` compares exactly
_CONSTANTS = (str, bytes, type(None))


def can_unpack(structure: tree.Structure, leaves: Sequence[Any], moves: Sequence[int]) -> bool:
    """Return whether generated lines can compare arguments of this structure with those of a call.

    Only lists, tuples and dictionaries can be unpacked, not their subclasses.  ``moves`` has the indices of
    the traced leaves.
    """
    fixed = set(range(len(leaves))) - set(moves)
    return _is_unpacked(structure) and all(type(leaves[k]) in _COMPARED for k in fixed)


def _is_unpacked(s: tree.Structure) -> bool:
    if s.kind is tree.Structure.LEAF:
        return True
    if s.kind is tree.Structure.STATIC:
        return type(s.rest) in _CONSTANTS
    if s.kind is dict and not all(type(key) is str for key in s.rest):
        return False
    return s.kind in _CONTAINERS and all(map(_is_unpacked, s.children))


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
            self.w.add(f"{name} = {text}", f"if type({name}) is not {s.kind.__name__}: {self.miss}")
            self._children(name, s)

    def _constant(self, text: str, value: Any) -> None:
        """Add the lines that compare a value that is not traced."""
        if value is None or type(value) is bool:
            self.w.add(f"if {text} is not {value}: {self.miss}")
        else:
            kind = type(value).__name__
            self.w.add(f"a = {text}", f"if type(a) is not {kind} or a != {self.w.name(value)}: {self.miss}")

    def _children(self, text: str, s: tree.Structure) -> None:
        """Add the lines for the elements of the container in the variable ``text``."""
        if s.kind is dict:
            differs = f"[*{text}] != {list(s.rest)!r}" if s.rest else text
            places = [f"{text}[{key!r}]" for key in s.rest]
        else:
            differs = f"len({text}) != {len(s.children)}"
            places = [f"{text}[{k}]" for k in range(len(s.children))]
        self.w.add(f"if {differs}: {self.miss}")
        for place, child in zip(places, s.children, strict=True):
            self._unpack(place, child)
