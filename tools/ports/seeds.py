"""A plugin of pytest that seeds the random numbers of each test, so that both runs draw the same ones."""

import random

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def seeds_of_a_test() -> None:
    """Seed the generators of Python and NumPy."""
    random.seed(42)
    np.random.seed(42)
