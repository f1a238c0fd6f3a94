"""Bessel functions of a fixed real order; their derivatives are Bessel functions, too."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.define import define
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.ops.half import in_float32
from adjoint.ops.scipy_forward import of_order, real_arrays, special_module
from adjoint.ops.special_order import of_each_order, real_order, whole_order
from adjoint.typing import ArrayLike

__all__ = [
    "i0", "i0e", "i1", "i1e", "iv", "ive", "j0", "j1", "jn", "jv", "k0", "k0e", "k1", "k1e", "kn", "kv",
    "kve", "spherical_in", "spherical_jn", "spherical_kn", "spherical_yn", "y0", "y1", "yn", "yv",
]  # fmt: skip

ROOT_2PI = math.sqrt(2 * math.pi)


define("iv", in_float32(lambda x, n: _bessel("iv", n, x)), lambda xp, g, y, x, n: g * (0.5 * (xp.iv(x, n=n - 1) + xp.iv(x, n=n + 1))),
       saves="x", params=("n",), reference="scipy.special:iv", doc="The modified Bessel function of the first kind.")  # fmt: skip
define("ive", in_float32(lambda x, n: _bessel("ive", n, x)),
       lambda xp, g, y, x, n: g * xp.ive_derivative(x, n=n, order=1), saves="x", params=("n",),
       reference="scipy.special:ive", doc="The modified Bessel function times exp(-|x|).")  # fmt: skip
define("ive_derivative", in_float32(lambda x, n, order: _ive_derivative(x, n, order)),
       lambda xp, g, y, x, n, order: g * xp.ive_derivative(x, n=n, order=order + 1), saves="x", params=("n", "order"),
       reference="formula", doc="A derivative of the modified Bessel function times exp(-|x|).")  # fmt: skip
define("jv", in_float32(lambda x, n: _bessel("jv", n, x)), lambda xp, g, y, x, n: g * (0.5 * (xp.jv(x, n=n - 1) - xp.jv(x, n=n + 1))),
       saves="x", params=("n",), reference="scipy.special:jv", doc="The Bessel function of the first kind.")  # fmt: skip


_FASTER = {
    "iv0": "i0",
    "iv1": "i1",
    "ive0": "i0e",
    "ive1": "i1e",
    "kv0": "k0",
    "kv1": "k1",
}  # SciPy's functions of one fixed order, which are several times as fast


def _bessel(name: str, n: float, x: Any) -> Any:
    (x,) = real_arrays(x)
    value = _ive_derivative(x, n, 0) if name == "ive" and abs(n) > 1 else _from_zero(name, n, x)
    return value.astype(x.dtype) if x.dtype.kind == "f" else value


def _from_zero(name: str, n: float, x: Any) -> Any:
    """Return SciPy's Bessel function ``name`` of order n.

    Near 0, where SciPy is inaccurate, return the first two terms of the power series.
    """
    special = special_module(name)
    faster = _FASTER.get(f"{name}{abs(n)}")  # I₋ₙ = Iₙ
    if faster:
        return getattr(special, faster)(x)
    x = x.astype(np.float64)
    if not isinstance(n, int):
        return getattr(special, name)(n, x)
    if name in ("yv", "kv"):
        return getattr(special, name)(n, x)
    near = np.abs(x) < 1e-5
    half = np.where(near, x, 0) / 2
    order = abs(n)
    sign = (-1) ** order if name == "jv" and n < 0 else 1
    square = half * half * (-1 if name == "jv" else 1)
    series = sign * half**order / math.factorial(order) * (1 + square / (order + 1))
    if name == "ive":
        series = series * np.exp(-2 * np.abs(half))
    return np.where(near, series, getattr(special, name)(n, np.where(near, 1, x)))


def _ive_derivative(x: Any, n: float, order: int) -> Any:
    """Return the derivative of order m = ``order`` of exp(-|x|) Iₙ(x).

    At 0 the result is the mean of the one-sided derivatives.  For x > 0 it is exp(-x) (D - 1)ᵐ Iₙ, where D is
    the derivative.  As 2 D Iₙ = Iₙ₋₁ + Iₙ₊₁, this is 2⁻ᵐ times a central difference of order 2m in n.  The
    difference cancels for large x.  There the asymptotic series exp(-x) Iₙ(x) = Σₖ aₖ x^(-k-1/2) / √(2π) is
    differentiated.
    """
    (x,) = real_arrays(x)
    dtype = x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)
    size = np.abs(x.astype(np.float64))
    edge = max(25.0, float(n * n))
    near = np.minimum(size, edge)
    parts = (
        (-1.0) ** j * math.comb(2 * order, j) * _from_zero("ive", n + order - j, near)
        for j in range(2 * order + 1)
    )
    value = sum(parts)
    value = np.asarray(value * 0.5**order)
    if (size > edge).any():
        far = np.maximum(size, edge)
        total, a = np.zeros_like(far), 1 / ROOT_2PI
        for k in range(30):
            # the derivative of x^(-k-1/2)
            total += a * math.prod(-k - 0.5 - m for m in range(order)) * far**-k
            a *= -(4 * n * n - (2 * k + 1) ** 2) / (8 * (k + 1))
        value = np.where(size > edge, total / np.sqrt(far) / far**order, value)
    if isinstance(n, int) and (n + order) % 2:
        value = value * np.sign(x)
    return value.astype(dtype)


define("yv", in_float32(lambda x, n: _bessel("yv", n, x)), lambda xp, g, y, x, n: g * (0.5 * (xp.yv(x, n=n - 1) - xp.yv(x, n=n + 1))),
       saves="x", params=("n",), reference="scipy.special:yv", doc="The Bessel function of the second kind.")  # fmt: skip
define("kv", in_float32(lambda x, n: _bessel("kv", n, x)), lambda xp, g, y, x, n: -g * (0.5 * (xp.kv(x, n=n - 1) + xp.kv(x, n=n + 1))),
       saves="x", params=("n",), reference="scipy.special:kv", doc="The modified Bessel function of the second kind.")  # fmt: skip
define("kve", in_float32(lambda x, n: _kve_derivative(x, n, 0)),
       lambda xp, g, y, x, n: g * xp.kve_derivative(x, n=n, order=1), saves="x", params=("n",),
       reference="scipy.special:kve", doc="The modified Bessel function of the second kind times exp(x).")  # fmt: skip
define("kve_derivative", in_float32(lambda x, n, order: _kve_derivative(x, n, order)),
       lambda xp, g, y, x, n, order: g * xp.kve_derivative(x, n=n, order=order + 1), saves="x", params=("n", "order"),
       reference="formula", doc="A derivative of the modified Bessel function of the second kind times exp(x).")  # fmt: skip


def _kve_derivative(x: Any, n: float, order: int) -> Any:
    """Return the derivative of order ``order`` of exp(x) Kₙ(x).

    The two methods are those of ``_ive_derivative``: a difference in n, and an asymptotic series for large x.
    """
    (x,) = real_arrays(x)
    dtype = x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)
    x = x.astype(np.float64)
    edge = max(25.0, float(n * n))
    kve = special_module("kve").kve
    with np.errstate(all="ignore"):
        near = np.minimum(x, edge)
        parts = (
            (-1.0) ** j * math.comb(2 * order, j) * kve(n + order - j, near) for j in range(2 * order + 1)
        )
        value = np.asarray(sum(parts)) * (-0.5) ** order
        if (x > edge).any():
            far = np.maximum(x, edge)
            total, a = np.zeros_like(far), math.sqrt(math.pi / 2)
            for k in range(30):
                total += a * math.prod(-k - 0.5 - m for m in range(order)) * far**-k
                a *= (4 * n * n - (2 * k + 1) ** 2) / (8 * (k + 1))
            value = np.where(x > edge, total / np.sqrt(far) / far**order, value)
    return value.astype(dtype)


# Spherical Bessel functions f: (2n + 1) fₙ' = ± n fₙ₋₁ ± (n + 1) fₙ₊₁


_SIGNS = {"spherical_jn": (1, -1), "spherical_yn": (1, -1), "spherical_in": (1, 1), "spherical_kn": (-1, -1)}


def _slope(xp: Any, name: str, x: Any, n: int) -> Any:
    f, (before, after) = getattr(xp, name), _SIGNS[name]
    slope = f(x, n=n + 1) * (after * (n + 1) / (2 * n + 1))
    return slope + f(x, n=n - 1) * (before * n / (2 * n + 1)) if n else slope


def _spherical(name: str, what: str) -> None:
    def rule(xp: Any, g: Any, y: Any, x: Any, n: int) -> Any:
        return g * _slope(xp, name, x, n)

    define(name, of_order(name), rule, saves="x", params=("n",), reads=("x",), reference=f"scipy.special:{name}", doc=what)  # fmt: skip


_spherical("spherical_jn", "The spherical Bessel function of the first kind.")
_spherical("spherical_yn", "The spherical Bessel function of the second kind.")
_spherical("spherical_in", "The modified spherical Bessel function of the first kind.")
_spherical("spherical_kn", "The modified spherical Bessel function of the second kind.")


# Public functions ------------------------------------------------------------------------------

_DOC = """Return the {what}.

Parameters
----------
{order}x : array_like
    The argument.

Returns
-------
Tensor
    The function at ``x``.

Examples
--------
>>> import adjoint as ad
>>> round(ad.special.{name}({call}).item(), 12)
{value}
"""
_ORDER = """{name} : {kind}
    The order, to which no gradient flows.
"""


_SPHERICAL = """z : array_like
    The argument.
derivative : bool, optional
    Whether to return the derivative instead.
"""


def _of_order(name: str, op: str, what: str, value: str, whole: bool = False) -> Callable[..., Tensor]:
    """Return the public function ``name(order, x)`` of ``ad.special``, which calls the op named ``op``.

    If ``whole``, the order must be an integer.  ``what`` and ``value`` are for the docstring of the function:
    its description, and the result of its example.
    """
    if whole:

        def function(n: Any, x: ArrayLike) -> Tensor:
            return of_each_order(getattr(rec, op), n, x, lambda n: whole_order(name, n))

    else:

        def function(v: Any, x: ArrayLike) -> Tensor:  # type: ignore[misc]  # SciPy's parameter names: n or v
            return of_each_order(getattr(rec, op), v, x, lambda v: real_order(name, v))

    order = _ORDER.format(
        name="n" if whole else "v", kind="int or array of int" if whole else "float or array of float"
    )
    return _named(function, name, _DOC.format(what=what, order=order, name=name, call="2, 1.0", value=value))


def _of_spherical_order(name: str, what: str, value: str) -> Callable[..., Tensor]:
    """Return the public function ``name(n, z, derivative)``, a spherical Bessel function.

    ``what`` and ``value`` are for its docstring: the description, and the result of the example.
    """

    def function(n: Any, z: ArrayLike, derivative: bool = False) -> Tensor:
        op = (lambda x, n: _slope(rec, name, x, n)) if derivative else getattr(rec, name)
        return of_each_order(op, n, z, lambda n: whole_order(name, n, 0))

    doc = _DOC.format(
        what=what,
        order=_ORDER.format(name="n", kind="int or array of int"),
        name=name,
        call="2, 1.0",
        value=value,
    )
    doc = doc.replace("x : array_like\n    The argument.\n", _SPHERICAL).replace("at ``x``", "at ``z``")
    return _named(function, name, doc)


def _of_fixed_order(name: str, op: str, n: int, what: str, value: str) -> Callable[..., Tensor]:
    """Return the public function ``name(x)``, which calls the op named ``op`` with the order n.

    ``what`` and ``value`` are for its docstring: the description, and the result of the example.
    """

    def function(x: ArrayLike) -> Tensor:
        return getattr(rec, op)(asarray(x), n=n)

    return _named(function, name, _DOC.format(what=what, order="", name=name, call="1.0", value=value))


def _named(function: Callable[..., Tensor], name: str, doc: str) -> Callable[..., Tensor]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


_FIRST, _SECOND = "Bessel function of the first kind", "Bessel function of the second kind"
_TIMES = ", times exp(x)"
jv = _of_order("jv", "jv", f"{_FIRST} of a real order", "0.114903484932")
jn = _of_order("jn", "jv", f"{_FIRST} of a real order", "0.114903484932")
yv = _of_order("yv", "yv", f"{_SECOND} of a real order", "-1.650682606816")
yn = _of_order("yn", "yv", f"{_SECOND} of an integer order", "-1.650682606816", whole=True)
iv = _of_order("iv", "iv", f"modified {_FIRST} of a real order", "0.135747669767")
ive = _of_order("ive", "ive", f"modified {_FIRST} of a real order, times exp(-|x|)", "0.049938776894")
kv = _of_order("kv", "kv", f"modified {_SECOND} of a real order", "1.624838898635")
kn = _of_order("kn", "kv", f"modified {_SECOND} of an integer order", "1.624838898635", whole=True)
kve = _of_order("kve", "kve", f"modified {_SECOND} of a real order{_TIMES}", "4.416770052333")
spherical_jn = _of_spherical_order("spherical_jn", f"spherical {_FIRST}", "0.062035052011")
spherical_yn = _of_spherical_order("spherical_yn", f"spherical {_SECOND}", "-3.60501756616")
spherical_in = _of_spherical_order("spherical_in", f"modified spherical {_FIRST}", "0.071562870129")
spherical_kn = _of_spherical_order("spherical_kn", f"modified spherical {_SECOND}", "4.045045724268")
j0 = _of_fixed_order("j0", "jv", 0, f"{_FIRST} of order 0", "0.765197686558")
j1 = _of_fixed_order("j1", "jv", 1, f"{_FIRST} of order 1", "0.440050585745")
y0 = _of_fixed_order("y0", "yv", 0, f"{_SECOND} of order 0", "0.088256964216")
y1 = _of_fixed_order("y1", "yv", 1, f"{_SECOND} of order 1", "-0.7812128213")
i0 = _of_fixed_order("i0", "iv", 0, f"modified {_FIRST} of order 0", "1.266065877752")
i1 = _of_fixed_order("i1", "iv", 1, f"modified {_FIRST} of order 1", "0.565159103992")
i0e = _of_fixed_order("i0e", "ive", 0, f"modified {_FIRST} of order 0, times exp(-|x|)", "0.465759607594")
i1e = _of_fixed_order("i1e", "ive", 1, f"modified {_FIRST} of order 1, times exp(-|x|)", "0.20791041535")
k0 = _of_fixed_order("k0", "kv", 0, f"modified {_SECOND} of order 0", "0.421024438241")
k1 = _of_fixed_order("k1", "kv", 1, f"modified {_SECOND} of order 1", "0.601907230197")
k0e = _of_fixed_order("k0e", "kve", 0, f"modified {_SECOND} of order 0{_TIMES}", "1.144463079807")
k1e = _of_fixed_order("k1e", "kve", 1, f"modified {_SECOND} of order 1{_TIMES}", "1.636153486263")
