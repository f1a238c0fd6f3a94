"""Sparse Jacobians and Hessians: a few products with vectors, which the colours of a pattern choose."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint import tree
from adjoint.compiler.api.compile import Compiled
from adjoint.compiler.emit.machine import has_llvm
from adjoint.compiler.program.symbols import EXACT
from adjoint.context import enclosing, grad_mode, tracing, user_code, within
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import ArgumentError
from adjoint.scipy.sparse.arrays import SparseArray
from adjoint.sparsity.entries import entries, needed_for
from adjoint.sparsity.plan import MODES, Plan, hessian_plan, jacobian_plan
from adjoint.sparsity.traced import innermost_trace, pattern_apart, pattern_of_run
from adjoint.tracebacks import door
from adjoint.transforms.arrays import given_arrays, outermost, returned
from adjoint.transforms.batch import vmap
from adjoint.transforms.inputs import Recorded, check_argnums, name_of, record_call, released_value
from adjoint.transforms.linear import pull_back, push_along
from adjoint.transforms.matrix import choose_mode, packed
from adjoint.transforms.reverse import gradient_function

__all__ = ["SparseDerivative"]


class SparseDerivative:
    """A function that computes a sparse Jacobian or Hessian.

    Its pattern and colours belong to a compiled program, and are used while the guards of the program hold.

    Parameters
    ----------
    transform : {"jacobian", "hessian"}
        What is computed.
    f : callable
        The function.
    argnums : int or tuple of int
        The positions of the arguments to differentiate with respect to.
    has_aux : bool
        Whether ``f`` returns ``(result, aux)``.
    chunk_size : int or None
        The number of products computed at once.
    holomorphic : bool
        Whether complex arguments are accepted.
    mode : bool or str
        True or one of ``MODES``.
    """

    def __init__(
        self,
        transform: str,
        f: Callable[..., Any],
        argnums: int | Sequence[int],
        has_aux: bool,
        chunk_size: int | None,
        holomorphic: bool,
        mode: Any,
    ) -> None:
        allowed = (True, *MODES) if transform == "jacobian" else (True,)
        if not any(mode is m or (isinstance(mode, str) and mode == m) for m in allowed):
            raise ArgumentError(
                f"{transform}: sparse must be False or {' or '.join(map(repr, allowed))}, but got {mode!r}."
            )
        functools.update_wrapper(self, f, assigned=("__module__", "__name__", "__qualname__"), updated=())
        self.transform, self.f, self.argnums, self.has_aux = transform, f, argnums, has_aux
        self.chunk_size, self.holomorphic, self.mode = chunk_size, holomorphic, mode
        self._plan: Plan | None = None  # set where the function cannot change between calls
        self._options: tuple[Any, ...] = ((), "replay", 8, False)  # of ad.compile

    @functools.cached_property
    def quick(self) -> Compiled[..., Any]:
        """The compiled function without kept zeros."""
        return Compiled(self._quickly, *self._options)

    @functools.cached_property
    def exact(self) -> Compiled[..., Any]:
        """The compiled function with kept zeros."""
        return Compiled(self._exactly, *self._options)

    def __compiled__(self, *options: Any) -> SparseDerivative:
        """Return this derivative with other options of ``ad.compile``."""
        found = self._copy()
        found._options = options
        return found

    def _copy(self) -> SparseDerivative:
        """Return a copy without compiled functions."""
        found = copy.copy(self)
        for name in ("quick", "exact"):
            found.__dict__.pop(name, None)
        return found

    @door
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the derivative at these arguments."""
        if tracing.get() is not None or enclosing.get() is not None:
            return self._matrix(args, kwargs, False, has_llvm())[0]
        found, has_nan = self.quick(*args, **kwargs)
        if has_nan:
            found = self.exact(*args, **kwargs)
        if not grad_mode.get() and outermost() and given_arrays(args, kwargs):
            return returned(found)  # a captured tensor requires grad, but nothing is recorded
        return found

    def fixed(self, *args: Any) -> Callable[..., Any]:
        """Return this derivative as a function of arguments of the same shapes.

        The pattern is found now.  The function must not change as long as the derivative is used.
        """
        found = self._copy()
        found._plan = self.plan(self.record(args, {})[0], args, {})
        return found._exactly

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return this function bound to ``instance``, as for a method."""
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name: str) -> Any:
        """Return ``stats``, ``program``, ``explain`` or ``clear`` of the compiled function."""
        if name in ("stats", "program", "explain", "clear"):
            return getattr(self.quick, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def _exactly(self, *args: Any, **kwargs: Any) -> Any:
        """Return the derivative, in which zeros are kept where other derivatives are infinite."""
        return self._matrix(args, kwargs, False, self._native())[0]

    def _quickly(self, *args: Any, **kwargs: Any) -> Any:
        """Return the derivative, and whether it has NaN, which ``_exactly`` may not have.

        A zero in a product is NaN where a derivative in the same row is infinite.
        """
        return self._matrix(args, kwargs, True, self._native())

    def _native(self) -> bool:
        """Return whether the programs of this derivative become native code."""
        return self._options[1] != "replay" and has_llvm()

    def _matrix(self, args: Any, kwargs: Any, quick: bool, native: bool) -> tuple[Any, Any]:
        """Return the derivative, as ``SparseArray`` objects, and whether zeros of it may be NaN.

        Native code computes the entries without storing the products, which NumPy takes longer for.
        """
        trace = innermost_trace()
        before = None if trace is None else trace.mark()
        run, structures = self.record(args, kwargs)
        keep = not quick or run.outer or trace is None or any(map(len, trace.since(before)))
        plan = self.plan(run, args, kwargs)
        both = keep and native and trace and not (run.outer or trace.alone) and plan.forward > 0

        def built() -> tuple[Any, Any]:
            several = isinstance(self.argnums, (tuple, list))
            rows = self._blocks(run, plan, keep and not both, native)
            if both:
                rows = _unless_nan(trace, rows, self._blocks(run, plan, True, False))
            found = tree.unflatten(run.structure, [packed(row, structures, several) for row in rows])
            flags = [_has_nan(block) for row in rows for block in row if not keep]
            has_nan = functools.reduce(rec.logical_or, flags) if flags else wrap(np.asarray(False))
            return ((found, released_value(run, run.aux)) if self.has_aux else found), has_nan

        if run.outer or enclosing.get() is not None:
            return built()
        return within(grad_mode, False, built)

    def record(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Recorded, list[tree.Structure]]:
        """Run the function and record it; return the run, and the structures of the arguments."""
        positions = check_argnums(self.transform, self.argnums, len(args))
        f = user_code(self, "f")
        if self.transform == "hessian":
            f = gradient_function("hessian", f, self.argnums, self.has_aux)
        return record_call(self.transform, f, args, kwargs, positions, self.has_aux)

    def pattern(self, run: Recorded, args: Any, kwargs: Any) -> Any:
        """Return the pattern of the derivative of a run of the function with these arguments."""
        trace = innermost_trace()
        if trace is not None:
            return pattern_of_run(trace, run)
        return pattern_apart(lambda *a, **k: self.record(a, k)[0], args, kwargs)

    def plan(self, run: Recorded, args: Any, kwargs: Any) -> Plan:
        """Return the products that give the derivative."""
        if self._plan is not None:
            return self._plan
        reverse = {"rows": True, "columns": False}.get(self.mode) if isinstance(self.mode, str) else None
        choose_mode(self.transform, self.f, run, self.holomorphic, reverse)
        pattern = self.pattern(run, args, kwargs)
        inputs, outputs = [x.shape for x in run.inputs], [y.shape for y in run.outputs]
        if self.transform == "hessian":
            return hessian_plan(pattern, inputs)
        real = not any(x.dtype.kind == "c" for x in run.inputs)
        only_columns = real and any(y.dtype.kind == "c" for y in run.outputs)
        mode = "columns" if only_columns else self.mode
        return jacobian_plan(pattern, mode, outputs, inputs, name_of(self.f))

    def _blocks(self, run: Recorded, plan: Plan, keep: bool, native: bool) -> list[list[SparseArray]]:
        """Return the derivative of each output by each input; ``keep`` is that of ``push_along``."""
        push = lambda *tangents: push_along(run, tangents, keep)
        kinds = [("columns", push, plan.seeds(False, run.inputs))] if plan.forward else []
        if plan.backward:
            kinds.append(("rows", functools.partial(_pulled, run), plan.seeds(True, run.outputs)))
        trace = innermost_trace()
        if trace is None:
            return self._read(run, plan, [(kind, f, [*map(wrap, seeds)]) for kind, f, seeds in kinds])
        kept: list[Tensor] = []
        with trace.folding([x for *_, seeds in kinds for x in seeds], kept) as symbols:
            start, rest = len(trace.program.body), map(wrap, symbols)
            given = [(kind, f, [*itertools.islice(rest, len(seeds))]) for kind, f, seeds in kinds]
            found = self._read(run, plan, given, trace if native else None)
            kept += [block.data for row in found for block in row]
            trace.program.body[start:] = needed_for(trace.program.body[start:], map(trace.value, kept))
        return found

    def _read(self, run: Recorded, plan: Plan, kinds: Any, trace: Any = None) -> list[list[SparseArray]]:
        """Return the blocks; ``kinds`` has kinds of products, functions that compute them, and vectors."""
        products: dict[tuple[str, int], Any] = {}
        for kind, f, vectors in kinds:
            for k, t in enumerate(vmap(f, chunk_size=self.chunk_size)(*vectors)):
                products[kind, k] = rec.reshape(t, shape=(t.size,))
        sizes = [y.size for y in run.outputs], [x.size for x in run.inputs]
        found = []
        for out, line in zip(run.outputs, plan.blocks(*sizes), strict=True):
            row = []
            for x, block in zip(run.inputs, line, strict=True):
                dtype = np.result_type(out.dtype, x.dtype) if x.dtype.kind == "c" else out.dtype
                values = [products[name] for name in block.pieces]
                if not values:
                    row.append(SparseArray.of(wrap(np.zeros(0, dtype)), block.pattern))
                    continue
                whole = values[0] if len(values) == 1 else rec.concat(*values, axis=-1)
                if trace is None or whole.requires_grad:
                    data = rec.index(whole, key=(block.places, ...))
                else:
                    data = entries(trace, whole, block.places)
                row.append(SparseArray.of(data, block.pattern))
            found.append(row)
        return found


def _pulled(run: Recorded, *cotangents: Tensor) -> list[Tensor]:
    """Return the derivatives of the inputs of a run along cotangents of its outputs."""
    found = pull_back(run, cotangents, retain=True)
    if any(out.dtype.kind == "c" for out in run.outputs):  # a gradient is the conjugate of the derivative
        found = [rec.conj(g) if g.dtype.kind == "c" else g for g in found]
    return found


def _unless_nan(trace: Any, quick: list[list[SparseArray]], exact: list[list[SparseArray]]) -> Any:
    """Return the blocks ``quick``; those of ``exact`` in calls where ``quick`` has a NaN."""
    found = [trace.value(q.data) for row in quick for q in row if q.nnz]
    flag = found[0].any_nan(found) if found else None

    def chosen(q: SparseArray, e: SparseArray) -> SparseArray:
        if not q.nnz:
            return q
        values = flag, trace.value(q.data), trace.value(e.data)
        (found,) = trace.call_host(EXACT, values, [(q.data.shape, q.data.dtype)])
        return SparseArray.of(wrap(found), q.pattern)

    return [[chosen(q, e) for q, e in zip(*pair, strict=True)] for pair in zip(quick, exact, strict=True)]


def _has_nan(block: SparseArray) -> Tensor:
    found: Tensor = rec.any(rec.isnan(block.data), axis=(-1,), keepdims=False)
    return found
