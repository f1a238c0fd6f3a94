"""A language model of characters: a small transformer, trained on sentences of different lengths.

Each batch is cut into micro-batches, which count by their number of characters, not of sentences: so
the gradient is that of the whole batch, however the lengths fall.

    python examples/characters.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pictures import panels, save

import adjoint as ad
from adjoint import nn, optim, train

SUBJECTS = "the cat|a dog|the old man|my friend|the small bird".split("|")
VERBS = "sees|likes|follows|does not see|waits for".split("|")
ALPHABET = "\n abcdefghijklmnopqrstuvwxyz"


def sentences(count: int, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        text = f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(SUBJECTS)}\n"
        made.append(np.array([ALPHABET.index(c) for c in text]))
    return made


class Model(nn.Module):
    def __init__(self, width: int = 32, length: int = 64) -> None:
        self.characters = nn.Embedding(len(ALPHABET), width, rng=0)
        self.places = nn.Embedding(length, width, rng=1)
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, norm_first=True, rng=i) for i in (2, 3)]
        )
        self.out = nn.Linear(width, len(ALPHABET), rng=4)

    def forward(self, text: Any) -> ad.Tensor:
        x = self.characters(text) + self.places(np.arange(text.shape[-1]))
        for layer in self.layers:
            x = layer(x, causal=True)
        return self.out(x)


def loss(model: Any, batch: Any) -> ad.Tensor:
    """The mean over the characters that follow; padding does not count."""
    text, lengths = batch
    target = np.where(np.arange(1, text.shape[1]) < np.asarray(lengths)[:, None], text[:, 1:], -100)
    return nn.functional.cross_entropy(model(text[:, :-1]).swapaxes(1, 2), target, ignore_index=-100)


def write(model: Any, start: str, rng: Any) -> str:
    """Continue a text until the end of its line."""
    text = [ALPHABET.index(c) for c in start]
    with ad.no_grad():
        while text[-1] != 0 and len(text) < 50:
            p = np.asarray(nn.functional.softmax(model(np.array([text]))[0, -1]), float)
            text.append(int(rng.choice(len(p), p=p / p.sum())))
    return "".join(ALPHABET[i] for i in text).strip()


def main(epochs: int = 6) -> float:
    model = Model()
    trainer = train.Trainer(
        model,
        optimizer=optim.AdamW(model.parameters(), lr=3e-3),
        compute=loss,
        weight=lambda batch: float((np.asarray(batch[1]) - 1).sum()),
        accumulate=4,
        clip=1.0,
    )
    data = train.DataLoader(sentences(640, 0), 32, shuffle=True, collate=train.pad_collate)
    test = train.DataLoader(sentences(64, 1), 64, collate=train.pad_collate)
    history = trainer.fit(data, epochs, validate=test)
    final = history[-1]["val_loss"]
    print(f"test loss {final:.3f} per character (random: {np.log(len(ALPHABET)):.3f})")
    print(f"the model writes: {write(model, 'the old', np.random.default_rng(0))!r}")
    figure, (left, right) = panels(2, width=9.5, height=3.2)
    for name, label in (("loss", "training"), ("val_loss", "test")):
        left.plot(range(1, epochs + 1), [h[name] for h in history], label=label)
    left.set(xlabel="epoch", ylabel="loss per character")
    left.legend(frameon=False)
    text = sentences(1, 2)[0]
    with ad.no_grad():
        bits = nn.functional.cross_entropy(model(text[None, :-1])[0], text[1:], reduction="none") / np.log(2)
    right.bar(range(len(bits)), bits.numpy(), color="C2")
    right.set_xticks(range(len(bits)), ["⏎␣"[i] if i < 2 else ALPHABET[i] for i in text[1:]])
    right.set(xlabel="a new sentence", ylabel="surprise (bits)")
    print(save(figure, "characters.png"))
    return final


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
