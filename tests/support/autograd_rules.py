"""Primitives with the rules that HIPS autograd's users write, real and complex, and random programs of them.

``primitives`` makes them from the names of autograd or of adjoint; ``program`` composes some of them to a real loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

C, D = 1 + 2j, 0.5 - 0.25j
_A = numpy.array([[0.6, 0.2 + 0.3j, -0.1j], [0.1, -0.5j, 0.4], [0.3 - 0.2j, 0.1, 0.7]])

# Names, functions of arrays, and rules in autograd's convention: of c·x it is c·g.
UNARY: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "scale": (lambda np, x: C * x, lambda np, ans, x: lambda g: C * g),
    "affine": (lambda np, x: D * x + C, lambda np, ans, x: lambda g: D * g),
    "exp": (lambda np, x: np.exp(x), lambda np, ans, x: lambda g: ans * g),
    "sin": (lambda np, x: np.sin(x), lambda np, ans, x: lambda g: g * np.cos(x)),
    "square": (lambda np, x: x**2, lambda np, ans, x: lambda g: g * 2 * x),
    "inverse": (lambda np, x: 1 / (x + 3j), lambda np, ans, x: lambda g: -g * ans**2),
    "matrix": (lambda np, x: np.dot(_A, x), lambda np, ans, x: lambda g: np.dot(_A.T, g)),
    "fft": (lambda np, x: np.fft.fft(x), lambda np, ans, x: lambda g: np.fft.fft(g)),
    "ifft": (lambda np, x: np.fft.ifft(x), lambda np, ans, x: lambda g: np.fft.ifft(g)),
    "conj": (lambda np, x: np.conj(x), lambda np, ans, x: lambda g: np.conj(g)),
    "abs": (lambda np, x: np.abs(x + 3), lambda np, ans, x: lambda g: g * np.conj(x + 3) / ans),
    "angle": (
        lambda np, x: np.angle(x + 3),
        lambda np, ans, x: lambda g: g * np.conj((x + 3) * 1j) / np.abs(x + 3) ** 2,
    ),
    "real": (lambda np, x: np.real(x), lambda np, ans, x: lambda g: g + 0j),
    "imag": (lambda np, x: np.imag(x), lambda np, ans, x: lambda g: -1j * g),
    "abs2": (lambda np, x: np.abs(x) ** 2, lambda np, ans, x: lambda g: 2 * g * np.conj(x)),
    "phase": (
        lambda np, x: np.exp(1j * np.real(x)),
        lambda np, ans, x: lambda g: np.real(g * 1j * ans) + 0j,
    ),
}
BINARY: dict[str, tuple[Callable[..., Any], ...]] = {
    "times": (
        lambda np, x, y: x * y,
        lambda np, ans, x, y: lambda g: g * y,
        lambda np, ans, x, y: lambda g: g * x,
    ),
    "ratio": (
        lambda np, x, y: x / (y + 4),
        lambda np, ans, x, y: lambda g: g / (y + 4),
        lambda np, ans, x, y: lambda g: -g * ans / (y + 4),
    ),
    "mixed": (
        lambda np, x, y: C * x + D * np.conj(y),
        lambda np, ans, x, y: lambda g: C * g,
        lambda np, ans, x, y: lambda g: np.conj(D * g),
    ),
}


def primitives(np: Any, primitive: Any, defvjp: Any) -> dict[str, Any]:
    """Make the primitives; rules are written with ``np``, functions get arrays."""
    made = {}
    for name, (function, *rules) in {**UNARY, **BINARY}.items():
        f = primitive(lambda *x, function=function: function(numpy, *x))
        defvjp(f, *(lambda *known, rule=rule: rule(np, *known) for rule in rules))
        made[name] = f
    return made


def point(seed: int) -> tuple[Any, Any]:
    """A real and a complex vector."""
    rng = numpy.random.default_rng([seed, 1])
    x = rng.normal(size=3)
    return x, rng.normal(size=3) + 1j * rng.normal(size=3)


def program(seed: int, np: Any, made: dict[str, Any]) -> Callable[[Any, Any], Any]:
    """Return a real function of the vectors of ``point``: primitives, and functions of the library between them."""

    def loss(x: Any, z: Any) -> Any:
        rng = numpy.random.default_rng(seed)
        values = [x + 0j, z, x] if rng.random() < 0.5 else [x * C, z]
        for _ in range(rng.integers(1, 6)):
            v, w = (values[i] for i in rng.integers(len(values), size=2))
            kind = rng.integers(4)
            if kind == 0:
                y = made[rng.choice(list(BINARY))](v + 0j, w + 0j)
            elif kind == 1:
                y = np.tanh(np.abs(v)) + w * 0.5j
            else:
                y = made[rng.choice(list(UNARY))](v + 0j if rng.random() < 0.9 else v)
            values.append(y / (1 + np.sum(np.abs(y) ** 2)))
        weights = numpy.cos(numpy.arange(3.0) + 1)
        total = np.sum(np.abs(x * z) ** 2)
        for k, v in enumerate(values):
            total = total + np.sum(weights * np.sin(np.real(np.exp(0.3j * k) * v)))
        return total

    return loss
