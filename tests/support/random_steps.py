"""Random training steps: layers of all widths, optimisers with options, and changes between the steps."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from typing import Any, NamedTuple

import numpy as np
from random_programs import CLOSE, HALVES, drawn_dtype, strided

import adjoint as ad
from adjoint import optim, tree
from adjoint.nn import functional as F  # noqa: N812  as in the documentation

WIDTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 48, 64, 65)  # around the lanes of vectors and the tiles
WIDE = (3, 17, 33, 64, 130, 200, 257)
ROWS = (1, 2, 5, 8, 9, 31, 32, 65)
MANY = (33, 64, 129, 300)
KINDS = 12
OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}), ("SGD", {"momentum": 0.9}), ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adam", {"eps": 1e-3}), ("Adam", {"weight_decay": 0.01, "eps": 1e-3}), ("AdamW", {"eps": 1e-3}),
    ("RMSprop", {"eps": 1e-3}), ("Adagrad", {"eps": 1e-3}), ("NAdam", {"eps": 1e-3}),
    ("Adam", {"amsgrad": True, "eps": 1e-3}),
]  # fmt: skip
CLIPS = [  # functions of the parameters and optimisers that clip gradients, in all ways of the library
    lambda params: ad.clip_grad_norm(params, 1.0),
    lambda params: ad.clip_grad_norm(params, 0.3, 1.0, nonfinite="allow"),
    lambda params: ad.clip_grad_norm(params, 0.1, float("inf")),
    lambda params: ad.clip_grad_norm(params, 0.5, 3.0),
    lambda params: ad.clip_grad_norm(params, 0.5, 9.0),  # by NumPy
    lambda params: ad.clip_grad_value(params, 0.05),
    lambda params: ad.clip_grad_norm_by_group({"a": params[:2], "b": params[2:]}, {"a": 0.2, "b": 0.1}),
    lambda params: ad.clip_grad_adaptive(params, 0.01),
]  # fmt: skip
FORMS = ("dictionary", "tuple", "list", "dataclass", "named", "module")
# eps: where the gradient is 0 but for rounding, a smaller one makes an update of any sign of it


@dataclasses.dataclass
class Batch:
    """A batch with a number."""

    x: Any
    y: Any
    scale: float


class Named(NamedTuple):
    """A batch as a named tuple."""

    x: Any
    y: Any


class Gain(ad.nn.Module):
    """A module that is an argument of the step, and whose parameter the optimisers have."""

    def __init__(self, dtype: Any) -> None:
        self.gain = ad.nn.Parameter(np.ones((), dtype))

    def forward(self, h: Any) -> Any:
        return h * self.gain


class Plan:
    """The choices of one random training step, all fixed by the seed."""

    def __init__(self, seed: int, large: bool = False) -> None:
        r = np.random.default_rng(seed)
        self.seed = seed
        self.dtype = drawn_dtype(seed, ("f4", "f8")[r.integers(2)])
        widths, rows = (WIDE, MANY) if large else (WIDTHS, ROWS)
        self.sizes = [int(r.choice(widths)) for _ in range(r.integers(2, 5))]
        if r.random() < 0.3:
            self.sizes += [self.sizes[-1]] * 2  # equal layers
        self.rows = int(r.choice(rows))
        self.kinds = r.integers(0, KINDS, len(self.sizes)).tolist()
        self.name, self.options = OPTIMIZERS[r.integers(len(OPTIMIZERS))]
        self.zero = ("first", "last", "never")[r.integers(3)]
        self.clip, self.average, self.tie, self.two, self.groups, self.penalty, self.statistics = (
            r.random(7) < (0.25, 0.33, 0.25, 0.2, 0.33, 0.25, 0.33)
        ).tolist()
        self.result = int(r.integers(6))
        self.index = r.integers(0, self.rows, self.rows)
        self.table = bool(np.random.default_rng((seed, 77)).random() < 0.25)  # whether the input has a table
        self.scales = bool(np.random.default_rng((seed, 80)).random() < 0.3)
        self.clipping = CLIPS[np.random.default_rng((seed, 78)).integers(len(CLIPS))]
        r = np.random.default_rng((seed, 81))
        self.counts, several, self.sparse = (r.random(3) < (0.3, 0.2, 0.5)).tolist()
        self.uneven = bool(np.random.default_rng((seed, 82)).random() < 0.25) and self.zero != "never"
        self.form = FORMS[r.integers(len(FORMS))] if r.random() < 0.45 else "two"
        self.lengths = [
            self.rows,
            *(map(int, r.choice([n for n in rows if n != self.rows], 2)) if several else []),
        ]
        self.indices = {n: np.resize(self.index, n) % n for n in self.lengths}
        r = np.random.default_rng((seed, 83))
        self.raw, self.branches, self.kept, self.rate, low, infinite = (
            r.random(6) < (0.2, 0.4, 0.5, 0.3, 0.2, 0.5)
        ).tolist()
        self.low = HALVES[r.integers(len(HALVES))] if low and self.dtype == np.float32 else None
        # a call whose gradients are infinite or NaN, so that the scaler skips the update; -1: none
        self.infinite = 2 if infinite and self.scales and not self.clip else -1
        if self.sparse and self.zero == "never":  # compiled functions do not read sparse gradients
            self.zero = "first"

    @property
    def tolerance(self) -> float:
        """How much native code may differ from eager mode."""
        return CLOSE[self.dtype if self.low is None else self.low]

    def data(self, call: int) -> list[Any]:
        """Return the arrays of one call: contiguous, or strided, reversed, transposed, repeated, read-only."""
        r = np.random.default_rng((self.seed, call))
        rows = self.lengths[call % len(self.lengths)]
        found = [
            strided(r, r.normal(size=(rows, n)).astype(self.dtype)) for n in (self.sizes[0], self.sizes[-1])
        ]
        if call == self.infinite:
            found[1] = np.full_like(found[1], np.inf, subok=False)
        return found


def _layer(kind: int, h: Any, w: Any, b: Any, g: Any, index: Any) -> Any:
    """Apply one layer: a product, then rows and columns that are summed, scaled, turned or gathered."""
    if kind == 8:  # the weight is the first operand
        return ad.relu((ad.swapaxes(w, 0, 1) @ ad.swapaxes(h, 0, 1)).T + b)
    h = h @ w + b
    if kind == 0:
        return ad.tanh(h) * g
    if kind == 1:
        return ad.relu(h) * g
    if kind == 2 and h.shape[-1] > 3:  # of two elements it is nearly a sign, so that rounding shows
        return F.layer_norm(h, (h.shape[-1],), g, b)
    if kind == 3:
        return ad.softmax(h, axis=-1) * g
    if kind == 4:
        return ad.sigmoid(h) * g + h
    if kind == 5:
        return ad.exp(-h * h) * g
    if kind == 6:
        return h - h.mean(0) + g * ad.tanh(h)
    if kind == 7:
        return (h - h.max(axis=1, keepdims=True)) * g * 0.5
    if kind == 9:
        return ad.tanh(h[index]) * g + h[::-1]
    if kind == 10:
        return h * ad.logsumexp(h, axis=0) * 0.1 + ad.concat([h[1:], h[:1]])
    return h * g


class Training:
    """The tensors and optimisers of a plan; two of one plan are equal."""

    def __init__(self, plan: Plan) -> None:
        r = np.random.default_rng(plan.seed + 1)
        self.plan = plan

        def made(values: Any) -> Any:
            return ad.tensor(values.astype(plan.dtype), requires_grad=True)

        self.layers = [
            [made(r.normal(size=(m, n)) / m**0.5), made(r.normal(size=n) * 0.1), made(1 + r.normal(size=n) * 0.1)]
            for m, n in itertools.pairwise(plan.sizes)
        ]  # fmt: skip
        if plan.tie:
            for a, b in itertools.pairwise(self.layers):
                if a[0].shape == b[0].shape:
                    b[:2] = a[:2]
        self.table = made(r.normal(size=(40, plan.sizes[0]))) if plan.table else None
        self.params = list({id(p): p for layer in self.layers for p in layer}.values())
        self.params += [self.table] if plan.table else []
        self.gain = Gain(plan.dtype)
        self.params += [self.gain.gain] if plan.form == "module" else []
        given: Any = self.params
        if plan.groups:
            given = [{"params": self.params[:2], "lr": 0.02}, {"params": self.params[2:]}]
        self.optimizers: list[Any] = [getattr(optim, plan.name)(given, lr=0.01, **plan.options)]
        if plan.two:
            self.optimizers.append(optim.SGD(self.params[::2], lr=0.005, momentum=0.5))
        self.scaler = ad.GradScaler(8.0, growth_interval=2, enabled=plan.scales)
        self.averages = [p.detach().clone() for p in self.params] if plan.average else []
        self.mean = ad.tensor(np.zeros(plan.sizes[-1], plan.dtype))
        self.count = ad.tensor(np.zeros((), plan.dtype))
        self.saved: Any = None
        self.made = 0  # the number of steps
        self.kept = {"made": 0}  # the same in a dictionary
        if plan.seed % 2:
            self.change(6)

    def step(
        self, x: Any, y: Any = None, k: int = 0, rate: float = 1.0, flag: bool = True, model: Any = None
    ) -> Any:
        """Make one step on a batch in one of several forms; return one of several results."""
        scale = rate if flag else 0.5
        if isinstance(x, Batch):
            x, y, scale = x.x, x.y, scale * x.scale
        elif y is None:
            x, y = (x["x"], x["y"]) if isinstance(x, dict) else x
        plan, h = self.plan, x
        index = plan.indices[h.shape[0]]
        self._zero("first")
        if plan.uneven:  # some parameters are updated twice
            sum((p * p).sum() * 1e-2 for p in self.params[:2]).backward()
            self._update()
        if plan.table:
            h = h + ad.take(self.table, index % 40, axis=0, sparse_grad=plan.sparse)
        h = h if plan.low is None else h.astype(plan.low)
        for kind, layer in zip(plan.kinds, self.layers, strict=False):
            given = layer if plan.low is None else [p.astype(plan.low) for p in layer]
            h = _layer(kind, h, *given, index)
        h = h if plan.low is None else h.astype(plan.dtype)
        if model is not None:
            h = model(h)
        loss = ((h - y) ** 2).mean() * scale
        if plan.counts:
            if plan.kept:
                self.kept["made"] += 1
            else:
                self.made += 1
            made = self.kept["made"] + self.made
            loss = loss * (1.0 / (1 + 0.1 * k + 0.1 * made))
            if plan.branches and (made % 3 == 1 or k > 2):
                loss = loss * 0.5 + (h[k % h.shape[0]] ** 2).mean() * 0.1
        if plan.penalty:
            loss = loss + sum((p * p).sum() * 1e-3 for p in self.params)
        self.scaler.scale(loss).backward()
        if plan.clip and plan.scales:
            for o in self.optimizers:
                self.scaler.unscale(o)
        if plan.clip:
            plan.clipping(self.params)
        for o in self.optimizers:
            if plan.scales:
                self.scaler.step(o)
            else:
                o.step()
        if plan.scales:
            self.scaler.update()
        self._zero("last")
        with ad.no_grad():
            for a, p in zip(self.averages, self.params, strict=False):
                a.copy_(a * 0.9 + p * 0.1)
            if plan.statistics:
                self.mean.copy_(self.mean * 0.9 + h.detach().mean(0) * 0.1)
                self.count.copy_(self.count + 1)
        first, last = self.layers[0][0], self.layers[-1][1]
        results: list[Any] = [  # functions: what reads parameters makes their update part of the program
            lambda: loss, lambda: (loss, h), lambda: (loss, first * 1, last + 0),
            lambda: {"l": loss, "s": self.mean * 2}, lambda: [loss.detach(), h.detach().sum(0)], lambda: None,
        ]  # fmt: skip
        return results[plan.result]()

    def _update(self) -> None:
        for o in self.optimizers:
            o.step()
            o.zero_grad()

    def _zero(self, when: str) -> None:
        if self.plan.zero == when:
            for o in self.optimizers:
                o.zero_grad()

    def change(self, event: int) -> None:
        """Change something between two steps."""
        p, o = self.params[0], self.optimizers[0]
        if event == 0:
            o.lr *= 0.7
        elif event == 1:
            self.saved = copy.deepcopy(o.state_dict())
        elif event == 2 and self.saved is not None:
            o.load_state_dict(self.saved)
        elif event == 3:
            with ad.no_grad():
                p.copy_(self.averages[0] if self.averages else p * 0.5)
        elif event == 4:
            for q in self.params:
                q.grad = None
        elif event == 6 and self.plan.uneven:  # then the counts of some pairs are equal in another way
            sum((q * q).sum() * 1e-2 for q in self.params[2:]).backward()
            self._update()
        elif event == 5 and p.grad is not None:
            p.grad = p.grad.detach() * 0.5

    def follow(self, other: Training) -> None:
        """Copy the state of another training of the plan."""
        with ad.no_grad():
            for a, b in zip(self._tensors(), other._tensors(), strict=True):
                a.copy_(b)
        for a, b in zip(self.params, other.params, strict=True):
            rows = isinstance(b.grad, ad.SparseGradient)
            a.grad = b.grad if b.grad is None or rows else b.grad.clone()
        self.made, self.kept["made"] = other.made, other.kept["made"]
        self.scaler.load_state_dict(other.scaler.state_dict())
        for a, b in zip(self.optimizers, other.optimizers, strict=True):
            a.load_state_dict(copy.deepcopy(b.state_dict()))

    def advance(self, step: Any, call: int) -> list[Any]:
        """Call a step on the data of a call; return copies of its results and of all state."""
        plan = self.plan
        # arrays that are not contiguous are read as they are in programs, so products round differently
        x, y = map(np.ascontiguousarray if plan.raw else ad.asarray, plan.data(call))
        batches: dict[str, Any] = {
            "dictionary": {"x": x, "y": y}, "tuple": (x, y), "list": [x, y],
            "dataclass": Batch(x, y, 1.0 + call % 2), "named": Named(x, y),
        }  # fmt: skip
        given = [batches[plan.form]] if plan.form in batches else [x, y]
        named: dict[str, Any] = {"k": call} if plan.counts else {}
        if plan.rate:
            named |= {"rate": 1.0 - 0.1 * call, "flag": call % 3 < 2}
        if plan.form == "module":
            named["model"] = self.gain
        found = step(x, y=y) if call % 4 == 3 and not named and len(given) == 2 else step(*given, **named)
        results = [t.detach().numpy().copy() for t in tree.leaves(found)]
        grads = [None if p.grad is None else p.grad.numpy().copy() for p in self.params]
        tensors = [t.detach().numpy().copy() for t in self._tensors()]
        states = tree.leaves(copy.deepcopy([*map(_state_of, self.optimizers), self.scaler.state_dict()]))
        return [*results, *tensors, *grads, *states, self.made, self.kept["made"]]

    def _tensors(self) -> list[Any]:
        return [*self.params, *self.averages, self.mean, self.count]

    def held(self) -> list[Any]:
        """Return all arrays that a step may write; who keeps them forces it to write new ones."""
        states = [
            a for o in self.optimizers for g in o.groups for u in g.units for a in (u.state or {}).values()
        ]
        grads = [p.grad._data for p in self.params if p.grad is not None]
        return [*(t._data for t in self._tensors()), *grads, *states]


def _state_of(optimizer: Any) -> dict[str, Any]:
    """Return the state of an optimiser.  A trace makes zeros where eager code makes them at the first update."""
    found = dict(optimizer.state_dict())
    found["state"] = [
        [one if any(np.any(a) for a in tree.leaves(one)) else {} for one in group] for group in found["state"]
    ]
    return found


def run(plan: Plan, wrap: Any, calls: int, hold: bool = False) -> list[list[Any]]:
    """Make a few steps with changes in between; return the results and all state after each.

    ``wrap`` compiles the step.  With ``hold``, somebody keeps all arrays, which must not change then.
    """
    training, r = Training(plan), np.random.default_rng(plan.seed + 2)
    step, log = wrap(training.step), []
    for k in range(calls):
        training.change(int(r.integers(9)))
        kept = training.held() if hold else []
        before = [a.copy() for a in kept]
        log.append(training.advance(step, k))
        for a, b in zip(kept, before, strict=True):  # skipped updates run the function, which writes in place
            assert a.tobytes() == b.tobytes() or k == plan.infinite, (
                "memory that somebody holds was written to"
            )
    return log


def run_beside(plan: Plan, wrap: Any, calls: int) -> Any:
    """Make each step twice from the same state, compiled by ``wrap`` and eagerly; yield both results."""
    eager, compiled, r = Training(plan), Training(plan), np.random.default_rng(plan.seed + 2)
    step = wrap(compiled.step)
    for k in range(calls):
        eager.change(int(r.integers(9)))
        compiled.follow(eager)
        yield compiled.advance(step, k), eager.advance(eager.step, k)


def same(found: list[Any], wanted: list[Any]) -> bool:
    """Return whether two results of a step have the same bits."""
    return len(found) == len(wanted) and all(
        b is None if a is None else np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in zip(found, wanted, strict=True)
    )


def assert_close(found: list[Any], wanted: list[Any], tolerance: float) -> None:
    """Raise if two results of a step differ by more than a tolerance, relative to the largest element."""
    for x, y in zip(found, wanted, strict=True):
        if not isinstance(y, np.ndarray) or y.dtype.kind not in "fV":
            assert np.array_equal(x, y)
            continue
        assert x.shape == y.shape and x.dtype == y.dtype
        if x.dtype.itemsize == 2:
            x, y = x.astype(float), y.astype(float)
        scale = np.abs(y[np.isfinite(y)]).max(
            initial=1e-2
        )  # gradients are sums of such numbers, which cancel
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * scale)
