"""The plan of a backward run: pure data, made by an iterative walk over reachable nodes only."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from adjoint.core.node import Node

__all__ = ["Plan", "make_plan"]

_seq = attrgetter("seq")


class Plan:
    """What a run will do.

    ``order`` has every node once, later recorded first: so a node comes after all its consumers,
    and contributions to a tensor are summed later consumers first, whatever runs them.
    ``needed`` are the nodes and leaves through which gradients must flow, or None for all.
    ``ready`` tells after which node a leaf that has hooks is complete.
    """

    __slots__ = ("needed", "order", "ready")

    def __init__(self, order: list[Node], needed: set[Any] | None) -> None:
        self.order = order
        self.needed = needed
        self.ready: dict[Node, list[Any]] = {}


def make_plan(
    roots: Iterable[Any],
    targets: Iterable[Any] | None = None,
    *,
    events: bool = False,
    only: set[int] | None = None,
    watched: Iterable[Any] = (),
    since: int = 0,
) -> Plan:
    """Plan the run from ``roots`` (nodes or leaves) to all leaves, or to ``targets`` alone.

    With ``events`` every leaf gets an entry in ``ready``, not only those that have hooks.
    ``only`` are the numbers of the nodes that may take part; all others are constants, and the
    run leads to the leaves and to the nodes in ``watched``.  Constants, too, are the ancestors
    with a number below ``since``: what was recorded before a transform began.  A target among
    such nodes is where the run ends: it is not in ``order``.
    """
    order = [r for r in dict.fromkeys(roots) if type(r) is Node]
    seen = set(order)
    limited = since or only is not None
    hooked = events
    for node in order:  # which grows on the way
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
                if extra is not None and (extra.hooks is not None or extra.post_hooks is not None):
                    hooked = True
    order.sort(key=_seq, reverse=True)
    if targets is None and only is not None:
        targets = {p for node in order for p in node.parents if not isinstance(p, Node)} - {None}
        targets.update(watched)
    plan = Plan(order, None if targets is None else _needed(order, set(targets)))
    if hooked:
        plan.ready = _last_consumers(order, plan.needed)
    return plan


def _needed(order: list[Node], needed: set[Any]) -> set[Any]:
    """Add to the targets every node that has one among its ancestors."""
    for node in reversed(order):
        if node not in needed:
            for parent in node.parents:
                if parent is not None and parent in needed:
                    needed.add(node)
                    break
    return needed


def _last_consumers(order: list[Node], needed: set[Any] | None) -> dict[Node, list[Any]]:
    ready: dict[Node, list[Any]] = {}
    seen: set[Any] = set()
    for node in reversed(order):
        for parent in node.parents:
            if parent is None or type(parent) is Node or parent in seen:
                continue
            seen.add(parent)
            if needed is None or parent in needed:
                ready.setdefault(node, []).append(parent)
    return ready
