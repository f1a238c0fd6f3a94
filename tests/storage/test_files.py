"""Saving and loading: whole or not at all, checked, nothing executed."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import adjoint as ad
from adjoint.errors import DTypeError, FileError, InputError, MissingExtraError
from adjoint.storage import atomic as replacing
from adjoint.storage import files

safetensors = pytest.importorskip("safetensors.numpy")
safe_open = pytest.importorskip("safetensors").safe_open


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.safetensors"


def same(a, b):
    if isinstance(a, (np.ndarray, np.generic, ad.Tensor)):
        assert type(a) is type(b)
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert type(a) is type(b)
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert type(a) is type(b)
        assert a == b or (a != a and b != b)


STATE = {
    "numbers": [1, -2.5, True, None, "text", float("inf"), float("-inf"), 10**40, 1 + 2j],
    "nested": {"a": ({"b": [np.arange(3)]}, ()), 7: {}, "": []},
    "a.b": np.ones(2),
    "a": {"b": np.zeros(2)},
    "tensor": ad.tensor([[1.0, 2.0]]),
    "zero-d": np.array(3.0),
    "scalar": np.float32(2.5),
    "empty": np.zeros((0, 3), np.int8),
    "mask": np.array([True, False]),
    "strided": np.arange(12.0).reshape(3, 4)[:, ::2],
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "half": np.array([1.0, np.nan], np.float16),
    "complex": np.array([1 + 2j, np.inf], np.complex128),
    "complex64": np.array(1 + 2j, np.complex64),
    "unsigned": np.array([2**64 - 1], np.uint64),
}


def test_there_and_back(path):
    ad.save(path, STATE)
    same(ad.load(path), STATE)


@pytest.mark.parametrize("state", [3, None, [], {}, np.ones(2), "text", ad.tensor(1.0)], ids=str)
def test_a_state_of_any_form(path, state):
    ad.save(path, state)
    same(ad.load(path), state)


def test_sparse_gradients_stay_sparse(path):
    ad.save(path, {"g": ad.sparse_gradient([3, 1], [[1.0], [2.0]], (1_000_000, 1))})
    assert path.stat().st_size < 2000
    g = ad.load(path)["g"]
    assert type(g) is ad.SparseGradient
    assert (g.shape, g.rows.tolist(), g.values.tolist()) == ((1_000_000, 1), [3, 1], [[1.0], [2.0]])


def test_nan_and_byte_order(path):
    ad.save(path, {"nan": float("nan"), "big": np.array([1.0, 2.0], ">f8")})
    loaded = ad.load(path)
    assert loaded["nan"] != loaded["nan"]
    same(loaded["big"], np.array([1.0, 2.0]))


def test_bfloat16(path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    state = {"w": np.array([1.0, 2.5], ml_dtypes.bfloat16)}
    ad.save(path, state)
    same(ad.load(path), state)


def foreign(path, dtype, data, shape):
    """A file as another library writes it: its header, then its numbers."""
    header = json.dumps({"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def test_bfloat16_of_others_in_a_fresh_process(path):
    pytest.importorskip("ml_dtypes")
    foreign(path, "BF16", b"\x80\x3f\x20\x40", [2])
    code = f"import adjoint as ad; w = ad.load({str(path)!r})['w']; print(w.dtype, w.tolist())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "bfloat16 [1.0, 2.5]\n"


def test_bfloat16_without_its_library(path, monkeypatch):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    ours = path.with_name("ours.safetensors")
    ad.save(ours, {"w": np.array([1.0, 2.5], ml_dtypes.bfloat16)})
    foreign(path, "BF16", b"\x80\x3f\x20\x40", [2])
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    for file in (ours, path):
        with pytest.raises(MissingExtraError) as error:
            ad.load(file)
        assert str(error.value) == (
            "loading bfloat16 needs ml_dtypes.  Install it with: pip install '.[bfloat16]' in a clone of adjoint, or pip install 'adjoint-ad[bfloat16]' once it is published."
        )


def test_floats_that_numpy_does_not_have(path):
    foreign(path, "F8_E4M3", b"\x38\x38", [2])
    with pytest.raises(DTypeError) as error:
        ad.load(path)
    assert str(error.value) == (
        "ad.load: 'w' has dtype F8_E4M3, which NumPy does not have.\n"
        "  Convert it to float16, bfloat16 or float32 where the file is written."
    )


def test_others_can_read_it(path):
    ad.save(path, {"model": {"w": np.arange(3.0)}, "step": 4})
    np.testing.assert_array_equal(safetensors.load_file(path)["model.w"], [0.0, 1.0, 2.0])


def test_files_of_others(path):
    safetensors.save_file({"w": np.ones(2)}, path)
    same(ad.load(path), {"w": np.ones(2)})


def test_the_state_of_an_accumulator(path):
    def fresh():
        acc = ad.GradientAccumulator(accumulation_steps=3, compensated=True)
        acc.register("w", (2,))
        acc.register("t", (4, 2))
        return acc

    acc = fresh()
    acc.step({"w": [1.0, 2.0], "t": ad.sparse_gradient([2], [[1.0, 2.0]], (4, 2))}, weight=3)
    ad.save(path, {"accumulator": acc.state_dict(), "scaler": ad.GradScaler().state_dict()})
    resumed = fresh()
    resumed.load_state_dict(ad.load(path)["accumulator"])
    for a in (acc, resumed):
        a.step({"w": [4.0, 8.0]}, weight=1)
    np.testing.assert_array_equal(resumed.gradients()["w"], acc.gradients()["w"])
    np.testing.assert_array_equal(resumed.gradients()["t"].numpy(), acc.gradients()["t"].numpy())


def test_the_state_of_an_optimiser(path):
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    optimizer = ad.optim.Adam([w])
    (w * w).sum().backward()
    optimizer.step()
    ad.save(path, optimizer.state_dict())
    twin = ad.optim.Adam([ad.tensor([1.0, 2.0], requires_grad=True)])
    twin.load_state_dict(ad.load(path))
    same(twin.state_dict(), optimizer.state_dict())


# What is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": [object()]}, "a.0 is an object"),
        ({"a": {1.5: 2}}, "keys must be strings or integers, but a has the key 1.5"),
        ({"a": np.array(["x"])}, "a has dtype <U1"),
        ({"a": b"bytes"}, "a is a bytes"),
        (lambda: 0, "the state is a function"),
    ],
)
def test_what_cannot_be_saved(path, state, message):
    path.write_bytes(b"before")
    with pytest.raises(InputError, match=message):
        ad.save(path, state)
    assert path.read_bytes() == b"before"
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(
    "content", [b"", b"no", b"x" * 100, b"\xff" * 8 + b"{}", (2).to_bytes(8, "little") + b"[]"]
)
def test_damaged_files(path, content):
    path.write_bytes(content)
    with pytest.raises(FileError, match="is damaged or not a safetensors file"):
        ad.load(path)


def test_a_file_that_was_cut(path):
    ad.save(path, {"w": np.ones(100)})
    whole = path.read_bytes()
    for end in (len(whole) - 1, len(whole) // 2, 20):
        path.write_bytes(whole[:end])
        with pytest.raises(FileError):
            ad.load(path)


def test_no_file(path):
    with pytest.raises(FileNotFoundError):
        ad.load(path)


def test_directories_are_named(path):
    with pytest.raises(IsADirectoryError, match=f"cannot write to a directory: '{path.parent}'"):
        ad.save(path.parent, {})
    with pytest.raises(IsADirectoryError, match=f"cannot read a directory: '{path.parent}'"):
        ad.load(path.parent)
    with pytest.raises(FileNotFoundError, match=f"directory does not exist: '{path}'"):
        ad.save(path / "below", {})
    with pytest.raises(IsADirectoryError):
        ad.save("", {})
    assert os.listdir(path.parent) == []


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
def test_a_link_stays_and_what_it_leads_to_is_replaced(path):
    target = path.with_name("real") / "state"
    target.parent.mkdir()
    path.symlink_to(target)
    for n in (1, 2):
        ad.save(path, {"n": n})
        assert path.is_symlink()
        assert ad.load(target) == {"n": n}
    assert os.listdir(target.parent) == ["state"]


def header(state):
    return {"adjoint": json.dumps({"format": 2, "state": state}), "adjoint_sha256": "0" * 64}


ARRAY = {"kind": "array", "name": "w", "shape": [2], "dtype": "float64"}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({**ARRAY, "name": "v"}, "array 'v' is missing"),
        ({**ARRAY, "shape": [3]}, "has shape"),
        ({**ARRAY, "dtype": "float32"}, "is float64"),
        ({**ARRAY, "dtype": "object"}, "dtype 'object'"),
        ({"kind": "pickle"}, "unknown kind 'pickle'"),
        ({"items": []}, "its structure does not match"),
        (3, "its structure does not name the arrays w"),
    ],
)
def test_a_structure_that_does_not_fit(path, state, message):
    safetensors.save_file({"w": np.ones(2)}, path, metadata=header(state))
    files.seal(path)
    with pytest.raises(FileError, match=message):
        ad.load(path)


def test_a_format_of_the_future(path):
    safetensors.save_file({}, path, metadata={"adjoint": json.dumps({"format": 3, "state": None})})
    with pytest.raises(FileError, match="has format 3; this version of adjoint reads format 2"):
        ad.load(path)


def test_like_checks_names_shapes_and_dtypes(path):
    ad.save(path, {"w": np.ones(2), "b": np.ones(1), "deep": [{"x": np.ones(1)}], "n": 1})
    assert ad.load(path, like=ad.load(path))["n"] == 1
    expected = {
        "w": np.ones((2, 1)),
        "b": np.ones(1, np.float32),
        "deep": [{"y": np.ones(1)}],
        "n": np.ones(1),
    }
    with pytest.raises(FileError) as caught:
        ad.load(path, like=expected)
    assert str(caught.value) == (
        f"{path} differs from the expected state:\n"
        "  w: expected float64 (2, 1), but got float64 (2,)\n"
        "  b: expected float32 (1,), but got float64 (1,)\n"
        "  deep.0.y: missing\n"
        "  deep.0.x: not expected\n"
        "  n: expected an array, but got int"
    )


def test_without_safetensors(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'adjoint-ad\[files\]'"):
        ad.save(path, {})


# Whole or not at all ---------------------------------------------------------------------------


def test_a_write_that_fails_leaves_the_old_file(path, monkeypatch):
    ad.save(path, {"n": 1})

    def fail(*_):
        raise OSError("no space")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(OSError, match="no space"):
                ad.save(path, {"n": 2})
        assert ad.load(path) == {"n": 1}
        assert os.listdir(path.parent) == [path.name]


def test_the_order_of_what_reaches_the_disk(path, monkeypatch):
    calls = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(stat.S_ISDIR(os.fstat(fd).st_mode)), sync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("rename"), replace(a, b)))
    ad.save(path, {"n": 1})
    assert calls == [False, "rename", True]


def test_permissions_are_those_of_any_new_file(path):
    ad.save(path, {"n": 1})
    plain = path.with_name("plain")
    plain.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    path.chmod(0o640)
    ad.save(path, {"n": 2})
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


WRITER = """
import sys, itertools, numpy as np, adjoint as ad
path = sys.argv[1]
sys.stdout.write("ready\\n"); sys.stdout.flush()
for n in itertools.count(1):
    ad.save(path, {"n": n, "w": np.full(60_000, float(n)), "v": [np.full(7, n)]})
"""


def killed_while_saving(path: Path, times: int) -> set[int]:
    """Kill writers at random moments; after each, the file is whole.  Returns the numbers found."""
    rng = np.random.default_rng(0)
    found = set()
    ad.save(path, {"n": 0, "w": np.full(60_000, 0.0), "v": [np.full(7, 0)]})
    for _ in range(times):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            # a moment inside some save: until the file has been replaced a few times, and a little more
            seen, spins = None, int(rng.integers(0, 3000))
            for _ in range(int(rng.integers(1, 4))):
                while (now := path.stat().st_ino) == seen:
                    pass
                seen = now
            for _ in range(spins):
                path.stat()
            writer.send_signal(signal.SIGKILL)
        finally:
            writer.kill()
            writer.wait()
            writer.stdout.close()
        state = ad.load(path)
        assert (state["w"] == state["n"]).all()
        assert (state["v"][0] == state["n"]).all()
        found.add(state["n"])
    assert len(os.listdir(path.parent)) <= 2  # each save removed what the one before had left
    ad.save(path, state)
    assert os.listdir(path.parent) == [path.name]
    return found


def in_the_middle_of_a_save(path, monkeypatch, what):
    """Call ``what`` when a save has written its file and not yet renamed it."""
    replace = os.replace

    def interrupted(*args):
        monkeypatch.setattr(os, "replace", replace)
        what()
        replace(*args)

    monkeypatch.setattr(os, "replace", interrupted)
    ad.save(path, {"n": 1})


def test_two_saves_at_once_leave_each_other_alone(path, monkeypatch):
    seen = []

    def other():
        ad.save(path, {"n": 2})
        seen.append(ad.load(path))

    in_the_middle_of_a_save(path, monkeypatch, other)
    assert seen == [{"n": 2}]
    assert ad.load(path) == {"n": 1}
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("held", [["lock", "file", ".tmpXyZ"], ["lock"], []])
@pytest.mark.parametrize("with_fcntl", [True, False])
def test_what_was_left_behind_is_removed(path, monkeypatch, held, with_fcntl):
    if not with_fcntl:  # as on Windows
        monkeypatch.setattr(replacing, "fcntl", None)
    left = path.with_name(f".{path.name}.{'0' * 16}.tmp")
    left.mkdir()
    for name in held:
        (left / name).write_bytes(b"half")
    others = [f".other.{'0' * 16}.tmp", f".{path.name}.mine.tmp", "notes.txt"]
    for name in others:
        path.with_name(name).touch()
    ad.save(path, {"n": 1})
    assert sorted(os.listdir(path.parent)) == sorted([path.name, *others])


@pytest.mark.skipif(os.name == "nt", reason="Windows locks by keeping files open")
def test_a_directory_that_is_taken_away_before_it_is_locked(path, monkeypatch):
    import fcntl

    lock, made = fcntl.flock, []

    def late(descriptor, how):
        if not made:
            made.extend(path.parent.glob(".*.tmp"))
            replacing._remove(made[0])
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    ad.save(path, {"n": 1})
    assert len(made) == 1
    assert ad.load(path) == {"n": 1}
    assert os.listdir(path.parent) == [path.name]


def test_a_file_system_without_locks(path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def fail(*_):
        raise OSError("not supported")

    monkeypatch.setattr(fcntl, "flock", fail)
    in_the_middle_of_a_save(path, monkeypatch, lambda: ad.save(path, {"n": 2}))
    assert ad.load(path) == {"n": 1}
    assert os.listdir(path.parent) == [path.name]


def test_the_path_comes_first(path):
    """PyTorch's order is the other one."""
    with pytest.raises(InputError) as info:
        ad.save({"n": 1}, path)
    assert str(info.value) == (
        "ad.save: the path must be a str or a pathlib.Path, but got dict.\n  The path comes first: ad.save(path, state)."
    )


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_killed_while_saving(path):
    assert len(killed_while_saving(path, 10)) > 1


@pytest.mark.soak
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_killed_while_saving_200_times(path):
    assert len(killed_while_saving(path, 200)) > 3


def test_nothing_is_executed():
    source = Path(files.__file__).read_text(encoding="utf-8")
    assert "import pickle" not in source
    assert ".loads(" not in source.replace("json.loads(", "")
    assert "eval(" not in source


def small_file(path):
    rng = np.random.default_rng(0)
    ad.save(
        path, {"w": rng.normal(size=3), "step": 7, "c": np.array([1j]), "e": np.zeros(0), "t": ad.ones(2)}
    )
    return path.read_bytes()


def test_a_file_in_which_anything_has_changed_is_refused(path):
    data = small_file(path)
    for place in range(len(data)):
        for bit in {place % 8, (5 * place + 3) % 8}:
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            with pytest.raises(FileError):
                ad.load(path)
    for size in range(0, len(data), 7):
        path.write_bytes(data[:size])
        with pytest.raises(FileError):
            ad.load(path)


def mutated(data, rng):
    """The bytes of a file after one to four changes: of bytes, of ranges, of the length."""
    changed = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        size = len(changed)
        i, j = rng.integers(size, size=2)
        n = int(rng.integers(1, 200))
        kind = rng.integers(8)
        if kind == 0:
            changed[i] = rng.integers(256)
        elif kind == 1:
            changed[i] = ord(rng.choice(list('abcxyz0123456789 ",:{}')))
        elif kind == 2:
            changed[i : i + n] = bytes(min(n, size - i))
        elif kind == 3:
            changed[i : i + n] = rng.bytes(min(n, size - i))
        elif kind == 4:
            changed[i : i + n] = changed[j : j + min(n, size - i)].ljust(min(n, size - i))
        elif kind == 5:
            changed[i : i + n] = b""
        elif kind == 6:
            changed[i:i] = changed[j : j + n]
        else:
            changed[i : i + n] = b" " * min(n, size - i)
    return bytes(changed)


def refuse_mutations(path, data, seeds):
    for seed in seeds:
        changed = mutated(data, np.random.default_rng(seed))
        if changed != data:
            path.write_bytes(changed)
            with pytest.raises(FileError):
                pytest.fail(f"{seed}: {ad.load(path)}")


def test_equal_states_give_equal_files(path):
    state = {"w": np.arange(4.0), 'ä\x1f\x7f"\\/\u2028': np.ones(3), "n": [1, 2.5, None, "<é>"]}
    found = set()
    for _ in range(8):
        ad.save(path, state)
        found.add(path.read_bytes())
    assert len(found) == 1


def test_a_file_with_larger_changes_is_refused(path):
    refuse_mutations(path, small_file(path), (*range(1000), 31579))  # the last damages every key and value


@pytest.mark.soak
def test_a_file_with_larger_changes_is_refused_for_long(path):
    refuse_mutations(path, small_file(path), range(1000, 100_000))


@pytest.mark.parametrize(
    "gone", [{"adjoint"}, {"adjoint", "written_by"}, {"adjoint", "adjoint_sha256"}, {"adjoint_sha256"}]
)
def test_a_file_of_ours_does_not_pass_for_another(path, gone):
    small_file(path)
    with safe_open(path, framework="numpy") as file:
        metadata, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    changed = {f"x{k}" if k in gone else k: v for k, v in metadata.items()}
    safetensors.save_file(arrays, path, metadata=changed)
    with pytest.raises(FileError, match="is damaged: its contents"):
        ad.load(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are of Unix")
def test_only_regular_files_are_written_and_read(path):
    pipe, link, plug = (path.with_name(name) for name in ("pipe", "link", "socket"))
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(plug))
        for other in (pipe, link, plug, Path(os.devnull)):
            before = other.stat()
            for use in (lambda p: ad.save(p, {"n": 1}), ad.load):
                with pytest.raises(FileError, match="is a device, a pipe or a socket"):
                    use(other)
            assert (other.stat().st_ino, other.stat().st_mode) == (before.st_ino, before.st_mode)
    assert sorted(os.listdir(path.parent)) == ["link", "pipe", "socket"]


def test_the_word_that_the_format_keeps_for_itself_is_a_name_like_any_other(tmp_path):
    state = {"__metadata__": np.array([1.0]), "w": {"__metadata__": np.array([2.0])}}
    ad.save(tmp_path / "s", state)
    assert ad.load(tmp_path / "s", like=state)["__metadata__"].tolist() == [1.0]


def test_what_cannot_be_written_is_refused_before_anything_is(tmp_path):
    cyclic: dict = {"a": np.ones(2)}
    cyclic["self"] = [cyclic]
    with pytest.raises(InputError, match="the state contains itself, or is nested too deeply"):
        ad.save(tmp_path / "s", cyclic)
    with pytest.raises(InputError, match="a string of the state cannot be encoded"):
        ad.save(tmp_path / "s", {"\ud800": np.ones(2)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("start", [b"PK\x03\x04", pickle.dumps({"w": 1.0}), pickle.dumps(1, protocol=2)])
def test_a_pickle_is_not_read_and_says_what_to_do(tmp_path, start):
    path = tmp_path / "model.pt"
    path.write_bytes(start + bytes(64))
    with pytest.raises(FileError) as info:
        ad.load(path)
    assert str(info.value) == (
        f"{path} was written by torch.save or pickle. Loading it could run code, so adjoint reads only safetensors.\n"
        "  Convert it with PyTorch: safetensors.torch.save_file(torch.load(path, weights_only=True), 'model.safetensors')."
    )
