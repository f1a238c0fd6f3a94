"""Handling of Ctrl-C during training."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["stopping_on_interrupt"]


@contextmanager
def stopping_on_interrupt(stop: Callable[[], object]) -> Iterator[None]:
    """Call ``stop`` at the first Ctrl-C inside the block; the second one interrupts immediately.

    Signals are delivered to the main thread; in other threads this does nothing.
    """
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if main else None
    if before is None:  # another thread, or a handler that was not set from Python
        yield
        return
    asked = False

    def handle(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        stop()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
