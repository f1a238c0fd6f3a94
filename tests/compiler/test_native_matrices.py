"""Linear algebra in native code, by LAPACK for large matrices; singular ones raise what eager mode raises."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
    "qr": lambda a, y: al.qr(a)[0] ** 3 @ y,
    "qr, r": lambda a, y: ad.sin(al.qr(a, mode="r")) @ y,
    "qr, wide": lambda a, y: ad.sin(al.qr(ad.concat([a, y], axis=-1))[1]),
    "qr, tall": lambda a, y: al.qr(ad.concat([a, a * a + 1], axis=-2))[0] ** 2 @ y,
    "qr, complete": lambda a, y: (
        projection(al.qr(ad.concat([a, a * a + 1], axis=-2), mode="complete")[0]) @ ad.concat([y, y], axis=-2)
    ),
}


def projection(q: Any) -> Any:
    """Return the projection on the space of the additional columns of q."""
    rest = q[..., q.shape[-1] // 2 :]
    return rest @ rest.mT


EIGEN: dict[str, Callable[[Any, Any], Any]] = {
    "eigh": lambda a, y: al.eigh(a)[1] ** 4 @ y,
    "eigh, upper": lambda a, y: ad.cos(al.eigh(a + ad.triu(a, k=1), UPLO="U")[1]) @ y,
    "eigh, values": lambda a, y: al.eigh(a)[0][..., None] ** 2 * y,
    "eigvalsh": lambda a, y: ad.sin(al.eigvalsh(a))[..., None] * y,
    "eigvalsh, upper": lambda a, y: al.eigvalsh(a + ad.tril(a, k=-1), UPLO="U")[..., None] * y,
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
    close_to(found, expected, TOLERANCE[dtype])


def close_to(found: Any, expected: Any, tolerance: float) -> None:
    """Compare results; ``tolerance`` is relative to the largest number of each."""
    for x, y in zip(numbers(found), numbers(expected), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, y, 0, tolerance * (np.abs(y).max(initial=0) + 1e-30))


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


@pytest.mark.parametrize("n", [1, 2, 5, 17, 33, 70])
@pytest.mark.parametrize("name", EIGEN)
def test_eigenvalues(name: str, n: int) -> None:
    """NumPy computes eigenvectors in float32, because their signs differ."""
    f = EIGEN[name]
    loss = lambda a, y: (f(a, y) ** 2).sum()
    for dtype, lead in (("f8", ()), ("f4", (2,)), ("f8", (2, 2))):
        given = matrices(n, lead, dtype)
        for g in (f, ad.grad(loss, argnums=(0, 1))):
            compiled = ad.compile(g, backend="native")
            found, expected = compiled(*given), g(*given)
            if dtype == "f8":
                close_to(found, expected, 1e-9)
                assert "0 calls of NumPy" in compiled.explain()
            else:
                close_to(found, expected, 0.1)
                assert g is not f or name.startswith("eigvalsh") == ("0 calls of NumPy" in compiled.explain())
    second = ad.grad(lambda a, y: (ad.grad(loss)(a, y) ** 2).sum())
    given = matrices(4, (), "f8")
    close_to(ad.compile(second, backend="native")(*given), second(*given), 1e-8)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("n", [1, 3, 6, 20, 40])
def test_factors_of_special_matrices(n: int, dtype: str) -> None:
    """Diagonal, zero, tiny and huge matrices, equal eigenvalues, and values in the triangle that is not read."""
    r = np.random.default_rng(n)
    x = r.normal(size=(n, n))
    tiny = 1e-30 if dtype == "f4" else 1e-290
    step = r.normal(size=(n, n))
    given = [x, np.tril(x), np.triu(x), np.diag(np.arange(n) % 3.0), np.eye(n), np.zeros((n, n)), x * tiny,
             x / tiny, step @ np.diag(np.arange(n) > 0) @ step.T, np.ones((n, n))]  # fmt: skip
    stack = np.stack(given).astype(dtype)
    functions: list[Callable[[Any], Any]] = [
        lambda a: tuple(al.eigh(a)), lambda a: tuple(al.eigh(a, UPLO="U")), lambda a: al.eigvalsh(a),
        lambda a: al.eigvalsh(a, UPLO="U"), lambda a: tuple(al.qr(a)), lambda a: al.qr(a, mode="r"),
        lambda a: tuple(al.qr(a[..., : n // 2 + 1], mode="complete")),
    ]  # fmt: skip
    for k, f in enumerate(functions):
        compiled = ad.compile(f, backend="native")
        for a in (stack, *stack):
            found, expected = numbers(compiled(a)), numbers(f(a))
            for z, wanted in zip(found, expected, strict=True):
                assert (z.shape, z.dtype) == (wanted.shape, wanted.dtype)
            size = np.abs(a).max(axis=(-2, -1), keepdims=True) + np.finfo(dtype).tiny
            tolerance = 1e3 * np.finfo(dtype).eps
            if len(found) == 1:
                if k < 4:
                    size = size[..., 0]
                assert (np.abs(np.abs(found[0]) - np.abs(expected[0])) <= n * tolerance * size).all()
                continue
            first, second = found  # vectors may differ where values are equal
            vectors = second if k < 2 else first
            eye = vectors.swapaxes(-1, -2) @ vectors - np.eye(vectors.shape[-1])
            assert np.abs(eye).max() <= tolerance
            read = a[..., : n // 2 + 1] if k == 6 else a
            if k < 2:
                half = np.tril(a, -1) if k == 0 else np.triu(a, 1)
                read = half + half.swapaxes(-1, -2) + np.eye(n, dtype=dtype) * a
                product = vectors * (first / size[..., 0])[..., None, :] @ vectors.swapaxes(-1, -2)
            else:
                product = first @ (second / size)
                np.testing.assert_array_equal(np.tril(second, -1), 0)
            assert np.abs(product - read / size).max() <= n * tolerance


def test_signs_are_those_of_lapack() -> None:
    lapack = pytest.importorskip("scipy.linalg.lapack")
    r = np.random.default_rng(0)
    for n in (2, 3, 5, 8, 33):
        x = r.normal(size=(n, n))
        for lower in (True, False):
            found = ad.compile(lambda a, k="UL"[lower]: tuple(al.eigh(a, UPLO=k)), backend="native")(x)
            close_to(found, lapack.dsyevd(x, lower=lower)[:2], 1e-8)
        close_to(ad.compile(lambda a: tuple(al.qr(a)), backend="native")(x), al.qr(x), 1e-8)


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
    g = ad.compile(lambda a: tuple(al.qr(a[:2, :2])), backend="native")
    for found, expected in zip(g(a), np.linalg.qr(a[:2, :2]), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert "qr: qr has no native form without SciPy" in g.explain()


def test_eigenvalues_in_loops_and_threads() -> None:
    r = np.random.default_rng(0)
    a, xs = r.normal(size=(5, 5)), r.normal(size=(20, 5, 5))

    def f(a: Any, xs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            q, upper = al.qr(carry + x)
            w, v = al.eigh(x + x.mT)  # all eigenvalues differ, so v * v is unique
            return q + 0.1 * upper, (w, v * v, al.eigvalsh(x))

        return ad.scan(step, a, xs)

    compiled = ad.compile(f, backend="native")
    close_to(compiled(a, xs), f(a, xs), 1e-8)
    assert "0 calls of NumPy" in compiled.explain()
    wanted = [numbers(f(a + k, xs)) for k in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for found, expected in zip(
            pool.map(lambda k: numbers(compiled(a + k, xs)), range(8)), wanted, strict=True
        ):
            close_to(found, expected, 1e-8)


def test_eigenvalues_that_are_not_finite_and_functions_that_depend_on_the_gauge() -> None:
    """NumPy then runs the program, and raises what it raises in eager mode."""
    x = np.random.default_rng(0).normal(size=(4, 4))
    functions: list[Callable[[Any], Any]] = [
        lambda a: al.eigh(a)[1] ** 2, al.eigvalsh, lambda a: tuple(al.qr(a)),
        ad.grad(lambda a: (al.eigh(a)[1][..., 0, 0] ** 2).sum()),
        ad.grad(lambda a: (al.eigh(a)[1] ** 2 * al.eigh(a)[0][..., None, :]).sum()),
    ]  # fmt: skip
    bad = x.copy()
    bad[2, 1] = np.nan
    for f in functions:
        compiled = ad.compile(f, backend="native")
        for a in (x, np.eye(4), np.zeros((4, 4)), bad, np.stack([x, np.eye(4)]), x):
            with np.errstate(all="ignore"):
                assert outcome(compiled, a) == outcome(f, a)


def outcome(f: Any, a: Any) -> Any:
    """Return the rounded results of ``f(a)``, or the message of the error that it raises."""
    try:
        return [np.round(v, 6).tolist() if np.isfinite(v).all() else "not finite" for v in numbers(f(a))]
    except LinAlgError as error:
        return str(error)
