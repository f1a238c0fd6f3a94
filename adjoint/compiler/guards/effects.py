"""Raise an error if a traced function draws random numbers, advances an iterator or sets hyper-parameters.

A trace runs the Python code of the function once.  The program would use the same random numbers, or the same
item, at each call, and would not set the hyper-parameters again.
"""

from __future__ import annotations

import itertools
import random
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from adjoint.core.roles import GroupRole, OptimizerRole
from adjoint.errors import TransformError

__all__ = ["Advances"]

_random: Any = np.random  # whose stubs lack functions
_DRAWS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)


class Advances:
    """Saves states of random generators, iterators and parameter groups; ``check`` compares them."""

    def __init__(self) -> None:
        self.known: dict[int, Any] = {}  # objects whose states are saved, by id
        self.hypers: list[tuple[Any, Any, Any]] = []
        self.states: list[tuple[Callable[[], Any], Callable[[Any], None] | None, Any]] = []
        self._save(random.getstate, random.setstate)
        self._save(_numpy_state, _set_numpy_state)

    def _save(self, read: Callable[[], Any], restore: Callable[[Any], None] | None) -> None:
        self.states.append((read, restore, read()))

    def add(self, value: Any) -> None:
        """Save the states of what a value is or has, if they are not saved yet."""
        for each in _stateful(value):
            if id(each) in self.known:
                continue
            self.known[id(each)] = each
            if isinstance(each, GroupRole):
                self.hypers.append((each, each.hyper, _comparable(each.hyper)))
            else:
                self._save(*_access(each))

    def check(self, name: str) -> None:
        """Raise TransformError if a saved state has changed; random generators are restored first."""
        drawn = advanced = False
        for read, restore, before in self.states:
            if _are_equal(read(), before):
                continue
            if restore is None:
                advanced = True
            else:
                drawn = True
                restore(before)
        if drawn:
            raise TransformError(
                f"ad.compile: {name} draws from a random generator of NumPy or Python, so each call would "
                "return the same numbers.\n"
                "  Use ad.random, or pass rng= to the layer: those draw new numbers at each call."
            )
        if advanced:
            raise TransformError(
                f"ad.compile: {name} gets an item from an iterator, so each call would use the same item.\n"
                "  Get the item outside of the compiled function, and pass it as an argument."
            )
        self._check_hyper(name)

    def _check_hyper(self, name: str) -> None:
        """Raise TransformError if a hyper-parameter of an optimiser has changed; restore its value first."""
        names: list[str] = []
        for group, hyper, before in self.hypers:
            now = _comparable(group.hyper)
            if now != before:
                names += [k for k in {**before, **now} if now.get(k) != before.get(k) and k not in names]
                group.hyper = hyper
                hyper.clear()
                hyper.update(before)
        if names:
            raise TransformError(
                f"{name} sets {', '.join(names)} of an optimiser, which cannot be done inside ad.compile.\n"
                "  Set it outside of the compiled function, which reads it at each call."
            )


def _stateful(value: Any) -> list[Any]:
    """Return the random generators, iterators and parameter groups that a value is or has."""
    if issubclass(type(value), (types.BuiltinFunctionType, types.MethodType)):  # rng.normal
        value = value.__self__
    if issubclass(type(value), OptimizerRole):
        return list(value.groups)
    known = issubclass(type(value), (*_DRAWS, GroupRole)) or _position(value) is not None
    return [value] * known


def _comparable(hyper: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of hyper-parameters with lists converted to tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in hyper.items()}


def _access(value: Any) -> tuple[Callable[[], Any], Callable[[Any], None] | None]:
    """Return functions that read and set the state of a generator; None: an iterator cannot be set."""
    if isinstance(value, random.Random):
        return value.getstate, value.setstate
    if isinstance(value, np.random.RandomState):
        return value.get_state, value.set_state
    if isinstance(value, (np.random.Generator, np.random.BitGenerator)):
        bits: Any = getattr(value, "bit_generator", value)
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    return lambda: _position(value), None


def _numpy_state() -> Any:
    """Return NumPy's global generator and its state."""
    return _random.get_bit_generator(), np.random.get_state(legacy=False)


def _set_numpy_state(before: Any) -> None:
    _random.set_bit_generator(before[0])
    np.random.set_state(before[1])


def _are_equal(a: Any, b: Any) -> bool:
    """Return whether two states of a generator or an iterator are equal."""
    try:
        return bool(a == b)
    except ValueError:  # arrays
        return bool(_frozen(a) == _frozen(b))


def _frozen(state: Any) -> Any:
    """Return the state of a generator with arrays converted to bytes."""
    if isinstance(state, np.ndarray):
        return state.tobytes()
    if isinstance(state, dict):
        return {k: _frozen(v) for k, v in state.items()}
    return tuple(map(_frozen, state)) if isinstance(state, tuple) else state


# Deprecated for iterators of itertools.  Python drops warnings from a namespace whose name is None.
_reduced: Callable[[Any], Any] = eval("lambda x: x.__reduce__()", {"__name__": None})


def _position(value: Any) -> Any:
    """Return the position of an iterator, in a form that can be compared; None if it cannot be found."""
    if type(value) is types.GeneratorType:
        frame = value.gi_frame
        return "end" if frame is None else (frame.f_lasti, {k: id(v) for k, v in frame.f_locals.items()})
    if type(value) is itertools.count:
        return repr(value)
    if type(value).__module__ in ("builtins", "itertools") and hasattr(type(value), "__next__"):
        with suppress(TypeError):  # iterators of itertools: until Python 3.13
            parts = _reduced(value)[1:]
            return tuple([_position_in(x) for p in parts for x in (p if isinstance(p, tuple) else (p,))])
    return None


def _position_in(part: Any) -> Any:
    """Return a value for comparing a part of an iterator: a length, a position, a constant or an id."""
    if isinstance(part, (list, tuple)):
        return len(part)
    found = _position(part)
    return found if found is not None else part if isinstance(part, (int, str, range)) else id(part)
