"""A hang becomes a failure: after a while all stacks are printed and the process ends."""

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
