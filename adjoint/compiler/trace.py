"""A trace: call a function on symbols, and record what it reads, computes and writes.

Each tensor that the function uses and did not make itself is captured: a symbol replaces its array until the
trace ends, and the program reads the array again at each call.  Values that the function assigns to the
tensor or to its ``.grad`` are assigned by the program at the end of each call.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint import words
from adjoint.compiler.advances import Advances
from adjoint.compiler.guards import LARGEST, Guard, itself
from adjoint.compiler.host_call import Inner, call_on_host
from adjoint.compiler.loop import trace_scan
from adjoint.compiler.pause import Pause, restore
from adjoint.compiler.program import Host, Instruction, Program, Write, typed
from adjoint.compiler.reads import named_reads
from adjoint.compiler.replay import build
from adjoint.compiler.sources import Held, Sources
from adjoint.compiler.symbolic import OTHER, Nonzero, Number, Root, Symbolic, ended_error, refused
from adjoint.config import fork_count, held_across_fork, locked, watched
from adjoint.core.infer import infer
from adjoint.core.inplace import is_view
from adjoint.core.lifted import Lifted, enclosing, level_of, located, next_level, tracing
from adjoint.core.node import LEAF, Node, next_seq
from adjoint.core.sparse import SparseGradient
from adjoint.core.tensor import Tensor, Traced, wrap
from adjoint.core.user_code import Position, line_at, user_line, user_position
from adjoint.errors import AdjointError, TransformError
from adjoint.grads.slots import sink

__all__ = ["Trace"]

# One trace at a time: tensors are changed in place.  No fork happens meanwhile.
_tracing_lock = held_across_fork(threading.RLock())

_NUMBERS = (float, int, bool, complex)
_ASSIGNED = (
    "ad.compile: the function sets .grad to a tensor that has a graph, which compiled functions do not "
    "support.\n  Assign g.detach(), or compute g inside `with ad.no_grad():`."
)
_CREATED = (
    "ad.compile: backward(create_graph=True) stores a .grad that has a graph, which compiled functions do "
    "not support.\n  Call ad.gradients(loss, params, create_graph=True) instead, or set .grad to None before "
    "the function returns."
)


class Trace(Sources):
    """One call of a function on symbols, which records a program."""

    def __init__(self, arguments: Sequence[Any] = (), updates: bool = False) -> None:
        super().__init__(arguments)
        self.updates = updates  # whether updates of optimisers are always part of the program
        self.level = next_level()
        self.start = next_seq()  # hooks that were registered before the trace have smaller numbers
        self.guards: list[Any] = []  # see guards.py
        self.called: dict[int, tuple[Any, Advances]] = {}  # see ``guard_reads``
        self.indexed: set[int] = set()  # ids of arrays whose elements are part of the program
        self.modules: dict[int, Any] = {}  # modules that were called, by id
        self.reached: list[Any] = []  # values of the variables that functions called by the library read
        self.actions: list[Write] = []  # updates of optimisers and gradients for micro-batches, in order
        self.conditions: set[int] = set()  # the ids of conditions under which values are computed
        # changed lists of hooks, their old hooks, the line, and whether they were certainly created outside
        self.hooks: dict[int, tuple[Any, dict[int, Any], Position, bool]] = {}
        self.graphs: dict[int, str] = {}  # errors for a .grad with a graph, by the id of the tensor
        self.hooked: list[Any] = []  # modules with hooks that were called
        self.deferred: dict[int, Callable[[], None]] = {}  # how to compute values that nothing has read yet
        self.counted: dict[int, tuple[Any, dict[int, int]]] = {}  # see ``updates_of``
        # functions, the programs that compute their arguments, their results, and the reason for a retrace
        self.decisions: list[tuple[Callable[[Any], Any], Program, Any, str]] = []
        self.indices: list[tuple[Callable[[Any], None], Symbolic]] = []  # how to check index arrays
        self.undo: list[Callable[[], None]] = []
        self.parent: Trace | None = None  # the trace around a loop, if this is the trace of its body
        self.loop: Any = None  # the loop, if this is the trace of its body
        self.unroll = False  # whether loops are unrolled
        self.loops: list[Any] = []  # loops that are one instruction, nested ones too
        self.thread = threading.get_ident()
        self.forks = fork_count()
        self.refused: BaseException | None = None  # see ``core.lifted.refusal``
        self.running: list[Trace] = []  # the traces that run: the outermost, and those inside it
        self.ended = self.released = False
        self.paused = False  # whether the garbage collector runs, see ``Pause``
        self.interrupt: BaseException | None = None  # an interrupt that came in a ``Pause``

    # Inputs ------------------------------------------------------------------------------------

    def numbers(self, read: Callable[[], Any], count: int) -> list[Number]:
        """Return symbols for the ``count`` numbers that ``read`` returns at each call.

        None of the numbers may be 0.
        """
        array = self.source("numbers", (count,), np.float64, read)
        found: list[Number] = [Nonzero(self) for _ in range(count)]
        for k, number in enumerate(found):
            self._add_with(NUMBER_AT, (array,), {"k": k}, (number,))
        return found

    def made(self, t: Tensor, source: Any = None) -> Tensor:
        """Replace the array of ``t``, which the traced function created, by a symbol; return ``t``.

        ``source`` is the array that the tensor is a copy of, if any.
        """
        if type(t._data) is ndarray:
            if type(source) is ndarray and source.shape == t.shape:
                (value,) = self.call("copy", partial(np.array, dtype=t.dtype), [source], [(t.shape, t.dtype)])
                if id(source) in self.places:
                    self._note_place(source)
            else:
                value = self.constant(t._data)
            t._data = value
            t.__class__ = Traced
        return t

    def fix(self, array: Any) -> None:
        """Guard the elements of an array: the function is traced again if they change."""
        if type(array) is not ndarray:
            return
        self.indexed.add(id(array))  # so that ``drop_contents`` keeps its elements
        if not any(getattr(g, "contents", None) is not None and g.seen is array for g in self.guards):
            self.guard(f"an array of shape {array.shape}", partial(itself, array))
            self.guards[-1].keep_contents()

    def drop_contents(self, guards: Iterable[Guard], uses: dict[int, set[Position | None]]) -> None:
        """Stop guarding the elements of arrays that only ops read, because the program reads them itself.

        ``uses`` is as ``Uses.found``.  Also stop guarding the largest of the other arrays, if they have more
        than ``LARGEST`` bytes in all.
        """
        read = set()
        for a in self.outside:
            while type(a) is ndarray:  # and the arrays that it is a view of
                found = uses.get(id(a), set()) | self.uses.found.get(id(a), set())
                if found and found <= self.places[id(a)] and id(a) not in self.indexed:
                    read.add(id(a))
                a = a.base
        total = 0
        compared = [g for g in guards if getattr(g, "contents", None) is not None]
        for g in sorted(compared, key=lambda g: g.seen.nbytes):
            total += g.seen.nbytes if g not in self.guards else 0
            if id(g.seen) in read or (total > LARGEST and g not in self.guards):
                g.drop_contents()

    def touch(self, tensors: Iterable[Any]) -> None:
        """Capture each value that is a tensor: replace its array by a symbol."""
        for t in tensors:
            if type(t) is Tensor or (
                self.parent is not None and isinstance(t, Tensor) and level_of(t._data) <= self.level
            ):
                self.capture(t)

    def capture(self, t: Tensor) -> Symbolic:
        """Replace the array of ``t`` by a symbol until the trace ends; return the symbol."""
        data = t._data
        if isinstance(data, Symbolic):
            if data.trace is self:
                return data
            if self.parent is None or data.trace.ended:
                raise ended_error(data)
            if data.weak:  # a tensor that this op made from a Python number
                t._data = self._from_parent(data)
                return t._data
        elif type(data) is not ndarray and not self._is_around(data):
            raise refused(
                "ad.compile: the function uses a tensor that is not an argument and that is sparse, or is "
                "being differentiated or batched by another transform.\n"
                "  Pass the tensor as an argument of the compiled function."
            )
        if t._extra is not None and type(t._extra.grad) is SparseGradient:
            raise refused(
                "ad.compile: the .grad of a parameter is sparse, which compiled functions do not support.\n"
                "  Create the embedding with sparse=False."
            )
        symbol = self.source("tensor", data.shape, data.dtype, t)
        self.held[id(t)] = Held(t, symbol)
        t._data = symbol
        t.__class__ = Traced
        if type(t._node) is Node or (isinstance(data, Lifted) and data.has_history()):
            t._node = LEAF  # its graph ends here: the call of the compiled function becomes part of it
        return symbol

    def _is_around(self, data: Any) -> bool:
        """Return whether ``data`` is a value of a ``vmap`` that encloses the loop whose body is traced."""
        return self.parent is not None and isinstance(data, Lifted) and data.level < self.level

    def lend(self, inner: Trace, t: Tensor) -> Symbolic:
        """Capture a tensor that ``inner``, the trace of a loop body, uses; return its symbol here."""
        held, symbol = inner.held[id(t)], t._data
        t._data, t.__class__ = held.data, held.kind
        held.data, held.kind = self.capture(t), Traced
        t._data, t.__class__ = symbol, Traced
        return held.data

    def refuse_freezing(self, t: Tensor, value: bool) -> None:
        """Raise if ``value`` changes ``t.requires_grad`` of a tensor made outside of the function.

        Compiled calls would not repeat the change.
        """
        if (type(t) is Tensor or id(t) in self.held) and (t._node is not None) != value:
            raise refused(
                "ad.compile: the function changes requires_grad of a tensor that was created outside of it.\n"
                "  Call requires_grad_() before the compiled function, which is then traced again."
            )

    def stand_in(self, leaf: Any, position: int) -> Any:
        """Return the value that the function gets in place of ``leaf``, the argument at ``position``.

        It is a tensor with a symbol as its array, or a symbolic number for a Python float.
        """
        if type(leaf) is float:
            return self.number("argument", position)
        t = wrap(self.source("argument", leaf.shape, leaf.dtype, position))
        if isinstance(leaf, Tensor):
            held = self.held[id(t)] = Held(t, t._data, position)
            held.grad = None if leaf._extra is None else leaf._extra.grad
            if leaf._node is not None:
                t._node = LEAF
            if is_view(leaf):  # a write into it raises, as in eager mode
                t._source = weakref.ref(leaf), None
        return t

    def value(self, a: Any) -> Symbolic:
        """Return the symbol of a tensor, an array or a value of this trace."""
        if isinstance(a, Tensor):
            a = self.capture(a)
        if isinstance(a, Symbolic):
            if a.trace is not self:
                return self._from_parent(a)
            return self._settle(a) if self.deferred else a
        if self._is_around(a) and not a.has_history():
            return self._from_parent(a)
        if type(a) is ndarray:  # made by a derivative rule; arrays of the user are passed to ``array`` first
            found = self.arrays.get(id(a))
            if found is None:
                found = self.arrays[id(a)] = a, self.constant(a)
            return found[1]
        if isinstance(a, SparseGradient) or not isinstance(a, np.generic):
            raise refused(
                f"ad.compile: {words.a(type(a).__name__)} cannot be used inside a compiled function.\n"
                "  Use tensors, arrays and Python numbers."
            )
        return self.constant(np.asarray(a))

    def _from_parent(self, value: Any) -> Symbolic:
        """Return the symbol, in the trace of a loop body, of a value from the trace or ``vmap`` around it."""
        if self.parent is None or (isinstance(value, Symbolic) and value.trace.ended):
            raise ended_error(value)
        found = self.arrays.get(id(value))
        if found is None and isinstance(value, Number):
            number = self._from_parent(value.as_tensor(value.dtype)._data).as_number(value.kind)
            found = self.arrays[id(value)] = value, number
        elif found is None:
            symbol = self.source("outer", value.shape, value.dtype, value)
            found = self.arrays[id(value)] = value, symbol
        return found[1]

    def _settle(self, value: Symbolic) -> Symbolic:
        """Return ``value``; if ``defer`` has postponed its computation, add this to the program first."""
        settle = self.deferred.get(value.id)
        if settle is not None:
            settle()
        return value

    # Instructions --------------------------------------------------------------------------------

    def emit(self, op: Any, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        """Add an instruction to the program; return the symbols of its results."""
        if getattr(op, "call", False):
            return op.forward(*args)
        direct = not self.deferred
        own = tuple(
            [a if type(a) is Symbolic and direct and a.trace is self else self._operand(a) for a in args]
        )
        if op.name == "where" and getattr(own[0], "id", None) in self.conditions:
            flag, other, first = own
            if _is_like(other, first):
                return self._add(OTHER, (flag, first, other), {}, [(first.shape, first.dtype)])[0]
        known = [a.kind(1) if isinstance(a, Number) else a for a in own]  # 1 has the same dtype rules
        outs = self._add(op, own, params, infer(op, tuple(typed(op, own, known)), params))
        return outs if op.outputs > 1 else outs[0]

    def number_of(self, op: Host, args: tuple[Any, ...], kind: type | None = None) -> Number:
        """Add an instruction that computes a Python number; return the symbol of the number."""
        if kind is None:
            kind = type(op.forward(*[a.kind(1) if isinstance(a, Number) else a for a in args]))
        out = Number(self, kind)
        self._add_with(op, args, {}, (out,))
        return out

    def read_number(self, function: Callable[[Any], Any], value: Number) -> Any:
        """Return ``function(value)`` and guard the result.

        Return NotImplemented if ``value`` depends on tensors.
        """
        part = self.part(value, pure=True)
        if self.ended or any(s.kind != "argument" or not s.value.weak for s in part.sources):
            return NotImplemented
        return self._decided(
            function, part, f"{user_line()} reads the value of a float argument, which has changed"
        )

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        specs: Sequence[Any],
        pure: bool = True,
    ) -> list[Symbolic]:
        """Add a call of a Python function on arrays; return the symbols of its results.

        ``specs`` has the shape and dtype of each result.
        """
        return self.call_host(Host(name, function, len(specs), pure), args, specs)

    def call_host(
        self, host: Host, args: Sequence[Any], specs: Sequence[Any], params: dict[str, Any] | None = None
    ) -> list[Symbolic]:
        """Add a call of a ``Host``; return the symbols of its results.

        ``specs`` has the shape and dtype of each result.
        """
        own = tuple([self.value(a) for a in args])
        return list(self._add(host, own, params or {}, specs))

    def _add(
        self, op: Any, args: tuple[Any, ...], params: dict[str, Any], specs: Any
    ) -> tuple[Symbolic, ...]:
        outs = tuple([Symbolic(self, shape, dtype) for shape, dtype in specs])
        self._add_with(op, args, params, outs)
        return outs

    def _add_with(
        self, op: Any, args: tuple[Any, ...], params: dict[str, Any], outs: tuple[Any, ...]
    ) -> None:
        if self.ended or self.paused:
            raise ended_error(next((a for a in args if isinstance(a, Symbolic)), None))
        self.check_thread()
        quiet = np.geterr()["invalid"] == "ignore"
        self.program.body.append(Instruction(op, args, params, outs, quiet, user_position(3)))

    def check_thread(self) -> None:
        """Raise if the trace runs in another thread, or in the parent of a forked process."""
        if self.ended:
            return
        if self.interrupt is not None:
            error, self.interrupt = self.interrupt, None
            raise error
        if fork_count() != self.forks:
            raise TransformError(
                "this process was forked inside a function that ad.compile was tracing.\n"
                "  Fork before or after the first call of the compiled function."
            )
        if threading.get_ident() != self.thread:
            raise TransformError(
                "ad.compile is tracing a function that uses this tensor in another thread.\n"
                "  Wait until the first call of the compiled function has returned before you use the tensor."
            )

    def _operand(self, a: Any) -> Any:
        if type(a) is Symbolic and a.trace is self and not self.deferred:
            return a
        if type(a) in _NUMBERS or (isinstance(a, Number) and a.trace is self):
            return a
        if type(a) is ndarray and not a.shape and not a.flags.writeable:
            return a  # a number that the eager op turned into an array
        return self.value(a)

    def decide(self, function: Callable[[Any], Any], value: Symbolic) -> Any:
        """Return ``function(array)`` for the array of ``value`` in the current call, and guard the result."""
        part = self.part(value)
        if self.loop is not None:
            return self.loop.decide(function, part)
        return self._decided(function, part)

    def part(self, value: Symbolic, pure: bool = False) -> Program:
        """Return a program that computes only ``value``; if ``pure`` is true, it makes no checks."""
        part = Program()
        part.body, part.results = [i for i in self.program.body if i.op.pure or not pure], [value]
        part.body = part.live()
        used = {a.id for i in part.body for a in i.args if isinstance(a, Symbolic)} | {value.id}
        part.sources = [s for s in self.program.sources if s.value.id in used]
        return part

    def _decided(self, function: Callable[[Any], Any], part: Program, reason: str = "") -> Any:
        found = function(build(part)(*map(self.present, part.sources))[0])
        self.decisions.append((function, part, found, reason))
        return found

    def scan(self, body: Any, carry: Any, count: int, reverse: bool) -> tuple[Any, Any] | None:
        """Trace the body of a loop once; return the final carry and the stacked results.

        Returns None if the loop must be unrolled.  ``carry`` is the initial carry, the values that each
        iteration passes to the next, and ``count`` is the number of iterations.  If ``reverse`` is true, the
        loop goes from the last row to the first.
        """
        return trace_scan(self, self.inner(), body, carry, count, reverse)

    def function(self, name: str, f: Callable[..., Any], specs: Sequence[Any]) -> Inner:
        """Return ``f``, traced for tensors with the shapes and dtypes ``specs``, for use by ``on_host``."""
        return Inner(name, self, f, specs)

    def on_host(
        self, name: str, run: Any, functions: Sequence[Inner], given: Sequence[Tensor], specs: Sequence[Any]
    ) -> list[Tensor]:
        """Add a call of the Python function ``run(functions, *given)``; return its results as tensors.

        ``specs`` has the shape and dtype of each result.
        """
        return call_on_host(self, name, run, functions, given, specs)

    def inner(self) -> Trace:
        """Return a new trace inside this one, for a loop body or a function that Python code calls."""
        sub = Trace(updates=True)
        sub.parent, sub.loops, sub.unroll, sub.outside = self, self.loops, self.unroll, self.outside
        sub.indexed, sub.hooked, sub.uses, sub.places = self.indexed, self.hooked, self.uses, self.places
        sub.running = self.running
        return sub

    # Updates and other actions at the end of a call ------------------------------------------------

    def guard(self, what: str, read: Callable[[], Any], watch: Callable[[], Any] | None = None) -> None:
        """Guard the value of ``read()``: if it changes, the function is traced again.

        ``what`` is the name of the value in messages.  ``watch()`` returns the objects that the value depends
        on, as in ``Guard``.
        """
        self.guards.append(Guard(what, read, watch))

    def note_hooks(self, hooks: Any, outside: bool = False) -> None:
        """Note the state of a ``HookList`` that the function is about to change.

        ``outside`` means that it certainly belongs to a tensor or module that was created outside.
        """
        if self.parent is not None:
            self.parent.note_hooks(hooks, outside)
        else:
            known = self.hooks.setdefault(id(hooks), (hooks, dict(hooks.hooks), user_position(2), outside))
            if outside and not known[3]:
                self.hooks[id(hooks)] = *known[:3], True

    def guard_reads(self, functions: Iterable[Callable[..., Any]]) -> None:
        """Guard the variables that ``functions`` read; they are called by the library, for example hooks."""
        if self.parent is not None:
            self.parent.guard_reads(functions)
            return
        for f in functions:
            if id(f) not in self.called:
                reads = named_reads(f, {})
                self.guards += [Guard(what, read) for what, read in reads.variables.items()]
                for k, found in reads.uses.items():
                    self.uses.found.setdefault(k, set()).update(found)
                self.called[id(f)] = f, Advances(reads.values)
                self.reached += reads.values

    def act(self, function: Callable[..., Any], *values: Any) -> Write:
        """Make the program call a function with the arrays of ``values`` at the end of each call."""
        self.actions.append(Write("call", function, tuple([self.value(v) for v in values])))
        return self.actions[-1]

    def take(self, gradients: dict[Tensor, Any], target: Any) -> None:
        """Make the program add gradients to the open micro-batch of the accumulator ``target`` at each call.

        Gradients that ``target`` does not want are added to ``.grad``.
        """
        wanted = [t for t in gradients if target.wants(t)]
        if wanted:
            self.act(partial(_take, wanted), *(gradients[t] for t in wanted))
        self.commit({t: g for t, g in gradients.items() if all(t is not w for w in wanted)})

    def untouched(self, t: Tensor) -> bool:
        """Return whether a tensor was captured but not assigned in this trace."""
        held = self.held.get(id(t))
        return held is not None and t._data is held.symbol

    def owns(self, t: Any) -> bool:
        """Return whether ``t`` was made by this trace, so that it has no elements after the trace."""
        held = self.held.get(id(t))
        return type(t) is Traced and (held is None or held.argument is not None)

    def data_before(self, t: Tensor) -> Any:
        """Return the array that a captured tensor had before the trace."""
        return self.held[id(t)].data

    def node_before(self, t: Tensor) -> Any:
        """Return the graph node that a tensor had before the trace, in which it is a leaf."""
        held = self.held.get(id(t))
        if held is None:
            return t._node if self.parent is None else self.parent.node_before(t)
        return held.node if held.argument is None else self.arguments[held.argument]._node

    def replace(self, t: Tensor, value: Symbolic) -> None:
        """Replace the value of a tensor and increment its version."""
        self.capture(t)
        t._data = value
        t._version += 1

    def defer(self, t: Tensor, settle: Callable[[], None]) -> Symbolic:
        """Make the value of a tensor a new symbol, for which ``settle`` is called when it is first read.

        Return the symbol.
        """
        value = Symbolic(self, t.shape, t.dtype)
        self.deferred[value.id] = settle
        self.replace(t, value)
        return value

    def resume(self, value: Symbolic, computed: Symbolic) -> None:
        """Define the deferred value ``value``: the program sets it to ``computed``."""
        del self.deferred[value.id]
        self._add_with(_ALIAS, (computed,), {}, (value,))

    def updates_of(self, unit: Any) -> dict[int, int]:
        """Return how often the trace updates each parameter of an optimiser's unit, by parameter index.

        A unit is a list of parameters that are updated together.
        """
        return self.counted.setdefault(id(unit), (unit, {}))[1]

    # .grad ---------------------------------------------------------------------------------------

    def grad_of(self, t: Tensor) -> Any:
        """Return ``t.grad``; a gradient from before the trace is replaced by a symbol."""
        self.capture(t)
        held = self.held.get(id(t))
        if held is not None and not held.grad_known:
            held.grad_known = True
            self.grad_guards().append(held)
            if held.grad is not None:
                if type(held.grad) is not Tensor or held.grad._node is not None:
                    raise refused(
                        "ad.compile: the function reads a .grad that is sparse or was made by "
                        "backward(create_graph=True).\n"
                        "  Set .grad to None, or detach it, before the call."
                    )
                kind = "grad" if held.argument is None else "argument grad"
                owner = t if held.argument is None else held.argument
                held.entry = self.source(kind, t.shape, t.dtype, owner)
                t._need_extra().grad = wrap(held.entry)
        return None if t._extra is None else t._extra.grad

    def grad_guards(self) -> list[Held]:
        """Return the tensors whose ``.grad`` was read before it was set."""
        found: list[Held] = self.__dict__.setdefault("_grad_guards", [])
        return found

    def grad_set(self, t: Tensor, value: Tensor | None = None) -> None:
        """Record that the function assigns ``value`` to ``t.grad`` before it reads the old value.

        The program then need not check or read the old value.
        """
        self.capture(t)
        if value is not None and type(value._node) is Node:
            self.graphs[id(t)] = located(_ASSIGNED)
        held = self.held.get(id(t))
        if held is not None:
            held.grad_known = True

    def drop_grads(self, tensors: Iterable[Tensor]) -> None:
        """Make the program set the ``.grad`` of tensors to None."""
        for t in tensors:
            self.grad_set(t)
            if t._extra is not None:
                t._extra.grad = None

    def commit(self, gradients: dict[Tensor, Any]) -> None:
        """Make the program add gradients to the ``.grad`` of their tensors."""
        for t, g in gradients.items():
            if t._node is None:
                continue
            held = self.held.get(id(t))
            if held is not None and type(held.node) is Node:
                raise refused(
                    "ad.compile: backward() inside the function reaches a tensor that was computed outside.\n"
                    "  Return the loss and call backward() outside, or detach() the tensor."
                )
            before = self.grad_of(t)
            new = g if isinstance(g, Tensor) else wrap(self.value(g))
            if type(new._node) is Node:
                self.graphs[id(t)] = located(_CREATED)
            t._need_extra().grad = new if before is None else before + new
        gradients.clear()

    # The run -------------------------------------------------------------------------------------

    def run(self, f: Callable[[], Any], finish: Callable[[Any], Any]) -> Any:
        """Call ``f`` with tracing active and return ``finish(result)``; then restore all captured tensors."""
        return locked(_tracing_lock, self._run_apart if self.parent else self._run_alone, f, finish)

    def _run_alone(self, f: Callable[[], Any], finish: Callable[[Any], Any]) -> Any:
        """Call ``_run_apart`` without finalisers, which the function does not call.

        Automatic collections are off, and ``Pause`` handles a call of ``gc.collect``.  (``Pause`` cannot
        handle automatic ones: before Python 3.12 they may come inside of ``ContextVar.set``, which crashes
        if the variable is set meanwhile.)
        """
        enabled, pause = gc.isenabled(), Pause(self)
        try:
            gc.disable()
            gc.callbacks.append(pause)
            return self._run_apart(f, finish)
        finally:
            if enabled:
                gc.enable()
            if pause in gc.callbacks:
                gc.callbacks.remove(pause)

    def _run_apart(self, f: Callable[[], Any], finish: Callable[[Any], Any]) -> Any:
        """Call ``_run`` in a copy of the context, so that an interrupt leaves no context variable changed."""
        try:
            self.running.append(self)
            return copy_context().run(self._run, f, finish)
        finally:
            if not self.released:  # an interrupt came in between
                self._release()
            self.running.remove(self)

    def _run(self, f: Callable[[], Any], finish: Callable[[Any], Any]) -> Any:
        enclosing.set(Root(self))
        with watched(tracing, self):
            try:
                found = finish(f())
                self.check_thread()
                self._raise_refusal()
                self._check_hooks()
                self._note_writes()
                return found
            except BaseException as error:
                for undo in reversed(self.undo):
                    undo()
                cause = error.__cause__
                if type(error) is ValueError and isinstance(cause, AdjointError):
                    # array[i] = x, array.fill(x): NumPy replaces the error of x by its own
                    raise cause.with_traceback(error.__traceback__) from None
                raise
            finally:
                self._release()

    def _raise_refusal(self) -> None:
        """Raise the error that a trace raised before, if the function caught it.

        Only a trace raises this error.  The program would repeat the ``except`` branch at each call, which
        eager code does not take.
        """
        if self.refused is not None:
            self.refused.add_note(
                "  The function caught this error, so the program would take its except branch at each call."
            )
            raise self.refused

    def _changed_hooks(self) -> list[tuple[Any, dict[int, Any], Position]]:
        """Return the lists of hooks that are not as they were before, their old hooks, and the line.

        Lists of tensors and modules that the trace made do not count.
        """
        held = {id(x) for h in self.held.values() for x in h.hook_lists()}
        return [
            (x, old, line)
            for k, (x, old, line, outside) in self.hooks.items()
            if (outside or k in held) and x.hooks != old
        ]

    def _check_hooks(self) -> None:
        """Raise TransformError if the function has added or removed a hook of a tensor or module."""
        if self.hooks and (changed := self._changed_hooks()):
            raise TransformError(
                f"{line_at(changed[0][2])}: ad.compile: the function adds or removes a hook of a tensor or "
                "module that was created outside of it.\n"
                "  Register and remove the hook outside of the compiled function, or remove it at the end of "
                "the function."
            )
        # not before, because the function may add hooks and remove them again
        for m in self.hooked if self.parent is None else ():
            self.guard(f"{type(m).__name__}: hooks", partial(_hook_versions, m))

    def _note_writes(self) -> None:
        """Add to the program the assignments that it makes at the end of each call."""
        writes = self.program.writes
        changed = any(h.grad_known or h.tensor._data is not h.symbol for h in self.held.values())
        if changed and any(isinstance(a, Tensor) and id(a) in self.held for a in self.arguments):
            raise TransformError(
                "ad.compile: one tensor is both an argument and a global or closure variable of the "
                "function, and the function changes tensors.\n  Use the tensor in one of the two ways only."
            )
        for h in list(self.held.values()):  # a copy: ``value`` may capture more tensors
            t = h.tensor
            owner = t if h.argument is None else h.argument
            if t._data is not h.symbol and t._data.id not in self.deferred:
                writes.append(Write("data", owner, (self.value(t),)))
            if h.grad_known:
                now = None if t._extra is None else t._extra.grad
                if now is None:
                    writes.append(Write("grad", owner, (None,)))
                elif now._data is not h.entry:
                    if type(now._node) is Node:
                        raise TransformError(self.graphs.get(id(t), _ASSIGNED))
                    writes.append(Write("grad", owner, (self.value(now),)))
        read = {s.value.id for s in self.program.sources}
        for (_, key), (container, value) in self.cells.items():
            if value.id not in read:
                writes.append(Write("cell", (container, key), (value,)))
        writes.extend(self.actions)

    def _release(self) -> None:
        """Restore the arrays, versions, nodes, gradients and hooks of all captured tensors."""
        self.ended = True
        for hooks, old, _ in self._changed_hooks() if self.hooks else ():
            hooks.hooks = old
        for h in self.held.values():
            if h.argument is None:
                restore(h)
        self.refused = None  # its traceback refers to the frames of the function
        self.released = True


def _hook_versions(module: Any) -> list[int]:
    """Return the version numbers of the hooks of a module, which change with the hooks."""
    return [h.version for h in module._forward_hooks or ()]


def _is_like(a: Any, b: Any) -> bool:
    """Return whether two operands are arrays of the same shape and dtype."""
    arrays = isinstance(a, Symbolic) and isinstance(b, Symbolic) and not (a.weak or b.weak)
    return arrays and a.shape == b.shape and a.dtype == b.dtype


def _take(leaves: list[Tensor], *gradients: Any) -> None:
    """Add the gradients of ``leaves`` to the open micro-batch of the current accumulator."""
    target = sink.get()
    assert target is not None
    target.take(dict(zip(leaves, gradients, strict=True)))


_ALIAS = Host("alias", lambda x: x)
NUMBER_AT = Host("number_at", lambda a, k: float(a[k]))
