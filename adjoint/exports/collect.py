"""Find what a library needs: the program of a function, its arguments and results, and its state.

The state has a named part for each parameter, buffer, gradient, array of an optimiser, hyper-parameter, step
count and random generator that the program reads or writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from adjoint import tree
from adjoint.compiler.api.compile import Compiled
from adjoint.compiler.api.variant import Variant
from adjoint.compiler.capture.arguments import Call, Parameters
from adjoint.compiler.program.inputs import (
    ArgumentSource,
    ArraySource,
    CellSource,
    DrawSource,
    GradSource,
    NumberSource,
    NumbersSource,
    TensorSource,
)
from adjoint.compiler.program.program import Program
from adjoint.compiler.program.symbols import Symbolic
from adjoint.compiler.program.writes import Action, CellWrite, DataWrite, GradWrite, SparseGradWrite
from adjoint.core.tensor import Tensor
from adjoint.errors import ExportError
from adjoint.exports.draws import Draw, check_draw
from adjoint.exports.names import distinct, identifier, unused
from adjoint.exports.restore import (
    Counter,
    Hyper,
    SparseParts,
    generator_words,
    read_gradient,
    set_generator,
    set_gradient,
    set_tensor,
)
from adjoint.transforms.inputs import name_of

__all__ = ["Collected", "Item", "Part", "collect", "raise_problems"]


@dataclass
class Item:
    """An argument or a result: its name, dtype and shape; ``output`` is the index of a result's output."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    output: int = -1


@dataclass
class Part:
    """A part of the state: its first value, and functions that read and set the object that it is from."""

    name: str
    value: np.ndarray[Any, Any]
    read: Callable[[], Any]
    write: Callable[[Any], None]
    offset: int = 0  # in the state; it is assigned later

    @property
    def item(self) -> Item:
        """The name, the dtype and the shape."""
        return Item(self.name, self.value.dtype, self.value.shape)


@dataclass
class Collected:
    """The program of a library, and where its inputs come from and its outputs go."""

    name: str
    program: Program
    arguments: list[Item]
    results: list[Item]
    parts: list[Part] = field(default_factory=list)
    # where each input of the program comes from: ("argument", k), ("part", k), ("draw", k), ("constant",) or
    # ("numbers", parts, how many updates ahead of the step count)
    inputs: list[tuple[Any, ...]] = field(default_factory=list)
    draws: list[tuple[Draw, int]] = field(default_factory=list)  # and the part of the generator
    writes: list[tuple[int, int]] = field(default_factory=list)  # an output, and the part that it replaces
    counts: list[tuple[int, int]] = field(default_factory=list)  # a part, and what a call adds to it
    # by the part of a learning rate: the part of the step count, what is added to it, and the rates
    rates: dict[int, tuple[int, int, list[float]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)  # what cannot be exported


def collect(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], level: str) -> Collected:
    """Trace a function for arguments like these."""
    static: Any = ()
    if isinstance(f, partial) and isinstance(f.func, Compiled):  # a compiled method
        f = partial(f.func._f, *f.args)
    elif isinstance(f, Compiled):
        f, static = f._f, f._options[0]
    parameters = Parameters(f, static)
    call = Call(args, kwargs, parameters)
    variant = Variant(f, call, "auto", parameters, level=level)
    variant.reads.set_back()
    return _Collector(variant, call, parameters).run()


class _Collector:
    """Collects one program; ``problems`` are the reasons why it cannot be exported."""

    def __init__(self, variant: Variant, call: Call, parameters: Parameters) -> None:
        self.variant, self.call, self.parameters = variant, call, parameters
        self.trace = variant.trace
        self.problems: list[str] = []
        self.names = {"__metadata__"}  # those of parts, and a key of safetensors
        self.known: dict[Any, int] = {}  # parts by the identity of what they are from
        self.optimizers: dict[int, tuple[Any, str]] = {}  # and their names, by the id of a unit
        # by the id of an optimiser: its name, the updates of a call, the counter that its count moves with
        self.kinds: dict[int, str] = {}
        self.times: dict[int, int] = {}
        self.moving: dict[int, Any] = {}
        self.made = Collected(name_of(variant.f), Program(), [], [])

    def run(self) -> Collected:
        """Return what was collected; raise if there are problems."""
        self._refuse_branches()
        self._note_optimizers()
        self._program()
        for s in self.made.program.sources:
            self.made.inputs.append(self._input(s))
        at = len(self.made.program.results)
        for w in self.made.program.writes:
            self._write(w, at)
            at += sum(v is not None for v in w.values)
        self._count_updates()
        self._check_gradients()
        self.made.problems = self.problems
        return self.made

    # The program -------------------------------------------------------------------------------------

    def _refuse_branches(self) -> None:
        for _, part, found, _ in self.trace.decisions:
            line = part.body[-1].line if part.body else ""
            self.problems.append(
                f"{line or 'a branch'}: it depends on a value of this call, which was {found!r}"
            )
        self.problems += [f"{what}: the function both reads and changes it" for what in self.variant.changed]

    def _note_optimizers(self) -> None:
        for w in self.variant.program.writes:
            if isinstance(w, Action) and hasattr(w.owner, "counted"):
                optimizer = w.owner.optimizer
                k = id(optimizer)
                if k not in self.times:
                    self.kinds[k] = unused(type(optimizer).__name__, self.names)
                self.times[k] = self.times.get(k, 0) + 1
                for unit, _ in w.owner.counted:
                    self.optimizers[id(unit)] = optimizer, self.kinds[k]

    def _program(self) -> None:
        """Set the program without the residuals of a backward pass, and the arguments and results."""
        whole, variant = self.variant.program, self.variant
        paths = self.parameters.paths(self.call.structure)
        leaves = {at: k for k, at in enumerate(self.call.moves)}
        self.made.arguments = [
            Item(identifier(paths[at]), np.dtype(getattr(leaf, "dtype", np.float64)), tuple(np.shape(leaf)))
            for at, leaf in zip(self.call.moves, self.call.moving, strict=True)
        ]
        program = self.made.program = Program(whole.sources, whole.body, whole.results[: variant.count])
        program.writes, program.count = whole.writes, whole.count
        for constant in _constants(variant.result):
            self.problems.append(f"result: the function returns {constant!r}, which is no array")
        places = variant.result.paths("result")
        for (kind, at), path in zip(variant.outs, places, strict=True):
            name = identifier(path.removeprefix("result") or "result", "result")
            if kind in ("value", "number"):
                value = program.results[at]
            elif kind == "argument":
                value, at = self._given(ArgumentSource, leaves[at]), -1
            elif isinstance(at, Tensor):
                value, at = self._after(at), -1
            elif isinstance(at, np.ndarray):
                value, at = self._given(ArraySource, at), -1
            else:
                if at is not None:
                    self.problems.append(f"{path}: the function returns {at!r}, which is no array")
                continue
            if at < 0:
                at = len(program.results)
                program.results.append(value)
            self.made.results.append(Item(name, np.dtype(value.dtype), tuple(value.shape), at))
        for items in (self.made.arguments, self.made.results):
            distinct(items)

    def _after(self, t: Any) -> Any:
        """Return the symbol of a tensor after a call, which may write into it."""
        writes = [w for w in self.made.program.writes if isinstance(w, DataWrite) and w.owner is t]
        return writes[-1].values[0] if writes else self._given(TensorSource, t)

    def _given(self, kind: type, owner: Any) -> Any:
        """Return the symbol of the source of an argument, a tensor or an array; it may need a new source."""
        sources = self.made.program.sources
        for s in sources:
            if type(s) is kind and (s.owner is owner or (isinstance(owner, int) and s.owner == owner)):
                return s.value
        sources.append(kind(Symbolic(self.trace, owner.shape, owner.dtype), owner))
        return sources[-1].value

    # Inputs ------------------------------------------------------------------------------------------

    def _input(self, s: Any) -> tuple[Any, ...]:
        """Return where an input comes from, as in ``Collected.inputs``."""
        if isinstance(s, ArgumentSource):
            return "argument", s.owner
        if isinstance(s, TensorSource):
            return "part", self._tensor(s.owner)
        if isinstance(s, GradSource):
            return "part", self._gradient(s.owner)
        if isinstance(s, ArraySource):
            if not s.is_outside():
                return ("constant",)
            return "part", self._array(s.owner)
        if isinstance(s, CellSource):
            return "part", self._cell(*s.owner)
        if isinstance(s, DrawSource):
            return self._draw(s)
        if isinstance(s, NumberSource):
            return "part", self._number(s.owner)
        if isinstance(s, NumbersSource) and hasattr(s.owner, "paths"):
            return self._numbers(s)
        self.problems.append(f"{self._line(s.value)}: it reads a value in Python at each call ({s.kind})")
        return ("constant",)

    def _line(self, value: Any) -> str:
        """Return the line that uses the value of an input first."""
        used = (i.line for i in self.made.program.body if any(a is value for a in i.args))
        return next(used, "") or "the function"

    def _part(
        self, key: Any, name: str, value: Any, read: Callable[[], Any], write: Callable[[Any], None]
    ) -> int:
        """Return the index of the part with this key, which is made if there is none."""
        if key not in self.known:
            self.known[key] = len(self.made.parts)
            self.made.parts.append(Part(unused(name, self.names), np.array(value, order="C"), read, write))
        return self.known[key]

    def _name(self, t: Any) -> str:
        found = self.variant._tensor_name(t, "tensor").rpartition(": ")[2].rpartition("<locals>.")[2]
        return re.sub(r"[^A-Za-z0-9_]+", ".", found).strip(".") or "tensor"

    def _tensor(self, t: Any) -> int:
        data = self.trace.held[id(t)].data if id(t) in self.trace.held else t._data
        return self._part(("tensor", id(t)), self._name(t), data, lambda: t._data, lambda a: set_tensor(t, a))

    def _gradient(self, t: Any) -> int:
        value = read_gradient(t, np.zeros(t.shape, t.dtype))
        name = f"{self.made.parts[self._tensor(t)].name}.grad"
        return self._part(
            ("grad", id(t)), name, value, partial(read_gradient, t, value), partial(set_gradient, t)
        )

    def _sparse_gradient(self, t: Any, names: tuple[str, ...], values: Any) -> list[int]:
        """Return the parts of a sparse gradient, which the program has made."""
        parts = SparseParts(t, {n: np.zeros(v.shape, v.dtype) for n, v in zip(names, values, strict=True)})
        start = f"{self.made.parts[self._tensor(t)].name}.grad"
        return [
            self._part(
                ("grad", id(t), n),
                f"{start}.{n}",
                parts.read(n),
                partial(parts.read, n),
                partial(parts.write, n),
            )
            for n in names
        ]

    def _array(self, a: Any) -> int:
        def write(value: Any) -> None:
            a[...] = value

        return self._part(("array", id(a)), "array", a, lambda: a, write)

    def _cell(self, container: Any, key: Any) -> int:
        def write(value: Any) -> None:
            container[key] = value.reshape(np.shape(container[key]))

        unit = getattr(container, "unit", None)
        optimizer, name = self.optimizers.get(id(unit), (None, "item"))
        if optimizer is not None:
            units = [u for g in optimizer.groups for u in g.units]
            name += f".{units.index(unit)}" if len(units) > 1 else ""
        return self._part(
            ("cell", id(container), key), f"{name}.{key}", container[key], lambda: container[key], write
        )

    def _number(self, read: Callable[[], Any]) -> int:
        def write(value: Any) -> None:
            pass  # Python computes this number

        return self._part(
            ("number", id(read)), "number", np.float64(read()), lambda: np.float64(read()), write
        )

    def _draw(self, s: Any) -> tuple[Any, ...]:
        draw, problem = check_draw(s.form, tuple(s.value.shape), s.value.dtype)
        if draw is None:
            self.problems.append(f"{self._line(s.value)}: {problem}")
            return ("constant",)
        g = draw.generator
        read, write = lambda: generator_words(g), lambda a: set_generator(g, a)
        part = self._part(("generator", id(g)), "generator", generator_words(g), read, write)
        self.made.draws.append((draw, part))
        return "draw", len(self.made.draws) - 1

    def _numbers(self, s: Any) -> tuple[Any, ...]:
        """Return the parts of the hyper-parameters that an update reads; the step count is the last one."""
        owner = s.owner
        optimizer, name = self.optimizers.get(id(owner.unit), (None, ""))
        if optimizer is None or not optimizer.pure:
            kind = name or "an optimiser"
            self.problems.append(f"{self._line(s.value)}: {kind} computes its numbers in Python at each step")
            return ("constant",)
        groups = optimizer.groups
        if len(groups) > 1:
            name += f".groups.{groups.index(owner.group)}"
        found: list[int] = []
        for path in owner.paths:
            if path == ("step",):
                found.append(self._counter(optimizer, owner.unit, owner.i))
                continue
            hyper = Hyper(owner.group, path)
            key = ("hyper", id(owner.group), path)
            found.append(
                self._part(key, ".".join([name, *map(str, path)]), hyper.read(), hyper.read, hyper.write)
            )
        return "numbers", found, owner.ahead

    def _counter(self, optimizer: Any, unit: Any, i: int) -> int:
        """Return the part with the step count of a parameter, of position ``i`` in a unit."""
        alike = unit.steps[i], self._updates(unit)[i]
        units = [u for g in optimizer.groups for u in g.units]
        found = [(u, [k for k, n in self._updates(u).items() if (u.steps[k], n) == alike]) for u in units]
        key = "steps", id(optimizer), *alike
        moves = alike[1] == self.times[id(optimizer)] and self.moving.setdefault(id(optimizer), key) == key
        return self._steps(key, Counter(optimizer, [(u, places) for u, places in found if places], moves))

    def _steps(self, key: Any, counter: Counter) -> int:
        name = f"{self.kinds[id(counter.optimizer)]}.step"
        return self._part(key, name, counter.read(), counter.read, counter.write)

    def _updates(self, unit: Any) -> dict[int, int]:
        """Return how often a call updates the parameters of a unit, by their positions."""
        found: dict[int, int] = self.trace.counted.get(id(unit), (unit, {}))[1]
        return found

    # Writes ------------------------------------------------------------------------------------------

    def _write(self, w: Any, at: int) -> None:
        """Record the write ``w``, whose first value is output ``at`` of the program."""
        if isinstance(w, Action):
            self._action(w)
            return
        if isinstance(w.owner, int):
            argument = self.made.arguments[w.owner].name
            what = "sets .grad of" if isinstance(w, (GradWrite, SparseGradWrite)) else "changes"
            self.problems.append(
                f"{argument}: the function {what} this argument; return the new value instead"
            )
            return
        parts: list[int] = []
        if isinstance(w, DataWrite):
            parts = [self._tensor(w.owner)]
        elif isinstance(w, CellWrite):
            parts = [self._cell(*w.owner)]
        elif isinstance(w, SparseGradWrite):
            parts = self._sparse_gradient(w.owner, ("rows", "values"), w.values)
        elif not isinstance(w, GradWrite):
            self.problems.append(f"{w.where}: it is assigned in Python at the end of each call")
        elif w.values[0] is not None:
            parts = [self._gradient(w.owner)]
        self.made.writes += zip(range(at, at + len(parts)), parts, strict=True)

    def _action(self, w: Any) -> None:
        if not hasattr(w.owner, "counted"):
            self.problems.append(f"{w.where}: it runs in Python at the end of each call")

    def _count_updates(self) -> None:
        """Record what a call adds to the step counts of optimisers."""
        for k, times in self.times.items():
            optimizer, name = next(found for found in self.optimizers.values() if id(found[0]) == k)
            counts: dict[int, int] = {}
            for unit in [u for g in optimizer.groups for u in g.units]:
                updates = self._updates(unit)
                counts |= {self._counter(optimizer, unit, i): n for i, n in updates.items()}
                alike = {(unit.steps[i], n) for i, n in updates.items()}
                if len(alike) > len({count for count, _ in alike}):
                    self.problems.append(
                        f"{name}: a call updates some parameters more often than others, although they "
                        "have had as many updates until now; call the function once before the export"
                    )
            if k not in self.moving:
                counts[self._steps(("steps", k), Counter(optimizer, [], True))] = times
            self.made.counts += counts.items()

    def _check_gradients(self) -> None:
        """Refuse programs that only the first call can run, because a gradient is None only then."""
        writes = [w for w in self.made.program.writes if isinstance(w, (GradWrite, SparseGradWrite))]
        after = {id(w.owner): w.values[0] for w in writes}
        for h in self.trace.grad_guards():
            last = after.get(id(h.tensor), h.grad)
            if (last is None) != (h.grad is None):
                now, then = ("None", "an array") if h.grad is None else ("an array", "None")
                self.problems.append(
                    f".grad of {self._name(h.tensor)}: it is {now} before the call and {then} after it, so "
                    "the next call is another program; call zero_grad() at the start of the function"
                )


def _constants(structure: Any) -> Iterator[Any]:
    """Yield the constants in nested results, except None."""
    if structure.kind is tree.Structure.STATIC and structure.rest is not None:
        yield structure.rest
    for child in structure.children:
        yield from _constants(child)


def raise_problems(name: str, problems: list[str]) -> None:
    """Raise ExportError with all problems; equal ones are listed once."""
    listed = "\n  ".join(dict.fromkeys(problems))
    raise ExportError(
        f"export: {name} cannot be a library without Python, and nothing was written:\n  {listed}\n"
        "  Move these parts out of the function, or use ops with a native form; explain() of the compiled "
        "function lists them."
    )
