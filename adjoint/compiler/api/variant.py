"""One program of a compiled function: traced, built, and run for all calls with the same key.

The key has the structure, shapes and dtypes of the arguments, and settings such as the grad mode.
"""

from __future__ import annotations

import contextvars
import functools
import math
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint import tree
from adjoint.compiler.api.captured import Captured
from adjoint.compiler.api.doctor import advice, hint_of_entry, hint_of_loops
from adjoint.compiler.api.explain import explain
from adjoint.compiler.api.layers import named_tensors
from adjoint.compiler.build import units
from adjoint.compiler.capture.arguments import (
    Call,
    Parameters,
    Wanted,
    opened,
)
from adjoint.compiler.emit.machine import has_llvm
from adjoint.compiler.guards.values import ObjectGuard, exact
from adjoint.compiler.host import native
from adjoint.compiler.host.call import make_call
from adjoint.compiler.host.check import Watch, possible
from adjoint.compiler.host.direct import Owner, make_check, make_direct, make_fits, new_copy
from adjoint.compiler.host.unpack import can_unpack
from adjoint.compiler.program.call_node import Recorder
from adjoint.compiler.program.symbols import NUMBERS
from adjoint.compiler.replay import replay
from adjoint.config import special, transform
from adjoint.core.node import LEAF
from adjoint.core.tensor import Tensor, wrap
from adjoint.core.user_code import warn
from adjoint.errors import install_command
from adjoint.words import count

__all__ = ["Variant"]


_BASE = 1 << 20  # bytes: an estimate for the trace and the code of a program
_LONG = 64  # iterations: programs with a longer loop are compiled to native code at the first call


class Variant(Captured):
    """One traced program of a compiled function, which runs all calls with the same key."""

    def __init__(
        self, f: Callable[..., Any], call: Call, backend: str, parameters: Parameters, flush: bool = False,
        level: str | None = None, target: Any = None,
        varying: Collection[Any] = (), later: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        start = time.perf_counter()
        self.f = f
        self.name = parameters.function
        self.backend = backend if backend != "auto" or has_llvm() else "replay"
        self.native: native.Native | None = None
        self.directs: dict[Any, Callable[..., Any]] = {}  # see ``make_direct``
        self.build = functools.partial(native.build, flush=flush, level=level)
        self.level = level
        self.target = target  # None for the CPU, otherwise see ``targets.Target``
        self.wrap: Callable[[Any], Tensor] = wrap if target is None else target.wrap
        self.key = call.key
        self.parameters = parameters
        self.structure = call.structure
        self.moves = call.moves
        self.calls = 0
        self._trace_call(call, parameters, varying)
        self.trace_seconds = time.perf_counter() - start
        trace = self.trace
        self.impure = bool(self.program.writes) or any(s.kind == "draw" for s in self.program.sources)
        # whether the original function can be called again, for a second derivative
        self.repeats = (
            not self.program.writes
            and not trace.grad_guards()
            and all(s.kind in ("argument", "tensor", "array") for s in self.program.sources)
        )
        check = make_check(trace, self.guards, len(self.moves), "._data" if target is None else "")
        self.holds: Callable[..., Any] = _never if self.changed else check
        self.fixed = call.fixed()
        leaves = [k for k, m in enumerate(call.moving) if getattr(m, "_node", None) is LEAF]
        back = self.backward
        self.recorder = None if back is None else Recorder(self, back, self.residuals, leaves)
        self.later = later and not trace.loops  # whether a thread builds native code while replay serves
        self.built_later: list[Any] = []  # its result: the native program and an error, one of them None
        self.waits = self.backend == "auto"  # whether native code is to be built in a later call
        # how many calls come before native code is built: none if there is a long loop
        self.patience: float = 0 if any(loop.count >= _LONG for loop in trace.loops) else 1
        if self.backend == "native":
            self._go_native()
        elif target is not None:
            self._go_to_device()
        else:
            self._use(replay.build(self.program, tables=True))
        self._describe_calls(call)
        self.watch: Watch | None = None if self.native is None else self._watch()
        self.build_seconds = time.perf_counter() - start - self.trace_seconds

    def _describe_calls(self, call: Call) -> None:
        """Set what the fast path of calls must know of the arguments and of the result."""
        args, named = (c.children for c in call.structure.children)
        leaves_only = not named and all(c.kind is tree.Structure.LEAF for c in args)
        self.flat = leaves_only and len(call.moves) == len(args)
        self.direct = self._count_direct(call) if self.target is None else -1
        # whether no argument is a tensor and no tensor that requires grad is used
        self.plain = (
            bool(call.moving)
            and not any(isinstance(leaf, Tensor) for leaf in call.leaves)
            and not any(h.tensor.requires_grad for h in self.trace.held.values())
        )
        self.specs = [Wanted.of(m) for m in call.moving] if self.direct >= 0 else []
        self.fits = make_fits(self.specs, call.key[2])
        # whether the result is one tensor
        self.single = self.outs == [("value", 0)] and self.result.kind is tree.Structure.LEAF

    def _use(self, built: Callable[..., Any]) -> None:
        """Run the program by ``built`` in later calls; it is a function from the inputs to the outputs."""
        self.built = built
        self.execute = make_call(self.program, self.trace, built, len(self.moves))

    def _go_native(self) -> None:
        """Build native code for later calls, in this call or in a thread.

        NumPy still runs the program if native code would not be faster, or, with a warning, if the build
        fails.
        """
        if self.later and not self.built_later:
            run = contextvars.copy_context().run
            if units.start_alone(lambda: self.built_later.extend(run(self._compiled))):
                self.patience = math.inf  # until it has ended
            return
        self.waits = False
        start = time.perf_counter()
        built, error = self.built_later or self._compiled()
        if error is not None:
            if self.backend == "native":
                raise error
            warn(
                f"ad.compile: {self.name} could not be compiled to native code, so NumPy runs it:\n"
                f'  {type(error).__name__}: {error}.  Pass backend="replay" to avoid this warning.'
            )
        if built is None:
            return
        self.native = built
        self._use(built)
        self.directs.clear()
        if self.backend == "auto":
            self.watch = self._watch()
            self.build_seconds += time.perf_counter() - start
        hint_of_loops(self.name, built)

    def _go_to_device(self) -> None:
        """Build the program for its device; it runs all calls."""
        on_device = self.target.build(self.program, self.trace, len(self.moves), self.name)
        self.built = on_device

        def execute(*moving: Any) -> list[Any]:
            found: list[Any] = on_device(*moving)
            if self.recorder is None and not self.plain:
                return found
            # results for arguments that are arrays are arrays; a recorded call keeps arrays for its backward
            return [self.wrap(r)._data for r in found]

        self.execute = execute

    def _compiled(self) -> tuple[native.Native | None, Exception | None]:
        """Return the native program, None if it would not be faster, and the error if the build fails."""
        try:
            for loop in self.trace.loops:
                loop.build_with(self.build)
            built = self.build(self.program)
            if self.backend == "auto" and not built.is_worthwhile():
                return None, None
            if self.backward is not None:
                self.backward.build_with(self.build)
        except Exception as error:
            return None, error
        return built, None

    def memory(self) -> int:
        """Return the estimated number of bytes that the program takes."""
        return _BASE + (0 if self.native is None else self.native.arena.nbytes)

    def run_by_replay(self, call: Call) -> Any:
        """Run the program with NumPy, whose results equal those of the function bit for bit."""
        built, execute, waits = self.built, self.execute, self.waits
        try:
            self.waits = False
            for loop in self.trace.loops:
                loop.build_with(replay.build)
            if self.native is not None:
                self._use(self.native.replayed)
            elif self.target is not None:
                self._use(replay.build(self.program))
            return self.run(call)
        finally:
            self.built, self.execute, self.waits = built, execute, waits
            if self.native is not None:
                for loop in self.trace.loops:
                    loop.build_with(self.build)

    def explain(self, reasons: list[str]) -> str:
        """Return the text of ``Compiled.explain``; ``reasons`` are those of all traces of the function."""
        if self.target is not None:
            shown: Any = self.built
            return str(shown.explain())
        if self.native is None and self.backend != "replay":
            self._go_native()
        if self.native is None:
            why = "" if has_llvm() else f"; native code needs llvmlite: {install_command('compile')}"
            n = len(self.program.live())
            return f"{count(n, 'instruction')}, {'each of them ' if n > 1 else ''}a call of NumPy{why}"
        return "\n".join([explain(self.native), *advice(self.native, reasons)])

    def hint_of_entry(self) -> None:
        """Warn that a program that is called often goes through Python."""
        assert self.native is not None
        hint_of_entry(self.name, self.native)

    def _count_direct(self, call: Call) -> int:
        """Return the number of traced arguments if calls can skip the general path; otherwise -1.

        They can if the traced values are distinct arrays and tensors, or floats, and generated lines can find
        them in the arguments.  If the arguments are ``flat``, they are these values themselves.
        """
        known = all(type(m) in (ndarray, Tensor, *NUMBERS) for m in call.moving)
        if self.backward is None:  # then a tensor with a graph is an error, or the program writes into it
            known = known and all(getattr(m, "_node", None) is None for m in call.moving)
        else:  # a recorded call keeps the numbers
            known = known and all(type(m) not in NUMBERS for m in call.moving)
        values = [m for m in call.moving if type(m) not in NUMBERS]
        distinct = len({id(m) for m in values}) == len(values)
        if not self.flat:  # results are found among the traced values, not among all leaves
            known = known and can_unpack(call.structure, call.leaves, call.moves)
            known = known and all(kind != "argument" for kind, _ in self.outs)
        return len(call.moves) if known and distinct and not self.spent.joined else -1

    # A call ----------------------------------------------------------------------------------------

    def run_direct(self, args: tuple[Any, ...]) -> Any:
        """Run the program on arguments that are arrays or tensors, not containers."""
        self.calls += 1
        if self.waits and (self.calls > self.patience or self.built_later):
            self._go_native()
        if self.recorder is not None:
            found = self.recorder.record(args, self.execute(*args), self.fixed)
            return found[0] if self.single else self._built(found, args)
        if not self.single:
            return self.results(self.execute(*args), args)
        t = wrap(self.execute(*args)[0])
        if self.spent.nodes:
            t._node = self.spent.nodes[0]
        return t

    def make_direct(self, owner: Owner) -> Callable[..., Any] | None:
        """Return a fast function that runs the program on arguments; call this after a check of all guards.

        The returned function passes the call to ``owner`` if something has changed.  Returns None if every
        call must take the general path.
        """
        if self.waits or special.count:
            return None
        if self.watch is not None:
            self.watch.renew()
        return self.checked(owner)

    def checked(self, owner: Owner) -> Callable[..., Any]:
        """Return the function of ``make_direct``, which compares with the state of the last check."""
        watch = None if self.watch is None or not self.watch.is_on() else self.watch
        key = transform.get(), None if watch is None else watch.asks, owner.general
        if key not in self.directs:
            self.directs[key] = make_direct(self, watch, owner)
        return self.directs[key]

    def can_watch(self) -> bool:
        """Return whether native code can check that the guards hold."""
        trace = self.trace
        given = any(h.argument is not None for h in trace.grad_guards()) or self.program.written_arguments()
        arrays = any(not part.results[0].weak for _, part, *_ in trace.decisions)
        return self.direct >= 0 and not (arrays or given) and possible()

    def start_watch(self) -> None:
        """Check the guards natively in all later calls; this is called when the program has run often."""
        self.directs.clear()
        with suppress(Exception):  # llvmlite cannot be imported
            self.watch = self._watch()

    def _watch(self) -> Watch | None:
        """Return a new native check of the guards; None if they cannot be checked natively."""
        trace = self.trace
        if not self.can_watch():
            return None
        outside = [h for h in trace.held.values() if h.argument is None]
        held = [(h.tensor, h.symbol.shape, h.symbol.dtype) for h in outside]
        arrays = [s for s in self.specs if s.kind not in NUMBERS]
        return Watch(arrays, held, [(h.tensor, h.grad is None) for h in trace.grad_guards()], self.guards)

    def run(self, call: Call) -> Any:
        """Run the program on the arguments of a call; return the results that the function would return."""
        self.calls += 1
        if self.waits and (self.calls > self.patience or self.built_later):
            self._go_native()
        if self.recorder is None:
            return self.results(self.execute(*call.moving), call.leaves)
        found = self.recorder.record(call.moving, self.execute(*call.moving), call.fixed())
        return self._built(found, call.leaves)

    def results(self, arrays: Sequence[Any], leaves: Sequence[Any]) -> Any:
        """Return the results of the function, made from the arrays that the program returned.

        ``leaves`` are the leaves of the arguments.
        """
        found = [self.wrap(r) for r in arrays[: self.count]]
        for t, node in zip(found, self.spent.of(leaves), strict=False):
            t._node = node
        return self._built(found, leaves)

    def _built(self, found: Sequence[Tensor], leaves: Sequence[Any]) -> Any:
        """Return the results in the nested containers that the function returns.

        ``found`` has the results of the program, and ``leaves`` has the leaves of the arguments.
        """
        outs = []
        for kind, at in self.outs:
            if kind == "value":
                outs.append(found[at])
            elif kind == "number":
                outs.append(self.program.results[at].kind(found[at].item()))
            elif kind == "argument":
                outs.append(leaves[at])
            else:
                outs.append(new_copy(at) if kind == "copy" else at)
        return tree.unflatten(self.result, outs)

    def eager(self, leaves: Sequence[Any]) -> list[Tensor]:
        """Call the original function on ``leaves``; return, as tensors, the results the program computes."""
        args, kwargs = opened(*tree.unflatten(self.structure, leaves))
        found = zip(tree.flatten(self.f(*args, **kwargs))[0], self.outs, strict=True)
        computed = {at: o for o, (kind, at) in found if kind in ("value", "number")}
        return [o if isinstance(o, Tensor) else wrap(np.asarray(o)) for o in computed.values()]

    def explained(self, call: Call) -> Exception | None:
        """Return an error that explains the first index that is out of range; None if all are in range."""
        for check, value in self.trace.indices:
            part = self.trace.part(value, pure=True)
            if any(s.kind == "draw" for s in part.sources):  # the random numbers would be drawn again
                continue
            read = make_call(part, self.trace, replay.build(part), len(self.moves))
            try:
                check(read(*call.moving)[0])
            except IndexError as error:
                return error
        return None

    def reason(self, call: Call) -> str:
        """Return in words why the program cannot run a call that has the same key."""
        if self.changed:
            return f"the function changes {self.changed[0]}, which it also reads"
        for g in self.guards:
            if not g.holds():
                return str(g.reason())
        for function, part, found, reason in self.trace.decisions:
            read = make_call(part, self.trace, replay.build(part), len(self.moves))
            try:
                now = exact(function(read(*call.moving)[0]))
            except Exception:  # such as an overflow in float(n)
                now = _never
            if reason and now != exact(found):
                return reason
        for h in self.trace.held.values():
            if h.argument is None and (what := h.change()):
                return f"{what} of {self._tensor_name(h.tensor)} changed"
        for h in self.trace.grad_guards():
            t = h.tensor if h.argument is None else call.moving[h.argument]
            if (t.grad is None) != (h.grad is None):
                name = self._tensor_name(t) if h.argument is None else "an argument"
                return f".grad of {name} is {'None, but was not' if t.grad is None else 'no longer None'}"
        return "one tensor is both an argument and a variable"

    def text(self) -> str:
        """Return the program as text, for ``Compiled.program``."""
        return self.program.text(lambda t: self._tensor_name(t, "tensor").rpartition(": ")[2])

    def _tensor_name(self, t: Tensor, unknown: str = "") -> str:
        """Return a name for a tensor that the program reads, such as "net.weight", for messages.

        Return ``unknown``, or if it is "" a name with the shape, if no guard has a name for the tensor.
        """
        for g in (*self.reads, *self.trace.guards):
            if getattr(g, "seen", None) is t:
                return str(g.what)
        for g in self.guards:
            for name, value in named_tensors(g.owner) if isinstance(g, ObjectGuard) else ():
                if value is t:
                    return f"{g.what}.{name}"
        return unknown or f"a tensor of shape {t.shape}"

    def stats(self) -> dict[str, Any]:
        """Return the entry of this program in the result of ``Compiled.stats``.

        The keys are "instructions", "guards", "trace_seconds", "build_seconds" and "calls".
        """
        tensors = sum(h.argument is None for h in self.trace.held.values())
        return {
            "instructions": len(self.program.live()),
            "guards": [g.what for g in (*self.reads, *self.guards[1:])] + [count(tensors, "tensor")],
            "trace_seconds": self.trace_seconds,
            "build_seconds": self.build_seconds,
            "calls": self.calls + (0 if self.watch is None else self.watch.calls),
        }


def _never(*_: Any) -> bool:
    """Return False: the check of a program that can run only the call for which it was traced."""
    return False
