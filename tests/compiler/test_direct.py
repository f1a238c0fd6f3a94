"""The function that runs calls which match the last program, with guards checked by Python or natively."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn
from adjoint.compiler.emit.machine import has_llvm
from adjoint.compiler.host import check as watch
from adjoint.compiler.host import direct

RATE = 2.0

# "checked by Python" and "watched" run programs by NumPy; "native" runs native code
PATHS = ["checked by Python", *(["watched"] if watch.possible() else []), *(["native"] if has_llvm() else [])]


@pytest.fixture(params=PATHS)
def compiling(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``ad.compile`` for one of the paths; the native check starts at the third call."""
    monkeypatch.setattr(direct, "WATCHED", 3 if request.param == "watched" else 10**9)
    return lambda f: ad.compile(f, backend="native" if request.param == "native" else "replay", limit=99)


class Config:
    scale = 3.0

    def __init__(self) -> None:
        self.own, self.named, self.dotted = 1.0, 2.0, [1.5]


class Net(nn.Module):
    def __init__(self) -> None:
        self.layer = nn.Linear(3, 2, rng=0)
        self.gain = 1.5

    def forward(self, x: Any) -> Any:
        return (self.layer(x) * self.gain).tanh()


def setting() -> tuple[Callable[[Any], Any], dict[str, Any]]:
    """A function that reads values of many kinds, and what it reads."""
    net, config, numbers, listed = Net().astype(np.float64), Config(), {"k": 1.0}, [1.0, [2.0]]
    shift, factor = ad.tensor([0.5, 0.25]), 1.0

    def f(x: Any) -> Any:
        y = net(x) * RATE * config.scale * config.own * numbers["k"] * listed[1][0] * factor + shift
        y = y * getattr(config, "named") * attrgetter("dotted")(config)[0]  # noqa: B009  what is tested
        return y * vars(config)["own"]

    cells = dict(zip(f.__code__.co_freevars, f.__closure__ or (), strict=True))
    return f, {"net": net, "config": config, "numbers": numbers, "listed": listed, "shift": shift} | cells


CHANGES: dict[str, Callable[[Any], Any]] = {
    "global": lambda at: vars(sys.modules[__name__]).update(RATE=5.0),
    "closure variable": lambda at: setattr(at["factor"], "cell_contents", 3.0),
    "attribute": lambda at: setattr(at["config"].cell_contents, "own", 4.0),
    "attribute by getattr": lambda at: setattr(at["config"].cell_contents, "named", 4.0),
    "attribute by attrgetter": lambda at: at["config"].cell_contents.dotted.__setitem__(0, 7.0),
    "class attribute": lambda at: setattr(Config, "scale", 6.0),
    "dictionary of an object": lambda at: setattr(
        at["config"].cell_contents, "__dict__", {"own": 8.0, "named": 2.0, "dotted": [2.0]}
    ),
    "item": lambda at: at["numbers"].cell_contents.update(k=2.0),
    "item of a list in a list": lambda at: at["listed"].cell_contents[1].__setitem__(0, 9.0),
    "attribute of a module": lambda at: setattr(at["net"].cell_contents, "gain", 0.5),
    "dictionary of a module": lambda at: setattr(
        at["net"].cell_contents, "__dict__", {**vars(at["net"].cell_contents), "gain": 0.75}
    ),
    "values of a tensor": lambda at: at["shift"].cell_contents.copy_(ad.tensor([1.0, 2.0])),
    "array of a tensor": lambda at: setattr(at["shift"].cell_contents, "_data", np.array([3.0, 4.0])),
    "another tensor": lambda at: setattr(at["shift"], "cell_contents", ad.tensor([5.0, 6.0])),
    "dtype": lambda at: setattr(at["shift"].cell_contents, "_data", np.ones(2, np.float32)),
    "shape": lambda at: setattr(at["shift"].cell_contents, "_data", np.ones((1, 2))),
    "freezing": lambda at: at["net"].cell_contents.layer.requires_grad_(False),
}


def test_results_follow_every_change(compiling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(sys.modules[__name__]), "RATE", 2.0)
    monkeypatch.setattr(Config, "scale", 3.0)
    f, at = setting()
    compiled = compiling(f)
    x = ad.tensor(np.linspace(-1.0, 1.0, 12).reshape(4, 3))
    for _ in range(6):
        compiled(x)
    for change, make in CHANGES.items():
        assert compiled._direct is not None, change
        make(at)
        for _ in range(4):
            found, wanted = compiled(x), f(x)
            np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-14, err_msg=change)
            assert found.requires_grad == wanted.requires_grad, change
            assert found.dtype == wanted.dtype


def test_modes_follow_the_call(compiling: Any) -> None:
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    f = compiling(lambda: (w * w).exp())
    for _ in range(5):
        f()
    assert f().requires_grad
    with ad.no_grad():
        assert not f().requires_grad
    with ad.config.compiling(False):
        assert f()._node.name == "exp"
    assert f()._node.name != "exp"
    np.testing.assert_allclose(ad.grad(lambda v: (f() * v).sum())(ad.tensor([1.0, 1.0])).numpy(), f().numpy())
    assert ad.compile(lambda: f() + 1.0, backend="replay").program().count("exp") == 1  # inlined
    (slope,) = ad.gradients(f().sum(), [w])
    np.testing.assert_allclose(slope.numpy(), 2.0 * w.numpy() * np.exp(w.numpy() ** 2))


def plain(value: Any) -> Any:
    return value.detach().numpy() if isinstance(value, ad.Tensor) else value


RESULTS: dict[str, Callable[..., Any]] = {
    "one": lambda x, a: x + a,
    "list": lambda x, a: [x + a, x * a],
    "tuple": lambda x, a: (x + a, x - a),
    "nested": lambda x, a: {"sum": x + a, "both": [x * a, (x - a, None, "text")]},
    "an argument": lambda x, a: (x, x + a),
    "a number": lambda x, a: (x.sum(), 3, 2.5),
    "nothing": lambda x, a: None,
    "an array": lambda x, a: (x * a, np.arange(3.0)),
    "a view": lambda x, a: (x.reshape(2, 3), x[0], a.T),
    "a number of axes 0": lambda x, a: x.sum(),
}


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("recorded", [False, True])
def test_results_have_the_structure_of_the_function(name: str, recorded: bool, compiling: Any) -> None:
    f, x = RESULTS[name], ad.tensor(np.linspace(0.5, 2.0, 6).reshape(3, 2), requires_grad=recorded)
    compiled = compiling(f)
    for k in range(6):
        a = ad.tensor(np.full((3, 2), float(k)))
        found, wanted = ad.tree.flatten(compiled(x, a)), ad.tree.flatten(f(x, a))
        assert found[1] == wanted[1]
        for b, c in zip(found[0], wanted[0], strict=True):
            assert type(b) is type(c)
            assert getattr(b, "requires_grad", None) == getattr(c, "requires_grad", None)
            np.testing.assert_allclose(plain(b), plain(c), rtol=1e-14)
            assert (b is x) == (c is x)


def test_arrays_are_returned_for_arrays_and_share_no_memory(compiling: Any) -> None:
    f = compiling(lambda x: (x * 2.0, x.reshape(-1), x.sum()))
    x = np.linspace(0.0, 1.0, 6).reshape(2, 3)
    kept = []
    for _ in range(6):
        double, flat, total = f(x)
        assert type(double) is type(flat) is np.ndarray
        assert isinstance(total, np.float64)
        assert not np.may_share_memory(flat, x)
        assert double.flags.writeable
        assert flat.flags.writeable
        kept.append(double)
        double += 1.0
        flat[:] = -1.0
    assert all(np.array_equal(a, x * 2.0 + 1.0) for a in kept)


def test_wrong_arguments_raise_as_in_eager_mode(compiling: Any) -> None:
    def f(x: Any, y: Any = 2.0) -> Any:
        return x * y

    compiled, x = compiling(f), ad.tensor([1.0, 2.0])
    for _ in range(6):
        assert compiled(x, x).tolist() == [1.0, 4.0]
    assert compiled(x).tolist() == [2.0, 4.0]
    assert compiled(x, y=x).tolist() == [1.0, 4.0]
    assert compiled(y=x, x=x).tolist() == [1.0, 4.0]
    for args, kwargs in (((), {}), ((x, x, x), {}), ((x,), {"z": 1.0})):
        with pytest.raises(TypeError):
            compiled(*args, **kwargs)
    assert compiled(x, x).tolist() == [1.0, 4.0]


def test_an_index_out_of_range_raises_the_error_of_eager_mode(compiling: Any) -> None:
    x = ad.tensor(np.arange(4.0))
    f = compiling(lambda i: x[i])
    for _ in range(6):
        assert f(ad.tensor([1, 2])).tolist() == [1.0, 2.0]
    with pytest.raises(IndexError) as wanted:
        x[ad.tensor([1, 4])]
    with pytest.raises(IndexError) as found:
        f(ad.tensor([1, 4]))
    assert type(found.value) is type(wanted.value)
    assert str(found.value) == str(wanted.value)


def test_threads_share_a_function_that_changes_nothing(compiling: Any) -> None:
    f = compiling(lambda x: (x * x).sum() + x[0])
    for _ in range(6):
        f(ad.tensor([1.0, 2.0]))
    wrong: list[Any] = []

    def call(k: float) -> None:
        for _ in range(100):
            if f(ad.tensor([k, 2.0])).item() != k * k + 4.0 + k:
                wrong.append(k)

    threads = [threading.Thread(target=call, args=(float(k),)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_calls_are_counted_and_programs_are_found_again(compiling: Any) -> None:
    f = compiling(lambda x: x * 2.0)
    for k in range(10):
        x = ad.ones((2 + k % 2,))
        assert f(x).shape == x.shape
    stats = f.stats()
    assert stats["traces"] == 2
    assert sorted(p["calls"] for p in stats["programs"]) == [5, 5]
    for _ in range(7):
        f(ad.ones((2,)))
    assert sorted(p["calls"] for p in f.stats()["programs"]) == [5, 12]


def test_a_compiled_function_is_deleted_with_its_last_reference(compiling: Any) -> None:
    f = compiling(lambda x: x + 1.0)
    for _ in range(6):
        f(ad.ones((2,)))
    dead = weakref.ref(f)
    del f
    assert dead() is None


def test_no_finalizer_sees_the_gradients_of_two_steps() -> None:
    leaves = [ad.tensor([1.0], requires_grad=True) for _ in range(5)]
    total = ad.tensor([0.0])

    @ad.compile(backend="replay")
    def step(x: Any) -> None:
        for t in leaves:
            t.grad = None
        (sum(leaves) * x).sum().backward()
        with ad.no_grad():
            total.copy_(total + x)

    for k in range(4):
        step(ad.tensor([float(k)]))
    mixed: list[Any] = []

    def look(phase: str, info: Any) -> None:
        seen = {None if t._extra.grad is None else float(t._extra.grad._data[0]) for t in leaves}  # type: ignore[union-attr]
        if len(seen) > 1:
            mixed.append(seen)

    before = gc.get_threshold()
    gc.callbacks.append(look)
    try:
        for k in range(20):
            x = ad.tensor([float(k)])
            gc.set_threshold(1)
            step(x)
            gc.set_threshold(*before)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(look)
    assert not mixed
    assert total.item() == 6.0 + sum(range(20))


def test_an_unused_clip_keeps_its_error(compiling: Any) -> None:
    w = ad.tensor([1.0, 2.0], requires_grad=True)

    def step(x: Any) -> Any:
        w.grad = None
        loss = (w * x).sum()
        loss.backward()
        ad.clip_grad_norm([w], 1.0)
        w.grad = None
        return loss

    compiled = compiling(step)
    for _ in range(5):
        compiled(ad.tensor([1.0, 2.0]))
    with pytest.raises(ad.errors.NonFiniteError):
        compiled(ad.tensor([np.nan, 2.0]))
    assert compiled(ad.tensor([1.0, 2.0])).item() == 5.0


@pytest.mark.parametrize(
    "f",
    [
        lambda x, w: x + w,
        lambda x, w: x * w,
        lambda x, w: x.exp() - w,
        lambda x, w: (x @ w).tanh(),
        lambda x, w: x.reshape(4) * 2.0 + w.sum(),
    ],
)
@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_write_before_the_backward_does_what_it_does_in_eager_mode(
    f: Any, written: int, compiling: Any
) -> None:
    found = []
    for run in (lambda x, w: f(x, w), compiling(lambda x, w: f(x, w))):
        for _ in range(6):
            x = ad.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
            w = ad.tensor([[0.5, 0.25], [0.125, 1.0]], requires_grad=True)
            y = run(x, w)
            with ad.no_grad():
                [x, w, ad.zeros((2, 2))][written][0] = 7.0
            try:
                result: Any = [g.tolist() for g in ad.gradients(y.sum(), [x, w])]
            except ad.errors.AdjointError as error:
                result = type(error)
        found.append(result)
    if isinstance(found[0], type):
        assert found[0] is found[1]
    else:
        np.testing.assert_allclose(found[1], found[0], rtol=1e-14)


def test_the_call_of_a_function_that_nothing_else_refers_to() -> None:
    calls = []

    def f(x: Any) -> Any:
        calls.append(1)
        return x * 2.0

    first = ad.compile(f).__call__
    compiled = ad.compile(f)
    compiled(np.ones(3))
    later = compiled.__call__
    del compiled
    for call in (first, later):
        calls.clear()
        for n in (3, 4, 3, 4, 3):
            assert call(np.ones(n)).tolist() == [2.0] * n
        assert len(calls) == 2 or call is later
    assert ad.compile(f).__call__(np.ones(2)).tolist() == [2.0, 2.0]
