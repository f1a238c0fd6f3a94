"""``numpy.linalg`` on tensors."""

import numpy as _np

from adjoint.numpy import build as _build

__all__ = list(_np.linalg.__all__)
__dir__ = sorted(__all__).copy

globals().update(_build.namespace(_np.linalg, __all__, {}))
