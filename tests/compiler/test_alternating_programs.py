"""Several programs for arguments of the same shapes: calls that alternate between them skip the general path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn

X = np.linspace(-1, 1, 12).reshape(4, 3)


class Case:
    """A model, and a function of an array and a number that has a program for each of some states."""

    def __init__(self) -> None:
        self.model = nn.Linear(3, 2, dtype=np.float64, rng=0)
        self.drop = nn.Dropout(0.5, rng=1)
        self.scale = "small"

    def f(self, x: Any, k: Any = 0) -> Any:
        h = self.model(x) * (2.0 if k % 3 == 0 else 0.5)
        return (h * {"small": 0.1, "large": 10.0}[self.scale] if self.model.training else h).sum()


def modes(case: Case, run: Any, k: int) -> Any:
    case.model.train(k % 2 == 0)
    return run(X)


def integers(case: Case, run: Any, k: int) -> Any:
    with ad.no_grad():  # a recorded call with numbers takes the general path
        return run(X, k)


def flags(case: Case, run: Any, k: int) -> Any:
    return run(X, k % 2 == 0)


def attributes(case: Case, run: Any, k: int) -> Any:
    case.scale = "large" if k % 2 else "small"
    return run(X)


def grads(case: Case, run: Any, k: int) -> Any:
    with ad.enable_grad() if k % 2 else ad.no_grad():
        return run(X)


def frozen(case: Case, run: Any, k: int) -> Any:
    case.model.weight.requires_grad_(k % 2 == 0)
    return run(ad.tensor(X))


def lengths(case: Case, run: Any, k: int) -> Any:
    with ad.no_grad():
        return run(X[: 2 + k % 2], k)


ALTERNATIONS = (modes, integers, flags, attributes, grads, frozen, lengths)


@pytest.mark.parametrize("backend", ["replay", "native"])
@pytest.mark.parametrize("alternate", ALTERNATIONS, ids=lambda f: f.__name__)
def test_calls_alternate_between_programs(
    alternate: Callable[..., Any], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "native":
        pytest.importorskip("llvmlite")
    case = Case()
    compiled = ad.compile(case.f, backend=backend)
    for k in range(24):
        found, wanted = alternate(case, compiled, k), alternate(case, case.f, k)
        np.testing.assert_allclose(
            np.asarray(ad.asarray(found).detach()), np.asarray(ad.asarray(wanted).detach())
        )
    monkeypatch.setattr(type(compiled), "_call", None)  # the general path
    for k in range(6):
        assert float(ad.asarray(alternate(case, compiled, k)).detach()) == pytest.approx(
            float(ad.asarray(alternate(case, case.f, k)).detach())
        )


def test_an_index_that_is_out_of_range_has_the_message_of_its_program() -> None:
    compiled = ad.compile(lambda x, i, flag: x[i] * 2 if flag else x[:2][i], backend="replay")
    x = ad.tensor(np.arange(5.0))
    for k in range(6):
        compiled(x, np.array([0, 1]), k % 2 == 0)
    for flag, size in ((True, 5), (False, 2), (True, 5)):
        with pytest.raises(IndexError, match=f"length {size}"):
            compiled(x, np.array([7]), flag)
        with pytest.raises(IndexError, match=f"length {size}"):
            compiled(x, np.array([0, 7]), flag)
