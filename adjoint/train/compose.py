"""Compose a loss from named terms with weights that are numbers, schedules or learned."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError
from adjoint.grads.backward import gradients
from adjoint.grads.norm import global_norm
from adjoint.nn.module import Module, Parameter
from adjoint.ops.elementwise import exp

__all__ = ["ComposedLoss", "compose"]


def compose(terms: Mapping[str, Any]) -> ComposedLoss:
    """Return a loss that is the weighted sum of named terms.

    A term is ``(function, weight)``; the function takes ``(prediction, target)``, ``(model)``, or
    ``(prediction, target, model)``.  A weight is a number, a schedule (a function of the step), or
    ``"learned"``: then the term counts exp(-s) · term + s with a trained s (Kendall's weighting).

    >>> import adjoint as ad
    >>> from adjoint import train
    >>> def l2(model): return sum((p ** 2).sum() for p in model.parameters())
    >>> loss = train.compose({"fit": (ad.nn.functional.mse_loss, 1.0), "l2": (l2, 1e-4)})
    >>> model = ad.nn.Linear(2, 1, rng=0)
    >>> total = loss(model(ad.ones((3, 2))), ad.zeros((3, 1)), model)
    >>> sorted(loss.values)
    ['fit', 'l2']
    """
    return ComposedLoss(terms)


class ComposedLoss(Module):
    """A weighted sum of named terms; ``values`` has each term's last value."""

    def __init__(self, terms: Mapping[str, Any]) -> None:
        if not terms:
            raise InputError("compose: name at least one term.")
        self.terms: dict[str, tuple[Callable[..., Any], int]] = {}
        self.weights: dict[str, Any] = {}
        self.step = 0
        self.values: dict[str, float] = {}
        self.norms: dict[str, float] = {}
        self._last: dict[str, Tensor] = {}
        for name, term in terms.items():
            function, weight = term if isinstance(term, tuple) else (term, 1.0)
            if not callable(function):
                raise InputError(f"compose: the term {name!r} is not a function.")
            self.terms[name] = (function, _arity(name, function))
            if weight == "learned":
                setattr(self, f"s_{name}", Parameter(np.zeros(())))
            elif not callable(weight) and not isinstance(weight, (int, float)):
                raise ArgumentError(
                    f"compose: the weight of {name!r} is a number, a schedule or 'learned', not {weight!r}."
                )
            self.weights[name] = weight

    def forward(self, prediction: Any, target: Any = None, model: Any = None) -> Tensor:
        """Add up the terms; ``model`` is needed where a term takes it."""
        total: Any = None
        for name, (function, arity) in self.terms.items():
            args = {1: (model,), 2: (prediction, target), 3: (prediction, target, model)}[arity]
            if arity != 2 and model is None:
                raise InputError(
                    f"compose: the term {name!r} takes the model: loss(prediction, target, model)."
                )
            value = function(*args)
            self._last[name] = value
            self.values[name] = float(value.detach())
            weighted = self._weighted(name, value)
            total = weighted if total is None else total + weighted
        return total

    def _weighted(self, name: str, value: Tensor) -> Tensor:
        weight = self.weights[name]
        if weight == "learned":
            s = getattr(self, f"s_{name}")
            return exp(-s) * value + s
        return value * float(weight(self.step) if callable(weight) else weight)

    def gradient_norms(self, params: list[Tensor]) -> dict[str, float]:
        """Return, per term, the norm of its own gradient; call it before backward."""
        for name, value in self._last.items():
            found = (
                gradients(value, params, retain_graph=True, allow_unused=True) if value.requires_grad else ()
            )
            self.norms[name] = global_norm(g._data for g in found if g is not None)
        return self.norms


def _arity(name: str, function: Callable[..., Any]) -> int:
    forward = function.forward if isinstance(function, Module) else function
    needed = [
        p
        for p in inspect.signature(forward).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len(needed) not in (1, 2, 3):
        raise InputError(
            f"compose: the term {name!r} takes (prediction, target), (model) or (prediction, target, model)."
        )
    return len(needed)
