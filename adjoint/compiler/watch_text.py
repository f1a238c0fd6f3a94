"""The LLVM IR of ``watch``, which replaces the names in upper case by offsets of struct members."""

from __future__ import annotations

from adjoint.compiler import arrays_text

__all__ = ["TEXT"]

# The words of the header: 0 number of arguments, 1 address of their rows, then pairs (count, address) of:
# 2 words that must be equal (address, value), 4 words that must differ, 6 arrays of tensors (tensor, row),
# 8 items of dictionaries (dictionary, key, value; value 0: any), 10 context variables (variable, value),
# 12 objects that no argument may be, 14 functions that must return True.  Word 16 counts the
# checks that are reading rows.
# The row of an argument has: type, node, dtype, number of axes, shape; that of a tensor only the last three.
TEXT = (
    arrays_text.TEXT
    + r"""
declare void @Py_DecRef(ptr)
declare void @Py_IncRef(ptr)
declare ptr @PyDict_GetItemWithError(ptr, ptr)
declare i32 @PyContextVar_Get(ptr, ptr, ptr)
declare ptr @PyObject_CallNoArgs(ptr)
declare ptr @PyErr_Occurred()
@node = external global i8
@true = external global i8
@false = external global i8

; Return whether an argument is as in its row: an array, or a tensor with the given node (null: any Node).
define internal i1 @argument(ptr %object, ptr %row) {
  %at.kind = getelementptr i8, ptr %object, i64 KIND
  %kind = load ptr, ptr %at.kind
  %wanted = load ptr, ptr %row
  %same = icmp eq ptr %kind, %wanted
  br i1 %same, label %known, label %no
known:
  %is.tensor = icmp eq ptr %kind, @tensor
  br i1 %is.tensor, label %history, label %values
history:
  %at.node = getelementptr i8, ptr %object, i64 NODE
  %node = load ptr, ptr %at.node
  %at.wanted = getelementptr i64, ptr %row, i64 1
  %wanted.node = load ptr, ptr %at.wanted
  %expected = icmp eq ptr %node, %wanted.node
  br i1 %expected, label %values, label %recorded
recorded:
  %any = icmp eq ptr %wanted.node, null
  %unset = icmp eq ptr %node, null
  %not.unset = xor i1 %unset, true
  %look = and i1 %any, %not.unset
  br i1 %look, label %class, label %no
class:
  %at.class = getelementptr i8, ptr %node, i64 KIND
  %node.class = load ptr, ptr %at.class
  %is.node = icmp eq ptr %node.class, @node
  br i1 %is.node, label %values, label %no
values:
  %array = call ptr @array_of(ptr %object)
  %none = icmp eq ptr %array, null
  br i1 %none, label %no, label %compare
compare:
  %spec = getelementptr i64, ptr %row, i64 2
  %ok = call i1 @matches(ptr %array, ptr %spec)
  ret i1 %ok
no:
  ret i1 false
}

; Whether all words that must be equal are equal, and all words that must differ are different.  @all is not
; used: there are many words, and LLVM does not inline functions here.
define internal i1 @words_hold(ptr %words) {
entry:
  %at.count = getelementptr i64, ptr %words, i64 2
  %count = load i64, ptr %at.count
  %at.rows = getelementptr i64, ptr %words, i64 3
  %rows = load ptr, ptr %at.rows
  %end = getelementptr [2 x i64], ptr %rows, i64 %count
  br label %next
next:
  %row = phi ptr [ %rows, %entry ], [ %row.next, %compare ]
  %more = icmp ne ptr %row, %end
  br i1 %more, label %compare, label %differing
compare:
  %address = load ptr, ptr %row
  %now = load i64, ptr %address
  %at.value = getelementptr i64, ptr %row, i64 1
  %value = load i64, ptr %at.value
  %row.next = getelementptr [2 x i64], ptr %row, i64 1
  %same = icmp eq i64 %now, %value
  br i1 %same, label %next, label %no
differing:
  %ok = call i1 @all(ptr %words, i64 4, i64 2, ptr @differs)
  ret i1 %ok
no:
  ret i1 false
}

define internal i1 @differs(ptr %row) {
  %address = load ptr, ptr %row
  %now = load i64, ptr %address
  %at.value = getelementptr i64, ptr %row, i64 1
  %value = load i64, ptr %at.value
  %ok = icmp ne i64 %now, %value
  ret i1 %ok
}

define internal i1 @held(ptr %row) {
  %tensor = load ptr, ptr %row
  %at.spec = getelementptr i64, ptr %row, i64 1
  %spec = load ptr, ptr %at.spec
  %array = call ptr @array_of(ptr %tensor)
  %none = icmp eq ptr %array, null
  br i1 %none, label %no, label %compare
compare:
  %ok = call i1 @matches(ptr %array, ptr %spec)
  ret i1 %ok
no:
  ret i1 false
}

define internal i1 @item(ptr %row) {
  %dictionary = load ptr, ptr %row
  %at.key = getelementptr i64, ptr %row, i64 1
  %key = load ptr, ptr %at.key
  %at.value = getelementptr i64, ptr %row, i64 2
  %value = load ptr, ptr %at.value
  %now = call ptr @PyDict_GetItemWithError(ptr %dictionary, ptr %key)
  %same = icmp eq ptr %now, %value
  %there = icmp ne ptr %now, null
  %any = icmp eq ptr %value, null
  %ok = select i1 %any, i1 %there, i1 %same
  ret i1 %ok
}

define internal i1 @context(ptr %row) {
  %variable = load ptr, ptr %row
  %at.value = getelementptr i64, ptr %row, i64 1
  %value = load ptr, ptr %at.value
  %place = alloca ptr
  store ptr null, ptr %place
  %r = call i32 @PyContextVar_Get(ptr %variable, ptr null, ptr %place)
  %now = load ptr, ptr %place
  %none = icmp eq ptr %now, null
  br i1 %none, label %no, label %compare
compare:
  call void @Py_DecRef(ptr %now)
  %same = icmp eq ptr %now, %value
  ret i1 %same
no:
  ret i1 false
}

define internal i1 @asked(ptr %row) {
  %function = load ptr, ptr %row
  %answer = call ptr @PyObject_CallNoArgs(ptr %function)
  %failed = icmp eq ptr %answer, null
  br i1 %failed, label %no, label %compare
compare:
  call void @Py_DecRef(ptr %answer)
  %yes = icmp eq ptr %answer, @true
  ret i1 %yes
no:
  ret i1 false
}

; Return whether a function returns true for all rows of a list.
define internal i1 @all(ptr %words, i64 %first, i64 %width, ptr %function) {
entry:
  %at.count = getelementptr i64, ptr %words, i64 %first
  %count = load i64, ptr %at.count
  %at.rows = getelementptr i64, ptr %at.count, i64 1
  %rows = load ptr, ptr %at.rows
  br label %row
row:
  %k = phi i64 [ 0, %entry ], [ %k.next, %good ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %look, label %yes
look:
  %offset = mul i64 %k, %width
  %at = getelementptr i64, ptr %rows, i64 %offset
  %ok = call i1 %function(ptr %at)
  br i1 %ok, label %good, label %no
good:
  %k.next = add i64 %k, 1
  br label %row
yes:
  ret i1 true
no:
  ret i1 false
}

; Return whether argument %k is a tensor that is also an earlier argument.
define internal i1 @given_before(ptr %args, i64 %k) {
entry:
  %at.arg = getelementptr ptr, ptr %args, i64 %k
  %arg = load ptr, ptr %at.arg
  %at.kind = getelementptr i8, ptr %arg, i64 KIND
  %kind = load ptr, ptr %at.kind
  %is.tensor = icmp eq ptr %kind, @tensor
  br i1 %is.tensor, label %earlier, label %no
earlier:
  %j = phi i64 [ 0, %entry ], [ %j.next, %other ]
  %more = icmp slt i64 %j, %k
  br i1 %more, label %compare, label %no
compare:
  %at.other = getelementptr ptr, ptr %args, i64 %j
  %before = load ptr, ptr %at.other
  %is = icmp eq ptr %before, %arg
  br i1 %is, label %yes, label %other
other:
  %j.next = add i64 %j, 1
  br label %earlier
yes:
  ret i1 true
no:
  ret i1 false
}

define internal i1 @arguments(ptr %words, ptr %args, i64 %n) {
entry:
  %w1 = getelementptr i64, ptr %words, i64 1
  %rows = load ptr, ptr %w1
  %w12 = getelementptr i64, ptr %words, i64 12
  %count = load i64, ptr %w12
  %w13 = getelementptr i64, ptr %words, i64 13
  %strangers = load ptr, ptr %w13
  br label %argument
argument:
  %k = phi i64 [ 0, %entry ], [ %k.next, %distinct ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %look, label %yes
look:
  %at.arg = getelementptr ptr, ptr %args, i64 %k
  %arg = load ptr, ptr %at.arg
  %offset = mul i64 %k, 5
  %row = getelementptr i64, ptr %rows, i64 %offset
  %ok = call i1 @argument(ptr %arg, ptr %row)
  br i1 %ok, label %others, label %no
others:
  br label %other
other:
  %j = phi i64 [ 0, %others ], [ %j.next, %fine ]
  %j.more = icmp slt i64 %j, %count
  br i1 %j.more, label %compare, label %next
compare:
  %at.other = getelementptr ptr, ptr %strangers, i64 %j
  %stranger = load ptr, ptr %at.other
  %is = icmp eq ptr %stranger, %arg
  br i1 %is, label %no, label %fine
fine:
  %j.next = add i64 %j, 1
  br label %other
next:
  %is.same = call i1 @given_before(ptr %args, i64 %k)
  br i1 %is.same, label %no, label %distinct
distinct:
  %k.next = add i64 %k, 1
  br label %argument
yes:
  ret i1 true
no:
  ret i1 false
}

define internal i1 @check(ptr %words, ptr %args, i64 %n) {
  %wanted = load i64, ptr %words
  %as.many = icmp eq i64 %n, %wanted
  br i1 %as.many, label %a, label %no
a:
  %ok.a = call i1 @arguments(ptr %words, ptr %args, i64 %n)
  br i1 %ok.a, label %b, label %no
b:
  %ok.b = call i1 @words_hold(ptr %words)
  br i1 %ok.b, label %c, label %no
c:
  %ok.c = call i1 @all(ptr %words, i64 6, i64 2, ptr @held)
  br i1 %ok.c, label %d, label %no
d:
  %ok.d = call i1 @all(ptr %words, i64 10, i64 2, ptr @context)
  br i1 %ok.d, label %e, label %no
e:
  %ok.e = call i1 @all(ptr %words, i64 8, i64 3, ptr @item)
  br i1 %ok.e, label %f, label %no
f:
  %ok.f = call i1 @all(ptr %words, i64 14, i64 1, ptr @asked)
  ret i1 %ok.f
no:
  ret i1 false
}

define ptr @ready(ptr %self, ptr %args, i64 %n) {
  %at.words = getelementptr i8, ptr %self, i64 DATA
  %words = load ptr, ptr %at.words
  %at.use = getelementptr i64, ptr %words, i64 16
  %before = load i64, ptr %at.use
  %entered = add i64 %before, 1
  store i64 %entered, ptr %at.use
  %ok = call i1 @check(ptr %words, ptr %args, i64 %n)
  %after = load i64, ptr %at.use ; a guard that Python code checks lets other threads run
  %left = sub i64 %after, 1
  store i64 %left, ptr %at.use
  %error = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %answer, label %failed
failed:
  ret ptr null
answer:
  %result = select i1 %ok, ptr @true, ptr @false
  call void @Py_IncRef(ptr %result)
  ret ptr %result
}
"""
)
