"""``autograd.test_util``: checks of gradients."""

from adjoint.autograd.spaces import (
    check_equivalent,
    check_grads,
    check_jvp,
    check_vjp,
    combo_check,
    scalar_close,
)

__all__ = [
    "check_equivalent",
    "check_grads",
    "check_jvp",
    "check_vjp",
    "combo_check",
    "scalar_close",
]
__dir__ = sorted(__all__).copy
