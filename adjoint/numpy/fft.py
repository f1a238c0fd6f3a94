"""``numpy.fft`` on tensors."""

import numpy as _np

from adjoint.numpy import build as _build

__all__ = list(_np.fft.__all__)

globals().update(_build.namespace(_np.fft, __all__, {}))


def __dir__() -> list[str]:
    return sorted(__all__)
