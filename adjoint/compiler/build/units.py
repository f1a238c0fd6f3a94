"""Compiled kernels, one *unit* per distinct text: found in memory or on disk, otherwise compiled by LLVM.

The missing units of a program are compiled together, and written to one file of the disk cache.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from adjoint.compiler.build import cache
from adjoint.compiler.build.cache import Image
from adjoint.compiler.build.llvm import Job, compile_all, compile_apart, link
from adjoint.compiler.emit.machine import Machine, binding, machine
from adjoint.compiler.emit.writer import SHARED, unit_name
from adjoint.config import held_across_fork, locked

__all__ = [
    "clear_memory", "counts", "expect", "function", "functions", "key_of", "library", "optimised", "prepare",
    "wait",
]  # fmt: skip

Source = TypeVar("Source", bound=Callable[[], str | None])

USED = re.compile(r"@(unit_[0-9a-f]{32})\(")
# LLVM's optimisation levels for libraries (see ``expect``).  Compilation at level 0 takes a sixth of the time
# of level 1, but calls of small programs then take 6 % longer.  Level 2 takes a fifth longer than level 1,
# and the code is not faster, because it does little arithmetic.
FAST, GOOD = 0, 1
PART = 20_000  # characters: longer texts are divided among threads

_lock = held_across_fork(threading.RLock())
# loaded code, by the keys of its units
_codes: weakref.WeakValueDictionary[str, _Code] = weakref.WeakValueDictionary()
_salts: dict[Machine, bytes] = {}
_libraries: list[Callable[[], str | None]] = []  # functions that return the texts
_compiled: dict[str, bytes] = {}  # object code of libraries that are not loaded yet
_started: list[threading.Thread] = []  # threads that compile libraries
_alone: list[threading.Thread] = []  # the last thread of ``start_alone``
_preparing: dict[str, threading.Thread | None] = {}  # threads of ``prepare``, by key
_in_turn = held_across_fork(threading.RLock())  # only one of these threads compiles at a time
_first: set[str] = set()  # keys of libraries whose code is not optimised yet

# How many units were found in memory, read from disk, or compiled.
counts = {"memory": 0, "disk": 0, "compiled": 0}


class _Code:
    """An image (an object file) that is loaded into the process until this object is deleted."""

    def __init__(self, image: Image, calls: list[_Code]) -> None:
        self.image, self.calls = image, calls
        used = zip(image.uses.items(), calls, strict=True)
        self.tracker = link(image.code, tuple(image.units), {n: code.unit(key) for (n, key), code in used})

    def unit(self, key: str) -> LoadedUnit:
        """Return the address of the unit with this key."""
        found = LoadedUnit(self.tracker[next(name for name, k in self.image.units.items() if k == key)])
        found.code = self
        return found


class LoadedUnit(int):
    """The address of a compiled function; the code stays loaded as long as this object exists."""

    code: _Code


def function(text: str) -> LoadedUnit:
    """Compile the function ``@kernel`` of an LLVM text unless it is cached; return its address."""
    return functions([text])[0]


def functions(texts: Sequence[str]) -> list[LoadedUnit]:
    """Compile the functions ``@kernel`` of LLVM texts unless they are cached; return their addresses."""
    return locked(_lock, _functions, texts, machine())


def _functions(texts: Sequence[str], here: Machine) -> list[LoadedUnit]:
    wanted: dict[str, str] = {}  # name: text
    names = []
    for text in texts:
        names.append(unit_name(text))
        wanted |= {name: SHARED[name] for name in USED.findall(text)}
        wanted[names[-1]] = text
    keys = {name: key_of(text, here) for name, text in wanted.items()}
    codes = {key: code for key in keys.values() if (code := _codes.get(key)) is not None}
    missing = [name for name in wanted if keys[name] not in codes]
    counts["memory"] += len(texts) - len(set(names).intersection(missing))
    if missing:
        _load_or_compile({name: wanted[name] for name in missing}, keys, here, codes)
    return [codes[keys[name]].unit(keys[name]) for name in names]


def clear_memory() -> None:
    """Forget all compiled units, so that they are read from disk again; code in use stays loaded."""
    with _lock:
        _codes.clear()


def key_of(text: str, here: Machine) -> str:
    """Return the cache key of a text: a hash of the text, the versions, the processor and its features."""
    if here not in _salts:
        llvm, version = binding(), sys.modules["adjoint"].__version__
        versions = cache.MAGIC, version, llvm.llvm_version_info, llvm.get_process_triple()
        _salts[here] = repr((versions, here.level, here.cpu, here.features)).encode()
    return hashlib.sha256(_salts[here] + text.encode()).hexdigest()


def _load_or_compile(
    texts: dict[str, str], keys: dict[str, str], here: Machine, codes: dict[str, _Code]
) -> None:
    """Load the units ``texts`` from disk; compile those that are missing and write them to disk."""
    directory = cache.cache_directory()
    if directory is not None:
        for name in texts:
            if keys[name] not in codes:
                _load(cache.read(directory, keys[name]), keys[name], codes)
    missing = {name: text for name, text in texts.items() if keys[name] not in codes}
    counts["disk"] += len(texts) - len(missing)
    if not missing:
        return
    jobs = _jobs(missing, here)
    images = []
    for job, code in zip(jobs, compile_all(jobs, here), strict=True):
        uses = {name for text in job.texts.values() for name in USED.findall(text)}
        units = {name: keys[name] for name in job.texts}
        images.append(Image(units, {name: keys[name] for name in sorted(uses)}, code))
    for image in images:
        _enter(image, codes)
    counts["compiled"] += len(missing)
    if directory is not None:
        used = [codes[k].image for image in images for k in image.uses.values()]
        old = {id(image): image for image in used if image not in images}
        cache.write(directory, [*old.values(), *images], [keys[name] for name in missing])


def _jobs(texts: dict[str, str], here: Machine) -> list[Job]:
    """Divide LLVM texts among jobs of similar size; units that the other texts call are the first job."""
    shared = {name: text for name, text in texts.items() if name in SHARED}
    others = sorted(((len(text), name) for name, text in texts.items() if name not in SHARED), reverse=True)
    count = max(1, min(here.cores, sum(n for n, _ in others) // PART))
    parts: list[dict[str, str]] = [{} for _ in range(count)]
    sizes = [0] * count
    for n, name in others:
        k = sizes.index(min(sizes))
        parts[k][name] = texts[name]
        sizes[k] += n
    return [Job(part) for part in (shared, *parts) if part]


def _load(images: Sequence[Image], key: str, codes: dict[str, _Code]) -> None:
    """Load the unit with this key, and the units that it calls, from images of one file; add to ``codes``."""
    needed = {key}
    found = []
    for image in reversed(images):
        if needed.intersection(image.units.values()):
            found.append(image)
            needed.update(image.uses.values())
    for image in reversed(found):
        try:
            _enter(image, codes)
        except (RuntimeError, KeyError):
            return  # the object file was made for another machine: compile again


def _enter(image: Image, codes: dict[str, _Code]) -> None:
    """Load an image (an object file) into the process; add its code to ``codes`` for each of its units."""
    if all(key in codes for key in image.units.values()):
        return
    code = _Code(image, [codes[key] for key in image.uses.values()])
    for key in image.units.values():
        codes.setdefault(key, code)
        _codes.setdefault(key, code)


# Libraries -----------------------------------------------------------------------------------------


def expect(text: Source) -> Source:
    """Register a library; ``text()`` is its LLVM text, or None if this system cannot use it."""
    _libraries.append(text)
    return text


def _expected(here: Machine) -> dict[str, str]:
    """Return the LLVM texts of the registered libraries, by cache key, and clear the registration."""
    texts = {key_of(text, here): text for make in _libraries if (text := make()) is not None}
    _libraries.clear()
    return texts


def prepare() -> None:
    """Start to compile the libraries that are not on disk, in threads, while a program is lowered."""
    if not _libraries:
        return
    here, directory = machine(), cache.cache_directory()
    texts = locked(_lock, _expected, here)
    missing = {k: t for k, t in texts.items() if directory is None or not cache.read(directory, k)}

    def work(key: str, text: str) -> None:
        _compiled[key] = compile_apart(Job({"library": text}, FAST), here)

    for key, text in missing.items():
        _preparing[key] = _start(functools.partial(work, key, text))


def _start(work: Callable[[], None]) -> threading.Thread | None:
    """Run a function in a new thread, after earlier ones, and ignore errors; return the thread, or None."""

    def run() -> None:
        with _in_turn, suppress(Exception):
            work()

    thread = threading.Thread(target=run, name="adjoint-llvm")
    with suppress(RuntimeError):  # the system cannot create more threads
        thread.start()
        _started.append(thread)
        return thread
    return None


def start_alone(work: Callable[[], None]) -> bool:
    """Run a function in a new thread; return False if a thread that was started so is running."""
    if any(thread.is_alive() for thread in _alone):
        return False
    thread = threading.Thread(target=work, name="adjoint-build")
    try:
        thread.start()
    except RuntimeError:  # the system cannot create more threads
        return False
    _alone[:] = [thread]
    _started.append(thread)
    return True


def _linked(images: Sequence[Image], exports: tuple[str, ...], imports: dict[str, int]) -> dict[str, int]:
    """Load the first image that can be loaded; return the addresses of its functions ``exports``."""
    for image in images:
        with suppress(RuntimeError):  # the object file was made for another machine
            found = _loaded(image.code, exports, imports)
            counts["disk"] += 1
            return found
    return {}


def _loaded(code: bytes, exports: tuple[str, ...], imports: dict[str, int]) -> dict[str, int]:
    """Load object code for ever; return the addresses of the functions ``exports``, by name."""
    tracker = link(code, exports, imports)
    tracker.detach()
    return {name: tracker[name] for name in exports}


def library(
    text: str,
    exports: tuple[str, ...],
    imports: dict[str, int],
    use: Callable[[dict[str, int]], None] | None = None,
) -> dict[str, int]:
    """Compile a library without optimisation; return the addresses of the functions ``exports``, by name.

    ``imports`` has the addresses of the functions that the library calls, by name.  If ``use`` is given, it
    is called with the addresses.  A thread then compiles the library again with optimisation, calls ``use``
    with the new addresses, and writes the code to the disk cache.  The first addresses stay valid.
    """
    here = machine()
    with _lock:
        key = key_of(text, here)
        directory = cache.cache_directory()
        images = [] if directory is None else cache.read(directory, key)
        code, found = b"", _linked(images, exports, imports)
        if not found:
            if (thread := _preparing.pop(key, None)) is not None:
                _join(thread)
            code = _compiled.pop(key, b"") or compile_all([Job({"library": text}, FAST)], here)[0]
            found = _loaded(code, exports, imports)
            counts["compiled"] += 1

    def keep(code: bytes) -> None:
        if directory is not None:
            cache.write(directory, [Image(dict.fromkeys(exports, key), {}, code)], [key])

    def improve() -> None:
        assert use is not None
        better = compile_apart(Job({"library": text}, GOOD), here)
        use(_loaded(better, exports, imports))
        _first.discard(key)
        keep(better)

    if use is not None:
        use(found)
    if code and use is None:
        keep(code)
    elif code:
        _first.add(key)
        _start(improve)
    return found


def optimised() -> bool:
    """Return whether the optimised code of all libraries is in use."""
    return not _first


def wait() -> None:
    """Wait until all threads that compile libraries have ended."""
    for thread in tuple(_started):
        _join(thread)


def _join(thread: threading.Thread) -> None:
    if thread is not threading.current_thread():  # a finalizer may call this in the thread itself
        thread.join()
        with suppress(ValueError):  # another thread waited, too, and has removed it
            _started.remove(thread)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=wait)  # the threads would not exist in the child
