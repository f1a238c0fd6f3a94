"""What native calls write: gradients, parameters and state that the user holds keep their values."""

from __future__ import annotations

import gc
import operator
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import adjoint as ad
from adjoint.core.tensor import committing

RATE = 0.125


class Net:
    """A step of two parameters by an optimiser; ``zero`` is where the gradients are set to None."""

    def __init__(self, kind: str = "SGD", zero: str = "first", size: int = 5) -> None:
        self.w = ad.tensor(np.linspace(-1, 1, size), requires_grad=True)
        self.b = ad.tensor(np.ones(3), requires_grad=True)
        self.opt = getattr(ad.optim, kind)([self.w, self.b], lr=RATE)
        self.zero = zero

    def step(self, x: Any) -> Any:
        if self.zero == "first":
            self.opt.zero_grad()
        loss = ((self.w * x) ** 2).sum() + (self.b**2).sum()
        loss.backward()
        self.opt.step()
        if self.zero == "last":
            self.opt.zero_grad()
        return loss

    def compiled(self) -> Callable[..., Any]:
        return ad.compile(self.step, backend="native")

    def state(self) -> list[Any]:
        tensors = [self.w, self.b, self.w.grad, self.b.grad]
        return [None if t is None else t.tolist() for t in tensors] + [self.opt.state_dict()["steps"]]


def inputs(count: int, size: int = 5) -> list[Any]:
    rng = np.random.default_rng(0)
    return [ad.tensor(rng.standard_normal(size)) for _ in range(count)]


def hold(net: Net, held: list[Any]) -> None:
    """Hold gradients and values in all ways that a user has."""
    g = net.w.grad
    assert g is not None
    held += [g, g.numpy(), net.b.grad, net.w.numpy(), net.w.detach(), g[1:3], g.detach().reshape(5, 1)]


def entry_of(step: Any) -> Any:
    """Return the native entry of the last program."""
    names = step._variants[0].execute.__globals__
    return next(v for k, v in names.items() if k.startswith("entry"))


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_held_gradients_and_values_never_change(kind: str, every: int) -> None:
    eager, ours = Net(kind), Net(kind)
    step, held, copies = ours.compiled(), [], []
    for k, x in enumerate(inputs(12)):
        eager.step(x), step(x)
        for a, b in zip(eager.state(), ours.state(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
        if k % every == 0:
            hold(ours, held)
            copies = [np.array(h) for h in held]
        for h, copy in zip(held, copies, strict=True):
            np.testing.assert_array_equal(h, copy)


def test_a_held_gradient_can_be_written_to() -> None:
    net = Net()
    step = net.compiled()
    for x in inputs(4):
        step(x)
    g = net.w.grad
    assert g is not None
    g[:] = 7.0
    before = net.w.numpy(copy=True)
    step(inputs(1)[0])
    assert g.tolist() == [7.0] * 5 and net.w.grad is not g
    np.testing.assert_allclose(net.w.numpy(), before - RATE * net.w.grad.numpy())


def test_a_gradient_of_the_user_is_replaced_and_kept() -> None:
    net = Net()
    step = net.compiled()
    for x in inputs(4):
        step(x)
    mine = net.w.grad = ad.tensor(np.zeros(5))
    step(inputs(1)[0])
    assert mine.tolist() == [0.0] * 5 and net.w.grad is not mine


def test_a_weak_reference_to_a_gradient_dies() -> None:
    net = Net()
    step = net.compiled()
    for x in inputs(4):
        step(x)
    watched = weakref.ref(net.w.grad), weakref.ref(net.w.grad._data)
    step(inputs(1)[0])
    assert watched[0]() is None
    step(inputs(1)[0])
    assert watched[1]() is None


@pytest.mark.parametrize("zero", ["first", "last", "never"])
def test_gradients_are_those_of_the_last_call(zero: str) -> None:
    eager, ours = Net(zero=zero), Net(zero=zero)
    step = ours.compiled()
    for x in inputs(8):
        eager.step(x), step(x)
        for a, b in zip(eager.state(), ours.state(), strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                np.testing.assert_allclose(a, b, rtol=1e-12)


def test_other_code_that_moves_the_gradients_between_calls() -> None:
    eager, ours = Net(), Net()
    step = ours.compiled()
    for k, x in enumerate(inputs(12)):
        eager.step(x), step(x)
        for net in (eager, ours):
            if k % 3 == 0:
                net.w.grad = None
            elif k % 3 == 1:
                (net.w * 2).sum().backward()
        for a, b in zip(eager.state(), ours.state(), strict=True):
            if a is not None:
                np.testing.assert_allclose(a, b, rtol=1e-12)


def test_a_new_gradient_is_a_plain_tensor() -> None:
    net = Net()
    step = net.compiled()
    for x in inputs(4):
        step(x)
    g = net.w.grad
    assert g is not None
    assert (g._version, g._node, g._extra, type(g)) == (0, None, None, ad.Tensor)
    assert g.is_leaf and not g.requires_grad and gc.is_tracked(g)
    counts = sys.getrefcount(g), sys.getrefcount(g._data)
    assert counts == (3, 2)
    assert g._data.flags.owndata and g._data.flags.writeable


def test_a_learning_rate_that_changes_is_read() -> None:
    eager, ours = Net(), Net()
    step = ours.compiled()
    for k, x in enumerate(inputs(30)):
        rate = 0.1 / (1 + k // 5) if k < 15 else 0.1 / (1 + k)
        eager.opt.lr = ours.opt.lr = rate
        eager.step(x), step(x)
        np.testing.assert_allclose(eager.w.numpy(), ours.w.numpy(), rtol=1e-12)


def test_nothing_is_written_while_a_gradient_is_being_added_to() -> None:
    net = Net()
    step = net.compiled()
    x = inputs(1)[0]
    for _ in range(4):
        step(x)
    before, values = net.w.grad, net.w.numpy(copy=True)
    call, numbers = entry_of(step), np.full(2, RATE)
    with committing:  # as in a backward of another thread
        assert call(x, numbers) is NotImplemented
    assert net.w.grad is before
    np.testing.assert_array_equal(net.w.numpy(), values)
    assert call(x, numbers) is not NotImplemented and net.w.grad is not before


def test_an_error_after_the_writes_takes_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adjoint.optim.traced._HostCount.counters", lambda self: None)  # count in Python
    for kind in ("SGD", "Adam"):
        net = Net(kind)
        step = net.compiled()
        for x in inputs(5):
            step(x)
        before, grads = net.state(), (net.w.grad, net.b.grad)
        moments = [a.copy() for a in net.opt.groups[0].units[0].state.values()]

        def fail(self: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("adjoint.optim.traced._HostCount.__call__", fail)
            with pytest.raises(KeyboardInterrupt):
                step(x)
        assert net.state() == before and (net.w.grad, net.b.grad) == grads
        assert all(a is b for a, b in zip(grads, (net.w.grad, net.b.grad), strict=True))
        for a, b in zip(moments, net.opt.groups[0].units[0].state.values(), strict=True):
            np.testing.assert_array_equal(a, b)
        other = Net(kind)
        for x in inputs(5):
            other.step(x)
        other.step(x), step(x)
        np.testing.assert_allclose(net.w.numpy(), other.w.numpy(), rtol=1e-12)


class Finalized:
    """An object in a reference cycle; ``action`` is called when it is collected."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.itself, self.action = self, action

    def __del__(self) -> None:
        self.action()


def collect_inside(action: Callable[[], Any], call: Callable[[], Any], count: int = 120) -> Iterator[Any]:
    """Yield results of ``call``; ``action`` is called by a garbage collection, at another place each time."""
    before = gc.get_threshold()
    gc.freeze()  # collections are short: they see new objects only
    try:
        for k in range(count):
            Finalized(action)
            gc.set_threshold(1 + k % 40, 1000, 1000)
            found = call()
            gc.set_threshold(0)
            yield found
            gc.collect()
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def without_updates(size: int = 5) -> tuple[Net, Callable[..., Any], list[Any], dict[float, Any]]:
    """Return a net whose parameters keep their values, its step, two inputs, and the gradients by loss."""
    net = Net(size=size)
    net.opt.lr = 0.0
    step, (a, b) = net.compiled(), inputs(2, size)
    known = {}
    for x in (a, b) * 4:
        loss = float(step(x))
        known[loss] = net.state()[2:4]
    return net, step, [a, b], known


@pytest.mark.parametrize("size", [5, 300_000])
def test_a_finalizer_may_call_the_step(size: int) -> None:
    net, step, (a, b), known = without_updates(size)
    want, inner = float(step(a)), []
    results = collect_inside(lambda: inner.append(step(b)), lambda: step(a), 120 if size == 5 else 20)
    for found in results:
        assert float(found) == want and net.state()[2:4] in known.values()
    assert inner and {float(x) for x in inner} == set(known) - {want}


def test_a_finalizer_may_replace_a_parameter() -> None:
    net, step, (x, _), _ = without_updates()
    old, new, junk = net.w.numpy(copy=True), np.full(5, 3.0), []
    allowed = []
    for value in (old, new):
        net.w._data = value.copy()
        allowed.append(float(step(x)))

    def replace() -> None:
        net.w._data = new.copy()
        junk.append(np.full(5, 1e9))  # gets the memory of the array that was replaced

    losses = set()
    for found in collect_inside(replace, lambda: step(x)):
        losses.add(float(found))
        net.w._data = old.copy()
    assert losses <= set(allowed)


def test_a_weak_reference_may_call_the_step() -> None:
    net, step, (a, b), known = without_updates()
    want, inner = float(step(a)), []
    for _ in range(5):
        watched = weakref.ref(net.w._data, lambda _: inner.append(step(b)))
        for _ in range(3):
            np.full((), 1e9).sum()  # the loss gets this memory
            assert float(step(a)) == want
            assert net.state()[2:4] in known.values()
        assert watched() is None
    assert len(inner) == 5 and {float(x) for x in inner} == set(known) - {want}


def test_a_finalizer_may_call_a_program_with_numpy_calls() -> None:
    compiled = ad.compile(lambda x: ad.sort(x * 2.0 + 1.0) * 3.0 - x, backend="native")
    a, b = inputs(2)
    want_a, want_b = compiled(a).tolist(), compiled(b).tolist()
    inner: list[Any] = []
    for found in collect_inside(lambda: inner.append(compiled(b)), lambda: compiled(a)):
        assert found.tolist() == want_a
    assert inner and all(x.tolist() == want_b for x in inner)


def test_nothing_leaks_if_there_is_no_memory() -> None:
    testcapi = pytest.importorskip("_testcapi")
    net = Net()
    step = net.compiled()
    x = inputs(1)[0]
    for _ in range(4):
        step(x)
    net.w._version = net.b._version = 10**6  # a number that Python does not share
    call, numbers = entry_of(step), np.full(2, RATE)

    def fail_at(k: int) -> bool:
        """Let allocation ``k`` of a call fail; return whether there was an error."""
        before = net.w._data, net.w.grad, net.w._version
        testcapi.set_nomemory(k, k + 1)
        try:
            call(x, numbers)
        except MemoryError:
            testcapi.remove_mem_hooks()
            after = net.w._data, net.w.grad, net.w._version
            assert all(map(operator.is_, after, before))
            return True
        finally:
            testcapi.remove_mem_hooks()
        return False

    assert sum(map(fail_at, range(20))) > 5
    blocks = []
    for _ in range(4):
        for _ in range(50):
            for k in range(12):
                fail_at(k)
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    assert blocks[-1] - blocks[1] < 50
    assert call(x, numbers) is not NotImplemented


def test_the_state_of_all_parameters_is_joined_once() -> None:
    net = Net("Adam")
    text = net.compiled().program(inputs(1)[0])
    assert text.count("concat(") == 2 and "index_set" not in text  # else builds are quadratic in the depth


@pytest.mark.parametrize(("size", "native"), [(8, True), (100_000, False)])
def test_large_views_are_left_to_numpy(size: int, native: bool) -> None:
    x = ad.tensor(np.arange(float(size)), requires_grad=True)
    compiled = ad.compile(lambda x: x.reshape(2, -1))
    for _ in range(3):
        np.testing.assert_array_equal(compiled(x).numpy(), x.numpy().reshape(2, -1))
    assert (compiled._variants[0].native is not None) == native


def test_a_result_that_its_backward_reads_is_made_once() -> None:
    x = ad.tensor(np.linspace(-1, 1, 5), requires_grad=True)
    compiled = ad.compile(ad.exp)
    for _ in range(5):
        y = compiled(x)
        assert y._node is not None and y._node.args[-1] is y._data
        (g,) = ad.gradients(y.sum(), [x])
        np.testing.assert_allclose(g.numpy(), np.exp(x.numpy()), rtol=1e-15)
    assert hasattr(compiled._variants[0].execute, "native")  # the native entry


@pytest.mark.parametrize("bound", [1e-3, 1e3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_numpy_call_may_return_its_argument(bound: float, dtype: str) -> None:
    """Below its bound, clip_grad_norm returns the gradients themselves, which are in the program's memory."""
    sides = []
    for compiled in (False, True):
        w = ad.tensor(np.ones((4, 3), dtype), requires_grad=True)
        c = ad.tensor(2.0, requires_grad=True)

        def step(x: Any, w: Any = w, c: Any = c) -> Any:
            loss = ((x @ w.T) ** 2).sum() * c
            loss.backward()
            ad.clip_grad_norm([w, c], bound, 9.0)  # this order has no native form
            return loss

        sides.append((ad.compile(step, backend="native") if compiled else step, w, c))
    held = []
    for x in inputs(5, 6):
        for each, w, c in sides:
            each(x.reshape(2, 3))
            held.append((w.grad, c.grad))
    for k in range(0, len(held), 2):
        for a, b in zip(held[k], held[k + 1], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def test_an_op_that_is_not_pure_may_keep_its_argument() -> None:
    kept: list[Any] = []
    rule = lambda xp, g, out, a: g * 2
    keep = ad.define("kept_argument", lambda a: (kept.append(a), a * 2)[1], rule, kind="general", pure=False)
    try:
        step = ad.compile(lambda x: keep(x * 3), backend="native")
        for k in range(3):
            step(np.full(4, float(k)))
        assert [a.tolist() for a in kept[-3:]] == [[0.0] * 4, [3.0] * 4, [6.0] * 4]
    finally:
        ad.OPS.pop("kept_argument", None)
