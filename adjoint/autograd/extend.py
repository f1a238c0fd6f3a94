"""``autograd.extend``: primitives with derivatives."""

from adjoint.autograd.core import JVPNode, VJPNode
from adjoint.autograd.rules import (
    Box,
    def_linear,
    defjvp,
    defjvp_argnum,
    defjvp_argnums,
    defvjp,
    defvjp_argnum,
    defvjp_argnums,
    isbox,
    notrace_primitive,
    primitive,
    register_notrace,
)
from adjoint.autograd.spaces import VSpace, vspace

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
    "isbox",
    "notrace_primitive",
    "primitive",
    "register_notrace",
    "vspace",
]
__dir__ = sorted(__all__).copy
