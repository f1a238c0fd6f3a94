"""Calls of Python code inside a program, such as a solver of SciPy that runs each time the program runs.

The functions that the solver evaluates are traced once, each to a program of its own.  The values that they
read from outside become operands of the instruction.  When the instruction runs, the solver is given
functions of arrays that run these programs.  The instruction has no derivative: the code that adds it must
supply one, for example by the implicit function theorem.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from adjoint import tree
from adjoint.compiler.program.inputs import ArgumentSource
from adjoint.compiler.program.program import Host
from adjoint.compiler.program.symbols import refused
from adjoint.compiler.replay.replay import build
from adjoint.config import grad_mode
from adjoint.context import within
from adjoint.core.batched import Batched
from adjoint.core.convert import asarray
from adjoint.core.lifted import enclosing, tracing
from adjoint.core.op import Op
from adjoint.core.record import evaluate
from adjoint.core.tensor import Tensor, wrap
from adjoint.transforms.calls import new_op

if TYPE_CHECKING:
    from adjoint.compiler.capture.trace import Trace

__all__ = ["Inner", "call_on_host"]

Specs = Sequence[tuple[Any, Any]]


class Inner:
    """A function of tensors that is traced once: ``run(*arrays, *captured)`` returns a tuple of arrays.

    ``captured`` are the tensors that the function reads besides its arguments; ``specs`` are the shapes and
    dtypes of its arguments.
    """

    def __init__(self, name: str, outer: Trace, f: Callable[..., Any], specs: Specs) -> None:
        self.name = name
        sub = outer.inner()
        sub.loop = self  # so that a branch on a value calls ``decide``

        def call() -> None:
            try:
                self._call(sub, f, specs)
            finally:  # the function that ``outer`` traces may catch the error, too
                outer.refused = outer.refused or sub.refused

        within(grad_mode, False, sub.run, call, lambda result: None)
        program = sub.program
        program.sources.sort(key=lambda s: s.kind != "argument")
        others = program.sources[len(specs) :]
        if any(s.kind not in ("tensor", "array", "outer") for s in others) or program.writes:
            raise refused(
                f"{name}: inside ad.compile, the function must not draw random numbers or write into "
                f"tensors.\n  Draw and write before calling {name}, or call {name} outside of the compiled "
                "function."
            )
        self.captured = [s.outside(outer) for s in others]
        self.specs = [(v.shape, v.dtype) for v in program.results]
        self.run = build(program)
        outer.modules.update(sub.modules)
        outer.guards += sub.guards

    def _call(self, sub: Trace, f: Callable[..., Any], specs: Specs) -> None:
        given = [wrap(sub.source(ArgumentSource, shape, dtype, k)) for k, (shape, dtype) in enumerate(specs)]
        found = [asarray(t) for t in tree.leaves(f(*given))]
        sub.program.results = [sub.value(t) for t in found]

    def decide(self, *_: Any) -> NoReturn:
        """Raise TransformError: the function branches on a value that is not known in a trace."""
        raise refused(
            f"{self.name}: inside ad.compile, the function must not branch on the values of tensors.\n"
            f"  Use ad.where or ad.cond, or call {self.name} outside of the compiled function."
        )


def call_on_host(
    trace: Trace,
    name: str,
    run: Callable[..., Sequence[Any]],
    functions: Sequence[Inner],
    given: Sequence[Tensor],
    specs: Specs,
) -> list[Tensor]:
    """Add a call of ``run(functions, *given)`` to the program; return its results as detached tensors.

    When the program runs, ``functions`` take arrays and return tuples of arrays, and ``given`` are arrays.
    ``specs`` has the shape and dtype of each result.
    """

    def host(*operands: Any) -> Any:
        arrays = [np.asarray(a) for a in operands]  # a program may pass a Python number
        bound, at = [], len(given)
        for f in functions:
            own = arrays[at : at + len(f.captured)]
            bound.append(lambda *x, f=f, own=own: f.run(*x, *own))
            at += len(own)
        found = copy_context().run(_outside, run, bound, *arrays[: len(given)])
        return [np.array(v, d).reshape(s) for v, (s, d) in zip(found, specs, strict=True)]

    operands = [*given, *(t for f in functions for t in f.captured)]
    trace.touch(operands)
    found = evaluate(_host_op(name, host, specs), tuple([_plain(t._data) for t in operands]), {})
    return [wrap(v) for v in (found if len(specs) > 1 else (found,))]


def _outside(run: Callable[..., Any], *args: Any) -> Any:
    """Call ``run(*args)`` without transforms, tracing and recording: a trace may run parts of its program."""
    enclosing.set(None)
    tracing.set(None)
    grad_mode.set(False)
    return run(*args)


def _plain(data: Any) -> Any:
    """Return ``data`` with the tensors inside a ``vmap`` value replaced by arrays, so nothing is recorded."""
    if isinstance(data, Batched):
        inner = data.value._data if isinstance(data.value, Tensor) else data.value
        return Batched(data.level, data.size_, _plain(inner), data.batched)
    return data


def _host_op(name: str, host: Callable[..., Any], specs: Specs) -> Op:
    """Return an op that adds a call of ``host`` to the program; on a batch, one call for each element."""
    op = new_op(name, (), False, len(specs))

    def forward(*values: Any) -> Any:
        trace: Any = tracing.get()
        single = lambda *arrays: host(*arrays)[0]
        calls = Host(name, host if len(specs) > 1 else single, len(specs))
        found = trace.call_host(calls, values, specs)
        return tuple(found) if len(specs) > 1 else found[0]

    def batch(_: Op, size: int, *own: Batched) -> Any:
        flags = [a.batched for a in own]

        def each(*arrays: Any) -> list[Any]:
            rows = [
                host(*(a[i] if flag else a for a, flag in zip(arrays, flags, strict=True)))
                for i in range(size)
            ]
            if not rows:
                return [np.empty(shape, dtype) for shape, dtype in whole]
            return [np.stack(column) for column in zip(*rows, strict=True)]

        whole = [((size, *shape), dtype) for shape, dtype in specs]
        return evaluate(_host_op(name, each, whole), tuple([a.value for a in own]), {})

    op.forward, op.batch = forward, batch
    return op
