"""Cases of linear algebra: products, solvers, decompositions, norms."""

from __future__ import annotations

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
