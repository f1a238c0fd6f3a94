"""Native code of the thread pool: the caller and its helper threads run the chunks of kernel calls."""

from __future__ import annotations

import platform
import sys
from typing import NamedTuple

from adjoint.compiler.emit.code import Code, External, NativeFunction, native
from adjoint.compiler.emit.values import Value

__all__ = ["CROWDED", "EXPORTS", "LATE", "LONGEST", "RECORD", "REST", "SPIN", "has_threads"]

# The 64-bit words of a record: function, arguments, number of chunks, address of the chunk bounds.  The first
# record of a run also has the number of records and the number of chunks of the run.
RECORD = 6
SPIN = 20_000  # iterations that a helper spins before it sleeps: about half a millisecond
LATE = 20_000  # nanoseconds: a helper's last chunk may take this plus twice the time of the caller's chunk
REST, LONGEST = 4, 20_000_000  # the caller works alone for REST times its wait, at most LONGEST nanoseconds
CROWDED = 1_000_000  # nanoseconds that the caller works alone after a helper ran on the caller's processor
_YIELDING = 2000  # iterations that the caller spins before it lets other threads run
_MOST = 65  # one more than the number of helpers


class _System(NamedTuple):
    """The numbers of the system calls futex and gettid, and the instruction for use inside a spin loop."""

    futex: int
    gettid: int
    pause: External
    hint: tuple[int, ...]


_SYSTEMS = {
    "x86_64": _System(202, 186, External("void", "llvm.x86.sse2.pause"), ()),
    "aarch64": _System(98, 178, External("void", "llvm.aarch64.hint", "i32"), (1,)),
}
_WAIT, _WAKE = 128, 129  # operations of the system call futex, inside one process

_create = External("i32", "pthread_create", "ptr", "ptr", "ptr", "ptr")
_detach = External("i32", "pthread_detach", "i64")
_block_signals = External("i32", "pthread_sigmask", "i32", "ptr", "ptr")
_syscall = External("i64", "syscall", "i64", "...")
_yield = External("i32", "sched_yield")
_getcpu = External("i32", "sched_getcpu")
_get_affinity = External("i32", "sched_getaffinity", "i32", "i64", "ptr")
_set_affinity = External("i32", "sched_setaffinity", "i32", "i64", "ptr")
_gettime = External("i32", "clock_gettime", "i32", "ptr")
_fill_bytes = External("void", "llvm.memset.p0.i64", "ptr", "i8", "i64", "i1")


def has_threads() -> bool:
    """Return whether this system supports helper threads."""
    return sys.platform == "linux" and platform.machine() in _SYSTEMS


# Variables ---------------------------------------------------------------------------------------------


def _ticket(w: Code) -> Value:
    """Return the address of the word that describes the current job.

    It is one word, so that a late helper cannot mix two jobs.  Bits 0–15: chunks taken from the front, 16–31:
    taken from the back, 32–47: all chunks, 48–63: number of helpers.
    """
    return w.variable("ticket")


def _until(w: Code) -> Value:
    """Return the address of the time until which the caller works alone; 0: helpers take part."""
    return w.variable("until")


def _avoided(w: Code) -> Value:
    """Return the address of the processor that helpers do not use; -1: none."""
    return w.variable("avoided", start=-1)


def _threads(w: Code) -> Value:
    """Return the address of the system's number of each helper."""
    return w.variable("threads", _MOST)


def _part(w: Code, ticket: Value, first: int) -> Value:
    """Emit the 16 bits of a ticket that start at the bit ``first``."""
    return w.bits("and", w.bits("lshr", ticket, first), 0xFFFF)


def _left(w: Code, ticket: Value) -> Value:
    """Emit a flag: whether chunks are left that no thread has taken."""
    return w.compare("slt", w.add(_part(w, ticket, 0), _part(w, ticket, 16)), _part(w, ticket, 32))


def _pause(w: Code) -> None:
    """Emit the instruction of a spin loop."""
    system = _SYSTEMS.get(platform.machine())
    if system is not None:
        system.pause(w, *(w.const(k, "i32") for k in system.hint))


def _give_way(w: Code) -> None:
    """Emit a call that lets other threads run."""
    if has_threads():
        _yield(w)


# The system --------------------------------------------------------------------------------------------


@native("i64")
def now(w: Code) -> Value:
    """Return the time in nanoseconds."""
    if not has_threads():
        return w.value(0)
    time = w.scratch("i64", 2)
    _gettime(w, w.const(1, "i32"), time)
    return w.add(w.mul(w.word(time, 0), 1_000_000_000), w.word(time, 1))


@native("i64")
def processor(w: Code) -> Value:
    """Return the number of the processor on which the calling thread runs."""
    return w.convert(_getcpu(w), "i64") if has_threads() else w.value(0)


@native(here="i64")
def wake(w: Code, here: Value) -> None:
    """Wake the helpers that sleep; ``here`` is the processor of the caller."""
    if not has_threads():
        return
    alarm = w.variable("alarm")
    with w.when(w.differ(w.atomic(w.variable("sleepers"), "seq_cst"), 0)):
        avoid(w, here)
        w.add_atomic(alarm, 1, "seq_cst")
        _futex(w, alarm, _WAKE, w.const(2**31 - 1, "i32"))


def _futex(w: Code, address: Value, operation: int, number: Value) -> None:
    call = _SYSTEMS[platform.machine()].futex
    _syscall(w, call, address, w.const(operation, "i32"), number, None)


@native(export=True, here="i64")
def avoid(w: Code, here: Value) -> None:
    """Let helpers use the processors of the calling thread, except ``here``, unless there is no other."""
    if not has_threads():
        return
    avoided = _avoided(w)
    found = w.scratch("i64", 16)  # a set of processors, one bit for each
    new = w.differ(w.atomic(avoided, "monotonic"), here)
    with w.unless(w.all(new, w.compare("ult", here, 1024))):
        w.give_nothing()
    w.set_atomic(avoided, here, "monotonic")
    _set_bytes(w, found, 0, 128)
    with w.when(w.differ(_get_affinity(w, w.const(0, "i32"), 128, found), 0)):
        w.give_nothing()
    part, bit = w.bits("lshr", here, 6), w.bits("shl", w.value(1), w.bits("and", here, 63))
    w.set_word(found, part, w.bits("and", w.word(found, part), w.bits("xor", bit, -1)))
    others = w.word(found, 0)
    for n in range(1, 16):
        others = w.bits("or", others, w.word(found, n))
    with w.when(w.same(others, 0)):
        w.give_nothing()
    with w.count(_MOST, first=1) as k:
        thread = w.atomic(w.at(_threads(w), "i64", k), "monotonic")
        with w.when(w.same(thread, 0)):
            w.give_nothing()
        _set_affinity(w, w.convert(thread, "i32"), 128, found)


def _set_bytes(w: Code, address: Value, byte: int, count: int) -> None:
    _fill_bytes(w, address, w.const(byte, "i8"), count, False)


# The caller --------------------------------------------------------------------------------------------


@native(number="i64", thread="i64")
def chunk(w: Code, first: Value, number: Value, thread: Value) -> None:
    """Run the chunk ``number`` of a run that starts with the record ``first``."""
    record, rest = w.scratch("ptr", 1), w.scratch("i64", 1)
    w.store(first, record)
    w.store(number, rest)
    w.mark("find")
    this, k = w.load(record, "ptr"), w.load(rest, "i64")
    count = w.word(this, 2)
    with w.unless(w.compare("slt", k, count)):
        w.store(w.at(this, "i64", RECORD), record)
        w.store(w.sub(k, count), rest)
        w.goto("find")
    cuts = w.at(w.word(this, 3, "ptr"), "i64", k)
    given = [w.word(this, 1, "ptr"), w.word(cuts, 0), w.word(cuts, 1), k, thread]
    w.line(f"call void {w.word(this, 0, 'ptr').text}({', '.join(a.typed for a in given)})")


@native("i64", helpers="i64")
def present(w: Code, helpers: Value) -> Value:
    """Return how many helpers may take part now."""
    until = w.atomic(_until(w), "monotonic")
    with w.when(w.differ(until, 0)):
        w.give_if(w.compare("slt", now(w), until), 0)
        trust(w)
    return helpers


@native(began="i64", ended="i64", done="i64")
def judge(w: Code, began: Value, ended: Value, done: Value) -> None:
    """Leave helpers out for a while if the last chunks of a record took them too long."""
    time = now(w)
    waited = w.sub(time, ended)
    each = w.op("udiv", w.sub(ended, began), w.intrinsic("umax", done, w.value(1)))
    with w.when(w.compare("sgt", waited, w.add(w.mul(each, 2), LATE))):
        rest = w.intrinsic("umin", w.mul(waited, REST), w.value(LONGEST))
        w.set_atomic(_until(w), w.add(time, rest), "monotonic")


@native(export=True)
def trust(w: Code) -> None:
    """Let helpers take part at once."""
    w.set_atomic(_until(w), 0, "monotonic")


@native(count="i64", helpers="i64")
def share(w: Code, record: Value, count: Value, helpers: Value) -> None:
    """Run ``count`` chunks of the records that start with ``record``, together with the helpers."""
    busy = w.variable("busy")
    absent = w.differ(w.atomic(_until(w), "monotonic"), 0)
    with w.when(w.either(absent, w.same(helpers, 0))):
        w.goto("alone")
    with w.when(w.swap_if(busy, 0, 1, "acquire monotonic")):
        share_job(w, record, count, helpers)
        w.set_atomic(busy, 0, "release")
        w.give_nothing()
    w.mark("alone")
    with w.count(count) as k:
        chunk(w, record, k, 0)


@native(count="i64", helpers="i64")
def share_job(w: Code, record: Value, count: Value, helpers: Value) -> None:
    """Offer chunks to the helpers, run those that are left, and wait for the helpers."""
    finished, helped = w.variable("finished"), w.variable("helped")
    began, done = now(w), w.scratch("i64", 1)
    w.store(record, w.variable("job"))
    w.set_atomic(finished, 0, "release")
    ticket = w.bits("or", w.bits("shl", count, 32), w.bits("shl", helpers, 48))
    w.set_atomic(_ticket(w), ticket, "release")
    w.store(w.value(0), done)
    w.mark("take")
    found = w.add_atomic(_ticket(w), 1, "acq_rel")
    with w.when(_left(w, found)):
        chunk(w, record, _part(w, found, 0), 0)
        w.store(w.add(w.load(done, "i64"), 1), done)
        w.goto("take")
    own = w.load(done, "i64")
    theirs = w.sub(count, own)
    w.store(w.add(w.load(helped, "i64"), theirs), helped)
    with w.when(w.compare("sge", w.atomic(finished, "acquire"), theirs)):
        w.give_nothing()
    ended, rounds = now(w), w.scratch("i64", 1)
    w.store(w.value(0), rounds)
    w.mark("wait")
    with w.when(w.compare("slt", w.atomic(finished, "acquire"), theirs)):
        _pause(w)
        spun = w.add(w.load(rounds, "i64"), 1)
        w.store(spun, rounds)
        with w.when(w.compare("sgt", spun, _YIELDING)):
            _give_way(w)
        w.goto("wait")
    judge(w, began, ended, own)


@native(export=True, count="i64", wanted="i64")
def run(w: Code, records: Value, count: Value, wanted: Value) -> None:
    """Run records in order.  If only some records of a run are given, they run one after the other."""
    with w.unless(w.compare("sgt", count, 0)):
        w.give_nothing()
    helpers = present(w, wanted)
    with w.when(w.compare("sgt", helpers, 0)):
        here = processor(w)
        w.set_atomic(w.variable("place"), here, "monotonic")
        wake(w, here)
    at = w.scratch("i64", 1)
    w.store(w.value(0), at)
    w.mark("next")
    i = w.load(at, "i64")
    record = w.at(records, "i64", w.mul(i, RECORD))
    length = w.word(record, 4)
    whole = w.all(w.compare("sgt", length, 0), w.compare("sle", length, w.sub(count, i)))
    chunks = w.select(whole, w.word(record, 5), w.word(record, 2))
    with w.when(w.same(chunks, 1)):
        chunk(w, record, 0, 0)
    with w.when(w.compare("sgt", chunks, 1)):
        share(w, record, chunks, helpers)
    after = w.add(i, w.select(whole, length, w.value(1)))
    w.store(after, at)
    with w.when(w.compare("slt", after, count)):
        w.goto("next")


@native(export=True)
def forget(w: Code) -> None:
    """Reset all state in a forked child, which has no helpers: the parent may have been running a job."""
    for name in ("ticket", "finished", "sleepers", "busy"):
        w.set_atomic(w.variable(name), 0, "seq_cst")
    if has_threads():
        _set_bytes(w, _threads(w), 0, 8 * _MOST)
        w.set_atomic(_avoided(w), -1, "monotonic")
    trust(w)


@native("i64", export=True)
def chunks_helped(w: Code) -> Value:
    """Return the number of chunks that helpers have run."""
    return w.load(w.variable("helped"), "i64")


# The helpers -------------------------------------------------------------------------------------------


@native("ptr")
def helper(w: Code, number: Value) -> None:
    """Take chunks forever; this is the function of a helper thread, and ``number`` is its number."""
    me = w.emit(f"ptrtoint {number.typed} to i64", "i64")
    _introduce(w, me)
    rounds, ticket = w.scratch("i64", 1), _ticket(w)
    alarm, sleepers = w.variable("alarm"), w.variable("sleepers")
    w.mark("idle")
    w.store(w.value(0), rounds)
    w.mark("look")
    seen = w.atomic(ticket, "acquire")
    with w.when(w.all(_left(w, seen), w.compare("sle", me, w.bits("lshr", seen, 48)))):
        # only what was seen: another job may allow fewer helpers
        with w.when(w.swap_if(ticket, seen, w.add(seen, 1 << 16), "acq_rel monotonic")):
            last = w.sub(_part(w, seen, 32), 1)
            chunk(w, w.load(w.variable("job"), "ptr"), w.sub(last, _part(w, seen, 16)), me)
            w.add_atomic(w.variable("finished"), 1, "acq_rel")
        w.goto("idle")
    round_ = w.load(rounds, "i64")
    with w.when(w.same(w.bits("and", round_, 63), 0)):
        callers = w.atomic(w.variable("place"), "monotonic")
        with w.when(w.same(processor(w), callers)):
            _give_way(w)
            with w.when(w.differ(round_, 0)):
                w.set_atomic(_until(w), w.add(now(w), CROWDED), "monotonic")
                w.goto("sleep")
    _pause(w)
    spun = w.add(round_, 1)
    w.store(spun, rounds)
    with w.when(w.compare("slt", spun, SPIN)):
        w.goto("look")
    w.mark("sleep")
    before = w.atomic(alarm, "seq_cst")
    w.add_atomic(sleepers, 1, "seq_cst")
    _futex(w, alarm, _WAIT, w.convert(before, "i32"))
    w.add_atomic(sleepers, -1, "seq_cst")
    w.goto("idle")


def _introduce(w: Code, me: Value) -> None:
    """Emit the start of a helper: it blocks all signals, and notes the system's number of its thread."""
    signals = w.scratch("i64", 16)
    _set_bytes(w, signals, -1, 128)
    _block_signals(w, w.const(0, "i32"), signals, None)
    thread = _syscall(w, _SYSTEMS[platform.machine()].gettid)
    w.set_atomic(w.at(_threads(w), "i64", me), thread, "monotonic")
    w.set_atomic(_avoided(w), -1, "monotonic")


@native("i32", export=True, number="i64")
def start(w: Code, number: Value) -> Value:
    """Start the helper ``number``; return 0 if this succeeds."""
    if not has_threads():
        return w.const(1, "i32")
    helper.define(w)
    thread = w.scratch("i64", 8)
    me = w.emit(f"inttoptr {number.typed} to ptr", "ptr")
    failed = _create(w, thread, None, Value("@helper", "ptr"), me)
    with w.when(w.same(failed, 0)):
        _detach(w, w.load(thread, "i64"))
    return failed


EXPORTS: tuple[NativeFunction, ...] = (run, start, forget, chunks_helped, trust, avoid)
