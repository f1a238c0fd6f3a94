"""A value leaves the graph only when somebody says so: conversions of recorded tensors raise."""

from __future__ import annotations

import math
import pickle
import re
from pathlib import Path

import numpy as np
import public_functions
import pytest
import scipy
import scipy.fft
import scipy.linalg
import scipy.optimize
import scipy.signal
import scipy.sparse.linalg
import scipy.special
import scipy.stats

import adjoint as ad
from adjoint import errors

X = np.array([1.0, 2.0])


def _items(x):
    out = np.zeros(2)
    for i in range(2):
        out[i] = x[i] ** 2
    return (out * x).sum()


def _diagonal(x):
    a = np.zeros((2, 2))
    np.fill_diagonal(a, x)
    return (a * x).sum()


LEAKS = {
    "np.array of a list": lambda x: (np.array([x[0] ** 2, x[1]]) * x).sum(),
    "np.sum of a list": lambda x: (x * np.sum([x, x])).sum(),
    "scipy.stats": lambda x: (x * scipy.stats.norm.logpdf(x)).sum(),
    "array[i] = x": _items,
    "np.full": lambda x: (np.full(2, x[0]) * x).sum(),
    "np.r_": lambda x: (np.r_[x, x] ** 2).sum(),
    "np.c_": lambda x: (np.c_[x, x] ** 2).sum(),
    "np.pad of an array": lambda x: (np.pad(np.ones(2), 1, constant_values=x[0])).sum(),
    "np.sum of an array": lambda x: np.sum(np.ones(2), initial=x[0]) * x[0],
    "np.select": lambda x: np.select([np.array([True, False])], [np.ones(2)], default=x[0]).sum(),
    "a sparse matrix": lambda x: scipy.sparse.linalg.spsolve(scipy.sparse.eye(2).tocsc(), x).sum(),
    "scipy.linalg": lambda x: scipy.linalg.cholesky(np.eye(2) * x[0]).sum(),
    "scipy.special.logsumexp": lambda x: scipy.special.logsumexp(x) * x[0],
    "scipy.fft": lambda x: ad.real(scipy.fft.fft(x)).sum(),
    "scipy.signal": lambda x: scipy.signal.convolve(x, x).sum(),
    "np.interp of arrays": lambda x: np.interp(-X, X, X, left=x[0]).sum() * x[0],
    "np.fill_diagonal": _diagonal,
    "np.vectorize": lambda x: np.vectorize(lambda v: v * 2)(x).sum(),
    "np.fromiter": lambda x: np.fromiter((v * 2 for v in x), float).sum() * x[0],
    "math.exp": lambda x: math.exp(x[0]) * x[0],
    "math.floor": lambda x: math.floor(x[0]) * x[0],
    "float": lambda x: float(x[0]) * x[0],
    "int": lambda x: int(x[0]) * x[0],
    "complex": lambda x: complex(x[0]).real * x[0],
    "ad.tensor": lambda x: (ad.tensor(x * x) * x).sum(),
    "ad.tensor of a list": lambda x: (ad.tensor([x[0], x[1]]) * x).sum(),
    "np.asarray": lambda x: (np.asarray(x) * x).sum(),
    "np.float64": lambda x: np.float64(x[0]) * x[0],
    "DLPack": lambda x: (np.from_dlpack(x) * x).sum(),
    "np.histogram": lambda x: np.histogram(x)[1].sum(),
    "nn.Parameter": lambda x: (ad.nn.Parameter(x) * x).sum(),
}
ONLY_INSIDE = {"np.fromiter", "np.float64", "math.exp", "math.floor", "float", "int", "complex"}


@pytest.mark.parametrize("name", LEAKS)
def test_inside_a_differentiated_function(name):
    for transform in (
        ad.grad(LEAKS[name]),
        lambda x: ad.jvp(LEAKS[name], (x,), (x,)),
        ad.hessian(LEAKS[name]),
    ):
        with pytest.raises(errors.AdjointError):
            transform(X)


@pytest.mark.parametrize("name", sorted(set(LEAKS) - ONLY_INSIDE))
def test_in_an_ordinary_program(name):
    x = ad.tensor(X, requires_grad=True)
    with pytest.raises((errors.AdjointError, ValueError)) as info:
        LEAKS[name](x)
    assert public_functions.is_ours(info.value)
    with ad.no_grad():
        LEAKS[name](x)
    LEAKS[name](x.detach())


@pytest.mark.parametrize("convert", [float, np.asarray, math.exp])
def test_inside_vmap(convert):
    w = ad.tensor(2.0, requires_grad=True)
    with pytest.raises(errors.LostHistoryError, match="the result of 'multiply'"):
        ad.vmap(lambda x: x * convert(w * 2))(X)

    def same_for_all(x):
        constant = ad.ones(()).requires_grad_().detach()  # a value of this vmap without a batch
        return x * convert(w * constant)

    with pytest.raises(errors.LostHistoryError, match=r"that depends on a graph outside of ad\.vmap"):
        ad.vmap(same_for_all)(X)


def test_the_message_names_the_op_the_line_and_the_cures():
    x = ad.tensor(X, requires_grad=True)
    with pytest.raises(errors.LostHistoryError) as info:
        np.sum([x * x, x])
    message = str(info.value)
    line = re.search(r"at (\S+):(\d+), ", message)
    assert line is not None and line[1] == __file__
    assert message.replace(line[0], "at here, ") == (
        "the result of 'multiply', of shape (2,), would become a NumPy array in numpy.sum at here, and its gradient would be lost.\n"
        "  Use functions that take tensors: ad.array or ad.stack for lists, np.f(x), ad.linalg, ad.special, "
        "adjoint.scipy, and ad.random for random numbers.\n"
        "  If no gradient is needed, use x.detach(), x.numpy() or x.item()."
    )


def test_the_message_names_the_function_of_the_library_that_asked():
    x = ad.tensor(X, requires_grad=True)
    pandas, cluster = pytest.importorskip("pandas"), pytest.importorskip("sklearn.cluster")
    for name, call in {
        "pandas.Series": lambda: pandas.Series(x),
        "sklearn.cluster.KMeans.fit": lambda: cluster.KMeans(1).fit(x[:, None]),
        "scipy.optimize.linprog": lambda: scipy.optimize.linprog(x),
        "numpy.ma.array": lambda: np.ma.array(x),
    }.items():
        with pytest.raises(errors.LostHistoryError) as info:
            call()
        assert f"would become a NumPy array in {name} at {__file__}:" in str(info.value)
    with pytest.raises(errors.LostHistoryError, match=rf"would become a NumPy array at {__file__}:"):
        np.asarray(x)


def test_the_message_calls_an_argument_an_argument():
    with pytest.raises(errors.LostHistoryError) as info:
        ad.grad(lambda x: math.exp(x) * x)(2.0)
    assert str(info.value).startswith("an argument of shape () would become a Python float at ")


def test_explicit_conversions_are_allowed():
    x = ad.tensor(X, requires_grad=True)
    y = x * 2
    assert y.numpy().tolist() == y.tolist() == np.asarray(y.detach()).tolist() == [2.0, 4.0]
    assert y[0].item() == 2.0 and f"{y[0]:.1f}" == "2.0" and "multiply" in str(y)
    assert float(y[0]) == 2.0 and int(y[1]) == 4 and math.sqrt(y[1]) == 2.0  # an ordinary loop logs its loss
    assert bool(y[0]) and (y[0] > 1)
    assert pickle.loads(pickle.dumps(y)).tolist() == [2.0, 4.0]

    def log(x):
        seen.append((x.sum().item(), x.tolist(), str(x), f"{x[0]:.2f}", bool(x[0] > 0)))
        return (x * x).sum()

    seen: list[object] = []
    assert ad.grad(log)(X).tolist() == [2.0, 4.0] and len(seen) == 1


def _clipped(clip):
    def f(x):
        p = ad.tensor([1.0, 2.0], requires_grad=True)
        p.grad = ad.grad(lambda w: (w**2 * x).sum())(p.detach())
        clip([p])
        return (p.grad * x).sum()

    return f


NORMS = {
    "global_norm": lambda x: x.sum() * ad.global_norm([x]),
    "clip_grad_norm": _clipped(lambda params: ad.clip_grad_norm(params, 1.0)),
    "clip_grad_value": _clipped(lambda params: ad.clip_grad_value(params, 1.0)),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_and_clipping_inside_a_differentiated_function(name):
    """Norms of gradients are Python numbers, and clipping treats them as constants."""
    with pytest.raises(errors.LostHistoryError, match="and its gradient would be lost"):
        ad.grad(NORMS[name])(np.array([3.0, 4.0]))
    assert np.isfinite(NORMS[name](ad.tensor([3.0, 4.0])).item())


def test_norms_inside_vmap_need_values():
    with pytest.raises(errors.InputError, match=r"global_norm\(\) needs the values of a tensor"):
        ad.vmap(lambda x: x * ad.global_norm([x]))(np.ones(3))


def _by_vjp():
    f = ad.custom_vjp(lambda x: x * x)
    f.defvjp(lambda x: (x * x, x), lambda x, g: (g * 2 * float(x),))
    return f


def _by_jvp():
    f = ad.custom_jvp(lambda x: x * x)
    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * 2 * float(primals[0])))
    return f


@pytest.mark.parametrize("make", [_by_vjp, _by_jvp])
def test_inside_a_recorded_rule(make):
    """A number has no history: the second derivative would be 0.  The first one does not need it."""
    f, x = make(), ad.tensor(3.0, requires_grad=True)
    assert ad.gradients(f(x), [x])[0].item() == ad.grad(f)(3.0) == 6.0
    for second in (lambda: ad.gradients(f(x), [x], create_graph=True), lambda: ad.grad(ad.grad(f))(3.0)):
        with pytest.raises(errors.LostHistoryError, match="would become a Python float"):
            second()


def test_what_a_tape_watches():
    x = ad.tensor(X)
    with ad.Tape() as tape:
        tape.watch(x)
        with pytest.raises(errors.LostHistoryError, match="that a tape watches would become a NumPy array"):
            np.array([x, x])
        y = (ad.array([x, x]) * x).sum()
    assert tape.gradients(y)[x].tolist() == [4.0, 8.0]


# Building arrays ---------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [ad.array, ad.asarray])
def test_nested_lists_differentiate(build):
    f = lambda x: (build([x[0] ** 2, x[1]]) * x).sum()
    assert ad.grad(f)(X).tolist() == [3.0, 4.0]
    g = lambda x: (build([[x[0], 1.0], (2, x[1] * x[0])]) * np.array([[1.0, 2.0], [3.0, 4.0]])).sum()
    assert ad.grad(g)(X).tolist() == [9.0, 4.0]
    assert ad.vmap(lambda x: build([x[1], x[0]]))(np.array([[1.0, 2.0], [3.0, 4.0]])).tolist() == [
        [2.0, 1.0],
        [4.0, 3.0],
    ]
    assert ad.hessian(g)(X).tolist() == [[0.0, 4.0], [4.0, 0.0]]
    x = ad.tensor(X, requires_grad=True)
    assert build([x, X]).shape == (2, 2) and build([x]).requires_grad
    with pytest.raises(
        errors.ShapeError, match=r"the nested list is ragged: its parts have shapes \(2,\), \(\)"
    ):
        build([x, x[0]])


def test_dtypes_of_lists():
    x = ad.tensor(np.float32(2.0), requires_grad=True)
    assert ad.array([x, 1.0, 2]).dtype == np.float32
    assert ad.array([x, np.float64(1.0)]).dtype == np.float64
    assert ad.array([x, 1], dtype=np.float64).dtype == np.float64
    assert ad.array([1, 2]).dtype == np.int64 and ad.array(3.0).shape == ()


def test_array_copies():
    x = ad.tensor(X)
    assert ad.array(x) is not x and ad.asarray(x) is x and ad.array(x, copy=False) is x


def test_ops_take_lists_of_recorded_tensors():
    assert ad.grad(lambda x: (x * ad.sum([x, x])).sum())(3.0).item() == 12.0


@pytest.mark.parametrize("f", [
    lambda x: np.sum(x, initial=x[0]) * x[1],
    lambda x: np.max(x, initial=x[0] + 3.0) * x[1],
    lambda x: (np.pad(x, 1, constant_values=x[0] * x[1]) ** 2).sum(),
    lambda x: (np.select([np.array([True, False])], [x], default=x[0] ** 2) * x).sum(),
    lambda x: (np.interp(np.array([-1.0, 0.5]), np.array([0.0, 1.0]), x, left=x[0] * x[1])).sum(),
    lambda x: (np.interp(np.array([2.0, 0.5]), np.array([0.0, 1.0]), x, right=x[0] * x[1])).sum(),
    lambda x: (np.nan_to_num(x, nan=x[0]) * x).sum(),
    lambda x: (np.full_like(x, x[0]) * x).sum(),
    lambda x: (np.where(X > 1, x, x[0]) * x).sum(),
    lambda x: (np.clip(x, x[0] * 1.5, None) * x).sum(),
    lambda x: np.linspace(x[0], x[1], 3).sum() * x[0],
])  # fmt: skip
def test_secondary_arguments_differentiate(f):
    h = 1e-6
    expected = [(f(ad.tensor(X + d)).item() - f(ad.tensor(X - d)).item()) / (2 * h) for d in h * np.eye(2)]
    np.testing.assert_allclose(ad.grad(f)(X), expected, rtol=1e-6)


@pytest.mark.parametrize("constant", [3.0, 3, np.float64(3.0), np.array(3.0)])
def test_a_constant_has_gradient_zero(constant):
    assert ad.grad(lambda x: constant)(X).tolist() == [0.0, 0.0]
    value, gradient = ad.value_and_grad(lambda x: constant)(X)
    assert float(value) == 3.0 and gradient.tolist() == [0.0, 0.0]
    assert ad.hessian(lambda x: constant)(X).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_a_result_that_is_no_number():
    with pytest.raises(errors.TransformError) as info:
        ad.grad(lambda x: True)(X)
    assert str(info.value) == (
        "grad: the result of <lambda> is a bool, not a tensor, an array or a number.\n"
        "  Return it as auxiliary data: pass has_aux=True, and return (result, aux)."
    )


# Every public function -----------------------------------------------------------------------------

# Errors of the functions themselves
KNOWN = {
    "scipy.special.lqmn#0": "raised",
    "scipy.special.lqmn#1": "raised",
}


POLYNOMIALS = [
    np.polynomial.polynomial.polyval,
    np.polynomial.polynomial.polyvalfromroots,
    np.polynomial.chebyshev.chebval,
    np.polynomial.hermite.hermval,
    np.polynomial.hermite_e.hermeval,
    np.polynomial.laguerre.lagval,
    np.polynomial.legendre.legval,
]


@pytest.mark.parametrize("evaluate", POLYNOMIALS)
@pytest.mark.parametrize("points", [(), (3,), (2, 3)])
@pytest.mark.parametrize("columns", [(), (1,), (3,)])
@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_polynomials_are_right_or_refused(evaluate, points, columns, degree):
    """They add axes to the coefficients only where x is an array."""
    rng = np.random.default_rng(degree)
    x, c = rng.normal(size=points), rng.normal(size=(degree, *columns))
    refused = points and (columns or evaluate is np.polynomial.polynomial.polyvalfromroots)
    for tensor in (ad.tensor(x), ad.tensor(x, requires_grad=True)):
        if refused:
            with pytest.raises(errors.InputError, match="treats a tensor as one number"):
                evaluate(tensor, c)
        else:
            np.testing.assert_allclose(ad.asarray(evaluate(tensor, c)).detach().numpy(), evaluate(x, c))


def test_polynomials_of_one_number_each():
    evaluate, roots = np.polynomial.polynomial.polyvalfromroots, np.arange(6.0).reshape(2, 3)
    x = ad.tensor([1.5, 2.5, 3.5], requires_grad=True)
    np.testing.assert_allclose(
        evaluate(x, roots, tensor=False).numpy(), evaluate(x.numpy(), roots, tensor=False)
    )
    slopes = ad.grad(lambda x: evaluate(x, [1.0, 2.0]))(3.0)
    assert slopes == 3.0  # of x² - 3x + 2
    for act in (lambda: evaluate(x, roots[0]), lambda: evaluate(x, roots)):
        with pytest.raises(errors.InputError) as info:
            act()
        assert str(info.value) == (
            "numpy.polynomial.polynomial.polyvalfromroots treats a tensor as one number, so its result would be "
            "wrong.\n  Evaluate one polynomial at a time with np.polyval(coefficients, x).  For roots use "
            "ad.prod(x[..., None] - roots, axis=-1)."
        )
    cure = ad.prod(x[..., None] - roots[0], axis=-1)
    np.testing.assert_allclose(cure.numpy(), evaluate(x.numpy(), roots[0]))


def test_public_functions_differentiate_or_refuse():
    found = public_functions.outcomes()
    other = {k: v for k, v in found.items() if v not in ("right", "refused", "constant")}
    unexpected = {k: v for k, v in other.items() if not v.startswith(KNOWN.get(k, "nothing"))}
    assert not unexpected
    count = public_functions.counts(found)
    print(dict(count))
    assert count["functions"] >= 900
    page = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text()
    versions = f"NumPy {np.__version__} and SciPy {scipy.__version__}"
    if versions in page:
        said = f"{count['functions']:,} functions, {sum(count.values()) - count['functions']:,} places"
        assert said in page, said
        for kind in ("right", "refused", "constant"):
            assert f"| {kind} | {count[kind]:,} |" in page, (kind, count[kind])
