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
_LOOPS = ("enumerate", "reversed", "zip")
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
    the name of the local variable to which it is assigned, a tuple of such names to which its elements are
    assigned, None if it is unknown, or one of the numbers below.  If a loop makes this assignment, ``loops``
    is the method that returns the elements: "__iter__", "values" or "items".
    """

    code: types.CodeType
    path: tuple[Item | str, ...]
    end: int | str | tuple[str, ...] | None
    loops: str = ""


NOT_READ = -1  # the elements of an array are not read there
RETURNED = -2  # the code returns the value
UNKNOWN = Use((lambda: None).__code__, (), None)


class Uses:
    """The uses of arrays in the code of a function and of the code that it calls.

    ``found`` has the uses by the id of the array: positions in code, or None for a use that is not known.
    """

    def __init__(self) -> None:
        self.found: dict[int, set[Position | None]] = {}
        self.codes: dict[types.CodeType, None] = {}  # the code that was searched
        self.properties: set[types.CodeType] = set()  # the code of properties, which have the same names
        self.computed = False  # whether code computes names of attributes
        self._holders: dict[tuple[str, int], Any] = {}  # arrays and containers, by the attribute they are in
        self._noted: set[tuple[int, Use]] = set()

    def hold(self, name: str, value: Any) -> None:
        """Remember an array, or a container of arrays, that is the attribute ``name`` of an object."""
        if isinstance(value, (np.ndarray, *CONTAINERS)):
            self._holders[name, id(value)] = value

    def note_attributes(self) -> None:
        """Note the uses of arrays that are attributes: any code that reads such an attribute may use them."""
        done: set[tuple[str, int]] = set()
        while todo := self._holders.keys() - done:  # a property may return an attribute
            done |= todo
            for name, value in [(key[0], self._holders[key]) for key in todo]:
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
        if (
            not (array or isinstance(value, CONTAINERS))
            or (id(value), use) in self._noted
            or use.end == NOT_READ
        ):
            return
        self._noted.add((id(value), use))
        code, path, end, loops = use
        for each in value.ravel().tolist() if array and value.dtype.hasobject else ():
            self.note(each, UNKNOWN)
        if array and _STRUCTURE.isdisjoint(path):
            known = not loops and _VIEWS.issuperset(path)
            if known and isinstance(end, str):
                self.note_local(value, code, end)
            elif known and end == RETURNED and code in self.properties:
                self.hold(code.co_name, value)
            else:
                at = (code, end) if known and isinstance(end, int) else None
                self.found.setdefault(id(value), set()).add(at)
        elif array or (path and path[0] in getattr(value, "_fields", ())):  # a named tuple: an attribute
            return
        elif path and isinstance(path[0], Item):
            for each in _items(value, path[0]):
                self.note(each, use._replace(path=path[1:]))
        elif end == RETURNED and not path and code in self.properties:
            self.hold(code.co_name, value)
        elif isinstance(end, (str, tuple)) and not path and hasattr(value, loops or "__iter__"):
            for each in islice(getattr(value, loops)(), _MOST) if loops else (value,):
                self._assign(each, code, end)
        else:
            for each in _items(value, Item(False, None)):
                self.note(each, UNKNOWN)

    def _assign(self, value: Any, code: types.CodeType, to: str | tuple[str, ...]) -> None:
        """Note the uses of ``value``, which ``code`` assigns to a variable, or its elements to variables."""
        if isinstance(to, str):
            self.note_local(value, code, to)
        elif type(value) in (list, tuple):
            for name, each in zip(to, value, strict=False):
                self.note_local(each, code, name)
        else:
            self.note(value, UNKNOWN)


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
            path.append(_item(instructions[k - 1]) if k == last + 2 else Item(False, None))
            depth = 1
        elif i.opname == "CALL" and path and path[-1] in _VIEWING and depth == (i.arg or 0) + 2:
            depth = 1
        elif i.opname in ("BUILD_LIST", "BUILD_TUPLE"):
            wrapped, depth = True, 1
        elif wrapped:
            return Use(code, tuple(path), i.offset if "CALL" in i.opname else None)
        elif (
            i.opname == "CALL" and path and i.arg == 1 and depth == 3 and path[-1] == "get" and k == last + 2
        ):
            path[-1], depth = _item(instructions[k - 1]), 1
        else:
            return _end(code, instructions, k, path, depth, first)
        last = k
    return Use(code, tuple(path), None)


def _item(i: dis.Instruction) -> Item:
    """Return the item whose key an instruction loads."""
    return Item(True, i.argval) if i.opname in _CONSTANTS else Item(False, None)


def _end(
    code: types.CodeType,
    instructions: list[dis.Instruction],
    k: int,
    path: list[Item | str],
    depth: int,
    first: int,
) -> Use:
    """Return the use of a value that instruction ``k`` pops; instruction ``first`` has begun to load it."""
    i, after = instructions[k], [x.opname for x in instructions[k + 1 : k + 3]]
    end: Any = i.offset
    loops = ""
    if i.opname.startswith("STORE") or i.opname == "UNPACK_SEQUENCE":
        end = _targets(code, instructions, k)
    elif i.opname == "RETURN_VALUE":
        end = RETURNED
    elif i.opname == "IS_OP" or i.opname.endswith(("IF_NONE", "IF_NOT_NONE")):
        end = NOT_READ
    elif i.opname == "GET_ITER":
        end, loops = _targets(code, instructions, k + 2) if after[:1] == ["FOR_ITER"] else None, "__iter__"
    elif i.opname == "CALL":
        place = (i.arg or 0) - depth  # of the value among the arguments; negative: it is called
        start = first - 1 - max(0, place)
        simple = start >= 0 and all(bytecode._kind(x, True) for x in instructions[start:first])
        callee = instructions[start].argval if simple else None
        to = _targets(code, instructions, k + 3) if after == ["GET_ITER", "FOR_ITER"] else None
        if place < 0 and to and path and path[-1] in ("values", "items") and i.arg == 0:
            return Use(code, tuple(path[:-1]), to, str(path[-1]))
        if place >= 0 and callee in _HARMLESS:
            end = NOT_READ
        elif place >= 0 and to and callee in _LOOPS:
            at = {"zip": place, "enumerate": 1}.get(callee)
            names = dict(enumerate(to)) if isinstance(to, tuple) else {}
            end, loops = to if at is None else names.get(at), "__iter__"
    return Use(code, tuple(path), end, loops)


def _targets(code: types.CodeType, instructions: list[dis.Instruction], k: int) -> Any:
    """Return the local variable to which instruction ``k`` assigns, or those to which it unpacks a value.

    Return None if they are not known.
    """
    i = instructions[k]
    if i.opname == "UNPACK_SEQUENCE":
        names: list[str] = []
        for x in instructions[k + 1 :]:
            names += x.argval if x.opname == "STORE_FAST_STORE_FAST" else [_targets(code, [x], 0)]
            if len(names) >= (i.arg or 0) or names[-1] is None:
                break
        return tuple(names) if None not in names and len(names) == i.arg else None
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
    if i.opname == "UNPACK_SEQUENCE":
        return 1, effect + 1
    return None, 0
