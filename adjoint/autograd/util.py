"""``autograd.util``: the old check of gradients."""

from adjoint.autograd.spaces import quick_grad_check

__all__ = ["quick_grad_check"]
__dir__ = sorted(__all__).copy
