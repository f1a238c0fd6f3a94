"""``adjoint.scipy.interpolate``: values against SciPy, derivatives in values, places and data."""

from __future__ import annotations

import numpy as np
import pytest
from on_tensors import on_tensors

import adjoint as ad
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.testing import gradcheck

si = pytest.importorskip("scipy.interpolate")
I = on_tensors(ad.scipy.interpolate)  # noqa: E741

RNG = np.random.default_rng(13)
X = np.array([0.0, 0.7, 1.5, 2.1, 3.4, 4.0])
Y = RNG.normal(size=6)
AT = np.array([[-0.4, 0.3, 0.7], [1.1, 3.9, 4.6]])
CONDITIONS = ["not-a-knot", "natural", "clamped", ((1, 0.5), (2, -0.3)), ("not-a-knot", (1, 2.0))]
close = lambda a, b: np.testing.assert_allclose(ad.asarray(a).numpy(), b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("n", [2, 3, 4, 6])
@pytest.mark.parametrize("bc", CONDITIONS, ids=str)
def test_cubic_spline(bc, n):
    x, y = X[:n], Y[:n]
    if n == 3 and bc == CONDITIONS[4]:
        pytest.skip("SciPy's own special cases")
    ours, theirs = I.CubicSpline(x, y, bc_type=bc), si.CubicSpline(x, y, bc_type=bc)
    close(ours.c, theirs.c)
    for nu in range(4):
        close(ours(AT, nu), theirs(AT, nu))
    close(ours.derivative()(AT), theirs.derivative()(AT))
    close(ours.antiderivative()(AT), theirs.antiderivative()(AT))
    close(ours.integrate(0.2, 3.0), theirs.integrate(0.2, 3.0))
    close(ours(AT, extrapolate=False), theirs(AT, extrapolate=False))
    inside = np.array([0.3, 0.5])
    f = lambda x, y, at: (
        I.CubicSpline(x, y, bc_type=bc)(at),
        I.CubicSpline(x, y, bc_type=bc).integrate(0.1, at[0]),
    )
    assert gradcheck(f, [x, y, inside], directions=2, order=2, rtol=1e-4)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_periodic_spline(n):
    y = np.append(Y[: n - 1], Y[0])
    ours, theirs = I.CubicSpline(X[:n], y, bc_type="periodic"), si.CubicSpline(X[:n], y, bc_type="periodic")
    close(ours.c, theirs.c)
    close(ours(3 * AT), theirs(3 * AT))
    close(ours.integrate(-3.0, 7.5), theirs.integrate(-3.0, 7.5))
    f = lambda x, y: I.CubicSpline(x, ad.concat([y, y[:1]]), bc_type="periodic")(np.array([0.3, 8.1]))
    assert gradcheck(f, [X[:n], y[:-1]], directions=2, order=2, rtol=1e-4)
    if n > 2:
        with pytest.raises(ArgumentError, match="must be equal"):
            I.CubicSpline(X[:n], Y[:n], bc_type="periodic")


@pytest.mark.parametrize("name", ["PchipInterpolator", "CubicHermiteSpline", "make_interp_spline", "linear"])
def test_other_polynomials(name):
    more = {"CubicHermiteSpline": (Y[::-1].copy(),), "linear": (1,)}.get(name, ())
    own = "make_interp_spline" if name == "linear" else name
    ours, theirs = getattr(I, own)(X, Y, *more), getattr(si, own)(X, Y, *more)
    close(ours(AT), theirs(AT))
    close(ours(AT, 1), theirs(AT, 1))
    close(
        ours.antiderivative()(AT[1]) - ours.antiderivative()(0.0),
        theirs.antiderivative()(AT[1]) - theirs.antiderivative()(0.0),
    )
    f = lambda x, y, at: getattr(I, own)(x, y, *more)(at)
    assert gradcheck(f, [X, Y, np.array([0.3, 1.1])], directions=2, order=2, rtol=1e-4)
    for table in (np.array([0.0, 0.0, 1.0, 1.0, 3.0, 2.0]), np.arange(6.0), Y * 0):
        close(getattr(I, own)(X, table, *more)(AT), getattr(si, own)(X, table, *more)(AT))
    for n in (2, 3):
        if own == "PchipInterpolator":
            close(I.PchipInterpolator(X[:n], Y[:n])(AT), si.PchipInterpolator(X[:n], Y[:n])(AT))


def test_several_values_axes_and_transforms():
    table = RNG.normal(size=(2, 6, 3))
    for kind in ("CubicSpline", "PchipInterpolator"):
        close(getattr(I, kind)(X, table, axis=1)(AT), getattr(si, kind)(X, table, axis=1)(AT))
    f = lambda y, at: I.CubicSpline(X, y)(at)
    rows = ad.vmap(f)(table[0].T, np.array([0.3, 1.1, 5.0]))
    close(rows, [si.CubicSpline(X, y)(t) for y, t in zip(table[0].T, [0.3, 1.1, 5.0], strict=True)])
    batch = ad.vmap(lambda x: I.CubicSpline(x, Y)(1.1))(np.stack([X, X + 0.1]))
    close(batch, [si.CubicSpline(X, Y)(1.1), si.CubicSpline(X + 0.1, Y)(1.1)])
    close(ad.compile(f)(Y, AT), si.CubicSpline(X, Y)(AT))
    close(
        ad.jvp(lambda at: I.CubicSpline(X, Y)(at), (AT,), (np.ones_like(AT),))[1], si.CubicSpline(X, Y)(AT, 1)
    )
    assert I.CubicSpline(X.astype(np.float32), Y.astype(np.float32))(np.float32(0.3)).dtype == np.float32


@pytest.mark.parametrize("kind", ["linear", "cubic", "nearest", "nearest-up", "zero", "previous", "next"])
def test_interp1d(kind):
    order = RNG.permutation(6)
    table = RNG.normal(size=(2, 6))
    at = np.array([0.0, 0.3, 0.7, 1.1, 1.8, 4.0])
    ours, theirs = I.interp1d(X[order], table[:, order], kind), si.interp1d(X[order], table[:, order], kind)
    close(ours(at), theirs(at))
    for fill in (0.5, (1.0, 2.0), "extrapolate"):
        options = {"bounds_error": False, "fill_value": fill}
        close(I.interp1d(X, Y, kind, **options)(AT), si.interp1d(X, Y, kind, **options)(AT))
    with pytest.raises(ArgumentError, match="outside of the range"):
        ours(AT)
    f = lambda x, y, at: I.interp1d(x, y, kind)(at)
    assert gradcheck(f, [X, Y, at[[1, 3]] + 0.02], directions=2, order=2, rtol=1e-4)


@pytest.mark.parametrize("method", ["linear", "nearest"])
def test_grids(method):
    grid = X, np.array([0.0, 1.0, 1.5]), np.array([-1.0, 2.0])
    values = RNG.normal(size=(6, 3, 2, 2))
    at = np.stack([RNG.uniform(0, 4, 7), RNG.uniform(0, 1.5, 7), RNG.uniform(-1, 2, 7)], -1)
    ours, theirs = (
        I.RegularGridInterpolator(grid, values, method),
        si.RegularGridInterpolator(grid, values, method),
    )
    close(ours(at), theirs(at))
    close(ours(at.reshape(7, 1, 3)), theirs(at.reshape(7, 1, 3)))
    close(I.interpn(grid, values, tuple(at.T), method), si.interpn(grid, values, tuple(at.T), method))
    out = at + np.array([3.0, 0.0, 0.0])
    for fill in (np.nan, 1.0, None):
        options = {"bounds_error": False, "fill_value": fill, "method": method}
        close(I.interpn(grid, values, out, **options), si.interpn(grid, values, out, **options))
    with pytest.raises(ArgumentError, match="outside of the grid"):
        ours(out)
    f = lambda v, at, x: I.interpn((x, *grid[1:]), v, at, method)
    assert gradcheck(f, [values, at, X], directions=2, order=2, rtol=1e-4)
    rows = ad.vmap(lambda v, at: I.interpn(grid, v, at, method), in_axes=(3, 0))(
        values, np.stack([at, at[::-1]])
    )
    close(rows[1], si.interpn(grid, values[..., 1], at[::-1], method))
    close(ad.compile(lambda v, at: I.interpn(grid, v, at, method))(values, at), theirs(at))
    close(I.interpn((X,), Y, np.array([0.2, 1.0])), si.interpn((X,), Y, np.array([0.2, 1.0])))


def test_mistakes():
    with pytest.raises(ArgumentError, match="x must be strictly increasing"):
        I.CubicSpline(X[::-1], Y)
    with pytest.raises(ShapeError, match="must have the same length, but have lengths 6 and 5"):
        I.PchipInterpolator(X, Y[:5])
    with pytest.raises(ArgumentError, match="bc_type must be 'not-a-knot'"):
        I.CubicSpline(X, Y, bc_type="free")
    with pytest.raises(InputError, match="k must be 1 or 3"):
        I.make_interp_spline(X, Y, k=5)
    with pytest.raises(InputError, match="kind must be one of"):
        I.interp1d(X, Y, "quintic")
    with pytest.raises(InputError, match="for tensors, method must be 'linear' or 'nearest'"):
        I.interpn((X,), Y, [0.1], method="pchip")
    with pytest.raises(ShapeError, match="must begin with that of the grid"):
        I.interpn((X, X), Y, [[0.1, 0.1]])
