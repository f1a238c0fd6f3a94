"""Loops and whole trainings in one call: an ODE by components, an epoch with its optimiser, an ensemble."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import adjoint as ad
from benchmarks.cases.compiled import case
from benchmarks.harness import Step, jax_x64

# 200 Runge-Kutta steps by components, value and gradient ----------------------------------------------

START = (1.1, 0.4, 1.0, 0.7)


def orbit(scan: Any) -> Any:
    """The loss of predators and their prey, as a function of two rates and the start."""

    def field(x: Any, y: Any, a: Any, b: Any) -> Any:
        return a * x - b * x * y, b * x * y - 1.2 * y

    def loss(a: Any, b: Any, x: Any, y: Any) -> Any:
        h = 0.01

        def step(state: Any, _: Any) -> Any:
            x, y = state
            k1 = field(x, y, a, b)
            k2 = field(x + h / 2 * k1[0], y + h / 2 * k1[1], a, b)
            k3 = field(x + h / 2 * k2[0], y + h / 2 * k2[1], a, b)
            k4 = field(x + h * k3[0], y + h * k3[1], a, b)
            new = [z + h / 6 * (p + 2 * q + 2 * r + s)
                   for z, p, q, r, s in zip(state, k1, k2, k3, k4, strict=True)]  # fmt: skip
            return tuple(new), new[0]

        (x, y), path = scan(step, (x, y), None, length=200)
        return x * x + y + (path * path).sum()

    return loss


def adjoint_orbit() -> Step:
    both = ad.value_and_grad(orbit(ad.scan), argnums=(0, 1, 2, 3))
    values = [ad.tensor(v) for v in START]
    return lambda: both(*values)


def jax_orbit() -> Step:
    jax = jax_x64()
    both = jax.jit(jax.value_and_grad(orbit(jax.lax.scan), argnums=(0, 1, 2, 3)))
    values = [jax.numpy.asarray(v) for v in START]
    return lambda: jax.block_until_ready(both(*values))


def torch_orbit() -> Step:
    import torch

    def scan(body: Any, state: Any, _: Any, length: int) -> Any:
        found = []
        for _step in range(length):
            state, y = body(state, None)
            found.append(y)
        return state, torch.stack(found)

    loss = orbit(scan)
    values = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in START]

    def step() -> Any:
        value = loss(*values)
        return [value, *torch.autograd.grad(value, values)]

    return step


# An epoch of a classifier of digits: 57 batches of 32, Adam ---------------------------------------------

SIZES, BATCHES, BATCH = (64, 128, 10), 57, 32


def digits() -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    x = rng.random((BATCHES * BATCH, SIZES[0]), np.float32)
    y = rng.integers(0, SIZES[-1], len(x))
    order = rng.permutation(len(x)).reshape(BATCHES, BATCH)
    params = []
    for m, n in itertools.pairwise(SIZES):
        params += [(rng.standard_normal((n, m)) / np.sqrt(m)).astype(np.float32), np.zeros(n, np.float32)]
    return params, x, y, order


def adjoint_epoch() -> Step:
    F = ad.nn.functional
    start, *data = digits()
    params = [ad.tensor(a, requires_grad=True) for a in start]
    x, y, order = map(ad.tensor, data)
    optimizer = ad.optim.Adam(params, lr=1e-3)

    def step(carry: Any, rows: Any) -> Any:
        optimizer.zero_grad()
        hidden = F.relu(F.linear(x[rows], params[0], params[1]))
        loss = F.cross_entropy(F.linear(hidden, params[2], params[3]), y[rows])
        loss.backward()
        optimizer.step()
        return carry, loss.detach()

    return lambda: ad.scan(step, (), order)[1]


def jax_epoch() -> Step:
    from benchmarks.cases.training import adam

    jax = jax_x64()
    jnp = jax.numpy
    start, *data = digits()
    x, y, order = map(jnp.asarray, data)
    params = [jnp.asarray(a) for a in start]

    def loss(p: Any, x: Any, y: Any) -> Any:
        z = jax.nn.relu(x @ p[0].T + p[1]) @ p[2].T + p[3]
        return -jnp.take_along_axis(jax.nn.log_softmax(z), y[:, None], 1).mean()

    def step(state: Any, rows: Any) -> Any:
        p, m, v, n = state
        value, g = jax.value_and_grad(loss)(p, x[rows], y[rows])
        return (*adam(p, g, m, v, n + 1, jnp.sqrt), n + 1), value

    run = jax.jit(lambda state: jax.lax.scan(step, state, order), donate_argnums=0)
    zeros = lambda: [jnp.zeros_like(a) for a in params]
    state = params, zeros(), zeros(), jnp.zeros((), jnp.float32)

    def epoch() -> Any:
        nonlocal state
        state, losses = run(state)
        return jax.block_until_ready(losses)

    return epoch


def torch_epoch() -> Step:
    import torch

    F = torch.nn.functional
    start, *data = digits()
    params = [torch.tensor(a, requires_grad=True) for a in start]
    x, y, order = map(torch.tensor, data)
    optimizer = torch.optim.Adam(params, lr=1e-3)

    def epoch() -> Any:
        losses = []
        for rows in order:
            optimizer.zero_grad()
            hidden = F.relu(F.linear(x[rows], params[0], params[1]))
            loss = F.cross_entropy(F.linear(hidden, params[2], params[3]), y[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    return epoch


# An ensemble of 100 nets 8-16-16-1 with a rate each, Adam ------------------------------------------------

NETS = 100


def ensemble(xp: Any, value_and_grad: Any, vmap: Any) -> Any:
    """One update of all nets."""
    from benchmarks.cases.training import adam

    def loss(p: Any, x: Any, y: Any) -> Any:
        for i in (0, 2):
            x = xp.tanh(x @ p[i] + p[i + 1])
        return ((x @ p[4] + p[5] - y) ** 2).mean()

    def step(p: Any, m: Any, v: Any, rate: Any, x: Any, y: Any) -> Any:
        value, g = value_and_grad(loss)(p, x, y)
        new, m, v = adam(p, g, m, v, 3, xp.sqrt)
        return [a + rate * (b - a) for a, b in zip(p, new, strict=True)], m, v, value

    return vmap(step, in_axes=(0, 0, 0, 0, None, None))


def nets() -> list[Any]:
    rng = np.random.default_rng(0)
    params = []
    for m, n in ((8, 16), (16, 16), (16, 1)):
        params.append((rng.standard_normal((NETS, m, n)) / np.sqrt(m)).astype(np.float32))
        params.append(np.zeros((NETS, n), np.float32))
    zeros = [np.zeros_like(p) for p in params]
    x = rng.standard_normal((32, 8)).astype(np.float32)
    rates = np.linspace(0.5, 2, NETS, dtype=np.float32)
    return [params, zeros, zeros, rates, x, np.sin(x.sum(1, keepdims=True))]


def adjoint_ensemble() -> Step:
    values = ad.tree.map(ad.tensor, nets())
    step = ensemble(ad, ad.value_and_grad, ad.vmap)
    return lambda: step(*values)


def jax_ensemble() -> Step:
    jax = jax_x64()
    step = jax.jit(ensemble(jax.numpy, jax.value_and_grad, jax.vmap))
    values = jax.tree.map(jax.numpy.asarray, nets())
    return lambda: jax.block_until_ready(step(*values))


CASES = [
    case(
        "200 Runge-Kutta steps by components, value and gradient",
        {"adjoint": adjoint_orbit, "jax-jit": jax_orbit, "torch": torch_orbit},
        {"jax-jit": 0.7, "torch": 0.03},
    ),
    case(
        "an epoch of digits in one call, 57 batches, Adam",
        {"adjoint": adjoint_epoch, "jax-jit": jax_epoch, "torch": torch_epoch},
        {"jax-jit": 0.35, "torch": 0.1},
    ),
    case(
        "an update of 100 nets 8-16-16-1, Adam",
        {"adjoint": adjoint_ensemble, "jax-jit": jax_ensemble},
        {"jax-jit": 0.3},
    ),
]
