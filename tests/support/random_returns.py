"""Random compiled functions that return values from before and after writes to the tensors they use."""

from __future__ import annotations

from typing import Any

import numpy as np

import adjoint as ad
from adjoint.errors import AdjointError

UNARY = (ad.sin, ad.exp, ad.tanh, lambda a: a * a, lambda a: a * 3.0, lambda a: -a, lambda a: a[::-1])
BINARY = (ad.add, ad.multiply, ad.maximum, lambda a, b: a * b.sum(), lambda a, b: ad.stack([a, b])[0])


class Case:
    """The tensors of a random function, and its statements, which the seed fixes."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        r = np.random.default_rng(seed)
        self.w = [ad.tensor(r.uniform(0.2, 1.0, 3), requires_grad=k < 2) for k in range(3)]
        kind = getattr(ad.optim, ("SGD", "Adam")[seed % 2])
        groups = [self.w[:2]] if seed % 4 < 2 else [[w] for w in self.w[:2]]
        self.optimizers = [kind(params, lr=0.1) for params in groups]

    def f(self, x: Any) -> Any:
        """Run the statements: ops, writes, updates and backward passes; return some of the values."""
        r = np.random.default_rng((self.seed, 1))
        values = [x, *self.w]
        for _ in range(r.integers(2, 9)):
            kind, v = r.random(), values[r.integers(len(values))]
            if kind < 0.65:
                a, b = (values[r.integers(len(values))] for _ in range(2))
                unary = r.random() < 0.5
                made = UNARY[r.integers(len(UNARY))](a) if unary else BINARY[r.integers(len(BINARY))](a, b)
                values.append(made * 0.5)
            elif kind < 0.75:
                w = self.w[r.integers(3)]
                with ad.no_grad():
                    w.copy_(w * 0.9)
            elif kind < 0.9:
                keep = bool(r.random() < 0.3)
                if v.requires_grad and v is not x:
                    v.sum().backward(retain_graph=keep)
            else:
                for o in self.optimizers:
                    if all(p.grad is not None for p in o.params):  # eager mode counts a write to all of them
                        o.step()
        chosen = [values[k] for k in r.integers(4, len(values), r.integers(1, 4))] if len(values) > 4 else []
        return [v.sum() if r.random() < 0.5 else v for v in chosen]

    def outcomes(self, call: Any) -> list[Any]:
        """Return, for two calls, the results, and the gradients of each of them or the text of its error."""
        found: list[Any] = []
        for k in range(2):
            x = ad.tensor(
                np.random.default_rng((self.seed, 2, k)).uniform(0.2, 1.0, 3), requires_grad=self.seed % 3 > 0
            )
            try:
                results = call(x)
            except AdjointError as error:  # a backward inside of the function
                return [*found, f"{type(error).__name__}: {error}"]
            targets = [t for t in (x, *self.w) if t.requires_grad]
            for t in results:
                found.append(t.detach().numpy().copy())
                try:
                    g = (
                        ad.gradients([t.sum()], targets, retain_graph=True, allow_unused=True)
                        if t.requires_grad
                        else []
                    )
                    found += [np.zeros(3) if a is None else a.numpy().copy() for a in g]
                except AdjointError as error:
                    found.append(f"{type(error).__name__}: {error}")
            found += [t.detach().numpy().copy() for t in self.w]
            found += [None if t.grad is None else t.grad.numpy().copy() for t in self.w]
        return found


def differences(seed: int, backend: str) -> str:
    """Return how a compiled function and the eager one differ; "" if they do not."""
    eager, compiled = Case(seed), Case(seed)
    wanted = eager.outcomes(eager.f)
    found = compiled.outcomes(ad.compile(compiled.f, backend=backend))
    if len(wanted) != len(found):
        return f"{wanted} {found}"
    for a, b in zip(wanted, found, strict=True):
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            if not np.allclose(a, b, 1e-12, 1e-12):
                return f"{a} {b}"
        elif not (a is None and b is None) and not (isinstance(a, str) and a == b):
            return f"{a} {b}"
    return ""
