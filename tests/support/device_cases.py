"""The op cases that devices are tested with, and when a result is right."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from random_programs import arrays, program

import adjoint as ad
from adjoint import tree
from adjoint.compiler.lower.lower import Lowered
from adjoint.compiler.lower.target import CPU
from adjoint.core.op import OPS
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import DeviceError
from adjoint.testing.cases import Case, cases

EVERY = 30


def soaked(found: list[Any]) -> list[Any]:
    """Mark all but every thirtieth case as part of the soak test."""
    return [
        pytest.param(c, marks=() if k % EVERY == 5 else pytest.mark.soak, id=str(c))
        for k, c in enumerate(found)
    ]


def real_cases() -> list[Case]:
    """Return all cases without complex numbers."""
    return [c for c in cases() if not any(np.asarray(a).dtype.kind == "c" for a in c.args if _is_data(a))]


def smooth_cases() -> list[Case]:
    """Return the real cases of ops that have a derivative."""
    return [c for c in real_cases() if OPS[c.op].differentiable and c.note != "sparse"]


def _is_data(a: Any) -> bool:
    return isinstance(a, (np.ndarray, complex))


def _given(case: Case, dtype: str, at: list[int]) -> tuple[Any, list[Any]]:
    """Return a function of the arguments at the positions ``at``, and these arguments, as floats of a dtype."""
    args = [a.astype(dtype) if isinstance(a, np.ndarray) and a.dtype == "f8" else a for a in case.args]

    def f(*given: Any) -> Any:
        full = [wrap(a) if isinstance(a, np.ndarray) else a for a in args]
        for i, a in zip(at, given, strict=True):
            full[i] = a
        return OPS[case.op].eager(*full, **case.params)

    return f, [wrap(args[i]) for i in at]


def forward_of(case: Case, dtype: str) -> tuple[Any, list[Any]]:
    """Return the op as a function of its arrays, and the arrays."""
    return _given(case, dtype, [i for i, a in enumerate(case.args) if isinstance(a, np.ndarray)])


def derivatives_of(case: Case, dtype: str) -> tuple[Any, Any, list[Any]]:
    """Return the gradient of a sum of the op's outputs, the gradient of a sum of that, and the arguments."""
    op = OPS[case.op]
    at = [i for i, a in enumerate(case.args)
          if isinstance(a, np.ndarray) and a.dtype.kind == "f" and op.smooth(i)]  # fmt: skip
    f, given = _given(case, dtype, at)

    def total(*given: Any) -> Any:
        found = [o for o in tree.leaves(f(*given)) if o.dtype.kind == "f"]
        return sum((o * waves(o, 1.0)).sum() for o in found)

    first = ad.grad(total, argnums=tuple(range(len(at))))

    def again(*given: Any) -> Any:
        return sum((g * waves(g, 0.5)).sum() for g in first(*given))

    return first, ad.grad(again, argnums=tuple(range(len(at)))), given


def waves(like: Any, phase: float) -> Any:
    return np.sin(np.arange(like.size) + phase).reshape(like.shape).astype(like.dtype)


def is_native_on_cpu(f: Any, given: Any) -> bool:
    """Return whether native code runs all of a function without a call of NumPy or LAPACK."""
    compiled = ad.compile(f, backend="replay")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return not Lowered(compiled._shown(tuple(given), {}).program, CPU._replace(lapack=False)).reasons


def missing_ops() -> list[str]:
    """Return the ops of which no real case has a native form in float32 or float64."""
    found: dict[str, bool] = {}
    for case in real_cases():
        if not found.get(case.op):
            found[case.op] = any(is_native_on_cpu(*forward_of(case, dtype)) for dtype in ("f4", "f8"))
    return sorted(op for op, native in found.items() if not native)


def check(found: Any, wanted: Any, units: float) -> None:
    """Compare results; ``units`` are in the last place of the largest number."""
    for x, y in zip(tree.leaves(found), tree.leaves(wanted), strict=True):
        a, b = (np.asarray(v.detach().numpy() if isinstance(v, Tensor) else v) for v in (x, y))
        assert a.shape == b.shape and a.dtype == b.dtype
        if b.dtype.kind != "f":
            np.testing.assert_array_equal(a, b)
            continue
        scale = np.abs(b[np.isfinite(b)]).max(initial=1.0)
        with np.errstate(all="ignore"):
            near = np.abs(a - b) <= units * np.finfo(b.dtype).eps * scale
        assert ((a == b) | near | (np.isnan(a) & np.isnan(b))).all(), (a, b)


FUNCTIONS = (
    "sin cos tan arcsin arccos arctan arcsinh arccosh arctanh sinh cosh tanh exp exp2 expm1 log log2 log10 log1p "
    "sqrt cbrt floor ceil trunc rint abs sign square reciprocal isnan isfinite"
).split()
DTYPES = ("f4", "f8", "i1", "i8", "u2", "?")


def everything(x: Any, y: Any, m: Any) -> list[Any]:
    """Return the results of all elementwise functions of a dtype, of reductions and of small solves."""
    outs = [x + y, x * y, ad.maximum(x, y), x < y, x >= y, x == y, x.sum(), x.max(), ad.where(x < y, x, y)]
    outs += [x.astype("f4"), x.astype("i2")]
    if x.dtype.kind in "iu":
        outs += [x // (y + 1), x % (y + 1), x & y, x ^ y, x | y]
    if x.dtype.kind == "f":
        outs += [getattr(ad, n)(x) for n in FUNCTIONS if hasattr(ad, n)]
        outs += [x**y, ad.linalg.solve(m, m + 1), ad.linalg.cholesky(m), ad.linalg.det(m)]
    return outs


def operands(dtype: str) -> tuple[Any, ...]:
    """Return operands of ``everything``."""
    x = ad.tensor(np.array([1, 0, 1, 1]).astype(dtype))
    return (
        x,
        ad.tensor(np.array([1, 1, 0, 1]).astype(dtype)),
        ad.tensor(np.eye(3, dtype="f4" if dtype == "f4" else "f8")),
    )


def agrees(compiled: Any, f: Any, given: Any, units: float) -> None:
    """Compare a function on a device with eager code; every op that is native on the CPU must run.

    Functions that compute in float64 cannot run on a device without it.
    """
    wanted = f(*given)
    try:
        found = compiled(f)(*given)
    except DeviceError as error:
        if "has no float64" not in str(error) and is_native_on_cpu(f, given):
            raise
    else:
        check(found, wanted, units)


def is_refused(text: str, *more: str) -> bool:
    """Return whether a message says that a program has an op or a dtype that no device has, or one of ``more``."""
    return any(reason in text for reason in ("cannot run on", "does not compute with", *more))


def sorted_rows(compiled: Any, dtype: str, n: int) -> None:
    """Sort on a device: rows longer than a work-group are merged; equal elements keep their order, NaN is last."""
    draw = np.random.default_rng(n)
    x, at = draw.integers(0, n // 3, (2, n)).astype(dtype), ad.tensor(draw.integers(0, 7, n))
    if dtype == "f4":
        x[draw.random(x.shape) < 0.1], x[draw.random(x.shape) < 0.1] = np.nan, -0.0

    def f(x: Any, at: Any) -> Any:
        factors, table = np.arange(n, dtype="f4")[:, None], ad.ones((7, 2), dtype="f4")
        rows = ad.grad(lambda t: (t[at] * factors).sum())(table)
        return ad.argsort(x), ad.sort(x, axis=0), ad.argsort(x, descending=True), rows

    for a, b in zip(compiled(f)(ad.tensor(x), at), f(ad.tensor(x), at), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
        assert a.dtype == b.dtype


def run_program(compiled: Any, seed: int, widest: Any = np.float64) -> None:
    """Compare a random program on a device with replay; ``widest`` is the dtype of its float64 arrays."""
    rng = np.random.default_rng(seed)
    given = tuple(ad.asarray(a.astype(widest) if a.dtype == np.float64 else a) for a in arrays(rng, 4))
    f = program(rng, 12)
    wanted = ad.compile(f, backend="replay")(*given)
    single = widest == np.float32 or any(a.dtype == np.float32 for a in given)
    eps = 1e-6 if single else 1e-15
    try:
        found = compiled(f)(*given)
    except DeviceError as error:
        if "has no float64" not in str(error) and is_native_on_cpu(f, given):
            raise
        return
    for x, y in zip(tree.leaves(found), tree.leaves(wanted), strict=True):
        a, b = x.detach().numpy(), y.detach().numpy()
        assert a.shape == b.shape and a.dtype == b.dtype
        if a.dtype.kind == "f":
            size = np.abs(b[np.isfinite(b)]).max(initial=1.0)
            np.testing.assert_allclose(a, b, rtol=2e4 * eps, atol=2e4 * eps * size)
        else:
            np.testing.assert_array_equal(a, b)
