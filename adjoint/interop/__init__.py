"""Where adjoint meets other libraries."""

from adjoint.interop import scipy

__all__ = ["scipy"]
