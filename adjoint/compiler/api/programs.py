"""The programs of a compiled function: which one runs a call, and when the function is traced again."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from adjoint.compiler.api.doctor import hint
from adjoint.compiler.api.variant import Variant
from adjoint.compiler.capture.arguments import Call, Parameters
from adjoint.compiler.capture.trace import BothError
from adjoint.core.tensor import Tensor
from adjoint.transforms.inputs import name_of
from adjoint.words import count

__all__ = ["Programs", "shapes_of"]

V = TypeVar("V")

_LENGTHS = 3  # after so many programs that differ only in lengths of axes, new lengths run the function first
_FEW, _OFTEN = 8, 32  # programs that are always kept; traces without a warning
_MANY = 10_000  # programs, and calls with new lengths, that are kept at most


class Programs:
    """The programs of a function, and what is known about the calls that need new ones."""

    _target: Any = None  # the device
    _leave: Callable[[], None]  # makes the next call look for its program here

    def __init__(
        self, f: Any, parameters: Parameters, backend: str, limit: int | None, flush: bool,
        level: str | None,
    ) -> None:  # fmt: skip
        self._f = f
        self._parameters = parameters
        self._backend, self._flush, self._level = backend, bool(flush), level
        self._limit = limit
        self._variants: list[Variant] = []  # the most recently used is first
        self._reasons: list[str] = []
        self._forget()

    def _forget(self) -> None:
        """Delete all programs and the statistics."""
        self._variants.clear()
        self._reasons.clear()
        self._warned = False
        self._unkept = 0  # the number of traces whose program can run one call only
        self._varying: set[Any] = set()  # integers and variables that have changed: programs read them
        self._lengths: set[Any] = set()  # keys of calls with new lengths of axes, which ran the function
        self._changed_once: set[Any] = set()  # variables with numbers that have changed
        self._constant: set[Any] = set()  # those for which the function needs plain numbers

    def _of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        return Call(args, kwargs, self._parameters, self._varying)

    def _known(self, call: Call) -> Variant | None:
        """Return the kept program that matches a call, and make it the first; None if no program matches."""
        variants = self._variants
        for n, v in enumerate(variants):
            if v.key == call.key and v.holds(*call.moving):
                if n:
                    variants.insert(0, variants.pop(n))
                return v
        return None

    def _traced(self, call: Call) -> Variant:
        """Trace the function for a call, and return the new program."""
        later = self._backend == "auto" and self._similar(call) >= _LENGTHS
        options = self._backend, self._parameters, self._flush, self._level, self._target
        return Variant(self._f, call, *options, self._varying, later)

    def _similar(self, call: Call) -> int:
        """Return the number of programs that differ from a call only in lengths of axes."""
        return sum(call.differs_in_shapes(v.key) for v in self._variants)

    def _has_new_lengths(self, call: Call) -> bool:
        """Return whether a call is the first with its lengths of axes, when several others have programs.

        Such a call runs the function itself, because a trace would take longer, unless the user has set the
        number of programs.
        """
        fixed = self._backend == "native" or self._target is not None or self._limit is not None
        if fixed or call.key in self._lengths:
            return False
        if self._similar(call) < _LENGTHS:
            return False
        if self._known(call) is not None:
            return False
        if len(self._lengths) >= _MANY:
            self._lengths.clear()
        self._lengths.add(call.key)
        return True

    def _matching(
        self, find: Callable[[Call], tuple[V, Call]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[V, Call]:
        """Return the program of a call, and the call, which ``find`` returns.

        If an argument is an object whose tensors the function reaches in another way too, as a model that an
        optimiser updates, the object is held from now on: its tensors are not traced as arguments.
        """
        try:
            return find(self._of(args, kwargs))
        except BothError as error:
            if not self._parameters.hold(args, kwargs, error.tensors):
                raise
        return find(self._of(args, kwargs))

    def _shown(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Variant:
        """Return the program for arguments; one that is traced for this purpose is not kept.

        Plain variables that the trace changes are restored.
        """

        def find(call: Call) -> tuple[Variant, Call]:
            found = self._known(call)
            if found is None:
                found = self._traced(call)
                found.reads.set_back()
            return found, call

        return self._matching(find, args, kwargs)[0]

    def _variant(self, call: Call) -> tuple[Variant, Call]:
        """Return the program for a call, and the call as the program takes it.

        If no program matches, the function is traced.
        """
        variants = self._variants
        found = self._known(call)
        if found is not None:
            return found, call
        reason = self._reason(call)
        call = self._varied(call)
        fresh = self._traced(call)
        if fresh.plainly:
            self._constant |= self._varying
            self._varying = set()
        self._reasons.append(reason)
        if fresh.trace.ranges and any(v.key == fresh.key and v.trace.ranges for v in variants):
            self._warn_once(
                f"is traced for each length of the range at {fresh.trace.ranges[0]}.\n"
                "  Use ad.fori_loop or ad.scan, which trace the body once, or list the argument in static= "
                "if a program per length is meant."
            )
        variants[:] = [fresh, *(v for v in variants if not v.changed)]
        self._unkept += bool(fresh.changed)
        self._limit_programs(reason)
        return fresh, call

    def _limit_programs(self, reason: str) -> None:
        """Delete the program that was used least recently if there are too many; warn about many traces.

        ``reason`` is that of the last trace.
        """
        variants, limit = self._variants, self._limit
        times, changed = count(len(self._reasons), "time"), variants[0].changed
        full = limit is None and len(variants) > _FEW and sum(v.memory() for v in variants) > _room()
        if full or len(variants) > (limit or _MANY):
            variants.pop()
            self._leave()
            kept = f"at most {count(limit or _MANY, 'program')} can be kept"
            text = f"was traced {times}, but {'there is no memory to keep more programs' if full else kept}."
        elif changed and self._unkept > (limit or _FEW):
            text = (
                f"was traced {times}, because it changes {changed[0]}, which it also reads.\n"
                "  A program changes only tensors and numbers, so the function is traced at each call.  "
                "Change the variable outside of the function, or make it a tensor."
            )
            return self._warn_once(text)
        elif limit is None and len(self._reasons) > _OFTEN and not self._lengths:
            text = f"was traced {times}."
        else:
            return None
        larger = ", or pass a larger limit=" if limit else ""
        return self._warn_once(
            f"{text}\n  Reason for the last trace: {reason}.  stats() lists all reasons.  Keep these "
            f"arguments and settings the same{larger}."
        )

    def _varied(self, call: Call) -> Call:
        """Return a call as a new program takes it: the program reads the numbers that have changed.

        These are integers among the arguments, and numbers outside that have changed twice or that the
        function itself changes.  Programs that a value of them was traced for are deleted.
        """
        new: set[Any] = set()
        for v in list(self._variants):
            changed = call.changed_integers(v.key, self._parameters)
            if v.changed or v.key == call.key or call.differs_in_shapes(v.key):
                numbers = set(v.reads.changed_numbers())
                changed |= numbers if v.changed else numbers & self._changed_once
                self._changed_once |= numbers
            changed -= self._constant | self._varying
            if changed:
                new |= changed
                self._variants.remove(v)
        if not new:
            return call
        self._varying = self._varying | new
        return self._of(*call.given)

    def _warn_once(self, text: str) -> None:
        """Issue a warning about the number of traces, unless there was one before."""
        if not self._warned:
            self._warned = True
            hint(f"ad.compile: {name_of(self._f)} {text}")

    def _reason(self, call: Call) -> str:
        """Return a sentence that says why no program matches a call."""
        if not self._variants:
            return "it was the first call"
        for v in self._variants:
            if v.key == call.key:
                return v.reason(call)
        return call.difference(self._variants[0].key, self._parameters)


@functools.cache
def _room() -> int:
    """Return how many bytes the programs of a function may take: a tenth of the machine's memory."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 10
    except (AttributeError, OSError, ValueError):  # not on this system
        return 1 << 30


def shapes_of(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the shapes of arrays and tensors among arguments, and in lists, tuples and dictionaries."""
    given = (*args, *kwargs.values()) if kwargs else args
    return tuple([a._data.shape if type(a) is Tensor else _shape_of(a) for a in given])


def _shape_of(a: Any) -> Any:
    kind = type(a)
    if kind is np.ndarray:
        return a.shape
    if kind is dict:
        return shapes_of((), a)
    return shapes_of(a, {}) if kind is list or kind is tuple else None
