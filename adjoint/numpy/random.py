"""``numpy.random``: the same numbers from the same seeds.

The functions return arrays, or tensors if a parameter is a tensor.  They raise ``LostHistoryError`` for a
tensor that requires grad: ``ad.random.default_rng`` has draws through which gradients flow.
"""

import functools as _functools
from typing import Any as _Any

import numpy as _np

from adjoint.interop.drop_in import drop_in as _drop_in
from adjoint.interop.writers import write as _write
from adjoint.numpy import build as _build

__all__ = list(_np.random.__all__)
__dir__ = sorted(__all__).copy

_INSTEAD = "Draw with ad.random.default_rng(seed), through which gradients flow."

globals().update(
    {
        name: value
        if isinstance(value := getattr(_np.random, name), type)
        else _drop_in(value, _build.numpy_only(value, "np.random", _INSTEAD))
        for name in __all__
    }
)


@_functools.wraps(_np.random.shuffle)
def shuffle(x: _Any) -> None:
    _write("np.random.shuffle", _np.random.shuffle, [x], [x], {})
