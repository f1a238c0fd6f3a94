"""The plan of a backward: pure data, made by an iterative walk over the reachable nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from adjoint.core.node import Node

__all__ = ["Plan", "make_plan"]

_seq = attrgetter("seq")


class Plan:
    """The order of the nodes in a backward, and the number of contributions that each waits for.

    ``order`` contains every node once, newest first.  So a node comes after all its consumers, and the
    contributions to a tensor are summed in the same order in any number of threads.  ``needed`` is the set of
    nodes and leaves through which gradients must flow, or None for all.  With ``events``, the hooks and
    callbacks of a leaf run as soon as its gradient is complete, not at the end.  ``pending`` is then the
    number of contributions that each leaf waits for; a root that is a leaf has one more.
    """

    __slots__ = ("events", "needed", "order", "pending")

    def __init__(
        self, order: list[Node], needed: set[Any] | None, events: bool, pending: dict[Any, int]
    ) -> None:
        self.order = order
        self.needed = needed
        self.events = events
        self.pending = pending


def make_plan(
    roots: Sequence[Any],
    targets: Iterable[Any] | None = None,
    *,
    events: bool = False,
    only: set[int] | None = None,
    watched: Iterable[Any] = (),
    since: int = 0,
) -> Plan:
    """Plan the backward from ``roots`` (nodes or leaves) to all leaves, or only to ``targets``.

    With ``events``, or if a leaf has hooks, each leaf is finished as soon as its gradient is complete.
    ``only`` contains the sequence numbers of the nodes that may take part.  All other nodes are constants,
    and the run ends at the leaves and at the nodes in ``watched``.  Nodes with a number below ``since`` were
    recorded before a transform began, and are constants too.  A target among them ends the run and is not in
    ``order``.
    """
    order = [r for r in dict.fromkeys(roots) if type(r) is Node]
    pending: dict[Any, int] = {}
    if len(order) < len(roots):
        pending = {r: 1 for r in roots if type(r) is not Node}
        events = events or any(map(_hooked, pending))
    seen = set(order)
    limited = since or only is not None
    for node in order:  # the loop appends to ``order``
        for parent in node.parents:
            if type(parent) is Node:
                if parent in seen or (
                    limited and (parent.seq < since or (only is not None and parent.seq not in only))
                ):
                    continue
                seen.add(parent)
                order.append(parent)
            elif parent is not None:
                extra = parent._extra
                if events:
                    pending[parent] = pending.get(parent, 0) + 1
                # ``_hooked``, written out: leaves with a gradient have extra data
                elif extra is not None and (extra.hooks is not None or extra.post_hooks is not None):
                    # start again, with events
                    return make_plan(roots, targets, events=True, only=only, watched=watched, since=since)
    order.sort(key=_seq, reverse=True)
    if targets is None and only is not None:
        targets = {p for node in order for p in node.parents if not isinstance(p, Node)} - {None}
        targets.update(watched)
    needed = None if targets is None else _needed(order, set(targets))
    return Plan(order, needed, events, pending if events else {})


def _hooked(leaf: Any) -> bool:
    extra = leaf._extra
    return extra is not None and (extra.hooks is not None or extra.post_hooks is not None)


def _needed(order: list[Node], needed: set[Any]) -> set[Any]:
    """Add all nodes that depend on a target to ``needed``, the set of the targets; return this set."""
    for node in reversed(order):
        if node not in needed:
            for parent in node.parents:
                if parent is not None and parent in needed:
                    needed.add(node)
                    break
    return needed
