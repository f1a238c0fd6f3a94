"""Random graphs for the tests of the engine under load: the same seed gives the same graph.

They have what makes a runner go wrong: tensors used many times, by one op twice, by several
roots' worth of consumers; ops with several outputs, with one joint rule, with parts that get no
gradient; broadcasting, half precision, complex numbers, 0-d and empty arrays, zeros with infinite
derivatives; hooks, retained gradients and leaf events, each noted in a log per tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

import adjoint as ad
from adjoint.core.define import define
from adjoint.core.namespace import rec
from adjoint.core.op import OPS

SHAPES = [(), (1,), (3,), (2, 3), (4, 1), (2, 1, 3), (0, 3)]
DTYPES = [np.float64] * 5 + [np.float32] * 2 + [np.float16, np.complex128]

Fault = Callable[[], None]

faults: list[Fault] = []  # what the rule of ``faulty`` does before it is right


def _faulty_rule(xp: Any, g: Any, y: Any, x: Any) -> Any:
    for fault in list(faults):
        fault()
    return g * 1.0


def _halves_rule(xp: Any, g: Any, out: Any, x: Any, *, wanted: Any) -> Any:
    low, high = g
    if low is None and high is None:
        return [None]
    low = 0.0 * high if low is None else low
    return [low * 0.5 + (0.25 * high if high is not None else 0.0)]


def _pair_rule(xp: Any, g: Any, out: Any, x: Any, y: Any, *, wanted: Any) -> Any:
    # the second argument gets nothing, although a gradient could flow: a node without gradient
    return [g * 2.0 if wanted[0] else None, None]


if "faulty" not in OPS:
    define("faulty", lambda x: x * 1.0, _faulty_rule)
    define("halves", lambda x: (x * 0.5, x * 0.25), joint=_halves_rule, arity=1, outputs=2, kind="general")
    define("first_of_pair", lambda x, y: x * 2.0 + 0.0 * y, joint=_pair_rule, arity=2, kind="general")

UNARY: list[Callable[[Any], Any]] = [
    ad.tanh,
    ad.sin,
    ad.sigmoid,
    ad.relu,
    ad.square,
    lambda x: -x,
    lambda x: x * x,
    lambda x: x + x,
    lambda x: x * 0.5,
    lambda x: x.reshape(-1),
    lambda x: x.sum(axis=0) if x.ndim else x,
    lambda x: x.T if x.ndim == 2 else x,
    lambda x: x[..., ::2] if x.ndim else x,
    lambda x: rec.faulty(x),
]


class Graph:
    """A graph, its leaves, and what was seen at each of its tensors."""

    def __init__(self, seed: int, *, nodes: int = 18, hooks: bool = True, fault: Fault | None = None) -> None:
        self.log: dict[str, list[Any]] = defaultdict(list)
        self.fault = fault
        rng = np.random.default_rng(seed)
        self.leaves = [self._leaf(rng) for _ in range(rng.integers(1, 5))]
        self.inner: list[ad.Tensor] = []
        values: list[ad.Tensor] = list(self.leaves)
        with np.errstate(all="ignore"):
            for _ in range(rng.integers(2, nodes)):
                values.extend(self._step(rng, values))
            self.inner = [t for t in values if not t.is_leaf]
            self.root = self._root(rng, values)
        if hooks:
            self._dress(rng)

    def _leaf(self, rng: np.random.Generator) -> ad.Tensor:
        shape = SHAPES[rng.integers(len(SHAPES))]
        dtype = np.dtype(DTYPES[rng.integers(len(DTYPES))])
        data = np.asarray(rng.normal(size=shape))
        if rng.random() < 0.2:
            data = np.where(data > 0, 0.0, data)  # where a derivative is infinite or tied
        if dtype.kind == "c":
            data = data + 1j * rng.normal(size=shape)
        return ad.tensor(data.astype(dtype), requires_grad=True)

    def _step(self, rng: np.random.Generator, values: list[ad.Tensor]) -> list[ad.Tensor]:
        # late values more often, early ones now and then: chains with many side branches
        x = values[-1 - min(int(rng.exponential(3)), len(values) - 1)]
        y = values[rng.integers(len(values))]
        kind = rng.integers(12)
        if kind < 5:
            return [UNARY[rng.integers(len(UNARY))](x)]
        if kind == 5 and x.dtype.kind != "c":
            return [ad.sqrt(ad.abs(x))]  # infinite slope at 0
        if kind == 6 and x.dtype.kind != "c":
            low, high = rec.halves(x)
            return [[low], [high], [low, high]][rng.integers(3)]
        if kind == 7 and x.ndim == 2 and x.dtype.kind != "c":
            return [x @ x.T]
        if kind == 8 and x.shape == y.shape:
            return [ad.stack([x, y, x])]
        try:
            if kind == 9 and x.shape == y.shape and x.dtype == y.dtype:
                return [rec.first_of_pair(x, y)]
            return [x * y if kind % 2 else x + y]
        except ad.errors.ShapeError:
            return [x + y.sum()] if kind % 2 else [x - 0.5 * x]

    def _root(self, rng: np.random.Generator, values: list[ad.Tensor]) -> ad.Tensor:
        used = [values[i] for i in rng.permutation(len(values))[: rng.integers(1, len(values) + 1)]]
        used.append(self.inner[-1] if self.inner else values[-1])
        total = sum((_number(t) for t in used[1:]), _number(used[0]))
        return total.reshape(1) if rng.random() < 0.3 else total

    def _dress(self, rng: np.random.Generator) -> None:
        for i, t in enumerate([*self.leaves, *self.inner]):
            if not t.requires_grad:
                continue
            what = rng.integers(8)
            if what == 0:
                t.register_hook(self._noted(f"{i} first"))
                t.register_hook(self._noted(f"{i} second", factor=0.5))
            elif what == 1 and not t.is_leaf:
                t.retain_grad()
            elif what == 2 and t.is_leaf:
                t.register_post_accumulate_grad_hook(
                    lambda leaf, i=i: self.log[f"{i} post"].append(bits(leaf.grad))
                )

    def _noted(self, name: str, factor: float | None = None) -> Callable[[ad.Tensor], Any]:
        def hook(g: ad.Tensor) -> Any:
            if self.fault is not None:
                self.fault()
            self.log[name.split()[0]].append((name, bits(g)))
            return None if factor is None else (g * factor).astype(g.dtype)

        return hook

    def results(self) -> list[Any]:
        """Every gradient that was stored, as bits."""
        return [bits(stored(t)) for t in (*self.leaves, *self.inner)]


def stored(t: ad.Tensor) -> ad.Tensor | None:
    """Return ``t.grad`` without the warning for intermediate results."""
    return None if t._extra is None else t._extra.grad


def _number(t: ad.Tensor) -> ad.Tensor:
    """One real number in float64 that depends on a tensor."""
    return (t.real + t.imag if t.dtype.kind == "c" else t).astype(np.float64).sum()


def bits(t: Any) -> Any:
    """A gradient for comparison: shape, dtype, bytes and layout, which later sums depend on."""
    if t is None:
        return None
    data = t.numpy()
    return data.shape, data.dtype.str, data.tobytes(), data.strides
