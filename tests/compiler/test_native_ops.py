"""Native code against NumPy, over the op table: values, derivatives, and how many ops have a native form.

Elementwise ops differ by at most 2 units in the last place, or 4 if they consist of several functions; others, which
add up in another order, by a few units of the largest result.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from test_compiled_ops import DIFFERENTIABLE, as_dtype, forward, scalar, waves

import adjoint as ad
from adjoint import tree
from adjoint.compiler.lower import lower
from adjoint.core.op import OPS
from adjoint.core.tensor import Tensor
from adjoint.testing.cases import Case, cases

pytest.importorskip("llvmlite")

REAL = [
    c for c in cases()
    if not any(isinstance(a, (np.ndarray, complex)) and np.asarray(a).dtype.kind == "c" for a in c.args)
]  # fmt: skip
COMPOSED = {
    "logaddexp",
    "logaddexp2",
    "xlogy",
    "xlog1py",
    "cosine",
    "entr",
    "logit",
    "sech_squared",
    "logistic_slope",
}


def arrays_of(value: Any) -> list[Any]:
    return [np.asarray(x.detach().numpy() if isinstance(x, Tensor) else x) for x in tree.leaves(value)]


def check(found: Any, wanted: Any, units: float, whole: bool) -> None:
    """Compare results; ``units`` are in the last place of each number, or of the largest one."""
    pairs = list(zip(arrays_of(found), arrays_of(wanted), strict=True))
    for a, b in pairs:
        assert a.shape == b.shape and a.dtype == b.dtype
        if b.dtype.kind != "f":
            np.testing.assert_array_equal(a, b)
            continue
        size = np.abs(b[np.isfinite(b)])
        scale = max(size.max(initial=0.0), 1.0) if whole else np.abs(b)
        with np.errstate(all="ignore"):
            near = np.abs(a - b) <= units * np.finfo(b.dtype).eps * scale
        assert ((a == b) | near | (np.isnan(a) & np.isnan(b))).all(), (a, b)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("case", REAL, ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_forward(case: Case, dtype: str) -> None:
    f, arrays = forward(as_dtype(case, dtype))
    wanted = f(*arrays)
    compiled = ad.compile(f, backend="native")
    whole = OPS[case.op].kind != "elementwise"
    for _ in range(2):
        check(compiled(*arrays), wanted, 8 if whole else 4 if case.op in COMPOSED else 2, whole)


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_gradient(case: Case) -> None:
    if any(np.asarray(a).dtype.kind == "c" for a in case.args):
        return
    f, arrays = scalar(as_dtype(case, "f8"))
    gradient = ad.grad(f, argnums=tuple(range(len(arrays))))

    def second(*xs: Any) -> Any:
        return sum((g * waves(g, 0.5)).sum() for g in gradient(*xs))

    for derivative in (gradient, ad.grad(second, argnums=tuple(range(len(arrays))))):
        wanted = derivative(*arrays)
        check(ad.compile(derivative, backend="native")(*arrays), wanted, 64, True)


def test_at_least_171_ops_are_native() -> None:
    """Count ops of which at least one case, of floats, integers or booleans, runs without a call of NumPy."""
    native = set()
    for case in REAL:
        if case.op in native:
            continue
        for dtype in ("f4", "f8"):
            f, arrays = forward(as_dtype(case, dtype))
            compiled = ad.compile(f, backend="replay")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compiled.program(*arrays)
            if not lower(compiled._variants[0].program).reasons:
                native.add(case.op)
    assert len(native) >= 171, sorted(set(OPS) - native)
