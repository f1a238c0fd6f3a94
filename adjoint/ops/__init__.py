"""The op table and the public functions built on it; ``install`` adds operators and methods to tensors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from adjoint.core.conversion import check_conversion, in_assertion
from adjoint.core.eager import with_careful_path
from adjoint.core.inplace import AUGMENTED, augmented
from adjoint.core.lifted import Lifted
from adjoint.core.methods import COMPOSED, attach, install
from adjoint.core.namespace import dyn, rec
from adjoint.core.op import OPS
from adjoint.core.record import repeat_or_multiply
from adjoint.core.tensor import Tensor, concrete
from adjoint.core.user_code import library_of
from adjoint.core.values import decide
from adjoint.hints import add_hints, explain_class
from adjoint.ops import (
    activations,
    arrange,
    at,
    attention,
    banded,
    compare,
    complex_parts,
    conditions,
    contraction,
    conv,
    convolutions,
    create,
    diagonals,
    distances,
    distinct,
    elementwise,
    extremes,
    fft,
    filters,
    fused,
    grids,
    grouped,
    gru,
    index,
    join,
    linalg,
    nan_reduce,
    order,
    piecewise,
    pool,
    products,
    recurrent,
    reduce,
    scan,
    selection,
    shape,
    sparse_matrices,
    special,
)
from adjoint.ops.examples import add_examples

MODULES = (
    elementwise, complex_parts, piecewise, compare, reduce, extremes, scan, shape, join, arrange, grids,
    diagonals, index, selection, conditions, order, distinct, nan_reduce, grouped, products, contraction,
    distances, filters, banded, activations, attention, fused, recurrent, gru, conv, convolutions, pool,
    create, special, sparse_matrices,
)  # fmt: skip
NAMESPACES = {"linalg": linalg, "fft": fft}  # submodules, as NumPy has them


add_examples()
# this must run before the functions become methods of tensors
add_hints(*(module.__name__ for module in (*MODULES, *NAMESPACES.values())))
_PUBLIC = {name: getattr(module, name) for module in reversed(MODULES) for name in module.__all__}


def function(name: str) -> Any:
    """Return the public function ``name``, by default the eager function of this op, or None if unknown."""
    return _PUBLIC[name] if name in _PUBLIC else getattr(rec, name, None)


for _op in OPS.values():
    install(Tensor, _op, function(_op.name))
    install(Lifted, _op, getattr(dyn, _op.name), operators_only=True)
# [0] * n repeats the list
attach(Tensor, **dict.fromkeys(("__mul__", "__rmul__"), with_careful_path(rec.multiply, repeat_or_multiply)))
attach(Tensor, **{name: function(name) for name in COMPOSED})
attach(Tensor, **{method: augmented(method) for method in AUGMENTED})
explain_class(at.At)


def _comparison(method: str) -> None:
    """Replace ``method`` (``__eq__`` or ``__ne__``) of tensors by one that accepts None and strings.

    A tensor is never equal to None or a string.  Raise if NumPy or SciPy finds that a number in a graph equals
    another one: ``if p == 1`` chooses a formula without p.
    """
    compare_values = getattr(Tensor, method)

    def compare_any(self: Tensor, other: Any) -> Any:
        if other is None or isinstance(other, (str, bytes)):
            return NotImplemented
        if getattr(type(other), "__array_ufunc__", other) is None and not isinstance(other, (Tensor, Lifted)):
            # NumPy's sign that a class compares arrays itself, such as pytest.approx
            values = concrete(self, "a comparison")[()]
            return other == values if method == "__eq__" else other != values
        frame = sys._getframe(1)
        if isinstance(other, Tensor) and (self.ndim or other.ndim) and in_assertion(frame):
            same = np.array_equal(self.numpy(), other.numpy(), equal_nan=self.dtype.kind in "fc")
            return same is (method == "__eq__")  # assert_equal compares what is no array as one object
        result = compare_values(self, other)
        if result.ndim or library_of(frame) not in ("numpy", "scipy"):
            return result
        if decide(bool, result) is (method == "__eq__"):
            formula = f"{frame.f_code.co_name} has a formula of its own for this number."
            for t in (self, other):
                if isinstance(t, Tensor):
                    check_conversion(t, "a Python condition", formula)
        return result

    compare_any.__name__ = method
    setattr(Tensor, method, compare_any)


_comparison("__eq__")
_comparison("__ne__")
attach(
    Tensor,
    __getitem__=index.getitem,
    __setitem__=index.setitem,
    __divmod__=piecewise.divmod,
    __rdivmod__=piecewise.reflected_divmod,
    __round__=piecewise.round,
    __trunc__=piecewise.whole_part("trunc"),  # for math.trunc; a tensor with one element becomes an int
    __floor__=piecewise.whole_part("floor"),
    __ceil__=piecewise.whole_part("ceil"),
    at=property(at.At),
    reshape=shape.reshape_method,
    T=property(shape.transpose),
    mT=property(shape.matrix_transpose),
    real=property(complex_parts.real),
    imag=property(complex_parts.imag),
)


def _lifted_getitem(x: Lifted, key: Any) -> Any:
    return dyn.index(x, key=index.canonical_key(x.shape, key))


attach(Lifted, __getitem__=_lifted_getitem)
