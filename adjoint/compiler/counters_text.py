"""LLVM IR that increments the step counts of optimisers, a part of the native entry; see ``entry_text``.

A step count is an int, or a list of ints, in a dictionary.  The code reads one row of three 64-bit words for
each step count: the addresses of the dictionary and of the key, and the next value.
"""

from __future__ import annotations

__all__ = ["TEXT"]

TEXT = r"""
declare i32 @PyDict_SetItem(ptr, ptr, ptr)
@list = external global i8

; Return the int or the list of a counter; null if the value in the dictionary is neither.
define internal ptr @counter(ptr %row) {
entry:
  %dict = load ptr, ptr %row
  %at.key = getelementptr i64, ptr %row, i64 1
  %key = load ptr, ptr %at.key
  %value = call ptr @PyDict_GetItemWithError(ptr %dict, ptr %key) ; the key is a string: no Python code runs
  %none = icmp eq ptr %value, null
  br i1 %none, label %no, label %look
look:
  %at.kind = getelementptr i8, ptr %value, i64 KIND
  %kind = load ptr, ptr %at.kind
  %is.int = icmp eq ptr %kind, @int
  %is.list = icmp eq ptr %kind, @list
  %either = or i1 %is.int, %is.list
  br i1 %either, label %yes, label %no
yes:
  ret ptr %value
no:
  ret ptr null
}

; Return the number of a counter: the int itself, or the item of a list whose items are all the same object;
; null for other lists.
define internal ptr @number_of(ptr %counter) {
entry:
  %at.kind = getelementptr i8, ptr %counter, i64 KIND
  %kind = load ptr, ptr %at.kind
  %is.int = icmp eq ptr %kind, @int
  br i1 %is.int, label %single, label %list
single:
  ret ptr %counter
list:
  %at.length = getelementptr i8, ptr %counter, i64 LENGTH
  %length = load i64, ptr %at.length
  %empty = icmp eq i64 %length, 0
  br i1 %empty, label %no, label %first
first:
  %at.elements = getelementptr i8, ptr %counter, i64 ELEMENTS
  %elements = load ptr, ptr %at.elements
  %item = load ptr, ptr %elements
  %at.item.kind = getelementptr i8, ptr %item, i64 KIND
  %item.kind = load ptr, ptr %at.item.kind
  %item.int = icmp eq ptr %item.kind, @int
  br i1 %item.int, label %next, label %no
next:
  %k = phi i64 [ 1, %first ], [ %k.next, %compare ]
  %more = icmp slt i64 %k, %length
  br i1 %more, label %compare, label %yes
compare:
  %at.other = getelementptr ptr, ptr %elements, i64 %k
  %other = load ptr, ptr %at.other
  %same = icmp eq ptr %other, %item
  %k.next = add i64 %k, 1
  br i1 %same, label %next, label %no
yes:
  ret ptr %item
no:
  ret ptr null
}

; Create the next number of each counter, without storing it in the counter.  Return null if this succeeds,
; @miss if Python has to count, or %result if there is no memory.
define internal ptr @count_ahead(ptr %w, ptr %result) {
EACH 21 3
  %counter = call ptr @counter(ptr %row)
  %unknown = icmp eq ptr %counter, null
  br i1 %unknown, label %clear, label %read
read:
  %number = call ptr @number_of(ptr %counter)
  %none = icmp eq ptr %number, null
  br i1 %none, label %missed, label %add
add:
  %value = call i64 @PyLong_AsLongLong(ptr %number)
  %negative = icmp slt i64 %value, 0
  br i1 %negative, label %clear, label %make
make:
  %plus = add i64 %value, 1
  %new = call ptr @PyLong_FromLongLong(i64 %plus)
  %bad = icmp eq ptr %new, null
  br i1 %bad, label %failed, label %made
made:
  %at.new = getelementptr i64, ptr %row, i64 2
  store ptr %new, ptr %at.new
  br label %next
end:
  ret ptr null
clear: ; the number may be too large for 64 bits, or the comparison of two keys has raised an error
  call void @PyErr_Clear()
  br label %missed
missed:
  ret ptr @miss
failed:
  ret ptr %result
}

; Store the numbers that @count_ahead has created in the counters.
define internal void @count_all(ptr %w) {
EACH 21 3
  %at.new = getelementptr i64, ptr %row, i64 2
  %new = load ptr, ptr %at.new
  store ptr null, ptr %at.new
  %counter = call ptr @counter(ptr %row)
  %gone = icmp eq ptr %counter, null
  br i1 %gone, label %stored, label %known
known:
  %at.kind = getelementptr i8, ptr %counter, i64 KIND
  %kind = load ptr, ptr %at.kind
  %is.int = icmp eq ptr %kind, @int
  br i1 %is.int, label %single, label %list
single:
  %dict = load ptr, ptr %row
  %at.key = getelementptr i64, ptr %row, i64 1
  %key = load ptr, ptr %at.key
  %set = call i32 @PyDict_SetItem(ptr %dict, ptr %key, ptr %new) ; the key exists: nothing is allocated
  br label %stored
list: ; another thread may have stored other objects in it, whose finalizers change the list
  call void @Py_IncRef(ptr %counter)
  %at.length = getelementptr i8, ptr %counter, i64 LENGTH
  %at.elements = getelementptr i8, ptr %counter, i64 ELEMENTS
  br label %element
element:
  %i = phi i64 [ 0, %list ], [ %i.next, %put ]
  %length = load i64, ptr %at.length
  %left = icmp slt i64 %i, %length
  br i1 %left, label %put, label %counted
put:
  %elements = load ptr, ptr %at.elements
  %at.element = getelementptr ptr, ptr %elements, i64 %i
  %old = load ptr, ptr %at.element
  call void @Py_IncRef(ptr %new)
  store ptr %new, ptr %at.element
  call void @Py_DecRef(ptr %old)
  %i.next = add i64 %i, 1
  br label %element
counted:
  call void @Py_DecRef(ptr %counter)
  br label %stored
stored:
  call void @Py_DecRef(ptr %new)
  br label %next
end:
  ret void
}
"""
