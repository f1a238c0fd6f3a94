"""The direct function of a program: a generated function that checks the guards and runs the program.

A call of a compiled function starts in the direct function of the program that ran last.  If the program
matches the call, the direct function runs it and wraps the results.  Otherwise it passes the call to the
general path of the compiled function, which looks for another program or traces a new one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy import ndarray

from adjoint import tree
from adjoint.compiler.capture.sources import hooks_of
from adjoint.compiler.guards.values import exact
from adjoint.compiler.host.call import NativeCall, Outputs, add_call, is_fresh, make_call
from adjoint.compiler.host.unpack import add_unpacking
from adjoint.compiler.program.lines import Lines
from adjoint.compiler.program.scalars import Numbers
from adjoint.compiler.program.symbols import NUMBERS
from adjoint.compiler.replay.replay import build
from adjoint.config import get_default_dtype, special
from adjoint.context import compile_mode, default_dtype, enclosing, grad_mode, sink, transform
from adjoint.core.inplace import is_view
from adjoint.core.lifted import UnexpectedError
from adjoint.core.node import Node
from adjoint.core.tensor import Tensor
from adjoint.tracebacks import hide
from adjoint.transforms.arrays import owned, returned

if TYPE_CHECKING:
    from adjoint.compiler.api.variant import Variant
    from adjoint.compiler.capture.arguments import Wanted
    from adjoint.compiler.capture.trace import Trace
    from adjoint.compiler.host.check import Watch

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
    w = Lines(
        [s.kind for s in v.specs], **owner._asdict(), special=special, new=object.__new__, Tensor=Tensor,
        ndarray=ndarray, asarray=np.asarray, hide=hide,
    )  # fmt: skip
    native: NativeCall | None = getattr(v.execute, "native", None)
    whole = _is_plain(v) or (v.recorder is not None and not v.single)  # the results need a tuple
    locks = v.impure or v.trace.loops or not (v.native is None or v.native.is_atomic())
    with w.block("try:"), w.block("with lock:" if locks else ""):
        _add_checks(w, v, watch)
        with w.block("try:"):
            if native is not None:
                outs = native.add(w, settled=watch is not None and not watch.asks, miss=_MISS)
            else:
                outs = add_call(w, v.program, v.trace, v.built, whole)
            if watch is None and v.watch is None and v.calls < WATCHED and v.can_watch():
                w.add(f"n = {w.name(v)}.calls = {w.name(v)}.calls + 1")
                w.add(f"if n == {WATCHED}: leave({w.name(v.start_watch)}())")
            else:
                counter = f"{w.name(v if watch is None else watch)}.calls"
                w.add(f"{counter} += 1")
                if v.native is not None and v.native.entry is None:
                    w.add(f"if {counter} == {WATCHED}: {w.name(v.hint_of_entry)}()")
            _add_results(w, v, outs)
        with w.block("except IndexError as error:"):
            w.add("better = explained(error, args, kwargs)")
            w.add("if better is None: raise", "raise better from None")
    w.add(f"except {w.name(UnexpectedError)}:", f"    {_MISS}")
    with w.block("except Exception as error:"):
        w.add("hide(error)", "raise")
    return w.function("direct", ["*args", "**kwargs"])


def _is_plain(v: Variant) -> bool:
    """Return whether the results are arrays, because the arguments are arrays and no transform is active."""
    return v.plain and transform.get() is None


def _add_checks(w: Lines, v: Variant, watch: Watch | None) -> None:
    """Add lines that set ``x0``, … to the arguments and leave the function if the program does not fit."""
    given = _traced(v)
    if v.flat:
        w.add(f"if kwargs or {f'len(args) != {v.direct}' if given else 'args'}: {_MISS}")
        w.add(*([f"{given}= args"] if given else []))
    else:
        add_unpacking(w, v.structure, v.fixed, v.moves, _MISS)
    if watch is not None:
        numbers = [k for k, s in enumerate(v.specs) if s.kind in NUMBERS]
        w.add(*(f"if type(x{k}) is not {v.specs[k].kind.__name__}: {_MISS}" for k in numbers))
        arrays = "".join(f"x{k}, " for k in range(v.direct) if k not in numbers)
        w.add(f"if not {w.name(watch.ready, 'ready')}({arrays}): {_MISS}")
        _check_numbers(w, v.trace, _MISS)
    else:
        _add_modes(w)
        if v.specs:
            w.add(f"if not ({' and '.join(_fitting(w, v.specs))}): {_MISS}")
        add_check(w, v.trace, v.guards, v.direct, _MISS)


def _traced(v: Variant) -> str:
    """Return the variables of the traced arguments, each followed by a comma."""
    return "".join(f"x{k}, " for k in range(v.direct))


def _add_modes(w: Lines) -> None:
    """Add a line that leaves the function if a mode of the library, such as the grad mode, has changed."""
    parts = ["special.count"]
    for variable in _CONTEXTS:
        value = variable.get()
        text = repr(value) if value is None or value is True or value is False else w.name(value)
        parts.append(f"{w.name(variable.get, 'mode')}() is not {text}")
    parts.append(f"{w.name(sink.get, 'mode')}() is {'not ' if sink.get() is None else ''}None")
    w.add(f"if {' or '.join(parts)}: {_MISS}")


def _add_results(w: Lines, v: Variant, outs: Outputs) -> None:
    """Add lines that make the function's results from the outputs, and a ``return`` statement."""
    if _is_plain(v):
        if all(kind == "value" for kind, _ in v.outs):
            w.add(f"held = [*found[:{v.count}]]", "found = None", f"{w.name(owned)}(held)")
            w.add(f"return {_tree(w, v.result, [f'held[{at}]' for _, at in v.outs])}")
        else:
            w.add(f"return {w.name(returned)}({w.name(v.results)}(found, ({_traced(v)})))")
        return
    if v.recorder is not None and v.single:
        w.add(*v.recorder.lines(w.name, outs))
    elif v.recorder is not None:
        w.add(f"found = {w.name(v.recorder.record)}(({_traced(v)}), found, {w.name(v.fixed)})")
    made = []
    known: dict[int, str] = {}  # key: index of the array, because a tensor may be returned twice
    for kind, at in v.outs:
        if kind in ("value", "number"):
            if at not in known:
                known[at] = _add_result(w, v, kind, at, outs.texts[at])
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


def _add_result(w: Lines, v: Variant, kind: str, at: int, data: str) -> str:
    """Add the lines that make a result of the function; return an expression for it.

    ``v`` is the program, and ``data`` the expression of its output ``at``.  ``kind`` is "value" if the result
    is a tensor, "number" if it is a Python number.
    """
    made = v.recorder is not None and not v.single  # ``record`` has made tensors
    if kind == "number":  # native code returns all numbers as floats
        array = data if made else f"asarray({data})"
        return f"{v.program.results[at].kind.__name__}({array}.item())"
    if made:
        return data
    node = "node" if v.recorder is not None else w.name(v.spent.nodes[at]) if v.spent.nodes else "None"
    value = v.program.results[at].id
    if v.native is None and all(value != o.id or not is_fresh(i) for i in v.program.body for o in i.outs):
        w.add(f"a = {data}")
        w.add("if type(a) is not ndarray: a = asarray(a)")  # a NumPy scalar, or a subclass of ndarray
        data = "a"
    w.add(
        f"out{at} = new(Tensor)", f"out{at}._data = {data}", f"out{at}._node = {node}",
        f"out{at}._version = 0", f"out{at}._extra = None",
    )  # fmt: skip
    return f"out{at}"


def _tree(w: Lines, structure: tree.Structure, leaves: list[str]) -> str:
    """Return a Python expression that builds a tree (nested containers) from the expressions ``leaves``."""
    kinds = {c.kind for c in structure.children}
    if structure.kind is tree.Structure.LEAF:
        return leaves[0]
    if structure.kind in (list, tuple) and kinds <= {tree.Structure.LEAF}:
        text = "".join(f"{leaf}, " for leaf in leaves)
        return f"[{text}]" if structure.kind is list else f"({text})"
    return f"{w.name(tree.unflatten)}({w.name(structure)}, [{', '.join(leaves)}])"


def make_check(trace: Trace, guards: Sequence[Any], count: int, data: str = "._data") -> Callable[..., bool]:
    """Generate ``holds(*arguments)``, which returns whether all guards of a program hold.

    ``count`` is the number of arguments.  ``data`` is what follows a tensor in the text that reads its shape
    and dtype; the array is not read if it is "".
    """
    w = Lines()
    add_check(w, trace, guards, count, "return False", data)
    w.add("return True")
    return w.function("holds", [f"x{k}" for k in range(count)])


def add_check(
    w: Lines, trace: Trace, guards: Sequence[Any], count: int, miss: str, data: str = "._data"
) -> None:
    """Add the lines that check all guards; ``miss`` is the statement that runs if one does not hold.

    ``count`` is the number of arguments of the generated function.
    """
    w.names |= {"exact": exact, "hooks_of": hooks_of, "Tensor": Tensor}
    _check_tensors(w, trace, miss, data)
    positions = [h.argument for h in trace.held.values() if h.argument is not None]
    if positions and trace.program.writes:  # trace again if an argument is also a captured tensor
        ids = w.name(frozenset(id(h.tensor) for h in trace.held.values() if h.argument is None))
        w.add(f"if {' or '.join(f'id(x{k}) in {ids}' for k in positions)}: {miss}")
    for k in trace.program.written_arguments():  # trace again if it is a view: the trace raises an error
        w.add(f"if {w.name(is_view)}(x{k}): {miss}")
    for g in guards:
        w.add(f"if not {w.name(g.holds, 'g')}(): {miss}")
    _check_numbers(w, trace, miss)
    for function, part, found, _ in trace.decisions:
        if part.results[0].weak:
            continue
        call = w.name(make_call(part, trace, build(part), count), "part")
        given = ", ".join(f"x{k}" for k in range(count))
        w.add(f"if exact({w.name(function)}({call}({given})[0])) != {w.name(exact(found))}: {miss}")
    w.add("a = e = None")


def _check_numbers(w: Lines, trace: Trace, miss: str) -> None:
    """Add lines that run the statement ``miss`` if an outcome that Python read of a number has changed."""
    numbers = Numbers(w)
    parts = [each for each in trace.decisions if each[1].results[0].weak]
    if parts:
        with w.attempt(miss):
            for function, part, found, _ in parts:
                w.add(f"if {numbers.condition(function, part, found, exact)}: raise other_type")


def make_fits(specs: Sequence[Wanted], modes: Any) -> Callable[..., bool]:
    """Generate ``fits(*arguments)``, which returns whether the arguments and the modes match a program.

    ``specs`` has the type, shape, dtype and node that each argument must have, and ``modes`` are the modes of
    the library that are part of the program's key.
    """
    w = Lines(grad_mode=grad_mode, dtype=get_default_dtype, sink=sink, transform=transform)
    parts = _fitting(w, specs)
    parts.append(
        f"(grad_mode.get(), dtype(), sink.get() is None, transform.get() is None) == {w.name(modes[:4])}"
    )
    w.add(f"return {' and '.join(parts)}")
    return w.function("fits", [f"x{k}" for k in range(len(specs))])


def _fitting(w: Lines, specs: Sequence[Wanted]) -> list[str]:
    """Return Python conditions for: the arguments match ``specs``, and no tensor is passed twice."""
    parts = []
    tensors = []
    for k, (kind, shape, dtype, node) in enumerate(specs):
        if kind in NUMBERS:
            parts.append(f"type(x{k}) is {kind.__name__}")
            continue
        data = f"x{k}._data" if kind is Tensor else f"x{k}"
        parts.append(f"type(x{k}) is {w.name(kind, 'type')} and {data}.shape == {shape!r}")
        parts.append(_has_dtype(data, w.name(dtype, "d")))
        if kind is Tensor:
            parts.append(_has_node(w, f"x{k}", node))
            tensors.append(f"x{k}")
    return parts + [f"{a} is not {b}" for n, a in enumerate(tensors) for b in tensors[:n]]


def _has_node(w: Lines, tensor: str, node: Any) -> str:
    """Return a condition: a tensor is in a graph (``node`` is the class ``Node``), or has this node."""
    given = f"type({tensor}._node)" if node is Node else f"{tensor}._node"
    return f"{given} is {w.name(node, 'n')}"


def _has_dtype(array: str, dtype: str) -> str:
    """Return a condition; arrays that were unpickled have dtype objects of their own."""
    return f"({array}.dtype is {dtype} or {array}.dtype == {dtype})"


def _check_tensors(w: Lines, trace: Trace, miss: str, data: str) -> None:
    """Add lines that run the statement ``miss`` if a captured tensor has changed.

    They check the shape, the dtype, the node, the hooks and whether there is a gradient.
    """
    for h in trace.held.values():
        if h.argument is None:
            t, symbol = w.name(h.tensor, "t"), h.symbol
            w.add(f"a = {t}{data}")
            dtype = _has_dtype("a", w.name(symbol.dtype, "d"))
            node = _has_node(w, t, Node if type(h.node) is Node else h.node)
            w.add(f"if a.shape != {symbol.shape!r} or not ({dtype} and {node}): {miss}")
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
