"""``unary_to_nary`` of autograd."""

from adjoint.autograd.transforms import unary_to_nary

__all__ = ["unary_to_nary"]
__dir__ = sorted(__all__).copy
