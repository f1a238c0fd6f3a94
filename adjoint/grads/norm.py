"""Norms over many gradients, without overflow; the result does not depend on the order of the gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint.config import transform
from adjoint.core.conversion import check_conversion
from adjoint.core.dots import PIECE, pieces
from adjoint.core.lifted import enclosing
from adjoint.core.sparse import SparseGradient, SparseRows
from adjoint.core.tensor import Tensor, concrete
from adjoint.errors import ArgumentError

__all__ = [
    "Measure", "all_finite", "all_finite_unwarned", "check_max_norm", "check_norm_order", "chunks",
    "global_norm", "measured", "norm_parts", "stored_values",
]  # fmt: skip

Array = ndarray[Any, Any]

# Elements per piece: 256 KiB of float64, so that a second pass finds them in the cache.
CHUNK = 1 << 15
# Bytes up to which a mask is as fast as dot products.
MASKED = 1 << 19
# Elements of each of many dot products that test for finite values.
ROW = 1024
FLOAT32_MAX = float(np.finfo(np.float32).max)
# Elements tested for finite values by one mask.
FINITE = 1 << 17


def chunks(*arrays: Array, written: int = 0, size: int = CHUNK) -> Iterator[tuple[Array, ...]]:
    """Yield matching 1-d pieces of arrays of equal shape; the first ``written`` arrays may be written to."""
    if all(a.flags.c_contiguous for a in arrays):
        flat = [a.reshape(-1) for a in arrays]
        for start in range(0, flat[0].size, size):
            yield tuple(a[start : start + size] for a in flat)
        return
    flags: Any = [["readwrite"]] * written + [["readonly"]] * (len(arrays) - written)
    with np.nditer(
        arrays, ["external_loop", "buffered", "zerosize_ok"], flags, order="C", buffersize=size
    ) as pieces:
        if pieces.itersize:
            for piece in pieces:
                yield piece if isinstance(piece, tuple) else (piece,)


def stored_values(g: Any) -> Array:
    """Return the values of a gradient as an array.

    For a sparse gradient these are the stored rows; rows with the same index are added first.
    """
    if type(g) is SparseGradient:
        g = g._rows
    if type(g) is SparseRows:
        return g.coalesced().values
    return g._data if isinstance(g, Tensor) else np.asarray(g)


def all_finite(a: Array) -> bool:
    """Return whether no element is NaN or infinite."""
    with np.errstate(all="ignore"):
        return all_finite_unwarned(a)


def all_finite_unwarned(a: Array) -> bool:
    """Return whether no element is NaN or infinite; the caller must have disabled NumPy's warnings."""
    if a.nbytes < MASKED or a.dtype.char not in "fdFD" or not a.flags.c_contiguous:
        return _finite_by_mask(a)
    flat = a.reshape(-1)
    flat = flat if flat.dtype.kind == "f" else flat.view(flat.real.dtype)
    # Multiply one half by the other.  A value that is not finite makes the product and the sum not finite.
    # Large finite numbers may do so too, and are then tested exactly.  This reads everything once and writes
    # nothing; a mask takes 1.6 times as long.  Above 500 rows NumPy releases the interpreter lock; rows are
    # too short for BLAS to start threads.
    half = flat.size // (2 * ROW) * ROW
    dots = np.vecdot(flat[:half].reshape(-1, ROW), flat[half : 2 * half].reshape(-1, ROW))
    rest = flat[2 * half :]
    total = dots.dot(dots) if dots.size < PIECE else np.add.reduce(dots)
    if math.isfinite(total) and math.isfinite(rest.dot(rest)):
        return True
    return _finite_by_mask(rest if np.isfinite(dots).all() else flat)


def _finite_by_mask(a: Array) -> bool:
    if a.size <= FINITE:
        return bool(np.logical_and.reduce(np.isfinite(a), axis=None))
    # in pieces, so that no mask of the whole array is made
    return all(np.logical_and.reduce(np.isfinite(piece)) for (piece,) in chunks(a, size=FINITE))


def _square_sums(flat: Array) -> list[float]:
    """Return the sum of squares of each piece of a contiguous 1-d array, computed in its dtype."""
    if flat.dtype.kind == "c":
        return [float(np.vdot(p, p).real) for p in pieces(flat)]
    return [float(p.dot(p)) for p in pieces(flat)]


def global_norm(arrays: Iterable[Any], p: float = 2.0) -> float:
    """Return the p-norm of all elements of all gradients together, in float64.

    Values are scaled where squares would overflow or underflow.  NaN and inf give NaN and inf.  Parts are
    added exactly, so that their order does not matter.

    Parameters
    ----------
    arrays : iterable of array_like
        The gradients.
    p : float
        The order of the norm, above 0 or ``math.inf``.

    Returns
    -------
    float
        The norm.  No gradient flows through it; ``ad.linalg.vector_norm`` is differentiable.

    Raises
    ------
    LostHistoryError
        Inside a function that is differentiated, if a tensor is part of a graph.

    Examples
    --------
    >>> f"{global_norm([np.array([3e200]), np.array([4e200])]):.6g}"
    '5e+200'
    """
    if transform.get() is not None or enclosing.get() is not None:
        arrays = list(arrays)
        for a in arrays:
            if isinstance(a, Tensor):
                check_conversion(a, "a Python float", "ad.linalg.vector_norm is differentiable.")
                concrete(a, "global_norm()")
    norm, scale = norm_parts(arrays, p)
    return norm * scale


def norm_parts(arrays: Iterable[Any], p: float = 2.0) -> tuple[float, float]:
    """Return the joint p-norm of arrays as two factors, whose product may exceed the range of float64.

    The first factor is finite if all elements are, unless the order p is far below 1.
    """
    p = check_norm_order(p)
    parts = [stored_values(a) for a in arrays]
    if p == 2.0:
        with np.errstate(all="ignore"):
            total = _exact_sum(_square_sum(a) for a in parts)
        # below 1e-280 squares of single elements may have lost digits
        if 1e-280 < total < math.inf:
            return math.sqrt(total), 1.0
    largest = 0.0
    for a in parts:
        for piece in _wide_pieces(a):
            top = float(piece.max())
            if math.isnan(top):
                return math.nan, 1.0
            largest = max(largest, top)
    if largest == 0.0 or math.isinf(largest) or math.isinf(p):
        return largest, 1.0
    # a power of two scales without rounding; for large p, 1.9**p overflows
    scale = largest if p > 100.0 else 2.0 ** (math.frexp(largest)[1] - 1)
    with np.errstate(under="ignore"):
        total = math.fsum(float(np.sum((piece / scale) ** p)) for a in parts for piece in _wide_pieces(a))
    try:
        return math.sqrt(total) if p == 2.0 else total ** (1.0 / p), scale
    except OverflowError:
        return math.inf, scale


class Measure:
    """The norm of summed gradients, and the numbers ``divisor`` and ``factor`` that scale the sums.

    A sum is first divided by ``divisor``, then multiplied by ``factor``.
    """

    __slots__ = ("clipped", "divisor", "factor", "finite", "norm")

    def __init__(
        self,
        norm: float | None,
        divisor: float,
        factor: float = 1.0,
        clipped: bool = False,
        finite: bool = True,
    ) -> None:
        self.norm = norm  # None: not computed
        self.divisor, self.factor, self.clipped, self.finite = divisor, factor, clipped, finite


def measured(sums: Sequence[Any], p: float, divisor: float, bound: float | None) -> Measure:
    """Measure the joint p-norm of ``sums / divisor``; return it with the scaling of the sums.

    After the scaling, the norm is at most ``bound``, unless that is None.
    """
    part, scale = norm_parts(sums, p)
    part /= divisor
    norm = part * scale
    if not math.isfinite(part):  # scaling cannot make it finite
        return Measure(norm, divisor, finite=False)
    clipped = bound is not None and norm > bound
    factor = bound / part / scale if clipped and bound is not None else 1.0
    if norm <= FLOAT32_MAX:
        return Measure(norm, divisor, factor, clipped)
    # the quotient alone may overflow the dtype of its sum
    if clipped:
        return Measure(norm, 1.0, np.float64(factor / divisor), clipped)
    tops = [(norm_parts([g], math.inf)[0] / divisor, float(np.finfo(g.dtype).max)) for g in sums]
    return Measure(norm, divisor, finite=all(top <= most for top, most in tops))


def _exact_sum(parts: Iterable[float]) -> float:
    try:
        return math.fsum(parts)
    except (OverflowError, ValueError):  # inf - inf cannot happen among squares; a sum past 1e308 can
        return math.inf


def _square_sum(a: Array) -> float:
    if a.dtype.char in "dD" and a.flags.c_contiguous:
        return math.fsum(_square_sums(a.reshape(-1)))
    if a.dtype.char in "fe" and a.flags.c_contiguous:  # the same as below, in two thirds of the time
        flat = a.reshape(-1)
        wide = (p.astype(np.float64) for p in pieces(flat))
        return math.fsum(float(w.dot(w)) for w in wide)
    return math.fsum(float(np.vdot(w, w)) for w in _wide_pieces(a, PIECE))


def _wide_pieces(a: Array, size: int = CHUNK) -> Iterator[Array]:
    """Yield the absolute values of an array in float64, in pieces of ``size`` elements."""
    for (piece,) in chunks(a, size=size):
        yield np.abs(piece.astype(np.complex128 if piece.dtype.kind == "c" else np.float64))


def check_norm_order(p: Any, what: str = "p, the order of a norm,") -> float:
    """Return the order of a norm as a float; raise if it is invalid.  ``what`` names it in the message."""
    if isinstance(p, (int, float)) and not isinstance(p, bool) and p > 0 and _holds(p):
        return float(p)
    raise ArgumentError(f"{what} must be positive or math.inf, but is {_shown(p)}.")


def check_max_norm(value: Any, what: str = "max_norm") -> float:
    """Return a bound on a norm as a float; raise if it is invalid."""
    number = isinstance(value, (int, float, np.floating, np.integer)) and not isinstance(value, bool)
    if number and value > 0 and _holds(value):  # NaN is not above 0
        return float(value)
    raise ArgumentError(f"{what} must be a positive number, but is {_shown(value)}.")


def _holds(value: Any) -> bool:
    """Return whether a number is within the range of float64."""
    return not isinstance(value, int) or value.bit_length() < 1024


def _shown(value: Any) -> str:
    return repr(value) if _holds(value) else "a number beyond the range of float64"
