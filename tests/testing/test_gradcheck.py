"""gradcheck: it passes what is right, fails what is wrong, and says where."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import errors
from adjoint.core.define import define
from adjoint.testing import gradcheck, gradgradcheck

X = np.array([0.5, 1.0, -0.25])
Z = X + 1j * X[::-1]

# Rules that are wrong in one way each.
wrong_once = define(
    "test_wrong_once", np.square, lambda xp, g, y, x: g * 2 * x * xp.where(x > 0.9, 1.1, 1.0), saves="x"
)
wrong_nan = define("test_wrong_nan", np.square, lambda xp, g, y, x: g * np.nan)
wrong_inf = define("test_wrong_inf", np.square, lambda xp, g, y, x: g * np.inf)
# the second derivative is lost: the saved value is taken for a constant
wrong_second = define(
    "test_wrong_second",
    np.square,
    lambda xp, g, y, x: g * 2 * (x.detach() if isinstance(x, ad.Tensor) else x),
    saves="x",
)
# the real formula where the conjugate is needed
wrong_conjugate = define(
    "test_wrong_conjugate", np.square, lambda xp, g, y, x: g * 2 * x, saves="x", holomorphic=False
)
nan_forward = define("test_nan_forward", lambda x: x * np.nan, lambda xp, g, y, x: g)


def message(f: Any, inputs: Any, **options: Any) -> str:
    with pytest.raises(errors.GradcheckError) as caught:
        gradcheck(f, inputs, **options)
    assert gradcheck(f, inputs, raise_exception=False, **options) is False
    return str(caught.value)


# What is right ---------------------------------------------------------------------------------


@pytest.mark.parametrize("directions", [None, 2])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_right_functions_pass(order, directions):
    options: Any = {"order": order, "directions": directions}
    assert gradcheck(lambda x: ad.tanh(x) * ad.exp(x), X, **options)
    assert gradcheck(lambda a, b: a @ b, [np.ones((2, 3)), np.ones((3, 2))], **options)
    assert gradcheck(lambda x: x.sum(), X, **options)  # linear: the second derivative is zero
    assert gradcheck(lambda x, y: x * x, [X, X], **options)  # y has no influence
    assert gradcheck(lambda x: ad.tensor(X), X, **options)  # nor has x
    assert gradcheck(lambda z: ad.abs(z) * ad.conj(z) * ad.exp(z), Z, **options)
    assert gradcheck(lambda x: ad.exp(1j * x), X, **options)
    assert gradcheck(lambda z: (z * ad.conj(z)).real.sum(), Z, **options)


def test_the_complex_step_is_exact_to_the_last_digits():
    exact: Any = {"method": "complex", "atol": 1e-13, "rtol": 1e-13}
    f = lambda x: ad.tanh(x) * ad.exp(x) / (x * x + 1)
    assert gradcheck(f, X, order=3, **exact)
    assert gradcheck(f, X, directions=2, **exact)
    assert gradgradcheck(f, X, **exact)
    with pytest.raises(errors.GradcheckError, match="the complex step"):
        gradcheck(wrong_once, X, method="complex")


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0)])
def test_shapes_at_the_edge(shape):
    x = np.full(shape, 0.5)
    assert gradcheck(lambda x: x * x, x, order=2)
    assert gradcheck(lambda x: x * x, x, order=2, directions=1)


def test_inputs_of_every_kind():
    seen: list[Any] = []

    def f(*args: Any) -> ad.Tensor:
        seen.append(args)
        return args[0] * args[0]

    held = ad.tensor(X, requires_grad=True)
    constant, mask = ad.tensor(X), np.array([True, False])
    assert gradcheck(f, [held, constant, mask, 3, "word", None])
    assert all(a[1] is constant or a[1].tolist() == X.tolist() for a in seen)
    assert all(a[2] is mask and a[3:] == (3, "word", None) for a in seen)
    assert held.grad is None
    assert held.tolist() == X.tolist()
    assert gradcheck(f, 0.5)
    assert gradcheck(f, [[0.5, 1.0]])
    assert gradcheck(f, X.astype(">f8"))


def test_outputs_of_every_kind():
    assert gradcheck(lambda x: (x * x, x.sum(), x > 0, ad.argmax(x)), X, order=2)
    assert gradcheck(lambda x: [x * x], X)


def test_grad_outputs_may_be_given():
    assert gradgradcheck(ad.tanh, X, np.ones(3))
    assert gradgradcheck(lambda x: (x * x, x.sum()), X, [np.ones(3), np.array(2.0)])


# What is wrong ---------------------------------------------------------------------------------


def test_report_of_the_worst_element():
    assert message(wrong_once, X) == (
        "the derivative of output 0 with respect to inputs[0] disagrees with central differences at 1 of 9 "
        "elements.\n"
        "  Worst: d output[1] / d input[1]: analytic 2.2, numeric 2, difference 0.2 (allowed 0.00021).\n"
        "  The rule is wrong, or the function is not smooth within eps = 1e-06 of this input."
    )
    text = message(lambda x, y: (y, wrong_once(x.reshape(3, 1))), [2 * X, X])
    assert "of output 1 with respect to inputs[0]" in text
    assert "d output[1, 0] / d input[1]: analytic 4.4, numeric 4," in text
    assert "d output / d input: analytic 2.2, numeric 2," in message(wrong_once, 1.0)


def test_report_of_a_random_direction():
    text = message(wrong_once, X, directions=1)
    assert text.startswith(
        "the derivative with respect to inputs[0] of shape (3,) disagrees with central differences along "
        "random direction 0:\n  analytic "
    )
    assert text.endswith("Pass directions=None to compare each element and show the worst.")


@pytest.mark.parametrize("directions", [None, 1])
@pytest.mark.parametrize("f", [wrong_nan, wrong_inf, nan_forward])
def test_nan_and_inf_fail(f, directions):
    message(f, X, directions=directions)
    assert "There is a NaN" in message(wrong_nan, X, directions=directions)


def test_a_lost_second_derivative_is_found():
    assert gradcheck(wrong_second, X)
    text = message(wrong_second, X, order=2)
    assert text.startswith(
        "the second derivative (the derivative of gradient 0) with respect to inputs[0] disagrees"
    )
    assert "d gradient[1] / d input[1]: analytic 0, numeric" in text
    message(wrong_second, X, order=2, directions=1)
    with pytest.raises(errors.GradcheckError, match="the second derivative"):
        gradgradcheck(wrong_second, X)


def test_a_missing_conjugate_is_found_and_its_part_is_named():
    assert gradcheck(wrong_conjugate, X)
    text = message(wrong_conjugate, Z)
    assert ".imag" in text or ".real" in text
    message(wrong_conjugate, Z, directions=1)


def test_one_wrong_element_of_many_is_found_along_any_direction():
    x = np.linspace(0.0, 0.89, 2000)
    x[1234] = 1.0
    assert gradcheck(ad.square, x, directions=1)
    for seed in range(5):
        message(wrong_once, x, directions=1, seed=seed)


def test_a_function_that_is_not_repeatable():
    rng = np.random.default_rng(0)
    text = message(lambda x: x * rng.normal(), X)
    assert text.startswith("f returned a different result in a second call")


# What is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: gradcheck(ad.sin, X.astype(np.float32)), errors.DTypeError, "inputs[0] is float32"),
        (
            lambda: gradcheck(ad.sin, ad.tensor(X, dtype=np.float16, requires_grad=True)),
            errors.DTypeError,
            "x.astype(np.float64)",
        ),
        (
            lambda: gradcheck(lambda x: x.astype(np.float32), X),
            errors.DTypeError,
            "output 0 of f is float32",
        ),
        (lambda: gradcheck(ad.sin, ad.tensor(X)), errors.ArgumentError, "none of the inputs"),
        (lambda: gradcheck(ad.sin, []), errors.ArgumentError, "none of the inputs"),
        (lambda: gradcheck(lambda x: 3.0, X), errors.InputError, "output 0 is a float"),
        (lambda: gradcheck(ad.sin, X, method="forward"), errors.ArgumentError, "'central' or 'complex'"),
        (lambda: gradcheck(ad.sin, X, eps=0.0), errors.ArgumentError, "eps must be a positive number"),
        (lambda: gradcheck(ad.sin, X, order=0), errors.ArgumentError, "order must be at least 1"),
        (lambda: gradcheck(ad.sin, X, directions=0), errors.ArgumentError, "directions must be None or"),
        (lambda: gradcheck(ad.sin, Z, method="complex"), errors.ArgumentError, "requires real inputs"),
        (lambda: gradcheck(ad.abs, X, method="complex"), errors.ArgumentError, "f is not analytic"),
    ],
)
def test_what_cannot_be_checked_says_why(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)


# The rest of adjoint.testing -------------------------------------------------------------------


def run_python(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_hypothesis_is_imported_only_when_it_is_asked_for():
    assert run_python("import sys, adjoint.testing; print('hypothesis' in sys.modules)").strip() == "False"


def test_without_hypothesis_the_message_names_the_extra():
    out = run_python(
        "import sys; sys.modules['hypothesis'] = None\n"
        "import adjoint as ad\n"
        "try: ad.testing.strategies\n"
        "except ad.errors.MissingExtraError as error: print(error)"
    )
    assert out.strip() == (
        "adjoint.testing.strategies needs hypothesis.  Install it with: pip install '.[testing]' in a clone of adjoint, or pip install 'adjoint-ad[testing]' once it is published."
    )


def test_exports():
    assert set(ad.testing.__all__) <= set(dir(ad.testing)) | {"strategies"}
    assert ad.testing.strategies.__name__ == "adjoint.testing.strategies"
    with pytest.raises(AttributeError):
        _ = ad.testing.missing


def test_what_cannot_be_checked_is_named():
    with pytest.raises(ad.errors.InputError, match="expected a function, but got int"):
        ad.testing.gradcheck(3, np.ones(2))
    with pytest.raises(ad.errors.ArgumentError, match=r"none of the inputs \(dict\)"):
        ad.testing.gradcheck(lambda p: p["a"], {"a": np.ones(2)})
