"""Random numbers with the shape and dtype of a draw, and checks of the parameters of distributions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.config import get_default_dtype
from adjoint.core.convert import asarray, checked_dtype
from adjoint.core.docstrings import SharedDoc
from adjoint.core.lifted import Lifted, Unknown, made_by_host
from adjoint.core.namespace import rec
from adjoint.core.shapes import Shape, broadcast_shapes, canonical_shape, reduced_axes
from adjoint.core.tensor import Tensor, differentiable, wrap
from adjoint.core.values import verify
from adjoint.errors import ArgumentError, DTypeError, ShapeError
from adjoint.ops.selection import take

__all__ = [
    "Noise", "as_float", "below", "broadcast_size", "check_values", "checked_size", "draws_doc",
    "elements_at", "noise_doc", "not_negative", "positive_draws_doc", "scaled_draws_doc",
]  # fmt: skip


draws_doc = SharedDoc("""
    Parameters
    ----------
    loc : array_like, optional
        The mean.
    scale : array_like, optional
        The scale, not negative.
    df : array_like
        The degrees of freedom, positive.
    size : int or tuple of int, optional
        The shape of the result; by default the common shape of the parameters.
    dtype : dtype, optional
        A float dtype; by default that of the parameters.

    Returns
    -------
    Tensor
        The draws.
    """)
noise_doc = draws_doc.extended("""
    Parameters
    ----------
    size : int or tuple of int, optional
        The shape of the result; by default one number.
    dtype : dtype, optional
        A float dtype; by default ``get_default_dtype()``.
    """)
scaled_draws_doc = draws_doc.extended("""
    Raises
    ------
    ArgumentError
        If ``scale`` is negative.
    """)
positive_draws_doc = draws_doc.extended("""
    Raises
    ------
    ArgumentError
        If a parameter is not positive.
    """)


class Noise:
    """Base class of ``Generator``: draw random numbers that do not depend on the parameters (noise)."""

    __slots__ = ("_numpy",)

    _numpy: np.random.Generator

    def _target(self, op: str, dtype: Any, given: list[Any]) -> Any:
        """Return the dtype of a draw: ``dtype``, or by default the common dtype of the dtypes ``given``."""
        return draw_dtype(op, np.result_type(*given) if dtype is None and given else dtype)

    def _noise(
        self,
        op: str,
        kind: str,
        size: Any,
        dtype: Any,
        *params: Any,
        check: Callable[..., None] | None = None,
    ) -> tuple[Any, ...]:
        """Draw random numbers with the method ``kind`` of NumPy's generator, such as "standard_normal".

        They have the shape ``size``, by default the common shape of the parameters ``params``.  Return the
        dtype that the draw must have, these numbers, and the parameters.  The numbers and the parameters are
        float32 or float64; for half precision the caller casts the result at the end.
        ``check(op, value)`` is called with the last parameter before numbers are drawn; it may raise.
        """
        values = [p if isinstance(p, (int, float)) else as_float(op, asarray(p)) for p in params]
        tensors = [t for t in values if isinstance(t, Tensor)]
        shape = broadcast_shapes(op, *(t.shape for t in tensors))
        if size is not None:
            shape = broadcast_size(op, shape, checked_size(op, size))
        target = self._target(op, dtype, [t.dtype for t in tensors])
        drawn: Any = np.float64 if target.itemsize > 4 else np.float32
        if check is not None:
            check(op, values[-1])

        def draw() -> Any:
            noise = np.asarray(getattr(self._numpy, kind)(shape, drawn))
            # an exponential draw can be 0, but callers take its logarithm
            return np.maximum(noise, np.finfo(drawn).tiny) if kind == "standard_exponential" else noise

        return (
            target,
            wrap(made_by_host(draw, shape, drawn, (kind, self, drawn))),
            *(
                rec.astype(t, dtype=np.dtype(drawn)) if isinstance(t, Tensor) and t.dtype != drawn else t
                for t in values
            ),
        )


def elements_at(x: Tensor, drawn: Any, axis: int) -> Tensor:
    """Return the elements of ``x`` at the random indices ``drawn`` along ``axis``, a negative number."""
    if isinstance(drawn, Lifted):
        return take(x, wrap(drawn), axis=axis)
    return x[(Ellipsis, drawn, *(slice(None),) * (-axis - 1))]


def below(y: Tensor, low: Any, high: Any) -> Tensor:
    """Replace elements of ``y`` that equal ``high`` by the next smaller number.

    ``y`` are uniform draws from [low, high) that were rounded to half precision, some of them up to ``high``.
    """
    low, high = (rec.astype(asarray(bound), dtype=y.dtype).detach() for bound in (low, high))
    last = rec.nextafter(high, low)
    hit = rec.logical_and(rec.equal(y, high), rec.not_equal(low, high))
    return y + rec.where(hit, last - y.detach(), 0)


def checked_size(op: str, size: Any) -> Shape:
    """Return the argument ``size`` as a tuple, () for None; raise if a length is negative."""
    shape = () if size is None else canonical_shape(op, size)
    if any(n < 0 for n in shape):
        raise ArgumentError(f"{op}: size must not have negative lengths, but is {shape}.")
    return shape


def broadcast_size(op: str, shape: Shape, size: Shape) -> Shape:
    """Return ``size``; raise if the parameters, of shape ``shape``, cannot be broadcast to it."""
    if reduced_axes(size, shape) is None:
        raise ShapeError(
            f"{op}: the parameters have shape {shape}, which cannot be broadcast to size {size}."
        )
    return size


def draw_dtype(op: str, dtype: Any) -> Any:
    kind = get_default_dtype() if dtype is None else checked_dtype(dtype)
    if not differentiable(kind) or kind.kind == "c":
        raise DTypeError(f"{op}: dtype must be a real float dtype, but is {kind}.")
    return kind


def as_float(op: str, t: Tensor) -> Tensor:
    """Return the parameter ``t`` of a distribution as floats; raise if it is complex."""
    if t.dtype.kind == "c":
        raise DTypeError(f"{op}: parameters must be real numbers, but got {t.dtype}.")
    return t if differentiable(t.dtype) else rec.astype(t, dtype=get_default_dtype())


def check_values(op: str, value: Any, holds: Callable[[Any], Any], what: str) -> None:
    """Raise if a value of a parameter is not valid; ``holds(array)`` returns a mask of the valid elements.

    ``what`` is the rule in the message, such as "scale must not be negative".  Inside a transform, where the
    values are not known, nothing is checked.
    """

    def look(data: np.ndarray[Any, Any]) -> None:
        bad = data[~holds(data)]
        if bad.size:
            raise ArgumentError(f"{op}: {what}, but one value is {bad.ravel()[0]}.")

    if isinstance(value, (Tensor, Unknown)):
        verify(look, asarray(value), lambda xp, x: xp.logical_not(holds(x)))
    else:
        look(np.asarray(value))


def not_negative(op: str, scale: Any) -> None:
    """Raise if ``scale`` is negative."""
    check_values(op, scale, lambda a: ~(a < 0), "scale must not be negative")
