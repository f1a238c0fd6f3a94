"""NVIDIA devices by ctypes: NVRTC compiles kernels to machine code, and the driver's library runs them."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from adjoint.errors import ArgumentError, MissingExtraError
from adjoint.targets.body import Launch
from adjoint.targets.device import Device, DeviceInfo, Place
from adjoint.targets.dialect import OpenCL

__all__ = ["Compiler", "Cuda", "CudaDevice", "found", "open_device"]

# OpenCL C as CUDA C.  A type named long has 32 bits on some systems.
_HEAD = """typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned int uint;
typedef unsigned long long ulong;
#define long long long
#define __global
#define __local __shared__
#define __constant __constant__
#define barrier(flags) __syncthreads()
#define LID(k) LID_##k
#define WID(k) WID_##k
#define LID_0 ((int)threadIdx.x)
#define LID_1 ((int)threadIdx.y)
#define WID_0 ((int)blockIdx.x)
#define WID_1 ((int)blockIdx.y)
#define WID_2 ((int)blockIdx.z)
#define GID(k) (WID_0 * (int)blockDim.x + LID_0)
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
__device__ inline float as_float(uint x) { return __uint_as_float(x); }
__device__ inline int as_int(float x) { return __float_as_int(x); }
__device__ inline double as_double(ulong x) { return __longlong_as_double((long)x); }
__device__ inline long as_long(double x) { return __double_as_longlong(x); }
__device__ inline char popcount(char x) { return __popc((uchar)x); }
__device__ inline short popcount(short x) { return __popc((ushort)x); }
__device__ inline int popcount(int x) { return __popc((uint)x); }
__device__ inline long popcount(long x) { return __popcll((ulong)x); }
"""
_OPTIONS = ("--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false")


class Cuda(OpenCL):
    """CUDA C: the texts of OpenCL C behind macros."""

    name = "cuda"

    def __init__(self) -> None:
        super().__init__()
        self.head = _HEAD

    def entry(self, sizes: Sequence[int]) -> str:
        """Return what comes before the parameters of a kernel."""
        threads = 1
        for n in sizes:
            threads *= n
        return f'extern "C" __global__ void __launch_bounds__({threads}) NAME'


class CudaError(Exception):
    """An error code of the driver or of NVRTC."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Compiler:
    """NVRTC: ``compiler(text, architecture)`` returns machine code."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("nvidia.cuda_nvrtc") if importlib.util.find_spec("nvidia") else None
        places = [Path(p) for p in (spec.submodule_search_locations or ())] if spec is not None else []
        files = [
            f for p in places for f in sorted((*p.glob("lib/libnvrtc.so*"), *p.glob("bin/nvrtc64*.dll")))
        ]
        if not files:
            raise MissingExtraError('device="cuda"', "nvidia-cuda-nvrtc-cu12", "cuda")
        self.library = ctypes.CDLL(str(files[0]))

    def __call__(self, text: str, architecture: str) -> bytes:
        """Return the machine code of a text."""
        nvrtc, program = self.library, ctypes.c_void_p()
        options = [f"--gpu-architecture={architecture}".encode(), *(o.encode() for o in _OPTIONS)]
        given = ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None
        self._check(nvrtc.nvrtcCreateProgram(*given), "nvrtcCreateProgram")
        try:
            code = nvrtc.nvrtcCompileProgram(
                program, len(options), (ctypes.c_char_p * len(options))(*options)
            )
            if code:
                log = self._bytes(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
                raise CudaError(code, f"NVRTC could not compile a kernel:\n{log}")
            return self._bytes(program, "CUBIN")
        finally:
            nvrtc.nvrtcDestroyProgram(ctypes.byref(program))

    def _bytes(self, program: Any, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), what)
        found = ctypes.create_string_buffer(size.value)
        self._check(getattr(self.library, f"nvrtcGet{what}")(program, found), what)
        return found.raw

    def _check(self, code: int, what: str) -> None:
        if code:
            raise CudaError(code, f"{what} returned error {code}")


class Driver:
    """The library of the driver; ``driver.call(name, *arguments)`` raises CudaError for an error code."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.call("cuInit", 0)

    def call(self, name: str, *args: Any) -> None:
        """Call a function of the driver."""
        code = getattr(self.library, name)(*args)
        if code:
            raise CudaError(code, f"{name} returned error {code}")

    def number(self, name: str, *args: Any, kind: Any = ctypes.c_int) -> int:
        """Return the number that a function stores at its first argument."""
        found = kind()
        self.call(name, ctypes.byref(found), *args)
        return int(found.value)

    def infos(self) -> list[DeviceInfo]:
        """Return all devices."""
        return [self._info(k) for k in range(self.number("cuDeviceGetCount"))]

    def _info(self, k: int) -> DeviceInfo:
        device, name = self.number("cuDeviceGet", k), ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, 256, device)
        size = self.number("cuDeviceTotalMem_v2", device, kind=ctypes.c_size_t)
        group, local = (self.number("cuDeviceGetAttribute", which, device) for which in (1, 8))
        return DeviceInfo(f"cuda:{k}", name.value.decode(), size, True, group, local)

    def architecture(self, device: int) -> str:
        """Return the architecture of a device, such as "sm_80"."""
        major, minor = (self.number("cuDeviceGetAttribute", which, device) for which in (75, 76))
        return f"sm_{major}{minor}"


def _driver() -> Driver | None:
    try:
        return Driver(ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"))
    except (OSError, CudaError):  # no driver, or no device
        return None


def found() -> list[DeviceInfo]:
    """Return the CUDA devices of this machine; none without a driver."""
    driver = _driver()
    return [] if driver is None else driver.infos()


def open_device(index: int) -> CudaDevice:
    """Return the CUDA device with this index."""
    driver = _driver()
    if driver is None or index >= len(driver.infos()):
        raise ArgumentError(
            f"compile: there is no device cuda:{index}; ad.devices() lists all devices.\n"
            "  Install the driver of the NVIDIA device; the CUDA toolkit is not needed."
        )
    return CudaDevice(index, driver, Compiler())


class _Allocation(NamedTuple):
    """Memory of a device."""

    address: int


class CudaDevice(Device):
    """A CUDA device: its primary context, and the default stream as its queue."""

    # deinitialised, no device, not permitted, illegal address, timeout, failed launches, unknown
    lost: ClassVar[frozenset[int]] = frozenset(
        (4, 46, 100, 101, 201, 700, 702, 709, 714, 715, 716, 717, 718, 719, 999)
    )

    def __init__(self, index: int, driver: Driver, compiler: Compiler) -> None:
        super().__init__()
        self.driver, self.compiler = driver, compiler
        self.info = driver.infos()[index]
        self.dialect = Cuda()
        handle = driver.number("cuDeviceGet", index)
        self.architecture = driver.architecture(handle)
        self.context = ctypes.c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), handle)
        self.functions: dict[str, Any] = {}  # by text
        self.names: dict[str, str] = {}
        self.modules: list[Any] = []

    def _call(self, name: str, *args: Any) -> None:
        """Call a function of the driver in the context of the device, which belongs to a thread."""
        self.driver.call("cuCtxSetCurrent", self.context)
        self.driver.call(name, *args)

    def _new(self, size: int) -> Any:
        self.driver.call("cuCtxSetCurrent", self.context)
        return _Allocation(self.driver.number("cuMemAlloc_v2", ctypes.c_size_t(size), kind=ctypes.c_uint64))

    def _free(self, memory: Any) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(memory.address))

    def _write(self, memory: Any, array: Any) -> None:
        # the driver copies memory of this kind before it returns, so the array can be deleted
        source, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        self._call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(memory.address), source, size, None)

    def _read(self, memory: Any, offset: int, array: Any) -> None:
        to, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        self._call("cuMemcpyDtoH_v2", to, ctypes.c_uint64(memory.address + offset), size)

    def _fill(self, memory: Any, offset: int, size: int) -> None:
        at = ctypes.c_uint64(memory.address + offset)
        self._call("cuMemsetD8Async", at, ctypes.c_ubyte(0), ctypes.c_size_t(size), None)

    def _build(self, texts: Sequence[str]) -> None:
        texts = [t for t in texts if t not in self.functions]
        if not texts:
            return
        names = {t: f"k{len(self.functions) + i}" for i, t in enumerate(texts)}
        named = "".join(t.replace("NAME", names[t]) for t in texts)
        code = self.compiler(self.dialect.head + named, self.architecture)
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), code)
        self.modules.append(module)
        for text, name in names.items():
            function = ctypes.c_void_p()
            self._call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
            self.functions[text], self.names[name] = function, text
        self.counts["texts"] += len(texts)

    def prepare(self, kernel: Launch) -> Callable[[Sequence[Place]], None]:
        """Return a function that enqueues a kernel; its parameters are an address and an offset per slot."""
        function, counts = self.functions[kernel.text], self.counts
        values = (ctypes.c_uint64 * (2 * len(kernel.slots)))()
        start = ctypes.addressof(values)
        parameters = (ctypes.c_void_p * len(values))(*(start + 8 * k for k in range(len(values))))
        grid, block = (([*n, 1, 1][:3]) for n in (kernel.groups, kernel.sizes))

        def launch(places: Sequence[Place]) -> None:
            for k, (memory, offset) in enumerate(places):
                values[2 * k], values[2 * k + 1] = memory.raw.address, offset
            self._call("cuLaunchKernel", function, *grid, *block, 0, None, parameters, None)
            counts["launches"] += 1

        launch.held = values  # type: ignore[attr-defined]
        return launch

    def _classify(self, error: Exception) -> str | None:
        if not isinstance(error, CudaError):
            return None
        return "memory" if error.code == 2 else "lost" if error.code in self.lost else ""
