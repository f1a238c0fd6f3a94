"""``python -m benchmarks.exports``: sizes and times of exported libraries, for docs/export_numbers.md.

Times are those of one thread's processor, so that other programs on the machine do not count; in Node, which
has no such clock, the shortest of the rounds.  All engines run in turn in each round; medians count.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import itertools
import json
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import adjoint as ad
from adjoint import nn, optim
from adjoint.compiler.emit import machine
from adjoint.interop import onnx

PAGE = Path(__file__).parents[1] / "docs" / "export_numbers.md"
ROUNDS, SECONDS = 25, 0.01
RATIO = 1.0  # at most, to ONNX Runtime


def training(model: Any, loss: Callable[..., Any], kind: Any = optim.Adam) -> Callable[..., Any]:
    """Return a step that trains a model."""
    optimizer = kind(model.parameters(), lr=1e-3)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def inference(model: Any) -> Callable[..., Any]:
    """Return the forward of a model."""
    model.eval()

    def forward(x: Any) -> Any:
        with ad.no_grad():
            return model(x)

    return forward


def mlp(*sizes: int) -> Any:
    """Return a perceptron."""
    layers: list[Any] = []
    for k, (m, n) in enumerate(itertools.pairwise(sizes)):
        layers += [nn.Linear(m, n, rng=k), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cases() -> list[tuple[str, Any, Any, tuple[Any, ...]]]:
    """Return (name, function, model for ONNX or None, arguments) of each program."""
    r = np.random.default_rng(0)
    numbers = lambda *shape: r.normal(size=shape).astype("f")
    labels = lambda n: r.integers(0, 10, n)
    lenet = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2, rng=0), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5, rng=1),
        nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120, rng=2), nn.ReLU(),
        nn.Linear(120, 10, rng=3),
    )  # fmt: skip
    wide, block = mlp(784, 256, 256, 10), nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, rng=0)
    digits, cross = mlp(64, 64, 10), nn.functional.cross_entropy
    return [
        ("MLP 64-64-10, Adam step, batch 32", training(digits, cross), None, (numbers(32, 64), labels(32))),
        ("LeNet, Adam step, batch 8", training(lenet, cross), None, (numbers(8, 1, 28, 28), labels(8))),
        ("transformer block 8×32×64, Adam step",
         training(nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, rng=1), nn.functional.mse_loss), None,
         (numbers(8, 32, 64), numbers(8, 32, 64))),
        ("MLP 784-256-256-10, inference, batch 1", inference(wide), wide, (numbers(1, 784),)),
        ("MLP 784-256-256-10, inference, batch 64", inference(wide), wide, (numbers(64, 784),)),
        ("transformer block 8×32×64, inference", inference(block), block, (numbers(8, 32, 64),)),
    ]  # fmt: skip


def library(f: Any, args: Any, folder: Path, level: str) -> tuple[Callable[[], Any], Any]:
    """Export a function for this system; return a call of it, and the export."""
    made = ad.export(f, *args, path=folder / level, name="f", level=level)
    found = ctypes.CDLL(str(made.files["shared"]))
    found.f_init.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    memory = np.zeros(made.state_size + 64, np.uint8)
    state = memory.ctypes.data + -memory.ctypes.data % 64
    results = [np.empty(shape, dtype) for dtype, shape in made.results.values()]
    given = [np.ascontiguousarray(a) for a in args]
    tables = [
        (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays]) for arrays in (given, results)
    ]
    assert found.f_init(state, made.state_size) == 0
    run, pointer = found.f, ctypes.c_void_p(state)

    def call(keep: Any = (memory, given, results)) -> None:
        run(pointer, *tables)

    return call, made


def runtime(model: Any, x: Any, folder: Path) -> Callable[[], Any]:
    """Return a call of ONNX Runtime with one thread."""
    import onnxruntime

    path = folder / "model.onnx"
    onnx.save(model, x, path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda: session.run(None, {name: x})


NODE = """
import { readFileSync } from "node:fs";
const { create, inputs } = await import(process.argv[2]);
const state = await create();
const given = JSON.parse(readFileSync(process.argv[3]));
for (const name in given) given[name] = globalThis[inputs[name].array].from(
  inputs[name].array.startsWith("Big") ? given[name].map(BigInt) : given[name]);
const times = [];
for (let start = performance.now(), last = start; last - start < 1500;) {
  state.run(given);
  const now = performance.now();
  times.push(now - last); last = now;
}
console.log(Math.min(...times.slice(times.length >> 1)) * 1000);
"""


def node(f: Any, args: Any, folder: Path) -> tuple[float | None, Any]:
    """Return the microseconds of a call in Node, and the export."""
    made = ad.export(f, *args, path=folder / "wasm", name="f", target="wasm")
    if shutil.which("node") is None:
        return None, made
    given = {n: np.asarray(a).reshape(-1).tolist() for n, a in zip(made.arguments, args, strict=True)}
    (folder / "given.json").write_text(json.dumps(given))
    (folder / "run.mjs").write_text(NODE)
    command = ["node", str(folder / "run.mjs"), str(made.files["module"]), str(folder / "given.json")]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout), made


def medians(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the microseconds of a call of each engine."""
    counts, times = {}, {}
    for name, run in runs.items():
        for _ in range(5):
            run()
        start = time.thread_time()
        run()
        counts[name] = max(1, int(SECONDS / max(time.thread_time() - start, 1e-6)))
        times[name] = []
    for _ in range(ROUNDS):
        for name, run in runs.items():
            start = time.thread_time()
            for _ in range(counts[name]):
                run()
            times[name].append((time.thread_time() - start) / counts[name] * 1e6)
    return {name: statistics.median(taken) for name, taken in times.items()}


def measure() -> list[dict[str, Any]]:
    """Measure all programs; return a row for each."""
    rows = []
    fastest = machine.available()[0]
    for name, f, model, args in cases():
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            runs: dict[str, Any] = {}
            runs["portable"], made = library(f, args, folder, "portable")
            weights = sum(p.value.nbytes for p in made._library.calling.order if p.value.any())
            runs["fastest"], _ = library(f, args, folder, fastest)
            for key, level in (("compiled, portable", "portable"), ("compiled", fastest)):
                runs[key] = functools.partial(ad.compile(f, level=level), *args)
            if model is not None:
                runs["onnx"] = runtime(model, args[0], folder)
            inside, web = node(f, args, folder)
            arm = ad.export(f, *args, path=folder / "arm", name="f", triple="aarch64-linux").files["object"]
            times = medians(runs) | {"node": inside}
            sizes = {
                "so": made.files["shared"],
                "arm": arm,
                "wasm": web.files["wasm"],
                "mjs": web.files["module"],
            }
            rows.append({
                "name": name, "times": times, "state": made.state_size, "weights": weights,
                "sizes": {k: p.stat().st_size for k, p in sizes.items()},
            })  # fmt: skip
            print(name, {k: v and round(v, 1) for k, v in times.items()}, rows[-1]["sizes"], flush=True)
    return rows


def page(rows: list[dict[str, Any]]) -> str:
    """Return the text of the page."""
    fastest = machine.available()[0]
    micro = lambda t: "" if t is None else f"{t:,.0f}" if t >= 10 else f"{t:.1f}"
    columns = ("so", "arm", "wasm", "mjs")
    sizes = [[r["name"], r["weights"], *(r["sizes"][k] for k in columns), r["state"]] for r in rows]
    keys = ("portable", "compiled, portable", "fastest", "compiled", "node")
    times = [[r["name"], *(micro(r["times"].get(k)) for k in keys)] for r in rows]
    peers = []
    for r in rows:
        if (peer := r["times"].get("onnx")) is not None:
            best, portable = r["times"]["fastest"], r["times"]["portable"]
            peers.append(
                [r["name"], micro(peer), micro(best), f"{best / peer:.2f}", f"{portable / peer:.2f}"]
            )
    return TEXT.format(
        machine=platform.machine(), level=fastest, ratio=RATIO, times=_rows(times), peers=_rows(peers),
        sizes=_rows([[name, *(f"{n / 1000:,.0f}" for n in found)] for name, *found in sizes]),
    )  # fmt: skip


def _rows(rows: list[list[Any]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


TEXT = """# Sizes and times of libraries

`python -m benchmarks.exports` writes this page. It was written on {machine} with {level}. Other programs ran on the machine, so
the times are those of the processor for one thread.

## Sizes in kB

The weights are what the library contains of the state; the rest is code. The state is the memory that the caller provides.

| program | weights | shared library, x86_64 | object file, aarch64 | WebAssembly | ES module | state |
| --- | --- | --- | --- | --- | --- | --- |
{sizes}

## Microseconds per call

The library is called by ctypes. The times in Node are the shortest of many calls of `state.run`, which copies the
arguments and the results.

| program | library, portable | `ad.compile`, portable | library, {level} | `ad.compile`, {level} | Node |
| --- | --- | --- | --- | --- | --- |
{times}

## Beside ONNX Runtime

One thread each, in one interleaved run. The ratio is the time of the library divided by that of ONNX Runtime; the target
is at most {ratio} for the level of this processor.

| program | ONNX Runtime | library, {level} | ratio | ratio, portable |
| --- | --- | --- | --- | --- |
{peers}
"""  # noqa: E501  lines of the page


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description="Sizes and times of exported libraries.")
    parser.add_argument(
        "--check", action="store_true", help="fail if a ratio is above its target; write nothing"
    )
    options = parser.parse_args()
    rows = measure()
    if not options.check:
        PAGE.write_text(page(rows), encoding="utf-8")
        return
    missed = [
        r["name"] for r in rows if "onnx" in r["times"] and r["times"]["fastest"] > RATIO * r["times"]["onnx"]
    ]
    if missed:
        raise SystemExit(f"slower than ONNX Runtime: {', '.join(missed)}")


if __name__ == "__main__":
    main()
