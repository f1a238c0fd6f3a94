"""A plugin of pytest: PennyLane takes tensors for values of autograd.

PennyLane chooses its functions by the first part of the name of the module of a value's type.
"""

import adjoint

adjoint.Tensor.__module__ = "autograd.numpy.numpy_boxes"
