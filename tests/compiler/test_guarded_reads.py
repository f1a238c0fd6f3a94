"""Python values that a compiled function reads in indirect ways: a changed value is used at the next call."""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import enum
import fractions
import functools
import inspect
import logging
import operator
import os
import pathlib
import pickle
import re
import sys
import threading
import types
import weakref
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest
from program_texts import run_text

import adjoint as ad
from adjoint import nn, optim
from adjoint.errors import InputError, LostHistoryError, TransformError

K = 1.0


def times_k(a: Any) -> Any:
    return a * K


class Held:
    """An object with a number, and methods that read it."""

    def __init__(self, k: float = 1.0) -> None:
        self.k, self.act, self.l0, self.unread = k, "by_k", 1.0, 0

    def __call__(self, a: Any) -> Any:
        return getattr(self, self.act)(a)

    def by_k(self, a: Any) -> Any:
        return a * self.k

    def by_global(self, a: Any) -> Any:
        return a * K

    def by_name(self, a: Any) -> Any:
        for i in range(1):
            a = a * getattr(self, f"l{i}")
        return a

    def by_vars(self, a: Any) -> Any:
        return a * vars(self)[self.act[-1]]


class Direct(Held):
    def __call__(self, a: Any) -> Any:
        return a * self.k


class ByAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = "by_global"

    def forward(self, a: Any) -> Any:
        return getattr(self, self.act)(a)

    def by_global(self, a: Any) -> Any:
        return a * K


class WithNumber:
    k = 1.0


PATTERN = WithNumber()


def by_pattern(a: Any) -> Any:
    match PATTERN:
        case WithNumber(k=k):
            return a * k


def made(c: Any) -> Any:
    return lambda a: a * c[0]


def _set_global(value: float) -> None:
    globals()["K"] = value


def _cases() -> dict[str, tuple[Any, Any]]:
    """Return, by name, a function and a function that changes a number which it reads."""
    first, second, third, held = Direct(), Direct(), Held(), Held()
    cells = [1.0], [1.0]
    functions = [made(c) for c in cells]
    partials = [functools.partial(lambda o, a: a * o.k, o) for o in (first, second)]
    queue, bits, numbers = collections.deque([1.0]), bytearray([1]), array.array("d", [1.0])
    table = {"k": 1.0}
    proxy, variable = types.MappingProxyType(table), ContextVar("variable", default=1.0)
    getter, caller = operator.attrgetter("k"), operator.methodcaller("by_k", ad.ones(1))
    mapping = {"proxy": proxy}
    layer = nn.Linear(1, 1, rng=0)
    named = "k"
    weak, weakly = weakref.ref(third), weakref.WeakValueDictionary(k=third)
    module, modes = ByAttribute(), {"now": Mode.one}

    def set_k(o: Any) -> Any:
        return lambda v: setattr(o, "k", v)

    def set_item(c: Any, key: Any = 0) -> Any:
        return lambda v: c.__setitem__(key, v)

    return {
        "a method that is chosen by name": (held, set_k(held)),
        "a name that is computed": (held.by_name, lambda v: setattr(held, "l0", v)),
        "vars": (held.by_vars, set_k(held)),
        "getattr of a closure variable": (lambda a: a * getattr(third, named), set_k(third)),
        "a module's method that is chosen by name": (module, _set_global),
        "attrgetter": (lambda a: a * getter(third), set_k(third)),
        "attrgetter inside": (lambda a: a * operator.attrgetter("k")(third), set_k(third)),
        "methodcaller": (lambda a: a * caller(third), set_k(third)),
        "methodcaller inside": (lambda a: operator.methodcaller("by_k", a)(third), set_k(third)),
        "the first partial in a list": (lambda a: partials[0](a) + partials[1](a), set_k(first)),
        "the second partial in a list": (lambda a: partials[0](a) + partials[1](a), set_k(second)),
        "the first of two objects": (lambda a: first(a) + second(a), set_k(first)),
        "the second of two objects": (lambda a: first(a) + second(a), set_k(second)),
        "the first of two closures": (lambda a: functions[0](a) + functions[1](a), set_item(cells[0])),
        "the second of two closures": (lambda a: functions[0](a) + functions[1](a), set_item(cells[1])),
        "globals()": (lambda a: a * globals()["K"], _set_global),
        "eval": (lambda a: a * eval("K + 1"), _set_global),
        "a deque": (lambda a: a * queue[0], set_item(queue)),
        "a bytearray": (lambda a: a * bits[0], lambda v: set_item(bits)(int(v))),
        "an array of Python": (lambda a: a * numbers[0], set_item(numbers)),
        "a mapping proxy": (lambda a: a * proxy["k"], set_item(table, "k")),
        "a mapping proxy in a dictionary": (lambda a: a * mapping["proxy"]["k"], set_item(table, "k")),
        "a context variable": (lambda a: a * variable.get(), variable.set),
        "a pattern": (by_pattern, set_k(PATTERN)),
        "a weak reference": (lambda a: a * weak().k, set_k(third)),
        "a dictionary of weak references": (lambda a: a * weakly["k"].k, set_k(third)),
        "a class attribute of a new object": (
            lambda a: a * WithNumber().k, lambda v: setattr(WithNumber, "k", v)),
        "a layer's function": (_with_hook(layer, third), set_k(third)),
        "a member of an enumeration": (lambda a: a * modes["now"].value, lambda v: set_item(modes, "now")(Mode(v))),
        "a hook of a layer": (_with_forward_hook(third), set_k(third)),
        "a hook of a tensor": (_with_tensor_hook("register_hook", third), set_k(third)),
        "a derivative": (_with_derivative(third), set_k(third)),
        "a class with a backward": (lambda a: ad.grad(lambda x: Doubled.apply(x).sum())(a), _set_global),
        "an optimiser": (_with_optimizer(third), set_k(third)),
    }  # fmt: skip


def _with_hook(layer: Any, o: Any) -> Any:
    layer.after = functools.partial(lambda o, a: a * o.k, o)
    return lambda a: layer.after(a)


class Mode(enum.Enum):
    one, two, three, five = 1.0, 2.0, 3.0, 5.0


def _with_forward_hook(o: Any) -> Any:
    layer = nn.Tanh()
    layer.register_forward_hook(lambda m, a, y: y * o.k)
    return lambda a: layer(a)


def _with_tensor_hook(kind: str, o: Any) -> Any:
    p = ad.ones(1, requires_grad=True)
    getattr(p, kind)(lambda g: g * o.k)

    def f(a: Any) -> Any:
        p.grad = None
        (p * a).sum().backward()
        return p.grad.detach()

    return f


def _with_derivative(o: Any) -> Any:
    @ad.custom_vjp
    def f(x: Any) -> Any:
        return x * 1

    f.defvjp(lambda x: (x * 1, None), lambda _, g: (g * o.k,))
    return lambda a: ad.grad(lambda x: f(x).sum())(a)


class Doubled(ad.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 2 * g * K


class Plain(optim.Optimizer):
    owner: Any = None

    def apply_one(self, xp: Any, p: Any, g: Any, state: Any, hyper: Any) -> Any:
        return p - self.owner.k * g, {}


def _with_optimizer(o: Any) -> Any:
    p = ad.ones(1, requires_grad=True)
    opt = Plain([p], lr=1.0)
    opt.owner = o

    def f(a: Any) -> Any:
        with ad.no_grad():
            p.copy_(a)
        p.grad = None
        (p * p).sum().backward()
        opt.step()
        return p.detach() * 1

    return f


@pytest.mark.parametrize("backend", ["replay", "auto"])
@pytest.mark.parametrize("name", _cases())
def test_a_changed_value_is_used(name: str, backend: str) -> None:
    f, change = _cases()[name]
    compiled = ad.compile(f, backend=backend)
    try:
        for value in (2.0, 2.0, 2.0, 2.0, 3.0, 3.0, 5.0):
            change(value)
            assert compiled(np.ones(1)) == f(ad.ones(1)).numpy()
        assert compiled.stats()["traces"] == 3
    finally:
        change(1.0)


STANDARD = {
    "logging": lambda a: logging.getLogger("adjoint.test").debug("called") or a * 2,
    "patterns": lambda a: a * len(re.findall("a", "aba")),
    "signatures": lambda a: a * len(inspect.signature(times_k).parameters),
    "enumerations": lambda a: a * (2 if Mode.one is Mode.one else 3) + Mode.two.value,
    "locks": lambda a: a * LOCK.locked(),
    "user dictionaries": lambda a: a * SETTINGS["k"] + NESTED["k"],
}
LOCK, SETTINGS = threading.Lock(), collections.UserDict(k=2.0)
NESTED = collections.ChainMap({}, SETTINGS)


@pytest.mark.parametrize("name", STANDARD)
def test_the_standard_library_needs_few_guards(name: str) -> None:
    """Its modules have thousands of variables, some of which are new at each access."""
    compiled = ad.compile(STANDARD[name], backend="replay")
    for _ in range(3):
        assert compiled(np.ones(1)) == STANDARD[name](ad.ones(1)).numpy()
    assert compiled.stats()["traces"] == 1
    assert len(compiled.stats()["programs"][0]["guards"]) < 100


class Prices:
    """Attributes that are new objects at each access."""

    cents = 150

    @property
    def price(self) -> Any:
        return fractions.Fraction(self.cents, 100)

    @property
    def path(self) -> Any:
        return pathlib.PurePath(str(self.cents))


def test_values_that_are_new_objects_at_each_access() -> None:
    prices, count = Prices(), types.MethodType(len, [1, 2])  # a method whose function is not Python code

    @ad.compile(backend="replay")
    def f(a: Any) -> Any:
        return a * float(prices.price) * len(str(prices.path)) * count()

    assert [f(np.ones(1)).item() for _ in range(3)] == [9.0] * 3
    assert f.stats()["traces"] == 1
    prices.cents = 50
    assert f(np.ones(1)).item() == 2.0 and f.stats()["traces"] == 2


def test_a_changed_user_dictionary_is_noticed() -> None:
    compiled = ad.compile(STANDARD["user dictionaries"], backend="replay")
    assert compiled(np.ones(1)) == 4.0
    SETTINGS["k"] = 3.0
    assert compiled(np.ones(1)) == 6.0
    SETTINGS["k"] = 2.0


def test_hooks_of_a_layer_that_are_added_later_run() -> None:
    layer = nn.Tanh()
    handles = [layer.register_forward_hook(lambda m, a, y: y + 1)]
    compiled = ad.compile(lambda x: layer(x), backend="replay")
    assert compiled(np.zeros(1)) == 1.0
    handles.append(layer.register_forward_hook(lambda m, a, y: y * 3))
    assert compiled(np.zeros(1)) == 3.0
    handles[0].remove()
    assert compiled(np.zeros(1)) == 0.0
    assert compiled.stats()["reasons"][1:] == ["Tanh: hooks changed"] * 2


def test_a_hook_that_draws_is_an_error() -> None:
    p, rng = ad.ones(1, requires_grad=True), np.random.default_rng(0)
    p.register_hook(lambda g: g * rng.normal())
    before = rng.bit_generator.state

    @ad.compile(backend="replay")
    def f() -> None:
        (p * p).sum().backward()

    with pytest.raises(TransformError, match="draws from a random generator"):
        f()
    assert rng.bit_generator.state == before and p.grad is None


def test_a_string_is_not_the_member_of_an_enumeration_that_equals_it() -> None:
    class Kind(enum.StrEnum):
        up = "up"

    f = lambda x, kind: x * 2 if kind is Kind.up else x * 3
    compiled = ad.compile(f, backend="replay")
    assert [float(compiled(np.ones(()), k)) for k in ("up", Kind.up, "up")] == [3.0, 2.0, 3.0]


IMPORTS = {
    "import": "def f(a):\n import conf_of_test as c\n return a * c.k",
    "import from": "def f(a):\n from conf_of_test import k\n return a * k",
    "a function": "def f(a):\n from conf_of_test import by_k\n return by_k(a)",
    "a class": "def f(a):\n import conf_of_test\n return a * conf_of_test.Settings.k",
    "a dictionary": "def f(a):\n from conf_of_test import table as t\n return a * t['k']",
    "in an inner function": "def f(a):\n import conf_of_test\n return (lambda: a * conf_of_test.k)()",
    "a submodule": "def f(a):\n import conf_of_test.inner\n return a * conf_of_test.inner.k",
    "a submodule by a name": "def f(a):\n import conf_of_test.inner as i\n return a * i.k",
    "after many constants": "def f(a):\n "
    + "".join(f"b = 'x{i}'\n " for i in range(300))
    + "from conf_of_test import k\n return a * k",
    "relative": "__package__ = 'conf_of_test'\ndef f(a):\n from . import inner\n return a * inner.k",
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", IMPORTS)
def test_values_of_modules_that_are_imported_inside(
    name: str, late: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    package = tmp_path / "conf_of_test"
    package.mkdir()
    (package / "__init__.py").write_text(
        "k = 1.0\ntable = {'k': 1.0}\nclass Settings: k = 1.0\ndef by_k(a): return a * k\n"
    )
    (package / "inner.py").write_text("k = 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    if not late:
        import conf_of_test.inner  # type: ignore[import-not-found]  # noqa: F401
    space: dict[str, Any] = {"__name__": "user"}
    run_text(IMPORTS[name], space)
    f = space["f"]
    compiled = ad.compile(f, backend="replay")
    try:
        for value in (1.0, 1.0, 3.0, 3.0, 5.0):
            if "conf_of_test" in sys.modules:
                conf = sys.modules["conf_of_test"]
                conf.k = conf.table["k"] = conf.Settings.k = value
                if "conf_of_test.inner" in sys.modules:
                    sys.modules["conf_of_test.inner"].k = value
            assert compiled(np.ones(1)) == value
        assert compiled.stats()["traces"] == 3
    finally:
        sys.modules.pop("conf_of_test", None)
        sys.modules.pop("conf_of_test.inner", None)


def test_an_unread_attribute_needs_no_other_trace() -> None:
    held = types.SimpleNamespace(k=1.0, unread=0)
    compiled = ad.compile(lambda a: a * getattr(held, "k"))  # noqa: B009
    for held.unread in range(3):
        compiled(np.ones(1))
    assert compiled.stats()["traces"] == 1


USES: dict[str, Any] = {
    "numpy": lambda h, one: h.numpy(),
    "tolist": lambda h, one: h.tolist(),
    "float": lambda h, one: float(one),
    "item": lambda h, one: one.item(),
    "bool": lambda h, one: bool(one),
    "format": lambda h, one: f"{one:.3f}",
    "asarray": lambda h, one: np.asarray(one),
    "pickle": lambda h, one: pickle.dumps(h),
    "save": lambda h, one: ad.save(os.devnull + ".safetensors", {"one": one}),
    "an assigned element": lambda h, one: h.__setitem__(0, 1.0),
    "an op": lambda h, one: h.mean(),
    "backward": lambda h, one: one.backward(),
}


@pytest.mark.parametrize("name", USES)
def test_a_value_that_was_stored_says_so_after_the_trace(name: str) -> None:
    w, stored = ad.ones(3, requires_grad=True), []

    @ad.compile
    def f(a: Any) -> Any:
        stored.extend([a * 2, (a * w).sum()])
        return a + 1

    f(np.ones(3))
    with pytest.raises(TransformError, match="Return it from the compiled function"):
        USES[name](*stored)
    assert "value of ad.compile" in repr(stored[0])


def test_conversions_inside_a_differentiated_compiled_function_say_to_return_the_value() -> None:
    f = ad.compile(ad.grad(lambda x: x.sum() * float(x[0])))
    with pytest.raises(LostHistoryError, match="return it, and read it outside") as raised:
        f(np.ones(3))
    assert "item()" not in str(raised.value)


def test_an_array_that_is_filled_with_a_traced_number() -> None:
    def f(a: Any) -> Any:
        np.zeros(3).fill(a[0])
        return a

    with pytest.raises(InputError, match=r"py:\d+ reads the value of a tensor with float\(\)"):
        ad.compile(f)(np.ones(3))


def test_reasons_name_the_tensor_and_what_changed() -> None:
    w, model = ad.ones(3, requires_grad=True), nn.Linear(3, 1, rng=0, dtype=np.float64)
    held = [ad.ones(3)]
    f = ad.compile(lambda a: (a * w).sum() + model(a).sum() + held[0].sum())

    def reason() -> str:
        f(np.ones(3))
        return str(f.stats()["reasons"][-1]).split(">: ")[-1]

    reason()
    w.requires_grad_(False)
    assert reason() == "w changed"
    assert "requires_grad of " in f.stats()["reasons"][-1]
    model.weight.requires_grad_(False)
    assert reason() == "requires_grad of Linear.weight changed"
    w.requires_grad_(True).register_hook(lambda g: g)
    assert reason() == "w changed"

    @ad.compile
    def step(a: Any) -> None:
        (w * a).sum().backward()

    w.grad = None
    step(np.ones(3))
    step(np.ones(3))
    assert step.stats()["reasons"][-1].endswith("step: w is no longer None")


class Block(nn.Module):
    def __init__(self, k: float) -> None:
        super().__init__()
        self.k, self.other = k, [k]

    def forward(self, a: Any) -> Any:
        return a * self.k * self.other[0]


def test_a_module_has_one_guard_for_all_its_attributes() -> None:
    blocks = [Block(1.0) for _ in range(5)]
    f = ad.compile(nn.Sequential(*blocks))
    for value in (2.0, 3.0, 4.0):
        blocks[1].k = value
        assert f(np.ones(1)) == value
        blocks[3].other[0] = value
        assert f(np.ones(1)) == value**2
        blocks[3].other[0] = 1.0
    assert f.stats()["programs"][0]["guards"].count("Block") == 5


BUILT_IN: dict[str, tuple[Any, Any, Any]] = {  # how to make a value, to change it, and to read it by a method
    "get": (lambda: {"a": 1.0}, lambda d: d.update(a=5.0), lambda d: d.get("a", 0.0)),
    "__getitem__": (lambda: {"a": 1.0}, lambda d: d.update(a=5.0), lambda d: d.__getitem__("a")),
    "values": (lambda: {"a": 1.0}, lambda d: d.update(a=5.0), lambda d: sum(d.values())),
    "items": (lambda: {"a": 1.0}, lambda d: d.update(a=5.0), lambda d: sum(v for _, v in d.items())),
    "keys": (lambda: {1.0: "a"}, lambda d: d.update({2.0: "b"}), lambda d: sum(d.keys())),
    "ordered": (lambda: collections.OrderedDict(a=1.0), lambda d: d.update(a=5.0), lambda d: sum(d.values())),
    "copy": (lambda: [1.0], lambda a: a.append(2.0), lambda a: sum(a.copy())),
    "count": (lambda: [1.0], lambda a: a.append(1.0), lambda a: a.count(1.0)),
    "deque": (lambda: collections.deque([1.0]), lambda a: a.append(2.0), lambda a: sum(a.copy())),
    "union": (lambda: {1.0}, lambda s: s.add(2.0), lambda s: sum(s.union(()))),
    "bytes": (lambda: bytearray(b"a"), lambda b: b.extend(b"a"), lambda b: b.count(b"a")),
}


@pytest.mark.parametrize("place", ["closure", "attribute", "method"])
@pytest.mark.parametrize("name", BUILT_IN)
def test_data_that_a_method_of_a_built_in_class_reads(name: str, place: str) -> None:
    make, change, read = BUILT_IN[name]
    value = make()
    held = types.SimpleNamespace(value=value)
    copied = value.copy  # a bound method that was made outside
    uses = {
        "closure": lambda a: a * read(value),
        "attribute": lambda a: a * read(held.value),
        "method": lambda a: a * read(copied()),
    }
    f = ad.compile(uses[place], backend="replay")
    x = np.ones(2)
    assert np.array_equal([f(x), f(x)], [uses[place](x)] * 2)
    change(value)
    assert np.array_equal(f(x), uses[place](x))
    assert f.stats()["traces"] == 2


def test_strings_and_numbers_that_their_methods_read() -> None:
    held = types.SimpleNamespace(mode="up", count=3, rate=2.0)
    f = ad.compile(
        lambda a: a * (held.mode.startswith("up") + held.count.bit_length() + held.rate.is_integer()),
        backend="replay",
    )
    x = np.ones(2)
    assert f(x)[0] == f(x)[0] == 4
    held.mode, held.count, held.rate = "down", 8, 2.5
    assert f(x)[0] == 4.0 - 1 + 2 - 1


def test_a_list_that_the_function_only_appends_to_is_not_guarded() -> None:
    log: list[int] = []

    def noisy(a: Any) -> Any:
        log.append(1)
        return a * 2

    f = ad.compile(noisy, backend="replay")
    for _ in range(3):
        f(np.ones(2))
        log.append(2)
    assert f.stats()["traces"] == 1


def test_an_object_whose_getattr_raises_any_error() -> None:
    class Config:
        def __init__(self, **values: float) -> None:
            self.__dict__["values"] = values

        def __getattr__(self, name: str) -> float:
            return self.values[name]  # KeyError

    assert ad.compile(lambda a, c: a * c.scale)(np.ones(1), Config(scale=2.0))[0] == 2
    configs = {"c": Config(scale=3.0)}
    assert ad.compile(lambda a: a * configs["c"].scale)(np.ones(1))[0] == 3


def test_data_of_built_in_methods_in_containers_partial_functions_and_attributes() -> None:
    cfg = {"k": 2.0}
    listed, named, part = [cfg.get], {"a": cfg.get}, functools.partial(cfg.get, "k")
    held = types.SimpleNamespace(get=cfg.get)

    def of_local(a: Any) -> Any:
        q = held
        return a * q.get("k")

    uses = [lambda a: a * listed[0]("k"), lambda a: a * named["a"]("k"), lambda a: a * part(), of_local]
    compiled = [ad.compile(f, backend="replay") for f in uses]
    assert [f(np.ones(1))[0] for f in compiled] == [2.0] * 4
    cfg["k"] = 3.0
    assert [f(np.ones(1))[0] for f in compiled] == [3.0] * 4


def test_attributes_of_a_list_of_the_users_own_class() -> None:
    class Numbers(list[float]):
        scale = 1.0

    numbers = Numbers([1.0])

    def f(a: Any) -> Any:
        q = [numbers][0]
        return a * q.scale

    compiled = ad.compile(f, backend="replay")
    assert compiled(np.ones(1))[0] == 1
    numbers.scale = 4.0
    assert compiled(np.ones(1))[0] == 4


class _Always7(dict[str, float]):
    def __getitem__(self, key: str) -> float:
        return 7.0


ALIKE: dict[str, tuple[Any, Any, Any]] = {  # two values that are equal, and how the function reads them
    "decimals": (decimal.Decimal("1.0"), decimal.Decimal("1.00"), lambda v: len(str(v))),
    "zones": (
        datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.UTC),
        datetime.datetime(2020, 1, 1, 15, tzinfo=datetime.timezone(datetime.timedelta(hours=3))),
        lambda v: v.hour,
    ),
    "arrays": (array.array("i", [1]), array.array("h", [1, 0]), len),
    "dictionaries": ({"k": 1.0}, _Always7(k=1.0), lambda v: v["k"]),
}


@pytest.mark.parametrize("name", ALIKE)
def test_values_that_are_equal_but_not_alike(name: str) -> None:
    first, second, read = ALIKE[name]
    held = types.SimpleNamespace(value=first)
    f = ad.compile(lambda a: a * read(held.value), backend="replay")
    assert f(np.ones(1))[0] == read(first)
    held.value = second
    assert f(np.ones(1))[0] == read(second)


def test_caches_of_ops_in_a_list_are_not_guarded() -> None:
    ops = [ad.tanh, ad.add, ad.where, ad.maximum]
    f = ad.compile(lambda x: ops[0](ops[1](x, 1.0)))
    for k in range(3):
        ad.ones(2) * (0.123 + k)
        ad.add(ad.ones(2), 0.456 + k)  # eager mode keeps an array of this number
        f(np.ones(2))
    assert f.stats()["traces"] == 1
