"""Random matrices through every function of linear algebra: NumPy's values, alone and batched, all derivatives.

Each function is written once, for NumPy and for adjoint.  What is differentiated does not depend on the sign or
phase of vectors, which is arbitrary.
"""

from __future__ import annotations

import contextlib
import warnings
import zlib

import numpy as np
import pytest

import adjoint as ad

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)
INF = float("inf")


def adjoint(xp, x):
    return xp.conj(x.mT)


def spectral(xp, w, v):
    return (v * xp.exp(w)[..., None, :]) @ adjoint(xp, v)


def singular(xp, u, s, vh):
    k = s.shape[-1]
    return (u[..., :, :k] * xp.exp(s)[..., None, :]) @ vh[..., :k, :]


# name: (function, kind of matrix, shape).  ``la`` is np.linalg or ad.linalg, ``xp`` is np or ad.
FUNCTIONS = {
    "inv": (lambda la, xp, x: la.inv(x), "any", (3, 3)),
    "det": (lambda la, xp, x: la.det(x), "any", (3, 3)),
    "det 1x1": (lambda la, xp, x: la.det(x), "any", (1, 1)),
    "slogdet": (lambda la, xp, x: la.slogdet(x)[1], "any", (3, 3)),
    "solve": (lambda la, xp, x: la.solve(x, x[..., :, :2] ** 2), "any", (3, 3)),
    "solve one": (lambda la, xp, x: la.solve(np.eye(3, dtype=x.dtype) * 2, x), "any", (3, 2)),
    "pinv": (lambda la, xp, x: la.pinv(x), "any", (3, 3)),
    "pinv tall": (lambda la, xp, x: la.pinv(x), "any", (4, 3)),
    "pinv wide": (lambda la, xp, x: la.pinv(x), "any", (2, 4)),
    "pinv cut": (lambda la, xp, x: la.pinv(x, rcond=0.4), "cut", (4, 3)),
    "pinv cut wide": (lambda la, xp, x: la.pinv(x, rcond=0.6), "cut", (3, 4)),
    "pinv hermitian": (lambda la, xp, x: la.pinv(x, hermitian=True), "filled", (3, 3)),
    "pinv of hermitian": (lambda la, xp, x: la.pinv(x, hermitian=True), "hermitian", (3, 3)),
    "lstsq": (lambda la, xp, x: la.lstsq(x[..., :, 1:], x[..., :, :1], rcond=None)[0], "any", (4, 4)),
    "lstsq wide": (lambda la, xp, x: la.lstsq(x[..., :, 1:], x[..., :, :1], rcond=None)[0], "any", (2, 4)),
    "lstsq cut": (lambda la, xp, x: la.lstsq(x, np.ones((4, 2), x.dtype), rcond=0.4)[0], "cut", (4, 3)),
    "lstsq residuals": (lambda la, xp, x: la.lstsq(x, np.ones((4, 2), x.dtype), rcond=None)[1], "any", (4, 3)),
    "cholesky": (lambda la, xp, x: la.cholesky(x), "definite", (3, 3)),
    "cholesky lower": (lambda la, xp, x: la.cholesky(x), "filled", (3, 3)),
    "cholesky upper": (lambda la, xp, x: la.cholesky(x, upper=True), "filled", (3, 3)),
    "eigvalsh": (lambda la, xp, x: la.eigvalsh(x), "hermitian", (3, 3)),
    "eigvalsh L": (lambda la, xp, x: la.eigvalsh(x), "filled", (3, 3)),
    "eigvalsh U": (lambda la, xp, x: la.eigvalsh(x, UPLO="U"), "filled", (3, 3)),
    "eigh": (lambda la, xp, x: spectral(xp, *la.eigh(x)), "hermitian", (3, 3)),
    "eigh L": (lambda la, xp, x: spectral(xp, *la.eigh(x)), "filled", (3, 3)),
    "eigh U": (lambda la, xp, x: spectral(xp, *la.eigh(x, UPLO="U")), "filled", (3, 3)),
    "eigh vectors": (lambda la, xp, x: xp.abs(la.eigh(x, "U")[1]), "filled", (3, 3)),
    "svd": (lambda la, xp, x: singular(xp, *la.svd(x, full_matrices=False)), "cut", (4, 3)),
    "svd full": (lambda la, xp, x: singular(xp, *la.svd(x)), "cut", (3, 4)),
    "svd vectors": (lambda la, xp, x: xp.abs(la.svd(x)[2]), "cut", (4, 3)),
    "svd null space": (lambda la, xp, x: (lambda u: u @ adjoint(xp, u))(la.svd(x)[0][..., 2:]), "cut", (4, 2)),
    "svd hermitian": (lambda la, xp, x: singular(xp, *la.svd(x, hermitian=True)), "filled", (3, 3)),
    "svd of hermitian": (lambda la, xp, x: singular(xp, *la.svd(x, hermitian=True)), "hermitian", (3, 3)),
    "svd hermitian values": (lambda la, xp, x: la.svd(x, compute_uv=False, hermitian=True), "filled", (3, 3)),
    "svdvals": (lambda la, xp, x: la.svdvals(x), "cut", (3, 4)),
    "qr": (lambda la, xp, x: la.qr(x)[0], "any", (4, 3)),
    "qr r": (lambda la, xp, x: la.qr(x, mode="r"), "any", (3, 4)),
    "qr complete": (lambda la, xp, x: la.qr(x, mode="complete")[1], "any", (4, 3)),
    "qr null space": (lambda la, xp, x: (lambda q: q @ adjoint(xp, q))(la.qr(x, "complete")[0][..., 2:]), "any", (4, 2)),
    "matrix_power": (lambda la, xp, x: la.matrix_power(x, 3), "any", (3, 3)),
    "matrix_power -2": (lambda la, xp, x: la.matrix_power(x, -2), "any", (3, 3)),
    "trace": (lambda la, xp, x: la.trace(x @ x, offset=1), "any", (3, 3)),
    "diagonal": (lambda la, xp, x: la.diagonal(x, offset=-1) ** 2, "any", (3, 4)),
    "vecdot": (lambda la, xp, x: la.vecdot(x, x[..., :1, :]), "any", (3, 4)),
    "cross": (lambda la, xp, x: la.cross(x, x[..., ::-1, :]), "any", (2, 3)),
    "matmul": (lambda la, xp, x: x @ x.mT @ x, "any", (2, 3)),
    "matmul vector": (lambda la, xp, x: x @ (x[..., :1, :].mT ** 2), "any", (2, 3)),
    **{f"matrix_norm {o}": (lambda la, xp, x, o=o: la.matrix_norm(x, ord=o), "cut", (4, 3))
       for o in ("fro", "nuc", 1, -1, 2, -2, INF, -INF)},
    **{f"vector_norm {o}": (lambda la, xp, x, o=o: la.vector_norm(x, ord=o, axis=-1), "any", (2, 3))
       for o in (2, 1, 3, 0.5, -1, -2.5, INF, -INF)},
    **{f"cond {p}": (lambda la, xp, x, p=p: la.cond(x, p), "any", (3, 3)) for p in (None, 1, -2, "fro", INF)},
}  # fmt: skip


def matrices(name, dtype, count=3):
    """Random matrices with well separated values, the same for every run."""
    _, kind, shape = FUNCTIONS[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))

    def normal(*shape):
        x = rng.standard_normal((count, *shape))
        return x + 1j * rng.standard_normal((count, *shape)) if np.dtype(dtype).kind == "c" else x

    k = min(shape)
    u, _, vh = np.linalg.svd(normal(*shape), full_matrices=False)
    x = (u * np.array([2.0, 1.1, 0.5, 0.2])[:k] * (1 + 0.1 * rng.random((count, 1, k)))) @ vh
    if kind in ("hermitian", "definite", "filled"):
        w = np.array([0.5, 1.2, 2.1]) if kind != "hermitian" else np.array([-1.6, 0.5, 2.1])
        x = (u * w) @ u.swapaxes(-1, -2).conj()
        x = (x + x.swapaxes(-1, -2).conj()) / 2
    if kind == "filled":  # one triangle and its diagonal are read, and no one sees the rest
        upper = "upper" in name or "U" in name or name == "eigh vectors"
        x = x + (np.tril if upper else np.triu)(normal(*shape), -1 if upper else 1)
    return x.astype(dtype)


def direction(name, x, seed):
    rng = np.random.default_rng(seed)
    d = rng.standard_normal(x.shape)
    if x.dtype.kind == "c":
        d = d + 1j * rng.standard_normal(x.shape)
    hermitian = FUNCTIONS[name][1] in ("hermitian", "definite")
    return ((d + d.swapaxes(-1, -2).conj()) / 2 if hermitian else d).astype(x.dtype)


def ours(name):
    return lambda x: FUNCTIONS[name][0](ad.linalg, ad, x)


def theirs(name, x):
    y = np.asarray(FUNCTIONS[name][0](np.linalg, np, x))
    return y.real if name.startswith("cond") else y  # complex in NumPy 2.1


def weighted(name):
    """A number: the outputs with fixed weights, summed."""
    f = ours(name)

    def total(x):
        y = f(x)
        weights = np.cos(1 + np.arange(y.size)).reshape(y.shape)
        if y.dtype.kind == "c":
            weights = weights + 1j * np.sin(2 + np.arange(y.size)).reshape(y.shape)
        return ad.sum(ad.real(y * weights.astype(y.dtype)))

    return total


def array(t):
    return np.asarray(t.detach().numpy() if isinstance(t, ad.Tensor) else t)


def close(a, b, tolerance):
    a, b = array(a), array(b)
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(np.abs(b).max(initial=0), 1e-2))


def precision(dtype):
    return 2e-3 if np.finfo(dtype).bits == 32 else 1e-9


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_numpys_alone_batched_and_in_vmap(name, dtype):
    x = matrices(name, dtype)
    with np.errstate(all="ignore"):
        expected = np.stack([theirs(name, m) for m in x])
    for found in (np.stack([array(ours(name)(m)) for m in x]), ad.vmap(ours(name))(x), ours(name)(x)):
        close(found, expected, precision(dtype) / 10)


BITWISE = {
    "eigh": lambda la, x: la.eigh(x),
    "eigh U": lambda la, x: la.eigh(x, UPLO="U"),
    "eigvalsh": lambda la, x: (la.eigvalsh(x),),
    "eigvalsh U": lambda la, x: (la.eigvalsh(x, UPLO="U"),),
    "cholesky lower": lambda la, x: (la.cholesky(x),),
    "cholesky upper": lambda la, x: (la.cholesky(x, upper=True),),
    "svd hermitian": lambda la, x: la.svd(x, hermitian=True),
    "svd": lambda la, x: la.svd(x, full_matrices=False),
    "svd full": lambda la, x: la.svd(x),
    "svdvals": lambda la, x: (la.svdvals(x),),
    "qr": lambda la, x: la.qr(x),
    "qr complete": lambda la, x: la.qr(x, mode="complete"),
    "inv": lambda la, x: (la.inv(x),),
    "det": lambda la, x: (la.det(x),),
    "slogdet": lambda la, x: la.slogdet(x),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BITWISE)
def test_decompositions_are_numpys_bit_for_bit(name, dtype):
    f = BITWISE[name]
    x = matrices(name, dtype)
    expected = f(np.linalg, x)
    alone = [np.stack(parts) for parts in zip(*(map(array, f(ad.linalg, m)) for m in x), strict=True)]
    for found in (f(ad.linalg, x), ad.vmap(lambda m: tuple(f(ad.linalg, m)))(x), alone):
        for a, b in zip(found, expected, strict=True):
            assert array(a).dtype == b.dtype
            np.testing.assert_array_equal(array(a), b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_agree_alone_batched_and_in_vmap(name, dtype):
    x = matrices(name, dtype)
    d = direction(name, x, 1)
    f = weighted(name)

    def second(m, v):  # forward over reverse
        return ad.jvp(ad.grad(f), (m,), (v,))[1]

    gradients, tangents, seconds = zip(
        *((ad.grad(f)(m), ad.jvp(f, (m,), (v,))[1], second(m, v)) for m, v in zip(x, d, strict=True)),
        strict=True,
    )
    close(ad.vmap(ad.grad(f))(x), np.stack(list(map(array, gradients))), precision(dtype))
    close(
        ad.vmap(lambda m, v: ad.jvp(f, (m,), (v,))[1])(x, d),
        np.stack(list(map(array, tangents))),
        precision(dtype),
    )
    close(ad.vmap(second)(x, d), np.stack(list(map(array, seconds))), precision(dtype))
    whole = ad.grad(lambda t: ad.sum(ad.vmap(f)(t)))(x)
    close(whole, np.stack(list(map(array, gradients))), precision(dtype))
    # the same weights for each matrix of a batch
    y = array(ours(name)(x[0]))
    weights = np.cos(1 + np.arange(y.size)).reshape(y.shape)
    if y.dtype.kind == "c":
        weights = weights + 1j * np.sin(2 + np.arange(y.size)).reshape(y.shape)
    batched = ad.grad(lambda t: ad.sum(ad.real(ours(name)(t) * weights.astype(y.dtype))))(x)
    close(batched, np.stack(list(map(array, gradients))), precision(dtype))
    if np.finfo(dtype).bits == 32:  # nearly those of twice the precision
        wide = matrices(name, np.result_type(dtype, np.float64))
        for g, m in zip(gradients, wide, strict=True):
            close(g, array(ad.grad(f)(m)).astype(dtype), 1e-2)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_against_finite_differences(name, dtype):
    x = matrices(name, dtype)[0]
    d = direction(name, x, 2)
    f = weighted(name)
    t = ad.tensor(x, requires_grad=True)
    (g,) = ad.gradients(f(t), [t], create_graph=True)
    slope = (float(f(x + 1e-6 * d)) - float(f(x - 1e-6 * d))) / 2e-6
    along = np.sum((array(g).conj() * d).real)
    assert along == pytest.approx(slope, rel=1e-5, abs=1e-5)
    assert float(ad.jvp(f, (x,), (d,))[1]) == pytest.approx(along, rel=1e-9, abs=1e-9)
    gradient = lambda m: array(ad.grad(f)(m))
    change = (gradient(x + 1e-5 * d) - gradient(x - 1e-5 * d)) / 2e-5
    tolerance = 1e-5 * max(1, np.abs(change).max())
    if g.requires_grad:
        (h,) = ad.gradients(ad.sum(ad.real(ad.conj(g) * d)), [t])
        np.testing.assert_allclose(array(h), change, atol=tolerance)
    np.testing.assert_allclose(array(ad.jvp(ad.grad(f), (x,), (d,))[1]), change, atol=tolerance)


# Without elements --------------------------------------------------------------------------------

EMPTY = {
    True: ((0, 0), (2, 0, 0), (0, 3, 3)),
    False: ((0, 3), (3, 0), (2, 0, 3), (2, 3, 0), (0, 2, 3), (0, 0)),
}
FIXED = {"solve one", "cross", "svd null space", "qr null space", "matmul vector", "det 1x1"}  # need elements
FIXED |= {name for name in FUNCTIONS if name.startswith("lstsq")}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in FIXED])
def test_empty_matrices_are_numpys_and_have_derivatives(name, dtype):
    sizes = FUNCTIONS[name][2]
    for shape in EMPTY[sizes == (3, 3)]:
        x = np.zeros(shape, dtype)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = theirs(name, x)
        except (ValueError, np.linalg.LinAlgError):
            with contextlib.suppress(ad.errors.AdjointError):
                assert not array(ours(name)(x)).any()  # 0, where an older NumPy raises
            continue
        close(ours(name)(x), expected, 1e-6)
        t = ad.tensor(x, requires_grad=True)
        total = weighted(name)
        with np.errstate(invalid="ignore"):  # norms of negative order are inf
            (g,) = ad.gradients(total(t), [t], create_graph=True)
            assert (g.shape, g.dtype) == (x.shape, x.dtype)
            if g.requires_grad:
                (h,) = ad.gradients(ad.sum(ad.real(g * ad.conj(g))), [t])
                assert h.shape == x.shape
            assert ad.jvp(ad.grad(total), (x,), (x,))[1].shape == x.shape
            assert ad.vmap(ad.grad(total))(np.stack([x, x])).shape == (2, *shape)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_least_squares_without_equations_or_unknowns(shape):
    x, y = np.zeros(shape), np.ones((shape[0], 2))
    for rcond in (None, 0.1):
        t = ad.tensor(x, requires_grad=True)
        found = ad.linalg.lstsq(t, y, rcond=rcond)
        for a, b in zip(found, np.linalg.lstsq(x, y, rcond=rcond), strict=True):
            np.testing.assert_array_equal(array(a), b)
        (g,) = ad.gradients(ad.sum(found.solution), [t], create_graph=True)
        assert g.shape == shape


@pytest.mark.parametrize(
    ("left", "right"), [((2, 3, 0), (0, 2)), ((2, 3, 4), (4, 0)), ((0, 3, 4), (4, 2)), ((2, 0, 4), (4, 2)),
                        ((3, 0), (0, 2)), ((2, 3, 0), (0,)), ((0,), (0, 2)), ((5, 0), (2, 0, 3)), ((1, 2, 3, 0), (0, 0))],
)  # fmt: skip
def test_products_without_elements(left, right):
    x, y = ad.zeros(left, requires_grad=True), ad.zeros(right, requires_grad=True)
    z = ad.matmul(x, y)
    assert z.shape == (np.zeros(left) @ np.zeros(right)).shape
    first = ad.gradients(ad.sum(z * z), [x, y], create_graph=True)
    assert [g.shape for g in first] == [left, right]
    total = sum(ad.sum(g * g) for g in first)
    if total.requires_grad:
        assert [g.shape for g in ad.gradients(total, [x, y])] == [left, right]
    f = lambda a, b: ad.sum(ad.matmul(a, b) ** 2)
    stacked = ad.vmap(ad.grad(f, argnums=(0, 1)))(np.zeros((2, *left)), np.zeros((2, *right)))
    assert [g.shape for g in stacked] == [(2, *left), (2, *right)]
