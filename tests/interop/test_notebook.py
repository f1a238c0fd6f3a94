"""What notebooks show: HTML of tensors, modules, optimisers and trainings, and the progress of a training."""

from __future__ import annotations

import re
import sys
from html import unescape
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from notebooks import executed

import adjoint as ad
from adjoint import nn, optim, train
from adjoint.interop import notebook
from adjoint.optim import schedules
from adjoint.train import progress


def parsed(html: str) -> ElementTree.Element:
    """The HTML, which is also well-formed XML."""
    return ElementTree.fromstring(f"<div>{html.replace(' open ', ' ')}</div>")


@pytest.mark.parametrize(
    "data",
    [
        np.array(2.0),
        np.zeros((0, 3)),
        np.arange(5),
        np.array([True, False]),
        np.array([np.nan, np.inf, -np.inf, 1.0]),
        np.full((3, 2), 1e308),
        np.ones((40, 50, 60), np.float32),
        np.array([1 + 2j]),
        np.array([1.0, -2.0], np.float16),
    ],
    ids=lambda d: f"{d.dtype}{d.shape}",
)
def test_tensors(data):
    html = ad.tensor(data)._repr_html_()
    text = "".join(parsed(html).itertext())
    assert f"shape {data.shape}" in text and str(data.dtype) in text
    assert len(html) < 120_000


def test_statistics_and_history_of_a_tensor():
    x = ad.tensor([[1.0, -3.0], [np.nan, np.inf]], requires_grad=True)
    text = "".join(parsed(x._repr_html_()).itertext())
    assert "requires grad" in text and "min -3, mean -1, max 1, NaN 1, inf 1" in text
    colors = re.findall(r'fill="(#\w+)"', x._repr_html_())
    assert colors == ["#ffaaaa", "#0000ff", "#2ca02c", "#000000"]
    assert "made by tanh" in ad.tanh(x)._repr_html_()


def test_tensors_inside_transforms_are_shown():
    seen = []
    ad.vmap(lambda x: seen.append(x._repr_html_()) or x)(np.ones((2, 3)))
    assert seen[0].startswith("<pre>")


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 3, rng=0)

    def extra_repr(self) -> str:
        return "<script>alert('x')</script>"


def test_text_of_programs_is_escaped():
    html = Odd()._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html
    assert "weight" in "".join(parsed(html).itertext())
    history = train.History([{"<i>": 1.0}, {"<i>": 2.0}])
    assert "<i>" not in history._repr_html_()


def test_optimizers_and_trainers_are_shown():
    net = nn.Sequential(nn.Linear(2, 3, rng=0), nn.ReLU(), nn.Linear(3, 1, rng=1))
    optimizer = optim.Adam(net.parameters(), lr=0.01)
    x = np.ones((8, 2), "f")
    trainer = train.Trainer(net, nn.functional.mse_loss, optimizer)
    history = trainer.fit(train.DataLoader((x, x[:, :1]), 4), 3, validate=[(x, x[:, :1])])
    assert isinstance(history, train.History) and history.column("loss")[0] > 0
    for shown in (optimizer, trainer, history, net):
        parsed(shown._repr_html_())
    assert trainer._repr_html_().count("<polyline") >= 3
    assert repr(trainer).startswith("Trainer(Sequential, Adam(") and repr(trainer).endswith(
        "3 epochs, 6 steps)"
    )
    assert train.History()._repr_html_() == "<div>no epochs yet</div>"


def test_a_summary_is_shown_as_its_table():
    found = ad.inspect.summary(nn.Linear(2, 3, rng=0), np.ones((4, 2), np.float32))
    (table,) = parsed(found._repr_html_())
    assert table.text == str(found) and "monospace" in table.get("style")


def test_no_public_object_shows_an_address():
    net = nn.Linear(2, 2, rng=0)
    shown = [
        train.DataLoader((np.ones((4, 2)),), 2), train.DataLoader(iter([1]), 1), train.EarlyStopping(),
        train.GradientFlow(), train.NonFiniteGuard(), train.JSONLog("a"), train.CSVLog("a"), train.Checkpoints("a"),
        train.BestCheckpoint("a"), ad.GradScaler(), ad.GradientAccumulator(net.parameters()), ad.Tape(), ad.no_grad(),
        ad.enable_grad(), ad.detect_anomaly(), ad.config.threads(2), ad.config.compiling(True), ad.compile(np.sin),
        ad.custom_vjp(np.sin), ad.tensor([1.0]).at, ad.random.default_rng(0), optim.SGD(net.parameters(), lr=0.1),
        schedules.Plateau(0.1),
    ]  # fmt: skip
    assert [repr(s) for s in shown if " at 0x" in repr(s)] == []


def test_a_notebook_shows_bar_tables_and_page(monkeypatch):
    pytest.importorskip("ipykernel")
    progress, tensor, history, profile, report = (c.outputs for c in executed(monkeypatch).cells)
    bar = next(o for o in progress if "data" in o)
    lines = "".join(o.text for o in progress if o.output_type == "stream" and o.name == "stdout")
    assert sum("data" in o for o in progress) == 1  # the bar was updated
    assert all(o.get("name") != "stderr" for o in progress)  # no warning
    assert bar.data["text/plain"].startswith("epoch 2/2  " + "█" * 24 + "  4/4  loss ")
    assert bar.data["text/html"].startswith('<pre class="adjoint-progress" style="font-family:monospace')
    assert [line[:9] for line in lines.splitlines()] == ["epoch 1/2", "epoch 2/2"]
    assert "<svg" in tensor[0].data["text/html"] and "<polyline" in history[0].data["text/html"]
    rows = parsed(profile[0].data["text/html"]).find("table").findall("tr")
    assert [c.text for c in rows[0]][:3] == ["op", "calls", "forward"]
    assert "multiply" in {r[0].text for r in rows[1:]}
    page, path = report
    (inner,) = re.findall(r'<iframe srcdoc="([^"]*)"', page.data["text/html"])
    assert unescape(inner).startswith("<!doctype html>") and 'id="data"' in unescape(inner)
    assert page.data["text/plain"].endswith("report.html") and "report.html" in path.data["text/plain"]


def test_a_bar_without_known_steps_and_of_a_resumed_run(monkeypatch):
    shown = []
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    monkeypatch.setattr(progress, "display", lambda html, text, before: shown.append(text))
    bar = progress.Progress(None, 2)
    bar.epoch(0, 0)
    bar.step({"loss": 0.5}, 8.0, "samples")
    bar.result(1, {"loss": 0.5})
    assert shown[-1].startswith("epoch 1/2  1 step  loss 0.5  ")
    bar = progress.Progress(10, 4)
    bar.epoch(2, 5)
    assert shown[-1] == "epoch 3/4  " + "█" * 15 + "░" * 9 + "  25/40  "
    bar.step({"loss": 0.25}, 8.0, "samples")
    bar.close()
    assert "26/40" not in shown[-1]  # too soon after the last update


def test_a_terminal_is_not_a_notebook():
    assert not notebook.in_notebook()


def test_shells_that_inherit_from_jupyters_are_notebooks(monkeypatch):
    shell = type("ZMQInteractiveShell", (), {})
    colab = type("Shell", (shell,), {})
    for cls, expected in ((shell, True), (colab, True), (type("TerminalInteractiveShell", (), {}), False)):
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=cls))
        assert notebook.in_notebook() is expected
