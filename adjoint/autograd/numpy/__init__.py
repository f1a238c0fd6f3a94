"""``autograd.numpy``: ``adjoint.numpy``, and ``make_diagonal``."""

import sys
import types
from typing import Any

from numpy import __version__ as __version__

import adjoint.numpy as _namespace
from adjoint.autograd.arrays import CONSTANTS, isscalar, make_diagonal, where
from adjoint.autograd.numpy import fft, linalg, random
from adjoint.autograd.numpy import numpy_boxes as numpy_boxes

__all__ = [*_namespace.__all__, "make_diagonal"]
__dir__ = sorted(__all__).copy
_own = {"fft": fft, "linalg": linalg, "random": random, "isscalar": isscalar, "where": where, **CONSTANTS}
globals().update({name: getattr(_namespace, name) for name in dir(_namespace)} | _own)


class _Namespace(types.ModuleType):
    """The type of this module.  Programs copy its functions, of which ``__getattr__`` must not be one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_namespace, name)  # a submodule of NumPy, which is imported at its first use


sys.modules[__name__].__class__ = _Namespace
