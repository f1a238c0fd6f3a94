"""``adjoint.scipy.signal``: values against SciPy, derivatives to the second order, batches, errors."""

from __future__ import annotations

import numpy as np
import pytest
from on_tensors import on_tensors

import adjoint as ad
from adjoint.errors import ArgumentError, LostHistoryError, ShapeError
from adjoint.testing import gradcheck

ss = pytest.importorskip("scipy.signal")
S = on_tensors(ad.scipy.signal)

RNG = np.random.default_rng(7)
MODES = ["full", "same", "valid"]
SHAPES = [((7,), (3,)), ((3,), (7,)), ((5, 4), (2, 3)), ((2, 3), (5, 4)), ((3, 4, 3), (2, 2, 2))]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["convolve", "correlate", "fftconvolve"])
def test_convolutions(name, shapes, mode):
    ours, theirs = getattr(S, name), getattr(ss, name)
    x, y = (RNG.normal(size=shape) for shape in shapes)
    u, v = x + 1j * RNG.normal(size=x.shape), y + 1j * RNG.normal(size=y.shape)
    for a, b in ((x, y), (u, v), (x, v), (u, y), (x.astype(np.float32), y.astype(np.float32))):
        expected = theirs(a, b, mode)
        got = ours(a, b, mode)
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5 if a.dtype == np.float32 else 1e-12, atol=1e-6 if a.dtype == np.float32 else 1e-12)  # fmt: skip
    if name != "fftconvolve":
        for method in ("direct", "fft"):
            np.testing.assert_allclose(
                ours(x, y, mode, method).numpy(), theirs(x, y, mode, method), atol=1e-12
            )
        whole = np.arange(x.size).reshape(x.shape), np.arange(y.size).reshape(y.shape)
        got = ours(*whole, mode)
        assert got.dtype.kind == "i"
        np.testing.assert_array_equal(got.numpy(), theirs(*whole, mode, "direct"))
        assert gradcheck(lambda a, b: ours(a, b, mode, "direct"), [x, y], directions=2, order=2)
    assert gradcheck(lambda a, b: ours(a, b, mode), [u, v], directions=2)
    if name == "fftconvolve":
        assert gradcheck(lambda a, b: ours(a, b, mode), [x, y], directions=2, order=2)


def test_convolutions_under_transforms():
    x, y = RNG.normal(size=(3, 6)), RNG.normal(size=(3, 4))
    for name in ("convolve", "fftconvolve", "correlate"):
        f = getattr(S, name)
        rows = np.stack([f(a, b).numpy() for a, b in zip(x, y, strict=True)])
        np.testing.assert_allclose(ad.vmap(f)(x, y), rows, atol=1e-13)
        np.testing.assert_allclose(
            ad.vmap(f, in_axes=(0, None))(x, y[0])[1], f(x[1], y[0]).numpy(), atol=1e-13
        )
        np.testing.assert_allclose(ad.jvp(f, (x[0], y[0]), (x[1], y[1]))[1], (f(x[1], y[0]) + f(x[0], y[1])).numpy(), atol=1e-12)  # fmt: skip
        np.testing.assert_allclose(ad.compile(f)(x[0], y[0]), f(x[0], y[0]).numpy(), atol=1e-13)
    np.testing.assert_allclose(
        S.fftconvolve(x[:, None], y[None], axes=-1).numpy(),
        ss.fftconvolve(x[:, None], y[None], axes=-1),
        atol=1e-12,
    )
    long = RNG.normal(size=200)
    np.testing.assert_allclose(S.convolve(long, long).numpy(), ss.convolve(long, long), atol=1e-11)


FILTERS = [
    ([0.2, 0.3], [1.0]),
    ([1.0], [1.0, -0.5]),
    ([0.2, 0.3, 0.1], [2.0, -0.5]),
    ([0.2], [0.5, 0.1, -0.2, 0.05]),
    ([3.0], [2.0]),
]


@pytest.mark.parametrize(("b", "a"), FILTERS, ids=str)
def test_lfilter(b, a):
    b, a = np.array(b), np.array(a)
    order = max(len(a), len(b)) - 1
    for n in (1, 2, 9):
        x, zi = RNG.normal(size=(2, n)), RNG.normal(size=(2, order))
        np.testing.assert_allclose(S.lfilter(b, a, x).numpy(), ss.lfilter(b, a, x), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(
            S.lfilter(b, a, x.T, axis=0).numpy(), ss.lfilter(b, a, x.T, axis=0), atol=1e-14
        )
        for got, expected in zip(S.lfilter(b, a, x, zi=zi), ss.lfilter(b, a, x, zi=zi), strict=True):
            np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12, atol=1e-14)
        got = S.lfilter(b, a, x.T, axis=0, zi=zi.T)
        for y, e in zip(got, ss.lfilter(b, a, x.T, axis=0, zi=zi.T), strict=True):
            np.testing.assert_allclose(y.numpy(), e, rtol=1e-12, atol=1e-14)
        assert gradcheck(lambda b, a, x, z: S.lfilter(b, a, x, zi=z), [b, a, x, zi], directions=2, order=2)
    rows = ad.vmap(lambda a, x: S.lfilter(b, a, x))(np.stack([a, 1.1 * a]), x)
    np.testing.assert_allclose(rows[1], ss.lfilter(b, 1.1 * a, x[1]), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(ad.compile(S.lfilter)(b, a, x), ss.lfilter(b, a, x), rtol=1e-12, atol=1e-14)


STFTS = [
    {"nperseg": 8},
    {"nperseg": 8, "noverlap": 5, "window": "hamming"},
    {"nperseg": 7, "nfft": 12, "boundary": None, "padded": False},
    {"nperseg": 8, "detrend": "constant", "boundary": "even", "scaling": "psd", "fs": 10.0},
    {"nperseg": 6, "detrend": "linear", "boundary": "odd", "return_onesided": False},
    {"nperseg": 6, "boundary": "constant", "window": ("tukey", 0.4)},
    {"nperseg": 29},
]


@pytest.mark.parametrize("options", STFTS, ids=str)
def test_stft(options):
    x = RNG.normal(size=(2, 29))
    for signal, more in ((x, {}), (x.T, {"axis": 0}), (x[0], {})):
        got, expected = S.stft(signal, **options, **more), ss.stft(signal, **options, **more)
        for y, e in zip(got, expected, strict=True):
            np.testing.assert_allclose(np.asarray(y), e, rtol=1e-12, atol=1e-13)
    if options.get("return_onesided", True):
        z = x + 1j * x[::-1]
        with_both = {**options, "return_onesided": False}
        np.testing.assert_allclose(S.stft(z, **with_both)[2].numpy(), ss.stft(z, **with_both)[2], atol=1e-13)
    single = S.stft(x.astype(np.float32), **options)[2]
    assert single.dtype == ss.stft(x.astype(np.float32), **options)[2].dtype == np.complex64
    assert S.istft(single, nperseg=options.get("nperseg"), nfft=options.get("nfft"))[1].dtype in (
        np.float32,
        np.complex64,
    )
    f = lambda x: S.stft(x, **options)[2]
    assert gradcheck(f, [x[0]], directions=2, order=2)
    np.testing.assert_allclose(ad.vmap(f)(x), f(x).numpy(), atol=1e-13)
    np.testing.assert_allclose(ad.compile(f)(x), f(x).numpy(), atol=1e-13)


@pytest.mark.parametrize("options", [{}, {"nperseg": 8, "noverlap": 6}, {"nperseg": 7, "noverlap": 5, "window": "hamming"}, {"scaling": "psd", "fs": 4.0}], ids=str)  # fmt: skip
def test_istft(options):
    x = RNG.normal(size=(2, 32))
    forward = {"nperseg": 8, **options}
    _, _, z = ss.stft(x, **forward)
    _, expected = ss.istft(z, **options)
    np.testing.assert_allclose(S.istft(z, **options)[1].numpy(), expected, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(S.istft(z[0], **options)[0], ss.istft(z[0], **options)[0])
    moved = np.moveaxis(z, 0, 2)
    there = ss.istft(moved, **options, time_axis=1, freq_axis=0)[1]
    np.testing.assert_allclose(
        S.istft(moved, **options, time_axis=1, freq_axis=0)[1].numpy(), there, atol=1e-12
    )
    _, _, both = ss.stft(x, **forward, return_onesided=False)
    there = ss.istft(both, **options, input_onesided=False)[1]
    np.testing.assert_allclose(S.istft(both, **options, input_onesided=False)[1].numpy(), there, atol=1e-12)
    assert gradcheck(lambda z: S.istft(z, **options)[1], [z[0]], directions=2)
    back = lambda x: S.istft(S.stft(x, **forward)[2], **options)[1]
    np.testing.assert_allclose(back(x).numpy()[:, :32], x, atol=1e-12)
    assert gradcheck(back, [x[0]], directions=2, order=2)


def test_a_window_can_be_learned():
    x, w = RNG.normal(size=30), ss.get_window("hann", 8)
    np.testing.assert_allclose(S.stft(x, window=w)[2].numpy(), ss.stft(x, window=w, nperseg=8)[2], atol=1e-14)
    assert gradcheck(lambda w: ad.abs(S.stft(x, window=w + 0.1)[2]), [w], directions=2)


def test_mistakes():
    with pytest.raises(ShapeError, match="the same number of axes"):
        S.convolve([1.0], [[1.0]])
    with pytest.raises(ShapeError, match="at least as long as the other along every axis"):
        S.convolve(np.ones((2, 3)), np.ones((3, 2)), "valid")
    with pytest.raises(ArgumentError, match="mode must be"):
        S.correlate([1.0], [1.0], "some")
    with pytest.raises(ArgumentError, match="method must be"):
        S.convolve([1.0], [1.0], method="fast")
    with pytest.raises(ShapeError, match="must be vectors that are not empty"):
        S.lfilter([[1.0]], [1.0], [1.0])
    with pytest.raises(ShapeError, match="the initial state zi must have length 1"):
        S.lfilter([1.0, 2.0], [1.0], [1.0], zi=[1.0, 2.0])
    with pytest.raises(ArgumentError, match="noverlap must be less"):
        S.stft(np.ones(9), nperseg=4, noverlap=4)
    with pytest.raises(LostHistoryError):
        S.medfilt(ad.tensor([1.0, 2.0, 3.0], requires_grad=True))
    assert S.convolve(np.ones((0, 2)), np.ones((3, 2))).shape == (0, 0)


def test_signals_that_are_not_supported_are_said():
    with pytest.raises(ArgumentError) as caught:
        S.lfilter([1.0], [0.0, 0.5], np.ones(3))
    assert str(caught.value) == (
        "lfilter: the first coefficient of a must not be 0: the filter divides by it."
    )
    with pytest.raises(ShapeError) as empty:
        S.stft(np.zeros(0))
    assert str(empty.value) == "stft: the signal must not be empty."
