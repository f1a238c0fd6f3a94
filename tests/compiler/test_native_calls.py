"""Programs that mix kernels with calls of NumPy: one native entry makes the calls."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn, optim
from adjoint.errors import LinAlgError

pytest.importorskip("llvmlite")


def native(f: Any) -> Any:
    return ad.compile(f, backend="native")


def entry_of(compiled: Any) -> Any:
    return compiled._variants[0].native.entry


def close(found: Any, wanted: Any) -> None:
    for a, b in zip(ad.tree.leaves(found), ad.tree.leaves(wanted), strict=True):
        assert type(a) is type(b)
        a, b = (np.asarray(v.detach().numpy() if isinstance(v, ad.Tensor) else v) for v in (a, b))
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-12)


def mixed(x: Any, y: Any, s: float) -> Any:
    """Calls that read inputs, kernels' results, outputs, views, numbers and other calls' results."""
    h = ad.tanh(x) * s
    z = ad.special.dawsn(h)
    turned = ad.special.dawsn(h.T[1:])
    return {
        "exp": ad.exp(z) + h, "output of a call": z, "output that a call reads": h, "indices": ad.linalg.matrix_rank(y),
        "complex": ad.fft.fft(h).real * 2, "input": ad.special.dawsn(x), "view": turned + y[0, 0], "twice": ad.special.dawsn(z),
        "weak": s * 2, "sum": z.sum() + turned.sum(),
    }  # fmt: skip


def test_operands_and_results_of_calls() -> None:
    compiled, earlier = native(mixed), []
    for k in range(6):
        rng = np.random.default_rng(k)
        x, y = (ad.tensor(rng.normal(size=(4, 4))) for _ in range(2))
        found, wanted = compiled(x, y, 0.5 + k), mixed(x, y, 0.5 + k)
        close(found, wanted)
        earlier.append((found, wanted))
    assert entry_of(compiled) is not None
    for found, wanted in earlier:  # results are not overwritten by later calls
        close(found, wanted)


def test_large_results_are_not_copied() -> None:
    f = lambda x: ad.special.dawsn(ad.tanh(x)) * 2
    compiled, x = native(f), ad.tensor(np.random.default_rng(0).normal(size=20_000))
    for _ in range(2):
        close(compiled(x), f(x))
    assert entry_of(compiled) is None


def test_a_step_with_a_call_is_one_entry() -> None:
    def make() -> Any:
        model = nn.Sequential(nn.Linear(6, 8, rng=0), nn.Tanh(), nn.Linear(8, 2, rng=1)).astype(np.float64)
        optimizer = optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            errors = ((model(x) - y) ** 2).mean(1)
            loss = ad.special.dawsn(errors)[:6].mean()
            loss.backward()
            optimizer.step()
            return loss

        return step, model, optimizer

    (eager, model, o), (other, copied, p) = make(), make()
    compiled = native(other)
    for k in range(10):
        rng = np.random.default_rng(k)
        x, y = ad.tensor(rng.normal(size=(8, 6))), ad.tensor(rng.normal(size=(8, 2)))
        close(compiled(x, y), eager(x, y))
        close([*copied.state_dict().values()], [*model.state_dict().values()])
        assert o.step_count == p.step_count
    assert compiled._variants[0].execute.native is not None


def test_an_error_in_a_call_changes_nothing() -> None:
    state = ad.tensor(np.zeros(2))

    def f(x: Any) -> Any:
        z = ad.linalg.svdvals(x * 1.0)
        low = ad.linalg.cholesky(x * 2.0)  # native; fails before the call
        with ad.no_grad():
            state.copy_(z)
        return ad.special.dawsn(low.sum(0)) + z

    compiled = native(f)
    good, bad = np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([[1.0, 2.0], [2.0, 1.0]])
    close(compiled(ad.tensor(good)), f(ad.tensor(good)))
    for x in (bad, -bad):
        before = state.tolist()
        with pytest.raises(LinAlgError) as wanted:
            f(ad.tensor(x))
        state.copy_(np.array(before))
        with pytest.raises(LinAlgError) as found:
            compiled(ad.tensor(x))
        assert str(found.value) == str(wanted.value)
        assert state.tolist() == before
    close(compiled(ad.tensor(good)), f(ad.tensor(good)))


INSIDE: list[Any] = []  # functions that the op ``recalling`` calls


def _recalling(x: Any) -> Any:
    for f in INSIDE:
        f(x + 1.0)
    return np.sort(x)


recalling = ad.define("recalling", _recalling, None, kind="general")


def test_a_call_may_call_the_function_again() -> None:
    f = lambda x: ad.exp(recalling(ad.tanh(x)) * 1e-3) * recalling(x * 2.0)
    compiled = native(f)
    x = ad.tensor(np.linspace(1.0, 0.0, 5))
    wanted, depth = f(x), [0]

    def again(values: Any) -> None:
        if depth[0] < 2:
            depth[0] += 1
            compiled(ad.tensor(values))
            depth[0] -= 1

    compiled(x)
    INSIDE.append(again)
    try:
        for _ in range(3):
            close(compiled(x), wanted)
    finally:
        INSIDE.clear()


def test_interrupts_are_not_caught() -> None:
    def f(x: Any, k: Any) -> Any:
        return recalling(ad.tanh(x)) * x[k]  # an index is checked

    compiled = native(f)
    given = ad.tensor(np.linspace(1.0, 0.0, 5)), ad.tensor(np.array([4, 2, 2, 0, 1]))
    close(compiled(*given), f(*given))

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    INSIDE.append(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            compiled(*given)
    finally:
        INSIDE.clear()
    close(compiled(*given), f(*given))
    with pytest.raises(IndexError, match="out of range"):
        compiled(given[0], ad.tensor(np.array([4, 2, 9, 0, 1])))


def test_threads_do_not_mix_their_values() -> None:
    compiled, wrong = native(mixed), []

    def work(k: int) -> None:
        rng = np.random.default_rng(k)
        for _ in range(20):
            x, y = (ad.tensor(rng.normal(size=(4, 4))) for _ in range(2))
            try:
                close(compiled(x, y, 1.5), mixed(x, y, 1.5))
            except AssertionError as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
