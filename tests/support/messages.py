"""What errors say, read whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from adjoint.errors import AdjointError


def raised(mistake: Callable[[], Any]) -> str:
    """The whole message of the error of adjoint's that a mistake raises."""
    return message_of(AdjointError, mistake)


def message_of(error: type[Exception], mistake: Callable[[], Any]) -> str:
    """The message of the error that a mistake raises."""
    with pytest.raises(error) as caught:
        mistake()
    return str(caught.value)
