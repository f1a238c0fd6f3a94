"""Weights beyond the range of the dtype of the sums: the mean is the weighted mean."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import adjoint as ad
from adjoint.errors import NoGradientError


def window(
    pairs: list[tuple[float, float]], kind: str = "dense", dtype: Any = np.float32, **options: Any
) -> Any:
    acc = ad.GradientAccumulator(accumulation_steps=len(pairs), **options)
    acc.register("w", (3, 1), dtype)
    for weight, value in pairs:
        g: Any = np.full((3, 1), value, dtype)
        acc.step({"w": ad.sparse_gradient([0, 1, 2], g, (3, 1)) if kind == "sparse" else g}, weight=weight)
    return acc


@pytest.mark.parametrize("kind", ["dense", "sparse", "compensated"])
@pytest.mark.parametrize(
    "weights",
    [[1e-46], [1e-45], [1e-46, 3e-46], [1e39], [1e39, 3e39], [1e-46, 1.0], [1.0, 1e-46], [1e-300, 1e300],
     [1e300, 1e-300], [5e-324], [0.0, 1e-60, 1.0], [1e-60, 1e-20, 1e20, 1e60]],
)  # fmt: skip
def test_weights_beyond_the_dtype_of_the_sum(weights: list[float], kind: str) -> None:
    values = [1.0, 3.0, -2.0, 5.0][: len(weights)]
    top = max(weights)
    scaled = [w / top for w in weights]
    expected = sum(w * v for w, v in zip(scaled, values, strict=True)) / sum(scaled)
    acc = window(list(zip(weights, values, strict=True)), kind, compensated=kind == "compensated")
    np.testing.assert_allclose(np.asarray(acc.gradients()["w"]), np.full((3, 1), expected), rtol=1e-6)
    resumed = ad.GradientAccumulator(accumulation_steps=len(weights), compensated=kind == "compensated")
    resumed.register("w", (3, 1), np.float32)
    resumed.load_state_dict(acc.state_dict())
    for each in (acc, resumed):
        seen: list[Any] = []
        assert each.apply(lambda grads: seen.append(np.asarray(grads["w"])))  # noqa: B023
        np.testing.assert_allclose(seen[0], np.full((3, 1), expected), rtol=1e-6)
    if kind != "sparse":
        buffer = ad.GradientBuffer((3, 1), np.float32, compensated=kind == "compensated")
        for w, v in zip(weights, values, strict=True):
            buffer.add(np.full((3, 1), v, np.float32), weight=w)
        np.testing.assert_allclose(buffer.get(), np.full((3, 1), expected), rtol=1e-6)


@pytest.mark.parametrize(("weight", "value"), [(1e-46, 1e-40), (1e39, 1e38), (1e-200, 1e-30)])
def test_divisors_beyond_the_dtype_of_the_sum(weight: float, value: float) -> None:
    acc = window([(weight, value)], reduction="sum")
    expected = np.float64(np.float32(value)) / weight
    if expected > 1e38:
        with pytest.raises(ad.errors.NonFiniteError):
            acc.gradients()
    else:
        np.testing.assert_allclose(acc.gradients()["w"], np.full((3, 1), expected), rtol=1e-6, atol=1e-45)


@given(
    st.lists(
        st.tuples(st.floats(-300, 300), st.integers(-4, 4)), min_size=1, max_size=5
    ),
    st.sampled_from(["dense", "sparse", "compensated"]),
    st.sampled_from([np.float32, np.float64]),
)  # fmt: skip
def test_any_weights_give_the_weighted_mean(pairs: list[tuple[float, int]], kind: str, dtype: Any) -> None:
    given_pairs = [(10.0**exponent, float(value)) for exponent, value in pairs]
    top = max(w for w, _ in given_pairs)
    expected = sum(w / top * v for w, v in given_pairs) / sum(w / top for w, _ in given_pairs)
    acc = window(given_pairs, kind, dtype, compensated=kind == "compensated")
    found = np.asarray(acc.gradients()["w"])
    np.testing.assert_allclose(found, np.full((3, 1), expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compensated", [False, True])
@pytest.mark.parametrize("kind", ["dense", "sparse", "buffer", "later"])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize(
    "pairs",
    [[(7.0, 1e30), (1e60, 0.0)], [(1e60, 0.0), (7.0, 1e30)], [(7.0, 1e35), (1e60, 1e-20)], [(1e-15, 1e-31)],
     [(1e15, 1e31)], [(1e-300, 1e37), (1e-240, 0.0)]],
)  # fmt: skip
def test_no_micro_batch_is_lost_beside_a_large_weight(
    pairs: list[tuple[float, float]], dtype: Any, kind: str, compensated: bool
) -> None:
    """The quotient of two weights may be outside the range of float32 although the product is not."""
    expected = _mean(pairs)
    if kind == "buffer":
        buffer = ad.GradientBuffer((3, 1), dtype, compensated=compensated)
        for weight, value in pairs:
            buffer.add(np.full((3, 1), value, dtype), weight=weight)
        found = buffer.get()
    elif kind == "later":  # a shared array whose first gradient comes with the last micro-batch
        acc = ad.GradientAccumulator(accumulation_steps=len(pairs), compensated=compensated)
        for name in "abw":
            acc.register(name, (2,), dtype)
        for i, (weight, value) in enumerate(pairs):
            g = np.full(2, value, dtype)
            acc.step({"a": g, "b": g, "w": g} if i or len(pairs) == 1 else {"w": g}, weight=weight)
        found = acc.gradients()["w"]
    else:
        found = np.asarray(window(pairs, kind, dtype, compensated=compensated).gradients()["w"])
    np.testing.assert_allclose(found.real, np.full(found.shape, expected), rtol=1e-6)


def _mean(pairs: list[tuple[float, float]]) -> float:
    exact = [(Fraction(w), Fraction(float(np.float32(v)))) for w, v in pairs]
    return float(sum(w * v for w, v in exact) / sum(w for w, _ in exact))


@given(
    st.lists(st.tuples(st.floats(-300, 300), st.floats(-37, 37)), min_size=1, max_size=4),
    st.sampled_from(["dense", "sparse", "compensated"]),
)
def test_any_weights_and_values_give_the_weighted_mean_or_an_error(
    pairs: list[tuple[float, float]], kind: str
) -> None:
    given_pairs = [(10.0**exponent, 10.0**value) for exponent, value in pairs]
    acc = window(given_pairs, kind, np.float32, compensated=kind == "compensated", nonfinite="allow")
    found = np.asarray(acc.gradients()["w"])
    if np.isfinite(found).all():  # the sum itself may overflow, which is an error unless it is allowed
        np.testing.assert_allclose(found, np.full((3, 1), _mean(given_pairs)), rtol=1e-5, atol=1e-37)


def test_a_window_whose_weights_are_zero_has_no_gradient() -> None:
    acc = window([(0.0, 1.0), (0.0, 2.0)])
    with pytest.raises(NoGradientError):
        acc.gradients()
    assert not acc.apply(pytest.fail)


@pytest.mark.parametrize("seed", range(60))
def test_random_windows_give_the_weighted_mean(seed: int) -> None:
    """Any mixture of dense and sparse gradients, missing parameters and weights, window after window."""
    rng = np.random.default_rng(seed)
    shapes = {"a": (3,), "b": (4, 2), "c": (9000,), "d": (), "table": (5, 2), "e": (2, 2)}
    reduction = str(rng.choice(["mean", "sum"]))
    options: Any = {"reduction": reduction, "compensated": bool(rng.random() < 0.3)}
    options["nonfinite"] = str(rng.choice(["raise", "allow", "skip"]))
    dtype = rng.choice([np.float32, np.float64])

    def made() -> Any:
        acc = ad.GradientAccumulator(accumulation_steps=4, **options)
        for name, shape in shapes.items():
            acc.register(name, shape, dtype)
        return acc

    acc, kept = made(), []
    for _ in range(5):
        sums = {name: np.zeros(shape) for name, shape in shapes.items()}
        used, total = set(), 0.0
        scale = 10.0 ** rng.choice([0, 0, -50, 40]) if reduction == "mean" else 1.0
        for _ in range(4):
            weight = float(rng.integers(1, 9)) * scale
            names = [n for n in shapes if rng.random() < 0.8] if rng.random() < 0.5 else list(shapes)
            micro = {}
            for name in names or ["a"]:
                g = rng.standard_normal(shapes[name]).astype(dtype)
                used.add(name)
                if name == "table" and rng.random() < 0.5:
                    rows = rng.integers(0, 5, 3)
                    micro[name] = ad.sparse_gradient(rows, g[:3], (5, 2))
                    g = np.asarray(micro[name])
                else:
                    micro[name] = np.asarray(g)
                sums[name] += g * (weight if reduction == "mean" else 1.0)
            total += weight
            acc.step(micro, weight=weight)
            if rng.random() < 0.2:
                state, acc = acc.state_dict(), made()
                acc.load_state_dict(state)
        expected = {name: sums[name] / total for name in shapes if name in used}
        for name, g in acc.gradients().items():
            np.testing.assert_allclose(np.asarray(g), expected[name], rtol=2e-5, atol=1e-5)
        seen: dict[str, Any] = {}
        assert acc.apply(seen.update)
        if rng.random() < 0.5:
            kept.append((seen, {name: np.array(g) for name, g in seen.items()}))
        assert set(seen) == set(expected)
        for name, g in seen.items():
            np.testing.assert_allclose(np.asarray(g), expected[name], rtol=2e-5, atol=1e-5)
    for held, values in kept:  # what an optimiser kept has not changed
        for name, value in values.items():
            np.testing.assert_array_equal(np.asarray(held[name]), value)
