"""All context variables of adjoint.

A context variable has its own value in each thread and asyncio task.  Variables whose types are defined in
modules that import this one are typed ``Any``, because this module imports nothing from adjoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

__all__ = [
    "anomaly",
    "arriving",
    "compile_mode",
    "cpu_level",
    "crew",
    "default_dtype",
    "enclosing",
    "entered",
    "grad_mode",
    "inference",
    "init_generator",
    "lent",
    "observer",
    "reading",
    "reductions",
    "saved_hooks",
    "sink",
    "spreading",
    "stand_ins",
    "tapes",
    "threads",
    "tracing",
    "transform",
    "workers",
    "writes",
]

Hook = Callable[[Any], Any]

_FLOAT64 = np.dtype(np.float64)

# Modes and settings ------------------------------------------------------------------------------

# Whether ops are recorded.
grad_mode: ContextVar[bool] = ContextVar("adjoint_grad_mode", default=True)
# Whether ``inference_mode`` is on.
inference: ContextVar[bool] = ContextVar("adjoint_inference_mode", default=False)
# Whether results are checked for NaN and infinity.
anomaly: ContextVar[bool] = ContextVar("adjoint_anomaly", default=False)
# The dtype of tensors made from Python numbers.
default_dtype: ContextVar[np.dtype[Any]] = ContextVar("adjoint_default_dtype", default=_FLOAT64)
# The number of threads of a backward, or "auto".
workers: ContextVar[int | str] = ContextVar("adjoint_workers", default=1)
# The number of threads of a pass over a large array, or "auto".
threads: ContextVar[int | str] = ContextVar("adjoint_threads", default="auto")
# How functions of ``ad.compile`` run: True, False or "check".
compile_mode: ContextVar[bool | str] = ContextVar("adjoint_compile_mode", default=True)
# The vector instructions that kernels use, of ``compiler.machine.LEVELS``; None: all that the processor has.
cpu_level: ContextVar[str | None] = ContextVar("adjoint_cpu_level", default=None)
# The generator that draws initial values; None: one per process.
init_generator: ContextVar[Any] = ContextVar("adjoint_init_generator", default=None)
# The entered modes as a linked list: the innermost mode, the value before it, and the entry around it.
entered: ContextVar[tuple[Any, Any, Any] | None] = ContextVar("adjoint_entered", default=None)

# Observers of ops and tensors; read only while ``config.special`` is not 0 -----------------------

# The active tapes, the outermost first.
tapes: ContextVar[tuple[Any, ...]] = ContextVar("adjoint_tapes", default=())
# The pair (pack, unpack) of ``saved_tensors_hooks``.
saved_hooks: ContextVar[tuple[Hook, Hook] | None] = ContextVar("adjoint_saved_hooks", default=None)
# Called with every tensor that is read, to detect changes.
reading: ContextVar[Hook | None] = ContextVar("adjoint_reading", default=None)
# By id: a tensor, its value and its version before a function that may run again wrote to it.
writes: ContextVar[dict[int, tuple[Any, Any, Any, int]] | None] = ContextVar("adjoint_writes", default=None)
# Tensors with the data, node and class that each of them has for now: loops replace those they capture.
stand_ins: ContextVar[tuple[tuple[Any, Any, Any, Any], ...]] = ContextVar("adjoint_stand_ins", default=())
# The ``core.observer.Observer`` of this block, or None.
observer: ContextVar[Any] = ContextVar("adjoint_observer", default=None)
# The reductions of losses in this block, with their weights.
reductions: ContextVar[list[tuple[Any, float | None]] | None] = ContextVar("adjoint_reductions", default=None)

# Transforms --------------------------------------------------------------------------------------

# The name of the transform that runs, such as "ad.grad"; None if there is none.
transform: ContextVar[str | None] = ContextVar("adjoint_transform", default=None)
# A lifted value of the innermost transform that runs, or None.  A leaf made inside a transform is lifted to
# its level, so that a tensor of a lower level is always one from outside.
enclosing: ContextVar[Any] = ContextVar("adjoint_enclosing", default=None)
# The trace of ``ad.compile`` that runs, or None.  While one runs, ``config.special`` is not 0.
tracing: ContextVar[Any] = ContextVar("adjoint_tracing", default=None)
# The gradients that the rule of a call gets, each with its zeros: the seeds of what the rule differentiates
# itself.  None outside such rules.
arriving: ContextVar[Sequence[tuple[Any, Any]] | None] = ContextVar("adjoint_arriving", default=None)

# Gradients ---------------------------------------------------------------------------------------

# Where gradients of leaves go instead of ``.grad``; set by ``micro_batch`` of an accumulator.
sink: ContextVar[Any] = ContextVar("adjoint_sink", default=None)
# The gradients that an accumulator passed to its clip function, by name or by parameter.
lent: ContextVar[Any] = ContextVar("adjoint_lent", default=None)

# Threads -----------------------------------------------------------------------------------------

# A weak reference to the parallel run that calls hooks and rules here; a backward inside one of them stays in
# its thread.  Weak, because the run holds a copy of the context, and a hook may keep one.
crew: ContextVar[Any] = ContextVar("adjoint_inside_parallel_run", default=None)
# Whether this is part of a spread pass, which is not spread again.
spreading: ContextVar[bool] = ContextVar("adjoint_inside_spread", default=False)
