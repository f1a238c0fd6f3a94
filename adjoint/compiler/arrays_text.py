"""LLVM IR that reads NumPy arrays and tensors, for the native entry and the native check of guards.

Upper-case names in the text are placeholders for offsets of struct members; ``entry`` and ``watch`` replace
them by numbers.
"""

from __future__ import annotations

__all__ = ["TEXT"]

TEXT = r"""
@ndarray = external global i8
@tensor = external global i8

; Return %object if it is an array, or its array if it is a tensor; null for other objects.
define internal ptr @array_of(ptr %object) {
  %at.kind = getelementptr i8, ptr %object, i64 KIND
  %kind = load ptr, ptr %at.kind
  %is.array = icmp eq ptr %kind, @ndarray
  br i1 %is.array, label %yes, label %other
yes:
  ret ptr %object
other:
  %is.tensor = icmp eq ptr %kind, @tensor
  br i1 %is.tensor, label %open, label %no
open:
  %at.data = getelementptr i8, ptr %object, i64 TENSOR
  %data = load ptr, ptr %at.data
  %none = icmp eq ptr %data, null
  br i1 %none, label %no, label %look
look:
  %at.kind2 = getelementptr i8, ptr %data, i64 KIND
  %kind2 = load ptr, ptr %at.kind2
  %is.array2 = icmp eq ptr %kind2, @ndarray
  br i1 %is.array2, label %good, label %no
good:
  ret ptr %data
no:
  ret ptr null
}

; Return whether an array has the dtype and shape of %spec, which holds: dtype, number of axes, lengths.
define internal i1 @matches(ptr %array, ptr %spec) {
entry:
  %at.dtype = getelementptr i8, ptr %array, i64 DTYPE
  %dtype = load ptr, ptr %at.dtype
  %wanted = load ptr, ptr %spec
  %same = icmp eq ptr %dtype, %wanted
  %at.ndim = getelementptr i8, ptr %array, i64 NDIM
  %ndim32 = load i32, ptr %at.ndim
  %ndim = sext i32 %ndim32 to i64
  %at.axes = getelementptr i64, ptr %spec, i64 1
  %axes = load i64, ptr %at.axes
  %as.many = icmp eq i64 %ndim, %axes
  %both = and i1 %same, %as.many
  br i1 %both, label %shapes, label %no
shapes:
  %at.shape = getelementptr i8, ptr %array, i64 SHAPE
  %shape = load ptr, ptr %at.shape
  %at.lengths = getelementptr i64, ptr %spec, i64 2
  %lengths = load ptr, ptr %at.lengths
  br label %axis
axis:
  %k = phi i64 [ 0, %shapes ], [ %k.next, %equal ]
  %more = icmp slt i64 %k, %axes
  br i1 %more, label %compare, label %yes
compare:
  %at.n = getelementptr i64, ptr %shape, i64 %k
  %n = load i64, ptr %at.n
  %at.m = getelementptr i64, ptr %lengths, i64 %k
  %m = load i64, ptr %at.m
  %ok = icmp eq i64 %n, %m
  br i1 %ok, label %equal, label %no
equal:
  %k.next = add i64 %k, 1
  br label %axis
yes:
  ret i1 true
no:
  ret i1 false
}
"""
