"""Half precision: results and gradients keep it, computed in float32 and rounded once; bfloat16 as float16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from table import CASES

import adjoint as ad
from adjoint import nn
from adjoint.core.namespace import rec
from adjoint.core.op import OPS
from adjoint.testing.cases import Case

ml_dtypes = pytest.importorskip("ml_dtypes")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
HALVES = [np.dtype(np.float16), BFLOAT16]
RNG = np.random.default_rng(0)
A, B, V = RNG.normal(size=(4, 3)), RNG.normal(size=(3, 5)), RNG.normal(size=5)

# of eigenvectors and the like, which are for float32 and float64 alone
NOT_HALF = {"gauge_quotient", "is_hermitian", "spectral_sum"}


def _results(case: Case, dtype: Any) -> list[Any] | None:
    args = [
        ad.tensor(a.astype(dtype) if a.dtype.kind == "f" else a) if isinstance(a, np.ndarray) else a
        for a in case.args
    ]
    try:
        found = getattr(rec, case.op)(*args, **case.params)
    except ad.errors.AdjointError:
        return None
    return [t.dtype for t in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_op_returns_bfloat16_where_it_returns_float16() -> None:
    other = {}
    for case in (case for found in CASES.values() for case in found):
        expected = _results(case, np.float16)
        if expected is None or case.op in NOT_HALF:
            continue
        expected = [BFLOAT16 if d == np.float16 else d for d in expected]
        if (found := _results(case, BFLOAT16)) != expected:
            other[str(case)] = (found, expected)
    assert other == {}


def _tensors(dtype: Any, *arrays: Any) -> list[Any]:
    return [ad.tensor(a.astype(dtype), requires_grad=True) for a in arrays]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("name", "arrays"),
    [
        ("matmul", (A, B)),
        ("matmul", (np.stack([A, A]), B)),
        ("matmul", (A[0], B)),
        ("matmul", (A, B[:, 0])),
        ("linear", (A, B.T)),
        ("linear", (A, B.T, V)),
        ("linear", (A[0], B.T, V)),
        ("linear", (np.stack([A, -A]), B.T, V)),
        ("einsum", (A, B)),
    ],
)
def test_products_are_rounded_once(dtype: Any, name: str, arrays: Any) -> None:
    call: Any = {
        "matmul": ad.matmul,
        "linear": nn.functional.linear,
        "einsum": lambda x, y: ad.einsum("ij,jk->ik", x, y),
    }[name]
    half = _tensors(dtype, *arrays)
    wide = [ad.tensor(t.numpy().astype(np.float32), requires_grad=True) for t in half]
    y, expected = call(*half), call(*wide)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.numpy(), expected.numpy().astype(dtype))
    seed = RNG.normal(size=y.shape).astype(dtype)
    y.backward(ad.tensor(seed))
    expected.backward(ad.tensor(seed.astype(np.float32)))
    for t, w in zip(half, wide, strict=True):
        assert t.grad is not None and t.grad.dtype == dtype
        np.testing.assert_array_equal(t.grad.numpy(), w.grad.numpy().astype(dtype))


def test_python_numbers_are_weak_beside_bfloat16() -> None:
    (x,) = _tensors(BFLOAT16, A)
    for y in (x * 0.5, 2 - x, x / 3.0, x**2, abs(x) ** 0.5, ad.maximum(x, 0.1), ad.where(x > 0, x, 0.5),
              ad.where(x > 0, -1, x), x.clip(-0.5, 0.5), 1.5 + x, ad.where(x > 0, x, x * 2)):  # fmt: skip
        assert y.dtype == BFLOAT16
    assert (x * np.float32(2)).dtype == np.float32 and (x * ad.ones(3, dtype=np.float32)).dtype == np.float32


LAYERS: list[tuple[Any, tuple[int, ...]]] = [
    (lambda d: nn.Linear(3, 2, rng=0, dtype=d), (4, 3)),
    (lambda d: nn.LSTM(3, 4, 2, rng=0, dtype=d), (2, 5, 3)),
    (lambda d: nn.GRU(3, 4, 2, rng=0, dtype=d), (2, 5, 3)),
    (lambda d: nn.Conv1d(3, 4, 2, rng=0, dtype=d), (2, 3, 6)),
    (lambda d: nn.Conv2d(3, 4, 2, rng=0, dtype=d), (2, 3, 6, 6)),
    (lambda d: nn.LayerNorm(3, dtype=d), (4, 3)),
    (lambda d: nn.RMSNorm(3, dtype=d), (4, 3)),
    (lambda d: nn.BatchNorm1d(3, dtype=d), (4, 3)),
    (lambda d: nn.GroupNorm(1, 3, dtype=d), (4, 3, 2)),
    (lambda d: nn.MultiHeadAttention(4, 2, rng=0, dtype=d), (2, 5, 4)),
    (lambda d: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, rng=0, dtype=d), (2, 5, 4)),
]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("make", "shape"), LAYERS)
def test_layers_keep_half_precision_and_train_in_it(dtype: Any, make: Any, shape: Any) -> None:
    layer, wide = make(dtype), make(np.float32)
    wide.load_state_dict(layer.state_dict())
    x = RNG.normal(size=shape).astype(dtype)
    z = ad.tensor(x, requires_grad=True)
    y, expected = layer(z), wide(ad.tensor(x.astype(np.float32)))
    y, expected = (t[0] if isinstance(t, tuple) else t for t in (y, expected))
    assert y.dtype == dtype
    tolerance = 0.1 if dtype == BFLOAT16 else 0.02
    np.testing.assert_allclose(y.numpy().astype(np.float32), expected.numpy(), atol=tolerance)
    nn.functional.mse_loss(y, ad.zeros(y.shape, dtype=dtype)).backward()
    assert z.grad is not None and z.grad.dtype == dtype
    optimiser = ad.optim.Adam(layer.parameters(), lr=0.1)
    assert all(p.dtype == dtype for p in layer.parameters())
    assert all(p.grad is not None and p.grad.dtype == dtype for p in layer.parameters())
    before = [p.numpy(copy=True) for p in layer.parameters()]
    optimiser.step()
    assert all(p.dtype == dtype for p in layer.parameters())
    assert any((p.numpy() != b).any() for p, b in zip(layer.parameters(), before, strict=True))


# Sums of many numbers ----------------------------------------------------------------------------

MANY = 70_000  # more than float16 can count, and far more than a sum in half precision gets right
F = nn.functional
SMALL, LABELS = RNG.uniform(0.1, 1, MANY), RNG.integers(0, 5, MANY)
SCORES, FEW, LARGE = RNG.normal(size=(MANY, 5)), RNG.uniform(0.1, 1, 5), RNG.uniform(0.1, 1, 100) * 400
FIRST = np.zeros(MANY, int)


def _zeros(x: Any) -> Any:
    return ad.zeros(x.shape, dtype=x.dtype)


SUMS: dict[str, tuple[Any, Any]] = {
    "sum": (ad.sum, SMALL / 100),
    "mean": (ad.mean, SMALL * 100),
    "prod": (ad.prod, 1 + (SMALL - 0.55) / 1000),
    "var": (ad.var, SMALL),
    "std": (ad.std, LARGE),
    "max of equals": (ad.max, np.ones(MANY)),
    "logsumexp": (ad.logsumexp, SMALL),
    "cumsum": (ad.cumsum, np.full(MANY, 0.1)),
    "cumprod": (ad.cumprod, 1 + (SMALL[:3000] - 0.55) / 1000),
    "softmax": (ad.softmax, SMALL),
    "nansum": (ad.nansum, SMALL / 100),
    "nanmean": (ad.nanmean, SMALL * 10),
    "average": (lambda x: ad.average(x, weights=_zeros(x) + 2), SMALL * 10),
    "vector_norm": (ad.linalg.vector_norm, LARGE),
    "dot": (lambda x: ad.dot(x, x), SMALL / 20),
    "matmul": (lambda x: x.reshape(1, -1) @ x.reshape(-1, 1), SMALL / 20),
    "einsum": (lambda x: ad.einsum("i,i->", x, x), SMALL / 20),
    "np.trapezoid": (np.trapezoid, SMALL / 10),
    "np.mean where": (lambda x: np.mean(x, where=np.arange(MANY) % 2 == 0), SMALL * 10),
    "np.cov": (np.cov, SMALL),
    "mse_loss": (lambda x: F.mse_loss(x, _zeros(x)), np.r_[np.full(10, 300.0), np.zeros(MANY)]),
    "l1_loss": (lambda x: F.l1_loss(x, _zeros(x)), SMALL * 10),
    "bce with logits": (lambda x: F.binary_cross_entropy_with_logits(x, _zeros(x) + 1), SMALL),
    "cross_entropy": (lambda x: F.cross_entropy(x, LABELS), SCORES),
    "cross_entropy of many classes": (lambda x: F.cross_entropy(x, np.array([3])), SMALL[None]),
    "cross_entropy with ignored": (lambda x: F.cross_entropy(x, LABELS, ignore_index=2), SCORES),
    "cross_entropy with weights": (lambda x: F.cross_entropy(x, LABELS, weight=np.arange(1.0, 6)), SCORES),
    "cross_entropy smoothed": (lambda x: F.cross_entropy(x, np.array([3]), label_smoothing=0.1), SMALL[None]),
    "nll_loss with weights": (lambda x: F.nll_loss(x, LABELS, weight=np.arange(1.0, 6)), -abs(SCORES)),
    "kl_div": (lambda x: F.kl_div(x, _zeros(x) + 0.875, reduction="batchmean"), -SMALL * 3),
    "cosine_similarity": (lambda x: F.cosine_similarity(x, _zeros(x) + 1, axis=0), LARGE),
    "normalize": (lambda x: F.normalize(x, axis=0), LARGE),
    "layer_norm": (lambda x: F.layer_norm(x, (100,)), LARGE),
    "rms_norm": (lambda x: F.rms_norm(x, (100,)), LARGE),
    "batch_norm": (lambda x: F.batch_norm(x.reshape(-1, 7), training=True), SMALL),
    "avg_pool1d": (lambda x: F.avg_pool1d(x.reshape(1, 1, -1), 3000), SMALL * 100),
    "overlapping avg_pool1d": (lambda x: F.avg_pool1d(x.reshape(1, 1, -1), 500, 1), SMALL[:2000]),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x.reshape(1, 1, -1), 3), SMALL * 100),
    "overlapping max_pool1d": (lambda x: F.max_pool1d(x.reshape(1, 1, -1), 500, 1), SMALL[:2000]),
    "windows": (lambda x: ad.sliding_window_view(x, 500), SMALL[:1000]),
    "conv1d": (lambda x: F.conv1d(x.reshape(1, 7, -1), x.detach().reshape(1, 7, -1)[:, :, :50]), SMALL),
    "take": (lambda x: ad.take(x, FIRST), FEW),
    "x[i]": (lambda x: x[FIRST], FEW),
    "take_along_axis": (lambda x: ad.take_along_axis(x, FIRST), FEW),
    "x.at[i].add": (lambda x: x.at[FIRST].add(0.1), FEW),
    "broadcast_to": (lambda x: ad.broadcast_to(x, (MANY, 5)), FEW),
    "many uses": (lambda x: ad.stack([x * 1 for _ in range(2000)]), FEW),
}  # fmt: skip


def _value_and_gradient(call: Any, x: Any, way: str) -> tuple[Any, Any]:
    t = ad.tensor(x[None] if way == "vmap" else x, requires_grad=True)
    y = ad.vmap(call)(t) if way == "vmap" else call(t)
    seed = np.random.default_rng(1).uniform(0.5, 1, y.shape).astype(np.float16).astype(y.dtype)
    (g,) = ad.gradients(y, [t], seed, create_graph=way == "create_graph")
    assert g is not None and y.dtype == g.dtype == x.dtype
    return y.detach().numpy(), np.asarray(g.detach())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("way", ["plain", "create_graph", "vmap"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", SUMS)
def test_sums_are_those_of_float32(name: str, dtype: Any, way: str) -> None:
    call, values = SUMS[name]
    x = values.astype(dtype)
    found = _value_and_gradient(call, x, way)
    expected = _value_and_gradient(call, x.astype(np.float32), way)
    limits = ml_dtypes.finfo(dtype)
    for y, e in zip(found, expected, strict=True):
        e = e.astype(dtype).astype(np.float64)
        scale = np.abs(e).max()
        tolerance = 5 * (scale * float(limits.eps) + float(limits.smallest_subnormal))
        assert np.isfinite(scale) and np.abs(y.astype(np.float64) - e).max() <= tolerance


def test_running_sums_do_not_stop_growing() -> None:
    for dtype in HALVES:
        x = np.full(10_000, 0.1, dtype)
        assert abs(float(ad.cumsum(x)[-1]) - 1000) < 4
        assert abs(float(ad.cumulative_sum(ad.tensor(x))[-1]) - 1000) < 4


CORNERS = np.array([np.nan, np.inf, -np.inf, 0.0, 1.5, -2.5, 0.25, 2.5, 0.5, -0.75, 3.0, np.nan])
ORDER: dict[str, Any] = {
    "sort": ad.sort,
    "sort, descending": lambda x: ad.sort(x, descending=True),
    "argsort": ad.argsort,
    "median": lambda x: ad.median(x.reshape(3, 4), axis=0),
    "quantile": lambda x: ad.quantile(x[1:-1], 0.5),
    "topk": lambda x: ad.topk(x, 2),
    "searchsorted": lambda x: ad.searchsorted(ad.sort(x), x),
    "unique": lambda x: ad.unique(x, return_inverse=True, return_counts=True),
    "unique_all": ad.unique_all,
    "round": ad.round,
    "round, digits": lambda x: ad.round(x, 1),
    "nan_to_num": lambda x: ad.nan_to_num(x, posinf=7.0, neginf=-7.0),
    "np.nan_to_num": lambda x: np.nan_to_num(x, nan=2.0, posinf=7.0, neginf=-7.0),
    "maximum": lambda x: ad.maximum(x, x[::-1]),
    "fmin": lambda x: ad.fmin(x, x[::-1]),
    "nanmax": ad.nanmax,
    "argmax": ad.argmax,
    "clip": lambda x: ad.clip(x, -1, None),
}


@pytest.mark.parametrize("name", ORDER)
def test_bfloat16_has_the_order_and_the_corners_of_float32(name: str) -> None:
    """NumPy sorts and tests bfloat16 as bytes that are no numbers, or leaves it as it is."""
    wanted = ORDER[name](ad.tensor(CORNERS, dtype=np.float32))
    found = ORDER[name](ad.tensor(CORNERS, dtype=BFLOAT16))
    several = isinstance(found, tuple)
    for w, f in zip(wanted if several else (wanted,), found if several else (found,), strict=True):
        expected = w.numpy().astype(BFLOAT16) if w.dtype.kind == "f" else w.numpy()
        np.testing.assert_array_equal(f.astype(np.float32).numpy(), expected.astype(np.float32))


def test_rounding_and_replaced_numbers_have_no_gradient_in_bfloat16() -> None:
    x = ad.tensor([1.3, np.nan, np.inf], dtype=BFLOAT16)
    assert ad.grad(lambda v: ad.round(v).sum())(x).tolist() == [0, 0, 0]
    assert ad.grad(lambda v: ad.nan_to_num(v).sum())(x).tolist() == [1, 0, 0]
    assert ad.isfinite(ad.nan_to_num(x)).all()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_scalars_are_computed_as_arrays_without_axes(dtype: Any) -> None:
    """Arithmetic on 0-d arrays makes NumPy scalars, on which rules call other ops."""
    different = []
    for case in (case for found in CASES.values() for case in found):
        halves = [
            a.astype(dtype) if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a for a in case.args
        ]
        scalars = [a[()] if isinstance(a, np.ndarray) else a for a in halves]
        if any(isinstance(a, np.ndarray) for a in scalars) or not any(hasattr(a, "dtype") for a in scalars):
            continue
        with np.errstate(all="ignore"):
            try:
                found = OPS[case.op].forward(*halves, **case.params)
            except (TypeError, ad.errors.AdjointError):
                continue
            other = OPS[case.op].forward(*scalars, **case.params)
        for x, y in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, other)), strict=True):
            if np.asarray(x).tobytes() != np.asarray(y).tobytes():
                different.append((case.op, x, y))
    assert different == []


MIXED: dict[str, Any] = {
    "add": ad.add, "atan2": ad.atan2, "hypot": ad.hypot, "kl_div": ad.special.kl_div,
    "gammainc": lambda x, y: ad.special.gammainc(x.detach(), y),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_float16_with_bfloat16_gives_float32_in_all_orders_and_modes(name: str) -> None:
    f = MIXED[name]
    x, y = ad.tensor(A[:3].astype(np.float16) ** 2), ad.tensor((A[1:] ** 2).astype(BFLOAT16))
    assert f(x, y).dtype == np.float32
    first = ad.grad(lambda x, y: f(x, y).sum(), 1)
    for g in (f, first, ad.grad(lambda x, y: (first(x, y).astype(np.float32) ** 2).sum(), 1)):
        wanted, found = g(x, y), ad.compile(g, backend="replay")(x, y)
        assert found.dtype == wanted.dtype and found.numpy().tobytes() == wanted.numpy().tobytes()
