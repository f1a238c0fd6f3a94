"""Random calls of compiled functions with arguments of every kind, compared with the plain function.

Each argument changes the result, also by its type: 1, True and 1.0 give different results.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import types
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import numpy as np

import adjoint as ad


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Name(str):
    """A subclass of str: equal to the string, but of another type."""


class Scale:
    """A callable object."""

    def __call__(self, a: Any) -> Any:
        return a * 2


class Key:
    """A key of a dictionary whose repr does not identify it."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "Key"

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other.value == self.value


@dataclasses.dataclass
class Settings:
    """A container with a leaf and a constant."""

    weight: Any
    power: Any = dataclasses.field(default=1, metadata={"static": True})


Pair = namedtuple("Pair", "a b")
_first, _second = (lambda a: a), (lambda a: -a)
_scales = Scale(), Scale()
_keys = Key(1), Key(2)
_ARRAY = np.array([0.5, 1.5, 2.5], np.float32)
CONSTANTS: list[Any] = [
    "sum", "mean", "", "1", Name("sum"), b"sum", b"1", None, len, np.tanh, _first, _second, *_scales,
    _scales[0].__call__, _scales[1].__call__, functools.partial(_first, 1), int, float, Scale, Colour, Colour.RED,
    Colour.BLUE, Level.LOW, Level.HIGH, True, False, 0, 1, 2, -1, 10**20, 1j, (), [], {}, set, ..., (1, 2),
    (1, True), (1, Level.LOW), [1, 2], ["a", None], ("a", ("b",)), {"a": 1}, {"a": True}, {"a": "b", "c": 1},
    {"c": 1, "a": "b"}, {1: "a"}, {True: "a"}, {_keys[0]: "a"}, {_keys[1]: "a"}, frozenset((1, 2)),
    frozenset((1, True)), frozenset((0.0,)), frozenset((-0.0,)), range(3), range(0), range(1, 1), slice(1), slice(True),
    np.dtype("f4"), np.dtype("f8"), np.float32, np.float64, decimal.Decimal("1.0"), decimal.Decimal("1.00"),
    datetime.timedelta(1), types.SimpleNamespace, Pair(1, "a"), Pair(1, 2), OrderedDict(a=1), defaultdict(int, a=1),
    defaultdict(list, a=1), Settings(1), Settings(1, True), Settings(1, 1.0), Settings(1, 0.0), Settings(1, -0.0),
    Settings("w", (1, 2)), Settings("w", (True, 2)), [()], [{}], [[]], ({},), (None,), [None],
]  # fmt: skip


def _moving(rng: np.random.Generator) -> Any:
    """Return a value that a program reads at each call: a float, an array or a tensor, or a tree of them."""
    number = float(rng.uniform(-1, 1))
    array = rng.uniform(-1, 1, 3).astype("float32")
    return [
        0.0, -0.0, float("nan"), number, np.float32(number), np.float64(number), array, ad.tensor(array),
        ad.tensor(array, requires_grad=True), (number, "a"), {"a": array, "b": None}, [ad.tensor(array), 1],
        Settings(array, 2), Settings(number, True), Pair(number, array), [number, (), number],
    ][int(rng.integers(16))]  # fmt: skip


def code(value: Any) -> Any:
    """Return a number or a tensor that depends on a value and on its type."""
    if isinstance(value, (ad.Tensor, np.ndarray, np.generic)):
        return value * 2
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return 1 + 3 * code(value.weight) + 5 * code(value.power)
    if isinstance(value, (list, tuple, dict)):
        items = [*value, *value.values()] if isinstance(value, dict) else list(value)
        factory = code(value.default_factory) if isinstance(value, defaultdict) else 0
        return sum(((k + 2) * code(v) for k, v in enumerate(items)), _number(type(value)) + factory)
    known = next((k for k, c in enumerate((*CONSTANTS, *_keys)) if c is value), None)
    if isinstance(value, Key):
        return 7 * value.value
    if known is None and not isinstance(value, (*EXACT, frozenset, functools.partial, types.MethodType)):
        return value * 2 + compared(value)  # a float, or the symbol of one
    return _number((type(value), repr(value))) + (0 if known is None else known / 128)


OTHERS: list[Any] = [
    "sum", "", None, (), [], {}, b"1", (0.0,), [0.0], {0.0: 1}, len, int, float, Colour.RED, Level.LOW, True, 0, 1j,
    0.0, 0.5, decimal.Decimal("0.0"), decimal.Decimal("0.5"), fractions.Fraction(1, 2), frozenset((0.0,)), range(3),
    slice(1), ..., datetime.timedelta(1), np.float32(0.5), np.float64(0.0), np.int64(0), Name("0.0"), *_keys, *_scales,
]  # fmt: skip


def compared(value: Any) -> Any:
    """Return a number that depends on the outcomes of comparisons of a float with every kind of value."""
    total: Any = value * Level.HIGH + (Level.LOW - value)
    for k, other in enumerate(OTHERS):
        if value == other:
            total = total + 3 * k
        if not isinstance(other, np.generic) and (other != value or (value, other) == (other, value)):
            total = total - k
        if isinstance(other, (int, float, decimal.Decimal, fractions.Fraction, np.generic)) and value < other:
            total = total + 7 * k
    return total + 5 * (value in ("auto", None, [], 0.0, Level.LOW)) + 11 * (value in {"a": 1, 0.0: 2})


EXACT = (str, bytes, int, complex, type(None), type, types.FunctionType, enum.Enum, range, slice)


def _number(value: Any) -> float:
    return sum((k + 1) * c for k, c in enumerate(repr(value).encode())) % 1024 / 64


def function(form: int) -> Any:
    """Return a function with another kind of parameters for each ``form``."""

    def positional(x: Any = _ARRAY, mode: Any = "mean", scale: Any = 1.0) -> Any:
        return ad.sum(x) * code(mode) + code(scale)

    def keyword_only(x: Any = _ARRAY, *, mode: Any = None, scale: Any = ()) -> Any:
        return ad.sum(x) * code(mode) + code(scale)

    def any_names(x: Any = _ARRAY, **named: Any) -> Any:
        total = ad.sum(x)
        for k, (name, value) in enumerate(named.items()):
            total = total + (k + 1) * _number(name) * code(value)
        return total

    def anything(*given: Any, **named: Any) -> Any:
        total = ad.sum(_ARRAY)
        for k, value in enumerate((*given, *named, *named.values())):
            total = total * 0.5 + (k + 1) * code(value)
        return total

    def tensors(x: Any = None, mode: Any = "mean", scale: Any = None) -> Any:
        return (_W if x is None else _W * ad.sum(x)) * code(mode) + code(scale)

    return (positional, keyword_only, any_names, anything, tensors)[form]


_W = ad.tensor(np.array([1.0, 2.0, 3.0], np.float32), requires_grad=True)
NAMES = ("mode", "scale")


def _call(rng: np.random.Generator, form: int, pool: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    value = lambda: pool[int(rng.integers(len(pool)))] if rng.random() < 0.8 else _moving(rng)
    x = [_ARRAY, _ARRAY[:2], ad.tensor(_ARRAY), ad.tensor(_ARRAY, requires_grad=True), _ARRAY.astype("i4")]
    args: list[Any] = [x[int(rng.integers(len(x)))]] if rng.random() < 0.7 else []
    named = {name: value() for name in NAMES if rng.random() < 0.5}
    if form in (0, 3, 4) and args and "mode" in named and rng.random() < 0.5:
        args.append(named.pop("mode"))
    if form in (2, 3) and rng.random() < 0.5:
        named = dict(reversed(named.items())) | ({"other": value()} if rng.random() < 0.5 else {})
    return args, named


def _flat(found: Any) -> Any:
    array = found.detach().numpy() if isinstance(found, ad.Tensor) else np.asarray(found)
    return array.dtype, array.shape, array.tolist()


def compare(seed: int, backend: str) -> None:
    """Make calls with few distinct values in turn; raise unless each result is that of the plain function."""
    rng = np.random.default_rng(seed)
    form = int(rng.integers(5))
    start = int(rng.integers(len(CONSTANTS) - 3))
    pool = [
        *CONSTANTS[start : start + 4],
        CONSTANTS[int(rng.integers(len(CONSTANTS)))],
    ]  # neighbours are alike
    plain, compiled = function(form), ad.compile(function(form), backend=backend, limit=50)
    calls = [_call(rng, form, pool) for _ in range(4)]
    with np.errstate(all="ignore"):
        for k in range(10):
            args, named = calls[int(rng.integers(4))]
            try:
                expected: Any = plain(*args, **named)
            except Exception:  # a product that NumPy does not have, such as that of int32 and 10**20
                continue
            try:
                found = compiled(*args, **named)
            except ad.errors.InputError as error:
                assert "not hashable" in str(error), f"seed {seed}, call {k}"  # noqa: PT017
                continue
            one, other = _flat(found), _flat(expected)
            assert one[:2] == other[:2], f"seed {seed}, call {k}: {args} {named}: {one} {other}"
            np.testing.assert_allclose(
                one[2], other[2], rtol=1e-5, err_msg=f"seed {seed}, call {k}: {args} {named}"
            )
