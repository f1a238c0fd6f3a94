"""SciPy's functions with gradients: an initial value problem, and the density of a distribution."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import adjoint as ad
from benchmarks.engines import PEERS, lacking
from benchmarks.harness import Case, Step, jax_x64

# Lotka-Volterra over 10 units of time by RK45 ---------------------------------------------------------

RATES, START, SPAN = np.array([1.5, 1.0, 3.0, 1.0]), np.array([1.0, 1.0]), (0.0, 10.0)


def prey(xp: Any, y: Any, p: Any) -> Any:
    return xp.stack([y[0] * (p[0] - p[1] * y[1]), y[1] * (p[3] * y[0] - p[2])])


def adjoint_ode() -> Step:
    from adjoint.scipy.integrate import solve_ivp

    def step() -> Any:
        p, y = ad.tensor(RATES, requires_grad=True), ad.tensor(START, requires_grad=True)
        solve_ivp(lambda t, y: prey(ad, y, p), SPAN, y).y[:, -1].sum().backward()
        return p.grad, y.grad

    return step


def torch_ode() -> Step:
    """A loop over the steps that SciPy chose, without the control of steps."""
    import scipy.integrate
    import torch

    times = scipy.integrate.solve_ivp(lambda t, y: np.stack(prey(np, y, RATES)), SPAN, START).t.tolist()
    method = scipy.integrate.RK45
    rows = [method.A[i, :i].tolist() for i in range(len(method.B))]

    def combined(factors: Any, slopes: Any) -> Any:
        pairs = [(c, k) for c, k in zip(factors, slopes, strict=True) if c]
        total = pairs[0][0] * pairs[0][1]
        for c, k in pairs[1:]:
            total = total + c * k
        return total

    def step() -> Any:
        p, start = (torch.tensor(a, requires_grad=True) for a in (RATES, START))
        y = start
        for before, after in itertools.pairwise(times):
            h, slopes = after - before, []
            for row in rows:
                slopes.append(prey(torch, y + h * combined(row, slopes) if row else y, p))
            y = y + h * combined(method.B.tolist(), slopes)
        y.sum().backward()
        return p.grad, start.grad

    return step


# The density of 100,000 numbers ------------------------------------------------------------------------


def adjoint_density() -> Step:
    from adjoint.scipy.stats import norm

    x = ad.tensor(np.random.default_rng(0).standard_normal(100_000))
    f = ad.compile(ad.grad(lambda x, m, s: norm.logpdf(x, m, s).sum(), argnums=(0, 1, 2)))
    m, s = ad.tensor(0.3), ad.tensor(1.4)
    return lambda: f(x, m, s)


def jax_density(compiled: bool) -> Step:
    jax = jax_x64()
    x = jax.numpy.asarray(np.random.default_rng(0).standard_normal(100_000))
    f = jax.grad(lambda x, m, s: jax.scipy.stats.norm.logpdf(x, m, s).sum(), argnums=(0, 1, 2))
    f = jax.jit(f) if compiled else f
    return lambda: jax.block_until_ready(f(x, 0.3, 1.4))


OTHERS = {name: lacking("not written for it") for name in PEERS.split()}

CASES = [
    Case(
        "solve_ivp of Lotka-Volterra, RK45: gradient",
        OTHERS | {"adjoint": adjoint_ode, "torch": torch_ode},
        targets={"torch": 0.3},
        not_compiled="the steps depend on values",
    ),
    Case(
        "stats.norm.logpdf of 100,000 numbers: gradient",
        OTHERS
        | {
            "adjoint": adjoint_density,
            "jax": lambda: jax_density(compiled=False),
            "jax-jit": lambda: jax_density(compiled=True),
        },
        targets={"jax-jit": 0.5},
        not_compiled="the step of adjoint is compiled already",
    ),
]
