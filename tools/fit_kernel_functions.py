"""Print the coefficients of adjoint/compiler/emit/math/coefficients.py.  Run it with mpmath installed.

Each polynomial is a Chebyshev fit, which is within a factor of two of the best one.
"""

from __future__ import annotations

import textwrap

from mpmath import mp

mp.dps = 60
TINY = mp.mpf("1e-15")  # closer to 0 the first term is exact enough


def exp_tail(r):
    """Return (exp(r) − 1 − r) / r²."""
    return mp.mpf(1) / 2 if abs(r) < TINY else (mp.expm1(r) - r) / r**2


def log_tail(z):
    """Return (2 atanh(s) − 2s) / (s z), z = s²."""
    s = mp.sqrt(z)
    return mp.mpf(2) / 3 if z < TINY else (2 * mp.atanh(s) - 2 * s) / (s * z)


def log_tail2(z):
    """Return The terms of ``log_tail`` after the first, over z."""
    return mp.mpf(2) / 5 if z < TINY else (log_tail(z) - mp.mpf(2) / 3) / z


def log1p_tail(f):
    """Return (log(1 + f) − f + f²/2) / f³."""
    return mp.mpf(1) / 3 if abs(f) < TINY else (mp.log1p(f) - f + f * f / 2) / f**3


def sin_tail(z):
    """Return (sin(r) − r) / r³, z = r²."""
    r = mp.sqrt(z)
    return -mp.mpf(1) / 6 if z < TINY else (mp.sin(r) - r) / (r * z)


def cos_tail(z):
    """Return (cos(r) − 1 + z/2) / z², z = r²."""
    return mp.mpf(1) / 24 if z < TINY else (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2


def atan_tail(z):
    """Return (atan(t) − t) / t³, z = t²."""
    t = mp.sqrt(z)
    return -mp.mpf(1) / 3 if z < TINY else (mp.atan(t) - t) / (t * z)


def asin_tail(z):
    """Return (asin(s) − s) / s³, z = s²."""
    s = mp.sqrt(z)
    return mp.mpf(1) / 6 if z < TINY else (mp.asin(s) - s) / (s * z)


def tanh_tail(z):
    """Return (tanh(x) − x) / x³, z = x²."""
    x = mp.sqrt(z)
    return -mp.mpf(1) / 3 if z < TINY else (mp.tanh(x) - x) / (x * z)


def erf_ratio(z):
    """Return (erf(x)/x − 2/√π) / z, z = x²."""
    x = mp.sqrt(z)
    return -2 / (3 * mp.sqrt(mp.pi)) if z < TINY else (mp.erf(x) / x - 2 / mp.sqrt(mp.pi)) / z


K = 4


def erfcx(t):
    """Return (1 + 2x) exp(x²) erfc(x), x = K (1 + t)/(1 − t)."""
    if t == 1:
        return 2 / mp.sqrt(mp.pi)
    x = K * (1 + t) / (1 - t)
    return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)


HALF_LN2 = mp.log(2) / 2 * mp.mpf("1.001")
S2 = ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2 * mp.mpf("1.001")
QUARTER = (mp.pi / 4) ** 2 * mp.mpf("1.001")
EIGHTH = mp.tan(mp.pi / 8) ** 2 * mp.mpf("1.001")

TABLE = {
    "EXP": (exp_tail, (-HALF_LN2, HALF_LN2), 11, 5),
    "LOG": (log_tail, (0, S2), 7, 4),
    "LOG_LATER": (log_tail2, (0, S2), 8, None),
    "LOG1P": (log1p_tail, (mp.sqrt(0.5) - 1, mp.sqrt(2) - 1), None, 9),
    "SIN": (sin_tail, (0, QUARTER), 6, 4),
    "COS": (cos_tail, (0, QUARTER), 6, 4),
    "ATAN": (atan_tail, (0, EIGHTH), 12, 6),
    "ASIN": (asin_tail, (0, mp.mpf("0.2501")), 13, 6),
    "TANH": (tanh_tail, (0, mp.mpf("0.4")), None, 5),
    "ERF": (erf_ratio, (0, mp.mpf("1.01")), 12, 7),
    "ERFCX": (erfcx, ((0.45 - K) / (0.45 + K), (28 - K) / mp.mpf(28 + K)), 23, 12),
}


def printed(numbers, opening, closing):
    """Return the numbers as lines of at most 110 characters."""
    text = opening + ", ".join(repr(float(c)) for c in numbers) + closing
    return textwrap.fill(text, 110, initial_indent="    ", subsequent_indent="    " + " " * len(opening))


for name, (function, interval, *counts) in TABLE.items():
    fits = [mp.chebyfit(function, interval, n, error=True) for n in counts if n is not None]
    errors = " and ".join(f"{float(error):.1e}" for _, error in fits)
    print(f"{name} = (  # error{'s' * (len(fits) > 1)} {errors}")
    for found, _ in fits:
        print(printed(found, "(", "),") if len(fits) > 1 else printed(found, "", ","))
    print(")")
