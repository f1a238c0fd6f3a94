"""The saved states of the global random generators of Python and NumPy, two Mersenne Twisters.

Their methods take 10 and 60 µs to return a state, because each of its 624 words becomes an object.  So the
memory of the generators is copied.  The layout is found on other generators.  If it is not as
expected, the methods are used.
"""

from __future__ import annotations

import ctypes
import functools
import random
import struct
import sys
from typing import Any

import numpy as np

__all__ = ["NumPyState", "PythonState", "equal_states"]

_random: Any = np.random  # whose stubs lack a function
_WORDS = 624
_PYTHON = struct.Struct(f"=i{_WORDS}I")  # the position and the words
_NUMPY = struct.Struct(f"={_WORDS}Ii")  # the words and the position
_KEPT = struct.Struct("@id")  # whether a second normal number is kept for the next draw, and the number


class PythonState:
    """Saves the state of the global generator of the module ``random``."""

    def __init__(self) -> None:
        self.generator: Any = getattr(random.random, "__self__", None)
        self.before = self._read()

    def _read(self) -> Any:
        place = _place_of_words() if type(self.generator) is random.Random else -1
        if place < 0:
            return random.getstate()
        return ctypes.string_at(id(self.generator) + place, _PYTHON.size), self.generator.gauss_next

    def restore(self) -> bool:
        """Restore the state if it has changed; return whether it has."""
        if self._read() == self.before:
            return False
        state = self.before
        if isinstance(state[0], bytes):
            position, *words = _PYTHON.unpack(state[0])
            state = self.generator.VERSION, (*words, position), state[1]
        random.setstate(state)
        return True


class NumPyState:
    """Saves the state of NumPy's global generator."""

    def __init__(self) -> None:
        self.generator = _random.get_bit_generator()
        self.before = self._read()

    def _read(self) -> Any:
        """Return the generator's state as bytes, or as a dictionary if the memory layout is not known.

        The bytes are two parts: the words with the position, and the second normal number that is kept.
        """
        place = _place_of_kept() if type(self.generator) is np.random.MT19937 else -1
        if place < 0:
            return np.random.get_state(legacy=False)
        words = ctypes.string_at(self.generator.ctypes.state_address, _NUMPY.size)
        return words, ctypes.string_at(id(_random.mtrand._rand) + place, _KEPT.size)

    def restore(self) -> bool:
        """Restore the state if it has changed; return whether it has."""
        if _random.get_bit_generator() is not self.generator:
            _random.set_bit_generator(self.generator)
        elif equal_states(self._read(), self.before):
            return False
        state = self.before
        if isinstance(state, tuple):
            *words, position = _NUMPY.unpack(state[0])
            kept, number = _KEPT.unpack(state[1])
            state = {
                "bit_generator": "MT19937",
                "state": {"key": np.array(words, np.uint32), "pos": position},
                "has_gauss": kept,
                "gauss": number,
            }
        np.random.set_state(state)
        return True


@functools.cache
def _place_of_words() -> int:
    """Return the offset in a ``random.Random`` object of its position and words; -1 if not known."""
    if sys.implementation.name != "cpython":
        return -1
    probe: Any = random.Random(1)
    *words, position = probe.getstate()[1]
    return ctypes.string_at(id(probe), type(probe).__basicsize__).find(_PYTHON.pack(position, *words))


@functools.cache
def _place_of_kept() -> int:
    """Return the offset in a ``RandomState`` object of the normal number that it keeps; -1 if not known."""
    if sys.implementation.name != "cpython" or not hasattr(_random.mtrand, "_rand"):
        return -1
    twister = np.random.MT19937(1)
    probe: Any = np.random.RandomState(twister)
    probe.normal()
    state = probe.get_state(legacy=False)
    words = _NUMPY.pack(*state["state"]["key"].tolist(), state["state"]["pos"])
    if ctypes.string_at(twister.ctypes.state_address, _NUMPY.size) != words:
        return -1
    whole = ctypes.string_at(id(probe), type(probe).__basicsize__)
    place = whole.find(struct.pack("d", state["gauss"])) - 8
    if place < 0 or struct.unpack_from("@i", whole, place)[0] != 1:
        return -1
    probe.normal()
    after = ctypes.string_at(id(probe) + place, 4)
    return place if struct.unpack("@i", after)[0] == 0 else -1


def equal_states(a: Any, b: Any) -> bool:
    """Return whether two states of a generator or an iterator are equal."""
    try:
        return bool(a == b)
    except ValueError:  # arrays
        return bool(_frozen(a) == _frozen(b))


def _frozen(state: Any) -> Any:
    """Return the state of a generator with arrays converted to bytes, so that states can be compared."""
    if isinstance(state, np.ndarray):
        return state.tobytes()
    if isinstance(state, dict):
        return {k: _frozen(v) for k, v in state.items()}
    return tuple(map(_frozen, state)) if isinstance(state, tuple) else state
