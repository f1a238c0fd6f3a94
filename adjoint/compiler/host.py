"""Generate the function that runs a call: it reads the sources, runs the program and makes the writes.

Sources are the values that a program reads at each call; writes assign its outputs to tensors, gradients,
cells (items of containers) and optimisers; see ``program``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint.compiler.entry import Cell, Entry
from adjoint.compiler.tables import fill_tables
from adjoint.config import locked
from adjoint.core.inplace import move_version
from adjoint.core.tensor import Tensor, committing, wrap
from adjoint.transforms.rerun import Generators

if TYPE_CHECKING:
    from adjoint.compiler.program import Instruction, Program, Write
    from adjoint.compiler.trace import Trace

__all__ = ["Writer", "add_call", "is_fresh", "make_call", "write"]


Undo = list[tuple[Callable[..., None], Any, Any]]  # each item undoes a write: a function and two arguments


def write(undo: Undo, t: Tensor, value: Any) -> None:
    """Replace the array of ``t`` by ``value``, and increment the version of ``t``.

    Nothing else may use ``value``.  An item that restores the old array is appended to ``undo``.
    """
    undo.append((_set_data, t, (t._data, t._version)))
    t._data = value
    move_version(t)


def _set_data(t: Tensor, before: tuple[Any, int]) -> None:
    """Restore the array and the version of a tensor."""
    t._data, t._version = before


def set_grad(undo: Undo, t: Tensor, value: Any) -> None:
    """Set the gradient of a tensor; None deletes it.

    An item that restores the old gradient is appended to ``undo``.
    """
    undo.append((_put_grad, t, None if t._extra is None else t._extra.grad))
    _put_grad(t, None if value is None else wrap(value))


def _put_grad(t: Tensor, grad: Any) -> None:
    t.grad = grad


def assign(
    undo: Undo, written: list[Tensor], graded: list[Tensor], dropped: list[Tensor], *values: Any
) -> None:
    """Set the arrays of ``written`` and the gradients of ``graded``; delete the gradients of ``dropped``.

    ``values`` are the new arrays, then the new gradients.  An item that restores the old ones is appended to
    ``undo``.  Nothing is allocated between two assignments, so that no finalizer runs after only some of
    them.
    """
    locked(committing, _assign, undo, written, graded, dropped, values)


def _assign(
    undo: Undo, written: list[Tensor], graded: list[Tensor], dropped: list[Tensor], values: Sequence[Any]
) -> None:
    extras = [t._extra or t._need_extra() for t in graded]
    grads: list[Any] = [wrap(v) for v in values[len(written) :]]
    for t in dropped:
        if t._extra is not None and t._extra.grad is not None:
            extras.append(t._extra)
            grads.append(None)
    old = [(t._data, t._version) for t in written]
    undo.append((_put_back, (written, old), (extras, [e.grad for e in extras])))
    for t, data in zip(written, values, strict=False):
        t._data = data
        move_version(t)
    for e, grad in zip(extras, grads, strict=True):
        e.grad = grad


def _put_back(arrays: tuple[list[Tensor], list[Any]], grads: tuple[list[Any], list[Any]]) -> None:
    for t, before in zip(*arrays, strict=True):
        _set_data(t, before)
    for e, grad in zip(*grads, strict=True):
        e.grad = grad


def set_item(undo: Undo, container: Any, key: Any, value: Any) -> None:
    """Assign an item of a list or a dictionary; append an item that restores the old one to ``undo``."""
    undo.append((partial(container.__setitem__, key), container[key], None))
    container[key] = value


def take_back(undo: Undo) -> None:
    """Undo all writes in the list ``undo``, in reverse order."""
    for function, a, b in reversed(undo):
        if isinstance(function, partial):
            function(a)
        else:
            function(a, b)


def restore(counter: Any, before: Any) -> None:
    """Restore the step counts of an optimiser to ``before``, the value that ``counter.count()`` returned."""
    counter.take_back(before)


class Writer:
    """Collects the lines of a generated Python function and the objects that they refer to."""

    def __init__(self, **names: Any) -> None:
        self.lines: list[str] = []
        self.names = {"__name__": "adjoint.compiled", **names}
        self.known: dict[int, str] = {}
        # key: name of a function in the code; value: the array that it fills and returns; see ``make_direct``
        self.fixed: dict[str, Any] = {}

    def name(self, value: Any, prefix: str = "k") -> str:
        """Return the variable name of an object in the generated code.

        If the object is new, it gets a name that starts with ``prefix``.
        """
        found = self.known.get(id(value))
        if found is None:
            found = self.known[id(value)] = f"{prefix}{len(self.known)}"
            self.names[found] = value
        return found

    def add(self, line: str) -> None:
        """Append an indented line to the body of the generated function."""
        self.lines.append(f"    {line}")

    def function(self, name: str, args: Sequence[str]) -> Callable[..., Any]:
        """Compile the collected lines to a function with the parameters ``args``, and return it."""
        source = "\n".join([f"def {name}({', '.join(args)}):", *self.lines])
        exec(compile(source, "<ad.compile>", "exec"), self.names)
        made: Callable[..., Any] = self.names[name]
        made.__doc__ = source
        return made


def make_call(program: Program, trace: Trace, run: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return ``call(*arguments)``, which reads the program's inputs, runs it, and returns the outputs.

    ``call`` makes the writes of the program too.  ``run`` is the built program, a function of all inputs (see
    ``Source``), and ``count`` is the number of arguments.
    """
    slow = partial(_make_python_call, program, trace, run, count)
    return _make_native_call(program, trace, run, count, _later(slow)) or slow()


def _later(make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """Return a function that calls ``make()`` at its first call, and passes all arguments to the result."""
    made = functools.cache(make)
    return lambda *args: made()(*args)


def _make_python_call(
    program: Program, trace: Trace, run: Callable[..., Any], count: int
) -> Callable[..., Any]:
    """Return the ``call`` of ``make_call`` as generated Python code, without a native entry.

    The arguments are those of ``make_call``.
    """
    w = Writer()
    add_call(w, program, trace, run)
    w.add("return found")
    return w.function("call", [f"x{k}" for k in range(count)])


def add_call(
    w: Writer, program: Program, trace: Trace, run: Any, kinds: Sequence[type] | None = None
) -> list[str] | None:
    """Add the lines that read a program's inputs, run it, set ``found`` to the outputs, and make the writes.

    ``run`` is the built program.  ``kinds`` has the type of each argument, array or tensor, if it is known.
    The lines of a short program are copied instead of a call of ``run``.  If there is nothing else to do,
    ``found`` is not set, and the names of the variables with the outputs are returned; otherwise None.
    """
    w.names |= {
        "Tensor": Tensor, "own": own, "write": write, "set_grad": set_grad, "assign": assign,
        "set_item": set_item, "take_back": take_back, "committing": committing, "put_back": _put_back,
        "restore": restore, "fill_tables": fill_tables,
    }  # fmt: skip
    draws = [s.owner for s in program.sources if s.kind == "draw"]
    if draws:  # a call that fails restores the random generators
        generators = Generators.drawn_by(draws)
        w.add(f"states = {w.name(generators.read)}()")
        start = len(w.lines)
        _add_lines(w, program, trace, run, None)
        w.lines[start:] = ["    try:", *(f"    {line}" for line in w.lines[start:])]
        w.add("except BaseException:")
        w.add(f"    {w.name(generators.write)}(states)")
        w.add("    raise")
        return None
    return _add_lines(w, program, trace, run, kinds)


def _add_lines(
    w: Writer, program: Program, trace: Trace, run: Any, kinds: Sequence[type] | None
) -> list[str] | None:
    """Add the lines of ``add_call``, except those that restore random generators."""
    lines, used = getattr(run, "inline", (None, {}))
    names = [f"v{s.value.id}" for s in program.sources]
    for name, s in zip(names, program.sources, strict=True):
        w.add(f"{name} = {_read(w, s.kind, s.owner, kinds)}")
    tables = getattr(run, "tables", [])
    shared = [k for k in _shared(program, trace) if all(k not in places for _, places in tables)]
    if lines is None:
        w.add(f"found = {w.name(run, 'run')}({', '.join(names)})")
        made = []
    else:
        w.names |= used
        w.lines += lines
        made = [f"v{v.id}" for v in program.outputs()]
        if kinds is not None and not shared and not program.writes:
            return made
        w.add(f"found = ({''.join(f'{name}, ' for name in made)})")
        made = [name for name in made if name not in used]  # constants are global names
    if shared:
        w.add(f"found = own(found, {w.name(shared)}, ({''.join(f'{name}, ' for name in names)}))")
    # drop the references: they would force a copy before each write
    w.add(f"{' = '.join(dict.fromkeys([*names, *made])) or 's'} = None")
    if program.writes:
        w.add("undo = []")
        w.add("try:")
        if tables:
            w.add(f"    found = fill_tables(undo, found, {w.name(tables)})")
        _write_all(w, program, kinds is not None)
        w.add("except BaseException:")
        w.add("    take_back(undo)")
        w.add("    raise")
    return None


def _make_native_call(
    program: Program, trace: Trace, run: Any, count: int, slow: Callable[..., Any]
) -> Callable[..., Any] | None:
    """Return the ``call`` of ``make_call`` as a function that calls a native entry (see ``Entry``).

    None if an entry cannot be used.  ``slow`` is the ``call`` in Python, which runs if the entry returns
    NotImplemented.  The other arguments are those of ``make_call``.
    """
    if getattr(run, "entry", None) is None or (program.writes and not run.in_order):
        return None
    if any(s.kind == "draw" for s in program.sources):  # ``slow`` would draw again
        return None
    w = Writer(Tensor=Tensor, slow=slow, exchange=exchange, take_back=take_back, set_grad=set_grad,
                write=write, restore=restore)  # fmt: skip
    writes = _Writes(program, trace)
    if writes.twice() or (program.writes and writes.places != len(run.fresh)):
        return None
    reuses = writes.reuses(run)
    owners: list[Any] = []
    given = [f"x{k}" for k in range(count)]
    used = _used_numbers(program)
    fixed = [s for s in program.sources if s.value.id in used and s.owner.constant(used[s.value.id])]
    for k, s in enumerate(program.sources):
        if s.kind in ("argument", "tensor", "array") and not s.value.weak:
            owners.append(s.owner)
        elif s.kind == "cell" and reuses is not None and k in reuses.values():
            text = _container(w, s.owner[0])
            if text not in given:
                given.append(text)
            owners.append(Cell(given.index(text), s.owner[1]))
        else:
            owners.append(len(given))
            if s.value.id in used and s not in fixed:
                given.append(s.owner.text(w.name, used[s.value.id]))
            else:
                given.append(_read(w, s.kind, s.owner))
    counters = None if reuses is None else writes.counters()
    native = run.entry_for(owners, writes.swapped, len(given), writes.graded, reuses, counters or ())
    if counters is not None:
        w.add(f"found = {w.name(native.call, 'entry')}({', '.join(given)})")
        w.add(f"if found is NotImplemented: return slow({', '.join(given[:count])})")
    elif writes.others and (reuses is not None or writes.only_count()):
        _add_call_that_counts(w, native, given, count, writes)
    else:
        _add_call(w, native, given, count, writes)
    if not run.in_order:  # one array can be several outputs: the result of exp is also a residual
        w.add(f"found = ({''.join(f'found[{k}], ' for k in run.order)})")
    w.add("return found")
    made = w.function("call", given[:count])
    w.fixed = {w.name(s.owner, "r"): s.owner.array for s in fixed}
    made.writer = w  # type: ignore[attr-defined]  # for ``make_direct``
    return made


def _add_call_that_counts(
    w: Writer, native: Entry, given: Sequence[str], count: int, writes: _Writes
) -> None:
    """Add lines that call a native entry which makes all writes except optimisers' step counts.

    Python increments the step counts before it calls the entry.  ``given`` are the expressions of the entry's
    arguments; the first ``count`` are the arguments of the function.
    """
    given = list(given)
    for k, text in enumerate(given[count:], count):
        if "(" in text:  # numbers that depend on the step count are read before it is incremented
            w.add(f"g{k} = {text}")
            given[k] = f"g{k}"
    back = _add_counts(w, writes)
    w.add(f"try: found = {w.name(native.call, 'entry')}({', '.join(given)})")
    w.add("except BaseException:")
    w.add(f"    if not {w.name(native.is_done)}(): {back}")
    w.add("    raise")
    w.add(f"if found is NotImplemented: {back}; return slow({', '.join(given[:count])})")


def _add_counts(w: Writer, writes: _Writes) -> str:
    """Add lines that increment optimisers' step counts; return the statements that undo this."""
    counters = [(w.name(each.owner, "u"), f"b{k}") for k, (each, _) in enumerate(writes.others)]
    for name, before in counters:
        w.add(f"{before} = {name}.count()")
    back = "; ".join(f"{name}.take_back({before})" for name, before in counters)
    w.add(f"try: {'; '.join(f'{name}()' for name, _ in counters)}")
    w.add(f"except BaseException: {back}; raise")
    return back


def _add_call(w: Writer, native: Entry, given: Sequence[str], count: int, writes: _Writes) -> None:
    """Add lines that call a native entry and then make the writes that are left; undo all if one fails.

    ``given`` and ``count`` are as in ``_add_call_that_counts``.
    """
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
    if writes.cells or writes.others:
        if writes.others:
            w.add("undo = []")
        w.add("try:")
        owned = [each.owner for each, _ in writes.cells]
        cells = [f"{containers[_container(w, held)]}[{w.name(key)}]" for held, key in owned]
        for cell, (_, at) in zip(cells, writes.cells, strict=True):
            w.add(f"    {cell} = found[{at}]")
        for each, at in writes.others:
            _write(w, each, at)
        w.add("except BaseException:")
        if writes.others:
            w.add("    take_back(undo)")
        for k, cell in enumerate(cells):
            w.add(f"    {cell} = o{k}")
        w.add(f"    exchange({w.name(writes.swapped)}, {w.name(writes.graded)}, found)")
        w.add("    raise")


def _used_numbers(program: Program) -> dict[int, set[int]]:
    """Return the indices of the hyper-parameters that a program uses, for each source of numbers.

    The result maps the id of the source's value to a set of indices; the index -1 stands for all numbers.
    """
    used: dict[int, set[int]] = {
        s.value.id: set() for s in program.sources if s.kind == "numbers" and hasattr(s.owner, "constant")
    }
    for i in program.live() if used else ():
        for a in i.args:
            if getattr(a, "id", None) in used:
                used[a.id].add(i.params.get("k", -1))
    return used


class _Writes:
    """The assignments that a program makes at the end of a call, and the index of the output for each.

    The native entry makes ``swapped`` and ``graded``; Python makes ``others``, and ``cells`` unless they can
    be written in place.
    """

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

    def reuses(self, run: Any) -> dict[int, int] | None:
        """Return a dict from the index of an output to the index of the input whose memory it uses.

        None if Python has to write after the program has run.  It does not have to if all cells can be
        written in place and all checks are made before.
        """
        counts = all(hasattr(each.owner, "take_back") for each, _ in self.others)
        if (run.checks and not run.checked) or not counts or not (self.swapped or self.graded or self.cells):
            return None
        found: dict[int, int] = run.reuses
        for each, at in self.cells:
            container, key = each.owner
            if at not in found or type(key) is not str or not hasattr(container, "held_by"):
                return None
        return found

    def only_count(self) -> bool:
        """Return whether all that Python writes, besides native code, are step counts of optimisers."""
        return not self.cells and all(hasattr(each.owner, "take_back") for each, _ in self.others)

    def counters(self) -> list[tuple[Any, str]] | None:
        """Return (dictionary, key) of each optimiser's step count.

        None if the native entry cannot increment them.
        """
        found: list[tuple[Any, str]] = []
        for each, _ in self.others:
            counters = each.owner.counters()
            if counters is None:
                return None
            found += counters
        return found if len({(id(space), key) for space, key in found}) == len(found) else None

    def twice(self) -> bool:
        """Return whether the array or the gradient of a tensor is written twice in one call."""
        return any(len({id(t) for t, _ in each}) < len(each) for each in (self.swapped, self.graded))


def exchange(
    swapped: list[tuple[Tensor, int]], graded: list[tuple[Tensor, int]], found: tuple[Any, ...]
) -> None:
    """Restore the old arrays and gradients of tensors, which the native entry returned in ``found``.

    ``swapped`` and ``graded`` are pairs of a tensor and the index of its old array or gradient in ``found``.
    """
    for t, place in swapped:
        t._data = found[place]
    for t, place in graded:
        _put_grad(t, found[place])


def _write_all(w: Writer, program: Program, fast: bool) -> None:
    """Add the lines of code that write the new values of tensors and of container items, then of optimisers.

    If ``fast`` is true, the code is longer, but runs faster.
    """
    place = len(program.results)
    owners: dict[str, list[Tensor]] = {"data": [], "grad": [], "none": []}
    values: dict[str, list[str]] = {"data": [], "grad": []}
    calls = []
    for each in program.writes:
        if each.kind in values and not isinstance(each.owner, int):
            if each.values[0] is None:
                owners["none"].append(each.owner)
            else:
                owners[each.kind].append(each.owner)
                values[each.kind].append(f"found[{place}]")
                place += 1
        elif each.kind == "call":
            calls.append((each, place))
            place += len(each.values)
        else:
            place = _write(w, each, place)
    if fast and owners["grad"] and not owners["data"] and not owners["none"]:
        _set_grads(w, [w.name(t, "t") for t in owners["grad"]], values["grad"])
    elif any(owners.values()):
        given = [w.name(each) for each in owners.values()] + values["data"] + values["grad"]
        w.add(f"    assign(undo, {', '.join(given)})")
    for each, at in calls:
        _write(w, each, at)


def _set_grads(w: Writer, tensors: list[str], values: list[str]) -> None:
    """Add lines that set ``.grad`` of ``tensors`` to ``values``, as ``assign`` does, but inline."""
    extras = [f"extra{k}" for k in range(len(tensors))]
    grads = [f"grad{k}" for k in range(len(tensors))]
    for t, value, e, g in zip(tensors, values, extras, grads, strict=True):
        for line in (
            f"{e} = {t}._extra or {t}._need_extra()", f"a = {value}", f"{g} = new(Tensor)",
            f"{g}._data = a if type(a) is ndarray else asarray(a)", f"{g}._node = {g}._extra = None",
            f"{g}._version = 0",
        ):  # fmt: skip
            w.add(f"    {line}")
    w.add("    with committing:")
    old = "".join(f"{e}.grad, " for e in extras)
    w.add(f"        undo.append((put_back, ((), ()), (({', '.join(extras)},), ({old}))))")
    for e, g in zip(extras, grads, strict=True):
        w.add(f"        {e}.grad = {g}")
    w.add(f"    {' = '.join(['a', *extras, *grads])} = None")  # references would force copies before writes


def own(found: tuple[Any, ...], shared: Sequence[int], given: tuple[Any, ...]) -> list[Any]:
    """Return the outputs ``found``, with a copy of each output that is an input or a view of an array.

    Only the outputs at the positions ``shared`` are copied; ``given`` are the inputs.
    """
    outs, ids = list(found), {*map(id, given)}
    for k in shared:
        value = outs[k]
        if value.base is not None or id(value) in ids:
            outs[k] = value.copy("K")  # keeps the memory layout, on which the rounding of BLAS depends
    return outs


# Ops, besides ufuncs and operators, whose result is always a new array.
_FRESH = frozenset(("linear", "matmul", "mean", "mse", "sum"))


def _shared(program: Program, trace: Trace) -> list[int]:
    """Return the indices of outputs that may share memory with arrays that the user can write to.

    Outputs may share memory with tensors, because a write into a tensor first copies memory that is shared.
    """
    tensors = {h.argument for h in trace.held.values()}
    users = set()
    for s in program.sources:
        if s.kind not in _OWN and not (s.kind == "argument" and s.owner in tensors):
            users.add(s.value.id)
    for i in program.body:
        if not is_fresh(i):
            # a view has the dtype of its base, or is a part of complex numbers
            kinds = {a.dtype for a in i.args if getattr(a, "id", None) in users}
            mixed = any(k.kind == "c" for k in kinds)
            users.update(o.id for o in i.outs if o.dtype in kinds or mixed)
    return [k for k, v in enumerate(program.outputs()) if v.id in users and not v.weak]


_OWN = ("tensor", "draw", "number")  # sources whose arrays no user can write to


def is_fresh(i: Instruction) -> bool:
    """Return whether the results of an instruction are always new arrays, not views or operands."""
    forward = i.op.forward
    return (
        type(forward) is np.ufunc or getattr(forward, "__module__", "") == "_operator" or i.op.name in _FRESH
    )


def _read(w: Writer, kind: str, owner: Any, kinds: Sequence[type] | None = None) -> str:
    """Return a Python expression that reads an input of the program; see ``Source`` for kind and owner.

    ``kinds`` has the types of the arguments, if they are known.
    """
    if kind == "argument" and kinds is not None:
        return f"x{owner}._data" if kinds[owner] is Tensor else f"x{owner}"
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


def _container(w: Writer, container: Any) -> str:
    """Return a Python expression for a list or dictionary whose items the program reads or writes.

    A container with the attribute ``held_by`` is read from its owner at each call; see ``Trace.cell``.
    """
    owner, attribute = getattr(container, "held_by", (None, ""))
    return w.name(container) if owner is None else f"{w.name(owner)}.{attribute}"


def _write(w: Writer, each: Write, place: int) -> int:
    """Add the lines of the write ``each``; its values are the outputs that start at index ``place``.

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
        name = w.name(owner, "u")
        if hasattr(owner, "take_back"):
            w.add(f"    undo.append((restore, {name}, {name}.count()))")
        w.add(f"    {name}({', '.join(values)})")
    return place
