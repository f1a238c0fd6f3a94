"""The native entry of a program: read the inputs, run the kernels, write the outputs."""

from __future__ import annotations

from adjoint.compiler.emit.code import NULL, External, native
from adjoint.compiler.emit.values import Value
from adjoint.compiler.host.counters import count_ahead, count_all
from adjoint.compiler.host.objects import Objects, array_of, matches
from adjoint.compiler.host.outputs import (
    discard,
    fill,
    has_slots,
    make_result,
    put_arrays,
    put_gradients,
    renumber,
    reuse_all,
)  # fmt: skip
from adjoint.compiler.host.words import Head, Input, Kind, Part

__all__ = ["call"]

_PLAIN = 257  # flags of an array: contiguous and aligned

_run = External("void", "run", "ptr", "i64", "i64")


def _save_thread(w: Objects) -> Value:
    """Emit a release of the GIL; the value is for ``_restore_thread``."""
    return w.call_python("PyEval_SaveThread", "ptr")


def _restore_thread(w: Objects, state: Value) -> None:
    w.call_python("PyEval_RestoreThread", "void", state)


@native("i1")
def read_array(w: Objects, row: Value, holder: Value) -> Value:
    """Read an input from an array or a tensor; return false if its dtype, shape or memory is wrong."""
    found = array_of(w, holder)
    w.give_if(w.is_null(found), False)
    plain = w.same(w.bits("and", w.get(found, "flags"), _PLAIN), _PLAIN)
    w.give_unless(w.all(plain, matches(w, found, w.at(row, "i64", Input.DTYPE))), False)
    fill(w, row, Input.SLOTS, w.get(found, "data"))
    w.set_word(row, Input.HELD, found)
    return w.value(True)


@native("i1")
def read_number(w: Objects, row: Value, given: Value) -> Value:
    """Read a Python number; return false if it is not a number, or does not fit into a float64."""
    w.give_unless(w.is_type(given, "float", "int", "float64"), False)
    number = w.call_python("PyFloat_AsDouble", "double", given)
    with w.when(w.compare("oeq", number, -1.0)), w.unless(w.is_null(w.call_python("PyErr_Occurred", "ptr"))):
        w.call_python("PyErr_Clear", "void")
        w.give(False)
    w.store(number, w.word(row, Input.NUMBER, "ptr"))
    return w.value(True)


@native("i1")
def read_cell(w: Objects, row: Value, given: Value, key: Value) -> Value:
    """Read an array in a dictionary; return false if it is not there, or if it is wrong."""
    w.give_unless(w.is_type(given, "dict"), False)
    item = w.dict_get(given, key)
    with w.when(w.is_null(item)):
        w.call_python("PyErr_Clear", "void")
        w.give(False)
    return read_array(w, row, item)


@native("i1")
def read(w: Objects, row: Value, args: Value) -> Value:
    """Read one input; return false if its type, dtype or shape is wrong."""
    kind, owner = w.word(row, Input.KIND), w.word(row, Input.OWNER, "ptr")
    with w.when(w.same(kind, Kind.FIXED)):
        w.give(read_array(w, row, owner))
    is_cell = w.same(kind, Kind.CELL)
    place = w.load(w.select(is_cell, owner, w.at(row, "i64", Input.OWNER)), "i64")
    given = w.word(args, place, "ptr")
    with w.when(is_cell):
        w.give(read_cell(w, row, given, w.word(owner, 1, "ptr")))
    with w.when(w.same(kind, Kind.NUMBER)):
        w.give(read_number(w, row, given))
    return read_array(w, row, given)


@native("i1")
def read_all(w: Objects, words: Value, args: Value) -> Value:
    """Read all inputs; return false if the type, dtype or shape of one is wrong."""
    with w.rows(words, Head.INPUTS, Input.SIZE) as (_, row):
        w.give_unless(read(w, row, args), False)
    return w.value(True)


@native(takes="i1")
def hold(w: Objects, words: Value, takes: Value) -> None:
    """Increment (``takes``) or decrement the reference counts of the inputs: they live without the GIL."""
    with (
        w.rows(words, Head.INPUTS, Input.SIZE) as (_, row),
        w.when(w.differ(w.word(row, Input.KIND), Kind.NUMBER)),
    ):
        held = w.word(row, Input.HELD, "ptr")
        with w.when(takes):
            w.incref(held)
        with w.unless(takes):
            w.decref(held)


@native("i1")
def passes(w: Objects, words: Value) -> Value:
    """Return whether all checks have passed."""
    with w.rows(words, Head.CHECKS, 1) as (_, row):
        w.give_if(w.differ(w.load(w.word(row, 0, "ptr"), "i8"), 0), False)
    return w.value(True)


def _always_writes(w: Objects, words: Value) -> Value:
    return w.differ(w.word(words, Head.ALWAYS), 0)


@native("ptr")
def commit(w: Objects, words: Value, result: Value) -> Value:
    """After the kernels have run, write the outputs, unless a check failed.

    Return the result, NotImplemented, or null if there is no memory.  If the program always writes,
    ``before_run`` has done everything that can fail.
    """
    with w.when(_always_writes(w, words)):
        w.mark("wait")
        with w.unless(has_slots(w, words)):  # another thread is adding to a gradient: let it finish
            _restore_thread(w, _save_thread(w))
            w.goto("wait")
        w.goto("keep")
    w.give_unless(passes(w, words), w.miss)
    problem = before_writes(w, words, result)
    with w.unless(w.is_null(problem)):
        w.give(w.select(w.same(problem, w.miss), problem, NULL))
    w.mark("keep")
    put_arrays(w, words, result)
    put_gradients(w, words, result)
    count_all(w, words)
    return result


@native("ptr")
def before_run(w: Objects, words: Value, result: Value) -> Value:
    """If the program always writes, run the kernels of the checks, then do everything else that can fail.

    Return null if nothing failed; NotImplemented; or the result if there is no memory.
    """
    w.give_unless(_always_writes(w, words))
    records = w.word(words, Head.FIRST)
    with w.when(w.differ(records, 0)):
        _run(w, w.word(words, Head.FIRST + 1, "ptr"), records, 0)
        w.give_unless(passes(w, words), w.miss)
    return before_writes(w, words, result)


@native("ptr")
def before_writes(w: Objects, words: Value, result: Value) -> Value:
    """Do everything before the writes that can fail; return as ``before_run``."""
    w.give_unless(has_slots(w, words), w.miss)
    problem = count_ahead(w, words, result)
    w.give_unless(w.is_null(problem), problem)
    return w.select(renumber(w, words), NULL, result)


@native("ptr")
def refuse(w: Objects, words: Value, result: Value, answer: Value) -> Value:
    """Discard the result of a call that writes nothing; return NotImplemented, or null without memory."""
    discard(w, words, result)
    miss = w.miss
    return w.select(w.same(answer, miss), miss, NULL)


@native("ptr")
def attempt(w: Objects, words: Value, args: Value) -> Value:
    """Run the program.

    ``make_result`` can run Python code: PyTuple_New and PyType_GenericAlloc may collect garbage.  So it comes
    first: no Python code of this thread runs from ``read_all``
    until everything is written.
    """
    result = make_result(w, words)
    w.give_if(w.is_null(result))
    with w.unless(read_all(w, words, args)):
        w.give(refuse(w, words, result, w.miss))
    for prepare in (reuse_all, before_run):
        problem = prepare(w, words, result)
        with w.unless(w.is_null(problem)):
            w.give(refuse(w, words, result, problem))
    found = run_kernels(w, words, result)
    with w.when(w.differ(found, result)):
        w.give(refuse(w, words, result, found))
    return result


@native("ptr")
def run_parts(w: Objects, words: Value, result: Value) -> Value:
    """Run the parts of a program that calls Python, and write the outputs; return as ``commit``.

    If a call raises, return null; or NotImplemented if there are checks: one may have failed before, and
    Python then raises its error.
    """
    hold(w, words, True)
    with w.rows(words, Head.PARTS, Part.SIZE) as (_, row):
        run_part(w, words, row)
        function = w.word(row, Part.CALL, "ptr")
        with w.unless(w.is_null(function)):
            made = w.call_python("PyObject_CallNoArgs", "ptr", function)
            with w.when(w.is_null(made)):
                hold(w, words, False)
                w.give_if(w.same(w.word(words, Head.CHECKS), 0))
                usual = w.call_python("PyErr_ExceptionMatches", "i32", w.imported("exception"))
                w.give_if(w.same(usual, 0))  # an interrupt
                w.call_python("PyErr_Clear", "void")
                w.give(w.miss)
            w.decref(made)
    found = commit(w, words, result)
    hold(w, words, False)
    return found


@native()
def run_part(w: Objects, words: Value, row: Value) -> None:
    """Run the kernels of a part, without the GIL if all kernels together take long."""
    records, listed = w.word(row, Part.RECORDS), w.word(row, Part.RECORDS + 1, "ptr")
    with w.when(w.same(w.word(words, Head.RELEASES), 0)):
        _run(w, listed, records, 0)
        w.give_nothing()
    state = _save_thread(w)
    _run(w, listed, records, w.word(words, Head.HELPERS))
    _restore_thread(w, state)


@native("ptr")
def run_kernels(w: Objects, words: Value, result: Value) -> Value:
    """Run all kernels, without the GIL if they take long, and write the outputs; return as ``commit``."""
    with w.when(w.differ(w.word(words, Head.PARTS), 0)):
        w.give(run_parts(w, words, result))
    records, listed = w.word(words, Head.RECORDS), w.word(words, Head.RECORDS + 1, "ptr")
    with w.when(w.same(w.word(words, Head.RELEASES), 0)):
        _run(w, listed, records, 0)
        w.give(commit(w, words, result))
    hold(w, words, True)
    state = _save_thread(w)
    _run(w, listed, records, w.word(words, Head.HELPERS))
    _restore_thread(w, state)
    found = commit(w, words, result)
    hold(w, words, False)
    return found


@native("ptr", export=True, count="i64")
def call(w: Objects, owner: Value, args: Value, count: Value) -> Value:
    """Run a program; this is the function that Python calls.

    The first word is 1 during a call.  Calls of the same program during that time, by other threads or by
    Python code that a finalizer runs, return NotImplemented.
    """
    words, miss = w.get(owner, "data"), w.miss
    idle = w.same(w.word(words, Head.BUSY), 0)
    with w.when(w.all(idle, w.same(count, w.word(words, Head.ARGUMENTS)))):
        w.set_word(words, Head.BUSY, 1)
        found = attempt(w, words, args)
        w.set_word(words, Head.BUSY, 0)
        w.give_if(w.differ(found, miss), found)
    w.incref(miss)
    return miss
