"""Modes: as context managers and decorators, in threads, tasks, generators and coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import errors
from adjoint.config import special
from adjoint.engine import anomaly


@pytest.fixture
def x() -> ad.Tensor:
    return ad.tensor([1.0, 2.0], requires_grad=True)


def test_no_grad_and_enable_grad(x: ad.Tensor) -> None:
    with ad.no_grad():
        assert not (x * 2).requires_grad and not ad.is_grad_enabled()
        with ad.enable_grad():
            assert (x * 2).requires_grad
    assert ad.is_grad_enabled()


def test_inference_mode_cannot_be_undone_inside(x: ad.Tensor) -> None:
    with ad.inference_mode():
        assert ad.is_inference_mode_enabled()
        with ad.enable_grad(), ad.set_grad_enabled(True):
            assert not (x * 2).requires_grad
        with pytest.raises(errors.TapeError, match="inference_mode"), ad.Tape():
            pass
    assert (x * 2).requires_grad
    with ad.inference_mode(False):
        assert (x * 2).requires_grad
    with ad.inference_mode(), ad.inference_mode(False), ad.enable_grad():
        assert ad.is_inference_mode_enabled() and not (x * 2).requires_grad
    with ad.no_grad(), ad.inference_mode(False):
        assert not (x * 2).requires_grad


def test_modes_are_restored_when_an_exception_passes(x: ad.Tensor) -> None:
    with pytest.raises(KeyError), ad.no_grad(), ad.inference_mode():
        raise KeyError
    assert ad.is_grad_enabled() and not ad.is_inference_mode_enabled()


def test_set_grad_enabled_also_works_as_a_call() -> None:
    try:
        ad.set_grad_enabled(False)
        assert not ad.is_grad_enabled()
        with ad.set_grad_enabled(True):
            assert ad.is_grad_enabled()
        assert not ad.is_grad_enabled()
    finally:
        ad.set_grad_enabled(True)

    @ad.set_grad_enabled(False)
    def inside() -> bool:
        return ad.is_grad_enabled()

    assert ad.is_grad_enabled() and not inside()
    again = ad.set_grad_enabled(False)
    with again:
        pass
    with ad.no_grad():
        with again:
            pass
        assert not ad.is_grad_enabled()  # the call is undone once, not at every use
    with pytest.raises(errors.InputError, match=r"write @ad\.set_grad_enabled\(False\)"):
        ad.set_grad_enabled(inside)  # type: ignore[arg-type]
    assert ad.is_grad_enabled()


def test_modes_decorate_without_parentheses_too() -> None:
    @ad.no_grad
    def quiet() -> bool:
        return ad.is_grad_enabled()

    @ad.no_grad
    @ad.enable_grad
    def loud() -> bool:
        return ad.is_grad_enabled()

    @ad.inference_mode
    def inferring() -> bool:
        return ad.is_inference_mode_enabled()

    @ad.detect_anomaly
    def careful() -> bool:
        return anomaly.is_on()

    assert [f() for f in (quiet, loud, inferring, careful)] == [False, True, True, True]
    assert quiet.__name__ == "quiet" and ad.is_grad_enabled() and not anomaly.is_on()
    with pytest.raises(errors.InputError, match="only a function can be decorated with a mode"):
        ad.no_grad(1.0)  # type: ignore[call-overload]


@pytest.mark.parametrize("mode", [ad.no_grad, ad.inference_mode])
def test_decorators(mode: Callable[[], Any]) -> None:
    @mode()
    def plain(depth: int) -> bool:
        return ad.is_grad_enabled() or (depth > 0 and plain(depth - 1))

    @mode()
    def generator() -> Iterator[bool]:
        try:
            received = yield ad.is_grad_enabled()
            assert received == "sent"
            yield ad.is_grad_enabled()
        finally:
            seen.append(ad.is_grad_enabled())

    @mode()
    async def coroutine() -> bool:
        before = ad.is_grad_enabled()
        await asyncio.sleep(0)
        return before or ad.is_grad_enabled()

    @mode()
    async def stream() -> AsyncIterator[bool]:
        yield ad.is_grad_enabled()
        await asyncio.sleep(0)
        yield ad.is_grad_enabled()

    async def drive() -> list[bool]:
        found = [await coroutine()]
        async for item in stream():
            found.append(item or not ad.is_grad_enabled())
        return found

    seen: list[bool] = []
    assert not plain(3) and plain.__name__ == "plain"
    steps = generator()
    assert next(steps) is False and ad.is_grad_enabled()
    assert steps.send("sent") is False and ad.is_grad_enabled()  # type: ignore[attr-defined]
    steps.close()  # type: ignore[attr-defined]
    assert seen == [False] and ad.is_grad_enabled()
    assert asyncio.run(drive()) == [False, False, False]


def test_a_generator_can_handle_what_is_thrown_into_it() -> None:
    @ad.no_grad()
    def steps() -> Iterator[object]:
        try:
            yield 1
        except KeyError:
            yield ad.is_grad_enabled()

    running = steps()
    next(running)
    assert running.throw(KeyError()) is False  # type: ignore[attr-defined]


def test_threads_and_tasks_have_their_own_modes() -> None:
    seen: list[bool] = []
    with ad.no_grad():
        thread = threading.Thread(target=lambda: seen.append(ad.is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]

    async def quiet() -> bool:
        with ad.no_grad():
            await asyncio.sleep(0)
            return ad.is_grad_enabled()

    async def loud() -> bool:
        await asyncio.sleep(0)
        return ad.is_grad_enabled()

    async def both() -> list[bool]:
        return list(await asyncio.gather(quiet(), loud(), quiet(), loud()))

    assert asyncio.run(both()) == [False, True, False, True]


def test_an_async_generator_gets_what_is_sent_and_thrown() -> None:
    seen: list[object] = []

    @ad.no_grad()
    async def steps() -> AsyncGenerator[object, object]:
        try:
            seen.append((yield 1))
            await asyncio.sleep(0)
            try:
                yield 2
            except KeyError:
                await asyncio.sleep(0)
                yield ad.is_grad_enabled()
        finally:
            await asyncio.sleep(0)
            seen.append(ad.is_grad_enabled())

    async def drive() -> None:
        running = steps()
        assert await running.__anext__() == 1
        assert await running.asend("sent") == 2 and ad.is_grad_enabled()
        assert await running.athrow(KeyError()) is False and ad.is_grad_enabled()
        await running.aclose()
        assert seen == ["sent", False] and ad.is_grad_enabled()
        failing = steps()
        await failing.__anext__()
        with pytest.raises(ZeroDivisionError):
            await failing.athrow(ZeroDivisionError())
        with pytest.raises(StopAsyncIteration):
            await failing.__anext__()

    asyncio.run(drive())


def test_anomalies_are_found_in_generators_and_coroutines() -> None:
    @ad.detect_anomaly()
    def generator() -> Iterator[bool]:
        yield anomaly.is_on()
        ad.log(ad.tensor(0.0))

    @ad.detect_anomaly()
    async def coroutine() -> bool:
        await asyncio.sleep(0)
        ad.log(ad.tensor(0.0))
        return anomaly.is_on()

    @ad.detect_anomaly()
    async def stream() -> AsyncIterator[bool]:
        yield anomaly.is_on()

    async def first() -> bool:
        async for item in stream():
            return item
        return False

    with np.errstate(divide="raise"):
        before = special.count, np.geterr()
        steps = generator()
        assert next(steps) is True and (special.count, np.geterr()) == before
        with pytest.raises(errors.AnomalyError, match="'log' produced inf"):
            next(steps)
        with pytest.raises(errors.AnomalyError, match="'log' produced inf"):
            asyncio.run(coroutine())
        assert asyncio.run(first())
        with ad.detect_anomaly():
            assert anomaly.is_on()
            with ad.detect_anomaly(False):
                assert not anomaly.is_on()
        assert (special.count, np.geterr()) == before and not anomaly.is_on()


@pytest.mark.parametrize(
    "mode", [ad.no_grad, ad.inference_mode, ad.detect_anomaly, lambda: ad.config.workers(2)]
)
def test_one_instance_serves_many_tasks_and_threads_at_once(mode: Callable[[], Any]) -> None:
    shared = mode()
    before = now = state()
    with shared:
        now = state()
    assert now != before

    async def task(turns: int) -> None:
        assert state() == before
        with shared:
            for _ in range(turns):
                await asyncio.sleep(0)
                with shared:
                    assert state() == now
            assert state() == now
        assert state() == before

    async def all_tasks() -> None:
        await asyncio.gather(*(task(turns) for turns in (3, 1, 2)))

    asyncio.run(all_tasks())
    inside, leave = threading.Barrier(2), threading.Barrier(2)
    seen: list[object] = []

    def thread() -> None:
        with shared:
            inside.wait(10)
            leave.wait(10)
            seen.append(state())
        seen.append(state())

    other = threading.Thread(target=thread)
    other.start()
    inside.wait(10)
    with shared:
        pass
    assert state() == before
    leave.wait(10)
    other.join()
    assert seen == [now, before] and state() == before


def test_modes_may_be_left_in_any_order() -> None:
    outer, inner = ad.no_grad(), ad.config.workers(3)
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert ad.is_grad_enabled() and ad.config.get_workers() == 3
    inner.__exit__(None, None, None)
    assert ad.config.get_workers() == 1
    inner.__exit__(None, None, None)  # not entered here: nothing to undo
    assert ad.config.get_workers() == 1


def state() -> tuple[object, ...]:
    return (
        ad.is_grad_enabled(),
        ad.is_inference_mode_enabled(),
        ad.config.get_workers(),
        anomaly.is_on(),
        tuple(np.geterr().values()),
    )
