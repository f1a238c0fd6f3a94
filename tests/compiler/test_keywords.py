"""Keyword arguments, defaults and calls without arguments: each call gives what the plain function gives."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from random_keywords import Key, Settings, compare

import adjoint as ad


@pytest.mark.filterwarnings("ignore:ad.compile")
@pytest.mark.parametrize("backend", ["replay", "native"])
def test_random_calls_equal_plain_python(backend: str) -> None:
    for seed in range(40 if backend == "replay" else 4):
        compare(seed, backend)


@pytest.mark.parametrize("value", ["sum", None, len, int, (), {}, [], True, 3, 2.0])
def test_a_keyword_argument_is_for_one_call(value: Any) -> None:
    x = np.ones(4)
    f = ad.compile(lambda x, reduction="mean": x.sum() if reduction == value else x.mean())
    assert [f(x), f(x, reduction=value), f(x), f(x, value), f(x)] == [1, 4, 1, 4, 1]
    g = ad.compile(lambda reduction="mean": ad.tensor(2.0) if reduction == value else ad.tensor(1.0))
    assert [float(v) for v in (g(), g(reduction=value), g(), g(value), g())] == [1, 2, 1, 2, 1]


def test_keys_with_the_same_repr_and_constants_that_are_equal() -> None:
    x = np.ones(2, "int32")
    f = ad.compile(lambda d: sum(v * k.value for k, v in d.items()))
    assert [f({Key(k): x}).tolist() for k in (1, 2, 1)] == [[1, 1], [2, 2], [1, 1]]
    g = ad.compile(lambda s: s.weight * s.power)
    assert [g(Settings(x, n)).dtype.kind for n in (1, 1.0, True)] == ["i", "f", "i"]
    assert g.stats()["reasons"][1] == "a static field changed"
    h = ad.compile(lambda d: d["a"] * d.default_factory())
    made = [defaultdict(make, a=np.ones(2)) for make in (lambda: 2, lambda: 3)]
    assert [h(d).tolist() for d in made] == [[2, 2], [3, 3]]
