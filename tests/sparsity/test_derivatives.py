"""Sparse Jacobians and Hessians: values, modes, types, transforms, guards and errors."""

from __future__ import annotations

import copy
import random
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import adjoint as ad
from adjoint.sparsity.derivatives import SparseDerivative

X = np.linspace(0.5, 1.5, 8)


def chain(x: Any) -> Any:
    return ad.sin(x[1:]) * x[:-1] ** 2


def energy(x: Any) -> Any:
    return (chain(x) ** 2).sum()


def products(f: Any, x: Any) -> tuple[int, int]:
    """The number of products with columns and with rows that a sparse derivative uses."""
    assert isinstance(f, SparseDerivative)
    plan = f.plan(f.record((x,), {})[0], (x,), {})
    return plan.forward, plan.backward


@pytest.mark.parametrize("mode", [True, "columns", "rows", "both"])
def test_modes(mode: Any) -> None:
    found = ad.jacobian(chain, sparse=mode)(X)
    assert type(found) is scipy.sparse.csr_array and found.has_canonical_format
    np.testing.assert_allclose(found.toarray(), ad.jacobian(chain)(X), rtol=1e-13)


def arrow(x: Any) -> Any:
    """A dense row and a dense column: one product each, and one for the diagonal."""
    return ad.concat([(x**2).sum()[None], x[0] * ad.exp(x[1:])])


def test_the_fewest_products_are_chosen() -> None:
    x = np.ones(200)
    assert products(ad.jacobian(chain, sparse=True), x) == (2, 0)
    assert products(ad.jacobian(lambda x: (x**2).sum(), sparse=True), x) == (0, 1)
    assert products(ad.jacobian(lambda x: x[0] * np.ones(100), sparse=True), x) == (1, 0)
    found = ad.jacobian(arrow, sparse=True)
    assert products(found, x) == (2, 1)
    np.testing.assert_allclose(found(x).toarray(), ad.jacobian(arrow)(x), rtol=1e-13)
    turned = lambda x: ad.concat([x[:1] * x[1], x[0] * x[1:] + x[1] ** 2])
    np.testing.assert_allclose(
        ad.jacobian(turned, sparse=True)(X).toarray(), ad.jacobian(turned)(X), rtol=1e-13
    )


def test_columns_apart() -> None:
    """Columns that all rows need are computed alone; the rest by rows, of which each is shared by many columns."""

    def f(x: Any) -> Any:
        blocks = x[1:].reshape(10, 10)
        return ad.concat([(blocks**2).sum(axis=1) * x[0], x[1:11] * x[0]])

    x = np.linspace(1, 2, 101)
    found = ad.jacobian(f, sparse=True)
    assert sum(products(found, x)) == 3
    np.testing.assert_allclose(found(x).toarray(), ad.jacobian(f)(x), rtol=1e-13)


def test_hessians_read_transposed_entries() -> None:
    f = lambda x: (x[0] * x[1:] ** 2).sum() + x[0] ** 3
    found = ad.hessian(f, sparse=True)
    assert products(found, X) == (2, 0)
    np.testing.assert_allclose(found(X).toarray(), ad.hessian(f)(X), rtol=1e-13)


def test_dtypes() -> None:
    found = ad.jacobian(chain, sparse=True)(X.astype(np.float32))
    assert found.dtype == np.float32
    half = X.astype(np.float16)  # SciPy has no matrices of float16
    found, dense = ad.jacobian(chain, sparse=True)(half), ad.jacobian(chain)(half)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found.toarray(), dense)
    z = X * (1 + 0.5j)
    with pytest.raises(ad.errors.DTypeError, match="holomorphic=True"):
        ad.jacobian(chain, sparse=True)(z)
    for mode in ("columns", "rows"):
        found = ad.jacobian(chain, sparse=mode, holomorphic=True)(z)
        np.testing.assert_allclose(found.toarray(), ad.jacobian(chain, holomorphic=True)(z), rtol=1e-13)
    to_complex = lambda x: x[1:] * 1j + x[:-1]
    found = ad.jacobian(to_complex, sparse=True)(X)
    assert found.dtype == np.complex128
    np.testing.assert_allclose(found.toarray(), ad.jacobian(to_complex)(X), rtol=1e-13)


def test_trees_and_several_arguments() -> None:
    f = lambda p, y: {"a": p["u"][1:] * y[:2], "b": p["v"] * y[0]}
    args = {"u": X[:3], "v": X[3:5]}, X[5:]
    dense = ad.jacobian(f, (0, 1))(*args)
    found = ad.jacobian(f, (0, 1), sparse=True)(*args)
    flat, other = ad.tree.leaves(dense), ad.tree.leaves(found)
    assert len(flat) == len(other) == 6
    for d, s in zip(flat, other, strict=True):
        np.testing.assert_allclose(s.toarray(), np.reshape(d, s.shape))
    loss = lambda p, y: (f(p, y)["a"] ** 2).sum() * p["v"][0]
    dense, found = ad.hessian(loss, (0, 1))(*args), ad.hessian(loss, (0, 1), sparse=True)(*args)
    for d, s in zip(ad.tree.leaves(dense), ad.tree.leaves(found), strict=True):
        np.testing.assert_allclose(s.toarray(), np.reshape(d, s.shape), atol=1e-14)


def test_aux_chunks_and_keywords() -> None:
    f = lambda x, *, scale: (chain(x) * scale, {"sum": x.sum()})
    found, aux = ad.jacobian(f, has_aux=True, sparse="columns", chunk_size=1)(X, scale=2.0)
    np.testing.assert_allclose(found.toarray(), 2 * ad.jacobian(chain)(X), rtol=1e-13)
    assert aux["sum"] == X.sum()


def test_a_derivative_that_is_infinite_elsewhere_is_no_nan() -> None:
    f = lambda x: ad.sqrt(x[:-1]) + x[1:]
    x = np.array([0.0, 1.0, 2.0, 3.0])
    found = ad.jacobian(f, sparse=True)(x).toarray()
    np.testing.assert_array_equal(found, [[np.inf, 1, 0, 0], [0, 0.5, 1, 0], [0, 0, 1 / np.sqrt(8), 1]])
    np.testing.assert_array_equal(found, ad.jacfwd(f)(x))
    compiled = ad.compile(ad.jacobian(f, sparse=True))
    for _ in range(2):
        np.testing.assert_allclose(compiled(x).toarray(), found, rtol=1e-15)
    inner = ad.compile(lambda x: ad.jacobian(f, sparse=True)(x).toarray())
    for _ in range(2):
        np.testing.assert_allclose(inner(x), found, rtol=1e-15)
    assert np.isnan(ad.jacobian(lambda x: x * np.nan, sparse=True)(x).data).all()


# Tensors and transforms ------------------------------------------------------------------------------


def test_tensors_give_a_sparse_array_with_derivatives() -> None:
    jacobian = ad.jacobian(chain, sparse=True)
    x = ad.tensor(X, requires_grad=True)
    (jacobian(x).data ** 2).sum().backward()
    expected = ad.grad(lambda x: (ad.jacobian(chain)(x) ** 2).sum())(X)
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(ad.grad(lambda x: (jacobian(x).data ** 2).sum())(X), expected, rtol=1e-12)
    np.testing.assert_allclose(jacobian(ad.tensor(X)) @ X, ad.jacobian(chain)(X) @ X, rtol=1e-13)


def test_inside_vmap_and_compile() -> None:
    jacobian, batch = ad.jacobian(chain, sparse=True), np.stack([X, X + 1, X**2])
    dense = ad.vmap(ad.jacobian(chain))(batch)
    found = ad.vmap(jacobian)(batch)
    np.testing.assert_allclose(found.toarray(), dense, rtol=1e-13)
    products = ad.vmap(lambda x: jacobian(x).toarray() @ x)(batch)
    np.testing.assert_allclose(products, np.einsum("bij,bj->bi", dense, batch), rtol=1e-12)
    compiled = ad.compile(ad.vmap(jacobian))(batch)
    np.testing.assert_allclose(compiled.toarray(), dense, rtol=1e-12)
    np.testing.assert_allclose(
        ad.vmap(lambda x: ad.hessian(energy, sparse=True)(x).toarray())(batch),
        ad.vmap(ad.hessian(energy))(batch), rtol=1e-11, atol=1e-13,
    )  # fmt: skip


@pytest.mark.parametrize("backend", ["replay", "auto"])
def test_compiled(backend: str) -> None:
    step = ad.compile(ad.jacobian(chain, sparse=True), backend=backend)
    second = ad.compile(ad.hessian(energy, sparse=True), backend=backend)
    for k in range(3):
        found = step(X + k)
        assert type(found) is scipy.sparse.csr_array
        np.testing.assert_allclose(found.toarray(), ad.jacobian(chain)(X + k), rtol=1e-12)
        np.testing.assert_allclose(second(X + k).toarray(), ad.hessian(energy)(X + k), rtol=1e-11, atol=1e-12)
    inner = ad.compile(lambda x: ad.jacobian(chain, sparse=True)(x) @ x, backend=backend)
    np.testing.assert_allclose(inner(X), ad.jacobian(chain)(X) @ X, rtol=1e-12)


def test_forward_mode_and_products_go_through_it() -> None:
    entries = lambda x: ad.jacobian(chain, sparse=True)(x).data
    full = lambda x: ad.jacobian(chain)(x)[np.arange(7)[:, None], np.arange(7)[:, None] + [0, 1]].reshape(-1)
    direction = np.ones(8)
    np.testing.assert_allclose(
        ad.jvp(entries, (X,), (direction,))[1], ad.jvp(full, (X,), (direction,))[1], rtol=1e-12
    )
    total = lambda x: (entries(x) ** 2).sum()
    expected = ad.hvp(lambda x: (ad.jacobian(chain)(x) ** 2).sum(), X, direction)
    np.testing.assert_allclose(ad.hvp(total, X, direction), expected, rtol=1e-11)
    third = ad.jacobian(entries, sparse=True)(X)
    np.testing.assert_allclose(third.toarray(), ad.jacobian(full)(X), rtol=1e-12, atol=1e-14)


def test_a_function_inside_vmap_may_use_values_of_the_batch() -> None:
    def total(s: Any) -> Any:
        return ad.jacobian(lambda x: chain(x) * s, sparse=True)(X).data.sum()

    each = np.arange(1.0, 4.0)
    expected = ad.jacobian(chain)(X).sum() * each
    np.testing.assert_allclose(ad.vmap(total)(each), expected, rtol=1e-12)
    np.testing.assert_allclose(ad.compile(ad.vmap(total))(each), expected, rtol=1e-12)


def test_a_function_may_use_tensors_that_require_grad() -> None:
    scale = ad.tensor(2.0, requires_grad=True)
    jacobian = ad.jacobian(lambda x: chain(x) * scale, sparse=True)
    jacobian(X).data.sum().backward()
    np.testing.assert_allclose(scale.grad.item(), ad.jacobian(chain)(X).sum(), rtol=1e-12)
    with ad.no_grad():
        assert type(jacobian(X)) is scipy.sparse.csr_array


def test_the_compiled_form_has_the_methods_of_compiled_functions() -> None:
    compiled = ad.compile(ad.jacobian(chain, sparse=True), backend="replay")
    compiled(X)
    assert compiled.stats()["traces"] == 1 and "instructions" in compiled.explain(X)
    with ad.config.compiling("check"):
        compiled(X)
    assert type(copy.deepcopy(compiled)(X)) is scipy.sparse.csr_array
    with pytest.raises(AttributeError, match="'SparseDerivative' object has no attribute 'items'"):
        compiled.items  # noqa: B018


def test_methods() -> None:
    class Model:
        scale = 2.0

        def values(self, x: Any) -> Any:
            return chain(x) * self.scale

        derivative = ad.jacobian(values, argnums=1, sparse=True)

    np.testing.assert_allclose(Model().derivative(X).toarray(), 2 * ad.jacobian(chain)(X), rtol=1e-13)


def test_what_depends_only_on_the_vectors_is_computed_in_the_trace() -> None:
    """The linear part of a stencil is a constant of the program."""

    def f(x: Any) -> Any:
        wide = ad.pad(x, 1)
        return x**3 + 100 * (2 * x - wide[2:] - wide[:-2])

    jacobian = ad.compile(ad.jacobian(f, sparse=True), backend="replay")
    np.testing.assert_allclose(jacobian(X).toarray(), ad.jacobian(f)(X), rtol=1e-13)
    assert "pad" not in jacobian.program(X) and jacobian.program(X).count("[3, 8]  <- array") == 2
    linear = ad.compile(ad.jacobian(lambda x: f(x) - x**3, sparse=True))
    for _ in range(3):
        found = linear(X)
        np.testing.assert_allclose(found.toarray(), ad.jacobian(lambda x: f(x) - x**3)(X), rtol=1e-13)
        found.data[:] = 0


def test_results_are_new_memory() -> None:
    jacobian = ad.jacobian(chain, sparse=True)
    first = jacobian(X)
    kept = first.copy()
    first.data[:] = 0
    first.indices[:] = 0
    np.testing.assert_array_equal(jacobian(X).toarray(), kept.toarray())


def test_without_programs() -> None:
    jacobian = ad.jacobian(chain, sparse=True)
    with ad.config.compiling(False):
        found = jacobian(X)
    np.testing.assert_allclose(found.toarray(), ad.jacobian(chain)(X), rtol=1e-13)


# Guards --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
def test_a_pattern_is_never_stale(compiled: bool) -> None:
    reach, index, mask = [1], np.array([0, 1, 2]), np.zeros(8)
    f = lambda x: x[reach[0] :][:3] * x[index] + (x * mask)[:3]
    loss = lambda x: (f(x) ** 2).sum()
    jacobian, hessian = ad.jacobian(f, sparse=True), ad.hessian(loss, sparse=True)
    if compiled:
        jacobian, hessian = ad.compile(jacobian), ad.compile(hessian)
    changes = [
        lambda: None, lambda: reach.__setitem__(0, 4), lambda: index.__setitem__(0, 7), lambda: mask.fill(2),
    ]  # fmt: skip
    for change in changes:
        change()
        np.testing.assert_allclose(jacobian(X).toarray(), ad.jacobian(f)(X), rtol=1e-13)
        np.testing.assert_allclose(hessian(X).toarray(), ad.hessian(loss)(X), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("compiled", [False, True])
def test_tensors_of_integers_are_guarded(compiled: bool) -> None:
    index, chosen = ad.tensor([0, 1, 2]), ad.tensor(X > 1)
    f = lambda x: x[index] * ad.where(chosen, x, x[0])[:3] + ad.fori_loop(0, 2, lambda i, v: v[index], x[:3])
    jacobian = ad.jacobian(f, sparse=True)
    jacobian = ad.compile(jacobian) if compiled else jacobian
    for value, traces in ((1, 1), (2, 2), (2, 2)):
        with ad.no_grad():
            index[0], chosen[0] = value, value == 2
        for _ in range(3):
            np.testing.assert_allclose(jacobian(X).toarray(), ad.jacobian(f)(X), rtol=1e-13)
        assert jacobian.stats()["traces"] == traces


def test_constants_of_loops_are_guarded() -> None:
    mask = np.array([1.0, 0, 0])
    f = lambda x: ad.fori_loop(0, 9, lambda i, v: v * 0.5 + mask * v[::-1], x)
    jacobian = ad.jacobian(f, sparse=True)
    x = X[:3]
    np.testing.assert_allclose(jacobian(x).toarray(), ad.jacobian(f)(x), rtol=1e-12)
    mask[:] = 2
    np.testing.assert_allclose(jacobian(x).toarray(), ad.jacobian(f)(x), rtol=1e-12)


def test_constants_are_guarded_inside_vmap_and_compile() -> None:
    mask = np.zeros(8)
    f = lambda x: x * mask + x[::-1]
    compiled = ad.compile(ad.vmap(lambda x: ad.jacobian(f, sparse=True)(x).toarray()))
    batch = np.stack([X, X + 1])
    np.testing.assert_allclose(compiled(batch)[0], ad.jacobian(f)(X))
    mask[:] = 2
    np.testing.assert_allclose(compiled(batch)[0], ad.jacobian(f)(X))


def test_only_arrays_that_decide_the_pattern_are_compared() -> None:
    full, sparse = np.ones((3, 8)), np.eye(3, 8)
    jacobian = ad.jacobian(lambda x: full @ x + sparse @ x, sparse=True)
    jacobian(X)
    full[0], sparse[1] = 2, 3
    np.testing.assert_allclose(jacobian(X).toarray(), full + sparse)
    assert jacobian.stats()["traces"] == 2
    full[:] = 5
    np.testing.assert_allclose(jacobian(X).toarray(), full + sparse)
    assert jacobian.stats()["traces"] == 2


KEPT = ad.scipy.sparse.csr_array(np.triu(np.outer(X, X)))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: ad.jacobian(chain, sparse=True)(x).T @ chain(x),
        lambda x: (ad.hessian(energy, sparse=True)(x).T.T @ x) * ad.hessian(energy, sparse=True)(x).nnz,
        lambda x: KEPT.T @ x + KEPT.shape[0],
        lambda x: ad.scipy.sparse.csr_array((x, (np.arange(8), np.arange(8)))).T @ x,
        lambda x: (-ad.jacobian(chain, sparse=True)(x)).T.data.sum(),
    ],
)
def test_properties_of_matrices_do_not_cause_traces(f: Any) -> None:
    compiled = ad.compile(f)
    for k in range(3):
        np.testing.assert_allclose(compiled(X + k), np.asarray(f(ad.tensor(X + k))), rtol=1e-12)
    assert compiled.stats()["traces"] == 1


USES: list[Any] = [
    lambda a, x: a @ x,
    lambda a, x: x @ a,
    lambda a, x: a.T @ x,
    lambda a, x: a.dot(x) + a.matvec(x),
    lambda a, x: (a * 2 - a / 3) @ x,
    lambda a, x: (-a).data.sum() * x,
    lambda a, x: (a + KEPT).toarray() @ x,
    lambda a, x: a.sum(axis=0) * a.diagonal() * x,
    lambda a, x: ad.scipy.sparse.linalg.spsolve(a, x),
]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("transform", [ad.compile, lambda f: ad.jacobian(f, sparse=True)])
def test_matrices_that_a_compiled_function_reads_are_guarded(use: Any, transform: Any) -> None:
    matrix = ad.scipy.sparse.csr_array(np.triu(np.outer(X, X)))
    f = lambda x: use(matrix, x)
    compiled = transform(f)
    for change in range(4):
        if change == 1:
            matrix.data = matrix.data * 2
        elif change == 2:
            matrix.data[:] = 3.0
        elif change == 3:
            matrix = ad.scipy.sparse.csr_array(np.eye(8))
        expected = f(X) if transform is ad.compile else ad.jacobian(f)(X)
        found = compiled(X)
        found = found if isinstance(found, np.ndarray) else found.toarray()
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


def test_compiled_functions_do_not_convert_captured_tensors() -> None:
    """Values that an op needs when it is traced are not those of a later call."""
    sigma, a = ad.tensor(1.0), ad.tensor(np.eye(8))
    for f in (
        lambda x: ad.scipy.ndimage.gaussian_filter(x, sigma),
        lambda x: ad.scipy.sparse.csr_array(a) @ x,
    ):
        with pytest.raises(ad.errors.InputError, match=r"transform|radius= "):
            ad.compile(f)(X)


def test_the_program_is_used_again() -> None:
    runs = []

    def f(x: Any) -> Any:
        runs.append(0)
        return chain(x)

    jacobian = ad.jacobian(f, sparse=True)
    for k in range(3):
        jacobian(X + k)
    assert len(runs) == 1


# Messages ------------------------------------------------------------------------------------------


def test_a_wrong_mode() -> None:
    with pytest.raises(
        ad.errors.ArgumentError, match="sparse must be False or True or 'columns' or 'rows' or 'both'"
    ):
        ad.jacobian(chain, sparse="cols")
    with pytest.raises(
        ad.errors.ArgumentError, match="hessian: sparse must be False or True, but got 'rows'"
    ):
        ad.hessian(energy, sparse="rows")  # type: ignore[arg-type]
    with pytest.raises(ad.errors.InputError, match="expected a function"):
        ad.jacobian(3, sparse=True)  # type: ignore[arg-type]


def test_errors_name_the_function_of_the_user() -> None:
    def noisy(x):
        return x * random.random()

    for derivative in (ad.jacobian(noisy, sparse=True), ad.compile(ad.jacobian(noisy, sparse=True))):
        with pytest.raises(
            ad.errors.TransformError, match=r"ad\.compile: noisy \(.*test_derivatives\.py:\d+\)"
        ):
            derivative(X)


def test_many_products_are_a_warning() -> None:
    x = np.ones(200)
    with pytest.warns(
        UserWarning, match="needs 200 products: element 0 of the result depends on 200 inputs"
    ) as seen:
        ad.jacobian(arrow, sparse="columns")(x)
    assert "Use sparse=True, which chooses rows, columns or both." in str(seen[0].message)
    with pytest.warns(UserWarning, match="A matrix without zeros is faster with sparse=False"):
        ad.jacobian(lambda x: x - x.mean(), sparse=True)(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ad.jacobian(arrow, sparse=True)(x)
