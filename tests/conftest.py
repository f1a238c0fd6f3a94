"""Settings for all tests."""

from __future__ import annotations

import table  # noqa: F401  takes note of the built-in ops before a test defines others
from hypothesis import HealthCheck, settings

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
