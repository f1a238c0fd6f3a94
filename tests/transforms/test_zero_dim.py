"""0-d intermediates in every mode: rules return NumPy scalars for them, where other values are arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from table import CASES, SMOOTH, checked

import adjoint as ad
from adjoint.core.op import OPS
from adjoint.errors import AdjointError

Function = Callable[[Any], Any]


def by_custom_vjp(f: Function) -> Any:
    custom = ad.custom_vjp(f)
    custom.defvjp(lambda x: (f(x), x), lambda x, g: (g * ad.grad(f)(x),))
    return lambda x: custom(x * 1.0)


def by_custom_jvp(f: Function) -> Any:
    custom = ad.custom_jvp(f)
    custom.defjvp(lambda primals, tangents: ad.jvp(f, primals, tangents))
    return lambda x: custom(x * 1.0)


def by_checkpoint(f: Function) -> Any:
    return lambda x: ad.checkpoint(f, x * 1.0)


def by_gradients(f: Function) -> Any:
    def derivative(x: Any) -> Any:
        leaf = ad.tensor(x, requires_grad=True)
        return ad.gradients(f(leaf), [leaf], create_graph=True)[0].detach().numpy()

    return derivative


def along(f: Function) -> Any:
    return lambda x: ad.jvp(f, (x,), (1.0,))[1]


BATCH = np.array([1.0, 1.0])
MODES: dict[str, Callable[[Function], Function]] = {
    "grad": ad.grad,
    "jvp": along,
    "jvp of tensors": lambda f: lambda x: ad.jvp(f, (ad.tensor(x),), (ad.tensor(1.0),))[1].numpy(),
    "linearize": lambda f: lambda x: ad.linearize(f, x)[1](1.0),
    "vjp": lambda f: lambda x: ad.vjp(f, x)[1](1.0)[0],
    "jacfwd": ad.jacfwd,
    "vmap of grad": lambda f: lambda x: ad.vmap(ad.grad(f))(x * BATCH)[1],
    "vmap of jvp": lambda f: lambda x: ad.vmap(along(f))(x * BATCH)[1],
    "vmap of tangents": lambda f: lambda x: ad.vmap(ad.linearize(f, x)[1])(BATCH)[1],
    "vmap of cotangents": lambda f: lambda x: ad.vmap(ad.vjp(f, x)[1])(BATCH)[0][1],
    "two pulls": lambda f: lambda x: ad.vjp(lambda u: ad.vjp(f, x)[1](u)[0], 0.0)[1](1.0)[0],
    "create_graph": by_gradients,
    **{
        f"{mode.__name__} of {call.__name__}": lambda f, mode=mode, call=call: mode(call(f))
        for mode in (ad.grad, along)
        for call in (by_custom_vjp, by_custom_jvp, by_checkpoint)
    },
}
SECOND: dict[str, Callable[[Function], Function]] = {
    "grad of grad": lambda f: ad.grad(ad.grad(f)),
    "jvp of jvp": lambda f: along(along(f)),
    "jvp of grad": lambda f: along(ad.grad(f)),
    "grad of jvp": lambda f: ad.grad(along(f)),
    "hvp": lambda f: lambda x: ad.hvp(f, x, 1.0),
    "vmap of jvp of jvp": lambda f: lambda x: ad.vmap(along(along(f)))(x * BATCH)[1],
}


def functions(name: str) -> Iterator[tuple[Function, float]]:
    """The op as functions of one number each: the other arguments are numbers too, where it takes them."""
    op = OPS[name]
    for case in CASES[name]:
        if "axis" in case.params or "axes" in case.params:  # the public functions check these
            continue
        args = [ad.tensor(a.reshape(-1)[0]) if isinstance(a, np.ndarray) and a.size else a for a in case.args]
        for i in checked(case):
            if not case.args[i].size or case.args[i].dtype.kind != "f":
                continue

            def f(x: Any, i: int = i, args: Any = args, params: Any = case.params) -> Any:
                found = op.eager(*[x * 1.0 if k == i else a for k, a in enumerate(args)], **params)
                several = found if isinstance(found, tuple) else (found,)
                return sum(ad.sin(y).sum() for y in several if y.dtype.kind == "f")

            try:
                y = f(args[i])
            except (AdjointError, ValueError, TypeError, IndexError):
                continue  # not for numbers
            if isinstance(y, ad.Tensor):
                yield f, float(case.args[i].reshape(-1)[0])


@pytest.mark.parametrize("name", [n for n in SMOOTH if n not in ("unindex", "untake")])
def test_numbers_in_every_mode(name: str) -> None:
    for f, x in functions(name):
        for modes in (MODES, SECOND):
            with np.errstate(all="ignore"):
                found = {mode: np.asarray(transform(f)(x)) for mode, transform in modes.items()}
            expected = next(iter(found.values()))
            for mode, derivative in found.items():
                assert derivative.shape == (), mode
                np.testing.assert_allclose(derivative, expected, rtol=1e-8, atol=1e-10, err_msg=mode)


REDUCED: dict[str, Function] = {
    "max": ad.max, "min": ad.min, "prod": ad.prod, "mean": ad.mean, "sum": ad.sum, "median": ad.median,
    "logsumexp": ad.logsumexp, "norm": ad.linalg.norm, "cumsum": ad.cumsum, "cumprod": ad.cumprod,
    "sort": lambda x: ad.sort(x, axis=None), "softmax": lambda x: ad.softmax(x.reshape(1)) * x,
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCED)
def test_a_reduction_of_one_number(name: str) -> None:
    f = lambda a: ad.sin(REDUCED[name](ad.tanh(a))).sum()
    t = np.tanh(0.5)
    for mode, transform in MODES.items():
        np.testing.assert_allclose(transform(f)(0.5), np.cos(t) * (1 - t * t), rtol=1e-9, err_msg=mode)


COMPILED: dict[str, Callable[[Function], Function]] = {
    "grad of compile": lambda f: ad.grad(ad.compile(f)),
    "compile of grad": lambda f: ad.compile(ad.grad(f)),
    "compile of jvp": lambda f: ad.compile(along(f)),
    "compile of linearize": lambda f: ad.compile(lambda x: ad.linearize(f, x)[1](1.0)),
    "compile of vmap": lambda f: lambda x: ad.compile(ad.vmap(ad.grad(f)))(x * BATCH)[1],
    "compile of two pulls": lambda f: ad.compile(MODES["two pulls"](f)),
}


def test_numbers_in_compiled_functions() -> None:
    """All reductions in one function, because each compilation takes its time."""
    f = lambda a: sum(ad.sin(reduced(ad.tanh(a))).sum() for reduced in REDUCED.values())
    t = np.tanh(0.5)
    for mode, transform in COMPILED.items():
        derivative = transform(f)
        for _ in range(2):
            found = np.asarray(derivative(0.5))
            np.testing.assert_allclose(found, len(REDUCED) * np.cos(t) * (1 - t * t), rtol=1e-9, err_msg=mode)
