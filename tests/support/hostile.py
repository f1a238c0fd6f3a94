"""Random functions and training steps, run twice: eagerly and compiled.

``trial(seed, backend)`` builds two equal worlds (tensors, gradients, hooks, a generator) and one random
function of them, and makes a few calls with other arguments, shapes, dtypes and changes between the calls.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

import adjoint as ad
from adjoint.core.node import LEAF
from adjoint.core.tensor import wrap
from adjoint.errors import ModifiedError, TransformError

has_bfloat16 = importlib.util.find_spec("ml_dtypes") is not None
if has_bfloat16:
    importlib.import_module("ml_dtypes")  # makes "bfloat16" the name of a dtype
FLOATS = ("float32", "float64", "float16")
UNARY, LOOP = 25, 18  # the number of unary choices, and the one that has a loop
OTHERS = ("int8", "int32", "uint8", "bool")


class World:
    """The tensors that a function uses from outside."""

    def __init__(self, seed: int, dtype: str, n: int) -> None:
        r = np.random.default_rng(seed)
        self.dtype, self.n, self.calls = dtype, n, 0
        self.state = [ad.tensor(r.uniform(-1, 1, (n, n)).astype(dtype)) for _ in range(2)]
        self.params = [
            ad.tensor(r.uniform(-1, 1, (n, n)).astype(dtype), requires_grad=True) for _ in range(3)
        ]
        self.table = ad.tensor(r.integers(0, max(n, 1), (3,)).astype("int32"))
        self.array = r.uniform(-1, 1, (n, n)).astype(dtype)
        self.bytes = r.integers(-3, 4, (n, n)).astype(r.choice(OTHERS[:3]))
        self.rng = ad.random.default_rng(seed)
        self.scale = 0.5
        self.seen: list[float] = []  # by hooks

    def tensors(self) -> list[Any]:
        return [*self.state, *self.params]


def _unary(k: int, a: Any, w: World) -> Any:
    n = w.n
    choices = [
        lambda: ad.tanh(a), lambda: a * 0.5, lambda: ad.exp(-a * a), lambda: ad.relu(a), lambda: a.T + a,
        lambda: a.sum(axis=0, keepdims=True) + a * 0, lambda: ad.softmax(a, axis=-1) if n else a,
        lambda: a[::-1], lambda: ad.concatenate([a[n // 2 :], a[: n // 2]], 0), lambda: a.detach() * 1,
        lambda: ad.where(a > 0, a, a * w.scale), lambda: a.reshape((n * n,)).reshape((n, n)),
        lambda: a / (1 + ad.abs(a)), lambda: a.mean(axis=1, keepdims=True) * a, lambda: ad.clip(a, -0.5, 0.5),
        lambda: a.at[0].add(a[-1]) if n else a, lambda: a.astype("float32").astype(w.dtype),
        lambda: ad.checkpoint(lambda v: ad.tanh(v) * v, a), lambda: _loop(a, w),
        lambda: ad.vmap(lambda row: row * row.sum())(a) if n else a,
        lambda: ad.jvp(lambda v: v * v, (a,), (a,))[1] * 0.25,
        lambda: ad.grad(lambda v: (ad.sin(v) * v).sum())(a) * 0.5,
        lambda: ad.cumsum(a, axis=0) * 0.25, lambda: _rebuilt(a),
        lambda: a[w.table % max(n, 1)].sum() * 0.125 + a if n else a,
    ]  # fmt: skip
    assert len(choices) == UNARY
    return choices[k % UNARY]()


def _rebuilt(a: Any) -> Any:
    b = a * 1
    b += 0.25
    b *= 0.5
    return b


def _loop(a: Any, w: World) -> Any:
    p = w.params[0]
    carry, _ = ad.scan(lambda c, _: (ad.tanh(c + p * 0.1), None), a, None, length=10)
    return carry


def _binary(k: int, a: Any, b: Any, w: World) -> Any:
    choices = [
        lambda: a + b, lambda: a * b, lambda: (a @ b) * 0.25, lambda: ad.maximum(a, b), lambda: a - 2 * b,
        lambda: ad.where(a > b, a, b), lambda: a * w.array, lambda: w.array @ b * 0.5,
        lambda: a + w.bytes, lambda: (a > b) * a + (w.bytes > 0), lambda: ad.einsum("ij,kj->ik", a, b) * 0.2,
    ]  # fmt: skip
    return choices[k % len(choices)]()


def _act(k: int, a: Any, w: World) -> None:
    n = w.n
    t = w.state[k % 2]
    p = w.params[k % 3]
    v = a.detach()
    kind = (k // 3) % 9
    if kind == 0:
        t.copy_(v)
    elif kind == 1 and n:
        t[k % n] = v[0]
    elif kind == 2:
        t += v * 0.1
    elif kind == 3:
        p.grad = None
    elif kind == 4 and p.grad is not None:
        p.grad = p.grad * 0.5
    elif kind == 5 and p.requires_grad:
        with ad.no_grad():
            p -= v * 0.01
    elif kind == 6:
        t *= w.scale
    elif kind == 7 and n:
        t[0, 0] = t[-1, -1]
    elif kind == 8:
        w.state[0].copy_(w.state[1])


Plan = list[tuple[int, int, int, int]]


def program(plan: Plan, w: World, form: int) -> Any:
    """Return the function: it may run its backward itself, return a loss, or return several tensors."""

    def function(x: Any, batch: Any, factor: float = 1.0, *, depth: int = 1) -> Any:
        values = [x, batch["a"], batch["b"], *w.state, *w.params]
        for _ in range(depth):
            for kind, i, j, k in plan:
                a, b = values[i % len(values)], values[j % len(values)]
                if kind < 4:
                    values.append(_unary(k, a, w))
                elif kind < 7:
                    values.append(_binary(k, a, b, w) * 0.5)
                elif kind == 7:
                    values.append(a * factor + w.rng.normal(size=(w.n, w.n)).astype(w.dtype))
                else:
                    _act(k, a, w)
        out = values[-1]
        loss = (out * out).sum() + (values[-2] * factor).sum()
        if form == 0:
            if loss.requires_grad:
                loss.backward()
            return loss.detach(), [out.detach()]
        if form == 1:
            return loss
        if form == 2:
            return {"loss": loss, "out": out, "x": x, "n": w.n, "factor": factor * 2}
        found = (
            ad.gradients(loss, w.params, create_graph=form == 4, allow_unused=True)
            if loss.requires_grad
            else []
        )
        return [loss, *[g for g in found if g is not None]]

    return function


def _arguments(r: Any, w: World, share: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return random arguments; ``share`` decides which are one tensor, equal in both worlds."""
    n = w.n
    a, b, x = (r.uniform(-1, 1, (n, n)).astype(w.dtype) for _ in range(3))
    kinds = share["kinds"]

    def made(array: Any, kind: int) -> Any:
        if kind == 0:
            return array
        if kind == 1:
            return np.asfortranarray(array)
        if kind == 2:
            return ad.tensor(array)
        if kind == 3:
            return ad.tensor(array, requires_grad=True)
        if kind == 4:
            return ad.tensor(array, requires_grad=True) * 0.5
        return ad.tensor(np.concatenate([array, array], 1))[:, :n]

    first = made(x, kinds[0])
    ta, tb = made(a, kinds[1]), made(b, kinds[2])
    if share["same"]:
        tb = ta
    batch = {"b": tb, "a": ta} if share["swap"] else {"a": ta, "b": tb}
    args: tuple[Any, ...] = (first, batch)
    named: dict[str, Any] = {"depth": share["depth"]} if share["depth"] != 1 else {}
    if share["named"]:
        named = {"factor": share["factor"], **named}
    else:
        args = (*args, share["factor"])
    return args, named


def _tensor(value: Any) -> Any:
    return wrap(value) if isinstance(value, np.ndarray) else value


def _between(k: int, w: World) -> None:
    """Change something between two calls."""
    p = w.params[k % 3]
    if k % 11 == 0:
        p.requires_grad_(not p.requires_grad)
    elif k % 11 == 1:
        p.grad = None
    elif k % 11 == 2:
        w.scale = 0.25 + (k % 3) / 4
    elif k % 11 == 3 and p.requires_grad:
        p.register_hook(lambda g: w.seen.append(0.0) or g * 0.5)
    elif k % 11 == 4:
        with ad.no_grad():
            p.copy_(p * 0.5)
    elif k % 11 == 5:
        w.array *= 0.5
    elif k % 11 == 6:
        w.state[0] = ad.tensor(w.state[0].numpy().copy())
    elif k % 11 == 7:
        p.grad = ad.tensor(np.ones((w.n, w.n), w.dtype))
    elif k % 11 == 8:
        w.params[k % 3] = ad.tensor((p.numpy() * 0.5).astype(w.dtype), requires_grad=True)


def outcome(call: Any, w: World, form: int, args: Any, named: Any, around: int) -> Any:
    """Return all numbers of a call, and of what is done with its results outside; or the error."""
    given = [t for t in (args[0], args[1]["a"], args[1]["b"]) if getattr(t, "_node", None) is LEAF]
    try:
        with np.errstate(all="ignore"):
            if around == 1:
                with ad.Tape() as tape:
                    found = call(*args, **named)
                del tape
            elif around == 2:
                with ad.no_grad():
                    found = call(*args, **named)
            else:
                found = call(*args, **named)
            results = [found]
            loss = found if form == 1 else found["loss"] if form == 2 else found[0]
            if form and isinstance(loss, ad.Tensor) and loss.requires_grad:
                if around == 3:
                    found = ad.gradients(
                        loss, [p for p in w.params if p.requires_grad], create_graph=True, allow_unused=True
                    )
                    total = sum((g * g).sum() for g in found if g is not None)
                    results.append([None if g is None else g.numpy() for g in found])
                    loss = total if isinstance(total, ad.Tensor) and total.requires_grad else None
                if loss is not None:
                    loss.backward()
    except TransformError as error:
        return error
    except Exception as error:
        return error
    # a second derivative that is 0 may be None in one of them
    none = np.zeros((w.n, w.n), w.dtype) if around == 3 else None
    state = [(t, none if t.grad is None else t.grad, t.requires_grad) for t in w.tensors()]
    results.append(state)
    results.append([(t.grad, t.requires_grad) for t in given])
    # hooks that run inside are part of the program: what else they do happens when it is traced
    return flat([w.seen[:] if form in (1, 2) and around != 3 else [], w.array, results])


def flat(value: Any) -> list[Any]:
    """Return the leaves of results as arrays, with what else must agree."""
    if isinstance(value, ad.Tensor):
        return [np.array(value.detach().numpy()), value.requires_grad]
    if isinstance(value, np.ndarray | np.generic):
        return [np.array(value), False]
    if isinstance(value, dict):
        return [x for k in sorted(value) for x in flat(value[k])]
    if isinstance(value, list | tuple):
        return [x for v in value for x in flat(v)]
    return [value]


def differs(a: list[Any], b: list[Any], tolerance: float) -> str:
    """Say in what two outcomes differ."""
    if len(a) != len(b):
        return f"{len(a)} and {len(b)} leaves"
    for k, (x, y) in enumerate(zip(a, b, strict=True)):
        if isinstance(x, np.ndarray):
            if not isinstance(y, np.ndarray) or x.shape != y.shape or x.dtype != y.dtype:
                return f"leaf {k}: {getattr(x, 'dtype', x)} {getattr(y, 'dtype', y)}"
            if tolerance == 0:
                if x.tobytes() != y.tobytes() and not np.array_equal(x, y, equal_nan=True):
                    return f"leaf {k}: {x} {y}"
            else:
                u, v = x.astype("float64"), y.astype("float64")
                scale = 1 + np.abs(u[np.isfinite(u)]).max(initial=0.0)
                if not np.allclose(u, v, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
                    return f"leaf {k}: {x} {y}"
        elif x != y:
            return f"leaf {k}: {x} {y}"
    return ""


def trial(seed: int, backend: str, log: list[str] | None = None) -> str:
    """Make one random program and a few calls; return how eager and compiled differ, or ""."""
    r = np.random.default_rng(seed)
    dtype = str(r.choice(FLOATS, p=(0.45, 0.4, 0.15)))
    dtype = "bfloat16" if dtype == "float16" and seed % 3 == 2 and has_bfloat16 else dtype
    n = int(r.choice((0, 1, 2, 3, 5, 9, 33)))
    plan = [tuple(map(int, (r.integers(0, 9), *r.integers(0, 1000, 3)))) for _ in range(r.integers(1, 9))]
    form = int(r.integers(0, 5))
    worlds = [World(seed, dtype, n) for _ in range(2)]
    functions = [program(plan, w, form) for w in worlds]
    compiled = ad.compile(functions[1], backend=backend, limit=50)
    loops = any(
        kind < 4 and k % UNARY == LOOP for kind, _, _, k in plan
    )  # whose gradients are summed by step
    exact = backend == "replay" and not loops
    tolerance = 0.0 if exact else {"float64": 1e-9, "float32": 1e-3, "float16": 3e-2, "bfloat16": 0.2}[dtype]
    shares = [
        {"kinds": r.integers(0, 6, 3).tolist(), "same": r.random() < 0.2, "swap": r.random() < 0.3,
         "depth": int(r.choice((1, 1, 2))), "named": r.random() < 0.4, "factor": float(r.uniform())}
        for _ in range(2)
    ]  # fmt: skip
    if n < 2:
        for s in shares:
            s["kinds"] = [k % 5 for k in s["kinds"]]
    around = int(r.choice((0, 0, 0, 1, 2, 3)))
    for k in range(6):
        share = {**shares[int(r.integers(0, 2))], "factor": float(r.uniform())}
        numbers = r.integers(0, 2**31)
        outcomes = []
        for w, f in zip(worlds, (functions[0], compiled), strict=True):
            args, named = _arguments(np.random.default_rng(numbers), w, share)
            # the function itself gets tensors where it is compiled with arrays
            if f is functions[0]:
                args = (_tensor(args[0]), {k: _tensor(v) for k, v in args[1].items()}, *args[2:])
                if share["same"]:
                    args[1]["b"] = args[1]["a"]
            outcomes.append(outcome(f, w, form, args, named, around))
        a, b = outcomes
        where = f"seed {seed}, {backend}, call {k}, form {form}, around {around}, n {n}, {dtype}: "
        refused = isinstance(b, TransformError) or (loops and isinstance(b, ModifiedError))
        if refused and not isinstance(a, Exception):
            if log is not None:
                log.append(str(b).splitlines()[0])
            return ""
        if isinstance(a, Exception) or isinstance(b, Exception):
            if type(a) is not type(b) and not refused:
                return where + f"{a!r} {b!r}"
            return ""
        text = differs(a, b, tolerance)
        if text:
            return where + text
        change = int(r.integers(0, 1000))
        for w in worlds:
            _between(change, w)
    return ""
