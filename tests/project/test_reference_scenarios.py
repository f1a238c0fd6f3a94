"""The test scenarios of the systems adjoint learned from, and their defects as right behaviour.

Each part names the system and the file.  Accumulation of micro-batches and parallel backward have
test files of their own.
"""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import errors
from adjoint.core.define import define
from adjoint.core.shapes import reduced_axes
from adjoint.testing import gradcheck


def leaf(value: Any, dtype: Any = np.float32) -> ad.Tensor:
    return ad.tensor(value, dtype=dtype, requires_grad=True)


# etensor: gradients.rs --------------------------------------------------------------------------


def test_gradient_insertion_and_retrieval():
    t, store = leaf([0.0, 0.0]), ad.Gradients()
    store.add(t, ad.tensor([1.5, 2.5], dtype=np.float32))
    assert store.get(t).tolist() == [1.5, 2.5]
    assert store.get(id(t)).tolist() == [1.5, 2.5]


def test_gradient_accumulation_on_collision():
    t, store = leaf([0.0, 0.0]), ad.Gradients()
    store.add(t, ad.tensor([1.0, 2.0], dtype=np.float32))
    store.add(t, ad.tensor([3.0, 4.0], dtype=np.float32))
    assert store[t].tolist() == [4.0, 6.0]
    assert store[t].dtype == np.float32


def test_a_shared_buffer_is_never_corrupted():
    t, other, store = leaf([0.0, 0.0]), leaf([0.0, 0.0]), ad.Gradients()
    shared = ad.tensor([1.0, 2.0], dtype=np.float32)
    store.add(t, shared)
    store.add(other, shared)
    for _ in range(3):
        store.add(t, shared)
    assert shared.tolist() == store[other].tolist() == [1.0, 2.0]
    assert store[t].tolist() == [4.0, 8.0]


def test_lengths_that_do_not_fit_are_refused_and_nothing_is_lost():
    t, store = leaf([0.0, 0.0]), ad.Gradients()
    store.add(t, ad.tensor([1.0, 2.0], dtype=np.float32))
    with pytest.raises(errors.ShapeError):
        store.add(t, ad.tensor([1.0, 2.0, 3.0], dtype=np.float32))
    assert store[t].tolist() == [1.0, 2.0]


def test_removing_hands_the_gradient_over():
    t, store = leaf([0.0]), ad.Gradients()
    store.add(t, ad.tensor([1.0], dtype=np.float32))
    assert store.pop(t).tolist() == [1.0]
    assert store.get(t) is None
    assert store.pop(t, None) is None


# etensor: engine.rs -----------------------------------------------------------------------------


def test_requires_grad_guard():
    with pytest.raises(errors.NoGradientError, match="does not require grad"):
        ad.backward(ad.tensor([42.0], dtype=np.float32))


def test_engine_seeding_and_execution():
    x = leaf([5.0])
    with ad.Tape() as tape:
        y = x + 0
    store = tape.gradients(y, [y, x])
    assert store[y].tolist() == [1.0]  # the seed has the root's own shape
    assert store[x].tolist() == [1.0]
    assert store[y].shape == store[x].shape == (1,)
    with pytest.raises(errors.TapeError, match="consumed"):  # and the tape is empty afterwards
        tape.gradients(y)
    assert repr(tape) == "<Tape, consumed, 0 operations>"


def test_a_failing_action_stops_the_run_and_comes_out_as_it_is():
    def refuse(g: ad.Tensor) -> None:
        raise OverflowError("internal")

    x = leaf([5.0])
    y = x * 2
    y.register_hook(refuse)
    with pytest.raises(OverflowError, match="internal"):
        ad.backward(y + 1)


def test_a_root_that_is_a_leaf_is_its_own_gradient():
    x = leaf([5.0])
    assert ad.backward(x)[x].tolist() == [1.0]


# numr: var_grad_store.rs ------------------------------------------------------------------------


def test_gradients_with_history_can_be_differentiated_again():
    # the example of its documentation: a Hessian-vector product
    x, v = leaf([1.0, 2.0], float), ad.tensor([0.5, -1.0])
    store = ad.backward((x**3).sum(), create_graph=True)
    assert store[x].requires_grad
    hvp = ad.backward((store[x] * v).sum())[x]
    assert hvp.tolist() == [6 * 1.0 * 0.5, 6 * 2.0 * -1.0]


def test_the_mapping_of_differentiable_gradients():
    x, y = leaf(2.0, float), leaf(3.0, float)
    store = ad.backward(x * y, create_graph=True)
    assert (x in store, id(y) in store, ad.tensor(1.0) in store) == (True, True, False)
    assert len(store) == 2
    assert {id(t) for t in store.keys()} == {id(x), id(y)}  # noqa: SIM118  the method itself
    assert {id(t): g.item() for t, g in store.items()} == {id(x): 3.0, id(y): 2.0}
    assert [id(t) for t in store] == [id(t) for t in store.keys()]  # noqa: SIM118
    assert store.pop(x).item() == 3.0
    assert len(store) == 1
    store.clear()
    assert len(store) == 0


def test_set_overwrites_and_add_accumulates_with_history():
    x = leaf(2.0, float)
    store = ad.backward(x**2, create_graph=True)
    store.set(x, store[x] * 1.0)
    assert store[x].item() == 4.0
    store.add(x, x**3)  # a sum that remembers both
    assert store[x].item() == 12.0
    assert ad.gradients(store[x], [x])[0].item() == 2.0 + 12.0


def test_a_failing_addition_loses_nothing():
    # the reference removes before it adds
    x = leaf([2.0], float)
    store = ad.backward(x * x, create_graph=True)
    held = store[x]
    for bad in (ad.tensor([1.0, 2.0]), ad.tensor([1.0], dtype=np.float32), object()):
        with pytest.raises(errors.AdjointError):
            store.add(x, bad)
    assert store[x] is held
    assert store[x].requires_grad


def test_conversion_to_a_store_without_history():
    x = leaf(2.0, float)
    store = ad.backward(x**3, create_graph=True)
    plain = store.detach()
    assert plain[x].item() == 12.0
    assert not plain[x].requires_grad
    assert store[x].requires_grad


@pytest.mark.parametrize("name", ["exp", "sqrt", "tanh", "sigmoid", "softmax"])
def test_second_derivatives_go_through_the_saved_output(name):
    # the reference treats the saved output as a constant and loses a term
    f = getattr(ad, name, None) or (lambda x: ad.exp(x) / ad.exp(x).sum())
    x = np.array([0.3, 0.7, 1.1])
    assert gradcheck(lambda x: f(x), x, order=3)
    if name == "exp":
        t = leaf(x, float)
        (g,) = ad.gradients(ad.exp(t).sum(), [t], create_graph=True)
        assert ad.gradients(g.sum(), [t])[0].tolist() == np.exp(x).tolist()


# ferrotorch: graph.rs ---------------------------------------------------------------------------


def test_backward_simple_add():
    a, b = leaf(2.0), leaf(3.0)
    (a + b).backward()
    assert (a.grad.item(), b.grad.item()) == (1.0, 1.0)


def test_backward_mul():
    a, b = leaf(2.0), leaf(3.0)
    (a * b).backward()
    assert (a.grad.item(), b.grad.item()) == (3.0, 2.0)


def test_backward_shared_input():
    a = leaf(5.0)
    (a + a).backward()
    assert a.grad.item() == 2.0


def test_backward_chain():
    a, b = leaf(2.0), leaf(3.0)
    (a * b + b).backward()
    assert (a.grad.item(), b.grad.item()) == (3.0, 3.0)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_backward_non_scalar_error(requires_grad):
    t = ad.tensor([1.0, 2.0, 3.0], dtype=np.float32, requires_grad=requires_grad)
    with pytest.raises(errors.ShapeError if requires_grad else errors.NoGradientError):
        t.backward()
    assert t.grad is None


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_backward_one_element_tensor_seed_has_same_shape(shape):
    x = leaf(np.full(shape, 3.0))
    y = x * x
    assert y.shape == shape
    y.backward()
    assert x.grad.shape == shape
    assert x.grad.dtype == np.float32
    assert x.grad.item() == 6.0


def test_backward_one_element_through_pow_and_add():
    x, y = leaf([3.0]), leaf([-4.0])
    loss = x**2.0 + y**2.0
    assert loss.shape == (1,)
    loss.backward()
    assert (x.grad.tolist(), y.grad.tolist()) == ([6.0], [-8.0])


def test_reduce_grad_to_shape_returns_error_on_underflow():
    assert reduced_axes((), (1,)) is None
    lossy = define("test_lossy", np.array, lambda xp, g, y, x: xp.sum(g, axis=(-1,), keepdims=False))
    x = leaf([1.0])
    with pytest.raises(errors.RuleError, match=r"shape \(\) for argument 'x' of shape \(1,\)"):
        lossy(x).backward()
    assert x.grad is None


def test_external_gradient():
    x = leaf([1.0, 2.0, 3.0])
    y = x * 2
    with pytest.raises(errors.ShapeError, match=r"shape of the tensor, \(3,\), but has \(2,\)"):
        y.backward(ad.ones((2,), dtype=np.float32))
    y.backward(ad.tensor([1.0, 10.0, 100.0], dtype=np.float32))
    assert x.grad.tolist() == [2.0, 20.0, 200.0]


def test_gradients_accumulate_over_backwards():
    x = leaf([1.0, 2.0])
    for n in range(1, 4):
        (x * x).sum().backward()
        assert x.grad.tolist() == [2.0 * n, 4.0 * n]


def test_a_rule_with_the_wrong_number_of_gradients():
    short = define("test_short", np.add, joint=lambda xp, g, z, x, y, wanted: [g], arity=2)
    with pytest.raises(errors.RuleError, match="one gradient per argument, 2 in all, but returned 1"):
        short(leaf(1.0), leaf(2.0)).backward()


def test_gradients_that_are_not_contiguous_are_pulled_through():
    x = leaf(np.arange(6.0).reshape(2, 3), float)
    seed = np.arange(12.0).reshape(3, 4)[:, ::2]
    (x.T * x.T).backward(seed)
    assert np.array_equal(x.grad.numpy(), 2 * x.numpy() * seed.T)


def test_branches_without_gradient_are_left_alone():
    a, b = leaf(2.0), ad.tensor(3.0, dtype=np.float32)
    (a * b + b * b).backward()
    assert a.grad.item() == 3.0
    assert b.grad is None


def test_post_accumulate_hooks_see_the_accumulated_gradient():
    seen: list[float] = []
    a = leaf(2.0)
    a.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.item()))
    (a + a).backward()
    (a * 3).backward()
    assert seen == [2.0, 5.0]


# Their defects: the tape -------------------------------------------------------------------------


def test_another_loss_keeps_its_history():
    x = leaf(3.0, float)
    shared = x * x
    one, two = shared + 1, ad.exp(x)
    assert ad.backward(one)[x].item() == 6.0
    assert ad.backward(two)[x].item() == np.exp(3.0)


def test_a_second_backward_is_an_error_not_the_seed_alone():
    x = leaf(3.0, float)
    y = x * x
    ad.backward(y)
    with pytest.raises(errors.GraphReleasedError, match="'multiply'"):
        ad.backward(y)


def test_a_forward_without_backward_leaks_nothing():
    gc.collect()
    gc.disable()
    try:
        x = leaf([1.0, 2.0])
        y = ad.exp(x) * x
        gone = weakref.ref(y.grad_fn)
        del y
        assert gone() is None
    finally:
        gc.enable()


def test_a_graph_is_differentiated_in_another_thread():
    x = leaf([1.0, 2.0])
    y = (x * x).sum()
    worker = threading.Thread(target=y.backward)
    worker.start()
    worker.join()
    assert x.grad.tolist() == [2.0, 4.0]


# Their defects: hooks ---------------------------------------------------------------------------


def test_a_hook_runs_once_on_the_total():
    seen: list[float] = []
    a = leaf(5.0)
    a.register_hook(lambda g: seen.append(g.item()))
    (a + a).backward()
    assert seen == [2.0]


def test_a_clamp_hook_limits_the_total():
    a = leaf(5.0)
    a.register_hook(lambda g: g.clip(-1.0, 1.0))
    (a + a).backward()
    assert a.grad.item() == 1.0


@pytest.mark.parametrize("intermediate", [False, True])
def test_a_hook_on_a_tensor_used_three_times_fires_once_with_the_total(intermediate):
    seen: list[float] = []
    x = leaf(2.0, float)
    t = x * 1.0 if intermediate else x
    t.register_hook(lambda g: seen.append(g.item()))
    (t * t + ad.exp(t) + 3 * t).backward()
    assert seen == [x.grad.item()]
    assert seen[0] == pytest.approx(4.0 + np.exp(2.0) + 3.0)


def test_a_hook_may_remove_hooks_and_add_others():
    log: list[str] = []
    a = leaf(5.0)

    def first(g: ad.Tensor) -> None:
        log.append("first")
        mine.remove()
        other.remove()
        a.register_hook(lambda g: log.append("added"))

    mine = a.register_hook(first)
    other = a.register_hook(lambda g: log.append("other"))
    (a * 2).backward()
    assert log == ["first", "other"]  # the hooks of the moment when the gradient was complete
    (a * 2).backward()
    assert log == ["first", "other", "added"]


# Their defects: numbers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "p", "expected"),
    [(0.0, 2.0, 0.0), (0.0, 1.0, 1.0), (0.0, 0.0, 0.0), (0.0, 3, 0.0), (-2.0, 2, -4.0), (-2.0, 3.0, 12.0)],
)
def test_pow_at_zero_and_below(x, p, expected):
    for exponent in (p, ad.tensor(float(p))):
        t = leaf([x], float)
        (t**exponent).backward()
        assert t.grad.tolist() == [expected]


def test_the_exponent_of_zero_has_a_gradient_of_zero():
    y = leaf([2.0, 1.0], float)
    (ad.tensor([0.0, 0.0]) ** y).sum().backward()
    assert y.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("zeros", [(), (1,), (1, 3), (0, 1, 2, 3)])
def test_prod_and_cumprod_with_zeros(zeros):
    x = np.array([2.0, -3.0, 0.5, 4.0])
    x[list(zeros)] = 0.0
    t = leaf(x, float)
    ad.prod(t).backward()
    assert t.grad.tolist() == [np.prod(np.delete(x, i)) for i in range(4)]
    gradcheck(ad.prod, x, order=2)
    gradcheck(ad.cumprod, x, order=2)


def test_gradcheck_does_not_let_nan_pass():
    nan = define("test_scenario_nan", np.array, lambda xp, g, y, x: g * np.nan)
    assert not gradcheck(nan, np.array([1.0, 2.0]), raise_exception=False)


def test_after_an_error_no_leaf_is_updated():
    # the leaf 'late' is complete long before the rule of the first op fails
    fails = define("test_scenario_fails", np.array, lambda xp, g, y, x: 1 / 0)
    early, late = leaf(2.0), leaf(3.0)
    loss = fails(early) * late
    with pytest.raises(ZeroDivisionError):
        loss.backward()
    assert early.grad is None
    assert late.grad is None


# What users of the peers suffer: NaN from the branch that was not taken ------------------------------

TRAPS = {
    "where": lambda x: ad.where(x > 0, ad.sqrt(x), 0.0),
    "deep": lambda x: ad.where(x > 0, 2 * ad.sin(ad.sqrt(x).reshape(2, 1)).T[0], 0.0),
    "quotient": lambda x: ad.where(x > 0, x * (x / (x + 1)) / (x + 1), 0.0),
    "index": lambda x: ad.sqrt(x)[x.numpy() > 0],
    "at": lambda x: ad.sqrt(x).at[~(x.numpy() > 0)].set(0.0),
    "nan_to_num": lambda x: ad.nan_to_num(ad.log(x), neginf=0.0),
    "fmax": lambda x: ad.fmax(ad.log(x), -9.0),
}


@pytest.mark.parametrize("name", TRAPS)
@pytest.mark.parametrize("bad", [-1.0, 0.0, np.nan])
def test_the_branch_that_was_not_taken_does_not_poison_the_gradient(name, bad):
    f = TRAPS[name]
    x, good = leaf([4.0, bad], float), leaf([4.0, 9.0], float)
    with np.errstate(all="ignore"):
        (g,) = ad.gradients(f(x).sum(), [x], create_graph=True)
        (h,) = ad.gradients(g.sum(), [x])
        f(x).sum().backward()
    (g2,) = ad.gradients(f(good).sum(), [good], create_graph=True)
    (h2,) = ad.gradients(g2.sum(), [good])
    assert x.grad.tolist() == g.tolist() == [g2.tolist()[0], 0.0]
    assert h.tolist() == [h2.tolist()[0], 0.0]
