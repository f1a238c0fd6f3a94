"""Native code against NumPy, over the op table: values, derivatives, and how many ops have a native form.

Elementwise ops differ by at most 2 units in the last place (see ``test_hard_values``); others, which add up in
another order, by a few units of the largest result.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hard_values import hard_arguments, ulps
from test_compiled_ops import BFLOAT16, DIFFERENTIABLE, as_dtype, forward, scalar, takes, waves

import adjoint as ad
from adjoint import tree
from adjoint.compiler.lower.lower import Lowered
from adjoint.core.namespace import raw
from adjoint.core.op import OPS
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import LinAlgError
from adjoint.testing.cases import Case, cases

pytest.importorskip("llvmlite")

REAL = [
    c for c in cases()
    if not any(isinstance(a, (np.ndarray, complex)) and np.asarray(a).dtype.kind == "c" for a in c.args)
]  # fmt: skip


LARGEST = {c.op: c for c in sorted(DIFFERENTIABLE, key=lambda c: sum(np.size(a) for a in c.args))}

# At the last step, kernels multiply the weight by zeros, and NumPy skips it: so the gradient there is NaN where the weight
# is not finite.  The forward results, and so all gradients, are NaN then.
PULLS = ("gru_pull", "lstm_pull")


def arrays_of(value: Any) -> list[Any]:
    return [np.asarray(x.detach().numpy() if isinstance(x, Tensor) else x) for x in tree.leaves(value)]


def check(found: Any, wanted: Any, units: float) -> None:
    """Compare results; ``units`` are in the last place of the largest number."""
    for a, b in zip(arrays_of(found), arrays_of(wanted), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        if b.dtype.kind not in "fV":
            np.testing.assert_array_equal(a, b)
            continue
        eps = ad.finfo(b.dtype).eps
        if b.dtype.itemsize == 2:
            a, b = a.astype("f4"), b.astype("f4")
        scale = np.abs(b[np.isfinite(b)]).max(initial=1.0)
        with np.errstate(all="ignore"):
            near = np.abs(a - b) <= units * eps * scale
        assert ((a == b) | near | (np.isnan(a) & np.isnan(b))).all(), (a, b)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("case", REAL, ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_forward(case: Case, dtype: str) -> None:
    f, arrays = forward(as_dtype(case, dtype))
    compiled = ad.compile(f, backend="native")
    for _ in range(2):
        found, wanted = compiled(*arrays), f(*arrays)
        if OPS[case.op].kind == "elementwise":
            check_ulps(case, [x.numpy() for x in arrays], arrays_of(found), arrays_of(wanted))
        else:
            check(found, wanted, 8)
    if OPS[case.op].kind == "elementwise" or numpy_calls(case, dtype):
        return  # see test_hard_values
    for value in (np.nan, np.inf, -np.inf, np.finfo(dtype).smallest_subnormal):
        given = [wrap(spoilt(x.numpy(), value)) for x in arrays]
        if case.op in PULLS:
            given[-1] = arrays[-1]
        if case.op == "searchsorted":  # what edges in another order give depends on NumPy's version
            given[0] = wrap(np.sort(given[0].numpy()))
        try:
            wanted = f(*given)
        except LinAlgError as error:
            with pytest.raises(LinAlgError, match=re.escape(str(error))):
                compiled(*given)
        else:
            check(compiled(*given), wanted, 8)


def as_half(case: Case, dtype: str) -> Any:
    """Return the op of a case as a function, and its arguments in half precision."""
    f, arrays = forward(as_dtype(case, "f8"))
    return f, [wrap(x.numpy().astype(dtype)) if x.dtype.kind == "f" else x for x in arrays]


@pytest.mark.parametrize("dtype", ["f2", *BFLOAT16])
@pytest.mark.parametrize("case", REAL, ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_half_precision(case: Case, dtype: str) -> None:
    """Each op is computed in float32 and rounded once, as in eager mode; so almost all results are equal."""
    if not takes(case, dtype) or (dtype != "f2" and case is not LARGEST.get(case.op)):
        return
    f, arrays = as_half(case, dtype)
    compiled = ad.compile(f, backend="native")
    check_halves(compiled(*arrays), f(*arrays))
    if OPS[case.op].kind != "elementwise" or case.op in PULLS or numpy_calls(case, "f4"):
        return
    for value in (np.nan, np.inf, -np.inf, 6e4, 6e-8):
        given = [wrap(spoilt(x.numpy(), value)) for x in arrays]
        check_halves(compiled(*given), f(*given))


def check_halves(found: Any, wanted: Any) -> None:
    for a, b in zip(arrays_of(found), arrays_of(wanted), strict=True):
        half = b.dtype.itemsize == 2 and b.dtype.kind in "fV"
        check(a, b, 1 if half else 8)
        if half:
            differ = (a != b) & ~(np.isnan(a) & np.isnan(b))
            assert differ.sum() <= max(1, 0.02 * b.size)


def spoilt(x: Any, value: float) -> Any:
    """Return an array of floats with one element replaced; other arrays unchanged."""
    if x.dtype.kind in "fV" and x.size:
        x = x.copy(order="K")
        x[np.unravel_index(x.size // 2, x.shape)] = value
    return x


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_gradient(case: Case) -> None:
    if any(np.asarray(a).dtype.kind == "c" for a in case.args):
        return
    f, arrays = scalar(as_dtype(case, "f8"))
    gradient = ad.grad(f, argnums=tuple(range(len(arrays))))

    def second(*xs: Any) -> Any:
        return sum((g * waves(g, 0.5)).sum() for g in gradient(*xs))

    for derivative in (gradient, ad.grad(second, argnums=tuple(range(len(arrays))))):
        wanted = derivative(*arrays)
        check(ad.compile(derivative, backend="native")(*arrays), wanted, 64)
    if case is LARGEST[case.op] and OPS[case.op].kind != "elementwise":  # see test_hard_values
        f, arrays = scalar(as_dtype(case, "f4"))
        gradient = ad.grad(f, argnums=tuple(range(len(arrays))))
        check(ad.compile(gradient, backend="native")(*arrays), gradient(*arrays), 64)


def numpy_calls(case: Case, dtype: str) -> dict[int, str]:
    """Return why NumPy runs ops of a case; nothing if all of it is native code."""
    f, arrays = forward(as_dtype(case, dtype))
    compiled = ad.compile(f, backend="replay")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shown = compiled._shown(tuple(arrays), {})
    return Lowered(shown.program).reasons


def test_at_least_178_ops_are_native() -> None:
    """Count ops of which at least one case, of floats, integers or booleans, runs without a call of NumPy."""
    native = set()
    for case in REAL:
        if case.op in native:
            continue
        if not all(numpy_calls(case, dtype) for dtype in ("f4", "f8")):
            native.add(case.op)
    assert len(native) >= 178, sorted(set(OPS) - native)


# Hard values, in all shape classes ---------------------------------------------------------------------
#
# Native code and replay differ by at most 2 units in the last place.  Where they differ by more, NumPy or the formula
# is inexact, and native code is compared with the exact result: it may differ from that by 2 units, or by what one of
# these tables says.

# Rules of several ops, whose rounding errors add up: the largest errors of native code and of NumPy, in units in the
# last place, where the two differ by more than 2.  No primitive has an error above 2.
INEXACT = {
    "bce": (2.4, 1.8), "cbrt": (2.6, 5.6), "cosine": (3.3, 3.0), "entr": (2.1, 2.0), "erf": (3.0, 0.1),
    "erfc": (3.0, 226.0), "logistic_slope": (3.5, 6.1), "mish_gate": (4.8, 5.4), "sech_squared": (3.7, 6.1),
    "sigmoid": (3.3, 5.5), "tan": (2.6, 2.6), "tanh": (2.1, 5.2),
}  # fmt: skip
# Sums whose terms cancel: the error of native code is at most 2 units in the last place of the largest term.
CANCEL: dict[str, Callable[..., Any]] = {
    "bce_logits": lambda x, t: (1 + np.abs(x)) * (1 + np.abs(t)),
    "logaddexp": lambda x, y: np.maximum(np.abs(x), np.abs(y)),
    "logaddexp2": lambda x, y: np.maximum(np.abs(x), np.abs(y)),
    "tanh_gelu": lambda x: np.ones_like(x),
}
# Kernels multiply the gradient by a slope; NumPy divides it by cosh twice.  So where the slope is subnormal or 0, a
# gradient above 1 shows the rounding error of the slope: the product is off by at most 2 |gradient| · 2^-149 (2^-1074).
SLOPES = ("logistic_slope", "sech_squared")
ZEROS = ("fmax", "fmin")  # the sign of zero that NumPy returns depends on the position in the array
MPMATH: dict[str, Callable[..., Any]] = {
    "erf": lambda mp, x: mp.erf(x),
    "erfc": lambda mp, x: mp.erfc(x),
    "ndtr": lambda mp, x: mp.erfc(-x / mp.sqrt(2)) / 2,
    "normal_gate": lambda mp, x: mp.erfc(-x / mp.sqrt(2)) / 2,
}
LONGER = {np.dtype("f4"): np.dtype("f8"), np.dtype("f8"): np.dtype("g")}


def _kinds(case: Case) -> str:
    return "".join(a.dtype.kind if isinstance(a, np.ndarray) else "-" for a in case.args)


HARD = {(c.op, repr(c.params), _kinds(c)): c for c in REAL if OPS[c.op].kind == "elementwise"}.values()


def groups_of(case: Case, dtype: str) -> list[list[Any]]:
    """Return arguments of each shape class: many and not a multiple of the vector, 0-d, size 1, empty, odd, strided."""
    given = hard_arguments(_kinds(case).replace("-", "").replace("u", "i"), np.dtype(dtype))
    wanted = [a.dtype for a in case.args if isinstance(a, np.ndarray)]
    given = [a if a.dtype.kind == "f" else a.astype(d) for a, d in zip(given, wanted, strict=True)]
    if case.op in SLOPES:
        given[0] = np.clip(given[0], -1, 1)
    shapes: list[Callable[[Any], Any]] = [
        lambda a: a, lambda a: a[-9].reshape(()), lambda a: a[5:6], lambda a: a[:0].reshape(0, 3), lambda a: a[9:14],
        lambda a: a[-63:].reshape(3, 21).T[::2], lambda a: a[-40:].reshape(4, 10)[::-1],
    ]  # fmt: skip
    return [[shape(a) for a in given] for shape in shapes]


def outcome_of(case: Case) -> Callable[..., Any]:
    """Return a function of arguments that returns the outputs of an op, and the gradients of all float arguments."""
    op, at = OPS[case.op], [i for i, a in enumerate(case.args) if isinstance(a, np.ndarray)]
    smooth = tuple(k for k, i in enumerate(at) if _kinds(case)[i] == "f" and op.smooth(i))

    def forward(*xs: Any) -> list[Any]:
        args = list(case.args)
        for i, x in zip(at, xs, strict=True):
            args[i] = x
        out = op.eager(*args, **case.params)
        return list(out) if isinstance(out, tuple) else [out]

    def scalar(*xs: Any) -> Any:
        return sum((y * seeds(y)).sum() for y in forward(*xs) if y.dtype.kind == "f")

    gradient = ad.grad(scalar, argnums=smooth) if smooth and op.differentiable else lambda *xs: ()
    return lambda *xs: [*forward(*xs), *gradient(*xs)]


def seeds(y: Any) -> Any:
    """Return gradients of both signs between 0.5 and 1.5; some are 0."""
    rng = np.random.default_rng(y.size)
    found = rng.uniform(0.5, 1.5, y.shape) * rng.choice([-1.0, 1.0], y.shape)
    return np.where(rng.random(y.shape) < 0.1, 0.0, found).astype(y.dtype)


def exact_results(case: Case, given: Sequence[Any]) -> list[Any]:
    """Return what ``outcome_of`` does, computed in a longer format: the formulas on longer floats, or mpmath."""
    op, args = OPS[case.op], list(case.args)
    at = [i for i, a in enumerate(args) if isinstance(a, np.ndarray)]
    longer = LONGER[np.result_type(*(a for a in given if a.dtype.kind == "f"))]
    if np.finfo(longer).nmant < 60 and given[0].dtype == np.float64:
        pytest.skip("long double is no longer than double")
    for i, a in zip(at, given, strict=True):
        args[i] = a.astype(longer) if a.dtype.kind == "f" else a
    out = _by_mpmath(case.op, args[0]) if case.op in MPMATH else op.forward(*args, **case.params)
    outs = list(out) if isinstance(out, tuple) else [out]
    g = [seeds(np.empty(y.shape, given[0].dtype)).astype(longer) for y in outs]
    smooth = [i for i in at if _kinds(case)[i] == "f" and op.smooth(i)]
    if op.joint is not None:
        return outs + list(op.joint(raw, tuple(g), out, *args, wanted=(True,) * len(args), **case.params))
    return outs + [op.rules[i](raw, g[0], out, *args, **case.params) for i in smooth if op.differentiable]


def _by_mpmath(name: str, x: Any) -> Any:
    mp = pytest.importorskip("mpmath")
    with mp.workdps(40):
        values = [MPMATH[name](mp, mp.mpf(float(v))) for v in np.clip(x, -1e3, 1e3).ravel()]
        high = np.array([float(v) for v in values], x.dtype)
        low = np.array([float(v - float(h)) for v, h in zip(values, high, strict=True)], x.dtype)
    return (high + low).reshape(x.shape)


def units_from(found: Any, exact: Any, size: Any = 0.0) -> Any:
    """Return the errors of numbers in units in the last place, or in those of ``size`` where that is larger."""
    top = np.finfo(found.dtype).max
    size = np.clip(np.maximum(np.abs(exact), size), 0, top).astype(found.dtype)
    with np.errstate(all="ignore"):
        return (np.abs(found - exact) / np.spacing(np.minimum(size, top / 2))).astype(float)


def check_ulps(case: Case, given: Sequence[Any], found: list[Any], wanted: list[Any]) -> None:
    """Compare the results of one shape class."""
    exact: list[Any] = []
    for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert a.shape == b.shape and a.dtype == b.dtype
        if b.dtype.kind != "f":
            np.testing.assert_array_equal(a, b)
            continue
        apart = ulps(a, b)
        assert case.op in ZEROS or not (apart == 0.5).any()
        far = apart > 2
        if not far.any():
            continue
        exact = exact or exact_results(case, given)
        assert np.isfinite(a[far]).all() and np.isfinite(b[far]).all(), (given, apart)
        size = CANCEL[case.op](*given) if case.op in CANCEL else 0.0
        error = np.where(far, units_from(a, exact[k], size), 0.0)
        worst = np.unravel_index(error.argmax(), error.shape)
        # other processors round differently
        limit = 1.25 * INEXACT[case.op][0] if case.op in INEXACT else 2.0
        assert error[worst] <= limit, (k, error[worst], [x[worst] for x in given])


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("case", HARD, ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_hard_values(case: Case, dtype: str) -> None:
    if numpy_calls(case, dtype):
        return
    outcome, groups = outcome_of(case), groups_of(case, dtype)
    tensors = [list(map(wrap, group)) for group in groups]
    compiled = ad.compile(lambda groups: [outcome(*group) for group in groups], backend="native")
    for given, found, xs in zip(groups, compiled(tensors), tensors, strict=True):
        check_ulps(case, given, arrays_of(found), arrays_of(outcome(*xs)))


PUBLIC = sorted(
    o.name for o in OPS.values() if o.kind == "elementwise" and not o.params and hasattr(ad, o.name)
)


@pytest.mark.parametrize("name", PUBLIC)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_booleans_integers_and_numbers(name: str) -> None:
    f, arity = getattr(ad, name), len(OPS[name].rules)
    arrays = [ad.tensor(np.array([0, 1, 2, 3], d)) for d in ("?", "u1", "i4", "i8")]
    for x in arrays:
        others: list[Any] = [2, 0, True, 2.5, *arrays] if arity > 1 else [None]
        for y in others:
            rest = (x,) * (arity - 2)
            for args in ((x, y, *rest), (y, x, *rest)) if arity > 1 else ((x,),):
                compiled = ad.compile(f, backend="native")
                try:
                    wanted = f(*args)
                except Exception as error:
                    with pytest.raises(type(error)):
                        compiled(*args)
                else:
                    check(compiled(*args), wanted, 8.0)
