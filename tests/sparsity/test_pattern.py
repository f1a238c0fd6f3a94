"""Patterns of functions: exact for moves, elementwise ops, reductions and known indices; wider for others."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import adjoint as ad

X = np.linspace(0.5, 1.5, 12)
INDEX = np.array([3, 1, 0, 0, 11])
UPPER = np.triu(np.ones((12, 12)), 8)
GRID = scipy.sparse.diags_array([np.ones(11), -np.ones(12)], offsets=[1, 0]).tocsr()

EXACT: dict[str, Callable[[Any], Any]] = {
    "slices": lambda x: x[1:] * x[:-1] + x[::-1][1:],
    "shapes": lambda x: ad.moveaxis(x.reshape(3, 4).T[None], 0, -1)[::2].reshape(-1) ** 2,
    "broadcast": lambda x: ad.broadcast_to(x[:3], (2, 3)) * 2,
    "joined": lambda x: ad.concat([x[4:], ad.stack([x[0], x[1]])]) ** 3,
    "padded": lambda x: ad.pad(ad.roll(x, 2), (1, 2)),
    "triangles": lambda x: ad.tril(x.reshape(3, 4)) @ np.ones(4),
    "diagonals": lambda x: ad.diagonal(x.reshape(3, 4)) + ad.diag(x[:3])[0],
    "a known index": lambda x: x[INDEX] ** 2,
    "known rows": lambda x: ad.take(x.reshape(6, 2), np.array([5, 0]), axis=0),
    "a known scatter": lambda x: ad.zeros(12).at[INDEX].add(x[:5]),
    "set": lambda x: x.at[2:4].set(x[8:10] ** 2),
    "a known condition": lambda x: ad.where(X > 1, x, x[::-1]),
    "a known mask": lambda x: (x * (X > 1)).reshape(3, 4).sum(axis=0),
    "sums": lambda x: x.reshape(3, 4).sum(axis=1) * x[:3],
    "means": lambda x: ad.mean(x.reshape(3, 4), axis=0, keepdims=True),
    "running sums": lambda x: ad.cumsum(x.reshape(3, 4), axis=1),
    "known zeros in a product": lambda x: UPPER[:4] @ x,
    "known zeros in an einsum": lambda x: ad.einsum("ij,jk->ik", UPPER[:4], x.reshape(12, 1)),
    "a product": lambda x: x.reshape(3, 4) @ np.ones((4, 2)),
    "products of rows": lambda x: ad.einsum("ij,ij->i", x.reshape(3, 4), x.reshape(3, 4)),
    "a matrix of SciPy": lambda x: ad.scipy.sparse.csr_array(GRID) @ ad.sin(x),
    "softmax of rows": lambda x: ad.softmax(x.reshape(3, 4) ** 2),
    "a convolution": lambda x: ad.scipy.signal.convolve(x, np.array([1.0, 2.0, 3.0])),
    "pooling": lambda x: ad.nn.functional.avg_pool1d(x[None, None], 3),
    "solves": lambda x: ad.linalg.solve(x.reshape(3, 2, 2) + 2 * np.eye(2), np.ones((3, 2, 1))),
    "a tensor of a constant": lambda x: ad.asarray(UPPER)[:4] @ x,
    "what is detached": lambda x: x[:3] * 2 + ad.stop_gradient(x[3:6]),
    "nothing": lambda x: ad.floor(ad.stop_gradient(x)),
}  # fmt: skip


def _scan(reverse: bool) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        last, rows = ad.scan(lambda c, r: (c * 0.5 + r, ad.sin(c)), x[0], x, reverse=reverse)
        return ad.concat([rows, last[None]])

    return f


PLACES, CHOSEN = ad.tensor(INDEX), ad.tensor(X > 1)
EXACT |= {
    "a tensor as an index": lambda x: x[PLACES] ** 2,
    "a tensor as rows": lambda x: ad.take(x.reshape(6, 2), PLACES % 6, axis=0),
    "a tensor as places": lambda x: ad.zeros(12).at[PLACES].add(x[:5]),
    "a tensor as a condition": lambda x: ad.where(CHOSEN, x, x[::-1]),
    "a tensor as an index in a loop": lambda x: ad.fori_loop(
        0, 3, lambda i, v: v * v[PLACES[1:] % 4], x[2:6]
    ),
}
EXACT["a loop"] = _scan(False)
EXACT["a loop backwards"] = _scan(True)
EXACT["a carry of two"] = lambda x: ad.scan(lambda c, r: ((c[1], c[0] * r), c[0] + r), (x[0], x[1]), x[2:])[1]
EXACT["ad.map"] = lambda x: ad.map(lambda r: ad.sin(r) * r, x)
EXACT["a checkpoint"] = lambda x: ad.checkpoint(lambda y: ad.sin(y) * x, x)
EXACT["a loop that reads a value"] = lambda x: ad.fori_loop(0, 9, lambda i, v: v * x[:2] + 1, x[2:4])


@pytest.mark.parametrize("name", EXACT)
def test_is_exact(name: str) -> None:
    f = EXACT[name]
    dense = np.reshape(ad.jacobian(f)(X), (-1, 12))
    np.testing.assert_array_equal(ad.sparsity.jacobian(f, X).toarray(), dense != 0)
    np.testing.assert_allclose(ad.jacobian(f, sparse=True)(X).toarray(), dense, rtol=1e-12)


WIDER: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "a computed index": (
        lambda x: ad.take(x.reshape(6, 2), ad.argsort(x[:3]), axis=0),
        np.tile(np.eye(2, dtype=bool), (3, 6)),
    ),
    "sort": (lambda x: ad.sort(x.reshape(3, 4)), np.kron(np.eye(3), np.ones((4, 4))) != 0),
    "maxima": (lambda x: x.reshape(3, 4).max(axis=1), np.kron(np.eye(3), np.ones((1, 4))) != 0),
    "a condition on the input": (lambda x: ad.where(x > 1, x, x[::-1]), np.eye(12)[::-1] + np.eye(12) != 0),
    "decompositions": (lambda x: ad.linalg.eigvalsh(x[:4].reshape(2, 2)), np.arange(24).reshape(2, 12) % 12 < 4),
}  # fmt: skip


@pytest.mark.parametrize("name", WIDER)
def test_is_wider(name: str) -> None:
    f, expected = WIDER[name]
    np.testing.assert_array_equal(ad.sparsity.jacobian(f, X).toarray(), expected)
    dense = np.reshape(ad.jacobian(f)(X), (-1, 12))
    np.testing.assert_allclose(ad.jacobian(f, sparse=True)(X).toarray(), dense, atol=1e-14)


def test_rules_of_the_user_decide_and_not_the_forward() -> None:
    @ad.custom_vjp
    def step(x: Any) -> Any:
        return ad.where(x > 0, 1.0, 0.0)

    step.defvjp(lambda x: (step(x), x), lambda x, g: (g * (1 + x[::-1] * 0),))
    f = lambda x: step(x[:3])
    np.testing.assert_array_equal(ad.sparsity.jacobian(f, X).toarray(), np.eye(3, 12) != 0)
    np.testing.assert_array_equal(ad.jacobian(f, sparse=True)(X).toarray(), np.eye(3, 12))


HESSIANS: dict[str, Callable[[Any], Any]] = {
    "linear": lambda x: (UPPER @ x).sum(),
    "chained": lambda x: ((1 - x[:-1]) ** 2 + 100 * (x[1:] - x[:-1] ** 2) ** 2).sum(),
    "separable": lambda x: (ad.exp(x) / x).sum(),
    "pairs": lambda x: (x[:6] * x[6:]).sum(),
    "a quotient": lambda x: (x[:6] / x[6:]).sum(),
    "an arrow": lambda x: (x[0] * x[1:] ** 2).sum(),
    "groups": lambda x: ad.logsumexp(x.reshape(3, 4), axis=1).sum(),
    "a quadratic form": lambda x: x @ (GRID.toarray() @ x),
    "norms": lambda x: ad.sqrt((x.reshape(6, 2) ** 2).sum(axis=1)).sum(),
}


@pytest.mark.parametrize("name", HESSIANS)
def test_hessians(name: str) -> None:
    f = HESSIANS[name]
    dense = ad.hessian(f)(X)
    np.testing.assert_array_equal(ad.sparsity.hessian(f, X).toarray(), dense != 0)
    np.testing.assert_allclose(ad.hessian(f, sparse=True)(X).toarray(), dense, rtol=1e-11, atol=1e-13)


def test_trees() -> None:
    f = lambda p, k: {"a": p["x"] * k, "b": (p["x"][:2] * p["y"], p["y"])}
    args = {"x": np.ones(3), "y": np.ones(2)}, 2.0
    found = ad.sparsity.jacobian(f, *args)
    assert found["b"][0]["y"].toarray().tolist() == [[True, False], [False, True]]
    assert found["b"][1]["x"].nnz == 0 and found["a"]["x"].shape == (3, 3)
    of_both = ad.sparsity.jacobian(f, *args, argnums=(0, 1))
    assert of_both["a"][1].toarray().tolist() == [[True]] * 3


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_0d_and_empty(shape: tuple[int, ...]) -> None:
    x = np.ones(shape)
    size = x.size
    pattern = ad.sparsity.jacobian(lambda x: x**2, x)
    np.testing.assert_array_equal(pattern.toarray(), np.eye(size, dtype=bool))
    found = ad.jacobian(lambda x: x**2, sparse=True)(x)
    np.testing.assert_array_equal(found.toarray(), 2 * np.eye(size))
    assert ad.hessian(lambda x: (x**3).sum(), sparse=True)(x).shape == (size, size)


def test_a_large_pattern_takes_memory_in_its_entries() -> None:
    n = 100_000
    pattern = ad.sparsity.jacobian(lambda x: x[:-2] * x[1:-1] + ad.exp(x[2:]), np.ones(n))
    assert pattern.shape == (n - 2, n) and pattern.nnz == 3 * (n - 2)


@pytest.mark.parametrize(
    ("f", "count"),
    [
        (lambda x: x - x.mean(), "1.0e+10"),
        (ad.cumsum, "5.0e+09"),
        (ad.sort, "1.0e+10"),
        (lambda x: ad.outer(x, x).sum(axis=0), "1.0e+10"),
    ],
)
def test_a_dense_result_of_many_elements_is_an_error_in_words(f: Any, count: str) -> None:
    tracemalloc.start()
    with pytest.raises(ad.errors.InputError, match=re.escape(f"pattern has {count} entries")):
        ad.sparsity.jacobian(f, np.ones(100_000))
    assert tracemalloc.get_traced_memory()[1] < 1e8
    tracemalloc.stop()


def test_a_condition_on_a_tensor_is_the_usual_error() -> None:
    f = lambda x: x if x.sum() > 0 else -x
    for call in (lambda: ad.sparsity.jacobian(f, X), lambda: ad.jacobian(f, sparse=True)(X)):
        with pytest.raises(
            ad.errors.AdjointError, match="needs the value of a tensor for a Python condition"
        ):
            call()


def test_wrong_arguments() -> None:
    with pytest.raises(ad.errors.InputError, match="expected a function, but got int"):
        ad.sparsity.jacobian(3, X)  # type: ignore[arg-type]
    with pytest.raises(ad.errors.ShapeError, match="returned shape"):
        ad.sparsity.hessian(lambda x: x, X)
    with pytest.raises(ad.errors.TransformError, match="x contains no tensors"):
        ad.sparsity.jacobian(lambda x: x, "text")
