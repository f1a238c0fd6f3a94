"""The first-order optimisers: each one is the formula of its update.

Options stand in each signature, though many share them: editors, type checkers and ``help`` read them there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from adjoint.core.namespace import Namespace
from adjoint.errors import ArgumentError
from adjoint.optim.formula import in_place
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

    @in_place
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

    def numbers(self, hyper: Hyper) -> Hyper:
        """Return the rate and ε with the corrections of both moments in them.

        lr m̂ / (√v̂ + ε) = lr c/(1-β₁ᵗ) · m / (√v + ε c), with c = √(1-β₂ᵗ): two passes fewer.
        """
        (b1, b2), t = hyper["betas"], hyper["step"]
        c = math.sqrt(1 - b2**t)
        return {**hyper, "rate": hyper["lr"] * c / (1 - b1**t), "eps": hyper["eps"] * c}

    @in_place
    def apply_one(self, xp: Namespace, p: Any, g: Any, state: State, hyper: Hyper) -> tuple[Any, State]:
        """Step by the ratio of the moments, corrected for their start at zero."""
        lr, (b1, b2) = hyper["lr"], hyper["betas"]
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
        return p - m / (xp.sqrt(v) + hyper["eps"]) * hyper["rate"], new


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

    def numbers(self, hyper: Hyper) -> Hyper:
        """Return the factors of gradient and moment.

        μ_t = β₁ (1 - 0.96^(t·decay) / 2); the product of all μ corrects the moment.
        """
        lr, (b1, b2), t, decay = hyper["lr"], hyper["betas"], hyper["step"], hyper["momentum_decay"]
        now, following = (b1 * (1.0 - 0.5 * 0.96 ** (n * decay)) for n in (t, t + 1))
        product = _mu_product(b1, decay, t)
        return {
            **hyper,
            "square": 1 - b2**t,
            "of_gradient": lr * (1 - now) / (1 - product),
            "of_moment": lr * following / (1 - product * following),
        }

    @in_place
    def apply_one(self, xp: Namespace, p: Any, g: Any, state: State, hyper: Hyper) -> tuple[Any, State]:
        """Step along the gradient and the moment, both divided by the root mean square."""
        b1, b2 = hyper["betas"]
        if hyper["weight_decay"]:
            g = g + hyper["weight_decay"] * p
        m = state["m"] + (1 - b1) * (g - state["m"])
        v = b2 * state["v"] + (1 - b2) * (g * g)
        scale = xp.sqrt(v / hyper["square"]) + hyper["eps"]
        p = p - hyper["of_gradient"] * g / scale
        return p - hyper["of_moment"] * m / scale, {"m": m, "v": v}


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

    @in_place
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

    def numbers(self, hyper: Hyper) -> Hyper:
        """Return the rate of this step, lr / (1 + (t - 1) · lr_decay)."""
        return {**hyper, "rate": hyper["lr"] / (1 + (hyper["step"] - 1) * hyper["lr_decay"])}

    @in_place
    def apply_one(self, xp: Namespace, p: Any, g: Any, state: State, hyper: Hyper) -> tuple[Any, State]:
        """p ← p - rate · g / (√Σg² + ε)."""
        if hyper["weight_decay"]:
            g = g + hyper["weight_decay"] * p
        total = state["total"] + g * g
        return p - hyper["rate"] * g / (xp.sqrt(total) + hyper["eps"]), {"total": total}


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

    @in_place
    def apply_one(self, xp: Namespace, p: Any, g: Any, state: State, hyper: Hyper) -> tuple[Any, State]:
        """p ← p - lr (sign(β₁m + (1-β₁)g) + λp);  m ← β₂m + (1-β₂)g."""
        lr, (b1, b2), m = hyper["lr"], hyper["betas"], state["m"]
        direction = xp.sign(b1 * m + (1 - b1) * g)
        if hyper["weight_decay"]:
            direction = direction + hyper["weight_decay"] * p
        return p - lr * direction, {"m": b2 * m + (1 - b2) * g}
