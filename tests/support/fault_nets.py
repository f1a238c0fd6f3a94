"""Training steps whose changes can be compared, and a device that fails at one call of its driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import adjoint as ad
from adjoint import nn, optim
from adjoint.errors import DeviceMemoryError


class Net:
    """A step with random numbers, a buffer, gradients and the state of an optimiser."""

    def __init__(self) -> None:
        rng = ad.random.default_rng(0)
        self.first, self.last = nn.Linear(3, 4, rng=rng), nn.Linear(4, 2, rng=rng)
        self.count = ad.tensor(np.zeros(2, "f4"))
        self.noise = ad.random.default_rng(7)
        self.opt = optim.Adam([*self.first.parameters(), *self.last.parameters()], lr=0.1)
        self.x = ad.tensor(np.linspace(-1, 1, 12, dtype="f4").reshape(4, 3))

    def step(self, x: Any) -> Any:
        self.opt.zero_grad()
        h = ad.tanh(self.first(x)) + self.noise.normal(size=(4, 4), dtype=np.float32)
        loss = (self.last(h) ** 2).mean()
        loss.backward()
        self.opt.step()
        with ad.no_grad():
            self.count.copy_(self.count + loss.detach())
        return loss

    def snapshot(self) -> Any:
        """Return all that a step changes, as bytes; it reads what is on the device."""
        params = [*self.first.parameters(), *self.last.parameters()]
        found: list[Any] = [p.detach().numpy().tobytes() for p in (*params, self.count)]
        found += [None if p.grad is None else p.grad.numpy().tobytes() for p in params]
        (unit,) = self.opt.groups[0].units
        state = unit.state or {}
        found += [(k, v.tobytes()) for k, v in sorted(state.items()) if v.any()]  # a trace makes zeros
        return [*found, self.opt.step_count, list(unit.steps), repr(self.noise.state)]


class Rows(Net):
    """The same step in a loop over rows that an index selects: the flag of its check is read."""

    def step(self, x: Any) -> Any:
        self.opt.zero_grad()

        def body(total: Any, i: Any) -> Any:
            return total + (self.last(ad.tanh(self.first(x[i]))) ** 2).sum(), None

        noise = self.noise.normal(dtype=np.float32)
        loss = ad.scan(body, ad.tensor(np.float32(0)), ad.tensor([0, 3, 1, 1, 2, 0, 3, 2]))[0] * noise
        loss.backward()
        self.opt.step()
        with ad.no_grad():
            self.count.copy_(self.count + loss.detach())
        return loss


class Faults:
    """Makes a device raise ``error`` at one call of its driver."""

    fail_at = -1
    error: Callable[[], BaseException] = KeyboardInterrupt

    @property
    def calls(self) -> list[str]:
        """The calls so far."""
        found: list[str] = self.__dict__.setdefault("_calls", [])
        return found

    def _count(self, what: str) -> None:
        self.calls.append(what)
        if len(self.calls) - 1 == self.fail_at:
            raise self.error()

    def _new(self, size: int) -> Any:
        self._count("alloc")
        return super()._new(size)

    def _write(self, memory: Any, array: Any) -> None:
        self._count("write")
        super()._write(memory, array)

    def _read(self, memory: Any, offset: int, array: Any) -> None:
        self._count("read")
        super()._read(memory, offset, array)

    def _fill(self, memory: Any, offset: int, size: int) -> None:
        self._count("fill")
        super()._fill(memory, offset, size)

    def _build(self, texts: Sequence[str]) -> None:
        self._count("build")
        super()._build(texts)

    def prepare(self, kernel: Any) -> Any:
        self._count("prepare")
        launch = super().prepare(kernel)

        def counted(places: Any) -> None:
            self._count("launch")
            launch(places)

        return counted


CALLS = {Net: {"write", "launch", "alloc"}, Rows: {"write", "launch", "alloc", "fill", "read"}}


def check_every_call(
    faulty: Any, compiled: Any, model: type, make: Any, raised: type[BaseException], first: bool
) -> None:
    """Nothing has changed, and the next call works, unless the device is lost."""
    faulty.error = make
    faulty.dialect.joins = False  # so that the host starts the kernels of loops
    reference = model()
    counted = compiled(reference.step)
    if not first:
        counted(reference.x)
    faulty.calls.clear()
    counted(reference.x)
    calls = list(faulty.calls)
    assert set(calls) - {"submit"} == CALLS[model] | ({"build", "prepare"} if first else set())
    wanted = reference.snapshot()
    for n in range(len(calls)):
        net = model()
        step = compiled(net.step)
        if not first:
            step(net.x)
        before = net.snapshot() if first else None  # reading would change what the call copies
        faulty.calls.clear()
        faulty.fail_at = n
        try:
            step(net.x)
        except raised:
            failed = True
        else:
            failed = False  # memory was freed, and the second try was successful
        used_again = n >= len(faulty.calls)  # memory of the last net
        assert failed or used_again or (raised is DeviceMemoryError and faulty.calls[n] == "alloc")
        faulty.fail_at, faulty.dead = -1, ""
        if failed:
            assert before is None or net.snapshot() == before
            step(net.x)
        assert net.snapshot() == wanted, (n, calls[n])
