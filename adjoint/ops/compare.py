"""Comparisons, logic and bits: no gradient flows through them."""

from __future__ import annotations

import operator

import numpy as np

from adjoint.core.define import define

__all__ = [
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "equal",
    "greater",
    "greater_equal",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_equal",
    "signbit",
]

_WHY = "it is piecewise constant"


equal = define("equal", np.equal, None, None, reason=_WHY)
not_equal = define("not_equal", np.not_equal, None, None, reason=_WHY)
less = define("less", np.less, None, None, reason=_WHY)
less_equal = define("less_equal", np.less_equal, None, None, reason=_WHY)
greater = define("greater", np.greater, None, None, reason=_WHY)
greater_equal = define("greater_equal", np.greater_equal, None, None, reason=_WHY)

logical_and = define("logical_and", np.logical_and, None, None, reason=_WHY)
logical_or = define("logical_or", np.logical_or, None, None, reason=_WHY)
logical_xor = define("logical_xor", np.logical_xor, None, None, reason=_WHY)
logical_not = define("logical_not", np.logical_not, None, reason=_WHY)

bitwise_and = define(
    "bitwise_and", operator.and_, None, None, ufunc=np.bitwise_and, reason=_WHY, domain="int"
)
bitwise_or = define("bitwise_or", operator.or_, None, None, ufunc=np.bitwise_or, reason=_WHY, domain="int")
bitwise_xor = define("bitwise_xor", operator.xor, None, None, ufunc=np.bitwise_xor, reason=_WHY, domain="int")
bitwise_invert = define("bitwise_invert", operator.invert, None, ufunc=np.invert, reason=_WHY, domain="int")
bitwise_left_shift = define("bitwise_left_shift", operator.lshift, None, None, ufunc=np.left_shift, reason=_WHY,
                            domain="int")  # fmt: skip
bitwise_right_shift = define("bitwise_right_shift", operator.rshift, None, None, ufunc=np.right_shift, reason=_WHY,
                             domain="int")  # fmt: skip

isnan = define("isnan", np.isnan, None, reason=_WHY)
isinf = define("isinf", np.isinf, None, reason=_WHY)
isfinite = define("isfinite", np.isfinite, None, reason=_WHY)
signbit = define("signbit", np.signbit, None, reason=_WHY)
