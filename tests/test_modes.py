"""Modes: as context managers and decorators, in threads, tasks, generators and coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

import adjoint as ad
from adjoint import errors


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


@pytest.mark.parametrize("mode", [ad.no_grad, ad.inference_mode])
def test_decorators(mode: type) -> None:
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
