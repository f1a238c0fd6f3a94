"""Find out how code uses the arrays that it reads, to know whether anything but ops reads their elements."""

from __future__ import annotations

import dis
import functools
import types
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from adjoint.compiler import bytecode
from adjoint.compiler.guards import CONTAINERS, MAPPINGS
from adjoint.core.user_code import Position

__all__ = ["UNKNOWN", "Uses", "start", "uses_in"]

_MOST = 100  # at most this many elements of a container are visited
_CONSTANTS = ("LOAD_CONST", "LOAD_SMALL_INT")
_HARMLESS = ("id", "isinstance", "len", "type")  # functions that do not read the elements of an array
_ONE = ("BINARY", "COMPARE_OP", "CONTAINS_OP", "IS_OP", "UNARY", "BUILD", "CALL_FUNCTION_EX", "GET_ITER")
_STORED = ("STORE_FAST", "STORE_DEREF", "STORE_FAST_LOAD_FAST")
_VIEWING = ("ravel", "reshape", "swapaxes", "transpose", "view")  # methods of arrays that return views
# attributes of arrays that share their memory, and those that do not depend on their elements
_VIEWS = frozenset("T imag mT ravel real reshape swapaxes transpose view".split())
_STRUCTURE = frozenset("dtype flags itemsize nbytes ndim shape size strides".split())


class Item(NamedTuple):
    """A step ``[key]`` in the path of a ``Use``; ``known`` is false if the key is computed."""

    known: bool
    key: object


class Use(NamedTuple):
    """What code does with a value that it loads: it follows ``path``, and uses what it finds at ``end``.

    ``path`` has items and names of attributes.  ``end`` is the offset of the instruction that uses the value,
    the name of the local variable to which it is assigned, None if it is unknown, or -1 if the elements of an
    array are not read there.  If ``loops`` is true, the elements are assigned to the variable, in a loop.
    """

    code: types.CodeType
    path: tuple[Item | str, ...]
    end: int | str | None
    loops: bool = False


UNKNOWN = Use((lambda: None).__code__, (), None)


class Uses:
    """The uses of arrays in the code of a function and of the code that it calls.

    ``found`` has the uses by the id of the array: positions in code, or None for a use that is not known.
    """

    def __init__(self) -> None:
        self.found: dict[int, set[Position | None]] = {}
        self.codes: dict[types.CodeType, None] = {}  # the code that was searched
        self.computed = False  # whether code computes names of attributes
        self._holders: dict[tuple[str, int], Any] = {}  # arrays and containers, by the attribute they are in
        self._noted: set[tuple[int, Use]] = set()

    def hold(self, name: str, value: Any) -> None:
        """Remember an array, or a container of arrays, that is the attribute ``name`` of an object."""
        if isinstance(value, (np.ndarray, *CONTAINERS)):
            self._holders[name, id(value)] = value

    def note_attributes(self) -> None:
        """Note the uses of arrays that are attributes: any code that reads such an attribute may use them."""
        for (name, _), value in self._holders.items():
            if self.computed:
                self.note(value, UNKNOWN)
            for code in self.codes:
                for use in uses_in(code).get(("attribute", name), ()):
                    self.note(value, use)

    def note_local(self, value: Any, code: types.CodeType, name: str) -> None:
        """Note the uses of the arrays in ``value``, which a local variable of ``code`` may have."""
        for use in (*uses_in(code).get(("local", name), ()), *uses_in(code).get(("cell", name), ())):
            self.note(value, use)

    def note(self, value: Any, use: Use) -> None:
        """Note a use of an array, or of the arrays in a container."""
        array = type(value) is np.ndarray
        if not (array or isinstance(value, CONTAINERS)) or (id(value), use) in self._noted or use.end == -1:
            return
        self._noted.add((id(value), use))
        code, path, end, loops = use
        if array and _STRUCTURE.isdisjoint(path):
            known = not loops and _VIEWS.issuperset(path)
            if known and isinstance(end, str):
                self.note_local(value, code, end)
            else:
                at = (code, end) if known and isinstance(end, int) else None
                self.found.setdefault(id(value), set()).add(at)
        elif array or (path and path[0] in getattr(value, "_fields", ())):  # a named tuple: an attribute
            return
        elif path and isinstance(path[0], Item):
            for each in _items(value, path[0]):
                self.note(each, use._replace(path=path[1:]))
        elif isinstance(end, str) and not path:
            for each in islice(value, _MOST) if loops else (value,):
                self.note_local(each, code, end)
        else:
            for each in _items(value, Item(False, None)):
                self.note(each, UNKNOWN)


def _items(container: Any, item: Item) -> Iterable[Any]:
    """Return the elements that ``container[key]`` may be."""
    if item.known and isinstance(container, dict):
        return [dict.get(container, item.key)]
    if item.known and type(container) in (list, tuple, deque):
        with suppress(Exception):  # no such element
            return [container[item.key]]
    return islice(container.values() if isinstance(container, MAPPINGS) else container, _MOST)


@functools.lru_cache(1024)
def uses_in(outer: types.CodeType) -> dict[tuple[str, str], list[Use]]:
    """Return the uses of the values that code loads, by kind and name of the variable or attribute.

    The kinds are those of ``Load``, and "attribute".  Nested functions are included.
    """
    found: dict[tuple[str, str], list[Use]] = {}
    for code in bytecode._codes(outer):
        instructions = [
            i
            for i in dis.get_instructions(code)
            if i.opname not in (*bytecode._IGNORED, "PRECALL") or i.opname == "PUSH_NULL"
        ]
        if any(i.argval in bytecode._BY_NAME or i.opname == "MATCH_CLASS" for i in instructions):
            for name in {name for s in bytecode._strings(code.co_consts) for name in bytecode._names(s)}:
                found.setdefault(("attribute", name), []).append(Use(code, (), None))
        for n, i in enumerate(instructions):
            kind = "attribute" if i.opname in ("LOAD_ATTR", "IMPORT_FROM") else bytecode._kind(i, True)
            names = i.argval if isinstance(i.argval, tuple) else (i.argval,)
            for k, name in enumerate(names if kind else ()):
                if i.opname != "STORE_FAST_LOAD_FAST" or k:
                    use = _use(code, instructions, n, len(names) - k)
                    found.setdefault((kind or "", name), []).append(use)
    return found


def start(code: types.CodeType, offset: int) -> int:
    """Return the offset of the instruction that contains ``offset``: its caches belong to it."""
    starts = _starts(code)
    return starts[bisect_right(starts, offset) - 1]


@functools.lru_cache(1024)
def _starts(code: types.CodeType) -> list[int]:
    return [i.offset for i in dis.get_instructions(code)]


def _use(code: types.CodeType, instructions: list[dis.Instruction], n: int, depth: int) -> Use:
    """Return the use of the value that instruction ``n`` loads; above it are ``depth`` - 1 other values."""
    path: list[Item | str] = []
    wrapped = False  # whether the value is now in a new list or tuple
    first = last = n  # ``last`` is the instruction that has made the value
    while first > 0 and instructions[first].opname in bytecode._ATTRIBUTE:
        first -= 1
    callee = instructions[first - 1].argval if first else None
    for k in range(n + 1, len(instructions)):
        i = instructions[k]
        pops, pushes = _effect(i)
        if pops is None:
            return Use(code, tuple(path), None)
        if depth > pops:
            depth += pushes - pops
            continue
        item = i.opname == "BINARY_SUBSCR" or (i.opname == "BINARY_OP" and i.argrepr == "[]")
        if i.opname in bytecode._ATTRIBUTE and not wrapped:
            path.append(i.argval)
            depth = pushes
        elif item and depth == 2 and not wrapped:
            known = k == last + 2 and instructions[k - 1].opname in _CONSTANTS
            path.append(Item(known, instructions[k - 1].argval if known else None))
            depth = 1
        elif i.opname == "CALL" and path and path[-1] in _VIEWING and depth == (i.arg or 0) + 2:
            depth = 1
        elif i.opname in ("BUILD_LIST", "BUILD_TUPLE"):
            wrapped, depth = True, 1
        elif wrapped:
            return Use(code, tuple(path), i.offset if "CALL" in i.opname else None)
        elif i.opname in _STORED:
            return Use(code, tuple(path), _stored(code, i))
        elif i.opname == "GET_ITER" and instructions[k + 1].opname == "FOR_ITER":
            return Use(code, tuple(path), _stored(code, instructions[k + 2]), loops=True)
        else:
            asks = i.opname == "CALL" and depth <= (i.arg or 0) and callee in _HARMLESS
            asks |= i.opname == "IS_OP" or i.opname.endswith(("IF_NONE", "IF_NOT_NONE"))
            return Use(code, tuple(path), -1 if asks else i.offset)
        last = k
    return Use(code, tuple(path), None)


def _stored(code: types.CodeType, i: dis.Instruction) -> str | None:
    """Return the local variable of ``code`` to which an instruction assigns; None if it is not known."""
    name = i.argval[0] if isinstance(i.argval, tuple) else i.argval
    return name if i.opname in _STORED and name not in code.co_freevars else None


def _effect(i: dis.Instruction) -> tuple[int | None, int]:
    """Return how many values an instruction pops from the stack and pushes; (None, 0) if it is not known."""
    if i.opname in bytecode._ATTRIBUTE:
        return 1, 1 + dis.stack_effect(i.opcode, i.arg)
    if i.opname == "CALL":
        return (i.arg or 0) + 2, 1
    if i.opname == "CALL_KW":
        return (i.arg or 0) + 3, 1
    if "JUMP" in i.opname and not i.opname.endswith(("IF_NONE", "IF_NOT_NONE")):
        return None, 0
    if i.opname.startswith(_ONE):
        return 1 - dis.stack_effect(i.opcode, i.arg), 1
    effect = dis.stack_effect(i.opcode, i.arg, jump=False)
    if i.opname.startswith(("LOAD", "PUSH_NULL", "KW_NAMES")) and "SUPER" not in i.opname:
        return 0, effect
    if i.opname == "STORE_FAST_LOAD_FAST":
        return 1, 1
    if i.opname.startswith(("STORE", "POP", "RETURN_VALUE")):
        return -effect, 0
    return None, 0
