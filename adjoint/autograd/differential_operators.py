"""The operators of autograd."""

from adjoint.autograd.containers import tuple as atuple
from adjoint.autograd.spaces import vspace
from adjoint.autograd.transforms import (
    checkpoint,
    deriv,
    elementwise_grad,
    grad,
    grad_and_aux,
    grad_named,
    hessian,
    hessian_tensor_product,
    hessian_vector_product,
    holomorphic_grad,
    jacobian,
    make_ggnvp,
    make_hvp,
    make_jvp,
    make_jvp_reversemode,
    make_vjp,
    multigrad_dict,
    tensor_jacobian_product,
    unary_to_nary,
    value_and_grad,
    vector_jacobian_product,
)
from adjoint.autograd.transforms import core_make_jvp as _make_jvp
from adjoint.autograd.transforms import core_make_vjp as _make_vjp

__all__ = [
    "_make_jvp",
    "_make_vjp",
    "atuple",
    "checkpoint",
    "deriv",
    "elementwise_grad",
    "grad",
    "grad_and_aux",
    "grad_named",
    "hessian",
    "hessian_tensor_product",
    "hessian_vector_product",
    "holomorphic_grad",
    "jacobian",
    "make_ggnvp",
    "make_hvp",
    "make_jvp",
    "make_jvp_reversemode",
    "make_vjp",
    "multigrad_dict",
    "tensor_jacobian_product",
    "unary_to_nary",
    "value_and_grad",
    "vector_jacobian_product",
    "vspace",
]
__dir__ = sorted(__all__).copy
