"""Work for compilers: norms, attention, fused elementwise functions, Hessian products, a fit by SciPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

import adjoint as ad
from benchmarks.engines import PEERS, lacking
from benchmarks.functional import JaxFunctional
from benchmarks.harness import Case, Step, jax_x64

Arrays = list[Any]


def case(
    name: str, engines: dict[str, Callable[[], Step]], compiled: dict[str, float], tolerance: float = 1e-3
) -> Case:
    """A case of the peers that the targets name; native code runs from its second call."""
    others = {peer: lacking("not one of the peers of this target") for peer in PEERS.split()}
    return Case(name, others | engines, compiled=compiled, blas=True, tolerance=tolerance, compared=2)


# Layer norm with all its gradients ----------------------------------------------------------------


def norm_arrays(rows: int, width: int) -> Arrays:
    rng = np.random.default_rng(0)
    shapes = ((rows, width), (width,), (width,), (rows, width))
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def adjoint_norm(rows: int, width: int) -> Step:
    *start, seed = map(ad.tensor, norm_arrays(rows, width))
    leaves = [x.requires_grad_() for x in start]

    def step() -> Any:
        x, w, b = leaves
        y = ad.nn.functional.layer_norm(x, (width,), w, b)
        return [y.detach(), *ad.gradients(y, leaves, seed)]

    return step


def torch_norm(rows: int, width: int) -> Step:
    import torch

    *start, seed = map(torch.tensor, norm_arrays(rows, width))
    leaves = [x.requires_grad_() for x in start]

    def step() -> Any:
        x, w, b = leaves
        y = torch.nn.functional.layer_norm(x, (width,), w, b)
        return [y, *torch.autograd.grad(y, leaves, seed)]

    return step


def jax_norm(rows: int, width: int) -> Step:
    jax = jax_x64()
    F = JaxFunctional(jax)
    *leaves, seed = map(jax.numpy.asarray, norm_arrays(rows, width))

    @jax.jit
    def both(leaves: Any, seed: Any) -> Any:
        y, pull = jax.vjp(lambda x, w, b: F.layer_norm(x, (width,), w) + b, *leaves)
        return y, *pull(seed)

    return lambda: jax.block_until_ready(both(leaves, seed))


def norm_case(rows: int, width: int, **compiled: float) -> Case:
    return case(
        f"layer norm with gradients, {rows}×{width}",
        {
            "adjoint": lambda: adjoint_norm(rows, width),
            "torch": lambda: torch_norm(rows, width),
            "jax-jit": lambda: jax_norm(rows, width),
        },
        _peers(compiled),
    )


def _peers(compiled: dict[str, float]) -> dict[str, float]:
    return {name.replace("_", "-"): value for name, value in compiled.items()}


# A training step of one layer of attention --------------------------------------------------------

BATCH, LENGTH, WIDTH, HEADS, RATE = 8, 32, 64, 4, 1e-3


def attention_arrays() -> Arrays:
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5 for _ in range(4)]
    x = rng.standard_normal((BATCH, LENGTH, WIDTH))
    return [a.astype(np.float32) for a in (*weights, x)]


def attention_loss(F: Any, weights: Any, x: Any) -> Any:
    """The mean square of x plus the attention of all positions to all, by four heads."""
    heads = [F.linear(x, w).reshape(BATCH, LENGTH, HEADS, WIDTH // HEADS).swapaxes(1, 2) for w in weights[:3]]
    y = F.scaled_dot_product_attention(*heads, is_causal=False)
    y = x + F.linear(y.swapaxes(1, 2).reshape(BATCH, LENGTH, WIDTH), weights[3])
    return (y * y).mean()


def eager_attention(engine: Any, requires_grad: Callable[[Any], Any]) -> Step:
    *start, x = map(engine.tensor, attention_arrays())
    weights = [requires_grad(w) for w in start]
    optimizer = engine.optim.SGD(weights, lr=RATE)

    def step() -> Any:
        optimizer.zero_grad()
        loss = attention_loss(engine.nn.functional, weights, x)
        loss.backward()
        optimizer.step()
        return loss

    return step


def torch_attention() -> Step:
    import torch

    return eager_attention(torch, lambda w: w.requires_grad_())


def jax_attention() -> Step:
    jax = jax_x64()
    F = JaxFunctional(jax)
    *weights, x = map(jax.numpy.asarray, attention_arrays())

    def update(weights: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(lambda w: attention_loss(F, w, x))(weights)
        return [w - RATE * g for w, g in zip(weights, gradients, strict=True)], value

    run = jax.jit(update, donate_argnums=0)

    def step() -> Any:
        nonlocal weights
        weights, value = run(weights, x)
        return float(value)

    return step


# tanh(x·x + x)·x --------------------------------------------------------------------------------


def elementwise(x: Any, tanh: Any) -> Any:
    return (tanh(x * x + x) * x).sum()


def numbers(size: int) -> Any:
    return np.random.default_rng(0).standard_normal(size).astype(np.float32)


def adjoint_elementwise(size: int) -> Step:
    x, both = ad.tensor(numbers(size)), ad.value_and_grad(lambda x: elementwise(x, ad.tanh))
    return lambda: both(x)


def torch_elementwise(size: int) -> Step:
    import torch

    x = torch.tensor(numbers(size), requires_grad=True)

    def step() -> Any:
        y = elementwise(x, torch.tanh)
        return y, *torch.autograd.grad(y, x)

    return step


def jax_elementwise(size: int) -> Step:
    jax = jax_x64()
    x = jax.numpy.asarray(numbers(size))
    both = jax.jit(jax.value_and_grad(lambda x: elementwise(x, jax.numpy.tanh)))
    return lambda: jax.block_until_ready(both(x))


def elementwise_case(power: int, **compiled: float) -> Case:
    return case(
        f"tanh(x·x+x)·x with gradient, 10^{power} numbers",
        {
            "adjoint": lambda: adjoint_elementwise(10**power),
            "torch": lambda: torch_elementwise(10**power),
            "jax-jit": lambda: jax_elementwise(10**power),
        },
        _peers(compiled),
    )


# A product with the Hessian of a net's loss ---------------------------------------------------------

SIZES, ROWS = (64, 128, 128, 10), 32


def net_arrays() -> tuple[Arrays, Any, Any]:
    rng = np.random.default_rng(0)
    params: Arrays = []
    for m, n in itertools.pairwise(SIZES):
        params += [(rng.standard_normal((m, n)) / np.sqrt(m)).astype(np.float32), np.zeros(n, np.float32)]
    x, y = (rng.standard_normal((ROWS, n)).astype(np.float32) for n in (SIZES[0], SIZES[-1]))
    return params, x, y


def net_loss(params: Any, x: Any, y: Any, tanh: Any) -> Any:
    for i in range(0, len(params) - 2, 2):
        x = tanh(x @ params[i] + params[i + 1])
    return ((x @ params[-2] + params[-1] - y) ** 2).mean()


def adjoint_hvp() -> Step:
    start, *data = net_arrays()
    params = list(map(ad.tensor, start))
    x, y = map(ad.tensor, data)
    along = [ad.ones_like(p) for p in params]
    gradient = ad.grad(lambda p: net_loss(p, x, y, ad.tanh))
    return lambda: ad.jvp(gradient, (params,), (along,))[1]


def torch_hvp() -> Step:
    import torch

    start, *data = net_arrays()
    params = [torch.tensor(a, requires_grad=True) for a in start]
    x, y = map(torch.tensor, data)
    along = [torch.ones_like(p) for p in params]

    def step() -> Any:
        gradient = torch.autograd.grad(net_loss(params, x, y, torch.tanh), params, create_graph=True)
        return torch.autograd.grad(gradient, params, along)

    return step


def jax_hvp() -> Step:
    jax = jax_x64()
    start, *data = net_arrays()
    params = list(map(jax.numpy.asarray, start))
    x, y = map(jax.numpy.asarray, data)
    along = [jax.numpy.ones_like(p) for p in params]

    @jax.jit
    def product(params: Any, along: Any, x: Any, y: Any) -> Any:
        gradient = jax.grad(lambda p: net_loss(p, x, y, jax.numpy.tanh))
        return jax.jvp(gradient, (params,), (along,))[1]

    return lambda: jax.block_until_ready(product(params, along, x, y))


# Softmax regression by SciPy's L-BFGS-B ---------------------------------------------------------------

SAMPLES, FEATURES, CLASSES, STEPS, PENALTY = 10_000, 100, 10, 20, 1e-3


def samples() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((SAMPLES, FEATURES))
    scores = x @ rng.standard_normal((FEATURES, CLASSES)) + rng.gumbel(size=(SAMPLES, CLASSES))
    return x, scores.argmax(axis=1)


def scipy_fit(value_and_gradient: Any) -> Step:
    from scipy.optimize import minimize

    def fit() -> Any:
        options = {"maxiter": STEPS, "ftol": 0.0, "gtol": 0.0}
        start = np.zeros(FEATURES * CLASSES)
        return minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options=options).fun

    return fit


def softmax_loss(F: Any, w: Any, x: Any, t: Any) -> Any:
    return F.cross_entropy(x @ w.reshape(FEATURES, CLASSES), t) + PENALTY * (w * w).sum()


def adjoint_fit(backend: str | None = None) -> Step:
    x, t = map(ad.tensor, samples())
    both = ad.value_and_grad(lambda w: softmax_loss(ad.nn.functional, w, x, t))
    return scipy_fit(both if backend is None else ad.compile(both, backend=backend))


def torch_fit() -> Step:
    import torch

    x, t = map(torch.tensor, samples())

    def both(w0: Any) -> Any:
        w = torch.from_numpy(w0).requires_grad_()
        loss = softmax_loss(torch.nn.functional, w, x, t)
        loss.backward()
        return loss.item(), w.grad.numpy()

    return scipy_fit(both)


def jax_fit() -> Step:
    jax = jax_x64()
    F = JaxFunctional(jax)
    x, t = map(jax.numpy.asarray, samples())
    both = jax.jit(jax.value_and_grad(lambda w, x, t: softmax_loss(F, w, x, t)))
    return scipy_fit(lambda w: tuple(map(np.asarray, both(w, x, t))))


CASES = [
    norm_case(64, 256, jax_jit=0.15, torch=0.25),
    norm_case(512, 768, jax_jit=0.3, torch=0.55),
    case(
        f"attention step, {BATCH}×{LENGTH}×{WIDTH}, SGD",
        {
            "adjoint": lambda: eager_attention(ad, lambda w: w.requires_grad_()),
            "torch": torch_attention,
            "jax-jit": jax_attention,
        },
        {"jax-jit": 0.4, "torch": 0.35},
    ),
    elementwise_case(4, jax_jit=0.2, torch=0.15),
    elementwise_case(6, jax_jit=0.9, torch=0.15),
    elementwise_case(7, jax_jit=0.4, torch=0.15),
    case(
        f"hvp of a {'-'.join(map(str, SIZES))} net, {ROWS} rows, float32",
        {"adjoint": adjoint_hvp, "torch": torch_hvp, "jax-jit": jax_hvp},
        {"jax-jit": 0.5, "torch": 0.2},
    ),
    case(
        f"softmax regression, {SAMPLES:,}×{FEATURES}, {STEPS} steps of SciPy's L-BFGS-B",
        {
            "adjoint": adjoint_fit,
            "adjoint-compile": lambda: adjoint_fit("auto"),
            "adjoint-replay": lambda: adjoint_fit("replay"),
            "torch": torch_fit,
            "jax-jit": jax_fit,
        },
        {"jax-jit": 0.8, "torch": 0.6},
    ),
]
