"""Python objects in native code: members of structs, functions of CPython, arrays and tensors."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from adjoint.compiler.emit.code import NULL, Code, External, Library, native
from adjoint.compiler.emit.values import Value
from adjoint.compiler.host.structs import layout
from adjoint.core.node import Node
from adjoint.core.tensor import Tensor, clock, committing

__all__ = ["Objects", "addresses", "array_of", "matches"]

# The objects that native code imports, by name.
_OBJECTS: dict[str, Any] = {
    "ndarray": np.ndarray, "tensor": Tensor, "node": Node, "miss": NotImplemented, "none": None, "zero": 0,
    "clock": clock, "committing": committing, "float": float, "int": int, "float64": np.float64,
    "dict": dict, "list": list, "true": True, "false": False, "exception": Exception,
}  # fmt: skip
_ELEMENTS = {"references": "i32", "ndim": "i32", "flags": "i32", "length": "i64", "holder": "i64"}


def addresses(library: Library) -> dict[str, int]:
    """Return the addresses of the objects and of CPython's functions that a library imports, by name."""
    found = {name: id(_OBJECTS[name]) for name in library.objects}
    for name in library.functions:
        if name.startswith("Py"):
            found[name] = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0
    return found


class Objects(Code):
    """The text of a native function that works on Python objects."""

    def call_python(self, name: str, result: str, *args: Any) -> Value:
        """Emit a call of a function of CPython."""
        given = [self.value(a) for a in args]
        return External(result, name, *(a.type for a in given))(self, *given)

    @property
    def miss(self) -> Value:
        """NotImplemented, the result of calls that native code cannot make."""
        return self.imported("miss")

    def get(self, thing: Value, member: str) -> Value:
        """Emit a member of an object's struct; see ``Offsets`` for the names."""
        return self.field(thing, getattr(layout(), member), _ELEMENTS.get(member, "ptr"))

    def put(self, thing: Value, member: str, value: Any) -> None:
        """Emit an assignment of a member of an object's struct; reference counts are not changed."""
        self.set_field(thing, getattr(layout(), member), value)

    def is_type(self, thing: Value, *names: str) -> Value:
        """Emit a flag: whether the type of an object is one of the types with these names."""
        kind = self.get(thing, "kind")
        return self.either(*[self.same(kind, self.imported(name)) for name in names])

    def incref(self, thing: Value) -> None:
        """Emit an increment of a reference count."""
        self.call_python("Py_IncRef", "void", thing)

    def decref(self, thing: Value) -> None:
        """Emit a decrement of a reference count; nothing is done for null."""
        self.call_python("Py_DecRef", "void", thing)

    def dict_get(self, space: Value, key: Value) -> Value:
        """Emit the item of a dictionary, or null; no Python code runs if the key is a string."""
        return self.call_python("PyDict_GetItemWithError", "ptr", space, key)

    def as_integer(self, thing: Value) -> Value:
        """Emit the value of an int object."""
        return self.call_python("PyLong_AsLongLong", "i64", thing)

    def new_integer(self, number: Value) -> Value:
        """Emit a new int object; null if there is no memory."""
        return self.call_python("PyLong_FromLongLong", "ptr", number)


@native("ptr")
def array_of(w: Objects, thing: Value) -> Value:
    """Return an array itself, or the array of a tensor; null for other objects."""
    w.give_if(w.is_type(thing, "ndarray"), thing)
    w.give_unless(w.is_type(thing, "tensor"))
    data = w.get(thing, "tensor")
    w.give_if(w.is_null(data))
    return w.select(w.is_type(data, "ndarray"), data, NULL)


@native("i1")
def matches(w: Objects, array: Value, spec: Value) -> Value:
    """Return whether an array has the dtype and shape of ``spec``: dtype, number of axes, lengths."""
    axes = w.word(spec, 1)
    w.give_unless(w.same(w.convert(w.get(array, "ndim"), "i64"), axes), False)
    kind, wanted = w.get(array, "dtype"), w.word(spec, 0, "ptr")
    with w.when(w.differ(kind, wanted)):  # arrays that were unpickled have dtype objects of their own
        equal = w.call_python("PyObject_RichCompareBool", "i32", kind, wanted, w.const(2, "i32"))
        w.give_unless(w.same(equal, 1), False)
    shape, lengths = w.get(array, "shape"), w.word(spec, 2, "ptr")
    with w.count(axes) as k:
        w.give_if(w.differ(w.word(shape, k), w.word(lengths, k)), False)
    return w.value(True)
