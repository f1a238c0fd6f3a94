"""Vector functions such as exp and sin, accurate within 2 ulp: ``emit(w, name, *values)``.

All functions have a float64 version.  The common ones also have a float32 version; for float32, the others
are computed in float64 with shorter polynomials, which is faster than a careful float32 version would be.
"""

from __future__ import annotations

from collections.abc import Callable

from adjoint.compiler.emit import explog, special, trig
from adjoint.compiler.emit.text import Writer
from adjoint.compiler.emit.values import Value

__all__ = ["FUNCTIONS", "emit"]

FUNCTIONS: dict[str, Callable[..., Value]] = {
    "acos": trig.acos,
    "acosh": explog.acosh,
    "asin": trig.asin,
    "asinh": explog.asinh,
    "atan": trig.atan,
    "atan2": trig.atan2,
    "atanh": explog.atanh,
    "cbrt": special.cbrt,
    "cos": trig.cos,
    "cosh": explog.cosh,
    "erf": special.erf,
    "erfc": special.erfc,
    "exp": explog.exp,
    "exp2": explog.exp2,
    "expm1": explog.expm1,
    "hypot": special.hypot,
    "log": explog.log,
    "log10": explog.log10,
    "log1p": explog.log1p,
    "log2": explog.log2,
    "logaddexp": explog.logaddexp,
    "logaddexp2": explog.logaddexp2,
    "ndtr": special.ndtr,
    "pow": explog.pow,
    "sin": trig.sin,
    "sinh": explog.sinh,
    "tan": trig.tan,
    "tanh": explog.tanh,
    "tanh_from_gap": explog.tanh_from_gap,
    "tanh_gap": explog.tanh_gap,
}

# Functions with a float32 version.
OWN32 = frozenset(("exp", "exp2", "expm1", "log", "tanh", "tanh_from_gap", "tanh_gap"))


def emit(w: Writer, name: str, *values: Value) -> Value:
    """Emit the function ``name`` (such as "exp") of float vectors; the result has the same type."""
    if name == "sqrt":
        return w.sqrt(values[0])
    function = FUNCTIONS[name]
    if values[0].element == "double" or name in OWN32:
        return function(w, *values)
    return w.convert(function(w, *(w.convert(v, "double") for v in values), lean=True), "float")
