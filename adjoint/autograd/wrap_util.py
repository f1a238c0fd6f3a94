"""``unary_to_nary`` and ``wraps`` of autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adjoint.autograd.transforms import unary_to_nary

__all__ = ["get_doc", "get_name", "unary_to_nary", "wraps"]
__dir__ = sorted(__all__).copy


def get_name(f: object) -> str:
    """Return the name of a function, or a placeholder."""
    return getattr(f, "__name__", "[unknown name]")


def get_doc(f: object) -> str:
    """Return the docstring of a function, or an empty text."""
    return getattr(f, "__doc__", "")


def wraps(
    fun: object, namestr: str = "{fun}", docstr: str = "{doc}", **named: object
) -> Callable[[Any], Any]:
    """Return a decorator that sets the name and the docstring, made from those of ``fun``."""

    def named_like(f: Any) -> Any:
        name = get_name(fun)
        try:
            f.__name__ = namestr.format(fun=name, **named)
            f.__doc__ = docstr.format(fun=name, doc=get_doc(fun), **named)
        except (AttributeError, TypeError, KeyError, ValueError, IndexError):
            pass  # objects without names, and braces in docstrings
        return f

    return named_like
