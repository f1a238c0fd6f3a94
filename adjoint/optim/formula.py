"""Generate the in-place form of an optimiser's update from its pure formula.

``apply_one`` is called once with symbols instead of arrays.  Its array operations become the source of a
function that makes the same NumPy calls in the same order, and writes into the parameter, its state and
scratch arrays.  Its operations on hyper-parameters alone become a second function, which is called once per
update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from adjoint.core.namespace import raw
from adjoint.threads.spread import scratch

__all__ = ["InPlaceForm", "form_of", "in_place"]

SCRATCH = 4096  # elements: allocating a smaller array is faster than looking up scratch memory


class InPlaceForm(NamedTuple):
    """Two generated functions that make an update in place: ``write(p, g, state, scalars(hyper, dtype))``."""

    scalars: Callable[[dict[str, Any], Any], tuple[Any, ...]]
    write: Callable[[Any, Any, dict[str, Any], tuple[Any, ...]], None]


def in_place(apply_one: Any) -> Any:
    """Decorate the method ``apply_one`` of an optimiser, so that its in-place form is generated.

    The method must use only ``+ - * /`` and functions of ``xp``.  It may branch only on whether a
    hyper-parameter is 0.  It must not read other values that can change.
    """
    # by optimiser class: the names of the hyper-parameters in branches, a function that returns which of them
    # are 0, and the generated forms by the result of that function
    apply_one.forms = {}
    return apply_one


_UNKNOWN: tuple[tuple[str, ...], Callable[[Any], Any], dict[Any, InPlaceForm]] = (), lambda hyper: (), {}


def form_of(optimizer: Any, slots: Any, hyper: dict[str, Any]) -> InPlaceForm | None:
    """Return the in-place form of an optimiser's ``apply_one``, or None if ``in_place`` does not decorate it.

    ``slots`` are the names of the state arrays.
    """
    kind = type(optimizer)
    forms = getattr(kind.apply_one, "forms", None)
    if forms is None:
        return None
    tested, test, known = forms.get(kind) or _UNKNOWN
    form = known.get(test(hyper))
    if form is None:
        trace = _Trace(hyper)
        given = {name: _number(trace, f"h[{name!r}]", value, name) for name, value in hyper.items()}
        state = {name: _Array(trace, f"state_{name}") for name in slots}
        g = trace.emit("negative", "-", _Array(trace, "g")) if given["maximize"] else _Array(trace, "g")
        form = trace.finish(*optimizer.apply_one(trace, _Array(trace, "p"), g, state, given))
        if not trace.tested <= set(tested):
            tested = (*tested, *sorted(trace.tested - set(tested)))
            test, known = eval(f"lambda h: ({''.join(f'not h[{name!r}], ' for name in tested)})"), {}
        known[test(hyper)] = form
        forms[kind] = tested, test, known
    return form


def _operators(name: str, sign: str) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    return (
        lambda self, other: self.trace.emit(name, sign, self, other),
        lambda self, other: self.trace.emit(name, sign, other, self),
    )


class _Symbol:
    """A symbolic number or array; its operators record the operation in a ``_Trace``."""

    def __init__(self, trace: _Trace, text: str, name: str = "") -> None:
        self.trace = trace
        self.text = text
        self.name = name  # of the hyper-parameter, if the symbol is one

    __add__, __radd__ = _operators("add", "+")
    __sub__, __rsub__ = _operators("subtract", "-")
    __mul__, __rmul__ = _operators("multiply", "*")
    __truediv__, __rtruediv__ = _operators("divide", "/")

    def __bool__(self) -> bool:
        self.trace.tested.add(self.name)
        return bool(self.trace.hyper[self.name])


class _Number(_Symbol):
    """A hyper-parameter, or a number computed from hyper-parameters; ``text`` is its Python expression."""


class _Array(_Symbol):
    """A symbolic array; ``text`` is the name of its variable in the generated function."""


def _number(trace: _Trace, text: str, value: Any, name: str = "") -> Any:
    if isinstance(value, tuple):
        return tuple([_number(trace, f"{text}[{i}]", v) for i, v in enumerate(value)])
    return _Number(trace, text, name)


class _Trace:
    """Records the operations of a formula; it is passed to ``apply_one`` as the namespace ``xp``."""

    def __init__(self, hyper: dict[str, Any]) -> None:
        self.hyper = hyper
        self.tested: set[str] = set()
        self.steps: list[tuple[str, list[str], str]] = []  # function, operands, result
        self.scalars: dict[str, str] = {}  # the expression of each number, and its variable
        self.functions: dict[str, Any] = {"scratch": scratch, "array": np.array, "copyto": np.copyto}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *operands: self.emit(name, "", *operands)

    def emit(self, name: str, sign: str, *operands: Any) -> Any:
        """Record one operation and return its symbolic result: an array if an operand is one, or a number.

        ``name`` is NumPy's name of the operation.  ``sign`` is the Python operator, or "" for a function.
        """
        if not any(isinstance(x, _Array) for x in operands):
            left, right = [x.text if isinstance(x, _Number) else repr(x) for x in operands]
            return _Number(self, f"({left} {sign} {right})")
        self.functions[name] = getattr(np if sign else raw, name)  # raw has its own names for + and -
        result = _Array(self, f"t{len(self.steps)}")
        self.steps.append((name, [self._variable(x) for x in operands], result.text))
        return result

    def _variable(self, x: Any) -> str:
        if isinstance(x, _Array):
            return x.text
        text = x.text if isinstance(x, _Number) else repr(x)
        return self.scalars.setdefault(text, f"n{len(self.scalars)}")

    def finish(self, p: _Array, state: dict[str, _Array]) -> InPlaceForm:
        """Generate and return the functions that run the recorded operations and write the results.

        ``p`` and ``state`` are the symbolic results of the formula.
        """
        outputs = {"p": p.text, **{f"state_{name}": value.text for name, value in state.items()}}
        lines, count = _allocate(self.steps, outputs, self.functions)
        head = [f"state_{name} = state[{name!r}]" for name in state]
        if self.scalars:
            head.append(f"{', '.join(self.scalars.values())}, = n")
        if count:
            arrays = [f"s{i}" for i in range(count)]
            head.append(f"{' = '.join(arrays)} = None")
            room = f"scratch({count} * p.size, p.dtype).reshape({count}, -1)"
            head.append(f"if p.size > {SCRATCH}: {', '.join(arrays)}, = {room}")
        numbers = "".join(f"array({text}, dtype), " for text in self.scalars)
        source = f"def scalars(h, dtype):\n    return ({numbers})\n"
        source += "def write(p, g, state, n):\n    " + "\n    ".join([*head, *lines])
        exec(source, self.functions)  # the module dataclasses creates methods in the same way
        return InPlaceForm(self.functions["scalars"], self.functions["write"])


def _allocate(
    steps: list[tuple[str, list[str], str]], outputs: dict[str, str], functions: dict[str, Any]
) -> tuple[list[str], int]:
    """Choose the array that each step writes to; return the lines of code and the number of scratch arrays.

    Each step is (function, arguments, result).  ``outputs`` has, for each array to be updated, the name of
    its new value, which is written directly into that array if the old value is no longer needed.  Every
    other value is written into a scratch array, which is used again when its value is no longer needed.
    """
    # by value: the index of the last step that reads it
    last = {x: i for i, (_, operands, _) in enumerate(steps) for x in operands}
    last.update(dict.fromkeys(outputs.values(), len(steps)))
    home = {text: name for name, text in outputs.items()}
    place = {name: name for name in outputs}  # the array of each value; at the start, the old values
    free = [name for name in outputs if name not in last]
    lines, registers = [], 0
    for i, (name, operands, result) in enumerate(steps):
        call = f"{name}({', '.join(place.get(x, x) for x in operands)}"
        free[:0] = sorted({place[x] for x in operands if x in place and last[x] == i})
        types = getattr(functions[name], "types", ())
        if "d->d" not in types and "dd->d" not in types:
            lines.append(f"{result} = {call})")  # not a ufunc with a float result: it needs a new array
            continue
        wanted = home.get(result)
        fits = [x for x in free if x == wanted] or [x for x in free if not wanted or x not in outputs]
        if fits:
            spot = fits[0]
            free.remove(spot)
        else:
            spot, registers = f"s{registers}", registers + 1
        place[result] = spot
        lines.append(f"{spot} = {call}, out={spot})")
    found = [(name, place.get(text, text)) for name, text in outputs.items()]
    return lines + [f"copyto({name}, {spot})" for name, spot in found if name != spot] or ["pass"], registers
