"""Recording: every node is made by the same code, whatever records it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint.core.node import Node


@ad.custom_vjp
def cube(x: Any) -> Any:
    return x**3


cube.defvjp(lambda x: (x**3, x), lambda x, g: (3 * x**2 * g,))

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "one array": lambda x: ad.tanh(-x).sum(),
    "one array and a parameter": lambda x: x.reshape(2, 2).T.sum(axis=0).sum(),
    "two arrays": lambda x: (x * x - 2.0 * x).sum(),
    "three arrays": lambda x: ad.where(x > 0, x, 0.0).sum(),
    "any number of arrays": lambda x: ad.concat([x, x * x]).sum(),
    "several outputs": lambda x: sum(p.sum() for p in ad.split(x, 2)),
    "outputs of integers": lambda x: ad.topk(x, 2)[0].sum(),
    "a call": lambda x: cube(x).sum(),
    "a checkpoint": lambda x: ad.checkpoint(lambda y: ad.sin(y * y), x).sum(),
    "a transform": lambda x: ad.vmap(lambda y: y * y)(x).sum(),
    "forward mode": lambda x: ad.jvp(ad.sin, (x,), (ad.ones(4),))[1].sum(),
    "a gradient": lambda x: (ad.grad(lambda y: (y**3).sum())(x) * x).sum(),
    "augmented assignment": lambda x: augmented(x),
}


def augmented(x: Any) -> Any:
    y = x * 1.0
    y += x
    y *= 2.0
    return y.sum()


def nodes_of(root: Any) -> list[Node]:
    found: dict[int, Node] = {}
    waiting = [root._node]
    while waiting:
        node = waiting.pop()
        if type(node) is Node and id(node) not in found:
            found[id(node)] = node
            waiting += node.parents
    return list(found.values())


@pytest.mark.parametrize("name", PROGRAMS)
def test_anomaly_mode_and_tapes_see_every_node(name: str) -> None:
    x = ad.tensor(np.linspace(0.5, 2.0, 4), requires_grad=True)
    expected = ad.gradients(PROGRAMS[name](x), [x])
    with ad.detect_anomaly():
        root = PROGRAMS[name](x)
    nodes = nodes_of(root)
    assert nodes and all(node.extra is not None and node.extra.where is not None for node in nodes)
    with ad.Tape() as tape:
        value = PROGRAMS[name](x)
    assert all(node.seq in tape._recorded for node in nodes_of(value))
    assert tape.gradients(value, [x])[x].tolist() == expected[0].tolist()


@pytest.mark.parametrize("name", PROGRAMS)
def test_nodes_are_numbered_in_the_order_of_recording(name: str) -> None:
    x = ad.tensor(np.linspace(0.5, 2.0, 4), requires_grad=True)
    for node in nodes_of(PROGRAMS[name](x)):
        assert all(p.seq < node.seq for p in node.parents if type(p) is Node)


def test_an_argument_without_a_rule_may_have_a_history() -> None:
    x = ad.tensor([1.0, -2.0, 3.0], requires_grad=True)
    for y in (ad.where(x, x * x, x), ad.copysign(x, x * x), ad.heaviside(x, x)):
        assert y.requires_grad
        y.sum().backward()
    with ad.detect_anomaly():
        slow = ad.where(x, x * x, x)
    assert [type(p) for p in slow._node.parents] == [type(p) for p in ad.where(x, x * x, x)._node.parents]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_sign_of_a_zero_is_kept(dtype: Any) -> None:
    x = ad.tensor([1.0, -1.0], dtype=dtype)
    for zero in (0.0, -0.0, 0, 0.0, -0.0):
        assert np.signbit((x * zero).numpy()).tolist() == np.signbit(x.numpy() * zero).tolist()
        chosen = ad.where(x > 0, x, zero).numpy()
        assert np.signbit(chosen[1]) == np.signbit(float(zero)) and chosen.dtype == dtype
