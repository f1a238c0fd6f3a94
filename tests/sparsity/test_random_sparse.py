"""Random programs with constants, indices, loops and transforms: no entry is missing, and values are those of dense derivatives."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import adjoint as ad

N = 8  # short loops are unrolled
Step = Callable[[Any, Any, Any], Any]
# Each step maps two vectors, with constants k, to a vector.
STEPS: dict[str, Step] = {
    "product": lambda x, y, k: x * y,
    "reversed": lambda x, y, k: ad.sin(x) + y[::-1],
    "quotient": lambda x, y, k: x / (2 + y * y),
    "an index": lambda x, y, k: x[k.index] * y,
    "a tensor as index": lambda x, y, k: x[k.places] + k.factor * y,
    "a scatter": lambda x, y, k: ad.zeros(N, dtype=x.dtype).at[k.index].add(x) * y,
    "set": lambda x, y, k: x.at[k.index[:3]].set(y[:3] * x[:3]),
    "a condition": lambda x, y, k: ad.where(k.condition, x, y * y),
    "a tensor as condition": lambda x, y, k: ad.where(k.chosen, x, y),
    "maxima": lambda x, y, k: ad.maximum(x, y) * k.mask,
    "a matrix": lambda x, y, k: k.matrix @ x + y,
    "a sum of products": lambda x, y, k: ad.einsum("ij,j,j->i", k.matrix, x, y),
    "outer": lambda x, y, k: (x[None] * y[:, None] * k.matrix).sum(axis=1),
    "a matrix of SciPy": lambda x, y, k: ad.scipy.sparse.csr_array(scipy.sparse.csr_array(k.matrix)) @ x + y,
    "running": lambda x, y, k: ad.cumsum(x) * k.mask + y,
    "rolled": lambda x, y, k: ad.roll(x, 2) * k.mask + y,
    "padded": lambda x, y, k: ad.pad(x[1:] * y[:-1], (0, 1)),
    "joined": lambda x, y, k: ad.concat([x[3:], y[:3]]),
    "sorted": lambda x, y, k: ad.sort(x) + y,
    "softmax": lambda x, y, k: ad.softmax(x) * k.mask,
    "detached": lambda x, y, k: ad.stop_gradient(x) * y,
    "a loop": lambda x, y, k: ad.fori_loop(0, 3, lambda i, v: ad.tanh(v) * k.mask + ad.roll(v, 1), x) + y,
    "a scan": lambda x, y, k: ad.scan(lambda c, r: (c * 0.5 + r, c * r), x[0], y)[1] + x,
    "a search": lambda x, y, k: (
        ad.while_loop(
            lambda s: (s[0] < 2) & (s[1].sum() < k.factor),
            lambda s: (s[0] + 1, s[1] + s[1][k.index]),
            (0, x),
            limit=2,
        )[1]
        * y
    ),
    "a branch": lambda x, y, k: ad.cond(x.sum() > k.factor, ad.exp, lambda a: a[::-1], x) + y,
    "a map": lambda x, y, k: ad.map(lambda r: r * r, x) * y,
    "a batch": lambda x, y, k: ad.vmap(lambda a, b: a * b + a * a)(x, y),
    "a checkpoint": lambda x, y, k: ad.checkpoint(lambda a, b: ad.sin(a) * b, x, y[k.index]),
    "a tangent": lambda x, y, k: ad.jvp(lambda a: a * a[k.index] * a, (x,), (y,))[1],
    "a gradient": lambda x, y, k: ad.grad(lambda a: (ad.sin(a) * y * a[::-1]).sum())(x),
    "a root": lambda x, y, k: ad.root(lambda z: z + 0.1 * z**3 - k.mask * y, x * 0, sparse=True),
}
DERIVATIVES: dict[str, Any] = {
    "Jacobian": lambda f, mode: ad.jacobian(f, sparse=mode),
    "compiled": lambda f, mode: ad.compile(ad.jacobian(f, sparse=mode)),
    "inside": lambda f, mode: ad.compile(lambda x: ad.jacobian(f, sparse=mode)(x).toarray()),
    "batch": lambda f, mode: lambda x: ad.vmap(ad.jacobian(f, sparse=mode))(x[None]).toarray()[0],
    "Hessian": lambda f, mode: ad.hessian(lambda x: (f(x) ** 2).sum(), sparse=True),
    "compiled Hessian": lambda f, mode: ad.compile(ad.hessian(lambda x: (f(x) ** 2).sum(), sparse=True)),
}


def program(rng: np.random.Generator) -> tuple[Callable[[Any], Any], list[str]]:
    """A random function of a vector with N elements, and the names of its steps."""
    names = rng.choice(list(STEPS), rng.integers(1, 6)).tolist()
    constants, operands = [], []
    for n in range(len(names)):
        k = SimpleNamespace(
            index=rng.integers(0, N, N), factor=float(rng.normal()), condition=rng.random(N) < 0.5
        )
        k.mask, k.matrix = (rng.normal(size=s) * (rng.random(s) < 0.5) for s in (N, (N, N)))
        k.places, k.chosen = ad.tensor(k.index), ad.tensor(k.condition)
        constants.append(k)
        operands.append(rng.integers(0, n + 1, 2).tolist())

    def f(x: Any) -> Any:
        values = [x]
        for name, k, (i, j) in zip(names, constants, operands, strict=True):
            values.append(STEPS[name](values[i], values[j], k))
        return values[-1]

    return f, names


@pytest.mark.filterwarnings("ignore:jacobian. the sparse Jacobian")
@pytest.mark.parametrize("seed", range(18))
def test_random_programs_with_constants(seed: int) -> None:
    rng = np.random.default_rng(seed)
    f, _ = program(rng)
    points = [rng.normal(size=N) for _ in range(2)]
    name = list(DERIVATIVES)[seed % len(DERIVATIVES)]
    hessian = "Hessian" in name
    loss = lambda x: (f(x) ** 2).sum()
    dense = [(ad.hessian(loss) if hessian else ad.jacfwd(f))(x) for x in points]
    pattern = ad.sparsity.hessian(loss, points[0]) if hessian else ad.sparsity.jacobian(f, points[0])
    derivative = DERIVATIVES[name](f, [True, "columns", "rows", "both"][rng.integers(0, 4)])
    for x, d in zip([*points, points[0]], [*dense, dense[0]], strict=True):
        scale = max(1.0, np.abs(d).max())
        assert (np.abs(d[~pattern.toarray()]) <= 1e-12 * scale).all()
        found = derivative(x)
        found = found if isinstance(found, np.ndarray) else found.toarray()
        np.testing.assert_allclose(found, d, rtol=1e-8, atol=1e-10 * scale)
