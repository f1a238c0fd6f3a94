"""Cases of linear algebra: products, solvers, decompositions, norms."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.ops.sparse_matrices import Operator, Pattern
from adjoint.testing.cases import Case, array


def _pair(
    left: str, right: str, output: str, x: tuple[int, ...], y: tuple[int, ...], note: str, **extra: int
) -> Case:
    params = {"left": left, "right": right, "output": output, "extra": tuple(extra.items())}
    return Case("einsum", (array(*x), array(*y, seed=1)), params, note)


def _one(labels: str, output: str, x: tuple[int, ...], note: str, **extra: int) -> Case:
    return Case(
        "relabel", (array(*x),), {"labels": labels, "output": output, "extra": tuple(extra.items())}, note
    )


CASES = [
    _pair("ij", "jk", "ik", (2, 3), (3, 4), "matmul"),
    _pair("ij", "jk", "ki", (2, 3), (3, 4), "transposed"),
    _pair("bij", "bkj", "bik", (2, 3, 4), (2, 5, 4), "batch"),
    _pair("bi", "bi", "b", (2, 3), (2, 3), "rows"),
    _pair("i", "j", "ij", (2,), (3,), "outer"),
    _pair("ijk", "kjl", "li", (2, 3, 4), (4, 3, 2), "two sums"),
    _pair("iij", "jk", "ik", (3, 3, 2), (2, 4), "diagonal"),
    _pair("ij", "kl", "il", (2, 3), (4, 2), "lonely sums"),
    _pair("i", "j", "iijq", (2,), (3,), "scattered", q=2),
    _pair("ab", "b", "", (2, 3), (3,), "scalar"),
    _one("ij", "ji", (2, 3), "transpose"),
    _one("ii", "i", (3, 3), "diagonal"),
    _one("iji", "", (2, 3, 2), "trace"),
    _one("i", "iik", (3,), "scattered", k=2),
    Case("cross", (array(2, 3), array(3, seed=1)), {"axis": -1}),
    Case("cross", (array(3, 2), array(3, 1, seed=1)), {"axis": -2}, "rows"),
]


def _spread(*shape: int) -> Any:
    """Return matrices with well separated singular values."""
    k = min(shape[-2:])
    u, _, vh = np.linalg.svd(array(*shape, seed=3), full_matrices=False)
    return (u * np.linspace(2.0, 0.5, k)) @ vh


def _hermitian(*shape: int) -> Any:
    """Return symmetric positive definite matrices with well separated eigenvalues."""
    q, _ = np.linalg.qr(array(*shape, seed=4))
    return (q * np.linspace(0.5, 2.0, shape[-1])) @ q.swapaxes(-1, -2)


def _filled(*shape: int, lower: bool = True) -> Any:
    """Return matrices that are Hermitian except in the triangle that an op with ``lower`` must not read.

    Random numbers are added to the elements of this triangle.
    """
    other = array(*shape, seed=5)
    return _hermitian(*shape) + (np.triu(other, 1) if lower else np.tril(other, -1))


_SINGULAR = _spread(3, 2) @ _spread(2, 3)

CASES += [
    Case("inv", (_spread(3, 3),)),
    Case("inv", (_spread(2, 2, 2),), note="batch"),
    Case("inv_or_nan", (_spread(2, 2, 2),)),
    Case("solve", (_spread(3, 3), array(3, 2, seed=1))),
    Case("solve", (_spread(2, 1, 3, 3), array(4, 3, 2, seed=1)), note="broadcast"),
    *(
        Case("solve_triangular", (_spread(3, 3) + 2 * np.eye(3), array(2, 3, 2, seed=1)),
             {"lower": p[0], "unit": p[1]})
        for p in ((True, False), (False, False), (True, True), (False, True))
    ),
    Case("det", (_spread(3, 3),)),
    Case("det", (array(2, 4, 4),), note="batch"),
    Case("det", (_SINGULAR,), note="singular"),
    Case("det", (_spread(9, 9),), note="large"),
    Case("cofactor", (_spread(3, 3),)),
    Case("cofactor", (_SINGULAR,), note="singular"),
    Case("cofactor", (_spread(9, 9),), note="large"),
    Case("slogdet", (_spread(2, 3, 3),)),
    Case("slogdet", (_spread(3, 3) + 1j * array(3, 3, seed=5),), note="complex"),
    *(Case("pinv", (_spread(*shape),), {"rtol": 1e-12}) for shape in ((3, 3), (2, 4, 3), (3, 4))),
    *(
        Case(name, (_spread(*shape), array(shape[-2], 2, seed=1)), {"rtol": 1e-12})
        for name in ("lstsq", "off_range")
        for shape in ((3, 3), (2, 4, 3), (3, 4))
    ),
    *(Case("truncated", (_spread(*shape),), {"rtol": 0.4}) for shape in ((3, 3), (2, 4, 3), (3, 4))),
    Case("gauge_quotient", (array(3, 3), array(3, 3, low=0.5, seed=1), np.ones((1, 1)), np.ones((1, 1))),
         {"op": "svd", "why": "equal", "order": 1}),
    Case("spectral_sum", (array(3), np.array([3.0, 2.0, 1.0]), array(4, 3, seed=1), array(3, 2, seed=2)),
         {"op": "svd"}),
    Case("is_hermitian", (np.stack([_hermitian(3, 3), _filled(3, 3)]),)),
    Case("mirror", (_filled(2, 3, 3),)),
    Case("eigh", (_filled(3, 3),), {"lower": True}),
    Case("eigh", (_filled(2, 3, 3, lower=False),), {"lower": False}, "batch"),
    Case("eigvalsh", (_filled(2, 3, 3),), {"lower": True}),
    Case("eigvalsh", (_filled(2, 3, 3, lower=False),), {"lower": False}),
    *(Case("svd", (_spread(*shape),), {"full_matrices": False}) for shape in ((3, 3), (2, 4, 3), (3, 4))),
    Case("svd", (_spread(3, 3),), {"full_matrices": True}, "full"),
    *(Case("svdvals", (_spread(*shape),)) for shape in ((3, 3), (2, 4, 3), (3, 4))),
    Case("matrix_rank", (_SINGULAR,), {"tol": None, "rtol": 1e-9, "hermitian": False}),
    Case("cholesky", (_filled(3, 3),), {"upper": False}),
    Case("cholesky", (_filled(2, 3, 3, lower=False),), {"upper": True}, "batch"),
    *(Case("qr", (_spread(*shape),), {"mode": "reduced"}) for shape in ((3, 3), (2, 4, 3), (3, 4))),
    Case("qr", (_spread(3, 4),), {"mode": "complete"}, "complete"),
    *(
        Case("vector_norm", (array(2, 3, low=0.3),), {"ord": ord, "axis": axis, "keepdims": keep})
        for ord, axis, keep in ((2.0, (-1,), False), (2.0, (-2, -1), True), (3.0, (-1,), True))
    ),
    Case("vector_norm", (array(2, 3, low=0.3),), {"ord": 0.5, "axis": (-2,), "keepdims": False}),
    Case("vector_norm", (array(2, 3, low=0.3),), {"ord": -1.0, "axis": (-1,), "keepdims": False}),
]  # fmt: skip

_TILTED = _hermitian(3, 3) + 0.1 * array(3, 3, seed=6)  # not symmetric, but its eigenvalues are positive
CASES += [
    Case("expm", (array(3, 3),)),
    Case("expm", (6 * array(2, 3, 3),), note="large"),
    *(Case(op, (_TILTED,)) for op in ("logm", "sqrtm")),
    # well conditioned, because a derivative of order n is a block of a function of a 2ⁿ times larger matrix
    *(Case(op, (_hermitian(2, 3, 3) + 2 * np.eye(3),), note="stack") for op in ("logm", "sqrtm")),
    Case("solve_sylvester", (_TILTED, _hermitian(2, 2), array(3, 2))),
    Case("lu", (array(3, 3, seed=7),)),
    Case("lu", (array(2, 3, 3, seed=8),), note="stack"),
    Case("lu_rows", (array(2, 4, 3, seed=8),)),
    Case("eig", (np.array([[1.0, 2.0, 0.3], [-1.5, 0.5, 0.2], [0.1, 0.4, 3.0]]),), note="complex pair"),
    Case("eig", (np.array([[[1.0, 0.3], [0.2, 2.0]], [[1.0, 2.0], [-1.5, 0.5]]]),), note="stack"),
]

# Banded matrices with a dominant diagonal
_BAND = np.stack([0.2 * array(5), 0.3 * array(5, seed=1), 2 + 0.1 * array(5, seed=2), 0.4 * array(5, seed=3)])
CASES += [
    Case("solve_banded", (_BAND, array(5, 2, seed=4)), {"lower": 1, "upper": 2}),
    Case("solve_banded", (_BAND[:3], array(2, 5, 1, seed=4)), {"lower": 0, "upper": 2}, "triangle, stack"),
    Case("solve_banded", (_BAND[1:, :4], array(4, 1, seed=4)), {"lower": 1, "upper": 1}, "tridiagonal"),
    Case("all_pole", (array(2, 6), 0.4 * array(2, seed=1))),
    Case("all_pole", (array(2, 3), 0.4 * array(2, 4, seed=1)), note="stack, short"),
    Case("distances", (array(3, 2), array(4, 2, seed=1) + 3)),
    Case("distances", (array(2, 3, 2), array(4, 2, seed=1) + 3), note="stack"),
]


def _sparse() -> list[Case]:
    """Return cases of sparse matrices if SciPy is installed."""
    try:
        import scipy.sparse
    except ImportError:
        return []
    rows, cols = np.array([0, 0, 1, 1, 2, 2, 2]), np.array([0, 2, 0, 1, 0, 1, 2])
    pattern = Pattern(rows, cols, (3, 3))
    data = np.array([3.0, 0.5, 0.4, 4.0, -0.3, 0.2, 5.0])
    held = scipy.sparse.csr_array((data[:5], (rows[:5], cols[:5])), shape=(4, 3))
    solve = {"pattern": pattern, "method": "direct", "options": ()}
    return [
        Case("sparse_solve", (data, array(3, 2)), solve),
        Case("sparse_solve", (np.stack([data, 2 * data]), array(2, 3, 1)), solve, "stack"),
        Case("apply_operator", (array(3, 2),), {"operator": Operator(held)}),
        Case("apply_operator", (array(2, 3, 2),), {"operator": Operator(held)}, "stack"),
    ]


CASES += _sparse()
