"""The contract of libraries: errors are codes with texts and change nothing, states go to Python and back."""

from __future__ import annotations

import ctypes
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from steps import bits

pytest.importorskip("llvmlite")

import adjoint as ad
from adjoint import nn, optim
from adjoint.cli.main import main
from adjoint.errors import FileError
from adjoint.exports import targets


class C:
    """A shared library and its functions."""

    def __init__(self, made: Any) -> None:
        self.name, library = made.name, ctypes.CDLL(str(made.files["shared"]))
        pointer, size, code = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32
        for suffix, result, *arguments in (
            ("state_size", size), ("saved_size", size), ("init", code, pointer, size),
            ("get", pointer, pointer, ctypes.c_char_p), ("save", code, pointer, pointer, size),
            ("load", code, pointer, pointer, size), ("error", ctypes.c_char_p, code),
        ):  # fmt: skip
            function = getattr(library, f"{made.name}_{suffix}")
            function.restype, function.argtypes = result, arguments
            setattr(self, suffix, function)
        self.run = getattr(library, made.name)
        self.run.restype, self.run.argtypes = code, [pointer, pointer, pointer]

    def state(self) -> Any:
        """Memory for a state, aligned to 64 bytes."""
        memory = np.full(self.state_size() + 64, 77, np.uint8)
        start = -memory.ctypes.data % 64
        found = memory[start : start + self.state_size()]
        assert self.init(found.ctypes.data, found.size) == 0
        return found

    def call(self, state: Any, inputs: list[Any], outputs: list[Any]) -> int:
        """Run the function on arrays; None is a null pointer, an int an address."""
        tables = []
        for items in (inputs, outputs):
            addresses = [a if a is None or isinstance(a, int) else a.ctypes.data for a in items]
            tables.append((ctypes.c_void_p * len(items))(*addresses))
        return int(self.run(state if isinstance(state, int) else state.ctypes.data, *tables))


def linked(made: Any) -> C:
    """The functions of an export, if there is a linker."""
    if "shared" not in made.files:
        pytest.skip("no linker")
    return C(made)


def table_step() -> tuple[Any, Any, Any]:
    """A step with an embedding and clipping, which can fail in two ways."""
    table = ad.tensor(np.random.default_rng(0).normal(size=(7, 4)).astype("f"), requires_grad=True)
    optimizer = optim.Adam([table], lr=0.1)

    def step(rows: Any, scale: Any) -> Any:
        optimizer.zero_grad()
        loss = (ad.take(table, rows, axis=0) ** 2).sum() * scale
        loss.backward()
        norm = ad.clip_grad_norm([table], 1.0)
        optimizer.step()
        return loss.detach(), norm

    return table, optimizer, step


def test_failed_checks_change_nothing(tmp_path: Path) -> None:
    _, _, step = table_step()
    rows, scale = np.array([0, 6, 3]), np.array(1.0, "f")
    made = ad.export(step, rows, scale, path=tmp_path)
    c = linked(made)
    state, outputs = c.state(), [np.full((), 5, "f"), np.full((), 5, made.results["result_1"][0])]
    for bad_rows, bad_scale, op in (
        (np.array([0, 7, 3]), scale, "take"), (np.array([0, -8, 3]), scale, "take"),
        (rows, np.array(np.nan, "f"), "clip"), (rows, np.array(np.inf, "f"), "clip"),
    ):  # fmt: skip
        before = state.copy()
        code = c.call(state, [bad_rows, bad_scale], outputs)
        text = c.error(code).decode()
        assert code >= 16
        assert text.startswith(f"{op} (test_contract.py:")
        assert text.endswith(
            ": an argument is out of range: an index, a number that is not finite, or a matrix that is nearly singular"
        )
        assert [float(o) for o in outputs] == [5.0, 5.0]
        end = max(p.offset + p.value.nbytes for p in made._library.calling.order)
        assert (state[:end] == before[:end]).all()
    assert c.call(state, [rows, scale], outputs) == 0
    wanted = ad.compile(step, level="portable")(rows, scale)
    assert [float(w) for w in wanted] == [float(o) for o in outputs]


def test_bad_pointers_and_states(tmp_path: Path) -> None:
    x = np.arange(3.0)
    w = ad.tensor([1.0, 2.0, 3.0])
    c = linked(ad.export(lambda x: (w * x).sum(), x, path=tmp_path / "a", name="f"))
    other = linked(ad.export(lambda x: (w * x * 2).sum(), x, path=tmp_path / "b", name="g"))
    state, y = c.state(), np.zeros(())
    address = x.ctypes.data
    for given, out, code in (
        ([x], [y], 0), ([None], [y], 1), ([x], [None], 1), ([address + 4], [y], 1), ([x], [y.ctypes.data + 1], 1),
    ):  # fmt: skip
        assert c.call(state, given, out) == code
    for bad in (0, state.ctypes.data + 8):
        assert c.call(bad, [x], [y]) == 1
    saved = np.zeros(c.saved_size(), np.uint8)
    assert c.save(state.ctypes.data, saved.ctypes.data, saved.size) == 0
    assert c.save(state.ctypes.data, saved.ctypes.data, saved.size - 1) == 3
    assert c.save(state.ctypes.data, 0, saved.size) == 1
    assert c.load(state.ctypes.data, 0, saved.size) == 1
    for bad_state in (other.state(), np.zeros_like(state)):
        start = bad_state.ctypes.data + -bad_state.ctypes.data % 64
        assert c.call(start, [x], [y]) == 2
        assert c.save(start, saved.ctypes.data, saved.size) == 2
        assert c.load(start, saved.ctypes.data, saved.size) == 2
    for k in range(20):
        damaged = state.copy()
        damaged = c.state()
        damaged[k] ^= 1
        assert c.call(damaged, [x], [y]) == 2
    for k in (0, 9, saved.size - 1, *(int(i) for i in np.flatnonzero(saved == ord(":")))):
        damaged = saved.copy()
        damaged[k] ^= 1
        before = state.copy()
        assert c.load(state.ctypes.data, damaged.ctypes.data, damaged.size) in (4, 5)
        assert (state == before).all()
    assert c.init(state.ctypes.data, state.size - 1) == 3
    assert c.init(0, state.size) == 1
    assert c.get(state.ctypes.data, b"w") - state.ctypes.data == 64
    assert c.get(state.ctypes.data, b"W") is None
    for bad_state in (None, state.ctypes.data + 8, other.state().ctypes.data):
        assert c.get(bad_state, b"w") is None
    assert c.get(state.ctypes.data, None) is None
    texts = [c.error(k).decode() for k in (0, 1, 2, 3, 4, 5, 99)]
    assert texts == [
        "no error",
        "a pointer is null or not aligned (states: 64 bytes, arrays: the size of an element)",
        "this memory is not a state of f: f_init has not set it up, or it is damaged",
        "the memory is too small",
        "these bytes are not a saved state of f, or not all of it",
        "the saved state is damaged: its data does not match its checksum",
        "unknown error",
    ]


def test_the_object_needs_no_other_library(tmp_path: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("needs nm")
    rounded = lambda x: (
        ad.floor(x) + ad.ceil(x) + ad.trunc(x) + ad.round(x) + ad.remainder(x, 0.7) + ad.sin(x * 1e30)
    )
    for dtype in ("f", "d"):
        x = np.array([-2.5, -0.3, -0.0, 0.5, 1.5, 1e20, np.inf, np.nan], dtype)
        made = ad.export(rounded, x, path=tmp_path / dtype, name="f")
        undefined = subprocess.run(
            ["nm", "-u", made.files["object"]], capture_output=True, text=True, check=True
        ).stdout
        assert undefined.split() == []
        c, y = linked(made), np.empty_like(x)
        assert c.call(c.state(), [x], [y]) == 0
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(y, ad.compile(rounded, level="portable")(x))


def test_remainders(tmp_path: Path) -> None:
    """The remainder of the C library is exact; so is the one in libraries."""
    rng = np.random.default_rng(0)
    bits_of = lambda: rng.integers(0, 2**64, 4000, np.uint64).view(np.float64)
    special = np.array(
        [0.0, -0.0, 5e-324, -5e-324, 2.2e-308, 1.8e308, np.inf, -np.inf, np.nan, 1.0, 3.0, 0.1]
    )
    pairs = np.stack(np.meshgrid(special, special)).reshape(2, -1)
    x, y = np.concatenate([bits_of(), pairs[0]]), np.concatenate([bits_of(), pairs[1]])
    near = rng.normal(size=2000)
    x, y = np.concatenate([x, near * 1e3]), np.concatenate([y, near[::-1]])
    for dtype in ("d", "f"):
        with np.errstate(all="ignore"):
            a, b = x.astype(dtype), y.astype(dtype)
        made = ad.export(lambda a, b: ad.fmod(a, b), a, b, path=tmp_path / dtype, name="f")
        c, z = linked(made), np.empty_like(a)
        assert c.call(c.state(), [a, b], [z]) == 0
        with np.errstate(all="ignore"):
            wanted = np.fmod(a, b)
        np.testing.assert_array_equal(z, wanted)
        assert (np.signbit(z) == np.signbit(wanted))[~np.isnan(z)].all()


def test_states_go_to_python_and_back(tmp_path: Path) -> None:
    """Training goes on where the other side stopped, with the same bits, also with a generator and groups."""
    rng = np.random.default_rng(0)

    def sides() -> Any:
        model = nn.Sequential(
            nn.Linear(3, 4, rng=0), nn.Dropout(0.5, rng=1), nn.BatchNorm1d(4), nn.Linear(4, 1, rng=2)
        )
        first, last = [*model[0].parameters()], [*model[2].parameters(), *model[3].parameters()]
        optimizer = optim.AdamW([{"params": first, "lr": 0.1}, {"params": last}], lr=0.01)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return model, optimizer, step

    data = [(rng.normal(size=(8, 3)).astype("f"), rng.normal(size=(8, 1)).astype("f")) for _ in range(9)]
    model, optimizer, step = sides()
    made = ad.export(step, *data[0], path=tmp_path / "contract_trainer", target="python")
    assert not [p for p in made.parts if p.endswith(".grad")]
    sys.path.insert(0, str(tmp_path))
    try:
        import contract_trainer as trainer  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(tmp_path))
    whole = ad.compile(sides()[2], level="portable")
    wanted = [np.asarray(whole(*d)).tobytes() for d in data]
    state, compiled, file = (
        trainer.State(),
        ad.compile(step, level="portable"),
        tmp_path / "state.safetensors",
    )
    found = [np.asarray(state(*d)).tobytes() for d in data[:3]]
    file.write_bytes(state.save())
    made.load(file)
    assert optimizer.step_count == 3
    found += [np.asarray(compiled(*d)).tobytes() for d in data[3:6]]
    made.save(file)
    state.load(file.read_bytes())
    found += [np.asarray(state(*d)).tobytes() for d in data[6:]]
    assert found == wanted
    pytest.importorskip("safetensors")
    parts = ad.load(file)
    assert {k: (v.dtype.name, v.shape) for k, v in parts.items()} == made.parts
    for damage in (lambda b: b[:-1], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b"x" + b[1:]):
        before = [bits(p) for p in model.parameters()]
        file.write_bytes(damage(state.save()))
        with pytest.raises(FileError, match=r"is not a saved state of step|does not match its checksum"):
            made.load(file)
        assert [bits(p) for p in model.parameters()] == before
    for wrong, error, message in (
        ((data[0][0],), TypeError, "step: missing arguments y"),
        ((1, 2, 3), TypeError, "step takes 2 arguments (x, y), but got 3"),
        ((data[0][0][1:], data[0][1]), ValueError, "step: x must have the shape (8, 3), but has (7, 3)"),
        ((data[0][0].astype("d"), data[0][1]), TypeError, "step: x must be an array of float32, but has dtype float64"),
    ):  # fmt: skip
        with pytest.raises(error) as raised:
            state(*wrong)
        assert str(raised.value) == message
    with pytest.raises(ValueError, match="these bytes are not a saved state of step, or not all of it"):
        state.load(b"")
    with pytest.raises(KeyError, match="has no part 'nonsense'"):
        state.get("nonsense")


def test_states_with_values_that_python_does_not_have(tmp_path: Path) -> None:
    """A program in C can set any bits; then nothing is loaded."""
    w, g = ad.tensor([1.0, 2.0], requires_grad=True), ad.random.default_rng(0)
    optimizer = optim.Adam([w], lr=0.1)

    def step(x: Any) -> None:
        optimizer.zero_grad()
        (w * x * g.random(2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    made = ad.export(step, np.ones(2), path=tmp_path)
    c = linked(made)
    state, saved, file = c.state(), np.zeros(c.saved_size(), np.uint8), tmp_path / "state"
    assert c.call(state, [np.ones(2)], []) == 0
    part = next(p for p in made._library.calling.order if p.name == "generator")
    at = part.offset + 10 * 8  # the position in its buffer
    state[at : at + 8] = np.array([2**63], np.uint64).view(np.uint8)
    assert c.save(state.ctypes.data, saved.ctypes.data, saved.size) == 0
    file.write_bytes(saved.tobytes())
    before = [p.read().tobytes() for p in made._library.calling.order]
    with pytest.raises(FileError, match="state has a value that cannot be set: "):
        made.load(file)
    assert [p.read().tobytes() for p in made._library.calling.order] == before
    assert w.tolist() == [1.0, 2.0] and optimizer.step_count == 0


def test_checksums(tmp_path: Path) -> None:
    """The checksum of Python is that of libraries, for data of all lengths; each changed bit changes it."""
    rng = np.random.default_rng(0)
    for size in (0, 1, 3, 4, 7, 64, 999, 65_536 * 4 - 1, 300_001):
        w = ad.tensor(rng.integers(0, 256, size, np.uint8))
        made = ad.export(lambda x, w=w: w + x, np.uint8(1), path=tmp_path / str(size), name="f")
        c = linked(made)
        state, saved = c.state(), np.zeros(c.saved_size() + 1, np.uint8)[1:]  # not aligned
        assert c.save(state.ctypes.data, saved.ctypes.data, saved.size) == 0
        made.save(tmp_path / "state")
        assert (tmp_path / "state").read_bytes() == saved.tobytes()
        for k in rng.integers(saved.size - size, saved.size, 20 if size else 0):
            saved[k] ^= 1 << int(rng.integers(8))
            assert c.load(state.ctypes.data, saved.ctypes.data, saved.size) == 5
            (tmp_path / "state").write_bytes(saved.tobytes())
            with pytest.raises(FileError, match="does not match its checksum"):
                made.load(tmp_path / "state")


@pytest.mark.parametrize("level", ["none", "sse2", "avx2", "avx512"])
def test_levels_give_the_bits_of_compiled_functions(level: str, tmp_path: Path) -> None:
    from adjoint.compiler.emit import machine

    if level not in machine.available():
        pytest.skip(f"this processor has no {level}")
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(9, 20)).astype("f"), ad.tensor(rng.normal(size=(20, 33)).astype("f"))
    f = lambda x: ad.softmax(ad.tanh(x @ w), axis=-1)
    c, y = linked(ad.export(f, x, path=tmp_path, name="f", level=level)), np.empty((9, 33), "f")
    assert c.call(c.state(), [x], [y]) == 0
    assert y.tobytes() == np.asarray(ad.compile(f, level=level)(x)).tobytes()


def test_results_and_arguments_that_pass_through(tmp_path: Path) -> None:
    w = ad.tensor([1.0, 2.0])
    f = lambda batch, k: {"w": w, "x": batch["x"], "y": [batch["x"] * k, batch["x"] * k], "none": None}
    made = ad.export(f, {"x": np.arange(2.0)}, 2.5, path=tmp_path, name="f")
    assert made.arguments == {"batch_x": ("float64", (2,)), "k": ("float64", ())}
    assert list(made.results) == ["w", "x", "y_0", "y_1"]
    c, out = linked(made), [np.zeros(2) for _ in range(4)]
    assert c.call(c.state(), [np.array([3.0, 4.0]), np.array(0.5)], out) == 0
    assert [o.tolist() for o in out] == [[1.0, 2.0], [3.0, 4.0], [1.5, 2.0], [1.5, 2.0]]


def test_results_that_are_tensors_of_the_state(tmp_path: Path) -> None:
    """A tensor that a call changes and returns has its new value, as has a gradient that is added to."""
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    total, p = ad.tensor([0.0, 0.0]), ad.tensor([1.0, 3.0], requires_grad=True)
    w.grad = ad.tensor([0.0, 0.0])
    optimizer = optim.SGD([p], lr=0.1, momentum=0.9)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        ((w * x) ** 2).sum().backward()
        (p * x).sum().backward()
        optimizer.step()
        with ad.no_grad():
            total.copy_(total + x)
        return total, w.grad, p, p.grad, total[::-1]

    x = np.array([1.0, 5.0])
    made = ad.export(step, x, path=tmp_path)
    c, compiled = linked(made), ad.compile(step, level="portable")
    state = c.state()
    for k in range(3):
        found = [np.zeros(2) for _ in range(5)]
        assert c.call(state, [x + k], found) == 0
        wanted = [r.detach().numpy().tobytes() for r in compiled(x + k)]
        assert [f.tobytes() for f in found] == wanted


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.py"
    file.write_text("import adjoint as ad\n\ndef loss(x, w):\n    return ad.tanh(x @ w).sum()\n")
    given = ["export", f"{file}:loss", "3x4", "4x", "--dtype", "float32", "-o", str(tmp_path / "out")]
    assert main(given) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:-1] == ["arguments: x float32[3, 4], w float32[4]", "results: result float32[]"]
    assert lines[-1].startswith("state: ")
    assert (tmp_path / "out" / "loss.h").exists()
    assert main([*given, "--level", "avx9"]) in (1, 2)
    assert "but level is 'avx9'" in capsys.readouterr().err
    assert main([*given[:-4], "--dtype", "nonsense"]) == 2
    assert "--dtype must be a dtype such as float32" in capsys.readouterr().err


def test_names_of_targets() -> None:
    assert targets.host() in targets.TARGETS or sys.platform not in ("linux", "darwin", "win32")


def test_the_example_in_c_learns_from_a_stream(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    folder = Path(__file__).parents[2] / "examples" / "stream"
    assert len((folder / "stream.c").read_text().splitlines()) <= 40
    namespace = runpy.run_path(str(folder / "model.py"))
    namespace["main"](tmp_path)
    program = tmp_path / "stream"
    files = [str(folder / "stream.c"), str(tmp_path / "libstep.a"), "-o", str(program)]
    subprocess.run(["gcc", "-Wall", "-Werror", "-pedantic", f"-I{tmp_path}", *files], check=True)
    numbers = "\n".join(f"{np.sin(k / 3):.6f}" for k in range(1000))
    done = subprocess.run([program], input=numbers, text=True, capture_output=True, cwd=tmp_path, check=True)
    errors = [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines()]
    assert len(errors) == 10
    assert errors[-1] < 0.2 * errors[0]
    pytest.importorskip("safetensors")
    assert ad.load(tmp_path / "state.safetensors")["Adam.step"] == 1000
