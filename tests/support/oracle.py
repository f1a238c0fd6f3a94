"""PyTorch as an independent oracle: values, gradients, double backward; real and complex.

A family writes a table of ``Row``s and runs ``agree`` on each::

    torch = pytest.importorskip("torch")
    from oracle import Row, agree, real

    ROWS = [
        Row("sum", lambda x: ad.sum(x, axis=0), lambda x: torch.sum(x, dim=0), real((2, 3))),
        Row("matmul", ad.matmul, torch.matmul, real((2, 3), (3, 4)), "batch of one"),
    ]

    @pytest.mark.oracle
    @pytest.mark.parametrize("row", ROWS, ids=str)
    def test_agrees_with_torch(row):
        agree(row)

Float and complex arguments are differentiated, all others are passed on as they are.  A function
may return one tensor or several.  Outputs and gradients are compared in shape, dtype and value;
where one side has no gradient (None), the other's must be zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import adjoint as ad

torch = pytest.importorskip("torch")

Make = Callable[[np.random.Generator], tuple[Any, ...]]


@dataclass(frozen=True)
class Row:
    """One function in both libraries, and how to make its arguments."""

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    make: Make
    note: str = ""
    order: int = 2  # 0: values, 1: gradients, 2: double backward too
    rtol: float = 1e-9
    atol: float = 1e-10

    def __str__(self) -> str:
        return f"{self.name}-{self.note}" if self.note else self.name


# Makers of arguments ---------------------------------------------------------------------------


def real(*shapes: tuple[int, ...], low: float = -2.0, high: float = 2.0, dtype: Any = np.float64) -> Make:
    """Make float arrays of these shapes with numbers between ``low`` and ``high``."""
    return lambda rng: tuple(np.asarray(rng.uniform(low, high, s), dtype) for s in shapes)


def complex_(*shapes: tuple[int, ...], low: float = -2.0, high: float = 2.0) -> Make:
    """Make complex arrays whose real and imaginary parts are between ``low`` and ``high``."""
    return lambda rng: tuple(
        np.asarray(rng.uniform(low, high, s) + 1j * rng.uniform(low, high, s)) for s in shapes
    )


def exactly(*args: Any) -> Make:
    """Make these very arguments."""
    return lambda rng: tuple(np.asarray(a) if isinstance(a, (list, float)) else a for a in args)


# The comparison --------------------------------------------------------------------------------


def agree(row: Row, seed: int = 0) -> None:
    """Raise an AssertionError, which names the row, unless both libraries agree on it."""
    rng = np.random.default_rng(seed)
    args = row.make(rng)
    ours, our_inputs = _apply(row.ours, args, _our_tensor)
    theirs, their_inputs = _apply(row.theirs, args, _their_tensor)
    assert len(ours) == len(theirs), f"{row}: {len(ours)} outputs, torch has {len(theirs)}"
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        _same(row, f"output {i}", a, b)
    if row.order < 1:
        return
    roots = [i for i, t in enumerate(theirs) if t.requires_grad]
    assert roots == [i for i, t in enumerate(ours) if t.requires_grad], f"{row}: outputs that require grad"
    cotangents = [_like(rng, ours[i]) for i in roots]
    ours, theirs = [ours[i] for i in roots], [theirs[i] for i in roots]
    our_seeds, their_seeds = [_our_tensor(c) for c in cotangents], [_their_tensor(c) for c in cotangents]
    double = row.order > 1
    our_grads = _our_gradients(ours, our_inputs, our_seeds, double)
    their_grads = _their_gradients(theirs, their_inputs, their_seeds, double)
    _same_all(row, "gradient of argument", our_grads, their_grads, our_inputs)
    if not double:
        return
    # the gradients, contracted with fixed directions, differentiated once more: in the arguments
    # and in the cotangents (the derivative of a vector-Jacobian product in its vector)
    directions = [_like(rng, x) for x in our_inputs]
    our_second = _our_gradients(*_with_history(our_grads, directions, [*our_inputs, *our_seeds], _our_tensor))
    their_second = _their_gradients(
        *_with_history(their_grads, directions, [*their_inputs, *their_seeds], _their_tensor)
    )
    _same_all(row, "double backward of argument", our_second, their_second, [*our_inputs, *our_seeds])


def _with_history(
    grads: list[Any], directions: list[Any], inputs: list[Any], make: Any
) -> tuple[Any, Any, Any]:
    """Choose the gradients that can be differentiated: a constant one has no history."""
    chosen = [
        (g, make(d)) for g, d in zip(grads, directions, strict=True) if g is not None and g.requires_grad
    ]
    return [g for g, _ in chosen], inputs, [d for _, d in chosen]


def _apply(function: Any, args: tuple[Any, ...], make: Any) -> tuple[list[Any], list[Any]]:
    """Call a function on fresh tensors; return its outputs, and the tensors that require grad."""
    tensors = [make(a) if isinstance(a, np.ndarray) else a for a in args]
    out = function(*tensors)
    outputs = list(out) if isinstance(out, (tuple, list)) else [out]
    return outputs, [t for t in tensors if getattr(t, "requires_grad", False)]


def _our_tensor(a: np.ndarray[Any, Any]) -> Any:
    return ad.tensor(a, requires_grad=a.dtype.kind in "fc")


def _their_tensor(a: np.ndarray[Any, Any]) -> Any:
    return torch.from_numpy(np.array(a)).requires_grad_(a.dtype.kind in "fc")


def _our_gradients(outputs: Any, inputs: Any, seeds: Any, create_graph: bool = False) -> list[Any]:
    if not outputs:
        return [None] * len(inputs)
    return list(ad.gradients(outputs, inputs, seeds, create_graph=create_graph, allow_unused=True))


def _their_gradients(outputs: Any, inputs: Any, seeds: Any, create_graph: bool = False) -> list[Any]:
    if not outputs:
        return [None] * len(inputs)
    return list(torch.autograd.grad(outputs, inputs, seeds, create_graph=create_graph, allow_unused=True))


def _like(rng: np.random.Generator, t: Any) -> np.ndarray[Any, Any]:
    """Draw a direction of the shape and dtype of a tensor."""
    a = rng.standard_normal(t.shape)
    return np.asarray(a + 1j * rng.standard_normal(t.shape) if t.dtype.kind == "c" else a, t.dtype)


def _same_all(row: Row, what: str, ours: list[Any], theirs: list[Any], like: list[Any]) -> None:
    for i, (a, b, x) in enumerate(zip(ours, theirs, like, strict=True)):
        _same(row, f"{what} {i}", a, b)
        if a is not None:
            assert a.shape == x.shape, f"{row}: {what} {i} has shape {a.shape}, its tensor {x.shape}"
            assert a.dtype == x.dtype, f"{row}: {what} {i} is {a.dtype}, its tensor {x.dtype}"


def _same(row: Row, what: str, a: Any, b: Any) -> None:
    a = None if a is None else np.asarray(a.detach().numpy())
    b = None if b is None else b.numpy(force=True)
    if a is None or b is None:
        rest = a if b is None else b
        assert rest is None or not np.any(rest), f"{row}: {what}: one side has none, the other {rest}"
        return
    assert a.shape == b.shape, f"{row}: {what} has shape {a.shape}, torch {b.shape}"
    assert a.dtype == b.dtype, f"{row}: {what} is {a.dtype}, torch {b.dtype}"
    np.testing.assert_allclose(a, b, rtol=row.rtol, atol=row.atol, err_msg=f"{row}: {what}")
