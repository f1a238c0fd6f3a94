"""How many threads the library uses: settings in context variables; see ``adjoint.config``."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.context import ContextMode
from adjoint.context import threads as _threads
from adjoint.context import workers as _workers
from adjoint.errors import ArgumentError

__all__ = ["check_workers", "get_threads", "get_workers", "set_threads", "set_workers", "threads", "workers"]


class workers(ContextMode[Any]):  # noqa: N801  a context manager that reads as a function
    """Set the number of threads that backward uses, as a context manager or a decorator.

    The results are bitwise equal for any number of threads; see docs/threads.md.

    Parameters
    ----------
    workers : int or "auto"
        The number of threads; with "auto" small graphs run in one thread.

    Raises
    ------
    ArgumentError
        If it is not a positive integer or "auto".

    Examples
    --------
    >>> import adjoint as ad
    >>> x = ad.tensor([1.0, 2.0], requires_grad=True)
    >>> with ad.config.workers(2):
    ...     (x * x).sum().backward()
    >>> x.grad
    tensor([2., 4.], dtype=float64)
    """

    _variable = _workers

    def __init__(self, workers: int | str) -> None:
        super().__init__(check_workers(workers))


class threads(ContextMode[Any]):  # noqa: N801  a context manager that reads as a function
    """Set the number of threads for large arrays, as a context manager or a decorator.

    Updates of optimisers and sums of accumulators use these threads.  The results are bitwise equal for any
    number of threads.

    Parameters
    ----------
    threads : int or "auto"
        The number of threads; "auto", the default, is the number of processors of this process.

    Raises
    ------
    ArgumentError
        If it is not a positive integer or "auto".

    Examples
    --------
    >>> import adjoint as ad
    >>> with ad.config.threads(1):
    ...     ad.config.get_threads()
    1
    """

    _variable = _threads

    def __init__(self, threads: int | str) -> None:
        super().__init__(_check_threads("threads", threads))


def get_threads() -> int | str:
    """Return the number of threads that work on large arrays.

    Each thread and asyncio task has its own setting.

    Returns
    -------
    int or "auto"
        The number.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.config.get_threads()
    'auto'
    """
    return _threads.get()


def set_threads(threads: int | str) -> None:
    """Set the number of threads that work on large arrays.

    The setting applies to this thread or asyncio task.  A new thread starts with the default, "auto".

    Parameters
    ----------
    threads : int or "auto"
        The number of threads.

    Raises
    ------
    ArgumentError
        If it is not a positive integer or "auto".

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.config.set_threads(2)
    >>> ad.config.get_threads()
    2
    >>> ad.config.set_threads("auto")
    """
    _threads.set(_check_threads("threads", threads))


def get_workers() -> int | str:
    """Return the number of threads that backward uses.

    Each thread and asyncio task has its own setting.

    Returns
    -------
    int or "auto"
        The number.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.config.get_workers()
    1
    """
    return _workers.get()


def set_workers(workers: int | str) -> None:
    """Set the number of threads that backward uses.

    The setting applies to this thread or asyncio task.  A new thread starts with the default, 1.

    Parameters
    ----------
    workers : int or "auto"
        The number of threads.

    Raises
    ------
    ArgumentError
        If it is not a positive integer or "auto".

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.config.set_workers("auto")
    >>> ad.config.get_workers()
    'auto'
    >>> ad.config.set_workers(1)
    """
    _workers.set(check_workers(workers))


def check_workers(workers: int | str) -> int | str:
    """Return ``workers`` if it is valid; raise otherwise."""
    return _check_threads("workers", workers)


def _check_threads(what: str, number: int | str) -> int | str:
    if isinstance(number, str) and number == "auto":
        return number
    if isinstance(number, (int, np.integer)) and not isinstance(number, bool) and number >= 1:
        return int(number)
    raise ArgumentError(f"{what} must be a positive integer or 'auto', but got {number!r}.")
