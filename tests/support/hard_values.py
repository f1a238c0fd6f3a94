"""Numbers on which functions are hard to compute, and differences in units in the last place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["hard_arguments", "hard_values", "ulps"]

POINTS = (
    0.25, 0.5, 0.625, 0.75, 0.875, 1.0, 1.5, 2.0, 3.0, math.pi / 2, math.pi, 100 * math.pi, 20.0, 37.0, 1e3, 1e5,
    2.0**19, 2.0**23, 2.0**52, 2.0**53, 1e10, 1e22, 1e-5, 1e-8, 1e-10, 1e-20, 1e-30,
)  # fmt: skip
# beside these, functions of float32 or float64 overflow or underflow
ENDS = (
    44.36, 51.98, 52.4, 88.72, 89.4, 103.97, 126.0, 128.0, 149.0, 1.3e19, 9.2e18, 3.7e-23,
    355.2, 372.5, 373.0, 709.78, 710.47, 744.4, 745.13, 1022.0, 1024.0, 1074.0, 1.3e154, 4.5e161, 1.5e-154,
)  # fmt: skip


@np.errstate(all="ignore")
def hard_values(dtype: Any, count: int = 60) -> Any:
    """Return zeros, ends of the range, points where functions change their formula, and random numbers."""
    info, rng = np.finfo(dtype), np.random.default_rng(0)
    tiny, least, top = float(info.tiny), float(info.smallest_subnormal), float(info.max)
    parts = np.array([0.0, least, 3 * least, tiny - least, tiny, 2 * tiny, top, top / 2, math.inf], dtype)
    points = np.array(
        [*POINTS, *ENDS, float(info.eps), math.sqrt(top), math.sqrt(tiny), math.log(top)], dtype
    )
    points = points[np.isfinite(points) & (points > 0)]
    beside = [np.nextafter(points, np.array(end, dtype)) for end in (0, math.inf)]
    exponents = rng.uniform(math.log2(least), math.log2(top), count)
    sized = [rng.uniform(1, 2, count) * 2.0**exponents, rng.uniform(0, 3, count), rng.uniform(0, 100, count)]
    near = 1 + rng.uniform(-1, 1, count) * 2.0 ** rng.uniform(-30, -1, count)
    sizes = np.concatenate([parts, points, *beside, *(a.astype(dtype) for a in (*sized, near))])
    return np.concatenate([sizes, -sizes, np.array([math.nan], dtype)])


def hard_arguments(kinds: str, dtype: Any) -> list[Any]:
    """Return arrays of equal length for a function; ``kinds`` has a letter for each: f, i or b.

    Two floats are paired in every way if they are special, and such that sums of them cancel.
    """
    rng = np.random.default_rng(1)
    floats = hard_values(dtype)
    if kinds == "f":
        return [floats]
    special = np.array(
        [
            0,
            np.finfo(dtype).smallest_subnormal,
            1e-20,
            0.5,
            1,
            1.5,
            2,
            3,
            88,
            1e20,
            np.finfo(dtype).max,
            math.inf,
        ]
    ).astype(dtype)
    special = np.concatenate([special, -special, np.array([math.nan], dtype)])
    first, second = (a.ravel() for a in np.meshgrid(special, special))
    sums = -np.exp(rng.uniform(-5, 2, 60))
    few = rng.uniform(-3, 3, (2, 100))
    pairs = [
        np.concatenate([first, floats, sums, sums, few[0]]),
        np.concatenate(
            [second, rng.permutation(floats), np.log(-np.expm1(sums)), np.log2(1 - 2**sums), few[1]]
        ),
    ]
    count, found = len(pairs[0]), []
    for kind in kinds:
        if kind == "f":
            found.append(pairs.pop(0) if pairs else rng.permutation(found[0]))
        elif kind == "b":
            found.append(rng.random(count) < 0.5)
        else:
            found.append(rng.choice([*range(-5, 6), -3000, -1060, -140, 130, 1000, 3000], count))
    return [a.astype(dtype) if a.dtype.kind == "f" else a for a in found]


def ulps(a: Any, b: Any) -> Any:
    """Return how many numbers of the dtype lie between a and b, elementwise.

    NaN and NaN are equal, infinity follows the largest number, and zeros of different signs are half a number apart.
    """
    kind = f"u{a.dtype.itemsize}"
    x, y = (np.abs(v).view(kind) for v in (a, b))
    same = np.signbit(a) == np.signbit(b)
    apart = np.where(same, np.maximum(x, y) - np.minimum(x, y), x + y).astype(np.float64)
    apart = np.where(~same & (x == 0) & (y == 0), 0.5, apart)
    odd = np.isnan(a) | np.isnan(b)
    return np.where(odd, np.where(np.isnan(a) & np.isnan(b), 0.0, math.inf), apart)
