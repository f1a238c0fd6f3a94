"""Convert and check the gradients and dtypes passed to an accumulator.  Gradients can be of any library."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray

from adjoint.core.convert import array_of, checked_dtype, foreign_array, resolved
from adjoint.core.sparse import SparseGradient, SparseRows
from adjoint.core.tensor import Tensor, differentiable
from adjoint.errors import DTypeError, InputError

__all__ = ["checked_sum_dtype", "gradient_array", "sum_dtype"]

Array = ndarray[Any, Any]


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of sums of gradients of ``dtype``: at least float32."""
    return np.result_type(np.float16 if dtype.name == "bfloat16" else dtype, np.float32)


def checked_sum_dtype(what: str, dtype: Any) -> np.dtype[Any]:
    """Return ``dtype`` as a NumPy dtype; raise if gradients cannot be summed in it."""
    found = checked_dtype(dtype)
    if not differentiable(found) or sum_dtype(found) != found:
        raise DTypeError(
            f"{what}: gradients must be summed in float32, float64 or a complex dtype, not in {found}.\n"
            "  Half precision would lose small gradients in the sum.  Use float32."
        )
    return found


def gradient_array(what: str, value: Any) -> Array | SparseRows:
    """Return a gradient of any library as an array or as sparse rows, without a copy where possible.

    ``what`` names the gradient in messages.  bfloat16 becomes float32, because NumPy does not combine it with
    other dtypes.
    """
    if type(value) is ndarray:
        data: Array = value
    elif type(value) is SparseGradient:
        return value._rows
    elif type(value) is SparseRows:
        return value
    elif isinstance(value, (Tensor, ndarray, np.generic, int, float, complex, list, tuple)):
        if isinstance(value, Tensor) and value.requires_grad and value.is_leaf:
            raise _is_parameter(what)
        data = array_of(value)
    elif getattr(value, "is_sparse", False):
        return _foreign_rows(what, value)
    else:
        _refuse_other_than_gradients(what, value)
        data = foreign_array(f"{what}: ", value)
    if isinstance(value, (int, list, tuple)) and data.dtype.kind in "iu":
        data = data.astype(np.float64)  # literals such as [1, 2]
    if not differentiable(data.dtype):
        raise DTypeError(f"{what}: a gradient must have a float or complex dtype, not {data.dtype}.")
    if data.dtype.kind not in "fc":
        return data.astype(np.float32)
    return data if data.dtype.isnative else data.astype(data.dtype.newbyteorder("="))


def _is_parameter(what: str) -> InputError:
    return InputError(
        f"{what}: this is a parameter, not its gradient.\n"
        "  Pass its .grad: {name: p.grad for name, p in model.named_parameters() if p.grad is not None}."
    )


def _refuse_other_than_gradients(what: str, value: Any) -> None:
    if value is None:
        raise InputError(f"{what}: the gradient is None.  Leave this name out of the dictionary.")
    if isinstance(value, dict):
        raise InputError(
            f"{what}: a gradient must be an array, not a dictionary.\n"
            "  Register each array of nested dictionaries under a name of its own, such as 'layer.weight'."
        )
    if type(value).__name__ == "Parameter":  # PyTorch's class
        raise _is_parameter(what)


def _foreign_rows(what: str, value: Any) -> SparseRows:
    """Return the rows of a sparse tensor with one sparse axis, such as the gradient of an embedding."""
    value = resolved(value).coalesce()
    indices, values = np.asarray(value.indices()), gradient_array(what, value.values())
    if indices.shape[0] != 1 or type(values) is not ndarray:
        raise InputError(
            f"{what}: a sparse gradient must have one sparse axis, but this one has {indices.shape[0]}.\n"
            "  Convert it to a dense array first."
        )
    return SparseRows(indices[0].astype(np.intp), values, tuple(value.shape), unique=True)
