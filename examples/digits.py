"""Handwritten digits: a small network, trained in a few seconds.

python examples/digits.py
"""

from __future__ import annotations

import sys

import numpy as np
from pictures import panels, save
from sklearn.datasets import load_digits

import adjoint as ad
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
    print(f"test accuracy {accuracy:.2%} after {epochs} epochs")

    figure, (left, right) = panels(2, width=8.4, height=3.3)
    for name, label in (("loss", "training"), ("val_loss", "test")):
        left.semilogy(range(1, epochs + 1), [h[name] for h in history], label=label)
    left.set(xlabel="epoch", ylabel="loss")
    left.legend(frameon=False)
    with ad.no_grad():
        guesses = model(x[cut:]).numpy().argmax(-1)
    wrong = guesses != y[cut:]
    chosen = np.argsort(~wrong, kind="stable")[:32]  # the mistakes first
    tiles = np.pad(x[cut:][chosen].reshape(4, 8, 8, 8), ((0, 0), (0, 0), (1, 2), (1, 2)))
    right.imshow(tiles.swapaxes(1, 2).reshape(4 * 11, 8 * 11), cmap="gray_r")
    for i, k in enumerate(chosen):
        right.text(i % 8 * 11 + 9, i // 8 * 11 + 10, guesses[k], color="C3" if wrong[k] else "C2", fontsize=9)
    right.set_title("test digits and guesses; mistakes are red", fontsize=10)
    right.set_axis_off()
    print(save(figure, "digits.png"))
    return accuracy


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
