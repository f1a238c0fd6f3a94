"""Random programs in half precision, compiled and eager: the same dtypes and bytes."""

from __future__ import annotations

import pytest

pytest.importorskip("ml_dtypes")

from random_halves import compare


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_replay_gives_the_bytes_of_eager_mode(first: int) -> None:
    for seed in range(first, first + 100):
        compare(seed, "replay")


def test_native_code_gives_the_dtypes_of_eager_mode() -> None:
    pytest.importorskip("llvmlite")
    for seed in range(40):
        compare(seed, "native")
