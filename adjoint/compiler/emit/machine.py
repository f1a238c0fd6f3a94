"""The processor that kernels are compiled for: vector width, registers and features.

A *level* is a set of vector instructions, such as "avx2".  By default kernels use the widest level that the
processor supports.  ``with using("avx2")`` or the environment variable ``ADJOINT_CPU_FEATURES`` selects
another level; the tests do this to run every level on one machine.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from adjoint.config import held_across_fork
from adjoint.context import cpu_level
from adjoint.errors import ArgumentError, MissingExtraError

__all__ = [
    "LEVELS", "Machine", "architecture", "available", "binding", "described", "has_llvm", "levels", "machine",
    "using",
]  # fmt: skip


class Level(NamedTuple):
    """A set of vector instructions that kernels can be compiled for."""

    architecture: str
    needs: tuple[str, ...]  # features of the processor that it requires
    without: tuple[str, ...]  # features that LLVM must not use
    width: int  # bytes of a vector register; 0 if the level has no vectors
    registers: int
    fma: bool
    masks: bool  # whether a part of a vector can be loaded and stored


# Ordered from wide to narrow.  The default is the first level that the processor supports.
LEVELS = {
    "avx512": Level("x86", ("avx512f", "avx512vl", "avx512dq", "avx512bw", "fma"), (), 64, 32, True, True),
    "avx2": Level("x86", ("avx2", "fma"), ("avx512f", "avx10.1"), 32, 16, True, True),
    "sse2": Level("x86", ("sse2",), ("sse3",), 16, 16, False, False),
    "neon": Level("arm", ("neon",), ("sve",), 16, 32, True, False),
    "none": Level("any", (), ("sse3", "sve"), 0, 16, False, False),
    # the same lanes and instructions on every processor, so the same bits
    "portable": Level("any", (), ("sse3", "sve"), 16, 16, False, False),
}


class Machine(NamedTuple):
    """The properties of the processor that code generation depends on."""

    level: str
    width: int
    registers: int
    fma: bool
    masks: bool
    cpu: str
    features: str
    cores: int
    flush: bool = False  # whether kernels treat subnormal numbers as 0

    @property
    def halves(self) -> bool:
        """Whether the processor converts between float16 and float32."""
        return self.level == "neon" or (self.level in ("avx512", "avx2") and "+f16c" in self.features)

    def lanes(self, dtype: Any) -> int:
        """Return how many elements of ``dtype`` fit into one vector register."""
        return max(1, self.width // max(1, np.dtype(dtype).itemsize))


_lock = held_across_fork(threading.RLock())


def has_llvm() -> bool:
    """Return whether llvmlite is installed, without importing it (the import is slower than most traces)."""
    return importlib.util.find_spec("llvmlite") is not None


@functools.cache
def binding() -> Any:
    """Return ``llvmlite.binding``, initialised for this processor."""
    try:
        import llvmlite.binding as llvm
    except ImportError:
        raise MissingExtraError("native code of ad.compile", "llvmlite", "compile") from None
    with _lock:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    return llvm


@functools.cache
def _host_features() -> dict[str, bool]:
    return dict(binding().get_host_cpu_features())


def architecture() -> str:
    """Return the processor family: "x86", "arm" or "any"."""
    name = platform.machine().lower()
    return {"x86_64": "x86", "amd64": "x86", "arm64": "arm", "aarch64": "arm"}.get(name, "any")


@functools.cache
def available() -> tuple[str, ...]:
    """Return the names of the levels that the processor supports, from wide to narrow."""
    has, here = _host_features(), architecture()
    always = {"x86": "sse2", "arm": "neon"}.get(here)  # part of every 64-bit processor
    return tuple(
        name
        for name, level in LEVELS.items()
        if level.architecture in (here, "any") and all(has.get(f, f == always) for f in level.needs)
    )


def machine() -> Machine:
    """Return the description of this processor at the selected level (see the module docstring)."""
    chosen = cpu_level.get() or os.environ.get("ADJOINT_CPU_FEATURES") or available()[0]
    return _machine(chosen)


@functools.cache
def _machine(name: str) -> Machine:
    if name not in available():
        raise ArgumentError(
            f"kernels cannot be compiled for {name!r}: this processor supports {', '.join(available())}.\n"
            "  Use one of these names in level= and in the environment variable ADJOINT_CPU_FEATURES."
        )
    level, has = LEVELS[name], _host_features()
    features = [f"{'+' if on else '-'}{feature}" for feature, on in sorted(has.items())]
    features += [f"-{feature}" for feature in level.without if feature in has]
    cores = 1 if name == "portable" else _cores()
    return Machine(name, *level[3:], binding().get_host_cpu_name(), ",".join(features), cores)


def described(name: str) -> Machine:
    """Return the description of any processor with the level ``name``, for code that runs elsewhere."""
    return Machine(name, *LEVELS[name][3:], "", "", 1)


def _cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def using(name: str) -> Iterator[Machine]:
    """Return a context manager inside which kernels are compiled for the level ``name``."""
    found = _machine(name)
    token = cpu_level.set(name)
    try:
        yield found
    finally:
        cpu_level.reset(token)


def levels() -> tuple[str, ...]:
    """Return the levels that tests run on, or () if llvmlite is not installed.

    They are those of ``available()`` but for "sse2", whose kernels are those of "portable".
    """
    return tuple(name for name in available() if name != "sse2") if has_llvm() else ()
