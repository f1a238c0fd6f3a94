"""Sections that the docstrings of many ops share."""

from __future__ import annotations

from adjoint.core.docstrings import SharedDoc

__all__ = [
    "argument_doc", "extreme_doc", "flattened_doc", "images_doc", "matrices_doc", "mismatch_doc", "reduction_doc",
    "signals_doc", "square_doc", "truth_doc", "two_axes_doc", "volumes_doc",
]  # fmt: skip

argument_doc = SharedDoc("""
    Parameters
    ----------
    x : array_like
        The argument.
    axis : int, optional
        The axis.
    dtype : dtype, optional
        The dtype of the result.
    device : str, optional
        Accepted for the Array API; only ``"cpu"`` exists.
    requires_grad : bool, optional
        Whether the tensor requires grad.
    offset : int, optional
        The diagonal: 0 for the main one, positive numbers above, negative ones below.

    Returns
    -------
    Tensor
        {summary}
    """)
reduction_doc = argument_doc.extended("""
    Parameters
    ----------
    axis : int or tuple of int, optional
        Axes to reduce; all of them by default.
    keepdims : bool, optional
        Whether to keep the reduced axes with length 1.
    """)
flattened_doc = argument_doc.extended("""
    Parameters
    ----------
    axis : int, optional
        The axis; by default the flattened tensor is used.
    """)
matrices_doc = argument_doc.extended("""
    Parameters
    ----------
    x : array_like
        The matrices, in the last two axes.
    """)
two_axes_doc = matrices_doc.extended("""
    Raises
    ------
    ShapeError
        If ``x`` has fewer than two axes.
    """)
truth_doc = reduction_doc.extended("""
    Returns
    -------
    Tensor
        A tensor of bool, which has no gradient.
    """)
signals_doc = SharedDoc("""
    Parameters
    ----------
    x : array_like
        The signals, ``(N, C, L)`` or ``(C, L)``.
    """)
images_doc = SharedDoc("""
    Parameters
    ----------
    x : array_like
        The images, ``(N, C, H, W)`` or ``(C, H, W)``.
    """)
volumes_doc = SharedDoc("""
    Parameters
    ----------
    x : array_like
        The volumes, ``(N, C, D, H, W)`` or ``(C, D, H, W)``.
    """)
extreme_doc = reduction_doc.extended("""
    Raises
    ------
    ShapeError
        If there are no elements.
    """)
square_doc = matrices_doc.extended("""
    Raises
    ------
    ShapeError
        If the matrices are not square.
    """)
mismatch_doc = SharedDoc("""
    Raises
    ------
    ShapeError
        If the shapes do not match.
    """)
