"""NumPy's functions that write into an argument: they write into tensors, or raise; they never do nothing."""

from __future__ import annotations

import inspect
from collections import Counter

import numpy
import numpy_writers
import pytest

import adjoint as ad
import adjoint.numpy as np
from adjoint.errors import AdjointError, InPlaceError, InputError, LostHistoryError, ModifiedError

WRITERS = {
    "fill_diagonal": lambda np, a: np.fill_diagonal(a, 5.0),
    "random.shuffle": lambda np, a: np.random.shuffle(a),
    "put": lambda np, a: np.put(a, [0, 3], [7.0, 8.0]),
    "place": lambda np, a: np.place(a, [[True, False], [False, True]], [5.0]),
    "putmask": lambda np, a: np.putmask(a, [[True, False], [False, True]], [5.0]),
    "copyto": lambda np, a: np.copyto(a, 3.0),
    "copyto by name": lambda np, a: np.copyto(dst=a, src=3.0),
    "put_along_axis": lambda np, a: np.put_along_axis(a, numpy.array([[0], [1]]), 9.0, 1),
    "nan_to_num": lambda np, a: np.nan_to_num(a, copy=False),
    "out of a ufunc": lambda np, a: np.add(a, 1.0, out=a),
    "out of a ufunc by place": lambda np, a: np.add(a, 1.0, a),
    "out": lambda np, a: np.cumsum(a, axis=1, out=a),
    "out by place": lambda np, a: np.cumsum(a, 1, None, a),
    "at": lambda np, a: np.add.at(a, 0, 1.0),
    "modf": lambda np, a: np.modf(a, out=(a, None)),
}


@pytest.mark.parametrize("name", WRITERS)
def test_writes_into_a_tensor(name):
    call, values = WRITERS[name], numpy.array([[1.0, 2.5], [numpy.nan, 4.0]])
    array = values.copy()
    numpy.random.seed(1)
    expected = call(numpy, array)
    spaces = [np] if name == "random.shuffle" else [np, numpy]
    for space in spaces:
        a = ad.tensor(values)
        numpy.random.seed(1)
        found = call(space, a)
        numpy.testing.assert_array_equal(a.numpy(), array)
        assert (found is a) == (expected is array)
        if expected is None:
            assert found is None


@pytest.mark.parametrize("name", WRITERS)
def test_a_tensor_in_a_graph_is_an_error(name):
    call = WRITERS[name]
    x = ad.ones((2, 2), requires_grad=True)
    for space in [np] if name == "random.shuffle" else [np, numpy]:
        for target in (x, x * 2):
            with pytest.raises((InPlaceError, InputError), match=r"x\.at\[i\]\.set"):
                call(space, target)
        with pytest.raises(AdjointError, match=r"x\.at\[i\]\.set"):
            ad.grad(lambda v, space=space: (call(space, v), v.sum())[1])(numpy.ones((2, 2)))
        with ad.no_grad():
            call(space, x)
    assert x.requires_grad


@pytest.mark.parametrize("name", WRITERS)
def test_rules_of_views_and_saved_values_hold(name):
    call = WRITERS[name]
    a = ad.tensor([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(InPlaceError, match="is a view of another tensor"):
        call(np, a.T)
    assert a.tolist() == [[1, 2], [3, 4]]
    x = ad.ones((2, 2), requires_grad=True)
    y = (x * a).sum()
    held = a.numpy()
    call(np, a)
    assert held.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ModifiedError):
        y.backward()


@pytest.mark.parametrize("block", range(10))
def test_random_calls(block):
    counts = Counter(numpy_writers.check(seed) for seed in range(100 * block, 100 * block + 100))
    assert counts["wrote"] > 25 and counts["raised"] > 25


def test_values_in_a_graph_are_an_error():
    v = ad.ones(2, requires_grad=True)
    for target in (ad.zeros((2, 2)), numpy.zeros((2, 2))):
        for call in (
            lambda a: np.copyto(a, v),
            lambda a: np.add.at(a, 0, v),
            lambda a: np.fill_diagonal(a, v),
        ):
            with pytest.raises(LostHistoryError):
                call(target)
        for call in (lambda a: np.add(v, v, out=a), lambda a: np.sum([v, v], 0, out=a[0])):
            with pytest.raises(InputError, match=r"\(…, out=…\)"):
                call(target)
        assert not numpy.any(target)


def test_arrays_take_tensors():
    a, v = numpy.zeros((2, 2)), ad.tensor([1.0, 2.0])
    same = np.add(a, v, out=a)
    assert same is a and a.tolist() == [[1, 2], [1, 2]]
    assert np.sum(ad.tensor(a), axis=0, out=a[0]).base is a and a[0].tolist() == [2, 4]
    np.copyto(a, v)
    numpy.fill_diagonal(a, v)
    assert a.tolist() == [[1, 2], [1, 2]]
    np.add.at(a, 0, v)
    assert a[0].tolist() == [2, 4]
    np.nan_to_num(a, copy=False)
    np.random.shuffle(a)


def test_inside_transforms_is_an_error_that_points_to_at():
    def f(x):
        np.copyto(x, 0.0)
        return x.sum()

    for transformed in (ad.compile(f), ad.vmap(ad.compile(f)), ad.vmap(f), lambda v: ad.jvp(f, (v,), (v,))):
        with pytest.raises(AdjointError, match=r"x\.at\[i\]\.set"):
            transformed(numpy.ones((2, 2, 2)))


def test_a_buffer_inside_a_transformed_function_is_written():
    def f(x):
        mask = np.ones((2, 2))
        np.fill_diagonal(mask, 0.0)
        return np.sum(mask * x**2)

    assert ad.grad(f)(numpy.ones((2, 2))).tolist() == [[0, 2], [2, 0]]
    assert ad.hessian(f)(numpy.ones((2, 2)))[0, 1, 0, 1] == 2


def test_every_function_with_out_writes_or_raises():
    """Or raises, as here, where a gradient would be lost."""
    skipped = set("busday_count busday_offset is_busday".split())
    seen = 0
    for theirs, ours in [(numpy, np), (numpy.linalg, np.linalg), (numpy.fft, np.fft)]:
        for name in theirs.__all__:
            f = getattr(theirs, name, None)
            if not inspect.isfunction(f) and not inspect.isbuiltin(f) and not hasattr(f, "__wrapped__"):
                continue
            try:
                parameters = inspect.signature(f).parameters
            except (TypeError, ValueError):
                continue
            if "out" not in parameters or name in skipped:
                continue
            seen += 1
            x = ad.tensor(numpy.ones((2, 2), complex if theirs is numpy.fft else float), requires_grad=True)
            out = ad.zeros((2, 2), dtype=x.dtype)
            with pytest.raises(AdjointError, match=r"x\.at\["):
                _called(getattr(ours, name), x, out)
            assert not out.numpy().any()
    assert seen >= 50


def _called(f, x, out):
    several = dict.fromkeys("multi_dot concatenate concat stack".split(), ([x, x],))
    args = {
        **several, "einsum": ("ij", x), "clip": (x, 0, 1), "take": (x, [0]), "compress": ([True], x), "choose": ([0], [x, x]),
        "percentile": (x, 5), "quantile": (x, 0.5), "nanpercentile": (x, 5), "nanquantile": (x, 0.5), "dot": (x, x),
        "outer": (x, x),
    }  # fmt: skip
    return f(*args.get(f.__name__, (x,)), out=out)
