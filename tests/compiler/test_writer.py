"""The writer of LLVM IR and the levels of the machine: each kernel runs on every level of this processor."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from native import padded, run

from adjoint.compiler.emit import machine
from adjoint.compiler.emit.values import Value, element_of
from adjoint.compiler.emit.writer import Writer
from adjoint.errors import ArgumentError


@pytest.fixture(params=machine.levels(), autouse=True)
def level(request, tmp_path, monkeypatch):
    monkeypatch.setenv("ADJOINT_KERNEL_CACHE", str(tmp_path / "cache"))
    with machine.using(request.param) as found:
        yield found


def test_lanes_follow_the_width(level):
    assert level.lanes("float32") == max(1, level.width // 4)
    assert level.lanes("float64") == max(1, level.width // 8)
    assert machine.machine() is level


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10, 31, 64, 133])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bool"])
def test_rows_of_any_length(level, count, dtype):
    lanes, element = level.lanes(dtype), element_of(dtype)
    w = Writer(level)
    for offset, wide, mask in w.pieces(count, lanes):
        x = w.load(w.at(w.slot(0), element, offset), element, wide, mask)
        y = w.invert(x) if element == "i1" else w.add(x, 1)
        w.store(y, w.at(w.slot(1), element, offset), mask)
    x = np.random.default_rng(0).integers(0, 2, count).astype(dtype)
    y, behind = padded(count, dtype, 1)
    run(w.kernel(), [x, y], 0, 1)
    np.testing.assert_array_equal(y, ~x if dtype == "bool" else x + np.ones((), dtype))
    assert (behind == 1).all()


def test_loops_carry_values_and_may_be_empty(level):
    w = Writer(level)

    def body(i: Value, carried: list[Value]) -> list[Value]:
        x = w.load(w.at(w.slot(0), "double", i), "double")
        return [w.fma(x, 2.0, carried[0]), w.plus(carried[1], i)]

    total, count = w.loop(w.low, w.high, 3, body, [w.const(0.0, "double"), w.const(5, "i64")])
    w.store(total, w.slot(1))
    w.store(count, w.slot(2))
    text = w.kernel()
    x, total, count = np.arange(20.0), np.zeros(1), np.zeros(1, np.int64)
    run(text, [x, total, count], 2, 12)
    assert total[0] == 2 * x[2:12:3].sum() and count[0] == 5 + 2 + 5 + 8 + 11
    run(text, [x, total, count], 7, 7)
    assert total[0] == 0 and count[0] == 5


def test_branches_choose_values(level):
    w = Writer(level)
    x = w.load(w.slot(0), "float")
    big = w.compare("ogt", x, 1.0)
    (y,) = w.choose(big, lambda: [w.sqrt(x)], lambda: [w.neg(x)])
    with w.when(w.compare("ogt", x, 3.0)):
        w.store(w.const(1.0, "float"), w.at(w.slot(1), "float", 1))
    w.store(y, w.slot(1))
    text = w.kernel()
    for given, expected in ((4.0, [2, 1]), (2.25, [1.5, 0]), (0.5, [-0.5, 0])):
        y = np.zeros(2, np.float32)
        run(text, [np.float32([given]), y], 0, 1)
        assert y.tolist() == expected


def test_functions_are_defined_once_per_unit(level):
    lanes = level.lanes("float32")
    w = Writer(level)
    kind = Value("", "float", lanes).type
    for _ in range(2):
        w.define("twice", [(kind, "x")], lambda inner, x: inner.add(x[0], x[0]), "float", lanes)
    x = w.load(w.slot(0), "float", lanes)
    w.store(w.call("twice", "float", lanes, w.call("twice", "float", lanes, x)), w.slot(1))
    text = w.kernel()
    assert text.count("define internal") == 1
    x, y = np.arange(lanes, dtype=np.float32), np.zeros(lanes, np.float32)
    run(text, [x, y], 0, 1)
    assert (y == 4 * x).all()


def test_conversions(level):
    lanes = level.lanes("float64")
    w = Writer(level)
    x = w.load(w.slot(0), "double", lanes)
    w.store(w.convert(x, "i32"), w.slot(1))
    w.store(w.convert(x, "i1"), w.slot(2))
    w.store(w.convert(w.convert(x, "float"), "i64"), w.slot(3))
    w.store(w.fold(x, w.add), w.slot(4))
    w.store(w.convert(w.any(w.compare("ogt", x, 100.0)), "i64"), w.slot(5))
    x = np.linspace(-3.9, 3.9, lanes) if lanes > 1 else np.array([-3.9])
    x[0] = 0.0
    out = [np.zeros(lanes, t) for t in ("int32", "bool", "int64", "float64", "int64")]
    run(w.kernel(), [x, *out], 0, 1)
    np.testing.assert_array_equal(out[0], x.astype(np.int32))
    np.testing.assert_array_equal(out[1], x != 0)
    np.testing.assert_array_equal(out[2], x.astype(np.int64))
    assert abs(out[3][0] - x.sum()) < 1e-14 and out[4][0] == 0


def test_a_level_that_the_processor_has_not(level):
    with pytest.raises(ArgumentError, match="kernels cannot be compiled for 'mmx': this processor supports"):
        machine._machine("mmx")
