"""Export a step that learns from a stream: python model.py, then compile stream.c with the library.

cc stream.c libstep.a -o stream && ./stream < numbers.txt
"""

from pathlib import Path
from typing import Any

import numpy as np

import adjoint as ad
from adjoint import nn, optim

model = nn.Sequential(nn.Linear(4, 16, rng=0), nn.Tanh(), nn.Linear(16, 1, rng=1))
optimizer = optim.Adam(model.parameters(), lr=0.01)


def step(last: Any, value: Any) -> Any:
    """Predict the next number from the last four, then learn from it."""
    optimizer.zero_grad()
    guess = model(last)
    loss = nn.functional.mse_loss(guess, value)
    loss.backward()
    optimizer.step()
    return {"guess": guess.detach(), "loss": loss.detach()}


def main(folder: Any = Path(__file__).parent) -> Any:
    """Export the step for arrays of this system."""
    return ad.export(step, np.zeros((1, 4), "f"), np.zeros((1, 1), "f"), path=folder)


if __name__ == "__main__":
    print(main())
