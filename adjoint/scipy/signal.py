"""``scipy.signal`` on tensors: convolutions, correlations, filters, spectrograms.

Names that are not in ``__all__`` are SciPy's own functions, which raise ``LostHistoryError`` for a tensor
that requires grad.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.docstrings import SharedDoc
from adjoint.core.namespace import rec
from adjoint.core.shapes import canonical_axis
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, ShapeError
from adjoint.ops import fft
from adjoint.ops.arrange import pad
from adjoint.ops.join import concat
from adjoint.ops.reduce import floating, sum
from adjoint.ops.shape import moveaxis
from adjoint.scipy.fallback import drop_ins, scipy_module, scipy_only
from adjoint.scipy.values import plain_values
from adjoint.typing import ArrayLike, Axis

__all__ = ["convolve", "correlate", "fftconvolve", "istft", "lfilter", "stft"]
__dir__ = sorted(__all__).copy


# Convolution ---------------------------------------------------------------------------------------

_DIRECT = 64  # up to this size of the smaller array, a direct sum is faster than Fourier transforms


def _pair(op: str, in1: Any, in2: Any) -> tuple[Tensor, Tensor]:
    x, y = asarray(in1), asarray(in2)
    if x.ndim != y.ndim:
        raise ShapeError(
            f"{op}: both arrays must have the same number of axes, but have shapes {x.shape} and {y.shape}."
        )
    return x, y


def _swapped(op: str, mode: str, x: Tensor, y: Tensor, axes: tuple[int, ...]) -> bool:
    """Return whether x and y must be exchanged, because the mode is 'valid' and y is the longer one.

    Raise if ``mode`` is unknown, or if neither array is at least as long as the other along all ``axes``.
    """
    if mode not in ("full", "same", "valid"):
        raise ArgumentError(f"{op}: mode must be 'full', 'same' or 'valid', not {mode!r}.")
    if mode != "valid":
        return False
    if all(x.shape[a] >= y.shape[a] for a in axes):
        return False
    if all(y.shape[a] >= x.shape[a] for a in axes):
        return True
    raise ShapeError(
        f"{op}: in mode 'valid' one array must be at least as long as the other along every axis, but the "
        f"shapes are {x.shape} and {y.shape}."
    )


def _part(full: Tensor, mode: str, x: Tensor, y: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the part of ``full``, the full convolution of x and y, that ``mode`` selects."""
    if mode == "full":
        return full
    key = [slice(None)] * full.ndim
    for a in axes:
        size = x.shape[a] if mode == "same" else x.shape[a] - y.shape[a] + 1
        start = (full.shape[a] - size) // 2
        key[a] = slice(start, start + size)
    return full[tuple(key)]


def _summed(x: Tensor, y: Tensor) -> Tensor:
    """Return the full convolution of x and y, computed as a sum of products."""
    nd = x.ndim
    if "c" in (x.dtype.kind, y.dtype.kind):  # a complex convolution is four real ones
        (a, b), (c, d) = ((rec.real(t), rec.imag(t)) if t.dtype.kind == "c" else (t, None) for t in (x, y))
        real, imag = _summed(a, c), None
        if b is not None and d is not None:
            real = real - _summed(b, d)
        parts = [_summed(*pair) for pair in ((a, d), (b, c)) if None not in pair]
        imag = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        return real + 1j * imag
    dtype = np.result_type(x.dtype, y.dtype)
    x, y = (t if t.dtype == dtype else rec.astype(t, dtype=dtype) for t in (x, y))
    kernel = rec.flip(y, axis=tuple(range(-nd, 0)))
    ones = (1,) * nd
    found = rec.conv(
        x[None, None], kernel[None, None], stride=ones, dilation=ones, groups=1,
        padding=tuple((k - 1, k - 1) for k in y.shape),
    )  # fmt: skip
    return found[0, 0]


def _transformed(x: Tensor, y: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the full convolution of x and y along ``axes``, by Fourier transforms; other axes broadcast."""
    x, y = floating("fftconvolve", x), floating("fftconvolve", y)
    size = [x.shape[a] + y.shape[a] - 1 for a in axes]
    fast = [scipy_module("fft").next_fast_len(n, True) for n in size]
    if "c" in (x.dtype.kind, y.dtype.kind):
        z = fft.ifftn(fft.fftn(x, fast, axes) * fft.fftn(y, fast, axes), fast, axes)
    else:
        z = fft.irfftn(fft.rfftn(x, fast, axes) * fft.rfftn(y, fast, axes), fast, axes)
    key = [slice(None)] * z.ndim
    for a, n in zip(axes, size, strict=True):
        key[a] = slice(0, n)
    return z[tuple(key)]


_signal_doc = SharedDoc("""
    Parameters
    ----------
    in1 : array_like
        The first array.
    in2 : array_like
        The second array.
    mode : {"full", "same", "valid"}, optional
        The whole result, its central part with the shape of ``in1``, or only the part of complete overlaps.
    method : {"auto", "direct", "fft"}, optional
        Whether to add products or to multiply Fourier transforms; by default what is faster.
    x : array_like
        The signals.
    axis : int, optional
        The axis of time.
    fs : float, optional
        The sampling frequency.
    noverlap : int, optional
        The number of samples by which segments overlap; by default half of their length.
    window : str, tuple or array_like, optional
        SciPy's name of a window, or its values; gradients flow to a tensor.
    nperseg : int, optional
        The length of the segments, 256 by default.
    nfft : int, optional
        The length of the Fourier transforms; by default that of the segments.
    detrend : bool, str or callable, optional
        "constant" or "linear" to subtract the mean or a line from each segment.
    return_onesided : bool, optional
        Whether to return only half of the spectrum of real signals.
    boundary : str, optional
        How to extend the signals by half a segment: "zeros", "even", "odd", "constant"; None for none.
    padded : bool, optional
        Whether zeros are added at the end, so that segments cover the whole signal.
    scaling : {"spectrum", "psd"}, optional
        Whether magnitudes or power densities are preserved.
    Zxx : array_like
        The transforms.
    input_onesided : bool, optional
        Whether the spectra are those of real signals.
    time_axis : int, optional
        The axis of time.
    freq_axis : int, optional
        The axis of frequency.

    Returns
    -------
    Tensor
        The convolution.

    Raises
    ------
    ShapeError
        If the numbers of axes differ, or no array is the larger one in mode "valid".
    """)


@_signal_doc
def convolve(in1: ArrayLike, in2: ArrayLike, mode: str = "full", method: str = "auto") -> Tensor:
    """Convolve two arrays with the same number of axes.

    Raises
    ------
    ShapeError
        If the numbers of axes differ, or no array is the larger one in mode "valid".
    ArgumentError
        If the mode or the method is unknown.

    >>> ad.scipy.signal.convolve([1.0, 2.0, 3.0], [1.0, 1.0])
    array([1., 3., 5., 3.])
    """
    x, y = _pair("convolve", in1, in2)
    axes = tuple(range(x.ndim))
    if _swapped("convolve", mode, x, y, axes):
        x, y = y, x
    if method not in ("auto", "direct", "fft"):
        raise ArgumentError(f"convolve: method must be 'auto', 'direct' or 'fft', not {method!r}.")
    if x.ndim == 0:
        return x * y
    if not x.size or not y.size:
        return asarray(np.zeros((0,) * x.ndim, np.result_type(x.dtype, y.dtype)))
    if method == "auto":
        whole = x.dtype.kind not in "fc" and y.dtype.kind not in "fc"
        method = "direct" if whole or min(x.size, y.size) <= _DIRECT else "fft"
    full = _summed(x, y) if method == "direct" else _transformed(x, y, axes)
    return _part(full, mode, x, y, axes)


@_signal_doc
def correlate(in1: ArrayLike, in2: ArrayLike, mode: str = "full", method: str = "auto") -> Tensor:
    """Correlate two arrays with the same number of axes: the second one is conjugated but not reversed.

    Returns
    -------
    Tensor
        The correlation.

    >>> ad.scipy.signal.correlate([1.0, 2.0, 3.0], [0.0, 1.0], mode="valid")
    array([2., 3.])
    """
    x, y = _pair("correlate", in1, in2)
    reversed_ = rec.flip(y, axis=tuple(range(-y.ndim, 0))) if y.ndim else y
    return convolve(x, rec.conj(reversed_) if y.dtype.kind == "c" else reversed_, mode, method)


@_signal_doc
def fftconvolve(in1: ArrayLike, in2: ArrayLike, mode: str = "full", axes: Axis = None) -> Tensor:
    """Convolve two arrays by Fourier transforms.

    Parameters
    ----------
    axes : int or tuple of int, optional
        The axes to convolve; the others are broadcast.  All by default.

    >>> ad.scipy.signal.fftconvolve([1.0, 2.0, 3.0], [1.0, 1.0]).round(12)
    array([1., 3., 5., 3.])
    """
    x, y = _pair("fftconvolve", in1, in2)
    if x.ndim == 0:
        return floating("fftconvolve", x) * y
    given = range(x.ndim) if axes is None else axes if isinstance(axes, (tuple, list)) else (axes,)
    chosen = tuple(canonical_axis("fftconvolve", a, x.ndim) % x.ndim for a in given)
    if not x.size or not y.size:
        return asarray(np.zeros(0))
    if _swapped("fftconvolve", mode, x, y, chosen):
        x, y = y, x
    if not chosen:
        return floating("fftconvolve", x) * y
    return _part(_transformed(x, y, chosen), mode, x, y, chosen)


# Filters -------------------------------------------------------------------------------------------


@_signal_doc
def lfilter(b: ArrayLike, a: ArrayLike, x: ArrayLike, axis: int = -1, zi: ArrayLike | None = None) -> Any:
    """Filter a signal with a rational transfer function.

    Parameters
    ----------
    b : array_like
        The coefficients of the numerator, a vector.
    a : array_like
        The coefficients of the denominator, a vector.
    zi : array_like, optional
        The initial state of the filter, as in ``scipy.signal.lfilter``.

    Returns
    -------
    Tensor or tuple of Tensor
        The filtered signals; with ``zi`` also the final state.

    Raises
    ------
    ShapeError
        If the coefficients are not vectors, or the state has another length than the filter.
    ArgumentError
        If the first coefficient of ``a`` is 0.

    >>> ad.scipy.signal.lfilter([1.0], [1.0, -0.5], [1.0, 0.0, 0.0])
    array([1.  , 0.5 , 0.25])
    """
    b, a = floating("lfilter", b), floating("lfilter", a)
    if b.ndim != 1 or a.ndim != 1 or not b.size or not a.size:
        raise ShapeError(
            "lfilter: the coefficients b and a must be vectors that are not empty, but have shapes "
            f"{b.shape} and {a.shape}."
        )
    known = plain_values(a)
    if known is not None and known[0] == 0:
        raise ArgumentError("lfilter: the first coefficient of a must not be 0: the filter divides by it.")
    signal = moveaxis(floating("lfilter", x), axis, -1)
    b, a = b / a[0], a / a[0]
    n, order = signal.shape[-1], max(b.shape[0], a.shape[0]) - 1
    b, a = (pad(t, ((0, order + 1 - t.shape[0]),)) for t in (b, a))
    long = _moving(signal, b)  # longer than the signal by len(b) - 1
    state = None
    if zi is not None:
        state = moveaxis(floating("lfilter", zi), axis, -1) if np.ndim(zi) > 1 else floating("lfilter", zi)
        if state.shape[-1] != order:
            raise ShapeError(
                f"lfilter: the last axis of the initial state zi must have length {order}, but zi has shape "
                f"{state.shape}."
            )
        long = long + pad(state, ((0, 0),) * (state.ndim - 1) + ((0, n),))
    y = rec.all_pole(long[..., :n], a[1:]) if order else long[..., :n]
    if state is None:
        return moveaxis(y, -1, axis)
    final = long[..., n:] - _moving(y, concat([a[:1] * 0, a[1:]]))[..., n:]
    return moveaxis(y, -1, axis), moveaxis(final, -1, axis)


def _moving(x: Tensor, factors: Tensor) -> Tensor:
    """Return the sums y[n] = Σ factors[k] x[n-k] along the last axis.

    The result has len(factors) - 1 elements more than x.
    """
    order = factors.shape[0] - 1
    total: Any = None
    for k in range(order + 1):
        part = factors[k] * pad(x, ((0, 0),) * (x.ndim - 1) + ((k, order - k),))
        total = part if total is None else total + part
    return total


# Spectrograms ----------------------------------------------------------------------------------------


def _window(op: str, window: Any, nperseg: int | None, length: int, like: Tensor) -> tuple[Tensor, int]:
    """Return the window as a tensor in the precision of ``like``, and its length.

    ``window`` is an array, or a name (with parameters) as in ``scipy.signal.get_window``.  ``length``, the
    length of the signal, limits ``nperseg``.
    """
    if isinstance(window, (str, tuple)):
        size = min(256, length) if nperseg is None else nperseg
        values = asarray(scipy_module("signal").get_window(window, size))
    else:
        values = floating(op, window)
        if values.ndim != 1 or (nperseg is not None and values.shape[0] != nperseg):
            raise ShapeError(
                f"{op}: the window must be a vector of length nperseg (nperseg is {nperseg}), but has shape "
                f"{values.shape}."
            )
    if values.dtype.kind == "f" and values.dtype != like.real.dtype:
        values = rec.astype(values, dtype=like.real.dtype)
    return values, values.shape[0]


def _sizes(op: str, nperseg: int, noverlap: int | None, nfft: int | None) -> tuple[int, int]:
    """Return the overlap of neighbouring segments and the length of the Fourier transforms.

    The defaults of both depend on ``nperseg``, the length of a segment.
    """
    overlap = nperseg // 2 if noverlap is None else int(noverlap)
    if overlap >= nperseg:
        raise ArgumentError(f"{op}: noverlap must be less than nperseg = {nperseg}, but is {overlap}.")
    points = nperseg if nfft is None else int(nfft)
    if points < nperseg:
        raise ArgumentError(f"{op}: nfft must be at least nperseg = {nperseg}, but is {points}.")
    return overlap, points


def _extended(x: Tensor, boundary: str | None, n: int) -> Tensor:
    """Return ``x`` with n elements added at both ends of the last axis; ``boundary`` says which values."""
    none = ((0, 0),) * (x.ndim - 1)
    if boundary is None or not n:
        return x
    if boundary == "zeros":
        return pad(x, (*none, (n, n)))
    if boundary not in ("even", "odd", "constant"):
        raise ArgumentError(
            f"stft: boundary must be 'even', 'odd', 'constant', 'zeros' or None, not {boundary!r}."
        )
    if n > x.shape[-1] - 1 and boundary != "constant":
        raise ArgumentError(
            f"stft: with boundary={boundary!r} the signal must have more than {n} samples, but has "
            f"{x.shape[-1]}."
        )
    index = np.pad(np.arange(x.shape[-1]), n, "edge" if boundary == "constant" else "reflect")
    y = x[..., index]
    if boundary != "odd":
        return y
    size = y.shape[-1]
    left, right = 2 * x[..., :1] - y[..., :n], 2 * x[..., -1:] - y[..., size - n :]
    return concat([left, y[..., n : size - n], right], axis=-1)


def _detrended(frames: Tensor, detrend: Any) -> Tensor:
    """Return the frames without their trend: their mean, or a fitted line, as ``detrend`` says."""
    if not detrend:
        return frames
    if callable(detrend):
        return detrend(frames)
    if detrend not in ("constant", "linear"):
        raise ArgumentError(
            f"stft: detrend must be 'constant', 'linear', False or a function, not {detrend!r}."
        )
    n = frames.shape[-1]
    basis = np.ones((n, 1)) if detrend == "constant" else np.stack([np.ones(n), np.arange(n)], 1)
    q, _ = np.linalg.qr(basis)
    away = (np.eye(n) - q @ q.T).astype(frames.dtype)
    return rec.matmul(frames, away)


def _scale(op: str, window: Tensor, fs: float, scaling: str) -> Tensor:
    if scaling == "spectrum":
        return 1 / rec.abs(sum(window))
    if scaling == "psd":
        return 1 / rec.sqrt(fs * sum(window * window))
    raise ArgumentError(f"{op}: scaling must be 'spectrum' or 'psd', not {scaling!r}.")


def _taper(window: Any, nperseg: int | None, signal: Tensor) -> tuple[Tensor, int]:
    """Return the window of ``stft`` in the precision of the signal, and its length."""
    length = signal.shape[-1]
    if not length:
        raise ShapeError("stft: the signal must not be empty.")
    if nperseg is not None and nperseg < 1:
        raise ArgumentError(f"stft: nperseg must be positive, but is {nperseg}.")
    if nperseg is not None and isinstance(window, (str, tuple)):
        nperseg = min(int(nperseg), length)
    taper, size = _window("stft", window, nperseg, length, signal)
    if size > length:
        raise ShapeError(
            f"stft: the window must not be longer than the signal, but has {size} samples and the signal has "
            f"{length}."
        )
    return taper, size


@_signal_doc
def stft(
    x: ArrayLike,
    fs: float = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: bool | str | Callable[[Any], Any] = False,
    return_onesided: bool = True,
    boundary: str | None = "zeros",
    padded: bool = True,
    axis: int = -1,
    scaling: str = "spectrum",
) -> tuple[Any, Any, Tensor]:
    """Compute the short-time Fourier transform.

    Returns
    -------
    tuple
        The frequencies and the times as arrays, and the transforms as a tensor; its axis of frequency is
        ``axis``, and the last axis is time.

    Raises
    ------
    ArgumentError, ShapeError
        If the lengths are not compatible.

    >>> import adjoint as ad, numpy as np
    >>> f, t, z = ad.scipy.signal.stft(np.ones(8), nperseg=4)
    >>> z.shape
    (3, 5)
    """
    signal = moveaxis(floating("stft", x), axis, -1)
    taper, size = _taper(window, nperseg, signal)
    overlap, points = _sizes("stft", size, noverlap, nfft)
    step = size - overlap
    signal = _extended(signal, boundary, size // 2)
    if padded:
        extra = -(signal.shape[-1] - size) % step % size
        signal = pad(signal, ((0, 0),) * (signal.ndim - 1) + ((0, extra),))
    starts = np.arange(0, signal.shape[-1] - size + 1, step)
    frames = _detrended(signal[..., starts[:, None] + np.arange(size)], detrend) * taper
    half = return_onesided and frames.dtype.kind != "c" and taper.dtype.kind != "c"
    spectra = fft.rfft(frames, points) if half else fft.fft(frames, points)
    spectra = spectra * _scale("stft", taper, fs, scaling)
    frequencies = np.fft.rfftfreq(points, 1 / fs) if half else np.fft.fftfreq(points, 1 / fs)
    times = (starts + size / 2) / float(fs)
    if boundary is not None:
        times = times - size / 2 / fs
    return frequencies, times, moveaxis(spectra, -1, axis - 1 if axis < 0 else axis)


def _arranged(Zxx: ArrayLike, time_axis: int, freq_axis: int) -> tuple[Tensor, int]:
    """Return transforms with time and frequency as their last axes, and the axis of time of the signals."""
    z = floating("istft", Zxx)
    if z.ndim < 2:
        raise ShapeError(
            f"istft: the input must have at least two axes, for frequency and time, but has shape {z.shape}."
        )
    time, frequency = time_axis % z.ndim, freq_axis % z.ndim
    if time == frequency:
        raise ArgumentError("istft: time_axis and freq_axis must be different axes.")
    rest = [a for a in range(z.ndim) if a not in (time, frequency)]
    z = rec.permute_dims(z, axes=tuple(a - z.ndim for a in (*rest, time, frequency)))
    return z, time - (frequency < time)


def _joined(frames: Tensor, taper: Tensor, step: int, boundary: bool) -> Tensor:
    """Return signals from their overlapping segments; with ``boundary``, half a segment is cut off."""
    count, size = frames.shape[-2:]
    length = size + (count - 1) * step
    index = np.arange(count)[:, None] * step + np.arange(size)
    total = _overlapped(frames, index, length)
    weight = _overlapped(rec.broadcast_to(taper * taper, shape=index.shape), index, length)
    if boundary:
        cut = slice(size // 2, length - size // 2)
        total, weight = total[..., cut], weight[cut]
    return total / rec.where(weight <= 1e-10, 1.0, weight)


@_signal_doc
def istft(
    Zxx: ArrayLike,
    fs: float = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    input_onesided: bool = True,
    boundary: bool = True,
    time_axis: int = -1,
    freq_axis: int = -2,
    scaling: str = "spectrum",
) -> tuple[Any, Tensor]:
    """Compute the inverse short-time Fourier transform.

    Parameters
    ----------
    window : str, tuple or array_like, optional
        The window of ``stft``.
    nperseg : int, optional
        The length of the segments; by default from the number of frequencies.
    nfft : int, optional
        The length of the Fourier transforms.
    boundary : bool, optional
        Whether the signal was extended by half a segment, which is cut off.
    scaling : {"spectrum", "psd"}, optional
        The scaling of ``stft``.

    Returns
    -------
    tuple
        The times as an array, and the signals as a tensor.

    Raises
    ------
    ArgumentError, ShapeError
        If the lengths are not compatible.

    >>> import adjoint as ad, numpy as np
    >>> _, _, z = ad.scipy.signal.stft(np.arange(8.0), nperseg=4)
    >>> ad.scipy.signal.istft(z)[1].round(12)
    array([0., 1., 2., 3., 4., 5., 6., 7.])
    """
    z, place = _arranged(Zxx, time_axis, freq_axis)
    usual = 2 * (z.shape[-1] - 1) if input_onesided else z.shape[-1]
    if nperseg is None and isinstance(window, (str, tuple)):
        nperseg = usual
    taper, size = _window("istft", window, nperseg, usual, z)
    if nfft is None and input_onesided and size == usual + 1:
        usual = size  # for a window of odd length
    overlap, points = _sizes("istft", size, noverlap, usual if nfft is None else nfft)
    frames = (fft.irfft(z, points) if input_onesided else fft.ifft(z, points))[..., :size]
    frames = frames * (taper / _scale("istft", taper, fs, scaling))
    signal = _joined(frames, taper, size - overlap, boundary)
    times = np.arange(signal.shape[-1]) / float(fs)
    return times, moveaxis(signal, -1, place)


def _overlapped(frames: Tensor, index: Any, length: int) -> Tensor:
    """Return a signal of length ``length``, the sum of overlapping frames.

    ``index`` has the position of each element of the frames in the signal.
    """
    lead = frames.shape[:-2]
    flat = rec.reshape(frames, shape=(*lead, math.prod(index.shape)))
    return rec.untake(flat, asarray(index.reshape(-1)), axis=-1, length=length)


globals().update(drop_ins("signal", {name: globals()[name] for name in __all__}))


def __getattr__(name: str) -> Any:
    """Return SciPy's own function, which raises an error for a tensor that requires grad."""
    return scipy_only("signal", name)
