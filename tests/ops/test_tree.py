"""Trees: what goes apart comes together again, and mismatches are named."""

from __future__ import annotations

import enum
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import tree
from adjoint.errors import InputError, TransformError

Point = namedtuple("Point", "x y")


@dataclass(frozen=True)
class Layer:
    w: Any
    b: Any = None
    act: Any = abs
    size: int = field(default=3, metadata={"static": True})


class Mode(enum.Enum):
    TRAIN = 1


@pytest.mark.parametrize(
    "value",
    [
        1.0,
        [1.0, (2.0, 3.0)],
        Point(1.0, [2.0]),
        {"b": 1.0, "a": {"c": 2.0}},
        OrderedDict(z=1.0, a=2.0),
        defaultdict(list, {"q": 4.0}),
        Layer(1.0, [2.0, 3.0]),
        [],
        None,
        {"mode": Mode.TRAIN, "name": "n", "f": len, "t": int, "x": 5.0},
    ],
)
def test_flatten_and_unflatten_are_inverse(value: Any) -> None:
    leaves, structure = tree.flatten(value)
    again = tree.unflatten(structure, leaves)
    assert again == value
    assert type(again) is type(value)
    assert tree.structure(again) == structure


def test_defaultdict_keeps_its_factory() -> None:
    assert tree.map(lambda x: x, defaultdict(list, {"q": 4.0}))["new"] == []


def test_static_fields_and_text_are_no_leaves() -> None:
    assert tree.leaves(Layer(1.0, "text")) == [1.0]
    assert tree.map(lambda x: 2 * x, Layer(1.0, None, abs, 7)) == Layer(2.0, None, abs, 7)


def test_order_of_keys_is_no_matter() -> None:
    assert tree.structure({"a": 1, "b": 2}) == tree.structure({"b": 1, "a": 2})
    assert tree.map(lambda x, y: x - y, {"a": 3, "b": 2}, {"b": 1, "a": 1}) == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"a": 1}, "t is missing ['b']; expected {'a': *, 'b': [*, *]}."),
        ({"a": 1, "b": [1, 2], "c": 3}, "t has unexpected ['c']; expected {'a': *, 'b': [*, *]}."),
        ({"a": 1, "b": (1, 2)}, "t['b'] is a tuple, but a list is expected: [*, *]."),
        ({"a": 1, "b": [1]}, "t['b'] is missing [1]; expected [*, *]."),
        ({"a": None, "b": [1, 2]}, "t['a'] is None, but a tensor is expected there."),
    ],
)
def test_mismatch_is_named(other: Any, message: str) -> None:
    structure = tree.structure({"a": 1, "b": [1, 2]})
    with pytest.raises(TransformError) as caught:
        tree.flatten_like(structure, other, "t")
    assert str(caught.value) == message


def test_spread() -> None:
    s = tree.structure(([1, 2], {"a": 3, "b": 4}))
    assert tree.spread(0, s, "in_axes") == [0, 0, 0, 0]
    assert tree.spread((0, {"a": None, "b": 1}), s, "in_axes") == [0, 0, None, 1]
    assert tree.spread([[0, None], 1], s, "in_axes") == [0, None, 1, 1]
    with pytest.raises(TransformError, match=r"in_axes\[1\] is \{'a': 0\}, which does not match"):
        tree.spread((0, {"a": 0}), s, "in_axes")
    with pytest.raises(TransformError, match="where an integer or None is expected"):
        tree.spread(("x", 0), s, "in_axes")


def test_wrong_number_of_leaves() -> None:
    with pytest.raises(InputError, match="has 2 leaves, but got 1"):
        tree.unflatten(tree.structure([1, 2]), [1])


def test_register_takes_subclasses() -> None:
    class Box:
        def __init__(self, inside: Any) -> None:
            self.inside = inside

    class Crate(Box):
        pass

    tree.register(Box, lambda b: ([("inside", b.inside)], type(b)), lambda kind, c: kind(*c))
    crate = tree.map(lambda x: x + 1, Crate([1, 2]))
    assert type(crate) is Crate
    assert crate.inside == [2, 3]
    assert [p for p, _ in tree.paths(crate, "c")] == ["c.inside[0]", "c.inside[1]"]
    with pytest.raises(InputError, match="expected a class"):
        tree.register(3, None, None)  # type: ignore[arg-type]


def test_register_holds_for_types_that_were_leaves() -> None:
    cls = type("Late", (), {"__module__": "numpy.late"})  # of a module whose leaf types are remembered
    value = cls()
    assert tree.flatten([value])[0] == [value]
    tree.register(cls, lambda _: ([("a", 1.0)], None), lambda _, __: value)
    assert tree.flatten([value])[0] == [1.0]


def test_too_deep_is_an_error_that_says_so() -> None:
    deep: Any = 1.0
    for _ in range(5_000):
        deep = [deep]
    circle: list[Any] = []
    circle.append(circle)
    for value in (deep, circle):
        with pytest.raises(
            InputError, match="deeper than Python's recursion limit allows, or contains itself"
        ):
            tree.leaves(value)


def test_ravel_sorts_keys() -> None:
    """As ``flatten`` of autograd and ``ravel_pytree`` of JAX do: who pairs the vector with other numbers relies on it."""
    params = {"w": np.array([1.0, 2.0]), "b": {"z": 3.0, "a": [4.0, 5.0]}}
    vector, unravel = tree.ravel(params)
    assert vector.tolist() == [4, 5, 3, 1, 2]
    back = unravel(vector)
    assert list(back) == ["w", "b"] and list(back["b"]) == ["z", "a"]  # the tree keeps its order
    assert back["w"].tolist() == [1, 2] and float(back["b"]["z"]) == 3 and float(back["b"]["a"][1]) == 5
    for value, expected in [
        ({10: 1.0, 9: 2.0}, [2, 1]),
        ({(1, "b"): 1.0, (1, "a"): 2.0}, [2, 1]),
        ({1: 1.0, "a": 2.0, 0: 3.0}, [1, 2, 3]),  # cannot be compared: the order of insertion
        (OrderedDict(z=1.0, a=2.0), [1, 2]),
        (defaultdict(float, z=1.0, a=2.0), [2, 1]),
        ({"b": {}, "a": None}, []),
    ]:
        vector, unravel = tree.ravel(value)
        assert vector.tolist() == expected
        assert unravel(vector) == value


def test_ravel_of_recorded_tensors_sorts_keys() -> None:
    params = {"w": ad.tensor([1.0, 2.0], requires_grad=True), "b": ad.tensor(3.0, requires_grad=True)}
    vector, unravel = tree.ravel(params)
    (vector * np.array([5.0, 6.0, 7.0])).sum().backward()
    assert params["b"].grad.tolist() == 5 and params["w"].grad.tolist() == [6, 7]
    (slopes,) = ad.gradients(unravel(vector)["b"] * 2, [params["b"]])
    assert slopes.item() == 2
