"""``autograd.numpy.numpy_vjps``: what rules of libraries use."""

from adjoint.autograd.rules import unbroadcast_f

__all__ = ["unbroadcast_f"]
