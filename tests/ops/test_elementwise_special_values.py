"""Elementwise ops at 0, -0, inf, NaN, ties, huge and subnormal numbers: values, gradients, zero cotangents."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from table import OP_NAMES

import adjoint as ad
from adjoint.core.op import OPS
from adjoint.testing import gradcheck
from adjoint.testing.cases import cases

INF, NAN, TINY, HUGE = np.inf, np.nan, 5e-324, 1e308
VALUES = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, INF, -INF, NAN, TINY, -TINY, 1e-200, HUGE, -HUGE])

# Elementwise ops without parameters, built in, on float numbers.
NAMES = [
    op.name
    for op in map(OPS.__getitem__, OP_NAMES)
    if op.kind == "elementwise" and not op.params and op.domain != "int" and op.arity in (1, 2)
]  # fmt: skip
NUMPY = {name: getattr(np, name, None) for name in NAMES}
UFUNCS = {**{n: f for n, f in NUMPY.items() if f is not None}, "sinc": np.sinc}
SMOOTH = [name for name in NAMES if OPS[name].differentiable]


def arguments(name):
    """All special values, or all pairs of them."""
    if OPS[name].arity == 1:
        return (VALUES,)
    if name == "ldexp":
        return VALUES, np.array(3)
    x, y = np.array(list(itertools.product(VALUES, VALUES))).T
    return x, y


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", UFUNCS)
def test_values_are_numpys(name, dtype):
    with np.errstate(all="ignore"):
        args = tuple(a.astype(dtype) if a.dtype.kind == "f" else a for a in arguments(name))
        ours = getattr(ad, name)(*map(ad.tensor, args))
        theirs = np.asarray(UFUNCS[name](*args))
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours.numpy(), theirs)
    if theirs.dtype.kind == "f":
        number = ~np.isnan(theirs)
        np.testing.assert_array_equal(np.signbit(ours.numpy())[number], np.signbit(theirs)[number])


def single(name, beyond):
    """Each special value, or pair of them, alone: together one could hide what another does.

    Without NaN: a NaN that was there before is passed on, by 0 · NaN too.
    """
    args = arguments(name)
    for values in zip(*(a.tolist() for a in np.broadcast_arrays(*args)), strict=True):
        if not np.isnan(values).any() and not (name in beyond and beyond[name](*values)):
            yield values


# inf/inf is NaN by itself, and saved; and where 1/x² overflows, the second derivative of log is infinite.
BEYOND = {
    "divide": lambda x, y: np.isinf(x) and np.isinf(y),
}
BEYOND_SECOND = {
    "divide": lambda x, y: BEYOND["divide"](x, y) or 0 < abs(y) < 1e-150,
    **dict.fromkeys(("log", "log2", "log10", "logit"), lambda x: 0 < abs(x) < 1e-300),
}


def leaves(values):
    return [ad.tensor([v], requires_grad=True) if isinstance(v, float) else ad.tensor([v]) for v in values]


def value(name, args):
    y = OPS[name].eager(*args)
    return y[0] if OPS[name].outputs > 1 else y


@pytest.mark.parametrize("name", SMOOTH)
def test_a_zero_cotangent_stays_zero(name):
    bad = []
    with np.errstate(all="ignore"):
        for values in single(name, BEYOND):
            args = leaves(values)
            wanted = [a for a in args if a.requires_grad]
            y = value(name, args)
            for i, g in enumerate(ad.gradients(y, wanted, np.zeros(1), allow_unused=True)):
                if g is not None and g.item() != 0:
                    bad.append((values, i, g.item()))
    assert not bad


@pytest.mark.parametrize("name", SMOOTH)
def test_a_branch_not_taken_has_no_gradient_to_the_second_order(name):
    """where(False, f(x), 2 x): the gradients of both orders are those of 2 x."""
    bad = []
    with np.errstate(all="ignore"):
        for values in single(name, BEYOND_SECOND):
            args = leaves(values)
            wanted = [a for a in args if a.requires_grad]
            chosen = ad.where(False, value(name, args), 2 * sum(wanted))
            first = ad.gradients(chosen, wanted, create_graph=True)
            total = sum(first)
            second = [None] * len(wanted)  # of what is linear
            if total.requires_grad:
                second = ad.gradients(total, wanted, allow_unused=True)
            for i, (g, gg) in enumerate(zip(first, second, strict=True)):
                if g.item() != 2 or (gg is not None and gg.item() != 0):
                    bad.append((values, i, g.item(), gg if gg is None else gg.item()))
    assert not bad


# Gradients at corners, poles and far out: op, arguments, gradients for a cotangent of 1.
CORNERS = [
    ("abs", (0.0,), (0,)),
    ("abs", (-0.0,), (0,)),
    ("acosh", (1.0,), (INF,)),
    ("acosh", (1e200,), (1e-200,)),
    ("asin", (1.0,), (INF,)),
    ("asin", (1 - 2**-53,), (2.0**26,)),
    ("asinh", (1e200,), (1e-200,)),
    ("atan2", (0.0, 0.0), (0, 0)),
    ("atan2", (1e-200, 1e-200), (5e199, -5e199)),
    ("atan2", (1e200, 1e200), (5e-201, -5e-201)),
    ("atanh", (1.0,), (INF,)),
    ("cbrt", (0.0,), (INF,)),
    ("copysign", (0.0, -1.0), (0, 0)),
    ("copysign", (2.0, -0.0), (-1, 0)),
    ("divide", (1.0, 0.0), (INF, -INF)),
    ("exp", (-INF,), (0,)),
    ("expm1", (-50.0,), (np.exp(-50.0),)),
    ("fmax", (NAN, 1.0), (0, 1)),
    ("fmax", (1.0, NAN), (1, 0)),
    ("fmax", (1.0, 1.0), (0.5, 0.5)),
    ("fmin", (NAN, 1.0), (0, 1)),
    ("fmod", (-7.0, 3.0), (1, 2)),
    ("heaviside", (0.0, 0.5), (0, 1)),
    ("heaviside", (1.0, 0.5), (0, 0)),
    ("hypot", (0.0, 0.0), (0, 0)),
    ("hypot", (3e200, 4e200), (0.6, 0.8)),
    ("hypot", (INF, 1.0), (1, 0)),
    ("hypot", (2.0, -INF), (0, -1)),
    ("hypot", (-INF, INF), (-(0.5**0.5), 0.5**0.5)),
    ("hypot", (NAN, INF), (0, 1)),
    ("atan2", (0.0, 0.0), (0, 0)),
    ("atan2", (INF, 1.0), (0, 0)),
    ("atan2", (1.0, INF), (0, 0)),
    ("log", (0.0,), (INF,)),
    ("log1p", (-1.0,), (INF,)),
    ("logaddexp", (-INF, -INF), (0.5, 0.5)),
    ("logaddexp", (INF, INF), (0.5, 0.5)),
    ("logaddexp", (-INF, 0.0), (0, 1)),
    ("logaddexp", (1e10, 1e10), (0.5, 0.5)),
    ("logaddexp2", (-INF, -INF), (0.5, 0.5)),
    ("maximum", (2.0, 2.0), (0.5, 0.5)),
    ("maximum", (NAN, 2.0), (1, 1)),
    ("minimum", (-0.0, 0.0), (0.5, 0.5)),
    ("pow", (0.0, 0.0), (0, 0)),
    ("pow", (0.0, 1.0), (1, 0)),
    ("pow", (0.0, 2.0), (0, 0)),
    ("pow", (0.0, 0.5), (INF, 0)),
    ("pow", (0.0, -1.0), (-INF, -INF)),
    ("pow", (-2.0, 3.0), (12, NAN)),
    ("pow", (INF, 0.0), (0, INF)),
    ("pow", (NAN, 0.0), (0, NAN)),
    ("reciprocal", (0.0,), (-INF,)),
    ("relu", (0.0,), (0,)),
    ("remainder", (-7.0, 3.0), (1, 3)),
    ("sigmoid", (1e3,), (0,)),
    ("sigmoid", (-INF,), (0,)),
    ("sign", (0.0,), (0,)),
    ("sinc", (0.0,), (0,)),
    ("sqrt", (0.0,), (INF,)),
    ("sqrt", (-1.0,), (NAN,)),
    ("square", (1e200,), (2e200,)),
    ("tanh", (INF,), (0,)),
]


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize(("name", "values", "expected"), CORNERS)
def test_gradients_at_corners(name, values, expected, create_graph):
    args = [ad.tensor(v, requires_grad=True) for v in values]
    with np.errstate(all="ignore"):
        grads = ad.gradients(getattr(ad, name)(*args), args, create_graph=create_graph)
    np.testing.assert_allclose([g.item() for g in grads], expected, rtol=1e-14)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, 0.0, 2.0])
def test_literal_and_tensor_exponents_agree(exponent):
    values = np.array([-2.0, -0.5, 0.0, 0.7, INF]) if exponent >= 0 else np.array([-2.0, 0.7, INF])
    found = []
    for n in (
        exponent,
        ad.tensor(float(exponent)),
        ad.tensor(exponent) if exponent >= 0 else ad.tensor(-1.0),
    ):
        x = ad.tensor(values, requires_grad=True)
        with np.errstate(all="ignore"):
            y = x**n
            (g,) = ad.gradients(y.sum(), [x], create_graph=True)
            (gg,) = ad.gradients(g.sum(), [x]) if g.requires_grad else (ad.zeros_like(x),)
        found.append((y.detach().numpy(), g.detach().numpy(), gg.numpy()))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_allclose(a[:-1], b[:-1], rtol=1e-15)  # at inf, 0 · inf may be NaN


def test_mixed_derivatives_of_pow():
    """d²(x^y)/dx dy = x^(y-1) (1 + y log x), at y = 0 too, whichever comes first."""
    for a, b in ((2.0, 0.0), (0.5, 0.0), (2.0, 1.0), (3.0, 2.0)):
        x, y = (ad.tensor(v, requires_grad=True) for v in (a, b))
        gx, gy = ad.gradients(x**y, [x, y], create_graph=True)
        expected = a ** (b - 1) * (1 + b * np.log(a))
        assert ad.gradients(gx, [y])[0].item() == pytest.approx(expected, rel=1e-14)
        assert ad.gradients(gy, [x])[0].item() == pytest.approx(expected, rel=1e-14)


def test_where_hides_every_trap():
    x = ad.tensor([-1.0, 0.0, 4.0], requires_grad=True)
    with np.errstate(all="ignore"):
        for f in (
            ad.sqrt,
            ad.log,
            lambda t: t**-1.5,
            lambda t: ad.log(ad.sqrt(t)),
            lambda t: t / t * ad.acosh(t),
        ):
            y = ad.where(x > 1, f(x), 0.0)
            (g,) = ad.gradients(y.sum(), [x], create_graph=True)
            (gg,) = ad.gradients(g.sum(), [x])
            (alone,) = ad.gradients(f(x[2]), [x], create_graph=True)
            np.testing.assert_array_equal(g.detach().numpy(), alone.detach().numpy())
            np.testing.assert_array_equal(gg.numpy(), ad.gradients(alone.sum(), [x])[0].numpy())


def test_where_hides_traps_of_broadcast_arguments():
    x = ad.tensor([-1.0, 0.0, 4.0], requires_grad=True)
    y = ad.tensor([[0.5], [-0.5]], requires_grad=True)
    with np.errstate(all="ignore"):
        z = ad.where(x > 1, x**y, 0.0)
        gx, gy = ad.gradients(z.sum(), [x, y], create_graph=True)
        second = ad.gradients(gx.sum() + gy.sum(), [x, y])
    np.testing.assert_allclose(gx.detach().numpy(), [0, 0, 0.25 - 0.0625])
    np.testing.assert_allclose(gy.detach().numpy(), np.log(4) * np.array([[2], [0.5]]))
    assert np.isfinite(second[0].numpy()).all() and not second[0].numpy()[:2].any()
    assert np.isfinite(second[1].numpy()).all()


def test_missing_values_can_be_masked_afterwards():
    target = ad.tensor([1.0, NAN, 3.0])
    for select in (
        lambda d: ad.where(ad.isnan(target), 0.0, d),
        lambda d: d[~ad.isnan(target)],
        ad.nan_to_num,
        lambda d: ad.fmin(d, 1e9 * ad.ones(3)),
    ):
        guess = ad.tensor([0.5, 0.5, 0.5], requires_grad=True)
        (g,) = ad.gradients(select((guess - target) ** 2).sum(), [guess], create_graph=True)
        assert g.tolist() == [-1, 0, -5]
        assert ad.gradients(g.sum(), [guess])[0].tolist() == [2, 0, 2]


# Choice with bounds ----------------------------------------------------------------------------


def test_clip():
    x = ad.tensor([-2.0, -1.0, 0.0, 1.0, 2.0, NAN], requires_grad=True)
    low, high = (ad.tensor(v, requires_grad=True) for v in (-1.0, 1.0))
    ad.clip(x, low, high).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [0, 1, 1, 1, 0, 0])
    assert (low.grad.item(), high.grad.item()) == (1, 1)
    np.testing.assert_array_equal(ad.clip(x, 1.0, -1.0).detach().numpy()[:-1], [-1] * 5)  # as NumPy does
    for kind in (np.float32, np.float16):
        assert ad.clip(ad.tensor(np.ones(2, kind)), 0, 0.5).dtype == kind
    whole = ad.clip(ad.tensor([1, 5, 9]), 2, 6)
    assert whole.tolist() == [2, 5, 6] and whole.dtype == np.int64
    assert ad.clip(x) is x
    with pytest.raises(ad.errors.DTypeError, match="clip: x must be real, but is complex"):
        ad.clip(ad.tensor(1j), 0, 1)


def test_nan_to_num():
    x = ad.tensor([1.0, NAN, INF, -INF], requires_grad=True)
    y = ad.nan_to_num(x)
    np.testing.assert_array_equal(y.detach().numpy(), np.nan_to_num(x.detach().numpy()))
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [1, 0, 0, 0])
    z = ad.tensor([complex(NAN, 1), complex(2, INF)], requires_grad=True)
    y = ad.nan_to_num(z, posinf=5.0)
    np.testing.assert_array_equal(y.detach().numpy(), [1j, 2 + 5j])
    (g,) = ad.gradients(y, [z], np.array([1 + 1j, 1 + 1j]))
    np.testing.assert_array_equal(g.numpy(), [1j, 1])


# Without a gradient ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in NAMES if not OPS[n].differentiable])
def test_a_gradient_only_through_steps_is_an_error(name):
    args = [ad.tensor([0.5, 2.0], requires_grad=True) for _ in range(OPS[name].arity)]
    y = OPS[name].eager(*args)
    assert not y.requires_grad and OPS[name].reason
    with pytest.raises(ad.errors.NoGradientError, match="does not require grad"):
        y.sum().backward()
    loss = (ad.astype(y, float) * ad.tensor(2.0, requires_grad=True)).sum()
    with pytest.raises(ad.errors.NoGradientError, match=r"no output depends on inputs\[0\]"):
        ad.gradients(loss, args[:1])


@pytest.mark.parametrize("name", ["sign", "floor", "ceil", "trunc", "rint", "round"])
def test_rounding_has_a_zero_gradient(name):
    x = ad.tensor([-1.5, 0.2, 2.0], requires_grad=True)
    getattr(ad, name)(x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [0, 0, 0])


def test_closeness():
    x = ad.tensor([1.0, INF, NAN])
    assert ad.isclose(x, [1 + 1e-9, INF, NAN]).tolist() == [True, True, False]
    assert ad.isclose(x, x, equal_nan=True).all()
    assert ad.isclose(x, 1.1, rtol=ad.tensor(0.2), atol=ad.tensor(0.0)).tolist() == [True, False, False]
    assert ad.allclose(x[:2], [1, INF]) is True
    assert ad.array_equal(x, x) is False and ad.array_equal(x, x, equal_nan=True) is True
    assert ad.array_equal([1.0], [1.0, 1.0]) is False
    assert np.allclose(x[:2], [1, INF])
    assert ad.isposinf(x).tolist() == [False, True, False]
    assert ad.isneginf(-x).tolist() == [False, True, False]
    assert ad.isreal(ad.tensor([1 + 0j, 1j])).tolist() == [True, False]
    assert ad.iscomplex([1 + 0j, 1j]).tolist() == [False, True]


def test_round_is_numpys():
    x = np.array([1.005, 2.675, -1234.5678, 0.5, 1.5, 2.5])
    for decimals in (0, 1, 2, 10, -1, -2):
        np.testing.assert_array_equal(ad.round(x, decimals).numpy(), np.round(x, decimals))
    assert ad.round(ad.tensor([14, 15, 25]), -1).tolist() == [10, 20, 20]
    with pytest.raises(ad.errors.InputError, match="decimals must be an integer"):
        ad.round(x, 1.5)


def test_numpys_ufuncs_give_tensors():
    x = ad.tensor([0.5, 2.0], requires_grad=True)
    for theirs in (np.degrees, np.radians, np.fabs, np.float_power, np.divmod, np.sign, np.cbrt, np.exp2,
                   np.logaddexp, np.hypot, np.copysign, np.fmax, np.fmod, np.heaviside, np.arctan2):  # fmt: skip
        y = theirs(*(x,) * theirs.nin)
        expected = theirs(*(x.detach().numpy(),) * theirs.nin)
        for a, b in zip(
            y if theirs.nout > 1 else [y], expected if theirs.nout > 1 else [expected], strict=True
        ):
            assert a.requires_grad
            np.testing.assert_array_equal(a.detach().numpy(), b)
    for theirs in (np.sinc, np.nan_to_num, np.angle, np.real, np.imag):
        np.testing.assert_array_equal(theirs(x).detach().numpy(), theirs(x.detach().numpy()))


def test_modf_and_frexp():
    values = np.array([-2.5, -2.0, -0.0, 0.75, 6.0, INF, -INF, TINY, HUGE])
    x = ad.tensor(values, requires_grad=True)
    for name in ("modf", "frexp"):
        for a, b in zip(getattr(np, name)(x), getattr(np, name)(values), strict=True):
            np.testing.assert_array_equal(a.detach().numpy(), b)
            np.testing.assert_array_equal(np.signbit(a.detach().numpy()), np.signbit(b))
    ad.modf(x)[0].sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), 1)
    (g,) = ad.gradients(ad.frexp(x)[0], [x], np.ones(x.shape))
    np.testing.assert_array_equal(g.numpy()[:5], [0.25, 0.25, 1, 1, 0.125])
    assert not ad.spacing(x).requires_grad and not ad.frexp(x)[1].requires_grad


def test_integers_to_negative_powers():
    with pytest.raises(ad.errors.ArgumentError) as error:
        ad.tensor([2, 4]) ** -1
    assert str(error.value) == (
        "pow: Integers to negative integer powers are not allowed.\n"
        "  The arguments are int64, int.  Convert one to float first: x.astype(float)."
    )
    np.testing.assert_array_equal(ad.float_power(ad.tensor([2, 4]), -1).numpy(), [0.5, 0.25])


# Higher orders ---------------------------------------------------------------------------------

FIRST_CASE = {case.op: case for case in reversed(cases())}


@pytest.mark.parametrize("name", [n for n in SMOOTH if n in FIRST_CASE])
def test_third_derivative_against_finite_differences(name):
    case = FIRST_CASE[name]
    floats = [i for i, a in enumerate(case.args) if np.asarray(a).dtype.kind == "f"]

    def function(*values):
        args = list(case.args)
        for i, v in zip(floats, values, strict=True):
            args[i] = v
        return OPS[name].eager(*args, **case.params)

    gradcheck(function, [case.args[i] for i in floats], order=3, directions=1)


@pytest.mark.parametrize(
    "function", [ad.hypot, ad.atan2, ad.abs, ad.linalg.vector_norm], ids=["hypot", "atan2", "abs", "norm"]
)
def test_where_a_corner_has_gradient_zero_higher_derivatives_are_zero_too(function):
    def f(t):
        if function in (ad.hypot, ad.atan2):
            return function(t, 0.0) + function(0.0, t) + function(t, 2 * t)
        return function(t) + function(t * (1 + 2j))

    for _ in range(3):
        f = ad.grad(f)
        assert f(ad.tensor(0.0)).item() == 0
