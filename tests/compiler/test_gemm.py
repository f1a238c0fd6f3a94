"""Matrix products of kernels: transposes, strides, batches, edges, epilogues, and bits that do not depend on cuts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from native import loaded

from adjoint.compiler.emit import gemm as g
from adjoint.compiler.emit import machine
from adjoint.compiler.emit import math as functions
from adjoint.compiler.emit.pack import transposed
from adjoint.compiler.emit.writer import Writer


@pytest.fixture(params=machine.levels())
def level(request, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ADJOINT_KERNEL_CACHE", str(tmp_path_factory.getbasetemp() / "gemm"))
    with machine.using(request.param) as found:
        yield found


def strides_of(array) -> tuple[int, ...]:
    return tuple(s // array.itemsize for s in array.strides)


def memory(count: int) -> np.ndarray:
    """Bytes that start at a multiple of 64, filled with NaN: what was not written is seen."""
    whole = np.full(count // 8 + 16, np.nan)
    return whole[-whole.ctypes.data % 64 // 8 :]


def product(level, a, b, c, epilogue=None, extra=(), cuts=None, threads=1):
    """Multiply arrays by the kernels of a product, into the row-major ``c``; ``cuts`` divides its outermost loop."""
    batch = c.shape[:-2]
    spec = g.Product(
        c.dtype, c.shape[-2], c.shape[-1], a.shape[-1],
        strides_of(a)[-2:], strides_of(b)[-2:], batch,
        strides_of(np.broadcast_to(a, (*batch, *a.shape[-2:])))[:-2],
        strides_of(np.broadcast_to(b, (*batch, *b.shape[-2:])))[:-2],
    )  # fmt: skip
    kernels = g.gemm(level, spec, epilogue)
    packed, scratch = memory(kernels.packed), memory(kernels.scratch * threads)
    first, second = (b, a) if kernels.turned else (a, b)
    if kernels.pack is not None:
        _run(kernels.pack, [second, packed], None, threads)
        second = packed
    _run(kernels.main, [first, second, c, scratch, *extra], cuts, threads)
    return c


def _run(kernel, arrays, cuts, threads):
    table = np.array([x.ctypes.data for x in arrays], np.int64)
    function = loaded(kernel.text)
    edges = (
        [0, kernel.length]
        if cuts is None
        else sorted({0, kernel.length, *(int(x * kernel.length) for x in cuts)})
    )
    for k, (low, high) in enumerate(itertools.pairwise(edges)):
        function(table.ctypes.data, low, high, k, k % threads)


def laid_out(rng, shape, dtype, turned: bool, spread: int = 1):
    """A random matrix, maybe transposed in memory, maybe with gaps."""
    *batch, m, n = shape
    if turned:
        m, n = n, m
    x = rng.standard_normal((*batch, m, n * spread)).astype(dtype)[..., ::spread]
    return np.swapaxes(x, -1, -2) if turned else x


def check(found, a, b, dtype):
    wide = a.astype(np.float64), b.astype(np.float64)
    expected = wide[0] @ wide[1]
    bound = (np.abs(wide[0]) @ np.abs(wide[1])) * np.finfo(dtype).eps * (a.shape[-1] + 8) + np.finfo(
        dtype
    ).tiny
    assert (np.abs(found - expected) <= bound).all()


SIZES = [
    (1, 1, 1),
    (1, 16, 8),
    (3, 5, 7),
    (4, 1, 33),
    (8, 32, 1),
    (17, 35, 19),
    (33, 10, 64),
    (13, 70, 40),
    (2, 50, 31),
    (29, 3, 128),
    (16, 48, 21),
    (48, 96, 40),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_layout(level, size, dtype):
    rng = np.random.default_rng(0)
    m, n, k = size
    for left, right, gap in itertools.product((False, True), (False, True), (1, 3)):
        a, b = laid_out(rng, (m, k), dtype, left, gap), laid_out(rng, (k, n), dtype, right, gap)
        check(product(level, a, b, np.empty((m, n), dtype)), a, b, dtype)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_large_products_are_packed_in_blocks(level, left, right):
    rng = np.random.default_rng(1)
    for m, n in ((150, 270), (40, 530)):
        a, b = laid_out(rng, (m, 256), np.float32, left), laid_out(rng, (256, n), np.float32, right)
        c = np.empty((m, n), np.float32)
        check(product(level, a, b, c), a, b, np.float32)


def test_small_inputs_of_large_layers_are_packed_instead_of_the_weights(level):
    x, weight = np.ones((32, 50), np.float32), np.ones((64, 50), np.float32)

    def kernels(m, n):
        a, b = x[:m], weight[:n].T
        spec = g.Product(x.dtype, m, n, 50, strides_of(a), strides_of(b))
        return g.gemm(level, spec)

    wide = level.lanes(np.float32) > 1
    assert kernels(32, 64).turned == wide
    assert not kernels(31, 64).turned
    assert not kernels(32, 32).turned
    if wide:
        assert kernels(32, 64).packed == x.nbytes


def test_batches_and_broadcasting(level):
    rng = np.random.default_rng(2)
    for right in (False, True):
        a = laid_out(rng, (2, 3, 9, 11), np.float32, False)
        b = laid_out(rng, (3, 11, 20), np.float32, right)
        check(product(level, a, b, np.empty((2, 3, 9, 20), np.float32)), a, b, np.float32)
    heads = rng.standard_normal((4, 7, 2, 8)).astype(np.float32).swapaxes(1, 2)  # batch, head, time, width
    keys = rng.standard_normal((4, 7, 2, 8)).astype(np.float32).transpose(0, 2, 3, 1)
    check(product(level, heads, keys, np.empty((4, 2, 7, 7), np.float32)), heads, keys, np.float32)


def test_no_terms_and_no_elements(level):
    a, b = np.empty((3, 0), np.float32), np.empty((0, 5), np.float32)
    assert (product(level, a, b, np.ones((3, 5), np.float32)) == 0).all()
    assert product(level, np.ones((0, 4)), np.ones((4, 3)), np.ones((0, 3))).shape == (0, 3)
    assert product(level, np.ones((2, 4)), np.ones((4, 0)), np.ones((2, 0))).shape == (2, 0)


@pytest.mark.parametrize("shape", [(30, 37, 16), (2, 37, 64), (9, 1, 40), (32, 80, 16)], ids=str)
def test_epilogues_see_every_element_once(level, shape):
    m, n, k = shape
    rng = np.random.default_rng(3)
    a, b = laid_out(rng, (m, k), np.float32, False), laid_out(rng, (k, n), np.float32, True)
    bias, base = rng.standard_normal(n).astype(np.float32), rng.standard_normal((m, n)).astype(np.float32)

    def epilogue(w: Writer, item, row, column, x, mask):
        y = w.add(x, w.load(w.at(w.slot(g.FREE), "float", column), "float", x.lanes, mask))
        place = w.plus(w.times(row, n), column)
        y = w.add(
            functions.emit(w, "tanh", y),
            w.load(w.at(w.slot(g.FREE + 1), "float", place), "float", x.lanes, mask),
        )
        return y

    c = product(level, a, b, np.empty((m, n), np.float32), epilogue, extra=(bias, base))
    np.testing.assert_allclose(c, np.tanh(a @ b + bias) + base, rtol=2e-5, atol=2e-5)


def test_an_epilogue_may_store_other_values(level):
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((12, 6)), rng.standard_normal((6, 21))
    out = np.zeros((12, 21))

    def epilogue(w: Writer, item, row, column, x, mask):
        place = w.plus(w.times(row, 21), column)
        w.store(w.neg(x), w.at(w.slot(g.FREE), "double", place), mask)
        return x

    c = product(level, a, b, np.empty((12, 21)), epilogue, extra=(out,))
    np.testing.assert_allclose(c, a @ b, rtol=1e-12, atol=1e-12)
    assert (out == -c).all()


def test_cuts_and_threads_do_not_change_bits(level):
    rng = np.random.default_rng(6)
    for m, n, left, right in itertools.product((100, 64), (150, 160), (False, True), (False, True)):
        a, b = laid_out(rng, (m, 130), np.float32, left), laid_out(rng, (130, n), np.float32, right)
        whole = product(level, a, b, np.empty((m, n), np.float32))
        cut = product(level, a, b, np.empty((m, n), np.float32), cuts=(0.13, 0.5, 0.71), threads=2)
        assert whole.tobytes() == cut.tobytes()


def test_nan_and_infinity_pass(level):
    a, b = np.ones((9, 20), np.float32), np.ones((20, 33), np.float32)
    a[2, 3], b[5, 7] = np.nan, np.inf
    c = product(level, a, b, np.empty((9, 33), np.float32))
    np.testing.assert_array_equal(c, a @ b)


def test_squares_are_transposed(level):
    for dtype, element in ((np.float32, "float"), (np.float64, "double")):
        n = level.lanes(dtype)
        w = Writer(level)
        rows = [w.load(w.at(w.slot(0), element, i * n), element, n) for i in range(n)]
        for i, x in enumerate(transposed(w, rows)):
            w.store(x, w.at(w.slot(1), element, i * n))
        x, y = np.arange(n * n, dtype=dtype).reshape(n, n), np.zeros((n, n), dtype)
        table = np.array([x.ctypes.data, y.ctypes.data])
        loaded(w.kernel())(table.ctypes.data, 0, 1, 0, 0)
        np.testing.assert_array_equal(y, x.T)
