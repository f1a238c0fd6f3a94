"""Clipping inside compiled steps is native code, equals eager mode at the edges, and raises without effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import optim
from adjoint.errors import NonFiniteError

pytest.importorskip("llvmlite")

INF = float("inf")
CLIPS: dict[str, Callable[[Any], Any]] = {
    "norm": lambda params: ad.clip_grad_norm(params, 1.0),
    "norm, allow": lambda params: ad.clip_grad_norm(params, 1.0, nonfinite="allow"),
    "sum": lambda params: ad.clip_grad_norm(params, 1.0, 1.0),
    "largest": lambda params: ad.clip_grad_norm(params, 0.5, INF),
    "largest, allow": lambda params: ad.clip_grad_norm(params, 0.5, INF, nonfinite="allow"),
    "third": lambda params: ad.clip_grad_norm(params, 1.0, 3.0),
    "root": lambda params: ad.clip_grad_norm(params, 1.0, 0.5),
    "value": lambda params: ad.clip_grad_value(params, 0.25),
    "value beyond float32": lambda params: ad.clip_grad_value(params, 1e300),
    "by group": lambda params: ad.clip_grad_norm_by_group({"a": params[:1], "b": params[1:]}, 0.5),
}
SHAPES: list[tuple[int, ...]] = [(3, 5), (5,), ()]


def make(clip: Callable[[Any], Any], dtype: str, shapes: Any = SHAPES) -> tuple[Any, list[Any], Any]:
    """Return a step whose gradients are its arguments, with its parameters and optimiser."""
    params = [ad.tensor(np.ones(s, dtype), requires_grad=True) for s in shapes]
    opt = optim.AdamW(params, lr=0.1)

    def step(*gradients: Any) -> Any:
        opt.zero_grad()
        sum((p * g).sum() for p, g in zip(params, gradients, strict=True)).backward()
        norm = clip(params)
        opt.step()
        return {"norm": norm, "grads": [p.grad for p in params]}

    return step, params, opt


def gradients(dtype: str, scale: float = 1.0, shapes: Any = SHAPES) -> list[Any]:
    r = np.random.default_rng(0)
    return [(r.normal(size=s) * scale).astype(dtype) for s in shapes]


def numbers(found: Any) -> list[Any]:
    return [np.asarray(v) for v in ad.tree.leaves(found) if v is not None]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CLIPS)
def test_equals_eager_mode(name: str, dtype: str) -> None:
    step, params, _ = make(CLIPS[name], dtype)
    compiled, own, _ = make(CLIPS[name], dtype)
    compiled = ad.compile(compiled)
    for scale in (1.0, 1e-3, 100.0, 0.0, 1e-30, 1e30, 1.0):
        with np.errstate(all="ignore"):
            expected, found = step(*gradients(dtype, scale)), compiled(*gradients(dtype, scale))
        for a, b in zip(numbers(expected), numbers(found), strict=True):
            np.testing.assert_allclose(b, a, 1e-6 if dtype == "float32" else 1e-13)
            assert a.dtype == b.dtype
    for a, b in zip(params, own, strict=True):
        np.testing.assert_allclose(b.numpy(), a.numpy(), 1e-5)
    assert "0 calls of NumPy" in compiled.explain()


@pytest.mark.parametrize("scale", [1e200, 1e-200, 1e-320])
def test_squares_beyond_float64(scale: float) -> None:
    """The sum of squares overflows or underflows: NumPy computes the norm, as in eager mode."""
    for clip in (CLIPS["norm"], CLIPS["norm, allow"], CLIPS["third"], CLIPS["by group"]):
        step, _, _ = make(clip, "float64")
        compiled, _, _ = make(clip, "float64")
        compiled = ad.compile(compiled)
        for size in (1.0, scale, 1.0):
            for a, b in zip(
                numbers(step(*gradients("f8", size))), numbers(compiled(*gradients("f8", size))), strict=True
            ):
                np.testing.assert_allclose(b, a, 1e-13)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["norm", "sum", "largest", "third", "by group"])
def test_raises_and_changes_nothing(name: str, dtype: str, bad: float) -> None:
    step, params, opt = make(CLIPS[name], dtype)
    compiled = ad.compile(step)
    for _ in range(4):
        compiled(*gradients(dtype))
    before = [p.numpy(copy=True) for p in params], opt.state_dict()
    wrong = gradients(dtype)
    wrong[1][2] = bad
    with pytest.raises(NonFiniteError, match="not finite"), np.errstate(all="ignore"):
        compiled(*wrong)
    assert all((p.numpy() == b).all() for p, b in zip(params, before[0], strict=True))
    assert str(opt.state_dict()) == str(before[1])
    compiled(*gradients(dtype))
    assert compiled.stats()["traces"] == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["norm, allow", "largest, allow", "value"])
def test_values_that_are_not_finite_are_kept(name: str, dtype: str, bad: float) -> None:
    step, _, _ = make(CLIPS[name], dtype)
    compiled, _, _ = make(CLIPS[name], dtype)
    compiled = ad.compile(compiled)
    wrong = gradients(dtype)
    wrong[0][1, 1] = bad
    with np.errstate(all="ignore"):
        for given in (gradients(dtype), gradients(dtype), gradients(dtype), wrong):
            for a, b in zip(numbers(step(*given)), numbers(compiled(*given)), strict=True):
                np.testing.assert_allclose(b, a, 1e-6)


def test_the_first_error_is_raised() -> None:
    """A later call of Python raises for the same gradients, before the checks of native code are read."""
    step, _, _ = make(lambda params: (ad.clip_grad_norm(params, 1.0), ad.clip_grad_adaptive(params)), "f8")
    compiled = ad.compile(step, backend="native")
    wrong = gradients("f8")
    wrong[1][2] = np.nan
    for given in (gradients("f8"), gradients("f8")):
        compiled(*given)
    with pytest.raises(NonFiniteError, match=r"clip_grad_norm: .*\[1\]"), np.errstate(all="ignore"):
        compiled(*wrong)


def test_gradients_below_the_bound_keep_their_bits() -> None:
    step, _, _ = make(lambda params: ad.clip_grad_norm(params, 1e9), "float32")
    compiled = ad.compile(step)
    given = gradients("float32")
    for _ in range(4):
        found = compiled(*given)
    for a, b in zip(found["grads"], given, strict=True):
        assert a.numpy().tobytes() == b.tobytes()


def test_empty_gradients_and_none() -> None:
    shapes = [(0, 3), (2,)]
    for name in ("norm", "largest", "value"):
        step, _, _ = make(CLIPS[name], "float64", shapes)
        compiled, _, _ = make(CLIPS[name], "float64", shapes)
        compiled = ad.compile(compiled)
        for _ in range(4):
            pair = step(*gradients("f8", 1.0, shapes)), compiled(*gradients("f8", 1.0, shapes))
            for a, b in zip(*map(numbers, pair), strict=True):
                np.testing.assert_allclose(b, a, 1e-13)


def test_clipping_inside_a_loop_is_native() -> None:
    """An epoch by ``ad.scan`` with clipping is one kernel, and raises for a batch that is not finite."""

    def make_epoch() -> tuple[Any, Any]:
        w = ad.tensor(np.ones(4), requires_grad=True)
        opt = optim.SGD([w], lr=0.1, momentum=0.9)

        def epoch(xs: Any) -> Any:
            def body(total: Any, x: Any) -> Any:
                opt.zero_grad()
                loss = ((w * x).sum() - 1) ** 2
                loss.backward()
                norm = ad.clip_grad_norm([w], 0.5)
                opt.step()
                return total + loss.detach(), norm

            return ad.scan(body, 0.0, xs)

        return epoch, w

    xs = np.random.default_rng(0).normal(size=(7, 4))
    (eager, w), (native, own) = make_epoch(), make_epoch()
    compiled = ad.compile(native)
    for _ in range(4):
        for a, b in zip(numbers(eager(xs)), numbers(compiled(xs)), strict=True):
            np.testing.assert_allclose(b, a, 1e-12)
    np.testing.assert_allclose(own.numpy(), w.numpy(), 1e-12)
    assert "0 calls of NumPy" in compiled.explain()
    before = own.numpy(copy=True)
    with pytest.raises(NonFiniteError), np.errstate(all="ignore"):
        compiled(np.where(np.arange(28).reshape(7, 4) == 21, np.nan, xs))
    assert (own.numpy() == before).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_that_are_all_zero_stay_native(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, _, _ = make(CLIPS["norm"], dtype)
    compiled = ad.compile(step)
    for _ in range(3):
        compiled(*gradients(dtype))
    monkeypatch.setitem(compiled._variants[0].native.__dict__, "replayed", None)  # what a failed check runs
    found = compiled(*gradients(dtype, 0.0))
    assert found["norm"] == 0 and not any(g.numpy().any() for g in found["grads"])
