"""Units from memory, disk and LLVM; a damaged or foreign cache is never used."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from native import run
from watchdog import watched

import adjoint as ad
from adjoint.compiler.build import cache as disk_cache
from adjoint.compiler.build import llvm, units
from adjoint.compiler.build import texts as kernel_texts
from adjoint.compiler.emit import machine
from adjoint.compiler.emit.writer import Value, Writer
from adjoint.compiler.host import entry, native

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="the disk cache needs user ids")


def kernel(number: float) -> str:
    w = Writer(machine.machine())
    w.store(w.const(number, "double"), w.slot(0))
    return w.kernel()


INCREMENT = {"Py_IncRef": ctypes.cast(ctypes.pythonapi.Py_IncRef, ctypes.c_void_p).value or 0}


def value_of(text: str) -> float:
    out = np.zeros(1)
    run(text, [out], 0, 1)
    return out[0]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    path = tmp_path / "cache"
    monkeypatch.setenv("ADJOINT_KERNEL_CACHE", str(path))
    units.clear_memory()
    return path


def source_of(text: str) -> str:
    """Run a kernel from an empty memory and tell where it came from."""
    before = dict(units.counts)
    units.clear_memory()
    value_of(text)
    (found,) = [k for k, v in units.counts.items() if v != before[k]]
    return found


def sources_of(texts: list[str]) -> dict[str, int]:
    """Load kernels from an empty memory and tell how many came from where."""
    before = dict(units.counts)
    units.clear_memory()
    units.functions(texts)
    return {k: v - before[k] for k, v in units.counts.items() if v != before[k]}


def calling(text: str) -> str:
    """Return a kernel that calls a unit of its own."""
    w = Writer(machine.machine())
    w.use(text, w.slot(0))
    return w.kernel()


def storing(number: float) -> str:
    """Return a unit that other units call."""
    w = Writer(machine.machine())
    w.store(w.const(number, "double"), Value("%to", "ptr"))
    return w.shared(["ptr %to"])


def only_file(cache: Path) -> Path:
    (path,) = cache.iterdir()
    return path


def test_memory_then_disk_then_llvm(cache):
    text = kernel(3.5)
    assert source_of(text) == "compiled"
    assert source_of(text) == "disk"
    held, before = units.function(text), units.counts["memory"]
    assert units.function(text) == units.function(text) == held
    assert units.counts["memory"] == before + 2 and value_of(text) == 3.5


def test_the_units_of_a_program_are_one_file_with_a_name_for_each(cache):
    texts = [kernel(40.0 + k) for k in range(3)]
    assert sources_of(texts) == {"compiled": 3}
    assert len(list(cache.iterdir())) == 3 and len({path.stat().st_ino for path in cache.iterdir()}) == 1
    assert sources_of(texts) == {"disk": 3}
    assert [source_of(text) for text in texts] == ["disk"] * 3  # each is found alone
    assert sources_of([kernel(50.0), *texts, texts[0]]) == {"memory": 1, "disk": 3, "compiled": 1}
    assert [value_of(text) for text in texts] == [40.0, 41.0, 42.0]


def test_a_kernel_is_stored_with_the_units_that_it_calls(cache):
    used = storing(60.0)
    first, second = calling(used), calling(used) + "; another text\n"
    assert sources_of([first]) == {"compiled": 2}
    before = set(cache.iterdir())
    assert sources_of([second]) == {"compiled": 1, "disk": 1}
    (path,) = set(cache.iterdir()) - before
    for other in before:
        other.unlink()
    assert sources_of([second]) == {"disk": 2} and value_of(second) == 60.0
    path.rename(cache / "elsewhere")
    assert sources_of([second]) == {"compiled": 2} and value_of(second) == 60.0


def test_without_hard_links_the_file_has_one_name(cache, monkeypatch):
    def none(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", none)
    texts = [kernel(70.0), kernel(71.0)]
    assert sources_of(texts) == {"compiled": 2} and only_file(cache)
    assert sources_of(texts) == {"disk": 2}
    assert sources_of(texts[1:]) == {"compiled": 1}


def test_jobs_of_several_threads_give_the_code_of_one(cache, monkeypatch):
    here = machine.machine()
    jobs = [llvm.Job({f"k{k}": kernel(float(k))}) for k in range(9)]
    several = llvm.compile_all(jobs, here._replace(cores=4))
    assert several == llvm.compile_all(jobs, here._replace(cores=1))
    monkeypatch.setattr(llvm.threading.Thread, "start", no_thread)
    assert several == llvm.compile_all(jobs, here._replace(cores=4))


def no_thread(thread: object) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("cores", [1, 4])
def test_an_error_of_one_job_is_raised(cores):
    jobs = [llvm.Job({"k": kernel(1.0)}), llvm.Job({"k": "not LLVM IR"}), llvm.Job({"k": kernel(2.0)})]
    with pytest.raises(RuntimeError, match="LLVM IR parsing error"):
        llvm.compile_all(jobs, machine.machine()._replace(cores=cores))


def test_the_directory_and_its_files_are_private(cache):
    value_of(kernel(1.0))
    assert cache.stat().st_mode & 0o777 == 0o700
    assert only_file(cache).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("setting", ["0", "off"])
def test_one_setting_switches_the_disk_off(cache, monkeypatch, setting):
    monkeypatch.setenv("ADJOINT_KERNEL_CACHE", setting)
    text = kernel(2.0)
    assert source_of(text) == "compiled" and source_of(text) == "compiled"
    assert disk_cache.cache_directory() is None and not cache.exists()


def test_bit_flips_and_truncation_are_found(cache):
    text = kernel(4.25)
    value_of(text)
    path = only_file(cache)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    damaged = [whole[:n] for n in (0, 5, len(disk_cache.MAGIC), len(disk_cache.MAGIC) + 32, len(whole) - 1)]
    damaged.append(whole + b"\0")
    for bit in rng.integers(0, len(whole) * 8, 60):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for each in damaged:
        path.write_bytes(each)
        assert disk_cache.read(cache, path.name.removesuffix(disk_cache.SUFFIX)) == []
    assert source_of(text) == "compiled" and value_of(text) == 4.25
    assert path.read_bytes() == whole  # rebuilt
    assert source_of(text) == "disk"


def test_a_whole_file_under_another_name_is_not_used(cache):
    value_of(kernel(1.0))
    first = only_file(cache)
    value_of(kernel(2.0))
    (second,) = set(cache.iterdir()) - {first}
    second.write_bytes(first.read_bytes())
    assert source_of(kernel(2.0)) == "compiled" and value_of(kernel(2.0)) == 2.0


def test_code_with_a_right_digest_that_is_no_object_is_compiled_anew(cache):
    text = kernel(6.0)
    value_of(text)
    path = only_file(cache)
    (image,) = disk_cache.read(cache, path.name.removesuffix(disk_cache.SUFFIX))
    other = disk_cache._packed([image._replace(code=b"not an object")])
    for body in (other, b"", b"\3" + b"\0" * 7 + b"[5]", b"\5" + b"\0" * 7 + b"[[1, "):
        path.write_bytes(disk_cache.MAGIC + hashlib.sha256(body).digest() + body)
        assert source_of(text) == "compiled" and value_of(text) == 6.0


def test_another_owner_is_not_trusted(cache, monkeypatch):
    text = kernel(7.0)
    value_of(text)
    path, me = only_file(cache), os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert disk_cache.cache_directory() is None  # the directory of another user
    assert disk_cache.read(cache, path.name.removesuffix(disk_cache.SUFFIX)) == []  # and a file of theirs
    assert source_of(text) == "compiled" and value_of(text) == 7.0


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o755])
def test_a_directory_that_others_may_use_is_not_trusted(cache, mode):
    text = kernel(8.0)
    value_of(text)
    cache.chmod(mode)
    assert disk_cache.cache_directory() is None and source_of(text) == "compiled"


def test_a_file_that_others_may_write_and_a_link_are_not_used(cache, tmp_path):
    text = kernel(9.0)
    value_of(text)
    path = only_file(cache)
    path.chmod(0o622)
    assert source_of(text) == "compiled"
    assert source_of(text) == "disk"  # replaced by a private one
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert source_of(text) == "compiled" and not path.is_symlink()


def test_a_link_in_place_of_the_directory_is_not_trusted(cache, tmp_path):
    (tmp_path / "other").mkdir(mode=0o700)
    cache.symlink_to(tmp_path / "other")
    assert disk_cache.cache_directory() is None


def test_a_full_disk_is_no_error_and_leaves_no_file(cache, monkeypatch):
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    text = kernel(10.0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert source_of(text) == "compiled" and list(cache.iterdir()) == []
        patch.setattr(disk_cache.tempfile, "mkstemp", full)
        assert source_of(text) == "compiled" and list(cache.iterdir()) == []
    assert source_of(text) == "compiled" and source_of(text) == "disk" and value_of(text) == 10.0


def test_an_unusable_path_is_no_error(cache, monkeypatch):
    cache.write_text("a file")
    assert disk_cache.cache_directory() is None and value_of(kernel(11.0)) == 11.0


def make_huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)  # without blocks on the disk


def make_unreadable(path: Path) -> None:
    path.write_bytes(b"")
    path.chmod(0)


OBSTACLES = {
    "a directory": lambda path: path.mkdir(),
    "a full directory": lambda path: (path / "inside").mkdir(parents=True),
    "a pipe": lambda path: os.mkfifo(path, 0o600),
    "a socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "a huge file": make_huge,
    "an unreadable file": make_unreadable,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("what", OBSTACLES)
def test_what_is_not_a_file_of_the_cache_is_no_error(cache, tmp_path, monkeypatch, what, linked):
    monkeypatch.setattr(disk_cache, "_pruned", False)
    texts = [kernel(60.0), kernel(61.0)]
    units.functions(texts)
    for path in cache.iterdir():  # in the place of every file, in turn
        path.unlink()
        place = tmp_path / f"obstacle{len(list(tmp_path.iterdir()))}" if linked else path
        OBSTACLES[what](place)
        if linked:
            path.symlink_to(place)
        units.clear_memory()
        with watched():
            assert [value_of(text) for text in texts] == [60.0, 61.0]
        units.clear_memory()
        units.functions(texts)
        assert [x.name for x in cache.iterdir() if not x.name.endswith(disk_cache.SUFFIX)] == []
        assert path.is_dir() or path.is_file()  # a directory is left alone, anything else is replaced


def test_a_directory_in_the_place_of_one_file_does_not_keep_others_from_the_disk(cache):
    texts = [kernel(62.0), kernel(63.0), kernel(64.0)]
    names = [units.key_of(text, machine.machine()) + disk_cache.SUFFIX for text in texts]
    cache.mkdir(mode=0o700)
    (cache / names[1]).mkdir()
    units.functions(texts)
    assert [(cache / name).is_file() for name in names] == [True, False, True]


@pytest.mark.parametrize("what", OBSTACLES)
def test_a_cache_that_is_no_directory_is_no_error(cache, what):
    OBSTACLES[what](cache)
    with watched():
        assert value_of(kernel(65.0)) == 65.0


def test_the_oldest_files_are_removed_from_a_large_cache(cache, monkeypatch):
    monkeypatch.setattr(disk_cache, "LIMIT", 3)
    for k in range(5):
        value_of(kernel(20.0 + k))
    monkeypatch.setattr(disk_cache, "_pruned", False)
    value_of(kernel(30.0))
    assert len(list(cache.iterdir())) == 4


def test_levels_have_units_of_their_own(cache):
    text = kernel(12.0)
    for level in machine.available():
        with machine.using(level):
            assert source_of(text) == "compiled" and source_of(text) == "disk"


def test_processes_that_write_at_once(cache):
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from test_units import kernel, value_of\n"
        "assert [value_of(kernel(float(k))) for k in range(20)] == list(range(20))\n"
    )
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]
    running = [subprocess.Popen([sys.executable, "-c", program, *paths]) for _ in range(3)]
    assert [p.wait(timeout=120) for p in running] == [0, 0, 0]
    assert len(list(cache.iterdir())) == 20  # no temporary file is left
    for k in range(20):
        assert source_of(kernel(float(k))) == "disk" and value_of(kernel(float(k))) == k


def test_each_module_has_its_own_pass_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    # a second run of one calls what the first has registered and deleted: it may print or crash
    made = []
    create = machine.binding().create_pass_builder

    def counted(*args: object) -> object:
        made.append(create(*args))
        return made[-1]

    monkeypatch.setattr(machine.binding(), "create_pass_builder", counted)
    for number in (1.0, 2.0, 3.0):
        llvm.compile_text(kernel(number), machine.machine())
    assert len(made) == 3


# Texts of kernels ------------------------------------------------------------------------------------


def test_texts_come_from_memory_then_disk(cache, monkeypatch):
    written = []
    write = native.NativePlan._write
    monkeypatch.setattr(native.NativePlan, "_write", lambda *args: written.append(args) or write(*args))

    def built(size: int = 37) -> tuple[int, bytes]:
        """Compile a step; return how many groups were written, and the bytes of its results."""
        written.clear()
        w, x = ad.tensor(np.linspace(-1, 1, 9 * size).reshape(9, size), requires_grad=True), np.ones((5, 9))
        step = ad.compile(lambda: ad.grad(lambda w: ad.tanh(x @ w).sum())(w), backend="native")
        step()
        return len(written), step().numpy().tobytes()

    kernel_texts._known.clear()
    count, result = built()
    assert count > 1 and built() == (0, result)  # from memory
    kernel_texts._known.clear()
    assert built() == (0, result)  # from disk
    kernel_texts._known.clear()
    assert built(38)[0] > 1  # another shape
    kernel_texts._known.clear()
    monkeypatch.setattr(kernel_texts, "_stamp", lambda: "other code")
    assert built() == (count, result)
    for path in cache.iterdir():
        body = path.read_bytes()[len(disk_cache.MAGIC) + 32 :]
        images = [image._replace(code=b"not a text") for image in disk_cache._unpacked(body)]
        body = disk_cache._packed(images)
        path.write_bytes(disk_cache.MAGIC + hashlib.sha256(body).digest() + body)
    kernel_texts._known.clear()
    assert built() == (count, result)
    kernel_texts._known.clear()
    monkeypatch.setenv("ADJOINT_KERNEL_CACHE", "off")
    assert built() == (count, result)


# Libraries are compiled twice ------------------------------------------------------------------------


def answer(number: int) -> str:
    return f"define i64 @answer() {{\n  ret i64 {number}\n}}"


def answer_of(address: int) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int64)(address)()


def test_a_library_is_used_at_once_and_replaced_by_better_code(cache):
    found: list[int] = []
    told: list[bool] = []

    def use(addresses: dict[str, int]) -> None:
        found.append(addresses["answer"])
        told.append(units.optimised())

    units.wait()
    first = units.library(answer(7), ("answer",), {}, use)["answer"]
    units.wait()
    assert told[1:] == [False] and ad.compile(lambda x: x).stats()["optimised"]
    assert found[0] == first and len(set(found)) == 2
    assert [answer_of(a) for a in found] == [7, 7]
    before = dict(units.counts)
    again: list[int] = []
    units.library(answer(7), ("answer",), {}, lambda a: again.append(a["answer"]))
    units.wait()
    assert len(again) == 1 and answer_of(again[0]) == 7  # the better code, from disk
    assert units.counts["disk"] == before["disk"] + 1


def test_the_first_code_of_a_library_stays_if_there_is_no_better(cache, monkeypatch):
    def fails(job, here):
        raise RuntimeError("no")

    monkeypatch.setattr(units, "compile_apart", fails)
    found: list[int] = []
    units.library(answer(8), ("answer",), {}, lambda a: found.append(a["answer"]))
    units.wait()
    assert [answer_of(a) for a in found] == [8] and not list(cache.iterdir())
    assert not units.optimised()
    units._first.clear()


def test_built_in_functions_follow_their_method(cache):
    text = "declare void @Py_IncRef(ptr)\ndefine ptr @call(ptr %self, ptr %args, i64 %n) {\n"
    text += "  %r = RESULT\n  call void @Py_IncRef(ptr %r)\n  ret ptr %r\n}"
    own = entry.method(text.replace("RESULT", "select i1 true, ptr %self, ptr %args"), "call", INCREMENT)
    first = entry.method(text.replace("RESULT", "load ptr, ptr %args"), "call", INCREMENT)
    units.wait()
    owner = object()
    call = entry.built_in(own, owner)
    assert call(1) is owner
    own.function = first.function
    assert call(1) == 1


def test_fork_and_exit_wait_for_better_code(cache):
    """A child has the better code, and a process that ends at once leaves it on disk_cache."""
    program = f"""
import os
from adjoint.compiler.build import units
found = []
units.library({answer(9)!r}, ("answer",), {{}}, found.append)
child = os.fork()
if child == 0:
    os._exit(len(found))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
units.library({answer(10)!r}, ("answer",), {{}}, found.append)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)
    before = units.counts["disk"]
    for number in (9, 10):
        assert answer_of(units.library(answer(number), ("answer",), {})["answer"]) == number
    assert units.counts["disk"] == before + 2
