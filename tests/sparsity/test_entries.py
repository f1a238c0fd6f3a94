"""Entries that compiled derivatives compute without storing the products: the same bits, for any program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import adjoint as ad
from adjoint.sparsity import entries

X = np.linspace(0.3, 1.7, 12)
ENDS = np.array([0, 3, 3, 5, 7, 7, 11, 2])


def stencil(x: Any) -> Any:
    wide = ad.pad(x.reshape(3, 4), ((1, 1), (1, 1)))
    return (4 * x - (wide[2:, 1:-1] + wide[:-2, 1:-1] + wide[1:-1, 2:]).reshape(-1)) * 2.0 + ad.exp(x) * x


def balance(x: Any) -> Any:
    """Sums of flows at the ends of lines, where several lines meet."""
    flow = ad.sin(x[ENDS] - x[ENDS[::-1]]) * x[ENDS]
    return ad.concat(
        [
            ad.zeros(12, dtype=x.dtype).at[ENDS].add(flow),
            ad.zeros(12, dtype=x.dtype).at[ENDS].add(flow * flow),
        ]
    )


def chained(x: Any) -> Any:
    a, b = x[1:] - x[:-1] * x[:-1], 1 - x[:-1]
    return (100 * a * a + b * b).sum()


def long(x: Any) -> Any:
    for k in range(300):
        x = x * 1.01 + ad.roll(x, 1) * (k % 3 == 0) * 0.01
    return ad.sin(x)


def wide(x: Any) -> Any:
    """Products with more factors than are gathered."""
    for k in range(40):
        x = x * (1 + 0.1 * ad.stop_gradient(ad.sin(x * k)))
    return x[1:] * x[:-1]


def halves(x: Any) -> Any:
    return ad.where(np.arange(12) % 2 == 0, -0.0 * x, ad.sqrt(x) * x[::-1])


def batched(x: Any) -> Any:
    return (x.reshape(3, 4) * x[:4] * x[5] * np.ones((1, 1), x.dtype) + x[:3, None]).T


PROGRAMS: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    *((ad.jacobian, f) for f in (stencil, balance, long, wide, halves, batched)),
    (ad.hessian, chained),
    (ad.hessian, lambda x: (balance(x) ** 2).sum()),
    (ad.hessian, lambda x: (stencil(x) * ad.cos(x)).sum()),
]


@pytest.mark.parametrize("k", range(len(PROGRAMS)))
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_bits_of_stored_products(k: int, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    transform, f = PROGRAMS[k]
    found, x = [], X.astype(dtype)
    for most in (24, -1):  # without gathers, products are stored
        monkeypatch.setattr(entries, "_MOST", most)
        derivative = ad.compile(transform(f, sparse=True))
        found.append([derivative(x).toarray() for _ in range(3)][-1])
    assert found[0].dtype == dtype
    assert found[0].tobytes() == found[1].tobytes()
    np.testing.assert_allclose(found[0], np.reshape(transform(f)(x), found[0].shape), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("transform", "f"), [(ad.jacobian, stencil), (ad.hessian, chained)])
def test_products_are_not_stored(transform: Any, f: Any) -> None:
    derivative = ad.compile(transform(f, sparse=True))
    for _ in range(3):
        found = derivative(X)
    text = str(derivative.explain())
    assert "pieces" not in text and "unindex" not in text
    assert text.count("loop") <= 3
    assert "concat" not in derivative.program(X)
    found.data[:] = 0  # also constant entries are new memory
    assert derivative(X).data.any()


def test_derivatives_of_entries_need_the_products() -> None:
    jacobian = ad.jacobian(stencil, sparse=True)
    compiled = ad.compile(ad.grad(lambda x: (jacobian(x).data ** 3).sum()))
    for _ in range(3):
        found = compiled(X)
    np.testing.assert_allclose(found, ad.grad(lambda x: (ad.jacobian(stencil)(x) ** 3).sum())(X), rtol=1e-12)


INNER: dict[str, Callable[[Any], Any]] = {
    "sqrt": lambda x: ad.sqrt(x[:-1]) + x[1:],
    "power": lambda x: x**0.5 * x[::-1],
    "arrow": lambda x: ad.concat([ad.sqrt(x).sum()[None], x[0] * x[1:]]),
    "linear": lambda x: x[1:] - x[:-1],
    "an empty part": lambda x: (ad.sqrt(x[:2]), x[:0]),
}
POINTS = np.array([[1.0, 2, 3, 4], [0, 1, 2, 3], [np.nan, 1, 2, 3], [4, 0, 0, 1], [1, 2, 3, 5]])


@pytest.mark.parametrize("name", INNER)
@pytest.mark.parametrize("mode", [True, "columns", "rows"])
def test_inside_compiled_functions(name: str, mode: Any) -> None:
    """The kept zeros are computed only in calls where an entry is NaN, also in loops and in batches."""
    f = INNER[name]
    first = lambda tree: ad.tree.leaves(tree)[0]
    inner = lambda x: (lambda found: found[0] if type(found) is tuple else found)(
        ad.jacobian(f, sparse=mode)(x)
    ).toarray()
    blank = ad.zeros((first(ad.jacfwd(f)(X[:4])).size // 4, 4))
    in_loop = lambda x: ad.fori_loop(0, 9, lambda i, s: (x, inner(s[0])), (x, blank))[1]
    forms: list[Any] = [
        ad.compile(inner),
        ad.compile(inner, backend="replay"),
        ad.compile(in_loop),
        lambda x: ad.vmap(ad.compile(inner))(x[None])[0],
        lambda x: ad.compile(ad.vmap(in_loop))(x[None])[0],
    ]
    for x in POINTS:
        dense = first(ad.jacrev(f)(x) if mode == "rows" else ad.jacfwd(f)(x)).reshape(-1, 4)
        for form in forms:
            np.testing.assert_allclose(form(x), dense, rtol=1e-12)


def test_inside_compiled_functions_products_are_not_stored() -> None:
    for derivative in (ad.jacobian(stencil, sparse=True), ad.hessian(chained, sparse=True)):
        compiled = ad.compile(lambda x, f=derivative: f(x).data)
        for _ in range(3):
            compiled(X)
        text = str(compiled.explain())
        assert "unindex" not in text and text.count("loop") <= 3


def test_masks_and_numbers_are_read_once() -> None:
    """Equal and opposite masks are one array, and numbers that broadcast are not gathered."""
    h = ad.compile(ad.hessian(chained, sparse=True))
    found = h(X)
    np.testing.assert_array_equal(found.toarray(), ad.hessian(chained, sparse=True)(X).toarray())
    lines = str(h.program(X)).splitlines()
    masks = [line for line in lines if ": bool[34]" in line and "<- array" in line]
    gathered = [line for line in lines if "= index(" in line and "float64[34]" in line]
    assert len(masks) <= 6 and len(gathered) == 3, (masks, gathered)
