"""The OpenCL device that tests use; the module is skipped if there is none."""

from __future__ import annotations

import functools
from typing import Any

import pytest

cl = pytest.importorskip("pyopencl")

import adjoint as ad  # noqa: E402
from adjoint.targets import open_device, opencl  # noqa: E402

if not opencl.found():
    pytest.skip("there is no OpenCL device", allow_module_level=True)

DEVICE: Any = open_device("opencl")
on_opencl = functools.partial(ad.compile, device="opencl")


def program_of(compiled: Any) -> Any:
    """Return the program of the last call of a compiled function."""
    return compiled._variants[0].built
