"""Depth, memory and reference cycles."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

import adjoint as ad


def chain(x: ad.Tensor, length: int) -> ad.Tensor:
    y = x
    for _ in range(length):
        y = y * 1.000001
    return y


def test_a_million_operations_build_differentiate_and_are_released() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(200)  # nothing may recurse over the graph
    try:
        x = ad.tensor([1.0, 2.0], requires_grad=True)
        y = chain(x, 1_000_000)
        y.sum().backward()
        del y
        assert x.grad is not None
        assert x.grad.tolist() == pytest.approx([1.000001**1_000_000] * 2, rel=1e-9)
        y = chain(x, 300_000)
        del y  # released without a backward
    finally:
        sys.setrecursionlimit(limit)


def test_create_graph_does_not_recurse_either() -> None:
    x = ad.tensor([1.0, 2.0], requires_grad=True)
    y = x
    for _ in range(20_000):
        y = ad.sin(y)
    (g,) = ad.gradients(y.sum(), [x], create_graph=True)
    assert g is not None
    (h,) = ad.gradients(g.sum(), [x])
    assert h is not None and np.isfinite(h.numpy()).all()


def test_an_intermediate_that_no_rule_reads_is_not_kept() -> None:
    size = 100_000_000 // 8
    x = ad.zeros(size, requires_grad=True)
    tracemalloc.start()
    try:
        loss = (x + 1).sum()
        kept, peak = tracemalloc.get_traced_memory()
        assert kept < 100_000 and peak < 1.01 * 100_000_000
        loss.backward()
        assert tracemalloc.get_traced_memory()[0] < 100_000  # the gradient is ones, spread
    finally:
        tracemalloc.stop()


def test_only_what_the_wanted_gradients_read_is_kept() -> None:
    size = 1_000_000
    x, c = ad.ones(size, requires_grad=True), ad.ones(size)
    tracemalloc.start()
    try:
        y = (x + 1) * c  # reads c, which is there anyway, not x + 1
        kept = tracemalloc.get_traced_memory()[0]
        assert kept < 1.1 * 8 * size
        del y
        z = (x + 1) * 3.0
        assert tracemalloc.get_traced_memory()[0] < 1.1 * 8 * size
        del z
    finally:
        tracemalloc.stop()


def test_training_makes_no_reference_cycles() -> None:
    w = ad.tensor(np.eye(4), requires_grad=True)
    b = ad.zeros(4, requires_grad=True)

    def step() -> None:
        hidden = (w @ w + b).tanh()
        hidden.register_hook(lambda g: g * 1.0)
        parts = ad.split(hidden, 2)
        loss = (parts[0] ** 2).mean() + parts[1].max() + hidden[[0, 0]].sum()
        loss.backward()
        w.grad = b.grad = None

    for _ in range(10):
        step()
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        for _ in range(1000):
            step()
        assert len(gc.get_objects()) - before < 50
    finally:
        gc.enable()


def test_what_create_graph_keeps_is_collected() -> None:
    w = ad.tensor(np.eye(4), requires_grad=True)

    def step() -> None:
        (g,) = ad.gradients(((w @ w).tanh() ** 2).sum(), [w], create_graph=True)
        assert g is not None
        (g**2).sum().backward()
        w.grad = None

    step()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(50):
        step()
    gc.collect()
    assert len(gc.get_objects()) - before < 50


def test_thirty_diamonds_run_each_node_once() -> None:
    x = ad.tensor(1.0, requires_grad=True)
    y = x
    for _ in range(30):
        y = y + y
    y.backward()
    assert x.grad is not None and x.grad.item() == 2.0**30


FAULTS = """
import resource, numpy as np
import adjoint
adjoint.tensor(1.0, requires_grad=True).tanh().backward()
for _ in range(50):
    arrays = [np.ones(250_000) for _ in range(8)]
    if _ == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what glibc's malloc keeps")
def test_temporaries_are_not_paid_for_again_in_page_faults() -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    out = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, env=plain
    ).stdout
    assert int(out) < 1_000  # 40 rounds of 16 MB: 80,000 pages are written


def test_ops_of_any_number_of_tensors_remember_none_of_the_numbers() -> None:
    x, c = ad.tensor([1.0], requires_grad=True), ad.tensor([1.0])
    for n in range(2, 100):
        y = ad.concat([x, *[c] * n, x]).sum() + ad.stack([c, x] * n).sum()
    y.backward()
    assert x.grad.numpy() == 2 + n
    assert len(ad.OPS["concat"]._split) + len(ad.OPS["stack"]._split) == 0
