"""Losses that are weighted sums of named terms.  A weight is a number, a schedule or learned."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.tensor import Tensor, Traced
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.grads.backward import gradients
from adjoint.grads.norm import global_norm
from adjoint.nn.loss_reduction import noting_reductions
from adjoint.nn.module import Module, Parameter
from adjoint.ops.elementwise import exp

__all__ = ["ComposedLoss", "TermNorms", "compose"]

_GIVEN = {1: "model", 2: "prediction, target", 3: "prediction, target, model"}  # by number of arguments


def compose(terms: Mapping[str, Any]) -> ComposedLoss:
    """Return a loss that is the weighted sum of named terms.

    A trainer logs the value and the gradient norm of each term.

    Parameters
    ----------
    terms : mapping of str to callable or (callable, weight)
        The terms.  A function takes ``(prediction, target)``, ``(model)`` or ``(prediction, target,
        model)``.  A weight is a number, a schedule (a function of the step) or ``"learned"``: the term is
        then exp(-s) · term + s with a trained s (Kendall's weighting), and ``loss.parameters()`` must be
        passed to the optimiser too.

    Returns
    -------
    ComposedLoss
        The loss.

    Raises
    ------
    InputError
        If a term is not a function, or does not take one of these lists of arguments.

    Examples
    --------
    >>> import adjoint as ad
    >>> from adjoint import train
    >>> def l2(model): return sum((p ** 2).sum() for p in model.parameters())
    >>> loss = train.compose({"fit": (ad.nn.functional.mse_loss, 1.0), "l2": (l2, 1e-4)})
    >>> model = ad.nn.Linear(2, 1, rng=0).astype(float)
    >>> total = loss(model(ad.ones((3, 2))), ad.zeros((3, 1)), model)
    >>> sorted(loss.values)
    ['fit', 'l2']
    """
    return ComposedLoss(terms)


class ComposedLoss(Module):
    """A weighted sum of named terms, made by ``compose``.

    The attribute ``values`` is a dictionary of the last value of each term, before multiplication by the
    weight.  Inside ``vmap`` a term has no single value, so ``values`` does not contain it.

    Parameters
    ----------
    terms : mapping of str to callable or (callable, weight)
        The terms; see ``compose``.

    Examples
    --------
    >>> import adjoint as ad
    >>> from adjoint import train
    >>> loss = train.ComposedLoss({"fit": ad.nn.functional.mse_loss})
    >>> loss(ad.ones(2), ad.zeros(2))
    tensor(1., dtype=float64)
    """

    def __init__(self, terms: Mapping[str, Any]) -> None:
        if not isinstance(terms, Mapping) or not terms:
            raise InputError(
                "compose: terms must be a dictionary with at least one term: {name: (function, weight)}."
            )
        self.terms: dict[str, tuple[Callable[..., Any], int]] = {}
        self.weights: dict[str, Any] = {}
        self.step = 0
        self.values: dict[str, float] = {}
        self._last: dict[str, Tensor] = {}
        for name, term in terms.items():
            function, weight = term if isinstance(term, tuple) and len(term) == 2 else (term, 1.0)
            if not isinstance(name, str) or not callable(function):
                raise InputError(
                    f"compose: the term {name!r} must be a function or (function, weight), with a string "
                    "as its name."
                )
            self.terms[name] = (function, _arity(name, function))
            self.weights[name] = _checked_weight(name, weight)
            if isinstance(function, Module):
                setattr(self, f"term_{name}", function)  # registers its parameters
            if self.weights[name] == "learned":
                setattr(self, f"s_{name}", Parameter(np.zeros((), np.float32)))

    def forward(self, prediction: Any, target: Any = None, model: Any = None) -> Tensor:
        """Return the weighted sum of the terms.

        Parameters
        ----------
        prediction : array_like
            The output of the model.
        target : array_like, optional
            The expected values.
        model : Module, optional
            The model, required if a term takes it.

        Returns
        -------
        Tensor
            The loss, one number.
        """
        self._last.clear()
        self.values.clear()
        terms = self.terms_of(prediction, target, model)
        for name, value in terms.items():
            self._note(name, value)
        return self.total(terms, self.weights_now())

    def terms_of(self, prediction: Any, target: Any = None, model: Any = None) -> dict[str, Tensor]:
        """Return the terms by name, before multiplication by their weights.

        Parameters
        ----------
        prediction : array_like
            The output of the model.
        target : array_like, optional
            The expected values.
        model : Module, optional
            The model, required if a term takes it.

        Returns
        -------
        dict of str to Tensor
            The terms, one number each.
        """
        found = {}
        for name, (function, arity) in self.terms.items():
            args = {1: (model,), 2: (prediction, target), 3: (prediction, target, model)}[arity]
            if arity != 2 and model is None:
                raise InputError(
                    f"compose: the term {name!r} needs the model.  Call loss(prediction, target, model)."
                )
            try:
                value = asarray(_of_model(function, *args) if arity == 1 else function(*args))
            except Exception as error:
                error.add_note(f"In the term {name!r} of a composed loss, called with ({_GIVEN[arity]}).")
                raise
            if value.shape != ():
                raise ShapeError(
                    f"compose: the term {name!r} must be one number, but has shape {value.shape}.  "
                    "Reduce it, for example with mean()."
                )
            found[name] = value
        return found

    def weights_now(self) -> dict[str, Any]:
        """Return the weights in the current step: numbers, or ``"learned"``.

        Returns
        -------
        dict of str to float or str
            The weights by term.
        """
        return {name: float(w(self.step)) if callable(w) else w for name, w in self.weights.items()}

    def total(self, terms: Mapping[str, Tensor], weights: Mapping[str, Any]) -> Tensor:
        """Return the weighted sum of terms.

        Parameters
        ----------
        terms : mapping of str to Tensor
            The terms by name.
        weights : mapping of str to float or str
            Their weights, as ``weights_now`` returns them.

        Returns
        -------
        Tensor
            The loss, one number.
        """
        total: Any = None
        for name, value in terms.items():
            weighted = self._weighted(name, value, weights[name])
            total = weighted if total is None else total + weighted
        return total

    def _note(self, name: str, value: Tensor) -> None:
        """Store the value of the term ``name``, except inside ``vmap``, where it has several values."""
        if type(value) is not Traced:
            self._last[name] = value
        data = value._data.numbers() if type(value) is Traced else value._data
        if data is not None:
            self.values[name] = float(data)

    def _weighted(self, name: str, value: Tensor, weight: Any) -> Tensor:
        if isinstance(weight, str):
            s = getattr(self, f"s_{name}")
            return exp(-s) * value + s
        return value * weight

    def gradient_norms(self, params: Sequence[Tensor]) -> dict[str, float]:
        """Return the gradient norm of each term, without its weight.  Call this before ``backward``.

        Parameters
        ----------
        params : sequence of Tensor
            The parameters.

        Returns
        -------
        dict of str to float
            The norms by term.
        """
        norms = TermNorms(self, params)
        norms.add()
        return norms.norms()

    def release(self) -> None:
        """Release the graphs of the terms of the last call; the values of the terms are kept."""
        self._last.clear()


def _of_model(function: Callable[..., Any], model: Any) -> Any:
    """Call a term that depends only on the model, and return its value.

    Loss functions that the term calls are not recorded, because they must not affect the weight of a batch.
    """
    with noting_reductions(None):
        return function(model)


class TermNorms:
    """Compute the gradient norm of each term of a composed loss, for a batch that is split into pieces.

    This costs a backward per term and piece, and memory for one set of gradients per term.
    """

    def __init__(self, loss: ComposedLoss, params: Sequence[Tensor]) -> None:
        self.loss, self._params = loss, params
        self._sums: dict[str, list[Any]] = {}
        self._weight = 0.0

    def add(self, weight: float = 1.0) -> None:
        """Add the gradients of the terms in the last forward of the loss, multiplied by ``weight``.

        ``weight`` is the weight of the piece.  The graph is kept for the backward of the total loss.
        """
        self._weight += weight
        for name, value in self.loss._last.items():
            sums = self._sums.setdefault(name, [None] * len(self._params))
            if not weight or not value.requires_grad:
                continue
            found = gradients(value, self._params, retain_graph=True, allow_unused=True)
            for i, g in enumerate(found):
                if g is not None:
                    part = weight * np.asarray(g)  # a sparse gradient becomes dense
                    sums[i] = part if sums[i] is None else sums[i] + part

    def norms(self) -> dict[str, float]:
        """Return the norms by term, or NaN if the total weight is 0."""
        scale = 1.0 / self._weight if self._weight else math.nan
        return {
            name: scale * global_norm(s for s in sums if s is not None) for name, sums in self._sums.items()
        }


def _checked_weight(name: str, weight: Any) -> Any:
    if isinstance(weight, str) and weight == "learned":
        return weight
    if callable(weight):
        return weight
    if isinstance(weight, (int, float, np.integer, np.floating)) and math.isfinite(weight):
        return float(weight)
    raise ArgumentError(
        f"compose: the weight of {name!r} must be a finite number, a schedule or 'learned', not {weight!r}."
    )


def _arity(name: str, function: Callable[..., Any]) -> int:
    forward = function.forward if isinstance(function, Module) else function
    try:
        parameters = inspect.signature(forward).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()  # a built-in without a signature
    needed = [
        p
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    names = [p.name for p in needed]
    astray = "model" in names and names.index("model") != {1: 0, 3: 2}.get(len(names))
    if len(needed) not in _GIVEN or astray:
        raise InputError(
            f"compose: the term {name!r} must take (prediction, target), (model) or (prediction, target, "
            "model)" + (f", not ({', '.join(names)})." if names else ".")
        )
    return len(needed)
