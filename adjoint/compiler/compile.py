"""``compile``: run a function of tensors, or a whole training step, as one program."""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint import tree
from adjoint.compiler import native, replay
from adjoint.compiler.check import run_both
from adjoint.compiler.explain import explain
from adjoint.compiler.guards import Guard, ObjectGuard, generators, named_reads
from adjoint.compiler.host import make_call, make_check, make_fits
from adjoint.compiler.joint import Backward, Joint
from adjoint.compiler.loop import UnrollError
from adjoint.compiler.machine import binding, has_llvm
from adjoint.compiler.symbolic import Number, Symbolic
from adjoint.compiler.trace import Trace
from adjoint.compiler.watch import Watch, possible
from adjoint.config import (
    compile_mode,
    get_default_dtype,
    grad_mode,
    locked,
    special,
    tapes,
    transform,
)
from adjoint.context import observer
from adjoint.core.convert import array_of
from adjoint.core.lifted import enclosing, tracing
from adjoint.core.node import LEAF, Node
from adjoint.core.record import anomaly, node_of, saved_hooks
from adjoint.core.tensor import Tensor, wrap
from adjoint.core.user_code import warn
from adjoint.engine.pull import release
from adjoint.errors import ArgumentError, GraphReleasedError, InputError, TransformError
from adjoint.grads.slots import sink
from adjoint.transforms.arrays import returned
from adjoint.transforms.calls import apply, new_op
from adjoint.transforms.inputs import as_function, name_of

__all__ = ["Compiled", "compile"]


BACKENDS = ("auto", "native", "replay")


def compile(f: Any = None, *, static: Any = (), backend: str = "auto", limit: int = 8) -> Any:
    """Return a function that does what ``f`` does, as one program that is traced at the first call.

    Tensors, modules and optimisers that ``f`` uses need not be listed: whatever it touches is read, and
    written, at each call.  Replay gives the same bits as ``f``; native code differs from it by rounding.

    Parameters
    ----------
    f : callable
        A function of arrays, tensors, numbers and trees of them: a model, a loss, a whole training step.
    static : str, int, or tuple of them
        Names or positions of arguments whose floats are part of the program.  Whole numbers, text, None and
        other objects always are.
    backend : {"auto", "native", "replay"}
        How programs run: "replay" calls NumPy for each instruction; "native" compiles them with llvmlite.
        "auto" is native from the second call of a program on if llvmlite is installed, else replay.
    limit : int
        How many programs are kept.  The one that was used longest ago makes room for a new one.

    Returns
    -------
    Compiled
        The compiled function.

    Examples
    --------
    >>> import adjoint as ad
    >>> w = ad.tensor([1.0, 2.0], requires_grad=True)
    >>> @ad.compile
    ... def step(x):
    ...     w.grad = None
    ...     loss = ((w * x) ** 2).sum()
    ...     loss.backward()
    ...     return loss
    >>> step(ad.tensor([3.0, 4.0])).item(), w.grad.tolist()
    (73.0, [18.0, 64.0])
    """
    if f is None:
        return functools.partial(compile, static=static, backend=backend, limit=limit)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ArgumentError(f"compile: limit is a whole number from 1, but got {limit!r}.")
    if backend not in BACKENDS:
        raise ArgumentError(f"compile: backend is one of {', '.join(BACKENDS)}, but got {backend!r}.")
    if backend == "native":
        binding()
    return Compiled(as_function("compile", f), static, backend, limit)


class Compiled:
    """A compiled function; made by ``ad.compile``."""

    def __init__(self, f: Callable[..., Any], static: Any, backend: str, limit: int) -> None:
        functools.update_wrapper(
            self, f, assigned=("__module__", "__name__", "__qualname__", "__doc__"), updated=()
        )
        self._f = f
        self._static = _positions(f, (static,) if isinstance(static, (str, int)) else tuple(static))
        self._backend = backend
        self._limit = limit
        self._variants: list[Variant] = []  # the one that was used last is first
        self._reasons: list[str] = []
        self._lock = threading.RLock()
        _everyone.add(self)
        self._warned = False
        self._ready: Callable[..., bool] | None = None  # the native check of the program that was used last

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind to an instance, as a method does."""
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program for these arguments; trace it first if there is none."""
        if self._ready is not None and not kwargs:
            found = locked(self._lock, self._run_watched, args)
            if found is not NotImplemented:
                return found
        mode = compile_mode.get()
        if mode is False or self._inline():
            if mode is not False and special.count and (watcher := observer.get()) is not None:
                return watcher.compiled(self, self._f, args, kwargs)
            return self._f(*args, **kwargs)
        found, plain = locked(self._lock, self._run, args, kwargs, mode)
        return returned(found) if plain and transform.get() is None else found

    def _run_watched(self, args: tuple[Any, ...]) -> Any:
        """Run the last program if a native check finds nothing changed; else return NotImplemented."""
        if self._ready is None or not self._ready(*args):
            return NotImplemented
        v = self._variants[0]
        v.watch.failures = 0  # type: ignore[union-attr]
        found = v.run_direct(args)
        return returned(found) if v.plain and v.watch.plain else found  # type: ignore[union-attr]

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], mode: Any) -> tuple[Any, bool]:
        """Run the program, with mode "check" the function too; return whether results are to be arrays."""
        if self._variants and not kwargs and mode is True:
            v = self._variants[0]
            if len(args) == v.direct and v.fits(*args) and v.holds(*args):
                self._ready = v.watched()
                return v.run_direct(args), v.plain
        call = Call(args, kwargs, self._static)
        variant = self._variant(call)
        if mode == "check":
            return run_both(variant, call, lambda: self._f(*args, **kwargs)), variant.plain
        return variant.run(call), variant.plain

    def _inline(self) -> bool:
        """Tell whether the function runs as part of something around it, or is watched."""
        if tracing.get() is not None or enclosing.get() is not None:
            return True
        if transform.get() not in _DIFFERENTIATED:
            return True
        if not special.count:
            return False
        watched = saved_hooks.get() is not None or observer.get() is not None
        return bool(watched or tapes.get() or anomaly.get())

    def _variant(self, call: Call) -> Variant:
        """Return the program for a call; trace one if none fits."""
        variants, self._ready = self._variants, None
        for n, v in enumerate(variants):
            if v.key == call.key and v.holds(*call.moving):
                if n:
                    variants.insert(0, variants.pop(n))
                return v
        reason = self._reason(call)
        fresh = Variant(self._f, call, self._backend)
        self._reasons.append(reason)
        variants.insert(0, fresh)
        if len(variants) > self._limit:
            variants.pop()
            if not self._warned:
                self._warned = True
                warn(
                    f"ad.compile: {name_of(self._f)} was traced {len(self._reasons)} times, but only "
                    f"{self._limit} programs are kept.\n  The last time because {reason}."
                )
        return fresh

    def _reason(self, call: Call) -> str:
        """Say why no program fits a call."""
        if not self._variants:
            return "it was the first call"
        for v in self._variants:
            if v.key == call.key:
                return v.reason(call)
        return _difference(self._variants[0].key, call.key)

    # Looking at it ---------------------------------------------------------------------------------

    def program(self, *args: Any, **kwargs: Any) -> str:
        """Return the text of the program for these arguments; it is traced, but not run.

        Returns
        -------
        str
            A line per value that is read, per instruction, and per write.
        """
        with self._lock:
            return str(self._variant(Call(args, kwargs, self._static)).program)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Return which kernels the program for these arguments consists of; it is built, but not run.

        Without arguments it is the program that was used last.

        Returns
        -------
        str
            A line per kernel, with the ops in it, the bytes that it reads and writes and an estimate of its
            time, and a line per call of NumPy, with the reason.

        Examples
        --------
        >>> import numpy as np, adjoint as ad
        >>> f = ad.compile(lambda x: ad.tanh(x * x + x).sum(), backend="replay")
        >>> f.explain(np.ones(8))
        '4 instructions, each of them a call of NumPy'
        """
        with self._lock:
            last = self._variants[0] if self._variants and not args and not kwargs else None
            return (last or self._variant(Call(args, kwargs, self._static))).explain()

    def stats(self) -> dict[str, Any]:
        """Return how often the function was traced, why, and what is guarded.

        Returns
        -------
        dict
            "traces", "reasons" (one per trace), and "programs", those that are kept: "instructions",
            "guards", "trace_seconds", "build_seconds" and "calls" of each.
        """
        with self._lock:
            return {
                "traces": len(self._reasons),
                "reasons": list(self._reasons),
                "programs": [v.stats() for v in self._variants],
            }

    def clear(self) -> None:
        """Drop all programs."""
        with self._lock:
            self._variants.clear()
            self._ready = None
            self._reasons.clear()
            self._warned = False

    def __repr__(self) -> str:
        return f"<compiled {name_of(self._f)}, {len(self._variants)} programs>"


class _Everyone:
    """All compiled functions.  Their locks are held during a fork, so that the child gets them free."""

    def __init__(self) -> None:
        self.functions: weakref.WeakSet[Compiled] = weakref.WeakSet()
        self.locks: list[Any] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self.hold, after_in_parent=self.free, after_in_child=self.free)

    def add(self, function: Compiled) -> None:
        """Hold the lock of a function too."""
        self.functions.add(function)

    def hold(self) -> None:
        """Acquire all locks."""
        self.locks = [f._lock for f in list(self.functions)]
        for lock in self.locks:
            lock.acquire()

    def free(self) -> None:
        """Release all locks."""
        for lock in self.locks:
            lock.release()
        self.locks = []


_everyone = _Everyone()
_DIFFERENTIATED = (None, "ad.grad", "ad.value_and_grad", "ad.vjp")


class Call:
    """The arguments of one call: the leaves, those that are traced, and the key of its programs."""

    __slots__ = ("key", "leaves", "moves", "moving", "structure")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], static: frozenset[Any]) -> None:
        self.leaves, self.structure = tree.flatten((args, kwargs))
        fixed = _static_leaves(self.structure, static) if static else frozenset()
        self.moves: list[int] = []  # which leaves are traced
        self.moving: list[Any] = []
        signature: list[Any] = []
        for k, leaf in enumerate(self.leaves):
            kind = type(leaf)
            if isinstance(leaf, Tensor):
                if k in fixed:
                    raise InputError("compile: a static argument is a number or text, but one is a tensor.")
                node = leaf._node
                signature.append(
                    (leaf.shape, leaf.dtype, None if node is None else node is LEAF, self._first(leaf))
                )
            elif kind is ndarray and k not in fixed:
                signature.append((leaf.shape, _numeric(leaf).dtype))
            elif isinstance(leaf, (ndarray, np.generic)) and k not in fixed:
                leaf = self.leaves[k] = array_of(leaf)
                signature.append((leaf.shape, leaf.dtype))
            elif kind is float and k not in fixed:
                signature.append(float)
            else:
                signature.append((kind, _hashable(leaf)))
                continue
            self.moves.append(k)
            self.moving.append(leaf)
        modes = grad_mode.get(), get_default_dtype(), sink.get() is None
        self.key = (self.structure, tuple(signature), modes)

    def _first(self, leaf: Any) -> int | None:
        """Return the position of an argument that is the same tensor."""
        return next((k for k, m in enumerate(self.moving) if m is leaf), None)


def _positions(f: Callable[..., Any], static: tuple[Any, ...]) -> frozenset[Any]:
    """Return the positions of arguments, and their names as a tree of keywords has them."""
    names = list(getattr(getattr(f, "__code__", None), "co_varnames", ()))
    found: set[Any] = set()
    for s in static:
        if not isinstance(s, (str, int)) or isinstance(s, bool):
            raise ArgumentError(f"compile: static has names and positions of arguments, but got {s!r}.")
        position = names.index(s) if s in names else s
        name = names[s] if isinstance(s, int) and 0 <= s < len(names) else s
        found |= {position, f"[{name!r}]"}
    return frozenset(found)


def _static_leaves(structure: tree.Structure, static: frozenset[Any]) -> frozenset[int]:
    """Return the numbers of the leaves of static arguments."""
    found: list[int] = []
    n = 0
    for part, children in enumerate(structure.children):
        for k, child in enumerate(children.children):
            name = k if part == 0 else children.names[k]
            if name in static:
                found.extend(range(n, n + child.count))
            n += child.count
    return frozenset(found)


def _numeric(leaf: Any) -> Any:
    if leaf.dtype.kind not in "biufc" and leaf.dtype.name != "bfloat16":
        raise InputError(f"compile: an argument is an array of {leaf.dtype}, not of numbers.")
    return leaf


def _hashable(leaf: Any) -> Any:
    try:
        hash(leaf)
    except TypeError:
        raise InputError(
            f"compile: an argument is a {type(leaf).__name__}, which cannot be the key of a program.\n"
            "  Pass arrays, tensors, numbers, text or hashable objects, or close over it."
        ) from None
    return leaf


def _difference(had: Any, wanted: Any) -> str:
    """Say in what two keys differ."""
    if had[0] != wanted[0]:
        return "the structure of the arguments changed"
    if had[2] != wanted[2]:
        names = ("the grad mode", "the default dtype", "whether a micro-batch is open")
        return (
            " and ".join(n for n, a, b in zip(names, had[2], wanted[2], strict=True) if a != b) + " changed"
        )
    for k, (a, b) in enumerate(zip(had[1], wanted[1], strict=True)):
        if a != b:
            return f"argument leaf {k} changed from {_said(a)} to {_said(b)}"
    return "another program was used last"


def _said(part: Any) -> str:
    if isinstance(part, tuple) and isinstance(part[0], tuple):
        return f"{part[1]}{list(part[0])}" + (
            " that requires grad" if len(part) > 2 and part[2] is not None else ""
        )
    return "a float" if part is float else f"{part[1]!r}"


class Variant:
    """One program of a compiled function, for calls of one key."""

    def __init__(self, f: Callable[..., Any], call: Call, backend: str) -> None:
        start = time.perf_counter()
        self.f = f
        self.name = name_of(f)
        self.backend = backend if backend != "auto" or has_llvm() else "replay"
        self.native: native.Native | None = None
        self.key = call.key
        self.structure = call.structure
        self.moves = call.moves
        self.calls = 0
        self.copies: list[Any] = []
        self.backward: Backward | None = None
        self.spent: list[Node | None] = []  # of results that were differentiated inside
        self.trace = trace = Trace(call.moving, updates=self.backend != "replay")
        reads = named_reads(f, _objects(f, call))
        self.guards: list[Any] = [Guard(what, read) for what, read in reads.items()]
        drawn = generators()
        try:
            self._run_trace(trace, call)
        except UnrollError:
            self.trace = trace = Trace(call.moving, trace.updates)
            trace.unroll = True
            self._run_trace(trace, call)
        if generators() != drawn:
            raise TransformError(
                f"ad.compile: {self.name} draws from the global generator of NumPy or Python.\n"
                "  Use a generator of ad.random, whose draws are made anew at each call."
            )
        self.trace_seconds = time.perf_counter() - start
        trace.arguments = ()
        self.program = trace.program
        given = list(_modules(call.structure))
        copies = {id(m) for m in self.copies}
        called = [m for m in trace.modules.values() if id(m) not in copies]
        self.copies = []
        for m in {id(m): m for m in (*called, *given)}.values():
            self.guards.append(ObjectGuard(type(m).__name__, m))
        self.guards += trace.guards
        self.impure = bool(self.program.writes) or any(s.kind == "draw" for s in self.program.sources)
        self.holds = make_check(trace, self.guards, len(self.moves))
        self.waits = self.backend == "auto"  # for its second call
        if self.backend == "native":
            self._go_native()
        else:
            self.execute = make_call(self.program, trace, replay.build(self.program), len(self.moves))
        self.direct = self._count_direct(call)
        # arrays in, arrays out: no tensor was given, and none that requires grad is used
        self.plain = (
            bool(call.moving)
            and not any(isinstance(leaf, Tensor) for leaf in call.leaves)
            and not any(h.tensor.requires_grad for h in trace.held.values())
        )
        specs = [(type(m), getattr(m, "shape", None), getattr(m, "dtype", None)) for m in call.moving]
        self.specs = specs
        self.fits = make_fits(specs if self.direct >= 0 else (), call.key[2])
        # whether the result is one tensor
        self.single = self.outs == [("value", 0)] and self.result.kind is tree.Structure.LEAF
        self.watch = self._watch()
        self.build_seconds = time.perf_counter() - start - self.trace_seconds

    def _go_native(self) -> None:
        """Run the program as native code from now on; by NumPy if there is nothing native in it."""
        self.waits = False
        start = time.perf_counter()
        try:
            for loop in self.trace.loops:
                loop.build_with(native.build)
            built = native.build(self.program)
            if self.backend == "auto" and not built.kernels:
                return
            if self.backward is not None:
                self.backward.build_with(native.build)
        except Exception as error:
            if self.backend == "native":
                raise
            warn(
                f"ad.compile: {self.name} runs by replay, because native code could not be made of it:\n"
                f'  {type(error).__name__}: {error}.  Use backend="replay" to choose that.'
            )
            return
        self.native = built
        self.execute = make_call(self.program, self.trace, built, len(self.moves))
        if self.backend == "auto":
            self.watch = self._watch()
            self.build_seconds += time.perf_counter() - start

    def run_by_replay(self, call: Call) -> Any:
        """Run the program with the bits of the function itself."""
        execute, waits = self.execute, self.waits
        try:
            self.waits = False
            for loop in self.trace.loops:
                loop.build_with(replay.build)
            if self.native is not None:
                run = replay.build(self.program)
                self.execute = make_call(self.program, self.trace, run, len(self.moves))
            return self.run(call)
        finally:
            self.execute, self.waits = execute, waits
            if self.native is not None:
                for loop in self.trace.loops:
                    loop.build_with(native.build)

    def explain(self) -> str:
        """Return what ``Compiled.explain`` does."""
        if self.native is None and self.backend != "replay":
            self._go_native()
        if self.native is None:
            why = "" if has_llvm() else "; native code needs llvmlite: pip install 'adjoint-ad[compile]'"
            return f"{len(self.program.live())} instructions, each of them a call of NumPy{why}"
        return explain(self.native)

    def _count_direct(self, call: Call) -> int:
        """Return the number of arguments if all are constant arrays and none is in a container, else -1."""
        args = call.structure.children[0].children
        flat = len(call.moves) == len(call.leaves) == len(args) and all(
            c.kind is tree.Structure.LEAF for c in args
        )
        constant = all(
            type(m) in (ndarray, Tensor) and getattr(m, "_node", None) is None for m in call.moving
        )
        distinct = len({id(m) for m in call.moving}) == len(call.moving)
        return len(args) if flat and constant and distinct and self.backward is None else -1

    # The trace -------------------------------------------------------------------------------------

    def _run_trace(self, trace: Trace, call: Call) -> None:
        trace.run(lambda: self._call(trace, call), lambda result: self._finish(trace, result))

    def _call(self, trace: Trace, call: Call) -> Any:
        """Run the function on stand-ins."""
        leaves = list(call.leaves)
        made: dict[int, Any] = {}  # one tensor that is given twice has one stand-in
        self.inputs = []
        for position, k in enumerate(call.moves):
            leaf = leaves[k]
            if id(leaf) not in made or not isinstance(leaf, Tensor):
                made[id(leaf)] = trace.stand_in(leaf, position)
            leaves[k] = made[id(leaf)]
            self.inputs.append(leaves[k])
        args, kwargs = tree.unflatten(call.structure, leaves)
        self.copies = list(_modules(tree.structure((args, kwargs))))  # modules with stand-ins as parameters
        return self.f(*args, **kwargs)

    def _finish(self, trace: Trace, result: Any) -> None:
        """Take the results: where each of them comes from at a call."""
        outs, self.result = tree.flatten(result)
        tensors: list[Tensor] = []
        self.outs: list[tuple[str, Any]] = []
        for o in outs:
            if isinstance(o, Symbolic):
                o = wrap(o)
            if not isinstance(o, Tensor):
                self.outs.append(("copy" if isinstance(o, ndarray) else "same", o))
                continue
            held = trace.held.get(id(o))
            if type(o) is Tensor:  # from outside, and not touched
                self.outs.append(("same", o))
                continue
            if held is not None:
                kind = "same" if held.argument is None else "argument"
                self.outs.append((kind, o if held.argument is None else self.moves[held.argument]))
                continue
            value = trace.value(o)
            self.outs.append(("number" if isinstance(value, Number) else "value", len(tensors)))
            tensors.append(o)
        trace.program.results = [trace.value(o) for o in tensors]
        self.count = len(tensors)
        if grad_mode.get() and any(type(o._node) is Node for o in tensors):
            try:
                self.backward = Backward(trace, self.inputs, tensors, replay.build)
                trace.program.results += self.backward.residuals
            except GraphReleasedError:
                self.spent = [_spent(self.name, o) if type(o._node) is Node else None for o in tensors]

    # A call ----------------------------------------------------------------------------------------

    def run_direct(self, args: tuple[Any, ...]) -> Any:
        """Run the program on arguments that are not in containers."""
        self.calls += 1
        if self.waits and self.calls > 1:
            self._go_native()
        if not self.single:
            return self.results(self.execute(*args), args)
        t = wrap(self.execute(*args)[0])
        if self.spent:
            t._node = self.spent[0]
        return t

    def watched(self) -> Callable[..., bool] | None:
        """Return the native check of the guards, which hold now; None if there is none."""
        if self.watch is None:
            return None
        self.watch.renew()
        return self.watch.ready

    def _watch(self) -> Watch | None:
        """Return the native check of the guards, if there is one."""
        trace = self.trace
        if self.native is None or self.direct < 0 or trace.fixed or trace.decisions or not possible():
            return None
        outside = [h for h in trace.held.values() if h.argument is None]
        if any(h.argument is not None for h in trace.grad_guards()):
            return None
        held = [(h.tensor, h.symbol.shape, h.symbol.dtype) for h in outside]
        return Watch(self.specs, held, [(h.tensor, h.grad is None) for h in trace.grad_guards()], self.guards)

    def run(self, call: Call) -> Any:
        """Run the program, and return the results as the function does."""
        self.calls += 1
        if self.waits and self.calls > 1:
            self._go_native()
        if self.backward is None:
            return self.results(self.execute(*call.moving), call.leaves)
        operands = [m if isinstance(m, Tensor) else wrap(np.asarray(m)) for m in call.moving]
        found = apply(Joint(self, call.leaves), [*operands, *self.backward.captured])
        return self._built(found, call.leaves)

    def results(self, arrays: Sequence[Any], leaves: Sequence[Any]) -> Any:
        """Return what the function returns, from the arrays of the program."""
        found = [wrap(r) for r in arrays[: self.count]]
        for t, node in zip(found, self.spent, strict=False):
            t._node = node
        return self._built(found, leaves)

    def _built(self, found: Sequence[Tensor], leaves: Sequence[Any]) -> Any:
        """Return results in the structure that the function returns."""
        outs = []
        for kind, at in self.outs:
            if kind == "value":
                outs.append(found[at])
            elif kind == "number":
                outs.append(found[at].item())
            elif kind == "argument":
                outs.append(leaves[at])
            else:
                outs.append(at.copy() if kind == "copy" else at)
        return tree.unflatten(self.result, outs)

    def eager(self, leaves: Sequence[Any]) -> list[Any]:
        """Run the function itself; return the leaves of its result."""
        args, kwargs = tree.unflatten(self.structure, leaves)
        return tree.flatten(self.f(*args, **kwargs))[0]

    def reason(self, call: Call) -> str:
        """Say why the program does not hold for a call of its key."""
        for g in self.guards:
            if not g.holds():
                return str(g.reason())
        return "a tensor that it reads got another shape, dtype, requires_grad, hooks or .grad"

    def stats(self) -> dict[str, Any]:
        """Return figures about the program."""
        tensors = sum(h.argument is None for h in self.trace.held.values())
        return {
            "instructions": len(self.program.live()),
            "guards": [g.what for g in self.guards] + [f"{tensors} tensors"],
            "trace_seconds": self.trace_seconds,
            "build_seconds": self.build_seconds,
            "calls": self.calls,
        }


def _modules(structure: tree.Structure) -> Iterator[Any]:
    """Yield the modules in a tree of arguments, and those inside them."""
    if hasattr(structure.rest, "modules"):
        yield from structure.rest.modules()
    for child in structure.children:
        yield from _modules(child)


def _objects(f: Callable[..., Any], call: Call) -> dict[str, Any]:
    """Return the arguments that are objects and not traced, by the names that the function has for them."""
    moving = set(call.moves)
    leaves = [None if k in moving else leaf for k, leaf in enumerate(call.leaves)]
    args, kwargs = tree.unflatten(call.structure, leaves)
    names = getattr(getattr(f, "__code__", None), "co_varnames", ())
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return {k: v for k, v in given.items() if hasattr(v, "__dict__")}


def _spent(name: str, out: Tensor) -> Node:
    """Return the node of a result that was differentiated inside: a second backward raises."""
    like = np.broadcast_to(np.zeros((), out.dtype), out.shape)
    op = new_op(name, (True,), False, 1)
    op.joint = op.forward  # never called: the engine sees first that the node is released
    node = node_of(op, (wrap(like),), {}, (None,), like)
    release(node)
    return node
