"""Vector functions such as exp and sin, accurate within 2 ulp: ``emit(w, name, *values)``.

All functions have a float64 and a float32 version.  For float32, the less common ones are computed in float64
with shorter polynomials, which is faster than a careful float32 version, except where there is no float64.
"""

from __future__ import annotations

from collections.abc import Callable

from adjoint.compiler.emit.arithmetic import Arithmetic
from adjoint.compiler.emit.math import explog, special, trig
from adjoint.compiler.emit.terms import Term
from adjoint.compiler.emit.values import Value

__all__ = ["FUNCTIONS", "emit"]

FUNCTIONS: dict[str, Callable[..., Term]] = {
    name: getattr(module, name) for module in (explog, trig, special) for name in module.__all__
}

# Functions whose float32 version is used everywhere.
OWN32 = frozenset(("exp", "exp2", "expm1", "log", "tanh", "tanh_from_gap", "tanh_gap"))


def emit(w: Arithmetic, name: str, *values: Value) -> Value:
    """Emit the function ``name`` (such as "exp") of float vectors; the result has the same type."""
    if name == "sqrt":
        return w.sqrt(values[0])
    lean = values[0].element == "float" and name not in OWN32 and w.float64
    given = [Term(w, w.convert(v, "double") if lean else v) for v in values]
    found = FUNCTIONS[name](*given, lean=True) if lean else FUNCTIONS[name](*given)
    return w.convert(found.value, "float") if lean else found.value
