"""``autograd.numpy.fft``."""

from adjoint.numpy.fft import *
from adjoint.numpy.fft import __all__ as __all__

__dir__ = sorted(__all__).copy
