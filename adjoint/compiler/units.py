"""Compiled kernels, one *unit* per distinct text: found in memory, then on disk, else compiled by LLVM.

The disk cache is a directory of object files with their digests.  It is used only if it belongs to the user
and has mode 0700.  A file that is damaged, or that another user owns, is ignored and replaced.
``ADJOINT_KERNEL_CACHE`` names another directory; ``0`` or ``off`` disables the cache.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import stat
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from adjoint.compiler.emit.text import SHARED
from adjoint.compiler.machine import Machine, binding, machine
from adjoint.config import held_across_fork

__all__ = ["cache_directory", "clear_memory", "counts", "function", "library", "link"]

MAGIC = b"adjoint kernel 1\n"
SUFFIX = ".kernel"
USED = re.compile(r"@(unit_[0-9a-f]{32})\(")
LIMIT = 8192  # files; the oldest half is removed when there are more

_lock = held_across_fork(threading.RLock())
_addresses: dict[str, int] = {}
_salts: dict[Machine, bytes] = {}
_pruned = False
_names = 0

# How many units were found in memory, read from disk, or compiled.
counts = {"memory": 0, "disk": 0, "compiled": 0}


def function(text: str) -> int:
    """Return the address of the function ``@kernel`` of a text; equal texts are compiled once."""
    here = machine()
    key = hashlib.sha256(_salt(here) + text.encode()).hexdigest()
    with _lock:
        if key in _addresses:
            counts["memory"] += 1
        else:
            _addresses[key] = _load_or_compile(text, key, here)
        return _addresses[key]


def clear_memory() -> None:
    """Clear the cache in memory, so that units are read from disk again; loaded code is not unloaded."""
    with _lock:
        _addresses.clear()


def _salt(here: Machine) -> bytes:
    """Return the part of a cache key that is common to all units: versions, processor and features."""
    if here not in _salts:
        llvm = binding()
        version = sys.modules["adjoint"].__version__
        parts = (
            MAGIC,
            version,
            llvm.llvm_version_info,
            here.level,
            here.cpu,
            here.features,
            llvm.get_process_triple(),
        )
        _salts[here] = repr(parts).encode()
    return _salts[here]


def _load_or_compile(text: str, key: str, here: Machine) -> int:
    imports = {name: function(SHARED[name]) for name in sorted(set(USED.findall(text)))}
    return _linked(text, key, here, ("kernel",), imports)["kernel"]


def library(text: str, exports: tuple[str, ...], imports: dict[str, int]) -> dict[str, int]:
    """Compile a text and return the addresses of the functions ``exports``.

    ``imports`` has the addresses of the functions that the text calls, by name.
    """
    here = machine()
    key = hashlib.sha256(_salt(here) + text.encode()).hexdigest()
    with _lock:
        # level 1 takes a fifth less time than 2, and its code runs as fast: nothing here is arithmetic
        return _linked(text, key, here, exports, imports, 1)


def _linked(
    text: str, key: str, here: Machine, exports: tuple[str, ...], imports: dict[str, int], effort: int = 2
) -> dict[str, int]:
    """Load a unit from disk, or compile it and write it to disk; return the addresses of ``exports``.

    ``key`` is its key in the cache, ``here`` the processor; the other arguments are as for ``library``.
    """
    directory = cache_directory()
    found = None if directory is None else _read(directory, key)
    if found is not None:
        with suppress(RuntimeError):  # the object file is of another machine: compile again
            addresses = link(found, exports, imports)
            counts["disk"] += 1
            return addresses
    code = compile_text(text, here, effort)
    addresses = link(code, exports, imports)
    counts["compiled"] += 1
    if directory is not None:
        _write(directory, key, code)
    return addresses


# LLVM --------------------------------------------------------------------------------------------


def compile_text(text: str, here: Machine, effort: int = 2) -> bytes:
    """Return the object code of a unit; ``effort`` is LLVM's level of optimisation, from 0 to 3.

    SROA is the only optimisation pass: the text already uses vector instructions.
    """
    llvm, target, passes = _tools(here, effort)
    with _lock:
        module = llvm.parse_assembly(text)
        module.triple = llvm.get_process_triple()
        module.data_layout = str(target.target_data)
        manager = llvm.create_new_module_pass_manager()
        manager.add_sroa_pass()
        manager.run(module, passes)
        return target.emit_object(module)


@functools.cache
def _tools(here: Machine, effort: int) -> tuple[Any, Any, Any]:
    """Return llvmlite, a target machine and a pass builder, for the processor ``here``."""
    llvm = binding()
    target = _target(here, effort)
    return llvm, target, llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=0))


def _target(here: Machine, effort: int = 2) -> Any:
    target = binding().Target.from_triple(binding().get_process_triple())
    return target.create_target_machine(
        cpu=here.cpu, features=here.features, opt=effort, reloc="pic", codemodel="default", jit=True
    )


@functools.cache
def _jit() -> Any:
    return binding().create_lljit_compiler(_target(machine()))


def link(
    code: bytes, exports: tuple[str, ...] = ("kernel",), imports: dict[str, int] | None = None
) -> dict[str, int]:
    """Load object code into the process and return the addresses of the functions ``exports``.

    ``imports`` has the addresses of the functions that the code calls, by name.

    The code is never unloaded, because programs and helper threads keep addresses.
    """
    global _names
    with _lock:
        _names += 1
        builder = binding().JITLibraryBuilder().add_object_img(code).add_current_process()
        for name, address in (imports or {}).items():
            builder.import_symbol(name, address)
        for name in exports:
            builder.export_symbol(name)
        tracker = builder.link(_jit(), f"unit{_names}")
        found = {name: tracker[name] for name in exports}
        tracker.detach()
    return found


# Disk --------------------------------------------------------------------------------------------


def cache_directory() -> Path | None:
    """Return the directory of the disk cache; None if the cache is disabled or not private to the user.

    Systems without user ids have no disk cache, because the owner of a file cannot be checked.
    """
    setting = os.environ.get("ADJOINT_KERNEL_CACHE", "")
    if setting.lower() in ("0", "off") or not hasattr(os, "geteuid"):
        return None
    try:
        directory = Path(setting) if setting else _default_directory()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.lstat(directory)
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return None
    trusted = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return directory if trusted else None


def _default_directory() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "adjoint" / "kernels"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adjoint" / "kernels"


def _read(directory: Path, key: str) -> bytes | None:
    """Return the object code of a key; None if the file is missing, damaged or not owned by the user."""
    try:
        descriptor = os.open(directory / (key + SUFFIX), os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return None
    with open(descriptor, "rb") as file, suppress(OSError):
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
            head, digest, code = file.read(len(MAGIC)), file.read(32), file.read()
            if head == MAGIC and digest == _digest(key, code):
                return code
    return None


def _digest(key: str, code: bytes) -> bytes:
    """Return the digest of a key and its code; a file that was renamed to another key does not match."""
    return hashlib.sha256(key.encode() + code).digest()


def _write(directory: Path, key: str, code: bytes) -> None:
    """Write object code to the cache atomically, as the file of ``key``; disk errors are ignored.

    Unlike ``storage.atomic`` this does not wait for the disk: a file that was cut off by a crash fails the
    digest check.
    """
    with suppress(OSError):
        _prune(directory)
        descriptor, temporary = tempfile.mkstemp(dir=directory, prefix=".new-")  # mode 0600
        try:
            with open(descriptor, "wb") as file:
                file.write(MAGIC + _digest(key, code) + code)
            os.replace(temporary, directory / (key + SUFFIX))
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise


def _prune(directory: Path) -> None:
    """Delete the oldest half of a cache with too many files; done at most once per process."""
    global _pruned
    if _pruned:
        return
    _pruned = True
    with os.scandir(directory) as entries:
        files = [(entry.stat().st_mtime, entry.path) for entry in entries]
    if len(files) > LIMIT:
        for _, path in sorted(files)[: len(files) // 2]:
            with suppress(OSError):
                os.unlink(path)
