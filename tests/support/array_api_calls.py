"""Calls of SciPy and scikit-learn with tensors as foreign arrays: run with SCIPY_ARRAY_API=1.

Prints one line per call: its name, and what happened with a recorded tensor.  "right": the gradient agrees with
differences; "constant": the result does not depend on the tensor; "refused": adjoint or the library raised.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.cluster.vq
import scipy.fft
import scipy.integrate
import scipy.linalg
import scipy.ndimage
import scipy.optimize
import scipy.signal
import scipy.special
import scipy.stats
import sklearn
import sklearn.decomposition
import sklearn.linear_model
import sklearn.metrics
import sklearn.preprocessing

import adjoint as ad

RNG = np.random.default_rng(0)
V, M, S = RNG.uniform(0.1, 0.9, 9), RNG.normal(size=(7, 3)), np.eye(3) * 3 + RNG.uniform(size=(3, 3)) / 4
NAMES = {  # functions of one array
    "special V": """entr gammaln i0 i0e i1 i1e log_ndtr ndtr ndtri erf erfc expit logit logsumexp softmax log_softmax
        digamma""",
    "stats V": """skew kurtosis variation gmean hmean sem tmean tvar tstd tmin tmax zscore iqr circmean circvar
        circstd differential_entropy kstat kstatvar expectile median_abs_deviation gstd rankdata skewtest
        kurtosistest jarque_bera describe mode""",
    "signal V": "detrend hilbert periodogram medfilt freqz",
    "ndimage M": "sobel laplace prewitt spline_filter sum_labels mean",
    "cluster.vq M": "whiten",
    "fft V": "fft ifft rfft irfft dct fftshift rfftn",
    "linalg S": "inv det expm svdvals eigvals pinv norm lu logm",
    "integrate V": "trapezoid simpson cumulative_trapezoid",
    "optimize V": "rosen rosen_der",
}
CALLS: dict[str, tuple[Callable[[Any], Any], Any]] = {}
for home, names in NAMES.items():
    part, place = home.split()
    for name in names.split():
        f = getattr(sys.modules[f"scipy.{part}"], name)
        CALLS[f"{part}.{name}"] = f, {"V": V, "M": M, "S": S}[place]
CALLS |= {
    "special.betainc": (lambda x: scipy.special.betainc(x, x, x), V),
    "special.rel_entr": (lambda x: scipy.special.rel_entr(x, 2 * x), V),
    "special.xlogy": (lambda x: scipy.special.xlogy(x, x), V),
    "special.stdtr": (lambda x: scipy.special.stdtr(3 * x, x), V),
    "stats.moment": (lambda x: scipy.stats.moment(x, 3), V),
    "stats.pearsonr": (lambda x: scipy.stats.pearsonr(x, x**2), V),
    "stats.linregress": (lambda x: scipy.stats.linregress(x, x**2), V),
    "stats.ttest_ind": (lambda x: scipy.stats.ttest_ind(x, x**2), V),
    "stats.spearmanr": (lambda x: scipy.stats.spearmanr(x, x**2 + x[::-1]), V),
    "signal.convolve": (lambda x: scipy.signal.convolve(x, x), V),
    "signal.fftconvolve": (lambda x: scipy.signal.fftconvolve(x, x), V),
    "signal.savgol_filter": (lambda x: scipy.signal.savgol_filter(x, 3, 1), V),
    "signal.resample": (lambda x: scipy.signal.resample(x, 7), V),
    "signal.welch": (lambda x: scipy.signal.welch(x, nperseg=4)[1], V),
    "ndimage.gaussian_filter": (lambda x: scipy.ndimage.gaussian_filter(x, 1.0), M),
    "ndimage.uniform_filter": (lambda x: scipy.ndimage.uniform_filter(x, 3), M),
    "ndimage.shift": (lambda x: scipy.ndimage.shift(x, 0.5), M),
    "cluster.vq.vq": (lambda x: scipy.cluster.vq.vq(x, x[:2])[1], M),
    "cluster.vq.kmeans": (lambda x: scipy.cluster.vq.kmeans(x, 2, rng=0)[0], M),
    "optimize.minimize": (lambda x: scipy.optimize.minimize(lambda p: float(((p - 1) ** 2).sum()), x).x, V),
    "linalg.solve": (lambda x: scipy.linalg.solve(x, np.ones(3)), S),
    "sklearn.StandardScaler": (lambda x: sklearn.preprocessing.StandardScaler().fit_transform(x), M),
    "sklearn.MinMaxScaler": (lambda x: sklearn.preprocessing.MinMaxScaler().fit_transform(x), M),
    "sklearn.Normalizer": (lambda x: sklearn.preprocessing.Normalizer().fit_transform(x), M),
    "sklearn.PCA": (lambda x: sklearn.decomposition.PCA(2).fit_transform(x), M),
    "sklearn.Ridge": (lambda x: sklearn.linear_model.Ridge(solver="svd").fit(x, x[:, 0]).predict(x), M),
    "sklearn.mean_squared_error": (lambda x: sklearn.metrics.mean_squared_error(x, x**2), V),
    "sklearn.r2_score": (lambda x: sklearn.metrics.r2_score(x, x**2), V),
    "sklearn.rbf_kernel": (lambda x: sklearn.metrics.pairwise.rbf_kernel(x), M),
    "sklearn.log_loss": (lambda x: sklearn.metrics.log_loss(np.array([0, 1, 2]), x), np.abs(S) / 9),
}


def numbers(result: Any) -> list[Any]:
    """Return the float tensors, arrays and numbers in a result."""
    if isinstance(result, dict):
        result = tuple(result.values())
    if isinstance(result, (tuple, list)):
        return [n for part in result for n in numbers(part)]
    if isinstance(result, (ad.Tensor, np.ndarray, float, np.inexact)):
        found = result if isinstance(result, ad.Tensor) else np.asarray(result)
        return [found] if found.dtype.kind in "fc" else []
    return (
        [n for value in vars(result).values() for n in numbers(value)] if hasattr(result, "__dict__") else []
    )


def total(result: Any) -> Any:
    """Return a weighted sum of all numbers in a result."""
    found: Any = 0.0
    for k, n in enumerate(numbers(result)):
        weights = np.cos(np.arange(n.size) + k).reshape(n.shape)
        found = found + (n.real * weights).sum()
        if n.dtype.kind == "c":
            found = found + (n.imag * weights).sum()
    return found


def outcome(f: Callable[[Any], Any], given: Any) -> str:
    """Call a function with a recorded tensor and say what happened."""
    direction, h = np.random.default_rng(1).normal(size=given.shape), 1e-6
    slope = float(total(f(given + h * direction)) - total(f(given - h * direction))) / (2 * h)
    x = ad.tensor(given, requires_grad=True)
    try:
        sum_ = total(f(x))
    except Exception:
        return "refused"
    if not isinstance(sum_, ad.Tensor) or not sum_.requires_grad:
        return "constant" if abs(slope) < 1e-6 else "SILENT"
    (gradient,) = ad.gradients(sum_, [x])
    found = float((gradient.numpy() * direction).sum())
    return "right" if abs(found - slope) <= 1e-4 * max(1.0, abs(slope)) else f"WRONG {found} {slope}"


def plain(f: Callable[[Any], Any], given: Any) -> str:
    """Compare the numbers for an unrecorded tensor with those for an array."""
    expected = numbers(f(given))
    try:
        found = numbers(f(ad.tensor(given)))
    except Exception:
        return "refused"
    same = len(found) == len(expected) and all(
        np.allclose(np.asarray(a), b, rtol=1e-6, atol=1e-9, equal_nan=True)
        for a, b in zip(found, expected, strict=True)
    )
    return "same" if same else "DIFFERENT"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with sklearn.config_context(array_api_dispatch=True):
        for name, (f, given) in CALLS.items():
            print(name, plain(f, given), outcome(f, given))
