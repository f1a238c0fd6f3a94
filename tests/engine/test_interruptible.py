"""Interrupts: no mode of a transform stays set, wherever the interrupt comes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import config
from adjoint.core import lifted, record, tensor

MODES: dict[str, tuple[ContextVar[Any], Any]] = {
    "enclosing": (lifted.enclosing, None),
    "grad_mode": (config.grad_mode, True),
    "tapes": (config.tapes, ()),
    "saved_hooks": (record.saved_hooks, None),
    "writes": (tensor.writes, None),
    "reading": (tensor.reading, None),
}

square = ad.custom_jvp(lambda x: x * x)
square.defjvp(lambda primals, tangents: (primals[0] * primals[0], 2 * primals[0] * tangents[0]))
sine = ad.custom_vjp(lambda x: ad.sin(x))
sine.defvjp(lambda x: (ad.sin(x), x), lambda x, g: (g * ad.cos(x),))
PAIR = np.array([0.5, 2.0])

PROGRAMS: dict[str, Callable[[], Any]] = {
    "vmap": lambda: ad.vmap(lambda x: ad.sin(x) * 2)(PAIR),
    "vmap of grad": lambda: ad.vmap(ad.grad(lambda x: ad.sin(x) * x))(PAIR),
    "jvp": lambda: ad.jvp(lambda x: ad.sin(x) * x, (1.0,), (1.0,)),
    "checkpoint": lambda: ad.grad(lambda x: ad.checkpoint(lambda a: ad.sin(a) * x, x))(1.0),
    "root": lambda: ad.grad(lambda x: ad.root(lambda u: u * u - x, 1.5))(2.25),
    "custom_jvp": lambda: ad.vmap(ad.grad(square))(PAIR),
    "custom_vjp": lambda: ad.vmap(ad.grad(sine))(PAIR),
}


def interrupted(program: Callable[[], Any], n: int) -> bool:
    """Run a program with an interrupt after its n-th call; tell whether it got so far.

    Python handles signals where a function starts and after each call of one in C; it calls a profiler there too.
    """
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        if event in ("call", "c_return"):
            count += 1
            if count == n:
                raise KeyboardInterrupt

    state = np.geterr()
    try:
        sys.setprofile(profile)
        program()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
        np.seterr(**state)  # an interrupt at the end of errstate.__enter__ leaves NumPy's error state set
    return count >= n


# An interrupt inside the end of a generator is only reported.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_interrupt_after_any_call_leaves_no_mode_set(name: str) -> None:
    program = PROGRAMS[name]
    program()
    n = 1
    while interrupted(program, n):
        left = [mode for mode, (variable, default) in MODES.items() if variable.get() is not default]
        for variable, default in MODES.values():
            variable.set(default)
        assert left == [], f"after call {n}"
        n += 1
    assert n > 100
