"""Grouped reductions, scans, windows and sampling: every order, vmap, forward mode, compiled, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint.errors import ArgumentError, DTypeError, IndexingError, ShapeError
from adjoint.nn import functional as F  # noqa: N812  as in PyTorch's pages
from adjoint.testing import gradcheck


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


INDEX = np.array([[0, 2, 0], [1, 1, 1]])
STEPS = np.array([[1, 2], [2, 1]])
GRID = np.array([[-0.31, 0.4], [0.9, -1.2], [0.17, 0.63]]).reshape(1, 1, 3, 2)

# Functions of one array, and the array
ROWS: dict[str, tuple[Any, Any]] = {
    **{
        f"scatter {how}": (lambda v, how=how: ad.scatter_reduce(normal(2, 4, seed=1), 1, INDEX, v, how), normal(2, 3))
        for how in ("sum", "mean", "prod", "amax", "amin")
    },
    "segments": (lambda v: ad.segment_reduce(v, "mean", lengths=[2, 0, 3], initial=0.0), normal(5, 2)),
    "largest of segments": (lambda v: ad.segment_reduce(v, "max", lengths=[2, 3], axis=1), normal(2, 5)),
    "soft_histogram": (lambda v: ad.soft_histogram(v, 4, (-2.0, 2.0), density=True)[0], normal(9)),
    "cummax": (lambda v: ad.cummax(v, 0).values, normal(4, 2)),
    "logcumsumexp": (lambda v: ad.logcumsumexp(v, 1), normal(2, 5)),
    "combinations": (lambda v: ad.combinations(v, 2).prod(1), normal(4)),
    "block_diag": (lambda v: ad.block_diag(v, v[0]), normal(2, 3)),
    "unfold": (lambda v: F.unfold(v, 2, padding=1, stride=2), normal(1, 2, 3, 4)),
    "fold": (lambda v: F.fold(v, (3, 4), 2), normal(1, 8, 6)),
    "adaptive_max_pool": (lambda v: F.adaptive_max_pool2d(v, 2), normal(1, 2, 3, 5)),
    "max_unpool": (lambda v: F.max_unpool1d(v, [[[1, 2]]], 2), normal(1, 1, 2)),
    "grid_sample": (lambda v: F.grid_sample(v, GRID), normal(1, 2, 3, 4)),
    "grid": (lambda v: F.grid_sample(normal(1, 2, 3, 4), v, mode="bicubic"), GRID),
    "ctc": (lambda v: F.ctc_loss(ad.log_softmax(v, -1), STEPS, [4, 3], [2, 1], reduction="none"), normal(4, 2, 3)),
    "triplet": (lambda v: F.triplet_margin_loss(v, v[::-1] * 2, v + 1, reduction="none"), normal(3, 2)),
    "multi_margin": (lambda v: F.multi_margin_loss(v, [0, 2], reduction="none"), normal(2, 3)),
    "multilabel": (lambda v: F.multilabel_margin_loss(v, [[2, -1, 0], [1, 0, -1]], "none"), normal(2, 3)),
    "gaussian": (lambda v: F.gaussian_nll_loss(v, v * v, 1 + v * v, reduction="none"), normal(2, 3)),
    "hfftn": (lambda v: ad.fft.hfftn(v), normal(2, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_every_order_and_transform(name):
    f, x = ROWS[name]
    assert gradcheck(f, [x], order=2)
    y, push = ad.jvp(f, (x,), (np.cos(x),))
    seed = np.sin(np.arange(np.size(y))).reshape(np.shape(y))
    _, pull = ad.vjp(f, x)
    (back,) = pull(seed)
    assert np.isclose(np.sum(push * seed), np.sum(np.cos(x) * back))
    np.testing.assert_allclose(ad.compile(f)(x), y, atol=1e-12)
    batch = np.stack([x, np.roll(x, 1, -1)])
    np.testing.assert_allclose(ad.vmap(f)(batch), np.stack([f(b).numpy() for b in batch]), atol=1e-12)


# without those that have a constant of float64, and the complex one
SAME_DTYPE = [n for n in ROWS if not n.startswith(("grid", "scatter", "hfft"))]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("name", SAME_DTYPE)
def test_dtypes_stay(name, dtype):
    f, x = ROWS[name]
    t = ad.tensor(x.astype(dtype), requires_grad=True)
    y = f(t)
    assert y.dtype == dtype
    assert ad.gradients(y.sum(), [t])[0].dtype == dtype


def test_products_at_zeros_are_exact():
    """The gradient of a product is the product of the others, with two zeros, too."""
    v = np.array([2.0, 0.0, 0.0, 5.0])
    h = ad.hessian(lambda v: ad.scatter_reduce(ad.ones(1), 0, [0, 0, 0, 0], v, "prod").sum())(v)
    assert h[1, 2] == 10


def test_ties_share():
    x = ad.tensor([1.0, 1.0, 0.0], requires_grad=True)
    ad.scatter_reduce(ad.tensor([1.0]), 0, [0, 0, 0], x, "amax").sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [1 / 3, 1 / 3, 0])  # type: ignore[union-attr]


def test_a_soft_histogram_counts_each_element_once():
    x = normal(100)
    counts, edges = ad.soft_histogram(x, 7)
    assert counts.sum().item() == pytest.approx(100)
    assert edges.numpy()[[0, -1]].tolist() == [x.min(), x.max()]
    assert ad.soft_histogram(x, 3, (0.0, 1.0))[0].sum().item() == ((x >= 0) & (x <= 1)).sum()
    assert ad.soft_histogram([], 2)[0].tolist() == [0, 0]
    assert ad.soft_histogram([3.0], 1)[0].tolist() == [1]


def test_extremes_of_empty_and_infinite():
    assert ad.logcumsumexp([-np.inf, -np.inf, 0.0]).tolist() == [-np.inf, -np.inf, 0]
    x = ad.tensor([-np.inf, 1000.0, -1000.0, np.inf], requires_grad=True)
    (g,) = ad.gradients(ad.logcumsumexp(x)[:3].sum(), [x])
    assert g.tolist() == [1, 2, 0, 0]
    assert ad.logcumsumexp(np.zeros((0, 3)), 1).shape == (0, 3)
    assert ad.cummax(np.zeros((2, 0))).values.shape == (2, 0)
    assert ad.segment_reduce(ad.zeros(0), "max", lengths=[0, 0]).tolist() == [-np.inf, -np.inf]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: ad.scatter_reduce([1.0], 0, [1], [2.0], "sum"), IndexingError, "index 1 is out of range"),
        (lambda: ad.scatter_reduce([1.0], 0, [0], [2.0], "max_"), ArgumentError, "not 'max_'"),
        (lambda: ad.scatter_reduce([1.0], 0, [0, 0], [2.0], "sum"), ShapeError, "their shapes are (1,), (2,) and (1,)"),
        (lambda: ad.segment_reduce([1.0], "sum", lengths=[2]), ShapeError, "lengths [2] for an axis of length 1"),
        (lambda: ad.segment_reduce([1.0], "sum"), ArgumentError, "one of lengths= and offsets="),
        (lambda: ad.logcumsumexp([1j]), DTypeError, "x must be real"),
        (lambda: ad.combinations([[1.0]]), ShapeError, "must be a vector"),
        (lambda: F.max_unpool1d([[[1.0]]], [[[5]]], 2), IndexingError, "output_size"),
        (lambda: F.unfold(np.ones((1, 1, 2, 2)), 3), ShapeError, "larger than the padded image"),
        (lambda: F.fold(np.ones((1, 3, 4)), 3, 2), ShapeError, "(N, C·4, 4)"),
        (lambda: F.grid_sample(np.ones((1, 1, 2, 2)), np.ones((1, 1, 1, 3))), ShapeError, "the grid must have shape"),
        (lambda: F.max_unpool1d(np.ones((1, 1, 2)), [[[-3, 1]]], 2), IndexingError, "index -3 is out of range for 4"),
        (lambda: F.ctc_loss(np.zeros((2, 1, 3)), [[3]], [2], [1]), IndexingError, "label 3 is out of range"),
        (lambda: F.ctc_loss(np.zeros((2, 1, 3)), [[1]], [4], [1]), ShapeError, "input_lengths must be"),
        (lambda: F.triplet_margin_loss([1.0], [1.0], [1.0], 0), ArgumentError, "margin must be positive"),
        (lambda: F.gaussian_nll_loss([1.0], [1.0], [-1.0]), ArgumentError, "must not be negative"),
        (lambda: ad.soft_histogram([1.0], 0), ArgumentError, "bins must be at least 1"),
    ],
)  # fmt: skip
def test_errors(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)
