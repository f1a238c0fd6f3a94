"""Programs that differentiate functions: updates without side effects, gradients per sample, fits."""

from __future__ import annotations

from typing import Any

import numpy as np

import adjoint as ad
from benchmarks.harness import Step
from benchmarks.realistic.program import Framework, adam_of_jax, program, weights
from benchmarks.realistic.steps import SMALL, data, net_of_jax, shapes


def params_of() -> list[Any]:
    """Weights and biases of a small network."""
    return weights(*shapes(SMALL))


def net(lib: Any, p: Any, x: Any) -> Any:
    """The network, written for adjoint and PyTorch."""
    for i in range(0, len(p) - 2, 2):
        x = lib.tanh(x @ p[i].T + p[i + 1])
    return x @ p[-2].T + p[-1]


def pure(framework: Framework) -> Step:
    """Adam as a function of parameters and state."""
    params, (x, y) = framework.tensors(*params_of()), framework.tensors(*data(SMALL))
    adam = ad.optim.Pure(ad.optim.AdamW, lr=1e-3, weight_decay=0.0)
    loss = lambda p, x, y: ((net(ad, p, x) - y) ** 2).mean()

    @framework.compile
    def update(p: Any, state: Any, x: Any, y: Any) -> Any:
        value, grads = ad.value_and_grad(loss)(p, x, y)
        p, state = adam.update(p, grads, state)
        return p, state, value

    held = [params, adam.init(params)]

    def step() -> Any:
        *held[:], value = update(*held, x, y)
        return value

    return step


def pure_of_jax(jax: Any) -> Step:
    jnp = jax.numpy
    params = [jnp.asarray(p) for p in params_of()]
    x, y = map(jnp.asarray, data(SMALL))
    loss = lambda p, x, y: jnp.mean((net_of_jax(jax, p, x) - y) ** 2)

    @jax.jit
    def update(p: Any, state: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(p, x, y)
        p, state = adam_of_jax(jax, p, grads, state, 1e-3)
        return p, state, value

    zeros = lambda: [jnp.zeros_like(p) for p in params]
    held = [params, (zeros(), zeros(), jnp.zeros((), np.float32))]

    def step() -> Any:
        *held[:], value = update(*held, x, y)
        return float(value)

    return step


def functional(framework: Framework) -> Step:
    """A step of gradient descent on a list of arrays, which the caller keeps."""
    params, (x, y) = framework.tensors(*params_of()), framework.tensors(*data(SMALL))
    lib = framework.lib
    loss = lambda p, x, y: ((net(lib, p, x) - y) ** 2).mean()
    derivative = ad.value_and_grad(loss) if framework.ours else lib.func.grad_and_value(loss)

    @framework.compile
    def update(p: Any, x: Any, y: Any) -> Any:
        found = derivative(p, x, y)
        value, grads = found if framework.ours else found[::-1]
        return [a - 0.01 * g for a, g in zip(p, grads, strict=True)], value

    held = [params]

    def step() -> Any:
        held[0], value = update(held[0], x, y)
        return value

    return step


def functional_of_jax(jax: Any) -> Step:
    jnp = jax.numpy
    x, y = map(jnp.asarray, data(SMALL))
    loss = lambda p, x, y: jnp.mean((net_of_jax(jax, p, x) - y) ** 2)

    @jax.jit
    def update(p: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(p, x, y)
        return [a - 0.01 * g for a, g in zip(p, grads, strict=True)], value

    held = [[jnp.asarray(p) for p in params_of()]]

    def step() -> Any:
        held[0], value = update(held[0], x, y)
        return float(value)

    return step


def per_sample(framework: Framework) -> Step:
    """The gradient of each sample of a batch."""
    params, (x, y) = framework.tensors(*params_of()), framework.tensors(*data(SMALL))
    lib = framework.lib
    loss = lambda p, x, y: ((net(lib, p, x) - y) ** 2).mean()
    if framework.ours:
        f = framework.compile(ad.vmap(ad.grad(loss), in_axes=(None, 0, 0)))
    else:
        f = lib.func.vmap(lib.func.grad(loss), in_dims=(None, 0, 0))
    return lambda: f(params, x, y)


def per_sample_of_jax(jax: Any) -> Step:
    jnp = jax.numpy
    params = [jnp.asarray(p) for p in params_of()]
    x, y = map(jnp.asarray, data(SMALL))
    loss = lambda p, x, y: jnp.mean((net_of_jax(jax, p, x) - y) ** 2)
    f = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0)))
    return lambda: jax.block_until_ready(f(params, x, y))


def curve() -> list[Any]:
    """Parameters, places and values of a damped wave."""
    t = np.linspace(0, 4, 200)
    return [np.array([0.8, 0.4, 1.8, 0.1]), t, np.exp(-0.5 * t) * np.cos(2 * t)]


def wave(xp: Any, p: Any, t: Any) -> Any:
    """A damped wave."""
    return p[0] * xp.exp(-p[1] * t) * xp.cos(p[2] * t + p[3])


def levenberg_step(xp: Any, jacobian: Any, eye: Any, p: Any, t: Any, y: Any) -> Any:
    """One step of Levenberg and Marquardt."""
    j, r = jacobian(p, t), wave(xp, p, t) - y
    return p - xp.linalg.solve(j.T @ j + 1e-3 * eye, j.T @ r)


def levenberg(framework: Framework) -> Step:
    lib = framework.lib
    p, t, y = framework.tensors(*curve())
    (eye,) = framework.tensors(np.eye(4))
    of_p = lambda p, t: wave(lib, p, t)
    jacobian = ad.jacfwd(of_p) if framework.ours else lib.func.jacfwd(of_p)
    f = framework.compile(lambda p, t, y: levenberg_step(lib, jacobian, eye, p, t, y))
    return lambda: f(p, t, y)


def levenberg_of_jax(jax: Any) -> Step:
    jnp = jax.numpy
    p, t, y = map(jnp.asarray, curve())
    jacobian = jax.jacfwd(lambda p, t: wave(jnp, p, t))
    f = jax.jit(lambda p, t, y: levenberg_step(jnp, jacobian, jnp.eye(4), p, t, y))
    return lambda: jax.block_until_ready(f(p, t, y))


CASES = [
    program("optim.Pure, AdamW", pure, pure_of_jax, torch=None),
    program("a functional step", functional, functional_of_jax),
    program("gradients per sample by vmap", per_sample, per_sample_of_jax, compared=1),
    program("a step of Levenberg and Marquardt", levenberg, levenberg_of_jax, compared=1),
]
