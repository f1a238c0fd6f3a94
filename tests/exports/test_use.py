"""What users of a library do besides calling it: names of theirs, lists in JavaScript, copies, states that are damaged."""

from __future__ import annotations

import copy
import importlib
import pickle
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from test_contract import linked

import adjoint as ad


def test_names_that_are_words_of_c_and_macros(tmp_path: Path) -> None:
    def total(xor: Any, linux: Any, NULL: Any, const_cast: Any, compl: Any, char16_t: Any, this: Any) -> Any:
        return xor + linux + NULL + const_cast + compl + char16_t + this

    made = ad.export(total, *[np.ones(2)] * 7, path=tmp_path)
    assert [*made.arguments] == ["xor_", "linux_", "NULL_", "const_cast_", "compl_", "char16_t_", "this_"]
    program = tmp_path / "program.c"
    program.write_text('#include "total.h"\nint main(void) { return total_state_size() == 0; }\n')
    for compiler, *options in (["gcc"], ["gcc", "-std=c99", "-pedantic"], ["g++", "-x", "c++"]):
        if shutil.which(compiler) is not None:
            command = [
                compiler,
                *options,
                "-Wall",
                "-Wextra",
                "-Werror",
                "-c",
                str(program),
                "-o",
                str(tmp_path / "o"),
            ]
            subprocess.run(command, check=True)  # fmt: skip


def test_generators_of_damaged_states(tmp_path: Path) -> None:
    """Positions outside of the buffer are not read: the address sanitizer would see it."""
    g = ad.random.default_rng(0)
    made = ad.export(lambda: (g.random(3), g.random(3, dtype=np.float32)), path=tmp_path, name="f")
    c = linked(made)
    (part,) = made._library.calling.order
    wanted = None
    for place in (4, 5, 2**62, 2**63, 2**64 - 1, 2**64 - 2**40):
        state, found = c.state(), [np.zeros(3), np.zeros(3, "f")]
        state[part.offset : part.offset + 13 * 8].view(np.uint64)[10] = place
        assert c.call(state, [], found) == 0
        wanted = wanted or [f.tobytes() for f in found]
        assert [f.tobytes() for f in found] == wanted  # as with a buffer that is used up


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a package with a state."""
    w = ad.tensor([1.0, 2.0])

    def add(x: Any) -> Any:
        w.copy_(w + x)
        return w * 1

    ad.export(add, np.ones(2), path=tmp_path / "copied_trainer", target="python")
    monkeypatch.syspath_prepend(str(tmp_path))
    return importlib.import_module("copied_trainer")


def test_copies_and_pickles_of_states(trainer: Any) -> None:
    state = trainer.State()
    state(np.ones(2))
    for made in (copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        assert made(np.ones(2)).tolist() == [3.0, 4.0]
        assert made.get("w").tolist() == [3.0, 4.0]
    assert state.get("w").tolist() == [2.0, 3.0]


def test_bfloat16_in_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy has no bfloat16: its bits are passed, as in C and in JavaScript."""
    pytest.importorskip("ml_dtypes")
    x = ad.tensor([1.5, -2.0]).astype("bfloat16").numpy()
    w = ad.tensor(x)
    ad.export(lambda x: w * x, x, path=tmp_path / "brains", target="python", name="brains")
    monkeypatch.syspath_prepend(str(tmp_path))
    state = importlib.import_module("brains").State()
    found = state(x.view(np.uint16))
    assert found.dtype == state.get("w").dtype == np.uint16
    assert found.view(x.dtype).astype(float).tolist() == [2.25, 4.0]


def test_lists_in_javascript(tmp_path: Path) -> None:
    """Elements that an array cannot hold are errors; nested lists and booleans are not."""
    if shutil.which("node") is None:
        pytest.skip("needs node")
    examples = (np.ones((1, 2), "f"), np.ones(2, "i1"), np.ones(2, "i8"), np.ones(2, "e"), np.ones(2, bool))
    made = ad.export(
        lambda x, i, n, h, b: (x * 2, i + 1, n + 1, h * 2, ~b), *examples, path=tmp_path, name="f", target="wasm"
    )  # fmt: skip
    types = made.files["types"].read_text()
    assert "  n: BigInt64Array | bigint[];" in types and "  h: Uint16Array;" in types
    program = tmp_path / "program.mjs"
    program.write_text("""
import { create } from "./f.mjs";
const state = await create();
const good = { x: [[1.5, 2]], i: [-128, 3], n: [5n, 7], h: new Uint16Array([0x3c00, 0]), b: [true, 0] };
const found = state.run(good);
console.log([...found.result_0].join(), [...found.result_1].join(), [...found.result_2].join(), [...found.result_3].join(), [...found.result_4].join());
for (const [name, value] of [["x", ["1", 2]], ["x", [1, null]], ["i", [1, 300]], ["i", [1.5, 0]], ["i", [0, NaN]], ["n", [1, 2.5]], ["n", [2n ** 64n, 0]], ["h", [1, 0.5]]]) {
  try { state.run({ ...good, [name]: value }); console.log("no error"); } catch (error) { console.log(error.message); }
}
""")
    done = subprocess.run(["node", program], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines() == [
        "3,4 -127,4 6,8 16384,0 0,1",
        "f: x must have elements of float32, but element 0 is 1",
        "f: x must have elements of float32, but element 1 is null",
        "f: i must have elements of int8, but element 1 is 300",
        "f: i must have elements of int8, but element 0 is 1.5",
        "f: i must have elements of int8, but element 1 is NaN",
        "f: n must have elements of int64, but element 1 is 2.5",
        "f: n must have elements of int64, but element 0 is 18446744073709551616",
        "f: h must be a Uint16Array with the bits of float16",
    ]


def test_the_benchmark_in_node_finds_its_modules(tmp_path: Path) -> None:
    """Its functions have names of the C library, which are changed unless they are passed."""
    from benchmarks.exported_node import write

    write(tmp_path)
    for name in ("train", "read"):
        assert {p.name for p in (tmp_path / name).iterdir()} == {
            f"{name}.{s}" for s in ("wasm", "mjs", "d.mts")
        }
