"""A native program needs at most as much memory as replay: the bytes of arrays, counted exactly."""

from __future__ import annotations

import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import adjoint as ad
from adjoint.compiler.host import plan
from adjoint.threads import spread

pytest.importorskip("llvmlite")
CASES = (
    "layer norm with gradients, 64×256", "attention step", "10^4 numbers", "hvp", "LeNet", "transformer",
    "MLP 1×8-16-16-1, SGD", "MLP 1×8-16-16-1, Adam", "MLP 32×64-128-128-10, SGD",
    "MLP 32×64-128-128-10, Adam", "MLP 64×784-256-256-10, SGD", "MLP 64×784-256-256-10, Adam",
)  # fmt: skip


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import benchmarks from this repository, and measure as in a new process with two cores.

    The workspace of kernels depends on the number of threads; a thread keeps scratch memory, which replay uses.
    """
    monkeypatch.setattr(spread, "_local", threading.local())
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2]), *sys.path])
    here = plan.machine()._replace(cores=2)
    monkeypatch.setattr(plan, "machine", lambda: here)


def test_arrays_are_counted_exactly() -> None:
    from benchmarks import arrays

    with arrays.counted():
        before = arrays.live()
        a = np.ones(1000)
        b = np.zeros((10, 10), np.float32)
        assert arrays.live() - before == a.nbytes + b.nbytes
        assert arrays.peak_of(lambda a=a: np.add(np.add(a, a), a)) - before == 3 * a.nbytes + b.nbytes
        a.resize(2000, refcheck=False)
        assert arrays.live() - before == 16000 + b.nbytes
        assert not a[1000:].any() and a[:1000].all()
        views = a[::2].reshape(10, 100), np.asarray(b)
        assert arrays.live() - before == 16000 + b.nbytes
    c = np.ones(10)
    del a, b, views
    assert arrays.live() == before and c.all()


@pytest.mark.parametrize("name", CASES)
def test_peak_is_at_most_that_of_replay(name: str) -> None:
    from benchmarks import arrays, builds

    (found,) = builds.names([name])
    case = builds.case_of(found)
    peaks = {}
    for backend in ("auto", "replay"):
        peaks[backend] = arrays.peak_of_calls(lambda b=backend: builds._step(case, b)[0])
    assert 0 < peaks["auto"] <= peaks["replay"]


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.sum(),
        lambda x: x.max(),
        lambda x: ad.exp(x - x.max()).sum(),
    ],
)
def test_a_length_that_does_not_factor_needs_no_longer_code(f) -> None:
    """Loops over rows of a prime length are not unrolled; the first call needs less than the array itself."""
    x = np.linspace(0, 1, 1_000_003, dtype=np.float32)
    compiled = ad.compile(f, backend="native")
    ad.compile(f, backend="native")(x[:1000])  # compiles what all programs share
    tracemalloc.start()
    found = compiled(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(found, f(ad.tensor(x)).numpy(), rtol=1e-3)
    assert peak < 1.5 * x.nbytes
