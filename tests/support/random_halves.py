"""Random programs in half precision: compiled functions return the dtypes and bytes of eager ones.

``compare(seed, backend)`` draws a function of two tensors, a number and captured values, and one of its
derivatives.  Replay gives the same bytes; native code the same dtypes, and numbers to rounding, because its
kernels compute the float32 parts of a program.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import adjoint as ad
from adjoint import nn

F = nn.functional
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [BFLOAT16, BFLOAT16, np.dtype(np.float16), np.dtype(np.float32)]
SHAPES = [(), (1,), (5,), (2, 3), (4, 5), (3, 1), (0, 2)]

UNARY: list[Callable[[Any], Any]] = [
    ad.sqrt, ad.exp2, ad.log2, ad.log10, ad.arcsinh, ad.sigmoid, ad.tanh, ad.exp, ad.sin, ad.abs, ad.square,
    F.leaky_relu, F.elu, F.selu, F.gelu, F.silu, F.softplus, F.relu, ad.log1p, ad.arctan, ad.cbrt, ad.special.erf,
    lambda a: ad.clip(a, -0.5, 0.75), lambda a: ad.maximum(a, 0.25), lambda a: ad.fmax(0.1, a),
    lambda a: ad.where(a > 0.2, a, 0.3), lambda a: a**3, lambda a: ad.abs(a) ** 0.5, lambda a: 1.5 / (2 + a * a),
    lambda a: 2**a, lambda a: F.gelu(a, approximate="tanh"), lambda a: a.sum() * 0.5 + a, lambda a: a.mean() - a if a.size else a * 2.5,
    lambda a: F.softmax(a, axis=-1) if a.ndim else a, lambda a: ad.logsumexp(a) if a.size else a.sum(),
    lambda a: a.astype(np.float32) * 0.7, lambda a: a.astype(ml_dtypes.bfloat16) + 0.3, lambda a: ad.deg2rad(a),
    lambda a: ad.hypot(a, 0.5), lambda a: ad.atan2(0.5, a), lambda a: ad.logaddexp(a, 0.1), lambda a: a.detach() * a,
    lambda a: a.mean(axis=0) + a if a.size and a.ndim else a, lambda a: a.sum(axis=-1, keepdims=True) - a if a.ndim else a,
    lambda a: ad.var(a) + a if a.size else a, lambda a: F.layer_norm(a, a.shape[-1:]) if a.ndim and a.size else a,
]  # fmt: skip
BINARY: list[Callable[[Any, Any], Any]] = [
    ad.add, ad.subtract, ad.multiply, ad.maximum, ad.minimum, ad.fmax, ad.hypot, ad.atan2, ad.logaddexp,
    lambda a, b: a / (1.25 + b * b), lambda a, b: ad.where(a > b, a, b * 0.5), lambda a, b: a + 0.3 * (b - a),
    lambda a, b: _written(a, b),
]  # fmt: skip


def _written(a: Any, b: Any) -> Any:
    c = a * 1
    if np.broadcast_shapes(a.shape, b.shape) == a.shape and a.dtype == np.result_type(a.dtype, b.dtype):
        c += b
    c *= 0.75
    return c


def function(rng: np.random.Generator, captured: list[Any]) -> Callable[..., Any]:
    """Return a random function of two tensors and a number, which also uses captured values."""
    plan = [tuple(map(int, rng.integers(0, 1 << 20, 4))) for _ in range(int(rng.integers(1, 6)))]

    def f(x: Any, y: Any, r: float) -> Any:
        values = [x, y]
        for kind, k, i, j in plan:
            a, b = values[i % len(values)], [*values, *captured][j % (len(values) + len(captured))]
            if kind % 8 < 4:
                values.append(UNARY[k % len(UNARY)](a))
            elif kind % 8 < 7:
                values.append(BINARY[k % len(BINARY)](a, b))
            else:
                values.append([lambda a: a * r, lambda a: r - a, lambda a: ad.maximum(a, r)][k % 3](a))
        return values[-1]

    return f


def modes(f: Any) -> list[Callable[..., Any]]:
    """Return the function, its gradients to second order, a tangent and a batch."""
    total = lambda x, y, r: f(x, y, r).astype(np.float32).sum()
    first = ad.grad(total, argnums=(0, 1))
    return [
        f,
        first,
        ad.grad(lambda x, y, r: sum((g * 0.5 * g).astype(np.float32).sum() for g in first(x, y, r))),
        lambda x, y, r: ad.jvp(lambda a, b: f(a, b, r), (x, y), (x * 0.5, ad.ones_like(y))),
        lambda x, y, r: (
            ad.vmap(lambda a, b: f(a, b, r))(x, y) if x.ndim and x.shape == y.shape else f(x, y, r)
        ),
        lambda x, y, r: ad.vjp(lambda a, b: f(a, b, r), x, y)[0],
        ad.grad(lambda x, y, r: f(x, y, r).sum(), argnums=(0, 1)),
    ]


def leaves(value: Any) -> list[Any]:
    found = [t.detach().numpy() if isinstance(t, ad.Tensor) else np.asarray(t) for t in ad.tree.leaves(value)]
    return [np.array(a) for a in found]


def compare(seed: int, backend: str) -> None:
    """Raise unless a compiled program returns what the function returns; twice, so that it runs untraced."""
    rng = np.random.default_rng(seed)
    dtype, other = (DTYPES[int(rng.integers(len(DTYPES)))] for _ in range(2))
    other = dtype if other == np.float16 or dtype == np.float16 or rng.random() < 0.7 else other
    shape = SHAPES[int(rng.integers(len(SHAPES)))]
    second = shape if rng.random() < 0.8 else ()
    draw = lambda s, d: rng.uniform(-1, 1.5, s).astype(d)
    captured = [
        draw(shape, dtype),
        ad.tensor(draw((), dtype)),
        ad.tensor(draw(shape, dtype), requires_grad=True),
    ]
    f = function(rng, captured)
    mode = int(rng.integers(7))
    g = modes(f)[mode]
    compiled = ad.compile(g, backend=backend)
    where = f"seed {seed}, {backend}, mode {mode}, {dtype}, {other}, {shape}"
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(2):
            x, y, r = (
                ad.tensor(draw(shape, dtype)),
                ad.tensor(draw(second, other)),
                float(rng.uniform(0.1, 2)),
            )
            try:
                wanted = leaves(g(x, y, r))
            except (ad.errors.AdjointError, TypeError):
                return  # no gradient reaches an argument, or float16 meets bfloat16
            for a, b in zip(leaves(compiled(x, y, r)), wanted, strict=True):
                assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{where}: {a.dtype} for {b.dtype}"
                if backend == "replay":
                    assert a.tobytes() == b.tobytes() or np.array_equal(
                        a.astype(float), b.astype(float), equal_nan=True
                    ), f"{where}: {a} for {b}"
                else:
                    _check_close(a.astype(float), b.astype(float), f"{where}: {a} for {b}")


def _check_close(a: Any, b: Any, text: str) -> None:
    finite = np.isfinite(a) & np.isfinite(b)
    scale = 1 + np.abs(b[finite]).max(initial=0.0)
    assert np.abs(a - b)[finite].max(initial=0.0) <= 0.05 * scale, text
