"""Learning-rate schedules beside what PyTorch has, which the oracle tests compare."""

from __future__ import annotations

from typing import Any

import pytest
from messages import raised

import adjoint as ad
from adjoint import errors
from adjoint.errors import ArgumentError
from adjoint.optim import schedules


def test_messages_about_what_schedules_are_given() -> None:
    assert raised(lambda: schedules.cosine(0.1, T_max=10)) == "cosine: T_max= is called total= in adjoint."
    assert (
        raised(lambda: schedules.steps(0.1, step_size=10)) == "steps: step_size= is called every= in adjoint."
    )
    assert raised(lambda: schedules.cosine(0.1, 10, foo=1)) == (
        "cosine has no argument foo=.  It accepts rate, total, minimum."
    )
    assert raised(lambda: schedules.cosine("a", 10)) == "cosine: rate must be a number, but got 'a'."
    assert (
        raised(lambda: schedules.linear(0.1, 10, start="a")) == "linear: start must be a number, but got 'a'."
    )
    assert (
        raised(lambda: schedules.exponential(0.1, "a"))
        == "exponential: factor must be a number, but got 'a'."
    )
    assert raised(lambda: schedules.cosine(0.1, "a")) == "cosine: total must be positive, but is 'a'."
    assert raised(lambda: schedules.cosine_restarts(1.0, 10, 0.5)) == (
        "cosine_restarts: multiple must be an integer, but got 0.5."
    )
    assert raised(lambda: schedules.cosine_restarts(1.0, 10, 0)) == (
        "cosine_restarts: multiple must be at least 1, but is 0."
    )
    assert (
        raised(lambda: schedules.Plateau(-0.1)) == "Plateau: rate must be finite and at least 0, but is -0.1."
    )
    assert raised(lambda: schedules.Plateau(0.1, patience="a")) == (
        "Plateau: patience must be an integer, but got 'a'."
    )
    assert raised(lambda: schedules.Plateau(0.1, cooldown=-1)) == (
        "Plateau: cooldown must be at least 0, but is -1."
    )


def test_schedules_without_a_peer() -> None:
    rates = [schedules.inverse_sqrt(1.0, 4)(s) for s in range(16)]
    assert rates[3] == 1.0 and rates[15] == 0.5 and rates[0] == 0.25
    both = schedules.sequence(
        (schedules.constant(1.0), 3), (schedules.linear(1.0, 2), 2), schedules.constant(0.1)
    )
    assert [both(s) for s in range(7)] == [1.0, 1.0, 1.0, 1.0, 0.5, 0.1, 0.1]
    assert len(schedules.draw(schedules.cosine(0.1, 100), 100)) == 60


def test_warmup_and_sequence_pass_metrics_on_while_a_plateau_is_followed() -> None:
    schedule: Any = schedules.warmup(schedules.Plateau(1.0, factor=0.5, patience=0), 4, start=0.5)
    assert [schedule.report(1.0, step) for step in (1, 2, 4, 6, 8)] == [0.625, 0.75, 1.0, 0.5, 0.25]
    assert schedule(0) == 0.125 and schedule(100) == 0.25  # warm-up leads to what the plateau is at
    again: Any = schedules.warmup(schedules.Plateau(1.0, factor=0.5, patience=0), 4, start=0.5)
    again.load_state_dict(schedule.state_dict())
    assert again.report_from({"loss": 1.0}, 9) == schedule.report(1.0, 9) == 0.125
    plain: Any = schedules.warmup(schedules.constant(1.0), 4)
    assert plain.state_dict() == {} and plain.report(1.0, 9) == 1.0
    with pytest.raises(errors.ArgumentError, match="schedules with a state have the indices"):
        plain.load_state_dict(schedule.state_dict())
    with pytest.raises(errors.InputError, match="a schedule must be a function of the step"):
        schedules.warmup(0.1, 3)  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentError, match="must be a non-negative integer, not -1"):
        schedules.sequence((schedules.constant(1.0), -1), schedules.constant(1.0))


def test_a_schedule_can_be_drawn_to_a_file(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "schedule.png"
    assert schedules.draw(schedules.cosine(0.1, 100), 100, str(path)) == str(path)
    assert path.stat().st_size > 1000


def test_plateau_state_round_trips() -> None:
    one = schedules.Plateau(1.0, patience=1)
    for metric in (1.0, 1.0, 1.0):
        one.report(metric)
    two = schedules.Plateau(1.0, patience=1)
    two.load_state_dict(one.state_dict())
    assert two.report(1.0) == one.report(1.0) and two(5) == one(5)


# Edges -----------------------------------------------------------------------------------------


def test_one_cycle_whose_rise_is_one_step_begins_at_its_peak() -> None:
    schedule = schedules.one_cycle(1.0, total=10, rise=0.1)
    assert schedule(0) == 1.0
    assert schedule(9) == pytest.approx(1 / 25 / 1e4)
    with pytest.raises(errors.ArgumentError, match="rise must be from 0 to 1"):
        schedules.one_cycle(1.0, total=10, rise=1.5)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("best", [-10.0, 10.0])
def test_plateau_takes_only_a_better_metric_for_better(mode: str, best: float) -> None:
    better = -1.0 if mode == "min" else 1.0
    for change, expected in ((2.0, 0), (0.5, 1), (-0.5, 1)):  # in units of the threshold
        plateau = schedules.Plateau(1.0, threshold=0.01, mode=mode)
        plateau.report(ad.tensor(best))
        plateau.report(best + change * better * 0.1)
        assert plateau.bad == expected
        assert type(plateau.best) is float


def test_a_drawing_goes_from_the_lowest_to_the_highest() -> None:
    assert schedules.draw(lambda step: step - 3.0, 7, width=7) == "▁▂▃▄▆▇█"
    assert schedules.draw(schedules.constant(0.0), 3, width=3) == "▁▁▁"


@pytest.mark.parametrize(
    "parts",
    [
        ((lambda step: 1.0, None), lambda step: 2.0),  # the second would never be followed
        ((lambda step: 1.0, "3"), lambda step: 2.0),
        ((lambda step: 1.0, 3, 4), lambda step: 2.0),
        (),
    ],
)
def test_a_sequence_that_cannot_be_followed_is_refused(parts):
    with pytest.raises(ArgumentError, match="sequence"):
        schedules.sequence(*parts)


def test_schedules_that_leave_the_numbers_are_refused_by_name() -> None:
    assert raised(lambda: schedules.one_cycle(1.0, 10, start_divisor=0)) == (
        "one_cycle: start_divisor must be positive, but is 0.0."
    )
    assert raised(lambda: schedules.one_cycle(1.0, 10, end_divisor=-1.0)) == (
        "one_cycle: end_divisor must be positive, but is -1.0."
    )
    assert raised(lambda: schedules.polynomial(1.0, 10, -1.0)) == (
        "polynomial: power must not be negative, but is -1.0."
    )
    optimiser = ad.optim.SGD([ad.tensor([1.0], requires_grad=True)])
    for grown in (schedules.exponential(1.0, 1.1), schedules.steps(1.0, 1, 1.1)):
        assert raised(lambda grown=grown: setattr(optimiser, "lr", grown(10_000))) == (
            "SGD: lr must be finite and at least 0, but is inf."
        )


def test_a_plateau_of_another_number_starts_afresh() -> None:
    plateau = schedules.Plateau(1.0, factor=0.5, patience=1)
    for _ in range(2):
        plateau.report_from({"loss": 0.1}, 0)
    assert (plateau.best, plateau.bad) == (0.1, 1)
    plateau.report_from({"loss": 0.1, "val_loss": 7.0}, 0)
    assert (plateau.best, plateau.bad, plateau.rate) == (7.0, 0, 1.0)
    other = schedules.Plateau(1.0, factor=0.5, patience=1, monitor="error")
    other.load_state_dict(plateau.state_dict())
    other.report_from({"error": 9.0}, 0)
    assert (other.best, other.bad) == (9.0, 0)
    upwards = schedules.Plateau(1.0, patience=1, mode="max", monitor="val_loss")
    upwards.load_state_dict(plateau.state_dict())
    upwards.report_from({"val_loss": 3.0}, 0)
    assert (upwards.best, upwards.bad) == (3.0, 0)


def test_messages_of_schedules_in_other_forms() -> None:
    assert raised(lambda: schedules.warmup(0.1, 5)) == (
        "warmup: a schedule must be a function of the step, not 0.1.\n  Use schedules.constant(0.1)."
    )
    pairs = [(schedules.constant(0.1), 3), (schedules.constant(0.2), 3)]
    assert raised(lambda: schedules.sequence(pairs)) == (
        "sequence: pass the pairs as separate arguments, not in a list: sequence((schedule, steps), …)."
    )
    assert raised(lambda: ad.nn.TransformerEncoderLayer(8, 2, batch_first=True)) == (
        "TransformerEncoderLayer has no argument batch_first=: the first axis is always the batch axis."
    )
