"""The losses of margins, distances, counts and label sequences against PyTorch: values and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_oracle_sampling import agree, normal

import adjoint as ad
from adjoint.nn import functional as F  # noqa: N812  as in PyTorch's pages

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle

T = torch.nn.functional
A, B, C = normal(4, 5), normal(4, 5, seed=1), normal(4, 5, seed=2)
SIGNS = np.random.default_rng(3).choice([-1.0, 1.0], (4, 5))
COUNTS = np.random.default_rng(4).integers(0, 5, (4, 5)).astype(float)
VARIANCES = np.random.default_rng(5).uniform(0, 2, (4, 5)) * (normal(4, 5, seed=6) > -1)
WEIGHT = np.random.default_rng(7).uniform(size=5)
LISTED = np.array([[3, 0, -1, 1, 1], [-1] * 5, [0, 1, 2, 3, 4], [2, 2, -1, 0, 0]])
CLASSES = np.array([0, 4, 2, 2])

# name: tensors, constants behind them, options
ROWS: list[tuple[str, tuple[Any, ...], tuple[Any, ...], dict[str, Any]]] = [
    ("margin_ranking_loss", (A, B), (SIGNS,), {"margin": 0.3}),
    ("hinge_embedding_loss", (A,), (SIGNS,), {"margin": 0.7}),
    ("soft_margin_loss", (A,), (SIGNS,), {}),
    ("cosine_embedding_loss", (A, B), (SIGNS[:, 0],), {"margin": 0.1}),
    ("cosine_embedding_loss", (A[0], B[0]), (SIGNS[0, 0],), {}),
    *(("triplet_margin_loss", (A, B, C), (), {"p": p, "swap": swap}) for p in (1, 2, 3) for swap in (True, False)),
    ("triplet_margin_with_distance_loss", (A, B, C), (), {"swap": True}),
    *(("multi_margin_loss", (A,), (CLASSES,), {"p": p, "margin": 0.8, "weight": WEIGHT}) for p in (1, 2)),
    ("multilabel_margin_loss", (A,), (LISTED,), {}),
    ("multilabel_margin_loss", (A[0],), (LISTED[0],), {}),
    ("multilabel_soft_margin_loss", (A,), ((SIGNS + 1) / 2,), {"weight": WEIGHT}),
    *(("gaussian_nll_loss", (A, B, v), (), {"full": True, "eps": 0.01}) for v in (VARIANCES, VARIANCES[:, :1])),
    ("poisson_nll_loss", (A,), (COUNTS,), {"full": True}),
    ("poisson_nll_loss", (abs(A),), (COUNTS,), {"log_input": False}),
]  # fmt: skip


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("name", "tensors", "constants", "options"), ROWS)
def test_losses(name, tensors, constants, options, reduction):
    theirs = {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    agree(
        lambda *xs: getattr(F, name)(*xs, *constants, **options, reduction=reduction),
        lambda *xs: getattr(T, name)(*xs, *map(torch.tensor, constants), **theirs, reduction=reduction),
        *tensors,
    )


LABELS = np.random.default_rng(8).integers(1, 6, (3, 4))
SEQUENCES = [
    (LABELS, [8, 7, 5], [4, 3, 0], 0),
    (LABELS[:, :1], [8, 1, 5], [1, 1, 1], 0),
    (np.concatenate([LABELS[0], LABELS[1, :3]]), [8, 7, 5], [4, 3, 0], 0),
    (LABELS % 5, [8, 3, 5], [4, 4, 2], 5),
]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("case", range(4))
def test_ctc(case, reduction):
    labels, steps, lengths, blank = SEQUENCES[case]
    options: dict[str, Any] = {"blank": blank, "reduction": reduction, "zero_infinity": True}
    agree(
        lambda x: F.ctc_loss(ad.log_softmax(x, -1), labels, steps, lengths, **options),
        lambda x: T.ctc_loss(
            torch.log_softmax(x, -1), *map(torch.tensor, (labels, steps, lengths)), **options
        ),
        normal(8, 3, 6),
    )


def test_ctc_of_an_impossible_sequence():
    x = ad.log_softmax(normal(2, 1, 6), -1)
    assert F.ctc_loss(x, [[1, 1]], [2], [2]).item() == np.inf  # a blank between equal labels is missing
    assert F.ctc_loss(x, [[1, 1]], [2], [2], zero_infinity=True).item() == 0


def test_pairwise_distance():
    agree(F.pairwise_distance, T.pairwise_distance, A, B)
    agree(lambda x: F.pairwise_distance(x, A), lambda x: T.pairwise_distance(x, torch.tensor(A)), A[0])
