"""WebGPU devices, by wgpu: all values are in one buffer, the heap, which grows."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from adjoint.errors import ArgumentError, DeviceError, MissingExtraError
from adjoint.targets.body import Launch
from adjoint.targets.device import Device, DeviceInfo, Place
from adjoint.targets.wgsl import MOST, Wgsl, grid

__all__ = ["CLEAR", "COPY", "WebGpuDevice", "Words", "across", "found", "open_device"]

_START = 1 << 22  # bytes of a new heap
_WINDOW = 1 << 12  # bytes of the positions that a kernel can read
_POSITIONS = 1 << 18  # bytes of the positions of all kernels that are submitted together
_FLAT = 64  # threads of a work-group that moves words
_BINDINGS = """@group(0) @binding(0) var<storage, read_write> H: array<u32>;
@group(0) @binding(1) var<storage, read> P: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>) {
"""
CLEAR = _BINDINGS + "  for (var i = id.x; i < P[2]; i += count.x * 64u) { H[P[1] + i] = 0u; }\n}\n"
COPY = _BINDINGS + "  for (var i = id.x; i < P[3]; i += count.x * 64u) { H[P[2] + i] = H[P[1] + i]; }\n}\n"


class _HeapFullError(Exception):
    """The heap cannot grow any more."""


def _library() -> Any:
    try:
        import wgpu
    except ImportError:
        raise MissingExtraError('device="webgpu"', "wgpu", "webgpu") from None
    return wgpu


def _adapters() -> list[Any]:
    """Return the adapters of this machine; those by OpenGL only if there are no others."""
    try:
        adapters = _library().gpu.enumerate_adapters_sync()
    except (RuntimeError, OSError):  # no driver
        return []
    better = [a for a in adapters if "OpenGL" not in a.info["backend_type"]]
    return better or list(adapters)


def _limit(adapter: Any, name: str) -> int:
    return int(adapter.limits[name])


def _info(k: int, adapter: Any) -> DeviceInfo:
    size = min(_limit(adapter, n) for n in ("max-buffer-size", "max-storage-buffer-binding-size"))
    group = _limit(adapter, "max-compute-invocations-per-workgroup")
    local = _limit(adapter, "max-compute-workgroup-storage-size")
    return DeviceInfo(f"webgpu:{k}", adapter.info["device"].strip(), size, False, group, local)


def found() -> list[DeviceInfo]:
    """Return the WebGPU devices of this machine; none if wgpu is not installed."""
    try:
        return [_info(k, a) for k, a in enumerate(_adapters())]
    except MissingExtraError:
        return []


def open_device(index: int) -> WebGpuDevice:
    """Return the WebGPU device with this index."""
    _library()
    adapters = _adapters()
    if not adapters:
        raise ArgumentError(
            "compile: there is no WebGPU device.\n  Install the driver of the device, or Mesa's lavapipe, "
            "which runs WebGPU on the CPU: Debian's package mesa-vulkan-drivers."
        )
    if index >= len(adapters):
        raise ArgumentError(f"compile: there is no device webgpu:{index}; ad.devices() lists all devices.")
    return WebGpuDevice(index, adapters[index])


class _Block(NamedTuple):
    """A part of the heap."""

    start: int
    size: int


class _Heap:
    """Which bytes of the heap are free."""

    def __init__(self) -> None:
        self.size = 0
        self.free: list[tuple[int, int]] = []  # start and end, in order

    def grow(self, size: int) -> None:
        """Make the heap larger."""
        before, self.size = self.size, size
        self.give(before, size - before)

    def take(self, size: int) -> _Block | None:
        """Return the first free part with this size; None if there is none."""
        for k, (start, end) in enumerate(self.free):
            if end - start >= size:
                self.free[k : k + 1] = [(start + size, end)] if end - start > size else []
                return _Block(start, size)
        return None

    def give(self, start: int, size: int) -> None:
        """Make a part free, and join it with its neighbours."""
        insort(self.free, (start, start + size))
        joined: list[tuple[int, int]] = []
        for low, high in self.free:
            if joined and joined[-1][1] == low:
                low = joined.pop()[0]
            joined.append((low, high))
        self.free = joined


class Words(Device):
    """A device whose memory has words of 32 bits."""

    def stored(self, dtype: Any) -> Any:
        """Return the dtype of elements in memory: booleans and small integers have 32 bits."""
        return np.dtype(np.int32) if np.dtype(dtype).itemsize < 4 else np.dtype(dtype)

    def packed(self, array: Any) -> Any:
        """Return an array as it is in memory; small integers have signs, as in registers."""
        if array.dtype.kind == "u" and array.dtype.itemsize < 4:
            array = array.view(f"i{array.dtype.itemsize}")
        return array.astype(self.stored(array.dtype), copy=False)


class WebGpuDevice(Words):
    """A WebGPU device; the kernels of a call are recorded, then submitted together.

    ``order`` and ``barriers`` change the texts of kernels for tests.
    """

    def __init__(self, index: int, adapter: Any, order: str = "plain", barriers: bool = True) -> None:
        super().__init__()
        self.wgpu = wgpu = _library()
        self.info = _info(index, adapter)
        self.dialect = Wgsl(order, barriers)
        self.most = self.info.memory // 128 * 128
        limits = {n: _limit(adapter, n) for n in ("max-buffer-size", "max-storage-buffer-binding-size")}
        self.api = adapter.request_device_sync(required_limits=limits)
        usage, kinds = wgpu.BufferUsage, wgpu.BufferBindingType
        self.usage = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        entries = [
            {"binding": 0, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kinds.storage}},
            {
                "binding": 1,
                "visibility": wgpu.ShaderStage.COMPUTE,
                "buffer": {"type": kinds.read_only_storage, "has_dynamic_offset": True},
            },
        ]
        self.bindings = self.api.create_bind_group_layout(entries=entries)
        self.layout = self.api.create_pipeline_layout(bind_group_layouts=[self.bindings])
        self.positions = self.api.create_buffer(size=_POSITIONS + _WINDOW, usage=self.usage)
        self.words = np.zeros(_POSITIONS // 4, np.uint32)
        step = self.api.limits["min-storage-buffer-offset-alignment"] // 4
        self.step = max(step, 1)
        self.used = 0  # words
        self.encoder: Any = None
        self.recording: Any = None
        self.heap, self.buffer, self.bound = _Heap(), None, None
        self.pipelines: dict[str, Any] = {}  # by text
        self.fills = self._pipeline(CLEAR)

    # Memory --------------------------------------------------------------------------------------------

    def _new(self, size: int) -> Any:
        block = self.heap.take(size)
        if block is None:
            self._grow(size)
            block = self.heap.take(size)
        return block

    def _free(self, memory: Any) -> None:
        self.heap.give(*memory)

    def _grow(self, size: int) -> None:
        """Replace the heap by a larger one with the same values."""
        before = self.heap.size
        wanted = max(_START, 2 * before, before + size)
        if before + size > self.most:
            raise _HeapFullError(f"the heap has {before:,} bytes, and may have {self.most:,}")
        wanted = min(wanted, self.most)
        buffer = self.api.create_buffer(size=wanted, usage=self.usage)
        self.submit()
        if self.buffer is not None:
            encoder = self.api.create_command_encoder()
            encoder.copy_buffer_to_buffer(self.buffer, 0, buffer, 0, before)
            self.api.queue.submit([encoder.finish()])
        resources = (buffer, 0, wanted), (self.positions, 0, _WINDOW)
        entries = [
            {"binding": k, "resource": {"buffer": b, "offset": at, "size": n}}
            for k, (b, at, n) in enumerate(resources)
        ]
        self.bound = self.api.create_bind_group(layout=self.bindings, entries=entries)
        self.buffer = buffer
        self.heap.grow(wanted)

    def _write(self, memory: Any, array: Any) -> None:
        self.submit()
        self.api.queue.write_buffer(self.buffer, memory.start, array)

    def _read(self, memory: Any, offset: int, array: Any) -> None:
        self.submit()
        found = self.api.queue.read_buffer(self.buffer, memory.start + offset, array.nbytes)
        array.reshape(-1).view(np.uint8)[:] = np.frombuffer(found, np.uint8)

    def _fill(self, memory: Any, offset: int, size: int) -> None:
        words = -(-size // 4)
        self._record(self.fills, [(memory.start + offset) // 4, words], across(words))

    # Kernels -------------------------------------------------------------------------------------------

    def _pipeline(self, text: str) -> Any:
        module = self.api.create_shader_module(code=text)
        compute = {"module": module, "entry_point": "main"}
        return self.api.create_compute_pipeline(layout=self.layout, compute=compute)

    def _build(self, texts: Sequence[str]) -> None:
        for t in texts:
            if t not in self.pipelines:
                self.pipelines[t] = self._pipeline(t)
                self.counts["texts"] += 1

    def prepare(self, kernel: Launch) -> Callable[[Sequence[Place]], None]:
        """Return a function that records a kernel."""
        if 4 * (len(kernel.slots) + 1) > _WINDOW:
            raise DeviceError(
                f"a kernel ({kernel.what}) reads {len(kernel.slots)} arrays, which is too many for "
                f"{self.info.name}."
            )
        pipeline, groups, counts = self.pipelines[kernel.text], grid(kernel.groups), self.counts

        def launch(places: Sequence[Place]) -> None:
            self._record(pipeline, [(memory.raw.start + offset) // 4 for memory, offset in places], groups)
            counts["launches"] += 1

        return launch

    def _record(self, pipeline: Any, positions: Sequence[int], groups: tuple[int, ...]) -> None:
        """Record a kernel, with the positions of its slots in words of the heap."""
        end = self.used + 1 + len(positions)
        if end > len(self.words):
            self.submit()
            end = 1 + len(positions)
        if self.encoder is None:
            self.encoder = self.api.create_command_encoder()
            self.recording = self.encoder.begin_compute_pass()
        self.words[self.used] = 0  # the zero that compilers do not know
        self.words[self.used + 1 : end] = positions
        self.recording.set_pipeline(pipeline)
        self.recording.set_bind_group(0, self.bound, [4 * self.used])
        self.recording.dispatch_workgroups(*groups)
        self.used = -(-end // self.step) * self.step

    def submit(self) -> None:
        """Start all kernels that were recorded."""
        if self.encoder is None:
            return
        encoder, self.encoder, used, self.used = self.encoder, None, self.used, 0
        self.recording.end()
        self._submit(encoder, self.words[:used])

    def _submit(self, encoder: Any, words: Any) -> None:
        self.api.queue.write_buffer(self.positions, 0, words)
        self.api.queue.submit([encoder.finish()])

    def _classify(self, error: Exception) -> str | None:
        if isinstance(error, (_HeapFullError, self.wgpu.GPUOutOfMemoryError)):
            return "memory"
        if not isinstance(error, (self.wgpu.GPUError, RuntimeError)):
            return None
        return "lost" if "lost" in str(error).lower() else ""


def across(words: int) -> tuple[int, int, int]:
    """Return the work-groups that move a number of words."""
    return min(MOST, -(-words // _FLAT)), 1, 1
