"""SciPy's own functions, which raise an error for tensors that require grad."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from typing import Any

from adjoint.errors import AbsentNameError, InputError, MissingExtraError
from adjoint.numpy.build import numpy_only

__all__ = ["refuse_options", "scipy_method", "scipy_module", "scipy_only"]


def scipy_module(part: str) -> Any:
    """Return the module ``scipy.<part>``; raise if SciPy is missing."""
    try:
        return importlib.import_module(f"scipy.{part}")
    except ImportError:
        raise MissingExtraError(f"adjoint.scipy.{part}", "SciPy", "scipy") from None


def refuse_options(op: str, names: Iterable[str], advice: str) -> None:
    """Raise if the caller has passed options that the function ``op`` does not support.

    ``names`` are those options.  ``advice`` is the last sentence of the message.
    """
    if found := ", ".join(sorted(names)):
        raise InputError(f"{op}: these options are not supported with gradients: {found}.\n  {advice}")


def partial_result(entries: Any) -> Any:
    """Return an ``OptimizeResult`` with only these entries; reading a missing one raises a clear error."""
    return _partial_class()(entries)


@functools.cache
def _partial_class() -> type:
    whole: Any = scipy_module("optimize").OptimizeResult

    def missing(self: Any, name: str) -> Any:
        if name in self:
            return self[name]
        cure = "  ad.grad and ad.hessian compute derivatives at x." if name in _DERIVATIVES else ""
        raise AbsentNameError(f"this result has no {name!r}; its entries are {', '.join(self)}.{cure}")

    body = {"__getattr__": missing, "__reduce__": lambda self: (whole, (dict(self),))}
    return type("OptimizeResult", (whole,), body)


_DERIVATIVES = ("grad", "hess", "hess_inv", "jac")


def scipy_only(part: str, name: str) -> Any:
    """Return the attribute ``name`` of ``scipy.<part>``.

    Functions accept tensors, but raise for tensors that require grad.
    """
    if name.startswith("_"):  # the import system looks up such names
        raise AttributeError(f"module 'adjoint.scipy.{part}' has no attribute {name!r}")
    found = getattr(scipy_module(part), name, None)
    if found is None:
        raise AttributeError(f"module 'adjoint.scipy.{part}' has no attribute {name!r}")
    if not callable(found) or isinstance(found, type):
        return found
    return _Distribution(name) if hasattr(found, "rvs") else numpy_only(found, f"scipy.{part}")


class _Distribution:
    """A distribution of SciPy without derivatives: its methods raise for tensors that require grad."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return scipy_method(self._name, "__call__")(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy looks up _name before __init__ has set it
            raise AttributeError(f"this distribution has no attribute {name!r}")
        return scipy_method(self._name, name)

    def __repr__(self) -> str:
        return f"<scipy.stats.{self._name}>"


def scipy_method(distribution: str, name: str) -> Any:
    """Return the method ``name`` of a SciPy distribution, which raises for tensors that require grad."""
    found = getattr(getattr(scipy_module("stats"), distribution), name)
    return numpy_only(found, f"scipy.stats.{distribution}") if callable(found) else found
