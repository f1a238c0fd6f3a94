"""Compiled kernels, one *unit* per distinct text: found in memory, then on disk, else compiled by LLVM.

The missing units of a program are compiled together, and written to one file of the disk cache.
"""

from __future__ import annotations

import hashlib
import re
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from adjoint.compiler import disk
from adjoint.compiler.disk import Image
from adjoint.compiler.emit.text import SHARED, unit_name
from adjoint.compiler.llvm import Job, compile_all, link
from adjoint.compiler.machine import Machine, binding, machine
from adjoint.config import held_across_fork

__all__ = ["clear_memory", "counts", "expect", "function", "functions", "library"]

Source = TypeVar("Source", bound=Callable[[], str | None])

USED = re.compile(r"@(unit_[0-9a-f]{32})\(")
# The level of optimisation of libraries: 1 takes a fifth less time than 2, and its code runs as fast, because
# nothing there is arithmetic; 0 takes a fifth of the time, but calls of small programs take 6 % longer.
EFFORT = 1
PART = 20_000  # characters: longer texts are divided among threads

_lock = held_across_fork(threading.RLock())
_addresses: dict[str, int] = {}
_images: dict[str, Image] = {}  # the image of each unit in ``_addresses``
_salts: dict[Machine, bytes] = {}
_libraries: list[tuple[Callable[[], str | None], int]] = []  # texts and levels of optimisation
_compiled: dict[str, bytes] = {}  # object code of libraries that are not loaded yet

# How many units were found in memory, read from disk, or compiled.
counts = {"memory": 0, "disk": 0, "compiled": 0}


def function(text: str) -> int:
    """Return the address of the function ``@kernel`` of a text."""
    return functions([text])[0]


def functions(texts: Sequence[str]) -> list[int]:
    """Return the addresses of the functions ``@kernel`` of texts; equal texts are compiled once."""
    here = machine()
    with _lock:
        wanted: dict[str, str] = {}  # name: text
        names = []
        for text in texts:
            names.append(unit_name(text))
            wanted |= {name: SHARED[name] for name in USED.findall(text)}
            wanted[names[-1]] = text
        keys = {name: _key(text, here) for name, text in wanted.items()}
        missing = [name for name in wanted if keys[name] not in _addresses]
        counts["memory"] += len(texts) - len(set(names).intersection(missing))
        if missing:
            _load_or_compile({name: wanted[name] for name in missing}, keys, here)
        return [_addresses[keys[name]] for name in names]


def clear_memory() -> None:
    """Clear the cache in memory, so that units are read from disk again; loaded code is not unloaded."""
    with _lock:
        _addresses.clear()
        _images.clear()


def _key(text: str, here: Machine) -> str:
    """Return the key of a text: it depends on the versions, the processor and its features, too."""
    if here not in _salts:
        llvm = binding()
        version = sys.modules["adjoint"].__version__
        parts: tuple[Any, ...] = (
            disk.MAGIC,
            version,
            llvm.llvm_version_info,
            here.level,
            here.cpu,
            here.features,
            llvm.get_process_triple(),
        )
        _salts[here] = repr(parts).encode()
    return hashlib.sha256(_salts[here] + text.encode()).hexdigest()


def _load_or_compile(texts: dict[str, str], keys: dict[str, str], here: Machine) -> None:
    """Load units from disk; compile those that are not there, and write them to disk."""
    directory = disk.cache_directory()
    if directory is not None:
        for name in texts:
            if keys[name] not in _addresses:
                _load(disk.read(directory, keys[name]), keys[name])
    missing = {name: text for name, text in texts.items() if keys[name] not in _addresses}
    counts["disk"] += len(texts) - len(missing)
    if not missing:
        return
    jobs = _jobs(missing, here)
    waiting = _waiting(here)
    codes = compile_all([*jobs, *waiting.values()], here)
    _compiled.update(zip(waiting, codes[len(jobs) :], strict=True))
    images = []
    for job, code in zip(jobs, codes, strict=False):
        uses = {name for text in job.texts.values() for name in USED.findall(text)}
        units = {name: keys[name] for name in job.texts}
        images.append(Image(units, {name: keys[name] for name in sorted(uses)}, code))
    for image in images:
        _enter(image)
    counts["compiled"] += len(missing)
    if directory is not None:
        old = {id(i): i for image in images for k in image.uses.values() if (i := _images[k]) not in images}
        disk.write(directory, [*old.values(), *images], [keys[name] for name in missing])


def _jobs(texts: dict[str, str], here: Machine) -> list[Job]:
    """Divide texts into jobs of LLVM; the first has the units that the others call, if there are any."""
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


def _load(images: Sequence[Image], key: str) -> None:
    """Load the unit of a key from the images of a file, with the units that it uses."""
    needed = {key}
    found = []
    for image in reversed(images):
        if needed.intersection(image.units.values()):
            found.append(image)
            needed.update(image.uses.values())
    for image in reversed(found):
        try:
            _enter(image)
        except (RuntimeError, KeyError):
            return  # the object file is of another machine: compile again


def _enter(image: Image) -> None:
    """Load an image into the process."""
    if all(key in _addresses for key in image.units.values()):
        return
    found = link(image.code, tuple(image.units), {n: _addresses[key] for n, key in image.uses.items()})
    for name, key in image.units.items():
        _addresses.setdefault(key, found[name])
        _images.setdefault(key, image)


# Libraries -----------------------------------------------------------------------------------------


def expect(text: Source, effort: int = EFFORT) -> Source:
    """Compile a library together with the first kernels, because programs need it too.

    ``text()`` returns its text, or None if this system cannot use it; ``effort`` is as for ``library``.
    """
    _libraries.append((text, effort))
    return text


def _waiting(here: Machine) -> dict[str, Job]:
    """Return the jobs of the expected libraries that are neither loaded nor on disk, by key."""
    directory = disk.cache_directory()
    found = {}
    for make, effort in _libraries:
        text = make()
        if text is not None:
            key = _key(text, here)
            if directory is None or not disk.read(directory, key):
                found[key] = Job({"library": text}, effort)
    _libraries.clear()
    return found


def library(
    text: str, exports: tuple[str, ...], imports: dict[str, int], effort: int = EFFORT
) -> dict[str, int]:
    """Compile a text and return the addresses of the functions ``exports``.

    ``imports`` has the addresses of the functions that the text calls, by name; ``effort`` is LLVM's level of
    optimisation.
    """
    here = machine()
    with _lock:
        key = _key(text, here)
        directory = disk.cache_directory()
        images = [] if directory is None or key in _compiled else disk.read(directory, key)
        for image in images:
            try:
                addresses = link(image.code, exports, imports)
            except RuntimeError:  # the object file is of another machine
                continue
            counts["disk"] += 1
            return addresses
        code = _compiled.pop(key, None)
        if code is None:
            (code,) = compile_all([Job({"library": text}, effort)], here)
        counts["compiled"] += 1
        if directory is not None:
            disk.write(directory, [Image(dict.fromkeys(exports, key), {}, code)], [key])
        return link(code, exports, imports)
