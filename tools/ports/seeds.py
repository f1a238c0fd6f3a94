"""A plugin of pytest that seeds the random numbers of each test, so that both runs draw the same ones."""

import random

import numpy as np
import pytest

random.seed(42)  # tests may be made of random numbers, which are parts of their names
np.random.seed(42)


@pytest.fixture(autouse=True)
def seeds_of_a_test() -> None:
    """Seed the generators of Python and NumPy."""
    random.seed(42)
    np.random.seed(42)
