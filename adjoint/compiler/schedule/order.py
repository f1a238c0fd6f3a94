"""Change the order of the groups of a native program, if fewer bytes are then needed at a time."""

from __future__ import annotations

from collections.abc import Sequence

from adjoint.compiler.schedule.fuse import GIVEN, Fusion

__all__ = ["order_for_memory"]

_FIXED = ("call", "repeat")  # kinds of groups that stay where they are


def order_for_memory(
    groups: Sequence[Fusion], stored: set[int], outputs: set[int], lasting: set[int],
    first: int, over: dict[int, int],
) -> list[Fusion]:  # fmt: skip
    """Return the groups in an order that needs at most as much memory as the given order.

    A group changes places with the one before it if the two then need fewer bytes; an example is a product
    that is the last to read a large value.  The ``first`` groups keep their places.  ``stored``, ``outputs``
    and ``lasting`` are the ids of nodes as in ``Memory``.  ``over`` maps the id of a node to the id of the
    input that it can be written over, if the groups that read the input run before.
    """
    use = _Sizes(groups, stored - outputs, lasting, over)
    found = list(groups)
    for k in range(first + 1, len(found)):
        while k > first and use.is_better(found[k - 1], found[k]):
            found[k - 1], found[k] = found[k], found[k - 1]
            use.swap(found[k], found[k - 1])
            k -= 1
    return found if use.peak(found) < use.peak(groups) else list(groups)


class _Sizes:
    """The sizes of the values that each group computes and reads, and the current order of the groups."""

    def __init__(
        self, groups: Sequence[Fusion], kept: set[int], lasting: set[int], over: dict[int, int]
    ) -> None:
        nodes = {n.id: n for g in groups for n in g.nodes}
        self.bytes = {i: n.nbytes for i, n in nodes.items() if i in kept and n.op not in ("call", *GIVEN)}
        self.made = {id(g): {n.id for n in g.nodes} for g in groups}
        self.read = {id(g): {a.node.id for n in g.nodes for a in n.args} - self.made[id(g)] for g in groups}
        self.new = {id(g): sum(self.bytes.get(i, 0) for i in self.made[id(g)]) for g in groups}
        self.lasting = lasting
        self.over = {id(g): {over[n.id] for n in g.nodes if n.id in over} for g in groups}
        self.place = {id(g): k for k, g in enumerate(groups)}
        self.readers: dict[int, list[int]] = {}  # by the id of a node: the ids of the groups
        for g in groups:
            for i in self.read[id(g)]:
                self.readers.setdefault(i, []).append(id(g))

    def is_better(self, a: Fusion, b: Fusion) -> bool:
        """Return whether ``b`` can run before ``a``, its predecessor, and the two then need fewer bytes."""
        if a.kind in _FIXED or b.kind in _FIXED or self.read[id(b)] & self.made[id(a)]:
            return False
        new_a, new_b = self.new[id(a)], self.new[id(b)]
        if not new_a or self.over[id(b)] & self.read[id(a)]:  # without new_a, this order needs no more memory
            return False
        return max(new_b, new_b - self._freed(b, a) + new_a) < max(new_a, new_a - self._freed(a, b) + new_b)

    def swap(self, a: Fusion, b: Fusion) -> None:
        """Exchange the positions of the groups ``a`` and ``b``."""
        self.place[id(a)], self.place[id(b)] = self.place[id(b)], self.place[id(a)]

    def peak(self, groups: Sequence[Fusion]) -> int:
        """Return the largest number of bytes in use at the same time, with the groups in this order."""
        place = {id(g): k for k, g in enumerate(groups)}
        ends: dict[int, int] = {}
        for i in self.bytes:
            if i not in self.lasting and i in self.readers:
                last = max(place[r] for r in self.readers[i])
                ends[last] = ends.get(last, 0) + self.bytes[i]
        now = most = 0
        for k, g in enumerate(groups):
            now += self.new[id(g)]
            most = max(most, now)
            now -= ends.get(k, 0)
        return most

    def _freed(self, a: Fusion, b: Fusion) -> int:
        """Return the number of bytes that can be freed after group ``a``, if it runs before group ``b``."""
        pair = max(self.place[id(a)], self.place[id(b)])
        found = 0
        for i in self.read[id(a)] - self.read[id(b)] - self.lasting:
            if i in self.bytes and all(self.place[r] <= pair for r in self.readers[i]):
                found += self.bytes[i]
        return found
