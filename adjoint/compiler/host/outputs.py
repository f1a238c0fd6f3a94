"""Native code of the entry that makes the outputs and stores them in tensors."""

from __future__ import annotations

from adjoint.compiler.emit.code import NULL, External, native
from adjoint.compiler.emit.values import Value
from adjoint.compiler.host.objects import Objects, array_of, matches
from adjoint.compiler.host.structs import layout
from adjoint.compiler.host.words import Head, Input, Kind, Output, Store

__all__ = [
    "discard", "fill", "has_slots", "make_result", "put_arrays", "put_gradients", "renumber", "reuse_all",
]  # fmt: skip

_OWNED = 1285  # flags of an array: contiguous, owns its memory, aligned, writable

_new_array = External("ptr", "new_array", "ptr", "ptr", "i32", "ptr", "ptr", "ptr", "i32", "ptr")


@native(first="i64")
def fill(w: Objects, row: Value, first: Value, address: Value) -> None:
    """Store an address in all slots of a row; the word ``first`` starts its table of slots and offsets."""
    with w.rows(row, first, 2) as (_, slot):
        w.store(w.at(address, "i8", w.word(slot, 1)), w.word(slot, 0, "ptr"))


def _item(w: Objects, result: Value, place: Value) -> Value:
    """Emit the address of an item of a tuple."""
    where = layout()
    assert where is not None
    return w.at(w.at(result, "i8", where.items), "ptr", place)


# Arrays ----------------------------------------------------------------------------------------------


def _is_alone(w: Objects, thing: Value) -> Value:
    """Emit a flag: whether there is only one reference to an object."""
    return w.same(w.get(thing, "references"), 1)


def _reuses(w: Objects, row: Value) -> Value:
    """Emit a flag: whether an output may get the array of an input, or of the gradient that it replaces."""
    return w.differ(w.bits("or", w.word(row, Output.INPUT), w.word(row, Output.GRADED)), 0)


@native("i1")
def is_free(w: Objects, array: Value, row: Value) -> Value:
    """Return whether an output may be written into an array: nothing else refers to it, and it fits."""
    plain = w.same(w.bits("and", w.get(array, "flags"), _OWNED), _OWNED)
    unwatched = w.is_null(w.get(array, "weak"))
    return w.all(_is_alone(w, array), plain, unwatched, matches(w, array, row))


@native("ptr")
def reused(w: Objects, row: Value) -> Value:
    """Return the array whose memory an output may get; else null, or NotImplemented for a cell."""
    source = w.word(row, Output.INPUT, "ptr")
    with w.unless(w.is_null(source)):
        array = w.word(source, Input.HELD, "ptr")
        is_cell = w.same(w.word(source, Input.KIND), Kind.CELL)
        other = w.select(is_cell, w.miss, NULL)
        w.give(w.select(is_free(w, array, row), array, other))
    extra = w.get(w.word(row, Output.GRADED, "ptr"), "extra")
    w.give_if(_is_missing(w, extra))
    old = w.get(extra, "grad")
    w.give_unless(w.all(w.is_type(old, "tensor"), _is_alone(w, old)))
    array = array_of(w, old)
    w.give_if(w.is_null(array))
    return w.select(is_free(w, array, row), array, NULL)


def _is_missing(w: Objects, thing: Value) -> Value:
    """Emit a flag: whether an object is None or null."""
    return w.either(w.same(thing, w.imported("none")), w.is_null(thing))


@native("ptr")
def reuse_all(w: Objects, words: Value, result: Value) -> Value:
    """Find the arrays of the outputs that may reuse one.

    Return null; NotImplemented; or the result if there is no memory.
    """
    with w.rows(words, Head.OUTPUTS, Output.SIZE) as (k, row), w.when(_reuses(w, row)):
        found = reused(w, row)
        w.give_if(w.same(found, w.miss), found)
        with w.when(w.is_null(found)):
            made = new_output(w, row)
            w.give_if(w.is_null(made), result)
            set_output(w, result, k, row, made)
        with w.unless(w.is_null(found)):
            w.incref(found)
            set_output(w, result, k, row, found)
    return NULL


@native(place="i64")
def set_output(w: Objects, result: Value, place: Value, row: Value, array: Value) -> None:
    """Store an array in the result, and the address of its elements in the slots of the output."""
    w.store(array, _item(w, result, place))
    fill(w, row, Output.SLOTS, w.get(array, "data"))


@native("ptr")
def new_output(w: Objects, row: Value) -> Value:
    """Return a new array for a row; null if there is no memory."""
    dtype, shape = w.word(row, Output.DTYPE, "ptr"), w.word(row, Output.SHAPE, "ptr")
    ndim, none = w.convert(w.word(row, Output.NDIM), "i32"), w.const(0, "i32")
    w.incref(dtype)
    return _new_array(w, w.imported("ndarray"), dtype, ndim, shape, None, None, none, None)


@native()
def put_arrays(w: Objects, words: Value, result: Value) -> None:
    """Exchange the arrays of tensors with those in the result."""
    with w.rows(words, Head.ARRAYS, Store.SIZE) as (_, row):
        to, place = w.word(row, Store.OWNER, "ptr"), w.word(row, Store.PLACE)
        item = _item(w, result, place)
        old = w.get(to, "tensor")
        w.put(to, "tensor", w.load(item, "ptr"))
        w.store(old, item)


# Gradients -------------------------------------------------------------------------------------------


@native("i1")
def has_slots(w: Objects, words: Value) -> Value:
    """Return whether gradients can be written: each tensor can store one, and no thread is adding to one."""
    with w.rows(words, Head.GRADS, Store.SIZE) as (_, row):
        w.give_if(w.differ(w.get(w.imported("committing"), "holder"), 0), False)
        w.give_if(_is_missing(w, w.get(w.word(row, Store.OWNER, "ptr"), "extra")), False)
    return w.value(True)


@native("i1")
def make_gradients(w: Objects, words: Value) -> Value:
    """Make the tensors of the gradients, whose arrays are still to be set; false if there is no memory."""
    none, zero = w.imported("none"), w.imported("zero")
    with w.rows(words, Head.GRADS, Store.SIZE) as (_, row):
        new = w.call_python("PyType_GenericAlloc", "ptr", w.imported("tensor"), 0)
        w.give_if(w.is_null(new), False)
        for member, value in (("node", none), ("extra", none), ("version", zero)):
            w.incref(value)
            w.put(new, member, value)
        w.set_word(row, Store.NEW, new)
    return w.value(True)


@native()
def put_gradients(w: Objects, words: Value, result: Value) -> None:
    """Exchange the gradients of tensors with the new tensors, which get arrays of the result."""
    with w.rows(words, Head.GRADS, Store.SIZE) as (_, row):
        new, place = w.word(row, Store.NEW, "ptr"), w.word(row, Store.PLACE)
        item = _item(w, result, place)
        w.put(new, "tensor", w.load(item, "ptr"))
        extra = w.get(w.word(row, Store.OWNER, "ptr"), "extra")
        old = w.get(extra, "grad")
        w.put(extra, "grad", new)
        w.set_word(row, Store.NEW, None)
        w.store(old, item)


# Versions --------------------------------------------------------------------------------------------


@native("i1")
def renumber(w: Objects, words: Value) -> Value:
    """Increment the versions of the tensors that are written.

    A tensor without a graph gets the next number of the clock.  Return false, and change nothing, if there
    is no memory.
    """
    w.give_if(w.same(w.word(words, Head.ARRAYS), 0), True)
    clock = w.imported("clock")
    before = w.get(clock, "now")
    last = w.scratch("i64", 1)
    w.store(w.as_integer(before), last)
    with w.rows(words, Head.ARRAYS, Store.SIZE) as (_, row):
        tensor = w.word(row, Store.OWNER, "ptr")
        (number,) = w.choose(
            w.same(w.get(tensor, "node"), w.imported("none")),
            lambda: [_tick(w, last)],
            lambda: [w.add(w.as_integer(w.get(tensor, "version")), 1)],
        )
        new = w.new_integer(number)
        w.give_if(w.is_null(new), False)
        w.set_word(row, Store.NEW, new)
    now = w.new_integer(w.load(last, "i64"))
    w.give_if(w.is_null(now), False)
    w.put(clock, "now", now)
    with w.rows(words, Head.ARRAYS, Store.SIZE) as (_, row):
        tensor = w.word(row, Store.OWNER, "ptr")
        old = w.get(tensor, "version")
        w.put(tensor, "version", w.word(row, Store.NEW, "ptr"))
        w.set_word(row, Store.NEW, None)
        w.decref(old)
    w.decref(before)
    return w.value(True)


def _tick(w: Objects, last: Value) -> Value:
    """Emit an increment of the number at an address; the value is the new number."""
    now = w.add(w.load(last, "i64"), 1)
    w.store(now, last)
    return now


# The result ------------------------------------------------------------------------------------------


@native("ptr")
def make_result(w: Objects, words: Value) -> Value:
    """Make the result, its new arrays and the tensors of the gradients; null if there is no memory.

    Python code that runs meanwhile must not find the result, whose items change: the garbage collector does
    not list it.
    """
    result = w.call_python("PyTuple_New", "ptr", w.word(words, Head.OUTPUTS))
    w.give_if(w.is_null(result))
    w.call_python("PyObject_GC_UnTrack", "void", result)
    with w.rows(words, Head.OUTPUTS, Output.SIZE) as (k, row), w.unless(_reuses(w, row)):
        new = new_output(w, row)  # other outputs: ``reuse_all`` stores an array
        with w.when(w.is_null(new)):
            w.goto("failed")
        set_output(w, result, k, row, new)
    w.give_if(make_gradients(w, words), result)
    w.mark("failed")
    discard(w, words, result)
    return NULL


@native()
def discard(w: Objects, words: Value, result: Value) -> None:
    """Release a result, and the new gradients, versions and counts that have not been stored."""
    for first in (Head.COUNTERS, Head.ARRAYS, Head.GRADS):
        release(w, words, first)
    w.decref(result)


@native(first="i64")
def release(w: Objects, words: Value, first: Value) -> None:
    """Release the new object of each row of the table that starts at the word ``first``."""
    with w.rows(words, first, Store.SIZE) as (_, row):
        new = w.word(row, Store.NEW, "ptr")
        w.set_word(row, Store.NEW, None)
        w.decref(new)
