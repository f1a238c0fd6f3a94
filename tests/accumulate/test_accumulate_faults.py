"""Accumulators when something fails in the middle: optimisers, clip functions, callbacks, interrupts, threads."""

from __future__ import annotations

import contextvars
import itertools
import threading
from functools import partial

import numpy as np
import pytest
from accumulators import accumulator, frozen

import adjoint as ad
from adjoint import distributed
from adjoint.accumulate import ranks, sums
from adjoint.accumulate.sums import Buffer, Sums
from adjoint.core.sparse import SparseRows
from adjoint.errors import (
    AccumulationError,
    ArgumentError,
    DTypeError,
    NonFiniteError,
    ShapeError,
)


class FailedError(Exception):
    pass


def full(*, large: int = 10_000, **options):
    """An accumulator whose window is full: small gradients, which share memory, and a large one."""
    acc = ad.GradientAccumulator(accumulation_steps=1, **options)
    gradients = {"a": np.array([1.0, 2.0]), "b": np.array([3.0]), "c": np.arange(large) + 1.0}
    for name, g in gradients.items():
        acc.register(name, g.shape)
    acc.step(gradients)
    return acc, gradients


def applied(acc):
    got = {}
    assert acc.apply(lambda grads: got.update({n: np.array(g) for n, g in grads.items()}))
    return got


def assert_equal(got, expected):
    assert list(got) == list(expected)
    for name, g in expected.items():
        np.testing.assert_array_equal(got[name], g)


# An optimiser that raises ----------------------------------------------------------------------


@pytest.mark.parametrize("compensated", [False, True])
def test_gradients_that_a_failing_optimiser_holds_are_there_for_the_next_try(compensated):
    acc, gradients = full(compensated=compensated)

    def fail(grads):
        raise FailedError  # its frame, and with it the gradients, live as long as the exception

    with pytest.raises(FailedError) as kept:
        acc.apply(fail)
    assert_equal(acc.gradients(), gradients)
    assert_equal(applied(acc), gradients)
    assert kept.value.__traceback__ is not None


def test_what_a_failing_optimiser_keeps_is_its_own():
    acc, gradients = full()
    kept = []

    def fail(grads):
        kept.append(grads)
        raise FailedError

    with pytest.raises(FailedError):
        acc.apply(fail)
    assert_equal(applied(acc), gradients)
    acc.step({name: -g for name, g in gradients.items()})
    assert_equal(kept[0], gradients)


def test_an_optimiser_that_reads_grad_and_raises_leaves_the_sums():
    w, v = (ad.tensor(np.zeros(n), requires_grad=True) for n in (3, 10_000))

    class Optimizer:
        params = (w, v)
        fail = True

        def step(self):
            held = [t.grad for t in self.params]
            self.seen = [g.numpy(copy=True) for g in held]
            if self.fail:
                raise FailedError

    acc = ad.GradientAccumulator([w, v], accumulation_steps=1)
    with acc.micro_batch():
        ((w * 2.0).sum() + (v * 3.0).sum()).backward()
    optimizer = Optimizer()
    with pytest.raises(FailedError) as kept:
        acc.apply(optimizer)
    optimizer.fail = False
    assert acc.apply(optimizer)
    assert_equal(dict(enumerate(optimizer.seen)), {0: np.full(3, 2.0), 1: np.full(10_000, 3.0)})
    assert kept.value.__traceback__ is not None


# Clip functions --------------------------------------------------------------------------------


def test_a_clip_function_that_writes_and_raises_has_written_nothing():
    fail = [True]

    def clip(grads):
        for g in grads.values():
            g *= 0.5
        if fail[0]:
            raise FailedError

    acc, gradients = full(clip=clip)
    for _ in range(2):
        with pytest.raises(FailedError):
            acc.apply(lambda grads: None)
    fail[0] = False
    assert_equal(applied(acc), {name: g * 0.5 for name, g in gradients.items()})


@pytest.mark.parametrize(
    ("new", "error"),
    [(np.zeros(3), ShapeError), (np.float64(1.0), ShapeError), (np.array([1j, 1j]), DTypeError)],
)
@pytest.mark.parametrize("get", [ad.GradientAccumulator.gradients, lambda acc: acc.apply(lambda grads: None)])
def test_what_a_clip_function_puts_in_the_place_of_a_gradient_fits(new, error, get):
    def clip(grads):
        grads["a"] = grads["a"] * 0.5
        grads["b"] = new

    acc = accumulator("a", "b", accumulation_steps=1, clip=clip)
    acc.step({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    for _ in range(2):
        with pytest.raises(error, match=r"clip: b: (expected a gradient of shape|a complex128 gradient)"):
            get(acc)
    np.testing.assert_array_equal(acc.state_dict()["buffers"]["a"]["sum"], [[[1.0, 2.0]]])


def test_a_clip_function_may_return_another_precision():
    def clip(grads):
        grads["a"] = grads["a"].astype(np.float32)

    acc = accumulator("a", accumulation_steps=1, clip=clip)
    acc.step({"a": [1.0, 2.0]})
    assert acc.gradients()["a"].dtype == np.float64


def test_a_sparse_gradient_in_the_place_of_a_dense_one_ends_with_its_window():
    def clip(grads):
        grads["t"] = ad.sparse_gradient([1], grads["t"][1:2], (3, 1))

    acc = ad.GradientAccumulator(accumulation_steps=1, clip=clip)
    for name in ("t", "u"):
        acc.register(name, (3, 1))
    for value in (1.0, 2.0, 3.0):
        acc.step({name: np.full((3, 1), value) for name in ("t", "u")})
        assert_equal(applied(acc), {"t": [[0.0], [value], [0.0]], "u": np.full((3, 1), value)})


def test_a_dense_gradient_in_the_place_of_a_sparse_one_has_no_errors_of_an_earlier_window():
    def clip(grads):
        grads["t"] = np.asarray(grads["t"])

    acc = ad.GradientAccumulator(accumulation_steps=3, clip=clip, compensated=True)
    acc.register("t", (2, 1), np.float32)
    for value in (1.0, 1e-8, 1e-8):
        acc.step({"t": np.full((2, 1), value, np.float32)})
    acc.reset()  # the errors of the sum are not zero
    acc.step({"t": ad.sparse_gradient([1], np.ones((1, 1), np.float32), (2, 1))})
    acc.flush()

    def fail(grads):
        raise FailedError

    with pytest.raises(FailedError):
        acc.apply(fail)
    np.testing.assert_array_equal(acc.gradients()["t"], [[0.0], [1.0]])
    np.testing.assert_array_equal(applied(acc)["t"], [[0.0], [1.0]])


# Callbacks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "value"), [("full", 1.0), ("skip", np.nan)])
def test_an_error_of_a_callback_does_not_end_the_open_micro_batch(kind, value):
    acc = accumulator("a", "b", accumulation_steps=1, nonfinite="skip_window")

    def fail(event):
        raise FailedError

    acc.on(kind, fail)
    with pytest.raises(FailedError):
        acc.accumulate("a", [value, 1.0], weight=2)
    acc.accumulate("b", [3.0, 4.0], weight=2)  # still the same micro-batch
    assert acc.stats().window_micro_batches == 1
    if kind == "full":
        assert_equal(acc.gradients(), {"a": [1.0, 1.0], "b": [3.0, 4.0]})


# Interrupts ------------------------------------------------------------------------------------


def interrupt_at(call, monkeypatch, owner, name):
    """Let the n-th call of a method be interrupted."""
    method, calls = getattr(owner, name), []

    def interrupted(self, *args, **kwargs):
        calls.append(self)
        if len(calls) == call:
            raise KeyboardInterrupt
        return method(self, *args, **kwargs)

    monkeypatch.setattr(owner, name, interrupted)


def test_an_interrupt_after_an_update_does_not_leave_half_of_it_for_another(monkeypatch):
    acc, gradients = full()
    with monkeypatch.context() as patch:
        interrupt_at(1, patch, Sums, "reset")
        with pytest.raises(KeyboardInterrupt):
            acc.apply(lambda grads: None)
    with pytest.raises(AccumulationError, match="incomplete"):
        acc.apply(lambda grads: pytest.fail("a second update from the rest of the sums"))
    acc.drop()
    acc.step(gradients)
    assert_equal(applied(acc), gradients)


def test_an_interrupt_while_gradients_are_clipped_leaves_the_window_as_it_was():
    interrupts = [KeyboardInterrupt]

    def clip(grads):
        ad.clip_grad_value(grads, 0.5)
        if interrupts:
            raise interrupts.pop()

    acc, _ = full(clip=clip)
    with pytest.raises(KeyboardInterrupt):
        acc.apply(lambda grads: None)
    assert {g.max() for g in applied(acc).values()} == {0.5}


def test_an_interrupt_while_loading_is_noticed(monkeypatch):
    acc, gradients = full()
    state = acc.state_dict()
    other, _ = full()
    with monkeypatch.context() as patch:
        interrupt_at(1, patch, Sums, "load")
        with pytest.raises(KeyboardInterrupt):
            other.load_state_dict(state)
    with pytest.raises(AccumulationError, match="incomplete"):
        other.gradients()
    other.load_state_dict(state)
    assert_equal(applied(other), gradients)


# No memory -------------------------------------------------------------------------------------


class Faulty:
    """NumPy, whose functions ``counted`` wraps."""

    def __init__(self, counted):
        self.counted = counted

    def __getattr__(self, name):
        found = getattr(np, name)
        return self.counted(found) if callable(found) and not isinstance(found, type) else found


def fails_at(k, action, monkeypatch):
    """Raise MemoryError at the k-th call of a function that sums gradients; False if there are fewer calls."""
    calls = itertools.count()

    def counted(f):
        def call(*args, **options):
            if next(calls) == k:
                raise MemoryError
            return f(*args, **options)

        return call

    with monkeypatch.context() as patch:
        for module in (sums, ranks):
            patch.setattr(module, "np", Faulty(counted))
        for name in ("_add_to", "run_parts", "scratch", "normalised"):
            patch.setattr(sums, name, counted(getattr(sums, name)))
        for owner, name in (
            (Buffer, "add"), (Buffer, "open"), (Sums, "lay_out"), (Sums, "add_buffers"), (Sums, "end_piece"),
            (ranks.Bucket, "push"), (ranks.Bucket, "open"), (ranks.RankSums, "store"),
        ):  # fmt: skip
            patch.setattr(owner, name, counted(getattr(owner, name)))
        try:
            action()
        except MemoryError:
            return True
    return False


def is_incomplete(acc):
    """Whether the window was left incomplete; then every use says so."""
    if acc._window.changing:
        with pytest.raises(AccumulationError, match="The window is incomplete"):
            acc.gradients()
    return acc._window.changing


def bits(gradients):
    return {name: np.asarray(g).tobytes() for name, g in gradients.items()}


def rows_and_arrays(k):
    rows = SparseRows(np.array([k, 2]), np.full((2, 2), k + 0.5, np.float32), (5, 2))
    return {
        "t": rows if k < 3 else np.full((5, 2), 0.1, np.float32),
        "v": np.full(3, k + 0.1, np.float32),
        "w": np.full(9, k + 0.1, np.float32),
    }


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("weight", [1.0, 3.0, 2.0**70])
@pytest.mark.parametrize("options", [{}, {"compensated": True}, {"group": True}])
def test_an_error_in_an_addition_adds_nothing_or_is_noticed(at, weight, options, monkeypatch):
    for name, value in {"SMALL": 4, "CHUNK": 4, "SHARED": 16}.items():
        monkeypatch.setattr(sums, name, value)
    weight = min(weight, 2.0**60) if "group" in options else weight

    def new():
        params = {"t": ad.zeros((5, 2), requires_grad=True), "v": ad.zeros(3, requires_grad=True),
                  "w": ad.zeros(9, requires_grad=True)}  # fmt: skip
        given = {"group": distributed.world()} if "group" in options else options
        return ad.GradientAccumulator(params, accumulation_steps=4, **given)

    def add(acc, first, last):
        for k in range(first, last):
            acc.step(rows_and_arrays(k), weight if k == at else 1.0)
        return acc

    expected = bits(add(new(), 0, 4).gradients())
    noticed = 0
    for k in itertools.count():
        acc = add(new(), 0, at)
        if not fails_at(k, partial(add, acc, at, at + 1), monkeypatch):
            break
        incomplete = is_incomplete(acc)
        noticed += incomplete
        if incomplete:
            acc.drop()
        assert bits(add(acc, 0 if incomplete else at, 4).gradients()) == expected
    assert 0 < noticed < k


@pytest.mark.parametrize("load", [False, True])
def test_an_error_in_a_division_or_while_loading_is_noticed(load, monkeypatch):
    saved, gradients = full()
    state, expected = saved.state_dict(), bits(gradients)
    noticed = 0
    for k in itertools.count():
        acc, _ = full()
        action = partial(acc.load_state_dict, state) if load else partial(acc.apply, lambda g: None)
        if not fails_at(k, action, monkeypatch):
            break
        if is_incomplete(acc):
            noticed += 1
            acc.load_state_dict(state)
        assert bits(applied(acc)) == expected
    assert noticed


# Threads ---------------------------------------------------------------------------------------


def test_backwards_in_threads_of_one_block_lose_nothing():
    w = ad.tensor(np.zeros(50_000), requires_grad=True)
    acc = ad.GradientAccumulator([w], accumulation_steps=1)
    start = threading.Barrier(4)

    def work():
        for _ in range(25):
            start.wait()
            w.sum().backward()

    with acc.micro_batch():
        contexts = [contextvars.copy_context() for _ in range(4)]
        threads = [threading.Thread(target=context.run, args=(work,)) for context in contexts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    np.testing.assert_array_equal(acc.gradients()["0"], np.full(50_000, 100.0))


def test_a_backward_that_outlives_its_block_is_an_error():
    w = ad.tensor([1.0], requires_grad=True)
    acc = ad.GradientAccumulator([w], accumulation_steps=2)
    with acc.micro_batch():
        w.sum().backward()
        context = contextvars.copy_context()
    before = frozen(acc)
    with pytest.raises(AccumulationError, match="has ended, so the gradients would be lost"):
        context.run(w.sum().backward)
    assert w.grad is None
    assert frozen(acc) == before


def test_a_block_that_fails_at_its_end_keeps_no_gradients():
    w = ad.tensor([1.0], requires_grad=True)
    acc = ad.GradientAccumulator([w], accumulation_steps=2)
    with pytest.raises(AccumulationError), acc.micro_batch() as block:  # noqa: PT012
        w.sum().backward()
        acc.step({"0": [1.0]})
        acc.flush()
    assert not block._pending


# Numbers at the edge ---------------------------------------------------------------------------


def test_a_dtype_that_no_gradient_decided_yet_is_not_taken_for_granted():
    acc = accumulator("a", "b", accumulation_steps=8, nonfinite="skip")
    acc.step({"a": np.array([np.nan, 1.0]), "b": np.ones(2)})  # left out: nothing is decided
    acc.step({"a": np.ones(2, np.float32)})
    acc.step({"b": np.ones(2, np.float32)})
    before = frozen(acc)
    with pytest.raises(
        DTypeError, match="a float64 gradient cannot be added to a float32 sum without rounding"
    ):
        acc.step({"a": np.full(2, 1 / 3), "b": np.ones(2)})
    assert frozen(acc) == before


def test_parameters_have_a_name_each():
    a, b = (ad.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    with pytest.raises(
        ArgumentError, match="'w' cannot be used as a parameter: two parameters have that name"
    ):
        ad.GradientAccumulator([("w", a), ("w", b)])
    assert ad.GradientAccumulator([("w", a), ("w", a)]).names == ["w"]


@pytest.mark.parametrize("normalize", [False, True])
def test_micro_batches_without_weight_make_no_update(normalize):
    acc = accumulator("w", accumulation_steps=1, normalize=normalize)
    for end in (lambda: acc.apply(pytest.fail), acc.reset):
        acc.step({"w": [1.0, 2.0]}, weight=0)
        end()
    assert acc.stats().skipped_windows == 2
    assert acc.stats().total_updates == 0


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("get", [ad.GradientAccumulator.gradients, applied])
def test_a_quotient_beyond_the_dtype_of_the_sum_is_clipped_or_refused(get, sparse):
    g = np.array([1e37, 1.0], np.float32)
    g = ad.sparse_gradient([0, 1], g, (2,)) if sparse else g

    def window(**options):
        acc = accumulator("w", accumulation_steps=1, reduction="sum", **options)
        acc.step({"w": g}, weight=1e-3)
        return acc

    np.testing.assert_allclose(get(window(max_grad_norm=2.0))["w"], [2.0, 2e-37], rtol=1e-6)
    with pytest.raises(NonFiniteError, match=r"norm of the summed gradients is 9\.99.*e\+39"):
        get(window())
    assert np.isinf(get(window(nonfinite="allow"))["w"][0])


def test_compensated_sums_of_sparse_gradients_lose_nothing_either():
    def rows(index, values):
        return ad.sparse_gradient(index, np.array(values, np.float32)[:, None], (5, 1))

    def made():
        acc = ad.GradientAccumulator(accumulation_steps=5000, compensated=True, normalize=False)
        acc.register("t", (5, 1), np.float32)
        return acc

    def add(acc, index, values):
        acc.step({"t": rows(index, values)})

    acc, loaded = made(), made()
    add(acc, [1, 3], [1.0, 1e8])
    for _ in range(1000):
        add(acc, [2, 1], [3.0, 1e-8])
    loaded.load_state_dict(acc.state_dict())
    for each in (acc, loaded):
        for _ in range(1000):
            add(each, [1, 0, 3], [1e-8, 1.0, 1.0])
        assert type(each.gradients()["t"]) is ad.SparseGradient
        sparse = np.asarray(each.gradients()["t"])[:, 0]
        each.step({"t": np.zeros((5, 1), np.float32)})  # from here on dense
        for _ in range(1000):
            add(each, [3, 1], [1.0, 1e-8])
        dense = each.gradients()["t"][:, 0]
        np.testing.assert_allclose(sparse, np.float32([1000, 1 + 2e-5, 3000, 1e8 + 1000, 0]), rtol=6e-8)
        np.testing.assert_allclose(dense, np.float32([1000, 1 + 3e-5, 3000, 1e8 + 2000, 0]), rtol=6e-8)


# States and parameters that are unfrozen on the way --------------------------------------------


def frozen_and_free(*unfreeze: str):
    """An accumulator of w and, at first frozen, a and b; those named are unfrozen in their order."""
    params = {name: ad.tensor([1.0, 2.0], requires_grad=name == "w") for name in ("w", "a", "b")}
    acc = ad.GradientAccumulator(params, accumulation_steps=4)
    for name in unfreeze:
        params[name].requires_grad_(True)
        with acc.micro_batch():
            sum((t * (i + 1.0)).sum() for i, t in enumerate(params.values())).backward()
    return acc, params


def test_a_state_that_does_not_fit_unfreezes_nothing():
    state = frozen_and_free("a")[0].state_dict()
    state["counts"]["total_updates"] = -1
    acc, _ = frozen_and_free()
    before = frozen(acc), acc.names
    with pytest.raises(ArgumentError, match="total_updates"):
        acc.load_state_dict(state)
    assert (frozen(acc), acc.names) == before


def test_gradients_find_their_sums_after_a_state_of_other_parameters_was_loaded():
    state = frozen_and_free("b")[0].state_dict()
    acc, params = frozen_and_free("a", "b")
    acc.load_state_dict(state)  # which does not know "a", the first that was unfrozen here
    acc.drop()
    with acc.micro_batch():
        sum((t * (i + 1.0)).sum() for i, t in enumerate(params.values())).backward()
    assert {n: g[0] for n, g in acc.gradients().items()} == {"w": 1.0, "a": 2.0, "b": 3.0}


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.complex128])
def test_several_backwards_of_a_parameter_that_is_one_number(dtype):
    w = ad.tensor(np.array(3.0, dtype), requires_grad=True)
    acc = ad.GradientAccumulator([w], accumulation_steps=1)
    with acc.micro_batch():
        for _ in range(3):
            (w * 2.0).real.backward()
    assert acc.gradients()["0"] == 6.0


def test_an_interrupt_right_after_an_optimiser_does_not_repeat_its_update(monkeypatch):
    params = [ad.tensor([float(i)], requires_grad=True) for i in range(3)]
    acc = ad.GradientAccumulator(params, accumulation_steps=1)
    steps = []

    class Optimizer:
        def step(self):
            steps.append([t.grad.item() for t in params])

    with acc.micro_batch():
        sum(params).sum().backward()
    grad, stores = ad.Tensor.grad, []

    def interrupted(t, value):
        stores.append(t)
        if len(stores) == 5:  # three to lend, and in the midst of taking back
            raise KeyboardInterrupt
        grad.fset(t, value)

    optimizer = Optimizer()
    with monkeypatch.context() as patch:
        patch.setattr(ad.Tensor, "grad", property(grad.fget, interrupted))
        with pytest.raises(KeyboardInterrupt):
            acc.apply(optimizer)
    with pytest.raises(AccumulationError, match="incomplete"):
        acc.apply(optimizer)
    assert steps == [[1.0, 1.0, 1.0]]
