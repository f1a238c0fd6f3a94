"""Locks across a fork: all locks are acquired before a fork, so that they are free in the child."""

from __future__ import annotations

import os
import weakref
from typing import Any, TypeVar

__all__ = ["fork_count", "held_across_fork"]

L = TypeVar("L", bound=Any)

FIRST_WAIT, LAST_WAIT = 0.01, 0.5  # seconds


def held_across_fork(lock: L) -> L:
    """Register ``lock``, an ``RLock``, to be acquired before each fork and released after it; return it."""
    _forks.known.add(weakref.ref(lock, _forks.known.discard))
    return lock


def fork_count() -> int:
    """Return how many times this process was forked: 0 in the first process, 1 in its children."""
    return _forks.count


class _Forks:
    """Acquires all known locks before a fork, whatever the order in which other threads acquire them."""

    def __init__(self) -> None:
        self.known: set[weakref.ref[Any]] = set()
        self.held: list[Any] = []
        self.lost: list[Any] = []  # locks that could not be acquired before the fork
        self.count = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self.hold, after_in_parent=self.free, after_in_child=self.begin)

    def hold(self) -> None:
        """Acquire all locks.

        Another thread may have one lock and wait for one that is held here.  So after a while all locks are
        released, and the lock that was not free is acquired first.  If this thread is inside a block that
        holds a lock, such as a trace that forks, the other thread may wait for that lock.  Then a lock that
        is not free in the end is left out, and is made new in the child.
        """
        first: list[Any] = []
        wait = FIRST_WAIT
        while (busy := self._hold_all(first, wait)) is not None:
            first = [lock for lock in first if lock is not busy]
            if wait < LAST_WAIT or not self._owns_one():
                first.insert(0, busy)
                wait *= 2
            else:
                self.lost.append(busy)

    def _owns_one(self) -> bool:
        """Return whether this thread holds one of the locks; call this after ``_hold_all`` has failed."""
        locks = [lock for ref in self.known.copy() if (lock := ref()) is not None]
        return any(lock._is_owned() for lock in locks if hasattr(lock, "_is_owned"))

    def _hold_all(self, first: list[Any], wait: float) -> Any:
        """Acquire all locks, starting with those in ``first``; return None.

        If a lock is not free within ``wait`` seconds, release all locks and return that lock.
        """
        held: list[Any] = []
        known: set[weakref.ref[Any]] = set()
        locks = first
        while True:
            for lock in locks:
                if not lock.acquire(timeout=wait):
                    _release(held)
                    return lock
                held.append(lock)
            new = self.known - known  # last, the locks that other threads have added in the meantime
            if not new:
                break
            known |= new
            locks = [lock for ref in new if (lock := ref()) is not None and lock not in self.lost]
        self.held = held
        return None

    def free(self) -> None:
        """Release the locks that ``hold`` acquired.  Locks that were added since then are not touched."""
        held, self.held, self.lost = self.held, [], []
        _release(held)

    def begin(self) -> None:
        """Start the child: count the fork, and free all locks."""
        self.count += 1
        for lock in self.lost:
            lock._at_fork_reinit()
        self.free()


def _release(locks: list[Any]) -> None:
    for lock in reversed(locks):
        lock.release()


_forks = _Forks()
