"""``adjoint.scipy.sparse``: products and solves against SciPy, derivatives of elements and right sides."""

from __future__ import annotations

import numpy as np
import pytest
from on_tensors import on_tensors

import adjoint as ad
from adjoint.errors import ConvergenceError, DTypeError, InputError, LinAlgError, LostHistoryError, ShapeError
from adjoint.testing import gradcheck

ss = pytest.importorskip("scipy.sparse")
sl = pytest.importorskip("scipy.sparse.linalg")
S = on_tensors(ad.scipy.sparse)
L = S.linalg

RNG = np.random.default_rng(19)
I, J = np.array([2, 0, 1, 0, 2, 1, 3, 3]), np.array([2, 0, 1, 2, 0, 3, 3, 1])  # noqa: E741
DATA = np.array([5.0, 4.0, 3.0, 0.5, -0.4, 0.3, 6.0, 1.0])
A = ss.csr_array((DATA, (I, J)), shape=(4, 4))
SPD = (A @ A.T + ss.eye_array(4)).tocsr()
B, X = RNG.normal(size=4), RNG.normal(size=(4, 3))
close = lambda a, b: np.testing.assert_allclose(ad.asarray(a).numpy(), b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "name", ["csr_array", "csc_array", "coo_array", "csr_matrix", "csc_matrix", "coo_matrix"]
)
def test_constructors(name):
    ours, theirs = getattr(S, name), getattr(ss, name)
    compressed = [] if name.startswith("coo") else [(theirs(A).data, theirs(A).indices, theirs(A).indptr)]
    for arg, shape in [
        (A, None),
        (A.toarray(), None),
        ((DATA, (I, J)), None),
        ((2, 5), None),
        *((c, None) for c in compressed),
    ]:
        close(ours(arg, shape=shape).toarray(), theirs(arg, shape=shape).toarray())
    twice = ours((np.ones(2), ([0, 0], [1, 1])), shape=(2, 3))
    close(twice.toarray(), [[0, 2, 0], [0, 0, 0]])
    matrix = ours((DATA, (I, J)))
    assert matrix.shape == (4, 4) and matrix.nnz == 8 and matrix.dtype == np.float64
    close(matrix.T.toarray(), A.toarray().T)
    close(matrix.T.T.toarray(), A.toarray())
    close(matrix.diagonal(), A.diagonal())
    close((2 * matrix - matrix.T / 4 + A).toarray(), (3 * A - A.T / 4).toarray())
    assert ours(A, dtype=np.float32).dtype == np.float32


def test_products():
    a = S.csr_array(A)
    for x in (B, X):
        close(a @ x, A @ x)
        close(x.T @ a, x.T @ A)
        close(a.T @ ad.tensor(x), A.T @ x)
    of = lambda d: S.coo_array((d, (I, J)))
    assert gradcheck(lambda x: a @ x, [X], order=2)
    assert gradcheck(lambda d, x: of(d) @ x, [DATA, X], directions=2, order=2)
    assert gradcheck(lambda d, x: of(d).T @ x, [DATA, X], directions=2)
    assert gradcheck(lambda d: (of(d) + 2 * of(d).T).toarray(), [DATA])
    batch = np.stack([X, X + 1])
    close(ad.vmap(lambda x: a @ x)(batch), A.toarray() @ batch)
    both = ad.vmap(lambda d, x: of(d) @ x)(np.stack([DATA, 2 * DATA]), batch)
    close(both[1], 2 * A @ (X + 1))
    close(ad.compile(lambda x: a @ x)(X), A @ X)
    close(ad.compile(lambda d, x: of(d) @ x)(DATA, X), A @ X)
    close(ad.jvp(lambda x: a @ x, (X,), (X + 1,))[1], A @ (X + 1))
    many = ss.random_array((300, 200), density=0.05, rng=1)
    close(S.csr_array(many) @ np.ones(200), many @ np.ones(200))


def test_products_with_transposed_matrices():
    of = lambda d: S.coo_array((d, (I, J)), shape=(4, 5))
    dense = ss.coo_array((DATA, (I, J)), shape=(4, 5)).toarray()

    def written(d, x):
        a = of(d) * 1.0
        t = a.T
        a.data[0] = 9.0
        return t @ x

    def replaced(d, x):
        t = of(d).T
        t.data = 2 * t.data
        return t @ x

    for x in (B, X):
        for run in (lambda f: f, ad.compile):
            close(run(lambda d, x: of(d).T @ x)(DATA, x), dense.T @ x)
            close(run(lambda d, x: of(d).T.T @ (of(d).T @ x))(DATA, x), dense @ (dense.T @ x))
            close(run(written)(DATA, x), dense.T @ x)
            close(run(replaced)(DATA, x), 2 * dense.T @ x)

    def loss(d, x):
        with ad.no_grad():
            t = of(d).T
        return (t @ x).sum()

    for run in (lambda f: f, ad.compile):
        close(run(ad.grad(loss))(DATA, B), np.zeros(8))
    t = of(ad.tensor(DATA, requires_grad=True)).T
    close(ad.gradients((t @ ad.tensor(B)).sum(), [t.data])[0], B[t.pattern.cols])


SOLVERS = {
    "spsolve": (lambda a, b: L.spsolve(a, b), A),
    "cg": (lambda a, b: L.cg(a, b, rtol=1e-13)[0], SPD),
    "gmres": (lambda a, b: L.gmres(a, b, rtol=1e-13)[0], A),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_solves(name):
    solve, matrix = SOLVERS[name]
    dense = matrix.toarray()
    coo = matrix.tocoo()
    forms = [matrix, S.csr_array(matrix), dense]
    if name != "spsolve":
        forms.append(sl.aslinearoperator(matrix))
    for form in forms:
        close(solve(form, B), np.linalg.solve(dense, B))
        close(solve(form, X), np.linalg.solve(dense, X))
        assert gradcheck(lambda b, form=form: solve(form, b), [B], order=2)
        close(ad.vmap(lambda b, form=form: solve(form, b))(X.T), np.linalg.solve(dense, X).T)
        close(
            ad.jvp(lambda b, form=form: solve(form, b), (B,), (X[:, 0],))[1], np.linalg.solve(dense, X[:, 0])
        )
        close(ad.compile(lambda b, form=form: solve(form, b))(B), np.linalg.solve(dense, B))

    def of(d, b):
        a = S.coo_array((d, (coo.row, coo.col)))
        return solve((a + a.T) / 2 if name == "cg" else a, b)

    assert gradcheck(of, [coo.data, B], order=2, rtol=1e-4)
    both = ad.vmap(of)(np.stack([coo.data, 2 * coo.data]), np.stack([B, B + 1]))
    close(both[1], np.linalg.solve(2 * dense, B + 1))
    assert gradcheck(lambda m: solve((m + m.T) / 2 if name == "cg" else m, B), [dense], directions=2)
    exact = sl.aslinearoperator(ss.csr_array(np.diag(1 / np.diag(dense))))
    if name != "spsolve":
        method = getattr(L, name)
        got, info = method(matrix, B, ad.tensor(B), rtol=1e-12, M=exact)
        close(got, np.linalg.solve(dense, B))
        assert info == 0
        assert gradcheck(lambda b: method(matrix, b, rtol=1e-12, M=exact)[0], [B])


def test_diagonals():
    d = [RNG.normal(size=3), RNG.normal(size=4) + 5, RNG.normal(size=3)]
    close(S.diags_array(d, offsets=[-1, 0, 1]).toarray(), ss.diags_array(d, offsets=[-1, 0, 1]).toarray())
    close(S.diags_array([1.0, 2.0], offsets=1).toarray(), ss.diags_array([[1.0, 2.0]], offsets=[1]).toarray())
    heat = lambda k: L.spsolve(
        S.eye_array(4) + S.diags_array([[-1.0], [2.0], [-1.0]], offsets=[-1, 0, 1], shape=(4, 4)) * k, B
    )
    assert gradcheck(heat, [np.array(0.7)], order=2)
    older = lambda k: L.spsolve(S.eye(4, format="csc") + S.diags([-1, 2, -1], [-1, 0, 1], (4, 4)) * k, B)
    close(older(0.7), heat(0.7).numpy())
    close(S.identity(3, dtype=np.float32).toarray(), np.eye(3))
    assert S.diags([[1.0, 2.0]], [0], dtype=np.float32).dtype == np.float32
    assert gradcheck(lambda a, b: L.spsolve(S.diags_array([a, b], offsets=[-1, 0]), B), [d[0], d[1]])


def test_mistakes():
    with pytest.raises(ShapeError, match="cannot be multiplied with a tensor"):
        S.csr_array(A) @ np.ones(3)
    with pytest.raises(ShapeError, match="the right-hand side must have"):
        L.spsolve(A, np.ones(3))
    with pytest.raises(LinAlgError, match="singular"):
        L.spsolve(ss.csc_array(np.zeros((2, 2))), [1.0, 1.0])
    with pytest.raises(ConvergenceError, match="no solution was found in"):
        L.cg(SPD, B, maxiter=1)
    for matrix in (A, S.csr_array(A)):
        with pytest.raises(DTypeError, match="Write a sparse matrix on the left"):
            ad.maximum(ad.tensor(B), matrix)
    with pytest.raises(InputError, match="two sparse matrices"):
        S.csr_array(A) @ A
    with pytest.raises(ShapeError, match="outside of the shape"):
        S.coo_array((DATA, (I, J)), shape=(2, 2))
    assert S.eye_array(3).toarray().shape == (3, 3) and ss.issparse(S.random_array((3, 3)))


def test_sums_and_elementwise_products():
    a, dense = S.csr_array(A), RNG.normal(size=(4, 4))
    close(a.sum(), A.sum())
    for axis in (0, 1, -1, -2):
        close(a.sum(axis), A.sum(axis))
    close(a.trace(), A.trace())
    close(a.multiply(dense).toarray(), A.multiply(dense).toarray())
    close(a.multiply(dense[:1]).toarray(), A.multiply(dense[:1]).toarray())
    f = lambda d, m: (lambda s: (s.sum(0), s.sum(1), s.trace()))(S.coo_array((d, (I, J))).multiply(m))
    assert gradcheck(f, [DATA, dense], order=2)
    with pytest.raises(InputError, match="sum: axis must be None, 0 or 1 for a sparse matrix, not 2"):
        a.sum(2)


def test_functions_of_scipy():
    """Constant matrices become SciPy's; matrices with a history raise adjoint's errors."""
    constant, spd = S.csr_array(A), S.csr_array(SPD)
    recorded = S.coo_array((ad.tensor(DATA, requires_grad=True), (I, J)))
    close(S.vstack([constant, constant]).toarray(), ss.vstack([A, A]).toarray())
    close(L.norm(constant), sl.norm(A))
    for call in (lambda m: S.hstack([m, m]), S.tril, L.norm, L.splu):
        with pytest.raises(LostHistoryError, match=r"an array for scipy\.sparse\.[\w.]+ at "):
            call(recorded)
    for solve in (sl.cg, sl.gmres, sl.minres, sl.bicgstab):  # SciPy's own
        np.testing.assert_allclose(spd @ np.asarray(solve(spd, B, rtol=1e-12)[0]), B, rtol=1e-8)
        with pytest.raises(LostHistoryError):
            solve(recorded, B)
    words = "a SparseArray (cannot be converted to a NumPy array|has no attribute '[a-z]+')"
    for call in (ss.kron, lambda m, _: ss.block_diag([m]), lambda m, _: ss.tril(m)):
        with pytest.raises((InputError, AttributeError), match=words):
            call(constant, constant)
    with pytest.raises(InputError, match="a SparseArray cannot be converted to a NumPy array"):
        np.asarray(constant)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
@pytest.mark.parametrize("kind", ["array", "matrix"])
def test_constant_matrices_of_scipy_on_the_left(form, kind):
    """``matrix @ x`` has derivatives in ``x``, also in compiled functions; ``*`` and conversions raise as before."""
    matrix = getattr(ss, f"{form}_{kind}")(A)
    for x in (X, B):
        f = lambda x: matrix @ x
        assert gradcheck(f, [x], order=2)
        for run in (f, ad.compile(f, backend="replay"), ad.compile(f)):
            for _ in range(2):
                found = run(ad.tensor(x, requires_grad=True))
                assert isinstance(found, ad.Tensor) and found.requires_grad
                close(found.detach(), A @ x)
        close(matrix @ ad.tensor(x), A @ x)
        assert type(matrix @ x) is np.ndarray
    with pytest.raises(LostHistoryError):
        matrix * ad.tensor(X, requires_grad=True)
