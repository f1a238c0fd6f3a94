"""Find in bytecode which variables a function loads, and which attributes it reads from them."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["EVERY", "loads"]

EVERY = "*"  # the last item of a chain if the name of the attribute is computed: any attribute may be read
_BY_NAME = ("getattr", "attrgetter", "methodcaller", "vars", "__dict__")  # the names may be in strings
_BY_TEXT = ("globals", "eval", "exec")  # these read variables whose names are in strings
_IGNORED = ("CACHE", "EXTENDED_ARG", "NOP", "PUSH_NULL")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")


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
            if kind is None:
                found.append(Load("free", i.argval, (i.argval, *chain)))
                continue
            each = [Load(kind, name, ()) for name in names[:-1]] + [Load(kind, names[-1], chain)]
            found += [_through(load, imported) for load in each]
            if kind == "global" and i.argval in ("getattr", "vars"):
                found += [_through(load, imported) for load in _computed(instructions, n, code is outer)]
    return list(dict.fromkeys(found))


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
    """Yield a ``Load`` of all attributes of the variable that is passed to ``getattr`` or ``vars``.

    ``n`` is the index of the instruction that loads ``getattr`` or ``vars``.  Nothing is yielded if the
    argument is not a variable, or if the name of the attribute is a constant.
    """
    depth = 0
    second = None  # the instruction that pushes the name of the attribute
    for i in instructions[n + 1 :]:
        if i.opname in ("PRECALL", "CALL") and depth == i.arg:
            break
        before = depth
        depth += dis.stack_effect(i.opcode, i.arg, jump=False)
        if before < 2 <= depth:
            second = i
    if second is not None and second.opname == "LOAD_CONST":
        return
    first = instructions[n + 1]
    kind = _kind(first, outermost)
    if kind is None:
        return
    chain = []
    for i in instructions[n + 2 :]:
        if i.opname not in _ATTRIBUTE:
            break
        chain.append(i.argval)
    if isinstance(first.argval, tuple):  # one instruction loads the object and the name
        yield Load(kind, first.argval[0], (EVERY,))
    else:
        yield Load(kind, first.argval, (*chain, EVERY))


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
