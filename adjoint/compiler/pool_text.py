"""The LLVM IR of the thread pool; ``pool`` replaces the names in upper case."""

from __future__ import annotations

__all__ = ["DECLARATIONS", "NO_THREADS", "TEXT", "THREADS"]

# One word describes the current job, so that a late helper cannot mix two jobs:
# bits 0–15 chunks taken from the front, 16–31 taken from the back, 32–47 all chunks, 48–63 number of helpers.
TEXT = r"""
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

; Run records in order.  If only some records of a run are given, they run one after the other.
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
  call void @wake(i64 %here)
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
  call void @forget_threads()
  call void @trust()
  ret void
}

define i64 @chunks_helped() {
  %n = load i64, ptr @helped
  ret i64 %n
}
"""

THREADS = r"""
@threads = internal global [65 x i64] zeroinitializer, align 64 ; the system's number of each helper
@avoided = internal global i64 -1, align 64 ; the processor that helpers do not use; -1: none

; Let helpers use the processors of the calling thread, except one.  Nothing is done if there is no other.
define void @avoid(i64 %here) {
entry:
  %set = alloca [16 x i64], align 16
  %last = load atomic i64, ptr @avoided monotonic, align 8
  %new = icmp ne i64 %last, %here
  %valid = icmp ult i64 %here, 1024
  %go = and i1 %new, %valid
  br i1 %go, label %ask, label %end
ask:
  store atomic i64 %here, ptr @avoided monotonic, align 8
  call void @llvm.memset.p0.i64(ptr %set, i8 0, i64 128, i1 false)
  %failed = call i32 @sched_getaffinity(i32 0, i64 128, ptr %set)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %clear, label %end
clear:
  %word = lshr i64 %here, 6
  %place = and i64 %here, 63
  %bit = shl i64 1, %place
  %others = xor i64 %bit, -1
  %at.word = getelementptr i64, ptr %set, i64 %word
  %before = load i64, ptr %at.word
  %after = and i64 %before, %others
  store i64 %after, ptr %at.word
  br label %look
look:
  %i = phi i64 [ 0, %clear ], [ %i.next, %look ]
  %all = phi i64 [ 0, %clear ], [ %all.next, %look ]
  %at = getelementptr i64, ptr %set, i64 %i
  %part = load i64, ptr %at
  %all.next = or i64 %all, %part
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, 16
  br i1 %more, label %look, label %some
some:
  %alone = icmp eq i64 %all.next, 0
  br i1 %alone, label %end, label %helper
helper:
  %k = phi i64 [ 1, %some ], [ %k.next, %move ]
  %at.thread = getelementptr i64, ptr @threads, i64 %k
  %thread = load atomic i64, ptr %at.thread monotonic, align 8
  %exists = icmp ne i64 %thread, 0
  br i1 %exists, label %move, label %end
move:
  %thread32 = trunc i64 %thread to i32
  %r = call i32 @sched_setaffinity(i32 %thread32, i64 128, ptr %set)
  %k.next = add i64 %k, 1
  %left = icmp slt i64 %k.next, 65
  br i1 %left, label %helper, label %end
end:
  ret void
}

define internal void @forget_threads() {
  call void @llvm.memset.p0.i64(ptr @threads, i8 0, i64 520, i1 false)
  store atomic i64 -1, ptr @avoided monotonic, align 8
  ret void
}

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

define internal void @wake(i64 %here) {
  %asleep = load atomic i64, ptr @sleepers seq_cst, align 8
  %some = icmp ne i64 %asleep, 0
  br i1 %some, label %ring, label %end
ring:
  call void @avoid(i64 %here)
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
  %thread = call i64 (i64, ...) @syscall(i64 GETTID)
  %at.thread = getelementptr i64, ptr @threads, i64 %me
  store atomic i64 %thread, ptr %at.thread monotonic, align 8
  store atomic i64 -1, ptr @avoided monotonic, align 8
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

NO_THREADS = r"""
define internal i64 @now() {
  ret i64 0
}

define internal i64 @processor() {
  ret i64 0
}

define internal void @wake(i64 %here) {
  ret void
}

define void @avoid(i64 %here) {
  ret void
}

define internal void @forget_threads() {
  ret void
}

define i32 @start(i64 %number) {
  ret i32 1
}
"""

DECLARATIONS = """declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
declare i32 @clock_gettime(i32, ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)"""
