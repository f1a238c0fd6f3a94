"""SciPy's own functions: for arrays, and with an error for tensors that require grad."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from typing import Any

from adjoint.errors import AbsentNameError, InputError, MissingExtraError
from adjoint.interop.drop_in import arrays_out, drop_in, given_tensor, watched
from adjoint.numpy.build import numpy_only
from adjoint.tracebacks import hide

__all__ = [
    "drop_in_methods",
    "drop_ins",
    "refuse_options",
    "scipy_method",
    "scipy_module",
    "scipy_only",
]  # fmt: skip


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


@functools.cache  # one object per name, because libraries give some of them rules (adjoint.autograd.extend)
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
    return _Distribution(name) if hasattr(found, "rvs") else _with_values(found, f"scipy.{part}")


def _with_values(theirs: Any, path: str) -> Any:
    """Return a function of SciPy that also takes tensors without a history, and returns tensors for them."""
    return drop_in(theirs, numpy_only(theirs, path))


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
    return _with_values(found, f"scipy.stats.{distribution}") if callable(found) else found


def drop_ins(part: str, names: dict[str, Any], callers: Iterable[str] = ()) -> dict[str, Any]:
    """Return functions of ``adjoint.scipy.<part>`` that are SciPy's unless an argument is a tensor.

    Parameters
    ----------
    part : str
        The name of the module.
    names : dict
        Adjoint's functions by SciPy's names.
    callers : iterable of str, optional
        The names of functions that call functions of the user.  They are adjoint's for arrays too, because
        the function may use tensors, and their results are arrays then.

    Returns
    -------
    dict
        The functions by name.
    """
    return {
        name: arrays_out(ours) if name in callers else _drop_in(part, name, ours)
        for name, ours in names.items()
        if callable(ours) and not isinstance(ours, type)
    }


def _drop_in(part: str, name: str, ours: Any) -> Any:
    """Return ``drop_in`` of a function, with SciPy's looked up at the first call."""
    ours = arrays_out(ours)

    @functools.cache
    def theirs() -> Any:
        try:
            found = getattr(scipy_module(part), name, None)
        except MissingExtraError:
            found = None
        return ours if found is None else watched(found, ours) if name in _TAKE_FUNCTIONS else found

    def plain(*args: Any, **kwargs: Any) -> Any:
        return theirs()(*args, **kwargs)

    return drop_in(functools.wraps(ours)(plain), ours)


# Functions that may take functions: they are SciPy's unless such a function returns a tensor.
_TAKE_FUNCTIONS = frozenset(("cdist", "funm", "pdist"))


def drop_in_methods(cls: type) -> None:
    """Replace the public methods of a class of distributions by SciPy's unless an argument is a tensor."""
    for name, ours in list(vars(cls).items()):
        if callable(ours) and not name.startswith("_"):
            setattr(cls, name, _drop_in_method(name, ours))


def _drop_in_method(name: str, ours: Any) -> Any:
    @functools.wraps(ours)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = True
        try:
            if given_tensor(args, kwargs):
                return ours(self, *args, **kwargs)
            tensors = False
            return getattr(getattr(scipy_module("stats"), self.name), name)(*args, **kwargs)
        except Exception as error:
            hide(error, by_user=not tensors)
            raise

    return call
