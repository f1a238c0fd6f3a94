"""The built-in ops and their cases, as they are before any test defines an op of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import adjoint as ad
from adjoint.core.op import OPS, Op
from adjoint.core.tensor import Tensor, wrap
from adjoint.testing import Case, cases

OP_NAMES: tuple[str, ...] = tuple(OPS)  # conftest.py imports this module first of all
CASES: dict[str, list[Case]] = {}
for _case in cases():
    CASES.setdefault(_case.op, []).append(_case)

SMOOTH = tuple(name for name in OP_NAMES if OPS[name].differentiable)
CONSTANT = tuple(name for name in OP_NAMES if not OPS[name].differentiable)


def is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "fc"


def checked(case: Case) -> list[int]:
    """The arguments of a case to which gradients flow."""
    op = OPS[case.op]
    return [i for i, a in enumerate(case.args) if is_float(a) and op.smooth(i)]


def operands(case: Case, wanted: list[int] | None = None, *, cast: Any = None) -> list[Any]:
    """The arguments as tensors; those in ``wanted`` (None: all that can) as leaves that require grad.

    The memory is not copied, so strided arrays stay strided.
    """
    chosen = checked(case) if wanted is None else wanted
    found: list[Any] = []
    for i, a in enumerate(case.args):
        if isinstance(a, np.ndarray):
            a = wrap(a.astype(cast) if cast is not None and a.dtype == np.float64 else a)
            if i in chosen:
                a.requires_grad_()
        found.append(a)
    return found


def run(case: Case, args: list[Any]) -> list[Tensor]:
    """Run the op of a case; its outputs as a list."""
    result = OPS[case.op].eager(*args, **case.params)
    return list(result) if isinstance(result, tuple) else [result]


def function(case: Case, wanted: list[int]) -> Callable[..., Any]:
    """The op of a case as a function of its arguments in ``wanted`` alone."""

    def f(*values: Any) -> Any:
        args = operands(case, [])
        for i, value in zip(wanted, values, strict=True):
            args[i] = value
        return tuple(run(case, args))

    return f


def seeds_for(outputs: list[Tensor]) -> list[Tensor]:
    """A fixed gradient for each output."""
    rng = np.random.default_rng(7)
    found = []
    for y in outputs:
        g = rng.uniform(0.5, 1.5, y.shape) * rng.choice([-1.0, 1.0], y.shape)
        if y.dtype.kind == "c":
            g = g + 1j * rng.uniform(0.5, 1.5, y.shape)
        found.append(wrap(np.asarray(g).astype(y.dtype)))
    return found


def gradients_of(
    case: Case, args: list[Any], *, create_graph: bool = False
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Run a case and its backward: its differentiable outputs, the leaves and their gradients."""
    outputs = [y for y in run(case, args) if y.requires_grad]
    leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    grads = ad.gradients(outputs, leaves, seeds_for(outputs), create_graph=create_graph)
    return outputs, leaves, list(grads)  # type: ignore[arg-type]


def op_of(name: str) -> Op:
    return OPS[name]
