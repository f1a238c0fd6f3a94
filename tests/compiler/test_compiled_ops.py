"""Compiled functions give the same bits as eager ones, for every op: forward, and derivatives inside."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import tree
from adjoint.core.op import OPS
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import AdjointError
from adjoint.testing.cases import Case, cases

CASES = cases()
try:
    import ml_dtypes as ml_dtypes  # makes "bfloat16" the name of a dtype

    BFLOAT16 = ["bfloat16"]
except ModuleNotFoundError:
    BFLOAT16 = []
NOT_ALL = ("f2", "c16", "c8", "bfloat16")  # dtypes that some ops do not take


def bits(value: Any) -> list[tuple[Any, ...]]:
    """Everything about the leaves of a result: their kind, shape, dtype and bytes."""
    found = []
    for leaf in tree.leaves(value):
        a = leaf.detach().numpy() if isinstance(leaf, Tensor) else np.asarray(leaf)
        found.append((a.shape, a.dtype, np.ascontiguousarray(a).tobytes()))
    return found


def same(f: Any, *args: Any) -> None:
    """Check that a compiled function returns what the function does, twice."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        wanted = bits(f(*args))
        compiled = ad.compile(f, backend="replay")
        for _ in range(2):
            assert bits(compiled(*args)) == wanted
        assert compiled.stats()["traces"] == 1


def forward(case: Case) -> Any:
    """The op on its array arguments; all others are constants."""
    op = OPS[case.op]
    at = [i for i, a in enumerate(case.args) if isinstance(a, np.ndarray)]

    def f(*arrays: Any) -> Any:
        args = list(case.args)
        for i, a in zip(at, arrays, strict=True):
            args[i] = a
        return op.eager(*args, **case.params)

    return f, [wrap(case.args[i]) for i in at]


def as_dtype(case: Case, dtype: str) -> Case:
    args = tuple(
        a.astype(dtype) if isinstance(a, np.ndarray) and a.dtype == np.float64 else a for a in case.args
    )
    return Case(case.op, args, case.params, case.note)


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "c16", *BFLOAT16])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case, dtype: str) -> None:
    if not takes(case, dtype):
        assert dtype in NOT_ALL
        return
    f, arrays = forward(as_dtype(case, dtype))
    same(f, *arrays)


def scalar(case: Case) -> tuple[Any, list[Any]]:
    """A smooth function of the float arguments of an op: its outputs, weighed and summed."""
    op = OPS[case.op]
    at = [i for i, a in enumerate(case.args)
          if isinstance(a, np.ndarray) and a.dtype.kind in "fcV" and op.smooth(i)]  # fmt: skip

    def f(*arrays: Any) -> Any:
        args = [wrap(a) if isinstance(a, np.ndarray) else a for a in case.args]
        for i, a in zip(at, arrays, strict=True):
            args[i] = a
        out = op.eager(*args, **case.params)
        total: Any = 0
        for o in out if isinstance(out, tuple) else (out,):
            if o.dtype.kind in "fcV":
                weights = np.cos(np.arange(o.size) + 1.0).reshape(o.shape)
                y = (o * weights.astype(o.real.dtype)).sum()
                total = total + (y.real if y.dtype.kind == "c" else y)
        return total

    return f, [case.args[i] for i in at]


def waves(like: Any, phase: float) -> Any:
    return np.sin(np.arange(like.size) + phase).reshape(like.shape).astype(like.dtype)


DIFFERENTIABLE = [c for c in CASES if OPS[c.op].differentiable and c.note != "sparse"]
OTHER_OPS = {op: [c for c in DIFFERENTIABLE if c.op == op] for op in sorted({c.op for c in DIFFERENTIABLE})}


NOISY = {("logm", "c16"), ("logm", "c8")}  # eager calls differ in the last bit by the place of their memory
SEVERAL = {"f2": 2, "c16": 2, "c8": 1, "bfloat16": 2}  # cases of each op
# differentiable ops that take a dtype, but have no derivative in it: op, mode, dtype
LACKING = {("gauge_quotient", "grad of grad", "f2")}
NOT_BFLOAT16 = {
    "gauge_quotient",
    "is_hermitian",
    "mirror",
    "spectral_sum",
}  # internal ops of LAPACK's results
MODES = ["grad", "grad of grad", "jvp", "vmap of grad"]


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=str)
def test_derivatives(case: Case, mode: str, dtype: str) -> None:
    check_derivative(case, mode, dtype)


@pytest.mark.parametrize("dtype", ["f2", "c16", "c8", *BFLOAT16])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", OTHER_OPS)
def test_half_and_complex_derivatives(op: str, mode: str, dtype: str) -> None:
    """Some cases of each op; at least one, if eager mode takes one."""
    if (op, dtype) in NOISY:
        return
    cases = OTHER_OPS[op][:: -1 if dtype == "c8" else 1]  # other cases than for "c16", if there are several
    ran = 0
    for case in cases:
        ran += check_derivative(case, mode, dtype)
        if ran == SEVERAL[dtype]:
            return
    wanted = any(takes(case, dtype) for case in cases) and (op, mode, dtype) not in LACKING
    assert ran > 0 or not wanted


@pytest.mark.parametrize(
    ("dtype", "ops"), [("f2", 236), ("c16", 157), ("c8", 157), *[(d, 233) for d in BFLOAT16]]
)
def test_half_and_complex_ops(dtype: str, ops: int) -> None:
    """The test above compares the derivatives of at least so many ops."""
    named = [op for op, cases in OTHER_OPS.items() if any(takes(case, dtype) for case in cases)]
    assert len({op for op in named if (op, dtype) not in NOISY}) >= ops


def takes(case: Case, dtype: str) -> bool:
    """Return whether eager mode takes the arguments of a case in a dtype."""
    if dtype == "bfloat16":
        return case.op not in NOT_BFLOAT16 and takes(case, "f2")  # LAPACK takes neither of them
    f, arrays = forward(as_dtype(case, dtype))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            f(*arrays)
    except (AdjointError, TypeError):
        return False
    return True


def check_derivative(case: Case, mode: str, dtype: str) -> bool:
    """Compare a derivative of an op inside a compiled function; return False if eager mode has none."""
    if dtype == "bfloat16" and not takes(case, dtype):
        return False
    f, arrays = scalar(as_dtype(case, dtype))
    if not arrays:
        pytest.fail("a differentiable op has a float argument")
    each = tuple(range(len(arrays)))
    gradient = ad.grad(f, argnums=each)

    def weighed(*xs: Any) -> Any:
        total = sum((g * waves(g, 0.5)).sum() for g in gradient(*xs))
        return total.real if total.dtype.kind == "c" else total

    tangents = tuple(waves(a, 0.3) for a in arrays)
    stacked = [np.stack([a, a * np.asarray(1.01, a.dtype)]) for a in arrays]
    derivative, given = {
        "grad": (gradient, arrays),
        "grad of grad": (ad.grad(weighed, argnums=each), arrays),
        "jvp": (lambda *xs: ad.jvp(f, xs, tangents), arrays),
        "vmap of grad": (ad.vmap(gradient), stacked),
    }[mode]
    inputs = [wrap(a) for a in given]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            derivative(*inputs)
    except AdjointError:
        return False  # eager raises: this op has no such derivative
    except TypeError:
        assert dtype in NOT_ALL  # the op does not take this dtype
        return False
    same(derivative, *inputs)
    return True
