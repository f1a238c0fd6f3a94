"""``scipy.sparse`` on tensors: matrices in products, sums and solves (``linalg``).

The constructors return a ``SparseArray``, which has a single format.  Other names are SciPy's own functions;
those that create matrices return constant SciPy matrices, which the constructors accept.
"""

from typing import Any

from adjoint.hints import add_hints
from adjoint.scipy.fallback import scipy_only
from adjoint.scipy.sparse import linalg
from adjoint.scipy.sparse.arrays import (
    SparseArray,
    coo_array,
    coo_matrix,
    csc_array,
    csc_matrix,
    csr_array,
    csr_matrix,
    diags,
    diags_array,
    eye,
    eye_array,
    identity,
)

__all__ = [
    "SparseArray", "coo_array", "coo_matrix", "csc_array", "csc_matrix", "csr_array", "csr_matrix", "diags",
    "diags_array", "eye", "eye_array", "identity", "linalg",
]  # fmt: skip
__dir__ = sorted(__all__).copy

add_hints(__name__)


def __getattr__(name: str) -> Any:
    """Return SciPy's own function, which raises an error for a tensor that requires grad."""
    return scipy_only("sparse", name)
