"""The float32 functions of WebGPU within 2 ulp, as its compilers, which may reorder additions, compile them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

special = pytest.importorskip("scipy.special")

from webgpu import on_webgpu  # noqa: E402

import adjoint as ad  # noqa: E402
import adjoint.scipy.special as functions  # noqa: E402

SPECIAL = np.array([0, -0.0, np.inf, -np.inf, np.nan, *(s * x for s in (1, -1) for x in
                    (1, 0.5, 2, 3, 8, 10, 100, 1e30, 1e-30, 1e10, 1e-4))], "f4")  # fmt: skip
TINY = float(np.finfo("f4").tiny)


def dense(low: float, high: float) -> Any:
    return np.random.default_rng(0).uniform(low, high, 4000)


def sizes(low: float, high: float) -> Any:
    """Numbers of both signs and of all sizes."""
    r = np.random.default_rng(1)
    return np.exp(r.uniform(np.log(low), np.log(high), 4000)) * r.choice([-1, 1], 4000)


ANGLES = np.concatenate(
    [dense(-10, 10), dense(-4000, 4000), sizes(1e-6, 3e38), np.arange(-40, 41) * np.pi / 4]
)
POSITIVE = np.concatenate([np.abs(sizes(1e-37, 3e38)), dense(0.5, 2)])
UNARY: dict[str, tuple[Callable[..., Any], Callable[..., Any], Any]] = {
    "sin": (ad.sin, np.sin, ANGLES), "cos": (ad.cos, np.cos, ANGLES), "tan": (ad.tan, np.tan, ANGLES),
    "arcsin": (ad.arcsin, np.arcsin, np.append(dense(-1, 1), sizes(1e-8, 1))),
    "arccos": (ad.arccos, np.arccos, np.append(dense(-1, 1), sizes(1e-8, 1))),
    "arctan": (ad.arctan, np.arctan, np.append(dense(-10, 10), sizes(1e-20, 1e20))),
    "sinh": (ad.sinh, np.sinh, np.append(dense(-90, 90), sizes(1e-10, 90))),
    "cosh": (ad.cosh, np.cosh, np.append(dense(-90, 90), sizes(1e-10, 90))),
    "tanh": (ad.tanh, np.tanh, np.append(dense(-10, 10), sizes(1e-10, 90))),
    "arcsinh": (ad.arcsinh, np.arcsinh, np.append(dense(-10, 10), sizes(1e-20, 1e38))),
    "arccosh": (ad.arccosh, np.arccosh, np.append(dense(1, 10), 1 + np.abs(sizes(1e-7, 1e30)))),
    "arctanh": (ad.arctanh, np.arctanh, np.append(dense(-1, 1), sizes(1e-20, 1))),
    "exp": (ad.exp, np.exp, np.append(dense(-110, 100), sizes(1e-10, 90))),
    "exp2": (ad.exp2, np.exp2, np.append(dense(-150, 140), sizes(1e-10, 90))),
    "expm1": (ad.expm1, np.expm1, np.append(dense(-20, 90), sizes(1e-20, 90))),
    "log": (ad.log, np.log, POSITIVE), "log2": (ad.log2, np.log2, POSITIVE), "log10": (ad.log10, np.log10, POSITIVE),
    "log1p": (ad.log1p, np.log1p, np.append(dense(-1, 10), sizes(1e-20, 1e38))),
    "cbrt": (ad.cbrt, np.cbrt, sizes(1e-37, 3e38)), "sqrt": (ad.sqrt, np.sqrt, POSITIVE),
    "erf": (functions.erf, special.erf, np.append(dense(-5, 5), sizes(1e-20, 5))),
    "erfc": (functions.erfc, special.erfc, np.append(dense(-5, 11), sizes(1e-20, 10))),
    "ndtr": (functions.ndtr, special.ndtr, np.append(dense(-14, 6), sizes(1e-20, 10))),
}  # fmt: skip
PAIRS = np.append(sizes(1e-30, 1e30), dense(-5, 5)), np.append(sizes(1e-30, 1e30), dense(-5, 5)[::-1])
POWERS = np.append(np.abs(sizes(1e-5, 1e5)), dense(0.9, 1.1)), np.append(dense(-20, 20), dense(-800, 800))
WHOLE = np.append(POWERS[0], dense(-9, 9)), np.append(POWERS[1], np.rint(dense(-12, 12)))
BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, Any]]] = {
    "pow": (lambda x, y: x**y, np.power, WHOLE), "arctan2": (ad.arctan2, np.arctan2, PAIRS),
    "hypot": (ad.hypot, np.hypot, PAIRS), "fmod": (ad.fmod, np.fmod, PAIRS),
    "logaddexp": (ad.logaddexp, np.logaddexp, PAIRS), "logaddexp2": (ad.logaddexp2, np.logaddexp2, PAIRS),
}  # fmt: skip


@np.errstate(all="ignore")
def check(name: str, f: Any, reference: Any, *given: Any) -> None:
    """Compare with NumPy in a longer format; subnormal results may be 0."""
    found = on_webgpu(f)(*map(ad.tensor, given)).numpy()
    longer = "f8" if reference in (special.erf, special.erfc, special.ndtr) else np.longdouble
    wanted = reference(*(x.astype(longer) for x in given))
    near = wanted.astype("f4")
    unit = np.maximum(np.spacing(np.abs(np.where(np.isfinite(near), near, 0))), TINY * 1.2e-7).astype("f8")
    limit = 2 * unit
    if name.startswith("logaddexp"):  # its terms may cancel
        limit = limit + 2.0**-26 * np.abs(np.maximum(*given))
    good = (found == near) | (np.isnan(found) & np.isnan(near)) | (np.abs(found - wanted) <= limit)
    good |= (np.abs(wanted) < TINY) & (np.abs(found) <= TINY)
    good |= np.isinf(found) & (np.abs(wanted) > np.finfo("f4").max * (1 - 1e-6)) & (found * wanted > 0)
    good &= (np.signbit(found) == np.signbit(near)) | (near != 0) | (wanted != 0)
    bad = np.flatnonzero(~good)[:5]
    assert not len(bad), [(*(float(x[k]) for x in given), float(found[k]), float(wanted[k])) for k in bad]


@pytest.mark.parametrize("name", UNARY)
def test_within_two_ulp(name: str) -> None:
    f, reference, x = UNARY[name]
    check(name, f, reference, np.append(SPECIAL, x).astype("f4"))


@pytest.mark.parametrize("name", BINARY)
def test_two_arguments_within_two_ulp(name: str) -> None:
    f, reference, pairs = BINARY[name]
    ends = np.meshgrid(SPECIAL, SPECIAL)
    check(
        name, f, reference, *(np.append(e.ravel(), x).astype("f4") for e, x in zip(ends, pairs, strict=True))
    )
