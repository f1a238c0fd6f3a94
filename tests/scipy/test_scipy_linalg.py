"""``adjoint.scipy.linalg``: values against SciPy, derivatives to the second order, batches, errors."""

from __future__ import annotations

import numpy as np
import pytest
from on_tensors import on_tensors

import adjoint as ad
from adjoint.errors import InputError, LinAlgError, LostHistoryError, NoGradientError, ShapeError
from adjoint.testing import gradcheck

sl = pytest.importorskip("scipy.linalg")
L = on_tensors(ad.scipy.linalg)

RNG = np.random.default_rng(3)
A = RNG.normal(size=(3, 3)) + 2 * np.eye(3)
B = RNG.normal(size=(3, 3)) + 3 * np.eye(3)
S = A @ A.T + np.eye(3)
T = RNG.normal(size=(4, 3))
V, W = RNG.normal(size=3), RNG.normal(size=3)
X = RNG.normal(size=(3, 2))
BAND = np.array([[0.0, 0.3, 0.4], [2.0, 3.0, 4.0], [0.5, 0.6, 0.0]])
sym = lambda m: (m + ad.matrix_transpose(m)) / 2

# name, arguments, keywords; matrices of SYMMETRIC are given as symmetric ones
CALLS = [
    ("eigvals", (A,), {}),
    ("eigvalsh", (S,), {}),
    ("eigvalsh", (S, A @ A.T + 2 * np.eye(3)), {}),
    ("cholesky", (S,), {}),
    ("cholesky", (S,), {"lower": True}),
    ("lu", (A,), {}),
    ("lu", (A,), {"permute_l": True}),
    ("lu_factor", (A,), {"check_finite": False}),
    ("qr", (A,), {}),
    ("qr", (T,), {"mode": "economic"}),
    ("svdvals", (T,), {}),
    ("svd", (T,), {"compute_uv": False}),
    ("polar", (A,), {}),
    ("polar", (T,), {"side": "left"}),
    ("solve", (A, V), {"overwrite_a": True}),
    ("solve", (S, X), {"assume_a": "pos"}),
    ("solve", (A, X), {"assume_a": "sym", "lower": True}),
    ("solve", (A, V), {"transposed": True}),
    ("solve_triangular", (A, V), {"lower": True}),
    ("solve_triangular", (A, X), {"trans": 1, "unit_diagonal": True}),
    ("solve_sylvester", (A, B[:2, :2], X), {}),
    ("solve_continuous_lyapunov", (A, S), {}),
    ("solve_discrete_lyapunov", (0.2 * A, S), {}),
    ("solve_banded", ((1, 1), BAND, V), {}),
    ("solve_toeplitz", (V + 3, W), {}),
    ("solve_toeplitz", ((np.array([5.0, 1.0, 0.5]), np.array([5.0, 2.0, 0.1])), X), {}),
    ("solve_circulant", (np.array([5.0, 1.0, 0.5]), V), {}),
    ("expm", (A,), {}),
    ("expm", (12 * A,), {}),
    ("expm", (np.stack([A, 1e-3 * B]),), {}),
    ("logm", (S + 0.1 * A,), {}),
    ("sqrtm", (S + 0.1 * A,), {}),
    ("inv", (A,), {}),
    ("det", (A,), {}),
    ("pinv", (T,), {}),
    ("norm", (A,), {}),
    ("norm", (V, 3), {}),
    ("toeplitz", (V,), {}),
    ("toeplitz", (V, W), {}),
    ("circulant", (V,), {}),
    ("hankel", (V,), {}),
    ("hankel", (V, W), {}),
    ("block_diag", (A, V, np.array(2.0)), {}),
    ("kron", (A, X), {}),
]
SYMMETRIC = {"eigvalsh", "cholesky"}
IDS = [f"{name}-{i}" for i, (name, _, _) in enumerate(CALLS)]


def flat(value):
    parts = value if isinstance(value, (tuple, list)) else [value]
    return [p for p in parts if p is not None]


@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS, ids=IDS)
def test_values_and_derivatives(name, args, kwargs):
    ours = getattr(L, name)
    if name == "kron":
        expected = np.kron(*args)
    else:
        expected = getattr(sl, name)(*args, **{k: v for k, v in kwargs.items() if k != "overwrite_a"})
    got = flat(ours(*args, **kwargs))
    if name == "eigvals":
        got, expected = [ad.tensor(np.sort_complex(got[0].numpy()))], np.sort_complex(expected)
    for y, e in zip(got, flat(expected), strict=True):
        np.testing.assert_allclose(y.numpy(), e, rtol=1e-9, atol=1e-11)
    arrays = [a for arg in args for a in flat(arg) if isinstance(a, np.ndarray)]

    def f(*leaves):
        given = iter([sym(t) if name in SYMMETRIC else t for t in leaves])
        swap = lambda a: next(given) if isinstance(a, np.ndarray) else a
        swapped = [tuple(map(swap, a)) if isinstance(a, tuple) else swap(a) for a in args]
        outputs = [y for y in flat(ours(*swapped, **kwargs)) if y.dtype.kind in "fc"]
        return tuple(
            outputs[1:] if name == "lu" and len(outputs) == 3 else outputs
        )  # without the permutation

    large = np.abs(args[0]).max() > 20 if isinstance(args[0], np.ndarray) else False
    assert gradcheck(f, arrays, directions=2, order=1 if large else 2, rtol=1e-4, atol=1e-5)


def test_eigenvectors():
    w, v = L.eig(A)
    np.testing.assert_allclose(A @ v.numpy(), v.numpy() * w.numpy(), atol=1e-12)

    def projector(a):  # does not depend on the phase
        _, v = L.eig(a)
        return ad.abs(v) ** 2

    assert gradcheck(projector, [A], order=2, rtol=1e-4)
    # the phase is that of LAPACK, the largest component is real: a function of the vectors themselves
    assert gradcheck(lambda a: ad.real(L.eig(a)[1]) + ad.imag(L.eig(a)[1]), [A], rtol=1e-4)
    trace = lambda a: ad.real(L.eigvals(a).sum())
    np.testing.assert_allclose(ad.grad(trace)(np.eye(3)), np.eye(3))  # a sum of equal values is smooth
    with pytest.raises(LinAlgError, match="its eigenvectors are linearly dependent"):
        ad.grad(lambda a: (L.eigvals(a).real ** 2).sum())(np.array([[1.0, 1.0], [0.0, 1.0]]))
    with pytest.raises(LinAlgError, match="values 0 and 1 are equal"):
        ad.grad(lambda a: ad.real(L.eigvals(a)[0]))(np.eye(2))
    with pytest.raises(LinAlgError, match="values 0 and 1 are equal"):
        ad.grad(lambda a: ad.real(L.eig(a)[1][0, 0] + L.eig(a)[1][0, 1]))(np.array([[2.0, 0.0], [0.0, 2.0]]))
    complex_matrix = A + 1j * B
    np.testing.assert_allclose(
        np.sort_complex(L.eigvals(complex_matrix).numpy()), np.sort_complex(sl.eigvals(complex_matrix))
    )
    assert gradcheck(lambda a: L.eigvals(a), complex_matrix)


def test_factors_solve():
    for trans in (0, 1):
        expected = sl.lu_solve(sl.lu_factor(A), X, trans)
        np.testing.assert_allclose(L.lu_solve(L.lu_factor(A), X, trans).numpy(), expected, rtol=1e-12)
        solve = lambda a, b, t=trans: L.lu_solve(L.lu_factor(a), b, t)
        assert gradcheck(solve, [A, X], order=2, rtol=1e-4)
        np.testing.assert_allclose(ad.compile(solve)(A, X), expected, rtol=1e-12)
        batch = ad.vmap(solve)(np.stack([A, A[::-1]]), np.stack([X, X[::-1]]))
        np.testing.assert_allclose(batch[0], expected, rtol=1e-12)
    for lower in (False, True):
        expected = sl.cho_solve(sl.cho_factor(S, lower), X)
        np.testing.assert_allclose(L.cho_solve(L.cho_factor(S, lower), X).numpy(), expected, rtol=1e-12)
        f = lambda a, b, lower=lower: L.cho_solve(L.cho_factor(sym(a), lower), b)
        assert gradcheck(f, [S, X], order=2, rtol=1e-4)
    x, residues, rank, s = L.lstsq(T, RNG.normal(size=4))
    assert x.shape == (3,) and int(rank) == 3 and s.shape == (3,) and residues.shape == ()
    w, v = L.eigh(S, B @ B.T)
    np.testing.assert_allclose(S @ v.numpy(), B @ B.T @ v.numpy() * w.numpy(), rtol=1e-9)


@pytest.mark.parametrize("name", ["expm", "logm", "sqrtm", "eigvals", "lu"])
def test_vmap_jvp_and_compile(name):
    stack = np.stack([S + 0.1 * A, S + 0.2 * B])
    f = lambda a: ad.real(flat(getattr(L, name)(a))[-1]).sum() ** 2
    slopes = np.stack([ad.grad(f)(m) for m in stack])
    np.testing.assert_allclose(ad.vmap(ad.grad(f))(stack), slopes, rtol=1e-9)
    np.testing.assert_allclose(ad.jvp(f, (stack[0],), (A,))[1], (slopes[0] * A).sum(), rtol=1e-9)
    np.testing.assert_allclose(ad.compile(ad.grad(f))(stack[0]), slopes[0], rtol=1e-9)
    single = ad.tensor(stack[0].astype(np.float32), requires_grad=True)
    f(single).backward()
    assert single.grad.dtype == np.float32
    np.testing.assert_allclose(single.grad.numpy(), slopes[0], rtol=2e-2, atol=2e-2)


def test_what_has_no_derivative_says_so():
    x = ad.tensor(A, requires_grad=True)
    with pytest.raises(NoGradientError, match="its basis is an arbitrary one"):
        L.null_space(x)
    with pytest.raises(NoGradientError, match="Use eigvals"):
        L.schur(x)
    assert L.schur(A)[0].shape == (3, 3)
    with pytest.raises(LostHistoryError):
        L.hessenberg(x)
    with pytest.raises(LinAlgError, match="negative eigenvalues"):
        L.sqrtm(np.diag([1.0, -1.0]))
    with pytest.raises(ShapeError, match="expm: matrices must be square"):
        L.expm(T)
    with pytest.raises(InputError, match="pivoting"):
        L.qr(A, pivoting=True)
    with pytest.raises(InputError, match="side must be"):
        L.polar(A, "up")
    assert np.isnan(L.expm(np.full((2, 2), np.inf)).numpy()).all()
    assert L.expm(np.zeros((0, 0))).shape == (0, 0)


def test_edges_of_structured_matrices_and_factors():
    c, r = np.arange(6.0).reshape(2, 3) + 1, np.array([9.0, 8.0])
    each = np.stack([sl.toeplitz(row, r) for row in c])
    np.testing.assert_array_equal(L.toeplitz(c, r).numpy(), each)
    assert gradcheck(L.toeplitz, [c, r])
    assert L.toeplitz(3.0).shape == L.circulant(3.0).shape == (1, 1)
    factors, pivots = L.lu_factor(np.zeros((0, 0)))
    assert factors.shape == (0, 0) and pivots.shape == (0,)
    with pytest.raises(ShapeError) as caught:
        L.qr(np.ones(2))
    assert str(caught.value) == "qr: a must be a matrix, but has shape (2,)."
