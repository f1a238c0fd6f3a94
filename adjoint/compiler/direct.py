"""The direct function of a program: a generated function that checks the guards and runs the program.

A call of a compiled function starts in the direct function of the program that ran last.  If the program
matches the call, the direct function runs it and wraps the results.  Otherwise it passes the call to the
general path of the compiled function, which looks for another program or traces a new one.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy import ndarray

from adjoint import tree
from adjoint.compiler.guards import Guard, exact, itself, read_attributes
from adjoint.compiler.host import Writer, add_call, is_fresh, make_call
from adjoint.compiler.replay import build
from adjoint.compiler.sources import Held, hooks_of
from adjoint.config import get_default_dtype, special
from adjoint.context import compile_mode, default_dtype, enclosing, grad_mode, sink, transform
from adjoint.core.inplace import is_view
from adjoint.core.node import Node
from adjoint.core.tensor import Tensor
from adjoint.transforms.arrays import owned, returned

if TYPE_CHECKING:
    from adjoint.compiler.call import Wanted
    from adjoint.compiler.trace import Trace
    from adjoint.compiler.variant import Variant
    from adjoint.compiler.watch import Watch

__all__ = ["COPIED", "Owner", "make_check", "make_direct", "make_fits", "new_copy"]

# Modes that are compared by identity.  ``tracing`` is not among them, because ``special.count``, which is
# compared too, is not 0 during a trace.
_CONTEXTS = (compile_mode, enclosing, transform, grad_mode, default_dtype)
COPIED = (ndarray, set, deque, bytearray)  # results that are copied: the caller may change them
_MISS = "return general(args, kwargs)"
WATCHED = 1000  # calls of a NumPy program whose guards Python code checks, before native code checks them


class Owner(NamedTuple):
    """What the direct functions of a compiled function use of it: callbacks and a lock."""

    general: Callable[[Any, Any], Any]  # the general path, given the arguments and the keyword arguments
    explained: Callable[[Exception, Any, Any], Exception | None]  # a better error for an IndexError, or None
    leave: Callable[[Any], None]  # makes the next call take the general path
    lock: Any


def make_direct(v: Variant, watch: Watch | None, owner: Owner) -> Callable[..., Any]:
    """Return a generated function that runs the program ``v``, or calls ``owner.general`` if a guard fails.

    It takes the arguments of the compiled function.  The native check ``watch`` checks the guards; if it is
    None, Python code does.  The lines of ``v.execute`` are copied into the function, because a call of
    ``v.execute`` would take longer than the lines themselves.  While ``watch`` detects changes of the
    hyper-parameters, numbers that depend only on hyper-parameters are not computed again, because a call
    after the last full check has computed them.

    A program that changes nothing runs without the lock.  The lock is needed, however, if the program has
    loops, because they reuse their arrays, or if it is native code during which other threads run.
    """
    w = Writer(**owner._asdict(), special=special, new=object.__new__, Tensor=Tensor, ndarray=ndarray,
               asarray=np.asarray)  # fmt: skip
    native = getattr(v.execute, "writer", None)
    if native is not None:
        w.names |= {**native.names, "slow": lambda *given: owner.general(given, {})}
        w.known = dict(native.known)
    given = "".join(f"x{k}, " for k in range(v.direct))
    w.add(f"if kwargs or {f'len(args) != {v.direct}' if given else 'args'}: {_MISS}")
    if given:
        w.add(f"{given}= args")
    if watch is not None:
        w.add(f"if not {w.name(watch.ready, 'ready')}({given}): {_MISS}")
    else:
        _add_modes(w)
        _add_fits(w, v.specs)
        add_check(w, v.trace, v.guards, v.direct, _MISS)
    w.add("try:")
    start = len(w.lines)
    made = None
    if native is not None:
        w.lines += native.lines[:-1]  # without the return
        for name, array in native.fixed.items() if watch is not None and not watch.asks else ():
            w.names[name] = array
            w.lines[start:] = [line.replace(f"{name}()", name) for line in w.lines[start:]]
    else:
        made = add_call(w, v.program, v.trace, v.built, [s.kind for s in v.specs])
    end = len(w.lines)
    if watch is None and v.watch is None and v.calls < WATCHED and v.can_watch():
        w.add(f"n = {w.name(v)}.calls = {w.name(v)}.calls + 1")
        w.add(f"if n == {WATCHED}: leave({w.name(v.start_watch)}())")
    else:
        w.add(f"{w.name(v if watch is None else watch)}.calls += 1")
    _add_results(w, v)
    if made is not None:
        reads = w.lines[start : start + len(v.program.sources)]
        _name_outputs(w, made, dict([line.strip().split(" = ", 1) for line in reads]), end)
    w.lines[start:] = [f"    {line}" for line in w.lines[start:]]
    w.add("except IndexError as error:")
    w.add("    better = explained(error, args, kwargs)")
    w.add("    if better is None: raise")
    w.add("    raise better from None")
    if v.impure or v.trace.loops or not (v.native is None or v.native.is_atomic()):
        w.lines = ["    with lock:", *(f"    {line}" for line in w.lines)]
    return w.function("direct", ["*args", "**kwargs"])


def _name_outputs(w: Writer, made: list[str], sources: dict[str, str], at: int) -> None:
    """Replace ``found[k]`` by the variable of output ``k`` in the lines of ``w`` from index ``at`` on.

    If the lines also use ``found`` in another way, they are not changed, and a line that sets ``found`` is
    inserted before them.  ``made`` has the variables of the outputs.  ``sources`` maps the variable of each
    input of the program to the expression that reads the input.
    """
    lines = [re.sub(r"found\[(\d+)\]", lambda m: made[int(m[1])], line) for line in w.lines[at:]]
    if not any("found" in line for line in lines):
        known = {text: name for name, text in sources.items()}
        read = re.compile(r"\b\w+\._data\b(?! =)")
        w.lines[at:] = [read.sub(lambda m: known.get(m[0], m[0]), line) for line in lines]
        return
    end = " = ".join(dict.fromkeys([*sources, *(name for name in made if name not in w.names)])) or "s"
    w.lines[at:at] = [f"    found = ({''.join(f'{name}, ' for name in made)})", f"    {end} = None"]


def _add_modes(w: Writer) -> None:
    """Add a line that leaves the function if a mode of the library, such as the grad mode, has changed."""
    parts = ["special.count"]
    for variable in _CONTEXTS:
        value = variable.get()
        text = repr(value) if value is None or value is True or value is False else w.name(value)
        parts.append(f"{w.name(variable.get, 'mode')}() is not {text}")
    parts.append(f"{w.name(sink.get, 'mode')}() is {'not ' if sink.get() is None else ''}None")
    w.add(f"if {' or '.join(parts)}: {_MISS}")


def _add_fits(w: Writer, specs: Sequence[Wanted]) -> None:
    parts = _fitting(w, specs)
    if parts:
        w.add(f"if not ({' and '.join(parts)}): {_MISS}")


def _add_results(w: Writer, v: Variant) -> None:
    """Add lines that make the function's results from the arrays in ``found``, and a ``return`` statement."""
    if v.plain and transform.get() is None:
        if all(kind == "value" for kind, _ in v.outs):
            w.add(f"held = [*found[:{v.count}]]")
            w.add("found = None")
            w.add(f"{w.name(owned)}(held)")
            w.add(f"return {_tree(w, v.result, [f'held[{at}]' for _, at in v.outs])}")
        else:
            w.add(f"return {w.name(returned)}({w.name(v.results)}(found, args))")
        return
    if v.recorder is not None and v.single:
        w.lines += [f"    {line}" for line in v.recorder.lines(w.name)]
    elif v.recorder is not None:
        w.add(f"found = {w.name(v.recorder.record)}(args, found, {w.name(v.fixed)})")
    made = []
    known: dict[int, str] = {}  # key: index of the array, because a tensor may be returned twice
    for kind, at in v.outs:
        if kind in ("value", "number"):
            if at not in known:
                known[at] = _add_result(w, v, kind, at)
            made.append(known[at])
        elif kind == "argument":
            made.append(f"x{at}")
        else:
            made.append(f"{w.name(new_copy)}({w.name(at)})" if kind == "copy" else w.name(at))
    w.add(f"return {_tree(w, v.result, made)}")


def new_copy(value: Any) -> Any:
    """Return a copy of a container that is not a tree; copy also the containers and arrays in a deque."""
    made = value.copy()
    if isinstance(value, deque):
        leaves, structure = tree.flatten(list(value))
        made.clear()
        made.extend(tree.unflatten(structure, [new_copy(v) if isinstance(v, COPIED) else v for v in leaves]))
    return made


def _add_result(w: Writer, v: Variant, kind: str, at: int) -> str:
    """Add the lines that make a result of the function from ``found[at]``; return an expression for it.

    ``v`` is the program.  ``kind`` is "value" if the result is a tensor, "number" if it is a Python number.
    """
    made = v.recorder is not None and not v.single  # ``record`` has made tensors
    if kind == "number":  # native code returns all numbers as floats
        array = f"found[{at}]" if made else f"asarray(found[{at}])"
        return f"{v.program.results[at].kind.__name__}({array}.item())"
    if made:
        return f"found[{at}]"
    node = "node" if v.recorder is not None else w.name(v.spent.nodes[at]) if v.spent.nodes else "None"
    data = f"found[{at}]"
    value = v.program.results[at].id
    if v.native is None and all(value != o.id or not is_fresh(i) for i in v.program.body for o in i.outs):
        w.add(f"a = {data}")
        w.add("if type(a) is not ndarray: a = asarray(a)")  # a NumPy scalar, or a subclass of ndarray
        data = "a"
    for line in (
        f"out{at} = new(Tensor)", f"out{at}._data = {data}", f"out{at}._node = {node}",
        f"out{at}._version = 0", f"out{at}._extra = None",
    ):  # fmt: skip
        w.add(line)
    return f"out{at}"


def _tree(w: Writer, structure: tree.Structure, leaves: list[str]) -> str:
    """Return a Python expression that builds a tree (nested containers) from the expressions ``leaves``."""
    kinds = {c.kind for c in structure.children}
    if structure.kind is tree.Structure.LEAF:
        return leaves[0]
    if structure.kind in (list, tuple) and kinds <= {tree.Structure.LEAF}:
        text = "".join(f"{leaf}, " for leaf in leaves)
        return f"[{text}]" if structure.kind is list else f"({text})"
    return f"{w.name(tree.unflatten)}({w.name(structure)}, [{', '.join(leaves)}])"


def make_check(trace: Trace, guards: Sequence[Any], count: int) -> Callable[..., bool]:
    """Generate ``holds(*arguments)``, which returns whether all guards of a program hold.

    ``count`` is the number of arguments.
    """
    w = Writer()
    add_check(w, trace, guards, count, "return False")
    w.add("return True")
    return w.function("holds", [f"x{k}" for k in range(count)])


def add_check(w: Writer, trace: Trace, guards: Sequence[Any], count: int, miss: str) -> None:
    """Add the lines that check all guards; ``miss`` is the statement that runs if one does not hold.

    ``count`` is the number of arguments of the generated function.
    """
    w.names |= {"exact": exact, "hooks_of": hooks_of, "Tensor": Tensor}
    _check_tensors(w, trace, miss)
    positions = [h.argument for h in trace.held.values() if h.argument is not None]
    if positions and trace.program.writes:  # trace again if an argument is also a captured tensor
        ids = w.name(frozenset(id(h.tensor) for h in trace.held.values() if h.argument is None))
        w.add(f"if {' or '.join(f'id(x{k}) in {ids}' for k in positions)}: {miss}")
    for k in trace.program.written_arguments():  # trace again if it is a view: the trace raises an error
        w.add(f"if {w.name(is_view)}(x{k}): {miss}")
    _check_names(w, [g for g in guards if type(g) is Guard], miss)
    for g in guards:
        if type(g) is not Guard:
            w.add(f"if not {w.name(g.holds, 'g')}(): {miss}")
    for function, part, found, _ in trace.decisions:
        call = w.name(make_call(part, trace, build(part), count), "part")
        given = ", ".join(f"x{k}" for k in range(count))
        w.add(f"if exact({w.name(function)}({call}({given})[0])) != {w.name(exact(found))}: {miss}")
    w.add("a = e = None")


def _check_names(w: Writer, guards: Sequence[Guard], miss: str) -> None:
    """Add lines that check the guards of variables; ``miss`` is the statement that runs if one fails.

    The objects are compared by identity first, which is faster; ``holds()`` is called only if they differ.
    """
    tests = []
    for g in guards:
        holds, value, seen = f"{w.name(g.holds, 'g')}()", _expression(w, g.read), w.name(g.seen)
        if value == seen and not g.mutable:
            continue  # an argument, which is part of the key
        if value is not None and not g.mutable:
            holds = f"({value} is {seen} or {holds})"
        elif value is not None and g.ids is not None and isinstance(g.seen, (list, tuple)):
            holds = f"((a := {value}) is {seen} and [*map(id, a)] == {w.name(g.ids)} or {holds})"
        tests.append(holds)
    if tests:
        for line in ("try:", f"    e = {' and '.join(tests)}", "except Exception: e = False  # deleted"):
            w.add(line)
        w.add(f"if not e: {miss}")


def _expression(w: Writer, read: Any) -> str | None:
    """Return a Python expression for ``read()``, the value that a guard checks; None if there is none."""
    if not isinstance(read, partial):
        return None
    if read.func is read_attributes:
        inner = _expression(w, read.args[0])
        return None if inner is None else ".".join([inner, *read.args[1]])
    if read.func is itself:
        return w.name(read.args[0])
    if read.func is getattr:  # a closure variable
        return f"{w.name(read.args[0])}.cell_contents"
    space = getattr(read.func, "__self__", None)
    return f"{w.name(space)}[{read.args[0]!r}]" if isinstance(space, dict) else None


def make_fits(specs: Sequence[Wanted], modes: Any) -> Callable[..., bool]:
    """Generate ``fits(*arguments)``, which returns whether the arguments and the modes match a program.

    ``specs`` has the type, shape, dtype and node that each argument must have, and ``modes`` are the modes of
    the library that are part of the program's key.
    """
    w = Writer(grad_mode=grad_mode, dtype=get_default_dtype, sink=sink)
    parts = _fitting(w, specs)
    parts.append(f"(grad_mode.get(), dtype(), sink.get() is None) == {w.name(modes[:3])}")
    w.add(f"return {' and '.join(parts)}")
    return w.function("fits", [f"x{k}" for k in range(len(specs))])


def _fitting(w: Writer, specs: Sequence[Wanted]) -> list[str]:
    """Return Python conditions for: the arguments match ``specs``, and no tensor is passed twice."""
    parts = []
    tensors = []
    for k, (kind, shape, dtype, node) in enumerate(specs):
        data = f"x{k}._data" if kind is Tensor else f"x{k}"
        parts.append(f"type(x{k}) is {w.name(kind, 'type')} and {data}.shape == {shape!r}")
        parts.append(f"{data}.dtype is {w.name(dtype, 'd')}")
        if kind is Tensor:
            parts.append(
                f"type(x{k}._node) is {w.name(Node, 'n')}"
                if node is Node
                else f"x{k}._node is {w.name(node)}"
            )
            tensors.append(f"x{k}")
    return parts + [f"{a} is not {b}" for n, a in enumerate(tensors) for b in tensors[:n]]


def _check_tensors(w: Writer, trace: Trace, miss: str) -> None:
    """Add lines that run the statement ``miss`` if a captured tensor has changed.

    They check the shape, the dtype, the node, the hooks and whether there is a gradient.
    """
    for h in trace.held.values():
        if h.argument is None:
            t, symbol = w.name(h.tensor, "t"), h.symbol
            w.add(f"a = {t}._data")
            w.add(
                f"if a.shape != {symbol.shape!r} or a.dtype is not {w.name(symbol.dtype, 'd')}"
                f" or {_node_changed(w, t, h)}: {miss}"
            )
            if h.node is not None:
                w.add(f"e = {t}._extra")
                w.add(
                    "if e is not None and (e.hooks is not None or e.post_hooks is not None)"
                    f" and hooks_of({t}) != {w.name(h.hooks)}: {miss}"
                )
    for h in trace.grad_guards():
        owner = w.name(h.tensor, "t") if h.argument is None else f"x{h.argument}"
        w.add(f"e = {owner}._extra")
        none = "e is None or e.grad is None"
        w.add(f"if {f'not ({none})' if h.grad is None else none}: {miss}")


def _node_changed(w: Writer, t: str, h: Held) -> str:
    """Return a Python condition: the graph node of the captured tensor ``h`` has changed.

    ``t`` is the name of the variable that refers to the tensor.
    """
    if type(h.node) is Node:
        return f"type({t}._node) is not {w.name(Node, 'n')}"
    return f"{t}._node is not {w.name(h.node, 'n')}"
