"""Elementwise ops, special functions and losses in tails and corners against mpmath, to the second derivative.

The tables have a row per function; ``test_every_smooth_op_has_a_row`` names the ops that need none.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import adjoint as ad

mp = pytest.importorskip("mpmath")
pytest.importorskip("scipy")
pytestmark = pytest.mark.digits

from exact_functions import (  # noqa: E402
    erfcinv,
    erfcx,
    erfinv,
    gamma_gap,
    ive,
    jv,
    log_beta,
    log_normal,
    mills,
    normal,
)
from table import OP_NAMES  # noqa: E402
from tails import (  # noqa: E402
    Row,
    differs,
    exact_derivatives,
    exact_partials,
    our_derivatives,
    our_partials,
    rounded,
    samples,
)

from adjoint.core.op import OPS  # noqa: E402

F, S = ad.nn.functional, ad.special
INF = np.inf


def _positive(x: float) -> bool:
    return x > 0


def _not_zero(x: float) -> bool:
    return x != 0


def _not_pole(x: float) -> bool:
    """Where the gamma function is finite; beyond 1e15 every negative number is whole."""
    return x > 0 or (x > -1e15 and x != round(x))


def _logistic(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


def _softplus(x: Any) -> Any:
    return mp.log(1 + mp.exp(x))


def _large(x: Any) -> Any:
    return max(1, abs(x))


_PHASE = "the argument of exp is rounded"
_FROM_OUTPUT = "the rule keeps the output alone, whose distance to its limit has the absolute error eps"
_SCIPY = "SciPy's value"

# fmt: off
ROWS = {
    "reciprocal": Row(ad.reciprocal, lambda x: 1 / x, _not_zero, abs),
    "square": Row(ad.square, lambda x: x * x, scale=_large),
    "sqrt": Row(ad.sqrt, mp.sqrt, _positive, abs),
    "cbrt": Row(ad.cbrt, lambda x: mp.sign(x) * mp.cbrt(abs(x)), _not_zero, abs),
    "exp": Row(ad.exp, mp.exp),
    "exp2": Row(ad.exp2, lambda x: mp.mpf(2) ** x),
    "expm1": Row(ad.expm1, lambda x: mp.exp(x) - 1),
    "log": Row(ad.log, mp.log, _positive, abs),
    "log2": Row(ad.log2, lambda x: mp.log(x) / mp.log(2), _positive, abs),
    "log10": Row(ad.log10, lambda x: mp.log(x) / mp.log(10), _positive, abs),
    "log1p": Row(ad.log1p, lambda x: mp.log(1 + x), lambda x: x > -1, lambda x: 1 + x, points=(-1,)),
    "sin": Row(ad.sin, mp.sin),
    "cos": Row(ad.cos, mp.cos),
    "tan": Row(ad.tan, mp.tan),
    "asin": Row(ad.asin, mp.asin, lambda x: abs(x) < 1, lambda x: 1 - abs(x), points=(-1, 1)),
    "acos": Row(ad.acos, mp.acos, lambda x: abs(x) < 1, lambda x: 1 - abs(x), points=(-1, 1)),
    "atan": Row(ad.atan, mp.atan, scale=_large),
    "sinh": Row(ad.sinh, mp.sinh),
    "cosh": Row(ad.cosh, mp.cosh),
    "tanh": Row(ad.tanh, mp.tanh),
    "asinh": Row(ad.asinh, mp.asinh, scale=_large),
    "acosh": Row(ad.acosh, mp.acosh, lambda x: x > 1, lambda x: x - 1, points=(1,)),
    "atanh": Row(ad.atanh, mp.atanh, lambda x: abs(x) < 1, lambda x: 1 - abs(x), points=(-1, 1)),
    "sinc": Row(ad.sinc, lambda x: mp.sincpi(x), lambda x: abs(x) < 1e30, floor=(1, 0, 0),
                why="NumPy's value: sin(πx) of the rounded πx"),
    "sigmoid": Row(ad.sigmoid, _logistic),
    "elu, left": Row(F.elu, lambda x: mp.exp(x) - 1, lambda x: x < 0),
    "elu, right": Row(F.elu, lambda x: x, _positive, abs),
    "selu, left": Row(F.selu, lambda x: mp.mpf(1.0507009873554805) * mp.mpf(1.6732632423543772) * (mp.exp(x) - 1),
                      lambda x: x < 0),
    "softplus": Row(F.softplus, _softplus),
    "gelu": Row(F.gelu, lambda x: x * normal(x), closed=(lambda x: normal(x) + x * mp.npdf(x), lambda x: mp.npdf(x) * (2 - x * x)),
                condition=lambda x: 1 + x * x, why=_PHASE),
    "gelu, tanh": Row(lambda x: F.gelu(x, "tanh"), lambda x: x * _logistic(mp.sqrt(8 / mp.pi) * (x + mp.mpf("0.044715") * x**3)) if abs(x) < 1e4 else max(x, 0 * x),
                      condition=lambda x: 1 + min(abs(x), 30) ** 3, floor=(0, 4, 1000), why=f"{_PHASE}; {_FROM_OUTPUT}"),
    "silu": Row(F.silu, lambda x: x * _logistic(x)),
    "mish": Row(F.mish, lambda x: x * mp.tanh(_softplus(x)), condition=lambda x: 1 + max(x, 0), why=_PHASE),
    "huber": Row(lambda x: F.huber_loss(x, ad.zeros_like(x), "none"), lambda x: x * x / 2 if abs(x) < 1 else abs(x) - mp.mpf(1) / 2,
                 lambda x: abs(x) != 1, lambda x: abs(1 - abs(x)), points=(-1, 1)),
    "bce of 0": Row(lambda x: F.binary_cross_entropy_with_logits(x, ad.zeros_like(x), reduction="none"), _softplus),
    "bce of 1": Row(lambda x: F.binary_cross_entropy_with_logits(x, ad.ones_like(x), reduction="none"), lambda x: _softplus(-x)),
    "bce, weighted": Row(lambda x: F.binary_cross_entropy_with_logits(x, ad.ones_like(x), None, "none", 2.0), lambda x: 2 * _softplus(-x)),
    "log_expit": Row(S.log_expit, lambda x: -_softplus(-x)),
    "logaddexp": Row(lambda x: ad.logaddexp(x, 0.0), _softplus),
    "logaddexp, second": Row(lambda x: ad.logaddexp(0.0, x), _softplus),
    "logaddexp2": Row(lambda x: ad.logaddexp2(x, 0.0), lambda x: mp.log(1 + mp.mpf(2) ** x) / mp.log(2), lambda x: abs(x) < 1e50,
                      condition=lambda x: 1 + min(abs(x), 1100), why=_PHASE),
    "logit": Row(S.logit, lambda x: mp.log(x / (1 - x)), lambda x: 0 < x < 1, lambda x: min(x, 1 - x), points=(0, 0.5, 1)),
    "entr": Row(S.entr, lambda x: -x * mp.log(x), _positive, abs, points=(1,)),
    "erf": Row(S.erf, mp.erf, closed=(lambda x: 2 * mp.npdf(x, 0, mp.sqrt(0.5)), lambda x: -4 * x * mp.npdf(x, 0, mp.sqrt(0.5))),
               condition=lambda x: 1 + x * x, why=_PHASE),
    "erfc": Row(S.erfc, lambda x: 2 * normal(-x * mp.sqrt(2)), closed=(lambda x: -2 * mp.npdf(x, 0, mp.sqrt(0.5)), lambda x: 4 * x * mp.npdf(x, 0, mp.sqrt(0.5))),
                condition=lambda x: 1 + x * x, why=_PHASE),
    "ndtr": Row(S.ndtr, normal, closed=(mp.npdf, lambda x: -x * mp.npdf(x)), condition=lambda x: 1 + x * x, why=_PHASE),
    "log_ndtr": Row(S.log_ndtr, log_normal, closed=(mills, lambda x: mills(x, 1)),
                    condition=lambda x: 1 + x * x if 0 < x < 40 else 1.0, why=_PHASE),
    "erfcx": Row(S.erfcx, erfcx, closed=(lambda x: erfcx(x, 1), lambda x: erfcx(x, 2)),
                 condition=lambda x: 1 + x * x if x < 0 else 2.0, why=_PHASE),
    "erfinv": Row(S.erfinv, erfinv, lambda x: abs(x) < 1, points=(-1, 1),
                  closed=(lambda x: 1 / _bell(erfinv(x)), lambda x: 2 * erfinv(x) / _bell(erfinv(x)) ** 2),
                  condition=lambda x: 1 - np.log1p(-abs(x)), why="exp(y²) of the rounded y"),
    "erfcinv": Row(S.erfcinv, erfcinv, lambda x: 1e-320 < x < 2, points=(1, 2),
                   closed=(lambda x: -1 / _bell(erfcinv(x)), lambda x: 2 * erfcinv(x) / _bell(erfcinv(x)) ** 2),
                   condition=lambda x: 1 - np.log(min(x, 2 - x)), why="exp(y²) of the rounded y"),
    "ndtri": Row(S.ndtri, lambda p: -mp.sqrt(2) * erfcinv(2 * p), lambda x: 0 < x < 1, points=(0.5, 1),
                 closed=(lambda p: mp.sqrt(2) * 2 / _bell(erfcinv(2 * p)), lambda p: -mp.sqrt(2) * 8 * erfcinv(2 * p) / _bell(erfcinv(2 * p)) ** 2),
                 condition=lambda x: 1 - np.log(min(x, 1 - x)), why="exp(y²/2) of the rounded y"),
    "gamma": Row(S.gamma, lambda x: mp.gamma(min(x, 1e3)), lambda x: _not_pole(x) and x > -150, points=(-1, 1, 2),
                 closed=(lambda x: mp.gamma(min(x, 1e3)) * mp.digamma(x), lambda x: mp.gamma(min(x, 1e3)) * (mp.digamma(x) ** 2 + mp.polygamma(1, x)))),
    "gammaln": Row(S.gammaln, lambda x: mp.re(mp.loggamma(x)), lambda x: _not_pole(x) and abs(x) > 1e-305, points=(-1, 1, 2),
                   closed=(mp.digamma, lambda x: mp.polygamma(1, x)), floor=(2, 0, 0), why=_SCIPY),
    "digamma": Row(S.digamma, mp.digamma, _not_pole, points=(-1, 1),
                   closed=(lambda x: mp.polygamma(1, x), lambda x: mp.polygamma(2, x))),
    "polygamma": Row(lambda x: S.polygamma(2, x), lambda x: mp.polygamma(2, x), _not_pole, points=(-1,),
                     closed=(lambda x: mp.polygamma(3, x), lambda x: mp.polygamma(4, x))),
    "jv": Row(lambda x: S.jv(2, x), lambda x: jv(2, x), lambda x: abs(x) < 1e16, closed=(lambda x: jv(2, x, 1), lambda x: jv(2, x, 2)),
              units=(64, 128, 128)),
    **{
        f"ive, {n}": Row(lambda x, n=n: S.ive(n, x), lambda x, n=n: ive(n, x), _not_zero, units=(64, 256, 4096),
                         closed=(lambda x, n=n: ive(n, x, 1), lambda x, n=n: ive(n, x, 2)))
        for n in (0, 1, 7)
    },
    **{
        f"iv, {n}": Row(lambda x, n=n: S.iv(n, x), lambda x, n=n: ive(n, x) * mp.exp(abs(x)), units=(64, 64, 64),
                        closed=(lambda x, n=n: _iv(n, x, 1), lambda x, n=n: _iv(n, x, 2)))
        for n in (0, 3)
    },
}
# fmt: on


def _bell(y: Any) -> Any:
    return 2 * mp.exp(-y * y) / mp.sqrt(mp.pi)


def _iv(n: int, x: Any, order: int) -> Any:
    if not order:
        return ive(n, x) * mp.exp(abs(x))
    return (_iv(n - 1, x, order - 1) + _iv(n + 1, x, order - 1)) / 2


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ROWS)
def test_value_and_two_derivatives(name, dtype):
    row = ROWS[name]
    points = samples(row, dtype)
    found = our_derivatives(row.ours, np.array(points, dtype))
    bad = []
    for i, x in enumerate(points):
        for order, exact in enumerate(exact_derivatives(row, x)):
            value = rounded(exact, dtype)
            units = row.units[order] * float(row.condition(x))
            if differs(found[order][i], value, dtype, units, row.floor[order]):
                bad.append(f"order {order} at {x!r}: {found[order][i]!r}, exact {value!r}")
    assert not bad, f"{len(bad)} of {3 * len(points)}:\n" + "\n".join(bad[:10])


# Two arguments ---------------------------------------------------------------------------------

_TINY, _HUGE = (1e-300, 1e-200, 1e-100, 1e-20, 1e-8, 1e-3), (1e3, 1e8, 1e20, 1e100, 1e200, 1e300)
_ALL = (*_TINY, 0.3, 1.7, 40.0, *_HUGE)
_SCORES = (-1e17, -1e10, -700.0, -30.0, -1.0, 0.0, 1e-300, 1.0, 30.0, 1e10, 1e10 + 1, 1e17)
_SHAPES = (1e-12, 1e-3, 0.5, 1.0, 3.3, 20.0, 1e3, 1e8)


def _abs_x(x: Any, y: Any) -> Any:
    return abs(x)


def _abs_y(x: Any, y: Any) -> Any:
    return abs(y)


def _longer(x: Any, y: Any) -> Any:
    return max(abs(x), abs(y))


def _one(x: Any, y: Any) -> Any:
    return 1


def _logaddexp(x: Any, y: Any) -> Any:
    return max(x, y) + mp.log(1 + mp.exp(-abs(x - y)))


def _betaln_partials(x: float, y: float) -> list[Any]:
    with mp.workdps(60):
        a, b = mp.mpf(x), mp.mpf(y)
        mixed = -mp.polygamma(1, a + b)
        first, second = (gamma_gap(0, a, b), gamma_gap(0, b, a)), (gamma_gap(1, a, b), gamma_gap(1, b, a))
        return [log_beta(a, b), *first, second[0], mixed, second[1]]


def _beta_partials(x: float, y: float) -> list[Any]:
    with mp.workdps(60):
        log, u, v, uu, uv, vv = _betaln_partials(x, y)
        return [mp.exp(log) * t for t in (mp.mpf(1), u, v, u * u + uu, u * v + uv, v * v + vv)]


# name: ours; mpmath's, or all its derivatives; over what distances it changes; points
PAIRS = {
    "divide": (ad.divide, lambda x, y: x / y, (_abs_x, _abs_y), _ALL),
    "hypot": (ad.hypot, lambda x, y: mp.sqrt(x * x + y * y), (_longer, _longer), _ALL),
    "atan2": (ad.atan2, mp.atan2, (_longer, _longer), _ALL),
    "pow": (ad.pow, lambda x, y: x**y, (_abs_x, lambda x, y: 1 / (1 + abs(mp.log(x)))), _ALL),
    "xlogy": (S.xlogy, lambda x, y: x * mp.log(y), (_abs_x, _abs_y), _ALL),
    "xlog1py": (S.xlog1py, lambda x, y: x * mp.log(1 + y), (_abs_x, lambda x, y: 1 + y), _ALL),
    "logaddexp": (ad.logaddexp, _logaddexp, (_one, _one), _SCORES),
    "betaln": (S.betaln, _betaln_partials, None, _SHAPES),
    "beta": (S.beta, _beta_partials, None, _SHAPES),
}
_ORDERS = ("value", "x", "y", "xx", "xy", "yy")


def _skipped(name: str, order: str, x: float, y: float, dtype: Any) -> bool:
    """What no rule can give: 1/x² overflows on the way, or large terms cancel in the function itself."""
    small, large = (float(np.sqrt(v)) for v in (np.finfo(dtype).tiny, np.finfo(dtype).max))
    second = len(order) == 2
    if name == "divide":
        return second and (y < small or y > large or order == "xx")  # xx is 0; the differences have noise
    if name == "atan2":
        return second and (max(x, y) < small or x == y)
    if name == "pow":
        return y > 1e15 or (second and x < small)
    if name in ("xlogy", "xlog1py"):
        return order == "xx"  # 0, as for divide
    return name == "beta" and order == "xy" and min(x, y) < 0.5  # 1/x + 1/y, whose mixed derivative is 0


def _units(name: str, order: str, x: float) -> float:
    if name == "pow":
        return 40 * (1 + abs(float(np.log(x))))  # which multiplies the rounding of y - 1
    if name == "betaln" and order == "value":
        return 1e5  # SciPy's value, right to 2e-11
    return 5000.0 if name == "beta" else 40.0  # a multiple of SciPy's value, right to 1e-12


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", PAIRS)
def test_two_arguments(name, dtype):
    ours, exact, scales, points = PAIRS[name]
    limit = 1e35 if dtype == np.float32 else INF
    kept = [float(dtype(p)) for p in points if p == 0 or 1 / limit < abs(p) < limit]
    pairs = list(itertools.product(kept, kept))
    found = our_partials(ours, *(np.array(v, dtype) for v in zip(*pairs, strict=True)))
    bad = []
    for i, (x, y) in enumerate(pairs):
        values = exact(x, y) if scales is None else exact_partials(exact, x, y, scales)
        for order, one, value in zip(_ORDERS, found, values, strict=True):
            if _skipped(name, order, x, y, dtype):
                continue
            units = _units(name, order, x)
            if differs(one[i], rounded(mp.re(value), dtype), dtype, units):
                bad.append(f"{order} at {x!r}, {y!r}: {one[i]!r}, exact {rounded(mp.re(value), dtype)!r}")
    assert not bad, f"{len(bad)}:\n" + "\n".join(bad[:10])


# Complex numbers -------------------------------------------------------------------------------

_PARTS = (-1e5, -800.0, -400.0, -30.0, -1.2, -0.3, -1e-8, 1e-8, 0.3, 1.2, 30.0, 400.0, 800.0, 1e5)


def _from_ends(z: Any) -> Any:
    return min(abs(z - 1), abs(z + 1))


def _from_imaginary_ends(z: Any) -> Any:
    return min(abs(z - 1j), abs(z + 1j))


# name: over what distance it changes, singular points, floors of the errors
COMPLEX = {
    **dict.fromkeys(
        ("exp", "expm1", "sin", "cos", "sinh", "cosh", "tanh", "sigmoid"), (lambda z: 1, (), (0, 0, 0))
    ),
    "tan": (lambda z: 1, (np.pi / 2,), (0, 0, 0)),
    **dict.fromkeys(("sqrt", "log", "reciprocal", "square"), (abs, (), (0, 0, 0))),
    **dict.fromkeys(("asin", "acos", "atanh"), (_from_ends, (1, -1), (0, 0, 0))),
    "acosh": (_from_ends, (1, -1), (0, 0, 8)),  # a product of two roots, for the branch
    **dict.fromkeys(("atan", "asinh"), (_from_imaginary_ends, (1j, -1j), (0, 0, 0))),
    "log1p": (lambda z: abs(1 + z), (-1,), (1, 0, 0)),  # NumPy's value
}
_MPMATH = {"expm1": lambda z: mp.exp(z) - 1, "log1p": lambda z: mp.log(1 + z), "reciprocal": lambda z: 1 / z,
           "square": lambda z: z * z, "sigmoid": _logistic}  # fmt: skip


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers(name):
    scale, singular, floor = COMPLEX[name]
    exact = _MPMATH.get(name) or getattr(mp, name)
    points = [complex(a, b) for a in _PARTS for b in _PARTS]
    corners = (1 + 1j, 1 - 1j, -1 + 1j, -1 - 1j)
    points += [p + d * c for p in singular for d in (1e-3, 1e-6, 1e-9) for c in corners]
    found = our_derivatives(getattr(ad, name), np.array(points))
    bad = []
    for i, z in enumerate(points):
        values = exact_derivatives(Row(abs, exact, scale=scale), z)
        for order, value in enumerate(map(mp.mpc, values)):
            right = rounded(value, np.float64)
            if np.isfinite(right) and differs(found[order][i], right, np.float64, 64, floor[order]):
                bad.append(f"order {order} at {z}: {found[order][i]}, exact {right}")
    assert not bad, f"{len(bad)}:\n" + "\n".join(bad[:10])


# Rows of numbers -------------------------------------------------------------------------------

_SCORE_ROWS = (
    (0.0, 40.0, -3.0),
    (40.0, 0.0, -3.0),
    (1e10, 1e10 + 1, 0.0),
    (1e5, 1e5 + 1, 1e5),
    (1e30, 1.0, -1e30),
    (3.0, 3.0, 3.0),
)


def _row_gradients(function: Any, values: Any) -> list[Any]:
    """The value, the gradient, and that of the gradient's first element."""
    x = ad.tensor(values, requires_grad=True)
    y = function(x)
    (g,) = ad.gradients(y, [x], create_graph=True)
    return [y.item(), g.tolist(), ad.gradients(g[0], [x])[0].tolist()]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("scores", _SCORE_ROWS)
def test_logsumexp_and_softmax(scores, dtype):
    """Shares of a sum have all their digits; where 1 - share is the result, the error is eps of 1."""
    values = np.array(scores, dtype)
    with mp.workdps(60):
        exact = [mp.mpf(float(v)) for v in values]
        top = max(exact)
        e = [mp.exp(v - top) for v in exact]
        p = [v / sum(e) for v in e]
        log = mp.log(sum(e))
        first = [mp.mpf(i == 0) for i in range(3)]
        bend = [p[0] * (d - q) for d, q in zip(first, p, strict=True)]
        cases = (
            (ad.logsumexp, top + log, p, bend),
            (lambda x: ad.softmax(x, axis=0)[0], p[0], bend, None),
            (lambda x: ad.log_softmax(x, axis=0)[0], exact[0] - top - log, [d - q for d, q in zip(first, p, strict=True)], None),
            (lambda x: F.cross_entropy(x, ad.tensor(0)), top + log - exact[0], [q - d for d, q in zip(first, p, strict=True)], None),
        )  # fmt: skip
        for function, value, gradient, second in cases:
            found = _row_gradients(function, values)
            assert not differs(found[0], rounded(value, dtype), dtype, 4, 1)
            for one, right in zip(found[1], gradient, strict=True):
                assert not differs(
                    one, rounded(right, dtype), dtype, 16, 0 if function is ad.logsumexp else 2
                )
            for one, right in zip(found[2], second or (), strict=False):
                assert not differs(one, rounded(right, dtype), dtype, 16, 2)


def test_weights_of_logsumexp_add_up_to_one():
    x = ad.tensor(np.array([1e5, 1e5 + 1], np.float32), requires_grad=True)
    for function in (ad.logsumexp, lambda t: ad.logsumexp(t, axis=0, keepdims=True).sum()):
        (g,) = ad.gradients(function(x), [x])
        assert g.numpy().sum() == pytest.approx(1, abs=2e-7)
        tangent = ad.jvp(function, (x.detach(),), (ad.ones(2, dtype=np.float32),))[1]
        assert tangent.item() == pytest.approx(1, abs=2e-7)


def test_infinities_in_logsumexp():
    for values, value, gradient in (
        ([-INF, 0.0, 0.0], np.log(2), [0, 0.5, 0.5]),
        ([-INF, -INF], -INF, [0, 0]),
        ([INF, 0.0], INF, [1, 0]),
        ([INF, INF, 3.0], INF, [0.5, 0.5, 0]),
        ([-INF, INF], INF, [0, 1]),
    ):
        x = ad.tensor(values, requires_grad=True)
        y = ad.logsumexp(x)
        assert y.item() == pytest.approx(value)
        assert ad.gradients(y, [x])[0].tolist() == gradient


@pytest.mark.parametrize(("function", "scale"), [(ad.tanh, 2), (ad.sigmoid, 1)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_subnormal_slopes_of_tanh_and_sigmoid_are_not_0(dtype, function, scale):
    """cosh² overflows where they begin."""
    first, last = (89.0, 103.0) if dtype == np.float32 else (710.0, 744.0)
    x = np.linspace(-last, -first, 50).astype(dtype) / scale
    exact = [float(scale**2 * mp.exp(scale * mp.mpf(float(v)))) for v in x]
    for points in (x, -x):
        found = our_derivatives(function, points)[1]
        least = np.finfo(dtype).smallest_subnormal
        assert (found > 0).all()
        assert (np.abs(found - exact) <= 2 * least + 8 * np.finfo(dtype).eps * np.array(exact)).all()


def _normalized(p: float) -> Any:
    return lambda t: F.normalize(t, p=p, eps=1e-37)[0, 0]


def _cosine(t: Any) -> Any:
    return F.cosine_similarity(t, ad.astype(ad.tensor([[1.0, -2.0]]), t.dtype), eps=1e-37)[0]


@pytest.mark.parametrize("function", [*map(_normalized, (1, 1.5, 2, 3, INF)), _cosine])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_normalize_and_cosine_similarity_of_tiny_and_huge_vectors(dtype, function):
    """They depend on the direction alone; gradients, as long as 1/|x|² is in range."""
    one = ad.tensor([[3.0, 4.0]], requires_grad=True)
    expected = function(one)
    (slope,) = ad.gradients(expected, [one])
    powers, within = (
        ((-30, -20, -10, 0, 10, 30, 300), 150) if dtype == np.float64 else ((-30, -20, -10, 0, 10, 30), 18)
    )
    for power in powers:
        size = 10.0**power
        x = ad.tensor(np.array([[3 * size, 4 * size]], dtype), requires_grad=True)
        y = function(x)
        rtol = 40 * float(np.finfo(dtype).eps)
        np.testing.assert_allclose(y.item(), expected.item(), rtol=rtol)
        if abs(power) <= within:
            (g,) = ad.gradients(y, [x])
            np.testing.assert_allclose(g.numpy().astype(float) * size, slope.numpy(), rtol=rtol)


# Large arrays, which take other ways, and slow points --------------------------------------------


@pytest.mark.parametrize("name", ["gelu", "erf", "softplus", "bce of 1", "sigmoid"])
def test_large_arrays_have_the_same_tails(name):
    row = ROWS[name]
    for dtype in (np.float64, np.float32):
        points = np.array(samples(row, dtype), dtype)
        few, many = (our_derivatives(row.ours, p) for p in (points, np.resize(points, 3000)))
        for order, (a, b) in enumerate(zip(few, many, strict=True)):
            for x, one, other in zip(points.tolist(), a.tolist(), b[: a.size].tolist(), strict=True):
                units = row.units[order] * row.condition(x)
                assert not differs(other, one, dtype, 2 * units, 2 * row.floor[order]), (x, order)


def test_polygamma_far_left_does_not_walk_there():
    """SciPy's zeta adds terms one by one: 28 s at -1e9."""
    x = ad.tensor([-1e9 - 0.5, -1e14 - 0.5], requires_grad=True)
    (g,) = ad.gradients(S.digamma(x).sum(), [x])
    np.testing.assert_allclose(g.numpy(), np.pi**2, rtol=1e-8)


@pytest.mark.parametrize(
    ("function", "x", "expected"),
    [
        (S.log_ndtr, -INF, (-INF, INF, -1)),
        (S.log_ndtr, INF, (0, 0, 0)),
        (S.i0e, INF, (0, 0, 0)),
        (S.i1e, -INF, (0, 0, 0)),
        (ad.asinh, -INF, (-INF, 0, 0)),
        (F.softplus, INF, (INF, 1, 0)),
        (F.softplus, -INF, (0, 0, 0)),
        (S.log_expit, -INF, (-INF, 1, 0)),
        (ad.tanh, -INF, (-1, 0, 0)),
        (ad.sigmoid, INF, (1, 0, 0)),
        (lambda x: ad.hypot(x, 1.0), -INF, (INF, -1, 0)),
    ],
)
def test_at_infinity(function, x, expected):
    assert [v.item() for v in our_derivatives(function, np.array(x))] == list(expected)


# Every op --------------------------------------------------------------------------------------

_EXACT = """add subtract multiply negative positive copy deg2rad rad2deg ldexp conj real imag astype abs sign copysign
    fraction floor ceil trunc rint round floor_divide remainder fmod where maximum minimum fmax fmin relu
    leaky_relu hardtanh heaviside clip nan_to_num""".split()  # sums, products and choices of their arguments
_INSIDE = {
    "normal_gate": "gelu", "mish_gate": "mish", "tanh_gelu": "gelu, tanh", "tanh_gelu_slope": "gelu, tanh",
    "bce_logits": "bce of 1", "gap_product": "asin", "cosine": "hypot", "sech_squared": "tanh", "logistic_slope": "sigmoid",
    "atan_slope": "atan", "sinc_derivative": "sinc", "erfcx_derivative": "erfcx",
    "polygamma_gap": "betaln", "ive_derivative": "ive, 0",
}  # fmt: skip
_ELSEWHERE = {
    **dict.fromkeys(
        """exp1 expi expn sine_integral cosine_integral fresnel_sine fresnel_cosine dawsn dawsn_derivative hyp2f1 hyp1f1
        ellipk ellipe lambertw yv kv kve kve_derivative spherical_jn spherical_yn spherical_in spherical_kn poch binom
        hurwitz_zeta zeta_derivative rel_entr kl_div gammainc gammaincc gammainc_derivative betainc betaincc
        betainc_derivative gammaincinv gammainccinv betaincinv betainccinv stdtr stdtrit stdtr_derivative""".split(),
        "test_scipy_special.py",
    ),
    "ndtri_exp": "test_special_functions.py",
    "bce": "its logarithms have limits, which test_losses.py checks",
    "nextafter": "its value is the neighbour of its argument, and its derivative is 1",
}


def test_every_smooth_op_has_a_row():
    smooth = {n for n in OP_NAMES if OPS[n].kind == "elementwise" and OPS[n].differentiable}
    rows = {name.split(",")[0] for name in (*ROWS, *PAIRS)}
    assert smooth <= {*rows, *_EXACT, *_INSIDE, *_ELSEWHERE}
    assert set(_INSIDE.values()) <= {*ROWS, *PAIRS}
