"""Optimisers: state, groups, pieces, memory, mistakes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from messages import raised

import adjoint as ad
from adjoint import errors, optim
from adjoint.optim import first_order, formula, groups, schedules
from adjoint.optim import optimizer as frame

KINDS = ["SGD", "Adam", "AdamW", "NAdam", "RMSprop", "Adagrad", "Lion"]


def leaves(seed: int = 0) -> list[ad.Tensor]:
    rng = np.random.default_rng(seed)
    return [ad.tensor(rng.normal(size=s), requires_grad=True) for s in ((3, 2), (), (5,))]


def train(params: list[ad.Tensor], optimiser: Any, steps: int) -> None:
    for _ in range(steps):
        optimiser.zero_grad()
        loss = sum((((p - 1.0) ** 2).sum() for p in params), start=ad.tensor(0.0))
        loss.backward()
        optimiser.step()


def options(kind: str) -> dict[str, Any]:
    return {"momentum": 0.9} if kind == "SGD" else {}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_pieces_and_blocks_and_threads_give_the_same_bits(
    kind: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = leaves()
    train(together, getattr(ad.optim, kind)(together, lr=0.01, **options(kind)), 5)
    monkeypatch.setattr(groups, "SMALL", -1)
    for limit, value in {"ALONE": 16, "SHARED": 24, "LEAST": 2}.items():
        monkeypatch.setattr(frame, limit, value)
    apart = leaves()
    with ad.config.threads(threads):
        train(apart, getattr(ad.optim, kind)(apart, lr=0.01, **options(kind)), 5)
    for a, b in zip(together, apart, strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("SGD", {}),
        ("SGD", {"momentum": 0.9}),
        ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        ("SGD", {"momentum": 0.9, "dampening": 0.5}),
        ("SGD", {"maximize": True}),
        ("Adam", {}),
        ("Adam", {"betas": (0.0, 0.5), "eps": 1e-3}),
        ("Adam", {"amsgrad": True, "weight_decay": 0.1}),
        ("AdamW", {}),
        ("AdamW", {"weight_decay": 0.0, "maximize": True}),
        ("NAdam", {}),
        ("NAdam", {"weight_decay": 0.1, "maximize": True}),
        ("RMSprop", {}),
        ("RMSprop", {"centered": True, "momentum": 0.9, "weight_decay": 0.1}),
        ("Adagrad", {"lr_decay": 0.1, "initial": 0.5}),
        ("Adagrad", {"weight_decay": 0.1, "maximize": True}),
        ("Lion", {}),
        ("Lion", {"weight_decay": 0.1, "maximize": True}),
    ],
)
@pytest.mark.parametrize("room", [0, 4096])  # elements up to which no scratch memory is used
def test_the_in_place_form_gives_the_bits_of_the_formula(
    kind: str, given: dict[str, Any], dtype: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formula, "SCRATCH", room)
    made = getattr(ad.optim, kind)
    monkeypatch.setattr(made.apply_one, "forms", {})

    class Pure(made):  # type: ignore[misc]
        def apply_one(self, *args: Any) -> Any:
            return super().apply_one(*args)

    pure, written = ([ad.tensor(p.numpy().astype(dtype), requires_grad=True) for p in leaves()] for _ in "ab")
    slow, fast = Pure(pure, lr=0.01, **given), made(written, lr=0.01, **given)
    train(pure, slow, 5)
    train(written, fast, 5)
    for a, b in zip(pure, written, strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()
        for name, value in slow.state_of(a).items():
            assert value.tobytes() == fast.state_of(b)[name].tobytes()


def test_every_formula_has_an_in_place_form() -> None:
    for kind in KINDS:
        optimizer = getattr(optim, kind)(leaves())
        hyper = optimizer.numbers({**optimizer.defaults, "step": 1})
        assert formula.form_of(optimizer, optimizer.slots, hyper) is not None


def test_numbers_are_asked_once_for_what_is_updated_together(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("ALONE", "SHARED"):
        monkeypatch.setattr(frame, limit, 16)
    steps = []

    class Counted(optim.SGD):
        def numbers(self, hyper: Any) -> Any:
            steps.append(hyper["step"])
            return {**hyper, "lr": hyper["lr"] / hyper["step"]}

    w = ad.tensor(np.zeros(50), requires_grad=True)
    optimizer = Counted([w], lr=1.0)
    for _ in range(2):
        optimizer.apply({w: np.ones(50)})
    assert steps == [1, 2]
    assert w.numpy().tolist() == [-1.5] * 50


@pytest.mark.parametrize("kind", KINDS)
def test_state_round_trips_bitwise(kind: str) -> None:
    straight, broken = leaves(), leaves()
    make = getattr(ad.optim, kind)
    train(straight, make(straight, lr=0.01, **options(kind)), 8)
    first = make(broken, lr=0.01, **options(kind))
    train(broken, first, 5)
    state = first.state_dict()
    train(leaves(1), first, 0)
    second = make(broken, lr=0.5, **options(kind))
    second.load_state_dict(state)
    train(broken, second, 3)
    for a, b in zip(straight, broken, strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()


def test_a_parameter_without_a_gradient_is_left_alone() -> None:
    used, unused = leaves()[0], leaves(1)[0]
    before = unused.tolist()
    optimiser = ad.optim.Adam([used, unused])
    (used**2).sum().backward()
    optimiser.step()
    assert unused.tolist() == before and used.tolist() != leaves()[0].tolist()
    assert not optimiser.state_of(unused)["m"].any()


def test_groups_have_their_own_hyper_parameters() -> None:
    a, b, _ = leaves()
    optimiser = ad.optim.SGD([{"params": [a], "lr": 0.5}, {"params": b}], lr=0.1)
    start_a, start_b = a.numpy(copy=True), b.numpy(copy=True)
    (a.sum() + b).backward()
    optimiser.step()
    assert np.allclose(a.numpy(), start_a - 0.5) and np.allclose(b.numpy(), start_b - 0.1)
    optimiser.lr = 0.25
    assert [g.hyper["lr"] for g in optimiser.groups] == [
        1.25,
        0.25,
    ]  # 0.25 for all that have none of their own


def test_updates_happen_in_place_and_keep_value_semantics() -> None:
    (w,) = leaves()[:1]
    optimiser = ad.optim.SGD([w], lr=0.1)
    (w**2).sum().backward()
    optimiser.step()
    address = w._data.ctypes.data
    snapshot = w.numpy(copy=True)
    optimiser.step()
    assert w._data.ctypes.data == address
    held = w.detach()
    values = held.tolist()
    optimiser.step()
    assert held.tolist() == values and held.tolist() != w.tolist()
    assert snapshot.tolist() != w.tolist()


def test_a_step_between_forward_and_backward_is_noticed() -> None:
    (w,) = leaves()[:1]
    optimiser = ad.optim.SGD([w], lr=0.1)
    (w**2).sum().backward()
    loss = (w * w).sum()
    optimiser.step()
    with pytest.raises(errors.ModifiedError):
        loss.backward()


def test_a_write_by_the_user_is_seen_by_the_optimiser() -> None:
    (w,) = leaves()[:1]
    optimiser = ad.optim.SGD([w], lr=0.1)
    w.grad = ad.ones(w.shape)
    with ad.no_grad():
        w.copy_(5.0)
    optimiser.step()
    assert np.allclose(w.numpy(), 4.9)


def test_gradients_may_come_from_a_store() -> None:
    (w,) = leaves()[:1]
    before = w.numpy(copy=True)
    optimiser = ad.optim.SGD([w], lr=0.1)
    optimiser.apply(ad.backward(w.sum()))
    assert np.allclose(w.numpy(), before - 0.1) and w.grad is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_dtypes_stay(kind: str, dtype: type) -> None:
    w = ad.tensor(np.ones(3, dtype), requires_grad=True)
    optimiser = getattr(ad.optim, kind)([w], lr=0.1)
    (w * 2).sum().backward()
    optimiser.step()
    assert w.dtype == dtype and all(v.dtype == dtype for v in optimiser.state_of(w).values())


def test_average_of_weights() -> None:
    (w,) = leaves()[:1]
    start = w.numpy(copy=True)
    ema = ad.optim.EMA([w], decay=0.9)
    with ad.no_grad():
        w.copy_(0.0)
    ema.update()
    with ema.swapped():
        assert np.allclose(w.numpy(), 0.9 * start)
    assert not w.numpy().any()
    other = ad.optim.EMA([w])
    other.load_state_dict(ema.state_dict())
    assert np.allclose(other.averages[0], 0.9 * start)


MISTAKES: list[tuple[Any, type[Exception], str]] = [
    (lambda w: ad.optim.SGD([]), TypeError, "no parameters"),
    (lambda w: ad.optim.SGD([3.0]), TypeError, "params\\[0\\] is a float"),
    (lambda w: ad.optim.SGD([w.detach()]), TypeError, "no parameter requires grad"),
    (
        lambda w: ad.optim.SGD([w * 2]),
        TypeError,
        "is the result of an operation.\n  Pass leaf tensors",
    ),
    (lambda w: ad.optim.SGD([w, w]), ValueError, "given twice"),
    (lambda w: ad.optim.Adagrad([w], initial=-1.0), ValueError, "initial must be finite and at least 0"),
    (lambda w: ad.optim.SGD([w], lr=-1.0), ValueError, "lr must be finite and at least 0, but is -1.0."),
    (lambda w: ad.optim.SGD([w], nesterov=True), ValueError, "requires a momentum above 0"),
    (lambda w: ad.optim.Adam([w], betas=0.9), ValueError, "betas must be two numbers, but are 0.9"),
    (lambda w: ad.optim.Adam(w), TypeError, "pass a list of parameters or of groups, not one Tensor"),
    (lambda w: schedules.draw(schedules.linear(1.0, 5), 0), ValueError, "total must be positive"),
    (
        lambda w: schedules.draw(lambda step: 1 / step if step else np.nan, 5),
        ValueError,
        "step 0 is not finite",
    ),
    (lambda w: ad.optim.Adam([w], betas=(0.9, 1.5)), ValueError, "betas must be from 0 to 1"),
    (lambda w: ad.optim.SGD([w], lr=float("nan")), ValueError, "lr must be"),
    (
        lambda w: ad.optim.SGD([{"params": [w], "momentom": 1}]),
        ValueError,
        "unknown hyper-parameters momentom",
    ),
    (
        lambda w: ad.optim.SGD([w]).load_state_dict(ad.optim.Adam([w]).state_dict()),
        ValueError,
        "state of a different optimiser, Adam",
    ),
    (lambda w: ad.optim.EMA([w], decay=2.0), ValueError, "decay must be"),
    (lambda w: schedules.cosine(0.1, 0), ValueError, "total must be positive"),
    (
        lambda w: schedules.sequence(schedules.constant(1), schedules.constant(2)),
        ValueError,
        "sequence: each part must be a pair",
    ),
]


@pytest.mark.parametrize("kind", [ad.optim.SGD, ad.optim.Adam, ad.optim.LBFGS])
@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -0.1, "fast", None])
def test_a_rate_that_is_set_later_is_checked_too(kind: Any, rate: Any) -> None:
    opt = kind([ad.tensor([1.0], requires_grad=True)], lr=0.5)
    is_number = isinstance(rate, float)
    with pytest.raises(errors.ArgumentError if is_number else errors.InputError) as info:
        opt.lr = rate
    limit = "finite and at least 0, but is" if is_number else "a number, but got"
    assert str(info.value) == f"{kind.__name__}: lr must be {limit} {rate!r}."
    assert opt.lr == 0.5
    opt.lr = np.float32(0.25)
    assert opt.lr == 0.25


def test_messages_about_what_optimisers_are_given() -> None:
    w, b = (ad.tensor([1.0], requires_grad=True) for _ in range(2))
    both = "SGD: pass either parameters or groups, but element 0 is a {} and element 1 is a {}.\n"
    put = '  Put single parameters into a group: {"params": [...]}.'
    assert raised(lambda: optim.SGD([{"params": [w]}, b])) == both.format("dict", "Tensor") + put
    assert raised(lambda: optim.SGD([b, {"params": [w]}])) == both.format("Tensor", "dict") + put
    group = 'Adam: a group must be {"params": [...], "lr": ...}, but this one has only lr.'
    assert raised(lambda: optim.Adam([{"lr": 1}])) == group
    assert raised(lambda: optim.SGD([w]).add_group([b])).endswith("requires_grad=True)].")  # type: ignore
    assert raised(lambda: optim.SGD([w.detach()])) == (
        "SGD: no parameter requires grad, so nothing can be trained.\n"
        "  Unfreeze a module or a tensor with requires_grad_(True)."
    )
    module = ad.nn.Linear(2, 2)
    for kind in (optim.Adam, optim.LBFGS, optim.EMA):
        name = kind.__name__
        text = f"{name}: pass parameters, not a Linear: {name}(model.parameters())."
        assert raised(lambda kind=kind: kind(module)) == text
    assert raised(lambda: optim.SGD([{"params": module}])).startswith("SGD: pass parameters, not a L")
    assert raised(lambda: optim.LBFGS([{"params": [w]}])).startswith(
        "LBFGS: parameter groups are not supported"
    )
    assert raised(lambda: optim.LBFGS([w], max_iter="a")) == (
        "LBFGS: max_iter must be an integer, but got 'a'."
    )
    assert raised(lambda: optim.LBFGS([w], history=0)) == "LBFGS: history must be positive, but is 0."
    assert raised(lambda: optim.LBFGS([w], tolerance_grad=-1)) == (
        "LBFGS: tolerance_grad must be finite and at least 0, but is -1."
    )
    assert raised(lambda: optim.EMA([w], decay="a")) == "EMA: decay must be a number, but got 'a'."
    assert raised(lambda: optim.Adam([w], amsgrad="yes")) == (
        "Adam: amsgrad must be True or False, but is 'yes'."
    )
    assert raised(lambda: optim.SGD([w], maximize=1)) == "SGD: maximize must be True or False, but is 1."
    for thing in (optim.SGD([w]), optim.LBFGS([w]), module):
        thing.zero_grad(set_to_none=True)
        assert raised(lambda thing=thing: thing.zero_grad(set_to_none=False)) == (
            "zero_grad always sets gradients to None, so set_to_none=False is not supported.\n  Call zero_grad() without arguments."
        )


def test_averages_refuse_a_state_that_is_not_their_own() -> None:
    ema = optim.EMA([ad.tensor(np.ones(2, np.float32), requires_grad=True)], decay=0.5)
    for state, text in (
        (
            {},
            'EMA: the state must have the keys "decay" and "averages".\n'
            "  Pass the value that state_dict() returned.",
        ),
        ({"decay": 7, "averages": [np.ones(2)]}, "EMA: decay must be from 0 to 1, but is 7."),
        ({"decay": 0.5, "averages": []}, "EMA: the state has 0 averages, but the EMA has 1."),
        (
            {"decay": 0.5, "averages": [np.ones(2, int)]},
            "EMA: these averages do not match their parameters:\n  0: has dtype int64, needs float32",
        ),
    ):
        assert raised(lambda state=state: ema.load_state_dict(state)) == text
    ema.load_state_dict({"decay": 0.25, "averages": [np.full(2, 3.0)]})
    assert ema.averages[0].dtype == np.float32 and ema.averages[0].tolist() == [3.0, 3.0]
    assert ema.decay == 0.25


@pytest.mark.parametrize(("mistake", "error", "text"), MISTAKES)
def test_mistakes(mistake: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as info:
        mistake(leaves()[0])
    assert isinstance(info.value, errors.AdjointError)


def rates(opt) -> list[float]:
    return [g.hyper["lr"] for g in opt.groups]


def test_the_rate_of_all_is_that_of_the_groups_without_their_own() -> None:
    a, b, c = (ad.tensor([1.0], requires_grad=True) for _ in range(3))
    opt = optim.AdamW([{"params": a, "lr": 1e-4}, {"params": b}, {"params": c, "lr": 0.1}], lr=1e-2)
    assert opt.lr == 1e-2
    schedule = schedules.warmup(schedules.constant(1e-2), 2)
    for step in range(3):
        opt.lr = schedule(step)
        np.testing.assert_allclose(rates(opt), np.multiply([1e-4, 1e-2, 0.1], step / 2), rtol=1e-12)
        assert opt.lr == schedule(step)
    again = optim.AdamW([{"params": a, "lr": 1e-4}, {"params": b}, {"params": c, "lr": 0.1}], lr=1e-2)
    opt.lr = 0.0
    again.load_state_dict(opt.state_dict())
    again.lr = 0.02
    np.testing.assert_allclose(rates(again), [2e-4, 0.02, 0.2], rtol=1e-12)


def test_a_group_with_the_rate_of_all_may_come_later() -> None:
    a, b, c = (ad.tensor([1.0], requires_grad=True) for _ in range(3))
    opt = optim.SGD([{"params": a, "lr": 0.0}, {"params": b, "lr": 0.4}], lr=0.1)
    assert opt.lr == 0.4  # all have their own
    opt.add_group({"params": c})
    assert opt.lr == 0.1
    opt.lr = 0.05
    assert rates(opt) == [0.0, 0.2, 0.05]
    opt.lr = 0.0
    opt.lr = 0.2
    assert rates(opt) == [0.0, 0.8, 0.2]


def test_a_group_given_a_rate_of_zero_stays_there() -> None:
    a, b, c = (ad.tensor([1.0], requires_grad=True) for _ in range(3))
    opt = optim.SGD([{"params": a, "lr": 0.0}, {"params": b, "lr": 0.1}, {"params": c, "lr": 0.2}])
    assert opt.lr == 0.1
    for rate in (0.1, 0.05, 0.0, 0.2):
        opt.lr = rate
        assert opt.lr == rate
        assert rates(opt) == [0.0, rate, 2 * rate]


def test_a_group_frozen_by_hand_stays_frozen_and_thaws_by_hand() -> None:
    a, b = (ad.tensor([1.0], requires_grad=True) for _ in range(2))
    opt = optim.SGD([{"params": a, "lr": 0.1}, {"params": b, "lr": 0.2}])
    opt.groups[0].hyper["lr"] = 0.0
    opt.lr = 0.4  # of the first group above 0
    assert rates(opt) == [0.0, 0.4]
    opt.groups[0].hyper["lr"] = 0.1
    opt.lr = 0.2
    assert rates(opt) == [0.2, 0.8]


def test_groups_that_are_all_given_zero_take_the_rate() -> None:
    a, b, c = (ad.tensor([1.0], requires_grad=True) for _ in range(3))
    opt = optim.SGD([{"params": a}, {"params": b}], lr=0.0)
    opt.lr = 0.1
    assert rates(opt) == [0.1, 0.1]
    opt.lr = 0.0
    opt.lr = 0.5
    opt.add_group({"params": c, "lr": 0.25})
    opt.lr = 1.0
    assert rates(opt) == [1.0, 1.0, 0.5]


def test_a_group_added_while_the_rate_is_zero_keeps_its_ratio() -> None:
    a, b = (ad.tensor([1.0], requires_grad=True) for _ in range(2))
    opt = optim.SGD([a], lr=0.1)
    opt.lr = 0.0
    opt.add_group({"params": b, "lr": 0.2})
    assert (opt.lr, rates(opt)) == (0.0, [0.0, 0.2])
    opt.lr = 0.05
    assert rates(opt) == [0.05, 0.1]


def test_ratios_after_loading_a_state_of_rate_zero() -> None:
    def made():
        a, b, c = (ad.tensor([1.0], requires_grad=True) for _ in range(3))
        return optim.SGD([{"params": a, "lr": 0.0}, {"params": b, "lr": 0.1}, {"params": c, "lr": 0.2}])

    opt, fresh = made(), made()
    opt.lr = 0.0
    fresh.load_state_dict(opt.state_dict())
    fresh.lr = 0.3
    assert rates(fresh) == [0.0, 0.3, 0.6]


def test_groups_keep_their_ratio_through_a_rate_of_zero() -> None:
    a, b = (ad.ones(1, requires_grad=True) for _ in range(2))
    opt = ad.optim.SGD([{"params": [a], "lr": 0.1}, {"params": [b], "lr": 0.3}])
    schedule = schedules.warmup(schedules.constant(0.2), 2)
    rates = []
    for step in range(3):
        opt.lr = schedule(step)
        rates.append([g.hyper["lr"] for g in opt.groups])
    np.testing.assert_allclose(rates, [[0, 0], [0.1, 0.3], [0.2, 0.6]])
    opt.groups[1].hyper["lr"] = 0.2  # its own from now on
    opt.lr = 0.1
    assert [g.hyper["lr"] for g in opt.groups] == [0.1, 0.1]


def test_centred_rmsprop_survives_a_constant_gradient() -> None:
    w = ad.tensor(np.linspace(0, 1, 50), dtype=np.float32, requires_grad=True)
    opt = ad.optim.RMSprop([w], lr=1e-6, alpha=0.9, centered=True)
    for _ in range(300):
        w.grad = ad.linspace(0.1, 0.6, 50, dtype=np.float32)
        opt.step()
    assert np.isfinite(w.numpy()).all()


@pytest.mark.parametrize("make", [ad.optim.Adam, ad.optim.NAdam, ad.optim.Lion])
def test_betas_are_below_one(make: Any) -> None:
    with pytest.raises(errors.ArgumentError, match="betas must be below 1"):
        make([ad.ones(1, requires_grad=True)], betas=(1.0, 0.9))


@pytest.mark.parametrize("size", [3, groups.SMALL + 1])
def test_loading_a_state_from_before_the_first_step_forgets_the_later_ones(size: int) -> None:
    def run(opt: Any, w: Any) -> Any:
        with ad.no_grad():
            w.copy_(1.0)
        w.grad = ad.ones(size)
        opt.step()
        return w.numpy(copy=True)

    w = ad.ones(size, requires_grad=True)
    opt = ad.optim.Adam([w])
    fresh = opt.state_dict()
    first = run(opt, w)
    w.grad = ad.full(size, -5.0)
    opt.step()
    opt.load_state_dict(fresh)
    assert opt.state_of(w) == {}
    np.testing.assert_array_equal(run(opt, w), first)


def test_gradients_of_other_shapes_are_refused_and_nothing_is_updated() -> None:
    a, b = (ad.tensor(np.ones(n), requires_grad=True) for n in (2, 3))
    optimizer = ad.optim.SGD([a, b], lr=1.0)
    with pytest.raises(errors.ShapeError) as caught:
        optimizer.apply({a: np.ones(3), b: np.ones(2)})
    assert (
        str(caught.value)
        == "SGD: the gradient of params[0] has shape (3,), but the parameter has shape (2,)."
    )
    assert a.numpy().tolist() == [1, 1]
    assert optimizer.step_count == 0


@pytest.mark.parametrize("kind", [ad.optim.SGD, ad.optim.Adam])
def test_an_optimiser_that_changes_the_formula_alone_uses_it(kind: Any) -> None:
    class Frozen(kind):  # type: ignore[misc]
        def apply_one(self, xp: Any, p: Any, g: Any, state: Any, hyper: Any) -> Any:
            return p, state

    w = ad.tensor([1.0, 2.0], requires_grad=True)
    (w * w).sum().backward()
    Frozen([w], lr=0.5).step()
    assert w.numpy().tolist() == [1, 2]


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("kind", [ad.optim.SGD, ad.optim.AdamW, ad.optim.RMSprop])
def test_a_rate_that_is_a_number_of_numpy_is_that_number(kind: Any, later: bool) -> None:
    found = []
    for rate in (0.1, np.float64(0.1)):
        w = ad.tensor(np.linspace(1, 2, 50, dtype=np.float32), requires_grad=True)
        optimizer = kind([w], lr=0.3 if later else rate)
        optimizer.lr = rate
        for _ in range(3):
            optimizer.apply({w: np.linspace(-1, 3, 50, dtype=np.float32)})
        found.append(w.numpy())
    np.testing.assert_array_equal(*found)


def test_averages_are_of_tensors() -> None:
    model = ad.nn.Linear(2, 1, rng=0)
    assert len(ad.optim.EMA(dict(model.named_parameters())).averages) == 2
    with pytest.raises(ad.errors.InputError, match=r"EMA\(model\.parameters\(\)\)"):
        ad.optim.EMA(model)  # type: ignore[arg-type]
    with pytest.raises(ad.errors.InputError, match=r"params\[0\] is a float"):
        ad.optim.EMA([1.0])  # type: ignore[list-item]


def test_groups_keep_their_ratio_across_a_saved_state() -> None:
    def fresh() -> Any:
        a, b = (ad.tensor([1.0], requires_grad=True) for _ in range(2))
        return optim.SGD([{"params": a, "lr": 0.3}, {"params": b, "lr": 0.7}])

    for own, rate in ((0.05, 0.0), (0.9, 0.17), (0.123, 0.77)):  # 0: the ratio cannot be seen in the rates
        one, other = fresh(), fresh()
        one.groups[1].hyper["lr"] = own  # by hand, after it was made
        one.lr = rate
        other.load_state_dict(one.state_dict())
        for following in (0.2, 0.31):
            one.lr = other.lr = following
            assert rates(one) == rates(other)


def test_an_optimiser_without_a_rate_has_none_to_set() -> None:
    class Signs(optim.Optimizer):
        def apply_one(self, xp: Any, p: Any, g: Any, state: Any, hyper: Any) -> Any:
            return p - 0.5 * xp.sign(g), {}

    model = ad.nn.Linear(2, 1, rng=0, dtype=np.float64)
    optimiser = Signs(model.parameters())
    (log,) = ad.train.Trainer(model, ad.nn.MSELoss(), optimiser).fit([(np.ones((3, 2)), np.ones((3, 1)))])
    assert np.isnan(log["lr"])
    message = raised(lambda: setattr(optimiser, "lr", 0.1))
    assert message == "Signs has no learning rate to set."


def test_the_parts_of_complex_numbers_move_as_numbers_of_their_own() -> None:
    start, grad = np.array([1.0 + 2.0j, -3.0 + 0.5j]), np.array([0.5 - 1.0j, 2.0 + 3.0j])
    for kind in KINDS:
        made = getattr(optim, kind)
        z = ad.tensor(start, requires_grad=True)
        parts = ad.tensor(start.view(float), requires_grad=True)
        one, other = (made([p], lr=0.1, weight_decay=0.1) for p in (z, parts))
        for _ in range(3):
            one.apply({z: grad})
            other.apply({parts: grad.view(float)})
        assert z.numpy().tobytes() == parts.numpy().tobytes(), kind
        for name, value in one.state_of(z).items():
            assert value.tobytes() == other.state_of(parts)[name].tobytes()


def test_an_average_of_half_precision_moves() -> None:
    w = ad.tensor(np.ones(2, np.float16), requires_grad=True)
    ema = optim.EMA([w], decay=0.999)
    with ad.no_grad():
        w.copy_(np.full(2, 2.0))
    for _ in range(1000):
        ema.update()
    assert np.allclose(ema.averages[0], 2 - 0.999**1000, rtol=1e-3)
    other = optim.EMA([w])
    other.load_state_dict(ema.state_dict())
    assert other.averages[0].tobytes() == ema.averages[0].tobytes()
    with other.swapped():
        assert w.dtype == np.float16 and 1.5 < w.numpy()[0] < 1.7
    assert w.tolist() == [2.0, 2.0]


def test_an_average_that_cannot_be_put_in_place_leaves_the_weights() -> None:
    a, b = ad.tensor([1.0], requires_grad=True), ad.tensor([2.0], requires_grad=True)
    ema = optim.EMA([a, b])
    ema.averages = [np.zeros(1), np.zeros(7)]
    with pytest.raises(ValueError, match="broadcast"), ema.swapped():
        pass
    assert (a.item(), b.item()) == (1.0, 2.0)
    assert raised(lambda: optim.EMA([a, ad.tensor([1])])) == (
        "EMA: parameters must be floats, but params[1] is int64."
    )


def test_the_product_of_a_step_goes_on_from_the_step_before(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[tuple[float, float, int], float] = {}
    monkeypatch.setattr(first_order, "_products", known)
    fresh = [first_order._mu_product(0.9, 4e-3, t) for t in (1, 2, 3)]
    known.clear()
    assert first_order._mu_product(0.9, 4e-3, 3) == fresh[2]
    known[0.9, 4e-3, 5000] = 2.0  # one factor more, not five thousand
    assert first_order._mu_product(0.9, 4e-3, 5001) == 2.0 * 0.9 * (1 - 0.5 * 0.96 ** (5001 * 4e-3))
    for t in range(200):
        first_order._mu_product(0.9, 4e-3, t)
    assert len(known) <= 64


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_a_copy_of_model_and_optimiser_goes_on_like_them(copied: Any) -> None:
    model = ad.nn.Sequential(ad.nn.Linear(3, 2, rng=0), ad.nn.Linear(2, 1, rng=1))
    optimiser = optim.Adam(model.parameters(), lr=0.1)
    train(model.parameters(), optimiser, 2)
    other, their_optimiser = copied((model, optimiser))
    assert all(p is q for p, q in zip(other.parameters(), their_optimiser.params, strict=True))
    for params, steps in ((model.parameters(), optimiser), (other.parameters(), their_optimiser)):
        train(params, steps, 2)
    assert [p.tolist() for p in model.parameters()] == [p.tolist() for p in other.parameters()]
    found, their = optimiser.state_dict(), their_optimiser.state_dict()
    assert found["steps"] == their["steps"]
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert optimiser.state_of(p)["v"].tolist() == their_optimiser.state_of(q)["v"].tolist()
