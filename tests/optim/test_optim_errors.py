"""Optimisers: an error changes nothing, an interrupt leaves what can go on."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import errors, optim
from adjoint.optim import groups


def _trained(kind: Any = ad.optim.Adam, **options: Any) -> tuple[list[Any], Any]:
    """Parameters of all kinds of places (two in a block, a large one, two groups) after one step."""
    shapes = [(2, 3), (4,), (groups.SMALL + 1,), (3, 2)]
    params = [
        ad.tensor(np.linspace(1.0, 2.0, int(np.prod(s))).reshape(s), requires_grad=True) for s in shapes
    ]
    optimiser = kind([{"params": params[:3]}, {"params": params[3:]}], lr=0.1, **options)
    _give_gradients(params)
    optimiser.step()
    return params, optimiser


def _give_gradients(params: list[Any]) -> None:
    for p in params:
        p.grad = ad.tensor(np.cos(p.numpy()))


def _snapshot(params: list[Any], optimiser: Any) -> Any:
    state = optimiser.state_dict()
    arrays = [v for group in state["state"] for s in group for v in s.values()]
    return (
        [p.numpy(copy=True).tobytes() for p in params],
        [a.tobytes() for a in arrays],
        state["steps"],
        state["step"],
        [p._version for p in params],
    )


def _in_place_of(p: Any, array: Any) -> None:
    """Put an array into a gradient from behind: what assigning to ``grad`` would refuse."""
    p.grad._data = array


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize(
    ("spoil", "error", "text"),
    [
        (
            lambda p: _in_place_of(p, np.zeros(p.size + 1)),
            errors.ShapeError,
            r"the gradient of params\[{}\] has shape",
        ),
        (
            lambda p: _in_place_of(p, np.zeros(p.shape, complex)),
            errors.DTypeError,
            r"params\[{}\] is complex128",
        ),
        (lambda p: _in_place_of(p, np.full(p.shape, "x")), errors.DTypeError, r"params\[{}\] is <U1"),
    ],
)
def test_a_gradient_that_does_not_fit_changes_nothing(place: int, spoil: Any, error: Any, text: str) -> None:
    params, optimiser = _trained()
    other, their_optimiser = _trained()
    _give_gradients(params)
    spoil(params[place])
    before = _snapshot(params, optimiser)
    with pytest.raises(error, match=text.format(place)):
        optimiser.step()
    assert _snapshot(params, optimiser) == before
    _give_gradients(params)
    _give_gradients(other)
    optimiser.step()
    their_optimiser.step()
    assert _snapshot(params, optimiser) == _snapshot(other, their_optimiser)  # as if it had not happened


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("gradient", [np.zeros(7), np.zeros(1, complex), "text"])
def test_gradients_given_to_apply_are_all_checked_first(place: int, gradient: Any) -> None:
    params, optimiser = _trained()
    bad = np.broadcast_to(gradient, params[place].shape) if np.iscomplexobj(gradient) else gradient
    grads = {p: bad if i == place else np.ones(p.shape) for i, p in enumerate(params)}
    before = _snapshot(params, optimiser)
    with pytest.raises(errors.AdjointError, match=rf"the gradient of params\[{place}\]"):
        optimiser.apply(grads)
    assert _snapshot(params, optimiser) == before
    optimiser.apply({p: np.ones(p.shape, np.float32 if i % 2 else int) for i, p in enumerate(params)})
    assert _snapshot(params, optimiser) != before


def test_a_rate_that_was_written_into_a_group_changes_nothing_if_it_is_none() -> None:
    for rate in (float("nan"), float("inf"), -1.0):
        params, optimiser = _trained()
        _give_gradients(params)
        optimiser.groups[1].hyper["lr"] = rate
        before = _snapshot(params, optimiser)
        with pytest.raises(errors.ArgumentError, match="lr must be"):
            optimiser.step()
        assert _snapshot(params, optimiser) == before


def test_memory_that_is_read_only_is_replaced_before_anything_is_written() -> None:
    params, optimiser = _trained()
    other, their_optimiser = _trained()
    for p in params:
        p._data.flags.writeable = False
    for both in (params, other):
        _give_gradients(both)
    optimiser.step()
    their_optimiser.step()
    assert _snapshot(params, optimiser) == _snapshot(other, their_optimiser)


@pytest.mark.parametrize("kind", [ad.optim.SGD, ad.optim.Adam, ad.optim.RMSprop])
def test_numbers_out_of_range_do_not_stop_an_update_in_the_middle(kind: Any) -> None:
    params, optimiser = _trained(kind)
    other, their_optimiser = _trained(kind)
    for both in (params, other):
        _give_gradients(both)
        both[2].grad = ad.tensor(np.full(both[2].shape, 1e200))  # its square is inf
    with np.errstate(all="raise"):
        optimiser.step()
    with np.errstate(all="ignore"):
        their_optimiser.step()
    assert _snapshot(params, optimiser) == _snapshot(other, their_optimiser)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda s: s["state"][0][2].pop("v"), "has keys .'m'., not .'m', 'v'."),
        (lambda s: s["state"][1][0].update(more=np.zeros((3, 2))), "more"),
        (lambda s: s["state"][1][0].update(v=np.zeros((3, 2), complex)), "complex128"),
        (lambda s: s["state"][1][0].update(v=np.zeros((2, 3))), "has shape"),
        (lambda s: s["state"][1][0].update(v="many"), "state 'v' of parameter 0 has shape"),
        (lambda s: s["groups"][1].update(lr=float("nan")), "lr must be"),
        (lambda s: s["groups"][1].update(speed=1.0), "unknown hyper-parameters speed"),
        (lambda s: s["steps"].pop(), "parameters per group"),
        (lambda s: s["groups"].pop(), "parameters per group"),
        (lambda s: s.pop("kind"), "the state is missing the key"),
        (lambda s: s.update(step="many"), "step must be an integer, but got 'many'"),
        (lambda s: s["steps"][1].__setitem__(0, -3), "steps of parameter 0 must not be negative, but is -3"),
    ],
)
def test_a_state_that_does_not_fit_is_not_loaded(spoil: Any, text: str) -> None:
    params, optimiser = _trained()
    _, other = _trained()
    other.step()
    state = other.state_dict()
    spoil(state)
    before = _snapshot(params, optimiser)
    with pytest.raises(errors.AdjointError, match=text):
        optimiser.load_state_dict(state)
    assert _snapshot(params, optimiser) == before


def test_a_state_is_a_dictionary() -> None:
    _, optimiser = _trained()
    with pytest.raises(errors.ArgumentError, match=r"^Adam: the state must be a dictionary, not a list.$"):
        optimiser.load_state_dict([])


@pytest.mark.parametrize(
    ("kind", "name", "value", "text"),
    [
        (ad.optim.Adam, "betas", (1.0, 0.9), "betas must be below 1"),
        (ad.optim.Adam, "eps", float("nan"), "eps must be"),
        (ad.optim.SGD, "nesterov", True, "requires a momentum above 0"),
        (
            ad.optim.SGD,
            "learning_rate",
            0.1,
            "SGD: unknown hyper-parameters learning_rate.\n  The hyper-parameters are dampening, lr",
        ),
    ],
)
def test_what_was_written_into_a_group_is_checked_before_anything_changes(
    kind: Any, name: str, value: Any, text: str
) -> None:
    params, optimiser = _trained(kind)
    _give_gradients(params)
    optimiser.groups[1].hyper[name] = value
    before = _snapshot(params, optimiser)
    for _ in range(2):
        with pytest.raises(errors.ArgumentError, match=text):
            optimiser.step()
        assert _snapshot(params, optimiser) == before


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (ad.optim.SGD, {"momentum": 0.9}),
        (ad.optim.SGD, {"momentum": 0.9, "dampening": 0.5}),
        (ad.optim.Adam, {"amsgrad": True}),
        (ad.optim.RMSprop, {"centered": True, "momentum": 0.9}),
    ],
)
def test_state_that_a_changed_group_wants_begins_with_the_next_step(
    kind: Any, change: dict[str, Any]
) -> None:
    params, optimiser = _trained(kind)
    kept = optimiser.state_of(params[0])
    names = set(kept)
    kept = {k: v.copy() for k, v in kept.items()}
    optimiser.groups[0].hyper.update(change)
    with pytest.raises(errors.ShapeError):
        optimiser.apply({params[0]: np.zeros(7)})
    assert {k: v.tobytes() for k, v in optimiser.state_of(params[0]).items()} == {
        k: v.tobytes() for k, v in kept.items()
    }
    for _ in range(2):
        _give_gradients(params)
        optimiser.step()
    assert names < set(optimiser.state_of(params[0]))
    assert set(optimiser.state_of(params[3])) == names  # of the group that was not changed
    other, their_optimiser = _trained(kind)
    their_optimiser.load_state_dict(optimiser.state_dict())
    optimiser.groups[0].hyper.update({name: type(value)() for name, value in change.items()})
    optimiser.step()
    assert set(optimiser.state_of(params[0])) == names
    their_optimiser.load_state_dict(optimiser.state_dict())  # what is not wanted any more is not in the way
    assert _snapshot(other, their_optimiser)[1:4] == _snapshot(params, optimiser)[1:4]


def test_momentum_that_begins_later_begins_with_the_gradient() -> None:
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    optimiser = ad.optim.SGD([w], lr=0.5)
    for momentum in (0.0, 0.5, 0.5):
        optimiser.groups[0].hyper["momentum"] = momentum
        w.grad = ad.tensor([1.0, 1.0])
        optimiser.step()
    assert w.tolist() == [1.0 - 0.5 - 0.5 - 0.75, 2.0 - 0.5 - 0.5 - 0.75]


@pytest.mark.parametrize("size", [3, groups.SMALL + 1])
def test_a_step_that_fails_leaves_graphs_as_they_are(size: int) -> None:
    class Failing(ad.optim.SGD):
        def init_one(self, p: Any, hyper: Any) -> Any:
            raise MemoryError

    w, v = (ad.tensor(np.ones(size), requires_grad=True) for _ in range(2))
    optimiser = Failing([{"params": [w], "momentum": 0.0}, {"params": [v]}], momentum=0.9)
    loss = (w * w + v * v).sum()
    with pytest.raises(MemoryError):
        optimiser.apply({w: np.ones(size), v: np.ones(size)})
    assert (w._version, v._version) == (0, 0)
    loss.backward()  # no number has changed
    assert w.grad is not None


@pytest.mark.parametrize("kind", [ad.optim.SGD, ad.optim.Adam, ad.optim.Adagrad])
def test_rows_of_small_and_large_tables_are_updated_alike(kind: Any) -> None:
    rng = np.random.default_rng(0)
    start = rng.normal(size=(groups.SMALL // 2 + 9, 2))
    rows = [np.array([1, 5, 5]), np.array([0, 5])]
    found = []
    for count in (10, len(start)):
        table = ad.tensor(start[:count], requires_grad=True)
        other = ad.tensor([1.0], requires_grad=True)
        optimiser = kind([table, other], lr=0.1, weight_decay=0.01)
        for chosen in rows:
            optimiser.zero_grad()
            ((ad.take(table, chosen, axis=0, sparse_grad=True) ** 2).sum() + other.sum()).backward()
            assert type(table.grad) is ad.SparseGradient
            optimiser.step()
        assert np.array_equal(table.numpy()[6:], start[6:count])  # rows that nobody used stay
        found.append((table.numpy()[:10].tobytes(), other.item()))
    assert found[0] == found[1]


def test_a_formula_that_fails_while_writing_says_so() -> None:
    class Failing(ad.optim.SGD):
        def apply_one(self, xp: Any, p: Any, g: Any, state: Any, hyper: Any) -> Any:
            raise KeyError("no such thing")

    w = ad.tensor([1.0], requires_grad=True)
    w.sum().backward()
    with pytest.raises(KeyError) as info:
        Failing([w]).step()
    assert info.value.__notes__ == [
        "Failing: this error interrupted the update.  Some parameters are updated, others are not."
    ]


def test_the_state_of_an_optimiser_with_an_empty_group_loads():
    w = ad.tensor([1.0], requires_grad=True)
    optimizer = optim.Adam([w])
    optimizer.add_group({"params": []})
    w.sum().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())


def test_a_block_that_an_interrupt_left_half_gathered_is_gathered_again():
    params = [ad.tensor(np.ones(3), requires_grad=True) for _ in range(4)]
    optimizer = optim.SGD(params, lr=0.1)
    grads = {p: np.ones(3) for p in params}
    optimizer.apply(grads)
    held = params[2].detach()  # somebody holds the memory: a copy is made
    seen = []

    def interrupt(frame, event, arg):
        if (
            event == "c_return"
            and frame.f_code.co_name == "_gather"
            and getattr(arg, "__name__", "") == "append"
        ):
            seen.append(1)
            if len(seen) == 2:
                raise KeyboardInterrupt

    def interrupted():
        before = sys.getprofile()
        try:
            sys.setprofile(interrupt)
            optimizer.apply(grads)
        finally:
            sys.setprofile(before)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    optimizer.apply(grads)
    assert [p.tolist() for p in params] == [[0.8] * 3] * 4
    assert held.tolist() == [0.9] * 3


def test_gradients_by_other_keys_than_parameters_are_refused() -> None:
    params, optimiser = _trained()
    before = _snapshot(params, optimiser)
    with pytest.raises(
        errors.InputError, match=r"^Adam: the keys of grads must be parameters, but one key is 'weight'.$"
    ):
        optimiser.apply({params[0]: np.ones((2, 3)), "weight": np.ones(4)})
    assert _snapshot(params, optimiser) == before


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam])
def test_an_interrupt_anywhere_changes_nothing_or_says_so(kind: Any) -> None:
    ways = set()
    for moment in range(1, 10_000):
        params, optimiser = _trained(kind)
        others, their_optimiser = _trained(kind)
        held = params[0].detach() if moment % 2 else None  # then the block is copied first
        _give_gradients(params)
        before = _snapshot(params, optimiser)
        moments = 0

        def interrupt(frame: Any, event: str, arg: Any, moment: int = moment) -> None:
            nonlocal moments  # where Python lets an interrupt in: after a call, and on the way into a function
            if event in ("call", "c_return") and frame.f_code.co_filename.endswith(
                ("optimizer.py", "groups.py", "block.py")
            ):
                moments += 1
                if moments == moment:
                    raise KeyboardInterrupt

        profiler = sys.getprofile()
        try:
            sys.setprofile(interrupt)
            optimiser.step()
            ways.add("done")
        except KeyboardInterrupt as error:
            ways.add("torn" if hasattr(error, "__notes__") else "whole")
        finally:
            sys.setprofile(profiler)
        assert ad.is_grad_enabled()
        if "done" in ways:
            break
        if "torn" not in ways:
            assert _snapshot(params, optimiser)[:4] == before[:4]
            assert held is None or held.tolist() == params[0].tolist()
            optimiser.step()
            _give_gradients(others)
            their_optimiser.step()
            assert _snapshot(params, optimiser)[:4] == _snapshot(others, their_optimiser)[:4]
    assert ways == {"whole", "torn", "done"}


def test_a_group_that_lost_a_hyper_parameter_says_which() -> None:
    params, optimiser = _trained()
    _give_gradients(params)
    del optimiser.groups[1].hyper["eps"]
    before = _snapshot(params, optimiser)
    with pytest.raises(
        errors.ArgumentError, match=r"^Adam: the hyper-parameters of a group are missing eps.$"
    ):
        optimiser.step()
    assert _snapshot(params, optimiser) == before


def test_a_state_beyond_the_range_of_its_parameter_is_refused() -> None:
    w = ad.tensor(np.ones(2, np.float16), requires_grad=True)
    optimiser = optim.Adam([w])
    optimiser.apply({w: np.ones(2)})
    state = optimiser.state_dict()
    state["state"][0][0]["v"] = np.full(2, 1e30)
    message = "state 'v' of parameter 0 has values beyond the range of float16"
    with pytest.raises(errors.ShapeError, match=message):
        optimiser.load_state_dict(state)


def test_numbers_of_numpy_that_are_written_into_a_group_count_like_pythons() -> None:
    found = []
    for number in (float, np.float64):
        w = ad.tensor(np.linspace(0.1, 1.0, 9, dtype=np.float32), requires_grad=True)
        optimiser = optim.SGD([w], lr=0.3)
        optimiser.groups[0].hyper.update(weight_decay=number(0.1), lr=number(0.7))
        optimiser.apply({w: np.linspace(1.0, 3.0, 9, dtype=np.float32)})
        found.append(w.numpy().tobytes())
        assert type(optimiser.state_dict()["groups"][0]["lr"]) is float
    assert found[0] == found[1]


def test_hyper_parameters_are_not_attributes() -> None:
    """An assignment that has no effect is refused, for optimisers and for their groups."""
    optimizer = ad.optim.SGD([ad.tensor(np.ones(2), requires_grad=True)], lr=0.1, momentum=0.9)
    with pytest.raises(
        errors.ArgumentError, match=r"no attribute 'momentum'.*\n.*group.hyper\['momentum'\] = value"
    ):
        optimizer.momentum = 0.5
    with pytest.raises(errors.ArgumentError, match=r"groups\[i\].hyper\['lr'\] = value"):
        optimizer.groups[0].lr = 0.5
    optimizer.lr = 0.5
    optimizer.note = "kept"
    assert optimizer.groups[0].hyper["lr"] == 0.5 and optimizer.note == "kept"
