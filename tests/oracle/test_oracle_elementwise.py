"""Elementwise and special functions against PyTorch: values, gradients, double backward; real and complex."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjoint as ad

torch = pytest.importorskip("torch")

from oracle import Row, agree, complex_, exactly, real  # noqa: E402  after importorskip

S, T = ad.special, torch.special

# One argument: where it is smooth, and PyTorch's name where it differs.
WHERE = {
    "abs": (-2, 2), "acos": (-0.8, 0.8), "acosh": (1.2, 3), "asin": (-0.8, 0.8), "asinh": (-2, 2),
    "atan": (-2, 2), "atanh": (-0.8, 0.8), "ceil": (0.1, 0.9), "cos": (-2, 2), "cosh": (-2, 2),
    "deg2rad": (-90, 90), "exp": (-2, 2), "exp2": (-2, 2), "expm1": (-2, 2), "floor": (0.1, 0.9),
    "log": (0.3, 3), "log10": (0.3, 3), "log1p": (-0.6, 3), "log2": (0.3, 3), "nan_to_num": (-2, 2),
    "negative": (-2, 2), "positive": (-2, 2), "rad2deg": (-2, 2), "reciprocal": (0.4, 2), "relu": (-2, 2),
    "round": (0.6, 1.4), "sigmoid": (-2, 2), "sign": (-2, 2), "sin": (-2, 2), "sinh": (-2, 2),
    "sqrt": (0.3, 3), "square": (-2, 2), "tan": (-1, 1), "tanh": (-2, 2), "trunc": (0.1, 0.9),
    "angle": (-2, 2), "sinc": (-2, 2), "conj": (-2, 2), "rint": (0.6, 1.4), "copy": (-2, 2),
}  # fmt: skip
NAMES = {"copy": "clone", "rint": "round", "conj": "conj_physical"}
# Two arguments, between these bounds.
PAIRS = {
    "add": (-2, 2), "atan2": (-2, 2), "copysign": (-2, 2), "divide": (0.4, 2), "float_power": (0.3, 2),
    "fmax": (-2, 2), "fmin": (-2, 2), "fmod": (0.4, 2), "hypot": (-2, 2),
    "logaddexp": (-2, 2), "logaddexp2": (-2, 2), "maximum": (-2, 2), "minimum": (-2, 2), "multiply": (-2, 2),
    "pow": (0.3, 2), "remainder": (0.4, 2), "subtract": (-2, 2),
}  # fmt: skip
SPECIAL = {
    "digamma": (0.3, 4), "entr": (0.1, 2), "erf": (-2, 2), "erfc": (-2, 2), "erfcx": (-1, 3), "erfinv": (-0.9, 0.9),
    "expit": (-3, 3), "gammaln": (0.3, 4), "i0": (-2, 2), "i0e": (0.2, 2), "i1": (0.2, 2), "i1e": (0.2, 2),
    "log_ndtr": (-4, 3), "logit": (0.1, 0.9), "ndtr": (-3, 3), "ndtri": (0.1, 0.9), "psi": (0.3, 4), "sinc": (0.2, 2),
}  # fmt: skip
HOLOMORPHIC = """
    acos acosh asin asinh atan atanh cos cosh exp exp2 expm1 log log10 log1p log2 negative positive reciprocal
    sigmoid sin sinh sqrt square tan tanh copy sinc
""".split()
NOT_HOLOMORPHIC = ["abs", "angle", "conj", "real", "imag", "sign"]


def theirs(name: str) -> Callable[..., Any]:
    return getattr(torch, {"sign": "sgn", **NAMES}.get(name, name))


def after(function: Any) -> Callable[..., Any]:
    """Square the output, so that the double backward of linear functions has something to show."""
    return lambda *args: (lambda y: y * y)(function(*args))


ROWS = [
    *(Row(n, getattr(ad, n), theirs(n), real((2, 3), low=a, high=b)) for n, (a, b) in WHERE.items()),
    *(
        Row(n, getattr(ad, n), theirs(n), real((2, 3), (2, 3), low=a, high=b))
        for n, (a, b) in PAIRS.items()
    ),
    *(
        Row(n, getattr(ad, n), theirs(n), real((2, 1), (3,), low=a, high=b), "broadcast")
        for n, (a, b) in PAIRS.items()
    ),
    *(Row(n, getattr(S, n), getattr(T, n), real((2, 3), low=a, high=b), "special") for n, (a, b) in SPECIAL.items()),
    *(
        Row(n, getattr(ad, n), theirs(n), real((50,), low=a, high=b, dtype=np.float32), "float32", 1, 1e-5, 1e-6)
        for n, (a, b) in WHERE.items()
    ),
    Row("floor_divide", ad.floor_divide, torch.floor_divide, real((9,), (9,)), order=0),
    Row("polygamma", lambda x: S.polygamma(2, x), lambda x: T.polygamma(2, x), real((3,), low=0.5, high=3)),
    Row("multigammaln", lambda x: S.multigammaln(x, 2), lambda x: T.multigammaln(x, 2), real((3,), low=1, high=3)),
    Row("log_expit", S.log_expit, torch.nn.functional.logsigmoid, real((3,))),
    Row("xlogy", S.xlogy, T.xlogy, real((2, 3), (3,), low=0.2, high=2)),
    Row("xlog1py", S.xlog1py, T.xlog1py, real((2, 3), (3,), low=0.2, high=2)),
    Row("gamma", S.gamma, lambda x: torch.exp(torch.lgamma(x)), real((3,), low=0.5, high=3)),
    Row("where", lambda c, x, y: ad.where(c > 0, x, y), lambda c, x, y: torch.where(c > 0, x, y), real((2, 3), (3,), (2, 1))),
    Row("clip", lambda x: ad.clip(x, -0.5, 0.5), lambda x: torch.clip(x, -0.5, 0.5), real((9,))),
    Row("clip", lambda x: ad.clip(x, max=0.5), lambda x: torch.clip(x, max=0.5), real((9,)), "above"),
    Row("clip", ad.clip, torch.clip, exactly([-1.0, 0.2, 3.0], [-0.5, 0.0, 0.1], [0.5, 0.7, 0.9]), "tensors"),
    Row("clip", ad.clip, torch.clip, exactly([-1.0, 0.2, 3.0], [-0.5], [0.7]), "broadcast"),
    Row("ldexp", ad.ldexp, lambda x, n: x * 2.0**n, lambda rng: (rng.normal(size=3), np.array([-2, 0, 3]))),
    Row("astype", lambda x: ad.astype(x, np.float32), lambda x: x.float(), real((3,)), rtol=1e-6),
    Row("nan_to_num", lambda x: ad.nan_to_num(x, 1.0, 2.0, 3.0), lambda x: torch.nan_to_num(x, 1.0, 2.0, 3.0),
        exactly([1.0, np.nan, np.inf, -np.inf]), "not finite"),
    Row("angle", ad.angle, torch.angle, exactly([-1.0, 2.0, 0.0]), "real"),
]  # fmt: skip

# Powers: literal and tensor exponents, at 0 and for negative bases.
BASES = [-2.0, -0.5, 0.0, 0.7, 3.0]
POWERS = [
    *(
        Row("pow", lambda x, n=n: x**n, lambda x, n=n: x**n, exactly(BASES), f"literal {n}")
        for n in (0, 1, 2, 3, 4, 5, 0.0, 1.0, 2.0, 3.0)
    ),
    *(
        Row("pow", lambda x, n=n: x**n, lambda x, n=n: x**n, exactly([-2.0, -0.5, 0.7, 3.0]), f"literal {n}")
        for n in (-1, -2, -3, -1.0, -2.0)
    ),
    *(Row("pow", lambda x, n=n: x**n, lambda x, n=n: x**n, exactly([0.5, 0.7, 3.0])) for n in (0.5, 1.5, -0.3)),
    *(Row("pow", lambda y, b=b: b**y, lambda y, b=b: b**y, real((5,)), f"base {b}") for b in (2, 0.5, 10, 1)),
    Row("pow", lambda x: x ** ad.tensor([0, 1, 2, 3, 4]), lambda x: x ** torch.tensor([0, 1, 2, 3, 4]), exactly(BASES), "integers"),
    Row("pow", lambda x: x ** ad.tensor([0.0, 1.0, 2.0, 3.0, 4.0]),
        lambda x: x ** torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0]), exactly(BASES), "whole floats"),
]  # fmt: skip

COMPLEX = [
    *(Row(n, getattr(ad, n), theirs(n), complex_((2, 3)), "complex", rtol=1e-8) for n in HOLOMORPHIC),
    *(Row(n, after(getattr(ad, n)), after(theirs(n)), complex_((2, 3)), "complex") for n in NOT_HOLOMORPHIC),
    *(
        Row(n, getattr(ad, n), theirs(n), complex_((2, 3), (3,)), "complex")
        for n in ("add", "subtract", "multiply", "divide", "pow")
    ),
    *(
        Row(n, getattr(ad, n), theirs(n), lambda rng: (rng.uniform(0.3, 2, (2, 3)), *complex_((3,))(rng)), "mixed")
        for n in ("add", "subtract", "multiply", "divide", "pow")
    ),
    *(
        Row(n, getattr(ad, n), theirs(n), lambda rng: (*complex_((3,))(rng), rng.uniform(0.3, 2, (2, 3))), "mixed back")
        for n in ("add", "subtract", "multiply", "divide", "pow")
    ),
    *(Row("pow", lambda x, n=n: x**n, lambda x, n=n: x**n, complex_((3,)), f"complex {n}") for n in (0, 1, 2, 3, -1, 0.5, 1j)),
    Row("pow", lambda y: 2.0**y, lambda y: 2.0**y, complex_((3,)), "complex exponent"),
    Row("pow", lambda x, y: x**y, lambda x, y: x**y, exactly([-2.0, -0.3], np.array([1 + 0.5j, 0.3 - 1j])), "negative base"),
    Row("where", lambda x, y: ad.where(ad.real(x) > 0, x, y), lambda x, y: torch.where(x.real > 0, x, y), complex_((3,), (3,)), "complex"),
    Row("astype", lambda x: ad.astype(x, np.complex128), lambda x: x.to(torch.complex128), real((3,)), "to complex"),
    Row("deg", lambda z: ad.angle(z, deg=True), lambda z: torch.rad2deg(torch.angle(z)), complex_((3,)), "angle"),
    # a real loss of complex numbers: the direction of steepest ascent
    Row("loss", lambda x, y: abs(x * y + ad.exp(x)).sum(), lambda x, y: abs(x * y + torch.exp(x)).sum(), complex_((3,), (3,))),
    Row("loss", lambda x: ad.real(ad.conj(x) * ad.sin(x)), lambda x: torch.real(torch.conj(x) * torch.sin(x)), complex_((3,)), "parts"),
]  # fmt: skip


@pytest.mark.oracle
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_agrees_with_torch(row: Row) -> None:
    agree(row)


@pytest.mark.oracle
@pytest.mark.parametrize("row", POWERS, ids=str)
def test_powers_agree_with_torch(row: Row) -> None:
    agree(row)


@pytest.mark.oracle
@pytest.mark.parametrize("row", COMPLEX, ids=str)
def test_complex_numbers_follow_torchs_convention(row: Row) -> None:
    agree(row)
