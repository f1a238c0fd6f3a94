"""Training steps of multi-layer nets: forward, backward and update, in float32."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import adjoint as ad
from benchmarks.engines import (
    Kit,
    compiled_by_torch,
    engines,
    lacking,
    mlx_core,
    tinygrad_cpu,
    trained_by_tinygrad,
)
from benchmarks.harness import Case, Step, jax_x64


def arrays(batch: int, sizes: tuple[int, ...]) -> tuple[list[Any], Any, Any]:
    """Weights (out, in) and biases, inputs and targets, the same for every engine."""
    rng = np.random.default_rng(0)
    params: list[Any] = []
    for m, n in itertools.pairwise(sizes):
        params += [(rng.standard_normal((n, m)) / np.sqrt(m)).astype(np.float32), np.zeros(n, np.float32)]
    x = rng.standard_normal((batch, sizes[0])).astype(np.float32)
    return params, x, rng.standard_normal((batch, sizes[-1])).astype(np.float32)


UPDATES = 10  # compared, by their losses: in the last there are nine updates


def net(params: Any, x: Any, linear: Any, tanh: Any) -> Any:
    for i in range(0, len(params) - 2, 2):
        x = tanh(linear(x, params[i], params[i + 1]))
    return linear(x, params[-2], params[-1])


def adjoint_step(batch: int, sizes: tuple[int, ...], kind: str) -> Step:
    F = ad.nn.functional
    start, x0, t0 = arrays(batch, sizes)
    params = [ad.tensor(a, requires_grad=True) for a in start]
    x, t = ad.tensor(x0), ad.tensor(t0)
    optimizer = getattr(ad.optim, kind)(params, lr=1e-3)

    def step() -> Any:
        optimizer.zero_grad()
        loss = F.mse_loss(net(params, x, F.linear, ad.tanh), t)
        loss.backward()
        optimizer.step()
        return loss

    return step


def torch_step(batch: int, sizes: tuple[int, ...], kind: str, compiled: bool = False) -> Step:
    import torch

    F = torch.nn.functional
    start, x0, t0 = arrays(batch, sizes)
    params = [torch.tensor(a, requires_grad=True) for a in start]
    x, t = torch.tensor(x0), torch.tensor(t0)
    optimizer = getattr(torch.optim, kind)(params, lr=1e-3)

    def forward() -> Any:
        return F.mse_loss(net(params, x, F.linear, torch.tanh), t)

    if compiled:
        forward = compiled_by_torch(forward)  # and its backward with it

    def step() -> Any:
        optimizer.zero_grad()
        loss = forward()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def torch_compiled_step(batch: int, sizes: tuple[int, ...], kind: str) -> Step:
    return torch_step(batch, sizes, kind, compiled=True)


def adam(params: Any, grads: Any, m: Any, v: Any, n: Any, sqrt: Any) -> Any:
    """Adam as a pure function, for the engines that bring no optimiser."""
    m = [0.9 * a + 0.1 * g for a, g in zip(m, grads, strict=True)]
    v = [0.999 * a + 0.001 * g * g for a, g in zip(v, grads, strict=True)]
    size, scale = 1e-3 / (1 - 0.9**n), (1 - 0.999**n) ** 0.5
    new = [p - size * a / (sqrt(b) / scale + 1e-8) for p, a, b in zip(params, m, v, strict=True)]
    return new, m, v


def jax_step(batch: int, sizes: tuple[int, ...], kind: str, compiled: bool = True) -> Step:
    """The whole step is compiled; what it updates is given away, the count of steps too."""
    jax = jax_x64()
    jnp = jax.numpy
    start, x, t = arrays(batch, sizes)
    p = [jnp.asarray(a) for a in start]
    zeros = lambda: [jnp.zeros_like(a) for a in p]
    state = (p,) if kind == "SGD" else (p, zeros(), zeros(), jnp.zeros((), jnp.float32))
    x, t = jnp.asarray(x), jnp.asarray(t)

    def loss(p: Any, x: Any, t: Any) -> Any:
        return jnp.mean((net(p, x, lambda x, w, b: x @ w.T + b, jnp.tanh) - t) ** 2)

    def update(state: Any, x: Any, t: Any) -> Any:
        value, g = jax.value_and_grad(loss)(state[0], x, t)
        if kind == "SGD":
            return ([a - 1e-3 * b for a, b in zip(state[0], g, strict=True)],), value
        p, m, v, n = state
        return (*adam(p, g, m, v, n + 1, jnp.sqrt), n + 1), value

    run = jax.jit(update, donate_argnums=0) if compiled else update

    def step() -> Any:
        nonlocal state
        state, value = run(state, x, t)
        return float(value)

    return step


def jax_eager_step(batch: int, sizes: tuple[int, ...], kind: str) -> Step:
    return jax_step(batch, sizes, kind, compiled=False)


def autograd_step(batch: int, sizes: tuple[int, ...], kind: str) -> Step:
    import autograd
    import autograd.numpy as anp

    params, x, t = arrays(batch, sizes)
    state: dict[str, Any] = {"p": params, "n": 0}
    state["m"] = state["v"] = [np.zeros_like(a) for a in params]

    def loss(p: Any) -> Any:
        return anp.mean((net(p, x, lambda x, w, b: anp.dot(x, w.T) + b, anp.tanh) - t) ** 2)

    both = autograd.value_and_grad(loss)

    def step() -> Any:
        state["n"] += 1
        value, g = both(state["p"])
        if kind == "SGD":
            state["p"] = [a - np.float32(1e-3) * b for a, b in zip(state["p"], g, strict=True)]
        else:
            state["p"], state["m"], state["v"] = adam(
                state["p"], g, state["m"], state["v"], state["n"], np.sqrt
            )
        return float(value)

    return step


def mlx_step(batch: int, sizes: tuple[int, ...], kind: str) -> Step:
    mx = mlx_core()
    start, x0, t0 = arrays(batch, sizes)
    state: dict[str, Any] = {"p": [mx.array(a) for a in start], "n": 0}
    state["m"] = state["v"] = [mx.zeros_like(a) for a in state["p"]]
    x, t = mx.array(x0), mx.array(t0)
    both = mx.value_and_grad(lambda p: mx.mean((net(p, x, lambda x, w, b: x @ w.T + b, mx.tanh) - t) ** 2))

    def step() -> Any:
        state["n"] += 1
        value, g = both(state["p"])
        if kind == "SGD":
            state["p"] = [a - 1e-3 * b for a, b in zip(state["p"], g, strict=True)]
        else:
            state["p"], state["m"], state["v"] = adam(
                state["p"], g, state["m"], state["v"], state["n"], mx.sqrt
            )
        mx.eval(state["p"], state["m"], state["v"])
        return value.item()

    return step


def tinygrad_step(batch: int, sizes: tuple[int, ...], kind: str) -> Step:
    tinygrad = tinygrad_cpu()
    Tensor = tinygrad.Tensor
    start, x0, t0 = arrays(batch, sizes)
    params = [Tensor(a).realize() for a in start]
    x, t = Tensor(x0).realize(), Tensor(t0).realize()
    optimizer = getattr(tinygrad.nn.optim, kind)(params, lr=1e-3)

    def update() -> Any:
        optimizer.zero_grad()
        y = net(params, x, lambda x, w, b: x.linear(w.T, b), Tensor.tanh)
        loss = ((y - t) ** 2).mean().backward()
        return [loss, *optimizer.schedule_step()]

    return trained_by_tinygrad(update)


def training(
    batch: int, sizes: tuple[int, ...], kind: str, compiled: tuple[float, ...] = (), **targets: float
) -> Case:
    """``compiled`` are the targets of the compiled step beside JAX, PyTorch and PyTorch's compiler."""
    makers = {
        "adjoint": adjoint_step, "torch": torch_step, "torch-compile": torch_compiled_step,
        "jax": jax_eager_step, "jax-jit": jax_step, "autograd": autograd_step, "mlx": mlx_step,
        "tinygrad": tinygrad_step,
    }  # fmt: skip
    return Case(
        f"MLP {batch}×{'-'.join(map(str, sizes))}, {kind} step",
        {name: (lambda make=make: make(batch, sizes, kind)) for name, make in makers.items()},
        {name.replace("_", "-"): value for name, value in targets.items()},
        dict(zip(("jax-jit", "torch", "torch-compile"), compiled, strict=False)),
        blas=True,
        tolerance=1e-5,
        compared=UPDATES,
    )


def module_case(batch: int, *sizes: int) -> Case:
    """The same net of modules, as most users of adjoint and PyTorch write it."""
    kind = "SGD"

    def model_of(nn: Any, tensor: Any) -> tuple[Any, Any, Any]:
        start, x, t = arrays(batch, sizes)
        layers: list[Any] = []
        for m, n in itertools.pairwise(sizes):
            layers += [nn.Linear(m, n), nn.Tanh()]
        model = nn.Sequential(*layers[:-1])
        names = (f"{2 * i}.{part}" for i in range(len(sizes) - 1) for part in ("weight", "bias"))
        model.load_state_dict({name: tensor(a) for name, a in zip(names, start, strict=True)})
        return model, tensor(x), tensor(t)

    def trained(nn: Any, optim: Any, model: Any, x: Any, t: Any) -> Step:
        optimizer, loss_of = getattr(optim, kind)(model.parameters(), lr=1e-3), nn.MSELoss()

        def step() -> Any:
            optimizer.zero_grad()
            loss = loss_of(model(x), t)
            loss.backward()
            optimizer.step()
            return loss

        return step

    def ours() -> Step:
        return trained(ad.nn, ad.optim, *model_of(ad.nn, ad.tensor))

    def theirs(compiled: bool = False) -> Step:
        import torch

        model, x, t = model_of(torch.nn, torch.tensor)
        return trained(torch.nn, torch.optim, compiled_by_torch(model) if compiled else model, x, t)

    none = lacking("what its users write is measured in the case without modules")
    return Case(
        f"MLP {batch}×{'-'.join(map(str, sizes))} of modules, {kind} step",
        {
            "adjoint": ours,
            "torch": theirs,
            "torch-compile": lambda: theirs(compiled=True),
            **dict.fromkeys(("jax", "jax-jit", "autograd", "mlx", "tinygrad"), none),
        },
        blas=True,
        tolerance=1e-5,
        compared=UPDATES,
    )


# An LSTM over 50 steps -------------------------------------------------------------------------


def unrolled(kit: Kit, params: Any, steps: Any, state: Any) -> Any:
    """The mean square of an LSTM's outputs, step by step, for the engines without one that is compiled."""
    sigmoid, tanh = kit.sigmoid, kit.xp.tanh
    w, u, b, c_ = params
    h, c = state
    width, outputs = h.shape[-1], []
    for x in steps:
        gates = x @ w.T + h @ u.T + b + c_
        i, f, g, o = (gates[:, k * width : (k + 1) * width] for k in range(4))
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        h = sigmoid(o) * tanh(c)
        outputs.append(h)
    return (kit.xp.stack(outputs) ** 2).mean()


def lstm_case(batch: int = 16, length: int = 50, inputs: int = 16, hidden: int = 32) -> Case:
    x0 = np.random.default_rng(0).standard_normal((batch, length, inputs)).astype(np.float32)

    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    start = {n: p.numpy() for n, p in ad.nn.LSTM(inputs, hidden, rng=0).named_parameters()}

    def ours() -> Step:
        model = ad.nn.LSTM(inputs, hidden, rng=0)
        x = ad.tensor(x0)

        def step() -> Any:
            model.zero_grad()
            (model(x)[0] ** 2).mean().backward()
            return [getattr(model, n).grad for n in names]

        return step

    def theirs() -> Step:
        import torch

        model = torch.nn.LSTM(inputs, hidden, batch_first=True)
        model.load_state_dict({n: torch.tensor(a) for n, a in start.items()})
        x = torch.tensor(x0)

        def step() -> Any:
            model.zero_grad()
            (model(x)[0] ** 2).mean().backward()
            return [getattr(model, n).grad for n in names]

        return step

    def on_jax(compiled: bool) -> Step:
        jax = jax_x64()
        jnp = jax.numpy
        params = [jnp.asarray(start[n]) for n in names]
        x = jnp.asarray(x0.swapaxes(0, 1))

        def loss(p: Any, x: Any) -> Any:
            def cell(state: Any, x: Any) -> Any:
                h, c = state
                i, f, g, o = jnp.split(x @ p[0].T + h @ p[1].T + p[2] + p[3], 4, -1)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
                return (h, c), h

            zeros = jnp.zeros((batch, hidden), x.dtype)
            return (jax.lax.scan(cell, (zeros, zeros), x)[1] ** 2).mean()

        gradient = jax.jit(jax.grad(loss)) if compiled else jax.grad(loss)
        return lambda: jax.block_until_ready(gradient(params, x))

    def step_by_step(kit: Kit) -> Step:
        steps = [kit.array(np.ascontiguousarray(x0[:, i])) for i in range(length)]
        zeros = kit.array(np.zeros((batch, hidden), np.float32))
        return kit.gradient(
            lambda *params: unrolled(kit, params, steps, (zeros, zeros)), [start[n] for n in names]
        )

    name = f"LSTM, {length} steps, {batch}×{inputs}-{hidden}, forward + backward"
    found = {"adjoint": ours, "torch": theirs, "jax": lambda: on_jax(False), "jax-jit": lambda: on_jax(True)}
    found |= engines(step_by_step, "torch-compile autograd mlx")
    found["tinygrad"] = lacking("its scheduler does not end within minutes on 50 unrolled steps")
    compiled = {"jax-jit": 0.5, "torch": 0.35}
    return Case(name, found, {"torch": 0.7, "jax-jit": 3.0}, compiled, blas=True, tolerance=1e-3)


CASES = [
    training(1, (8, 16, 16, 1), "SGD", (0.06, 0.01, 0.01), torch=0.35, jax_jit=3.5, autograd=0.15),
    training(1, (8, 16, 16, 1), "Adam", (0.03, 0.01, 0.01)),
    training(32, (64, 128, 128, 10), "SGD", (0.45, 0.2, 0.25), torch=0.5, jax_jit=1.3, autograd=0.4),
    training(32, (64, 128, 128, 10), "Adam", (0.45, 0.2, 0.25), torch=0.5),
    module_case(32, 64, 128, 128, 10),
    training(64, (784, 256, 256, 10), "SGD", (0.65, 0.6, 0.6)),
    training(64, (784, 256, 256, 10), "Adam", (0.55, 0.6, 0.6), torch=0.8, jax_jit=1.0, autograd=0.8),
    training(512, (784, 1024, 1024, 10), "SGD", (0.97, 0.9, 0.95)),
    training(512, (784, 1024, 1024, 10), "Adam", (0.97, 0.9, 0.95), torch=1.0, jax_jit=1.1, autograd=1.0),
    lstm_case(),
]
