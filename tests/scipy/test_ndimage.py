"""``adjoint.scipy.ndimage``: values against SciPy, derivatives to the second order, batches, errors."""

from __future__ import annotations

import numpy as np
import pytest
from on_tensors import on_tensors

import adjoint as ad
from adjoint.errors import ArgumentError, InputError, LostHistoryError, ShapeError
from adjoint.testing import gradcheck

sn = pytest.importorskip("scipy.ndimage")
N = on_tensors(ad.scipy.ndimage)

RNG = np.random.default_rng(17)
X = RNG.normal(size=(5, 4))
MODES = ["reflect", "mirror", "nearest", "wrap", "constant", "grid-mirror", "grid-wrap", "grid-constant"]
close = lambda a, b: np.testing.assert_allclose(ad.asarray(a).numpy(), b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_filters(mode):
    for w in (np.array([0.2, 0.5, 0.4]), np.array([1.0, -0.5]), np.ones(1), RNG.normal(size=13)):
        for axis in (0, -1):
            for name in ("correlate1d", "convolve1d"):
                close(
                    getattr(N, name)(X, w, axis, mode=mode, cval=0.7),
                    getattr(sn, name)(X, w, axis, mode=mode, cval=0.7),
                )
    for origin in (-1, 1):
        w = np.array([0.2, 0.5, 0.4])
        close(N.correlate1d(X, w, mode=mode, origin=origin), sn.correlate1d(X, w, mode=mode, origin=origin))
        close(N.convolve1d(X, w, mode=mode, origin=origin), sn.convolve1d(X, w, mode=mode, origin=origin))
    for sigma, order in ((0.8, 0), (1.5, 1), ((0.5, 1.2), (0, 2)), (0.6, 3)):
        close(N.gaussian_filter(X, sigma, order, mode=mode), sn.gaussian_filter(X, sigma, order, mode=mode))
    f = lambda x, s: N.gaussian_filter(x, s, (1, 0), mode=mode, truncate=3.0)
    assert gradcheck(f, [X, np.array([0.8, 1.1])], directions=2, order=2)
    assert gradcheck(lambda x, w: N.correlate1d(x, w, 0, mode=mode), [X, np.ones(3)], directions=2, order=2)


def test_filters_under_transforms():
    stack = RNG.normal(size=(3, 5, 4))
    f = lambda x: N.gaussian_filter(x, 0.9)
    expected = [sn.gaussian_filter(x, 0.9) for x in stack]
    close(ad.vmap(f)(stack), expected)
    close(ad.compile(f)(stack[0]), expected[0])
    close(ad.jvp(f, (stack[0],), (stack[1],))[1], expected[1])
    rows = ad.vmap(lambda x, s: N.gaussian_filter(x, s, radius=3))(stack[:2], np.array([0.9, 0.5]))
    close(rows[1], sn.gaussian_filter(stack[1], 0.5, radius=3))
    with pytest.raises(InputError, match=r"radius= .* is required"):
        ad.vmap(lambda x, s: N.gaussian_filter(x, s))(stack[:2], np.array([0.9, 0.5]))
    close(N.gaussian_filter(stack, 1.0, axes=(1, 2)), sn.gaussian_filter(stack, 1.0, axes=(1, 2)))
    close(
        N.gaussian_filter(stack, (0.0, 1.0, 0.5), truncate=2.0),
        sn.gaussian_filter(stack, (0.0, 1.0, 0.5), truncate=2.0),
    )
    assert N.gaussian_filter(X.astype(np.float32), 1.0).dtype == np.float32


@pytest.mark.parametrize("order", range(6))
@pytest.mark.parametrize("mode", [m for m in MODES if m != "wrap"])
def test_map_coordinates(mode, order):
    inside = np.stack([RNG.uniform(0, 4, (2, 6)), RNG.uniform(0, 3, (2, 6))])
    beyond = np.stack([RNG.uniform(-7, 12, 60), RNG.uniform(-6, 9, 60)])
    for at in (inside, beyond):
        options = {"order": order, "mode": mode, "cval": 0.3}
        close(N.map_coordinates(X, at, **options), sn.map_coordinates(X, at, **options))
    close(
        N.map_coordinates(X, inside, order=order, prefilter=False),
        sn.map_coordinates(X, inside, order=order, prefilter=False),
    )
    f = lambda x, at: N.map_coordinates(x, at, order=order, mode=mode)
    assert gradcheck(f, [X, inside], directions=2, order=2 if order > 2 else 1, rtol=1e-4)
    line = np.array([[0.2, 1.7, 4.9]])
    close(
        N.map_coordinates(X[0], line, order=order, mode=mode),
        sn.map_coordinates(X[0], line, order=order, mode=mode),
    )


def test_map_coordinates_under_transforms():
    at = np.stack([RNG.uniform(0, 4, (3, 6)), RNG.uniform(0, 3, (3, 6))], 1)
    f = lambda x, at: N.map_coordinates(x, at, order=1, mode="reflect")
    rows = ad.vmap(f, in_axes=(None, 0))(X, at)
    close(rows[2], sn.map_coordinates(X, at[2], order=1, mode="reflect"))
    both = ad.vmap(f)(np.stack([X, X + 1, 2 * X]), at)
    close(both[2], sn.map_coordinates(2 * X, at[2], order=1, mode="reflect"))
    close(ad.compile(f)(X, at[0]), rows[0])
    for order in (2, 3, 4, 5):
        close(N.spline_filter(X, order), sn.spline_filter(X, order))
        close(N.spline_filter1d(X, order, 0, mode="reflect"), sn.spline_filter1d(X, order, 0, mode="reflect"))


def test_mistakes():
    with pytest.raises(ArgumentError, match="mode must be one of reflect"):
        N.correlate1d(X, [1.0], mode="around")
    with pytest.raises(ArgumentError, match="sigma must be one number, or 2 values"):
        N.gaussian_filter(X, (1.0, 1.0, 1.0))
    with pytest.raises(ArgumentError, match="the origin must be from -1 to 0 for 2 weights, but is 5"):
        N.correlate1d(X, [1.0, 2.0], origin=5)
    with pytest.raises(ShapeError, match="one coordinate per axis of the image"):
        N.map_coordinates(X, [[1.0]])
    with pytest.raises(ArgumentError, match="order must be an integer from 0 to 5"):
        N.map_coordinates(X, np.ones((2, 1)), order=6)
    with pytest.raises(InputError, match="output must be a dtype, not an array"):
        N.gaussian_filter(X, 1.0, output=np.zeros((5, 4)))
    with pytest.raises(LostHistoryError):
        N.median_filter(ad.tensor(X, requires_grad=True), 3)
