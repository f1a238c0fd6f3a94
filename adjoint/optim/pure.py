"""Updates of an optimiser as functions of parameters, gradients and state, without changing any tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint import tree
from adjoint.context import tracing, user_code, within
from adjoint.core.convert import asarray
from adjoint.core.lifted import run_at
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import ArgumentError, DTypeError, InputError, ShapeError
from adjoint.ops.half import is_half, widened
from adjoint.ops.reduce import narrowed
from adjoint.optim.optimizer import Optimizer

__all__ = ["Pure"]


class Pure:
    """An optimiser as two functions: ``init`` returns a state, ``update`` new parameters and a new state.

    Nothing is changed in place, so ``update`` can be used in ``ad.vmap``, ``ad.scan`` and ``ad.compile``.

    Parameters
    ----------
    kind : type
        The class of the optimiser, such as ``ad.optim.Adam``.
    **hyper : object
        Its hyper-parameters, such as ``lr``.

    Raises
    ------
    InputError
        If ``kind`` is not a subclass of ``Optimizer``.  ``LBFGS`` is not one.
    ArgumentError
        If the optimiser cannot be written as a pure function.  ``NAdam`` cannot: it computes with the step
        count in Python.

    Examples
    --------
    >>> import adjoint as ad
    >>> adam = ad.optim.Pure(ad.optim.Adam, lr=0.1)
    >>> loss = lambda p: (p["w"] ** 2).sum()
    >>> def step(p, state, rate):
    ...     return adam.update(p, ad.grad(loss)(p), state, lr=rate)
    >>> nets = {"w": ad.ones((3, 2))}
    >>> p, state = ad.vmap(step)(nets, ad.vmap(adam.init)(nets), ad.tensor([0.1, 0.2, 0.3]))
    >>> p["w"][:, 0]
    tensor([0.9, 0.8, 0.7], dtype=float64)
    """

    def __init__(self, kind: type[Optimizer], **hyper: Any) -> None:
        if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
            raise InputError(f"Pure: kind must be a class of optimisers, such as optim.Adam, not {kind!r}.")
        if not kind.pure:
            raise ArgumentError(
                f"Pure: {kind.__name__} cannot be used, because it counts its steps in Python.\n"
                "  Use SGD, Adam, AdamW, RMSprop, Adagrad or Lion."
            )
        # an optimiser of one dummy parameter: the constructor checks the hyper-parameters.  It is created
        # outside of all transforms, so that a Pure can be created inside a transform.
        made = lambda: kind([wrap(np.zeros(1)).requires_grad_()], **hyper)
        self._optimizer = within(tracing, None, run_at, None, made)
        self._hyper = self._optimizer.groups[0].hyper

    def __repr__(self) -> str:
        return f"Pure({self._optimizer!r})"

    def init(self, params: Any) -> dict[str, Any]:
        """Return the state before the first update.

        Parameters
        ----------
        params : tensor, array or tree of them
            The parameters.

        Returns
        -------
        dict
            ``"step"``: the number of updates so far; ``"slots"``: a list with one dictionary of state tensors
            per parameter.
        """
        slots = []
        for p in map(_checked, tree.leaves(params)):
            start = self._optimizer.init_one(np.zeros(1, p.dtype), self._hyper)
            slots.append({k: wrap(np.full(p.shape, v[0], v.dtype)) for k, v in start.items()})
        return {"step": wrap(np.zeros(())), "slots": slots}

    def update(
        self, params: Any, grads: Any, state: dict[str, Any], **changes: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Return the parameters and the state after an update.

        Parameters
        ----------
        params : tensor, array or tree of them
            The parameters.
        grads : tensor, array or tree of them
            Their gradients, as ``ad.grad`` returns them.
        state : dict
            The state, from ``init`` or from the update before.
        **changes : object
            Hyper-parameters to override in this update, such as ``lr``.  The values may be tensors.

        Returns
        -------
        tuple
            The new parameters and the new state.

        Raises
        ------
        ArgumentError
            If a name in ``changes`` is not a hyper-parameter, or its value is out of range.
        TransformError
            If the gradients and the parameters are trees of different structure.
        ShapeError
            If a gradient and its parameter have different shapes.
        """
        unknown = sorted(changes.keys() - self._hyper.keys())
        if unknown:
            raise ArgumentError(
                f"update: {type(self._optimizer).__name__} has no hyper-parameter {', '.join(unknown)}."
            )
        leaves, structure = tree.flatten(params)
        gradients = tree.flatten_like(structure, grads, "update: grads")
        if len(state["slots"]) != len(leaves):
            raise InputError(
                f"update: there are {len(leaves)} parameters, but the state is that of "
                f"{len(state['slots'])}.\n  Pass the state that init returned for these parameters."
            )
        numbers = {k: v for k, v in changes.items() if type(v) in (int, float, bool)}
        self._optimizer.check({**self._hyper, **numbers})
        step = asarray(state["step"]) + 1.0
        hyper = self._optimizer.numbers({**self._hyper, **changes, "step": step})
        found = [
            self._one(_checked(p), asarray(g), s, hyper)
            for p, g, s in zip(leaves, gradients, state["slots"], strict=True)
        ]
        return (
            tree.unflatten(structure, [p for p, _ in found]),
            {"step": step, "slots": [s for _, s in found]},
        )

    def _one(self, p: Tensor, g: Tensor, slots: dict[str, Any], hyper: dict[str, Any]) -> tuple[Tensor, Any]:
        """Return the new value and the new state of parameter ``p`` after an update by its gradient ``g``.

        ``slots`` has the state arrays of ``p`` before the update by name.
        """
        if g.shape != p.shape:
            raise ShapeError(
                f"update: a gradient has shape {g.shape}, but its parameter has shape {p.shape}."
            )
        dtype = p.dtype
        g = g if g.dtype == dtype else rec.astype(g, dtype=dtype)
        p, g = widened(rec, p), widened(rec, g)  # half precision is updated in float32, and rounded once
        fitting = {
            k: rec.astype(v, dtype=p.dtype) if isinstance(v, Tensor) and v.dtype != p.dtype else v
            for k, v in hyper.items()
        }
        kept = {name: widened(rec, asarray(value)) for name, value in slots.items()}
        apply_one = user_code(self._optimizer, "apply_one")
        new, fresh = apply_one(rec, p, -g if hyper["maximize"] else g, kept, fitting)
        return narrowed(new, dtype), {k: narrowed(v, asarray(slots[k]).dtype) for k, v in fresh.items()}


def _checked(p: Any) -> Tensor:
    """Return a parameter as a tensor; raise if its dtype is not a real float."""
    p = asarray(p)
    if p.dtype.kind != "f" and not is_half(p):
        raise DTypeError(f"Pure: a parameter must have a real float dtype, but one has {p.dtype}.")
    return p
