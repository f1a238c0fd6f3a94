"""Call SciPy's solvers inside ``ad.vmap``, once for each element of the batch, or inside ``ad.compile``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint import tree
from adjoint.config import grad_mode, special
from adjoint.context import within
from adjoint.core.batched import Batched
from adjoint.core.convert import asarray
from adjoint.core.lifted import enclosing, running, tracing
from adjoint.core.record import innermost
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import InputError
from adjoint.interop.scipy import OfElement, Programs, methods_of, traced_methods
from adjoint.scipy.fallback import partial_result
from adjoint.transforms.flat_tree import FlatTree
from adjoint.transforms.inputs import name_of

__all__ = ["Batch", "batch_of", "solve_each"]


class Batch:
    """The batch that the active ``vmap`` maps a function over.

    The methods extract the values of single elements from batched tensors, and call functions for single
    elements outside of the ``vmap``.
    """

    def __init__(self, like: Batched) -> None:
        self.level, self.size = like.level, like.size_
        self.top = running(like.level)

    def element(self, i: int, value: Any) -> Any:
        """Return element ``i`` of ``value`` if it is a tensor of this batch, otherwise ``value`` itself."""
        if not isinstance(value, Tensor) or not isinstance(value._data, Batched):
            return value
        data = value._data
        if data.level != self.level:
            return value
        whole = data.value if isinstance(data.value, Tensor) else wrap(data.value)
        return whole[i] if data.batched else whole

    def function(self, i: int, f: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that computes ``f`` for element ``i`` and can be called outside the ``vmap``."""
        run = lambda *x: tree.map(lambda t: self.element(i, t), within(enclosing, self.top, f, *x))
        return OfElement(run, name_of(f))

    def outside(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return ``function(*args)``, called outside of the ``vmap``."""
        return within(enclosing, self.top.outer, function, *args)

    def inside(self, values: Any) -> Tensor:
        """Return a batched tensor inside of the ``vmap`` from an array with one row for each element."""
        return wrap(Batched(self.level, self.size, np.ascontiguousarray(values), True))


def batch_of(op: str, f: Callable[..., Any], *given: Any) -> Batch | None:
    """Return the batch of the innermost ``vmap`` on which ``given`` or the result ``f(given[-1])`` depends.

    Return None if they depend on no ``vmap``, and raise if the batch is empty.
    """
    if enclosing.get() is None:
        return None
    with np.errstate(all="ignore"):
        values = [*tree.leaves(given), *tree.leaves(within(grad_mode, False, f, given[-1]))]
    top = innermost([t._data for t in values if isinstance(t, Tensor)])
    if not isinstance(top, Batched):
        return None
    if not top.size_:
        raise InputError(f"{op}: the batch of ad.vmap is empty.\n  Pass at least one element.")
    return Batch(top)


def solve_each(
    op: str,
    solve: Callable[[Any, Any], Any],
    f: Callable[..., Any],
    x0: Any,
    method: str | None = None,
    sparse: bool = False,
) -> Any:
    """Return ``solve(f, x0)``, a SciPy result; inside ``vmap``, solve for each element of the batch.

    Then ``x_flat`` of the result has one row for each element, ``batch`` is the batch, and ``found`` is an
    array that says which elements converged.  ``op`` is the name of the caller, for errors, ``method`` is
    the name of SciPy's method, and ``sparse`` says whether it gets sparse matrices.
    """
    if special.count and (trace := tracing.get()) is not None:
        return _on_host(op, trace, solve, f, x0, methods_of(op, method, sparse))
    start = tree.map(asarray, x0) if enclosing.get() is not None else x0
    batch = batch_of(op, f, start)
    if batch is None:
        return solve(f, x0)
    found = []
    for i in range(batch.size):
        x = tree.map(lambda t, i=i: batch.element(i, t), start)
        found.append(batch.outside(solve_each, op, solve, batch.function(i, f), x))
    if any(hasattr(r, "batch") for r in found):
        raise InputError(f"{op}: nested ad.vmap is not supported.  Use only one ad.vmap.")
    result = next((r for r in found if not r.success), found[0])
    result.x_flat, result.batch = np.stack([r.x_flat for r in found]), batch
    result.found = np.array([r.success for r in found], bool)
    return result


def _on_host(op: str, trace: Any, solve: Any, f: Callable[..., Any], x0: Any, names: list[str]) -> Any:
    """Add a call of the solver to the program that ``trace`` records; return its symbolic result.

    At each call of the compiled function, Python calls ``solve(f, x0)``, which uses SciPy.  ``names`` are the
    functions that the solver needs, such as "hessian_product"; they are compiled, too.
    """
    flat = FlatTree(op, x0, np.float64)
    start = flat.flatten([t.detach() for t in flat.first])
    vector = start.shape, start.dtype
    methods = traced_methods(f, flat)
    inner = [trace.function(op, methods[n], [vector] * (1 + (n == "hessian_product"))) for n in names]

    def run(functions: Any, x: Any) -> Any:
        patterns = [getattr(methods[n], "pattern", None) for n in names]
        programs = Programs(dict(zip(names, map(_arrays, functions, patterns), strict=True)))
        result = solve(programs, flat.unflatten(asarray(x)))
        return result.x_flat, result.fun, result.success, result.get("status", 0), result.get("nfev", 0)

    shape = () if op == "minimize" else inner[0].specs[0][0]
    specs = [vector, (shape, start.dtype), *[((), np.dtype(kind)) for kind in (bool, np.int64, np.int64)]]
    found = trace.on_host(op, run, inner, [start], specs)
    entries = ("x_flat", "fun", "success", "status", "nfev")
    return partial_result(zip(entries, found, strict=True))


def _arrays(function: Callable[..., Any], pattern: Any) -> Callable[..., Any]:
    """Return a function for SciPy that calls a traced function with arrays.

    It returns new arrays, which SciPy may write into; a sparse matrix if the results are the elements of a
    ``pattern``.
    """

    def call(*given: Any) -> Any:
        found = [np.array(a, np.float64) for a in function(*(np.asarray(v, np.float64) for v in given))]
        if pattern is not None:
            return pattern.csr(found[0])
        first = found[0] if found[0].ndim else float(found[0])
        return first if len(found) == 1 else (first, *found[1:])

    return call
