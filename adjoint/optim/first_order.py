"""The first-order optimisers: each one is the formula of its update.

Options stand in each signature, though many share them: editors, type checkers and ``help`` read them there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from adjoint.core.namespace import Namespace
from adjoint.core.spread import scratch
from adjoint.errors import ArgumentError
from adjoint.optim.groups import Array, Hyper, State
from adjoint.optim.optimizer import Optimizer

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Lion", "NAdam", "RMSprop"]


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum and Nesterov's form of it.

    v ← momentum · v + (1 - dampening) · g;  p ← p - lr · v.  The first step sets v = g.

    >>> import adjoint as ad
    >>> w = ad.tensor([1.0, 2.0], requires_grad=True)
    >>> opt = ad.optim.SGD([w], lr=0.1)
    >>> (w ** 2).sum().backward(); opt.step(); w.detach()
    tensor([0.8, 1.6], dtype=float64)
    """

    slots = ("velocity",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
            maximize=maximize,
        )

    def check(self, hyper: Hyper) -> None:
        """Raise if a hyper-parameter is out of range, or has nothing to work on."""
        super().check(hyper)
        if hyper["nesterov"] and (not hyper["momentum"] or hyper["dampening"]):
            raise ArgumentError("nesterov=True needs a momentum above 0, and no dampening.")

    def init_one(self, p: Array, hyper: Hyper) -> State:
        """No state without momentum; with dampening, NaN marks a velocity that has not begun."""
        if not hyper["momentum"]:
            return {}
        return {"velocity": np.full_like(p, np.nan if hyper["dampening"] else 0.0)}

    def apply_one(self, xp: Namespace, p: Any, g: Any, state: State, hyper: Hyper) -> tuple[Any, State]:
        """Take one step down the gradient, or along the velocity."""
        if hyper["weight_decay"]:
            g = g + hyper["weight_decay"] * p
        if not hyper["momentum"]:
            return p - hyper["lr"] * g, {}
        v = hyper["momentum"] * state["velocity"]
        if hyper["dampening"]:
            v = xp.where(xp.isnan(v), g, v + (1 - hyper["dampening"]) * g)
        else:
            v = v + g
        step = g + hyper["momentum"] * v if hyper["nesterov"] else v
        return p - hyper["lr"] * step, {"velocity": v}

    def write_one(self, p: Array, g: Array, state: State, hyper: Hyper) -> None:
        """The same without temporaries, in two passes at least."""
        momentum, decay = hyper["momentum"], hyper["weight_decay"]
        if hyper["dampening"] or hyper["nesterov"] or decay or p.dtype.char not in "fd":
            super().write_one(p, g, state, hyper)
            return
        step = g
        if momentum:
            step = state["velocity"]
            np.multiply(step, momentum, step)
            np.add(step, g, step)
        # to find the scratch array takes longer than to make a small one
        a = np.multiply(step, hyper["lr"], scratch(p.size, p.dtype) if p.size > 4096 else None)
        np.subtract(p, a, p)


class Adam(Optimizer):
    """Adam, with weight decay coupled into the gradient, and AMSGrad.

    m ← β₁m + (1-β₁)g;  v ← β₂v + (1-β₂)g²;  p ← p - lr · m̂ / (√v̂ + ε).
    """

    slots = ("m", "v")
    decoupled = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, maximize=maximize
        )

    def init_one(self, p: Array, hyper: Hyper) -> State:
        """Zero moments; with AMSGrad also the largest second moment so far."""
        state = super().init_one(p, hyper)
        if hyper["amsgrad"]:
            state["v_max"] = np.zeros_like(p)
        return state

    def apply_one(self, xp: Namespace, p: Any, g: Any, state: State, hyper: Hyper) -> tuple[Any, State]:
        """Step by the ratio of the moments, corrected for their start at zero."""
        lr, (b1, b2), t = hyper["lr"], hyper["betas"], hyper["step"]
        if hyper["weight_decay"]:
            if self.decoupled:
                p = p * (1 - lr * hyper["weight_decay"])
            else:
                g = g + hyper["weight_decay"] * p
        m = state["m"] + (1 - b1) * (g - state["m"])
        v = b2 * state["v"] + (1 - b2) * (g * g)
        new = {"m": m, "v": v}
        if hyper["amsgrad"]:
            v = new["v_max"] = xp.maximum(state["v_max"], v)
        rate, eps = _corrected(lr, b1, b2, hyper["eps"], t)
        return p - m / (xp.sqrt(v) + eps) * rate, new

    def write_one(self, p: Array, g: Array, state: State, hyper: Hyper) -> None:
        """The same in twelve passes, with one scratch array."""
        if hyper["amsgrad"] or hyper["weight_decay"] or p.dtype.char not in "fd":
            super().write_one(p, g, state, hyper)
            return
        (b1, b2), m, v = hyper["betas"], state["m"], state["v"]
        c1, c2, b, rate, eps = _adam_scalars(p.dtype.char, hyper["lr"], b1, b2, hyper["eps"], hyper["step"])
        a = scratch(p.size, p.dtype)
        np.subtract(g, m, a)  # m + (1-β₁)(g - m)
        np.multiply(a, c1, a)
        np.add(m, a, m)
        np.multiply(g, g, a)  # β₂v + (1-β₂)g²
        np.multiply(a, c2, a)
        np.multiply(v, b, v)
        np.add(v, a, v)
        np.sqrt(v, a)
        np.add(a, eps, a)
        np.divide(m, a, a)
        np.multiply(a, rate, a)
        np.subtract(p, a, p)


def _corrected(lr: float, b1: float, b2: float, eps: float, t: int) -> tuple[float, float]:
    """Return Adam's learning rate and ε with the corrections of both moments in them.

    lr m̂ / (√v̂ + ε) = lr c/(1-β₁ᵗ) · m / (√v + ε c), with c = √(1-β₂ᵗ): two passes fewer.
    """
    c = math.sqrt(1 - b2**t)
    return lr * c / (1 - b1**t), eps * c


@functools.lru_cache(maxsize=16)
def _adam_scalars(char: str, lr: float, b1: float, b2: float, eps: float, t: int) -> tuple[Array, ...]:
    """Return what Adam multiplies with as 0-d arrays, which cost a call half of what Python's numbers do."""
    rate, eps = _corrected(lr, b1, b2, eps, t)
    return tuple(np.array(x, char) for x in (1 - b1, 1 - b2, b2, rate, eps))


class AdamW(Adam):
    """Adam with decoupled weight decay: p ← (1 - lr · λ) p before the step."""

    decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize)


_products: dict[tuple[float, float, int], float] = {}  # of the last steps, so that the next takes one factor


def _mu_product(b1: float, decay: float, t: int) -> float:
    """Return Π_{n≤t} b1 (1 - 0.96^(n·decay) / 2)."""
    product = _products.get((b1, decay, t))
    if product is None:
        before = _products.get((b1, decay, t - 1))
        product = 1.0 if before is None else before
        for n in range(1 if before is None else t, t + 1):
            product *= b1 * (1.0 - 0.5 * 0.96 ** (n * decay))
            if product == 0.0:
                break  # underflow: after some thousand steps the correction is 1
        if len(_products) >= 64:
            _products.clear()
        _products[b1, decay, t] = product
    return product


class NAdam(Optimizer):
    """Adam with Nesterov momentum, whose decay follows a schedule (Dozat 2016).

    The correction is a function of the step: betas that are changed on the way count as if from the start.
    """

    slots = ("m", "v")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            momentum_decay=momentum_decay,
            maximize=maximize,
        )

    def apply_one(self, xp: Namespace, p: Any, g: Any, state: State, hyper: Hyper) -> tuple[Any, State]:
        """μ_t = β₁ (1 - 0.96^(t·decay) / 2); the product of all μ corrects the moment."""
        lr, (b1, b2), t = hyper["lr"], hyper["betas"], hyper["step"]
        if hyper["weight_decay"]:
            g = g + hyper["weight_decay"] * p
        decay = hyper["momentum_decay"]
        now, following = (b1 * (1.0 - 0.5 * 0.96 ** (n * decay)) for n in (t, t + 1))
        product = _mu_product(b1, decay, t)
        m = state["m"] + (1 - b1) * (g - state["m"])
        v = b2 * state["v"] + (1 - b2) * (g * g)
        scale = xp.sqrt(v / (1 - b2**t)) + hyper["eps"]
        p = p - (lr * (1 - now) / (1 - product)) * g / scale
        return p - (lr * following / (1 - product * following)) * m / scale, {"m": m, "v": v}


class RMSprop(Optimizer):
    """Divide the gradient by a running root mean square; centred and with momentum if asked."""

    slots = ("v",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            alpha=alpha,
            eps=eps,
            weight_decay=weight_decay,
            momentum=momentum,
            centered=centered,
            maximize=maximize,
        )

    def init_one(self, p: Array, hyper: Hyper) -> State:
        """The mean square; the mean if centred; the velocity with momentum."""
        wanted = ["v"] + ["mean"] * bool(hyper["centered"]) + ["velocity"] * bool(hyper["momentum"])
        return {name: np.zeros_like(p) for name in wanted}

    def apply_one(self, xp: Namespace, p: Any, g: Any, state: State, hyper: Hyper) -> tuple[Any, State]:
        """v ← αv + (1-α)g²;  p ← p - lr · g / (√v + ε)."""
        lr, alpha = hyper["lr"], hyper["alpha"]
        if hyper["weight_decay"]:
            g = g + hyper["weight_decay"] * p
        new = {"v": alpha * state["v"] + (1 - alpha) * (g * g)}
        spread = new["v"]
        if hyper["centered"]:
            new["mean"] = state["mean"] + (1 - alpha) * (g - state["mean"])
            spread = xp.maximum(spread - new["mean"] * new["mean"], 0)  # rounding can bring it below
        step = g / (xp.sqrt(spread) + hyper["eps"])
        if hyper["momentum"]:
            step = new["velocity"] = hyper["momentum"] * state["velocity"] + step
        return p - lr * step, new


class Adagrad(Optimizer):
    """Divide the gradient by the root of the sum of all its squares so far."""

    slots = ("total",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial: float = 0.0,
        eps: float = 1e-10,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            initial=initial,
            eps=eps,
            maximize=maximize,
        )

    def init_one(self, p: Array, hyper: Hyper) -> State:
        """The sum of squares, from ``initial``."""
        return {"total": np.full_like(p, hyper["initial"])}

    def apply_one(self, xp: Namespace, p: Any, g: Any, state: State, hyper: Hyper) -> tuple[Any, State]:
        """p ← p - lr_t · g / (√Σg² + ε), with lr_t = lr / (1 + (t - 1) · lr_decay)."""
        if hyper["weight_decay"]:
            g = g + hyper["weight_decay"] * p
        total = state["total"] + g * g
        rate = hyper["lr"] / (1 + (hyper["step"] - 1) * hyper["lr_decay"])
        return p - rate * g / (xp.sqrt(total) + hyper["eps"]), {"total": total}


class Lion(Optimizer):
    """Step by the sign of an interpolated momentum (Chen et al. 2023); decay is decoupled."""

    slots = ("m",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize)

    def apply_one(self, xp: Namespace, p: Any, g: Any, state: State, hyper: Hyper) -> tuple[Any, State]:
        """p ← p - lr (sign(β₁m + (1-β₁)g) + λp);  m ← β₂m + (1-β₂)g."""
        lr, (b1, b2), m = hyper["lr"], hyper["betas"], state["m"]
        direction = xp.sign(b1 * m + (1 - b1) * g)
        if hyper["weight_decay"]:
            direction = direction + hyper["weight_decay"] * p
        return p - lr * direction, {"m": b2 * m + (1 - b2) * g}
