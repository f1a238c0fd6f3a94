"""Functions of signals, images, curves and distances with random parameters: SciPy's values, exact gradients.

Each case draws sizes, options and the scale of its data, from 1e-8 to 1e8, from a seed.
"""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import adjoint as ad
from adjoint.testing import gradcheck

pytest.importorskip("scipy")

EDGES = ["reflect", "constant", "nearest", "mirror", "wrap"]


def pick(rng, *choices):
    return choices[rng.integers(len(choices))]


def image(rng):
    return rng.normal(size=tuple(rng.integers(4, 7, rng.integers(1, 3))))


def convolved(name):
    def draw(rng):
        x, y = rng.normal(size=rng.integers(1, 9)), rng.normal(size=rng.integers(1, 9))
        return (x, y), {"mode": pick(rng, "full", "same", "valid")}

    return f"signal.{name}", draw


def filtered(rng):
    b, a = (
        rng.normal(size=rng.integers(1, 4)),
        np.r_[pick(rng, 1.0, -2.0), 0.3 * rng.normal(size=rng.integers(0, 3))],
    )
    x = rng.normal(size=(2, 7))
    return (b, a, x), {"axis": pick(rng, 0, -1)}


def spectrum(rng):
    n = int(rng.integers(4, 9))
    options = {
        "nperseg": n,
        "noverlap": int(rng.integers(0, n)),
        "window": pick(rng, "hann", "hamming", "boxcar"),
    }
    return (rng.normal(size=30),), {
        **options,
        "boundary": pick(rng, "zeros", "even", None),
        "padded": pick(rng, True, False),
    }


def gaussian(name):
    def draw(rng):
        options = {"mode": pick(rng, *EDGES), "order": pick(rng, 0, 1, 2), "truncate": pick(rng, 2.0, 4.0)}
        return (image(rng), float(rng.uniform(0.3, 2.5))), options

    return f"ndimage.{name}", draw


def coordinates(rng):
    x = rng.normal(size=(5, 6))
    at = rng.uniform(-2, 8, size=(2, 7))
    return (x, at), {
        "order": pick(rng, 1, 2, 3),
        "mode": pick(rng, "reflect", "constant", "nearest", "mirror"),
        "cval": 0.5,
    }


def spline(kind):
    def draw(rng):
        n = int(rng.integers(4, 9))
        x = np.sort(rng.uniform(-3, 3, n)) + 0.2 * np.arange(n)
        return (x, rng.normal(size=n), rng.uniform(x[0], x[-1], 5)), {}

    return f"interpolate.{kind}", draw


def pieces(rng):
    x = np.sort(rng.uniform(-2, 2, 4)) + 0.2 * np.arange(4)
    return (rng.normal(size=(int(rng.integers(1, 5)), 3)), x, rng.uniform(x[0], x[-1], 5)), {}


def grid(rng):
    axes = tuple(np.sort(rng.uniform(0, 4, n)) + 0.3 * np.arange(n) for n in (4, 5))
    points = np.stack([rng.uniform(a[0], a[-1], 6) for a in axes], -1)
    return (axes, rng.normal(size=(4, 5)), points), {}


def distances(name):
    def draw(rng):
        metric = pick(rng, "euclidean", "sqeuclidean", "cityblock", "cosine", "correlation", "chebyshev")
        x, y = rng.normal(size=(3, 4)), rng.normal(size=(2, 4))
        return ((x,) if name == "pdist" else (x, y)), {"metric": metric}

    return f"spatial.distance.{name}", draw


CASES = dict(
    [
        *(convolved(n) for n in ("convolve", "correlate", "fftconvolve")),
        ("signal.lfilter", filtered),
        ("signal.stft", spectrum),
        gaussian("gaussian_filter"),
        gaussian("gaussian_filter1d"),
        ("ndimage.map_coordinates", coordinates),
        *(spline(n) for n in ("CubicSpline", "PchipInterpolator", "interp1d", "make_interp_spline")),
        ("interpolate.PPoly", pieces),
        ("interpolate.interpn", grid),
        *(distances(n) for n in ("cdist", "pdist")),
    ]
)
ENDS = {"signal.stft": lambda found: found[2]}  # which result is compared


def call(space, path, args, options):
    """Call a function; classes of curves are evaluated at the last argument."""
    function = importlib.import_module(space)
    for part in path.split("."):
        function = getattr(function, part)
    is_curve = path.startswith("interpolate.") and path != "interpolate.interpn"
    found = function(*args[:-1], **options)(args[-1]) if is_curve else function(*args, **options)
    return ENDS.get(path, lambda y: y)(found)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("path", CASES)
def test_values_and_gradients(path, seed):
    rng = np.random.default_rng([seed, len(path)])
    args, options = CASES[path](rng)
    scale = 10.0 ** rng.integers(-8, 9)
    place = {"interpolate.PPoly": 0, "signal.lfilter": 2}.get(
        path, 1 if path.startswith("interpolate") else 0
    )
    scaled = [a * scale if i == place else a for i, a in enumerate(args)]
    expected = call("scipy", path, scaled, options)
    got = call(
        "adjoint.scipy", path, [ad.asarray(a) if isinstance(a, np.ndarray) else a for a in scaled], options
    )
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-8, atol=1e-9 * np.abs(expected).max(initial=0))
    smooth = [i for i, a in enumerate(args) if isinstance(a, np.ndarray)]

    def f(*values):
        given = list(args)
        for i, value in zip(smooth, values, strict=True):
            given[i] = value
        return call("adjoint.scipy", path, given, options)

    assert gradcheck(f, [args[i] for i in smooth], directions=1, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["j0", "j1", "y0", "y1", "k0", "k1", "k0e", "k1e", "i0", "i1", "i0e", "i1e"])
def test_bessel_functions_of_fixed_order(name):
    special = importlib.import_module("scipy.special")
    x = np.array([1e-6, 0.03, 0.7, 2.4, 8.0, 31.0, 110.0])
    np.testing.assert_allclose(
        getattr(ad.scipy.special, name)(ad.tensor(x)), getattr(special, name)(x), rtol=1e-13
    )
    slopes = {
        "j0": lambda x: -special.j1(x), "j1": lambda x: special.jvp(1, x), "y0": lambda x: -special.y1(x),
        "y1": lambda x: special.yvp(1, x), "k0": lambda x: -special.k1(x), "k1": lambda x: special.kvp(1, x),
        "k0e": lambda x: special.k0e(x) - special.k1e(x),
        "k1e": lambda x: special.k1e(x) - special.k0e(x) - special.k1e(x) / x,
        "i0": special.i1, "i1": lambda x: special.ivp(1, x), "i0e": lambda x: special.i1e(x) - special.i0e(x),
        "i1e": lambda x: special.i0e(x) - special.i1e(x) / x - special.i1e(x),
    }  # fmt: skip
    got = ad.elementwise_grad(getattr(ad.scipy.special, name))(x)
    np.testing.assert_allclose(got, slopes[name](x), rtol=1e-9, atol=1e-12)
