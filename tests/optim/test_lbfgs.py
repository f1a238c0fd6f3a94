"""L-BFGS: its line search, its state, closures that do half their work."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from messages import raised

import adjoint as ad
from adjoint import errors, optim


def test_a_closure_of_lbfgs_that_does_half_its_work() -> None:
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    opt = ad.optim.LBFGS([w])
    with pytest.raises(errors.NoGradientError) as info:
        opt.step(lambda: (w**2).sum())
    assert str(info.value) == (
        "LBFGS: no parameter has a gradient after closure().\n"
        "  It must compute a loss from the parameters, call loss.backward() and return the "
        "loss."
    )
    with pytest.raises(errors.InputError, match="must return the loss, one number, but returned None"):
        opt.step(lambda: (w**2).sum().backward())  # type: ignore[arg-type]
    with pytest.raises(errors.InputError, match=r"returned shape \(2,\)"):
        opt.step(lambda: w**2)

    def infinite() -> ad.Tensor:
        loss = (w * np.inf).sum()
        loss.backward()
        return loss

    with pytest.raises(errors.NonFiniteError, match="the initial loss is inf"):
        opt.step(infinite)
    assert w.numpy().tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="lr must be positive"):
        ad.optim.LBFGS([w], lr=0.0)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_lbfgs_moves_both_parts_of_complex_parameters(dtype: Any) -> None:
    z = ad.tensor(np.array([[1 + 1j, 2 - 1j]], dtype), requires_grad=True)
    w = ad.tensor([3.0], requires_grad=True)
    opt = optim.LBFGS([z, w], max_iter=50)

    def closure() -> ad.Tensor:
        loss = (abs(z - (2 - 3j)) ** 2 * np.array([1.0, 3.0])).sum() + (w - z.imag.sum()).square().sum()
        loss.backward()
        return loss

    assert opt.step(closure) < 1e-6
    np.testing.assert_allclose(z.numpy(), np.full((1, 2), 2 - 3j), atol=1e-3)
    np.testing.assert_allclose(w.numpy(), [-6.0], atol=1e-3)
    again = optim.LBFGS([z, w])
    again.load_state_dict(opt.state_dict())
    assert [rho for _, _, rho in opt.pairs] == [rho for _, _, rho in again.pairs]


def test_lbfgs_refuses_a_state_that_is_not_its_own() -> None:
    opt = optim.LBFGS([ad.tensor([1.0, 2.0], requires_grad=True)])
    good = np.ones(2)
    for state, text in (
        (
            {},
            'LBFGS: the state must have the keys "pairs" and "iterations".\n'
            "  Pass the value that state_dict() returned.",
        ),
        (
            {"pairs": [(np.ones(3), np.ones(3))], "iterations": 1},
            "LBFGS: pair 0 of the state has shape (3,), needs (2,).",
        ),
        ({"pairs": [(good,)], "iterations": 1}, "LBFGS: pair 0 of the state does not have two arrays."),
        (
            {"pairs": [(good, -good)], "iterations": 1},
            "LBFGS: the curvature of pair 0 of the state must be above 0, but is -2.0.",
        ),
        ({"pairs": [], "iterations": "x"}, "LBFGS: iterations must be an integer, but got 'x'."),
    ):
        assert raised(lambda state=state: opt.load_state_dict(state)) == text
    assert not opt.pairs and opt.iterations == 0


def test_lbfgs_gives_the_parameters_back_when_its_closure_fails() -> None:
    w = ad.tensor([-1.2, 1.0], requires_grad=True)
    optimiser = ad.optim.LBFGS([w], max_iter=20)
    calls: list[int] = []

    def closure() -> Any:
        calls.append(1)
        if len(calls) == 7:
            raise RuntimeError("seventh")
        optimiser.zero_grad()
        loss = (1 - w[0]) ** 2 + 100 * (w[1] - w[0] ** 2) ** 2
        loss.backward()
        return loss

    with pytest.raises(RuntimeError, match="seventh"):
        optimiser.step(closure)
    assert w.tolist() == [-1.2, 1.0] and not optimiser.pairs


def test_lbfgs_does_not_step_into_a_gap_where_the_loss_is_nan():
    x = ad.tensor([0.0], requires_grad=True)
    optimizer = optim.LBFGS([x])

    def closure():
        v = float(x.detach().numpy()[0])
        factor, shift = (-1.0, 0.0) if v <= 0.02 else (1.0, 5.0) if v >= 0.98 else (math.nan, 0.0)
        x.grad = None
        loss = (x * factor + shift).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert 0.0 <= float(x.detach().numpy()[0]) <= 0.02


def test_lbfgs_does_not_step_to_where_there_is_no_gradient() -> None:
    x = ad.tensor([4.0], requires_grad=True)
    optimizer = optim.LBFGS([x])

    def closure() -> ad.Tensor:
        optimizer.zero_grad()
        loss = (x**2).sum()
        loss.backward()
        if abs(x.item()) < 3:  # as with a square root at 0
            x.grad = ad.tensor([math.nan])
        return loss

    assert optimizer.step(closure) == x.item() ** 2
    assert x.item() >= 3
