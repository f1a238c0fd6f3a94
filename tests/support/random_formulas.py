"""Formulas of a vector and a number, for random programs: with adjoint, and for the numbers of ``Dual``.

``Dual`` is plain Python that nests derivatives in the simplest way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import adjoint as ad
from adjoint import nn

F2 = Callable[[Any, Any], Any]  # f(x, w)


# The reference ---------------------------------------------------------------------------------------


class Dual:
    """a + b ε, where ε² = 0; each derivative has an ε of its own, and ``level`` tells which."""

    __slots__ = ("a", "b", "level")
    __array_ufunc__ = None

    def __init__(self, level: int, a: Any, b: Any) -> None:
        self.level, self.a, self.b = level, a, b

    def __add__(self, other: Any) -> Any:
        level, (a, b), (c, d) = _aligned(self, other)
        return Dual(level, a + c, b + d)

    def __mul__(self, other: Any) -> Any:
        level, (a, b), (c, d) = _aligned(self, other)
        return Dual(level, a * c, a * d + b * c)

    def __pow__(self, n: int) -> Any:
        return _function(lambda a: a**n, lambda a: n * a ** (n - 1))(self) if n else 1.0

    def __neg__(self) -> Any:
        return self * -1.0

    def __sub__(self, other: Any) -> Any:
        return self + other * -1.0

    def __rsub__(self, other: Any) -> Any:
        return self * -1.0 + other

    def __truediv__(self, other: Any) -> Any:
        return self * (inverse(other) if isinstance(other, Dual) else 1.0 / other)

    def __rtruediv__(self, other: Any) -> Any:
        return inverse(self) * other

    __radd__, __rmul__ = __add__, __mul__


def _aligned(x: Any, y: Any) -> Any:
    level = max(v.level for v in (x, y) if isinstance(v, Dual))
    parts = ((v.a, v.b) if isinstance(v, Dual) and v.level == level else (v, 0.0) for v in (x, y))
    return (level, *parts)


def _function(f: Any, slope: Any) -> Any:
    def of(x: Any) -> Any:
        return Dual(x.level, of(x.a), of_slope(x.a) * x.b) if isinstance(x, Dual) else f(x)

    def of_slope(x: Any) -> Any:
        return slope(x)

    return of


inverse = _function(lambda a: 1.0 / a, lambda a: -(inverse(a) * inverse(a)))
sin = _function(math.sin, lambda a: cos(a))
cos = _function(math.cos, lambda a: -sin(a))
exp = _function(math.exp, lambda a: exp(a))
sqrt = _function(math.sqrt, lambda a: 0.5 * inverse(sqrt(a)))
tanh = _function(math.tanh, lambda a: 1.0 - tanh(a) * tanh(a))
_levels = itertools.count(1)


def derivative(f: F2, x: Any, w: Any, along: Any, along_w: float = 0.0) -> Any:
    """The derivative of ``f`` at (x, w) in a direction."""
    level = next(_levels)
    y = f([Dual(level, a, float(b)) for a, b in zip(x, along, strict=True)], Dual(level, w, along_w))
    return y.b if isinstance(y, Dual) and y.level == level else 0.0


def number(x: Any) -> float:
    """The value without any derivative."""
    while isinstance(x, Dual):
        x = x.a
    return float(x)


# Formulas --------------------------------------------------------------------------------------------


def _gelu(a: Any) -> Any:
    return 0.5 * a * (1.0 + tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))


def _normalized(x: Any, mean: bool) -> Any:
    middle = (x[0] + x[1] + x[2]) / 3.0 if mean else 0.0
    variance = sum((a - middle) ** 2 for a in x) / 3.0
    return [(a - middle) / sqrt(variance + 0.1) for a in x]


def _sigmoid(a: Any) -> Any:
    return 0.5 * (tanh(0.5 * a) + 1.0)


def _lstm(x: Any, w: Any) -> Any:
    gates = ad.stack([x[0], x[1] * w, x[2], x[0] * x[1]])
    h, c = nn.functional.lstm_cell(gates, (w * x[2]).reshape(1))
    return (h * c).sum() + c.sum()


def _lstm_reference(x: Any, w: Any) -> Any:
    c = _sigmoid(x[1] * w) * (w * x[2]) + _sigmoid(x[0]) * tanh(x[2])
    return _sigmoid(x[0] * x[1]) * tanh(c) * c + c


def _matrix(x: Any, w: Any) -> Any:
    return ad.stack([ad.stack([3.0 + x[0], x[1] * w]), ad.stack([x[1] * w, x[2] - 1.0])])


def _eigenvalues(x: Any, w: Any) -> Any:
    a, b, d = 3.0 + x[0], x[1] * w, x[2] - 1.0
    middle, radius = 0.5 * (a + d), sqrt(0.25 * (a - d) ** 2 + b * b)
    return middle - radius, middle + radius


def _eigh(x: Any, w: Any) -> Any:
    values = ad.linalg.eigh(_matrix(x, w))[0]
    return values[0] * values[1] ** 2 * 0.2


def _eigh_reference(x: Any, w: Any) -> Any:
    low, high = _eigenvalues(x, w)
    return low * high**2 * 0.2


def _qr(x: Any, w: Any) -> Any:
    r = ad.linalg.qr(_matrix(x, w))[1]
    return r[0, 1] * r[0, 0] + r[0, 1] ** 2


def _qr_reference(x: Any, w: Any) -> Any:
    a, b, d = 3.0 + x[0], x[1] * w, x[2] - 1.0
    square = a * a + b * b
    product = a * b + b * d  # r01 = (column 0 · column 1) / r00
    return product + product * product / square


def _solved(x: Any, w: Any) -> Any:
    m = _matrix(x, w)
    return ad.linalg.det(m) * w + ad.linalg.inv(m)[0, 1] + ad.linalg.solve(m, x[:2])[1]


def _solved_reference(x: Any, w: Any) -> Any:
    a, b, d = 3.0 + x[0], x[1] * w, x[2] - 1.0
    det = a * d - b * b
    return det * w - b / det + (a * x[1] - b * x[0]) / det


def _cholesky(x: Any, w: Any) -> Any:
    low = ad.linalg.cholesky(_matrix(x, w) + np.array([[0.0, 0.0], [0.0, 5.0]]))
    return low[1, 0] * low[1, 1]


def _cholesky_reference(x: Any, w: Any) -> Any:
    a, b, d = 3.0 + x[0], x[1] * w, x[2] + 4.0
    return b / sqrt(a) * sqrt(d - b * b / a)


def _softmax_reference(x: Any, w: Any) -> Any:
    parts = [exp(a * w) for a in x]
    return (parts[0] * x[0] + parts[1] * x[1] + parts[2] * x[2]) / (parts[0] + parts[1] + parts[2])


def _numbers(x: Any, w: Any) -> Any:
    a, b, c = ad.max(ad.tanh(x[0] * w)), ad.prod(x[1] * x[2]), ad.logsumexp(ad.sin(w))
    return ad.cumprod(a * b).sum() + ad.median(b * c) * ad.linalg.norm(ad.exp(a)) + ad.sort(c, axis=None)[0]


def _numbers_reference(x: Any, w: Any) -> Any:
    a, b, c = tanh(x[0] * w), x[1] * x[2], sin(w)
    return a * b + b * c * exp(a) + c


def _selected(x: Any, w: Any) -> Any:
    parts = ad.where(x > 0, ad.sin(x * w), x * x).sum() + ad.relu(x * w)[1] * x[0]
    return (
        parts
        + ad.max(x) * ad.sort(x)[0] * w
        + (ad.clip(x, -0.02, 0.02) * x).sum()
        + ad.maximum(x[0], x[2]) ** 2
    )


def _selected_reference(x: Any, w: Any) -> Any:
    low, high = min(x, key=number), max(x, key=number)
    total = high * low * w + max(x[0], x[2], key=number) ** 2 + (x[1] * w * x[0] if number(x[1]) > 0 else 0.0)
    for a in x:
        total = total + (sin(a * w) if number(a) > 0 else a * a) + a * float(np.clip(number(a), -0.02, 0.02))
    return total


FORMULAS: dict[str, tuple[F2, F2]] = {
    "polynomial": (
        lambda x, w: (x**3).sum() * w + x[0] * x[1] * x[2],
        lambda x, w: sum(a**3 for a in x) * w + x[0] * x[1] * x[2],
    ),
    "exp(sin)": (
        lambda x, w: ad.exp(ad.sin(x[0] * x[1] * w)) * x[2],
        lambda x, w: exp(sin(x[0] * x[1] * w)) * x[2],
    ),
    "ratio": (
        lambda x, w: ad.tanh(x).sum() / (1.0 + (w * x[1]) ** 2),
        lambda x, w: sum(map(tanh, x)) / (1.0 + (w * x[1]) ** 2),
    ),
    "gelu": (
        lambda x, w: (nn.functional.gelu(x * w, approximate="tanh") * x).sum(),
        lambda x, w: sum(_gelu(a * w) * a for a in x),
    ),
    "layer_norm": (
        lambda x, w: (nn.functional.layer_norm(x, (3,), ad.stack([w, w, 2.0 * w]), eps=0.1) ** 2)[0] + x[1],
        lambda x, w: (_normalized(x, True)[0] * w) ** 2 + x[1],
    ),
    "standardized": (
        lambda x, w: nn.functional.layer_norm(x, (3,), eps=0.1)[2] * w,
        lambda x, w: _normalized(x, True)[2] * w,
    ),
    "rms_norm": (
        lambda x, w: ad.sin(nn.functional.rms_norm(x, (3,), eps=0.1)).sum() * w,
        lambda x, w: sum(map(sin, _normalized(x, False))) * w,
    ),
    "lstm_cell": (_lstm, _lstm_reference),
    "products": (
        lambda x, w: ad.prod(x) * w + ad.cumprod(x * w).sum(),
        lambda x, w: (x[0] * x[1] * x[2] + x[0]) * w + x[0] * x[1] * w**2 + x[0] * x[1] * x[2] * w**3,
    ),
    "variance": (
        lambda x, w: ad.var(x * w) * x[0],
        lambda x, w: sum((a - (x[0] + x[1] + x[2]) / 3.0) ** 2 for a in x) * w * w * x[0] / 3.0,
    ),
    "softmax": (lambda x, w: ad.softmax(x * w) @ x, _softmax_reference),
    "solve": (_solved, _solved_reference),
    "cholesky": (_cholesky, _cholesky_reference),
    "selected": (_selected, _selected_reference),  # their gradients have marked zeros
    "numbers": (_numbers, _numbers_reference),  # tensors without axes in ops for arrays
    "eigh": (_eigh, _eigh_reference),
    "qr": (_qr, _qr_reference),
}
