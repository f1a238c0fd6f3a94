"""The namespace ``ad.fft``: differentiable Fourier transforms with the names of the Array API and NumPy.

There are three ops, each over several axes: ``fftn`` (complex numbers, the transform and its inverse),
``rfftn`` (real numbers to a half spectrum) and ``irfftn`` (a half spectrum to real numbers).  A half spectrum
is the first n // 2 + 1 terms; the others are complex conjugates of these.  Along each axis, the input is
padded with zeros or truncated to a given length, and the derivative rule does the opposite.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.define import define
from adjoint.core.docstrings import SharedDoc
from adjoint.core.namespace import Namespace, Value, rec
from adjoint.core.shapes import Shape, canonical_axis
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, DTypeError, InputError, ShapeError
from adjoint.ops.frequencies import fftfreq, fftshift, ifftshift, rfftfreq
from adjoint.ops.half import in_float32
from adjoint.typing import ArrayLike, Axis

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "ifft", "ifft2", "ifftn", "ifftshift",
    "ihfft", "ihfft2", "ihfftn", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)


# The values of ``norm`` scale a transform and its inverse by 1 and 1/n, 1/√n and 1/√n, or 1/n and 1.  The
# adjoint of a transform is the inverse transform with the factor of the transform.  The inverse has this
# factor if ``norm`` is replaced as follows.
_DUAL = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def resized(xp: Namespace, x: Value, axes: Shape, shape: Shape) -> Any:
    """Truncate ``x`` at the end of each of ``axes``, or pad it with zeros, to its length in ``shape``."""
    key = [slice(None)] * len(x.shape)
    widths = [(0, 0)] * len(key)
    for a in axes:
        if shape[a] < x.shape[a]:
            key[a] = slice(0, shape[a])
        elif shape[a] > x.shape[a]:
            widths[a] = (0, shape[a] - x.shape[a])
    if any(k.stop is not None for k in key):
        x = x[tuple(key)]
    if any(w != (0, 0) for w in widths):
        x = xp.pad(x, widths=tuple(widths), value=0)
    return x


def _fftn(x: Any, n: Shape, axes: Shape, norm: Any, inverse: bool) -> Any:
    return (np.fft.ifftn if inverse else np.fft.fftn)(x, s=n, axes=axes, norm=norm)


def _fftn_rule(
    xp: Namespace, g: Value, y: Value, x: Value, n: Shape, axes: Shape, norm: str, inverse: bool
) -> Any:
    # the matrix of a Fourier transform is symmetric, so its transpose is the transform itself
    return resized(xp, xp.fftn(g, n=n, axes=axes, norm=norm, inverse=inverse), axes, x.shape)


def _interior(n: int, weight: float, axis: int, dtype: Any) -> Any:
    """Return an array with a factor for each of the n // 2 + 1 terms of a half spectrum along ``axis``.

    The factor is ``weight`` for terms that represent two terms of the full spectrum (themselves and their
    conjugate), and 1 for the others: the first term, and the last one if n is even.
    """
    w = np.full(n // 2 + 1, weight, dtype)
    w[0] = 1
    if n % 2 == 0:
        w[-1] = 1
    return w.reshape((-1,) + (1,) * (-axis - 1))


def _rfftn_rule(xp: Namespace, g: Value, y: Value, x: Value, n: Shape, axes: Shape, norm: str) -> Any:
    # y_k = Σ_j x_j ω^jk for k ≤ n/2 only, so dx_j = Re Σ_k g_k ω^-jk over the half spectrum.  irfft adds a
    # term and its conjugate, except for the first and last terms, so these terms are halved
    half = g * _interior(n[-1], 0.5, axes[-1], x.dtype)
    return resized(xp, xp.irfftn(half, n=n, axes=axes, norm=_DUAL[norm]), axes, x.shape)


def _irfftn_rule(xp: Namespace, g: Value, y: Value, x: Value, n: Shape, axes: Shape, norm: str) -> Any:
    # the adjoint of the rule above: terms with a conjugate are doubled
    full = xp.rfftn(g, n=n, axes=axes, norm=_DUAL[norm])
    full = full * _interior(n[-1], 2.0, axes[-1], g.dtype)
    return resized(xp, full, axes, x.shape)


define("fftn", _fftn, _fftn_rule, kind="linear", params=("n", "axes", "norm", "inverse"),
       batch="leading", reference="numpy", sparsity="axis", doc="The discrete Fourier transform over axes, or its inverse.")  # fmt: skip
define("rfftn", lambda x, n, axes, norm: np.fft.rfftn(x, s=n, axes=axes, norm=norm), _rfftn_rule, kind="linear",
       params=("n", "axes", "norm"), holomorphic=False, batch="leading", reference="numpy", sparsity="axis", doc="The Fourier transform of real input, as a half spectrum.")  # fmt: skip
define("irfftn", in_float32(lambda x, n, axes, norm: np.fft.irfftn(x, s=n, axes=axes, norm=norm)), _irfftn_rule, kind="linear",
       params=("n", "axes", "norm"), holomorphic=False, batch="leading", reference="numpy", sparsity="axis", doc="The inverse Fourier transform of a half spectrum, which is real.")  # fmt: skip


# Public functions -------------------------------------------------------------------------------


def _checked_norm(op: str, norm: Any) -> str:
    norm = "backward" if norm is None else norm
    if norm not in _DUAL:
        raise ArgumentError(f'{op}: norm must be "backward", "ortho" or "forward", not {norm!r}.')
    return norm


def _checked_axes(op: str, x: Tensor, s: Any, axes: Any) -> Shape:
    if axes is None:
        count = x.ndim if s is None else len(s)
        axes = range(-count, 0)
    elif not isinstance(axes, (tuple, list, range)):
        raise InputError(f"{op}: axes must be a tuple of axes, but got {axes!r}.")
    found = tuple(canonical_axis(op, a, x.ndim) for a in axes)
    if len(set(found)) != len(found):
        raise ShapeError(f"{op}: axes must be different axes, but {tuple(axes)} names one axis twice.")
    if not found:
        raise ShapeError(
            f"{op}: the transform needs at least one axis, but axes is {axes!r} and x has shape {x.shape}."
        )
    return found


def _checked_lengths(op: str, x: Tensor, s: Any, axes: Shape, last: int | None = None) -> Shape:
    """Return the length of the transform along each of ``axes``: the item of ``s``, or the length of ``x``.

    A length of None or -1 in ``s`` is the default, too.  ``last``, if not None, is the default for the last
    of ``axes``.
    """
    given = [None] * len(axes) if s is None else list(s) if isinstance(s, (tuple, list)) else None
    if given is None or len(given) != len(axes):
        raise ArgumentError(f"{op}: s must have {len(axes)} lengths, one per axis, but is {s!r}.")
    lengths = []
    for i, (n, a) in enumerate(zip(given, axes, strict=True)):
        if n is None or n == -1:
            n = last if last is not None and i == len(axes) - 1 else x.shape[a]
        n = operator.index(n)
        if n < 1:
            raise ArgumentError(
                f"{op}: the transform must have a length of at least 1, but the length along axis {a} of "
                f"shape {x.shape} is {n}."
            )
        lengths.append(n)
    return tuple(lengths)


def _complex_input(op: str, x: Any) -> Tensor:
    x = asarray(x)
    return rec.astype(x, dtype=np.dtype(np.float64)) if x.dtype.kind in "biu" else x


def _real_input(op: str, x: Any) -> Tensor:
    x = _complex_input(op, x)
    if x.dtype.kind == "c":
        raise DTypeError(
            f"{op}: x must be real, but has dtype {x.dtype}.  Use fft.{op.lstrip('rih')} for complex numbers."
        )
    return x


def _complex_transform(op: str, x: Any, s: Any, axes: Any, norm: Any, inverse: bool) -> Tensor:
    x = _complex_input(op, x)
    where = _checked_axes(op, x, s, axes)
    n = _checked_lengths(op, x, s, where)
    return rec.fftn(x, n=n, axes=where, norm=_checked_norm(op, norm), inverse=inverse)


def _to_half(op: str, x: Any, s: Any, axes: Any, norm: Any) -> Tensor:
    x = _real_input(op, x)
    where = _checked_axes(op, x, s, axes)
    n = _checked_lengths(op, x, s, where)
    return rec.rfftn(x, n=n, axes=where, norm=_checked_norm(op, norm))


def _from_half(op: str, x: Any, s: Any, axes: Any, norm: Any) -> Tensor:
    x = _complex_input(op, x)
    where = _checked_axes(op, x, s, axes)
    n = _checked_lengths(op, x, s, where, last=2 * (x.shape[where[-1]] - 1))
    return rec.irfftn(x, n=n, axes=where, norm=_checked_norm(op, norm))


def _one(n: Any) -> Any:
    return None if n is None else (n,)


_axis_doc = SharedDoc("""
    Parameters
    ----------
    x : array_like
        The argument.
    axis : int, optional
        The axis.
    axes : tuple of int, optional
        The axes; by default the last ``len(s)``, or all.
    norm : str, optional
        The scaling, as in ``fft``.
    """)
_spectrum_doc = _axis_doc.extended("""
    Parameters
    ----------
    n : int, optional
        The length of the transform, to which the input is truncated or padded with zeros.
    s : sequence of int, optional
        The lengths of the transform, to which the input is truncated or padded with zeros.

    Returns
    -------
    Tensor
        The transform, complex.
    """)
_half_spectrum_doc = _spectrum_doc.extended("""
    Parameters
    ----------
    x : array_like
        The argument, real.

    Returns
    -------
    Tensor
        The transform, complex: the first ``n // 2 + 1`` terms along the last of the axes.

    Raises
    ------
    DTypeError
        If ``x`` is complex.
    """)
_real_doc = _axis_doc.extended("""
    Parameters
    ----------
    n : int, optional
        The length of the result; by default ``2 * (x.shape[axis] - 1)``.
    s : sequence of int, optional
        The lengths of the result.

    Returns
    -------
    Tensor
        The inverse transform, real.
    """)
_hermitian_doc = _real_doc.extended("""
    Parameters
    ----------
    x : array_like
        The first half of the signal, along the last of the axes.
    axes : int or tuple of int, optional
        The axes; by default all, or the last ones for ``s``.

    Returns
    -------
    Tensor
        The transform, real.
    """)
_two_axes_doc = SharedDoc("""
    Parameters
    ----------
    axes : tuple of int, optional
        The two axes.
    """)


@_spectrum_doc
def fft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """Return the discrete Fourier transform along an axis.

    Parameters
    ----------
    norm : {"backward", "ortho", "forward"}, optional
        Whether 1/n scales the inverse (the default), 1/√n both, or 1/n the forward transform.

    >>> ad.fft.fft(ad.tensor([1.0, 0.0, 0.0, 0.0])).real
    tensor([1., 1., 1., 1.], dtype=float64)
    """
    return _complex_transform("fft", x, _one(n), (axis,), norm, False)


@_spectrum_doc
def ifft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """Return the inverse of ``fft``.

    >>> ad.fft.ifft(ad.fft.fft([1.0, 2.0])).real
    tensor([1., 2.], dtype=float64)
    """
    return _complex_transform("ifft", x, _one(n), (axis,), norm, True)


@_spectrum_doc
def fftn(x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = None, norm: str | None = None) -> Tensor:
    """Return the discrete Fourier transform along several axes.

    >>> ad.fft.fftn(ad.ones((2, 2))).real
    tensor([[4., 0.],
            [0., 0.]], dtype=float64)
    """
    return _complex_transform("fftn", x, s, axes, norm, False)


@_spectrum_doc
def ifftn(x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = None, norm: str | None = None) -> Tensor:
    """Return the inverse of ``fftn``.

    >>> ad.fft.ifftn([[4.0, 0.0], [0.0, 0.0]]).real
    tensor([[1., 1.],
            [1., 1.]], dtype=float64)
    """
    return _complex_transform("ifftn", x, s, axes, norm, True)


@_spectrum_doc
@_two_axes_doc
def fft2(
    x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = (-2, -1), norm: str | None = None
) -> Tensor:
    """Return the discrete Fourier transform along two axes.

    >>> ad.fft.fft2(ad.ones((2, 2))).real
    tensor([[4., 0.],
            [0., 0.]], dtype=float64)
    """
    return _complex_transform("fft2", x, s, axes, norm, False)


@_spectrum_doc
@_two_axes_doc
def ifft2(
    x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = (-2, -1), norm: str | None = None
) -> Tensor:
    """Return the inverse of ``fft2``.

    >>> ad.fft.ifft2([[4.0, 0.0], [0.0, 0.0]]).real
    tensor([[1., 1.],
            [1., 1.]], dtype=float64)
    """
    return _complex_transform("ifft2", x, s, axes, norm, True)


@_half_spectrum_doc
def rfft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """Return the Fourier transform of real input along an axis.

    Returns
    -------
    Tensor
        The first ``n // 2 + 1`` terms, complex; the others are their mirror images.

    >>> ad.fft.rfft([1.0, 0.0, 0.0, 0.0]).real
    tensor([1., 1., 1.], dtype=float64)
    """
    return _to_half("rfft", x, _one(n), (axis,), norm)


@_real_doc
def irfft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """Return the inverse of ``rfft``.

    >>> ad.fft.irfft([1.0, 1.0, 1.0])
    tensor([1., 0., 0., 0.], dtype=float64)
    """
    return _from_half("irfft", x, _one(n), (axis,), norm)


@_half_spectrum_doc
def rfftn(x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = None, norm: str | None = None) -> Tensor:
    """Return the Fourier transform of real input along several axes.

    >>> ad.fft.rfftn(ad.ones((3, 4))).shape
    (3, 3)
    """
    return _to_half("rfftn", x, s, axes, norm)


@_real_doc
def irfftn(
    x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = None, norm: str | None = None
) -> Tensor:
    """Return the inverse of ``rfftn``.

    >>> ad.fft.irfftn(ad.fft.rfftn(ad.ones((3, 4)))).shape
    (3, 4)
    """
    return _from_half("irfftn", x, s, axes, norm)


@_half_spectrum_doc
@_two_axes_doc
def rfft2(
    x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = (-2, -1), norm: str | None = None
) -> Tensor:
    """Return the Fourier transform of real input along two axes.

    >>> ad.fft.rfft2(ad.ones((3, 4))).shape
    (3, 3)
    """
    return _to_half("rfft2", x, s, axes, norm)


@_real_doc
@_two_axes_doc
def irfft2(
    x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = (-2, -1), norm: str | None = None
) -> Tensor:
    """Return the inverse of ``rfft2``.

    >>> ad.fft.irfft2(ad.fft.rfft2(ad.ones((3, 4)))).shape
    (3, 4)
    """
    return _from_half("irfft2", x, s, axes, norm)


@_hermitian_doc
def hfft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """Return the Fourier transform of a signal with Hermitian symmetry.

    Parameters
    ----------
    x : array_like
        The first half of the signal.

    >>> ad.fft.hfft([1.0, 1.0, 1.0])
    tensor([4., 0., 0., 0.], dtype=float64)
    """
    return _hermitian("hfft", x, _one(n), (axis,), norm)


@_half_spectrum_doc
def ihfft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """Return the inverse of ``hfft``.

    >>> ad.fft.ihfft([4.0, 0.0, 0.0, 0.0]).real
    tensor([1., 1., 1.], dtype=float64)
    """
    return rec.conj(_to_half("ihfft", x, _one(n), (axis,), _DUAL[_checked_norm("ihfft", norm)]))


@_hermitian_doc
def hfftn(x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = None, norm: str | None = None) -> Tensor:
    """Return the Fourier transform over several axes of a signal with Hermitian symmetry.

    >>> ad.fft.hfftn(ad.ones((2, 3)))
    tensor([[8., 0., 0., 0.],
            [0., 0., 0., 0.]], dtype=float64)
    """
    return _hermitian("hfftn", x, s, axes, norm)


@_hermitian_doc
@_two_axes_doc
def hfft2(
    x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = (-2, -1), norm: str | None = None
) -> Tensor:
    """Return the Fourier transform over two axes of a signal with Hermitian symmetry.

    >>> ad.fft.hfft2(ad.ones((2, 3))).shape
    (2, 4)
    """
    return _hermitian("hfft2", x, s, axes, norm)


@_half_spectrum_doc
def ihfftn(
    x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = None, norm: str | None = None
) -> Tensor:
    """Return the inverse of ``hfftn``.

    Parameters
    ----------
    axes : int or tuple of int, optional
        The axes; by default all, or the last ones for ``s``.

    >>> ad.fft.ihfftn(ad.fft.hfftn(ad.ones((2, 3)))).real
    tensor([[1., 1., 1.],
            [1., 1., 1.]], dtype=float64)
    """
    return rec.conj(_to_half("ihfftn", x, s, axes, _DUAL[_checked_norm("ihfftn", norm)]))


@_half_spectrum_doc
@_two_axes_doc
def ihfft2(
    x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = (-2, -1), norm: str | None = None
) -> Tensor:
    """Return the inverse of ``hfft2``.

    >>> ad.fft.ihfft2(ad.ones((2, 4))).shape
    (2, 3)
    """
    return rec.conj(_to_half("ihfft2", x, s, axes, _DUAL[_checked_norm("ihfft2", norm)]))


def _hermitian(op: str, x: Any, s: Any, axes: Any, norm: Any) -> Tensor:
    return _from_half(op, rec.conj(_complex_input(op, x)), s, axes, _DUAL[_checked_norm(op, norm)])
