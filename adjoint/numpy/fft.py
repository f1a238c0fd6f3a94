"""``numpy.fft`` on tensors."""

import numpy as _np

from adjoint.numpy import build as _build

__all__ = list(_np.fft.__all__)
__dir__ = sorted(__all__).copy

globals().update(_build.namespace(_np.fft, __all__, {}))
