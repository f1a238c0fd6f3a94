"""NumPy's main namespace, with functions that also take tensors: ``import adjoint.numpy as np``.

A function returns what NumPy returns, unless an argument is a tensor or contains one: then it returns
tensors.  Constants, classes and dtypes are NumPy's own.  Functions without a derivative work on the values of
tensors, and raise ``LostHistoryError`` for a tensor that requires grad.

>>> import adjoint as ad
>>> import adjoint.numpy as np
>>> ad.grad(lambda x: np.sum(np.array([x[0], x[0] * x[1]]) ** 2))(np.array([1.0, 2.0]))
array([10.,  4.])
"""

from typing import Any

import numpy as _np

from adjoint.numpy import build as _build
from adjoint.numpy import create as _create
from adjoint.numpy import fft, linalg, random
from adjoint.numpy.grids import c_, mgrid, ogrid, r_
from adjoint.numpy.mapping import vectorize

_OWN = {
    "fft": fft, "linalg": linalg, "random": random, "vectorize": vectorize,
    "c_": c_, "r_": r_, "mgrid": mgrid, "ogrid": ogrid,
}  # fmt: skip
_HIDDEN = frozenset("core f2py testing".split())  # attributes that are deprecated or slow to import
_MODULES = frozenset(
    "char ctypeslib dtypes emath exceptions lib ma polynomial rec strings typing".split()
)  # NumPy's own submodules, imported when they are first used

__all__ = [name for name in sorted(_np.__all__) if name not in _HIDDEN]  # sorted: NumPy's order varies
__dir__ = sorted(__all__).copy

globals().update(_build.namespace(_np, [n for n in __all__ if n not in _MODULES], {**_create.MAKERS, **_OWN}))


def __getattr__(name: str) -> Any:
    """Return a submodule of NumPy, which NumPy imports at its first use; raise for an unknown name."""
    if name in _MODULES | _HIDDEN:
        return getattr(_np, name)
    raise AttributeError(f"module 'adjoint.numpy' has no attribute {name!r}")
