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


def ratio(step: Step, steps: int) -> float:
    """Return the median total of a profiled block of steps divided by the median time of such a block."""

    def block() -> None:
        for _ in range(steps):
            step()

    plain, seen = [], []
    for _ in range(5):
        step()
    for _ in range(ROUNDS):
        start = time.perf_counter()
        block()
        plain.append(time.perf_counter() - start)
        with ad.inspect.profile() as profile:
            block()
        seen.append(profile.seconds)
    return statistics.median(seen) / statistics.median(plain)


def main() -> None:
    _, groups = all_cases()
    print("block of one step, of ten")
    for case in (case for members in groups.values() for case in members):
        if case.name.startswith(NAMES) and "function" not in case.name:
            one, ten = (ratio(case.engines["adjoint"](), steps) for steps in (1, 10))
            print(f"{one:6.2f} {ten:6.2f}  {case.name}")


if __name__ == "__main__":
    main()
