"""Threads under test: they take turns often, and a hang becomes a failure with all stacks printed."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS = 60.0


@contextmanager
def watched(seconds: float = SECONDS) -> Iterator[None]:
    """Let the block take so long and no longer."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def short_turns() -> Iterator[None]:
    """Let threads take turns often, and let nothing hang."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    with watched():
        yield
    sys.setswitchinterval(before)
