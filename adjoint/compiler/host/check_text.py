"""Native code of the check that nothing a program depends on has changed; see ``host.check``."""

from __future__ import annotations

from enum import IntEnum

from adjoint.compiler.emit.code import NULL, native
from adjoint.compiler.emit.values import Value
from adjoint.compiler.host.objects import Objects, array_of, matches

__all__ = ["ReadKind", "Watched", "ready"]


class Watched(IntEnum):
    """The words of the header.  A table has two words: the number of its rows, and their address."""

    ARGUMENTS = 0  # a table of arguments: type, node, dtype, number of axes, lengths
    EQUAL = 2  # a table of words that must be equal: address, value
    DIFFER = 4  # a table of words that must differ
    HELD = 6  # a table of tensors: the tensor, and the address of its dtype, number of axes and lengths
    SPACES = 8  # a table of dictionaries, each with a table of keys and values; value 0: any
    STRANGERS = 10  # a table of objects that no argument may be
    ASKED = 12  # a table of functions that must return True
    READS = 14  # a table of values that were read: the kind (see ``ReadKind``), the owner, the key, the value
    USERS = 16  # the number of checks that are reading tables
    SIZE = 17


class ReadKind(IntEnum):
    """How a value is read."""

    ITEM = 0  # of a dictionary; null if there is none
    ATTRIBUTE = 1
    CONTEXT = 2  # the value of a context variable
    ELEMENT = 3  # of a list
    HAS = 4  # whether a dictionary has a key


@native("i1")
def fits(w: Objects, thing: Value, spec: Value) -> Value:
    """Return whether an array, or the array of a tensor, has the dtype and shape of ``spec``."""
    array = array_of(w, thing)
    w.give_if(w.is_null(array), False)
    return matches(w, array, spec)


@native("i1")
def argument(w: Objects, given: Value, row: Value) -> Value:
    """Return whether an argument is as in its row: an array, or a tensor with a node (null: any Node)."""
    w.give_if(w.differ(w.get(given, "kind"), w.word(row, 0, "ptr")), False)
    with w.when(w.is_type(given, "tensor")):
        node, wanted = w.get(given, "node"), w.word(row, 1, "ptr")
        with w.when(w.differ(node, wanted)):
            w.give_unless(w.all(w.is_null(wanted), w.differ(node, NULL)), False)
            w.give_unless(w.is_type(node, "node"), False)
    return fits(w, given, w.at(row, "i64", 2))


@native("i1", k="i64")
def given_before(w: Objects, args: Value, k: Value) -> Value:
    """Return whether the argument ``k`` is a tensor that is also an earlier argument."""
    given = w.word(args, k, "ptr")
    with w.when(w.is_type(given, "tensor")), w.count(k) as j:
        w.give_if(w.same(w.word(args, j, "ptr"), given), True)
    return w.value(False)


@native("i1")
def arguments(w: Objects, words: Value, args: Value) -> Value:
    """Return whether all arguments are as in their rows, and are different tensors that nothing else uses."""
    with w.rows(words, Watched.ARGUMENTS, 5) as (k, row):
        given = w.word(args, k, "ptr")
        w.give_unless(argument(w, given, row), False)
        with w.rows(words, Watched.STRANGERS, 1) as (_, stranger):
            w.give_if(w.same(w.word(stranger, 0, "ptr"), given), False)
        w.give_if(given_before(w, args, k), False)
    return w.value(True)


@native("i1")
def words_hold(w: Objects, words: Value) -> Value:
    """Return whether all words that must be equal are equal, and all that must differ are different."""
    for head, wrong in ((Watched.EQUAL, w.differ), (Watched.DIFFER, w.same)):
        with w.rows(words, head, 2) as (_, row):
            w.give_if(wrong(w.load(w.word(row, 0, "ptr"), "i64"), w.word(row, 1)), False)
    return w.value(True)


@native("i1")
def has_items(w: Objects, row: Value) -> Value:
    """Return whether a dictionary has the keys of its row, in this order, with these values."""
    space, at, key, value = w.word(row, 0, "ptr"), *(w.scratch("i64", 1) for _ in range(3))
    w.store(w.value(0), at)
    with w.rows(row, 1, 2) as (_, pair):
        w.give_if(w.same(w.call_python("PyDict_Next", "i32", space, at, key, value), 0), False)
        w.give_if(w.differ(w.load(key, "i64"), w.word(pair, 0)), False)
        wanted = w.word(pair, 1)
        w.give_unless(w.either(w.same(w.load(value, "i64"), wanted), w.same(wanted, 0)), False)
    return w.same(w.call_python("PyDict_Next", "i32", space, at, key, value), 0)


@native("ptr")
def value_read(w: Objects, row: Value) -> Value:
    """Return the present value of a read, or null; the caller compares its address only."""
    kind, owner, key = w.word(row, 0), w.word(row, 1, "ptr"), w.word(row, 2, "ptr")
    with w.when(w.same(kind, ReadKind.ITEM)):
        w.give(w.dict_get(owner, key))
    with w.when(w.same(kind, ReadKind.HAS)):
        w.give(w.select(w.is_null(w.dict_get(owner, key)), w.imported("false"), w.imported("true")))
    with w.when(w.same(kind, ReadKind.ELEMENT)):
        index, length = w.word(row, 2), w.get(owner, "length")
        place = w.select(w.compare("slt", index, 0), w.add(index, length), index)
        w.give_unless(w.compare("ult", place, length))
        w.give(w.word(w.get(owner, "elements"), place, "ptr"))
    found = w.scratch("ptr", 1)
    with w.when(w.same(kind, ReadKind.CONTEXT)):
        w.store(NULL, found)
        w.call_python("PyContextVar_Get", "i32", owner, None, found)
    with w.when(w.same(kind, ReadKind.ATTRIBUTE)):
        w.store(w.call_python("PyObject_GetAttr", "ptr", owner, key), found)
        with w.when(w.is_null(w.load(found, "ptr"))):
            usual = w.call_python("PyErr_ExceptionMatches", "i32", w.imported("exception"))
            with w.unless(w.same(usual, 0)):  # interrupts are not cleared
                w.call_python("PyErr_Clear", "void")
    w.decref(w.load(found, "ptr"))
    return w.load(found, "ptr")


@native("i1")
def check(w: Objects, words: Value, args: Value) -> Value:
    """Return whether the arguments fit, and nothing that the program depends on has changed."""
    w.give_unless(arguments(w, words, args), False)
    w.give_unless(words_hold(w, words), False)
    with w.rows(words, Watched.HELD, 2) as (_, row):
        w.give_unless(fits(w, w.word(row, 0, "ptr"), w.word(row, 1, "ptr")), False)
    with w.rows(words, Watched.SPACES, 3) as (_, row):
        w.give_unless(has_items(w, row), False)
    with w.rows(words, Watched.READS, 4) as (_, row):
        w.give_if(w.differ(value_read(w, row), w.word(row, 3, "ptr")), False)
    with w.rows(words, Watched.ASKED, 1) as (_, row):
        answer = w.call_python("PyObject_CallNoArgs", "ptr", w.word(row, 0, "ptr"))
        w.give_if(w.is_null(answer), False)
        w.decref(answer)
        w.give_if(w.differ(answer, w.imported("true")), False)
    return w.value(True)


@native("ptr", export=True, count="i64")
def ready(w: Objects, owner: Value, args: Value, count: Value) -> Value:
    """Return True or False, the result of ``check``; this is the function that Python calls."""
    words = w.get(owner, "data")
    flag = w.scratch("i1", 1)
    w.store(w.value(False), flag)
    with w.when(w.same(count, w.word(words, Watched.ARGUMENTS))):
        w.set_word(words, Watched.USERS, w.add(w.word(words, Watched.USERS), 1))
        w.store(check(w, words, args), flag)
        # read again: a guard that Python code checks lets other threads run
        w.set_word(words, Watched.USERS, w.sub(w.word(words, Watched.USERS), 1))
    w.give_unless(w.is_null(w.call_python("PyErr_Occurred", "ptr")))
    answer = w.select(w.load(flag, "i1"), w.imported("true"), w.imported("false"))
    w.incref(answer)
    return answer
