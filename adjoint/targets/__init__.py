"""Targets of ``ad.compile`` other than the CPU: ``devices()`` lists them."""

from __future__ import annotations

import threading
from typing import Any

from adjoint.config import held_across_fork
from adjoint.errors import ArgumentError
from adjoint.targets import cuda, opencl, webgpu
from adjoint.targets.device import Device, DeviceInfo
from adjoint.targets.program import DeviceProgram, as_tensor

__all__ = ["DeviceInfo", "devices"]

_KINDS: dict[str, Any] = {"cuda": cuda, "opencl": opencl, "webgpu": webgpu}
_opened: dict[str, Device] = {}
_lock = held_across_fork(threading.RLock())


def devices() -> list[DeviceInfo]:
    """Return the devices of this machine that ``ad.compile`` has a target for, other than the CPU.

    Returns
    -------
    list of DeviceInfo
        The name for ``ad.compile(device=)``, the name of the hardware, its memory in bytes, whether it
        computes in float64, and the sizes of its work-groups.  Devices whose extra is not installed are left
        out.

    Examples
    --------
    >>> import adjoint as ad
    >>> all(":" in d.name for d in ad.devices())
    True
    """
    return [info for kind in _KINDS.values() for info in kind.found()]


def open_device(name: str) -> Device:
    """Return the device with a name such as "opencl" or "opencl:1"; it is opened once per process."""
    kind, _, index = name.partition(":") if isinstance(name, str) else ("", "", "")
    if kind not in _KINDS or not (index.isdecimal() or index == ""):
        raise ArgumentError(
            f'compile: device must be "cpu" or one of {", ".join(_KINDS)}, maybe with an index such as '
            f'"opencl:1", but got {name!r}.'
        )
    with _lock:
        name = f"{kind}:{int(index or 0)}"
        if name not in _opened:
            _opened[name] = _KINDS[kind].open_device(int(index or 0))
        return _opened[name]


class Target:
    """What a compiled function uses of a device."""

    wrap = staticmethod(as_tensor)

    def __init__(self, name: str) -> None:
        self.device = open_device(name)

    def build(self, program: Any, trace: Any, count: int, name: str) -> DeviceProgram:
        """Compile a traced program; the result is called with the traced arguments."""
        return DeviceProgram(self.device, program, trace, count, name)
