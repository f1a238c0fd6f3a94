"""The error function, accurate to about one unit in the last place, and the normal distribution, on NumPy.

For |x| ≤ 7/8, erf(x) is x + x P(x²), where the polynomial P is a Chebyshev fit of erf(x)/x - 1.  For larger
|x|, it is ±(1 - exp(-Q(|x| - 7/8))), where Q fits -log erfc.  The fit of Q is weighted with erfc, because an
error of Q is multiplied by erfc in the result.  Measured against mpmath on 140,000 points, the error is at
most 1.09 units in the last place in float64 (SciPy: 2.8), and 1.12 in float32.

The normal distribution function is ½ + ½ erf(x/√2) for x ≥ -2, which loses at most 5 bits.  For x < -2 it is
½ exp(-x²/2) R(t) / (1 + 2u) with u = -x/√2 and t = (u - 3) / (u + 3).  The polynomial R fits (1 + 2u) exp(u²)
erfc(u) to 2e-16 for u ≥ 0.84.  The relative error there is that of exp, about x² units in the last place.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.typing import Array, ArrayLike

__all__ = ["erf", "normal_distribution"]

# For each dtype: the coefficients of P and Q, the smallest x for which erf(x) rounds to 1, and the
# coefficients of R.  The coefficient of the highest power comes first.
_P64 = (
    -8.666276629203472e-10, 1.4122777660357666e-08, -1.6289242608284092e-07, 1.6456607597388118e-06,
    -1.492538720169797e-05, 0.00012055324561705379, -0.0008548326845690305, 0.005223977623059443,
    -0.026866170644942594, 0.11283791670954353, -0.3761263890318374, 0.1283791670955126,
)  # fmt: skip
_Q64 = (
    7.391712229318397e-12, -1.8855601943692195e-10, 2.1879687911766367e-09, -1.512610792868399e-08,
    6.70281142875849e-08, -1.7452237582584975e-07, 3.569016208835826e-08, 2.1612991018563706e-06,
    -1.2273458007294904e-05, 3.944744799154436e-05, -5.9322179819544914e-05, -0.00020077304201365456,
    0.0021439943187071676, -0.011323339174151844, 0.04689605451544343, 0.8265416933358712,
    2.4302197229548033, 1.5328244365985517,
)  # fmt: skip
_P32 = (
    -0.0006214585361977137, 0.005034370663204096, -0.02679294777783731, 0.11282496599586316,
    -0.37612554506584434, 0.1283791581332127,
)  # fmt: skip
_Q32 = (
    -0.0001999270445626423, 0.002032610109782269, -0.011193167949256665, 0.04683483539947763,
    0.8265538426752882, 2.430218901767064, 1.5328244448473074,
)  # fmt: skip
_R64 = (
    1.2630119643803444e-07, -6.418918462449114e-07, 5.594378661569038e-08, 3.6123486836499167e-06,
    -5.869130758067867e-07, -2.019977369500839e-05, 4.9142583698254825e-06, 0.00012513256786788286,
    -0.00010515552909637634, -0.0007798384192876824, 0.0018886901797334037, 0.002529392458022947,
    -0.023770514927867224, 0.06830802730823918, -0.11927366341432917, 0.1296451587036634,
    -0.04756229435347105, -0.13562110612458791, 1.2530080582697296,
)  # fmt: skip
_R32 = (
    0.0018375298474945438, 0.002020619335887256, -0.023765303022840974, 0.06842432652004642,
    -0.11927316535121349, 0.1296351783063675, -0.04756236273443671, -0.13562087335919062,
    1.2530080590783494,
)  # fmt: skip
_FITS = {np.dtype(np.float64): (_P64, _Q64, 5.95, _R64), np.dtype(np.float32): (_P32, _Q32, 4.0, _R32)}
_SPLIT = 0.875
_LEFT = -2.0
_ROOT_HALF = math.sqrt(0.5)
_FEW = 300  # for up to so many elements, a loop over Python's math.erf is faster than 60 calls of NumPy
_BLOCK = 8192  # elements at a time, so that the scratch arrays stay in the cache


def _horner(coefficients: tuple[float, ...], t: Array) -> Any:
    value = t * coefficients[0]
    for c in coefficients[1:-1]:
        value += c
        value *= t
    value += coefficients[-1]
    return value


def erf(x: ArrayLike) -> Any:
    """Return the error function 2/√π ∫₀ˣ exp(-t²) dt."""
    x = np.asarray(x)
    if x.dtype.kind == "c":
        raise TypeError(f"only real numbers are supported, not {x.dtype}")
    dtype = x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)
    if x.size <= _FEW:
        return np.array([math.erf(v) for v in x.ravel().tolist()], dtype).reshape(x.shape)
    if dtype not in _FITS:  # half precision and long doubles
        return erf(x.astype(np.float32 if dtype.itemsize == 2 else np.float64)).astype(dtype)
    flat = np.ascontiguousarray(x, dtype).ravel()
    out = np.empty_like(flat)
    for start in range(0, flat.size, _BLOCK):
        _erf_block(flat[start : start + _BLOCK], out[start : start + _BLOCK])
    return out.reshape(x.shape)


def _erf_block(x: Array, out: Array) -> None:
    inner, outer, one, _ = _FITS[x.dtype]
    near = np.clip(x, -_SPLIT, _SPLIT)
    np.multiply(_horner(inner, near * near), near, out=out)
    out += near
    (far,) = np.nonzero(near != x)
    if far.size:
        beyond = x[far]
        u = np.minimum(np.abs(beyond), one)
        u -= _SPLIT
        out[far] = np.copysign(1 - np.exp(-_horner(outer, u)), beyond)


def normal_distribution(x: ArrayLike) -> Any:
    """Return the cumulative distribution function of the normal distribution, accurate in the left tail."""
    x = np.asarray(x)
    if x.dtype.kind == "c":
        raise TypeError(f"only real numbers are supported, not {x.dtype}")
    if x.dtype not in _FITS:
        return normal_distribution(x.astype(np.float64)).astype(np.result_type(x, np.float16))
    if x.size <= _FEW:
        values = [0.5 * math.erfc(-v * _ROOT_HALF) for v in x.ravel().tolist()]
        return np.array(values, x.dtype).reshape(x.shape)
    y = erf(x * _ROOT_HALF)
    y *= 0.5
    y += 0.5
    left = x < _LEFT
    if left.any():
        size = np.minimum(-x[left], 60)  # for 60 and more, exp(-size²/2) is 0
        u = size * _ROOT_HALF
        tail = _horner(_FITS[x.dtype][3], (u - 3) / (u + 3))
        y[left] = tail * (np.exp(-0.5 * (size * size)) / (2 + 4 * u))
    return y
