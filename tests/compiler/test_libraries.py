"""Native functions of libraries: control flow, tables of words, atomic operations, exports and imports."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from adjoint.compiler.build import units
from adjoint.compiler.emit.code import NULL, Code, External, Library, NativeFunction, native
from adjoint.compiler.emit.values import Value


@native("i64", row="ptr")
def row_sum(w: Code, row: Value) -> Value:
    """The sum of two words."""
    return w.add(w.word(row, 0), w.word(row, 1))


@native("i64", export=True, limit="i64")
def sum_of_rows(w: Code, words: Value, limit: Value) -> Value:
    """The sum of all words of a table; the rows end at the first whose sum is above the limit."""
    total = w.scratch("i64", 1)
    w.store(w.value(0), total)
    with w.rows(words, 1, 2) as (_, row):
        found = row_sum(w, row)
        with w.when(w.compare("sgt", found, limit)):
            w.goto("done")
        w.store(w.add(w.load(total, "i64"), found), total)
    w.mark("done")
    return w.load(total, "i64")


@native("i64", export=True, n="i64")
def first_divisor(w: Code, n: Value) -> Value:
    """The first divisor above 1, or -1 for numbers below 2."""
    w.give_unless(w.compare("sgt", n, 1), -1)
    with w.count(n, first=2) as k:
        w.give_if(w.same(w.op("srem", n, k), 0), k)
    return n


@native("i64", export=True)
def exchange(w: Code, word: Value) -> Value:
    """Replace 5 by 6, then add 10; return 100 if it was 5, plus the number before the addition."""
    swapped = w.swap_if(word, 5, 6, "acq_rel monotonic")
    before = w.add_atomic(word, 10, "seq_cst")
    w.set_atomic(w.variable("last"), before, "release")
    return w.add(w.select(swapped, w.value(100), w.value(0)), w.atomic(w.variable("last"), "acquire"))


@native(export=True)
def double_all(w: Code, words: Value) -> None:
    """Double the words of a table, and count the calls in a variable; do nothing for null."""
    with w.when(w.is_null(words)):
        w.give_nothing()
    with w.rows(words, 0, 1) as (_, row):
        w.set_word(row, 0, w.mul(w.word(row, 0), 2))


@native("i1", export=True)
def is_known(w: Code, thing: Value) -> Value:
    """Whether an address is that of the imported object, or null."""
    return w.either(w.same(thing, w.imported("known")), w.is_null(thing))


def linked(function: NativeFunction, result: Any, *kinds: Any, **imports: int) -> Any:
    library = Library(function)
    assert library.objects == list(imports)
    found = units.library(library.text, (function.name,), imports)
    return ctypes.CFUNCTYPE(result, *kinds)(found[function.name])


INT, P = ctypes.c_int64, ctypes.c_void_p


@pytest.mark.parametrize(("limit", "total"), [(100, 36), (14, 21), (2, 0)])
def test_rows_of_a_table(limit: int, total: int) -> None:
    table = np.arange(1, 9)
    words = np.array([7, 4, table.ctypes.data])
    assert linked(sum_of_rows, INT, P, INT)(words.ctypes.data, limit) == total
    assert linked(sum_of_rows, INT, P, INT)(np.zeros(3, np.int64).ctypes.data, limit) == 0


def test_early_returns() -> None:
    divisor = linked(first_divisor, INT, INT)
    assert [divisor(n) for n in (-3, 1, 2, 9, 35, 97)] == [-1, -1, 2, 3, 5, 97]


def test_atomic_operations() -> None:
    swap, word = linked(exchange, INT, P), np.array([5])
    assert swap(word.ctypes.data) == 106 and word[0] == 16
    assert swap(word.ctypes.data) == 16 and word[0] == 26


def test_functions_without_a_result() -> None:
    table = np.arange(3)
    words, double = np.array([3, table.ctypes.data]), linked(double_all, None, P)
    double(None)
    double(words.ctypes.data)
    assert table.tolist() == [0, 2, 4]


def test_imported_objects() -> None:
    known = object()
    is_it = linked(is_known, ctypes.c_bool, P, known=id(known))
    assert [is_it(x) for x in (id(known), None, id(is_it))] == [True, True, False]


def test_a_function_is_defined_once_and_only_exports_are_visible() -> None:
    library = Library(sum_of_rows, first_divisor)
    assert library.text.count("define internal i64 @row_sum(ptr %row)") == 1
    assert library.text.count("define i64 @") == 2 and library.functions == []


def test_calls_of_c_functions() -> None:
    w = Code()
    call = External("i64", "syscall", "i64", "...")
    assert call(w, 39, None).element == "i64" and External("void", "nothing")(w) is NULL
    text = w.body("void @f()")
    assert "call i64 (i64, ...) @syscall(i64 39, ptr null)" in text and "call void @nothing()" in text
    assert w.unit.declarations == {"declare i64 @syscall(i64, ...)", "declare void @nothing()"}
