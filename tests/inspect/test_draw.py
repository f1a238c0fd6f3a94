"""``draw``: text, DOT, SVG and HTML of graphs, folded so that no group is large."""

from __future__ import annotations

import re
import xml.etree.ElementTree

import numpy as np
import pytest

import adjoint as ad
from adjoint import errors, nn
from adjoint.inspect.graph import LIMIT, graph_of
from adjoint.inspect.layout import laid_out

F = nn.functional
X = ad.tensor(np.ones((4, 8), np.float32))


def net():
    return nn.Sequential(nn.Linear(8, 6, rng=0), nn.ReLU(), nn.Linear(6, 2, rng=1))


def test_a_tensor_is_drawn_as_text():
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    assert str(ad.inspect.draw((w * w + w).sum())) == (
        "%1 multiply(leaf 2, leaf 2)  2\n%2 add(%1, leaf 2)  2\n%3 sum(%2)  ()"
    )


def test_a_module_is_drawn_with_its_boxes_names_and_lines():
    model = net()
    text = str(ad.inspect.draw(model, X))
    assert re.sub(r"  # .*", "", text).splitlines() == [
        "Sequential",
        "  0 Linear",
        "    %1 linear(0.weight 6×8, 0.bias 6)  4×6",
        "  1 ReLU",
        "    %2 relu(%1)  4×6",
        "  2 Linear",
        "    %3 linear(%2, 2.weight 2×6, 2.bias 2)  4×2",
    ]
    assert "test_draw.py:" in text
    assert len(ad.inspect.draw(model, X).text(limit=2).splitlines()) == 3


def test_functions_that_run_backward_and_several_outputs_are_drawn():
    model = net()

    def step():
        a, b = ad.split(model(X), 2, axis=1)
        (a * b).sum().backward()

    text = str(ad.inspect.draw(step))
    assert "split(%3)" in text and "multiply(%4, %4)" in text


def test_files_have_the_format_of_their_ending(tmp_path):
    model = net()
    for ending, start in (
        (".txt", "Sequential"),
        (".dot", "digraph"),
        (".svg", "<svg"),
        (".html", "<!doctype html>"),
    ):
        path = tmp_path / f"graph{ending}"
        ad.inspect.draw(model, X, path=path)
        assert path.read_text().startswith(start)
    ad.inspect.draw(model, X, path=tmp_path / "other", format="dot")
    assert (tmp_path / "other").read_text().startswith("digraph")
    with pytest.raises(
        errors.ArgumentError, match=r"is not a known format\.\n  Use a file name that ends in \.txt, \.dot"
    ):
        ad.inspect.draw(model, X, path=tmp_path / "graph.png")
    assert ad.inspect.draw(model, X, format="dot") == ad.inspect.draw(model, X).dot()
    with pytest.raises(errors.ArgumentError, match="'png' is not a known format"):
        ad.inspect.draw(model, X, format="png")


def test_the_svg_is_well_formed_and_boxes_do_not_overlap():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, rng=0)
    drawing = ad.inspect.draw(layer, ad.tensor(np.ones((2, 5, 8), np.float32)))
    root = xml.etree.ElementTree.fromstring(drawing.svg())
    assert "softmax" in "".join(root.itertext()) or "attention" in "".join(root.itertext())
    boxes = laid_out(drawing.graph).boxes
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            apart = (
                a.x + a.width <= b.x or b.x + b.width <= a.x or a.y + a.height <= b.y or b.y + b.height <= a.y
            )
            assert apart


def test_names_are_escaped():
    evil = {"</script><img src=x onerror=alert(1)>": ad.tensor([1.0], requires_grad=True)}

    def loss(params):
        return sum(p.sum() for p in params.values())

    drawing = ad.inspect.draw(loss, evil)
    assert "<img" not in drawing.svg() and "<img" not in drawing.html() and '\\"' not in drawing.dot()
    loss.__name__ = "<b>bold</b>"
    assert "<b>bold" not in ad.inspect.draw(loss, evil).html()


def test_no_group_of_a_large_graph_has_many_children():
    w = ad.tensor([0.5], requires_grad=True)

    def chain():
        y = w
        for _ in range(700):
            a = ad.tanh(y * 1.01)
            y = a + w
        return y.sum()

    graph = ad.inspect.draw(chain).graph
    assert graph.ops() == 2101
    assert all(len(g.children) <= LIMIT for g in graph.groups)
    inside = sorted(c for g in graph.groups for c in g.children if c >= 0)
    assert inside == [i for i, b in enumerate(graph.boxes) if not b.leaf]  # each op is in one group
    for at, group in enumerate(graph.groups):
        for child in group.children:
            assert (graph.boxes[child].group if child >= 0 else graph.groups[-1 - child].parent) == at
    assert any(g.times == 700 and g.name.endswith("700") for g in graph.groups)
    flat = w
    for _ in range(5000):
        flat = ad.tanh(flat)
    graph = graph_of([flat._node])
    assert all(len(g.children) <= LIMIT for g in graph.groups)
    assert len(laid_out(graph).boxes) <= 60


def test_layers_that_are_alike_become_one_box():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8, rng=k), nn.ReLU()) for k in range(12)))
    graph = ad.inspect.draw(model, X).graph
    assert [(g.name, g.times) for g in graph.groups if g.times] == [("0 … 11", 12)]


def test_compiled_programs_are_drawn():
    @ad.compile
    def f(x):
        return (ad.tanh(x) * x).sum()

    text = str(ad.inspect.draw(f, X))
    assert "tanh(argument 0 4×8)" in text


def test_bad_targets_say_what_to_do():
    with pytest.raises(errors.NoGradientError, match="has no graph"):
        ad.inspect.draw(X)
    with pytest.raises(errors.InputError, match="not an int"):
        ad.inspect.draw(3)
    with pytest.raises(errors.NoGradientError, match="returns no tensor with a graph"):
        ad.inspect.draw(lambda: X * 2)
