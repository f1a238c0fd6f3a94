"""``scipy.special`` on tensors.

The functions in ``__all__`` have derivatives of every order.  Other names are SciPy's own functions, which
raise ``LostHistoryError`` for a tensor that requires grad.
"""

from typing import Any

from adjoint.core.convert import asarray as _asarray
from adjoint.core.namespace import rec as _rec
from adjoint.core.tensor import Tensor as _Tensor
from adjoint.errors import ArgumentError as _ArgumentError
from adjoint.hints import with_hints as _with_hints
from adjoint.ops import extremes as _extremes
from adjoint.ops import reduce as _reduce
from adjoint.ops import special as _special
from adjoint.ops.elementwise import exp2, expm1, log1p
from adjoint.ops.fused import log_softmax as _log_softmax
from adjoint.ops.fused import softmax as _softmax
from adjoint.ops.special import *
from adjoint.scipy.fallback import drop_ins as _drop_ins
from adjoint.scipy.fallback import scipy_only as _scipy_only
from adjoint.typing import ArrayLike as _ArrayLike
from adjoint.typing import Axis as _Axis

__all__ = [*_special.__all__, "exp2", "expm1", "log1p", "log_softmax", "logsumexp", "softmax"]
__dir__ = sorted(__all__).copy


for _name in (*_special.__all__, "exp2", "expm1", "log1p"):
    globals()[_name] = _found = _with_hints(globals()[_name])  # explains that out= is not supported
    if _found.__module__ != "adjoint":  # for functions that are not ops, so that they can be pickled
        _found.__module__ = __name__


def logsumexp(
    a: _ArrayLike,
    axis: _Axis = None,
    b: _ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
) -> Any:
    """Return the logarithm of the sum of exponentials, without overflow.

    Parameters
    ----------
    a : array_like
        The exponents.
    axis : int or tuple of int, optional
        Axes to reduce; all of them by default.
    b : array_like, optional
        Factors of the exponentials.
    keepdims : bool, optional
        Whether to keep the reduced axes with length 1.
    return_sign : bool, optional
        Whether to return the sign of the sum, too, and the logarithm of its absolute value.

    Returns
    -------
    Tensor or tuple of Tensor
        The logarithm; NaN where the sum is negative and the sign is not returned.

    Examples
    --------
    >>> import adjoint.scipy.special as special
    >>> special.logsumexp([1000.0, 1000.0])
    np.float64(1000.6931471805599)
    """
    x = _asarray(a)
    if x.dtype.kind == "c":
        raise _ArgumentError("logsumexp: tensors must be real, but the argument is complex.")
    if b is None:
        y = _reduce.logsumexp(x, axis, keepdims=keepdims)
        return (y, _rec.ones_like(y)) if return_sign else y
    factor = _asarray(b)
    x, factor = x + 0 * factor, factor + 0 * x
    top = _extremes.max(_rec.where(factor == 0, float("-inf"), x.detach()), axis, keepdims=True)
    top = _rec.where(_rec.isfinite(top), top, 0.0)
    total = _reduce.sum(
        _rec.where(factor == 0, 0.0, factor * _rec.exp(_rec.where(factor == 0, 0.0, x - top))),
        axis,
        keepdims=keepdims,
    )
    top = top if keepdims else _rec.reshape(top, shape=total.shape)
    if return_sign:
        sign = _rec.sign(total)
        return _rec.log(_rec.abs(total)) + top, sign
    return _rec.log(total) + top


def softmax(x: _ArrayLike, axis: int | None = None) -> _Tensor:
    """Return the exponentials divided by their sum.

    Parameters
    ----------
    x : array_like
        The exponents.
    axis : int, optional
        The axis of the sum; by default the sum goes over all elements.

    Returns
    -------
    Tensor
        Positive numbers whose sum is 1.

    Examples
    --------
    >>> import adjoint.scipy.special as special
    >>> special.softmax([0.0, 0.0])
    array([0.5, 0.5])
    """
    return _over(_softmax, x, axis)


def log_softmax(x: _ArrayLike, axis: int | None = None) -> _Tensor:
    """Return the logarithm of ``softmax``.

    Parameters
    ----------
    x : array_like
        The exponents.
    axis : int, optional
        The axis of the sum; by default the sum goes over all elements.

    Returns
    -------
    Tensor
        The logarithms.

    Examples
    --------
    >>> import adjoint.scipy.special as special
    >>> special.log_softmax([0.0, 0.0])
    array([-0.69314718, -0.69314718])
    """
    return _over(_log_softmax, x, axis)


def _over(function: Any, x: Any, axis: Any) -> Any:
    t = _asarray(x)
    if axis is not None:
        return function(t, axis)
    return _rec.reshape(function(_rec.reshape(t, shape=(-1,)), 0), shape=t.shape)


globals().update(_drop_ins("special", {name: globals()[name] for name in __all__}))


def __getattr__(name: str) -> Any:
    """Return SciPy's own function, which raises an error for a tensor that requires grad."""
    return _scipy_only("special", name)
