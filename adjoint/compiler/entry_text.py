"""The LLVM IR of the native entry; ``entry`` replaces the upper-case names by offsets of struct members."""

from __future__ import annotations

import re

from adjoint.compiler import arrays_text, counters_text, outputs_text

__all__ = ["TEXT"]

# The line ``EACH first width`` begins a loop over the rows of a table: word ``first`` of %w has the number of
# rows, the next word their address, and a row has ``width`` words.  The lines after it are run for each %row.
# They go to %next for the next row; after the last row the loop goes to %end.
_EACH = re.compile(r"^EACH (\S+) (\d+)$", re.MULTILINE)
_LOOP = r"""
entry:
  %at.count = getelementptr i64, ptr %w, i64 \1
  %count = load i64, ptr %at.count
  %at.rows = getelementptr i64, ptr %at.count, i64 1
  %rows = load ptr, ptr %at.rows
  br label %loop
next:
  %k.next = add i64 %k, 1
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %k.next, %next ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %body, label %end
body:
  %offset = mul i64 %k, \2
  %row = getelementptr i64, ptr %rows, i64 %offset
"""

TEXT = _EACH.sub(
    _LOOP.strip(),
    arrays_text.TEXT
    + outputs_text.TEXT
    + counters_text.TEXT
    + r"""
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyDict_GetItemWithError(ptr, ptr)
declare double @PyFloat_AsDouble(ptr)
declare ptr @PyErr_Occurred()
declare void @PyErr_Clear()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @run(ptr, i64, i64)
@dict = external global i8
@float = external global i8
@int = external global i8
@float64 = external global i8
@miss = external global i8

; Return whether an array has the dtype and shape of a row and is contiguous and aligned.
define internal i1 @fits(ptr %array, ptr %row) {
  %at.flags = getelementptr i8, ptr %array, i64 FLAGS
  %flags = load i32, ptr %at.flags
  %bits = and i32 %flags, 257
  %plain = icmp eq i32 %bits, 257
  %spec = getelementptr i64, ptr %row, i64 2
  %same = call i1 @matches(ptr %array, ptr %spec)
  %ok = and i1 %plain, %same
  ret i1 %ok
}

; Store an address in all slots of the row %w.  Word %first has the number of slots, the next word the address
; of a list of (slot, offset) pairs.
define internal void @fill(ptr %w, i64 %first, ptr %address) {
EACH %first 2
  %to = load ptr, ptr %row
  %at.distance = getelementptr ptr, ptr %row, i64 1
  %distance = load i64, ptr %at.distance
  %moved = getelementptr i8, ptr %address, i64 %distance
  store ptr %moved, ptr %to
  br label %next
end:
  ret void
}

; Read one input; return false if its type, dtype or shape is wrong.
define internal i1 @read(ptr %row, ptr %args) {
entry:
  %kind = load i64, ptr %row
  %at.owner = getelementptr i64, ptr %row, i64 1
  %fixed = load ptr, ptr %at.owner
  %is.fixed = icmp eq i64 %kind, 1
  br i1 %is.fixed, label %have, label %argument
argument: ; the owner is a position or, for a cell, the address of a position and a key
  %is.cell = icmp eq i64 %kind, 3
  %at.place = select i1 %is.cell, ptr %fixed, ptr %at.owner
  %place = load i64, ptr %at.place
  %at.arg = getelementptr ptr, ptr %args, i64 %place
  %arg = load ptr, ptr %at.arg
  br label %have
have:
  %object = phi ptr [ %fixed, %entry ], [ %arg, %argument ]
  switch i64 %kind, label %array [ i64 2, label %number
                                   i64 3, label %cell ]
cell:
  %at.dict = getelementptr i8, ptr %object, i64 KIND
  %dict.kind = load ptr, ptr %at.dict
  %is.dict = icmp eq ptr %dict.kind, @dict
  br i1 %is.dict, label %get, label %no
get:
  %at.key = getelementptr i64, ptr %fixed, i64 1
  %key = load ptr, ptr %at.key
  %item = call ptr @PyDict_GetItemWithError(ptr %object, ptr %key) ; the key is a string: no Python code runs
  %no.item = icmp eq ptr %item, null
  br i1 %no.item, label %clear, label %array
number:
  %at.type = getelementptr i8, ptr %object, i64 KIND
  %type = load ptr, ptr %at.type
  %is.float = icmp eq ptr %type, @float
  %is.int = icmp eq ptr %type, @int
  %is.float64 = icmp eq ptr %type, @float64
  %is.either = or i1 %is.float, %is.int
  %is.any = or i1 %is.either, %is.float64
  br i1 %is.any, label %convert, label %no
convert:
  %value = call double @PyFloat_AsDouble(ptr %object)
  %doubtful = fcmp oeq double %value, -1.0
  br i1 %doubtful, label %look, label %store
look:
  %error = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %store, label %clear
clear:
  call void @PyErr_Clear()
  ret i1 false
store:
  %at.to = getelementptr i64, ptr %row, i64 6
  %to = load ptr, ptr %at.to
  store double %value, ptr %to
  ret i1 true
array:
  %holder = phi ptr [ %object, %have ], [ %item, %get ]
  %found = call ptr @array_of(ptr %holder)
  %none = icmp eq ptr %found, null
  br i1 %none, label %no, label %check
check:
  %ok = call i1 @fits(ptr %found, ptr %row)
  br i1 %ok, label %take, label %no
take:
  %at.address = getelementptr i8, ptr %found, i64 DATA
  %address = load ptr, ptr %at.address
  call void @fill(ptr %row, i64 5, ptr %address)
  %at.held = getelementptr i64, ptr %row, i64 7
  store ptr %found, ptr %at.held
  ret i1 true
no:
  ret i1 false
}

; Increment (%take) or decrement the reference counts of the inputs, to keep them alive without the GIL.
define internal void @hold(ptr %w, i1 %take) {
EACH 2 8
  %kind = load i64, ptr %row
  %number = icmp eq i64 %kind, 2
  br i1 %number, label %next, label %array
array:
  %at.held = getelementptr i64, ptr %row, i64 7
  %held = load ptr, ptr %at.held
  br i1 %take, label %up, label %down
up:
  call void @Py_IncRef(ptr %held)
  br label %next
down:
  call void @Py_DecRef(ptr %held)
  br label %next
end:
  ret void
}

; Read all inputs; return false if the type, dtype or shape of one is wrong.
define internal i1 @read_all(ptr %w, ptr %args) {
EACH 2 8
  %ok = call i1 @read(ptr %row, ptr %args)
  br i1 %ok, label %next, label %no
end:
  ret i1 true
no:
  ret i1 false
}

; Return whether all checks have passed.
define internal i1 @passes(ptr %w) {
EACH 10 1
  %flag.at = load ptr, ptr %row
  %byte = load i8, ptr %flag.at
  %clear = icmp eq i8 %byte, 0
  br i1 %clear, label %next, label %no
end:
  ret i1 true
no:
  ret i1 false
}

; Return whether a call always writes once its kernels have started.
define internal i1 @always_writes(ptr %w) {
  %at.always = getelementptr i64, ptr %w, i64 17
  %always = load i64, ptr %at.always
  %yes = icmp ne i64 %always, 0
  ret i1 %yes
}

; After the kernels have run: write the outputs, unless a check failed.  Return the result, @miss, or null if
; there is no memory.  If the program always writes, @before_run has done everything that can fail.
define internal ptr @commit(ptr %w, ptr %result) {
entry:
  %always = call i1 @always_writes(ptr %w)
  br i1 %always, label %wait, label %check
wait:
  %free = call i1 @has_slots(ptr %w)
  br i1 %free, label %keep, label %pass
pass: ; another thread has been adding to a gradient since @before_run: let it finish
  %state = call ptr @PyEval_SaveThread()
  call void @PyEval_RestoreThread(ptr %state)
  br label %wait
keep:
  call void @put(ptr %w, ptr %result)
  call void @set_gradients(ptr %w, ptr %result)
  call void @count_all(ptr %w)
  ret ptr %result
check:
  %clear = call i1 @passes(ptr %w)
  br i1 %clear, label %done, label %missed
done:
  %places = call i1 @has_slots(ptr %w)
  br i1 %places, label %values, label %missed
values:
  %numbered = call i1 @renumber(ptr %w)
  br i1 %numbered, label %keep, label %failed
missed:
  ret ptr @miss
failed:
  ret ptr null
}

; If the program always writes: run the kernels of the checks, then do everything else that can fail.
; Return null if nothing failed; @miss; or the result if there is no memory.
define internal ptr @before_run(ptr %w, ptr %result) {
  %always = call i1 @always_writes(ptr %w)
  br i1 %always, label %check, label %good
check:
  %w19 = getelementptr i64, ptr %w, i64 19
  %records = load i64, ptr %w19
  %none = icmp eq i64 %records, 0
  br i1 %none, label %look, label %run
run:
  %w20 = getelementptr i64, ptr %w, i64 20
  %list = load ptr, ptr %w20
  call void @run(ptr %list, i64 %records, i64 0)
  %clear = call i1 @passes(ptr %w)
  br i1 %clear, label %look, label %missed
look:
  %places = call i1 @has_slots(ptr %w)
  br i1 %places, label %count, label %missed
count:
  %uncounted = call ptr @count_ahead(ptr %w, ptr %result)
  %counted = icmp eq ptr %uncounted, null
  br i1 %counted, label %number, label %refused
refused:
  ret ptr %uncounted
number:
  %numbered = call i1 @renumber(ptr %w)
  br i1 %numbered, label %good, label %failed
good:
  ret ptr null
missed:
  ret ptr @miss
failed:
  ret ptr %result
}

; One call.  @make_result can run Python code: PyTuple_New and PyType_GenericAlloc may collect garbage, and a
; spare array may have a weak reference.  So it comes first: no Python code of this thread runs from @read_all
; until everything is written.
define internal ptr @attempt(ptr %w, ptr %args) {
  %result = call ptr @make_result(ptr %w)
  %bad = icmp eq ptr %result, null
  br i1 %bad, label %no, label %inputs
inputs:
  %ok = call i1 @read_all(ptr %w, ptr %args)
  br i1 %ok, label %outputs, label %discard
outputs:
  %refused = call ptr @reuse_all(ptr %w, ptr %result)
  %taken = icmp eq ptr %refused, null
  br i1 %taken, label %prepare, label %discard
prepare:
  %problem = call ptr @before_run(ptr %w, ptr %result)
  %sound = icmp eq ptr %problem, null
  br i1 %sound, label %start, label %discard
start:
  %w6 = getelementptr i64, ptr %w, i64 6
  %records = load i64, ptr %w6
  %w7 = getelementptr i64, ptr %w, i64 7
  %list = load ptr, ptr %w7
  %w9 = getelementptr i64, ptr %w, i64 9
  %release = load i64, ptr %w9
  %long = icmp ne i64 %release, 0
  br i1 %long, label %free, label %short
free:
  %w8 = getelementptr i64, ptr %w, i64 8
  %helpers = load i64, ptr %w8
  call void @hold(ptr %w, i1 true)
  %state = call ptr @PyEval_SaveThread()
  call void @run(ptr %list, i64 %records, i64 %helpers)
  call void @PyEval_RestoreThread(ptr %state)
  %found.free = call ptr @commit(ptr %w, ptr %result)
  call void @hold(ptr %w, i1 false)
  br label %end
short:
  call void @run(ptr %list, i64 %records, i64 0)
  %found.short = call ptr @commit(ptr %w, ptr %result)
  br label %end
end:
  %found = phi ptr [ %found.free, %free ], [ %found.short, %short ]
  %written = icmp eq ptr %found, %result
  br i1 %written, label %yes, label %discard
discard:
  %answer = phi ptr [ @miss, %inputs ], [ %refused, %outputs ], [ %problem, %prepare ], [ %found, %end ]
  call void @discard(ptr %w, ptr %result)
  %error = icmp ne ptr %answer, @miss
  %final = select i1 %error, ptr null, ptr @miss
  ret ptr %final
yes:
  %at.done = getelementptr i64, ptr %w, i64 18
  store i64 1, ptr %at.done
  ret ptr %result
no:
  ret ptr null
}

; The built-in function.  The first word is 1 during a call; calls of the same program during that time, by
; other threads or by Python code that a finalizer runs, return @miss.
define ptr @call(ptr %self, ptr %args, i64 %n) {
entry:
  %at.words = getelementptr i8, ptr %self, i64 DATA
  %w = load ptr, ptr %at.words
  %busy = load i64, ptr %w
  %w1 = getelementptr i64, ptr %w, i64 1
  %wanted = load i64, ptr %w1
  %idle = icmp eq i64 %busy, 0
  %as.many = icmp eq i64 %n, %wanted
  %go = and i1 %idle, %as.many
  br i1 %go, label %begin, label %missed
begin:
  store i64 1, ptr %w
  %at.done = getelementptr i64, ptr %w, i64 18
  store i64 0, ptr %at.done
  %found = call ptr @attempt(ptr %w, ptr %args)
  store i64 0, ptr %w
  %miss = icmp eq ptr %found, @miss
  br i1 %miss, label %missed, label %end
missed:
  call void @Py_IncRef(ptr @miss)
  ret ptr @miss
end:
  ret ptr %found
}
""",
)
