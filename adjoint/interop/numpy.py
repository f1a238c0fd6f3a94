"""NumPy's functions on tensors: ``np.concatenate`` and others call the function of adjoint.

``interop.protocols`` imports this module when a function of NumPy is first called with a tensor.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint import ops
from adjoint.core.methods import attach
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError
from adjoint.interop import array_api, array_forms, numpy_forms, polynomial_forms
from adjoint.interop.protocols import check_filter
from adjoint.interop.writers import WRITERS, write, write_out
from adjoint.tracebacks import hide

__all__ = ["FUNCTIONS", "PLAIN", "Form", "array_function"]

# NumPy's names and adjoint's, where they differ.
_ALIASES = {"amax": "max", "amin": "min", "around": "round", "copy": "copy"}
_RENAMED = {"a_min": "min", "a_max": "max", "M": "n_cols"}
# Parameters that concern only memory; they are ignored, because they do not change the result.
_MEMORY = frozenset("subok overwrite_input writeable like copy".split())


def _functions() -> dict[Any, Callable[..., Any]]:
    """Return a dictionary from NumPy's functions to adjoint's functions of the same name."""
    found: dict[Any, Callable[..., Any]] = {}
    spaces = [(np, module) for module in ops.MODULES]
    spaces += [(getattr(np, name), module) for name, module in ops.NAMESPACES.items()]
    for theirs, ours in spaces:
        for name in ours.__all__:
            function = getattr(theirs, name, None)
            if function is not None and not isinstance(function, np.ufunc):
                found[function] = getattr(ours, name)
    found[np.lib.stride_tricks.sliding_window_view] = ops.function("sliding_window_view")
    found[np.result_type] = array_api.result_type
    for name, own in _ALIASES.items():
        found[getattr(np, name)] = ops.function(own)
    found |= numpy_forms.FORMS | array_forms.FORMS | polynomial_forms.FORMS
    found |= {np.amax: found[np.max], np.amin: found[np.min]}
    del found[np.put_along_axis]  # NumPy's function writes into its argument, adjoint's returns a new tensor
    return found


FUNCTIONS = _functions()
PLAIN = frozenset(getattr(np, name) for name in numpy_forms.PLAIN)


class Form:
    """Call a function of adjoint with the arguments of NumPy's function.

    The first ``same`` positional arguments have the same meaning in both functions.  The other arguments are
    bound to NumPy's parameter names and passed by name; arguments equal to NumPy's default are left out.
    """

    __slots__ = ("function", "mine", "name", "ours", "places", "same", "theirs")

    def __init__(self, function: Any, ours: Callable[..., Any]) -> None:
        self.function = function
        self.name = function.__name__
        self.ours = ours
        self.theirs: inspect.Signature | None
        try:
            self.theirs = inspect.signature(function)
        except ValueError:  # some functions written in C have no signature
            self.theirs = None
        self.places = {name: i for i, name in enumerate(self.theirs.parameters if self.theirs else ())}
        self.mine = inspect.signature(ours).parameters
        self.same = self._agreement()

    def _agreement(self) -> float:
        if self.theirs is None:
            return math.inf
        count = 0
        for p, q in zip(self.theirs.parameters.values(), self.mine.values(), strict=False):
            if q.kind is q.VAR_POSITIONAL:
                return math.inf
            operand = p.default is p.empty and q.default is q.empty
            if q.kind is q.KEYWORD_ONLY or not (operand or p.name == q.name):
                break
            count += 1
        return count

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call this with the arguments of a call of NumPy's function."""
        return self(args, kwargs)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call adjoint's function with the arguments of a call of NumPy's function, and return the result."""
        if not kwargs and len(args) <= self.same:
            return self.ours(*args)
        if self.theirs is None or self.same == math.inf:
            if kwargs.get("out") is not None:
                return write_out(self.name, self.function, [kwargs["out"]], args, kwargs)
            return self.ours(*args, **self._named(kwargs, {}))
        given = self.theirs.bind(*args, **kwargs).arguments
        if given.get("out") is not None:
            return write_out(self.name, self.function, [given["out"]], args, kwargs)
        head: list[Any] = []
        named: dict[str, Any] = {}
        for name, value in given.items():
            kind = self.theirs.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                named |= value
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                head += value
            elif self.places[name] == len(head) < self.same:  # all parameters before it were given
                head.append(value)
            else:
                named[name] = value
        return self.ours(*head, **self._named(named, self.theirs.parameters))

    def _named(self, given: dict[str, Any], theirs: Any) -> dict[str, Any]:
        """Return the arguments by adjoint's parameter names, without those that have no effect.

        Raise for an argument that adjoint does not support.  ``given`` are the arguments by NumPy's names,
        ``theirs`` are the parameters of NumPy's signature.
        """
        found = {}
        for name, value in given.items():
            ours = _RENAMED.get(name, name)
            if value is np._NoValue or (name in theirs and value is theirs[name].default):
                continue
            if ours in self.mine:
                found[ours] = value
            elif value is not None and name not in _MEMORY and not (name == "order" and value in ("C", "K")):
                raise InputError(f"np.{self.name}: adjoint does not support {name}=.  Omit it.")
        return found


_forms: dict[Any, Form] = {}


def array_function(self: Tensor, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Call adjoint's function that corresponds to NumPy's function ``func``.

    This is the method ``__array_function__`` of tensors.
    """
    try:
        if func is np.atleast_1d:
            check_filter(func, sys._getframe(1), args)
        elif func is np.trim_zeros and polynomial_forms.keeps_zeros(sys._getframe(1), args[0]):
            return args[0]
        form = _forms.get(func)
        if form is not None:
            return form(args, kwargs)
        ours = FUNCTIONS.get(func)
        if ours is not None:
            form = _forms[func] = Form(func, ours)
            return form(args, kwargs)
        if func in PLAIN:
            out = kwargs.get("out")
            if out is not None:
                return write_out(func.__name__, func, [out], args, kwargs)
            return numpy_forms.plain(func, args, kwargs)
        if func in WRITERS:
            target = args[0] if args else next(iter(kwargs.values()))
            return write(f"np.{func.__name__}", func, [target], args, kwargs)
        if func.__name__ in ("save", "savez", "savez_compressed", "savetxt"):
            raise InputError(
                f"np.{func.__name__} writes arrays, not tensors.\n"
                "  Pass x.numpy(), or use ad.save(path, tensors)."
            )
        raise InputError(
            f"np.{func.__name__} has no derivative in adjoint.\n"
            "  Pass x.numpy() if no gradient is needed, or compute it with other functions of adjoint."
        )
    except Exception as error:
        hide(error)
        raise


attach(Tensor, __array_function__=array_function)
