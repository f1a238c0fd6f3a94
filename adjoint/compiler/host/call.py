"""Write the Python function that runs a call: it reads the sources, runs the program and makes the writes.

Sources are the values that a program reads at each call (see ``inputs``); writes assign its outputs to
tensors, gradients, cells (items of containers) and optimisers (see ``writes``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adjoint.compiler.host.calls import contiguous
from adjoint.compiler.host.entry import Cell
from adjoint.compiler.program.inputs import (
    ArgumentSource,
    ArraySource,
    CellSource,
    DrawSource,
    NumbersSource,
    Source,
    container_text,
)
from adjoint.compiler.program.lines import Lines
from adjoint.compiler.program.writes import (
    NAMES,
    Action,
    CellWrite,
    DataWrite,
    GradWrite,
    PlaceWrite,
    SparseGradWrite,
    Write,
)
from adjoint.compiler.replay.tables import fill_tables
from adjoint.core.lifted import UnexpectedError
from adjoint.core.roles import CountRole, NumbersRole, SlotsRole
from adjoint.core.tensor import Tensor
from adjoint.transforms.rerun import Generators

if TYPE_CHECKING:
    from adjoint.compiler.capture.trace import Trace
    from adjoint.compiler.program.program import Instruction, Program

__all__ = ["NativeCall", "Outputs", "add_call", "is_fresh", "make_call"]


class Outputs(NamedTuple):
    """The outputs of a program in generated code: the expression of each output.

    ``read`` maps expressions that read inputs, such as ``x0._data``, to variables that have the values.
    """

    texts: list[str]
    read: dict[str, str]


def make_call(program: Program, trace: Trace, run: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return ``call(*arguments)``, which reads the program's inputs, runs it, and returns the outputs.

    ``call`` makes the writes of the program too.  ``run`` is the built program, a function of all inputs (see
    ``Source``), and ``count`` is the number of arguments.
    """
    arguments = [f"x{k}" for k in range(count)]

    def in_python() -> Callable[..., Any]:
        w = Lines()
        add_call(w, program, trace, run)
        w.add("return found")
        return w.function("call", arguments)

    native = _native_call(program, trace, run, count)
    if native is None:
        return in_python()
    later = functools.cache(in_python)  # made at its first call
    w = Lines(Tensor=Tensor, slow=lambda *given: later()(*given))
    native.add(w, miss=f"return slow({', '.join(arguments)})")
    w.add("return found")
    made = w.function("call", arguments)
    made.native = native  # type: ignore[attr-defined]  # for ``make_direct``
    return made


# Calls that Python makes --------------------------------------------------------------------------------


def add_call(w: Lines, program: Program, trace: Trace, run: Any, whole: bool = True) -> Outputs:
    """Add the lines that read a program's inputs, run it, and make its writes; return its outputs.

    ``run`` is the built program; the lines of a short program are copied instead of a call of ``run``.  The
    tuple ``found`` has the outputs.  If ``whole`` is false, and there is nothing else to do, the outputs are
    only variables.
    """
    w.names |= {**NAMES, "Tensor": Tensor, "own": own, "fill_tables": fill_tables}
    draws = [s.owner for s in program.sources if isinstance(s, DrawSource)]
    if not draws:
        return _add_lines(w, program, trace, run, whole)
    generators = Generators.drawn_by(draws)  # a call that fails restores the random generators
    w.add(f"states = {w.name(generators.read)}()")
    with w.block("try:"):
        found = _add_lines(w, program, trace, run, whole)
    w.add("except BaseException:", f"    {w.name(generators.write)}(states)", "    raise")
    return found


def _add_lines(w: Lines, program: Program, trace: Trace, run: Any, whole: bool) -> Outputs:
    """Add the lines of ``add_call``, except those that restore random generators."""
    lines, used = getattr(run, "inline", (None, {}))
    names = [f"v{s.value.id}" for s in program.sources]
    texts = [s.code(w) for s in program.sources]
    w.add(*(f"{name} = {text}" for name, text in zip(names, texts, strict=True)))
    tables = getattr(run, "tables", [])
    shared = [k for k in _shared(program, trace) if all(k not in places for _, places in tables)]
    outputs = program.outputs()
    made: list[str] = []
    given = any(s.kind in ("argument", "variable") and s.value.weak for s in program.sources)
    with w.block("try:" if given else ""):
        w.names |= used
        w.add(*(lines or [f"found = {w.name(run, 'run')}({', '.join(names)})"]))
    if given:  # the function may catch the error of a number, such as a division by zero
        w.add(f"except ArithmeticError as error: raise {w.name(UnexpectedError)} from error")
    if lines is not None:
        made = [f"v{v.id}" for v in outputs]
        if not whole and not shared and not program.writes:
            return Outputs(made, dict(zip(texts, names, strict=True)))
        w.add(f"found = ({''.join(f'{name}, ' for name in made)})")
        made = [name for name in made if name not in used]  # constants are global names
    if shared:
        w.add(f"found = own(found, {w.name(shared)}, ({''.join(f'{name}, ' for name in names)}))")
    # drop the references: they would force a copy before each write
    w.add(f"{' = '.join(dict.fromkeys([*names, *made])) or 's'} = None")
    if program.writes:
        w.add("undo = []")
        with w.block("try:"):
            if tables:
                w.add(f"found = fill_tables(undo, found, {w.name(tables)})")
            _write_all(w, program)
        w.add("except BaseException:", "    take_back(undo)", "    raise")
    return Outputs([f"found[{k}]" for k in range(len(outputs))], {})


def _write_all(w: Lines, program: Program) -> None:
    """Add the lines that write the new values of tensors and of container items, then of optimisers.

    If the types of the arguments are known, the code is longer, but runs faster.
    """
    place = len(program.results)
    written: list[tuple[Tensor, str]] = []
    graded: list[tuple[Tensor, str]] = []
    dropped: list[Tensor] = []
    calls: list[tuple[Write, list[str]]] = []
    for each in program.writes:
        values = []
        for v in each.values:
            values.append("None" if v is None else f"found[{place}]")
            place += v is not None
        if isinstance(each, Action):
            calls.append((each, values))
        elif isinstance(each, (CellWrite, PlaceWrite, SparseGradWrite)) or isinstance(each.owner, int):
            each.add(w, *values)
        elif each.values[0] is None:
            dropped.append(each.owner)
        else:
            (written if isinstance(each, DataWrite) else graded).append((each.owner, values[0]))
    if w.kinds is not None and graded and not written and not dropped:
        _set_grads(w, [w.name(t, "t") for t, _ in graded], [value for _, value in graded])
    elif written or graded or dropped:
        owners = [w.name(each) for each in ([t for t, _ in written], [t for t, _ in graded], dropped)]
        w.add(f"assign(undo, {', '.join([*owners, *(value for _, value in (*written, *graded))])})")
    for each, values in calls:
        each.add(w, *values)


def _set_grads(w: Lines, tensors: list[str], values: list[str]) -> None:
    """Add lines that set ``.grad`` of ``tensors`` to ``values``, as ``assign`` does, but inline."""
    extras = [f"extra{k}" for k in range(len(tensors))]
    grads = [f"grad{k}" for k in range(len(tensors))]
    for t, value, e, g in zip(tensors, values, extras, grads, strict=True):
        w.add(
            f"{e} = {t}._extra or {t}._need_extra()", f"a = {value}", f"{g} = new(Tensor)",
            f"{g}._data = a if type(a) is ndarray else asarray(a)", f"{g}._node = {g}._extra = None",
            f"{g}._version = 0",
        )  # fmt: skip
    old = "".join(f"{e}.grad, " for e in extras)
    with w.block("with committing:"):
        w.add(f"undo.append((put_back, ((), ()), (({', '.join(extras)},), ({old}))))")
        w.add(*(f"{e}.grad = {g}" for e, g in zip(extras, grads, strict=True)))
    w.add(f"{' = '.join(['a', *extras, *grads])} = None")  # references would force copies before writes


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


def _shared(program: Program, trace: Trace) -> list[int]:
    """Return the indices of outputs that may share memory with arrays that the user can write to.

    Outputs may share memory with tensors, because a write into a tensor first copies memory that is shared.
    """
    tensors = {h.argument for h in trace.held.values()}
    users = set()
    for s in program.sources:
        if not s.private and not (isinstance(s, ArgumentSource) and s.owner in tensors):
            users.add(s.value.id)
    for i in program.body:
        if not is_fresh(i):
            # a view has the dtype of its base, or is a part of complex numbers
            kinds = {a.dtype for a in i.args if getattr(a, "id", None) in users}
            mixed = any(k.kind == "c" for k in kinds)
            users.update(o.id for o in i.outs if o.dtype in kinds or mixed)
    return [k for k, v in enumerate(program.outputs()) if v.id in users and not v.weak]


def is_fresh(i: Instruction) -> bool:
    """Return whether the results of an instruction are always new arrays, not views or operands."""
    forward = i.op.forward
    operators = type(forward) is np.ufunc or getattr(forward, "__module__", "") == "_operator"
    return operators or i.op.memory == "new"


# Calls of a native entry --------------------------------------------------------------------------------


def _native_call(program: Program, trace: Trace, run: Any, count: int) -> NativeCall | None:
    """Return the call of a native entry that runs the program; None if an entry cannot be used."""
    if getattr(run, "entry", None) is None:
        return None
    program = run.program  # without numbers that Python computes before
    if program.writes and not run.in_order:
        return None
    if any(isinstance(s, DrawSource) for s in program.sources):  # ``slow`` would draw again
        return None
    writes = _Writes(program, trace)
    if writes.twice() or (program.writes and writes.places != len(run.fresh)):
        return None
    if writes.counters is None and all(isinstance(each.owner, CountRole) for each, _ in writes.others):
        return None  # an interrupt between the entry and the counts would leave half of the writes
    return NativeCall(program, run, count, writes)


class NativeCall:
    """A call of a native entry (see ``Entry``), which writes itself into generated functions.

    The entry reads arguments, tensors and arrays itself.  Other inputs are ``passed`` to it after the
    arguments: sources, and containers in which it reads and writes items.
    """

    def __init__(self, program: Program, run: Any, count: int, writes: _Writes) -> None:
        self.run, self.count, self.writes = run, count, writes
        self.size = len(program.outputs())
        self.used = _used_numbers(program)
        self.passed: list[Any] = []
        self.fixed: set[int] = set()  # ids of numbers that do not depend on the step count
        reuses = writes.reuses(run)
        owners = []
        for k, s in enumerate(program.sources):
            if s.entered and not s.value.weak:
                constant = isinstance(s, ArraySource) and not s.is_outside()
                owners.append(contiguous(s.owner) if constant else s.owner)
            elif isinstance(s, CellSource) and reuses is not None and k in reuses.values():
                container, key = s.owner
                if not any(p is container for p in self.passed):
                    self.passed.append(container)
                owners.append(Cell(count + [p is container for p in self.passed].index(True), key))
            else:
                if s.value.id in self.used and s.owner.constant(self.used[s.value.id]):
                    self.fixed.add(s.value.id)
                owners.append(count + len(self.passed))
                self.passed.append(s)
        arguments = count + len(self.passed)
        # whether the entry makes all writes
        self.writes_all = writes.counters is not None and (reuses is not None or not writes.cells)
        counters = writes.counters if self.writes_all else ()
        self.entry = run.entry_for(owners, writes.swapped, arguments, writes.graded, reuses, counters)

    def add(self, w: Lines, miss: str, settled: bool = False) -> Outputs:
        """Add lines that call the entry and make the writes which it does not make; return the outputs.

        ``miss`` is the statement that runs if the entry returns NotImplemented.  ``settled`` says that
        numbers which do not depend on the step count have been computed by an earlier call.
        """
        w.names |= NAMES
        split = self.run.split
        numbers: list[str] = []
        if split is not None:
            with w.attempt(miss):  # after an error, such as a division by zero, the slow way raises it
                numbers = split.add(w)
        texts = [self._text(w, p, settled) for p in self.passed]
        if self.writes_all:
            self._add_entry(w, texts, miss)
        else:
            self._add_writes(w, texts, miss)
        if self.writes.sparse:
            w.add("undo = []")  # not used: these assignments cannot fail
        for each, at in self.writes.sparse:
            each.add(w, f"found[{at}]", f"found[{at + 1}]")
        if not self.run.in_order:  # one array can be several outputs: the result of exp is also a residual
            w.add(f"found = ({''.join(f'found[{k}], ' for k in self.run.order)})")
        if split is None:
            return Outputs([f"found[{k}]" for k in range(self.size)], {})
        w.add(*(f"{each.owner.code(w)} = {w.numbers[each.values[0].id]}" for each in split.writes))
        w.add(f"found = {split.merged(numbers)}")
        return Outputs([f"found[{k}]" for k in range(len(split.outputs))], {})

    def _text(self, w: Lines, passed: Any, settled: bool) -> str:
        """Return the expression of ``passed``, which is passed to the entry besides the arguments."""
        if not isinstance(passed, Source):
            return container_text(w, passed)
        number = passed.value.id
        if settled and number in self.fixed:
            return w.name(passed.owner.array)
        if number in self.used and number not in self.fixed:
            return str(passed.owner.text(w.name, self.used[number]))
        return passed.code(w)

    def _add_entry(self, w: Lines, texts: list[str], miss: str) -> None:
        """Add lines that call the entry; ``texts`` are the expressions of what is ``passed``."""
        given = [f"x{k}" for k in range(self.count)]
        call = f"found = {w.name(self.entry.call, 'entry')}({', '.join([*given, *texts])})"
        w.add(call)
        arrays = [x for x, kind in zip(given, w.kinds or (), strict=False) if kind is np.ndarray]
        with w.block("if found is NotImplemented:"):
            if arrays:  # one may have other strides than the program reads
                w.add(*(f"{x} = {w.name(contiguous)}({x})" for x in arrays), call)
                w.add(f"if found is NotImplemented: {miss}")
            else:
                w.add(miss)

    def _add_writes(self, w: Lines, texts: list[str], miss: str) -> None:
        """Add lines that call the entry and then make the writes that are left; undo all if one fails."""
        writes = self.writes
        containers: dict[str, str] = {}
        cells = []
        for k, (each, _) in enumerate(writes.cells):
            text, key = container_text(w, each.owner[0]), w.name(each.owner[1])
            if text not in containers:
                containers[text] = f"c{k}"
                w.add(f"c{k} = {text}")
            cells.append(f"{containers[text]}[{key}]")
            w.add(f"o{k} = {cells[k]}")
        before = {each.key: f"o{k}" for k, (each, _) in enumerate(writes.cells)}
        for k, passed in enumerate(self.passed):
            if isinstance(passed, CellSource):
                texts[k] = before.get(passed.key, texts[k])
        self._add_entry(w, texts, miss)
        if not writes.cells and not writes.others:
            return
        if writes.others:
            w.add("undo = []")
        with w.block("try:"):
            w.add(*(f"{cell} = found[{at}]" for cell, (_, at) in zip(cells, writes.cells, strict=True)))
            for other, at in writes.others:
                values = enumerate(other.values, at)
                other.add(w, *("None" if v is None else f"found[{k}]" for k, v in values))
        with w.block("except BaseException:"):
            if writes.others:
                w.add("take_back(undo)")
            w.add(*(f"{cell} = o{k}" for k, cell in enumerate(cells)))
            w.add(f"exchange({w.name(writes.swapped)}, {w.name(writes.graded)}, found)", "raise")


def _used_numbers(program: Program) -> dict[int, set[int]]:
    """Return the indices of the hyper-parameters that a program uses, for each source of numbers.

    The result maps the id of the source's value to a set of indices; the index -1 stands for all numbers.
    """
    used: dict[int, set[int]] = {
        s.value.id: set()
        for s in program.sources
        if isinstance(s, NumbersSource) and isinstance(s.owner, NumbersRole)
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
        self.cells: list[tuple[CellWrite, int]] = []
        self.sparse: list[tuple[Write, int]] = []  # sparse gradients, which Python assigns at last
        self.others: list[tuple[Write, int]] = []
        self.places = len(program.results)
        for each in program.writes:
            at = self.places
            self.places += sum(v is not None for v in each.values)
            held = type(each.owner) is Tensor
            if isinstance(each, DataWrite) and held:
                self.swapped.append((each.owner, at))
            elif isinstance(each, CellWrite):
                self.cells.append((each, at))
            elif isinstance(each, SparseGradWrite):
                self.sparse.append((each, at))
            elif not isinstance(each, GradWrite) or (each.values[0] is not None and not held):
                self.others.append((each, at))
            elif each.values[0] is not None:
                self.graded.append((each.owner, at))
            elif id(each.owner) not in empty:
                self.others.append((each, at))
        self.others.sort(key=lambda other: isinstance(other[0], Action))  # updates of optimisers come last
        self.counters = self._counters()

    def reuses(self, run: Any) -> dict[int, int] | None:
        """Return a dict from the index of an output to the index of the input whose memory it uses.

        None if Python has to write after the program has run.  It does not have to if all cells can be
        written in place, all checks are made before, and the entry can count the steps of optimisers.
        """
        stores = self.swapped or self.graded or self.cells
        if (run.checks and not run.checked) or self.counters is None or not stores or run.calls:
            return None
        found: dict[int, int] = run.reuses
        for each, at in self.cells:
            container, key = each.owner
            if at not in found or type(key) is not str or not isinstance(container, SlotsRole):
                return None
        return found

    def _counters(self) -> list[tuple[Any, str]] | None:
        """Return (dictionary, key) of each step count of optimisers; None if the entry cannot count."""
        found: list[tuple[Any, str]] = []
        for each, _ in self.others:
            counters = each.owner.counters() if isinstance(each.owner, CountRole) else None
            if counters is None:
                return None
            found += counters
        return found if len({(id(space), key) for space, key in found}) == len(found) else None

    def twice(self) -> bool:
        """Return whether the array or the gradient of a tensor is written twice in one call."""
        return any(len({id(t) for t, _ in each}) < len(each) for each in (self.swapped, self.graded))
