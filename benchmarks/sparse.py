"""``python -m benchmarks.sparse``: sparse Jacobians and Hessians beside CasADi, JAX and dense adjoint.

All engines return the values of the nonzero elements.  JAX gets the colours that adjoint has found: products
with the columns of one colour, batched and jit-compiled, then a gather ("hand-compressed").  The time of a
call is the best of interleaved rounds, in one thread; the time of the set-up goes from the function to its
first results.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

import adjoint as ad
from adjoint.sparsity.derivatives import SparseDerivative
from benchmarks.sparse_programs import PROGRAMS, Program

SLOPE_SIZES = {"rosenbrock": (1_000, 10_000, 100_000), "pde": (32, 100, 316)}
DENSE_LIMIT = 4_000  # unknowns: a dense matrix of more takes too long


def array_namespace(module: Any, concat: Any, stack: Any) -> Any:
    """The namespace of programs for a module with NumPy's names."""
    return SimpleNamespace(
        **{name: getattr(module, name) for name in ("exp", "sin", "cos", "log", "sqrt")},
        concat=concat,
        stack=lambda columns: stack(columns, axis=1),
        rows=lambda x, m, n: x.reshape(m, n),
        flat=lambda x: x.reshape(-1),
        border=lambda x: module.pad(x, ((1, 1), (1, 1))),
        total=lambda x: x.sum(),
        sums=lambda x, index, n: module.zeros(n, dtype=x.dtype).at[index].add(x),
    )


def sparse(program: Program) -> SparseDerivative:
    """The sparse derivative of a program by adjoint."""
    xp = array_namespace(ad, ad.concat, ad.stack)
    f = lambda x: program.function(xp, x)
    return (ad.jacobian if program.kind == "jacobian" else ad.hessian)(f, sparse=True)  # type: ignore[return-value]


def of_adjoint(program: Program) -> Callable[[], Any]:
    """A call of adjoint, compiled to native code."""
    compiled, x = ad.compile(sparse(program)), program.start
    for _ in range(3):
        compiled(x)
    return lambda: compiled(x)


def of_dense(program: Program) -> Callable[[], Any]:
    """A call of adjoint's dense derivative, compiled."""
    if len(program.start) > DENSE_LIMIT:
        raise NotImplementedError("too large")
    xp = array_namespace(ad, ad.concat, ad.stack)
    f = lambda x: program.function(xp, x)
    compiled = ad.compile((ad.jacobian if program.kind == "jacobian" else ad.hessian)(f))
    for _ in range(3):
        compiled(program.start)
    return lambda: compiled(program.start)


def plan_of(program: Program) -> Any:
    """The products that adjoint has chosen."""
    derivative, x = sparse(program), program.start
    return derivative.plan(derivative.record((x,), {})[0], (x,), {})


def of_jax(program: Program) -> Callable[[], Any]:
    """A call of JAX with adjoint's colours."""
    import jax

    jax.config.update("jax_enable_x64", True)
    jnp = jax.numpy
    xp = array_namespace(jnp, jnp.concatenate, jnp.stack)
    f = lambda x: program.function(xp, x)
    along = f if program.kind == "jacobian" else jax.grad(f)
    plan = plan_of(program)
    if plan.backward:
        raise NotImplementedError("rows")
    x = jnp.asarray(program.start)
    seeds = jnp.asarray(plan.seeds(False, [ad.tensor(program.start)])[0])
    places = jnp.asarray(plan.blocks([plan.pattern.shape[0]], [len(program.start)])[0][0].places)
    run = jax.jit(lambda x: jax.vmap(jax.linearize(along, x)[1])(seeds).reshape(-1)[places])
    run(x).block_until_ready()
    return lambda: run(x).block_until_ready()


def of_casadi(program: Program) -> Callable[[], Any]:
    """A call of CasADi's own evaluation, with its buffers."""
    import casadi

    x = casadi.SX.sym("x", len(program.start))

    xp = SimpleNamespace(
        **{name: getattr(casadi, name) for name in ("exp", "sin", "cos", "log", "sqrt")},
        concat=lambda parts: casadi.vertcat(*parts),
        stack=lambda columns: casadi.horzcat(*columns),
        rows=lambda v, m, n: casadi.reshape(v, n, m).T,
        flat=lambda v: casadi.reshape(v.T, -1, 1),
        border=lambda v: casadi.horzcat(
            casadi.SX(v.shape[0] + 2, 1),
            casadi.vertcat(casadi.SX(1, v.shape[1]), v, casadi.SX(1, v.shape[1])),
            casadi.SX(v.shape[0] + 2, 1),
        ),
        total=lambda v: casadi.sum1(casadi.sum2(v)),
        sums=lambda v, index, n: casadi.mtimes(_summing(casadi, index, n), v),
    )
    y = program.function(xp, _Listed(x))
    found = casadi.jacobian(y, x) if program.kind == "jacobian" else casadi.hessian(y, x)[0]
    run = casadi.Function("derivative", [x], [found])
    start, out = np.ascontiguousarray(program.start), np.zeros(found.nnz())
    buffer, trigger = run.buffer()
    buffer.set_arg(0, memoryview(start))
    buffer.set_res(0, memoryview(out))
    trigger()
    return lambda: (trigger(), out, run, buffer, start)  # the trigger does not keep them alive


def _summing(casadi: Any, index: np.ndarray[Any, Any], n: int) -> Any:
    """The matrix that sums elements by their index."""
    return casadi.DM.triplet(index.tolist(), list(range(len(index))), [1.0] * len(index), n, len(index))


class _Listed:
    """The vector of unknowns, with indices of NumPy."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __getitem__(self, key: Any) -> Any:
        return self.held[key.tolist() if isinstance(key, np.ndarray) else key]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.held, name)


ENGINES: dict[str, Callable[[Program], Callable[[], Any]]] = {
    "adjoint": of_adjoint, "CasADi": of_casadi, "JAX": of_jax, "dense adjoint": of_dense,
}  # fmt: skip


def measure(program: Program, rounds: int) -> dict[str, Any]:
    """The set-up time and the best time of a call of each engine, in seconds, interleaved."""
    calls, setup, best = {}, {}, {}
    for name, build in ENGINES.items():
        begin = time.perf_counter()
        try:
            calls[name] = build(program)
        except (ImportError, NotImplementedError):
            continue
        setup[name] = time.perf_counter() - begin
        best[name] = math.inf
    for _ in range(rounds):
        for name, call in calls.items():
            for _ in range(max(1, min(20, int(0.01 / best[name])))):
                best[name] = min(best[name], _timed(call))
    plan = plan_of(program)
    return {
        "program": program.name, "entries": int(plan.pattern.nnz), "products": plan.count,
        "setup": setup, "call": best,
    }  # fmt: skip


def slope(name: str, rounds: int) -> float:
    """The slope of the time of a call against the number of unknowns, on logarithmic axes."""
    sizes, times = [], []
    for size in SLOPE_SIZES[name]:
        program = PROGRAMS[name](size)
        call = of_adjoint(program)
        sizes.append(len(program.start))
        times.append(min(_timed(call) for _ in range(rounds)))
    return math.log(times[-1] / times[0]) / math.log(sizes[-1] / sizes[0])


def _timed(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="programs; the default is all")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    ad.config.set_threads(1)
    for name in options.names or PROGRAMS:
        found = measure(PROGRAMS[name](), options.rounds)
        if name in SLOPE_SIZES:
            found["slope"] = slope(name, options.rounds)
        if options.json:
            print(json.dumps(found), flush=True)
            continue
        print(f"{found['program']}: {found['entries']} entries, {found['products']} products", flush=True)
        for engine, seconds in found["call"].items():
            ratio = found["call"]["adjoint"] / seconds
            times = f"{seconds * 1e3:9.3f} ms   set-up {found['setup'][engine]:7.2f} s"
            print(f"  {engine:14} {times}   adjoint: {ratio:.2f}")
        if "slope" in found:
            print(f"  slope of the time of a call against unknowns: {found['slope']:.2f}", flush=True)


if __name__ == "__main__":
    main()
