"""Linear algebra and Fourier transforms against PyTorch: values, gradients, double backward; real and complex.

Vectors of svd and eigh have a sign or phase of their own in each library: they are compared through
functions that do not depend on it.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from oracle import Make, Row, agree, complex_, real  # noqa: E402

import adjoint as ad  # noqa: E402

tl, al = torch.linalg, ad.linalg


def matrix(*shape: int, hermitian: bool = False, imaginary: bool = False) -> Make:
    """Matrices with well separated singular values, positive definite if Hermitian."""

    def make(rng):
        x = rng.standard_normal(shape)
        if imaginary:
            x = x + 1j * rng.standard_normal(shape)
        u, _, vh = np.linalg.svd(x, full_matrices=False)
        values = np.linspace(2.0, 0.5, min(shape[-2:]))
        if hermitian:
            vh = u.swapaxes(-1, -2).conj()
        y = (u * values) @ vh
        return (((y + y.swapaxes(-1, -2).conj()) / 2) if hermitian else y,)

    return make


def both(*makers: Make) -> Make:
    return lambda rng: tuple(a for make in makers for a in make(rng))


def rows(name, ours, theirs, *shapes, order=2, makers=None, **options):
    """A row with real and a row with complex arguments."""
    for imaginary, note in ((False, "real"), (True, "complex")):
        if makers is None:
            make = both(*(matrix(*s, imaginary=imaginary, **options) for s in shapes))
        else:
            make = makers(imaginary)
        label = "x".join(map(str, shapes[0])) if shapes else ""
        yield Row(name, ours, theirs, make, f"{label}-{note}", order, 1e-8, 1e-8)


def rhs(x_shape, y_shape):
    return lambda imaginary: both(
        matrix(*x_shape, imaginary=imaginary), complex_(y_shape) if imaginary else real(y_shape)
    )


def t_eigh(x):
    w, v = tl.eigh(x)
    return w, v[..., :1] @ v[..., :1].mH, v.abs()


def a_eigh(x):
    w, v = al.eigh(x)
    return w, v[..., :1] @ ad.conj(v[..., :1].mT), ad.abs(v)


def t_upper(x):
    w, v = tl.eigh(x, UPLO="U")
    return w, (v * torch.exp(w)[..., None, :]) @ v.mH


def a_upper(x):
    w, v = al.eigh(x, UPLO="U")
    return w, (v * ad.exp(w)[..., None, :]) @ ad.conj(v.mT)


def t_svd(x):
    u, s, vh = tl.svd(x, full_matrices=False)
    return s, u[..., :2] @ vh[..., :2, :], u.abs(), vh.abs()


def a_svd(x):
    u, s, vh = al.svd(x, full_matrices=False)
    return s, u[..., :2] @ vh[..., :2, :], ad.abs(u), ad.abs(vh)


# PyTorch's gradient of a complex Cholesky factor is not Hermitian, ours is: the two agree along Hermitian
# directions, so x is made Hermitian inside; and as its diagonal is real, only the real part is taken.
def t_cholesky(x, upper=False):
    y = tl.cholesky(x @ x.mH, upper=upper)
    diagonal = torch.diagonal(y, dim1=-2, dim2=-1)
    return torch.triu(y, 1) if upper else torch.tril(y, -1), diagonal.real if x.is_complex() else diagonal


def a_cholesky(x, upper=False):
    y = al.cholesky(x @ ad.conj(x.mT), upper=upper)
    below = np.tri(x.shape[-1], k=-1, dtype=bool)
    return ad.where(below.T if upper else below, y, 0), ad.real(al.diagonal(y))


def halves(imaginary):
    return complex_((4, 5)) if imaginary else real((4, 5))


SQUARES = ((3, 3), (2, 3, 3), (1, 1))
SHAPES = ((3, 3), (2, 4, 3), (3, 5))

ROWS = [
    *(r for s in SQUARES for r in rows("inv", al.inv, tl.inv, s)),
    *(r for s in SQUARES for r in rows("det", al.det, tl.det, s)),
    *(r for s in SQUARES for r in rows("slogdet", lambda x: al.slogdet(x)[1], lambda x: tl.slogdet(x)[1], s)),
    *rows("slogdet", lambda x: tuple(al.slogdet(x)), lambda x: tuple(tl.slogdet(x)), (3, 3), order=1),
    *(r for s in SHAPES for r in rows("pinv", al.pinv, tl.pinv, s)),
    *(r for s in SHAPES for r in rows("svd", a_svd, t_svd, s)),
    *(r for s in SHAPES for r in rows("svdvals", al.svdvals, tl.svdvals, s)),
    *(r for s in SHAPES[:2] for r in rows("qr", lambda x: tuple(al.qr(x)), lambda x: tuple(tl.qr(x)), s)),
    *(r for s in ((3, 5), (2, 2, 3)) for r in rows("qr", lambda x: tuple(al.qr(x)), lambda x: tuple(tl.qr(x)), s)),
    *(r for s in SQUARES[:2] for r in rows("eigh", a_eigh, t_eigh, s, hermitian=True)),
    *(r for s in SQUARES[:2] for r in rows("eigvalsh", al.eigvalsh, tl.eigvalsh, s, hermitian=True)),
    *(r for s in SQUARES for r in rows("cholesky", a_cholesky, t_cholesky, s, hermitian=True)),
    *rows("cholesky-upper", lambda x: a_cholesky(x, True), lambda x: t_cholesky(x, True), (3, 3), hermitian=True),
    *rows("solve", al.solve, tl.solve, makers=rhs((3, 3), (3, 2))),
    *rows("solve-vector", al.solve, tl.solve, makers=rhs((3, 3), (3,))),
    *rows("solve-batch", al.solve, tl.solve, makers=rhs((2, 3, 3), (4, 1, 3, 2))),
    *(
        r
        for lower in (False, True)
        for unit in (False, True)
        for r in rows(
            "solve_triangular",
            lambda x, y, lower=lower, unit=unit: al.solve_triangular(x, y, lower=lower, unit_diagonal=unit),
            lambda x, y, lower=lower, unit=unit: tl.solve_triangular(x, y, upper=not lower, unitriangular=unit),
            makers=rhs((2, 3, 3), (2, 3, 2)),
        )
    ),
    *(
        r
        for s in ((4, 3), (3, 3), (2, 4))
        for r in rows(f"lstsq {s}", lambda x, y: al.lstsq(x, y)[0], lambda x, y: tl.pinv(x) @ y, makers=rhs(s, (s[0], 2)))
    ),
    *(r for s in SQUARES[:2] for r in rows("eigh-upper", a_upper, t_upper, s, hermitian=True)),
    *(r for s in SQUARES[:2] for r in rows("eigvalsh-upper", lambda x: al.eigvalsh(x, "U"), lambda x: tl.eigvalsh(x, "U"), s, hermitian=True)),
    *(r for s in SQUARES[:2] for r in rows("pinv-hermitian", lambda x: al.pinv(x @ ad.conj(x.mT), hermitian=True), lambda x: tl.pinv(x @ x.mH, hermitian=True), s)),
    *rows("cond", al.cond, tl.cond, (3, 3)),
    *(
        r
        for n in (-2, 0, 1, 2, 5)
        for r in rows(f"matrix_power {n}", lambda x, n=n: al.matrix_power(x, n), lambda x, n=n: tl.matrix_power(x, n), (3, 3), order=1 if n == 0 else 2)
        if n
    ),
    *(
        r
        for ord in (2, 1, 3, 0.5, -1.5, float("inf"), -float("inf"))
        for r in rows(
            f"vector_norm {ord}",
            lambda x, ord=ord: al.vector_norm(x, ord=ord, axis=-1),
            lambda x, ord=ord: tl.vector_norm(x, ord, dim=-1),
            makers=halves,
        )
    ),
    *(
        r
        for ord in ("fro", "nuc", 1, -1, 2, -2, float("inf"), -float("inf"))
        for r in rows(
            f"matrix_norm {ord}", lambda x, ord=ord: al.matrix_norm(x, ord=ord), lambda x, ord=ord: tl.matrix_norm(x, ord), (2, 4, 3)
        )
    ),
    *rows("multi_dot", lambda *x: al.multi_dot(x), lambda *x: tl.multi_dot(x), (2, 3), (3, 4), (4, 2)),
    *rows("cross", al.cross, tl.cross, (2, 3), (2, 3)),
    *rows("vecdot", al.vecdot, tl.vecdot, (2, 3), (2, 3)),
    *rows("vdot", ad.vdot, torch.vdot, makers=lambda c: complex_((3,), (3,)) if c else real((3,), (3,))),
    *rows("inner", ad.inner, torch.inner, (2, 3), (4, 3)),
    *rows("tensordot", lambda x, y: ad.tensordot(x, y, axes=((0, 1), (1, 0))), lambda x, y: torch.tensordot(x, y, dims=((0, 1), (1, 0))), (2, 3, 4), (3, 2, 4)),
    *(
        r
        for text, *shapes in (
            ("ij,jk->ik", (2, 3), (3, 4)),
            ("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)),
            ("...ij,...kj->...ik", (2, 3, 4), (5, 4)),
            ("iij->ji", (3, 3, 2)),
            ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
            ("ij,ij->i", (2, 3), (2, 3)),
            ("ii", (3, 3)),
        )
        for r in rows(f"einsum {text}", lambda *x, text=text: ad.einsum(text, *x), lambda *x, text=text: torch.einsum(text, *x), *shapes)
    ),
]  # fmt: skip


def fft_rows():
    for name, kinds in (
        ("fft", "rc"),
        ("ifft", "rc"),
        ("rfft", "r"),
        ("irfft", "c"),
        ("hfft", "c"),
        ("ihfft", "r"),
    ):
        for kind in kinds:
            for n in (None, 4, 7, 3):
                for norm in ("backward", "ortho", "forward"):
                    yield Row(
                        name,
                        lambda x, name=name, n=n, norm=norm: getattr(ad.fft, name)(
                            x, n=n, axis=-2, norm=norm
                        ),
                        lambda x, name=name, n=n, norm=norm: getattr(torch.fft, name)(
                            x, n=n, dim=-2, norm=norm
                        ),
                        complex_((5, 2)) if kind == "c" else real((5, 2)),
                        f"{kind}-{n}-{norm}",
                    )
    for name, kind in (("fftn", "c"), ("ifftn", "r"), ("rfftn", "r"), ("irfftn", "c")):
        for s in (None, (3, 4), (6, 7)):
            yield Row(
                name,
                lambda x, name=name, s=s: getattr(ad.fft, name)(x, s=s, axes=(-3, -1)),
                lambda x, name=name, s=s: getattr(torch.fft, name)(x, s=s, dim=(-3, -1)),
                complex_((4, 2, 5)) if kind == "c" else real((4, 2, 5)),
                f"{kind}-{s}",
            )


@pytest.mark.oracle
@pytest.mark.parametrize("row", [*ROWS, *fft_rows()], ids=str)
def test_agrees_with_torch(row):
    agree(row)
