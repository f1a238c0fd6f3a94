"""``profile`` counts calls and bytes as they are, and ``summary`` lists the modules."""

from __future__ import annotations

import json
import sys
import tracemalloc

import numpy as np
import pytest

import adjoint as ad
from adjoint import errors, nn
from adjoint.config import special
from adjoint.context import observer

F = nn.functional
X = ad.tensor(np.random.default_rng(0).normal(size=(256, 64)).astype(np.float32))
Y = ad.tensor(np.arange(256) % 10)


def net():
    return nn.Sequential(nn.Linear(64, 128, rng=0), nn.Tanh(), nn.Linear(128, 10, rng=1))


def step(model):
    F.cross_entropy(model(X), Y).backward()


def test_calls_lines_and_modules_are_counted():
    model = net()
    with ad.inspect.profile() as p:
        step(model)
        step(model)
    rows = {row.name: row for row in p.rows()}
    assert rows["linear"].calls == 4 and rows["tanh"].calls == 2
    assert rows["tanh"].made == 2 * 2 * 256 * 128 * 4  # the output and the gradient of the input
    assert rows["tanh"].kept == 2 * 256 * 128 * 4
    assert all(row.forward > 0 and row.backward > 0 for row in rows.values())
    (line,) = p.rows("line")
    assert line.name.startswith("tests/inspect/test_profile.py:") or "test_profile.py:" in line.name
    assert {row.name for row in p.rows("module")} >= {"Sequential.0", "Sequential.1", "Sequential.2"}
    total = sum(row.seconds for row in p.rows())
    assert 0 < total <= p.seconds
    assert sum(row.seconds for row in p.rows("module")) == pytest.approx(total)


def test_bytes_are_those_of_tracemalloc():
    model = net()
    step(model)
    model.zero_grad()

    def forward():
        return F.cross_entropy(model(X), Y)

    with ad.inspect.profile() as p:
        loss = forward()
    live, kept = p.watch.memory.now, p.kept_bytes
    del loss, p
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        loss = forward()
        after = tracemalloc.get_traced_memory()[0]
        assert live == pytest.approx(after - before, rel=0.05)
        assert kept <= live
        tracemalloc.reset_peak()
        loss.backward()
        peak = tracemalloc.get_traced_memory()[1] - before
        del loss
    finally:
        tracemalloc.stop()
    model.zero_grad()
    with ad.inspect.profile(exact=True) as p:
        step(model)
    assert not tracemalloc.is_tracing()
    assert p.peak_bytes == pytest.approx(peak, rel=0.05)


def test_what_is_freed_leaves_the_live_bytes():
    with ad.inspect.profile() as p:
        for _ in range(5):
            ad.exp(ad.zeros((1000,)))
    assert p.made_bytes == 5 * 8000 and p.peak_bytes == 8000
    assert p.watch.memory.now == 0
    assert p.holders()[0][1] == 8000 and p.holders()[0][0].startswith("exp forward")


def test_tables_are_legible(capsys):
    model = net()
    with ad.inspect.profile() as p:
        step(model)
    text = str(p)
    assert text.splitlines()[0].split() == ["op", "calls", "forward", "backward", "share", "made", "kept"]
    assert "in Python between them." in text and "At the peak:" in text
    assert len(p.table("module", limit=1).splitlines()) == 2 + len(p.table(limit=0).splitlines()) - 1
    p.show("line")
    assert "test_profile.py:" in capsys.readouterr().out
    assert repr(p).startswith("<Profile, ")
    with pytest.raises(errors.ArgumentError, match="must be 'op', 'line' or 'module'"):
        p.rows("file")


def test_a_missing_extra_is_named(monkeypatch):
    with ad.inspect.profile() as p:
        ad.exp(X)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(errors.MissingExtraError, match=r"pip install 'adjoint-ad\[train\]'"):
        p.show()


def test_the_chrome_trace_nests(tmp_path):
    model = net()
    with ad.inspect.profile() as p:
        step(model)
    path = p.chrome_trace(tmp_path / "trace.json")
    events = json.loads(path.read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    modules = {e["name"]: e for e in spans if e["cat"] == "module"}
    assert {"Sequential", "Sequential.0"} <= set(modules)
    for e in spans:
        assert e["dur"] >= 0 and e["ts"] >= 0
        if e["name"] == "tanh" and e["cat"] == "forward":
            around = modules["Sequential.1"]
            assert around["ts"] <= e["ts"] and e["ts"] + e["dur"] <= around["ts"] + around["dur"] + 1
    assert any(e["ph"] == "C" for e in events)


def test_a_compiled_function_that_raises_is_profiled_and_leaves_the_modes_as_they_were():
    rows = ad.compile(lambda x, k: x[k] if k < 2 else ad.exp("no tensor"))
    before = special.count
    with ad.inspect.profile() as p:
        with pytest.raises(errors.AdjointError):
            rows(np.ones(3), 5)
        assert special.count == before + 1
        rows(np.ones(3), 1)
        ad.exp(ad.zeros(2))
    assert special.count == before
    assert [e.name for e in p.watch.events] == ["<lambda>", "exp"]


def test_compiled_functions_are_one_event_with_their_program():
    w = ad.tensor(np.ones(3), requires_grad=True)

    @ad.compile(backend="replay")
    def loss(x):
        return (w * x).sum()

    loss(np.ones(3))
    with ad.inspect.profile() as p:
        loss(np.ones(3))
    assert next((row.name, row.calls) for row in p.rows()) == ("loss", 1)
    assert "multiply(" in p.compiled()["loss"]
    assert "loss is compiled: multiply, sum." in str(p)
    with ad.config.compiling(False), ad.inspect.profile() as p:
        loss(np.ones(3))
    assert {row.name for row in p.rows()} == {"multiply", "sum"}


def test_native_functions_show_their_kernels():
    pytest.importorskip("llvmlite")
    twice = ad.compile(lambda x: ad.tanh(x) * 2, backend="native")
    twice(np.ones(3))
    with ad.inspect.profile() as p:
        twice(np.ones(3))
    (text,) = p.compiled().values()
    assert "tanh" in text and "kernel" in str(p)


def test_checkpoints_parallel_backward_and_errors_are_seen():
    model = net()
    with ad.inspect.profile() as p:
        loss = F.cross_entropy(ad.checkpoint(model, X), Y)
        loss.backward(workers=2)
    assert {row.name: row.calls for row in p.rows()}["tanh"] == 2  # the forward runs again
    with ad.inspect.profile() as p:
        with pytest.raises(errors.ShapeError):
            X @ ad.ones((3, 3))
        ad.exp(X)
    assert [row.name for row in p.rows()] == ["exp"]
    assert special.count == 0 and observer.get() is None


def test_nothing_is_observed_outside_of_the_block():
    with ad.inspect.profile() as p:
        pass
    ad.exp(X)
    assert p.rows() == [] and special.count == 0


def test_summary_lists_modules_as_they_are_called():
    block = nn.Linear(8, 8, rng=0)
    model = nn.Sequential(nn.Linear(4, 8, rng=0), block, nn.Dropout(0.5), block)
    block.requires_grad_(False)
    found = ad.inspect.summary(model, ad.ones((2, 4), dtype=np.float32))
    assert [(x.path, x.kind, x.output) for x in found.layers] == [
        ("", "Sequential", "2×8"), ("0", "Linear", "2×8"), ("1", "Linear", "2×8"), ("2", "Dropout", "2×8"),
        ("1", "Linear", "2×8"),
    ]  # fmt: skip
    assert found.totals["parameters"] == 40 + 72 and found.totals["trained"] == 40
    assert [x.again for x in found.layers] == [False, False, False, False, True]
    assert "72 frozen" in str(found) and "again" in str(found) and "112 parameters in 448 B" in str(found)
    assert model.training and model[2].training
    with pytest.raises(errors.InputError, match="must be a module"):
        ad.inspect.summary(lambda x: x, X)
    for given, message in {
        (): "summary: pass the inputs with which the model is called: "
        'summary(model, ad.ones((64, 4), dtype="float32")).',
        ((2, 4),): "summary: pass an input of the model, not its shape: "
        'summary(model, ad.ones((2, 4), dtype="float32")).',
    }.items():
        with pytest.raises(errors.InputError) as caught:
            ad.inspect.summary(model, *given)
        assert str(caught.value) == message and model.training
    with pytest.raises(errors.ShapeError, match="linear: x must have shape"):
        ad.inspect.summary(model, X)
    assert ad.inspect.summary(nn.Embedding(4, 2), [0, 1]).layers[0].output == "2×2"
