"""Generators of random tensors and their state."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from adjoint.config import special
from adjoint.core.lifted import made_by_host, refuse_tracing, tracing
from adjoint.core.roles import GeneratorRole
from adjoint.errors import ArgumentError, InputError
from adjoint.hints import Hinted
from adjoint.random.discrete import Discrete
from adjoint.random.gammas import Gammas

__all__ = ["Generator", "default_rng"]

KEYED = 2**32 - 1  # first number of the spawn keys of ``at``, so that they differ from those of ``spawn``


def default_rng(seed: Any = None) -> Generator:
    """Create a generator; the same seed gives the same draws.

    Parameters
    ----------
    seed : int, sequence of int, SeedSequence or Generator, optional
        The seed; by default one from the system. A Generator is returned unchanged.

    Returns
    -------
    Generator
        The generator.

    Raises
    ------
    InputError
        If the seed is not valid.

    Examples
    --------
    >>> a, b = default_rng(7), default_rng(7)
    >>> bool((a.normal(size=3) == b.normal(size=3)).all())
    True
    """
    if isinstance(seed, Generator):
        return seed
    if isinstance(seed, np.random.SeedSequence):
        return Generator(seed)
    try:
        return Generator(np.random.SeedSequence(seed), seed is not None)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"default_rng: the seed must be a non-negative integer, a sequence of such integers, or None, "
            f"but is {seed!r} ({error})."
        ) from None


class Generator(Gammas, Discrete, GeneratorRole, metaclass=Hinted):
    """Generator of random tensors; create one with ``default_rng``.

    Each draw changes the state, so a generator must not be used by several threads at the same time;
    ``spawn`` creates independent generators for them.  ``state`` can be read and set, for checkpoints.

    Parameters
    ----------
    seeds : np.random.SeedSequence
        The seeds of the generator.
    seeded : bool
        Whether the caller chose the seeds; otherwise they come from the system.

    Examples
    --------
    >>> rng = default_rng(0)
    >>> rng.normal(size=(2, 3)).shape
    (2, 3)
    """

    __slots__ = ("_seeds",)

    def __init__(self, seeds: np.random.SeedSequence, seeded: bool = True) -> None:
        self._start(seeds)
        if special.count and tracing.get() is not None:  # each call of the compiled function restarts it
            made_by_host(lambda: self._start(seeds if seeded else np.random.SeedSequence()), (0,), np.float64)

    def _start(self, seeds: np.random.SeedSequence) -> np.ndarray[Any, Any]:
        """Create NumPy's generator from ``seeds``, and return an empty array.

        The array has no meaning: ``made_by_host``, which repeats this call in each run of a compiled
        function, requires that the function returns an array.
        """
        self._seeds = seeds
        self._numpy = np.random.Generator(np.random.Philox(seeds))
        return np.empty(0)

    # The state -----------------------------------------------------------------------------

    @property
    def state(self) -> dict[str, Any]:
        """The complete state of the generator, as a dictionary of numbers and lists that JSON can store."""
        if special.count:
            refuse_tracing("Generator.state", "Read it before or after the compiled function.")
        philox: Any = self._numpy.bit_generator.state
        entropy: Any = self._seeds.entropy
        return {
            "bit_generator": "Philox",
            "counter": philox["state"]["counter"].tolist(),
            "key": philox["state"]["key"].tolist(),
            "buffer": philox["buffer"].tolist(),
            "buffer_pos": int(philox["buffer_pos"]),
            "has_uint32": int(philox["has_uint32"]),
            "uinteger": int(philox["uinteger"]),
            "entropy": int(entropy) if np.ndim(entropy) == 0 else [int(e) for e in entropy],
            "spawn_key": [int(k) for k in self._seeds.spawn_key],
            "spawned": int(self._seeds.n_children_spawned),
        }

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        if special.count:
            refuse_tracing("Generator.state", "Set it before or after the compiled function.")
        if not isinstance(state, dict) or state.get("bit_generator") != "Philox":
            raise InputError(
                "Generator.state: the state must be a dictionary that was read from Generator.state."
            )
        try:
            seeds = np.random.SeedSequence(
                state["entropy"], spawn_key=tuple(state["spawn_key"]), n_children_spawned=state["spawned"]
            )
            bits = np.random.Philox(seeds)
            words = {name: np.array(state[name], np.uint64) for name in ("counter", "key", "buffer")}
            numbers = {name: int(state[name]) for name in ("buffer_pos", "has_uint32", "uinteger")}
            philox: Any = {
                "bit_generator": "Philox",
                "state": {"counter": words["counter"], "key": words["key"]},
                "buffer": words["buffer"],
                **numbers,
            }
            bits.state = philox
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ArgumentError(f"Generator.state: the state is incomplete or damaged: {error!r}.") from None
        self._seeds, self._numpy = seeds, np.random.Generator(bits)

    def __getstate__(self) -> dict[str, Any]:
        return self.state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.state = state

    def __reduce__(self) -> Any:
        return default_rng, (0,), self.state

    def spawn(self, count: int) -> list[Generator]:
        """Create generators whose draws are independent of each other and of this one.

        Parameters
        ----------
        count : int
            How many generators.

        Returns
        -------
        list of Generator
            The generators.

        Examples
        --------
        >>> a, b = default_rng(0).spawn(2)
        >>> a.random().item() == b.random().item()
        False
        """
        if special.count:
            refuse_tracing("Generator.spawn", "Call it outside; rng.at(key) can be used inside.")
        return [Generator(seeds) for seeds in self._seeds.spawn(operator.index(count))]

    def at(self, *key: int) -> Generator:
        """Return a generator that depends only on the seed and a key, not on earlier draws.

        Parameters
        ----------
        *key : int
            Integers that are not negative, for example the numbers of the epoch and the batch.

        Returns
        -------
        Generator
            A generator whose draws are independent of this generator and of generators for other keys.

        Examples
        --------
        >>> rng = default_rng(0)
        >>> before = rng.at(3, 1).random().item()
        >>> _ = rng.random(5)
        >>> rng.at(3, 1).random().item() == before, rng.at(3, 2).random().item() == before
        (True, False)
        """
        found = (*self._seeds.spawn_key, KEYED, *map(operator.index, key))
        return Generator(np.random.SeedSequence(self._seeds.entropy, spawn_key=found))

    def __repr__(self) -> str:
        return f"Generator(seed={self._seeds.entropy})"
