"""Complex numbers and their parts, and casts between dtypes.

Gradients follow PyTorch's convention, the conjugate Wirtinger derivative: the gradient of a real loss is
its direction of steepest ascent.  These functions are not holomorphic, so each has its own formula for
backward and forward mode.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.core.convert import asarray, check_cast, checked_dtype
from adjoint.core.define import define
from adjoint.core.namespace import rec
from adjoint.core.sparse import SparseRows
from adjoint.core.tensor import Tensor
from adjoint.ops.shared_docs import argument_doc
from adjoint.typing import ArrayLike, DTypeLike

__all__ = ["angle", "astype", "conj", "conjugate", "imag", "real"]


def _astype(x: Any, dtype: Any) -> Any:
    if type(x) is SparseRows:
        return x.astype(dtype)
    x = np.asarray(x)
    if x.dtype.kind == "c" and dtype.kind != "c":
        x = x.real  # for gradients of real tensors, which may be complex; ad.astype raises for users
    return x.astype(dtype)


conj = define("conj", np.conjugate, lambda xp, g, y, x: xp.conj(g), holomorphic=False,
              method=True, lower=lambda xp, x: x, doc="Return the complex conjugate.")  # fmt: skip
# copy the parts, because a view would share the memory of an array that the caller may write to
real = define("real", lambda x: np.array(np.real(x)), lambda xp, g, y, x: g, holomorphic=False,
              jvp=lambda xp, t, y, x: xp.real(t), method=True, lower=lambda xp, x: x, doc="Return the real part.")  # fmt: skip
imag = define("imag", lambda x: np.array(np.imag(x)), lambda xp, g, y, x: g * 1j, holomorphic=False,
              jvp=lambda xp, t, y, x: xp.imag(t), method=True, lower=lambda xp, x: xp.full(x.shape, 0, x.dtype), doc="Return the imaginary part.")  # fmt: skip
# the rule returns g unchanged, because the engine casts each gradient to its tensor's dtype
define("astype", _astype, lambda xp, g, y, x, dtype: g, params=("dtype",),
       method=True, reference="numpy", lower=lambda xp, x, dtype: xp.cast(xp.view(x), np.dtype(dtype)), doc="Return the values as another dtype.")  # fmt: skip


@argument_doc
def angle(z: ArrayLike, deg: bool = False) -> Tensor:
    """Return the angle of complex numbers; its gradient at 0 is 0.

    Parameters
    ----------
    z : array_like
        The numbers.
    deg : bool, optional
        Whether to return degrees instead of radians.

    >>> z = ad.tensor(2j, requires_grad=True)
    >>> ad.angle(z).backward(); z.grad
    tensor(-0.5+0.j, dtype=complex128)
    """
    z = asarray(z)
    radians = rec.atan2(rec.imag(z), rec.real(z)) if z.dtype.kind == "c" else rec.atan2(0.0, z)
    return rec.rad2deg(radians) if deg else radians


@argument_doc
def astype(x: ArrayLike, dtype: DTypeLike, *, copy: bool = True, device: str | None = None) -> Tensor:
    """Cast to another dtype.

    The gradient of ``x`` has the dtype of ``x``.

    Parameters
    ----------
    dtype : dtype
        The dtype of the result.
    copy : bool, optional
        Whether to copy if ``x`` has this dtype already.

    Raises
    ------
    DTypeError
        If the cast would drop an imaginary part.

    >>> ad.astype(ad.tensor([1, 2]), "float32")
    tensor([1., 2.], dtype=float32)
    """
    x = asarray(x, device=device)
    target = checked_dtype(dtype)
    if target == x.dtype and not copy:
        return x
    check_cast(x.dtype, target, "astype: ")
    return rec.astype(x, dtype=target)


conjugate = conj
