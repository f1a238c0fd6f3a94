"""What errors say, read whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def message_of(error: type[Exception], mistake: Callable[[], Any]) -> str:
    """The message of the error that a mistake raises."""
    with pytest.raises(error) as caught:
        mistake()
    return str(caught.value)
