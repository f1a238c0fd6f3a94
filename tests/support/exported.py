"""Run exported libraries as their users do: in C, under emulators, in Node, and in Python without adjoint.

Many libraries run in one process, because starting linkers and processes takes most of the time.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import tree
from adjoint.exports.api import Export
from adjoint.exports.collect import collect
from adjoint.exports.library import Library
from adjoint.exports.rates import Rates
from adjoint.exports.targets import TARGETS, host, link_wasm

HERE = Path(__file__).parent
Runs = list[bytes]  # the results of each call, then the saved state


@dataclasses.dataclass
class Case:
    """A function, the arguments of some calls, and its library; ``f`` changes the objects that the state is from."""

    name: str
    f: Callable[..., Any]
    calls: list[tuple[Any, ...]]
    schedules: Any = None
    count: int = 1  # the number of random programs in it
    library: Any = None

    def prepare(self, level: str = "portable") -> Case:
        """Make the library in its present state."""
        rates = Rates(self.schedules, 100)
        with rates.nonzero():
            collected = collect(self.f, self.calls[0], {}, level)
        rates.enter(collected)
        self.library = Library(self.name, collected, level)
        return self

    def inputs(self) -> bytes:
        """Return the arrays of all calls."""
        return b"".join([a.tobytes() for args in self.calls for a in self.arrays(args)])

    def arrays(self, args: Any) -> list[np.ndarray[Any, Any]]:
        """Return the arrays that a call passes to the library."""
        leaves = [a for a in tree.leaves(args) if isinstance(a, (np.ndarray, np.generic, ad.Tensor, float))]
        items = self.library.collected.arguments
        found = [np.array(a, i.dtype, order="C") for a, i in zip(leaves, items, strict=True)]
        assert [a.shape for a in found] == [i.shape for i in items]
        return found

    def wanted(self, level: str = "portable") -> Runs:
        """Return what ``ad.compile`` computes at a level."""
        step, found = ad.compile(self.f, level=level), []
        for args in self.calls:
            for optimizer, rate in (self.schedules or {}).items():
                optimizer.lr = rate(optimizer.step_count)
            with np.errstate(all="ignore"):
                results = [r for r in tree.leaves(step(*args)) if r is not None]
            items = self.library.collected.results
            arrays = [np.asarray(r.detach() if isinstance(r, ad.Tensor) else r) for r in results]
            found.append(b"".join([a.astype(i.dtype).tobytes() for a, i in zip(arrays, items, strict=True)]))
        return [*found, self.saved()]

    def saved(self) -> bytes:
        """Return the saved state of the Python objects."""
        parts = self.library.calling.order
        return b"".join([np.asarray(p.read(), p.value.dtype).tobytes() for p in parts])

    def split(self, data: bytes) -> Runs:
        """Divide the output of a driver into the results of the calls and the data of the saved state."""
        size = sum(int(np.prod(i.shape)) * i.dtype.itemsize for i in self.library.collected.results)
        rows = [data[k * size : (k + 1) * size] for k in range(len(self.calls))]
        saved = data[len(self.calls) * size :]
        assert len(saved) == self.library.saved.size, (self.name, len(saved), self.library.saved.size)
        return [*rows, saved[len(self.library.saved.header) :]]

    def assert_same(self, found: Runs, wanted: Runs) -> None:
        """Raise unless two runs have the same bits; the bits of NaN may differ between processors."""
        made = self.library.collected
        items = [*[made.results] * len(self.calls), list(self.library.calling.order)]
        for k, (a, b, row) in enumerate(zip(found, wanted, items, strict=True)):
            if a == b:
                continue
            at = 0
            for i in row:
                dtype, shape = (i.dtype, i.shape) if hasattr(i, "dtype") else (i.value.dtype, i.value.shape)
                size = int(np.prod(shape)) * dtype.itemsize
                x, y = (np.frombuffer(each[at : at + size], dtype) for each in (a, b))
                at += size
                both = (
                    np.isnan(x.astype("f")) & np.isnan(y.astype("f"))
                    if dtype.kind in "fV"
                    else np.zeros(x.shape, bool)
                )
                differ = np.array([u.tobytes() != v.tobytes() for u, v in zip(x, y, strict=True)], bool)
                assert not (differ & ~both).any(), (
                    self.name,
                    "call",
                    k,
                    i.name,
                    x[differ][:4],
                    y[differ][:4],
                )


def driver_text(cases: Sequence[Case]) -> str:
    """Return the tables of the C driver."""
    lines, rows = [], []
    for c in cases:
        n = c.name
        lines += [
            f"size_t {n}_state_size(void); size_t {n}_saved_size(void); int32_t {n}_init(void*, size_t);",
            f"int32_t {n}(void*, void*, void*); int32_t {n}_save(const void*, void*, size_t);",
            f"int32_t {n}_load(void*, const void*, size_t); const char *{n}_error(int32_t);",
        ]
        sizes = []
        for side, items in (("in", c.library.collected.arguments), ("out", c.library.collected.results)):
            found = [str(int(np.prod(i.shape)) * i.dtype.itemsize) for i in items]
            lines.append(f"static const size_t {n}_{side}[] = {{{', '.join([*found, '0'])}}};")
            sizes += [str(len(found)), f"{n}_{side}"]
        rows.append(
            f"{{{n}_state_size, {n}_saved_size, {n}_init, {n}, {n}_save, {n}_load, {n}_error, "
            f"{len(c.calls)}, {', '.join(sizes)}}},"
        )
    return "\n".join(
        [*lines, "static const Library libraries[] = {", *rows, "};", f"#define COUNT {len(rows)}"]
    )


def run_c(cases: Sequence[Case], folder: Path, target: str = "", sanitize: bool = False) -> list[Runs]:
    """Run libraries in one C program; on another processor, with an emulator and without a C library."""
    target = target or host()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tables.h").write_text(driver_text(cases))
    objects = []
    for c in cases:
        objects.append(folder / f"{c.name}.o")
        objects[-1].write_bytes(c.library.object_code(TARGETS[target]))
    program = folder / "program"
    if target == host():
        command = ["gcc", "-O1", "-Wall", "-Werror", *(["-fsanitize=address"] if sanitize else [])]
        emulator: list[str] = []
    else:
        processor = target.partition("-")[0]
        zig = [
            "-m",
            "ziglang",
            "cc",
            "-target",
            f"{processor}-linux-none",
            "-nostdlib",
            "-static",
            "-O1",
            "-DBARE",
        ]
        command = [sys.executable, *zig, "-fno-sanitize=undefined", "-fno-stack-protector"]
        emulator = [shutil.which(f"qemu-{processor}") or ""]
    files = [str(HERE / "exported_driver.c"), *map(str, objects)]
    subprocess.run([*command, f"-I{folder}", *files, "-o", str(program)], check=True, timeout=300)
    given = b"".join([c.inputs() for c in cases])
    done = subprocess.run(
        [*emulator, str(program)], input=given, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stderr.decode()[-2000:])
    return _split(cases, done.stdout)


def _split(cases: Sequence[Case], data: bytes) -> list[Runs]:
    found, at = [], 0
    for c in cases:
        size = sum(int(np.prod(i.shape)) * i.dtype.itemsize for i in c.library.collected.results)
        end = at + size * len(c.calls) + c.library.saved.size
        found.append(c.split(data[at:end]))
        at = end
    assert at == len(data)
    return found


def run_wasm(cases: Sequence[Case], folder: Path) -> list[Runs]:
    """Run libraries in one WebAssembly module in Node, by their C functions."""
    folder.mkdir(parents=True, exist_ok=True)
    objects, tables = [], []
    for c in cases:
        objects.append(folder / f"{c.name}.o")
        objects[-1].write_bytes(c.library.object_code(TARGETS["wasm32"]))
        sides = (c.library.collected.arguments, c.library.collected.results)
        sizes = [[int(np.prod(i.shape)) * i.dtype.itemsize for i in items] for items in sides]
        tables.append({"name": c.name, "inputs": sizes[0], "outputs": sizes[1], "calls": len(c.calls)})
    names = [name for c in cases for name in c.library.exported]
    if not link_wasm(objects, names, folder / "all.wasm"):
        pytest.skip("no linker for WebAssembly")
    (folder / "tables.json").write_text(json.dumps(tables))
    (folder / "inputs").write_bytes(b"".join([c.inputs() for c in cases]))
    _node(HERE / "exported_driver.mjs", folder)
    return _split(cases, (folder / "outputs").read_bytes())


def run_module(export: Export, case: Case) -> Runs:
    """Run an exported ES module in Node, as its users do."""
    folder = export.files["module"].parent
    rows = [
        {n: _listed(a) for n, a in zip(export.arguments, case.arrays(args), strict=True)}
        for args in case.calls
    ]
    (folder / "calls.json").write_text(json.dumps(rows))
    _node(HERE / "exported_module.mjs", folder, export.files["module"])
    data = (folder / "outputs").read_bytes()
    return case.split(data)


def _listed(a: Any) -> Any:
    return (
        [str(x) for x in a.reshape(-1)]
        if a.dtype.itemsize == 8 and a.dtype.kind in "iu"
        else a.reshape(-1).tolist()
    )


def _node(*arguments: Any) -> None:
    done = subprocess.run(
        ["node", *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def run_package(export: Export, case: Case) -> Runs:
    """Run an exported Python package in a process that cannot import adjoint or llvmlite."""
    folder = export.files["package"].parent
    given = folder.parent / "given.npz"
    arrays = {f"c{k}_{i}": a for k, args in enumerate(case.calls) for i, a in enumerate(case.arrays(args))}
    np.savez(given, **arrays)
    text = f"""
import sys
sys.modules["adjoint"] = sys.modules["llvmlite"] = None
sys.path.insert(0, {str(folder.parent)!r})
import numpy as np, {folder.name} as library
given, state, out = np.load({str(given)!r}), library.State(), b""
for k in range({len(case.calls)}):
    found = state(*[given[f"c{{k}}_{{i}}"] for i in range({len(export.arguments)})])
    found = found if isinstance(found, dict) else {{"result": found}}
    out += b"".join([np.asarray(v).tobytes() for v in found.values()])
sys.stdout.buffer.write(out + state.save())
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return case.split(done.stdout)
