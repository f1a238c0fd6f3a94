"""``numpy.random``: the same numbers from the same seeds, as arrays.

The functions accept tensors as parameters, but raise ``LostHistoryError`` for a tensor that requires grad:
``ad.random.default_rng`` has draws through which gradients flow.
"""

import numpy as _np

from adjoint.numpy import build as _build

__all__ = list(_np.random.__all__)

_INSTEAD = "Draw with ad.random.default_rng(seed), through which gradients flow."

globals().update(
    {
        name: value
        if isinstance(value := getattr(_np.random, name), type)
        else _build.numpy_only(value, "np.random", _INSTEAD)
        for name in __all__
    }
)


def __dir__() -> list[str]:
    return sorted(__all__)
