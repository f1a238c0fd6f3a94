"""Pooling, windows, sampling, grouped reductions and scans against PyTorch: values and gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint.nn import functional as F  # noqa: N812  as in PyTorch's pages

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle


def agree(ours: Callable[..., Any], theirs: Callable[..., Any], *arrays: Any) -> None:
    """Compare values and gradients of all arguments, for a random gradient of the result."""
    xs = [ad.tensor(a, requires_grad=True) for a in arrays]
    ts = [torch.tensor(a, requires_grad=True) for a in arrays]
    y, t = ours(*xs), theirs(*ts)
    np.testing.assert_allclose(y.numpy(), t.detach().numpy(), atol=1e-10)
    seed = np.random.default_rng(1).normal(size=y.shape)
    y.backward(seed)
    t.backward(torch.tensor(seed))
    for x, u in zip(xs, ts, strict=True):
        np.testing.assert_allclose(x.grad.numpy(), u.grad.numpy(), atol=1e-9)  # type: ignore[union-attr]


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode, padding, aligned):
    def theirs(x: Any, grid: Any) -> Any:
        return torch.nn.functional.grid_sample(x, grid, mode, padding, aligned)

    def ours(x: Any, grid: Any) -> Any:
        return F.grid_sample(x, grid, mode, padding, aligned)

    agree(ours, theirs, normal(2, 3, 4, 5), normal(2, 3, 6, 2, seed=2))
    if mode != "bicubic":
        agree(ours, theirs, normal(2, 3, 4, 5, 3), normal(2, 3, 6, 2, 3, seed=2))


@pytest.mark.parametrize("aligned", [True, False])
def test_affine_grid(aligned):
    for size, theta in (((2, 1, 4, 5), normal(2, 2, 3)), ((2, 1, 4, 5, 2), normal(2, 3, 4))):
        agree(
            lambda t, size=size: F.affine_grid(t, size, aligned),
            lambda t, size=size: torch.nn.functional.affine_grid(t, size, aligned),
            theta,
        )


@pytest.mark.parametrize("at", [(2, 1, 0, 1), ((2, 3), (1, 2), (1, 0), (2, 1)), (3, 1, 1, 2)])
def test_unfold_and_fold(at):
    theirs = torch.nn.functional
    agree(lambda x: F.unfold(x, *at), lambda x: theirs.unfold(x, *at), normal(2, 3, 7, 6))
    columns = F.unfold(normal(2, 3, 7, 6), *at).numpy()
    agree(lambda x: F.fold(x, (7, 6), *at), lambda x: theirs.fold(x, (7, 6), *at), columns)


@pytest.mark.parametrize("nd", [1, 2, 3])
def test_maxima_and_their_positions(nd):
    x = normal(2, 3, *(7, 6, 5)[:nd])
    ours, theirs = getattr(F, f"max_pool{nd}d_with_indices"), getattr(torch.nn.functional, f"max_pool{nd}d")
    for at in [(2,), (3, 2, 1), (3, 2, 1, 1, True), (2, 1, 0, 2)]:
        agree(lambda v, at=at: ours(v, *at).values, lambda v, at=at: theirs(v, *at), x)
        places = theirs(torch.tensor(x), *at, return_indices=True)[1].numpy()
        np.testing.assert_array_equal(ours(x, *at).indices.numpy(), places)
    values, places = ours(x, 2)
    unpool, their_unpool = (getattr(space, f"max_unpool{nd}d") for space in (F, torch.nn.functional))
    agree(
        lambda v: unpool(v, places, 2, output_size=x.shape[-nd:]),
        lambda v: their_unpool(v, torch.tensor(places.numpy()), 2, output_size=x.shape[-nd:]),
        values.numpy(),
    )


@pytest.mark.parametrize("nd", [1, 2, 3])
def test_adaptive_maxima(nd):
    x = normal(2, 3, *(7, 6, 5)[:nd])
    name = f"adaptive_max_pool{nd}d"
    for size in (1, 2, 4, 5):
        theirs = getattr(torch.nn.functional, name)
        agree(lambda v, size=size: getattr(F, name)(v, size), lambda v, size=size: theirs(v, size), x)  # noqa: B023
        places = theirs(torch.tensor(x), size, return_indices=True)[1].numpy()
        np.testing.assert_array_equal(getattr(F, f"{name}_with_indices")(x, size).indices.numpy(), places)


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce(reduce, include_self):
    x, v = normal(4, 5), normal(3, 4, seed=1)
    v[0, 0] = 0
    for axis, most in ((0, 4), (1, 5)):
        index = np.random.default_rng(2).integers(0, most, (3, 4))
        agree(
            lambda a, b: ad.scatter_reduce(a, axis, index, b, reduce, include_self=include_self),  # noqa: B023
            lambda a, b: torch.scatter_reduce(
                a, axis, torch.tensor(index), b, reduce, include_self=include_self  # noqa: B023
            ),
            x,
            v,
        )  # fmt: skip


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "max", "min"])
def test_segment_reduce(reduce):
    for lengths, initial in (([3, 0, 2], 2.0), ([3, 2], None), ([0, 5], None)):
        agree(
            lambda a: ad.segment_reduce(a, reduce, lengths=lengths, initial=initial),  # noqa: B023
            lambda a: torch.segment_reduce(a, reduce, lengths=torch.tensor(lengths), initial=initial),  # noqa: B023
            normal(5, 3),
        )


@pytest.mark.parametrize("name", ["cummax", "cummin", "logcumsumexp"])
def test_scans(name):
    x = np.random.default_rng(0).integers(0, 4, (4, 6)).astype(float)

    def first(y: Any) -> Any:
        return y[0] if isinstance(y, tuple) else y

    for axis in (0, 1):
        agree(
            lambda v: first(getattr(ad, name)(v, axis)),  # noqa: B023
            lambda v: first(getattr(torch, name)(v, axis)),  # noqa: B023
            x,
        )


def test_positions_of_running_extremes():
    x = np.array([1.0, 2.0, 2.0, np.nan, 3.0, np.nan])
    for name in ("cummax", "cummin"):
        places = getattr(torch, name)(torch.tensor(x), 0)[1].numpy()
        np.testing.assert_array_equal(getattr(ad, name)(x).indices.numpy(), places)


def test_combinations_and_blocks():
    for r, again in itertools.product((1, 2, 3), (True, False)):
        agree(
            lambda v: ad.combinations(v, r, again),  # noqa: B023
            lambda v: torch.combinations(v, r, again),  # noqa: B023
            normal(4),
        )
    agree(ad.block_diag, torch.block_diag, normal(2, 3), normal(1, 2), normal(3))


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_hermitian_transforms(norm):
    z = normal(3, 5) + 1j * normal(3, 5, seed=1)
    for name, x in (("hfft2", z), ("hfftn", z), ("ihfft2", normal(3, 5)), ("ihfftn", normal(3, 5))):
        ours, theirs = (
            getattr(ad.fft, name)(x, norm=norm),
            getattr(torch.fft, name)(torch.tensor(x), norm=norm),
        )
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-12)


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (2, 4, 4)])
def test_lu(shape):
    a = normal(*shape)
    for ours, theirs in zip(ad.linalg.lu(a), torch.linalg.lu(torch.tensor(a)), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-12)
    for k in (1, 2):
        agree(lambda v: ad.linalg.lu(v)[k], lambda v: torch.linalg.lu(v)[k], a)  # noqa: B023
