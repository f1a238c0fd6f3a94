"""Convolutions of kernels against the ops of NumPy calls: strides, padding, dilation, edges, epilogues, cuts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from native import loaded

import adjoint as ad
from adjoint.compiler.emit import conv as c
from adjoint.compiler.emit import machine
from adjoint.compiler.host import native
from adjoint.ops import conv as ops


@pytest.fixture(params=machine.levels())
def level(request, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ADJOINT_KERNEL_CACHE", str(tmp_path_factory.getbasetemp() / "conv"))
    with machine.using(request.param) as found:
        yield found


def memory(count: int) -> np.ndarray:
    """Bytes that start at a multiple of 64, filled with NaN: what was not written is seen."""
    whole = np.full(count // 8 + 16, np.nan)
    return whole[-whole.ctypes.data % 64 // 8 :]


def run(kernel, arrays, cuts=()):
    table = np.array([x.ctypes.data for x in arrays], np.int64)
    function = loaded(kernel.text)
    edges = sorted({0, kernel.length, *(int(x * kernel.length) for x in cuts)})
    for k, (low, high) in enumerate(itertools.pairwise(edges)):
        function(table.ctypes.data, low, high, k, k % 2)


def forward(level, spec, x, w, epilogue=None, extra=(), cuts=()):
    kernels = c.conv(level, spec, epilogue)
    y = np.full((spec.n, spec.o, *spec.windows), np.nan, spec.dtype)
    run(kernels.main, [x, w, y, memory(2 * kernels.scratch), *extra], cuts)
    return y


def images_gradient(level, spec, g, w, cuts=()):
    kernels = c.conv_input(level, spec)
    packed, found = memory(kernels.packed), np.full((spec.n, spec.c, *spec.size), np.nan, spec.dtype)
    run(kernels.pack, [w, packed], cuts)
    run(kernels.main, [g, packed, found, memory(2 * kernels.scratch)], cuts)
    return found


def kernels_gradient(level, spec, x, g, cuts=()):
    kernels = c.conv_weight(level, spec)
    partial, found = memory(kernels.partial), np.full((spec.o, spec.c, *spec.kernel), np.nan, spec.dtype)
    run(kernels.main, [x, g, partial, memory(2 * kernels.scratch)], cuts)
    run(kernels.last, [partial, found], cuts)
    return found


def numbers(spec):
    rng = np.random.default_rng(0)
    shapes = (spec.n, spec.c, *spec.size), (spec.o, spec.c, *spec.kernel), (spec.n, spec.o, *spec.windows)
    return [rng.standard_normal(shape).astype(spec.dtype) for shape in shapes]


def same(found, expected):
    bound = 20 * np.finfo(found.dtype).eps * np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound)


SPECS = [
    c.Conv(np.float32, 3, 2, 5, (9, 11), (3, 2)),
    c.Conv(np.float32, 3, 2, 7, (6, 40), (3, 3), padding=((1, 1), (1, 1))),
    c.Conv(np.float32, 9, 3, 13, (10, 23), (3, 4), (2, 3), ((1, 2), (2, 0)), (2, 1)),
    c.Conv(np.float32, 2, 1, 1, (1, 17), (1, 5), (1, 2), ((0, 0), (4, 5)), (1, 2)),
    c.Conv(np.float64, 10, 2, 4, (5, 5), (5, 5), padding=((2, 2), (2, 2))),
    c.Conv(np.float64, 1, 4, 9, (7, 6), (1, 1), (3, 2)),
    c.Conv(np.float32, 2, 3, 2, (4, 4), (2, 2), (1, 1), ((3, 3), (3, 3))),  # windows of zeros alone
    c.Conv(np.float32, 2, 1, 6, (12, 12), (3, 3), (4, 4)),  # numbers that no window reads
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_all_three_products(level, spec):
    x, w, g = numbers(spec)
    at = {"stride": spec.stride, "padding": spec.padding, "dilation": spec.dilation, "groups": 1}
    wide = [v.astype(np.float64) for v in (x, w, g)]
    same(forward(level, spec, x, w), ops._conv(*wide[:2], **at))
    same(images_gradient(level, spec, g, w), ops._conv_input(wide[2], wide[1], size=spec.size, **at))
    same(kernels_gradient(level, spec, x, g), ops._conv_weight(wide[0], wide[2], kernel=spec.kernel, **at))


def test_epilogues_see_every_element_once(level):
    spec = c.Conv(np.float32, 2, 3, 11, (8, 37), (3, 3), padding=((1, 1), (1, 1)))
    x, w, _ = numbers(spec)
    bias, base = (
        np.arange(11, dtype=np.float32),
        np.random.default_rng(1).standard_normal((2, 11, 8, 37)).astype("f4"),
    )

    def epilogue(w, image, channel, position, value, mask):
        value = w.add(value, w.splat(w.load(w.at(w.slot(c.FREE), "float", channel), "float"), value.lanes))
        place = w.plus(w.times(w.plus(w.times(image, 11), channel), 8 * 37), position)
        return w.add(value, w.load(w.at(w.slot(c.FREE + 1), "float", place), "float", value.lanes, mask))

    found = forward(level, spec, x, w, epilogue, (bias, base))
    expected = ops._conv(x, w, spec.stride, spec.padding, spec.dilation, 1) + bias[:, None, None] + base
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_cuts_and_threads_do_not_change_bits(level):
    spec = c.Conv(np.float32, 11, 3, 7, (9, 21), (3, 3), (1, 2), ((1, 1), (1, 1)))
    x, w, g = numbers(spec)
    for function, given in ((forward, (x, w)), (images_gradient, (g, w)), (kernels_gradient, (x, g))):
        whole, cut = function(level, spec, *given), function(level, spec, *given, cuts=(0.2, 0.45, 0.8))
        assert whole.tobytes() == cut.tobytes()


# In programs --------------------------------------------------------------------------------------


def layer(x, w, b, seed, **at):
    """A layer with everything that is fused with it, and its gradients."""
    y = ad.nn.functional.relu(ad.nn.functional.conv2d(x, w, b, **at))
    return [y.detach(), *ad.gradients((y * y).sum() + (y[:, :1] * seed).sum(), (x, w, b))]


PROGRAMS = [
    ((3, 2, 9, 11), (5, 2, 3, 2), {}),
    ((2, 3, 7, 24), (6, 3, 3, 5), {"padding": (1, 2)}),
    ((2, 1, 12, 33), (9, 1, 3, 3), {"stride": (2, 3), "padding": 2, "dilation": (2, 1)}),
    ((1, 2, 1, 40), (1, 2, 1, 4), {"stride": (1, 2)}),
    ((4, 8, 8, 8), (7, 8, 8, 1), {}),
]


def program(case, dtype):
    x, w, at = case
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(s).astype(dtype) for s in (x, w, w[:1])]
    arrays[0] = np.ascontiguousarray(arrays[0].swapaxes(2, 3))  # the images are views

    def f(x, w, b):
        leaves = [t.detach().requires_grad_() for t in (x.swapaxes(2, 3), w, b)]
        return layer(*leaves, 0.5, **at)

    return f, [ad.tensor(a) for a in arrays]


def agree(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        same(a.numpy(), b.numpy())


@pytest.mark.parametrize("case", PROGRAMS, ids=str)
def test_programs_use_them(level, case):
    for dtype in (np.float32, np.float64):
        f, given = program(case, dtype)
        native = ad.compile(f, backend="native")
        wanted = ad.compile(f, backend="replay")(*given)
        for _ in range(2):
            agree(native(*given), wanted)
        assert native.explain().count("  conv ") >= 4


def test_threads_give_the_bits_of_one(monkeypatch):
    f, given = program(PROGRAMS[1], np.float32)
    alone = ad.compile(f, backend="native")(*given)
    monkeypatch.setattr(native, "CHUNK", 100.0)
    monkeypatch.setattr(native, "HELPED", 0.0)
    cut = ad.compile(f, backend="native")
    for _ in range(3):
        for a, b in zip(cut(*given), alone, strict=True):
            assert a.numpy().tobytes() == b.numpy().tobytes()


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_where_numpy_has_it(place, value):
    for case in PROGRAMS[:3]:
        f, given = program(case, np.float32)
        changed = given[place].numpy().copy()
        changed[0, 0, 0, -1] = value
        given[place] = ad.tensor(changed)
        with np.errstate(all="ignore"):
            wanted = ad.compile(f, backend="replay")(*given)
        for a, b in zip(ad.compile(f, backend="native")(*given), wanted, strict=True):
            np.testing.assert_array_equal(np.isfinite(a.numpy()), np.isfinite(b.numpy()))
