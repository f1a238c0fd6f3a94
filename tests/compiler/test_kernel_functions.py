"""The vector functions of kernels against NumPy in long double, SciPy and mpmath, on every level of this processor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from native import run

from adjoint.compiler.emit import machine
from adjoint.compiler.emit import math as functions
from adjoint.compiler.emit.values import element_of
from adjoint.compiler.emit.writer import Writer

NUMPY = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atan2": np.arctan2, "atanh": np.arctanh, "cbrt": np.cbrt, "cos": np.cos, "cosh": np.cosh, "exp": np.exp,
    "exp2": np.exp2, "expm1": np.expm1, "hypot": np.hypot, "log": np.log, "log10": np.log10, "log1p": np.log1p,
    "log2": np.log2, "logaddexp": np.logaddexp, "logaddexp2": np.logaddexp2, "pow": np.power, "sin": np.sin, "sinh": np.sinh, "tan": np.tan, "tanh": np.tanh,
    "tanh_gap": lambda x: 2 / (1 + np.exp(2 * np.abs(x))),
}  # fmt: skip
BINARY = ("atan2", "hypot", "logaddexp", "logaddexp2", "pow")
MPMATH: dict[str, Callable[..., Any]] = {
    "erf": lambda mp, x: mp.erf(x), "erfc": lambda mp, x: mp.erfc(x), "ndtr": lambda mp, x: mp.erfc(-x / mp.sqrt(2)) / 2,
}  # fmt: skip
UNARY = [name for name in functions.FUNCTIONS if name not in (*BINARY, "tanh_from_gap")]  # part of tanh
LONG = np.finfo(np.longdouble).nmant > 60  # Windows and ARM have no longer double

SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    math.inf,
    -math.inf,
    math.nan,
    0.5,
    -0.5,
    2.0,
    -2.0,
    3.0,
    -3.0,
    1e-5,
    1e30,
    -1e30,
]


@pytest.fixture(params=machine.levels())
def level(request, tmp_path, monkeypatch):
    monkeypatch.setenv("ADJOINT_KERNEL_CACHE", str(tmp_path / "cache"))
    with machine.using(request.param) as found:
        yield found


def kernel_of(level, name: str, dtype, arguments: int = 1, float64: bool = True) -> str:
    w, lanes, element = Writer(level), level.lanes(dtype), element_of(dtype)
    w.float64 = float64

    def body(i, _):
        given = [w.load(w.at(w.slot(k), element, i), element, lanes) for k in range(arguments)]
        w.store(functions.emit(w, name, *given), w.at(w.slot(arguments), element, i))

    w.loop(w.low, w.high, lanes, body)
    return w.kernel()


def apply(level, name: str, *given, float64: bool = True):
    """Apply a function of kernels to arrays of one dtype; without ``float64`` it computes in float32."""
    dtype, count = given[0].dtype, len(given[0])
    whole = -(-count // 64) * 64
    args = [np.concatenate([g, np.zeros(whole - count, dtype)]) for g in given]
    out = np.empty(whole, dtype)
    run(kernel_of(level, name, dtype, len(given), float64), [*args, out], 0, whole)
    return out[:count]


@np.errstate(all="ignore")
def exact(name: str, *given):
    """The result in a longer format."""
    if name in MPMATH:
        special = pytest.importorskip("scipy.special")
        if given[0].dtype == np.float32:
            return getattr(special, name)(given[0].astype(np.float64))
        mpmath = pytest.importorskip("mpmath")
        with mpmath.workdps(30):
            values = [MPMATH[name](mpmath, mpmath.mpf(float(x))) for x in np.clip(given[0], -40, 40)]
            high = np.array([float(v) for v in values], np.longdouble)
            low = [float(v - float(h)) for v, h in zip(values, high, strict=True)]
            found = high + np.array(low, np.longdouble)
            return np.where(found == 0, np.copysign(0, given[0]) if name == "erf" else 0.0, found)
    longer = np.float64 if given[0].dtype == np.float32 else np.longdouble
    return NUMPY[name](*(g.astype(longer) for g in given))


def ulps(found, expected):
    """The largest error in units in the last place; NaN, infinities and zeros must be the same."""
    dtype = found.dtype
    with np.errstate(all="ignore"):
        rounded = expected.astype(dtype)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded))
    ok = ~np.isnan(rounded) & ~(np.isinf(rounded) & (found == rounded))
    near = np.isinf(rounded[ok]) | np.isinf(found[ok])  # at the end of the range one may round to infinity
    assert (np.abs(expected[ok][near]) >= np.finfo(dtype).max * (1 - 1e-6)).all()
    f, e = found[ok][~near], expected[ok][~near]
    assert (np.signbit(f) == np.signbit(e))[e == 0].all()
    unit = np.maximum(np.spacing(np.abs(e.astype(dtype))), np.finfo(dtype).smallest_subnormal).astype(e.dtype)
    error = np.abs(f.astype(e.dtype) - e) / unit
    worst = int(error.argmax()) if len(error) else 0
    return (float(error[worst]), worst) if len(error) else (0.0, 0)


@np.errstate(all="ignore")
def samples(name: str, dtype, count: int):
    """Numbers of all sizes: random bits, random exponents, a dense range, and special values."""
    rng = np.random.default_rng(len(name))
    kind = np.uint32 if dtype == np.float32 else np.uint64
    anything = rng.integers(0, np.iinfo(kind).max, count, kind, endpoint=True).view(dtype)
    info = np.finfo(dtype)
    ends = np.array(
        [
            info.max,
            info.tiny,
            info.smallest_subnormal,
            info.tiny * 0.75,
            info.eps,
            1 + info.eps,
            1 - info.epsneg,
        ]
    )
    parts = [
        anything,
        rng.uniform(-1, 1, count),
        rng.uniform(-10, 10, count),
        rng.uniform(-1, 1, count) * 10.0 ** rng.uniform(-9, 3, count),
        np.array(SPECIAL), ends, -ends,
        np.arange(-20, 21) * math.pi / 4, np.arange(-1080, 1080, 3.0), 2.0 ** np.arange(-30.0, 31),
    ]  # fmt: skip
    if name in ("acosh", "log1p", "atanh", "acos", "asin"):
        parts += [1 + 10.0 ** rng.uniform(-9, 2, count), 1 - 10.0 ** rng.uniform(-9, 0, count)]
    return np.concatenate([np.asarray(p).astype(dtype) for p in parts])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", UNARY)
def test_within_two_ulp(level, name, dtype):
    if dtype == np.float64 and not LONG:
        pytest.skip("long double is no longer than double")
    slow = name in MPMATH and dtype == np.float64
    x = samples(name, dtype, 60 if slow else 2500)
    expected = exact(name, x)
    error, at = ulps(apply(level, name, x), expected)
    assert error <= 2.0, (error, at)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", BINARY)
@np.errstate(all="ignore")
def test_two_arguments_within_two_ulp(level, name, dtype):
    if dtype == np.float64 and not LONG:
        pytest.skip("long double is no longer than double")
    x, y = two_samples(name, dtype)
    error, at = ulps(apply(level, name, x, y), exact(name, x, y))
    assert error <= 2.0, (error, at)


@np.errstate(all="ignore")
def two_samples(name: str, dtype):
    """Pairs of numbers: of all sizes, special values, and powers that are finite or close to 1."""
    rng = np.random.default_rng(1)
    x, y = samples(name, dtype, 1500), samples(name, dtype, 1500)
    every = [
        a.ravel().astype(dtype) for a in np.meshgrid(SPECIAL, [*SPECIAL, 1e300, 7.0, 2.0**53, 2.0**52 + 1])
    ]
    sized = np.exp(rng.uniform(-20, 20, 4000)).astype(dtype)
    small = (rng.uniform(-700, 700, 4000) / np.log(sized.astype(np.float64))).astype(dtype)
    near = (1 + rng.uniform(-1, 1, 4000) * 10.0 ** rng.uniform(-12, 0, 4000)).astype(dtype)
    x = np.concatenate([x, every[0], sized, np.abs(near), rng.uniform(0, 3, 4000).astype(dtype)])
    y = np.concatenate(
        [rng.permutation(y), every[1], small, sized * 1000, rng.integers(-9, 9, 4000).astype(dtype)]
    )
    return x, y


@pytest.mark.parametrize("name", [n for n in UNARY if n not in functions.OWN32])
def test_float32_without_float64_within_two_ulp(level, name):
    """The forms for devices that have no float64."""
    x = samples(name, np.float32, 5000)
    error, at = ulps(apply(level, name, x, float64=False), exact(name, x))
    assert error <= 2.0, (error, x[at])


@pytest.mark.parametrize("name", BINARY)
@np.errstate(all="ignore")
def test_two_arguments_without_float64(level, name):
    """Where the terms of ``logaddexp`` cancel, the error is at most 2⁻²⁶ of the larger one."""
    x, y = two_samples(name, np.float32)
    found, wanted = apply(level, name, x, y, float64=False), exact(name, x, y)
    if name.startswith("logaddexp"):
        small = np.abs(wanted) < 0.1 * np.abs(np.maximum(x, y))
        limit = 2.0**-26 * np.abs(np.maximum(x, y)) + 2 * np.spacing(np.abs(wanted).astype("f4"))
        assert (np.abs(found.astype(wanted.dtype) - wanted) <= limit)[small].all()
        found, wanted = found[~small], wanted[~small]
    error, at = ulps(found, wanted)
    assert error <= 2.0, (error, at)


def test_square_roots_are_exact(level):
    x = np.abs(samples("sqrt", np.float32, 1000))
    x[np.isnan(x)] = np.nan  # no signalling NaN: NumPy warns of it
    np.testing.assert_array_equal(apply(level, "sqrt", x), np.sqrt(x))
