"""adjoint by the names of HIPS autograd: ``import adjoint.autograd as autograd``.

The public names and submodules are those of autograd.  A library that imports autograd itself runs on adjoint
after ``sys.modules["autograd"] = adjoint.autograd``.

>>> import adjoint.autograd.numpy as np
>>> from adjoint.autograd import grad
>>> grad(lambda x: np.sum(x**2))(np.array([1.0, 2.0]))
array([2., 4.])
"""

from adjoint.autograd.containers import dict, isinstance, list, tuple, type
from adjoint.autograd.rules import primitive
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
    make_vjp,
    multigrad_dict,
    tensor_jacobian_product,
    value_and_grad,
    vector_jacobian_product,
)

__all__ = [
    "checkpoint",
    "deriv",
    "dict",
    "elementwise_grad",
    "grad",
    "grad_and_aux",
    "grad_named",
    "hessian",
    "hessian_tensor_product",
    "hessian_vector_product",
    "holomorphic_grad",
    "isinstance",
    "jacobian",
    "list",
    "make_ggnvp",
    "make_hvp",
    "make_jvp",
    "make_vjp",
    "multigrad_dict",
    "primitive",
    "tensor_jacobian_product",
    "tuple",
    "type",
    "value_and_grad",
    "vector_jacobian_product",
]
__dir__ = sorted(__all__).copy
