"""``Watch``: an observer that records ops, backward steps and module calls inside a ``with`` block."""

from __future__ import annotations

import threading
import tracemalloc
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint.config import grad_mode, special
from adjoint.core.node import LEAF, Node
from adjoint.core.observer import Observer, unobserved
from adjoint.core.sparse import SparseRows
from adjoint.core.tensor import Tensor, differentiable
from adjoint.core.user_code import user_place
from adjoint.engine.zeros import cleaned

__all__ = [
    "Cost", "Event", "Flow", "Memory", "Place", "Scope", "Watch", "array_in", "norm_of", "saved_arrays",
]  # fmt: skip

Place = tuple[str, int, str]  # file, line, function
Cost = tuple[float, float]  # seconds by which observing slows a block down: once, and for each event


class Event:
    """One timed event: the forward or backward of an op, or a call of a compiled function."""

    __slots__ = (
        "inner", "kept", "made", "name", "node", "note", "phase", "place", "scope", "start", "stop", "thread",
    )  # fmt: skip

    def __init__(self, name: str, phase: str, start: float, scope: int, place: Place) -> None:
        self.name = name
        self.phase = phase  # "forward", "backward" or "compiled"
        self.start = start
        self.stop = start
        self.inner = 0.0  # seconds of events inside this one
        self.scope = scope
        self.place = place
        self.thread = threading.get_ident()
        self.made = 0  # bytes of the arrays that the op created
        self.kept = 0  # bytes of the arrays that the op was the first to save for its backward
        self.node = 0  # the sequence number of the op's node in the graph; 0 if the op was not recorded
        self.note = ""

    @property
    def seconds(self) -> float:
        """Return the duration of this event without that of the events inside it."""
        return max(0.0, self.stop - self.start - self.inner)


class Scope:
    """One call of a module; the ops that run during the call belong to this scope."""

    __slots__ = ("index", "module", "outputs", "parent", "start", "stop")

    def __init__(self, index: int, parent: int, module: Any, start: float) -> None:
        self.index = index
        self.parent = parent
        self.module = module
        self.start = start
        self.stop = start
        self.outputs: Any = None


class Flow:
    """One op with its inputs and outputs; ``cause`` says why its result is not in the graph, if so.

    Unlike the graph, flows include ops that were not recorded, such as ``detach`` and ops under ``no_grad``.
    """

    __slots__ = ("cause", "inputs", "name", "op", "outputs", "place", "scope", "stats")

    def __init__(
        self, name: str, op: Any, inputs: list[Tensor], outputs: list[Tensor], cause: str, place: Place
    ) -> None:
        self.name = name
        self.op = op
        self.inputs = inputs
        self.outputs = outputs
        self.cause = cause  # why the graph ends here; "" if the result is in the graph, or no input is
        self.place = place
        self.scope = -1
        self.stats: dict[str, Any] = {}


class _Stack(threading.local):
    """The events and module calls of one thread that have started and not ended."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.scopes: list[int] = []
        self.computed = 0.0  # the time at which the current op had computed its values
        self.last = 0.0  # the time at which an event or a module call last started or ended
        self.debt = 0.0  # the cost of observing, in seconds, that is still to be subtracted


class Watch(Observer):
    """A context manager that records ops, backward steps and module calls, with their times.

    If ``values`` is True, it also keeps all tensors and measures them: norms of gradients, fractions of
    zeros, and values that are not finite.  The measuring is not part of the times.  ``memory`` turns on the
    recording of arrays.  ``cost`` is subtracted from the times, see ``cost_of_observing``.
    """

    def __init__(self, *, values: bool = False, memory: bool = True, cost: Cost = (0.0, 0.0)) -> None:
        self.values = values
        self.fixed, self.cost = cost
        self.memory = Memory() if memory else None
        self.events: list[Event] = []
        self.scopes: list[Scope] = []
        self.by_node: dict[int, Event] = {}  # the forward event of each node
        self.flows: list[Flow] = []
        self.escapes: list[tuple[Tensor, str, Place]] = []
        self.roots: list[Any] = []  # the nodes (or tensors without a node) that backward was called on
        self.node_norms: dict[int, float] = {}
        self.pulled: list[Pulled] = []
        self.leaves: dict[int, tuple[Tensor, ndarray[Any, Any] | None, float]] = {}
        self.overhead = 0.0  # seconds that the observer itself took
        self.began = self.ended = perf_counter()
        self._stack = _Stack()
        self._paths: dict[int, str] = {}  # the module paths of scopes
        # by compiled function: the arguments of its first call, and the events of all calls
        self._compiled: dict[Any, tuple[Any, Any, list[Event]]] = {}
        self.exact: TracedMemory | None = None
        self._inside: dict[int, dict[int, str]] = {}  # by id of a module: the paths of its inner modules

    def _now(self) -> float:
        """Return the time in seconds on a clock that stops while the observer itself runs."""
        return perf_counter() - self.overhead

    def _moment(self, now: float) -> float:
        """Convert ``now``, from ``perf_counter``, to the clock of ``_now``; subtract the cost of observing.

        The result is never before the last event.  The part of the cost that cannot be subtracted for this
        reason is subtracted later.
        """
        stack = self._stack
        paid = min(stack.debt, max(0.0, now - self.overhead - stack.last))
        stack.debt -= paid
        self.overhead += paid
        stack.last = now - self.overhead
        return stack.last

    def __enter__(self) -> Watch:
        super().__enter__()
        self.began = self._moment(perf_counter())
        self._stack.debt = self.fixed
        return self

    def __exit__(self, *exception: object) -> None:
        self.ended = self._moment(perf_counter())
        super().__exit__(*exception)
        for function, (args, kwargs, calls) in self._compiled.items():
            text = _contents(function, args, kwargs)
            for event in calls:
                event.note = text
        self._compiled.clear()

    @property
    def seconds(self) -> float:
        """Return the seconds that the block took, without the time of the observer."""
        return self.ended - self.began

    def module_path(self, scope: int) -> str:
        """Return the path of the module of a scope, such as "Net.layers.0".

        The path starts with the class of the outermost module.  It is "" for scope -1, outside of all
        modules.
        """
        if scope < 0:
            return ""
        known = self._paths.get(scope)
        if known is None:
            own, parent = self.scopes[scope].module, self.scopes[scope].parent
            if parent < 0:
                known = type(own).__name__
            else:
                outer = self.scopes[parent].module
                inside = self._inside.get(id(outer))
                if inside is None:
                    inside = self._inside[id(outer)] = {id(m): path for path, m in outer.named_modules()}
                known = f"{self.module_path(parent)}.{inside.get(id(own)) or type(own).__name__}"
            self._paths[scope] = known
        return known

    # Forward ---------------------------------------------------------------------------------------

    def begin(self, op: Any) -> None:
        """Record that an op starts: create its event and take its start time."""
        now = perf_counter()
        place = user_place()
        scopes = self._stack.scopes
        event = Event(op.name, "forward", now, scopes[-1] if scopes else -1, place)
        self._stack.events.append(event)
        self.overhead += perf_counter() - now
        event.start = self._moment(perf_counter())
        if self.exact is not None:
            self.exact.start()

    def computed(self, op: Any) -> None:
        """Store the time at which an op has computed its values, before the op is added to the graph."""
        self._stack.computed = perf_counter()

    def end(
        self, op: Any, operands: tuple[Any, ...], params: dict[str, Any], results: tuple[Any, ...]
    ) -> None:
        """Record an op that has ended, with its operands and results.

        If ``begin`` was not called for it, as for a custom rule, its duration is 0.
        """
        now, self._stack.computed = self._stack.computed or perf_counter(), 0.0
        event = self._closed(op.name, "forward", now - self.overhead)
        self._settle(event)
        node = results[0]._node
        if type(node) is Node:
            event.node = node.seq if op.outputs == 1 else node.parents[0].seq
            self.by_node[event.node] = event
            if op.outputs > 1:
                self.by_node.update({t._node.seq: event for t in results if type(t._node) is Node})
        if self.memory is not None:
            event.made = sum(self.memory.add(array_in(t), event) for t in results)
            if type(node) is Node:
                saved = saved_arrays(node if op.outputs == 1 else node.parents[0])
                event.kept = sum(map(self.memory.keep, saved))
        if self.values:
            self._note_flow(op, operands, results, event)
        self.overhead += perf_counter() - now

    def _closed(self, name: str, phase: str, now: float) -> Event:
        """End the last open event with this name and phase at the time ``now``, and return it.

        Open events inside it are dropped, because they ended with an exception.  If no event with this name
        and phase is open, return a new event of duration 0.
        """
        stack = self._stack.events
        at = next((k for k in range(len(stack) - 1, -1, -1) if stack[k].name == name), -1)
        if at >= 0 and stack[at].phase == phase:
            event = stack[at]
            del stack[at:]
            event.stop = now
            if stack:
                stack[-1].inner += event.stop - event.start
        else:
            scopes = self._stack.scopes
            event = Event(name, phase, now, scopes[-1] if scopes else -1, user_place())
        self.events.append(event)
        return event

    def _settle(self, event: Event) -> None:
        """Subtract the cost of observing from an event, at most half of its time.

        The rest of the cost is subtracted from the time until the next event.
        """
        inside = min(self.cost, event.seconds / 2)
        event.stop -= inside
        self.overhead += inside
        self._stack.last = event.stop
        self._stack.debt += self.cost - inside
        if self.exact is not None:
            self.exact.stop(event)

    def _note_flow(self, op: Any, operands: tuple[Any, ...], results: tuple[Any, ...], event: Event) -> None:
        inputs = [t for t in operands if isinstance(t, Tensor)]
        flow = Flow(op.name, op, inputs, list(results), _cause(op, operands, results), event.place)
        flow.scope = event.scope
        if type(results[0]._data) is ndarray:
            flow.stats = _measured(op.name, results[0]._data)
        self.flows.append(flow)

    def left(self, t: Any, view: Any, how: str) -> None:
        """Record that ``t`` was detached, or was converted to numbers.

        ``view`` is the detached tensor.  For a conversion to numbers it is None, and ``how`` names the
        conversion, such as "float()".
        """
        if not self.values:
            return
        if view is None:
            self.escapes.append((t, how, user_place()))
        else:
            self.flows.append(Flow("detach", None, [t], [view], "detached", user_place()))

    def called(self, module: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Call a module by ``run``, record the call as a new scope, and return the output."""
        before = perf_counter()
        stack = self._stack.scopes
        scope = Scope(len(self.scopes), stack[-1] if stack else -1, module, self._moment(before))
        self.scopes.append(scope)
        stack.append(scope.index)
        self.overhead += perf_counter() - before
        try:
            found = run(*args, **kwargs)
        finally:
            before = perf_counter()
            scope.stop = self._moment(before)
            if scope.index in stack:
                del stack[stack.index(scope.index) :]
            self.overhead += perf_counter() - before
        scope.outputs = found if self.values else None
        return found

    def compiled(self, function: Any, inline: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Call a compiled function, record the call as one event, and return the result.

        If ``values`` is True, call its Python function ``inline`` instead, whose ops are recorded.
        """
        if self.values:
            return inline(*args, **kwargs)
        before = perf_counter()
        name = getattr(function, "__name__", "compiled")
        event = Event(name, "compiled", 0.0, -1, user_place())
        self._stack.events.append(event)
        with unobserved():
            try:
                special.leave()  # this observer is counted as active; the call is fast if the count is 0
                self.overhead += perf_counter() - before
                event.start = self._moment(perf_counter())
                found = function(*args, **kwargs)
                now = perf_counter()
            finally:
                special.enter()
        self._closed(name, "compiled", now - self.overhead)
        self._compiled.setdefault(function, (args, kwargs, []))[2].append(event)
        self.overhead += perf_counter() - now
        self._stack.last = event.stop
        return found

    # Backward --------------------------------------------------------------------------------------

    def failed(self, root: Any) -> None:
        """Record a tensor on which backward was called but failed, because it has no graph."""
        self.roots.append(root)

    def pulling(self, step: Callable[..., None]) -> Callable[..., None]:
        """Return a function that calls ``step``, one step of a backward, and records time and gradients."""
        first = True

        def observed(run: Any, node: Any, g: Any, zeros: Any, needed: Any, kept: Any) -> None:
            nonlocal first
            if first:
                self.roots.append(node)
                first = False
            before = perf_counter()
            forward = self.by_node.get(node.seq)
            place = ("", 0, "") if forward is None else forward.place
            event = Event(node.op.name, "backward", before, -1 if forward is None else forward.scope, place)
            event.node = node.seq
            event.note = "" if forward is None else forward.note
            own = cleaned(run.xp, g, zeros) if self.values and type(g) is not list else None
            self._stack.events.append(event)
            self.overhead += perf_counter() - before
            event.start = self._moment(perf_counter())
            if self.exact is not None:
                self.exact.start()
            step(run, node, g, zeros, needed, kept)
            now = perf_counter()
            self._closed(node.op.name, "backward", now - self.overhead)
            self._settle(event)
            self._note_pull(run, node, own, kept, event)
            self.overhead += perf_counter() - now

        return observed

    def _note_pull(self, run: Any, node: Any, g: Any, kept: Any, event: Event) -> None:
        if self.memory is not None:
            for parent in node.parents:
                array = None if parent is None else array_in(run.grads.get(parent))
                if array is not None:
                    event.made += self.memory.add(array, event)
        if not self.values:
            return
        norm = norm_of(g)
        if norm is not None:
            self.node_norms[node.seq] = norm
        found: list[float | None] = []
        for i, parent in enumerate(node.parents):
            total = None if parent is None else kept[i] if kept is not None else run.grads.get(parent)
            total = getattr(total, "g", total)  # the array inside a Masked or Placed gradient
            if total is not None and kept is None and parent in run.zeros and type(total) is not list:
                total = cleaned(run.xp, total, run.zeros[parent])
            size = norm_of(total)
            found.append(size)
            if isinstance(parent, Tensor) and size is not None:
                self.leaves[id(parent)] = (parent, array_in(total), size)
        self.pulled.append(Pulled(node, norm, found))


class Pulled:
    """One step of a backward: the norm of its incoming gradient, and those of the gradients it returned."""

    __slots__ = ("name", "norm", "onward", "parents", "seq")

    def __init__(self, node: Any, norm: float | None, onward: list[float | None]) -> None:
        self.name = node.op.name
        self.seq = node.seq
        self.parents = [p.seq if type(p) is Node else p for p in node.parents]
        self.norm = norm
        self.onward = onward


class _Ref(weakref.ref[Any]):
    """A weak reference to an array that also stores the id of the array."""

    __slots__ = ("key",)
    key: int


class Memory:
    """Record the arrays that ops created: those that exist, their bytes over time, and those at the peak."""

    def __init__(self) -> None:
        self._now = 0
        self.peak = 0
        self.total = 0
        self.live: dict[int, tuple[_Ref, int, Event]] = {}
        self.gone: deque[_Ref] = deque()  # references to arrays that were freed since the last ``add``
        self.kept: set[int] = set()  # the ids of the arrays in ``live`` that are saved for the backward
        self.holders: list[tuple[Event, int]] = []  # the arrays at the peak: event that created it, bytes
        self.curve: list[tuple[float, int]] = []
        self._noted = 0.0
        self._lock = threading.RLock()

    @property
    def now(self) -> int:
        """The bytes of the arrays that exist now."""
        with self._lock:
            self._forget()
            return self._now

    def add(self, array: Any, event: Event) -> int:
        """Add an array that ``event`` created; return its bytes, or 0 if it is a view or was added before."""
        if type(array) is not ndarray or array.base is not None:
            return 0
        key, size = id(array), int(array.nbytes)
        with self._lock:
            self._forget()
            if key in self.live:
                return 0
            ref = _Ref(array, self.gone.append)  # called inside timed ops, so it only appends
            ref.key = key
            self.live[key] = (ref, size, event)
            self._now += size
            self.total += size
            self.peak = max(self.peak, self._now)
            if self._now > 1.02 * self._noted:  # not at every new peak, because listing all arrays is slow
                self._noted = self._now
                self._note_holders()
        self.curve.append((event.stop, self._now))
        return size

    def _note_holders(self) -> None:
        """Store which events created the arrays that exist now.

        This loop is not in the ``with`` block of ``add``, because an interrupt there may leave the lock
        locked.
        """
        self.holders = [(e, n) for _, n, e in self.live.values()]

    def keep(self, array: Any) -> int:
        """Mark an array as saved for the backward; return its bytes.

        Return 0 if it was saved before, or if no recorded op created it.
        """
        while type(array.base) is ndarray:
            array = array.base
        key = id(array)
        with self._lock:
            self._forget()
            if key not in self.live or key in self.kept:
                return 0
            self.kept.add(key)
        return int(array.nbytes)

    def _forget(self) -> None:
        """Remove the arrays that were freed, and subtract their bytes."""
        while self.gone:
            key = self.gone.popleft().key
            self._now -= self.live.pop(key)[1]
            self.kept.discard(key)


class TracedMemory:
    """A context manager that measures peak memory with ``tracemalloc``, including temporaries inside ops."""

    def __init__(self) -> None:
        self.began = 0
        self.peak = 0
        self.event: Event | None = None  # the op during which the peak was reached
        self._ours = False

    def __enter__(self) -> TracedMemory:
        self._ours = not tracemalloc.is_tracing()
        if self._ours:
            tracemalloc.start()
        self.began = tracemalloc.get_traced_memory()[0]
        return self

    def __exit__(self, *exception: object) -> None:
        if self._ours:
            tracemalloc.stop()

    def start(self) -> None:
        """Reset the peak at the start of an op."""
        tracemalloc.reset_peak()

    def stop(self, event: Event) -> None:
        """Read the peak at the end of an op; store it and the op's ``event`` if it is the highest so far."""
        peak = tracemalloc.get_traced_memory()[1] - self.began
        if peak > self.peak:
            self.peak, self.event = peak, event


def array_in(value: Any) -> Any:
    """Return the array of a tensor, a gradient or an array, or None if there is none."""
    data = value._data if isinstance(value, Tensor) else value
    data = data.values if type(data) is SparseRows else data
    return np.asarray(data) if isinstance(data, np.generic) else data if type(data) is ndarray else None


def norm_of(value: Any) -> float | None:
    """Return the norm of an array, a tensor or a gradient, or None if it has no float or complex array."""
    if type(value) is list:  # the gradients of an op with several outputs
        parts = [n for n in map(norm_of, value) if n is not None]
        return float(np.sqrt(sum(n * n for n in parts))) if parts else None
    array = array_in(value)
    if array is None or not differentiable(array.dtype):
        return None
    with np.errstate(all="ignore"):
        flat = array.ravel()
        flat = flat.astype(np.float32) if flat.dtype.itemsize == 2 else flat
        norm = float(np.linalg.norm(flat))
        if not np.isfinite(norm) and np.isfinite(flat).all():  # the squares overflowed
            top = float(np.abs(flat).max())
            norm = top * float(np.linalg.norm(flat / top))
    return norm


def _cause(op: Any, operands: tuple[Any, ...], results: tuple[Any, ...]) -> str:
    """Return why an op on tensors of the graph has a result outside the graph: "no_grad", "cast", ….

    Return "" if the result is in the graph, or if no operand is.
    """
    tracked = [i for i, t in enumerate(operands) if isinstance(t, Tensor) and t._node is not None]
    if not tracked or any(t._node is not None for t in results):
        return ""
    if not grad_mode.get():
        return "no_grad"
    if op.name == "astype" and not differentiable(results[0].dtype):
        return "cast"
    return "no_derivative"


def _measured(name: str, data: ndarray[Any, Any]) -> dict[str, Any]:
    """Return statistics of the result of the op ``name``, with some of these keys.

    "bad" is the number of elements that are not finite, "nan" whether one is NaN, and "off" the fraction of
    zero outputs of a ReLU or of saturated outputs of a sigmoid or tanh.
    """
    stats: dict[str, Any] = {}
    if not differentiable(data.dtype) or not data.size:
        return stats
    with np.errstate(all="ignore"):
        finite = np.isfinite(data)
        if not finite.all():
            stats["bad"] = int(data.size - np.count_nonzero(finite))
            stats["nan"] = bool(np.isnan(data).any())
        elif name == "relu":
            stats["off"] = 1.0 - np.count_nonzero(data) / data.size
        elif name == "sigmoid":
            stats["off"] = float(np.mean(data * (1 - data) < 0.01))
        elif name == "tanh":
            stats["off"] = float(np.mean(1 - np.square(data) < 0.04))
    return stats


def saved_arrays(node: Node) -> list[ndarray[Any, Any]]:
    """Return the arrays that a node saves for its backward, without the arrays of leaves."""
    leaves = {id(p._data) for p in node.parents if isinstance(p, Tensor) and p._node is LEAF}
    outs = node.out if isinstance(node.out, tuple) else (node.out,)
    return [a for a in (*(node.args or ()), *outs) if type(a) is ndarray and id(a) not in leaves]


def _contents(function: Any, args: tuple[Any, ...], kwargs: Any) -> str:
    """Return the kernels or instructions that a compiled function runs for these arguments, as text.

    The text is "" if they are not available.
    """
    with suppress(Exception):
        kernels = str(function.explain(*args, **kwargs))
        return kernels if " kernel" in kernels else str(function.program(*args, **kwargs))
    return ""
