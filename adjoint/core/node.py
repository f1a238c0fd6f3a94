"""The nodes of the graph: recorded operations.  Edges go from node to node, or to leaf tensors."""

from __future__ import annotations

import linecache
import os
import sys
import threading
import weakref
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from adjoint.config import held_across_fork
from adjoint.context import tracing, user_code
from adjoint.core.shapes import Shaped
from adjoint.errors import NotSavedError

if TYPE_CHECKING:
    from adjoint.core.op import Op

__all__ = [
    "FILL", "LEAF", "Handle", "HookList", "Node", "NodeExtra", "Packed", "Spec", "attaching", "compiled",
    "inlined", "new_node",
]  # fmt: skip

# The lock for attaching hooks and other data to a tensor or node that threads may share.  It is reentrant,
# because a finaliser or a signal handler may run while it is held.
attaching = held_across_fork(threading.RLock())


class Node:
    """One operation in the graph: the op, the parents that its gradient flows to, and the saved values.

    ``new_node`` makes nodes.  There is no ``__init__``: setting each slot from outside is a third faster.
    """

    __slots__ = (
        "__weakref__",
        "args",
        "dtype",
        "extra",
        "op",
        "out",
        "params",
        "parents",
        "seq",
        "shape",
        "versions",
    )

    op: Op
    seq: int  # the order of recording: parents always have smaller numbers
    parents: tuple[Any, ...]  # a Node, a leaf Tensor, or None where no gradient flows
    # The arguments for the rules: an array or number, or a Spec if it was not saved.  None once released.
    args: tuple[Any, ...] | None
    # The saved arguments that can be written to, with their versions at recording; None if there are none.
    # A tensor with a node cannot be written to.
    versions: tuple[tuple[Any, int], ...] | None
    out: Any  # the saved output array, or None
    params: dict[str, Any]
    shape: Any  # of the output; a tuple of shapes where there are several outputs
    dtype: Any
    extra: NodeExtra | None

    @property
    def name(self) -> str:
        """The name of the op."""
        return self.op.name

    def need_extra(self) -> NodeExtra:
        """Return the object for rare data (hooks, retained gradient, recorded line); create it if needed."""
        if self.extra is None:
            with attaching:
                if self.extra is None:
                    self.extra = NodeExtra()
        return self.extra

    def __repr__(self) -> str:
        return f"<{self.op.name}>"


class NodeExtra:
    """Rare data of a node: hooks, a tensor that retains its gradient, the recorded line, several outputs."""

    __slots__ = ("hooks", "inputs", "packed", "picks", "retain", "where")

    def __init__(self) -> None:
        self.hooks: HookList | None = None
        self.retain: weakref.ref[Any] | None = None
        self.where: str | None = None
        self.inputs: str | None = None
        self.packed = False  # whether saved_tensors_hooks packed the saved values
        # The nodes of the outputs of an op that has several; None for an output of integers.
        self.picks: list[weakref.ref[Node] | None] | None = None


class _Leaf:
    """The type of ``LEAF``, which a leaf that requires grad has instead of a node."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "LEAF"


LEAF = _Leaf()

next_seq: Callable[[], int] = count(1).__next__
if not getattr(sys, "_is_gil_enabled", lambda: True)():
    _unlocked, _numbering = next_seq, threading.Lock()

    def next_seq() -> int:
        """Return the next sequence number; a lock is needed, because there is no GIL."""
        with _numbering:
            return _unlocked()


# The source that makes a node.  ``new_node`` is compiled from it; the fast paths of ops inline it.
FILL = """
node = Node()
node.op = op
node.seq = next_seq()
node.parents = parents
node.args = args
node.versions = versions
node.out = kept
node.params = {params}
node.shape = {shape}
node.dtype = {dtype}
node.extra = None
"""


def inlined(text: str, parts: dict[str, str]) -> str:
    """Return the Python source ``text`` with each ``{name}`` replaced by ``parts[name]``.

    The lines of a part are indented like ``{name}`` if that is alone on its line.
    """
    lines: list[str] = []
    for line in text.split("\n"):
        name = line.strip()
        indent = line.removesuffix(name)
        whole = parts.get(name[1:-1]) if name.startswith("{") else None
        lines += [line] if whole is None else [indent + each for each in whole.strip("\n").split("\n")]
    text = "\n".join(lines)
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", part)
    return text


def compiled(text: str, title: str, names: dict[str, Any]) -> dict[str, Any]:
    """Execute the Python source ``text`` with the global names ``names``; return all its global names.

    Tracebacks show the lines of the source, in a file called ``title``.
    """
    file = os.path.join(os.path.dirname(__file__), f"<{title}>")
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    found = {"__name__": __name__, **names}
    exec(compile(text, file, "exec"), found)
    return found


new_node: Callable[..., Node] = compiled(
    inlined(
        "def new_node(op, parents, args, versions, kept, params, shape, dtype):\n"
        "    {fill}\n"
        "    return node\n",
        {"fill": FILL.format(params="params", shape="shape", dtype="dtype")},
    ),
    "new_node",
    {"Node": Node, "next_seq": next_seq},
)["new_node"]


class Spec(Shaped):
    """The shape and dtype of an argument that was not saved.  Reading its values raises NotSavedError."""

    __slots__ = ("dtype", "op", "shape")

    def __init__(self, op: str, shape: tuple[int, ...], dtype: Any) -> None:
        self.op = op
        self.shape = shape
        self.dtype = dtype

    def __getattr__(self, name: str) -> Any:
        raise NotSavedError(
            f"the rule of {self.op!r} reads {name!r} of an argument that is not saved.\n"
            "  Add the argument to saves= of ad.define; otherwise only its shape and dtype are available."
        )

    def __repr__(self) -> str:
        return f"Spec(shape={self.shape}, dtype={self.dtype})"


def _refuse(self: Spec, *_: Any) -> Any:
    return Spec.__getattr__(self, "the values")


for _name in "add radd sub rsub mul rmul truediv rtruediv pow rpow matmul rmatmul neg getitem".split():
    setattr(Spec, f"__{_name}__", _refuse)
for _name in "eq ne lt le gt ge array float bool abs".split():
    setattr(Spec, f"__{_name}__", _refuse)


class Packed:
    """A saved value that ``saved_tensors_hooks`` packed; unpacked when backward needs it.

    The hooks get the array.  If that was inside values of ``vmap`` and tensors, ``around`` has the functions
    that restore these, the outermost first.
    """

    __slots__ = ("around", "dtype", "shape", "unpack", "value")

    def __init__(
        self, value: Any, unpack: Callable[[Any], Any], shape: Any, dtype: Any, around: list[Any]
    ) -> None:
        self.value = value
        self.unpack = unpack
        self.shape = shape
        self.dtype = dtype
        self.around = around


class HookList:
    """Hooks in the order of registration, with a version number that is incremented on each change.

    A compiler can compare version numbers to find out whether hooks have changed since a trace.
    """

    __slots__ = ("hooks", "version")

    def __init__(self) -> None:
        self.hooks: dict[int, Callable[..., Any]] = {}
        self.version = 0

    def add(self, hook: Callable[..., Any]) -> Handle:
        """Append a hook and return the handle that removes it."""
        if (trace := tracing.get()) is not None:
            trace.note_hooks(self)
        key = next_seq()
        with attaching:
            self.hooks[key] = hook
            self.version += 1
        return Handle(self, key)

    def snapshot(self) -> list[Callable[..., Any]]:
        """Return a copy of the list of hooks, so that hooks may be added or removed while they run."""
        with attaching:
            return list(self.hooks.values())

    def to_call(self) -> list[Callable[..., Any]]:
        """Return the current hooks; the caller then calls them.

        Inside ``ad.compile``, the values that the code of the hooks reads are guarded: a change causes a new
        trace.
        """
        if tracing.get() is not None:
            return list(map(user_code, self.snapshot()))
        return self.snapshot()


class Handle:
    """The result of registering a hook.  ``remove()`` removes the hook; it may be called again."""

    __slots__ = ("_key", "_list")

    def __init__(self, hooks: HookList, key: int) -> None:
        self._list = hooks
        self._key = key

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""
        if (trace := tracing.get()) is not None:
            trace.note_hooks(self._list, outside=self._key < trace.start)
        with attaching:
            if self._list.hooks.pop(self._key, None) is not None:
                self._list.version += 1

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()
