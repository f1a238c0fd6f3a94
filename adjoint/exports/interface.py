"""The functions of a library besides the calling function: sizes, parts, saving and error texts."""

from __future__ import annotations

import json
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np

from adjoint.compiler.emit.code import Code, native
from adjoint.compiler.emit.values import Value
from adjoint.exports.calling import (
    BAD_POINTER,
    BAD_STATE,
    CHECKS,
    Calling,
    nonzero_end,
    state_values,
)  # fmt: skip
from adjoint.exports.plan import HEADER
from adjoint.exports.runtime import copy, fill
from adjoint.exports.texts import EXPORTED, quoted

__all__ = ["DTYPES", "SavedForm", "check_text", "define_interface", "error_texts"]

TOO_SMALL, FOREIGN_FILE, DAMAGED_FILE = 3, 4, 5
DTYPES = {
    "bool": "BOOL", "bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64",
    **{f"{sign}int{bits}": f"{'U' if sign else 'I'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
_NO_SUM = "0" * 16
# The checksum is a polynomial of 32-bit words, and of the bytes after the last whole word, modulo 2**64.
_START, _FACTOR, _TOGETHER = 0xCBF29CE484222325, 0x100000001B3, 1 << 16


class SavedForm:
    """The bytes of a saved state: a file of safetensors with a fixed header, and the data of all parts.

    ``digits`` is the position of the 16 digits of the checksum of the data.
    """

    def __init__(self, calling: Calling) -> None:
        mark = f"{calling.fingerprint() & (1 << 64) - 1:016x}"
        entries: dict[str, Any] = {"__metadata__": {"library": mark, "checksum": _NO_SUM}}
        at = 0
        self.places: list[
            tuple[int, int, int]
        ] = []  # of each part: offsets in the data and in the state, bytes
        for p in calling.order:
            self.places.append((at, p.offset, p.value.nbytes))
            kind = DTYPES[p.value.dtype.name]
            entries[p.name] = {
                "dtype": kind, "shape": list(p.value.shape), "data_offsets": [at, at + p.value.nbytes]
            }  # fmt: skip
            at += p.value.nbytes
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self.header = len(text).to_bytes(8, "little") + text
        self.digits = self.header.index(b'"checksum":"') + len(b'"checksum":"')
        self.data = at
        self.size = len(self.header) + at

    def checksum(self, data: bytes) -> str:
        """Return the checksum of the data, as in the header."""
        whole = len(data) & -4
        words = np.concatenate([np.frombuffer(data[:whole], "<u4"), np.frombuffer(data[whole:], np.uint8)])
        powers = np.full(_TOGETHER + 1, _FACTOR, np.uint64)
        powers[0] = 1
        powers = np.cumprod(powers, dtype=np.uint64)[::-1]  # the last one is 1
        found = _START
        for at in range(0, len(words), _TOGETHER):
            some = words[at : at + _TOGETHER].astype(np.uint64)
            total = int((some * powers[-len(some) :]).sum())
            found = found * int(powers[-1 - len(some)]) + total & (1 << 64) - 1
        return f"{found:016x}"


@native("i64", size="i64")
def checksum(w: Code, data: Value, size: Value) -> Value:
    """Return the checksum of bytes."""

    def added(kind: str, i: Value, sums: list[Value]) -> list[Value]:
        number = w.emit(f"load {kind}, {w.at(data, 'i8', i).typed}, align 1", kind)
        return [w.add(w.mul(sums[0], _FACTOR), w.convert(number, "i64", False))]

    whole, found = w.bits("and", size, -4), [w.value(_START - (1 << 64))]
    found = w.loop(0, whole, 4, partial(added, "i32"), found)
    return w.loop(whole, size, 1, partial(added, "i8"), found)[0]


@native("i8", number="i64", k="i64")
def digit(w: Code, number: Value, k: Value) -> Value:
    """Return digit ``k`` of a number in base 16, as a character."""
    four = w.bits("and", w.bits("lshr", number, w.sub(60, w.mul(k, 4))), 15)
    return w.convert(
        w.add(four, w.select(w.compare("slt", four, 10), w.value(ord("0")), ord("a") - 10)), "i8"
    )


@native("i1")
def same_text(w: Code, a: Value, b: Value) -> Value:
    """Return whether two texts, which end with a byte 0, are equal."""
    at = w.scratch("i64", 1)
    w.store(w.value(0), at)
    w.mark("next")
    i = w.load(at, "i64")
    x = w.load(w.at(a, "i8", i), "i8")
    w.give_if(w.differ(x, w.load(w.at(b, "i8", i), "i8")), False)
    w.give_if(w.same(x, 0), True)
    w.store(w.add(i, 1), at)
    w.goto("next")
    return w.value(True)


def _data(w: Code, name: str, data: bytes) -> Value:
    w.unit.definitions[name] = f"@{name} = internal constant {quoted(data)}, align 64"
    return Value(f"@{name}", "ptr")


def check_text(instruction: Any) -> str:
    """Return the text of the error of a check that an instruction makes."""
    path, _, number = instruction.line.rpartition(":")
    line = f" ({PurePath(path).name}:{number})" if path else ""
    return (
        f"{instruction.op.name}{line}: an argument is out of range: an index, a number that is not finite, "
        "or a matrix that is nearly singular"
    )


def error_texts(name: str, checks: list[str]) -> dict[int, str]:
    """Return the texts of all return codes."""
    texts = {
        0: "no error",
        BAD_POINTER: "a pointer is null or not aligned (states: 64 bytes, arrays: the size of an element)",
        BAD_STATE: f"this memory is not a state of {name}: {name}_init has not set it up, or it is damaged",
        TOO_SMALL: "the memory is too small",
        FOREIGN_FILE: f"these bytes are not a saved state of {name}, or not all of it",
        DAMAGED_FILE: "the saved state is damaged: its data does not match its checksum",
    }
    return texts | {CHECKS + k: text for k, text in enumerate(checks)}


def _code(k: int) -> Value:
    return Value(str(k), "i32")


def define_interface(root: Code, calling: Calling, form: SavedForm, texts: dict[int, str], size: str) -> None:
    """Add the functions to a unit; ``size`` is the type of sizes on the target."""
    made = _Interface(calling, form, texts)
    for suffix, parameters, result, body in (
        ("_state_size", [], size, lambda w, _: w.const(calling.layout.size, size)),
        ("_saved_size", [], size, lambda w, _: w.const(form.size, size)),
        ("_init", [("ptr", "state"), (size, "size")], "i32", made.init),
        ("_get", [("ptr", "state"), ("ptr", "part")], "ptr", made.get),
        ("_error", [("i32", "code")], "ptr", made.error),
        ("_save", [("ptr", "state"), ("ptr", "bytes"), (size, "size")], "i32", made.save),
        ("_load", [("ptr", "state"), ("ptr", "bytes"), (size, "size")], "i32", made.load),
    ):
        root.define(f"{EXPORTED}{calling.name}{suffix}", parameters, body, result, attributes="", linkage="")


class _Interface:
    """The bodies of the functions of a library."""

    def __init__(self, calling: Calling, form: SavedForm, texts: dict[int, str]) -> None:
        self.calling, self.texts, self.form = calling, texts, form

    def init(self, w: Code, args: list[Value]) -> Value:
        """Emit the set-up of a state in memory of a given size."""
        (state, given), calling = args, self.calling
        w.give_if(w.is_null(state), _code(BAD_POINTER))
        w.give_if(calling.unaligned(w, state, 64), _code(BAD_POINTER))
        small = w.compare("ult", w.convert(given, "i64", False), calling.layout.size)
        w.give_if(small, _code(TOO_SMALL))
        end = nonzero_end(calling.order)
        if end > HEADER:
            values = _data(w, "initial", state_values([p for p in calling.order if p.offset < end], end))
            copy(w, w.at(state, "i8", HEADER), values, end - HEADER)
        fill(w, w.at(state, "i8", end), calling.layout.size - end)
        for k, word in enumerate(calling.header()):
            w.set_word(state, k, word)
        return _code(0)

    def get(self, w: Code, args: list[Value]) -> Value:
        """Emit the address of a part; NULL if there is none, or if the state is not one of this library."""
        state, wanted = args
        for fault, _ in self.calling.faults(w, state):
            w.give_if(fault)
        w.give_if(w.is_null(wanted))
        for k, p in enumerate(self.calling.order):
            text = _data(w, f"part_{k}", p.name.encode() + b"\0")
            w.give_if(same_text(w, wanted, text), w.at(state, "i8", p.offset))
        return w.value(None)

    def error(self, w: Code, args: list[Value]) -> Value:
        """Emit the text of a return code."""
        found = _data(w, "error_unknown", b"unknown error\0")
        for k, text in self.texts.items():
            where = _data(w, f"error_{k}", text.encode() + b"\0")
            found = w.select(w.same(args[0], k), where, found)
        return found

    def save(self, w: Code, args: list[Value]) -> Value:
        """Emit a copy of all parts to a file in memory."""
        (state, to, given), form = args, self.form
        self.calling.check_state(w, state)
        w.give_if(w.is_null(to), _code(BAD_POINTER))
        w.give_if(w.compare("ult", w.convert(given, "i64", False), form.size), _code(TOO_SMALL))
        copy(w, to, _data(w, "saved_header", form.header), len(form.header))
        data = w.at(to, "i8", len(form.header))
        for at, offset, count in form.places:
            copy(w, w.at(data, "i8", at), w.at(state, "i8", offset), count)
        total = checksum(w, data, form.data)
        with w.count(16) as k:
            w.store(digit(w, total, k), w.at(w.at(to, "i8", form.digits), "i8", k))
        return _code(0)

    def load(self, w: Code, args: list[Value]) -> Value:
        """Emit a copy of all parts from a file in memory, after a check of all of it."""
        (state, source, given), form = args, self.form
        self.calling.check_state(w, state)
        w.give_if(w.is_null(source), _code(BAD_POINTER))
        w.give_if(w.differ(w.convert(given, "i64", False), form.size), _code(FOREIGN_FILE))
        header = _data(w, "saved_header", form.header)
        for low, high in ((0, form.digits), (form.digits + 16, len(form.header))):
            with w.count(high, low) as i:
                differ = w.differ(w.load(w.at(source, "i8", i), "i8"), w.load(w.at(header, "i8", i), "i8"))
                w.give_if(differ, _code(FOREIGN_FILE))
        data = w.at(source, "i8", len(form.header))
        total = checksum(w, data, form.data)
        with w.count(16) as k:
            there = w.load(w.at(w.at(source, "i8", form.digits), "i8", k), "i8")
            w.give_if(w.differ(there, digit(w, total, k)), _code(DAMAGED_FILE))
        for at, offset, count in form.places:
            copy(w, w.at(state, "i8", offset), w.at(data, "i8", at), count)
        return _code(0)
