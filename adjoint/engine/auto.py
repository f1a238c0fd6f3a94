"""``workers="auto"``: choose the number of threads from the sizes in a plan."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Iterable
from math import ceil, prod, sqrt
from operator import attrgetter
from typing import Any

from adjoint.core.namespace import raw
from adjoint.core.node import Node
from adjoint.core.op import Op
from adjoint.engine.parallel import run_parallel
from adjoint.engine.plan import Plan
from adjoint.engine.run import Run, run_serial
from adjoint.threads.spread import processors

__all__ = ["run_auto", "workers_worth"]

# NumPy releases the GIL in its loops, so threads are faster from about 50,000 elements.  At 10,000 there is
# no gain, at 1,000 a loss (benchmarks/parallel.py).
_LARGE = 50_000

# Nanoseconds per element of a gradient, by kind of op.  The cost of a matrix product is proportional to the
# number of multiplications, sqrt(|x| |y| |x@y|).
_PER_ELEMENT = {"elementwise": 1.5, "linear": 0.5, "general": 3.0}
_PER_PRODUCT = 0.2

# The cost of starting and joining a helper; for less work one thread is as fast.
_WORTH_NANOSECONDS = 500_000
_WORTH_SPEEDUP = 1.25

_BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

_shape = attrgetter("shape")
_small: set[Any] = set()  # cache of small shapes


def run_auto(plan: Plan, run: Run) -> None:
    """Run a plan serially or in several threads, whichever is likely to be faster."""
    if run.xp is raw and _any_large(plan.order):
        run_parallel(plan, run, workers_worth(plan))
    else:
        run_serial(plan, run)


def _any_large(order: list[Node]) -> bool:
    """Return whether a plan is likely to have large arrays; of many nodes only some are checked.

    This takes 2 to 4 % of the time of a small backward.
    """
    if len(order) > 48:
        # Check a third of the nodes, in two strides without a common divisor.  Periodic large arrays are
        # found unless the period is a multiple of 35 or the graph is short; a single large array is mostly
        # missed, and the run is serial.
        order = order[::5] + order[1::7]
    if _small.issuperset(map(_shape, order)):
        return False
    try:
        for shape in set(map(_shape, order)) - _small:
            if prod(shape) >= _LARGE:
                return True
            if len(_small) < 10_000:
                _small.add(shape)
    except TypeError:  # an op with several outputs has a tuple of shapes
        return True
    return False


def workers_worth(plan: Plan) -> int:
    """Return the number of threads worth using for a plan, at most one per processor.

    The largest possible gain is the work of all large nodes divided by the work on the longest path through
    them.  Matrix products count as sequential if BLAS uses threads of its own.
    """
    counts = Counter(map(_shape, plan.order))
    large = {shape for shape in counts if _size(shape) >= _LARGE}
    if sum(counts[shape] for shape in large) < 2 or processors() < 2:
        return 1
    total = longest = products = 0.0
    start: dict[Node, float] = {}  # nanoseconds on the longest path from the root to a node
    for node in plan.order:
        cost = _nanoseconds(node.op, node) if node.shape in large else 1000.0
        if node.shape in large:
            total += cost
            products += cost if node.op.kind == "bilinear" else 0.0
        end = start.pop(node, 0.0) + cost
        longest = max(longest, end)
        for parent in node.parents:
            if type(parent) is Node and start.get(parent, 0.0) < end:
                start[parent] = end
    if products > longest and blas_has_threads():
        longest = products
    if total < _WORTH_NANOSECONDS or total < _WORTH_SPEEDUP * longest:
        return 1
    return min(processors(), ceil(total / longest))


def blas_has_threads() -> bool:
    """Return whether NumPy's BLAS uses several threads; without threadpoolctl, guess from the environment.

    Backward never changes the number of BLAS threads, because the bits of a product depend on it
    (docs/adr/0003).
    """
    controller = _blas()
    if controller is not None:
        return any(library.num_threads > 1 for library in controller.lib_controllers)
    return all(os.environ.get(name) != "1" for name in _BLAS_VARIABLES)


@functools.cache
def _blas() -> Any:
    """Return a controller of the BLAS libraries; None without threadpoolctl.

    The result is cached, because finding the libraries takes milliseconds.
    """
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController().select(user_api="blas")


def _nanoseconds(op: Op, node: Node) -> float:
    wanted = sum(p is not None for p in node.parents)
    size = _size(node.shape)
    if op.kind == "bilinear":
        return wanted * _PER_PRODUCT * sqrt(prod(map(_elements, node.args or ())) * size)
    return wanted * _PER_ELEMENT[op.kind] * size


def _elements(value: Any) -> int:
    return _size(getattr(value, "shape", ()))


def _size(shape: Iterable[Any]) -> int:
    """Return the number of elements of an array of this shape; of several shapes, the sum."""
    try:
        return prod(shape)
    except TypeError:
        return sum(map(prod, shape))
