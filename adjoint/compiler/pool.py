"""Run the kernel calls of a program; native helper threads share the longer ones.

A record describes a kernel call: its function, its arguments, and the bounds of the chunks of its outermost
loop.  The caller takes chunks from the front and helpers take them from the back.  The caller waits only for
chunks that a helper has already taken, so a helper that is late costs nothing.  The result is the same bit
for bit, whichever thread runs a chunk.

Consecutive records that do not depend on each other can form a *run*: threads take chunks of all of them, and
the caller waits only once, at the end of the run.

When other programs use the processors, the system may stop a helper in the middle of a chunk for some
milliseconds, or run it on the processor of the caller.  After either, the caller works alone for a while.

Helpers are POSIX threads that never call Python.  They spin for a while after their last chunk, then sleep on
a futex.  They exist on Linux only; on other systems the caller runs all chunks.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.compiler import units
from adjoint.compiler.machine import binding
from adjoint.config import held_across_fork

__all__ = ["MAX_CHUNKS", "RECORD", "addresses", "chunks_helped", "helpers", "records", "start", "trust"]

# Words of a record: function, arguments, number of chunks, address of the chunk bounds; the first record of a
# run also has the number of records and of chunks of the run.
RECORD = 6
MAX_CHUNKS = 4096
SPIN = 20_000  # rounds before a helper sleeps: about half a millisecond
LATE = 20_000  # nanoseconds that a helper may take for its last chunk, beside twice what the caller takes
REST, LONGEST = 4, 20_000_000  # how long the caller is alone: times the wait, and nanoseconds at most
CROWDED = 1_000_000  # nanoseconds that it is alone after a helper was on its processor

# One word describes the current job, so that a late helper cannot mix two jobs:
# bits 0–15 chunks taken from the front, 16–31 taken from the back, 32–47 all chunks, 48–63 number of helpers.
_TEXT = r"""
@ticket = internal global [8 x i64] zeroinitializer, align 64
@finished = internal global [8 x i64] zeroinitializer, align 64
@alarm = internal global [8 x i64] zeroinitializer, align 64
@sleepers = internal global [8 x i64] zeroinitializer, align 64
@busy = internal global [8 x i64] zeroinitializer, align 64
@job = internal global ptr null, align 64
@helped = internal global [8 x i64] zeroinitializer, align 64
@until = internal global [8 x i64] zeroinitializer, align 64
@place = internal global [8 x i64] zeroinitializer, align 64

declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
PAUSE_DECLARATION
THREAD_DECLARATIONS

define internal i1 @left(i64 %ticket) {
  %front = and i64 %ticket, 65535
  %back.0 = lshr i64 %ticket, 16
  %back = and i64 %back.0, 65535
  %all.0 = lshr i64 %ticket, 32
  %all = and i64 %all.0, 65535
  %taken = add i64 %front, %back
  %some = icmp slt i64 %taken, %all
  ret i1 %some
}

; Run chunk %number of a run that starts with the record %first.
define internal void @chunk(ptr %first, i64 %number, i64 %thread) {
entry:
  br label %find
find:
  %record = phi ptr [ %first, %entry ], [ %after, %next ]
  %k = phi i64 [ %number, %entry ], [ %rest, %next ]
  %at.own = getelementptr i64, ptr %record, i64 2
  %own = load i64, ptr %at.own
  %here = icmp slt i64 %k, %own
  br i1 %here, label %found, label %next
next:
  %rest = sub i64 %k, %own
  %after = getelementptr i64, ptr %record, i64 RECORD
  br label %find
found:
  %function = load ptr, ptr %record
  %at.args = getelementptr i64, ptr %record, i64 1
  %args = load ptr, ptr %at.args
  %at.cuts = getelementptr i64, ptr %record, i64 3
  %cuts = load ptr, ptr %at.cuts
  %at.low = getelementptr i64, ptr %cuts, i64 %k
  %low = load i64, ptr %at.low
  %at.high = getelementptr i64, ptr %at.low, i64 1
  %high = load i64, ptr %at.high
  call void %function(ptr %args, i64 %low, i64 %high, i64 %k, i64 %thread)
  ret void
}

; Return how many helpers may take part now.
define internal i64 @present(i64 %helpers) {
  %until = load atomic i64, ptr @until monotonic, align 8
  %none = icmp eq i64 %until, 0
  br i1 %none, label %all, label %look
look:
  %now = call i64 @now()
  %past = icmp sge i64 %now, %until
  br i1 %past, label %again, label %alone
again:
  store atomic i64 0, ptr @until monotonic, align 8
  br label %all
all:
  ret i64 %helpers
alone:
  ret i64 0
}

; Leave helpers out for a while if the last chunks of a record took them too long.
define internal void @judge(i64 %began, i64 %ended, i64 %done) {
  %now = call i64 @now()
  %waited = sub i64 %now, %ended
  %own = sub i64 %ended, %began
  %counted = call i64 @llvm.umax.i64(i64 %done, i64 1)
  %each = udiv i64 %own, %counted
  %twice = mul i64 %each, 2
  %fair = add i64 %twice, LATE
  %late = icmp sgt i64 %waited, %fair
  br i1 %late, label %leave, label %end
leave:
  %rest.0 = mul i64 %waited, REST
  %rest = call i64 @llvm.umin.i64(i64 %rest.0, i64 LONGEST)
  %until = add i64 %now, %rest
  store atomic i64 %until, ptr @until monotonic, align 8
  br label %end
end:
  ret void
}

; Let helpers take part at once.
define void @trust() {
  store atomic i64 0, ptr @until monotonic, align 8
  ret void
}

; Run records with several chunks, together with the helpers.
define internal void @share(ptr %record, i64 %count, i64 %helpers) {
entry:
  %rest = load atomic i64, ptr @until monotonic, align 8
  %absent = icmp ne i64 %rest, 0
  %nobody = icmp eq i64 %helpers, 0
  %none = or i1 %absent, %nobody
  br i1 %none, label %alone, label %try
try:
  %took = cmpxchg ptr @busy, i64 0, i64 1 acquire monotonic
  %mine = extractvalue { i64, i1 } %took, 1
  br i1 %mine, label %offer, label %alone
alone:
  %k = phi i64 [ 0, %entry ], [ 0, %try ], [ %k.next, %alone ]
  call void @chunk(ptr %record, i64 %k, i64 0)
  %k.next = add i64 %k, 1
  %more = icmp slt i64 %k.next, %count
  br i1 %more, label %alone, label %end
offer:
  %began = call i64 @now()
  store ptr %record, ptr @job
  store atomic i64 0, ptr @finished release, align 8
  %all = shl i64 %count, 32
  %limit = shl i64 %helpers, 48
  %ticket = or i64 %all, %limit
  store atomic i64 %ticket, ptr @ticket release, align 8
  br label %take
take:
  %done = phi i64 [ 0, %offer ], [ %done.next, %work ]
  %found = atomicrmw add ptr @ticket, i64 1 acq_rel
  %some = call i1 @left(i64 %found)
  br i1 %some, label %work, label %join
work:
  %front = and i64 %found, 65535
  call void @chunk(ptr %record, i64 %front, i64 0)
  %done.next = add i64 %done, 1
  br label %take
join:
  %theirs = sub i64 %count, %done
  %before = load i64, ptr @helped
  %after = add i64 %before, %theirs
  store i64 %after, ptr @helped
  %ready.0 = load atomic i64, ptr @finished acquire, align 8
  %all.ready.0 = icmp sge i64 %ready.0, %theirs
  br i1 %all.ready.0, label %leave, label %early
early:
  %ended = call i64 @now()
  br label %wait
wait:
  %round = phi i64 [ 0, %early ], [ %round.next, %again ]
  %ready = load atomic i64, ptr @finished acquire, align 8
  %all.ready = icmp sge i64 %ready, %theirs
  br i1 %all.ready, label %look, label %spin
spin:
  PAUSE
  %round.next = add i64 %round, 1
  %long = icmp sgt i64 %round.next, 2000
  br i1 %long, label %yield, label %again
yield:
  YIELD
  br label %again
again:
  br label %wait
look:
  call void @judge(i64 %began, i64 %ended, i64 %done)
  br label %leave
leave:
  store atomic i64 0, ptr @busy release, align 8
  br label %end
end:
  ret void
}

; Run records in order.  A run of which only some records are given is not shared as a whole.
define void @run(ptr %records, i64 %count, i64 %wanted) {
entry:
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %start, label %end
start:
  %helpers = call i64 @present(i64 %wanted)
  %multi = icmp sgt i64 %helpers, 0
  br i1 %multi, label %ring, label %record
ring:
  %here = call i64 @processor()
  store atomic i64 %here, ptr @place monotonic, align 8
  call void @wake()
  br label %record
record:
  %i = phi i64 [ 0, %start ], [ 0, %ring ], [ %next, %after ]
  %offset = mul i64 %i, RECORD
  %at = getelementptr i64, ptr %records, i64 %offset
  %at.chunks = getelementptr i64, ptr %at, i64 2
  %own = load i64, ptr %at.chunks
  %at.length = getelementptr i64, ptr %at, i64 4
  %length = load i64, ptr %at.length
  %at.all = getelementptr i64, ptr %at, i64 5
  %all = load i64, ptr %at.all
  %left = sub i64 %count, %i
  %starts = icmp sgt i64 %length, 0
  %complete = icmp sle i64 %length, %left
  %whole = and i1 %starts, %complete
  %chunks = select i1 %whole, i64 %all, i64 %own
  %step = select i1 %whole, i64 %length, i64 1
  %one = icmp eq i64 %chunks, 1
  br i1 %one, label %single, label %several
single:
  call void @chunk(ptr %at, i64 0, i64 0)
  br label %after
several:
  %some = icmp sgt i64 %chunks, 0
  br i1 %some, label %shared, label %after
shared:
  call void @share(ptr %at, i64 %chunks, i64 %helpers)
  br label %after
after:
  %next = add i64 %i, %step
  %more = icmp slt i64 %next, %count
  br i1 %more, label %record, label %end
end:
  ret void
}

; Reset all state in a forked child, which has no helpers: the parent may have been running a job.
define void @forget() {
  store atomic i64 0, ptr @ticket seq_cst, align 8
  store atomic i64 0, ptr @finished seq_cst, align 8
  store atomic i64 0, ptr @sleepers seq_cst, align 8
  store atomic i64 0, ptr @busy seq_cst, align 8
  call void @trust()
  ret void
}

define i64 @chunks_helped() {
  %n = load i64, ptr @helped
  ret i64 %n
}
"""

_THREADS = r"""
define internal i64 @now() {
  %time = alloca [2 x i64], align 16
  %r = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %at.rest = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %at.rest
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %rest
  ret i64 %sum
}

define internal i64 @processor() {
  %found = call i32 @sched_getcpu()
  %wide = sext i32 %found to i64
  ret i64 %wide
}

define internal void @wake() {
  %asleep = load atomic i64, ptr @sleepers seq_cst, align 8
  %some = icmp ne i64 %asleep, 0
  br i1 %some, label %ring, label %end
ring:
  %old = atomicrmw add ptr @alarm, i64 1 seq_cst
  %r = call i64 (i64, ...) @syscall(i64 FUTEX, ptr @alarm, i32 129, i32 2147483647, ptr null)
  br label %end
end:
  ret void
}

define internal ptr @helper(ptr %number) {
entry:
  %signals = alloca [16 x i64], align 16
  call void @llvm.memset.p0.i64(ptr %signals, i8 -1, i64 128, i1 false)
  %blocked = call i32 @pthread_sigmask(i32 0, ptr %signals, ptr null)
  %me = ptrtoint ptr %number to i64
  br label %idle
idle:
  br label %look
look:
  %round = phi i64 [ 0, %idle ], [ %round.next, %spin ]
  %seen = load atomic i64, ptr @ticket acquire, align 8
  %some = call i1 @left(i64 %seen)
  %limit = lshr i64 %seen, 48
  %may = icmp sle i64 %me, %limit
  %both = and i1 %some, %may
  br i1 %both, label %take, label %wait
take: ; only what was seen: another job may allow fewer helpers
  %one.more = add i64 %seen, 65536
  %took = cmpxchg ptr @ticket, i64 %seen, i64 %one.more acq_rel monotonic
  %mine = extractvalue { i64, i1 } %took, 1
  br i1 %mine, label %work, label %idle
work:
  %record = load ptr, ptr @job
  %back.0 = lshr i64 %seen, 16
  %back = and i64 %back.0, 65535
  %all.0 = lshr i64 %seen, 32
  %all = and i64 %all.0, 65535
  %last = sub i64 %all, 1
  %k = sub i64 %last, %back
  call void @chunk(ptr %record, i64 %k, i64 %me)
  %old = atomicrmw add ptr @finished, i64 1 acq_rel
  br label %idle
wait:
  %some.rounds = and i64 %round, 63
  %now.and.then = icmp eq i64 %some.rounds, 0
  br i1 %now.and.then, label %where, label %pause
where:
  %here = call i64 @processor()
  %callers = load atomic i64, ptr @place monotonic, align 8
  %crowded = icmp eq i64 %here, %callers
  br i1 %crowded, label %yield, label %pause
yield:
  YIELD
  %first = icmp eq i64 %round, 0
  br i1 %first, label %pause, label %leave
leave:
  %now = call i64 @now()
  %until = add i64 %now, CROWDED
  store atomic i64 %until, ptr @until monotonic, align 8
  br label %sleep
pause:
  PAUSE
  %round.next = add i64 %round, 1
  %patient = icmp slt i64 %round.next, SPIN
  br i1 %patient, label %spin, label %sleep
spin:
  br label %look
sleep:
  %before = load atomic i64, ptr @alarm seq_cst, align 8
  %s0 = atomicrmw add ptr @sleepers, i64 1 seq_cst
  %low = trunc i64 %before to i32
  %r = call i64 (i64, ...) @syscall(i64 FUTEX, ptr @alarm, i32 128, i32 %low, ptr null)
  %s1 = atomicrmw sub ptr @sleepers, i64 1 seq_cst
  br label %idle
}

define i32 @start(i64 %number) {
  %id = alloca [8 x i64], align 16
  %me = inttoptr i64 %number to ptr
  %failed = call i32 @pthread_create(ptr %id, ptr null, ptr @helper, ptr %me)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %detach, label %end
detach:
  %thread = load i64, ptr %id
  %r = call i32 @pthread_detach(i64 %thread)
  br label %end
end:
  ret i32 %failed
}
"""

_NO_THREADS = r"""
define internal i64 @now() {
  ret i64 0
}

define internal i64 @processor() {
  ret i64 0
}

define internal void @wake() {
  ret void
}

define i32 @start(i64 %number) {
  ret i32 1
}
"""

_DECLARATIONS = """declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
declare i32 @sched_getcpu()
declare i32 @clock_gettime(i32, ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)"""

# The number of the futex system call, and the instruction that hints a spin loop to the processor.
_FUTEX = {"x86_64": 202, "aarch64": 98}
_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}

_lock = held_across_fork(threading.RLock())
_found: dict[str, int] = {}
_helpers = 0


def _has_threads() -> bool:
    """Return whether helper threads exist on this system."""
    return sys.platform == "linux" and platform.machine() in _FUTEX


def _text() -> str:
    """Return the LLVM IR for this system."""
    kind = platform.machine()
    declaration, pause = _PAUSE.get(kind, ("", ""))
    threads = _has_threads()
    text = _TEXT + (_THREADS if threads else _NO_THREADS)
    for name, value in (
        ("PAUSE_DECLARATION", declaration),
        ("THREAD_DECLARATIONS", _DECLARATIONS if threads else ""),
        ("PAUSE", pause),
        ("YIELD", "%y = call i32 @sched_yield()" if threads else ""),
        ("FUTEX", str(_FUTEX.get(kind, 0))),
        ("RECORD", str(RECORD)),
        ("SPIN", str(SPIN)),
        ("LATE", str(LATE)),
        ("CROWDED", str(CROWDED)),
        ("REST", str(REST)),
        ("LONGEST", str(LONGEST)),
    ):
        text = text.replace(name, value)
    return text


units.expect(_text)


def addresses() -> dict[str, int]:
    """Return the addresses of the native functions of the pool, by name."""
    with _lock:
        if not _found:
            binding()
            exports = ("run", "start", "forget", "chunks_helped", "trust")
            _found.update(units.library(_text(), exports, {}))
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=_forget)
        return _found


def _forget() -> None:
    """Reset the pool in a forked child, where the helper threads do not exist."""
    global _helpers
    _helpers = 0
    _call("forget")


def _call(name: str, *args: int) -> int:
    """Call the native function ``name`` of the pool; return its result."""
    function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(args))(addresses()[name])
    return int(function(*args))


def start(threads: int) -> int:
    """Start helpers until ``threads`` threads can run a record; return how many helpers are available."""
    global _helpers
    wanted = min(threads, 64) - 1
    with _lock:
        addresses()
        while _helpers < wanted and _has_threads():
            if _call("start", _helpers + 1) & 0xFFFFFFFF:
                break  # the system cannot create more threads
            _helpers += 1
        return max(0, min(wanted, _helpers))


def helpers() -> int:
    """Return the number of helpers that have been started."""
    return _helpers


def chunks_helped() -> int:
    """Return the number of chunks that helpers have run in this process."""
    return _call("chunks_helped")


def trust() -> None:
    """Let helper threads take part again at once.

    They are left out for a while after one of them was late.
    """
    _call("trust")


def records(
    rows: list[tuple[int, int, list[int]]], runs: Sequence[int] | None = None
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Pack kernel calls into one array of words: the records, then the chunk bounds of all of them.

    ``rows`` has (address of the function, address of its arguments, chunk bounds).  ``runs`` has the number
    of records of each run, in order; by default each record is a run.
    """
    words = np.zeros(RECORD * len(rows) + sum(len(cuts) for _, _, cuts in rows), np.int64)
    place = RECORD * len(rows)
    for i, (function, args, cuts) in enumerate(rows):
        words[RECORD * i : RECORD * i + 4] = function, args, len(cuts) - 1, words.ctypes.data + 8 * place
        words[place : place + len(cuts)] = cuts
        place += len(cuts)
    first = 0
    for length in [1] * len(rows) if runs is None else runs:
        chunks = sum(len(cuts) - 1 for _, _, cuts in rows[first : first + length])
        words[RECORD * first + 4 : RECORD * first + 6] = length, chunks
        first += length
    return words
