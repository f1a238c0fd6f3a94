"""``autograd.core``: operators on functions of one argument, and rules."""

from adjoint.autograd.rules import (
    def_linear,
    defjvp,
    defjvp_argnum,
    defvjp,
    defvjp_argnum,
    primitive,
    primitive_vjps,
)
from adjoint.autograd.spaces import VSpace, vspace
from adjoint.autograd.transforms import core_make_jvp as make_jvp
from adjoint.autograd.transforms import core_make_vjp as make_vjp

primitive_with_deprecation_warnings = primitive

__all__ = [
    "VSpace",
    "def_linear",
    "defjvp",
    "defjvp_argnum",
    "defvjp",
    "defvjp_argnum",
    "make_jvp",
    "make_vjp",
    "primitive",
    "primitive_vjps",
    "primitive_with_deprecation_warnings",
    "vspace",
]
__dir__ = sorted(__all__).copy
