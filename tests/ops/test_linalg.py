"""Linear algebra: NumPy's values, derivatives of second order and in batches, messages."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.linalg
from matrices import cplx, gradient, hermitian, real, same, slope

import adjoint as ad
from adjoint.errors import ArgumentError, DTypeError, InputError, LinAlgError, NoGradientError, ShapeError
from adjoint.testing import gradcheck, gradgradcheck

al = ad.linalg
INF = float("inf")

# Values ------------------------------------------------------------------------------------------

SHAPES = ((3, 3), (2, 3, 3), (1, 1), (0, 0), (2, 0, 3, 3))


@pytest.mark.parametrize("make", [real, cplx])
@pytest.mark.parametrize("shape", SHAPES)
def test_square_matrices_are_numpy(make, shape):
    x = make(*shape)
    for name in ("inv", "det", "pinv", "svdvals"):
        if name == "pinv" and 0 in shape[-2:]:
            continue
        same(getattr(al, name)(x), getattr(np.linalg, name)(x))
    for a, b in zip(al.slogdet(x), np.linalg.slogdet(x), strict=True):
        same(a, b)
    for a, b in zip(al.svd(x), np.linalg.svd(x), strict=True):
        same(a, b)
    for a, b in zip(al.qr(x), np.linalg.qr(x), strict=True):
        same(a, b)
    for n in (-2, -1, 0, 1, 2, 3, 10):
        same(al.matrix_power(x, n), np.linalg.matrix_power(x, n), 1e-7)
    h = hermitian(make, *shape)
    same(al.cholesky(h), np.linalg.cholesky(h))
    same(al.cholesky(h, upper=True), np.linalg.cholesky(h, upper=True))
    same(al.eigvalsh(h), np.linalg.eigvalsh(h))
    w, v = al.eigh(h)
    same(w, np.linalg.eigh(h)[0])
    same(h @ v, v * w[..., None, :])


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (2, 5, 2), (0, 3), (3, 0)])
def test_rectangles_are_numpy(shape):
    x = real(*shape)
    for full in (True, False):
        for a, b in zip(al.svd(x, full_matrices=full), np.linalg.svd(x, full_matrices=full), strict=True):
            same(a, b)
    for mode in ("reduced", "complete"):
        for a, b in zip(al.qr(x, mode=mode), np.linalg.qr(x, mode=mode), strict=True):
            same(a, b)
    same(al.qr(x, mode="r"), np.linalg.qr(x, mode="r"))
    same(al.svd(x, compute_uv=False), np.linalg.svd(x, compute_uv=False))
    same(al.matrix_rank(x), np.linalg.matrix_rank(x)) if 0 not in shape else None
    same(al.pinv(x), np.linalg.pinv(x))


def test_results_have_names():
    x = np.eye(2)
    assert al.svd(x)._fields == ("U", "S", "Vh")
    assert al.qr(x)._fields == ("Q", "R")
    assert al.eigh(x)._fields == ("eigenvalues", "eigenvectors")
    assert al.slogdet(x)._fields == ("sign", "logabsdet")


@pytest.mark.parametrize("make", [real, cplx])
def test_solve_is_numpy(make):
    for xs, ys in (
        ((3, 3), (3,)),
        ((3, 3), (3, 2)),
        ((2, 3, 3), (3, 2)),
        ((2, 3, 3), (3,)),
        ((3, 3), (2, 3, 1)),
        ((0, 0), (0,)),
    ):
        x, y = make(*xs), make(*ys)
        same(al.solve(x, y), np.linalg.solve(x, y))


@pytest.mark.parametrize("n", [1, 3, 64, 65, 200])
def test_solve_triangular_is_scipy(n):
    x, y = real(n, n) / n + 2 * np.eye(n), real(n, 2)
    for lower, trans, unit in itertools.product((False, True), (0, 1, "C"), (False, True)):
        ours = al.solve_triangular(x, y, trans=trans, lower=lower, unit_diagonal=unit)
        theirs = scipy.linalg.solve_triangular(x, y, trans=trans, lower=lower, unit_diagonal=unit)
        same(ours, theirs)
    same(al.solve_triangular(x, y[:, 0]), scipy.linalg.solve_triangular(x, y[:, 0]))


def test_lstsq_is_numpy():
    for xs, ys in (((5, 3), (5,)), ((5, 3), (5, 2)), ((3, 5), (3,)), ((3, 3), (3, 1))):
        x, y = real(*xs), real(*ys)
        ours, theirs = al.lstsq(x, y), np.linalg.lstsq(x, y)
        same(ours.solution, theirs[0])
        same(ours.residuals, np.atleast_1d(theirs[1]))
        assert int(ours.rank) == theirs[2]
        same(ours.singular_values, theirs[3])
    x = np.ones((4, 2))  # of rank 1
    same(al.lstsq(x, np.arange(4.0)).solution, np.linalg.lstsq(x, np.arange(4.0))[0])
    assert al.lstsq(x, np.arange(4.0)).residuals.shape == (0,)


def test_multi_dot_tensorsolve_tensorinv_cond():
    a, b, c, d = real(10, 3), real(3, 20), real(20, 2), real(2)
    same(al.multi_dot([a, b, c, d]), np.linalg.multi_dot([a, b, c, d]))
    same(al.multi_dot([d, c.T, b.T]), np.linalg.multi_dot([d, c.T, b.T]))
    same(al.multi_dot([a, b]), a @ b)
    x = real(6, 4, 2, 3, 4)
    same(al.tensorsolve(x, real(6, 4) * 0 + 1), np.linalg.tensorsolve(x, np.ones((6, 4))))
    y = real(2, 3, 6)
    same(al.tensorinv(y, ind=2), np.linalg.tensorinv(y, ind=2))
    z = real(3, 3)
    for p in (None, 1, -1, 2, -2, INF, -INF, "fro"):
        same(al.cond(z, p), np.linalg.cond(z, p))
    assert float(al.cond(np.diag([1.0, 0.0]))) == INF


@pytest.mark.parametrize("make", [real, cplx])
def test_norms_are_numpy(make):
    x = make(2, 3, 4)
    for ord, axis, keep in itertools.product(
        (2, 1, 0, 3, 0.5, -1, -2.5, INF, -INF), (None, 0, -1, (0, 2)), (False, True)
    ):
        ours = al.vector_norm(x, axis=axis, keepdims=keep, ord=ord)
        same(ours, np.linalg.vector_norm(x, axis=axis, keepdims=keep, ord=ord))
    for ord, keep in itertools.product(("fro", "nuc", 1, -1, 2, -2, INF, -INF), (False, True)):
        same(al.matrix_norm(x, keepdims=keep, ord=ord), np.linalg.matrix_norm(x, keepdims=keep, ord=ord))
        same(al.norm(x, ord, axis=(2, 0), keepdims=keep), np.linalg.norm(x, ord, axis=(2, 0), keepdims=keep))
        same(al.norm(x[0], ord), np.linalg.norm(x[0], ord))
    same(al.norm(x), np.linalg.norm(x))
    same(al.norm(x, axis=(0, 1)), np.linalg.norm(x, axis=(0, 1)))
    same(al.norm(x, 3, axis=1), np.linalg.norm(x, 3, axis=1))
    same(al.norm(x[0, 0], 3), np.linalg.norm(x[0, 0], 3))
    same(al.norm(np.float64(-2)), 2.0)
    same(al.norm(x, keepdims=True), np.linalg.norm(x, keepdims=True))


def test_numpy_functions_take_tensors_and_differentiate():
    x = ad.tensor(hermitian(real, 3, 3), requires_grad=True)
    y = ad.tensor(real(3, 2), requires_grad=True)
    for name in (
        "inv",
        "det",
        "pinv",
        "cholesky",
        "norm",
        "eigvalsh",
        "svdvals",
        "trace",
        "diagonal",
        "cond",
        "matrix_transpose",
        "vector_norm",
        "matrix_norm",
    ):
        out = getattr(np.linalg, name)(x)
        assert isinstance(out, ad.Tensor), name
        assert out.requires_grad, name
        same(out, getattr(np.linalg, name)(x.numpy()))
    for name in ("qr", "svd", "eigh", "slogdet"):
        assert all(isinstance(t, ad.Tensor) for t in getattr(np.linalg, name)(x)), name
    same(np.linalg.solve(x, y), np.linalg.solve(x.numpy(), y.numpy()))
    same(np.linalg.solve(x.numpy(), y), np.linalg.solve(x.numpy(), y.numpy()))
    same(np.linalg.lstsq(x, y)[0], np.linalg.lstsq(x.numpy(), y.numpy())[0])
    same(np.linalg.matrix_power(x, 3), np.linalg.matrix_power(x.numpy(), 3), 1e-8)
    same(np.linalg.multi_dot([x, x, y]), np.linalg.multi_dot([x.numpy(), x.numpy(), y.numpy()]))
    same(np.linalg.cross(y.mT @ x, y.mT), np.linalg.cross(y.numpy().T @ x.numpy(), y.numpy().T))
    assert int(np.linalg.matrix_rank(x)) == 3
    g = gradient(lambda t: ad.sum(np.linalg.solve(t, y.numpy())), x.numpy())
    np.testing.assert_allclose(g, slope(lambda a: np.linalg.solve(a, y.numpy()).sum(), x.numpy()), atol=1e-7)


def test_float32_stays_and_integers_become_floats():
    x = hermitian(real, 3, 3).astype(np.float32)
    for f in (al.inv, al.det, al.pinv, al.cholesky, al.norm, al.eigvalsh, al.svdvals, lambda t: al.solve(t, t[0]),
              lambda t: al.svd(t)[0], lambda t: al.eigh(t)[1], lambda t: al.qr(t)[1], lambda t: al.slogdet(t)[1],
              lambda t: al.matrix_power(t, 3), lambda t: al.vector_norm(t, ord=3), lambda t: al.lstsq(t, t[0])[0]):  # fmt: skip
        t = ad.tensor(x, requires_grad=True)
        y = f(t)
        assert y.dtype == np.float32
        (g,) = ad.gradients(ad.sum(y), [t])
        assert g.dtype == np.float32
    assert al.inv([[2, 0], [0, 4]]).dtype == np.float64
    assert float(al.norm([3, 4])) == 5.0


# Everything to second order, and in batches ------------------------------------------------------

FUNCTIONS = {
    "inv": al.inv,
    "det": al.det,
    "slogdet": lambda x: al.slogdet(x)[1],
    "pinv": al.pinv,
    "solve": lambda x: al.solve(x, x[..., :2]),
    "solve_vector": lambda x: al.solve(x, np.arange(3.0)),
    "solve_triangular": lambda x: al.solve_triangular(x + 3 * np.eye(3), x[..., :1], lower=True),
    "lstsq": lambda x: al.lstsq(x[..., :2], x[..., 2:])[0],
    "cholesky": lambda x: al.cholesky(x @ x.mT + np.eye(3)),
    "qr": lambda x: al.qr(x[..., :2])[0],
    "svd": lambda x: al.svd(x[..., :2], full_matrices=False)[0] ** 2,
    "svdvals": al.svdvals,
    "eigh": lambda x: al.eigh(x + x.mT)[1] ** 2,
    "eigvalsh": lambda x: al.eigvalsh(x + x.mT),
    "matrix_power": lambda x: al.matrix_power(x, 3),
    "norm": lambda x: al.vector_norm(x, axis=-1, ord=2.5),
    "nuc": lambda x: al.matrix_norm(x, ord="nuc"),
    "cond": al.cond,
    "trace": lambda x: al.trace(x @ x),
    "fft": lambda x: ad.abs(ad.fft.rfft(x)) ** 2,
    "einsum": lambda x: ad.einsum("...ij,...kj,...kl->...il", x, x, x),
}  # fmt: skip
GOOD = np.array([[2.0, 0.3, -0.5], [0.7, -1.1, 0.2], [0.1, 0.4, 0.6]])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_first_and_second_order_against_finite_differences(name):
    gradcheck(FUNCTIONS[name], ad.tensor(GOOD, requires_grad=True))
    gradgradcheck(FUNCTIONS[name], ad.tensor(GOOD, requires_grad=True))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_batch_is_its_elements(name):
    f = FUNCTIONS[name]
    x = np.stack([GOOD, GOOD.T + 0.1, 1.5 * GOOD - 0.2])
    batch = ad.tensor(x, requires_grad=True)
    y = f(batch)
    g = real(*y.shape)
    (dx,) = ad.gradients(y, [batch], g)
    for i in range(3):
        one = ad.tensor(x[i], requires_grad=True)
        z = f(one)
        (dz,) = ad.gradients(z, [one], g[i])
        np.testing.assert_allclose(y.detach().numpy()[i], z.detach().numpy(), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(dx.numpy()[i], dz.numpy(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap_is_the_batch(name):
    f = FUNCTIONS[name]
    x = np.stack([GOOD, GOOD.T + 0.1])
    np.testing.assert_allclose(np.asarray(ad.vmap(f)(x)), np.asarray(f(x)), rtol=1e-9, atol=1e-12)
    total = lambda t: ad.sum(f(t))
    each = np.stack([np.asarray(ad.grad(total)(ad.tensor(m))) for m in x])
    np.testing.assert_allclose(np.asarray(ad.vmap(ad.grad(total))(x)), each, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_mode_agrees(name):
    f = FUNCTIONS[name]
    v = real(3, 3)
    _, t = ad.jvp(f, (GOOD,), (v,))
    h = 1e-6
    expected = (np.asarray(f(ad.tensor(GOOD + h * v))) - np.asarray(f(ad.tensor(GOOD - h * v)))) / (2 * h)
    np.testing.assert_allclose(np.asarray(t), expected, rtol=1e-5, atol=1e-6)


def test_one_matrix_is_factorised_once_for_many_right_hand_sides():
    x, y = ad.tensor(GOOD, requires_grad=True), ad.tensor(real(2, 4, 3, 2), requires_grad=True)
    z = al.solve(x, y)
    same(z, np.linalg.solve(GOOD, y.numpy()))
    node = z._node
    while node.op.name != "solve":
        node = node.parents[0]
    assert node.shape == (3, 16)
    gradcheck(al.solve, [x, y])
    gradcheck(lambda a, b: al.solve_triangular(a, b, lower=True), [x, y])


def test_broadcast_right_hand_sides_add_up():
    x, y = ad.tensor(np.stack([GOOD, GOOD.T]), requires_grad=True), ad.tensor(real(3, 2), requires_grad=True)
    gradcheck(al.solve, [x, y])
    gradcheck(lambda a, b: al.solve_triangular(a + 3 * np.eye(3), b), [x, y])


def test_the_gradient_of_a_symmetric_matrix_is_symmetric_and_of_others_that_of_the_triangle_read():
    x = hermitian(real, 3, 3)
    m = real(3, 3)
    for f in (al.cholesky, al.eigvalsh, lambda t: al.eigh(t)[0]):
        g = gradient(lambda t, f=f: ad.sum(f(t) * m[0]), x)
        np.testing.assert_allclose(g, g.T, atol=1e-12)
    lower = np.tril(x)
    same(al.eigvalsh(lower), np.linalg.eigvalsh(lower))
    same(al.eigvalsh(np.triu(x), UPLO="U"), np.linalg.eigvalsh(x))
    same(al.cholesky(lower), np.linalg.cholesky(lower))
    same(al.cholesky(np.triu(x), upper=True), np.linalg.cholesky(np.triu(x), upper=True))
    g = gradient(lambda t: ad.sum(al.eigvalsh(t) ** 2), lower)
    np.testing.assert_allclose(g, slope(lambda a: np.sum(np.linalg.eigvalsh(a) ** 2), lower), atol=1e-6)


def test_pinv_where_the_rank_is_not_full():
    u, v = real(4, 2), real(2, 3)
    m = real(3, 4)
    f = lambda a: ad.sum(al.pinv(a @ v, rtol=1e-10) * m)
    g = lambda a: np.sum(np.linalg.pinv(a @ v, rcond=1e-10) * m)
    np.testing.assert_allclose(gradient(f, u), slope(g, u), rtol=1e-5, atol=1e-6)


def test_matrix_rank_has_no_gradient():
    x = ad.tensor(np.eye(3), requires_grad=True)
    assert not al.matrix_rank(x).requires_grad
    with pytest.raises(NoGradientError):
        al.matrix_rank(x).backward()
    assert al.matrix_rank(np.diag([1.0, 1e-3, 0.0]), tol=1e-2).numpy() == 1
    assert al.matrix_rank(np.diag([1.0, 1e-3, 0.0]), rtol=1e-2).numpy() == 1
    assert al.matrix_rank(np.diag([1.0, 1e-3, 0.0])).numpy() == 2
    two = np.stack([np.diag([1.0, 1e-3]), np.diag([1.0, 1e-3])])
    same(al.matrix_rank(two, rtol=np.array([1e-2, 1e-4])), np.array([1, 2]))
    same(al.pinv(two, rtol=np.array([1e-2, 1e-4])), np.linalg.pinv(two, rcond=np.array([1e-2, 1e-4])))
    with pytest.raises(InputError, match="rtol must be a number, or one number per matrix"):
        al.pinv(np.eye(2), rtol=1j)


def test_empty_matrices_have_empty_gradients():
    for f in (
        al.inv,
        al.det,
        al.cholesky,
        lambda t: al.svd(t)[1],
        lambda t: al.eigh(t)[1],
        lambda t: al.qr(t)[1],
        al.svdvals,
    ):
        assert gradient(lambda t, f=f: ad.sum(f(t)), np.zeros((0, 0))).shape == (0, 0)
        assert gradient(lambda t, f=f: ad.sum(f(t)), np.zeros((0, 2, 2))).shape == (0, 2, 2)


# Mistakes ----------------------------------------------------------------------------------------

CURES = "\n  Add a small multiple of the identity, or use ad.linalg.pinv or lstsq."
NAN = np.full((2, 2), np.nan)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: al.inv(np.ones((2, 2))), LinAlgError, "inv: the matrix is singular (shape (2, 2))." + CURES),
        (lambda: al.inv(np.stack([np.eye(2), np.ones((2, 2))])), LinAlgError,
         "inv: matrix 1 of the batch is singular (shape (2, 2, 2))." + CURES),
        (lambda: al.solve(np.zeros((2, 1, 2, 2)), np.ones(2)), LinAlgError,
         "solve: matrix (0, 0) of the batch is singular (shape (2, 1, 2, 2))." + CURES),
        (lambda: al.solve_triangular(np.array([[1.0, 2.0], [3.0, 0.0]]), np.ones(2)), LinAlgError,
         "solve_triangular: the matrix is singular: element 1 of its diagonal is 0 (shape (2, 2))." + CURES),
        (lambda: al.cholesky(-np.eye(2)), LinAlgError,
         "cholesky: the matrix is not positive definite (shape (2, 2)).\n"
         "  Check that the matrix is symmetric, or add a small multiple of the identity."),
        (lambda: al.cholesky(np.stack([np.eye(2), np.eye(2), -np.eye(2)])), LinAlgError,
         "cholesky: matrix 2 of the batch is not positive definite (shape (3, 2, 2)).\n"
         "  Check that the matrix is symmetric, or add a small multiple of the identity."),
        (lambda: al.svd(NAN), LinAlgError,
         "svd: the matrix has singular values that LAPACK could not compute (shape (2, 2)).  The input contains "
         "NaN or inf.\n"
         "  Check the input for huge values."),
        (lambda: al.eigh(np.full((3, 3), INF)), LinAlgError,
         "eigh: the matrix has eigenvalues that LAPACK could not compute (shape (3, 3)).  The input contains NaN "
         "or inf.\n"
         "  Check the input for huge values."),
        (lambda: al.inv(np.ones((2, 3))), ShapeError,
         "inv: matrices must be square, but the last two axes of shape (2, 3) have lengths 2 and 3."),
        (lambda: al.det(np.ones(3)), ShapeError,
         "det: x must be a matrix or a batch of matrices in the last two axes, but has shape (3,)."),
        (lambda: al.solve(np.eye(3), np.ones((2, 3))), ShapeError,
         "solve: for matrices of shape (3, 3) the right-hand side must have 3 rows, but its shape (2, 3) has 2.\n"
         "  A right-hand side with two or more axes is a batch of matrices.  Pass a batch of vectors as y[..., "
         "None]."),
        (lambda: al.solve(np.stack([np.eye(3)] * 2), np.ones((5, 3, 1))), ShapeError,
         "solve (leading axes): shapes (2,) and (5,) do not broadcast: axis -1 has length 2 in one and 5 in another.\n"
         "  The lengths of each axis, counted from the end, must be equal or 1.  Reshape or transpose one of the arguments."),
        (lambda: al.lstsq(np.ones((3, 2)), np.ones(2)), ShapeError,
         "lstsq: for a matrix of shape (3, 2) the right-hand side must have 3 rows, but has shape (2,)."),
        (lambda: al.inv(np.eye(2, dtype=np.float16)), DTypeError,
         "inv: LAPACK does not support float16.  Cast the input: x.astype(np.float32)."),
        (lambda: al.qr(np.eye(2), mode="raw"), ArgumentError,
         "qr: mode must be \"reduced\", \"complete\" or \"r\", not 'raw'."),
        (lambda: al.eigh(np.eye(2), UPLO="X"), ArgumentError, "eigh: UPLO must be \"L\" or \"U\", not 'X'."),
        (lambda: al.matrix_power(np.eye(2), 1.5), InputError,
         "matrix_power: the exponent must be an integer, but got 1.5."),
        (lambda: al.matrix_norm(np.eye(2), ord=3), ArgumentError,
         'matrix_norm: the order of a matrix norm must be "fro", "nuc", ±1, ±2 or ±inf, not 3.'),
        (lambda: al.vector_norm(np.ones(2), ord="fro"), ArgumentError,
         "vector_norm: the order of a vector norm must be a number, inf or -inf, not 'fro'."),
        (lambda: al.norm(np.ones((2, 2, 2)), 2), ShapeError,
         "norm: with ord=2 and without axis=, x must have one or two axes, but has shape (2, 2, 2).\n"
         "  Pass axis= with one axis for the norms of vectors, with two for those of matrices."),
        (lambda: al.norm(np.ones((2, 2)), axis=(0, 0)), ShapeError,
         "norm: axis must be one axis or two different axes, but is (0, 0)."),
        (lambda: al.vector_norm(np.ones((2, 0)), ord=-INF), ShapeError,
         "vector_norm: with a negative ord the axes must not be empty, but axes (-2, -1) of shape (2, 0) are."),
        (lambda: al.multi_dot([np.eye(2)]), InputError, "multi_dot: expected two or more matrices, but got 1."),
        (lambda: al.multi_dot([np.eye(2), np.ones(2), np.eye(2)]), ShapeError,
         "multi_dot: operand 1 has shape (2,): operands must be matrices, except that the first and last may be vectors."),
        (lambda: al.solve_triangular(np.eye(2), np.ones(2), trans=3), ArgumentError,
         'solve_triangular: trans must be 0, 1, 2 or "N", "T", "C", not 3.'),
        (lambda: al.pinv(np.eye(2), 1e-3, rtol=1e-3), ArgumentError,
         "pinv: pass either rcond= or rtol=, not both."),
        (lambda: al.outer(np.eye(2), np.ones(2)), ShapeError,
         "outer: both arguments must be vectors, but have shapes (2, 2) and (2,)."),
    ],
)  # fmt: skip
def test_messages(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("n", [8191, 8192, 8193, 10_001, 40_000])
def test_dot_products_of_long_vectors(n: int, dtype: str) -> None:
    """They are summed in pieces, so that BLAS starts no threads for them."""
    r = np.random.default_rng(n)
    x, y = ((r.normal(size=2 * n) + (1j if dtype[0] == "c" else 0)).astype(dtype)[::2] for _ in range(2))
    exact = (x.astype("c16") * y).sum()
    for found in (ad.matmul(x, y), ad.dot(x, y), ad.einsum("i,i->", x, y), ad.matmul(x[::-1], y[::-1])):
        np.testing.assert_allclose(found.numpy(), exact, 0, 4 * np.finfo(dtype).eps * n)
        assert found.dtype == x.dtype
        assert found.shape == ()
    g = ad.grad(lambda x: ad.real(ad.dot(x, y)))(x)
    np.testing.assert_array_equal(g, y.conj())
