# ruff: noqa: N802  the names are those of the driver
"""A library with the functions of NVIDIA's driver that runs kernels on OpenCL: for tests without a GPU.

It has the memory, checks the calls, and launches the OpenCL form of each kernel with the same parameters.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from opencl import cl

from adjoint.targets.cuda import CudaDevice, Driver
from adjoint.targets.dialect import OpenCL

_FIRST = 1 << 20  # the address of the first allocation


class FakeLibrary:
    """The functions of the driver; ``fail`` maps the name of a function to the error code that it returns."""

    def __init__(self) -> None:
        self.context = cl.Context([cl.get_platforms()[0].get_devices()[0]])
        self.queue = cl.CommandQueue(self.context)
        self.blocks: dict[int, Any] = {}  # buffers by address
        self.next = _FIRST
        self.fail: dict[str, int] = {}
        self.device: Any = None  # the CudaDevice, which knows the texts of kernels
        self.names: list[str] = []
        self.calls: list[str] = []
        self.kernels: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        method = getattr(type(self), f"_{name}")

        def call(*args: Any) -> int:
            self.calls.append(name)
            return self.fail.get(name) or method(self, *args) or 0

        return call

    def _at(self, address: int) -> tuple[Any, int]:
        base = max(b for b in self.blocks if b <= address)
        assert address < base + max(self.blocks[base].size, 1), "an address outside of all allocations"
        return self.blocks[base], address - base

    def _cuInit(self, flags: int) -> None: ...

    def _cuDeviceGetCount(self, out: Any) -> None:
        out._obj.value = 1

    def _cuDeviceGet(self, out: Any, index: int) -> None:
        out._obj.value = index

    def _cuDeviceGetName(self, name: Any, size: int, device: int) -> None:
        name.value = b"Fake GPU"

    def _cuDeviceTotalMem_v2(self, out: Any, device: int) -> None:
        out._obj.value = 1 << 30

    def _cuDeviceGetAttribute(self, out: Any, which: int, device: int) -> None:
        out._obj.value = {1: 1024, 8: 49152, 75: 8, 76: 0}[which]

    def _cuDevicePrimaryCtxRetain(self, out: Any, device: int) -> None:
        out._obj.value = 7

    def _cuCtxSetCurrent(self, context: Any) -> None:
        assert context.value == 7

    def _cuMemAlloc_v2(self, out: Any, size: Any) -> None:
        out._obj.value = self.next
        self.blocks[self.next] = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, size.value)
        self.next += size.value + 512

    def _cuMemFree_v2(self, address: Any) -> None:
        del self.blocks[address.value]

    def _cuMemcpyHtoDAsync_v2(self, to: Any, source: Any, size: Any, stream: None) -> None:
        buffer, offset = self._at(to.value)
        cl.enqueue_copy(
            self.queue,
            buffer,
            np.frombuffer(ctypes.string_at(source.value, size.value), "u1").copy(),
            dst_offset=offset,
        )

    def _cuMemcpyDtoH_v2(self, to: Any, source: Any, size: Any) -> None:
        buffer, offset = self._at(source.value)
        found = np.empty(size.value, np.uint8)
        cl.enqueue_copy(self.queue, found, buffer, src_offset=offset)
        ctypes.memmove(to.value, found.ctypes.data, size.value)

    def _cuMemsetD8Async(self, at: Any, value: Any, size: Any, stream: None) -> None:
        buffer, offset = self._at(at.value)
        cl.enqueue_fill_buffer(self.queue, buffer, np.uint8(value.value), offset, size.value)

    def _cuMemcpyDtoDAsync_v2(self, to: Any, source: Any, size: Any, stream: None) -> None:
        (a, at), (b, offset) = self._at(to.value), self._at(source.value)
        cl.enqueue_copy(self.queue, a, b, byte_count=size.value, dst_offset=at, src_offset=offset)

    def _cuModuleLoadData(self, out: Any, code: bytes) -> None:
        assert code
        out._obj.value = 5

    def _cuModuleGetFunction(self, out: Any, module: Any, name: bytes) -> None:
        self.names.append(name.decode())
        out._obj.value = len(self.names)

    def _cuLaunchKernel(self, function: Any, *given: Any) -> None:
        *sizes, shared, stream, parameters, extra = given
        assert len(sizes) == 6 and shared == 0 and stream is extra is None
        name = self.names[function.value - 1]
        if name not in self.kernels:
            text = self.device.names[name].replace('extern "C" __global__ void', "__kernel void")
            head, _, rest = text.partition("__launch_bounds__(")
            text = head + rest.partition(") ")[2].replace("NAME", name)
            self.kernels[name] = cl.Kernel(
                cl.Program(self.context, OpenCL().head + text).build(cache_dir=False), name
            )
        kernel, block = self.kernels[name], sizes[3:]
        values = [ctypes.c_uint64.from_address(p).value for p in parameters]
        for k in range(0, len(values), 2):
            buffer, inside = self._at(values[k])
            assert inside == 0
            kernel.set_arg(k, buffer)
            kernel.set_arg(k + 1, np.uint64(values[k + 1]))
        cl.enqueue_nd_range_kernel(
            self.queue, kernel, [g * b for g, b in zip(sizes[:3], block, strict=True)], block
        )


def fake_device(compiler: Any) -> CudaDevice:
    """Return a CUDA device on the fake driver."""
    library = FakeLibrary()
    device = CudaDevice(0, Driver(library), compiler)
    library.device = device
    return device
