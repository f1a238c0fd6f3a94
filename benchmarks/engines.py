"""The engines behind one small interface, so that a case is written once, on ``kit.xp``.

Each kit differentiates in the way its users would: adjoint and PyTorch record and pull; JAX and
autograd transform functions. A step takes no arguments and returns NumPy arrays, so that lazy and
asynchronous engines have to finish.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import adjoint as ad
from benchmarks.harness import Step, jax_x64

Function = Callable[..., Any]
Arrays = Sequence[Any]


class Kit:
    """What a case may ask of an engine; ``NotImplementedError`` leaves the engine out."""

    xp: Any  # exp, log, sin, tanh, sqrt, stack, einsum, … as in NumPy

    def array(self, a: Any) -> Any:
        raise NotImplementedError

    def concat(self, xs: Any, axis: int) -> Any:
        join = self.xp.concatenate if hasattr(self.xp, "concatenate") else self.xp.concat
        return join(xs, axis)

    def least(self, x: Any) -> Any:
        """The minimum over the last axis."""
        return self.xp.min(x, -1)

    def logsumexp(self, x: Any) -> Any:
        """Over the last axis."""
        return self.xp.logsumexp(x, -1)

    def value(self, f: Function, arrays: Arrays) -> Step:
        """Evaluate ``f``, recording what a gradient would need."""
        raise NotImplementedError

    def gradient(self, f: Function, arrays: Arrays) -> Step:
        """Return the gradients of a scalar function of all arrays."""
        raise NotImplementedError

    def columns(self, f: Function, arrays: Arrays, count: int) -> Step:
        """Return the gradients of the sum of each column of f's output (n, count)."""
        raise NotImplementedError

    def hvp(self, f: Function, array: Any, vector: Any) -> Step:
        """Return the gradient and the Hessian's product with the vector."""
        raise NotImplementedError

    def jacobian(self, f: Function, array: Any) -> Step:
        """Return the Jacobian, by forward mode where there is one."""
        raise NotImplementedError


class Adjoint(Kit):
    xp = ad

    def array(self, a: Any) -> Any:
        return ad.tensor(a)

    def value(self, f: Function, arrays: Arrays) -> Step:
        leaves = [ad.tensor(a, requires_grad=True) for a in arrays]
        return lambda: f(*leaves).numpy()

    def gradient(self, f: Function, arrays: Arrays) -> Step:
        leaves = [ad.tensor(a, requires_grad=True) for a in arrays]
        return lambda: [g.numpy() for g in ad.gradients(f(*leaves), leaves)]  # type: ignore[union-attr]

    def columns(self, f: Function, arrays: Arrays, count: int) -> Step:
        leaves = [ad.tensor(a, requires_grad=True) for a in arrays]

        def step() -> Any:
            out = f(*leaves)
            rows: list[Any] = []
            for i in range(count):
                rows += ad.gradients(out[:, i].sum(), leaves, retain_graph=i + 1 < count)
            return [g.numpy() for g in rows]

        return step

    def hvp(self, f: Function, array: Any, vector: Any) -> Step:
        x, v = ad.tensor(array), ad.tensor(vector)
        gradient = ad.grad(f)
        return lambda: [gradient(x).numpy(), ad.hvp(f, x, v).numpy()]

    def jacobian(self, f: Function, array: Any) -> Step:
        x, jacobian = ad.tensor(array), ad.jacfwd(f)
        return lambda: jacobian(x).numpy()


class Torch(Kit):
    def __init__(self) -> None:
        import torch

        self.xp = torch

    def array(self, a: Any) -> Any:
        return self.xp.tensor(a)

    def least(self, x: Any) -> Any:
        return self.xp.amin(x, -1)

    def leaves(self, arrays: Arrays) -> list[Any]:
        return [self.xp.tensor(a, requires_grad=True) for a in arrays]

    def value(self, f: Function, arrays: Arrays) -> Step:
        leaves = self.leaves(arrays)
        return lambda: f(*leaves).detach().numpy()

    def gradient(self, f: Function, arrays: Arrays) -> Step:
        leaves = self.leaves(arrays)
        return lambda: [g.numpy() for g in self.xp.autograd.grad(f(*leaves), leaves)]

    def columns(self, f: Function, arrays: Arrays, count: int) -> Step:
        leaves = self.leaves(arrays)

        def step() -> Any:
            out = f(*leaves)
            rows: list[Any] = []
            for i in range(count):
                rows += self.xp.autograd.grad(out[:, i].sum(), leaves, retain_graph=i + 1 < count)
            return [g.numpy() for g in rows]

        return step

    def hvp(self, f: Function, array: Any, vector: Any) -> Step:
        x, v = self.array(array), self.array(vector)
        both = lambda: self.xp.func.jvp(self.xp.func.grad(f), (x,), (v,))
        return lambda: [g.numpy() for g in both()]

    def jacobian(self, f: Function, array: Any) -> Step:
        x, jacobian = self.array(array), self.xp.func.jacfwd(f)
        return lambda: jacobian(x).numpy()


class Jax(Kit):
    """Op by op; the compiled one is below."""

    def __init__(self) -> None:
        self.jax = jax_x64()
        self.xp = self.jax.numpy

    def compiled(self, f: Function) -> Function:
        return f

    def array(self, a: Any) -> Any:
        return self.xp.asarray(a)

    def logsumexp(self, x: Any) -> Any:
        return self.jax.nn.logsumexp(x, -1)

    def step(self, f: Function, arrays: Arrays) -> Step:
        values = [self.array(a) for a in arrays]
        run = self.compiled(f)
        return lambda: [np.asarray(v) for v in self.jax.tree.leaves(run(*values))]

    def value(self, f: Function, arrays: Arrays) -> Step:
        return self.step(f, arrays)

    def gradient(self, f: Function, arrays: Arrays) -> Step:
        return self.step(self.jax.grad(f, tuple(range(len(arrays)))), arrays)

    def columns(self, f: Function, arrays: Arrays, count: int) -> Step:
        def rows(*values: Any) -> Any:
            _, pull = self.jax.vjp(f, *values)
            n = values[0].shape[0]
            ones, zeros = self.xp.ones(n), self.xp.zeros(n)
            seeds = [
                self.xp.stack([ones if i == k else zeros for k in range(count)], -1) for i in range(count)
            ]
            return [pull(seed) for seed in seeds]

        return self.step(rows, arrays)

    def hvp(self, f: Function, array: Any, vector: Any) -> Step:
        return self.step(lambda x, v: self.jax.jvp(self.jax.grad(f), (x,), (v,)), [array, vector])

    def jacobian(self, f: Function, array: Any) -> Step:
        return self.step(self.jax.jacfwd(f), [array])


class JaxJit(Jax):
    def compiled(self, f: Function) -> Function:
        return self.jax.jit(f)


class Autograd(Kit):
    def __init__(self) -> None:
        import autograd
        import autograd.numpy

        self.autograd, self.xp = autograd, autograd.numpy

    def array(self, a: Any) -> Any:
        return np.asarray(a)

    def logsumexp(self, x: Any) -> Any:
        from autograd.scipy.special import logsumexp

        return logsumexp(x, axis=-1)

    def value(self, f: Function, arrays: Arrays) -> Step:
        forward = self.autograd.make_vjp(lambda a: f(*a))  # records as for a gradient
        return lambda: forward(tuple(arrays))[1]

    def gradient(self, f: Function, arrays: Arrays) -> Step:
        gradient = self.autograd.grad(lambda a: f(*a))
        return lambda: list(gradient(tuple(arrays)))

    def columns(self, f: Function, arrays: Arrays, count: int) -> Step:
        forward = self.autograd.make_vjp(lambda a: f(*a))

        def step() -> Any:
            pull, out = forward(tuple(arrays))
            seeds = np.eye(count)
            return [g for i in range(count) for g in pull(np.broadcast_to(seeds[i], out.shape))]

        return step

    def hvp(self, f: Function, array: Any, vector: Any) -> Step:
        gradient = self.autograd.grad(f)
        product = self.autograd.grad(lambda x: self.xp.sum(gradient(x) * vector))
        return lambda: [gradient(array), product(array)]


class Mlx(Kit):
    def __init__(self) -> None:
        import mlx.core as mx

        mx.set_default_device(mx.cpu)
        self.xp = mx

    def array(self, a: Any) -> Any:
        a = np.asarray(a)
        return self.xp.array(a, dtype=getattr(self.xp, a.dtype.name))

    def value(self, f: Function, arrays: Arrays) -> Step:
        values = [self.array(a) for a in arrays]
        return lambda: np.array(f(*values))

    def gradient(self, f: Function, arrays: Arrays) -> Step:
        values = [self.array(a) for a in arrays]
        gradient = self.xp.grad(f, list(range(len(arrays))))

        def step() -> Any:
            found = gradient(*values)
            self.xp.eval(found)
            return [np.array(g) for g in found]

        return step


KITS: dict[str, Callable[[], Kit]] = {
    "adjoint": Adjoint, "torch": Torch, "jax": Jax, "jax-jit": JaxJit, "autograd": Autograd,
    "mlx": Mlx,
}  # fmt: skip


def engines(make: Callable[[Kit], Step], names: str) -> dict[str, Callable[[], Step]]:
    """Return what a Case takes as engines: ``make`` with each of the named kits."""
    return {name: (lambda name=name: make(KITS[name]())) for name in names.split()}  # type: ignore[misc]
