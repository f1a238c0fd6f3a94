"""Run the user's code with hooks that see each value that it reads.

An ``Observer`` makes a copy of each user function with hooks (``rewrite``), runs it in place of the function
while a trace runs, and notes what it reads (``notes``, ``reads``).  An object that the function creates
itself is *local*: what is read from it is not noted.  Code of libraries runs as it is, but user functions
that are passed to it are observed.  C code, and Python code whose source is not known, is taken to read all
that can be reached from its arguments.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from adjoint.compiler.guards.calls import Calls, copied
from adjoint.compiler.guards.notes import is_empty, names_of
from adjoint.compiler.guards.operations import PLAINLY
from adjoint.compiler.guards.places import is_own
from adjoint.compiler.guards.reads import MISSING, Reads
from adjoint.compiler.guards.rewrite import HOOKS, codes_in, is_rewritten, rewritten
from adjoint.core.user_code import LIBRARIES, warn

__all__ = ["Observer"]

_HERE = os.path.dirname(__file__)
_OWN_HOOKS = ("imported", "stored", "text", "variable")  # they depend on the function
_warned: set[Any] = set()  # codes whose source is not known, for which there was a warning


class Observer(Calls):
    """Runs user functions with hooks that note what they read."""

    def __init__(self, first: Callable[[Any], None]) -> None:
        super().__init__(first)
        self.functions: dict[int, tuple[Any, Any]] = {}  # functions and their observed copies, by id
        self.hooks = {
            name: types.CellType(getattr(self, f"_{name}")) for name in HOOKS if name not in _OWN_HOOKS
        }
        # the hooks of all functions, and those that each function has for itself
        self.cells = {id(cell): (name, cell) for name, cell in self.hooks.items()}
        self.on = True

    def finish(self, outside: Iterable[Any] = ()) -> Reads:
        """Stop observing; return what was read.  Copies of functions that still exist read plainly now.

        ``outside`` has the arrays that the program reads at each call.
        """
        known = set()
        for a in outside:
            while isinstance(a, np.ndarray):  # and the arrays that it is a view of
                known.add(id(a))
                a = a.base
        for a in self.arrays.values():
            if id(a) not in known:
                self.contents(a)
        for parent, index, child in self.log:
            if child.weak and not child.is_equal(but_children=True):  # by the code of another package
                parent.children.pop(index, None)
        self.on = False
        for name, cell in self.cells.values():
            cell.cell_contents = PLAINLY[name]
        self.functions.clear()
        self.local.clear()
        return self.reads()

    def run(self, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return ``f(*args, **kwargs)``, observed; the traceback of an error has no frames of this module."""
        try:
            return self.call(f)(*args, **kwargs)
        except BaseException as error:
            frames = []
            tb = error.__traceback__
            while tb is not None:
                frames.append(tb)
                tb = tb.tb_next
            for each in reversed(frames):
                if os.path.dirname(each.tb_frame.f_code.co_filename) != _HERE:
                    tb = types.TracebackType(tb, each.tb_frame, each.tb_lasti, each.tb_lineno)
            error.__traceback__ = tb
            raise

    returned = Calls._all_inside  # is called with a result of the function

    def user_code(self, owner: Any, name: str) -> Any:
        """Return a callable that the library calls, with its code observed; see ``core.lifted.user_code``."""
        f = self._attribute(owner, name) if name else owner
        inner = f.__func__ if isinstance(f, types.MethodType) else f
        if isinstance(inner, types.FunctionType) and not is_own(inner):
            return f
        return self._given(f)

    def observed(self, f: types.FunctionType) -> Any:
        """Return a copy of a user function with hooks."""
        if not self.on:
            return f
        if id(f.__code__) in self.codes or is_rewritten(f.__code__):
            cells = dict(zip(f.__code__.co_freevars, f.__closure__ or (), strict=True))
            hooks = [cell for name, cell in cells.items() if name.startswith("@")]
            if not hooks or any(id(cell) in self.cells for cell in hooks):
                return f
        found = self.functions.get(id(f))
        if found is None:
            found = self.functions[id(f)] = f, self._observed(f)
        return found[1]

    def _observed(self, f: types.FunctionType) -> Any:
        where = f.__qualname__
        self.note(f, "attribute", "__code__", f.__code__, f"{where}: code")
        self._note_defaults(f, where)
        code = f.__code__ if is_rewritten(f.__code__) else rewritten(f)
        if code is None:
            return self._without_source(f)
        self.codes |= {id(each): each for each in codes_in(code)}
        cells = dict(zip(f.__code__.co_freevars, f.__closure__ or (), strict=True))
        space = f.__globals__
        own = {
            "variable": functools.partial(self._variable, space, cells, where),
            "imported": functools.partial(self._imported, space),
            "text": functools.partial(self._text, space, where),
            "stored": functools.partial(self._stored, space, cells),
        }
        hooks = {name: types.CellType(hook) for name, hook in own.items()}
        self.cells |= {id(cell): (name, cell) for name, cell in hooks.items()}
        given = {**cells, **{f"@{name}": cell for name, cell in {**self.hooks, **hooks}.items()}}
        return copied(f, code, tuple([given[n] for n in code.co_freevars]))

    def _note_defaults(self, f: types.FunctionType, where: str) -> None:
        code = f.__code__
        if f.__defaults__:
            self.note(f, "attribute", "__defaults__", f.__defaults__, f"{where}: defaults")
            names = code.co_varnames[code.co_argcount - len(f.__defaults__) : code.co_argcount]
            for name, value in zip(names, f.__defaults__, strict=True):
                self.root(value, f"{where}: {name}")
        if f.__kwdefaults__:
            self.note(f, "attribute", "__kwdefaults__", f.__kwdefaults__, f"{where}: defaults")
            self._all(f.__kwdefaults__)

    def _without_source(self, f: types.FunctionType) -> Any:
        """Return a function whose source is not known; all that its names reach is noted."""
        where = f.__qualname__
        for value in self._names_in(f):
            self.deep(value)
        if not f.__name__.startswith("__") and f.__code__ not in _warned:
            _warned.add(f.__code__)
            warn(
                f"ad.compile: the source of {where} is not known, so some of the values that it reads cannot "
                "be seen.\n  If such a value changes, compiled results may be wrong.  Define the function in "
                "a file or a notebook, or pass the values as arguments."
            )
        return self._opaque(f)

    def _variable(self, space: Any, cells: dict[str, Any], where: str, name: str, value: Any) -> Any:
        cell = cells.get(name)
        if cell is not None and not is_empty(cell) and cell.cell_contents is value:
            return self.note(cell, "attribute", "cell_contents", value, f"{where}: {name}")
        if space.get(name, MISSING) is value:  # not a built-in, nor a local variable with the same name
            return self.note(space, "item", name, value, f"{where}: {name}")
        return value

    def _imported(self, space: dict[str, Any], module: str, level: int, name: str) -> None:
        package = space.get("__package__")
        full = importlib.util.resolve_name("." * level + module, package) if level else module
        found = sys.modules.get(full)
        if found is not None and full.partition(".")[0] not in LIBRARIES:
            self.note(sys.modules, "item", full, found, f"module {full}")
            if hasattr(found, name):
                self._of_python_module(found, name)

    def _text(self, space: dict[str, Any], where: str, text: Any) -> Any:
        """Note the global variables that a text for ``eval`` names; return the text."""
        try:
            code = compile(text, "<string>", "exec") if isinstance(text, str) else text
        except SyntaxError:
            return text
        for name in sorted(names_of(code) & space.keys()):
            self.deep(self.note(space, "item", name, space[name], f"{where}: {name}"))
        return text
