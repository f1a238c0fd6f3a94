"""NumPy's polynomial functions on tensors: ``polyfit``, ``polymul``, ….  The highest power is first.

``FORMS`` maps NumPy's functions to the functions here, as in ``numpy_forms``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

from adjoint import ops
from adjoint.core.convert import array_of, asarray
from adjoint.core.tensor import Tensor
from adjoint.core.user_code import LIBRARIES, library_of
from adjoint.core.values import varies
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.ops.reduce import floating

__all__ = ["FORMS", "keeps_zeros"]

our: Callable[[str], Any] = ops.function


def _coefficients(op: str, p: Any) -> Tensor:
    p = our("atleast_1d")(p)
    if p.ndim != 1:
        raise ShapeError(f"np.{op}: coefficients must be a vector, but got shape {p.shape}.")
    return p


def keeps_zeros(frame: FrameType, p: Any) -> bool:
    """Return whether ``np.trim_zeros(p)``, which ``frame`` calls, must return ``p`` because it varies.

    ``np.poly1d`` drops leading coefficients that are 0, whose gradient would be lost.  Raise if other code of
    NumPy or SciPy does so.
    """
    if not varies(p) or library_of(frame) not in LIBRARIES:
        return False
    if not isinstance(frame.f_locals.get("self"), np.poly1d) and not array_of(p.detach()).all():
        raise InputError(
            f"{frame.f_code.co_name} of {library_of(frame)} drops coefficients that are 0, so their gradient "
            "would be lost.\n  Pass x.detach() if no gradient is needed."
        )
    return True


def _padded(p: Tensor, length: int) -> Tensor:
    return our("concat")([our("zeros")(length - p.shape[0], dtype=p.dtype), p])


def _polyadd(a1: Any, a2: Any) -> Tensor:
    a, b = _coefficients("polyadd", a1), _coefficients("polyadd", a2)
    n = max(a.shape[0], b.shape[0])
    return _padded(a, n) + _padded(b, n)


def _polysub(a1: Any, a2: Any) -> Tensor:
    return _polyadd(a1, -_coefficients("polysub", a2))


def _polymul(a1: Any, a2: Any) -> Tensor:
    # like NumPy, drop leading coefficients that are 0, unless they may have a gradient
    a, b = (np.poly1d(p).coeffs if type(p) is np.ndarray and p.ndim == 1 else p for p in (a1, a2))
    product: Any = np.convolve(_coefficients("polymul", a), _coefficients("polymul", b))
    return product


def _polyder(p: Any, m: int = 1) -> Tensor:
    p = _coefficients("polyder", p)
    if m < 0:
        raise ArgumentError(f"np.polyder: the order must not be negative, but is {m}.")
    for _ in range(m):
        n = p.shape[0]
        p = p[:-1] * np.arange(n - 1, 0, -1)
    return p


def _polyint(p: Any, m: int = 1, k: Any = None) -> Tensor:
    p = floating("polyint", _coefficients("polyint", p))
    if m < 0:
        raise ArgumentError(f"np.polyint: the order must not be negative, but is {m}.")
    constants = our("atleast_1d")(0.0 if k is None else k)
    if constants.shape[0] == 1:
        constants = our("repeat")(constants, m)
    if constants.shape[0] < m:
        raise ArgumentError(f"np.polyint: k must be one number or {m} numbers, but has {constants.shape[0]}.")
    for i in range(m):
        n = p.shape[0]
        p = our("concat")([p / np.arange(n, 0, -1), constants[i : i + 1]])
    return p


def _polydiv(u: Any, v: Any) -> tuple[Tensor, Tensor]:
    u, v = (floating("polydiv", _coefficients("polydiv", p)) for p in (u, v))
    steps = max(u.shape[0] - v.shape[0] + 1, 1)
    quotient = []
    rest = u
    if varies(v) and not array_of(v[0].detach()):  # np.poly1d keeps it; see keeps_zeros
        raise InputError(
            "np.polydiv: the leading coefficient of the divisor is 0, so the quotient has no derivative.\n"
            "  Pass the coefficients without it: v[1:]."
        )
    if u.shape[0] < v.shape[0]:
        return our("zeros")(1, dtype=np.result_type(u.dtype, v.dtype)), u
    for k in range(steps):
        d = rest[k] / v[0]
        quotient.append(d)
        rest = rest - our("pad")(d * v, (k, u.shape[0] - v.shape[0] - k))
    # like NumPy, drop leading coefficients of the remainder that are nearly 0, unless they have a gradient
    if varies(rest):
        return our("stack")(quotient), rest[min(steps, u.shape[0] - 1) :]
    size = np.abs(array_of(rest.detach()))
    first = steps
    while first < u.shape[0] - 1 and size[first] <= 1e-14:
        first += 1
    return our("stack")(quotient), rest[min(first, u.shape[0] - 1) :]


def _polyfit(
    x: Any,
    y: Any,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: Any = None,
    cov: bool | str = False,
) -> Any:
    if full or cov:
        raise InputError("np.polyfit: adjoint returns only the coefficients.  Omit full= and cov=.")
    x, y = floating("polyfit", x), floating("polyfit", y)
    powers = np.vander(x, int(deg) + 1)
    if w is not None:
        weights = asarray(w)
        powers = powers * weights[:, None]
        y = y * (weights if y.ndim == 1 else weights[:, None])
    # normalise the columns, as NumPy does, which reduces rounding errors
    scale = our("sqrt")(our("sum")(powers * powers, axis=0))
    limit = x.shape[0] * float(np.finfo(x.dtype).eps) if rcond is None else rcond
    solution: Tensor = ops.linalg.lstsq(powers / scale, y, rcond=limit)[0]
    return solution / (scale if y.ndim == 1 else scale[:, None])


def _poly(seq_of_zeros: Any) -> Tensor:
    zeros = our("atleast_1d")(seq_of_zeros)
    if zeros.ndim == 2 and zeros.shape[0] == zeros.shape[1] and zeros.shape[0]:
        raise InputError("np.poly: pass the zeros, not a matrix.  For a matrix, pass its eigenvalues.")
    if zeros.ndim != 1:
        raise ShapeError(f"np.poly: the zeros must be a vector, but got shape {zeros.shape}.")
    p = our("ones")(1, dtype=floating("poly", zeros).dtype)
    for i in range(zeros.shape[0]):
        p = our("pad")(p, (0, 1)) - zeros[i] * our("pad")(p, (1, 0))
    return p


FORMS: dict[Any, Callable[..., Any]] = {
    getattr(np, f.__name__[1:]): f
    for f in (
        _poly, _polyadd, _polysub, _polymul, _polydiv, _polyder, _polyint, _polyfit,
    )
}  # fmt: skip
