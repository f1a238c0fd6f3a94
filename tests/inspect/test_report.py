"""The recorder and the report: what is measured, and what the page contains."""

from __future__ import annotations

import base64
import gzip
import json
import re

import numpy as np
import pytest

import adjoint as ad
from adjoint import errors, nn, optim, train
from adjoint.config import special
from adjoint.context import observer
from adjoint.inspect.reporting import report_data
from adjoint.inspect.sentences import sentences

F = nn.functional
RNG = np.random.default_rng(0)
X = RNG.normal(size=(96, 6)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int64)


def trainer(callbacks, *, clip=1.0, accumulate=2, model=None, **more):
    model = model or nn.Sequential(nn.Linear(6, 16, rng=0), nn.Tanh(), nn.Linear(16, 2, rng=1))
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    return train.Trainer(
        model,
        F.cross_entropy,
        optimizer,
        clip=clip,
        accumulate=accumulate,
        callbacks=callbacks,
        progress=False,
        **more,
    )


def loader():
    return train.DataLoader((X, Y), 16)


def data_of(path):
    text = path.read_text()
    packed = re.search(r'id="data">([^<]*)<', text)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_a_run_is_recorded_and_not_changed():
    plain = trainer(())
    plain.fit(loader(), 4, validate=loader())
    recorder = ad.inspect.Recorder()
    watched = trainer(recorder)
    watched.fit(loader(), 4, validate=loader())
    for a, b in zip(plain.model.parameters(), watched.model.parameters(), strict=True):
        assert (a.numpy() == b.numpy()).all()
    assert special.count == 0 and observer.get() is None
    assert recorder.steps == list(range(1, 25))
    assert recorder.names == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert recorder.numbers["grad_norm"] == pytest.approx(
        [np.sqrt(np.sum(np.square(row))) for row in recorder.gradients], rel=1e-5
    )
    assert all(r is not None and 0 < r < 1 for row in recorder.ratios for r in row)
    assert [(w[1], w[2]) for w in recorder.windows] == [(2, 16.0)] * 24
    assert len(recorder.epochs) == 4
    captured = recorder.captured
    assert captured.step >= 12 and captured.findings == []
    assert {e.phase for e in captured.events} == {"forward", "backward", "update"}
    assert captured.graph.ops() == 5


def test_the_page_has_everything_and_stays_small(tmp_path):
    t = trainer(ad.inspect.Recorder())
    t.fit(loader(), 3, validate=loader())
    path = ad.inspect.report(t, tmp_path / "report.html", title="a <run>")
    text = path.read_text()
    assert len(text) < 500_000 and "<title>a &lt;run&gt;</title>" in text
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)
    assert "Leon Sorokin" in text and "Chris Pettitt" in text  # the licences of what is inside
    data = data_of(path)
    assert data["title"] == "a <run>"
    assert any("The loss fell from" in text for _, text, _ in data["says"])
    assert len(data["gradients"]["rows"]) == 4 and len(data["gradients"]["rows"][0]) == len(
        data["steps"]["step"]
    )
    assert data["windows"]["pieces"] == [2] * 18
    assert data["rows"]["op"] and data["timeline"]["events"] and data["graph"]["name"]


def test_mistakes_head_the_report():
    model = nn.Sequential(nn.Linear(6, 16, rng=0), nn.ReLU(), nn.Linear(16, 2, rng=1))
    with ad.no_grad():
        model[0].bias[...] = -100.0
    recorder = ad.inspect.Recorder()
    t = trainer(recorder, model=model)
    t.fit(loader(), 1)
    first = sentences(recorder)[0]
    assert first[0] == "bad" and "'relu' in 1 (ReLU) at" in first[1] and "t.fit(loader(), 1)" in first[2]


def test_losses_that_are_not_finite_are_told(tmp_path):
    recorder = ad.inspect.Recorder()
    t = trainer(recorder, clip=None)
    bad = (np.where(np.arange(96) == 90, np.nan, 1.0)[:, None] * X).astype(np.float32)
    with pytest.warns(UserWarning, match="loss"):
        t.fit(train.DataLoader((bad, Y), 16), 1)
    assert any("The loss was not finite in" in text for _, text, _ in sentences(recorder))
    data = data_of(ad.inspect.report(recorder, tmp_path / "report.html"))
    assert None in data["steps"]["loss"] and None in data["gradients"]["rows"][0]


def test_a_loop_of_ones_own_is_recorded(tmp_path):
    model = nn.Linear(6, 2, rng=0)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    recorder = ad.inspect.Recorder()

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ad.tensor(X)), ad.tensor(Y))
        loss.backward()
        recorder.record(loss, model, optimizer, clip=3.0)
        optimizer.step()

    for _ in range(5):
        step()
    with recorder.capture(model, optimizer):
        step()
    assert recorder.captured.findings == [] and recorder.captured.graph.ops() == 3
    assert [b.name for b in recorder.captured.graph.boxes if b.leaf] == ["weight", "bias"]
    assert all(r is not None for row in recorder.ratios[:-1] for r in row)
    data = data_of(ad.inspect.report(recorder, tmp_path / "report.html"))
    assert data["clip"] == 3.0 and len(data["steps"]["lr"]) == 6


def test_long_runs_are_thinned_out():
    recorder = ad.inspect.Recorder(limit=50)
    model = nn.Linear(2, 1, rng=0)
    x = ad.ones((3, 2), dtype=np.float32)
    for _ in range(300):
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        recorder.record(loss, model, step=(recorder.steps[-1] if recorder.steps else 0) + recorder.every)
    assert len(recorder.steps) <= 51 and len(recorder.spread) <= 61
    assert {len(v) for v in recorder.numbers.values()} == {len(recorder.steps)} == {len(recorder.gradients)}
    assert all(b > a for a, b in zip(recorder.steps, recorder.steps[1:], strict=False))


def test_without_a_recorder_the_epochs_are_shown(tmp_path):
    t = trainer(())
    t.fit(loader(), 3, validate=loader())
    data = data_of(ad.inspect.report(t, tmp_path / "report.html"))
    assert data["steps"]["step"] == [6, 12, 18] and data["validation"]["step"] == [6, 12, 18]
    assert "graph" not in data


def test_an_error_in_training_leaves_nothing_watched():
    class Broken(train.Callback):
        def on_step(self, trainer, logs):
            if trainer.step == 3:
                raise RuntimeError("stop")

    t = trainer([ad.inspect.Recorder(), Broken()])
    with pytest.raises(RuntimeError, match="stop"):
        t.fit(loader(), 1)
    assert special.count == 0 and observer.get() is None


def test_unused_parameters_and_empty_recorders(tmp_path):
    with pytest.raises(errors.InputError, match="must be a Trainer or a Recorder, not a list"):
        ad.inspect.report([], tmp_path / "report.html")
    with pytest.raises(errors.ArgumentError, match="every must be at least 1"):
        ad.inspect.Recorder(every=0)
    with pytest.raises(errors.InputError, match="parameters must be a module"):
        ad.inspect.Recorder().record(1.0, 3)
    data = report_data(ad.inspect.Recorder(), "nothing")
    assert data["says"] == [] and data["facts"] == ""
    ad.inspect.report(ad.inspect.Recorder(), tmp_path / "empty.html")
