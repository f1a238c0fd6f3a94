"""Linear algebra where a derivative is delicate: singular matrices, repeated values, norms at zero."""

from __future__ import annotations

import math

import numpy as np
import pytest
from matrices import cplx, gradient, hermitian, hessian, real, slope

import adjoint as ad
from adjoint.errors import LinAlgError, NoGradientError, ShapeError

al = ad.linalg
INF = float("inf")

# Determinants ------------------------------------------------------------------------------------


def numeric_cofactors(x):
    n = len(x)
    out = np.empty((n, n))
    for i, j in np.ndindex(n, n):
        minor = np.delete(np.delete(x, i, 0), j, 1)
        out[i, j] = (-1) ** (i + j) * np.linalg.det(minor)
    return out


@pytest.mark.parametrize("n", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("rank_loss", [0, 1, 2])
def test_det_differentiates_at_singular_matrices(n, rank_loss):
    x = real(n, max(n - rank_loss, 0)) @ real(max(n - rank_loss, 0), n)
    np.testing.assert_allclose(gradient(al.det, x), numeric_cofactors(x), atol=1e-9)


def test_det_of_a_batch_in_which_one_is_singular():
    x = np.stack([np.eye(3), np.ones((3, 3)), np.diag([1.0, 2.0, 0.0])])
    g = gradient(lambda t: ad.sum(al.det(t)), x)
    np.testing.assert_allclose(g, np.stack([numeric_cofactors(m) for m in x]), atol=1e-12)


@pytest.mark.parametrize(
    "x", [np.zeros((2, 2)), np.diag([1.0, 0.0, 0.0]), np.diag([2.0, 3.0, 0.0]), np.ones((4, 4))]
)
def test_second_and_third_derivatives_of_det_at_singular_matrices(x):
    n = len(x)
    step = lambda v: gradient(al.det, v.reshape(n, n)).ravel()
    eye = np.eye(n * n)
    expected = np.array([(step(x.ravel() + 1e-4 * e) - step(x.ravel() - 1e-4 * e)) / 2e-4 for e in eye])
    np.testing.assert_allclose(hessian(al.det, x), expected, atol=1e-6)
    t = ad.tensor(x, requires_grad=True)
    (g,) = ad.gradients(al.det(t), [t], create_graph=True)
    v = real(n, n)
    (h,) = ad.gradients(ad.sum(g * v), [t], create_graph=True)
    (third,) = ad.gradients(ad.sum(h * v), [t])
    assert np.isfinite(third.numpy()).all()
    if n == 2:  # det is quadratic
        np.testing.assert_allclose(third.numpy(), 0, atol=1e-12)


def test_large_singular_matrices_have_a_first_derivative_of_det_only():
    x = real(10, 9) @ real(9, 10)
    t = ad.tensor(x, requires_grad=True)
    (g,) = ad.gradients(al.det(t), [t], create_graph=True)
    np.testing.assert_allclose(
        g.detach().numpy(), numeric_cofactors(x), rtol=1e-6, atol=1e-6 * np.abs(g.detach().numpy()).max()
    )
    exact = ad.tensor(np.zeros((10, 10)), requires_grad=True)
    (g,) = ad.gradients(al.det(exact), [exact], create_graph=True)
    with pytest.raises(LinAlgError, match="is singular"):
        ad.gradients(ad.sum(g), [exact])


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4])
def test_det_has_derivatives_of_every_order(n):
    """det(a + s b) is a polynomial of degree n in s, with the leading coefficient det(b)."""
    a, b = real(n, n), real(n, n)
    f = lambda s: al.det(a + s * b)
    found = []
    for _ in range(n + 4):
        found.append(float(f(ad.tensor(0.3))))
        f = ad.grad(f)
    np.testing.assert_allclose(found[n], math.factorial(n) * np.linalg.det(b), rtol=1e-9)
    np.testing.assert_allclose(found[n + 1 :], 0, atol=1e-9)


def test_det_without_and_with_one_element_to_second_order():
    for n in (0, 1):
        t = ad.tensor(np.ones((n, n)), requires_grad=True)
        (g,) = ad.gradients(al.det(t) ** 2, [t], create_graph=True)
        np.testing.assert_array_equal(g.detach().numpy(), 2 * np.ones((n, n)))
        (h,) = ad.gradients(ad.sum(g * g), [t])
        np.testing.assert_array_equal(h.numpy(), 8 * np.ones((n, n)))


def test_slogdet_of_a_singular_matrix():
    x = ad.tensor(np.ones((2, 2)), requires_grad=True)
    sign, log = al.slogdet(x)
    assert (float(sign), float(log)) == (0.0, -INF)
    with pytest.raises(LinAlgError, match="singular"):
        log.backward()


# Repeated values ---------------------------------------------------------------------------------

REPEATED = np.diag([2.0, 2.0, 2.0, 1.0, 1.0])
Q5 = np.linalg.qr(real(5, 5))[0]
SAME = Q5 @ REPEATED @ Q5.T
SAME = (SAME + SAME.T) / 2


@pytest.mark.parametrize("x", [REPEATED, SAME, np.eye(3), np.zeros((3, 3))])
def test_functions_of_the_values_alone_are_fine(x):
    np.testing.assert_allclose(gradient(lambda t: ad.sum(al.eigvalsh(t) ** 3), x), 3 * x @ x, atol=1e-10)
    np.testing.assert_allclose(gradient(lambda t: ad.sum(al.eigh(t)[0] ** 3), x), 3 * x @ x, atol=1e-10)
    np.testing.assert_allclose(gradient(lambda t: ad.sum(al.svdvals(t) ** 2), x), 2 * x, atol=1e-10)
    np.testing.assert_allclose(gradient(lambda t: ad.sum(al.svd(t)[1] ** 2), x), 2 * x, atol=1e-10)


@pytest.mark.parametrize("x", [REPEATED, SAME])
def test_projectors_on_repeated_eigenspaces_differentiate(x):
    m = real(5, 5)

    def ours(t):
        v = al.eigh(t)[1][:, :2]
        return ad.sum(v @ v.mT * m)

    def theirs(a):
        v = np.linalg.eigh((a + a.T) / 2)[1][:, :2]
        return np.sum(v @ v.T * m)

    np.testing.assert_allclose(gradient(ours, x), slope(theirs, x), atol=1e-7)
    # all of them together span everything: the projector is constant
    squared = lambda v: v @ v.mT
    whole = lambda t: ad.sum(squared(al.eigh(t)[1]) * m)
    np.testing.assert_allclose(gradient(whole, x), 0, atol=1e-12)


@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5)])
def test_the_polar_factor_differentiates_at_equal_singular_values(shape):
    k = min(shape)
    u, v = np.linalg.qr(real(shape[0], k))[0], np.linalg.qr(real(shape[1], k))[0]
    x, m = 2.0 * u @ v.T, real(*shape)

    def polar(svd, a):
        u, _, vh = svd(a, full_matrices=False)
        return u @ vh

    ours = gradient(lambda t: ad.sum(polar(al.svd, t) * m), x)
    np.testing.assert_allclose(ours, slope(lambda a: np.sum(polar(np.linalg.svd, a) * m), x), atol=1e-7)


def test_the_polar_factor_of_complex_matrices():
    x, m = 2.0 * np.linalg.qr(cplx(3, 3))[0], cplx(3, 3)

    def polar(svd, a):
        u, _, vh = svd(a, full_matrices=False)
        return u @ vh

    t = ad.tensor(x, requires_grad=True)
    (g,) = ad.gradients(ad.sum(ad.real(polar(al.svd, t) * m)), [t])
    d = cplx(3, 3)
    value = lambda h: np.sum((polar(np.linalg.svd, x + h * d) * m).real)
    assert np.sum((g.numpy().conj() * d).real) == pytest.approx((value(1e-6) - value(-1e-6)) / 2e-6, rel=1e-6)


def test_the_space_beyond_the_columns_differentiates():
    x, m = real(5, 3), real(5, 5)

    def ours(t):
        rest = al.svd(t, full_matrices=True)[0][:, 3:]
        return ad.sum(rest @ rest.mT * m)

    def theirs(a):
        rest = np.linalg.svd(a)[0][:, 3:]
        return np.sum(rest @ rest.T * m)

    np.testing.assert_allclose(gradient(ours, x), slope(theirs, x), atol=1e-6)

    def by_qr(t):
        rest = al.qr(t, mode="complete")[0][:, 3:]
        return ad.sum(rest @ rest.mT * m)

    np.testing.assert_allclose(gradient(by_qr, x), slope(theirs, x), atol=1e-6)

    def wide(t):
        rest = al.svd(t.mT)[2][3:]
        return ad.sum(rest.mT @ rest * m)

    np.testing.assert_allclose(gradient(wide, x), slope(theirs, x), atol=1e-6)
    t = ad.tensor(x, requires_grad=True)
    (g,) = ad.gradients(ours(t), [t], create_graph=True)
    v = real(5, 3)
    (hv,) = ad.gradients(ad.sum(g * v), [t])
    expected = (gradient(ours, x + 1e-5 * v) - gradient(ours, x - 1e-5 * v)) / 2e-5
    np.testing.assert_allclose(hv.numpy(), expected, atol=1e-5)


SECOND = (
    "{}: the derivative cannot be computed at this matrix: values 0 and 1 are equal, so only first derivatives of the "
    "values can be computed, not second ones."
)


@pytest.mark.parametrize(
    ("name", "f"),
    [
        ("eigvalsh", lambda t: ad.sum(al.eigvalsh(t) ** 2)),
        ("eigh", lambda t: ad.sum(al.eigh(t)[0] ** 2)),
        ("svdvals", lambda t: ad.sum((al.svdvals(t) - 1) ** 2)),
        ("svd", lambda t: ad.sum(al.svd(t)[1] ** 2)),
    ],
)
@pytest.mark.parametrize("x", [np.eye(3), np.diag([0.0, 0.0, 3.0]), np.zeros((3, 3))])
def test_second_derivatives_of_functions_of_repeated_values_say_so(name, f, x):
    """Without the error they would be wrong: the Hessian of Σw², 2, would be 0 off the diagonal."""
    t = ad.tensor(x[:, ::-1][::-1] if name.startswith("svd") and x[-1, -1] == 3 else x, requires_grad=True)
    (g,) = ad.gradients(f(t), [t], create_graph=True)
    with pytest.raises(LinAlgError) as caught:
        ad.gradients(ad.sum(g * np.ones((3, 3))), [t])
    first = str(caught.value).splitlines()[0]
    assert first.replace("values 1 and 2", "values 0 and 1") == SECOND.format(name)


def test_second_derivatives_of_functions_of_distinct_values():
    x = hermitian(real, 4, 4)
    v = hermitian(real, 4, 4)
    for f in (al.eigvalsh, al.svdvals, lambda t: al.eigh(t)[0], lambda t: al.svd(t)[1]):
        t = ad.tensor(x, requires_grad=True)
        (g,) = ad.gradients(ad.sum(f(t) ** 2), [t], create_graph=True)
        (hv,) = ad.gradients(ad.sum(g * v), [t])
        np.testing.assert_allclose(hv.numpy(), 2 * v, atol=1e-9)


CURE = (
    "\n  Use only the values (eigvalsh, svdvals), or a function of the vectors that does not depend on their choice "
    "(such as a projector), or perturb the matrix slightly."
)


@pytest.mark.parametrize(
    ("f", "x", "message"),
    [
        (lambda t: al.eigh(t)[1][0, 1], np.diag([1.0, 1.0, 3.0]),
         "eigh: the derivative cannot be computed at this matrix: values 0 and 1 are equal, so their vectors are "
         "arbitrary, and the function depends on the vectors." + CURE),
        (lambda t: al.svd(t)[0][0, 1], 2 * np.eye(2),
         "svd: the derivative cannot be computed at this matrix: values 0 and 1 are equal, so their vectors are "
         "arbitrary, and the function depends on the vectors." + CURE),
        (lambda t: (lambda w, v: ad.sum((v * w) @ v.mT * np.ones((2, 2))))(*al.eigh(t)), np.eye(2),
         "eigh: the derivative cannot be computed at this matrix: values 0 and 1 are equal, and the function uses "
         "both the values and their vectors, so its derivative is not determined." + CURE),
        (lambda t: ad.sum(al.svd(t, full_matrices=False)[0]), np.zeros((3, 1)),
         "svd: the derivative cannot be computed at this matrix: singular value 0 is 0, so its vectors are "
         "arbitrary, and the function depends on the vectors." + CURE),
        (lambda t: ad.sum(al.svd(t)[0] * np.arange(9.0).reshape(3, 3)), np.eye(3)[:, :1],
         "svd: the derivative cannot be computed at this matrix: the function depends on vectors 0 and 1 of the "
         "null space, which are arbitrary." + CURE),
        (lambda t: ad.sum(al.eigh(t)[1].imag), np.array([[1.0, 0.5j], [-0.5j, 3.0]]),
         "eigh: the derivative cannot be computed at this matrix: the function depends on the phase of vector 0, which is arbitrary." + CURE),
    ],
)  # fmt: skip
def test_what_has_no_derivative_says_so(f, x, message):
    t = ad.tensor(x, requires_grad=True)
    y = f(t)
    with pytest.raises(LinAlgError) as caught:
        y.backward()
    assert str(caught.value) == message
    assert t.grad is None


# Matrices of which one triangle is read ----------------------------------------------------------


@pytest.mark.parametrize("uplo", ["L", "U"])
def test_one_triangle_counts_in_batches_and_in_vmap(uplo):
    m = np.array([[4.0, 0.0], [1.0, 3.0]])
    expected = np.linalg.eigvalsh(m, uplo)
    for found in (al.eigvalsh(m, uplo), ad.vmap(lambda t: al.eigvalsh(t, uplo))(m[None])[0]):
        np.testing.assert_array_equal(np.asarray(found), expected)
    np.testing.assert_array_equal(
        np.asarray(ad.vmap(lambda t: al.cholesky(t, upper=uplo == "U"))(m[None])[0]),
        np.linalg.cholesky(m, upper=uplo == "U"),
    )


@pytest.mark.parametrize("make", [real, cplx])
def test_each_matrix_of_a_batch_has_the_gradient_it_has_alone(make):
    """That of a Hermitian matrix is Hermitian, that of others is the gradient of the triangle that is read."""
    h = hermitian(make, 3, 3)
    x = np.stack([h, np.tril(h), h])
    for f in (
        lambda t: ad.sum(al.eigvalsh(t) ** 2),
        lambda t: ad.sum(al.eigh(t)[0] ** 3),
        lambda t: ad.sum(ad.abs(al.cholesky(t)) ** 2),
        lambda t: ad.sum(ad.abs(al.pinv(t, hermitian=True)) ** 2),
    ):
        g = gradient(f, x)
        np.testing.assert_allclose(g[0], g[0].T.conj(), atol=1e-12)
        np.testing.assert_allclose(g[1], 2 * np.tril(g[0], -1) + np.diag(np.diag(g[0])), atol=1e-12)
        np.testing.assert_allclose(g, np.stack([gradient(f, m) for m in x]), atol=1e-12)
        np.testing.assert_allclose(np.asarray(ad.vmap(ad.grad(f))(x)), g, atol=1e-12)


def test_singular_values_of_hermitian_matrices():
    x = np.diag([1.0, -3.0, 2.0])
    for a, b in zip(al.svd(x, hermitian=True), np.linalg.svd(x, hermitian=True), strict=True):
        np.testing.assert_array_equal(a.numpy(), b)
    filled = x + np.triu(np.ones((3, 3)), 1)
    assert int(al.matrix_rank(np.triu(np.ones((3, 3)), 1), hermitian=True)) == 0
    np.testing.assert_allclose(al.pinv(filled, hermitian=True).numpy(), np.diag([1, -1 / 3, 0.5]), atol=1e-14)
    with pytest.raises(ShapeError, match="matrices must be square"):
        al.svd(np.ones((2, 3)), hermitian=True)
    # 2 and -2 are equal singular values, but different eigenvalues
    g = gradient(lambda t: al.svd(t, hermitian=True)[0][0, 0] ** 2, np.diag([2.0, -2.0]))
    np.testing.assert_array_equal(g, np.zeros((2, 2)))


def test_one_tolerance_for_each_matrix():
    x = np.stack([np.diag([1.0, 1e-3])] * 2)
    limits = np.array([1e-2, 1e-4])
    np.testing.assert_array_equal(al.matrix_rank(x, tol=limits).numpy(), np.linalg.matrix_rank(x, tol=limits))
    y = np.ones((2, 2, 1))
    found = al.lstsq(x, y, rcond=limits)
    np.testing.assert_allclose(found.solution.numpy()[..., 0], [[1, 0], [1, 1e3]], atol=1e-12)
    assert int(al.lstsq(x[0], y[0], rcond=-1).rank) == np.linalg.lstsq(x[0], y[0], rcond=-1)[2]


# Condition numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [None, 2, -2, 1, -1, "fro", INF, -INF])
def test_condition_numbers_of_singular_matrices(p):
    for x in (np.zeros((2, 2)), np.ones((2, 2)), np.stack([np.zeros((3, 3)), np.eye(3), np.ones((3, 3))])):
        for dtype in (np.float64, np.float32, np.complex128):
            found, expected = (
                al.cond(x.astype(dtype), p),
                np.linalg.cond(x.astype(dtype), p).real,
            )  # complex in NumPy 2.1
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    if p not in (None, 2, -2):
        assert np.isnan(float(al.cond(np.full((2, 2), np.nan), p)))
    with pytest.raises(LinAlgError) as caught:
        al.cond(np.zeros((0, 0)), p)
    assert str(caught.value) == "cond: empty matrices (shape (0, 0)) have no condition number."


# Norms at corners --------------------------------------------------------------------------------


@pytest.mark.parametrize("ord", [2, 1, 3, 1.5, 0.5, INF, -INF, -1])
def test_vector_norms_at_zero_have_gradient_zero(ord):
    g = gradient(lambda t: ad.sum(al.vector_norm(t, axis=-1, ord=ord)), np.zeros((2, 3)))
    np.testing.assert_array_equal(g, 0)


@pytest.mark.parametrize("ord", ["fro", "nuc", 1, 2, INF, -1, -2, -INF])
def test_matrix_norms_at_zero_have_gradient_zero(ord):
    g = gradient(lambda t: ad.sum(al.matrix_norm(t, ord=ord)), np.zeros((2, 3, 2)))
    np.testing.assert_array_equal(g, 0)


def test_the_norm_of_order_0_counts_and_has_no_gradient():
    x = ad.tensor([0.0, 2.0, 3.0], requires_grad=True)
    assert float(al.vector_norm(x, ord=0)) == 2
    with pytest.raises(NoGradientError):
        al.vector_norm(x, ord=0).backward()


def test_norm_at_zero_to_second_order():
    t = ad.tensor(np.zeros(3), requires_grad=True)
    (g,) = ad.gradients(al.norm(t), [t], create_graph=True)
    (h,) = ad.gradients(ad.sum(g), [t])
    np.testing.assert_array_equal(h.numpy(), 0)
    x = np.stack([np.zeros(3), np.array([3.0, 0.0, 4.0])])
    g = gradient(lambda t: ad.sum(al.vector_norm(t, axis=1)), x)
    np.testing.assert_allclose(g, [[0, 0, 0], [0.6, 0, 0.8]])


def test_nuclear_norm_of_a_matrix_without_full_rank():
    x = np.outer([1.0, 2.0], [3.0, 4.0])
    u, _, vh = np.linalg.svd(x)
    np.testing.assert_allclose(
        gradient(lambda t: al.matrix_norm(t, ord="nuc"), x), u[:, :1] @ vh[:1], atol=1e-12
    )


@pytest.mark.parametrize("ord", [2, 3, 0.5])
def test_norms_of_what_is_huge_or_tiny(ord):
    for scale, dtype in ((1e200, np.float64), (1e-200, np.float64), (1e30, np.float32), (1e-30, np.float32)):
        x = np.array([[3.0, -4.0], [1.0, 0.0]], dtype) * dtype(scale)
        n = al.vector_norm(x, axis=1, ord=ord)
        assert n.dtype == dtype
        expected = np.linalg.vector_norm(np.array([[3.0, 4.0], [1.0, 0.0]]), axis=1, ord=ord)
        np.testing.assert_allclose(n.numpy() / dtype(scale), expected, rtol=1e-5)
        g = gradient(lambda t: ad.sum(al.vector_norm(t, axis=1, ord=ord)), x)
        plain = gradient(lambda t: ad.sum(al.vector_norm(t, axis=1, ord=ord)), x.astype(float) / scale)
        np.testing.assert_allclose(g, plain, rtol=1e-5)
    half = al.norm(np.full(4096, 30.0, np.float16))
    assert (half.dtype, float(half)) == (np.float16, 1920.0)


def test_norms_of_infinities_and_nan():
    assert float(al.norm([INF, 1.0])) == INF
    assert np.isnan(float(al.norm([np.nan, 1.0])))
    assert float(al.norm([])) == 0.0


def test_elements_of_zero_in_a_norm():
    x = np.array([0.0, 3.0, -4.0])
    for ord in (1.5, 3, 0.5):
        g = gradient(lambda t, ord=ord: al.vector_norm(t, ord=ord), x)
        assert g[0] == 0
        n = np.linalg.vector_norm(x, ord=ord)
        np.testing.assert_allclose(g[1:], np.sign(x[1:]) * (np.abs(x[1:]) / n) ** (ord - 1))
