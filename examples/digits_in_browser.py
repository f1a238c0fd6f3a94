"""Handwritten digits, trained in a web page: the training step is exported to WebAssembly and to WebGPU.

python examples/digits_in_browser.py
"""

from __future__ import annotations

import base64
import gzip
import json
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import adjoint as ad
from adjoint import nn, optim

HERE = Path(__file__).parent
SCRIPTS = Path(ad.__file__).parent / "inspect" / "vendor"
BATCH, SPLIT = 32, 1500  # digits in a step; digits for training, of 1,797


def encoded(values: np.ndarray | bytes) -> str:
    return base64.b64encode(bytes(values)).decode()


def zipped(path: Path) -> str:
    return encoded(gzip.compress(path.read_bytes(), mtime=0))


def exported() -> dict[str, dict[str, str]]:
    """Return the training step and the function that reads a digit, as modules, and WebAssembly."""
    model = nn.Sequential(nn.Linear(64, 64, rng=0), nn.ReLU(), nn.Linear(64, 10, rng=1))
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)

    def train(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    def read(x):
        return {"probabilities": ad.softmax(model(x), axis=-1)}

    x, y = np.zeros((BATCH, 64), np.float32), np.zeros(BATCH, np.int32)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for function, examples in ((train, (x, y)), (read, (x[:1],))):
            name = function.__name__
            ad.export(function, *examples, path=Path(folder) / name, target="wasm")
            files = {p.suffix: p for p in (Path(folder) / name).iterdir()}
            found[name] = {"module": files[".mjs"].read_text(), "wasm": zipped(files[".wasm"])}
        library = ad.export(train, x, y, path=Path(folder) / "webgpu", target="webgpu")
        found["train"]["webgpu"] = zipped(library.files["module"])
    return found


def main(path: str = "digits_in_browser.html") -> int:
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    pixels = np.rint(digits.data[order] / 16 * 15).astype(np.uint8)
    data = exported() | {
        "images": encoded(pixels[:, ::2] << 4 | pixels[:, 1::2]),
        "labels": encoded(digits.target[order].astype(np.uint8)),
        "split": SPLIT,
    }
    page = (HERE / "digits_in_browser.html").read_text()
    for name in ("uPlot.min.css", "uPlot.iife.min.js"):
        page = page.replace(f"{{{{{name}}}}}", (SCRIPTS / name).read_text())
    size = sum(len(gzip.decompress(base64.b64decode(data[name]["wasm"]))) for name in ("train", "read"))
    page = page.replace("{{bytes}}", f"{size:,}").replace("{{tests}}", str(len(order) - SPLIT))
    page = page.replace("{{data}}", json.dumps(data).replace("</", "<\\/"))
    Path(path).write_text(page, encoding="utf-8")
    print(f"{path}: {len(page.encode()):,} bytes; open it in a browser")
    return len(page.encode())


if __name__ == "__main__":
    main()
