"""OpenCL devices, by pyopencl."""

from __future__ import annotations

import os
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from adjoint.errors import ArgumentError, MissingExtraError
from adjoint.targets.body import Launch
from adjoint.targets.device import Device, DeviceInfo, Place
from adjoint.targets.dialect import OpenCL

__all__ = ["OpenCLDevice", "found", "open_device"]


def _library() -> Any:
    try:
        import pyopencl
    except ImportError:
        raise MissingExtraError('device="opencl"', "pyopencl", "opencl") from None
    return pyopencl


def _devices() -> list[Any]:
    cl = _library()
    try:
        return [d for platform in cl.get_platforms() for d in platform.get_devices()]
    except cl.Error:  # no platform
        return []


def _info(k: int, device: Any) -> DeviceInfo:
    float64 = bool(device.double_fp_config)
    size, group, local = device.global_mem_size, device.max_work_group_size, device.local_mem_size
    return DeviceInfo(f"opencl:{k}", device.name.strip(), size, float64, group, local)


def found() -> list[DeviceInfo]:
    """Return the OpenCL devices of this machine; none if pyopencl is not installed."""
    try:
        return [_info(k, d) for k, d in enumerate(_devices())]
    except MissingExtraError:
        return []


def open_device(index: int) -> OpenCLDevice:
    """Return the OpenCL device with this index."""
    devices = _devices()
    if not devices:
        raise ArgumentError(
            "compile: there is no OpenCL device.\n  Install the driver of the device, or PoCL, which runs "
            "OpenCL on the CPU: pip install pocl-binary-distribution."
        )
    if index >= len(devices):
        raise ArgumentError(f"compile: there is no device opencl:{index}; ad.devices() lists all devices.")
    return OpenCLDevice(index, devices[index])


def _finish(queue: Any, process: int) -> None:
    """Wait for the queue when Python ends: some drivers crash if they are unloaded while kernels run."""
    if os.getpid() == process:  # in a forked process the threads of the driver are missing
        with suppress(Exception):  # the device is lost
            queue.finish()


class OpenCLDevice(Device):
    """An OpenCL device; ``order`` and ``barriers`` change the texts of kernels for tests."""

    def __init__(self, index: int, device: Any, order: str = "plain", barriers: bool = True) -> None:
        super().__init__()
        self.cl = cl = _library()
        self.info = _info(index, device)
        self.dialect = OpenCL(order, barriers, self.info.float64)
        self.context = cl.Context([device])
        self.queue = cl.CommandQueue(self.context)
        weakref.finalize(self, _finish, self.queue, self.process)
        self.programs: dict[str, tuple[Any, str]] = {}  # by text
        self.pending: deque[Any] = deque()  # events of copies to the device, which keep their arrays alive
        exact = device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        self.options = ["-cl-fp32-correctly-rounded-divide-sqrt"] if exact else []

    def _new(self, size: int) -> Any:
        return self.cl.Buffer(self.context, self.cl.mem_flags.READ_WRITE, size)

    def _free(self, memory: Any) -> None:
        memory.release()

    def _write(self, memory: Any, array: Any) -> None:
        done = self.cl.command_execution_status.COMPLETE
        while self.pending and self.pending[0].command_execution_status == done:
            self.pending.popleft()
        self.pending.append(self.cl.enqueue_copy(self.queue, memory, array, is_blocking=False))

    def _read(self, memory: Any, offset: int, array: Any) -> None:
        self.cl.enqueue_copy(self.queue, array, memory, src_offset=offset)
        self.pending.clear()

    def _fill(self, memory: Any, offset: int, size: int) -> None:
        self.cl.enqueue_fill_buffer(self.queue, memory, np.uint8(0), offset, size)

    def _build(self, texts: Sequence[str]) -> None:
        texts = [t for t in texts if t not in self.programs]
        if not texts:
            return
        named = "".join(t.replace("NAME", f"k{i}") for i, t in enumerate(texts))
        with warnings.catch_warnings():  # pyopencl warns of notes of the compiler
            warnings.simplefilter("ignore")
            program = self.cl.Program(self.context, self.dialect.head + named)
            program = program.build(options=self.options, cache_dir=False)
        self.programs.update((t, (program, f"k{i}")) for i, t in enumerate(texts))
        self.counts["texts"] += len(texts)

    def prepare(self, kernel: Launch) -> Callable[[Sequence[Place]], None]:
        """Return a function that enqueues a kernel, given a buffer and an offset for each slot."""
        program, name = self.programs[kernel.text]
        function = self.cl.Kernel(program, name)
        function.set_scalar_arg_dtypes([None, np.uint64] * len(kernel.slots))
        sizes = tuple(g * s for g, s in zip(kernel.groups, kernel.sizes, strict=True))
        queue, counts, local = self.queue, self.counts, kernel.sizes

        def launch(places: Sequence[Place]) -> None:
            given: list[Any] = []
            for memory, offset in places:
                given += memory.raw, offset
            # setting one argument costs 10 µs if it is a number; this sets all, and enqueues, in 2 µs
            function(queue, sizes, local, *given)
            counts["launches"] += 1

        return launch

    def _classify(self, error: Exception) -> str | None:
        if isinstance(error, self.cl.MemoryError):
            return "memory"
        if not isinstance(error, self.cl.Error):
            return None
        code = getattr(error, "code", 0)
        lost = self.cl.status_code.OUT_OF_RESOURCES, self.cl.status_code.DEVICE_NOT_AVAILABLE
        return "lost" if code in lost else ""
