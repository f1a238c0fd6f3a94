"""Sequences of many lengths: training steps, and text that grows by a character."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from adjoint.compiler.build import units
from benchmarks.harness import Step
from benchmarks.realistic.networks import transformer
from benchmarks.realistic.program import Framework, filled, program

LENGTHS, WIDTH = range(17, 33), 32


def settled(step: Step, lengths: int) -> Step:
    """Run a step until ``ad.compile`` has built the programs of all lengths in a thread; return it."""
    for _ in range(lengths + 3):
        step()
        units.wait()
    return step


def attention(framework: Framework, lengths: Any) -> Step:
    """A training step of attention over sequences of these lengths, one after the other."""
    F, nn = framework.F, framework.nn
    qkv = filled(framework, nn.Linear(WIDTH, 3 * WIDTH))
    optimizer = framework.optim.SGD(qkv.parameters(), lr=1e-3)
    rng = np.random.default_rng(1)
    batches = [framework.tensors(*rng.standard_normal((2, 4, n, WIDTH)).astype(np.float32)) for n in lengths]
    turn = itertools.cycle(batches)

    @framework.compile
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        parts = qkv(x)
        q, k, v = (parts[..., i * WIDTH : (i + 1) * WIDTH] for i in range(3))
        loss = F.mse_loss(F.scaled_dot_product_attention(q, k, v), y)
        loss.backward()
        optimizer.step()
        return loss

    return settled(lambda: [step(*next(turn)) for _ in range(16)], len(lengths))


def attention_of_jax(jax: Any, lengths: Any) -> Step:
    jnp = jax.numpy
    rng = np.random.default_rng(1)
    batches = [
        tuple(map(jnp.asarray, rng.standard_normal((2, 4, n, WIDTH)).astype(np.float32))) for n in lengths
    ]
    turn = itertools.cycle(batches)
    start = np.random.default_rng(0).standard_normal((3 * WIDTH, WIDTH)) / np.sqrt(WIDTH)
    held = [(jnp.asarray(start, np.float32), jnp.zeros(3 * WIDTH, np.float32))]

    def loss(p: Any, x: Any, y: Any) -> Any:
        q, k, v = jnp.split(x @ p[0].T + p[1], 3, -1)
        scores = jax.nn.softmax(q @ k.swapaxes(-1, -2) / np.float32(WIDTH**0.5), -1)
        return jnp.mean((scores @ v - y) ** 2)

    @jax.jit
    def update(p: Any, x: Any, y: Any) -> Any:
        value, g = jax.value_and_grad(loss)(p, x, y)
        return tuple(a - 1e-3 * b for a, b in zip(p, g, strict=True)), value

    def step() -> Any:
        found = []
        for _ in range(16):
            held[0], value = update(held[0], *next(turn))
            found.append(float(value))
        return found

    return settled(step, len(lengths))


def sampler(framework: Framework) -> Step:
    """Forty characters, each chosen as the most probable after those before."""
    model, lib = filled(framework, transformer(framework)), framework.lib
    forward = framework.compile(lambda words: model(words)[-1].argmax())

    def step() -> Any:
        words = [1, 5, 7, 2, 9, 3, 3, 8]
        with lib.no_grad():
            for _ in range(40):
                words.append(int(forward(lib.tensor([words]))))
        return np.array(words)

    return settled(step, 40)


CASES = [
    *(
        program(
            f"16 steps of attention, {len(lengths)} {'lengths' if len(lengths) > 1 else 'length'}",
            lambda f, lengths=lengths: attention(f, lengths),
            lambda jax, lengths=lengths: attention_of_jax(jax, lengths),
            compared=1,
        )
        for lengths in ([24], LENGTHS)
    ),
    program("40 characters by a transformer", sampler, compared=1),
]
