"""Patterns of sparse derivatives, found from the traced program of a function.

``ad.jacobian(f, sparse=True)`` and ``ad.hessian(f, sparse=True)`` use them to compute few products.
"""

from adjoint.hints import add_hints as _add_hints
from adjoint.sparsity.functions import hessian, jacobian

__all__ = ["hessian", "jacobian"]
__dir__ = sorted(__all__).copy

_add_hints(__name__)
