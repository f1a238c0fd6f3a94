"""``autograd.core``: operators on functions of one argument, and rules."""

from adjoint.autograd.rules import (
    Box,
    def_linear,
    defjvp,
    defjvp_argnum,
    defjvp_argnums,
    defvjp,
    defvjp_argnum,
    defvjp_argnums,
    getval,
    isbox,
    notrace_primitive,
    primitive,
    primitive_vjps,
    register_notrace,
)
from adjoint.autograd.spaces import VSpace, vspace
from adjoint.autograd.tracer import Node
from adjoint.autograd.transforms import core_make_jvp as make_jvp
from adjoint.autograd.transforms import core_make_vjp as make_vjp
from adjoint.autograd.util import func, subval, subvals

primitive_with_deprecation_warnings = primitive


class VJPNode(Node):
    """A node of autograd's graph in reverse mode."""


class JVPNode(Node):
    """A node of autograd's graph in forward mode."""


__all__ = [
    "Box",
    "JVPNode",
    "VJPNode",
    "VSpace",
    "def_linear",
    "defjvp",
    "defjvp_argnum",
    "defjvp_argnums",
    "defvjp",
    "defvjp_argnum",
    "defvjp_argnums",
    "func",
    "getval",
    "isbox",
    "make_jvp",
    "make_vjp",
    "notrace_primitive",
    "primitive",
    "primitive_vjps",
    "primitive_with_deprecation_warnings",
    "register_notrace",
    "subval",
    "subvals",
    "vspace",
]
__dir__ = sorted(__all__).copy
