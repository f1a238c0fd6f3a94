"""adjoint by the names of HIPS autograd: ``import adjoint.autograd as autograd``.

The public names and submodules are those of autograd.  A library that imports autograd itself runs on adjoint
after ``sys.modules["autograd"] = adjoint.autograd``.

>>> import adjoint.autograd.numpy as np
>>> from adjoint.autograd import grad
>>> grad(lambda x: np.sum(x**2))(np.array([1.0, 2.0]))
array([2., 4.])
"""

from adjoint.autograd import builtins, core, differential_operators, extend, numpy, tracer, util, wrap_util
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
    "builtins", "checkpoint", "core", "deriv", "dict", "differential_operators", "elementwise_grad",
    "extend", "grad", "grad_and_aux", "grad_named", "hessian", "hessian_tensor_product",
    "hessian_vector_product", "holomorphic_grad", "isinstance", "jacobian", "list", "make_ggnvp",
    "make_hvp", "make_jvp", "make_vjp", "multigrad_dict", "numpy", "primitive",
    "tensor_jacobian_product", "tracer", "tuple", "type", "util", "value_and_grad",
    "vector_jacobian_product", "wrap_util",
]  # fmt: skip
__dir__ = sorted(__all__).copy
