"""Call a function as ``ad.f``, as ``np.f`` and as a method, and compare each with NumPy's own answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import adjoint as ad
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import AdjointError
from adjoint.testing import gradcheck


@dataclass(frozen=True)
class Call:
    """``name(x, *args, **kwargs)`` with an array x of this shape."""

    name: str
    shape: tuple[int, ...]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    method: bool = True  # tensors have the method, with the same arguments

    def __str__(self) -> str:
        inside = [str(self.shape), *map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        return f"{self.name}({', '.join(inside)})".replace(" ", "").replace("\n", "")


def call(name: str, shape: tuple[int, ...], /, *args: Any, **kwargs: Any) -> Call:
    return Call(name, shape, args, kwargs)


def distinct(shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray[Any, Any]:
    """An array of distinct numbers, none of them zero, in no order."""
    size = int(np.prod(shape, dtype=int))
    values = np.random.default_rng(size).permutation(size) - size / 2 + 0.25
    return (values / max(size, 1) * 3).reshape(shape).astype(dtype)


def numpy_answer(c: Call, a: Any) -> Any:
    """NumPy's result, or the class of its error."""
    with np.errstate(all="ignore"):
        try:
            return getattr(np, c.name)(a, *c.args, **c.kwargs)
        except (ValueError, TypeError, IndexError) as error:
            return type(error)


def answers(c: Call, x: Tensor) -> dict[str, Any]:
    """Our result by each way of calling, or the class of the error."""
    ways = {
        "ad": lambda: getattr(ad, c.name)(x, *c.args, **c.kwargs),
        "np": lambda: getattr(np, c.name)(x, *c.args, **c.kwargs),
    }
    if c.method and hasattr(Tensor, c.name):
        ways["method"] = lambda: getattr(x, c.name)(*c.args, **c.kwargs)
    found: dict[str, Any] = {}
    for way, f in ways.items():
        try:
            found[way] = f()
        except AdjointError as error:
            found[way] = type(error)
    return found


def check_values(c: Call, a: Any, rtol: float = 1e-12) -> None:
    """Compare shape, dtype and values, or the kind of error, with NumPy's."""
    expected = numpy_answer(c, a)
    for way, got in answers(c, wrap(np.asarray(a))).items():
        where = f"{c} by {way}"
        if isinstance(expected, type):
            assert isinstance(got, type), f"{where}: NumPy raises {expected.__name__}, we return {got}"
            continue
        assert not isinstance(got, type), f"{where}: NumPy returns {expected}, we raise {got}"
        ours, theirs = flat(got), flat(expected)
        assert len(ours) == len(theirs), where
        for y, e in zip(ours, theirs, strict=True):
            e = np.asarray(e)
            assert isinstance(y, Tensor), where
            assert (y.shape, y.dtype) == (e.shape, e.dtype), (
                f"{where}: {y.shape} {y.dtype}, {e.shape} {e.dtype}"
            )
            np.testing.assert_allclose(y.numpy(), e, rtol=rtol, atol=rtol, err_msg=where)


def check_gradients(c: Call, a: Any, order: int = 2) -> None:
    """Check derivatives of the float outputs against finite differences."""

    def f(x: Tensor) -> Any:
        outputs = flat(getattr(ad, c.name)(x, *c.args, **c.kwargs))
        return tuple(y for y in outputs if y.dtype.kind in "fc")

    assert gradcheck(f, [a], order=order)


def flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]
