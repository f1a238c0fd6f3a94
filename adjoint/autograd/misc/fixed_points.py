"""``autograd.misc.fixed_points``."""

from adjoint.autograd.descent import fixed_point

__all__ = ["fixed_point"]
