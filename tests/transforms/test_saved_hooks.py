"""``saved_tensors_hooks`` around every transform: hooks that copy lose no derivative."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from table import CASES, SMOOTH, checked, function

import adjoint as ad


def to_file(t: ad.Tensor) -> bytes:
    file = io.BytesIO()
    np.save(file, t.numpy())
    return file.getvalue()


HOOKS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "identity": (lambda t: t, lambda t: t),
    "array": (lambda t: t.numpy(copy=True), ad.tensor),
    "tensor": (ad.tensor, lambda t: t),
    "file": (to_file, lambda data: ad.tensor(np.load(io.BytesIO(data)))),
}
Transform = Callable[[Any], Callable[[Any], Any]]
TRANSFORMS: dict[str, Transform] = {
    "jacfwd of jacfwd": lambda f: ad.jacfwd(ad.jacfwd(f)),
    "jacrev of jacfwd": lambda f: ad.jacrev(ad.jacfwd(f)),
    "jacfwd of jacrev": lambda f: ad.jacfwd(ad.jacrev(f)),
    "jacrev of grad": lambda f: ad.jacrev(ad.grad(f)),
    "hessian": ad.hessian,
    "hvp": lambda f: lambda x: ad.hvp(f, x, np.arange(1.0, 1 + x.size)),
    "grad of jvp": lambda f: ad.grad(lambda x: ad.jvp(f, (x,), (np.ones(x.shape),))[1]),
    "grad of linearize": lambda f: ad.grad(lambda x: ad.linearize(f, x)[1](np.ones(x.shape))),
    "grad of vmap": lambda f: ad.grad(lambda x: ad.vmap(f)(ad.stack([x, 0.9 * x])).sum()),
    "vmap of grad": lambda f: lambda x: ad.vmap(ad.grad(f))(np.stack([x, 0.9 * x])),
    "vmap of hessian": lambda f: lambda x: ad.vmap(ad.hessian(f))(np.stack([x, 0.9 * x])),
    "vjp of vjp": lambda f: lambda x: ad.vjp(lambda u: ad.vjp(f, x)[1](u)[0], 0.0)[1](np.ones(x.shape))[0],
    "hessian of a checkpoint": lambda f: ad.hessian(lambda x: ad.checkpoint(f, x)),
    "hessian of a custom rule": lambda f: ad.hessian(_custom(f)),
}


def _custom(f: Any) -> Any:
    custom = ad.custom_vjp(f)
    custom.defvjp(lambda x: (f(x), x), lambda x, g: (g * ad.grad(f)(x),))
    return custom


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "prod": ad.prod,
    "var": ad.var,
    "cumprod": lambda x: ad.cumprod(x).sum(),
    "det": lambda x: ad.linalg.det(x.reshape(2, 2)),
    "inv": lambda x: ad.linalg.inv(x.reshape(2, 2))[0, 1],
    "cholesky": lambda x: ad.linalg.cholesky(x.reshape(2, 2) @ x.reshape(2, 2).T + np.eye(2)).sum(),
    "solve": lambda x: ad.linalg.solve(x.reshape(2, 2), x[:2]).sum(),
    "layer_norm": lambda x: ad.sin(ad.nn.functional.layer_norm(x, (4,))).sum(),
    "softmax": lambda x: ad.softmax(x)[1],
    "max of numbers": lambda x: ad.max(ad.tanh(x.sum())) * ad.logsumexp(x[0] * x[1]),
}


def _equal(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("hooks", HOOKS)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_hooks_around_a_transform(name: str, hooks: str) -> None:
    x = np.array([0.9, 0.3, 0.4, 0.7])
    for f in FUNCTIONS.values():
        expected = TRANSFORMS[name](f)(x)
        with ad.saved_tensors_hooks(*HOOKS[hooks]):
            found = TRANSFORMS[name](f)(x)
        _equal(found, expected)


@pytest.mark.parametrize("name", SMOOTH)
def test_hooks_that_copy_keep_the_second_derivatives_of_an_op(name: str) -> None:
    for case in CASES[name]:
        wanted = [i for i in checked(case) if case.args[i].dtype.kind == "f"]
        given = [case.args[i] for i in wanted]
        if not 0 < sum(a.size for a in given) <= 6:
            continue

        op = function(case, wanted)

        def f(*a: Any, op: Any = op) -> Any:
            return sum(ad.sin(ad.real(y)).sum() for y in op(*a) if y.dtype.kind in "fc")

        every = tuple(range(len(given)))
        second = ad.jacfwd(ad.jacfwd(f, every), every)
        with np.errstate(all="ignore"):
            expected = second(*given)
            with ad.saved_tensors_hooks(lambda t: t.numpy(copy=True), ad.tensor):
                found = second(*given)
        for a, b in zip(ad.tree.leaves(found), ad.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6 if given[0].dtype != float else 1e-9, atol=1e-10)


def test_pack_gets_arrays_inside_vmap() -> None:
    """The whole batch, without the graph outside of the vmap, which the engine keeps."""
    shapes = []

    def pack(t: ad.Tensor) -> Any:
        shapes.append(t.shape)
        return t.numpy(copy=True)

    x = ad.tensor([0.3, 0.5], requires_grad=True)
    with ad.saved_tensors_hooks(pack, ad.tensor):
        y = ad.vmap(ad.grad(lambda a: ad.exp(ad.sin(a * x[0]))))(x).sum()
    y.backward()
    assert (2,) in shapes
    f = lambda x: ad.vmap(ad.grad(lambda a: ad.exp(ad.sin(a * x[0]))))(x).sum()
    _equal(x.grad, ad.grad(f)(x.detach()))
