"""A compiled function together with one other feature: the same values, state and aliases as in eager mode.

Each scenario gets a function that compiles, or does nothing, and returns a log of everything that can be seen.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import random_events

import adjoint as ad
from adjoint import nn, optim
from adjoint.compiler.emit.machine import has_llvm
from adjoint.errors import AdjointError

Wrap = Callable[[Any], Any]
SCENARIOS: dict[str, Callable[[Wrap], list[Any]]] = {}
BACKENDS = ("replay", "native", "auto") if has_llvm() else ("replay",)


def scenario(f: Callable[[Wrap], list[Any]]) -> Callable[[Wrap], list[Any]]:
    SCENARIOS[f.__name__] = f
    return f


def seen(value: Any) -> Any:
    """Return copies of all arrays in a value, with what else can be seen of tensors."""
    if isinstance(value, ad.Tensor):
        return "tensor", value.requires_grad, value.detach().numpy().copy()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {k: seen(v) for k, v in value.items()}
    return [seen(v) for v in value] if isinstance(value, (list, tuple)) else value


def equal(a: Any, b: Any, tolerance: float) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k], tolerance) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(equal(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray):
        close = a.shape == b.shape and np.allclose(a, b, tolerance, tolerance, equal_nan=True)
        return bool(a.dtype == b.dtype and close)
    return bool(a == b) or (isinstance(a, float) and abs(a - b) <= tolerance * abs(a))


def rows(k: int, n: int = 4, width: int = 6) -> Any:
    return ad.tensor(np.random.default_rng(k).normal(size=(n, width)).astype("f"))


def vector(k: float = 1.0, n: int = 3) -> Any:
    return ad.tensor(k * np.arange(1.0, n + 1))


class Trained:
    """A small network with an optimiser."""

    def __init__(self, kind: str = "Adam", **options: Any) -> None:
        self.model = nn.Sequential(nn.Linear(6, 5, rng=0), nn.Tanh(), nn.Linear(5, 1, rng=1))
        self.params = list(self.model.parameters())
        self.opt = getattr(optim, kind)(self.params, lr=0.01, **options)

    def step(self, x: Any) -> Any:
        self.opt.zero_grad()
        loss = (self.model(x) ** 2).mean()
        loss.backward()
        self.opt.step()
        return loss

    def state(self) -> Any:
        return seen([self.params, [p.grad for p in self.params], self.opt.state_dict()])


# Threads, modes and errors --------------------------------------------------------------------------


@scenario
def threads_call_one_step(wrap: Wrap) -> list[Any]:
    t, lock, log = Trained(), threading.Lock(), []
    step = wrap(t.step)

    def work(_: int) -> None:
        with lock:
            log.append(seen(step(rows(1))))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(20)))
    return [*log, t.state()]


@scenario
def threads_have_their_own_grad_mode(wrap: Wrap) -> list[Any]:
    p = vector().requires_grad_(True)
    f = wrap(lambda x: (p * x).sum())

    def work(k: int) -> Any:
        with ad.no_grad() if k % 2 else contextlib.nullcontext():
            return seen(f(vector(k)))

    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(work, range(24)))


@scenario
def an_error_on_some_calls(wrap: Wrap) -> list[Any]:
    p, fails, log = vector().requires_grad_(True), [False], []

    def f(x: Any) -> Any:
        p.grad = None
        (p * x).sum().backward()
        if fails[0]:
            raise KeyError("no")
        return p.grad * 1

    step = wrap(f)
    for k in range(7):
        fails[0] = k in (2, 5)
        try:
            log.append(seen(step(vector(k))))
        except KeyError:
            log.append("error")
    return log


@scenario
def checked_and_plain_calls(wrap: Wrap) -> list[Any]:
    t, log, rng = Trained(), [], ad.random.default_rng(0)
    drop = nn.Dropout(0.3, rng=1)

    def f(x: Any) -> Any:
        return t.step(drop(x) + rng.normal(size=(1, 6)).astype("f"))

    step = wrap(f)
    for k in range(8):
        mode = {2: "check", 3: "check", 5: False}.get(k, True)
        with ad.config.compiling(mode):
            log += [seen(step(rows(k))), t.state()]
    return log


# Memory ---------------------------------------------------------------------------------------------


@scenario
def views_that_are_kept(wrap: Wrap) -> list[Any]:
    t, kept, log = Trained(), [], []
    step = wrap(t.step)
    for k in range(6):
        w = t.params[0]
        kept += [w.detach(), w.grad, copy.deepcopy(w), w.reshape(-1), w[1:], w.detach().numpy()]
        kept.append(t.opt.state_dict())
        step(rows(k))
        log.append(seen(kept))
    return log


@scenario
def results_that_are_kept_and_changed(wrap: Wrap) -> list[Any]:
    constant, kept, log = np.arange(3.0), [], []
    f = wrap(
        lambda x: [x * 2, x.sum() + ad.ones(3), ad.zeros(3), ad.tensor(constant), x[1:], x.reshape(3, 1)]
    )
    for k in range(5):
        x = vector(k)
        found = f(x)
        kept.append(found)
        for t in found[:4]:
            t[0] = 9.0
        x[1] = -1.0
        log += [seen(kept), seen(x), constant.copy()]
    return log


@scenario
def results_that_are_state(wrap: Wrap) -> list[Any]:
    t, kept, log = vector(n=4), [], []

    def f(x: Any) -> Any:
        t.copy_(t + x.sum())
        return t, t[1:], t.reshape(2, 2), t.detach() * 1

    step = wrap(f)
    for k in range(5):
        kept.append(step(vector(k)))
        log += [kept[-1][0] is t, seen(kept)]
    return log


@scenario
def arguments_that_are_written(wrap: Wrap) -> list[Any]:
    log = []

    def f(x: Any, y: Any) -> Any:
        x.copy_(x + y)
        y[0] = 5.0
        return x * 2

    step = wrap(f)
    for k in range(6):
        x, y = vector(), vector(k)
        held, view = x.detach(), x.numpy()
        log += [seen([step(x, x if k == 4 else y), x, y, held]), view.copy()]
    return log


@scenario
def results_as_the_next_arguments(wrap: Wrap) -> list[Any]:
    def f(p: Any, m: Any, x: Any) -> Any:
        m = m * 0.9 + ad.grad(lambda q: (q * q * x).sum())(p)
        return p - 0.01 * m, m

    step, p, m, log = wrap(f), vector(), vector(0.0), []
    for _ in range(6):
        p, m = step(p, m, vector())
        log.append(seen([p, m]))
    return log


@scenario
def arguments_in_any_layout(wrap: Wrap) -> list[Any]:
    f = wrap(lambda x, y: [x + y, x.sum(0), (x * y).sum(1), ad.tanh(x).T, x.max(1)])
    base = np.arange(20.0).reshape(4, 5)
    frozen = base.copy()
    frozen.setflags(write=False)
    layouts = [
        base, frozen, np.asfortranarray(base), base[::-1], np.repeat(base, 2, 1)[:, ::2],
        np.broadcast_to(base[:1], (4, 5)), np.broadcast_to(base[:, :1], (4, 5)), np.zeros((0, 5)), np.zeros((4, 0))[:, :0],
    ]  # fmt: skip
    pairs = [(a, b) for a in layouts[:7] for b in layouts[:7]] + [(layouts[7],) * 2]
    return [seen(f(ad.asarray(a), ad.asarray(b))) for a, b in pairs]


# Gradients outside ----------------------------------------------------------------------------------


@scenario
def writes_between_forward_and_backward(wrap: Wrap) -> list[Any]:
    p, log = vector().requires_grad_(True), []
    f = wrap(lambda x: (p * p * x).sum())
    for k in range(8):
        x = vector(k + 1)
        loss = f(x)
        with ad.no_grad():
            if k % 4 == 1:
                p.copy_(p * 2)
            if k % 4 == 2:
                x.copy_(x * 2)
        try:
            loss.backward()
            log.append(seen(p.grad))
        except AdjointError as error:
            log.append(type(error).__name__)
        p.grad = None
    return log


@scenario
def calls_whose_backwards_are_interleaved(wrap: Wrap) -> list[Any]:
    p, log = vector().requires_grad_(True), []
    f = wrap(lambda x: (ad.sin(p) * x, (p * p).sum()))
    for _ in range(3):
        found = [f(vector(k)) for k in range(4)]
        gc.collect()
        for a, b in reversed(found[:2]):
            (a.sum() * b).backward(retain_graph=True)
        del a, b
        found[3][0].sum().backward(retain_graph=True)  # both results are of one node
        found.pop()[1].backward()
        log.append(seen(p.grad))
        p.grad = None
    return log


@scenario
def arguments_with_and_without_gradients(wrap: Wrap) -> list[Any]:
    f, log = wrap(lambda x, y: (x * y).sum()), []
    for a, b in ((0, 0), (1, 0), (0, 1), (1, 1), (0, 0), (1, 1)):
        x, y = vector().requires_grad_(bool(a)), vector(2.0).requires_grad_(bool(b))
        loss = f(x, y * 2 if b else y)
        if loss.requires_grad:
            loss.backward()
        log.append(seen([loss, x.grad, y.grad]))
    return log


@scenario
def gradients_that_accumulate_and_vanish(wrap: Wrap) -> list[Any]:
    t, log, kept = Trained(), [], []
    f = wrap(lambda x: (t.model(x) ** 2).mean().backward())
    for k in range(9):
        if k == 3:
            t.params[1].grad = None
        if k == 5:
            t.params[0].grad *= 2.0
        if k == 7:
            t.opt.zero_grad()
        f(rows(k))
        kept.append(t.params[0].grad)
        log.append(seen([kept, [p.grad for p in t.params]]))
    return log


@scenario
def transforms_around(wrap: Wrap) -> list[Any]:
    p, factor, log = vector().requires_grad_(True), [1.0], []
    f = wrap(lambda x: (ad.tanh(p * x * 0.1) * factor[0]).sum())
    many = ad.tensor(np.arange(12.0).reshape(4, 3))
    for k in range(5):
        factor[0] = 1.0 if k < 3 else 5.0
        x = vector(k)
        log += [
            ad.grad(f)(x),
            ad.value_and_grad(f)(x),
            ad.hessian(f)(x),
            ad.vmap(f)(many),
            ad.jvp(f, (x,), (x,)),
        ]
        log += [ad.vmap(ad.grad(f))(many), ad.checkpoint(lambda v: f(v) * 2, x)]
        log.append(ad.scan(lambda c, v: (c + f(v), f(c + v)), ad.tensor(0.0), many))
        (g,) = ad.gradients(f(x), [p], create_graph=True)
        log.append(ad.gradients((g * g).sum(), [p]))
    return log


@scenario
def compiled_functions_inside_each_other(wrap: Wrap) -> list[Any]:
    p, factor, log = vector().requires_grad_(True), [1.0], []
    inner = wrap(lambda x: p * x * factor[0])
    middle = wrap(lambda x: ad.vmap(inner)(ad.broadcast_to(x, (2, 3))).sum(0) + 1)
    outer = wrap(lambda x: (middle(x) * inner(x)).sum())
    for k in range(6):
        factor[0] = 1.0 if k < 3 else 3.0
        p.grad = None
        loss = outer(vector(k))
        loss.backward()
        log.append(seen([loss, p.grad, inner(vector()), middle(vector())]))
    return log


# Optimisers and modules -----------------------------------------------------------------------------


@scenario
def eager_and_compiled_steps_in_turn(wrap: Wrap) -> list[Any]:
    t, log = Trained(), []
    step = wrap(t.step)
    for k in range(9):
        log += [seen((step if k % 3 else t.step)(rows(k, (4, 3, 1)[k % 2]))), t.state()]
    return log


@scenario
def two_optimisers_of_one_model(wrap: Wrap) -> list[Any]:
    t, log = Trained(), []
    other = Trained("SGD", momentum=0.9)
    other.model, other.params = t.model, t.params
    other.opt = optim.SGD(t.params, lr=0.1, momentum=0.9)
    steps = [wrap(t.step), wrap(other.step)]
    for k in range(8):
        log += [seen(steps[k % 3 == 1](rows(k))), t.state(), other.state()]
    return log


@scenario
def copies_of_a_trained_model(wrap: Wrap) -> list[Any]:
    t, log = Trained(), []
    step = wrap(t.step)
    for k in range(3):
        step(rows(k))
    twin = copy.deepcopy(t)
    again = wrap(twin.step)
    for k in range(4):
        log += [seen(step(rows(k))), seen(again(rows(k + 9))), t.state(), twin.state()]
    return log


@scenario
def freezing_groups_and_loaded_states(wrap: Wrap) -> list[Any]:
    t, log = Trained(), []
    t.opt = optim.AdamW([{"params": t.params[:2], "lr": 0.1}, {"params": t.params[2:]}], lr=0.01)
    step, saved = wrap(t.step), copy.deepcopy((t.model.state_dict(), t.opt.state_dict()))
    for k in range(12):
        if k in (2, 4):
            t.params[0].requires_grad_(k == 4)
        if k == 5:
            t.opt.groups[0].hyper["lr"] = 0.05
        if k == 6:
            t.opt.groups[1].hyper["weight_decay"] = 0.0
        if k == 8:
            t.model.load_state_dict(saved[0])
            t.opt.load_state_dict(copy.deepcopy(saved[1]))
        if k == 10:
            t.params[2].grad = ad.ones(t.params[2].shape, dtype="float32")
        log += [seen(step(rows(k))), t.state()]
    return log


@scenario
def parameters_that_are_not_always_used(wrap: Wrap) -> list[Any]:
    p, q, uses, log = vector().requires_grad_(True), vector().requires_grad_(True), [True], []
    opt = optim.Adam([p, q], lr=0.1)

    def f(x: Any) -> Any:
        opt.zero_grad()
        loss = (p * x).sum() + (q.sum() if uses[0] else 0.0)
        loss.backward()
        opt.step()
        return loss

    step = wrap(f)
    for k in range(8):
        uses[0] = k % 3 != 1
        log += [seen(step(vector(k))), seen([p, q, opt.state_dict()])]
    return log


@scenario
def modules_and_optimisers_as_arguments(wrap: Wrap) -> list[Any]:
    trained, log = [Trained(), Trained("SGD"), Trained("RMSprop")], []
    shared = trained[0].model
    for t in trained[1:]:
        t.opt = type(t.opt)(trained[0].params, lr=0.1)

    def f(opt: Any, x: Any) -> Any:
        opt.zero_grad()
        (shared(x) ** 2).mean().backward()
        opt.step()

    step, loss = wrap(f), wrap(lambda model, x: (model(x) ** 2).mean())
    for k in range(7):
        t = trained[k % 3]
        step(t.opt, rows(k))
        loss(t.model, rows(k)).backward()
        log.append([t.state() for t in trained])
    return log


@scenario
def random_states_that_are_set_back(wrap: Wrap) -> list[Any]:
    rng, log, state = ad.random.default_rng(3), [], None
    drop = nn.Dropout(0.5, rng=1)
    f = wrap(lambda x: drop(x) + rng.normal(size=3) + rng.uniform(size=3))
    for k in range(12):
        if k == 2:
            state = rng.state
        if k == 5:
            rng.state = state
        if k == 6:
            log.append(seen(rng.normal(size=2)))
        if k in (7, 9):
            drop.train(k == 9)
        if k == 10:
            drop.p = 0.2
        log.append(seen(f(vector())))
    return log


@scenario
def micro_batches_around(wrap: Wrap) -> list[Any]:
    t, log = Trained("SGD"), []
    accumulator = ad.GradientAccumulator(t.params, accumulation_steps=3)
    loss = wrap(lambda x: (t.model(x) ** 2).mean())
    whole = wrap(lambda x: (t.model(x) ** 2).mean().backward())
    for k in range(4):
        for j in range(3):
            with accumulator.micro_batch():
                _ = loss(rows(3 * k + j)).backward() if k % 2 else whole(rows(3 * k + j))
        accumulator.apply(t.opt)
        log.append(t.state())
    return log


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_same_as_in_eager_mode(name: str, backend: str) -> None:
    wanted = seen(SCENARIOS[name](lambda f: f))
    found = seen(SCENARIOS[name](functools.partial(ad.compile, backend=backend, limit=50)))
    assert len(found) == len(wanted)
    for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert equal(a, b, 0.0 if backend == "replay" else 1e-5), f"entry {k}: {a}, but {b} in eager mode"


def check_events(seed: int, backend: str, calls: int) -> None:
    """Compare a step that reads many things, which change at random between its calls, with the eager one."""
    wanted = random_events.run(seed, lambda f: f, calls)
    found = random_events.run(seed, functools.partial(ad.compile, backend=backend, limit=64), calls)
    for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert equal(a, b, 0.0 if backend == "replay" else 2e-4), f"call {k}"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(3))
def test_events_between_calls(seed: int, backend: str) -> None:
    check_events(seed, backend, 30)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_events_between_calls(seed: int) -> None:
    for backend in BACKENDS:
        check_events(seed, backend, 100)
