"""The library onnx, which is an extra."""

from __future__ import annotations

from adjoint.errors import MissingExtraError

try:
    import onnx
    from onnx import helper, numpy_helper
except ImportError as error:
    raise MissingExtraError("ONNX files", "onnx", "onnx") from error

__all__ = ["helper", "numpy_helper", "onnx"]
