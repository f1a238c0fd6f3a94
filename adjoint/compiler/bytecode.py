"""Find in bytecode which variables a function loads, and which attributes it reads from them."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["EVERY", "ITEM", "asked", "loads"]

EVERY = "*"  # the last item of a chain if the name of the attribute is computed: any attribute may be read
ITEM = "[]"  # the last item of a chain if the value has an index: ``x.a[0]``
_ASKING = ("getattr", "hasattr")
_BY_NAME = (*_ASKING, "attrgetter", "methodcaller", "vars", "__dict__")  # the names may be in strings
_BY_TEXT = ("globals", "eval", "exec")  # these read variables whose names are in strings
_IGNORED = ("CACHE", "EXTENDED_ARG", "NOP", "PUSH_NULL")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_ITEMS = {"BINARY_SUBSCR": 2, "BINARY_SLICE": 3, "GET_ITER": 1}  # values that they pop
_CALL = "PRECALL" if "PRECALL" in dis.opmap else "CALL"  # PRECALL: only Python 3.11


class Load(NamedTuple):
    """A variable that a code object loads, and the attributes read from it: ("a", "b") for ``x.a.b``."""

    # "global", "cell" (of a closure), "local", "import" (``name`` is a module), or "free" (attributes of an
    # object that is in no variable; ``name`` is the first attribute)
    kind: str
    name: str
    chain: tuple[str, ...]


@functools.lru_cache(1024)
def loads(outer: types.CodeType) -> list[Load]:
    """Return the variables that a code object loads, including its nested functions and comprehensions."""
    found: list[Load] = []
    codes = [(code, _instructions(code)) for code in _codes(outer)]
    imported: dict[str, Load] = {}  # key: the name of the local variable
    for _, instructions in codes:
        found += _imports(instructions, imported)
    for code, instructions in codes:
        if any(i.argval in _BY_NAME or i.opname == "MATCH_CLASS" for i in instructions):
            found += [Load("free", name, (name,)) for s in _strings(code.co_consts) for name in _names(s)]
        used = 0  # instructions before this index belong to a chain that was already found
        for n, i in enumerate(instructions):
            names = i.argval if isinstance(i.argval, tuple) else (i.argval,)  # tuple: loads two variables
            kind = _kind(i, code is outer)
            if kind is None and "LOAD_FAST" in i.opname and names[-1] in imported:
                kind = "local"
            if kind is None and (i.opname not in (*_ATTRIBUTE, "LOAD_SUPER_ATTR") or n < used):
                continue
            used = n + 1
            while used < len(instructions) and instructions[used].opname in _ATTRIBUTE:
                used += 1
            chain = tuple([x.argval for x in instructions[n + 1 : used]])
            if chain and instructions[n + 1].is_jump_target:  # (a if condition else b).k
                found.append(Load("free", chain[0], chain))
            if _is_item(instructions[used:]):
                chain = (*chain, ITEM)
            if kind is None:
                found.append(Load("free", i.argval, (i.argval, *chain)))
                continue
            each = [Load(kind, name, ()) for name in names[:-1]] + [Load(kind, names[-1], chain)]
            found += [_through(load, imported) for load in each]
            if kind == "global" and i.argval in (*_ASKING, "vars"):
                found += [_through(load, imported) for load in _computed(instructions, n, code is outer)]
    return list(dict.fromkeys(found))


@functools.lru_cache(1024)
def asked(outer: types.CodeType) -> frozenset[str]:
    """Return the names that code may pass to ``hasattr`` or ``getattr``: such attributes may be missing."""
    codes = [code for code in _codes(outer) if any(name in _ASKING for name in code.co_names)]
    return frozenset(name for code in codes for s in _strings(code.co_consts) for name in _names(s))


def _is_item(after: list[dis.Instruction]) -> bool:
    """Return whether the instructions after a load use the value as ``x[i]``, ``x[i:j]`` or in a loop."""
    depth = 1  # the number of values on the stack, from the loaded one
    for i in after:
        if depth == _ITEMS.get(i.opname) or (depth == 2 and i.opname == "BINARY_OP" and i.argrepr == "[]"):
            return True
        if i.opcode in dis.hasjrel:
            return False
        depth += dis.stack_effect(i.opcode, i.arg, jump=False)
        if depth < 1:
            return False
    return False


def _instructions(code: types.CodeType) -> list[dis.Instruction]:
    return [i for i in dis.get_instructions(code) if i.opname not in _IGNORED]


def _kind(i: dis.Instruction, outermost: bool) -> str | None:
    """Return the kind of variable that an instruction loads: "global", "cell" or "local"; None if none.

    Local variables count only if ``outermost`` is true: the code is not that of a nested function.
    """
    if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
        return "global"
    if i.opname.startswith("LOAD") and "DEREF" in i.opname:
        return "cell"
    return "local" if "LOAD_FAST" in i.opname and outermost else None


def _through(load: Load, imported: dict[str, Load]) -> Load:
    """Return ``load``, with an imported variable replaced by the module or attribute that it refers to.

    ``imported`` maps the names of such variables to what was imported.  Other loads are returned unchanged.
    """
    source = imported.get(load.name) if load.kind in ("local", "cell") else None
    return load if source is None else Load("import", source.name, source.chain + load.chain)


def _imports(instructions: list[dis.Instruction], imported: dict[str, Load]) -> Iterator[Load]:
    """Yield a load for each module or object that the code imports.

    The load is also added to ``imported``, by the name of the variable.
    """
    module = ""
    chain: tuple[str, ...] = ()
    whole = False  # true for ``import a.b``, which binds the module ``a``, not ``a.b``
    for n, i in enumerate(instructions):
        if i.opname == "IMPORT_NAME":
            level, names = instructions[n - 2].argval, instructions[n - 1].argval
            whole, chain = names is None, ()
            module = "." * level + (i.argval.partition(".")[0] if whole else i.argval)
        elif i.opname == "IMPORT_FROM":
            chain = (*chain, i.argval) if whole else (i.argval,)
        elif module and i.opname.startswith("STORE"):
            name = i.argval[0] if isinstance(i.argval, tuple) else i.argval  # 3.13: STORE_FAST_LOAD_FAST
            imported[name] = Load("import", module, chain)
            yield imported[name]
        elif module and i.opname not in ("SWAP", "POP_TOP"):
            module = ""


def _computed(instructions: list[dis.Instruction], n: int, outermost: bool) -> Iterator[Load]:
    """Yield a ``Load`` for the object that is passed to ``getattr``, ``hasattr`` or ``vars``.

    ``n`` is the index of the instruction that loads this function.  If the name of the attribute is a
    constant, the chain ends with it, otherwise with ``EVERY``.
    """
    depths = []  # the number of arguments on the stack after each instruction
    depth = 0
    for i in instructions[n + 1 :]:
        if i.opname == _CALL and depth == i.arg:
            break
        if i.is_jump_target or i.opcode in dis.hasjrel:  # a condition among the arguments
            yield Load("free", EVERY, (EVERY,))
            return
        depth += dis.stack_effect(i.opcode, i.arg, jump=False)
        depths.append(depth)
    else:  # a condition among the arguments, for example
        yield Load("free", EVERY, (EVERY,))
        return
    first = _end(depths, 1)
    name = instructions[n + 2 + first : n + 2 + _end(depths, 2)] if depth > 1 else []
    last = EVERY
    if len(name) == 1 and name[0].opname == "LOAD_CONST":
        last = name[0].argval
    start = instructions[n + 1]
    kind = _kind(start, outermost)
    if isinstance(start.argval, tuple):  # one instruction loads the object and the name
        yield Load(kind or "free", start.argval[0] if kind else EVERY, (EVERY,))
        return
    rest = instructions[n + 2 : n + 2 + first]
    if kind is None or not all(i.opname in _ATTRIBUTE for i in rest):
        yield Load("free", last, (last,))  # an item, or the result of a call
    else:
        yield Load(kind, start.argval, (*[i.argval for i in rest], last))


def _end(depths: list[int], count: int) -> int:
    """Return the index of the last instruction of argument ``count``, counted from 1.

    ``depths`` has the number of values on the stack after each instruction.
    """
    found = len(depths) - 1
    while found > 0 and (depths[found] != count or min(depths[found:]) < count):
        found -= 1
    return found


def _strings(constants: tuple[object, ...]) -> Iterator[str]:
    """Yield the strings among the constants of a function, including those in tuples."""
    for c in constants:
        if isinstance(c, tuple):
            yield from _strings(c)
        elif isinstance(c, str):
            yield c


def _names(text: str) -> Iterator[str]:
    """Yield the names of attributes in a string: "a" and "b" for "a.b"."""
    yield from (name for name in text.split(".") if name.isidentifier())


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and the code objects of its nested functions.

    If the code names ``eval``, ``exec`` or ``globals``, its string constants are compiled and yielded too.
    """
    yield code
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            yield from _codes(c)
    if any(name in _BY_TEXT for name in code.co_names):
        for text in _strings(code.co_consts):
            try:
                yield compile(text, "<string>", "exec")
            except (SyntaxError, ValueError):  # not code
                continue
