"""``autograd.tracer``: primitives and the test for tensors."""

from adjoint.autograd.rules import Box, getval, isbox, notrace_primitive, primitive, register_notrace
from adjoint.autograd.util import subvals

__all__ = ["Box", "getval", "isbox", "notrace_primitive", "primitive", "register_notrace", "subvals"]
__dir__ = sorted(__all__).copy
