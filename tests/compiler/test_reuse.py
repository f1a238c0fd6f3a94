"""Outputs that are written over inputs: the same bits as in new memory, and nothing is changed by halves."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import adjoint as ad
from adjoint import errors, optim
from adjoint.compiler.emit import machine
from adjoint.compiler.host import plan


class Net:
    """A network with an optimiser; ``zero`` is where the gradients are set to None."""

    def __init__(
        self, kind: str, sizes: tuple[int, ...], zero: str = "first", dtype: Any = np.float32
    ) -> None:
        rng = np.random.default_rng(1)
        self.layers = [
            (ad.tensor(rng.normal(size=(a, b)).astype(dtype), requires_grad=True),
             ad.tensor(rng.normal(size=b).astype(dtype), requires_grad=True))
            for a, b in itertools.pairwise(sizes)
        ]  # fmt: skip
        self.params = [p for layer in self.layers for p in layer]
        momentum = {"momentum": 0.9} if kind == "SGD" and zero == "last" else {}
        self.opt: Any = getattr(optim, kind)(self.params, lr=0.01, **momentum)
        self.zero = zero

    def step(self, x: Any) -> Any:
        if self.zero == "first":
            self.opt.zero_grad()
        for w, b in self.layers:
            x = ad.tanh(x @ w + b)
        loss = (x * x).sum()
        loss.backward()
        self.opt.step()
        if self.zero == "last":
            self.opt.zero_grad()
        return loss

    def arrays(self) -> list[Any]:
        """Return all arrays that a step writes."""
        state = [a for g in self.opt.groups for u in g.units for a in (u.state or {}).values()]
        grads = [p.grad._data for p in self.params if p.grad is not None]
        return [*(p._data for p in self.params), *grads, *state]

    def snapshot(self) -> list[Any]:
        return [*(a.tolist() for a in self.arrays()), self.opt.step_count, self.opt.state_dict()["steps"]]


def inputs(count: int, net: Net) -> list[Any]:
    rng = np.random.default_rng(0)
    w = net.params[0]
    return [ad.tensor(rng.standard_normal((6, w.shape[0])).astype(w.dtype)) for _ in range(count)]


def compare(kind: str, sizes: tuple[int, ...], zero: str, dtype: Any = np.float32) -> None:
    """Compare steps that reuse memory with steps whose arrays are held, so that each writes new arrays."""
    free, held = Net(kind, sizes, zero, dtype), Net(kind, sizes, zero, dtype)
    steps = [ad.compile(net.step, backend="native") for net in (free, held)]
    for x in inputs(6, free):
        keep = held.arrays()
        before = [a.copy() for a in keep]
        losses = [step(x).tolist() for step in steps]
        assert losses[0] == losses[1] and free.snapshot() == held.snapshot()
        for a, b in zip(keep, before, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("zero", ["first", "last"])
@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam"])
def test_reused_memory_gives_the_same_bits(kind: str, zero: str) -> None:
    compare(kind, (5, 7, 3), zero)
    compare(kind, (40, 33, 2), zero)


@pytest.mark.parametrize("level", machine.levels())
def test_reused_memory_on_every_level(level: str) -> None:
    with machine.using(level):
        compare("Adam", (37, 19, 3), "first", np.float64)
        compare("SGD", (37, 19, 3), "last")


@pytest.mark.parametrize("zero", ["first", "last"])
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_parameters_state_and_gradients_stay_where_they_are(kind: str, zero: str) -> None:
    net = Net(kind, (40, 33, 2), zero)
    step = ad.compile(net.step, backend="native")
    for x in inputs(3, net):
        step(x)
    before = [a.ctypes.data for a in net.arrays()]
    for x in inputs(3, net):
        step(x)
    assert [a.ctypes.data for a in net.arrays()] == before


def set_both(a: Any, b: Any, x: Any, y: Any) -> None:
    a.copy_(x)
    b.copy_(y)


UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "transposed": lambda a, b: a.copy_(a.T + b),
    "reversed": lambda a, b: a.copy_(a[::-1] * 0.5),
    "rolled": lambda a, b: a.copy_(ad.concat([a[1:], a[:1]])),
    "mean": lambda a, b: a.copy_(a - a.mean()),
    "row means": lambda a, b: a.copy_(a - a.mean(1, keepdims=True) * 0.5),
    "softmax": lambda a, b: a.copy_(ad.softmax(a, axis=1)),
    "first element": lambda a, b: a.copy_(a * a[0, 0]),
    "product": lambda a, b: a.copy_((a @ a) * 0.1),
    "product with itself": lambda a, b: a.copy_((b @ a) * 0.1 + a),
    "gathered": lambda a, b: a.copy_(a[np.array([1, 0, 3, 2, 4])]),
    "swap": lambda a, b: set_both(a, b, b * 1.0, a * 1.0),
    "both": lambda a, b: (a.copy_(a + b), b.copy_(a - b)),
    "crossed": lambda a, b: set_both(a, b, a + b, a - b),
    "half crossed": lambda a, b: set_both(a, b, b * 2.0, a * b),
    "old and new": lambda a, b: (lambda x: (b.copy_(a @ x), a.copy_(x)))(a * 0.5),
    "two loops": lambda a, b: set_both(a, b, a * 2.0, a - (a * a).sum(1, keepdims=True)),
    "number": lambda a, b: a.copy_(a * (a[0, 0] * 0.25 + 1.0)),
    "part": lambda a, b: a.copy_(ad.concat([a[:2] + b[3:], a[2:] * 2.0])),
    "crossed parts": lambda a, b: a.copy_(ad.concat([a[3:] + 1.0, a[:3] * 2.0])),
    "twice": lambda a, b: (a.copy_(a * 2.0), a.copy_(a + b)),
    "unrelated": lambda a, b: (a.copy_(b * 3.0), b.copy_(b + 1.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_that_reads_other_elements(name: str) -> None:
    rng = np.random.default_rng(0)
    start = [rng.standard_normal((5, 5)) for _ in range(2)]
    eager, ours = ([ad.tensor(s.copy()) for s in start] for _ in range(2))

    def step(tensors: list[Any], x: Any) -> Any:
        UPDATES[name](*tensors)
        return (tensors[0] * x).sum() + tensors[1].sum()

    compiled = ad.compile(lambda x: step(ours, x), backend="native")
    for k in range(5):
        x = ad.tensor(np.full((5, 5), 0.5 + k))
        a, b = step(eager, x), compiled(x)
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12)
        for t, u in zip(eager, ours, strict=True):
            np.testing.assert_allclose(t.numpy(), u.numpy(), rtol=1e-12)


def test_a_written_tensor_is_no_argument() -> None:
    w = ad.tensor(np.ones((4, 4)))

    @ad.compile(backend="native")
    def step(x: Any) -> Any:
        loss = (x.T * w).sum()
        w.copy_(w + x.T)
        return loss

    x = ad.tensor(np.arange(16.0).reshape(4, 4))
    for _ in range(4):
        step(x)
    expected = 1.0 + 4.0 * x.numpy().T
    with pytest.raises(errors.TransformError, match="both an argument and a global or closure variable"):
        step(w)
    np.testing.assert_array_equal(w.numpy(), expected)


def test_a_check_that_fails_changes_nothing() -> None:
    w = ad.tensor(np.arange(5.0))

    @ad.compile(backend="native")
    def step(i: Any) -> Any:
        found = w[i].sum()
        w.copy_(w * 2.0)
        return found

    for k in range(3):
        step(np.array([k, 1]))
    with pytest.raises(IndexError):
        step(np.array([7, 1]))
    assert w.tolist() == [8.0 * k for k in range(5)]


COUNTING = {"adjoint.compiled", "adjoint.optim.traced"}  # modules whose code may be interrupted


@pytest.mark.parametrize(("kind", "indexed"), [("SGD", False), ("Adam", False), ("SGD", True)])
def test_an_interrupt_of_a_call_changes_all_or_nothing(
    kind: str, indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "CHECKED", -1.0)  # with an index, parameters are not written in place
    for moment in range(1, 1000):
        net, other = Net(kind, (5, 7, 3)), Net(kind, (5, 7, 3))
        steps = [
            ad.compile(lambda x, i, n=n: n.step(x[i] if indexed else x), backend="native")
            for n in (net, other)
        ]
        i = np.arange(6)
        for x in inputs(4, net):
            steps[0](x, i), steps[1](x, i)
        before = net.snapshot()
        steps[1](x, i)
        moments = 0

        def interrupt(frame: Any, event: str, arg: Any, moment: int = moment) -> None:
            nonlocal moments  # where Python lets an interrupt in: after a call of a built-in function
            if event == "c_return" and frame.f_globals.get("__name__") in COUNTING:
                moments += 1
                if moments == moment:
                    raise KeyboardInterrupt

        profiler = sys.getprofile()
        try:
            sys.setprofile(interrupt)
            steps[0](x, i)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(profiler)
        assert net.snapshot() in (before, other.snapshot())
    assert moment > 1 and net.snapshot() == other.snapshot()


def test_counts_after_a_call_that_python_takes_over() -> None:
    p, q = (ad.tensor(np.arange(6.0).reshape(2, 3), requires_grad=True) for _ in range(2))
    opt = optim.SGD([p, q], lr=0.01)

    @ad.compile(backend="native")
    def step(x: Any) -> None:  # two updates of the same optimiser, each of other parameters
        for w in (p, q):
            (w * x).sum().backward()
            opt.step()
            opt.zero_grad()

    x = ad.tensor(np.ones((2, 3)))
    for _ in range(3):
        step(x)
    p._data = np.asfortranarray(p._data)  # native code does not read it
    step(x)
    assert opt.step_count == 8 and opt.state_dict()["steps"] == [[4, 4]]
