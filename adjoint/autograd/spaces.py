"""``vspace`` of autograd, and its checks of gradients against differences."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

import adjoint.numpy as anp
from adjoint import tree
from adjoint.autograd.transforms import conjugated, core_make_jvp, core_make_vjp, floats, unary_to_nary

__all__ = [
    "VSpace", "check_equivalent", "check_grads", "check_jvp", "check_vjp", "combo_check", "quick_grad_check",
    "scalar_close", "vspace",
]  # fmt: skip


class VSpace:
    """The space of a value: a tree of real and complex arrays.

    Parameters
    ----------
    value : tree
        The value.
    """

    mappings: ClassVar[dict[Any, Any]] = {}  # of types that libraries register; nothing reads them

    def __init__(self, value: Any) -> None:
        self.like = tree.map(lambda v: np.zeros(np.shape(v), getattr(v, "dtype", type(v)))[()], floats(value))
        leaves = tree.leaves(self.like)
        self.iscomplex = any(np.iscomplexobj(v) for v in leaves)
        self.size = sum(np.size(v) * (2 if np.iscomplexobj(v) else 1) for v in leaves)
        if not isinstance(value, (list, tuple, dict)):
            self.shape, self.dtype = np.shape(self.like), np.asarray(self.like).dtype
            self.ndim = len(self.shape)

    def _map(self, f: Callable[[Any], Any]) -> Any:
        return tree.map(f, self.like)

    def zeros(self) -> Any:
        """Return zeros."""
        return self._map(lambda v: np.zeros_like(v)[()])

    def ones(self) -> Any:
        """Return ones; 1 + i where values are complex."""
        return self._map(lambda v: (np.ones_like(v) * (1 + 1j if np.iscomplexobj(v) else 1))[()])

    def randn(self) -> Any:
        """Return normal random numbers of ``np.random``."""

        def draw(v: Any) -> Any:
            x = np.array(np.random.randn(*np.shape(v)))
            if np.iscomplexobj(v):
                x = x + 1j * np.random.randn(*np.shape(v))
            return x.astype(np.asarray(v).dtype)[()]

        return self._map(draw)

    def standard_basis(self) -> Iterator[Any]:
        """Yield the vectors of the standard basis."""
        flat, back = tree.ravel(self.like)
        for row in np.eye(flat.size):
            for unit in (1, 1j) if self.iscomplex else (1,):
                yield tree.map(lambda v: np.asarray(v)[()], back((unit * row).astype(flat.dtype)))

    def add(self, x: Any, y: Any) -> Any:
        """Return the sum."""
        return tree.map(lambda a, b: a + b, x, y)

    mut_add = add

    def scalar_mul(self, x: Any, a: Any) -> Any:
        """Return ``x`` times the number ``a``."""
        return tree.map(lambda v: v * a, x)

    def covector(self, x: Any) -> Any:
        """Return the conjugate."""
        return conjugated(x)

    def inner_prod(self, x: Any, y: Any) -> Any:
        """Return the real inner product."""
        pairs = zip(tree.leaves(x), tree.leaves(y), strict=True)
        terms = [anp.sum(anp.real(anp.conj(a) * b)) for a, b in pairs]
        return sum(terms[1:], terms[0])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, VSpace):
            return NotImplemented
        a, b = tree.flatten(self.like), tree.flatten(other.like)
        facts = lambda v: (np.shape(v), np.iscomplexobj(v))
        return a[1] == b[1] and list(map(facts, a[0])) == list(map(facts, b[0]))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._map(lambda v: (np.shape(v), np.asarray(v).dtype.name)))


vspace = VSpace


def scalar_close(a: Any, b: Any) -> bool:
    """Return whether two numbers agree in six digits."""
    return bool(abs(a - b) < 1e-6 or abs(a - b) / abs(a + b) < 1e-6)


def check_equivalent(x: Any, y: Any) -> None:
    """Raise if the spaces of two values, or their products with a random vector, differ."""
    a, b = VSpace(x), VSpace(y)
    assert a == b, f"VSpace mismatch:\nx: {a}\ny: {b}"
    v = a.randn()
    assert scalar_close(a.inner_prod(x, v), a.inner_prod(y, v)), f"Value mismatch:\nx: {x}\ny: {y}"


def _slope(f: Any, x: Any, v: Any, eps: float = 1e-6) -> Any:
    """Return the derivative along ``v`` by a central difference."""
    space = VSpace(x)
    up, down = (f(space.add(x, space.scalar_mul(v, h))) for h in (eps / 2, -eps / 2))
    return tree.map(lambda a, b: (np.asarray(a) - np.asarray(b)) / eps, up, down)


def check_vjp(f: Any, x: Any) -> None:
    """Compare the gradient along a random direction with a difference."""
    x = floats(x)
    vjp, y = core_make_vjp(f, x)
    space, result = VSpace(x), VSpace(y)
    v, u = space.randn(), result.randn()
    back = conjugated(vjp(conjugated(u)))
    assert VSpace(back) == space
    exact, number = space.inner_prod(v, back), result.inner_prod(u, _slope(f, x, v))
    name = getattr(f, "__name__", "[unknown name]")
    assert scalar_close(number, exact), (
        f"Derivative (VJP) check of {name} failed with arg {x}:\nanalytic: {exact}\nnumeric:  {number}"
    )


def check_jvp(f: Any, x: Any) -> None:
    """Compare the tangent along a random direction with a difference."""
    x = floats(x)
    v = VSpace(x).randn()
    check_equivalent(core_make_jvp(f, x)(v)[1], _slope(f, x, v))


@unary_to_nary
def check_grads(f: Any, x: Any, modes: Any = None, order: int = 2) -> None:
    """Compare derivatives along random directions with differences, up to an order."""
    modes = modes or ("fwd", "rev")
    x = floats(x)
    if "fwd" in modes:
        check_jvp(f, x)
    if "rev" in modes:
        check_vjp(f, x)
    for mode in modes if order > 1 else ():

        def derivative(x: Any, w: Any, mode: str = mode) -> Any:
            return core_make_jvp(f, x)(w)[1] if mode == "fwd" else core_make_vjp(f, x)[0](w)

        derivative.__name__ = ("jvp_" if mode == "fwd" else "vjp_") + getattr(f, "__name__", "")
        w = VSpace(x if mode == "fwd" else f(x)).randn()
        check_grads(derivative, (0, 1), modes, order - 1)(x, w)


def combo_check(fun: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a function that checks all combinations of arguments from lists."""

    def check(*choices: Any, **options: Any) -> None:
        keys = [[(k, v) for v in values] for k, values in options.items()]
        for chosen in itertools.product(*choices):
            for pairs in itertools.product(*keys):
                check_grads(fun, *args, **kwargs)(*chosen, **dict(pairs))

    return check


def quick_grad_check(fun: Any, arg0: Any, extra_args: Any = (), **options: Any) -> None:
    """Compare the gradient in the first argument with a difference."""
    check_grads(lambda v: fun(v, *extra_args), modes=("rev",), order=1)(arg0)
