"""Linear algebra in native code, by LAPACK for large matrices; singular ones raise what eager mode raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint.compiler.lower import primitives
from adjoint.errors import LinAlgError

pytest.importorskip("llvmlite")

al = ad.linalg
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "solve": al.solve,
    "inv": lambda a, y: al.inv(a) @ y,
    "cholesky": lambda a, y: al.cholesky(a) @ y,
    "cholesky, upper": lambda a, y: al.cholesky(a, upper=True) @ y,
    "lower": lambda a, y: al.solve_triangular(a, y, lower=True),
    "upper": lambda a, y: al.solve_triangular(a, y, lower=False),
    "unit": lambda a, y: al.solve_triangular(a, y, lower=True, unit_diagonal=True),
    "det": lambda a, y: al.det(a)[..., None, None] * y,
    "slogdet": lambda a, y: al.slogdet(a)[1][..., None, None] * al.slogdet(a)[0][..., None, None] * y,
}
TOLERANCE = {"f4": 2e-3, "f8": 1e-11}


def matrices(n: int, lead: tuple[int, ...], dtype: str, seed: int = 0) -> tuple[Any, Any]:
    """Return symmetric, positive definite matrices of moderate size, and right-hand sides."""
    r = np.random.default_rng((n, seed))
    a = r.normal(size=(*lead, n, n))
    a = a @ a.swapaxes(-1, -2) / n + np.eye(n)
    return a.astype(dtype), r.normal(size=(*lead, n, 3)).astype(dtype)


def numbers(found: Any) -> list[Any]:
    return [np.asarray(v) for v in ad.tree.leaves(found)]


def close(found: Any, expected: Any, dtype: str) -> None:
    for x, y in zip(numbers(found), numbers(expected), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, y, 0, TOLERANCE[dtype] * (np.abs(y).max(initial=0) + 1e-30))


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 17, 32, 33, 70])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name: str, n: int) -> None:
    f = FUNCTIONS[name]
    loss = lambda a, y: (f(a, y) ** 2).sum()
    for dtype, lead in (("f8", ()), ("f4", (3,)), ("f8", (2, 2))):
        given = matrices(n, lead, dtype)
        for g in (f, ad.grad(loss, argnums=(0, 1))):
            compiled = ad.compile(g, backend="native")
            close(compiled(*given), g(*given), dtype)
            assert "0 calls of NumPy" in compiled.explain()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives(name: str) -> None:
    loss = lambda a, y: (ad.sin(FUNCTIONS[name](a, y))).sum()
    second = ad.grad(lambda a, y: (ad.grad(loss)(a, y) ** 2).sum())
    given = matrices(4, (), "f8")
    close(ad.compile(second, backend="native")(*given), second(*given), "f8")


def test_general_matrices_need_row_exchanges() -> None:
    r = np.random.default_rng(0)
    for n in (2, 3, 7, 16, 40):
        a = r.normal(size=(50, n, n))
        a[:, 0, 0] = 0  # the first pivot is another row
        y = r.normal(size=(50, n, 2))
        for f in (al.solve, lambda a, y: al.det(a), lambda a, y: tuple(al.slogdet(a))):
            close(ad.compile(f, backend="native")(a, y), f(a, y), "f8")


def test_batches_broadcast() -> None:
    a, _ = matrices(4, (), "f8")
    for shapes in (((4, 4), (5, 4, 2)), ((5, 1, 4, 4), (3, 4, 2)), ((2, 4, 4), (4, 1)), ((4, 4), (4,))):
        x = np.broadcast_to(a, shapes[0]) + np.zeros(shapes[0])
        y = np.random.default_rng(0).normal(size=shapes[1])
        f = ad.grad(lambda x, y: ad.sin(al.solve(x, y)).sum(), argnums=(0, 1))
        close(ad.compile(f, backend="native")(x, y), f(x, y), "f8")


SINGULAR = np.array([[1.0, 2.0], [2.0, 4.0]])
INDEFINITE = np.array([[1.0, 2.0], [2.0, 1.0]])


@pytest.mark.parametrize(
    ("f", "bad"),
    [(al.inv, SINGULAR), (lambda a: al.solve(a, np.ones(2)), SINGULAR), (al.cholesky, INDEFINITE),
     (lambda a: al.solve_triangular(a, np.ones((2, 1)), lower=True), np.tri(2) * [1.0, 0.0]), (al.inv, np.zeros((2, 2)))],
)  # fmt: skip
def test_singular_matrices_raise_what_eager_mode_raises(f: Any, bad: Any) -> None:
    """Nothing is written then, and the next call is native again."""
    check_errors(f, bad, np.eye(2) + 0.1)


@pytest.mark.parametrize(
    ("f", "bad"),
    [(al.inv, SINGULAR), (lambda a: al.solve(a, np.ones(40)), SINGULAR), (al.cholesky, INDEFINITE),
     (lambda a: al.solve_triangular(a, np.ones((40, 2)), lower=True), np.tri(2) * [1.0, 0.0])],
)  # fmt: skip
def test_large_singular_matrices(f: Any, bad: Any) -> None:
    whole = np.eye(40)
    whole[:2, :2] = bad
    check_errors(f, whole, np.eye(40) + 0.1)


def check_errors(f: Any, bad: Any, good: Any) -> None:
    """Compare the errors of a step that calls ``f``, which must not change state, with those in eager mode."""
    w = ad.tensor(np.ones(()))

    def step(a: Any) -> Any:
        found = f(a)
        w.copy_(w + 1)
        return found

    compiled = ad.compile(step)
    for _ in range(3):
        close(compiled(good), f(good), "f8")
    for stack in (bad, np.stack([good, bad, good])):
        with pytest.raises(LinAlgError) as expected:
            f(stack)
        with pytest.raises(LinAlgError) as found:
            ad.compile(f)(stack), compiled(stack)
        assert str(found.value) == str(expected.value)
    assert w.item() == 4.0
    close(compiled(good), f(good), "f8")


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    "f", [al.inv, lambda a: al.solve(a, a[..., 0]), al.det, lambda a: tuple(al.slogdet(a))]
)
def test_pivots_that_rounding_errors_made(f: Any, dtype: str) -> None:
    """LAPACK may find a pivot of exactly 0 where other rounding errors give 1e-17, and the other way round."""
    r = np.random.default_rng(0)
    compiled = ad.compile(f, backend="native")

    def outcome(g: Any, a: Any) -> Any:
        with np.errstate(all="ignore"):
            try:
                return [x.tolist() for x in numbers(g(a))]
            except LinAlgError as error:
                return str(error)

    for n in [3] * 30 + [4, 6] * 10:
        a = (r.integers(-3, 4, (n, n - 1)) @ r.integers(-3, 4, (n - 1, n))).astype(dtype)
        assert outcome(compiled, a) == outcome(f, a)


def test_semidefinite_matrices_are_left_to_lapack() -> None:
    r = np.random.default_rng(0)
    compiled = ad.compile(al.cholesky, backend="native")
    for _ in range(30):
        b = r.integers(-3, 4, (3, 2))
        a = (b @ b.T).astype("f8")
        try:
            expected = al.cholesky(a)
        except LinAlgError:
            with pytest.raises(LinAlgError):
                compiled(a)
        else:
            np.testing.assert_array_equal(compiled(a), expected)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["solve", "inv", "lower", "det"])
def test_values_that_are_not_finite(name: str, value: float) -> None:
    a, y = matrices(3, (2,), "f8")
    compiled = ad.compile(FUNCTIONS[name], backend="native")
    for place in ((0, 1, 1), (1, 2, 0)):
        bad = a.copy()
        bad[place] = value
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(compiled(bad, y), FUNCTIONS[name](bad, y), 1e-10, 1e-12)


def test_det_of_singular_matrices_is_zero() -> None:
    for a in (SINGULAR, np.zeros((3, 3)), np.stack([SINGULAR, np.eye(2)])):
        for f in (al.det, ad.grad(lambda a: al.det(a).sum())):
            np.testing.assert_allclose(ad.compile(f, backend="native")(a), f(a), 1e-12, 1e-15)


def test_complex_and_empty_matrices_are_left_to_numpy() -> None:
    for a in (np.eye(2) * 1j, np.zeros((0, 0)), np.zeros((0, 3, 3))):
        np.testing.assert_array_equal(ad.compile(al.inv, backend="native")(a), al.inv(a))


def test_a_kalman_filter_is_one_loop() -> None:
    r = np.random.default_rng(0)
    a, c = np.eye(4) + 0.05 * r.normal(size=(4, 4)), r.normal(size=(2, 4))

    def loss(a: Any, ys: Any) -> Any:
        def step(carry: Any, y: Any) -> Any:
            mean, p, total = carry
            mean, p = a @ mean, a @ p @ a.T + 0.1 * np.eye(4)
            s, e = c @ p @ c.T + 0.2 * np.eye(2), y - c @ mean
            gain = al.solve(s, c @ p).T
            total = total + 0.5 * (e @ al.solve(s, e)) + ad.log(ad.diagonal(al.cholesky(s))).sum()
            return (mean + gain @ e, p - gain @ c @ p, total), None

        return ad.scan(step, (np.zeros(4), np.eye(4), np.zeros(())), ys)[0][2]

    ys = r.normal(size=(30, 2))
    f = ad.value_and_grad(loss)
    compiled = ad.compile(f)
    for _ in range(3):
        close(compiled(a, ys), f(a, ys), "f8")
    assert "0 calls of NumPy" in compiled.explain()


def test_without_scipy_numpy_computes_large_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    a, y = matrices(40, (), "f8")
    monkeypatch.setattr(primitives, "address_of", lambda name: None)
    f = ad.compile(al.solve, backend="native")
    np.testing.assert_array_equal(f(a, y), al.solve(a, y))
    assert "solve: linear algebra on large matrices has no native form without SciPy" in f.explain()
