"""Patterns of derivatives, from the program that computes their products with vectors.

The function is recorded, and a tangent without elements is pushed along the record inside a trace.  The
instructions that this adds compute the derivative, so their pattern is its pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint import tree
from adjoint.compiler.capture.trace import Trace
from adjoint.compiler.program.symbols import Root, Symbolic
from adjoint.context import enclosing, grad_mode, tracing, transform, within
from adjoint.core.tensor import Tensor, wrap
from adjoint.sparsity.pattern import made, stacked
from adjoint.sparsity.walk import Constants, started, walk
from adjoint.transforms.inputs import Recorded
from adjoint.transforms.linear import push_along

__all__ = ["innermost_trace", "pattern_apart", "pattern_of_run"]


def innermost_trace() -> Any:
    """Return the trace of ``ad.compile`` that runs; None without one, or if a transform runs inside it."""
    trace, top = tracing.get(), enclosing.get()
    return trace if trace is not None and isinstance(top, Root) and top.trace is trace else None


class _Elements:
    """A function that returns the elements of a tensor; the first call, inside a trace, those of ``data``."""

    def __init__(self, t: Tensor, data: Any) -> None:
        self.tensor, self.data = t, data

    def __call__(self) -> bytes:
        data, self.data = self.data, None
        found: bytes = (self.tensor._data if data is None else data).tobytes()
        return found


def pattern_of_run(trace: Any, run: Recorded) -> Any:
    """Return the pattern of the derivative of a run that a trace recorded.

    The rows are the elements of its outputs, the columns those of its inputs.  Constant arrays on whose
    elements the pattern depends are guarded.
    """
    symbols = [Symbolic(trace, x.shape, x.dtype) for x in run.inputs]
    pushed = within(grad_mode, False, push_along, run, [wrap(s) for s in symbols], False)
    values = [trace.value(t) for t in pushed]
    captured = {id(h.tensor): h.data for h in trace.held.values() if type(h.data) is np.ndarray}
    constants = Constants(trace.program, captured)
    patterns = walk(trace.program.body, started(symbols), values, constants)
    for each in constants.read.values():
        if isinstance(each, Tensor):
            trace.guard("the elements of a tensor of integers", _Elements(each, captured[id(each)]))
        else:
            trace.fix(each)
    columns = sum(x.size for x in run.inputs)
    parts = []
    for p, out in zip(patterns, run.outputs, strict=True):
        empty = made(np.zeros(0, np.int64), np.zeros(out.size + 1, np.int64), columns)
        parts.append(empty if p is None else p)
    found = stacked(parts)
    found.sort_indices()
    return found


def pattern_apart(record: Callable[..., Recorded], args: Any, kwargs: Any) -> Any:
    """Return the pattern of the derivative of ``record(*args, **kwargs)``, recorded in a trace of its own.

    Tensors and arrays among the arguments are replaced by symbols of their shapes and dtypes.
    """
    leaves, structure = tree.flatten((args, kwargs))
    moving = [k for k, leaf in enumerate(leaves) if isinstance(leaf, (Tensor, np.ndarray, np.generic))]
    arrays = [np.zeros(leaves[k].shape, leaves[k].dtype) for k in moving]
    around = tracing.get() or Trace()
    trace = around.inner()  # an inner trace reads values of the ``vmap`` around it
    trace.arguments = arrays

    def recorded() -> Recorded:
        for position, (k, array) in enumerate(zip(moving, arrays, strict=True)):
            leaves[k] = trace.stand_in(array, position)
        given, named = tree.unflatten(structure, leaves)
        return within(transform, None, lambda: record(*given, **named))

    pattern = trace.run(recorded, lambda run: pattern_of_run(trace, run))
    around.guards += trace.guards
    return pattern
