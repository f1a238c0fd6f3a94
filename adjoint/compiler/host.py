"""The Python part of a call, as two generated functions: one checks the guards; one reads, runs, writes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint.compiler.guards import Guard, itself, read_attributes
from adjoint.compiler.replay import build
from adjoint.compiler.trace import Held, hooks_of
from adjoint.config import get_default_dtype, grad_mode, locked
from adjoint.core.node import Node
from adjoint.core.tensor import Tensor, committing, move_version, wrap
from adjoint.grads.slots import sink

if TYPE_CHECKING:
    from adjoint.compiler.call import Wanted
    from adjoint.compiler.joint import Recorder
    from adjoint.compiler.program import Instruction, Program, Source, Write
    from adjoint.compiler.trace import Trace
    from adjoint.compiler.watch import Watch

__all__ = ["make_call", "make_check", "make_direct", "make_fits", "write"]


Undo = list[tuple[Callable[..., None], Any, Any]]  # how to undo a write: a function and its arguments


def write(undo: Undo, t: Tensor, value: Any) -> None:
    """Replace a tensor's array by one that nothing else uses, and increment the tensor's version."""
    undo.append((_set_data, t, t._data))
    t._data = value
    move_version(t)


def _set_data(t: Tensor, data: Any) -> None:
    t._data = data


def set_grad(undo: Undo, t: Tensor, value: Any) -> None:
    """Set the gradient of a tensor; None deletes it."""
    undo.append((_put_grad, t, None if t._extra is None else t._extra.grad))
    _put_grad(t, None if value is None else wrap(value))


def _put_grad(t: Tensor, grad: Any) -> None:
    t.grad = grad


def set_grads(undo: Undo, tensors: list[Tensor], *values: Any) -> None:
    """Set the gradients of several tensors."""
    locked(committing, _set_grads, undo, tensors, values)


def _set_grads(undo: Undo, tensors: list[Tensor], values: Sequence[Any]) -> None:
    for t, value in zip(tensors, values, strict=True):
        extra = t._extra or t._need_extra()
        undo.append((_put_grad, t, extra.grad))
        extra.grad = wrap(value)


def drop_grads(undo: Undo, tensors: list[Tensor]) -> None:
    """Set the gradients of tensors to None."""
    for t in tensors:
        if t._extra is not None and t._extra.grad is not None:
            set_grad(undo, t, None)


def set_item(undo: Undo, container: Any, key: Any, value: Any) -> None:
    """Assign an element of a list or a dictionary; append to ``undo`` how to restore the old element."""
    undo.append((partial(container.__setitem__, key), container[key], None))
    container[key] = value


def take_back(undo: Undo) -> None:
    """Undo all writes in the list ``undo``, in reverse order."""
    for function, a, b in reversed(undo):
        if isinstance(function, partial):
            function(a)
        else:
            function(a, b)


class _Writer:
    """Collects the lines of a generated function and the objects that they refer to."""

    def __init__(self, **names: Any) -> None:
        self.lines: list[str] = []
        self.names = {"__name__": "adjoint.compiled", **names}
        self.known: dict[int, str] = {}
        self.fixed: dict[str, Any] = {}  # arrays that functions return, by name; see ``make_direct``

    def name(self, value: Any, prefix: str = "k") -> str:
        """Return a variable name for an object."""
        found = self.known.get(id(value))
        if found is None:
            found = self.known[id(value)] = f"{prefix}{len(self.known)}"
            self.names[found] = value
        return found

    def add(self, line: str) -> None:
        """Append a line to the body of the generated function."""
        self.lines.append(f"    {line}")

    def function(self, name: str, args: Sequence[str]) -> Callable[..., Any]:
        """Compile the lines to a function with the parameters ``args``."""
        source = "\n".join([f"def {name}({', '.join(args)}):", *self.lines])
        exec(compile(source, "<ad.compile>", "exec"), self.names)
        made: Callable[..., Any] = self.names[name]
        made.__doc__ = source
        return made


def make_check(trace: Trace, guards: Sequence[Any], count: int) -> Callable[..., bool]:
    """Return ``holds(*arguments)``, which returns whether all guards of a program hold.

    ``count`` is the number of arguments.
    """
    w = _Writer(same=np.array_equal, hooks_of=hooks_of, Tensor=Tensor)
    _check_tensors(w, trace)
    positions = [h.argument for h in trace.held.values() if h.argument is not None]
    if positions and trace.program.writes:  # an argument that is also a captured tensor needs another trace
        ids = w.name(frozenset(id(h.tensor) for h in trace.held.values() if h.argument is None))
        w.add(f"if {' or '.join(f'id(x{k}) in {ids}' for k in positions)}: return False")
    _check_names(w, [g for g in guards if type(g) is Guard])
    for g in guards:
        if type(g) is not Guard:
            w.add(f"if not {w.name(g.holds, 'g')}(): return False")
    for array, copy in trace.fixed:
        w.add(f"if not same({w.name(array)}, {w.name(copy)}): return False")
    for function, part, found, _ in trace.decisions:
        call = w.name(make_call(part, trace, build(part), count), "part")
        given = ", ".join(f"x{k}" for k in range(count))
        w.add(f"if {w.name(function)}({call}({given})[0]) != {w.name(found)}: return False")
    w.add("return True")
    return w.function("holds", [f"x{k}" for k in range(count)])


def _check_names(w: _Writer, guards: Sequence[Guard]) -> None:
    """Add the checks of variables; a guard is called only if the object is not the same as before."""
    lines = []
    for g in guards:
        holds, value, seen = f"{w.name(g.holds, 'g')}()", _expression(w, g.read), w.name(g.seen)
        if value == seen and not g.mutable:
            continue  # an argument, which is part of the key
        if value is not None and not g.mutable:
            holds = f"({value} is {seen} or {holds})"
        elif value is not None and g.ids is not None and isinstance(g.seen, (list, tuple)):
            holds = f"((a := {value}) is {seen} and [*map(id, a)] == {w.name(g.ids)} or {holds})"
        lines.append(f"    if not {holds}: return False")
    if lines:
        for line in ("try:", *lines, "except Exception: return False  # deleted"):
            w.add(line)


def _expression(w: _Writer, read: Any) -> str | None:
    """Return an expression for the value that a guard reads; None if ``read`` must be called."""
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
    """Return ``fits(*arguments)``, which returns whether the arguments match the key of a program."""
    w = _Writer(Tensor=Tensor, grad_mode=grad_mode, dtype=get_default_dtype, sink=sink)
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
    parts += [f"{a} is not {b}" for n, a in enumerate(tensors) for b in tensors[:n]]
    parts.append(f"(grad_mode.get(), dtype(), sink.get() is None) == {w.name(modes[:3])}")
    w.add(f"return {' and '.join(parts)}")
    return w.function("fits", [f"x{k}" for k in range(len(specs))])


def make_call(program: Program, trace: Trace, run: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return ``call(*arguments)``, which reads the sources, calls ``run``, writes, and returns the outputs.

    ``count`` is the number of arguments.
    """
    slow = partial(_make_python_call, program, trace, run, count)
    return _make_native_call(program, trace, run, count, _later(slow)) or slow()


def _later(make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """Return a function that calls the result of ``make()``; ``make`` is called at the first call."""
    made = functools.cache(make)
    return lambda *args: made()(*args)


def _make_python_call(
    program: Program, trace: Trace, run: Callable[..., Any], count: int
) -> Callable[..., Any]:
    """Return a ``call`` that reads and writes by Python."""
    w = _Writer(
        Tensor=Tensor, own=own, write=write, set_grad=set_grad, set_grads=set_grads,
        drop_grads=drop_grads, set_item=set_item, take_back=take_back,
    )  # fmt: skip
    given = [_read(w, s.kind, s.owner) for s in program.sources]
    for k, each in enumerate(given):
        w.add(f"s{k} = {each}")
    names = [f"s{k}" for k in range(len(given))]
    w.add(f"found = {w.name(run, 'run')}({', '.join(names)})")
    shared = _shared(program, trace)
    if shared:
        w.add(f"found = own(found, {w.name(shared)}, ({', '.join(names)}{',' if names else ''}))")
    w.add(f"{' = '.join(names) or 's'} = None")  # a reference here would force a copy before each write
    if program.writes:
        w.add("undo = []")
        w.add("try:")
        _write_all(w, program)
        w.add("except BaseException:")
        w.add("    take_back(undo)")
        w.add("    raise")
    w.add("return found")
    return w.function("call", [f"x{k}" for k in range(count)])


def _make_native_call(
    program: Program, trace: Trace, run: Any, count: int, slow: Callable[..., Any]
) -> Callable[..., Any] | None:
    """Return a ``call`` whose native entry reads and writes tensors; None if there is no native entry."""
    if getattr(run, "entry", None) is None or (program.writes and not run.in_order):
        return None
    if any(s.kind == "draw" for s in program.sources):  # where Python must take over, it would draw again
        return None
    w = _Writer(Tensor=Tensor, slow=slow, exchange=exchange, take_back=take_back, set_grad=set_grad,
                write=write)  # fmt: skip
    owners: list[Any] = []
    given = [f"x{k}" for k in range(count)]
    fixed = _fixed_numbers(program)
    for s in program.sources:
        if s.kind in ("argument", "tensor", "array") and not s.value.weak:
            owners.append(s.owner)
        else:
            owners.append(len(given))
            inline = s.kind == "numbers" and s not in fixed and hasattr(s.owner, "text")
            given.append(s.owner.text(w.name) if inline else _read(w, s.kind, s.owner))
    writes = _Writes(program, trace)
    if writes.twice() or (program.writes and writes.places != len(run.fresh)):
        return None
    native = run.entry_for(owners, writes.swapped, len(given), writes.graded)
    containers: dict[str, str] = {}
    for k, (each, _) in enumerate(writes.cells):
        text = _container(w, each.owner[0])
        if text not in containers:
            containers[text] = f"c{k}"
            w.add(f"c{k} = {text}")
        w.add(f"o{k} = {containers[text]}[{w.name(each.owner[1])}]")
    before = {_read(w, "cell", each.owner): f"o{k}" for k, (each, _) in enumerate(writes.cells)}
    given = [before.get(text, text) for text in given]
    w.add(f"found = {w.name(native.call, 'entry')}({', '.join(given)})")
    w.add(f"if found is NotImplemented: return slow({', '.join(given[:count])})")
    if not run.in_order:  # one array is several outputs, as the result of exp, which its backward reads
        w.add(f"found = ({''.join(f'found[{k}], ' for k in run.order)})")
    if writes.cells or writes.others:
        undone = any(each.kind != "call" for each, _ in writes.others)
        if undone:
            w.add("undo = []")
        w.add("try:")
        owned = [each.owner for each, _ in writes.cells]
        cells = [f"{containers[_container(w, held)]}[{w.name(key)}]" for held, key in owned]
        for cell, (_, at) in zip(cells, writes.cells, strict=True):
            w.add(f"    {cell} = found[{at}]")
        for each, at in writes.others:
            _write(w, each, at)
        w.add("except BaseException:")
        if undone:
            w.add("    take_back(undo)")
        for k, cell in enumerate(cells):
            w.add(f"    {cell} = o{k}")
        w.add(f"    exchange({w.name(writes.swapped)}, {w.name(writes.graded)}, found)")
        w.add("    raise")
    w.add("return found")
    made = w.function("call", given[:count])
    w.fixed = {w.name(s.owner, "r"): s.owner.array for s in fixed}
    made.writer = w  # type: ignore[attr-defined]  # for ``make_direct``
    return made


def _fixed_numbers(program: Program) -> list[Source]:
    """Return the sources of numbers that change only if hyper-parameters of an optimiser change."""
    used: dict[int, set[int]] = {
        s.value.id: set() for s in program.sources if s.kind == "numbers" and hasattr(s.owner, "constant")
    }
    for i in program.live() if used else ():
        for a in i.args:
            if getattr(a, "id", None) in used:
                used[a.id].add(i.params.get("k", -1))
    return [s for s in program.sources if s.value.id in used and s.owner.constant(used[s.value.id])]


def make_direct(
    execute: Callable[..., Any], count: int, watch: Watch, node: Any, recorder: Recorder | None
) -> Callable[..., Any] | None:
    """Return a function that checks the guards natively, runs the program, and returns one tensor.

    It returns NotImplemented if something has changed.  ``node`` is the node of the result; a recorder makes
    a new one at each call.  None is returned instead of a function if there is no native entry.  The lines of
    ``execute``, which ``make_call`` made, are repeated here, because calling it would take longer than
    running them.  While the native check watches the hyper-parameters, numbers that depend only on them are
    not read again: a call after the last full check has read them.
    """
    native = getattr(execute, "writer", None)
    if native is None:
        return None
    w = _Writer(ready=watch.ready, watch=watch, node=node, new=object.__new__, Tensor=Tensor)
    w.add("if not ready(*args): return NotImplemented")
    w.names |= {**native.names, "slow": lambda *_: NotImplemented}
    if count:
        w.add(f"{', '.join(f'x{k}' for k in range(count))}, = args")
    lines = native.lines[:-1]  # without the return
    for name, array in native.fixed.items() if not watch.asks else ():
        w.names[name] = array
        lines = [line.replace(f"{name}()", name) for line in lines]
    w.lines += lines
    if recorder is not None:
        w.known = dict(native.known)
        w.lines += [f"    {line}" for line in recorder.lines(w.name)]
    for line in (
        "watch.failures = 0", "watch.calls += 1", "t = new(Tensor)", "t._data = found[0]", "t._node = node",
        "t._version = 0", "t._extra = None", "return t",
    ):  # fmt: skip
        w.add(line)
    return w.function("direct", ["*args"])


class _Writes:
    """The writes of a program with their positions in the outputs: by the native entry, and the others."""

    def __init__(self, program: Program, trace: Trace) -> None:
        empty = {id(h.tensor) for h in trace.grad_guards() if h.argument is None and h.grad is None}
        self.swapped: list[tuple[Tensor, int]] = []  # tensors that get new arrays
        self.graded: list[tuple[Tensor, int]] = []  # tensors that get new gradients
        self.cells: list[tuple[Write, int]] = []
        self.others: list[tuple[Write, int]] = []
        self.places = len(program.results)
        for each in program.writes:
            at = self.places
            self.places += sum(v is not None for v in each.values)
            if each.kind == "data" and type(each.owner) is Tensor:
                self.swapped.append((each.owner, at))
            elif each.kind == "cell":
                self.cells.append((each, at))
            elif each.kind == "grad" and type(each.owner) is Tensor and each.values[0] is not None:
                self.graded.append((each.owner, at))
            elif each.kind != "grad" or each.values[0] is not None or id(each.owner) not in empty:
                self.others.append((each, at))
        self.others.sort(key=lambda other: other[0].kind == "call")  # the updates of optimisers come last

    def twice(self) -> bool:
        """Return whether the array or the gradient of a tensor is written twice."""
        return any(len({id(t) for t, _ in each}) < len(each) for each in (self.swapped, self.graded))


def exchange(
    swapped: list[tuple[Tensor, int]], graded: list[tuple[Tensor, int]], found: tuple[Any, ...]
) -> None:
    """Put the previous arrays and gradients, which are in ``found``, back into the tensors.

    ``swapped`` and ``graded`` are pairs of a tensor and the index in ``found`` of its array or gradient.
    """
    for t, place in swapped:
        t._data = found[place]
    for t, place in graded:
        _put_grad(t, found[place])


def _write_all(w: _Writer, program: Program) -> None:
    """Generate the lines that write: first the writes that can be undone, then the updates of optimisers."""
    place = len(program.results)
    dropped: list[Tensor] = []
    owners: list[Tensor] = []
    values: list[str] = []
    calls = []
    for each in program.writes:
        if each.kind == "grad" and not isinstance(each.owner, int):
            if each.values[0] is None:
                dropped.append(each.owner)
            else:
                owners.append(each.owner)
                values.append(f"found[{place}]")
                place += 1
        elif each.kind == "call":
            calls.append((each, place))
            place += len(each.values)
        else:
            place = _write(w, each, place)
    if owners:
        w.add(f"    set_grads(undo, {w.name(owners)}, {', '.join(values)})")
    if dropped:
        w.add(f"    drop_grads(undo, {w.name(dropped)})")
    for each, at in calls:
        _write(w, each, at)


def own(found: tuple[Any, ...], shared: Sequence[int], given: tuple[Any, ...]) -> list[Any]:
    """Return the outputs ``found``; copy those at the positions ``shared`` that share memory with inputs.

    ``given`` are the inputs.
    """
    outs, ids = list(found), {*map(id, given)}
    for k in shared:
        value = outs[k]
        if value.base is not None or id(value) in ids:
            outs[k] = value.copy("K")  # BLAS rounds by the layout
    return outs


# Ops, besides ufuncs and operators, whose result is always a new array.
_FRESH = frozenset(("linear", "matmul", "mean", "mse", "sum"))


def _shared(program: Program, trace: Trace) -> list[int]:
    """Return the positions of outputs that may share memory with arrays that the user can write to.

    The memory of tensors may be shared: a write into a tensor copies memory that something else holds.
    """
    tensors = {h.argument for h in trace.held.values()}
    users = set()
    for s in program.sources:
        if s.kind not in _OWN and not (s.kind == "argument" and s.owner in tensors):
            users.add(s.value.id)
    for i in program.body:
        if not _is_fresh(i):
            # a view has the dtype of its base, or is a part of complex numbers
            kinds = {a.dtype for a in i.args if getattr(a, "id", None) in users}
            mixed = any(k.kind == "c" for k in kinds)
            users.update(o.id for o in i.outs if o.dtype in kinds or mixed)
    return [k for k, v in enumerate(program.outputs()) if v.id in users and not v.weak]


_OWN = ("tensor", "draw", "number")  # sources whose arrays no user can write to


def _is_fresh(i: Instruction) -> bool:
    """Return whether an instruction always returns new arrays."""
    forward = i.op.forward
    return (
        type(forward) is np.ufunc or getattr(forward, "__module__", "") == "_operator" or i.op.name in _FRESH
    )


def _check_tensors(w: _Writer, trace: Trace) -> None:
    """Generate the checks of captured tensors."""
    for h in trace.held.values():
        if h.argument is None:
            t, symbol = w.name(h.tensor, "t"), h.symbol
            w.add(f"a = {t}._data")
            w.add(
                f"if a.shape != {symbol.shape!r} or a.dtype is not {w.name(symbol.dtype, 'd')}"
                f" or {_node_changed(w, t, h)}: return False"
            )
            if h.node is not None:
                w.add(f"e = {t}._extra")
                w.add(
                    "if e is not None and (e.hooks is not None or e.post_hooks is not None)"
                    f" and hooks_of({t}) != {w.name(h.hooks)}: return False"
                )
    for h in trace.grad_guards():
        owner = w.name(h.tensor, "t") if h.argument is None else f"x{h.argument}"
        w.add(f"e = {owner}._extra")
        none = "e is None or e.grad is None"
        w.add(f"if {f'not ({none})' if h.grad is None else none}: return False")
    w.add("e = None")


def _node_changed(w: _Writer, t: str, h: Held) -> str:
    """Return an expression that is true if the node of a tensor has changed."""
    if type(h.node) is Node:
        return f"type({t}._node) is not {w.name(Node, 'n')}"
    return f"{t}._node is not {w.name(h.node, 'n')}"


def _read(w: _Writer, kind: str, owner: Any) -> str:
    if kind == "argument":
        return f"x{owner}._data if isinstance(x{owner}, Tensor) else x{owner}"
    if kind == "tensor":
        return f"{w.name(owner, 't')}._data"
    if kind == "array":
        return w.name(owner)
    if kind == "grad":
        return f"{w.name(owner, 't')}._extra.grad._data"
    if kind == "argument grad":
        return f"x{owner}._extra.grad._data"
    if kind == "cell":
        container, key = owner
        return f"{_container(w, container)}[{w.name(key)}]"
    return f"{w.name(owner, 'r')}()"


def _container(w: _Writer, container: Any) -> str:
    """Return an expression for a list or a dictionary; see ``Trace.cell``."""
    owner, attribute = getattr(container, "held_by", (None, ""))
    return w.name(container) if owner is None else f"{w.name(owner)}.{attribute}"


def _write(w: _Writer, each: Write, place: int) -> int:
    """Add the lines of one write, whose values start at index ``place`` of the outputs.

    Return the index at which the values of the next write start.
    """
    values = []
    for v in each.values:
        values.append("None" if v is None else f"found[{place}]")
        place += v is not None
    owner = each.owner
    if each.kind in ("data", "grad"):
        t = f"x{owner}" if isinstance(owner, int) else w.name(owner, "t")
        w.add(f"    {'write' if each.kind == 'data' else 'set_grad'}(undo, {t}, {values[0]})")
    elif each.kind == "cell":
        container, key = owner
        w.add(f"    set_item(undo, {_container(w, container)}, {w.name(key)}, {values[0]})")
    else:  # a function of the values
        w.add(f"    {w.name(owner, 'u')}({', '.join(values)})")
    return place
