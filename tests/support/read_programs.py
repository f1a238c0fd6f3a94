"""Programs that read a value and change it: kinds of values x holders x routes x ways to read x changes.

A *holder* is an object that has the value, a *route* is how the function gets the holder, and a *way* is how it
reads the value of the holder.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import operator
import random
import types
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
from program_texts import run_text

import adjoint as ad
from adjoint import nn


class Color(enum.Enum):
    red, blue = 2.0, 3.0


class One:
    k = 2.0

    def go(self, x: Any) -> Any:
        return x * 2

    def __call__(self, x: Any) -> Any:
        return x * self.k


class Two(One):
    k = 3.0

    def go(self, x: Any) -> Any:
        return x * 3


@dataclasses.dataclass
class Data:
    k: float = 2.0


def scaled(x: Any, k: float) -> Any:
    return x * k


def with_k(k: float) -> types.ModuleType:
    module = types.ModuleType("settings")
    vars(module)["k"] = k
    return module


SPACE: dict[str, Any] = {  # the variables that programs use
    "__name__": __name__, "RATE": 2.0, "NAME": "v", "np": np, "ad": ad, "nn": nn, "collections": collections,
    "dataclasses": dataclasses, "functools": functools, "operator": operator, "types": types,
    "Fraction": Fraction, "partial": functools.partial, "Color": Color, "One": One, "Two": Two, "Data": Data,
    "scaled": scaled, "with_k": with_k,
}  # fmt: skip


class Value(NamedTuple):
    """Expressions of two values, and an expression that reads the value V."""

    first: str
    second: str
    use: str
    mutation: str = ""  # a statement that changes the first value in place
    undo: str = ""


DEEP = "{'a': {'b': {'c': {'d': {'e': {'f': %s}}}}}}"
VALUES = {
    "float": Value("2.0", "3.0", "x * V"),
    "int": Value("2", "3", "x * V"),
    "string": Value("'tanh'", "'sin'", "getattr(ad, V)(x)"),
    "None": Value("None", "3.0", "(x if V is None else x * V)"),
    "scalar of NumPy": Value("np.float64(2)", "np.float32(3)", "x * V"),
    "fraction": Value("Fraction(1, 2)", "Fraction(1, 3)", "x * float(V)"),
    "dtype": Value("np.float32", "np.float64", "x.astype(V)"),
    "enumeration": Value("Color.red", "Color.blue", "x * V.value"),
    "tuple": Value("(2.0, 1.0)", "(3.0, 1.0)", "x * V[0]"),
    "list": Value("[2.0]", "[3.0]", "x * sum(V)", "V.append(3.0)", "V.pop()"),
    "dictionary": Value("{'a': 2.0}", "{'a': 3.0}", "x * V['a']", "V['a'] = 3.0", "V['a'] = 2.0"),
    "nested dictionary": Value(
        DEEP % 2.0, DEEP % 3.0, "x * V['a']['b']['c']['d']['e']['f']",
        "V['a']['b']['c']['d']['e']['f'] = 5.0", "V['a']['b']['c']['d']['e']['f'] = 2.0",
    ),
    "set": Value("{2.0}", "{3.0}", "x * sum(V)", "V.add(5.0)", "V.remove(5.0)"),
    "deque": Value("collections.deque([2.0, 1.0])", "collections.deque([3.0])", "x * V[0]", "V.rotate()", "V.rotate()"),
    "array": Value("np.full(3, 2.0)", "np.full(3, 3.0)", "x * V", "V[0] = 7.0", "V[0] = 2.0"),
    "element of an array": Value("np.full(3, 2.0)", "np.full(3, 3.0)", "x * V[0]", "V[0] = 7.0", "V[0] = 2.0"),
    "sum of an array": Value("np.full(3, 2.0)", "np.full(3, 3.0)", "x * V.sum()", "V[0] = 7.0", "V[0] = 2.0"),
    "tensor": Value("ad.full(3, 2.0)", "ad.full(3, 3.0)", "x * V", "V[0] = 7.0", "V[0] = 2.0"),
    "object": Value("One()", "Two()", "x * V.k", "V.k = 5.0", "del V.k"),
    "data class": Value("Data()", "Data(3.0)", "x * V.k", "V.k = 5.0", "V.k = 2.0"),
    "Python module": Value("with_k(2.0)", "with_k(3.0)", "x * V.k", "V.k = 5.0", "V.k = 2.0"),
    "class": Value("One", "Two", "V().go(x)"),
    "built-in function": Value("max", "min", "x * V(2, 3)"),
    "ufunc": Value("np.exp", "np.sin", "V(x)"),
    "op": Value("ad.tanh", "ad.sin", "V(x)"),
    "lambda": Value("lambda x: x * 2", "lambda x: x * 3", "V(x)"),
    "function with a global": Value("lambda x: x * RATE", "lambda x: x", "V(x)", "RATE = 5.0", "RATE = 2.0"),
    "partial": Value("partial(scaled, k=2.0)", "partial(scaled, k=3.0)", "V(x)"),
    "method": Value("One().go", "Two().go", "V(x)"),
    "callable object": Value("One()", "Two()", "V(x)", "V.k = 5.0", "del V.k"),
    "layer": Value("nn.Tanh()", "nn.ReLU()", "V(x)"),
    "linear layer": Value("nn.Linear(3, 3, rng=0, dtype=float)", "nn.Linear(3, 3, rng=1, dtype=float)", "V(x)", "V.bias = None", "V.bias = nn.Parameter(np.ones(3))"),
    "compiled function": Value("ad.compile(lambda x: x * 2)", "ad.compile(lambda x: x * 3)", "V(x)"),
    "derivative": Value("ad.grad(lambda x: (x * x).sum())", "ad.grad(lambda x: (x**3).sum())", "V(x)"),
}  # fmt: skip
BINDING = ("op", "lambda", "function with a global", "compiled function", "derivative")  # methods in a class


class Holder(NamedTuple):
    """Statements that make the holder ``h`` of a value FIRST, and the text that follows ``h`` to read it."""

    text: str
    suffix: str
    place: str = ""  # the place of the value, if it is not ``h`` and the suffix
    hashable: bool = True


INIT = "    def __init__(self, v): self.v = v\nh = Held(FIRST)"
HOLDERS = {
    "variable": Holder("h = FIRST", "", hashable=False),
    "instance": Holder(f"class Held:\n{INIT}", ".v"),
    "slots": Holder(f"class Held:\n    __slots__ = ('v',)\n{INIT}", ".v"),
    "class": Holder("class h: pass\nh.v = FIRST", ".v"),
    "class of an instance": Holder("class Held: pass\nHeld.v = FIRST\nh = Held()", ".v", "Held.v"),
    "data class": Holder("@dataclasses.dataclass(eq=False)\nclass Held:\n    v: object\nh = Held(FIRST)", ".v"),
    "namespace": Holder("h = types.SimpleNamespace(v=FIRST)", ".v", hashable=False),
    "Python module": Holder("h = types.ModuleType('held')\nh.v = FIRST", ".v"),
    "function": Holder("def h(): pass\nh.v = FIRST", ".v"),
    "nn.Module": Holder("class Held(nn.Module):\n    def __init__(self, v):\n        super().__init__()\n        self.v = v\nh = Held(FIRST)", ".v"),
    "property": Holder("class Held:\n    def __init__(self, v): self._v = v\n    @property\n    def v(self): return self._v\nh = Held(FIRST)", ".v", "h._v"),
    "__getattr__": Holder("class Held:\n    def __init__(self, v): self._all = {'v': v}\n    def __getattr__(self, name):\n        if name not in self.__dict__['_all']: raise AttributeError(name)\n        return self._all[name]\nh = Held(FIRST)", ".v", "h._all['v']"),
    "list": Holder("h = [FIRST]", "[0]", hashable=False),
    "dictionary": Holder("h = {'v': FIRST}", "['v']", hashable=False),
    "user dictionary": Holder("h = collections.UserDict(v=FIRST)", "['v']", hashable=False),
    "nested": Holder("h = {'a': [types.SimpleNamespace(v=FIRST)]}", "['a'][0].v", hashable=False),
}  # fmt: skip


class Route(NamedTuple):
    """Statements that define ``f``, in which USE reads the value of the holder."""

    text: str
    place: str = ""  # where to assign to the holder; "" if it cannot be assigned
    hashable: bool = False  # whether the holder must be hashable
    held: str = "o"  # the expression of the holder in USE


ROUTES = {
    "global": Route("def f(x): return USE", "h", held="h"),
    "local variable": Route("def f(x):\n    o = h\n    return USE", "h"),
    "parameter": Route("def g(x, o): return USE\ndef f(x): return g(x, h)", "h"),
    "parameter of a method": Route("class G:\n    def go(self, x, o): return USE\ng = G()\ndef f(x): return g.go(x, h)", "h"),
    "result": Route("def get(): return h\ndef f(x):\n    o = get()\n    return USE", "h"),
    "comprehension": Route("def f(x): return sum([USE for o in (h,)])", "h"),
    "generator": Route("def f(x): return sum(USE for o in (h,))", "h"),
    "inner function": Route("def f(x):\n    o = h\n    def inner(): return USE\n    return inner()", "h"),
    "closure": Route("def make(o):\n    def f(x): return USE\n    return f\nf = make(h)", "f.__closure__[0].cell_contents"),
    "decorator": Route("def make(o):\n    def wrap(g):\n        @functools.wraps(g)\n        def inner(x): return g(x) + USE\n        return inner\n    return wrap\n@make(h)\ndef f(x): return x"),
    "default": Route("def f(x, o=h): return USE"),
    "default of a helper": Route("def g(x, *, o=h): return USE\ndef f(x): return g(x)"),
    "partial": Route("def g(o, x): return USE\nf = partial(g, h)"),
    "partial in a list": Route("def g(x, o): return USE\nparts = [partial(g, o=h)]\ndef f(x): return parts[0](x)"),
    "element of a list": Route("held = [h]\ndef f(x):\n    for o in held: y = USE\n    return y", "held[0]"),
    "element of a dictionary": Route("held = {'a': h}\ndef f(x): return sum(USE for _, o in held.items())", "held['a']"),
    "key": Route("held = {h: 1.0}\ndef f(x): return sum(k * USE for o, k in held.items())", hashable=True),
    "attribute": Route("class G:\n    def __init__(self): self.held = h\n    def __call__(self, x): return USE\nf = G()", "f.held", held="self.held"),
    "attribute in a method": Route("class G:\n    def __init__(self): self.held = h\n    def go(self, x):\n        o = self.held\n        return USE\ng = G()\ndef f(x): return g.go(x)", "g.held"),
    "attribute of a module": Route("class G(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.held = h\n    def forward(self, x): return USE\nf = G()", "f.held", held="self.held"),
    "property": Route("class G:\n    @property\n    def held(self): return h\ng = G()\ndef f(x):\n    o = g.held\n    return USE", "h"),
    "singleton": Route("@functools.lru_cache\ndef get(): return h\nget()\ndef f(x):\n    o = get()\n    return USE"),
    "argument": Route("args = (h,)\ndef f(x, o): return USE", hashable=True),
    "element of an argument": Route("args = ([h],)\ndef f(x, held):\n    o = held[0]\n    return USE", hashable=True),
    "*args": Route("args = (h,)\ndef f(x, *held):\n    o = held[0]\n    return USE", hashable=True),
    "**kwargs": Route("kwargs = {'held': h}\ndef f(x, **held):\n    o = held['held']\n    return USE", hashable=True),
}  # fmt: skip

ATTRIBUTE = {
    "chain": "HELD.v",
    "getattr": "getattr(HELD, 'v')",
    "getattr with a default": "getattr(HELD, 'v', SECOND)",
    "computed name": "getattr(HELD, f'{NAME}')",
    "hasattr": "(HELD.v if hasattr(HELD, 'v') else SECOND)",
    "vars": "vars(HELD).get('v', SECOND)",
    "attrgetter": "operator.attrgetter('v')(HELD)",
}
ASKING = ("getattr with a default", "hasattr", "vars", "get")  # these read a value that may not exist
WITHOUT_DICT = ("slots", "class of an instance", "property", "__getattr__")
NO_LATER = ("class", "class of an instance", "slots", "function", "Python module")
FIXED = ("variable", "list", "property", "__getattr__")  # holders whose value is not deleted


def ways(holder: str) -> dict[str, str]:
    """Return the ways to read the value of a holder: the expression of each, in which HELD is the holder."""
    suffix = HOLDERS[holder].suffix
    if suffix == ".v":
        return {k: v for k, v in ATTRIBUTE.items() if k != "vars" or holder not in WITHOUT_DICT}
    found = {"chain": f"HELD{suffix}"}
    return {**found, "get": "HELD.get('v', SECOND)"} if suffix == "['v']" else found


class Program(NamedTuple):
    """A combination of keys of the tables above."""

    value: str
    holder: str
    route: str
    way: str
    change: str

    def is_valid(self) -> bool:
        """Return whether the combination is a program."""
        value, holder, route = VALUES[self.value], HOLDERS[self.holder], ROUTES[self.route]
        if route.hashable and not holder.hashable:
            return False
        if self.holder == "class of an instance" and self.value in BINDING:
            return False
        if self.holder == "data class" and route.hashable and self.value in ("set", "deque"):
            return False  # a data class is a tree, and these are not hashable
        if self.change == "mutate":
            return bool(value.mutation)
        if self.change == "assign":
            return self.holder != "variable" or bool(route.place)
        return self.holder not in FIXED and (self.change == "delete" or self.way in ASKING)

    def is_guarded(self) -> bool:
        """Return whether a change is noticed; see "Not guarded" in docs/compile.md."""
        value, holder, route, way, change = self
        later = way in ASKING and change in ("create", "delete")
        if later and holder in NO_LATER:
            return False
        own = way == "vars" and route in ("attribute", "attribute of a module")  # ``vars(self.held)``
        if later and own and (holder == "nn.Module" or value == "dtype"):
            return False
        return not (
            holder in ("class", "class of an instance") and (value in BINDING or way == "computed name")
        )

    def text(self) -> str:
        """Return the source code, which defines ``f`` and perhaps ``args`` and ``kwargs``."""
        value, route = VALUES[self.value], ROUTES[self.route]
        use = value.use.replace("V", ways(self.holder)[self.way].replace("HELD", route.held))
        text = f"FIRST, SECOND = {value.first}, {value.second}\n{HOLDERS[self.holder].text}\n"
        return text + route.text.replace("USE", use)

    def run(self) -> dict[str, Any]:
        """Run the source code, and return its variables."""
        space = {**SPACE, "args": (), "kwargs": {}}
        run_text(self.text(), space)
        return space

    def steps(self) -> list[str]:
        """Return the statements to run before each call: the value is changed, and changed back."""
        value, holder, route = VALUES[self.value], HOLDERS[self.holder], ROUTES[self.route]
        if self.change == "mutate":
            return ["", value.mutation.replace("V", "FIRST"), value.undo.replace("V", "FIRST")]
        place = holder.place or (route.place if self.holder == "variable" else f"h{holder.suffix}")
        first, second, delete = f"{place} = FIRST", f"{place} = SECOND", f"del {place}"
        return {
            "assign": ["", second, first],
            "delete": ["", delete, first],
            "create": [delete, first, delete],
        }[self.change]


def programs() -> Iterator[Program]:
    """Yield all programs."""
    for value, holder, route in product(VALUES, HOLDERS, ROUTES):
        for way, change in product(ways(holder), ("assign", "mutate", "delete", "create")):
            program = Program(value, holder, route, way, change)
            if program.is_valid() and program.is_guarded():
                yield program


def sample() -> list[Program]:
    """Return a deterministic sample that has each pair of keys which occurs in a program."""
    every = list(programs())
    random.Random(0).shuffle(every)
    seen: set[Any] = set()
    found = []
    for program in every:
        pairs = set(combinations(enumerate(program), 2))
        if not pairs <= seen:
            seen |= pairs
            found.append(program)
    return found
