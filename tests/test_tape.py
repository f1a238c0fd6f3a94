"""Tapes."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

import adjoint as ad
from adjoint import errors


def test_a_tape_watches_what_does_not_require_grad() -> None:
    x, c = ad.tensor(3.0), ad.tensor(2.0)
    with ad.Tape() as tape:
        tape.watch(x)
        y = c * x * x
    grads = tape.gradients(y)
    assert grads[x].item() == 12.0 and c not in grads and not x.requires_grad and x.grad is None
    assert not (x * x).requires_grad


def test_gradients_may_be_taken_inside_the_block() -> None:
    x = ad.tensor(3.0, requires_grad=True)
    with ad.Tape() as tape:
        y = x * x
        assert tape.gradients(y)[x].item() == 6.0


def test_only_what_runs_inside_takes_part() -> None:
    x = ad.tensor(3.0, requires_grad=True)
    before = x * x
    with ad.Tape(persistent=True) as tape:
        y = before * x
    assert tape.gradients(y)[x].item() == 9.0
    y.backward()
    assert x.grad is not None and x.grad.item() == 27.0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_result_from_before_the_block_is_a_boundary(workers: int) -> None:
    x = ad.tensor([3.0, 5.0], requires_grad=True)
    h, k = ad.split(x * x, 2)
    seen: list[float] = []
    h.register_hook(lambda g: seen.append(g.item()))
    x.register_hook(lambda g: seen.append(-1.0))
    with ad.Tape(persistent=True) as tape, ad.config.workers(workers):
        y = (h * 3.0 + k * h * x[0]).sum()
        for inputs in ([h], (t for t in [h, k]), h):
            assert tape.gradients(y, inputs)[h].tolist() == [78.0]  # 3 + k x
        assert tape.gradients(y, [k])[k].tolist() == [27.0] and seen == [78.0] * 3
        both = tape.gradients(y, [x, h])
        assert both[x].tolist() == [225.0, 0.0] and both[h].tolist() == [78.0]
        assert tape.gradients(y).keys() == [x]
    y.backward()  # nothing from before the block was released
    assert x.grad is not None and x.grad.tolist() == [78.0 * 6.0 + 225.0, 270.0]


def test_watched_results_are_in_the_store() -> None:
    x = ad.tensor(3.0, requires_grad=True)
    h = x * x
    with ad.Tape(persistent=True) as tape:
        tape.watch(h)
        inner = h * 3.0
        tape.watch(inner)
        y = inner * inner * x
    grads = tape.gradients(y)
    assert [grads[t].item() for t in (x, h, inner)] == [729.0, 486.0, 162.0] and len(grads) == 3
    assert tape.gradients(y, [x]).keys() == [x]
    kept = weakref.ref(inner)
    del inner, grads
    assert kept() is None and len(tape.gradients(y)) == 2
    with ad.Tape() as outer:
        outer.watch(h)
        with ad.Tape() as nested:
            nested.watch(h)
            z = h**3
        g = nested.gradients(z)[h]
    assert g.item() == 243.0 and outer.gradients(g)[h].item() == 54.0


def test_a_consumed_tape_says_so_and_a_persistent_one_goes_on() -> None:
    x = ad.tensor(3.0)
    with ad.Tape() as once:
        once.watch(x)
        y = x * x
    once.gradients(y)
    with pytest.raises(errors.TapeError, match=r"consumed.*\n.*persistent=True"):
        once.gradients(y)
    with ad.Tape(persistent=True) as often:
        often.watch(x)
        y, z = x * x, x * 2.0
    assert [often.gradients(t)[x].item() for t in (y, y, z)] == [6.0, 6.0, 2.0]


def test_nested_tapes_give_higher_derivatives() -> None:
    x = ad.tensor(2.0)
    with ad.Tape() as outer:
        outer.watch(x)
        with ad.Tape() as inner:
            inner.watch(x)
            y = x**4
        g = inner.gradients(y)[x]
    assert g.item() == 32.0 and outer.gradients(g)[x].item() == 48.0


def test_tapes_of_threads_and_tasks_never_see_each_other() -> None:
    x = ad.tensor(3.0)
    seen: list[bool] = []
    with ad.Tape() as tape:
        tape.watch(x)
        thread = threading.Thread(target=lambda: seen.append((x * x).requires_grad))
        thread.start()
        thread.join()
    assert seen == [False]

    async def task(watch: bool) -> bool:
        if not watch:
            await asyncio.sleep(0)
            return (x * x).requires_grad
        with ad.Tape() as own:
            own.watch(x)
            await asyncio.sleep(0)
            return own.gradients(x * x)[x].item() == 6.0

    async def both() -> list[bool]:
        return list(await asyncio.gather(task(True), task(False), task(True)))

    assert asyncio.run(both()) == [True, False, True]


def test_leaving_without_a_backward_frees_everything() -> None:
    x = ad.zeros(10)
    gc.disable()
    try:
        with ad.Tape() as tape:
            tape.watch(x)
            y = ad.exp(x)
        node = weakref.ref(y._node)
        watched = weakref.ref(x)
        del x, y
        assert node() is None and watched() is None
        assert "recorded" in repr(tape)
    finally:
        gc.enable()


def test_errors_of_a_tape() -> None:
    x = ad.tensor(3.0, requires_grad=True)
    tape = ad.Tape()
    with pytest.raises(errors.TapeError, match="recorded nothing"):
        tape.gradients(x * x)
    with pytest.raises(errors.TapeError, match="only inside its block"):
        tape.watch(x)
    with tape:
        with pytest.raises(errors.DTypeError, match="int64"):
            tape.watch(ad.tensor(1))
        with pytest.raises(errors.InputError, match="not float"):
            tape.watch(1.0)  # type: ignore[arg-type]
        y = x * x
    with pytest.raises(errors.TapeError, match="one block"), tape:
        pass
    with pytest.raises(errors.TapeError, match="not computed inside"):
        tape.gradients(x * 2.0)
    other = ad.tensor(1.0, requires_grad=True)
    with pytest.raises(errors.NoGradientError, match="no path leads"):
        tape.gradients(y, (t for t in [other]))
