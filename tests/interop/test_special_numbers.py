"""Zeros, ones and equal numbers in functions of NumPy and SciPy: libraries branch on them."""

from __future__ import annotations

import numpy as np
import public_functions
import pytest
import scipy.interpolate
import scipy.linalg
import scipy.signal
import scipy.spatial.distance
import scipy.stats

import adjoint as ad
from adjoint import errors

X = np.array([0.0, 1.0, 2.0])


@pytest.mark.filterwarnings("ignore:.lagrange. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("w", [(1, 2, 3), (1, 3, 2), (0, 1, 2), (0, 0, 0), (2, 2, 2)], ids=str)
def test_an_interpolating_polynomial_keeps_coefficients_that_are_zero(w):
    def value(w):
        return scipy.interpolate.lagrange(X, w)(1.5)

    w = np.array(w, float)
    np.testing.assert_allclose(value(ad.tensor(w, requires_grad=True)).item(), value(w))
    np.testing.assert_allclose(ad.grad(value)(w), [-0.125, 0.75, 0.375])
    np.testing.assert_allclose(
        ad.jacobian(lambda w: scipy.interpolate.lagrange(X, w).coeffs)(w)[0], [0.5, -1, 0.5]
    )


@pytest.mark.parametrize(
    "of",
    [
        lambda p, q: p + q,
        lambda p, q: p - 2 * q,
        lambda p, q: p * q,
        lambda p, q: (p * q).deriv() + p.integ(),
    ],
    ids=["+", "-", "*", "deriv"],
)
@pytest.mark.parametrize("w", [(0.0, 0.0, 1.0), (0.0, 2.0, 0.0), (1.0, 2.0, 3.0)], ids=str)
def test_polynomials_of_tensors(of, w):
    def value(w):
        return of(np.poly1d(w), np.poly1d([0.0, 3.0, 1.0]))(0.7) + of(np.poly1d([1.0, 2.0]), np.poly1d(w))(
            0.3
        )

    h = 1e-6
    slopes = [(value(w + h * e) - value(w - h * e)) / (2 * h) for e in np.eye(3)]
    np.testing.assert_allclose(ad.grad(value)(np.array(w)), slopes, rtol=1e-6)


def test_a_divisor_that_begins_with_zero_has_no_derivative():
    v = ad.tensor([0.0, 1.0, 2.0], requires_grad=True)
    with pytest.raises(errors.InputError) as info:
        np.polydiv(X, v)
    assert str(info.value) == (
        "np.polydiv: the leading coefficient of the divisor is 0, so the quotient has no derivative.\n"
        "  Pass the coefficients without it: v[1:]."
    )
    quotient, rest = np.polydiv(np.array([1.0, 2.0, 1.0]), ad.tensor([1.0, 1.0], requires_grad=True))
    assert quotient.requires_grad and rest.requires_grad and rest.tolist() == [0.0]


def test_other_code_that_drops_zeros_is_refused():
    with pytest.raises(errors.InputError) as info:
        scipy.signal.invres([1.0], [2.0], ad.tensor([0.0, 1.0], requires_grad=True))
    assert str(info.value) == (
        "invres of scipy drops coefficients that are 0, so their gradient would be lost.\n"
        "  Pass x.detach() if no gradient is needed."
    )


def test_a_compiled_polynomial():
    f = ad.compile(lambda w: (np.poly1d(w) * np.poly1d([1.0, 2.0]))(0.5))
    np.testing.assert_allclose(ad.grad(f)(np.zeros(2)), [1.25, 2.5])


def test_multiplying_drops_zeros_of_constants():
    w = ad.tensor([0.0, 1.0], requires_grad=True)
    assert np.polymul(np.array([0.0, 0.0, 2.0]), w).tolist() == [0.0, 2.0]
    assert np.polymul(w, np.array([0, 2, 1])).tolist() == [0.0, 2.0, 1.0]


DATA = np.array([1.0, 2.0, 4.0])
BRANCHES = {
    "boxcox_llf": (lambda p: scipy.stats.boxcox_llf(p, DATA), 0.0),
    "zscore": (lambda p: scipy.stats.zscore(DATA, ddof=p), 0.0),
    "norm": (lambda p: np.linalg.norm(DATA, p), 1.0),
    "scipy norm": (lambda p: scipy.linalg.norm(DATA, p), 2.0),
    "minkowski": (lambda p: scipy.spatial.distance.minkowski(DATA, X, p), 2.0),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_formulas_for_one_number_are_refused(name):
    f, number = BRANCHES[name]
    with pytest.raises(errors.LostHistoryError, match="would become a Python condition") as info:
        f(ad.tensor(number, requires_grad=True))
    assert name != "boxcox_llf" or "boxcox_llf has a formula of its own for this number." in str(info.value)
    f(ad.tensor(number))
    with ad.no_grad():
        f(ad.tensor(number, requires_grad=True))


def test_user_code_compares_numbers():
    p = ad.tensor(1.0, requires_grad=True)
    assert p == 1 and p == p and p != 2


# Where differences along one direction are not the derivative, or where a pole makes it NaN.
KNOWN = {
    "numpy.cbrt#0": "wrong: nan",  # it is infinite
    "numpy.median#0": "wrong",  # of equal numbers: each gets the same part
    "numpy.nanmedian#0": "wrong",
    "numpy.trim_zeros#0": "wrong",  # another shape
    "numpy.linalg.qr#0": "wrong",  # of a singular matrix
    "scipy.special.binom#1": "wrong: nan",
    "scipy.special.poch#0": "wrong: nan",
}


def test_public_functions_of_special_numbers():
    found = public_functions.special_outcomes()
    other = {k: v for k, v in found.items() if v not in ("right", "refused", "constant")}
    assert not {k: v for k, v in other.items() if not v.startswith(KNOWN.get(k.split(":")[0], "nothing"))}
    assert sum(v == "right" for v in found.values()) > 2000
