"""Programs of science: filters, Gaussian processes, fits, differential equations, graphs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse

import adjoint as ad
from benchmarks.harness import Case, Step
from benchmarks.realistic.program import Framework, program

Loss = Callable[..., Any]


def gradient(loss: Callable[[Framework], Loss], arrays: Callable[[], list[Any]], count: int) -> Any:
    """Build a step that returns the value and the gradients of the first ``count`` arrays."""

    def both(framework: Framework) -> Step:
        f = loss(framework)
        values = framework.tensors(*arrays())
        if framework.ours:
            step = framework.compile(ad.value_and_grad(f, argnums=tuple(range(count))))
            return lambda: step(*values)
        for v in values[:count]:
            v.requires_grad_()

        def step_of_torch() -> Any:
            value = f(*values)
            return [value, *framework.lib.autograd.grad(value, values[:count])]

        return step_of_torch

    return both


def gradient_of_jax(loss: Callable[[Any], Loss], arrays: Callable[[], list[Any]], count: int) -> Any:
    """The same for JAX."""

    def build(jax: Any) -> Step:
        run = jax.jit(jax.value_and_grad(loss(jax), argnums=tuple(range(count))))
        values = [jax.numpy.asarray(a) for a in arrays()]
        return lambda: jax.block_until_ready(run(*values))

    return build


def differentiated(
    name: str, loss: Any, arrays: Any, count: int, jax: Any = None, torch: Any = None, **options: Any
) -> Case:
    """A case of a loss and its gradients; ``loss`` gets a framework, ``jax`` and ``torch`` get modules."""
    given = None if jax is None else gradient_of_jax(jax, arrays, count)
    peer = None if torch is None else gradient(torch, arrays, count)
    return program(name, gradient(loss, arrays, count), given, peer, compared=1, **options)


def normal(*shapes: tuple[int, ...], dtype: Any = np.float64) -> list[Any]:
    """Random arrays."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


# Least squares, slices ----------------------------------------------------------------------------------


def least_squares(_: Any) -> Loss:
    return lambda w, x, y: ((x @ w - y) ** 2).mean()


def logistic(framework: Framework) -> Loss:
    F = framework.F
    return lambda w, x, y: F.binary_cross_entropy_with_logits(x @ w, y)


def logistic_of_jax(jax: Any) -> Loss:
    def loss(w: Any, x: Any, y: Any) -> Any:
        z = x @ w
        return jax.numpy.mean(jax.numpy.logaddexp(z, 0.0) - y * z)

    return loss


def classes(n: int, k: int) -> list[Any]:
    w, x, y = normal((k,), (n, k), (n,))
    return [0.1 * w, x, (y > 0).astype(float)]


def fit(run: Any) -> Step:
    """Twenty steps of SciPy's L-BFGS-B; ``run`` returns the loss and its gradient."""
    start, options = classes(20_000, 50)[0], {"maxiter": 20}
    return lambda: scipy.optimize.minimize(run, start, jac=True, method="L-BFGS-B", options=options).x


def fitted(framework: Framework) -> Step:
    lib, loss = framework.lib, logistic(framework)
    if framework.ours:
        _, x, y = classes(20_000, 50)
        return fit(framework.compile(ad.value_and_grad(lambda w: loss(w, x, y))))
    x, y = framework.tensors(*classes(20_000, 50)[1:])

    def run(w: Any) -> Any:
        w = lib.tensor(w, requires_grad=True)
        value = loss(w, x, y)
        value.backward()
        return value.item(), w.grad.numpy()

    return fit(run)


def fitted_in_jax(jax: Any) -> Step:
    x, y = map(jax.numpy.asarray, classes(20_000, 50)[1:])
    loss = logistic_of_jax(jax)
    return fit(jax.jit(jax.value_and_grad(lambda w: loss(w, x, y))))


def slices(_: Any) -> Loss:
    return lambda x: ((x[1:] - x[:-1]) ** 2).sum()


# Kalman filter ------------------------------------------------------------------------------------------


def kalman_arrays() -> list[Any]:
    a, ys = normal((4, 4), (200, 2))
    return [0.9 * np.eye(4) + 0.05 * a, ys]


def kalman_step(xp: Any, eye: Any, h: Any, a: Any) -> Callable[..., Any]:
    """One prediction and correction."""

    def step(state: Any, y: Any) -> Any:
        m, p = state
        m, p = a @ m, a @ p @ a.T + 0.1 * eye
        s = h @ p @ h.T + 0.2 * eye[:2, :2]
        gain = xp.linalg.solve(s, h @ p).T
        error = y - h @ m
        m, p = m + gain @ error, p - gain @ (h @ p)
        score = 0.5 * (error * xp.linalg.solve(s, error)).sum() + 0.5 * xp.linalg.slogdet(s)[1]
        return (m, p), score

    return step


OBSERVED = np.eye(4)[:2]


def kalman(framework: Framework) -> Loss:
    eye, h = framework.tensors(np.eye(4), OBSERVED)
    start = framework.tensors(np.zeros(4), np.eye(4))

    def loss(a: Any, ys: Any) -> Any:
        step = kalman_step(framework.lib, eye, h, a)
        if framework.ours:
            return ad.scan(step, tuple(start), ys)[1].sum()
        state, scores = tuple(start), []
        for y in ys:
            state, score = step(state, y)
            scores.append(score)
        return framework.lib.stack(scores).sum()

    return loss


def kalman_of_jax(jax: Any) -> Loss:
    jnp = jax.numpy

    def loss(a: Any, ys: Any) -> Any:
        step = kalman_step(jnp, jnp.eye(4), jnp.asarray(OBSERVED), a)
        return jax.lax.scan(step, (jnp.zeros(4), jnp.eye(4)), ys)[1].sum()

    return loss


# Gaussian process ---------------------------------------------------------------------------------------


def process(xp: Any, cholesky: Any, solve: Any, n: int) -> Loss:
    def loss(theta: Any, x: Any, y: Any) -> Any:
        d = (x[:, None] - x[None, :]) * xp.exp(-theta[0])
        k = xp.exp(theta[1] - 0.5 * d * d) + xp.exp(theta[2]) * xp.eye(n, dtype=x.dtype)
        factor = cholesky(k)
        z = solve(factor, y)
        return 0.5 * (z * z).sum() + xp.log(xp.diagonal(factor)).sum()

    return loss


def gp(framework: Framework) -> Loss:
    lib, n = framework.lib, 500
    if framework.ours:
        solve = lambda f, y: ad.linalg.solve_triangular(f, y, lower=True)
    else:
        solve = lambda f, y: lib.linalg.solve_triangular(f, y[:, None], upper=False)[:, 0]
    return process(lib, lib.linalg.cholesky, solve, n)


def gp_of_jax(jax: Any) -> Loss:
    solve = lambda f, y: jax.scipy.linalg.solve_triangular(f, y, lower=True)
    return process(jax.numpy, jax.numpy.linalg.cholesky, solve, 500)


def gp_arrays() -> list[Any]:
    x = np.sort(np.random.default_rng(0).uniform(0, 20, 500))
    return [np.array([0.0, 0.0, -2.0]), x, np.sin(x) + 0.1 * normal((500,))[0]]


# Deconvolution by FFT -----------------------------------------------------------------------------------


def deconvolution(framework: Framework) -> Loss:
    fft, lib = framework.lib.fft, framework.lib

    def loss(x: Any, kernel: Any, seen: Any) -> Any:
        blurred = fft.irfft2(fft.rfft2(x) * fft.rfft2(kernel))
        return ((blurred - seen) ** 2).mean() + 1e-3 * lib.abs(x[1:] - x[:-1]).mean()

    return loss


def deconvolution_of_jax(jax: Any) -> Loss:
    return deconvolution(Framework(jax.numpy, lambda f: f))


# The wave equation --------------------------------------------------------------------------------------

STEPS, POINTS = 500, 200


def wave_arrays() -> list[Any]:
    grid = np.linspace(0, 1, POINTS)
    return [np.exp(-200 * (grid - 0.5) ** 2), np.full(POINTS, 0.5)]


def wave_step(xp: Any, c: Any) -> Callable[..., Any]:
    def step(state: Any, _: Any = None) -> Any:
        now, before = state
        bend = xp.roll(now, 1, 0) - 2 * now + xp.roll(now, -1, 0)
        new = 2 * now - before + c * c * bend
        return (new, now), None

    return step


def wave(framework: Framework) -> Loss:
    lib = framework.lib

    def loss(start: Any, c: Any) -> Any:
        step = wave_step(lib, c)
        if framework.ours:
            (last, _), _ = ad.scan(step, (start, start), None, length=STEPS)
            return (last * last).sum()
        state = (start, start)
        for _ in range(STEPS):
            state, _ = step(state)
        return (state[0] * state[0]).sum()

    return loss


def wave_of_jax(jax: Any) -> Loss:
    def loss(start: Any, c: Any) -> Any:
        (last, _), _ = jax.lax.scan(wave_step(jax.numpy, c), (start, start), None, length=STEPS)
        return (last * last).sum()

    return loss


def wave_by_fori(framework: Framework) -> Loss:
    lib = framework.lib

    def loss(start: Any, c: Any) -> Any:
        step = wave_step(lib, c)
        return (ad.fori_loop(0, STEPS, lambda k, s: step(s)[0], (start, start))[0] ** 2).sum()

    return loss if framework.ours else wave(framework)


def wave_by_fori_of_jax(jax: Any) -> Loss:
    def loss(start: Any, c: Any) -> Any:
        step = wave_step(jax.numpy, c)
        # fori_loop has no reverse mode for a number of steps that is not known; scan is what users write
        (last, _), _ = jax.lax.scan(lambda s, _: step(s), (start, start), None, length=STEPS)
        return (last**2).sum()

    return loss


def wave_by_set(framework: Framework) -> Loss:
    """The ends are fixed: only the inner points are set."""
    lib = framework.lib

    def inner(now: Any, before: Any, c: Any) -> Any:
        bend = now[2:] - 2 * now[1:-1] + now[:-2]
        return 2 * now[1:-1] - before[1:-1] + c[1:-1] * c[1:-1] * bend

    def loss(start: Any, c: Any) -> Any:
        if framework.ours:
            step = lambda s, _: ((s[0].at[1:-1].set(inner(*s, c)), s[0]), None)
            return (ad.scan(step, (start, start), None, length=STEPS)[0][0] ** 2).sum()
        now = before = start
        for _ in range(STEPS):
            now, before = lib.cat([now[:1], inner(now, before, c), now[-1:]]), now
        return (now * now).sum()

    return loss


def wave_by_set_of_jax(jax: Any) -> Loss:
    def loss(start: Any, c: Any) -> Any:
        def step(s: Any, _: Any) -> Any:
            now, before = s
            bend = now[2:] - 2 * now[1:-1] + now[:-2]
            new = 2 * now[1:-1] - before[1:-1] + c[1:-1] * c[1:-1] * bend
            return (now.at[1:-1].set(new), now), None

        return (jax.lax.scan(step, (start, start), None, length=STEPS)[0][0] ** 2).sum()

    return loss


# A graph network ----------------------------------------------------------------------------------------

NODES, EDGES = 2708, 10556


def graph() -> list[Any]:
    rng = np.random.default_rng(0)
    a, b, x = normal((64, 32), (32, 7), (NODES, 64), dtype=np.float32)
    edges = rng.integers(0, NODES, (2, EDGES))
    return [0.1 * a, 0.1 * b, x, edges[0], edges[1]]


Gathered = Callable[[Any, Any, Any], Any]  # sums the rows of an array over the edges, given their two ends


def convolved(gathered: Gathered, relu: Any) -> Loss:
    def loss(a: Any, b: Any, x: Any, source: Any, target: Any) -> Any:
        h = relu(gathered(x @ a, source, target))
        return (gathered(h @ b, source, target) ** 2).mean()

    return loss


def by_adding(framework: Framework) -> Loss:
    """Sums by ``at[].add`` or ``index_add``."""
    lib = framework.lib

    def gathered(h: Any, source: Any, target: Any) -> Any:
        zeros = lib.zeros((NODES, h.shape[1]), dtype=h.dtype)
        if framework.ours:
            return zeros.at[target].add(h[source])
        return zeros.index_add(0, target, h[source])

    return convolved(gathered, framework.F.relu)


def by_adding_in_jax(jax: Any) -> Loss:
    def gathered(h: Any, source: Any, target: Any) -> Any:
        return jax.numpy.zeros((NODES, h.shape[1]), h.dtype).at[target].add(h[source])

    return convolved(gathered, jax.nn.relu)


def by_segments(framework: Framework) -> Loss:
    """Sums by ``scatter_reduce``."""
    lib = framework.lib

    def gathered(h: Any, source: Any, target: Any) -> Any:
        places = lib.broadcast_to(target[:, None], (EDGES, h.shape[1]))
        zeros = lib.zeros((NODES, h.shape[1]), dtype=h.dtype)
        return lib.scatter_reduce(zeros, 0, places, h[source], "sum")

    return convolved(gathered, framework.F.relu)


def by_segments_in_jax(jax: Any) -> Loss:
    return convolved(lambda h, s, t: jax.ops.segment_sum(h[s], t, NODES), jax.nn.relu)


def adjacency() -> Any:
    """The edges as a sparse matrix of SciPy."""
    source, target = graph()[3:]
    return scipy.sparse.csr_array((np.ones(EDGES, np.float32), (target, source)), shape=(NODES, NODES))


def by_matrix(framework: Framework) -> Loss:
    """Products with a sparse matrix."""
    matrix = adjacency()
    if not framework.ours:
        parts = map(framework.lib.from_numpy, (matrix.indptr, matrix.indices, matrix.data))
        matrix = framework.lib.sparse_csr_tensor(*parts, size=matrix.shape)
    return convolved(lambda h, *_: matrix @ h, framework.F.relu)


def by_matrix_in_jax(jax: Any) -> Loss:
    sparse = importlib.import_module("jax.experimental.sparse")
    matrix = sparse.BCOO.from_scipy_sparse(adjacency())
    return convolved(lambda h, *_: matrix @ h, jax.nn.relu)


# A small Hessian ----------------------------------------------------------------------------------------


def rosenbrock(x: Any) -> Any:
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def small_hessian(framework: Framework) -> Step:
    (x,) = framework.tensors(normal((10,))[0])
    if framework.ours:
        step = framework.compile(ad.hessian(rosenbrock))
        return lambda: step(x)
    return lambda: framework.lib.func.hessian(rosenbrock)(x)


def small_hessian_of_jax(jax: Any) -> Step:
    step, x = jax.jit(jax.hessian(rosenbrock)), jax.numpy.asarray(normal((10,))[0])
    return lambda: jax.block_until_ready(step(x))


def tall(n: int) -> Callable[[], list[Any]]:
    return lambda: normal((50,), (n, 50), (n,))


CASES = [
    *(
        differentiated(f"X @ w with gradient, {n:,}×50", least_squares, tall(n), 1, least_squares)
        for n in (20_000, 100_000)
    ),
    differentiated(
        "logistic loss and gradient, 100,000×50", logistic, lambda: classes(100_000, 50), 1, logistic_of_jax
    ),
    *(
        differentiated(f"slices of {n:,} numbers", slices, lambda n=n: normal((n,)), 1, slices)
        for n in (10_000, 10_001)
    ),
    differentiated("Kalman filter by scan, 200 steps", kalman, kalman_arrays, 1, kalman_of_jax),
    differentiated("GP, n = 500", gp, gp_arrays, 1, gp_of_jax),
    differentiated(
        "deconvolution by FFT, 256²", deconvolution, lambda: normal((256, 256), (256, 256), (256, 256)), 1,
        deconvolution_of_jax,
    ),
    differentiated("wave equation by scan, 500 steps", wave, wave_arrays, 2, wave_of_jax),
    differentiated(
        "wave equation by fori_loop, 500 steps", wave_by_fori, wave_arrays, 2, wave_by_fori_of_jax
    ),
    differentiated("wave equation by at-set, 500 steps", wave_by_set, wave_arrays, 2, wave_by_set_of_jax),
    differentiated("GCN of 2,708 nodes, at-add", by_adding, graph, 2, by_adding_in_jax),
    differentiated("GCN of 2,708 nodes, scatter", by_segments, graph, 2, by_segments_in_jax),
    differentiated("GCN of 2,708 nodes, sparse matrix", by_matrix, graph, 2, by_matrix_in_jax),
    program("logistic regression by L-BFGS, 20,000×50", fitted, fitted_in_jax, compared=1),
    program("Hessian of 10 numbers", small_hessian, small_hessian_of_jax, compared=1),
]  # fmt: skip
