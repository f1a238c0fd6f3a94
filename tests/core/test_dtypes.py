"""The dtype that goes in comes out: every op in every float dtype, alone, in vmap, forward mode and backward."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from table import CASES, OP_NAMES, op_of, run

import adjoint as ad
from adjoint.core.namespace import rec
from adjoint.core.tensor import wrap
from adjoint.errors import AdjointError, DTypeError
from adjoint.testing import Case

ml_dtypes = pytest.importorskip("ml_dtypes")
HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
DTYPES = [*HALVES, np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.complex64)]
COMPLEX = np.dtype(np.complex64)

# LAPACK has no half precision; the functions that users call say so.
LAPACK = set(
    """
    inv solve solve_triangular det cofactor slogdet pinv gauge_quotient spectral_sum eigh eigvalsh svd svdvals
    matrix_rank cholesky qr is_hermitian mirror lstsq off_range truncated inv_or_nan eig expm lu lu_rows
    """.split()
)
# The second output is the logarithm of a sum, kept in float32 for backward.
KEPT_WIDE = {"attention"}

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def is_float(a: Any) -> bool:
    return isinstance(a, np.ndarray) and a.dtype.kind == "f"


def cast(case: Case, dtype: Any) -> Case | None:
    """A case in another dtype; None where the op is not for it."""
    if any(isinstance(a, np.ndarray) and a.dtype.kind == "c" for a in case.args) and dtype != COMPLEX:
        return None
    if "dtype" in case.params or (case.op in LAPACK and dtype in HALVES):
        return None
    args = tuple(
        a.astype(dtype) if is_float(a) or (isinstance(a, np.ndarray) and a.dtype.kind == "c") else a
        for a in case.args
    )
    found = replace(case, args=args)
    try:
        op_of(case.op).forward(*args, **case.params)
    except (TypeError, ValueError, AdjointError):
        if dtype != COMPLEX:
            raise
        return None  # an op for real numbers
    return found


def expected(case: Case, dtype: Any) -> list[set[Any]]:
    """The dtypes that each output may have."""
    results = op_of(case.op).forward(*case.args, **case.params)
    found = []
    for y in results if isinstance(results, tuple) else (results,):
        kind = np.asarray(y).dtype
        if kind.kind == "c":  # of a Fourier transform, say
            found.append({np.dtype(np.complex128) if dtype == np.float64 else COMPLEX})
        elif kind.kind != "f":
            found.append({kind})
        else:  # the size of a complex number is real
            found.append({dtype, np.dtype(np.float32)} if dtype == COMPLEX else {dtype})
    if case.op in KEPT_WIDE and dtype in HALVES:
        found[1] = {np.dtype(np.float32)}
    return found


def outputs(case: Case, args: list[Any]) -> tuple[Any, ...]:
    result = getattr(rec, case.op)(*args, **case.params)
    return result if isinstance(result, tuple) else (result,)


def check_everywhere(case: Case, kinds: list[Any]) -> None:
    """Compare the dtypes in vmap, forward mode and backward with those of the op alone."""
    op = op_of(case.op)
    arrays = [i for i, a in enumerate(case.args) if isinstance(a, np.ndarray)]

    def call(chosen: list[int], *values: Any) -> Any:
        args = [wrap(a) if isinstance(a, np.ndarray) else a for a in case.args]
        for i, v in zip(chosen, values, strict=True):
            args[i] = v
        return outputs(case, args)

    stacked = [np.stack([case.args[i]] * 2) for i in arrays]
    assert [y.dtype for y in ad.vmap(lambda *v: call(arrays, *v))(*stacked)] == kinds, f"{case}: vmap"
    smooth = [i for i in arrays if op.smooth(i) and case.args[i].dtype.kind in "fcV"]
    if not op.differentiable or not smooth:
        return
    primals = tuple(case.args[i] for i in smooth)
    results, tangents = ad.jvp(lambda *v: call(smooth, *v), primals, primals)
    for y, t in zip(results, tangents, strict=True):
        assert t.dtype == y.dtype or y.dtype.kind in "biu", f"{case}: jvp"
    for create_graph in (False, True):
        leaves = [ad.tensor(p, requires_grad=True) for p in primals]
        roots = [y for y in call(smooth, *leaves) if y.requires_grad]
        seeds = [np.ones(y.shape, y.dtype) for y in roots]
        for x, g in zip(leaves, ad.gradients(roots, leaves, seeds, create_graph=create_graph), strict=True):
            assert g is not None and g.dtype == x.dtype, f"{case}: gradient, create_graph={create_graph}"


@pytest.mark.parametrize("name", OP_NAMES)
def test_every_op_keeps_the_dtype(name: str) -> None:
    for given in CASES[name]:
        for dtype in DTYPES:
            case = cast(given, dtype)
            if case is None:
                continue
            kinds = [
                y.dtype for y in run(case, [wrap(a) if isinstance(a, np.ndarray) else a for a in case.args])
            ]
            allowed = expected(given, dtype)
            assert all(k in a for k, a in zip(kinds, allowed, strict=True)), f"{case}: {dtype} gives {kinds}"
            check_everywhere(case, kinds)


SEVERAL = [n for n in OP_NAMES if op_of(n).kind == "elementwise" and sum(map(is_float, CASES[n][0].args)) > 1]


@pytest.mark.parametrize("number", [0.75, 2])
@pytest.mark.parametrize("name", [n for n in SEVERAL if n not in LAPACK])
def test_a_python_number_beside_tensors_is_weak(name: str, number: float) -> None:
    for given in CASES[name]:
        for dtype in DTYPES:
            case = cast(given, dtype)
            if case is None:
                continue
            kinds = [y.dtype for y in run(case, list(map(wrap, case.args)))]
            for i in (i for i, a in enumerate(given.args) if is_float(a)):
                one = replace(case, args=(*case.args[:i], number, *case.args[i + 1 :]))
                args = [wrap(a) if isinstance(a, np.ndarray) else a for a in one.args]
                assert [y.dtype for y in run(one, args)] == kinds, f"{one}: argument {i}, {dtype}"
                check_everywhere(one, kinds)


def test_values_inside_vmap_are_those_outside_with_a_python_number() -> None:
    x = np.linspace(0.5, 2, 5, dtype=np.float32)
    special = ad.special
    for f in (special.xlogy, special.xlog1py, special.beta, special.betaln):
        for call in (lambda v, f=f: f(v, 0.75), lambda v, f=f: f(0.75, v)):
            got = ad.vmap(call)(x)
            assert got.dtype == np.float32
            np.testing.assert_array_equal(got, call(ad.tensor(x)).numpy())
            slope = ad.vmap(ad.grad(call))(x)
            assert slope.dtype == np.float32


@pytest.mark.parametrize("dtype", HALVES)
def test_a_number_written_into_half_precision_is_weak(dtype: Any) -> None:
    x = ad.zeros(3, dtype=dtype)
    x[1] = 0.5
    assert x.dtype == dtype and x.tolist() == [0, 0.5, 0]
    assert x.at[0].set(2.0).dtype == x.at[0].add(2).dtype == dtype
    assert ad.put_along_axis(x, np.array([0]), 1.5).dtype == dtype


# Functions made of several ops -------------------------------------------------------------------

X = np.linspace(0.5, 2.5, 6)
FUNCTIONS = {
    "multigammaln": lambda x: ad.special.multigammaln(x + 2, 3),
    "np.gradient": lambda x: np.gradient(x),
    "np.gradient by a number": lambda x: np.gradient(x, 0.5, edge_order=2),
    "np.unwrap": lambda x: np.unwrap(x * 5),
    "np.ediff1d": lambda x: np.ediff1d(x, to_end=[1.0, 2.0], to_begin=0.5),
    "np.mean where": lambda x: np.mean(x, where=np.arange(6) % 2 == 0),
    "np.nanvar": np.nanvar,
    "np.nanstd": np.nanstd,
    "np.cov": np.cov,
    "diff with ends": lambda x: ad.diff(x, prepend=0.0, append=1),
    "linspace": lambda x: ad.linspace(x, 3.0, 4),
    "linspace to a tensor": lambda x: ad.linspace(0, x[-1], 4),
    "irfft": ad.fft.irfft,
    "average": lambda x: ad.average(x, weights=x),
    "cosine_similarity": lambda x: ad.nn.functional.cosine_similarity(x, x * 2, axis=0),
    "normalize": lambda x: ad.nn.functional.normalize(x, axis=0, p=3),
    "avg_pool1d": lambda x: ad.nn.functional.avg_pool1d(x.reshape(1, 1, 6), 2),
    "adaptive_avg_pool1d": lambda x: ad.nn.functional.adaptive_avg_pool1d(x.reshape(1, 1, 6), 4),
}


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != COMPLEX])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_composed_functions_keep_the_dtype(name: str, dtype: Any) -> None:
    x = ad.tensor(X.astype(dtype), requires_grad=True)
    y = FUNCTIONS[name](x)
    assert y.dtype == dtype
    assert FUNCTIONS[name](x.detach()).dtype == dtype
    np.testing.assert_allclose(
        y.detach().numpy().astype(np.float64), FUNCTIONS[name](ad.tensor(X)).numpy(), rtol=0.05, atol=0.05
    )
    y.sum().backward()
    assert x.grad is not None and x.grad.dtype == dtype


def test_diff_of_no_times_has_no_ends() -> None:
    x = ad.tensor(X)
    for kwargs in ({}, {"prepend": 0.0}, {"append": X}, {"prepend": 1, "append": 2}):
        np.testing.assert_array_equal(ad.diff(x, n=0, **kwargs).numpy(), np.diff(X, n=0, **kwargs))


# Nothing to reduce -------------------------------------------------------------------------------

REDUCTIONS: dict[str, Any] = {
    name: getattr(ad, name)
    for name in "sum mean prod var std logsumexp nansum nanmean nanprod average".split()
}
REDUCTIONS["cumsum"] = lambda x, axis, keepdims: ad.cumsum(x, axis=axis)
REDUCTIONS["cumprod"] = lambda x, axis, keepdims: ad.cumprod(x, axis=axis)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != COMPLEX])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_over_nothing_keeps_dtype_and_graph(name: str, dtype: Any, keepdims: bool) -> None:
    for shape, axis in (((0,), 0), ((2, 0), 1), ((0, 3), 0), ((2, 0, 3), 1), ((2, 0), 0)):
        x = ad.tensor(np.zeros(shape, dtype), requires_grad=True)
        y = REDUCTIONS[name](x, axis=axis, keepdims=keepdims)
        wide = REDUCTIONS[name](ad.zeros(shape), axis=axis, keepdims=keepdims)
        assert y.requires_grad and y.dtype == dtype and y.shape == wide.shape
        np.testing.assert_array_equal(y.detach().numpy().astype(np.float64), wide.numpy())
        y.sum().backward()
        assert x.grad is not None and (x.grad.shape, x.grad.dtype) == (shape, dtype)
        alone = partial(REDUCTIONS[name], axis=axis, keepdims=keepdims)
        batched = ad.vmap(alone)(np.zeros((2, *shape), dtype))
        assert batched.dtype == dtype and batched.shape == (2, *y.shape)


@pytest.mark.parametrize(
    "make",
    [
        lambda c, to: ad.tensor(c, dtype=to),
        lambda c, to: ad.asarray(c, dtype=to),
        lambda c, to: ad.array(c, dtype=to),
        lambda c, to: ad.array([c, c], dtype=to),
        lambda c, to: ad.array([c.clone().requires_grad_(), c], dtype=to),
        lambda c, to: ad.vmap(lambda x: ad.tensor(x, dtype=to))(c),
        lambda c, to: c.astype(to),
    ],
)
@pytest.mark.parametrize("to", [np.float64, np.int32, ml_dtypes.bfloat16])
def test_no_cast_drops_an_imaginary_part(make: Any, to: Any) -> None:
    with pytest.raises(DTypeError, match=r"complex64 to .* would drop the imaginary part"):
        make(ad.tensor([1j, 2.0], dtype=np.complex64), to)
