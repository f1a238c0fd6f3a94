"""``python -m benchmarks.exported_node``: exported networks in Node beside TensorFlow.js.

Both run in one process of Node, in interleaved rounds, with the same parameters; their results must agree.
npm installs TensorFlow.js into a temporary folder.  The table is written into docs/export.md.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import adjoint as ad
from adjoint import nn, optim

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "export.md"
BATCH, WIDTHS, ROUNDS = 32, (64, 64, 10), 31
NAMES = {"train": "training step, batch of 32, Adam", "read": "inference, one row"}
HEADING = "| MLP 64-64-10 in Node | adjoint | TensorFlow.js, CPU backend | ratio |"


def write(folder: Path) -> None:
    """Export a training step and an inference of one network."""
    inputs, hidden, classes = WIDTHS
    model = nn.Sequential(nn.Linear(inputs, hidden, rng=0), nn.ReLU(), nn.Linear(hidden, classes, rng=1))
    optimizer = optim.Adam(model.parameters(), lr=3e-3)

    def train(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach()}

    def read(x: Any) -> Any:
        return {"probabilities": ad.softmax(model(x), axis=-1)}

    x, y = np.zeros((BATCH, inputs), np.float32), np.zeros(BATCH, np.int32)
    ad.export(train, x, y, path=folder / "train", target="wasm")
    ad.export(read, x[:1], path=folder / "read", target="wasm", name="read")


def measure(rounds: int = ROUNDS) -> dict[str, dict[str, float]]:
    """Return the microseconds of both engines and their ratio, for each export."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "package.json").write_text("{}")
        install = ["npm", "install", "--no-audit", "--no-fund", "--silent", "@tensorflow/tfjs"]
        subprocess.run(install, cwd=folder, check=True)
        write(folder)
        script = [str(HERE / "beside_tensorflow.mjs"), str(folder), str(rounds)]
        out = subprocess.run(["node", *script], check=True, capture_output=True, text=True).stdout
    return json.loads(out.strip().splitlines()[-1])


def table(found: dict[str, dict[str, float]]) -> str:
    """Return the rows of the page."""
    rows = [
        f"| {NAMES[name]} | {n['adjoint']:,.1f} µs | {n['tensorflow']:,.1f} µs | {n['ratio']:.3f} |"
        for name, n in found.items()
    ]
    return "\n".join([HEADING, "| --- | --- | --- | --- |", *rows, ""])


def main() -> None:
    """Measure, and replace the table of the page."""
    made = table(measure())
    sys.stdout.write(made)
    text = PAGE.read_text(encoding="utf-8")
    changed = re.sub(re.escape(HEADING) + r"\n(\|.*\n)*", lambda _: made, text)
    if changed == text and made not in text:
        sys.exit(f"{PAGE} has no table with the heading {HEADING!r}")
    PAGE.write_text(changed, encoding="utf-8")


if __name__ == "__main__":
    main()
