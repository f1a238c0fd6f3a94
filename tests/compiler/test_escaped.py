"""Values of a trace that are used after it, or in another thread: an error there, and nothing is left symbolic."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from by_replay import by_replay as by_replay
from steps import state_of
from table import CASES, OP_NAMES

import adjoint as ad
from adjoint import nn, optim
from adjoint.core.op import OPS
from adjoint.core.tensor import wrap
from adjoint.errors import AdjointError, TransformError


def arrays_of(case: Any) -> list[int]:
    return [i for i, a in enumerate(case.args) if isinstance(a, np.ndarray)]


SEVERAL = {
    name: found[0]
    for name in OP_NAMES
    if (found := [case for case in CASES.get(name, []) if len(arrays_of(case)) > 1])
}


def escaped(array: Any) -> Any:
    """Return a tensor that was computed in a trace that has ended."""
    kept = []

    def f(x: Any) -> Any:
        kept.append(ad.reshape(x, x.shape))
        return x

    ad.compile(f)(wrap(array))
    return kept[0]


@pytest.mark.parametrize("leaf", [False, True], ids=["plain", "leaf"])
@pytest.mark.parametrize("name", SEVERAL)
def test_an_op_with_an_escaped_operand_leaves_the_others_alone(name: str, leaf: bool) -> None:
    case = SEVERAL[name]
    for place in arrays_of(case):
        args = list(case.args)
        others = []
        for i in arrays_of(case):
            args[i] = escaped(case.args[i]) if i == place else wrap(case.args[i])
            if i != place:
                if leaf and args[i].dtype.kind in "fc":
                    args[i].requires_grad_()
                others.append((args[i], args[i]._data))
        with pytest.raises(TransformError, match=r"ad\.compile"):
            OPS[name].eager(*args, **case.params)
        for t, data in others:
            assert type(t) is ad.Tensor, (name, place)
            assert type(t._data) is np.ndarray, (name, place)
            assert t._data is data


def test_the_table_has_ops_with_several_operands() -> None:
    assert len(SEVERAL) > 50
    assert {"add", "matmul", "where", "conv", "take", "index_set"} <= SEVERAL.keys()


@pytest.fixture
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


TRACES = 36


def train(other: Any = None) -> list[Any]:
    """Train by a compiled step that is traced at each call; return all state.

    ``other(model)`` returns a function that another thread calls again and again meanwhile.
    """
    m = nn.Sequential(
        nn.Linear(4, 6, rng=0), nn.Tanh(), nn.Linear(6, 6, rng=1), nn.Tanh(), nn.Linear(6, 1, rng=2)
    )
    o = optim.Adam(m.parameters(), lr=0.01)

    @ad.compile(limit=TRACES)
    def step(x: Any, y: Any) -> Any:
        o.zero_grad()
        loss = nn.functional.mse_loss(m(x), y)
        loss.backward()
        o.step()
        return loss

    done, started = threading.Event(), threading.Event()

    def work() -> None:
        call = other(m)
        while not done.is_set():
            call()
            started.set()

    thread = threading.Thread(target=work)
    if other is not None:
        thread.start()
        started.wait()
    try:
        for n in range(1, TRACES + 1):
            r = np.random.default_rng(n)
            step(r.normal(size=(n, 4)).astype("f"), r.normal(size=(n, 1)).astype("f"))
    finally:
        done.set()
        if other is not None:
            thread.join()
    assert step.stats()["traces"] == TRACES
    for p in m.parameters():
        assert type(p) is ad.Tensor
        assert type(p._data) is np.ndarray
        assert type(p.grad) is ad.Tensor
        assert type(p.grad._data) is np.ndarray
    return state_of(m, o)


@pytest.mark.usefixtures("many_switches")
@pytest.mark.parametrize("grad", [True, False], ids=["with a graph", "without a graph"])
def test_another_thread_calls_the_model_while_it_is_traced(grad: bool) -> None:
    results: set[type] = set()
    errors: list[BaseException] = []
    x = np.ones((5, 4), "f")

    def other(m: Any) -> Any:
        def call() -> None:
            try:
                with ad.enable_grad() if grad else ad.no_grad():
                    results.add(type(m(x)))
            except BaseException as error:
                errors.append(error)

        return call

    assert train(other) == train()
    assert results == {ad.Tensor}
    for error in errors:
        assert isinstance(error, AdjointError), error
        assert "ad.compile" in str(error), error


LOST: dict[str, Any] = {  # changes that the end of the trace would undo, and reads of the array itself
    "a backward": lambda w, o, loss: loss.backward(),
    "zero_grad": lambda w, o, loss: o.zero_grad(),
    "zero_grad of a module": lambda w, o, loss: o.module.zero_grad(),
    "no gradient": lambda w, o, loss: setattr(w, "grad", None),
    "a gradient": lambda w, o, loss: setattr(w, "grad", ad.ones(3)),
    "requires_grad": lambda w, o, loss: w.requires_grad_(False),
    "an update": lambda w, o, loss: o.step(),
    "a write": lambda w, o, loss: w.copy_(ad.ones(3)),
    "a new optimiser": lambda w, o, loss: optim.Adam([w]),
    "a new average": lambda w, o, loss: optim.EMA([w]),
    "clip_grad_norm": lambda w, o, loss: (ad.clip_grad_norm([w], 1.0), w.grad.tolist()),
    "clip_grad_adaptive": lambda w, o, loss: ad.clip_grad_adaptive([w]),
    "state_dict": lambda w, o, loss: o.module.state_dict(),
}
LOST |= {
    f"the attribute {name}": lambda w, o, loss, name=name: getattr(w._data, name)
    for name in dir(np.ndarray)
    if not name.startswith("_") and name not in ("shape", "dtype", "ndim", "size", "choose", "trace")
}


@pytest.mark.parametrize("name", LOST)
def test_a_captured_tensor_cannot_be_used_in_another_thread(name: str) -> None:
    m = nn.Module()
    w = m.w = ad.tensor([1.0, 2.0, 3.0], requires_grad=True)
    w.grad = ad.ones(3)
    o = optim.SGD([w], lr=0.125)
    o.module = m
    loss = (w * w).sum()
    errors: list[Exception] = []

    def work() -> None:
        try:
            LOST[name](w, o, loss)
        except AdjointError as error:
            errors.append(error)

    def f(x: Any) -> Any:
        y = (w * x).sum() + w.grad.sum()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return y

    assert ad.compile(f)(np.ones(3)).item() == 9.0
    assert w.tolist() == [1.0, 2.0, 3.0] and w.grad.tolist() == [1.0] * 3 and w.requires_grad
    assert [str(e) for e in errors] == [
        "ad.compile is tracing a function that uses this tensor in another thread.\n"
        "  Wait until the first call of the compiled function has returned before you use the tensor."
    ]
