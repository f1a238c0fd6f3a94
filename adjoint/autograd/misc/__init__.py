"""``autograd.misc``."""

from adjoint.autograd.descent import const_graph, flatten

__all__ = ["const_graph", "flatten"]
