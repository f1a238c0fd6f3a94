"""The native check of guards: it is True only where the guards hold, and notices every change of them."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pytest
from program_texts import run_text

pytest.importorskip("llvmlite")

import adjoint as ad
from adjoint import nn, optim
from adjoint.compiler.host import check as watch
from adjoint.compiler.host import entry
from adjoint.compiler.host.check_text import Watched

RATE = 2.0
TABLE = {"a": [1.0, 2.0], "b": (3.0, {"c": 4.0})}


class Config:
    scale = 3.0

    def __init__(self) -> None:
        self.own = 1.0


class Net(nn.Module):
    def __init__(self) -> None:
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 1)
        self.gain = 1.5
        self.widths = [1.0, 2.0]

    def forward(self, x):
        return self.second((self.first(x) * self.gain).tanh()) * sum(self.widths)


def setting():
    """A compiled training step with guards of all kinds, and what it depends on."""
    net, config, numbers, listed = Net().astype(np.float64), Config(), {"k": 1.0}, [1.0, [2.0]]
    opt = optim.SGD(net.parameters(), lr=0.01)
    factor = 1.0

    def step(x, y):
        loss = (
            ((net(x) - y) ** 2).mean()
            * RATE
            * config.scale
            * config.own
            * numbers["k"]
            * listed[1][0]
            * TABLE["a"][0]
            * factor
        )
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    compiled = ad.compile(step, backend="native")
    rng = np.random.default_rng(0)
    x, y = ad.tensor(rng.standard_normal((5, 3))), ad.tensor(rng.standard_normal((5, 1)))
    for _ in range(4):
        compiled(x, y)
    cells = dict(zip(step.__code__.co_freevars, step.__closure__, strict=True))
    return (
        compiled,
        (x, y),
        {"net": net, "config": config, "numbers": numbers, "listed": listed, "opt": opt, "cells": cells},
    )


def ready(compiled, args) -> bool:
    return compiled._direct is not None and compiled._variants[0].watch.ready(*args)


def test_the_native_check_and_the_native_entry_are_used_on_this_interpreter():
    assert entry.layout() is not None and watch.possible()
    compiled, args, _ = setting()
    assert compiled._variants[0].watch.is_on() and ready(compiled, args)


def test_an_unchanged_program_is_ready_and_is_not_checked_in_full(monkeypatch):
    compiled, args, _ = setting()
    assert ready(compiled, args)
    monkeypatch.setattr(compiled._variants[0], "holds", None)
    for _ in range(5):
        compiled(*args)
    assert compiled.stats()["reasons"] == ["it was the first call"]


def set_global(name, value):
    sys.modules[__name__].__dict__[name] = value


CHANGES = {
    "global": lambda at: set_global("RATE", 5.0),
    "item of a global dictionary": lambda at: TABLE["a"].__setitem__(0, 7.0),
    "closure variable": lambda at: setattr(at["cells"]["factor"], "cell_contents", 3.0),
    "attribute of an object": lambda at: setattr(at["config"], "scale", 4.0),
    "attribute of an object, set by __init__": lambda at: setattr(at["config"], "own", 4.0),
    "deleted attribute of an object": lambda at: delattr(at["config"], "own"),
    "class attribute": lambda at: setattr(Config, "scale", 6.0),
    "item of a dictionary": lambda at: at["numbers"].update(k=2.0),
    "item of a list in a list": lambda at: at["listed"][1].__setitem__(0, 9.0),
    "attribute of a module": lambda at: setattr(at["net"], "gain", 0.5),
    "list of a module": lambda at: at["net"].widths.append(3.0),
    "attribute of a module inside": lambda at: setattr(at["net"].first, "extra", 1),
    "mode of a module": lambda at: at["net"].eval(),
    "parameter frozen": lambda at: at["net"].first.weight.requires_grad_(False),
    "parameter of another dtype": lambda at: setattr(at["net"].first.weight, "_data", np.zeros((4, 3), np.float32)),
    "hook": lambda at: at["net"].first.weight.register_hook(lambda g: g * 2),
    "gradient": lambda at: setattr(at["net"].first.weight, "grad", ad.zeros((4, 3))),
    "hyper-parameter": lambda at: at["opt"].groups[0].hyper.update(momentum=0.9),
    "learning rate": lambda at: setattr(at["opt"], "lr", 0.5),
    "parameter group": lambda at: at["opt"].add_group({"params": [ad.tensor(1.0, requires_grad=True)]}),
    "state of the optimiser": lambda at: at["opt"].load_state_dict(at["opt"].state_dict()),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_noticed(change, monkeypatch):
    monkeypatch.setitem(sys.modules[__name__].__dict__, "RATE", 2.0)
    monkeypatch.setitem(sys.modules[__name__].__dict__, "TABLE", {"a": [1.0, 2.0], "b": (3.0, {"c": 4.0})})
    monkeypatch.setattr(Config, "scale", 3.0)
    compiled, args, at = setting()
    assert ready(compiled, args)
    CHANGES[change](at)
    assert not ready(compiled, args)


CONTEXTS = {
    "no_grad": ad.no_grad,
    "compiling": lambda: ad.config.compiling(False),
    "tape": ad.Tape,
    "anomaly": ad.detect_anomaly if hasattr(ad, "detect_anomaly") else ad.no_grad,
}


@pytest.mark.parametrize("context", CONTEXTS)
def test_modes_are_noticed(context):
    compiled, args, _ = setting()
    with CONTEXTS[context]():
        assert not ready(compiled, args)
    assert ready(compiled, args)


def test_other_arguments_are_not_ready():
    compiled, (x, y), at = setting()
    weight = at["net"].first.weight
    for args in ((), (x,), (x, y, y), (x, y.numpy()), (ad.zeros((5, 2)), y), (x, ad.zeros((5, 1), dtype="float32")),
                 (ad.tensor(x.numpy(), requires_grad=True), y), (x, None), (weight, y)):  # fmt: skip
        assert not ready(compiled, args)
    assert ready(compiled, (ad.zeros((5, 3)), ad.ones((5, 1))))


def test_results_are_those_of_replay():
    found = []
    for backend in ("native", "replay"):
        rng = np.random.default_rng(1)
        net = Net().astype(np.float64)
        with ad.no_grad():
            for p in net.parameters():
                p.copy_(rng.standard_normal(p.shape))
        opt = optim.Adam(net.parameters(), lr=0.01)

        @ad.compile(backend=backend)
        def step(x, y, net=net, opt=opt):
            loss = ((net(x) - y) ** 2).mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            return loss

        losses = []
        for k in range(12):
            x, y = ad.tensor(rng.standard_normal((5, 3))), ad.tensor(rng.standard_normal((5, 1)))
            if k == 6:
                opt.lr = 0.05
            if k == 9:
                net.gain = 0.7
            losses.append(step(x, y).item())
        found.append(losses)
    np.testing.assert_allclose(*found, rtol=1e-9)


def test_a_failure_after_the_native_writes_takes_them_back(monkeypatch):
    monkeypatch.setattr("adjoint.optim.traced._HostCount.counters", lambda self: None)  # count in Python
    compiled, args, at = setting()
    net, opt = at["net"], at["opt"]
    before, counted = [p.numpy().copy() for p in net.parameters()], opt.step_count

    def fails(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["adjoint.optim.traced"]._HostCount, "__call__", fails)
        with pytest.raises(KeyboardInterrupt):
            compiled(*args)
    for p, b in zip(net.parameters(), before, strict=True):
        np.testing.assert_array_equal(p.numpy(), b)
    assert opt.step_count == counted
    compiled(*args)
    assert opt.step_count == counted + 1 and any(
        (p.numpy() != b).any() for p, b in zip(net.parameters(), before, strict=True)
    )


def test_a_rate_that_changes_at_every_call_is_asked_for():
    compiled, args, at = setting()
    for k in range(20):
        at["opt"].lr = 0.01 + k / 1000
        compiled(*args)
    at["opt"].lr = 0.5
    assert ready(compiled, args) and compiled.stats()["reasons"] == ["it was the first call"]
    before = at["net"].second.bias.numpy().copy()
    at["opt"].lr = 0.0
    assert not ready(compiled, args)  # another program: the rate is 0
    compiled(*args)
    np.testing.assert_array_equal(at["net"].second.bias.numpy(), before)


def test_equal_values_and_values_that_are_not_read_are_no_change(monkeypatch):
    compiled, args, at = setting()
    monkeypatch.setitem(TABLE, "b", 0)
    at["listed"][1].append(9.0)
    at["net"].unread = at["config"].unread = 1
    compiled(*args)
    for _ in range(20):
        at["net"].widths[:] = [float(str(1.0)), 2.0]  # another object of the same value
        assert ready(compiled, args)
        compiled(*args)
    assert compiled.stats()["reasons"] == ["it was the first call"]


def test_a_renewal_during_a_check_is_left_out():
    class Guard:
        def watch(self):
            return ()

        def holds(self):
            found.renew()  # as in a call by a finalizer
            return True

    found = watch.Watch((), (), (), [Guard(), Guard()])
    found.asks = True
    for _ in range(2):
        found.renew()
        rows = found.words.held
        assert found.ready() and found.words.held is rows
        assert not found.ready()  # until the next full check


def test_references_are_counted():
    compiled, args, at = setting()
    watched = (*args, None, True, False, compiled._variants[0].watch.words, at["net"].first.weight)
    check = compiled._variants[0].watch.ready
    before = [sys.getrefcount(w) for w in watched]
    for _ in range(1000):
        check(*args), check(*args, 1)
    after = [sys.getrefcount(w) for w in watched]
    assert max(abs(a - b) for a, b in zip(after, before, strict=True)) < 50


def test_an_unknown_layout_is_no_error(monkeypatch):
    for module in (watch, entry):
        monkeypatch.setattr(module, "layout", lambda: None)
    assert not watch.possible() and watch._ready.text() is None


def test_arrays_with_dtype_objects_of_their_own_are_ready() -> None:
    def private(value: Any) -> Any:
        """Unpickled arrays have dtypes that are equal to NumPy's own, but not identical."""
        return pickle.loads(pickle.dumps(value))

    net = private(nn.Linear(3, 2, rng=0))
    opt = optim.SGD(net.parameters(), lr=0.1)

    @ad.compile(backend="native")
    def step(x: Any, y: Any) -> Any:
        opt.zero_grad()
        loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        opt.step()
        return loss

    x, y = np.ones((4, 3), "f"), ad.tensor(np.ones((4, 2), "f"))
    assert private(x).dtype is not x.dtype
    for k in range(6):
        step(private(x) if k % 2 else x, private(y))
    assert step.stats()["reasons"] == ["it was the first call"]
    assert ready(step, (private(x), private(y))) and ready(step, (x, y))
    assert not ready(step, (x.astype("d"), y))


READS = {
    "a key that is missing": ("x * d.get('k', 2.0)", "d['k'] = 3.0"),
    "a key that is there": ("x * 2.0 if 'a' in d else x", "del d['a']"),
    "a key that is a number": ("x * d[1]", "d[1] = 3.0"),
    "an element": ("x * l[0]", "l[0] = 5.0"),
    "an element from the end": ("x * l[-1]", "l.append(5.0)"),
    "an element of a shorter list": ("x * (l[1] if l[0] else 3.0)", "l.pop(); l[0] = 0.0"),
    "a length": ("x * len(l)", "l.append(1.0)"),
    "the truth of a list": ("x * 2.0 if l else x", "l.clear()"),
    "an empty list": ("x * 2.0 if none else x", "none.append(1)"),
    "a method": ("o.scaled(x)", "o.scaled = lambda x: x - 1"),
    "the code of a helper": ("helper(x)", "helper.__code__ = other.__code__"),
    "defaults of a helper": ("helper(x)", "helper.__defaults__ = (7.0,)"),
    "a tuple": ("x * t[0]", "t = (9.0,)"),
}


@pytest.mark.parametrize("name", READS)
def test_reads_that_native_code_compares_by_itself(name: str) -> None:
    text, change = READS[name]
    space: dict[str, Any] = {"__name__": "reads_of_test"}
    run_text(
        "class O:\n    def scaled(self, x): return x * 2\n"
        "o, d, l, none, t = O(), {'a': 1.0, 1: 2.0}, [1.0, 2.0], [], (1.0,)\n"
        "def helper(x, k=3.0): return x * k\ndef other(x, k=3.0): return x + k\n"
        f"def f(x): return {text}",
        space,
    )
    compiled, x = ad.compile(space["f"], backend="native"), ad.tensor([1.0, 2.0])
    for _ in range(4):
        compiled(x)
    assert ready(compiled, (x,)) and compiled._variants[0].watch.words[Watched.ASKED] == 0
    run_text(change, space)
    assert not ready(compiled, (x,))
    assert compiled(x).tolist() == space["f"](x).tolist()


def test_constants_in_another_memory_order_do_not_leave_the_fast_path() -> None:
    """The directions of a Jacobian are rows and columns of one array."""

    def f(x):
        return ad.jacobian(lambda v: ad.stack([v[0] * v[1], ad.sin(v[1]) * v[2]]))(x)

    compiled, x = ad.compile(f, backend="native"), ad.tensor([1.0, 2.0, 3.0])
    for _ in range(5):
        np.testing.assert_allclose(compiled(x).numpy(), f(x).numpy(), 1e-14)
    assert compiled._variants[0].watch.calls == 3  # all but the first two: a trace, and a check in full
    assert compiled._variants[0].native.scattered == []


def test_inputs_in_another_memory_order_are_copied() -> None:
    a = np.arange(6.0).reshape(2, 3).T
    compiled, x = ad.compile(lambda x: x * a, backend="native"), ad.tensor(np.ones((3, 2)))
    for k in range(5):
        a[0, 1] = k
        assert compiled(x).tolist() == (x * a).tolist()


def test_constant_tuples_are_not_guarded() -> None:
    compiled = ad.compile(lambda x: (x * 2.0).sum(axis=(0, 1)))
    compiled(ad.ones((2, 2)))
    assert len(compiled.stats()["programs"][0]["guards"]) == 2  # the code, and 0 tensors
