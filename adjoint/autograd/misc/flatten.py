"""``autograd.misc.flatten``."""

from adjoint.autograd.descent import flatten, flatten_func

__all__ = ["flatten", "flatten_func"]
