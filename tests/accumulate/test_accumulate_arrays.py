"""What an accumulator takes for a gradient, and how large ones are added."""

from __future__ import annotations

import array
import tracemalloc

import numpy as np
import pytest
from accumulators import accumulator

import adjoint as ad
from adjoint.accumulate import sums
from adjoint.errors import (
    DTypeError,
    InputError,
    ShapeError,
)
from adjoint.grads import norm


@pytest.mark.parametrize(
    "grad",
    [
        np.array([1.0, 2.0]),
        np.array([0.0, 1.0, 9.0, 2.0])[1::2],
        np.array([1.0, 2.0], ">f8"),
        ad.tensor([1.0, 2.0]),
        ad.tensor([1.0, 2.0], requires_grad=True) * 1.0,
        array.array("d", [1.0, 2.0]),
        memoryview(array.array("d", [1.0, 2.0])),
        [1, 2],
        (1.0, 2.0),
    ],
    ids=lambda grad: type(grad).__name__,
)
def test_arrays_of_every_kind(grad):
    acc = accumulator("w", accumulation_steps=2)
    for _ in range(2):
        acc.step({"w": grad}, weight=3)
    np.testing.assert_array_equal(acc.gradients()["w"], [1.0, 2.0])


class OnlyDLPack:
    def __init__(self, data):
        self._data = data

    def __dlpack__(self, **options):
        return self._data.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._data.__dlpack_device__()


def test_dlpack():
    acc = accumulator("w", accumulation_steps=1)
    acc.step({"w": OnlyDLPack(np.array([1.0, 2.0], np.float32))})
    assert acc.gradients()["w"].dtype == np.float32


@pytest.mark.parametrize(
    "bad",
    [
        None,
        "12",
        object(),
        {"a": 1},
        np.array(["1", "2"]),
        ["1", "2"],
        [[1.0], [1.0, 2.0]],
        np.array([1.0, None]),
        np.zeros(2, "M8[s]"),
        np.ma.array([1.0, 2.0], mask=[False, True]),
    ],
)
def test_what_is_no_gradient(bad):
    acc = accumulator("w")
    for add in (lambda: acc.step({"w": bad}), lambda: acc.accumulate("w", bad)):
        with pytest.raises((InputError, DTypeError, ShapeError), match=r"^'w': "):
            add()


@pytest.mark.parametrize("bad", [np.array([1, 2]), np.array([True, False])])
def test_whole_numbers_are_no_gradients(bad):
    with pytest.raises(DTypeError, match="must have a float or complex dtype"):
        accumulator("w").step({"w": bad})


def test_a_parameter_in_the_place_of_its_gradient_is_refused():
    """The weights themselves were summed."""
    acc = accumulator("w")
    with pytest.raises(InputError) as info:
        acc.step({"w": ad.tensor([1.0, 2.0], requires_grad=True)})
    assert str(info.value) == (
        "'w': this is a parameter, not its gradient.\n"
        "  Pass its .grad: {name: p.grad for name, p in model.named_parameters() if p.grad is not None}."
    )
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    (g,) = ad.gradients((w * w).sum(), [w], create_graph=True)  # one that can be differentiated is none
    acc.step({"w": g})
    np.testing.assert_array_equal(acc.gradients()["w"], [2.0, 4.0])


def test_trees_of_gradients_are_flattened_by_their_owner():
    acc = accumulator("layer")
    with pytest.raises(InputError) as info:
        acc.step({"layer": {"w": np.zeros(2), "b": np.zeros(2)}})
    assert str(info.value) == (
        "'layer': a gradient must be an array, not a dictionary.\n"
        "  Leave out parameters without a gradient.  Register each array of nested dictionaries under a "
        "name of its own, such as 'layer.weight'."
    )


def test_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    acc = accumulator("v", "w", accumulation_steps=2)
    g = np.array([1.0, 2.0], ml_dtypes.bfloat16)
    acc.step({"v": g, "w": g}, weight=2)
    acc.step({"v": g, "w": g}, weight=3)
    assert acc.gradients()["w"].dtype == np.float32
    np.testing.assert_array_equal(acc.gradients()["w"], [1.0, 2.0])


def test_complex_gradients():
    acc = accumulator("w", accumulation_steps=2, max_grad_norm=1.0)
    acc.step({"w": np.array([3 + 4j, 0j])})
    acc.step({"w": np.array([3 + 4j, 0j])})
    np.testing.assert_allclose(acc.gradients()["w"], [0.6 + 0.8j, 0])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 4)])
def test_shapes_at_the_edge(shape):
    acc = accumulator("a", "b", shape=shape, accumulation_steps=2)
    g = np.ones(shape)
    for weight in (1, 3):
        acc.step({"a": g, "b": g}, weight=weight)
    np.testing.assert_array_equal(acc.gradients()["a"], g)


def test_large_and_strided_gradients():
    rng = np.random.default_rng(0)
    base = rng.standard_normal((300, 400))
    acc = accumulator("w", shape=(400, 300), accumulation_steps=3)
    for weight in (2, 3, 4):
        acc.step({"w": base.T}, weight=weight)
    np.testing.assert_allclose(acc.gradients()["w"], base.T, rtol=1e-15)


def test_a_million_half_precision_gradients():
    g = np.full(1_000_000, 1e-3, np.float16)
    exact = float(g[0])
    acc = accumulator("w", shape=(1_000_000,), accumulation_steps=1000, nonfinite="allow", normalize=False)
    for _ in range(1000):
        acc.step({"w": g})
    total = acc.gradients()["w"].astype(np.float64)
    assert np.abs(total / (1000 * exact) - 1).max() < 1e-6
    half = np.float16(0)
    for _ in range(1000):
        half = np.float16(half + g[0])
    assert abs(float(half) / (1000 * exact) - 1) > 1e-3


def test_compensated_sums_lose_nothing():
    values = np.random.default_rng(0).standard_normal((3000, 5)).astype(np.float32)
    values[0] = 1e6
    exact = values.astype(np.float64).sum(0)
    errors = {}
    for compensated in (False, True):
        acc = accumulator("w", shape=(5,), accumulation_steps=3000, normalize=False, compensated=compensated)
        for g in values:
            acc.step({"w": g})
        errors[compensated] = np.abs(acc.gradients()["w"] / exact - 1).max()
    assert errors[True] < 6e-8 < errors[False]


def test_compensated_with_infinities_stays_infinite():
    acc = accumulator("w", accumulation_steps=2, nonfinite="allow", compensated=True)
    acc.step({"w": [np.inf, 1.0]})
    acc.step({"w": [1.0, 1.0]})
    np.testing.assert_array_equal(acc.gradients()["w"], [np.inf, 1.0])


# Memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [1.0, 3.0])
@pytest.mark.parametrize("count", [1, 100])
def test_peak_memory_is_one_copy_of_the_gradients(weight, count):
    shape = (4_000_000 // count,)
    grads = {f"p{i}": np.ones(shape, np.float32) for i in range(count)}
    one_copy = sum(g.nbytes for g in grads.values())
    tracemalloc.start()
    try:
        with ad.config.threads(1):  # each helper thread has scratch memory of its own, allocated at first use
            acc = accumulator(*grads, shape=shape, accumulation_steps=3)
            for _ in range(3):
                acc.step(grads, weight=weight)
            acc.apply(lambda grads: None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.1 * one_copy + 1_000_000


# Large gradients, in pieces and threads --------------------------------------------------------


@pytest.fixture
def small_pieces(monkeypatch):
    """Everything is large: pieces of a few elements, threads for two."""
    for name, value in {"LEAST": 2, "LINE": 7, "SHARED": 64}.items():
        monkeypatch.setattr(sums, name, value)
    with ad.config.threads(3):
        yield


@pytest.mark.parametrize("weight", [1.0, 3.0])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64])
def test_threads_add_the_bits_of_one_pass(small_pieces, dtype, weight):
    rng = np.random.default_rng(0)
    given = [
        {
            name: (rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 4, shape)).astype(dtype)
            for name, shape in {"a": (9001,), "b": (97, 103), "c": (3,), "none": (0, 4)}.items()
        }
        for _ in range(3)
    ]
    for micro in given:
        micro["b"] = micro["b"].T.copy().T  # not contiguous
    acc = ad.GradientAccumulator(accumulation_steps=3, normalize=False)
    for name, g in given[0].items():
        acc.register(name, g.shape)
    for micro in given:
        acc.step(micro, weight=weight)
    total = np.result_type(dtype, np.float32)
    for name, got in acc.gradients().items():
        expected = np.multiply(given[0][name], weight, dtype=total)
        for micro in given[1:]:
            expected += np.multiply(micro[name], weight, dtype=total)
        assert got.dtype == total
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("where", [0, 4999, 9000])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_threads_find_what_is_not_finite_before_anything_is_added(small_pieces, value, where):
    acc = ad.GradientAccumulator(accumulation_steps=3)
    for name in ("a", "b", "c"):
        acc.register(name, (9001,), np.float32)
    good = {name: np.ones(9001, np.float32) for name in ("a", "b", "c")}
    acc.step(good)
    before = {name: g.tobytes() for name, g in acc.gradients().items()}
    bad = {name: g.copy() for name, g in good.items()}
    bad["b"][where] = value
    with pytest.raises(ad.errors.NonFiniteError, match="'b'"):
        acc.step(bad)
    assert {name: g.tobytes() for name, g in acc.gradients().items()} == before


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64])
@pytest.mark.parametrize("size", [4 * norm.ROW, 4 * norm.ROW + 1, 7 * norm.ROW - 1])
def test_finite_by_products_is_exact(monkeypatch, dtype, size):
    monkeypatch.setattr(norm, "MASKED", 0)
    a = np.zeros(size, dtype)
    assert norm.all_finite(a)
    largest = np.finfo(dtype).max
    a[:] = largest  # each product, and each sum of them, overflows
    assert norm.all_finite(a)
    a[::2] = -largest  # inf - inf
    assert norm.all_finite(a)
    a[:] = (
        largest / 2 if np.dtype(dtype).kind == "c" else np.sqrt(largest) / 64
    )  # the sum of the sums overflows
    assert norm.all_finite(a)
    for i in (0, size // 2 - 1, size // 2, size - 1):
        for value in (np.nan, np.inf, -np.inf):
            for rest in (0.0, 1.0, largest):
                a[:] = rest
                a[i] = value
                assert not norm.all_finite(a)


def test_a_masked_array_is_refused_and_one_that_masks_nothing_taken():
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    buffer = ad.GradientBuffer((2,))
    for take, name in ((buffer.add, "'GradientBuffer': "), (ad.tensor, "")):
        with pytest.raises(InputError, match="masked") as caught:
            take(masked)
        assert str(caught.value) == (
            f"{name}some elements of this masked array are masked, and adjoint has no masks.\n"
            "  Fill them first: a.filled(0.0)."
        )
    buffer.add(np.ma.array([1.0, 2.0]))
    assert buffer.get().tolist() == [1.0, 2.0]
