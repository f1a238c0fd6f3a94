"""What all devices have in common: memory that is used again, counts of what was moved, and their errors."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adjoint.config import held_across_fork
from adjoint.errors import DeviceError, DeviceLostError, DeviceMemoryError
from adjoint.targets.body import Launch
from adjoint.targets.dialect import OpenCL

if TYPE_CHECKING:
    from abc import abstractmethod

__all__ = ["Device", "DeviceInfo", "Memory", "Place"]

_LINE = 128  # bytes: sizes are multiples of it


class DeviceInfo(NamedTuple):
    """A device that programs can be compiled for.

    Parameters
    ----------
    name : str
        The name for ``ad.compile(device=)``, such as "opencl:0".
    hardware : str
        The name that its driver gives it.
    memory : int
        Its memory in bytes.
    float64 : bool
        Whether it computes in float64.
    group : int
        The largest number of threads of a work-group.
    local : int
        The bytes of memory that a work-group shares.
    """

    name: str
    hardware: str
    memory: int
    float64: bool
    group: int
    local: int


class Memory:
    """Memory of a device, which can be used again when this object is deleted."""

    __slots__ = ("__weakref__", "pool", "raw", "size")

    def __init__(self, pool: dict[int, list[Any]], raw: Any, size: int) -> None:
        self.pool, self.raw, self.size = pool, raw, size

    def __del__(self) -> None:
        # the queue is in order: kernels that use the memory run before those of its next owner
        self.pool.setdefault(self.size, []).append(self.raw)


# One for all devices: a call of one reads values of others, so threads with a lock each could wait for ever.
_LOCK = held_across_fork(threading.RLock())

Place = tuple[Memory, int]  # memory of a device, and an offset in bytes


class Device:
    """A device with one queue of commands, which run in order."""

    dialect: OpenCL
    info: DeviceInfo

    def __init__(self) -> None:
        self.lock = _LOCK
        self.process = os.getpid()
        self.pool: dict[int, list[Any]] = {}
        self.counts = dict.fromkeys(("launches", "uploads", "up", "down", "allocated", "texts"), 0)
        self.dead = ""  # why the device cannot be used any more

    if TYPE_CHECKING:

        @abstractmethod
        def _new(self, size: int) -> Any:
            """Return new memory."""

        @abstractmethod
        def _free(self, memory: Any) -> None:
            """Give memory back; a finalizer would also run if ``Memory`` keeps what garbage refers to."""

        @abstractmethod
        def _write(self, memory: Any, array: Any) -> None:
            """Enqueue a copy of a contiguous array, which nobody changes, to memory."""

        @abstractmethod
        def _read(self, memory: Any, offset: int, array: Any) -> None:
            """Wait for the queue, and copy from memory to an array."""

        @abstractmethod
        def _fill(self, memory: Any, offset: int, size: int) -> None:
            """Enqueue a write of zeros."""

        @abstractmethod
        def _build(self, texts: Sequence[str]) -> None:
            """Compile texts of kernels."""

        @abstractmethod
        def prepare(self, kernel: Launch) -> Callable[[Sequence[Place]], None]:
            """Return a function that enqueues a kernel, given the places of its slots."""

        @abstractmethod
        def _classify(self, error: Exception) -> str | None:
            """Return "memory" or "lost" for such an error of the driver, "" for another one, else None."""

    @contextmanager
    def errors(self, what: str, advice: str = "") -> Iterator[None]:
        """Return a context manager that turns errors of the driver into those of adjoint."""
        try:
            yield
        except DeviceError:
            raise
        except Exception as error:
            kind = self._classify(error)
            if kind is None:
                raise
            detail = f"{what} failed on {self.info.name} ({self.info.hardware}): {error}"
            if kind == "memory":
                raise DeviceMemoryError(detail) from error
            if kind == "lost":
                self.dead = detail
                raise DeviceLostError(_LOST.format(detail)) from error
            raise DeviceError(detail + advice) from error

    def refuses(self, dtype: Any) -> str:
        """Return why the device cannot compute with a dtype; "" if it can."""
        if np.dtype(dtype).kind not in "biuf" or np.dtype(dtype) == np.float16:
            return f"does not compute with {np.dtype(dtype)}"
        return "has no float64" if np.dtype(dtype) == np.float64 and not self.info.float64 else ""

    def check_alive(self) -> None:
        """Raise DeviceLostError if the device cannot be used any more."""
        if os.getpid() != self.process:
            raise DeviceLostError(
                f"{self.info.name} was opened before this process was forked, which drivers do not "
                "support.\n  Start processes with the method 'spawn', or use the device in the parent only."
            )
        if self.dead:
            raise DeviceLostError(_LOST.format(self.dead))

    def alloc(self, size: int) -> Memory:
        """Return memory of at least ``size`` bytes; if there is none, free what is not used and try again."""
        step = max(_LINE, (1 << size.bit_length()) >> 4)  # so that values of similar sizes can use it
        size = -(-max(size, 1) // step) * step
        free = self.pool.get(size)
        if free:
            return Memory(self.pool, free.pop(), size)
        try:
            with self.errors(f"the allocation of {size:,} bytes"):
                raw = self._new(size)
        except DeviceMemoryError:
            if not any(self.pool.values()):
                raise
            self.trim()
            with self.errors(f"the allocation of {size:,} bytes"):
                raw = self._new(size)
        self.counts["allocated"] += size
        return Memory(self.pool, raw, size)

    def trim(self) -> None:
        """Give memory that is not used back to the driver."""
        for size, unused in list(self.pool.items()):
            self.counts["allocated"] -= size * len(unused)
            while unused:
                self._free(unused.pop())

    def upload(self, array: Any, to: Memory | None = None) -> Memory:
        """Copy an array to the device; the array can be changed afterwards."""
        array = self.packed(np.array(array, order="C"))
        to = self.alloc(array.nbytes) if to is None else to
        if array.nbytes:
            with self.errors("a copy to the device"):
                self._write(to.raw, array)
        self.counts["uploads"] += 1
        self.counts["up"] += array.nbytes
        return to

    def read(self, place: Place, shape: tuple[int, ...], dtype: Any) -> Any:
        """Wait for the queue; return a new array with the values at a place."""
        self.check_alive()
        found = np.empty(shape, self.stored(dtype))
        if found.nbytes:
            with self.errors("a copy from the device"):
                self._read(place[0].raw, place[1], found)
        self.counts["down"] += found.nbytes
        return found if found.dtype == dtype else found.astype(dtype)

    def stored(self, dtype: Any) -> Any:
        """Return the dtype of elements in memory."""
        return np.dtype(dtype)

    def packed(self, array: Any) -> Any:
        """Return an array as it is in memory."""
        return array

    def submit(self) -> None:
        """Start what was recorded, on a device that records kernels."""

    def fill(self, place: Place, size: int) -> None:
        """Write zeros."""
        with self.errors("a write on the device"):
            self._fill(place[0].raw, place[1], size)

    def build(self, kernels: Sequence[Launch]) -> None:
        """Compile the texts of kernels that are not compiled yet."""
        texts = list(dict.fromkeys(k.text for k in kernels))
        advice = "\n  Update the driver of the device, or use another one of ad.devices()."
        with self.errors("the compilation of a program", advice):
            self._build(texts)


_LOST = (
    "{}.\n  Values that were not read are lost.  Load the last checkpoint in a new process, or compile with "
    'device="cpu".'
)
