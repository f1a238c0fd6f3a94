"""The engines behind one small interface, so that a case is written once, on ``kit.xp``.

Each kit differentiates in the way its users would: adjoint and PyTorch record and pull; JAX, MLX and
autograd transform functions; tinygrad captures a step and replays its kernels. A step takes no arguments
and returns what the engine computed: eager engines are done by then, JAX is blocked on, MLX told to
evaluate, and tinygrad's numbers are read. Nobody pays for turning results into arrays of NumPy's.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import adjoint as ad
from benchmarks.harness import THREADS, Lacking, Step, jax_x64

Function = Callable[..., Any]
Arrays = Sequence[Any]


# What peers need before they can be used ----------------------------------------------------------


def compiled_by_torch(f: Function) -> Function:
    """Compile for one case alone; a function that falls back to eager ops is refused, not timed."""
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        raise ImportError("torch.compile needs a C++ compiler, and none is installed")
    import torch

    torch.set_num_threads(THREADS)  # the number is compiled in
    torch._inductor.config.compile_threads = 1  # no pool of processes that outlives the compilation
    torch._dynamo.reset()  # what other cases compiled counts against the limit of recompilations
    return torch.compile(f, fullgraph=True, dynamic=False)


def mlx_core() -> Any:
    """MLX on the processor: the only device that has float64."""
    try:
        import mlx.core as mx
    except ImportError as error:  # on Linux mlx installs without any backend
        raise type(error)("mlx is not installed, or without a backend: mlx[cpu]") from error
    mx.set_default_device(mx.cpu)
    return mx


def tinygrad_cpu() -> Any:
    """Tinygrad on the processor; it compiles by clang."""
    if shutil.which("clang") is None:
        raise ImportError("tinygrad compiles its kernels by clang, which is not installed")
    os.environ.setdefault("DEV", "CPU")
    import tinygrad

    return tinygrad


def captured(f: Function) -> Function:
    """Let tinygrad capture ``f``, which returns a list of tensors, and replay its kernels."""
    tinygrad = tinygrad_cpu()

    def realized(*values: Any) -> Any:
        found = f(*values)
        tinygrad.Tensor.realize(*found)
        return found

    return tinygrad.TinyJit(realized)


def trained_by_tinygrad(update: Function) -> Step:
    """Let tinygrad capture a training step, whose first tensor is the loss."""
    tinygrad, step = tinygrad_cpu(), captured(update)

    def trained() -> Any:
        with tinygrad.Context(TRAINING=1):
            return step()[0].item()

    return trained


def lacking(why: str) -> Callable[[], Step]:
    """An engine that is left out of a case, for the reason given."""

    def build() -> Step:
        raise Lacking(why)

    return build


class Kit:
    """What a case may ask of an engine; what a kit does not define leaves the engine out."""

    xp: Any  # exp, log, sin, tanh, sqrt, stack, einsum, … as in NumPy

    def array(self, a: Any) -> Any:
        raise Lacking

    def concat(self, xs: Any, axis: int) -> Any:
        join = self.xp.concatenate if hasattr(self.xp, "concatenate") else self.xp.concat
        return join(xs, axis)

    def rows(self, a: Any) -> Any:
        """An array as what ``scan`` goes over."""
        return [self.array(row) for row in a]

    def scan(self, body: Function, state: Any, length: int, *rows: Any) -> tuple[Any, Any]:
        """Do (state, out) = body(state, a row of each), length times; return the last state and Σ out."""
        total = None
        for t in range(length):
            state, out = body(state, *(each[t] for each in rows))
            total = out if total is None else total + out
        return state, total

    def least(self, x: Any) -> Any:
        """The minimum over the last axis."""
        return self.xp.min(x, -1)

    def logsumexp(self, x: Any) -> Any:
        """Over the last axis."""
        return self.xp.logsumexp(x, -1)

    def sigmoid(self, x: Any) -> Any:
        return self.xp.sigmoid(x)

    def value(self, f: Function, arrays: Arrays) -> Step:
        """Evaluate ``f``, recording what a gradient would need."""
        raise Lacking

    def gradient(self, f: Function, arrays: Arrays) -> Step:
        """Return the gradients of a scalar function of all arrays."""
        raise Lacking

    def columns(self, f: Function, arrays: Arrays, count: int) -> Step:
        """Return the gradients of the sum of each column of f's output (n, count)."""
        raise Lacking("no gradients of several outputs")

    def hvp(self, f: Function, array: Any, vector: Any) -> Step:
        """Return the gradient and the Hessian's product with the vector."""
        raise Lacking("no products with Hessians")

    def jacobian(self, f: Function, array: Any) -> Step:
        """Return the Jacobian, by forward mode where there is one."""
        raise Lacking("no Jacobian in one pass")


class Adjoint(Kit):
    xp = ad

    def array(self, a: Any) -> Any:
        return ad.tensor(a)

    def value(self, f: Function, arrays: Arrays) -> Step:
        leaves = [ad.tensor(a, requires_grad=True) for a in arrays]
        return lambda: f(*leaves)

    def gradient(self, f: Function, arrays: Arrays) -> Step:
        leaves = [ad.tensor(a, requires_grad=True) for a in arrays]
        return lambda: ad.gradients(f(*leaves), leaves)

    def columns(self, f: Function, arrays: Arrays, count: int) -> Step:
        leaves = [ad.tensor(a, requires_grad=True) for a in arrays]

        def step() -> Any:
            out = f(*leaves)
            rows: list[Any] = []
            for i in range(count):
                rows += ad.gradients(out[:, i].sum(), leaves, retain_graph=i + 1 < count)
            return rows

        return step

    def hvp(self, f: Function, array: Any, vector: Any) -> Step:
        x, v = ad.tensor(array), ad.tensor(vector)
        gradient = ad.grad(f)
        return lambda: ad.jvp(gradient, (x,), (v,))

    def jacobian(self, f: Function, array: Any) -> Step:
        x, jacobian = ad.tensor(array), ad.jacfwd(f)
        return lambda: jacobian(x)


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
        return lambda: f(*leaves)

    def gradient(self, f: Function, arrays: Arrays) -> Step:
        leaves = self.leaves(arrays)
        return lambda: self.xp.autograd.grad(f(*leaves), leaves)

    def columns(self, f: Function, arrays: Arrays, count: int) -> Step:
        leaves = self.leaves(arrays)

        def step() -> Any:
            out = f(*leaves)
            rows: list[Any] = []
            for i in range(count):
                rows += self.xp.autograd.grad(out[:, i].sum(), leaves, retain_graph=i + 1 < count)
            return rows

        return step

    def hvp(self, f: Function, array: Any, vector: Any) -> Step:
        (x,), v = self.leaves([array]), self.array(vector)

        def both() -> Any:  # half the time of torch.func.jvp(torch.func.grad(f)), which is compiled below
            (gradient,) = self.xp.autograd.grad(f(x), x, create_graph=True)
            return [gradient, *self.xp.autograd.grad(gradient, x, v)]

        return both

    def jacobian(self, f: Function, array: Any) -> Step:
        x, jacobian = self.array(array), self.xp.func.jacfwd(f)
        return lambda: jacobian(x)


class TorchCompiled(Torch):
    """What is differentiated is compiled, and with it its backward; transforms are compiled whole."""

    def value(self, f: Function, arrays: Arrays) -> Step:
        return super().value(compiled_by_torch(f), arrays)

    def gradient(self, f: Function, arrays: Arrays) -> Step:
        return super().gradient(compiled_by_torch(f), arrays)

    def columns(self, f: Function, arrays: Arrays, count: int) -> Step:
        return super().columns(compiled_by_torch(f), arrays, count)

    def hvp(self, f: Function, array: Any, vector: Any) -> Step:
        func = self.xp.func
        both = compiled_by_torch(lambda x, v: func.jvp(func.grad(f), (x,), (v,)))
        x, v = self.array(array), self.array(vector)
        return lambda: both(x, v)

    def jacobian(self, f: Function, array: Any) -> Step:
        x, jacobian = self.array(array), compiled_by_torch(self.xp.func.jacfwd(f))
        return lambda: jacobian(x)


class Jax(Kit):
    """Op by op; the compiled one is below."""

    def __init__(self) -> None:
        self.jax = jax_x64()
        self.xp = self.jax.numpy

    def compiled(self, f: Function) -> Function:
        return f

    def array(self, a: Any) -> Any:
        return self.xp.asarray(a)

    def rows(self, a: Any) -> Any:
        return self.array(a)

    def scan(self, body: Function, state: Any, length: int, *rows: Any) -> tuple[Any, Any]:
        """What JAX's users write: unrolled, a long loop compiles for minutes."""
        once = (lambda state, row: body(state, *row)) if rows else lambda state, _: body(state)
        state, outs = self.jax.lax.scan(once, state, rows or None, length=length)
        return state, None if outs is None else outs.sum()

    def logsumexp(self, x: Any) -> Any:
        return self.jax.nn.logsumexp(x, -1)

    def sigmoid(self, x: Any) -> Any:
        return self.jax.nn.sigmoid(x)

    def step(self, f: Function, arrays: Arrays) -> Step:
        values = [self.array(a) for a in arrays]
        run = self.compiled(f)
        return lambda: self.jax.block_until_ready(run(*values))

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

    def sigmoid(self, x: Any) -> Any:
        from autograd.scipy.special import expit

        return expit(x)

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

    def jacobian(self, f: Function, array: Any) -> Step:
        jacobian = self.autograd.jacobian(f)  # a pull for every output
        return lambda: jacobian(array)


class Mlx(Kit):
    def __init__(self) -> None:
        self.xp = mlx_core()

    def array(self, a: Any) -> Any:
        a = np.asarray(a)
        return self.xp.array(a, dtype=getattr(self.xp, a.dtype.name))

    def step(self, f: Function, arrays: Arrays) -> Step:
        values = [self.array(a) for a in arrays]

        def step() -> Any:
            found = f(*values)
            self.xp.eval(found)
            return found

        return step

    def value(self, f: Function, arrays: Arrays) -> Step:
        return self.step(f, arrays)

    def gradient(self, f: Function, arrays: Arrays) -> Step:
        return self.step(self.xp.grad(f, list(range(len(arrays)))), arrays)

    def columns(self, f: Function, arrays: Arrays, count: int) -> Step:
        def rows(*values: Any) -> Any:
            ones, zeros = (
                fill(len(arrays[0]), dtype=values[0].dtype) for fill in (self.xp.ones, self.xp.zeros)
            )
            seeds = [
                self.xp.stack([ones if i == k else zeros for k in range(count)], -1) for i in range(count)
            ]
            return [g for seed in seeds for g in self.xp.vjp(f, list(values), [seed])[1]]

        return self.step(rows, arrays)

    def hvp(self, f: Function, array: Any, vector: Any) -> Step:
        def both(x: Any, v: Any) -> Any:
            gradient, product = self.xp.jvp(self.xp.grad(f), [x], [v])
            return [gradient[0], product[0]]

        return self.step(both, [array, vector])

    def jacobian(self, f: Function, array: Any) -> Step:
        def all_columns(x: Any) -> Any:
            return self.xp.vmap(lambda v: self.xp.jvp(f, [x], [v])[1][0], out_axes=-1)(seeds)

        seeds = self.array(np.eye(len(array)))
        return self.step(all_columns, [array])


class _TinygradFunctions:
    """The methods of tinygrad's tensors as functions with NumPy's names."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)

    def stack(self, xs: Sequence[Any], axis: int = 0) -> Any:
        return self.tensor.stack(*xs, dim=axis)

    def concat(self, xs: Sequence[Any], axis: int) -> Any:
        return self.tensor.cat(*xs, dim=axis)


class Tinygrad(Kit):
    """A step is captured as a whole at its second call; from then on its kernels are replayed."""

    def __init__(self) -> None:
        self.tensor = tinygrad_cpu().Tensor
        self.xp = _TinygradFunctions(self.tensor)

    def array(self, a: Any) -> Any:
        return self.tensor(np.asarray(a)).realize()

    def step(self, f: Function, arrays: Arrays) -> Step:
        values, run = [self.array(a) for a in arrays], captured(f)
        return lambda: [v.numpy() for v in run(*values)]

    def value(self, f: Function, arrays: Arrays) -> Step:
        return self.step(lambda *values: [f(*values)], arrays)

    def gradient(self, f: Function, arrays: Arrays) -> Step:
        return self.step(lambda *values: f(*values).gradient(*values), arrays)

    def columns(self, f: Function, arrays: Arrays, count: int) -> Step:
        def rows(*values: Any) -> Any:
            out = f(*values)
            return [g for i in range(count) for g in out[:, i].sum().gradient(*values)]

        return self.step(rows, arrays)

    def hvp(self, f: Function, array: Any, vector: Any) -> Step:
        def both(x: Any, v: Any) -> Any:  # there is no forward mode
            (gradient,) = f(x).gradient(x)
            return [gradient, *(gradient * v).sum().gradient(x)]

        return self.step(both, [array, vector])


PEERS = "torch torch-compile jax jax-jit autograd mlx tinygrad"

KITS: dict[str, Callable[[], Kit]] = {
    "adjoint": Adjoint, "torch": Torch, "torch-compile": TorchCompiled, "jax": Jax, "jax-jit": JaxJit,
    "autograd": Autograd, "mlx": Mlx, "tinygrad": Tinygrad,
}  # fmt: skip


def engines(make: Callable[[Kit], Step], names: str = f"adjoint {PEERS}") -> dict[str, Callable[[], Step]]:
    """Return what a Case takes as engines: ``make`` with each of the named kits."""

    def engine(name: str) -> Callable[[], Step]:
        return lambda: make(KITS[name]())

    return {name: engine(name) for name in names.split()}
