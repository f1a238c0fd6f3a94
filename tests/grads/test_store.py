"""Gradients: the store."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import errors


def made() -> tuple[ad.Tensor, ad.Tensor, ad.Gradients]:
    x = ad.tensor([1.0, 2.0], requires_grad=True)
    y = ad.tensor(3.0, requires_grad=True)
    return x, y, ad.backward((x * y).sum())


def test_it_is_a_mapping_by_tensor_or_id() -> None:
    x, y, grads = made()
    assert grads[x].tolist() == [3.0, 3.0] and grads[id(y)].item() == 3.0
    assert x in grads and id(y) in grads and ad.tensor(1.0) not in grads and "x" not in grads
    assert len(grads) == 2 and list(grads) == grads.keys()
    assert {id(t) for t in grads} == {id(x), id(y)}
    assert [g.shape for g in grads.values()] == [t.shape for t, _ in grads.items()]
    assert grads.get(ad.tensor(1.0)) is None and grads.get(ad.tensor(1.0), 5) == 5
    assert x.grad is None and y.grad is None
    assert repr(grads).startswith("Gradients(2 tensors")


def test_set_replaces_and_add_accumulates() -> None:
    x, _, grads = made()
    grads.set(x, [1.0, 2.0])
    grads.add(x, ad.tensor([3.0, 4.0]))
    assert grads[x].tolist() == [4.0, 6.0]
    grads.add(x, ad.tensor([1.0, 1.0]))
    assert grads[x].tolist() == [5.0, 7.0]


def test_add_never_writes_into_an_array_it_does_not_own() -> None:
    x = ad.tensor([1.0, 2.0], requires_grad=True)
    mine = ad.tensor([1.0, 1.0])
    store = ad.Gradients()
    store.add(x, mine)
    first = store[x]
    store.add(x, mine)
    second = store[x]
    store.add(x, mine)
    assert mine.tolist() == first.tolist() == [1.0, 1.0] and store[x].tolist() == [3.0, 3.0]
    assert second.tolist() == [2.0, 2.0]
    before = store._items[id(x)][1]
    store.add(x, mine)
    made_here = store._items[id(x)][1]
    store.add(x, mine)
    assert made_here is store._items[id(x)][1] is not before  # nobody holds it: no new array


def test_what_was_handed_out_does_not_change_later() -> None:
    x = ad.tensor([1.0, 2.0], requires_grad=True)
    store = ad.Gradients()
    for _ in range(2):
        store.add(x, [1.0, 1.0])  # the second makes an array of the store's own
    held = [store[x], store.get(x), store.values()[0], store.items()[0][1], store.detach()[x]]
    merged = store.merge(ad.Gradients())
    store.add(x, [1.0, 1.0])
    assert store[x].tolist() == [3.0, 3.0]
    assert [g.tolist() for g in (*held, merged[x])] == [[2.0, 2.0]] * 6


@pytest.mark.parametrize("taken", [lambda o: ad.Gradients().merge(o), copy.copy, copy.deepcopy])
def test_what_another_store_took_over_does_not_change_later(taken: Any) -> None:
    x = ad.tensor([1.0, 2.0], requires_grad=True)
    store = ad.Gradients()
    for _ in range(2):
        store.add(x, [1.0, 1.0])
    other = taken(store)
    store.add(x, [1.0, 1.0])
    assert other.values()[0].tolist() == [2.0, 2.0] and store[x].tolist() == [3.0, 3.0]
    other.add(other.keys()[0], [5.0, 5.0])
    assert other.values()[0].tolist() == [7.0, 7.0] and store[x].tolist() == [3.0, 3.0]


@pytest.mark.parametrize("again", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copied_or_pickled_store_is_keyed_by_the_copies(again: Any) -> None:
    x, y, grads = made()
    (x2, y2), grads2 = again(((x, y), grads))
    assert grads2[x2].tolist() == [3.0, 3.0] and grads2[y2].item() == 3.0
    assert x not in grads2 and len(grads2) == 2
    assert grads2[x2] is not grads[x]


def test_an_overflowing_add_is_infinite_whatever_the_error_state() -> None:
    x = ad.tensor([1.0, 2.0], requires_grad=True)
    for adds in (1, 2):  # the second adds into the array of the store's own
        store = ad.Gradients()
        with np.errstate(all="raise"):
            for _ in range(adds + 1):
                store.add(x, [1e308, 1.0])
        assert store[x].tolist() == [np.inf, adds + 1.0]


def test_a_failing_add_loses_nothing() -> None:
    x, _, grads = made()
    before = grads[x]
    for bad, error in (([1.0], errors.ShapeError), (np.ones(2, np.float32), errors.DTypeError)):
        with pytest.raises(error):
            grads.add(x, bad)
        with pytest.raises(error):
            grads.set(x, bad)
    assert grads[x] is before


def test_pop_clear_and_missing() -> None:
    x, y, grads = made()
    assert grads.pop(x).tolist() == [3.0, 3.0] and x not in grads
    assert grads.pop(x, None) is None
    for missing in (lambda: grads[x], lambda: grads.pop(x)):
        with pytest.raises(KeyError, match="no gradient for this tensor of shape") as info:
            missing()
        assert type(info.value) is errors.MissingGradientError
        assert isinstance(info.value, errors.NoGradientError)
    grads.clear()
    assert len(grads) == 0 and y not in grads and repr(grads) == "Gradients(empty)"
    with pytest.raises(errors.InputError, match="not by str"):
        grads["x"]  # type: ignore[index]
    with pytest.raises(errors.InputError, match=r"store\.set\(x, g\) to replace"):
        grads[x] = [1.0, 2.0]
    with pytest.raises(errors.InputError, match="must be an ad"):
        grads.merge({})  # type: ignore[arg-type]


def test_merge_scale_norm_and_detach() -> None:
    x, y, grads = made()
    other = ad.backward((x * 2.0).sum())
    merged = grads.merge(other)
    assert merged[x].tolist() == [5.0, 5.0] and merged[y].item() == 3.0
    assert grads[x].tolist() == [3.0, 3.0] and other[x].tolist() == [2.0, 2.0]
    assert grads.scale(0.5)[x].tolist() == [1.5, 1.5]
    assert grads.norm() == pytest.approx(np.sqrt(27.0)) and grads.norm(np.inf) == 3.0
    huge = ad.Gradients()
    huge.set(x, [3e200, 4e200])
    assert huge.norm() == pytest.approx(5e200)
    huge.set(x, [np.nan, 1.0])
    assert np.isnan(huge.norm())


def test_differentiable_gradients_live_in_the_same_store() -> None:
    x = ad.tensor(2.0, requires_grad=True)
    grads = ad.backward(x**3, create_graph=True)
    assert grads[x].requires_grad
    assert ad.backward(grads[x], retain_graph=True)[x].item() == 12.0
    plain = grads.detach()
    assert not plain[x].requires_grad and plain[x].item() == 12.0
    grads.add(x, grads[x])
    assert ad.backward(grads[x])[x].item() == 24.0
