"""``GradScaler`` inside compiled steps: the state of the scaler and the parameters are those of eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn, optim
from adjoint.compiler.emit import machine

BACKENDS = ["replay", *(["native", "auto"] if machine.levels() else [])]
CLOSE = {"f4": 1e-4, "f2": 2e-2}
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


class Training:
    """A model, its optimisers and a scaler; ``steps`` has functions that make one update in different ways."""

    def __init__(self, dtype: str = "f4", **options: Any) -> None:
        self.model = nn.Sequential(
            nn.Linear(6, 8, rng=0), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 3, rng=1)
        ).astype(np.dtype(dtype))
        self.first = optim.AdamW(self.model[0].parameters(), lr=1e-2, eps=1e-3)
        self.second = optim.SGD(self.model[2:].parameters(), lr=1e-2, momentum=0.9)
        self.scaler = ad.GradScaler(**{"init_scale": 64.0, "growth_interval": 3, **options})
        self.average = ad.tensor(np.zeros((), "f4"))

    def loss(self, x: Any, y: Any) -> Any:
        for o in (self.first, self.second):
            o.zero_grad()
        loss = ((self.model(x) - y) ** 2).mean()
        self.scaler.scale(loss).backward()
        return loss

    def plain(self, x: Any, y: Any) -> Any:
        loss = self.loss(x, y)
        taken = [self.scaler.step(o) for o in (self.first, self.second)]
        self.scaler.update()
        return loss, taken

    def clipped(self, x: Any, y: Any) -> Any:
        loss = self.loss(x, y)
        finite = self.scaler.unscale(self.first)
        norm = ad.clip_grad_norm(self.model[0].parameters(), 0.1, nonfinite="allow")
        for o in (self.first, self.second):
            self.scaler.step(o)
        self.scaler.update()
        return loss, norm, finite

    def branching(self, x: Any, y: Any) -> Any:
        loss = self.loss(x, y)
        if self.scaler.step(self.first) and self.scaler.step(self.second):
            with ad.no_grad():
                self.average.copy_(self.average * 0.5 + 1.0)
        self.scaler.update()
        return loss

    def ends_outside(self, x: Any, y: Any) -> Any:
        loss = self.loss(x, y)
        self.scaler.step(self.first)
        self.scaler.unscale(self.second)
        return loss

    def state(self) -> tuple[Any, list[Any]]:
        counts = [o.step_count for o in (self.first, self.second)]
        arrays = [*self.model.state_dict().values(), self.average]
        for o in (self.first, self.second):
            arrays += [a for a in ad.tree.leaves(o.state_dict()) if isinstance(a, np.ndarray)]
        exact = [
            self.scaler.state_dict(),
            counts,
            self.scaler._open,
            len(self.scaler._found),
            len(self.scaler._stepped),
        ]
        return exact, [np.asarray(a.numpy() if isinstance(a, ad.Tensor) else a) for a in arrays]


def leaves(value: Any) -> list[Any]:
    found = ad.tree.leaves(value)
    return [v.detach().numpy().astype(float) if isinstance(v, ad.Tensor) else v for v in found]


def compare(step: str, backend: str, dtype: str = "f4", **options: Any) -> Any:
    """Make updates eager and compiled, some of them with gradients that overflow."""
    eager, other = Training(dtype, **options), Training(dtype, **options)
    compiled = ad.compile(getattr(other, step), backend=backend)
    rng = np.random.default_rng(0)
    for k in range(14):
        x, y = rng.normal(size=(5, 6)), rng.normal(size=(5, 3))
        y[0, 0] = {4: np.inf, 5: np.nan, 9: 3e38 if dtype == "f4" else 6e4}.get(k, y[0, 0])
        given = [ad.tensor(a.astype(dtype)) for a in (x, y)]
        found, wanted = compiled(*given), getattr(eager, step)(*given)
        for a, b in zip(leaves(found), leaves(wanted), strict=True):
            assert type(a) is type(b)
            np.testing.assert_allclose(a, b, rtol=CLOSE[dtype], atol=1e-3)
        for training in (eager, other):
            if training.scaler._open:
                training.scaler.step(training.second)
                training.scaler.update()
        (exact, arrays), (wanted_exact, wanted_arrays) = other.state(), eager.state()
        assert exact == wanted_exact, k
        for a, b in zip(arrays, wanted_arrays, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=CLOSE[dtype], atol=CLOSE[dtype])
    assert compiled.stats()["traces"] == 1, compiled.stats()["reasons"]
    return other, compiled


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("step", ["plain", "clipped", "branching", "ends_outside"])
def test_updates_are_those_of_eager_mode(step: str, backend: str) -> None:
    compare(step, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_float16_and_options(backend: str) -> None:
    compare("plain", backend, "f2")
    compare("branching", backend, enabled=False)
    trained, _ = compare("plain", backend, growth_interval=1, growth_factor=4.0)
    assert trained.scaler.get_scale() > 64.0 * 4.0**4


def test_the_step_stays_in_the_native_entry() -> None:
    pytest.importorskip("llvmlite")
    trained, compiled = compare("plain", "native")
    native: Any = compiled._variants[0].execute.native
    assert native.writes_all
    assert (vars(trained.scaler), "_good") in native.writes.counters
    assert "0 calls of NumPy" in compiled.explain()


def errors(f: Callable[[Training, Any, Any], Any], error: type[Exception], text: str) -> None:
    t = Training()
    x, y = ad.tensor(np.ones((5, 6), "f4")), ad.tensor(np.ones((5, 3), "f4"))
    before = t.state()
    with pytest.raises(error, match=text):
        ad.compile(lambda x, y: f(t, x, y))(x, y)
    after = t.state()
    assert before[0] == after[0]
    assert all(np.array_equal(a, b) for a, b in zip(before[1], after[1], strict=True))


def test_misuse_raises_as_in_eager_mode() -> None:
    def twice(t: Training, x: Any, y: Any) -> None:
        t.loss(x, y)
        t.scaler.unscale(t.first)
        t.scaler.unscale(t.first)

    def stepped(t: Training, x: Any, y: Any) -> None:
        t.loss(x, y)
        t.scaler.step(t.first)
        t.scaler.step(t.first)

    def early(t: Training, x: Any, y: Any) -> None:
        t.loss(x, y)
        t.scaler.update()

    def new(t: Training, x: Any, y: Any) -> None:
        t.plain(x, y)
        t.scaler.update(8.0)

    def again(t: Training, x: Any, y: Any) -> None:
        t.plain(x, y)
        t.plain(x, y)

    def looped(t: Training, x: Any, y: Any) -> None:
        def body(k: Any, total: Any) -> Any:
            t.plain(x, y)
            return total

        ad.fori_loop(0, 3, body, ad.tensor(0.0))

    accumulation, transform = ad.errors.AccumulationError, ad.errors.TransformError
    errors(twice, accumulation, "were already unscaled since the last update")
    errors(stepped, accumulation, "was already stepped since the last update")
    errors(early, accumulation, "no optimiser was stepped or unscaled")
    errors(new, transform, r"update\(new_scale\) of a GradScaler cannot be used inside ad\.compile")
    errors(again, transform, r"a GradScaler after its update\(\) cannot be used inside ad\.compile")
    errors(
        looped, transform, r"a GradScaler (in a loop|after its update\(\)) cannot be used inside ad\.compile"
    )


def test_an_update_that_began_outside() -> None:
    t = Training()
    x, y = ad.tensor(np.ones((5, 6), "f4")), ad.tensor(np.ones((5, 3), "f4"))
    compiled = ad.compile(t.plain)
    compiled(x, y)
    t.loss(x, y)
    t.scaler.unscale(t.first)
    with pytest.raises(ad.errors.TransformError, match=r"a GradScaler after unscale\(\) or step\(\) outside"):
        compiled(x, y)
    t.scaler.update()
    compiled(x, y)


def test_a_compiled_count_grows_the_scale_for_all_readers() -> None:
    def trained() -> ad.GradScaler:
        t = Training(growth_interval=2)
        compiled = ad.compile(t.plain)
        for _ in range(2):
            compiled(ad.tensor(np.ones((5, 6), "f4")), ad.tensor(np.ones((5, 3), "f4")))
        return t.scaler

    assert trained().get_scale() == 128.0
    assert trained().state_dict()["scale"] == 128.0
    assert trained().scale_at(None) == 128.0
    assert trained().scale(ad.tensor(1.0)).item() == 128.0
    assert "128" in repr(trained())
    scaler = trained()
    scaler.record(finite=False)
    assert scaler.get_scale() == 64.0
