"""Count the bytes of NumPy's arrays exactly, with an own allocator for them (NEP 49).

The allocator is native code, because it must still free arrays when the interpreter exits.  It stores the
size of each array in front of it.  ``peak_of_calls`` measures the memory that a compiled step needs.

What is not counted: scratch memory that BLAS and ufuncs allocate, Python objects, code, and the tables that a
native program has instead of Python's bytecode (addresses of arrays, records of kernel calls).
"""

from __future__ import annotations

import ctypes
import functools
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from adjoint.compiler.build.llvm import compile_text, link
from adjoint.compiler.emit.machine import machine

__all__ = ["counted", "live", "peak_of", "peak_of_calls"]

CALLS = 3  # the first is traced, the second compiles the program
TABLES = ("emit/code", "host/entry", "host/pool", "host/check")  # files of adjoint.compiler that make tables

SET_HANDLER = 304  # the index of PyDataMem_SetHandler in NumPy's table of C functions

TEXT = r"""
declare ptr @malloc(i64)
declare ptr @calloc(i64, i64)
declare ptr @realloc(ptr, i64)
declare void @free(ptr)
@now = internal global i64 0
@most = internal global i64 0
@handler = internal global { [127 x i8], i8, ptr, ptr, ptr, ptr, ptr } {
  [127 x i8] zeroinitializer, i8 1, ptr null, ptr @new, ptr @new_zeros, ptr @resize, ptr @release }

define internal ptr @noted(ptr %block, i64 %size, i64 %more) {
  %failed = icmp eq ptr %block, null
  br i1 %failed, label %no, label %yes
yes:
  store i64 %size, ptr %block
  %before = atomicrmw add ptr @now, i64 %more seq_cst
  %sum = add i64 %before, %more
  %highest = atomicrmw max ptr @most, i64 %sum seq_cst
  %data = getelementptr i8, ptr %block, i64 64
  ret ptr %data
no:
  ret ptr null
}

define internal ptr @new(ptr %context, i64 %size) {
  %whole = add i64 %size, 64
  %block = call ptr @malloc(i64 %whole)
  %data = call ptr @noted(ptr %block, i64 %size, i64 %size)
  ret ptr %data
}

define internal ptr @new_zeros(ptr %context, i64 %count, i64 %each) {
  %size = mul i64 %count, %each
  %whole = add i64 %size, 64
  %block = call ptr @calloc(i64 1, i64 %whole)
  %data = call ptr @noted(ptr %block, i64 %size, i64 %size)
  ret ptr %data
}

define internal ptr @resize(ptr %context, ptr %old, i64 %size) {
  %first = icmp eq ptr %old, null
  br i1 %first, label %make, label %change
make:
  %made = call ptr @new(ptr %context, i64 %size)
  ret ptr %made
change:
  %from = getelementptr i8, ptr %old, i64 -64
  %had = load i64, ptr %from
  %whole = add i64 %size, 64
  %block = call ptr @realloc(ptr %from, i64 %whole)
  %more = sub i64 %size, %had
  %data = call ptr @noted(ptr %block, i64 %size, i64 %more)
  ret ptr %data
}

define internal void @release(ptr %context, ptr %data, i64 %given) {
  %none = icmp eq ptr %data, null
  br i1 %none, label %end, label %some
some:
  %block = getelementptr i8, ptr %data, i64 -64
  %size = load i64, ptr %block
  %before = atomicrmw sub ptr @now, i64 %size seq_cst
  call void @free(ptr %block)
  br label %end
end:
  ret void
}

@text = internal constant [12 x i8] c"mem_handler\00"

define ptr @address() {
  ret ptr @handler
}

define ptr @name() {
  ret ptr @text
}

define i64 @live() {
  %found = load atomic i64, ptr @now seq_cst, align 8
  ret i64 %found
}

define i64 @most_of(i64 %reset) {
  %found = load atomic i64, ptr @most seq_cst, align 8
  %yes = icmp ne i64 %reset, 0
  br i1 %yes, label %set, label %end
set:
  %size = load atomic i64, ptr @now seq_cst, align 8
  store atomic i64 %size, ptr @most seq_cst, align 8
  br label %end
end:
  ret i64 %found
}
"""


@functools.cache
def _functions() -> dict[str, Any]:
    """Compile the allocator; return its functions by name."""
    kinds = {
        "address": ctypes.CFUNCTYPE(ctypes.c_void_p),
        "name": ctypes.CFUNCTYPE(ctypes.c_void_p),
        "live": ctypes.CFUNCTYPE(ctypes.c_int64),
        "most_of": ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64),
    }
    found = link(compile_text(TEXT, machine()), tuple(kinds))
    found.detach()  # never unload the code: arrays that it allocated may live until the process ends
    return {name: kind(found[name]) for name, kind in kinds.items()}


def _set_handler() -> Callable[[Any], Any]:
    """Return NumPy's function that sets the allocator of new arrays and returns the one before it."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = get(np._core._multiarray_umath._ARRAY_API, None)  # type: ignore[attr-defined]
    address = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))[SET_HANDLER]
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(address)


@functools.cache
def _handler() -> Any:
    """Return the allocator as NumPy expects it, in a capsule."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    return make(_functions()["address"](), _functions()["name"](), None)


@contextmanager
def counted() -> Iterator[None]:
    """Count the arrays that are made in the block, also by threads to which the context is copied."""
    before = _set_handler()(_handler())
    try:
        yield
    finally:
        _set_handler()(before)


def live() -> int:
    """Return the bytes of all counted arrays that exist."""
    gc.collect()
    return int(_functions()["live"]())


def peak_of(step: Callable[[], Any]) -> int:
    """Return the largest number of bytes that counted arrays have during a call, with those before it."""
    gc.collect()
    most = _functions()["most_of"]
    most(1)
    step()
    return int(most(0))


def peak_of_calls(make: Callable[[], Callable[[], Any]]) -> int:
    """Return the bytes that a call of a compiled step needs at a time, with those that it keeps from others.

    ``make()`` returns the step; the arrays that exist then, such as parameters, are not counted.  Gradients,
    the state of optimisers, results, intermediate results and workspace are.
    """
    with counted():
        step = make()
        before = live()
        tracemalloc.start()
        try:
            for _ in range(CALLS):
                step()
            tables = _tables()
        finally:
            tracemalloc.stop()
        return peak_of(step) - before - tables


def _tables() -> int:
    """Return the bytes of the tables of native programs, which are found by the files that make them."""
    domain = np.lib.tracemalloc_domain
    filters = [tracemalloc.Filter(True, f"*/adjoint/compiler/{name}.py", domain=domain) for name in TABLES]
    traces = tracemalloc.take_snapshot().filter_traces(filters)
    return sum(s.size for s in traces.statistics("filename"))
