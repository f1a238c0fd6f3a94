"""Sections that the docstrings of many layers and functions share."""

from __future__ import annotations

from adjoint.core.docstrings import SharedDoc

__all__ = ["layer_doc", "loss_doc", "matched_loss_doc"]

layer_doc = SharedDoc("""
    Parameters
    ----------
    x : array_like
        The input.
    eps : float
        Added to the variance.
    affine : bool
        Whether the module has a weight and a bias.
    bias : bool
        Whether the module has a bias.
    rng : Generator or int, optional
        Generator or seed of the initial values.
    dtype : dtype_like
        The dtype of the parameters.

    Returns
    -------
    Tensor
        The result, with the shape of x.
    """)
loss_doc = SharedDoc("""
    Parameters
    ----------
    prediction : array_like
        The output of a model.
    target : array_like
        The expected values, with the shape of the prediction.
    reduction : {"mean", "sum", "none"}
        How the losses of the elements are combined.

    Returns
    -------
    Tensor
        The loss; one per element with ``reduction="none"``.
    """)
matched_loss_doc = loss_doc.extended("""
    Raises
    ------
    ShapeError
        If the shapes differ.
    """)
