"""``autograd.numpy.numpy_boxes``: tensors as ``ArrayBox``."""

from adjoint.core.tensor import Tensor as ArrayBox

__all__ = ["ArrayBox"]
__dir__ = sorted(__all__).copy
