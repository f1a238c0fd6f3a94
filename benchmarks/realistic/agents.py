"""Updates of agents: DQN and PPO."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from benchmarks.harness import Step
from benchmarks.realistic.program import (
    Framework,
    clipped_by_jax,
    filled,
    linear_of_jax,
    program,
    trained_by_jax,
    weights,
)

BATCH, SEEN, HIDDEN, ACTIONS = 64, 8, 64, 4
SHAPES = ((HIDDEN, SEEN), (HIDDEN,), (HIDDEN, HIDDEN), (HIDDEN,), (ACTIONS, HIDDEN), (ACTIONS,))


def net(framework: Framework) -> Any:
    nn = framework.nn
    layers = [
        nn.Linear(SEEN, HIDDEN),
        nn.Tanh(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.Tanh(),
        nn.Linear(HIDDEN, ACTIONS),
    ]
    return filled(framework, nn.Sequential(*layers), weights(*SHAPES))


def net_of_jax(jax: Any, p: Any, x: Any) -> Any:
    h = jax.numpy.tanh(linear_of_jax(x, p[0], p[1]))
    return linear_of_jax(jax.numpy.tanh(linear_of_jax(h, p[2], p[3])), p[4], p[5])


def transitions() -> list[Any]:
    """States, actions, rewards, next states and ends."""
    rng = np.random.default_rng(1)
    state, following = rng.standard_normal((2, BATCH, SEEN)).astype(np.float32)
    ends = (rng.random(BATCH) < 0.1).astype(np.float32)
    return [
        state,
        rng.integers(0, ACTIONS, BATCH),
        rng.standard_normal(BATCH).astype(np.float32),
        following,
        ends,
    ]


def dqn(framework: Framework) -> Step:
    model, lib = net(framework), framework.lib
    target = copy.deepcopy(model)
    params = list(model.parameters())
    optimizer = framework.optim.AdamW(params, lr=1e-3, weight_decay=0.0)
    batch = framework.tensors(*transitions())
    rows = lib.arange(BATCH)
    largest = lambda q: q.max(-1) if framework.ours else q.amax(-1)

    @framework.compile
    def step(state: Any, action: Any, reward: Any, following: Any, end: Any) -> Any:
        with lib.no_grad():
            best = largest(target(following))
            wanted = reward + 0.99 * best * (1 - end)
        optimizer.zero_grad()
        loss = framework.F.smooth_l1_loss(model(state)[rows, action], wanted)
        loss.backward()
        framework.clip_norm(params, 0.5)
        optimizer.step()
        return loss

    return lambda: step(*batch)


def dqn_of_jax(jax: Any) -> Step:
    jnp = jax.numpy
    target = [jnp.asarray(a) for a in weights(*SHAPES)]

    def loss(p: Any, state: Any, action: Any, reward: Any, following: Any, end: Any) -> Any:
        wanted = reward + 0.99 * net_of_jax(jax, target, following).max(-1) * (1 - end)
        off = net_of_jax(jax, p, state)[jnp.arange(BATCH), action] - wanted
        size = jnp.abs(off)
        return jnp.mean(jnp.where(size < 1, 0.5 * off * off, size - 0.5))

    return trained_by_jax(
        jax, loss, weights(*SHAPES), tuple(transitions()), lambda g: clipped_by_jax(jax, g, 0.5)
    )


def rollout() -> list[Any]:
    """States, actions, advantages and the old log-probabilities."""
    rng = np.random.default_rng(1)
    state = rng.standard_normal((BATCH, SEEN)).astype(np.float32)
    gain, old = rng.standard_normal((2, BATCH)).astype(np.float32)
    return [state, rng.integers(0, ACTIONS, BATCH), gain, 0.1 * old - 1.4]


def ppo(framework: Framework) -> Step:
    model, lib, F = net(framework), framework.lib, framework.F
    params = list(model.parameters())
    optimizer = framework.optim.AdamW(params, lr=1e-3, weight_decay=0.0)
    batch = framework.tensors(*rollout())
    rows = lib.arange(BATCH)

    @framework.compile
    def step(state: Any, action: Any, gain: Any, old: Any) -> Any:
        optimizer.zero_grad()
        logs = F.log_softmax(model(state), -1)
        ratio = lib.exp(logs[rows, action] - old)
        pessimistic = lib.minimum(ratio * gain, lib.clip(ratio, 0.8, 1.2) * gain)
        entropy = -(lib.exp(logs) * logs).sum(-1).mean()
        loss = -pessimistic.mean() - 0.01 * entropy
        loss.backward()
        framework.clip_norm(params, 0.5)
        optimizer.step()
        return loss

    return lambda: step(*batch)


def ppo_of_jax(jax: Any) -> Step:
    jnp = jax.numpy

    def loss(p: Any, state: Any, action: Any, gain: Any, old: Any) -> Any:
        logs = jax.nn.log_softmax(net_of_jax(jax, p, state))
        ratio = jnp.exp(logs[jnp.arange(BATCH), action] - old)
        pessimistic = jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain)
        return -pessimistic.mean() + 0.01 * (jnp.exp(logs) * logs).sum(-1).mean()

    return trained_by_jax(
        jax, loss, weights(*SHAPES), tuple(rollout()), lambda g: clipped_by_jax(jax, g, 0.5)
    )


CASES = [program("DQN update", dqn, dqn_of_jax), program("PPO update", ppo, ppo_of_jax)]
