"""Linear algebra where numbers are lost: small gaps between values, ill-conditioned matrices, subnormal numbers."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import scipy.linalg
from matrices import gradient

import adjoint as ad
from adjoint.errors import LinAlgError

al = ad.linalg
RNG = np.random.default_rng(14)


def normal(*shape, dtype=np.float64):
    x = RNG.standard_normal(shape)
    return x + 1j * RNG.standard_normal(shape) if np.dtype(dtype).kind == "c" else x


def adjoint(x):
    return x.swapaxes(-1, -2).conj()


def second(f, x, v):
    """The gradient, and its derivative along v."""
    t = ad.tensor(x, requires_grad=True)
    (g,) = ad.gradients(f(t), [t], create_graph=True)
    (h,) = ad.gradients(ad.sum(ad.real(ad.conj(g) * v)), [t])
    return g.detach().numpy(), h.numpy()


def error(found, expected):
    return np.abs(found - expected).max() / np.abs(expected).max()


def forward_over_reverse(f, x, v):
    return ad.grad(f)(x), np.asarray(ad.jvp(ad.grad(f), (x,), (v,))[1])


def attempt(way, f, x, v):
    """The second derivative, or the message of a LinAlgError."""
    try:
        return way(f, x, v)[1]
    except LinAlgError as caught:
        return str(caught)


# Small gaps --------------------------------------------------------------------------------------


def close_values(gap, dtype):
    """Hermitian matrices with two values that differ by this part of the largest, and a direction."""
    q, d = np.linalg.qr(normal(4, 4, dtype=dtype))[0], normal(4, 4, dtype=dtype)
    w = RNG.standard_normal(4)
    w[1] = w[0] + gap * np.abs(w).max()
    x = (q * w) @ adjoint(q)
    return (x + adjoint(x)) / 2, d + adjoint(d)


def exponential_derivatives(x, v, k):
    """First and second derivative of Re Σ k ∘ exp(x), the second along v: blocks of one large exponential."""
    n, zero = len(x), np.zeros_like(x)
    k = (k.conj() + k.T) / 2
    large = scipy.linalg.expm(
        np.block([[x, v, k, zero], [zero, x, zero, k], [zero, zero, x, v], [zero, zero, zero, x]])
    )
    return large[:n, 2 * n : 3 * n], large[:n, 3 * n :]


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_second_derivatives_at_small_gaps_are_right_or_say_the_gap(dtype):
    raised = 0
    for exponent in np.linspace(-1, -11, 60):
        x, v = close_values(10**exponent, dtype)
        k = normal(4, 4, dtype=dtype)

        def f(t, k=k):
            w, vectors = al.eigh(t)
            return ad.sum(ad.real((vectors * ad.exp(w)) @ ad.conj(vectors.mT) * k))

        first, expected = exponential_derivatives(x, v, k)
        assert error(gradient(f, x), first) < 1e-4
        assert float(ad.jvp(f, (x,), (v,))[1]) == pytest.approx(np.sum((first.conj() * v).real), rel=1e-4)
        for way in (second, forward_over_reverse):
            found = attempt(way, f, x, v)
            if isinstance(found, str):
                raised += 1
                assert exponent < -5
                assert "eigh: the derivative of order 2 would be inaccurate at this matrix: values" in found
            else:
                assert error(found, expected) < 2e-3
    assert 20 < raised < 100


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("shape", [(4, 4), (5, 4), (4, 5)])
def test_singular_vectors_at_small_gaps_are_right_or_say_the_gap(shape, dtype):
    """exp of the Hermitian matrix [[0, x], [xᴴ, 0]] has sinh of the singular values beside its diagonal."""
    m, n = shape
    for exponent in np.linspace(-1, -11, 21):
        u, v = np.linalg.qr(normal(m, 4, dtype=dtype))[0], np.linalg.qr(normal(n, 4, dtype=dtype))[0]
        s = np.array([1.5, 1.1, 1.1 + 10**exponent, 0.4])
        x, k, d = (u * s) @ adjoint(v), normal(m, n, dtype=dtype), normal(m, n, dtype=dtype)

        def f(t, k=k):
            u, s, vh = al.svd(t, full_matrices=False)
            return ad.sum(ad.real((u * ad.sinh(s)) @ vh * k))

        def whole(a, m=m, n=n):
            return np.block([[np.zeros((m, m)), a], [adjoint(a), np.zeros((n, n))]])

        corner = np.zeros((m + n, m + n), x.dtype)
        corner[:m, m:] = k
        first, expected = (a[:m, m:] * 2 for a in exponential_derivatives(whole(x), whole(d), corner))
        assert error(gradient(f, x), first) < 1e-4
        assert float(ad.jvp(f, (x,), (d,))[1]) == pytest.approx(np.sum((first.conj() * d).real), rel=1e-4)
        for way in (second, forward_over_reverse):
            found = attempt(way, f, x, d)
            if isinstance(found, str):
                assert exponent < -5
                assert "svd: the derivative of order 2 would be inaccurate at this matrix: values" in found
            else:
                assert error(found, expected) < 2e-3


def test_vectors_themselves_have_second_derivatives_at_small_gaps():
    for gap in (1e-3, 1e-6, 1e-8):
        turn = np.array([[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]])
        x, v = (turn @ m @ turn.T for m in (np.diag([1.0, 1 + gap]), np.array([[0.0, 1.0], [1.0, 0.0]])))
        # along b of [[1, b], [b, 1 + gap]] the vectors turn by φ with tan 2φ = 2b / gap, and v[0, 0]² = cos²(0.5 - φ)
        _, h = second(lambda t: al.eigh(t)[1][0, 0] ** 2, (x + x.T) / 2, v)
        assert np.sum(h * v) == pytest.approx(-2 * np.cos(1) / gap**2, rel=1e-5 + 1e-15 / gap)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12, 1e18])
@pytest.mark.parametrize("n", [1, 3])
def test_second_derivatives_do_not_depend_on_the_scale(scale, n):
    """v w² vᴴ is x², and u s vh is x."""
    x, v, k = normal(n, n), normal(n, n), normal(n, n)
    x, v, k = (a + a.T for a in (x * scale, v, k))
    square = lambda t: (lambda w, u: ad.sum((u * w**2) @ u.mT * k))(*al.eigh(t))
    itself = lambda t: (lambda u, s, vh: ad.sum((u * s) @ vh * k) ** 2)(*al.svd(t))
    for way in (second, forward_over_reverse):
        np.testing.assert_allclose(way(square, x, v)[1], v @ k + k @ v, atol=1e-9)
        np.testing.assert_allclose(way(itself, x, v)[1], 2 * k * np.sum(k * v), atol=1e-8)
    if n == 1:
        assert second(square, np.zeros((1, 1)), np.ones((1, 1)))[1] == 2 * k


def test_the_message_says_which_values_are_close():
    x = np.diag([1.0, 2.0, 2.0 + 4e-9])
    f = lambda t: (lambda w, v: ad.sum((v * w**3) @ v.mT))(*al.eigh(t))
    with pytest.raises(LinAlgError) as caught:
        second(f, x, np.ones((3, 3)))
    assert str(caught.value) == (
        "eigh: the derivative of order 2 would be inaccurate at this matrix: values 1 and 2 differ by 2.0e-09 of "
        "the largest one, and rounding errors are divided by this ratio to the power 2.\n"
        "  Use only the values (eigvalsh, svdvals), or a function of the vectors that does not depend on their "
        "choice (such as a projector), or perturb the matrix slightly."
    )


def test_forward_mode_at_equal_values():
    x = np.diag([1.0, 1.0, 3.0])
    f = lambda t: (lambda w, v: ad.sum(v[:, :2] @ v[:, :2].mT))(*al.eigh(t))
    along = np.zeros((3, 3))
    along[0, 2] = along[2, 0] = 1
    assert float(ad.jvp(f, (x,), (along,))[1]) == pytest.approx(np.sum(gradient(f, x) * along))
    turning = np.zeros((3, 3))
    turning[0, 1] = turning[1, 0] = 1
    with pytest.raises(LinAlgError) as caught:
        ad.jvp(f, (x,), (turning,))
    assert str(caught.value).splitlines()[0] == (
        "eigh: the derivative cannot be computed at this matrix: in this direction the vectors of the equal values 0 "
        "and 1 rotate into each other, and forward mode cannot determine whether the function depends on that "
        "(reverse mode, ad.grad, can)."
    )


# Ill-conditioned matrices ------------------------------------------------------------------------


def conditioned(m, n, small):
    k = min(m, n)
    u, v = np.linalg.qr(normal(m, k))[0], np.linalg.qr(normal(n, k))[0]
    return (u * np.geomspace(1, small, k)) @ v.T


def exact_derivatives(x, v, value):
    """The gradient, and its derivative along v, of a function of matrices of many digits."""
    m, n = x.shape
    with mpmath.workdps(90):
        h = mpmath.mpf(10) ** -30
        x, v = mpmath.matrix(x.tolist()), mpmath.matrix(v.tolist()) * h
        first, along = np.empty((m, n)), np.empty((m, n))
        for i, j in np.ndindex(m, n):
            e = mpmath.matrix(m, n)
            e[i, j] = h
            a, b, c, d = value(x + e + v), value(x + e - v), value(x - e + v), value(x - e - v)
            first[i, j] = (a + b - c - d) / (4 * h)
            along[i, j] = (a - b - c + d) / (4 * h * h)
    return first, along


def exact_pinv(x):
    return (x.T * x) ** -1 * x.T if x.rows >= x.cols else x.T * (x * x.T) ** -1


@pytest.mark.parametrize("shape", [(3, 3), (4, 3), (2, 4)])
@pytest.mark.parametrize("small", [1e-4, 1e-8, 1e-10])
@pytest.mark.parametrize("residual", [0, 1])
def test_least_squares_of_ill_conditioned_equations(shape, small, residual):
    x, v = conditioned(*shape, small), normal(*shape)
    y, weights = x @ normal(shape[1]) + residual * normal(shape[0]), normal(shape[1])
    solved = lambda a: exact_pinv(a) * mpmath.matrix(y.tolist())
    value = lambda a: sum(w * z for w, z in zip(weights.tolist(), solved(a), strict=True))
    tolerance = 100 * np.finfo(float).eps / small
    with mpmath.workdps(90):
        expected = np.array(solved(mpmath.matrix(x.tolist())).tolist(), float)[:, 0]
    assert error(al.lstsq(x, y).solution.numpy(), expected) < tolerance
    first, along = exact_derivatives(x, v, value)
    g, h = second(lambda t: ad.sum(al.lstsq(t, y).solution * weights), x, v)
    assert error(g, first) < tolerance
    assert error(h, along) < tolerance


@pytest.mark.parametrize("shape", [(3, 3), (4, 3), (2, 4)])
@pytest.mark.parametrize("small", [1e-4, 1e-7])
def test_pseudo_inverse_of_ill_conditioned_matrices(shape, small):
    x, v, weights = conditioned(*shape, small), normal(*shape), normal(*shape[::-1])
    value = lambda a: sum(w * p for w, p in zip(weights.ravel().tolist(), exact_pinv(a), strict=True))
    first, along = exact_derivatives(x, v, value)
    for rtol in (None, 1e-12):
        g, h = second(lambda t, rtol=rtol: ad.sum(al.pinv(t, rtol=rtol) * weights), x, v)
        assert error(g, first) < 100 * np.finfo(float).eps / small
        assert error(h, along) < 100 * np.finfo(float).eps / small


# Values that are cut off -------------------------------------------------------------------------


def test_values_that_rtol_cuts_count_in_the_gradient():
    x, v = np.diag([2.0, 1.0, 0.5]) + 0.1 * normal(3, 3), normal(3, 3)
    for f in (
        lambda t: ad.sum(al.pinv(t, rcond=0.4)),
        lambda t: ad.sum(al.lstsq(t, np.ones(3), 0.4).solution),
    ):
        g, h = second(f, x, v)
        value = lambda m, f=f: float(f(ad.tensor(m)))
        assert np.sum(g * v) == pytest.approx((value(x + 1e-6 * v) - value(x - 1e-6 * v)) / 2e-6, rel=1e-6)
        change = (gradient(f, x + 1e-6 * v) - gradient(f, x - 1e-6 * v)) / 2e-6
        np.testing.assert_allclose(h, change, rtol=1e-5, atol=1e-6)


def test_a_tolerance_that_cuts_nothing_changes_nothing():
    for x in (np.eye(3), 2 * np.eye(4)[:, :3], np.ones((2, 2)), np.zeros((2, 3))):
        v = np.cos(np.arange(x.size)).reshape(x.shape)
        plain, given = (second(lambda t, r=r: ad.sum(al.pinv(t, rtol=r) ** 2), x, v) for r in (None, 1e-9))
        np.testing.assert_allclose(given[0], plain[0], atol=1e-13)
        if np.linalg.matrix_rank(x) == min(
            x.shape
        ):  # else the rank is that of a value which moves, below rtol
            np.testing.assert_allclose(given[1], plain[1], atol=1e-13)


# Norms of subnormal and of extreme numbers -------------------------------------------------------


@pytest.mark.parametrize("ord", [2, 3, 1.5, 0.5, -1, -3])
@pytest.mark.parametrize(
    ("dtype", "scales"),
    [(np.float32, (1e-40, 1e-30, 1e-14, 1e14, 1e37)), (np.float64, (1e-310, 1e-200, 1e-100, 1e100, 1e300))],
)
def test_norms_at_every_scale(ord, dtype, scales):
    plain = np.array([3.0, -4.0, 2.0])
    expected, slopes = (
        np.linalg.vector_norm(plain, ord=ord),
        gradient(lambda t: al.vector_norm(t, ord=ord), plain),
    )
    for scale in scales:
        x = (plain * scale).astype(dtype)
        np.testing.assert_allclose(float(al.vector_norm(x, ord=ord)) / scale, expected, rtol=2e-4)
        g = gradient(lambda t: al.vector_norm(t, ord=ord), x)
        assert g.dtype == dtype
        np.testing.assert_allclose(g, slopes, rtol=1e-3)


def test_norm_of_one_subnormal_number():
    x = np.array([1e-40, 0], np.float32)
    assert float(al.norm(x)) == float(x[0])
    np.testing.assert_array_equal(gradient(al.norm, x), [1, 0])


@pytest.mark.parametrize("ord", [-1, -2.5, -3])
def test_norms_of_negative_order_with_an_element_of_zero(ord):
    for dtype in (np.float32, np.float64, np.complex64):
        x = np.array([0, 5], dtype)
        assert float(al.vector_norm(x, ord=ord)) == 0  # as in NumPy, which warns
        np.testing.assert_array_equal(gradient(lambda t: al.vector_norm(t, ord=ord), x), 0)
        np.testing.assert_array_equal(
            second(lambda t: al.vector_norm(t, ord=ord), x, np.ones(2, dtype))[1], 0
        )
