"""Random programs that call compiled functions, for comparing derivatives of any order with plain Python.

A program is drawn as data and then run twice: with plain functions, and with compiled ones.  The functions
capture leaves, arrays and earlier values of the program, and are called on each other's results, on one value
twice, and on values that they capture too.  So arguments and captured tensors are ancestors of each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import adjoint as ad

Wrap = Callable[[Any], Any]


def slope(a: Any) -> Any:
    """A gradient that is a constant, except inside of a transform."""
    z = a * 1.0
    return ad.gradients([(ad.sin(z) * z).sum()], [z])[0] if z.requires_grad else ad.cos(a) * a + ad.sin(a)


UNARY = [
    slope, ad.sin, ad.tanh, lambda a: a * a, lambda a: ad.exp(-a * a), lambda a: a * 0.5, lambda a: a + a.sum(),
    # these select elements, so their gradients have marked zeros
    lambda a: ad.relu(a) * a, lambda a: ad.where(a > 0.1, ad.sin(a), a * a), lambda a: ad.clip(a, -0.3, 0.4) * a,
    lambda a: ad.sort(ad.ravel(a)).reshape(a.shape) * a, lambda a: a * ad.ravel(a)[0],
    lambda a: ad.max(ad.sin(a)) + a, lambda a: ad.sin(a).at[..., :1].mul(a.sum()) if a.ndim else ad.relu(a),
]  # fmt: skip
BINARY = [
    lambda a, b: a * b, lambda a, b: a + b, lambda a, b: ad.sin(a) * b, lambda a, b: a - b * b * 0.5,
    lambda a, b: ad.maximum(ad.sin(a), b * 0.7), lambda a, b: ad.where(a > 0, a * b, b),
]  # fmt: skip
OPS = len(UNARY) * len(BINARY)  # as many numbers of ops are drawn
LEAVES = 3  # leaves that require grad; one tensor that does not, and one array, follow them
SHAPES = [(), (1,), (2,), (3,)]


class Function:
    """The body of a function: ops on its arguments and on captured values, and the values it returns."""

    def __init__(self, rng: np.random.Generator, count: int) -> None:
        pick = lambda n: int(rng.integers(n))
        self.captured = [pick(count) for _ in range(pick(4))]
        self.arguments = 1 + pick(3)
        size = self.arguments + len(self.captured)
        self.ops = [(pick(2), pick(OPS), pick(size + k), pick(size + k)) for k in range(1 + pick(4))]
        self.returned = [size + pick(len(self.ops)) for _ in range(1 + pick(2))]
        self.same = pick(4) == 0  # whether it distinguishes one tensor passed twice from two

    def over(self, around: list[Any]) -> Callable[..., Any]:
        """Return the function that captures ``around``, a list with the values that it may use."""
        captured = [around[i] for i in self.captured]

        def f(*given: Any) -> Any:
            values = [*given, *captured]
            twice = self.same and len(given) > 1 and given[0] is given[-1] and isinstance(given[0], ad.Tensor)
            for kind, n, i, j in self.ops:
                a, b = values[i], values[j]
                made = UNARY[n % len(UNARY)](_tensor(a)) if kind else BINARY[n % len(BINARY)](_tensor(a), b)
                values.append(made * 0.5 if twice else made)
            found = tuple(values[i] for i in self.returned)
            return found if len(found) > 1 else found[0]

        return f


def _tensor(value: Any) -> Any:
    return ad.asarray(value) if isinstance(value, (np.ndarray, float)) else value


class Program:
    """A random function of two tensors that uses captured tensors, and calls functions made from data."""

    def __init__(self, seed: int, wrap: Wrap) -> None:
        rng = np.random.default_rng(seed)
        shape = SHAPES[int(rng.integers(len(SHAPES)))]
        self.wrap = wrap
        arrays = [rng.uniform(-0.9, 0.9, shape) for _ in range(LEAVES + 2)]
        self.leaves = [ad.tensor(a, requires_grad=True) for a in arrays[:LEAVES]]
        self.constants = [ad.tensor(arrays[-2]), arrays[-1]]
        known = [*self.leaves, *self.constants]
        bodies = [Function(rng, len(known)) for _ in range(int(rng.integers(1, 3)))]
        self.functions = [(b.arguments, wrap(b.over(known[1:] + known[:1]))) for b in bodies]  # made once
        self.plan: list[tuple[Any, ...]] = []
        count, made = len(known) + 1, len(bodies)
        sizes = [(b.arguments, len(b.returned)) for b in bodies]
        for _ in range(int(rng.integers(2, 6))):
            kind = int(rng.integers(5))
            if kind == 0:
                self.plan.append(
                    ("op", int(rng.integers(OPS)), int(rng.integers(count)), int(rng.integers(count)))
                )
                count += 1
            else:
                body = None if kind < 4 else Function(rng, count)
                if body is not None:
                    sizes.append((body.arguments, len(body.returned)))
                    made += 1
                k = made - 1 if body is not None else int(rng.integers(made))
                arguments, results = sizes[k]
                given = [int(rng.integers(count)) for _ in range(arguments)]
                given = [given[0]] * arguments if rng.random() < 0.2 else given
                if rng.random() < 0.2:
                    given[int(rng.integers(arguments))] = -1  # a number
                self.plan.append(("call", k, body, given))
                count += results

    def __call__(self, x: Any, *leaves: Any) -> Any:
        """Return one number; ``leaves`` are those of the program unless they are given."""
        values = [x, *(leaves or self.leaves), *self.constants]
        functions = list(self.functions)
        total = x.sum() * 0.0
        for kind, k, *rest in self.plan:
            if kind == "op":
                i, j = rest
                values.append(BINARY[k % len(BINARY)](_tensor(values[i]), values[j]))
                total = total + ad.sin(values[-1]).sum()
                continue
            body, given = rest
            if body is not None:
                functions.append((body.arguments, self.wrap(body.over(list(values)))))
            found = functions[k][1](*[0.7 if i < 0 else values[i] for i in given])
            found = found if isinstance(found, tuple) else (found,)
            # compiled functions return arrays if they are given only arrays and numbers: from one array that
            # they return twice, two tensors are made
            alone = all(i < 0 or isinstance(values[i], np.ndarray) for i in given)
            values += [_tensor(v) * 1.0 if alone else _tensor(v) for v in found]
            total = total + ad.sin(_tensor(values[-1])).sum()
        return total + sum((t * 0.0).sum() for t in self.leaves)


def _start(p: Program, k: int) -> Any:
    shape = p.leaves[0].shape
    return ad.tensor(
        np.linspace(-0.5, 0.7 + 0.1 * k, max(1, int(np.prod(shape)))).reshape(shape), requires_grad=True
    )


def first(p: Program, x: Any) -> list[Any]:
    return list(ad.gradients(p(x), [x, *p.leaves]))


def second(p: Program, x: Any) -> list[Any]:
    grads = ad.gradients(p(x), [x, *p.leaves], create_graph=True)
    again = ad.gradients(sum((g * g).sum() for g in grads) + p(x) * 0.0, [x, *p.leaves])
    return [*grads, *again]


def third(p: Program, x: Any) -> list[Any]:
    (g,) = ad.gradients(p(x) + (x * x).sum(), [x], create_graph=True)
    (h,) = ad.gradients((g * g).sum(), [x], create_graph=True)
    return [g, h, *ad.gradients(ad.sin(h).sum() + p(x) * 0.0, [x, *p.leaves])]


def backward(p: Program, x: Any) -> list[Any]:
    inputs = [x, *p.leaves]
    p(x).backward(create_graph=True)
    grads = [t.grad for t in inputs]
    for t in inputs:
        t.grad = None
    (sum((g * g).sum() for g in grads) + p(x) * 0.0).backward()
    again = [t.grad for t in inputs]
    for t in inputs:
        t.grad = None
    return [*grads, *again]


def grad_grad(p: Program, x: Any) -> list[Any]:
    return [ad.grad(lambda u: (ad.grad(p)(u) * u).sum())(x.detach())]


def jacrev_grad(p: Program, x: Any) -> list[Any]:
    return [ad.jacrev(ad.grad(p))(x.detach()), ad.jacfwd(ad.grad(p))(x.detach())]


def of_seeds(p: Program, x: Any) -> list[Any]:
    """Batched and dual seeds, which are given when the function has already been called."""
    y = p(x) * ad.tensor([1.0, 2.0])
    pull = lambda v: ad.gradients([y], [x, *p.leaves], [v], create_graph=True)
    seeds = ad.tensor(np.eye(2))
    return [
        *ad.vmap(pull)(seeds),
        *ad.jvp(pull, (seeds[0],), (seeds[1],))[1],
        *ad.jacrev(lambda v: pull(v)[0])(seeds[0]),
    ]


def forward_grad(p: Program, x: Any) -> list[Any]:
    """Forward mode over reverse mode: the rules of compiled functions are transposed."""
    at, t = x.detach(), ad.cos(x.detach())
    work = lambda: [ad.jvp(ad.grad(p), (at,), (t,))[1], ad.linearize(ad.grad(p), at)[1](t)]
    return [*work(), *without_leaves(p, work)]


def pull_of_pull(p: Program, x: Any) -> list[Any]:
    """Derivatives of a pull with respect to its seed, also where the seed is zero."""
    return [*_pull_of_pull(p, x), *without_leaves(p, lambda: _pull_of_pull(p, x))]


def without_leaves(p: Program, work: Callable[[], list[Any]]) -> list[Any]:
    """Return ``work()`` while the captured tensors do not require grad."""
    try:
        for t in p.leaves:
            t.requires_grad_(False)
        return work()
    finally:
        for t in p.leaves:
            t.requires_grad_(True)


def _pull_of_pull(p: Program, x: Any) -> list[Any]:
    leaves = [x.detach(), *(t.detach() for t in p.leaves)]
    body = lambda *given: ad.stack([p(*given), p(*given) * given[0].sum()])
    _, pull = ad.vjp(body, *leaves)
    total = lambda u: sum((ad.sin(g) * t).sum() for g, t in zip(pull(u), leaves, strict=True))
    seeds = [ad.tensor([0.3, -0.7]), ad.tensor([0.0, 1.0])]
    found = [ad.vjp(lambda u: pull(u), seeds[1])[1](pull(seeds[0]))[0], ad.grad(total)(seeds[0])]
    return [*found, *ad.jacrev(lambda u: pull(u)[:1])(seeds[1]), ad.jacfwd(lambda u: pull(u)[0])(seeds[0])]


MODES = [first, second, third, backward, grad_grad, jacrev_grad, of_seeds, forward_grad, pull_of_pull]


def compare(seed: int, backend: str, modes: Any = None) -> None:
    """Raise unless a program gives the same derivatives with compiled functions as with plain ones."""
    plain = Program(seed, lambda f: f)
    compiled = Program(seed, lambda f: ad.compile(f, backend=backend, limit=50))
    chosen = modes or [MODES[seed % len(MODES)]]
    for k, mode in enumerate([*chosen, chosen[0]]):  # twice, so that programs run without a trace
        expected = [t.detach().numpy() for t in mode(plain, _start(plain, k))]
        found = [t.detach().numpy() for t in mode(compiled, _start(compiled, k))]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(
                a, b, rtol=1e-9, atol=1e-10, err_msg=f"seed {seed}, {backend}, {mode.__name__}"
            )
