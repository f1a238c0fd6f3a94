"""Half precision: results and gradients keep it, computed in float32 and rounded once; bfloat16 as float16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from table import CASES

import adjoint as ad
from adjoint import nn
from adjoint.core.namespace import rec
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
