"""Arguments in dictionaries, tuples, lists and keywords, numbers and flags, changed between the calls."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import optim, tree


@dataclasses.dataclass
class Fields:
    first: Any
    second: Any = "b"


def random_tree(r: Any, depth: int = 0) -> Any:
    """Return a random argument: an array, a tensor, a number, a constant or a container of such."""
    kind = r.integers(13 if depth < 3 else 8)
    if kind < 2:
        return r.normal(size=(2, 3))
    if kind == 2:
        return ad.tensor(r.normal(size=(3,)))
    if kind == 3:
        return float(r.normal())
    if kind == 4:
        return int(r.integers(3))
    if kind == 5:
        return bool(r.integers(2))
    if kind == 6:
        return (None, "a", "b", b"a")[r.integers(4)]
    if kind == 7:
        return r.normal(size=(3, 2)).T  # not contiguous
    children = [random_tree(r, depth + 1) for _ in range(r.integers(0, 4))]
    if kind == 12:
        return Fields(*children[:2]) if children else Fields(None)
    if kind < 10:
        return dict(zip("xyz", children, strict=False))
    return children if kind == 10 else tuple(children)


def changed(r: Any, value: Any) -> Any:
    """Return an argument with other arrays, and sometimes with another constant, key, order or type."""
    if isinstance(value, ad.Tensor):
        return ad.tensor(r.normal(size=value.shape))
    if isinstance(value, np.ndarray):
        return r.normal(size=value.shape)
    odd = r.random() < 0.04
    if isinstance(value, Fields):
        return Fields(changed(r, value.first), changed(r, value.second))
    if isinstance(value, dict):
        items = [(k, changed(r, v)) for k, v in value.items()]
        if odd and items:
            items = [items[::-1], items[:-1], [*items, ("w", 1)], [("u", v) for _, v in items[:1]]][
                r.integers(4)
            ]
        return dict(items)
    if isinstance(value, (list, tuple)):
        items = [changed(r, v) for v in value]
        if odd:
            return tuple(items) if r.random() < 0.5 and isinstance(value, list) else type(value)(items[:-1])
        return type(value)(items)
    if type(value) is float:
        return float(r.normal())
    return (True, False, 1, 0, 2, 2.5, -0.0, None, "a", b"a")[r.integers(10)] if odd else value


def f(*args: Any, **kwargs: Any) -> Any:
    """Use all arguments; the result depends on all values, types and keys."""
    total = ad.zeros(3)
    for k, (path, leaf) in enumerate(
        zip(*(tree.structure((args, kwargs)).paths(), tree.flatten((args, kwargs))[0]), strict=True)
    ):
        if isinstance(leaf, (ad.Tensor, np.ndarray)):
            total = total + ad.sin(leaf).sum() * (k + 1)
        else:
            total = total + leaf * len(path) + isinstance(leaf, bool)
    return total + len(tree.structure((args, kwargs)).describe())


@pytest.mark.parametrize("backend", ["replay", "auto"])
@pytest.mark.parametrize("seed", range(40))
def test_random_arguments(seed: int, backend: str) -> None:
    r = np.random.default_rng(seed)
    args = [random_tree(r) for _ in range(r.integers(0, 4))]
    kwargs = {name: random_tree(r) for name in ("p", "q")[: r.integers(3)]}
    compiled = ad.compile(f, backend=backend, limit=1000)
    plain = not any(isinstance(v, ad.Tensor) for v in tree.leaves((args, kwargs)))
    for _ in range(25):
        expected = np.asarray(f(*args, **kwargs))
        found = compiled(*args, **kwargs)
        np.testing.assert_allclose(np.asarray(found), expected, 1e-12, 1e-12)
        moving = any(type(v) in (float, np.ndarray) for v in tree.leaves((args, kwargs)))
        assert not (plain and moving) or isinstance(found, (np.ndarray, np.generic))
        args = [changed(r, a) for a in args]
        kwargs = {k: changed(r, v) for k, v in kwargs.items()}
        if r.random() < 0.05:
            kwargs = dict(reversed(kwargs.items()))


CALLS: dict[str, Any] = {
    "dict": lambda x, y: (({"x": x, "y": y},), {}),
    "tuple": lambda x, y: (((x, y),), {}),
    "list": lambda x, y: (([x, y],), {}),
    "keywords": lambda x, y: ((), {"x": x, "y": y}),
    "nested": lambda x, y: (({"a": [x, (y, None)], "k": 3, "name": "n"},), {"flag": True}),
    "dataclass": lambda x, y: ((Fields(x, Fields(y, None)),), {}),
    "number": lambda x, y: ((x, y, 0.5), {}),
    "constants": lambda x, y: ((x, y, True, 3, "mean", None), {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_call_takes_the_general_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the third call on, generated code takes the arrays out of the arguments."""
    pytest.importorskip("llvmlite")
    w = ad.tensor(np.ones(3), requires_grad=True)
    opt = optim.AdamW([w], lr=0.1)

    def step(*args: Any, **kwargs: Any) -> Any:
        x, y = (v for v in tree.leaves((args, kwargs)) if not isinstance(v, (int, float)))
        opt.zero_grad()
        loss = ((x @ w - y) ** 2).mean()
        loss.backward()
        opt.step()
        return loss

    compiled = ad.compile(step)
    r = np.random.default_rng(0)
    give = lambda: CALLS[name](r.normal(size=(4, 3)), r.normal(size=4))
    for _ in range(3):
        args, kwargs = give()
        compiled(*args, **kwargs)
    monkeypatch.setattr(type(compiled), "_general", None)
    for _ in range(5):
        args, kwargs = give()
        assert np.isfinite(compiled(*args, **kwargs))
    strided = CALLS[name](r.normal(size=(4, 6))[:, ::2], r.normal(size=8)[::-2])
    assert np.isfinite(compiled(*strided[0], **strided[1]))


def test_one_tensor_in_two_places() -> None:
    compiled = ad.compile(lambda b: b["x"] * 2 + b["y"])
    x, y = ad.tensor([1.0]), ad.tensor([2.0])
    for pair in ((x, y), (x, y), (x, y), (x, x), (y, x), (y, y), (x, y)):
        found = compiled({"x": pair[0], "y": pair[1]})
        assert found.item() == pair[0].item() * 2 + pair[1].item()


def test_an_integer_with_more_digits_than_python_writes() -> None:
    compiled = ad.compile(lambda x, k: x * (k % 7))
    for k in (10**5000, 10**5000, 10**5000, 10**5000 + 1, 10**5000):
        np.testing.assert_array_equal(compiled(np.ones(2), k), np.ones(2) * (k % 7))
