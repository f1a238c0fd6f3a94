"""A Python float as an argument: what works with it eagerly works in a compiled function, with the same dtypes."""

from __future__ import annotations

import copy
import decimal
import enum
import fractions
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from program_texts import run_text

import adjoint as ad
from adjoint import nn
from adjoint.errors import TransformError

F = nn.functional
x64, x32, xh = (ad.tensor(np.array([1, 2, 3], d)) for d in ("d", "f", "e"))
xi = ad.tensor([1, 2, 3])
Decimal, Fraction = decimal.Decimal, fractions.Fraction


class Level(enum.IntEnum):
    """Integers of a subclass of int."""

    LOW = 1
    HIGH = 2


# One program for all values of r.
TRACED = """
ad.grad(lambda v: v*v)(r)
ad.value_and_grad(lambda v: ad.sin(v)*v)(r)
ad.grad(ad.grad(lambda v: v**3))(r)
ad.hessian(lambda v: v**3)(r)
ad.jacobian(lambda v: v**3)(r)
ad.jvp(lambda v: v*v,(r,),(1.0,))
ad.jvp(lambda v: v*v,(2.0,),(r,))
ad.vjp(lambda v: v*v, r)[1](1.0)
ad.vjp(lambda v: v*v, 2.0)[1](r)
ad.hvp(lambda v: (v**3).sum(), (x64,), (x64*r,))
ad.grad(lambda v, u: (v*u).sum())(x32, r)
ad.grad(lambda v, u: (v*u).sum(), argnums=1)(x32, r)
ad.grad(lambda d: d['a']*d['b'])({'a': r, 'b': 2.0})
ad.vmap(lambda v: v*r)(x32)
ad.vmap(lambda v, u: v*u, in_axes=(0,None))(x32, r)
ad.scan(lambda c, _: (c*0.5, c), r, None, length=3)
ad.scan(lambda c, v: (c*v, c+r), x32.sum()*0+1, x32)
ad.scan(lambda c, v: (c*v, c+r), 1.0, x32)
ad.fori_loop(0, 3, lambda i, c: c*r, r)
ad.fori_loop(0, 3, lambda i, c: c*r, x32)
ad.cond(x64.sum() > 2, lambda v: v*2, lambda v: v*3, r)
ad.cond(r > 2, lambda v: v*2, lambda v: v*3, x32)
ad.stack([r, r*2])
ad.stack([r, x64[0]])
ad.stack([r, x32[0]])
ad.concatenate([x32, [r]])
ad.full((2,), r)
ad.full((2,), r, dtype='float32')
ad.full_like(x32, r)
ad.full_like(xi, r)
x32.at[0].set(r)
x64.at[1].add(r)
np.exp(r)
np.exp(r*2)
np.sin(r)*x32
np.add(r, x32)
np.add(r, 1.0)
np.sqrt(r)
np.maximum(r, 0)
np.stack([r,r])
np.sum(r)
np.array([1.0, 2.0])*r
np.array([1,2],'f')*r
r*np.array([1,2],'f')
np.array([1,2])*r
np.float32(2)*r
r*np.float32(2)
np.float64(2)*r
np.float64(2)+r
r+np.float32(2)
np.int64(2)*r
r*np.int64(2)
r*True
r*2
2**r
r**2
r**0.5
r%2
r//2
divmod(r, 2)
-r
+r
abs(r)
r*1j
r+2j
x32*r
x32+r
x32**r
r**x32
r/x32
x32//r
x32%r
xh*r
xi*r
xi+r
xi/r
ad.broadcast_to(r*r, (3,))
ad.broadcast_to(r, (3,))
ad.exp(r)
ad.exp(r)*x32
ad.tanh(r*r)
ad.tensor(r)
ad.tensor([r, 2.0])
ad.tensor([[r, 1.0],[2.0, r*r]])
ad.tensor(r, dtype='float32')
ad.tensor(r, requires_grad=False)
ad.asarray(r)
ad.astype(r, 'float32')
ad.sum(r)
ad.mean(r)
ad.sum([r, r])
ad.where(x32 > 1, r, 0.0)
ad.where(x32 > 1, x32, r)
ad.where(x32 > 1, r, r*2)
ad.where(r > 1, x32, 0)
ad.where(r > 0, r, -r)
ad.where(r > 0, 1.0, 2.0)
ad.maximum(x32, r)
ad.maximum(r, 0)
ad.minimum(r, 0.1)
ad.clip(x32, 0, r)
ad.clip(x32, -r, r)
x32.clip(0, r)
ad.clip(r, 0, 0.2)
ad.power(r, 2)
ad.power(x32, r)
ad.matmul(x32*r, x32)
ad.dot(r, x32)
ad.outer(r, x32)
ad.inner(r, r)
ad.reshape(r, (1,))
ad.ravel(r)
ad.expand_dims(r, 0)
ad.atleast_1d(r)
ad.squeeze(r)
ad.sign(r)
ad.isnan(r)
ad.isfinite(r)
ad.isclose(r, 0.5)
ad.floor(r)
ad.round(r)
int(r)
ad.zeros_like(r)
ad.ones_like(r)
ad.logaddexp(r, 0.0)
ad.hypot(r, 1.0)
ad.atan2(r, 1.0)
ad.einsum('i,->i', x32, r)
ad.cumsum([r, r*2])
ad.sort([r, 0.1])
ad.tile(r, 3)
ad.repeat(r, 3)
ad.eye(2)*r
ad.diag([r, 2.0])
ad.linalg.norm([r, 2.0])
ad.linalg.det([[r, 1.0],[1.0, 2.0]])
ad.linalg.solve(ad.eye(2)*r, x64[:2])
ad.linalg.inv([[r, 0.0],[0.0, 1.0]])
x32*(r > 0.2)
x32 > r
r < x32
r == 0.5
r > 0.2
(r > 0.2)*1.0
not (r > 3)
1 if r > 0.2 else 2
max(r, 0.1)
min(r, 0.1)
sum([r, r])
sum([r*x32, r])
F.softplus(x32, r)
F.mse_loss(r, 0.5)
F.softmax(x32/r)
ad.random.default_rng(0).normal(r, 1.0, (2,))
ad.random.default_rng(0).normal(0.0, r, (2,))
ad.random.default_rng(0).uniform(0, r, (2,))
ad.random.default_rng(0).gamma(r, size=(2,))
ad.random.default_rng(0).exponential(r, (2,))
ad.logsumexp([r, 1.0])
ad.checkpoint(lambda v: ad.sin(v)*r, x32)
ad.checkpoint(lambda v: ad.sin(v)*2, r)
ad.special.gamma(r)
ad.numpy.sin(r)
ad.numpy.array([r, 1.0])
ad.numpy.full(3, r)
ad.numpy.where(r > 0, r, 0.0)
ad.scipy.special.erf(r)
ad.scipy.stats.norm.logpdf(x64, loc=r)
ad.scipy.stats.norm.logpdf(r, 0.0, 1.0)
x32.sum().detach()*r
isinstance(r, float)
{'a': r, 'b': [r*2, r]}
(r, 1, 'a')
r
bool(r)
r and 2.0
r or 2.0
ad.isinf(r) | ad.isnan(r)
ad.meshgrid([r, 1.0], x64)
ad.diff([r,1.0,2.0])
ad.var([r,1.0])
ad.roll(x32*r, 1)
ad.triu(ad.ones((2,2))*r)
ad.copysign(r, -1.0)
ad.heaviside(r, 0.5)
ad.fmod(r, 0.3)
ad.result_type(r, x32) and 1.0
ad.linspace(0, 1, 3)*r
ad.geomspace(1, r+1, 3)
ad.vstack([r, 1.0])
ad.hstack([r, 1.0])
ad.real(r)
ad.conj(r)
ad.square(r)
ad.reciprocal(r)
ad.relu(r)
[r == 'auto', r != 'auto', 'auto' == r]
[r == other for other in (None, (), [], {}, set(), b'a', (0.5,), [0.5], {0.5: 1})]
1 if r == 'auto' or r == None else 2
r in ('auto', None, (), [0.5], {})
(r, 'a') == ('a', r)
x32 * (1 if r == 'auto' else r)
ad.where(r < np.float32(0.6), x32, 0)
1 if r > np.float64(0.2) else 2
(r * np.array([1.0, 2.0])).sum()
(r + np.array([1.0, 2.0]))[0]
(r > np.array([0.6, 0.2])).any()
[r * Level.HIGH, Level.HIGH + r, r // Level.HIGH]
1 if r < Level.LOW else 2
1 if r < Decimal('0.9') else 2
1 if r == object() else 2
""".strip().splitlines()

# Python reads the value: one program for each result of that.
READ = """
ad.linspace(0, r, 4)
ad.linspace(0.0, r, 4)
ad.linspace(r, 1, 4)
ad.arange(0, r, 0.1)
np.array([r, 2.0])
np.asarray(r)
round(r)
float(r)
math.sin(r)
math.fsum([r, r])
F.leaky_relu(x32-2, r)
F.elu(x32-2, r)
F.huber_loss(x32, x32*2, delta=r)
F.smooth_l1_loss(x32, x32*2, beta=r)
F.layer_norm(x32, (3,), eps=r)
F.hardtanh(x32, -r, r)
F.cross_entropy(x32[None], np.array([1]), label_smoothing=r)
ad.numpy.linspace(0, r, 3)
f'{r:.2f}' and 1.0
r.real
r.conjugate()
r.is_integer()
complex(r)
ad.nan_to_num(x32/0, nan=r, posinf=r)
ad.pad(x32, 1, constant_values=r)
ad.logspace(0, r, 3)
[r == Decimal('0.5'), Decimal('0.5') == r, r < Decimal('0.6')]
[r == Fraction(1, 2), Fraction(1, 2) == r, r < Fraction(3, 5)]
[r == pytest.approx(0.5), pytest.approx(0.5) == r]
r in ('auto', None, 0.5, 3)
r in {'auto': 1, 0.5: 2}
[None, 'a', 0.5, Decimal('0.75')].index(r)
""".strip().splitlines()


def described(value: Any) -> Any:
    """Return what must be equal: arrays as bytes with their dtype, numbers with their type."""
    if isinstance(value, ad.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray | np.generic):
        return value.shape, str(value.dtype), value.tobytes()
    if isinstance(value, list | tuple):
        return [described(v) for v in value]
    if isinstance(value, dict):
        return {k: described(v) for k, v in value.items()}
    return type(value), value


def made(expression: str) -> Any:
    """Return the function of ``r`` with this expression."""
    space = {**globals()}
    run_text(f"f = lambda r: {expression}", space)
    return space["f"]


@pytest.mark.parametrize("expression", TRACED + READ)
def test_a_python_float_as_an_argument(expression: str) -> None:
    f = made(expression)
    compiled = ad.compile(f, backend="replay")
    with np.errstate(all="ignore"):
        for r in (0.5, 0.75, 0.5):
            assert described(compiled(r)) == described(f(r))
    assert compiled.stats()["traces"] == (1 if expression in TRACED else 2)


@pytest.mark.parametrize(
    "expression", ["ad.exp(r) * x32", "ad.stack([r, 2.0])", "ad.full((2,), r)", "ad.tensor(r)"]
)
def test_a_python_float_gets_the_default_dtype(expression: str) -> None:
    f = made(expression)
    ad.set_default_dtype("float32")
    try:
        assert described(ad.compile(f, backend="replay")(0.5)) == described(f(0.5))
    finally:
        ad.set_default_dtype("float64")


@pytest.mark.parametrize("backend", ["replay", "native"])
def test_dtypes_of_numbers_in_native_code(backend: str) -> None:
    pytest.importorskip("llvmlite")

    def f(x: Any, r: float, i: int) -> Any:
        late = r > 0.6
        scaled = x * (r**2 + i) * late + ad.stack([r, r * i]).sum() + x * (late * 1.0) + np.exp(r)
        return {"x": scaled, "late": late, "low": x * (r / 2), "z": x * (r * 1j), "whole": round(r, 1) * x}

    compiled = ad.compile(f, backend=backend)
    for r in (0.5, 0.75, 0.25):
        found, expected = compiled(x32, r, 3), f(x32, r, 3)
        assert found.pop("late") is expected.pop("late")
        for key, value in expected.items():
            assert found[key].dtype == value.dtype
            np.testing.assert_allclose(found[key].numpy(), value.numpy(), rtol=1e-6)
    assert compiled.stats()["traces"] == 1


@pytest.mark.parametrize(
    "expression",
    "ad.real(r) ad.positive(r)*x32 ad.conj(r)*x32 ad.copy(r)*x32 ad.where(True,r,r)*x32 ad.sort(ad.real(r)*x32) "
    "ad.logcumsumexp(ad.ravel(r)) ad.logcumsumexp(ad.broadcast_to(r,(3,)))*x32 ad.argsort(ad.broadcast_to(r,(2,3)).T) "
    "ad.sort(ad.ravel(r)) ad.sort(ad.broadcast_to(r,(3,)))*x32 ad.cumsum(ad.broadcast_to(r,(2,2)),axis=0)".split(),
)
def test_arrays_made_of_a_number_in_native_code(expression: str) -> None:
    """The native form of some ops is their operand, and NumPy computes others from a view of it."""
    pytest.importorskip("llvmlite")
    f = made(expression)
    compiled = ad.compile(f, backend="native")
    for r in (0.5, 0.75):
        assert described(compiled(r)) == described(f(r))


def test_isinstance_sees_the_type_of_a_number() -> None:
    kinds = {}

    def f(r: float, i: int) -> None:
        kinds.update(r=isinstance(r, float), late=isinstance(r > 0, bool), z=isinstance(r * 1j, complex))
        kinds.update(tensor=isinstance(r, ad.Tensor), i=type(i) is int)

    ad.compile(f)(0.5, 3)
    assert kinds == {"r": True, "late": True, "z": True, "tensor": False, "i": True}


def test_errors_of_python_arithmetic_are_those_of_python() -> None:
    f = ad.compile(lambda r: 1 / r)
    assert f(2.0) == 0.5
    with pytest.raises(ZeroDivisionError):
        f(0.0)
    g = ad.compile(lambda r: r**0.5)
    assert g(4.0) == 2.0
    with pytest.raises(TransformError, match=r"-4.0 \*\* 0.5 is complex, but it was real when"):
        g(-4.0)


class Metres(float):
    """A subclass of float with operators of its own, which are not dropped in silence."""

    def __rmul__(self, other: Any) -> Any:
        return "metres", float(other) * float(self)


@pytest.mark.parametrize("f", [lambda r: r < "a", lambda r: r + "a", lambda r: [1] * r, lambda r: r - None])
def test_operators_that_a_float_does_not_have_are_type_errors(f: Any) -> None:
    for g in (f, ad.compile(f)):
        with pytest.raises(TypeError, match=r"'(float|Number)'"):
            g(0.5)


def test_a_subclass_of_float_keeps_its_operators() -> None:
    f = lambda r: r * Metres(2.0)
    assert ad.compile(f)(0.5) == f(0.5) == ("metres", 1.0)


def test_a_number_that_depends_on_a_tensor_cannot_be_read() -> None:
    f = ad.compile(lambda x, r: math.sin(ad.cond(x.sum() > 0, lambda: r, lambda: 2 * r)))
    with pytest.raises(TransformError, match=r"test_numbers.py:\d+ needs a number that is not known"):
        f(x32, 0.5)


TEXTS: dict[str, Callable[[Any], Any]] = {
    "str": str,
    "repr": repr,
    "of arithmetic": lambda r: str(abs(r) * 2 + 1),
    "of a comparison": lambda r: repr(r > 0),
    "%": lambda r: "%s %r %.2f" % (r, r, r),  # noqa: UP031
    "format": lambda r: f"{r} {r!r} {r!s:>8} {r:.1f}",
    "in containers": lambda r: str([r, (r,), {"a": r}, {r}]),
    "joined": lambda r: ",".join(map(str, (r, round(r, 1)))),
    "as a key": lambda r: {"0.5": "half", "-0.0": "zero"}.get(str(r)),
    "of a copy": lambda r: repr(copy.deepcopy({"r": copy.copy(r)})),
    "of an error": lambda r: str(ValueError(r)),
    "JSON": lambda r: json.dumps({"r": float(r)}),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_text_of_a_number(name: str) -> None:
    f = ad.compile(lambda x, r: (x * r, TEXTS[name](r)), backend="replay")
    for r in (0.5, -0.5, 0.5, 0.0, -0.0, math.inf, 1e300):
        product, text = f(x64, r)
        assert product.tolist() == (x64 * r).tolist()
        assert text == TEXTS[name](r)
    assert "%" in f.program(x64, 0.5)  # the names of values after the trace


@pytest.mark.parametrize("text", [str, repr])
def test_the_text_of_a_number_that_depends_on_a_tensor_is_an_error(text: Any) -> None:
    f = ad.compile(lambda x, r: (x, text(ad.cond(x.sum() > 0, lambda: r, lambda: 2 * r))))
    with pytest.raises(TransformError, match="needs a number that is not known"):
        f(x32, 0.5)


def test_the_warning_at_the_limit_names_the_line_that_reads_the_number() -> None:
    f = ad.compile(lambda x, t: x * math.cos(t), limit=2)
    f(x64, 0.1), f(x64, 0.2)
    with pytest.warns(UserWarning, match=r"test_numbers.py:\d+ reads the value of a number"):
        last = f(x64, 0.3)
    assert last.tolist() == (x64 * math.cos(0.3)).tolist()


@pytest.mark.parametrize("backend", ["replay", "auto"])
def test_a_number_in_the_body_of_a_loop_is_weak_and_the_loop_is_one_instruction(backend: str) -> None:
    def f(x: Any, r: float) -> Any:
        return ad.scan(lambda c, _: (ad.tanh(c * r), (c * (r + 1), c * (r > 0.6))), x, None, length=20)

    compiled = ad.compile(f, backend=backend)
    for r in (0.5, 0.75, 0.5):
        (carry, (a, b)), (wanted, (u, v)) = compiled(x32, r), f(x32, r)
        for got, value in zip((carry, a, b), (wanted, u, v), strict=True):
            assert got.dtype == value.dtype == np.float32
            np.testing.assert_allclose(got.numpy(), value.numpy(), rtol=1e-6)
    assert compiled.stats()["traces"] == 1
    assert compiled.stats()["programs"][0]["instructions"] < 10


@pytest.mark.parametrize("dtype", ["f", "e"])
@pytest.mark.parametrize("f", [ad.logaddexp, ad.atan2, ad.special.xlogy, ad.hypot, ad.multiply, ad.divide])
def test_rules_read_a_number_in_the_dtype_in_which_it_was_used(f: Any, dtype: str) -> None:
    """In eager mode, a number is converted to the dtype of the tensor, and so it is saved for the rules."""
    x, forward = ad.tensor(np.linspace(0.3, 2, 9).astype(dtype)), lambda v, r: f(v, r).sum()
    jvp = lambda v, r: ad.jvp(lambda u: f(u, r), (v,), (v * 0.7,))[1]
    for g in (ad.grad(forward), ad.grad(lambda v, r: ad.grad(forward)(v, r).sum()), jvp):
        compiled = ad.compile(g, backend="replay")
        for r in (0.37, 1.9):
            found, wanted = compiled(x, r), g(x, r)
            assert found.dtype == wanted.dtype and found.numpy().tobytes() == wanted.numpy().tobytes()
        assert compiled.stats()["traces"] == 1
