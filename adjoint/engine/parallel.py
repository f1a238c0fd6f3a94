"""Run a plan in several threads; the results are bitwise equal to those of one thread.

The caller is one of the workers.  Helper threads are started when several nodes are ready, and end with the
run.  A worker takes nodes whose consumers are all done.  Contributions to a node or leaf are summed in the
order of the plan: later consumers first, then by argument index.  A contribution that arrives early waits,
and the memory of waiting contributions is limited.  So the result does not depend on the speed of the
workers.  See docs/adr/0003-parallel-backward.md.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from contextvars import copy_context
from heapq import heappop, heappush
from time import monotonic
from typing import Any

import numpy as np

from adjoint.context import crew as _inside
from adjoint.core.namespace import raw
from adjoint.core.node import Node
from adjoint.engine.plan import Plan
from adjoint.engine.pull import contribute
from adjoint.engine.run import Run, run_serial
from adjoint.errors import WorkerError
from adjoint.threads.helpers import LOOK_SECONDS, start_helper

__all__ = ["WAITING_BYTES", "run_parallel"]

# If waiting contributions take more memory than this, workers only take the first node in the order, whose
# contributions never wait.  A module constant, so that tests can change it.
WAITING_BYTES = 64 * 2**20

# How long an interrupted caller waits for helpers that are inside a rule or hook.
_PATIENCE_SECONDS = 1.0


def _crew_here() -> _Crew | None:
    reference = _inside.get()
    return None if reference is None else reference()


def run_parallel(plan: Plan, run: Run, workers: int) -> None:
    """Run ``plan`` in up to ``workers`` threads, including the caller's.

    A backward with ``create_graph``, one that a transform traces, and one inside a hook or rule of another
    parallel backward run in the caller's thread only.
    """
    around = _inside.get()
    other = _crew_here()
    nested = other is not None and not other.stopped
    if workers == 1 or nested or run.xp is not raw or len(plan.order) < 2:
        run_serial(plan, run)
        return
    crew = _Crew(plan, run, workers)
    try:
        _inside.set(weakref.ref(crew))
        crew.run_all()
    finally:
        _inside.set(around)


class _Inbox:
    """Collects the contributions to the gradient of one node or leaf, to sum them in a fixed order.

    The sum of the first ``taken`` contributions is in ``run.grads``.  Contributions that arrived early are in
    ``waiting``, by position.  Only the worker that set ``busy`` adds to the sum.
    """

    __slots__ = ("busy", "expected", "first", "index", "key", "taken", "waiting")

    def __init__(self, key: Any, index: int) -> None:
        self.key = key
        self.index = index  # the index of its node in the order; -1 for a leaf
        self.expected = 0
        self.taken = 0
        self.first = -1  # the position of the first contribution that is not None
        self.waiting: dict[int, Any] = {}
        self.busy = False

    def available(self) -> list[Any]:
        """Remove and return the waiting contributions that can be added now, in the order of the sum."""
        batch: list[Any] = []
        while self.taken in self.waiting:
            gp = self.waiting.pop(self.taken)
            if gp is not None and self.first < 0:
                self.first = self.taken
            self.taken += 1
            batch.append(gp)
        return batch


_Claims = list[tuple[_Inbox, list[Any]]]  # inboxes, each with the contributions that a worker adds to it


class _Crew:
    """The workers of one run and their shared state, which ``lock`` protects.

    No ``with`` block contains a loop: in some versions of CPython an interrupt at the jump back to the start
    of a loop skips the end of the block, and the lock would stay locked.  Such loops are in separate methods.
    Hooks and leaf events run under ``user_code``, one at a time, so that they may share state.
    """

    def __init__(self, plan: Plan, run: Run, workers: int) -> None:
        self.plan = plan
        self.run = run
        self.limit = workers - 1  # the largest number of helpers
        # Bare locks, not threading.Condition: that is Python code, and an interrupt of the caller inside it
        # can leave it locked.
        self.lock = threading.Lock()
        self.user_code = threading.Lock()
        self.bells = [threading.Lock() for _ in range(workers)]  # worker i sleeps on bells[i]
        self.departed = [threading.Lock() for _ in range(workers)]  # released when a helper has ended
        for bell in (*self.bells, *self.departed):
            bell.acquire()
        self.sleepers: list[int] = []
        self.stopped = True  # before the start, and after the end or an error
        self.errors: list[BaseException] = []
        self.helpers = 0
        self.in_hand = [-1] * workers  # the index of the node of each worker; the caller is worker 0
        self.waiting_bytes = 0
        self.seeded = set(run.grads)
        self.order, self.inboxes, self.edges = _wired(plan)
        self.ready = [i for i, node in enumerate(self.order) if not self.inboxes[node].expected]
        self.left = len(self.order)
        self.finished = bytearray(self.left)
        self.frontier = 0  # the first node in the order that is not finished
        for node in plan.order if plan.needed is not None else ():
            if node not in self.inboxes:
                run.grads.pop(node, None)  # the seed of a root that leads to no target

    # The life of a run ----------------------------------------------------------------------

    def run_all(self) -> None:
        """Run the plan; return or raise when every helper has ended."""
        self.context = copy_context()
        try:
            self.stopped = False
            try:
                self.work(0)
            except BaseException as error:
                self.fail(error)
            self.dismiss_all()
        finally:
            self.stopped = True  # helpers check it before each node
        if self.errors:
            try:
                raise self.first_error()
            finally:
                self.errors.clear()  # break the reference cycle of error, frame and run
        self.settle()

    def help(self, me: int, ended: threading.Lock) -> None:
        """Process nodes in the helper thread with index ``me``; an error is recorded for the caller.

        The lock ``ended`` is released at the end.
        """
        try:
            self.work(me)
        except BaseException as error:
            self.fail(error, me)
        finally:
            ended.release()

    def fail(self, error: BaseException, me: int = 0) -> None:
        """Record an error of worker ``me``, and stop all workers after their current node."""
        with self.lock:
            self.errors.append(error)
            self.stopped = True
            self.in_hand[me] = -1
            self.wake(len(self.sleepers))

    def dismiss_all(self) -> None:
        """Wait until every helper thread has ended, even if interrupts (Ctrl-C) arrive in the meantime."""
        while True:
            try:
                self.dismiss()
                return
            except BaseException as error:
                self.fail(error)

    def dismiss(self) -> None:
        """Wait until every helper has ended.

        After an interrupt, wait at most ``_PATIENCE_SECONDS``: a helper inside a rule or a hook ends after
        that rule or hook, and no longer changes anything.
        """
        interrupted = any(not isinstance(e, Exception) for e in self.errors)
        end = monotonic() + _PATIENCE_SECONDS
        for departed in self.departed[1 : self.helpers + 1]:
            if departed.acquire(timeout=max(0.0, end - monotonic()) if interrupted else -1):
                departed.release()  # for the next call, if an interrupt ends this one

    def first_error(self) -> BaseException:
        """Return the error to raise, with the other errors as notes; an interrupt has priority."""
        with self.lock:
            errors = list(self.errors)
        first = next((e for e in errors if not isinstance(e, Exception)), errors[0])
        for other in errors:
            if other is not first:
                first.add_note(f"Another worker failed too: {type(other).__name__}: {other}")
        return first

    def settle(self) -> None:
        """Reorder the leaves in ``run.grads`` as a serial run would have reached them."""
        run = self.run
        found, run.grads = run.grads, {}
        for row in self.edges:
            for target in row:
                if target is None or target[0].index >= 0 or target[0].key in self.seeded:
                    continue
                inbox, position = target
                if position == inbox.first and inbox.key in found:
                    run.grads[inbox.key] = found.pop(inbox.key)
        run.grads = {**found, **run.grads}  # a leaf that is a root came first

    # What each worker does ------------------------------------------------------------------

    def work(self, me: int) -> None:
        """Take ready nodes and pull the gradients through them until no node is left.

        ``me`` is the index of this worker.
        """
        with np.errstate(all="ignore"):
            self.work_on(me)

    def work_on(self, me: int) -> None:
        index = self.next_node(me)
        while index >= 0:
            index = self.process(me, index)

    def next_node(self, me: int) -> int:
        """Wait until a node is ready and return its index; return -1 at the end of the run."""
        while True:
            with self.lock:
                if me in self.sleepers:
                    self.sleepers.remove(me)
                if self.stopped or not self.left:
                    self.in_hand[me] = -1
                    return -1
                index = self.take(me, -1)
                if index >= 0:
                    return index
                self.sleepers.append(me)
            if not self.bells[me].acquire(timeout=LOOK_SECONDS):
                self.look_after_helpers()

    def take(self, me: int, own: int) -> int:
        """Return the index of a ready node for worker ``me``, or -1.  The caller holds the lock.

        ``own`` is the index of a node that this thread has just made ready, or -1.  It is preferred, because
        its gradient is still in the cache.
        """
        crowded = self.waiting_bytes > WAITING_BYTES
        if own >= 0 and crowded and own != self.frontier:
            heappush(self.ready, own)
            own = -1
        if own < 0 and self.ready and (not crowded or self.ready[0] == self.frontier):
            own = heappop(self.ready)
        self.in_hand[me] = own
        return own

    def wake(self, count: int) -> None:
        """Wake up to ``count`` sleeping workers.  The caller holds the lock.

        A released bell stays released until its worker acquires it, so no wake-up is lost.
        """
        for _ in range(min(count, len(self.sleepers))):
            bell = self.bells[self.sleepers.pop()]
            if bell.locked():
                bell.release()

    def look_after_helpers(self) -> None:
        """Raise if a helper thread ended in the middle of a node; the node would never be finished.

        A helper that has ended no longer changes anything, so this needs no lock.
        """
        for me, departed in enumerate(self.departed):
            if not departed.locked() and self.in_hand[me] >= 0:
                raise WorkerError(
                    f"the thread {_name(me)!r} ended while it differentiated "
                    f"{self.order[self.in_hand[me]].name!r}.\n"
                    "  Something outside adjoint ended it.  No .grad has changed: "
                    "run the forward and backward again."
                )

    def process(self, me: int, index: int) -> int:
        """Pull the gradient through node ``index``; return the index of the next node, or -1 at the end."""
        run, node = self.run, self.order[index]
        g = run.grads.pop(node, None)
        pulled: list[Any] | None = None
        if g is not None:
            zeros = run.zeros.pop(node, None)
            if node.extra is None:
                g, zeros = run.arrive(node, g, zeros)
            else:
                with self.user_code:
                    if self.stopped:
                        return self.next_node(me)
                    g, zeros = run.arrive(node, g, zeros)
            pulled = [None] * len(node.parents)
            run.step(run, node, g, zeros, self.plan.needed, pulled)
        del g
        complete = self.deliver(index, pulled)
        del pulled
        if self.plan.events:
            for inbox in complete:
                if inbox.index < 0 and type(inbox.key) is not Node and inbox.key not in self.seeded:
                    with self.user_code:
                        if self.stopped:
                            return self.next_node(me)
                        run.finish_leaf(inbox.key)
        following = self.finish(me, index, complete)
        return following if following >= 0 else self.next_node(me)

    def deliver(self, index: int, pulled: list[Any] | None) -> list[_Inbox]:
        """Add the contributions ``pulled`` to the parents of node ``index``.

        Return the inboxes of parents that have now received all contributions.
        """
        complete: list[_Inbox] = []
        shared: list[tuple[_Inbox, int, Any]] = []
        for i, target in enumerate(self.edges[index]):
            if target is None:
                continue
            inbox, position = target
            gp = None if pulled is None else pulled[i]
            if inbox.expected > 1:
                shared.append((inbox, position, gp))
                continue
            inbox.taken = 1  # the only contribution
            if gp is not None:
                inbox.first = 0
                self.sum_up(inbox.key, (gp,))
            complete.append(inbox)
        gp = None
        return complete + self.share(shared) if shared else complete

    def share(self, given: list[tuple[_Inbox, int, Any]]) -> list[_Inbox]:
        """Add contributions to parents that have several consumers.

        ``given`` has tuples (inbox of the parent, position in its sum, contribution).  Return the inboxes
        that have now received all contributions.
        """
        complete: list[_Inbox] = []
        with self.lock:
            claimed = self.claim(given)
        while claimed:
            for inbox, batch in claimed:
                self.sum_up(inbox.key, batch)
            with self.lock:
                claimed = self.let_go(claimed, complete)
        return complete

    def claim(self, given: list[tuple[_Inbox, int, Any]]) -> _Claims:
        """Store contributions in their inboxes, and mark the inboxes that can add some now as busy.

        ``given`` has tuples as in ``share``.  Return pairs of a marked inbox and the contributions to add.
        The caller holds the lock.
        """
        claimed = []
        for inbox, position, gp in given:
            inbox.waiting[position] = gp
            self.waiting_bytes += _nbytes(gp)
            if not inbox.busy and position == inbox.taken:
                inbox.busy = True
                claimed.append(inbox)
        given.clear()
        return [(inbox, inbox.available()) for inbox in claimed]

    def let_go(self, claimed: _Claims, complete: list[_Inbox]) -> _Claims:
        """Release the claimed inboxes after a sum.

        Return the inboxes that can add more contributions now, with these.  Inboxes with all contributions
        are appended to ``complete``.  The caller holds the lock.
        """
        more: _Claims = []
        for inbox, batch in claimed:
            self.waiting_bytes -= sum(map(_nbytes, batch))
            batch = inbox.available()
            if batch:
                more.append((inbox, batch))
                continue
            inbox.busy = False
            if inbox.taken == inbox.expected:
                complete.append(inbox)
        return more

    def sum_up(self, key: Any, batch: Sequence[Any]) -> None:
        """Add contributions to the gradient of ``key``, a node or leaf, in order, as a serial run does."""
        for gp in batch:
            if gp is not None:
                contribute(self.run, key, gp)

    def finish(self, me: int, index: int, complete: list[_Inbox]) -> int:
        """Mark node ``index`` as done; return the index of the next node for this worker, or -1.

        ``complete`` are the inboxes that have all contributions now.  Their other nodes are left to other
        workers.
        """
        with self.lock:
            self.left -= 1
            self.finished[index] = 1
            if index == self.frontier:
                self.frontier = self.finished.find(0, index)  # -1 at the end
            own = self.offer(complete)
            more = len(self.ready) > len(self.sleepers) and self.helpers < self.limit
            if more and self.stopped:
                more = False  # the caller may already wait for the helpers to end
            if more:
                self.helpers += 1
            helper = self.helpers
            self.wake(len(self.ready) if self.left else len(self.sleepers))
            following = -1 if self.stopped else self.take(me, own)
        if more:
            self.start(helper)
        return following

    def offer(self, complete: list[_Inbox]) -> int:
        """Return the lowest index of the nodes that are complete, or -1; queue the others as ready.

        The caller holds the lock.
        """
        own = -1
        for inbox in complete:
            i = inbox.index
            if i < 0:
                continue
            if own < 0 or i < own:
                own, i = i, own
            if i >= 0:
                heappush(self.ready, i)
        return own

    def start(self, me: int) -> None:
        """Start the helper thread with index ``me``, in the caller's context.

        If no thread can be started, the other workers do the work.
        """
        target = self.context.copy().run
        start_helper(target, (self.help, me), _name(me), self.departed[me], self.refuse)

    def refuse(self) -> None:
        """Start no more helpers, because the limit of threads is reached or the interpreter exits."""
        self.limit = 0


def _end_in_child() -> None:
    """Stop the run of a backward in a forked child process, which has no helper threads."""
    crew = _crew_here()
    if crew is None or not crew.helpers:
        return
    crew.lock = threading.Lock()  # a helper may have held the old one
    crew.helpers = 0
    crew.errors.append(
        WorkerError(
            "the process was forked inside backward(workers=...), and the child has no helper threads.\n"
            "  No .grad has changed in the child: run the forward and backward again there."
        )
    )
    crew.stopped = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_end_in_child)


def _name(me: int) -> str:
    return f"adjoint-backward-{me}"


_Edges = list[list[tuple[_Inbox, int] | None]]


def _wired(plan: Plan) -> tuple[list[Node], dict[Any, _Inbox], _Edges]:
    """Return the nodes in order, their inboxes by node, and the edges of each node.

    A node has one edge per parent: the inbox of the parent and the position of the contribution in the
    parent's sum, or None if no gradient is needed.
    """
    needed = plan.needed
    order = plan.order if needed is None else [n for n in plan.order if n in needed]
    inboxes = {node: _Inbox(node, i) for i, node in enumerate(order)}
    edges: _Edges = []
    for node in order:
        row: list[tuple[_Inbox, int] | None] = []
        for parent in node.parents:
            if parent is None or (needed is not None and parent not in needed):
                row.append(None)
                continue
            inbox = inboxes.get(parent)
            if inbox is None:
                inbox = inboxes[parent] = _Inbox(parent, -1)
            row.append((inbox, inbox.expected))
            inbox.expected += 1
        edges.append(row)
    return order, inboxes, edges


def _nbytes(gp: Any) -> int:
    return 0 if gp is None else int(gp.nbytes)
