"""Random loops for devices: as one kernel, and with kernels that the host starts in each iteration."""

from __future__ import annotations

from typing import Any

import numpy as np

import adjoint as ad
from adjoint import nn

F = nn.functional
WEIGHT = np.random.default_rng(9).normal(size=(24, 24))
ORDER = ad.tensor([3, 1, 1, 0, 2, 5, 4, 4])
# functions of a matrix of shape (8, 24)
OPS: list[Any] = [
    lambda c: ad.tanh(c @ WEIGHT.astype(c.dtype)) * 0.5,
    lambda c: c - c.mean(axis=1, keepdims=True),
    lambda c: c / (1 + ad.abs(c).sum(axis=0)),
    lambda c: F.softmax(c, axis=1),
    lambda c: ad.concatenate([c[:, 3:], c[:, :3]], axis=1),
    lambda c: c[ORDER],
    lambda c: ad.sort(c, axis=1),
    lambda c: ad.where(c > 0, c, c * 0.1),
    lambda c: F.conv2d(c.reshape(1, 1, 8, 24), ad.full((1, 1, 3, 3), 0.1, dtype=c.dtype), padding=1).reshape(
        8, 24
    ),
    lambda c: c / (c.max() - c.min() + 1),
    lambda c: ad.scan(lambda a, b: (a * 0.9 + b, a), c[0], c)[1],
    lambda c: (c[:, :8] @ c[:8, :8].T @ ad.ones((8, 24), dtype=c.dtype)) * 0.1 + c,
]


def drawn(seed: int, dtype: str) -> tuple[Any, Any]:
    """Return a function with a random loop and its gradient, and its arguments."""
    r = np.random.default_rng(seed)
    chosen, backwards = [OPS[k] for k in r.integers(0, len(OPS), 3)], bool(seed % 2)

    def body(c: Any, row: Any) -> Any:
        x = c + row
        for op in chosen:
            x = op(x)
        return ad.tanh(x), (x.sum(axis=1), x[0])

    def loss(c: Any, rows: Any) -> Any:
        last, outs = ad.scan(body, c, rows, reverse=backwards)
        return (last**2).sum() + outs[0].sum(), (last, outs)

    def both(c: Any, rows: Any) -> Any:
        return loss(c, rows)[1], ad.grad(lambda c: loss(c, rows)[0])(c)

    given = r.normal(size=(8, 24)), r.normal(size=(9, 8, 24))
    return both, tuple(ad.tensor(a.astype(dtype)) for a in given)


def check_loop(device: Any, compiled: Any, seed: int, dtype: str, tolerance: float, monkeypatch: Any) -> None:
    """Compare a random loop and its gradient with eager code; as one kernel it has fewer launches."""
    f, given = drawn(seed, dtype)
    wanted, launches = ad.tree.leaves(f(*given)), []
    for joins in (True, False):
        monkeypatch.setattr(device.dialect, "joins", joins)
        on_device = compiled(f)
        for a, b in zip(ad.tree.leaves(on_device(*given)), wanted, strict=True):
            size = float(np.abs(b.numpy()).max(initial=1))
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=tolerance, atol=tolerance * size)
        launches.append(on_device._variants[0].built.plan.count()["launches"])
    assert launches[0] < launches[1]
