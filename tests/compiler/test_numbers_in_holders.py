"""Numbers that change between calls and are parts of objects, and code that needs plain numbers."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
from program_texts import run_text

import adjoint as ad

X = np.array([1.0, -2.0, 3.0])
NAMES = "copy dataclasses decimal fractions json math pickle types".split()


def _space(text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    module = types.ModuleType("program_of_test")
    monkeypatch.setitem(sys.modules, "program_of_test", module)
    space = vars(module)
    space |= {"np": np, "ad": ad, **{n: __import__(n) for n in NAMES}}
    run_text(text, space)
    return space


def _check_equal(compiled: Any, f: Any, *args: Any, what: str) -> None:
    for _ in range(3):
        found, expected = compiled(*args), f(*args)
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        np.testing.assert_allclose(found.numpy(), expected.numpy(), 1e-12, 1e-14, err_msg=what)


# The text that makes an object ``o`` with a number, and the place of the number.
HOLDERS = {
    "an attribute": ("class O: pass\no = O()\no.k, o.j = {k}, 1.0", "o.k"),
    "a namespace": ("o = types.SimpleNamespace(k={k}, j=1.0)", "o.k"),
    "a slot": ("class O:\n    __slots__ = ('k', 'j')\no = O()\no.k, o.j = {k}, 1.0", "o.k"),
    "an item": ("o = dict(k={k}, j=1.0)", "o['k']"),
    "a global variable": ("o, k = [1.0], {k}", "k"),
    "a field": ("@dataclasses.dataclass\nclass O:\n    k: float = {k}\no = O()", "o.k"),
}

# Expressions that read the number k, or its holder o as a whole.  If the result depends on the digits, each value
# has a program.
READERS = {
    "the number": ("x * {k}", False),
    "the holder, copied": ("x * {k} + 0 * (copy.copy({o}) is None)", False),
    "the holder, copied deeply": ("x * {k} + 0 * (copy.deepcopy({o}) is None)", False),
    "a method": ("types.MethodType(lambda s, x: x * {k}, {o})(x)", False),
    "a comparison": ("x * {k} + 0 * ({o} == {o})", False),
    "membership": ("x * {k} + 0 * ({o} in [{o}])", False),
    "the text": ("x * len(str({o}))", True),
    "JSON": ("x * len(json.dumps({o}, default=str))", True),
    "a decimal": ("x * float(decimal.Decimal({k}))", True),
    "a fraction": ("x * float(fractions.Fraction({k}).limit_denominator(7))", True),
    "pickled": ("x * len(pickle.dumps({k}))", True),
    "a condition": ("x * 2 if {k} > 2.5 else x * {k}", True),
}
SEQUENCES = ([1.0, 2.0, 3.0, 4.0, 6.5, 1.0, 7.0], [1, 2, 3, 4, 6, 1, 7], [1.0, 2, 3.0, True, 4, 5.0, 1])


@pytest.mark.parametrize("values", SEQUENCES, ids=["floats", "integers", "mixed"])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("holder", HOLDERS)
def test_numbers_that_change_in_holders(
    holder: str, reader: str, values: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that is an input of the program may be part of an object that C code or a library reads."""
    (made, place), (expression, digits) = HOLDERS[holder], READERS[reader]
    space = _space(
        f"{made.format(k=values[0])}\ndef f(x): return {expression.format(k=place, o='o')}", monkeypatch
    )
    compiled = ad.compile(space["f"], backend="replay")
    traces = []
    for value in values:
        run_text(f"{place} = {value}", space)
        _check_equal(compiled, space["f"], ad.tensor(X), what=str(value))
        assert eval(place, space) == value
        traces.append(compiled.stats()["traces"])
    assert max(np.diff([0, *traces])) <= 1, traces
    if not digits and len(set(map(type, values))) == 1:
        assert traces[-1] == 3, traces


# A step that counts, and reads the holder of the counter before or after it counts.
STEPS = {
    "items": ("dict(n=0, r=2.0)", "x * sum(v for _, v in o.items())"),
    "keyword arguments": ("dict(n=0, r=2.0)", "(lambda n, r: x * n * r)(**o)"),
    "a merged dictionary": ("dict(n=0, r=2.0)", "x * {**o, 'r': 3.0}['n']"),
    "a union": ("dict(n=0, r=2.0)", "x * (o | {'r': 3.0})['n']"),
    "a copy": ("dict(n=0, r=2.0)", "x * o.copy()['n']"),
    "a deep copy": ("dict(n=0, r=2.0)", "x * copy.deepcopy(o)['n']"),
    "variables": ("types.SimpleNamespace(n=0, r=2.0)", "x * sum(vars(o).values())"),
    "asdict": ("O()", "x * dataclasses.asdict(o)['n']"),
    "astuple": ("O()", "x * dataclasses.astuple(o)[0]"),
    "replace": ("O()", "x * dataclasses.replace(o, r=2.0).n"),
    "a comparison": ("O()", "x * o.n if o != O(-1) else x"),
    "local variables": ("dict(n=0)", "(lambda n: x * n + 0 * len(str(locals().keys())))(o['n'])"),
    "JSON": ("dict(n=0, r=2.0)", "x * len(json.dumps(o)) * o['n']"),
    "text": ("O()", "x * len(str(o))"),
}


@pytest.mark.parametrize("backend", ["replay", "auto"])
@pytest.mark.parametrize("late", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("name", STEPS)
def test_holders_of_counters(name: str, late: bool, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, expression = STEPS[name]
    count = "o['n'] += 1" if made.startswith("dict") else "o.n += 1"
    body = [f"y = {expression}", count] if late else [count, f"y = {expression}"]
    text = "@dataclasses.dataclass\nclass O:\n    n: int = 0\n    r: float = 1.0\n"
    text += f"o = {made}\ndef f(x):\n    {body[0]}\n    {body[1]}\n    return y\n"
    compiled_space, plain = _space(text, monkeypatch), _space(text, monkeypatch)
    compiled = ad.compile(compiled_space["f"], backend=backend)
    x = ad.tensor(X)
    for k in range(6):
        if k == 4:
            compiled.program(x)
        np.testing.assert_allclose(compiled(x).numpy(), plain["f"](x).numpy())
        assert str(compiled_space["o"]) == str(plain["o"])
    assert compiled.stats()["traces"] == (6 if name in ("JSON", "text") else 2)


# Code that needs a plain number among the arguments of a compiled function.
TAKERS = {
    "JSON": "x * len(json.dumps({'k': k}))",
    "JSON with a default": "x * len(json.dumps([k], default=str))",
    "a decimal": "x * float(decimal.Decimal(k))",
    "pickled": "x * len(pickle.dumps([k, 1]))",
    "a fraction": "x * float(fractions.Fraction(k))",
    "a namespace": "x * types.SimpleNamespace(k=k).k",
    "the square root": "x * math.sqrt(k)",
}


@pytest.mark.parametrize("values", [[0.5, 1.25, 4.0, 0.5], [1, 2, 3, 4, 2]], ids=["floats", "integers"])
@pytest.mark.parametrize("name", TAKERS)
def test_code_that_needs_plain_numbers(name: str, values: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    f = _space(f"def f(x, k): return {TAKERS[name]}", monkeypatch)["f"]
    compiled = ad.compile(f, backend="replay")
    for value in values:
        _check_equal(compiled, f, ad.tensor(X), value, what=str(value))
    assert compiled.stats()["traces"] <= len(set(values))


def test_a_function_that_a_decorator_of_another_package_wraps_gets_symbols() -> None:
    space: dict[str, Any] = {"__name__": "decorators_of_test"}
    text = "def checked(f):\n    def call(*args): return f(*args)\n    return call\n"
    exec(compile(text, "/site-packages/decorators_of_test.py", "exec"), space)
    compiled = ad.compile(space["checked"](lambda x, k: x * k), backend="replay")
    for k in (0.5, 1.5, 2.5):
        assert compiled(ad.tensor(X), k).tolist() == (X * k).tolist()
    assert compiled.stats()["traces"] == 1
