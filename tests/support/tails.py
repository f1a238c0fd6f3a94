"""Exact derivatives by mpmath, and points in the tails and corners of functions, for ``test_tails.py``.

Derivatives are central differences in 500 digits with steps of 1e-40 of the distance over which the function
changes.  Their error is far below float64 wherever float64 has a number at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import mpmath as mp
import numpy as np

import adjoint as ad

DIGITS = 500
STEP = mp.mpf(10) ** -40


@dataclass
class Row:
    """A function, the same of mpmath, where it is sampled, and how large its errors may be.

    ``scale``: over what distance the function changes, if not 1.  ``closed``: mpmath's first and second
    derivative, where 500 digits are too slow.  ``points``: singular or special points, which are sampled from
    both sides.  The error of value, first and second derivative may be eps · (units · condition(x) · |exact| +
    floor).  ``why`` is the reason of a condition or a floor.
    """

    ours: Callable[..., Any]
    exact: Callable[..., Any]
    inside: Callable[[float], bool] = lambda x: True
    scale: Callable[[Any], Any] = lambda x: 1
    closed: tuple[Callable[..., Any], Callable[..., Any]] | None = None
    points: Iterable[float] = ()
    units: tuple[float, float, float] = (8, 16, 40)
    condition: Callable[[Any], float] = lambda x: 1.0
    floor: tuple[float, float, float] = (0, 0, 0)
    why: str = ""

    def __post_init__(self) -> None:
        plain = Row.__dataclass_fields__
        usual = self.floor == (0, 0, 0) and self.condition is plain["condition"].default
        assert usual == (not self.why), "a condition or a floor needs a reason"


def decades(dtype: Any) -> list[float]:
    """± each decade near 1, and each (float32) or each twentieth (float64) beyond; zeros, subnormals, some others."""
    powers = [*range(-300, -18, 20), *range(-18, 19), *range(20, 301, 20)]
    tiny = [5e-324, 1e-310]
    if dtype == np.float32:
        powers, tiny = [*range(-37, 39)], [1e-45, 1e-40]
    others = [0.3, 0.5, 0.7, 1.7, 2.5, 4.2, 7.0, 15.0, 23.0, 37.0, 88.0, 120.0, 350.0, 700.0]
    sizes = [float(dtype(v)) for v in (*tiny, *(10.0**p for p in powers), *others)]
    return [0.0, *sizes, -0.0, *(-v for v in sizes)]


def beside(points: Iterable[float], dtype: Any) -> list[float]:
    """Numbers on both sides of the points, from the next one outwards."""
    found = []
    for p in points:
        found += [float(np.nextafter(dtype(p), dtype(end))) for end in (math.inf, -math.inf)]
        found += [float(dtype(p + sign * 10.0**-k)) for k in (1, 2, 4, 6) for sign in (1, -1)]
    return found


def samples(row: Row, dtype: Any) -> list[float]:
    return [x for x in (*decades(dtype), *beside(row.points, dtype)) if row.inside(x)]


def exact_derivatives(row: Row, x: Any) -> list[Any]:
    """The value, the first and the second derivative at x."""
    if row.closed is not None:
        with mp.workdps(60):
            z = mp.mpmathify(x)
            return [row.exact(z), *(f(z) for f in row.closed)]
    with mp.workdps(DIGITS):
        z = mp.mpmathify(x)
        h = STEP * row.scale(z)
        low, here, high = row.exact(z - h), row.exact(z), row.exact(z + h)
        return [here, (high - low) / (2 * h), (high - 2 * here + low) / (h * h)]


def exact_partials(f: Callable[..., Any], x: float, y: float, scales: tuple[Any, Any]) -> list[Any]:
    """The value, the derivatives in x and y, and those in xx, xy and yy."""
    with mp.workdps(DIGITS):
        a, b = mp.mpf(x), mp.mpf(y)
        h, k = (STEP * scale(a, b) for scale in scales)
        here = f(a, b)
        right, left, up, down = f(a + h, b), f(a - h, b), f(a, b + k), f(a, b - k)
        mixed = f(a + h, b + k) - f(a + h, b - k) - f(a - h, b + k) + f(a - h, b - k)
        first = (right - left) / (2 * h), (up - down) / (2 * k)
        second = (right - 2 * here + left) / h**2, mixed / (4 * h * k), (up - 2 * here + down) / k**2
        return [here, *first, *second]


def rounded(value: Any, dtype: Any) -> Any:
    """What a number of this dtype can show of an exact one."""
    if isinstance(value, mp.mpc):
        return complex(rounded(value.real, dtype), rounded(value.imag, dtype))
    if abs(value) > float(np.finfo(dtype).max):
        return float(mp.sign(value)) * math.inf
    return float(value)


def _gradient(y: Any, x: Any) -> Any:
    """dy/dx for each element, of complex ones too; zeros where y does not depend on x."""
    if not y.requires_grad:
        return ad.zeros_like(x)
    (g,) = ad.gradients(y, [x], ad.ones_like(y.detach()), create_graph=True, allow_unused=True)
    if g is None:
        return ad.zeros_like(x)
    return ad.conj(g) if g.dtype.kind == "c" else g


def our_derivatives(function: Callable[..., Any], points: Any) -> list[Any]:
    """What ``exact_derivatives`` returns, by adjoint, for an array of points."""
    x = ad.tensor(points, requires_grad=True)
    with np.errstate(all="ignore"):
        y = function(x)
        first = _gradient(y, x)
        second = _gradient(first, x)
    return [v.detach().numpy() for v in (y, first, second)]


def our_partials(function: Callable[..., Any], a: Any, b: Any) -> list[Any]:
    """What ``exact_partials`` returns, by adjoint, for two arrays."""
    x, y = (ad.tensor(v, requires_grad=True) for v in (a, b))
    with np.errstate(all="ignore"):
        z = function(x, y)
        dx, dy = _gradient(z, x), _gradient(z, y)
        found = (z, dx, dy, _gradient(dx, x), _gradient(dx, y), _gradient(dy, y))
    return [v.detach().numpy() for v in found]


def differs(found: Any, exact: Any, dtype: Any, units: float, floor: float = 0.0) -> bool:
    """Tell whether an error is above ``eps · (units · |exact| + floor)``."""
    if np.isnan(exact) or found == exact:
        return False
    info = np.finfo(dtype)
    if not np.isfinite(exact) or not np.isfinite(found):
        # beside the largest number, infinity is right too
        return not (np.isfinite(exact) and abs(exact) > 0.99 * float(info.max))
    error = abs(complex(found) - complex(exact))
    if abs(exact) < float(info.tiny):  # a subnormal number may be any other, or 0
        return error > float(info.tiny) + float(info.eps) * floor
    return error > float(info.eps) * (units * abs(exact) + floor)
