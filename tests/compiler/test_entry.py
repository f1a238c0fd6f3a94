"""The native entry: what it takes, what it refuses, references, threads, and interpreters it does not know."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import adjoint as ad
from adjoint.compiler.build import units
from adjoint.compiler.emit import machine
from adjoint.compiler.emit.writer import Writer
from adjoint.compiler.host import entry, pool, structs
from adjoint.compiler.host.entry import Entry, Given, Made, Record
from adjoint.core.tensor import clock

SHAPE = (2, 3)


def scaled_sum() -> int:
    """A kernel: ``out = x * number + y``, and the flag is whether x[0] is negative."""
    w = Writer(machine.machine())
    x, y, number, out, flag = (w.slot(k) for k in range(5))
    w.store(w.compare("olt", w.load(x, "double"), 0.0), flag)

    def one(i, _):
        total = w.fma(
            w.load(w.at(x, "double", i), "double"),
            w.load(number, "double"),
            w.load(w.at(y, "double", i), "double"),
        )
        w.store(total, w.at(out, "double", i))

    w.loop(w.low, w.high, 1, one)
    return units.function(w.kernel())


@pytest.fixture
def made():
    """An entry of two arguments, an array and a number, and a tensor from outside; with its tensor."""
    return program()


def program(nanoseconds: float = 0.0, helpers: int = 0):
    t = ad.tensor(np.arange(6.0).reshape(SHAPE))
    flag = np.zeros(1, bool)
    slots = [("given", 0), ("given", 1), ("given", 2), ("made", 0), flag.ctypes.data]
    e = Entry(
        [Record(scaled_sum(), slots, [0, 2, 4, 6])],
        [Given(0, np.float64, SHAPE), Given(t, np.float64, SHAPE), Given(1, None, None)],
        [Made(np.float64, SHAPE), Made(np.int32, (0, 4)), Made(np.float32, ())],
        2, nanoseconds, helpers, [flag.ctypes.data], (flag,),
    )  # fmt: skip
    return e, t


@pytest.mark.parametrize("number", [2.5, 3, np.float64(-1.5), -1.0, -1])
def test_arrays_tensors_and_numbers_are_read(made, number):
    e, t = made
    x = np.linspace(0, 1, 6).reshape(SHAPE)
    for given in (x, ad.tensor(x)):
        out, empty, scalar = e.call(given, number)
        np.testing.assert_array_equal(out, x * number + t.numpy())
        assert (empty.shape, empty.dtype, scalar.shape, scalar.dtype) == ((0, 4), np.int32, (), np.float32)
        assert out.flags.owndata and out.flags.writeable
    t.copy_(np.ones(SHAPE))
    np.testing.assert_array_equal(e.call(x, 2.0)[0], x * 2 + 1)


class Sub(np.ndarray):
    pass


@pytest.mark.parametrize(
    "x",
    [
        np.ones((3, 2)), np.ones(6), np.ones((2, 3, 1)), np.ones(SHAPE, np.float32), np.ones(SHAPE, ">f8"),
        np.ones((3, 2)).T, np.ones((2, 6))[:, ::2], np.ones(SHAPE).view(Sub), [[1.0] * 3] * 2, None, 1.0,
        ad.tensor(np.ones(SHAPE, np.float32)), np.frombuffer(b"x" * 49, np.uint8)[1:].view(np.float64).reshape(SHAPE),
    ],
    ids=lambda x: f"{type(x).__name__} {getattr(x, 'shape', '')} {getattr(x, 'dtype', '')}",
)  # fmt: skip
def test_other_arrays_are_left_to_python(made, x):
    e, _ = made
    assert e.call(x, 2.0) is NotImplemented


@pytest.mark.parametrize("number", [None, "2", np.float32(2), 1 << 2000, True, np.ones(())])
def test_other_numbers_are_left_to_python(made, number):
    e, _ = made
    assert e.call(np.ones(SHAPE), number) is NotImplemented
    assert e.call(np.ones(SHAPE)) is NotImplemented and e.call(np.ones(SHAPE), 1.0, 1.0) is NotImplemented


def test_a_tensor_from_outside_that_changed_is_left_to_python(made):
    e, t = made
    t._data = np.ones((4, 3))
    assert e.call(np.ones(SHAPE), 1.0) is NotImplemented
    t._data = np.ones(SHAPE)
    assert (e.call(np.ones(SHAPE), 1.0)[0] == 2).all()


def test_arrays_are_given_to_tensors():
    leaf, constant = ad.tensor(np.zeros(SHAPE), requires_grad=True), ad.tensor(np.zeros(SHAPE))
    base, flag = np.arange(6.0).reshape(SHAPE), np.zeros(1, bool)
    records = [
        Record(
            scaled_sum(), [("given", 0), ("given", 1), ("given", 2), ("made", k), flag.ctypes.data], [0, 6]
        )
        for k in range(3)
    ]
    given = [Given(0, np.float64, SHAPE), Given(base, np.float64, SHAPE), Given(1, None, None)]
    e = Entry(records, given, [Made(np.float64, SHAPE)] * 3, 2, checks=[flag.ctypes.data], held=(flag, base),
              writes=[(leaf, 1), (constant, 2)])  # fmt: skip
    before, versions = (leaf._data, constant._data), (leaf._version, clock.now)
    x = np.ones(SHAPE)
    out, old_leaf, old_constant = e.call(x, 2.0)
    assert old_leaf is before[0] and old_constant is before[1]
    references = [sys.getrefcount(leaf._data), sys.getrefcount(constant._data)]
    assert references == [2, 2]
    for t in (leaf, constant):
        np.testing.assert_array_equal(t._data, base + 2)
        assert t._data is not out
    assert leaf._version == versions[0] + 1 and constant._version == clock.now == versions[1] + 1
    assert e.call(-x, 2.0) is NotImplemented  # a check fails: nothing is written
    np.testing.assert_array_equal(leaf._data, base + 2)
    assert leaf._version == versions[0] + 1 and clock.now == versions[1] + 1
    held = (leaf._data, constant._data, leaf, constant, clock)
    counts = [sys.getrefcount(h) for h in held[2:]]
    for _ in range(300):  # versions become numbers that Python does not share
        e.call(x, 2.0)
    assert [sys.getrefcount(h) for h in held[2:]] == counts and leaf._version == versions[0] + 301


def test_a_check_that_fails_returns_nothing(made):
    e, _ = made
    assert e.call(-np.ones(SHAPE), 1.0) is NotImplemented
    assert e.call(np.ones(SHAPE), 1.0) is not NotImplemented


@pytest.mark.parametrize("nanoseconds", [0.0, 1e6])
def test_references_are_counted(nanoseconds):
    e, t = program(nanoseconds)
    x, number, wrong = np.ones(SHAPE), 1e3, np.ones(4)
    dtype = np.dtype(np.float64)
    watched = (x, t._data, number, NotImplemented, dtype, wrong, e.words)
    for _ in range(3):  # caches settle
        e.call(x, number), e.call(wrong, number), e.call(-x, number)
    before = [sys.getrefcount(w) for w in watched]
    for _ in range(100):
        e.call(x, number), e.call(wrong, number), e.call(-x, number)
    assert [sys.getrefcount(w) for w in watched] == before
    (out, *_) = e.call(x, number)
    assert sys.getrefcount(out) == 2


def test_the_function_keeps_what_it_points_to():
    call = program()[0].call
    x = np.ones(SHAPE)
    for _ in range(50):
        assert (call(x, 1.0)[0] == x + np.arange(6.0).reshape(SHAPE)).all()


def test_a_program_that_runs_is_left_to_python(made):
    e, _ = made
    e.words[0] = 1
    assert e.call(np.ones(SHAPE), 1.0) is NotImplemented
    e.words[0] = 0
    assert e.call(np.ones(SHAPE), 1.0) is not NotImplemented


def test_threads_get_their_own_results_or_none():
    e, t = program(1e6, pool.start(2))
    wrong = []

    def repeat(k: int) -> None:
        x = np.full(SHAPE, float(k))
        expected = x * 2 + t.numpy()
        for _ in range(2000):
            found = e.call(x, 2.0)
            if found is not NotImplemented and not (found[0] == expected).all():
                wrong.append(found)

    threads = [threading.Thread(target=repeat, args=(k,)) for k in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


@pytest.mark.parametrize("broken", ["place_of", "words_at"])
def test_an_unknown_layout_is_no_error(monkeypatch, broken):
    monkeypatch.setattr(structs, broken, lambda *args: [0] * 99 if broken == "words_at" else 8)
    assert entry.layout.__wrapped__() is None


def test_other_interpreters_have_no_entry(monkeypatch):
    monkeypatch.setattr(sys.implementation, "name", "pypy")
    assert entry.layout.__wrapped__() is None


@pytest.mark.parametrize("backend", ["replay", "native"])
@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i4", ">c8", ">f2"])
def test_results_of_byte_swapped_arrays_have_native_bytes(dtype: str, backend: str) -> None:
    """Tensors always have the byte order of the machine, so the results are those of tensors."""
    x = np.arange(1, 5).astype(dtype)
    for f in (
        lambda a: ad.reshape(a, (2, 2)),
        ad.asarray,
        lambda a: ad.stack([a, a]),
        lambda a: (a, a[1:] * 2),
    ):
        compiled, wanted = ad.compile(f, backend=backend), ad.tree.leaves(f(ad.asarray(x)))
        for given in (x, x.copy(), x.astype(x.dtype.newbyteorder("="))):  # one program serves them all
            for found, t in zip(ad.tree.leaves(compiled(given)), wanted, strict=True):
                assert (found.dtype.str, found.tobytes()) == (t.dtype.str, t.numpy().tobytes())
        assert compiled.stats()["traces"] == 1
