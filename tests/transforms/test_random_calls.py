"""Random programs give the same with checkpoints and custom rules as with plain calls (``random_calls.py``)."""

from __future__ import annotations

import pytest
from random_calls import MODES, compare, compare_written

SEEDS = 170  # times ten: 1,700 cases; ``make soak`` runs 50,000


@pytest.mark.parametrize("mode", MODES)
def test_calls_equal_plain_python(mode: str) -> None:
    for seed in range(SEEDS):
        compare(seed, mode)


def test_a_write_to_a_constant_is_an_error_or_changes_nothing() -> None:
    for seed in range(SEEDS):
        compare_written(seed)
