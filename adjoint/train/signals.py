"""Handle Ctrl-C, and signals that mpiexec forwards, during training."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["stopping_on_interrupt"]


@contextmanager
def stopping_on_interrupt(stop: Callable[[], object], launched: bool = False) -> Iterator[None]:
    """Return a context manager that calls ``stop`` at the first Ctrl-C; a second raises KeyboardInterrupt.

    If ``launched`` is True (the process was started by mpiexec), SIGTERM and SIGUSR1 do the same, because
    mpiexec forwards these signals.  In threads other than the main thread nothing is done, because Python
    allows signal handlers only there.
    """
    names = ("SIGINT", "SIGTERM", "SIGUSR1") if launched else ("SIGINT",)
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    before = {number: signal.getsignal(number) for number in numbers}
    numbers = [number for number in numbers if before[number] is not None]  # None: not set from Python
    asked = False

    def handle(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        stop()

    for number in numbers:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])
