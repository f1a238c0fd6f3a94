"""Every optimiser and schedule against PyTorch, step by step, where PyTorch has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint.optim import schedules

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle

OPTIMISERS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {}


def _row(name: str, ours: str, theirs: str, options: dict[str, Any], **renamed: Any) -> None:
    OPTIMISERS[name] = (ours, theirs, {**options, **renamed}, options)


for _decay in (0.0, 0.01):
    _row(f"sgd-{_decay}", "SGD", "SGD", {"lr": 0.05, "weight_decay": _decay})
    _row(f"adam-{_decay}", "Adam", "Adam", {"lr": 0.05, "weight_decay": _decay})
    _row(f"adamw-{_decay}", "AdamW", "AdamW", {"lr": 0.05, "weight_decay": _decay})
    _row(f"rmsprop-{_decay}", "RMSprop", "RMSprop", {"lr": 0.01, "weight_decay": _decay})
    _row(f"nadam-{_decay}", "NAdam", "NAdam", {"lr": 0.05, "weight_decay": _decay})
    _row(f"adagrad-{_decay}", "Adagrad", "Adagrad", {"lr": 0.1, "weight_decay": _decay, "lr_decay": 0.01})
_row("momentum", "SGD", "SGD", {"lr": 0.05, "momentum": 0.9})
_row("nesterov", "SGD", "SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True})
_row("dampening", "SGD", "SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3})
_row("maximize", "SGD", "SGD", {"lr": 0.001, "momentum": 0.5, "maximize": True})
_row("nesterov-decay", "SGD", "SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01})
for _name in ("Adam", "AdamW", "NAdam", "RMSprop", "Adagrad"):
    _row(f"maximize-{_name}", _name, _name, {"lr": 0.001, "maximize": True})
_row("adam-betas", "Adam", "Adam", {"lr": 0.05, "betas": (0.5, 0.8), "eps": 1e-3})
_row("adamw-amsgrad", "AdamW", "AdamW", {"lr": 0.05, "amsgrad": True})
_row("nadam-momentum", "NAdam", "NAdam", {"lr": 0.05, "momentum_decay": 0.1})
_row("rmsprop-alpha", "RMSprop", "RMSprop", {"lr": 0.01, "alpha": 0.5, "momentum": 0.9, "eps": 1e-3})
_row("adagrad-initial", "Adagrad", "Adagrad", {"lr": 0.1, "initial_accumulator_value": 0.3})
OPTIMISERS["adagrad-initial"][2]["initial"] = OPTIMISERS["adagrad-initial"][2].pop(
    "initial_accumulator_value"
)
_row("amsgrad", "Adam", "Adam", {"lr": 0.05, "amsgrad": True})
_row("centered", "RMSprop", "RMSprop", {"lr": 0.01, "centered": True, "momentum": 0.9})


def loss_of(params: list[Any], step: int) -> Any:
    """A bumpy bowl; the second parameter takes part in every third step only."""
    a, b, c = params
    loss = ((a - 1.0) ** 2).sum() + (c**2).sum() * 0.1 + (a[0] * c[:3]).sum()
    return loss + ((b + 2.0) ** 2).sum() if step % 3 == 2 else loss


@pytest.fixture
def double() -> Any:
    """PyTorch keeps NAdam's running product in its default dtype, which is float32."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimiser(name: str) -> None:
    ours_name, theirs_name, our_options, their_options = OPTIMISERS[name]
    rng = np.random.default_rng(0)
    # away from 0, where a step divided by its own size has no digits to compare
    start = [rng.uniform(5.0, 9.0, s) for s in ((2, 3), (4,), (20_000,))]
    ours = [ad.tensor(a, requires_grad=True) for a in start]
    theirs = [torch.tensor(a, requires_grad=True) for a in start]
    our_optimiser = getattr(ad.optim, ours_name)(ours, **our_options)
    their_optimiser = getattr(torch.optim, theirs_name)(theirs, **their_options)
    for step in range(100):
        for params, optimiser in ((ours, our_optimiser), (theirs, their_optimiser)):
            optimiser.zero_grad()
            loss_of(params, step).backward()
            optimiser.step()
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-10, atol=1e-10)


def test_lbfgs_reaches_what_pytorch_reaches() -> None:
    start = np.array([-1.2, 1.0, -0.5, 0.8])

    def rosenbrock(x: Any) -> Any:
        return (100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()

    ours, theirs = ad.tensor(start, requires_grad=True), torch.tensor(start, requires_grad=True)
    results = []
    for x, optimiser in (
        (ours, ad.optim.LBFGS([ours], max_iter=100)),
        (theirs, torch.optim.LBFGS([theirs], max_iter=100, line_search_fn="strong_wolfe")),
    ):

        def closure(x: Any = x, optimiser: Any = optimiser) -> Any:
            optimiser.zero_grad()
            loss = rosenbrock(x)
            loss.backward()
            return loss

        optimiser.step(closure)
        results.append(rosenbrock(x).item())
    assert results[0] <= max(results[1], 1e-12) * 1.001


@pytest.mark.parametrize(("size", "history"), [(200, 10), (50, 3)])
def test_lbfgs_step_by_step(size: int, history: int) -> None:
    # so far that it is not there after 100 steps: close to the end PyTorch's limits, which are absolute, stop it
    start = 100.0 * np.random.default_rng(0).normal(size=size)
    weights = np.logspace(0, 2, size)

    def bowl(x: Any, weights: Any) -> Any:
        return (weights * x**2).sum() + 1e-5 * ((x**4).sum() + ((x[1:] * x[:-1]) ** 2).sum())

    ours, theirs = ad.tensor(start, requires_grad=True), torch.tensor(start, requires_grad=True)
    options: dict[str, Any] = {"max_iter": 1, "tolerance_grad": 0.0, "tolerance_change": 0.0}
    pairs = [
        (ours, ad.optim.LBFGS([ours], history=history, **options), weights),
        (
            theirs,
            torch.optim.LBFGS(
                [theirs], history_size=history, max_eval=26, line_search_fn="strong_wolfe", **options
            ),
            torch.tensor(weights),
        ),
    ]
    for _ in range(100):
        for x, optimiser, w in pairs:

            def closure(x: Any = x, optimiser: Any = optimiser, w: Any = w) -> Any:
                optimiser.zero_grad()
                loss = bowl(x, w)
                loss.backward()
                return loss

            optimiser.step(closure)
        np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-10, atol=1e-10)
    assert np.abs(ours.numpy()).max() < 1e-4


def scheduled(make: Callable[[Any], Any], rate: float, count: int, **options: Any) -> list[float]:
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate, **options)
    scheduler = make(optimiser)
    found = []
    for _ in range(count):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return found


S = torch.optim.lr_scheduler
SCHEDULES: dict[str, tuple[schedules.Schedule, Callable[[Any], Any], float]] = {
    "steps": (schedules.steps(0.5, 7, 0.3), lambda o: S.StepLR(o, 7, 0.3), 0.5),
    "exponential": (schedules.exponential(0.5, 0.95), lambda o: S.ExponentialLR(o, 0.95), 0.5),
    "linear": (
        schedules.linear(0.5, 20, start=0.25, end=0.75),
        lambda o: S.LinearLR(o, 0.25, 0.75, 20),
        0.5,
    ),
    "polynomial": (schedules.polynomial(0.5, 20, 2.0), lambda o: S.PolynomialLR(o, 20, 2.0), 0.5),
    "cosine": (schedules.cosine(0.5, 100, 0.01), lambda o: S.CosineAnnealingLR(o, 100, 0.01), 0.5),
    "restarts": (
        schedules.cosine_restarts(0.5, 5, 2, 0.01),
        lambda o: S.CosineAnnealingWarmRestarts(o, 5, 2, 0.01),
        0.5,
    ),
    "restarts-triple": (
        schedules.cosine_restarts(0.5, 1, 3),
        lambda o: S.CosineAnnealingWarmRestarts(o, 1, 3),
        0.5,
    ),
    "constant": (schedules.constant(0.5), lambda o: S.ConstantLR(o, 1.0), 0.5),
    "sequence": (
        schedules.sequence(
            (schedules.constant(0.5), 5),
            (schedules.exponential(0.5, 0.9), 20),
            schedules.polynomial(0.5, 50, 1.5),
        ),
        lambda o: S.SequentialLR(
            o, [S.ConstantLR(o, 1.0), S.ExponentialLR(o, 0.9), S.PolynomialLR(o, 50, 1.5)], [5, 25]
        ),
        0.5,
    ),
    "inverse-square-root": (
        schedules.inverse_sqrt(0.5, 10),
        lambda o: S.LambdaLR(o, lambda step: min((step + 1) / 10, (10 / (step + 1)) ** 0.5)),
        0.5,
    ),
    "restarts-equal": (
        schedules.cosine_restarts(0.5, 7),
        lambda o: S.CosineAnnealingWarmRestarts(o, 7),
        0.5,
    ),
    "one-cycle": (
        schedules.one_cycle(0.5, 101),
        lambda o: S.OneCycleLR(o, 0.5, total_steps=101, cycle_momentum=False),
        0.5,
    ),
    "one-cycle-linear": (
        schedules.one_cycle(0.5, 101, shape="linear"),
        lambda o: S.OneCycleLR(o, 0.5, total_steps=101, cycle_momentum=False, anneal_strategy="linear"),
        0.5,
    ),
    "warm-up": (
        schedules.warmup(schedules.exponential(0.5, 0.9), 10, start=0.1),
        lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.1, 1.0, 10), S.ExponentialLR(o, 0.9)], [10]),
        0.5,
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(name: str) -> None:
    ours, theirs, rate = SCHEDULES[name]
    expected = scheduled(theirs, rate, 100)
    np.testing.assert_allclose([ours(s) for s in range(100)], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_plateau(mode: str) -> None:
    metrics = np.random.default_rng(0).uniform(0.5, 1.5, 100).round(1) * np.linspace(1.0, 0.9, 100)
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    options: dict[str, Any] = {"factor": 0.7, "patience": 2, "cooldown": 1, "mode": mode}
    theirs = S.ReduceLROnPlateau(optimiser, min_lr=1e-3, **options)
    ours = schedules.Plateau(1.0, minimum=1e-3, **options)
    for metric in metrics:
        theirs.step(metric)
        assert ours.report(metric) == pytest.approx(optimiser.param_groups[0]["lr"], abs=1e-12)
    assert ours.rate < 0.1


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize(
    ("ours_name", "theirs_name", "options"),
    [
        ("SGD", "SGD", {"lr": 0.05}),
        ("Adam", "SparseAdam", {"lr": 0.05, "eps": 1e-30}),  # which adds ε before the correction
        ("Adagrad", "Adagrad", {"lr": 0.1, "lr_decay": 0.01}),
    ],
)
@pytest.mark.parametrize("rows", [30, 10_000])
def test_sparse_rows(ours_name: str, theirs_name: str, options: dict[str, Any], rows: int) -> None:
    rng = np.random.default_rng(0)
    start = rng.uniform(1.0, 2.0, (rows, 3))
    table = ad.tensor(start, requires_grad=True)
    theirs = torch.nn.Embedding.from_pretrained(torch.tensor(start), freeze=False, sparse=True)
    our_optimiser = getattr(ad.optim, ours_name)([table], **options)
    their_optimiser = getattr(torch.optim, theirs_name)(theirs.parameters(), **options)
    for _ in range(100):
        index = rng.integers(0, 30, 5)
        our_optimiser.zero_grad()
        their_optimiser.zero_grad()
        (ad.take(table, index, axis=0, sparse_grad=True) ** 2).sum().backward()
        (theirs(torch.tensor(index)) ** 2).sum().backward()
        our_optimiser.step()
        their_optimiser.step()
        np.testing.assert_allclose(table.numpy(), theirs.weight.detach().numpy(), rtol=1e-10, atol=1e-10)


def test_groups_and_schedules_together() -> None:
    """Two groups with their own rates and decay, under a schedule, as PyTorch moves them."""
    rng = np.random.default_rng(0)
    start = [rng.uniform(5.0, 9.0, s) for s in ((2, 3), (4,), (7,))]
    ours = [ad.tensor(a, requires_grad=True) for a in start]
    theirs = [torch.tensor(a, requires_grad=True) for a in start]

    def groups(params: list[Any]) -> list[dict[str, Any]]:
        return [{"params": params[:2], "lr": 0.05}, {"params": params[2:], "lr": 0.2, "weight_decay": 0.1}]

    our_optimiser, their_optimiser = ad.optim.AdamW(groups(ours)), torch.optim.AdamW(groups(theirs))
    schedule = schedules.warmup(schedules.cosine(0.05, 90), 10, start=0.1)
    their_schedule = S.SequentialLR(
        their_optimiser,
        [S.LinearLR(their_optimiser, 0.1, 1.0, 10), S.CosineAnnealingLR(their_optimiser, 90)],
        [10],
    )
    for step in range(100):
        our_optimiser.lr = schedule(step)
        for params, optimiser in ((ours, our_optimiser), (theirs, their_optimiser)):
            optimiser.zero_grad()
            loss_of(params, step).backward()
            optimiser.step()
        their_schedule.step()
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("SGD", {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
        ("Adam", {"weight_decay": 0.1, "amsgrad": True}),
        ("AdamW", {}),
        ("NAdam", {"weight_decay": 0.1}),
        ("RMSprop", {"centered": True, "momentum": 0.9}),
        ("Adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.3}),
    ],
)
@pytest.mark.usefixtures("double")
def test_complex_parameters(kind: str, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    ours_options = {k.removesuffix("_accumulator_value"): v for k, v in options.items()}
    start = [rng.normal(size=s) + 1j * rng.normal(size=s) for s in ((2, 3), (), (17_000,))]
    ours = [ad.tensor(a, requires_grad=True) for a in start]
    theirs = [torch.tensor(a, requires_grad=True) for a in start]
    our_optimiser = getattr(ad.optim, kind)(ours, lr=0.05, **ours_options)
    their_optimiser = getattr(torch.optim, kind)(theirs, lr=0.05, **options)
    for step in range(30):
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if (step + i) % 4 == 3:
                a.grad = b.grad = None
                continue
            g = np.asarray(rng.normal(size=a.shape) + 1j * rng.normal(size=a.shape))
            a.grad, b.grad = ad.tensor(g), torch.tensor(g)
        our_optimiser.step()
        their_optimiser.step()
        if step == 13:
            saved = our_optimiser.state_dict()
            our_optimiser = getattr(ad.optim, kind)(ours, lr=0.05, **ours_options)
            our_optimiser.load_state_dict(saved)
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-10, atol=1e-10)
