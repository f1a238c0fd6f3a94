"""The WebGPU device that tests use; the module is skipped if there is none."""

from __future__ import annotations

import functools
from typing import Any

import pytest

wgpu = pytest.importorskip("wgpu")

import adjoint as ad  # noqa: E402
from adjoint.targets import open_device, webgpu  # noqa: E402

if not webgpu.found():
    pytest.skip("there is no WebGPU device", allow_module_level=True)

DEVICE: Any = open_device("webgpu")
on_webgpu = functools.partial(ad.compile, device="webgpu")
