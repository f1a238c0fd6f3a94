"""The first-order optimisers, each defined by the formula of its update.

Each class declares its options in its own signature, for editors, type checkers and ``help``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint.core.docstrings import SharedDoc
from adjoint.core.namespace import Namespace
from adjoint.errors import ArgumentError
from adjoint.optim.formula import in_place
from adjoint.optim.groups import Array, Hyper, State
from adjoint.optim.optimizer import Optimizer

if TYPE_CHECKING:
    from adjoint.distributed.group import Group

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Lion", "NAdam", "RMSprop"]


_optimizer_doc = SharedDoc("""
    Parameters
    ----------
    params : iterable of Tensor or of dict
        The parameters, or groups ``{"params": [...], "lr": ...}``.
    lr : float
        The learning rate.
    momentum : float
        The factor of the velocity, from 0 to 1.
    weight_decay : float
        The factor of the parameter that is added to the gradient.
    maximize : bool
        Whether the objective is maximised.
    shard : Group, optional
        Ranks that each keep a slice of the state, as in ``Optimizer``.
    betas : tuple of float
        The decay rates of both moments, from 0 to below 1.
    eps : float
        Added to the denominator.
    amsgrad : bool
        Whether the largest second moment so far is used.
    """)


@_optimizer_doc
class SGD(Optimizer):
    """Stochastic gradient descent, with momentum and Nesterov momentum.

    ``v = momentum * v + (1 - dampening) * g;  p = p - lr * v``.  The first step sets ``v = g``.

    Parameters
    ----------
    dampening : float
        The fraction of the gradient that is not added to the velocity.
    nesterov : bool
        Whether Nesterov momentum is used.

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
        *,
        shard: Group | None = None,
    ) -> None:
        super().__init__(
            params, lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
            nesterov=nesterov, maximize=maximize, shard=shard,
        )  # fmt: skip

    def check(self, hyper: Hyper) -> None:
        """Raise if a hyper-parameter is out of range, or Nesterov momentum is used without momentum."""
        super().check(hyper)
        if hyper["nesterov"] and (not hyper["momentum"] or hyper["dampening"]):
            raise ArgumentError(
                "SGD: nesterov=True requires a momentum above 0 and dampening=0, but momentum is "
                f"{hyper['momentum']!r} and dampening is {hyper['dampening']!r}."
            )

    def init_one(self, p: Array, hyper: Hyper) -> State:
        """Return the initial velocity, or an empty dictionary without momentum.

        With dampening the velocity is NaN, so that ``apply_one`` recognises the first step.
        """
        if not hyper["momentum"]:
            return {}
        return {"velocity": np.full_like(p, np.nan if hyper["dampening"] else 0.0)}

    @in_place
    def apply_one(self, xp: Namespace, p: Any, g: Any, state: State, hyper: Hyper) -> tuple[Any, State]:
        """Return ``p`` after a step against the gradient ``g`` or the velocity, and the new velocity."""
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


@_optimizer_doc
class Adam(Optimizer):
    """Adam, optionally with AMSGrad; weight decay is added to the gradient.

    ``m = β₁ m + (1 - β₁) g;  v = β₂ v + (1 - β₂) g²;  p = p - lr m̂ / (√v̂ + ε)``.

    >>> w = ad.tensor([1.0, 2.0], requires_grad=True)
    >>> opt = ad.optim.Adam([w], lr=0.1)
    >>> (w ** 2).sum().backward(); opt.step()
    >>> [round(x, 4) for x in w.tolist()]
    [0.9, 1.9]
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
        *,
        shard: Group | None = None,
    ) -> None:
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad,
            maximize=maximize, shard=shard,
        )  # fmt: skip

    def init_one(self, p: Array, hyper: Hyper) -> State:
        """Return the initial state: both moments, with AMSGrad also the largest second moment, all zero."""
        state = super().init_one(p, hyper)
        if hyper["amsgrad"]:
            state["v_max"] = np.zeros_like(p)
        return state

    def numbers(self, hyper: Hyper) -> Hyper:
        """Return ``hyper`` with ``"rate"`` and ``"eps"`` that include the bias corrections of both moments.

        lr m̂ / (√v̂ + ε) = lr c/(1-β₁ᵗ) · m / (√v + ε c), with c = √(1-β₂ᵗ).  Correcting the numbers instead
        of the arrays saves two passes over memory.
        """
        (b1, b2), t = hyper["betas"], hyper["step"]
        c = math.sqrt(1 - b2**t) if type(t) is int else (1 - b2**t) ** 0.5  # a tensor in ``Pure``
        return {**hyper, "rate": hyper["lr"] * c / (1 - b1**t), "eps": hyper["eps"] * c}

    @in_place
    def apply_one(self, xp: Namespace, p: Any, g: Any, state: State, hyper: Hyper) -> tuple[Any, State]:
        """Return ``p`` after a step by the ratio of the bias-corrected moments, and the new moments."""
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


@_optimizer_doc
class AdamW(Adam):
    """Adam with decoupled weight decay: ``p = (1 - lr * weight_decay) * p`` before the step.

    Parameters
    ----------
    weight_decay : float
        The decay of the parameters.

    >>> w = ad.tensor([1.0, 2.0], requires_grad=True)
    >>> opt = ad.optim.AdamW([w], lr=0.1, weight_decay=0.0)
    >>> (w ** 2).sum().backward(); opt.step()
    >>> [round(x, 4) for x in w.tolist()]
    [0.9, 1.9]
    """

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
        *,
        shard: Group | None = None,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize, shard=shard)


_products: dict[tuple[float, float, int], float] = {}  # a cache: the next step multiplies by one factor


def _mu_product(b1: float, decay: float, t: int) -> float:
    """Return Π_{n≤t} b1 (1 - 0.96^(n·decay) / 2), the product of the momenta of t steps of NAdam."""
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


@_optimizer_doc
class NAdam(Optimizer):
    """Adam with Nesterov momentum, whose decay follows a schedule (Dozat 2016).

    The bias correction is computed from the current betas and the step.  If betas are changed later, the
    correction is that of a run that used the new betas from the first step.

    Parameters
    ----------
    momentum_decay : float
        The rate of the schedule of the momentum.

    >>> w = ad.tensor([1.0, 2.0], requires_grad=True)
    >>> opt = ad.optim.NAdam([w])
    >>> (w ** 2).sum().backward(); opt.step()
    """

    slots = ("m", "v")
    pure = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        maximize: bool = False,
        *,
        shard: Group | None = None,
    ) -> None:
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay,
            maximize=maximize, shard=shard,
        )  # fmt: skip

    def numbers(self, hyper: Hyper) -> Hyper:
        """Return ``hyper`` with the factors ``"of_gradient"``, ``"of_moment"`` and ``"square"`` of step t.

        They are computed from the momentum μ_t = β₁ (1 - 0.96^(t·decay) / 2) and the product μ₁ … μ_t.
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
        """Return ``p`` after a step against the gradient and the first moment, and the new moments.

        The step is divided by the root of the second moment.
        """
        b1, b2 = hyper["betas"]
        if hyper["weight_decay"]:
            g = g + hyper["weight_decay"] * p
        m = state["m"] + (1 - b1) * (g - state["m"])
        v = b2 * state["v"] + (1 - b2) * (g * g)
        scale = xp.sqrt(v / hyper["square"]) + hyper["eps"]
        p = p - hyper["of_gradient"] * g / scale
        return p - hyper["of_moment"] * m / scale, {"m": m, "v": v}


@_optimizer_doc
class RMSprop(Optimizer):
    """Divide the gradient by a running root mean square; optionally centred and with momentum.

    ``v = α v + (1 - α) g²;  p = p - lr g / (√v + ε)``.

    Parameters
    ----------
    alpha : float
        The decay rate of the mean square, from 0 to 1.
    centered : bool
        Whether the variance replaces the mean square.

    >>> w = ad.tensor([1.0, 2.0], requires_grad=True)
    >>> opt = ad.optim.RMSprop([w], lr=0.01)
    >>> (w ** 2).sum().backward(); opt.step()
    >>> [round(x, 4) for x in w.tolist()]
    [0.9, 1.9]
    """

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
        *,
        shard: Group | None = None,
    ) -> None:
        super().__init__(
            params, lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum,
            centered=centered, maximize=maximize, shard=shard,
        )  # fmt: skip

    def init_one(self, p: Array, hyper: Hyper) -> State:
        """Return the initial state, all zero: the mean square, with ``centered`` the mean, and the velocity.

        There is a velocity only with momentum.
        """
        wanted = ["v"] + ["mean"] * bool(hyper["centered"]) + ["velocity"] * bool(hyper["momentum"])
        return {name: np.zeros_like(p) for name in wanted}

    @in_place
    def apply_one(self, xp: Namespace, p: Any, g: Any, state: State, hyper: Hyper) -> tuple[Any, State]:
        """Return ``p - lr g / (√v + ε)`` and the new state, with ``v = α v + (1 - α) g²``."""
        lr, alpha = hyper["lr"], hyper["alpha"]
        if hyper["weight_decay"]:
            g = g + hyper["weight_decay"] * p
        new = {"v": alpha * state["v"] + (1 - alpha) * (g * g)}
        spread = new["v"]
        if hyper["centered"]:
            new["mean"] = state["mean"] + (1 - alpha) * (g - state["mean"])
            spread = xp.maximum(spread - new["mean"] * new["mean"], 0)  # rounding can make it negative
        step = g / (xp.sqrt(spread) + hyper["eps"])
        if hyper["momentum"]:
            step = new["velocity"] = hyper["momentum"] * state["velocity"] + step
        return p - lr * step, new


@_optimizer_doc
class Adagrad(Optimizer):
    """Divide the gradient by the root of the sum of all its squares so far.

    Parameters
    ----------
    lr_decay : float
        The decay of the learning rate: ``lr / (1 + (t - 1) * lr_decay)`` at step t.
    initial : float
        The initial value of the sums.

    >>> w = ad.tensor([1.0, 2.0], requires_grad=True)
    >>> opt = ad.optim.Adagrad([w], lr=0.1)
    >>> (w ** 2).sum().backward(); opt.step()
    >>> [round(x, 4) for x in w.tolist()]
    [0.9, 1.9]
    """

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
        *,
        shard: Group | None = None,
    ) -> None:
        super().__init__(
            params, lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, initial=initial, eps=eps,
            maximize=maximize, shard=shard,
        )  # fmt: skip

    def init_one(self, p: Array, hyper: Hyper) -> State:
        """Return the initial state: the sum of squared gradients, filled with the value of ``initial``."""
        return {"total": np.full_like(p, hyper["initial"])}

    def numbers(self, hyper: Hyper) -> Hyper:
        """Return ``hyper`` with the learning rate of step t, ``"rate": lr / (1 + (t - 1) * lr_decay)``."""
        return {**hyper, "rate": hyper["lr"] / (1 + (hyper["step"] - 1) * hyper["lr_decay"])}

    @in_place
    def apply_one(self, xp: Namespace, p: Any, g: Any, state: State, hyper: Hyper) -> tuple[Any, State]:
        """Return ``p - rate g / (√Σg² + ε)`` and the new sum of squares."""
        if hyper["weight_decay"]:
            g = g + hyper["weight_decay"] * p
        total = state["total"] + g * g
        return p - hyper["rate"] * g / (xp.sqrt(total) + hyper["eps"]), {"total": total}


@_optimizer_doc
class Lion(Optimizer):
    """Step by the sign of an interpolated momentum (Chen et al. 2023); weight decay is decoupled.

    ``p = p - lr (sign(β₁ m + (1 - β₁) g) + weight_decay p);  m = β₂ m + (1 - β₂) g``.

    Parameters
    ----------
    betas : tuple of float
        The factors of the momentum in the step and in its update.
    weight_decay : float
        The decay of the parameters.

    >>> w = ad.tensor([1.0, 2.0], requires_grad=True)
    >>> opt = ad.optim.Lion([w], lr=0.1)
    >>> (w ** 2).sum().backward(); opt.step(); w.detach()
    tensor([0.9, 1.9], dtype=float64)
    """

    slots = ("m",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        maximize: bool = False,
        *,
        shard: Group | None = None,
    ) -> None:
        super().__init__(
            params, lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize, shard=shard
        )

    @in_place
    def apply_one(self, xp: Namespace, p: Any, g: Any, state: State, hyper: Hyper) -> tuple[Any, State]:
        """Return ``p - lr (sign(β₁ m + (1 - β₁) g) + weight_decay p)`` and the momentum."""
        lr, (b1, b2), m = hyper["lr"], hyper["betas"], state["m"]
        direction = xp.sign(b1 * m + (1 - b1) * g)
        if hyper["weight_decay"]:
            direction = direction + hyper["weight_decay"] * p
        return p - lr * direction, {"m": b2 * m + (1 - b2) * g}
