"""Fourier transforms: values of NumPy, gradients of real and complex input, messages."""

from __future__ import annotations

import numpy as np
import pytest

import adjoint as ad
from adjoint.errors import ArgumentError, DTypeError, InputError, ShapeError

RNG = np.random.default_rng(0)
NORMS = (None, "backward", "ortho", "forward")


def real(*shape):
    return RNG.standard_normal(shape)


def cplx(*shape):
    return real(*shape) + 1j * real(*shape)


def same(ours, theirs, tol=1e-12):
    theirs = np.asarray(theirs)
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=tol, atol=tol)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n", [None, 1, 4, 5, 6, 9])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_one_axis_is_numpy(name, n, norm):
    x = real(5, 3) if name in ("rfft", "ihfft") else cplx(5, 3)
    for axis in (0, -1):
        same(getattr(ad.fft, name)(x, n=n, axis=axis, norm=norm), getattr(np.fft, name)(x, n, axis, norm))


@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn", "fft2", "ifft2", "rfft2", "irfft2"])
def test_several_axes_are_numpy(name):
    x = real(4, 3, 5) if name.startswith("r") else cplx(4, 3, 5)
    ours, theirs = getattr(ad.fft, name), getattr(np.fft, name)
    same(ours(x), theirs(x))
    same(ours(x, s=(6, 2), axes=(0, 2)), theirs(x, s=(6, 2), axes=(0, 2)))
    same(ours(x, axes=(2, 0), norm="ortho"), theirs(x, axes=(2, 0), norm="ortho"))


def test_numpy_functions_take_tensors():
    x = ad.tensor(real(4, 5), requires_grad=True)
    for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fftn", "rfft2", "fftshift"):
        y = getattr(np.fft, name)(x)
        assert isinstance(y, ad.Tensor)
        assert y.requires_grad
        same(y.detach(), getattr(np.fft, name)(x.numpy()))


def test_integers_become_floats_and_float32_stays():
    same(ad.fft.fft(np.arange(4)), np.fft.fft(np.arange(4)))
    x = real(4).astype(np.float32)
    assert ad.fft.rfft(x).dtype == np.complex64
    assert ad.fft.irfft(ad.fft.rfft(x)).dtype == np.float32
    t = ad.tensor(x, requires_grad=True)
    ad.sum(ad.abs(ad.fft.fft(t)) ** 2).backward()
    assert t.grad.dtype == np.float32
    np.testing.assert_allclose(t.grad.numpy(), 8 * x, rtol=1e-5)  # Parseval: Σ|y|² = n Σx²


@pytest.mark.parametrize("n", [4, 5, 6, 7])
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_half_spectrum_there_and_back_is_the_identity(n, norm):
    x = ad.tensor(real(2, n), requires_grad=True)
    y = ad.fft.irfft(ad.fft.rfft(x, norm=norm), n=n, norm=norm)
    g = real(2, n)
    (dx,) = ad.gradients(y, [x], g)
    np.testing.assert_allclose(y.detach().numpy(), x.numpy(), atol=1e-12)
    np.testing.assert_allclose(dx.numpy(), g, atol=1e-12)


def jacobian_columns(f, x):
    """The real Jacobian of a linear map by its action on unit vectors (and i times them)."""
    units = np.eye(x.size).reshape(x.size, *x.shape)
    columns = [f(u.astype(x.dtype)) for u in units]
    if x.dtype.kind == "c":
        columns += [f(1j * u) for u in units]
    return np.stack([np.concatenate([c.real.ravel(), c.imag.ravel()]) for c in columns], axis=1)


@pytest.mark.parametrize(
    ("name", "shape", "n"),
    [
        (name, shape, n)
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
        for shape, n in (((4,), None), ((5,), None), ((4,), 7), ((5,), 3), ((4,), 1), ((2,), 8))
    ],
)
def test_gradient_is_the_transpose_of_the_linear_map(name, shape, n):
    x = real(*shape) if name in ("rfft", "ihfft") else cplx(*shape)
    theirs = lambda v: np.asarray(getattr(np.fft, name)(v, n))
    jacobian = jacobian_columns(theirs, x)
    t = ad.tensor(x, requires_grad=True)
    y = getattr(ad.fft, name)(t, n)
    g = cplx(*y.shape) if y.dtype.kind == "c" else real(*y.shape)
    (dx,) = ad.gradients(y, [t], g)
    expected = jacobian.T @ np.concatenate([g.real, g.imag])
    got = np.concatenate([dx.numpy().real, dx.numpy().imag]) if x.dtype.kind == "c" else dx.numpy()
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_shift_and_back():
    x = ad.tensor(real(4, 5), requires_grad=True)
    same(ad.fft.fftshift(x).detach(), np.fft.fftshift(x.numpy()))
    same(ad.fft.ifftshift(x, axes=1).detach(), np.fft.ifftshift(x.numpy(), axes=1))
    same(ad.fft.ifftshift(ad.fft.fftshift(x)).detach(), x.numpy())
    g = real(4, 5)
    (dx,) = ad.gradients(ad.fft.fftshift(x), [x], g)
    np.testing.assert_array_equal(dx.numpy(), np.fft.ifftshift(g))


def test_frequencies():
    for n in (1, 4, 5):
        same(ad.fft.fftfreq(n, 0.5), np.fft.fftfreq(n, 0.5))
        same(ad.fft.rfftfreq(n, 0.5), np.fft.rfftfreq(n, 0.5))
    assert ad.fft.fftfreq(4, dtype=np.float32).dtype == np.float32


def test_spectral_derivative_to_second_order():
    x = ad.tensor(np.sin(2 * np.pi * np.arange(8) / 8), requires_grad=True)
    k = 2j * np.pi * ad.fft.fftfreq(8, 1 / 8)
    slope = ad.fft.ifft(k * ad.fft.fft(x)).real
    (g,) = ad.gradients(ad.sum(slope**2), [x], create_graph=True)
    v = real(8)
    (hv,) = ad.gradients(ad.sum(g * v), [x])
    matrix = np.fft.ifft(k.numpy()[:, None] * np.fft.fft(np.eye(8), axis=0), axis=0).real
    np.testing.assert_allclose(hv.numpy(), 2 * matrix.T @ matrix @ v, atol=1e-9)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ad.fft.fft(np.ones(3), norm="half"), ArgumentError,
         'fft: norm must be "backward", "ortho" or "forward", not \'half\'.'),
        (lambda: ad.fft.fft(np.ones(3), n=0), ArgumentError,
         "fft: the transform must have a length of at least 1, but the length along axis -1 of shape (3,) is 0."),
        (lambda: ad.fft.irfft(np.ones(1)), ArgumentError,
         "irfft: the transform must have a length of at least 1, but the length along axis -1 of shape (1,) is 0."),
        (lambda: ad.fft.fft(np.ones(3), axis=1), ShapeError,
         "fft: axis 1 is out of range: a 1-d tensor has axes -1 to 0."),
        (lambda: ad.fft.fft(1.0), ShapeError, "fft: axis -1 is out of range: a 0-d tensor has no axes."),
        (lambda: ad.fft.fftn(1.0), ShapeError, "fftn: the transform needs at least one axis, but axes is range(0, 0) and x has shape ()."),
        (lambda: ad.fft.fftn(np.ones((2, 2)), axes=(0, -2)), ShapeError,
         "fftn: axes must be different axes, but (0, -2) names one axis twice."),
        (lambda: ad.fft.fftn(np.ones((2, 2)), s=(2,), axes=(0, 1)), ArgumentError,
         "fftn: s must have 2 lengths, one per axis, but is (2,)."),
        (lambda: ad.fft.fftn(np.ones((2, 2)), axes=1), InputError, "fftn: axes must be a tuple of axes, but got 1."),
        (lambda: ad.fft.rfft(np.ones(3) * 1j), DTypeError,
         "rfft: x must be real, but has dtype complex128.  Use fft.fft for complex numbers."),
        (lambda: ad.fft.fftfreq(0), ArgumentError, "fftfreq: n must be at least 1 and d must not be 0, but n is 0 and d is 1.0."),
    ],
)  # fmt: skip
def test_messages(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message
