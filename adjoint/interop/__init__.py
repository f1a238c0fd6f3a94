"""Interoperation with other libraries: NumPy, SciPy, DLPack, einops, ONNX and the Array API."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adjoint.interop import einops, onnx, scipy

__all__ = ["einops", "onnx", "scipy"]
__dir__ = sorted(__all__).copy


if not TYPE_CHECKING:  # so that type checkers report unknown names

    def __getattr__(name: str) -> Any:
        """Import the modules that need other libraries at their first use."""
        if name not in __all__:
            raise AttributeError(f"module 'adjoint.interop' has no attribute {name!r}")
        return importlib.import_module(f"adjoint.interop.{name}")
