"""LLVM IR of the native entry: make the outputs and store them in tensors (see ``entry_text``)."""

from __future__ import annotations

__all__ = ["TEXT"]

TEXT = r"""
declare ptr @PyTuple_New(i64)
declare void @PyObject_GC_UnTrack(ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyType_GenericAlloc(ptr, i64)
declare ptr @new_array(ptr, ptr, i32, ptr, ptr, ptr, i32, ptr)
@none = external global i8
@clock = external global i8
@zero = external global i8
@committing = external global i8

; Keep a replaced array that nothing else refers to, so that the next call writes into it.  The result of this
; call still refers to it, at the position of the new array.
define internal void @keep(ptr %w, i64 %place, ptr %array) {
entry:
  %at.recycles = getelementptr i64, ptr %w, i64 16
  %recycles = load i64, ptr %at.recycles
  %on = icmp ne i64 %recycles, 0
  %w5 = getelementptr i64, ptr %w, i64 5
  %rows = load ptr, ptr %w5
  %offset = mul i64 %place, 8
  %row = getelementptr i64, ptr %rows, i64 %offset
  %reuses = call i1 @reuses(ptr %row)
  %apart = xor i1 %reuses, true
  %keeps = and i1 %on, %apart
  br i1 %keeps, label %look, label %end
look:
  %at.kind = getelementptr i8, ptr %array, i64 KIND
  %kind = load ptr, ptr %at.kind
  %is.array = icmp eq ptr %kind, @ndarray
  %alone = call i1 @is_alone(ptr %array)
  %ok = and i1 %is.array, %alone
  br i1 %ok, label %put, label %end
put:
  call void @Py_IncRef(ptr %array)
  %at.spare = getelementptr i64, ptr %row, i64 5
  store ptr %array, ptr %at.spare
  br label %end
end:
  ret void
}

define internal i1 @is_alone(ptr %object) {
  %at.count = getelementptr i8, ptr %object, i64 REFERENCES
  %count = load i32, ptr %at.count
  %alone = icmp eq i32 %count, 1
  ret i1 %alone
}

; Whether an output may get the array of an input (word 6) or of the gradient that it replaces (word 7).
define internal i1 @reuses(ptr %row) {
  %at.input = getelementptr i64, ptr %row, i64 6
  %input = load i64, ptr %at.input
  %at.graded = getelementptr i64, ptr %row, i64 7
  %graded = load i64, ptr %at.graded
  %either = or i64 %input, %graded
  %yes = icmp ne i64 %either, 0
  ret i1 %yes
}

; Whether an output may be written into an array: there is one reference to it, and its memory is as wanted.
define internal i1 @is_free(ptr %array, ptr %row) {
  %alone = call i1 @is_alone(ptr %array)
  %at.flags = getelementptr i8, ptr %array, i64 FLAGS
  %flags = load i32, ptr %at.flags
  %bits = and i32 %flags, 1285 ; contiguous, owns its memory, aligned, writable
  %plain = icmp eq i32 %bits, 1285
  %at.weak = getelementptr i8, ptr %array, i64 WEAK
  %weak = load ptr, ptr %at.weak
  %unwatched = icmp eq ptr %weak, null
  %same = call i1 @matches(ptr %array, ptr %row)
  %a = and i1 %alone, %plain
  %b = and i1 %unwatched, %same
  %ok = and i1 %a, %b
  ret i1 %ok
}

; The array whose memory an output may get.  If there is none: @miss for a cell, else null.
define internal ptr @reused(ptr %row) {
entry:
  %at.input = getelementptr i64, ptr %row, i64 6
  %input = load ptr, ptr %at.input
  %is.graded = icmp eq ptr %input, null
  br i1 %is.graded, label %gradient, label %value
value:
  %at.held = getelementptr i64, ptr %input, i64 7
  %array = load ptr, ptr %at.held
  %free = call i1 @is_free(ptr %array, ptr %row)
  %kind = load i64, ptr %input
  %is.cell = icmp eq i64 %kind, 3
  %other = select i1 %is.cell, ptr @miss, ptr null
  %found.value = select i1 %free, ptr %array, ptr %other
  ret ptr %found.value
gradient:
  %at.graded = getelementptr i64, ptr %row, i64 7
  %graded = load ptr, ptr %at.graded
  %at.extra = getelementptr i8, ptr %graded, i64 EXTRA
  %extra = load ptr, ptr %at.extra
  %is.none = icmp eq ptr %extra, @none
  %unset = icmp eq ptr %extra, null
  %missing = or i1 %is.none, %unset
  br i1 %missing, label %no, label %look
look:
  %at.grad = getelementptr i8, ptr %extra, i64 GRAD
  %old = load ptr, ptr %at.grad
  %at.kind = getelementptr i8, ptr %old, i64 KIND
  %old.kind = load ptr, ptr %at.kind
  %is.tensor = icmp eq ptr %old.kind, @tensor
  br i1 %is.tensor, label %open, label %no
open:
  %alone = call i1 @is_alone(ptr %old)
  %old.array = call ptr @array_of(ptr %old)
  %none = icmp eq ptr %old.array, null
  %some = xor i1 %none, true
  %take = and i1 %alone, %some
  br i1 %take, label %last, label %no
last:
  %old.free = call i1 @is_free(ptr %old.array, ptr %row)
  %found = select i1 %old.free, ptr %old.array, ptr null
  ret ptr %found
no:
  ret ptr null
}

; Find the arrays of the outputs that may reuse one.  Return null; @miss; or the result if there is no memory.
define internal ptr @reuse_all(ptr %w, ptr %result) {
EACH 4 8
  %reuses = call i1 @reuses(ptr %row)
  br i1 %reuses, label %find, label %next
find:
  %found = call ptr @reused(ptr %row)
  %missed = icmp eq ptr %found, @miss
  br i1 %missed, label %miss, label %known
known:
  %none = icmp eq ptr %found, null
  br i1 %none, label %new, label %take
take:
  call void @Py_IncRef(ptr %found)
  br label %put
new:
  %made = call ptr @new(ptr %row)
  %bad = icmp eq ptr %made, null
  br i1 %bad, label %failed, label %put
put:
  %array = phi ptr [ %found, %take ], [ %made, %new ]
  %items = getelementptr i8, ptr %result, i64 ITEMS
  %at.item = getelementptr ptr, ptr %items, i64 %k
  store ptr %array, ptr %at.item
  %at.data = getelementptr i8, ptr %array, i64 DATA
  %address = load ptr, ptr %at.data
  call void @fill(ptr %row, i64 3, ptr %address)
  br label %next
end:
  ret ptr null
miss:
  ret ptr @miss
failed:
  ret ptr %result
}

; The kept array of a row if nothing else refers to it and it has the right kind of memory, else a new array.
define internal ptr @make(ptr %row) {
entry:
  %at.spare = getelementptr i64, ptr %row, i64 5
  %spare = load ptr, ptr %at.spare
  %none = icmp eq ptr %spare, null
  br i1 %none, label %new, label %kept
kept:
  store ptr null, ptr %at.spare
  %ok = call i1 @is_free(ptr %spare, ptr %row)
  br i1 %ok, label %reuse, label %drop
reuse:
  ret ptr %spare
drop:
  call void @Py_DecRef(ptr %spare)
  br label %new
new:
  %made = call ptr @new(ptr %row)
  ret ptr %made
}

; A new array for a row; null if there is no memory.
define internal ptr @new(ptr %row) {
  %dtype = load ptr, ptr %row
  %o1 = getelementptr i64, ptr %row, i64 1
  %ndim = load i64, ptr %o1
  %ndim32 = trunc i64 %ndim to i32
  %o2 = getelementptr i64, ptr %row, i64 2
  %shape = load ptr, ptr %o2
  call void @Py_IncRef(ptr %dtype)
  %made = call ptr @new_array(ptr @ndarray, ptr %dtype, i32 %ndim32, ptr %shape,
    ptr null, ptr null, i32 0, ptr null)
  ret ptr %made
}

; Whether the gradients can be written: every tensor can store a gradient, and no thread is adding to one.
define internal i1 @has_slots(ptr %w) {
EACH 14 3
  %at.owner = getelementptr i8, ptr @committing, i64 HOLDER
  %owner = load i64, ptr %at.owner
  %free = icmp eq i64 %owner, 0
  br i1 %free, label %look, label %no
look:
  %tensor = load ptr, ptr %row
  %at.extra = getelementptr i8, ptr %tensor, i64 EXTRA
  %extra = load ptr, ptr %at.extra
  %is.none = icmp eq ptr %extra, @none
  %unset = icmp eq ptr %extra, null
  %missing = or i1 %is.none, %unset
  br i1 %missing, label %no, label %next
end:
  ret i1 true
no:
  ret i1 false
}

; A new tensor without history, whose array is still to be set; null if there is no memory.
define internal ptr @new_tensor() {
  %new = call ptr @PyType_GenericAlloc(ptr @tensor, i64 0)
  %bad = icmp eq ptr %new, null
  br i1 %bad, label %end, label %fill
fill:
  call void @Py_IncRef(ptr @none)
  call void @Py_IncRef(ptr @none)
  call void @Py_IncRef(ptr @zero)
  %at.node = getelementptr i8, ptr %new, i64 NODE
  store ptr @none, ptr %at.node
  %at.extra = getelementptr i8, ptr %new, i64 EXTRA
  store ptr @none, ptr %at.extra
  %at.version = getelementptr i8, ptr %new, i64 VERSION
  store ptr @zero, ptr %at.version
  br label %end
end:
  ret ptr %new
}

; Make the tensors of the gradients; false if there is no memory.
define internal i1 @make_gradients(ptr %w) {
EACH 14 3
  %new = call ptr @new_tensor()
  %bad = icmp eq ptr %new, null
  br i1 %bad, label %no, label %prepared
prepared:
  %at.new = getelementptr i64, ptr %row, i64 2
  store ptr %new, ptr %at.new
  br label %next
end:
  ret i1 true
no:
  ret i1 false
}

; Exchange the gradients of tensors with the new tensors, which get arrays of the result.
define internal void @set_gradients(ptr %w, ptr %result) {
EACH 14 3
  %to = load ptr, ptr %row
  %at.place = getelementptr i64, ptr %row, i64 1
  %place = load i64, ptr %at.place
  %at.gradient = getelementptr i64, ptr %row, i64 2
  %gradient = load ptr, ptr %at.gradient
  %items = getelementptr i8, ptr %result, i64 ITEMS
  %at.item = getelementptr ptr, ptr %items, i64 %place
  %array = load ptr, ptr %at.item
  %at.data = getelementptr i8, ptr %gradient, i64 TENSOR
  store ptr %array, ptr %at.data
  %at.extra = getelementptr i8, ptr %to, i64 EXTRA
  %extra = load ptr, ptr %at.extra
  %at.grad = getelementptr i8, ptr %extra, i64 GRAD
  %old = load ptr, ptr %at.grad
  store ptr %gradient, ptr %at.grad
  store ptr null, ptr %at.gradient
  store ptr %old, ptr %at.item
  %at.kind = getelementptr i8, ptr %old, i64 KIND
  %kind = load ptr, ptr %at.kind
  %is.tensor = icmp eq ptr %kind, @tensor
  %alone = call i1 @is_alone(ptr %old)
  %free = and i1 %is.tensor, %alone
  br i1 %free, label %recycle, label %next
recycle:
  %at.old.data = getelementptr i8, ptr %old, i64 TENSOR
  %old.data = load ptr, ptr %at.old.data
  call void @keep(ptr %w, i64 %place, ptr %old.data)
  br label %next
end:
  ret void
}

; Increment the versions of the tensors that are written: a tensor without a graph gets the next number of the
; clock.  Return false, and change nothing, if there is no memory.
define internal i1 @renumber(ptr %w) {
entry:
  %at.count = getelementptr i64, ptr %w, i64 12
  %count = load i64, ptr %at.count
  %none = icmp eq i64 %count, 0
  br i1 %none, label %yes, label %start
start:
  %at.rows = getelementptr i64, ptr %w, i64 13
  %rows = load ptr, ptr %at.rows
  %at.now = getelementptr i8, ptr @clock, i64 NOW
  %now.object = load ptr, ptr %at.now
  %now = call i64 @PyLong_AsLongLong(ptr %now.object)
  br label %prepare
prepare:
  %k = phi i64 [ 0, %start ], [ %k.next, %prepared ]
  %last = phi i64 [ %now, %start ], [ %last.next, %prepared ]
  %k3 = mul i64 %k, 3
  %row = getelementptr i64, ptr %rows, i64 %k3
  %tensor = load ptr, ptr %row
  %at.node = getelementptr i8, ptr %tensor, i64 NODE
  %node = load ptr, ptr %at.node
  %constant = icmp eq ptr %node, @none
  br i1 %constant, label %clocked, label %counted
clocked:
  %tick = add i64 %last, 1
  br label %number
counted:
  %at.version = getelementptr i8, ptr %tensor, i64 VERSION
  %version.object = load ptr, ptr %at.version
  %version = call i64 @PyLong_AsLongLong(ptr %version.object)
  %version.next = add i64 %version, 1
  br label %number
number:
  %value = phi i64 [ %tick, %clocked ], [ %version.next, %counted ]
  %last.next = phi i64 [ %tick, %clocked ], [ %last, %counted ]
  %object = call ptr @PyLong_FromLongLong(i64 %value)
  %bad = icmp eq ptr %object, null
  br i1 %bad, label %no, label %prepared
prepared:
  %at.object = getelementptr i64, ptr %row, i64 2
  store ptr %object, ptr %at.object
  %k.next = add i64 %k, 1
  %more = icmp slt i64 %k.next, %count
  br i1 %more, label %prepare, label %tock
tock:
  %final = call ptr @PyLong_FromLongLong(i64 %last.next)
  %bad.final = icmp eq ptr %final, null
  br i1 %bad.final, label %no, label %commit
commit:
  store ptr %final, ptr %at.now
  br label %put
put:
  %j = phi i64 [ 0, %commit ], [ %j.next, %put ]
  %j3 = mul i64 %j, 3
  %put.row = getelementptr i64, ptr %rows, i64 %j3
  %to = load ptr, ptr %put.row
  %at.number = getelementptr i64, ptr %put.row, i64 2
  %new.version = load ptr, ptr %at.number
  %at.old.version = getelementptr i8, ptr %to, i64 VERSION
  %old.version = load ptr, ptr %at.old.version
  store ptr %new.version, ptr %at.old.version
  store ptr null, ptr %at.number
  call void @Py_DecRef(ptr %old.version)
  %j.next = add i64 %j, 1
  %put.more = icmp slt i64 %j.next, %count
  br i1 %put.more, label %put, label %end
end:
  call void @Py_DecRef(ptr %now.object)
  br label %yes
yes:
  ret i1 true
no:
  ret i1 false
}

; Exchange the arrays of tensors with those in the result.
define internal void @put(ptr %w, ptr %result) {
EACH 12 3
  %to = load ptr, ptr %row
  %at.place = getelementptr i64, ptr %row, i64 1
  %place = load i64, ptr %at.place
  %items = getelementptr i8, ptr %result, i64 ITEMS
  %at.item = getelementptr ptr, ptr %items, i64 %place
  %new = load ptr, ptr %at.item
  %at.data = getelementptr i8, ptr %to, i64 TENSOR
  %old = load ptr, ptr %at.data
  store ptr %new, ptr %at.data
  call void @keep(ptr %w, i64 %place, ptr %old)
  store ptr %old, ptr %at.item
  br label %next
end:
  ret void
}

; Make the result, its new arrays and the tensors of the gradients; null if there is no memory.  Python code
; that runs meanwhile must not find the result, whose items change: the garbage collector does not list it.
define internal ptr @make_result(ptr %w) {
entry:
  %w4 = getelementptr i64, ptr %w, i64 4
  %outs = load i64, ptr %w4
  %w5 = getelementptr i64, ptr %w, i64 5
  %out.rows = load ptr, ptr %w5
  %result = call ptr @PyTuple_New(i64 %outs)
  %no.result = icmp eq ptr %result, null
  br i1 %no.result, label %no, label %hide
hide:
  call void @PyObject_GC_UnTrack(ptr %result)
  %items = getelementptr i8, ptr %result, i64 ITEMS
  br label %out
out:
  %j = phi i64 [ 0, %hide ], [ %j.next, %next ]
  %out.more = icmp slt i64 %j, %outs
  br i1 %out.more, label %make, label %gradients
make:
  %j8 = mul i64 %j, 8
  %out.row = getelementptr i64, ptr %out.rows, i64 %j8
  %later = call i1 @reuses(ptr %out.row)
  br i1 %later, label %next, label %now ; later: @reuse_all stores an array
now:
  %new = call ptr @make(ptr %out.row)
  %bad = icmp eq ptr %new, null
  br i1 %bad, label %failed, label %made
made:
  %at.item = getelementptr ptr, ptr %items, i64 %j
  store ptr %new, ptr %at.item
  %at.new = getelementptr i8, ptr %new, i64 DATA
  %address = load ptr, ptr %at.new
  call void @fill(ptr %out.row, i64 3, ptr %address)
  br label %next
next:
  %j.next = add i64 %j, 1
  br label %out
gradients:
  %room = call i1 @make_gradients(ptr %w)
  br i1 %room, label %yes, label %failed
yes:
  ret ptr %result
failed:
  call void @discard(ptr %w, ptr %result)
  br label %no
no:
  ret ptr null
}

; Release a result, and the new gradients, versions and counts that have not been stored.
define internal void @discard(ptr %w, ptr %result) {
  call void @release(ptr %w, i64 21)
  call void @release(ptr %w, i64 12)
  call void @release(ptr %w, i64 14)
  call void @Py_DecRef(ptr %result)
  ret void
}

; Release the last word of each row, if it is an object.  Word %first has the number of rows.
define internal void @release(ptr %w, i64 %first) {
EACH %first 3
  %at = getelementptr ptr, ptr %row, i64 2
  %object = load ptr, ptr %at
  store ptr null, ptr %at
  call void @Py_DecRef(ptr %object) ; does nothing for null
  br label %next
end:
  ret void
}
"""
