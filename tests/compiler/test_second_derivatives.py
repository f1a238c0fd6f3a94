"""Second derivatives of compiled functions: arguments and captured tensors that depend on each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from messages import raised
from random_compiled import MODES, compare

import adjoint as ad
from adjoint.errors import ModifiedError, TransformError

w = ad.tensor([0.5, 0.7], requires_grad=True)
scale, arr = 2.0, np.array([1.0, 2.0])


@pytest.mark.parametrize("mode", MODES)
def test_random_programs_equal_plain_python(mode: Any) -> None:
    for seed in range(40):
        compare(seed, "replay", [mode])
    for seed in range(2):
        compare(seed, "native", [mode])


def _chain(f: Any, x: Any) -> Any:
    c = ad.tanh(x)
    d = ad.sin(c * w)
    return f(lambda a: ad.sin(a * w) * c * d)(c * d)


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "f(f(x))": lambda c, x: (f := c(lambda h: ad.sin(h * w)))(f(x)),
    "f(x, x)": lambda c, x: c(lambda a, b: ad.sin(a * w) * b)(x, x),
    "f(z, z)": lambda c, x: c(lambda a, b: a * b if a is b else a)(z := ad.tanh(x), z),
    "f(x, tanh(x))": lambda c, x: c(lambda a, b: ad.sin(a * b))(x, ad.tanh(x)),
    "f(w)": lambda c, x: c(lambda a: ad.sin(a * w) * x)(w),
    "captured": _chain,
}


@pytest.mark.parametrize("backend", ["replay", "native"])
@pytest.mark.parametrize("name", CALLS)
def test_no_contribution_counts_twice(name: str, backend: str) -> None:
    found = []
    for wrap in (lambda f: f, lambda f: ad.compile(f, backend=backend)):
        x = ad.tensor([0.3, 0.4], requires_grad=True)
        grads = ad.gradients(CALLS[name](wrap, x).sum() + w.sum() * x.sum(), [w, x], create_graph=True)
        found.append([*grads, *ad.gradients((grads[0] * grads[1]).sum(), [w, x])])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12)


def test_a_captured_tensor_gets_batched_seeds() -> None:
    x = ad.tensor([0.3, 0.4], requires_grad=True)
    found = []
    for f in (lambda h: ad.sin(h * w) * h, ad.compile(lambda h: ad.sin(h * w) * h)):
        y = f(x)
        pull = lambda v, y=y: ad.gradients([y], [w, x], [v], retain_graph=True)
        found.append([t.tolist() for t in ad.vmap(pull)(ad.tensor(np.eye(2)))])
    assert found[0] == found[1]


SELECTIONS: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: ad.relu(x) ** 2,
    "where": lambda x: ad.where(x > 0, ad.sin(x), x * x * w[0]),
    "index": lambda x: x[1:] * ad.sin(x[0]),
    "maximum": lambda x: ad.maximum(ad.sin(x), x * x),
    "clip": lambda x: ad.clip(x, -0.55, 0.4) ** 3,
    "sort": lambda x: ad.sort(x * x) * ad.sin(x),
    "max": lambda x: ad.max(ad.sin(x)) * x,
    "two results": lambda x: (ad.relu(x) ** 2, ad.sin(x) * x[0]),
}


@pytest.mark.parametrize("backend", ["replay", "native"])
@pytest.mark.parametrize("name", SELECTIONS)
def test_functions_that_select(name: str, backend: str) -> None:
    x, t, found = np.array([0.5, -0.6, 0.3]), np.array([1.0, 0.7, -0.4]), []
    for h in (SELECTIONS[name], ad.compile(SELECTIONS[name], backend=backend)):

        def total(x: Any, h: Any = h) -> Any:
            values = h(x)
            return sum(ad.sin(v).sum() for v in (values if isinstance(values, tuple) else (values,)))

        y, pull = ad.vjp(h, x)
        seed = ad.tree.map(lambda v: np.linspace(-1.0, 1.0, v.size), y)
        of_seed = lambda u, pull=pull: pull(u)[0]
        first = lambda u: u[0] if isinstance(u, tuple) else u
        found.append(
            [
                ad.jvp(ad.grad(total), (x,), (t,))[1],
                ad.jacfwd(ad.grad(total))(x),
                ad.linearize(ad.grad(total), x)[1](t),
                *ad.tree.leaves(ad.vjp(of_seed, seed)[1](t)),
                first(ad.jacrev(of_seed)(seed)),
                *ad.tree.leaves(ad.grad(lambda u, of_seed=of_seed: ad.sin(of_seed(u)).sum())(seed)),
            ]
        )
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(ad.asarray(a).detach(), ad.asarray(b).detach(), rtol=1e-12, atol=1e-14)


class Changes:
    """Changes between a call and its second derivative, for which the function is called again."""

    @staticmethod
    def variable() -> Any:
        global scale
        scale = 2.0
        x = ad.tensor([0.3, 0.4], requires_grad=True)
        y = ad.compile(lambda h: ad.sin(h * w) * scale)(x)
        scale = 3.0
        return y, x

    @staticmethod
    def array() -> Any:
        arr[:] = 1.0, 2.0
        x = ad.tensor([0.3, 0.4], requires_grad=True)
        y = ad.compile(lambda h: ad.sin(h + arr))(x)  # the backward reads h + arr, not arr
        arr[:] = 5.0, 6.0
        return y, x

    @staticmethod
    def tensor() -> Any:
        x = ad.tensor([0.3, 0.4], requires_grad=True)
        c = ad.tanh(x)
        y = ad.compile(lambda h: ad.sin(h * c))(w)
        c += 1
        return y, x

    @staticmethod
    def dtype() -> Any:
        x = ad.tensor([0.3, 0.4], requires_grad=True)
        y = ad.compile(lambda h: ad.sin(h * ad.tensor([1.0, 2.0])))(x)
        ad.set_default_dtype("float32")
        return y, x


@pytest.mark.parametrize("change", [Changes.variable, Changes.array, Changes.tensor, Changes.dtype])
def test_a_change_before_a_second_derivative_is_an_error(change: Any) -> None:
    before = ad.get_default_dtype()
    try:
        y, x = change()
        ad.gradients(y.sum(), [x], retain_graph=True)  # the first derivative has all that it needs
        with pytest.raises(ModifiedError):
            ad.gradients(y.sum(), [x], create_graph=True)
    finally:
        ad.set_default_dtype(before)


def test_the_message_names_the_change() -> None:
    y, x = Changes.array()
    assert raised(lambda: ad.gradients(y.sum(), [x], create_graph=True)) == (
        "ad.compile: a second derivative of <lambda> calls <lambda> again, but since the first "
        "call an array of shape (2,) changed.\n  Differentiate before the change, or call <lambda> inside "
        "`with ad.config.compiling(False):`."
    )


def test_a_gradient_that_the_function_reads_may_have_changed() -> None:
    w.grad = ad.tensor([1.0, 2.0])
    x = ad.tensor([0.3, 0.4], requires_grad=True)
    y = ad.compile(lambda h: ad.sin(h * w.grad))(x)
    w.grad = None
    with pytest.raises(TransformError, match=r"reads a \.grad"):
        ad.gradients(y.sum(), [x], create_graph=True)
