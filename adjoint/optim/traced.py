"""Record an update of an optimiser inside ``ad.compile``.

The update is recorded in one of two ways.  In native code, or if the compiled function reads the parameters
after the update, the operations of the update become part of the program, which reads the hyper-parameters at
each call.  Otherwise the program computes only the gradients, and the optimiser makes the update in Python
at the end of each call.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint.config import grad_mode, no_grad
from adjoint.context import user_code
from adjoint.core.lifted import located, refusal
from adjoint.core.namespace import dyn
from adjoint.core.roles import CountRole, NumbersRole, SlotsRole, UpdateRole
from adjoint.core.sparse import SparseGradient, SparseRows
from adjoint.core.tensor import Tensor
from adjoint.errors import TransformError
from adjoint.ops.half import widened
from adjoint.optim.formula import form_of
from adjoint.optim.groups import Unit
from adjoint.optim.rows import TracedRows
from adjoint.threads.spread import ALONE

if TYPE_CHECKING:
    from adjoint.optim.groups import ParameterGroup
    from adjoint.optim.optimizer import Optimizer

__all__ = ["trace_update"]


def trace_update(trace: Any, optimizer: Optimizer, gradient: Callable[[Tensor], Any]) -> None:
    """Add an update of all parameters with a gradient to the program that ``trace`` records.

    ``gradient`` is a function that returns the gradient of a parameter, or None.
    """
    optimizer._refuse_misfits(gradient)
    found = [(p, g) for p in optimizer.params if (g := gradient(p)) is not None]
    for p, _ in found:
        trace.capture(p)
    update = _Update(trace, optimizer, {id(p): _symbols(trace, g) for p, g in found})
    trace.guard(
        f"the parameter groups of {type(optimizer).__name__}",
        partial(_counts, optimizer),
        partial(_parts_of_groups, optimizer),
    )
    trace.guards.append(_Checked(optimizer))
    params = [p for p, _ in found]
    for action in trace.actions:
        if isinstance(action.owner, _HostUpdate):
            action.owner.keeps = True  # if this update fails, the earlier one must be undone
    shapes = [g.shape if type(g) is SparseRows else None for g in update.grads.values()]
    values = [
        v for g in update.grads.values() for v in ((g.rows, g.values) if type(g) is SparseRows else (g,))
    ]
    update.action = trace.act(_HostUpdate(optimizer, params, shapes), *values)
    if not trace.updates and all(trace.untouched(p) for p in params):
        update.waiting = [(p, p._data, trace.defer(p, update.settle)) for p in params]
    else:
        for p in params:
            trace.value(p)  # an earlier update of these parameters first: it counts, and changes the state
        update.settle()


def _symbols(trace: Any, g: Any) -> Any:
    """Return a gradient as a symbol, or as ``SparseRows`` of symbols."""
    if type(g) is not SparseGradient:
        return trace.value(g)
    return SparseRows(trace.value(g._rows.rows), trace.value(g._rows.values), g.shape)


def _counts(optimizer: Optimizer) -> int:
    return hash(tuple([len(g.params) for g in optimizer.groups]))


def _parts_of_groups(optimizer: Optimizer) -> list[tuple[Any, ...]]:
    """Return the dictionaries and lists in which the optimiser stores groups and hyper-parameters.

    Each is a tuple of the kind of comparison and its object.  ``ad.compile`` compares them with their old
    contents before each call, and if one has changed, checks again whether its program is still valid.
    """
    groups = optimizer.groups
    parts: list[tuple[Any, ...]] = [("item", vars(optimizer), "groups"), ("whole", groups)]
    for g in groups:
        parts += [("whole", vars(g)), ("whole", g.hyper), ("whole", g.params)]
    return parts


def _parts_of_unit(group: ParameterGroup, unit: Unit) -> list[tuple[Any, ...]]:
    """Return, like ``_parts_of_groups``, the dictionaries with the state and the step counts of a unit.

    The list of step counts is compared by identity: it is changed in place only if all counts are incremented
    together, and is replaced otherwise.
    """
    parts: list[tuple[Any, ...]] = [("item", vars(unit), "steps"), ("item", vars(unit), "state")]
    if unit.state is not None:
        parts.append(("keys", unit.state))
    return [*parts, ("whole", vars(group)), ("whole", group.hyper)]


class _HostUpdate(UpdateRole):
    """An update that the optimiser makes in Python after a program has computed the gradients."""

    __slots__ = ("in_order", "keeps", "optimizer", "places", "position", "shapes", "units")

    def __init__(self, optimizer: Optimizer, params: list[Tensor], shapes: list[Any]) -> None:
        self.optimizer = optimizer
        self.shapes = shapes if any(shapes) else None  # of sparse gradients, whose rows are given, too
        self.position = {id(p): n for n, p in enumerate(params)}
        self.units: list[Unit] = []
        self.places: list[list[int | None]] = []  # for each unit, the argument with each parameter's gradient
        self.in_order = False  # whether there is one unit, and the arguments are its gradients in order
        # whether ``count`` copies everything that the update changes, because a user's apply_one may fail
        self.keeps = not hasattr(type(optimizer).apply_one, "forms")

    @property
    def what(self) -> str:
        """The name of this action in the text of a program."""
        return f"update of {type(self.optimizer).__name__}"

    def count(self) -> Any:
        """Return a copy of all that the update changes, for ``take_back``.

        If the update cannot fail, return only the number of updates.  Ctrl-C can still interrupt it.
        """
        if not self.keeps:
            return self.optimizer.step_count
        groups = self.optimizer.groups
        units = []
        for unit in (u for group in groups for u in group.units):
            state = None if unit.state is None else {k: v.copy() for k, v in unit.state.items()}
            # no copy of the data: the update copies arrays that are referenced elsewhere, as here
            units.append((unit, unit.steps, state, [(p, p._data, p._version) for p in unit.params]))
        return self.optimizer.step_count, [group.checked for group in groups], units

    def take_back(self, before: Any) -> None:
        """Undo the update; ``before`` is the result of a call of ``count`` before the update.

        An update that was not copied cannot be undone: add a note to the error instead.
        """
        if not self.keeps:
            self.optimizer._take_back(sys.exception(), before)
            return
        self.optimizer.step_count, checked, units = before
        for group, values in zip(self.optimizer.groups, checked, strict=True):
            group.checked = values
        for unit, steps, state, params in units:
            unit.steps, unit.state = steps, state
            for p, data, version in params:
                p._data, p._version = data, version

    def __call__(self, *grads: Any) -> None:
        if self.shapes is not None:
            given = iter(grads)
            grads = tuple(
                [next(given) if s is None else _rows(next(given), next(given), s) for s in self.shapes]
            )
        units = [u for group in self.optimizer.groups for u in group.units]
        if units != self.units:
            self.units = units
            self.places = [[self.position.get(id(p)) for p in u.params] for u in units]
            dense = self.shapes is None
            self.in_order = dense and self._is_block() and self.places == [list(range(len(grads)))]
        if self.in_order and self._update_block(grads):
            return
        self.optimizer.update_units(
            [[None if n is None else grads[n] for n in places] for places in self.places], self.keeps
        )

    def _is_block(self) -> bool:
        """Return whether all parameters are in one small block, which a generated function can update."""
        optimizer, kind = self.optimizer, type(self.optimizer)
        if len(optimizer.groups) != 1 or len(self.units) != 1 or optimizer._complex:
            return False
        (unit,) = self.units
        if type(unit) is not Unit or unit.block is None or not hasattr(kind.apply_one, "forms"):
            return False
        flat = unit.block.flat
        return flat.dtype.char in "fd" and flat.nbytes <= ALONE

    def _update_block(self, grads: tuple[Any, ...]) -> bool:
        """Update a single block faster than ``Optimizer.update_units``; return False if that is not possible.

        It is possible if the state exists, the hyper-parameters are unchanged and all step counts are equal.
        """
        optimizer, (unit,) = self.optimizer, self.units
        (group,) = optimizer.groups
        steps = unit.steps
        first = unit.state is None or unit.grad is None
        if first or group.hyper != group.checked or steps.count(steps[0]) != len(steps):
            return False
        before, count = grad_mode.get(), optimizer.step_count
        try:
            grad_mode.set(False)
            _write_block(optimizer, unit, grads, group.hyper)
        except BaseException as error:
            if not self.keeps:
                optimizer._take_back(error, count, [(unit, steps, False)])
            raise
        finally:
            grad_mode.set(before)
        return True


def _rows(rows: Any, values: Any, shape: tuple[int, ...]) -> SparseGradient:
    return SparseGradient.of(SparseRows(rows, values, shape))


@np.errstate(all="ignore")  # as in ``Optimizer._write``
def _write_block(optimizer: Optimizer, unit: Any, grads: tuple[Any, ...], hyper: dict[str, Any]) -> None:
    """Update a block of parameters from their gradients ``grads``.

    All parameters must have a gradient and the same step count.
    """
    step = unit.steps[0] + 1
    hyper = optimizer.numbers({**hyper, "step": step})
    form: Any = form_of(optimizer, unit.state, hyper)
    flat = unit.block.open()
    unit.steps = [step] * len(grads)
    np.concatenate(grads, None, unit.grad)
    numbers = form.scalars(hyper, flat.dtype)
    optimizer.step_count += 1
    form.write(flat, unit.grad, unit.state, numbers)


class _Checked:
    """A guard of a compiled function that raises for invalid hyper-parameters before anything is written."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.what = f"the hyper-parameters of {type(optimizer).__name__}"

    def holds(self) -> bool:
        """Return True, because the program stays valid; but raise if a hyper-parameter is invalid."""
        for group in self.optimizer.groups:
            if group.hyper != group.checked:
                self.optimizer._check_written(group.hyper)
        return True

    def watch(self) -> list[tuple[Any, ...]]:
        """Return the dictionaries and lists to watch: ``holds`` is called again if one has changed."""
        return _parts_of_groups(self.optimizer)

    def reason(self) -> str:
        """Return the reason why the function is traced again, as text for the user."""
        return f"{self.what} changed"


class _Update:
    """An update of an optimiser that is recorded in a trace.

    At first the update is an action in Python after the program.  ``settle`` replaces the action by
    operations in the program.
    """

    def __init__(self, trace: Any, optimizer: Optimizer, grads: dict[int, Any]) -> None:
        self.trace = trace
        self.optimizer = optimizer
        self.grads = grads  # values by the id of the parameter
        self.action: Any = None
        self.waiting: list[tuple[Tensor, Any, Any]] = []  # parameter, symbolic values before and after

    def settle(self) -> None:
        """Add the operations of the update to the program, because the function reads updated parameters."""
        trace, optimizer = self.trace, self.optimizer
        for p, before, _ in self.waiting:
            p._data = before
        counted: list[tuple[Unit, list[int]]] = []
        with no_grad():
            for group in optimizer.groups:
                if group.hyper != group.checked:
                    optimizer._check_written(group.hyper)
                    group.take_over(optimizer, trace.data_before)
                for unit in group.units:
                    present = [i for i, p in enumerate(unit.params) if id(p) in self.grads]
                    if present:
                        self._unit(group, unit, present)
                        counted.append((unit, present))
        for p, _, after in self.waiting:
            trace.resume(after, p._data)
            p._data = after
        self.action.owner = _HostCount(optimizer, counted)
        self.action.values = ()

    def _unit(self, group: ParameterGroup, unit: Unit, present: list[int]) -> None:
        trace, optimizer = self.trace, self.optimizer
        if unit.params[0].dtype.kind == "c":
            text = (
                "complex parameters cannot be updated by native code of ad.compile.\n"
                '  Pass backend="replay", and make the update the last step of the compiled function.'
                if trace.updates
                else "complex parameters cannot be read after their update inside ad.compile.\n"
                "  Make the update the last step of the compiled function."
            )
            raise refusal(TransformError(located(text)))
        if unit.state is None:
            flat = np.concatenate([trace.data_before(p) for p in unit.params], None)
            unit.state = optimizer.init_one(flat, group.hyper)
            trace.undo.append(partial(setattr, unit, "state", None))
        done: dict[int, int] = trace.updates_of(unit)
        parts = partial(_parts_of_unit, group, unit)
        trace.guard("which hyper-parameters are 0", partial(_pattern, group), parts)
        alike = partial(_alike, unit, present)
        trace.guard("which parameters have had as many updates as others", alike, parts)
        trace.guard("the state of the optimiser", partial(_slots, unit), parts)
        # hyper-parameters by the step count before the call, and the updates in the call until then
        shared: dict[tuple[int, int], dict[str, Any]] = {}
        cells = trace.cells_of(unit, _Slots)
        fresh: list[tuple[slice, dict[str, Any]]] = []
        for i in present:
            done[i] = done.get(i, 0) + 1
            key = unit.steps[i], done[i]
            if key not in shared:
                shared[key] = self._numbers(group, unit, i, done[i])
            fresh.append(self._part(unit, unit.params[i], cells, shared[key]))
        for k in fresh[0][1]:
            if len(fresh) == len(unit.params):  # all parameters are updated: concatenate their states
                pieces = [new[k] for _, new in fresh]
                value = pieces[0] if len(pieces) == 1 else dyn.concat(*pieces, axis=0)
            else:
                value = trace.cell(cells, k)
                for at, new in fresh:
                    value = dyn.index_set(value, new[k], key=(at, Ellipsis))
            trace.set_cell(cells, k, value)

    def _numbers(self, group: ParameterGroup, unit: Unit, i: int, ahead: int) -> dict[str, Any]:
        """Return the hyper-parameters of parameter ``i`` of a unit as symbols, whose values each call reads.

        Zeros and flags are constants of the program.  If a call updates the parameter several times,
        ``ahead`` is 1 for the first update, 2 for the second, and so on; the step count is that before the
        call plus ``ahead``.
        """
        inside = self.trace.alone and self.optimizer.pure
        values = _Numbers(_unchanged if inside else self.optimizer.numbers, group, unit, i, ahead)
        now, paths = values.now(), values.paths
        symbols = iter(self.trace.numbers(values, len(paths)))
        moving = dict(zip(paths, symbols, strict=True))

        def symbol(value: Any, path: tuple[Any, ...]) -> Any:
            if isinstance(value, tuple):
                return tuple([symbol(v, (*path, n)) for n, v in enumerate(value)])
            return moving.get(path, value)

        found = {k: symbol(v, (k,)) for k, v in now.items()}
        return self._computed(found) if inside else found

    def _computed(self, hyper: dict[str, Any]) -> dict[str, Any]:
        """Return ``Optimizer.numbers(hyper)``, computed by the program."""
        step = hyper["step"].as_tensor(np.float64)
        found = user_code(self.optimizer, "numbers")({**hyper, "step": step})
        number_at, value = self.trace.number_at, self.trace.value
        return {k: number_at(value(v)) if isinstance(v, Tensor) else v for k, v in found.items()}

    def _part(
        self, unit: Unit, p: Tensor, cells: _Slots, hyper: dict[str, Any]
    ) -> tuple[slice, dict[str, Any]]:
        """Add the update of parameter ``p`` to the trace.

        Return the slice of the unit's flat arrays that belongs to ``p``, and the new state of ``p`` as
        symbols.  ``cells`` gives access to the state arrays of the unit.  The values of ``hyper`` are
        symbols.
        """
        trace, state = self.trace, unit.state
        assert state is not None
        at, g, rows = unit.slice_of(p), self.grads[id(p)], None
        before = {k: dyn.index(trace.cell(cells, k), key=(at, Ellipsis)) for k in state}
        whole = dyn.reshape(trace.value(p), shape=(p.size,))
        if type(g) is SparseRows:
            rows = TracedRows(trace, g)
            g, flat, parts = rows.gradient, rows.read(whole), {k: rows.read(v) for k, v in before.items()}
        else:
            g, flat, parts = dyn.reshape(g, shape=(p.size,)), whole, before
        g = g if g.dtype == p.dtype else dyn.astype(g, dtype=p.dtype)
        g, flat = widened(dyn, g), widened(dyn, flat)  # as ``Optimizer._write_half``
        parts = {k: widened(dyn, v) for k, v in parts.items()}
        new, fresh = user_code(self.optimizer, "apply_one")(
            dyn, flat, -g if hyper["maximize"] else g, parts, hyper
        )
        new = new if new.dtype == p.dtype else dyn.astype(new, dtype=p.dtype)
        fresh = {
            k: v if v.dtype == state[k].dtype else dyn.astype(v, dtype=state[k].dtype)
            for k, v in fresh.items()
        }
        if rows is not None:
            new, fresh = rows.write(whole, new), {k: rows.write(before[k], v) for k, v in fresh.items()}
        trace.replace(p, dyn.reshape(new, shape=p.shape))
        return at, fresh


class _Slots(SlotsRole):
    """Access to the state arrays of a unit by name.

    ``unit.state`` is looked up at each access, because it may be replaced between calls.
    """

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.held_by = unit, "state"

    def __getitem__(self, name: str) -> Any:
        assert self.unit.state is not None
        return self.unit.state[name]

    def __setitem__(self, name: str, value: Any) -> None:
        assert self.unit.state is not None
        self.unit.state[name] = value


def _paths(value: Any, path: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return the paths of the numbers in ``value``, a hyper-parameter, without zeros and flags.

    A path is a tuple of keys, such as ("lr",) or ("betas", 0).  ``path`` is that of ``value`` itself.
    """
    if isinstance(value, tuple):
        return [found for n, v in enumerate(value) for found in _paths(v, (*path, n))]
    moves = isinstance(value, (int, float)) and not isinstance(value, bool) and value
    return [path] if moves else []


class _Numbers(NumbersRole):
    """A function that writes the current hyper-parameters of an update into an array and returns the array.

    A program calls it each time that it runs.  The array is always the same object.  ``of`` is
    ``Optimizer.numbers``, or ``_unchanged`` if the program computes these numbers.
    """

    def __init__(self, of: Callable[..., Any], group: ParameterGroup, unit: Unit, i: int, ahead: int) -> None:
        self.of, self.group, self.unit, self.i, self.ahead = of, group, unit, i, ahead
        self.paths = [path for k, v in self.now().items() for path in _paths(v, (k,))]
        self.array = np.empty(len(self.paths))
        values = "".join([f", now{''.join([f'[{k!r}]' for k in path])}" for path in self.paths])
        names = {"pack": struct.Struct(f"{len(self.paths)}d").pack_into, "out": self.array}
        self.store = eval(f"lambda now: pack(out, 0{values}) or out", names)

    def now(self, later: int = 0) -> dict[str, Any]:
        """Return the hyper-parameters of the next update, or of the update ``later`` steps after it."""
        step = self.unit.steps[self.i] + self.ahead + later
        return self.of({**self.group.hyper, "step": step})

    def __call__(self, later: int = 0) -> Any:
        return self.store(self.of({**self.group.hyper, "step": self.unit.steps[self.i] + self.ahead + later}))

    def text(self, name: Callable[[Any], str], used: set[int]) -> str:
        """Return the source of a Python expression that is equivalent to a call, for generated code.

        It writes only the numbers at the indices ``used``.  ``name`` is a function that returns the variable
        of an object in the generated code.
        """
        used = used if used and min(used) >= 0 else {*range(len(self.paths))}
        pack = struct.Struct("".join(["d" if k in used else "8x" for k in range(len(self.paths))])).pack_into
        step = f"{name(self.unit)}.steps[{self.i}] + {self.ahead}"
        now = f"now := {name(self.of)}({{**{name(self.group)}.hyper, 'step': {step}}})"
        keys = ["".join([f"[{k!r}]" for k in self.paths[n]]) for n in sorted(used)]
        values = ", ".join([f"({now}){keys[0]}", *(f"now{key}" for key in keys[1:])])
        return f"{name(pack)}({name(self.array)}, 0, {values}) or {name(self.array)}"

    def rows(self, count: int) -> Any:
        """Return an array with the hyper-parameters of the next ``count`` updates, one row each."""
        return np.array([self(later).copy() for later in range(count)])

    def constant(self, used: set[int]) -> bool:
        """Return whether the numbers at the indices ``used`` are independent of the step count.

        The index -1 means all numbers.
        """
        given = {**self.group.hyper, "step": 1}
        return self.of(given) is given and not any(k < 0 or self.paths[k] == ("step",) for k in used)


def _unchanged(hyper: dict[str, Any]) -> dict[str, Any]:
    return hyper


def _pattern(group: ParameterGroup) -> Any:
    return {k: bool(v) if isinstance(v, float) else v for k, v in group.hyper.items() if k != "betas"}


def _alike(unit: Unit, present: list[int]) -> list[int]:
    """Return a list that shows which parameters have equal step counts.

    For each parameter in ``present`` (indices in the unit), it has the position in ``present`` of the first
    parameter with the same count.
    """
    counts = [unit.steps[i] for i in present]
    return list(map(counts.index, counts))


def _slots(unit: Unit) -> list[str] | None:
    return None if unit.state is None else sorted(unit.state)


class _HostCount(CountRole):
    """Increment the optimiser's step counts in Python after a compiled program has made an update."""

    __slots__ = ("counted", "optimizer")

    def __init__(self, optimizer: Optimizer, counted: list[tuple[Unit, list[int]]]) -> None:
        self.optimizer = optimizer
        self.counted = counted

    @property
    def what(self) -> str:
        """The name of this action in the text of a program."""
        return f"update of the step count of {type(self.optimizer).__name__}"

    def counters(self) -> list[tuple[dict[str, Any], str]] | None:
        """Return the attributes that count steps, each as a pair (dictionary, key).

        Return None if the program updates only some parameters of a unit.
        """
        if any(len(present) < len(unit.steps) for unit, present in self.counted):
            return None
        return [(vars(self.optimizer), "step_count"), *((vars(unit), "steps") for unit, _ in self.counted)]

    def count(self) -> tuple[int, list[list[int]]]:
        """Return a copy of the current step counts, which ``take_back`` can restore."""
        return self.optimizer.step_count, [unit.steps[:] for unit, _ in self.counted]

    def take_back(self, before: tuple[int, list[list[int]]]) -> None:
        """Restore the step counts to ``before``, the result of ``count``, whether or not they changed."""
        self.optimizer.step_count, counts = before
        for (unit, _), steps in zip(self.counted, counts, strict=True):
            unit.steps[:] = steps

    def __call__(self, times: int = 1) -> None:
        self.optimizer.step_count += times
        for unit, present in self.counted:
            steps = unit.steps
            if len(present) == len(steps):  # in place: a guard compares the identity of the list
                first, size = steps[0], len(steps)
                same = steps.count(first) == size
                steps[:] = [first + times] * size if same else [n + times for n in steps]
                continue
            unit.steps = [n + times * (i in present) for i, n in enumerate(unit.steps)]
