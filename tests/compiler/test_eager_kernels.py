"""Ops of large arrays run compiled kernels in eager mode: the same values within rounding, and fixed bits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint.compiler.host import single
from adjoint.core import kernels
from adjoint.core.namespace import raw
from adjoint.core.op import OPS

F = ad.nn.functional
Arrays = list[Any]


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_known", {})


def images(*shape: int, **options: Any) -> Arrays:
    return [normal(*shape, **options)]


def convolved(x: Any, w: Any) -> Any:
    return F.conv2d(x, w, stride=2, padding=1)


def attended(*qkv: Any) -> Any:
    return F.scaled_dot_product_attention(*qkv, is_causal=True)


def recurrent(kind: str) -> tuple[Callable[..., Any], Arrays]:
    layer = getattr(ad.nn, kind)(16, 32, batch_first=True, dtype=np.float32)
    return lambda x: layer(x)[0], images(16, 40, 16)


CASES: dict[str, tuple[Callable[..., Any], Arrays]] = {
    "conv2d": (convolved, [normal(8, 8, 32, 32), normal(16, 8, 3, 3)]),
    "conv1d": (F.conv1d, [normal(8, 8, 1024), normal(4, 8, 5)]),
    "conv_transpose2d": (F.conv_transpose2d, [normal(8, 16, 20, 20), normal(16, 8, 2, 2)]),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), images(8, 8, 64, 64)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), images(8, 8, 64, 64)),
    "LSTM": recurrent("LSTM"),
    "GRU": recurrent("GRU"),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (64,), w, b), [normal(1024, 64), normal(64), normal(64)]),
    "rms_norm": (lambda x: F.rms_norm(x, (64,)), images(1024, 64)),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), images(16, 8, 32, 32)),
    "softmax": (lambda x: ad.softmax(x, 1), images(64, 32, 64)),
    "log_softmax": (ad.log_softmax, images(1024, 64)),
    "cross_entropy": (lambda x: F.cross_entropy(x, np.arange(1024) % 64), images(1024, 64)),
    "attention": (attended, [normal(4, 4, 64, 32, seed=k) for k in range(3)]),
    "long attention": (attended, [normal(1, 1, 600, 24, seed=k) for k in range(3)]),
    "float64": (ad.softmax, images(256, 256, dtype=np.float64)),
    "transposed": (lambda x: ad.softmax(x.T, 0), images(512, 128)),
    "not finite": (lambda x: ad.softmax(ad.where(x > 3, ad.nan, x)), images(512, 128)),
}


def computed(f: Callable[..., Any], arrays: Arrays) -> list[Any]:
    """The value of ``f`` and the gradients of a weighted sum of it."""
    values = [ad.tensor(a, requires_grad=True) for a in arrays]
    y = f(*values)
    seed = normal(*y.shape, dtype=y.dtype, seed=1) if y.shape else None
    return [
        y.numpy() if not y.requires_grad else y.detach().numpy(),
        *(g.numpy() for g in ad.gradients(y, values, seed)),
    ]


@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_what_numpy_computes(name: str) -> None:
    found = computed(*CASES[name])
    assert len(kernels._known) > 1
    assert None not in kernels._known.values()
    again = computed(*CASES[name])
    with ad.config.eager_kernels(False):
        expected = computed(*CASES[name])
    for a, b, c in zip(found, again, expected, strict=True):
        assert a.tobytes() == b.tobytes()
        assert a.dtype == c.dtype
        scale = np.nanmax(np.abs(c))
        np.testing.assert_allclose(a, c, rtol=2e-4, atol=2e-5 * scale)


def test_every_op_with_kernels_is_in_a_case() -> None:
    for f, arrays in CASES.values():
        computed(f, arrays)
    ran = {key[0] for key in kernels._known}
    others = {op.name for op in OPS.values() if op.plain is not None and op.lower not in ran}
    assert others == {"max_gather", "lstm_cell"}  # of forward mode, and of single steps


def test_small_arrays_and_other_dtypes_run_on_numpy() -> None:
    computed(ad.softmax, [normal(16, 16)])
    F.conv1d(np.ones((8, 8, 1024), int), np.ones((4, 8, 5), int))
    assert not any(kernels._known.values())


def test_a_kernel_that_needs_much_memory_is_not_used() -> None:
    with ad.no_grad():
        F.conv3d(normal(4, 8, 16, 16, 16), normal(8, 8, 3, 3, 3))  # its windows have 27 times the size
    assert [*kernels._known.values()] == [None]


def test_a_numpy_scalar_is_no_constant_of_a_kernel() -> None:
    x, t = normal(1024, 64), np.arange(1024) % 64
    OPS["softmax_nll"].rules[0](raw, np.float32(0.5), None, x, t)
    assert [key[0] for key in kernels._known] == [OPS["softmax"].lower]  # which the rule calls on NumPy


def test_without_llvmlite_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    with ad.config.eager_kernels(False):
        expected = computed(*CASES["conv2d"])
    monkeypatch.setattr(single, "has_llvm", lambda: False)
    found = computed(*CASES["conv2d"])
    assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]


def test_replay_equals_eager_mode_without_kernels() -> None:
    f, arrays = CASES["conv2d"]
    step = ad.compile(lambda *xs: computed_sum(f, xs), backend="replay")
    values = [ad.tensor(a, requires_grad=True) for a in arrays]
    with ad.config.eager_kernels(False):
        expected = computed_sum(f, values)
    for _ in range(3):
        found = step(*values)
    assert [a.numpy().tobytes() for a in found] == [a.numpy().tobytes() for a in expected]


def computed_sum(f: Callable[..., Any], values: Any) -> list[Any]:
    y = (f(*values) ** 2).sum()
    return [y.detach(), *ad.gradients(y, values)]


@pytest.mark.parametrize("name", ["conv2d", "layer_norm", "attention", "LSTM"])
def test_parallel_backward_and_checkpoints_give_the_same_bits(name: str) -> None:
    f, arrays = CASES[name]
    values = [ad.tensor(a, requires_grad=True) for a in arrays]
    serial = computed_sum(f, values)
    with ad.config.workers(2):
        parallel = computed_sum(f, values)
    stored = computed_sum(lambda *xs: ad.checkpoint(f, *xs), values)
    for a, b, c in zip(serial, parallel, stored, strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes() == c.numpy().tobytes()


def test_threads_run_kernels_at_the_same_time() -> None:
    names = ("conv2d", "layer_norm", "conv2d", "LSTM")
    expected = {name: [a.tobytes() for a in computed(*CASES[name])] for name in names}
    found: list[bool] = []
    start = threading.Barrier(4)

    def work(k: int) -> None:
        start.wait()
        for _ in range(5):
            for name in (*names[k:], *names[:k]):
                found.append([a.tobytes() for a in computed(*CASES[name])] == expected[name])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [True] * 80


def test_kernels_share_memory_and_do_not_read_what_others_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single, "_arenas", [])
    inputs = [(normal(4, 8, n, 64), normal(16, 8, 3, 3)) for n in range(40, 60)]
    expected = [computed(convolved, x) for x in inputs]
    sizes = [a.memory.size for a in single._arenas]
    assert len(kernels._known) >= 40 and sum(sizes) <= 2 * max(sizes)
    for x, wanted in zip(inputs, expected, strict=True):
        for arena in single._arenas:
            arena.memory[:] = 255
        assert [a.tobytes() for a in computed(convolved, x)] == [a.tobytes() for a in wanted]


def test_forms_above_the_limit_run_on_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "LIMIT", 2)
    for n in range(512, 516):
        with ad.no_grad():
            ad.softmax(ad.tensor(normal(n, 64)))
    assert len(kernels._known) == 2


def test_errors_are_those_of_numpy() -> None:
    with pytest.raises(ad.errors.ShapeError, match="conv2d: with groups=1"):
        F.conv2d(normal(8, 8, 64, 64), normal(4, 7, 3, 3))
    with pytest.raises(ad.errors.ArgumentError, match="eager_kernels: expected True or False, but got 1"):
        ad.config.eager_kernels(1)  # type: ignore[arg-type]


def test_define_checks_what_kernels_need() -> None:
    with pytest.raises(ad.errors.ArgumentError, match="kernel must be"):
        ad.define("no_kernel", np.cumsum, None, kernel="all", kind="general")
