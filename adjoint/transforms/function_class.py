"""``Function``: an operation with its own backward, written as a class as in PyTorch."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.context import user_code
from adjoint.core.convert import asarray
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError, RuleError
from adjoint.transforms.calls import VALUES, Rule, SplitTree, apply, specs_of, zeros_for

__all__ = ["Context", "Function"]


class Context:
    """Storage that ``Function.forward`` fills for ``Function.backward``.

    Tensors are stored by ``save_for_backward``; other values may be set as attributes.

    Parameters
    ----------
    needs_input_grad : tuple of bool
        For each argument of ``apply``, whether its gradient is needed.
    """

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self._saved: tuple[Tensor | None, ...] = ()
        self._constant: set[int] = set()
        self._materialize = True

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Save tensors for the backward.

        Parameters
        ----------
        *tensors : Tensor or None
            The tensors.  A later call replaces them.

        Raises
        ------
        InputError
            If a value is not a tensor.
        """
        for t in tensors:
            if t is not None and not isinstance(t, (Tensor, np.ndarray)):
                raise InputError(
                    f"save_for_backward accepts tensors, not {type(t).__name__}.  Set it as an attribute: "
                    "ctx.n = n."
                )
        self._saved = tuple(None if t is None else asarray(t) for t in tensors)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors given to ``save_for_backward``."""
        return self._saved

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """Mark outputs through which no gradient flows.

        Parameters
        ----------
        *outputs : Tensor
            Outputs of ``forward``.
        """
        self._constant.update(map(id, outputs))

    def set_materialize_grads(self, value: bool) -> None:
        """Set whether the gradient of an unused output is zeros (the default) or None.

        Parameters
        ----------
        value : bool
            True for zeros, False for None.
        """
        self._materialize = bool(value)


_OWN = ("_constant", "_materialize", "_saved", "needs_input_grad")


class Function:
    """Base class of operations with their own backward, as in PyTorch.

    ``forward(ctx, *args)`` returns a tensor or a tuple of tensors.  ``backward(ctx, *grads)`` gets one
    gradient per output and returns one per argument, None for arguments without a gradient.  Call the
    operation by ``apply``.  Operations inside ``forward`` are not recorded.  A ``backward`` that uses ad
    functions can itself be differentiated.

    Examples
    --------
    >>> import adjoint as ad
    >>> class Square(ad.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         (x,) = ctx.saved_tensors
    ...         return 2 * g * x
    >>> x = ad.tensor(3.0, requires_grad=True)
    >>> Square.apply(x).backward()
    >>> x.grad
    tensor(6., dtype=float64)
    """

    @staticmethod
    def forward(ctx: Context, *args: Any) -> Any:
        """Compute the outputs, and store in ``ctx`` the values that the backward needs.

        Parameters
        ----------
        ctx : Context
            Storage for the backward.
        *args : object
            The arguments of ``apply``.

        Returns
        -------
        Tensor or tuple of Tensor
            The outputs.
        """
        raise NotImplementedError(  # abc cannot check it: apply makes no instance
            "a Function needs a static method forward(ctx, *args)."
        )

    @staticmethod
    def backward(ctx: Context, *grads: Any) -> Any:
        """Return the gradients of the arguments.

        Parameters
        ----------
        ctx : Context
            The storage that ``forward`` filled.
        *grads : Tensor
            One gradient per output.

        Returns
        -------
        Tensor, None or tuple
            One gradient per argument of ``forward``; None for arguments without a gradient.
        """
        raise NotImplementedError(  # a Function that is never differentiated does not need it
            "a Function needs a static method backward(ctx, *grads)."
        )

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run ``forward`` and record the call.

        Parameters
        ----------
        *args : object
            The arguments of ``forward`` after ``ctx``.

        Returns
        -------
        Tensor or tuple of Tensor
            The outputs.

        Raises
        ------
        RuleError
            If ``forward`` does not return tensors; in the backward, if ``backward`` returns the wrong
            gradients.
        """
        rule = _FunctionRule(cls, args)
        tensors = [args[i] for i in rule.at]
        outputs = apply(rule, tensors) if tensors else rule.plain([])
        outputs = [t.detach() if i in rule.constant else t for i, t in enumerate(outputs)]
        return tuple(outputs) if rule.several else outputs[0]


class _FunctionRule(Rule):
    def __init__(self, cls: type[Function], args: tuple[Any, ...]) -> None:
        self.cls = cls
        self.name = cls.__name__
        self.at = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        self.needs = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
        # without the tensors: the graph holds the rule, which must not keep unsaved tensors alive
        self.args = [None if isinstance(a, Tensor) else a for a in args]
        self.several = False
        self.constant: set[int] = set()

    def argument(self, i: int) -> str:
        try:
            names = list(inspect.signature(self.cls.forward).parameters.values())[1:]
        except (TypeError, ValueError):
            names = []
        k = self.at[i]
        plain = k < len(names) and names[k].kind in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        )
        return repr(names[k].name) if plain else f"argument {k}"

    def _run(self, tensors: list[Tensor]) -> tuple[list[Tensor], Context]:
        args = list(self.args)
        for i, t in zip(self.at, tensors, strict=True):
            args[i] = t
        ctx = Context(self.needs)
        result = user_code(self.cls, "forward")(ctx, *args)
        self.several = isinstance(result, tuple)
        outputs = list(result) if isinstance(result, tuple) else [result]
        arrays = (Tensor, np.ndarray, np.generic)
        if not outputs or not all(isinstance(t, arrays) for t in outputs):
            got = next((type(t).__name__ for t in outputs if not isinstance(t, arrays)), "nothing")
            raise RuleError(
                f"{self.name}.forward must return a tensor or a tuple of tensors, but returned {got}."
            )
        self.constant = {i for i, t in enumerate(outputs) if id(t) in ctx._constant}
        return [asarray(t) for t in outputs], ctx

    def plain(self, tensors: list[Tensor]) -> list[Tensor]:
        return self._run(tensors)[0]

    def forward(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor], Any]:
        outputs, ctx = self._run(tensors)
        other = {k: v for k, v in vars(ctx).items() if k not in _OWN}
        kept = SplitTree((ctx._saved, other))
        return outputs, kept.take(), (kept, ctx.needs_input_grad, ctx._materialize, specs_of(outputs))

    def backward(
        self, residuals: list[Tensor], rest: Any, grads: list[Tensor | None], wanted: Sequence[bool]
    ) -> list[Any]:
        kept, needs, materialize, specs = rest
        wants = list(needs)
        for i, w in zip(self.at, wanted, strict=True):
            wants[i] = w
        ctx = Context(tuple(wants))
        ctx._saved, other = kept.filled(residuals)
        vars(ctx).update(other)
        found = user_code(self.cls, "backward")(ctx, *(zeros_for(grads, specs) if materialize else grads))
        given = found if isinstance(found, (tuple, list)) else (found,)
        if len(given) != len(self.args):
            raise RuleError(
                f"{self.name}.backward must return one gradient per argument of forward, "
                f"{len(self.args)} in all, but returned {len(given)}.\n  Return None for arguments "
                "without a gradient."
            )
        for i, g in enumerate(given):
            if g is not None and i not in self.at and not isinstance(self.args[i], VALUES):
                raise RuleError(
                    f"{self.name}.backward returned a gradient for argument {i}, which is a "
                    f"{type(self.args[i]).__name__}.  Return None there."
                )
        return [given[i] for i in self.at]
