"""Handwritten digits: a small network, trained in a few seconds.

python examples/digits.py
"""

from __future__ import annotations

import sys

import numpy as np
from pictures import picture
from sklearn.datasets import load_digits

from adjoint import nn, optim, train
from adjoint.optim import schedules


def main(epochs: int = 15) -> float:
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    x, y = (data.data[order] / 16).astype(np.float32), data.target[order]
    cut = len(y) * 4 // 5
    model = nn.Sequential(
        nn.Linear(64, 128, rng=0), nn.ReLU(), nn.Linear(128, 128, rng=1), nn.ReLU(), nn.Linear(128, 10, rng=2)
    )
    trainer = train.Trainer(
        model,
        nn.CrossEntropyLoss(),
        optim.AdamW(model.parameters(), lr=3e-3),
        schedule=schedules.one_cycle(4e-3, epochs * -(-cut // 64)),
        metrics={"accuracy": lambda p, t: (p.argmax(-1) == t).astype(np.float64).mean()},
    )
    loader = train.DataLoader((x[:cut], y[:cut]), 64, shuffle=True)
    history = trainer.fit(loader, epochs, validate=[(x[cut:], y[cut:])])
    accuracy = history[-1]["val_accuracy"]
    steps = range(1, epochs + 1)
    lines = {k: (steps, [h[k] for h in history]) for k in ("loss", "val_loss")}
    print(
        f"test accuracy {accuracy:.2%} after {epochs} epochs; {picture('digits.png', 'epoch', 'loss', lines, log=True)}"
    )
    return accuracy


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
