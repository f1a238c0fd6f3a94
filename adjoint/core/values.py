"""Functions that read the values of tensors for Python conditions and checks, also inside transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy import ndarray

from adjoint.config import is_watched, special
from adjoint.core.lifted import Lifted, Unknown
from adjoint.core.tensor import Tensor, Traced, note_reading

__all__ = ["decide", "has_history", "number_of", "tracked", "unknown", "varies", "verify"]


def decide(
    function: Callable[[ndarray[Any, Any]], Any], t: Tensor, without: Callable[[Unknown], None] | None = None
) -> Any:
    """Return ``function(values)`` for the values of a tensor; None if they are not available (``vmap``).

    The result is for a Python condition.  A compiled function calls ``function`` again before each call, and
    is traced again if the result has changed.  Inside the body of a loop, ``function`` gets the values of all
    steps stacked along the first axis.  A caller that needs no result passes ``without``: in programs
    that run without Python, ``without(value)`` may add checks, and the result is None.
    """
    if special.count:
        note_reading(t)
    data = t._data
    if type(data) is ndarray:
        return function(data)
    known = data.numbers()
    if known is not None:
        return function(known)
    if not isinstance(data, Unknown):
        return None
    if without is not None and data.alone:
        without(data)
        return None
    return data.decide(function)


def verify(
    function: Callable[[ndarray[Any, Any]], None], t: Tensor, wrong: Callable[..., Any] | None = None
) -> None:
    """Call ``function``, which may raise, with the values of a tensor; do nothing inside ``vmap``.

    A compiled function calls ``function`` again each time it runs.  With the native form ``wrong(xp, x)``,
    which returns whether each element is invalid, it does so only if one is.
    """
    if special.count:
        note_reading(t)
    data = t._data
    if type(data) is ndarray:
        function(data)
    elif isinstance(data, Unknown):
        data.check(function, wrong)


def number_of(t: Tensor) -> Any:
    """Return the only element of a tensor as a Python number; inside ``ad.compile`` as a traced number."""
    if special.count:
        note_reading(t)
    data = t._data
    return data.as_number() if isinstance(data, Unknown) else t.item()


def tracked(t: Tensor) -> bool:
    """Return whether gradients flow to a tensor: it is part of a graph, or a tape watches it."""
    return t._node is not None or is_watched(t)


def has_history(t: Tensor) -> bool:
    """Return whether gradients flow to a tensor, inside of the active ``vmap`` or outside of it."""
    return tracked(t) or (isinstance(t._data, Lifted) and t._data.has_history())


def varies(t: Any) -> bool:
    """Return whether a value is part of a graph or belongs to a transform, so that it is not a constant."""
    return tracked(t) or type(t) is Traced if isinstance(t, Tensor) else isinstance(t, Unknown)


def unknown(value: Any) -> Unknown | None:
    """Return the traced array (its elements are not known yet) inside ``value``; None if there is none.

    ``value`` is a tensor, or a value of a transform such as ``vmap``; these may contain one another.
    """
    while isinstance(value, (Tensor, Lifted)):
        if isinstance(value, Unknown):
            return value
        value = value._data if isinstance(value, Tensor) else getattr(value, "value", None)
    return None
