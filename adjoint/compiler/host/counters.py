"""Native code that increments the step counts of optimisers; a part of the native entry.

A step count is an int, or a list of ints, in a dictionary.
"""

from __future__ import annotations

from adjoint.compiler.emit.code import NULL, native
from adjoint.compiler.emit.values import Value
from adjoint.compiler.host.objects import Objects
from adjoint.compiler.host.words import Head, Store

__all__ = ["count_ahead", "count_all"]


@native("ptr")
def counter(w: Objects, row: Value) -> Value:
    """Return the int or the list of a counter; null if the value in the dictionary is neither."""
    found = w.dict_get(w.word(row, Store.OWNER, "ptr"), w.word(row, Store.KEY, "ptr"))
    w.give_if(w.is_null(found))
    return w.select(w.is_type(found, "int", "list"), found, NULL)


@native("ptr")
def number_of(w: Objects, counter: Value) -> Value:
    """Return the number of a counter; null for a list whose items are not all the same int object."""
    w.give_if(w.is_type(counter, "int"), counter)
    length, elements = w.get(counter, "length"), w.get(counter, "elements")
    w.give_if(w.same(length, 0))
    item = w.word(elements, 0, "ptr")
    w.give_unless(w.is_type(item, "int"))
    with w.count(length, first=1) as k:
        w.give_if(w.differ(w.word(elements, k, "ptr"), item))
    return item


@native("ptr")
def count_ahead(w: Objects, words: Value, result: Value) -> Value:
    """Create the next number of each counter, without storing it in the counter.

    Return null if this succeeds, NotImplemented if Python has to count, or ``result`` if there is no memory.
    """
    with w.rows(words, Head.COUNTERS, Store.SIZE) as (_, row):
        found = counter(w, row)
        with w.when(w.is_null(found)):  # the comparison of two keys may have raised an error
            w.goto("clear")
        number = number_of(w, found)
        w.give_if(w.is_null(number), w.miss)
        value = w.as_integer(number)
        with w.when(w.compare("slt", value, 0)):  # the number may be too large for 64 bits
            w.goto("clear")
        new = w.new_integer(w.add(value, 1))
        w.give_if(w.is_null(new), result)
        w.set_word(row, Store.NEW, new)
    w.give()
    w.label("clear")
    w.call_python("PyErr_Clear", "void")
    return w.miss


@native()
def count_all(w: Objects, words: Value) -> None:
    """Store the numbers that ``count_ahead`` has created in the counters."""
    with w.rows(words, Head.COUNTERS, Store.SIZE) as (_, row):
        new = w.word(row, Store.NEW, "ptr")
        w.set_word(row, Store.NEW, None)
        found = counter(w, row)
        with w.unless(w.is_null(found)):
            store_count(w, row, found, new)
        w.decref(new)


@native()
def store_count(w: Objects, row: Value, counter: Value, new: Value) -> None:
    """Store the number ``new`` in a counter: in the dictionary, or in all items of the list."""
    with w.when(w.is_type(counter, "int")):  # the key exists: nothing is allocated
        space, key = w.word(row, Store.OWNER, "ptr"), w.word(row, Store.KEY, "ptr")
        w.call_python("PyDict_SetItem", "i32", space, key, new)
        w.give_nothing()
    w.incref(counter)  # another thread may have stored other objects in it, whose finalizers change the list
    k = w.scratch("i64", 1)
    w.store(w.value(0), k)
    w.mark("next")
    place = w.load(k, "i64")
    with w.when(w.compare("slt", place, w.get(counter, "length"))):
        at = w.at(w.get(counter, "elements"), "ptr", place)
        old = w.load(at, "ptr")
        w.incref(new)
        w.store(new, at)
        w.decref(old)
        w.store(w.add(place, 1), k)
        w.goto("next")
    w.decref(counter)
