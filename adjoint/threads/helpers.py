"""Start the helper threads of a parallel backward and observe their end."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from time import sleep
from typing import Any

__all__ = ["LOOK_SECONDS", "start_helper"]

# The interval, in seconds, at which a waiting thread checks whether the other thread is still alive.
LOOK_SECONDS = 0.1


def start_helper(
    target: Callable[..., object],
    args: tuple[Any, ...],
    name: str,
    departed: threading.Lock,
    refused: Callable[[], object],
) -> None:
    """Call ``target(*args, ended)`` in a daemon thread, and release ``departed`` when the thread has ended.

    ``ended`` is a lock, which ``target`` must release before it returns.  If no thread can be started,
    ``refused`` is called.  ``name`` is the name of the thread.

    A bare thread (``_thread``) starts the helper and waits for it.  ``Thread.start`` and the end of a
    ``Thread`` are Python code: an interrupt of the caller inside them would leave a thread in an undefined
    state.  A bare thread gets no interrupts, and the caller does not wait for the start (0.1 to 0.4 ms).
    """
    try:
        _thread.start_new_thread(_attend, (target, args, name, departed, refused))
    except RuntimeError:
        refused()
        departed.release()


def _attend(
    target: Callable[..., object],
    args: tuple[Any, ...],
    name: str,
    departed: threading.Lock,
    refused: Callable[[], object],
) -> None:
    ended = threading.Lock()
    ended.acquire()
    # a daemon, so that a program can exit at any time
    helper = threading.Thread(target=target, args=(*args, ended), name=name, daemon=True)
    try:
        helper.start()
        told = False
        while helper.is_alive():
            if told:
                sleep(0)  # the thread is in its last lines
            else:
                told = ended.acquire(timeout=LOOK_SECONDS)
    except RuntimeError:
        refused()
    finally:
        del helper
        departed.release()
