"""Native code is unloaded, and generated texts are forgotten, when no program uses them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from native import loaded

import adjoint as ad
from adjoint.compiler.build import llvm, units
from adjoint.compiler.build import texts as kernel_texts
from adjoint.compiler.emit import machine
from adjoint.compiler.emit.writer import Writer
from adjoint.compiler.host import entry, native

pytest.importorskip("llvmlite")
X = np.linspace(0.1, 1, 50)


def codes() -> set[int]:
    """The ids of the pieces of native code that are loaded."""
    gc.collect()
    return {id(c) for c in gc.get_objects() if type(c) is units._Code}


def storing(value: float) -> str:
    """A kernel that stores a number."""
    w = Writer(machine.machine())
    w.store(w.const(value, "double"), w.slot(0))
    return w.kernel()


def value_of(function: Any) -> float:
    out = np.zeros(1)
    table = np.array([out.ctypes.data])
    function(table.ctypes.data, 0, 1, 0, 0)
    return float(out[0])


@pytest.mark.filterwarnings("ignore:ad.compile:UserWarning")
@pytest.mark.parametrize("backward", [False, True])
def test_evicted_programs_are_unloaded(backward: bool) -> None:
    """A function that is traced again and again keeps the code of ``limit`` programs."""
    before, state, w = codes(), {"k": (0.0,)}, ad.tensor(X, requires_grad=backward)
    f = ad.compile(lambda x: ad.tanh(x * state["k"][0]) * w, backend="native", limit=3)
    plans, count = weakref.WeakSet[Any](), []
    made = native.Native.__init__

    def watched(self: Any, *args: Any, **kwargs: Any) -> None:
        plans.add(self)
        made(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native.Native, "__init__", watched)
        for k in range(9):
            state["k"] = (1.5 + k,)
            y = f(ad.tensor(X))
            np.testing.assert_allclose(y.numpy(), np.tanh(X * state["k"][0]) * X)
            if backward:
                y.sum().backward()
            del y
            count.append((len(codes() - before), len(plans)))
    assert count[2][0] > 0 and count[3:] == [count[3]] * 6  # no more than after the first eviction
    assert f.stats()["traces"] == 9
    del f
    assert codes() <= before and not plans


def test_texts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_texts, "_LIMIT", 3)
    for k in range(6):
        np.testing.assert_allclose(
            ad.compile(lambda x, k=k: x * (k + 0.25), backend="native")(X), X * (k + 0.25)
        )
        assert len(kernel_texts._known) <= 3


def test_code_is_loaded_as_long_as_a_program_uses_it() -> None:
    """Two programs with the same kernels share them."""
    before, f = codes(), lambda x: ad.exp(x) * 2.125
    one, two = (ad.compile(f, backend="native") for _ in range(2))
    wanted = one(X)
    shared = codes() - before
    assert two(X).tobytes() == wanted.tobytes() and codes() - before == shared
    del one
    assert codes() - before == shared and two(X).tobytes() == wanted.tobytes()
    del two
    assert codes() <= before


def test_code_of_old_jits_stays_loaded() -> None:
    """LLVM's JIT is replaced from time to time; each one lives as long as code that it loaded."""
    functions = [loaded(storing(k + 0.5)) for k in range(2 * llvm._LINKED + 1)]
    jit = weakref.ref(llvm._jit)
    assert [value_of(f) for f in functions] == [k + 0.5 for k in range(len(functions))]
    del functions[1:-1]
    assert jit() is not None and codes()
    assert [value_of(f) for f in functions] == [0.5, 2 * llvm._LINKED + 0.5]


def test_an_entry_keeps_its_kernels_loaded() -> None:
    before = codes()
    words = entry.Entry([entry.Record(units.function(storing(7.5)), [("made", 0)], [0, 1])], [],
                        [entry.Made(np.float64, (1,))], 0)  # fmt: skip
    gc.collect()
    assert words.call()[0].tolist() == [7.5]
    del words
    assert codes() <= before
