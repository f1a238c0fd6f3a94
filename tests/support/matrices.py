"""Random matrices, and derivatives of functions of them."""

from __future__ import annotations

import numpy as np

import adjoint as ad

RNG = np.random.default_rng(0)


def real(*shape):
    return RNG.standard_normal(shape)


def cplx(*shape):
    return real(*shape) + 1j * real(*shape)


def hermitian(make, *shape):
    x = make(*shape)
    return x @ x.swapaxes(-1, -2).conj() + np.eye(shape[-1])


def same(ours, theirs, tol=1e-10):
    theirs = np.asarray(theirs)
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=tol, atol=tol)


def gradient(f, x):
    t = ad.tensor(x, requires_grad=True)
    (g,) = ad.gradients(f(t), [t])
    return g.numpy()


def hessian(f, x):
    """The matrix of second derivatives, row by row."""
    t = ad.tensor(x, requires_grad=True)
    (g,) = ad.gradients(f(t), [t], create_graph=True)
    rows = []
    for i in np.ndindex(x.shape):
        (row,) = ad.gradients(g[i], [t], retain_graph=True)
        rows.append(row.numpy().ravel())
    return np.array(rows)


def slope(f, x, h=1e-6):
    """The gradient of a function of arrays by central differences."""
    out = np.empty(x.shape)
    for i in np.ndindex(x.shape):
        d = np.zeros(x.shape)
        d[i] = h
        out[i] = (f(x + d) - f(x - d)) / (2 * h)
    return out
