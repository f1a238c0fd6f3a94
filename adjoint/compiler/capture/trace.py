"""A trace: call a function on symbols, and record what it reads, computes and writes.

Each tensor that the function uses and did not make itself is captured: a symbol replaces its array until the
trace ends, and the program reads the array again at each call.  Values that the function assigns to the
tensor or to its ``.grad`` are assigned by the program at the end of each call.
"""

from __future__ import annotations

import contextlib
import gc
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint.compiler.capture.finalizers import Pause, restore
from adjoint.compiler.capture.host_call import Inner, call_on_host
from adjoint.compiler.capture.sources import Held
from adjoint.compiler.capture.tensors import ASSIGNED, CapturedTensors
from adjoint.compiler.guards.observe import Observer
from adjoint.compiler.guards.values import Guard
from adjoint.compiler.loops.loop import trace_scan
from adjoint.compiler.program.inputs import ArgumentSource, NumbersSource
from adjoint.compiler.program.program import Host, Instruction, Program, typed
from adjoint.compiler.program.symbols import (
    NUMBERS,
    OTHER,
    SAME,
    UNKNOWN,
    Nonzero,
    Number,
    Root,
    Symbolic,
    copying,
    ended_error,
    plain,
)
from adjoint.compiler.program.writes import Action, CellWrite, DataWrite, GradWrite, SparseGradWrite, Write
from adjoint.compiler.replay.replay import build
from adjoint.config import fork_count, held_across_fork, locked, watched
from adjoint.core.infer import infer
from adjoint.core.inplace import is_view
from adjoint.core.lifted import enclosing, tracing
from adjoint.core.node import LEAF, Node, next_seq
from adjoint.core.sparse import SparseGradient
from adjoint.core.tensor import Tensor, Traced, wrap
from adjoint.core.user_code import Position, line_at, user_line, user_position
from adjoint.errors import AdjointError, TransformError
from adjoint.grads.slots import sink

__all__ = ["BothError", "Trace"]

# One trace at a time: tensors are changed in place.  No fork happens meanwhile.
_tracing_lock = held_across_fork(threading.RLock())

_NUMBERS = (float, int, bool, complex)


class BothError(TransformError):
    """Raised if tensors, given by id, are arguments and variables of a function that changes tensors."""

    def __init__(self, tensors: set[int], text: str) -> None:
        super().__init__(text)
        self.tensors = tensors


class Trace(CapturedTensors):
    """One call of a function on symbols, which records a program."""

    def __init__(self, arguments: Sequence[Any] = (), updates: bool = False, alone: bool = False) -> None:
        super().__init__(arguments)
        self.updates = updates  # whether updates of optimisers are always part of the program
        self.alone = alone  # whether the program computes the numbers of these updates itself, without Python
        self.start = next_seq()  # hooks that were registered before the trace have smaller numbers
        self.guards: list[Any] = []  # of values that the library reads
        self.observer: Observer | None = None  # sees what the user's code reads
        self.modules: dict[int, Any] = {}  # modules that were called, by id
        self.actions: list[Write] = []  # updates of optimisers and gradients for micro-batches, in order
        self.conditions: set[int] = set()  # the ids of conditions under which values are computed
        # changed lists of hooks, their old hooks, the line, and whether they were certainly created outside
        self.hooks: dict[int, tuple[Any, dict[int, Any], Position, bool]] = {}
        self.hooked: list[Any] = []  # modules with hooks that were called
        self.counted: dict[int, tuple[Any, dict[int, int]]] = {}  # see ``updates_of``
        # functions, the programs that compute their arguments, their results, and the reason for a retrace
        self.decisions: list[tuple[Callable[[Any], Any], Program, Any, str]] = []
        self.fixed: dict[int, Any] = {}  # the values of numbers that Python has read, by id
        self.indices: list[tuple[Callable[[Any], None], Symbolic]] = []  # how to check index arrays
        self.undo: list[Callable[[], None]] = []
        self.folded: dict[int, Any] = {}  # the arrays of constants with which ``folding`` computes, by id
        self.plain = False  # whether arguments are plain numbers, whose values are guarded
        self.loop: Any = None  # the loop, if this is the trace of its body
        self.unroll = False  # whether loops are unrolled
        self.loops: list[Any] = []  # loops that are one instruction, nested ones too
        self.thread = threading.get_ident()
        self.forks = fork_count()
        self.refused: BaseException | None = None  # see ``core.lifted.refusal``
        self.running: list[Trace] = []  # the traces that run: the outermost, and those inside it
        self.paused = False  # whether the garbage collector runs, see ``Pause``
        self.released = False  # whether captured tensors are as before the trace
        self.interrupt: BaseException | None = None  # an interrupt that came in a ``Pause``

    # Inputs ------------------------------------------------------------------------------------

    def made(self, t: Tensor, source: Any = None) -> Tensor:
        """Replace the array of ``t``, which the traced function created, by a symbol; return ``t``.

        ``source`` is the array that the tensor is a copy of, if any.
        """
        if type(t._data) is ndarray:
            if type(source) is ndarray and source.shape == t.shape:
                (value,) = self.call_host(copying(t.dtype), [source], [(t.shape, t.dtype)])
            else:
                value = self.constant(t._data)
            t._data = value
            t.__class__ = Traced
        return t

    def numbers(self, read: Callable[[], Any], count: int) -> list[Number]:
        """Return symbols for the ``count`` numbers that ``read`` returns at each call.

        None of the numbers may be 0.
        """
        array = self.source(NumbersSource, (count,), np.float64, read)
        return [self.number_at(array, k) for k in range(count)]

    def number_at(self, array: Any, k: int = 0) -> Number:
        """Return element ``k`` of an array, which is never 0, as the symbol of a Python float."""
        found = Nonzero(self)
        self._add_with(NUMBER_AT, (self.value(array),), {"k": k}, (found,))
        return found

    def fix(self, array: Any) -> None:
        """Guard the elements of an array: the function is traced again if they change."""
        if self.observer is not None:
            self.observer.contents(array)

    def stand_in(self, leaf: Any, position: int) -> Any:
        """Return the value that the function gets in place of ``leaf``, the argument at ``position``.

        It is a tensor with a symbol as its array, or a symbolic number for a Python number.
        """
        if type(leaf) in NUMBERS:
            number = self.number(position, ArgumentSource, leaf)
            return number.fixed() if self.plain and type(leaf) is int else number
        t = wrap(self.source(ArgumentSource, leaf.shape, leaf.dtype, position))
        if isinstance(leaf, Tensor):
            held = self.held[id(t)] = Held(t, t._data, position)
            held.grad = None if leaf._extra is None else leaf._extra.grad
            if leaf._node is not None:
                t._node = LEAF
            if is_view(leaf):  # a write into it raises, as in eager mode
                t._source = weakref.ref(leaf), None
        return t

    # Instructions --------------------------------------------------------------------------------

    def emit(self, op: Any, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        """Add an instruction to the program; return the symbols of its results."""
        if getattr(op, "call", False):
            return op.forward(*args)
        if params:
            params = plain(params)
            if params.get("sparse_grad"):  # only for a backward inside; derivatives of programs are dense
                params = {**params, "sparse_grad": False}
        if op.forward is np.power and isinstance(args[1], Number) and args[1].kind is int:
            args = args[0], plain(args[1])  # NumPy's results depend on the exponent
        direct = not self.deferred
        own = tuple(
            [a if type(a) is Symbolic and direct and a.trace is self else self._operand(a) for a in args]
        )
        if op.name == "where" and getattr(own[0], "id", None) in self.conditions:
            flag, other, first = own
            if _is_like(other, first):
                return self._add(OTHER, (flag, first, other), {}, [(first.shape, first.dtype)])[0]
        known = [a.kind(1) if isinstance(a, Number) else a for a in own]  # 1 has the same dtype rules
        specs = infer(op, tuple(typed(op, own, known)), params)
        if self.folded and (found := self._fold(op, own, params, specs)) is not None:
            return found
        outs = self._add(op, own, params, specs)
        return outs if op.outputs > 1 else outs[0]

    @contextlib.contextmanager
    def folding(self, arrays: Sequence[Any], kept: list[Tensor]) -> Iterator[list[Symbolic]]:
        """Give the symbols of constant arrays; in the block, what depends only on them is computed at once.

        Views are not, because programs read the array itself.  Constants that no instruction uses are removed
        at the end, except the values of ``kept``.
        """
        symbols, around = [self.constant(a) for a in arrays], self.folded
        self.folded = {s.id: s.known for s in symbols}
        try:
            yield symbols
        finally:
            used = {a.id for i in self.program.body for a in i.args if isinstance(a, Symbolic)}
            used |= {t._data.id for t in kept if isinstance(t._data, Symbolic)}
            left = self.folded.keys() - used
            self.program.sources[:] = [s for s in self.program.sources if s.value.id not in left]
            self.folded = around

    def _fold(self, op: Any, args: tuple[Any, ...], params: dict[str, Any], specs: Any) -> Any:
        """Return the symbol of the result of an op on folded constants; None if it is to be computed later.

        Results that are larger than the constants are computed later: reading them takes longer than that.
        """
        arrays: list[Any] = [self.folded.get(a.id) if isinstance(a, Symbolic) else a for a in args]
        if op.outputs > 1 or not op.pure or any(a is None for a in arrays):
            return None
        if math.prod(specs[0][0]) > 1.25 * max(np.size(a) for a in arrays):
            return None
        with np.errstate(all="ignore"):
            array = np.asarray(op.forward(*arrays, **params), specs[0][1])
        view = any(np.may_share_memory(array, a) for a in arrays if isinstance(a, ndarray))
        found = self._add(op, args, params, specs)[0] if view else self.constant(array)
        self.folded[found.id] = array
        return found

    def number_of(self, op: Host, args: tuple[Any, ...], kind: type | None = None) -> Number:
        """Add an instruction that computes a Python number; return the symbol of the number."""
        values = [a.now if isinstance(a, Number) else a for a in args]
        now = UNKNOWN
        if all(isinstance(v, (*_NUMBERS, np.generic)) for v in values):
            if all(a.id in self.fixed for a in args if isinstance(a, Number)):
                return op.forward(*values)
            try:
                now = op.forward(*values)
            except Exception:  # the function may catch it; so these values have a program of their own
                return op.forward(*[plain(a) for a in args])
        if kind is None and now is not UNKNOWN:
            kind = type(now)
        if kind is None:
            kind = type(op.forward(*[a.kind(1) if isinstance(a, Number) else a for a in args]))
        out = Number(self, kind, None if now is UNKNOWN else now)
        self._add_with(op, args, {}, (out,))
        return out

    def read_number(self, function: Callable[[Any], Any], value: Number) -> Any:
        """Return ``function(value)`` and guard the result.

        Return NotImplemented if ``value`` depends on tensors.
        """
        if self.ended or value.now is UNKNOWN:
            return NotImplemented
        try:
            found = function(value.now)
        except Exception:  # the function may catch it; so this value has a program of its own
            value.fixed()
            raise
        if value.id not in self.fixed:
            if function is SAME.forward:
                self.fixed[value.id] = value.now
            part = self.part(value, pure=True)
            reason = f"{user_line()} reads the value of a number, which has changed"
            self.decisions.append((function, part, found, reason))
        return found

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

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        specs: Sequence[Any],
        pure: bool = True,
        lower: Callable[..., Any] | None = None,
    ) -> list[Symbolic]:
        """Add a call of a Python function on arrays; return the symbols of its results.

        ``specs`` has the shape and dtype of each result, and ``lower`` is the native form.
        """
        return self.call_host(Host(name, function, len(specs), pure, lower=lower), args, specs)

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
        found = function(build(part)(*[s.present(self) for s in part.sources])[0])
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
        sub = Trace(updates=True, alone=self.alone)
        sub.parent, sub.loops, sub.unroll, sub.outside = self, self.loops, self.unroll, self.outside
        sub.observer, sub.hooked, sub.running = self.observer, self.hooked, self.running
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

    def act(self, function: Callable[..., Any], *values: Any) -> Write:
        """Make the program call a function with the arrays of ``values`` at the end of each call."""
        self.actions.append(Action(function, *[self.value(v) for v in values]))
        return self.actions[-1]

    def take(self, gradients: dict[Tensor, Any], target: Any) -> None:
        """Make the program add gradients to the open micro-batch of the accumulator ``target`` at each call.

        Gradients that ``target`` does not want are added to ``.grad``.
        """
        wanted = [t for t in gradients if target.wants(t)]
        if wanted:
            self.act(partial(_take, wanted), *(gradients[t] for t in wanted))
        self.commit({t: g for t, g in gradients.items() if all(t is not w for w in wanted)})

    def updates_of(self, unit: Any) -> dict[int, int]:
        """Return how often the trace updates each parameter of an optimiser's unit, by parameter index.

        A unit is a list of parameters that are updated together.
        """
        return self.counted.setdefault(id(unit), (unit, {}))[1]

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
        both = {id(a) for a in self.arguments if isinstance(a, Tensor)} & self.held.keys()
        if changed and both:
            raise BothError(
                both,
                "ad.compile: one tensor is both an argument and a global or closure variable of the "
                "function, and the function changes tensors.\n  Use the tensor in one of the two ways only.",
            )
        for h in list(self.held.values()):  # a copy: ``value`` may capture more tensors
            t = h.tensor
            owner = t if h.argument is None else h.argument
            if t._data is not h.symbol and t._data.id not in self.deferred:
                writes.append(DataWrite(owner, self.value(t)))
            if h.grad_known:
                now = None if t._extra is None else t._extra.grad
                if now is None:
                    writes.append(GradWrite(owner, None))
                elif type(now) is SparseGradient:
                    rows = now._rows
                    writes.append(
                        SparseGradWrite(owner, self.value(rows.rows), self.value(rows.values), rows.shape)
                    )
                elif now._data is not h.entry:
                    if type(now._node) is Node:
                        raise TransformError(self.graphs.get(id(t), ASSIGNED))
                    writes.append(GradWrite(owner, self.value(now)))
        read = {s.value.id for s in self.program.sources}
        for (_, key), (container, value) in self.cells.items():
            if value.id not in read:
                writes.append(CellWrite((container, key), value))
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


_ALIAS = Host("alias", lambda x: x, lower=lambda xp, x: x)
NUMBER_AT = Host(
    "number_at", lambda a, k: float(a.flat[k]), lower=lambda xp, a, k: xp.number(a.strided((), (), k))
)
