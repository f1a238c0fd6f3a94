"""The training steps of test_steps.py as native code: close to eager mode after each call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import steps
from test_steps import *

pytest.importorskip("llvmlite")


@pytest.fixture(autouse=True)
def native(request: pytest.FixtureRequest) -> Iterator[None]:
    steps.BACKENDS.append("native")
    # its denominator is a difference of nearly equal numbers
    steps.SLACK.append(1000 if "centered" in request.node.name else 1)
    yield
    steps.BACKENDS.pop()
    steps.SLACK.pop()
