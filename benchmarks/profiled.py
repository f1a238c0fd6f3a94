"""``python -m benchmarks.profiled``: the total of ``ad.inspect.profile`` beside the step without it."""

from __future__ import annotations

import statistics
import time

import adjoint as ad
from benchmarks.__main__ import all_cases
from benchmarks.harness import Step

NAMES = (
    "MLP 1×8-16-16-1, SGD", "MLP 32×64-128-128-10, Adam", "MLP 64×784-256-256-10, Adam",
    "MLP 512×784-1024-1024-10, SGD", "transformer block", "LeNet", "LSTM, 50 steps",
)  # fmt: skip
ROUNDS = 25


def ratio(step: Step) -> float:
    """Return the median total of the profile divided by the median time of the step."""
    plain, seen = [], []
    for _ in range(5):
        step()
    for _ in range(ROUNDS):
        start = time.perf_counter()
        step()
        plain.append(time.perf_counter() - start)
        with ad.inspect.profile() as profile:
            step()
        seen.append(profile.seconds)
    return statistics.median(seen) / statistics.median(plain)


def main() -> None:
    _, groups = all_cases()
    for case in (case for members in groups.values() for case in members):
        if case.name.startswith(NAMES) and "function" not in case.name:
            print(f"{ratio(case.engines['adjoint']()):6.2f}  {case.name}")


if __name__ == "__main__":
    main()
