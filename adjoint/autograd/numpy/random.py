"""``autograd.numpy.random``."""

from adjoint.numpy.random import *
from adjoint.numpy.random import __all__ as __all__

__dir__ = sorted(__all__).copy
