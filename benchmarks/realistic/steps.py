"""Small training steps with one usual line more: clipping, averages, dropout, schedules, state outside."""

from __future__ import annotations

import copy
import functools
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np

import adjoint as ad
from benchmarks.harness import Step
from benchmarks.realistic.program import (
    Framework,
    adam_of_jax,
    clipped_by_jax,
    filled,
    linear_of_jax,
    program,
    trained_by_jax,
    weights,
)

TINY, SMALL = (16, 8, 16, 4), (32, 64, 128, 10)  # the batch, then the widths of the layers


def data(sizes: tuple[int, ...]) -> tuple[Any, Any]:
    """Inputs and targets."""
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((sizes[0], sizes[1])), rng.standard_normal((sizes[0], sizes[-1]))
    return x.astype(np.float32), y.astype(np.float32)


def shapes(sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The shapes of weights and biases."""
    return [s for m, n in itertools.pairwise(sizes[1:]) for s in ((n, m), (n,))]


def perceptron(framework: Framework, sizes: tuple[int, ...]) -> Any:
    """Linear layers with tanh between them."""
    nn = framework.nn
    layers = [each for m, n in itertools.pairwise(sizes[1:]) for each in (nn.Linear(m, n), nn.Tanh())]
    return filled(framework, nn.Sequential(*layers[:-1]), weights(*shapes(sizes)))


def net_of_jax(jax: Any, p: Any, x: Any) -> Any:
    """The same layers."""
    for i in range(0, len(p) - 2, 2):
        x = jax.numpy.tanh(linear_of_jax(x, p[i], p[i + 1]))
    return linear_of_jax(x, p[-2], p[-1])


def parts(framework: Framework, sizes: tuple[int, ...], lr: float = 1e-3) -> Any:
    """A model, its AdamW, and data."""
    model = perceptron(framework, sizes)
    x, y = framework.tensors(*data(sizes))
    optimizer = framework.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    return SimpleNamespace(model=model, optimizer=optimizer, x=x, y=y, params=list(model.parameters()))


# Clipping -----------------------------------------------------------------------------------------------


def clipped(framework: Framework, sizes: tuple[int, ...], how: str) -> Step:
    o = parts(framework, sizes)

    @framework.compile
    def step(x: Any, y: Any) -> Any:
        o.optimizer.zero_grad()
        loss = framework.F.mse_loss(o.model(x), y)
        loss.backward()
        if how == "norm":
            framework.clip_norm(o.params, 0.5)
        elif how == "value":
            framework.clip_value(o.params, 0.05)
        o.optimizer.step()
        return loss

    return lambda: step(o.x, o.y)


def clipped_in_jax(jax: Any, sizes: tuple[int, ...], how: str) -> Step:
    jnp = jax.numpy
    change = {
        "": lambda g: g,
        "norm": lambda g: clipped_by_jax(jax, g, 0.5),
        "value": lambda g: jax.tree.map(lambda a: jnp.clip(a, -0.05, 0.05), g),
    }[how]
    loss = lambda p, x, y: jnp.mean((net_of_jax(jax, p, x) - y) ** 2)
    return trained_by_jax(jax, loss, weights(*shapes(sizes)), data(sizes), change, decay=0.01)


# Everything together ------------------------------------------------------------------------------------


def together(framework: Framework, sizes: tuple[int, ...]) -> Step:
    nn, (_, wide, hidden, out) = framework.nn, sizes
    model = nn.Sequential(
        nn.Linear(wide, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.0), nn.Linear(hidden, out)
    )
    filled(framework, model)
    average = copy.deepcopy(model)
    x, y = framework.tensors(*data(sizes))
    optimizer = framework.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    if framework.ours:
        rate = ad.optim.schedules.cosine(1e-3, 1000)
    else:
        schedule = framework.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    params, means = list(model.parameters()), list(average.parameters())

    @framework.compile
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = framework.F.mse_loss(model(x), y)
        loss.backward()
        framework.clip_norm(params, 1.0)
        optimizer.step()
        with framework.lib.no_grad():
            for mean, p in zip(means, params, strict=True):
                mean.copy_(0.99 * mean + 0.01 * p)
        return loss

    def scheduled() -> Any:
        loss = step(x, y)
        if framework.ours:
            optimizer.lr = rate(optimizer.step_count)
        else:
            schedule.step()
        return loss

    return scheduled


# State that Python holds --------------------------------------------------------------------------------


def counting(framework: Framework) -> Step:
    """A trainer that counts its steps and warms up by the count."""
    o = parts(framework, TINY)
    o.step_no = 0

    @framework.compile
    def step(x: Any, y: Any) -> Any:
        o.step_no += 1
        o.optimizer.zero_grad()
        loss = framework.F.mse_loss(o.model(x), y) * (1.0 / (1 + o.step_no))
        loss.backward()
        o.optimizer.step()
        return loss

    return lambda: step(o.x, o.y)


def counted_by(framework: Framework) -> Step:
    """An integer argument that changes at each call."""
    o = parts(framework, TINY)
    count = itertools.count(1)

    @framework.compile
    def step(x: Any, y: Any, k: int) -> Any:
        o.optimizer.zero_grad()
        loss = framework.F.mse_loss(o.model(x), y) * (1.0 / (1 + k))
        loss.backward()
        o.optimizer.step()
        return loss

    return lambda: step(o.x, o.y, next(count))


def counted_in_jax(jax: Any) -> Step:
    count = itertools.count(1)
    loss = lambda p, x, y, k: jax.numpy.mean((net_of_jax(jax, p, x) - y) ** 2) * (1.0 / (1 + k))
    return trained_by_jax(jax, loss, weights(*shapes(TINY)), lambda: (*data_tiny, next(count)), decay=0.01)


data_tiny = data(TINY)


def decorated(framework: Framework) -> Step:
    """A step with a wrapper that counts its calls."""
    o = parts(framework, TINY)

    def counted(f: Any) -> Any:
        @functools.wraps(f)
        def call(*args: Any) -> Any:
            call.count += 1
            return f(*args)

        call.count = 0
        return call

    @framework.compile
    @counted
    def step(x: Any, y: Any) -> Any:
        o.optimizer.zero_grad()
        loss = framework.F.mse_loss(o.model(x), y)
        loss.backward()
        o.optimizer.step()
        return loss

    return lambda: step(o.x, o.y)


def in_dictionary(framework: Framework) -> Step:
    """A step that keeps a running loss and a count in a dictionary."""
    o = parts(framework, TINY)
    state: dict[str, Any] = {"running": framework.lib.zeros(()), "steps": 0}

    @framework.compile
    def step(x: Any, y: Any) -> Any:
        o.optimizer.zero_grad()
        loss = framework.F.mse_loss(o.model(x), y)
        loss.backward()
        o.optimizer.step()
        with framework.lib.no_grad():
            state["running"].copy_(0.9 * state["running"] + 0.1 * loss)
        state["steps"] += 1
        return loss

    return lambda: step(o.x, o.y)


def by_name(framework: Framework) -> Step:
    """A helper with ``getattr`` on a local object."""
    o = parts(framework, TINY)

    class Setup:
        activation = "tanh"

    setup = Setup()

    def loss_of(x: Any, y: Any) -> Any:
        h = getattr(framework.lib, setup.activation)(o.model(x))
        return framework.F.mse_loss(h, y)

    @framework.compile
    def step(x: Any, y: Any) -> Any:
        o.optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        o.optimizer.step()
        return loss

    return lambda: step(o.x, o.y)


# Arguments ----------------------------------------------------------------------------------------------


def arguments(framework: Framework, kind: str) -> Step:
    o = parts(framework, TINY)

    def update(x: Any, y: Any, scale: Any = 1.0, flag: bool = True) -> Any:
        o.optimizer.zero_grad()
        loss = framework.F.mse_loss(o.model(x), y) * scale if flag else None
        loss.backward()
        o.optimizer.step()
        return loss

    if kind == "dictionary":
        step = framework.compile(lambda batch: update(batch["x"], batch["y"]))
        batch = {"x": o.x, "y": o.y}
        return lambda: step(batch)
    if kind == "tuple":
        step = framework.compile(lambda batch: update(*batch))
        return lambda: step((o.x, o.y))
    if kind == "module":

        @framework.compile
        def stepped(model: Any, x: Any, y: Any) -> Any:
            o.optimizer.zero_grad()
            loss = framework.F.mse_loss(model(x), y)
            loss.backward()
            o.optimizer.step()
            return loss

        return lambda: stepped(o.model, o.x, o.y)
    step = framework.compile(update)
    if kind == "float":
        scales = itertools.cycle((1.0, 0.5, 0.25))
        return lambda: step(o.x, o.y, next(scales))
    if kind == "keywords":
        return lambda: step(x=o.x, y=o.y, flag=True)
    (x, y), at = data((32, *TINY[1:])), slice(None, None, 2)
    x, y = framework.tensors(x, y)
    return lambda: step(x[at], y[at])


def arguments_in_jax(jax: Any) -> Step:
    jnp = jax.numpy
    loss = lambda p, x, y: jnp.mean((net_of_jax(jax, p, x) - y) ** 2)
    return trained_by_jax(jax, loss, weights(*shapes(TINY)), data(TINY), decay=0.01)


# Losses -------------------------------------------------------------------------------------------------


def probable(framework: Framework) -> Step:
    """``binary_cross_entropy`` of probabilities."""
    o = parts(framework, TINY)
    (target,) = framework.tensors((data(TINY)[1] > 0).astype(np.float32))

    @framework.compile
    def step(x: Any, y: Any) -> Any:
        o.optimizer.zero_grad()
        loss = framework.F.binary_cross_entropy(framework.lib.sigmoid(o.model(x)), y)
        loss.backward()
        o.optimizer.step()
        return loss

    return lambda: step(o.x, target)


def probable_in_jax(jax: Any) -> Step:
    jnp = jax.numpy

    def loss(p: Any, x: Any, y: Any) -> Any:
        q = jax.nn.sigmoid(net_of_jax(jax, p, x))
        return -jnp.mean(y * jnp.log(q) + (1 - y) * jnp.log1p(-q))

    x, y = data(TINY)
    return trained_by_jax(jax, loss, weights(*shapes(TINY)), (x, (y > 0).astype(np.float32)), decay=0.01)


def sorted_loss(framework: Framework) -> Step:
    """The distance of sorted outputs, as between two distributions."""
    o = parts(framework, TINY)

    def sort(a: Any) -> Any:
        return framework.lib.sort(a, 0) if framework.ours else framework.lib.sort(a, 0).values

    @framework.compile
    def step(x: Any, y: Any) -> Any:
        o.optimizer.zero_grad()
        loss = framework.F.mse_loss(sort(o.model(x)), sort(y))
        loss.backward()
        o.optimizer.step()
        return loss

    return lambda: step(o.x, o.y)


def sorted_in_jax(jax: Any) -> Step:
    jnp = jax.numpy
    loss = lambda p, x, y: jnp.mean((jnp.sort(net_of_jax(jax, p, x), 0) - jnp.sort(y, 0)) ** 2)
    return trained_by_jax(jax, loss, weights(*shapes(TINY)), data(TINY), decay=0.01)


# Sparse gradients ---------------------------------------------------------------------------------------

WORDS, WIDTH, READ = 20_000, 32, 64


def embedded(framework: Framework) -> Step:
    nn = framework.nn
    table = nn.Embedding(WORDS, WIDTH, sparse=True)
    filled(framework, table)
    kind = framework.optim.Adam if framework.ours else framework.optim.SparseAdam
    optimizer = kind(table.parameters(), lr=1e-3)
    rng = np.random.default_rng(1)
    words, wanted = framework.tensors(
        rng.integers(0, WORDS, READ), rng.standard_normal((READ, WIDTH)).astype(np.float32)
    )

    @framework.compile
    def step(words: Any, wanted: Any) -> Any:
        optimizer.zero_grad()
        loss = framework.F.mse_loss(table(words), wanted)
        loss.backward()
        optimizer.step()
        return loss

    return lambda: step(words, wanted)


# An epoch -----------------------------------------------------------------------------------------------

BATCHES = 50


def epoch_data() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((BATCHES, 32, 64)), rng.standard_normal((BATCHES, 32, 10))
    return x.astype(np.float32), y.astype(np.float32)


def epoch(framework: Framework) -> Step:
    """An epoch by ``ad.scan``, with clipping inside; PyTorch has a loop of Python."""
    o = parts(framework, SMALL)
    xs, ys = framework.tensors(*epoch_data())

    def update(x: Any, y: Any) -> Any:
        o.optimizer.zero_grad()
        loss = framework.F.mse_loss(o.model(x), y)
        loss.backward()
        framework.clip_norm(o.params, 0.5)
        o.optimizer.step()
        return loss.detach()

    @framework.compile
    def run(xs: Any, ys: Any) -> Any:
        if framework.ours:
            return ad.scan(lambda _, xy: (None, update(*xy)), None, (xs, ys))[1]
        return framework.lib.stack([update(x, y) for x, y in zip(xs, ys, strict=True)])

    return lambda: run(xs, ys)


def epoch_in_jax(jax: Any) -> Step:
    jnp = jax.numpy
    params = [jnp.asarray(a) for a in weights(*shapes(SMALL))]
    loss = lambda p, x, y: jnp.mean((net_of_jax(jax, p, x) - y) ** 2)

    def body(state: Any, xy: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(state[0], *xy)
        grads = clipped_by_jax(jax, grads, 0.5)
        return adam_of_jax(jax, state[0], grads, state[1], 1e-3, 0.01), value

    run = jax.jit(lambda state, xs, ys: jax.lax.scan(body, state, (xs, ys)), donate_argnums=0)
    zeros = lambda: [jnp.zeros_like(p) for p in params]
    state = (params, (zeros(), zeros(), jnp.zeros((), np.float32)))
    xs, ys = map(jnp.asarray, epoch_data())

    def step() -> Any:
        nonlocal state
        state, values = run(state, xs, ys)
        return jax.block_until_ready(values)

    return step


CASES = [
    *(
        program(
            f"{title} AdamW{', clip_grad_' + how if how else ''}",
            lambda f, sizes=sizes, how=how: clipped(f, sizes, how),
            lambda jax, sizes=sizes, how=how: clipped_in_jax(jax, sizes, how),
        )
        for title, sizes in (("tiny", TINY), ("32×64", SMALL))
        for how in ("", "norm", "value")
    ),
    program("tiny, clip + EMA + dropout + schedule + batch norm", lambda f: together(f, TINY)),
    program("32×64, clip + EMA + dropout + schedule + batch norm", lambda f: together(f, SMALL)),
    program("a step that counts in self.step_no", counting, counted_in_jax),
    program("an integer argument that changes", counted_by, counted_in_jax),
    program("a decorated step", decorated, arguments_in_jax),
    program("state in a dictionary", in_dictionary, arguments_in_jax),
    program("getattr on a local object", by_name),
    *(
        program(
            f"tiny, {kind} argument",
            lambda f, kind=kind: arguments(f, kind),
            arguments_in_jax if kind not in ("float", "strided") else None,
        )
        for kind in ("dictionary", "tuple", "keywords", "float", "strided", "module")
    ),
    program("binary_cross_entropy of probabilities", probable, probable_in_jax),
    program("a loss with sort", sorted_loss, sorted_in_jax),
    program("a sparse embedding, Adam", embedded),
    program("an epoch of 50 batches by scan, clip inside", epoch, epoch_in_jax, compared=1),
]
