"""Every NumPy function that answers for tensors: the values are NumPy's, and gradients flow.

``CALLS`` has a call or more for each function of the table; float arrays in it become tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy_calls import distinct, flat

import adjoint as ad
import adjoint.numpy as anp
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InPlaceError, InputError, LostHistoryError, ShapeError
from adjoint.interop.numpy import FUNCTIONS, PLAIN
from adjoint.testing import gradcheck

V, W = distinct((4,)), distinct((5,))[:4] + 0.1
A, B = distinct((3, 4)), distinct((3, 5))[:, :4] + 0.05
S = distinct((3, 3)) + 3 * np.eye(3)  # regular
P = S @ S.T  # positive definite
N = np.where(np.eye(3, 4) > 0, np.nan, A)  # with missing values
M = A > 0
I = np.array([2, 0, 1, 2])  # noqa: E741
C = V + 1j * W
like = ad.zeros(1)
leaf = ad.zeros(1, requires_grad=True)


def call(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


CALLS: dict[Any, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    # reductions and scans
    np.sum: [call(A), call(A, 1), call(A, None, None, None, True), call(A, axis=(0, 1), keepdims=True),
             call(A, axis=0, where=M), call(A, initial=2.0), call(A, 0, np.float32)],
    np.prod: [call(A, 0), call(A, where=M, initial=3.0)],
    np.max: [call(A, 1), call(A, 0, where=M, initial=-1.0), call(A[:, :0], axis=1, initial=4.0)],
    np.min: [call(A), call(A, 0, None, True)],
    np.amax: [call(A, 1)],
    np.amin: [call(A, 1, None, True)],
    np.mean: [call(A, 0), call(A, 1, None, None, True), call(A, where=M), call(A, 1, where=V < 1)],
    np.std: [call(A, 0, None, None, 1), call(A, ddof=1, keepdims=True)],
    np.var: [call(A), call(A, axis=1, correction=1)],
    np.all: [call(M, 0), call(M, where=~M)],
    np.any: [call(M, 1, None, True)],
    np.average: [call(A, 1, V), call(A, weights=B)],
    np.nanmedian: [call(N), call(N, 1)],
    np.nanquantile: [call(N, 0.3, 1), call(N, [0.1, 0.6], axis=0, keepdims=True)],
    np.nanpercentile: [call(N, 30, axis=1)],
    np.median: [call(A), call(A, 1, None, False, True)],
    np.quantile: [call(A, 0.3, axis=1), call(A, [0.1, 0.6], 0, None, False, "hazen", True)],
    np.percentile: [call(A, 30, axis=0)],
    np.ptp: [call(A, 1), call(A, 0, None, True)],
    np.count_nonzero: [call(A, axis=1)],
    np.argmax: [call(A, 1), call(A, axis=0, keepdims=True)],
    np.argmin: [call(A)],
    np.cumsum: [call(A, 1), call(A)],
    np.cumprod: [call(A, axis=0)],
    np.cumulative_sum: [call(V, include_initial=True)],
    np.cumulative_prod: [call(A, axis=1)],
    np.diff: [call(A), call(A, axis=0), call(V, 2), call(V, prepend=1.0)],
    np.nansum: [call(N, 0), call(N, where=M)],
    np.nanprod: [call(N, 1)],
    np.nanmean: [call(N), call(N, 0)],
    np.nanmax: [call(N, 1)],
    np.nanmin: [call(N, 0)],
    np.nanvar: [call(N, 1), call(N, ddof=1)],
    np.nanstd: [call(N, axis=0, keepdims=True)],
    np.nancumsum: [call(N, 1)],
    np.nancumprod: [call(N)],
    # shapes
    np.reshape: [call(A, (2, -1)), call(A, (4, 3), "F"), call(A, shape=-1)],
    np.ravel: [call(A), call(A, "F")],
    np.transpose: [call(A), call(distinct((2, 3, 4)), (2, 0, 1)), call(A, axes=(1, 0))],
    np.matrix_transpose: [call(A)],
    np.swapaxes: [call(A, 0, 1)],
    np.moveaxis: [call(distinct((2, 3, 4)), 0, -1)],
    np.rollaxis: [call(distinct((2, 3, 4)), 2), call(distinct((2, 3, 4)), -3, 2), call(distinct((2, 3, 4)), 1, -1)],
    np.expand_dims: [call(A, 1), call(A, (0, -1))],
    np.squeeze: [call(A[:, None]), call(A[None], axis=0)],
    np.broadcast_to: [call(V, (3, 4))],
    np.broadcast_arrays: [call(V, A)],
    np.atleast_1d: [call(V[0, ...]), call(V, V[0, ...])],
    np.atleast_2d: [call(V)],
    np.atleast_3d: [call(A)],
    np.flip: [call(A), call(A, 1)],
    np.fliplr: [call(A)],
    np.flipud: [call(A)],
    np.rot90: [call(A), call(A, k=3)],
    np.roll: [call(A, 1), call(A, (1, 2), axis=(0, 1))],
    np.repeat: [call(A, 2), call(A, [1, 0, 2], axis=0)],
    np.tile: [call(A, (2, 1))],
    np.pad: [call(A, 1), call(A, ((1, 0), (0, 2)), "constant", constant_values=2.0), call(V, 1, mode="edge"),
             call(V, 2, mode="reflect"), call(V, 2, mode="wrap")],
    np.resize: [call(A, (2, 7))],
    np.copy: [call(A)],
    np.diag: [call(V), call(S, 1)],
    np.diagflat: [call(A, 1)],
    np.diagonal: [call(A, 1), call(distinct((2, 3, 3)), axis1=1, axis2=2)],
    np.tril: [call(A, -1)],
    np.triu: [call(A)],
    np.lib.stride_tricks.sliding_window_view: [
        call(V, 2), call(A, 3, axis=1)],
    # joining
    np.concatenate: [call([A, B]), call((A, B), 1), call([A, B], axis=None), call([V, V], dtype=np.float32)],
    np.stack: [call([A, B]), call([A, B], axis=-1)],
    np.hstack: [call([A, B]), call([V, W])],
    np.vstack: [call([A, B])],
    np.dstack: [call([A, B])],
    np.column_stack: [call([V, W])],
    np.block: [call([[A, B], [B, A]]), call([V, W]), call([[np.ones((1, 1)), np.ones((1, 2))]])],
    np.append: [call(A, B), call(A, B, axis=1)],
    np.insert: [call(A, 1, 9.0), call(A, 1, W[:3], axis=1), call(A, [0, 2], B[:, :2], axis=1), call(V, -1, W),
                call(A, [1], B[:1], axis=0), call(A, 1, B, axis=0), call(V, slice(0, 3, 2), 5.0),
                *[call(V, np.array([True, False, True, False]), W[:2])] * (np.lib.NumpyVersion(np.__version__) >= "2.4.0")],
    np.apply_along_axis: [call(np.cumsum, 0, A), call(np.sum, 1, A), call(np.diag, -1, A), call(np.outer, 0, distinct((2, 3, 2)), V)],
    np.apply_over_axes: [call(np.sum, distinct((2, 3, 4)), [0, 2]), call(np.sum, A, 1)],
    np.piecewise: [call(V, [V < 0, V > 1], [np.cos, np.sqrt, 3.0]), call(A, [M], [np.exp]), call(V, V > 0, [np.log])],
    np.trim_zeros: [call(np.array([0.0, 1.0, 2.0, 0.0])), call(np.array([0.0, 1.0, 0.0]), "f")],
    np.real_if_close: [call(C), call(V), call(V + 1e-20j)],
    np.delete: [call(A, 1), call(A, [0, 2], axis=1), call(A, slice(0, 2), 0)],
    np.split: [call(A, 3), call(A, [1], axis=1)],
    np.array_split: [call(V, 3)],
    np.hsplit: [call(A, 2)],
    np.vsplit: [call(A, 3)],
    np.dsplit: [call(distinct((2, 2, 4)), 2)],
    np.unstack: [call(A, axis=1)],
    np.meshgrid: [call(V, W), call(V, W, indexing="ij")],
    np.kron: [call(A, S)],
    # choosing and ordering
    np.where: [call(M, A, B), call(M, A, 0.0), call(M)],
    np.select: [call([M, ~M], [A, B]), call([M], [A], 2.0)],
    np.choose: [call(np.array([0, 1, 1, 0]), [V, W]), call(np.array([0, 5, 1, 0]), [V, W], mode="clip")],
    np.clip: [call(A, -0.5, 0.5), call(A, a_min=None, a_max=0.5), call(A, min=0.0), call(A, None, V)],
    np.take: [call(A, I[1:]), call(A, I, 0), call(A, I, axis=1, mode="wrap")],
    np.take_along_axis: [call(A, np.argsort(A, 1), 1)],
    np.compress: [call([True, False, True], A, axis=0)],
    np.extract: [call(M, A)],
    np.sort: [call(A), call(A, 0), call(A, axis=None)],
    np.partition: [call(V, 2), call(A, 1, axis=0)],
    np.argsort: [call(A, 0)],
    np.argwhere: [call(A)],
    np.flatnonzero: [call(A)],
    np.nonzero: [call(A)],
    np.searchsorted: [call(np.sort(V), W), call(np.sort(V), W, side="right")],
    np.unique: [call(I), call(V, return_index=True, return_counts=True), call(A, axis=0)],
    np.unique_all: [call(I)],
    np.unique_counts: [call(I)],
    np.unique_inverse: [call(I)],
    np.unique_values: [call(V)],
    # elementwise and tests
    np.round: [call(A, 1)],
    np.around: [call(A)],
    np.fix: [call(A)],
    np.real: [call(C)],
    np.imag: [call(C)],
    np.angle: [call(C), call(C, True)],
    np.sinc: [call(A)],
    np.i0: [call(A)],
    np.nan_to_num: [call(N), call(N, True, 3.0), call(N, nan=1.0, copy=True)],
    np.unwrap: [call(5 * V), call(5 * A, axis=0)],
    np.isclose: [call(A, B, rtol=1e-3)],
    np.allclose: [call(A, B)],
    np.array_equal: [call(A, A), call(A, B)],
    np.iscomplex: [call(C)],
    np.isreal: [call(C)],
    np.isneginf: [call(A)],
    np.isposinf: [call(A)],
    np.astype: [call(A, np.float32)],
    np.can_cast: [call(np.float64, np.float32)],
    np.result_type: [call(A, np.float32)],
    # products and sums of products
    np.dot: [call(A, V), call(V, W), call(S, A)],
    np.vdot: [call(A, B)],
    np.inner: [call(A, B)],
    np.outer: [call(V, W)],
    np.tensordot: [call(A, B, axes=([0], [0])), call(A, B, 2)],
    np.einsum: [call("ij,kj->ik", A, B), call("ii", S), call("ij,j", A, V, optimize=True), call(A, [0, 1], [1])],
    np.einsum_path: [],
    np.cross: [call(S, P), call(S, P, 0, 1, 1), call(S, P, axis=0)],
    np.trace: [call(S), call(S, 1)],
    np.convolve: [call(V, W[:2]), call(W[:3], V, "same"), call(V, W[:2], mode="valid")],
    np.correlate: [call(V, W[:3]), call(V, W[:2], "same"), call(V, W[:3], "same"), call(W[:2], V, "full"),
                   call(W[:3], V), call(W[:3], V, "same"), call(W[:2], V, "same")],
    np.cov: [call(A), call(V, W), call(A, rowvar=False, bias=True), call(V), call(A, ddof=0)],
    np.corrcoef: [call(A), call(V, W)],
    np.trapezoid: [call(A), call(V, np.sort(W)), call(A, dx=0.5, axis=0), call(A, np.sort(V))],
    np.gradient: [call(V), call(V, 0.5), call(A), call(V, np.sort(W)), call(A, 2.0, axis=1, edge_order=2),
                  call(V, np.sort(W), edge_order=2)],
    np.ediff1d: [call(A), call(V, to_end=np.array([1.0, 2.0]), to_begin=0.5)],
    np.interp: [call(W, np.sort(V), V), call(3 * W, np.sort(V), V, left=-9.0, right=9.0), call(0.1, np.sort(V), V)],
    np.bincount: [call(I), call(I, V), call(I, weights=V, minlength=6)],
    np.polyval: [call(V, W), call([2.0, 1.0], A)],
    np.polyadd: [call(V, W[:2])], np.polysub: [call(V[:2], W)], np.polymul: [call(V, W[:3])],
    np.polyder: [call(V), call(V, 2)], np.polyint: [call(V), call(V, 2, [1.0, 2.0])],
    np.polydiv: [call(V, W[:2]), call(V[:2], W)],
    np.polyfit: [call(V, W, 2), call(V, A.T, 1, w=np.abs(W))],
    np.poly: [call(V), call(C)],
    np.vander: [call(V), call(V, 3, increasing=True)],
    # making
    np.zeros_like: [call(A), call(A, np.float32), call(A, shape=(2,))],
    np.ones_like: [call(A, dtype=np.int64)],
    np.empty_like: [],
    np.full_like: [call(A, 3.0), call(A, 2, dtype=int, shape=(1, 2))],
    np.zeros: [], np.ones: [], np.empty: [], np.arange: [], np.eye: [],
    np.full: [],
    np.linspace: [call(np.array(1.0), np.array(3.0), 5), call(np.array(1.0), 3.0, num=4, endpoint=False)],
    np.logspace: [call(np.array(0.5), np.array(1.5), 4), call(V, W, 3, base=2.0)],
    np.geomspace: [call(np.array(1.0), np.array(3.0), 5), call(np.array(-2.0), -3.0, num=4, endpoint=False)],
    # linear algebra
    np.linalg.cholesky: [call(P), call(P, upper=True)],
    np.linalg.cond: [call(S), call(S, 1)],
    np.linalg.cross: [call(S, P)],
    np.linalg.det: [call(S)],
    np.linalg.diagonal: [call(S, offset=1)],
    np.linalg.eig: [call(np.array([[1.0, 2.0], [-1.5, 0.5]]))],
    np.linalg.eigvals: [call(np.array([[1.0, 2.0], [-1.5, 0.5]]))],
    np.linalg.eigh: [call(P)],
    np.linalg.eigvalsh: [call(P)],
    np.linalg.inv: [call(S)],
    np.linalg.lstsq: [],
    np.linalg.matmul: [call(S, A)],
    np.linalg.matrix_norm: [call(A), call(A, ord=1, keepdims=True)],
    np.linalg.matrix_power: [call(S, 3)],
    np.linalg.matrix_rank: [call(A)],
    np.linalg.matrix_transpose: [call(A)],
    np.linalg.multi_dot: [call([S, A, V])],
    np.linalg.norm: [call(A), call(A, 1, 1), call(A, axis=0, keepdims=True), call(V, np.inf)],
    np.linalg.outer: [call(V, W)],
    np.linalg.pinv: [call(A)],
    np.linalg.qr: [call(S), call(S, mode="r")],
    np.linalg.slogdet: [call(S)],
    np.linalg.solve: [call(S, A), call(S, V[:3])],
    np.linalg.svd: [call(A, full_matrices=False), call(A, compute_uv=False)],
    np.linalg.svdvals: [call(A)],
    np.linalg.tensordot: [call(A, B, axes=([0], [0]))],
    np.linalg.tensorinv: [call(S.reshape(3, 3), ind=1)],
    np.linalg.tensorsolve: [call(S, V[:3])],
    np.linalg.trace: [call(S, offset=-1)],
    np.linalg.vecdot: [call(A, B), call(A, B, axis=0)],
    np.linalg.vector_norm: [call(A, axis=1, ord=3)],
    # Fourier transforms
    np.fft.fft: [call(A), call(A, 3, 0, "ortho"), call(C)],
    np.fft.ifft: [call(A, n=6)],
    np.fft.fft2: [call(A), call(A, (2, 3))],
    np.fft.ifft2: [call(A)],
    np.fft.fftn: [call(A, axes=(0,))],
    np.fft.ifftn: [call(A, norm="forward")],
    np.fft.rfft: [call(A), call(V, 3)],
    np.fft.irfft: [call(V), call(V, 5)],
    np.fft.rfft2: [call(A)],
    np.fft.irfft2: [call(A)],
    np.fft.rfftn: [call(A)],
    np.fft.irfftn: [call(A, axes=(1,))],
    np.fft.hfft: [call(V)],
    np.fft.ihfft: [call(V)],
    np.fft.fftshift: [call(A, 1)],
    np.fft.ifftshift: [call(V)],
    np.fft.fftfreq: [], np.fft.rfftfreq: [],
    # only values
    np.shape: [call(A)], np.ndim: [call(A)], np.size: [call(A), call(A, 1)],
    np.iscomplexobj: [call(C)], np.isscalar: [call(A), call(2.5)], np.isrealobj: [call(C)], np.array_equiv: [call(A, A)],
    np.array_repr: [call(V)], np.array_str: [call(V)], np.array2string: [call(V, precision=2)],
    np.isin: [call(I, [0, 1])], np.digitize: [call(V, [0.0, 1.0])],
    np.histogram: [call(A, bins=3)], np.histogram_bin_edges: [call(A, 3)],
    np.argpartition: [call(V, 2)], np.lexsort: [call((V, W))],
    np.nanargmax: [call(N, 1)], np.nanargmin: [call(N)],
    np.min_scalar_type: [call(A)], np.common_type: [call(A)],
    np.shares_memory: [call(A, B)], np.may_share_memory: [call(A, B)],
    np.tril_indices_from: [call(S)], np.triu_indices_from: [call(S, 1)], np.diag_indices_from: [call(S)],
    np.ravel_multi_index: [call((I, I), (3, 3))], np.unravel_index: [call(I, (2, 2))],
    np.ix_: [call(I, [0, 1]), call(V, M[0])],
}  # fmt: skip

# Where float results have no gradient, and why.
CONSTANT = {
    np.round: "steps", np.around: "steps", np.fix: "steps", np.histogram: "edges", np.unique: "",
    np.histogram_bin_edges: "edges", np.zeros_like: "constant", np.ones_like: "constant", np.full_like: "constant",
    np.astype: "checked in test_tensor", np.trim_zeros: "differences move the zeros",
    np.real_if_close: "differences move the imaginary part",
}  # fmt: skip
SYMMETRIC = {np.linalg.cholesky, np.linalg.eigh, np.linalg.eigvalsh}  # they read one triangle only
# NumPy calls these without asking for the protocol when no argument of theirs is a tensor: like= asks.
LIKE: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (np.zeros, ((2, 3), np.float32)), (np.ones, (3,)), (np.full, (2, 3.0)), (np.arange, (1, 7, 2)),
    (np.eye, (2, 3)), (np.empty, (2,)), (np.empty, (2, np.float32)),
]  # fmt: skip


def is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "fc"


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if type(value) in (list, tuple):
        return type(value)(mapped(v, change) for v in value)
    return change(value) if isinstance(value, np.ndarray) else value


def floats(args: Any) -> list[Any]:
    """The float arrays among the arguments, also in lists."""
    found: list[Any] = []
    mapped(args, lambda a: found.append(a) if is_float(a) else None)
    return found


ALL = [(f, i) for f in CALLS for i in range(len(CALLS[f]))]


def test_every_function_has_a_call():
    assert set(CALLS) == set(FUNCTIONS) | PLAIN


@pytest.mark.filterwarnings("ignore:numpy.fix is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("function", "i"), ALL, ids=lambda v: getattr(v, "__name__", str(v)))
def test_values_are_those_of_numpy(function, i):
    args, kwargs = CALLS[function][i]
    with np.errstate(all="ignore"):
        expected = function(*args, **kwargs)
        got = function(*mapped(args, ad.tensor), **kwargs)
    assert len(flat(got)) == len(flat(expected))
    for y, e in zip(flat(got), flat(expected), strict=True):
        if isinstance(e, np.ndarray) or (function not in PLAIN and isinstance(e, np.number)):
            assert isinstance(y, Tensor)
            assert (y.shape, y.dtype) == (np.shape(e), e.dtype)
            np.testing.assert_allclose(
                y.numpy(), e, rtol=1e-6 if e.dtype == np.float32 else 1e-12, atol=1e-12
            )
        else:
            assert y == e


def of_namespace(function: Any) -> Any:
    """The function of ``adjoint.numpy`` that stands for NumPy's."""
    for theirs, ours in ((np, anp), (np.linalg, anp.linalg), (np.fft, anp.fft)):
        name = function.__name__
        if getattr(theirs, name, None) is function:
            return getattr(ours, name)
    return None


@pytest.mark.filterwarnings("ignore:numpy.fix is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("function", "i"), ALL, ids=lambda v: getattr(v, "__name__", str(v)))
def test_adjoint_numpy_is_numpy_for_arrays_and_takes_tensors(function, i):
    ours = of_namespace(function)
    if ours is None or function in PLAIN:
        return
    args, kwargs = CALLS[function][i]
    with np.errstate(all="ignore"):
        expected, plain = flat(function(*args, **kwargs)), flat(ours(*args, **kwargs))
        got = flat(ours(*mapped(args, ad.tensor), **kwargs))
    for y, p, e in zip(got, plain, expected, strict=True):
        assert type(p) is type(e)
        if isinstance(e, (np.ndarray, np.number)):
            assert p.dtype == e.dtype and p.tobytes() == e.tobytes()
            assert isinstance(y, (Tensor, int, float))
            np.testing.assert_allclose(
                np.asarray(y), e, rtol=1e-6 if e.dtype == np.float32 else 1e-12, atol=1e-12
            )


@pytest.mark.parametrize(
    ("function", "i"), [(f, i) for f, i in ALL if f not in PLAIN and f not in CONSTANT],
    ids=lambda v: getattr(v, "__name__", str(v)),
)  # fmt: skip
def test_gradients_flow(function, i):
    args, kwargs = CALLS[function][i]
    arrays = [a for a in floats(args) if not np.isnan(a).any() and a.size]
    with np.errstate(all="ignore"):
        results = [
            e for e in flat(function(*args, **kwargs)) if getattr(e, "dtype", np.dtype(int)).kind in "fc"
        ]
    if not arrays or not results or kwargs.get("dtype") is np.float32 or any(a is np.float32 for a in args):
        return

    def f(*leaves: Tensor) -> Any:
        given = iter(leaves)
        swap = lambda a: symmetric(next(given)) if any(a is b for b in arrays) else a
        outputs = flat(function(*mapped(args, swap), **kwargs))
        return tuple(y for y in outputs if isinstance(y, Tensor) and y.dtype.kind in "fc")

    symmetric = (lambda t: (t + t.T) / 2) if function in SYMMETRIC else (lambda t: t)
    leaves = [ad.tensor(a, requires_grad=True) for a in arrays]
    assert any(y.requires_grad for y in f(*leaves)), "no output has a history"
    assert gradcheck(f, arrays, directions=1)


# Made of floats that NumPy takes for float64; here they have the dtype of the tensors.
NARROWER = {np.cov, np.corrcoef, np.interp, np.vander, np.quantile, np.diff, np.fft.irfft2,
            np.nanquantile, np.geomspace, np.poly, np.polyfit}  # fmt: skip


@pytest.mark.filterwarnings("ignore:numpy.fix is deprecated:DeprecationWarning")
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(
    ("function", "i"),
    [(f, i) for f, i in ALL if f not in PLAIN],
    ids=lambda v: getattr(v, "__name__", str(v)),
)
def test_dtypes_are_those_of_numpy(function, i, dtype):
    args, kwargs = CALLS[function][i]
    cast = lambda a: a.astype({"f": dtype, "c": np.complex64}.get(a.dtype.kind, a.dtype))
    try:
        with np.errstate(all="ignore"):
            expected = flat(function(*mapped(args, cast), **kwargs))
    except TypeError:
        return  # LAPACK has no float16
    if function is np.linalg.matrix_power and dtype is np.float16:
        return  # nor for its negative powers
    with np.errstate(all="ignore"):
        got = flat(function(*mapped(args, lambda a: ad.tensor(cast(a)) if is_float(a) else a), **kwargs))
    for y, e in zip(got, expected, strict=True):
        if isinstance(y, Tensor):
            assert y.dtype == e.dtype or (function in NARROWER and y.dtype == dtype)


@pytest.mark.parametrize(("function", "args"), LIKE, ids=lambda v: getattr(v, "__name__", ""))
def test_like_makes_tensors(function, args):
    got, expected = function(*args, like=like), function(*args)
    assert isinstance(got, Tensor)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    if function is not np.empty:
        np.testing.assert_array_equal(got.numpy(), expected)


def test_full_takes_a_tensor():
    value = ad.tensor(3.0, requires_grad=True)
    y = np.full((2, 2), value, like=like)
    y.sum().backward()
    assert value.grad.item() == 4


def test_lstsq_returns_all_four_and_differentiates():
    got = np.linalg.lstsq(ad.tensor(A.T), ad.tensor(V), rcond=None)
    for y, e in zip(got, np.linalg.lstsq(A.T, V, rcond=None), strict=True):
        np.testing.assert_allclose(np.asarray(y), e)
    assert gradcheck(lambda a, b: np.linalg.lstsq(a, b, rcond=None)[0], [A.T.copy(), V])


def test_ufuncs_with_methods():
    x = ad.tensor(A)
    np.testing.assert_array_equal(np.add.reduce(x, axis=1).numpy(), A.sum(1))
    np.testing.assert_array_equal(np.maximum.reduce(x).numpy(), A.max(0))
    np.testing.assert_array_equal(np.multiply.accumulate(x, axis=1).numpy(), A.cumprod(1))
    assert gradcheck(lambda t: np.exp(np.multiply.reduce(t, axis=1)), [A])
    both = np.divmod(x, 2.0)
    np.testing.assert_array_equal(both[1].numpy(), A % 2)


def test_an_array_takes_a_tensor_without_history_in_place():
    a = np.ones(3)
    same = a
    a += ad.tensor([1.0, 2.0, 3.0])
    assert a is same and type(a) is np.ndarray and a.tolist() == [2.0, 3.0, 4.0]


MISTAKES: list[tuple[type[BaseException], Callable[[], Any], str]] = [
    (InputError, lambda: np.sum(leaf, out=np.zeros(())),
     "np.sum(…, out=…): an array cannot be part of the graph, so the gradient would be lost.\n"
     "  The same happens in a += x if a is an array: write a = a + x, or create a with ad.zeros."),
    (InputError, lambda: np.exp(ad.ones(1, requires_grad=True), out=np.zeros(1)),
     "np.exp(…, out=…): an array cannot be part of the graph, so the gradient would be lost.\n"
     "  The same happens in a += x if a is an array: write a = a + x, or create a with ad.zeros."),
    (InputError, lambda: ad.numpy.sin(np.ones(3), out=ad.zeros(3, requires_grad=True)),
     "np.sin(…, out=…): no gradient flows through a write into a tensor.\n"
     "  Omit out=: the result is a new tensor.  To write the result into a part of x, use y = x.at[i].set(result)."),
    (InputError, lambda: np.sum(leaf, out=ad.zeros(())),
     "np.sum(…, out=…): no gradient flows through a write into a tensor.\n"
     "  Omit out=: the result is a new tensor.  To write the result into a part of x, use y = x.at[i].set(result)."),
    (InputError, lambda: np.var(ad.tensor(A), where=M), "np.var: adjoint does not support where=.  Omit it."),
    (InPlaceError, lambda: np.copyto(leaf, np.zeros(1)),
     "this leaf requires grad, and writing into it is not differentiable.\n"
     "  To update its value, write under ad.no_grad(); for a differentiable result make a new tensor: y = x + 1, or "
     "y = x.at[i].set(v)."),
    (LostHistoryError, lambda: eval("np.copyto(np.zeros(1), leaf)"),
     "a leaf of shape (1,) that requires grad would become an array for np.copyto at <string>:1, and its gradient would be lost.\n"
     "  It writes in place: use y = x.at[i].set(v), which is differentiable.\n"
     "  If no gradient is needed, use x.detach(), x.numpy() or x.item()."),
    (InputError, lambda: np.sort_complex(ad.tensor(A)),
     "np.sort_complex has no derivative in adjoint.\n"
     "  Pass x.numpy() if no gradient is needed, or compute it with other functions of adjoint."),
    (ArgumentError, lambda: np.max(ad.tensor(A), where=M), "np.max: where= needs initial=, the result if no element is selected."),
    (ArgumentError, lambda: np.convolve(ad.tensor(V), W, "most"), "np.convolve: mode must be 'full', 'same' or 'valid', not 'most'."),
    (ShapeError, lambda: np.convolve(ad.tensor(A), V),
     "np.convolve: the arguments must be non-empty vectors, but have shapes (3, 4) and (4,)."),
    (ShapeError, lambda: np.gradient(ad.tensor(V), W[:2]), "np.gradient: there must be 4 coordinates, one per element of the axis, but got 2."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "mistake", "text"), MISTAKES, ids=lambda v: v[:30] if isinstance(v, str) else ""
)
def test_message(error, mistake, text):
    with pytest.raises(error) as info:
        mistake()
    assert str(info.value) == text


def test_unwrap_inside_transforms():
    x = np.random.default_rng(3).normal(size=(3, 9)) * 8
    for options in ({}, {"axis": 0}, {"period": 5.0}, {"discont": 5.0}):
        f = lambda v, options=options: np.unwrap(v, **options)
        np.testing.assert_array_equal(ad.compile(f)(ad.tensor(x)).numpy(), np.unwrap(x, **options))
        np.testing.assert_array_equal(ad.vmap(f)(ad.tensor(x[None])).numpy()[0], np.unwrap(x, **options))
    gradient = ad.compile(ad.grad(lambda v: (np.unwrap(v) ** 2).sum()))(x)
    np.testing.assert_array_equal(gradient, 2 * np.unwrap(x))


@pytest.mark.parametrize("period", [4, 5, 4.0, 2 * np.pi])
def test_unwrap_of_integers_and_edges(period):
    whole = np.random.default_rng(4).integers(-50, 50, 20)
    half = np.array([0, 2, 4, 2, 0, -2, -4, -1, 1, 3])
    for x in (whole, whole.astype(np.int8), half, half * np.pi / 2, np.ones(0), np.ones((3, 0)), np.ones(1)):
        expected, got = np.unwrap(x, period=period), np.unwrap(ad.tensor(x), period=period).numpy()
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


def test_arrays_of_other_values_broadcast_beside_tensors():
    """As ``plt.bar(x, height)`` does with the pattern of the bars."""
    x = ad.tensor([1.0, 2.0], requires_grad=True)
    found, none, text, objects = np.broadcast_arrays(x, None, "a", np.array([None], object))
    assert isinstance(found, ad.Tensor) and found.requires_grad
    assert none.shape == text.shape == objects.shape == (2,) and none[0] is None and text[1] == "a"
    both = np.broadcast_arrays(x, [[1.0], [2.0]])
    assert [type(b) for b in both] == [ad.Tensor, ad.Tensor] and both[0].shape == (2, 2)
    with pytest.raises(ValueError, match="do not broadcast"):
        np.broadcast_arrays(x, np.ones(3))


def test_the_line_of_the_user_is_outside_of_libraries_that_convert():
    names = {"__name__": "pandas.core.fake", "np": np}
    exec("def convert(x): return np.asarray(x)", names)
    with pytest.raises(ad.errors.LostHistoryError, match=r"at \S*test_numpy_functions\.py:\d+"):
        names["convert"](ad.tensor([1.0], requires_grad=True))
