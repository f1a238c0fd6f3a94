"""Settings for all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

# Before NumPy is imported: BLAS threads of processes that run side by side wait for each other in busy loops.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import table  # noqa: F401  takes note of the built-in ops before a test defines others
from hypothesis import HealthCheck, settings

from adjoint.config import special
from adjoint.context import init_generator

# The same examples in every run; how long one takes is no matter of a test.
settings.register_profile(
    "adjoint",
    derandomize=True,
    deadline=None,
    max_examples=40,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("adjoint")

# A shell starts what runs in the background (``pytest &``) with Ctrl-C ignored, and Python leaves it so.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Keep the garbage collector away from the million objects of pytest's own, which live to the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_weights() -> None:
    """Start the generator of initial weights anew, so that no test depends on those before it."""
    init_generator.set(None)


@pytest.fixture(autouse=True)
def _no_mode_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a mode set, instead of the tests after it."""
    yield
    left, special.count = special.count, 0
    assert left == 0 or "interrupt" in request.node.nodeid, f"config.special is left at {left}"
