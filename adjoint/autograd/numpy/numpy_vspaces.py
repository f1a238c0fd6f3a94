"""``autograd.numpy.numpy_vspaces``."""

from adjoint.autograd.spaces import VSpace as ArrayVSpace
from adjoint.autograd.spaces import VSpace as ComplexArrayVSpace

__all__ = ["ArrayVSpace", "ComplexArrayVSpace"]
