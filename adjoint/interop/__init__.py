"""Where adjoint meets other libraries."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adjoint.interop import scipy

__all__ = ["scipy"]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Load what needs other libraries, or much of the standard one, when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'adjoint.interop' has no attribute {name!r}")
    return importlib.import_module(f"adjoint.interop.{name}")
