"""The trace of one program: the user's function is called on symbols, and what it reads is noted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, ItemsView, Sequence, ValuesView
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from numpy import ndarray

from adjoint import tree, words
from adjoint.compiler.api.layers import Layers, is_layer, modules_in
from adjoint.compiler.capture.arguments import (
    Call,
    Parameters,
    check_unchanged,
    containers_in,
    opened,
)
from adjoint.compiler.capture.spent import Spent
from adjoint.compiler.capture.trace import BothError, Trace
from adjoint.compiler.guards.effects import Advances
from adjoint.compiler.guards.observe import Observer
from adjoint.compiler.guards.values import ObjectGuard, is_module
from adjoint.compiler.host.direct import COPIED
from adjoint.compiler.loops.repeat import UnrollError
from adjoint.compiler.program.call_node import Backward
from adjoint.compiler.program.symbols import Number, Symbolic
from adjoint.compiler.replay import replay
from adjoint.core.node import Node
from adjoint.core.sparse import has_symbols
from adjoint.core.tensor import Tensor, Traced, wrap
from adjoint.errors import TransformError

__all__ = ["Captured"]


_BAGS = (set, frozenset, deque, ValuesView, ItemsView)  # collections that ``tree.flatten`` does not open
# results whose elements are computed later, after the trace
_LAZY = (map, zip, filter, GeneratorType, CoroutineType, AsyncGeneratorType)


class Captured:
    """A traced program, its guards, and how its results are made."""

    f: Callable[..., Any]
    name: str
    backend: str
    level: str | None
    moves: Sequence[int]
    parameters: Parameters

    def __init__(self) -> None:
        self.copies: list[Any] = []
        self.backward: Backward | None = None
        self.residuals: list[int | Tensor | None] = []  # see ``Backward.owners``
        self.spent = Spent()
        self.plainly = False  # whether the function works only with plain numbers, see ``Trace.plain``

    def _trace_call(self, call: Call, parameters: Parameters, varying: Collection[Any]) -> None:
        """Trace the function; set ``trace``, ``program``, ``guards`` and ``changed``."""
        self.trace = trace = Trace(
            call.moving, updates=self.backend != "replay", alone=self.level is not None
        )
        objects = call.objects(parameters)
        advances, layers = Advances(), Layers()

        def first(value: Any) -> None:
            advances.add(value)
            layers.add(value)

        observer = trace.observer = Observer(first)
        observer.restart(trace.variable, varying)
        for name, value in objects.items():
            observer.root(value, name)
        failed = True
        try:
            try:
                self._run_or_unroll(call)
            except BothError:  # the caller may trace the function again, so plain variables are restored
                observer.put_back()
                observer.reads().set_back()
                raise
            except Exception:
                # code that needs plain numbers, as C code does, gets them
                if not observer.numbers and int not in map(type, call.moving):
                    raise
                self.plainly = True
                self._again(call, ())
                self._run_or_unroll(call)
            failed = False
        finally:
            trace = self.trace
            observer.put_back(failed)
            self.reads = observer.finish(trace.outside)
            changed = layers.restore()
        if changed:
            raise TransformError(
                f"ad.compile: {parameters.place} adds, removes or replaces {changed}.\n"
                "  Do this outside of the compiled function.  To set a buffer or a parameter, write into it: "
                "buffer.copy_(value)."
            )
        advances.check(parameters.place)
        trace.arguments = ()
        self.program = trace.program
        # the variables that the function both reads and changes; the program would not change them
        self.changed = [*self.reads.all_changed(), *(g.what for g in trace.guards if not g.holds())]
        modules = self._module_guards(call, [m for m, *_ in layers.saved.values()])
        self.guards: list[Any] = [self.reads, *modules, *trace.guards]

    def _again(self, call: Call, varying: Collection[Any]) -> Trace:
        """Prepare another trace of the function for the same call; return it."""
        old = self.trace
        assert old.observer is not None
        self.trace = Trace(call.moving, old.updates, old.alone)
        self.trace.unroll, self.trace.observer, self.trace.plain = old.unroll, old.observer, self.plainly
        old.observer.restart(self.trace.variable, varying)
        return self.trace

    def _run_or_unroll(self, call: Call) -> None:
        try:
            self._run_trace(self.trace, call)
        except UnrollError:
            assert self.trace.observer is not None
            trace = self._again(call, self.trace.observer.varying)
            trace.unroll = True
            self._run_trace(trace, call)

    def _module_guards(self, call: Call, values: list[Any]) -> list[ObjectGuard]:
        """Return a guard for each module that was called, passed or read, except copies made by the trace.

        ``values`` has the values that were read.  The user's modules that were only read may change their
        own attributes: those that the code reads have other guards.
        """
        copies = {id(m) for m in self.copies}
        called = [m for m in self.trace.modules.values() if id(m) not in copies]
        self.copies = []
        modules = {id(m): m for m in (*called, *modules_in(call.structure))}
        read = {id(m): m for m in values if is_module(m) and id(m) not in modules}
        return [ObjectGuard(type(m).__name__, m, not is_layer(type(m))) for m in {**modules, **read}.values()]

    def _run_trace(self, trace: Trace, call: Call) -> None:
        trace.run(lambda: self._call(trace, call), lambda result: self._finish(trace, result))

    def _call(self, trace: Trace, call: Call) -> Any:
        """Call the function with symbols in place of the traced arguments; return its result."""
        leaves = list(call.leaves)
        made: dict[int, Any] = {}  # a tensor that is passed twice gets one symbol
        self.inputs = []
        for position, k in enumerate(call.moves):
            leaf = leaves[k]
            if id(leaf) not in made or not isinstance(leaf, Tensor):
                made[id(leaf)] = trace.stand_in(leaf, position)
            leaves[k] = made[id(leaf)]
            self.inputs.append(leaves[k])
        args, kwargs = tree.unflatten(call.structure, leaves)
        self.copies = list(modules_in(tree.structure((args, kwargs))))  # modules with symbols as parameters
        containers = list(containers_in((args, kwargs)))
        assert trace.observer is not None
        for copy, module in zip(self.copies, modules_in(call.structure), strict=True):
            trace.observer.stand_in(copy, module)
        for each, *_ in containers:
            trace.observer.made(each)
        result = trace.observer.run(self.f, *opened(args, kwargs))
        for each in result if isinstance(result, tuple) else (result,):
            trace.observer.returned(each)
        inputs = zip(call.moves, self.inputs, strict=True)
        arrays = {k: t for k, t in inputs if type(call.leaves[k]) is ndarray}
        check_unchanged(self.parameters, call.structure, containers, arrays)
        return result

    def _finish(self, trace: Trace, result: Any) -> None:
        """Record how each result of the function is made, and trace the backward pass if one needs it."""
        outs, self.result = tree.flatten(result)
        tensors: list[Tensor] = []
        assert trace.observer is not None
        for read, number in trace.observer.numbers:
            trace.note_number(read, number)
        numbered = {(id(r.parent), r.kind, r.key) for r, _ in trace.observer.numbers}
        for read in trace.observer.stores.values():
            if (id(read.parent), read.kind, read.key) not in numbered:
                trace.note_number(read)
        self.outs: list[tuple[str, Any]] = []
        places: dict[int, int] = {}  # the index in ``tensors``, by the id of the tensor
        for o in outs:
            if isinstance(o, Symbolic) or has_symbols(o):
                o = wrap(getattr(o, "_data", o))
            if not isinstance(o, Tensor):
                self._check_result(trace, o)
                self.outs.append(("copy" if isinstance(o, COPIED) else "same", o))
                continue
            held = trace.held.get(id(o))
            if type(o) is not Traced:  # created outside, and not used by any op
                self.outs.append(("same", o))
                continue
            if held is not None:
                kind = "same" if held.argument is None else "argument"
                self.outs.append((kind, o if held.argument is None else self.moves[held.argument]))
                continue
            place = places.setdefault(id(o), len(tensors))
            self.outs.append(("number" if isinstance(trace.value(o), Number) else "value", place))
            if place == len(tensors):
                tensors.append(o)
        trace.program.results = [trace.value(o) for o in tensors]
        self.count = len(tensors)
        if any(type(o._node) is Node for o in tensors):
            self.spent.take(self.name, trace, self.inputs, tensors)
        if any(type(o._node) is Node for o in tensors):
            self.backward = Backward(trace, self.inputs, tensors, replay.build)
            self.residuals = self.backward.owners(trace)
            pairs = zip(self.backward.residuals, self.residuals, strict=True)
            trace.program.results += [v for v, owner in pairs if owner is None]

    def _check_result(self, trace: Trace, o: Any) -> None:
        """Raise if ``o``, a result that is not a tree, may contain tensors that exist only in the trace.

        Such results are iterators, and containers such as sets that contain tensors of the trace.
        """
        if isinstance(o, _LAZY):
            what = words.a(type(o).__name__)
        elif isinstance(o, _BAGS) and any(trace.owns(each) for each in tree.flatten(list(o))[0]):
            what = f"{words.a(type(o).__name__)} with tensors in it"
        else:
            return
        raise TransformError(
            f"ad.compile: {self.parameters.place} returns {what}, which compiled functions do not support.\n"
            "  Return a list, a tuple or a dictionary."
        )
