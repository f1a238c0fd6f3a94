"""What users of a library do besides calling it: names of theirs, lists in JavaScript, copies, states that are damaged."""

from __future__ import annotations

import copy
import importlib
import json
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


NAMES = (  # of functions and constants inside of libraries, of C and of Python
    "copy fill checksum digit same_text uniform next_word initial part_0 saved_header error_0 error_unknown state "
    "kernel f_kernel0 inputs memcpy memcmp memset floor fmodf printf exp time string math stdint size_t int32_t "
    "errno I NULL main memory double lambda _Bool __x größe λ"
).split()


def test_names_of_functions(tmp_path: Path) -> None:
    """Each function can be exported, and its name is no other's, neither in the library nor in C."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    g, w, x = ad.random.default_rng(0), ad.tensor([1.0, -2.5]), np.array([0.3, 7.0])

    def f(x: Any) -> Any:
        return ad.floor(x * w) + ad.fmod(x, 0.2) + ad.take(w, ad.argsort(x)) + g.random(2), x

    lines, calls, objects = [], [], []
    for name in NAMES:
        given: Any = type(f)(f.__code__, f.__globals__, name, f.__defaults__, f.__closure__)
        made = ad.export(given, x, path=tmp_path)
        lines.append(f'#include "{made.name}.h"')
        calls.append(f"ok &= {made.name}_state_size() > 0 && !*{made.name}_error(-1) == 0;")
        objects.append(str(made.files["object"]))
    assert len({*objects}) == len(NAMES)
    headers = [
        f"#include <{h}.h>"
        for h in ("errno", "math", "complex", "stdio", "stdlib", "string", "time", "signal")
    ]
    text = "\n".join([*lines, *headers, *lines, "int main(void) { int ok = 1;", *calls, "return !ok; }"])
    program = tmp_path / "program.c"
    program.write_text(text)
    command = [
        "gcc",
        "-Wall",
        "-Wextra",
        "-Werror",
        str(program),
        *{*objects},
        "-lm",
        "-o",
        str(tmp_path / "run"),
    ]
    subprocess.run(command, check=True)
    subprocess.run([tmp_path / "run"], check=True)


def test_names_of_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of C and JavaScript, macros and what all objects have are names of arguments, too."""
    names = (
        "errno I stdin NAN size_t int32_t _Bool _Atomic __func__ __proto__ constructor toString let arguments self "
        "größe α"
    ).split()
    (tmp_path / "sums.py").write_text(
        f"def f({', '.join(names)}):\n    return {' + '.join(names)}\n", "utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    f = importlib.import_module("sums").f
    arrays = [np.full(2, 2.0**k) for k in range(len(names))]
    made = ad.export(f, *arrays, path=tmp_path, name="f")
    program = tmp_path / "program.c"
    includes = "".join([f"#include <{h}.h>\n" for h in ("errno", "complex", "math", "stdio")])
    program.write_text(f'{includes}#include "f.h"\nint main(void) {{ return f_state_size() == 0; }}\n')
    for compiler, *options in (["gcc"], ["g++", "-x", "c++"]):
        if shutil.which(compiler) is not None:
            subprocess.run(
                [compiler, *options, "-Wall", "-Werror", "-c", str(program), "-o", str(tmp_path / "o")],
                check=True,
            )
    ad.export(f, *arrays, path=tmp_path / "names_trainer", target="python", name="f")
    given = dict(zip(made.arguments, arrays, strict=True))
    wanted = [2.0 ** len(names) - 1] * 2
    assert importlib.import_module("names_trainer").State()(**given).tolist() == wanted
    if shutil.which("node") is None:
        return
    module = ad.export(f, *arrays, path=tmp_path, name="f", target="wasm")
    values = json.dumps({k: v.tolist() for k, v in given.items()})
    (tmp_path / "program.mjs").write_text(f"""
import {{ create }} from "./{module.files["module"].name}";
const state = await create(), {{ result }} = state.run({values});
console.log([...result].join());
try {{ state.run({{ ...{values}, valueOf: 1 }}); }} catch (error) {{ console.log(error.message.slice(0, 25)); }}
try {{ state.run({{}}); }} catch (error) {{ console.log(error.message); }}
""")
    done = subprocess.run(
        ["node", tmp_path / "program.mjs"], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.splitlines() == [
        ",".join(f"{x:.0f}" for x in wanted), "f has no argument valueOf", "f: errno_ is missing"
    ]  # fmt: skip


def test_names_of_parts(tmp_path: Path) -> None:
    ё, __metadata__ = ad.tensor([1.0]), ad.tensor([2.0])
    made = ad.export(lambda x: (x + ё) * __metadata__, np.ones(1), path=tmp_path, name="f")
    assert [*made.parts] == ["tensor", "__metadata___2"]

    class Model:
        w = ad.tensor([1.0])

        def __call__(self, x: Any) -> Any:
            return self.w * x

    assert [*ad.export(Model(), np.ones(1), path=tmp_path).parts] == ["Model.w"]


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


def test_packages_that_are_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has imported a package gets the new library after a reload, not the old one of this name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "again_trainer"
    ad.export(lambda x: x * 2, np.ones(2), path=path, target="python")
    first = importlib.import_module("again_trainer")
    assert first.State()(np.ones(2)).tolist() == [2.0] * 2
    ad.export(lambda x: x * 3, np.ones(5), path=path, target="python")
    shutil.rmtree(path / "__pycache__", ignore_errors=True)  # two files of one second may look alike
    assert importlib.reload(first).State()(np.ones(5)).tolist() == [3.0] * 5
    assert len([*path.glob("library*")]) == 1


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
    examples = [np.ones((1, 2), "f"), np.ones(2, "i1"), np.ones(2, "i8"), np.ones(2, "e"), np.ones(2, bool)]
    made = ad.export(
        lambda x, i, n, h, b, c: (x * 2, i + 1, n + 1, h * 2, ~b, ~c), *examples, np.ones((), bool),
        path=tmp_path, name="f", target="wasm",
    )  # fmt: skip
    types = made.files["types"].read_text()
    assert "  n: BigInt64Array | bigint[];" in types and "  h: Uint16Array;" in types
    assert "  c: Uint8Array | (boolean | number)[] | (boolean | number);" in types
    program = tmp_path / "program.mjs"
    program.write_text("""
import { create } from "./f.mjs";
const state = await create();
const good = { x: [[1.5, 2]], i: [-128, 3], n: [5n, 7], h: new Uint16Array([0x3c00, 0]), b: [true, 0], c: false };
const found = state.run(good);
console.log([...found.result_0].join(), [...found.result_1].join(), [...found.result_2].join(), [...found.result_3].join(), [...found.result_4].join(), found.result_5);
for (const [name, value] of [["x", ["1", 2]], ["x", [1, null]], ["i", [1, 300]], ["i", [1.5, 0]], ["i", [0, NaN]], ["n", [1, 2.5]], ["n", [2n ** 64n, 0]], ["h", [1, 0.5]]]) {
  try { state.run({ ...good, [name]: value }); console.log("no error"); } catch (error) { console.log(error.message); }
}
""")
    done = subprocess.run(["node", program], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines() == [
        "3,4 -127,4 6,8 16384,0 0,1 1",
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
