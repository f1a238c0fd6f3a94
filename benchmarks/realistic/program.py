"""``program``: one piece of work, written once for adjoint and PyTorch if they share names, and for JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

import adjoint as ad
from benchmarks.harness import THREADS, Case, Step, jax_x64

__all__ = [
    "Framework",
    "adam_of_jax",
    "clipped_by_jax",
    "filled",
    "linear_of_jax",
    "program",
    "trained_by_jax",
    "weights",
]


@dataclass(frozen=True)
class Framework:
    """Adjoint or PyTorch; ``compile`` is ``ad.compile`` in compiled programs and does nothing in others."""

    lib: Any
    compile: Callable[..., Any]

    @property
    def ours(self) -> bool:
        """Whether this is adjoint."""
        return self.lib is ad

    @property
    def nn(self) -> Any:
        """The layers."""
        return self.lib.nn

    @property
    def F(self) -> Any:  # noqa: N802  as users import it
        """The functions of networks."""
        return self.lib.nn.functional

    @property
    def optim(self) -> Any:
        """The optimisers."""
        return self.lib.optim

    def tensors(self, *arrays: Any) -> list[Any]:
        """The arrays as tensors."""
        return [self.lib.tensor(a) for a in arrays]

    def clip_norm(self, params: Any, norm: float) -> Any:
        """Clip gradients by their norm."""
        if self.ours:
            return ad.clip_grad_norm(params, norm)
        return self.nn.utils.clip_grad_norm_(params, norm)

    def clip_value(self, params: Any, value: float) -> Any:
        """Clip gradients by their values."""
        if self.ours:
            return ad.clip_grad_value(params, value)
        return self.nn.utils.clip_grad_value_(params, value)


def _torch() -> Framework:
    import torch

    torch.set_num_threads(THREADS)
    return Framework(torch, lambda f, **_: f)


def program(
    name: str,
    both: Callable[[Framework], Step],
    jax: Callable[[Any], Step] | None = None,
    torch: Callable[[Framework], Step] | None = None,
    tolerance: float = 1e-3,
    compared: int = 3,
    network: bool = False,
    **options: Any,
) -> Case:
    """A case: ``both`` builds the step of adjoint, and that of PyTorch if ``torch`` does not.

    ``jax`` gets the module ``jax``.  ``network`` says that the target of eager code beside PyTorch is 1.
    """
    plain, peer = Framework(ad, lambda f, **_: f), torch or both
    engines: dict[str, Callable[[], Step]] = {
        "adjoint": lambda: both(plain),
        "adjoint-compile": lambda: both(Framework(ad, ad.compile)),
        "torch": lambda: peer(_torch()),
    }
    if jax is not None:
        engines["jax-jit"] = lambda: jax(jax_x64())
    compiled = {"torch": 1.0, "jax-jit": 1.0}
    targets = {"torch": 1.0} if network else {}
    return Case(name, engines, targets, compiled, True, tolerance, compared=compared, **options)


def weights(*shapes: Sequence[int], seed: int = 0) -> list[Any]:
    """Random float32 arrays: divided by the root of the fan-in, vectors zero."""
    rng = np.random.default_rng(seed)
    scale = [np.sqrt(np.prod(s[1:])) for s in shapes]
    return [
        (rng.standard_normal(s) / k).astype(np.float32) if len(s) > 1 else np.zeros(s, np.float32)
        for s, k in zip(shapes, scale, strict=True)
    ]


def filled(framework: Framework, model: Any, start: Sequence[Any] | None = None) -> Any:
    """Give the parameters of a model the same values in each framework: ``start`` or random ones by order."""
    params = list(model.parameters())
    if start is None:
        start = weights(*[tuple(p.shape) for p in params])
        start = [a if p.ndim > 1 else p.detach().numpy() for a, p in zip(start, params, strict=True)]
        start = [
            np.ones_like(a) if a.ndim == 1 and a.any() and (a == a[0]).all() else a * (a.ndim > 1)
            for a in start
        ]
    with framework.lib.no_grad():
        for p, a in zip(params, start, strict=True):
            p.copy_(framework.lib.tensor(np.ascontiguousarray(a)))
    return model


# JAX, whose users bring their own layers and updates ------------------------------------------------------


def linear_of_jax(x: Any, w: Any, b: Any) -> Any:
    """A linear layer with weights (out, in)."""
    return x @ w.T + b


def clipped_by_jax(jax: Any, grads: Any, norm: float) -> Any:
    """The gradients, clipped by their norm."""
    total = jax.numpy.sqrt(sum(jax.numpy.sum(g * g) for g in jax.tree.leaves(grads)))
    return jax.tree.map(lambda g: g * jax.numpy.minimum(1.0, norm / (total + 1e-6)), grads)


def adam_of_jax(jax: Any, params: Any, grads: Any, state: Any, lr: float, decay: float = 0.0) -> Any:
    """One step of AdamW; the state is (first moments, second moments, count)."""
    m, v, n = state
    n = n + 1
    m = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, m, grads)
    v = jax.tree.map(lambda a, g: 0.999 * a + 0.001 * g * g, v, grads)
    size, scale = lr / (1 - 0.9**n), jax.numpy.sqrt(1 - 0.999**n)
    new = jax.tree.map(
        lambda p, a, b: p - lr * decay * p - size * a / (jax.numpy.sqrt(b) / scale + 1e-8), params, m, v
    )
    return new, (m, v, n)


def trained_by_jax(
    jax: Any,
    loss: Callable[..., Any],
    params: Any,
    batch: Callable[[], tuple[Any, ...]] | tuple[Any, ...],
    change: Callable[[Any], Any] = lambda g: g,
    lr: float = 1e-3,
    decay: float = 0.0,
    dtype: Any = np.float32,
) -> Step:
    """A step of AdamW; ``change`` is applied to the gradients, ``batch`` has or returns the arguments."""
    jnp = jax.numpy
    params = jax.tree.map(lambda a: jnp.asarray(a, dtype), params)
    zeros = lambda: jax.tree.map(jnp.zeros_like, params)
    held = SimpleNamespace(state=(params, (zeros(), zeros(), jnp.zeros((), dtype))))

    def update(state: Any, *given: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(state[0], *given)
        return adam_of_jax(jax, state[0], change(grads), state[1], lr, decay), value

    run = jax.jit(update, donate_argnums=0)

    def step() -> Any:
        held.state, value = run(held.state, *(batch() if callable(batch) else batch))
        return float(value)

    return step
